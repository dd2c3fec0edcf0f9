"""Ensemble changes switched off while a client runs: writers keep their bookies, and send them again what they failed.

Upstream's feature `bkc.disable_ensemble_change`.
"""

from __future__ import annotations

import asyncio

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.model_cluster import ModelCluster

from storage_node.client.client import LedgerClient
from storage_node.client.writer import LedgerWriter
from storage_node.errors import LedgerFencedError
from storage_node.protocol.schema import Status


class Switch:
    """What an operator has switched."""

    def __init__(self, on: bool = True) -> None:
        self.on = on

    def client(self, cluster: ModelCluster) -> LedgerClient:
        return cluster.client(ensemble_change_disabled=lambda: self.on)


async def write(writer: LedgerWriter, count: int) -> list[int]:
    return [await f for f in [writer.add(b"entry %d" % i) for i in range(count)]]


@virtual_time
async def test_entries_are_acknowledged_by_a_degraded_ensemble_that_stays_as_it_is() -> None:
    async with ModelCluster(4) as cluster:
        writer = await Switch().client(cluster).create()
        before = writer.metadata
        await write(writer, 3)
        lost = cluster.bookies[before.last_ensemble.bookies[1]]
        lost.kill()
        await write(writer, 20)
        await cluster.settle()
        assert writer.metadata == before == (await cluster.ledgers.read(writer.ledger_id)).value
        assert sum(bool(bookie.ledgers) for bookie in cluster.bookies.values()) == 3
        assert (await writer.close()).last_entry == 22


@pytest.mark.parametrize("trouble", ["down", "silent", "refusing", "read-only"])
@virtual_time
async def test_what_an_ack_quorum_is_missing_for_is_sent_again_until_the_bookies_are_back(trouble: str) -> None:
    async with ModelCluster(5) as cluster:
        writer = await Switch().client(cluster).create()
        await write(writer, 3)
        names = writer.metadata.last_ensemble.bookies
        for bookie in cluster.holding(names)[:2]:
            if trouble == "down":
                bookie.kill()
            bookie.silent = trouble == "silent"
            bookie.refuse_adds = {"refusing": Status.EIO, "read-only": Status.EREADONLY}.get(trouble)
        waiting = [writer.add(b"waits %d" % i) for i in range(5)]
        await cluster.settle(60)
        assert not any(future.done() for future in waiting)
        for bookie in cluster.holding(names):
            bookie.down = bookie.silent = False
            bookie.refuse_adds = None
        assert await asyncio.gather(*waiting) == [3, 4, 5, 6, 7]
        assert [one.bookies for one in writer.metadata.ensembles] == [names]
        assert (await writer.close()).last_entry == 7


@virtual_time
async def test_a_switch_taken_back_lets_the_pending_entries_change_the_ensemble() -> None:
    async with ModelCluster(5) as cluster:
        switch = Switch()
        writer = await switch.client(cluster).create()
        await write(writer, 3)
        lost = writer.metadata.last_ensemble.bookies[:2]
        for bookie in cluster.holding(lost):
            bookie.kill()
        waiting = writer.add(b"waits")
        await cluster.settle()
        assert not waiting.done()
        switch.on = False
        assert await waiting == 3
        assert not set(lost) & set(writer.metadata.last_ensemble.bookies)


@virtual_time
async def test_vacant_seats_are_not_filled_while_the_switch_is_on() -> None:
    async with ModelCluster(3) as cluster:
        switch = Switch(on=False)
        writer = await switch.client(cluster).create()
        lost, *others = cluster.holding(writer.metadata.last_ensemble.bookies)
        lost.kill()
        await write(writer, 3)
        switch.on = True
        lost.down = False
        lost.adds.clear()
        for bookie in others:
            bookie.delay_s = 0.9  # so that something is pending whenever vacancies are looked at
        await write(writer, 20)
        await cluster.settle(3)
        first = writer.add(b"pending")
        await cluster.settle(0.8)
        assert not first.done()
        assert (writer.machine.vacant, lost.adds) == ({0}, [])
        switch.on = False
        await write(writer, 1)
        await cluster.settle(3)
        writer.add(b"pending")
        await cluster.settle(3)
        assert (writer.machine.vacant, bool(lost.adds)) == (set(), True)


@virtual_time
async def test_a_fenced_writer_fails_with_the_switch_on() -> None:
    async with ModelCluster(3) as cluster:
        writer = await Switch().client(cluster).create()
        await write(writer, 3)
        await cluster.client().open(writer.ledger_id, recover=True)
        with pytest.raises(LedgerFencedError):
            await writer.add(b"too late")


@virtual_time
async def test_an_abandoned_writer_sends_nothing_again() -> None:
    async with ModelCluster(3) as cluster:
        writer = await Switch().client(cluster).create()
        await write(writer, 1)
        for bookie in cluster.bookies.values():
            bookie.refuse_adds = Status.EIO
        waiting = writer.add(b"never stored")
        await cluster.settle(2)
        await writer.abandon()
        await cluster.settle(1)
        sent = [len(bookie.adds) for bookie in cluster.bookies.values()]
        await cluster.settle(10)
        assert [len(bookie.adds) for bookie in cluster.bookies.values()] == sent
        assert waiting.exception() is not None


@virtual_time
async def test_a_recovery_replaces_bookies_all_the_same() -> None:
    async with ModelCluster(5) as cluster:
        writer = await cluster.client().create()
        await write(writer, 3)
        await cluster.settle()
        await writer.abandon()
        refusing = writer.metadata.last_ensemble.bookies[:2]
        for bookie in cluster.holding(refusing):
            bookie.refuse_adds = Status.EIO
        reader = await Switch().client(cluster).open(writer.ledger_id, recover=True)
        assert (reader.last_add_confirmed, reader.closed) == (2, True)
        assert not set(refusing) & set(reader.metadata.last_ensemble.bookies)
