"""Fetched bytes of a row group into its columns, or into its records: checked, whole or not at all.

Three checks stand one behind the other, none of which takes a step for each record:

1. the CRC-32 of each column's chunk that is read, by the footer's seal: it covers pages and their headers;
2. the checksum of each page, by Parquet's reader;
3. the digest of the records, where records are given back: whatever was wrong in between is found.

What fails is a DamagedColdFileError with its place, and nothing of the row group is returned (I12).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dlspark.cold.files.columns import FLAG_ERASED, LOG
from dlspark.cold.files.digests import RecordColumns, RecordDigest
from dlspark.cold.files.errors import DamagedColdFileError
from dlspark.cold.files.fetched import FetchedFile, MissingRangeError
from dlspark.cold.files.footer import Footer
from dlspark.core.codec.record_chain import IntArray
from dlspark.core.codec.records import FLAGS_MASK
from metadata.foundation.errors import CallerError
from storage_node.protocol.frames import Buffer

_PAGE: Final = re.compile(r"page(?: ordinal)? (\d+)")


def decode_row_group(
    footer: Footer, index: int, parts: Mapping[tuple[int, int], Buffer], columns: Sequence[str] | None = None
) -> pa.RecordBatch:
    """Return columns of a row group, as they are in the file.

    Args:
        footer: of the file.
        index: which row group.
        parts: bytes of the file by (offset, length), among them those of `footer.ranges(index, columns)`.
        columns: names of columns or of parts of them (`_log.entry`), which come in the order of the file; None: all.

    Raises DamagedColdFileError; CallerError where a part is missing.
    """
    source = FetchedFile(parts, footer.size)
    group = footer.row_groups[index]
    leaves = list(group.columns) if columns is None else footer.leaves(columns)
    damaged: str | None = None
    for path in leaves:
        chunk = group.columns[path]
        try:
            data = source.part(chunk.offset, chunk.length)
        except MissingRangeError as error:
            raise CallerError(
                f"{error} of {footer.url} were not fetched, which column {path} of row group {index} needs",
                advice="Fetch what Footer.ranges says",
            ) from error
        if zlib.crc32(data) != chunk.crc:
            damaged = path
            break
    if damaged is not None:
        page = _damaged_page(footer, source, index, damaged)
        raise _damage_error(footer, index, "its bytes fail their checksum", damaged, page)
    try:
        return _read(footer, source, index, leaves)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damage_error(footer, index, f"its pages cannot be read: {error}") from error


def decode_records(
    footer: Footer, index: int, parts: Mapping[tuple[int, int], Buffer], *, check_digest: bool = True
) -> RecordColumns:
    """Return the user records of a row group, payloads included; null where one was erased.

    `parts` has the bytes of `footer.ranges(index, footer.record_columns(index))`. Raises DamagedColdFileError.
    """
    batch = decode_row_group(footer, index, parts, footer.record_columns(index))
    group = footer.row_groups[index]
    log = batch.column(LOG)
    numbers = {field.name: log.field(at) for at, field in enumerate(log.type)}
    # A record with many rows has its bytes, and its numbers, in the first of them.
    first = pc.less_equal(numbers["row"], 0)
    if len(batch) != group.records:
        numbers = {name: column.filter(first) for name, column in numbers.items()}
    value = batch.column(footer.value_column)
    if len(batch) != group.records:
        value = value.filter(first)
    flags = _numbers(numbers["flags"])
    kept = [_numbers(numbers[name]) for name in ("segment", "entry", "slot", "sequence_id", "transaction_id")]
    records = RecordColumns.of_numbers([*kept, flags & FLAGS_MASK], value)
    erased = (flags & FLAG_ERASED) != 0
    missing = int(value.null_count) - int(erased.sum())
    if missing:
        raise _damage_error(footer, index, f"{missing} records have no bytes", footer.value_column)
    if check_digest:
        check_records(footer, index, records)
    return records


def check_records(footer: Footer, index: int, records: RecordColumns) -> None:
    """Raise DamagedColdFileError unless these are the records that were written into a row group."""
    digest = RecordDigest()
    digest.update(records)
    if len(records) != footer.row_groups[index].records or digest.digest() != footer.row_groups[index].digest:
        raise _damage_error(footer, index, "its records fail their digest")


def _read(footer: Footer, source: FetchedFile, index: int, leaves: Sequence[str]) -> pa.RecordBatch:
    # With the metadata at hand the reader asks for the columns' bytes alone.
    file = pq.ParquetFile(source, metadata=footer.parquet, page_checksum_verification=True, pre_buffer=False)
    found = file.read_row_group(index, columns=list(leaves), use_threads=False).combine_chunks()
    batches = found.to_batches()
    if len(batches) != 1 or len(batches[0]) != footer.row_groups[index].rows:
        raise ValueError(f"{len(found)} rows were read, and it has {footer.row_groups[index].rows}")
    (batch,) = batches
    return batch


def _damaged_page(footer: Footer, source: FetchedFile, index: int, path: str) -> int | None:
    """Return which page of a damaged chunk is, from 0; None where that is not told by the pages' checksums."""
    try:
        _read(footer, source, index, [path])
    except (pa.ArrowException, OSError, ValueError, MissingRangeError) as error:
        found = _PAGE.search(str(error))
        return int(found[1]) if found is not None and "CRC" in str(error) else None
    return None


def _numbers(column: pa.Array) -> IntArray:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.int64)


def _damage_error(
    footer: Footer, index: int, what: str, column: str | None = None, page: int | None = None
) -> DamagedColdFileError:
    first = footer.row_groups[index].first
    return DamagedColdFileError(what, url=footer.url, row_group=index, column=column, page=page, dlsn=first)
