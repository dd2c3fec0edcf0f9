"""Ids that are times of rows: raised where they would take a log back, whichever way the rows take into it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from helpers.spark.appends_world import LOG, QUERY, AppendsCluster, Driver
from helpers.spark.sink_world import Process, SinkWorld, job, staged_segment
from helpers.spark.typed_frames import Frames, Using, bodies, declaration_of, own_columns_of
from helpers.virtual_time import virtual_time

from dlspark.core.writing.write_kinds import below_highest_error, highest_of
from dlspark.serving.protocol.operations import WriteRecords
from dlspark.spark.errors import TransactionOrderError
from dlspark.spark.sink.append.appender import BatchToAppend
from dlspark.spark.sink.append.clients import encode_request
from dlspark.spark.sink.append.proxied_log import MAX_RAISES
from dlspark.spark.sink.append.server import decode_request
from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.columns import SinkColumns, TypedFrame
from dlspark.spark.sink.driver import PublishingSession, gather
from dlspark.spark.sink.inline_rows import decoded, gather_inline, joined, records, runs_between
from dlspark.spark.sink.messages import IdOrigin, InlineRows, JobId, SinkMessage
from dlspark.spark.sink.row_cutting import cutter
from dlspark.spark.sink.segments import merging
from dlspark.spark.sink.segments.merging import plan_raises
from dlspark.spark.sink.segments.task import Staging
from dlspark.spark.sink.session import SinkSession
from dlspark.spark.sink.write_proxies import proxies_at

if TYPE_CHECKING:
    from helpers.spark.memory_world import DriverWorld

    from dlspark.serving.client.answer_rules import StreamRequest
    from dlspark.serving.protocol.operations import Answer

PUBLISHED, COVERED = CommitOutcome.PUBLISHED, CommitOutcome.COVERED
TIMED = IdOrigin.TIMED

# ---------------------------------------------------------------------- segments, by the commit


async def ids(process: Process, log: str = "flights") -> list[tuple[int, int]]:
    return [(one.first_txid, one.last_txid) for one in await process.segments(log)]


async def test_tasks_whose_times_overlap_follow_each_other_and_only_what_goes_back_is_written_again(
    sink_world: SinkWorld, driver: Process
) -> None:
    parts = [("flights", 7, 8), ("flights", 0, 9), ("flights", 5, 20), ("flights", 30, 40), ("trains", 1, 2)]
    assert await driver.commit(await driver.stage(job(0), parts, origin=TIMED)) is PUBLISHED
    assert await ids(driver) == [(0, 9), (9, 20), (20, 20), (30, 40)]
    assert await ids(driver, "trains") == [(1, 2)]
    assert sink_world.rewritten == 2
    assert len(sink_world.ledgers) == 5  # the two that were written again are swept


async def test_a_log_that_moved_on_meanwhile_gets_the_batch_behind_it_and_a_replay_changes_nothing(
    sink_world: SinkWorld, driver: Process
) -> None:
    await driver.publish(await driver.stage(job(0, sink="other"), [("flights", 0, 50)]))
    for attempt, outcome in (("a", PUBLISHED), ("b", COVERED)):
        batch = await driver.stage(job(1, attempt), [("flights", 10, 60), ("flights", 3, 4)], origin=TIMED)
        assert await driver.commit(batch) is outcome
        assert await ids(driver) == [(0, 50), (50, 50), (50, 60)]
    assert sink_world.rewritten == 2


async def test_what_is_written_again_is_bounded_and_nothing_is_visible_beyond(
    driver: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "MAX_MERGED_BYTES", 150)  # a segment has 100 here
    two = [("flights", 0, 9), ("flights", 5, 20), ("trains", 0, 9), ("trains", 5, 5)]
    with pytest.raises(TransactionOrderError, match=r"200 bytes.*nothing of the batch is visible.*repartitionByRange"):
        await driver.publish(await driver.stage(job(0), two, origin=TIMED))
    assert await ids(driver) == []
    assert await driver.publish(await driver.stage(job(0), two[:3], origin=TIMED)) is PUBLISHED


def test_ids_that_a_user_gave_are_never_raised() -> None:
    given = [staged_segment("x", 1, 0, 0, 9), staged_segment("x", 2, 1, 9, 12)]
    assert plan_raises(given, 50) == []
    with pytest.raises(TransactionOrderError, match="overlap"):
        plan_raises([*given, staged_segment("x", 3, 2, 5, 6)], 0)


@pytest.mark.parametrize("seed", range(50))
def test_raised_segments_continue_the_log_and_those_of_a_task_keep_their_order(seed: int) -> None:
    rng = random.Random(seed)
    segments = []
    for partition in range(rng.randint(1, 4)):
        last = 0
        for ordinal in range(rng.randint(1, 3)):
            first = last + rng.randrange(3)
            last = first + rng.randrange(5)
            one = staged_segment("x", len(segments), partition, first, last, origin=TIMED)
            object.__setattr__(one, "ordinal", ordinal)
            segments.append(one)
    highest = rng.randrange(10)
    raised = {one.ledger_id: lowest for one, lowest in plan_raises(segments, highest)}
    after = [
        (max(one.first_txid, lowest), max(one.last_txid, lowest), one.partition, one.ordinal)
        for one in segments
        for lowest in [raised.get(one.ledger_id, 0)]
    ]
    after.sort()  # as `order_segments` does
    last = highest
    places: dict[int, int] = {}
    for first, end, partition, ordinal in after:
        assert first >= last
        last = end
        assert places.get(partition, -1) < ordinal
        places[partition] = ordinal


# ---------------------------------------------------------------------- tasks and commit, on storage nodes


class Tasks:
    """Stages the rows of one job's tasks for one log that declares its columns, and publishes them."""

    def __init__(self, world: DriverWorld, kind: str) -> None:
        self.world = world
        self.declaration = declaration_of(kind, timed=True)
        namespace = world.namespace
        self.session = SinkSession(namespace, namespace.services.settings, proxies_at("nowhere:1", "/dl", 1000))
        self.publishing = PublishingSession(self.session)
        typed = TypedFrame(("body", "length", "at"), (), {LOG: self.declaration})
        self.columns = SinkColumns(-1, None, None, LOG, typed=typed)

    async def stage(self, this: JobId, partition: int, batches: list[pa.RecordBatch]) -> SinkMessage:
        cut = cutter(self.columns, f"task {partition}")
        staging = Staging(self.session, this, self.columns, partition, 10**9, cut)
        for batch in batches:
            rows = staging.task.split(batch)
            await staging.meet(staging.task.unmet(rows))
            for entries in staging.task.take(rows):
                await staging.task.send(entries)
        for entries in staging.task.rest():
            await staging.task.send(entries)
        return SinkMessage(this, await staging.finish(), staging.task.covered)

    async def commit(self, messages: list[SinkMessage]) -> CommitOutcome:
        (publication,) = gather(messages)
        publication = await self.publishing.inline_staged(publication)
        return (await self.publishing.publisher.publish(publication)).outcome

    async def rows(self) -> tuple[list[int], list[bytes]]:
        log = await self.world.namespace.open_log(LOG)
        async with await log.open_reader("earliest") as reader:
            found = []
            while more := await reader.read_available(10_000, wait=True):
                found += more
        txids = [record.txid for record in found]
        return txids, bodies([record.payload for record in found], self.declaration, txids)


