"""Entries into columns: the fast way from what storage nodes return to Arrow, without Python work for each record.

`record_chain` finds where the records are. Their headers are moved as opaque items and taken apart once a batch; their
payloads go straight to one buffer. Small entries are joined into runs of `RUN_BYTES` that fit in a core's cache, so
that a call on arrays is paid for by many records. Runs in which something ends the stream or is a record set take the
plain decoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dlspark.core.codec.arrow_arrays import binary_array, bool_array, int64_array, new_column, repeated_text
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import (
    RECORD_COST_BYTES,
    declared_bytes,
    decode_content,
    entry_content,
    record_set_count,
)
from dlspark.core.codec.record_chain import (
    OPAQUE_HEADER,
    RECORD_HEADER,
    Chain,
    IntArray,
    Run,
    counts_by_entry,
    damaged_run_error,
    find_chain,
)
from dlspark.core.codec.records import (
    FLAG_CONTROL,
    FLAG_END_OF_STREAM,
    FLAG_RECORD_SET,
    FLAGS_MASK,
    HEADER,
    HEADER_BYTES,
    KNOWN_FLAGS,
    MAX_POSITION,
    POSITION_MASK,
    POSITION_SHIFT,
    RECORD_FIELDS,
    LogRecord,
    start_of_sequence,
)
from metadata.foundation import compiled
from metadata.foundation.compiled import CompiledCore
from metadata.foundation.errors import CallerError, check
from storage_node.protocol.frames import Buffer

RUN_BYTES = 256 * 1024
"""Small entries are decoded together up to this many bytes."""

EXPANDED_BYTES = 16 << 20
"""For readers: a batch ends with the entry that makes it larger than this, whatever its entries take as stored."""

MAX_BATCH_BYTES = 2**31 - 1
"""Most record bytes of one batch: Arrow's binary arrays have 32-bit offsets."""

_USER_FLAGS_HIDE = FLAG_CONTROL | FLAG_END_OF_STREAM
_BINARY = pa.binary()


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """User records of one segment as columns of equal length, in log order."""

    lssn: int
    entry_id: IntArray
    slot_id: IntArray
    txid: IntArray
    position: IntArray
    sequence_id: IntArray
    flags: IntArray
    payload: pa.BinaryArray
    end_of_stream: DLSN | None
    """Where the end-of-stream record was, if it was among the entries."""

    def __len__(self) -> int:
        return len(self.txid)

    @classmethod
    def none(cls, lssn: int) -> DecodedBatch:
        """Return no records."""
        numbers = np.empty(0, np.int64)
        return cls(lssn, numbers, numbers, numbers, numbers, numbers, numbers, binary_array([]), None)

    def sliced(self, first: int, after: int) -> DecodedBatch:
        """Return the rows from `first` to before `after`, which may be beyond the end; they share their memory."""
        return DecodedBatch(
            lssn=self.lssn,
            entry_id=self.entry_id[first:after],
            slot_id=self.slot_id[first:after],
            txid=self.txid[first:after],
            position=self.position[first:after],
            sequence_id=self.sequence_id[first:after],
            flags=self.flags[first:after],
            payload=self.payload.slice(first, after - first),
            end_of_stream=self.end_of_stream,
        )

    def dlsn(self, index: int) -> DLSN:
        """Return where a row is."""
        return DLSN(self.lssn, int(self.entry_id[index]), int(self.slot_id[index]))

    def starting_at(self, start: DLSN) -> DecodedBatch:
        """Return the rows that do not lie below `start`."""
        if not len(self) or self.dlsn(0) >= start:
            return self
        if self.lssn < start.lssn:
            return self.sliced(len(self), len(self))
        below = (self.entry_id < start.entry_id) | ((self.entry_id == start.entry_id) & (self.slot_id < start.slot_id))
        return self.sliced(int(below.sum()), len(self))

    def records(self, first: int = 0, after: int | None = None) -> list[LogRecord]:
        """Return the rows from `first` to before `after` as records, each of one slot; None: all behind `first`."""
        entry_id, slot_id, position, flags, txid = columns = [
            column[first:after] for column in (self.entry_id, self.slot_id, self.position, self.flags, self.txid)
        ]
        count = len(txid)
        if not count:
            return []
        start = start_of_sequence(int(self.sequence_id[0]), int(self.position[0]))
        if (core := compiled.core) is not None and self.payload.type == _BINARY and not self.payload.null_count:
            _, offsets, data = self.payload.buffers()
            ends = np.frombuffer(offsets, np.int32, count + 1, 4 * (self.payload.offset + first))
            made = core.make_records(LogRecord, RECORD_FIELDS, (self.lssn, start), columns, ends, data or b"")
            if made is not None:
                return made
        before = position - slot_id
        changed = (entry_id[1:] != entry_id[:-1]) | (flags[1:] != flags[:-1]) | (before[1:] != before[:-1])
        begins = np.concatenate(([0], np.flatnonzero(changed) + 1))
        runs = zip(*(column[begins].tolist() for column in (entry_id, flags, before)), strict=True)
        shared = [
            repeat((self.lssn, entry, start, flag, 1, less), length)
            for (entry, flag, less), length in zip(runs, np.diff(begins, append=count).tolist(), strict=True)
        ]
        payloads = self.payload.slice(first, count).to_pylist()
        return LogRecord.of_columns(chain.from_iterable(shared), payloads, position.tolist(), txid.tolist())


