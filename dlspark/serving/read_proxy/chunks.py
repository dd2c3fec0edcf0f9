"""`ReadCursor`: where one reader is in a log, and what it gets next. `Chunk`: entries of a ring in the form that its
readers ask for; `Chunks` makes each once and keeps it. No I/O.

A thousand readers at the end of a log want the same entries in the same form: the first of them has the chunk made, the
others are given the same bytes. Kept chunks are bounded in bytes; those that were not used for longest go first.

What a reader is promised, a chunk keeps: control records are left out, record sets are expanded, the end of the stream
is marked, and a chunk ends before a gap between two records (I4) and before an entry that cannot be decoded (I12), with
the error that comes next. Gaps between two chunks are for the cursor to see: it knows what its reader had last. Entries
as they are stored all come, those of control records alone too: their reader can see that none is missing.

A cursor reads from one ring at a time: the one at the log's end, or one that catches up, never from both. It keeps what
a direct reader keeps (`dlspark.core.reading.reader`): the position, the number of the last record, by which a gap shows
(I4), and the error that is final. Between two reads of its reader nothing is kept for it but that.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import decode_entry
from dlspark.core.codec.records import FLAG_RECORD_SET, LogRecord
from dlspark.core.codec.vector_decoding import DecodedBatch, decode_up_to, entry_summary, record_rows, rows
from dlspark.core.reading.reader import VECTOR_BYTES
from dlspark.core.reading.reader_checks import GapCheck
from dlspark.errors import PositionGapError
from dlspark.serving.protocol.deliveries import (
    ROW_BYTES,
    StoredEntry,
    encode_arrow,
    encode_columns,
    encode_records,
    encode_stored,
)
from dlspark.serving.protocol.operations import ReadForm
from dlspark.serving.read_proxy.ring import EntryRing, RingEntry
from metadata.foundation.errors import DistributedLogError
from storage_node.protocol.frames import Buffer

ARROW_ROW_BYTES = 80
"""What a row of `ROW_SCHEMA` takes besides payload and log name: six numbers, two offsets, a bit or two."""
FEW_RECORDS = 1_024
"""Of a short run with record sets, so many are made one by one."""
CHUNK_OVERHEAD_BYTES = 512
"""What a kept chunk counts besides its parts."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of entries in the form that readers ask for, and what comes behind it."""

    parts: tuple[Buffer, ...]
    size: int
    """Bytes of the parts."""
    next: DLSN
    """Where to read on."""
    entries: int
    """How many entries are used up by it: all of the run, unless it was cut off."""
    first_number: int = 0
    """Position in the segment of the first record; 0 where there is none, or that is not known."""
    last_number: int = 0
    end_of_stream: DLSN | None = None
    failure: DistributedLogError | None = None
    """What a reader meets behind the parts."""


def gap_error(log: str, dlsn: DLSN, number: int, last: int) -> PositionGapError:
    """Return the error of a reader that would pass over records."""
    return PositionGapError(
        f"record {number} of segment {dlsn.lssn} follows record {last}: records are missing",
        log=log,
        dlsn=dlsn,
        advice="See dlspark ledger read-entries; positionGapDetectionEnabled=false reads on regardless",
    )


class OpenedEntry:
    """The entry of a proxy's logs that was expanded last, where its records are too much for one part.

    A reader that gets it in sixty parts does not have it expanded sixty times. There is one for all logs, until another
    is opened, so no more than `MAX_EXPANDED_BYTES` of payload are kept, and its rows' columns.
    """

    def __init__(self) -> None:
        self._of: tuple[int, int, int] | None = None
        self._batch: DecodedBatch | None = None

    def columns(self, run: Sequence[RingEntry], max_bytes: int) -> tuple[DecodedBatch, int]:
        """Return the records of a run, or of its first entries where they expand to more than `max_bytes`; how many
        those are.

        Raises InvalidEntryError.
        """
        if self._batch is not None and _identity(run[0]) == self._of:
            return self._batch, 1
        batch, taken = _columns(run, max_bytes)
        if taken == 1 and batch.payload.nbytes + len(batch) * ARROW_ROW_BYTES > max_bytes:
            self._of, self._batch = _identity(run[0]), batch
        return batch, taken


