"""Deleting a log: refused while it is written, finished by a second try after any crash, only under the lock."""

from __future__ import annotations

import asyncio

import pytest
from helpers.logs import payloads, written
from helpers.waiting import until

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.lifecycle.owned_segments import OwnedSegments
from metadata.distributedlog.locks import LockingError, OwnershipAcquireFailedError
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.foundation.errors import DistributedLogError
from metadata.store import ANY_VERSION
from metadata.zookeeper.memory import Fault

SEGMENTS = [[b"a0", b"a1"], [b"b0"], [b"c0"]]


async def _ledgers(namespace):
    return [ledger_id async for ledger_id in namespace.ledgers._ledgers.ids()]


def _stop_after(memory_cluster, namespace, changes):
    """Nothing that this client changes arrives any more, but for the first `changes` requests."""
    session, count = namespace.store.session_id, [0]

    def inject(asked, operation, path):
        if asked == session and operation in ("multi", "delete", "put", "create"):
            count[0] += 1
            if count[0] > changes:
                return Fault.REFUSE
        return None

    memory_cluster.tree.inject = inject
    return count


async def _crashed_deletion(memory_cluster, name, changes):
    """A client that begins to delete a log and dies; True if it came to the end before."""
    client = await memory_cluster.namespace()
    count = _stop_after(memory_cluster, client, changes)
    deleting = asyncio.ensure_future(client.delete_log(name))
    await until(lambda: deleting.done() or count[0] > changes)  # however slow the machine is
    memory_cluster.tree.inject = None
    deleting.cancel()
    await asyncio.wait([deleting])
    await memory_cluster.crash(client)
    return count[0] <= changes


async def _with_something_in_progress(memory_cluster, name):
    """A log with completed segments, one in progress, and a ledger that was allocated and never used."""
    client = await memory_cluster.namespace()
    log = await written(client, name, SEGMENTS)
    writer = await log.open_writer()
    await writer.write(100, b"d0")
    await writer.flush()
    await memory_cluster.crash(client)
    other = await memory_cluster.namespace()
    unused = await other.ledgers.create(ensemble_size=3, write_quorum=3, ack_quorum=2, password=b"")
    await unused.close()
    await other.store.put(other.logs_store.paths(name).allocation, b"%d" % unused.ledger_id, ANY_VERSION)


@pytest.mark.parametrize("changes", range(18))
async def test_a_crash_at_any_step_leaves_what_a_second_deletion_finishes(memory_cluster, changes):
    await _with_something_in_progress(memory_cluster, "log")
    ended = await _crashed_deletion(memory_cluster, "log", changes)
    other = await memory_cluster.namespace()
    if await other.log_exists("log"):
        status = await (await other.open_log("log")).status()
        listed = {segment.ledger_id for segment in status.segments}
        assert len(listed) in (0, 4), "all of the list or none of it"
        assert listed <= set(await _ledgers(other)), "a listed segment has its ledger"
        if not listed:
            assert set(await _ledgers(other)) <= set(status.deleted_ledgers), "no ledger is forgotten"
        await other.delete_log("log")
    assert await _ledgers(other) == []
    assert not await other.log_exists("log")
    assert await other.logs() == []
    if changes < 10:
        assert not ended
    with pytest.raises(LogNotFoundError):
        await other.delete_log("log")


async def test_who_writes_a_log_whose_deletion_was_cut_off_finds_it_empty_and_sweeps(memory_cluster):
    await _with_something_in_progress(memory_cluster, "log")
    await _crashed_deletion(memory_cluster, "log", 2)  # the lock's member, and the transaction on the list
    other = await memory_cluster.namespace()
    log = await other.open_log("log")
    assert len((await log.status()).deleted_ledgers) == 5
    async with await log.open_writer() as writer:
        writer.write(1000, b"new")
        await writer.flush()
        await until(lambda: writer._retention._run is not None and writer._retention._run.done())
        (segment,) = await log.segments()
        assert segment.lssn == 5, "no position is given twice"
        assert await _ledgers(other) == [segment.ledger_id]
    assert await payloads(log) == [b"new"]
    assert await payloads(log, DLSN(5, 0, 0)) == [b"new"]


