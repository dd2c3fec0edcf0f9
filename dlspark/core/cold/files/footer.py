"""`Footer`: what a cold file says of itself in its last bytes, and where in it everything is.

Parquet's footer has the places of columns, and keys of ours (docs/reference/cold-files.md#footer):

| key | what it holds |
|---|---|
| `dlspark.cold` | JSON: identity, segments with their whole metadata, counts, digest, the declared schema |
| `dlspark.cold.index` | entry tables, and what each row group holds: arrays of little-endian numbers, zstd, base64 |
| `dlspark.cold.seal` | CRC-32 of each column's chunk, SHA-256 of the page indexes and of the footer itself |

Fault model. The bytes may be anything. The seal is found and checked before Parquet's reader is given a byte of the
footer, so damage is an error and nothing is read from it. All that is read afterwards hangs on the seal: chunks by
their checksums, records by their digests.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.cold.files.columns import ERROR, LOG, LOG_NAMES, value_name
from dlspark.core.cold.files.entry_table import EntryTable
from dlspark.core.cold.files.group_index import decode_index
from dlspark.core.cold.files.seal import CRC_DIGITS, SEAL_VERSION, SHA_DIGITS, checked_seal
from dlspark.errors import DamagedColdFileError
from dlspark.tables.declaration import Declaration
from metadata.distributedlog.cold_units import ColdSegment
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import CallerError, CorruptDataError

VERSION: Final = 1
TAIL_BYTES: Final = 128 << 10
"""How many last bytes to fetch at first: they hold most files' footers whole."""
MAGIC: Final = b"PAR1"
ENDING: Final = struct.Struct("<I4s")
"""The last bytes of a file: length of the footer, and Parquet's magic number."""
KEY: Final = b"dlspark.cold"
INDEX_KEY: Final = b"dlspark.cold.index"


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Whose records does a file hold?

    Args:
        namespace_id, log_id: random ids, which stay where a log is renamed.
        log: the log's name when the file was written.
        attempt: the id of the copy that made it.
    """

    namespace_id: str
    log_id: str
    log: str
    attempt: str


@dataclass(frozen=True, slots=True)
class FileSegment:
    """Which part of a file is one segment, and what are its entries?

    Args:
        metadata: what its znode said when it was copied.
        start_sequence_id: the sequence id of its first record, as readers count.
        ledger_bytes: bytes of its ledger.
        first_row, rows: its rows in the file.
        entries: its entries, all of them.
        end_of_stream: (entry, slot) of the record that sealed the log; None without one.
    """

    metadata: SegmentMetadata
    start_sequence_id: int
    ledger_bytes: int
    first_row: int
    rows: int
    entries: EntryTable
    end_of_stream: tuple[int, int] | None

    @property
    def lssn(self) -> int:
        """Its number."""
        return self.metadata.lssn

    @property
    def cold(self) -> ColdSegment:
        """It, as the unit's znode says it."""
        return ColdSegment(self.metadata, self.first_row, self.rows, self.ledger_bytes)


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """Where are the bytes of a leaf column in a row group, and what is their CRC-32?"""

    path: str
    """Of the leaf column: `_log.entry`, `value`."""
    offset: int
    length: int
    crc: int

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class RowGroup:
    """What is in a row group, and where is it?

    Args:
        first_row, rows: its rows in the file.
        records: its user records.
        values: how many of them have their bytes in the file; the others' come back from the typed columns, or were
            erased.
        first, last: positions of its first and last record.
        first_txid, last_txid: their transaction ids.
        lowest_txid, highest_txid: of all its records.
        chunks: of the leaf columns, in the order of the file.
        digest: of its records (`digests.RecordDigest`).
    """

    first_row: int
    rows: int
    records: int
    values: int
    first: DLSN
    last: DLSN
    first_txid: int
    last_txid: int
    lowest_txid: int
    highest_txid: int
    chunks: tuple[ColumnChunk, ...]
    digest: bytes

    @property
    def range(self) -> tuple[int, int]:
        """Offset and length of all its bytes."""
        return self.chunks[0].offset, self.chunks[-1].end - self.chunks[0].offset

    @property
    def columns(self) -> dict[str, ColumnChunk]:
        """Its chunks by their paths."""
        return {one.path: one for one in self.chunks}


