"""Records of a cold file as the entries that they were in: the same numbers, slots, positions and ids.

Readers take them as columns (`columns_of_entries`): nothing is made or copied. Who wants entries, as read proxies and
restores do, gets them made anew (`rebuild_entries`). Both come in the same runs, checked by the same table.

An entry comes back uncompressed, in the envelope that its segment's version has, with its user records in their slots.
What was a record set is the set's members, as readers see it (sets again, where the entry would be too large); a slot
without a user record has an empty control record, and the record that sealed the log is made as writers make it.
Nothing is done for a record alone: headers are arrays, and `vector_encoding` lays them out between the payloads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import Compression, encode_record_set, wrap
from dlspark.core.codec.entry_columns import EntryColumns
from dlspark.core.codec.record_chain import RECORD_HEADER, IntArray
from dlspark.core.codec.records import (
    END_OF_STREAM_PAYLOAD,
    FLAG_CONTROL,
    FLAG_END_OF_STREAM,
    FLAG_RECORD_SET,
    MAX_TXID,
    POSITION_SHIFT,
    encode_record,
)
from dlspark.core.codec.vector_decoding import DecodedBatch
from dlspark.core.codec.vector_encoding import lay_out
from dlspark.core.cold.files.digests import RecordColumns, offsets_of
from dlspark.core.cold.files.footer import FileSegment, Footer
from dlspark.core.cold.files.large_entries import fitting
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import check

_CHUNK_BYTES: Final = 1 << 20
"""Entries are made together up to this many bytes of payloads."""


def rebuild_entries(
    footer: Footer, lssn: int, batches: Iterable[RecordColumns], first_entry: int, last_entry: int
) -> Iterator[tuple[int, memoryview]]:
    """Yield the entries of a segment from `first_entry` to `last_entry`, as (number, payload).

    Args:
        footer: of the file.
        lssn: the segment.
        batches: records of the row groups `footer.groups_of(lssn, first_entry, last_entry)`, in order; each is asked
            for when its first entry is needed.
    """
    segment = footer.segment(lssn)
    for records, first, last in _runs(segment, batches, first_entry, last_entry, _CHUNK_BYTES):
        yield from _made(segment, records, first, last)


def columns_of_entries(
    footer: Footer,
    lssn: int,
    start_sequence_id: int,
    max_bytes: int,
    batches: Iterable[RecordColumns],
    first_entry: int,
    last_entry: int,
) -> Iterator[EntryColumns]:
    """Yield the same entries as columns of their records, which share their memory with `batches`.

    Args:
        footer, lssn: as `rebuild_entries`.
        start_sequence_id: of the segment, as its log counts.
        max_bytes: about how many bytes of payloads come together; an entry is never cut.
        batches, first_entry, last_entry: as `rebuild_entries`.
    """
    segment = footer.segment(lssn)
    for records, first, last in _runs(segment, batches, first_entry, last_entry, max_bytes):
        yield EntryColumns(first, last, _decoded(segment, records, first, last, start_sequence_id))


def _runs(
    segment: FileSegment, batches: Iterable[RecordColumns], first_entry: int, last_entry: int, max_bytes: int
) -> Iterator[tuple[RecordColumns | None, int, int]]:
    """Yield all entries from `first_entry` to `last_entry` in runs: the records of each, None for none, and its first
    and last entry."""
    check(first_entry >= 0 and last_entry < len(segment.entries), "entries were asked for that a segment does not have")
    entry = first_entry
    for batch in batches:
        if entry > last_entry:
            return
        records = _of_segment(batch, segment.lssn, entry, last_entry)
        if not len(records):
            continue
        # Entries that have no records come in between, and row groups are cut between entries.
        for first, after in _chunks(records, max_bytes):
            part = records.sliced(first, after)
            last = int(part.entry[-1])
            _check_places(segment, part, entry, last)
            yield part, entry, last
            entry = last + 1
    if entry <= last_entry:
        missing = segment.entries.records_before(last_entry + 1) - segment.entries.records_before(entry)
        check(missing == 0, f"{missing} records of a segment were not given", entry_id=entry)
        yield None, entry, last_entry


def _check_places(segment: FileSegment, records: RecordColumns, first_entry: int, last_entry: int) -> None:
    """Raise InvariantViolation unless the records are as many in each entry as its table says, each in a slot of its
    own, in order."""
    entry = records.entry - first_entry
    slots = segment.entries.slots[first_entry : last_entry + 1]
    counts = segment.entries.records[first_entry : last_entry + 1]
    check(
        np.array_equal(np.bincount(entry, minlength=len(counts)), counts),
        "a file's records are not those of its entry table",
        entry_id=first_entry,
    )
    slot = records.slot
    in_order = (entry[1:] > entry[:-1]) | (slot[1:] > slot[:-1])
    check(
        bool(in_order.all()) and bool((slot >= 0).all()) and bool((slot < slots[entry]).all()),
        "records of a file share a slot",
        entry_id=first_entry,
    )


def _positions(segment: FileSegment, records: RecordColumns) -> IntArray:
    """Return the numbers that the segment's writer gave the records."""
    # Wraps in 64 bits where the segment's start is unassigned, as what made the sequence ids did.
    return records.sequence_id - np.array(segment.start_sequence_id, np.int64).reshape(1) + 1


