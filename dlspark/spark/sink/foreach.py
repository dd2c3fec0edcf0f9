"""`ForeachLogWriter`: writing from `writeStream.foreach`, at least once.

For queries that the exactly-once sink cannot take: Real-Time Mode (whose Python sinks are `foreach` alone) and output
modes other than append. Spark gives each task a copy of the writer and calls `open`, then `process` for each row, then
`close`. There is no commit on the driver, so nothing distinguishes a task that ran again from one that ran once. **Rows
of a task or batch that Spark repeats are in the log again.** Use `writeStream.format("distributedlog")` wherever it can
be used.

Rows are gathered and published in groups, each whole or not at all, in one log or over many (column `log`, `numLogs`).
When `close` returns without an error every row is in its log, durably; before that, any number of whole groups may be.
Several tasks may write the same log: their groups follow each other.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import BinaryType, BooleanType, DataType, LongType, StringType, StructField, StructType

from dlspark.core.runtime import Runtime
from dlspark.spark.connection import defaults_among, resolve_uri, session_defaults
from dlspark.spark.errors import OptionError, SchemaError
from dlspark.spark.options.column_choice import ColumnChoice
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.columns import SinkColumns, columns_of, routing_of
from dlspark.spark.sink.messages import JobId
from dlspark.spark.sink.row_cutting import FramePlan, known_logs, wanted_columns
from dlspark.spark.worker_daemon import without_traceback
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.sinks import job_sink
from metadata.foundation.errors import CallerError, DistributedLogError
from storage_node.edge import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import Row

    from dlspark.tables.declaration import Declaration
    from dlspark.tables.types import Type

GROUP_ROWS = 10_000
GROUP_BYTES = 8 * 1024 * 1024
GROUP_MS = 1_000
_NEVER_HERE = ("failOnDataLoss", "commitMode", "appendMaxBytes", "appendIdleRelease", "proxy")
_ARROW_TYPES = {"transaction_id": pa.int64(), "log": pa.string()}


@without_traceback
class ForeachLogWriter:
    """Write rows to logs from a query that the exactly-once sink cannot take, at least once:

        frame.writeStream.foreach(ForeachLogWriter("flights", uri="distributedlog://...")).start()

    Rows have the columns of the sink: `value`, and perhaps `transaction_id` and `log`; or the columns that their log
    declares (docs/spark.md, "Writing typed frames"). They are published in groups.
    Each group makes one segment a log, so small ones are dear. Rows with a `transaction_id` must not lie below their
    log's highest: that takes one task a log. Without the column they carry the time of their group, and any number of
    tasks may write a log.

    Args:
        log: the log that all rows go to; None: a column `log` or the options say which.
        group_rows: a group is published when it has so many rows,
        group_bytes: or so many bytes,
        group_ms: or so many milliseconds after its first row; and when the task ends.
        options: the options of the sink (docs/settings/spark.md), such as `uri`, `numLogs` or `partitionBy`.

    Raises:
        OptionError: when it is made, for an option that is unknown, malformed or without a meaning here.
        SchemaError: in a task, for rows that the sink does not take.
        BatchRefusedError: in a task (or a leaf of it); nothing of the group is visible.
        LogBusyError: in a task; another writer holds a log, and nothing of the group is visible.
        PublishUnknownError: in a task; the group is visible as a whole or not at all.

    After an error in a task Spark runs the task again.
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
        _check_limits(group_rows=(group_rows, 1), group_bytes=(group_bytes, 1), group_ms=(group_ms, 0))
        given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
        for name in _NEVER_HERE:
            if name.lower() in {one.lower() for one in given}:
                raise OptionError(
                    f"Option {name} has no meaning for foreach, which recognises no replay", advice="Remove the option"
                )
        raw = given if log is None else {**given, "log": log}
        checked = Options(raw, Scope.SINK_STREAM, session_defaults(os.environ, _session_confs()))
        self._options = checked.with_uri(resolve_uri(checked))
        if routing_of(self._options) is None and (one_log := checked.one_log()) is not None:
            LogStore.validate_name(one_log)
        self._limits = _Limits(group_rows, group_bytes, min(group_ms / 1000, threading.TIMEOUT_MAX))
        self._task: _Task | None = None

    def open(self, partition_id: int, epoch_id: int) -> bool:
        """Begin a task, for Spark. `epoch_id` is not used: a plan made again may cut an epoch's rows otherwise
        (D14)."""
        self._task = _Task(self._options, self._limits, partition_id)
        return True

    def process(self, row: Row) -> None:
        """Take a row; may publish the group that it completes. Raises also what publishing a group before raised."""
        if self._task is None:
            raise CallerError("process() was called before open()", advice="Hand the writer to writeStream.foreach")
        self._task.add(row)

    def close(self, error: Exception | None) -> None:
        """End the task: publish what is left; after an error drop it, for Spark runs the task again."""
        task, self._task = self._task, None
        if task is not None:
            task.end(drop=error is not None)


