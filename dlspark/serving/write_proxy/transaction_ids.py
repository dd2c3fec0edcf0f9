"""Transaction ids of records that a proxy writes: times in milliseconds that do not decrease. No I/O.

An id is the clock's time, or the last id where the clock is behind it: it was set back, or the log's last owner had a
faster one. It is never below what the log has already, for it begins at the writer's last id.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlspark.core.codec.records import MAX_TXID
from storage_node.edge import Clock


class TransactionIds:
    """The ids of one stream, as long as this proxy owns it."""

    __slots__ = ("_clock", "last")

    def __init__(self, last: int, clock: Clock) -> None:
        """`last`: the log's highest id, -1 where it has none."""
        self._clock = clock
        self.last = last
        """The highest id that was given out or noted."""

    def next(self) -> int:
        """An id for a record that is written now."""
        now = self._clock.now_ms()
        if now > self.last:
            self.last = now
        return self.last

    def note(self, given: Sequence[int]) -> None:
        """Ids that a client has chosen: those of later records are not below them."""
        highest = max(given, default=-1)
        # The highest of all ids ends a log: no record of a client has it, and it is refused where it is checked.
        if self.last < highest < MAX_TXID:
            self.last = highest
