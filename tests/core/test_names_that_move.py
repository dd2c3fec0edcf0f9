"""Readers and writers of a log that is deleted or renamed under them, with another log under its name by then."""

from __future__ import annotations

import asyncio

import pytest
from helpers.logs import drained, payloads, written

from dlspark.core.codec.dlsn import DLSN
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.foundation.errors import DistributedLogError

OLD = [[b"old0", b"old1"]]
NEW = [[b"new0"], [b"new1"]]


def _held_up(namespace):
    """The client's listings wait for the event that this returns: it hears of changes late."""
    gate, listing = asyncio.Event(), namespace.logs_store.listing

    async def late(*arguments):
        await gate.wait()
        return await listing(*arguments)

    namespace.logs_store.listing = late
    gate.set()
    return gate


async def _replace(other, name, how):
    """Delete the log, or rename it, and make another one of its name."""
    if how == "deleted":
        await other.delete_log(name)
    else:
        await other.rename_log(name, f"{name}-renamed")
    await written(other, name, NEW)


@pytest.mark.parametrize("how", ["deleted", "renamed"])
async def test_a_reader_at_the_tail_reads_nothing_of_another_log_that_has_the_name_by_now(memory_cluster, how):
    namespace, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    log = await written(namespace, "log", OLD)
    gate = _held_up(namespace)
    reader = await log.open_reader()
    assert await drained(reader) == [b"old0", b"old1"]
    gate.clear()
    await _replace(other, "log", how)
    gate.set()
    with pytest.raises(LogNotFoundError, match="another one has its name"):
        await reader.read_next()
    await reader.close()
    assert await payloads(log) == [b"new0", b"new1"]


async def test_a_reader_that_goes_elsewhere_stays_in_its_log(memory_cluster):
    namespace, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    log = await written(namespace, "log", OLD)
    gate = _held_up(namespace)
    reader = await log.open_reader()
    assert await drained(reader) == [b"old0", b"old1"]
    gate.clear()
    await _replace(other, "log", "deleted")
    await reader.skip_to(DLSN(1, 0, 0))
    gate.set()
    with pytest.raises(LogNotFoundError, match="another one has its name"):
        await reader.read_next()
    await reader.close()


async def test_who_watches_segments_is_told_that_another_log_has_the_name(memory_cluster):
    namespace, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    log = await written(namespace, "log", OLD)
    gate = _held_up(namespace)
    changes = log.watch_segments()
    assert len(await changes.__anext__()) == 1
    gate.clear()
    await _replace(other, "log", "deleted")
    gate.set()
    with pytest.raises(LogNotFoundError, match="another one has its name"):
        await changes.__anext__()
    await changes.aclose()


@pytest.mark.parametrize("how", ["deleted", "renamed"])
async def test_a_writer_that_has_lost_its_lock_changes_nothing_of_another_log_of_the_name(memory_cluster, how):
    """The versions of the two logs are the same: the first one's transaction must fail by something else (I7)."""
    namespace, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    log = await namespace.open_log("log", {"writerOutputBufferSize": 0})
    writer = await log.open_writer()
    await writer.write(0, b"old0")
    await writer.flush()
    successors = []
    complete = namespace.logs_store.complete_segment

    async def late(*arguments, **options):
        if not successors:
            memory_cluster.cut_off(namespace)
            await (other.delete_log("log") if how == "deleted" else other.rename_log("log", "renamed"))
            successors.append(await (await other.open_log("log", {"writerOutputBufferSize": 0})).open_writer())
            await successors[0].write(0, b"new0")
            await successors[0].flush()
            memory_cluster.tree.inject = None
        return await complete(*arguments, **options)

    namespace.logs_store.complete_segment = late
    with pytest.raises(DistributedLogError):
        await writer.close()
    await successors[0].write(1, b"new1")
    await successors[0].close()
    assert await payloads(await other.open_log("log")) == [b"new0", b"new1"]
    if how == "renamed":
        async with await (await other.open_log("renamed")).open_writer():
            pass
        assert await payloads(await other.open_log("renamed")) == [b"old0"]
