"""A batch belongs to (writer, log): each log gets it once, whatever other logs have got under its number (I9).

The txnAppId of two tables, forks of a copied checkpoint, logs that are deleted, made again or renamed.
"""

from __future__ import annotations

import asyncio
import logging
import random

import pytest
from helpers.spark.sink_world import SINK, Process, SinkWorld, job

from dlspark.spark.errors import BatchSweptError, PublishContendedError, ReplayDiffersError
from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.messages import Publication
from metadata.distributedlog.log_admin import LogAdmin
from metadata.distributedlog.sink_marks import LogMark
from metadata.distributedlog.sinks import StagedLedger
from metadata.foundation.errors import MetadataUnavailableError, OutcomeUnknownError
from metadata.zookeeper.memory import Fault

pytestmark = pytest.mark.usefixtures("frames")


async def counts(process: Process, *logs: str) -> list[int]:
    """Segments of each log."""
    return [len(await process.segments(log)) if await process.log_store.exists(log) else 0 for log in logs]


async def test_one_number_written_to_two_logs_is_in_both(driver: Process) -> None:
    """Delta's idiom: one txnAppId and txnVersion for all tables of a foreachBatch."""
    for number in range(3):
        for log in ("flights", "trains"):
            batch = await driver.stage(job(number, f"{log}{number}", "app-x"), [(log, number, number)])
            assert await driver.commit(batch) is CommitOutcome.PUBLISHED
    for number in range(3):
        for log in ("flights", "trains"):
            replay = await driver.stage(job(number, "again", "app-x"), [(log, number, number)])
            assert await driver.commit(replay) is CommitOutcome.COVERED
    assert await counts(driver, "flights", "trains") == [3, 3]


async def test_a_batch_that_some_of_its_logs_have_goes_into_the_others_in_one_step(driver: Process) -> None:
    await driver.commit(await driver.stage(job(4, "first"), [("flights", 0, 9)]))
    batch = await driver.stage(job(4, "more"), [("trains", 0, 9), ("flights", 0, 9), ("ships", 0, 9)])
    assert await driver.commit(batch) is CommitOutcome.PUBLISHED
    assert await counts(driver, "flights", "ships", "trains") == [1, 1, 1]
    assert await driver.mark("flights") == LogMark(4, "first")
    ships = await driver.mark("ships")
    assert ships is not None
    assert (ships, ships.rows) == (LogMark(4, "more"), ((4, 10),))
    assert await driver.sinks.staged(SINK) == []  # what was staged for flights went with the commit
    assert await driver.commit(await driver.stage(job(4, "none"), [])) is CommitOutcome.COVERED
    again = await driver.stage(job(4, "again"), [(log, 0, 9) for log in ("flights", "ships", "trains")])
    assert await driver.commit(again) is CommitOutcome.COVERED


async def test_a_partly_published_batch_is_right_under_every_single_fault_at_every_request() -> None:
    for fault in (Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.REFUSE):
        reached = 0
        for strike_at in range(200):
            sink_world = SinkWorld()
            await sink_world.set_up()
            driver = Process(sink_world)
            await driver.commit(await driver.stage(job(0, "first"), [("flights", 0, 9)]))
            batch = await driver.stage(job(0), [(log, 0, 9) for log in ("flights", "ships", "trains")])
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
            assert await counts(driver, "flights", "ships", "trains") == [1, 1, 1]
            await driver.sweep()
            assert await driver.sinks.staged(SINK) == []
            await driver.store.close()
            if not struck:
                break
        assert reached > 10, fault


async def test_forks_that_write_to_other_logs_under_one_id_do_not_hold_each_other_up(
    sink_world: SinkWorld, driver: Process, other_driver: Process
) -> None:
    for number in range(4):
        ours = await driver.stage(job(number, f"ours{number}"), [("flights", number, number)])
        theirs = await other_driver.stage(job(number, f"theirs{number}"), [("trains", number, number)])
        multis = 0

        def count(_session: int, operation: str, path: str) -> None:
            nonlocal multis
            multis += operation == "multi" and path.endswith(SINK)

        await driver.logs.prepare("flights")
        await other_driver.logs.prepare("trains")
        sink_world.tree.inject = count
        assert await asyncio.gather(driver.publish(ours), other_driver.publish(theirs)) == [CommitOutcome.PUBLISHED] * 2
        sink_world.tree.inject = None
        assert multis == 2  # neither had to try again
    assert await counts(driver, "flights", "trains") == [4, 4]


