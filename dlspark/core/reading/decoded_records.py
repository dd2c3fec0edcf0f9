"""`DecodedRecords`: records that were decoded and wait for their reader; `Loan`: those lent to another thread.

What was decoded by columns stays so, and becomes objects a slice at a time: with many objects alive the garbage
collector looks at them again and again, which costs more than making them.

The synchronous reader delivers records in its caller's thread, while the asynchronous reader lives in the event loop's.
Asking the loop for each record would cost more than the record. So the loop lends all decoded records at once; what the
other thread has not delivered comes back with the next call, and the position is counted from what it has delivered.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from operator import length_hint

from dlspark.core.codec.records import LogRecord
from dlspark.core.codec.vector_decoding import DecodedBatch

SLICE = 500
"""Records that are made together: fewer than have CPython's collector begin."""


class DecodedRecords:
    """Records in the order of the log: first those that are objects already, then columns."""

    __slots__ = ("_columns", "made")

    def __init__(self) -> None:
        self.made: deque[LogRecord] = deque()
        """The records at the front that are objects already."""
        self._columns: DecodedBatch | None = None

    def __len__(self) -> int:
        return len(self.made) + (0 if self._columns is None else len(self._columns))

    def add(self, record: LogRecord) -> None:
        """Put one record behind all others; columns before it become objects."""
        self._make(len(self))
        self.made.append(record)

    def add_columns(self, batch: DecodedBatch) -> None:
        """Put records in columns behind all others; columns before them become objects."""
        self._make(len(self))
        self._columns = batch if len(batch) else None

    def clear(self) -> None:
        """Drop all."""
        self.made.clear()
        self._columns = None

    def keep(self, wanted: Callable[[LogRecord], bool]) -> None:
        """Drop all records that are not `wanted`."""
        self._make(len(self))
        kept = list(filter(wanted, self.made))
        self.made.clear()
        self.made += kept

    def take(self) -> LogRecord:
        """Take the first record. Raises IndexError where there is none. (Taking from `made` directly is quicker.)"""
        if not self.made:
            self._make(SLICE)
        return self.made.popleft()

    def take_up_to(self, count: int) -> list[LogRecord]:
        """Take the first `count` records, or as many as there are."""
        if not self.made:
            return self._cut(count)
        self._make(count)
        take = self.made.popleft
        return [take() for _ in range(min(count, len(self.made)))]

    def take_columns(self) -> DecodedBatch | list[LogRecord]:
        """Take the first records of one segment, as they are: columns, or objects. There must be at least one."""
        if not self.made and self._columns is not None:
            columns, self._columns = self._columns, None
            return columns
        first, records = self.made[0], []
        while self.made and self.made[0].dlsn.lssn == first.dlsn.lssn:
            records.append(self.made.popleft())
        return records

    def _make(self, count: int) -> None:
        """Have `count` single records at hand, if there are as many."""
        lacking = count - len(self.made)
        if lacking > 0:
            self.made += self._cut(lacking)

    def _cut(self, count: int) -> list[LogRecord]:
        """Take the first `count` rows of the columns as records, or as many as there are."""
        columns = self._columns
        if columns is None:
            return []
        records = columns.records(0, count)
        self._columns = columns.sliced(count, len(columns)) if count < len(columns) else None
        return records

    # ------------------------------------------------------------------ lending

    def lend(self) -> Loan:
        """Lend all records; none is left here."""
        loan = Loan(list(self.made), self._columns)
        self.clear()
        return loan

    def take_back(self, loan: Loan) -> None:
        """Put what `loan` has not delivered in front again. Nothing may have been added since it was made."""
        records, self._columns = loan.take_back()
        self.made += records


class Loan:
    """Records for another thread, which delivers them without asking the event loop for each.

    Taking a record from `rest`, and taking back what is left of a slice, are one step of the interpreter each, so they
    need no lock. The lock is for what happens once a slice, and is never held for long.
    """

    def __init__(self, records: list[LogRecord], columns: DecodedBatch | None) -> None:
        self._lock = threading.Lock()
        self._slice = records
        self._left = iter(records)
        self._columns = columns
        self._made = 0  # how many rows of the columns are in slices
        self._before: LogRecord | None = None  # the last record of the slices before
        self._returned: int | None = None  # how many of the slice were delivered when it was taken back
        self.rest: Iterator[LogRecord] = chain.from_iterable(self._slices())
        """The records that were not delivered yet. It ends early once they were taken back."""

    def _slices(self) -> Iterator[Iterator[LogRecord]]:
        yield self._left
        while (columns := self._columns) is not None:
            with self._lock:
                if self._returned is None:
                    # Dropped before the next ones are made: with both alive CPython's collector would begin (`SLICE`).
                    before, made = self._slice[-1] if self._slice else self._before, list[LogRecord]()
                    left = iter(made)
                    self._before, self._slice, self._left = before, made, left
            # Without the lock: a signal's handler may run meanwhile, in this thread, and ask for the position or close
            # the reader; and the event loop does not wait for so long.
            after = self._made + SLICE
            made = columns.records(self._made, after)
            left, rest = iter(made), columns if after < len(columns) else None
            with self._lock:
                if self._returned is not None:
                    return
                # No call in this line: an interrupt of the thread (KeyboardInterrupt) finds all of it done, or nothing.
                self._slice, self._left, self._made, self._columns = made, left, after, rest
            yield left

    @property
    def spent(self) -> bool:
        """True if nothing is left to be delivered."""
        with self._lock:
            return self._columns is None and not length_hint(self._left)

    @property
    def last(self) -> LogRecord | None:
        """The record delivered last; None before the first one."""
        with self._lock:
            delivered = self._returned
            if delivered is None:
                delivered = len(self._slice) - length_hint(self._left)
            return self._slice[delivered - 1] if delivered else self._before

    def take_back(self) -> tuple[list[LogRecord], DecodedBatch | None]:
        """Take back the records that were not delivered: objects, and columns behind them. `rest` ends."""
        with self._lock:
            left = list(self._left)
            self._returned = len(self._slice) - len(left)
            columns, self._columns = self._columns, None
            return left, None if columns is None else columns.sliced(self._made, len(columns))
