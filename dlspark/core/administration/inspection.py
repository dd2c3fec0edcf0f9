"""Inspection: what is wrong with a log's metadata, and with the ends of its segments. It only reads.

| finding | what is seen | what repairs it |
|---|---|---|
| `in-progress` | a segment without an end: its writer lives, or died | the next writer, unless it is being written |
| `unreadable` | a segment's or the log's metadata, or a cold unit's, cannot be decoded | by hand |
| `duplicate` | two segments have one number | `raise_number`, where one is in progress |
| `low-number` | one in progress is numbered below a completed one | `raise_number` |
| `gap` | a number in the middle is missing, also between files and the list | by hand: a segment was deleted |
| `number` | the highest number assigned does not fit the newest segment | by hand |
| `txid` | transaction ids go back from a segment to the next, or are above the log's highest | by hand |
| `truncation` | a truncated segment behind one not truncated | truncating again |
| `no-ledger` | a segment's ledger is not there, nor a cold file | the next writer, of one in progress; else lost |
| `shared-ledger` | two segments have one ledger | by hand |
| `open-ledger` | the ledger of a completed segment is not closed | `repair_end` |
| `short` | a completed segment's metadata end before its last record does | `repair_end` |
| `lost` | its records end before its metadata do | its data are lost |

`inspect_log` finds all but the last two, from metadata alone; `check_ends` reads the ends of the segments, and finds
those. Segments whose only copy is a cold file are not on the log's own list, and `dlspark cold verify` looks at them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from dlspark.core.administration.finding_kinds import FindingKind
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import MAX_TXID, LogRecord
from dlspark.core.lock_owners import lock_owner
from dlspark.core.reading.segment_ledger import is_same
from dlspark.core.reading.segments import SegmentReader, is_truncated
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.core.writing.recovery import last_record
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.log_names import LogState
from metadata.distributedlog.segment_listing import SegmentCache, SegmentLister
from metadata.distributedlog.segments import UNASSIGNED_LSSN, SegmentMetadata
from metadata.foundation.errors import CorruptDataError, NoNodeError
from metadata.retry import repeat

_LEDGERS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class LogFinding:
    """One thing that was found in a log."""

    kind: FindingKind
    what: str
    segment: SegmentMetadata | None = None
    corrected: SegmentMetadata | None = None
    """For `short` and `open-ledger`: the metadata as they should be."""

    @property
    def is_fault(self) -> bool:
        """True if something is wrong: a segment that is in progress need not be."""
        return self.kind is not FindingKind.IN_PROGRESS


@dataclass(frozen=True, slots=True)
class LogInspection:
    """Findings of one log."""

    name: str
    segments: tuple[SegmentMetadata, ...]
    owner: str | None
    """Client id of the holder of the log's lock; None if it is free."""
    findings: tuple[LogFinding, ...]

    @property
    def faults(self) -> list[LogFinding]:
        """The findings that are faults."""
        return [one for one in self.findings if one.is_fault]


async def listed_segments(services: Services, name: str) -> list[SegmentMetadata]:
    """Return a log's segments in order, read anew from its znodes, gaps and duplicates included.

    Raises CorruptDataError, NoNodeError.
    """
    path = (await services.logs.located(name)).ledgers
    await repeat(services.store, lambda: services.store.sync(path))
    lister = SegmentLister(
        services.store,
        SegmentCache(enabled=False),
        skip_minimum_version=services.settings.skip_minimum_version,
        validate_sequence=False,
    )
    return await lister.segments(name, path)


async def inspect_log(services: Services, name: str) -> LogInspection:
    """Look for what is wrong in a log's metadata. Raises LogNotFoundError, and the metadata store's errors."""
    state: LogState | None = None
    findings: list[LogFinding] = []
    try:
        state = await services.logs.open(name)
    except CorruptDataError as error:
        findings.append(LogFinding(FindingKind.UNREADABLE, str(error)))
    owner = await lock_owner(services, (await services.logs.located(name)).lock)
    try:
        segments = await listed_segments(services, name)
    except CorruptDataError as error:
        findings.append(LogFinding(FindingKind.UNREADABLE, str(error)))
        return LogInspection(name, (), owner, tuple(findings))
    if state is not None and owner is not None:
        state = None  # It moves on while it is written: what was read at two moments need not fit.
    findings += faults_of(segments, state)
    findings += [_in_progress(one, owner) for one in segments if one.in_progress]
    findings += await _ledgers(services, name, segments)
    findings += await _units(services, name, segments)
    return LogInspection(name, tuple(segments), owner, tuple(findings))


def _in_progress(segment: SegmentMetadata, owner: str | None) -> LogFinding:
    by = f"{owner} has the log's lock" if owner is not None else "the log's lock is free: the next writer ends it"
    return LogFinding(FindingKind.IN_PROGRESS, f"segment {segment.lssn} is in progress; {by}", segment)


