"""`LogMover`: one pass over one log: everything that is due, oldest first, under the lock of the log's worker.

    what a dead worker left is given up
    the next unit is copied, as long as one is due
    hot copies that are due go, then files that are due, then files that were replaced

Each decision is made from a new look at the log, so that a pass may be broken off and taken up by another worker at any
line. The lock spares work that is done twice, and nothing more: a worker that has lost it without noticing changes
nothing that another one has changed (`ColdStore`). A failure ends what failed for this pass, and nothing else.

Which clock counts: what is deleted for its age is believed to be old by the earlier of this host's clock and the
metadata store's, whose stamp on the lock's member is a moment old.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dlspark.cold.lake.syncing import release_unit
from dlspark.cold.moving.clocks import ahead_ms
from dlspark.cold.moving.machine import Phase
from dlspark.cold.moving.mirroring import delete_copies
from dlspark.cold.moving.owning import check_owner, may_delete
from dlspark.cold.moving.pictures import LogLook, LogPictures
from dlspark.cold.moving.planning import candidates, plan_cold_deletion, plan_hot_deletion, plan_unit
from dlspark.cold.moving.stores import MoverStores
from dlspark.cold.moving.unit_steps import UnitSteps
from dlspark.core.metrics.structured_logging import about
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.core.write_lock import release
from dlspark.errors import DamagedColdFileError
from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_places import UnitState
from metadata.distributedlog.cold_steps import ColdMovedError
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import ColdUnit
from metadata.distributedlog.locks import DistributedLock, OwnershipAcquireFailedError
from metadata.foundation import fault_points
from metadata.foundation.errors import DistributedLogError, InvariantViolation
from metadata.retry import repeat

_log = logging.getLogger(__name__)

REPLACED_LAG_S: Final = 600
"""How long a file stays that another one has taken the place of: for readers that are inside it. One that comes later
finds it gone, looks at the list, and goes on in the other file."""
_CLOCK_WARN_MS: Final = 5 * 60 * 1000


@dataclass(slots=True)
class MoverPass:
    """What did a pass do?

    Args:
        busy: who works at this log, where another worker does: then nothing was looked at.
        moved: units that were made.
        hot_deleted: units whose hot copies went.
        cold_deleted: units that are gone.
        replaced_deleted: addresses of replaced files that went.
        left: addresses of objects that nothing of this log names any more and that stay: their place belongs to another
            ZooKeeper's copy of the namespace.
        copies_left: copies of such that may be left in mirrors, in words; the sweep finds them.
        problems: what failed, in words.
        lag_ms: how long the oldest segment has been waiting that is completed and in no file; 0 for none.
        next_ms: when something is due next, as far as only time is missing; None: nothing is.
    """

    busy: str | None = None
    moved: list[ColdUnit] = field(default_factory=list)
    hot_deleted: list[ColdUnit] = field(default_factory=list)
    cold_deleted: list[ColdUnit] = field(default_factory=list)
    replaced_deleted: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    copies_left: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    lag_ms: int = 0
    next_ms: int | None = None

    def due(self, moment_ms: int) -> None:
        """Note a moment to look again at."""
        self.next_ms = moment_ms if self.next_ms is None else min(self.next_ms, moment_ms)


class LogMover:
    """How does the past of one log move? `run` does what is due.

    Args:
        services: of the namespace.
        cold: what is said of cold storage there.
        stores: where files are.
        name: the log.
        settings: gives those that hold now.
        worker: how this process is named, for people.
    """

    def __init__(
        self,
        services: Services,
        cold: ColdStore,
        stores: MoverStores,
        name: str,
        settings: Callable[[], Settings],
        worker: str,
    ) -> None:
        self.name = name
        self._services = services
        self._cold = cold
        self._stores = stores
        self._settings = settings
        self._worker = worker
        self._pictures = LogPictures(services, cold, name)
        self._ahead_ms = 0

    async def run(self, *, at_once: bool = False) -> MoverPass:
        """Do what is due; with `at_once` copy every completed segment, due or not.

        Raises LogNotFoundError, and what keeps the metadata store from being read.
        """
        done = MoverPass()
        lock = await self._cold.worker(self.name, self._worker)
        try:
            await lock.acquire(0)
        except OwnershipAcquireFailedError as error:
            done.busy = error.owner
            return done
        try:
            await self._look_at_clocks(lock)
            if not await self._is_own_place(done):
                return done
            # Upstream's truncation knows the list alone: what it has hidden is hidden in files as well.
            await self._cold.follow_truncation(self.name)
            await self._give_up_attempts(done)
            await self._move(done, at_once=at_once)
            await self._note_mirrors(done)
            await self._delete_hot(done)
            await self._delete_cold(done)
            await self._delete_replaced(done)
        finally:
            await release(lock)
        return done

    async def _is_own_place(self, done: MoverPass) -> bool:
        """Return whether the place for files is this namespace's; nothing is done for a copy of it (`owning`)."""
        settings = self._settings()
        if settings.cold_root:
            options = settings.cold_write_options
            try:
                await check_owner(self._services, self._cold, self._stores, settings.cold_root, options)
            except InvariantViolation:
                raise
            except DistributedLogError as error:
                self._failed(done, "see whose the place for files is", error)
                return False
        return True

    # ------------------------------------------------------------------ clocks

    async def _look_at_clocks(self, lock: DistributedLock) -> None:
        ahead = await ahead_ms(self._services, lock)
        self._ahead_ms = self._ahead_ms if ahead is None else ahead
        if self._ahead_ms > _CLOCK_WARN_MS:
            _log.warning(
                "log %s: this host's clock is %d s ahead of the metadata store's, by which copies expire. Set it, and "
                "keep it by NTP",
                self.name,
                self._ahead_ms // 1000,
                extra=about(log=self.name),
            )

    @property
    def _old_ms(self) -> int:
        """The moment by which something is old enough to go."""
        return self._services.clock.now_ms() - self._ahead_ms

    # ------------------------------------------------------------------ steps

    def _steps(self) -> UnitSteps:
        return UnitSteps(self._services, self._settings(), self._cold, self._stores, self.name, self._worker)

    async def _give_up_attempts(self, done: MoverPass) -> None:
        """Give up what other workers have begun: this one has the lock, so they are dead, or stand still. One that goes
        on finds its attempt gone, and finishes nothing.

        First in ZooKeeper, whatever can be said of the object's place: that may be out of reach for ever, or another
        namespace's, and the segments would never be copied again. The object's name is never used again.
        """
        for attempt in (await self._pictures.look()).attempts:
            url, options = attempt.value.url, attempt.value.options
            doing = "give up what another worker had begun"
            try:
                await self._cold.copies.abandon(self.name, attempt)
                fault_points.reach("cold.attempt-given-up")
                doing = f"delete {url}, which another worker had begun and nothing names any more"
                # A copy of the namespace has a copy of the attempt, which is not dead where it was made.
                if await may_delete(self._services, self._cold, self._stores, url, options):
                    await self._stores.at(url, options).delete(url)
                else:
                    done.left.append(url)
            except InvariantViolation:
                raise
            except DistributedLogError as error:
                self._failed(done, doing, error)

    async def _move(self, done: MoverPass, *, at_once: bool) -> None:
        while True:
            look = await self._pictures.look()
            waiting = candidates(look.picture)
            sizes = await self._pictures.ledger_bytes(waiting)
            now_ms = self._services.clock.now_ms()
            done.lag_ms = max(0, now_ms - min(one.completion_time_ms for one in waiting)) if waiting else 0
            plan = plan_unit(look.picture, sizes, self._settings(), now_ms)
            if not plan.segments:
                return
            if plan.due_ms > now_ms and not at_once:
                done.due(plan.due_ms)
                return
            steps = self._steps()
            phase = await steps.move(plan.segments)
            if phase is not Phase.RESTING or steps.unit is None:
                self._failed(done, f"move segments {plan.first} to {plan.last}", steps.error)
                return
            unit = steps.unit.value
            done.moved.append(unit)
            self._count_moved(unit)

    def _count_moved(self, unit: ColdUnit) -> None:
        measures = self._services.meter.root
        measures.cold_files.inc(int(unit.file is not None))
        measures.cold_file_bytes.inc(unit.file.bytes if unit.file is not None else 0)
        measures.cold_ledger_bytes.inc(sum(one.bytes for one in unit.segments))
        _log.info(
            "log %s: segments %d to %d are in %s",
            self.name,
            unit.first,
            unit.last,
            unit.file.url if unit.file is not None else "no file, for they have no records",
            extra=about(log=self.name),
        )

    async def _note_mirrors(self, done: MoverPass) -> None:
        """Have the log name its mirrors: stores may fill them by themselves, and readers go by what the log names."""
        wanted = tuple(one.noted for one in self._settings().cold_mirrors)
        seen = (await self._pictures.look()).picture.cold
        if wanted and seen is not None and seen.mirrors[: len(wanted)] != wanted:
            try:
                await self._cold.note_mirrors(self.name, wanted)
            except InvariantViolation:
                raise
            except DistributedLogError as error:
                self._failed(done, "note the log's mirrors", error)

    async def _delete_hot(self, done: MoverPass) -> None:
        while True:
            look = await self._pictures.look()
            plan = plan_hot_deletion(look.picture, self._settings(), self._old_ms)
            if plan.unit is None or plan.block is not None:
                if plan.due_ms is not None:
                    done.due(plan.due_ms + self._ahead_ms)
                return
            steps = self._steps()
            phase = await steps.delete_hot(look.unit(plan.unit))
            if phase is not Phase.RESTING:
                self._failed(done, f"delete the hot copies of unit {plan.unit.name}", steps.error)
                return
            done.hot_deleted.append(plan.unit)
            self._services.meter.root.cold_hot_deleted.inc(len(plan.unit.segments))

    async def _delete_cold(self, done: MoverPass) -> None:
        while True:
            look = await self._pictures.look()
            plan = plan_cold_deletion(look.picture, self._settings())
            if plan.unit is None:
                return
            if plan.due_ms > self._old_ms:
                done.due(plan.due_ms + self._ahead_ms)
                return
            steps = self._steps()
            begun = plan.unit.state is UnitState.COLD_DELETE_STARTED
            phase = await steps.delete_cold(look.unit(plan.unit), begun=begun)
            done.left += steps.left
            done.copies_left += steps.copies_left
            if phase is not Phase.GONE:
                self._failed(done, f"delete the file of unit {plan.unit.name}", steps.error)
                return
            done.cold_deleted.append(plan.unit)
            self._services.meter.root.cold_deleted.inc()

    async def _delete_replaced(self, done: MoverPass) -> None:
        look: LogLook = await self._pictures.look()
        for unit in look.units:
            if unit.value.replaced and unit.value.state is not UnitState.COLD_DELETE_STARTED:
                try:
                    await self._delete_replaced_of(unit, done)
                except InvariantViolation:
                    raise
                except DistributedLogError as error:
                    self._failed(done, f"delete the replaced files of unit {unit.value.name}", error)

    async def _delete_replaced_of(self, unit: Versioned[ColdUnit], done: MoverPass) -> None:
        store = self._services.store
        path = f"{(await self._services.logs.located(self.name)).cold_units}/{unit.value.name}"
        stat = await repeat(store, lambda: store.exists(path))
        if stat is None:
            return
        due_ms = stat.mtime_ms + REPLACED_LAG_S * 1000
        if due_ms > self._old_ms:
            done.due(due_ms + self._ahead_ms)
            return
        # As it is now, and its own file must be there: who put it in place may have stood still until it was swept.
        # Then the replaced one is the only copy, and stays.
        now = await self._cold.unit(self.name, unit.value.first, unit.value.last)
        if now != unit:
            return  # changed meanwhile: it is looked at again with the next pass
        file = unit.value.file
        if file is not None:
            info = await self._stores.of(file).head(file.url)
            if info.bytes != file.bytes:
                raise DamagedColdFileError(
                    f"it has {info.bytes} bytes, not {file.bytes} as were written; what it replaced stays", url=file.url
                )
        # Before the objects: a lake table must not name a file that is not there.
        await release_unit(self._services.logs, self.name, unit.value)
        about_log = await self._cold.cold_log(self.name)
        mirrors = about_log.value.mirrors if about_log is not None else ()
        for old in unit.value.replaced:
            copies = await delete_copies(self._services, self._cold, self._stores, mirrors, old)
            ours = old.borrowed or await may_delete(self._services, self._cold, self._stores, old.url, old.options)
            if ours and not old.borrowed:
                await self._stores.of(old).delete(old.url)
                fault_points.reach("cold.replaced-deleted")
            if copies:
                # Erased records are in there: as long as that is noted, each pass tries again, and an erasure says so.
                done.problems += copies
                self._services.meter.root.cold_failures.inc()
                continue
            unit = await self._cold.forget_replaced(self.name, unit, old.url)
            (done.replaced_deleted if ours else done.left).append(old.url)

    def _failed(self, done: MoverPass, doing: str, error: DistributedLogError | None) -> None:
        if error is None or isinstance(error, ColdMovedError):
            self._pictures.forget()  # also what was changed by hand, which nothing tells of, is read with the next look
        said = str(error) if error is not None else "another worker was faster"
        done.problems.append(f"could not {doing}: {said}")
        self._services.meter.root.cold_failures.inc()
        _log.warning("log %s: could not %s: %s", self.name, doing, said, extra=about(log=self.name))
