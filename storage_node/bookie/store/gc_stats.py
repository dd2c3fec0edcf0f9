"""What garbage collection and compaction have done since the node started; read by tools and metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GcStats:
    """Counters that only grow."""

    rounds: int = 0
    """Rounds of garbage collection that came to their end."""
    rounds_aborted: int = 0
    """Rounds that deleted nothing, because metadata could not be read."""
    ledgers_collected: int = 0
    """Ledgers deleted here because metadata does not know them any more."""
    ledgers_moved_away: int = 0
    """Closed ledgers deleted here because other nodes store them by now."""
    logs_deleted: int = 0
    bytes_freed: int = 0
    """Length of the logs deleted."""
    logs_compacted: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0
    compactions_stopped: int = 0
    """Logs that could not be rewritten, because a record in them cannot be read; they are kept."""
