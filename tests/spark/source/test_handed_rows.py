"""Which batches have their rows travel with the plan, and what Spark's runner sends of them; no cluster."""

from __future__ import annotations

import importlib
import io
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import ModuleType

import pyarrow as pa
import pytest
from pyspark.serializers import read_int
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructField, StructType

from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.source import handed_rows
from dlspark.spark.source.frame_columns import FrameColumns, PackedDeclaration
from dlspark.spark.source.handed_rows import MAX_BYTES, MAX_ROWS, MAX_STORED_BYTES, MOST_WAIT_MS, few_rows, hand_over
from dlspark.spark.source.offsets import StoredOffset
from dlspark.spark.source.partition_reader import LogPartition
from dlspark.spark.source.planning import SegmentSpan
from dlspark.spark.source.schema import SCHEMA
from dlspark.spark.source.selection import SourceQuery
from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from storage_node.client.reader import LedgerLocation
from storage_node.errors import BookieUnreachableError
from storage_node.settings.client import ClientSettings

WORKER = "pyspark.worker_util"
"""By this module a process is known to be a worker of Spark's."""
LEDGER = LedgerLocation(7, LedgerMetadata(3, 3, 2, (Ensemble(0, ("a", "b", "c")),)), {})
SPAN = SegmentSpan("flights", 1, LEDGER, 0, 0, 0, None, 0, True, 1000)
SETTINGS = ClientSettings()
PLAN = [LogPartition((SPAN,), SETTINGS)]
VALUES = StructType([StructField("value", SCHEMA["value"].dataType)])


def frame(schema: StructType = VALUES) -> FrameColumns:
    options = Options({"uri": "distributedlog://h:1/n", "log": "flights"}, Scope.SOURCE_STREAM)
    return FrameColumns.of(SourceQuery.of(options), schema)