# ---------------------------------------------------------------------- the list


def faults_of(segments: Sequence[SegmentMetadata], state: LogState | None) -> list[LogFinding]:
    """Return what is wrong with a list of segments, in order, and with what the log says of them (None: not looked
    at)."""
    findings = [*_numbers(segments), *_transaction_ids(segments, state), *_truncations(segments), *_shared(segments)]
    numbered = [one for one in segments if one.lssn != UNASSIGNED_LSSN]
    if state is not None and numbered:
        stored, last = state.max_lssn.value, max(one.lssn for one in numbered)
        if stored not in (last, last + 1):
            what = f"the highest number assigned is {stored}, the newest segment is {last}"
            findings.append(LogFinding(FindingKind.NUMBER, what))
    return findings


def misnumbered(segments: Iterable[SegmentMetadata]) -> list[SegmentMetadata]:
    """Return segments in progress whose number is not above all completed ones'."""
    listed = list(segments)
    highest = max((one.lssn for one in listed if not one.in_progress), default=UNASSIGNED_LSSN)
    return [one for one in listed if one.in_progress and UNASSIGNED_LSSN < one.lssn <= highest]


def _numbers(segments: Sequence[SegmentMetadata]) -> list[LogFinding]:
    low = misnumbered(segments)
    findings = [
        LogFinding(
            FindingKind.LOW_NUMBER,
            f"segment {one.lssn} is in progress, and there are completed ones from there on",
            one,
        )
        for one in low
    ]
    numbered = [one for one in segments if one.lssn != UNASSIGNED_LSSN and one not in low]
    for before, after in pairwise(numbered):
        if before.lssn == after.lssn:
            findings.append(LogFinding(FindingKind.DUPLICATE, f"two segments are number {after.lssn}", after))
        elif after.lssn != before.lssn + 1:
            findings.append(LogFinding(FindingKind.GAP, f"segment {after.lssn} follows segment {before.lssn}", after))
    return findings


def _transaction_ids(segments: Sequence[SegmentMetadata], state: LogState | None) -> list[LogFinding]:
    findings = []
    completed = [one for one in segments if not one.in_progress]
    for before, after in pairwise(completed):
        if after.first_txid < before.last_txid and before.last_txid != MAX_TXID:
            what = f"segment {after.lssn} begins at transaction id {after.first_txid}, below {before.last_txid}"
            findings.append(LogFinding(FindingKind.TXID, f"{what} at which segment {before.lssn} ends", after))
    highest = max((one.last_txid for one in completed), default=0)
    if state is not None and highest > state.max_txid.value:
        what = f"the log's highest transaction id is {state.max_txid.value}, that of its segments {highest}"
        findings.append(LogFinding(FindingKind.TXID, what))
    return findings


def _truncations(segments: Sequence[SegmentMetadata]) -> list[LogFinding]:
    return [
        LogFinding(FindingKind.TRUNCATION, f"segment {after.lssn} is truncated, segment {before.lssn} is not", after)
        for before, after in pairwise(segments)
        if is_truncated(after) and not is_truncated(before)
    ]


def _shared(segments: Sequence[SegmentMetadata]) -> list[LogFinding]:
    seen: dict[int, SegmentMetadata] = {}
    findings = []
    for one in segments:
        other = seen.setdefault(one.ledger_id, one)
        if other is not one:
            what = f"segments {other.lssn} and {one.lssn} have one ledger, {one.ledger_id}"
            findings.append(LogFinding(FindingKind.SHARED_LEDGER, what, one))
    return findings


# ---------------------------------------------------------------------- cold units


async def _units(services: Services, name: str, hot: Sequence[SegmentMetadata]) -> list[LogFinding]:
    """Compare what lies in files with itself, and with the list, which was read before."""
    cold = ColdStore(services.logs)
    try:
        log, units = await cold.cold_log(name), await cold.units(name)
    except CorruptDataError as error:
        return [LogFinding(FindingKind.UNREADABLE, f"cold storage: {error}")]
    if log is None or log.value.deleted:
        return []
    findings = []
    ends = [(one.value.first, one.value.last) for one in units]
    numbers = [one.lssn for one in hot if one.lssn != UNASSIGNED_LSSN]
    if numbers and (not ends or numbers[0] > ends[-1][1]):
        ends.append((numbers[0], numbers[-1]))
    for (_, before), (after, _) in pairwise(ends):
        if after <= before:
            findings.append(LogFinding(FindingKind.DUPLICATE, f"segment {after} is in two cold units"))
        elif after > before + 1 and log.value.truncated_to < (after, 0, 0):
            lost = [lssn for lssn in range(before + 1, after) if lssn not in numbers]
            if lost:
                what = f"segment {after} follows segment {before}, which lies in a file; nothing between them is hidden"
                findings.append(LogFinding(FindingKind.GAP, what))
    return findings


