"""`WriteSession`: a client's writes of one stream on their way, as `AsyncProducer` runs them. No I/O.

A session says when a request of its stream is sent, and what its caller is answered. There are two: `ProducerSession`
(`producers`) numbers requests, so that each is written once; `PlainSession` is for clients that were asked to write as
upstream's do (`idempotentProducer=false`). Every method returns what is to be done, in this order:

    Transmit    send a request through proxies, and hand in `returned` with what it ends with
    Settled     the caller's answer
    BackOff     hand in `resumed` after so many seconds

A plain session sends a request once by each proxy that is tried, and what is not known to be written ends so: nothing
is sent again by it. Requests of one stream may overtake each other where a proxy redirects them.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from dlspark.core.codec.producer_records import KEPT
from dlspark.errors import OverCapacityError, ServiceUnavailableError
from dlspark.serving.client.answer_rules import lost_refusal
from dlspark.serving.client.requests import BACKOFF_START_MS, REQUEST_TIMEOUT_MS, BackOff, Finished
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import Answer, BeginEpoch, Refusal, WriteRecords

MAX_QUEUED: Final = 1_024
"""Requests of one producer that wait for their numbers; a client that gathers records into batches has one or two."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds a session: requests under way and in line, times, back-offs."""

    max_in_flight: int = KEPT
    """At most `KEPT`: of more, the log would not know the first ones again."""
    max_queued: int = MAX_QUEUED
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    """How long one sending of a request may take, all its attempts together; below 0: as long as it is remembered."""
    memory_s: float = 3_600.0
    backoff_start_ms: int = BACKOFF_START_MS
    backoff_max_ms: int = 1_000


# ---------------------------------------------------------------------- effects


class Transmit(NamedTuple):
    """Send `request` on its way (`RoutedRequest`), and hand in what it ends with, with this ticket."""

    ticket: int
    request: WriteRecords | BeginEpoch
    timeout_ms: int


class Settled(NamedTuple):
    """The request that was submitted under `key` has this answer, a WriteReceipt or a Refusal. It comes once."""

    key: Hashable
    answer: Answer


SessionEffect: TypeAlias = Transmit | Settled | BackOff


class WriteSession(Protocol):
    """Numbers and sends a stream's requests."""

    ended: Refusal | None

    @property
    def has_room(self) -> bool:
        """Whether a request that is submitted now is sent now."""
        ...

    def submit(self, key: Hashable, request: WriteRecords, now: float) -> list[SessionEffect]:
        """Write `request`."""
        ...

    def give_up(self, key: Hashable, now: float) -> list[SessionEffect]:
        """Settle a request whose caller does not wait any longer."""
        ...

    def returned(self, ticket: int, finished: Finished, now: float) -> list[SessionEffect]:
        """Go on with what a request ended with, by the ticket with which it was sent."""
        ...

    def resumed(self, now: float) -> list[SessionEffect]:
        """Go on behind a back-off."""
        ...

    def end(self, reason: Refusal) -> list[SessionEffect]:
        """Take no more requests."""
        ...


class PlainSession:
    """Requests of one stream, a few under way at a time."""

    def __init__(self, limits: SessionLimits | None = None) -> None:
        self.ended: Refusal | None = None
        self._limits = limits if limits is not None else SessionLimits()
        self._ticket = 0
        self._under_way: dict[int, Hashable | None] = {}
        """By ticket; None: its caller has given up."""
        self._queue: dict[Hashable, WriteRecords] = {}

    @property
    def has_room(self) -> bool:
        """Whether a request that is submitted now is sent now."""
        return not self._queue and len(self._under_way) < self._limits.max_in_flight

    def submit(self, key: Hashable, request: WriteRecords, now: float) -> list[SessionEffect]:
        """Write `request`; `key` is no other's."""
        if self.ended is not None:
            return [Settled(key, self.ended)]
        if len(self._queue) >= self._limits.max_queued:
            message = f"{len(self._queue)} requests wait to be sent"
            return [Settled(key, refusal_of(OverCapacityError(message)))]
        self._queue[key] = request
        return self._fill()

    def give_up(self, key: Hashable, now: float) -> list[SessionEffect]:
        """Settle a request: as not written where it was not sent, with an unknown outcome otherwise."""
        if self._queue.pop(key, None) is not None:
            return [Settled(key, refusal_of(ServiceUnavailableError("it was not sent in time")))]
        for ticket, one in self._under_way.items():
            if one == key:
                self._under_way[ticket] = None  # it counts as under way until it comes back
                return [Settled(key, lost_refusal("it was not answered in time"))]
        return []

    def returned(self, ticket: int, finished: Finished, now: float) -> list[SessionEffect]:
        """Settle the request with what it ended with: that is its outcome."""
        key = self._under_way.pop(ticket, None)
        settled: list[SessionEffect] = [] if key is None else [Settled(key, finished.for_caller)]
        return settled + self._fill()

    def resumed(self, now: float) -> list[SessionEffect]:
        """Do nothing: it never backs off."""
        return []

    def end(self, reason: Refusal) -> list[SessionEffect]:
        """Take no more: what was not sent ends with `reason`, what was has an unknown outcome."""
        self.ended = self.ended or reason
        effects: list[SessionEffect] = [Settled(key, reason) for key in self._queue]
        effects += [Settled(key, lost_refusal(reason.message)) for key in self._under_way.values() if key is not None]
        self._queue.clear()
        self._under_way.clear()
        return effects

    def _fill(self) -> list[SessionEffect]:
        effects: list[SessionEffect] = []
        while self._queue and len(self._under_way) < self._limits.max_in_flight:
            key = next(iter(self._queue))
            self._ticket += 1
            self._under_way[self._ticket] = key
            effects.append(Transmit(self._ticket, self._queue.pop(key), self._limits.request_timeout_ms))
        return effects
