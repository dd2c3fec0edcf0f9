"""Auto-recovery as a whole, on a simulated cluster: what is lost is restored, whoever dies in between."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.model_cluster import ModelBookie
from helpers.worlds.recovery_world import QUICK, RecoveryWorld, payload

from metadata.bookkeeper.ledger_metadata import LedgerState
from metadata.zookeeper.memory import Fault
from storage_node.errors import LedgerFencedError


@virtual_time
async def test_a_node_lost_for_good_is_replaced_in_every_ledger() -> None:
    async with RecoveryWorld() as world:
        ledgers = [await world.closed(20) for _ in range(10)]
        recovery = await world.recover()
        lost = (await world.metadata(ledgers[0])).ensembles[0].bookies[1]
        holders = [n for n in ledgers if lost in (await world.metadata(n)).ensembles[0].bookies]
        await world.lose(lost)
        await world.until_marked(holders)
        await world.until_repaired()
        for ledger_id in ledgers:
            await world.assert_whole(ledger_id, 20)
        assert recovery.worker.copies == 20 * len(holders)


@virtual_time
async def test_a_node_lost_before_the_auditor_began_is_found() -> None:
    async with RecoveryWorld() as world:
        ledger_id = await world.closed(5)
        await world.lose((await world.metadata(ledger_id)).ensembles[0].bookies[0])
        await world.recover()
        await world.until_marked([ledger_id])
        await world.until_repaired()
        await world.assert_whole(ledger_id, 5)


@virtual_time
async def test_a_node_that_is_back_within_the_delay_is_left_alone() -> None:
    async with RecoveryWorld() as world:
        ledger_id = await world.closed(5)
        before = await world.metadata(ledger_id)
        recovery = await world.recover(settings=replace(QUICK, lost_bookie_recovery_delay_s=60))
        await world.settle(2)
        lost = before.ensembles[0].bookies[0]
        await world.lose(lost)
        await world.settle(30)
        await world.bring_back(lost)
        await world.settle(120)
        assert await world.marked() == []
        assert recovery.worker.copies == 0
        assert await world.metadata(ledger_id) == before


@virtual_time
async def test_the_delay_is_kept_and_then_the_node_is_replaced() -> None:
    async with RecoveryWorld() as world:
        ledger_id = await world.closed(5)
        await world.recover(settings=replace(QUICK, lost_bookie_recovery_delay_s=60))
        await world.settle(2)
        await world.lose((await world.metadata(ledger_id)).ensembles[0].bookies[0])
        assert 58 < await world.until_marked([ledger_id]) < 63
        await world.until_repaired()
        await world.assert_whole(ledger_id, 5)


@virtual_time
async def test_a_second_loss_ends_the_delay() -> None:
    async with RecoveryWorld(5) as world:
        ledger_id = await world.closed(5)
        await world.recover(settings=replace(QUICK, lost_bookie_recovery_delay_s=600))
        await world.settle(2)
        first, second, _ = (await world.metadata(ledger_id)).ensembles[0].bookies
        await world.lose(first)
        await world.settle(5)
        assert await world.marked() == []
        await world.lose(second)
        await world.until_marked([ledger_id], within_s=10)
        await world.until_repaired()
        await world.assert_whole(ledger_id, 5)


@pytest.mark.parametrize(("seconds", "at_once"), [(0, True), (600, True), (30, False)])
def test_setting_the_delay_to_nought_or_to_what_it_was_audits_at_once(seconds: int, at_once: bool) -> None:
    @virtual_time
    async def scene() -> None:
        async with RecoveryWorld() as world:
            ledger_id = await world.closed(5)
            await world.recover(settings=replace(QUICK, lost_bookie_recovery_delay_s=600))
            await world.settle(2)
            await world.lose((await world.metadata(ledger_id)).ensembles[0].bookies[0])
            await world.settle(2)
            await world.marks.set_lost_bookie_recovery_delay(seconds)
            took = await world.until_marked([ledger_id])
            assert took < 1 if at_once else 28 < took < 32

    scene()


@virtual_time
async def test_the_delay_in_the_metadata_outlives_the_process_that_set_it() -> None:
    async with RecoveryWorld() as world:
        await world.marks.set_lost_bookie_recovery_delay(45)
        ledger_id = await world.closed(5)
        await world.recover(settings=replace(QUICK, lost_bookie_recovery_delay_s=1))
        await world.settle(2)
        await world.lose((await world.metadata(ledger_id)).ensembles[0].bookies[0])
        assert await world.until_marked([ledger_id]) > 43


# ---- open ledgers ----------------------------------------------------------------------------------------------------


@virtual_time
async def test_an_open_ledger_whose_writer_does_nothing_is_closed_after_the_grace_period() -> None:
    async with RecoveryWorld() as world:
        writer = await world.writer(8)
        await world.recover()
        await world.settle(1)
        await world.lose(writer.metadata.last_ensemble.bookies[2])
        await world.until_marked([writer.ledger_id])
        await world.settle(2)
        assert (await world.metadata(writer.ledger_id)).state is LedgerState.OPEN, "the writer was given no time"
        await world.until_repaired()
        await world.assert_whole(writer.ledger_id, 8)
        with pytest.raises(LedgerFencedError):
            await writer.add(b"too late")


@virtual_time
async def test_a_writer_that_replaces_the_node_itself_is_not_disturbed() -> None:
    async with RecoveryWorld() as world:
        writer = await world.client().create(password=b"secret")
        await asyncio.gather(*(writer.add(payload(n)) for n in range(4)))
        await world.recover()
        await world.settle(1)
        await world.lose(writer.metadata.last_ensemble.bookies[0])
        for number in range(4, 12):
            await writer.add(payload(number))
            await world.settle(1)
        await world.until_repaired()
        assert len((await world.metadata(writer.ledger_id)).ensembles) == 2
        await writer.add(payload(12))
        await writer.close()
        await world.assert_whole(writer.ledger_id, 13)


@virtual_time
async def test_an_empty_open_ledger_with_a_lost_node_is_closed_empty_and_names_living_nodes() -> None:
    async with RecoveryWorld() as world:
        writer = await world.client().create()
        await world.recover()
        await world.settle(1)
        await world.lose(writer.metadata.last_ensemble.bookies[0])
        await world.until_marked([writer.ledger_id])
        await world.until_repaired()
        metadata = await world.assert_whole(writer.ledger_id, 0)
        assert len(metadata.ensembles) == 1


@virtual_time
async def test_a_read_only_node_has_its_copies_but_takes_no_more() -> None:
    """Of a closed ledger it is as good as any; an open one that is written to it is its writer's to move."""
    async with RecoveryWorld() as world:
        closed, writer = await world.closed(5), await world.writer(3)
        quiet = writer.metadata.last_ensemble.bookies[0]
        recovery = await world.recover()
        await world.make_readonly(quiet)
        await world.settle(10)
        assert await world.marked() == [], "it is there: nothing is lost"
        await world.marks.mark(writer.ledger_id, [quiet])
        await world.marks.mark(closed, [quiet])
        await world.until_repaired()
        await world.assert_whole(writer.ledger_id, 3)
        assert recovery.worker.copies == 0


