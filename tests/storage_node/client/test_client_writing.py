"""The ledger writer over a simulated network: pipelining, failures, ensemble changes, fencing, the close."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.model_cluster import FAST, ModelCluster, ModelLink, contents, payload, write

from metadata.bookkeeper.ledger_metadata import DigestType, LedgerState
from metadata.foundation.errors import CallerError, InvariantViolation, OutcomeUnknownError
from metadata.zookeeper.memory import Fault, MemoryStore
from storage_node.client.client import LedgerClient
from storage_node.client.placement.policies import UniformPlacement
from storage_node.edge import FrameHandler
from storage_node.errors import (
    EntryTooLargeError,
    LedgerClosedError,
    LedgerFencedError,
    NotEnoughBookiesError,
    QuorumWriteError,
)
from storage_node.protocol.schema import Status
from storage_node.protocol.writing_model import PickReplacements


@pytest.mark.parametrize("digest", DigestType)
@virtual_time
async def test_entries_written_and_closed_are_read_back(digest: DigestType) -> None:
    async with ModelCluster() as cluster:
        writer = await cluster.client().create(digest_type=digest, password=b"secret", custom={"a": b"b"})
        assert writer.last_add_pushed == -1
        future = writer.add(b"two ", b"buffers")
        assert writer.last_add_pushed == 0
        assert await future == 0
        assert await writer.add(b"") == 1
        assert await writer.add(memoryview(bytes(100_000))) == 2
        metadata = await writer.close()
        assert (metadata.last_entry, metadata.length, metadata.state) == (2, 100_011, LedgerState.CLOSED)
        assert await writer.close() == metadata
        reader = await cluster.client().open(writer.ledger_id, password=b"secret", recover=False)
        assert reader.closed
        entries = await reader.read(0, 2)
        assert [bytes(e.payload) for e in entries] == [b"two buffers", b"", bytes(100_000)]
        assert [e.length for e in entries] == [11, 11, 100_011]
        assert reader.metadata.custom == {"a": b"b"}


@virtual_time
async def test_pipelined_adds_resolve_in_entry_order_and_every_replica_gets_each_once() -> None:
    async with ModelCluster(3, jitter_s=0.01) as cluster:
        writer = await cluster.client().create()
        order: list[int] = []
        futures = [writer.add(payload(i)) for i in range(200)]
        for future in futures:
            future.add_done_callback(lambda f: order.append(f.result()))
        await asyncio.gather(*futures)
        await cluster.settle()
        assert order == list(range(200))
        assert writer.last_add_confirmed == 199
        assert all(bookie.adds == list(range(200)) for bookie in cluster.bookies.values())
        assert writer.outstanding_bytes == 0


@virtual_time
async def test_an_ensemble_larger_than_the_write_quorum_is_striped() -> None:
    async with ModelCluster(5) as cluster:
        writer = await cluster.client().create(ensemble_size=5, write_quorum=3, ack_quorum=2)
        await write(writer, 20)
        await cluster.settle()
        names = writer.metadata.last_ensemble.bookies
        for entry_id in range(20):
            holders = {i for i, b in enumerate(cluster.holding(names)) if entry_id in b.ledgers[0].entries}
            assert holders == {(entry_id + i) % 5 for i in range(3)}


@pytest.mark.parametrize("seed", range(8))
@virtual_time
async def test_a_bookie_lost_in_the_middle_of_pipelined_adds_is_replaced(seed: int) -> None:
    async with ModelCluster(4, seed=seed) as cluster:
        writer = await cluster.client().create()
        first = writer.metadata.last_ensemble.bookies
        futures = [writer.add(payload(i)) for i in range(50)]
        await futures[7]
        cluster.bookies[first[seed % 3]].kill()
        futures += [writer.add(payload(i)) for i in range(50, 100)]
        assert await asyncio.gather(*futures) == list(range(100))
        ensembles = writer.metadata.ensembles
        assert writer.metadata == (await cluster.ledgers.read(writer.ledger_id)).value
        assert first[seed % 3] not in ensembles[-1].bookies
        await writer.close()
        assert await contents(cluster, writer.ledger_id) == [payload(i) for i in range(100)]
        await cluster.settle()
        spare = next(iter(set(ensembles[-1].bookies) - set(first)))
        # The new bookie got every entry of the new fragment, in entry order.
        assert cluster.bookies[spare].adds == list(range(ensembles[-1].first_entry, 100))


@pytest.mark.parametrize(
    "status", [Status.EREADONLY, Status.EIO, Status.ETOOMANYREQUESTS, Status.ENOLEDGER, Status.EUNKNOWNLEDGERSTATE]
)
@virtual_time
async def test_a_bookie_that_refuses_adds_is_replaced(status: Status) -> None:
    async with ModelCluster(4) as cluster:
        writer = await cluster.client().create()
        await write(writer, 3)
        bad = writer.metadata.last_ensemble.bookies[1]
        cluster.bookies[bad].refuse_adds = status
        await write(writer, 10)
        await write(writer, 10)
        assert bad not in writer.metadata.last_ensemble.bookies
        await writer.close()
        assert len(await contents(cluster, writer.ledger_id)) == 23


@virtual_time
async def test_a_hanging_bookie_is_replaced_after_the_add_timeout_and_holds_up_nothing_before() -> None:
    async with ModelCluster(4) as cluster:
        writer = await cluster.client().create()
        await write(writer, 1)
        bad = writer.metadata.last_ensemble.bookies[0]
        cluster.bookies[bad].silent = True
        began = cluster.loop.time()
        await write(writer, 20)
        assert cluster.loop.time() - began < 0.2  # the ack quorum is the others
        await cluster.settle(3)
        await write(writer, 1)  # the failed entry was acknowledged: the change comes with the next add
        await write(writer, 1)
        assert bad not in writer.metadata.last_ensemble.bookies


@virtual_time
async def test_a_slow_bookie_delays_nobody_and_is_kept() -> None:
    async with ModelCluster(4) as cluster:
        writer = await cluster.client().create()
        await write(writer, 1)
        slow = writer.metadata.last_ensemble.bookies[2]
        cluster.bookies[slow].delay_s = 0.5
        began = cluster.loop.time()
        await write(writer, 50)
        assert cluster.loop.time() - began < 0.3
        await cluster.settle()
        await write(writer, 1)
        assert len(writer.metadata.ensembles) == 1
        assert slow in writer.metadata.last_ensemble.bookies


@virtual_time
async def test_an_acknowledgement_waits_for_the_ack_quorum() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        a, b, _ = cluster.holding(writer.metadata.last_ensemble.bookies)
        a.delay_s = b.delay_s = 0.4
        began = cluster.loop.time()
        await write(writer, 1)
        assert cluster.loop.time() - began >= 0.4


@virtual_time
async def test_three_bookies_of_which_one_dies_go_on_as_two_and_take_it_back() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        await write(writer, 5)
        name = writer.metadata.last_ensemble.bookies[1]
        bookie = cluster.bookies[name]
        bookie.kill()
        await write(writer, 20)
        assert writer.machine.vacant == {1}
        assert len(writer.metadata.ensembles) == 1
        bookie.down = False  # a restart
        for _ in range(30):
            await write(writer, 1)
            await cluster.settle(0.2)
            futures = [writer.add(b"x") for _ in range(3)]
            await cluster.settle(0.2)
            await asyncio.gather(*futures)
            if not writer.machine.vacant:
                break
            cluster.bookies[writer.metadata.last_ensemble.bookies[0]].delay_s = 0.3  # keep something pending
            cluster.bookies[writer.metadata.last_ensemble.bookies[2]].delay_s = 0.3
        assert not writer.machine.vacant
        await write(writer, 5)
        assert writer.last_add_confirmed in bookie.ledgers[writer.ledger_id].entries
        await writer.close()


@virtual_time
async def test_too_few_bookies_fail_pending_adds_as_unknown_and_the_writer_can_still_close_at_its_lac() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        await write(writer, 5)
        for bookie in cluster.holding(writer.metadata.last_ensemble.bookies[:2]):
            bookie.kill()
        results = await asyncio.gather(*(writer.add(b"x") for _ in range(4)), return_exceptions=True)
        assert all(isinstance(r, QuorumWriteError) for r in results)
        assert isinstance(results[0], OutcomeUnknownError)
        with pytest.raises(QuorumWriteError):
            writer.add(b"y")
        assert (await writer.close()).last_entry == 4


@virtual_time
async def test_creating_on_too_few_bookies_says_how_many_there_are() -> None:
    async with ModelCluster(2) as cluster:
        with pytest.raises(NotEnoughBookiesError, match="needs 3 writable storage nodes and 2 are registered"):
            await cluster.client().create()
        assert [i async for i in cluster.ledgers.ids()] == []


@virtual_time
async def test_quorums_and_payloads_that_cannot_be_are_refused_before_anything_is_sent() -> None:
    async with ModelCluster() as cluster:
        client = cluster.client()
        with pytest.raises(CallerError, match="ack quorum"):
            await client.create(ensemble_size=3, write_quorum=2, ack_quorum=3)
        writer = await client.create()
        with pytest.raises(EntryTooLargeError, match="nothing was sent"):
            writer.add(bytes(5 * 1024 * 1024))
        for odd in (memoryview(b"12345678").cast("I"), memoryview(b"12345678")[::2], "text", None):
            with pytest.raises(CallerError, match="payload must be bytes"):
                writer.add(odd)  # type: ignore[arg-type]
        assert writer.last_add_pushed == -1
        largest = bytes(writer._max_payload)
        await writer.add(largest)
        await writer.close()


@virtual_time
async def test_the_id_is_announced_before_the_ledger_exists() -> None:
    async with ModelCluster() as cluster:
        seen: list[tuple[int, list[int]]] = []

        async def before(ledger_id: int) -> None:
            seen.append((ledger_id, [i async for i in cluster.ledgers.ids()]))

        writer = await cluster.client().create(before_create=before)
        assert seen == [(writer.ledger_id, [])]


@virtual_time
async def test_a_second_client_fences_a_writer_with_adds_pending_and_both_agree_on_the_end() -> None:
    for seed in range(10):
        async with ModelCluster(4, seed=seed, jitter_s=0.02) as cluster:
            writer = await cluster.client().create()
            futures = [writer.add(payload(i)) for i in range(40)]
            await asyncio.sleep(0.001 * seed)
            reader = await cluster.client().open(writer.ledger_id, recover=True)
            for i in range(40, 60):
                try:
                    futures.append(writer.add(payload(i)))
                except LedgerFencedError:
                    break
            results = await asyncio.gather(*futures, return_exceptions=True)
            acknowledged = [r for r in results if isinstance(r, int)]
            assert acknowledged == list(range(len(acknowledged)))
            assert all(isinstance(r, LedgerFencedError) for r in results[len(acknowledged) :])
            assert len(results) > len(acknowledged)
            assert reader.closed
            assert reader.last_add_confirmed >= len(acknowledged) - 1
            entries = await reader.read(0, reader.last_add_confirmed) if reader.last_add_confirmed >= 0 else []
            assert [bytes(e.payload) for e in entries] == [payload(i) for i in range(len(entries))]
            assert reader.length == sum(len(e.payload) for e in entries)
            with pytest.raises(LedgerFencedError):
                await writer.close()


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
@virtual_time
async def test_an_ensemble_change_whose_answer_is_lost_is_resolved_by_looking(fault: Fault) -> None:
    async with ModelCluster(4) as cluster:
        writer = await cluster.client().create()
        await write(writer, 5)
        path = cluster.ledgers.path(writer.ledger_id)
        faults = [fault]

        def inject(_session: int, name: str, where: str) -> Fault | None:
            return faults.pop() if faults and name == "put" and where == path else None

        cluster.tree.inject = inject
        cluster.bookies[writer.metadata.last_ensemble.bookies[0]].kill()
        await write(writer, 20)
        assert not faults
        assert writer.metadata.ensembles == (await cluster.ledgers.read(writer.ledger_id)).value.ensembles
        assert len(writer.metadata.ensembles) == 2
        faults.append(fault)
        assert (await writer.close()).last_entry == 24
        assert not faults


@virtual_time
async def test_a_ledger_closed_by_somebody_else_fails_the_close_unless_the_end_is_the_same() -> None:
    async with ModelCluster() as cluster:
        writer = await cluster.client().create()
        await write(writer, 3)
        await cluster.settle()
        await cluster.client().open(writer.ledger_id, recover=True)
        assert (await writer.close()).last_entry == 2  # the recoverer found the same end


@virtual_time
async def test_wait_for_room_holds_the_caller_back_until_acknowledgements_come() -> None:
    async with ModelCluster(3) as cluster:
        client = cluster.client(replace(FAST, max_outstanding_bytes=10_000))
        writer = await client.create()
        for bookie in cluster.bookies.values():
            bookie.delay_s = 0.2
        highest = 0
        for _ in range(40):
            await writer.wait_for_room()
            writer.add(bytes(1000))
            highest = max(highest, writer.outstanding_bytes)
        assert highest == 11_000
        assert (await writer.close()).last_entry == 39


@virtual_time
async def test_an_abandoned_writer_ends_its_adds_and_leaves_the_ledger_to_a_recovery() -> None:
    async with ModelCluster() as cluster:
        writer = await cluster.client().create()
        await write(writer, 3)
        for bookie in cluster.bookies.values():
            bookie.mute = True
        future = writer.add(b"lost?")
        await writer.abandon()
        with pytest.raises(QuorumWriteError, match="abandoned"):
            await future
        with pytest.raises(QuorumWriteError):
            writer.add(b"no more")
        for bookie in cluster.bookies.values():
            bookie.mute = False
        assert len(await contents(cluster, writer.ledger_id)) in (3, 4)


@virtual_time
async def test_a_closed_writer_takes_no_adds_and_a_closed_client_does_nothing() -> None:
    async with ModelCluster() as cluster:
        client = cluster.client()
        writer = await client.create()
        await writer.close()
        with pytest.raises(LedgerClosedError):
            writer.add(b"late")
        await client.close()
        with pytest.raises(LedgerClosedError):
            await client.create()
        await client.close()


@virtual_time
async def test_deleting_is_idempotent() -> None:
    async with ModelCluster() as cluster:
        client = cluster.client()
        writer = await client.create()
        await writer.close()
        await client.delete(writer.ledger_id)
        await client.delete(writer.ledger_id)
        assert [i async for i in cluster.ledgers.ids()] == []


@virtual_time
async def test_a_change_while_the_metadata_store_is_away_freezes_and_then_goes_on() -> None:
    async with ModelCluster(4) as cluster:
        writer = await cluster.client().create()
        await write(writer, 5)
        cluster.tree.stall()
        cluster.bookies[writer.metadata.last_ensemble.bookies[0]].kill()
        futures = [writer.add(payload(i)) for i in range(5, 15)]
        await cluster.settle(1)
        cluster.tree.resume()
        assert await asyncio.gather(*futures) == list(range(5, 15))
        assert MemoryStore is type(cluster.store)


@virtual_time
async def test_a_background_failure_that_nobody_foresaw_ends_the_writer_instead_of_hanging_it() -> None:
    class Broken(UniformPlacement):
        def __init__(self) -> None:
            pass

        async def new_ensemble(self, size: int, write_quorum: int, ack_quorum: int) -> tuple[str, ...]:
            return tuple(sorted(cluster.bookies))[:size]

        async def replacements(self, wanted: PickReplacements) -> dict[int, str]:
            raise ZeroDivisionError("a bug")

    async with ModelCluster(4) as cluster:
        client = LedgerClient(cluster.ledgers, cluster.registry, settings=FAST, network=cluster, placement=Broken())
        cluster.clients.append(client)
        writer = await client.create()
        await write(writer, 2)
        cluster.bookies[writer.metadata.last_ensemble.bookies[0]].kill()
        with pytest.raises(InvariantViolation, match="a bug"):
            await asyncio.gather(*(writer.add(b"x") for _ in range(3)))


@virtual_time
async def test_an_answer_in_another_field_order_acknowledges_as_well() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        for bookie in cluster.bookies.values():
            bookie.odd_encoding = True
        assert await write(writer, 300) == list(range(300))
        await writer.close()


@virtual_time
async def test_whatever_a_network_raises_the_requests_end_and_the_next_ones_connect_again() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        faults = 3
        connect = cluster.connect

        async def faulty(host: str, port: int, handler: FrameHandler, *, timeout_ms: int) -> ModelLink:
            nonlocal faults
            faults -= 1
            if faults >= 0:
                raise RuntimeError("a network of another kind")
            return await connect(host, port, handler, timeout_ms=timeout_ms)

        cluster.connect = faulty  # type: ignore[method-assign]
        with pytest.raises(QuorumWriteError):
            await writer.add(b"x")
        again = await cluster.client().create()
        assert await again.add(b"y") == 0
        await again.close()


@virtual_time
async def test_a_client_counts_its_requests_that_of_an_entry_to_all_its_copies_once() -> None:
    async with ModelCluster(3) as cluster:
        client = cluster.client()
        assert client.requests == 0
        writer = await client.create()
        before = client.requests
        for _ in range(5):
            await writer.add(b"entry")
        assert [client.requests - before for _ in range(3)] == [5, 5, 5], "looking is no request"
        reader = await client.open(writer.ledger_id, recover=False)
        before = client.requests
        await reader.read_unconfirmed(0, 4)
        assert client.requests - before == 1, "read as one batch"
