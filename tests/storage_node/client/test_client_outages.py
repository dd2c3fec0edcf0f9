"""Storage nodes that are away are waited for, within `outageWaitMillis`: nothing is lost, doubled or guessed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.model_cluster import FAST, ModelCluster

from metadata.bookkeeper.bookies import BookieAddress, Cookie
from metadata.bookkeeper.ledger_metadata import LedgerState
from metadata.foundation.errors import DistributedLogError
from storage_node.client.reader import ReplicaReader
from storage_node.client.writer import LedgerWriter
from storage_node.errors import NoSuchEntryError, NotEnoughBookiesError, QuorumWriteError

PATIENT = replace(FAST, outage_wait_ms=60_000)
SHORT = replace(FAST, outage_wait_ms=3_000)


def payload(entry_id: int) -> bytes:
    return b"entry %d" % entry_id


async def write(writer: LedgerWriter, count: int) -> None:
    for future in [writer.add(payload(writer.last_add_pushed + 1)) for _ in range(count)]:
        await future


async def leave(cluster: ModelCluster, name: str, *, registered: bool = False) -> None:
    """The node dies; its registration goes with its session, sooner or later."""
    cluster.bookies[name].kill()
    if not registered:
        await cluster.store.delete(f"/ledgers/available/{name}")


async def come_back(cluster: ModelCluster, name: str) -> None:
    cluster.bookies[name].down = False
    await cluster.registry.register(BookieAddress(name, name, 3181))


@virtual_time
async def test_a_ledger_is_made_once_enough_nodes_are_back() -> None:
    async with ModelCluster(4) as cluster:
        names = sorted(cluster.bookies)
        for name in names[:2]:
            await leave(cluster, name)
        with pytest.raises(NotEnoughBookiesError):
            await cluster.client().create()
        making = asyncio.ensure_future(cluster.client(PATIENT).create())
        await cluster.settle(20)
        assert not making.done()
        await come_back(cluster, names[0])
        writer = await making
        await write(writer, 3)
        await writer.close()


@virtual_time
async def test_nodes_that_stay_away_are_named() -> None:
    async with ModelCluster(4) as cluster:
        names = sorted(cluster.bookies)
        for name in names:
            await cluster.registry.write_cookie(Cookie(name, ("/journal",), ("/ledgers",), "instance"))
        for name in names[:2]:
            await leave(cluster, name)
        with pytest.raises(NotEnoughBookiesError, match=f"waited 3 s .*; away: {names[0]}, {names[1]}"):
            await cluster.client(SHORT).create()


@virtual_time
async def test_nodes_that_never_were_are_not_waited_for() -> None:
    async with ModelCluster(4) as cluster:
        for name in cluster.bookies:
            await cluster.registry.write_cookie(Cookie(name, ("/journal",), ("/ledgers",), "instance"))
        began = cluster.loop.time()
        with pytest.raises(NotEnoughBookiesError):
            await cluster.client(PATIENT).create(ensemble_size=5, write_quorum=3)
        assert cluster.loop.time() - began < 1


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize("lost", [2, 3, 4])
@virtual_time
async def test_adds_go_on_when_enough_nodes_are_back(lost: int, registered: bool) -> None:
    async with ModelCluster(4) as cluster:
        writer = await cluster.client(PATIENT).create()
        await write(writer, 10)
        first = list(writer.metadata.last_ensemble.bookies)
        gone = (first + [name for name in cluster.bookies if name not in first])[:lost]
        for name in gone:
            await leave(cluster, name, registered=registered)
        adds = [writer.add(payload(entry_id)) for entry_id in range(10, 40)]
        await cluster.settle(20)
        for name in gone:
            await come_back(cluster, name)
        assert [await add for add in adds] == list(range(10, 40))
        metadata = await writer.close()
        assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 39)
        for index, ensemble in enumerate(metadata.ensembles):
            after = metadata.ensembles[index + 1].first_entry if index + 1 < len(metadata.ensembles) else 40
            for entry_id in range(ensemble.first_entry, after):
                stored = [cluster.bookies[name].ledgers.get(0) for name in ensemble.bookies]
                holders = [one for one in stored if one is not None and entry_id in one.entries]
                assert len(holders) >= 2, (entry_id, ensemble)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        assert [bytes(entry.payload) for entry in await reader.read(0, 39)] == [payload(i) for i in range(40)]


@virtual_time
async def test_adds_fail_when_the_time_is_over_and_name_what_is_not_acknowledged() -> None:
    async with ModelCluster(4) as cluster:
        writer = await cluster.client(SHORT).create()
        await write(writer, 2)
        for name in list(cluster.bookies):
            await leave(cluster, name)
        began = cluster.loop.time()
        with pytest.raises(QuorumWriteError, match=r"entries 2 to 2 are not acknowledged.*waited 3 s for what is away"):
            await write(writer, 1)
        assert 3 <= cluster.loop.time() - began < 10


@virtual_time
async def test_entries_and_the_lac_are_read_once_their_nodes_are_back() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        await write(writer, 29)
        await write(writer, 1)
        reader = await cluster.client(PATIENT).open(writer.ledger_id, recover=False)
        location = await reader.location()
        for name in list(cluster.bookies):
            await leave(cluster, name, registered=True)
        executor = ReplicaReader(settings=PATIENT, network=cluster)

        async def entries() -> list[bytes]:
            return [bytes(entry.payload) async for entry in executor.entries(location, 0, 28)]

        asked = [
            asyncio.ensure_future(entries()),
            asyncio.ensure_future(reader.read(0, 28)),
            asyncio.ensure_future(reader.read_last_confirmed()),
        ]
        await cluster.settle(20)
        assert not any(one.done() for one in asked)
        for bookie in cluster.bookies.values():
            bookie.down = False
        assert await asked[0] == [payload(i) for i in range(29)]
        assert [bytes(entry.payload) for entry in await asked[1]] == [payload(i) for i in range(29)]
        assert await asked[2] == 28
        await executor.close()
        await writer.abandon()


@virtual_time
async def test_a_read_fails_when_the_time_is_over_and_at_once_where_waiting_helps_nothing() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        await write(writer, 3)
        await writer.close()
        reader = await cluster.client(SHORT).open(writer.ledger_id, recover=False)
        for bookie in cluster.bookies.values():
            bookie.down = True
            bookie.kill()
        with pytest.raises(DistributedLogError, match="waited 3 s for what is away") as raised:
            await reader.read(0, 2)
        assert raised.value.ledger_id == writer.ledger_id
        began = cluster.loop.time()
        for bookie in cluster.bookies.values():
            bookie.down = False
            bookie.ledgers[0].entries.clear()
        with pytest.raises(NoSuchEntryError):
            await reader.read(0, 2)
        assert cluster.loop.time() - began < 3


@virtual_time
async def test_a_recovery_waits_for_its_nodes_and_keeps_all_that_was_acknowledged() -> None:
    async with ModelCluster(4) as cluster:
        writer = await cluster.client().create()
        await write(writer, 20)
        await writer.abandon()
        gone = writer.metadata.last_ensemble.bookies[:2]
        for name in gone:
            await leave(cluster, name)
        with pytest.raises(DistributedLogError):
            await cluster.client().open(writer.ledger_id, recover=True)
        opening = asyncio.ensure_future(cluster.client(PATIENT).open(writer.ledger_id, recover=True))
        await cluster.settle(20)
        assert not opening.done()
        await come_back(cluster, gone[0])
        reader = await opening
        assert reader.last_add_confirmed == 19
