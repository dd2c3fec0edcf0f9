"""The benchmark of proxies does what it measures: loads count what was acknowledged, moves and reads look at all.

With --rounds many readers and take-overs, too.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from helpers.worlds.warm_sandbox import WarmSandbox

from benchmarks import serving_scale
from benchmarks.cluster import NODES, ZOOKEEPER, Cluster, run
from benchmarks.costs import CLIENT, PROCESSOR, CallCount, Watch
from benchmarks.proxies import ProxyProcess, read_proxy, resident_mb, write_proxy
from benchmarks.serving import move_under_load, pauses_ms
from benchmarks.serving_scale import PRODUCERS, ScaleBenchmark, begin_producers, idle_memory_mb, release, take_over
from benchmarks.shared_reading import LEAST_RECORDS, WARM_UP_RECORDS, TimedReader, read_by_many
from benchmarks.takeovers import TakeOverBenchmark, one_record, record_sets, requests
from benchmarks.thin_clients import Counted, frames_load, library_load, records_per_s
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from dlspark.core.settings.settings import Settings
from dlspark.serving.bindings.frames_client import FramesClient
from dlspark.serving.bindings.service import Reply
from dlspark.serving.protocol.deliveries import encode_records
from dlspark.serving.protocol.operations import Answer, Delivery, ReadBatch, ReadForm, Refusal, StatusCode

processes = pytest.mark.processes


def test_a_pause_is_the_longest_write_under_way_during_a_move() -> None:
    writes = [(0.0, 1.0), (1.1, 1.2), (1.15, 1.45), (1.5, 9.0)]
    assert pauses_ms([(1.11, 1.4)], writes) == pytest.approx([300.0]), "earlier and later writes do not count"
    assert pauses_ms([(0.5, 1.12)], writes) == pytest.approx([1000.0])
    assert pauses_ms([(9.5, 9.6)], writes) == [0.0]


class SetClock:
    """A clock that stands where the test sets it."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def test_only_what_comes_within_the_counted_part_of_a_window_counts() -> None:
    clock = SetClock()
    counted = Counted(4.0, clock)
    clock.now = 50.5
    assert counted.add(5), "the warm-up goes on"
    assert counted.records == 0
    clock.now = 51.0
    assert counted.add(8)
    clock.now = 55.0
    assert not counted.add(9)
    assert (counted.records, counted.per_second) == (8, 2.0)


def test_a_window_in_which_nothing_came_ends_with_the_first_that_comes() -> None:
    clock = SetClock()
    counted = Counted(4.0, clock)
    clock.now = 59.0
    assert not counted.add(4)
    clock.now = 60.0
    assert not counted.add(4)
    assert (counted.records, counted.per_second) == (4, 0.5)


class AskedClient:
    """What a reader asks, answered by the test."""

    closed = False

    def __init__(self) -> None:
        self.asked: list[tuple[ReadBatch, Reply]] = []

    def submit(self, request: ReadBatch, reply: Reply) -> int:
        self.asked.append((request, reply))
        return len(self.asked)


def delivery(entry_id: int, written_ns: int) -> Answer:
    stamp = written_ns.to_bytes(8, "big")
    record = LogRecord(1, stamp, DLSN(1, entry_id, 0), 1, 0, 1)
    return Delivery(ReadForm.RECORDS, DLSN(1, entry_id + 1, 0), (encode_records([record]),))


async def test_a_reader_asks_on_behind_each_delivery_and_notes_how_old_its_records_are() -> None:
    client = AskedClient()
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    reader = TimedReader(cast(FramesClient, client), ReadBatch("log", DLSN(1, 0, 0)), 0.0, failed)
    reader.ask()
    before = time.monotonic_ns()
    client.asked[-1][1](delivery(0, before - 500_000_000))
    (latency_ms,) = reader.latencies_ms
    assert 500 <= latency_ms <= 500 + (time.monotonic_ns() - before) / 1e6
    assert client.asked[-1][0].start == DLSN(1, 1, 0)
    assert (reader.behind(DLSN(1, 0, 0)), reader.behind(DLSN(1, 1, 0))) == (False, True)
    client.asked[-1][1](Refusal(StatusCode.OVER_CAPACITY, "too many"))
    with pytest.raises(RuntimeError, match="too many"):
        failed.result()


@pytest.fixture(scope="module")
def proxies(warm_sandbox: WarmSandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ProxyProcess]]:
    directory = tmp_path_factory.mktemp("proxies")
    with ExitStack() as stack:
        yield [stack.enter_context(write_proxy(warm_sandbox.uri, directory, shard=shard)) for shard in range(2)]


@processes
def test_loads_of_both_kinds_are_acknowledged(proxies: list[ProxyProcess]) -> None:
    assert records_per_s(frames_load, proxies[0].address, ["load-1", "load-2"], 100, 0.2) > 0
    assert records_per_s(library_load, proxies[0].address, ["load-1", "load-2"], 100, 0.2) > 0


