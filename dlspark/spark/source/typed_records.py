"""The task's side of a typed frame: records of a log become rows of its own columns, as Spark wants them.

Whether a record fits depends on all its columns, so all are decoded, whatever Spark asks for; then what it asks for is
cut out: some columns, some fields of `_log` and of a user's structs. A record that does not fit is a row that says why
(`_error`), and the task counts them in its log.

A worker keeps what it has prepared of a declaration for its next tasks. Only tasks of typed frames import this.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from dlspark.core.codec.vector_decoding import DecodedBatch
from dlspark.spark.source.frame_columns import PackedDeclaration
from dlspark.spark.source.partition_reader import TARGET_BATCH_BYTES, LogPartition, read_records, record_batches
from dlspark.tables.codecs import RecordDecoder
from dlspark.tables.declaration import Declaration
from dlspark.tables.typed_rows import ERROR, LOG, VALUE, TypedRows
from metadata.foundation.errors import check

if TYPE_CHECKING:
    from dlspark.core.cold.files.footer import Footer
    from dlspark.spark.source.planning import SegmentSpan

MAX_KEPT: Final = 16
"""Declarations, with columns that were asked for, whose decoders a worker keeps."""
_ALWAYS: Final = ("log", "segment", "entry", "slot", "transaction_id", VALUE)
"""Columns of records that decoding takes: an error of a strict log says where the record is."""

_log = logging.getLogger(__name__)


def read_typed(partition: LogPartition, wanted: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the columns `wanted` of the rows of a partition's records. Raises as `TypedBatches.of`, and what reading
    the records raises."""
    check(partition.declared is not None, "a plan for a typed frame does not say what its log declares")
    typed = TypedBatches(partition.declared, wanted)  # type: ignore[arg-type]
    for part, columns in partition.by_way():
        if columns:
            yield from typed.of_columns(part)
            continue
        for records, log in read_records(part):
            yield from typed.of(records, log)
    typed.report()


class TypedBatches:
    """How does a task yield the rows of its records? Make one a task.

    Args:
        packed: What the log declares.
        wanted: Columns as Spark asks for them.
    """

    def __init__(self, packed: PackedDeclaration, wanted: StructType) -> None:
        self._rows, self._schema = prepared(packed, wanted.json())
        self._misfits = 0
        self._first: str | None = None

    def of(self, records: DecodedBatch, log: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of records of `log`, in batches of about TARGET_BATCH_BYTES.

        Raises RecordMisfitError for a record that does not fit, where the log is strict.
        """
        names = [name for name in (*_ALWAYS, "sequence_id", "timestamp") if name in _ALWAYS or self._shows(name)]
        for some in record_batches(records, log, names):
            rows = self._rows.of(some)
            if len(rows):
                self._count(rows, log, records.lssn)
                yield from _pieces(self._fitted(rows))

    def of_columns(self, partition: LogPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition whose spans are read as columns of cold files; raises as `of`."""
        # Imported late: pyarrow.parquet takes a while to load.
        from dlspark.spark.source.cold_columns import cold_rows, fetched_groups
        from dlspark.spark.source.cold_typed_rows import RowsOfGroups, StoredColumns, stored_columns

        def columns_of(footer: Footer, span: SegmentSpan) -> tuple[Sequence[str], StoredColumns]:
            columns = stored_columns(footer, self._rows, cold_rows(span).group, span)
            return columns.names, columns

        groups = RowsOfGroups(self._rows)
        for found in fetched_groups(partition, columns_of):
            rows = groups.of(found.batch, found.columns, found.footer, found.span)
            if len(rows):
                self._count(rows, found.span.log, found.span.lssn)
                yield from _pieces(self._fitted(rows))

    def report(self) -> None:
        """Say in the worker's log how many records did not fit, if any."""
        if self._misfits:
            _log.warning(
                "%d records of a task do not fit the log's schema, the first is %s", self._misfits, self._first
            )

    def _shows(self, part: str) -> bool:
        return LOG in self._rows.schema.names and part in self._rows.schema.field(LOG).type.names

    def _count(self, rows: pa.RecordBatch, log: str, segment: int) -> None:
        at = rows.schema.get_field_index(ERROR)
        if at < 0:
            return
        errors = rows.column(at)
        self._misfits += len(errors) - errors.null_count
        if self._misfits and self._first is None:
            why = errors.drop_null()[0].as_py()
            self._first = f"of {log}, segment {segment}: {why}"

    def _fitted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that Spark asks for, exactly as it does."""
        if not self._schema.names:
            return rows.select([])
        columns = [cut_out(rows.column(one.name), one.type) for one in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


@lru_cache(maxsize=MAX_KEPT)
def prepared(packed: PackedDeclaration, wanted: str) -> tuple[TypedRows, pa.Schema]:
    """Return what makes rows of records, and the columns that Spark takes of them, from its JSON."""
    columns = StructType.fromJson(json.loads(wanted))
    declaration = Declaration.decode(zlib.decompress(packed.data), "the plan of the read")
    target = declaration.version(packed.version)
    check(target is not None, "a plan names a version that its declaration does not have")
    decoder = RecordDecoder(declaration, target)
    log = columns[LOG].dataType if LOG in columns.names else None
    parts = log.names if isinstance(log, StructType) else None
    own = {one.name for one in decoder.target.fields}
    names = list(columns.names)
    if own.intersection(names) and ERROR not in names:
        names.append(ERROR)  # to count by; it is known anyway
    return TypedRows(decoder, names, parts), to_arrow_schema(columns, timezone="UTC")


def _pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield rows in equal pieces of about TARGET_BATCH_BYTES: they may have more bytes than their records."""
    count = len(rows)
    pieces = min(count, -(-rows.nbytes // TARGET_BATCH_BYTES)) or 1
    for i in range(pieces):
        start = count * i // pieces
        yield rows.slice(start, count * (i + 1) // pieces - start)


def cut_out(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return a column with the fields of its structs that `wanted` has, in its order; nothing is copied but masks."""
    if column.type == wanted:
        return column
    if pa.types.is_struct(wanted):
        parts = [cut_out(column.field(one.name), one.type) for one in wanted]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=mask)
    # Lists and maps: where each begins stays as it is, and what they hold is cut.
    if pa.types.is_map(wanted):
        keys, items = cut_out(column.keys, wanted.key_type), cut_out(column.items, wanted.item_type)
        entries = pa.struct([wanted.key_field, wanted.item_field])
        held: pa.Array = pa.StructArray.from_arrays([keys, items], fields=list(entries))
    else:
        held = cut_out(column.values, wanted.value_type)
    return pa.Array.from_buffers(
        wanted, len(column), column.buffers()[:2], column.null_count, column.offset, children=[held]
    )
