"""Copies of a log's files in other regions' stores: made here, and taken away with the files.

A mirror has each file under its own name below another root (`ColdMirror`), so nothing is noted of single copies: what
is there is listed. The log's own mark names the mirrors before the first byte is copied, so that who deletes a file
knows where else it may be, settings or no settings.

    to fill        what units name and a mirror lacks, newest first; a copy of another size is made anew
    to take away   with the file: by retention, by an erasure, with the log. What a mirror out of reach keeps of a file
                   that is gone is found by the sweep, which looks at mirrors too, by the same rules

Nothing here deletes in the files' own place, and nothing that is in a mirror counts as a copy that allows that.

**Who may be in between.** Copies are made under the lock of the log's worker, in turns of `TURN_S`, so that a mover
never waits for long; and so are deletions. A copier that has lost the lock without noticing asks after each copy
whether its file is still the unit's, and takes the copy away if it is not: an erased record must not come back.

**What is copied** is hashed on its way and is committed only as the very bytes of the mark (SHA-256); then the mirror
is asked for its size. A damaged file is copied nowhere.

Fault model: it may end at any line; the next run lists again and goes on. A mirror that fails is left for this run, and
the others are filled; so is a file that is missing or damaged, and the others are copied.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dlspark.cold.moving.folders import files_of
from dlspark.cold.moving.owning import check_owner, may_delete
from dlspark.cold.moving.stores import MoverStores
from dlspark.core.services import Services
from dlspark.core.settings.cold_mirrors import MirrorPlace
from dlspark.core.settings.settings import Settings
from dlspark.core.write_lock import default_client_id, release
from dlspark.errors import DamagedColdFileError
from dlspark.objects.addresses import same_folder
from dlspark.objects.errors import ObjectExistsError, ObjectNotFoundError, ObjectOutcomeUnknownError
from dlspark.objects.store import ObjectStore
from metadata.distributedlog.cold_places import ColdFile, ColdMirror, UnitState
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import ColdLog, ColdUnit
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.foundation import fault_points
from metadata.foundation.errors import CallerError, CorruptDataError, DistributedLogError, InvariantViolation
from metadata.foundation.plurals import counted
from metadata.foundation.tasks import end_tasks

PIECE_BYTES: Final = 8 << 20
TURN_S: Final = 10.0
"""How long the worker's lock is held at a time: another file is begun only within it."""
PAUSE_S: Final = 5.0
"""How long it is left to others between two turns."""
LISTED_FOR_S: Final = 3600.0
"""How long what was listed in a mirror counts for who goes on copying: a copy that was taken away from outside is
missed for so long."""


@dataclass(slots=True)
class Mirrored:
    """What did a run do for the mirrors of one log?

    Args:
        busy: who works at this log, where another worker does: then nothing was copied, or not all.
        copied: addresses of the copies that were made.
        mended: those of them in whose place a copy of another size was.
        bytes: that were copied.
        there: copies that were there before.
        problems: what failed, in words.
        lacking: copies that are not there still, in mirrors that could be listed.
        more: whether more is to be copied that this run had no turn for.
    """

    busy: str | None = None
    copied: list[str] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)
    bytes: int = 0
    there: int = 0
    problems: list[str] = field(default_factory=list)
    lacking: int = 0
    more: bool = False

    @property
    def failure(self) -> str | None:
        """What failed, in one line for the whole log; None if nothing did. A store that is away fails once for each
        file: the first cause and the number say as much as all of them."""
        if not self.problems:
            return None
        count = f"{counted(self.lacking, 'copy is', 'copies are')} lacking: " if self.lacking else ""
        others = len(self.problems) - 1
        return f"{count}{self.problems[0]}" + (f" (and {counted(others, 'failure')} more)" if others else "")


