"""The audit: is every file there that a mark names, with its size? No engine can be kept from rewriting a table's
files, nor people from tidying a bucket; this is how it is noticed before a reader does.

It looks at each log's folders once, which takes a request for a thousand files, and asks for what it did not find by
name. Marks are read again before anything is called missing: a file that went by retention meanwhile was not missing.
It changes nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum

from dlspark.cold.moving.folders import folders_of
from dlspark.cold.moving.stores import MoverStores
from dlspark.core.metrics.structured_logging import about
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.objects.errors import ObjectNotFoundError
from metadata.distributedlog.cold_places import ColdFile, UnitState
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import ColdUnit
from metadata.foundation.errors import DistributedLogError, InvariantViolation

_log = logging.getLogger(__name__)


class ColdFindingKind(str, Enum):
    """What can be wrong with a file?"""

    MISSING = "missing"
    """There is no such object: its records cannot be read, unless its hot copies are still there."""
    SIZE = "size"
    """The object has another size than was written."""
    UNREACHABLE = "unreachable"
    """Its store could not be asked."""


@dataclass(frozen=True, slots=True)
class ColdFinding:
    """What is wrong with which file?

    Args:
        kind: what.
        log: the log.
        unit: the unit's name: the numbers of its segments.
        url: the file's address.
        only_copy: whether its hot copies are gone.
        text: for people.
    """

    kind: ColdFindingKind
    log: str
    unit: str
    url: str
    only_copy: bool
    text: str


async def audit_log(
    services: Services, cold: ColdStore, stores: MoverStores, name: str, settings: Settings
) -> tuple[int, list[ColdFinding]]:
    """Return how many files of a log were looked at, and what is wrong. Raises LogNotFoundError."""
    about_log = await cold.cold_log(name)
    if about_log is None:
        return 0, []
    units = [one.value for one in await cold.units(name)]
    wanted = [(unit, unit.file) for unit in units if unit.file is not None and _must_exist(unit)]
    sizes: dict[str, int] = {}
    for folder in folders_of(about_log.value, settings, units, ()):
        try:
            store = stores.at(folder.root, folder.options)
            sizes.update({info.url: info.bytes async for info in store.list(folder.url)})
        except InvariantViolation:
            raise
        except DistributedLogError as error:
            # Each file is asked for by its name then, and says so by itself.
            _log.info("log %s: %s cannot be listed: %s", name, folder.url, error, extra=about(log=name))
    found = []
    for unit, file in wanted:
        if sizes.get(file.url) != file.bytes:
            finding = await _look_again(cold, stores, name, unit, file)
            found += [finding] if finding is not None else []
    for one in found:
        _log.error("log %s: %s: %s", name, one.url, one.text, extra=about(log=name))
        if one.only_copy and one.kind is not ColdFindingKind.UNREACHABLE:
            services.meter.root.alerts.inc()
    return len(wanted), found


def _must_exist(unit: ColdUnit) -> bool:
    return unit.state is not UnitState.COLD_DELETE_STARTED


async def _look_again(
    cold: ColdStore, stores: MoverStores, name: str, unit: ColdUnit, file: ColdFile
) -> ColdFinding | None:
    """Ask for a file by name, and then whether it is still wanted."""
    only_copy = unit.state is UnitState.HOT_DELETED
    kind: ColdFindingKind
    try:
        info = await stores.of(file).head(file.url)
        if info.bytes == file.bytes:
            return None
        kind, text = ColdFindingKind.SIZE, f"it has {info.bytes} bytes, and {file.bytes} were written"
    except ObjectNotFoundError:
        kind, text = ColdFindingKind.MISSING, "it is not there"
    except InvariantViolation:
        raise
    except DistributedLogError as error:
        kind, text = ColdFindingKind.UNREACHABLE, f"its store cannot be asked: {error}"
    now = await cold.unit(name, unit.first, unit.last)
    if now is None or not _must_exist(now.value) or now.value.file is None or now.value.file.url != file.url:
        return None
    if kind is not ColdFindingKind.UNREACHABLE:
        text += "; it is the only copy" if only_copy else "; its hot copies stay until it is there again"
    return ColdFinding(kind, name, unit.name, file.url, only_copy, text)
