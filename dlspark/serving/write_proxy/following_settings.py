"""`FollowKeys`: the settings of a write proxy that say when a log follows its writers to another region."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dlspark.serving.write_proxy.tier.following import FollowRules
from metadata.foundation.settings import FLAG, MAX_INT, WHOLE, setting

FOLLOW_RULES: Final = FollowRules()


@dataclass(frozen=True)
class FollowKeys:
    """Logs that follow their writers to another region"""

    follow_writers: bool = setting(
        FLAG,
        False,
        "server_follow_writers",
        "Whether this proxy hands a log over to the region that writes it (docs/regions.md#serving). It needs a region "
        "of its own: `region`, or DLSPARK_REGION",
        own=True,
    )
    follow_percent: int = setting(
        WHOLE,
        FOLLOW_RULES.percent,
        "server_follow_writers_percent",
        "Percent of a log's writes that come from the other region, in every window",
        minimum=51,
        maximum=100,
        own=True,
    )
    follow_window_s: int = setting(
        WHOLE,
        60,
        "server_follow_writers_window_sec",
        "How long writes are counted together, in seconds",
        minimum=1,
        maximum=86_400,
        own=True,
    )
    follow_windows: int = setting(
        WHOLE,
        FOLLOW_RULES.windows,
        "server_follow_writers_windows",
        "Windows in a row that must say the same",
        minimum=1,
        maximum=1_000,
        own=True,
    )
    follow_least: int = setting(
        WHOLE,
        FOLLOW_RULES.least,
        "server_follow_writers_min_requests",
        "Requests that a log must have in every window: one that is hardly written gains nothing",
        minimum=1,
        maximum=MAX_INT,
        own=True,
    )
    follow_stay_s: int = setting(
        WHOLE,
        int(FOLLOW_RULES.stay_s),
        "server_follow_writers_stay_sec",
        "How long a log stays with an owner at least, in seconds, also behind `dlspark regions move`",
        minimum=1,
        maximum=MAX_INT,
        own=True,
    )