def _identity(entry: RingEntry) -> tuple[int, int, int]:
    return entry.segment.ledger_id, entry.entry_id, entry.start_sequence_id


class ChunkMaker:
    """Makes the chunks of one log.

    Args:
        log: the log's name.
        counters: gaps that were passed over are counted there.
        gap_detection: whether a gap between two records is an error (I4).
        max_bytes: about how long a part may get where record sets expand; one record comes always.
        opened: the one of all logs.
    """

    def __init__(
        self,
        log: str,
        counters: Counter[str],
        *,
        gap_detection: bool,
        max_bytes: int,
        opened: OpenedEntry | None = None,
    ) -> None:
        self.log = log
        self._opened = opened or OpenedEntry()
        self.gap_detection = gap_detection
        self._counters = counters
        self._max_bytes = max_bytes
        self._name_bytes = len(log.encode())

    def make(self, form: ReadForm, run: Sequence[RingEntry], start: DLSN) -> Chunk:
        """Return what `run`, entries of one segment, gives a reader at `start`, which may lie in the first of them."""
        if run[0].broken:
            return Chunk((), 0, run[0].after, 1)
        if form is ReadForm.ENTRIES:
            return self._stored(run, start)
        try:
            return self._decoded(form, run, start)
        except DistributedLogError as error:
            return self._before_error(form, run, start, error)

    def _before_error(self, form: ReadForm, run: Sequence[RingEntry], start: DLSN, error: DistributedLogError) -> Chunk:
        """Return the entries before the one that cannot be decoded, and the error behind them."""
        intact: list[RingEntry] = []
        # One by one this time: the error did not say which entry it was, and the ones before it can be delivered (I12).
        for entry in run:
            try:
                _columns([entry], self._max_bytes)
            except DistributedLogError as found:
                error = found
                break
            intact.append(entry)
        error.log = error.log or self.log
        if not intact:
            return Chunk((), 0, max(run[0].start, start), 0, failure=error)
        chunk = self._decoded(form, intact, start)
        if chunk.failure is not None or chunk.end_of_stream is not None or chunk.entries < len(intact):
            return chunk
        return Chunk(
            chunk.parts, chunk.size, chunk.next, chunk.entries, chunk.first_number, chunk.last_number, failure=error
        )

    # ------------------------------------------------------------------ records and columns

    def _decoded(self, form: ReadForm, run: Sequence[RingEntry], start: DLSN) -> Chunk:
        records = _few_records(run) if sum(entry.content_bytes for entry in run) < VECTOR_BYTES else None
        if records is None:
            return self._of_columns(form, run, start)
        return self._of_records(form, run, start, records)

    def _of_records(self, form: ReadForm, run: Sequence[RingEntry], start: DLSN, records: Sequence[LogRecord]) -> Chunk:
        """Record by record: quicker for the few records of a growing tail."""
        shown: list[LogRecord] = []
        size = 0
        numbers = self._numbers(run)
        end = failure = stop = None
        for record in records:
            if record.is_control or record.dlsn < start:
                continue
            if record.is_end_of_stream:
                end = stop = record.dlsn
                break
            if numbers.missing_before(record.position) and self.gap_detection:
                stop = record.dlsn
                failure = gap_error(self.log, record.dlsn, record.position, numbers.last)
                break
            size += self._row_bytes(form) + len(record.payload)
            if shown and size > self._max_bytes:
                stop = record.dlsn
                break
            numbers.last = record.position
            shown.append(record)
        parts: tuple[Buffer, ...] = ()
        if shown:
            rows_of = form is ReadForm.ARROW
            parts = (encode_arrow(record_rows(self.log, shown)) if rows_of else encode_records(shown),)
        first = shown[0].position if shown else 0
        return _chunk(run, parts, stop, first, numbers.last, end, failure)

    def _of_columns(self, form: ReadForm, run: Sequence[RingEntry], start: DLSN) -> Chunk:
        batch, taken = self._opened.columns(run, self._max_bytes)
        run = run[:taken]
        batch = _from(batch, start)
        end = batch.end_of_stream
        numbers = self._numbers(run)
        failure = None
        stop: DLSN | None = end
        # The gap comes first: records behind it are not delivered, however many would fit (I4).
        gap = numbers.first_gap(batch.position)
        if gap is not None and self.gap_detection:
            stop, end = _dlsn_of(batch, gap), None
            failure = gap_error(self.log, stop, int(batch.position[gap]), int(batch.position[gap - 1]))
            batch = batch.sliced(0, gap)
        fitting = self._fitting(batch, self._row_bytes(form))
        if fitting < len(batch):
            stop, end, failure = _dlsn_of(batch, fitting), None, None
            batch = batch.sliced(0, fitting)
        if not len(batch):
            return _chunk(run, (), stop, 0, 0, end, failure)
        part = encode_arrow(rows(self.log, batch)) if form is ReadForm.ARROW else encode_columns(batch)
        return _chunk(run, (part,), stop, int(batch.position[0]), int(batch.position[-1]), end, failure)

    def _row_bytes(self, form: ReadForm) -> int:
        """Return what a record takes in a part besides its payload, at most."""
        return ARROW_ROW_BYTES + self._name_bytes if form is ReadForm.ARROW else ROW_BYTES

    def _fitting(self, batch: DecodedBatch, row_bytes: int) -> int:
        """Return how many records fit in a part; one always does."""
        if batch.payload.nbytes + len(batch) * row_bytes <= self._max_bytes:
            return len(batch)
        sizes = np.cumsum(pc.binary_length(batch.payload).to_numpy(zero_copy_only=False).astype(np.int64) + row_bytes)
        return max(int(np.searchsorted(sizes, self._max_bytes, "right")), min(len(batch), 1))

    def _numbers(self, run: Sequence[RingEntry]) -> GapCheck:
        numbers = GapCheck(self.log, self._counters)
        numbers.enter(run[0].segment.lssn)
        return numbers

    # ------------------------------------------------------------------ entries as they are stored

    def _stored(self, run: Sequence[RingEntry], start: DLSN) -> Chunk:
        parts: list[Buffer] = []
        numbers = self._numbers(run)
        first = 0
        for index, entry in enumerate(run):
            segment = entry.segment
            try:
                summary = entry_summary(memoryview(entry.payload), segment.enveloped, entry.start)
            except DistributedLogError as error:
                error.log = error.log or self.log
                return Chunk(tuple(parts), _size(parts), entry.start, index, first, numbers.last, failure=error)
            # Before the start there are records that this reader does not get: its first number is not known.
            slot = start.slot_id if start > entry.start else 0
            if summary.user_count:
                if numbers.missing_before(summary.first_position) and self.gap_detection:
                    failure = gap_error(self.log, entry.start, summary.first_position, numbers.last)
                    return _chunk(run, tuple(parts), entry.start, first, numbers.last, None, failure)
                numbers.last = summary.last_position
                first = first or (0 if slot else summary.first_position)
            # The ledger that it was written into: a client that planned before a restore knows no later one.
            head = (segment.lssn, entry.entry_id, segment.first_ledger, entry.start_sequence_id, segment.version)
            parts.append(encode_stored(StoredEntry(*head, entry.payload, slot)))
            if summary.end_of_stream:
                end = next(record.dlsn for record in _records([entry], expand=False) if record.is_end_of_stream)
                return _chunk(run, tuple(parts), end, first, numbers.last, end, None)
        return _chunk(run, tuple(parts), None, first, numbers.last, None, None)


