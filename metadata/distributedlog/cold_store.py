"""`ColdStore`: the steps of a log's segments on their way into a file, and of the file out of the world again.

    copies.begin -> copies.finish -> delete_hot -> begin_cold_delete -> end_cold_delete
                                     replace_file, forget_replaced

The first two are those of `cold_copies`. What the znodes hold is in `cold_units`; docs/reference/znodes.md#cold-units
has the states, and who may take a step.

No step needs a lock: each is one multi that depends on the versions of what it changes, and on the segments that it is
about. Each sets `P/cold` as well, so a log's steps, and the truncations of its owner, come one after the other, readers
that watch it hear of each, and two workers never take the same segments.

A step whose answer was lost is decided by looking for what identifies that very step, the id of the attempt, never by
"there is something": what is there may be another worker's. So each step may be taken again after any error. It begins
by reading, behind a `sync`: of what this session has sent, all that will ever be applied can be seen then.

It never deletes an object or a ledger: it says which may be deleted. Of the ledgers that is said by notes
(`segment_changes`), of the files by the unit's state, of a deleted log's by `DeletedLog`.

Fault model: any process dies between any two requests; answers are lost; other workers, owners and administrators do
the same at the same time. Upstream's software may truncate and purge too, and does not know of `P/cold`: what it has
hidden is taken over when the hot copies go (`delete_hot`), and before that by `follow_truncation`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_away import AwayNotes
from metadata.distributedlog.cold_copies import ColdCopies
from metadata.distributedlog.cold_deletions import DeletedLogs
from metadata.distributedlog.cold_marks import ColdMarks, read_marks
from metadata.distributedlog.cold_places import ColdFile, ColdMirror, UnitState
from metadata.distributedlog.cold_steps import ColdMovedError, ColdSteps, changed, kept_error
from metadata.distributedlog.cold_units import (
    WORKER,
    ColdAttempt,
    ColdLog,
    ColdSegment,
    ColdUnit,
    DeletedLog,
    Position,
    end_of,
    hidden_to,
    unit_name,
)
from metadata.distributedlog.locks import DistributedLock
from metadata.distributedlog.log_names import LogPaths, log_not_found_error
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.segment_changes import check_guard, notes_path
from metadata.distributedlog.segment_listing import SegmentListing
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.errors import (
    CallerError,
    DistributedLogError,
    NodeExistsError,
    NoNodeError,
    check,
)
from metadata.retry import repeat
from metadata.store import ANY_VERSION, Check, Create, Delete, Op, SetData, join

MAX_REPLACED: Final = 8
"""Files of one unit that were replaced and are still there."""


class ColdStore:
    """Which segments of a namespace's logs lie in files, and how do they get there? All raise LogNotFoundError and
    CorruptDataError; those that change something ColdMovedError, or an OutcomeUnknownError where the store stays away.

    Args:
        logs: the namespace's logs.
        new_id: makes the ids of attempts and logs; never the same twice.
    """

    def __init__(self, logs: LogStore, *, new_id: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        self._logs = logs
        self._store = logs.store
        self._new_id = new_id
        self._steps = ColdSteps(self._store)
        self.copies = ColdCopies(logs, self.ensure, new_id)
        self._deleted = DeletedLogs(self._store, logs.namespace_path)
        self.away = AwayNotes(self._store, logs.namespace_path)

    # ---- reading ----------------------------------------------------------------------------------------------------

    async def namespace_id(self) -> str:
        """Return the namespace's id in object names; it is made with the first call."""
        return await self._deleted.namespace_id(self._new_id)

    async def owner(self) -> tuple[str, str]:
        """Return the namespace's id, and what tells this namespace from a copy of it in another ZooKeeper."""
        return await self._deleted.owner(self._new_id)

    async def cold_log(self, name: str) -> Versioned[ColdLog] | None:
        """Return what is said of the log's cold storage; None for a log that never had any."""
        paths = await self._logs.located(name)
        found = await self._steps.get(paths.cold)
        return None if found is None else Versioned(ColdLog.decode(found.value, paths.cold), found.version)

    async def attempts(self, name: str) -> list[Versioned[ColdAttempt]]:
        """Return the copies under way, oldest segments first."""
        return await self._steps.all((await self._logs.located(name)).cold_attempts, ColdAttempt.decode)

    async def units(self, name: str) -> list[Versioned[ColdUnit]]:
        """Return the units that have their files, oldest segments first."""
        return await self._steps.all((await self._logs.located(name)).cold_units, ColdUnit.decode)

    async def marks(self, name: str) -> ColdMarks | None:
        """Return all that the log's marks name; None where that is not certain. Whoever deletes asks for this."""
        return await read_marks(self._store, await self._logs.located(name))

    async def unit(self, name: str, first: int, last: int) -> Versioned[ColdUnit] | None:
        """Return the unit of the segments `first` to `last`; None where there is none."""
        return await self._steps.unit_at(f"{(await self._logs.located(name)).cold_units}/{unit_name(first, last)}")

    async def ensure(self, name: str) -> None:
        """Make what a log has that goes to cold storage; a log that has it stays as it is."""
        paths = await self._logs.located(name)

        async def step() -> None:
            if await self._store.exists(paths.cold) is not None:
                return
            made = ColdLog(await self.namespace_id(), self._new_id())
            try:
                await self._store.multi(
                    [
                        Create(paths.cold, made.encode()),
                        Create(paths.cold_units),
                        Create(paths.cold_attempts),
                        Create(join(paths.cold, WORKER)),
                    ]
                )
            except NodeExistsError:
                return  # Whoever was first has named the log; the answer to our own may have been lost.
            except NoNodeError as error:
                raise log_not_found_error(name, error.path) from error

        await repeat(self._store, step)

    async def worker(self, name: str, client_id: str) -> DistributedLock:
        """Return the lock of the log's worker, not yet acquired. It spares double work; no step needs it."""
        await self.ensure(name)
        return DistributedLock(self._store, join((await self._logs.located(name)).cold, WORKER), client_id)

    # ---- hot copies -------------------------------------------------------------------------------------------------

    async def delete_hot(self, name: str, unit: Versioned[ColdUnit], *, now_ms: int) -> Versioned[ColdUnit]:
        """Take a unit's segments off the list and note their ledgers, which may be deleted from then on: HOT_DELETED.

        The caller has just seen that the file is there. Raises ColdKeptError unless these are the oldest of the list,
        and for one whose metadata, or whose records, a writer needs: the newest completed one, and those from which on
        producers are known. Raises ColdMovedError where the unit is not as `unit` any more.
        """
        paths = await self._logs.located(name)
        notes = notes_path(paths)

        async def step() -> Versioned[ColdUnit]:
            cold = await self._steps.fresh(name, paths)
            now = await self._steps.unit_now(name, paths, unit.value)
            if now.value.attempt == unit.value.attempt and now.value.state is UnitState.HOT_DELETED:
                return now  # by ourselves, or by another worker: the same either way
            self._steps.check_same(name, paths, unit, now)
            check(unit.value.state is UnitState.FINISHED, f"a unit is {unit.value.state.value}", log=name)
            turn = await self._steps.turn(paths)
            listing = await self._logs.hot_listing(name)
            newest = await self._refuse_needed(name, unit.value, listing)
            left = await self._hot_copies(name, paths, unit.value, listing)
            # Segments that have left the list before, by upstream's retention, stay readable in the file.
            cut = max([cold.value.truncated_to, *map(hidden_to, left)])
            after = replace(unit.value, state=UnitState.HOT_DELETED, hot_deleted_ms=now_ms)
            ops: list[Op] = [
                SetData(f"{paths.cold_units}/{unit.value.name}", after.encode(), unit.version),
                changed(paths, cold, truncated_to=cut),
                turn,
                Check(join(paths.ledgers, newest), ANY_VERSION),
            ]
            if left and await self._store.exists(notes) is None:
                ops.append(Create(notes))
            for one in left:
                # Off the list and noted in one transaction (I21); the ledgers are deleted only afterwards (I7).
                ops += [Delete(paths.segment(one)), Create(f"{notes}/{one.ledger_id}")]
            await self._store.multi(ops)
            return Versioned(after, unit.version + 1)

        return await self._steps.settled(name, step)

    async def _refuse_needed(self, name: str, unit: ColdUnit, listing: SegmentListing) -> str:
        """Return the name of the newest completed segment. Raises ColdKeptError where one of the unit may not go."""
        if len(listing) and listing[0].lssn < unit.first:
            raise kept_error(name, unit, f"segment {listing[0].lssn} is older", "Segments leave the list from its head")
        completed = [one for one in listing if not one.in_progress]
        if not completed or completed[-1].lssn <= unit.last:
            raise kept_error(name, unit, "the next segment's sequence ids continue from its last", "Ask again later")
        producers = await self._logs.producer_segments(name)
        if producers is not None and producers.whole <= unit.last:
            raise kept_error(
                name,
                unit,
                f"what is known of producers begins in segment {producers.whole}",
                "It may go once a writer with producers has begun a newer segment",
            )
        return completed[-1].name

    async def _hot_copies(
        self, name: str, paths: LogPaths, unit: ColdUnit, listing: SegmentListing
    ) -> list[SegmentMetadata]:
        """Return those of a unit's segments that are on the list, as they are: its newest, in order."""
        names = [listed.name for listed in listing if unit.first <= listed.lssn <= unit.last]
        left = unit.segments[len(unit.segments) - len(names) :] if names else ()
        return await self._steps.still_listed(name, paths, left)

    # ---- files ------------------------------------------------------------------------------------------------------

    async def begin_cold_delete(self, name: str, unit: Versioned[ColdUnit]) -> Versioned[ColdUnit]:
        """Hide a unit, and all before it, for good: COLD_DELETE_STARTED. From then on its files may be deleted.

        Raises ColdKeptError where an older unit is not as far, or a segment of it is on the list.
        """
        paths = await self._logs.located(name)
        path = f"{paths.cold_units}/{unit.value.name}"

        async def step() -> Versioned[ColdUnit]:
            cold = await self._steps.fresh(name, paths)
            now = await self._steps.unit_now(name, paths, unit.value)
            if now.value.attempt == unit.value.attempt and now.value.state is UnitState.COLD_DELETE_STARTED:
                return now
            self._steps.check_same(name, paths, unit, now)
            listing = await self._logs.hot_listing(name)
            if len(listing) and listing[0].lssn <= unit.value.last:
                raise kept_error(
                    name, unit.value, f"segment {listing[0].lssn} is on the list", "Delete hot copies first"
                )
            for one in await self._steps.all(paths.cold_units, ColdUnit.decode, before=unit.value.first):
                if one.value.state is not UnitState.COLD_DELETE_STARTED:
                    raise kept_error(name, unit.value, f"unit {one.value.name} is older", "Files go oldest first")
            after = replace(unit.value, state=UnitState.COLD_DELETE_STARTED)
            cut = max(cold.value.truncated_to, end_of(unit.value.segments[-1].metadata))
            # Readers learn of both in one step: what is hidden is never looked for in a file that goes (I8).
            await self._store.multi(
                [SetData(path, after.encode(), unit.version), changed(paths, cold, truncated_to=cut)]
            )
            return Versioned(after, unit.version + 1)

        return await self._steps.settled(name, step)

    async def end_cold_delete(self, name: str, unit: Versioned[ColdUnit]) -> None:
        """Remove the znode of a unit whose files are gone, those that were replaced included."""
        check(unit.value.state is UnitState.COLD_DELETE_STARTED, f"a unit is {unit.value.state.value}", log=name)
        paths = await self._logs.located(name)
        path = f"{paths.cold_units}/{unit.value.name}"

        async def step() -> None:
            cold = await self._steps.fresh(name, paths)
            now = await self._steps.unit_at(path)
            if now is None or now.value.attempt != unit.value.attempt:
                return
            self._steps.check_same(name, paths, unit, now)
            await self._store.multi([Delete(path, unit.version), changed(paths, cold)])

        await self._steps.settled(name, step)

    async def replace_file(
        self,
        name: str,
        unit: Versioned[ColdUnit],
        file: ColdFile,
        *,
        attempt: str,
        segments: Sequence[ColdSegment] | None = None,
    ) -> Versioned[ColdUnit]:
        """Put another file, which `attempt` made and which was read back, in place of a unit's. The former one is kept
        among `replaced`, until readers that opened it have ended.

        `segments` say where its segments are in the new file, if that is elsewhere: a record of many rows that was
        erased has one row there. What their znodes said stays as the unit has it.

        Raises CallerError where MAX_REPLACED are kept already, ColdMovedError where the unit is not as `unit` any more.
        """
        check(unit.value.file is not None, "a unit without records has no file", log=name)
        parts = _parts_in(unit.value, segments, file, name)
        paths = await self._logs.located(name)
        path = f"{paths.cold_units}/{unit.value.name}"

        async def step() -> Versioned[ColdUnit]:
            cold = await self._steps.fresh(name, paths)
            now = await self._steps.unit_now(name, paths, unit.value)
            if now.value.attempt == attempt:
                return now
            self._steps.check_same(name, paths, unit, now)
            if unit.value.state is UnitState.COLD_DELETE_STARTED:
                raise ColdMovedError("the unit is being deleted; its file was not replaced", log=name, path=path)
            if len(unit.value.replaced) >= MAX_REPLACED:
                raise CallerError(
                    f"{MAX_REPLACED} files of it were replaced and are still there; it was not replaced again",
                    log=name,
                    path=path,
                    advice="Let the sweep of cold storage delete them, then do it again",
                )
            before = [one for one in (unit.value.file,) if one is not None]
            after = replace(
                unit.value, attempt=attempt, segments=parts, file=file, replaced=(*unit.value.replaced, *before)
            )
            await self._store.multi(
                [SetData(path, after.encode(), unit.version), changed(paths, cold, unit=after.first)]
            )
            return Versioned(after, unit.version + 1)

        return await self._steps.settled(name, step)

    async def forget_replaced(self, name: str, unit: Versioned[ColdUnit], url: str) -> Versioned[ColdUnit]:
        """Forget a replaced file that is gone."""
        paths = await self._logs.located(name)
        path = f"{paths.cold_units}/{unit.value.name}"

        async def step() -> Versioned[ColdUnit]:
            cold = await self._steps.fresh(name, paths)
            now = await self._steps.unit_now(name, paths, unit.value)
            left = tuple(one for one in now.value.replaced if one.url != url)
            if now.value.attempt != unit.value.attempt or left == now.value.replaced:
                return now  # the answer was lost, or another worker has forgotten it
            after = replace(now.value, replaced=left)
            await self._store.multi([SetData(path, after.encode(), now.version), changed(paths, cold)])
            return Versioned(after, now.version + 1)

        return await self._steps.settled(name, step)

    # ---- mirrors ----------------------------------------------------------------------------------------------------

    async def note_mirrors(self, name: str, mirrors: Sequence[ColdMirror]) -> tuple[ColdMirror, ...]:
        """Note where copies of the log's files may lie from now on, before the first one is made; return all that are
        noted. What was noted before stays, behind these: copies may be there (`forget_mirror`)."""
        paths = await self._logs.located(name)

        async def step() -> tuple[ColdMirror, ...]:
            cold = await self._steps.fresh(name, paths)
            former = [one for one in cold.value.mirrors if not any(_same(one, now) for now in mirrors)]
            after = (*mirrors, *former)
            if after != cold.value.mirrors:
                await self._store.multi([changed(paths, cold, mirrors=after)])
            return after

        return await self._steps.settled(name, step)

    async def forget_mirror(self, name: str, mirror: ColdMirror) -> None:
        """Take a place off what is noted, in which no copy of the log's files is any more, or none that counts."""
        paths = await self._logs.located(name)

        async def step() -> None:
            cold = await self._steps.fresh(name, paths)
            left = tuple(one for one in cold.value.mirrors if not _same(one, mirror))
            if left != cold.value.mirrors:
                await self._store.multi([changed(paths, cold, mirrors=left)])

        await self._steps.settled(name, step)

    # ---- truncation, deletion ---------------------------------------------------------------------------------------

    async def follow_truncation(self, name: str) -> Position:
        """Hide in files what lies before a segment that the list hides, and return from where on the log is hidden.

        Our own owners move both in one step; upstream's software knows the list alone.
        """
        paths = await self._logs.located(name)

        async def step() -> Position:
            cold = await self._steps.fresh(name, paths)
            turn = await self._steps.turn(paths)
            cut = cold.value.truncated_to
            listing = await self._logs.hot_listing(name)
            for listed in listing:
                segment = await listing.read(listed)
                cut = max(cut, hidden_to(segment))
                if segment.truncation is not TruncationStatus.TRUNCATED:
                    break
            if cut != cold.value.truncated_to:
                await self._store.multi([changed(paths, cold, truncated_to=cut), turn])
            return cut

        return await self._steps.settled(name, step)

    async def bury(self, name: str, guard: Callable[[], Op], *, now_ms: int) -> None:
        """Note the files of a log that is being deleted, and hide them: its own may be deleted from then on, those that
        it borrowed have only to leave its lake tables. A log that never had cold storage stays as it is, and so does
        one that was buried before.

        For the holder of the log's lock: `guard` is checked in the transaction. Raises LockingError where it fails.
        """
        paths = await self._logs.located(name)

        async def step() -> None:
            await self._store.sync(paths.partition)
            found = await self._steps.get(paths.cold)
            if found is None:
                return
            cold = Versioned(ColdLog.decode(found.value, paths.cold), found.version)
            if cold.value.deleted:
                return  # the note was made in the same step
            folders, borrowed = await self._folders(name, cold.value)
            noted = DeletedLog(cold.value.log_id, name, now_ms, folders, borrowed)
            # Also without any file: its lake tables know by the note alone that the log is gone.
            await self.namespace_id()
            ops: list[Op] = [guard(), changed(paths, cold, deleted=True), await self._deleted.note(noted)]
            try:
                await self._store.multi(ops)
            except DistributedLogError as error:
                if isinstance(error, NoNodeError):
                    check_guard(error, name)
                raise

        await self._steps.settled(name, step)

    async def _folders(
        self, name: str, cold: ColdLog
    ) -> tuple[tuple[tuple[str, Mapping[str, str]], ...], tuple[str, ...]]:
        """Return the folders in which a log may have objects: of files, of replaced ones, of attempts; and those in
        which it has only borrowed some. Those of its mirrors come last: one that is out of reach keeps no other."""
        found: dict[str, Mapping[str, str]] = {}
        borrowed: dict[str, None] = {}
        units = [one.value for one in await self.units(name)]
        files = [file for unit in units for file in (unit.file, *unit.replaced) if file is not None]
        for file in files:
            if file.borrowed:
                borrowed[file.url.rpartition("/")[0]] = None
            else:
                found[file.url.rpartition("/")[0]] = file.options
        for attempt in await self.attempts(name):
            found[attempt.value.url.rpartition("/")[0]] = attempt.value.options
        own = f"{cold.namespace_id}/{cold.log_id}"
        copies = [
            (folder.rstrip("/"), mirror.options)
            for mirror in cold.mirrors
            for folder in mirror.folders(own, files)
            if not any(
                f"{url}/" == folder and mirror.same_place(url.rsplit("/", 2)[0], options)
                for url, options in found.items()
            )
        ]
        return (*found.items(), *copies), tuple(one for one in borrowed if one not in found)

    async def deleted_logs(self) -> list[Versioned[DeletedLog]]:
        """Return the logs that were deleted and whose files are not known to be gone."""
        return await self._deleted.logs()

    async def stamped_deleted(self, log: Versioned[DeletedLog]) -> tuple[Versioned[DeletedLog], int] | None:
        """Return a deleted log's note with its age by the store's clock, in milliseconds; None where it is gone."""
        return await self._deleted.stamped(log)

    async def forget_deleted(self, log: Versioned[DeletedLog]) -> None:
        """Forget a deleted log whose folders are empty, and will stay so: no upload of its may still be under way."""
        await self._deleted.forget(log)


def _same(one: ColdMirror, other: ColdMirror) -> bool:
    return one.same_place(other.root, other.options)


def _parts_in(
    unit: ColdUnit, segments: Sequence[ColdSegment] | None, file: ColdFile, log: str
) -> tuple[ColdSegment, ...]:
    """Return a unit's segments as they lie in another file of the same records."""
    if segments is None:
        check(file.rows == (unit.file or file).rows, "another file has the same rows", log=log)
        return unit.segments
    numbers = [one.metadata.lssn for one in segments]
    check(numbers == [one.metadata.lssn for one in unit.segments], "another file has the same segments", log=log)
    check(sum(one.rows for one in segments) == file.rows, "a file has the rows of its segments", log=log)
    return tuple(
        replace(mine, first_row=new.first_row, rows=new.rows) for mine, new in zip(unit.segments, segments, strict=True)
    )
