"""The sweep: objects that nothing names, uploads that never ended, and the files of logs that are gone.

A worker that dies leaves an object that no mark names, or an open upload, which is no object and costs all the same. A
request may also arrive after its worker has given up. Nothing but this finds either.

**What may be deleted.** A mover notes an object's name in an attempt before it writes the first byte, and no name is
ever used twice. So an object of a mover that was listed, and that no attempt and no unit names *afterwards*, is dead:
its attempt was there before it, and is gone. The order is what counts: first the store, then the metadata
(`ColdMarks`, which are this very log's or none). The worker's lock is held meanwhile, which keeps the log from being
renamed. The age (`MIN_AGE_S`) is for what else writes there, above all an erasure, whose new file is named only once it
is whole; by the earlier of two clocks (`clocks`).

**And only what others have as well.** After a restore of ZooKeeper from an older state its marks lack the newest files,
which look just like dead ones, and whose ledgers are gone. So each segment in an object's name must lie before the
log's truncation, or in a unit whose file is there, and not be younger than the object: one that is was written after
such a restore, under a number that was used before. What is in neither is kept and told (`kept`). Segments that are
only on the list prove nothing: an older list names ledgers that are gone. A dead try of theirs goes once they have a
unit.

**In mirrors** the same holds: a copy has its file's name, so that it is dead where no mark has a file of that name.
What a mirror that could not be reached has kept when its file went, goes so. One that cannot be reached now is told
(`unreached`), and keeps nothing else from being swept.

**What may not.** Everything outside of the log's own folders, whatever its name. Folders of logs that are not there: a
log that was renamed while it was looked at, or a namespace that cannot be read, looks just like one that is gone. Only
the note that a deletion leaves (`DeletedLog`) allows to delete those, and it stays until nothing can arrive any more.

Every error ends the sweep of one log and is told; the next sweep begins anew.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dlspark.cold.lake.syncing import release_deleted_log
from dlspark.cold.moving.clocks import ahead_ms
from dlspark.cold.moving.folders import ColdFolder, folders_of, mirror_folders_of
from dlspark.cold.moving.owning import check_owner, may_delete
from dlspark.cold.moving.stores import MoverStores, PlaceStores
from dlspark.core.metrics.structured_logging import about
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.core.write_lock import default_client_id, release
from dlspark.objects.errors import ObjectNotFoundError
from dlspark.objects.store import ObjectInfo, ObjectStore, OpenUpload
from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_marks import ColdMarks
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import ColdUnit, DeletedLog, parse_unit_name
from metadata.foundation import fault_points
from metadata.foundation.errors import DistributedLogError, InvariantViolation

_log = logging.getLogger(__name__)

MIN_AGE_S: Final = 24 * 3600
"""How old an object or upload is at least that is swept: made by the store's clock, now by `clocks`."""

_ANY_NAME: Final = "any"
STORE_TICK_MS: Final = 1000
"""S3 tells of times in whole seconds, rounded down: an object is at most so much younger than it seems."""


@dataclass(slots=True)
class Swept:
    """What did a sweep delete? Addresses of objects and of uploads, and names of deleted logs that left nothing.
    `kept`: objects that no mark names and that may be the only copy of something. `foreign`: folders that were not
    swept, for their place belongs to another ZooKeeper's copy of the namespace. `unreached`: mirrors that could not be
    swept, each with the reason."""

    objects: list[str] = field(default_factory=list)
    uploads: list[str] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    unreached: list[str] = field(default_factory=list)

    def add(self, other: Swept) -> None:
        """Count what `other` has as well."""
        self.objects += other.objects
        self.uploads += other.uploads
        self.logs += other.logs
        self.kept += other.kept
        self.foreign += other.foreign
        self.unreached += other.unreached


async def sweep_log(
    services: Services,
    cold: ColdStore,
    stores: MoverStores,
    name: str,
    settings: Settings,
    *,
    min_age_s: int = MIN_AGE_S,
) -> Swept:
    """Delete what nothing names in a log's folders. Raises LogNotFoundError, OwnershipAcquireFailedError while a mover
    is at work there, PlaceOwnedElsewhereError for the place that settings name, and the stores' errors."""
    if await cold.cold_log(name) is None:
        return Swept()
    lock = await cold.worker(name, f"{default_client_id()}-sweep")
    await lock.acquire(settings.lock_timeout_s * 1000)
    try:
        ahead = await ahead_ms(services, lock)
        if ahead is None:
            return Swept()  # the lock is lost already: by another sweep then
        return await _sweep(services, cold, stores, name, settings, services.clock.now_ms() - ahead - min_age_s * 1000)
    finally:
        await release(lock)


