"""Steps of cold storage on both stores: what each changes, what it refuses, and how two workers, owners and readers
meet. The same steps with crashes and lost answers are in test_cold_crashes.py."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_places import ColdFile, UnitState
from metadata.distributedlog.cold_steps import ColdKeptError, ColdMovedError, ColdTakenError
from metadata.distributedlog.cold_store import MAX_REPLACED, ColdStore
from metadata.distributedlog.cold_units import ColdSegment, ColdUnit
from metadata.distributedlog.locks import DistributedLock, LockingError, OwnershipAcquireFailedError
from metadata.distributedlog.log_admin import LogAdmin
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.producer_segments import ProducerSegments
from metadata.distributedlog.segment_changes import SegmentChanges, SegmentsMovedError
from metadata.distributedlog.segments import SegmentListError, SegmentMetadata, TruncationStatus
from metadata.foundation.errors import CallerError, InvariantViolation
from metadata.store import ANY_VERSION, Check, Create, Delete, MetadataStore

ROOT = "file:///cold"


def segment(lssn: int, **changes) -> SegmentMetadata:
    base = SegmentMetadata(ledger_id=100 + lssn, lssn=lssn, first_txid=lssn * 10, last_txid=lssn * 10 + 9)
    return replace(base, record_count=3, last_entry=2, last_slot=0, start_sequence_id=(lssn - 1) * 3, **changes)


def opening(lssn: int) -> SegmentMetadata:
    return SegmentMetadata(ledger_id=100 + lssn, lssn=lssn, first_txid=lssn * 10, in_progress=True)


async def add(logs: LogStore, *segments: SegmentMetadata, log: str = "log") -> None:
    await logs.store.multi([Create(logs.paths(log).segment(one), one.encode()) for one in segments])


async def hide(logs: LogStore, lssn: int, **changes) -> None:
    """Do what upstream's truncation does."""
    path = logs.paths("log").segment(segment(lssn))
    await logs.store.multi([Delete(path), Create(path, segment(lssn, **changes).encode())])


def places(*numbers: int) -> list[ColdSegment]:
    return [ColdSegment(segment(lssn), 3 * index, 3, 50) for index, lssn in enumerate(numbers)]


def file_of(url: str, rows: int) -> ColdFile:
    return ColdFile(url, 10, "aa", "bb", rows, rows, {"endpoint": "http://h:1"})


async def finished(cold: ColdStore, first: int, last: int, log: str = "log") -> Versioned[ColdUnit]:
    attempt = await cold.copies.begin(log, first, last, root=ROOT, worker="w", now_ms=1)
    numbers = range(first, last + 1)
    return await cold.copies.finish(
        log, attempt, places(*numbers), file_of(attempt.value.url, 3 * len(numbers)), now_ms=2
    )


async def moved(cold: ColdStore, first: int, last: int) -> Versioned[ColdUnit]:
    return await cold.delete_hot("log", await finished(cold, first, last), now_ms=3)


@pytest.fixture
async def logs(store: MetadataStore, root: str) -> LogStore:
    await store.create(f"{root}/ns")
    logs = LogStore(store, f"{root}/ns")
    await logs.create("log")
    await add(logs, *map(segment, range(1, 7)), opening(7))
    return logs


@pytest.fixture
def cold(logs: LogStore) -> ColdStore:
    return ColdStore(logs)


@pytest.fixture
async def guard(logs: LogStore):
    lock = DistributedLock(logs.store, logs.paths("log").lock, "owner")
    await lock.acquire(0)
    yield lambda: Check(lock.member_path, ANY_VERSION)
    await lock.release()


async def shown(logs: LogStore, log: str = "log") -> list[tuple[int, bool | None]]:
    """Return what readers see: numbers, each with whether its unit's segment is on the list."""
    return [(one.lssn, one.cold.listed if one.cold else None) for one in await logs.segments(log)]


async def test_the_namespace_has_one_id_however_many_ask_first(logs, other, root) -> None:
    others = LogStore(other, f"{root}/ns")
    ids = await asyncio.gather(*(ColdStore(one).namespace_id() for one in (logs, others, logs, others)))
    assert len(set(ids)) == 1
    assert await logs.list() == ["log"]
    assert await LogAdmin(logs).names() == ["log"]