async def test_a_commit_does_not_sweep_what_a_fork_still_writes_for_another_log(
    sink_world: SinkWorld, driver: Process, other_driver: Process
) -> None:
    theirs = await other_driver.stage(job(0, "theirs"), [("trains", 0, 9)])
    dead = await other_driver.stage(job(0, "dead"), [("flights", 0, 9)])
    assert await driver.commit(await driver.stage(job(0, "ours"), [("flights", 0, 9)])) is CommitOutcome.PUBLISHED
    assert dead.segments[0].ledger_id not in sink_world.ledgers
    assert theirs.segments[0].ledger_id in sink_world.ledgers
    assert await other_driver.commit(theirs) is CommitOutcome.PUBLISHED
    assert await driver.sinks.staged(SINK) == []


async def test_what_an_older_dlspark_listed_is_swept_once_it_cannot_be_published(
    sink_world: SinkWorld, driver: Process
) -> None:
    await driver.sinks.ensure(SINK)
    old = StagedLedger(0, "old", 77)
    await driver.sinks.list_ledger(SINK, old)
    assert await driver.commit(await driver.stage(job(0, "ours"), [("flights", 0, 9)])) is CommitOutcome.PUBLISHED
    assert await driver.sinks.staged(SINK) == []


async def test_a_number_that_a_log_passed_without_rows_is_refused_and_never_skipped(
    sink_world: SinkWorld, driver: Process, caplog: pytest.LogCaptureFixture
) -> None:
    await driver.commit(await driver.stage(job(3, "a"), [("flights", 0, 9), ("trains", 0, 9)]))
    await driver.commit(await driver.stage(job(5, "b"), [("trains", 10, 19)]))
    await driver.commit(await driver.stage(job(6, "c"), [("flights", 20, 29), ("trains", 20, 29)]))
    batch = await driver.stage(job(5, "d"), [("flights", 30, 39), ("trains", 10, 19)])
    with pytest.raises(ReplayDiffersError, match="later batches up to 6 and nothing of this one") as caught:
        await driver.publish(batch)
    assert caught.value.log == "flights"
    assert "failOnDataLoss" in str(caught.value)
    with caplog.at_level(logging.WARNING):
        commit = await driver.publisher.publish(batch, skip_differing=True)
    assert commit.outcome is CommitOutcome.COVERED
    assert "failOnDataLoss is false" in caplog.text
    assert "flights" in caplog.text
    # What differs is left out, and the others get their rows.
    more = await driver.stage(job(5, "e"), [("flights", 30, 39), ("ships", 10, 19)])
    assert (await driver.publisher.publish(more, skip_differing=True)).outcome is CommitOutcome.PUBLISHED
    assert await counts(driver, "flights", "ships", "trains") == [2, 1, 3]


async def test_a_number_that_was_empty_and_is_cut_anew_with_rows_is_written_once(driver: Process) -> None:
    """A restored checkpoint gives rows that came since a number under which nothing was published."""
    await driver.commit(await driver.stage(job(3), [("flights", 0, 9)]))
    for empty in (4, 5):
        await driver.commit(await driver.stage(job(empty), []))
    for attempt, outcome in (("a", CommitOutcome.PUBLISHED), ("b", CommitOutcome.COVERED)):
        assert await driver.commit(await driver.stage(job(4, attempt), [("flights", 10, 19)])) is outcome
    more = await driver.stage(job(4, "c"), [("flights", 10, 20)], count=11)
    with pytest.raises(ReplayDiffersError, match="with 10 rows into this log, and now has 11"):
        await driver.publish(more)
    assert await driver.commit(await driver.stage(job(5, "d"), [("flights", 21, 29)])) is CommitOutcome.PUBLISHED
    assert await counts(driver, "flights") == [3]


