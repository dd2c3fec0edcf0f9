"""Inspection finds what is wrong with a log; repairs take the log's lock, and shorten nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.logs import payloads, written

from dlspark.core.administration.finding_kinds import FindingKind
from dlspark.core.administration.inspection import check_ends, faults_of, inspect_log, listed_segments
from dlspark.core.administration.repair import check_log, raise_number, repair_ends
from dlspark.errors import SegmentStateError
from metadata.distributedlog.locks import DistributedLock, OwnershipAcquireFailedError
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus, order
from metadata.store import ANY_VERSION
from metadata.zookeeper.memory import Fault

SEGMENTS = [[b"a0", b"a1"], [b"b0"], [b"c0", b"c1"]]


def _segment(lssn, *, in_progress=False, first=0, last=0, ledger=None, **values):
    return SegmentMetadata(
        ledger_id=lssn if ledger is None else ledger,
        lssn=lssn,
        first_txid=first,
        last_txid=last,
        in_progress=in_progress,
        **values,
    )


def _kinds(findings):
    return [one.kind for one in findings]


@pytest.mark.parametrize(
    ("segments", "kinds"),
    [
        ([_segment(1), _segment(2), _segment(3, in_progress=True)], []),
        ([_segment(1), _segment(3)], [FindingKind.GAP]),
        ([_segment(1), _segment(2), _segment(2, ledger=9)], [FindingKind.DUPLICATE]),
        ([_segment(1), _segment(2), _segment(1, ledger=9, in_progress=True)], [FindingKind.LOW_NUMBER]),
        ([_segment(1), _segment(2, ledger=1)], [FindingKind.SHARED_LEDGER]),
        ([_segment(1, last=20), _segment(2, first=10, last=30)], [FindingKind.TXID]),
        ([_segment(1), _segment(2, truncation=TruncationStatus.TRUNCATED)], [FindingKind.TRUNCATION]),
        ([_segment(1, truncation=TruncationStatus.TRUNCATED), _segment(2)], []),
    ],
)
def test_what_is_wrong_with_a_list_is_named(segments, kinds):
    assert _kinds(faults_of(order(segments), None)) == kinds


async def _written(namespace, name="log"):
    await written(namespace, name, SEGMENTS)
    return await listed_segments(namespace.services, name)


async def _replace(memory_cluster, namespace, before, after, name="log"):
    paths = namespace.logs_store.paths(name)
    await memory_cluster.operator.delete(paths.segment(before))
    await memory_cluster.operator.create(paths.segment(after), after.encode())


async def test_a_log_as_it_should_be_has_no_findings(memory_cluster, namespace):
    await _written(namespace)
    found = await inspect_log(namespace.services, "log")
    assert (found.findings, found.owner, len(found.segments)) == ((), None, 3)
    checked = await check_log(namespace.services, "log", namespace.settings, repair=True)
    assert (checked.findings, checked.repairs, checked.left) == ((), (), ())
    with pytest.raises(LogNotFoundError):
        await inspect_log(namespace.services, "absent")


async def test_a_segment_in_progress_is_told_with_its_writer_and_is_no_fault(memory_cluster, namespace):
    log = await namespace.open_log("log")
    async with await log.open_writer("me") as writer:
        writer.write(1, b"a")
        await writer.flush()
        found = await inspect_log(namespace.services, "log")
        assert (_kinds(found.findings), found.faults, found.owner) == ([FindingKind.IN_PROGRESS], [], "me")
        assert "me has the log's lock" in found.findings[0].what


async def test_metadata_that_does_not_fit_the_list_is_a_fault(memory_cluster, namespace):
    await _written(namespace)
    paths = namespace.logs_store.paths("log")
    await memory_cluster.operator.put(paths.ledgers, b"9", ANY_VERSION)
    await memory_cluster.operator.put(paths.max_txid, b"1", ANY_VERSION)
    found = await inspect_log(namespace.services, "log")
    assert sorted(_kinds(found.findings)) == [FindingKind.NUMBER, FindingKind.TXID]


async def test_ledgers_that_are_gone_open_or_too_short_are_faults(memory_cluster, namespace):
    first, second, third = await _written(namespace)
    await namespace.ledgers.delete(first.ledger_id)
    unfinished = await namespace.ledgers.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await _replace(memory_cluster, namespace, second, replace(second, ledger_id=unfinished.ledger_id))
    await _replace(memory_cluster, namespace, third, replace(third, last_entry=third.last_entry + 5))
    found = await inspect_log(namespace.services, "log")
    assert _kinds(found.findings) == [FindingKind.NO_LEDGER, FindingKind.OPEN_LEDGER, FindingKind.LOST]
    await unfinished.close()


async def test_a_segment_that_is_purged_under_the_inspection_is_no_fault(memory_cluster, namespace):
    first = (await _written(namespace))[0]
    original = namespace.services.ledger_store.read

    async def read(ledger_id, watch=None):
        if ledger_id == first.ledger_id:
            await memory_cluster.operator.delete(namespace.logs_store.paths("log").segment(first))
            await namespace.ledgers.delete(first.ledger_id)
        return await original(ledger_id, watch)

    namespace.services.ledger_store.read = read
    assert (await inspect_log(namespace.services, "log")).findings == ()


async def test_what_cannot_be_read_is_a_fault_and_not_an_error(memory_cluster, namespace):
    segments = await _written(namespace)
    await memory_cluster.operator.put(namespace.logs_store.paths("log").segment(segments[1]), b"garbage", ANY_VERSION)
    other = await memory_cluster.namespace()
    assert _kinds((await inspect_log(other.services, "log")).findings) == [FindingKind.UNREADABLE]


# ---------------------------------------------------------------------- numbers


async def _low_number(memory_cluster, namespace):
    """A log whose dead writer's segment in progress has the number of a completed one."""
    segments = await _written(namespace)
    dead = await memory_cluster.namespace()
    writer = await (await dead.open_log("log", {"writerOutputBufferSize": 0})).open_writer()
    await writer.write(1000, b"d0")
    await writer.commit()
    await memory_cluster.crash(dead)
    open_ = (await listed_segments(namespace.services, "log"))[-1]
    await _replace(memory_cluster, namespace, open_, replace(open_, lssn=2, name=None))
    await memory_cluster.operator.put(namespace.logs_store.paths("log").ledgers, b"3", ANY_VERSION)
    return segments


