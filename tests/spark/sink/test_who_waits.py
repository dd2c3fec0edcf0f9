"""Who waits for whom: queries, thin clients and library writers that want one log, in any order, for minutes."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from helpers.spark.appended_proxies import LinkedProxy
from helpers.spark.appends_world import IDLE_MS, LOG, AppendsCluster, Driver, inline, rows_of
from helpers.virtual_time import virtual_time

from dlspark.serving.client.client import AsyncClient
from dlspark.spark.sink.append.appender import BatchToAppend
from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.inline_rows import joined
from dlspark.spark.sink.session import owner_name
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.foundation.errors import DistributedLogError
from metadata.zookeeper.memory import Fault

pytestmark = pytest.mark.usefixtures("frames")

PUBLISHED = CommitOutcome.PUBLISHED


@asynccontextmanager
async def clusters(proxies: int = 2) -> AsyncIterator[tuple[AppendsCluster, list[LinkedProxy], AsyncClient]]:
    """A cluster with proxies that other processes write through, and a thin client of it."""
    cluster = AppendsCluster()
    await cluster.start()
    running = [await cluster.proxy(number) for number in range(proxies)]
    client = await cluster.proxies.client()
    yield cluster, running, client
    await client.close()
    await cluster.stop()


async def run_query(driver: Driver, batches: int, first: int = 0, mode: str = "append") -> None:
    """One batch a second."""
    for batch in range(first, first + batches):
        assert await driver.commit(batch, mode) is PUBLISHED
        await asyncio.sleep(1)


async def run_client(client: AsyncClient, records: int) -> None:
    """One record a second."""
    for number in range(records):
        await client.write(LOG, b"thin:%d" % number)
        await asyncio.sleep(1)


async def check_contents(cluster: AppendsCluster, batches: int, records: int) -> None:
    """Everything once, and in each one's order."""
    found = await cluster.contents()
    assert [one for one in found if not one.startswith(b"thin")] == [
        row for batch in range(batches) for row in rows_of(batch)
    ]
    assert [one for one in found if one.startswith(b"thin")] == [b"thin:%d" % number for number in range(records)]


def owners_of(proxies: list[LinkedProxy]) -> list[LinkedProxy]:
    return [proxy for proxy in proxies if LOG in proxy.service.streams_owned]


@virtual_time
async def test_a_query_gives_its_log_to_the_proxy_that_is_asked_for_it_and_both_go_on_through_that() -> None:
    async with clusters() as (cluster, proxies, client):
        driver = await cluster.driver()
        await run_query(driver, 3)
        assert driver.appender.held == [LOG]
        await asyncio.gather(run_query(driver, 120, 3), run_client(client, 120))
        assert len(owners_of(proxies)) == 1
        assert len(await cluster.segments()) == 2
        await check_contents(cluster, 123, 120)


@virtual_time
async def test_a_query_that_comes_to_a_proxys_log_writes_through_the_proxy_and_both_go_on() -> None:
    async with clusters() as (cluster, proxies, client):
        await client.write(LOG, b"thin:0")
        driver = await cluster.driver()
        await asyncio.gather(run_query(driver, 60), *(client.write(LOG, b"thin:%d" % one) for one in range(1, 60)))
        assert len(owners_of(proxies)) == 1
        assert len(await cluster.segments()) == 1
        await check_contents(cluster, 60, 60)


@virtual_time
async def test_thin_clients_wait_for_a_batch_that_makes_segments_and_no_longer() -> None:
    async with clusters() as (cluster, _, client):
        driver = await cluster.driver()
        await asyncio.gather(run_query(driver, 30, mode="segments"), run_client(client, 30))
        await check_contents(cluster, 30, 30)


@virtual_time
async def test_proxies_that_are_asked_at_once_leave_one_owner() -> None:
    async with clusters(3) as (cluster, proxies, _):
        driver = await cluster.driver()
        await run_query(driver, 1)
        clients = [await cluster.proxies.client() for _ in range(3)]
        namespaces = [proxy.namespace for proxy in proxies]
        assert len(namespaces) == 3
        answers = await asyncio.gather(
            *(client.write(LOG, b"thin") for client in clients), run_query(driver, 30, 1), return_exceptions=True
        )
        assert not any(isinstance(one, BaseException) for one in answers), answers
        assert len(owners_of(proxies)) == 1
        found = await cluster.contents()
        assert len(found) == 2 * 31 + 3
        for client in clients:
            await client.close()