async def test_a_fork_that_writes_to_some_of_the_logs_finds_its_batches_there(driver: Process) -> None:
    await driver.commit(await driver.stage(job(0), [("flights", 0, 9), ("trains", 0, 9)]))
    assert await driver.commit(await driver.stage(job(0, "b"), [("flights", 0, 9)])) is CommitOutcome.COVERED
    fewer = await driver.stage(job(0, "c"), [("flights", 0, 9)], count=9)
    with pytest.raises(ReplayDiffersError, match="with 10 rows into this log, and now has 9"):
        await driver.publish(fewer)


async def test_tasks_that_found_their_logs_published_are_held_against_the_marks(driver: Process) -> None:
    await driver.commit(await driver.stage(job(0), [("flights", 0, 9), ("trains", 0, 9)]))
    assert (
        await driver.publish(Publication(job(0, "b"), (), (("flights", 10), ("trains", 10)))) is CommitOutcome.COVERED
    )
    with pytest.raises(ReplayDiffersError) as caught:
        await driver.publish(Publication(job(0, "b"), (), (("flights", 10), ("trains", 11))))
    assert caught.value.log == "trains"
    half = await driver.stage(job(0, "c"), [("ships", 0, 9)])
    half = Publication(half.job, half.segments, (("flights", 10), ("trains", 10)))
    assert await driver.publish(half) is CommitOutcome.PUBLISHED
    assert await counts(driver, "flights", "ships", "trains") == [1, 1, 1]


@pytest.mark.parametrize("strike_at", range(19))
async def test_a_log_that_a_fork_has_taken_further_meanwhile_does_not_refuse_the_others(
    driver: Process, other_driver: Process, strike_at: int
) -> None:
    """At any request of a publication a fork publishes the batch and the next one into one of its logs: that log's ids
    are above the batch's then, and the batch is not to be refused for it."""
    await driver.commit(await driver.stage(job(0), [("flights", 0, 9), ("trains", 0, 9)]))
    batch = await driver.stage(job(1), [("flights", 10, 19), ("trains", 10, 19)])
    requests = 0
    forks: list[asyncio.Task[None]] = []

    async def fork() -> None:
        for number in (1, 2):
            parts = [("trains", 10 * number, 10 * number + 9)]
            await other_driver.commit(await other_driver.stage(job(number, f"fork{number}"), parts))

    sending = asyncio.Lock()

    def strike(request: str):
        original = getattr(driver.store, request)

        async def wrapped(*args, **more):
            nonlocal requests
            async with sending:  # requests of a session are served in their order
                requests += 1
                if requests == strike_at + 1:
                    forks.append(asyncio.ensure_future(fork()))
                    for _ in range(2_000):  # it comes to its end, or to a lock that the publication holds
                        if forks[0].done():
                            break
                        await asyncio.sleep(0)
            return await original(*args, **more)

        setattr(driver.store, request, wrapped)

    for request in ("get", "multi", "children", "create"):
        strike(request)
    assert await driver.publish(batch) is CommitOutcome.PUBLISHED
    await asyncio.gather(*forks)
    assert [one.first_txid for one in await driver.segments("flights")] == [0, 10]
    assert [one.first_txid for one in await driver.segments("trains")] == [0, 10, 20][: 3 if forks else 2]


# ---- logs that are not what they were ------------------------------------------------------------------------------


async def test_a_log_that_was_deleted_and_made_again_gets_its_batch(driver: Process) -> None:
    await driver.commit(await driver.stage(job(0), [("flights", 0, 9), ("trains", 0, 9)]))
    await driver.log_store.delete_tree("flights")
    replay = await driver.stage(job(0, "b"), [("flights", 0, 9), ("trains", 0, 9)])
    assert await driver.commit(replay) is CommitOutcome.PUBLISHED
    assert await counts(driver, "flights", "trains") == [1, 1]


