"""Kinds of writes: a record, a run of them, a record set, a batch, the end of stream.

Each write (`QueuedWrite`) checks itself, issues itself to a segment, or fails its own futures. A write is checked when
it is accepted, before it can wait: what waits in the `WriteQueue` needs only a segment, and is issued in the order in
which it was accepted (I4). Appends on conditions are writes, too: `conditional_appends`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import Compression, check_record_set, encode_record_set
from dlspark.core.codec.records import HEARTBEAT_PAYLOAD, MAX_TXID, check_payload_length
from dlspark.core.codec.vector_encoding import encode_entries
from dlspark.core.writing.acknowledgements import NOBODY, Appended, OutcomeCallback, RunEnded, Waiting, WrittenEntry
from dlspark.core.writing.record_runs import RecordRun, check_payload, check_txid
from dlspark.core.writing.segment_writer import SegmentWriter
from dlspark.errors import (
    InvalidEntryError,
    InvalidRecordError,
    TransactionIdOutOfOrderError,
    WriteCancelledError,
)
from metadata.foundation.errors import CallerError, DistributedLogError

_COMPRESSIONS = {"none": Compression.NONE, "lz4": Compression.LZ4}


class QueuedWrite(Protocol):
    """One write on its way into a segment."""

    __slots__ = ()

    @property
    def first_txid(self) -> int:
        """Transaction id of its first record: the first id of a segment that begins with it. -1 where it has none of
        its own, or may yet be refused: such a segment begins at the log's highest."""
        ...

    @property
    def last_txid(self) -> int:
        """Its highest transaction id: later writes may not be below it. -1 where that is not known, or not certain,
        before it is issued."""
        ...

    @property
    def records(self) -> int:
        """Positions it takes in its segment."""
        ...

    @property
    def size(self) -> int:
        """Payload bytes it holds while it is queued."""
        ...

    def check(self) -> None:
        """Raise CallerError unless it may be written; order against earlier writes: see `check_follows`."""
        ...

    def check_follows(self, highest: int, log: str | None) -> None:
        """Raise TransactionIdOutOfOrderError where its ids decrease, or one is below the log's highest (I4)."""
        self.check_order()
        if 0 <= self.first_txid < highest:
            raise below_highest_error(self.first_txid, highest, log)

    def number(self, txid: int) -> None:
        """Give its records a transaction id, where they came without."""
        return

    def is_answered(self) -> bool:
        """Return whether it needs no segment any more: it was answered, or refused, by what the log has already."""
        return False

    def check_order(self) -> None:
        """Raise TransactionIdOutOfOrderError where its own ids decrease."""
        ...

    def issue(self, segment: SegmentWriter) -> None:
        """Hand it to `segment`, which has room for its positions. Its futures end with the segment's answers."""
        ...

    def fail(self, error: DistributedLogError) -> None:
        """Give `error` to those of its futures that have not ended."""
        ...


UNNUMBERED: Final = -(2**64)
"""In the place of a transaction id that is given to a record when it gets its place; no id of a caller is so low."""


_HIGHEST: Final = re.compile(r"is below the log's highest, ([0-9]{1,19});")


def _check_given(txid: object) -> None:
    if txid is not UNNUMBERED:
        check_txid(txid)


def below_highest_error(txid: int, highest: int, log: str | None) -> TransactionIdOutOfOrderError:
    """Return the error of a record that would take the log's transaction ids back."""
    return TransactionIdOutOfOrderError(
        f"transaction id {txid} is below the log's highest, {highest}; the record was not written",
        log=log,
        advice="Write with ids that do not decrease, or set maxIdSanityCheck=false",
    )


def highest_of(message: str) -> int | None:
    """Return the highest id that an error of `below_highest_error` names; None for another error's message.

    Of an error that a proxy answers, only its message comes over.
    """
    found = _HIGHEST.search(message)
    return None if found is None else int(found[1])


