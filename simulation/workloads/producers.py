"""Idempotent producers in the log workload: requests that are sent until they are answered, by any writer of the log.

A producer is what feeds a log from outside: its requests have their numbers and contents for good, and survive every
process. Each writer sends them in order, from the first that was not answered or a few before it; so one request may be
under way in several writers, of the same owner or of owners that follow each other, some of them paused or deposed. It
lies in the log once (`checkers.logs`), and behind those before it (`check_producers`).

Where the log says that it has forgotten the producer, the feed begins a later epoch. What was sent before and was not
answered stays unknown, and is never sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.producer_records import KEPT
from dlspark.core.writing.acknowledgements import Appended
from dlspark.core.writing.writer import AsyncLogWriter
from dlspark.errors import ProducerForgottenError, SequenceGapError
from simulation.checkers.history import OperationOutcome, outcome_of
from simulation.checkers.logs import SeenRecord, WriterSession, WrittenRecord
from simulation.cluster import World

IMPATIENT_SHARE = 0.15
"""Requests before which the last one is sent again, without waiting for its answer."""


class ProducerSender(Protocol):
    """Sends producers' requests through one writer."""

    def send_some(self, rng: Random, count: int) -> int:
        """Send the next request of a producer, a new one of `count` records where all were sent; returns how many
        records are new."""
        ...

    def send_rest(self) -> list[asyncio.Future[Appended]]:
        """Send everything that was not answered."""
        ...


class RequestSource(Protocol):
    """The producers of a log."""

    def answered(self) -> dict[str, int]:
        """Return how many requests were answered so far, by the groups that the checks of an answer go by."""
        ...

    def sender(
        self, writer: AsyncLogWriter, session: WriterSession, record: Callable[[], WrittenRecord]
    ) -> ProducerSender | None:
        """Return what sends requests through an opened writer; `record` makes a new record. None where there is nothing
        to send."""
        ...

    def check(self, seen: Sequence[SeenRecord], *, whole: bool = True) -> None:
        """Check the requests in the log: all that it has, or, where it is not read as a `whole`, those that are
        left.
        """
        ...


@dataclass(slots=True, eq=False)
class ProducedEpoch:
    """An epoch of a producer, and all that it has ever sent in it."""

    number: int
    requests: list[ProducedRequest] = field(default_factory=list)
    answered: int = 0
    """Requests from the first on that were answered."""

    def note_answered(self, request: ProducedRequest) -> None:
        """Note that a request and those before it are in the log: any answer says so."""
        for one in self.requests[: request.sequence + 1]:
            one.answered = True
        self.answered = max(self.answered, request.sequence + 1)


@dataclass(slots=True, eq=False)
class ProducedRequest:
    """A request of a producer."""

    epoch: ProducedEpoch
    sequence: int
    records: list[WrittenRecord]
    sent: int = 0
    """Attempts that have no answer yet; of a killed process they never get one."""
    doubtful: bool = False
    """The outcome of an attempt is unknown."""
    answered: bool = False

    @property
    def outcome(self) -> OperationOutcome:
        """How it ended, by all attempts."""
        if self.answered:
            return OperationOutcome.OK
        if self.doubtful:
            return OperationOutcome.UNKNOWN
        return OperationOutcome.OPEN if self.sent else OperationOutcome.FAILED


@dataclass(slots=True, eq=False)
class SimulatedProducer:
    """A producer of one log, with its epochs."""

    name: str
    epochs: list[ProducedEpoch] = field(default_factory=lambda: [ProducedEpoch(0)])

    @property
    def now(self) -> ProducedEpoch:
        """The epoch in which it sends."""
        return self.epochs[-1]

    def forgotten(self, request: ProducedRequest, up_to: int) -> None:
        """Note that the log has forgotten the request's epoch, and all up to another."""
        if request.epoch is self.now:
            self.epochs.append(ProducedEpoch(up_to + 1))


class ProducedLog:
    """The producers of one log that keeps its name: a `RequestSource`."""

    def __init__(self, world: World, log: str, rng: Random) -> None:
        self._world = world
        self._log = log
        self.producers = [SimulatedProducer(f"{log}-p{index}") for index in range(rng.choice((1, 2)))]

    def answered(self) -> dict[str, int]:
        """Return how many requests were answered so far, by producer and epoch."""
        return {
            f"{producer.name}/{epoch.number}": epoch.answered
            for producer in self.producers
            for epoch in producer.epochs
        }

    def sender(
        self, writer: AsyncLogWriter, session: WriterSession, record: Callable[[], WrittenRecord]
    ) -> RequestSender:
        """Return what sends requests through an opened writer; `record` makes a new record."""
        return RequestSender(self._world, self.producers, writer, session, record)

    def check(self, seen: Sequence[SeenRecord], *, whole: bool = True) -> None:
        """Check that each producer's requests in the log are whole, in order, none left out but at the end of an epoch.
        Where it is not read as a `whole`, the first ones are missing, and the log may begin within one.
        """
        places = {one.payload: (index, one.dlsn) for index, one in enumerate(seen)}
        for producer in self.producers:
            before = -1
            for epoch in producer.epochs:
                there = [request for request in epoch.requests if request.records[-1].payload in places]
                first = there[0].sequence if there and not whole and before < 0 else 0
                if there != epoch.requests[first : first + len(there)]:
                    self._fail(f"of {producer.name}, requests {[one.sequence for one in there]} are there (I19)")
                before = self._check_order(producer, there, places, before, whole=whole)

    def _check_order(
        self,
        producer: SimulatedProducer,
        there: Sequence[ProducedRequest],
        places: dict[bytes, tuple[int, DLSN]],
        before: int,
        *,
        whole: bool,
    ) -> int:
        for request in there:
            found = [places.get(record.payload, (-1, DLSN.INVALID)) for record in request.records]
            if not whole and found[-1][0] < len(found):
                found = [one for one in found if one[0] >= 0]  # the log begins within it
            if [index for index, _ in found] != list(range(found[0][0], found[0][0] + len(found))):
                self._fail(f"request {request.sequence} of {producer.name} does not lie side by side: {found} (I19)")
            if len({dlsn.entry_id for _, dlsn in found}) != 1:
                self._fail(f"request {request.sequence} of {producer.name} lies in several entries (I19)")
            if found[0][0] < before:
                self._fail(f"request {request.sequence} of {producer.name} lies before an older one (I4)")
            before = found[-1][0]
        return before

    def _fail(self, message: str) -> None:
        self._world.ledger_checkers.fail(f"log {self._log}: {message}")


