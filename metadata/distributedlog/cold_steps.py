"""`ColdSteps`: what all steps of cold storage do (`cold_store`): read what they depend on, and begin again where that
was changed under them. Nothing here changes a znode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_places import ColdMirror
from metadata.distributedlog.cold_units import ColdLog, ColdSegment, ColdUnit, Position, parse_unit_name
from metadata.distributedlog.log_names import LogPaths, log_not_found_error
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.errors import BadVersionError, NodeExistsError, NoNodeError, NotAppliedError, NotEmptyError
from metadata.retry import MAX_REPEATS, repeat
from metadata.store import Check, MetadataStore, SetData, join

T = TypeVar("T")

_READS_AT_ONCE: Final = 64
_CHANGED: Final = (BadVersionError, NoNodeError, NodeExistsError, NotEmptyError)


class ColdMovedError(NotAppliedError):
    """What a step builds on is not as it was read: nothing was changed. Read it again, and decide anew."""


class ColdTakenError(NotAppliedError):
    """Some of the segments are in a unit or in another worker's attempt already."""


class ColdKeptError(NotAppliedError):
    """Hot copies, or a file, may not go yet: something still needs them. Nothing was changed."""


class ColdSteps:
    """What does a step build on? Reads for the steps of one namespace's logs.

    Args:
        store: the session.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def unit_at(self, path: str) -> Versioned[ColdUnit] | None:
        """Return the unit at `path`; None where there is none."""
        found = await self.get(path)
        return None if found is None else Versioned(ColdUnit.decode(found.value, path), found.version)

    async def all(
        self, parent: str, decode: Callable[[bytes, str], T], *, before: int | None = None
    ) -> list[Versioned[T]]:
        """Return what the units or attempts below `parent` say, oldest segments first; `before`: those alone that begin
        with an older segment than this one."""
        try:
            names, _ = await repeat(self._store, lambda: self._store.children(parent))
        except NoNodeError:
            return []
        # Sorted, of equal length.
        found_names = [(name, numbers) for name in names if (numbers := parse_unit_name(name)) is not None]
        paths = [join(parent, name) for name, numbers in found_names if before is None or numbers[0] < before]
        read: list[Versioned[T]] = []
        for start in range(0, len(paths), _READS_AT_ONCE):
            some = paths[start : start + _READS_AT_ONCE]
            found = await asyncio.gather(*map(self.get, some))
            read += [
                Versioned(decode(one.value, path), one.version)
                for path, one in zip(some, found, strict=True)
                if one is not None
            ]
        return read

    async def get(self, path: str) -> Versioned[bytes] | None:
        """Return a znode's data with its version; None where it does not exist."""
        try:
            data, stat = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return None
        return Versioned(data, stat.version)

    async def settled(self, name: str, step: Callable[[], Awaitable[T]]) -> T:
        """Run `step`, which begins by reading, until nothing has changed under it."""
        for _ in range(MAX_REPEATS):
            try:
                return await repeat(self._store, step)
            except _CHANGED:
                continue
        raise ColdMovedError("its cold storage keeps changing; nothing of this step was done", log=name)

    async def fresh(self, name: str, paths: LogPaths) -> Versioned[ColdLog]:
        """Return what is said of the log, with all that this session has changed, answered or not."""
        await self._store.sync(paths.partition)
        found = await self.get(paths.cold)
        if found is None:
            if await self._store.exists(paths.partition) is None:
                raise log_not_found_error(name, paths.partition)
            raise ColdMovedError("the log has no cold storage: it was made anew", log=name, path=paths.cold)
        cold = Versioned(ColdLog.decode(found.value, paths.cold), found.version)
        if cold.value.deleted:
            raise ColdMovedError("the log is being deleted; nothing was changed", log=name, path=paths.cold)
        return cold

    async def turn(self, paths: LogPaths) -> Check:
        """Return an operation that fails where one of our owners has marked segments since: each marking sets `P`."""
        _, stat = await self._store.get(paths.partition)
        return Check(paths.partition, stat.version)

    async def unit_now(self, name: str, paths: LogPaths, unit: ColdUnit) -> Versioned[ColdUnit]:
        """Return the unit as it is. Raises ColdMovedError where it is gone."""
        path = f"{paths.cold_units}/{unit.name}"
        found = await self.unit_at(path)
        if found is None:
            raise ColdMovedError("the unit is gone; nothing was changed", log=name, path=path)
        return found

    def check_same(self, name: str, paths: LogPaths, read: Versioned[ColdUnit], now: Versioned[ColdUnit]) -> None:
        """Raise ColdMovedError unless the unit is as it was read."""
        if read != now:
            path = f"{paths.cold_units}/{read.value.name}"
            raise ColdMovedError("the unit was changed by another worker; nothing was changed", log=name, path=path)

    async def still_listed(self, name: str, paths: LogPaths, segments: Sequence[ColdSegment]) -> list[SegmentMetadata]:
        """Return what the list says now of the segments. Raises ColdMovedError where that is more than truncation."""
        now: list[SegmentMetadata] = []
        for start in range(0, len(segments), _READS_AT_ONCE):
            some = [one.metadata for one in segments[start : start + _READS_AT_ONCE]]
            found = await asyncio.gather(*(self.get(paths.segment(one)) for one in some))
            for one, data in zip(some, found, strict=True):
                path = paths.segment(one)
                if data is None:
                    raise ColdMovedError("a segment has left the list; no unit was made of it", log=name, path=path)
                segment = SegmentMetadata.decode(data.value, path, skip_minimum_version=True)
                if content(segment) != content(one):
                    raise ColdMovedError("a segment is not the one that was copied", log=name, path=path)
                now.append(segment)
        return now


def changed(
    paths: LogPaths,
    cold: Versioned[ColdLog],
    *,
    truncated_to: Position | None = None,
    unit: int | None = None,
    deleted: bool = False,
    mirrors: tuple[ColdMirror, ...] | None = None,
) -> SetData:
    """Return the part of every step that makes it come before or after any other. `unit`: the number of the first
    segment of the unit that says something else of its segments from now on."""
    after = replace(
        cold.value if unit is None else cold.value.unit_changed(unit),
        truncated_to=cold.value.truncated_to if truncated_to is None else truncated_to,
        deleted=deleted,
        mirrors=cold.value.mirrors if mirrors is None else mirrors,
    )
    return SetData(paths.cold, after.encode(), cold.version)


def content(segment: SegmentMetadata) -> SegmentMetadata:
    """Return what truncation does not change."""
    return replace(segment, truncation=TruncationStatus.ACTIVE, min_entry=0, min_slot=0)


def kept_error(name: str, unit: ColdUnit, why: str, advice: str) -> ColdKeptError:
    """Return the error for a unit whose copies may not go yet."""
    return ColdKeptError(f"unit {unit.name} stays as it is: {why}", log=name, advice=advice)