@dataclass(frozen=True, slots=True)
class EntrySummary:
    """An entry as searches need it."""

    record_count: int
    """Slots: logical records, control records and members of record sets included."""
    user_count: int
    """How many of the slots are user records."""
    first_txid: int | None
    """Transaction ids of the first and last user record, None where the entry has none."""
    last_txid: int | None
    first_position: int
    """Positions of the first and last user record; without one, what the entry's records carry (0 without records)."""
    last_position: int
    end_of_stream: bool


def decode_entries(
    entries: Sequence[tuple[int, memoryview]],
    *,
    lssn: int,
    start_sequence_id: int,
    enveloped: bool = True,
    include_control: bool = False,
) -> DecodedBatch:
    """Return the user records of `entries`, (entry id, ledger entry payload) pairs of one segment in ascending order.

    Args:
        start_sequence_id: of the segment.
        enveloped: whether the segment's metadata version is 4 or above.
        include_control: return control records too; `flags` shows which they are. The end of stream is never a row.

    The result shares no memory with `entries`. Raises InvalidEntryError carrying the DLSN, and nothing is returned
    then (I12); CallerError for more than 2 GiB at once. Batches of 1 to 8 MB are fastest.

    What was compressed expands: see `decode_up_to` for entries whose content is not one's own.
    """
    batch, _ = decode_up_to(
        entries,
        lssn=lssn,
        start_sequence_id=start_sequence_id,
        enveloped=enveloped,
        include_control=include_control,
        max_bytes=None,
    )
    return batch


def decode_up_to(
    entries: Sequence[tuple[int, memoryview]],
    *,
    lssn: int,
    start_sequence_id: int,
    enveloped: bool = True,
    include_control: bool = False,
    max_bytes: int | None,
) -> tuple[DecodedBatch, int]:
    """Decode the first of `entries`, as `decode_entries` does, and count them: at least one, and so many that the batch
    is about `max_bytes` (None: all).

    Whatever they expand to, no more is expanded than `max_bytes` and one entry, which may hold `MAX_EXPANDED_BYTES`.
    What comes out of record sets counts RECORD_COST_BYTES besides its payload, which may be empty.
    """
    count = len(entries) if max_bytes is None else _declared_within(entries, enveloped, max_bytes)
    contents = [(e, entry_content(payload, enveloped, DLSN(lssn, e, 0))) for e, payload in entries[:count]]
    if (core := compiled.core) is not None:
        batch = _at_once(core, contents, lssn, start_sequence_id, include_control)
        if batch is not None:
            return batch, count
    collector = _ColumnCollector(lssn, start_sequence_id, include_control, sum(len(content) for _, content in contents))
    for run in _runs(contents, include_control):
        left = collector.add(run, max_bytes)
        if left is not None:
            count = next(number for number, (entry_id, _) in enumerate(contents) if entry_id == left)
            break
    return collector.finish(), count


