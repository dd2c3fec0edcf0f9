"""Publishing a batch: whole or not at all, once, whatever the metadata store and other drivers do (I9, D13 to D16)."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace

import pytest
from helpers.spark.sink_world import NS, SINK, Process, SinkWorld, job, staged_segment

from dlspark.spark.errors import (
    BatchRefusedError,
    BatchSweptError,
    LogBusyError,
    PublishUnknownError,
    ReplayDiffersError,
    TransactionOrderError,
)
from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.driver import gather
from dlspark.spark.sink.messages import IdOrigin, JobId, Publication, SinkMessage, order_segments
from dlspark.spark.sink.segments import commit as sink_commit
from dlspark.spark.sink.segments.merging import MAX_MERGED_BYTES, MAX_MERGED_RECORDS, plan_merges
from metadata.distributedlog.locks import DistributedLock
from metadata.distributedlog.segments import SegmentMetadata
from metadata.distributedlog.sink_marks import MAX_HISTORY, LogMark, SinkState
from metadata.foundation.errors import CorruptDataError, MetadataUnavailableError
from metadata.zookeeper.memory import Fault

pytestmark = pytest.mark.usefixtures("frames")


async def test_a_batch_appears_in_all_its_logs_and_moves_the_mark(driver: Process) -> None:
    batch = await driver.stage(job(), [("flights", 10, 19), ("trains", 5, 9), ("flights", 0, 10)])
    assert await driver.publish(batch) is CommitOutcome.PUBLISHED
    flights = await driver.segments("flights")
    assert [(s.lssn, s.first_txid, s.last_txid, s.start_sequence_id, s.record_count) for s in flights] == [
        (1, 0, 10, 0, 10),
        (2, 10, 19, 10, 10),
    ]
    assert all(s.version == 5 and not s.in_progress and s.last_slot == 9 for s in flights)
    assert [s.ledger_id for s in flights] == [batch.segments[2].ledger_id, batch.segments[0].ledger_id]
    assert [s.lssn for s in await driver.segments("trains")] == [1]
    state = await driver.log_store.open("flights")
    assert (state.max_lssn.value, state.max_txid.value) == (2, 19)
    for log, rows in (("flights", 20), ("trains", 10)):
        mark = await driver.mark(log)
        assert mark is not None
        assert (mark, mark.rows) == (LogMark(0, "a"), ((0, rows),))
    state = await driver.sinks.read(SINK)
    assert state is not None
    assert state.value == SinkState(0, "a", 30)
    assert await driver.sinks.staged(SINK) == []


async def test_batches_continue_numbers_and_sequence_ids(driver: Process) -> None:
    for number in range(4):
        batch = await driver.stage(job(number), [("flights", number * 10, number * 10 + 10)], count=7)
        assert await driver.publish(batch) is CommitOutcome.PUBLISHED
    segments = await driver.segments("flights")
    assert [s.lssn for s in segments] == [1, 2, 3, 4]
    assert [s.start_sequence_id for s in segments] == [0, 7, 14, 21]


async def test_an_empty_batch_is_noted_and_keeps_its_number_from_no_log(driver: Process) -> None:
    assert await driver.publish(await driver.stage(job(3), [])) is CommitOutcome.PUBLISHED
    state = await driver.sinks.read(SINK)
    assert state is not None
    assert state.value == SinkState(3, "a", 0)
    assert await driver.publish(await driver.stage(job(3, "b"), [])) is CommitOutcome.COVERED
    # Whoever has rows of that number has them for a log that has nothing of it.
    assert await driver.publish(await driver.stage(job(3, "c"), [("flights", 0, 1)])) is CommitOutcome.PUBLISHED


@pytest.mark.parametrize("number", [0, 3, 5])
async def test_a_batch_at_or_below_the_mark_is_skipped(driver: Process, number: int) -> None:
    for published in (0, 3, 5):
        await driver.publish(await driver.stage(job(published), [("flights", 10 * published, 10 * published)]))
    replay = await driver.stage(job(number, "b"), [("flights", 10 * number, 10 * number)])
    assert await driver.publish(replay) is CommitOutcome.COVERED
    assert len(await driver.segments("flights")) == 3


async def test_publishing_the_same_attempt_twice_leaves_one_copy(driver: Process) -> None:
    batch = await driver.stage(job(), [("flights", 0, 9)])
    assert await driver.publish(batch) is CommitOutcome.PUBLISHED
    assert await driver.publish(batch) is CommitOutcome.PUBLISHED
    assert len(await driver.segments("flights")) == 1


async def test_a_lost_answer_of_the_publishing_multi_leaves_one_copy(sink_world: SinkWorld, driver: Process) -> None:
    batch = await driver.stage(job(), [("flights", 0, 9), ("trains", 0, 9)])
    hits = 0

    def inject(_session: int, operation: str, _path: str) -> Fault | None:
        nonlocal hits
        if operation == "multi" and hits == 0 and publishing(driver):
            hits += 1
            return Fault.LOSE_REPLY
        return None

    await driver.logs.prepare("flights")
    await driver.logs.prepare("trains")
    sink_world.tree.inject = inject
    assert await driver.publish(batch) is CommitOutcome.PUBLISHED
    assert hits == 1
    assert len(await driver.segments("flights")) == len(await driver.segments("trains")) == 1


def publishing(_driver: Process) -> bool:
    return True


async def test_every_single_fault_at_every_request_leaves_exactly_one_copy() -> None:
    """Walk through the publication, striking each request in turn in each way."""
    for fault in (Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.REFUSE):
        reached = 0
        for strike_at in range(200):
            sink_world = SinkWorld()
            await sink_world.set_up()
            driver = Process(sink_world)
            batch = await driver.stage(job(), [("flights", 0, 9), ("trains", 0, 9), ("flights", 9, 12)])
            requests = 0

            def inject(
                _session: int, _operation: str, _path: str, at: int = strike_at, kind: Fault = fault
            ) -> Fault | None:
                nonlocal requests
                requests += 1
                return kind if requests == at + 1 else None

            sink_world.tree.inject = inject
            assert await driver.publish(batch) is CommitOutcome.PUBLISHED
            sink_world.tree.inject = None
            struck = requests > strike_at
            reached += struck
            assert [s.lssn for s in await driver.segments("flights")] == [1, 2]
            assert [s.lssn for s in await driver.segments("trains")] == [1]
            assert await driver.sinks.staged(SINK) == []
            await driver.store.close()
            if not struck:
                break
        assert reached > 10, fault


async def test_a_session_that_expires_in_the_middle_leaves_exactly_one_copy() -> None:
    for strike_at in range(200):
        sink_world = SinkWorld()
        await sink_world.set_up()
        driver = Process(sink_world)
        batch = await driver.stage(job(), [("flights", 0, 9), ("trains", 0, 9)])
        requests = 0

        def inject(
            session: int, _operation: str, _path: str, sink_world: SinkWorld = sink_world, at: int = strike_at
        ) -> None:
            nonlocal requests
            requests += 1
            if requests == at + 1:
                asyncio.get_running_loop().call_soon(sink_world.tree.expire, session)

        sink_world.tree.inject = inject
        assert await driver.publish(batch) is CommitOutcome.PUBLISHED
        sink_world.tree.inject = None
        assert len(await driver.segments("flights")) == len(await driver.segments("trains")) == 1
        await driver.store.close()
        if requests <= strike_at:
            break
    else:
        pytest.fail("the publication never came to its end")


async def test_a_log_deleted_between_two_batches_is_created_again(sink_world: SinkWorld) -> None:
    driver = Process(sink_world)
    assert await driver.publish(await driver.stage(job(0), [("flights", 0, 9)])) is CommitOutcome.PUBLISHED
    await driver.log_store.delete_tree("flights")
    assert await driver.publish(await driver.stage(job(1), [("flights", 0, 9)])) is CommitOutcome.PUBLISHED
    assert [s.lssn for s in await driver.segments("flights")] == [1]


async def test_two_drivers_with_one_batch_publish_one_copy_and_both_go_on(sink_world: SinkWorld) -> None:
    drivers = [Process(sink_world, seed=seed, owner=f"driver-{seed}") for seed in range(2)]
    for number in range(5):
        batches = [
            await driver.stage(job(number, f"attempt{at}"), [("flights", number, number), ("trains", number, number)])
            for at, driver in enumerate(drivers)
        ]
        outcomes = await asyncio.gather(
            *(driver.publish(batch) for driver, batch in zip(drivers, batches, strict=True))
        )
        assert sorted(outcome.value for outcome in outcomes) == ["covered", "published"]
    segments = await drivers[0].segments("flights")
    assert [s.lssn for s in segments] == [1, 2, 3, 4, 5]
    for driver in drivers:
        await driver.sweep()
        await driver.store.close()
    published = {s.ledger_id for s in segments} | {s.ledger_id for s in await Process(sink_world).segments("trains")}
    assert set(sink_world.ledgers) == published


async def test_two_sinks_into_the_same_logs_both_get_in_whatever_their_order(sink_world: SinkWorld) -> None:
    drivers = [Process(sink_world, seed=seed, owner=f"driver-{seed}") for seed in range(3)]
    batches = [
        await driver.stage(
            job(0, f"attempt{at}", f"sink-{at}"), [("flights", 7, 7), ("trains", 7, 7)], origin=IdOrigin.STAMPED
        )
        for at, driver in enumerate(drivers)
    ]
    outcomes = await asyncio.gather(*(driver.publish(batch) for driver, batch in zip(drivers, batches, strict=True)))
    assert set(outcomes) == {CommitOutcome.PUBLISHED}
    assert [s.lssn for s in await drivers[0].segments("flights")] == [1, 2, 3]
    assert [s.start_sequence_id for s in await drivers[0].segments("trains")] == [0, 10, 20]
    for driver in drivers:
        await driver.store.close()


@pytest.mark.parametrize("frames", ["raw"], indirect=True)  # ids that a user gives
async def test_ids_that_overlap_between_tasks_fail_the_batch_whole(driver: Process) -> None:
    batch = await driver.stage(job(), [("trains", 0, 9), ("flights", 0, 10), ("flights", 9, 20)])
    with pytest.raises(TransactionOrderError, match="task 1 wrote 0 to 10, task 2 wrote 9 to 20") as caught:
        await driver.publish(batch)
    assert caught.value.log == "flights"
    assert "repartitionByRange" in str(caught.value)
    assert not await driver.log_store.exists("trains")
    state = await driver.sinks.read(SINK)
    assert state is not None
    assert state.value == SinkState()


@pytest.mark.parametrize("frames", ["raw"], indirect=True)  # ids that a user gives
async def test_ids_below_the_highest_of_one_log_fail_the_batch_whole(driver: Process) -> None:
    await driver.publish(await driver.stage(job(0), [("flights", 0, 20)]))
    batch = await driver.stage(job(1), [("trains", 0, 9), ("flights", 19, 30)])
    with pytest.raises(
        TransactionOrderError, match="begins at transaction id 19, below the log's highest, 20"
    ) as caught:
        await driver.publish(batch)
    assert caught.value.log == "flights"
    assert await driver.segments("trains") == []
    assert len(await driver.segments("flights")) == 1
    again = await driver.stage(job(1, "b"), [("flights", 20, 30)])
    assert await driver.publish(again) is CommitOutcome.PUBLISHED


def test_equal_ids_keep_the_order_of_tasks_and_touching_ranges_are_fine() -> None:
    segments = [staged_segment("x", 9 - n, n, 5, 5) for n in range(4)]
    assert [s.partition for s in order_segments("x", segments[::-1])] == [0, 1, 2, 3]
    touching = [staged_segment("x", 1, 0, 5, 9), staged_segment("x", 2, 1, 5, 5), staged_segment("x", 3, 2, 9, 9)]
    assert [s.partition for s in order_segments("x", touching)] == [1, 0, 2]


async def test_a_batch_with_its_own_timestamp_is_never_below_the_logs_highest(
    sink_world: SinkWorld, driver: Process
) -> None:
    await driver.publish(await driver.stage(job(0), [("flights", 0, 500)]))
    batch = await driver.stage(
        job(1), [("flights", 400, 400), ("flights", 450, 450), ("trains", 400, 400)], origin=IdOrigin.STAMPED
    )
    assert await driver.publish(batch) is CommitOutcome.PUBLISHED
    segments = await driver.segments("flights")
    assert [(s.first_txid, s.last_txid) for s in segments[1:]] == [(500, 500), (500, 500)]
    assert [sink_world.ledgers[s.ledger_id][1] for s in segments[1:]] == [0, 1]
    assert sink_world.rewritten == 2
    # The ledgers that were written again are left-overs now.
    assert len(await driver.sinks.staged(SINK)) == 2
    assert await driver.sweep() == 2
    assert len(sink_world.ledgers) == 4


async def test_a_sealed_log_refuses_the_batch_whole(driver: Process) -> None:
    await driver.publish(await driver.stage(job(0), [("flights", 0, 9)]))
    await seal(driver, "flights")
    for origin in IdOrigin:
        batch = await driver.stage(job(1, origin.value), [("flights", 10, 10), ("trains", 1, 1)], origin=origin)
        with pytest.raises(BatchRefusedError, match="sealed") as caught:
            await driver.publish(batch)
        assert caught.value.log == "flights"
        assert await driver.segments("trains") == []


async def seal(process: Process, log: str) -> None:
    state = await process.log_store.open(log)
    segment = SegmentMetadata(ledger_id=999, lssn=state.max_lssn.value + 1, first_txid=2**63 - 1, in_progress=True)
    state = await process.log_store.start_segment(log, state, segment)
    done = segment.completed(
        completion_time_ms=1, start_sequence_id=0, last_txid=2**63 - 1, record_count=0, last_entry=0, last_slot=0
    )
    await process.log_store.complete_segment(log, state, done, segment)


async def test_a_missing_log_is_an_error_where_it_may_not_be_created(sink_world: SinkWorld) -> None:
    driver = Process(sink_world, create_missing=False)
    batch = await driver.stage(job(), [("flights", 0, 9)])
    with pytest.raises(BatchRefusedError, match="createStreamIfNotExists") as caught:
        await driver.publish(batch)
    assert caught.value.log == "flights"
    assert not await driver.log_store.exists("flights")
    await driver.store.close()


async def test_a_live_writer_is_named_and_nothing_is_published(sink_world: SinkWorld, driver: Process) -> None:
    await driver.logs.prepare("flights")
    other = Process(sink_world)
    lock = DistributedLock(other.store, other.log_store.paths("flights").lock, "reporter-7")
    await lock.acquire(60_000)
    impatient = Process(sink_world, owner="sink", lock_timeout_ms=50)
    batch = await impatient.stage(job(), [("flights", 0, 9), ("trains", 0, 9)])
    with pytest.raises(LogBusyError, match="reporter-7") as caught:
        await impatient.publish(batch)
    assert caught.value.log == "flights"
    assert await driver.segments("flights") == []
    await lock.release()
    assert await impatient.publish(batch) is CommitOutcome.PUBLISHED
    for process in (other, impatient):
        await process.store.close()


@pytest.mark.parametrize("frames", ["raw"], indirect=True)  # ids that a user gives
async def test_what_a_dead_writer_left_in_progress_is_completed_first(driver: Process) -> None:
    await driver.logs.prepare("flights")
    state = await driver.log_store.open("flights")
    left = SegmentMetadata(ledger_id=77, lssn=1, first_txid=50, in_progress=True)
    await driver.log_store.start_segment("flights", state, left)
    below = await driver.stage(job(0, "b"), [("flights", 49, 60)])
    with pytest.raises(TransactionOrderError, match="below the log's highest, 50"):
        await driver.publish(below)
    assert driver.recovered == ["flights"]
    batch = await driver.stage(job(0, "c"), [("flights", 50, 60)])
    assert await driver.publish(batch) is CommitOutcome.PUBLISHED
    segments = await driver.segments("flights")
    assert [(s.lssn, s.ledger_id, s.start_sequence_id) for s in segments] == [
        (1, 77, 0),
        (2, batch.segments[0].ledger_id, 1),
    ]


async def test_more_segments_than_one_step_holds_are_merged_as_far_as_is_needed(
    sink_world: SinkWorld, driver: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_commit, "MAX_MULTI_BYTES", 30_000)
    parts = [("flights", n, n + 1) for n in range(150)] + [("trains", 5, 5), ("trains", 7, 7)]
    assert await driver.publish(await driver.stage(job(), parts)) is CommitOutcome.PUBLISHED
    flights = await driver.segments("flights")
    assert 20 < len(flights) < 150
    assert sum(s.record_count for s in flights) == 1500
    assert (flights[0].first_txid, flights[-1].last_txid) == (0, 150)
    assert all(before.last_txid <= after.first_txid for before, after in itertools.pairwise(flights))
    assert sum(s.record_count for s in await driver.segments("trains")) == 20
    assert len(await driver.sinks.staged(SINK)) > 20  # what was merged goes with the sweep
    await driver.sweep()
    published = {s.ledger_id for log in ("flights", "trains") for s in await driver.segments(log)}
    assert set(sink_world.ledgers) == published


async def test_a_commit_sweeps_all_that_merging_has_left(
    sink_world: SinkWorld, driver: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_commit, "MAX_MULTI_BYTES", 30_000)
    batch = await driver.stage(job(), [("flights", n, n) for n in range(1200)])
    assert await driver.commit(batch) is CommitOutcome.PUBLISHED
    assert await driver.sinks.staged(SINK) == []
    assert set(sink_world.ledgers) == {s.ledger_id for s in await driver.segments("flights")}


async def test_what_was_merged_for_one_try_is_not_merged_again_for_the_next(
    sink_world: SinkWorld, driver: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_commit, "MAX_MULTI_BYTES", 30_000)
    batch = await driver.stage(job(), [("flights", n, n) for n in range(150)])
    written: list[int] = []

    def inject(_session: int, operation: str, path: str) -> Fault | None:
        if operation == "multi" and len(written) < 3 and sink_world.rewritten:
            written.append(sink_world.rewritten)
            return Fault.LOSE_REQUEST
        return None

    sink_world.tree.inject = inject
    assert await driver.publish(batch) is CommitOutcome.PUBLISHED
    assert len(written) == 3
    assert written[0] == sink_world.rewritten


async def test_segments_too_many_to_be_merged_are_refused_before_anything_is_sent(
    sink_world: SinkWorld, driver: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_commit, "MAX_MULTI_BYTES", 20_000)
    batch = await driver.stage(job(), [(f"log-{n}", n, n) for n in range(101)])
    multis = 0

    def count(_session: int, operation: str, path: str) -> None:
        nonlocal multis
        multis += operation == "multi" and ".sinks" in path

    sink_world.tree.inject = count
    with pytest.raises(BatchRefusedError, match="too many") as caught:
        await driver.publish(batch)
    assert "coalesce" in str(caught.value)
    assert multis == sink_world.rewritten == 0
    assert await driver.segments("log-0") == []


async def test_eighteen_hundred_segments_fit_into_one_step_as_they_are(sink_world: SinkWorld, driver: Process) -> None:
    batch = await driver.stage(job(), [("flights", n, n) for n in range(1800)])
    assert await driver.publish(batch) is CommitOutcome.PUBLISHED
    assert len(await driver.segments("flights")) == 1800
    assert sink_world.rewritten == 0


def test_merges_are_planned_over_the_smallest_neighbours_and_within_bounds() -> None:
    sizes = [500, 10, 10, 900, 5, 5, 5, 800]
    segments = [
        replace(staged_segment("x", n, n, n, n), user_bytes=size, record_count=1) for n, size in enumerate(sizes)
    ]
    assert plan_merges([segments], 1, lambda _: 100) == [segments[4:6]]
    assert plan_merges([segments], 300, lambda _: 100) == [segments[1:3], segments[4:7]]
    (everything,) = plan_merges([segments], 700, lambda _: 100) or []
    assert everything == segments
    assert plan_merges([segments], 701, lambda _: 100) is None
    assert plan_merges([segments[:1], segments[1:2]], 1, lambda _: 100) is None  # of two logs
    large = [replace(one, user_bytes=MAX_MERGED_BYTES) for one in segments]
    assert plan_merges([large], 1, lambda _: 100) is None
    long = [replace(one, record_count=MAX_MERGED_RECORDS) for one in segments]
    assert plan_merges([long], 1, lambda _: 100) is None


async def test_an_attempt_whose_ledgers_were_condemned_is_refused(driver: Process) -> None:
    batch = await driver.stage(job(), [("flights", 0, 9), ("flights", 10, 19)])
    await driver.sinks.condemn(SINK, batch.job.staged(batch.segments[1].ledger_id, batch.segments[1].log))
    with pytest.raises(BatchSweptError):
        await driver.publish(batch)
    assert await driver.segments("flights") == []


async def test_a_sink_that_was_removed_does_not_come_back_to_life(driver: Process) -> None:
    batch = await driver.stage(job(), [])
    assert await driver.sinks.remove(SINK)
    with pytest.raises(BatchSweptError):
        await driver.publish(batch)
    assert await driver.sinks.read(SINK) is None


async def test_a_damaged_mark_stops_publication(driver: Process) -> None:
    batch = await driver.stage(job(), [("flights", 0, 9)])
    await driver.store.put(f"{NS}/.sinks/{SINK}", b"garbage", -1)
    with pytest.raises(CorruptDataError):
        await driver.publish(batch)


async def test_a_store_out_of_reach_ends_in_an_error_that_says_what_is_known(sink_world: SinkWorld) -> None:
    for fault, kind in ((Fault.REFUSE, MetadataUnavailableError), (Fault.LOSE_REQUEST, PublishUnknownError)):
        driver = Process(sink_world, deadline_s=0.2)
        batch = await driver.stage(job(0, "x"), [("flights", 0, 9)])
        sink_world.tree.inject = lambda _session, _operation, _path, fault=fault: fault
        with pytest.raises(kind):
            await driver.publish(batch)
        sink_world.tree.inject = None
        await driver.sweeper.own(batch.job)
        await driver.store.close()


async def test_an_abort_after_a_lost_answer_touches_nothing_that_was_published(
    sink_world: SinkWorld, driver: Process
) -> None:
    batch = await driver.stage(job(), [("flights", 0, 9)])
    await driver.publish(batch)
    assert await driver.sweeper.own(batch.job) == 0
    assert set(sink_world.ledgers) == {batch.segments[0].ledger_id}


async def test_an_abort_before_publication_decides_against_it(sink_world: SinkWorld, driver: Process) -> None:
    batch = await driver.stage(job(), [("flights", 0, 9), ("trains", 0, 9)])
    assert await driver.sweeper.own(batch.job) == 2
    assert sink_world.ledgers == {}
    assert await driver.sinks.staged(SINK) == []
    with pytest.raises(BatchSweptError):
        await driver.publish(batch)


async def test_an_abort_leaves_other_attempts_alone(sink_world: SinkWorld, driver: Process) -> None:
    other = await driver.stage(job(0, "other"), [("flights", 0, 9)])
    mine = await driver.stage(job(0, "mine"), [("flights", 0, 9)])
    await driver.write(mine.job, "flights", 1, 10)  # by a task that told nobody
    assert await driver.sweeper.own(mine.job) == 2
    assert await driver.publish(other) is CommitOutcome.PUBLISHED
    assert set(sink_world.ledgers) == {other.segments[0].ledger_id}


async def test_an_aborted_batch_write_leaves_no_sink(driver: Process) -> None:
    batch = await driver.stage(job(0, "a", "job-a"), [("flights", 0, 9)])
    assert await driver.sweeper.own(batch.job) == 1
    assert await driver.sinks.sinks() == []


async def test_a_sweep_takes_what_the_mark_has_settled_and_leaves_the_rest(
    sink_world: SinkWorld, driver: Process
) -> None:
    await driver.stage(job(0, "dead"), [("flights", 0, 9)])
    ahead = await driver.stage(job(2, "early"), [("flights", 90, 99)])
    await driver.publish(await driver.stage(job(1), [("flights", 0, 9)]))
    assert await driver.sweep() == 1
    assert await driver.sinks.staged(SINK) == [ahead.job.staged(ahead.segments[0].ledger_id, ahead.segments[0].log)]
    assert len(sink_world.ledgers) == 2
    assert await driver.sweep() == 0


async def test_a_sweep_that_died_in_the_middle_is_finished_by_the_next(sink_world: SinkWorld, driver: Process) -> None:
    dead = await driver.stage(job(0, "dead"), [("flights", 0, 9)])
    await driver.publish(await driver.stage(job(0), [("flights", 0, 9)]))
    await driver.sinks.condemn(SINK, dead.job.staged(dead.segments[0].ledger_id, dead.segments[0].log))
    assert await driver.sweep() == 1
    assert await driver.sinks.staged(SINK) == []


async def test_a_failing_sweep_fails_no_batch(driver: Process, caplog: pytest.LogCaptureFixture) -> None:
    await driver.stage(job(0, "dead"), [("flights", 0, 9)])
    await driver.publish(await driver.stage(job(0), [("flights", 0, 9)]))

    async def fail(_ledger_id: int) -> None:
        raise MetadataUnavailableError("no answer")

    driver.sweeper._delete_ledger = fail
    assert await driver.sweeper.after_commit(job(), ["flights"]) == 0
    assert "were not swept" in caplog.text
    assert len(await driver.sinks.staged(SINK)) == 1


async def test_a_finished_job_leaves_no_sink_behind(driver: Process) -> None:
    one = job(0, "a", "job-a")
    await driver.publish(await driver.stage(one, [("flights", 0, 9)]))
    assert await driver.sweeper.after_commit(one, ["flights"]) == 0
    assert await driver.sinks.sinks() == []


async def test_jobs_abandoned_for_a_day_are_swept_and_their_zombies_refused(sink_world: SinkWorld) -> None:
    now = 1_000_000_000_000
    sink_world.tree._now_ms = lambda: now  # the server's clock
    driver = Process(sink_world)
    old = await driver.stage(job(0, "old", "job-old"), [("flights", 0, 9)])
    now += 23 * 3_600_000
    young = await driver.stage(job(0, "young", "job-young"), [("flights", 0, 9)])
    mine = await driver.stage(job(0, "mine", "job-mine"), [("flights", 0, 9)])
    await driver.publish(mine)
    assert await driver.sweeper.abandoned_jobs("job-mine") == 0
    now += 2 * 3_600_000
    later = job(0, "later", "job-later")
    await driver.publish(await driver.stage(later, [("flights", 9, 19)]))
    assert await driver.sweeper.abandoned_jobs("job-later") == 1
    assert await driver.sinks.sinks() == ["job-later", "job-mine", "job-young"]
    with pytest.raises(BatchSweptError):
        await driver.publish(old)
    assert (
        await driver.publish(Publication(young.job, ())) is CommitOutcome.PUBLISHED
    )  # still alive: its own commit decides
    await driver.store.close()


def test_messages_of_one_job_make_one_publication() -> None:
    segments = [staged_segment("x", n, n, n, n) for n in range(3)]
    messages = [SinkMessage(job(), segments=(segment,)) for segment in segments]
    assert gather(messages) == [Publication(job(), tuple(segments))]
    assert len(gather([*messages, SinkMessage(job(0, "b"))])) == 2
    assert gather([]) == []


async def test_a_replay_with_the_rows_it_had_is_skipped_and_another_batch_of_its_number_is_refused(
    sink_world: SinkWorld, driver: Process
) -> None:
    async def counted(number: int, rows: int, attempt: str) -> Publication:
        return await driver.stage(job(number, attempt), [("flights", number, number)], count=rows)

    for number in range(4):
        assert await driver.publish(await counted(number, 10 + number, "a")) is CommitOutcome.PUBLISHED
    for number in range(4):
        assert await driver.publish(await counted(number, 10 + number, "b")) is CommitOutcome.COVERED
        with pytest.raises(
            ReplayDiffersError, match=f"with {10 + number} rows into this log, and now has 25"
        ) as caught:
            await driver.publish(await counted(number, 25, "c"))
        assert caught.value.log == "flights"
        # A batch without rows differs where it is known what it could have written.
        none = Publication(job(number, "d"), (), known=("flights",))
        with pytest.raises(ReplayDiffersError, match="and now has none"):
            await driver.publish(none)
        assert await driver.publish(replace(none, known=("trains",))) is CommitOutcome.COVERED
    assert len(await driver.segments("flights")) == 4
    await driver.sweep()
    assert len(sink_world.ledgers) == 4


@pytest.mark.parametrize("sink", [SINK, "app-nightly"])
async def test_a_batch_older_than_the_counts_that_are_kept_is_refused(driver: Process, sink: str) -> None:
    for number in range(MAX_HISTORY + 2):
        batch = await driver.stage(job(number, "a", sink), [("flights", number, number)])
        assert await driver.publish(batch) is CommitOutcome.PUBLISHED
    mark = await driver.mark("flights", sink)
    assert mark is not None
    assert (len(mark.rows), mark.since) == (MAX_HISTORY, 2)
    for number, outcome in ((2, CommitOutcome.COVERED), (1, None)):
        again = await driver.stage(job(number, "b", sink), [("flights", number, number)])
        if outcome is not None:
            assert await driver.publish(again) is outcome
            continue
        with pytest.raises(ReplayDiffersError, match="older than the batches whose numbers of rows are kept") as caught:
            await driver.publish(again)
        assert caught.value.log == "flights"


def test_a_batchs_rows_are_those_that_its_tasks_staged_and_those_that_they_skipped() -> None:
    staged = SinkMessage(job(), (staged_segment("x", 1, 0, 5, 5), staged_segment("y", 2, 0, 5, 5)))
    replayed = SinkMessage(job(), covered=(("x", 7), ("z", 1)))
    (both,) = gather([staged, replayed])
    assert (both.rows, both.rows_by_log, both.logs) == (28, {"x": 17, "y": 10, "z": 1}, ["x", "y", "z"])
    assert gather([SinkMessage(job())], ["x"]) == [Publication(job(), (), known=("x",))]


# ---- random schedules ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
async def test_random_schedules_leave_one_whole_copy_of_each_batch(seed: int) -> None:
    """Two drivers of one query, each dying and starting again, with faults at random requests: every batch once."""
    rng = random.Random(seed)
    sink_world = SinkWorld()
    await sink_world.set_up()
    logs = ["a", "b", "c"]
    plan = [sorted(rng.sample(logs, rng.randint(0, 3))) for _ in range(6)]
    faults = 0

    def inject(session: int, _operation: str, _path: str) -> Fault | None:
        nonlocal faults
        if faults > 60 or rng.random() > 0.06:
            return None
        faults += 1
        kind = rng.choice([Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.REFUSE, None])
        if kind is None:
            asyncio.get_running_loop().call_soon(expire, sink_world, session)
        return kind

    sink_world.tree.inject = inject
    await asyncio.wait_for(asyncio.gather(*(drive(sink_world, plan, rng, name) for name in ("x", "y"))), 60)
    sink_world.tree.inject = None
    await check_world(sink_world, plan)


def expire(sink_world: SinkWorld, session: int) -> None:
    if session in sink_world.tree._sessions:
        sink_world.tree.expire(session)


async def drive(sink_world: SinkWorld, plan: list[list[str]], rng: random.Random, name: str) -> None:
    """A driver that keeps its place in no better way than Spark: it may lose the last batch's commit entry."""
    number, attempts = 0, 0
    while number < len(plan):
        attempts += 1
        process = Process(sink_world, seed=rng.randrange(1 << 30), owner=name)
        run = asyncio.ensure_future(one_batch(process, plan[number], JobId(SINK, number, f"{name}{attempts}"), rng))
        if rng.random() < 0.3:
            for _ in range(rng.randrange(200)):
                await asyncio.sleep(0)
            run.cancel()
        published = await settled(run)
        sink_world.tree.expire(process.store.session_id)
        await process.store.close()
        if published and rng.random() > 0.2:  # else: killed before Spark's commit log knew
            number += 1


