"""How much of each entry log is live: what garbage collection and compaction decide by.

A log's `stored` counts every entry that was ever put into it, `live` those whose place in the index is there now. Both
count records without the gaps between them, so that a log is as full as its entries are alive, whatever their sizes.
Kept up to date with every add, overwritten copy and deletion; counted anew from the sidecars when a node starts, and
never stored, so that it cannot be out of date (D9).
"""

from __future__ import annotations

from array import array

from storage_node.bookie.store.index import LedgerIndex


class LogUsage:
    """Bytes of entries in one log."""

    __slots__ = ("live", "stored")

    def __init__(self) -> None:
        self.live = 0
        self.stored = 0

    @property
    def ratio(self) -> float:
        """The live part, from 0 to 1; an empty log is dead."""
        return self.live / self.stored if self.stored else 0.0


class LiveBytes:
    """The usage of every log that holds entries."""

    def __init__(self) -> None:
        self.logs: dict[int, LogUsage] = {}

    def of(self, log_id: int) -> LogUsage:
        """A log's usage, to be changed by whoever puts entries into it."""
        usage = self.logs.get(log_id)
        if usage is None:
            usage = self.logs[log_id] = LogUsage()
        return usage

    def live(self, log_id: int) -> int:
        """Live bytes of a log."""
        usage = self.logs.get(log_id)
        return 0 if usage is None else usage.live

    def found(self, log_id: int, sizes: array[int], live: bool) -> None:
        """At start: a log holds entries of these sizes."""
        usage, total = self.of(log_id), sum(sizes)
        usage.stored += total
        if live:
            usage.live += total

    def gone(self, log_id: int, size: int) -> None:
        """A record is dead: a later copy has taken its place."""
        self.logs[log_id].live -= size

    def collected(self, index: LedgerIndex) -> None:
        """All entries of a ledger are dead."""
        for log_id, size in index.bytes_by_log():
            self.logs[log_id].live -= size

    def forget(self, log_id: int) -> None:
        """The log is deleted."""
        self.logs.pop(log_id, None)