async def test_a_segment_goes_from_the_list_into_a_file_and_out_of_the_world(logs, cold) -> None:
    before = await logs.segments("log")
    attempt = await cold.copies.begin("log", 1, 2, root=f"{ROOT}/", worker="w", now_ms=1, options={"region": "r"})
    log = await cold.cold_log("log")
    ids = f"{await cold.namespace_id()}/{log.value.log_id}"
    assert attempt.value.url == f"{ROOT}/{ids}/{attempt.value.name}-{attempt.value.attempt}.parquet"
    assert await cold.attempts("log") == [attempt]
    assert await cold.units("log") == []
    assert await shown(logs) == [(lssn, None) for lssn in range(1, 8)]
    unit = await cold.copies.finish("log", attempt, places(1, 2), file_of(attempt.value.url, 6), now_ms=2)
    assert unit.value.state is UnitState.FINISHED
    assert unit == await cold.unit("log", 1, 2)
    assert await cold.attempts("log") == []
    assert await cold.units("log") == [unit]
    assert await shown(logs) == [(1, True), (2, True), *((lssn, None) for lssn in range(3, 8))]
    unit = await cold.delete_hot("log", unit, now_ms=3)
    assert unit == await cold.unit("log", 1, 2)
    assert (unit.value.state, unit.value.hot_deleted_ms) == (UnitState.HOT_DELETED, 3)
    assert await shown(logs) == [(1, False), (2, False), *((lssn, None) for lssn in range(3, 8))]
    assert await logs.segments("log") == before
    assert [one.lssn for one in await logs.hot_segments("log")] == [3, 4, 5, 6, 7]
    assert await SegmentChanges(logs, "log").noted() == [101, 102]
    unit = await cold.begin_cold_delete("log", unit)
    assert (await cold.cold_log("log")).value.truncated_to == (3, 0, 0)
    assert [one.truncation for one in await logs.segments("log")][:3] == [
        TruncationStatus.TRUNCATED,
        TruncationStatus.TRUNCATED,
        TruncationStatus.ACTIVE,
    ]
    await cold.end_cold_delete("log", unit)
    await cold.end_cold_delete("log", unit)
    assert await cold.units("log") == []
    assert await shown(logs) == [(lssn, None) for lssn in range(3, 8)]


async def test_segments_without_records_need_no_file(logs, cold) -> None:
    attempt = await cold.copies.begin("log", 1, 1, root=ROOT, worker="w", now_ms=1)
    unit = await cold.copies.finish("log", attempt, [ColdSegment(segment(1), 0, 0, 50)], None, now_ms=2)
    assert unit == await cold.unit("log", 1, 1)
    assert unit.value.file is None
    await cold.delete_hot("log", unit, now_ms=3)
    assert (await logs.segments("log"))[0].cold.file is None


async def test_no_segment_is_taken_twice(logs, cold, other, root) -> None:
    elsewhere = ColdStore(LogStore(other, f"{root}/ns"))
    await cold.ensure("log")
    calls = [
        one.copies.begin("log", 1, 3, root=ROOT, worker="w", now_ms=1) for one in (cold, elsewhere, cold, elsewhere)
    ]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in results if isinstance(one, Exception)] == [ColdTakenError] * 3
    await finished(cold, 4, 5)
    for first, last in ((3, 4), (1, 1), (5, 6), (2, 5)):
        with pytest.raises(ColdTakenError):
            await elsewhere.copies.begin("log", first, last, root=ROOT, worker="w", now_ms=1)
    await elsewhere.copies.begin("log", 6, 6, root=ROOT, worker="w", now_ms=1)


async def test_only_completed_segments_of_the_list_are_taken(logs, cold) -> None:
    for first, last in ((6, 7), (6, 8), (8, 9)):
        with pytest.raises(ColdMovedError):
            await cold.copies.begin("log", first, last, root=ROOT, worker="w", now_ms=1)
    with pytest.raises(LogNotFoundError):
        await cold.copies.begin("missing", 1, 1, root=ROOT, worker="w", now_ms=1)
    with pytest.raises(InvariantViolation):
        await cold.copies.begin("log", 2, 1, root=ROOT, worker="w", now_ms=1)


