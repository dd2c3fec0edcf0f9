"""Ledgers whose copies do not lie as the placement policy wants are found, counted and named."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.recovery_world import QUICK, RecoveryWorld

from metadata.bookkeeper.auditors import PeriodicCheck
from metadata.bookkeeper.bookies import BookieAddress, BookieRegistry
from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata, LedgerState
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from storage_node.autorecovery import auditor
from storage_node.autorecovery.auditor import PlacementCheck, PlacementReport
from storage_node.client.client import LedgerClient
from storage_node.client.placement.arranging import Adherence
from storage_node.client.placement.racks import StaticResolver
from storage_node.settings.client import ClientSettings
from storage_node.settings.files import NodeFile

RACKS = {"a0": "/a", "a1": "/a", "a2": "/a", "b0": "/b"}
UNKNOWN = {"x0": "", "x1": "", "x2": ""}


class Ledgers:
    """Ledgers of a cluster with two racks, and a client that knows them."""

    def __init__(self) -> None:
        self.store = MemoryStore(MemoryTree())
        self.ledgers = LedgerStore(self.store)
        self.registry = BookieRegistry(self.store)
        self.client = LedgerClient(
            self.ledgers,
            self.registry,
            settings=ClientSettings(),
            racks=StaticResolver({**RACKS, "x0": "", "x1": "", "x2": ""}),
        )

    async def create(self, ledger_id: int, *ensembles: Sequence[str], closed: bool = True) -> None:
        parts = tuple(Ensemble(10 * n, tuple(f"{b}:1" for b in names)) for n, names in enumerate(ensembles))
        size = len(ensembles[0])
        state = LedgerState.CLOSED if closed else LedgerState.OPEN
        last = 99 if closed else -1
        await self.ledgers.create(ledger_id, LedgerMetadata(size, size, 2, parts, state=state, last_entry=last))

    async def check(self) -> PlacementReport:
        return await PlacementCheck(self.ledgers, self.client.judge_placement).run()


@pytest.fixture
async def placed() -> AsyncIterator[Ledgers]:
    placed = Ledgers()
    await placed.ledgers.format()
    for name in (*RACKS, "x0"):
        await placed.registry.register(BookieAddress(f"{name}:1", name, 1))
    yield placed
    await placed.client.close()
    await placed.store.close()


async def test_a_closed_ledger_is_as_good_as_its_worst_fragment(
    placed: Ledgers, caplog: pytest.LogCaptureFixture
) -> None:
    await placed.create(1, ("a0", "b0", "a1"))
    await placed.create(2, ("a0", "a1", "a2"))
    await placed.create(3, ("a0", "b0", "a1"), ("a0", "a1", "a2"))
    await placed.create(4, ("a0", "x0", "a1"))
    await placed.create(5, ("a0", "gone", "a1"))
    await placed.create(6, ("a0", "a1", "a2"), closed=False)
    await placed.store.create(placed.ledgers.path(7), b"nonsense", make_parents=True)
    report = await placed.check()
    assert report == PlacementReport(closed=5, not_adhering=2, softly_adhering=2, unreadable=1)
    assert {ledger: [part.bookies for part in parts] for ledger, parts in report.soft.items()} == {
        4: [("a0:1", "x0:1", "a1:1")],
        5: [("a0:1", "gone:1", "a1:1")],
    }
    named = [record.message for record in caplog.records if "placement policy" in record.message]
    assert named == [
        "ledger 2 does not keep the placement policy: from entry 0 on a0:1, a1:1, a2:1",
        "ledger 3 does not keep the placement policy: from entry 10 on a0:1, a1:1, a2:1",
    ]


async def test_none_is_marked_of_which_it_is_not_known_where_its_bookies_lie(placed: Ledgers) -> None:
    for name in ("x1", "x2"):
        await placed.registry.register(BookieAddress(f"{name}:1", name, 1))
    await placed.create(1, ("x0", "x1", "x2"))
    await placed.create(2, ("a0", "a1", "a2"))
    await placed.create(3, ("x0", "x1", "x2"), ("a0", "a1", "a2"))
    marked: list[int] = []

    async def mark(ledger_id: int) -> None:
        marked.append(ledger_id)

    client = placed.client
    report = await PlacementCheck(placed.ledgers, client.judge_placement, mark, client.knows_places).run()
    assert (report.not_adhering, report.marked, report.unlocated) == (3, 2, 1)
    assert sorted(marked) == [2, 3], "one fragment can be mended"


@virtual_time
async def test_without_racks_no_ledger_is_marked() -> None:
    async with RecoveryWorld(4) as world:
        await world.closed(3)
        recovery = await world.recover(
            "r1", replace(QUICK, periodic_placement_check_interval_s=1_000_000, repair_placement=True)
        )

        async def checked() -> bool:
            return recovery.auditor is not None and recovery.auditor.placement is not None

        await world.until(checked)
        assert recovery.auditor is not None
        assert recovery.auditor.placement == PlacementReport(closed=1, not_adhering=1, unlocated=1)
        assert not world.ever_marked


async def test_a_verdict_is_asked_for_once_and_the_memory_of_them_is_bounded(
    placed: Ledgers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(auditor, "MAX_NAMED", 3)
    monkeypatch.setattr(auditor, "METADATA_READS", 1)
    asked: list[tuple[str, ...]] = []

    async def judge(bookies: Sequence[str], metadata: LedgerMetadata) -> Adherence:
        asked.append(tuple(bookies))
        return Adherence.FAIL

    for ledger_id in range(20):
        await placed.create(ledger_id, ("a0", "a1") if ledger_id % 2 else ("a1", "a0"))
    report = await PlacementCheck(placed.ledgers, judge).run()
    assert (report.closed, report.not_adhering, len(asked)) == (20, 20, 2)
    assert sum("does not keep" in record.message for record in caplog.records) == 3
    monkeypatch.setattr(auditor, "MAX_VERDICTS", 1)
    asked.clear()
    assert (await PlacementCheck(placed.ledgers, judge).run()).not_adhering == 20
    assert len(asked) == 20


@virtual_time
async def test_the_auditor_checks_once_an_interval_also_over_its_successors(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with RecoveryWorld(4) as placed:
        await placed.closed(3)
        settings = replace(QUICK, periodic_placement_check_interval_s=1_000_000)
        first = await placed.recover("r1", settings)
        await placed.settle(5)
        assert first.auditor is not None
        assert first.auditor.placement == PlacementReport(closed=1, not_adhering=1), "nobody tells the racks"
        assert await placed.auditors.last_run_ms(PeriodicCheck.PLACEMENT_POLICY) is not None
        await placed.end("r1")
        second = await placed.recover("r2", settings)
        await placed.settle(5)
        assert second.auditor is not None
        assert second.auditor.placement is None, "its predecessor's check was a moment ago"


@virtual_time
async def test_without_an_interval_nothing_is_checked() -> None:
    async with RecoveryWorld(4) as placed:
        await placed.closed(3)
        recovery = await placed.recover()
        await placed.settle(5)
        assert recovery.auditor is not None
        assert recovery.auditor.placement is None
        assert await placed.auditors.last_run_ms(PeriodicCheck.PLACEMENT_POLICY) is None


@virtual_time
async def test_while_auto_recovery_is_off_nothing_is_checked() -> None:
    async with RecoveryWorld(4) as placed:
        await placed.closed(3)
        await placed.marks.disable()
        recovery = await placed.recover("r1", replace(QUICK, periodic_placement_check_interval_s=1))
        await asyncio.sleep(20)
        assert recovery.auditor is not None
        assert recovery.auditor.placement is None
        await placed.marks.enable()
        await asyncio.sleep(20)
        assert recovery.auditor.placement is not None


def test_the_interval_has_upstreams_key() -> None:
    found = NodeFile({"auditorPeriodicPlacementPolicyCheckInterval": "3600"}).auto_recovery()
    assert found.periodic_placement_check_interval_s == 3600
