"""What the parts of a Delivery are: batches of records, stored entries, Arrow streams. Both directions, no I/O.

A *batch of records* (`ReadForm.RECORDS`) has user records of one segment, in order, record sets expanded. Numbers are
big-endian. A program needs nothing else to read a log:

    offset  type   field
    0       u8     version, always 1
    1       u8     0
    2       u16    0
    4       u32    number of records
    8       i64    segment number
    16      i64    start sequence id of the segment
    24      i64    entry id of the first record
    32             for each record, 28 bytes:
                     u32  entry id, counted from the first record's
                     u32  slot
                     u64  position in the segment << 16 | flags
                     i64  transaction id
                     u32  length of the payload
    ...     bytes  the payloads, one behind the other

The last three fields are the header with which the record is stored (docs/reference/records.md). The record's sequence
id is the segment's start sequence id + position - 1, in 64 bits.

A *stored entry* (`ReadForm.ENTRIES`) is decoded by the client (`dlspark.core.codec.entries`):

    0       u8     version, always 2
    1       u8     0
    2       u16    version of the segment's metadata: entries are enveloped from 4 on
    4       u32    slot from which on the records are the reader's; lower ones lie before its start
    8       i64    segment number
    16      i64    entry id
    24      i64    start sequence id of the segment
    32      i64    id of the ledger that holds it: a log created again has other ledgers
    40      bytes  the entry as it is stored, digest checked and left out

Entries that hold control records alone come as well: entries of a segment follow each other without a hole, unless the
proxy was set to pass over damaged ones.

An *Arrow stream* (`ReadForm.ARROW`) is a whole stream in Arrow's IPC format, whose schema is `ROW_SCHEMA`
(`dlspark.core.codec.vector_decoding`). pyarrow is imported only by what makes or reads one.

Fault model: a part comes from a peer. Whatever its bytes are, decoding returns all of its records or raises
ProtocolError (InvalidEntryError for a stored entry's own content): nothing is passed over in silence (I12), and nothing
is allocated that the part does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from struct import Struct
from typing import TYPE_CHECKING

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import decode_entry
from dlspark.core.codec.records import (
    FLAGS_MASK,
    MAX_POSITION,
    POSITION_SHIFT,
    LogRecord,
    SharedFields,
    start_of_sequence,
)
from dlspark.serving.protocol.operations import Delivery, ReadForm
from metadata.foundation.errors import CallerError
from storage_node.errors import ProtocolError
from storage_node.protocol.frames import Buffer

if TYPE_CHECKING:
    import pyarrow as pa

    from dlspark.core.codec.vector_decoding import DecodedBatch

PART_VERSION = 1
STORED_VERSION = 2
_BATCH = Struct(">BBHIqqq")
_ROW = Struct(">IIQqI")
_STORED = Struct(">BBHIqqqq")
ROW_BYTES = _ROW.size
"""What a record takes in a batch besides its payload."""
HEAD_BYTES = _BATCH.size
"""What a batch has in front."""
STORED_HEAD_BYTES = _STORED.size
"""What a stored entry has in front."""
_FIRST_ENVELOPED = 4
_MAX_I64 = 2**63 - 1


# ------------------------------------------------------------------ batches of records


def encode_records(records: Sequence[LogRecord]) -> bytes:
    """Return a batch of `records`, of one segment and in order; there must be at least one."""
    first = records[0]
    lssn, first_entry, _ = first.dlsn
    start = start_of_sequence(first.sequence_id, first.position)
    pieces: list[bytes] = [_BATCH.pack(PART_VERSION, 0, 0, len(records), lssn, start, first_entry)]
    for record in records:
        _, entry_id, slot = record.dlsn
        word = record.position << POSITION_SHIFT | record.flags
        pieces.append(_ROW.pack(entry_id - first_entry, slot, word, record.txid, len(record.payload)))
    pieces += [record.payload for record in records]
    return b"".join(pieces)


def encode_columns(batch: DecodedBatch) -> bytes:
    """Return a batch of the records in columns; there must be at least one. No Python runs for each record."""
    import numpy as np

    count = len(batch)
    offsets = np.frombuffer(batch.payload.buffers()[1], np.int32)[batch.payload.offset :][: count + 1]
    rows = np.empty(
        count, np.dtype([("entry", ">u4"), ("slot", ">u4"), ("word", ">u8"), ("txid", ">i8"), ("n", ">u4")])
    )
    first_entry = int(batch.entry_id[0])
    rows["entry"] = batch.entry_id - first_entry
    rows["slot"] = batch.slot_id
    rows["word"] = batch.position << POSITION_SHIFT | batch.flags
    rows["txid"] = batch.txid
    rows["n"] = np.diff(offsets)
    start = start_of_sequence(int(batch.sequence_id[0]), int(batch.position[0]))
    head = _BATCH.pack(PART_VERSION, 0, 0, count, batch.lssn, start, first_entry)
    payloads = memoryview(batch.payload.buffers()[2] or b"")[int(offsets[0]) : int(offsets[-1])]
    return b"".join((head, rows.data, payloads))


def decode_records(part: Buffer) -> list[LogRecord]:
    """Return the records of a batch. Raises ProtocolError."""
    view = memoryview(part).cast("B")
    if len(view) < HEAD_BYTES:
        raise ProtocolError(f"a batch of records of {len(view)} bytes is shorter than its head of {HEAD_BYTES}")
    version, _, _, count, lssn, start, first_entry = _BATCH.unpack_from(view)
    _check_version(version, PART_VERSION, "batch of records")
    if first_entry < 0 or lssn < 0:
        raise ProtocolError(f"a batch of records claims to begin in segment {lssn}, entry {first_entry}")
    after = HEAD_BYTES + count * ROW_BYTES
    if after > len(view):
        raise ProtocolError(f"a batch claims {count} records in {len(view)} bytes")
    if not count:
        if after != len(view):
            raise ProtocolError(f"a batch without records has {len(view) - after} bytes behind its head")
        return []
    entries, slots, words, txids, lengths = zip(*_ROW.iter_unpack(view[HEAD_BYTES:after]), strict=True)
    ends = list(accumulate(lengths, initial=after))
    if ends[-1] != len(view):
        raise ProtocolError(f"a batch claims payloads of {ends[-1] - after} bytes and has {len(view) - after}")
    # The peer's numbers are checked before they are shifted and added up: Python's have no end, the format's do.
    if max(words) >> POSITION_SHIFT > MAX_POSITION:
        raise ProtocolError(f"a batch has a record past position {MAX_POSITION}")
    if first_entry + max(entries) > _MAX_I64:
        raise ProtocolError("a batch has a record past the last possible entry")
    # Records of one entry share the fields that are alike: a batch of thousands has a few such tuples.
    kept: dict[tuple[int, int, int], SharedFields] = {}
    shared = []
    positions = [word >> POSITION_SHIFT for word in words]
    for entry, word, position, slot in zip(entries, words, positions, slots, strict=True):
        key = entry, word & FLAGS_MASK, position - slot
        fields = kept.get(key)
        if fields is None:
            fields = kept[key] = (lssn, first_entry + entry, start, key[1], 1, key[2])
        shared.append(fields)
    payloads = [bytes(view[begin:end]) for begin, end in pairwise(ends)]
    return LogRecord.of_columns(shared, payloads, positions, txids)


# ------------------------------------------------------------------ stored entries


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry as it is stored, with what is needed to decode it."""

    lssn: int
    entry_id: int
    ledger_id: int
    start_sequence_id: int
    metadata_version: int
    payload: Buffer
    first_slot: int = 0
    """Records of lower slots lie before the reader's start."""

    def records(self) -> list[LogRecord]:
        """Return the reader's records: no control records, not the end of stream. Raises InvalidEntryError."""
        decoded = decode_entry(
            memoryview(self.payload),
            lssn=self.lssn,
            entry_id=self.entry_id,
            start_sequence_id=self.start_sequence_id,
            enveloped=self.metadata_version >= _FIRST_ENVELOPED,
        )
        return [record for record in decoded if record.is_user and record.dlsn.slot_id >= self.first_slot]


