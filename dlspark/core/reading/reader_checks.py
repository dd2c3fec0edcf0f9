"""Checks of a reader: gaps between records, and a log in which nothing happens.

`GapCheck` checks that records follow each other without a gap, by the numbers that their writer gave them (I4). The
records of a segment are numbered from 1. A reader that begins in the middle of a segment takes the first number that it
sees. Entries whose copies are all damaged, and that are passed over, are a known loss and not a gap: how many records
are missing is logged and kept in `gaps`.

`Idleness` measures how long a reader has been waiting for a log in which nothing happens, and says when to warn of it
and when to fail. The time runs from the first read that finds nothing until an entry arrives, control records included.
It does not start anew with each read, nor with a request that was answered with nothing. It makes no request itself.

`gap_error`, `end_of_stream_error`, `add_position` and `first_damaged` make what a reader ends with.

`position_behind` and `lies_below` say where a record lies, which may be a whole record set.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlspark.core.codec.arrow_arrays import new_column
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from dlspark.core.codec.vector_decoding import decode_entries
from dlspark.core.metrics.structured_logging import about
from dlspark.core.reading.segment_follower import FetchedEntry
from dlspark.core.settings.settings import Settings
from dlspark.errors import AlreadyTruncatedError, EndOfStreamError, IdleReaderError, PositionGapError
from metadata.foundation.errors import DistributedLogError, InvariantViolation

MOST_GAPS = 1_000
"""How many known losses are remembered, the newest ones."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gap:
    """Entries that were passed over, because they are damaged on all their storage nodes."""

    start: DLSN
    entries: int
    records: int | None
    """How many records are missing, by the numbers of those before and behind; None where that is not known."""


class GapCheck:
    """The numbers of the records that one reader reads, in order."""

    def __init__(self, log: str, counters: Counter[str]) -> None:
        self.last = 0
        """Number of the last record; 0 where it is not known, or there was none in this segment."""
        self.gaps: deque[Gap] = deque(maxlen=MOST_GAPS)
        self._name = log
        self._counters = counters
        self._segment = -1
        self._passed: tuple[DLSN, int, int] | None = None  # where, how many entries, the last number before them

    def forget(self) -> None:
        """Take the next record whatever its number: the reader goes on elsewhere."""
        self._tell(None)
        self._segment, self.last = -1, 0

    def enter(self, lssn: int) -> None:
        """Expect records of this segment next; numbers begin anew in another one."""
        if lssn != self._segment:
            self._tell(None)
            self._segment, self.last = lssn, 0

    def pass_over(self, start: DLSN) -> None:
        """Note an entry that is passed over. The number of the record behind it shows how many are missing."""
        self.enter(start.lssn)
        first, entries, last = self._passed or (start, 0, self.last)
        self._passed = (first, entries + 1, last)
        self.last = 0  # So that the record behind it is not taken for one behind a gap.

    def missing_before(self, number: int) -> bool:
        """Return whether records are missing between the last one and this one. Counts the gap; does not change
        `last`."""
        if self._passed is not None:
            start, _, last = self._passed
            # Without a number before them the loss is known only at a segment's very beginning, where numbers begin.
            self._tell(number - last - 1 if last or not start.entry_id else None)
        if number == 1 or self.last == 0 or number == self.last + 1:
            return False
        self._counters["position-gap"] += 1
        return True

    def first_gap(self, numbers: npt.NDArray[np.int64]) -> int | None:
        """Return the index of the first record before which others are missing; None if there is no gap. Counts
        gaps."""
        if not len(numbers):
            return None
        if self.missing_before(int(numbers[0])):
            return 0
        before, after = numbers[:-1], numbers[1:]
        steps = new_column(len(after), np.int64)
        np.subtract(after, before, out=steps)
        gaps = np.flatnonzero(steps != 1)
        gaps = gaps[(before[gaps] != 0) & (after[gaps] != 1)]
        self._counters["position-gap"] += len(gaps)
        return int(gaps[0]) + 1 if len(gaps) else None

    def _tell(self, records: int | None) -> None:
        if self._passed is None:
            return
        start, entries, _ = self._passed
        self._passed = None
        self.gaps.append(Gap(start, entries, records))
        missing = "an unknown number of" if records is None else records
        _log.error(
            "log %s: %s records missing in %d damaged entries from %s on",
            self._name,
            missing,
            entries,
            start,
            extra=about(log=self._name, segment=start.lssn, entry=start.entry_id),
        )
        self._counters["records-skipped"] += records or 0


