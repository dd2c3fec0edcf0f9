"""`FeedCheckers`: what `MovingNamesCheckers` holds the requests of idempotent producers to, log by log.

A *feed* sends requests to a name (`workloads.feeds`), and the name leads from one incarnation to another. So one
request may be sent to several incarnations: each has a copy of its own here, with records of its own, and everything
that `LogCheckers` asks of records (one place for ever, what is acknowledged or read is there at the end) is asked of
each copy. A writer's incarnation is the one that had the name when it was opened; its process does not know it.

    a request              lies in an incarnation at most once (I3), side by side, in one entry (I19), behind those of
                           its epoch and of older epochs that were sent before it (I4)
    an epoch               of those of its requests that were sent to the incarnation, the first ones are there, from
                           number 0 on, none left out, and all that were answered (I1, I19): under whatever name it has
                           by then. Where a deletion that was cut off has cleared the log, what was written before is
                           gone, and nothing of these epochs comes behind it
    an answer              is true of the incarnation that answers, also where another one has the name by then: the
                           request lies there, with as many records, and so do those before it; `repeated` only if it
                           was sent there before; without a place only behind KEPT later ones (I19)
    what an owner knows    all that was answered in its incarnation before it began to open: it waits for none of that
                           again, and takes none for new (I19)
    a fenced request       a later epoch was sent to the incarnation
    a forgotten producer   the incarnation was cleared: in a run no producer is silent for long enough, and a renaming
                           forgets nothing (I19)

What a log that was deleted knew, the next one of its name does not know: that is for the feed to find out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.producer_records import KEPT
from dlspark.core.writing.acknowledgements import Appended
from dlspark.core.writing.producers import FIRST_EPOCHS
from dlspark.errors import InvalidRecordError, ProducerFencedError, ProducerForgottenError, SequenceGapError
from simulation.checkers.history import OperationOutcome, outcome_of
from simulation.checkers.ledgers import LedgerCheckers
from simulation.checkers.logs import SeenRecord, WriterSession, WrittenRecord
from simulation.checkers.moving_names import BEGIN, MovingNamesCheckers
from simulation.checkers.watched import WatchedWorld


class KnownEpoch(NamedTuple):
    """An epoch of a producer in one incarnation."""

    incarnation: str
    producer: str
    number: int

    def __str__(self) -> str:
        return f"epoch {self.number} of {self.producer} in {self.incarnation}"


@dataclass(slots=True, eq=False)
class SentRequest:
    """A request in one incarnation: all attempts to have it written there."""

    epoch: KnownEpoch
    sequence: int
    records: list[WrittenRecord]
    attempts: int = 0
    under_way: int = 0
    """Attempts that have no answer yet; of a killed process they never get one."""
    doubtful: bool = False
    """The outcome of an attempt is unknown."""
    answered_as: str | None = None
    """The log's name for the writer that answered first."""

    @property
    def outcome(self) -> OperationOutcome:
        """How it ended, by all attempts in this incarnation."""
        if self.answered_as is not None:
            return OperationOutcome.OK
        if self.doubtful:
            return OperationOutcome.UNKNOWN
        return OperationOutcome.OPEN if self.under_way else OperationOutcome.FAILED