def _few_records(run: Sequence[RingEntry]) -> list[LogRecord] | None:
    """Return the records of a short run; None where its record sets hold more than FEW_RECORDS: a few hundred bytes can
    be a hundred thousand of them, which are not to be made before it is known that they fit."""
    found = _records(run, expand=False)
    if not any(record.flags & FLAG_RECORD_SET for record in found):
        return found
    return _records(run, expand=True) if sum(record.slots for record in found) <= FEW_RECORDS else None


def _records(run: Sequence[RingEntry], *, expand: bool) -> list[LogRecord]:
    return [
        record
        for entry in run
        for record in decode_entry(
            memoryview(entry.payload),
            lssn=entry.segment.lssn,
            entry_id=entry.entry_id,
            start_sequence_id=entry.start_sequence_id,
            enveloped=entry.segment.enveloped,
            expand_record_sets=expand,
        )
    ]


def _columns(run: Sequence[RingEntry], max_bytes: int) -> tuple[DecodedBatch, int]:
    """Return the records of a run, or of its first entries where they expand to more than `max_bytes`; how many those
    are."""
    return decode_up_to(
        [(entry.entry_id, memoryview(entry.payload)) for entry in run],
        lssn=run[0].segment.lssn,
        start_sequence_id=run[0].start_sequence_id,
        enveloped=run[0].segment.enveloped,
        max_bytes=max_bytes,
    )