def _at_once(
    core: CompiledCore,
    contents: list[tuple[int, memoryview]],
    lssn: int,
    start_sequence_id: int,
    include_control: bool,
) -> DecodedBatch | None:
    """Return the records by the compiled core; None where it leaves them to the twin below: damage, which is worded
    there, the end of the stream, record sets, and more than a batch may have.

    Nothing expands here, so what was declared of the entries is the most that they hold.
    """
    hidden = 0 if include_control else FLAG_CONTROL
    pieces = [content for _, content in contents]
    measured = core.measure_records(pieces, hidden)
    if measured is None or sum(map(len, pieces)) > MAX_BATCH_BYTES:
        return None
    count, size = measured
    entry_id, slot_id, txid, position, sequence_id, flags = numbers = [new_column(count, np.int64) for _ in range(6)]
    offsets, data = pa.allocate_buffer(4 * (count + 1)), pa.allocate_buffer(size)
    entry_ids = [entry for entry, _ in contents]
    whole = core.record_columns(pieces, entry_ids, hidden, start_sequence_id, numbers, offsets, data)
    check(whole, "the compiled core decoded other records than it had counted")
    return DecodedBatch(
        lssn=lssn,
        entry_id=entry_id,
        slot_id=slot_id,
        txid=txid,
        position=position,
        sequence_id=sequence_id,
        flags=flags,
        payload=pa.BinaryArray.from_buffers(pa.binary(), count, [None, offsets, data], 0),
        end_of_stream=None,
    )


def _declared_within(entries: Sequence[tuple[int, memoryview]], enveloped: bool, max_bytes: int) -> int:
    """Return how many of the first entries are at most so many bytes, out of their envelopes; one always counts."""
    size = 0
    for number, (_, payload) in enumerate(entries):
        size += declared_bytes(payload, enveloped)
        if number and size > max_bytes:
            return number
    return len(entries)


def entry_summary(payload: memoryview, enveloped: bool = True, dlsn: DLSN | None = None) -> EntrySummary:
    """Count an entry's records and give its first and last ids and positions, without copying payloads.

    Raises InvalidEntryError carrying `dlsn`.
    """
    dlsn = dlsn or DLSN.INVALID
    content = entry_content(payload, enveloped, dlsn)
    if not len(content):
        return EntrySummary(0, 0, None, None, 0, 0, False)
    run = Run([dlsn.entry_id], [content])
    chain = find_chain(run)
    if chain is None:
        raise damaged_run_error(run, dlsn.lssn)
    words = chain.headers["word"].astype(np.int64)
    txids, lengths = chain.headers["txid"], chain.headers["length"]
    flags = words & FLAGS_MASK
    counts = np.ones(len(flags), np.int64)
    for i in np.flatnonzero(flags & FLAG_RECORD_SET).tolist():
        start = chain.start_of(i) + HEADER_BYTES
        counts[i] = record_set_count(content[start : start + int(lengths[i])], dlsn)
    positions = words >> POSITION_SHIFT & POSITION_MASK
    last = positions + counts - 1
    if last.max() > MAX_POSITION:
        # As the plain decoder refuses it: a set must not number past the last one.
        raise damaged_run_error(run, dlsn.lssn)
    user = np.flatnonzero((flags & _USER_FLAGS_HIDE) == 0)
    seen = user if len(user) else np.arange(len(flags))
    return EntrySummary(
        record_count=int(counts.sum()),
        user_count=int(counts[user].sum()),
        first_txid=int(txids[user[0]]) if len(user) else None,
        last_txid=int(txids[user[-1]]) if len(user) else None,
        first_position=int(positions[seen[0]]),
        last_position=int(last[seen[-1]]),
        end_of_stream=bool((flags & FLAG_END_OF_STREAM).any()),
    )


