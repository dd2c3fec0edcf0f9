"""A model of proxies around one log, for the thin client's machines: a test chooses each step.

The log is true: entries in their order, and the log core's own table of producers (`Producers`). A proxy owns it, or
believes that it still does and judges by the table of the time when it lost it. Requests and answers lie on a wire
until they are delivered, in any order; a connection may be lost while its request stays there, and is delivered later.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.producer_records import ProducerRequest
from dlspark.core.writing.producers import Producers, Written
from dlspark.serving.client.ownership import OwnershipCache
from dlspark.serving.client.producers import ProducerSession
from dlspark.serving.client.requests import AskHost, BackOff, Effect, Finished, RetryLimits, RoutedRequest
from dlspark.serving.client.write_sessions import SessionEffect, SessionLimits, Settled, Transmit
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import (
    Answer,
    Applied,
    BeginEpoch,
    EpochBegun,
    Refusal,
    StatusCode,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.routing.hosts import ProxyHost
from dlspark.serving.routing.ring import HostRing
from metadata.foundation.errors import DistributedLogError

STREAM = "stream"
ADDRESSES = ("a:1", "b:1", "c:1")


@dataclass
class Asked:
    """A request on the wire to a proxy. Without a ticket it is a late copy, whose answer is not waited for."""

    ticket: int | None
    attempt: int
    address: str
    request: WriteRecords | BeginEpoch


@dataclass
class Told:
    """An answer on the wire."""

    ticket: int
    attempt: int
    answer: Answer


@dataclass
class ModelLog:
    """The log, its owner, and what each former owner still believes."""

    producers: Producers
    payloads: list[bytes] = field(default_factory=list)
    entries: int = 0
    owner: str | None = None
    beliefs: dict[str, Producers] = field(default_factory=dict)
    up: set[str] = field(default_factory=lambda: set(ADDRESSES))

    def serve(self, address: str, request: WriteRecords | BeginEpoch) -> Answer:
        """Return what the proxy at `address`, which is up, answers."""
        belief = self.beliefs.get(address)
        if belief is None and self.owner is None:
            self.owner = address
        if belief is None and self.owner != address:
            return Refusal(StatusCode.FOUND, "owned elsewhere", location=f"1;0;{self.owner}")
        who = _request_of(request, belief if belief is not None else self.producers)
        try:
            known = (belief if belief is not None else self.producers).judge(who)
        except DistributedLogError as error:
            return refusal_of(error)
        if isinstance(known, Written):
            if isinstance(request, BeginEpoch):
                return self._begun(who, belief if belief is not None else self.producers)
            return WriteReceipt(known.first, known.records, repeated=True)
        if belief is not None:  # it tries to write, and finds that it is fenced
            del self.beliefs[address]
            return Refusal(StatusCode.LOCKING_EXCEPTION, "deposed", error="WriterDeposedError")
        first = DLSN(1, self.entries, 1)
        self.entries += 1
        self.producers.begin(who, first, 0)
        self.producers.answered(who)
        if isinstance(request, BeginEpoch):
            return self._begun(who, self.producers)
        self.payloads += [bytes(payload) for payload in request.payloads]
        return WriteReceipt(first, len(request.payloads))

    def _begun(self, who: ProducerRequest, producers: Producers) -> EpochBegun:
        state = producers.state(who.name)
        assert state is not None
        return EpochBegun(who.epoch, state.last + 1)

    def depose(self, *, aware: bool) -> None:
        """Take the log from its owner; unless that is `aware` of it, it goes on as if it had it."""
        if self.owner is not None and not aware:
            self.beliefs[self.owner] = copy.deepcopy(self.producers)
        self.owner = None

    def forget(self) -> None:
        """Have the log forget its producers: they were silent for long, or lay in segments that were deleted."""
        known = [state.epoch for name in self.producers.names() if (state := self.producers.state(name))]
        forgetful = Producers(gaps_allowed=self.producers.gaps_allowed)
        forgetful.forgotten = max(self.producers.forgotten, *known, -1)
        self.producers = forgetful

    def stop(self, address: str) -> None:
        """End a proxy."""
        self.up.discard(address)
        self.beliefs.pop(address, None)
        if self.owner == address:
            self.owner = None


def _request_of(request: WriteRecords | BeginEpoch, producers: Producers) -> ProducerRequest:
    if isinstance(request, WriteRecords):
        stamp = request.stamp
        assert stamp is not None
        return ProducerRequest(stamp.name, stamp.epoch, stamp.sequence, len(request.payloads))
    epoch = request.epoch if request.epoch is not None else producers.next_epoch(request.producer)
    return ProducerRequest(request.producer, epoch, -1, 0)


class ModelClient:
    """One session and the ways of its requests, run by hand."""

    def __init__(self, *, gaps_allowed: bool = False, only_user: bool = True, memory_s: float = 600.0) -> None:
        self.now = 0.0
        self.log = ModelLog(Producers(gaps_allowed=gaps_allowed))
        self.route = HostRing([ProxyHost(address) for address in ADDRESSES], points=5)
        self.ownerships = OwnershipCache()
        self.way_limits = RetryLimits(request_timeout_ms=60_000)
        limits = SessionLimits(memory_s=memory_s, request_timeout_ms=60_000)
        jumps = iter(range(1, 1 << 30))
        self.session = ProducerSession(
            STREAM, "producer", random_bits=lambda bits: next(jumps), only_user=only_user, limits=limits
        )
        self.ways: dict[int, RoutedRequest] = {}
        self.asked: list[Asked] = []
        self.told: list[Told] = []
        self.timers: list[Callable[[], None]] = []
        self.waiting: dict[tuple[int, int], str] = {}
        """Attempts that are neither answered nor given up, and their proxies."""
        self.settled: dict[Hashable, Answer] = {}
        self.submitted = 0

    # ------------------------------------------------------------------ what the caller does

    def submit(self) -> int:
        """Write the next record."""
        number = self.submitted
        self.submitted += 1
        request = WriteRecords(STREAM, (b"%d" % number,), atomic=True)
        self._obey(self.session.submit(number, request, self.now))
        return number

    def give_up(self, number: int) -> None:
        """Wait for a record no longer."""
        self._obey(self.session.give_up(number, self.now))

    # ------------------------------------------------------------------ what the edge does

    def _obey(self, effects: list[SessionEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Settled):
                assert effect.key not in self.settled, "settled twice"
                self.settled[effect.key] = effect.answer
            elif isinstance(effect, Transmit):
                limits = self.way_limits
                way = RoutedRequest(effect.request, self.route, self.ownerships, limits, timeout_ms=effect.timeout_ms)
                self.ways[effect.ticket] = way
                self._go(effect.ticket, way.begin(self.now))
            else:
                self.timers.append(lambda: self._obey(self.session.resumed(self.now)))

    def _go(self, ticket: int, effect: Effect | None) -> None:
        if isinstance(effect, AskHost):
            assert isinstance(effect.request, WriteRecords | BeginEpoch)
            self.asked.append(Asked(ticket, effect.attempt, effect.address, effect.request))
            self.waiting[ticket, effect.attempt] = effect.address
        elif isinstance(effect, BackOff):
            way = self.ways[ticket]
            self.timers.append(lambda: self._go(ticket, way.resumed(self.now)))
        elif isinstance(effect, Finished):
            del self.ways[ticket]
            for key in [key for key in self.waiting if key[0] == ticket]:
                del self.waiting[key]
            self._obey(self.session.returned(ticket, effect, self.now))

    # ------------------------------------------------------------------ what the world does

    def deliver(self, index: int, *, refusal: Refusal | None = None) -> None:
        """Deliver a request: it is served, or refused undone."""
        asked = self.asked.pop(index % len(self.asked))
        if asked.address not in self.log.up:
            if asked.ticket is not None:
                self.lose(asked.ticket, asked.attempt, sent=False)
            return
        answer = refusal if refusal is not None else self.log.serve(asked.address, asked.request)
        if asked.ticket is not None:
            self.told.append(Told(asked.ticket, asked.attempt, answer))

    def answer(self, index: int) -> None:
        """Deliver an answer."""
        told = self.told.pop(index % len(self.told))
        self.waiting.pop((told.ticket, told.attempt), None)
        way = self.ways.get(told.ticket)
        if way is not None:
            self._go(told.ticket, way.answered(told.attempt, told.answer, self.now))

    def lose(self, ticket: int, attempt: int, *, sent: bool = True) -> None:
        """Break a connection, and lose the answer; what was asked on it may arrive all the same."""
        self.waiting.pop((ticket, attempt), None)
        self.told = [told for told in self.told if (told.ticket, told.attempt) != (ticket, attempt)]
        for asked in self.asked:
            if (asked.ticket, asked.attempt) == (ticket, attempt):
                asked.ticket = None
        way = self.ways.get(ticket)
        if way is not None:
            self._go(ticket, way.failed(attempt, self.now, sent=sent))

    def be_silent(self, ticket: int, attempt: int) -> None:
        """End an attempt that has waited for long enough."""
        way = self.ways.get(ticket)
        if way is not None:
            self._go(ticket, way.silent(attempt, self.now))

    def fire(self, index: int) -> None:
        """End a back-off."""
        self.timers.pop(index % len(self.timers))()

    def pass_deadlines(self) -> None:
        """Let a minute pass: whatever is on its way has taken too long."""
        self.now += 61.0
        for ticket, way in list(self.ways.items()):
            if way.deadline is not None and way.deadline <= self.now:
                self._go(ticket, way.deadline_passed(self.now))

    def sleep_until_forgotten(self) -> None:
        """Suspend the machine for so long that the log forgets the producer, with whatever is on the wire."""
        self.now += 10_000.0
        self.log.forget()
        self.log.beliefs.clear()
        for ticket, attempt in list(self.waiting):
            self.lose(ticket, attempt)

    # ------------------------------------------------------------------ what must hold

    def settle_down(self, steps: int = 10_000) -> None:
        """Go on without faults: everything ends, or the session is stuck."""
        self.log.up = set(ADDRESSES)
        self.log.beliefs.clear()  # whoever lost the log hears of it, also without a write
        for _ in range(steps):
            if self.asked:
                self.deliver(0)
            elif self.told:
                self.answer(0)
            elif self.timers:
                self.now += 1.0
                self.fire(0)
            elif self.ways:
                self.pass_deadlines()
            else:
                break
        assert self.session.is_idle, "the session is stuck"
        assert set(self.settled) == set(range(self.submitted)), "a request was never settled"

    def check(self) -> None:
        """Assert that everything written is there once and in order, and that what was answered is true."""
        written = [int(payload) for payload in self.log.payloads]
        assert written == sorted(set(written)), f"not once, or not in order: {written}"
        for key, answer in self.settled.items():
            if isinstance(answer, WriteReceipt):
                assert key in written, f"{key} was acknowledged and is lost"
            elif isinstance(answer, Refusal) and answer.applied is not Applied.UNKNOWN:
                assert key not in written, f"{key} was refused and is written"
