"""Which of the files in a folder make a log: runs of segments that follow each other, none of them twice.

A folder may have more than the log's units: copies of attempts that failed and were not swept, files that a redaction
has put others in place of, runs that were cut otherwise. Nothing says which is which any more, so what is said twice
has to agree, and where it does not the choice is refused:

* files of one run are equal in their records' digest, and any of them will do;
* but where records were erased, the file in which they are erased: what was erased never comes back;
* runs that overlap tell the same of each segment that they share.

Segments without a user record have no file where they are alone. So numbers may be missing between two files; where the
sequence ids of records go on without a gap, these segments were such ones.

Nothing here does I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from metadata.distributedlog.cold_units import ColdSegment
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import CallerError, CorruptDataError

_SHOWN: Final = 5
"""Files that an error names."""
Run: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class FileClaim:
    """What does a file say that it has?

    Args:
        url: the file.
        bytes: its size.
        modified_ms: when it was written, by the store.
        namespace_id, log_id: whose records it has.
        log: the log's name when it was written.
        attempt: the id of the copy that made it.
        segments: in order, without a hole.
        digest: of its records.
        redacted: whether some were erased.
        erased: how many were; None where that was not counted.
    """

    url: str
    bytes: int
    modified_ms: int
    namespace_id: str
    log_id: str
    log: str
    attempt: str
    segments: tuple[ColdSegment, ...]
    digest: str
    redacted: bool
    erased: int | None = None

    @property
    def run(self) -> Run:
        """Numbers of its first and last segment."""
        return self.segments[0].metadata.lssn, self.segments[-1].metadata.lssn

    @property
    def starts(self) -> int | None:
        """The sequence id of its first record, as its metadata tell; None where they do not."""
        first = self.segments[0].metadata
        return first.start_sequence_id if first.version >= 5 and first.start_sequence_id >= 0 else None

    @property
    def ends(self) -> int | None:
        """The sequence id that follows its last record's; None where its metadata do not tell."""
        last = self.segments[-1].metadata
        told = last.version >= 5 and last.start_sequence_id >= 0
        return last.start_sequence_id + last.record_count if told else None

    def follows(self, other: FileClaim) -> bool:
        """Return whether nothing with a record is between `other` and this one."""
        if other.run[1] + 1 == self.run[0]:
            return True
        return other.run[1] < self.run[0] and self.starts is not None and self.starts == other.ends


@dataclass(frozen=True, slots=True)
class PassedFile:
    """Which file is no part of the log, and why?"""

    url: str
    why: str


@dataclass(frozen=True, slots=True)
class ChosenFiles:
    """Which files make the log, oldest first, and which are left out?"""

    files: tuple[FileClaim, ...]
    passed: tuple[PassedFile, ...]


class FilesDisagreeError(CorruptDataError):
    """Files of one log say different things of the same segments, and nothing tells which one is right."""


class SegmentHoleError(CallerError):
    """Segments between those of two files are in no file."""


def one_log(claims: Iterable[FileClaim], log_ids: Collection[str] = ()) -> list[FileClaim]:
    """Return the files of one log, which may be named by its id. A log that was rebuilt once has two ids: of the files
    that it was rebuilt from, and of those that were written since; both are named then.

    Raises CallerError where there are none, or of several logs and none is named.
    """
    by_log: dict[tuple[str, str], list[FileClaim]] = defaultdict(list)
    for one in claims:
        if not log_ids or one.log_id in log_ids:
            by_log[one.namespace_id, one.log_id].append(one)
    missing = set(log_ids).difference(log_id for _, log_id in by_log)
    if missing or not by_log:
        raise CallerError(
            f"there is no cold file {f'of log {min(missing)} ' if missing else ''}there; nothing was made",
            advice="Give the folder that is named by a log's id, or one above it",
        )
    if log_ids:
        return [one for files in by_log.values() for one in files]
    if len(by_log) > 1:
        newest = [max(files, key=lambda one: one.run[1]) for files in by_log.values()]
        said = ", ".join(f"{one.log_id} ({one.log})" for one in sorted(newest, key=lambda one: one.log)[:_SHOWN])
        raise CallerError(
            f"there are files of {len(by_log)} logs: {said}; nothing was made", advice="Say which one: --log-id ID"
        )
    return next(iter(by_log.values()))


def counted_first(claims: Iterable[FileClaim]) -> list[FileClaim]:
    """Return the files of which it has to be counted how many records are erased before one of them is chosen."""
    found: list[FileClaim] = []
    for files in _by_run(claims).values():
        redacted = [one for one in files if one.redacted]
        if len({one.digest for one in redacted}) > 1:
            found += redacted
    return found


def choose(claims: Sequence[FileClaim], from_segment: int | None = None) -> ChosenFiles:
    """Return which files make the log; from the one on that has `from_segment`, where that is given.

    Raises FilesDisagreeError; SegmentHoleError for segments that are in no file, unless it begins behind them.
    """
    passed: list[PassedFile] = []
    runs = {run: _best(files, passed) for run, files in _by_run(claims).items()}
    _check_agreement(runs)
    chosen = _chain(runs, from_segment)
    _check_erased(runs, chosen)
    taken = {one.url for one in chosen}
    for run in sorted(runs):
        if runs[run].url not in taken:
            why = "its segments are in other files"
            if run[1] < chosen[0].run[0]:
                why = "it was not asked for: its segments are before the first one that was"
            passed.append(PassedFile(runs[run].url, why))
    return ChosenFiles(tuple(chosen), tuple(passed))


