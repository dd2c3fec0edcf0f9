"""`LogCheckers`: the invariants of logs, held against what writers hear, what readers read, and the segment lists.

Every record of a run has a payload of its own, by which it is recognised in every place. A writer's *session* is one
opened writer; a reader's *span* is what one opened reader delivered, from its start on.

    at every metadata change    it depends on the version of the list that was read, and on a lock (I7);
                                the segments follow each other, all but the newest completed; two in progress only while
                                their one owner rolls; each has its ledger, a completed segment a closed ledger that
                                holds all of it; what is completed never changes nor goes (I2, I7)
    at every acknowledgement    in write order within the session, at a position of its own (I3, I4); in a segment of
                                the session's that is in the list (I7), not beyond the end of a completed one (I5)
    at every record read        written, and not called "not written"; at the position that was acknowledged, the same
                                for all (I3); readers go forward only (I4); transaction ids and numbers as written;
                                readers that are opened again go on where they were (`Deliveries`)
    at the end                  `final`: the log read as a whole has every acknowledged record and every record that any
                                reader saw (I1, I6), in an order that time allows, ids not decreasing, no number missing
                                (I4); every span is a piece of it without a gap; completed segments say what they hold
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dlspark.core.codec.dlsn import DLSN
from metadata.distributedlog.log_names import DEFAULT_PARTITION
from metadata.distributedlog.segments import SegmentMetadata
from metadata.store import ANY_VERSION, Check, Create, Delete, Op, SetData
from simulation.checkers.history import OperationOutcome, outcome_of
from simulation.checkers.ledgers import LedgerCheckers
from simulation.checkers.watched import WatchedClient, WatchedWorld
from simulation.environment.loop import Process

NAMESPACE_PATH = "/dlspark"
_DEPTH = 6
"""Parts of a segment's path, and of a subscriber's: "", namespace, log, partition, "ledgers" or "subscribers", name."""
SUBSCRIBERS = "subscribers"


@dataclass(slots=True, eq=False)
class WriterSession:
    """One opened writer, with the process that it is in."""

    log: str
    client: str
    process: Process
    number: int
    txid: int = 0
    """The highest transaction id given out."""
    records: list[WrittenRecord] = field(default_factory=list)
    last_acknowledged: DLSN = DLSN.NON_INCLUSIVE_LOWER_BOUND
    failed: bool = False
    overtaken: bool = False
    """Another client completed a segment of it while its process was paused."""
    takes_requests: bool = False
    """True where its writer takes producers' requests."""
    answered_before: dict[str, int] = field(default_factory=dict)
    """By producer, how many requests had been answered when this writer began to open: it knows of them."""
    requests_under_way: int = 0
    """Producers' requests that it has sent and that have no answer."""


@dataclass(slots=True, eq=False)
class WrittenRecord:
    """A record that was given to a writer."""

    session: WriterSession
    txid: int
    payload: bytes
    began: int
    """When, counted in acknowledgements and writes."""
    ended: int = -1
    outcome: OperationOutcome = OperationOutcome.OPEN
    dlsn: DLSN | None = None
    """Where it was acknowledged or first read."""
    read: bool = False
    txids: set[int] = field(default_factory=set)
    """The transaction ids that it was given, by any writer: one, unless it belongs to a producer's request."""


@dataclass(frozen=True, slots=True)
class SeenRecord:
    """A record as a reader delivered it."""

    dlsn: DLSN
    txid: int
    payload: bytes
    sequence_id: int


@dataclass(slots=True)
class ReadSpan:
    """Which records did one reader deliver, from `start` on? `txid` is the one that it was asked to start at, if it
    was.
    """

    name: str
    log: str
    start: DLSN
    txid: int | None = None
    before: ReadSpan | None = None
    """The span of the same reader before it was opened again."""
    read: list[SeenRecord] = field(default_factory=list)
    due: DLSN = field(init=False)
    """The first place that the reader was not given yet."""
    hidden: DLSN = DLSN.NON_INCLUSIVE_LOWER_BOUND
    """Records below this could be hidden when the first record was delivered."""

    def __post_init__(self) -> None:
        self.due = self.before.next if self.before is not None else self.start

    @property
    def next(self) -> DLSN:
        """Where the reader has to go on."""
        return self.read[-1].dlsn.next if self.read else self.due


