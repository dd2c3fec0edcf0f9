"""Logs whose older segments lie in files: what truncation, purging, retention, deletion and new owners make of them,
and that readers' lists are whole whatever happens at the same time."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from operator import gt

import pytest
from helpers.logs import states, written
from helpers.waiting import until

from dlspark.core.administration.finding_kinds import FindingKind
from dlspark.core.administration.inspection import inspect_log
from dlspark.core.administration.references import Use, find_references
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.display.status import segment_state
from dlspark.core.lifecycle.deletion import HOUR_MS
from dlspark.core.lifecycle.owned_segments import OwnedSegments, sweep
from dlspark.core.reading.segments import is_truncated
from dlspark.errors import AlreadyTruncatedError
from metadata.distributedlog.cold_places import ColdFile, UnitState
from metadata.distributedlog.cold_steps import ColdKeptError, ColdMovedError, ColdTakenError
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import ColdSegment, unit_name
from metadata.distributedlog.locks import DistributedLock
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.errors import CorruptDataError, DistributedLogError
from metadata.foundation.tasks import together
from metadata.store import ANY_VERSION, Create, Delete
from metadata.zookeeper.memory import Fault

SEGMENTS = [[b"a0", b"a1", b"a2"], [b"b0", b"b1"], [b"c0", b"c1", b"c2"], [b"d0"]]
ROOT = "file:///cold"


async def copied(cold: ColdStore, log: str, first: int, last: int):
    """Make a unit; nothing is written, for nothing here reads it."""
    attempt = await cold.copies.begin(log, first, last, root=ROOT, worker="w", now_ms=1)
    logs = cold._logs
    listed = [one for one in await logs.hot_segments(log) if first <= one.lssn <= last]
    places, row = [], 0
    for one in listed:
        places.append(ColdSegment(one, row, one.record_count, 10))
        row += one.record_count
    file = ColdFile(attempt.value.url, 10, "aa", "bb", row, row) if row else None
    return await cold.copies.finish(log, attempt, places, file, now_ms=2)


async def in_files(namespace, name: str, last: int, segments=SEGMENTS):
    """Write a log whose segments up to `last` lie in a file alone."""
    log = await written(namespace, name, segments)
    cold = ColdStore(namespace.services.logs)
    await cold.delete_hot(name, await copied(cold, name, 1, last), now_ms=3)
    await sweep(namespace.services, name)
    return log, cold


async def ledgers(namespace) -> list[int]:
    return [ledger_id async for ledger_id in namespace.ledgers._ledgers.ids()]


# ---------------------------------------------------------------------- truncation


async def test_a_truncation_into_a_file_hides_what_lies_before_it(namespace):
    log, cold = await in_files(namespace, "log", 2)
    assert states(await log.segments()) == ["a", "a", "a", "a"]
    assert await log.truncate(DLSN(1, 1, 0)) == DLSN(1, 1, 0)
    assert states(await log.segments()) == ["1:1:0", "a", "a", "a"]
    assert await log.start() == DLSN(1, 1, 0)
    assert await log.truncate(DLSN(2, 0, 0)) == DLSN(2, 0, 0)
    assert states(await log.segments()) == ["t", "a", "a", "a"]
    assert await log.truncate(DLSN(1, 2, 0)) == await log.truncate(DLSN.INVALID) == DLSN(2, 0, 0), "it never goes back"
    assert await log.truncate(DLSN(3, 1, 0)) == DLSN(3, 1, 0)
    assert states(await log.segments()) == ["t", "t", "3:1:0", "a"]
    assert (await cold.cold_log("log")).value.truncated_to == (3, 1, 0)
    assert await log.truncate(DLSN(9, 0, 0)) == DLSN(5, 0, 0)
    assert (await cold.cold_log("log")).value.truncated_to == (5, 0, 0)


async def test_a_truncation_of_the_list_holds_when_its_segments_leave_for_a_file(namespace):
    log, cold = await in_files(namespace, "log", 1)
    unit = await copied(cold, "log", 2, 3)
    assert await log.truncate(DLSN(3, 1, 0)) == DLSN(3, 1, 0)
    await cold.delete_hot("log", unit, now_ms=4)
    assert states(await log.segments()) == ["t", "t", "3:1:0", "a"]
    assert await log.start() == DLSN(3, 1, 0)


@pytest.mark.parametrize("status", [TruncationStatus.TRUNCATED, TruncationStatus.PARTIALLY_TRUNCATED])
async def test_a_truncation_of_java_hides_what_lies_in_files_before_a_worker_follows_it(namespace, status):
    log, _ = await in_files(namespace, "log", 2)
    logs = namespace.services.logs
    (third, *_) = await logs.hot_segments("log")
    path = logs.paths("log").segment(third)
    hidden = replace(third, truncation=status, min_entry=1)
    await logs.store.multi([Delete(path), Create(path, hidden.encode())])
    begin = DLSN(4, 0, 0) if status is TruncationStatus.TRUNCATED else DLSN(3, 1, 0)
    assert [segment.truncation for segment in await log.segments()][:3] == [TruncationStatus.TRUNCATED] * 2 + [status]
    assert await log.start() == await log.first_dlsn() == begin
    async with await log.open_reader(DLSN.INITIAL) as reader:
        assert (await reader.read_next()).dlsn == begin
    async with await log.open_reader(DLSN(1, 1, 0)) as reader:
        with pytest.raises(AlreadyTruncatedError):
            await reader.read_next()


async def test_what_lies_in_files_is_listed_where_the_segment_behind_it_cannot_be_read(namespace):
    await in_files(namespace, "log", 2)
    logs = namespace.services.logs
    (third, *_) = await logs.hot_segments("log")
    await logs.store.put(logs.paths("log").segment(third), b"?", ANY_VERSION)
    listing = await LogStore(logs.store, logs.namespace_path).listing("log")
    assert [(await listing.read(listing[index])).lssn for index in range(2)] == [1, 2]
    with pytest.raises(CorruptDataError):
        await listing.read(listing[2])


async def test_a_subscriber_in_a_file_keeps_what_it_has_to_read(namespace):
    log, _ = await in_files(namespace, "log", 2)
    await log.commit_position("slow", DLSN(1, 1, 0))
    assert await log.truncate(DLSN(3, 1, 0), respect_subscribers=True) == DLSN(1, 1, 0)
    await log.commit_position("slow", DLSN(3, 0, 0))
    assert await log.truncate(DLSN(3, 1, 0), respect_subscribers=True) == DLSN(3, 0, 0)


async def test_a_truncation_whose_answers_are_lost_or_that_meets_a_mover_hides_once(memory_cluster):
    for fault in (Fault.LOSE_REPLY, Fault.LOSE_REQUEST):
        for at in range(1, 12):
            namespace = await memory_cluster.namespace()
            name = f"log-{fault.value}-{at}"
            log, _cold = await in_files(namespace, name, 2)
            left = at

            def inject(session, operation, path, session_id=namespace.store.session_id, fault=fault):
                nonlocal left
                if session != session_id or operation == "sync":
                    return None
                left -= 1
                return fault if left == 0 else None

            memory_cluster.tree.inject = inject
            # It may fail together with its lock: then it is called again, as its user would.
            for _ in range(3):
                with suppress(DistributedLogError):
                    assert await log.truncate(DLSN(2, 1, 0)) == DLSN(2, 1, 0)
                    break
            memory_cluster.tree.inject = None
            assert states(await log.segments()) == ["t", "2:1:0", "a", "a"]


# ---------------------------------------------------------------------- purging, retention


async def test_a_purge_hides_what_lies_in_files_before_what_it_deletes(namespace):
    log, cold = await in_files(namespace, "log", 2)
    assert await log.purge_older_than(30) == 1  # the first segment ends with 20
    assert states(await log.segments()) == ["t", "a", "a", "a"]
    assert await log.purge_older_than(30) == 0
    assert await log.purge_older_than(80) == 2
    assert states(await log.segments()) == ["t", "t", "a"]
    assert [one.lssn for one in await log.segments()] == [1, 2, 4]
    assert (await cold.cold_log("log")).value.truncated_to == (4, 0, 0)
    unit = await cold.begin_cold_delete("log", await cold.unit("log", 1, 2))
    await cold.end_cold_delete("log", unit)
    assert [one.lssn for one in await log.segments()] == [4]


class HourlyClock:
    """A wall clock that moves by hours alone, when it is told to. It is behind the metadata store's."""

    def __init__(self) -> None:
        self.ms = 1_000_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def elapsed_s(self) -> float:
        return time.monotonic()

    def hours(self, hours: int) -> None:
        self.ms += hours * HOUR_MS


