"""Which replica is asked, when another one beside, and how batches of entries are read; over a simulated network."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.model_cluster import FAST, ModelBookie, ModelCluster

from metadata.bookkeeper.bookies import BookieAddress
from metadata.foundation.errors import CallerError
from storage_node.client.health import FAILED, GOOD, LAGGING, READ_ONLY, SLOW, BookieHealth
from storage_node.client.reader import LedgerReader, ReplicaReader
from storage_node.client.writer import LedgerWriter
from storage_node.errors import (
    LedgerRecoveryError,
    NoSuchEntryError,
    RequestTimeoutError,
)
from storage_node.protocol.digests import ENTRY_IDS, EntryDigest
from storage_node.protocol.values import ReadRequest
from storage_node.settings.client import ClientSettings

SINGLE = replace(FAST, batch_reads=False)


def payload(entry_id: int) -> bytes:
    return b"entry %06d " % entry_id * 3


async def written(cluster: ModelCluster, count: int, *, close: bool = True, **sizes: int) -> LedgerWriter:
    writer = await cluster.client().create(**sizes)
    for entry_id in range(count):
        await writer.add(payload(entry_id))
    if close:
        await writer.close()
    await cluster.settle()
    return writer


async def opened(cluster: ModelCluster, writer: LedgerWriter, settings: ClientSettings = FAST) -> LedgerReader:
    reader = await cluster.client(settings).open(writer.ledger_id, recover=False)
    await cluster.settle()
    for bookie in cluster.bookies.values():
        bookie.requests.clear()
    return reader


def reads(bookie: ModelBookie) -> list[int]:
    return [r.entry_id for r in bookie.requests if isinstance(r, ReadRequest) and r.entry_id >= 0]


# ---------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize("window", [4, 7, 32, 128])
@virtual_time
async def test_small_entries_come_in_batches_from_all_bookies_in_turn(window: int) -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 300)
        reader = await opened(cluster, writer)
        entries = [e async for e in reader.entries(0, 299, window_entries=window)]
        assert [bytes(e.payload) for e in entries] == [payload(i) for i in range(300)]
        assert all(b.batch_reads for b in cluster.bookies.values())
        assert all(r.max_count <= max(window // 2, 2) for b in cluster.bookies.values() for r in b.batch_reads)
        assert sum(len(reads(b)) for b in cluster.bookies.values()) < 20


@virtual_time
async def test_a_bookie_that_gives_more_than_was_asked_for_is_cut_to_the_range_trap_31() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 40, close=False)
        for bookie in cluster.bookies.values():
            bookie.batch_excess = 50
        reader = await opened(cluster, writer)
        assert reader.last_add_confirmed == 38
        assert [e.entry_id for e in await reader.read(5, 30)] == list(range(5, 31))
        with pytest.raises(CallerError):
            await reader.read(5, 39)


@virtual_time
async def test_a_batch_never_reaches_over_the_end_of_a_fragment() -> None:
    async with ModelCluster(5) as cluster:
        writer = await cluster.client().create()
        for entry_id in range(40):
            await writer.add(payload(entry_id))
            if entry_id == 19:
                cluster.bookies[writer.metadata.last_ensemble.bookies[0]].kill()
        await writer.close()
        (_, second) = writer.metadata.ensembles
        old = set(writer.metadata.ensembles[0].bookies) - set(second.bookies)
        stale = EntryDigest(writer.metadata.digest_type, b"")  # type: ignore[arg-type]
        for name in old:  # a stale tail, wrong and with a good digest, on the bookie that was replaced
            bookie = cluster.bookies[name]
            bookie.down = False
            for entry_id in range(second.first_entry, 40):
                head = stale.package(writer.ledger_id, entry_id, 1, 1, b"stale")
                bookie.ledgers[writer.ledger_id].entries[entry_id] = head + b"stale"
        reader = await opened(cluster, writer)
        assert [bytes(e.payload) for e in await reader.read(0, 39)] == [payload(i) for i in range(40)]
        for name in old:
            assert all(r.entry_id + r.max_count <= second.first_entry for r in cluster.bookies[name].batch_reads)


@pytest.mark.parametrize("fault", ["corrupt", "wiped", "holes", "silent", "down"])
@virtual_time
async def test_what_a_batch_lacks_comes_from_other_replicas(fault: str) -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 200)
        reader = await opened(cluster, writer)
        bad = cluster.bookies[writer.metadata.last_ensemble.bookies[0]]
        if fault == "wiped":
            bad.ledgers.clear()
        elif fault == "holes":
            kept = bad.ledgers[writer.ledger_id].entries
            bad.ledgers[writer.ledger_id].entries = {e: body for e, body in kept.items() if e % 17}
        elif fault == "down":
            bad.kill()
        else:
            setattr(bad, fault, True)
        entries = await reader.read(0, 199)
        assert [bytes(e.payload) for e in entries] == [payload(i) for i in range(200)]


@virtual_time
async def test_a_bookie_that_drops_the_connection_on_a_batch_is_read_entry_by_entry_for_good() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 100)
        for bookie in cluster.bookies.values():
            bookie.batches = False
        reader = await opened(cluster, writer)
        for _ in range(3):
            assert len(await reader.read(0, 99)) == 100
        context = reader._context
        assert all(context.pool.health.rank(name) == GOOD for name in cluster.bookies)  # nothing is wrong with them
        for bookie in cluster.bookies.values():
            bookie.batches = True  # replaced by a newer one: this client does not try again
        assert len(await reader.read(0, 99)) == 100
        assert not any(b.batch_reads for b in cluster.bookies.values())


@virtual_time
async def test_batches_go_on_after_a_restart_of_bookies_that_served_them() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 100)
        reader = await opened(cluster, writer)
        assert len(await reader.read(0, 99)) == 100
        for bookie in cluster.bookies.values():
            bookie.kill()
            bookie.down = False
            bookie.batch_reads.clear()
        for _ in range(4):
            assert len(await reader.read(0, 99)) == 100
        assert any(b.batch_reads for b in cluster.bookies.values())


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        (SINGLE, {}),
        (FAST, {"ensemble_size": 4, "write_quorum": 3}),
        (replace(FAST, batch_read_max_entry_bytes=10), {}),
    ],
)
@virtual_time
async def test_there_are_no_batches_where_they_are_off_or_entries_are_striped_or_large(
    settings: ClientSettings, sizes: dict[str, int]
) -> None:
    async with ModelCluster(4) as cluster:
        writer = await written(cluster, 60, **sizes)
        reader = await opened(cluster, writer, settings)
        entries = [e async for e in reader.entries(0, 59, window_entries=16)]
        assert [bytes(e.payload) for e in entries] == [payload(i) for i in range(60)]
        batches = sum(len(b.batch_reads) for b in cluster.bookies.values())
        assert batches <= (2 if settings.batch_read_max_entry_bytes == 10 else 0)  # the first ones find out


@virtual_time
async def test_a_reader_that_stops_in_the_middle_of_a_batch_leaves_nothing_open() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 100)
        reader = await opened(cluster, writer)
        entries = reader.entries(0, 99)
        for expected in range(7):
            assert (await entries.__anext__()).entry_id == expected
        await entries.aclose()
        assert [e.entry_id for e in await reader.read(50, 60)] == list(range(50, 61))


# ---------------------------------------------------------------------------------------- order


@virtual_time
async def test_reads_of_equal_bookies_stay_spread_by_the_striping() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 300)
        reader = await opened(cluster, writer, SINGLE)
        await reader.read(0, 299)
        counts = [len(reads(b)) for b in cluster.holding(writer.metadata.last_ensemble.bookies)]
        assert counts == [100, 100, 100]


@virtual_time
async def test_a_bookie_that_answers_much_slower_is_asked_last_and_tried_again_later() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 300)
        reader = await opened(cluster, writer, SINGLE)
        bookies = cluster.holding(writer.metadata.last_ensemble.bookies)
        bookies[1].read_delay_s = 0.1
        await reader.read(0, 299)
        first = len(reads(bookies[1]))
        await reader.read(0, 299)
        assert len(reads(bookies[1])) == first
        assert [len(reads(b)) > 150 for b in bookies] == [True, False, True]
        bookies[1].read_delay_s = 0
        await cluster.settle(15)
        for bookie in bookies:
            bookie.requests.clear()
        await reader.read(0, 299)
        assert [len(reads(b)) for b in bookies] == [100, 100, 100]


@virtual_time
async def test_without_reordering_the_write_set_is_asked_as_it_is() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 90)
        reader = await opened(cluster, writer, replace(SINGLE, reorder_reads=False))
        bookies = cluster.holding(writer.metadata.last_ensemble.bookies)
        bookies[1].read_delay_s = 0.1
        await reader.read(0, 89)
        await reader.read(0, 89)
        assert [len(reads(b)) for b in bookies] == [60, 60, 60]


@virtual_time
async def test_sticky_reads_stay_with_one_bookie_until_it_fails() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 60)
        reader = await opened(cluster, writer, replace(SINGLE, sticky_reads=True))
        await reader.read(0, 59)
        (chosen,) = [b for b in cluster.bookies.values() if reads(b)]
        chosen.kill()
        await reader.read(0, 59)
        others = [len(reads(b)) for b in cluster.bookies.values() if b is not chosen]
        assert sorted(others) == [0, 60]


@virtual_time
async def test_reads_of_a_striped_ledger_cannot_stick_to_one_bookie() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 60, ensemble_size=3, write_quorum=2, ack_quorum=2)
        reader = await opened(cluster, writer, replace(SINGLE, sticky_reads=True))
        await reader.read(0, 59)
        assert [len(reads(b)) for b in cluster.bookies.values()] == [20, 20, 20]


@virtual_time
async def test_read_only_and_unregistered_bookies_are_asked_after_the_others_once_something_failed() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 90)
        reader = await opened(cluster, writer, SINGLE)
        names = writer.metadata.last_ensemble.bookies
        await cluster.registry.register(BookieAddress(names[0], names[0], 3181), readonly=True)
        await reader.read(0, 89)
        assert [len(reads(b)) for b in cluster.holding(names)] == [30, 30, 30]  # all is well: nothing was looked up
        cluster.bookies[names[1]].kill()
        await reader.read(1, 1)
        await cluster.settle(1)
        for bookie in cluster.holding(names):
            bookie.requests.clear()
        await reader.read(0, 89)
        assert [len(reads(b)) for b in cluster.holding(names)] == [0, 0, 90]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now


def test_ranks_are_good_lagging_read_only_slow_failed() -> None:
    health = BookieHealth(Clock(), 60_000)
    for _ in range(40):
        health.answered("good", 99.999)
        health.answered("lagging", 99.9)
    health.registered(["good", "lagging", "slow", "failed"], ["read-only"], ["read-only", "gone", "good"])
    health.slow("slow")
    health.failed("failed")
    names = ("failed", "slow", "read-only", "lagging", "good", "gone")
    assert [health.rank(name) for name in names] == [FAILED, SLOW, READ_ONLY, LAGGING, GOOD, FAILED]
    assert health.reading_order((0, 1, 2, 3, 4), names) == [4, 3, 2, 1, 0]


def test_the_order_does_not_flap_between_bookies_of_similar_speed() -> None:
    clock = Clock()
    health = BookieHealth(clock, 60_000)
    ranks = set()
    for i in range(400):
        clock.now += 0.01
        health.answered("a", clock.now - (0.010 if i % 3 else 0.014))
        health.answered("b", clock.now - (0.013 if i % 2 else 0.022))
        ranks.add((health.rank("a"), health.rank("b")))
    assert ranks == {(GOOD, GOOD)}


def test_a_bookie_that_is_asked_in_place_of_others_that_lag_does_not_lag_for_that() -> None:
    health = BookieHealth(clock := Clock(), 60_000)
    for _ in range(80):
        clock.now += 0.01
        health.answered("a", clock.now - 0.002)
        health.answered("b", clock.now - 0.002)
        health.answered("c", clock.now - 0.020)
    assert [health.rank(one) for one in "abc"] == [GOOD, GOOD, LAGGING]
    for n in range(400):
        clock.now += 0.01
        health.answered("a", clock.now - 0.020)
        if n % 8 == 0:
            health.answered("b", clock.now - 0.002)
    assert [health.rank(one) for one in "abc"] == [GOOD, GOOD, LAGGING], "its line is long because c is left out"
    for _ in range(80):
        clock.now += 0.01
        health.answered("a", clock.now - 0.020)
        health.answered("b", clock.now - 0.002)
    assert [health.rank(one) for one in "abc"] == [LAGGING, GOOD, LAGGING]


@pytest.mark.parametrize("under_way", [1, 8, 64])
def test_a_slow_bookie_lags_however_many_reads_it_has_under_way(under_way: int) -> None:
    """Where all are asked equally often the slow one has more under way: that is no excuse."""
    health = BookieHealth(clock := Clock(), 60_000)
    for _ in range(40 * under_way):
        clock.now += 0.05 / under_way
        health.answered("a", clock.now - 0.002)
        health.answered("b", clock.now - 0.050)
    assert (health.rank("a"), health.rank("b")) == (GOOD, LAGGING)


def test_a_bookie_that_stands_still_for_a_moment_does_not_lag() -> None:
    health = BookieHealth(clock := Clock(), 60_000)
    for n in range(200):
        clock.now += 0.01
        health.answered("a", clock.now - 0.002)
        health.answered("b", clock.now - (0.050 if n % 50 > 40 else 0.002))
        assert (health.rank("a"), health.rank("b")) == (GOOD, GOOD)


def test_a_lagging_bookie_is_back_only_when_it_is_nearly_as_fast() -> None:
    clock = Clock()
    health = BookieHealth(clock, 60_000)

    def answers(count: int, a_s: float, b_s: float) -> int:
        for _ in range(count):
            clock.now += 0.01
            health.answered("a", clock.now - a_s)
            health.answered("b", clock.now - b_s)
        return health.rank("b")

    assert answers(40, 0.010, 0.020) == GOOD
    assert answers(40, 0.010, 0.050) == LAGGING
    assert answers(80, 0.010, 0.020) == LAGGING  # as before, but now it has to do better
    assert answers(80, 0.010, 0.013) == GOOD


# ---------------------------------------------------------------------------------------- speculation


@virtual_time
async def test_the_pauses_between_speculative_reads_grow_up_to_their_maximum() -> None:
    async with ModelCluster(5) as cluster:
        writer = await written(cluster, 1, ensemble_size=5, write_quorum=5, ack_quorum=2)
        settings = replace(
            SINGLE,
            speculative_read_ms=200,
            speculative_read_factor=2.0,
            max_speculative_read_ms=500,
            reorder_reads=False,
        )
        reader = await opened(cluster, writer, settings)
        names = writer.metadata.last_ensemble.bookies
        asked: dict[str, float] = {}
        for name in names:
            bookie = cluster.bookies[name]
            bookie.mute = name != names[4]
            bookie.ledgers[writer.ledger_id].entries = _Noting(bookie, asked)
        began = cluster.loop.time()
        await reader.read(0, 0)
        pauses = [round(asked[name] - began, 1) for name in names]
        assert pauses == [0, 0.2, 0.6, 1.1, 1.6] or pauses == [0, 0.2, 0.7, 1.2, 1.7]


class _Noting(dict[int, bytes]):
    """A ledger's entries that notes when they were asked for."""

    def __init__(self, bookie: ModelBookie, asked: dict[str, float]) -> None:
        super().__init__(bookie.ledgers[0].entries)
        self.bookie = bookie
        self.asked = asked

    def get(self, key: int, default: bytes | None = None) -> bytes | None:  # type: ignore[override]
        self.asked.setdefault(self.bookie.name, self.bookie.world.loop.time())
        return super().get(key, default)


