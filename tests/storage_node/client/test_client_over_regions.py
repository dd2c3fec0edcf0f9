"""Reads of ledgers whose copies lie in three regions, over a simulated network with distances."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.model_cluster import FAST, ModelBookie, ModelCluster, payload

from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from metadata.foundation.errors import CallerError
from storage_node.client.client import LedgerClient
from storage_node.client.placement.racks import StaticResolver
from storage_node.client.reader import LedgerLocation, LedgerReader, ReplicaReader
from storage_node.client.writer import LedgerWriter
from storage_node.protocol.schema import Status
from storage_node.protocol.values import AddRequest, ReadRequest
from storage_node.settings.client import ClientSettings

DISTANCES = {"eu": 0.0, "us": 0.020, "ap": 0.060}
"""Round trips from eu, in seconds."""
SETTINGS = replace(FAST, long_poll_ms=1_000, read_entry_timeout_ms=5_000, speculative_read_ms=2_000)
SINGLE = replace(SETTINGS, batch_reads=False)


class Regions(ModelCluster):
    """A cluster with nodes in eu, us and ap, and clients in eu."""

    def __init__(self, each: int) -> None:
        super().__init__(3 * each, jitter_s=0.0002)
        self.region = dict(zip(self.bookies, [name for name in DISTANCES for _ in range(each)], strict=True))
        for name, bookie in self.bookies.items():
            bookie.delay_s = DISTANCES[self.region[name]]

    def reading_client(self, settings: ClientSettings = SETTINGS, region: str = "eu") -> LedgerClient:
        settings = replace(settings, placement=replace(settings.placement, region=region))
        racks = StaticResolver({name: f"/{region}/{name}" for name, region in self._by_host().items()})
        client = LedgerClient(
            self.ledgers, self.registry, settings=settings, network=self, rng=random.Random(3), racks=racks
        )
        self.clients.append(client)
        return client

    def _by_host(self) -> dict[str, str]:
        return self.region  # model bookies are registered with their ids as hosts

    def of(self, writer: LedgerWriter, region: str) -> list[ModelBookie]:
        names = writer.metadata.last_ensemble.bookies
        return [self.bookies[name] for name in names if self.region[name] == region]

    def forget_requests(self) -> None:
        for bookie in self.bookies.values():
            bookie.requests.clear()
            bookie.batch_reads.clear()


@asynccontextmanager
async def world(each: int = 1, count: int = 60, **sizes: int) -> AsyncIterator[tuple[Regions, LedgerWriter]]:
    async with Regions(each) as cluster:
        sizes = sizes or {"ensemble_size": 3 * each, "write_quorum": 3 * each, "ack_quorum": 3 * each - 1}
        writer = await cluster.client().create(**sizes)
        for entry_id in range(count):
            await writer.add(payload(entry_id))
        await cluster.settle(1)
        yield cluster, writer


async def opened(
    cluster: Regions, writer: LedgerWriter, settings: ClientSettings = SETTINGS, region: str = "eu"
) -> LedgerReader:
    reader = await cluster.reading_client(settings, region).open(writer.ledger_id, recover=False)
    await cluster.settle(1)
    cluster.forget_requests()
    return reader


def reads(bookie: ModelBookie) -> list[int]:
    return [r.entry_id for r in bookie.requests if isinstance(r, ReadRequest) and r.entry_id >= 0]


def polls(bookie: ModelBookie, *, least_ms: int = 0) -> int:
    return sum(
        isinstance(r, ReadRequest) and r.previous_lac is not None and (r.timeout_ms or 0) >= least_ms
        for r in bookie.requests
    )


def make_deaf(bookie: ModelBookie) -> None:
    """Cut it from its writer, as its readers see it: it serves what it has, and hears nothing new."""

    def lost(request: AddRequest) -> Status:
        bookie.adds.append(request.entry_id)
        return Status.EOK

    bookie._add = lost  # type: ignore[method-assign]


# ---------------------------------------------------------------------------------------- entries


@virtual_time
async def test_all_reads_go_to_the_own_region_and_without_one_they_go_round() -> None:
    async with world() as (cluster, writer):
        reader = await opened(cluster, writer, SINGLE)
        assert len(await reader.read(0, 58)) == 59
        assert [len(reads(cluster.of(writer, region)[0])) for region in DISTANCES] == [59, 0, 0]
        reader = await opened(cluster, writer, SINGLE, region="")
        assert len(await reader.read(0, 58)) == 59
        assert all(len(reads(cluster.of(writer, region)[0])) > 15 for region in DISTANCES)


@virtual_time
async def test_batches_go_to_the_own_region_as_well() -> None:
    async with world() as (cluster, writer):
        reader = await opened(cluster, writer)
        assert len(await reader.read(0, 58)) == 59
        counts = [len(cluster.of(writer, region)[0].batch_reads) for region in DISTANCES]
        assert counts[0] > 0
        assert counts[1:] == [0, 0]


@virtual_time
async def test_the_write_set_is_kept_where_reordering_is_switched_off() -> None:
    async with world() as (cluster, writer):
        reader = await opened(cluster, writer, replace(SINGLE, reorder_reads=False))
        assert len(await reader.read(0, 58)) == 59
        assert all(len(reads(cluster.of(writer, region)[0])) > 15 for region in DISTANCES)


@virtual_time
async def test_batches_that_wait_behind_others_of_a_node_that_answers_are_not_asked_for_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(count=400) as (cluster, writer):
        reader = await opened(cluster, writer, replace(SETTINGS, batch_read_max_entry_bytes=64))
        for first in range(0, 20, 4):
            await reader.read(first, first + 3)  # alone, each takes next to nothing
        near = cluster.of(writer, "eu")[0]
        answer_batch, free_at = near._batch, cluster.loop.time()

        def one_after_the_other(frame: memoryview, reply: Callable[[bytes], None]) -> None:
            def in_turn(data: bytes) -> None:
                nonlocal free_at
                free_at = max(free_at, cluster.loop.time()) + 0.004
                cluster.loop.call_at(free_at, reply, data)

            answer_batch(frame, in_turn)

        monkeypatch.setattr(near, "_batch", one_after_the_other)
        cluster.forget_requests()
        assert len(await reader.read(20, 398)) == 379
        assert len(near.batch_reads) > 5
        assert [len(cluster.of(writer, region)[0].batch_reads) for region in ("us", "ap")] == [0, 0]


@pytest.mark.parametrize("settings", [SETTINGS, SINGLE])
@virtual_time
async def test_a_silent_region_costs_milliseconds_and_the_next_one_is_the_nearer(settings: ClientSettings) -> None:
    async with world() as (cluster, writer):
        reader = await opened(cluster, writer, settings)
        for first in range(0, 50, 10):
            await reader.read(first, first + 9)
        cluster.of(writer, "eu")[0].silent = True
        cluster.forget_requests()
        began = cluster.loop.time()
        for first in range(0, 50, 10):
            assert [e.entry_id for e in await reader.read(first, first + 9)] == list(range(first, first + 10))
        assert cluster.loop.time() - began < 1.0  # and not firstSpeculativeReadTimeout, again and again
        us, ap = cluster.of(writer, "us")[0], cluster.of(writer, "ap")[0]
        assert len(reads(us)) + len(us.batch_reads) > 3 * (len(reads(ap)) + len(ap.batch_reads))


@virtual_time
async def test_a_late_read_is_hedged_on_loops_whose_handles_know_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    call_at = loop.call_at

    class Handle:
        """As uvloop's, of a time that is less than half a millisecond away."""

        def __init__(self, timer: asyncio.TimerHandle) -> None:
            self.cancel = timer.cancel

    def as_uvloop(when: float, callback: Any, *arguments: Any, **how: Any) -> Any:
        timer = call_at(when, callback, *arguments, **how)
        return Handle(timer) if callback.__name__ == "_hedge" else timer

    async with world() as (cluster, writer):
        reader = await opened(cluster, writer, SINGLE)
        await reader.read(0, 9)
        monkeypatch.setattr(loop, "call_at", as_uvloop)
        cluster.of(writer, "eu")[0].silent = True
        assert [entry.entry_id for entry in await reader.read(0, 9)] == list(range(10))