def _check_limits(**given: tuple[int, int]) -> None:
    for name, (value, least) in given.items():
        if type(value) is not int or value < least:
            raise OptionError(f"{name}={value!r} cannot be", advice=f"Give a whole number from {least} on")


@dataclass(frozen=True, slots=True)
class _Limits:
    """When a group is published."""

    rows: int
    size: int
    """Bytes."""
    age_s: float


class _Task:
    """The rows that one task has gathered. Its thread publishes them, or a timer does where no more rows come.

    Real-Time Mode holds a task open for minutes, between rows too.
    """

    def __init__(self, options: Options, limits: _Limits, partition: int) -> None:
        self._options = options
        self._limits = limits
        self._partition = partition
        self._lock = threading.Lock()
        self._rows: list[Row] = []
        self._size = 0
        self._timer: threading.Timer | None = None
        self._failure: BaseException | None = None
        """The error of a publication, in either thread. The task raises it at each later call: its rows are lost."""

    def add(self, row: Row) -> None:
        with self._lock:
            self._raise_failure()
            self._rows.append(row)
            self._size += sum(len(field) for field in row if isinstance(field, str | bytes | bytearray))
            limits = self._limits
            if len(self._rows) >= limits.rows or self._size >= limits.size or not limits.age_s:
                self._publish()
            elif self._timer is None:
                self._timer = threading.Timer(limits.age_s, self._publish_late)
                self._timer.daemon = True
                self._timer.start()

    def end(self, *, drop: bool) -> None:
        with self._lock:
            if drop:
                self._clear()
                return
            self._raise_failure()
            if self._rows:
                self._publish()

    def _publish_late(self) -> None:
        """Publish the group that the timer was set for (in the timer's thread)."""
        with self._lock:
            if self._timer is not threading.current_thread():
                return  # the group was published while this thread waited for the lock: what is there is a later one's
            with contextlib.suppress(BaseException):  # kept as the failure
                self._publish()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._rows, self._size = [], 0

    def _publish(self) -> None:
        from dlspark.spark.sink.driver import abort_jobs, commit_batch
        from dlspark.spark.sink.segments.task import run_task

        # A sink of its own for each group: it makes the group whole or absent, and recognises no replay.
        attempt = uuid.uuid4().hex
        job = JobId(job_sink(attempt), 0, attempt)
        try:
            columns, batch = arrow_of(self._rows, self._options, self._find)
            message = run_task(self._options, columns, job, self._partition, SystemClock().now_ms(), iter([batch]))
            commit_batch(self._options, [message], job.batch)
        except BaseException as error:
            # Kept, because the timer's thread has no caller: the rows are lost, and Spark must run the task again.
            self._failure = error
            with contextlib.suppress(DistributedLogError):  # a later sweep finds it as well
                abort_jobs(self._options, [job])  # what was published after all has no listing that this could take
            raise
        finally:
            self._clear()

    def _find(self, logs: Sequence[str]) -> Mapping[str, Declaration | None]:
        from dlspark.spark.sink.session import open_session

        async def find() -> Mapping[str, Declaration | None]:
            return await (await open_session(self._options)).declared.find(logs)

        return Runtime.shared().run(find())


FindColumns = Callable[[Sequence[str]], Mapping[str, "Declaration | None"]]


