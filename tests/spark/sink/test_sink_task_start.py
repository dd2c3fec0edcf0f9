"""What a sink task asks of the metadata store and when, on storage nodes in this process: and what is left of it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from helpers.bookie.strangers import write_as_stranger
from helpers.spark.sink_world import round_trips
from helpers.spark.typed_frames import Using

from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.columns import SinkColumns
from dlspark.spark.sink.driver import PublishingSession, gather
from dlspark.spark.sink.messages import JobId, SinkMessage
from dlspark.spark.sink.segments.task import Staging
from dlspark.spark.sink.session import SinkSession
from dlspark.spark.sink.write_proxies import proxies_at

if TYPE_CHECKING:
    from helpers.spark.memory_world import DriverWorld

QUERY = "query-1"
ONE_LOG = SinkColumns(value=0, transaction_id=None, log=None, one_log="flights")
BY_COLUMN = SinkColumns(value=0, transaction_id=None, log=1, one_log=None)
BOTH = pytest.mark.usefixtures("frames")


def one_log() -> SinkColumns:
    """The columns of the test's frames, for one log."""
    return Using.frames.columns("flights", ids=False)


def one_row() -> pa.RecordBatch:
    return Using.frames.batch([b"x"])


class Worker:
    """A process of Spark's that is used again and again."""

    def __init__(self, driver_world: DriverWorld) -> None:
        self.world = driver_world
        namespace = driver_world.namespace
        proxies = proxies_at("nowhere:1", namespace.uri.path, 1000)
        self.session = SinkSession(namespace, namespace.services.settings, proxies)
        self.publishing = PublishingSession(self.session)

    def job(self, batch: int) -> JobId:
        return JobId(QUERY, batch, uuid.uuid4().hex)

    def staging(self, job: JobId, columns: SinkColumns) -> Staging:
        return Staging(self.session, job, columns, 0, 1000)

    async def run(self, job: JobId, *logs: str, columns: SinkColumns | None = None) -> SinkMessage:
        """As `run_task` does: one batch of one row for each log, whose names the rows have unless there is one."""
        staging = self.staging(job, columns or one_log())
        await asyncio.sleep(0)  # the first rows come
        if not logs:
            return SinkMessage(job, segments=await staging.finish())
        values = pa.array([b"x"] * len(logs), pa.binary())
        batch = pa.record_batch([values, pa.array(logs)], names=["value", "log"]) if columns else one_row()
        rows = staging.task.split(batch)
        await staging.meet(staging.task.unmet(rows))
        for cut in [*staging.task.take(rows), *staging.task.rest()]:
            await staging.task.send(cut)
        return SinkMessage(job, await staging.finish(), staging.task.covered)

    async def commit(self, message: SinkMessage) -> CommitOutcome:
        (publication,) = gather([message])
        commit = await self.publishing.publisher.publish(publication)
        await self.publishing.sweeper.after_commit(message.job, publication.logs, commit.left)
        return commit.outcome

    async def ledgers(self) -> set[int]:
        return {number async for number in self.world.namespace.services.ledger_store.ids()}

    async def published(self, *logs: str) -> set[int]:
        return {one.ledger_id for log in logs for one in await self.world.namespace.logs_store.segments(log)}


@pytest.fixture
async def worker(driver_world: DriverWorld):
    worker = Worker(driver_world)
    yield worker
    await asyncio.gather(worker.session._ahead)  # type: ignore[arg-type]


def kinds(trip: list[str]) -> list[str]:
    return sorted(f"{request.split()[0]} {request.rpartition('/')[2][:6]}" for request in trip)


async def test_a_task_takes_two_round_trips_and_readies_the_next_one(driver_world: DriverWorld, worker: Worker) -> None:
    store = driver_world.namespace.store
    assert await worker.commit(await worker.run(worker.job(0), "flights")) is CommitOutcome.PUBLISHED
    await worker.session._ahead  # type: ignore[misc]
    message, trips = await round_trips(driver_world.tree, store, worker.run(worker.job(1), "flights"))
    assert message.segments
    asked = [kinds(trip) for trip in trips]
    # The mark, where the log ends, and the ledger with its listing; entries are written; the ledger is closed.
    assert asked[0] == ["get maxtxi", "get query-", "multi L0001"]
    assert asked[1][-1] == "put L0001"
    assert sum(map(len, asked)) == 4
    await worker.session._ahead  # type: ignore[misc]
    outcome, trips = await round_trips(driver_world.tree, store, worker.commit(message))
    assert (outcome, sum(map(len, trips)), len(trips)) == (CommitOutcome.PUBLISHED, 11, 2)


async def test_a_task_for_many_logs_makes_and_closes_their_ledgers_together(
    driver_world: DriverWorld, worker: Worker
) -> None:
    logs = [f"log-{number:02d}" for number in range(16)]
    await worker.commit(await worker.run(worker.job(0), *logs, columns=BY_COLUMN))
    await worker.session._ahead  # type: ignore[misc]
    running = worker.run(worker.job(1), *logs, columns=BY_COLUMN)
    message, trips = await round_trips(driver_world.tree, driver_world.namespace.store, running)
    assert len(message.segments) == 16
    closing = [trip for trip in trips if any(request.startswith("put") for request in trip)]
    assert len(closing) <= 3  # their adds are acknowledged at different moments
    assert await worker.commit(message) is CommitOutcome.PUBLISHED
    assert await worker.ledgers() == await worker.published(*logs)