@virtual_time
async def test_a_busy_bookie_is_given_more_time_than_a_silent_one() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 60)
        reader = await opened(cluster, writer, replace(SINGLE, speculative_read_ms=300, reorder_reads=False))
        for busy in (True, False):
            for bookie in cluster.bookies.values():
                bookie.requests.clear()
                bookie.read_delay_s = 0.5
            reading = asyncio.ensure_future(reader.read(0, 0))
            await cluster.settle(0.1)
            if busy:
                for bookie in cluster.bookies.values():
                    bookie.read_delay_s = 0
                await reader.read(3, 3)  # the same bookie
            await reading
            counts = Counter(e for b in cluster.bookies.values() for e in reads(b))
            assert counts[0] == (1 if busy else 2)


@virtual_time
async def test_speculation_can_be_switched_off() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 1)
        reader = await opened(cluster, writer, replace(SINGLE, speculative_read_ms=0))
        cluster.bookies[writer.metadata.last_ensemble.bookies[0]].silent = True
        began = cluster.loop.time()
        await reader.read(0, 0)
        assert cluster.loop.time() - began >= 1.0  # the request's own time limit


@virtual_time
async def test_a_read_that_nobody_answers_ends_after_the_time_for_the_whole_of_it() -> None:
    async with ModelCluster(5) as cluster:
        writer = await written(cluster, 1, ensemble_size=5, write_quorum=5, ack_quorum=2)
        settings = replace(SINGLE, speculative_read_ms=0, read_operation_timeout_ms=2_500)
        reader = await opened(cluster, writer, settings)
        for bookie in cluster.bookies.values():
            bookie.silent = True
        began = cluster.loop.time()
        with pytest.raises(RequestTimeoutError, match="replicas gave the entry within 2500 ms"):
            await reader.read(0, 0)
        assert 2.5 <= cluster.loop.time() - began < 2.8