class LogMirrors:
    """How does one log's past come into its mirrors? `run` copies what they lack.

    Args:
        services: of the namespace.
        cold: what is said of cold storage there.
        stores: where files are.
        name: the log.
        pause: waits so many seconds.
    """

    def __init__(
        self,
        services: Services,
        cold: ColdStore,
        stores: MoverStores,
        name: str,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._services = services
        self._cold = cold
        self._stores = stores
        self._name = name
        self._pause = pause
        self._sizes: dict[tuple[str, str | None], dict[str, int]] = {}
        """By root and endpoint of a mirror: the copies that are there, by the file's own address, with their sizes."""
        self._folders: set[tuple[tuple[str, str | None], str]] = set()
        """Which folders of which mirrors these were listed in."""
        self._listed_s = float("-inf")
        self._log_id = ""
        self._bad: set[str] = set()
        """Files that could not be copied in this run for what they are."""

    async def run(self, settings: Settings, *, turns: int | None = None) -> Mirrored:
        """Copy what the mirrors lack that the log's settings name: all of it, or for so many turns. Raises
        LogNotFoundError, and what keeps the metadata store from being read."""
        done = Mirrored()
        self._bad.clear()
        found = await self._cold.cold_log(self._name)
        mirrors = settings.cold_mirrors
        if found is None or found.value.deleted or not mirrors:
            return done
        units = await self._units()
        mirrors = await self._list(found.value, mirrors, units, done)
        done.there = sum(not self._lacks(mirror, one) for mirror in mirrors for one in units)
        failed: set[str] = set()

        def is_level() -> bool:
            return not any(self._lacks(one, unit) for one in mirrors if one.region not in failed for unit in units)

        while not is_level():
            if turns == 0:
                done.more = True
                break
            turns = None if turns is None else turns - 1
            if not await self._turn(settings, [one for one in mirrors if one.region not in failed], done, failed):
                break
            units = await self._units()
            if turns is None and not is_level():
                await self._pause(PAUSE_S)
        done.lacking = sum(not self._is_there(one, unit) for one in mirrors for unit in units)
        return done

    # ------------------------------------------------------------------ what there is

    async def _units(self) -> list[ColdUnit]:
        """Return the units with a file that is to be copied, the newest first: that is what is read most."""
        units = [one.value for one in await self._cold.units(self._name)]
        return [one for one in reversed(units) if one.file is not None and _to_copy(one, one.file)]

    def _lacks(self, mirror: MirrorPlace, unit: ColdUnit) -> bool:
        return (unit.file is None or unit.file.url not in self._bad) and not self._is_there(mirror, unit)

    def _is_there(self, mirror: MirrorPlace, unit: ColdUnit) -> bool:
        """Return whether the mirror has a copy of the unit's file, or is to have none."""
        file = unit.file
        if file is None or not file.copies_in((mirror.noted,)):
            return True
        return self._sizes[_key(mirror.noted)].get(file.url.rpartition("/")[2]) == file.bytes

    async def _list(
        self, log: ColdLog, mirrors: Sequence[MirrorPlace], units: Sequence[ColdUnit], done: Mirrored
    ) -> tuple[MirrorPlace, ...]:
        """Look what is in each mirror, where that is not known; return those that could be asked."""
        now_s = self._services.clock.elapsed_s()
        if now_s - self._listed_s > LISTED_FOR_S or log.log_id != self._log_id:
            self._sizes.clear()
            self._folders.clear()
            self._listed_s, self._log_id = now_s, log.log_id
        asked = []
        for mirror in mirrors:
            key = _key(mirror.noted)
            for folder in mirror.noted.folders(f"{log.namespace_id}/{log.log_id}", files_of(units)):
                if (key, folder) in self._folders:
                    continue
                try:
                    store = self._stores.put_off.at(mirror.root, mirror.write_options)
                    sizes = {one.url.rpartition("/")[2]: one.bytes async for one in store.list(folder)}
                    self._sizes.setdefault(key, {}).update(sizes)
                    self._folders.add((key, folder))
                except InvariantViolation:
                    raise
                except DistributedLogError as error:
                    self._failed(done, mirror, "be listed", error)
                    break
            else:
                asked.append(mirror)
        return tuple(asked)

    # ------------------------------------------------------------------ copying

    async def _turn(self, settings: Settings, mirrors: Sequence[MirrorPlace], done: Mirrored, failed: set[str]) -> bool:
        """Copy for a while under the worker's lock; False where another worker has it."""
        lock = await self._cold.worker(self._name, f"{default_client_id()}-mirror")
        try:
            await lock.acquire(settings.lock_timeout_s * 1000)
        except OwnershipAcquireFailedError as error:
            done.busy = error.owner
            return False
        try:
            ends_s = self._services.clock.elapsed_s() + TURN_S
            # Before the first byte: an erasure of this moment must know where to look.
            await self._cold.note_mirrors(self._name, [one.noted for one in settings.cold_mirrors])
            fault_points.reach("cold.mirrors-noted")
            units = await self._units()
            for mirror in mirrors:
                try:
                    await check_owner(
                        self._services, self._cold, self._stores.put_off, mirror.root, mirror.write_options
                    )
                    for unit in units:
                        if self._lacks(mirror, unit):
                            await self._copied(mirror, unit, done)
                            if self._services.clock.elapsed_s() >= ends_s:
                                return True
                except InvariantViolation:
                    raise
                except DistributedLogError as error:
                    failed.add(mirror.region)
                    self._failed(done, mirror, "be filled", error)
            return True
        finally:
            await release(lock)

    async def _copied(self, mirror: MirrorPlace, unit: ColdUnit, done: Mirrored) -> None:
        """Copy a file; one that is missing or damaged is told of, and is left for this run. Raises what the mirror, or
        the file's store as a whole, cannot do."""
        try:
            await self._copy(mirror, unit, done)
        except (CorruptDataError, ObjectNotFoundError) as error:
            self._bad.add(unit.file.url if unit.file is not None else "")
            self._failed(done, mirror, f"be given the file of unit {unit.name}", error)

    async def _copy(self, mirror: MirrorPlace, unit: ColdUnit, done: Mirrored) -> None:
        file = unit.file
        if file is None:
            return
        url = mirror.noted.url_of(file.url)
        name = file.url.rpartition("/")[2]
        store = self._stores.put_off.at(mirror.root, mirror.write_options)
        sizes = self._sizes[_key(mirror.noted)]
        mended = name in sizes
        if mended:
            # The very file, perhaps, by another name (a link, a server's other address): then it is as short as that.
            info = await self._stores.of(file).head(file.url)
            if info.bytes != file.bytes or same_folder(file.url, url):
                raise DamagedColdFileError(
                    f"it has {info.bytes} bytes, and not {file.bytes}; its copy of another size was left alone: it may "
                    "be the file itself under another name",
                    url=file.url,
                )
            # It is of no use to anybody, and its name is taken: readers find it damaged, and read elsewhere.
            options = mirror.write_options
            await check_owner(
                self._services, self._cold, self._stores.put_off, mirror.root, options, before_deleting=True
            )
            await store.delete(url)
            del sizes[name]
        await copy_file(self._stores.of(file), store, file, url)
        fault_points.reach("cold.mirror-copied")
        now = await self._cold.unit(self._name, unit.first, unit.last)
        if now is None or now.value.file is None or now.value.file.url != file.url or not _to_copy(now.value, file):
            # Deleted, or erased from, by who has the lock by now: then its mirrors were cleared before this one came.
            await store.delete(url)
            return
        sizes[name] = file.bytes
        done.copied.append(url)
        done.bytes += file.bytes
        done.mended += [url] if mended else []
        self._services.meter.root.cold_mirrored.inc()

    def _failed(self, done: Mirrored, mirror: MirrorPlace, doing: str, error: DistributedLogError) -> None:
        done.problems.append(f"the mirror of region {mirror.region}, {mirror.root}, could not {doing}: {error}")
        self._services.meter.root.cold_failures.inc()


def _key(mirror: ColdMirror) -> tuple[str, str | None]:
    return mirror.root, mirror.options.get("endpoint")


def _to_copy(unit: ColdUnit, file: ColdFile) -> bool:
    # A borrowed file is another log's: it is copied, and erased from, where it belongs.
    return unit.state is not UnitState.COLD_DELETE_STARTED and not file.borrowed


async def copy_file(source: ObjectStore, target: ObjectStore, file: ColdFile, url: str) -> None:
    """Copy a file to another store, as the very bytes that its mark says, or not at all.

    Raises DamagedColdFileError where the file, or what is at `url` afterwards, is something else, and the stores'
    errors; after any of them there may be an open upload at `url`, and no object but the right one.
    """
    out = await target.create(url)
    hashed = hashlib.sha256()
    ahead: asyncio.Task[list[memoryview]] | None = None
    try:
        offsets = range(0, file.bytes, PIECE_BYTES)
        loop = asyncio.get_running_loop()

        def fetch(offset: int) -> asyncio.Task[list[memoryview]]:
            length = min(PIECE_BYTES, file.bytes - offset)
            return loop.create_task(_read(source, file.url, offset, length))

        ahead = fetch(0) if offsets else None
        for offset in offsets:
            (piece,) = await asyncio.shield(ahead) if ahead is not None else (memoryview(b""),)
            ahead = fetch(offset + PIECE_BYTES) if offset + PIECE_BYTES < file.bytes else None
            hashed.update(piece)
            await out.write(piece)
        if hashed.hexdigest() != file.sha256:
            raise DamagedColdFileError("its SHA-256 is not what its mark says; no copy of it was made", url=file.url)
        fault_points.reach("cold.mirror-before-commit")
        try:
            await out.commit()
        except (ObjectExistsError, ObjectOutcomeUnknownError):
            # By our own first try, another worker's, or the store's own replication: the size will tell.
            await out.abort()
    except BaseException:
        await end_tasks([ahead] if ahead is not None else [], drop_errors=True)
        await out.abort()
        raise
    info = await target.head(url)
    if info.bytes != file.bytes:
        raise DamagedColdFileError(f"a copy of it has {info.bytes} bytes, and not {file.bytes}", url=url)


async def _read(store: ObjectStore, url: str, offset: int, length: int) -> list[memoryview]:
    return await store.read(url, [(offset, length)])


# ---------------------------------------------------------------------- taking copies away


async def delete_copies(
    services: Services, cold: ColdStore, stores: MoverStores, mirrors: Sequence[ColdMirror], file: ColdFile
) -> list[str]:
    """Delete the copies of a file, which is going or has been replaced; return in words what may be left."""
    left = []
    for mirror in file.copies_in(mirrors):
        url = mirror.url_of(file.url)
        try:
            if not await may_delete(services, cold, stores.put_off, url, mirror.options):
                left.append(f"{url} stays: its place belongs to another ZooKeeper's copy of this namespace")
                continue
            if same_folder(file.url, url):
                left.append(f"{url} is the file itself under another name: that is no mirror; leave it out")
                continue
            # By the root: a folder that is not there is not mounted, and must not look like one without the file.
            store = stores.put_off.at(mirror.root, mirror.options)
            await store.delete(url)
            fault_points.reach("cold.copy-deleted")
        except InvariantViolation:
            raise
        except DistributedLogError as error:
            left.append(f"{url}, in region {mirror.region}, may still be there: {error}")
    return left


async def clear_replaced(services: Services, cold: ColdStore, stores: MoverStores, name: str) -> list[str]:
    """Delete the copies of files that others have been put in place of; return in words what may be left.

    For the holder of the worker's lock: nobody makes such copies meanwhile.
    """
    about_log = await cold.cold_log(name)
    if about_log is None or not about_log.value.mirrors:
        return []
    left = []
    for unit in await cold.units(name):
        for file in unit.value.replaced:
            left += await delete_copies(services, cold, stores, about_log.value.mirrors, file)
    return left


async def forget_mirror(services: Services, cold: ColdStore, name: str, settings: Settings, region: str) -> list[str]:
    """Take a region's former mirror off what a log names, and return the folders there in which copies of its may be.

    Nothing is deleted: that these are copies only, and of no use any more, is for people to say. No store is asked, so
    a mirror that is gone for good can be forgotten.

    Raises CallerError where settings still name it, files themselves lie there, or the log never had it,
    LogNotFoundError, and OwnershipAcquireFailedError: then it is noted as before.
    """
    lock = await cold.worker(name, f"{default_client_id()}-mirror")
    await lock.acquire(settings.lock_timeout_s * 1000)
    # Under the lock: a copier of this moment, or a deletion, goes by what is noted.
    try:
        about_log = await cold.cold_log(name)
        noted = [] if about_log is None else [one for one in about_log.value.mirrors if one.region == region]
        wanted = [one.noted for one in settings.cold_mirrors]
        former = [one for one in noted if not any(one.same_place(kept.root, kept.options) for kept in wanted)]
        if about_log is None or not former:
            named = any(one.region == region for one in wanted)
            raise CallerError(
                f"log {name} has no former mirror in region {region}; nothing was done",
                advice="coldStorageMirrors names it: take it out there first, for movers, too"
                if named
                else "`dlspark cold status` shows which mirrors a log has",
            )
        units = [one.value for one in await cold.units(name)]
        for one in former:
            is_place = bool(settings.cold_root) and one.same_place(settings.cold_root, settings.cold_options)
            if is_place or any(not file.copies_in((one,)) for file in files_of(units)):
                raise CallerError(
                    f"{one.root}, which was the mirror of log {name} in region {region}, is a place for its files by "
                    "now; nothing was done",
                    advice="Leave it noted: older files may be there in copies alone, which readers find by the note",
                )
        folders = [
            folder
            for one in former
            for folder in one.folders(f"{about_log.value.namespace_id}/{about_log.value.log_id}", files_of(units))
        ]
        for one in former:
            await cold.forget_mirror(name, one)
        return folders
    finally:
        await release(lock)
