"""Streaming reads on a real Spark session, a real ZooKeeper and real storage nodes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from dlspark.core.codec.dlsn import DLSN

if TYPE_CHECKING:
    from helpers.spark.logs import Logs
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.processes]

MS = 1_000_000


class Sink:
    """Collects micro-batches as (batch id, rows) through foreachBatch; a batch that is replayed shows up again."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[tuple[str, int]]]] = []

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = frame.orderBy("log", "segment", "entry", "slot").select("log", "transaction_id").collect()
        self.batches.append((batch, [(row[0], row[1]) for row in rows]))

    @property
    def sizes(self) -> list[int]:
        return [len(rows) for _, rows in self.batches if rows]

    def ids(self, log: str | None = None) -> list[int]:
        return [txid for _, rows in self.batches for name, txid in rows if log in (None, name)]


@pytest.fixture
def start(spark: SparkSession, checkpoint: Path) -> Iterator[Callable[..., StreamingQuery]]:
    """Starts a query into a sink; all are stopped after the test."""
    queries: list[StreamingQuery] = []

    def begin(sink: Sink, *, now: bool = False, place: Path = checkpoint, **options: object) -> StreamingQuery:
        reader = spark.readStream.format("distributedlog")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        writer = reader.load().writeStream.foreachBatch(sink).option("checkpointLocation", str(place))
        trigger = writer.trigger(availableNow=True) if now else writer.trigger(processingTime="0 seconds")
        queries.append(trigger.start())
        return queries[-1]

    yield begin
    for query in queries:
        query.stop()


