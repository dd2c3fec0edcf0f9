"""`RoutedRequest`: one request on its way through the proxies, from the first that is asked to the answer. No I/O.

The owner that the cache knows is asked first, else the one that the route chooses; what the answer leads to stands in
`answer_rules`. The edge runs it: it hands in events with the time, and does the one effect that comes back.

    event                                    effect
    begin       send it                      AskHost    send the request to this host, and hand in its answer
    answered    a host's answer              BackOff    hand in `resumed` after so many seconds
    failed      a host's connection failed   Finished   the answer is the caller's; nothing follows
    silent      no answer in `wait_s`        None       nothing to do
    resumed     a back-off is over
    deadline    the request's time is up

Every time it is sent is an *attempt*, with a number. One that was given up may still be answered, and a success counts
whenever it comes. An attempt is in doubt from the moment at which its connection failed, it was silent for too long or
it was refused with an unknown outcome, until an answer says more. A request that may not be done twice is not sent
again while an attempt is in doubt: it ends, with an unknown outcome. One that may is sent again; if it ends in a
refusal all the same, the outcome is unknown, unless none of its attempts is in doubt.

Bounds: `maxRedirects` attempts after the first, `requestTimeoutMs` for the whole way. A host that was asked before is
asked again only after a back-off, and when no other is left. Where proxies answer again and again that they take no
requests, the back-offs become longer. Where all that could be reached take no proof of this
client's, or show none that is good, the way ends at once, for that does not pass by itself; so it does where the others
name such a proxy as the owner. Proxies that name each other as owners are asked alternately, each time after a
back-off, until one of the bounds is reached. A read proxy that has its share of logs sends a read to another one: that
counts for no attempt, or a bound of loads would make a log unreadable. For the same reason it is asked again where that
one takes no proof: it hears that the other was tried, and serves the log then.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeAlias

from dlspark.serving.client.answer_rules import (
    CHANGES_NOTHING,
    AnswerRule,
    StreamRequest,
    doubtful_refusal,
    is_repeatable,
    lost_refusal,
    rule_of,
    unreachable_refusal,
)
from dlspark.serving.client.ownership import OwnershipCache
from dlspark.serving.protocol.operations import (
    Answer,
    Applied,
    CreateStream,
    DeleteStream,
    Done,
    FindOwner,
    MoveStream,
    OwnerFound,
    ReadBatch,
    Reason,
    Refusal,
    ReleaseStream,
    RequestContext,
    StatusCode,
    WriteRecords,
)
from dlspark.serving.routing.hosts import Route, address_of, is_address
from metadata.foundation.errors import check
from metadata.foundation.pacing import Pauses
from storage_node.protocol.tables import Reaction, parse_table

MOST_SENT_ON: Final = 2
"""How often a read may be sent on by proxies without that it counts against `maxRedirects`."""
MAX_TRIED_HOSTS: Final = 64
"""Hosts that travel with a request as tried: those that were asked last."""
REQUEST_TIMEOUT_MS: Final = 60_000
"""How long a request may take, all its attempts together, unless something else is said."""
BACKOFF_START_MS: Final = 25
SOON_AGAIN: Final = 4
"""Back-offs of the usual length behind proxies that take no requests: one that stops, or starts, soon takes them, or
another does. Where it cannot read its rules of access, say, that may last, and all its clients come again and again."""
UNAVAILABLE_FIRST_S: Final = 0.2
UNAVAILABLE_LONGEST_S: Final = 1.0
"""The first back-off behind those, and the longest; drawn at random, or they would all come at the same time."""


class Cancellable(Protocol):
    """A request that is under way for a caller."""

    def cancel(self) -> None:
        """Ask no further; its outcome is not reported any more."""
        ...


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """Bounds how long, and how often, a request is tried. Numbers below 0: without a bound."""

    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    max_redirects: int = -1
    """Attempts after the first."""
    backoff_start_ms: int = BACKOFF_START_MS
    backoff_max_ms: int = 100
    attempt_timeout_ms: int = 10_000
    """How long one host is waited for, where the request may be sent again. 0 or less: as long as for the request."""
    fail_fast: bool = False
    resend_writes: bool = False


# ---------------------------------------------------------------------- effects


class AskHost(NamedTuple):
    """Send `request` to the host at `address`."""

    address: str
    request: StreamRequest
    attempt: int
    wait_s: float | None
    """Hand in `silent` when there is no answer for so long; None: never."""


class BackOff(NamedTuple):
    """Wait, then hand in `resumed`."""

    seconds: float


class Finished(NamedTuple):
    """The way is over."""

    answer: Answer
    """What the last host said."""
    in_doubt: bool = False
    """Whether the request may have been done all the same, though `answer` is a refusal that says it was not."""

    @property
    def for_caller(self) -> Answer:
        """The answer as its caller may rely on it: a refusal is in doubt where an attempt is."""
        if not self.in_doubt or not isinstance(self.answer, Refusal):
            return self.answer
        if self.answer.applied is Applied.UNKNOWN and self.answer.reason is not Reason.PRODUCER_FORGOTTEN:
            return self.answer
        message = f"an earlier attempt may have been written; the last one was refused: {self.answer.message}"
        return doubtful_refusal(self.answer, message)


Effect: TypeAlias = AskHost | BackOff | Finished


class RequestState(Enum):
    """The states of a request."""

    NEW = "new"
    ASKING = "asking"
    PAUSED = "paused"
    DONE = "done"


class RequestEvent(Enum):
    """The events of a request."""

    BEGIN = "begin"
    ANSWERED = "answered"
    FAILED = "failed"
    SILENT = "silent"
    RESUMED = "resumed"
    DEADLINE = "deadline"


REQUEST_TABLE: Final[Mapping[RequestState, Mapping[RequestEvent, Reaction]]] = parse_table(
    """
             begin  answered  failed  silent  resumed  deadline
    NEW      A      !         !       !       !        !
    ASKING   !      A         A       A       -        A
    PAUSED   !      A         -       -       A        A
    DONE     !      -         -       -       -        -
    """,
    RequestState,
    RequestEvent,
)


class RoutedRequest:
    """One request on its way. Every method takes an event, and returns the one effect that follows, or None.

    Times are seconds that never go back, of one clock.

    Args:
        request: what is asked.
        route: chooses a host where the owner is not known.
        ownerships: the owners that are known.
        limits: how long, and how often, it is tried.
        timeout_ms: instead of the limits' time; below 0: no bound.
        checksum: instead of the request's own.
        rng: draws how long the longer back-offs are; None: one of its own.
    """

    def __init__(
        self,
        request: StreamRequest,
        route: Route,
        ownerships: OwnershipCache,
        limits: RetryLimits,
        *,
        timeout_ms: int | None = None,
        checksum: int | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.state = RequestState.NEW
        self.deadline: float | None = None
        """When to hand in `deadline`; None: never. Known from `begin` on."""
        self._request = request
        self._route = route
        self._ownerships = ownerships
        self._limits = limits
        self._checksum = checksum
        self._timeout_ms = limits.request_timeout_ms if timeout_ms is None else timeout_ms
        self._repeatable = is_repeatable(request, resend_writes=limits.resend_writes)
        self._attempts: list[str] = []
        """The address that each was sent to."""
        self._doubtful: set[int] = set()
        self._round: set[str] = set()
        """Hosts that were asked since there was last none left."""
        self._regions: set[str] = set()
        """Regions that said that they are not available, likewise."""
        self._target: str | None = None
        """The host to ask after the back-off; None: the one that the route chooses then."""
        self._last: Refusal | None = None
        self._unproven: dict[str, Refusal] = {}
        """Hosts where one side did not take the other's proof, as their last answer; such a host has got nothing."""
        self._unreachable: set[str] = set()
        """Hosts whose connection could not be made, the last time."""
        self._named: dict[str, str] = {}
        """Hosts whose last answer was to ask another one, and that."""
        self._sent_on = 0
        """How often a read was sent on, up to `MOST_SENT_ON`."""
        self._unreached: list[str] = []
        """Hosts that were named for a read, and not asked: they could not be reached not long ago."""
        self._rng = rng
        self._unavailable = 0
        """Back-offs behind a proxy that said that it takes no requests."""
        self._longer: Pauses | None = None

    @property
    def attempts(self) -> int:
        """How often it was sent."""
        return len(self._attempts)

    # ------------------------------------------------------------------ events

    def begin(self, now: float) -> Effect | None:
        """Send it."""
        self._takes(RequestEvent.BEGIN)
        if self._timeout_ms >= 0:
            self.deadline = now + self._timeout_ms / 1000
        return self._next(now)

    def answered(self, attempt: int, answer: Answer, now: float) -> Effect | None:
        """Go on with a host's answer, perhaps to an attempt that was given up."""
        if not self._takes(RequestEvent.ANSWERED):
            return None
        address = self._attempts[attempt]
        self._route.answered(address)
        self._unproven.pop(address, None)
        self._unreachable.discard(address)
        self._named.pop(address, None)
        if not isinstance(answer, Refusal):
            self._learn(address, answer)
            return self._finish(answer)
        if answer.applied is not Applied.UNKNOWN or answer.reason is Reason.PRODUCER_FORGOTTEN:
            self._doubtful.discard(attempt)
        elif not isinstance(self._request, CHANGES_NOTHING):
            self._doubtful.add(attempt)
        # An answer to an attempt that was given up says whether that one was done. What follows is for the last one.
        if not self._is_current(attempt):
            return None
        self._last = answer
        if attempt in self._doubtful and not self._repeatable:
            self._ownerships.forget(self._request.stream, address)
            return self._finish(answer)
        return self._apply_rule(rule_of(answer, fail_fast=self._limits.fail_fast), address, answer, now)

    def failed(
        self, attempt: int, now: float, *, sent: bool, reason: str = "", unproven: Refusal | None = None
    ) -> Effect | None:
        """Go on after the connection of an attempt could not be made, or broke before the answer.

        `sent`: whether the host may have the request; not where no byte of it had left. `unproven`: what to say where
        one side did not take the other's proof.
        """
        if not self._takes(RequestEvent.FAILED) or not self._is_current(attempt):
            return None
        address = self._attempts[attempt]
        self._route.failed(address, now)
        self._ownerships.forget_host(address)
        why = f": {reason}" if reason else ""
        if unproven is not None:
            # Another proxy may know this client's authority, or have a better certificate: all are asked, once.
            self._unreachable.discard(address)
            self._last = self._unproven[address] = unproven
            return self._next(now)
        self._unproven.pop(address, None)
        self._unreachable.add(address)
        if sent:
            self._doubt(attempt)
        if attempt in self._doubtful:
            self._last = lost_refusal(f"the connection to {address} was lost before the request was answered{why}")
            return self._next(now) if self._repeatable else self._finish(self._last)
        self._last = unreachable_refusal(f"{address} could not be reached{why}")
        return self._next(now)

    def silent(self, attempt: int, now: float) -> Effect | None:
        """Go on after an attempt was not answered in its time; the request may be sent again, or there would be no such
        time."""
        if not self._takes(RequestEvent.SILENT) or not self._is_current(attempt) or not self._repeatable:
            return None
        address = self._attempts[attempt]
        self._doubt(attempt)
        # It may be slow with this stream alone: its other streams stay with it.
        self._ownerships.forget(self._request.stream, address)
        self._last = lost_refusal(f"{address} did not answer in {self._limits.attempt_timeout_ms} ms")
        return self._next(now)

    def resumed(self, now: float) -> Effect | None:
        """Go on behind a back-off."""
        if not self._takes(RequestEvent.RESUMED):
            return None
        target = self._target if self._target is not None else self._choose(now)
        return self._ask(target, now) if target is not None else self._pause(None, now)

    def deadline_passed(self, now: float, *, sent: bool = True) -> Effect | None:
        """End the request: its time is up. `sent`: whether the host that is asked now may have it."""
        if not self._takes(RequestEvent.DEADLINE):
            return None
        if self.state is RequestState.ASKING and sent:
            self._doubt(len(self._attempts) - 1)
        return self._time_up()

    @property
    def asked(self) -> str:
        """The hosts that it was sent to, and what the last one said."""
        asked = ", ".join(dict.fromkeys(self._attempts)) or "no proxy"
        if self._last is None:
            return f"asked were: {asked}"
        advice = f" ({self._last.advice})" if self._last.advice else ""
        return f"asked were: {asked}; the last answer: {self._last.message}{advice}"

    def _time_up(self) -> Finished:
        said = f"the request was not done in {self._timeout_ms} ms; {self.asked}"
        return self._finish(lost_refusal(said) if self._doubtful else unreachable_refusal(said))

    # ------------------------------------------------------------------ what follows

    def _takes(self, event: RequestEvent) -> bool:
        reaction = REQUEST_TABLE[self.state][event]
        check(reaction is not Reaction.BUG, "a request got an event that its state excludes")
        return reaction is Reaction.ACT

    def _is_current(self, attempt: int) -> bool:
        return self.state is RequestState.ASKING and attempt == len(self._attempts) - 1

    def _doubt(self, attempt: int) -> None:
        if not isinstance(self._request, CHANGES_NOTHING):
            self._doubtful.add(attempt)

    def _apply_rule(self, rule: AnswerRule, address: str, refusal: Refusal, now: float) -> Effect:
        stream = self._request.stream
        if rule is AnswerRule.FOLLOW:
            owner = _owner_in(refusal)
            if owner is not None and owner != address:
                if isinstance(self._request, ReadBatch):
                    if self._sent_on < MOST_SENT_ON:
                        self._sent_on += 1
                    if owner not in self._unreached and self._route.failed_lately(owner, now):
                        # Proxies may announce addresses that cannot be reached from here. Not to wait for a connection
                        # with each log, say that it was tried: the proxy that named it serves the log then.
                        self._unreached.append(owner)
                        return self._go(address, now)
                refused = owner in self._unproven
                # A read that was sent on is not lost with the proxy that was named: asked again, and told that this one
                # was tried, the proxy that named it serves the log itself. It counts only where it does not.
                if refused or not isinstance(self._request, ReadBatch):
                    self._named[address] = owner
                if refused:
                    # It would say the same again. Another host may name another owner; where none does, that is final.
                    return self._next(now)
                self._ownerships.learn(stream, owner)
                return self._go(owner, now)
            if owner is None and isinstance(self._request, DeleteStream):
                return self._finish(refusal)  # nobody gives a log up for its deletion
        if rule in (AnswerRule.FAIL, AnswerRule.FINISH):
            return self._finish(refusal)
        if rule is AnswerRule.LEAVE_HOST:
            self._ownerships.forget_host(address)
        else:
            self._ownerships.forget(stream, address)
        region = self._route.region_of(address) if rule is AnswerRule.NEXT_REGION else None
        if region is not None:
            self._regions.add(region)
        return self._next(now)

    def _next(self, now: float) -> Effect:
        """Ask the owner, or the host that the route chooses; where none is left, begin again with all of them."""
        target = self._untried(now)
        if target is None and self._unproven:
            referring = {host for host, owner in self._named.items() if owner in self._unproven}
            if self._round <= self._unproven.keys() | self._unreachable | referring:
                return self._finish(next(reversed(self._unproven.values())))
        target = target if target is not None else self._choose(now)
        return self._go(target, now) if target is not None else self._pause(None, now)

    def _choose(self, now: float) -> str | None:
        found = self._untried(now)
        if found is None:
            self._round.clear()
            self._regions.clear()
            found = self._route.pick(self._request.stream, now)
        return found

    def _untried(self, now: float) -> str | None:
        """Return the host to ask next in this round; None where none is left."""
        stream = self._request.stream
        owner = self._ownerships.owner(stream)
        # Once a round: a proxy that is believed to own the stream, and has just refused it, would be asked for ever.
        if owner is not None and owner not in self._round:
            return owner
        return self._route.pick(stream, now, self._round, self._regions)

    def _go(self, address: str, now: float) -> Effect:
        """Ask a host: at once, or after a back-off where it was asked before."""
        return self._pause(address, now) if address in self._attempts else self._ask(address, now)

    def _pause(self, target: str | None, now: float) -> Effect:
        if self._is_spent():
            return self._too_often()
        self.state = RequestState.PAUSED
        self._target = target
        return BackOff(self._back_off_s())

    def _back_off_s(self) -> float:
        tries = max(len(self._attempts), 1)
        usual_s = min(self._limits.backoff_max_ms, tries * self._limits.backoff_start_ms) / 1000
        last = self._last
        if last is None or last.code is not StatusCode.SERVICE_UNAVAILABLE or last.reason is Reason.PROXY_UNREACHABLE:
            return usual_s  # one that cannot be reached loses nothing by being dialled
        self._unavailable += 1
        if self._unavailable <= SOON_AGAIN:
            return usual_s
        if self._longer is None:
            self._longer = Pauses(UNAVAILABLE_FIRST_S, UNAVAILABLE_LONGEST_S, self._rng or random.Random())
        return max(usual_s, self._longer.take_s())

    def _ask(self, address: str, now: float) -> Effect:
        if self.deadline is not None and now >= self.deadline:
            return self._time_up()  # the machine may have been suspended: timers come in any order then
        if self._is_spent():
            return self._too_often()
        tried: tuple[str, ...] = ()
        if self._attempts or self._unreached:
            tried = tuple(dict.fromkeys((*self._unreached, *reversed(self._attempts))))[:MAX_TRIED_HOSTS]
        self._attempts.append(address)
        self._round.add(address)
        self._target = None
        self.state = RequestState.ASKING
        # At least 1: a proxy takes 0 for a client that waits for ever.
        left_ms = 0 if self.deadline is None else max(round((self.deadline - now) * 1000), 1)
        request, said = self._request, self._request.context
        checksum = self._checksum if self._checksum is not None else said.checksum
        context = RequestContext(tried, checksum, said.is_record_set, left_ms)
        sent = request.within(context) if isinstance(request, WriteRecords) else replace(request, context=context)
        limit_ms = self._limits.attempt_timeout_ms
        wait_s = limit_ms / 1000 if self._repeatable and limit_ms > 0 else None
        return AskHost(address, sent, len(self._attempts) - 1, wait_s)

    def _is_spent(self) -> bool:
        return 0 <= self._limits.max_redirects < len(self._attempts) - self._sent_on

    def _too_often(self) -> Finished:
        last = self._last or unreachable_refusal("no proxy is known")
        return self._finish(replace(last, message=f"{last.message} (after {len(self._attempts)} attempts)"))

    def _finish(self, answer: Answer) -> Finished:
        self.state = RequestState.DONE
        return Finished(answer, bool(self._doubtful) and isinstance(answer, Refusal))

    def _learn(self, address: str, answer: Answer) -> None:
        """Note what a success says of the stream's owner."""
        request = self._request
        if isinstance(answer, OwnerFound):
            self._ownerships.learn(request.stream, answer.location)
        elif isinstance(request, MoveStream) and isinstance(answer, Done):
            self._ownerships.learn(request.stream, request.target)
        elif isinstance(request, (ReleaseStream, DeleteStream)):
            self._ownerships.forget(request.stream)
        elif not isinstance(request, (CreateStream, FindOwner)):  # anyone creates a log, nobody owns it yet
            self._ownerships.learn(request.stream, address)


def _owner_in(refusal: Refusal) -> str | None:
    """Return the address that a redirect names; None where it names none, or what cannot be dialled."""
    location = refusal.location
    return address_of(location) if location is not None and is_address(location) else None