def _decoded(
    segment: FileSegment, records: RecordColumns | None, first_entry: int, last_entry: int, start_sequence_id: int
) -> DecodedBatch:
    """Return records as their entries are decoded: erased ones are empty, and control records are not there."""
    found = RecordColumns.none() if records is None else records
    position = _positions(segment, found)
    end = segment.end_of_stream
    return DecodedBatch(
        lssn=segment.lssn,
        entry_id=found.entry,
        slot_id=found.slot,
        txid=found.transaction_id,
        position=position,
        sequence_id=position + (np.array(start_sequence_id, np.int64).reshape(1) - 1),
        flags=found.flags,
        payload=found.value.fill_null(b"") if found.value.null_count else found.value,
        end_of_stream=DLSN(segment.lssn, *end) if end is not None and first_entry <= end[0] <= last_entry else None,
    )


def control_entry(metadata: SegmentMetadata, position: int = 0, slots: int = 1) -> memoryview:
    """Return an entry of a segment that has nothing but empty control records; `position` counts the user records of
    the segment before it."""
    headers = np.zeros(slots, RECORD_HEADER)
    headers["word"] = position << POSITION_SHIFT | FLAG_CONTROL
    headers["txid"] = metadata.first_txid
    # An entry has bytes, even where it takes no slot: a set of no records.
    content = headers.tobytes() if slots else encode_record(0, encode_record_set([]), position, FLAG_RECORD_SET)
    return _enveloped(metadata, memoryview(content))


def _of_segment(batch: RecordColumns, lssn: int, first_entry: int, last_entry: int) -> RecordColumns:
    """Return the records of some entries; a row group may hold other segments too."""
    low, high = (int(np.searchsorted(batch.segment, lssn, side=side)) for side in ("left", "right"))
    entries = batch.entry[low:high]
    return batch.sliced(
        low + int(np.searchsorted(entries, first_entry, side="left")),
        low + int(np.searchsorted(entries, last_entry, side="right")),
    )


