"""`ColdCopies`: the segments of a log that are being copied into a file, until it is theirs.

    begin -> (retry) -> finish
                 abandon

An attempt has a random id, which is a part of its object's name: no name is used twice, and what a worker still writes
from whom the attempt was taken is nothing. Steps and their fault model are those of `cold_store`, whose part this is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_marks import read_marks
from metadata.distributedlog.cold_places import ColdFile, UnitState
from metadata.distributedlog.cold_steps import ColdMovedError, ColdSteps, ColdTakenError, changed
from metadata.distributedlog.cold_units import (
    MAX_SEGMENTS,
    ColdAttempt,
    ColdSegment,
    ColdUnit,
    object_name,
    parse_unit_name,
    unit_name,
)
from metadata.distributedlog.log_names import LogPaths
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.segment_listing import SegmentListing
from metadata.foundation.errors import check
from metadata.store import ANY_VERSION, Check, Create, Delete, SetData, join


class ColdCopies:
    """How does a log's segment come into a file? Raises as `ColdStore` does.

    Args:
        logs: the namespace's logs.
        ensure: makes what a log has that goes to cold storage.
        new_id: makes the ids of attempts; never the same twice.
    """

    def __init__(self, logs: LogStore, ensure: Callable[[str], Awaitable[None]], new_id: Callable[[], str]) -> None:
        self._logs = logs
        self._store = logs.store
        self._steps = ColdSteps(logs.store)
        self._ensure = ensure
        self._new_id = new_id

    async def begin(
        self,
        name: str,
        first: int,
        last: int,
        *,
        root: str,
        worker: str,
        now_ms: int,
        options: Mapping[str, str] | None = None,
    ) -> Versioned[ColdAttempt]:
        """Take the segments `first` to `last`, to copy them into an object below the address `root`: STARTED.

        Raises ColdTakenError where some of them are taken, ColdMovedError where one is not on the list, or has not
        ended.
        """
        check(1 <= first <= last < first + MAX_SEGMENTS, f"segments {first} to {last} are no unit", log=name)
        paths = await self._logs.located(name)
        await self._ensure(name)
        id_ = self._new_id()

        async def step() -> Versioned[ColdAttempt]:
            cold = await self._steps.fresh(name, paths)
            url = f"{root.rstrip('/')}/{object_name(cold.value, first, last, id_)}"
            made = ColdAttempt(id_, worker, first, last, url, now_ms, dict(options or {}))
            path = join(paths.cold_attempts, made.name)
            found = await self._steps.get(path)
            if found is not None and ColdAttempt.decode(found.value, path).attempt == id_:
                return Versioned(made, found.version)  # the answer was lost
            await self._refuse_taken(name, paths, first, last)
            listing = await self._logs.hot_listing(name)
            # A log that is deleted is cleared before its deleter looks for files: it would not know of this one.
            still = [_listed(name, listing, lssn) for lssn in sorted({first, last})]
            checks = [Check(join(paths.ledgers, one), ANY_VERSION) for one in still]
            await self._store.multi([Create(path, made.encode()), changed(paths, cold), *checks])
            return Versioned(made, 0)

        return await self._steps.settled(name, step)

    async def _refuse_taken(self, name: str, paths: LogPaths, first: int, last: int) -> None:
        for parent in (paths.cold_units, paths.cold_attempts):
            names, _ = await self._store.children(parent)
            for numbers in filter(None, map(parse_unit_name, names)):
                if numbers[0] <= last and first <= numbers[1]:
                    raise ColdTakenError(
                        f"segments {numbers[0]} to {numbers[1]} are taken; {first} to {last} were not",
                        log=name,
                        path=join(parent, unit_name(*numbers)),
                        advice="Read units and attempts again, and take what is behind them",
                    )

    async def retry(
        self,
        name: str,
        attempt: Versioned[ColdAttempt],
        *,
        root: str,
        worker: str,
        now_ms: int,
        options: Mapping[str, str] | None = None,
    ) -> Versioned[ColdAttempt]:
        """Take an attempt over, with a new id and so a new object: what the former worker still writes is nothing now.

        Raises ColdMovedError where it is not as `attempt` any more.
        """
        paths = await self._logs.located(name)
        id_ = self._new_id()
        path = join(paths.cold_attempts, attempt.value.name)
        first, last = attempt.value.first, attempt.value.last

        async def step() -> Versioned[ColdAttempt]:
            cold = await self._steps.fresh(name, paths)
            url = f"{root.rstrip('/')}/{object_name(cold.value, first, last, id_)}"
            made = ColdAttempt(id_, worker, first, last, url, now_ms, dict(options or {}))
            found = await self._steps.get(path)
            if found is not None and ColdAttempt.decode(found.value, path).attempt == id_:
                return Versioned(made, found.version)
            self._check_attempt(name, path, attempt, found)
            await self._store.multi([SetData(path, made.encode(), attempt.version), changed(paths, cold)])
            return Versioned(made, attempt.version + 1)

        return await self._steps.settled(name, step)

    async def abandon(self, name: str, attempt: Versioned[ColdAttempt]) -> None:
        """Give the segments of an attempt up: they may be taken by any other. Its object is left for the sweep.

        Raises ColdMovedError where it has become a unit, or may have under another name of the log.
        """
        paths = await self._logs.located(name)
        path = join(paths.cold_attempts, attempt.value.name)

        async def step() -> None:
            cold = await self._steps.fresh(name, paths)
            found = await self._steps.get(path)
            if found is None or ColdAttempt.decode(found.value, path).attempt != attempt.value.attempt:
                # Only if this is still its log: it may be a unit of one that was renamed, and this made anew.
                marks = await read_marks(self._store, await self._logs.located(name))
                if marks is None or not marks.dead(attempt.value.url):
                    raise ColdMovedError("it has become a unit, or the log is another; it stays", log=name, path=path)
                return
            await self._store.multi([Delete(path, found.version), changed(paths, cold)])

        await self._steps.settled(name, step)

    def _check_attempt(
        self, name: str, path: str, attempt: Versioned[ColdAttempt], found: Versioned[bytes] | None
    ) -> None:
        if (
            found is None
            or found.version != attempt.version
            or ColdAttempt.decode(found.value, path).attempt != attempt.value.attempt
        ):
            raise ColdMovedError(
                "another worker has taken the attempt over or given it up; nothing was changed", log=name, path=path
            )

    async def finish(
        self,
        name: str,
        attempt: Versioned[ColdAttempt],
        segments: Sequence[ColdSegment],
        file: ColdFile | None,
        *,
        now_ms: int,
    ) -> Versioned[ColdUnit]:
        """Make a unit of an attempt whose file is whole and was read back: FINISHED. `file`: None where no segment has
        a user record, so that there is nothing to store.

        Raises ColdMovedError where another worker took the attempt over, or where the segments are not on the list as
        they were copied: give the attempt up then.
        """
        _check_unit(name, attempt.value, segments, file)
        paths = await self._logs.located(name)
        path, unit_path = (join(parent, attempt.value.name) for parent in (paths.cold_attempts, paths.cold_units))

        async def step() -> Versioned[ColdUnit]:
            cold = await self._steps.fresh(name, paths)
            done = await self._steps.unit_at(unit_path)
            if done is not None and done.value.attempt == attempt.value.attempt:
                return done  # the answer was lost
            self._check_attempt(name, path, attempt, await self._steps.get(path))
            turn = await self._steps.turn(paths)
            now = await self._steps.still_listed(name, paths, segments)
            # Truncated meanwhile or not: the mark holds what the list says in this very transaction.
            whole = tuple(replace(one, metadata=metadata) for one, metadata in zip(segments, now, strict=True))
            unit = ColdUnit(UnitState.FINISHED, attempt.value.attempt, whole, file, now_ms)
            checks = [Check(paths.segment(one), ANY_VERSION) for one in now]
            # From here on readers may go to the file (I21).
            await self._store.multi(
                [
                    Delete(path, attempt.version),
                    Create(unit_path, unit.encode()),
                    changed(paths, cold),
                    turn,
                    *checks,
                ]
            )
            return Versioned(unit, 0)

        return await self._steps.settled(name, step)


def _listed(name: str, listing: SegmentListing, lssn: int) -> str:
    """Return the name of a completed segment's znode. Raises ColdMovedError."""
    listed = listing.find(lssn)
    if listed is None or listed.in_progress:
        state = "not on the list" if listed is None else "in progress"
        raise ColdMovedError(f"segment {lssn} is {state}; no segment was taken", log=name)
    return listed.name


def _check_unit(name: str, attempt: ColdAttempt, segments: Sequence[ColdSegment], file: ColdFile | None) -> None:
    numbers = [one.metadata.lssn for one in segments]
    check(numbers == list(range(attempt.first, attempt.last + 1)), "a unit has the attempt's segments", log=name)
    row = 0
    for one in segments:
        check(one.first_row == row and one.rows >= 0, "a unit's rows follow each other", log=name)
        row += one.rows
    check((0 if file is None else file.rows) == row, "a unit's rows are its file's", log=name)
    check(file is None or file.borrowed or file.url == attempt.url, "a unit's file is the attempt's object", log=name)
