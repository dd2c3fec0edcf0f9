"""`UnitKeeper`: a log's units with their versions, for those that take steps, without reading all of them each time.

A log has thousands of units, of which a step or two changes one. `P/cold` is read before units are; each step sets it
in its own transaction. What was read of a unit is still what its znode has, version included, unless one of these
happened, and each of them shows:

| what changes a unit's znode | shows |
|---|---|
| `replace_file`, `put_back` | `ColdLog.same_since`, in the transaction itself |
| `begin_cold_delete` | it lies below `ColdLog.truncated_to`, which the transaction sets and nothing ever moves back |
| `end_cold_delete`, and whatever made a znode of that name again | its name is missing; it lies below `truncated_to` |
| `forget_replaced` | a unit with replaced files is never kept |
| `delete_hot` | it is FINISHED, and the transaction takes all that is listed of it off the list: see `settled` |
| a rename, or a log made anew | `P/cold` is another znode, by the transaction that made it |

A unit that was marked COLD_DELETE_STARTED before `P/cold` was read is therefore always seen so: what keeps files out of
lake tables depends on it. Of what happened after that read an answer may know or not, as if it had been read then: each
step checks what it was given against the znode, and refuses. Who concludes from what is *not* there reads everything:
`cold_marks`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_listing import KeptUnits, kept_bytes
from metadata.distributedlog.cold_places import UnitState
from metadata.distributedlog.cold_units import ColdLog, ColdUnit, end_of, parse_unit_name
from metadata.distributedlog.log_names import LogPaths
from metadata.foundation.errors import NoNodeError
from metadata.retry import repeat
from metadata.store import MetadataStore

_READS_AT_ONCE: Final = 64


class SeenColdLog(NamedTuple):
    """What is said of a log's cold storage, and by which znode: the transaction that made it?"""

    log: Versioned[ColdLog]
    creation: int


class _VersionedUnit(NamedTuple):
    unit: ColdUnit
    version: int
    creation: int
    generation: int

    @property
    def bytes(self) -> int:
        return kept_bytes(self.unit)


_KEPT: Final[WeakKeyDictionary[MetadataStore, KeptUnits[_VersionedUnit]]] = WeakKeyDictionary()


class UnitKeeper:
    """Which units has a log, at which versions? Of all logs of one session; what is kept is bounded.

    Movers and the syncs of lake tables that use a session know the same units.

    Args:
        store: the session.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._kept = _KEPT.setdefault(store, KeptUnits())

    async def log(self, paths: LogPaths) -> SeenColdLog | None:
        """Return what is said of the log, with all that this session has changed; None where it has no cold storage."""
        await repeat(self._store, lambda: self._store.sync(paths.partition))
        try:
            data, stat = await repeat(self._store, lambda: self._store.get(paths.cold))
        except NoNodeError:
            self._kept.forget(paths.cold)
            return None
        return SeenColdLog(Versioned(ColdLog.decode(data, paths.cold), stat.version), stat.czxid)

    async def units(self, paths: LogPaths, seen: SeenColdLog) -> list[Versioned[ColdUnit]]:
        """Return the log's units as of `seen`, which was read just before, or later; oldest first. That a FINISHED one
        has lost its hot copies since it was read is left to `settled`."""
        try:
            names, _ = await repeat(self._store, lambda: self._store.children(paths.cold_units))
        except NoNodeError:
            return []
        wanted = sorted(name for name in names if parse_unit_name(name) is not None)
        self._kept.keep_only(paths.cold, wanted)
        found = {name: self._known(paths, seen, name) for name in wanted}
        found.update(await self._read(paths, seen, [name for name, unit in found.items() if unit is None]))
        return [unit for unit in found.values() if unit is not None]

    async def settled(
        self, paths: LogPaths, seen: SeenColdLog, units: Sequence[Versioned[ColdUnit]], listed: Container[int]
    ) -> list[Versioned[ColdUnit]]:
        """Return the units with those read again that may have lost their hot copies. `listed`: the numbers of the
        segments on the log's list, which was read after `units`."""
        doubtful = [
            one.value.name
            for one in units
            if one.value.state is UnitState.FINISHED
            and not any(lssn in listed for lssn in range(one.value.first, one.value.last + 1))
        ]
        now = await self._read(paths, seen, doubtful)
        after = (now.get(one.value.name, one) for one in units)
        return [unit for unit in after if unit is not None]

    def forget(self, paths: LogPaths) -> None:
        """Read everything of a log with the next look."""
        self._kept.forget(paths.cold)

    def _known(self, paths: LogPaths, seen: SeenColdLog, name: str) -> Versioned[ColdUnit] | None:
        kept = self._kept.get(paths.cold, name)
        if kept is None or kept.creation != seen.creation:
            return None
        log, unit = seen.log.value, kept.unit
        if end_of(unit.segments[-1].metadata) <= log.truncated_to or not log.same_since(kept.generation, unit.first):
            return None
        if kept.generation != log.generation:
            # It was right up to here: of later changes the log's mark tells, of ever older ones it does not.
            self._kept.keep(paths.cold, kept._replace(generation=log.generation))
        return Versioned(unit, kept.version)

    async def _read(
        self, paths: LogPaths, seen: SeenColdLog, names: Iterable[str]
    ) -> dict[str, Versioned[ColdUnit] | None]:
        read: dict[str, Versioned[ColdUnit] | None] = {}
        left = list(names)
        while left:
            some, left = left[:_READS_AT_ONCE], left[_READS_AT_ONCE:]
            read.update(zip(some, await asyncio.gather(*(self._one(paths, seen, one) for one in some)), strict=True))
        return read

    async def _one(self, paths: LogPaths, seen: SeenColdLog, name: str) -> Versioned[ColdUnit] | None:
        path = f"{paths.cold_units}/{name}"
        try:
            data, stat = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return None
        unit = ColdUnit.decode(data, path)
        if not unit.replaced and unit.state is not UnitState.COLD_DELETE_STARTED:
            # Of `seen` or later: what changed in between is told as a change since `seen`, and read once more.
            self._kept.keep(paths.cold, _VersionedUnit(unit, stat.version, seen.creation, seen.log.value.generation))
        return Versioned(unit, stat.version)