def _chunks(records: RecordColumns, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut records between entries, into parts of about so many bytes."""
    offsets = offsets_of(records.value)
    ends = np.append(np.flatnonzero(records.entry[1:] != records.entry[:-1]) + 1, len(records))
    first = 0
    while first < len(records):
        wanted = int(np.searchsorted(offsets, offsets[first] + max_bytes, side="right")) - 1
        at = int(np.searchsorted(ends, max(wanted, first + 1), side="left"))
        yield first, int(ends[at])
        first = int(ends[at])


def _made(
    segment: FileSegment, records: RecordColumns | None, first_entry: int, last_entry: int
) -> Iterator[tuple[int, memoryview]]:
    """Yield entries, of which `records` has all user records."""
    table = segment.entries
    slots = table.slots[first_entry : last_entry + 1]
    counts = table.records[first_entry : last_entry + 1]
    end = segment.end_of_stream
    if records is None:
        content, bounds = memoryview(b""), [0] * (len(slots) + 1)
    else:
        content, bounds = _laid_out(segment, records, first_entry, slots, counts)
    for at, (slot_count, count) in enumerate(zip(slots.tolist(), counts.tolist(), strict=True)):
        entry = first_entry + at
        if end is not None and end[0] == entry:
            yield entry, _with_end(segment, records, entry, slot_count, end[1])
        elif count:
            found = fitting(content[bounds[at] : bounds[at + 1]], segment.lssn, entry)
            yield entry, _enveloped(segment.metadata, found)
        else:
            yield entry, control_entry(segment.metadata, table.records_before(entry), slot_count)


def _laid_out(
    segment: FileSegment, records: RecordColumns, first_entry: int, slots: IntArray, counts: IntArray
) -> tuple[memoryview, list[int]]:
    """Return the bytes of all entries that have records, and where each entry begins; entries without have none."""
    taken = np.where(counts > 0, slots, 0)
    before = np.cumsum(taken) - taken
    total = int(taken.sum())
    places = before[records.entry - first_entry] + records.slot
    value = records.value.fill_null(b"") if records.value.null_count else records.value
    offsets = offsets_of(value)
    positions = _positions(segment, records)
    headers = np.zeros(total, RECORD_HEADER)
    if total == len(records):
        headers["word"] = positions << POSITION_SHIFT | records.flags
        headers["txid"] = records.transaction_id
        headers["length"] = np.diff(offsets)
    else:
        value, offsets = _with_control(segment, records, headers, places, positions, value, offsets)
    data = np.frombuffer(value.buffers()[2] or b"", np.uint8)
    content = lay_out(headers, value, offsets, data)
    starts = np.concatenate([[0], np.cumsum(headers["length"].astype(np.int64) + headers.dtype.itemsize)])
    return content, starts[np.append(before, total)].tolist()


def _with_control(
    segment: FileSegment,
    records: RecordColumns,
    headers: npt.NDArray[np.void],
    places: IntArray,
    positions: IntArray,
    value: pa.BinaryArray,
    offsets: IntArray,
) -> tuple[pa.BinaryArray, IntArray]:
    """Fill in headers where control records stand between others; returns the payloads with empty ones for them."""
    lengths = np.zeros(len(headers), np.int64)
    lengths[places] = np.diff(offsets)
    # The position of a control record is that of the user record before it, its id too; before the first, one less.
    before = np.searchsorted(places, np.arange(len(headers)), side="right") - 1
    known = np.maximum(before, 0)
    word = positions[known] - (before < 0)
    headers["word"] = np.maximum(word, 0) << POSITION_SHIFT | FLAG_CONTROL
    headers["txid"] = records.transaction_id[known]
    headers["word"][places] = positions << POSITION_SHIFT | records.flags
    headers["txid"][places] = records.transaction_id
    headers["length"] = lengths
    spread = np.empty(len(headers) + 1, np.int64)
    spread[0] = offsets[0]
    np.cumsum(lengths, out=spread[1:])
    spread[1:] += offsets[0]
    buffers = [None, pa.py_buffer(spread.astype(np.int32)), value.buffers()[2]]
    return pa.BinaryArray.from_buffers(pa.binary(), len(headers), buffers, 0), spread


def _with_end(segment: FileSegment, records: RecordColumns | None, entry: int, slots: int, end_slot: int) -> memoryview:
    """Return the entry in which the log was sealed: record by record, since there is one of it in a log."""
    position = segment.entries.records_before(entry)
    users: dict[int, tuple[int, bytes, int, int]] = {}
    if records is not None:
        own = np.flatnonzero(records.entry == entry).tolist()
        for at in own:
            place = int(records.sequence_id[at]) - segment.start_sequence_id + 1
            payload = records.value[at].as_py() or b""
            users[int(records.slot[at])] = int(records.transaction_id[at]), payload, place, int(records.flags[at])
    pieces = []
    for slot in range(slots):
        if slot == end_slot:
            pieces.append(encode_record(MAX_TXID, END_OF_STREAM_PAYLOAD, position, FLAG_END_OF_STREAM))
        elif slot in users:
            txid, payload, position, flags = users[slot]
            pieces.append(encode_record(txid, payload, position, flags))
        else:
            pieces.append(encode_record(segment.metadata.first_txid, b"", position, FLAG_CONTROL))
    return _enveloped(segment.metadata, fitting(memoryview(b"".join(pieces)), segment.lssn, entry))


def _enveloped(metadata: SegmentMetadata, content: memoryview) -> memoryview:
    return memoryview(b"".join(wrap(content, Compression.NONE))) if metadata.enveloped else content
