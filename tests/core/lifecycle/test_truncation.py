"""Explicit truncation: what it hides, what stays, who may do it, and what lost answers and lost locks make of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from helpers.logs import drained, payloads, states, written
from helpers.waiting import until
from hypothesis import given
from hypothesis import strategies as st

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.lifecycle.owned_segments import completed_head, truncation, truncation_point, with_changes
from dlspark.errors import AlreadyClosedError, AlreadyTruncatedError
from metadata.distributedlog.locks import LockingError, OwnershipAcquireFailedError
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.errors import CallerError, OutcomeUnknownError
from metadata.zookeeper.memory import Fault

SEGMENTS = [[b"a0", b"a1", b"a2"], [b"b0", b"b1"], [b"c0", b"c1", b"c2"]]
FLAT = [payload for segment in SEGMENTS for payload in segment]
ALL = ["a", "a", "a"]


# ---------------------------------------------------------------------- the rules


def _segment(lssn, entries=3, **changes):
    segment = SegmentMetadata(
        ledger_id=100 + lssn, lssn=lssn, first_txid=lssn, last_txid=lssn, last_entry=entries - 1, last_slot=0
    )
    return replace(segment, **changes)


def _open(lssn):
    return SegmentMetadata(ledger_id=100 + lssn, lssn=lssn, first_txid=lssn, in_progress=True)


def _truncated(segments, dlsn):
    return with_changes(segments, truncation(segments, dlsn))


@pytest.mark.parametrize(
    ("dlsn", "expected"),
    [
        (DLSN.INVALID, ["a", "a", "a", "i"]),
        (DLSN(1, 0, 0), ["a", "a", "a", "i"]),
        (DLSN(1, 0, 1), ["1:0:1", "a", "a", "i"]),
        (DLSN(1, 2, 0), ["1:2:0", "a", "a", "i"]),
        (DLSN(1, 2, 1), ["t", "a", "a", "i"]),
        (DLSN(2, 0, 0), ["t", "a", "a", "i"]),
        (DLSN(2, 1, 0), ["t", "2:1:0", "a", "i"]),
        (DLSN(4, 5, 0), ["t", "t", "t", "i"]),
        (DLSN(9, 0, 0), ["t", "t", "t", "i"]),
    ],
)
def test_segments_below_the_position_are_truncated_and_the_one_it_lies_in_partly(dlsn, expected):
    segments = [_segment(1), _segment(2), _segment(3), _open(4)]
    assert states(_truncated(segments, dlsn)) == expected


def test_nothing_behind_the_first_segment_in_progress_is_truncated():
    segments = [_segment(1), _open(2), _segment(3)]
    assert states(_truncated(segments, DLSN(4, 0, 0))) == ["t", "i", "a"]


def test_an_old_segment_that_cannot_say_that_it_is_truncated_ends_the_truncation():
    assert states(_truncated([_segment(1, version=2), _segment(2)], DLSN(2, 1, 0))) == ["t", "2:1:0"]
    assert states(_truncated([_segment(1, version=2), _segment(2)], DLSN(1, 1, 0))) == ["a", "a"]
    assert states(_truncated([_segment(1, version=1), _segment(2)], DLSN(2, 1, 0))) == ["a", "a"]


_POSITIONS = st.builds(DLSN, st.integers(0, 6), st.integers(-1, 4), st.integers(-1, 1))


@given(st.integers(0, 5), st.booleans(), st.lists(_POSITIONS, max_size=6))
def test_any_truncations_in_any_order_only_move_forward_and_never_beyond_what_was_asked(count, tail, asked):
    segments = [_segment(lssn) for lssn in range(1, count + 1)] + [_open(count + 1)] * tail
    reached = truncation_point(segments)
    for number, dlsn in enumerate(asked, 1):
        after = _truncated(segments, dlsn)
        point = truncation_point(after)
        assert point >= reached
        # Hidden is what is below the highest position asked for so far, and completed.
        for segment in completed_head(after):
            for entry in range(3):
                position = DLSN(segment.lssn, entry, 0)
                assert (position < point) == (position < max(asked[:number]))
        assert truncation(after, dlsn) == [], "a second time it changes nothing"
        hidden = [segment.truncation == TruncationStatus.TRUNCATED for segment in after]
        assert hidden == sorted(hidden, reverse=True), "what is truncated is at the head"
        segments, reached = after, point


# ---------------------------------------------------------------------- on a log


async def test_a_writer_truncates_and_is_told_where_the_log_begins(memory_cluster):
    namespace = await memory_cluster.namespace(output_buffer_bytes=0)
    log = await written(namespace, "log", SEGMENTS)
    async with await log.open_writer() as writer:
        await writer.write(100, b"d0")
        assert await writer.truncate(DLSN(2, 1, 0)) == DLSN(2, 1, 0)
        assert states(await log.segments()) == ["t", "2:1:0", "a", "i"]
        assert await writer.truncate("1:1:0") == DLSN(2, 1, 0), "it never goes back"
        assert await writer.truncate(DLSN.INVALID) == DLSN(2, 1, 0)
        assert await writer.truncate(DLSN(4, 1, 0)) == DLSN(4, 0, 0), "not into what is being written"
        assert states(await log.segments()) == ["t", "t", "t", "i"]
        await writer.write(110, b"d1")
    assert await payloads(log) == [b"d0", b"d1"]
    assert (await log.first_record()).payload == b"d0"
    with pytest.raises(AlreadyClosedError):
        await writer.truncate(DLSN(9, 0, 0))


async def test_the_part_of_a_segment_that_is_not_truncated_is_read_whole(namespace):
    log = await written(namespace, "part", SEGMENTS)
    assert await log.truncate(DLSN(2, 1, 0)) == DLSN(2, 1, 0)
    assert await payloads(log) == FLAT[4:]
    assert await log.start() == DLSN(2, 1, 0)
    # What the metadata of the segment say otherwise is as before: the next writer counts on from it.
    second = (await log.segments())[1]
    assert (second.record_count, second.start_sequence_id, second.last_entry) == (2, 3, 1)


async def test_without_a_writer_the_lock_is_taken_and_a_log_that_is_written_is_refused_with_its_owner(memory_cluster):
    namespace, other = await memory_cluster.namespace(), await memory_cluster.namespace(lock_timeout_s=0)
    log = await written(namespace, "log", SEGMENTS)
    elsewhere = await other.open_log("log")
    writer = await log.open_writer("the writer")
    with pytest.raises(OwnershipAcquireFailedError, match="the writer"):
        await elsewhere.truncate(DLSN(2, 0, 0))
    assert states(await log.segments()) == ALL
    # This handle has the writer: it goes through that.
    assert await log.truncate(DLSN(2, 0, 0)) == DLSN(2, 0, 0)
    await writer.close()
    assert await elsewhere.truncate(DLSN(3, 0, 0)) == DLSN(3, 0, 0)
    async with await log.open_writer():
        """The lock was given back."""


async def test_a_log_that_does_not_exist_or_a_position_that_is_none_is_the_callers_mistake(namespace):
    with pytest.raises(LogNotFoundError):
        await (await namespace.open_log("missing")).truncate(DLSN(2, 0, 0))
    log = await written(namespace, "log", SEGMENTS)
    for wrong in ("2:0", 2, None, (2, 0, 0)):
        with pytest.raises(CallerError):
            await log.truncate(wrong)
    assert states(await log.segments()) == ALL


async def test_an_empty_log_begins_where_every_log_begins(namespace):
    await namespace.create_log("empty")
    assert await (await namespace.open_log("empty")).truncate(DLSN(2, 0, 0)) == DLSN.INITIAL


async def test_all_of_it_is_one_transaction_or_none(memory_cluster):
    namespace = await memory_cluster.namespace()
    log = await written(namespace, "log", SEGMENTS)
    async with await log.open_writer() as writer:
        session, seen = namespace.store.session_id, []

        def refuse(asked, operation, path):
            if asked == session and operation == "multi":
                seen.append(path)
                return Fault.LOSE_REQUEST if len(seen) <= 2 else None
            return None

        memory_cluster.tree.inject = refuse
        watched = [states(await log.segments())]
        truncating = asyncio.ensure_future(writer.truncate(DLSN(3, 1, 0)))
        while not truncating.done():
            await asyncio.sleep(0)
            watched.append(states(await log.segments()))
        memory_cluster.tree.inject = None
        assert len(seen) == 3
        assert {tuple(state) for state in watched} <= {tuple(ALL), ("t", "t", "3:1:0")}
        assert await truncating == DLSN(3, 1, 0)


async def test_a_lost_answer_is_decided_by_reading_again(memory_cluster):
    namespace = await memory_cluster.namespace()
    log = await written(namespace, "log", SEGMENTS)
    async with await log.open_writer() as writer:
        session, sent = namespace.store.session_id, []

        def lose(asked, operation, path):
            if asked == session and operation == "multi":
                sent.append(path)
                return Fault.LOSE_REPLY
            return None

        memory_cluster.tree.inject = lose
        assert await writer.truncate(DLSN(2, 1, 0)) == DLSN(2, 1, 0)
        memory_cluster.tree.inject = None
        assert len(sent) == 1, "what was applied is not sent again"
        assert states(await log.segments()) == ["t", "2:1:0", "a"]


async def test_truncations_of_one_writer_at_a_time_end_with_the_highest(namespace):
    log = await written(namespace, "log", SEGMENTS)
    async with await log.open_writer() as writer:
        points = await asyncio.gather(*(writer.truncate(d) for d in (DLSN(2, 1, 0), DLSN(3, 2, 0), DLSN(1, 1, 0))))
    assert points == [DLSN(2, 1, 0), DLSN(3, 2, 0), DLSN(3, 2, 0)]
    assert states(await log.segments()) == ["t", "t", "3:2:0"]


async def test_a_writer_that_lost_its_log_truncates_nothing(memory_cluster):
    namespace, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    log = await written(namespace, "log", SEGMENTS)
    writer = await log.open_writer("old")
    memory_cluster.cut_off(namespace)
    await asyncio.sleep(0)
    async with await (await other.open_log("log")).open_writer("new"):
        memory_cluster.tree.inject = None
        with pytest.raises((LockingError, OwnershipAcquireFailedError, OutcomeUnknownError)):
            await writer.truncate(DLSN(3, 0, 0))
    assert states(await log.segments()) == ALL
    await writer.abort()


async def test_without_a_lock_a_truncation_by_an_older_list_does_not_move_another_one_back(memory_cluster, monkeypatch):
    log = await written(await memory_cluster.namespace(), "log", SEGMENTS)
    one, other = await memory_cluster.namespace(write_lock=False), await memory_cluster.namespace(write_lock=False)
    slow = await (await one.open_log("log")).open_writer()
    quick = await (await other.open_log("log")).open_writer()
    segments, overtaken = one.logs_store.hot_segments, []

    async def then_be_overtaken(name):
        found = await segments(name)
        if not overtaken:
            overtaken.append(await quick.truncate(DLSN(2, 1, 0)))
        return found

    monkeypatch.setattr(one.logs_store, "hot_segments", then_be_overtaken)
    assert await slow.truncate(DLSN(1, 1, 0)) == DLSN(2, 1, 0), "where the log begins now"
    assert overtaken == [DLSN(2, 1, 0)]
    assert states(await log.segments()) == ["t", "2:1:0", "a"]
    assert await slow.truncate(DLSN(3, 1, 0)) == DLSN(3, 1, 0)
    await slow.abort()
    await quick.abort()


async def test_a_lock_that_was_lost_and_had_again_since_the_list_was_read_moves_nothing_back(
    memory_cluster, monkeypatch
):
    """The lock has a member again when the transaction is sent: it says nothing of who was there in between (I8)."""
    namespace, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    log = await written(namespace, "log", SEGMENTS)
    quick = await other.open_log("log")
    writer = await log.open_writer()
    segments, overtaken = namespace.logs_store.hot_segments, []

    async def then_be_overtaken(name):
        found = await segments(name)
        if not overtaken:
            memory_cluster.cut_off(namespace)
            overtaken.append(await quick.truncate(DLSN(2, 1, 0)))
            memory_cluster.tree.inject = None
            await until(lambda: writer.owned.lock.held)
        return found

    monkeypatch.setattr(namespace.logs_store, "hot_segments", then_be_overtaken)
    assert await writer.truncate(DLSN(1, 1, 0)) == DLSN(2, 1, 0), "where the log begins now"
    assert overtaken == [DLSN(2, 1, 0)]
    assert states(await quick.segments()) == ["t", "2:1:0", "a"]
    await writer.abort()


async def test_a_request_that_arrives_after_the_lock_was_lost_changes_nothing(memory_cluster):
    namespace, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    log = await written(namespace, "log", SEGMENTS)
    writer = await log.open_writer("old")
    session, store = namespace.store.session_id, namespace.store
    member = writer.owned.lock.member_path

    def late(asked, operation, path):
        if asked == session and operation == "multi":
            memory_cluster.tree.inject = None
            _delete(memory_cluster, member)

    memory_cluster.tree.inject = late
    with pytest.raises(LockingError, match="the lock was lost"):
        await writer.truncate(DLSN(3, 0, 0))
    assert store.session_id == session
    assert states(await (await other.open_log("log")).segments()) == ALL
    await writer.abort()


def _delete(memory_cluster, path):
    """Somebody removes a znode between two requests."""
    parent, _, name = path.rpartition("/")
    with memory_cluster.tree.lock:
        memory_cluster.tree._nodes.pop(path, None)
        memory_cluster.tree._nodes[parent].children.discard(name)


async def test_thousands_of_segments_are_truncated_in_requests_that_fit(memory_cluster, monkeypatch):
    monkeypatch.setattr("metadata.distributedlog.segment_changes.MAX_CHANGE_BYTES", 1_500)
    namespace = await memory_cluster.namespace()
    log = await written(namespace, "many", [[b"%d" % i] for i in range(12)])
    async with await log.open_writer() as writer:
        seen = []
        multi = namespace.store.multi

        async def watch(ops):
            seen.append(len(ops))
            result = await multi(ops)
            seen.append(states(await log.segments()))
            return result

        monkeypatch.setattr(namespace.store, "multi", watch)
        assert await writer.truncate(DLSN(12, 0, 0)) == DLSN(12, 0, 0)
    requests, between = seen[::2], seen[1::2]
    assert len(requests) > 2
    for state in between:
        assert state == sorted(state, reverse=True), "after each request the truncated ones are the oldest"


async def test_what_a_subscriber_has_still_to_read_stays_where_that_is_asked_for(namespace):
    log = await written(namespace, "followed", SEGMENTS)
    assert await log.truncate(DLSN(1, 1, 0), respect_subscribers=True) == DLSN(1, 1, 0), "nobody follows it yet"
    await log.commit_position("fast", DLSN(3, 1, 0))
    await log.commit_position("slow", DLSN(2, 1, 0))
    assert await log.truncate(DLSN(3, 2, 0), respect_subscribers=True) == DLSN(2, 1, 0)
    async with await log.open_writer() as writer:
        assert await writer.truncate(DLSN(3, 2, 0), respect_subscribers=True) == DLSN(2, 1, 0)
        await log.commit_position("slow", DLSN(3, 2, 0))
        assert await writer.truncate(DLSN(3, 2, 0), respect_subscribers=True) == DLSN(3, 1, 0)
    assert await log.truncate(DLSN(3, 2, 0)) == DLSN(3, 2, 0), "and otherwise it goes"


# ---------------------------------------------------------------------- readers


async def test_a_reader_inside_what_is_truncated_under_it_gets_the_error_for_good(memory_cluster):
    namespace = await memory_cluster.namespace(read_ahead_entries=1)
    log = await written(namespace, "under", SEGMENTS)
    async with await log.open_reader() as reader:
        assert (await reader.read_next()).payload == b"a0"
        await log.truncate(DLSN(3, 0, 0))
        for _ in range(2):
            with pytest.raises(AlreadyTruncatedError):
                await drained(reader)
        assert reader.position < DLSN(3, 0, 0)


async def test_a_reader_behind_the_truncation_point_does_not_notice(memory_cluster):
    namespace = await memory_cluster.namespace(read_ahead_entries=1)
    log = await written(namespace, "behind", SEGMENTS)
    async with await log.open_reader(DLSN(3, 1, 0)) as reader:
        assert (await reader.read_next()).payload == b"c1"
        await log.truncate(DLSN(3, 1, 0))
        assert await drained(reader) == [b"c2"]


async def test_a_reader_that_ignores_truncation_reads_on_under_it(memory_cluster):
    namespace = await memory_cluster.namespace(read_ahead_entries=1, ignore_truncation=True)
    log = await written(namespace, "ignoring", SEGMENTS)
    async with await log.open_reader() as reader:
        assert (await reader.read_next()).payload == b"a0"
        await log.truncate(DLSN(3, 0, 0))
        assert await drained(reader) == FLAT[1:]


async def test_a_position_that_was_truncated_is_an_error_skipped_or_ignored_as_the_settings_say(memory_cluster):
    namespace = await memory_cluster.namespace()
    log = await written(namespace, "settings", SEGMENTS)
    await log.truncate(DLSN(2, 1, 0))
    found = await payloads(log, DLSN(1, 1, 0))
    assert isinstance(found, AlreadyTruncatedError)
    assert "begins at 2:1:0" in str(found)
    lenient = await memory_cluster.namespace(fail_on_truncated=False)
    assert await payloads(await lenient.open_log("settings"), DLSN(1, 1, 0)) == FLAT[4:]
    curious = await memory_cluster.namespace(ignore_truncation=True)
    assert await payloads(await curious.open_log("settings"), DLSN(1, 1, 0)) == FLAT[1:]


# ---------------------------------------------------------------------- status


async def test_the_status_shows_each_segments_state_and_who_writes(namespace):
    log = await written(namespace, "seen", SEGMENTS)
    await log.truncate(DLSN(2, 1, 0))
    writer = await log.open_writer("me")
    await writer.write(100, b"d")
    status = await log.status()
    assert (status.start, status.owner, status.max_lssn, status.records) == (DLSN(2, 1, 0), "me", 4, 8)
    lines = str(status).splitlines()
    assert lines[0] == "log seen: 4 segments, begins at 2:1:0; written by me"
    assert [" ".join(line.split()[2:4]) for line in lines[2:]] == [
        "truncated 3",
        "truncated below",
        "completed 3",
        "in progress",
    ]
    await writer.close()
    assert "no writer" in str(await log.status())
