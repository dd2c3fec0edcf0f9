"""Opening with recovery over a simulated network."""

from __future__ import annotations

import asyncio

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.model_cluster import ModelCluster

from metadata.bookkeeper.ledger_metadata import LedgerState
from metadata.foundation.errors import NoNodeError
from metadata.zookeeper.memory import Fault
from storage_node.client.writer import LedgerWriter
from storage_node.errors import LedgerRecoveryError, UnauthorizedAccessError
from storage_node.protocol.values import ReadRequest


def payload(entry_id: int) -> bytes:
    return b"entry %06d " % entry_id * 3


async def write(writer: LedgerWriter, count: int) -> list[int]:
    return [await f for f in [writer.add(payload(writer.last_add_pushed + 1)) for _ in range(count)]]


@virtual_time
async def test_recovery_closes_a_deserted_ledger_at_its_last_entry() -> None:
    async with ModelCluster() as cluster:
        writer = await cluster.client().create()
        await write(writer, 25)
        await cluster.settle()
        reader = await cluster.client().open(writer.ledger_id, recover=True)
        assert reader.closed
        assert (reader.last_add_confirmed, reader.length) == (24, 25 * 39)
        stored = (await cluster.ledgers.read(writer.ledger_id)).value
        assert (stored.state, stored.last_entry, stored.length) == (LedgerState.CLOSED, 24, 975)
        assert [bytes(e.payload) for e in await reader.read(0, 24)] == [payload(i) for i in range(25)]


@virtual_time
async def test_recovery_of_an_empty_ledger_closes_it_empty() -> None:
    async with ModelCluster() as cluster:
        writer = await cluster.client().create()
        reader = await cluster.client().open(writer.ledger_id, recover=True)
        assert (reader.last_add_confirmed, reader.length, reader.closed) == (-1, 0, True)


@virtual_time
async def test_recovery_of_a_closed_ledger_asks_no_bookie() -> None:
    async with ModelCluster() as cluster:
        writer = await cluster.client().create()
        await write(writer, 3)
        await writer.close()
        for bookie in cluster.bookies.values():
            bookie.kill()
        reader = await cluster.client().open(writer.ledger_id, recover=True)
        assert (reader.last_add_confirmed, reader.closed) == (2, True)