@virtual_time
async def test_a_library_writer_keeps_its_log_and_who_waits_is_told_its_name() -> None:
    async with clusters() as (cluster, _, client):
        namespace = await cluster.namespace()
        log = await namespace.open_log(LOG)
        async with await log.open_writer("reporter-7"):
            with pytest.raises(DistributedLogError, match="reporter-7"):
                await client.write(LOG, b"thin:0")
        # Nobody but the lock can say that it is free: it is asked again and again.
        assert await asyncio.wait_for(client.write(LOG, b"thin:1"), 5)
        await namespace.close()


@virtual_time
async def test_the_deletion_of_a_querys_log_is_refused_by_proxies_and_takes_nothing_from_the_query() -> None:
    async with clusters() as (cluster, _, client):
        driver = await cluster.driver()
        await run_query(driver, 2)
        with pytest.raises(OwnershipAcquireFailedError, match="held by") as refused:
            await client.delete(LOG)
        assert refused.value.owner == owner_name(appending=True)
        assert driver.appender.held == [LOG]
        await run_query(driver, 2, 2)
        assert driver.opened == 1
        assert len(await cluster.contents()) == 8


@virtual_time
async def test_the_log_is_handed_on_between_a_query_a_library_writer_and_a_thin_client() -> None:
    async with clusters() as (cluster, _, client):
        driver = await cluster.driver()
        await run_query(driver, 1)
        namespace = await cluster.namespace()
        log = await namespace.open_log(LOG)
        async with await log.open_writer("reporter-7") as writer:
            batch, record = asyncio.ensure_future(driver.append(1)), asyncio.ensure_future(client.write(LOG, b"thin:0"))
            writer.write(writer.last_txid, b"thin library")
            await writer.flush()
            await asyncio.sleep(5)
            assert not batch.done()
            assert not record.done()
        assert await batch is PUBLISHED
        await record
        await run_query(driver, 10, 2)
        await namespace.close()
        assert len(await cluster.contents()) == 26


@virtual_time
async def test_a_log_that_is_waited_for_says_for_whom(caplog: pytest.LogCaptureFixture) -> None:
    async with clusters() as (cluster, _, _client):
        namespace = await cluster.namespace()
        log = await namespace.open_log(LOG)
        driver = await cluster.driver(lock_timeout_s=120)
        async with await log.open_writer("reporter-7"):
            waiting = asyncio.ensure_future(driver.append(0))
            with caplog.at_level(logging.WARNING, "metadata.distributedlog.locks"):
                await asyncio.sleep(70)
            said = [record.getMessage() for record in caplog.records]
            assert len(said) == 3
            assert all("reporter-7 has the lock" in one and LOG in one for one in said)
        assert await waiting is PUBLISHED
        await namespace.close()


@virtual_time
async def test_a_proxy_keeps_its_log_from_a_library_writer_which_is_told_its_name() -> None:
    async with clusters(1) as (cluster, [proxy], client):
        await client.write(LOG, b"thin:0")
        namespace = await cluster.namespace(lock_timeout_s=10)
        log = await namespace.open_log(LOG)
        with pytest.raises(OwnershipAcquireFailedError, match=proxy.location):
            await log.open_writer()
        await client.write(LOG, b"thin:1")
        await namespace.close()


# ---- two queries -----------------------------------------------------------------------------------------------------


async def run_sink(driver: Driver, batches: int, first: int = 0) -> None:
    """A query of its own name, with a batch a second."""
    for batch in range(first, first + batches):
        values = [f"{driver.sink}:{batch}".encode()]
        assert await driver.append(batch, values) in (CommitOutcome.PUBLISHED, CommitOutcome.COVERED)
        await asyncio.sleep(1)


async def check_sinks(cluster: AppendsCluster, batches: dict[str, int]) -> None:
    """Each query's batches once, in their order."""
    found = await cluster.contents()
    for sink, count in batches.items():
        ours = [one for one in found if one.startswith(f"{sink}:".encode())]
        assert ours == [f"{sink}:{batch}".encode() for batch in range(count)]
    assert len(found) == sum(batches.values())