async def _timed(memory_cluster, **settings):
    """Make a namespace whose clock the test moves, and whose segments expire after an hour."""
    namespace = await memory_cluster.namespace(retention_hours=1, **settings)
    clock = HourlyClock()
    namespace._services = replace(namespace.services, clock=clock)
    return namespace, clock


async def _rolled(log):
    """Open a writer, write a record, and wait for the run of retention that its segment begins."""
    writer = await log.open_writer()
    await writer.write(10_000 + writer.last_txid, b"new")
    await until(lambda: writer._retention._run is not None and writer._retention._run.done())
    return writer


@pytest.mark.parametrize("path", ["/cold", ""])
async def test_retention_takes_only_what_is_truncated_of_a_log_that_goes_to_files(memory_cluster, path):
    namespace, clock = await _timed(memory_cluster, cold_path=path)
    log, cold = await in_files(namespace, "log", 1)
    hot = namespace.services.logs.hot_segments
    clock.hours(5)
    await (await _rolled(log)).close()
    assert [one.lssn for one in await hot("log")] == [2, 3, 4, 5], "the rest is for the mover"
    await log.truncate(DLSN(3, 0, 0))
    clock.hours(5)
    await (await _rolled(log)).close()
    assert [one.lssn for one in await hot("log")] == [3, 4, 5, 6]
    found = await log.segments()
    assert [one.lssn for one in found] == [1, 3, 4, 5, 6]
    assert states(found) == ["t", "a", "a", "a", "a"]
    await cold.end_cold_delete("log", await cold.begin_cold_delete("log", await cold.unit("log", 1, 1)))
    clock.hours(5)
    await (await _rolled(log)).close()
    left = [one.lssn for one in await hot("log")]
    assert left == ([3, 4, 5, 6, 7] if path else [6, 7]), "without cold storage age decides again, once files are gone"


