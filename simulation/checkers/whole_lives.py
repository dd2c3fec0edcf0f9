"""`WholeLifeCheckers`: what `LogCheckers` holds logs to, for logs that are truncated, purged and deleted (I8).

a segment is marked         it is completed and stays the same but for its truncation; hidden is only what a client
                            asked for, and nothing that is in progress; the point below which all is hidden never
                            goes back; what is hidden is the head of the list
a segment leaves the list   the oldest ones first, never the newest completed one unless the log is being deleted;
                            because it is older than a purge's transaction id, or by retention (with explicit
                            truncation it is truncated); its ledger is noted by the same transaction
a ledger is deleted         no segment in any list has it
a reader has a record       it is at or above what was hidden when the reader was opened, unless it ignores that
a reader gets the error that its position was truncated    that is so
at the end                  everything acknowledged that is not hidden is there; sequence ids count on
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.lifecycle.owned_segments import truncation_point
from dlspark.core.settings.settings import Settings
from metadata.distributedlog.log_names import DEFAULT_PARTITION
from metadata.distributedlog.segment_changes import NOTES
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.store import Create, Delete, Op
from simulation.checkers.ledgers import LedgerCheckers
from simulation.checkers.logs import LogCheckers, LogTruth, ReadSpan, SeenRecord
from simulation.checkers.watched import WatchedWorld

_DEPTH = 6


class WholeLifeCheckers(LogCheckers):
    """Takes the place of the world's `logs`. `settings` are those of each log."""

    def __init__(self, world: WatchedWorld, ledgers: LedgerCheckers, settings: dict[str, Settings]) -> None:
        super().__init__(world, ledgers)
        self._settings = settings
        self.ever_listed: dict[str, set[int]] = {log: set() for log in settings}
        """Ledgers that were a segment's at some time."""
        self._asked = {log: DLSN(0, 0, 0) for log in settings}
        self._purge_below = dict.fromkeys(settings, -1)
        self._deleting: set[str] = set()
        self._points = {log: DLSN(0, 0, 0) for log in settings}
        self._floors: dict[int, DLSN] = {}
        self._gone: dict[tuple[str, int], SegmentMetadata] = {}
        """Segments that were taken off a list, as they were then."""

    # ------------------------------------------------------------------------------------ what is asked for

    def truncating(self, log: str, dlsn: DLSN) -> DLSN:
        """Note that a client is about to truncate; returns the point below which all is hidden already."""
        self._asked[log] = max(self._asked[log], dlsn)
        return self._points[log]

    def truncated(self, log: str, before: DLSN, returned: DLSN) -> None:
        """Note that a truncation was answered: `returned` is the position it returned, `before` what `truncating`
        returned."""
        self._world.reached("life.truncated")
        if not before <= max(returned, DLSN.INITIAL) or returned > max(self._points[log], DLSN.INITIAL):
            self._fail(
                log, f"a truncation returned {returned}; the log began at {before} and begins at {self._points[log]}"
            )

    def purging(self, log: str, txid: int) -> None:
        """Note that a client is about to purge by transaction id."""
        self._purge_below[log] = max(self._purge_below[log], txid)

    def deleting(self, log: str) -> None:
        """Note that a client is about to delete the log, whole."""
        self._deleting.add(log)

    # ------------------------------------------------------------------------------------ metadata

    def metadata_applied(self, ops: Sequence[Op]) -> None:
        """Judge what a transaction hides and takes off a list, and give the rest to `LogCheckers`."""
        marked = _pairs(ops)
        rest: list[Op] = []
        changed: dict[str, LogTruth] = {}
        for op in ops:
            log = _log_of(op.path)
            if log is None or not isinstance(op, Create | Delete):
                rest.append(op)
                continue
            truth, name = self.truth(log), op.path.rpartition("/")[2]
            before = truth.segments.get(name)
            if op.path in marked:
                if isinstance(op, Create) and before is not None:
                    truth.segments[name] = self._marked(truth, before, SegmentMetadata.decode(op.data, op.path))
            elif isinstance(op, Delete) and before is not None and _note_of(op.path, before) in _created(ops):
                self._left(truth, truth.segments.pop(name))
            else:
                rest.append(op)
            changed[log] = truth
        super().metadata_applied(rest)
        for log, truth in changed.items():
            self._check_list(truth)
            self._check_head(truth)
            self.ever_listed[log].update(segment.ledger_id for segment in truth.segments.values())
        self._check_ledgers()

    def _marked(self, truth: LogTruth, before: SegmentMetadata, after: SegmentMetadata) -> SegmentMetadata:
        name = f"segment {before.lssn}"
        self._world.reached("life.marked")
        same = {"truncation": before.truncation, "min_entry": before.min_entry, "min_slot": before.min_slot}
        if before.in_progress or replace(after, **same) != before:  # type: ignore[arg-type]
            self._fail(truth.name, f"{name} was truncated, and is another: {before} is {after} now (I2)")
        if after.truncation < before.truncation or (after.min_entry, after.min_slot) < (
            before.min_entry,
            before.min_slot,
        ):
            self._fail(truth.name, f"the truncation of {name} went back (I8)")
        asked, last = self._asked[truth.name], DLSN(after.lssn, after.last_entry, after.last_slot)
        if asked <= last if after.truncation == TruncationStatus.TRUNCATED else asked < truncation_point([after]):
            self._fail(truth.name, f"{name} is hidden as {after}, asked was {asked} (I8)")
        return after

    def _left(self, truth: LogTruth, segment: SegmentMetadata) -> None:
        """Check that a segment that was taken off the list was to be purged: the oldest one, and not the newest
        completed.
        """
        self._gone[truth.name, segment.lssn] = segment
        if truth.name in self._deleting:
            self._world.reached("life.cleared")
            return
        name, settings = f"segment {segment.lssn}", self._settings[truth.name]
        if segment.in_progress or any(other.lssn < segment.lssn for other in truth.segments.values()):
            self._fail(truth.name, f"{name} was purged, in progress or before an older one (I7)")
        if not any(other.lssn > segment.lssn and not other.in_progress for other in truth.segments.values()):
            self._fail(truth.name, f"{name}, the newest completed one, was purged")
        if segment.last_txid < self._purge_below[truth.name]:
            self._world.reached("life.purged-by-txid")
        elif settings.retention_hours > 0:
            self._world.reached("life.expired")
            if settings.explicit_truncation and segment.truncation != TruncationStatus.TRUNCATED:
                self._fail(truth.name, f"{name} expired though it was not truncated (I8)")
        else:
            self._fail(truth.name, f"{name} was purged, and no client asked for it (I8)")

    def _check_head(self, truth: LogTruth) -> None:
        segments = truth.ordered()
        hidden = [segment.truncation == TruncationStatus.TRUNCATED for segment in segments]
        partly = [segment.truncation == TruncationStatus.PARTIALLY_TRUNCATED for segment in segments]
        # Hidden segments first, then at most one that is hidden in part, then whole ones.
        if hidden != sorted(hidden, reverse=True) or any(partly[sum(hidden) + 1 :]):
            self._fail(truth.name, f"what is hidden is not the head of the list: {segments} (I8)")
        if not segments and truth.name not in self._deleting:
            return
        point = truncation_point(segments)
        if point < self._points[truth.name] and truth.name not in self._deleting:
            self._fail(truth.name, f"its begin went back from {self._points[truth.name]} to {point} (I8)")
        self._points[truth.name] = point

    def _check_ledgers(self) -> None:
        for truth in self.logs.values():
            for segment in truth.segments.values():
                if not segment.in_progress and self._ledgers.truth(segment.ledger_id).deleted:
                    self._fail(truth.name, f"segment {segment.lssn} is listed, and its ledger was deleted (I7)")

    def segment_of(self, truth: LogTruth, lssn: int) -> SegmentMetadata | None:
        """Return a segment that the log has or had: a deposed writer that was paused may hear late of what its
        successor kept, and has purged by now.
        """
        return truth.segment(lssn) or self._gone.get((truth.name, lssn))

    # ------------------------------------------------------------------------------------ readers

    def span(
        self, name: str, log: str, start: DLSN, *, txid: int | None = None, before: ReadSpan | None = None
    ) -> ReadSpan:
        """Begin the span of a reader that was opened; the truncation point of that moment is its floor (I8)."""
        span = super().span(name, log, start, txid=txid, before=before)
        self._floors[id(span)] = self._points.get(log, DLSN(0, 0, 0))
        return span

    def read(self, span: ReadSpan, seen: SeenRecord) -> None:
        """Note that a reader delivered a record. One below its floor is a violation, unless its log ignores truncation
        (I8)."""
        if seen.dlsn < self._floors[id(span)] and not self._settings[span.log].ignore_truncation:
            self._fail(
                span.log, f"{span.name} read {seen.dlsn}, hidden was what is below {self._floors[id(span)]} (I8)"
            )
        super().read(span, seen)

    def hidden_below(self, truth: LogTruth) -> DLSN:
        """Return the truncation point: readers that are opened now deliver nothing below."""
        return self.begin_of(truth)

    def lost_position(self, span: ReadSpan, position: DLSN) -> None:
        """Note that a reader got the error that the position where it was is truncated."""
        self._world.reached("life.reader-truncated")
        if position >= self._points[span.log]:
            self._fail(span.log, f"{span.name} at {position} heard of a truncation to {self._points[span.log]} (I8)")

    # ------------------------------------------------------------------------------------ the end

    def begin_of(self, truth: LogTruth) -> DLSN:
        """Return the truncation point, or the first segment that is left where truncation is ignored."""
        segments = truth.ordered()
        if self._settings[truth.name].ignore_truncation and segments:
            return DLSN(segments[0].lssn, 0, 0)
        return truncation_point(segments)

    def first_sequence_id(self, seen: Sequence[SeenRecord]) -> int:
        """Return that of the first record seen: what came before it may be truncated."""
        return seen[0].sequence_id if seen else 0

    def _check_span(self, span: ReadSpan, seen: Sequence[SeenRecord], places: list[DLSN]) -> None:
        """Check that no number is missing between two records; what is still there is the same for all readers."""
        present = {one.dlsn: one for one in seen}
        for index, one in enumerate(span.read):
            if index and one.sequence_id != span.read[index - 1].sequence_id + 1:
                self._fail(span.log, f"{span.name} read {one} after {span.read[index - 1]} (I4)")
            if one != present.get(one.dlsn, one):
                self._fail(span.log, f"{span.name} read {one}, there is {present[one.dlsn]} (I3)")

    def all_deleted(self, log: str) -> None:
        """Check that nothing is left of a log that was deleted."""
        truth = self.truth(log)
        left = [one for one in sorted(self.ever_listed[log]) if not self._ledgers.truth(one).deleted]
        if truth.segments or left:
            self._fail(
                log, f"it was deleted; left are {sorted(truth.segments)}, and the ledgers {left} of its segments"
            )


def _log_of(path: str) -> str | None:
    """Return the log whose segment's znode this is."""
    parts = path.split("/")
    return parts[2] if len(parts) == _DEPTH and parts[3:5] == [DEFAULT_PARTITION, "ledgers"] else None


def _pairs(ops: Sequence[Op]) -> set[str]:
    """Return the znodes that are deleted and made again in one transaction."""
    return {op.path for op in ops if isinstance(op, Delete)} & _created(ops)


def _created(ops: Sequence[Op]) -> set[str]:
    return {op.path for op in ops if isinstance(op, Create)}


def _note_of(path: str, segment: SegmentMetadata) -> str:
    partition = path.rpartition("/ledgers/")[0]
    return f"{partition}/{NOTES}/{segment.ledger_id}"
