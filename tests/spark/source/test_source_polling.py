"""When the streaming source holds its answer back, and what it makes of the calls that Spark makes; no cluster."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.runtime import Runtime
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.source import readers
from dlspark.spark.source.frame_columns import FrameColumns
from dlspark.spark.source.lag import Lag
from dlspark.spark.source.offsets import LogIdentity, Offsets
from dlspark.spark.source.planning import Partition
from dlspark.spark.source.readers import StreamReader
from dlspark.spark.source.schema import SCHEMA
from dlspark.spark.source.selection import BatchLimits, SourceQuery, Where


def at(entry: int) -> Offsets:
    return Offsets({"flights": DLSN(1, entry, 0)})


def stream_of(options: Options) -> StreamReader:
    query = SourceQuery.of(options)
    return StreamReader(query, FrameColumns.of(query, SCHEMA))


class ToldDriver:
    """Stands in for `SourceDriver`: the log's end is set by the test."""

    def __init__(self) -> None:
        self.end = at(10)
        self.begin = at(0)
        """What the options are resolved to."""
        self.calls: list[str] = []
        self.newest: Offsets | None = None

    async def resolve(self, where: Where, *, ending: bool = False) -> Offsets:
        return self.begin

    async def read_proxies(self) -> tuple[str, ...]:
        return ()

    def task_token(self) -> None:
        return None

    async def latest(self, *, acknowledged: bool = False) -> Offsets:
        self.newest = self.end
        return self.end

    async def end_of_batch(self, start: Offsets, limits: BatchLimits, target: Offsets | None) -> Offsets:
        self.calls.append(f"end_of_batch limit={limits.max_records}")
        return await self.latest() if target is None else target

    async def lags(self, reached: Offsets) -> dict[str, Lag | None]:
        return {log: Lag(2, 300, 40) for log, end in self.end.items() if reached[log] < end}

    async def wait_for_batch(self, start: Offsets, limits: BatchLimits, timeout_s: float) -> Offsets:
        self.calls.append("wait")
        return await self.latest()

    async def begin_cursor(self, position: Offsets) -> None:
        self.calls.append(f"cursor begins at {position['flights']}")

    async def move_cursor(self, position: Offsets) -> None:
        self.calls.append(f"cursor at {position['flights']}")

    async def plan(self, start: Offsets, end: Offsets, *, reads: object = None) -> list[Partition]:
        self.calls.append(f"plan {start['flights']} to {end['flights']}")
        return []

    async def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def told() -> ToldDriver:
    return ToldDriver()


