"""`Dispatcher`: takes requests through proxies. It runs the machine of each (`requests`) over the client's connections.

A request has no task: answers, losses and timers are events, and the machine says what follows. Requests that have the
same time limit wait in one queue with one timer, however many there are. Beside the requests it keeps the cache of
owners fresh, by a handshake with each proxy that is connected to, and again every few minutes (`Handshakes`).

Fault model: that of its connections. A request ends exactly once, with an answer or a refusal; one that was given up
ends for its caller alone. When the client closes, requests under way end as refusals that say whether they may have
been done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

from dlspark.errors import AlreadyClosedError, ProxyLostError
from dlspark.serving.client.answer_rules import StreamRequest
from dlspark.serving.client.channels import ChannelFailure, ChannelRequest, Channels
from dlspark.serving.client.ownership import Handshakes, OwnershipCache
from dlspark.serving.client.requests import AskHost, BackOff, Effect, Finished, RetryLimits, RoutedRequest
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import Answer, Handshake, ProxyInfo, Refusal
from dlspark.serving.protocol.request_checks import request_checksum
from dlspark.serving.routing.hosts import Route
from metadata.foundation.errors import OutcomeUnknownError
from metadata.security.proofs import NotAuthenticatedError

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S: Final = 10.0
"""A proxy that does not answer a handshake in this time has failed."""
MAX_TIME_LIMITS: Final = 64
"""Different time limits whose queues are kept though they are empty."""
CompletionHandler: TypeAlias = Callable[[Finished], None]


@dataclass(slots=True)
class ClientCounters:
    """Counts what a client has done so far: see `AsyncClient.counters`."""

    requests: int = 0
    """Requests that were begun; a batch of records is one."""
    attempts: int = 0
    """How often one was sent to a proxy: more than requests where proxies redirect, fail or are slow."""
    refused: int = 0
    """Requests that ended in a refusal."""
    records: int = 0
    """Records that are written."""
    record_bytes: int = 0
    """Their bytes."""
    connections_lost: int = 0
    """Connections that ended, idle ones included."""
    handshakes_failed: int = 0


class _TimeLimitQueue:
    """Requests that have the same time limit, in the order in which it ends; one timer for all."""

    __slots__ = ("_due", "_fire", "_loop", "_now", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now: Callable[[], float], fire: Callable[[InFlightRequest], None]
    ) -> None:
        self._loop = loop
        self._now = now
        self._fire = fire
        self._due: dict[InFlightRequest, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_used(self) -> bool:
        """Whether any waits, or its timer runs."""
        return bool(self._due) or self._timer is not None

    def add(self, in_flight: InFlightRequest, due: float) -> None:
        self._due.pop(in_flight, None)
        self._due[in_flight] = due
        if self._timer is None:
            self._wait_until(due)

    def _wait_until(self, due: float) -> None:
        self._timer = self._loop.call_later(max(due - self._now(), 0), self._expire)

    def remove(self, in_flight: InFlightRequest) -> None:
        self._due.pop(in_flight, None)

    def close(self) -> None:
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        while self._due:
            in_flight, due = next(iter(self._due.items()))
            if due > self._now():
                self._wait_until(due)
                return
            del self._due[in_flight]
            self._fire(in_flight)


class InFlightRequest:
    """A request on its way through the proxies; made by `Dispatcher.begin`.

    It runs the machine of the request (`RoutedRequest`): events go in with the time, and the one effect that comes back
    is done here.
    """

    __slots__ = (
        "_connection",
        "_dispatcher",
        "_older",
        "_resuming",
        "_routed",
        "_sending",
        "_settle",
        "_silence",
        "_time_limit",
        "asking",
        "attempt",
    )

    def __init__(
        self, dispatcher: Dispatcher, routed: RoutedRequest, settle: CompletionHandler, connection: int
    ) -> None:
        self._dispatcher = dispatcher
        self._routed: RoutedRequest | None = routed
        self._settle = settle
        self._connection = connection
        self._sending: ChannelRequest | None = None
        self._older: list[ChannelRequest] = []
        """Attempts that were given up, and may still be answered."""
        self._resuming: asyncio.TimerHandle | None = None
        self._time_limit: _TimeLimitQueue | None = None
        self._silence: _TimeLimitQueue | None = None
        self.attempt = -1
        self.asking = False
        """Whether a proxy has it now."""

    @property
    def asked(self) -> str:
        """The proxies that it was sent to, and what the last one said; empty once it has ended."""
        return self._routed.asked if self._routed is not None else ""

    def cancel(self) -> None:
        """Ask no further; the outcome is not reported any more. What was sent may still be done. Idempotent."""
        if self._routed is not None:
            self._end()

    def begin(self, now: float) -> None:
        """Send the request for the first time."""
        routed = self._routed
        if routed is None:
            return
        effect = routed.begin(now)
        if routed.deadline is not None and effect is not None:
            self._time_limit = self._dispatcher.queue_of("deadline", routed.deadline - now)
            self._time_limit.add(self, routed.deadline)
        self._apply_effect(effect, now)

    def on_deadline(self) -> None:
        """Settle the request, whose time is over."""
        if self._routed is not None:
            now = self._dispatcher.now()
            sent = self._sending is None or self._sending.sent
            self._apply_effect(self._routed.deadline_passed(now, sent=sent), now)

    def on_silence(self) -> None:
        """Go on to another proxy: the one that was asked has not answered in time."""
        if self._routed is not None:
            now = self._dispatcher.now()
            self._apply_effect(self._routed.silent(self.attempt, now), now)

    def interrupt(self, answer: Answer) -> None:
        """End it with this answer."""
        if self._routed is not None:
            self._end()
            self._settle(Finished(answer))

    def _answered(self, attempt: int, answer: Answer | ChannelFailure) -> None:
        routed = self._routed
        if routed is None:
            return
        if self._silence is not None and attempt == self.attempt:
            self._silence.remove(self)  # an older attempt's answer does not say that the last one is heard of
        now = self._dispatcher.now()
        if isinstance(answer, ChannelFailure) and isinstance(answer.error, NotAuthenticatedError):
            effect = routed.failed(attempt, now, sent=False, unproven=refusal_of(answer.error))
        elif isinstance(answer, ChannelFailure):
            sent = isinstance(answer.error, OutcomeUnknownError)
            effect = routed.failed(attempt, now, sent=sent, reason=answer.error.message)
        else:
            effect = routed.answered(attempt, answer, now)
        self._apply_effect(effect, now)

    def _resume(self) -> None:
        self._resuming = None
        if self._routed is not None:
            now = self._dispatcher.now()
            self._apply_effect(self._routed.resumed(now), now)

    def _apply_effect(self, effect: Effect | None, now: float) -> None:
        if effect is None:
            return
        if isinstance(effect, AskHost):
            self._ask(effect, now)
        elif isinstance(effect, BackOff):
            self.asking = False
            self._resuming = self._dispatcher.loop.call_later(effect.seconds, self._resume)
        else:
            self._end()
            if isinstance(effect.answer, Refusal):
                self._dispatcher.counters.refused += 1
            self._settle(effect)

    def _ask(self, effect: AskHost, now: float) -> None:
        if self._sending is not None:
            self._older.append(self._sending)
            self._sending = None
        self.attempt = effect.attempt
        self.asking = True
        self._dispatcher.counters.attempts += 1
        if effect.wait_s is not None:
            self._silence = self._dispatcher.queue_of("silence", effect.wait_s)
            self._silence.add(self, now + effect.wait_s)
        sending = self._dispatcher.channels.submit(
            effect.address, effect.request, partial(self._answered, effect.attempt), self._connection
        )
        # The answer may have come before `submit` returned: the request has ended then, or was sent to another proxy.
        if self._routed is None:
            sending.cancel()
        elif self.attempt == effect.attempt:
            self._sending = sending

    def _end(self) -> None:
        self._routed = None
        self.asking = False
        if self._time_limit is not None:
            self._time_limit.remove(self)
        if self._silence is not None:
            self._silence.remove(self)
        if self._resuming is not None:
            self._resuming.cancel()
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        for sending in self._older:
            sending.cancel()
        self._dispatcher.ended(self)


class Dispatcher:
    """Takes the requests of one client through proxies, and keeps its cache of owners fresh. For one running loop.

    Args:
        channels: makes the connections, given what to call when one was made, and when one has ended.
        route: chooses a proxy for a stream whose owner is not known.
        ownerships: the cache of owners.
        limits: of requests that have no limits of their own.
        handshakes: when proxies are asked what they own.
        checksum: whether requests carry one.
        now: seconds that go on while the machine is suspended, for a request that slept too long is not sent again
            (I19); None: the loop's time.
        own_region: what proxies that announce a region are told of the client's; empty: nothing.
    """

    def __init__(
        self,
        channels: Callable[[Callable[[str], None], Callable[[str], None]], Channels],
        route: Route,
        ownerships: OwnershipCache,
        limits: RetryLimits,
        handshakes: Handshakes,
        *,
        checksum: bool = True,
        now: Callable[[], float] | None = None,
        own_region: str = "",
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.now = now or self.loop.time
        self.channels = channels(self._connected, self._disconnected)
        self.route = route
        self.ownerships = ownerships
        self.limits = limits
        self.counters = ClientCounters()
        self.max_request_bytes = 0
        """The least that a proxy has said that it takes; 0: none has."""
        self._checksum = checksum
        self._own_region = own_region
        self._handshakes = handshakes
        self._next_handshakes: asyncio.TimerHandle | None = None
        self._handshaking: dict[str, tuple[ChannelRequest, asyncio.TimerHandle]] = {}
        self._in_flight: dict[InFlightRequest, None] = {}
        self._queues: dict[tuple[str, float], _TimeLimitQueue] = {}
        self._closed = False

    @property
    def under_way(self) -> int:
        """Requests without an outcome."""
        return len(self._in_flight)

    def begin(
        self,
        request: StreamRequest,
        settle: CompletionHandler,
        *,
        connection: int = 0,
        timeout_ms: int | None = None,
        route: Route | None = None,
        ownerships: OwnershipCache | None = None,
        limits: RetryLimits | None = None,
    ) -> InFlightRequest:
        """Take `request` to the proxy that serves its stream. `settle` is called once, perhaps before this returns,
        with what it ended with; a refusal in that is final.

        Another route, cache and limits than those for writing are for reading, which any proxy may serve.
        """
        self.counters.requests += 1
        routed = RoutedRequest(
            request,
            self.route if route is None else route,
            self.ownerships if ownerships is None else ownerships,
            self.limits if limits is None else limits,
            timeout_ms=timeout_ms,
            checksum=request_checksum(request) if self._checksum else None,
        )
        in_flight = InFlightRequest(self, routed, settle, connection)
        if self._closed:
            in_flight.interrupt(refusal_of(AlreadyClosedError("the client is closed; nothing was sent")))
            return in_flight
        self._in_flight[in_flight] = None
        in_flight.begin(self.now())
        return in_flight

    async def close(self) -> None:
        """End all requests, then all connections. Idempotent."""
        self._closed = True
        unsent = refusal_of(AlreadyClosedError("the client was closed before the request was sent"))
        lost = refusal_of(ProxyLostError("the client was closed before the request was answered"))
        for in_flight in list(self._in_flight):
            # One attempt is enough for a doubt, whatever became of it.
            in_flight.interrupt(lost if in_flight.attempt >= 0 else unsent)
        if self._next_handshakes is not None:
            self._next_handshakes.cancel()
        for _, timer in self._handshaking.values():
            timer.cancel()
        self._handshaking.clear()
        for queue in self._queues.values():
            queue.close()
        await self.channels.close()

    # ------------------------------------------------------------------ for requests

    def queue_of(self, kind: str, limit_s: float) -> _TimeLimitQueue:
        """Return the queue of requests with this time limit."""
        # Rounded: what is left of a time differs by microseconds from request to request, and each would get a queue.
        key = (kind, round(limit_s, 3))
        found = self._queues.get(key)
        if found is None:
            if len(self._queues) >= MAX_TIME_LIMITS:
                self._queues = {one: queue for one, queue in self._queues.items() if queue.is_used}
            fire = InFlightRequest.on_deadline if kind == "deadline" else InFlightRequest.on_silence
            found = self._queues[key] = _TimeLimitQueue(self.loop, self.now, fire)
        return found

    def ended(self, in_flight: InFlightRequest) -> None:
        """Note that it has an outcome, or was given up."""
        self._in_flight.pop(in_flight, None)

    # ------------------------------------------------------------------ handshakes

    def _connected(self, address: str) -> None:
        self._send_handshake(address, self._handshakes.connected(address, self.now()))
        self._plan_handshakes()

    def _disconnected(self, address: str) -> None:
        self.counters.connections_lost += 1
        self._handshakes.closed(address)

    def _plan_handshakes(self) -> None:
        due = self._handshakes.next_due()
        if due is not None and self._next_handshakes is None and not self._closed:
            self._next_handshakes = self.loop.call_later(max(due - self.now(), 0), self._send_due_handshakes)

    def _send_due_handshakes(self) -> None:
        self._next_handshakes = None
        for address, handshake in self._handshakes.due(self.now()):
            self._send_handshake(address, handshake)
        self._plan_handshakes()

    def _send_handshake(self, address: str, handshake: Handshake) -> None:
        if address in self._handshaking:
            return  # the one before is not answered yet
        if self._own_region and self.route.region_of(address) is not None:
            handshake = replace(handshake, region=self._own_region)
        timer = self.loop.call_later(HANDSHAKE_TIMEOUT_S, self._handshake_timed_out, address)
        sending = self.channels.submit(address, handshake, partial(self._handshake_answered, address))
        self._handshaking[address] = sending, timer

    def _handshake_timed_out(self, address: str) -> None:
        sending, _ = self._handshaking.pop(address)
        sending.cancel()
        logger.warning("the proxy %s did not answer a handshake in %g s", address, HANDSHAKE_TIMEOUT_S)
        self._lost(address)

    def _handshake_answered(self, address: str, answer: Answer | ChannelFailure) -> None:
        under_way = self._handshaking.pop(address, None)
        if under_way is not None:
            under_way[1].cancel()
        if self._closed:
            return
        if isinstance(answer, ProxyInfo):
            self.ownerships.learn_all(answer.ownerships)
            self.route.answered(address)
            if answer.max_request_bytes > 0:
                known = self.max_request_bytes or answer.max_request_bytes
                self.max_request_bytes = min(known, answer.max_request_bytes)
        else:
            self._lost(address)

    def _lost(self, address: str) -> None:
        self.counters.handshakes_failed += 1
        self.route.failed(address, self.now())
        self.ownerships.forget_host(address)
