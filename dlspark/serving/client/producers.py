"""`ProducerSession`: a client's side of one idempotent producer on one stream. No I/O.

A request gets its number when it is sent, not before, and up to five are under way. Each travels by itself
(`requests`), and what comes of it is handed in. The log judges the numbers (docs/reference/records.md#producers): it
writes the next one, knows the last five again, and refuses one that comes too early. So a request may be sent any
number of times; what the session must get right is which number may be given to which request, and when (I19):

    a request whose outcome is in doubt    keeps its number and is sent again, until its outcome is known
    one that was refused, beyond doubt     leaves its number to the next; those behind it, which the log cannot have
                                           written, are numbered anew. If late copies of them may be on their way with
                                           their old numbers, a new epoch is begun first, which shuts those out
    one that came too early                is sent again, in order, when all that are under way have come back

    phase      what it does
    UNBORN     has no epoch: the first request begins one, by a number of its own choice (see below)
    BEGINNING  waits for its epoch; requests wait in line
    OPEN       numbers and sends
    DRAINING   one came back undone: sends nothing until none is under way
    PAUSED     backs off; then it sends again what is in the window, or begins an epoch
    ENDED      a newer epoch of the same name has begun, or its user ended it: refuses everything

A caller may give a request up at any time. One without a number is taken out of the line; one that may be on its way
goes on without its caller, because its number must not stay open. The session stops sending a request `memory_s` after
its first sending: a log forgets a producer that is silent for long, and would write an old request twice. What is in
doubt then ends with an unknown outcome, and a new epoch begins. The same is done when the log says that it has
forgotten the producer, and when one in doubt is refused for good; requests that are not in doubt are written in the
new epoch: nothing is lost or doubled.

An epoch is begun by its number, never as "the next one": the request may come again, late, and would begin another one,
which shuts this session out. A name that others may have had begins with a random number; a log that has a higher one
says so, and the session goes above it, once it has none itself. So it does where the log has forgotten producers of
higher ones: it takes an unknown producer for a new one only above those (`ProducerForgottenError`).

A log that allows gaps writes a number above the next one. The session finds out by the answers: where it has never been
refused for a gap, it sends what stands behind a number that fell out under its own numbers, and numbers anew only when
a gap was refused. All proxies of a log must be set alike.

Time is handed in, in seconds that go on while the machine is suspended (`storage_node.edge.Clock.elapsed_s`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dlspark.core.codec.producer_records import KEPT, MAX_NUMBER
from dlspark.errors import OverCapacityError, WriteCancelledError
from dlspark.serving.client.answer_rules import lost_refusal, may_pass, unreachable_refusal
from dlspark.serving.client.requests import BackOff, Finished
from dlspark.serving.client.write_sessions import SessionEffect, SessionLimits, Settled, Transmit
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import (
    Answer,
    Applied,
    BeginEpoch,
    EpochBegun,
    ProducerStamp,
    Reason,
    Refusal,
    WriteReceipt,
    WriteRecords,
)
from metadata.foundation.errors import check, of_class, present
from storage_node.protocol.tables import Reaction, parse_table

JUMP_BITS: Final = 31
"""A new epoch is this many random bits above the old one, so that no other process can have begun the same."""


class SessionPhase(Enum):
    """The phases of a session, as the table above names them."""

    UNBORN = "unborn"
    BEGINNING = "beginning"
    OPEN = "open"
    DRAINING = "draining"
    PAUSED = "paused"
    ENDED = "ended"


class SessionEvent(Enum):
    """The events of a session."""

    SUBMIT = "submit"
    GIVEN_UP = "given_up"
    WRITTEN = "written"
    """A request came back, written or not."""
    BEGUN = "begun"
    """The begin of an epoch came back."""
    RESUMED = "resumed"


SESSION_TABLE: Final[Mapping[SessionPhase, Mapping[SessionEvent, Reaction]]] = parse_table(
    """
               submit  given_up  written  begun  resumed
    UNBORN     A       -         !        !      -
    BEGINNING  A       A         !        A      -
    OPEN       A       A         A        !      -
    DRAINING   A       A         A        !      -
    PAUSED     A       A         !        !      A
    ENDED      R       -         -        -      -
    """,
    SessionPhase,
    SessionEvent,
)


@dataclass(eq=False, slots=True)
class OpenRequest:
    """A request from its submission until its outcome is known."""

    key: Hashable
    request: WriteRecords
    sequence: int = -1
    first_sent: float | None = None
    """When the oldest copy was sent that may still be written; None: it was never sent."""
    under_way: bool = False
    doubtful: bool = False
    """Whether a copy of it may have been written, or may be written later, under its number in this epoch."""
    settled: bool = False
    """Whether its caller has its answer already."""


class ProducerSession:
    """One producer on one stream: a `WriteSession` whose requests are written once, in their order.

    Every method returns what is to be done, in this order.

    Args:
        stream: the log.
        name: the producer's.
        random_bits: gives a number of so many bits.
        only_user: the name was made up for this session, so that its first epoch is 0 and no other process begins it.
        limits: what bounds the session.
    """

    def __init__(
        self,
        stream: str,
        name: str,
        *,
        random_bits: Callable[[int], int],
        only_user: bool = False,
        limits: SessionLimits | None = None,
    ) -> None:
        self.phase = SessionPhase.UNBORN
        self.stream = stream
        self.name = name
        self.epoch = -1
        """-1: none yet."""
        self.ended: Refusal | None = None
        """Why the session has ended."""
        self._limits = limits if limits is not None else SessionLimits()
        check(1 <= self._limits.max_in_flight <= KEPT, "a producer's window is wider than the log's memory")
        self._random_bits = random_bits
        self._wanted_epoch = 0 if only_user else random_bits(JUMP_BITS)
        self._queue: deque[OpenRequest] = deque()
        self._window: list[OpenRequest] = []
        """Requests with a number, in its order, until their outcome is known."""
        self._keys: dict[Hashable, OpenRequest] = {}
        """Requests whose callers wait."""
        self._tickets: dict[int, OpenRequest | None] = {}
        """What is under way; None: the begin of an epoch."""
        self._ticket = 0
        self._floor = 0
        """The number behind the highest that is known to be written."""
        self._strict = False
        """Whether the log has refused a gap."""
        self._lost_track = False
        """Whether something in doubt can never be found out, so that its number must not be used again."""
        self._fence: Refusal | None = None
        self._needs_epoch = True
        self._setbacks = 0

    # ------------------------------------------------------------------ what is known

    @property
    def has_room(self) -> bool:
        """Whether a request that is submitted now is sent now, begins the first epoch, or is refused at once."""
        return self.phase in (SessionPhase.UNBORN, SessionPhase.ENDED) or (
            self.phase is SessionPhase.OPEN and not self._queue and self._may_number()
        )

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not self._queue and not self._window and not self._tickets

    def __len__(self) -> int:
        """Return how many requests have no outcome yet."""
        return len(self._queue) + len(self._window)

    # ------------------------------------------------------------------ events

    def submit(self, key: Hashable, request: WriteRecords, now: float) -> list[SessionEffect]:
        """Write `request`, which has no stamp; `key` is in no other request that is not settled."""
        check(key not in self._keys and request.stamp is None, "a request was submitted twice to a producer")
        if self._reacts(SessionEvent.SUBMIT) is Reaction.REFUSE:
            return [Settled(key, present(self.ended, "a producer has ended without a reason"))]
        if len(self._queue) >= self._limits.max_queued:
            message = f"{len(self._queue)} requests of producer {self.name!r} wait to be sent"
            return [Settled(key, refusal_of(OverCapacityError(message)))]
        pending = OpenRequest(key, request)
        self._keys[key] = pending
        self._queue.append(pending)
        if self.phase is SessionPhase.UNBORN:
            return [self._begin()]
        return self._fill(now)

    def give_up(self, key: Hashable, now: float) -> list[SessionEffect]:
        """Settle a request whose caller does not wait any longer: as not written where it was never sent, with an
        unknown outcome otherwise. Nothing happens to one that is settled already."""
        if self._reacts(SessionEvent.GIVEN_UP) is Reaction.IGNORE:
            return []
        pending = self._keys.get(key)
        if pending is None:
            return []
        if pending.under_way or pending.doubtful:
            return self._settle(pending, lost_refusal(f"request of producer {self.name!r} was not answered in time"))
        message = f"request of producer {self.name!r} was not sent in time"
        effects = self._settle(pending, unreachable_refusal(message))
        if pending in self._window:
            self._window.remove(pending)
        else:
            self._queue.remove(pending)
        return effects

    def returned(self, ticket: int, finished: Finished, now: float) -> list[SessionEffect]:
        """Go on with what a request ended with, by the ticket with which it was sent."""
        if ticket not in self._tickets:
            check(self.phase is SessionPhase.ENDED, "a ticket came back that a producer did not give out")
            return []
        pending = self._tickets.pop(ticket)
        if pending is None:
            return self._epoch_returned(finished, now) if self._acts(SessionEvent.BEGUN) else []
        pending.under_way = False
        if not self._acts(SessionEvent.WRITTEN):
            return []
        effects = self._written(pending, finished)
        if self.phase is SessionPhase.DRAINING and not self._tickets:
            effects += self._drained(now)
        return effects + self._fill(now)

    def resumed(self, now: float) -> list[SessionEffect]:
        """Go on behind a back-off."""
        return self._go_on(now) if self._acts(SessionEvent.RESUMED) else []

    def end(self, reason: Refusal) -> list[SessionEffect]:
        """Take no more requests and send nothing more. What was not sent is settled with `reason`, which says that it
        was not done; what may be written has an unknown outcome."""
        effects: list[SessionEffect] = []
        for pending in [*self._window, *self._queue]:
            in_doubt = pending.under_way or pending.doubtful
            effects += self._settle(pending, lost_refusal(reason.message) if in_doubt else reason)
        self._window.clear()
        self._queue.clear()
        self._tickets.clear()
        self.ended = self.ended or reason
        self.phase = SessionPhase.ENDED
        return effects

    # ------------------------------------------------------------------ epochs

    def _begin(self) -> Transmit:
        self.phase = SessionPhase.BEGINNING
        request = BeginEpoch(self.stream, self.name, self._wanted_epoch)
        return self._transmit(request, None, self._limits.request_timeout_ms)

    def _epoch_returned(self, finished: Finished, now: float) -> list[SessionEffect]:
        answer = finished.answer
        if isinstance(answer, EpochBegun):
            if answer.next_sequence or answer.epoch <= self.epoch:
                return self._try_epoch_again()  # another process has written in it
            return self._epoch_begun(answer.epoch, now)
        answer = of_class(answer, Refusal, "the begin of an epoch was answered with something else")
        if answer.reason is Reason.PRODUCER_FENCED:
            return self._epoch_passed(answer)
        if answer.reason is Reason.PRODUCER_FORGOTTEN:
            self._note_forgotten(answer)
            return self._go_above()
        if finished.in_doubt or answer.applied is Applied.UNKNOWN:
            return self._pause()  # the same again does no harm: a named epoch is begun once, another is a later one
        effects: list[SessionEffect] = []
        for pending in [*self._window, *self._queue]:
            effects += self._settle(pending, answer)  # none of them is in doubt in the epoch to come
        self._window.clear()
        self._queue.clear()
        self.phase = SessionPhase.UNBORN
        return effects

    def _try_epoch_again(self) -> list[SessionEffect]:
        self._want_later_epoch()
        return self._pause()

    def _epoch_passed(self, refusal: Refusal) -> list[SessionEffect]:
        """End a session that had an epoch, for a later one has begun. One that had none goes above it: the name was in
        use before."""
        if self.epoch >= 0 or not isinstance(refusal.actual, int):
            return self.end(refusal)
        self._wanted_epoch = max(self._wanted_epoch, refusal.actual)
        return self._go_above()

    def _go_above(self) -> list[SessionEffect]:
        """Begin an epoch above the one that was wanted: at once for the first time, then after a back-off."""
        again, self._setbacks = self._setbacks > 0, self._setbacks + 1
        self._want_later_epoch()
        return self._pause() if again else [self._begin()]

    def _note_forgotten(self, refusal: Refusal) -> None:
        """Note that the next epoch is to be above those that the log has forgotten."""
        if isinstance(refusal.actual, int):
            self._wanted_epoch = max(self._wanted_epoch, refusal.actual)

    def _want_later_epoch(self) -> None:
        base = max(self.epoch, self._wanted_epoch)
        self._wanted_epoch = min(base + 1 + self._random_bits(JUMP_BITS), MAX_NUMBER)
        self._needs_epoch = True

    def _epoch_begun(self, epoch: int, now: float) -> list[SessionEffect]:
        self.epoch = epoch
        self._needs_epoch = self._lost_track = False
        self._floor = 0
        self._setbacks = 0
        self.phase = SessionPhase.OPEN
        effects: list[SessionEffect] = []
        for number, pending in enumerate(self._window):
            pending.sequence, pending.first_sent, pending.doubtful = number, None, False
            effects.append(self._send(pending, now))
        return effects + self._fill(now)

    # ------------------------------------------------------------------ sending

    def _fill(self, now: float) -> list[SessionEffect]:
        effects: list[SessionEffect] = []
        while self.phase is SessionPhase.OPEN and self._queue and self._may_number():
            pending = self._queue.popleft()
            pending.sequence = self._next_number()
            self._window.append(pending)
            effects.append(self._send(pending, now))
        return effects

    def _next_number(self) -> int:
        return max(self._floor, self._window[-1].sequence + 1) if self._window else self._floor

    def _may_number(self) -> bool:
        """Return whether the log will know all that are open again when it has written one more."""
        return not self._window or self._next_number() - self._window[0].sequence < self._limits.max_in_flight

    def _send(self, pending: OpenRequest, now: float) -> Transmit:
        if pending.first_sent is None or not pending.doubtful:
            # Nothing is left of what was sent before. A copy in doubt counts from its own sending: the log forgets by
            # that time, and would write an old copy twice (I19).
            pending.first_sent = now
        pending.under_way = True
        left_ms = max(int((pending.first_sent + self._limits.memory_s - now) * 1000), 1)
        timeout_ms = self._limits.request_timeout_ms
        stamp = ProducerStamp(self.name, self.epoch, pending.sequence)
        stamped = pending.request.stamped(stamp)
        return self._transmit(stamped, pending, min(timeout_ms, left_ms) if timeout_ms >= 0 else left_ms)

    def _transmit(self, request: WriteRecords | BeginEpoch, pending: OpenRequest | None, timeout_ms: int) -> Transmit:
        self._ticket += 1
        self._tickets[self._ticket] = pending
        return Transmit(self._ticket, request, timeout_ms)

    # ------------------------------------------------------------------ what came back

    def _written(self, pending: OpenRequest, finished: Finished) -> list[SessionEffect]:
        answer = finished.answer
        if isinstance(answer, WriteReceipt):
            self._floor = max(self._floor, pending.sequence + 1)
            self._setbacks = 0
            self._window.remove(pending)
            return self._settle(pending, answer)
        answer = of_class(answer, Refusal, "a producer's request was answered with something else")
        if answer.reason is Reason.PRODUCER_FORGOTTEN:
            # This copy was not written. Whether another one was is not known any more, and nobody can find out.
            pending.doubtful = pending.doubtful or finished.in_doubt
            self._lost_track = True
            self._note_forgotten(answer)
            self.phase = SessionPhase.DRAINING
            return []
        pending.doubtful = pending.doubtful or finished.in_doubt or answer.applied is Applied.UNKNOWN
        if answer.reason is Reason.PRODUCER_FENCED:
            self._fence = answer
        elif answer.reason is Reason.SEQUENCE_GAP:
            self._strict = True
            # A log that waits for number 0, of which it has written some, has forgotten the producer.
            self._lost_track = self._lost_track or (answer.actual == 0 and self._floor > 0)
        elif answer.reason is Reason.SEQUENCE_PASSED:
            self._window.remove(pending)  # the log has written later ones, and cannot say more
            return self._settle(pending, answer)
        elif not pending.doubtful:
            return self._refused(pending, answer)
        elif not may_pass(answer):
            self._lost_track = True
            self.phase = SessionPhase.DRAINING
            return self._settle(pending, Finished(answer, in_doubt=True).for_caller)
        self.phase = SessionPhase.DRAINING
        return []

    def _refused(self, pending: OpenRequest, refusal: Refusal) -> list[SessionEffect]:
        """Free the number of a request that was not written and never will be."""
        if self._window[-1] is not pending:
            self.phase = SessionPhase.DRAINING  # those behind it must move up
        self._window.remove(pending)
        return self._settle(pending, refusal)

    def _settle(self, pending: OpenRequest, answer: Answer) -> list[SessionEffect]:
        if pending.settled:
            return []
        pending.settled = True
        del self._keys[pending.key]
        return [Settled(pending.key, answer)]

    # ------------------------------------------------------------------ going on after a setback

    def _drained(self, now: float) -> list[SessionEffect]:
        """Go on with what is in the window, now that nothing is under way; after a back-off if that did not help
        before."""
        if self._fence is not None:
            return self.end(self._fence)
        if not self._window:
            self.phase = SessionPhase.OPEN
            return []
        if not self._setbacks:
            self._setbacks = 1
            return self._go_on(now)
        return self._pause()

    def _is_too_old(self, pending: OpenRequest, now: float) -> bool:
        sent = pending.first_sent
        return pending.doubtful and sent is not None and now - sent >= self._limits.memory_s

    def _let_go_of_doubtful(self) -> list[SessionEffect]:
        """Settle what is in doubt, and requests before one that may be written: they would come behind it."""
        effects: list[SessionEffect] = []
        behind = self._floor
        for pending in self._window:
            if pending.doubtful:
                behind = max(behind, pending.sequence + 1)
                effects += self._settle(pending, lost_refusal("whether it was written can no longer be found out"))
        for pending in self._window:
            if not pending.doubtful and pending.sequence < behind:
                message = f"requests of producer {self.name!r} behind this one may be written, and it is not"
                effects += self._settle(pending, refusal_of(WriteCancelledError(message)))
        self._window = [one for one in self._window if not one.doubtful and one.sequence >= behind]
        return effects

    def _above_hole(self) -> list[OpenRequest]:
        """Return the requests behind a number that fell out, where the log has refused a gap: it has
        not written any of them, nor will. Nothing is known by that of requests before the number."""
        hole = self._floor
        for pending in self._window:
            if pending.sequence == hole:
                hole += 1
        return [pending for pending in self._window if pending.sequence > hole] if self._strict else []

    def _pause(self) -> list[SessionEffect]:
        self.phase = SessionPhase.PAUSED
        self._setbacks += 1
        limits = self._limits
        return [BackOff(min(limits.backoff_max_ms, self._setbacks * limits.backoff_start_ms) / 1000)]

    def _decide(self, now: float) -> list[SessionEffect]:
        """Give numbers anew, or want another epoch, where the rules above ask for it."""
        effects: list[SessionEffect] = []
        if self._lost_track or any(self._is_too_old(pending, now) for pending in self._window):
            effects += self._let_go_of_doubtful()
            self._want_later_epoch()
        elif self._window and len(self._above_hole()) == len(self._window):
            if any(pending.doubtful for pending in self._window):
                # Late copies have the old numbers: given to other requests, they would be written in their stead (I19).
                self._want_later_epoch()
            else:
                for number, pending in enumerate(self._window, self._floor):
                    pending.sequence = number
        return effects

    def _go_on(self, now: float) -> list[SessionEffect]:
        effects: list[SessionEffect] = []
        if not self._needs_epoch:
            effects = self._decide(now)
        if self._needs_epoch:
            return [*effects, self._begin()]
        self.phase = SessionPhase.OPEN
        above = self._above_hole()
        effects += [self._send(pending, now) for pending in self._window if pending not in above]
        if above:
            self.phase = SessionPhase.DRAINING  # they get their numbers when those before the hole are known
        return effects + self._fill(now)

    def _reacts(self, event: SessionEvent) -> Reaction:
        reaction = SESSION_TABLE[self.phase][event]
        check(reaction is not Reaction.BUG, "a producer got an event that its phase excludes")
        return reaction

    def _acts(self, event: SessionEvent) -> bool:
        return self._reacts(event) is Reaction.ACT
