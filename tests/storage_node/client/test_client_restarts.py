"""Handles that outlive restarts of storage nodes: writers, readers and the tasks' shared reader, on real nodes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from dlspark.testing.cluster import InProcessCluster
from storage_node.client.reader import LedgerReader, ReplicaReader
from storage_node.client.writer import LedgerWriter
from storage_node.errors import NoSuchEntryError
from storage_node.settings.client import ClientSettings

CLIENT = ClientSettings(
    add_entry_timeout_ms=30_000,
    read_entry_timeout_ms=30_000,
    speculative_read_ms=300,
    long_poll_ms=500,
    vacancy_retry_ms=50,
    replacement_pause_ms=100,
    failure_memory_ms=1_000,
)


def payload(entry_id: int) -> bytes:
    return b"%08d" % entry_id * (1 + entry_id % 40)


async def write(writer: LedgerWriter, count: int) -> None:
    first = writer.last_add_pushed + 1
    await asyncio.gather(*(writer.add(payload(e)) for e in range(first, first + count)))


async def restart(cluster: InProcessCluster, index: int) -> None:
    await cluster.stop_node(index)
    await cluster.start_node(index)


async def check(reader: LedgerReader, count: int) -> None:
    entries = await reader.read(0, count - 1)
    assert [bytes(e.payload) for e in entries] == [payload(e) for e in range(count)]


async def test_one_writer_and_one_reader_go_on_through_a_rolling_restart_of_all_nodes(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path) as cluster:
        client = (await cluster.connect(client=CLIENT)).ledgers
        writer = await client.create()
        reader = await client.open(writer.ledger_id, recover=False)
        for index in range(4):
            await write(writer, 50)
            await restart(cluster, index)
            await write(writer, 50)
            known = await writer.flush_last_confirmed()
            assert await reader.read_last_confirmed() == known == writer.last_add_confirmed
            await check(reader, reader.last_add_confirmed + 1)
        assert writer.error is None
        await writer.close()
        await asyncio.wait_for(reader.on_closed.wait(), 60)
        await check(reader, 400)


async def test_a_writer_without_spare_nodes_keeps_its_ensemble_through_a_restart(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, nodes=3) as cluster:
        client = (await cluster.connect(client=CLIENT)).ledgers
        writer = await client.create()
        for index in range(3):
            await write(writer, 30)
            await cluster.stop_node(index)
            await write(writer, 30)  # two of three
            await cluster.start_node(index)
            deadline = time.monotonic() + 60
            while writer.machine.vacant:
                assert time.monotonic() < deadline, "the node was not taken back"
                await write(writer, 1)
                await asyncio.sleep(0.02)  # the retry's pace
        assert len(writer.metadata.ensembles) == 1
        await writer.close()
        await check(await client.open(writer.ledger_id, recover=False), writer.last_add_confirmed + 1)


async def test_the_tasks_shared_reader_and_a_handle_read_on_after_every_node_restarted(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path) as cluster:
        client = (await cluster.connect(client=CLIENT)).ledgers
        writer = await client.create()
        await write(writer, 200)
        await writer.close()
        location = await client.locate(writer.ledger_id)
        reader = await client.open(writer.ledger_id, recover=False)
        shared = ReplicaReader(settings=CLIENT)
        try:
            for _ in range(2):
                found = [bytes(e.payload) async for e in shared.entries(location, 0, 199)]
                assert found == [payload(e) for e in range(200)]
                await check(reader, 200)
                for index in range(4):
                    await restart(cluster, index)
            # In the middle of a run, too.
            run = shared.entries(location, 0, 199, window_entries=8)
            seen = [(await run.__anext__()).entry_id for _ in range(20)]
            for index in range(4):
                await restart(cluster, index)
            seen += [e.entry_id async for e in run]
            assert seen == list(range(200))
        finally:
            await shared.close()


async def test_real_nodes_serve_batches_deferred_sync_force_and_explicit_lac(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, nodes=3) as cluster:
        client = (await cluster.connect(client=CLIENT)).ledgers
        writer = await client.create(deferred_sync=True)
        await write(writer, 100)
        reader = await client.open(writer.ledger_id, recover=False)
        assert reader.last_add_confirmed == -1
        assert await writer.force() == 99
        assert await writer.flush_last_confirmed() == 99
        assert await reader.read_last_confirmed() == 99
        assert await reader.try_read_last_confirmed() == 99
        await check(reader, 100)
        assert len(await reader.read_unconfirmed(0, 99)) == 100
        with pytest.raises(NoSuchEntryError):
            await reader.read_unconfirmed(100, 100)
        await write(writer, 10)
        assert (await writer.close()).last_entry == 109
        context = client._context
        assert context is not None
        assert all(connection._served for connection in context.pool._batches.values())
        assert context.pool._batches
