"""The sweep: objects that nothing names, uploads that never ended, and the files of logs that are gone.

A worker that dies leaves an object that no mark names, or an open upload, which is no object and costs all the same. A
request may also arrive after its worker has given up. Nothing but this finds either.

**What may be deleted.** A mover notes an object's name in an attempt before it writes the first byte, and no name is
ever used twice. So an object of a mover that was listed, and that no attempt and no unit names *afterwards*, is dead:
its attempt was there before it, and is gone. The order is what counts: first the store, then the metadata, behind a
`sync`. The age (`MIN_AGE_S`) is for what else writes there: an erasure, whose new file is named only once it is whole;
a ZooKeeper that was restored from an older state, whose marks lack the newest files; and clocks. Nobody writes one file
for a day, and people have that day to notice.

**What may not.** Everything outside of the log's own folders, whatever its name. Folders of logs that are not there: a
log that was renamed while it was looked at, or a namespace that cannot be read, looks just like one that is gone. Only
the note that a deletion leaves (`DeletedLog`) allows to delete those, and it stays until nothing can arrive any more.

Every error ends the sweep of one log and is told; the next sweep begins anew.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from dlspark.cold.moving.folders import ColdFolder, files_of, folders_of
from dlspark.cold.moving.stores import MoverStores
from dlspark.core.metrics.structured_logging import about
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.objects.store import ObjectInfo, OpenUpload
from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import DeletedLog
from metadata.foundation import fault_points
from metadata.retry import repeat

_log = logging.getLogger(__name__)

MIN_AGE_S: Final = 24 * 3600
"""How old an object or upload is at least that is swept, by the store's clock."""


@dataclass(slots=True)
class Swept:
    """What did a sweep delete? Addresses of objects and of uploads, and names of deleted logs that left nothing."""

    objects: list[str] = field(default_factory=list)
    uploads: list[str] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)

    def add(self, other: Swept) -> None:
        """Count what `other` has as well."""
        self.objects += other.objects
        self.uploads += other.uploads
        self.logs += other.logs


async def sweep_log(
    services: Services,
    cold: ColdStore,
    stores: MoverStores,
    name: str,
    settings: Settings,
    *,
    min_age_s: int = MIN_AGE_S,
) -> Swept:
    """Delete what nothing names in a log's folders. Raises LogNotFoundError, and the stores' errors."""
    swept = Swept()
    before = await cold.cold_log(name)
    if before is None:
        return swept
    units, attempts = await cold.units(name), await cold.attempts(name)
    folders = folders_of(before.value, settings, [one.value for one in units], [one.value for one in attempts])
    oldest_ms = services.clock.now_ms() - min_age_s * 1000
    objects: list[tuple[ColdFolder, ObjectInfo]] = []
    uploads: list[tuple[ColdFolder, OpenUpload]] = []
    for folder in folders:
        store = stores.at(folder.url.rstrip("/"), folder.options)
        objects += [(folder, one) async for one in store.list(folder.url) if one.modified_ms <= oldest_ms]
        uploads += [(folder, one) async for one in store.uploads(folder.url) if one.started_ms <= oldest_ms]
    fault_points.reach("cold.sweep-listed")
    # Afterwards, and as new as it can be: what is named now, or was not there yet, stays.
    path = (await services.logs.located(name)).partition
    await repeat(services.store, lambda: services.store.sync(path))
    now = await cold.cold_log(name)
    if now is None or now.value.log_id != before.value.log_id or now.value.deleted:
        return swept  # another log of the name, or one on its way out: the note of its deletion says what goes
    copied = {one.value.url for one in await cold.attempts(name)}
    named = {file.url for file in files_of(one.value for one in await cold.units(name))}
    # Attempts were read first: one that has become a unit meanwhile is in one of the two at least.
    for folder, info in objects:
        if info.url not in named and info.url not in copied:
            await stores.at(folder.url.rstrip("/"), folder.options).delete(info.url)
            swept.objects.append(info.url)
    for folder, upload in uploads:
        # Of a unit's file as well: the upload that made it has ended, and this is another try of the same.
        if upload.url not in copied:
            await stores.at(folder.url.rstrip("/"), folder.options).abort_upload(upload)
            swept.uploads.append(upload.url)
    _report(services, name, swept)
    return swept


async def sweep_deleted_log(
    services: Services, cold: ColdStore, stores: MoverStores, log: Versioned[DeletedLog], *, min_age_s: int = MIN_AGE_S
) -> Swept:
    """Delete the files of a log that was deleted; once that is long ago, forget it. Raises the stores' errors."""
    swept = Swept()
    for url, options in log.value.folders:
        folder = f"{url.rstrip('/')}/"
        store = stores.at(url.rstrip("/"), options)
        # Uploads first: one that ends between the two is an object then, and is found.
        for upload in [one async for one in store.uploads(folder)]:
            await store.abort_upload(upload)
            swept.uploads.append(upload.url)
        for info in [one async for one in store.list(folder)]:
            await store.delete(info.url)
            swept.objects.append(info.url)
    fault_points.reach("cold.tombstone-swept")
    # A worker that stood still may have had a request on its way: the note stays until none can arrive.
    if log.value.deleted_ms <= services.clock.now_ms() - min_age_s * 1000 and not swept.objects and not swept.uploads:
        await cold.forget_deleted(log)
        swept.logs.append(log.value.log)
    _report(services, log.value.log, swept)
    return swept


def _report(services: Services, name: str, swept: Swept) -> None:
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