def gap_error(log: str, dlsn: DLSN, number: int, before: int) -> PositionGapError:
    """Return the error of a record that does not follow the one before it."""
    return PositionGapError(
        f"record {number} of segment {dlsn.lssn} follows record {before}: records are missing",
        log=log,
        dlsn=dlsn,
        advice="See dlspark ledger read-entries; positionGapDetectionEnabled=false reads on regardless",
    )


def end_of_stream_error(log: str, dlsn: DLSN) -> EndOfStreamError:
    """Return the error of a read behind the record that seals the log."""
    return EndOfStreamError("the log is sealed and all of it was read", log=log, dlsn=dlsn)


def add_position(error: DistributedLogError, position: DLSN) -> None:
    """Have a reader's final error say where another reader goes on."""
    if error.dlsn is None:
        error.dlsn = position
    note = f"Everything before {position} was delivered"
    if not isinstance(error, AlreadyTruncatedError):  # it says itself where there are records
        note += ": another reader goes on there"
    error.advice = f"{error.advice}. {note}" if error.advice else note


def first_damaged(log: str, fetched: Sequence[FetchedEntry]) -> tuple[int, DistributedLogError]:
    """Return which one of entries that cannot be decoded together is the first damaged one, and its error."""
    for number, one in enumerate(fetched):
        try:
            decode_entries(
                [(one.entry_id, one.payload)],
                lssn=one.segment.lssn,
                start_sequence_id=one.start_sequence_id,
                enveloped=one.segment.enveloped,
            )
        except DistributedLogError as error:
            return number, error
    raise InvariantViolation("entries were refused that are accepted one by one", log=log)


# ------------------------------------------------------------------ idleness

NEVER_MS = 2**31 - 1


class Idleness:
    """The time for which one reader has been idle, by the event loop's clock."""

    def __init__(self, log: str, counters: Counter[str]) -> None:
        self._name = log
        self._counters = counters
        self._since: float | None = None
        self._warned = False

    def arrived(self) -> None:
        """Note that an entry came: the reader is not idle."""
        self._since = None
        self._warned = False

    def _began(self) -> float:
        """Return when the waiting began: now, unless it had."""
        if self._since is None:
            self._since = asyncio.get_running_loop().time()
        return self._since

    def next_moment(self, settings: Settings) -> float | None:
        """Return when `check` will have something to report if nothing comes, by the event loop's clock; None for
        never."""
        began = self._began()
        thresholds = [] if self._warned else [settings.idle_warn_ms]
        thresholds = [ms for ms in (*thresholds, settings.idle_error_ms) if 0 < ms < NEVER_MS]
        return began + min(thresholds) / 1000 if thresholds else None

    def check(self, settings: Settings, position: DLSN) -> IdleReaderError | None:
        """Warn, once, after `readerIdleWarnThresholdMillis`; the error after `readerIdleErrorThresholdMillis`."""
        idle_ms = (asyncio.get_running_loop().time() - self._began()) * 1000
        if not self._warned and settings.idle_warn_ms <= idle_ms and settings.idle_warn_ms < NEVER_MS:
            self._warned = True
            self._counters["reader-idle-warned"] += 1
            _log.warning(
                "log %s: nothing has arrived at %s for %d ms",
                self._name,
                position,
                idle_ms,
                extra=about(log=self._name, segment=position.lssn),
            )
        if not 0 < settings.idle_error_ms <= idle_ms or settings.idle_error_ms == NEVER_MS:
            return None
        self._counters["reader-idle-failed"] += 1
        return IdleReaderError(
            f"nothing arrived for {settings.idle_error_ms} ms",
            log=self._name,
            dlsn=position,
            advice="See whether the log is written to",
        )


def position_behind(record: LogRecord) -> DLSN:
    """Return the first position after a record, or after a record set that is delivered whole."""
    return DLSN(record.dlsn.lssn, record.dlsn.entry_id, record.dlsn.slot_id + max(record.slots, 1))


def lies_below(record: LogRecord, start: DLSN) -> bool:
    """Return whether all of a record lies below `start`; a record set that is delivered whole may lie on both sides."""
    last = record.dlsn.slot_id + max(record.slots, 1) - 1
    return DLSN(record.dlsn.lssn, record.dlsn.entry_id, last) < start