@pytest.mark.parametrize("kind", ["json", "avro", "arrow"])
async def test_rows_of_overlapping_tasks_come_back_once_with_ids_not_below_their_times(
    driver_world: DriverWorld, kind: str
) -> None:
    tasks = Tasks(driver_world, kind)
    rng = random.Random(kind)
    await driver_world.create(LOG)
    expected: list[list[bytes]] = []
    for number in range(3):
        this = JobId(QUERY, number, f"attempt-{number}")
        messages = []
        for partition in range(3):
            values = [b"%d:%d:%d" % (number, partition, row) for row in range(40)]
            times = [1000 * number + rng.randrange(1500) for _ in values]
            batch = Frames(kind).batch(values, times=times)
            messages.append(await tasks.stage(this, partition, [batch.slice(0, 25), batch.slice(25)]))
            expected.append(values)
        assert sum(part.row_count for message in messages for part in message.segments) == 120
        assert await tasks.commit(messages) is PUBLISHED
        # The same rows, cut into one task: a replay is known by them, whatever the records.
        again = own_columns_of([row for part in expected[-3:] for row in part], [5] * 120)
        assert (
            await tasks.commit([await tasks.stage(JobId(QUERY, number, "x"), 0, [pa.record_batch(again)])]) is COVERED
        )
    txids, values = await tasks.rows()
    assert txids == sorted(txids)
    assert sorted(values) == sorted(row for part in expected for row in part)  # one that is late would be its bytes
    for part in expected:
        assert [value for value in values if value in set(part)] == part


async def test_inline_and_staged_parts_of_one_batch_are_raised_together(driver_world: DriverWorld) -> None:
    tasks = Tasks(driver_world, "json")
    await driver_world.create(LOG)
    this = JobId(QUERY, 0, "a")
    staged = await tasks.stage(this, 0, [Frames("json").batch([b"s1", b"s2"], times=[50, 90])])
    inline = [
        gather_inline(tasks.columns, partition, 1, 1 << 20, [Frames("json").batch(values, times=times)])[0]
        for partition, values, times in ((1, [b"i1", b"i2"], [60, 40]), (2, [b"i3"], [95]))
    ]
    assert all(inline)
    messages = [staged, *(SinkMessage(this, inline=parts or ()) for parts in inline)]
    assert await tasks.commit(messages) is PUBLISHED
    txids, values = await tasks.rows()
    assert (txids, values) == ([50, 90, 90, 90, 95], [b"s1", b"s2", b"i1", b"i2", b"i3"])


# ---------------------------------------------------------------------- rows that travel