@pytest.mark.parametrize("finished", [True, False])
async def test_retention_hides_no_file_whose_hot_copies_are_there(memory_cluster, finished):
    """By a writer that knows nothing of cold storage: after a restore, or where hot copies never go."""
    namespace, clock = await _timed(memory_cluster)
    log = await written(namespace, "log", SEGMENTS)
    cold = ColdStore(namespace.services.logs)
    if finished:
        await copied(cold, "log", 1, 2)
    else:
        await cold.copies.begin("log", 1, 2, root=ROOT, worker="w", now_ms=1)
    clock.hours(5)
    await (await _rolled(log)).close()
    assert [one.lssn for one in await namespace.services.logs.hot_segments("log")] == [1, 2, 3, 4, 5]
    assert (await cold.cold_log("log")).value.truncated_to == (0, 0, 0)


async def test_retention_of_a_log_that_waits_for_its_mover_loses_nothing(memory_cluster):
    namespace, clock = await _timed(memory_cluster, cold_path="/cold")
    log = await written(namespace, "log", SEGMENTS)
    clock.hours(500)
    await (await _rolled(log)).close()
    assert [one.lssn for one in await log.segments()] == [1, 2, 3, 4, 5]


# ---------------------------------------------------------------------- owners


async def test_a_writer_goes_on_behind_files_when_one_segment_is_left_on_the_list(memory_cluster):
    namespace = await memory_cluster.namespace()
    log, _ = await in_files(namespace, "log", 3)
    assert len(await namespace.services.logs.hot_segments("log")) == 1
    later = await memory_cluster.namespace(output_buffer_bytes=0)
    async with await (await later.open_log("log")).open_writer() as writer:
        assert (await writer.write(1000, b"e0")).lssn == 5
    fifth = (await log.segments())[-1]
    assert fifth.start_sequence_id == sum(map(len, SEGMENTS))
    reader = await log.open_reader(DLSN(5, 0, 0))
    (record,) = await reader.read_available(1, wait=True)
    assert (record.payload, record.sequence_id) == (b"e0", sum(map(len, SEGMENTS)))
    await reader.close()


