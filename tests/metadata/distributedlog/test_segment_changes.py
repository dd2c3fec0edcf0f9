"""Changes of a log's list by its owner: whole or not at all, by the owner alone, in requests that ZooKeeper takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metadata.distributedlog.locks import DistributedLock, LockingError
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.segment_changes import MAX_CHANGE_BYTES, SegmentChanges, SegmentsMovedError, notes_path
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.errors import InvariantViolation
from metadata.store import ANY_VERSION, Check, Create, MetadataStore

MANY = 3_000


@pytest.fixture
async def logs(store: MetadataStore, root: str) -> LogStore:
    await store.create(f"{root}/ns")
    logs = LogStore(store, f"{root}/ns")
    await logs.create("log")
    return logs


@pytest.fixture
async def guard(logs: LogStore):
    lock = DistributedLock(logs.store, logs.paths("log").lock, "owner")
    await lock.acquire(0)
    yield lambda: Check(lock.member_path, ANY_VERSION)
    await lock.release()


async def _filled(logs: LogStore, count: int) -> list[SegmentMetadata]:
    paths = logs.paths("log")
    segments = [
        SegmentMetadata(
            ledger_id=10_000_000_000 + lssn, lssn=lssn, first_txid=10**18, last_txid=10**18, last_entry=5, last_slot=0
        )
        for lssn in range(1, count + 1)
    ]
    for first in range(0, count, 1000):
        await logs.store.multi([Create(paths.segment(one), one.encode()) for one in segments[first : first + 1000]])
    return segments


def _hidden(segments):
    return [(one, replace(one, truncation=TruncationStatus.TRUNCATED)) for one in segments]


async def test_more_segments_than_fit_in_one_request_are_marked_and_removed(logs, guard):
    segments = await _filled(logs, MANY)
    changes = SegmentChanges(logs, "log")
    assert len(segments) * len(segments[0].encode()) * 3 > MAX_CHANGE_BYTES
    await changes.mark(_hidden(segments), guard, await changes.turn())
    found = await logs.segments("log")
    assert [one.lssn for one in found] == list(range(1, MANY + 1))
    assert {one.truncation for one in found} == {TruncationStatus.TRUNCATED}
    await changes.remove(segments[:-1], guard)
    assert await logs.segments("log") == [replace(segments[-1], truncation=TruncationStatus.TRUNCATED)]
    assert await changes.noted() == [one.ledger_id for one in segments[:-1]]


async def test_who_has_lost_the_lock_changes_nothing(logs, guard):
    segments = await _filled(logs, 3)
    changes = SegmentChanges(logs, "log")
    lost = guard()
    await logs.store.delete(lost.path)
    turn = await changes.turn()
    for change in (changes.mark(_hidden(segments), lambda: lost, turn), changes.remove(segments, lambda: lost)):
        with pytest.raises(LockingError, match="the lock was lost"):
            await change
    assert await logs.segments("log") == segments
    assert await changes.noted() == []


async def test_a_segment_that_went_meanwhile_leaves_all_as_it_is(logs, guard):
    segments = await _filled(logs, 3)
    changes = SegmentChanges(logs, "log")
    await changes.remove(segments[:1], guard)
    turn = await changes.turn()
    for change in (changes.mark(_hidden(segments), guard, turn), changes.remove(segments, guard)):
        with pytest.raises(SegmentsMovedError):
            await change
    assert await logs.segments("log") == segments[1:]


async def test_of_two_who_mark_by_the_same_list_the_second_changes_nothing(logs, guard):
    (segment,) = await _filled(logs, 1)
    changes = SegmentChanges(logs, "log")
    turn, same = await changes.turn(), await changes.turn()
    further, back = (
        replace(segment, truncation=TruncationStatus.PARTIALLY_TRUNCATED, min_entry=entry) for entry in (2, 1)
    )
    await changes.mark([(segment, further)], guard, turn)
    with pytest.raises(SegmentsMovedError):
        await changes.mark([(segment, back)], guard, same)
    assert await logs.segments("log") == [further]
    assert (await logs.store.get(logs.paths("log").partition))[0] == b"", "only its version has moved"


async def test_notes_go_one_by_one_and_their_parent_with_the_last(logs, guard):
    segments = await _filled(logs, 2)
    changes = SegmentChanges(logs, "log")
    assert await changes.noted() == []
    await changes.remove(segments, guard)
    first, second = await changes.noted()
    await changes.forget(first)
    await changes.forget(first)  # a second sweep at the same time
    await changes.forget_all()
    assert await changes.noted() == [second]
    await changes.forget(second)
    await changes.forget_all()
    await changes.forget_all()
    assert await logs.store.exists(notes_path(logs.paths("log"))) is None
    await changes.remove([], guard)
    assert await logs.store.exists(notes_path(logs.paths("log"))) is None


async def test_a_log_is_deleted_with_its_notes(logs, guard):
    await SegmentChanges(logs, "log").remove(await _filled(logs, 2), guard)
    await logs.delete_tree("log")
    assert not await logs.exists("log")


async def test_what_is_in_progress_is_never_marked(logs, guard):
    (segment,) = await _filled(logs, 1)
    opened = SegmentMetadata(ledger_id=segment.ledger_id, lssn=1, first_txid=1, in_progress=True)
    changes = SegmentChanges(logs, "log")
    turn = await changes.turn()
    for pair in ((opened, segment), (segment, opened), (segment, replace(segment, ledger_id=1))):
        with pytest.raises(InvariantViolation):
            await changes.mark([pair], guard, turn)
