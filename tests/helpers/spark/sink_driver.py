"""A Spark driver without Spark: the sink's own task and commit code, run as Spark runs it, over a checkpoint of files.

It is started as a process that may be killed at any point; started again, it goes on from its checkpoint as Spark does:
a batch without an entry in `commits` is run again, by other tasks than the first time.
"""

from __future__ import annotations

import pickle
import random
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from dlspark.core.runtime import Runtime
from dlspark.core.sync.namespace import Namespace
from dlspark.errors import LogEmptyError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.columns import SinkColumns, columns_of
from dlspark.spark.sink.driver import commit_batch, plan_columns
from dlspark.spark.sink.messages import JobId, SinkMessage
from dlspark.spark.sink.row_cutting import FramePlan
from dlspark.spark.sink.segments.task import run_task
from dlspark.spark.sink.session import open_session
from dlspark.tables.declaration import Declaration
from helpers.spark.typed_frames import RAW, Frames, declare, own_columns_of
from storage_node.edge import SystemClock

TASK_TRIES = 3
BATCH_ROWS = 64


@dataclass(frozen=True)
class Plan:
    """A query: what it writes is a function of the plan alone, how its rows are cut into tasks is not.

    `routed`: the logs are numbered from 0, and the sink chooses each row's by hash.
    """

    uri: str
    query_id: str
    logs: tuple[str, ...]
    batches: int
    rows: int
    checkpoint: str
    stamped: bool
    routed: bool = False
    empty: float = 0.1
    mode: str = "auto"
    """Option commitMode; `mixed`: another one for each attempt."""
    outage: str = "2m"
    """Option outageTimeout."""
    proxy: str = ""
    """Option proxy; empty: it is not given."""
    kind: str = RAW
    """RAW, or the format of the records of typed frames, whose ids come from a column unless `stamped`."""

    def batch_rows(self, batch: int) -> list[tuple[int, str, bytes]]:
        """Return (transaction id, log, value) of each row, in order."""
        rng = random.Random(f"{self.query_id}/{batch}")
        count = 0 if rng.random() < self.empty else self.rows
        rows = [
            (batch * self.rows + n, rng.choice(self.logs), f"{batch}:{n}:".encode() + rng.randbytes(rng.randrange(400)))
            for n in range(count)
        ]
        if self.routed:
            return [(txid, self.logs[zlib.crc32(value) % len(self.logs)], value) for txid, _, value in rows]
        return rows

    @property
    def last_with_rows(self) -> int:
        """Return the last batch that brings any rows."""
        return max((batch for batch in range(self.batches) if self.batch_rows(batch)), default=-1)

    @property
    def frames(self) -> Frames:
        """Return the frames that it writes."""
        return Frames(self.kind, timed=not self.stamped)

    def declare(self, *others: str) -> None:
        """Have its logs, and others, declare their columns, where it writes typed frames."""
        if self.kind != RAW:
            declare_logs(self.uri, self.frames.declaration, *self.logs, *others)

    def read(self, log: str) -> tuple[list[int], list[bytes]]:
        """Return the transaction ids of a log's records, and the values that they hold."""
        txids, payloads = read_values(self.uri, log)
        return txids, self.frames.read(payloads, txids)

    def expected(self, log: str) -> list[bytes]:
        """Return what `log` must hold after all batches, in order."""
        return [value for batch in range(self.batches) for _, name, value in self.batch_rows(batch) if name == log]


def declare_logs(uri: str, declaration: Declaration, *logs: str) -> None:
    """Have logs, which are made where they are missing, declare this, unless they declare something."""

    async def make() -> None:
        session = await open_session(Options({"uri": uri}, Scope.SINK_STREAM))
        for log in logs:
            await declare(session.namespace.logs_store, log, declaration)

    Runtime.shared().run(make())


def run_driver(plan: Plan, seed: int) -> None:
    """Run every batch that the checkpoint does not know as committed."""
    rng = random.Random(seed)
    commits = Path(plan.checkpoint) / "commits"
    commits.mkdir(parents=True, exist_ok=True)
    for batch in range(plan.batches):
        if not (commits / str(batch)).exists():
            run_batch(plan, batch, rng)
            (commits / str(batch)).write_text("v1\n{}")


