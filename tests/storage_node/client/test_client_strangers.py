"""Ledger ids that others wrote under before their owner did (nobody needs credentials for it); a simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.model_cluster import FAST, Ledger, ModelCluster, contents, payload, write

from metadata.bookkeeper.ledger_metadata import DigestType, LedgerState
from metadata.foundation.errors import InvariantViolation, MetadataUnavailableError, NoNodeError
from storage_node.client.client import LedgerClient
from storage_node.client.writer import MAX_REPLACEMENTS, LedgerWriter
from storage_node.errors import LedgerTakenError, QuorumWriteError
from storage_node.protocol.digests import EntryDigest, master_key

INTRUDER = master_key(b"not the owner's")


def intrude(cluster: ModelCluster, bookies: Iterable[str], ledger_ids: Iterable[int]) -> None:
    """What a stranger's adds under these ids leave on these bookies: a key, and forged entries with a good digest."""
    ids = list(ledger_ids)
    for name in bookies:
        for ledger_id in ids:
            forged = EntryDigest(DigestType.CRC32, b"").package(ledger_id, 0, 10**9, 6, b"forged") + b"forged"
            cluster.bookies[name].ledgers[ledger_id] = Ledger(key=INTRUDER, entries={0: forged}, lac=10**9)


async def replaceable(client: LedgerClient, made: list[int] | None = None) -> LedgerWriter:
    """A writer whose user refers to its ledger by what was appended to `made` last."""
    writer = await client.create()
    if made is not None:
        made.append(writer.ledger_id)
    writer.replace_with(lambda: replaceable(client, made))
    return writer


@pytest.mark.parametrize("count", [1, 100])
@virtual_time
async def test_ids_that_were_taken_on_all_bookies_are_passed_over_and_nothing_is_lost(count: int) -> None:
    async with ModelCluster() as cluster:
        intrude(cluster, cluster.bookies, range(count))
        client, made = cluster.client(), list[int]()
        writer = await replaceable(client, made)
        adds = [writer.add(payload(i)) for i in range(30)]
        assert [await add for add in adds] == list(range(30))
        await write(writer, 10)
        assert writer.ledger_id == made[-1] >= count
        assert (await writer.close()).last_entry == 39
        assert await contents(cluster, writer.ledger_id) == [payload(i) for i in range(40)]
        assert len(made) <= 8  # each one in a row passes over twice as many
        for ledger_id in made[:-1]:  # closed, empty, and deleted: there is nothing that a recovery could find
            with pytest.raises(NoNodeError):
                await cluster.ledgers.read(ledger_id)


@pytest.mark.parametrize("poisoned", [1, 2, 3])
@virtual_time
async def test_a_bookie_that_holds_anothers_entries_is_named_in_no_ensemble(poisoned: int) -> None:
    async with ModelCluster(6) as cluster:
        strangers = list(cluster.bookies)[:poisoned]
        intrude(cluster, strangers, range(200))
        for name in strangers:
            cluster.bookies[name].delay_s = 0.1  # its refusal comes long after an ack quorum of the others
        client = cluster.client()
        for _ in range(10):
            writer = await replaceable(client)
            await write(writer, 5)
            metadata = await writer.close()
            named = {bookie for ensemble in metadata.ensembles for bookie in ensemble.bookies}
            assert not named.intersection(strangers) or writer.ledger_id >= 200
            assert await contents(cluster, writer.ledger_id) == [payload(i) for i in range(5)]


@virtual_time
async def test_entries_added_and_a_close_asked_for_meanwhile_are_kept() -> None:
    async with ModelCluster() as cluster:
        intrude(cluster, cluster.bookies, range(3))
        client = cluster.client()
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def slowly() -> LedgerWriter:
            asked.set()
            await go_on.wait()
            return await replaceable(client)

        writer = await client.create()
        writer.replace_with(slowly)
        first = writer.add(payload(0))
        await asked.wait()
        assert writer.error is None
        second = writer.add(payload(1))
        closing = asyncio.ensure_future(writer.close())
        await asyncio.sleep(0)
        go_on.set()
        metadata = await closing
        assert (await first, await second, metadata.last_entry) == (0, 1, 1)
        assert await contents(cluster, writer.ledger_id) == [payload(0), payload(1)]


@virtual_time
async def test_a_new_bookie_that_was_taken_is_replaced_in_the_midst_of_a_ledger() -> None:
    async with ModelCluster(5) as cluster:
        writer = await cluster.client().create()
        await write(writer, 5)
        spare = [name for name in cluster.bookies if name not in writer.metadata.last_ensemble.bookies]
        intrude(cluster, spare[:1], [writer.ledger_id])
        for lost in writer.metadata.last_ensemble.bookies[:1]:
            cluster.bookies[lost].kill()
        await write(writer, 20)
        await cluster.settle()
        await write(writer, 5)
        metadata = await writer.close()
        assert metadata.last_entry == 29
        assert spare[0] not in metadata.last_ensemble.bookies
        assert await contents(cluster, writer.ledger_id) == [payload(i) for i in range(30)]


@virtual_time
async def test_who_may_not_move_is_told_and_may_close_the_ledger_empty() -> None:
    async with ModelCluster() as cluster:
        intrude(cluster, cluster.bookies, range(2))
        writer = await cluster.client().create()
        with pytest.raises(LedgerTakenError, match="others wrote under ledger id 0"):
            await writer.add(b"x")
        metadata = await writer.close()
        assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, -1)