@dataclass(frozen=True, slots=True)
class Footer:
    """What is in a cold file, and where? Made by `parse`, and never changed: keep it for all reads of the file.

    Args:
        url: the file, for errors.
        size: its bytes.
        footer_bytes: bytes of the footer with what follows it.
        identity: whose records it has.
        segments: in order of their numbers, without a hole.
        row_groups: in order.
        rows, records, entries: of the whole file.
        digest: of all its records, hexadecimal.
        declaration: the schema whose columns it has; None without one.
        redacted: whether records were erased from it.
        schema: its columns.
        page_index_digest: SHA-256 of what lies between the last row group and the footer.
        parquet: Parquet's own metadata.
    """

    url: str
    size: int
    footer_bytes: int
    identity: FileIdentity
    segments: tuple[FileSegment, ...]
    row_groups: tuple[RowGroup, ...]
    rows: int
    records: int
    entries: int
    digest: str
    declaration: Declaration | None
    redacted: bool
    schema: pa.Schema
    page_index_digest: bytes
    parquet: pq.FileMetaData

    @classmethod
    def bytes_needed(cls, tail: bytes | memoryview, size: int, url: str = "") -> int:
        """Return how many last bytes of a file of `size` bytes `parse` needs; `tail` has its last bytes, 8 at least.

        Raises DamagedColdFileError where it is no Parquet file.
        """
        if size < ENDING.size + len(MAGIC) or len(tail) < ENDING.size:
            raise DamagedColdFileError(f"it has {size} bytes, fewer than any Parquet file", url=url)
        length, magic = ENDING.unpack(bytes(tail[-ENDING.size :]))
        if magic != MAGIC:
            raise DamagedColdFileError(f"it ends in {magic!r}, not in {MAGIC!r}", url=url)
        needed: int = length + ENDING.size
        if needed + len(MAGIC) > size:
            raise DamagedColdFileError(f"a footer of {length} bytes does not fit into {size}", url=url)
        return needed

    @classmethod
    def parse(cls, tail: bytes | memoryview, size: int, url: str) -> Footer:
        """Return the footer of a file of `size` bytes, of which `tail` has the last `bytes_needed`, or more.

        Raises DamagedColdFileError, and CorruptDataError for a file of a newer version.
        """
        needed = cls.bytes_needed(tail, size, url)
        if len(tail) < needed:
            raise CallerError(
                f"the footer of {url} has {needed} bytes, and {len(tail)} were given",
                advice="Fetch as many last bytes as bytes_needed says",
            )
        raw = bytes(tail[-needed:])
        seal = checked_seal(raw[: -ENDING.size], url)
        try:
            return _parsed(raw, size, url, seal)
        except CorruptDataError:
            raise
        except (pa.ArrowException, ValueError, KeyError, TypeError, IndexError, struct.error, OverflowError) as error:
            raise DamagedColdFileError(f"its footer makes no sense: {error}", url=url) from error

    # -------------------------------------------------------------- where things are

    def segment(self, lssn: int) -> FileSegment:
        """Return a segment by its number. Raises CallerError where the file does not have it."""
        first = self.segments[0].lssn if self.segments else 0
        if not 0 <= lssn - first < len(self.segments):
            raise CallerError(
                f"segment {lssn} is not in {self.url}", advice="Take the file that its unit names, or list units again"
            )
        return self.segments[lssn - first]

    def last_entry(self, lssn: int) -> int:
        """Return the number of a segment's last entry, control entries included; -1 where it has none."""
        return len(self.segment(lssn).entries) - 1

    def groups_of(self, lssn: int, first_entry: int, last_entry: int) -> range:
        """Return which row groups hold the rows of these entries, `last_entry` included; empty where they have none."""
        segment = self.segment(lssn)
        first = segment.first_row + segment.entries.rows_before(first_entry)
        after = segment.first_row + segment.entries.rows_before(last_entry + 1)
        if first >= after:
            return range(0)
        return range(self.group_of_row(first), self.group_of_row(after - 1) + 1)

    def group_of_row(self, row: int) -> int:
        """Return which row group has a row of the file."""
        low, high = 0, len(self.row_groups)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.row_groups[middle].first_row <= row else (low, middle)
        return low

    def records_before(self, lssn: int, entry: int) -> int:
        """Return how many user records of a segment are in the entries before `entry`."""
        return self.segment(lssn).entries.records_before(entry)

    def entry_of_record(self, lssn: int, number: int) -> int:
        """Return which entry of a segment has its user record `number`, from 0; the number of its entries where it has
        not so many."""
        return self.segment(lssn).entries.entry_of_record(number)

    def locate_txid(self, lssn: int, txid: int) -> int | None:
        """Return the first row group in which a record of the segment may have this transaction id or a higher one;
        None where all are lower."""
        groups = self.groups_of(lssn, 0, self.last_entry(lssn))
        for index in groups:
            group = self.row_groups[index]
            # A group may end in another segment, whose ids say nothing of this one's.
            if group.last.lssn > lssn or group.last_txid >= txid:
                return index
        return None

    def locate_position(self, lssn: int, position: int) -> int | None:
        """Return the row group with the user record at `position` of the segment, from 1; None where it has none."""
        segment = self.segment(lssn)
        if not 1 <= position <= segment.entries.record_count:
            return None
        entry = segment.entries.entry_of_record(position - 1)
        groups = self.groups_of(lssn, entry, entry)
        return groups[0] if groups else None

    def ranges(self, index: int, columns: Sequence[str] | None = None) -> list[tuple[int, int]]:
        """Return (offset, length) of the bytes that columns have in a row group, side by side ones as one range.

        `columns` are names of columns, and of parts of `_log` (`_log.entry`); None: all.
        """
        group = self.row_groups[index]
        found: list[tuple[int, int]] = []
        for leaf in range(len(group.chunks)) if columns is None else self.leaves(columns):
            chunk = group.chunks[leaf]
            if found and found[-1][0] + found[-1][1] == chunk.offset:
                found[-1] = (found[-1][0], found[-1][1] + chunk.length)
            else:
                found.append((chunk.offset, chunk.length))
        return found

    def leaves(self, columns: Sequence[str]) -> list[int]:
        """Return the numbers of the leaf columns that `columns` are made of, in the order of the file. Raises
        CallerError for a column that the file does not have.

        A column is told by its place, not by a path: names may have dots, so that paths may be equal.
        """
        chosen: set[int] = set()
        known = set()
        leaf = 0
        for one in self.schema:
            count = leaf_count(one.type)
            if one.name in columns:
                chosen.update(range(leaf, leaf + count))
                known.add(one.name)
            elif one.name == LOG:
                parts = {
                    f"{LOG}.{part}": leaf + at for at, part in enumerate(one.type.names) if f"{LOG}.{part}" in columns
                }
                chosen.update(parts.values())
                known.update(parts)
            leaf += count
        unknown = set(columns) - known
        if unknown:
            raise CallerError(
                f"{self.url} has no column {', '.join(sorted(unknown))}",
                advice=f"It has: {', '.join(self.schema.names)}",
            )
        return sorted(chosen)

    @property
    def value_column(self) -> str:
        """The name of the column with records' bytes."""
        return value_name(self.declaration)

    def record_columns(self, index: int) -> list[str]:
        """Return which columns of a row group are needed to give back its records."""
        parts = [f"{LOG}.{one}" for one in LOG_NAMES if one != "log"]
        group = self.row_groups[index]
        typed = [name for name in self.schema.names if name not in (LOG, ERROR, self.value_column)]
        return [*parts, *(typed if group.values < group.records else ()), self.value_column]