async def test_a_deletion_that_lost_its_lock_leaves_the_new_owners_log_alone(memory_cluster):
    await _with_something_in_progress(memory_cluster, "log")
    deleter, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    session, cut_off = deleter.store.session_id, asyncio.Event()

    def overtaken(asked, operation, path):
        # The first transaction is on its way when the deleter's session ends.
        if asked == session and operation == "multi":
            memory_cluster.cut_off(deleter)
            cut_off.set()

    memory_cluster.tree.inject = overtaken
    deleting = asyncio.ensure_future(deleter.delete_log("log"))
    await asyncio.wait_for(cut_off.wait(), 60)
    log = await other.open_log("log")
    async with await log.open_writer("new owner") as writer:
        memory_cluster.tree.inject = None
        await asyncio.wait_for(_written(writer, 1000, b"new"), 60)
        with pytest.raises((LockingError, OwnershipAcquireFailedError)):
            await asyncio.wait_for(deleting, 60)
    assert await payloads(log) == [b"a0", b"a1", b"b0", b"c0", b"d0", b"new"]


async def test_a_deletion_that_stood_still_leaves_what_was_written_meanwhile(memory_cluster):
    """Its segments are off the list when its session ends. Another client writes, and closes; then the lock is free."""
    await _with_something_in_progress(memory_cluster, "log")
    deleter, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    stands, goes_on = asyncio.Event(), asyncio.Event()
    sweep = OwnedSegments.sweep

    async def standing_still(owned):
        swept = await sweep(owned)
        stands.set()
        await goes_on.wait()
        await until(lambda: owned.lock.held)
        return swept

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OwnedSegments, "sweep", standing_still)
        deleting = asyncio.ensure_future(deleter.delete_log("log"))
        await asyncio.wait_for(stands.wait(), 60)
    log = await other.open_log("log")
    memory_cluster.cut_off(deleter)
    async with await log.open_writer("new owner") as writer:
        await _written(writer, 1000, b"new")
    memory_cluster.tree.inject = None
    goes_on.set()
    with pytest.raises(LockingError, match="what was written since is there"):
        await asyncio.wait_for(deleting, 60)
    assert await payloads(log) == [b"new"]
    assert len(await _ledgers(other)) == 1
    await other.delete_log("log")
    assert await _ledgers(other) == []


async def _written(writer, txid, payload):
    future = writer.write(txid, payload)
    await writer.flush()
    return await future


async def test_a_deposed_writer_adds_no_segment_to_a_log_that_is_being_deleted(memory_cluster):
    old, deleter = await memory_cluster.namespace(), await memory_cluster.namespace()
    log = await written(old, "log", SEGMENTS)
    writer = await log.open_writer("old")
    member = writer.owned.guard().path
    await deleter.store.delete(member)  # its session is taken for dead
    await _crashed_deletion(memory_cluster, "log", 2)
    with pytest.raises(DistributedLogError):
        await asyncio.wait_for(writer.write(1000, b"late"), 60)
    await writer.abort()
    again = await deleter.open_log("log")
    assert await again.segments() == []
    await deleter.delete_log("log")
    assert await _ledgers(deleter) == []


async def test_the_tree_goes_only_while_the_lock_is_held(memory_cluster):
    namespace = await memory_cluster.namespace()
    await written(namespace, "log", SEGMENTS)
    session = namespace.store.session_id
    multis = []

    def inject(asked, operation, path):
        if asked == session and operation == "multi":
            multis.append(path)
            if len(multis) == 2:  # the one on the tree
                with memory_cluster.tree.lock:
                    parent, _, name = path.rpartition("/")
                    memory_cluster.tree._nodes.pop(path)
                    memory_cluster.tree._nodes[parent].children.discard(name)
        return

    memory_cluster.tree.inject = inject
    with pytest.raises(LockingError, match="the lock was lost"):
        await namespace.delete_log("log")
    memory_cluster.tree.inject = None
    assert await namespace.log_exists("log")
    await namespace.delete_log("log")
    assert not await namespace.log_exists("log")


@pytest.mark.parametrize("owner", ["the writer", "1;0;proxy:8000", "dlspark-sink/host/7/appends"])
async def test_a_log_that_anybody_has_is_neither_deleted_nor_renamed_and_nobody_learns_of_it(memory_cluster, owner):
    namespace, other = await memory_cluster.namespace(), await memory_cluster.namespace(lock_timeout_s=3600)
    log = await written(namespace, "log", SEGMENTS)
    async with await log.open_writer(owner):
        asked = []
        session = other.store.session_id
        memory_cluster.tree.inject = lambda by, what, path: (
            asked.append(what) if by == session and what == "create" else None
        )
        for taking, kept in ((other.delete_log("log"), "deleted"), (other.rename_log("log", "new"), "renamed")):
            with pytest.raises(OwnershipAcquireFailedError, match=f"held by {owner}; nothing was {kept}") as refused:
                await taking
            assert refused.value.owner == owner
            assert refused.value.log == "log"
        assert not asked, "nothing stood in the lock's queue"
        memory_cluster.tree.inject = None
    assert await payloads(log) == [b"a0", b"a1", b"b0", b"c0"]