# ---- several processes -----------------------------------------------------------------------------------------------


@virtual_time
async def test_another_auditor_follows_the_one_that_died() -> None:
    async with RecoveryWorld() as world:
        ledger_id = await world.closed(5)
        first, second = await world.recover("first"), await world.recover("second")
        await world.settle(1)
        assert (first.election.elected, second.election.elected) == (True, False)
        assert await world.auditors.auditor() == "first"
        await world.crash("first")
        await world.settle(1)
        assert second.election.elected
        assert await world.auditors.auditor() == "second"
        await world.lose((await world.metadata(ledger_id)).ensembles[0].bookies[0])
        await world.until_marked([ledger_id])
        await world.until_repaired()
        await world.assert_whole(ledger_id, 5)


@virtual_time
async def test_an_auditor_that_stops_in_order_is_followed_at_once() -> None:
    async with RecoveryWorld() as world:
        await world.recover("first")
        second = await world.recover("second")
        await world.settle(1)
        await world.end("first")

        async def follows() -> bool:
            return second.election.elected

        assert await world.until(follows) < 1


@virtual_time
async def test_an_auditor_whose_session_expired_stands_again_behind_the_others() -> None:
    async with RecoveryWorld() as world:
        first, second = await world.recover("first"), await world.recover("second")
        await world.settle(1)
        world.tree.expire(world.recoveries["first"][1].session_id)
        await world.settle(2)
        assert (first.election.elected, second.election.elected) == (False, True)
        assert len(await world.auditors.votes()) == 2
        world.tree.expire(world.recoveries["second"][1].session_id)
        await world.settle(2)
        assert (first.election.elected, second.election.elected) == (True, False)