@dataclass(slots=True)
class LogTruth:
    """Which records and segments must one log have? Known from outside."""

    name: str
    segments: dict[str, SegmentMetadata] = field(default_factory=dict)
    """By znode name, as in the metadata now."""
    records: dict[bytes, WrittenRecord] = field(default_factory=dict)
    at: dict[DLSN, WrittenRecord] = field(default_factory=dict)
    spans: list[ReadSpan] = field(default_factory=list)

    def ordered(self) -> list[SegmentMetadata]:
        """Return the segments by LSSN; of two with one number the completed one first."""
        return sorted(self.segments.values(), key=lambda segment: (segment.lssn, segment.in_progress))

    def segment(self, lssn: int) -> SegmentMetadata | None:
        """Return the listed segment with this LSSN, None where there is none."""
        return next((segment for segment in self.segments.values() if segment.lssn == lssn), None)


class LogCheckers:
    """One for each world. Violations go to `LedgerCheckers.fail`."""

    def __init__(self, world: WatchedWorld, ledgers: LedgerCheckers) -> None:
        self._world = world
        self._ledgers = ledgers
        self.logs: dict[str, LogTruth] = {}
        self.deliveries = Deliveries(self._fail, world.reached)
        self._owners: dict[int, WriterSession] = {}
        """The session that created each ledger."""
        self.on_rolled: Callable[[str], None] = lambda client: None
        """Called with the client whose writer has just started a segment beside one in progress."""
        self._sessions: defaultdict[str, int] = defaultdict(int)
        self._events = 0

    def truth(self, log: str) -> LogTruth:
        """Return what is known of a log; a name that was not met before begins with nothing."""
        truth = self.logs.get(log)
        if truth is None:
            truth = self.logs[log] = LogTruth(log)
        return truth

    def truth_of(self, session: WriterSession) -> LogTruth:
        """Return what is known of the log that the session writes."""
        return self.truth(session.log)

    def _fail(self, log: str, message: str) -> None:
        self._ledgers.fail(f"log {log}: {message}")

    @property
    def events(self) -> int:
        """The present moment, as `WrittenRecord` counts it."""
        return self._events

    def _tick(self) -> int:
        self._events += 1
        return self._events

    # ------------------------------------------------------------------------------------ writers

    def session(self, log: str, client: WatchedClient) -> WriterSession:
        """Begin the session of a writer that is about to be opened."""
        if client.process is None:
            raise RuntimeError("the client was not started")
        self._sessions[log] += 1
        return WriterSession(log, client.name, client.process, self._sessions[log])

    def ledger_created(self, session: WriterSession, ledger_id: int) -> None:
        """Note that the session made a ledger: a segment with it is the session's own."""
        self._owners[ledger_id] = session

    def written(self, session: WriterSession, txid: int, payload: bytes) -> WrittenRecord:
        """Note a record that is given to the session's writer, and return it."""
        record = WrittenRecord(session, txid, payload, self._tick(), txids={txid})
        self.truth_of(session).records[payload] = record
        session.records.append(record)
        return record

    def written_again(self, record: WrittenRecord, session: WriterSession) -> None:
        """Note that a record of a producer's request is given to another session's writer, or again to the same."""
        # It was not written by the attempts until then; this one may store it.
        if record.outcome is OperationOutcome.FAILED:
            record.outcome = OperationOutcome.OPEN
        self._world.trace.note(f"log-again {session.log} {record.payload[:20]!r} {session.client}/{session.number}")

    def confirmed(self, record: WrittenRecord, dlsn: DLSN) -> None:
        """Note that a record of a producer's request was written before, at `dlsn`: so its answer says, to
        any client that asked."""
        self._place(self.truth_of(record.session), record, dlsn)
        if record.outcome is not OperationOutcome.OK:  # when an earlier attempt failed says nothing of this one
            record.outcome, record.ended = OperationOutcome.OK, self._tick()

    def judged(self, record: WrittenRecord, outcome: OperationOutcome, error: BaseException) -> None:
        """Note that a producer's request ended with an error; `outcome` is what is known of it from all its
        attempts."""
        self._world.reached(f"log.{type(error).__name__}")
        if record.outcome is OperationOutcome.OK:
            return
        record.outcome, record.ended = outcome, self._tick()
        if record.read and outcome is OperationOutcome.FAILED:
            self._fail(record.session.log, f"{record.dlsn} was read before, and was then called not written: {error!r}")

    def acknowledged(self, record: WrittenRecord, dlsn: DLSN) -> None:
        """Note that a record was acknowledged at `dlsn`."""
        session, truth = record.session, self.truth_of(record.session)
        self._world.trace.note(f"log-ack {session.log} {dlsn} {session.client}/{session.number}")
        if dlsn <= session.last_acknowledged:
            self._fail(session.log, f"{dlsn} was acknowledged after {session.last_acknowledged} (I4)")
        session.last_acknowledged = dlsn
        record.outcome, record.ended = OperationOutcome.OK, self._tick()
        self._place(truth, record, dlsn)
        segment = self.segment_of(truth, dlsn.lssn)
        if segment is None:
            self._fail(session.log, f"{dlsn} was acknowledged in a segment that is not in the list (I7)")
        elif self._owners.get(segment.ledger_id) is not session:
            self._fail(session.log, f"{dlsn} was acknowledged to a writer that does not own its segment (I5)")
        elif not segment.in_progress and dlsn > DLSN(segment.lssn, segment.last_entry, segment.last_slot):
            self._fail(
                session.log,
                f"segment {segment.lssn} was completed at {segment.last_entry}:{segment.last_slot}, and {dlsn} was "
                "acknowledged (I5)",
            )

    def segment_of(self, truth: LogTruth, lssn: int) -> SegmentMetadata | None:
        """Return the segment in which a record may be acknowledged now."""
        return truth.segment(lssn)

    def refused(self, record: WrittenRecord, error: BaseException) -> None:
        """Note that a record's write ended with an error: it failed, or may have."""
        session = record.session
        self.session_failed(session)
        record.outcome, record.ended = outcome_of(error), self._tick()
        self._world.reached(f"log.{type(error).__name__}")
        if record.read and record.outcome is OperationOutcome.FAILED:
            self._fail(session.log, f"{record.dlsn} was read before, and was then called not written: {error!r}")

    def session_failed(self, session: WriterSession) -> None:
        """Note that a writer has failed; perhaps another client took the log over while its process was paused."""
        if session.overtaken and not session.failed:
            self._world.reached("log.deposed-while-paused")
        session.failed = True

    def _place(self, truth: LogTruth, record: WrittenRecord, dlsn: DLSN) -> None:
        if record.dlsn is not None and record.dlsn != dlsn:
            self._fail(truth.name, f"one record is at {record.dlsn} and at {dlsn} (I4)")
        if truth.at.setdefault(dlsn, record) is not record:
            self._fail(truth.name, f"two records are at {dlsn} (I3)")
        record.dlsn = dlsn

    # ------------------------------------------------------------------------------------ readers

    def span(
        self, name: str, log: str, start: DLSN, *, txid: int | None = None, before: ReadSpan | None = None
    ) -> ReadSpan:
        """Begin the span of a reader that was opened; `before` is what it had delivered until it was closed."""
        span = ReadSpan(name, log, start, txid, before)
        self.truth(log).spans.append(span)
        return span

    def read(self, span: ReadSpan, seen: SeenRecord) -> None:
        """Note that a reader delivered a record."""
        log, dlsn = span.log, seen.dlsn
        self._world.trace.note(f"log-read {log} {span.name} {dlsn}")
        truth = self.truth(log)
        record = truth.records.get(seen.payload)
        if record is None:
            self._fail(log, f"{span.name} read at {dlsn} what was never written: {seen.payload[:40]!r} (I3)")
            return
        if record.outcome is OperationOutcome.FAILED:
            self._fail(log, f"{span.name} read at {dlsn} a record that was called not written")
        if seen.txid not in record.txids:
            self._fail(log, f"{span.name} read transaction id {seen.txid} at {dlsn}, written was {record.txids}")
        if dlsn < span.start or (span.read and dlsn <= span.read[-1].dlsn):
            self._fail(log, f"{span.name} went back to {dlsn} (I4)")
        if span.read and dlsn.lssn != span.read[-1].dlsn.lssn:
            self._world.reached("log.reader-crossed")
        if record.outcome is OperationOutcome.UNKNOWN and not record.read:
            self._world.reached("log.unknown-kept")
        self._place(truth, record, dlsn)
        record.read = True
        if not span.read:
            self.deliveries.begins(span, seen, self.hidden_below(truth))
        span.read.append(seen)

    def hidden_below(self, truth: LogTruth) -> DLSN:
        """Return the position below which readers that are opened now need not deliver anything."""
        return DLSN(0, 0, 0)

    # ------------------------------------------------------------------------------------ metadata

    def metadata_applied(self, ops: Sequence[Op]) -> None:
        """Judge a transaction: segment lists are looked at once all of it is applied."""
        changed: dict[str, LogTruth] = {}
        for op in ops:
            parts = op.path.split("/")
            if len(parts) == _DEPTH and parts[3:5] == [DEFAULT_PARTITION, "ledgers"]:
                truth = changed[parts[2]] = self.truth(parts[2])
                self._check_conditions(truth, op, "/".join(parts[:4]), ops)
                self._apply(truth, op, parts[5])
        for truth in changed.values():
            self._check_list(truth)
        self.deliveries.metadata_applied(ops)

    def _check_conditions(self, truth: LogTruth, op: Op, partition: str, ops: Sequence[Op]) -> None:
        """Check that every change of a list depends on the version that was read, and on a lock (I7)."""
        read = f"{partition}/ledgers"
        if not any(one.path == read and one.version != ANY_VERSION for one in ops if isinstance(one, Check | SetData)):
            self._fail(truth.name, f"{op.path} was changed in a transaction that depends on no version of {read} (I7)")
        lock = f"{partition}/lock"  # its member, or, where owners take no lock, the parent of those
        checked = any(isinstance(one, Check) and one.path.startswith(lock) for one in ops)
        # An owner's last transaction gives the lock up: it fails as well where the member is gone.
        given_up = any(isinstance(one, Delete) and one.path.startswith(f"{lock}/") for one in ops)
        if not checked and not given_up:
            self._fail(truth.name, f"{op.path} was changed in a transaction that depends on no lock (I7)")

    def _apply(self, truth: LogTruth, op: Op, name: str) -> None:
        before = truth.segments.get(name)
        if isinstance(op, Delete):
            truth.segments.pop(name, None)
            if before is not None and not before.in_progress:
                self._fail(truth.name, f"the completed segment {before.lssn} was removed (I2)")
            # A completion removes it as well, and puts the completed one in its place.
            elif before is not None and truth.segment(before.lssn) is None:
                self._removed(truth, before)
        elif isinstance(op, Create | SetData):
            segment = SegmentMetadata.decode(op.data, op.path)
            if before is not None and before != segment:
                self._fail(truth.name, f"segment {before.lssn} was changed in place (I2)")
            truth.segments[name] = segment
            if segment.in_progress:
                self._started(truth, segment)
            else:
                self._completed(truth, segment)

    def _removed(self, truth: LogTruth, segment: SegmentMetadata) -> None:
        """Check that an in-progress segment that went without a completed one in its place was empty."""
        self._world.reached("log.empty-segment-removed")
        kept = [dlsn for dlsn in truth.at if dlsn.lssn == segment.lssn]
        if kept:
            self._fail(truth.name, f"segment {segment.lssn} was removed, with records up to {max(kept)} (I7)")

    def _started(self, truth: LogTruth, segment: SegmentMetadata) -> None:
        ledger = self._ledgers.truth(segment.ledger_id)
        if ledger.metadata is None or ledger.deleted:
            self._fail(truth.name, f"segment {segment.lssn} was started without ledger {segment.ledger_id} (I7)")
        if any(other.ledger_id == segment.ledger_id for other in truth.segments.values() if other is not segment):
            self._fail(truth.name, f"ledger {segment.ledger_id} is that of two segments (I7)")
        for other in truth.segments.values():
            if other.in_progress and other is not segment:
                self._world.reached("log.rolled")
                self._tell_rolled(segment)
                # An owner may roll before its former segment is completed; a new owner completes that first.
                if self._owners.get(other.ledger_id) is not self._owners.get(segment.ledger_id):
                    self._fail(
                        truth.name,
                        f"segment {segment.lssn} was started while {other.lssn} of another owner had no end (I7)",
                    )

    def _tell_rolled(self, segment: SegmentMetadata) -> None:
        owner = self._owners.get(segment.ledger_id)
        if owner is not None:
            self.on_rolled(owner.client)

    def _completed(self, truth: LogTruth, segment: SegmentMetadata) -> None:
        name = f"segment {segment.lssn}"
        ledger = self._ledgers.truth(segment.ledger_id).metadata
        if ledger is None or not ledger.is_closed or ledger.last_entry < segment.last_entry:
            self._fail(truth.name, f"{name} was completed at entry {segment.last_entry}, its ledger is {ledger} (I2)")
        before = [other for other in truth.segments.values() if other.in_progress and other.lssn == segment.lssn]
        if not before or before[0].ledger_id != segment.ledger_id:
            self._fail(truth.name, f"{name} was completed with ledger {segment.ledger_id}, not that of {before} (I7)")
        end = DLSN(segment.lssn, segment.last_entry, segment.last_slot)
        beyond = [dlsn for dlsn in truth.at if dlsn.lssn == segment.lssn and dlsn > end]
        if beyond:
            self._fail(truth.name, f"{name} was completed at {end}; {max(beyond)} was acknowledged or read (I1, I2)")
        owner = self._owners.get(segment.ledger_id)
        if owner is not None and owner.process.dead:
            self._world.reached("log.segment-recovered")
            if any(other.in_progress and other.lssn > segment.lssn for other in truth.segments.values()):
                self._world.reached("log.roll-interrupted")
        elif owner is not None and owner.process.paused:
            owner.overtaken = True
            self._world.reached("log.overtaken-while-paused")

    def _check_list(self, truth: LogTruth) -> None:
        """Check that numbers follow each other, one znode each, and that at most the last two segments are in progress
        (I7).
        """
        segments = truth.ordered()
        numbers = [segment.lssn for segment in segments]
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))) if numbers else False:
            self._fail(truth.name, f"its segments are {numbers} (I7)")
        in_progress = [segment.in_progress for segment in segments]
        # Segments end in their order: none is completed while an older one has no end.
        if any(in_progress[:-2]) or in_progress[-2:] == [True, False]:
            self._fail(truth.name, f"segments {numbers} are in progress as {in_progress} says (I7)")
        for segment in segments:
            deleted = self._ledgers.truth(segment.ledger_id).deleted
            if deleted and not segment.in_progress:
                self._fail(truth.name, f"the ledger of the completed segment {segment.lssn} was deleted (I7)")

    # ------------------------------------------------------------------------------------ the end

    def final(self, log: str, seen: Sequence[SeenRecord]) -> None:
        """Check the whole log, as a reader with all nodes healthy delivered it, after its last writer has closed."""
        truth = self.truth(log)
        self._check_list(truth)
        if any(segment.in_progress for segment in truth.segments.values()):
            self._fail(log, "a segment is in progress, though the last writer was closed (I7)")
        places = [one.dlsn for one in seen]
        there = {one.dlsn: truth.records[one.payload] for one in seen}
        begin = self.begin_of(truth)
        for dlsn, record in truth.at.items():
            # Acknowledged or read once: then it is there for every later reader, unless it was truncated.
            if dlsn >= begin and there.get(dlsn) is not record:
                self._fail(log, f"the record at {dlsn} was {record.outcome.value} or read, and is not there (I1, I6)")
        for record in truth.records.values():
            if record.dlsn is None and record.outcome in (OperationOutcome.UNKNOWN, OperationOutcome.OPEN):
                self._world.reached("log.unknown-dropped")
        self._check_order(log, seen, list(there.values()))
        for span in truth.spans:
            self._check_span(span, seen, places)
        self.deliveries.check_starts(truth)
        for segment in truth.ordered():
            if DLSN(segment.lssn, 0, 0) >= begin:
                self._check_segment(truth, segment, seen)

    def begin_of(self, truth: LogTruth) -> DLSN:
        """Return what is below may be gone."""
        return DLSN(0, 0, 0)

    def first_sequence_id(self, seen: Sequence[SeenRecord]) -> int:
        """Return the sequence id with which a log begins that holds what was `seen`."""
        return 0

    def _check_order(self, log: str, seen: Sequence[SeenRecord], records: list[WrittenRecord]) -> None:
        """Check that no record stands before one that had been acknowledged when it was written (in an order that time
        allows).
        """
        # From the end on: `earliest_end` is when the first of the records behind was acknowledged.
        earliest_end, first = self._events + 1, self.first_sequence_id(seen)
        for one, record in zip(reversed(seen), reversed(records), strict=True):
            if earliest_end < record.began:
                self._fail(log, f"{one.dlsn} was written after a record behind it had been acknowledged (I4)")
            if record.outcome is OperationOutcome.OK:
                earliest_end = min(earliest_end, record.ended)
        for index, one in enumerate(seen):
            if index and one.txid < seen[index - 1].txid:
                self._fail(log, f"the transaction id goes down to {one.txid} at {one.dlsn} (I4)")
            number = first + index
            if one.sequence_id != number:
                self._fail(
                    log, f"the record at {one.dlsn} has sequence id {one.sequence_id}, it is number {number} (I4)"
                )

    def _check_span(self, span: ReadSpan, seen: Sequence[SeenRecord], places: list[DLSN]) -> None:
        first = bisect_left(places, span.start)
        if span.txid is not None and first and seen[first - 1].txid >= span.txid:
            self._fail(span.log, f"{span.name} was put at {span.start} for {span.txid}, which is before it")
        delivered = [(one.dlsn, one.sequence_id) for one in span.read]
        expected = [(one.dlsn, one.sequence_id) for one in seen[first : first + len(span.read)]]
        if delivered != expected:
            wrong = next(pair for pair in zip(delivered, [*expected, None], strict=False) if pair[0] != pair[1])
            self._fail(span.log, f"{span.name}, from {span.start}, read {wrong[0]} in place of {wrong[1]} (I4, I6)")

    def _check_segment(self, truth: LogTruth, segment: SegmentMetadata, seen: Sequence[SeenRecord]) -> None:
        held = [one for one in seen if one.dlsn.lssn == segment.lssn]
        stated = (segment.record_count, segment.last_txid if held else -1)
        if stated != (len(held), held[-1].txid if held else -1):
            self._fail(truth.name, f"segment {segment.lssn} says {stated} of its count and last id; it has {len(held)}")