@pytest.mark.parametrize("lost", range(3))
@virtual_time
async def test_recovery_with_one_of_three_down_succeeds(lost: int) -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        await write(writer, 10)
        cluster.bookies[writer.metadata.last_ensemble.bookies[lost]].kill()
        reader = await cluster.client().open(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed == 9
        assert len(await reader.read(0, 9)) == 10


@virtual_time
async def test_recovery_with_one_of_three_hanging_is_decided_without_it_d6() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        await write(writer, 10)
        await cluster.settle()
        cluster.bookies[writer.metadata.last_ensemble.bookies[1]].silent = True
        began = cluster.loop.time()
        reader = await cluster.client().open(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed == 9
        assert cluster.loop.time() - began < 0.5


@pytest.mark.parametrize("how", ["down", "silent", "corrupt"])
@virtual_time
async def test_recovery_with_two_of_three_lost_fails_and_never_closes_short(how: str) -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        await write(writer, 10)
        await cluster.settle()
        lost = cluster.holding(writer.metadata.last_ensemble.bookies[1:])
        for bookie in lost:
            if how == "down":
                bookie.kill()
            else:
                setattr(bookie, how, True)
        with pytest.raises(LedgerRecoveryError, match="nothing was cut off"):
            await cluster.client().open(writer.ledger_id, recover=True)
        stored = (await cluster.ledgers.read(writer.ledger_id)).value
        assert stored.state is LedgerState.IN_RECOVERY
        for bookie in lost:
            bookie.down = bookie.silent = bookie.corrupt = False
        reader = await cluster.client().open(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed == 9


@virtual_time
async def test_a_wiped_bookie_alone_cannot_cut_anything_off() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        await write(writer, 10)
        await cluster.settle()
        a, b, _ = cluster.holding(writer.metadata.last_ensemble.bookies)
        a.ledgers.clear()  # the same identity with an empty disk
        b.kill()
        reader = await cluster.client().open(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed == 9


@virtual_time
async def test_recovery_replaces_a_lost_bookie_and_publishes_it_with_the_close_only() -> None:
    async with ModelCluster(4) as cluster:
        writer = await cluster.client().create()
        await write(writer, 10)
        await cluster.settle()
        for bookie in cluster.bookies.values():  # the last entries' LAC never became known: there is a tail to re-add
            for ledger in bookie.ledgers.values():
                ledger.entries = {e: b for e, b in ledger.entries.items() if e <= 9}
        lost = writer.metadata.last_ensemble.bookies[0]
        cluster.bookies[lost].kill()
        reader = await cluster.client().open(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed == 9
        last = reader.metadata.last_ensemble
        if len(reader.metadata.ensembles) > 1:
            assert lost not in last.bookies
        assert [bytes(e.payload) for e in await reader.read(0, 9)] == [payload(i) for i in range(10)]


@virtual_time
async def test_an_empty_last_fragment_ends_before_it_with_the_right_length_d2() -> None:
    async with ModelCluster(5) as cluster:
        writer = await cluster.client().create()
        await write(writer, 10)
        await cluster.settle()
        current = await cluster.ledgers.read(writer.ledger_id)
        fresh = sorted(set(cluster.bookies) - set(current.value.last_ensemble.bookies))
        bookies = (*fresh, current.value.last_ensemble.bookies[0])
        cluster.bookies[bookies[-1]].ledgers.clear()
        await cluster.ledgers.write(writer.ledger_id, current.value.with_ensemble(10, bookies), current.version)
        reader = await cluster.client().open(writer.ledger_id, recover=True)
        assert (reader.last_add_confirmed, reader.length) == (9, 390)


@virtual_time
async def test_recovery_reads_fence_bookies_that_the_first_fence_did_not_reach_d1() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        await write(writer, 5)
        await cluster.client().open(writer.ledger_id, recover=True)
        await cluster.settle()
        for bookie in cluster.bookies.values():
            reads = [r for r in bookie.requests if isinstance(r, ReadRequest) and r.entry_id >= 0]
            assert any(r.fence and r.priority > 0 and r.master_key for r in reads)
            assert bookie.ledgers[writer.ledger_id].fenced


@pytest.mark.parametrize("seed", range(12))
@virtual_time
async def test_concurrent_recoverers_and_the_writer_agree_on_one_end(seed: int) -> None:
    async with ModelCluster(4, seed=seed, jitter_s=0.02) as cluster:
        writer = await cluster.client().create()
        futures = [writer.add(payload(i)) for i in range(30)]
        await asyncio.sleep(0.003 * seed)
        if seed % 3 == 1:
            cluster.bookies[writer.metadata.last_ensemble.bookies[seed % 4 % 3]].kill()
        if seed % 3 == 2:
            cluster.rng.seed(seed)
        readers = await asyncio.gather(*(cluster.client().open(writer.ledger_id, recover=True) for _ in range(3)))
        results = await asyncio.gather(*futures, return_exceptions=True)
        acknowledged = sum(isinstance(r, int) for r in results)
        assert len({(r.last_add_confirmed, r.length) for r in readers}) == 1
        end = readers[0].last_add_confirmed
        assert end >= acknowledged - 1
        for reader in readers:
            entries = await reader.read(0, end) if end >= 0 else []
            assert [bytes(e.payload) for e in entries] == [payload(i) for i in range(end + 1)]


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.REFUSE])
@pytest.mark.parametrize("which", [0, 1])
@virtual_time
async def test_marking_and_closing_survive_lost_answers_of_the_metadata_store(fault: Fault, which: int) -> None:
    async with ModelCluster() as cluster:
        writer = await cluster.client().create()
        await write(writer, 5)
        await cluster.settle()
        puts = 0

        def inject(_session: int, name: str, _path: str) -> Fault | None:
            nonlocal puts
            puts += name == "put"
            return fault if name == "put" and puts == which + 1 else None

        cluster.tree.inject = inject
        reader = await cluster.client().open(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed == 4
        assert puts >= 2


@virtual_time
async def test_a_wrong_password_opens_nothing_and_fences_nothing() -> None:
    async with ModelCluster() as cluster:
        writer = await cluster.client().create(password=b"right")
        await write(writer, 2)
        with pytest.raises(UnauthorizedAccessError, match="another password"):
            await cluster.client().open(writer.ledger_id, password=b"wrong", recover=True)
        await write(writer, 2)
        assert (await writer.close()).last_entry == 3


@virtual_time
async def test_a_ledger_that_does_not_exist_is_said_so() -> None:
    async with ModelCluster() as cluster:
        with pytest.raises(NoNodeError, match="no such ledger"):
            await cluster.client().open(4711, recover=True)


@virtual_time
async def test_a_cancelled_recovery_leaves_nothing_running_and_can_be_repeated() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        await write(writer, 5)
        for bookie in cluster.bookies.values():
            bookie.delay_s = 0.3
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(cluster.client().open(writer.ledger_id, recover=True), 0.1)
        reader = await cluster.client().open(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed == 4
