"""When a log's owner hands it over to the region that writes it (`server_follow_writers`): the decision. No I/O.

A write of another region waits for the way to the owner. So where nearly all of a log's writes come from one other
region for a while, the log is better owned there. Each hand-over ends a segment and pauses its writers for a moment, so
a log moves only if all of this holds:

    the other region has `percent` of the requests, in each of the last `windows` windows
    no window had fewer than `least` requests: a log that is hardly written gains nothing
    the log has been owned here for `stay_s`: two moves of it are never closer to each other, whoever decided the first
    a proxy of that region is announced

With a majority of more than half no two regions can have it at once, and a log whose writers are in several regions
stays. Requests of clients that say no region, or one without a proxy, count for no region, and against all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

RequestCounts: TypeAlias = Mapping[str | None, int]
"""Requests of one window by the region of their client; None: not known."""


@dataclass(frozen=True, slots=True)
class FollowRules:
    """What must hold before a log follows its writers; see above."""

    percent: int = 75
    windows: int = 5
    least: int = 60
    stay_s: float = 1_800.0


@dataclass(frozen=True, slots=True)
class FollowDecision:
    """Where a log is to go, and why, or why it stays."""

    region: str | None
    """The region that it is to be handed over to; None: it stays."""
    reason: str


def follow(
    own: str, history: Sequence[RequestCounts], owned_s: float, takers: Collection[str], rules: FollowRules
) -> FollowDecision:
    """Decide about one log that a proxy of the region `own` owns.

    Args:
        own: this proxy's region.
        history: its requests, window after window, the last one at the end.
        owned_s: how long this proxy has owned the log, or less.
        takers: regions in which a write proxy is announced.
    """

    def stays(reason: str) -> FollowDecision:
        return FollowDecision(None, reason)

    if owned_s < rules.stay_s:
        return stays(f"it is owned here for {owned_s:.0f} s, and stays for {rules.stay_s:.0f} s")
    if len(history) < rules.windows:
        return stays(f"{len(history)} of {rules.windows} windows are known")
    recent = history[len(history) - rules.windows :]
    fewest = min(sum(counts.values()) for counts in recent)
    if fewest < rules.least:
        return stays(f"a window had {fewest} requests, fewer than {rules.least}")
    leading = {_leader(counts, rules.percent) for counts in recent}
    region = leading.pop()
    if leading or region is None:
        return stays(f"no region had {rules.percent} % of the requests in each window")
    if region == own:
        return stays("its writers are here")
    if region not in takers:
        return stays(f"its writers are in {region}, where no write proxy is announced")
    count = sum(counts[region] for counts in recent)
    total = sum(sum(counts.values()) for counts in recent)
    return FollowDecision(region, f"{count} of its last {total} requests came from {region}")


def _leader(counts: RequestCounts, percent: int) -> str | None:
    """Return the region with at least so many percent, more than half, of the requests; None where none has them."""
    total = sum(counts.values())
    return next((one for one, count in counts.items() if one is not None and count * 100 >= percent * total), None)
