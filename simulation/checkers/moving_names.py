"""`MovingNamesCheckers`: what `LogCheckers` holds logs to, where names move: logs are renamed, deleted and made again.

An *incarnation* is one log from its creation to its deletion, under all of its names. What `LogCheckers` knows is kept
by incarnation: paths are translated on their way to it.

a log is renamed        everything below its znode is there under the new name, and nothing else is; the old name has
                        no log any more
a log's segments go     only where a client asked for its deletion; all of them at once, their ledgers noted
a log's znodes go       every ledger that it ever listed is deleted (a ledger that is left could not be found any more)
a writer                all its segments are of one incarnation, which had the name while the writer was opened; so are
                        its acknowledgements (I7)
a reader                all its records are of one incarnation, which had the reader's name after it was opened
at the end              what `LogCheckers` asks for, of what each name leads to by then: a renamed log has everything

What producers' requests are held to by incarnation says `checkers.feeds`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dlspark.core.codec.dlsn import DLSN
from metadata.distributedlog.log_names import DEFAULT_PARTITION
from metadata.distributedlog.segment_changes import NOTES
from metadata.distributedlog.segments import SegmentMetadata
from metadata.store import Create, Delete, Op, SetData
from simulation.checkers.ledgers import LedgerCheckers
from simulation.checkers.logs import NAMESPACE_PATH, LogCheckers, LogTruth, ReadSpan, SeenRecord, WriterSession
from simulation.checkers.watched import WatchedClient, WatchedWorld

BEGIN = DLSN(0, 0, 0)


@dataclass(slots=True)
class _Called:
    """A name that an incarnation had, counted in transactions of the metadata."""

    name: str
    since: int
    until: int | None = None


@dataclass(frozen=True, slots=True)
class _Opened:
    """A reader's opening, from one moment to another."""

    span: ReadSpan
    name: str
    since: int
    until: int