# ---------------------------------------------------------------------- deletion


async def test_a_deleted_logs_files_are_noted_and_its_ledgers_gone(namespace):
    _, cold = await in_files(namespace, "log", 2)
    await namespace.delete_log("log")
    assert not await namespace.services.logs.exists("log")
    assert await ledgers(namespace) == []
    (note,) = await cold.deleted_logs()
    assert note.value.log == "log"
    assert note.value.folders == ((f"{ROOT}/{await cold.namespace_id()}/{note.value.log_id}", {}),)
    await written(namespace, "log", SEGMENTS[:1])
    assert await cold.cold_log("log") is None
    assert len(await cold.deleted_logs()) == 1


async def test_a_deletion_that_dies_anywhere_is_finished_by_a_second_one_with_one_note(memory_cluster):
    survivor = await memory_cluster.namespace()
    cold = ColdStore(survivor.services.logs)
    noted = 0
    for changes in range(40):
        name = f"log-{changes}"
        await in_files(survivor, name, 2)
        client = await memory_cluster.namespace()
        session, count = client.store.session_id, [0]

        def inject(asked, operation, path, session=session, count=count, changes=changes):
            if asked == session and operation in ("multi", "delete", "put", "create"):
                count[0] += 1
                return Fault.REFUSE if count[0] > changes else None
            return None

        memory_cluster.tree.inject = inject
        deleting = asyncio.ensure_future(client.delete_log(name))
        await until(lambda d=deleting, c=count, n=changes: d.done() or c[0] > n)
        memory_cluster.tree.inject = None
        deleting.cancel()
        await asyncio.wait([deleting])
        await memory_cluster.crash(client)
        ended = not await survivor.services.logs.exists(name)
        if not ended:
            # What is noted is not shown any more, and what is shown is not noted.
            shown = [one.lssn for one in await survivor.services.logs.segments(name)]
            notes = [one.value.log for one in await cold.deleted_logs()]
            assert (name in notes) != (1 in shown)
            noted += name in notes
        with suppress(LogNotFoundError):
            await survivor.delete_log(name)
        assert [one.value.log for one in await cold.deleted_logs()].count(name) == 1
        assert not await survivor.services.logs.exists(name)
        if ended:
            break
    assert noted > 2
    assert changes < 39
    assert await ledgers(survivor) == []


# ---------------------------------------------------------------------- everything at once


def _truncated(segments):
    return list(takewhile(is_truncated, segments[:-1]))


