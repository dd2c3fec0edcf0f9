"""`rebuild_log`: a log from its files alone, where its ZooKeeper is gone, or another cluster is to have it.

The folder is listed, each file's footer read, and the files chosen that make a log (`choosing`); each of these is read
once, whole (`checking`). Then the log is made (`metadata.distributedlog.cold_rebuilds`): its units point at the very
files, nothing is copied, and an empty segment stands behind them, so that writers go on there with the next numbers.
It has the newest declaration that its files have.

Not restored, for files do not have them: idempotent producers' numbers, marks of Spark's sinks, subscribers' positions,
the application's own bytes, permissions, and records that no file had yet.

Files stay the first log's: the rebuilt one *borrows* them, so that no truncation, retention or deletion of it deletes
one. `adopt` makes them its own, which is right only where the first log is gone for good.

Fault model: as `cold_rebuilds`; a file that is damaged is refused with its place, and the log is not begun.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dlspark.cold.restoring.checking import CheckedFile, check_file, claim_of, read_footer
from dlspark.cold.restoring.choosing import (
    ChosenFiles,
    FileClaim,
    PassedFile,
    Run,
    SegmentHoleError,
    choose,
    counted_first,
    one_log,
)
from dlspark.cold.restoring.staged_ledgers import NoEntries, StagedLedgers
from dlspark.core.cold.files.footer import Footer
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.errors import DamagedColdFileError
from dlspark.objects.store import ObjectInfo, ObjectStore
from dlspark.tables.declaration import Declaration
from metadata.distributedlog.cold_places import ColdFile, UnitState
from metadata.distributedlog.cold_rebuilds import (
    ColdRebuilds,
    LogBeginning,
    RebuildOrigin,
    RebuildRacedError,
    RebuiltLog,
)
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import (
    DELETED,
    MAX_SEGMENTS,
    NAMESPACE,
    ColdLog,
    ColdSegment,
    ColdUnit,
    parse_unit_name,
)
from metadata.distributedlog.permissions import Action
from metadata.distributedlog.segments import UNASSIGNED_SEQUENCE_ID, UNKNOWN_LEDGER, SegmentMetadata, TruncationStatus
from metadata.foundation.errors import CallerError
from metadata.foundation.pacing import for_each
from metadata.store import join

FOOTERS_AT_ONCE: Final = 16
FILES_AT_ONCE: Final = 2
"""Files that are read through at the same time: each takes a row group of memory, and a core."""
SUFFIX: Final = ".parquet"


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """Which files make a log?

    Args:
        chosen: the files, oldest first, and those that are left out.
        footers: of the chosen ones, by address.
        other: objects that are no cold files, or damaged ones: why.
        from_segment: where the log is to begin, if that was said.
    """

    chosen: ChosenFiles
    footers: Mapping[str, Footer]
    other: tuple[PassedFile, ...]
    from_segment: int | None

    @property
    def first(self) -> int:
        """The number of the first segment."""
        return self.chosen.files[0].run[0]

    @property
    def last(self) -> int:
        """The number of the last segment."""
        return self.chosen.files[-1].run[1]

    @property
    def records(self) -> int:
        """User records in the files."""
        return sum(one.records for one in self.footers.values())

    @property
    def bytes(self) -> int:
        """Bytes of the files."""
        return sum(one.bytes for one in self.chosen.files)

    @property
    def declaration(self) -> Declaration | None:
        """What the newest file says that the log declares."""
        return self.footers[self.chosen.files[-1].url].declaration


async def find_files(
    store: ObjectStore, folder: str, *, log_ids: Collection[str] = (), from_segment: int | None = None
) -> FoundFiles:
    """Return which files below a folder make a log; nothing is made.

    Args:
        store: has the folder.
        folder: its address, up to a slash.
        log_ids: which log, where there are files of several (`choosing.one_log`).
        from_segment: where it is to begin; None: as far back as there are files.

    Raises CallerError (no file, several logs), SegmentHoleError, FilesDisagreeError, DamagedColdFileError where it has
    to be counted what is erased in a file that is damaged, ObjectStoreError.
    """
    infos = [one async for one in store.list(folder) if one.url.endswith(SUFFIX)]
    footers: dict[str, Footer] = {}
    claims: dict[str, FileClaim] = {}
    other: list[PassedFile] = []

    async def look(info: ObjectInfo) -> None:
        try:
            footer = await read_footer(store, info)
            claims[info.url] = claim_of(footer, info.modified_ms)
            footers[info.url] = footer
        except DamagedColdFileError as error:
            # A torn write of an attempt, perhaps, which a whole file stands beside: a hole shows if not.
            other.append(PassedFile(info.url, error.message))

    await for_each(infos, FOOTERS_AT_ONCE, look)
    mine = one_log(claims.values(), log_ids)
    for one in counted_first(mine):
        checked = await check_file(store, footers[one.url])
        claims[one.url] = replace(one, erased=checked.erased)
    chosen = choose([claims[one.url] for one in mine], from_segment)
    _check_damaged(chosen, other, from_segment)
    return FoundFiles(
        chosen, {one.url: footers[one.url] for one in chosen.files}, tuple(sorted(other, key=_by_url)), from_segment
    )


def _check_damaged(chosen: ChosenFiles, damaged: Iterable[PassedFile], from_segment: int | None) -> None:
    """Raise SegmentHoleError where a damaged file has segments, by its name, that no chosen one has: at either end of
    the log nothing else shows that they are missing."""
    first, last = chosen.files[0].run[0], chosen.files[-1].run[1]
    for one in damaged:
        run = _run_named(one.url)
        if run is None or (first <= run[0] and run[1] <= last) or (from_segment is not None and run[1] < from_segment):
            continue
        raise SegmentHoleError(
            f"{one.url} is damaged ({one.why}), and its segments {run[0]} to {run[1]} are not in other files; nothing "
            "was made",
            path=one.url,
            advice="Bring the object back from a copy or an older version of it. To do without it, move it out of the "
            "folder",
        )


def _run_named(url: str) -> Run | None:
    """Return which segments a file has by its name (`cold_units.object_name`); None for another name."""
    return parse_unit_name("-".join(url.rpartition("/")[2].split("-")[:2]))


def _by_url(one: PassedFile) -> str:
    return one.url


async def check_files(
    store: ObjectStore, found: FoundFiles, told: Callable[[str], None] = lambda url: None
) -> dict[str, CheckedFile]:
    """Read all chosen files through; `told` is called with each that is right. Raises the first damage."""
    checked: dict[str, CheckedFile] = {}

    async def check_one(one: FileClaim) -> None:
        checked[one.url] = await check_file(store, found.footers[one.url])
        told(one.url)

    await for_each(found.chosen.files, FILES_AT_ONCE, check_one)
    return checked


class LogRebuild:
    """Makes a log of files that were found and checked.

    Args:
        services: the namespace's.
        settings: the new log's.
        log: its name.
        options: what a reader of the files needs beside their addresses (`ColdFile.options`).
        adopt: whether the files are this log's own from now on.
    """

    def __init__(
        self,
        services: Services,
        settings: Settings,
        log: str,
        *,
        options: Mapping[str, str],
        adopt: bool = False,
    ) -> None:
        self._services = services
        self._settings = settings
        self._log = log
        self._options = dict(options)
        self._adopt = adopt
        self._rebuilds = ColdRebuilds(services.logs)

    async def check(self, found: FoundFiles) -> RebuiltLog | None:
        """Return how far the log is rebuilt from these files already; None: not begun. Nothing is changed.

        Raises CallerError where there is such a log that is not one of these files, and where files are to be deleted.
        """
        await self._refuse_condemned(found)
        there = await self._rebuilds.find(self._log)
        if there is None:
            return None
        origin = there.origin
        if origin is None and not there.units:
            # Named by a mover, between a rebuild's first step and its next one, or before it.
            await self._rebuilds.check_untouched(self._log)
            return None
        newest = found.chosen.files[-1]
        if origin is None or (origin.namespace_id, origin.log_id, origin.last) != (
            newest.namespace_id,
            newest.log_id,
            found.last,
        ):
            raise CallerError(
                "there is such a log, and it is not one that is being rebuilt from these files; nothing was changed",
                log=self._log,
                advice="Give a name that no log has, or delete that log first",
            )
        # A mover may have found the empty segment behind the files before the first of them was added (`_head`).
        begun = {found.last + 1, *(first for first, _ in _runs(found))}
        if there.units and there.units[0][0] not in begun:
            raise CallerError(
                f"its rebuilding was begun with other files: it has segments from {there.units[0][0]} on, where none "
                "of these begins; nothing was changed",
                log=self._log,
                advice="Delete the log, and rebuild it from the files that there are now",
            )
        return there

    async def _refuse_condemned(self, found: FoundFiles) -> None:
        """Raise CallerError where a file belongs to a log that was deleted: the sweep is about to delete it, or is at
        it now, whatever else names it by then (I21)."""
        for note in await ColdStore(self._services.logs).deleted_logs():
            below = tuple(f"{folder.rstrip('/')}/" for folder, _ in note.value.folders)
            for one in found.chosen.files:
                # By its id as well: one folder may have several addresses.
                if one.log_id == note.value.log_id or one.url.startswith(below):
                    path = join(self._services.logs.namespace_path, NAMESPACE, DELETED, note.value.log_id)
                    raise CallerError(
                        f"{one.url} is a file of the log {note.value.log}, which was deleted from this namespace, and "
                        "a mover's sweep deletes its files; nothing was changed",
                        log=self._log,
                        path=path,
                        advice="To keep the files, stop all movers and sweeps of the namespace, delete that znode, "
                        "and run it again: it reads all files that are left",
                    )

    async def run(
        self,
        found: FoundFiles,
        checked: Mapping[str, CheckedFile],
        *,
        namespace_id: str,
        told: Callable[[ColdUnit], None] = lambda unit: None,
    ) -> RebuiltLog:
        """Make the log, or go on with it; returns it when it has all its units.

        Args:
            found: the files.
            checked: what is right of each.
            namespace_id: the id of the namespace in names of objects that are written from now on.
            told: called with each unit that is there, newest first.

        Raises CallerError for a log of this name that is another one, RebuildRacedError, RequestDeniedError.
        """
        await self._services.permit(self._log, Action.WRITE)
        there = await self.check(found)
        if there is None:
            there = await self._begin(found, namespace_id)
        begins = there.units[0][0] if there.units else found.last + 1
        left = [run for run in _runs(found) if run[1] < begins]
        if not left and there.origin is not None:
            raise RebuildRacedError(
                "it has all units of these files, and was to have more",
                log=self._log,
                advice="Give the same --from-segment as before, or delete the log and begin again",
            )
        files = {one.run: one for one in found.chosen.files}
        for run in reversed(left):
            if run in files:
                unit = self._unit(files[run], found.footers[files[run].url], checked[files[run].url])
            else:
                unit = _empty_unit(run, next(one for one in found.chosen.files if one.run[0] > run[1]))
            there = await self._rebuilds.add(self._log, there, unit, last=run == left[0])
            told(unit)
        return there

    async def _begin(self, found: FoundFiles, namespace_id: str) -> RebuiltLog:
        attempt = uuid.uuid4().hex
        await self._rebuilds.ensure_untouched(self._log)
        staged = StagedLedgers(self._services, self._settings, self._log, attempt)
        await staged.begin()
        try:
            ledger_id = await staged.write(NoEntries())
            newest = found.chosen.files[-1]
            head = self._head(found, ledger_id)
            declaration = found.declaration
            declared = None if declaration is None else (uuid.uuid4().hex, declaration.encode())
            beginning = LogBeginning(
                head=head,
                listing=staged.taking(ledger_id),
                max_txid=head.last_txid,
                # Its own id: the first log's may be in use elsewhere, and what is swept is swept by id.
                cold=ColdLog(namespace_id, uuid.uuid4().hex),
                declared=declared,
            )
            origin = RebuildOrigin(newest.namespace_id, newest.log_id, found.first, found.last, attempt)
            await self._rebuilds.begin(self._log, origin, beginning)
        finally:
            await staged.end()
        there = await self._rebuilds.find(self._log)
        if there is None:
            raise RebuildRacedError("the log was deleted while it was rebuilt", log=self._log)
        return there

    def _head(self, found: FoundFiles, ledger_id: int) -> SegmentMetadata:
        """Return the empty segment behind the files, such as a writer leaves that had nothing to write."""
        segments = [one.metadata for file in found.chosen.files for one in file.segments]
        newest = segments[-1]
        highest = max(one.last_txid for one in segments)
        starts = newest.effective_start_sequence_id + newest.record_count if newest.version >= 5 else 0
        return SegmentMetadata(
            ledger_id=ledger_id,
            lssn=newest.lssn + 1,
            first_txid=highest,
            last_txid=highest,
            completion_time_ms=self._services.clock.now_ms(),
            start_sequence_id=starts if self._settings.metadata_version >= 5 else UNASSIGNED_SEQUENCE_ID,
            version=self._settings.metadata_version,
        ).named(self._settings.segment_name_version)

    def _unit(self, claim: FileClaim, footer: Footer, checked: CheckedFile) -> ColdUnit:
        now_ms = self._services.clock.now_ms()
        declaration = footer.declaration
        file = ColdFile(
            url=claim.url,
            bytes=claim.bytes,
            sha256=checked.sha256,
            digest=checked.digest,
            rows=footer.rows,
            entries=footer.entries,
            options=self._options,
            schema_version=None if declaration is None else declaration.current.id,
            redacted=footer.redacted,
            borrowed=not self._adopt,
        )
        return ColdUnit(
            UnitState.HOT_DELETED, claim.attempt, claim.segments, file, claim.modified_ms, hot_deleted_ms=now_ms
        )


def _runs(found: FoundFiles) -> list[Run]:
    """Return the units that the log is to have, oldest first: files, and what lies between two and has no record."""
    runs: list[Run] = []
    for one in found.chosen.files:
        first = runs[-1][1] + 1 if runs else one.run[0]
        while first < one.run[0]:
            last = min(first + MAX_SEGMENTS, one.run[0]) - 1
            runs.append((first, last))
            first = last + 1
        runs.append(one.run)
    return runs


def _empty_unit(run: Run, behind: FileClaim) -> ColdUnit:
    """Return a unit of segments that had no record, before the file `behind`."""
    follows = behind.segments[0].metadata
    segments = tuple(
        ColdSegment(
            replace(
                follows,
                ledger_id=UNKNOWN_LEDGER,
                lssn=lssn,
                last_txid=follows.first_txid,
                record_count=0,
                last_entry=-1,
                last_slot=-1,
                min_entry=0,
                min_slot=0,
                truncation=TruncationStatus.ACTIVE,
                name=None,
            ),
            0,
            0,
            0,
        )
        for lssn in range(run[0], run[1] + 1)
    )
    return ColdUnit(
        UnitState.HOT_DELETED,
        uuid.uuid4().hex,
        segments,
        None,
        behind.modified_ms,
        hot_deleted_ms=behind.modified_ms,
    )


def folders_of(files: Iterable[FileClaim]) -> Sequence[str]:
    """Return the folders that files lie in."""
    return sorted({one.url.rpartition("/")[0] for one in files})