async def test_who_was_overtaken_finishes_nothing(logs, cold) -> None:
    first = await cold.copies.begin("log", 1, 2, root=ROOT, worker="slow", now_ms=1)
    second = await cold.copies.retry("log", first, root=ROOT, worker="fast", now_ms=2)
    assert second.value.url != first.value.url
    assert await cold.attempts("log") == [second]
    for step in (
        cold.copies.finish("log", first, places(1, 2), file_of(first.value.url, 6), now_ms=3),
        cold.copies.retry("log", first, root=ROOT, worker="slow", now_ms=3),
    ):
        with pytest.raises(ColdMovedError):
            await step
    await cold.copies.abandon("log", first)  # It is no attempt any more: nothing to give up.
    assert await cold.attempts("log") == [second]
    unit = await cold.copies.finish("log", second, places(1, 2), file_of(second.value.url, 6), now_ms=3)
    assert unit.value.attempt == second.value.attempt
    with pytest.raises(ColdMovedError, match="has become a unit"):
        await cold.copies.abandon("log", second)


async def test_a_segment_that_is_another_one_now_is_in_no_unit(logs, cold) -> None:
    attempt = await cold.copies.begin("log", 1, 2, root=ROOT, worker="w", now_ms=1)
    file = file_of(attempt.value.url, 6)
    wrong = [places(1, 2)[0], replace(places(1, 2)[1], metadata=segment(2, completion_time_ms=77))]
    with pytest.raises(ColdMovedError, match="not the one that was copied"):
        await cold.copies.finish("log", attempt, wrong, file, now_ms=2)
    await logs.store.delete(logs.paths("log").segment(segment(1)))
    with pytest.raises(ColdMovedError, match="left the list"):
        await cold.copies.finish("log", attempt, places(1, 2), file, now_ms=2)
    assert await cold.units("log") == []
    assert await cold.attempts("log") == [attempt]
    await cold.copies.abandon("log", attempt)
    assert await cold.attempts("log") == []


async def test_a_unit_is_what_its_attempt_said(logs, cold) -> None:
    attempt = await cold.copies.begin("log", 1, 2, root=ROOT, worker="w", now_ms=1)
    url = attempt.value.url
    for segments, file in (
        (places(1), file_of(url, 3)),
        (places(1, 2), file_of(url, 5)),
        (places(1, 2), None),
        (places(1, 2), file_of("file:///other", 6)),
        ([replace(one, first_row=0) for one in places(1, 2)], file_of(url, 6)),
    ):
        with pytest.raises(InvariantViolation):
            await cold.copies.finish("log", attempt, segments, file, now_ms=2)


async def test_what_was_truncated_while_it_was_copied_stays_hidden(logs, cold) -> None:
    attempt = await cold.copies.begin("log", 1, 2, root=ROOT, worker="w", now_ms=1)
    await hide(logs, 1, truncation=TruncationStatus.TRUNCATED)
    unit = await cold.copies.finish("log", attempt, places(1, 2), file_of(attempt.value.url, 6), now_ms=2)
    partly = {"truncation": TruncationStatus.PARTIALLY_TRUNCATED, "min_entry": 1, "min_slot": 0}
    await hide(logs, 2, **partly)  # by upstream's software, which does not know of units
    await cold.delete_hot("log", unit, now_ms=3)
    found = await logs.segments("log")
    assert found[:3] == [segment(1, truncation=TruncationStatus.TRUNCATED), segment(2, **partly), segment(3)]
    assert (await cold.cold_log("log")).value.truncated_to == (2, 1, 0)


async def test_hot_copies_go_from_the_head_alone(logs, cold) -> None:
    newer, older = await finished(cold, 3, 4), await finished(cold, 1, 2)
    with pytest.raises(ColdKeptError, match="segment 1 is older"):
        await cold.delete_hot("log", newer, now_ms=3)
    await cold.delete_hot("log", older, now_ms=3)
    await cold.delete_hot("log", newer, now_ms=3)
    assert [one.lssn for one in await logs.hot_segments("log")] == [5, 6, 7]


