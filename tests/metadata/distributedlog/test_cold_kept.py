"""What is kept of units is what their znodes have, versions included, whatever other workers do in between."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from helpers.cold.unit_znodes import ROOT, add, cold_log, copy_segment, log_store, make_cold_log

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog import cold_units
from metadata.distributedlog.cold_kept import UnitKeeper
from metadata.distributedlog.cold_places import UnitState
from metadata.distributedlog.cold_returns import ColdReturns, returning
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import ColdUnit
from metadata.distributedlog.log_admin import LogAdmin
from metadata.distributedlog.logs import LogStore
from metadata.foundation.errors import CallerError, NotAppliedError
from metadata.store import Create, Delete
from metadata.zookeeper.memory import MemoryTree

Between = Callable[[], Awaitable[object]]


async def _nothing() -> None:
    pass


class Looker:
    """A worker that looks at the log, and counts the units that it reads."""

    def __init__(self, logs: LogStore) -> None:
        self.logs = logs
        self.keeper = UnitKeeper(logs.store)
        self._asked: list[str] = []
        logs.store.observe(lambda operation, path, seconds, error: self._asked.append(f"{operation} {path}"))

    async def look(self, log: Between = _nothing, units: Between = _nothing) -> list[Versioned[ColdUnit]]:
        """Return the units; `log` and `units` happen right after each of them was read."""
        self._asked.clear()
        paths = self.logs.paths("log")
        seen = await self.keeper.log(paths)
        assert seen is not None
        await log()
        found = await self.keeper.units(paths, seen)
        await units()
        listed = {one.lssn for one in await self.logs.hot_segments("log")}
        return await self.keeper.settled(paths, seen, found, listed)

    @property
    def read(self) -> list[int]:
        """The units that the last look has read, by their first segments."""
        parent = f"get {self.logs.paths('log').cold_units}/"
        return sorted(int(one[len(parent) :].split("-")[0]) for one in self._asked if one.startswith(parent))


class Worker:
    """Another worker, which takes steps of all kinds."""

    def __init__(self, logs: LogStore) -> None:
        self.logs = logs
        self.cold = ColdStore(logs)
        self._number = 0

    async def unit(self, index: int) -> Versioned[ColdUnit]:
        """Return the unit of this index."""
        return (await self.cold.units("log"))[index]

    async def copy(self) -> None:
        """Make a unit of the oldest segment without one; and put one more on the list."""
        newest = [one.lssn for one in await self.logs.hot_segments("log")][-1]
        await add(self.logs, newest + 1)
        await copy_segment(self.logs, (await self.cold.units("log"))[-1].value.last + 1)

    async def delete_hot(self) -> None:
        """Delete the hot copies of the oldest FINISHED unit."""
        found = [one for one in await self.cold.units("log") if one.value.state is UnitState.FINISHED]
        await self.cold.delete_hot("log", found[0], now_ms=3)

    async def erase(self, index: int) -> None:
        """Put another file in place of a unit's."""
        self._number += 1
        now = await self.unit(index)
        file = replace(now.value.file, url=f"{ROOT}/erased-{self._number}")
        await self.cold.replace_file("log", now, file, attempt=f"erased-{self._number}")

    async def forget_erased(self, index: int) -> None:
        """Forget what a unit's file replaced."""
        now = await self.unit(index)
        for one in now.value.replaced:
            now = await self.cold.forget_replaced("log", now, one.url)

    async def restore(self) -> None:
        """Put the segments of the newest unit without hot copies back into the list."""
        returns = ColdReturns(self.logs)
        view = await returns.view("log")
        unit = view.next_to_return()
        if unit is None:
            return
        self._number += 1
        back = [
            replace(one, ledger_id=5_000_000 + 1_000 * self._number + one.lssn)
            for one in returning(unit.value, view.cold.value.truncated_to)
        ]
        listings = {one.ledger_id: Create(f"/listing-{one.ledger_id}") for one in back}
        await returns.put_back("log", view, unit, back, listings, keep_hot_until_ms=None)

    async def begin_cold_delete(self) -> None:
        """Hide the oldest unit that is not hidden, for good."""
        found = [one for one in await self.cold.units("log") if one.value.state is not UnitState.COLD_DELETE_STARTED]
        await self.cold.begin_cold_delete("log", found[0])

    async def end_cold_delete(self) -> None:
        """Remove the oldest unit, if it is hidden."""
        now = await self.unit(0)
        if now.value.state is UnitState.COLD_DELETE_STARTED:
            await self.cold.end_cold_delete("log", now)

    async def rename(self) -> None:
        """Rename the log, and rename it back."""
        admin = LogAdmin(self.logs)
        await admin.rename("log", "elsewhere")
        await admin.rename("elsewhere", "log")

    async def any(self, chance: random.Random) -> None:
        """Take a step that is possible."""
        count = len(await self.cold.units("log"))
        index = chance.randrange(count)
        steps: list[Between] = [
            self.copy,
            self.delete_hot,
            lambda: self.erase(index),
            lambda: self.forget_erased(index),
            self.restore,
            self.restore,
            self.begin_cold_delete,
            self.end_cold_delete,
        ]
        try:
            await chance.choice(steps)()
        except (NotAppliedError, CallerError, IndexError):
            pass  # not of this unit now


