"""A commit asks for everything at once, and publishes in the next request: what may come in between, and what it costs.

The mark, the logs' ends and the listings are read in the same breath as the locks. Each test here has somebody do
something between a reading and what was built on it (I7, I9, D13, D15).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from helpers.spark.sink_world import NS, QUIET_TURNS, SINK, Process, SinkWorld, job, round_trips

from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.messages import IdOrigin, Publication
from metadata.distributedlog.locks import DistributedLock
from metadata.distributedlog.segments import SegmentMetadata
from metadata.distributedlog.sink_marks import LogMark
from metadata.zookeeper.memory import Fault

pytestmark = pytest.mark.usefixtures("frames")


def meanwhile(process: Process, request: str, path: str, action: Callable[[], Awaitable[object]]) -> Callable[[], bool]:
    """Before the process makes its next `request` for `path`, let `action` happen, once. Returns whether it did."""
    original = getattr(process.store, request)
    pending = [action]

    async def wrapped(first, *rest, **more):
        asked = first if isinstance(first, str) else first[0].path
        if pending and asked == path:
            await pending.pop()()
        return await original(first, *rest, **more)

    setattr(process.store, request, wrapped)
    return lambda: not pending


STATE = f"{NS}/.sinks/{SINK}"
"""Which the publishing multi begins with."""
MARK = f"{NS}/flights/<default>/sink-{SINK}"


async def ready(driver: Process, *logs: str) -> None:
    """The process has published into these logs before."""
    batch = await driver.stage(job(0, "first"), [(log, 0, 9) for log in logs])
    assert await driver.publish(batch) is CommitOutcome.PUBLISHED


async def test_a_commit_asks_once_and_publishes(sink_world: SinkWorld, driver: Process) -> None:
    many = [f"log-{number:02d}" for number in range(40)]
    await ready(driver, "flights", "trains")
    await driver.commit(await driver.stage(job(0, "first"), [(log, 0, 9) for log in many]))
    costs = {}
    for number, logs in enumerate((["flights"], ["flights", "trains"], [], many), 1):
        batch = await driver.stage(job(number), [(log, 10 * number, 10 * number) for log in logs])

        async def commit(batch: Publication = batch) -> CommitOutcome:
            commit = await driver.publisher.publish(batch)
            await driver.sweeper.after_commit(batch.job, batch.logs, commit.left)
            return commit.outcome

        outcome, trips = await round_trips(sink_world.tree, driver.store, commit())
        assert outcome is CommitOutcome.PUBLISHED
        costs[len(logs)] = (sum(map(len, trips)), len(trips))
        assert trips[-1] == [f"multi {STATE}"]
    # Sink, listings, multi; and of each log its mark, the lock's member, its queue, three values, its segments and the
    # newest of them.
    assert costs == {0: (3, 2), 1: (11, 2), 2: (19, 2), 40: (323, 2)}


async def test_a_replay_costs_little_and_waits_for_no_lock(
    sink_world: SinkWorld, driver: Process, other_driver: Process
) -> None:
    await ready(driver, "flights")
    lock = DistributedLock(other_driver.store, other_driver.log_store.paths("flights").lock, "reporter-7")
    await lock.acquire(1000)
    replay = await driver.stage(job(0, "again"), [("flights", 0, 9)])
    assert await asyncio.wait_for(driver.publish(replay), 60) is CommitOutcome.COVERED
    queue, _ = await other_driver.store.children(other_driver.log_store.paths("flights").lock)
    assert len(queue) == 1  # the commit's own place in it was given up
    await lock.release()


async def test_a_mark_that_moves_after_it_was_read_stops_the_publication(
    driver: Process, other_driver: Process
) -> None:
    """Another driver of the query has published the batch, and not noticed yet that it had lost the lock."""
    await ready(driver, "flights")
    ours = await driver.stage(job(1, "ours"), [("flights", 10, 19)])
    paths = other_driver.log_store.paths("flights")

    async def publish() -> None:
        found = await other_driver.sinks.mark_in(paths, SINK)
        assert found is not None
        moved = found.value.moved(1, "theirs", 10, 64)
        await other_driver.store.multi([other_driver.sinks.mark_op(paths, SINK, found, moved)])

    happened = meanwhile(driver, "multi", STATE, publish)
    assert await driver.publish(ours) is CommitOutcome.COVERED
    assert happened()
    assert len(await driver.segments("flights")) == 1
    assert await driver.mark("flights") == LogMark(1, "theirs")


async def deposed_writer_begins(other_driver: Process, lssn: int, txid: int, ledger_id: int = 77) -> None:
    """Somebody who has not noticed yet that he lost the lock begins a segment."""
    state = await other_driver.log_store.open("flights")
    left = SegmentMetadata(ledger_id=ledger_id, lssn=lssn, first_txid=txid, in_progress=True)
    await other_driver.log_store.start_segment("flights", state, left)


@pytest.mark.parametrize(
    ("request_kind", "path"),
    [("multi", STATE), ("get", f"{NS}/flights/<default>/ledgers"), ("get", MARK), ("get", STATE)],
)
async def test_a_segment_begun_while_a_log_is_read_or_after_it_is_not_overlooked(
    sink_world: SinkWorld, driver: Process, other_driver: Process, request_kind: str, path: str
) -> None:
    await ready(driver, "flights")
    batch = await driver.stage(job(1), [("flights", 50, 60)])
    happened = meanwhile(driver, request_kind, path, lambda: deposed_writer_begins(other_driver, 2, 20))
    assert await driver.publish(batch) is CommitOutcome.PUBLISHED
    assert happened()
    assert driver.recovered == ["flights"]
    assert [(s.lssn, s.first_txid) for s in await driver.segments("flights")] == [(1, 0), (2, 20), (3, 50)]


async def test_a_list_of_segments_older_than_the_logs_values_is_not_taken_for_theirs(
    sink_world: SinkWorld, driver: Process, other_driver: Process
) -> None:
    """The list is answered, a segment begins, the values are answered: the newest number, without the open segment."""
    await ready(driver, "flights")
    async with driver.logs.hold("flights") as held:
        await held.find_end()
    happened = meanwhile(
        driver, "get", f"{NS}/flights/<default>/ledgers", lambda: deposed_writer_begins(other_driver, 2, 20)
    )
    with pytest.raises(Exception, match="changed while it was read"):
        async with driver.logs.hold("flights") as held:
            await held.find_end()
    assert happened()


async def test_a_log_deleted_and_made_again_after_it_was_read_gets_nothing_at_the_old_place(
    sink_world: SinkWorld, driver: Process, other_driver: Process
) -> None:
    """With the same versions as before: only the member of the lock, which went with the log, tells them apart."""
    await ready(driver, "flights")

    async def replace() -> None:
        await other_driver.log_store.delete_tree("flights")
        fresh = await other_driver.stage(job(0, "b", "sink-2"), [("flights", 70, 79)])
        assert await other_driver.publish(fresh) is CommitOutcome.PUBLISHED

    batch = await driver.stage(job(1), [("flights", 80, 89)])
    happened = meanwhile(driver, "multi", STATE, replace)
    assert await driver.publish(batch) is CommitOutcome.PUBLISHED
    assert happened()
    assert [(s.lssn, s.first_txid) for s in await driver.segments("flights")] == [(1, 70), (2, 80)]


async def test_after_a_wait_for_the_lock_everything_is_read_again(
    sink_world: SinkWorld, driver: Process, other_driver: Process
) -> None:
    await ready(driver, "flights")
    holding = DistributedLock(other_driver.store, other_driver.log_store.paths("flights").lock, "reporter-7")
    await holding.acquire(1000)
    batch = await driver.stage(job(1), [("flights", 50, 60)])
    multis = 0

    def count(session: int, operation: str, path: str) -> None:
        nonlocal multis
        multis += session == driver.store.session_id and operation == "multi"

    sink_world.tree.inject = count
    publishing = asyncio.ensure_future(driver.publish(batch))
    for _ in range(QUIET_TURNS):
        await asyncio.sleep(0)
    assert len((await other_driver.store.children(other_driver.log_store.paths("flights").lock))[0]) == 2
    await deposed_writer_begins(other_driver, 2, 20)  # here he is the owner
    await holding.release()
    assert await publishing is CommitOutcome.PUBLISHED
    sink_world.tree.inject = None
    assert multis == 2  # the open segment's completion and the publication: nothing was built on the first look
    assert [s.lssn for s in await driver.segments("flights")] == [1, 2, 3]


async def test_a_guess_at_the_newest_segment_that_is_wrong_is_not_used(
    sink_world: SinkWorld, driver: Process, other_driver: Process
) -> None:
    await ready(driver, "flights")
    for number, rows in ((0, 3), (1, 5)):
        theirs = await other_driver.stage(job(number, "t", "sink-2"), [("flights", 20, 20)], count=rows)
        assert await other_driver.publish(theirs) is CommitOutcome.PUBLISHED
    batch = await driver.stage(job(1), [("flights", 50, 60)])
    outcome, trips = await round_trips(sink_world.tree, driver.store, driver.publish(batch))
    assert outcome is CommitOutcome.PUBLISHED
    assert len(trips) == 3  # the newest segment is asked for once its number is known
    assert [s.start_sequence_id for s in await driver.segments("flights")] == [0, 10, 13, 18]


async def test_what_is_listed_while_a_batch_is_published_is_left_to_the_next_commit(
    sink_world: SinkWorld, driver: Process, other_driver: Process
) -> None:
    await ready(driver, "flights")
    dead = await driver.stage(job(1, "dead"), [("flights", 10, 19)])
    batch = await driver.stage(job(1), [("flights", 10, 19)])
    happened = meanwhile(driver, "multi", STATE, lambda: other_driver.write(job(1, "zombie"), "flights", 0, 10))
    commit = await driver.publisher.publish(batch)
    assert happened()
    assert commit.left == (dead.job.staged(dead.segments[0].ledger_id, dead.segments[0].log),)
    assert await driver.sweeper.after_commit(job(1), ["flights"], commit.left) == 1
    assert [ledger.attempt for ledger in await driver.sinks.staged(SINK)] == ["zombie"]
    commit = await driver.publisher.publish(await driver.stage(job(2), [("flights", 20, 29)]))
    assert await driver.sweeper.after_commit(job(2), ["flights"], commit.left) == 1
    assert await driver.sinks.staged(SINK) == []
    assert set(sink_world.ledgers) == {s.ledger_id for s in await driver.segments("flights")}


async def test_a_batch_write_that_was_listed_into_meanwhile_leaves_neither_ledger_nor_sink(
    sink_world: SinkWorld, driver: Process, other_driver: Process
) -> None:
    one = job(0, "a", "job-a")
    batch = await driver.stage(one, [("flights", 0, 9)])
    happened = meanwhile(driver, "multi", f"{NS}/.sinks/job-a", lambda: other_driver.write(one, "flights", 1, 10))
    commit = await driver.publisher.publish(batch)
    assert happened()
    assert commit.left == ()
    assert await driver.sweeper.after_commit(one, ["flights"], commit.left) == 1
    assert await driver.sinks.sinks() == []
    assert set(sink_world.ledgers) == {batch.segments[0].ledger_id}


async def test_ledgers_that_were_written_again_are_known_to_be_left(sink_world: SinkWorld, driver: Process) -> None:
    await driver.publish(await driver.stage(job(0), [("flights", 0, 500)]))
    batch = await driver.stage(job(1), [("flights", 400, 400)], origin=IdOrigin.STAMPED)
    commit = await driver.publisher.publish(batch)
    assert commit.left == (batch.job.staged(batch.segments[0].ledger_id, batch.segments[0].log),)
    assert await driver.sweeper.after_commit(job(1), ["flights"], commit.left) == 1
    assert set(sink_world.ledgers) == {s.ledger_id for s in await driver.segments("flights")}


async def test_a_publication_whose_answer_was_lost_says_that_nobody_looked_what_is_left(
    sink_world: SinkWorld, driver: Process
) -> None:
    await ready(driver, "flights")
    await driver.stage(job(1, "dead"), [("flights", 10, 19)])
    batch = await driver.stage(job(1), [("flights", 10, 19)])
    struck = []

    def lose(_session: int, operation: str, path: str) -> Fault | None:
        if operation == "multi" and path == STATE and not struck:
            struck.append(path)
            return Fault.LOSE_REPLY
        return None

    sink_world.tree.inject = lose
    commit = await driver.publisher.publish(batch)
    sink_world.tree.inject = None
    assert struck
    assert (commit.outcome, commit.left) == (CommitOutcome.PUBLISHED, None)
    assert await driver.sweeper.after_commit(job(1), ["flights"], commit.left) == 1
    assert await driver.sinks.staged(SINK) == []


async def test_a_lock_lost_and_won_again_before_the_multi_does_not_publish_on_the_old_look(
    sink_world: SinkWorld, driver: Process, other_driver: Process
) -> None:
    await ready(driver, "flights")
    batch = await driver.stage(job(1), [("flights", 50, 60)])
    multis: list[str] = []

    def count(_session: int, operation: str, path: str) -> None:
        if operation == "multi" and path == STATE:
            multis.append(path)

    async def expire() -> None:
        sink_world.tree.expire(driver.store.session_id)
        for _ in range(50):
            await asyncio.sleep(0)  # the lock is acquired again in the background

    sink_world.tree.inject = count
    happened = meanwhile(driver, "multi", STATE, expire)
    assert await driver.publish(batch) is CommitOutcome.PUBLISHED
    sink_world.tree.inject = None
    assert happened()
    assert len(multis) == 2
    assert [s.lssn for s in await driver.segments("flights")] == [1, 2]


async def test_an_empty_publication_settles_what_its_own_job_has_left_and_nothing_else(driver: Process) -> None:
    await driver.stage(job(0, "another"), [("flights", 0, 9)])
    twice = await driver.stage(job(0, "b"), [("flights", 0, 9)])
    commit = await driver.publisher.publish(Publication(job(0, "b"), ()))
    assert commit.left == (twice.job.staged(twice.segments[0].ledger_id, "flights"),)


async def test_a_publication_that_is_cut_off_leaves_no_lock_and_no_task(sink_world: SinkWorld, driver: Process) -> None:
    """Cut off at each of its moments: what it holds is given up, and the batch can be published after it."""
    await ready(driver, "flights", "trains")
    before = asyncio.all_tasks()
    for number, turns in enumerate(range(1, 40), 1):
        batch = await driver.stage(
            job(number), [("flights", number + 9, number + 9), ("trains", number + 9, number + 9)]
        )
        cut = asyncio.ensure_future(driver.publish(batch))
        for _ in range(turns):
            await asyncio.sleep(0)
        cut.cancel()
        await asyncio.wait([cut])
        assert asyncio.all_tasks() == before
        for log in ("flights", "trains"):
            assert (await driver.store.children(driver.log_store.paths(log).lock))[0] == []
        assert await driver.publish(batch) is CommitOutcome.PUBLISHED
        assert len(await driver.segments("flights")) == number + 1