class FeedCheckers:
    """One for each world whose logs have feeds."""

    def __init__(self, world: WatchedWorld, ledgers: LedgerCheckers, names: MovingNamesCheckers) -> None:
        self._world = world
        self._ledgers = ledgers
        self._names = names
        self._sent: defaultdict[KnownEpoch, dict[int, SentRequest]] = defaultdict(dict)
        self._answered: dict[KnownEpoch, int] = {}
        self._names_of: dict[KnownEpoch, str] = {}
        """The log's name for the writer that was the last one to write a request of the epoch."""

    def answered(self) -> dict[str, int]:
        """Return how many requests were answered so far, by incarnation, producer and epoch."""
        return {str(epoch): count for epoch, count in self._answered.items()}

    # ------------------------------------------------------------------------------------ requests

    def sending(
        self,
        session: WriterSession,
        producer: str,
        number: int,
        sequence: int,
        make_records: Callable[[], list[WrittenRecord]],
    ) -> SentRequest:
        """Note that a request, of a producer's epoch with this number, is given to the session's writer, and return it.
        Its records are made once for each incarnation.
        """
        epoch = KnownEpoch(self._names.truth_of(session).name, producer, number)
        sent = self._sent[epoch].get(sequence)
        if sent is None:
            sent = self._sent[epoch][sequence] = SentRequest(epoch, sequence, make_records())
        else:
            self._world.reached("log.request-again")
            for record in sent.records:
                self._names.written_again(record, session)
        sent.attempts += 1
        sent.under_way += 1
        for record in sent.records:
            record.txids.add(session.txid)
        return sent

    def acknowledged(self, sent: SentRequest, session: WriterSession, answer: Appended) -> None:
        """Note that an attempt was answered."""
        sent.under_way -= 1
        self._note_answered(sent, session)
        if answer.records != len(sent.records):
            self._fail(sent, f"of {len(sent.records)} records, was answered with {answer} (I19)")
        if answer.repeated and sent.attempts < 2:
            self._fail(sent, f"was sent to the log once, and was answered with {answer} (I19)")
        self._note_points(sent, session, answer)
        if answer.first is None:
            later = max(self._sent[sent.epoch]) - sent.sequence
            if later < KEPT:
                self._fail(sent, f"has {later} later ones, and its position was forgotten (I19)")
            return
        for slot, record in enumerate(sent.records):
            dlsn = DLSN(answer.first.lssn, answer.first.entry_id, answer.first.slot_id + slot)
            if answer.repeated:
                self._names.confirmed(record, dlsn)
            else:
                record.session = session
                self._names.acknowledged(record, dlsn)

    def _note_answered(self, sent: SentRequest, session: WriterSession) -> None:
        """Note that a request and those before it are in the log: any answer says so."""
        numbers = self._sent[sent.epoch]
        for sequence in range(sent.sequence + 1):
            if sequence not in numbers:
                self._fail(sent, f"was answered; request {sequence} before it was never sent to the log (I19)")
            elif numbers[sequence].answered_as is None:
                numbers[sequence].answered_as = session.log
        self._answered[sent.epoch] = max(self._answered.get(sent.epoch, 0), sent.sequence + 1)

    def _note_points(self, sent: SentRequest, session: WriterSession, answer: Appended) -> None:
        if answer.repeated:
            self._world.reached("log.request-repeated" if answer.first is not None else "log.request-forgotten")
            if sent.answered_as != session.log:
                self._world.reached("names.repeated-renamed")
            if not self._names.has_its_name(session):
                self._world.reached("names.repeated-by-deposed")
            return
        if self._names_of.get(sent.epoch, session.log) != session.log:
            self._world.reached("names.feed-renamed")
        self._names_of[sent.epoch] = session.log

    def refused(self, sent: SentRequest, session: WriterSession, error: BaseException) -> None:
        """Note that an attempt ended with an error."""
        sent.under_way -= 1
        answered = session.answered_before.get(str(sent.epoch), 0)
        if isinstance(error, SequenceGapError) and error.expected < answered:
            self._fail(
                sent, f"was to wait for {error.expected}; answered before the writer opened were {answered} (I19)"
            )
        elif isinstance(error, ProducerFencedError) and not self._has_later_epoch(sent.epoch, error.epoch):
            self._fail(sent, f"was fenced by epoch {error.epoch}, which was never sent to the log (I19)")
        elif isinstance(error, ProducerForgottenError) and not self._is_cleared(sent.epoch):
            self._fail(sent, f"meets a log that has forgotten its producer for nothing: {error!r} (I19)")
        elif isinstance(error, InvalidRecordError) and sent.epoch.number < FIRST_EPOCHS:
            self._fail(sent, f"was refused: {error!r}")
        sent.doubtful = sent.doubtful or outcome_of(error) is OperationOutcome.UNKNOWN
        for record in sent.records:
            self._names.judged(record, sent.outcome, error)

    def _has_later_epoch(self, epoch: KnownEpoch, number: int | None) -> bool:
        return number is not None and number > epoch.number and epoch._replace(number=number) in self._sent

    def _is_cleared(self, epoch: KnownEpoch) -> bool:
        """Return whether the incarnation's segments went, and it lives on."""
        return self._names.begin_of(self._names.truth(epoch.incarnation)) != BEGIN

    def _fail(self, sent: SentRequest, message: str) -> None:
        self._ledgers.fail(f"request {sent.sequence}, {sent.epoch}, {message}")

    # ------------------------------------------------------------------------------------ the end

    def check(self, incarnation: str, seen: Sequence[SeenRecord]) -> None:
        """Check the log as a whole, as a reader delivered it."""
        places = {one.payload: (index, one.dlsn) for index, one in enumerate(seen)}
        before: dict[str, int] = {}
        for epoch in sorted(epoch for epoch in self._sent if epoch.incarnation == incarnation):
            requests = [self._sent[epoch][sequence] for sequence in sorted(self._sent[epoch])]
            there = [one for one in requests if one.records[-1].payload in places]
            answered = self._answered.get(epoch, 0) if not self._is_cleared(epoch) else 0
            if [one.sequence for one in there] != list(range(len(there))) or len(there) < answered:
                found = [one.sequence for one in there]
                self._ledgers.fail(f"of {epoch}, requests {found} are there, answered were {answered} (I1, I19)")
            for one in there:
                before[epoch.producer] = self._check_place(one, places, before.get(epoch.producer, -1))

    def _check_place(self, sent: SentRequest, places: Mapping[bytes, tuple[int, DLSN]], before: int) -> int:
        found = [places.get(record.payload, (-1, DLSN.INVALID)) for record in sent.records]
        if [index for index, _ in found] != list(range(found[0][0], found[0][0] + len(found))):
            self._fail(sent, f"does not lie side by side: {found} (I19)")
        if len({dlsn.entry_id for _, dlsn in found}) != 1:
            self._fail(sent, f"lies in several entries: {found} (I19)")
        if found[0][0] < before:
            self._fail(sent, "lies before an older one (I4)")
        return found[-1][0]