def _from(batch: DecodedBatch, start: DLSN) -> DecodedBatch:
    """Return `batch` without the records below `start`, all of which lie in its first entries."""
    if not len(batch) or batch.lssn != start.lssn or _dlsn_of(batch, 0) >= start:
        return batch
    below = (batch.entry_id < start.entry_id) | ((batch.entry_id == start.entry_id) & (batch.slot_id < start.slot_id))
    return batch.sliced(int(below.sum()), len(batch))


def _dlsn_of(batch: DecodedBatch, index: int) -> DLSN:
    return DLSN(batch.lssn, int(batch.entry_id[index]), int(batch.slot_id[index]))


def _size(parts: Sequence[Buffer]) -> int:
    return sum(memoryview(part).nbytes for part in parts)


def _chunk(
    run: Sequence[RingEntry],
    parts: tuple[Buffer, ...],
    stop: DLSN | None,
    first: int,
    last: int,
    end: DLSN | None,
    failure: DistributedLogError | None,
) -> Chunk:
    """Return a chunk of all of `run`, or of what lies before `stop`."""
    used = len(run) if stop is None else sum(1 for entry in run if entry.after <= stop)
    following = run[-1].after if stop is None else stop
    return Chunk(parts, _size(parts), following, used, first, last, end, failure)


# ------------------------------------------------------------------ chunks that were made


