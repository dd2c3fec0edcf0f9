"""Fetched bytes of a row group into its columns, or into its records: checked, whole or not at all.

Three checks stand one behind the other, none of which takes a step for each record:

1. the CRC-32 of each column's chunk that is read, by the footer's seal: it covers pages and their headers;
2. the checksum of each page, by Parquet's reader;
3. the digest of the records, where records are given back: whatever was wrong in between is found.

What fails is a DamagedColdFileError with its place, and nothing of the row group is returned (I12).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dlspark.core.codec.record_chain import IntArray
from dlspark.core.codec.records import FLAGS_MASK
from dlspark.core.cold.files.columns import FLAG_ERASED, LOG
from dlspark.core.cold.files.digests import RecordColumns, RecordDigest
from dlspark.core.cold.files.fetched import FetchedFile, MissingRangeError
from dlspark.core.cold.files.footer import Footer
from dlspark.core.cold.files.pages import damaged_page
from dlspark.core.cold.files.typed_columns import TypedColumns
from dlspark.errors import DamagedColdFileError
from metadata.foundation.errors import CallerError
from storage_node.protocol.frames import Buffer


def decode_row_group(
    footer: Footer, index: int, parts: Mapping[tuple[int, int], Buffer], columns: Sequence[str] | None = None
) -> pa.RecordBatch:
    """Return columns of a row group, as they are in the file.

    Args:
        footer: of the file.
        index: which row group.
        parts: bytes of the file by (offset, length), among them those of `footer.ranges(index, columns)`.
        columns: names of columns, and of parts of `_log` (`_log.entry`); they come in the order of the file. None: all.

    Raises DamagedColdFileError; CallerError where a part is missing; Arrow's own errors where this process cannot read
    a row group that may be whole: of memory, or of a codec that its Arrow was built without.
    """
    source = FetchedFile(parts, footer.size)
    group = footer.row_groups[index]
    leaves = list(range(len(group.chunks))) if columns is None else footer.leaves(columns)
    damaged: int | None = None
    for leaf in leaves:
        chunk = group.chunks[leaf]
        try:
            data = source.part(chunk.offset, chunk.length)
        except MissingRangeError as error:
            raise CallerError(
                f"{error} of {footer.url} were not fetched, which column {chunk.path} of row group {index} needs",
                advice="Fetch what Footer.ranges says",
            ) from error
        if zlib.crc32(data) != chunk.crc:
            damaged = leaf
            break
    if damaged is not None:
        chunk = group.chunks[damaged]
        page = damaged_page(source.part(chunk.offset, chunk.length))
        raise _damage_error(footer, index, "its bytes fail their checksum", chunk.path, page)
    try:
        return _read(footer, source, index, leaves)
    except (OSError, ValueError) as error:  # ArrowInvalid is the latter
        # No other error of Arrow is damage: this process may not have the memory or the codec, or be stopped. Were it
        # called so, a reader that may pass over what is damaged would pass over records that are there.
        raise _damage_error(footer, index, f"its pages cannot be read: {error}") from error


def decode_records(
    footer: Footer, index: int, parts: Mapping[tuple[int, int], Buffer], *, check_digest: bool = True
) -> RecordColumns:
    """Return the user records of a row group, payloads included; null where one was erased.

    `parts` has the bytes of `footer.ranges(index, footer.record_columns(index))`. Raises DamagedColdFileError.
    """
    batch = decode_row_group(footer, index, parts, footer.record_columns(index))
    log = batch.column(LOG)
    numbers = {field.name: _numbers(log.field(at)) for at, field in enumerate(log.type)}
    # A record with many rows has its bytes, and its numbers, in the first of them.
    first = np.flatnonzero(numbers["row"] <= 0)
    flags = numbers["flags"][first]
    value = batch.column(footer.value_column)
    value = value if len(first) == len(batch) else value.take(pa.array(first))
    missing = np.flatnonzero(_mask(value.is_null()) & ((flags & FLAG_ERASED) == 0))
    if len(missing):
        value = _restored(footer, index, batch, first, missing, value, numbers["schema"][first])
    kept = [numbers[name][first] for name in ("segment", "entry", "slot", "sequence_id", "transaction_id")]
    records = RecordColumns.of_numbers([*kept, flags & FLAGS_MASK], value)
    if check_digest:
        check_records(footer, index, records)
    return records


def _restored(
    footer: Footer,
    index: int,
    batch: pa.RecordBatch,
    first: IntArray,
    missing: IntArray,
    value: pa.BinaryArray,
    version: IntArray,
) -> pa.BinaryArray:
    """Return the payloads with those that the typed columns give back; `first` is the first row of each record."""
    if footer.declaration is None:
        raise _damage_error(footer, index, f"{len(missing)} records have no bytes", footer.value_column)
    starts = np.append(first, len(batch))
    names = [one.name for one in footer.declaration.current.fields]
    typed = TypedColumns(footer.declaration)
    if len(missing) == len(first):
        return typed.restored(batch.select(names), starts, version)
    if len(first) == len(batch):
        rows, bounds = batch.select(names).take(pa.array(missing)), np.arange(len(missing) + 1)
    else:
        shown = np.repeat(np.isin(np.arange(len(first)), missing), np.diff(starts))
        rows = batch.select(names).filter(pa.array(shown))
        bounds = np.concatenate([[0], np.cumsum(np.diff(starts)[missing])])
    made = typed.restored(rows, bounds, version[missing])
    places = np.arange(len(first))
    places[missing] = len(first) + np.arange(len(missing))
    return pa.concat_arrays([value, made]).take(pa.array(places))


def check_records(footer: Footer, index: int, records: RecordColumns) -> None:
    """Raise DamagedColdFileError unless these are the records that were written into a row group."""
    digest = RecordDigest()
    digest.update(records)
    if len(records) != footer.row_groups[index].records or digest.digest() != footer.row_groups[index].digest:
        raise _damage_error(footer, index, "its records fail their digest")


def _read(footer: Footer, source: FetchedFile, index: int, leaves: list[int]) -> pa.RecordBatch:
    # With the metadata at hand the reader asks for the columns' bytes alone.
    file = pq.ParquetFile(source, metadata=footer.parquet, page_checksum_verification=True, pre_buffer=False)
    # By the numbers of leaf columns, not by names, which may have dots.
    found = file.reader.read_row_group(index, column_indices=leaves, use_threads=False).combine_chunks()
    batches = found.to_batches()
    if len(batches) != 1 or len(batches[0]) != footer.row_groups[index].rows:
        raise ValueError(f"{len(found)} rows were read, and it has {footer.row_groups[index].rows}")
    (batch,) = batches
    return batch


def _mask(flags: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(flags.to_numpy(zero_copy_only=False), np.bool_)


def _numbers(column: pa.Array) -> IntArray:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.int64)


def _damage_error(
    footer: Footer, index: int, what: str, column: str | None = None, page: int | None = None
) -> DamagedColdFileError:
    first = footer.row_groups[index].first
    return DamagedColdFileError(what, url=footer.url, row_group=index, column=column, page=page, dlsn=first)