class RecordWrite(QueuedWrite):
    """One user record."""

    __slots__ = ("future", "may_transmit", "payload", "txid")

    def __init__(
        self,
        txid: int,
        payload: bytes | bytearray | memoryview,
        future: asyncio.Future[DLSN],
        *,
        may_transmit: bool = True,
    ) -> None:
        """Hold one record. `txid`: UNNUMBERED for one that `number` gives it."""
        self.txid = txid
        self.payload = payload
        self.future = future
        self.may_transmit = may_transmit

    @property
    def first_txid(self) -> int:
        """Its only id."""
        return self.txid

    @property
    def last_txid(self) -> int:
        """Its only id."""
        return self.txid

    @property
    def records(self) -> int:
        """One position."""
        return 1

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return len(self.payload)

    def check(self) -> None:
        """Raise InvalidRecordError, RecordTooLongError or TransactionIdOutOfOrderError; copies a payload that its
        caller could still change."""
        if type(self.payload) is not bytes:
            check_payload(self.payload)
            self.payload = bytes(self.payload)  # The caller may change its buffer before the record is sent (I3).
        _check_given(self.txid)
        check_payload_length(len(self.payload))

    def check_order(self) -> None:
        """Pass: one id is in order with itself."""

    def number(self, txid: int) -> None:
        """Note its id, where it came without."""
        if self.txid is UNNUMBERED:
            self.txid = txid

    def issue(self, segment: SegmentWriter) -> None:
        """Hand the record to `segment`, which sends at once only if `may_transmit` is set."""
        segment.write(self.txid, bytes(self.payload), self.future, may_transmit=self.may_transmit)

    def fail(self, error: DistributedLogError) -> None:
        """Give `error` to the record's future, unless that has ended."""
        if not self.future.done():
            self.future.set_exception(error)


def not_tried_error() -> WriteCancelledError:
    """Return the error of a bulk's record behind one that was refused."""
    return WriteCancelledError("A record before it was refused; this one was not written")


class RunWrite(QueuedWrite):
    """Many records that are in order as one write: checked, queued and issued together, and answered entry by entry.

    What becomes of the records is what would become of them if each were written by itself: one that is refused takes
    none before it along. So a run is made only of records that will all be accepted (`proxy_writes.write_run` sees to
    that); what refuses it then concerns the writer, and not one of them.
    """

    __slots__ = ("accepted", "bulk", "ended", "run")

    def __init__(self, run: RecordRun, ended: RunEnded, *, bulk: bool) -> None:
        """Hold a run that was checked. `bulk`: whether those behind a refused record are not tried."""
        self.run = run
        self.ended = ended
        self.bulk = bulk
        self.accepted = False
        """Set once it is: what refuses it then does not look at single records."""

    @property
    def first_txid(self) -> int:
        """The first record's."""
        return self.run.first_txid

    @property
    def last_txid(self) -> int:
        """The last record's, or a higher one."""
        return self.run.highest_txid

    @property
    def records(self) -> int:
        """One position for each."""
        return len(self.run)

    @property
    def size(self) -> int:
        """Bytes of an entry."""
        return self.run.size

    def check(self) -> None:
        """Pass: its records were checked when the run was made."""

    def check_order(self) -> None:
        """Pass: their order was checked, too."""

    def number(self, txid: int) -> None:
        """Note one id for all records, where they came without."""
        self.run = self.run.at(txid)

    def issue(self, segment: SegmentWriter) -> None:
        """Hand the records to `segment`."""
        segment.write_run(self.run, self.ended, bulk=self.bulk)

    def fail(self, error: DistributedLogError) -> None:
        """Give `error` to all; or, of a bulk that is not accepted, to the first of them."""
        count = len(self.run)
        wrong = count if self.accepted or not self.bulk else 1
        OutcomeCallback(partial(self.ended, 0, wrong)).set_exception(error)
        if wrong < count:
            OutcomeCallback(partial(self.ended, wrong, count - wrong)).set_exception(not_tried_error())


