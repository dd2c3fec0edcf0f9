"""Readers that read alone, and the positions that subscribers leave in the log's metadata."""

from __future__ import annotations

import asyncio

import pytest
from helpers.logs import waits_at_tail
from helpers.waiting import until

from dlspark.core.codec.dlsn import DLSN
from metadata.distributedlog.locks import LockingError, OwnershipAcquireFailedError
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.foundation.errors import CallerError
from metadata.zookeeper.memory import MemoryStore


async def _log(namespace, name, count=6):
    log = await namespace.open_log(name)
    async with await log.open_writer() as writer:
        for i in range(count):
            writer.write(i, b"%d" % i)
    return log


async def test_a_subscriber_goes_on_where_its_last_reader_committed(namespace):
    log = await _log(namespace, "resume")
    async with await log.open_reader(subscriber="billing") as reader:
        assert [r.payload for r in await reader.read_bulk(2)] == [b"0", b"1"]
        assert await reader.commit_position() == DLSN(1, 0, 2)
        assert (await reader.read_next()).payload == b"2"
    async with await log.open_reader(subscriber="billing") as reader:
        assert (await reader.read_next()).payload == b"2"
    async with await log.open_reader(4, subscriber="billing") as reader:
        assert (await reader.read_next()).payload == b"4"
    assert await log.subscribers() == {"billing": DLSN(1, 0, 2)}


async def test_one_reader_at_a_time_reads_for_a_subscriber_and_says_who_it_is(memory_cluster):
    namespace, other = await memory_cluster.namespace(), await memory_cluster.namespace(lock_timeout_s=0)
    log, second = await _log(namespace, "alone"), await other.open_log("alone")
    async with await log.open_reader(subscriber="a", client_id="first"):
        with pytest.raises(OwnershipAcquireFailedError, match="first") as caught:
            await second.open_reader(subscriber="a")
        assert caught.value.owner == "first"
        async with await second.open_reader(subscriber="b") as beside:
            assert (await beside.read_next()).payload == b"0"
        async with await second.open_reader(exclusive=True) as beside:
            assert (await beside.read_next()).payload == b"0"
            with pytest.raises(CallerError, match="subscriber"):
                await beside.commit_position()
    async with await second.open_reader(subscriber="a") as reader:
        assert (await reader.read_next()).payload == b"0"


async def test_readers_without_a_lock_read_beside_each_other_and_beside_one_that_has_it(memory_cluster):
    """D18, for readers of one process and of several."""
    namespace, other = await memory_cluster.namespace(), await memory_cluster.namespace(lock_timeout_s=0)
    log, elsewhere = await _log(namespace, "beside"), await other.open_log("beside")
    async with (
        await log.open_reader(exclusive=True) as exclusive,
        await log.open_reader(subscriber="a") as subscriber,
        await log.open_reader() as first,
        await log.open_reader() as second,
        await elsewhere.open_reader() as third,
    ):
        for payload in (b"0", b"1"):
            for reader in (first, exclusive, second, subscriber, third):
                assert (await reader.read_next()).payload == payload


async def test_a_waiting_reader_takes_over_when_the_other_one_closes(namespace):
    log = await _log(namespace, "queue")
    first = await log.open_reader(exclusive=True)
    waiting = asyncio.ensure_future(log.open_reader(exclusive=True))

    async def both_queue():
        return len((await namespace.store.children("/dl/queue/<default>/readLock"))[0]) == 2

    await until(both_queue, every_s=0)
    await first.close()
    async with await asyncio.wait_for(waiting, 60) as second:
        assert (await second.read_next()).payload == b"0"


async def test_a_reader_knows_who_waits_for_its_lock_and_in_which_order(memory_cluster):
    one, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    log, elsewhere = await _log(one, "line"), await other.open_log("line")
    reader = await log.open_reader(subscriber="a", client_id="first")
    assert await reader.waiting() == []
    second = asyncio.ensure_future(elsewhere.open_reader(subscriber="a", client_id="second_one"))
    await until(lambda: _waiting(reader, ["second_one"]))
    third = asyncio.ensure_future(log.open_reader(subscriber="a", client_id="third"))
    await until(lambda: _waiting(reader, ["second_one", "third"]))
    async with await log.open_reader(subscriber="b") as beside:
        assert await beside.waiting() == []
    await reader.close()
    async with await second as reader:
        assert await reader.waiting() == ["third"]
        memory_cluster.tree.expire(one.store.session_id)
        with pytest.raises(LockingError):
            await third
        assert await reader.waiting() == []
        memory_cluster.tree.expire(other.store.session_id)
        with pytest.raises(LockingError, match=r"lost with its metadata session.*Open the reader again"):
            await reader.waiting()
    with pytest.raises(LockingError, match="not held"):
        await reader.waiting()


async def _waiting(reader, names):
    return await reader.waiting() == names


async def test_the_znodes_are_those_of_upstream(memory_cluster):
    namespace = await memory_cluster.namespace()
    log = await _log(namespace, "layout")
    async with await log.open_reader(subscriber="s", client_id="me") as reader:
        await reader.read_next()
        await reader.commit_position()
        root = "/dl/layout/<default>/subscribers/s"
        (member,), _ = await namespace.store.children(f"{root}/readLock")
        assert member.startswith(f"member_me_s{namespace.store.session_id:10d}_")
        assert (await namespace.store.exists(f"{root}/readLock/{member}")).ephemeral_owner
        assert (await namespace.store.get(root))[0] == DLSN(1, 0, 1).to_base64().encode()


