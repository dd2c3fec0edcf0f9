"""What is due in a log's cold storage: which run of segments is the next unit, which copies may go. Pure.

Everything here looks at what was read of the log (`ColdPicture`), at its settings and at a moment, and says what to do
now, or when to look again. Nothing is decided by what a worker remembers: another one comes to the same result.

**The next unit** is a run of consecutive completed segments that are in no unit yet, from the oldest on. It ends where
a number is missing, where a unit or a segment in progress follows, before the segment that would take it over
`coldTargetBytes`, or with `MAX_SEGMENTS`. It is *full* where nothing could be added any more, and then due at once.
Else it is due

    in the first slot (`dlspark.core.settings.cold`) after that in which the unit before it got its file, as soon as a
    segment of it ended in that slot, or a grace (`GRACE_SHARE`) after its beginning: so writers that complete their
    segments as the slot begins come along; or
    when its oldest segment was completed `coldMaxDelaySeconds` ago.

So a log has at most one file that is not full in a slot: 300 a day with the default, however its segments come.
Segments that are hidden as a whole are not copied.

**A hot copy** goes when its unit has had its file for `coldHotRetentionSeconds`, strictly oldest first, and never
(`HotBlock`) while an older segment is listed that is in no unit, while it holds the newest completed segment (the next
one's sequence ids continue from it), or from the segment on that producers need.

**A file** goes when no hot copy of it is left, oldest first, and its records are older than `coldRetentionHours`, or
hidden by a truncation and older than `logSegmentRetentionHours`, as hot ones are. A host whose clock is ahead would
find that everything is old; so callers give the earlier of their own clock and the metadata store's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from dlspark.core.settings.cold import slot_of, slot_start_ms
from dlspark.core.settings.settings import Settings
from metadata.distributedlog.cold_places import UnitState
from metadata.distributedlog.cold_units import MAX_SEGMENTS, ColdAttempt, ColdLog, ColdUnit
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.errors import check

GRACE_SHARE: Final = 0.02
"""Of a slot: how long after its beginning segments that end with it are waited for."""
FIRST_VERSION: Final = 2
"""Of segments that have numbers; older ones are in no unit, since nothing would name them."""
HOUR_MS: Final = 3_600_000
_END_OF_STREAM: Final = 2**63 - 1
"""The transaction id of the record that seals a log (docs/reference/records.md)."""


@dataclass(frozen=True, slots=True)
class ColdPicture:
    """What was read of a log, in this order: its cold part first, then the list of hot segments?

    Args:
        name: the log's.
        segments: the hot list, oldest first.
        units: oldest first.
        cold: None where nothing of the log is cold yet, nor was begun.
        attempts: copies that were begun and not ended.
        needed: the number from which on segments stay because producers are described there; None for none.
    """

    name: str
    segments: Sequence[SegmentMetadata]
    units: Sequence[ColdUnit] = ()
    cold: ColdLog | None = None
    attempts: Sequence[ColdAttempt] = ()
    needed: int | None = None

    @property
    def completed(self) -> list[SegmentMetadata]:
        """The completed segments before the first one in progress."""
        found: list[SegmentMetadata] = []
        for segment in self.segments:
            if segment.in_progress:
                break
            found.append(segment)
        return found

    @property
    def uncovered(self) -> list[SegmentMetadata]:
        """Those of them that are in no unit."""
        covered = [(unit.first, unit.last) for unit in self.units]
        return [one for one in self.completed if not any(first <= one.lssn <= last for first, last in covered)]


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """Which run is next, and when is it due?

    Args:
        segments: the run; empty where there is none.
        full: whether nothing can be added to it any more.
        due_ms: from when on it may be copied; 0 for a full one.
    """

    segments: tuple[SegmentMetadata, ...] = ()
    full: bool = False
    due_ms: int = 0

    @property
    def first(self) -> int:
        """The number of its first segment."""
        return self.segments[0].lssn

    @property
    def last(self) -> int:
        """The number of its last segment."""
        return self.segments[-1].lssn


NOTHING: Final = UnitPlan()


def candidates(picture: ColdPicture) -> list[SegmentMetadata]:
    """Return the segments that may be in the next unit: the oldest run without a hole, `MAX_SEGMENTS` at most. Whoever
    plans needs the bytes of these ledgers, and of no other."""
    run: list[SegmentMetadata] = []
    for segment in picture.uncovered:
        if segment.truncation == TruncationStatus.TRUNCATED or segment.version < FIRST_VERSION:
            if run:
                break
            continue
        if run and segment.lssn != run[-1].lssn + 1:
            break
        run.append(segment)
        if len(run) == MAX_SEGMENTS:
            break
    return run


def plan_unit(picture: ColdPicture, ledger_bytes: Mapping[int, int], settings: Settings, now_ms: int) -> UnitPlan:
    """Return the next unit. `ledger_bytes`: by number, of the `candidates`."""
    if not settings.cold_path:
        return NOTHING
    run = candidates(picture)
    if not run:
        return NOTHING
    taken: list[SegmentMetadata] = []
    size = 0
    for segment in run:
        if taken and size + ledger_bytes[segment.lssn] > settings.cold_target_bytes:
            return UnitPlan(tuple(taken), full=True)
        taken.append(segment)
        size += ledger_bytes[segment.lssn]
    full = size >= settings.cold_target_bytes or _is_final(picture, taken)
    return UnitPlan(tuple(taken), full, 0 if full else _due_ms(picture, taken, settings, now_ms))


def _is_final(picture: ColdPicture, run: Sequence[SegmentMetadata]) -> bool:
    """Return whether nothing will ever follow a run that took all candidates."""
    last = run[-1]
    if len(run) == MAX_SEGMENTS or last.last_txid == _END_OF_STREAM:
        return True
    # What follows is in a unit, or a number is missing: a run is only ever added to at its end.
    return any(one.lssn > last.lssn and not one.in_progress for one in picture.segments) or any(
        unit.first > last.lssn for unit in picture.units
    )


def _due_ms(picture: ColdPicture, run: Sequence[SegmentMetadata], settings: Settings, now_ms: int) -> int:
    latest = min(one.completion_time_ms for one in run) + settings.cold_max_delay_s * 1000
    slot_s = settings.cold_slot_s
    if not slot_s:
        return latest
    this_slot = slot_of(picture.name, slot_s, now_ms)
    finished = [unit.finished_ms for unit in picture.units]
    # A worker whose clock was ahead must not hold the log up until that moment comes.
    last_slot = slot_of(picture.name, slot_s, min(max(finished), now_ms)) if finished else this_slot - 1
    slot = max(this_slot, last_slot + 1)
    start_ms = slot_start_ms(picture.name, slot_s, slot)
    if any(one.completion_time_ms >= start_ms for one in run):
        return min(latest, start_ms)
    return min(latest, start_ms + round(slot_s * 1000 * GRACE_SHARE))


# ------------------------------------------------------------------ what may go


class HotBlock(Enum):
    """Why does the oldest unit with hot copies keep them?"""

    NEVER = "coldHotRetentionSeconds=-1 keeps hot copies for ever"
    NOT_YET = "it has had its file for less than coldHotRetentionSeconds"
    RESTORED = "they were restored, and the days for which they are kept are not over"
    OLDER_SEGMENTS = "an older segment is listed that is in no unit"
    NEWEST = "it holds the newest completed segment, from which the next one's sequence ids continue"
    PRODUCERS = "what is known of the log's producers is there"


@dataclass(frozen=True, slots=True)
class HotPlan:
    """Which unit's hot copies are next to go?

    Args:
        unit: the oldest one that may still have any; None where there is none.
        block: why they stay for now; None: they are due.
        due_ms: when to look again, where only time is missing; None where something else has to happen.
    """

    unit: ColdUnit | None = None
    block: HotBlock | None = None
    due_ms: int | None = None


def plan_hot_deletion(picture: ColdPicture, settings: Settings, now_ms: int) -> HotPlan:
    """Return the oldest unit that may have hot copies, and whether they are due."""
    unit = next((one for one in picture.units if one.state is UnitState.FINISHED), None)
    if unit is None:
        return HotPlan()
    listed = [one for one in picture.segments if unit.first <= one.lssn <= unit.last]
    if not listed:
        return HotPlan(unit)  # an owner's retention took them: nothing is left to wait for
    block = _hot_block(picture, unit)
    if block is None and unit.keep_hot_until_ms is not None and unit.keep_hot_until_ms > now_ms:
        return HotPlan(unit, HotBlock.RESTORED, unit.keep_hot_until_ms)
    if block is None and settings.cold_hot_retention_s < 0:
        block = HotBlock.NEVER
    if block is not None:
        return HotPlan(unit, block)
    due_ms = unit.finished_ms + settings.cold_hot_retention_s * 1000
    return HotPlan(unit, None if due_ms <= now_ms else HotBlock.NOT_YET, due_ms)


def _hot_block(picture: ColdPicture, unit: ColdUnit) -> HotBlock | None:
    if any(one.lssn < unit.first for one in picture.segments):
        return HotBlock.OLDER_SEGMENTS
    completed = picture.completed
    if not completed or unit.last >= completed[-1].lssn:
        return HotBlock.NEWEST
    if picture.needed is not None and unit.last >= picture.needed:
        return HotBlock.PRODUCERS
    return None


@dataclass(frozen=True, slots=True)
class ColdPlan:
    """Which file is next to go?

    Args:
        unit: None where no file is bound to go.
        due_ms: when; 0 where its deletion was begun already.
    """

    unit: ColdUnit | None = None
    due_ms: int = 0


def plan_cold_deletion(picture: ColdPicture, settings: Settings) -> ColdPlan:
    """Return the oldest unit, if it is bound to go some time; only the oldest one ever is."""
    if not picture.units:
        return ColdPlan()
    unit = picture.units[0]
    if unit.state is UnitState.COLD_DELETE_STARTED:
        return ColdPlan(unit)
    if unit.state is not UnitState.HOT_DELETED:
        return ColdPlan()  # the hot copies go first
    ended_ms = max(one.metadata.completion_time_ms for one in unit.segments)
    times = []
    if settings.cold_retention_hours > 0:
        times.append(ended_ms + settings.cold_retention_hours * HOUR_MS)
    if settings.retention_hours > 0 and is_hidden(picture, unit):
        times.append(ended_ms + settings.retention_hours * HOUR_MS)
    return ColdPlan(unit, min(times)) if times else ColdPlan()


def is_hidden(picture: ColdPicture, unit: ColdUnit) -> bool:
    """Return whether a truncation has hidden every record of a unit."""
    check(picture.cold is not None, "a log with a unit has its cold part", log=picture.name)
    last = unit.segments[-1].metadata
    return picture.cold is not None and picture.cold.truncated_to > (last.lssn, last.last_entry, last.last_slot)


# ------------------------------------------------------------------ for people


@dataclass(frozen=True, slots=True)
class ColdTotals:
    """How much of a log is where, in bytes of ledgers (one copy) and of files?

    Args:
        hot_segments, hot_bytes: those that are in no file.
        both_segments, both_bytes: those that are hot and in a file.
        cold_segments, cold_bytes: those that are in a file only.
        files, file_bytes: the files themselves.
        lag_ms: how long the oldest completed segment without a file has been waiting; 0 for none.
    """

    hot_segments: int = 0
    hot_bytes: int = 0
    both_segments: int = 0
    both_bytes: int = 0
    cold_segments: int = 0
    cold_bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    lag_ms: int = 0
    blocks: tuple[str, ...] = field(default=())
    """Why hot copies stay, in words."""


def totals_of(picture: ColdPicture, ledger_bytes: Mapping[int, int], settings: Settings, now_ms: int) -> ColdTotals:
    """Return the totals. `ledger_bytes`: by number, of the hot segments."""
    listed = {one.lssn for one in picture.segments}
    in_units = [part for unit in picture.units for part in unit.segments]
    both = [part for part in in_units if part.metadata.lssn in listed]
    covered = {part.metadata.lssn for part in in_units}
    hot = [one for one in picture.segments if one.lssn not in covered]
    waiting = candidates(picture)
    files = [unit.file for unit in picture.units if unit.file is not None]
    plan = plan_hot_deletion(picture, settings, now_ms)
    return ColdTotals(
        hot_segments=len(hot),
        hot_bytes=sum(ledger_bytes.get(one.lssn, 0) for one in hot),
        both_segments=len(both),
        both_bytes=sum(part.bytes for part in both),
        cold_segments=len(in_units) - len(both),
        cold_bytes=sum(part.bytes for part in in_units) - sum(part.bytes for part in both),
        files=len(files),
        file_bytes=sum(file.bytes for file in files),
        lag_ms=max(0, now_ms - min(one.completion_time_ms for one in waiting)) if waiting else 0,
        blocks=(plan.block.value,) if plan.block is not None else (),
    )