async def _sweep(
    services: Services, cold: ColdStore, stores: MoverStores, name: str, settings: Settings, oldest_ms: int
) -> Swept:
    swept = Swept()
    before = await cold.marks(name)
    if before is None:
        return swept
    if settings.cold_root:
        # A copy of the namespace in another ZooKeeper would take for dead what only the other one names.
        await check_owner(services, cold, stores, settings.cold_root, settings.cold_write_options)
    units = [one.value for one in before.units]
    folders = folders_of(before.log, settings, units, [one.value for one in before.attempts])
    folders += mirror_folders_of(before.log, folders, units)
    objects, uploads = await _listed(services, cold, stores, folders, oldest_ms, swept)
    fault_points.reach("cold.sweep-listed")
    # Afterwards, and as new as it can be: what is named now, or was not there yet, stays.
    marks = await cold.marks(name)
    if marks is None or marks.log.log_id != before.log.log_id:
        return swept  # another log of the name, or one on its way out: the note of its deletion says what goes
    proof = _Proof(stores, marks)
    seen: set[str] = set()

    async def ours(folder: ColdFolder) -> bool:
        # Again, since to list takes long: anew before the folder's first deletion, then every some seconds.
        places, url = _asked(stores, folder), folder.url + _ANY_NAME
        try:
            own = await may_delete(services, cold, places, url, folder.options, just_seen=folder.url in seen)
            seen.add(folder.url)
        except InvariantViolation:
            raise
        except DistributedLogError as error:
            _left_in_mirror(folder, folder.url, error, swept)
            return False
        if own:
            return True
        if folder.url not in swept.foreign:
            swept.foreign.append(folder.url)
        return False

    for folder, info in objects:
        # Where a mirror has become the place for new files, the older ones' copies are still there, and are read.
        copies = folder.mirror or any(one.same_place(folder.root, folder.options) for one in marks.log.mirrors)
        if not (marks.dead_copy(info.url) if copies else marks.dead(info.url)):
            continue
        if not await proof.covers(info):
            swept.kept.append(info.url)
            continue
        if not await ours(folder):
            continue
        if await _is_done(folder, info.url, _store(stores, folder).delete(info.url), swept):
            swept.objects.append(info.url)
    copied = {one.value.url for one in marks.attempts}
    for folder, upload in uploads:
        # Of a unit's file as well: the upload that made it has ended, and this is another try of the same.
        if upload.url in copied or not await ours(folder):
            continue
        if await _is_done(folder, upload.url, _store(stores, folder).abort_upload(upload), swept):
            swept.uploads.append(upload.url)
    _report(services, name, swept)
    return swept


async def _listed(
    services: Services,
    cold: ColdStore,
    stores: MoverStores,
    folders: Sequence[ColdFolder],
    oldest_ms: int,
    swept: Swept,
) -> tuple[list[tuple[ColdFolder, ObjectInfo]], list[tuple[ColdFolder, OpenUpload]]]:
    """Return what is old enough in the folders that are this namespace's, objects and uploads."""
    objects: list[tuple[ColdFolder, ObjectInfo]] = []
    uploads: list[tuple[ColdFolder, OpenUpload]] = []
    for folder in folders:
        try:
            if not await may_delete(services, cold, _asked(stores, folder), folder.url + _ANY_NAME, folder.options):
                # Of a former root; what is below the present one is swept all the same.
                swept.foreign.append(folder.url)
                continue
            store = _store(stores, folder)
            objects += [(folder, one) async for one in store.list(folder.url) if one.modified_ms <= oldest_ms]
            uploads += [(folder, one) async for one in store.uploads(folder.url) if one.started_ms <= oldest_ms]
        except InvariantViolation:
            raise
        except DistributedLogError as error:
            _left_in_mirror(folder, folder.url, error, swept)
    return objects, uploads


def _asked(stores: MoverStores, folder: ColdFolder) -> PlaceStores:
    # A mirror that is away is told of once a minute, and not after its time-outs for each log.
    return stores.put_off if folder.mirror else stores


def _store(stores: MoverStores, folder: ColdFolder) -> ObjectStore:
    return _asked(stores, folder).at(folder.root, folder.options)


async def _is_done(folder: ColdFolder, url: str, request: Awaitable[None], swept: Swept) -> bool:
    """Wait for a request; return False where a mirror did not do it. Raises the errors of the files' own stores."""
    try:
        await request
    except InvariantViolation:
        raise
    except DistributedLogError as error:
        _left_in_mirror(folder, url, error, swept)
        return False
    return True


def _left_in_mirror(folder: ColdFolder, url: str, error: DistributedLogError, swept: Swept) -> None:
    """Tell of what a mirror did not do, for which nothing else waits. Raises the errors of the files' own stores."""
    if not folder.mirror:
        raise error
    swept.unreached.append(f"{url}: {error}")