STEPS = ("lock", "copying", "published", "settling", "unlocking")


@pytest.mark.parametrize("step", STEPS)
def test_a_worker_that_dies_at_any_step_is_followed_by_another(step: str) -> None:
    @virtual_time
    async def scene() -> None:
        async with RecoveryWorld() as world:
            ledger_id = await world.closed(30)
            await world.recover("first", replace(QUICK, rate_by_bytes=2_000))
            await world.settle(1)
            reached = asyncio.Event()
            session = world.recoveries["first"][1].session_id
            metadata_path = world.ledgers.path(ledger_id)
            lock, mark = world.marks.lock_path(ledger_id), world.marks.mark_path(ledger_id)
            triggers = {
                "lock": ("create", lock),
                "published": ("put", metadata_path),
                "settling": ("delete", mark),
                "unlocking": ("delete", lock),
            }

            def watch(by: int, operation: str, path: str) -> Fault | None:
                if by == session and (operation, path) == triggers.get(step):
                    reached.set()
                return None

            world.faults = watch
            spare = next(name for name in world.bookies if not world.bookies[name].ledgers)
            await world.lose((await world.metadata(ledger_id)).ensembles[0].bookies[0])

            async def some_copies() -> bool:
                return len(world.bookies[spare].adds) > 10

            if step == "copying":
                await world.until(some_copies)
            else:
                await asyncio.wait_for(reached.wait(), 60)
            await world.crash("first")
            world.faults = None
            await world.recover("second")
            await world.settle(1)
            await world.until_repaired()
            metadata = await world.assert_whole(ledger_id, 30)
            assert spare in metadata.ensembles[0].bookies

    scene()


@virtual_time
async def test_two_workers_share_the_work() -> None:
    async with RecoveryWorld() as world:
        ledgers = [await world.closed(10) for _ in range(12)]
        slow = replace(QUICK, rate_by_bytes=5_000)
        workers = [await world.recover(name, slow) for name in ("first", "second")]
        await world.settle(1)
        await world.lose((await world.metadata(ledgers[0])).ensembles[0].bookies[0])
        await world.settle(1)
        await world.until_repaired()
        for ledger_id in ledgers:
            await world.assert_whole(ledger_id, 10)
        assert all(recovery.worker.repaired for recovery in workers)


@virtual_time
async def test_a_worker_whose_lock_was_lost_takes_nothing_from_its_successor() -> None:
    """Both restore the copies; whoever swaps first wins, and the mark is removed by the one who holds the lock."""
    async with RecoveryWorld(5) as world:
        ledger_id = await world.closed(40)
        await world.recover("first", replace(QUICK, rate_by_bytes=2_000))
        await world.settle(1)
        await world.lose((await world.metadata(ledger_id)).ensembles[0].bookies[0])
        await world.until_marked([ledger_id])
        await world.settle(0.5)
        world.tree.expire(world.recoveries["first"][1].session_id)
        await world.recover("second")
        await world.settle(1)
        await world.until_repaired()
        await world.assert_whole(ledger_id, 40)