class Chunks:
    """The chunks that were made lately, for all readers of a proxy, up to `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.opened = OpenedEntry()
        """For the makers of all logs."""
        self.kept_bytes = 0
        self.made = 0
        """Chunks that were decoded."""
        self.shared = 0
        """Chunks that had been decoded for another reader."""
        self._kept: OrderedDict[tuple[int, ReadForm, int, int], Chunk] = OrderedDict()

    def get(self, ring: EntryRing, maker: ChunkMaker, form: ReadForm, run: Sequence[RingEntry], ordinal: int) -> Chunk:
        """Return the chunk of the whole entries of `run`, whose first one has this ordinal in `ring`."""
        # By the run's end as well: a reader that has room for less gets a shorter run, and another chunk.
        key = (ring.number, form, ordinal, ordinal + len(run))
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            self.shared += 1
            return kept
        chunk = maker.make(form, run, run[0].start)
        self.made += 1
        self._kept[key] = chunk
        self.kept_bytes += chunk.size + CHUNK_OVERHEAD_BYTES
        while self.kept_bytes > self.max_bytes and self._kept:
            _, dropped = self._kept.popitem(last=False)
            self.kept_bytes -= dropped.size + CHUNK_OVERHEAD_BYTES
        return chunk


# ---------------------------------------------------------------------- what one reader gets next


@dataclass(frozen=True, slots=True)
class Collected:
    """The parts that a cursor has found for its reader."""

    parts: tuple[Buffer, ...]
    size: int
    """Bytes of the parts."""


NOTHING = Collected((), 0)


class ReadCursor:
    """One reader's position, and what comes next for it. It has to be attached to a ring before it reads."""

    def __init__(
        self, start: DLSN, maker: ChunkMaker, chunks: Chunks, counters: Counter[str], *, chunk_bytes: int
    ) -> None:
        self.position = start
        """Where it reads on: everything before was delivered."""
        self.ring: EntryRing | None = None
        self.ordinal = 0
        """The ring's entry in which `position` lies, or the first one behind it."""
        self.end_of_stream = False
        """Whether the reader has everything that will ever be in the log."""
        self.failure: DistributedLogError | None = None
        """The error behind what was delivered; it is final."""
        self._maker = maker
        self._chunks = chunks
        self._chunk_bytes = chunk_bytes
        self._numbers = GapCheck(maker.log, counters)

    # ------------------------------------------------------------------ its ring

    def attach(self, ring: EntryRing) -> None:
        """Read from `ring`, which covers the position."""
        self.ring = ring
        self.ordinal = ring.find(self.position)

    def detach(self) -> None:
        """Read from no ring, until it is attached again."""
        self.ring = None

    @property
    def fallen_out(self) -> bool:
        """Whether the ring has given up what comes next."""
        return self.ring is not None and self.ordinal < self.ring.first

    @property
    def at_end(self) -> bool:
        """Whether it has had all that the ring has."""
        return self.ring is not None and self.ordinal >= self.ring.after

    def pass_end(self) -> None:
        """Go past the end of a segment behind which the ring reads on (at the ring's end)."""
        if self.ring is not None and self.at_end:
            self.position = max(self.position, self.ring.end)

    # ------------------------------------------------------------------ what comes next

    def collect(self, form: ReadForm, max_bytes: int) -> Collected:
        """Return what comes next, up to about `max_bytes`; nothing at the end, where it failed, and where it fell out.

        The position moves past what is returned, and past what readers do not see.
        """
        ring = self.ring
        parts: list[Buffer] = []
        size = 0
        while ring is not None and self.failure is None and not self.end_of_stream and size < max_bytes:
            if self.fallen_out:
                break
            if self.at_end:
                self.pass_end()
                break
            if ring[self.ordinal].after <= self.position:
                self.ordinal += 1  # It began in the future, or in the middle.
                continue
            chunk = self._next_chunk(ring, form, max_bytes - size)
            if parts and size + chunk.size > max_bytes:
                break  # It has become longer than its entries are: it is the next delivery's.
            if self._gap_before(chunk):
                break
            self._take(chunk)
            parts += chunk.parts
            size += chunk.size
        return Collected(tuple(parts), size) if parts else NOTHING

    def _next_chunk(self, ring: EntryRing, form: ReadForm, max_bytes: int) -> Chunk:
        run = list(ring.run(self.ordinal, self._chunk_bytes, max_bytes))
        if run[0].broken:
            self._numbers.pass_over(run[0].start)
        if self.position > run[0].start:
            # Only this reader begins here: what it gets of the first entry is not kept for others.
            return self._maker.make(form, run[:1], self.position)
        return self._chunks.get(ring, self._maker, form, run, self.ordinal)

    def _gap_before(self, chunk: Chunk) -> bool:
        """Return whether records are missing between the last chunk and this one; the cursor has failed then."""
        self._numbers.enter(chunk.next.lssn)
        if not chunk.first_number:
            return False
        last = self._numbers.last
        if self._numbers.missing_before(chunk.first_number) and self._maker.gap_detection:
            self.failure = gap_error(self._maker.log, self.position, chunk.first_number, last)
            return True
        return False

    def _take(self, chunk: Chunk) -> None:
        self.position = chunk.next
        self.ordinal += chunk.entries  # not the one in the middle of which the chunk was cut off
        if chunk.last_number:
            self._numbers.last = chunk.last_number
        self.end_of_stream = chunk.end_of_stream is not None
        self.failure = chunk.failure