def encode_stored(entry: StoredEntry) -> bytes:
    """Return a stored entry."""
    head = _STORED.pack(
        STORED_VERSION,
        0,
        entry.metadata_version,
        entry.first_slot,
        entry.lssn,
        entry.entry_id,
        entry.start_sequence_id,
        entry.ledger_id,
    )
    return b"".join((head, entry.payload))


def decode_stored(part: Buffer) -> StoredEntry:
    """Return the stored entry; its payload is a view of `part`, and its records are not decoded. Raises
    ProtocolError."""
    view = memoryview(part).cast("B")
    if len(view) < STORED_HEAD_BYTES:
        raise ProtocolError(f"a stored entry of {len(view)} bytes is shorter than its head of {STORED_HEAD_BYTES}")
    version, _, metadata_version, first_slot, lssn, entry_id, start, ledger_id = _STORED.unpack_from(view)
    _check_version(version, STORED_VERSION, "stored entry")
    if entry_id < 0 or lssn < 0:
        raise ProtocolError(f"a stored entry claims to be entry {entry_id} of segment {lssn}")
    return StoredEntry(lssn, entry_id, ledger_id, start, metadata_version, view[STORED_HEAD_BYTES:], first_slot)


def _check_version(version: int, known: int, what: str) -> None:
    if version != known:
        raise ProtocolError(f"a {what} has version {version}; only version {known} is known")