def part(partition: int, times: list[int]) -> InlineRows:
    frames = Frames("json")
    values = [b"%d:%d" % (partition, number) for number in range(len(times))]
    columns = frames.columns(LOG, ids=False)
    found, _ = gather_inline(columns, partition, 1000, 1 << 20, [frames.batch(values, times=times)])
    assert found
    return found[0]


def ids_of(one: InlineRows) -> list[int]:
    txids, _ = decoded(one)
    assert txids is not None
    return [int(txid) for txid in txids]


def test_parts_are_joined_by_their_times_which_never_go_back() -> None:
    parts = [part(0, [7, 3, 9]), part(1, [5, 5]), part(2, [8])]
    assert [ids_of(one) for one in parts] == [[7, 7, 9], [5, 5], [8]]
    whole = joined(parts[::-1])
    assert (ids_of(whole), whole.first_txid, whole.last_txid, whole.origin) == ([5, 5, 7, 7, 9, 9], 5, 9, TIMED)
    assert [txid for txid, _ in records(whole, 6)] == [6, 6, 7, 7, 9, 9]
    staged = staged_segment(LOG, 1, 3, 6, 6, origin=TIMED)
    assert [ids_of(run) for run in runs_between(parts, [staged])] == [[5, 5], [7, 7, 9, 9]]


def test_what_is_said_to_the_appending_process_says_that_ids_may_be_raised() -> None:
    for rows in (part(0, [3]), joined([part(0, [3]), part(1, [2])])):
        request = encode_request("secret", BatchToAppend(job(0), rows, 1))
        head = int.from_bytes(request[:4], "big")
        batch, _ = decode_request("secret", request[8 : 8 + head], request[8 + head :])
        assert batch.rows == rows
        assert batch.rows.raisable


# ---------------------------------------------------------------------- appended


@pytest.fixture
def timed() -> Iterator[None]:
    """Have the test write rows that have times."""
    Using.frames = Frames("json")
    yield
    Using.frames = Frames()


async def append(driver: Driver, batch: int, times: list[int]) -> CommitOutcome | None:
    frames = Using.frames
    values = [b"%d:%d" % (batch, number) for number in range(len(times))]
    columns = frames.columns(LOG, ids=False)
    found, _ = gather_inline(columns, 0, 1000, 1 << 20, [frames.batch(values, times=times)])
    assert found
    return await driver.appender.append(BatchToAppend(driver.job(batch), found[0], 60_000))


@pytest.mark.parametrize("way", ["owner", "proxy", "neighbour"])
@pytest.mark.usefixtures("timed")
@virtual_time
async def test_times_below_the_logs_highest_are_raised_by_whoever_appends(way: str) -> None:
    cluster = AppendsCluster()
    await cluster.start()
    if way == "proxy":
        await cluster.proxy()
    if way == "neighbour":
        first = await cluster.driver(sink="other")
        await first.append(0, [b"n"])
    driver = await cluster.driver(proxied=way == "proxy")
    day = 86_400_000
    assert await append(driver, 0, [day, day - 5, day + 5]) is PUBLISHED
    assert await append(driver, 1, [day - 3, day + 9]) is PUBLISHED
    assert await append(driver, 1, [day - 3, day + 9]) is COVERED
    assert await append(driver, 2, [1]) is PUBLISHED
    found = await cluster.contents()  # checks that ids rise, and that none is below its time
    assert [value for value in found if value != b"n"] == [b"0:0", b"0:1", b"0:2", b"1:0", b"1:1", b"2:0"]
    await cluster.stop()


@pytest.mark.parametrize("others", [MAX_RAISES, MAX_RAISES + 1])
@pytest.mark.usefixtures("timed")
@virtual_time
async def test_a_proxys_log_that_moves_on_before_each_request_is_caught_up_with_or_refuses_the_batch(
    others: int,
) -> None:
    cluster = AppendsCluster()
    await cluster.start()
    await cluster.proxy()
    driver = await cluster.driver(proxied=True)
    assert await append(driver, 0, [1000]) is PUBLISHED
    ask, left = driver.proxies.ask, others

    async def ask_behind_another(request: StreamRequest) -> Answer:
        nonlocal left
        if isinstance(request, WriteRecords) and left:
            left -= 1
            await ask(WriteRecords(LOG, (b"another",), transaction_ids=(2000 - left,)))
        return await ask(request)

    driver.proxies.ask = ask_behind_another  # type: ignore[method-assign]
    if others > MAX_RAISES:
        with pytest.raises(TransactionOrderError, match="below the log's highest; nothing of the batch is visible"):
            await append(driver, 1, [1])
        assert b"1:0" not in await cluster.contents()
    assert await append(driver, 1, [1]) is PUBLISHED
    assert await cluster.contents() == [b"0:0", *[b"another"] * others, b"1:0"]
    await cluster.stop()


def test_the_highest_id_is_read_from_the_words_that_a_proxy_sends() -> None:
    said = below_highest_error(5, 2**62, "flights").message
    assert highest_of(f"a proxy refused it: {said}") == 2**62
    assert highest_of("transaction id 5 comes behind 7 in a request; nothing of it was written") is None