@virtual_time
async def test_two_queries_on_one_machine_make_one_segment() -> None:
    async with clusters(0) as (cluster, _, _client):
        one, other = await cluster.driver(sink="one"), await cluster.driver(sink="other")
        await run_sink(one, 1)
        await asyncio.gather(run_sink(one, 99, 1), run_sink(other, 100))
        assert (one.opened, other.opened) == (1, 1)
        assert len(await cluster.segments()) == 1
        await check_sinks(cluster, {"one": 100, "other": 100})


@virtual_time
async def test_two_queries_on_two_machines_go_through_a_proxy_where_one_runs() -> None:
    async with clusters() as (cluster, proxies, _client):
        one, other = [await cluster.driver(sink=sink, neighbour=False) for sink in ("one", "other")]
        await run_sink(one, 1)
        await asyncio.gather(run_sink(one, 99, 1), run_sink(other, 100))
        assert len(owners_of(proxies)) == 1
        assert len(await cluster.segments()) == 2
        await check_sinks(cluster, {"one": 100, "other": 100})


@virtual_time
async def test_two_queries_on_two_machines_without_proxies_take_turns_and_say_what_that_costs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with clusters(0) as (cluster, _, _client):
        one, other = [await cluster.driver(sink=sink, neighbour=False) for sink in ("one", "other")]
        await asyncio.gather(run_sink(one, 20), run_sink(other, 20))
        said = [record.getMessage() for record in caplog.records if "take turns" in record.getMessage()]
        assert len(said) <= 2, "each says it once"
        assert said
        await check_sinks(cluster, {"one": 20, "other": 20})


@pytest.mark.parametrize("end", ["crash", "stop", "expire"])
@virtual_time
async def test_a_query_goes_on_by_itself_when_the_one_that_appended_for_it_ends(end: str) -> None:
    """It ends at each await of a batch in turn; every batch is there once."""
    for turns in range(0, 400, 43):
        async with clusters(0) as (cluster, _, _client):
            one, other = await cluster.driver(sink="one"), await cluster.driver(sink="other")
            await run_sink(one, 1)
            await run_sink(other, 1)
            assert len(await cluster.segments()) == 1
            appending = asyncio.ensure_future(run_sink(other, 1, 1))
            for _ in range(turns):
                await asyncio.sleep(0)
            over = appending.done()
            if end == "expire":
                cluster.tree.expire(one.namespace.store.session_id)
            else:
                await (one.crash() if end == "crash" else one.stop())
            await appending
            await run_sink(other, 2, 2)
            third = await cluster.driver(sink="one")
            await run_sink(third, 2)
            await check_sinks(cluster, {"one": 2, "other": 4})
        if over:
            break


@virtual_time
async def test_who_stands_still_is_asked_no_longer_once_the_log_is_anothers() -> None:
    async with clusters(0) as (cluster, _, _client):
        one, other = await cluster.driver(sink="one"), await cluster.driver(sink="other")
        await run_sink(one, 1)
        await run_sink(other, 1)
        held = one.appender._logs[LOG]
        async with held.lock:  # it does nothing from here on
            appending = asyncio.ensure_future(run_sink(other, 1, 1))
            await asyncio.sleep(3)
            assert not appending.done()
            cluster.tree.expire(one.namespace.store.session_id)
            one_writes = cluster.tree.inject
            cluster.tree.inject = lambda session, _what, _path: (
                Fault.REFUSE if session == one.namespace.store.session_id else None
            )
            await asyncio.wait_for(appending, 100)
            cluster.tree.inject = one_writes
        await run_sink(other, 1, 2)
        await run_sink(one, 1, 1)
        await check_sinks(cluster, {"one": 2, "other": 3})


@virtual_time
async def test_another_session_than_the_locks_owner_appends_nothing() -> None:
    async with clusters(0) as (cluster, _, _client):
        one, other = await cluster.driver(sink="one"), await cluster.driver(sink="other")
        rows = joined(inline([b"x"]))
        batch = BatchToAppend(other.job(0), rows, IDLE_MS)
        assert await one.appender.append_as_owner(batch) is None, "it owns nothing"
        await run_sink(one, 1)
        await run_sink(other, 1)
        assert await other.appender.append_as_owner(BatchToAppend(one.job(1), rows, IDLE_MS)) is None, (
            "it only asks the owner"
        )
        await check_sinks(cluster, {"one": 1, "other": 1})