async def test_a_segment_in_progress_with_a_low_number_is_numbered_anew_and_its_records_are_read(
    memory_cluster, namespace
):
    await _low_number(memory_cluster, namespace)
    assert FindingKind.LOW_NUMBER in _kinds((await inspect_log(namespace.services, "log")).findings)
    would = await raise_number(namespace.services, "log", namespace.settings, dry_run=True)
    assert (would.before.lssn, would.after.lssn) == (2, 4)
    assert FindingKind.LOW_NUMBER in _kinds((await inspect_log(namespace.services, "log")).findings)
    done = await raise_number(namespace.services, "log", namespace.settings)
    assert (done.before.lssn, done.after.lssn) == (2, 4)
    assert await raise_number(namespace.services, "log", namespace.settings) is None
    assert (await inspect_log(namespace.services, "log")).faults == []
    other = await memory_cluster.namespace()
    log = await other.open_log("log", {"writerOutputBufferSize": 0})
    async with await log.open_writer() as writer:
        await writer.write(2000, b"e0")
    assert await payloads(log) == [b"a0", b"a1", b"b0", b"c0", b"c1", b"d0", b"e0"]
    assert (await inspect_log(other.services, "log")).findings == ()


async def test_numbers_are_left_alone_while_somebody_has_the_lock(memory_cluster, namespace):
    await _low_number(memory_cluster, namespace)
    owner = await memory_cluster.namespace()
    lock = DistributedLock(owner.store, owner.logs_store.paths("log").lock, "owner")
    await lock.acquire(0)
    hasty = replace(namespace.settings, lock_timeout_s=0)
    before = await listed_segments(namespace.services, "log")
    with pytest.raises(OwnershipAcquireFailedError, match="owner"):
        await raise_number(namespace.services, "log", hasty)
    with pytest.raises(OwnershipAcquireFailedError):
        await repair_ends(namespace.services, "log", hasty)
    assert await listed_segments(namespace.services, "log") == before
    await lock.release()


