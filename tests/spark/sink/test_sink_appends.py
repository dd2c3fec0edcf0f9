"""Batches that are appended to an open segment: once and whole, whichever way they came before, whoever dies (I20)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable

import pytest
from helpers.spark.appends_world import LOG, QUERY, AppendsCluster, Driver, Strike, inline, rows_of
from helpers.virtual_time import virtual_time

from dlspark.core.writing.writer import AsyncLogWriter
from dlspark.errors import WriterDeposedError
from dlspark.spark.errors import (
    BatchRefusedError,
    LogBusyError,
    PublishUnknownError,
    ReplayDiffersError,
    TransactionOrderError,
)
from dlspark.spark.sink.append.appender import AppendedLog, BatchToAppend
from dlspark.spark.sink.append.owned_log import MAX_UNFOLDED, SILENT_S
from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.inline_rows import no_rows
from dlspark.spark.sink.messages import Publication
from dlspark.spark.sink.session import owner_name
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.distributedlog.sinks import application_sink
from metadata.foundation.errors import DistributedLogError
from metadata.zookeeper.memory import Fault
from storage_node.protocol.schema import Status

pytestmark = pytest.mark.usefixtures("frames")

PUBLISHED, COVERED = CommitOutcome.PUBLISHED, CommitOutcome.COVERED


@pytest.fixture
async def appends_cluster() -> AsyncIterator[AppendsCluster]:
    appends_cluster = AppendsCluster()
    await appends_cluster.start()
    yield appends_cluster
    await appends_cluster.stop()


async def started() -> AppendsCluster:
    appends_cluster = AppendsCluster()
    await appends_cluster.start()
    return appends_cluster


def all_rows(batches: int) -> list[bytes]:
    return [row for batch in range(batches) for row in rows_of(batch)]


async def test_fifty_small_batches_make_one_segment_and_are_visible_at_once(appends_cluster: AppendsCluster) -> None:
    driver = await appends_cluster.driver()
    for batch in range(50):
        assert await driver.append(batch) is PUBLISHED
    assert driver.opened == 1
    assert await appends_cluster.contents() == all_rows(50)
    assert len(await appends_cluster.segments()) == 1
    await driver.appender.close()
    (segment,) = await appends_cluster.segments()
    assert (segment.in_progress, segment.record_count) == (False, 100)
    mark = await driver.mark()
    assert mark is not None
    assert (mark.batch, mark.appending_ms, len(mark.rows)) == (49, None, 50)
    state = await driver.session.sinks.read(QUERY)
    assert state is not None
    assert (state.value.batch, state.value.rows) == (49, 2)


@pytest.mark.parametrize("first", ["append", "segments"])
@pytest.mark.parametrize("again", ["append", "segments"])
@pytest.mark.parametrize("died", [False, True])
async def test_a_replay_finds_what_either_mode_published(
    appends_cluster: AppendsCluster, first: str, again: str, died: bool
) -> None:
    driver = await appends_cluster.driver()
    for batch in range(7):
        assert await driver.commit(batch, first) is PUBLISHED
    if died:
        await driver.crash()
    other = await appends_cluster.driver()
    for batch in range(7):
        assert await other.commit(batch, again) is COVERED
    assert await other.commit(7, again) is PUBLISHED
    assert await appends_cluster.contents() == all_rows(8)


async def test_modes_that_alternate_between_two_drivers_leave_each_batch_once_and_in_order(
    appends_cluster: AppendsCluster,
) -> None:
    drivers = [await appends_cluster.driver(), await appends_cluster.driver()]
    for batch in range(8):
        modes = ("append", "segments") if batch % 2 else ("segments", "append")
        outcomes = await asyncio.gather(
            *(driver.commit(batch, mode) for driver, mode in zip(drivers, modes, strict=True))
        )
        assert sorted(outcome.value for outcome in outcomes if outcome) == ["covered", "published"]
    assert await appends_cluster.contents() == all_rows(8)


@pytest.mark.parametrize("mode", ["append", "segments"])
async def test_another_batch_under_a_number_that_was_appended_is_refused(
    appends_cluster: AppendsCluster, mode: str
) -> None:
    driver = await appends_cluster.driver()
    for batch in (0, 1, 3):
        await driver.append(batch)
    commit = driver.append if mode == "append" else driver.segment
    for batch, values in ((1, [b"x"]), (2, [b"x"]), (3, [b"x", b"y", b"z"])):
        with pytest.raises(ReplayDiffersError) as caught:
            await commit(batch, values)
        assert caught.value.log == LOG
    assert await commit(4) is PUBLISHED
    assert len(await appends_cluster.contents()) == 8


async def test_a_batch_without_rows_is_known_by_the_logs_owner_or_left_to_the_multi(
    appends_cluster: AppendsCluster,
) -> None:
    driver = await appends_cluster.driver()
    nothing = no_rows(LOG)
    assert await driver.appender.append(BatchToAppend(driver.job(0), nothing)) is None
    assert driver.opened == 0
    await driver.append(1)
    assert await driver.appender.append(BatchToAppend(driver.job(2), nothing, 1000)) is PUBLISHED
    with pytest.raises(ReplayDiffersError, match="now has none"):
        await driver.appender.append(BatchToAppend(driver.job(1), nothing, 1000))
    await driver.crash()
    other = await appends_cluster.driver()
    with pytest.raises(ReplayDiffersError, match="now has none"):
        await other.publishing.publisher.publish(Publication(other.job(1), (), known=(LOG,)))


async def test_a_waiting_writer_gets_the_log_at_once_and_the_next_batch_follows_it(
    appends_cluster: AppendsCluster,
) -> None:
    driver = await appends_cluster.driver()
    await driver.append(0)
    namespace = await appends_cluster.namespace()
    log = await namespace.open_log(LOG)
    async with await log.open_writer() as writer:
        assert driver.appender.held == []
        writer.write(2000, b"foreign")
        await writer.flush()
        appending = asyncio.ensure_future(driver.append(1))
    assert await appending is PUBLISHED
    assert await appends_cluster.contents() == [*rows_of(0), b"foreign", *rows_of(1)]
    await namespace.close()


async def test_a_log_with_a_live_owner_fails_with_its_name_and_the_option(appends_cluster: AppendsCluster) -> None:
    namespace = await appends_cluster.namespace()
    log = await namespace.open_log(LOG)
    driver = await appends_cluster.driver(lock_timeout_s=0)
    async with await log.open_writer("reporter-7"):
        with pytest.raises(LogBusyError, match=r"reporter-7.*outageTimeout"):
            await driver.append(0)
    assert await driver.append(0) is PUBLISHED
    await namespace.close()


async def test_a_stored_batch_whose_writer_fails_before_it_is_visible_is_not_said_to_be_missing(
    appends_cluster: AppendsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = await appends_cluster.driver()
    await driver.append(0)
    commit = AsyncLogWriter.commit

    async def commit_deposed(writer: AsyncLogWriter) -> int:
        writer._issuer.fail(WriterDeposedError("another owner has the log"))
        return await commit(writer)

    async def open_busy(log: str) -> AppendedLog:
        raise OwnershipAcquireFailedError("another", path="lock", log=log)

    with monkeypatch.context() as patched:
        patched.setattr(AsyncLogWriter, "commit", commit_deposed)
        patched.setattr(driver.appender, "_open_log", open_busy)
        with pytest.raises(PublishUnknownError, match="whole or not at all"):
            await driver.append(1)
    assert await driver.append(1) is COVERED
    assert await driver.append(2) is PUBLISHED
    assert await appends_cluster.contents() == all_rows(3)


@virtual_time
async def test_an_idle_log_is_given_up_with_its_segment_completed() -> None:
    appends_cluster = await started()
    driver = await appends_cluster.driver()
    await driver.append(0)
    await asyncio.sleep(59)
    assert driver.appender.held == [LOG]
    await driver.append(1)
    await asyncio.sleep(59)
    assert driver.appender.held == [LOG]
    await asyncio.sleep(2)
    assert driver.appender.held == []
    assert [segment.in_progress for segment in await appends_cluster.segments()] == [False]
    await appends_cluster.stop()


BATCHES_AN_HOUR = 3600


@pytest.mark.parametrize("frames", ["raw"], indirect=True)
@virtual_time
async def test_an_hour_of_batches_at_a_trigger_of_one_second_makes_one_segment() -> None:
    """24 a day at most: what a longer run adds comes of rolling by age (`logSegmentRollingMinutes`, 120)."""
    appends_cluster = await started()
    driver = await appends_cluster.driver()
    for batch in range(BATCHES_AN_HOUR - 1):  # the test itself has an hour, and a segment is closed in it
        assert await driver.append(batch, [b"x"]) is PUBLISHED
        await asyncio.sleep(0.999)
    assert len(await appends_cluster.segments()) == 1
    await appends_cluster.stop()


@virtual_time
async def test_a_silent_sink_is_left_though_another_one_goes_on() -> None:
    appends_cluster = await started()
    driver = await appends_cluster.driver()
    await driver.append(0)
    other = application_sink("other")
    for number in range(2):
        rows = inline([b"x"])[0]
        job = driver.job(number)
        named = type(job)(other, number, job.attempt)
        await driver.appender.append(BatchToAppend(named, rows, 10**9))
        mark = await driver.mark()
        assert mark is not None
        assert (mark.appending_ms is None) == bool(number)
        await asyncio.sleep(SILENT_S + 1)
    assert await driver.append(1) is PUBLISHED
    await appends_cluster.stop()


async def test_the_mark_never_lacks_more_than_the_log_remembers(appends_cluster: AppendsCluster) -> None:
    driver = await appends_cluster.driver()
    lacking = []
    for batch in range(4 * MAX_UNFOLDED):
        await driver.append(batch)
        mark = await driver.mark()
        assert mark is not None
        lacking.append(batch - mark.batch)
    assert 1 < max(lacking) <= MAX_UNFOLDED + 1
    await driver.crash()
    other = await appends_cluster.driver()
    await other.publishing._settle(LOG, QUERY)
    mark = await other.mark()
    assert mark is not None
    assert mark.rows == tuple((batch, 2) for batch in reversed(range(4 * MAX_UNFOLDED)))
    assert mark.appending_ms is None


@virtual_time
async def test_a_batch_of_a_sink_that_the_log_has_forgotten_is_refused_whatever_the_sinks_settings_say() -> None:
    """The owner forgets sooner than the sink takes it to."""
    appends_cluster = await started()
    driver = await appends_cluster.driver()
    await driver.append(0)
    await driver.crash()
    namespace = await appends_cluster.namespace(producer_expiry_s=1)
    log = await namespace.open_log(LOG)
    async with await log.open_writer(producers=True) as writer:
        await asyncio.sleep(1.1)
        writer.append([(5000, b"x")], producer="other", sequence=0)
    await namespace.close()
    await refused_in_all_ways(appends_cluster)
    await appends_cluster.stop()


async def refused_in_all_ways(appends_cluster: AppendsCluster, batches: tuple[int, ...] = (0, 1)) -> None:
    """Nothing is appended, nor published, nor lost of what another sink writes."""
    before = await appends_cluster.contents()
    for mode in ("append", "segments", "append"):
        for batch in batches:
            late = await appends_cluster.driver()
            with pytest.raises(BatchRefusedError, match=r"has forgotten.*is not known; nothing was published"):
                await late.commit(batch, mode)
            await late.stop()
    assert await appends_cluster.contents() == before


@virtual_time
async def test_a_sink_that_its_own_process_has_forgotten_goes_on_from_what_that_process_knows() -> None:
    """Another sink goes on in the log, and the first is silent for longer than the log remembers it."""
    appends_cluster = await started()
    driver = await appends_cluster.driver(producer_expiry_s=1, producer_snapshot_entries=1)
    for batch in range(2):
        await driver.append(batch)
    other = application_sink("other")
    for number in range(3):
        await asyncio.sleep(1)
        job = driver.job(number)
        await driver.appender.append(BatchToAppend(type(job)(other, number, job.attempt), inline([b"x"])[0], 10**6))
    for batch in range(2):
        assert await driver.append(batch) is COVERED
    assert await driver.append(2) is PUBLISHED
    await driver.crash()
    last = await appends_cluster.driver()
    assert [await last.commit(batch, "segments") for batch in range(4)] == [COVERED, COVERED, COVERED, PUBLISHED]
    assert [row for row in await appends_cluster.contents() if row != b"x"] == all_rows(4)
    await appends_cluster.stop()


@pytest.mark.parametrize("delete", ["purge", "retention"])
@virtual_time
async def test_a_batch_whose_segment_was_deleted_is_refused_and_not_appended_again(delete: str) -> None:
    """The appending process dies before it moves the mark; other writers, without producers, write newer segments."""
    appends_cluster = await started()
    driver = await appends_cluster.driver()
    for batch in range(2):
        await driver.append(batch)
    await driver.crash()
    await appends_cluster.forget_segments(delete)
    await refused_in_all_ways(appends_cluster)
    await appends_cluster.stop()


@virtual_time
async def test_a_sink_that_left_in_order_goes_on_whatever_the_log_has_forgotten() -> None:
    """Its mark says everything. So does one of a process that died before it had sent anything."""
    appends_cluster = await started()
    driver = await appends_cluster.driver()
    for batch in range(2):
        await driver.append(batch)
    await driver.stop()
    for batch in (2, 3):
        await appends_cluster.forget_segments("purge")
        entered = await appends_cluster.driver()
        await (await entered.open_log(LOG))._enter(QUERY)  # type: ignore[attr-defined]
        await entered.crash()
        other = await appends_cluster.driver()
        for old in range(2 if batch == 2 else 3):
            assert await other.append(old) is COVERED
        assert await other.append(batch) is PUBLISHED
        await other.stop()
    found = await appends_cluster.contents()
    assert [row for row in found if b":" in row] == [*rows_of(3)], "those before were deleted"
    await appends_cluster.stop()


async def test_transaction_ids_are_ordered_as_in_segments(appends_cluster: AppendsCluster) -> None:
    driver = await appends_cluster.driver()
    assert await driver.append(0, [b"a", b"b"], txids=[5, 7]) is PUBLISHED
    with pytest.raises(TransactionOrderError, match="below the log's highest, 7"):
        await driver.append(1, [b"c"], txids=[6])
    assert await driver.append(0, [b"a", b"b"], txids=[5, 7]) is COVERED
    assert await driver.append(1, [b"c"], txids=[7]) is PUBLISHED
    assert await appends_cluster.contents() == [b"a", b"b", b"c"]


async def test_a_sealed_log_takes_no_batch(appends_cluster: AppendsCluster) -> None:
    namespace = await appends_cluster.namespace()
    log = await namespace.open_log(LOG)
    async with await log.open_writer() as writer:
        await writer.mark_end_of_stream()
    await namespace.close()
    driver = await appends_cluster.driver()
    with pytest.raises(BatchRefusedError, match="sealed"):
        await driver.append(0)


async def test_a_log_that_was_deleted_and_made_again_gets_a_batch_that_is_run_again(
    appends_cluster: AppendsCluster,
) -> None:
    driver = await appends_cluster.driver()
    await driver.append(0)
    namespace = await appends_cluster.namespace()
    for taking in (namespace.delete_log(LOG), namespace.rename_log(LOG, "other")):
        with pytest.raises(OwnershipAcquireFailedError, match="A Spark query has it") as refused:
            await taking
        assert refused.value.owner == owner_name(appending=True)
    assert driver.appender.held == [LOG], "nobody gives way to that"
    await driver.appender.close()
    await namespace.delete_log(LOG)
    assert await driver.append(0) is PUBLISHED
    assert await appends_cluster.contents() == rows_of(0)
    await namespace.close()


async def test_a_paused_owner_that_wakes_up_appends_nothing_twice(appends_cluster: AppendsCluster) -> None:
    """Its session ended meanwhile, and another driver has published the same batches as segments."""
    paused = await appends_cluster.driver()
    await paused.append(0)
    appends_cluster.tree.expire(paused.namespace.store.session_id)
    other = await appends_cluster.driver()
    for batch in range(3):
        assert await other.segment(batch) is (PUBLISHED if batch else COVERED)
    for batch in range(3):
        assert await paused.append(batch) is COVERED
    assert await paused.append(3) is PUBLISHED
    assert await appends_cluster.contents() == all_rows(4)


async def test_a_deposed_owner_that_wakes_up_does_not_say_that_its_mark_is_the_whole_truth(
    appends_cluster: AppendsCluster,
) -> None:
    """It lets go of the log and its sink while its successor's batch is known to the log's producers alone."""
    paused = await appends_cluster.driver()
    for batch in range(2):
        await paused.append(batch)
    session = paused.namespace.store
    appends_cluster.tree.inject = lambda number, _what, _path: Fault.REFUSE if number == session.session_id else None
    appends_cluster.tree.expire(session.session_id)
    successor = await appends_cluster.driver()
    assert await successor.append(2) is PUBLISHED
    appends_cluster.tree.inject = None
    await paused.appender.close()
    await successor.crash()
    third = await appends_cluster.driver()
    assert await third.segment(2) is COVERED
    assert await appends_cluster.contents() == all_rows(3)


MODES = ("append", "append", "append", "append", "append", "append", "segments", "append")
"""A life of batches: with a mark that is created, set and folded, a log that is opened, yielded and opened again."""
STRIKES = 24


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.REFUSE, None])
@virtual_time
async def test_any_fault_at_any_request_leaves_one_copy_whichever_mode_comes_next(fault: Fault | None) -> None:
    """A metadata request is refused, lost, or applied and its answer lost; None: the session ends. A driver that fails
    is started again, and takes the other mode."""
    requests = await life_with(None, -1)
    assert requests > 100
    for strike_at in random.Random(str(fault)).sample(range(requests), STRIKES):
        assert await life_with(fault, strike_at) > strike_at


async def life_with(fault: Fault | None, strike_at: int) -> int:
    """Commit batches with the request of this number struck. How many requests there were."""
    appends_cluster = await started()
    driver = await appends_cluster.driver()
    strike = Strike(appends_cluster, fault, strike_at)
    for batch, mode in enumerate(MODES):
        driver = await committed(appends_cluster, driver, batch, mode)
    strike.end()
    await driver.appender.close()
    assert await appends_cluster.contents() == all_rows(len(MODES)), strike_at
    await appends_cluster.stop()
    return strike.requests


async def committed(appends_cluster: AppendsCluster, driver: Driver, batch: int, mode: str) -> Driver:
    """Commit a batch, by new drivers in other modes as often as one fails. The driver that goes on."""
    for _ in range(20):
        try:
            await driver.commit(batch, mode)
        except DistributedLogError:
            await driver.crash()
            driver = await appends_cluster.driver()
            mode = "segments" if mode == "append" else "append"
        else:
            return driver
    raise AssertionError("a batch was not committed in twenty tries")


@pytest.mark.parametrize("seed", range(12))
@virtual_time
async def test_any_sequence_of_attempts_and_crashes_leaves_each_batch_once_and_in_order(seed: int) -> None:
    """Two drivers with one checkpoint, on one machine or on two, die, are cut off, are tried again in other modes;
    storage nodes fail."""
    rng = random.Random(seed)
    appends_cluster = await started()

    def another() -> Awaitable[Driver]:
        return appends_cluster.driver(neighbour=rng.random() < 0.5)

    drivers = [await another(), await another()]
    done = 0
    for _ in range(60):
        number = rng.randrange(2)
        driver = drivers[number]
        batch = rng.randint(max(0, done - 3), done)
        event = rng.random()
        if event < 0.15:
            await driver.crash()
            drivers[number] = await another()
            continue
        if event < 0.25:
            appends_cluster.tree.expire(driver.namespace.store.session_id)
        if event > 0.9:
            rng.choice(appends_cluster.bookies).reject = rng.choice([Status.EIO, None])
        work = asyncio.ensure_future(driver.commit(batch, rng.choice(["append", "append", "segments"])))
        if event > 0.8:
            # It dies in the middle: nobody learns what became of the batch.
            for _ in range(rng.randrange(200)):
                await asyncio.sleep(0)
            work.cancel()
            await asyncio.wait([work])
            await driver.crash()
            drivers[number] = await another()
            continue
        try:
            await work
        except DistributedLogError:
            await driver.crash()
            drivers[number] = await another()
        else:
            done = max(done, batch + 1)
        for bookie in appends_cluster.bookies[1:]:
            bookie.reject = None
    for bookie in appends_cluster.bookies:
        bookie.reject = None
    last = await committed(appends_cluster, await appends_cluster.driver(), done, "segments")
    for batch in range(done + 1):
        assert await last.commit(batch, rng.choice(["append", "segments"])) is COVERED
    assert await appends_cluster.contents() == all_rows(done + 1)
    assert done > 5
    await appends_cluster.stop()