@dataclass(slots=True)
class Subscriber:
    """A named subscriber of a log. `stored` is its position in the metadata now."""

    stored: DLSN = DLSN.INITIAL
    spans: list[ReadSpan] = field(default_factory=list)


class Deliveries:
    """Each reader has each record exactly once, from its start on, however often it is opened again.

    A reader is a sequence of spans: where one ends, the next one begins. `due` is the first place that the reader has
    not been given yet, judged by what it was given, not by where the product says that it goes on.

        a span begins     nothing is given again, and nothing between what is due and what is given first is left out,
                          but what was hidden by then (the documented skip); numbers go on where nothing was hidden
        a subscriber      a span begins where the last commit is; a position is stored by the holder of the reader's
                          lock, never moves back, and is what that reader was given

    One for all logs of a world. `fail` is called with the log and with what is wrong with it.
    """

    def __init__(self, fail: Callable[[str, str], None], reached: Callable[[str], None]) -> None:
        self._fail = fail
        self._reached = reached
        self.subscribers: dict[tuple[str, str], Subscriber] = {}

    def forget(self, log: str) -> None:
        """Note that the log was deleted, and its subscribers with it."""
        for key in [key for key in self.subscribers if key[0] == log]:
            del self.subscribers[key]

    # ------------------------------------------------------------------------------------ spans

    def begins(self, span: ReadSpan, seen: SeenRecord, hidden: DLSN) -> None:
        """Note the span's first record; what is below `hidden` need not be given any more."""
        span.hidden = hidden
        if seen.dlsn < span.due:
            self._fail(span.log, f"{span.name} was given {seen.dlsn} again, due was {span.due} (exactly once)")
        before = span.before
        if before is not None and before.read and hidden <= span.due:
            last = before.read[-1]
            if seen.sequence_id != last.sequence_id + 1:
                self._fail(span.log, f"{span.name} went on with {seen} after {last} (exactly once)")

    def check_starts(self, truth: LogTruth) -> None:
        """Check that nothing was left out before the first record of any span (at the end)."""
        places = sorted(truth.at)
        for span in truth.spans:
            first = span.next if not span.read else span.read[0].dlsn
            missed = [one for one in places if max(span.due, span.hidden) <= one < first]
            if missed:
                self._fail(
                    truth.name,
                    f"{span.name}, due at {span.due}, began at {first} without {missed[0]} (exactly once)",
                )

    # ------------------------------------------------------------------------------------ subscribers

    def subscriber(self, log: str, name: str) -> Subscriber:
        """Return what is known of a subscriber; a new one is at the log's beginning."""
        return self.subscribers.setdefault((log, name), Subscriber())

    def subscribed(self, span: ReadSpan, subscriber: str, stored_before: DLSN) -> None:
        """Note that a reader was opened for a subscriber without a start; `stored_before` was its position before
        that."""
        one = self.subscriber(span.log, subscriber)
        if not stored_before <= max(span.start, DLSN.INITIAL) <= one.stored:
            self._fail(
                span.log,
                f"{span.name} began at {span.start} for {subscriber}, stored were {stored_before} to {one.stored}",
            )
        self._went_on(one, span)

    def started_over(self, span: ReadSpan, subscriber: str) -> None:
        """Note that a reader was opened for a subscriber at the log's beginning, because what was stored had been
        truncated."""
        self._went_on(self.subscriber(span.log, subscriber), span)

    def _went_on(self, one: Subscriber, span: ReadSpan) -> None:
        if one.spans and one.spans[-1].name != span.name:
            self._reached("log.subscriber-taken-over")
        one.spans.append(span)

    def committed(self, span: ReadSpan, subscriber: str, stored: DLSN) -> None:
        """Note that a reader's commit was answered: what is stored is what it was given, or what its successor was."""
        given = span.next
        others = [one.next for one in self.subscriber(span.log, subscriber).spans if one is not span]
        if stored != given and not given < stored <= max(others, default=given):
            self._fail(span.log, f"{span.name} committed {stored}, and was given what is below {given} (exactly once)")
        self._reached("log.subscriber-committed")

    def metadata_applied(self, ops: Sequence[Op]) -> None:
        """Judge a transaction: positions are stored by lock holders, and go forwards."""
        for op in ops:
            parts = op.path.split("/")
            if not isinstance(op, Create | SetData) or len(parts) != _DEPTH or parts[4] != SUBSCRIBERS or not op.data:
                continue
            one, position = self.subscriber(parts[2], parts[5]), DLSN.from_base64(op.data.decode("ascii"))
            if position < one.stored:
                self._fail(parts[2], f"the position of {parts[5]} went back from {one.stored} to {position}")
            if not any(isinstance(other, Check) and other.path.startswith(f"{op.path}/") for other in ops):
                self._fail(parts[2], f"the position of {parts[5]} was stored by one whose lock was not checked")
            given = max((span.next for span in one.spans), default=DLSN.INITIAL)
            if position > given:
                self._fail(
                    parts[2], f"the position of {parts[5]} is {position}; its readers were given what is below {given}"
                )
            one.stored = position
