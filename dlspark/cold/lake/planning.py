"""Which files does a table lack, and which must it give up? Decided from what was read, without I/O.

    TableState    what the table says of itself: how far each log has come (the watermark), and its head
    LogUnits      what the log says: its units, and which of its segments are still to be copied
    TableChanges  one commit

What a log that was deleted has in the table goes in one commit, by the folders of its files; its watermark says from
then on that nothing of it comes any more (ENDED).

The watermark of a log is the number of the last segment that its table has; it only rises, over units without a hole,
oldest first: it moves in the very commit that adds the file, so a file at or below it is never added again, whatever is
repeated. What is above it is in no snapshot. So nothing here has to look through the table for what is there already.

A hole is waited for while the log still lists a segment of it that is to be copied: it was read *before* the units,
so a segment that was in neither is gone for good (truncated, or its unit deleted).

Two things are looked for by path, once each: files of units that leave cold storage, and files that were replaced
(redaction). `settled` names those that are done with, for as long as the log names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from metadata.distributedlog.cold_places import ColdFile, UnitState
from metadata.distributedlog.cold_units import ColdUnit

NOTHING_YET: Final = -1
"""The watermark of a log of which the table has nothing."""
ENDED: Final = 2**62
"""The watermark of a log that was deleted, once its files are out of the table."""


@dataclass(frozen=True, slots=True)
class LogUnits:
    """What has a log in cold storage?

    Args:
        log: its name now.
        log_id: its id in cold storage.
        units: in order of segments; read after `waiting`, and after the table's head.
        waiting: numbers of segments on the log's own list, hidden ones too.
        gone: of a log that was deleted, the folders that held its files, each with a '/' at its end; it has no units.
        deleted: whether it was deleted; it may have had no file.
    """

    log: str
    log_id: str
    units: tuple[ColdUnit, ...]
    waiting: frozenset[int]
    gone: tuple[str, ...] = ()
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class TableState:
    """What does a table say of itself?

    Args:
        head: its snapshot or version: each commit depends on it.
        watermarks: by ids of logs, the last segment that is in the table.
        settled: `_key`s of units whose removed or replaced files were looked for.
        rows, files: what it has now.
        findings: how it was changed from outside, for people; empty: as it was left.
    """

    head: str
    watermarks: Mapping[str, int]
    settled: frozenset[str] = frozenset()
    rows: int = 0
    files: int = 0
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Replacement:
    """Which file takes the place of which, or of none (None: they only go)? Applied as far as the table names them.

    Args:
        gone: addresses of the files that go.
        file: what comes for them.
        folders: everything in these goes; each ends with a '/'.
    """

    gone: tuple[str, ...]
    file: ColdFile | None
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableChanges:
    """What is one commit made of?

    Args:
        added: new files, oldest first.
        replaced: files that go, and what comes for them.
        watermarks: of the logs that move.
        settled: all that are settled after it.
        more: whether there is more than one commit takes.
    """

    added: tuple[ColdFile, ...] = ()
    replaced: tuple[Replacement, ...] = ()
    watermarks: Mapping[str, int] = field(default_factory=dict)
    settled: frozenset[str] = frozenset()
    more: bool = False

    def __bool__(self) -> bool:
        """Return whether there is anything to commit: a watermark by itself only where files must not come back."""
        return bool(self.added or self.replaced)

    @property
    def coming(self) -> tuple[ColdFile, ...]:
        """The files that may come into the table: those that replace others only if it names those."""
        return (*self.added, *(one.file for one in self.replaced if one.file is not None))


def plan_changes(state: TableState, logs: Sequence[LogUnits], limit: int = 2_000) -> TableChanges:
    """Return what the table lacks, at most `limit` files of it."""
    added: list[ColdFile] = []
    replaced: list[Replacement] = []
    watermarks: dict[str, int] = {}
    settled: set[str] = set()
    more = False
    for one in logs:
        at = before = state.watermarks.get(one.log_id, NOTHING_YET)
        if one.deleted and before < ENDED:
            # Also where the table has nothing of it: what is under way to add some depends on the head that moves here.
            replaced.append(Replacement((), None, one.gone))
            at = ENDED
        for unit in one.units:
            key = _key(one.log_id, unit)
            if key is not None and key in state.settled:
                settled.add(key)
            if unit.first <= at:
                if key is not None and key not in settled and unit.last <= at:
                    replaced.append(_replacement(unit))
                    settled.add(key)
                continue
            if any(at < lssn < unit.first for lssn in one.waiting):
                break
            if unit.state is UnitState.COLD_DELETE_STARTED:
                # The table must never take it any more, also by a commit that is still under way: that one depends on
                # the head which this one moves.
                if key is not None:
                    replaced.append(_replacement(unit))
                    settled.add(key)
            elif unit.file is not None:
                if len(added) >= limit:
                    more = True
                    break
                added.append(unit.file)
                settled.update(() if key is None else (key,))
            at = unit.last
        if at > before:
            watermarks[one.log_id] = at
    return TableChanges(tuple(added), tuple(replaced), watermarks, frozenset(settled), more)


def holes(state: TableState, logs: Iterable[LogUnits]) -> list[str]:
    """Return what is wrong between units and the table's watermarks, for people."""
    return [
        f"log {one.log}: the table has segments to {at}, which lies inside of unit {unit.name}: its file was not added"
        for one in logs
        for at in (state.watermarks.get(one.log_id, NOTHING_YET),)
        for unit in one.units
        if unit.first <= at < unit.last
    ]


def moved_to(state: TableState, changes: TableChanges) -> TableState:
    """Return the state with the watermarks that a commit leaves."""
    marks = dict(state.watermarks)
    for log_id, at in changes.watermarks.items():
        marks[log_id] = max(at, marks.get(log_id, NOTHING_YET))
    return replace(state, watermarks=marks, settled=changes.settled)


def urls_of(unit: ColdUnit) -> tuple[str, ...]:
    """Return all files of a unit: those that were replaced, and the current one."""
    files = unit.replaced if unit.file is None else (*unit.replaced, unit.file)
    return tuple(one.url for one in files)


def _key(log_id: str, unit: ColdUnit) -> str | None:
    """Return what names a unit whose files change in the table; None for one that is simply there."""
    if unit.state is UnitState.COLD_DELETE_STARTED:
        return f"{log_id}/{unit.name}/gone" if urls_of(unit) else None
    if not unit.replaced or unit.file is None:
        return None
    return f"{log_id}/{unit.name}/{unit.file.url.rpartition('/')[2]}"


def _replacement(unit: ColdUnit) -> Replacement:
    if unit.state is UnitState.COLD_DELETE_STARTED:
        return Replacement(urls_of(unit), None)
    return Replacement(tuple(one.url for one in unit.replaced), unit.file)
