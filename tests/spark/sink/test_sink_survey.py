"""What may be swept by hand, and what a live query may still publish is never among it."""

from __future__ import annotations

import pytest
from helpers.spark.sink_world import SINK, Process, SinkWorld, job

from dlspark.spark.errors import BatchSweptError
from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.segments.leftovers import (
    ABANDONED_AFTER_MS,
    SinkLeftovers,
    StagedLedgerState,
    find_leftovers,
    sweep_leftovers,
)
from metadata.foundation.errors import CallerError

pytestmark = pytest.mark.usefixtures("frames")

HOUR_MS = 3_600_000
BEGIN_MS = 1_000_000_000_000


class Clocked:
    """A driver whose metadata server tells a time that the test sets."""

    def __init__(self, sink_world: SinkWorld) -> None:
        self.now_ms = BEGIN_MS
        sink_world.tree._now_ms = lambda: self.now_ms
        self.world = sink_world
        self.driver = Process(sink_world)

    async def look(self, *names: str) -> list[SinkLeftovers]:
        return await find_leftovers(self.driver.sinks, self.driver.log_store, self.now_ms, names=names or None)

    async def sweep(self, *names: str) -> list[tuple[int, bool]]:
        return [await sweep_leftovers(self.driver.sweeper, self.driver.sinks, one) for one in await self.look(*names)]


@pytest.fixture
async def clocked():
    sink_world = SinkWorld()
    await sink_world.set_up()
    clocked = Clocked(sink_world)
    yield clocked
    await clocked.driver.store.close()


def verdicts(found: SinkLeftovers) -> list[tuple[int, str, str]]:
    return [(one.ledger.batch, one.ledger.attempt, one.state.value) for one in found.ledgers]


async def test_each_staged_ledger_is_told_apart(clocked: Clocked) -> None:
    driver = clocked.driver
    await driver.stage(job(1, "lost"), [("flights", 0, 9)])
    await driver.stage(job(2, "dead"), [("flights", 10, 19)])
    half = await driver.stage(job(1, "half"), [("flights", 0, 9)])
    await driver.sinks.condemn(SINK, half.job.staged(half.segments[0].ledger_id, half.segments[0].log))
    await driver.publish(await driver.stage(job(1, "won"), [("flights", 0, 9)]))
    clocked.now_ms += ABANDONED_AFTER_MS + 1
    await driver.stage(job(2, "alive"), [("flights", 10, 19)])
    (found,) = await clocked.look()
    assert verdicts(found) == [
        (1, "half", "condemned"),
        (1, "lost", "settled"),
        (2, "alive", "live"),
        (2, "dead", "abandoned"),
    ]
    assert (found.kind, found.state.batch, found.moved_ms, found.removable) == ("query", 1, BEGIN_MS, False)


async def test_a_sweep_leaves_what_a_query_may_still_publish_and_the_mark(clocked: Clocked) -> None:
    driver = clocked.driver
    await driver.publish(await driver.stage(job(1), [("flights", 0, 9)]))
    slow = await driver.stage(job(2, "slow"), [("flights", 10, 19)])
    clocked.now_ms += ABANDONED_AFTER_MS - 1
    # One task is at work for long; its attempt lives as long as any of its tasks shows itself.
    await driver.write(slow.job, "flights", 1, 20)
    clocked.now_ms += ABANDONED_AFTER_MS - 1
    assert await clocked.sweep() == [(0, False)]
    assert await driver.publish(slow) is CommitOutcome.PUBLISHED
    assert await clocked.sweep() == [(1, False)]
    assert await clocked.sweep() == [(0, False)]
    assert len(await driver.segments("flights")) == len(clocked.world.ledgers) == 2


async def test_an_attempt_that_lives_after_all_fails_cleanly_and_its_batch_is_written_again(clocked: Clocked) -> None:
    driver = clocked.driver
    thought_dead = await driver.stage(job(0, "a"), [("flights", 0, 9), ("trains", 0, 9)])
    clocked.now_ms += ABANDONED_AFTER_MS + 1
    assert await clocked.sweep() == [(2, False)]
    assert clocked.world.ledgers == {}
    with pytest.raises(BatchSweptError):
        await driver.publish(thought_dead)
    assert await driver.publish(await driver.stage(job(0, "b"), [("flights", 0, 9)])) is CommitOutcome.PUBLISHED


async def test_sinks_of_batch_writes_go_with_their_last_ledger_and_those_of_others_stay(clocked: Clocked) -> None:
    driver = clocked.driver
    for name in ("job-died-at-work", "job-alive", "app-nightly"):
        await driver.stage(job(0, "a", name), [("flights", 0, 9)])
    await driver.sinks.ensure("job-died-at-its-start")
    clocked.now_ms += ABANDONED_AFTER_MS + 1
    await driver.write(job(0, "a", "job-alive"), "flights", 1, 10)
    await driver.sinks.ensure("job-young")
    found = {one.sink_id: one for one in await clocked.look()}
    assert {name: (one.kind, one.removable) for name, one in found.items()} == {
        "app-nightly": ("application", False),
        "job-alive": ("job", False),
        "job-died-at-its-start": ("job", True),
        "job-died-at-work": ("job", True),
        "job-young": ("job", False),
    }
    assert found["job-alive"].of(StagedLedgerState.LIVE)
    await clocked.sweep("job-died-at-work", "job-died-at-its-start", "app-nightly")
    assert await driver.sinks.sinks() == ["app-nightly", "job-alive", "job-young"]


async def test_what_is_published_between_the_look_and_the_sweep_is_left_alone(clocked: Clocked) -> None:
    driver = clocked.driver
    batch = await driver.stage(job(0), [("flights", 0, 9)])
    clocked.now_ms += ABANDONED_AFTER_MS + 1
    (found,) = await clocked.look()
    assert len(found.sweepable) == 1
    await driver.publish(batch)
    assert await sweep_leftovers(driver.sweeper, driver.sinks, found) == (0, False)
    assert len(clocked.world.ledgers) == 1


async def test_a_name_that_no_sink_has_is_refused_before_anything_is_done(clocked: Clocked) -> None:
    with pytest.raises(CallerError, match="no sink 'q-9'"):
        await clocked.look("q-9")
