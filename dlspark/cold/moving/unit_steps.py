"""`UnitSteps`: carries out what `UnitMachine` asks for, for one unit, and tells it what came of it.

Each effect is one call of the metadata store's `ColdStore`, of the object store, or of `copying`; each may fail in
every way there is. An error becomes one of a few events (`event_of`); what it was is kept for the report. An error that
says that a rule of our own is broken is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from dlspark.cold.lake.syncing import release_unit
from dlspark.cold.moving.copying import CopiedRun, copy_segments, read_back
from dlspark.cold.moving.machine import Effect, Event, Phase, UnitMachine
from dlspark.cold.moving.mirroring import delete_copies
from dlspark.cold.moving.owning import may_delete
from dlspark.cold.moving.stores import MoverStores
from dlspark.core.lifecycle.owned_segments import sweep
from dlspark.core.metrics.structured_logging import about
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.errors import DamagedColdFileError
from dlspark.objects.errors import (
    ObjectNotFoundError,
    ObjectOutcomeUnknownError,
    RangeShortError,
    StoreRefusedError,
)
from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_steps import ColdKeptError, ColdMovedError, ColdTakenError
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import ColdAttempt, ColdLog, ColdUnit, object_name
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation import fault_points
from metadata.foundation.errors import (
    CallerError,
    CorruptDataError,
    DistributedLogError,
    InvariantViolation,
    NoNodeError,
    OutcomeUnknownError,
    present,
)

_log = logging.getLogger(__name__)


class UnitSteps:
    """What happens to one unit of a log, until nothing more is to be done with it for now?

    Args:
        services, settings: of the log.
        cold: the namespace's units.
        stores: the mover's.
        log: its name.
        worker: who does this, for people.
    """

    def __init__(
        self,
        services: Services,
        settings: Settings,
        cold: ColdStore,
        stores: MoverStores,
        log: str,
        worker: str,
    ) -> None:
        self._services = services
        self._settings = settings
        self._cold = cold
        self._stores = stores
        self._log = log
        self._worker = worker
        self._segments: Sequence[SegmentMetadata] = ()
        self._about: ColdLog | None = None
        self._attempt: Versioned[ColdAttempt] | None = None
        self._dead: list[ColdAttempt] = []
        self._copied: CopiedRun | None = None
        self.unit: Versioned[ColdUnit] | None = None
        """The unit, as it was stored last."""
        self.error: DistributedLogError | None = None
        """The last thing that went wrong."""
        self.left: list[str] = []
        """Addresses of files that stay where their unit goes: their place is another ZooKeeper's copy's."""
        self.copies_left: list[str] = []
        """What may be left of them in mirrors, in words."""
        self._effects: Mapping[Effect, Callable[[], Awaitable[Event | None]]] = {
            Effect.BEGIN: self._begin,
            Effect.RETRY: self._retry,
            Effect.COPY: self._copy,
            Effect.READ_BACK: self._read_back,
            Effect.FINISH: self._finish,
            Effect.LOOK: self._look,
            Effect.WITHDRAW: self._withdraw,
            Effect.DISCARD: self._discard,
            Effect.HEAD: self._head,
            Effect.DELETE_HOT: self._delete_hot,
            Effect.SWEEP_LEDGERS: self._sweep_ledgers,
            Effect.BEGIN_COLD_DELETE: self._begin_cold_delete,
            Effect.DELETE_OBJECT: self._delete_object,
            Effect.END_COLD_DELETE: self._end_cold_delete,
        }

    # ------------------------------------------------------------------ the three ways

    async def move(self, segments: Sequence[SegmentMetadata]) -> Phase:
        """Copy a run of segments into a file. Returns where it ended: RESTING with `unit`, LEFT or LOST."""
        self._segments = segments
        return await self._run(UnitMachine(Phase.PLANNED), Event.PLAN)

    async def delete_hot(self, unit: Versioned[ColdUnit]) -> Phase:
        """Take a unit's hot copies away: RESTING, LEFT or LOST."""
        self.unit = unit
        return await self._run(UnitMachine(Phase.FINISHED), Event.HOT_DUE)

    async def delete_cold(self, unit: Versioned[ColdUnit], *, begun: bool) -> Phase:
        """Delete a unit with its file, or go on with that: GONE, LEFT or LOST."""
        self.unit = unit
        return await self._run(UnitMachine(Phase.DOOMED), Event.DELETION_FOUND if begun else Event.COLD_DUE)

    async def _run(self, machine: UnitMachine, event: Event) -> Phase:
        while True:
            machine, effects = machine.step(event)
            event = Event.DONE
            for effect in effects:
                event = await self._carry_out(effect)
                if event is not Event.DONE:
                    break
            if machine.ended:
                return machine.phase

    async def _carry_out(self, effect: Effect) -> Event:
        name = effect.name.lower().replace("_", "-")
        fault_points.reach(f"cold.before-{name}")
        try:
            event = await self._effects[effect]()
        except InvariantViolation:
            raise
        except DistributedLogError as error:
            self.error = error
            _log.info("log %s: to %s failed: %s", self._log, effect.value, error, extra=about(log=self._log))
            event = event_of(effect, error)
        fault_points.reach(f"cold.after-{name}")
        return event or Event.DONE

    # ------------------------------------------------------------------ into the file

    async def _begin(self) -> None:
        settings = self._settings
        self._attempt = await self._cold.copies.begin(
            self._log,
            self._segments[0].lssn,
            self._segments[-1].lssn,
            root=settings.cold_root,
            worker=self._worker,
            now_ms=self._services.clock.now_ms(),
            options=settings.cold_options,
        )
        about_log = await self._cold.cold_log(self._log)
        # By the id: a log that was made anew since has an identity too, and it is not this attempt's.
        made = self._attempt.value
        if about_log is None or not made.url.endswith(
            object_name(about_log.value, made.first, made.last, made.attempt)
        ):
            raise ColdMovedError("the log was made anew; nothing was copied", log=self._log)
        self._about = about_log.value

    async def _retry(self) -> None:
        before = self._attempt
        if before is None:
            await self._begin()  # it was certainly not done
            return
        settings = self._settings
        self._attempt = await self._cold.copies.retry(
            self._log,
            before,
            root=settings.cold_root,
            worker=self._worker,
            now_ms=self._services.clock.now_ms(),
            options=settings.cold_options,
        )
        self._dead.append(before.value)

    @property
    def _known_attempt(self) -> Versioned[ColdAttempt]:
        return present(self._attempt, "an attempt was used before it was begun")

    async def _copy(self) -> None:
        attempt = self._known_attempt.value
        self._copied = await copy_segments(
            self._services,
            self._settings.password,
            self._log,
            present(self._about, "a copy was made before its attempt"),
            attempt,
            self._segments,
            self._stores.at(self._settings.cold_root, self._settings.cold_write_options),
        )

    async def _read_back(self) -> None:
        copied = present(self._copied, "what was not copied was read back")
        if copied.file is not None:
            # As a reader opens it: by its own address and what its mark will say.
            await read_back(self._stores.of(copied.file), copied)

    async def _finish(self) -> None:
        copied = present(self._copied, "what was not copied was finished")
        self.unit = await self._cold.copies.finish(
            self._log,
            self._known_attempt,
            copied.written.segments,
            copied.file,
            now_ms=self._services.clock.now_ms(),
        )

    async def _look(self) -> Event:
        attempt = self._known_attempt.value
        marks = await self._cold.marks(self._log)
        if marks is None or not marks.owns(attempt.url):
            # Renamed, made anew, or going: our object may be the file of a unit under another name. That log's sweep
            # finds it if it is not; here nothing is concluded from what is missing.
            return Event.REFUSED
        for found in marks.attempts:
            if found.value.attempt == attempt.attempt:
                self._attempt = found
                return Event.FOUND_ATTEMPT
        for unit in marks.units:
            files = [*([unit.value.file] if unit.value.file is not None else []), *unit.value.replaced]
            # By the address as well: redaction gives a unit another attempt, and keeps its former file for a while.
            if unit.value.attempt == attempt.attempt or any(file.url == attempt.url for file in files):
                self.unit = unit
                return Event.FOUND_UNIT
        self._dead.append(attempt)
        return Event.FOUND_OTHER

    async def _withdraw(self) -> None:
        attempt = self._attempt
        if attempt is None:
            return
        await self._cold.copies.abandon(self._log, attempt)
        self._dead.append(attempt.value)

    async def _discard(self) -> None:
        """Delete the objects of dead attempts; what cannot be deleted now is the sweep's."""
        dead, self._dead = self._dead, []
        for attempt in dead:
            try:
                await self._stores.at(attempt.url, attempt.options).delete(attempt.url)
            except InvariantViolation:
                raise
            except DistributedLogError as error:
                _log.info("the object of a dead attempt stays for the sweep: %s", error, extra=about(log=self._log))

    # ------------------------------------------------------------------ the hot copies

    @property
    def _known_unit(self) -> Versioned[ColdUnit]:
        return present(self.unit, "a unit was used before it was known")

    async def _head(self) -> Event:
        file = self._known_unit.value.file
        if file is None:
            return Event.DONE
        info = await self._stores.of(file).head(file.url)
        if info.bytes != file.bytes:
            self.error = DamagedColdFileError(
                f"it has {info.bytes} bytes, and {file.bytes} were written; its hot copies stay", url=file.url
            )
            return Event.WRONG
        return Event.DONE

    async def _delete_hot(self) -> None:
        self.unit = await self._cold.delete_hot(self._log, self._known_unit, now_ms=self._services.clock.now_ms())

    async def _sweep_ledgers(self) -> None:
        await sweep(self._services, self._log)

    # ------------------------------------------------------------------ the file

    async def _begin_cold_delete(self) -> None:
        self.unit = await self._cold.begin_cold_delete(self._log, self._known_unit)

    async def _delete_object(self) -> None:
        unit = self._known_unit.value
        # Before the objects: a lake table must not name a file that is not there.
        await release_unit(self._services.logs, self._log, unit)
        about_log = await self._cold.cold_log(self._log)
        mirrors = about_log.value.mirrors if about_log is not None else ()
        for file in (*([unit.file] if unit.file is not None else []), *unit.replaced):
            # First of all, or a reader that has an old list would go on in a copy. What is left there does not keep the
            # file, for newer ones would have to stay as well: the sweep finds it.
            self.copies_left += await delete_copies(self._services, self._cold, self._stores, mirrors, file)
        for file in (*([unit.file] if unit.file is not None else []), *unit.replaced):
            # A borrowed one is another log's, and one in a place that is owned elsewhere another namespace's: only the
            # mark goes. Were it kept, no newer unit could ever go, and its records are hidden already.
            if file.borrowed:
                continue
            if await may_delete(self._services, self._cold, self._stores, file.url, file.options):
                await self._stores.of(file).delete(file.url)
            else:
                self.left.append(file.url)

    async def _end_cold_delete(self) -> None:
        await self._cold.end_cold_delete(self._log, self._known_unit)


_COPIES: Final = (Effect.COPY, Effect.READ_BACK)


def event_of(effect: Effect, error: DistributedLogError) -> Event:
    """Return what an error of an effect means for the unit."""
    if isinstance(error, ColdMovedError | ColdTakenError | LogNotFoundError):
        return Event.MOVED if effect is not Effect.LOOK else Event.REFUSED
    if effect in _COPIES:
        if effect is Effect.READ_BACK and isinstance(
            error, ObjectNotFoundError | DamagedColdFileError | RangeShortError
        ):
            return Event.WRONG
        # A ledger that is not there, an entry that cannot be decoded, a store that refuses: the same again would be.
        lasting = (NoNodeError, CorruptDataError, StoreRefusedError, CallerError)
        return Event.REFUSED if isinstance(error, lasting) else Event.FAILED
    if effect is Effect.HEAD:
        return Event.WRONG if isinstance(error, ObjectNotFoundError) else Event.FAILED
    if isinstance(error, OutcomeUnknownError | ObjectOutcomeUnknownError):
        return Event.UNKNOWN if effect is not Effect.LOOK else Event.FAILED
    if isinstance(error, ColdKeptError | CallerError | CorruptDataError | StoreRefusedError):
        return Event.REFUSED
    return Event.FAILED
