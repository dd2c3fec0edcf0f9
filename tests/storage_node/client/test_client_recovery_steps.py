"""Opening with recovery, step by step (docs/reference/wire.md#recovery): what each meets, and what it leaves behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.model_cluster import FAST, ModelCluster

from metadata.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from metadata.foundation.errors import DistributedLogError
from metadata.zookeeper.memory import Fault
from storage_node.client.writer import LedgerWriter
from storage_node.errors import LedgerRecoveryError
from storage_node.protocol.schema import Status
from storage_node.protocol.values import AddRequest, ReadRequest


def payload(entry_id: int) -> bytes:
    return b"entry %06d " % entry_id * 3


async def write(writer: LedgerWriter, count: int) -> None:
    await asyncio.gather(*(writer.add(payload(writer.last_add_pushed + 1)) for _ in range(count)))


async def stored(cluster: ModelCluster, ledger_id: int) -> LedgerMetadata:
    return (await cluster.ledgers.read(ledger_id)).value


async def deserted(cluster: ModelCluster, count: int = 20, **sizes: int) -> LedgerWriter:
    """A ledger whose writer is gone: all entries acknowledged, all but the first with an LAC of -1."""
    writer = await cluster.client().create(**sizes)
    await write(writer, count)
    await cluster.settle()
    await writer.abandon()
    return writer


async def recovered(cluster: ModelCluster, ledger_id: int) -> list[bytes]:
    reader = await cluster.client().open(ledger_id, recover=True)
    end = reader.last_add_confirmed
    return [bytes(e.payload) for e in await reader.read(0, end)] if end >= 0 else []


@virtual_time
async def test_step_3_a_ledger_that_its_writer_closes_meanwhile_has_one_end() -> None:
    async with ModelCluster() as cluster:
        writer = await cluster.client().create()
        await write(writer, 5)
        await cluster.settle()
        done = False

        def inject(_session: int, name: str, _path: str) -> Fault | None:
            nonlocal done
            if name == "put" and not done:  # the mark's first attempt is lost, and the writer closes before the second
                done = True
                closing.append(asyncio.ensure_future(writer.close()))
                return Fault.LOSE_REQUEST
            return None

        closing: list[asyncio.Future[LedgerMetadata]] = []
        cluster.tree.inject = inject
        reader = await cluster.client().open(writer.ledger_id, recover=True)
        assert (await closing[0]).last_entry == reader.last_add_confirmed == 4
        final = await stored(cluster, writer.ledger_id)
        assert (final.last_entry, final.length) == (4, reader.length)


@virtual_time
async def test_step_3_a_ledger_left_in_recovery_goes_on_without_another_mark() -> None:
    async with ModelCluster() as cluster:
        writer = await deserted(cluster)
        current = await cluster.ledgers.read(writer.ledger_id)
        await cluster.ledgers.write(
            writer.ledger_id, current.value.with_state(LedgerState.IN_RECOVERY), current.version
        )
        puts: list[str] = []
        cluster.tree.inject = lambda _session, name, where: puts.append(where) if name == "put" else None  # type: ignore[func-returns-value]
        assert await recovered(cluster, writer.ledger_id) == [payload(i) for i in range(20)]
        assert len(puts) == 1  # the close alone


@virtual_time
async def test_step_4_an_answer_with_a_bad_digest_leaves_its_bookie_unknown() -> None:
    async with ModelCluster(3) as cluster:
        writer = await deserted(cluster)
        a, b, _ = cluster.holding(writer.metadata.last_ensemble.bookies)
        a.corrupt = True
        b.ledgers.clear()
        assert len(await recovered(cluster, writer.ledger_id)) == 20  # b and c are known: covered
        other = await deserted(cluster)
        a, b, _ = cluster.holding(other.metadata.last_ensemble.bookies)
        b.corrupt = a.corrupt = True
        with pytest.raises(LedgerRecoveryError, match="could be fenced"):
            await recovered(cluster, other.ledger_id)


@virtual_time
async def test_step_6_reads_ahead_no_further_than_the_batch_size() -> None:
    async with ModelCluster(3) as cluster:
        writer = await deserted(cluster, 40)
        for bookie in cluster.bookies.values():
            bookie.requests.clear()
        reader = await cluster.client(replace(FAST, recovery_window_entries=1)).open(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed == 39
        for bookie in cluster.bookies.values():
            highest_read, highest_added = -1, -1
            for request in bookie.requests:
                if isinstance(request, AddRequest):
                    highest_added = max(highest_added, request.entry_id)
                elif isinstance(request, ReadRequest) and request.entry_id >= 0:
                    highest_read = max(highest_read, request.entry_id)
                    if highest_added >= 0:
                        assert highest_read <= highest_added + 1


@virtual_time
async def test_step_6_mixed_verdicts_abort_and_the_next_attempt_finds_everything() -> None:
    async with ModelCluster(3) as cluster:
        writer = await deserted(cluster)
        a, b, c = cluster.holding(writer.metadata.last_ensemble.bookies)
        # The last entry: one lacks it, one cannot read it, one is away.
        a.ledgers[writer.ledger_id].entries.pop(19)
        body = b.ledgers[writer.ledger_id].entries[19]
        b.ledgers[writer.ledger_id].entries[19] = body[:-1] + b"?"
        c.kill()
        with pytest.raises(LedgerRecoveryError):
            await recovered(cluster, writer.ledger_id)
        assert (await stored(cluster, writer.ledger_id)).state is LedgerState.IN_RECOVERY
        c.down = False
        assert len(await recovered(cluster, writer.ledger_id)) == 20


@virtual_time
async def test_step_6_one_copy_of_an_unacknowledged_tail_is_enough_to_keep_it() -> None:
    async with ModelCluster(3) as cluster:
        writer = await deserted(cluster)
        a, b, c = cluster.holding(writer.metadata.last_ensemble.bookies)
        for bookie in (a, b):
            bookie.ledgers[writer.ledger_id].entries.pop(19)
        c.delay_s = 0.05  # and it answers last
        found = await recovered(cluster, writer.ledger_id)
        # Two of three lack it, which proves that it was never acknowledged; with the copy first it is kept.
        assert found in ([payload(i) for i in range(19)], [payload(i) for i in range(20)])
        holders = sum(19 in bookie.ledgers[writer.ledger_id].entries for bookie in (a, b, c))
        assert holders >= 2 if len(found) == 20 else holders == 1


@virtual_time
async def test_step_7_adds_again_are_marked_and_urgent_and_reach_an_ack_quorum() -> None:
    async with ModelCluster(3) as cluster:
        writer = await deserted(cluster)
        for bookie in cluster.bookies.values():
            bookie.requests.clear()
        await recovered(cluster, writer.ledger_id)
        adds = [r for b in cluster.bookies.values() for r in b.requests if isinstance(r, AddRequest)]
        assert adds
        assert all(r.recovery and r.priority > 0 for r in adds)


@virtual_time
async def test_step_7_a_tail_that_cannot_be_replicated_fails_recovery_and_changes_no_metadata() -> None:
    async with ModelCluster(3) as cluster:
        writer = await deserted(cluster)
        for bookie in cluster.bookies.values():
            bookie.refuse_adds = Status.EREADONLY
        with pytest.raises(LedgerRecoveryError, match="could not be replicated"):
            await recovered(cluster, writer.ledger_id)
        left = await stored(cluster, writer.ledger_id)
        assert (left.state, left.ensembles) == (LedgerState.IN_RECOVERY, writer.metadata.ensembles)
        for bookie in cluster.bookies.values():
            bookie.refuse_adds = None
        assert len(await recovered(cluster, writer.ledger_id)) == 20


@virtual_time
async def test_step_7_a_replacement_picked_during_recovery_is_published_with_the_close_and_not_before_i18() -> None:
    async with ModelCluster(4) as cluster:
        writer = await deserted(cluster)
        names = writer.metadata.last_ensemble.bookies
        cluster.bookies[names[0]].refuse_adds = Status.EREADONLY
        seen: list[LedgerMetadata] = []

        def inject(_session: int, name: str, _path: str) -> Fault | None:
            if name == "put":
                data = cluster.tree._node(path).data
                seen.append(LedgerMetadata.decode(data, path))
            return None

        path = cluster.ledgers.path(writer.ledger_id)
        cluster.tree.inject = inject
        reader = await cluster.client().open(writer.ledger_id, recover=True)
        assert [metadata.state for metadata in seen] == [LedgerState.OPEN, LedgerState.IN_RECOVERY]
        assert all(metadata.ensembles == writer.metadata.ensembles for metadata in seen)
        last = reader.metadata.last_ensemble
        assert names[0] not in last.bookies
        assert reader.last_add_confirmed == 19
        spare = next(iter(set(last.bookies) - set(names)))
        assert set(range(last.first_entry, 20)) <= set(cluster.bookies[spare].ledgers[writer.ledger_id].entries)


@pytest.mark.parametrize("after_s", [0.0, 0.003, 0.006, 0.009, 0.012, 0.02, 0.03, 0.05])
@virtual_time
async def test_an_interrupted_recovery_leaves_what_the_next_one_finishes(after_s: float) -> None:
    async with ModelCluster(4) as cluster:
        writer = await deserted(cluster, 30)
        cluster.bookies[writer.metadata.last_ensemble.bookies[0]].refuse_adds = Status.EREADONLY
        first = cluster.client()
        opening = asyncio.ensure_future(first.open(writer.ledger_id, recover=True))
        await asyncio.sleep(after_s)
        await first.close()  # the recoverer dies
        await asyncio.gather(opening, return_exceptions=True)
        assert await recovered(cluster, writer.ledger_id) == [payload(i) for i in range(30)]
        final = await stored(cluster, writer.ledger_id)
        assert (final.state, final.last_entry, final.length) == (LedgerState.CLOSED, 29, 30 * 39)


@pytest.mark.parametrize("seed", range(6))
@virtual_time
async def test_recoverers_that_come_one_after_the_other_while_bookies_fail_agree(seed: int) -> None:
    async with ModelCluster(5, seed=seed, jitter_s=0.01) as cluster:
        writer = await deserted(cluster, 30)
        names = writer.metadata.last_ensemble.bookies

        async def later(delay_s: float) -> tuple[int, int] | None:
            await asyncio.sleep(delay_s)
            try:
                reader = await cluster.client().open(writer.ledger_id, recover=True)
            except LedgerRecoveryError:
                return None
            return reader.last_add_confirmed, reader.length

        tasks = [asyncio.ensure_future(later(0.008 * i)) for i in range(5)]
        await asyncio.sleep(0.004 * seed)
        cluster.bookies[names[seed % 3]].kill()
        ends = set(await asyncio.gather(*tasks)) - {None}
        cluster.bookies[names[seed % 3]].down = False
        ends.add(await later(0))
        assert ends == {(29, 30 * 39)}


@virtual_time
async def test_an_advanced_ledger_is_recovered_up_to_its_first_gap() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create(advanced=True)
        for entry_id in (0, 1, 2, 5, 6):
            writer.add_at(entry_id, payload(entry_id))
        await cluster.settle()
        await writer.abandon()
        assert await recovered(cluster, writer.ledger_id) == [payload(i) for i in range(3)]


@virtual_time
async def test_a_deferred_sync_ledger_is_recovered_with_what_is_found_and_at_least_what_was_forced() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create(deferred_sync=True)
        await write(writer, 5)
        await writer.force()
        await write(writer, 5)
        await cluster.settle()
        await writer.abandon()
        for bookie in cluster.bookies.values():
            bookie.crash()
            bookie.down = False
        assert await recovered(cluster, writer.ledger_id) == [payload(i) for i in range(5)]


@virtual_time
async def test_step_9_a_recovery_that_fails_may_be_tried_any_number_of_times() -> None:
    async with ModelCluster(3) as cluster:
        writer = await deserted(cluster)
        lost = cluster.holding(writer.metadata.last_ensemble.bookies[:2])
        for bookie in lost:
            bookie.kill()
        for _ in range(3):
            with pytest.raises(DistributedLogError):
                await recovered(cluster, writer.ledger_id)
        for bookie in lost:
            bookie.down = False
        assert len(await recovered(cluster, writer.ledger_id)) == 20