@virtual_time
async def test_restored_copies_are_entered_only_under_the_lock_they_were_made_under() -> None:
    """Without it a replacement may collect its copies right before the metadata names it."""
    async with RecoveryWorld(5) as world:
        ledger_id = await world.closed(40)
        await world.recover("first", replace(QUICK, rate_by_bytes=2_000))
        await world.settle(1)
        lock, metadata_path = world.marks.lock_path(ledger_id), world.ledgers.path(ledger_id)
        locked_by: list[int | None] = [None]
        entered: list[bool] = []

        def watch(by: int, operation: str, path: str) -> Fault | None:
            if (operation, path) == ("create", lock):
                locked_by.append(by)
            if (operation, path) == ("put", metadata_path):
                entered.append(by == locked_by[-1])
            return None

        world.faults = watch
        await world.lose((await world.metadata(ledger_id)).ensembles[0].bookies[0])
        await world.until_marked([ledger_id])
        await world.settle(0.5)
        assert locked_by[-1] is not None
        assert not entered, "it still copies"
        world.tree.expire(world.recoveries["first"][1].session_id)
        locked_by.append(None)
        await world.until_repaired()
        await world.assert_whole(ledger_id, 40)
        assert entered == [True]


# ---- what cannot be repaired, or need not ----------------------------------------------------------------------------


@virtual_time
async def test_a_ledger_that_is_deleted_meanwhile_loses_its_mark() -> None:
    async with RecoveryWorld() as world:
        ledger_id = await world.closed(40)
        recovery = await world.recover("first", replace(QUICK, rate_by_bytes=2_000))
        await world.settle(1)
        await world.lose((await world.metadata(ledger_id)).ensembles[0].bookies[0])
        await world.until_marked([ledger_id])
        await world.settle(0.5)
        await world.ledgers.delete(ledger_id)
        await world.until_repaired()
        assert recovery.failure is None


@virtual_time
async def test_with_too_few_nodes_the_mark_stays_until_there_is_another() -> None:
    async with RecoveryWorld(3) as world:
        ledger_id = await world.closed(5)
        recovery = await world.recover()
        await world.settle(1)
        lost = (await world.metadata(ledger_id)).ensembles[0].bookies[0]
        await world.lose(lost)
        await world.until_marked([ledger_id])
        await world.settle(100)
        assert await world.marked() == [ledger_id]
        assert recovery.worker.copies == 0
        await world.bring_back(lost)
        await world.until_repaired()
        await world.assert_whole(ledger_id, 5)


@virtual_time
async def test_two_lost_and_one_spare_restores_what_can_be() -> None:
    async with RecoveryWorld(4) as world:
        ledger_id = await world.closed(6)
        await world.recover()
        await world.settle(1)
        first, second, _ = (await world.metadata(ledger_id)).ensembles[0].bookies
        await world.lose(first)
        await world.lose(second)

        async def one_restored() -> bool:
            bookies = (await world.metadata(ledger_id)).ensembles[0].bookies
            return sum(not world.bookies[name].down for name in bookies) == 2

        await world.until(one_restored)
        assert await world.marked() == [ledger_id]
        await world.bring_back(first)
        await world.until_repaired()
        await world.assert_whole(ledger_id, 6)


@virtual_time
async def test_an_entry_that_nobody_has_any_more_keeps_the_ledger_marked() -> None:
    async with RecoveryWorld() as world:
        ledger_id = await world.closed(6)
        recovery = await world.recover()
        await world.settle(1)
        before = await world.metadata(ledger_id)
        for name in before.ensembles[0].bookies:
            del world.bookies[name].ledgers[ledger_id].entries[3]
        await world.lose(before.ensembles[0].bookies[0])
        await world.until_marked([ledger_id])
        await world.settle(60)
        assert await world.marked() == [ledger_id]
        assert await world.metadata(ledger_id) == before, "a fragment is swapped whole or not at all"
        assert recovery.failure is None