@pytest.fixture
def tree() -> MemoryTree:
    return MemoryTree()


async def _pair(tree: MemoryTree, units: int = 10) -> tuple[Looker, Worker]:
    """Return one who has looked at a log, and another one who works at it."""
    await cold_log(tree, units, 1)
    looker, worker = Looker(await log_store(tree)), Worker(await log_store(tree))
    await looker.look()
    assert looker.read == list(range(1, units + 1))
    return looker, worker


async def _check(looker: Looker, worker: Worker, *read: int) -> None:
    assert await looker.look() == await worker.cold.units("log")
    assert looker.read == sorted(read)


async def test_a_log_of_a_thousand_units_is_read_once(tree):
    looker, worker = await _pair(tree, 1_000)
    await _check(looker, worker)
    await worker.copy()
    await _check(looker, worker, 1_001)
    assert len(looker._asked) <= 8, looker._asked
    await _check(looker, worker)
    assert len(looker._asked) <= 5, looker._asked


async def test_each_change_by_another_worker_has_that_unit_read_again(tree):
    looker, worker = await _pair(tree)
    await worker.copy()
    await _check(looker, worker, 11)
    await worker.delete_hot()
    await _check(looker, worker, 11)
    await worker.erase(4)
    await _check(looker, worker, 5)
    await _check(looker, worker, 5)  # as long as it has a replaced file
    await worker.forget_erased(4)
    await _check(looker, worker, 5)
    await _check(looker, worker)
    await worker.restore()
    await _check(looker, worker, 11)
    await _check(looker, worker)
    await worker.delete_hot()
    await worker.restore()  # both between two looks
    await _check(looker, worker, 11)
    await worker.begin_cold_delete()
    await _check(looker, worker, 1)
    await worker.begin_cold_delete()
    await worker.end_cold_delete()
    await _check(looker, worker, 2)


async def test_more_changes_than_a_log_tells_of_have_all_read_again(tree):
    looker, worker = await _pair(tree)
    for _ in range(cold_units.MAX_CHANGES + 1):
        await worker.erase(4)
        await worker.forget_erased(4)
    await _check(looker, worker, *range(1, 11))
    await _check(looker, worker)


async def test_who_looks_now_and_then_reads_no_other_however_many_changes_there_were(tree):
    looker, worker = await _pair(tree)
    for number in range(2 * cold_units.MAX_CHANGES):
        await worker.erase(4)
        await worker.forget_erased(4)
        if number % 50 == 0:
            await _check(looker, worker, 5)
    await _check(looker, worker, 5)


async def test_a_log_that_was_renamed_or_made_anew_is_read_anew(tree):
    looker, worker = await _pair(tree)
    await worker.rename()
    await _check(looker, worker, *range(1, 11))
    await worker.logs.store.multi(
        [Delete(path) for path in reversed(await _below(worker.logs, worker.logs.paths("log").root))]
    )
    await make_cold_log(worker.logs, 3, 1)
    await _check(looker, worker, 1, 2, 3)


async def _below(logs: LogStore, path: str) -> list[str]:
    found = [path]
    for name in (await logs.store.children(path))[0]:
        found += await _below(logs, f"{path}/{name}")
    return found


async def test_two_that_share_a_session_know_the_same(tree):
    looker, worker = await _pair(tree)
    other = Looker(looker.logs)
    await other.look()
    assert other.read == []
    looker.keeper.forget(looker.logs.paths("log"))
    await _check(other, worker, *range(1, 11))


async def test_what_is_marked_for_deletion_before_a_look_is_seen_so_whatever_happens_in_it(tree):
    looker, worker = await _pair(tree)
    await worker.begin_cold_delete()
    found = await looker.look(worker.begin_cold_delete, worker.begin_cold_delete)
    assert found[0].value.state is UnitState.COLD_DELETE_STARTED
    await _check(looker, worker, 1, 2, 3)


@pytest.mark.parametrize("seed", range(5))
async def test_a_look_shows_what_is_there_after_any_steps_and_those_within_a_look_with_the_next(tree, seed):
    looker, worker = await _pair(tree, 6)
    chance = random.Random(seed)

    async def some() -> None:
        for _ in range(chance.randrange(3)):
            await worker.any(chance)

    seen = set()
    for _ in range(30):
        await some()
        marked = {
            one.value.name for one in await worker.cold.units("log") if one.value.state is UnitState.COLD_DELETE_STARTED
        }
        found = await looker.look(some, some)
        states = {one.value.name: one.value.state for one in found}
        assert {states.get(one, UnitState.COLD_DELETE_STARTED) for one in marked} <= {UnitState.COLD_DELETE_STARTED}
        assert await looker.look() == await worker.cold.units("log")
        seen.update(one.value.state for one in found)
    assert len(seen) == 3