async def test_the_newest_completed_segment_stays_on_the_list(logs, cold) -> None:
    await moved(cold, 1, 5)
    newest = await finished(cold, 6, 6)
    with pytest.raises(ColdKeptError, match="sequence ids"):
        await cold.delete_hot("log", newest, now_ms=3)
    await logs.store.multi(
        [
            Delete(logs.paths("log").segment(opening(7))),
            Create(logs.paths("log").segment(segment(7)), segment(7).encode()),
        ]
    )
    await cold.delete_hot("log", newest, now_ms=4)
    assert [one.lssn for one in await logs.hot_segments("log")] == [7]


async def test_what_says_who_the_producers_are_stays_on_the_list(logs, cold) -> None:
    path = logs.paths("log").producers
    await logs.store.create(path, ProducerSegments(newest=6, whole=2).encode())
    unit = await finished(cold, 1, 2)
    with pytest.raises(ColdKeptError, match="begins in segment 2"):
        await cold.delete_hot("log", unit, now_ms=3)
    await logs.store.put(path, ProducerSegments(newest=6, whole=3).encode(), ANY_VERSION)
    await cold.delete_hot("log", unit, now_ms=3)


async def test_what_upstreams_retention_took_off_the_list_is_read_in_the_file(logs, cold) -> None:
    unit = await finished(cold, 1, 3)
    await logs.store.delete(logs.paths("log").segment(segment(1)))
    assert await shown(logs) == [(1, False), (2, True), (3, True), *((lssn, None) for lssn in range(4, 8))]
    await cold.delete_hot("log", unit, now_ms=3)
    assert [lssn for lssn, listed in await shown(logs) if listed is False] == [1, 2, 3]
    assert {one.truncation for one in await logs.segments("log")} == {TruncationStatus.ACTIVE}
    assert await SegmentChanges(logs, "log").noted() == [102, 103]


async def test_files_go_oldest_first_and_never_before_hot_copies(logs, cold) -> None:
    older, newer = await moved(cold, 1, 2), await finished(cold, 3, 4)
    with pytest.raises(ColdKeptError, match="on the list"):
        await cold.begin_cold_delete("log", newer)
    newer = await cold.delete_hot("log", newer, now_ms=3)
    with pytest.raises(ColdKeptError, match="is older"):
        await cold.begin_cold_delete("log", newer)
    older = await cold.begin_cold_delete("log", older)
    newer = await cold.begin_cold_delete("log", newer)
    assert (await cold.cold_log("log")).value.truncated_to == (5, 0, 0)
    with pytest.raises(InvariantViolation):
        await cold.end_cold_delete("log", await finished(cold, 5, 5))
    await cold.end_cold_delete("log", older)
    await cold.end_cold_delete("log", newer)
    assert [lssn for lssn, _ in await shown(logs)] == [5, 6, 7]


async def test_a_file_is_replaced_and_the_old_one_kept_until_it_is_forgotten(logs, cold) -> None:
    unit = await moved(cold, 1, 2)
    stale = unit
    for number in range(MAX_REPLACED):
        assert (await logs.segments("log"))[0].cold.attempt == unit.value.attempt  # and it is kept by the reader
        unit = await cold.replace_file("log", unit, file_of(f"{ROOT}/{number}", 6), attempt=f"a{number}")
        segments = await logs.segments("log")
        assert {one.cold.file.url for one in segments[:2]} == {f"{ROOT}/{number}"}
    with pytest.raises(CallerError, match="still there"):
        await cold.replace_file("log", unit, file_of(f"{ROOT}/x", 6), attempt="x")
    with pytest.raises(ColdMovedError):
        await cold.replace_file("log", stale, file_of(f"{ROOT}/x", 6), attempt="x")
    assert [one.url for one in unit.value.replaced][1:] == [f"{ROOT}/{n}" for n in range(MAX_REPLACED - 1)]
    unit = await cold.forget_replaced("log", unit, f"{ROOT}/3")
    assert unit == await cold.unit("log", 1, 2) == await cold.forget_replaced("log", unit, f"{ROOT}/3")
    assert f"{ROOT}/3" not in [one.url for one in unit.value.replaced]
    unit = await cold.begin_cold_delete("log", unit)
    with pytest.raises(ColdMovedError, match="being deleted"):
        await cold.replace_file("log", unit, file_of(f"{ROOT}/x", 6), attempt="x")


# ---- readers ---------------------------------------------------------------------------------------------------------


