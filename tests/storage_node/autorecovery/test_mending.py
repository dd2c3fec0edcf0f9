"""Copies of closed ledgers that lie in too few regions are moved: whole at every moment, once, and under a lock."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.recovery_world import QUICK, RecoveryWorld

from metadata.bookkeeper.ledger_metadata import Ensemble
from metadata.bookkeeper.topology import TopologyStore
from metadata.foundation.errors import NotAppliedError
from storage_node.autorecovery.daemon import AutoRecovery
from storage_node.client.placement import by_settings
from storage_node.client.placement.racks import StaticResolver
from storage_node.edge import SystemClock
from storage_node.errors import RackResolutionError
from storage_node.settings.autorecovery import AutoRecoverySettings
from storage_node.settings.files import NodeFile
from storage_node.settings.placement import PlacementSettings

OVER_REGIONS = PlacementSettings(
    ensemble_placement_policy="regionaware",
    enforce_min_num_fault_domains_for_write=True,
    network_topology_script_file_name="places",  # no such program: `Places` stands for it
)
MENDING = replace(
    QUICK,
    repair_placement=True,
    periodic_placement_check_interval_s=60,
    client=replace(QUICK.client, placement=OVER_REGIONS),
)


class Places(StaticResolver):
    """Where nodes are, as this moment has it; and a look-up that can fail."""

    def __init__(self, table: dict[str, str]) -> None:
        super().__init__(table)
        self.table: Mapping[str, str] = table
        self.fails = False

    async def locations(self, hosts: Sequence[str]) -> Sequence[str | None]:
        if self.fails:
            raise RackResolutionError("the topology script ended with status 1")
        return await super().locations(hosts)


class Misplaced(RecoveryWorld):
    """Nodes in regions as `counts` says; ledgers are made by clients that know no regions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, counts: Mapping[str, int], *, seed: int = 0) -> None:
        super().__init__(sum(counts.values()), seed=seed)
        regions = [region for region, count in counts.items() for _ in range(count)]
        self.region = dict(zip(sorted(self.bookies), regions, strict=True))
        self.places = Places({name: f"/{region}/{name}" for name, region in self.region.items()})
        monkeypatch.setattr(by_settings, "resolver_of", lambda _settings: self.places)

    async def in_one_region(self, entries: int, region: str = "eu", e: int = 3) -> int:
        """Write a closed ledger whose copies all lie in one region."""
        others = [name for name in self.bookies if self.region[name] != region]
        for name in others:
            await self.registry.unregister(name)
        ledger_id = await self.closed(entries, e, e, e - 1)
        for name in others:
            await self.bring_back(name)
        return ledger_id

    async def regions_of(self, ledger_id: int) -> list[set[str]]:
        return [{self.region[b] for b in part.bookies} for part in (await self.metadata(ledger_id)).ensembles]

    async def until_mended(self, *ledgers: int) -> float:
        async def mended() -> bool:
            return all([all(len(found) > 1 for found in await self.regions_of(ledger)) for ledger in ledgers])

        return await self.until(mended)


async def next_check(world: RecoveryWorld, recovery: AutoRecovery) -> None:
    """Wait until the auditor has checked placement once more."""
    assert recovery.auditor is not None
    before = recovery.auditor.placement

    async def checked() -> bool:
        return recovery.auditor is not None and recovery.auditor.placement is not before

    await world.until(checked, 200)
    await world.settle(5)


@virtual_time
async def test_copies_in_one_region_are_moved_once_and_the_old_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Misplaced(monkeypatch, {"eu": 3, "us": 2, "ap": 1}) as world:
        ledger_id, empty = await world.in_one_region(20), await world.in_one_region(0)
        before = await world.metadata(ledger_id)
        recovery = await world.recover("r1", MENDING)
        await world.until_mended(ledger_id, empty)
        await world.until_repaired()
        after = await world.assert_whole(ledger_id, 20)
        old = set(before.last_ensemble.bookies) - set(after.last_ensemble.bookies)
        assert len(old) == 1, "one copy of each entry is enough"
        assert len(world.bookies[old.pop()].ledgers[ledger_id].entries) == 20, "its node collects it later"
        assert recovery.worker.mender.copies == 20
        await next_check(world, recovery)
        assert recovery.auditor is not None
        report = recovery.auditor.placement
        assert report is not None
        assert (report.closed, report.not_adhering, report.marked) == (2, 0, 0)
        assert recovery.worker.mender.copies == 20, "nothing is moved twice"
        assert not recovery.worker.mender.unmended