async def test_a_task_for_more_logs_than_are_made_at_once_does_not_make_the_rest_one_by_one(
    driver_world: DriverWorld, worker: Worker
) -> None:
    logs = [f"log-{number:02d}" for number in range(96)]
    await worker.commit(await worker.run(worker.job(0), *logs, columns=BY_COLUMN))
    await worker.session._ahead  # type: ignore[misc]
    running = worker.run(worker.job(1), *logs, columns=BY_COLUMN)
    message, trips = await round_trips(driver_world.tree, driver_world.namespace.store, running)
    assert len(message.segments) == 96
    making = [trip for trip in trips if any(request.startswith("multi") for request in trip)]
    assert len(making) <= 24, len(making)
    assert await worker.commit(message) is CommitOutcome.PUBLISHED
    assert await worker.ledgers() == await worker.published(*logs)


async def test_a_task_without_rows_makes_no_ledger_and_leaves_the_sink_for_the_commit(worker: Worker) -> None:
    assert await worker.commit(await worker.run(worker.job(0))) is CommitOutcome.PUBLISHED
    assert await worker.ledgers() == set()


@BOTH
async def test_what_a_replay_made_before_it_knew_goes_with_its_commit(worker: Worker) -> None:
    for batch in range(2):
        await worker.commit(await worker.run(worker.job(batch), "flights"))
    replay = await worker.run(worker.job(1), "flights")
    assert (replay.covered, replay.segments) == ((("flights", 1),), ())
    assert await worker.commit(replay) is CommitOutcome.COVERED
    assert await worker.session.sinks.staged(QUERY) == []
    assert await worker.ledgers() == await worker.published("flights")


@BOTH
async def test_a_fresh_worker_asks_for_the_mark_before_it_makes_anything(
    driver_world: DriverWorld, worker: Worker
) -> None:
    await worker.commit(await worker.run(worker.job(0), "flights"))
    before = await worker.ledgers()
    fresh = Worker(driver_world)
    replay = await fresh.run(fresh.job(0), "flights")
    assert replay.covered
    assert await worker.ledgers() == before
    await fresh.session._ahead  # type: ignore[misc]


@BOTH
async def test_a_sink_that_was_removed_since_the_last_task_is_made_again(worker: Worker) -> None:
    await worker.commit(await worker.run(worker.job(0), "flights"))
    assert await worker.session.sinks.remove(QUERY)
    assert await worker.commit(await worker.run(worker.job(1), "flights")) is CommitOutcome.PUBLISHED
    assert len(await worker.published("flights")) == 2


@BOTH
async def test_no_entry_is_sent_before_the_mark_was_seen(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is published by another driver, and its sink's mark is answered late."""
    await worker.commit(await worker.run(worker.job(0), "flights"))
    seen = asyncio.Event()
    covered = worker.session.covered

    async def late(job: JobId, logs: Sequence[str]) -> set[str]:
        await seen.wait()
        return await covered(job, logs)

    monkeypatch.setattr(worker.session, "covered", late)
    staging = worker.staging(worker.job(0), one_log())
    rows = staging.task.split(one_row())
    meeting = asyncio.ensure_future(staging.meet(staging.task.unmet(rows)))
    done, _ = await asyncio.wait([meeting], timeout=0.2)
    assert not done
    seen.set()
    await meeting
    assert staging.task.covered == (("flights", 0),)
    await staging.give_up()


@pytest.mark.parametrize("turns", [0, 1, 3, 6, 10, 20, 60])
@BOTH
async def test_a_task_that_gives_up_leaves_nothing_that_its_driver_does_not_sweep(worker: Worker, turns: int) -> None:
    await worker.commit(await worker.run(worker.job(0), "flights"))
    await worker.session._ahead  # type: ignore[misc]
    before = asyncio.all_tasks()
    job = worker.job(1)
    staging = worker.staging(job, one_log())
    rows = staging.task.split(one_row())
    meeting = asyncio.ensure_future(staging.meet(staging.task.unmet(rows)))
    for _ in range(turns):
        await asyncio.sleep(0)
    meeting.cancel()
    await asyncio.wait([meeting])
    await staging.give_up()
    await worker.session._ahead  # type: ignore[misc]
    assert {task for task in asyncio.all_tasks() if not task.done()} <= before
    await worker.publishing.sweeper.own(job)
    assert await worker.session.sinks.staged(QUERY) == []
    assert await worker.ledgers() == await worker.published("flights")
    again = await worker.run(worker.job(1), "flights")
    assert await worker.commit(again) is CommitOutcome.PUBLISHED


async def test_tasks_go_on_where_strangers_wrote_under_the_next_ledger_ids(
    driver_world: DriverWorld, worker: Worker
) -> None:
    assert await worker.commit(await worker.run(worker.job(0), "flights")) is CommitOutcome.PUBLISHED
    newest = max(await worker.ledgers())
    await write_as_stranger(driver_world.nodes, range(newest + 1, newest + 101))
    for batch in range(1, 4):
        message = await worker.run(worker.job(batch), "flights", "trains", columns=BY_COLUMN)
        assert await worker.commit(message) is CommitOutcome.PUBLISHED
    published = await worker.published("flights", "trains")
    assert len(published) == 7
    assert driver_world.namespace.counters["ledger-taken"]
    await worker.session._ahead  # type: ignore[misc]
    assert await worker.ledgers() == published  # what was taken is deleted, and swept