def _runs(contents: list[tuple[int, memoryview]], include_control: bool) -> Iterator[Run]:
    entry_ids: list[int] = []
    pieces: list[memoryview] = []
    size = 0
    for entry_id, content in contents:
        if not len(content) or (not include_control and _is_one_control_record(content)):
            continue
        if pieces and size + len(content) > RUN_BYTES:
            yield Run(entry_ids, pieces)
            entry_ids, pieces, size = [], [], 0
        entry_ids.append(entry_id)
        pieces.append(content)
        size += len(content)
    if pieces:
        yield Run(entry_ids, pieces)


def _is_one_control_record(content: memoryview) -> bool:
    """Return whether an entry holds one well-formed control record: the usual case, recognised without decoding."""
    if len(content) < HEADER_BYTES:
        return False
    word, _, length = HEADER.unpack_from(content)
    in_range = (word >> POSITION_SHIFT & POSITION_MASK) <= MAX_POSITION
    return bool(in_range and word & KNOWN_FLAGS == FLAG_CONTROL and HEADER_BYTES + length == len(content))


class _ColumnCollector:
    """Collects the columns of decoded runs; payloads go straight to their place in one buffer."""

    def __init__(self, lssn: int, start_sequence_id: int, include_control: bool, capacity: int) -> None:
        if capacity > MAX_BATCH_BYTES:
            raise CallerError(
                f"{capacity} bytes of records are more than one batch of {MAX_BATCH_BYTES}",
                advice="Decode fewer entries at a time",
            )
        self._lssn = lssn
        self._start_sequence_id = start_sequence_id
        self._hidden = FLAG_END_OF_STREAM if include_control else FLAG_END_OF_STREAM | FLAG_CONTROL
        self._buffer = pa.allocate_buffer(capacity, resizable=True)
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(self._buffer, np.uint8)
        self.used = 0
        """Payload bytes so far."""
        self._opened = 0
        """Records of entries that were decoded one by one: those of record sets are among them."""
        self._end_of_stream: DLSN | None = None
        self._headers: list[npt.NDArray[np.void]] = []
        self._entry_ids: list[int] = []
        self._counts: list[int] = []
        self._slots: list[tuple[int, IntArray]] = []

    def add(self, run: Run, max_bytes: int | None = None) -> int | None:
        """Decode one run, or as much of it as is needed for more than `max_bytes`; returns its first entry that is left
        out, None where all are in. Raises InvalidEntryError."""
        if self._is_full(max_bytes):
            return run.entry_ids[0]
        chain = find_chain(run)
        if chain is None:
            raise damaged_run_error(run, self._lssn)  # Nothing of the batch is returned then (I12).
        # Most runs are ordinary user records only; flags this version does not know are ignored.
        if chain.any_word & (FLAG_RECORD_SET | FLAG_END_OF_STREAM):
            return self._add_plain(run, max_bytes)
        if chain.any_word & self._hidden:
            self._add_shown(run, chain)
            return None
        self._headers.append(chain.headers)
        self._entry_ids += run.entry_ids
        self._counts += counts_by_entry(run, chain)
        if chain.starts is None:
            self._take_strided(run.data, len(chain.headers), chain.stride)
        else:
            self._take(_payloads(run.data, chain.starts))
        return None

    def _is_full(self, max_bytes: int | None) -> bool:
        return max_bytes is not None and self.used + self._opened * RECORD_COST_BYTES > max_bytes

    def finish(self) -> DecodedBatch:
        """Return everything added, as one batch."""
        count = sum(map(len, self._headers))
        headers = np.frombuffer(pa.allocate_buffer(count * HEADER_BYTES), OPAQUE_HEADER)
        if count:
            np.concatenate([part.view(OPAQUE_HEADER) for part in self._headers], out=headers)
        headers = headers.view(RECORD_HEADER)
        words, txid, position, flags, sequence_id = (new_column(count, np.int64) for _ in range(5))
        words[:], txid[:] = headers["word"], headers["txid"]
        np.bitwise_and(words, FLAGS_MASK, out=flags)
        np.right_shift(words, POSITION_SHIFT, out=position)
        np.bitwise_and(position, POSITION_MASK, out=position)
        # Wraps in 64 bits where the segment's start is unassigned, as upstream's arithmetic does.
        np.add(position, np.array(self._start_sequence_id, np.int64).reshape(1) - 1, out=sequence_id)
        offsets = new_column(count + 1, np.int32)
        offsets[0] = 0
        offsets[1:] = headers["length"]
        np.cumsum(offsets, out=offsets)
        counts = np.array(self._counts, np.int64)
        some = counts > 0
        begins = np.cumsum(counts[some]) - counts[some]
        # Both as sums of steps, in place: numpy's own memory is given back and faulted in again with each batch.
        entry_id, slot_id = new_column(count, np.int64), new_column(count, np.int64)
        entry_id[:], slot_id[:] = 0, 1
        entry_id[begins] = np.diff(np.array(self._entry_ids, np.int64)[some], prepend=0)
        slot_id[begins] = 1 - np.diff(begins, prepend=-1)
        np.cumsum(entry_id, out=entry_id)
        np.cumsum(slot_id, out=slot_id)
        for first, slots in self._slots:
            slot_id[first : first + len(slots)] = slots
        self._bytes = np.empty(0, np.uint8)
        data = self._buffer.slice(0, self.used)
        return DecodedBatch(
            lssn=self._lssn,
            entry_id=entry_id,
            slot_id=slot_id,
            txid=txid,
            position=position,
            sequence_id=sequence_id,
            flags=flags,
            payload=pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), data], 0),
            end_of_stream=self._end_of_stream,
        )

    def _add_plain(self, run: Run, max_bytes: int | None) -> int | None:
        """Record by record: runs in which something ends the stream or is to be expanded."""
        for entry_id, content in zip(run.entry_ids, run.contents, strict=True):
            if self._is_full(max_bytes):
                return entry_id
            records = decode_content(content, self._lssn, entry_id, self._start_sequence_id)
            self._opened += len(records)
            for record in records:
                if record.is_end_of_stream:
                    self._end_of_stream = self._end_of_stream or record.dlsn
            shown = [record for record in records if not record.flags & self._hidden]
            fields = [(r.position << POSITION_SHIFT | r.flags, r.txid, len(r.payload)) for r in shown]
            slots = np.array([record.dlsn.slot_id for record in shown], np.int64)
            self._slots.append((sum(map(len, self._headers)), slots))
            self._headers.append(np.array(fields, RECORD_HEADER))
            self._entry_ids.append(entry_id)
            self._counts.append(len(shown))
            self._take(binary_array([record.payload for record in shown]))
        return None

    def _add_shown(self, run: Run, chain: Chain) -> None:
        """Add a run with control records among others, as before a producer's: they take slots, and are left out."""
        count = len(chain.headers)
        shown = (chain.headers["word"] & self._hidden) == 0
        counts = np.array(counts_by_entry(run, chain), np.int64)
        entries = np.repeat(np.arange(len(counts)), counts)
        slots = np.arange(count) - (np.cumsum(counts) - counts)[entries]
        self._slots.append((sum(map(len, self._headers)), slots[shown]))
        self._headers.append(chain.headers[shown])
        self._entry_ids += run.entry_ids
        self._counts += np.bincount(entries[shown], minlength=len(counts)).tolist()
        starts = chain.starts if chain.starts is not None else np.arange(count, dtype=np.int64) * chain.stride
        self._take(_payloads(run.data, starts).filter(bool_array(shown)))

    def _take(self, payloads: pa.BinaryArray) -> None:
        """Copy an array's payloads behind those taken so far."""
        first, last = _span(payloads)
        self._room_for(last - first)[:] = np.frombuffer(payloads.buffers()[2] or b"", np.uint8)[first:last]

    def _take_strided(self, data: Buffer, count: int, stride: int) -> None:
        """Copy the payloads of `count` records of equal length, without gathering them."""
        length = stride - HEADER_BYTES
        if length:
            # As opaque items, whole payloads are moved at once; as rows of bytes it takes twice as long.
            payload = np.dtype((np.void, length))
            self._room_for(count * length).view(payload)[:] = np.ndarray(
                (count,), payload, data, HEADER_BYTES, (stride,)
            )

    def _room_for(self, size: int) -> npt.NDArray[np.uint8]:
        """Return the next `size` bytes of the buffer; record sets may expand beyond what was reserved."""
        end = self.used + size
        if end > len(self._bytes):
            if end > MAX_BATCH_BYTES:
                raise CallerError(
                    f"record sets expand to more than one batch of {MAX_BATCH_BYTES} bytes",
                    advice="Decode fewer entries at a time",
                )
            self._bytes = np.empty(0, np.uint8)  # Arrow may move the buffer: no view of it may be left.
            self._buffer.resize(min(max(end, 2 * self._buffer.size), MAX_BATCH_BYTES))
            self._bytes = np.frombuffer(self._buffer, np.uint8)
        room = self._bytes[self.used : end]
        self.used = end
        return room