@virtual_time
async def test_without_hedging_a_silent_region_costs_the_configured_pause() -> None:
    async with world() as (cluster, writer):
        reader = await opened(cluster, writer, replace(SINGLE, hedged_reads_percent=0))
        await reader.read(0, 9)
        cluster.of(writer, "eu")[0].silent = True
        began = cluster.loop.time()
        await reader.read(0, 0)
        assert 1.9 < cluster.loop.time() - began < 2.5


@virtual_time
async def test_nodes_that_are_slow_together_get_few_reads_twice() -> None:
    async with world(count=400) as (cluster, writer):
        reader = await opened(cluster, writer, SINGLE)
        await reader.read(0, 50)
        cluster.forget_requests()
        for bookie in cluster.bookies.values():
            bookie.read_delay_s = 0.2
        for _ in range(3):
            await reader.read(0, 398)
        asked = sum(len(reads(bookie)) for bookie in cluster.bookies.values())
        assert asked <= 3 * 399 * 1.1 + 10 + 128  # the part, the first few, and a window that moves away


@virtual_time
async def test_the_node_with_the_fewest_requests_under_way_is_asked_where_that_decides() -> None:
    async with world(each=2, count=200) as (cluster, writer):
        reader = await opened(cluster, writer, replace(SINGLE, reorder_threshold_pending=2))
        first, second = cluster.of(writer, "eu")
        first.read_delay_s = 0.3
        await reader.read(0, 198)
        assert len(reads(second)) > 2 * len(reads(first))