@virtual_time
async def test_an_open_ledger_whose_end_nobody_can_tell_is_left_open_and_alone() -> None:
    """With an ack quorum of one the lost node may have had the only copy of the last entry (D3)."""
    async with RecoveryWorld() as world:
        writer = await world.writer(5, e=2, w=2, a=1)
        closed = await world.closed(5)
        recovery = await world.recover()
        await world.settle(1)
        locked = 0

        def count(_by: int, operation: str, path: str) -> None:
            nonlocal locked
            locked += operation == "create" and path == world.marks.lock_path(writer.ledger_id)

        world.faults = count
        lost = writer.metadata.last_ensemble.bookies[0]
        await world.lose(lost)
        await world.settle(130)
        assert (await world.metadata(writer.ledger_id)).state is LedgerState.OPEN
        assert await world.marked() == [writer.ledger_id]
        assert 2 <= locked <= 8, "tried again, but ever less often"
        if lost in (await world.metadata(closed)).ensembles[0].bookies:
            assert recovery.worker.repaired == 1
        await world.bring_back(lost)
        await world.until_repaired()
        assert (await world.metadata(writer.ledger_id)).state is LedgerState.OPEN, "the writer's nodes are all there"
        await writer.add(payload(5))
        await writer.close()
        await world.assert_whole(writer.ledger_id, 6)


@virtual_time
async def test_nothing_is_audited_or_repaired_while_it_is_switched_off() -> None:
    async with RecoveryWorld() as world:
        ledger_id = await world.closed(5)
        before = await world.metadata(ledger_id)
        await world.recover()
        await world.settle(1)
        await world.marks.disable()
        await world.lose(before.ensembles[0].bookies[0])
        await world.settle(30)
        assert await world.marked() == []
        await world.marks.mark(ledger_id, [before.ensembles[0].bookies[0]])
        await world.settle(30)
        assert await world.metadata(ledger_id) == before
        await world.marks.enable()
        await world.until_repaired()
        await world.assert_whole(ledger_id, 5)


@virtual_time
async def test_a_mark_made_anew_during_the_repair_survives_it() -> None:
    """A second node is lost while the copies of the first are restored."""
    async with RecoveryWorld(6) as world:
        ledger_id = await world.closed(40)
        await world.recover("first", replace(QUICK, rate_by_bytes=2_000))
        await world.settle(1)
        first, second, _ = (await world.metadata(ledger_id)).ensembles[0].bookies
        await world.lose(first)
        await world.until_marked([ledger_id])
        await world.settle(0.5)
        await world.lose(second)
        await world.until_repaired()
        await world.assert_whole(ledger_id, 40)


@virtual_time
async def test_several_bad_indices_with_more_nodes_than_copies() -> None:
    async with RecoveryWorld(8) as world:
        ledger_id = await world.closed(31, e=5, w=3, a=2)
        await world.recover()
        await world.settle(1)
        before = (await world.metadata(ledger_id)).ensembles[0].bookies
        await world.lose(before[0])
        await world.lose(before[1])
        await world.until_marked([ledger_id])
        await world.until_repaired()
        after = (await world.assert_whole(ledger_id, 31)).ensembles[0].bookies
        assert after[2:] == before[2:]
        for index in (0, 1):  # nobody was given an entry that is not its own
            held = set(world.bookies[after[index]].ledgers[ledger_id].entries)
            assert held == {n for n in range(31) if (index - n) % 5 < 3}


@virtual_time
async def test_every_fragment_that_named_the_node_is_repaired() -> None:
    async with RecoveryWorld(6) as world:
        writer = await world.client().create(password=b"secret")
        for number in range(12):
            await writer.add(payload(number))
            if number in (3, 7):
                gone = writer.metadata.last_ensemble.bookies[0]
                await world.lose(gone)
        await writer.close()
        assert len((await world.metadata(writer.ledger_id)).ensembles) > 1
        await world.recover()
        await world.until_marked([writer.ledger_id])
        await world.until_repaired()
        await world.assert_whole(writer.ledger_id, 12)


