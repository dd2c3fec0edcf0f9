"""Modes of the writer over a simulated network: delayed changes, limits, deferred sync, given ids, explicit LAC."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.model_cluster import FAST, ModelCluster

from metadata.bookkeeper.ledger_metadata import LedgerState
from metadata.foundation.errors import CallerError, NodeExistsError
from storage_node.client.writer import LedgerWriter
from storage_node.errors import (
    DuplicateEntryError,
    LedgerClosedError,
    NotEnoughBookiesError,
    QuorumWriteError,
)
from storage_node.protocol.schema import Status
from storage_node.protocol.values import ForceLedgerRequest, WriteLacRequest


def payload(entry_id: int) -> bytes:
    return b"entry %06d " % entry_id * 3


async def write(writer: LedgerWriter, count: int) -> list[int]:
    return [await f for f in [writer.add(payload(writer.last_add_pushed + 1)) for _ in range(count)]]


async def one_by_one(writer: LedgerWriter, count: int) -> None:
    for _ in range(count):
        await write(writer, 1)


async def contents(cluster: ModelCluster, ledger_id: int) -> list[bytes]:
    reader = await cluster.client().open(ledger_id, recover=True)
    if reader.last_add_confirmed < 0:
        return []
    return [bytes(e.payload) for e in await reader.read(0, reader.last_add_confirmed)]


# ---------------------------------------------------------------------------------------- ensembles


@virtual_time
async def test_with_delayed_changes_one_lost_bookie_of_three_changes_nothing_two_do() -> None:
    async with ModelCluster(5) as cluster:
        writer = await cluster.client(replace(FAST, delay_ensemble_change=True)).create()
        await write(writer, 5)
        first = writer.metadata.last_ensemble.bookies
        cluster.bookies[first[0]].kill()
        await write(writer, 20)
        assert len(writer.metadata.ensembles) == 1
        cluster.bookies[first[1]].kill()
        await write(writer, 20)
        assert not {first[0], first[1]} & set(writer.metadata.last_ensemble.bookies)
        await writer.close()
        assert await contents(cluster, writer.ledger_id) == [payload(i) for i in range(45)]


@virtual_time
async def test_with_delayed_changes_a_writer_goes_on_while_no_replacement_is_to_be_had() -> None:
    async with ModelCluster(4) as cluster:
        writer = await cluster.client(replace(FAST, delay_ensemble_change=True)).create(
            ensemble_size=4, write_quorum=4, ack_quorum=2
        )
        await write(writer, 3)
        a, b, c, _ = cluster.holding(writer.metadata.last_ensemble.bookies)
        a.kill(), b.kill()
        await write(writer, 30)
        c.refuse_adds = Status.EREADONLY
        with pytest.raises(QuorumWriteError, match="fewer than 2 bookies can acknowledge"):
            await write(writer, 1)  # one is left: this is the point where it cannot go on
        assert (await writer.close()).last_entry == 32
        c.refuse_adds = None
        assert len(await contents(cluster, writer.ledger_id)) == 33


@virtual_time
async def test_a_seat_that_stayed_vacant_counts_against_the_delay() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client(replace(FAST, delay_ensemble_change=True)).create()
        await write(writer, 3)
        a, b, _ = cluster.holding(writer.metadata.last_ensemble.bookies)
        a.refuse_adds = Status.EREADONLY
        await write(writer, 3)
        assert writer.machine.vacant == {0}
        b.kill()
        with pytest.raises(QuorumWriteError):
            await asyncio.wait_for(writer.add(b"x"), 30)  # and does not wait for ever
        assert (await writer.close()).last_entry == 5


@virtual_time
async def test_an_entry_without_its_quorum_in_time_ends_the_writer_and_the_ledger_closes_before_it() -> None:
    async with ModelCluster(3) as cluster:
        settings = replace(
            FAST, add_entry_quorum_timeout_ms=700, add_entry_timeout_ms=60_000, read_entry_timeout_ms=900
        )
        writer = await cluster.client(settings).create()
        await write(writer, 4)
        for bookie in cluster.holding(writer.metadata.last_ensemble.bookies[:2]):
            bookie.mute = True
        await cluster.settle(3)  # idle: nothing is late
        began = cluster.loop.time()
        with pytest.raises(QuorumWriteError, match="entry 4 was not acknowledged within 0"):
            await write(writer, 3)
        assert 0.7 <= cluster.loop.time() - began <= 1.0
        assert (await writer.close()).last_entry == 3


@virtual_time
async def test_a_slow_but_living_quorum_is_in_time_entry_by_entry() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client(replace(FAST, add_entry_quorum_timeout_ms=700)).create()
        for bookie in cluster.bookies.values():
            bookie.delay_s = 0.4
        for _ in range(10):
            writer.add(b"x")
            await cluster.settle(0.2)
        await writer.close()
        assert writer.error is None


@virtual_time
async def test_opportunistic_striping_takes_as_many_bookies_as_there_are_but_not_below_the_write_quorum() -> None:
    async with ModelCluster(4) as cluster:
        client = cluster.client(replace(FAST, opportunistic_striping=True))
        writer = await client.create(ensemble_size=6, write_quorum=3, ack_quorum=2)
        assert writer.metadata.ensemble_size == len(writer.metadata.last_ensemble.bookies) == 4
        await write(writer, 10)
        await writer.close()
        assert len(await contents(cluster, writer.ledger_id)) == 10
        with pytest.raises(NotEnoughBookiesError):
            await client.create(ensemble_size=6, write_quorum=5, ack_quorum=2)
        with pytest.raises(NotEnoughBookiesError):
            await cluster.client().create(ensemble_size=6, write_quorum=3, ack_quorum=2)


@virtual_time
async def test_more_ensemble_changes_than_allowed_end_the_writer_at_its_lac() -> None:
    async with ModelCluster(6) as cluster:
        writer = await cluster.client(replace(FAST, max_ensemble_changes=1)).create()
        await write(writer, 2)
        cluster.bookies[writer.metadata.last_ensemble.bookies[0]].kill()
        await write(writer, 2)
        cluster.bookies[writer.metadata.last_ensemble.bookies[1]].kill()
        with pytest.raises(QuorumWriteError, match="maxNumEnsembleChanges"):
            await one_by_one(writer, 10)
        await writer.close()


@virtual_time
async def test_each_ledger_keeps_to_one_of_several_connections() -> None:
    async with ModelCluster(3) as cluster:
        client = cluster.client(replace(FAST, channels_per_bookie=2))
        writers = [await client.create() for _ in range(4)]
        for writer in writers:
            await write(writer, 5)
        assert len(cluster.links) == 6
        for writer in writers:
            await writer.close()
            assert len(await contents(cluster, writer.ledger_id)) == 5


@virtual_time
async def test_a_link_on_which_nothing_comes_any_more_is_made_anew() -> None:
    async with ModelCluster(3) as cluster:
        client = cluster.client(replace(FAST, speculative_read_ms=0))
        writer = await client.create()
        await write(writer, 5)
        await writer.close()
        reader = await client.open(writer.ledger_id, recover=False)
        before = set(cluster.links)
        for bookie in cluster.bookies.values():
            bookie.silent = True  # a host that has lost its power: TCP will not notice for long
        reading = asyncio.ensure_future(reader.read(0, 0))
        await cluster.settle(1.5)
        for bookie in cluster.bookies.values():
            bookie.silent = False
        assert len(await reading) == 1
        assert not before <= set(cluster.links)


# ---------------------------------------------------------------------------------------- deferred sync


@virtual_time
async def test_with_deferred_sync_the_lac_moves_when_all_bookies_were_forced() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create(deferred_sync=True)
        assert await write(writer, 5) == list(range(5))
        assert writer.last_add_confirmed == -1
        bookies = cluster.holding(writer.metadata.last_ensemble.bookies)
        await cluster.settle()
        assert all(b.unsynced[writer.ledger_id] == set(range(5)) for b in bookies)
        assert await writer.force() == 4
        assert all(sum(isinstance(r, ForceLedgerRequest) for r in b.requests) == 1 for b in bookies)
        assert writer.last_add_confirmed == 4
        assert await writer.force() == 4  # nothing to sync: nothing is sent
        assert all(sum(isinstance(r, ForceLedgerRequest) for r in b.requests) == 1 for b in bookies)
        await write(writer, 2)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        assert reader.last_add_confirmed == 4  # carried by the adds that followed
        metadata = await writer.close()
        assert metadata.last_entry == 6  # the close forces what is acknowledged
        assert not any(b.unsynced.get(writer.ledger_id) for b in bookies)


@virtual_time
async def test_a_force_that_one_bookie_refuses_moves_nothing_and_may_be_repeated() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create(deferred_sync=True)
        await write(writer, 3)
        bad = cluster.bookies[writer.metadata.last_ensemble.bookies[1]]
        bad.refuse_forces = Status.EIO
        with pytest.raises(Exception, match="EIO"):
            await writer.force()
        assert writer.last_add_confirmed == -1
        with pytest.raises(QuorumWriteError, match="acknowledged, but not synced"):
            await writer.close()
        stored = (await cluster.ledgers.read(writer.ledger_id)).value
        assert stored.state is LedgerState.OPEN
        assert len(await contents(cluster, writer.ledger_id)) == 3  # a recovery keeps them


@virtual_time
async def test_a_bookie_that_may_have_restarted_between_acknowledgement_and_force_fails_the_force() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create(deferred_sync=True)
        await write(writer, 3)
        await cluster.settle()
        bookie = cluster.bookies[writer.metadata.last_ensemble.bookies[0]]
        bookie.crash()
        await cluster.settle(0.1)
        bookie.down = False
        with pytest.raises(QuorumWriteError, match="may have restarted"):
            await writer.force()
        assert writer.last_add_confirmed == -1
        with pytest.raises(QuorumWriteError):
            writer.add(b"x")


@virtual_time
async def test_with_deferred_sync_a_failed_bookie_ends_the_writer_without_ensemble_change() -> None:
    async with ModelCluster(5) as cluster:
        writer = await cluster.client().create(deferred_sync=True)
        await write(writer, 3)
        assert await writer.force() == 2
        cluster.bookies[writer.metadata.last_ensemble.bookies[2]].kill()
        with pytest.raises(QuorumWriteError):
            await one_by_one(writer, 5)
        metadata = await writer.close()
        assert metadata.last_entry == 2
        assert len(metadata.ensembles) == 1


@virtual_time
async def test_forcing_an_ordinary_ledger_sends_nothing_since_all_that_is_acknowledged_is_synced() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        await write(writer, 3)
        assert await writer.force() == 2
        assert not any(isinstance(r, ForceLedgerRequest) for b in cluster.bookies.values() for r in b.requests)


# ---------------------------------------------------------------------------------------- ids of the caller


@virtual_time
async def test_entries_under_ids_of_the_callers_in_any_order_are_acknowledged_in_theirs() -> None:
    async with ModelCluster(4, jitter_s=0.02) as cluster:
        writer = await cluster.client().create(advanced=True)
        order = [3, 0, 5, 1, 4, 2]
        acknowledged: list[int] = []
        futures = [writer.add_at(e, payload(e)) for e in order]
        for future in futures:
            future.add_done_callback(lambda f: acknowledged.append(f.result()))
        with pytest.raises(DuplicateEntryError):
            writer.add_at(3, b"again")
        assert await asyncio.gather(*futures) == order
        assert acknowledged == list(range(6))
        with pytest.raises(DuplicateEntryError):
            writer.add_at(0, b"again")
        with pytest.raises(CallerError, match="given by its caller"):
            writer.add(b"x")
        metadata = await writer.close()
        assert (metadata.last_entry, metadata.length) == (5, 6 * 39)
        assert await contents(cluster, writer.ledger_id) == [payload(i) for i in range(6)]


@virtual_time
async def test_a_lost_bookie_and_a_gap_at_the_close_of_an_advanced_ledger() -> None:
    async with ModelCluster(4) as cluster:
        writer = await cluster.client().create(advanced=True)
        await writer.add_at(0, payload(0))
        cluster.bookies[writer.metadata.last_ensemble.bookies[0]].kill()
        behind = [writer.add_at(e, payload(e)) for e in (4, 3)]
        await asyncio.gather(writer.add_at(2, payload(2)), writer.add_at(1, payload(1)), *behind)
        lost = writer.add_at(7, payload(7))
        metadata = await writer.close()
        assert metadata.last_entry == 4
        with pytest.raises(LedgerClosedError, match="behind a gap"):
            await lost
        assert await contents(cluster, writer.ledger_id) == [payload(i) for i in range(5)]


@virtual_time
async def test_ids_are_given_where_the_ledger_was_created_so_and_nowhere_else() -> None:
    async with ModelCluster(3) as cluster:
        client = cluster.client()
        writer = await client.create()
        with pytest.raises(CallerError, match="advanced=True"):
            writer.add_at(0, b"x")
        advanced = await client.create(advanced=True)
        with pytest.raises(CallerError, match="below 0"):
            advanced.add_at(-1, b"x")


@virtual_time
async def test_a_ledger_id_of_the_callers_must_be_new() -> None:
    async with ModelCluster(3) as cluster:
        client = cluster.client()
        writer = await client.create(ledger_id=4711)
        assert writer.ledger_id == 4711
        await write(writer, 2)
        with pytest.raises(NodeExistsError):
            await client.create(ledger_id=4711)
        await writer.close()


# ---------------------------------------------------------------------------------------- explicit LAC


def lac_writes(cluster: ModelCluster) -> list[int]:
    return sorted(r.lac for b in cluster.bookies.values() for r in b.requests if isinstance(r, WriteLacRequest))


@virtual_time
async def test_the_last_entry_of_a_quiet_ledger_becomes_visible_after_the_interval() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client(replace(FAST, explicit_lac_interval_ms=100)).create()
        await write(writer, 5)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        entry = await reader.poll(4, 5_000)
        assert entry is not None
        assert bytes(entry.payload) == payload(4)
        await cluster.settle(3)
        assert lac_writes(cluster) == [4, 4, 4]  # once, to the write set
        assert await reader.read_last_confirmed() == 4
        await writer.close()


@virtual_time
async def test_no_lac_is_written_while_adds_carry_it_and_none_after_the_close() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client(replace(FAST, explicit_lac_interval_ms=100)).create()
        for _ in range(30):
            await write(writer, 1)
            await asyncio.sleep(0.02)
        assert lac_writes(cluster) == []
        await writer.close()
        await cluster.settle()
        assert lac_writes(cluster) == []


@virtual_time
async def test_the_lac_can_be_made_known_on_demand_with_an_ack_quorum() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        assert await writer.flush_last_confirmed() == -1
        await write(writer, 3)
        cluster.bookies[writer.metadata.last_ensemble.bookies[0]].kill()
        assert await writer.flush_last_confirmed() == 2
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        assert reader.last_add_confirmed == 2
        cluster.bookies[writer.metadata.last_ensemble.bookies[1]].kill()
        assert await writer.flush_last_confirmed() == 2  # known already
        with pytest.raises(QuorumWriteError):
            await write(writer, 1)