async def test_a_watch_of_the_list_hears_of_files_too(logs, cold, other, root) -> None:
    unit = await moved(cold, 1, 2)
    reading = LogStore(other, f"{root}/ns")
    for step in (
        lambda: cold.replace_file("log", unit, file_of(f"{ROOT}/new", 6), attempt="new"),
        lambda: finished(cold, 3, 3),
    ):
        heard = asyncio.Event()
        await reading.listing("log", lambda event, heard=heard: heard.set())
        assert not heard.is_set()
        await step()
        await asyncio.wait_for(heard.wait(), 60)


async def test_a_unit_is_read_once_however_many_of_its_segments_are_asked_for(logs, cold) -> None:
    await moved(cold, 1, 4)
    made: list[str] = []
    logs.store.observe(lambda operation, path, seconds, error: made.append(f"{operation} {path}"))
    await logs.segments("log")
    units = [request for request in made if "/cold/units/" in request]
    assert len(units) == 1
    made.clear()
    listing = await logs.listing("log")
    assert [one.lssn for one in await listing.read_all(0, 4)] == [1, 2, 3, 4]
    paths = logs.paths("log")
    assert sorted(made) == sorted([f"children {paths.ledgers}", f"get {paths.cold}", f"children {paths.cold_units}"])


async def test_a_log_that_never_had_cold_storage_costs_one_request_more(logs) -> None:
    made: list[str] = []
    logs.store.observe(lambda operation, path, seconds, error: made.append(f"{operation} {path}"))
    await logs.listing("log")
    assert made == [f"children {logs.paths('log').ledgers}", f"exists {logs.paths('log').cold}"]


async def test_names_of_old_are_merged_by_their_data(store, root) -> None:
    await store.create(f"{root}/old")
    logs = LogStore(store, f"{root}/old")
    await logs.create("log")
    named = {lssn: segment(lssn).named(0) for lssn in (1, 2, 3)}
    await add(logs, *named.values())
    cold = ColdStore(logs)
    attempt = await cold.copies.begin("log", 1, 1, root=ROOT, worker="w", now_ms=1)
    unit = await cold.copies.finish(
        "log", attempt, [ColdSegment(named[1], 0, 3, 5)], file_of(attempt.value.url, 3), now_ms=2
    )
    await cold.delete_hot("log", unit, now_ms=3)
    found = await logs.segments("log")
    assert found == list(named.values())
    assert [one.znode_name for one in found] == [one.name for one in named.values()]
    assert [one.lssn for one in await logs.hot_segments("log")] == [2, 3]


async def test_a_segment_that_is_in_neither_is_an_error_unless_it_is_hidden(logs, cold) -> None:
    await moved(cold, 1, 2)
    await logs.store.delete(logs.paths("log").segment(segment(3)))
    with pytest.raises(SegmentListError, match="segment 4 follows segment 2"):
        await logs.segments("log")
    await hide(logs, 4, truncation=TruncationStatus.TRUNCATED)
    assert await cold.follow_truncation("log") == (5, 0, 0)
    found = await logs.segments("log")
    assert [one.lssn for one in found] == [1, 2, 4, 5, 6, 7]
    assert {one.truncation for one in found[:3]} == {TruncationStatus.TRUNCATED}


# ---- owners ----------------------------------------------------------------------------------------------------------


async def test_a_truncation_that_read_the_list_before_hot_copies_went_changes_nothing(logs, cold, guard) -> None:
    unit = await finished(cold, 1, 2)
    changes = SegmentChanges(logs, "log")
    turn, mark = await changes.turn(), [(segment(1), segment(1, truncation=TruncationStatus.TRUNCATED))]
    said = await changes.cold()
    await cold.delete_hot("log", unit, now_ms=3)
    with pytest.raises(SegmentsMovedError):
        await changes.mark(mark, guard, turn, said, (2, 0, 0))
    with pytest.raises(SegmentsMovedError):  # nor one that is about files alone
        await changes.mark([], guard, turn, said, (2, 0, 0))
    assert {one.truncation for one in await logs.segments("log")} == {TruncationStatus.ACTIVE}