# ---------------------------------------------------------------------------------------- the tail


async def follow(reader: LedgerReader, first: int, times: dict[int, float], cluster: Regions) -> None:
    following = first
    while True:
        entry = await reader.poll(following, 1_000)
        if entry is not None:
            times[entry.entry_id] = cluster.loop.time()
            following += 1


async def delays(cluster: Regions, writer: LedgerWriter, reader: LedgerReader, count: int, gap_s: float) -> list[float]:
    """Add entries and return how long after its add each was seen at the tail."""
    first = reader.last_add_confirmed + 1
    seen: dict[int, float] = {}
    tail = asyncio.ensure_future(follow(reader, first, seen, cluster))
    added: dict[int, float] = {}
    for _ in range(count):
        # The entry behind shows that the one before is committed.
        added[writer.last_add_pushed + 1] = cluster.loop.time()
        writer.add(payload(writer.last_add_pushed + 1))
        await asyncio.sleep(gap_s)
    await cluster.settle(3)
    tail.cancel()
    await asyncio.wait({tail})
    return [seen[entry_id] - added[entry_id + 1] for entry_id in sorted(seen) if entry_id + 1 in added]


@virtual_time
async def test_a_tail_is_polled_in_the_own_region_and_an_idle_log_costs_few_messages_elsewhere() -> None:
    async with world() as (cluster, writer):
        reader = await opened(cluster, writer)
        assert await reader.poll(reader.last_add_confirmed + 1, 60_000) is None
        eu, us, ap = (cluster.of(writer, region)[0] for region in DISTANCES)
        assert polls(eu, least_ms=2) >= 60
        assert polls(us, least_ms=2) == polls(ap, least_ms=2) == 0
        assert 20 <= polls(us) + polls(ap) <= 66


@virtual_time
async def test_a_busy_tail_asks_nothing_of_other_regions() -> None:
    async with world(ensemble_size=3, write_quorum=3, ack_quorum=1) as (cluster, writer):
        reader = await opened(cluster, writer)
        found = await delays(cluster, writer, reader, 300, 0.010)
        assert len(found) == 300
        assert max(found) < 0.005
        us, ap = cluster.of(writer, "us")[0], cluster.of(writer, "ap")[0]
        assert polls(us) + polls(ap) <= 12  # of the rest before the tail was cancelled


@pytest.mark.parametrize("each", [1, 2])
@virtual_time
async def test_a_near_node_that_hears_nothing_does_not_take_the_whole_long_poll(each: int) -> None:
    async with world(each=each) as (cluster, writer):
        reader = await opened(cluster, writer)
        for bookie in cluster.of(writer, "eu"):
            make_deaf(bookie)
        found = await delays(cluster, writer, reader, 40, 0.200)
        assert len(found) == 40
        # The first ones are found by a question; from then on the nearest node that hears is polled.
        assert max(found) < 0.3
        assert max(found[2 * each + 1 :]) < 0.025
        assert sum(polls(bookie, least_ms=2) for bookie in cluster.of(writer, "us")) > 30


@virtual_time
async def test_after_an_hour_of_silence_the_first_entry_is_late_by_a_long_poll_at_most() -> None:
    async with world() as (cluster, writer):
        reader = await opened(cluster, writer)
        assert await reader.poll(reader.last_add_confirmed + 1, 600_000) is None
        make_deaf(cluster.of(writer, "eu")[0])
        found = await delays(cluster, writer, reader, 3, 5.0)
        assert max(found) < 1.1


