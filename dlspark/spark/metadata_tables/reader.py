"""The reader of a metadata table: the driver reads everything while the query is planned, and one task hands it on.

So a task needs no ZooKeeper session here either, and a query sees each table as it was at one time, however often Spark
runs the task. The rows travel with the partition as compressed Arrow, which bounds the size of a table (`MAX_BYTES`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from dlspark.core.namespace import AsyncNamespace
from dlspark.core.runtime import Runtime
from dlspark.spark.connection import Connect, missing_log_error, namespace_settings, open_namespace
from dlspark.spark.errors import OptionError
from dlspark.spark.metadata_tables.cluster import LedgerRows, bookie_rows, sink_rows
from dlspark.spark.metadata_tables.cold_files import cold_file_rows
from dlspark.spark.metadata_tables.logs import LogTables, Row
from dlspark.spark.metadata_tables.registry import (
    BOOKIES,
    COLD_FILES,
    CURSORS,
    LEDGERS,
    LOGS,
    SCHEMA_VERSIONS,
    SEGMENTS,
    SINKS,
    MetadataTable,
)
from dlspark.spark.metadata_tables.schemas import schema_rows
from dlspark.spark.options.query_options import Options
from dlspark.spark.source.filters import Bounds, push
from dlspark.spark.source.schema import column_names
from dlspark.spark.source.selection import Selection, selection_of
from dlspark.spark.worker_daemon import without_traceback
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.foundation.errors import CallerError, InvariantViolation
from metadata.foundation.pacing import for_each

MAX_BYTES: Final = 256 << 20
"""Compressed size of a table that a partition may carry: some millions of rows."""
BATCH_ROWS: Final = 16_384
_LOGS_AT_ONCE: Final = 16

_ARROW: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<string>": pa.list_(pa.field("element", pa.string())),
}


class TablePartition(InputPartition):
    """A whole table, as an Arrow stream."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self.data = data


def table_reader(
    table: MetadataTable, options: Options, schema: StructType, hints: Sequence[Filter] = ()
) -> DataSourceReader:
    """Return the reader of one query, which asks only for logs that `hints` leave: filters that Spark applies itself,
    too."""
    names = column_names(schema, table.schema)
    named = options.one_log() is not None or options.given("subscribe") or options.given("subscribePattern")
    selection = selection_of(options) if named else None
    # Some ledgers belong to no log, or to a log without being a segment of it: Spark evaluates the filter itself.
    by_log = table.of_logs and (table is not LEDGERS or named)
    of_logs = [one for one in hints if by_log and getattr(one, "attribute", None) == ("log",)]
    return TableReader(table, options.uri, selection, names, options.passed_on(), push(of_logs)[0])


@without_traceback
class TableReader(DataSourceReader):
    """Asks on the driver, hands on in the task; pickled in between."""

    def __init__(
        self,
        table: MetadataTable,
        uri: str,
        selection: Selection | None,
        names: Sequence[str],
        passed_on: Mapping[str, str] | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        """Make a reader. `selection`: None for all logs; `passed_on`: settings for the namespace's clients."""
        self._table = table
        self._uri = uri
        self._selection = selection
        self._names = tuple(names)
        self._passed_on = dict(passed_on or {})
        self._bounds = bounds or Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        """Look at the namespace now; the rows travel in one partition."""
        # Not the process's own: what is opened here ends with this table, whatever else the worker has open (I16).
        runtime = Runtime("dlspark-metadata")
        try:
            connect = partial(AsyncNamespace.open, settings=namespace_settings(self._passed_on) or None)
            rows = runtime.run(rows_of(self._table, self._uri, self._selection, self._bounds, connect))
        finally:
            runtime.close()
        return [TablePartition(encoded(rows, self._table, self._names))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the partition brought along."""
        if not isinstance(partition, TablePartition):
            raise InvariantViolation(f"a metadata table was given a partition of another reader: {partition!r}")
        with pa.ipc.open_stream(partition.data) as stream:
            yield from stream


def arrow_schema(table: MetadataTable, names: Sequence[str]) -> pa.Schema:
    """Return the table's columns of these names, in their order, as Spark wants them."""
    kinds = {column.name: column.kind for column in table.columns}
    return pa.schema([pa.field(name, _ARROW[kinds[name]]) for name in names])


def encoded(rows: Sequence[Row], table: MetadataTable, names: Sequence[str]) -> bytes:
    """Return rows as a compressed Arrow stream. Raises CallerError where they are too many for one partition.

    Without names it has no column, and as many rows: Spark counts them. Arrow counts by columns.
    """
    made = names or [table.columns[0].name]
    found = pa.Table.from_pylist([dict(row) for row in rows], schema=arrow_schema(table, made)).select(list(names))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, found.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write_table(found, max_chunksize=BATCH_ROWS)
    data = sink.getvalue()
    if data.size > MAX_BYTES:
        raise CallerError(
            f"The metadata table {table.name} has {len(rows):,} rows, {data.size:,} bytes: too much at once",
            advice="Read it for some logs at a time: subscribe, subscribePattern",
        )
    return bytes(data)


async def rows_of(
    table: MetadataTable,
    uri: str,
    selection: Selection | None,
    bounds: Bounds | None = None,
    connect: Connect = AsyncNamespace.open,
) -> list[Row]:
    """Ask for the rows of a table: of the selected logs (None: of all) that `bounds` admit.

    Raises MetadataUnavailableError, LogNotFoundError for a log that is named and not there, CorruptDataError.
    """
    namespace = await open_namespace(uri, connect)
    try:
        if table is BOOKIES:
            return await bookie_rows(namespace)
        if table is SINKS:
            return await sink_rows(namespace)
        logs = LogTables(namespace)
        if table is LEDGERS and selection is None:
            return await LedgerRows(namespace, logs).all()
        names = [name for name in await _names(namespace, selection) if bounds is None or bounds.admits(name)]
        by_log: dict[MetadataTable, Callable[[str], Awaitable[list[Row]]]] = {
            LOGS: logs.log,
            SEGMENTS: logs.segments,
            CURSORS: logs.cursors,
            SCHEMA_VERSIONS: partial(schema_rows, namespace),
            COLD_FILES: partial(cold_file_rows, namespace),
        }
        one_log = LedgerRows(namespace, logs).of_log if table is LEDGERS else by_log[table]
        return await _of_each(namespace, names, one_log, selection)
    finally:
        await namespace.close()


async def _names(namespace: AsyncNamespace, selection: Selection | None) -> list[str]:
    if selection is not None and selection.pattern is None:
        return list(selection.names)
    existing = await namespace.logs(recursive=True)
    if selection is None:
        return sorted(existing)
    found = selection.of(existing)
    if not found:
        raise OptionError(
            f"No log matches subscribePattern {selection.pattern!r}; nothing was read",
            advice="The pattern must match whole names; `dlspark log list` shows them",
        )
    return found


async def _of_each(
    namespace: AsyncNamespace,
    names: Sequence[str],
    rows_of_log: Callable[[str], Awaitable[list[Row]]],
    selection: Selection | None,
) -> list[Row]:
    """Return the rows of each log in turn. One that is gone has none, unless the query names it."""
    found: dict[str, list[Row]] = {}

    async def ask(name: str) -> None:
        try:
            found[name] = await rows_of_log(name)
        except LogNotFoundError as error:
            if selection is not None and selection.pattern is None:
                raise await missing_log_error(namespace, [name]) from error

    await for_each(names, _LOGS_AT_ONCE, ask)
    return [row for name in names for row in found.get(name, [])]
