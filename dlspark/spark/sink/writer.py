"""Writing with Spark, exactly once: what Spark calls, on the planner, in the tasks and at the commit.

| where | what happens |
|---|---|
| planner, once a job | options and columns are checked; attempt id and timestamp are chosen and travel to the tasks |
| each task | rows are staged in ledgers that no log refers to (`segments.task`), a small message goes back |
| driver's commit | one conditional metadata write publishes all or nothing (`segments.commit`), left-overs are swept |
| the same, small batches | rows travel in the messages, and are appended to an open segment (`append.appender`) |
| driver's abort | what the job has listed is swept; what a publication took in time stays published |

Spark makes a new writer for each micro-batch on the planner and another, with no state of the first, for the commit:
what the commit needs travels in the messages. A batch write's own object travels to tasks and commit alike.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from dlspark.spark.errors import OptionError
from dlspark.spark.options.query_options import Options
from dlspark.spark.sink.columns import SinkColumns
from dlspark.spark.sink.commit_modes import commit_way
from dlspark.spark.sink.messages import JobId, SinkMessage
from dlspark.spark.sink.row_cutting import FramePlan
from dlspark.spark.worker_daemon import without_traceback
from metadata.distributedlog.sinks import JOB_PREFIX, MAX_APPLICATION_CHARS, application_sink, job_sink, query_sink
from metadata.foundation.errors import CallerError, InvariantViolation, check
from metadata.foundation.settings import shown
from storage_node.edge import SystemClock

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql.types import StructType

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
# Set where the connector's jar uses a plan for more than one batch (SmallWrite.java): what distinguishes this one.
_ATTEMPT = "dlspark.sink.attempt"
_STAMP = "dlspark.sink.stamp"


def batch_writer(options: Options, schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Return the writer of `df.write`. Raises OptionError, SchemaError, or what keeps the namespace from being
    written."""
    if overwrite:
        raise OptionError(
            'mode("overwrite") cannot be done: a log only grows',
            advice='Use mode("append"), or write to another log',
        )
    attempt = uuid.uuid4().hex
    application, version = options.text("txnAppId"), options.integer("txnVersion")
    if (application is None) != (version is None):
        raise OptionError(
            "txnAppId and txnVersion belong together: the application that writes, and the number of this write",
            advice="Give both, with a number that rises from write to write and stays the same when one is repeated",
        )
    if application is None or version is None:
        return BatchWriter(options, schema, job_sink(attempt), 0, attempt)
    return BatchWriter(options, schema, _sink_of(application), version, attempt)


def _sink_of(application: str) -> str:
    try:
        return application_sink(application)
    except CallerError:
        raise OptionError(
            f"Option txnAppId is too long for the name of a znode: {shown(application)}; nothing was written",
            advice=f"Use a name of at most {MAX_APPLICATION_CHARS} letters and digits (others count as they are "
            "percent-encoded), the same for each write of the application",
        ) from None