async def settled(run: asyncio.Future[CommitOutcome]) -> bool:
    try:
        await run
    except asyncio.CancelledError:
        return False
    except (BatchSweptError, MetadataUnavailableError):
        return False  # another driver's sweep got this attempt; Spark would start the query again
    return True


async def one_batch(process: Process, logs: list[str], this: JobId, rng: random.Random) -> CommitOutcome:
    first = this.batch * 10
    parts = [(log, first + 5 * half, first + 5 * half + 5) for log in logs for half in range(2)]
    batch = await process.stage(this, parts)
    if rng.random() < 0.3:
        await process.stage(JobId(this.sink_id, this.batch, this.attempt), parts[:1])  # a task that ran twice
    outcome = await process.publish(batch)
    await process.sweeper.after_commit(batch.job, batch.logs)
    return outcome


async def check_world(sink_world: SinkWorld, plan: list[list[str]]) -> None:
    process = Process(sink_world)
    await process.sweep()
    assert await process.sinks.staged(SINK) == []
    published: dict[int, str] = {}
    for log in ("a", "b", "c"):
        segments = await process.segments(log) if await process.log_store.exists(log) else []
        expected = [number * 10 + 5 * half for number, logs in enumerate(plan) if log in logs for half in range(2)]
        assert [s.first_txid for s in segments] == expected
        assert [s.lssn for s in segments] == list(range(1, len(expected) + 1))
        assert [s.start_sequence_id for s in segments] == [10 * n for n in range(len(expected))]
        published |= {s.ledger_id: log for s in segments}
        for before, after in zip(segments[::2], segments[1::2], strict=True):
            assert (
                sink_world.ledgers[before.ledger_id][2] == sink_world.ledgers[after.ledger_id][2]
            )  # one attempt's batch
    assert set(sink_world.ledgers) == set(published)
    state = await process.sinks.read(SINK)
    assert state is not None
    assert state.value.batch == len(plan) - 1
    await process.store.close()
