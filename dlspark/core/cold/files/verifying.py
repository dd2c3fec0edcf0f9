"""A whole cold file against all that is said of it, by itself: no metadata, no log.

Every byte of a file belongs to something that is checked here: Parquet's magic number at its beginning, the chunks of
columns, the page indexes behind them, and the footer. What is checked of their content:

* each page and each chunk by its checksum, the records of each row group and of the file by their digests;
* the index: first and last position, transaction ids, counts of each row group;
* the entry tables: each entry has its records, in slots that it has, in order;
* the rows of records that have several are numbered.

Bytes are asked for in the order of the file, once, so that the SHA-256 of the whole is at hand at the end: the unit's
znode has it too (`ColdFile.sha256`), and an object that someone has replaced by another whole file is found by it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.record_chain import IntArray
from dlspark.core.cold.files.columns import FLAG_ERASED, LOG
from dlspark.core.cold.files.digests import RecordColumns, RecordDigest
from dlspark.core.cold.files.footer import MAGIC, Footer, RowGroup
from dlspark.core.cold.files.row_groups import decode_records, decode_row_group
from dlspark.errors import DamagedColdFileError
from storage_node.protocol.frames import Buffer


@dataclass(frozen=True, slots=True)
class WholeFile:
    """What is in a file that was found whole?

    Args:
        url, bytes, sha256: of the file.
        rows, records, entries: what it has.
        erased: records whose bytes were erased.
        digest: of its records, hexadecimal.
        footer: what it says of itself.
    """

    url: str
    bytes: int
    sha256: str
    rows: int
    records: int
    entries: int
    erased: int
    digest: str
    footer: Footer


class FileVerifier:
    """Is a cold file whole? Give it the file's parts, in the order of the file, as `parts` says.

    Args:
        footer: of the file, whose seal is checked already.

    Each call raises DamagedColdFileError with the place of what is wrong.
    """

    def __init__(self, footer: Footer) -> None:
        self.footer = footer
        self._next = 0
        self._sha256 = hashlib.sha256()
        self._digest = RecordDigest()
        self._records = [np.zeros(len(one.entries), np.int64) for one in footer.segments]
        self._rows = [np.zeros(len(one.entries), np.int64) for one in footer.segments]
        self._last: tuple[int, int, int] = (0, -1, -1)
        self._erased = 0

    @property
    def parts(self) -> list[tuple[int, int]]:
        """(offset, length) of the parts that `take` wants, one after the other: they are the whole file."""
        groups = [one.range for one in self.footer.row_groups]
        after = groups[-1][0] + groups[-1][1] if groups else len(MAGIC)
        tail = self.footer.size - self.footer.footer_bytes
        return [(0, len(MAGIC)), *groups, (after, tail - after), (tail, self.footer.footer_bytes)]

    def take(self, data: Buffer) -> None:
        """Check the next part."""
        parts, at = self.parts, self._next
        offset, length = parts[at]
        if len(memoryview(data)) != length:
            raise self._error(f"{len(memoryview(data))} bytes came in place of {length} at {offset}")
        self._sha256.update(data)
        self._next += 1
        if at == 0:
            if bytes(data) != MAGIC:
                raise self._error(f"it begins with {bytes(data)!r}, not with {MAGIC!r}")
        elif at <= len(self.footer.row_groups):
            self._take_group(at - 1, {(offset, length): data})
        elif at == len(parts) - 2:
            if hashlib.sha256(data).digest() != self.footer.page_index_digest:
                raise self._error("its page indexes fail their digest")
        else:
            # Read again: the footer that all of this hangs on must be the one that lies there.
            again = Footer.parse(memoryview(data), self.footer.size, self.footer.url)
            if again.digest != self.footer.digest or again.parquet != self.footer.parquet:
                raise self._error("its footer has changed meanwhile")

    def finish(self) -> WholeFile:
        """Return what was found, when all parts were taken."""
        footer = self.footer
        if self._next != len(self.parts):
            raise self._error(f"{len(self.parts) - self._next} of its parts were not read")
        for segment, records, rows in zip(footer.segments, self._records, self._rows, strict=True):
            table = segment.entries
            if not np.array_equal(records, table.records) or not np.array_equal(rows, table.rows):
                entry = int(np.flatnonzero((records != table.records) | (rows != table.rows))[0])
                raise self._error(
                    f"entry {entry} of segment {segment.lssn} has other records than its entry table says"
                )
        if self._digest.hexdigest() != footer.digest:
            raise self._error("its records fail its digest")
        return WholeFile(
            url=footer.url,
            bytes=footer.size,
            sha256=self._sha256.hexdigest(),
            rows=footer.rows,
            records=footer.records,
            entries=footer.entries,
            erased=self._erased,
            digest=footer.digest,
            footer=footer,
        )

    # -------------------------------------------------------------- row groups

    def _take_group(self, index: int, parts: dict[tuple[int, int], Buffer]) -> None:
        group = self.footer.row_groups[index]
        rows = decode_row_group(self.footer, index, parts)
        records = decode_records(self.footer, index, parts)
        self._digest.update(records)
        log = rows.column(LOG)
        numbers = {field.name: np.asarray(log.field(at)) for at, field in enumerate(log.type) if field.name != "log"}
        self._check_index(index, group, records, rows)
        self._check_order(index, records)
        self._check_rows(index, numbers["row"], len(records))
        erased = int(((numbers["flags"] & FLAG_ERASED) != 0)[numbers["row"] <= 0].sum())
        if erased and not self.footer.redacted:
            raise self._error("records are erased in it, and its footer says that none is", index)
        self._erased += erased
        self._count(index, records.segment, records.entry, self._records)
        self._count(index, numbers["segment"], numbers["entry"], self._rows)

    def _check_index(self, index: int, group: RowGroup, records: RecordColumns, rows: pa.RecordBatch) -> None:
        ids, value = records.transaction_id, rows.column(self.footer.value_column)
        ends = [DLSN(*(int(one[at]) for one in records.numbers[:3])) for at in (0, -1)]
        found = (len(rows), len(value) - value.null_count, *ends, *(int(ids[at]) for at in (0, -1)))
        said = (group.rows, group.values, group.first, group.last, group.first_txid, group.last_txid)
        if found != said or (int(ids.min()), int(ids.max())) != (group.lowest_txid, group.highest_txid):
            raise self._error("it is not what the index says of it", index)

    def _check_order(self, index: int, records: RecordColumns) -> None:
        segment, entry, slot = records.numbers[:3]
        first = (int(segment[0]), int(entry[0]), int(slot[0]))
        before, after = [one[:-1] for one in (segment, entry, slot)], [one[1:] for one in (segment, entry, slot)]
        rises = (after[0] > before[0]) | (
            (after[0] == before[0]) & ((after[1] > before[1]) | ((after[1] == before[1]) & (after[2] > before[2])))
        )
        if first <= self._last or not bool(rises.all()):
            raise self._error("its records are not in order", index)
        self._last = (int(segment[-1]), int(entry[-1]), int(slot[-1]))
        for one in self.footer.segments:
            own = segment == one.lssn
            if own.any() and bool((slot[own] >= one.entries.slots[entry[own]]).any()):
                raise self._error(f"a record of segment {one.lssn} is in a slot that its entry does not have", index)

    def _check_rows(self, index: int, row: IntArray, records: int) -> None:
        """Check that the rows of each record are numbered from 0."""
        starts = row <= 0
        follows = row[1:] == row[:-1] + 1
        if int(starts.sum()) != records or not bool((starts[1:] | (follows & (row[:-1] >= 0))).all()) or not starts[0]:
            raise self._error("rows of a record are not numbered one after the other", index)

    def _count(self, index: int, segment: IntArray, entry: IntArray, counts: list[IntArray]) -> None:
        first = self.footer.segments[0].lssn
        for lssn in np.unique(segment).tolist():
            own = entry[segment == lssn]
            if not 0 <= lssn - first < len(counts) or int(own.max()) >= len(counts[lssn - first]):
                raise self._error(
                    f"it has a record of segment {lssn}, entry {int(own.max())}, which is not there", index
                )
            counts[lssn - first] += np.bincount(own, minlength=len(counts[lssn - first]))

    def _error(self, what: str, row_group: int | None = None) -> DamagedColdFileError:
        return DamagedColdFileError(what, url=self.footer.url, row_group=row_group)