def until(condition: Callable[[], bool], query: StreamingQuery, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        failed = query.exception()
        if failed is not None:
            raise failed
        assert time.monotonic() < deadline, f"not within {seconds} s; status {query.status}"
        time.sleep(0.02)


def settle(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def offsets(checkpoint: Path) -> dict[int, dict[str, object]]:
    """What Spark stored, by batch."""
    files = [file for file in (checkpoint / "offsets").iterdir() if file.name.isdigit()]
    return {int(file.name): json.loads(file.read_text().splitlines()[2]) for file in sorted(files)}


def test_available_now_reads_all_there_is_and_ends(
    start: Callable[..., StreamingQuery], logs: Logs, checkpoint: Path
) -> None:
    name = logs.create(logs.name())
    logs.write(name, range(MS, MS + 40))
    logs.write(name, range(MS + 40, MS + 65), keep_open=True)
    sink = Sink()
    assert start(sink, now=True, subscribe=name).awaitTermination(180)
    assert sink.ids() == list(range(MS, MS + 65))
    (stored,) = offsets(checkpoint).values()
    assert set(stored) == {"v", "logs", "ledgers", "begin"}
    logs.write(name, range(MS + 65, MS + 70))
    assert start(sink, now=True, subscribe=name).awaitTermination(180)
    assert sink.ids() == list(range(MS, MS + 70))


def test_rate_limits_are_exact_and_reach_the_end(start: Callable[..., StreamingQuery], logs: Logs) -> None:
    name = logs.create(logs.name())
    logs.write(name, range(MS, MS + 40))
    logs.write(name, range(MS + 40, MS + 65), entry_records=4)
    sink = Sink()
    assert start(sink, now=True, subscribe=name, maxOffsetsPerTrigger=9).awaitTermination(180)
    assert sink.sizes == [9] * 7 + [2]
    assert sink.ids() == list(range(MS, MS + 65))


def test_available_now_ends_whatever_is_appended_meanwhile(start: Callable[..., StreamingQuery], logs: Logs) -> None:
    name = logs.create(logs.name())
    logs.write(name, range(MS, MS + 30), keep_open=True)
    ids = iter(range(MS + 30, MS + 10_000))
    sink = Sink()

    class Appending(Sink):
        def __call__(self, frame: DataFrame, batch: int) -> None:
            logs.write(name, [next(ids) for _ in range(10)], keep_open=True)
            sink(frame, batch)

    assert start(Appending(), now=True, subscribe=name, maxOffsetsPerTrigger=10).awaitTermination(180)
    assert sink.ids() == list(range(MS, MS + 30))


def test_three_logs_by_pattern_share_a_trigger_and_a_new_one_is_read_from_its_beginning(
    start: Callable[..., StreamingQuery], logs: Logs
) -> None:
    names = [logs.create(logs.name(f"share-{n}")) for n in range(3)]
    for name, count in zip(names, (60, 6, 1), strict=True):
        logs.write(name, range(MS, MS + count))
    sink = Sink()
    pattern = logs.name("share-[0-9]")
    query = start(sink, subscribePattern=pattern, startingOffsets="earliest", maxOffsetsPerTrigger=20)
    until(lambda: len(sink.ids()) == 67, query)
    assert max(sink.sizes) == 20
    assert all(log in dict(sink.batches[0][1]) for log in names), "no log starves in the first batch"
    late = logs.create(logs.name("share-9"))
    logs.write(late, range(MS, MS + 5))
    until(lambda: len(sink.ids(late)) == 5, query)
    assert sink.ids(late) == list(range(MS, MS + 5))
    for name, count in zip(names, (60, 6, 1), strict=True):
        assert sink.ids(name) == list(range(MS, MS + count))


def test_records_are_seen_as_they_are_written_across_segments_and_control_records_make_no_batch(
    start: Callable[..., StreamingQuery], logs: Logs
) -> None:
    name = logs.create(logs.name())
    sink = Sink()
    query = start(sink, subscribe=name)
    for part in range(6):
        logs.write(name, range(MS + 5 * part, MS + 5 * part + 5), keep_open=part % 2 == 0)
        until(lambda wanted=5 * part + 5: len(sink.ids()) >= wanted, query)
    assert sink.ids() == list(range(MS, MS + 30))
    logs.write(name, [MS + 30], keep_open=True)
    until(lambda: len(sink.ids()) == 31, query)
    seen = len(sink.batches)
    for _ in range(3):
        logs.control(name)
    logs.write(name, [MS + 31], keep_open=True)
    until(lambda: len(sink.ids()) == 32, query)
    assert len(sink.batches) == seen + 1


def test_a_batch_whose_commit_is_lost_is_replayed_as_it_was(
    start: Callable[..., StreamingQuery], logs: Logs, checkpoint: Path
) -> None:
    name = logs.create(logs.name())
    logs.write(name, range(MS, MS + 50))
    sink = Sink()
    assert start(sink, now=True, subscribe=name, maxOffsetsPerTrigger=20).awaitTermination(180)
    last, rows = sink.batches[-1]
    for file in ((checkpoint / "commits" / str(last)), (checkpoint / "commits" / f".{last}.crc")):
        file.unlink(missing_ok=True)
    logs.write(name, range(MS + 50, MS + 60))
    again = Sink()
    assert start(again, now=True, subscribe=name).awaitTermination(180)
    assert again.batches[0] == (last, rows)
    assert again.ids()[len(rows) :] == list(range(MS + 50, MS + 60))


def test_a_start_at_latest_is_fixed_before_the_first_record_is_read(
    start: Callable[..., StreamingQuery], logs: Logs, checkpoint: Path
) -> None:
    name = logs.create(logs.name())
    logs.write(name, range(MS, MS + 10))
    sink = Sink()
    query = start(sink, subscribe=name, startingOffsets="latest")
    until(lambda: (checkpoint / "commits" / "0").exists(), query)
    query.stop()
    logs.write(name, range(MS + 10, MS + 20))
    # Spark forgets that batch 0 was done, and does not know where it began: nothing may be skipped.
    for file in (checkpoint / "commits").iterdir():
        file.unlink()
    assert start(sink, now=True, subscribe=name, startingOffsets="latest").awaitTermination(180)
    assert sink.ids() == list(range(MS + 10, MS + 20))


def test_a_first_batch_that_died_begins_again_where_it_began(start: Callable[..., StreamingQuery], logs: Logs) -> None:
    """Meanwhile the log begins elsewhere; without the begin in the checkpoint ten records were skipped in silence."""
    name = logs.create(logs.name())
    for part in range(3):
        logs.write(name, range(MS + 10 * part, MS + 10 * part + 10))

    class Dying(Sink):
        def __call__(self, frame: DataFrame, batch: int) -> None:
            raise RuntimeError("the first batch dies")

    with pytest.raises(Exception, match="the first batch dies"):
        start(Dying(), now=True, subscribe=name).awaitTermination(180)
    logs.delete_first_segment(name)
    with pytest.raises(Exception, match="TruncatedDataLossError"):
        start(Sink(), now=True, subscribe=name).awaitTermination(180)


def test_small_batches_are_put_off_and_a_cursor_follows_those_that_are_done(
    start: Callable[..., StreamingQuery], logs: Logs, checkpoint: Path
) -> None:
    name = logs.create(logs.name())
    logs.write(name, range(MS, MS + 3))
    sink = Sink()
    query = start(sink, subscribe=name, minOffsetsPerTrigger=5, maxTriggerDelay="1h", cursorName="c")
    until(lambda: len(sink.ids()) == 3, query)
    logs.write(name, range(MS + 3, MS + 7))
    logs.write(name, range(MS + 7, MS + 9))
    until(lambda: len(sink.ids()) == 9, query)
    assert sink.sizes in ([3, 6], [3, 5, 1]), "four records alone made no batch"
    until(lambda: (checkpoint / "commits" / str(sink.batches[-1][0])).exists(), query)
    query.stop()
    sink = Sink()
    # Spark tells of a batch's end when it makes the next one.
    logs.write(name, range(MS + 9, MS + 15))
    assert start(sink, now=True, subscribe=name, maxBytesPerTrigger=1, cursorName="c").awaitTermination(180)
    assert sink.ids() == list(range(MS + 9, MS + 15))
    assert logs.subscribers(name)["c"] >= DLSN(3, 1, 0)


def test_a_start_by_time_and_at_positions(start: Callable[..., StreamingQuery], logs: Logs, tmp_path: Path) -> None:
    name = logs.create(logs.name())
    logs.write(name, range(MS, MS + 40))
    by_time, by_place = Sink(), Sink()
    query = start(by_time, now=True, place=tmp_path / "a", subscribe=name, startingTimestamp=MS + 25)
    assert query.awaitTermination(180)
    assert by_time.ids() == list(range(MS + 25, MS + 40))
    place = json.dumps({name: "1:2:3"})
    assert start(by_place, now=True, place=tmp_path / "b", subscribe=name, startingOffsets=place).awaitTermination(180)
    assert by_place.ids() == list(range(by_place.ids()[0], MS + 40))


def test_a_sealed_log_does_not_end_the_query(start: Callable[..., StreamingQuery], logs: Logs) -> None:
    sealed, other = logs.create(logs.name("sealed")), logs.create(logs.name("other"))
    logs.write(sealed, range(MS, MS + 5))
    logs.seal(sealed)
    sink = Sink()
    query = start(sink, subscribe=f"{sealed},{other}")
    until(lambda: len(sink.ids(sealed)) == 5, query)
    logs.write(other, range(MS, MS + 7))
    until(lambda: len(sink.ids(other)) == 7, query)
    assert query.isActive


def runners() -> set[int]:
    """The processes of streaming sources under this one."""
    found = set()
    for process in psutil.Process(os.getpid()).children(recursive=True):
        try:
            if any("python_streaming_source_runner" in argument for argument in process.cmdline()):
                found.add(process.pid)
        except psutil.Error:
            continue
    return found


def test_a_stopped_query_leaves_no_session_and_no_process(start: Callable[..., StreamingQuery], logs: Logs) -> None:
    name = logs.create(logs.name())
    logs.write(name, range(MS, MS + 5), keep_open=True)
    settle(lambda: not runners())  # of the tests before
    before = logs.sessions()
    sink = Sink()
    query = start(sink, subscribe=name)
    until(lambda: len(sink.ids()) == 5, query)
    opened = logs.sessions() - before
    assert len(opened) == 1
    assert len(runners()) == 1
    time.sleep(1)  # let it go idle: stop() has to end a long poll
    query.stop()
    settle(lambda: not opened & logs.sessions())
    settle(lambda: not runners())


def test_a_query_that_was_idle_still_sees_news(start: Callable[..., StreamingQuery], logs: Logs) -> None:
    name = logs.create(logs.name())
    logs.write(name, range(MS, MS + 5), keep_open=True)
    sink = Sink()
    query = start(sink, subscribe=name)
    until(lambda: len(sink.ids()) == 5, query)
    time.sleep(3)
    logs.write(name, [MS + 5], keep_open=True)
    until(lambda: len(sink.ids()) == 6, query)


def test_the_progress_tells_the_logs_latest_position(start: Callable[..., StreamingQuery], logs: Logs) -> None:
    name = logs.create(logs.name())
    logs.write(name, range(MS, MS + 30))
    query = start(Sink(), now=True, subscribe=name, maxOffsetsPerTrigger=10)
    assert query.awaitTermination(180)
    source = query.recentProgress[0]["sources"][0]
    assert json.loads(source["latestOffset"])["logs"][name] == "1:3:0"
    assert json.loads(source["endOffset"])["logs"][name] == "1:1:0"


def test_a_log_deleted_under_a_query_is_data_loss_or_a_documented_skip(
    start: Callable[..., StreamingQuery], logs: Logs, checkpoint: Path
) -> None:
    gone, stays = logs.create(logs.name("gone")), logs.create(logs.name("stays"))
    for name in (gone, stays):
        logs.write(name, range(MS, MS + 5), entry_records=2)
    sink = Sink()
    assert start(sink, now=True, subscribe=f"{gone},{stays}").awaitTermination(180)
    logs.delete(gone)
    logs.write(stays, range(MS + 5, MS + 9))
    with pytest.raises(Exception, match="DataLossError") as caught:
        start(sink, now=True, subscribe=f"{gone},{stays}").awaitTermination(180)
    assert "failOnDataLoss" in str(caught.value)
    query = start(sink, now=True, subscribe=f"{gone},{stays}", failOnDataLoss="false")
    assert query.awaitTermination(180)
    assert sink.ids(stays) == list(range(MS, MS + 9))
    # Created again, and grown past the position in the checkpoint: another log, to be read from its beginning.
    logs.create(gone)
    logs.write(gone, range(MS, MS + 30), entry_records=2)
    with pytest.raises(Exception, match="RecreatedDataLossError"):
        start(sink, now=True, subscribe=f"{gone},{stays}").awaitTermination(180)
    assert start(sink, now=True, subscribe=f"{gone},{stays}", failOnDataLoss="false").awaitTermination(180)
    assert sink.ids(gone) == [*range(MS, MS + 5), *range(MS, MS + 30)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "no-such-log"}, ["LogNotFoundError", "no-such-log"]),
        ({"subscribe": "a", "endingOffsets": "latest"}, ["endingOffsets has no meaning here"]),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "0"}, ["is outside 1.."]),
        ({"subscribe": "a", "uri": "distributedlog://127.0.0.1:1/x"}, ["cannot be reached"]),
    ],
)
def test_mistakes_end_the_query_before_a_task_runs(
    start: Callable[..., StreamingQuery], options: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(Exception) as caught:
        start(Sink(), **options).awaitTermination(180)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_foreign_checkpoint_is_told(start: Callable[..., StreamingQuery], logs: Logs, checkpoint: Path) -> None:
    name = logs.create(logs.name())
    logs.write(name, range(MS, MS + 5))
    assert start(Sink(), now=True, subscribe=name).awaitTermination(180)
    file = checkpoint / "offsets" / "0"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:2], '{"flights": 12}']))
    (checkpoint / "offsets" / ".0.crc").unlink(missing_ok=True)
    with pytest.raises(Exception, match="not one of this source's"):
        start(Sink(), now=True, subscribe=name).awaitTermination(180)