@virtual_time
async def test_without_the_key_nothing_is_marked_and_nothing_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Misplaced(monkeypatch, {"eu": 3, "us": 2}) as world:
        ledger_id = await world.in_one_region(5)
        before = await world.metadata(ledger_id)
        recovery = await world.recover("r1", replace(MENDING, repair_placement=False))
        await world.settle(5)
        assert recovery.auditor is not None
        assert recovery.auditor.placement is not None
        assert (recovery.auditor.placement.not_adhering, recovery.auditor.placement.marked) == (1, 0)
        assert not world.ever_marked
        # Another auditor, Java's perhaps, marks it: the mark goes, and the ledger stays as it is.
        await world.marks.mark_placement(ledger_id)
        await world.until_repaired()
        assert await world.metadata(ledger_id) == before


@virtual_time
async def test_an_open_ledger_is_its_writer_s(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Misplaced(monkeypatch, {"eu": 3, "us": 2}) as world:
        for name, region in world.region.items():
            if region == "us":
                await world.registry.unregister(name)
        writer = await world.writer(5)
        for name, region in world.region.items():
            if region == "us":
                await world.bring_back(name)
        before = await world.metadata(writer.ledger_id)
        await world.recover("r1", MENDING)
        await world.marks.mark_placement(writer.ledger_id)
        await world.until_repaired()
        assert await world.metadata(writer.ledger_id) == before
        await writer.add(b"it goes on")
        await writer.close()


@virtual_time
async def test_what_cannot_be_mended_now_is_reported_and_tried_at_the_next_check(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Misplaced(monkeypatch, {"eu": 4, "us": 1}) as world:
        ledger_id = await world.in_one_region(8)
        lone = next(name for name in world.bookies if world.region[name] == "us")
        await world.lose(lone)
        recovery = await world.recover("r1", MENDING)

        async def reported() -> bool:
            return bool(recovery.worker.mender.unmended)

        await world.until(reported)
        await world.until_repaired()
        assert "so that the rule is kept (there are: 1 in eu)" in recovery.worker.mender.unmended[ledger_id]
        await asyncio.sleep(30)
        words = [r.message for r in caplog.records if "until the next check of placement" in r.message]
        assert len(words) == 1, "it is not tried again and again"
        await world.bring_back(lone)
        await world.until_mended(ledger_id)
        await world.assert_whole(ledger_id, 8)
        assert not recovery.worker.mender.unmended


@virtual_time
async def test_nothing_is_moved_while_locations_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Misplaced(monkeypatch, {"eu": 3, "us": 2}) as world:
        ledger_id = await world.in_one_region(8)
        before = await world.metadata(ledger_id)
        world.places.fails = True
        recovery = await world.recover("r1", MENDING)
        await world.marks.mark_placement(ledger_id)  # by Java's auditor, say
        await world.until_repaired()
        await next_check(world, recovery)
        assert await world.metadata(ledger_id) == before
        world.places.fails = False
        await asyncio.sleep(60)  # locations that are not known are asked for once a minute
        await world.until_mended(ledger_id)


@virtual_time
async def test_a_lost_node_is_restored_before_copies_of_other_ledgers_are_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Misplaced(monkeypatch, {"eu": 5, "us": 2}) as world:
        misplaced = [await world.in_one_region(6) for _ in range(30)]
        lost = [misplaced[7], misplaced[23]]
        for ledger_id in misplaced:
            await world.marks.mark_placement(ledger_id)
        for ledger_id in lost:  # as the check by reading does
            name = (await world.metadata(ledger_id)).last_ensemble.bookies[0]
            del world.bookies[name].ledgers[ledger_id]
            await world.marks.mark(ledger_id, [name])
        taken: list[int] = []

        def note(_session: int, operation: str, path: str) -> None:
            if operation == "create" and "/locks/urL" in path:
                taken.append(int(path.rpartition("urL")[2]))

        world.tree.inject = note
        await world.recover("r1", replace(MENDING, periodic_placement_check_interval_s=0, periodic_check_interval_s=0))
        await world.until_repaired()
        assert set(taken[:2]) == set(lost)
        assert sorted(taken) == misplaced
        await world.until_mended(*misplaced)
        for ledger_id in misplaced:
            await world.assert_whole(ledger_id, 6)


@virtual_time
async def test_lost_copies_are_restored_first_and_then_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Misplaced(monkeypatch, {"eu": 4, "us": 2}) as world:
        ledger_id = await world.in_one_region(12)
        await world.lose((await world.metadata(ledger_id)).last_ensemble.bookies[1])
        await world.recover("r1", MENDING)
        await world.until_mended(ledger_id)
        await world.until_repaired()
        await world.assert_whole(ledger_id, 12)


@virtual_time
async def test_a_copy_that_cannot_be_stored_leaves_the_ledger_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Misplaced(monkeypatch, {"eu": 3, "us": 1}) as world:
        ledger_id = await world.in_one_region(8)
        before = await world.metadata(ledger_id)
        lone = next(name for name in world.bookies if world.region[name] == "us")
        world.bookies[lone].silent = True
        recovery = await world.recover("r1", MENDING)

        async def reported() -> bool:
            return bool(recovery.worker.mender.unmended)

        await world.until(reported)
        assert await world.metadata(ledger_id) == before
        world.bookies[lone].silent = False
        await world.until_mended(ledger_id)
        await world.assert_whole(ledger_id, 8)


@pytest.mark.parametrize("seed", range(6))
@virtual_time
async def test_workers_that_crash_at_any_moment_leave_every_copy_that_is_named(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    async with Misplaced(monkeypatch, {"eu": 4, "us": 2, "ap": 2}, seed=seed) as world:
        counts = [rng.randint(1, 12) for _ in range(4)]
        ledgers = [await world.in_one_region(count, e=rng.choice([3, 4])) for count in counts]

        async def watch() -> None:
            while True:
                for ledger_id, count in zip(ledgers, counts, strict=True):
                    await world.assert_whole(ledger_id, count)
                await asyncio.sleep(0.002)

        watching = asyncio.ensure_future(watch())
        await world.recover("steady", MENDING)
        for number in range(4):
            await world.recover(f"r{number}", MENDING)
            for ledger_id in ledgers:
                await world.marks.mark_placement(ledger_id)
            await asyncio.sleep(rng.choice([0, 0.005, 0.02, 0.05, 0.2]))
            await world.crash(f"r{number}")
        await world.until_mended(*ledgers)
        await world.until_repaired()
        assert not watching.done() or watching.exception() is None, watching.exception()
        watching.cancel()
        for ledger_id, count in zip(ledgers, counts, strict=True):
            await world.assert_whole(ledger_id, count)


@virtual_time
async def test_ensembles_that_another_has_changed_meanwhile_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Misplaced(monkeypatch, {"eu": 4, "us": 2}) as world:
        ledger_id = await world.in_one_region(3)
        members = (await world.metadata(ledger_id)).last_ensemble.bookies
        spare = next(name for name in world.bookies if world.region[name] == "eu" and name not in members)
        recovery = await world.recover("r1", replace(MENDING, periodic_placement_check_interval_s=0))
        moving = recovery.worker.mender._replicator._copy_to

        async def and_another_writes(*arguments: object) -> int:
            stored = await moving(*arguments)  # type: ignore[arg-type]
            current = await world.ledgers.read(ledger_id)
            old = current.value.last_ensemble.bookies[2]
            world.bookies[spare].ledgers[ledger_id] = world.bookies[old].ledgers[ledger_id]
            changed = current.value.with_copies_on(0, {2: (old, spare)})
            assert changed is not None
            await world.ledgers.write(ledger_id, changed, current.version)
            return stored

        monkeypatch.setattr(recovery.worker.mender._replicator, "_copy_to", and_another_writes)
        await world.marks.mark_placement(ledger_id)
        await world.until_repaired()
        assert "the moves were not entered" in recovery.worker.mender.unmended[ledger_id]
        assert await world.regions_of(ledger_id) == [{"eu"}]
        await world.assert_whole(ledger_id, 3)


@virtual_time
async def test_a_node_that_strangers_wrote_to_under_the_ledgers_id_gets_no_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Misplaced(monkeypatch, {"eu": 3, "us": 4}) as world:
        ledger_id = await world.in_one_region(8)
        abroad = [name for name in world.bookies if world.region[name] == "us"]
        for name in abroad[:3]:
            world.bookies[name].ledger(ledger_id).key = b"another's"
        recovery = await world.recover("r1", replace(MENDING, periodic_placement_check_interval_s=0))
        await world.marks.mark_placement(ledger_id)
        await world.until_mended(ledger_id)
        await world.until_repaired()
        metadata = await world.assert_whole(ledger_id, 8)
        assert abroad[3] in metadata.last_ensemble.bookies
        assert not recovery.worker.mender.unmended

        # Where all of them are, the ledger stays as it is, and the reason is said.
        ledger_id = await world.in_one_region(8)
        for name in abroad:
            world.bookies[name].ledger(ledger_id).key = b"another's"
        before = await world.metadata(ledger_id)
        await world.marks.mark_placement(ledger_id)
        await world.until_repaired()
        assert await world.metadata(ledger_id) == before
        assert "so that the rule is kept" in recovery.worker.mender.unmended[ledger_id]


@virtual_time
async def test_once_the_lock_is_lost_no_further_fragment_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Misplaced(monkeypatch, {"eu": 3, "us": 2}) as world:
        ledger_id = await world.in_one_region(20)
        current = await world.ledgers.read(ledger_id)
        bookies = current.value.last_ensemble.bookies
        halves = replace(current.value, ensembles=(Ensemble(0, bookies), Ensemble(10, bookies)))
        await world.ledgers.write(ledger_id, halves, current.version)
        recovery = await world.recover("r1", replace(MENDING, periodic_placement_check_interval_s=0))
        found = await recovery.worker._checker.inspect(ledger_id)
        with pytest.raises(NotAppliedError, match="session that held the ledger's lock has ended"):
            await recovery.worker.mender.mend(found, lambda: False)
        stored = [world.bookies[name].ledgers.get(ledger_id) for name in world.bookies if world.region[name] == "us"]
        assert [len(one.entries) for one in stored if one is not None] == [10], "of the first fragment"
        assert not recovery.worker.mender.unmended
        assert (await world.metadata(ledger_id)).ensembles == halves.ensembles


@virtual_time
async def test_a_region_that_is_disallowed_gets_no_copies_by_racks_either(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    by_racks = PlacementSettings(network_topology_script_file_name="places")
    async with Misplaced(monkeypatch, {"eu": 3, "us": 5, "ap": 1}) as world:
        topology = TopologyStore(world.marks.store)
        await topology.disallow("us")
        whole, alone = await world.in_one_region(6), await world.in_one_region(6)
        await world.lose((await world.metadata(whole)).last_ensemble.bookies[0])
        await world.recover("r1", replace(QUICK, client=replace(QUICK.client, placement=by_racks)))
        await world.until_marked([whole, alone])
        await world.until_repaired()
        for ledger_id in (whole, alone):
            assert await world.regions_of(ledger_id) == [{"eu", "ap"}]
            await world.assert_whole(ledger_id, 6)
        await topology.disallow("ap")
        await world.lose((await world.metadata(whole)).last_ensemble.bookies[1])
        await asyncio.sleep(10)
        assert set(await world.marked()) == {whole, alone}, "there is no place for its copy"
        assert "allow a region that is disallowed" in caplog.text
        await topology.allow("us")
        await world.until_repaired()
        for ledger_id in (whole, alone):
            await world.assert_whole(ledger_id, 6)


class LoopClock(SystemClock):
    """The virtual time of the running loop, as a time of day."""

    def now_ms(self) -> int:
        return 1_000_000 + int(asyncio.get_running_loop().time() * 1000)


@virtual_time
async def test_marks_that_grow_old_are_counted_by_the_check_of_placement(caplog: pytest.LogCaptureFixture) -> None:
    async with RecoveryWorld(3) as world:
        ledger_id, other = await world.closed(3), await world.closed(3)
        gone = (await world.metadata(ledger_id)).last_ensemble.bookies[0]
        await world.lose(gone)  # and there is no other node for its copies
        settings = replace(QUICK, periodic_placement_check_interval_s=100, underreplicated_grace_period_s=250)
        recovery = await world.recover("r1", settings, LoopClock())
        await world.until_marked([ledger_id, other])
        await world.marks.remove_mark(other, 0)
        await world.marks.mark(other, [gone])  # without a time: it is not known since when
        await world.settle(5)
        counts = []
        for _ in range(4):
            assert recovery.auditor is not None
            assert recovery.auditor.placement is not None
            counts.append(recovery.auditor.placement.overdue)
            await world.marks.mark(ledger_id, [gone], LoopClock().now_ms())  # found again: it grows no younger
            if len(counts) < 4:
                await next_check(world, recovery)
        assert counts == [0, 0, 0, 1]
        words = [r.message for r in caplog.records if r.levelno == logging.ERROR and "are not repaired" in r.message]
        assert words == [f"1 ledgers have been marked for more than 250 s and are not repaired: {ledger_id}"]


def test_the_keys_are_upstream_s() -> None:
    found = NodeFile(
        {"repairedPlacementPolicyNotAdheringBookieEnable": "true", "underreplicatedLedgerRecoveryGracePeriod": "60"}
    ).auto_recovery()
    assert (found.repair_placement, found.underreplicated_grace_period_s) == (True, 60)
    assert not AutoRecoverySettings().repair_placement