# ------------------------------------------------------------------ what the keys hold


def encode_about(
    identity: FileIdentity,
    segments: Sequence[FileSegment],
    *,
    records: int,
    digest: str,
    declaration: Declaration | None,
    redacted: bool,
    index_bytes: int,
) -> bytes:
    """Return the value of `dlspark.cold`."""
    fields: dict[str, Any] = {
        "v": VERSION,
        "namespace": identity.namespace_id,
        "logId": identity.log_id,
        "log": identity.log,
        "attempt": identity.attempt,
        "segments": [_segment_fields(one) for one in segments],
        "rows": sum(one.rows for one in segments),
        "records": records,
        "entries": sum(len(one.entries) for one in segments),
        "digest": digest,
        "indexBytes": index_bytes,
    }
    if declaration is not None:
        fields["declaration"] = base64.b64encode(declaration.encode()).decode()
        fields["schema"] = declaration.current.id
    if redacted:
        fields["redacted"] = True
    return json.dumps(fields, separators=(",", ":")).encode()


def _segment_fields(one: FileSegment) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "m": one.metadata.encode().decode("ascii"),
        "name": one.metadata.znode_name,
        "start": one.start_sequence_id,
        "bytes": one.ledger_bytes,
        "entries": len(one.entries),
    }
    if one.end_of_stream is not None:
        fields["endOfStream"] = list(one.end_of_stream)
    return fields


# ------------------------------------------------------------------ reading it


def _parsed(raw: bytes, size: int, url: str, seal: bytes) -> Footer:
    parquet = pq.read_metadata(pa.BufferReader(raw))
    keys = parquet.metadata or {}
    about = json.loads(keys[KEY])
    if about["v"] != VERSION:
        raise CorruptDataError(
            f"a cold file is of version {about['v']!r}; {VERSION} is supported",
            path=url,
            advice="Was it written by a newer dlspark? Read it with that one",
        )
    packed = base64.b64decode(keys[INDEX_KEY], validate=True)
    index: bytes = pa.Codec("zstd").decompress(packed, decompressed_size=int(about["indexBytes"]), asbytes=True)
    numbers, digests, columns = decode_index(index, len(about["segments"]))
    declared = about.get("declaration")
    declaration = None if declared is None else Declaration.decode(base64.b64decode(declared, validate=True), url)
    groups = _row_groups(parquet, numbers, digests, seal)
    footer = Footer(
        url=url,
        size=size,
        footer_bytes=len(raw),
        identity=FileIdentity(about["namespace"], about["logId"], about["log"], about["attempt"]),
        segments=_segments(about["segments"], columns, url),
        row_groups=groups,
        rows=int(about["rows"]),
        records=int(about["records"]),
        entries=int(about["entries"]),
        digest=str(about["digest"]),
        declaration=declaration,
        redacted=bool(about.get("redacted", False)),
        schema=parquet.schema.to_arrow_schema(),
        page_index_digest=binascii.unhexlify(seal[-2 * SHA_DIGITS : -SHA_DIGITS]),
        parquet=parquet,
    )
    _check_counts(footer)
    return footer