def rows(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


class Stored:
    """Stands in for storage nodes: gives these batches to whoever reads a partition, or fails."""

    def __init__(self, *batches: pa.RecordBatch) -> None:
        self.batches = list(batches)
        self.error: Exception | None = None
        self.outage_waits: list[int] = []
        self.waits: list[int] = []

    def __call__(self, partition: InputPartition, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition)
        settings = partition.client_settings
        self.outage_waits.append(settings.outage_wait_ms)
        self.waits += [settings.read_operation_timeout_ms, settings.connect_timeout_ms]
        yield from self.batches
        if self.error is not None:
            raise self.error


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    made = Stored(rows(b"one", b"two"))
    monkeypatch.setattr(handed_rows, "read_partition", made)
    monkeypatch.setattr(handed_rows, "_left_until", -math.inf)
    return made


def test_a_small_plan_is_read_at_once(stored: Stored) -> None:
    assert few_rows(PLAN, frame()) == stored.batches
    assert stored.outage_waits == [0], "what is not there now is waited for by tasks, and not twice"


def test_other_plans_are_left_to_their_tasks(stored: Stored) -> None:
    many = replace(SPAN, last_entry=MAX_STORED_BYTES // SPAN.entry_bytes)
    declared = PackedDeclaration(b"", 1)
    described = StructType([StructField("value", SCHEMA["value"].dataType, metadata={"comment": "bytes"})])
    assert few_rows([], frame()) is None
    assert few_rows(PLAN * 2, frame()) is None
    assert few_rows([LogPartition((many,), SETTINGS)], frame()) is None
    assert few_rows([LogPartition((SPAN,), SETTINGS, ["proxy:1"])], frame()) is None
    assert few_rows([LogPartition((SPAN,), SETTINGS, declared=declared)], frame()) is None
    assert few_rows(PLAN, frame(StructType([]))) is None
    assert few_rows(PLAN, frame(described)) is None
    assert stored.outage_waits == [], "none of them was read"


def test_rows_that_turn_out_to_be_many_or_none_are_left_to_tasks(stored: Stored) -> None:
    stored.batches = [rows(*[b"x"] * MAX_ROWS)]
    assert few_rows(PLAN, frame()) is not None
    stored.batches.append(rows(b"x"))
    assert few_rows(PLAN, frame()) is None
    stored.batches = [rows(b"x" * MAX_BYTES)]
    assert few_rows(PLAN, frame()) is None
    stored.batches = []
    assert few_rows(PLAN, frame()) is None


def test_rows_that_cannot_be_had_are_left_to_tasks(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (BookieUnreachableError("no node answers"), OSError("a socket"), RuntimeError("a bug")):
        monkeypatch.setattr(handed_rows, "_left_until", -math.inf)
        stored.error, stored.waits = error, []
        assert few_rows(PLAN, frame()) is None
        assert max(stored.waits) <= MOST_WAIT_MS
        stored.error = None
        assert few_rows(PLAN, frame()) is None, "for a while tasks read without a try here"
    monkeypatch.setattr(handed_rows, "_left_until", time.monotonic())
    assert few_rows(PLAN, frame()) is not None


class Reader:
    """A reader with a plan of one partition and, if there are any, its rows."""

    def __init__(self, *batches: pa.RecordBatch) -> None:
        self.batches = batches

    def partitions(self, start: StoredOffset, end: StoredOffset) -> Sequence[InputPartition]:
        return [InputPartition("first")]

    def rows_at_hand(self) -> Iterator[pa.RecordBatch] | None:
        return iter(self.batches) if self.batches else None

    def reportLatestOffset(self) -> StoredOffset:
        return {"v": 1}


@pytest.fixture(name="runner")
def _runner() -> Iterator[ModuleType]:
    """Spark's runner, which makes no worker of this process for longer than a test."""
    known = WORKER in sys.modules
    yield importlib.import_module("pyspark.sql.streaming.python_streaming_source_runner")
    if not known:
        sys.modules.pop(WORKER, None)


def asked_for_a_plan(runner: ModuleType, reader: Reader) -> tuple[int, int, list[bytes]]:
    """Ask as the JVM does: the number of partitions, what is said of rows, and the values of the rows."""
    offset = json.dumps({"v": 1}).encode()
    question = b"".join(len(text).to_bytes(4, "big") + text for text in (offset, offset))
    answer = io.BytesIO()
    runner.partitions_func(reader, None, VALUES, 1_000, io.BytesIO(question), answer)
    answer.seek(0)
    count = read_int(answer)
    for _ in range(count):
        answer.read(read_int(answer))
    status = read_int(answer)
    if status != runner.NON_EMPTY_PYARROW_RECORD_BATCHES:
        return count, status, []
    read_int(answer)  # that Arrow's stream begins
    return count, status, pa.ipc.open_stream(answer).read_all().column("value").to_pylist()


def test_sparks_runner_takes_rows_from_our_readers_and_else_asks_them_as_before(
    monkeypatch: pytest.MonkeyPatch, runner: ModuleType
) -> None:
    monkeypatch.setitem(sys.modules, "__main__", runner)
    monkeypatch.setattr(runner, "partitions_func", runner.partitions_func)
    hand_over(Reader)
    hand_over(Reader)
    few = Reader(rows(b"one"), rows(b"two"))
    assert asked_for_a_plan(runner, few) == (1, runner.NON_EMPTY_PYARROW_RECORD_BATCHES, [b"one", b"two"])
    assert asked_for_a_plan(runner, Reader()) == (1, runner.PREFETCHED_RECORDS_NOT_FOUND, [])
    said = io.BytesIO()
    runner.report_latest_offset_func(few, said)  # type: ignore[arg-type]
    assert json.loads(said.getvalue()[4:]) == {"v": 1}, "a wrapped reader reports nothing"


def test_no_other_process_is_changed(runner: ModuleType) -> None:
    before = runner.partitions_func
    hand_over(Reader)
    assert runner.partitions_func is before