@pytest.fixture
def reader(told: ToldDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[StreamReader]:
    monkeypatch.setattr(readers, "ASKED_AGAIN_S", 10.0)
    options = Options(
        {"uri": "distributedlog://h:1/n", "log": "flights", "maxOffsetsPerTrigger": "7"}, Scope.SOURCE_STREAM
    )
    made = stream_of(options)
    made._runtime = Runtime("tests")
    made._driver = told  # type: ignore[assignment]
    yield made
    made.stop()


def test_the_answer_is_held_back_only_when_spark_asks_again_at_once(reader: StreamReader, told: ToldDriver) -> None:
    everything = ReadAllAvailable()
    assert reader.latestOffset(at(0).stored(), everything) == at(10).stored()
    assert reader.latestOffset(at(10).stored(), everything) == at(10).stored()
    assert "wait" not in told.calls, "the first time that nothing is new, another source may have news"
    assert reader.latestOffset(at(10).stored(), everything) == at(10).stored()
    assert told.calls.count("wait") == 1
    told.end = at(11)
    assert reader.latestOffset(at(10).stored(), everything) == at(11).stored()
    assert reader.latestOffset(at(11).stored(), everything) == at(11).stored()
    assert told.calls.count("wait") == 1, "after a batch it begins anew"


def test_a_query_that_was_busy_in_between_is_never_held_up(
    reader: StreamReader, told: ToldDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "ASKED_AGAIN_S", 0.0)
    for _ in range(5):
        reader.latestOffset(at(10).stored(), ReadAllAvailable())
    assert "wait" not in told.calls


def test_available_now_is_never_held_up_and_keeps_its_target(reader: StreamReader, told: ToldDriver) -> None:
    reader.prepareForTriggerAvailableNow()
    told.end = at(99)
    for _ in range(3):
        assert reader.latestOffset(at(10).stored(), ReadMaxRows(7)) == at(10).stored()
    assert "wait" not in told.calls


def test_the_limit_is_sparks_to_give(reader: StreamReader, told: ToldDriver) -> None:
    assert reader.getDefaultReadLimit() == ReadMaxRows(7)
    reader.latestOffset(at(0).stored(), ReadMaxRows(7))
    reader.latestOffset(at(0).stored(), ReadAllAvailable())
    assert told.calls == ["end_of_batch limit=7", "end_of_batch limit=None"]


def test_the_first_batch_keeps_where_the_query_began_whatever_the_options_say_later(
    reader: StreamReader, told: ToldDriver
) -> None:
    initial = reader.initialOffset()
    end = reader.latestOffset(initial, ReadAllAvailable())
    assert json.dumps(end) == '{"v": 1, "logs": {"flights": "1:10:0"}, "begin": {"flights": "1:0:0"}}'
    # Spark ended before the batch was done, and asks again: meanwhile "latest", or a truncated log, is elsewhere.
    again = pickle.loads(pickle.dumps(reader))
    again._runtime, again._driver = Runtime("again"), told
    told.begin = at(8)
    try:
        again.partitions(again.initialOffset(), end)
        assert told.calls[-1] == "plan 1:0:0 to 1:10:0"
        told.end = at(12)
        following = again.latestOffset(end, ReadAllAvailable())
        assert following == at(12).stored()
        again.partitions(end, following)
        assert told.calls[-1] == "plan 1:10:0 to 1:12:0"
    finally:
        again.stop()


def test_a_first_batch_without_news_keeps_the_begin_too_and_is_the_same_text_when_asked_again(
    reader: StreamReader, told: ToldDriver
) -> None:
    told.begin = told.end
    first = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert json.dumps(first) == '{"v": 1, "logs": {"flights": "1:10:0"}, "begin": {"flights": "1:10:0"}}'
    assert reader.partitions(first, first) == []
    assert json.dumps(reader.latestOffset(first, ReadAllAvailable())) == json.dumps(first)
    told.end = at(11)
    assert json.dumps(reader.latestOffset(first, ReadAllAvailable())) == '{"v": 1, "logs": {"flights": "1:11:0"}}'


def test_a_checkpoint_from_before_logs_had_marks_is_answered_with_its_own_text_while_nothing_is_new(
    reader: StreamReader, told: ToldDriver
) -> None:
    told.end = Offsets(at(10).positions, {"flights": LogIdentity(1, 17)})
    old = at(10).stored()
    assert json.dumps(reader.latestOffset(old, ReadAllAvailable())) == json.dumps(old)


def test_the_limit_that_spark_is_told_is_one_of_those_given(told: ToldDriver) -> None:
    def default(**raw: str) -> ReadLimit:
        options = Options({"uri": "distributedlog://h:1/n", "log": "flights", **raw}, Scope.SOURCE_STREAM)
        return stream_of(options).getDefaultReadLimit()

    assert default() == ReadAllAvailable()
    assert default(maxBytesPerTrigger="9", minOffsetsPerTrigger="3") == ReadMaxBytes(9)
    assert default(minOffsetsPerTrigger="3") == ReadMinRows(3)
    assert default(maxBytesPerTrigger="9", maxOffsetsPerTrigger="4") == ReadMaxRows(4)


def test_a_cursor_begins_with_the_query_and_follows_what_is_done(told: ToldDriver) -> None:
    raw = {"uri": "distributedlog://h:1/n", "log": "flights", "cursorName": "c"}
    made = stream_of(Options(raw, Scope.SOURCE_STREAM))
    made._runtime, made._driver = Runtime("tests"), told  # type: ignore[assignment]
    try:
        made.initialOffset()
        made.commit(at(7).stored())
        assert told.calls == ["cursor begins at 1:0:0", "cursor at 1:7:0"]
    finally:
        made.stop()


def test_an_empty_range_is_planned_without_asking_anybody(reader: StreamReader, told: ToldDriver) -> None:
    assert reader.partitions(at(3).stored(), at(3).stored()) == []
    assert told.calls == []


def test_stop_closes_once_and_a_reader_that_never_opened_has_nothing_to_close(
    told: ToldDriver, reader: StreamReader
) -> None:
    copy = pickle.loads(pickle.dumps(reader))
    copy.stop()
    assert copy.reportLatestOffset() is None
    reader.stop()
    reader.stop()
    assert told.calls == ["close"]


def test_the_newest_position_is_reported_with_what_lies_before_it(reader: StreamReader, told: ToldDriver) -> None:
    reader.latestOffset(at(0).stored(), ReadMaxRows(7))
    assert json.dumps(reader.reportLatestOffset()) == '{"v": 1, "logs": {"flights": "1:10:0"}, "behind": {}}'
    told.end = told.newest = at(12)
    lag = '{"flights": {"records": 2, "bytes": 300, "ms": 40}}'
    assert json.dumps(reader.reportLatestOffset()) == f'{{"v": 1, "logs": {{"flights": "1:12:0"}}, "behind": {lag}}}'


def test_before_the_first_batch_only_the_position_is_reported(reader: StreamReader, told: ToldDriver) -> None:
    told.newest = at(10)
    assert reader.reportLatestOffset() == at(10).stored()


def test_a_second_sigterm_neither_waits_for_the_first_ones_handler_nor_cuts_the_end_off() -> None:
    program = textwrap.dedent("""
        import os, signal, sys
        from dlspark.spark.source import readers

        def again(frame, event, argument):
            if event == "call" and frame.f_code.co_name == "notify_all":  # the handler holds a lock
                os.kill(os.getpid(), signal.SIGTERM)

        readers._exit_on_sigterm()
        sys.setprofile(again)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            print("closed")
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")