async def test_a_log_that_is_replaced_while_its_batch_is_published_gets_it_once(
    sink_world: SinkWorld, driver: Process, other_driver: Process
) -> None:
    """At every request of the publication: the log that is there at the end has the batch, once."""
    for strike_at in range(60):
        name = f"log{strike_at}"
        await driver.commit(await driver.stage(job(0, "a"), [(name, 0, 9)]))
        batch = await driver.stage(job(1), [(name, 10, 19)])
        requests = 0
        original = {request: getattr(driver.store, request) for request in ("get", "multi", "children", "create")}

        def wrap(request: str, name: str = name, at: int = strike_at, original=original):
            async def wrapped(*args, **more):
                nonlocal requests
                if str(args[0]).endswith("/attempts"):
                    return await original[request](*args, **more)  # nobody waits for this one
                requests += 1
                if requests == at + 1:
                    await other_driver.log_store.delete_tree(name)
                    await other_driver.log_store.create(name)
                return await original[request](*args, **more)

            return wrapped

        for request in original:
            setattr(driver.store, request, wrap(request))
        assert await driver.publish(batch) is CommitOutcome.PUBLISHED
        for request, method in original.items():
            setattr(driver.store, request, method)
        if requests <= strike_at:
            assert strike_at > 8
            break
        assert [(one.first_txid, one.last_txid) for one in await driver.segments(name)] == [(10, 19)]
        assert await driver.mark(name) == LogMark(1, "a")
    else:
        pytest.fail("the publication never came to its end")


async def test_a_log_that_is_replaced_after_its_tasks_found_it_published_is_an_error(driver: Process) -> None:
    await driver.commit(await driver.stage(job(0), [("flights", 0, 9)]))
    skipped = Publication(job(0, "b"), (), (("flights", 10),))
    await driver.log_store.delete_tree("flights")
    with pytest.raises(PublishContendedError, match="another one has its name") as caught:
        await driver.publish(skipped)
    assert caught.value.log == "flights"


async def test_a_renamed_log_takes_its_marks_along_and_leaves_none(driver: Process) -> None:
    await driver.commit(await driver.stage(job(0), [("flights", 0, 9)]))
    await LogAdmin(driver.log_store).rename("flights", "old-flights")
    assert await driver.commit(await driver.stage(job(0, "b"), [("old-flights", 0, 9)])) is CommitOutcome.COVERED
    assert await driver.commit(await driver.stage(job(0, "c"), [("flights", 0, 9)])) is CommitOutcome.PUBLISHED
    assert await counts(driver, "flights", "old-flights") == [1, 1]
    assert await driver.commit(await driver.stage(job(1), [("old-flights", 10, 19)])) is CommitOutcome.PUBLISHED


# ---- random forks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
async def test_random_forks_give_each_log_each_batch_once(seed: int) -> None:
    """Forks of one query, each with logs of its own choice, die, start again behind and meet faults."""
    rng = random.Random(seed)
    sink_world = SinkWorld()
    await sink_world.set_up()
    logs = ["a", "b", "c", "d"]
    batches = 5
    plan = [[log for log in logs if rng.random() < 0.8] for _ in range(batches)]
    chosen = [set(rng.sample(logs, rng.randint(1, 4))) for _ in range(3)]
    sink_world.tree.inject = lambda _s, _o, _p: rng.choice(list(Fault)) if rng.random() < 0.03 else None
    await asyncio.gather(*(fork(sink_world, plan, chosen[n], f"f{n}", random.Random(f"{seed}/{n}")) for n in range(3)))
    sink_world.tree.inject = None
    process = Process(sink_world)
    await process.sweep()
    assert await process.sinks.staged(SINK) == []
    published: set[int] = set()
    for log in logs:
        segments = await process.segments(log) if await process.log_store.exists(log) else []
        wanted = any(log in one for one in chosen)
        assert [one.first_txid for one in segments] == [10 * n for n in range(batches) if wanted and log in plan[n]]
        published |= {one.ledger_id for one in segments}
    assert set(sink_world.ledgers) == published
    await process.store.close()


async def fork(sink_world: SinkWorld, plan: list[list[str]], chosen: set[str], name: str, rng: random.Random) -> None:
    number, tries = 0, 0
    process = Process(sink_world, seed=rng.randrange(1000), owner=name)
    while number < len(plan):
        tries += 1
        try:
            parts = [(log, 10 * number, 10 * number) for log in plan[number] if log in chosen]
            batch = await process.stage(job(number, f"{name}x{tries}"), parts)
            await process.commit(batch)
        except (BatchSweptError, MetadataUnavailableError, OutcomeUnknownError):
            continue  # a task failed, or a fork has swept what was for a log that it published: Spark runs again
        if rng.random() < 0.25:
            number = max(-1, number - 2)  # a checkpoint that was restored from a copy
        number += 1
        if tries > 200:
            raise AssertionError("a fork never came to its end")
    await process.store.close()