# ---------------------------------------------------------------------- ledgers


async def _ledgers(services: Services, name: str, segments: Sequence[SegmentMetadata]) -> list[LogFinding]:
    found: list[LogFinding | None] = []
    for start in range(0, len(segments), _LEDGERS_AT_ONCE):
        chunk = segments[start : start + _LEDGERS_AT_ONCE]
        found += await asyncio.gather(*(_ledger(services, name, one) for one in chunk))
    return [one for one in found if one is not None]


async def _ledger(services: Services, name: str, segment: SegmentMetadata) -> LogFinding | None:
    try:
        ledger = (await services.ledger_store.read(segment.ledger_id)).value
    except NoNodeError:
        path = services.logs.paths(name).segment(segment)
        await repeat(services.store, lambda: services.store.sync(path))
        if await repeat(services.store, lambda: services.store.exists(path)) is None:
            return None  # It was purged, removed by recovery, or left to its cold file, since it was listed.
        if await _has_file(services, name, segment):
            return None  # Java's retention deletes a ledger before the segment's znode; readers go on in the file.
        return LogFinding(
            FindingKind.NO_LEDGER, f"ledger {segment.ledger_id} of segment {segment.lssn} is not there", segment
        )
    except CorruptDataError as error:
        return LogFinding(FindingKind.UNREADABLE, f"the ledger of segment {segment.lssn}: {error}", segment)
    if segment.in_progress or is_truncated(segment):
        return None
    if not ledger.is_closed:
        what = f"segment {segment.lssn} is completed, its ledger {segment.ledger_id} is not closed"
        return LogFinding(FindingKind.OPEN_LEDGER, what, segment)
    if ledger.last_entry < segment.last_entry:
        what = f"segment {segment.lssn} ends at entry {segment.last_entry}, its ledger at {ledger.last_entry}"
        return LogFinding(FindingKind.LOST, what, segment)
    return None


async def _has_file(services: Services, name: str, segment: SegmentMetadata) -> bool:
    """Return whether the log has the segment in a cold file; False where its list cannot be read."""
    try:
        listed = await services.logs.segments(name)
    except CorruptDataError:
        return False
    return any(one.lssn == segment.lssn and one.cold is not None and is_same(one, segment) for one in listed)


# ---------------------------------------------------------------------- the ends of segments


async def check_ends(services: Services, segments: Sequence[SegmentMetadata], settings: Settings) -> list[LogFinding]:
    """Compare the completed segments with the last records in their ledgers, without fencing a writer.

    Segments whose ledgers are gone are passed over. Raises what reading raises.
    """
    found = []
    for segment in segments:
        if not segment.in_progress and not is_truncated(segment):
            found.append(await check_end(services, segment, settings))
    return [one for one in found if one is not None]


async def check_end(
    services: Services, segment: SegmentMetadata, settings: Settings, *, recover: bool = False
) -> LogFinding | None:
    """Check one as `check_ends` does. With `recover` an open ledger is closed first: only under the log's lock."""
    try:
        ledger = await services.ledgers.open(segment.ledger_id, password=settings.password, recover=recover)
    except NoNodeError:
        return None
    try:
        if not ledger.closed:
            return None  # Its end is not decided; `inspect_log` reports it as `open-ledger`.
        any_last = await last_record(ledger, segment, settings)
        last = await SegmentReader(segment, ledger, settings=settings).last_user_record(with_end_of_stream=True)
    finally:
        await ledger.close()
    claimed = DLSN(segment.lssn, segment.last_entry, segment.last_slot)
    if any_last is None or any_last.dlsn < claimed:
        there = "has no records" if any_last is None else f"ends at {any_last.dlsn}"
        return LogFinding(
            FindingKind.LOST, f"segment {segment.lssn} ends at {claimed} by its metadata, its ledger {there}", segment
        )
    if last is None:
        return None
    return _beyond(segment, last, claimed)


def _beyond(segment: SegmentMetadata, last: LogRecord, claimed: DLSN) -> LogFinding | None:
    """Return the finding of records that the metadata do not count; None if there are none. Control records behind the
    last one may be counted or not."""
    last_txid = max(last.txid, segment.last_txid)
    if last.dlsn <= claimed and last_txid == segment.last_txid and last.last_position <= segment.record_count:
        return None
    end = max(last.dlsn, claimed)
    corrected = replace(
        segment,
        last_entry=end.entry_id,
        last_slot=end.slot_id,
        last_txid=last_txid,
        record_count=max(last.last_position, segment.record_count),
    )
    what = (
        f"segment {segment.lssn} ends at {claimed} with {segment.record_count} records and transaction id "
        f"{segment.last_txid} by its metadata; its last record is {last.dlsn}, number {last.last_position}, {last.txid}"
    )
    return LogFinding(FindingKind.SHORT, what, segment, corrected)
