"""Closing goes to its end: where it is cancelled in the middle, where a part of it fails, where two close at once."""

from __future__ import annotations

import asyncio

import pytest
from helpers.waiting import until

from dlspark.errors import AlreadyClosedError
from metadata.foundation.errors import MetadataUnavailableError
from metadata.store import SessionState


async def _open_logs(namespace, names):
    """A writer with a record that is not acknowledged yet, and a reader, of each log."""
    writers, readers = [], []
    for name in names:
        log = await namespace.open_log(name, {"writerOutputBufferSize": 0})
        writers.append(await log.open_writer())
        await writers[-1].write(1, b"first")
        readers.append(await log.open_reader())
    return writers, readers


def _hold(memory_cluster):
    for bookie in memory_cluster.bookies:
        bookie.hold_adds = True


def _release(memory_cluster):
    for bookie in memory_cluster.bookies:
        bookie.release()


@pytest.mark.parametrize("what", ["namespace", "log"])
async def test_a_close_that_is_cancelled_closes_all_of_it(memory_cluster, what):
    namespace = await memory_cluster.namespace()
    writers, readers = await _open_logs(namespace, ["one", "two"] if what == "namespace" else ["one"])
    log = namespace._logs[0]
    _hold(memory_cluster)
    late = [writer.write(2, b"late") for writer in writers]
    closing = asyncio.ensure_future(namespace.close() if what == "namespace" else log.close())
    await until(lambda: writers[0]._shutdown is not None)
    for _ in range(3):
        closing.cancel()
        await asyncio.sleep(0)
    again = asyncio.ensure_future(namespace.close() if what == "namespace" else log.close())
    await asyncio.sleep(0)
    assert not again.done(), "who closes as well waits for the end"
    _release(memory_cluster)
    with pytest.raises(asyncio.CancelledError):
        await closing
    await again
    assert all(writer.closed for writer in writers)
    assert all(reader.closed for reader in readers)
    assert all(future.done() and future.exception() is None for future in late)
    if what == "namespace":
        assert namespace.store.state is SessionState.CLOSED
        with pytest.raises(AlreadyClosedError):
            await namespace.logs()
    else:
        assert [segment.in_progress for segment in await namespace.logs_store.segments("one")] == [False]


async def test_a_part_that_cannot_be_closed_leaves_nothing_else_open(memory_cluster, monkeypatch):
    namespace = await memory_cluster.namespace()
    writers, readers = await _open_logs(namespace, ["one", "two"])

    async def fails():
        raise OSError("no such file")

    monkeypatch.setattr(namespace._files, "close", fails)
    with pytest.raises(OSError, match="no such file"):
        await namespace.close()
    assert all(one.closed for one in (*writers, *readers))
    assert namespace.store.state is SessionState.CLOSED
    await namespace.close()


async def test_a_reader_whose_session_was_closed_ends_instead_of_asking_for_ever(memory_cluster):
    writing = await memory_cluster.namespace()
    (writer,), _ = await _open_logs(writing, ["followed"])
    await writer.commit()
    namespace = await memory_cluster.namespace()
    reader = await (await namespace.open_log("followed")).open_reader()
    assert (await reader.read_next()).payload == b"first"
    waiting = asyncio.ensure_future(reader.read_next())
    await namespace.store.close()
    await writer.close()  # The segment ends: the reader has to look for the next one.
    with pytest.raises(MetadataUnavailableError):
        await asyncio.wait_for(waiting, 60)
    await reader.close()


async def test_changes_of_segments_are_no_longer_waited_for_in_a_closed_session(memory_cluster):
    namespace = await memory_cluster.namespace()
    await namespace.create_log("watched")
    log = await namespace.open_log("watched")
    changes = log.watch_segments()
    assert await anext(changes) == []
    await namespace.store.close()
    with pytest.raises(MetadataUnavailableError):
        await asyncio.wait_for(anext(changes), 60)