def run_batch(plan: Plan, batch: int, rng: random.Random) -> None:
    mode = rng.choice(["append", "segments", "auto"]) if plan.mode == "mixed" else plan.mode
    given = {"uri": plan.uri, "commitMode": mode, "appendIdleRelease": "5s", "outageTimeout": plan.outage}
    if plan.proxy:
        given["proxy"] = plan.proxy
    one_log = plan.kind != RAW and len(plan.logs) == 1
    if one_log:
        given["log"] = plan.logs[0]
    options = Options(given, Scope.SINK_STREAM)
    columns = columns_in(plan, options)
    job = JobId(plan.query_id, batch, uuid.uuid4().hex)
    stamp_ms = SystemClock().now_ms()
    rows = plan.batch_rows(batch)
    cuts = sorted(rng.randrange(len(rows) + 1) for _ in range(rng.randrange(4)))
    messages = []
    for partition, (begin, end) in enumerate(zip([0, *cuts], [*cuts, len(rows)], strict=True)):
        messages.append(run_with_retries(plan, options, columns, job, partition, stamp_ms, rows[begin:end]))
    commit_batch(options, pickle.loads(pickle.dumps(messages)), batch)


def columns_in(plan: Plan, options: Options) -> SinkColumns:
    """Return where the columns are in a plan's rows; a log that declares its columns is asked for them."""
    if plan.kind == RAW:
        fields = [StructField("value", BinaryType()), StructField("log", StringType())]
        if not plan.stamped:
            fields.append(StructField("transaction_id", LongType()))
        return columns_of(StructType(fields), None)
    fields = [StructField("body", BinaryType()), StructField("length", IntegerType())]
    if not plan.stamped:
        fields.append(StructField("at", LongType()))
    if not options.given("log"):
        fields.append(StructField("log", StringType()))
    return plan_columns(options, FramePlan(options, StructType(fields)))


def run_with_retries(
    plan: Plan,
    options: Options,
    columns: SinkColumns,
    job: JobId,
    partition: int,
    stamp_ms: int,
    rows: list[tuple[int, str, bytes]],
) -> SinkMessage:
    """Run one task as Spark does: a failed try is repeated from the start."""
    columns = pickle.loads(pickle.dumps(columns))
    for left in reversed(range(TASK_TRIES)):
        try:
            return run_task(options, columns, job, partition, stamp_ms, plan_batches(plan, columns, rows))
        except RuntimeError:
            if left == 0:
                raise
    raise AssertionError("unreachable")


def plan_batches(plan: Plan, columns: SinkColumns, rows: list[tuple[int, str, bytes]]) -> Iterator[pa.RecordBatch]:
    if plan.kind == RAW:
        yield from arrow_batches(rows, plan.stamped)
        return
    for begin in range(0, len(rows), BATCH_ROWS):
        part = rows[begin : begin + BATCH_ROWS]
        times = None if plan.stamped else [txid for txid, _, _ in part]
        own = own_columns_of([value for _, _, value in part], times)
        if columns.log is not None:
            own["log"] = pa.array([log for _, log, _ in part], pa.string())
        yield pa.record_batch(own)


def arrow_batches(
    rows: list[tuple[int, str, bytes]], stamped: bool, size: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    for begin in range(0, len(rows), size):
        part = rows[begin : begin + size]
        columns = {
            "value": pa.array([value for _, _, value in part], pa.binary()),
            "log": pa.array([log for _, log, _ in part], pa.string()),
        }
        if not stamped:
            columns["transaction_id"] = pa.array([txid for txid, _, _ in part], pa.int64())
        yield pa.record_batch(columns)


def read_values(uri: str, log: str) -> tuple[list[int], list[bytes]]:
    """Return transaction ids and payloads of a whole log, as far as it was not truncated (at a segment's beginning).

    Records of a segment that is being written included: all that were acknowledged before.
    """
    with Namespace.open(uri) as namespace:
        if not namespace.log_exists(log):
            return [], []
        with namespace.open_log(log) as opened:
            try:
                end = opened.last_dlsn()
            except LogEmptyError:
                return [], []
            txids: list[int] = []
            values: list[bytes] = []
            with opened.open_reader() as reader:
                for record in reader:
                    txids.append(record.txid)
                    values.append(bytes(record.payload))
                    if record.dlsn >= end:
                        break
            return txids, values
