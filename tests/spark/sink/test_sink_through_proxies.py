"""Batches that are appended through a write proxy: once and whole, whichever way others came, whoever dies (I20)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest
from helpers.spark.appended_proxies import LinkedProxy
from helpers.spark.appends_world import LOG, QUERY, AppendsCluster, Driver, Strike, rows_of
from helpers.virtual_time import virtual_time
from helpers.waiting import until

from dlspark.serving.protocol.operations import ProducerStamp, Refusal, WriteReceipt, WriteRecords
from dlspark.serving.routing.hosts import split_address
from dlspark.spark.errors import BatchRefusedError, PublishUnknownError, ReplayDiffersError, TransactionOrderError
from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.session import owner_name
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.zookeeper.memory import Fault

pytestmark = pytest.mark.usefixtures("frames")

PUBLISHED, COVERED = CommitOutcome.PUBLISHED, CommitOutcome.COVERED
WAYS = ("append", "segments", "proxy")


@asynccontextmanager
async def clusters(proxies: int = 1) -> AsyncIterator[tuple[AppendsCluster, list[LinkedProxy]]]:
    cluster = AppendsCluster()
    await cluster.start()
    yield cluster, [await cluster.proxy(number) for number in range(proxies)]
    await cluster.stop()


def all_rows(batches: int) -> list[bytes]:
    return [row for batch in range(batches) for row in rows_of(batch)]


async def commit(cluster: AppendsCluster, batch: int, way: str) -> CommitOutcome | None:
    """Commit a batch by a driver of its own, which ends behind it."""
    driver = await cluster.driver(proxied=way == "proxy")
    try:
        return await driver.commit(batch, "segments" if way == "segments" else "append")
    finally:
        await driver.stop()


async def is_settled(driver: Driver) -> bool:
    """Whether the mark says everything."""
    mark = await driver.mark()
    return mark is not None and mark.appending_ms is None


async def die_with(driver: Driver, proxy: LinkedProxy, batch: int, lost: str) -> None:
    """The driver dies with a batch on its way: its requests are lost, or the answers to them."""
    before = len(proxy.batches)
    setattr(proxy, lost, 10**6)
    work = asyncio.ensure_future(driver.append(batch))
    await until(lambda: len(proxy.batches) > before, "the batch is sent")
    await until(lambda: not proxy.service.requests_under_way, "it is done, or lost")
    work.cancel()
    await asyncio.wait([work])
    await driver.crash()
    setattr(proxy, lost, 0)


@virtual_time
async def test_batches_go_to_the_proxy_in_order_and_the_mark_follows_each() -> None:
    async with clusters() as (cluster, [proxy]):
        driver = await cluster.driver(proxied=True)
        for batch in range(20):
            assert await driver.append(batch) is PUBLISHED
        assert await cluster.contents() == all_rows(20)
        assert proxy.service.streams_owned == [LOG]
        assert [len(one.payloads) for one in proxy.batches] == [2] * 20
        assert len({one.stamp.epoch for one in proxy.batches if one.stamp}) == 1
        await until(lambda: is_settled(driver), "the mark is moved")
        mark = await driver.mark()
        assert mark is not None
        assert (mark.batch, mark.sent, len(mark.rows)) == (19, None, 20)
        state = await driver.session.sinks.read(QUERY)
        assert state is not None
        assert state.value.batch == 19


@virtual_time
async def test_the_proxy_that_owns_the_log_is_found_by_itself() -> None:
    async with clusters() as (cluster, [proxy]):
        first = await cluster.driver()
        assert await first.append(0) is PUBLISHED
        assert proxy.batches == []
        await first.stop()
        await commit(cluster, 1, "proxy")
        driver = await cluster.driver()
        assert await driver.append(2) is PUBLISHED
        assert len(proxy.batches) == 2
        assert await cluster.contents() == all_rows(3)


@virtual_time
async def test_an_owner_that_only_looks_like_a_proxy_is_waited_for_as_any_other() -> None:
    async with clusters() as (cluster, [proxy]):
        namespace = await cluster.namespace()
        log = await namespace.open_log(LOG)
        driver = await cluster.driver(lock_timeout_s=0)
        async with await log.open_writer("1;9;elsewhere:8000"):
            with pytest.raises(DistributedLogError, match="elsewhere"):
                await driver.append(0)
        assert proxy.batches == []
        await namespace.close()


@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("again", WAYS)
@virtual_time
async def test_a_replay_finds_what_any_way_has_published(first: str, again: str) -> None:
    async with clusters() as (cluster, _):
        for batch in range(7):
            assert await commit(cluster, batch, first) is PUBLISHED
        for batch in range(7):
            assert await commit(cluster, batch, again) is COVERED
        assert await commit(cluster, 7, again) is PUBLISHED
        assert await cluster.contents() == all_rows(8)


@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("again", WAYS)
@virtual_time
async def test_a_driver_that_died_with_a_batch_on_its_way_is_followed_by_one_copy(first: str, again: str) -> None:
    """It dies at each await in turn; the next driver has the same batch, and may take another way."""
    for turns in range(0, 400, 13):
        async with clusters(2) as (cluster, _):
            await commit(cluster, 0, "proxy")
            doomed = await cluster.driver(proxied=first == "proxy")
            work = asyncio.ensure_future(doomed.commit(1, "segments" if first == "segments" else "append"))
            for _ in range(turns):
                await asyncio.sleep(0)
            over = work.done()
            work.cancel()
            await asyncio.wait([work])
            await doomed.crash()
            assert await commit(cluster, 1, again) in (PUBLISHED, COVERED)
            assert await commit(cluster, 2, again) is PUBLISHED
            assert await cluster.contents() == all_rows(3), turns
        if over:
            break


@pytest.mark.parametrize("lost", ["lose_requests", "lose_answers"])
@virtual_time
async def test_a_batch_whose_connection_breaks_is_written_once(lost: str) -> None:
    async with clusters() as (cluster, [proxy]):
        driver = await cluster.driver(proxied=True)
        for batch in range(6):
            setattr(proxy, lost, batch % 3)
            assert await driver.append(batch) in (PUBLISHED, COVERED)
        assert await cluster.contents() == all_rows(6)


@virtual_time
async def test_a_proxy_that_dies_or_hands_over_is_followed_by_the_next() -> None:
    async with clusters(2) as (cluster, proxies):
        driver = await cluster.driver(proxied=True)
        for batch in range(9):
            if batch in (3, 6):
                owner = next(one for one in proxies if one.service.streams_owned)
                await cluster.kill_proxy(owner)
                proxies.remove(owner)
                proxies.append(await cluster.proxy(2))
            assert await driver.append(batch) in (PUBLISHED, COVERED)
        assert await cluster.contents() == all_rows(9)


@virtual_time
async def test_without_any_proxy_the_outcome_is_said_and_the_next_driver_goes_on() -> None:
    async with clusters() as (cluster, [proxy]):
        driver = await cluster.driver(proxied=True)
        await driver.append(0)
        await cluster.kill_proxy(proxy)
        with pytest.raises(DistributedLogError, match="proxy0:8000"):
            await driver.append(1)
        await driver.crash()
        assert await commit(cluster, 1, "segments") is PUBLISHED
        await cluster.proxy(1)
        assert await commit(cluster, 2, "proxy") is PUBLISHED
        assert await cluster.contents() == all_rows(3)


@pytest.mark.parametrize("way", WAYS)
@virtual_time
async def test_a_request_that_arrives_after_its_batch_came_another_way_is_not_written(way: str) -> None:
    """The request is lost for its driver, which dies, and is delivered once the batch is in the log."""
    async with clusters() as (cluster, [proxy]):
        doomed = await cluster.driver(proxied=True)
        await doomed.append(0)
        await die_with(doomed, proxy, 1, "lose_requests")
        late = proxy.batches[-1]
        assert await commit(cluster, 1, way) is PUBLISHED
        answer = await proxy.deliver(late)
        assert isinstance(answer, Refusal) or (isinstance(answer, WriteReceipt) and answer.repeated)
        assert await commit(cluster, 2, way) is PUBLISHED
        answer = await proxy.deliver(late)
        assert isinstance(answer, Refusal) or (isinstance(answer, WriteReceipt) and answer.repeated)
        assert await commit(cluster, 3, "proxy") is PUBLISHED
        assert await cluster.contents() == all_rows(4)


@virtual_time
async def test_two_drivers_with_one_checkpoint_leave_each_batch_once() -> None:
    async with clusters(2) as (cluster, _):
        drivers = [await cluster.driver(proxied=True), await cluster.driver(proxied=True), await cluster.driver()]
        for batch in range(8):
            outcomes = await asyncio.gather(*(driver.append(batch) for driver in drivers))
            assert set(outcomes) <= {PUBLISHED, COVERED}
        assert await cluster.contents() == all_rows(8)


@virtual_time
async def test_other_rows_under_a_number_are_refused_before_and_behind_the_named_batch() -> None:
    async with clusters() as (cluster, [proxy]):
        driver = await cluster.driver(proxied=True)
        for batch in (0, 1, 3):
            await driver.append(batch)
        for batch, values in ((1, [b"x"]), (2, [b"x"]), (3, [b"x", b"y", b"z"])):
            with pytest.raises(ReplayDiffersError):
                await driver.append(batch, values)
        # Batch 5 stays named: nobody knows whether it is there.
        await die_with(driver, proxy, 5, "lose_answers")
        other = await cluster.driver(proxied=True)
        with pytest.raises(ReplayDiffersError, match="batch 5 was sent"):
            await other.append(4)
        with pytest.raises(ReplayDiffersError, match="was written with 2 records"):
            await other.append(5, [b"x"])
        assert await other.append(5) is COVERED
        assert await cluster.contents() == [*all_rows(2), *rows_of(3), *rows_of(5)]


@virtual_time
async def test_a_batch_that_stays_unknown_is_gone_past_by_a_later_one_and_refused_when_it_comes_again() -> None:
    async with clusters() as (cluster, [proxy]):
        driver = await cluster.driver(proxied=True)
        await driver.append(0)
        await die_with(driver, proxy, 1, "lose_requests")
        late = proxy.batches[-1]
        other = await cluster.driver(proxied=True)
        assert await other.append(2) is PUBLISHED
        assert isinstance(await proxy.deliver(late), Refusal)
        for way in WAYS:
            with pytest.raises(ReplayDiffersError):
                await commit(cluster, 1, way)
        assert await commit(cluster, 0, "proxy") is COVERED
        assert await cluster.contents() == [*rows_of(0), *rows_of(2)]


@pytest.mark.parametrize("frames", ["raw"], indirect=True)
@virtual_time
async def test_transaction_ids_and_large_batches_are_refused_with_nothing_visible() -> None:
    async with clusters() as (cluster, _):
        driver = await cluster.driver(proxied=True)
        assert await driver.append(0, [b"a", b"b"], txids=[5, 7]) is PUBLISHED
        with pytest.raises(TransactionOrderError, match="below the log's highest"):
            await driver.append(1, [b"c"], txids=[6])
        assert await driver.append(0, [b"a", b"b"], txids=[5, 7]) is COVERED
        with pytest.raises(BatchRefusedError, match="too large for one request"):
            await driver.append(1, [bytes(600_000), bytes(444_400)])
        assert await driver.append(1, [b"c"], txids=[7]) is PUBLISHED
        assert await cluster.contents() == [b"a", b"b", b"c"]


@virtual_time
async def test_a_log_that_was_sealed_says_what_is_known_of_the_batch() -> None:
    async with clusters() as (cluster, [proxy]):
        driver = await cluster.driver(proxied=True)
        await driver.append(0)
        await die_with(driver, proxy, 1, "lose_answers")
        await cluster.kill_proxy(proxy)
        namespace = await cluster.namespace()
        async with await (await namespace.open_log(LOG)).open_writer() as writer:
            await writer.mark_end_of_stream()
        await namespace.close()
        await cluster.proxy(1)
        other = await cluster.driver(proxied=True)
        with pytest.raises(PublishUnknownError, match="visible whole or not at all"):
            await other.append(1)


@virtual_time
async def test_a_batch_that_was_left_longer_ago_than_the_log_remembers_is_refused() -> None:
    async with clusters() as (cluster, [proxy]):
        driver = await cluster.driver(proxied=True)
        await driver.append(0)
        await die_with(driver, proxy, 1, "lose_answers")
        cluster.clock.ahead_ms = 4 * 24 * 3600 * 1000
        late = await cluster.driver(proxied=True)
        with pytest.raises(BatchRefusedError, match="may have forgotten"):
            await late.append(1)


@pytest.mark.parametrize("lost", ["lose_requests", "lose_answers"])
@virtual_time
async def test_a_named_batch_whose_segment_was_deleted_is_refused_and_not_named_anew(lost: str) -> None:
    async with clusters() as (cluster, [proxy]):
        driver = await cluster.driver(proxied=True)
        for batch in range(2):
            await driver.append(batch)
        await die_with(driver, proxy, 2, lost)
        await cluster.kill_proxy(proxy)
        await cluster.forget_segments()
        proxy = await cluster.proxy(1)
        before = await cluster.contents()
        for way in (*WAYS, "proxy"):
            with pytest.raises(BatchRefusedError, match=r"has forgotten.*is not known; nothing was published"):
                await commit(cluster, 2, way)
        assert await cluster.contents() == before


@virtual_time
async def test_a_batch_that_was_never_sent_is_named_above_what_the_log_has_forgotten() -> None:
    async with clusters() as (cluster, [proxy]):
        driver = await cluster.driver(proxied=True)
        await driver.append(0)
        await until(lambda: is_settled(driver), "the mark says everything")
        await cluster.kill_proxy(proxy)
        await cluster.forget_segments()
        await cluster.proxy(1)
        assert await driver.append(1) is PUBLISHED
        assert await driver.append(0) is COVERED
        assert (await cluster.contents())[1:] == rows_of(1)


@virtual_time
async def test_a_proxy_that_forgets_sooner_than_the_sink_takes_it_to_does_not_write_twice() -> None:
    async with clusters(0) as (cluster, _):

        async def forgetful(number: int) -> LinkedProxy:
            namespace = await cluster.namespace(lock_timeout_s=0, producer_expiry_s=1, producer_snapshot_entries=1)
            return await cluster.proxies.start(number, namespace)

        proxy = await forgetful(0)
        driver = await cluster.driver(proxied=True)
        await die_with(driver, proxy, 0, "lose_answers")
        for number in range(3):
            await asyncio.sleep(1)
            answer = await proxy.deliver(WriteRecords(LOG, (b"x",), stamp=ProducerStamp("other", 9, number)))
            assert isinstance(answer, WriteReceipt)
        before = await cluster.contents()
        for way in WAYS:
            with pytest.raises(BatchRefusedError, match="forgotten"):
                await commit(cluster, 0, way)
        assert await cluster.contents() == before


LIFE = ("proxy", "proxy", "append", "proxy", "segments", "proxy", "proxy", "append")
STRIKES = 16


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.REFUSE, None])
@virtual_time
async def test_any_fault_at_any_request_leaves_one_copy_whichever_way_comes_next(fault: Fault | None) -> None:
    """A metadata request is refused, lost, or applied and its answer lost; None: the session ends. A driver that fails
    is started again, and takes the next way."""
    requests = await life_with(None, -1)
    assert requests > 100
    for strike_at in random.Random(str(fault)).sample(range(requests), STRIKES):
        assert await life_with(fault, strike_at) > strike_at


async def life_with(fault: Fault | None, strike_at: int) -> int:
    """Commit batches with the request of this number struck. How many requests there were."""
    async with clusters(2) as (cluster, _):
        strike = Strike(cluster, fault, strike_at)
        for batch, way in enumerate(LIFE):
            await committed(cluster, batch, way)
        strike.end()
        assert await cluster.contents() == all_rows(len(LIFE)), strike_at
        return strike.requests


async def committed(cluster: AppendsCluster, batch: int, way: str) -> None:
    """Commit a batch, by new drivers in other ways as often as one fails."""
    for _ in range(20):
        driver = await cluster.driver(proxied=way == "proxy")
        try:
            await driver.commit(batch, "segments" if way == "segments" else "append")
        except DistributedLogError:
            await driver.crash()
            way = WAYS[(WAYS.index(way) + 1) % len(WAYS)]
        else:
            await driver.stop()
            return
    raise AssertionError("a batch was not committed in twenty tries")


@pytest.mark.parametrize("seed", range(12))
@virtual_time
async def test_any_sequence_of_ways_crashes_and_hand_overs_leaves_each_batch_once_and_in_order(seed: int) -> None:
    """Three drivers with one checkpoint die, are cut off, are tried again in other ways; proxies die and come back,
    answers and requests are lost, and requests arrive late."""
    rng = random.Random(seed)
    async with clusters(2) as (cluster, proxies):

        def another(number: int) -> Awaitable[Driver]:
            return cluster.driver(proxied=number > 1, neighbour=rng.random() < 0.5)

        drivers = [await another(number) for number in range(3)]
        done = 0
        for _ in range(60):
            number = rng.randrange(3)
            driver = drivers[number]
            event = rng.random()
            if event < 0.1:
                await driver.crash()
                drivers[number] = await another(number)
                continue
            if event < 0.2:
                doomed = proxies[rng.randrange(2)]
                await cluster.kill_proxy(doomed)
                proxies[proxies.index(doomed)] = await cluster.proxy(int(doomed.location.split(";")[1]))
                continue
            if event < 0.35:
                proxy = rng.choice(proxies)
                proxy.lose_requests, proxy.lose_answers = rng.randrange(2), rng.randrange(2)
            if event < 0.45:
                sent = [one for proxy in proxies for one in proxy.batches]
                if sent:
                    await rng.choice(proxies).deliver(rng.choice(sent))
            batch = rng.randint(max(0, done - 2), done)
            work = asyncio.ensure_future(driver.commit(batch, rng.choice(["append", "append", "segments"])))
            if event > 0.8:
                # It dies in the middle: nobody learns what became of the batch.
                for _ in range(rng.randrange(300)):
                    await asyncio.sleep(0)
                work.cancel()
                await asyncio.wait([work])
                await driver.crash()
                drivers[number] = await another(number)
                continue
            try:
                await work
            except DistributedLogError:
                await driver.crash()
                drivers[number] = await another(number)
            else:
                done = max(done, batch + 1)
        for proxy in proxies:
            proxy.lose_requests = proxy.lose_answers = 0
        await committed(cluster, done, "segments")
        for batch in range(done + 1):
            assert await commit(cluster, batch, rng.choice(WAYS)) is COVERED
        assert await cluster.contents() == all_rows(done + 1)
        assert done > 5


def test_clients_that_a_proxy_sends_to_a_sink_do_not_take_its_name_for_an_address() -> None:
    with pytest.raises(CallerError):
        split_address(owner_name())