# ------------------------------------------------------------------ Arrow streams


def encode_arrow(batch: pa.RecordBatch) -> memoryview:
    """Return a record batch as a whole Arrow stream."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue()).cast("B")


def decode_arrow(part: Buffer) -> list[pa.RecordBatch]:
    """Return the record batches of an Arrow stream; they share its memory. Raises ProtocolError."""
    import pyarrow as pa

    from dlspark.core.codec.vector_decoding import ROW_SCHEMA

    try:
        with pa.ipc.open_stream(pa.py_buffer(part)) as reader:
            if not reader.schema.equals(ROW_SCHEMA):
                raise ProtocolError("an Arrow stream has other columns than a log's records")
            batches: list[pa.RecordBatch] = list(reader)
        for batch in batches:
            # Offsets are the peer's: one past the end would be read as it stands.
            batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ProtocolError(f"an Arrow stream cannot be read: {error}") from error
    return batches


# ------------------------------------------------------------------ deliveries


def records_of(delivery: Delivery) -> list[LogRecord]:
    """Return the records of a delivery in the form RECORDS or ENTRIES, in order. Raises ProtocolError,
    InvalidEntryError."""
    if delivery.form is ReadForm.ARROW:
        raise CallerError("Arrow batches are not single records", advice="Use batches_of")
    if delivery.form is ReadForm.ENTRIES:
        return list(chain.from_iterable(decode_stored(part).records() for part in delivery.parts))
    return list(chain.from_iterable(map(decode_records, delivery.parts)))


def batches_of(delivery: Delivery) -> list[pa.RecordBatch]:
    """Return the record batches of a delivery in the form ARROW. Raises ProtocolError."""
    if delivery.form is not ReadForm.ARROW:
        raise CallerError(f"a delivery of {delivery.form.name} has no Arrow batches", advice="Use records_of")
    return list(chain.from_iterable(map(decode_arrow, delivery.parts)))


def position_behind(record: LogRecord) -> DLSN:
    """Return the first position behind a record."""
    lssn, entry_id, slot = record.dlsn
    return DLSN(lssn, entry_id, slot + max(record.slots, 1))