def _by_run(claims: Iterable[FileClaim]) -> dict[Run, list[FileClaim]]:
    found: dict[Run, list[FileClaim]] = defaultdict(list)
    for one in claims:
        found[one.run].append(one)
    return found


def _best(files: list[FileClaim], passed: list[PassedFile]) -> FileClaim:
    """Return the file of a run to take."""
    redacted = [one for one in files if one.redacted]
    candidates = redacted or files
    if len({one.digest for one in candidates}) > 1:
        most = max((one.erased or 0) for one in candidates)
        left = [one for one in candidates if redacted and one.erased == most]
        if len({one.digest for one in left}) != 1:
            raise _disagree_error(candidates)
        candidates = left
    best = max(candidates, key=lambda one: (one.modified_ms, one.url))
    for one in files:
        if one is not best:
            why = "a file with the same records is taken" if one.digest == best.digest else "records were erased since"
            passed.append(PassedFile(one.url, why))
    return best


def _disagree_error(files: Sequence[FileClaim]) -> FilesDisagreeError:
    first, last = files[0].run
    named = ", ".join(f"{one.url} ({one.digest[:12]})" for one in files[:_SHOWN])
    return FilesDisagreeError(
        f"{len(files)} files have segments {first} to {last}, and not the same records: {named}; nothing was made",
        path=files[0].url,
        advice="Find out which one is right (dlspark cold verify), and move the others out of the folder",
    )


def _check_agreement(runs: dict[Run, FileClaim]) -> None:
    known: dict[int, tuple[SegmentMetadata, FileClaim]] = {}
    for run in sorted(runs):
        for one in runs[run].segments:
            lssn = one.metadata.lssn
            before = known.setdefault(lssn, (one.metadata, runs[run]))
            if _facts(before[0]) != _facts(one.metadata):
                raise FilesDisagreeError(
                    f"{before[1].url} and {runs[run].url} say different things of segment {lssn}; nothing was made",
                    path=runs[run].url,
                    advice="Find out which one is right (dlspark cold verify), and move the other out of the folder",
                )


def _facts(segment: SegmentMetadata) -> tuple[int, ...]:
    """Return what never changes of a segment: its ledger does when it comes back from a file, and what is hidden."""
    return (
        segment.first_txid,
        segment.last_txid,
        segment.record_count,
        segment.last_entry,
        segment.last_slot,
        segment.completion_time_ms,
        segment.version,
    )


def _chain(runs: dict[Run, FileClaim], from_segment: int | None) -> list[FileClaim]:
    """Return files that follow each other up to the newest segment, and reach back as far as any do."""
    wanted = sorted(run for run in runs if from_segment is None or run[1] >= from_segment)
    if not wanted:
        raise SegmentHoleError(
            f"no file has segment {from_segment} or a later one; nothing was made",
            advice=f"The newest one is {max(run[1] for run in runs)}",
        )
    # The best chain that ends in each run: reaches back furthest, then has most erased files, then fewest files.
    best: dict[Run, tuple[tuple[int, int, int], Run | None]] = {}
    ending: dict[int, Run] = {}
    ends: list[int] = []
    for run in sorted(wanted, key=lambda one: (one[1], one[0])):
        # In order of their ends: the nearest one that ends before it, of those that were looked at.
        at = bisect_left(ends, run[0]) - 1
        nearest = ending[ends[at]] if at >= 0 else None
        before = nearest if nearest is not None and runs[run].follows(runs[nearest]) else None
        reach, erased, count = best[before][0] if before is not None else (run[0], 0, 0)
        score = (reach, erased - runs[run].redacted, count + 1)
        best[run] = (score, before)
        if run[1] not in ending:
            ends.append(run[1])
        if run[1] not in ending or score < best[ending[run[1]]][0]:
            ending[run[1]] = run
    newest = max(run[1] for run in wanted)
    chain: list[Run] = []
    link: Run | None = ending[newest]
    while link is not None:
        chain.append(link)
        link = best[link][1]
    lowest = chain[-1][0]
    oldest = min(run[0] for run in wanted)
    if lowest > (oldest if from_segment is None else max(oldest, from_segment)):
        below = max(run[1] for run in wanted if run[1] < lowest or run[0] < lowest)
        missing = f"segments {below + 1} to {lowest - 1} are" if below + 1 < lowest - 1 else f"segment {lowest - 1} is"
        raise SegmentHoleError(
            f"{missing} in no file that fits those around; nothing was made",
            advice=f"Look for the file; or begin behind the hole: --from-segment {lowest}",
        )
    return [runs[run] for run in reversed(chain)]


def _check_erased(runs: dict[Run, FileClaim], chosen: Sequence[FileClaim]) -> None:
    """Raise FilesDisagreeError where a chosen file has records that a file which was not chosen has erased."""
    kept = [one for one in chosen if not one.redacted]
    for run, other in runs.items():
        if not other.redacted or other in chosen:
            continue
        for one in kept:
            if one.run[0] <= run[1] and run[0] <= one.run[1]:
                raise FilesDisagreeError(
                    f"records of segments {run[0]} to {run[1]} are erased in {other.url}, and {one.url}, which has "
                    "them still, is the one that fits the other files; nothing was made",
                    path=other.url,
                    advice="Move the file that has them out of the folder, and begin behind them with --from-segment "
                    "if then nothing fits",
                )