@virtual_time
async def test_a_silent_bookie_at_the_tail_is_polled_around_before_its_time_is_over() -> None:
    async with ModelCluster(3, jitter_s=0.001) as cluster:
        writer = await written(cluster, 2, close=False)
        settings = replace(FAST, read_entry_timeout_ms=20_000, speculative_lac_ms=150, speculative_read_ms=15_000)
        reader = await opened(cluster, writer, settings)
        bookies = cluster.holding(writer.metadata.last_ensemble.bookies)
        bookies[2].silent = True  # the first to be polled for entry 1
        began = cluster.loop.time()
        polling = asyncio.ensure_future(reader.poll(1, 10_000))
        await cluster.settle(0.2)
        await writer.add(payload(2))
        entry = await polling
        assert entry is not None
        assert entry.entry_id == 1
        assert cluster.loop.time() - began < 0.6


# ---------------------------------------------------------------------------------------- LAC, unconfirmed


@virtual_time
async def test_a_best_effort_lac_comes_from_the_first_bookie_with_news() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 5, close=False)
        reader = await opened(cluster, writer)
        assert reader.last_add_confirmed == 3
        await writer.add(payload(5))
        await cluster.settle()
        for bookie in cluster.holding(writer.metadata.last_ensemble.bookies[:2]):
            bookie.silent = True
        began = cluster.loop.time()
        assert await reader.try_read_last_confirmed() == 4
        assert cluster.loop.time() - began < 0.1
        with pytest.raises(RequestTimeoutError):
            await reader.read_last_confirmed()  # which has to be sure