def returned_since(spark: SparkSession, number: int) -> dict[int, str]:
    """What Python workers have returned to each query of the session since that one, as Spark writes it."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    store = spark._jsparkSession.sharedState().statusStore()
    executions = store.executionsList()
    found: dict[int, str] = {}
    for execution in (executions.apply(place) for place in range(executions.size())):
        if (this := execution.executionId()) <= number:
            continue
        values, metrics = store.executionMetrics(this), execution.metrics()
        found[this] = "not known"
        for metric in (metrics.apply(place) for place in range(metrics.size())):
            if metric.name() == "data returned from Python workers" and values.contains(metric.accumulatorId()):
                found[this] = values.apply(metric.accumulatorId())
    return found


def test_rows_of_a_small_batch_come_with_its_plan_and_those_of_others_from_tasks(
    start: Callable[..., StreamingQuery], spark: SparkSession, logs: Logs
) -> None:
    name = logs.create(logs.name())
    logs.write(name, range(MS, MS + 5_000))
    found: list[tuple[list[int], str]] = []

    def look(frame: DataFrame, _: int) -> None:
        newest = max(returned_since(spark, -1))
        rows = frame.select("transaction_id").collect()
        (returned,) = returned_since(spark, newest).values()
        found.append((sorted(row[0] for row in rows), returned))

    assert start(look, now=True, subscribe=name).awaitTermination(180)  # type: ignore[arg-type]
    logs.write(name, range(MS + 5_000, MS + 5_003))
    assert start(look, now=True, subscribe=name).awaitTermination(180)  # type: ignore[arg-type]
    many, few = found
    assert many[0] == list(range(MS, MS + 5_000))
    assert many[1] not in ("not known", "0.0 B")
    assert few[0] == list(range(MS + 5_000, MS + 5_003))
    # Tasks in one process share what they count: one that asks no worker reports what the one before it had.
    assert few[1] in (many[1], "0.0 B")