def _segments(
    said: Sequence[Mapping[str, Any]], columns: tuple[npt.NDArray[np.int64], ...], url: str
) -> tuple[FileSegment, ...]:
    slots, others, further = columns
    found: list[FileSegment] = []
    at = row = 0
    for fields in said:
        after = at + int(fields["entries"])
        records = slots[at:after] - others[at:after]
        table = EntryTable(slots[at:after], records, records + further[at:after])
        path = f"{url}/{fields['name']}"
        metadata = SegmentMetadata.decode(fields["m"].encode("ascii"), path, skip_minimum_version=True)
        end = fields.get("endOfStream")
        found.append(
            FileSegment(
                metadata,
                int(fields["start"]),
                int(fields["bytes"]),
                row,
                table.row_count,
                table,
                None if end is None else (int(end[0]), int(end[1])),
            )
        )
        at, row = after, row + table.row_count
    if at != len(slots):
        raise ValueError("its segments have other entries than its index")
    return tuple(found)


def _row_groups(
    parquet: pq.FileMetaData, numbers: npt.NDArray[np.int64], digests: Sequence[bytes], seal: bytes
) -> tuple[RowGroup, ...]:
    leaves = parquet.num_columns
    crcs = seal[len(SEAL_VERSION) : -2 * SHA_DIGITS]
    if len(numbers) != parquet.num_row_groups or len(crcs) != len(numbers) * leaves * CRC_DIGITS:
        raise ValueError("it has other row groups than its index")
    found: list[RowGroup] = []
    row = 0
    for index, said in enumerate(numbers.tolist()):
        group = parquet.row_group(index)
        chunks: list[ColumnChunk] = []
        for leaf in range(leaves):
            at = (index * leaves + leaf) * CRC_DIGITS
            path, offset, length = chunk_place(group.column(leaf))
            chunks.append(ColumnChunk(path, offset, length, int(crcs[at : at + CRC_DIGITS], 16)))
        rows, records, values, *rest = said
        if rows != group.num_rows:
            raise ValueError(f"row group {index} has {group.num_rows} rows, and its index says {rows}")
        first, last = DLSN(*rest[:3]), DLSN(*rest[3:6])
        ids = rest[6:]
        found.append(
            RowGroup(
                row, rows, records, values, first, last, ids[0], ids[1], ids[2], ids[3], tuple(chunks), digests[index]
            )
        )
        row += rows
    return tuple(found)


def leaf_count(type_: pa.DataType) -> int:
    """Return how many leaf columns a column of a type has."""
    if pa.types.is_struct(type_):
        return sum(leaf_count(one.type) for one in type_)
    if pa.types.is_map(type_):
        return leaf_count(type_.key_type) + leaf_count(type_.item_type)
    return leaf_count(type_.value_type) if pa.types.is_list(type_) else 1


def chunk_place(chunk: pq.ColumnChunkMetaData) -> tuple[str, int, int]:
    """Return a column chunk's path, and the offset and length of its bytes."""
    offset = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
        offset = min(offset, chunk.dictionary_page_offset)
    return chunk.path_in_schema, offset, chunk.total_compressed_size


def _check_counts(footer: Footer) -> None:
    """Raise ValueError unless what is said twice is the same."""
    lssns = [one.lssn for one in footer.segments]
    checks = (
        lssns == list(range(lssns[0], lssns[0] + len(lssns))) if lssns else True,
        footer.rows == footer.parquet.num_rows == sum(one.rows for one in footer.segments),
        footer.records == sum(one.records for one in footer.row_groups),
        footer.records == sum(one.entries.record_count for one in footer.segments),
        footer.entries == sum(len(one.entries) for one in footer.segments),
    )
    if not all(checks):
        raise ValueError("its counts contradict each other")
    # Every byte belongs to something that is checked: none may lie between.
    at = len(MAGIC)
    for group in footer.row_groups:
        for chunk in group.chunks:
            if chunk.offset != at:
                raise ValueError(f"{chunk.offset - at} bytes lie before a column that are none's")
            at = chunk.end
    if at > footer.size - footer.footer_bytes:
        raise ValueError("its row groups reach into its footer")