@pytest.mark.parametrize("stored", [b"", b"nonsense", b"\xff\xfe"])
async def test_a_stored_position_that_is_none_counts_as_the_beginning(namespace, stored):
    log = await _log(namespace, "undecodable")
    await log.commit_position("s", DLSN(1, 0, 3))
    await namespace.store.put("/dl/undecodable/<default>/subscribers/s", stored, -1)
    assert await log.subscribers() == {"s": DLSN.NON_INCLUSIVE_LOWER_BOUND}
    async with await log.open_reader(subscriber="s") as reader:
        assert (await reader.read_next()).payload == b"0"
        assert await reader.commit_position() == DLSN(1, 0, 1)


async def test_a_position_moves_forwards_unless_it_is_told_to_go_back(namespace):
    log = await _log(namespace, "forwards")
    assert await log.commit_position("s", DLSN(1, 0, 4)) == DLSN(1, 0, 4)
    assert await log.commit_position("s", DLSN(1, 0, 2)) == DLSN(1, 0, 4)
    assert await log.commit_position("s", DLSN(1, 0, 2), back=True) == DLSN(1, 0, 2)
    committed = [log.commit_position("s", DLSN(1, 0, slot)) for slot in (6, 3, 5, 4)]
    await asyncio.gather(*committed)
    assert await log.subscribers() == {"s": DLSN(1, 0, 6)}


async def test_a_reader_that_loses_its_session_delivers_and_stores_nothing_more(memory_cluster):
    namespace, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    log = await _log(namespace, "lost")
    reader = await log.open_reader(subscriber="s")
    assert (await reader.read_next()).payload == b"0"
    await reader.commit_position()
    memory_cluster.tree.expire(namespace.store.session_id)
    async with await (await other.open_log("lost")).open_reader(subscriber="s") as successor:
        assert (await successor.read_next()).payload == b"1"
        with pytest.raises(LockingError, match="was delivered"):
            await reader.read_next()
        with pytest.raises(LockingError):
            await reader.read_available(1, wait=False)
        with pytest.raises(LockingError):
            await reader.commit_position(DLSN(1, 0, 5))
        assert await successor.commit_position() == DLSN(1, 0, 2)
    await reader.close()
    assert await log.subscribers() == {"s": DLSN(1, 0, 2)}


async def test_a_waiting_read_ends_when_the_lock_is_lost(memory_cluster):
    namespace = await memory_cluster.namespace()
    log = await _log(namespace, "waiting", 0)
    reader = await log.open_reader(exclusive=True)
    reading = asyncio.ensure_future(reader.read_next())
    await waits_at_tail(reader)
    memory_cluster.tree.expire(namespace.store.session_id)
    with pytest.raises(LockingError):
        await asyncio.wait_for(reading, 60)
    await reader.close()


async def test_a_commit_is_refused_by_the_store_once_the_lock_member_is_gone(memory_cluster):
    namespace = await memory_cluster.namespace()
    log = await _log(namespace, "guarded")
    operator = MemoryStore(memory_cluster.tree)
    async with await log.open_reader(subscriber="s") as reader:
        await reader.read_next()
        (member,), _ = await operator.children("/dl/guarded/<default>/subscribers/s/readLock")
        await operator.delete(f"/dl/guarded/<default>/subscribers/s/readLock/{member}")
        with pytest.raises(LockingError, match="not stored"):
            await reader.commit_position()
    assert await log.subscribers() == {"s": DLSN.NON_INCLUSIVE_LOWER_BOUND}
    await operator.close()


async def test_subscribers_are_listed_and_deleted_but_not_while_somebody_reads_for_them(memory_cluster):
    namespace, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    log = await _log(namespace, "listed")
    assert await log.subscribers() == {}
    await log.commit_position("plain", DLSN(1, 0, 1))
    async with await log.open_reader(subscriber="locked", client_id="holder"):
        with pytest.raises(OwnershipAcquireFailedError, match="holder"):
            await (await other.open_log("listed")).delete_subscriber("locked")
    assert await log.subscribers() == {"plain": DLSN(1, 0, 1), "locked": DLSN.NON_INCLUSIVE_LOWER_BOUND}
    for name in ("plain", "locked", "never there"):
        await log.delete_subscriber(name)
    assert await log.subscribers() == {}


async def test_a_missing_log_is_not_made_by_its_readers(namespace):
    log = await namespace.open_log("missing")
    for opening in (
        log.open_reader(subscriber="s"),
        log.open_reader(exclusive=True),
        log.subscribers(),
        log.commit_position("s", DLSN.INITIAL),
    ):
        with pytest.raises(LogNotFoundError):
            await opening
    assert not await namespace.log_exists("missing")


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "a\x00b"])
async def test_what_cannot_be_a_subscriber_is_refused(namespace, name):
    log = await _log(namespace, "names", 0)
    with pytest.raises(CallerError):
        await log.commit_position(name, DLSN.INITIAL)
    with pytest.raises(CallerError):
        await log.open_reader(subscriber=name)