@processes
def test_moves_go_to_and_fro_and_every_record_is_looked_at(
    warm_sandbox: WarmSandbox, proxies: list[ProxyProcess]
) -> None:
    watch = Watch({"proxies": [proxy.pid for proxy in proxies]})
    moved = run(move_under_load(warm_sandbox.uri, proxies[0], proxies[1], "moved", moves=2, window=watch))
    assert len(moved.pauses_ms) == len(moved.between_ms) == 2
    assert min(moved.pauses_ms) > 0
    assert moved.writes > 0
    assert (moved.errors, moved.lost, moved.twice) == (0, 0, 0)
    assert watch.units == moved.writes
    assert watch.figures["proxies"][PROCESSOR] > 0


class AskedError(Exception):
    """Raised instead of starting a proxy."""


def test_a_log_of_the_benchmark_may_know_all_of_its_producers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows 65,536 by default, and the section ended with what the next one was told."""
    given: dict[str, str] = {}

    def asked(*_: object, settings: Mapping[str, str], **__: object) -> None:
        given.update(settings)
        raise AskedError

    monkeypatch.setattr(serving_scale, "write_proxy", asked)
    with pytest.raises(AskedError):
        ScaleBenchmark(cast(Cluster, SimpleNamespace(uri="distributedlog://none")), tmp_path).round(1.0)
    assert Settings.from_mapping(given).max_producers >= PRODUCERS


@processes
def test_a_new_owner_knows_every_producer(warm_sandbox: WarmSandbox, proxies: list[ProxyProcess]) -> None:
    beginning, taking = Watch({"proxy": [proxies[0].pid]}), Watch({CLIENT: [os.getpid()]})
    run(begin_producers(proxies[0].address, "producers", 50, beginning))
    run(release(proxies[0].address, "producers"))
    entries, took_ms = run(take_over(warm_sandbox.uri, "producers", 50, taking))
    assert entries > 0
    assert took_ms > 0
    assert (beginning.units, taking.units) == (50, 1)
    assert beginning.figures["proxy"][PROCESSOR] > 0
    assert 0 < taking.figures[CLIENT][PROCESSOR] <= 2e3 * took_ms, "of the taking over alone"


@processes
def test_idle_clients_stay_connected_while_memory_is_read(proxies: list[ProxyProcess]) -> None:
    pid, address = proxies[0].pid, proxies[0].address
    watches: list[Watch] = []

    def watch(clients: int) -> Watch:
        watches.append(Watch({CLIENT: [clients], "proxy": [pid]}))
        return watches[0]

    assert idle_memory_mb(address, pid, clients=30, logs=3, make=watch) == pytest.approx(resident_mb(pid), rel=0.2)
    assert watches[0].units == 30
    assert all(figures[PROCESSOR] > 0 for figures in watches[0].figures.values())


class WarmCluster:
    """The cluster of other tests, whose nodes have read seven entries more when they are asked again."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._read = iter([10, 17])

    def entries_read(self) -> int:
        return next(self._read)

    def watch(self, others: Mapping[str, Sequence[int]]) -> Watch:
        return Watch(others)

    def calls(self, others: Mapping[str, Sequence[int]]) -> CallCount:
        return CallCount(others)


@processes
@pytest.mark.long
def test_many_readers_have_every_record(warm_sandbox: WarmSandbox, tmp_path: Path) -> None:
    with read_proxy(warm_sandbox.uri, tmp_path) as proxy:
        shared = read_by_many(WarmCluster(warm_sandbox.uri), "shared", proxy, 0.0, readers=60, slow=1)
    assert len(shared.without_ms) == len(shared.with_slow_ms) == 2 * LEAST_RECORDS * 59
    assert shared.entries == 5 * (LEAST_RECORDS + WARM_UP_RECORDS)
    assert shared.fetched == 7
    assert shared.costs.per == "record delivered"
    assert set(shared.costs.figures) == {"writer", "readers", "proxy"}
    assert all(figures[PROCESSOR] > 0 for figures in shared.costs.figures.values())


@processes
@pytest.mark.long
def test_what_a_take_over_costs_is_measured_for_each_kind(tmp_path: Path) -> None:
    kinds = {"one": one_record, "sets": record_sets(1), "requests": requests(30, 20, producers=3)}
    with ExitStack() as stack:
        benchmark = TakeOverBenchmark(tmp_path, stack, kinds)
        for _ in range(2):
            benchmark.round(0.0)
    assert len(benchmark.rows) == 3 * len(kinds)
    assert all(len(row.measured) == 1 and row.measured[0] >= 0 for row in benchmark.rows), "the first round only"
    assert all(row.measured[0] > 1 for row in benchmark.rows if row.unit == "s")
    found = [costs.figures for row in benchmark.rows for costs in row.costs]
    assert len(found) == len(kinds)
    for figures in found:
        assert set(figures) == {CLIENT, "successor", NODES, ZOOKEEPER}
        assert figures["successor"][PROCESSOR] > 0
        assert figures[NODES]["adds"] > 0, "the write that ended it, at least"