def stream_writer(options: Options, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """Return the writer of one micro-batch of `df.writeStream`. Raises as `batch_writer`."""
    if overwrite:
        raise OptionError(
            'outputMode("complete") cannot be done: a log only grows',
            advice='Use outputMode("append"), for example with a watermark, or foreachBatch',
        )
    return StreamWriter(options, schema, uuid.uuid4().hex)


@without_traceback
class BatchWriter(DataSourceArrowWriter):
    """One batch write. Picklable: the tasks and the commit get copies."""

    def __init__(self, options: Options, schema: StructType, sink_id: str, batch: int, attempt: str) -> None:
        self._options = options
        frame = FramePlan(options, schema)
        self._known_logs = frame.logs
        self._job = JobId(sink_id, batch, attempt)
        commit_way(options, numbered=not sink_id.startswith(JOB_PREFIX))
        # Chosen here, once a job: every task, and a task that runs again, stamps rows with the same time.
        self._stamp_ms = SystemClock().now_ms()
        self._columns = _planned(options, frame)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task, in the task; nothing of them is visible yet."""
        from dlspark.spark.sink.segments.task import run_task

        partition = _task_context().partitionId()
        return run_task(self._options, _in_task(self._columns), self._job, partition, self._stamp_ms, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks have staged, all or nothing (on the driver)."""
        from dlspark.spark.sink.driver import commit_batch

        commit_batch(self._options, _sink_messages(messages), self._job.batch, self._known_logs)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Sweep what the tasks have staged (on the driver)."""
        from dlspark.spark.sink.driver import abort_jobs

        abort_jobs(self._options, {self._job, *(message.job for message in _sink_messages(messages))})


@without_traceback
class StreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch; the sink is the query, whose id only the tasks can see."""

    def __init__(self, options: Options, schema: StructType, attempt: str) -> None:
        self._options = options
        frame = FramePlan(options, schema)
        self._known_logs = frame.logs
        self._attempt = attempt
        commit_way(options, numbered=True)
        self._stamp_ms = SystemClock().now_ms()
        self._columns = _planned(options, frame)
        self._small = _small(options, self._columns, len(schema))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task, in the task; nothing of them is visible yet."""
        from dlspark.spark.sink.segments.task import run_task

        context = _task_context()
        # By these a replay is recognised (I9): the query's id is that of its checkpoint, and stays over restarts.
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            raise InvariantViolation(
                f"Spark did not give the task its query and batch ({_QUERY_ID}={query}, {_BATCH_ID}={batch})",
                advice="Without them a replay could not be recognised; use a Spark version from 4.2 on",
            )
        attempt, stamp = context.getLocalProperty(_ATTEMPT), context.getLocalProperty(_STAMP)
        job = JobId(query_sink(query), int(batch), self._attempt if attempt is None else attempt)
        stamp_ms = self._stamp_ms if stamp is None else int(stamp)
        return run_task(self._options, _in_task(self._columns), job, context.partitionId(), stamp_ms, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the batch once, however often Spark asks (on the driver)."""
        from dlspark.spark.sink.driver import commit_batch

        commit_batch(self._options, _sink_messages(messages), batchId, self._known_logs)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Sweep what was staged by the tasks whose messages arrived (on the driver)."""
        # The query's id comes only with a message. Without one the left-overs wait for the next commit.
        from dlspark.spark.sink.driver import abort_jobs

        abort_jobs(self._options, {message.job for message in _sink_messages(messages)})


def _planned(options: Options, frame: FramePlan) -> SinkColumns | None:
    """Return where the columns are, and raise what would keep every task from writing (on the planner).

    The commit has no use for either, and asks nothing: None for a frame that may be typed.
    """
    from dlspark.spark.sink.driver import on_planner, plan_columns

    return plan_columns(options, frame) if on_planner() else frame.raw


def _small(options: Options, columns: SinkColumns | None, width: int) -> str:
    """Return what the connector's jar is told of a query's small batches (on the planner; empty elsewhere)."""
    from dlspark.spark.sink.driver import on_planner

    if columns is None or not on_planner():
        return ""
    from dlspark.spark.sink.small_batches import mark  # no task needs it

    return mark(options, columns, width)


def _in_task(columns: SinkColumns | None) -> SinkColumns:
    if columns is None:
        raise InvariantViolation("a sink's write ran with a writer that no planner has made")
    return columns


def _task_context() -> TaskContext:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise InvariantViolation("a sink's write ran outside a Spark task")
    return context


def _sink_messages(messages: Sequence[WriterCommitMessage | None]) -> list[SinkMessage]:
    """Return the messages of tasks that succeeded."""
    found: list[SinkMessage] = []
    for message in messages:
        check(message is None or isinstance(message, SinkMessage), f"a foreign commit message: {message!r}")
        if isinstance(message, SinkMessage):
            found.append(message)
    return found