class RecordSetWrite(QueuedWrite):
    """Several payloads in one record, of one transaction id; each has a future of its own."""

    __slots__ = ("_encoded", "compression", "futures", "payloads", "txid")

    def __init__(
        self,
        txid: int,
        payloads: Sequence[bytes | bytearray | memoryview],
        futures: Sequence[Waiting],
        compression: str,
    ) -> None:
        self.txid = txid
        self.payloads = payloads
        self.futures = futures
        self.compression = compression
        self._encoded = b""

    @property
    def first_txid(self) -> int:
        """Its only id."""
        return self.txid

    @property
    def last_txid(self) -> int:
        """Its only id."""
        return self.txid

    @property
    def records(self) -> int:
        """One position for each payload."""
        return len(self.futures)

    @property
    def size(self) -> int:
        """Bytes of the encoded set; 0 before `check` has encoded it."""
        return len(self._encoded)

    def check(self) -> None:
        """Raise unless it may be written, and encode it: the finished set has a bound of its own."""
        check_txid(self.txid)
        for payload in self.payloads:
            check_payload(payload)
        compression = _COMPRESSIONS.get(self.compression)
        if compression is None:
            raise InvalidRecordError(
                f"{self.compression!r} is not a compression of a record set; nothing was written",
                advice=f"Known are {', '.join(_COMPRESSIONS)}",
            )
        self._encoded = encode_record_set(self.payloads, compression)

    def check_order(self) -> None:
        """Pass: one id is in order with itself."""

    def issue(self, segment: SegmentWriter) -> None:
        """Hand the encoded set to `segment`, as one record with a future for each payload."""
        segment.write_set(self.txid, self._encoded, self.futures)

    def fail(self, error: DistributedLogError) -> None:
        """Give `error` to every payload's future that has not ended."""
        for future in self.futures:
            if not future.done():
                future.set_exception(error)


class EncodedSetWrite(RecordSetWrite):
    """A record set that came encoded, and was opened by `CheckedSet.check`."""

    __slots__ = ()

    def __init__(self, txid: int, checked: CheckedSet, first: asyncio.Future[DLSN]) -> None:
        """Hold a set of which `first` gets the place of the set's first payload; nobody waits for the others. `txid`:
        UNNUMBERED for one that `number` gives it."""
        super().__init__(txid, (), [first, *repeat(NOBODY, checked.count - 1)], "none")
        self._encoded = checked.encoded

    def check(self) -> None:
        """Raise unless its transaction id and its length may be written."""
        _check_given(self.txid)
        check_payload_length(len(self._encoded))

    def number(self, txid: int) -> None:
        """Note its id, where it came without."""
        if self.txid is UNNUMBERED:
            self.txid = txid


@dataclass(frozen=True, slots=True)
class CheckedSet:
    """An encoded record set that readers can open: `check` has opened it."""

    encoded: bytes
    count: int
    """Payloads that it holds."""

    @classmethod
    def check(cls, encoded: object) -> CheckedSet:
        """Open an encoded record set; any thread may do that. Raises InvalidRecordError where readers could not."""
        check_payload(encoded)
        data = bytes(encoded)  # type: ignore[call-overload]
        try:
            count = check_record_set(memoryview(data))
        except InvalidEntryError as error:
            raise InvalidRecordError(
                f"the record set cannot be opened: {error.message}; nothing was written", advice="Encode it again"
            ) from error
        if not count:
            raise InvalidRecordError("a record set has no payloads; nothing was written", advice="Give one at least")
        return cls(data, count)


