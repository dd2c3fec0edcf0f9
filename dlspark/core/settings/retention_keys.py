"""Settings of how long segments are kept."""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.core.settings.keys import flag, number


@dataclass(frozen=True)
class RetentionKeys:
    """Retention"""

    retention_hours: int = number(
        72,
        "logSegmentRetentionHours",
        "Hours for which a completed segment is kept; older ones are deleted as the writer starts new segments, but "
        "never the newest completed one; 0 or less: for ever",
        old_key="retention-size",
        dynamic=True,
    )
    explicit_truncation: bool = flag(
        False,
        "explicitTruncationByApp",
        "Whether only segments that the application has truncated are deleted when their time is over",
        dynamic=True,
    )