def _payloads(data: Buffer, starts: IntArray) -> pa.BinaryArray:
    """Return the payloads gathered: records as one Arrow array over `data`, whose headers are then sliced off in
    C++."""
    count = len(starts)
    offsets = np.empty(count + 1, np.int32)
    offsets[:-1] = starts
    offsets[-1] = len(data)
    records = pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)], 0)
    import pyarrow.compute as pc  # takes 40 ms to load, and the compiled core needs none of it

    # The stop is explicit because pyarrow 26 fails without one ("Negative buffer resize").
    return pc.binary_slice(records, HEADER_BYTES, MAX_BATCH_BYTES)


def _span(payloads: pa.BinaryArray) -> tuple[int, int]:
    """Return the first and last byte of the payloads in the array's data buffer."""
    if not len(payloads):
        return 0, 0
    offsets = np.frombuffer(payloads.buffers()[1], np.int32)
    return int(offsets[payloads.offset]), int(offsets[payloads.offset + len(payloads)])


# ------------------------------------------------------------------ rows
ROW_SCHEMA: Final = pa.schema(
    [
        pa.field("log", pa.string(), nullable=False),
        pa.field("segment", pa.int64(), nullable=False),
        pa.field("entry", pa.int64(), nullable=False),
        pa.field("slot", pa.int64(), nullable=False),
        pa.field("sequence_id", pa.int64(), nullable=False),
        pa.field("transaction_id", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("value", pa.binary(), nullable=False),
    ]
)
"""The columns in which records leave the core: for the reader's batches and for Spark's rows.

`timestamp` is the transaction id read as milliseconds since the epoch; null where the type cannot hold that time.
"""

MAX_TIMESTAMP_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def rows(log: str, batch: DecodedBatch) -> pa.RecordBatch:
    """Return `batch` with the columns of ROW_SCHEMA."""
    count = len(batch)
    segment = new_column(count, np.int64)
    segment[:] = batch.lssn
    return pa.RecordBatch.from_arrays(
        [
            repeated_text(log, count),
            int64_array(segment),
            int64_array(batch.entry_id),
            int64_array(batch.slot_id),
            int64_array(batch.sequence_id),
            int64_array(batch.txid),
            timestamps(batch.txid),
            batch.payload,
        ],
        schema=ROW_SCHEMA,
    )


def record_rows(log: str, records: Sequence[LogRecord]) -> pa.RecordBatch:
    """Return single records with the columns of ROW_SCHEMA."""
    txids = np.array([record.txid for record in records], np.int64)
    columns = [
        repeated_text(log, len(records)),
        *(int64_array([record.dlsn[i] for record in records]) for i in range(3)),
        int64_array([record.sequence_id for record in records]),
        int64_array(txids),
        timestamps(txids),
        binary_array([record.payload for record in records]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


def timestamps(txids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    """Return transaction ids as times, read as milliseconds since the epoch; null for what the type cannot hold."""
    beyond = (txids > MAX_TIMESTAMP_MS) | (txids < 0)
    micros = new_column(len(txids), np.int64)
    np.multiply(txids, 1000, out=micros)
    some = bool(beyond.any())
    if some:
        micros[beyond] = 0
    return int64_array(micros, pa.timestamp("us", tz="UTC"), ~beyond if some else None)