class BatchWrite(QueuedWrite):
    """Columns of user records."""

    __slots__ = ("future", "payloads", "txids")

    def __init__(
        self,
        txids: npt.NDArray[np.int64] | Sequence[int],
        payloads: pa.Array,
        future: asyncio.Future[tuple[WrittenEntry, ...]],
    ) -> None:
        self.txids = np.asarray(txids)
        self.payloads = payloads
        self.future = future

    @property
    def first_txid(self) -> int:
        """The id of the first row. `check_order` shows that no later one is below it."""
        return int(self.txids[0])

    @property
    def last_txid(self) -> int:
        """The highest id, which is the last row's only where the rows are in order."""
        return int(self.txids.max())

    @property
    def records(self) -> int:
        """One position for each row."""
        return len(self.txids)

    @property
    def size(self) -> int:
        """Bytes of the Arrow array's buffers."""
        return int(self.payloads.nbytes)

    def check(self) -> None:
        """Raise CallerError for rows that cannot be written; nothing is encoded yet."""
        # The checks of columns are the encoder's; they come from the call itself, before any encoding.
        encode_entries(self.txids, self.payloads, first_position=1)

    def check_order(self) -> None:
        """Raise TransactionIdOutOfOrderError where an id is below the one before it."""
        below = np.flatnonzero(self.txids[1:] < self.txids[:-1])
        if len(below):
            at = int(below[0]) + 1
            raise TransactionIdOutOfOrderError(
                f"transaction id {int(self.txids[at])} of record {at} is below {int(self.txids[at - 1])} before it; "
                "nothing of the batch was written",
                advice="Sort the batch by transaction id, or set maxIdSanityCheck=false",
            )

    def issue(self, segment: SegmentWriter) -> None:
        """Hand the columns to `segment`; what it refuses fails the batch's future, and nothing of the batch is
        written."""
        try:
            segment.write_batch(self.txids, self.payloads, self.future)
        except CallerError as error:
            self.fail(error)

    def fail(self, error: DistributedLogError) -> None:
        """Give `error` to the batch's future, unless that has ended."""
        if not self.future.done():
            self.future.set_exception(error)


class HeartbeatWrite(QueuedWrite):
    """The control record `heartbeat`, which no reader delivers."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Appended]) -> None:
        self.future = future

    @property
    def first_txid(self) -> int:
        """-1: it has no id of its own."""
        return -1

    @property
    def last_txid(self) -> int:
        """-1: it has no id of its own."""
        return -1

    @property
    def records(self) -> int:
        """0: a control record takes no position."""
        return 0

    @property
    def size(self) -> int:
        """0: its payload is fixed."""
        return 0

    def check(self) -> None:
        """Pass: legal here; the writer checks whether the log is sealed already."""

    def check_order(self) -> None:
        """Pass: it has no ids."""

    def issue(self, segment: SegmentWriter) -> None:
        """Have `segment` write the record."""
        segment.write_control(HEARTBEAT_PAYLOAD, self.future)

    def fail(self, error: DistributedLogError) -> None:
        """Give `error` to its future, unless that has ended."""
        if not self.future.done():
            self.future.set_exception(error)


class EndOfStreamWrite(QueuedWrite):
    """The record after which nothing may follow."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[DLSN]) -> None:
        self.future = future

    @property
    def first_txid(self) -> int:
        """MAX_TXID, above every user record's."""
        return MAX_TXID

    @property
    def last_txid(self) -> int:
        """MAX_TXID: nothing can follow it."""
        return MAX_TXID

    @property
    def records(self) -> int:
        """0: the end of stream takes no position."""
        return 0

    @property
    def size(self) -> int:
        """0: its payload is fixed."""
        return 0

    def check(self) -> None:
        """Pass: legal here; the writer checks whether the log is sealed already."""

    def check_order(self) -> None:
        """Pass: its id is above all others."""

    def issue(self, segment: SegmentWriter) -> None:
        """Have `segment` write the record."""
        segment.write_end_of_stream(self.future)

    def fail(self, error: DistributedLogError) -> None:
        """Give `error` to its future, unless that has ended."""
        if not self.future.done():
            self.future.set_exception(error)