class MovingNamesCheckers(LogCheckers):
    """Takes the place of the world's `logs`. Sessions and spans are asked for by name."""

    def __init__(self, world: WatchedWorld, ledgers: LedgerCheckers) -> None:
        super().__init__(world, ledgers)
        self.present: dict[str, str] = {}
        """The incarnation that each name leads to."""
        self._called: dict[str, list[_Called]] = {}
        self._moment = 0
        self._nodes: dict[str, bytes] = {}
        self.deletable: set[str] = set()
        self._ever_listed: defaultdict[str, set[int]] = defaultdict(set)
        self._begins: dict[str, DLSN] = {}
        """Of incarnations whose segments went and that live on: what is below was taken off the list."""
        self._clearings: defaultdict[str, list[DLSN]] = defaultdict(list)
        """All of these places of an incarnation: behind each of them sequence ids begin again."""
        self._gone: dict[tuple[str, int], SegmentMetadata] = {}
        self._homes: dict[WriterSession, LogTruth] = {}
        """The incarnation that a session writes, or what was written in it as long as that is not known."""
        self._opened_from: dict[WriterSession, int] = {}
        """The moment at which a session's writer began to open."""
        self._opened: dict[int, _Opened] = {}
        """By the identity of each span."""
        self._opening: dict[str, int] = {}
        self.on_cleared: Callable[[str], None] = lambda name: None
        """Called with the name of a log whose segments have just gone."""

    def truth(self, log: str) -> LogTruth:
        """Return what is known of an incarnation, or of the log that a name leads to."""
        return super().truth(self.present.get(log, log))

    # ------------------------------------------------------------------------------------ what is asked for

    def deleting(self, name: str) -> None:
        """Note that a client is about to delete the log of this name."""
        self.deletable.add(name)

    def opening(self, reader: str) -> None:
        """Note that a reader is about to be opened."""
        self._opening[reader] = self._moment

    # ------------------------------------------------------------------------------------ metadata

    def metadata_applied(self, ops: Sequence[Op]) -> None:
        """Judge what a transaction does to names, then give the rest, by incarnation, to `LogCheckers`."""
        self._moment += 1
        begun = [name for op in ops if isinstance(op, Create) and (name := _log_of(op.path)) is not None]
        ended = [name for op in ops if isinstance(op, Delete) and (name := _log_of(op.path)) is not None]
        # As it was before the transaction: a rename has to move all of it, and change none.
        before = {path: data for name in ended for path, data in self._below(name).items()}
        for op in ops:
            if isinstance(op, SetData) or (isinstance(op, Create) and not op.ephemeral):
                self._nodes[op.path] = bytes(op.data)
            elif isinstance(op, Delete):
                self._nodes.pop(op.path, None)
        if begun and ended:
            self._renamed(ended[0], begun[0], before)
            return
        for name in begun:
            self._begun(name)
        cleared = self._cleared(ops)
        rest = [self._translated(op) for op in ops if not (isinstance(op, Delete) and op.path in cleared)]
        super().metadata_applied(rest)
        for name in ended:
            self._ended(name)

    def _below(self, name: str) -> dict[str, bytes]:
        """Return what is below the znode of a name, by the path from there."""
        start = f"{NAMESPACE_PATH}/{name}/"
        return {path[len(start) :]: data for path, data in self._nodes.items() if path.startswith(start)}

    def _translated(self, op: Op) -> Op:
        parts = op.path.split("/")
        if len(parts) > 2 and f"/{parts[1]}" == NAMESPACE_PATH and parts[2] in self.present:
            parts[2] = self.present[parts[2]]
            return replace(op, path="/".join(parts))
        return op

    def _begun(self, name: str) -> None:
        incarnation = f"{name}#{self._moment}"
        self._world.reached("names.made-again" if any(n.startswith(f"{name}#") for n in self._called) else "names.made")
        self.present[name] = incarnation
        self._called[incarnation] = [_Called(name, self._moment)]

    def _ended(self, name: str) -> None:
        incarnation = self.present.pop(name)
        self._called[incarnation][-1].until = self._moment
        self._world.reached("names.deleted")
        truth = self.truth(incarnation)
        left = [one for one in sorted(self._ever_listed[incarnation]) if not self._ledgers.truth(one).deleted]
        if truth.segments or left:
            self._fail(incarnation, f"it was deleted with segments {sorted(truth.segments)} and ledgers {left} left")

    def _renamed(self, old: str, new: str, before: dict[str, bytes]) -> None:
        after = self._below(new)
        if before != after or self._below(old):
            changed = sorted(set(before.items()) ^ set(after.items()))
            self._fail(old, f"it was renamed to {new}, and changed by that: {changed}; left is {self._below(old)}")
        incarnation = self.present.pop(old)
        if new in self.present:
            self._fail(new, f"{old} was given the name that a log has")
        self._called[incarnation][-1].until = self._moment
        self._called[incarnation].append(_Called(new, self._moment))
        self.present[new] = incarnation
        self._world.reached("names.renamed")
        if any(segment.in_progress for segment in self.truth(incarnation).segments.values()):
            self._world.reached("names.renamed-in-progress")

    def _cleared(self, ops: Sequence[Op]) -> set[str]:
        """Return the znodes of segments that are taken off the list because their log is being deleted."""
        created = {op.path for op in ops if isinstance(op, Create)}
        cleared: set[str] = set()
        for op in ops:
            partition, _, name = op.path.rpartition("/ledgers/")
            log = _log_of(f"{partition}/ledgers")
            if not isinstance(op, Delete) or log is None:
                continue
            truth = self.truth(self.present[log])
            segment = truth.segments.get(name)
            if segment is None or f"{partition}/{NOTES}/{segment.ledger_id}" not in created:
                continue
            if log not in self.deletable:
                self._fail(truth.name, f"segment {segment.lssn} was taken off the list without a deletion (I8)")
            del truth.segments[name]
            self._gone[truth.name, segment.lssn] = segment
            self._begins[truth.name] = max(self.begin_of(truth), DLSN(segment.lssn + 1, 0, 0))
            cleared.add(op.path)
            cleared_log = log
        if cleared:
            self._world.reached("names.cleared")
            incarnation = self.present[cleared_log]
            self._clearings[incarnation].append(self._begins[incarnation])
            self.on_cleared(cleared_log)
        return cleared

    def _started(self, truth: LogTruth, segment: SegmentMetadata) -> None:
        super()._started(truth, segment)
        self._ever_listed[truth.name].add(segment.ledger_id)
        session = self._owners.get(segment.ledger_id)
        if session is None:
            return
        home = self.truth_of(session)
        if home is truth:
            return
        if home.name in self._called:
            self._fail(truth.name, f"{session.client} started segment {segment.lssn}; its log is {home.name} (I7)")
        # They were written before it showed which incarnation the session has; now they are this one's.
        truth.records.update(home.records)
        self._homes[session] = truth

    def _completed(self, truth: LogTruth, segment: SegmentMetadata) -> None:
        super()._completed(truth, segment)
        self._ever_listed[truth.name].add(segment.ledger_id)

    # ------------------------------------------------------------------------------------ writers

    def session(self, log: str, client: WatchedClient) -> WriterSession:
        """Begin the session of a writer that is about to be opened."""
        session = super().session(log, client)
        self._homes[session] = LogTruth(log)
        self._opened_from[session] = self._moment
        return session

    def opened(self, session: WriterSession) -> None:
        """Note that the session's writer was opened, and nothing was given to it. It writes the incarnation that had
        the name meanwhile; where more than one had it, which of them shows with its first segment."""
        since = self._opened_from[session]
        had_the_name = [
            incarnation
            for incarnation, names in self._called.items()
            if any(one.name == session.log and (one.until is None or one.until > since) for one in names)
        ]
        if len(had_the_name) == 1:
            self._homes[session] = self.truth(had_the_name[0])

    def is_known(self, session: WriterSession) -> bool:
        """Return whether it is known which incarnation the session writes."""
        return self.truth_of(session).name in self._called

    def has_its_name(self, session: WriterSession) -> bool:
        """Return whether the incarnation that the session writes has the name by which the writer was opened."""
        return self.present.get(session.log) == self.truth_of(session).name

    def truth_of(self, session: WriterSession) -> LogTruth:
        """Return the incarnation that the session writes; a log without segments as long as that is not known."""
        return self._homes[session]

    def segment_of(self, truth: LogTruth, lssn: int) -> SegmentMetadata | None:
        """Return a segment that the incarnation has or had: a writer whose log was deleted while it could not hear of
        that may still hear of what it wrote before.
        """
        return truth.segment(lssn) or self._gone.get((truth.name, lssn))

    # ------------------------------------------------------------------------------------ readers

    def span(
        self, name: str, log: str, start: DLSN, *, txid: int | None = None, before: ReadSpan | None = None
    ) -> ReadSpan:
        """Begin the span of a reader that was opened: its first record shows which incarnation it reads."""
        span = ReadSpan(name, log, start, txid, before)
        self._opened[id(span)] = _Opened(span, log, self._opening.get(name, self._moment), self._moment)
        return span

    def read(self, span: ReadSpan, seen: SeenRecord) -> None:
        """Note that a reader delivered a record. Its first one shows which incarnation it reads; a later record of
        another one is a violation."""
        if not span.read:
            self._bind(span, seen)
        elif seen.payload not in self.truth(span.log).records and self._home_of(seen) is not None:
            self._fail(span.log, f"{span.name} read {seen.dlsn} of {self._home_of(seen)}, another log")
        super().read(span, seen)

    def _home_of(self, seen: SeenRecord) -> str | None:
        return next((name for name, truth in self.logs.items() if seen.payload in truth.records), None)

    def _bind(self, span: ReadSpan, seen: SeenRecord) -> None:
        opened = self._opened[id(span)]
        name = opened.name
        incarnation = self._home_of(seen)
        if incarnation is None:
            self._fail(name, f"{span.name} read at {seen.dlsn} what was never written to it: {seen.payload[:40]!r}")
            return
        # A name that moved while the reader was being opened may lead to either log; one that had moved before may not.
        if not any(c.name == name and (c.until is None or c.until > opened.until) for c in self._called[incarnation]):
            self._fail(name, f"{span.name} read {seen.dlsn} of {incarnation}, which was called so no more")
        if all(c.since > opened.since for c in self._called[incarnation] if c.name == name):
            span.txid = None  # It was looked for in a log that is gone.
        if span.before is not None and span.before.log != incarnation:
            self._world.reached("names.position-of-another")
            span.before, span.due = None, span.start
        span.log = incarnation
        self.truth(incarnation).spans.append(span)

    def hidden_below(self, truth: LogTruth) -> DLSN:
        """Return where the incarnation begins now: what is below was deleted."""
        return self.begin_of(truth)

    # ------------------------------------------------------------------------------------ the end

    def final(self, log: str, seen: Sequence[SeenRecord]) -> None:
        """Check the whole log, as a reader delivered it at the end, against the incarnation that has the name then."""
        super().final(self.present[log], seen)

    def begin_of(self, truth: LogTruth) -> DLSN:
        """Return the first position of the incarnation that is left."""
        return self._begins.get(truth.name, BEGIN)

    def first_sequence_id(self, seen: Sequence[SeenRecord]) -> int:
        """Return that of the first record seen: what came before it may have been deleted."""
        return seen[0].sequence_id if seen else 0

    def _check_span(self, span: ReadSpan, seen: Sequence[SeenRecord], places: list[DLSN]) -> None:
        """Check that what of a span is still there is a piece of the log; numbers go on but behind a clearing."""
        begin = self.begin_of(self.truth(span.log))
        there = [one for one in span.read if one.dlsn >= begin]
        for before, after in zip(span.read, span.read[1:], strict=False):
            begins_again = any(before.dlsn < one <= after.dlsn for one in self._clearings[span.log])
            if not begins_again and after.sequence_id != before.sequence_id + 1:
                self._fail(span.log, f"{span.name} read {after} after {before} (I4)")
        if there:
            piece = replace(span, start=max(span.start, begin), read=there)
            super()._check_span(piece, seen, places)


def _log_of(path: str) -> str | None:
    """Return the name of the log whose parent of segments this is."""
    parts = path.split("/")
    is_list = len(parts) == 5 and f"/{parts[1]}" == NAMESPACE_PATH and parts[3:] == [DEFAULT_PARTITION, "ledgers"]
    return parts[2] if is_list else None