class _Proof:
    """Are an object's records somewhere else too, or hidden for good? Asks for each unit's file at most once."""

    def __init__(self, stores: MoverStores, marks: ColdMarks) -> None:
        self._stores = stores
        self._marks = marks
        self._whole: dict[str, bool] = {}

    async def covers(self, info: ObjectInfo) -> bool:
        """Return whether nothing is lost with an object that no mark names. Raises the stores' errors."""
        unit_part = info.url.rpartition("/")[2].rpartition("-")[0]
        numbers = parse_unit_name(unit_part)
        if numbers is None:
            return False  # not a name of ours: nobody knows what it is
        missing = range(max(numbers[0], self._marks.log.truncated_to[0]), numbers[1] + 1)
        found = 0
        for unit in (one.value for one in self._marks.units):
            if unit.last < missing.start or unit.first >= missing.stop:
                continue
            mine = [one.metadata for one in unit.segments if one.metadata.lssn in missing]
            if any(one.completion_time_ms >= info.modified_ms + STORE_TICK_MS for one in mine) or not await self._there(
                unit
            ):
                return False
            found += len(mine)
        return found == len(missing)

    async def _there(self, unit: ColdUnit) -> bool:
        file = unit.file
        if file is None:
            return True  # no records: there is nothing to lose
        if unit.name not in self._whole:
            try:
                self._whole[unit.name] = (await self._stores.of(file).head(file.url)).bytes == file.bytes
            except ObjectNotFoundError:
                self._whole[unit.name] = False
        return self._whole[unit.name]


async def sweep_deleted_log(
    services: Services, cold: ColdStore, stores: MoverStores, log: Versioned[DeletedLog], *, min_age_s: int = MIN_AGE_S
) -> Swept:
    """Delete the files of a log that was deleted; once that is long ago, forget it. Raises the stores' errors, and what
    keeps a lake table from giving them up.

    A folder in a place that is owned elsewhere is passed over. The note stays then: it alone says that there may be
    files to be deleted, should the place be taken over.
    """
    swept = Swept()
    folders = [(f"{url.rstrip('/')}/", options) for url, options in log.value.folders]
    errors: list[DistributedLogError] = []
    asked = []
    for folder, options in folders:
        try:
            if await may_delete(services, cold, stores.put_off, folder + _ANY_NAME, options):
                asked.append((folder, options))
            else:
                swept.foreign.append(folder)
        except InvariantViolation:
            raise
        except DistributedLogError as error:
            errors.append(error)  # a mirror, perhaps, that is away: the other places are swept all the same
    if not folders or asked:
        # Before the objects: a lake table must not name a file that is not there.
        await release_deleted_log(services.logs, log.value)
    for folder, options in asked:
        try:
            await _sweep_deleted_folder(services, cold, stores.put_off, folder, options, swept)
        except InvariantViolation:
            raise
        except DistributedLogError as error:
            errors.append(error)
    fault_points.reach("cold.tombstone-swept")
    if errors:
        _report(services, log.value.log, swept)
        raise errors[0]  # and the note stays
    # A worker that stood still may have had a request on its way: the note stays until none can arrive.
    old = services.clock.now_ms() - log.value.deleted_ms >= min_age_s * 1000
    if old and not swept.objects and not swept.uploads and not swept.foreign:
        # By the store's clock as well: this host's may be ahead of the one that wrote the note by days.
        stamped = await cold.stamped_deleted(log)
        if stamped is not None and stamped[1] >= min_age_s * 1000:
            await cold.forget_deleted(stamped[0])
            swept.logs.append(log.value.log)
    _report(services, log.value.log, swept)
    return swept


async def _sweep_deleted_folder(
    services: Services, cold: ColdStore, stores: PlaceStores, folder: str, options: Mapping[str, str], swept: Swept
) -> None:
    # Asked again, since what was done before may have taken long.
    if not await may_delete(services, cold, stores, folder + _ANY_NAME, options):
        swept.foreign.append(folder)
        return
    # By the root of all logs: the folder may never have been made, but a root that is not there is not mounted.
    store = stores.at(ColdFolder(folder).root, options)
    # Uploads first: one that ends between the two is an object then, and is found.
    for upload in [one async for one in store.uploads(folder)]:
        await store.abort_upload(upload)
        swept.uploads.append(upload.url)
    for info in [one async for one in store.list(folder)]:
        if not await may_delete(services, cold, stores, info.url, options, just_seen=True):
            swept.foreign.append(folder)
            return
        await store.delete(info.url)
        swept.objects.append(info.url)


def _report(services: Services, name: str, swept: Swept) -> None:
    for url in swept.kept:
        _log.warning(
            "log %s: no mark names %s, and its records are in no other file that is there. It stays. If ZooKeeper was "
            "restored from an older state, it may be the only copy; if it is a copy that was given up, it goes by "
            "itself once its segments are in another file",
            name,
            url,
            extra=about(log=name),
        )
    count = len(swept.objects) + len(swept.uploads)
    if count:
        services.meter.root.cold_swept.inc(count)
        _log.info(
            "log %s: %d objects and %d open uploads were swept",
            name,
            len(swept.objects),
            len(swept.uploads),
            extra=about(log=name),
        )