class Rounds:
    """A log that is written, truncated, moved and forgotten by processes that know nothing of each other, with faults,
    and what its readers must see meanwhile."""

    def __init__(self, cluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.acknowledged = DLSN(1, 0, 0)
        """Below it all is hidden."""
        self.asked = DLSN(1, 0, 0)
        """At or above it nothing is."""
        self.completed = 0
        """Segments up to this one are there."""
        self.running = True
        self.written = False
        self.steps = [self.truncate, self.move, self.move, self.look, self.look]
        self.turns = [0] * len(self.steps)
        """How often each of the processes beside the writer has taken its step."""
        self.looks = self.moves = self.ends = 0

    def inject(self, session, operation, path):
        if not self.running or self.rng.random() > 0.03 or operation == "sync":
            return None
        return self.rng.choice([Fault.LOSE_REPLY, Fault.LOSE_REQUEST])

    async def write(self, namespace) -> None:
        """Begin and end segments, as a writer does; what lies in them does not matter here."""
        logs = namespace.services.logs
        paths = logs.paths("log")
        for lssn in range(1, 25):
            one = SegmentMetadata(
                1000 + lssn, lssn, lssn * 10, lssn * 10 + 9, record_count=3, last_entry=2, last_slot=0
            )
            while True:
                with suppress(DistributedLogError):
                    if await logs.store.exists(paths.segment(one)) is None:
                        await logs.store.multi([Create(paths.segment(one), one.encode())])
                    break
                await asyncio.sleep(0)
            self.completed = lssn
            # Each of the others takes a step meanwhile, however long its repetitions pause.
            before = list(self.turns)
            await until(lambda before=before: all(map(gt, self.turns, before)), every_s=0)
        self.written = True

    async def truncate(self, namespace) -> None:
        lock = DistributedLock(namespace.store, namespace.services.logs.paths("log").lock, "owner")
        with suppress(DistributedLogError):
            await lock.acquire(0)
            owned = OwnedSegments(namespace.services, "log", lock)
            highest = max(1, min(self.completed, self.acknowledged.lssn + 3))
            wanted = DLSN(self.rng.randint(1, highest), self.rng.randrange(3), 0)
            self.asked = max(self.asked, wanted)
            if self.rng.random() < 0.7:
                point = await owned.truncate(wanted)
                assert point <= self.asked
                self.acknowledged = max(self.acknowledged, min(wanted, point))
            else:
                await owned.purge(
                    lambda listed: [one for one in listed[:-1] if one.truncation.value == 2], keeps_files=True
                )
        with suppress(DistributedLogError):
            await lock.release()

    async def move(self, namespace) -> None:
        cold = ColdStore(namespace.services.logs)
        with suppress(ColdMovedError, ColdTakenError, ColdKeptError, DistributedLogError):
            units, attempts = await cold.units("log"), await cold.attempts("log")
            choice = self.rng.random()
            if attempts and choice < 0.2:
                await cold.copies.abandon("log", self.rng.choice(attempts))
            elif choice < 0.55:
                taken = [one.value.last for one in (*units, *attempts)]
                hot = [one.lssn for one in await namespace.services.logs.hot_segments("log")] or [1]
                first = max([*taken, hot[0] - 1]) + 1
                last = first + self.rng.randrange(3)
                await copied(cold, "log", first, last)
            elif units and choice < 0.85:
                waiting = [one for one in units if one.value.state is UnitState.FINISHED]
                await cold.delete_hot("log", waiting[0] if waiting else units[0], now_ms=3)
                self.moves += 1
            elif units:
                await self.forget(cold, units[0])

    async def forget(self, cold: ColdStore, unit) -> None:
        end = DLSN(unit.value.last + 1, 0, 0)
        if unit.value.state is UnitState.HOT_DELETED and self.acknowledged >= end:
            unit = await cold.begin_cold_delete("log", unit)
        if unit.value.state is UnitState.COLD_DELETE_STARTED:
            await cold.end_cold_delete("log", unit)
            self.ends += 1

    async def look(self, namespace) -> None:
        completed, hidden = self.completed, self.acknowledged
        found = await namespace.services.logs.segments("log")
        self.looks += 1
        numbers = [one.lssn for one in found]
        assert len(set(numbers)) == len(numbers)
        assert numbers == sorted(numbers)
        visible = [one for one in found if one.truncation is not TruncationStatus.TRUNCATED]
        shown = [one.lssn for one in visible]
        # Nothing that was not asked to go is missing; what was acknowledged to be hidden is, and all before what is.
        assert set(range(self.asked.lssn, completed + 1)) <= set(shown)
        assert shown == list(range(shown[0], shown[-1] + 1)) if shown else True
        assert {one.truncation for one in visible[1:]} <= {TruncationStatus.ACTIVE}
        for one in visible:
            assert DLSN(one.lssn, one.last_entry, one.last_slot) >= hidden
            if one.truncation is TruncationStatus.PARTIALLY_TRUNCATED:
                assert DLSN(one.lssn, one.min_entry, one.min_slot) <= self.asked

    async def run(self) -> None:
        clients = [await self.cluster.namespace() for _ in range(6)]
        await clients[0].create_log("log")
        for client in clients:
            await client.services.logs.located("log")
        self.cluster.tree.inject = self.inject

        async def again(number, client) -> None:
            while not self.written:
                await self.steps[number](client)
                self.turns[number] += 1
                for _ in range(self.rng.randrange(20)):
                    await asyncio.sleep(0)

        await together([self.write(clients[0]), *(again(*one) for one in enumerate(clients[1:]))])
        self.running = False
        self.cluster.tree.inject = None
        await self.look(clients[0])


async def test_readers_lists_are_whole_whatever_happens_at_the_same_time(memory_cluster, rounds, seed):
    total = Rounds(memory_cluster, random.Random(0))
    for number in range(rounds or 3):
        one = Rounds(memory_cluster, random.Random(number if seed is None else seed))
        await one.run()
        for client in list(memory_cluster.clients):
            await client.close()
            memory_cluster.clients.remove(client)
        again = await memory_cluster.namespace()
        await again.delete_log("log")
        total.looks, total.moves, total.ends = total.looks + one.looks, total.moves + one.moves, total.ends + one.ends
    assert total.looks > 50
    assert total.moves > 3
    assert total.ends > 0


# ---------------------------------------------------------------------- what people see


async def test_the_state_of_a_segment_says_where_it_is(namespace):
    log, cold = await in_files(namespace, "log", 1)
    await copied(cold, "log", 2, 2)
    await log.truncate(DLSN(1, 1, 0))
    found = [segment_state(one) for one in (await log.status()).segments]
    assert found == ["truncated below 1:1:0, in a file", "completed, also in a file", "completed", "completed"]
    assert (await log.status()).start == DLSN(1, 1, 0)


async def test_an_inspection_finds_what_is_wrong_with_units_and_nothing_else(namespace):
    _, cold = await in_files(namespace, "log", 2)
    services = namespace.services
    assert (await inspect_log(services, "log")).findings == ()
    unit = await copied(cold, "log", 3, 3)
    assert (await inspect_log(services, "log")).findings == ()
    paths = services.logs.paths("log")
    twice = f"{paths.cold_units}/{unit_name(2, 3)}"
    both = (await cold.unit("log", 1, 2)).value.segments[1:] + unit.value.segments
    await services.store.create(twice, replace(unit.value, segments=both).encode())
    assert [one.kind for one in (await inspect_log(services, "log")).findings] == [FindingKind.DUPLICATE] * 2
    await services.store.delete(twice)
    await services.store.delete(f"{paths.cold_units}/{unit.value.name}")
    (third, *_) = await services.logs.hot_segments("log")
    await services.store.delete(paths.segment(third))
    (gap,) = (await inspect_log(services, "log")).findings
    assert gap.kind is FindingKind.GAP
    await services.store.put(f"{paths.cold_units}/{unit_name(1, 2)}", b"?", ANY_VERSION)
    assert [one.kind for one in (await inspect_log(services, "log")).findings] == [FindingKind.UNREADABLE]


async def test_the_ledgers_of_segments_in_files_are_noted_until_they_are_gone_and_no_other_is_missed(namespace):
    await written(namespace, "log", SEGMENTS)
    services = namespace.services
    cold = ColdStore(services.logs)
    before = await ledgers(namespace)
    await cold.delete_hot("log", await copied(cold, "log", 1, 2), now_ms=3)
    found = await find_references(services.store)
    assert sorted(found.by_ledger) == sorted(before)
    assert found.unreadable == []
    assert [found.by_ledger[one][0].use for one in before] == [Use.NOTED, Use.NOTED, Use.SEGMENT, Use.SEGMENT]
    await sweep(services, "log")
    assert await ledgers(namespace) == before[2:]
    assert sorted((await find_references(services.store)).by_ledger) == sorted(before[2:])