@virtual_time
async def test_the_number_of_tries_is_bounded() -> None:
    async with ModelCluster() as cluster:
        client, made = cluster.client(), list[int]()

        async def taken() -> LedgerWriter:
            writer = await replaceable(client, made)
            intrude(cluster, cluster.bookies, [writer.ledger_id])
            return writer

        writer = await taken()
        writer.replace_with(taken)
        with pytest.raises(LedgerTakenError):
            await writer.add(b"x")
        assert len(made) == MAX_REPLACEMENTS + 1


@virtual_time
async def test_where_no_other_ledger_can_be_made_the_writer_fails() -> None:
    async with ModelCluster() as cluster:
        intrude(cluster, cluster.bookies, [0])
        writer = await cluster.client().create()

        async def cannot() -> LedgerWriter:
            raise MetadataUnavailableError("away")

        writer.replace_with(cannot)
        with pytest.raises(QuorumWriteError, match="no other ledger was made"):
            await writer.add(b"x")


@virtual_time
async def test_a_writer_given_up_while_its_ledger_is_replaced_leaves_nothing_running() -> None:
    async with ModelCluster() as cluster:
        intrude(cluster, cluster.bookies, [0])
        client = cluster.client()
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def slowly() -> LedgerWriter:
            asked.set()
            await go_on.wait()
            return await client.create()

        writer = await client.create()
        writer.replace_with(slowly)
        add = writer.add(b"x")
        await asked.wait()
        giving_up = asyncio.ensure_future(writer.abandon())
        await asyncio.sleep(0)
        go_on.set()
        await giving_up
        with pytest.raises(QuorumWriteError, match="abandoned"):
            await add


# ---------------------------------------------------------------------------------------- recovery


@pytest.mark.parametrize("poisoned", [1, 2, 3, 4])
@virtual_time
async def test_a_deserted_ledger_whose_id_was_taken_is_recovered(poisoned: int) -> None:
    async with ModelCluster() as cluster:
        writer = await cluster.client().create()
        names = writer.metadata.last_ensemble.bookies
        intrude(cluster, [*names, *cluster.bookies][:poisoned] if poisoned < 4 else cluster.bookies, [0])
        reader = await cluster.client().open(0, recover=True)
        assert reader.closed
        assert reader.last_add_confirmed == -1
        await writer.abandon()


@virtual_time
async def test_what_one_taken_bookie_did_not_get_is_recovered_whole() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        names = writer.metadata.last_ensemble.bookies
        cluster.bookies[names[0]].delay_s = 0.5  # its refusal comes after the acknowledgement
        intrude(cluster, names[:1], [0])
        await write(writer, 7)
        await writer.abandon()
        assert await contents(cluster, 0) == [payload(i) for i in range(7)]


@virtual_time
async def test_with_a_taken_bookie_and_one_away_what_was_acknowledged_is_not_cut_off() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        names = writer.metadata.last_ensemble.bookies
        cluster.bookies[names[0]].delay_s = 0.5
        intrude(cluster, names[:1], [0])
        await write(writer, 3)
        await writer.abandon()
        cluster.bookies[names[1]].kill()
        with pytest.raises(Exception, match="nothing was cut off"):
            await cluster.client().open(0, recover=True)
        cluster.bookies[names[1]].down = False
        assert await contents(cluster, 0) == [payload(i) for i in range(3)]


@virtual_time
async def test_while_nodes_are_waited_for_a_taken_one_is_never_picked_again() -> None:
    async with ModelCluster(3) as cluster:
        client = cluster.client(replace(FAST, outage_wait_ms=20_000))
        writer = await client.create()
        await write(writer, 2)
        taken, away, _ = writer.metadata.last_ensemble.bookies
        held = cluster.bookies[taken].ledgers[writer.ledger_id]
        cluster.bookies[taken].ledgers[writer.ledger_id] = Ledger(key=INTRUDER)  # as if it had come to it just now
        cluster.bookies[away].kill()
        adding = asyncio.ensure_future(write(writer, 1))
        await cluster.settle(10)
        asked = len(cluster.bookies[taken].adds)
        await cluster.settle(5)
        assert len(cluster.bookies[taken].adds) == asked
        cluster.bookies[away].down = False
        assert await adding == [2]
        assert cluster.bookies[taken].ledgers[writer.ledger_id] is not held


@pytest.mark.parametrize("gone", [0, 1], ids=["small", "large"])
@virtual_time
async def test_a_payload_that_is_gone_when_another_ledger_gets_it_ends_every_entry(
    gone: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with ModelCluster(3) as cluster:
        intrude(cluster, cluster.bookies, range(1))
        client = cluster.client()
        writer = await client.create()
        views = [memoryview(bytearray(size)) for size in (10, 40_000, 40_000, 10)]

        async def another() -> LedgerWriter:
            views[gone].release()
            return await client.create()

        writer.replace_with(another)
        futures = [writer.add(view) for view in views]
        for future in futures:
            with pytest.raises(InvariantViolation, match="an entry cannot be packaged: ValueError"):
                await asyncio.wait_for(future, 600)
        await cluster.settle()
        assert "a background task failed" not in caplog.text