async def test_hot_copies_do_not_go_past_a_truncation_that_was_not_seen(logs, cold, guard) -> None:
    unit = await finished(cold, 1, 2)
    read = cold._steps.still_listed
    marked = asyncio.Event()

    async def then_be_truncated(name, paths, segments):
        found = await read(name, paths, segments)
        if not marked.is_set():
            marked.set()
            changes = SegmentChanges(logs, "log")
            hidden = [(one, replace(one, truncation=TruncationStatus.TRUNCATED)) for one in (segment(1), segment(2))]
            await changes.mark(hidden, guard, await changes.turn())
        return found

    cold._steps.still_listed = then_be_truncated
    await cold.delete_hot("log", unit, now_ms=3)
    assert [one.truncation for one in (await logs.segments("log"))[:3]] == [
        TruncationStatus.TRUNCATED,
        TruncationStatus.TRUNCATED,
        TruncationStatus.ACTIVE,
    ]


async def test_a_deleted_logs_files_are_noted_once_and_no_longer_shown(logs, cold, guard) -> None:
    unit = await moved(cold, 1, 2)
    borrowed = replace(file_of("file:///another/log/f", 6), borrowed=True)
    unit = await cold.replace_file("log", unit, borrowed, attempt="b")
    waiting = await cold.copies.begin("log", 3, 3, root="s3://other", worker="w", now_ms=1, options={"region": "r"})
    for now_ms in (50, 60):
        await cold.bury("log", guard, now_ms=now_ms)
    (note,) = await cold.deleted_logs()
    log = await cold.cold_log("log")
    ids = f"{await cold.namespace_id()}/{log.value.log_id}"
    assert (note.value.log, note.value.deleted_ms, note.value.log_id) == ("log", 50, log.value.log_id)
    assert dict(note.value.folders) == {
        f"{ROOT}/{ids}": {"endpoint": "http://h:1"},
        f"s3://other/{ids}": {"region": "r"},
    }
    assert note.value.borrowed == ("file:///another/log",)
    assert [one.lssn for one in await logs.segments("log")] == [3, 4, 5, 6, 7]
    for step in (
        cold.copies.begin("log", 4, 4, root="s3://third", worker="w", now_ms=1),
        cold.copies.retry("log", waiting, root="s3://third", worker="w", now_ms=1),
        cold.copies.finish("log", waiting, places(3), file_of(waiting.value.url, 3), now_ms=1),
        cold.begin_cold_delete("log", unit),
    ):
        with pytest.raises(ColdMovedError, match="being deleted"):
            await step
    await cold.forget_deleted(note)
    await cold.forget_deleted(note)
    assert await cold.deleted_logs() == []


async def test_who_has_lost_the_lock_buries_nothing(logs, cold, guard) -> None:
    await moved(cold, 1, 2)
    lost = guard()
    await logs.store.delete(lost.path)
    with pytest.raises(LockingError):
        await cold.bury("log", lambda: lost, now_ms=1)
    assert await cold.deleted_logs() == []
    assert not (await cold.cold_log("log")).value.deleted


async def test_a_renamed_log_keeps_its_files(logs, cold) -> None:
    await moved(cold, 1, 2)
    attempt = await cold.copies.begin("log", 3, 3, root=ROOT, worker="w", now_ms=1)
    before, said = await logs.segments("log"), await cold.cold_log("log")
    await LogAdmin(logs).rename("log", "new")
    assert await logs.segments("new") == before
    assert (await cold.cold_log("new")).value == said.value
    assert await cold.deleted_logs() == []
    unit = await cold.copies.finish("new", attempt, places(3), file_of(attempt.value.url, 3), now_ms=2)
    assert unit == await cold.unit("new", 3, 3)
    with pytest.raises(LogNotFoundError):
        await cold.copies.begin("log", 4, 4, root=ROOT, worker="w", now_ms=1)


async def test_a_log_is_not_renamed_under_its_worker_and_has_one_at_a_time(logs, cold, other, root) -> None:
    lock = await cold.worker("log", "mover")
    await lock.acquire(0)
    second = await ColdStore(LogStore(other, f"{root}/ns")).worker("log", "second")
    with pytest.raises(OwnershipAcquireFailedError, match="mover"):
        await second.acquire(0)
    with pytest.raises(LockingError, match="cold storage worker"):
        await LogAdmin(logs).rename("log", "new")
    await lock.release()
    await LogAdmin(logs).rename("log", "new")