async def test_two_segments_in_progress_are_not_guessed_about(memory_cluster, namespace):
    await _low_number(memory_cluster, namespace)
    extra = _segment(9, in_progress=True, ledger=99)
    await memory_cluster.operator.create(namespace.logs_store.paths("log").segment(extra), extra.encode())
    with pytest.raises(SegmentStateError, match="more than one"):
        await raise_number(namespace.services, "log", namespace.settings)


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
async def test_a_lost_answer_does_not_number_twice(memory_cluster, namespace, fault):
    await _low_number(memory_cluster, namespace)
    lost = []

    def inject(session, operation, path):
        if operation == "multi" and not lost:
            lost.append(path)
            return fault
        return None

    memory_cluster.tree.inject = inject
    done = await raise_number(namespace.services, "log", namespace.settings)
    assert lost
    assert done.after.lssn == 4
    assert [one.lssn for one in await listed_segments(namespace.services, "log")] == [1, 2, 3, 4]


# ---------------------------------------------------------------------- ends


async def test_metadata_that_end_too_early_get_the_end_that_the_records_have(memory_cluster, namespace):
    before = await _written(namespace)
    third = before[2]
    short = replace(third, last_entry=0, last_slot=0, last_txid=third.first_txid, record_count=1)
    await _replace(memory_cluster, namespace, third, short)
    paths = namespace.logs_store.paths("log")
    await memory_cluster.operator.put(paths.max_txid, b"1", ANY_VERSION)
    reader = await memory_cluster.namespace()
    listed = await listed_segments(reader.services, "log")
    assert _kinds(await check_ends(reader.services, listed, reader.settings)) == [FindingKind.SHORT]
    only_looked = await check_log(reader.services, "log", reader.settings)
    assert FindingKind.SHORT in _kinds(only_looked.left)
    assert await listed_segments(reader.services, "log") == listed
    repaired = await check_log(reader.services, "log", reader.settings, repair=True)
    assert [one.finding.kind for one in repaired.repairs] == [FindingKind.SHORT]
    assert repaired.left == ()
    after = (await listed_segments(reader.services, "log"))[2]
    assert (after.record_count, after.last_txid) == (third.record_count, third.last_txid)
    assert (await reader.logs_store.open("log")).max_txid.value == third.last_txid
    assert await payloads(await reader.open_log("log")) == [b"a0", b"a1", b"b0", b"c0", b"c1"]


async def test_what_is_lost_stays_a_fault_and_nothing_is_shortened(memory_cluster, namespace):
    third = (await _written(namespace))[2]
    longer = replace(third, last_entry=third.last_entry + 3, record_count=50)
    await _replace(memory_cluster, namespace, third, longer)
    other = await memory_cluster.namespace()
    checked = await check_log(other.services, "log", other.settings, repair=True)
    assert set(_kinds(checked.left)) == {FindingKind.LOST}
    assert checked.repairs == ()
    assert (await listed_segments(other.services, "log"))[2] == longer


async def test_the_open_ledger_of_a_completed_segment_is_recovered(memory_cluster, namespace):
    second = (await _written(namespace))[1]
    entry = (await (await namespace.ledgers.open(second.ledger_id, recover=False)).read(0, 0))[0].payload
    dead = await memory_cluster.namespace()
    writer = await dead.ledgers.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await writer.add(bytes(entry))
    await memory_cluster.crash(dead)
    await _replace(memory_cluster, namespace, second, replace(second, ledger_id=writer.ledger_id, last_entry=0))
    other = await memory_cluster.namespace()
    checked = await check_log(other.services, "log", other.settings, repair=True)
    assert FindingKind.OPEN_LEDGER in _kinds(checked.findings)
    assert checked.left == ()
    assert (await other.services.ledger_store.read(writer.ledger_id)).value.is_closed