# ---- all of them, and faults -----------------------------------------------------------------------------------------


class Rivals:
    """Two queries, thin clients, and a library writer that comes now and then; each knows what must be in the log."""

    def __init__(self, cluster: AppendsCluster, proxies: list[LinkedProxy], rng: random.Random) -> None:
        self.cluster = cluster
        self.proxies = proxies
        self.rng = rng
        self.batches = {"one": 0, "other": 0}
        self.drivers: dict[str, Driver] = {}
        self.written: dict[str, list[bytes]] = {"thin": [], "library": []}

    async def batch(self, sink: str) -> None:
        """The query's next batch, by a new driver where one fails."""
        values = [f"{sink}:{self.batches[sink]}".encode()]
        for _ in range(20):
            driver = self.drivers.get(sink)
            if driver is None or driver.crashed:
                driver = self.drivers[sink] = await self.cluster.driver(sink=sink, neighbour=self.rng.random() < 0.7)
            try:
                if self.rng.random() < 0.8:
                    await driver.append(self.batches[sink], values)
                else:
                    await driver.segment(self.batches[sink], values)
            except DistributedLogError:
                if not driver.crashed:
                    await driver.crash()
            else:
                self.batches[sink] += 1
                return
        raise AssertionError("a batch was not committed in twenty tries")

    async def record(self, client: AsyncClient) -> None:
        payload = b"thin:%d" % len(self.written["thin"])
        self.written["thin"].append(payload)
        await client.write(LOG, payload)  # a producer's: it is sent until it is known

    async def visit(self) -> None:
        """A library writer, which is refused where a proxy has the log."""
        namespace = await self.cluster.namespace(lock_timeout_s=3)
        try:
            async with await (await namespace.open_log(LOG)).open_writer("library") as writer:
                payload = b"library:%d" % len(self.written["library"])
                writer.write(writer.last_txid, payload)
                await writer.flush()
                self.written["library"].append(payload)
                await asyncio.sleep(self.rng.uniform(0, 3))
        except OwnershipAcquireFailedError:
            pass
        finally:
            await namespace.close()

    async def fault(self) -> None:
        kind = self.rng.random()
        running = [driver for driver in self.drivers.values() if not driver.crashed]
        if kind < 0.5 and running:
            await self.rng.choice(running).crash()
        elif kind < 0.7 and running:
            self.cluster.tree.expire(self.rng.choice(running).namespace.store.session_id)
        else:
            doomed = self.rng.choice(self.proxies)
            await self.cluster.kill_proxy(doomed)
            self.proxies[self.proxies.index(doomed)] = await self.cluster.proxy(int(doomed.location.split(";")[1]))

    async def check(self) -> None:
        found = await self.cluster.contents()
        wanted = {
            sink: [f"{sink}:{number}".encode() for number in range(count)] for sink, count in self.batches.items()
        }
        for name, theirs in (wanted | self.written).items():
            assert [one for one in found if one.startswith(name.encode() + b":")] == theirs
        assert len(found) == sum(map(len, (wanted | self.written).values()))


@pytest.mark.parametrize("seed", range(4))
@virtual_time
async def test_whoever_wants_the_log_and_whoever_dies_everything_is_there_once_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    async with clusters() as (cluster, proxies, client):
        rivals = Rivals(cluster, proxies, rng)
        for _ in range(25):
            doing = [rivals.batch("one"), rivals.batch("other")]
            doing += [rivals.record(client)] if rng.random() < 0.6 else []
            doing += [rivals.visit()] if rng.random() < 0.2 else []
            tasks = [asyncio.ensure_future(one) for one in doing]
            if rng.random() < 0.4:
                for _ in range(rng.randrange(200)):
                    await asyncio.sleep(0)
                await rivals.fault()
            await asyncio.gather(*tasks)
            await asyncio.sleep(1)
        await rivals.check()
