"""A plan that Spark keeps and runs again, and the tasks that bring it up to date.

Without the connector's jar Spark asks a Python source for the plan of a frame once, and runs that in every action and
in every micro-batch of a stream that joins the frame. With the jar each query has a plan of its own, but `collect()` of
the very same frame object runs that query's plan again. Nothing of the connector runs on the driver then. So the tasks
of the plan's first and last partition look at the logs themselves, with a ZooKeeper session each:

* Is all that was planned still there? If a log was truncated, deleted or made again since, the task fails before it
  yields a row. The first partition is one that every action reads.
* What was appended since, and which logs are new under a pattern? The last partition reads that behind its own
  records.

All tasks of one execution of Spark's, those of other scans in it and repeated ones as well, see the logs as the first
of them did: they agree on that in the metadata store (`metadata.distributedlog.execution_notes`).

Nobody looks where the end of each log was named and had been reached when the plan was made: by positions in
`endingOffsets`, or by a time or transaction id that the log had passed. Such a frame is the same records for ever. Nor
does a task of the execution in which the jar made the plan (`KeptPlan.planned_in`). The jar names that one only where
the query does nothing but filter and select: of what lies behind an exchange Spark keeps the outputs, and rows that are
new on one side of a join would meet old ones on the other (PlainRead.java).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

from pyspark import SparkFiles, TaskContext

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.runtime import Runtime
from dlspark.spark.connection import Connect, driver_process
from dlspark.spark.errors import OutdatedPlanError
from dlspark.spark.source.filters import Bounds
from dlspark.spark.source.frame_columns import FrameColumns, PackedDeclaration
from dlspark.spark.source.offsets import Offsets
from dlspark.spark.source.partition_reader import LogPartition
from dlspark.spark.source.planning import Partition, SegmentSpan
from dlspark.spark.source.query_snapshot import QuerySnapshot
from dlspark.spark.source.selection import PerLog, SourceQuery
from dlspark.spark.source.task_tokens import TaskToken
from dlspark.spark.worker_daemon import in_worker
from metadata.foundation.errors import MetadataUnavailableError, NoAuthError
from storage_node.settings.client import ClientSettings

_EXECUTION = "spark.sql.execution.id"


@dataclass(frozen=True)
class KeptPlan:
    """How a plan was made: for which query, from where to where in its logs, and of what rows there.

    `first` is the first record that it reads of each log. `columns` are those of the frame (None: columns of records),
    of which a log may declare other ones since.
    `planned_in` is the execution that runs it as it is, if there is one. `driver` is the Spark context.
    """

    query: SourceQuery
    start: Offsets
    end: Offsets
    bounds: Bounds = field(default_factory=Bounds)
    planned_in: int | None = None
    columns: FrameColumns | None = None
    driver: str = field(default_factory=lambda: _context_name())
    first: dict[str, DLSN] = field(default_factory=dict)


def _context_name() -> str:
    """Return what distinguishes the Spark context that plans from all others anywhere.

    A process may have several, one after the other, and each numbers its stages from 0: the folder of a context's
    files, which only its own workers have, tells them apart.
    """
    process, files = driver_process(), SparkFiles.getRootDirectory() if in_worker() else ""
    return uuid.uuid4().hex if process is None else f"{process}-{sha256(files.encode()).hexdigest()[:12]}"


class KeptPartition(LogPartition):
    """A partition whose task looks at the logs; of the last one it also reads what was appended since."""

    def __init__(
        self,
        spans: Partition,
        client_settings: ClientSettings,
        proxies: Sequence[str],
        seen: str,
        plan: KeptPlan,
        last: bool,
        declared: PackedDeclaration | None = None,
        token: TaskToken | None = None,
    ) -> None:
        super().__init__(spans, client_settings, proxies, seen, declared, token)
        self.plan = plan
        self.last = last


def kept_partitions(plan: KeptPlan, snapshot: QuerySnapshot, partitions: Sequence[LogPartition]) -> list[LogPartition]:
    """Return the partitions of a plan, one at least, which saw `snapshot`: as tasks are to have them."""
    made = list(partitions)
    plan = replace(plan, first=_first_records(span for one in partitions for span in one.spans))
    for at in {0, len(made) - 1} if not _settled(plan.query, snapshot, plan.end) else ():
        one = made[at]
        made[at] = KeptPartition(
            one.spans, one.client_settings, one.proxies, one.seen, plan, at == len(made) - 1, one.declared, one.token
        )
    return made


def _first_records(spans: Iterable[SegmentSpan]) -> dict[str, DLSN]:
    found: dict[str, DLSN] = {}
    for span in spans:
        here = DLSN(span.lssn, span.first_entry, span.first_slot)
        found[span.log] = min(here, found.get(span.log, here))
    return found


def _settled(query: SourceQuery, snapshot: QuerySnapshot, end: Offsets) -> bool:
    """Return whether the records that the query names cannot become more."""
    named = query.end.offsets if isinstance(query.end, PerLog) else {}
    return query.selection.pattern is None and all(
        isinstance(named.get(log), DLSN) or (log in snapshot.logs and position < snapshot.logs[log].end)
        for log, position in end.items()
    )


def later_records(partition: KeptPartition) -> LogPartition | None:
    """Return in a task: what its execution reads beyond the plan; nothing outside of Spark.

    Raises OutdatedPlanError, MetadataUnavailableError, or what looking at the logs raises.
    """
    execution = _execution()
    if execution is None or execution == ("", partition.plan.planned_in):
        return None
    runtime = Runtime("dlspark-kept-plan")
    try:
        return runtime.run(look(partition, *execution))
    finally:
        runtime.close()


def _execution() -> tuple[str, int] | None:
    """Return what distinguishes the running execution from others of the driver: its number, by kind."""
    context = TaskContext.get()
    if context is None:
        return None
    number = context.getLocalProperty(_EXECUTION)
    # `frame.rdd` runs without an execution of SQL: then the tasks of one stage agree.
    return ("", int(number)) if number else ("-stages", context.stageId())


async def look(
    partition: KeptPartition, kind: str, execution: int, connect: Connect | None = None
) -> LogPartition | None:
    """Look at the logs as `execution` sees them; what it reads beyond the plan, for the last partition."""
    from dlspark.spark.source.driver import SourceDriver  # loaded only where a plan is kept

    plan = partition.plan
    driver = SourceDriver(plan.query, connect)
    try:
        await driver.open()
        await driver.agree(plan.driver + kind, execution)
        start, end = await driver.ends()
        others, begins = await driver.other_logs(plan.end), driver.begins()
        begin = {log: _unread(plan, log, start, end, others, begins) for log in {*plan.end, *end}}
        declared = None if plan.columns is None else await driver.declared(plan.columns)
        if not partition.last:
            return None
        spans = [
            replace(span, records=0)
            for group in await driver.plan(Offsets(begin, plan.end.identities), end, plan.bounds)
            for span in group
        ]
        return LogPartition(
            tuple(spans),
            driver.client_settings,
            await driver.read_proxies(),
            declared=None if declared is None else declared.packed,
            token=partition.token,  # a task makes none: only the driver has the key
        )
    except (MetadataUnavailableError, NoAuthError) as error:
        otherwise = (
            "Start the session with dlspark.spark.builder(), whose jar makes a new plan on the driver for each query"
            if plan.planned_in is None
            else 'Collect another frame, `frame.select("*")`, for which the driver makes a new plan'
        )
        raise type(error)(
            f"What was appended since the frame was planned cannot be looked up by its tasks: {error.message}",
            advice=f"{otherwise}; or let executors reach ZooKeeper and write there; or name an end with endingOffsets",
        ) from error
    finally:
        await driver.close()


def _unread(
    plan: KeptPlan, log: str, start: Offsets, end: Offsets, others: Collection[str], begins: Mapping[str, DLSN]
) -> DLSN:
    """Return where a log goes on behind what was planned of it, which must be there still. `others` are new ones of a
    name; `begins` says where logs begin now."""
    planned_from, planned_to = plan.start.get(log), plan.end.get(log)
    if planned_from is None or planned_to is None or planned_from >= planned_to:
        return start.get(log, DLSN.INITIAL)
    if log not in end:
        what = "it does not exist any more"
    elif log in others:
        what = "it was deleted and made again"
    elif start[log] != planned_from or end[log] < planned_to:
        what = f"it is from {start[log]} to {end[log]} now"
    elif log in plan.first and plan.first[log] < begins.get(log, DLSN.INITIAL):
        what = f"it begins at {begins[log]} now"
    else:
        return planned_to
    raise OutdatedPlanError(
        f"A plan that Spark keeps for a frame has the log's records from {planned_from} to {planned_to}, and {what}; "
        "nothing was read",
        advice="Load the frame again; a session of dlspark.spark.builder() plans each query anew",
        log=log,
    )
