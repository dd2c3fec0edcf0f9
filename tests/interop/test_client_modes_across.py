"""What only our client asks of bookies, on real ones too: batches, deferred sync and force, LAC reads and writes."""

from __future__ import annotations

import asyncio

from helpers.interop.clusters import InteropCluster, newest_version
from helpers.interop.java_tool import make_payload

from dlspark.testing.java_process import JavaTool
from storage_node.client.client import LedgerClient
from storage_node.client.writer import LedgerWriter

COUNT, SIZE = 300, 200


async def filled(client: LedgerClient, **options: bool) -> LedgerWriter:
    writer = await client.create(**options)  # type: ignore[arg-type]
    await asyncio.gather(*(writer.add(make_payload(0, index, SIZE)) for index in range(COUNT)))
    return writer


def batches_served(client: LedgerClient) -> int:
    context = client._context
    assert context is not None
    return sum(connection._served for connection in context.pool._batches.values())


@newest_version
async def test_our_client_reads_in_batches_from_bookies_of_either_kind(
    java: JavaTool, either_cluster: InteropCluster
) -> None:
    async with either_cluster.client() as client:
        writer = await filled(client)
        await writer.close()
        reader = await client.open(writer.ledger_id, recover=False)
        entries = await reader.read(0, COUNT - 1)
        assert [bytes(entry.payload) for entry in entries] == [make_payload(0, index, SIZE) for index in range(COUNT)]
        assert batches_served(client) == 3


@newest_version
async def test_deferred_sync_force_and_lac_work_with_bookies_of_either_kind(
    java: JavaTool, either_cluster: InteropCluster
) -> None:
    async with either_cluster.client() as client, either_cluster.client() as other:
        writer = await filled(client, deferred_sync=True)
        reader = await other.open(writer.ledger_id, recover=False)
        assert reader.last_add_confirmed == writer.last_add_confirmed == -1
        assert await writer.force() == COUNT - 1
        assert await writer.flush_last_confirmed() == COUNT - 1
        assert await reader.read_last_confirmed() == COUNT - 1
        assert await reader.try_read_last_confirmed() == COUNT - 1
        entry = await reader.poll(COUNT - 1, 5_000)
        assert entry is not None
        await writer.add(make_payload(0, COUNT, SIZE))
        assert (await writer.close()).last_entry == COUNT