class RequestSender:
    """Sends producers' requests through one writer."""

    def __init__(
        self,
        world: World,
        producers: Sequence[SimulatedProducer],
        writer: AsyncLogWriter,
        session: WriterSession,
        record: Callable[[], WrittenRecord],
    ) -> None:
        self._world = world
        self._producers = producers
        self._writer = writer
        self._session = session
        self._record = record
        self._next: dict[ProducedEpoch, int] = {}

    def send_some(self, rng: Random, count: int) -> int:
        """Send the next request of a producer, a new one of `count` records where all were sent; returns how many
        records are new."""
        producer = rng.choice(self._producers)
        epoch = producer.now
        if epoch not in self._next:
            self._next[epoch] = max(0, epoch.answered - rng.choice((0, 0, 1, 2, KEPT + 1)))
        sequence = self._next[epoch]
        if sequence and rng.random() < IMPATIENT_SHARE:
            self._send(producer, epoch.requests[sequence - 1], new=False)
        new = sequence == len(epoch.requests)
        if new:
            epoch.requests.append(ProducedRequest(epoch, sequence, [self._record() for _ in range(count)]))
        self._send(producer, epoch.requests[sequence], new=new)
        return count if new else 0

    def send_rest(self) -> list[asyncio.Future[Appended]]:
        """Send everything that was not answered."""
        return [
            self._send(producer, request, new=False)
            for producer in self._producers
            for request in producer.now.requests[producer.now.answered :]
        ]

    def _send(self, producer: SimulatedProducer, request: ProducedRequest, *, new: bool) -> asyncio.Future[Appended]:
        self._next[request.epoch] = request.sequence + 1
        session = self._session
        for record in request.records:
            if not new:
                self._world.reached("log.request-again")
                self._world.log_checkers.written_again(record, session)
        request.sent += 1
        session.requests_under_way += 1
        operation = self._world.history.begin(session.client, "request", session.log)
        records = [(session.txid, record.payload) for record in request.records]
        for record in request.records:
            record.txids.add(session.txid)
        future = self._writer.append(
            records, producer=producer.name, epoch=request.epoch.number, sequence=request.sequence
        )

        def answered(done: asyncio.Future[Appended]) -> None:
            session.requests_under_way -= 1
            request.sent -= 1
            error = done.exception()
            self._world.history.end(operation, error)
            if error is None:
                self._acknowledged(producer, request, done.result())
            else:
                self._refused(producer, request, error)

        future.add_done_callback(answered)
        return future

    def _acknowledged(self, producer: SimulatedProducer, request: ProducedRequest, answer: Appended) -> None:
        request.epoch.note_answered(request)
        known, key = self._session.answered_before, f"{producer.name}/{request.epoch.number}"
        known[key] = max(known.get(key, 0), request.sequence + 1)
        what = f"request {request.sequence} of {producer.name}"
        if answer.records != len(request.records):
            self._fail(f"{what}, of {len(request.records)} records, was answered with {answer} (I19)")
        if answer.first is None:
            self._world.reached("log.request-forgotten")
            if len(request.epoch.requests) - request.sequence <= KEPT:
                self._fail(f"the position of {what} was forgotten, of {len(request.epoch.requests)} (I19)")
            return
        if answer.repeated:
            self._world.reached("log.request-repeated")
        for slot, record in enumerate(request.records):
            dlsn = DLSN(answer.first.lssn, answer.first.entry_id, answer.first.slot_id + slot)
            if answer.repeated:
                self._world.log_checkers.confirmed(record, dlsn)
            else:
                record.session = self._session
                self._world.log_checkers.acknowledged(record, dlsn)

    def _refused(self, producer: SimulatedProducer, request: ProducedRequest, error: BaseException) -> None:
        known = self._session.answered_before.get(f"{producer.name}/{request.epoch.number}", 0)
        if isinstance(error, SequenceGapError) and error.expected < known:  # a deposed one may not know of later ones
            self._fail(f"{producer.name} was to go on at {error.expected}, answered were {known} (I19)")
        self._next[request.epoch] = request.epoch.answered  # it and those behind it come again
        if isinstance(error, ProducerForgottenError) and error.epoch is not None:
            producer.forgotten(request, error.epoch)
        request.doubtful = request.doubtful or outcome_of(error) is OperationOutcome.UNKNOWN
        for record in request.records:
            self._world.log_checkers.judged(record, request.outcome, error)

    def _fail(self, message: str) -> None:
        self._world.ledger_checkers.fail(f"log {self._session.log}: {message}")
