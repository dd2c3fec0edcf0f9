"""`ProxyCheckers`: what thin clients are promised, held against what they hear, what proxies answer, what logs hold.

Every record has a payload of its own. What becomes of it goes to `LogCheckers` (a place of its own, in the log at the
end if it was acknowledged, not if it was called not written, once at most, in an order that time allows); here is what
proxies and clients add:

    at every answer of a proxy    a write is not acknowledged once another process has acknowledged one in a later
                                  segment of the log (I5): neither by an owner that was stopped and wakes, nor by one
                                  that has lost its session and has not heard of it. What counts is when the process
                                  heard that the entry is stored: stopped between that and its next callback, it
                                  answers when it wakes, and no check of its own can be later than that one
    at every refusal of a proxy   requests of one caller on one stream are begun in the order in which they came: none
                                  is refused for one before it that the proxy has and has not begun
    at every acknowledgement      it says where the record is: a producer has no more open than the log remembers (I19)
    at every error of a client    a producer is fenced by none but another of its name (I19)
    in a calm run                 nothing is wrong but what operators plan: no client sees an error
    at the end                    a producer's records are in the log in the order in which they were sent; those of one
                                  name go by epoch and number (I19): once a later epoch has begun, nothing of an
                                  earlier one is written, whoever sent it

`Turnover` is an owner's change as clients see it: when the last one had its last acknowledgement, when the next one had
its first, and how long the record waited that came soonest behind the last one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Protocol

from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import ConditionError, ProducerFencedError
from dlspark.serving.protocol.operations import (
    Answer,
    BulkReceipt,
    ProducerStamp,
    Reason,
    Refusal,
    Request,
    WriteReceipt,
    WriteRecords,
)
from simulation.checkers.history import OperationOutcome, outcome_of
from simulation.checkers.ledgers import LedgerCheckers
from simulation.checkers.logs import LogCheckers, ReadSpan, SeenRecord, WriterSession, WrittenRecord
from simulation.checkers.watched import WatchedWorld
from simulation.environment.loop import Process

_FIRST = "#1"
"""How the name of a host's first process ends: no earlier one's requests can be on their way."""


class ProxiedWorld(WatchedWorld, Protocol):
    """A world that has logs, too."""

    log_checkers: LogCheckers


@dataclass(slots=True)
class Turnover:
    """An owner's change. Times are virtual seconds."""

    log: str
    before: Process
    after: Process
    last_s: float
    """The last acknowledgement of the owner before."""
    asked_s: float
    """When a client was first given a record after that."""
    first_s: float
    """The first acknowledgement of the owner after it."""

    @property
    def pause_s(self) -> float:
        """How long a record waited for the change."""
        return self.first_s - self.asked_s


@dataclass(slots=True, eq=False)
class ClientWrites:
    """One client's writes to one log, from one start of the client on."""

    session: WriterSession
    ordered: bool
    """True where they are a producer's: in order, each once."""
    records: list[WrittenRecord] = field(default_factory=list)


@dataclass(slots=True)
class _Owner:
    process: Process
    lssn: int
    acknowledged_s: float