@virtual_time
async def test_a_near_node_that_hears_again_is_polled_alone_again() -> None:
    async with world() as (cluster, writer):
        reader = await opened(cluster, writer)
        eu, us = cluster.of(writer, "eu")[0], cluster.of(writer, "us")[0]
        make_deaf(eu)
        await delays(cluster, writer, reader, 10, 0.2)
        del eu._add
        await delays(cluster, writer, reader, 10, 0.2)
        cluster.forget_requests()
        found = await delays(cluster, writer, reader, 10, 0.2)
        assert max(found) < 0.005
        assert polls(us, least_ms=2) == 0


@virtual_time
async def test_a_near_node_that_knows_the_lac_and_lacks_the_entry_costs_one_read_elsewhere() -> None:
    async with world() as (cluster, writer):
        reader = await opened(cluster, writer)
        eu = cluster.of(writer, "eu")[0]
        following = reader.last_add_confirmed + 1
        await writer.add(payload(writer.last_add_pushed + 1))
        eu.ledgers[writer.ledger_id].entries.pop(following)
        began = cluster.loop.time()
        entry = await reader.poll(following, 5_000)
        assert entry is not None
        assert entry.entry_id == following
        assert cluster.loop.time() - began < 0.05


@virtual_time
async def test_a_reader_without_a_copy_in_its_region_polls_the_nearest_one() -> None:
    async with Regions(1) as cluster:
        settings = replace(SETTINGS, placement=replace(SETTINGS.placement, region="eu"))
        eu = next(name for name in cluster.bookies if cluster.region[name] == "eu")
        await cluster.registry.unregister(eu)
        writer = await cluster.client().create(ensemble_size=2, write_quorum=2, ack_quorum=2)
        await writer.add(payload(0))
        await writer.add(payload(1))
        reader = await opened(cluster, writer, settings)
        found = await delays(cluster, writer, reader, 20, 0.2)
        assert max(found[2:]) < 0.025
        us, ap = cluster.of(writer, "us")[0], cluster.of(writer, "ap")[0]
        assert polls(us, least_ms=2) > polls(ap, least_ms=2) == 0


@virtual_time
async def test_a_reader_states_by_how_much_its_lac_may_lag() -> None:
    async with world() as (cluster, writer):
        reader = await opened(cluster, writer)
        lag_s = reader.lag_s
        assert lag_s is not None
        assert 0.030 <= lag_s < 0.033
        assert (await opened(cluster, writer, region="")).lag_s is None
        await writer.close()
        await reader.on_closed.wait()
        assert reader.lag_s == 0


# ---------------------------------------------------------------------------------------- tasks


@pytest.mark.parametrize(
    ("setting", "environment", "expected"),
    [
        ("", {"DLSPARK_REGION": "us"}, "us"),
        ("eu", {"DLSPARK_REGION": "us"}, "us"),  # the environment is this process's, the setting all tasks'
        ("eu", {}, "eu"),
        ("eu", {"DLSPARK_REGION": " "}, "eu"),
        ("", {}, None),
    ],
)
@virtual_time
async def test_a_task_reads_in_the_region_that_its_environment_names_else_in_the_query_s(
    setting: str, environment: dict[str, str], expected: str | None
) -> None:
    async with world() as (cluster, writer):
        location = await cluster.reading_client().locate(writer.ledger_id)
        assert location.regions == cluster.region
        cluster.forget_requests()
        settings = replace(SINGLE, placement=replace(SINGLE.placement, region=setting))
        task = ReplicaReader(settings=settings, network=cluster, environment=environment)
        try:
            assert task.region == expected
            assert [e.entry_id async for e in task.entries(location, 0, 40)] == list(range(41))
        finally:
            await task.close()
        counts = {region: len(reads(cluster.of(writer, region)[0])) for region in DISTANCES}
        if expected is None:
            assert min(counts.values()) > 5
        else:
            assert counts == {region: 41 * (region == expected) for region in DISTANCES}


def test_an_impossible_name_of_a_region_is_refused_before_anything_is_read() -> None:
    with pytest.raises(CallerError, match="DLSPARK_REGION"):
        _ = ReplicaReader(environment={"DLSPARK_REGION": "/eu/r1"}).region


def test_a_location_of_a_driver_that_knew_no_regions_is_read() -> None:
    location = LedgerLocation(7, LedgerMetadata(1, 1, 1, (Ensemble(0, ("a",)),)), {"a": ("a", 1)}, {"a": "eu"})
    assert pickle.loads(pickle.dumps(location)) == location
    old = object.__new__(LedgerLocation)
    old.__setstate__([location.ledger_id, location.metadata, location.addresses])  # type: ignore[attr-defined]
    assert old == replace(location, regions={})
