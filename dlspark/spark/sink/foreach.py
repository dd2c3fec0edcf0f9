"""`ForeachLogWriter`: writing from `writeStream.foreach`, at least once.

For queries that the exactly-once sink cannot take: Real-Time Mode (whose Python sinks are `foreach` alone) and output
modes other than append. Spark gives each task a copy of the writer and calls `open`, then `process` for each row, then
`close`; no driver has the last word, so nothing can tell a task that ran again from one that ran once. **Rows of a
task or batch that Spark repeats are in the log again.** Use `writeStream.format("distributedlog")` wherever it can be
used.

Rows are gathered and published in groups, each whole or not at all, in one log or over many (column `log`, `numLogs`).
When `close` returns without an error every row is in its log, durably; before that, any number of whole groups may be.
Several tasks may write the same log: their groups follow each other.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import BinaryType, BooleanType, DataType, LongType, StringType, StructField, StructType

from dlspark.spark.connection import defaults_among, resolve_uri, session_defaults
from dlspark.spark.errors import OptionError, SchemaError
from dlspark.spark.options.registry import Options, Scope
from dlspark.spark.sink.messages import JobId
from dlspark.spark.sink.routing import routing_of
from dlspark.spark.sink.schema import SinkColumns, columns_of
from metadata.errors import CallerError
from metadata.sinks import job_sink
from storage_node.edge import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import Row

GROUP_ROWS = 10_000
GROUP_BYTES = 8 * 1024 * 1024
GROUP_MS = 1_000
_NEVER_HERE = ("failOnDataLoss",)
_ARROW_TYPES = {"transaction_id": pa.int64(), "log": pa.string()}


class ForeachLogWriter:
    """For `writeStream.foreach(ForeachLogWriter("flights"))`: rows with a column `value`, at least once.

    `log` and `options` are those of the sink (docs/spark-options.md): `uri`, `numLogs`, `partitionBy`, `ensembleSize`
    and so on, with the columns `value`, `transaction_id` and `log` as there. A group of rows is published when it has
    `group_rows` rows or `group_bytes` bytes, or when a row comes `group_ms` milliseconds after its first one; the rest
    when the task ends. Each group makes one segment a log, so small ones are dear.

    Rows with a `transaction_id` must not lie below their log's highest: that takes one task a log. Without the column
    they carry the time of their group, and any number of tasks may write a log.

    Raises OptionError, when it is made; in a task SchemaError, BatchRefusedError and its leaves (nothing of the group
    is visible), LogBusyError, or PublishUnknownError (the group is visible or not): Spark runs the task again.
    """

    def __init__(
        self,
        log: str | None = None,
        *,
        group_rows: int = GROUP_ROWS,
        group_bytes: int = GROUP_BYTES,
        group_ms: int = GROUP_MS,
        **options: object,
    ) -> None:
        if min(group_rows, group_bytes) < 1 or group_ms < 0:
            raise OptionError("A group has at least a row and a byte", advice="Give positive group_rows, group_bytes")
        given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
        for name in _NEVER_HERE:
            if name.lower() in {one.lower() for one in given}:
                raise OptionError(
                    f"Option {name} has no meaning for foreach, which recognises no replay", advice="Remove the option"
                )
        raw = given if log is None else {**given, "log": log}
        checked = Options(raw, Scope.SINK_STREAM, session_defaults(os.environ, _session_confs()))
        self._options = checked.with_uri(resolve_uri(checked))
        routing_of(self._options)
        self._group_rows, self._group_bytes, self._group_ms = group_rows, group_bytes, group_ms
        self._partition: int | None = None
        self._rows: list[Row] = []
        self._size = 0
        self._first_at = 0.0

    def open(self, partition_id: int, epoch_id: int) -> bool:
        """Begin a task. `epoch_id` is of no use: a plan made again may cut an epoch's rows otherwise (D14)."""
        self._partition = partition_id
        self._clear()
        return True

    def process(self, row: Row) -> None:
        """Take a row; may publish the group that it completes."""
        if self._partition is None:
            raise CallerError("process() was called before open()", advice="Hand the writer to writeStream.foreach")
        if not self._rows:
            self._first_at = time.monotonic()
        self._rows.append(row)
        self._size += sum(len(field) for field in row if isinstance(field, str | bytes | bytearray))
        full = len(self._rows) >= self._group_rows or self._size >= self._group_bytes
        if full or (time.monotonic() - self._first_at) * 1000 >= self._group_ms:
            self._publish()

    def close(self, error: Exception | None) -> None:
        """End the task: publish what is left; after an error drop it, for Spark runs the task again."""
        try:
            if error is None and self._rows:
                self._publish()
        finally:
            self._partition = None
            self._clear()

    def _clear(self) -> None:
        self._rows, self._size = [], 0

    def _publish(self) -> None:
        from dlspark.spark.sink.run import abort_jobs, commit_batch, run_task

        columns, batch = arrow_of(self._rows, self._options)
        attempt = uuid.uuid4().hex
        job = JobId(job_sink(attempt), 0, attempt)
        try:
            message = run_task(self._options, columns, job, self._partition or 0, SystemClock().now_ms(), iter([batch]))
            commit_batch(self._options, [message], job.batch)
        except BaseException:
            abort_jobs(self._options, [job])  # what was published after all has no listing that this could take
            raise
        self._clear()


def arrow_of(rows: Sequence[Row], options: Options) -> tuple[SinkColumns, pa.RecordBatch]:
    """The rows as Arrow, and where the sink's columns are in them. Raises SchemaError."""
    names = list(getattr(rows[0], "__fields__", ()))
    if not names or any(list(row.__fields__) != names for row in rows):
        raise SchemaError(
            f"foreach gave a row without the columns of the others: {rows[0]!r}",
            advice="Hand over rows of a data frame",
        )
    arrays = [_array(name, [row[place] for row in rows]) for place, name in enumerate(names)]
    fields = [StructField(name, _spark_type(array.type)) for name, array in zip(names, arrays, strict=True)]
    columns = columns_of(StructType(fields), options.one_log(), routing_of(options))
    return columns, pa.record_batch(arrays, names=names)


def _array(name: str, values: list[object]) -> pa.Array:
    kind = _ARROW_TYPES.get(name.lower())
    if kind is None and all(isinstance(value, bytes | bytearray | None) for value in values):
        kind = pa.binary()
        values = [bytes(value) if isinstance(value, bytearray) else value for value in values]
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as error:
        raise SchemaError(
            f"Column {name} holds values that do not go together, or are of another type than the sink takes: {error}",
            advice="Convert it: cast(value as string), cast(transaction_id as bigint)",
        ) from error


def _spark_type(kind: pa.DataType) -> DataType:
    if pa.types.is_string(kind):
        return StringType()
    if pa.types.is_binary(kind):
        return BinaryType()
    if pa.types.is_boolean(kind):
        return BooleanType()
    if pa.types.is_integer(kind):
        return LongType()
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(kind)


def _session_confs() -> dict[str, str]:
    """The confs of this process's session, which `foreach`, unlike a data source, can see when it is set up."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    return defaults_among(session.conf.getAll) if session is not None else {}