@virtual_time
async def test_a_best_effort_lac_needs_one_answer_and_never_goes_back() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 5, close=False)
        reader = await opened(cluster, writer)
        a, b, c = cluster.holding(writer.metadata.last_ensemble.bookies)
        a.kill()
        b.corrupt = True
        c.ledgers.clear()
        assert await reader.try_read_last_confirmed() == 3
        c.kill()
        with pytest.raises(LedgerRecoveryError, match="no storage node"):
            await reader.try_read_last_confirmed()
        await reader.close()


@virtual_time
async def test_a_best_effort_lac_of_a_closed_ledger_asks_nobody() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 5)
        reader = await opened(cluster, writer)
        for bookie in cluster.bookies.values():
            bookie.kill()
        assert await reader.try_read_last_confirmed() == 4


@virtual_time
async def test_unconfirmed_entries_of_an_open_ledger_can_be_looked_at_but_not_behind_a_closed_end() -> None:
    async with ModelCluster(3) as cluster:
        writer = await written(cluster, 5, close=False)
        reader = await opened(cluster, writer)
        assert [e.entry_id for e in await reader.read_unconfirmed(0, 4)] == list(range(5))
        assert reader.last_add_confirmed < 5
        with pytest.raises(NoSuchEntryError):
            await reader.read_unconfirmed(5, 5)
        await writer.close()
        await asyncio.wait_for(reader.on_closed.wait(), 5)
        with pytest.raises(CallerError):
            await reader.read_unconfirmed(0, 5)


@virtual_time
async def test_a_shared_reader_without_metadata_reads_many_ledgers_across_restarts() -> None:
    async with ModelCluster(4) as cluster:
        client = cluster.client()
        ledgers = [await written(cluster, 40) for _ in range(3)]
        locations = [await client.locate(writer.ledger_id) for writer in ledgers]
        shared = ReplicaReader(settings=FAST, network=cluster)
        try:
            for round_ in range(3):
                for location in locations:
                    entries = [e async for e in shared.entries(location, 0, 39)]
                    assert [ENTRY_IDS.size + e.entry_id for e in entries] == [ENTRY_IDS.size + i for i in range(40)]
                for bookie in list(cluster.bookies.values())[round_:]:
                    bookie.kill()
                    bookie.down = False
        finally:
            await shared.close()
