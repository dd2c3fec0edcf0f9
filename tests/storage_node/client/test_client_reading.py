"""Readers over a simulated network: replicas, the LAC, long polls, the close, readers without metadata."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import replace

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.model_cluster import FAST, ModelCluster

from metadata.bookkeeper.ledger_metadata import DigestType, Ensemble
from metadata.foundation.errors import CallerError, CorruptDataError, DistributedLogError, NoNodeError
from storage_node.client.entering import ClientSecurity, LinkProof
from storage_node.client.reader import ReplicaReader
from storage_node.client.writer import LedgerWriter
from storage_node.edge import FrameHandler, Link, Network
from storage_node.errors import (
    REFUSED_ADVICE,
    BookieUnreachableError,
    DigestError,
    LedgerClosedError,
    NoSuchLedgerError,
    RequestTimeoutError,
    SecureConnectionError,
    certificate_refused,
)
from storage_node.protocol.digests import EntryDigest
from storage_node.protocol.values import ReadRequest
from storage_node.settings.client import ClientSettings


def payload(entry_id: int) -> bytes:
    return b"entry %06d " % entry_id * 3


async def write(writer: LedgerWriter, count: int) -> list[int]:
    return [await writer.add(payload(writer.last_add_pushed + 1)) for _ in range(count)]


async def written(cluster: ModelCluster, count: int, *, close: bool = True) -> LedgerWriter:
    writer = await cluster.client().create()
    await write(writer, count)
    if close:
        await writer.close()
    await cluster.settle()
    return writer


# ---------------------------------------------------------------------------------------- replicas


@pytest.mark.parametrize("fault", ["down", "silent", "corrupt", "wiped"])
@virtual_time
async def test_a_read_falls_over_to_other_replicas(fault: str) -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 30)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        for bookie in cluster.holding(writer.metadata.last_ensemble.bookies[:2]):
            if fault == "down":
                bookie.kill()
            elif fault == "wiped":
                bookie.ledgers.clear()
            else:
                setattr(bookie, fault, True)
        entries = await reader.read(0, 29)
        assert [bytes(e.payload) for e in entries] == [payload(i) for i in range(30)]


@virtual_time
async def test_a_silent_replica_is_speculated_around_and_sinks_in_the_order() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 30)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        bad = cluster.bookies[writer.metadata.last_ensemble.bookies[0]]
        bad.silent = True
        began = cluster.loop.time()
        await reader.read(0, 0)
        took = cluster.loop.time() - began
        assert 0.3 <= took < 0.5  # after the speculative delay, well before the read timeout
        began = cluster.loop.time()
        await reader.read(3, 29)  # a third of them begin at that bookie
        assert cluster.loop.time() - began < 0.2


@virtual_time
async def test_all_replicas_failed_names_the_entry_and_the_most_telling_error() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 3)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        a, b, c = cluster.holding(writer.metadata.last_ensemble.bookies)
        a.kill()
        b.corrupt = True
        c.ledgers.clear()
        with pytest.raises(DigestError, match="none of 3 replicas") as caught:
            await reader.read(1, 1)
        assert isinstance(caught.value, CorruptDataError)
        assert (caught.value.ledger_id, caught.value.entry_id, caught.value.node) == (writer.ledger_id, 1, b.name)
        b.ledgers.clear()
        b.corrupt = False
        with pytest.raises(BookieUnreachableError):
            await reader.read(1, 1)
        a.down = False
        a.ledgers.clear()
        with pytest.raises(NoSuchLedgerError):
            await reader.read(1, 1)


@virtual_time
async def test_a_restarted_bookie_is_connected_again_on_demand() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 9)
        client = cluster.client()
        reader = await client.open(writer.ledger_id, recover=False)
        await reader.read(0, 8)
        for bookie in cluster.bookies.values():
            bookie.kill()
        with pytest.raises(BookieUnreachableError):
            await reader.read(0, 0)
        for bookie in cluster.bookies.values():
            bookie.down = False
        assert len(await reader.read(0, 8)) == 9


@virtual_time
async def test_entries_are_prefetched_within_the_window_and_come_in_order() -> None:
    async with ModelCluster(3, jitter_s=0.02) as cluster:
        writer = await written(cluster, 60)
        reader = await cluster.client(replace(FAST, batch_reads=False)).open(writer.ledger_id, recover=False)
        for bookie in cluster.bookies.values():
            bookie.requests.clear()
        seen = []
        async for entry in reader.entries(0, 59, window_entries=8):
            seen.append(entry.entry_id)
            asked = sum(isinstance(r, ReadRequest) for b in cluster.bookies.values() for r in b.requests)
            assert asked <= len(seen) + 8
        assert seen == list(range(60))


@virtual_time
async def test_large_entries_of_a_closed_ledger_are_asked_for_one_by_one_from_the_first_on() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        for _ in range(40):
            await writer.add(bytes(100_000))
        await writer.close()
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        entries = reader.entries(0, 39, window_bytes=2_000_000)
        await entries.__anext__()
        asked = [r for b in cluster.bookies.values() for r in b.requests if isinstance(r, ReadRequest)]
        assert not any(bookie.batch_reads for bookie in cluster.bookies.values())
        assert len(asked) == 20, "as many as the window holds"
        assert 1 + len([entry async for entry in entries]) == 40


@virtual_time
async def test_a_window_of_few_bytes_still_makes_progress_and_a_reader_may_stop_early() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 20)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        seen = [e.entry_id async for e in reader.entries(0, 19, window_bytes=1)]
        assert seen == list(range(20))
        entries = reader.entries(0, 19)
        assert (await entries.__anext__()).entry_id == 0
        await entries.aclose()


# ---------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize(("first", "last"), [(-1, 2), (3, 2), (0, 10), (11, 12)])
@virtual_time
async def test_ranges_beyond_what_is_committed_are_refused(first: int, last: int) -> None:
    async with ModelCluster() as cluster:
        writer = await written(cluster, 10)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        with pytest.raises(CallerError, match="readable are 0 to 9"):
            await reader.read(first, last)


@virtual_time
async def test_an_open_ledger_is_read_up_to_the_lac_and_no_further_i6() -> None:
    async with ModelCluster() as cluster:
        writer = await written(cluster, 10, close=False)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        assert not reader.closed
        assert reader.last_add_confirmed == 8  # the last entry's LAC travels with the next one
        assert len(await reader.read(0, 8)) == 9
        with pytest.raises(CallerError):
            await reader.read(9, 9)


@virtual_time
async def test_entries_behind_a_closed_end_are_never_seen_i17() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 5)
        digest = EntryDigest(DigestType.CRC32, b"")
        for bookie in cluster.bookies.values():
            ledger = bookie.ledgers[writer.ledger_id]
            ledger.entries[5] = digest.package(writer.ledger_id, 5, 4, 0, b"tail") + b"tail"
            ledger.lac = 7
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        await reader.read(0, 4)
        assert reader.last_add_confirmed == 4
        assert await reader.poll(5, 1000) is None
        with pytest.raises(CallerError):
            await reader.read(5, 5)


# ---------------------------------------------------------------------------------------- the LAC


@virtual_time
async def test_the_lac_follows_the_writer_and_never_goes_back() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 5, close=False)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        assert reader.last_add_confirmed == 3
        await write(writer, 5)
        await cluster.settle()
        assert await reader.read_last_confirmed() == 8
        for bookie in cluster.bookies.values():
            bookie.ledgers[writer.ledger_id].entries = {}
        assert await reader.read_last_confirmed() == 8


@virtual_time
async def test_an_explicit_lac_is_heard() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 5, close=False)
        packet = EntryDigest(DigestType.CRC32, b"").package_lac(writer.ledger_id, 4)
        for bookie in cluster.bookies.values():
            bookie.ledgers[writer.ledger_id].explicit_lac = packet
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        assert reader.last_add_confirmed == 4


@virtual_time
async def test_a_lac_read_needs_answers_that_cover_every_write_set() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 5, close=False)
        a, b, _ = cluster.holding(writer.metadata.last_ensemble.bookies)
        a.silent = True
        reader = await cluster.client().open(writer.ledger_id, recover=False)  # two of three cover
        b.corrupt = True
        with pytest.raises((RequestTimeoutError, DigestError), match="too few storage nodes"):
            await reader.read_last_confirmed()


def refusing(monkeypatch: pytest.MonkeyPatch, refused: set[str], *, advice: str | None) -> None:
    """Have these nodes refuse the certificates of all connections that are made from now on."""
    connected = ClientSecurity.connect

    async def connect(
        security: ClientSecurity,
        network: Network,
        host: str,
        port: int,
        handler: FrameHandler,
        *,
        timeout_ms: int,
        node: str,
    ) -> tuple[Link, LinkProof]:
        if node in refused:
            error = SecureConnectionError("the peer refuses this side's certificate", advice=advice, node=node)
            error.refused = True
            raise error
        return await connected(security, network, host, port, handler, timeout_ms=timeout_ms, node=node)

    monkeypatch.setattr(ClientSecurity, "connect", connect)


@pytest.mark.parametrize("others", ["down", "refusing"])
@virtual_time
async def test_a_lac_that_one_node_gives_and_others_refuse_is_not_said_to_be_refused_for_good(
    monkeypatch: pytest.MonkeyPatch, others: str
) -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 5, close=False)
        bookies = writer.metadata.last_ensemble.bookies
        if others == "down":
            cluster.bookies[bookies[1]].kill()
        refusing(monkeypatch, set(bookies[2:] if others == "down" else bookies[1:]), advice=None)
        with pytest.raises(BookieUnreachableError, match="too few storage nodes") as caught:
            await cluster.client().open(writer.ledger_id, recover=False)
        assert not certificate_refused(caught.value)
        assert (caught.value.advice == REFUSED_ADVICE) == (others == "refusing")


@pytest.mark.parametrize("advice", [None, "Look here"])
@virtual_time
async def test_a_lac_that_every_node_refuses_says_so_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, advice: str | None
) -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 5, close=False)
        refusing(monkeypatch, set(writer.metadata.last_ensemble.bookies), advice=advice)
        with pytest.raises(SecureConnectionError, match="refuses this side's certificate") as caught:
            await cluster.client().open(writer.ledger_id, recover=False)
        assert certificate_refused(caught.value)
        assert caught.value.advice == (advice or REFUSED_ADVICE)


@virtual_time
async def test_the_lac_of_an_empty_last_fragment_is_at_least_what_lies_before_it() -> None:
    async with ModelCluster(6) as cluster:
        writer = await written(cluster, 5, close=False)
        current = await cluster.ledgers.read(writer.ledger_id)
        fresh = tuple(sorted(set(cluster.bookies) - set(current.value.last_ensemble.bookies)))
        await cluster.ledgers.write(writer.ledger_id, current.value.with_ensemble(5, fresh), current.version)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        assert reader.last_add_confirmed == 4


# ---------------------------------------------------------------------------------------- the tail


@virtual_time
async def test_a_poll_returns_the_entry_as_soon_as_it_is_committed() -> None:
    async with ModelCluster(4, jitter_s=0.001) as cluster:
        writer = await written(cluster, 1, close=False)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        polling = asyncio.ensure_future(reader.poll(0, 10_000))
        await cluster.settle(2.0)
        assert not polling.done()  # entry 0 is stored, and nobody knows yet that it is committed
        began = cluster.loop.time()
        await write(writer, 1)
        entry = await polling
        assert entry is not None
        assert bytes(entry.payload) == payload(0)
        assert cluster.loop.time() - began < 0.05
        assert reader.last_add_confirmed == 0


@virtual_time
async def test_a_tail_follows_a_writer_across_ensemble_changes_to_the_close() -> None:
    async with ModelCluster(5) as cluster:
        writer = await cluster.client().create()
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        assert reader.last_add_confirmed == -1

        async def produce() -> None:
            for i in range(60):
                await writer.add(payload(i))
                await asyncio.sleep(0.01)
                if i in (20, 40):
                    cluster.bookies[writer.metadata.last_ensemble.bookies[i // 20 - 1]].kill()
            await writer.close()

        producing = asyncio.ensure_future(produce())
        seen: list[bytes] = []
        while not (reader.closed and len(seen) > reader.last_add_confirmed):
            entry = await reader.poll(len(seen), 1_000)
            if entry is not None:
                seen.append(bytes(entry.payload))
        await producing
        assert seen == [payload(i) for i in range(60)]
        assert await reader.poll(60, 1_000) is None


@virtual_time
async def test_a_poll_without_news_ends_after_its_time() -> None:
    async with ModelCluster() as cluster:
        writer = await written(cluster, 3, close=False)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        for timeout_ms in (0, 50, 3_000):
            began = cluster.loop.time()
            assert await reader.poll(3, timeout_ms) is None
            assert timeout_ms / 1000 - 0.01 <= cluster.loop.time() - began <= timeout_ms / 1000 + 0.1
        polls = [r for b in cluster.bookies.values() for r in b.requests if isinstance(r, ReadRequest) and r.piggyback]
        assert all(r.timeout_ms is not None and r.timeout_ms < FAST.read_entry_timeout_ms for r in polls)


@virtual_time
async def test_a_poll_of_a_ledger_that_no_bookie_knows_does_not_spin() -> None:
    async with ModelCluster() as cluster:
        writer = await cluster.client().create()
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        assert await reader.poll(0, 5_000) is None
        assert sum(len(b.requests) for b in cluster.bookies.values()) < 150


@virtual_time
async def test_a_close_ends_a_poll_at_once_and_delivers_the_last_entry() -> None:
    async with ModelCluster() as cluster:
        writer = await written(cluster, 3, close=False)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        assert reader.last_add_confirmed == 1
        last = asyncio.ensure_future(reader.poll(2, 60_000))
        beyond = asyncio.ensure_future(reader.poll(3, 60_000))
        await cluster.settle(0.5)
        began = cluster.loop.time()
        await writer.close()
        entry = await last
        assert entry is not None
        assert bytes(entry.payload) == payload(2)
        assert await beyond is None
        assert cluster.loop.time() - began < 0.2
        assert reader.on_closed.is_set()
        assert (reader.closed, reader.length) == (True, 117)


@virtual_time
async def test_a_poll_goes_round_hanging_and_lost_bookies() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 3, close=False)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        a, b, c = cluster.holding(writer.metadata.last_ensemble.bookies)
        a.kill()
        b.silent = True
        c.ledgers[writer.ledger_id].lac = 2
        entry = await reader.poll(2, 5_000)
        assert entry is not None
        assert entry.entry_id == 2


@virtual_time
async def test_a_poll_that_nobody_answers_raises_in_the_end() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 3, close=False)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        for bookie in cluster.bookies.values():
            bookie.kill()
        with pytest.raises(BookieUnreachableError):
            await reader.poll(3, 2_000)


@virtual_time
async def test_a_deleted_ledger_ends_its_readers() -> None:
    async with ModelCluster() as cluster:
        writer = await written(cluster, 3, close=False)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        polling = asyncio.ensure_future(reader.poll(3, 60_000))
        await cluster.settle(0.1)
        await cluster.client().delete(writer.ledger_id)
        with pytest.raises(NoNodeError):
            await polling


@virtual_time
async def test_the_watch_outlives_an_expired_session() -> None:
    async with ModelCluster() as cluster:
        writer = await written(cluster, 3, close=False)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        cluster.tree.expire(cluster.store.session_id)
        await cluster.settle(1)
        await writer.close()
        await asyncio.wait_for(reader.on_closed.wait(), 10)
        assert reader.last_add_confirmed == 2


@virtual_time
async def test_a_closed_reader_ends_its_waiters_and_refuses() -> None:
    async with ModelCluster() as cluster:
        writer = await written(cluster, 3, close=False)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        polling = asyncio.ensure_future(reader.poll(3, 60_000))
        await cluster.settle(0.1)
        await reader.close()
        with pytest.raises(LedgerClosedError):
            await polling
        with pytest.raises(LedgerClosedError):
            await reader.read(0, 0)


# ---------------------------------------------------------------------------------------- without metadata


@virtual_time
async def test_a_pickled_location_is_enough_to_read_without_metadata() -> None:
    async with ModelCluster(4) as cluster:
        client = cluster.client()
        writer = await client.create(password=b"secret", digest_type=DigestType.HMAC)
        await write(writer, 10)
        cluster.bookies[writer.metadata.last_ensemble.bookies[0]].kill()
        await write(writer, 10)
        await writer.close()
        location = pickle.loads(pickle.dumps(await client.locate(writer.ledger_id)))
        assert len(location.metadata.ensembles) == 2
        replica_reader = ReplicaReader(settings=FAST, network=cluster)
        try:
            entries = [e async for e in replica_reader.entries(location, 0, 19)]
            assert [bytes(e.payload) for e in entries] == [payload(i) for i in range(20)]
            with pytest.raises(CallerError):
                await replica_reader.entries(location, 0, 20).__anext__()
        finally:
            await replica_reader.close()


@virtual_time
async def test_a_reader_gives_its_location_too() -> None:
    async with ModelCluster() as cluster:
        writer = await written(cluster, 3)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        location = await reader.location()
        assert set(location.addresses) == set(writer.metadata.last_ensemble.bookies)


def test_a_long_poll_that_could_only_time_out_is_refused() -> None:
    with pytest.raises(CallerError, match="long_poll_ms"):
        ClientSettings(long_poll_ms=5_000)
    with pytest.raises(CallerError, match="addEntryTimeoutSec=0 is outside"):
        ClientSettings(add_entry_timeout_ms=0)


@virtual_time
async def test_entries_that_moved_to_bookies_the_reader_has_not_heard_of_are_found_there() -> None:
    async with ModelCluster(6) as cluster:
        writer = await written(cluster, 5)
        reader = await cluster.client().open(writer.ledger_id, recover=False)
        old = writer.metadata.last_ensemble.bookies
        new = tuple(sorted(set(cluster.bookies) - set(old)))
        for source, target in zip(cluster.holding(old), cluster.holding(new), strict=True):
            target.ledgers = source.ledgers  # what re-replication does
            source.ledgers = {}
        current = await cluster.ledgers.read(writer.ledger_id)
        moved = replace(current.value, ensembles=(Ensemble(0, new),))
        await cluster.ledgers.write(writer.ledger_id, moved, current.version)
        assert len(await reader.read(0, 4)) == 5
        for bookie in cluster.holding(new):
            bookie.ledgers = {}
        with pytest.raises(NoSuchLedgerError, match="none of 3 replicas"):
            await reader.read(0, 4)


@virtual_time
async def test_a_client_closed_under_its_users_ends_them_with_errors_and_leaves_no_timer() -> None:
    async with ModelCluster(3) as cluster:
        client = cluster.client()
        writer = await client.create()
        await write(writer, 3)
        reader = await client.open(writer.ledger_id, recover=False)
        for bookie in cluster.bookies.values():
            bookie.silent = True
        adding = writer.add(b"x")
        reading = asyncio.ensure_future(reader.read(0, 1))
        recovering = asyncio.ensure_future(client.open(writer.ledger_id, recover=True))
        await cluster.settle(0.1)
        await client.close()
        results = await asyncio.gather(adding, reading, recovering, return_exceptions=True)
        assert all(isinstance(r, DistributedLogError) for r in results), results
        assert client._context is not None
        assert client._context.pool.sweeper._timer is None
