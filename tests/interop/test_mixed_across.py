"""Two real bookies and two nodes of ours in one ensemble: kills of either, writers and recoverers of either."""

from __future__ import annotations

import asyncio

import pytest
from helpers.interop.clusters import InteropCluster
from helpers.interop.java_tool import make_payload
from helpers.interop.ledgers import (
    CLOSED,
    FENCED,
    answered,
    as_java_tells,
    contents_of,
    java_adds,
    java_creates,
    java_reads,
    payloads,
    restored,
    we_add,
    we_read,
)

from dlspark.testing.java_process import JavaTool
from storage_node.client.writer import LedgerWriter
from storage_node.errors import LedgerFencedError

STRIPED = {"ensemble": 4, "write_quorum": 3, "ack_quorum": 2}
VERSION_2 = {"useV2WireProtocol": True}


async def we_go_on(writer: LedgerWriter, first: int, count: int) -> None:
    adds = [writer.add(make_payload(0, index, 30)) for index in range(first, first + count)]
    assert list(await asyncio.gather(*adds)) == list(range(first, first + count))


async def test_ledgers_go_on_when_a_node_of_either_kind_is_lost(java: JavaTool, mixed: InteropCluster) -> None:
    """Of four nodes one of ours goes and comes back, then a real bookie: writers of both kinds lose nothing."""
    ask, count = mixed.on(java), 40
    async with mixed.client() as client:
        writer = await client.create(ensemble_size=4, write_quorum=3, ack_quorum=2)
        assert set(writer.metadata.last_ensemble.bookies) == set(mixed.bookies)
        await we_add(writer, (30,) * count)
        ledgers = [await java_creates(ask), await java_creates(ask, settings=VERSION_2)]
        for ledger in ledgers:
            await ask("ledger.write", handle=ledger["handle"], count=count, size=30)
        for bookie in (mixed.bookies[-1], mixed.bookies[0]):
            await asyncio.to_thread(mixed.lose, bookie)
            await we_go_on(writer, count, 20)
            for ledger in ledgers:
                answer = await ask("ledger.write", handle=ledger["handle"], first=count, count=20, size=30)
                assert answer["acknowledged"] == list(range(count + 20))
                assert answer["failed"] == []
            count += 20
            await restored(java, mixed, client)
        await writer.close()
        for ledger in ledgers:
            await ask("ledger.close", handle=ledger["handle"])
        await asyncio.to_thread(mixed.lose, mixed.bookies[-2])
        for ledger_id in (writer.ledger_id, ledgers[0]["ledger"], ledgers[1]["ledger"]):
            assert await java_reads(ask, ledger_id) == as_java_tells(payloads((30,) * count))
            assert await we_read(client, ledger_id) == payloads((30,) * count)


@pytest.mark.parametrize("lost", [0, -1], ids=["a real bookie is lost", "a node of ours is lost"])
async def test_a_recoverer_of_either_kind_fences_a_writer_of_the_other(
    java: JavaTool, mixed: InteropCluster, lost: int
) -> None:
    """With a node of the one kind gone, the others' fences hold, also on the node that comes back without one."""
    ask = mixed.on(java)
    async with mixed.client() as client:
        theirs = await java_creates(ask, **STRIPED)
        await java_adds(ask, theirs, (30,) * 25)
        # Java's recovery needs somebody in the place of the lost one, ours goes on without.
        ours = await client.create()
        while mixed.bookies[lost] not in ours.metadata.last_ensemble.bookies:
            ours = await client.create()
        await we_add(ours, (30,) * 25)
        await answered(java, mixed)
        await asyncio.to_thread(mixed.lose, mixed.bookies[lost])
        reader = await client.open(theirs["ledger"], recover=True)
        assert reader.last_add_confirmed == 24
        assert await contents_of(reader) == payloads((30,) * 25)
        await reader.close()
        opened = await ask("ledger.open", ledger=ours.ledger_id, recover=True)
        assert (opened["lac"], opened["length"]) == (24, 750)
        await restored(java, mixed, client)
        with pytest.raises(LedgerFencedError):
            await asyncio.gather(*(ours.add(b"too late") for _ in range(4)))
        late = await ask("ledger.write", handle=theirs["handle"], first=25, count=4, size=30)
        assert late["acknowledged"] == list(range(25))
        assert set(late["failed"]) <= {FENCED, CLOSED}
        assert FENCED in late["failed"]
        for ledger_id in (theirs["ledger"], ours.ledger_id):
            assert await java_reads(ask, ledger_id) == as_java_tells(payloads((30,) * 25))
            assert await we_read(client, ledger_id) == payloads((30,) * 25)