def arrow_of(rows: Sequence[Row], options: Options, find: FindColumns) -> tuple[SinkColumns, pa.RecordBatch]:
    """Return the rows as Arrow, and where the sink's columns are in them. `find` says what logs declare.

    Raises SchemaError.
    """
    names = list(getattr(rows[0], "__fields__", ()))
    if not names or any(list(row.__fields__) != names for row in rows):
        raise SchemaError(
            f"foreach gave a row without the columns of the others: {rows[0]!r}",
            advice="Hand over rows of a data frame",
        )
    declared = _declared(rows, names, options, find)
    types = _declared_types(declared)
    arrays = [
        _array(name, [row[index] for row in rows], types.get(name.casefold())) for index, name in enumerate(names)
    ]
    fields = [StructField(name, _spark_type(array.type)) for name, array in zip(names, arrays, strict=True)]
    batch = pa.record_batch(arrays, names=names)
    if not declared:
        return columns_of(StructType(fields), options.one_log(), routing_of(options)), batch
    frame = FramePlan(options, StructType(fields))
    return frame.decide({log: declared.get(log) for log in frame.logs}), batch


def _declared(rows: Sequence[Row], names: Sequence[str], options: Options, find: FindColumns) -> dict[str, Declaration]:
    """Return what the logs of rows declare, where the rows have their columns; empty: they have bytes."""
    wanted, lower = wanted_columns(options), [name.lower() for name in names]
    logs = known_logs(options)
    has_bytes = "value" in lower and wanted is not ColumnChoice.TYPED
    if wanted is ColumnChoice.RAW or (has_bytes and not logs):
        return {}
    if not logs and "log" in lower:
        at = lower.index("log")
        logs = tuple(sorted({row[at] for row in rows if isinstance(row[at], str)}))
    found = {log: one for log, one in find(logs).items() if one is not None}
    if has_bytes and not any(one.current.column("value") for one in found.values()):
        return {}
    return found


def _declared_types(declared: Mapping[str, Declaration]) -> dict[str, Type]:
    """Return the types of columns by their names, as all logs declare them. Raises SchemaError where they differ."""
    types: dict[str, Type] = {}
    for log, declaration in declared.items():
        for one in declaration.current.fields:
            if str(types.setdefault(one.name.casefold(), one.type)) != str(one.type):
                raise SchemaError(
                    f"Column {one.name} has another type in log {log} than in others that rows of one group name",
                    log=log,
                    advice="Write each log with a query of its own",
                )
    return types


def _array(name: str, values: list[object], declared: Type | None = None) -> pa.Array:
    if declared is not None:
        return _declared_array(name, values, declared)
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


def _declared_array(name: str, values: list[object], type_: Type) -> pa.Array:
    from dlspark.tables.arrow_types import arrow_type

    try:
        return pa.array([_as_declared(value, type_) for value in values], arrow_type(type_))
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as error:
        raise SchemaError(
            f"Column {name} is {type_} in the log's schema, and a value of the rows does not fit: {error}",
            advice="Convert it first",
        ) from error


def _as_declared(value: object, type_: Type) -> object:
    """Return a value of Spark's as Arrow takes it. Spark gives points in time without a zone: they are local times."""
    from dlspark.tables.types import TIMESTAMP, ListOf, MapOf, Struct

    if value is None:
        return None
    if type_ == TIMESTAMP and isinstance(value, datetime):
        return value.astimezone(timezone.utc)
    if isinstance(type_, Struct) and isinstance(value, tuple | dict):
        given = value if isinstance(value, dict) else dict(zip(value.__fields__, value, strict=True))  # type: ignore[attr-defined]
        by_name = {str(name).casefold(): part for name, part in given.items()}
        unknown = by_name.keys() - {one.name.casefold() for one in type_.fields}
        if unknown:
            raise TypeError(f"there is no field {min(unknown)}")
        return {one.name: _as_declared(by_name.get(one.name.casefold()), one.type) for one in type_.fields}
    if isinstance(type_, ListOf) and isinstance(value, list | tuple):
        return [_as_declared(one, type_.element.type) for one in value]
    if isinstance(type_, MapOf) and isinstance(value, dict):
        return [(_as_declared(key, type_.key.type), _as_declared(one, type_.value.type)) for key, one in value.items()]
    return bytes(value) if isinstance(value, bytearray) else value


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
    """Return the confs of this process's session, which `foreach`, unlike a data source, can see when it is set up."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    return defaults_among(session.conf.getAll) if session is not None else {}
