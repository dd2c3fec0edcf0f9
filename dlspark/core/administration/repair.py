"""Repairs of a log's metadata that need no writer. Each takes the log's lock, so a log that is being written is left
alone.

| `inspection` finds | done about it |
|---|---|
| `low-number` | the segment in progress gets the number after the newest completed one; the next writer recovers it |
| `open-ledger` | its ledger is recovered, as for any dead writer, then its end is looked at as for `short` |
| `short` | its metadata get the end that its records have |

Any other repair would be a guess. A repair is one transaction, which fails unless the lock is held, on what was read
under the lock; after a lost answer it begins again from what is there. Nothing is ever shortened: a segment whose
records end before its metadata do has lost data, which metadata cannot bring back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from dlspark.core.administration.finding_kinds import FindingKind
from dlspark.core.administration.inspection import (
    LogFinding,
    check_end,
    check_ends,
    inspect_log,
    listed_segments,
    misnumbered,
)
from dlspark.core.lifecycle.owned_segments import OwnedSegments, taken
from dlspark.core.reading.segments import is_truncated
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.core.write_lock import default_client_id
from dlspark.errors import SegmentStateError
from metadata.distributedlog.segment_changes import SegmentChanges, SegmentsMovedError, check_guard
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import BadVersionError, NodeExistsError, NoNodeError
from metadata.retry import MAX_REPEATS, repeat
from metadata.store import Create, Delete, Op, SetData

_REPAIRED = frozenset((FindingKind.LOW_NUMBER, FindingKind.SHORT, FindingKind.OPEN_LEDGER))


@dataclass(frozen=True, slots=True)
class Repair:
    """A segment as it was found, and as it is now, or would be."""

    finding: LogFinding
    before: SegmentMetadata
    after: SegmentMetadata


async def raise_number(
    services: Services, name: str, settings: Settings, *, client_id: str | None = None, dry_run: bool = False
) -> Repair | None:
    """Give the segment in progress that is numbered at or below a completed one the next number. None: there is none.

    Its ledger stays as it is: a record's DLSN takes the segment's number from the metadata. Raises SegmentStateError
    where more than one segment is in progress (nothing shows which of them is newer), OwnershipAcquireFailedError while
    another client writes the log, LockingError where the lock was lost on the way. May be called again after any error.
    """
    await services.logs.check(name)
    if dry_run:
        return _renumbering(name, await listed_segments(services, name))
    done: list[Repair] = []
    async with taken(services, name, settings, client_id or default_client_id()) as owned:

        async def attempt() -> bool:
            state = await services.logs.open(name)
            repair = _renumbering(name, await listed_segments(services, name))
            if repair is None:
                return True
            done[:] = [repair]
            paths = services.logs.paths(name)
            new = SetData(paths.ledgers, str(repair.after.lssn).encode("ascii"), state.max_lssn.version)
            moved: list[Op] = [
                Delete(paths.segment(repair.before)),
                Create(paths.segment(repair.after), repair.after.encode()),
            ]
            return await _transact(services, owned, [*moved, new])

        await _settled(services, owned, attempt)
    return done[0] if done else None


def _renumbering(name: str, segments: Sequence[SegmentMetadata]) -> Repair | None:
    low = misnumbered(segments)
    if not low:
        return None
    if sum(one.in_progress for one in segments) > 1:
        raise SegmentStateError(
            "more than one segment is in progress, and nothing shows which of them is newer; nothing was changed",
            log=name,
            advice="Read their ledgers (dlspark ledger read-entries) and complete or remove one of them by hand",
        )
    highest = max(one.lssn for one in segments if not one.in_progress)
    found = LogFinding(
        FindingKind.LOW_NUMBER, f"segment {low[0].lssn} is in progress, the newest completed one is {highest}"
    )
    return Repair(found, low[0], replace(low[0], lssn=highest + 1, name=None))


async def repair_ends(
    services: Services, name: str, settings: Settings, *, client_id: str | None = None
) -> list[Repair]:
    """Give completed segments the end that their records have; what cannot be repaired is left as it is.

    Raises OwnershipAcquireFailedError while another client writes the log, and as `raise_number` does.
    """
    done: dict[int, Repair] = {}
    async with taken(services, name, settings, client_id or default_client_id()) as owned:
        for segment in await listed_segments(services, name):
            if segment.in_progress or is_truncated(segment):
                continue
            await owned.lock.ensure_held()  # Recovery fences: never a ledger that another client may be writing.
            finding = await check_end(services, segment, settings, recover=True)
            if finding is None or finding.corrected is None:
                continue
            await _store_end(services, owned, segment, finding.corrected)
            done[segment.lssn] = Repair(finding, segment, finding.corrected)
    return list(done.values())


async def _store_end(services: Services, owned: OwnedSegments, before: SegmentMetadata, after: SegmentMetadata) -> None:
    async def attempt() -> bool:
        turn = await SegmentChanges(services.logs, owned.name).turn()
        state = await services.logs.open(owned.name)
        listed = {one.znode_name: one for one in await listed_segments(services, owned.name)}
        found = listed.get(before.znode_name)
        if found == after:
            return True  # The answer was lost, the change was not.
        if found != before:
            raise SegmentsMovedError("the segment has just been changed; it was left as it is", log=owned.name)
        paths = services.logs.paths(owned.name)
        path = paths.segment(before)
        changes: list[Op] = [Delete(path), Create(path, after.encode()), turn]
        if after.last_txid > state.max_txid.value:
            changes.append(SetData(paths.max_txid, str(after.last_txid).encode("ascii"), state.max_txid.version))
        return await _transact(services, owned, changes)

    await _settled(services, owned, attempt)


async def _transact(services: Services, owned: OwnedSegments, changes: list[Op]) -> bool:
    """Apply `changes` while the lock is held; False where the log has changed since it was read."""
    try:
        await services.store.multi([owned.guard(), *changes])
    except (BadVersionError, NoNodeError, NodeExistsError) as error:
        check_guard(error, owned.name)
        return False
    return True


async def _settled(services: Services, owned: OwnedSegments, attempt: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(MAX_REPEATS):
        await owned.lock.ensure_held()
        if await repeat(services.store, attempt):
            return
    raise SegmentsMovedError("the log keeps changing; nothing was repaired", log=owned.name)


@dataclass(frozen=True, slots=True)
class LogCheck:
    """Findings of a log, what was repaired of them, and the faults that are still there."""

    name: str
    findings: tuple[LogFinding, ...]
    repairs: tuple[Repair, ...]
    left: tuple[LogFinding, ...]


async def check_log(
    services: Services, name: str, settings: Settings, *, repair: bool = False, client_id: str | None = None
) -> LogCheck:
    """Inspect a log, metadata and the ends of its segments, and with `repair` do what can be done about it.

    Raises LogNotFoundError; with `repair` as `raise_number` and `repair_ends` do.
    """
    findings = await _look(services, name, settings)
    kinds = {one.kind for one in findings}
    if not repair or not kinds & _REPAIRED:
        return LogCheck(name, tuple(findings), (), tuple(one for one in findings if one.is_fault))
    repairs: list[Repair] = []
    if FindingKind.LOW_NUMBER in kinds:
        renumbered = await raise_number(services, name, settings, client_id=client_id)
        repairs += [renumbered] if renumbered is not None else []
    if kinds & {FindingKind.SHORT, FindingKind.OPEN_LEDGER}:
        repairs += await repair_ends(services, name, settings, client_id=client_id)
    left = await _look(services, name, settings)
    return LogCheck(name, tuple(findings), tuple(repairs), tuple(one for one in left if one.is_fault))


async def _look(services: Services, name: str, settings: Settings) -> list[LogFinding]:
    inspected = await inspect_log(services, name)
    return [*inspected.findings, *await check_ends(services, inspected.segments, settings)]