class ProxyCheckers:
    """One for each tier of proxies. Violations go to `LedgerCheckers.fail`."""

    def __init__(self, world: ProxiedWorld, ledgers: LedgerCheckers) -> None:
        self._world = world
        self._ledgers = ledgers
        self._logs = world.log_checkers
        self._owners: dict[str, _Owner] = {}
        self._asked: dict[str, float] = {}
        """When the first record was given to a client since the log's last acknowledgement."""
        self._senders: dict[str, list[ClientWrites]] = {}
        self._heard: dict[tuple[int, int], float] = {}
        """By ledger and entry, when its writer heard that it is stored."""
        self._succeeded: dict[tuple[str, Process], float] = {}
        """When a log had its first acknowledgement from another process than this owner."""
        self._numbers = count()
        self._open: defaultdict[tuple[Process, object, str, ProducerStamp], set[int]] = defaultdict(set)
        """Producers' requests that proxies have not answered, by process and caller: their numbers, in the order in
        which they came. One that was given up and came again is there twice."""
        self._stamps: dict[bytes, set[ProducerStamp]] = {}
        """By payload, the numbers under which proxies were asked to write it."""
        self.replaced: set[Process] = set()
        """Clients' processes that were taken for dead, and may go on beside their successors."""
        self.turnovers: list[Turnover] = []
        self.calm = False
        """Nothing is wrong: clients see no error."""

    def owners(self) -> list[Process]:
        """Return the processes that acknowledged each log's last write."""
        return [owner.process for owner in self._owners.values()]

    # ------------------------------------------------------------------------------------ proxies

    def stored(self, ledger_id: int, entry_id: int) -> None:
        """Note that a proxy hears that an entry is stored."""
        self._heard[ledger_id, entry_id] = self._world.loop.time()

    def _heard_s(self, log: str, dlsn: DLSN) -> float:
        segment = self._logs.truth(log).segment(dlsn.lssn)
        key = (segment.ledger_id, dlsn.entry_id) if segment is not None else (-1, -1)
        return self._heard.get(key, self._world.loop.time())

    def asked(self, process: Process, caller: object, request: Request) -> int:
        """Note that a request comes to a proxy's service, which has answered others of this caller or not. Returns its
        number, for `answered`."""
        number = next(self._numbers)
        if isinstance(request, WriteRecords) and request.stamp is not None:
            self._open[process, caller, request.stream, request.stamp].add(number)
            for payload in request.payloads:
                self._stamps.setdefault(bytes(payload), set()).add(request.stamp)
        return number

    def answered(self, process: Process, caller: object, request: Request, came: int, answer: Answer) -> None:
        """Note that a proxy's service answers the request of this number."""
        if not isinstance(request, WriteRecords):
            return
        if request.stamp is not None:
            self._open[process, caller, request.stream, request.stamp].discard(came)
            if isinstance(answer, Refusal) and answer.reason is Reason.SEQUENCE_GAP and isinstance(answer.actual, int):
                # A gap is the caller's only where the missing request had not come before this one.
                missing = request.stamp._replace(sequence=answer.actual)
                if min(self._open[process, caller, request.stream, missing], default=came) < came:
                    self._ledgers.fail(f"log {request.stream}: {process.name} begins {request.stamp} before {missing}")
        if isinstance(answer, WriteReceipt):
            if answer.repeated:
                self._world.reached("producer.repeated")
                return
            dlsn = answer.dlsn
        elif isinstance(answer, BulkReceipt):
            dlsn = next((one for one in answer.results if isinstance(one, DLSN)), None)
        else:
            return
        if dlsn is not None:
            self._acknowledges(process, request.stream, dlsn)

    def _acknowledges(self, process: Process, log: str, dlsn: DLSN) -> None:
        now = self._world.loop.time()
        self._world.trace.note(f"proxy-ack {log} {dlsn} {process.name}")
        owner = self._owners.get(log)
        asked_s = self._asked.pop(log, now)
        if owner is None or owner.process is process:
            lssn = max(dlsn.lssn, owner.lssn if owner is not None else 0)
            self._owners[log] = _Owner(process, lssn, now)
        elif dlsn.lssn <= owner.lssn:
            # It heard that the entry is stored while it still owned the log, and only its answer is late: the record is
            # there.
            if self._heard_s(log, dlsn) < self._succeeded.get((log, process), 0.0):
                self._world.reached("proxy.stopped-while-answering")
                return
            self._ledgers.fail(
                f"log {log}: {process.name} acknowledges {dlsn} after {owner.process.name} has acknowledged a write "
                f"in segment {owner.lssn} (I5)"
            )
        else:
            self._world.reached("proxy.turnover")
            self._succeeded.setdefault((log, owner.process), now)
            self.turnovers.append(Turnover(log, owner.process, process, owner.acknowledged_s, asked_s, now))
            self._owners[log] = _Owner(process, dlsn.lssn, now)

    # ------------------------------------------------------------------------------------ clients

    def sender(self, session: WriterSession, *, ordered: bool) -> ClientWrites:
        """Note that a client begins to write to a log, and return its writes."""
        sender = ClientWrites(session, ordered)
        self._senders.setdefault(session.log, []).append(sender)
        return sender

    def sent(self, sender: ClientWrites, payload: bytes) -> WrittenRecord:
        """Note a record that is given to the client, and return it."""
        record = self._logs.written(sender.session, 0, payload)
        sender.records.append(record)
        self._asked.setdefault(record.session.log, self._world.loop.time())
        return record

    def acknowledged(self, record: WrittenRecord, dlsn: DLSN) -> None:
        """Note that a record's future has its place."""
        log = record.session.log
        self._world.trace.note(f"client-ack {log} {dlsn} {record.session.client}")
        if dlsn == DLSN.INVALID:
            self._ledgers.fail(f"log {log}: the place of a record of {record.session.client} is forgotten (I19)")
        self._logs.confirmed(record, dlsn)

    def refused(self, record: WrittenRecord, error: BaseException) -> None:
        """Note that a record's future ended with an error."""
        if self.calm and not isinstance(error, ConditionError):
            self._ledgers.fail(
                f"log {record.session.log}: {record.session.client} saw an error, though nothing was wrong: {error!r}"
            )
        process = record.session.process
        only = process.name.endswith(_FIRST) and process not in self.replaced
        if isinstance(error, ProducerFencedError) and only:
            self._ledgers.fail(f"{record.session.client} is the only one of its name, and was fenced: {error!r} (I19)")
        self._logs.judged(record, outcome_of(error), error)

    def read(self, span: ReadSpan, seen: SeenRecord) -> None:
        """Note that a reader delivered a record. Its transaction id is the proxy's choice: the first one that is read
        counts."""
        written = self._logs.truth(span.log).records.get(seen.payload)
        if written is not None and not written.read:
            written.txids = {seen.txid}
        self._logs.read(span, seen)

    # ------------------------------------------------------------------------------------ the end

    def final(self, log: str, seen: Sequence[SeenRecord]) -> None:
        """Check of the whole log what `LogCheckers.final` does not look at."""
        self._check_numbers(log, seen)
        places = {one.payload: one.dlsn for one in seen}
        for sender in self._senders.get(log, ()):
            for one in sender.records:
                if one.outcome is OperationOutcome.OK and one.payload not in places:
                    self._ledgers.fail(f"log {log}: {one.payload[:40]!r} was acknowledged and is not there (I1)")
            there = [places[record.payload] for record in sender.records if record.payload in places]
            if sender.ordered and any(one >= other for one, other in pairwise(there)):
                self._ledgers.fail(f"log {log}: the records of {sender.session.client} are not in its order (I4)")

    def _check_numbers(self, log: str, seen: Sequence[SeenRecord]) -> None:
        """Check that records that were sent under one number only show the order of the numbers."""
        last: dict[str, ProducerStamp] = {}
        for one in seen:
            stamps = self._stamps.get(one.payload, set())
            # Under two numbers either may be the one that counts: nothing can be said of the order.
            if len(stamps) != 1:
                continue
            (stamp,) = stamps
            before = last.setdefault(stamp.name, stamp)
            if (stamp.epoch, stamp.sequence) < (before.epoch, before.sequence):
                self._ledgers.fail(f"log {log}: {one.dlsn} was written as {stamp}, behind {before} (I19)")
            last[stamp.name] = stamp