@virtual_time
async def test_the_periodic_check_finds_a_copy_that_a_living_node_has_lost() -> None:
    async with RecoveryWorld() as world:
        ledger_id = await world.closed(9)
        victim = (await world.metadata(ledger_id)).ensembles[0].bookies[1]
        await world.recover(settings=replace(QUICK, periodic_check_interval_s=1_000))
        await world.settle(5)
        del world.bookies[victim].ledgers[ledger_id].entries[8]
        await world.settle(900)
        assert await world.marked() == []
        await world.until_marked([ledger_id], within_s=200)
        await world.until_repaired()
        await world.assert_whole(ledger_id, 9)


@virtual_time
async def test_a_percentage_finds_what_lies_between_the_first_and_the_last() -> None:
    async with RecoveryWorld() as world:
        ledger_id = await world.closed(9)
        victim = (await world.metadata(ledger_id)).ensembles[0].bookies[1]
        del world.bookies[victim].ledgers[ledger_id].entries[4]
        settings = replace(QUICK, periodic_check_interval_s=1_000, ledger_verification_percentage=100)
        await world.recover(settings=settings)
        await world.until_marked([ledger_id])
        await world.until_repaired()
        await world.assert_whole(ledger_id, 9)


@virtual_time
async def test_a_metadata_outage_in_the_middle_is_waited_out() -> None:
    async with RecoveryWorld() as world:
        ledgers = [await world.closed(20) for _ in range(4)]
        await world.recover("first", replace(QUICK, rate_by_bytes=10_000))
        await world.settle(1)
        await world.lose((await world.metadata(ledgers[0])).ensembles[0].bookies[0])
        for _ in range(5):
            await world.settle(0.3)
            for _, store in world.recoveries.values():
                world.tree.disconnect(store.session_id)
            await asyncio.sleep(0.2)
            for _, store in world.recoveries.values():
                world.tree.reconnect(store.session_id)
        await world.until_repaired()
        for ledger_id in ledgers:
            await world.assert_whole(ledger_id, 20)


@pytest.mark.parametrize("seed", range(6))
def test_lost_answers_everywhere_change_nothing(seed: int) -> None:
    @virtual_time
    async def scene() -> None:
        async with RecoveryWorld(6, seed=seed) as world:
            ledgers = [await world.closed(12, e=4, w=3, a=2) for _ in range(4)]
            for name in ("first", "second"):
                await world.recover(name)
            sessions = {store.session_id for _, store in world.recoveries.values()}
            faults = list(Fault)

            def inject(by: int, _operation: str, _path: str) -> Fault | None:
                return world.rng.choice(faults) if by in sessions and world.rng.random() < 0.03 else None

            world.faults = inject
            for _ in range(2):
                await world.settle(2)
                await world.lose(world.rng.choice([name for name in world.bookies if not world.bookies[name].down]))
            await world.settle(20)
            world.faults = None
            await world.until_repaired()
            for ledger_id in ledgers:
                await world.assert_whole(ledger_id, 12)

    scene()


@virtual_time
async def test_a_node_that_strangers_wrote_to_under_the_ledgers_id_is_not_given_copies() -> None:
    async with RecoveryWorld(5) as world:
        ledger_id = await world.closed(20)
        names = (await world.metadata(ledger_id)).last_ensemble.bookies
        spares = [name for name in world.bookies if name not in names]
        world.bookies[spares[0]].ledger(ledger_id).key = b"a stranger's"
        for lost in names[:2]:
            await world.lose(lost)
        world.bookies["b9:3181"] = ModelBookie("b9:3181", world)
        await world.bring_back("b9:3181")
        await world.recover()
        await world.settle(120)
        metadata = await world.assert_whole(ledger_id, 20)
        assert spares[0] not in metadata.last_ensemble.bookies
        assert await world.marked() == []
