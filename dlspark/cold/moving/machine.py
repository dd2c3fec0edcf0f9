"""`UnitMachine`: what follows from what in the life of one unit. No I/O, no clock, no randomness.

Theory of operation. A unit is stored in four states (`metadata.distributedlog.cold_units`); between two of them a
worker does several things that may each fail, be lost or be overtaken. The machine has a phase for each of these
things. Its driver (`worker`) carries out the effects that `step` returns, one after the other, and reports the result
of the last one as an event:

    PLANNED ── Begin ──> STARTED ── Copy ──> COPIED ── ReadBack ──> VERIFIED ── Finish ──> FINISHED
                            ^                  |                       |  ^
                            |                  |                    Look  | (still ours: again)
                         Retry <── failed ─────┘                       v  |
                            |                                        LOOKING ──> LOST, FINISHED
                         (too often) ── Abandon ──> LEFT

    FINISHED  ── Head ──> HEADED ── DeleteHot ──> HOT_DELETED ── SweepLedgers ──> RESTING
    DOOMED    ── BeginColdDelete ──> COLD_DELETE_STARTED ── DeleteObject ──> OBJECT_GONE ── EndColdDelete ──> GONE

Rules that the table keeps, whatever fails:

* Only what was read back is finished, and the hot copies go only after the object was asked for once more.
* A try that failed never becomes a file: another try has another id, so another object. The object of a failed try is
  deleted only once its attempt is withdrawn, or has another id: until then a request that is still on its way could
  finish it.
* After an answer that was lost the machine looks at what is stored, and never repeats blindly.
* What another worker has taken over is left alone: LOST. All that is touched then is the object that has our own id in
  its name; no one else ever names that.
* Where the log is not there, or is another one by now, nothing of it is deleted: LEFT. A rename takes the marks along.
* A deletion that was begun is only ever carried on.

Any other pair of phase and event breaks an invariant of ours, and is raised as such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from metadata.foundation.errors import InvariantViolation

MAX_TRIES: Final = 3
"""Copies of one unit in one pass; then its attempt is withdrawn, and the next pass plans anew."""
MAX_LOOKS: Final = 8
"""How often a finish that was disturbed is looked at and done again."""


class Phase(Enum):
    """Where is a unit between its plan and its end?"""

    PLANNED = "planned"
    STARTED = "started"
    COPIED = "copied"
    VERIFIED = "verified"
    LOOKING = "looking"
    WITHDRAWING = "withdrawing"
    SEARCHING = "searching"
    FINISHED = "finished"
    HEADED = "headed"
    HOT_DELETED = "hot deleted"
    RESTING = "resting"
    DOOMED = "doomed"
    COLD_DELETE_STARTED = "cold delete started"
    OBJECT_GONE = "object gone"
    GONE = "gone"
    LEFT = "left"
    LOST = "lost"


ENDS: Final = frozenset((Phase.RESTING, Phase.GONE, Phase.LEFT, Phase.LOST))
"""Phases in which nothing follows any more."""


class Effect(Enum):
    """What is the driver to do?"""

    BEGIN = "note an attempt"
    RETRY = "note another id in the attempt"
    COPY = "copy the segments into an object, with its whole content on the store when it ends"
    READ_BACK = "read the object back and compare"
    FINISH = "make the unit"
    LOOK = "read what is stored of the attempt and of the unit"
    WITHDRAW = "take the attempt away"
    DISCARD = "delete the object of the failed try, as far as that can be done; its errors are no event"
    HEAD = "ask for the object's size"
    DELETE_HOT = "take the segments off the list and note their ledgers"
    SWEEP_LEDGERS = "delete the noted ledgers"
    BEGIN_COLD_DELETE = "note that the unit goes"
    DELETE_OBJECT = "delete the unit's object"
    END_COLD_DELETE = "take the unit's znode away"


class Event(Enum):
    """What has happened with the last effect?"""

    PLAN = "the run is due"
    HOT_DUE = "the hot copies are due"
    COLD_DUE = "the file is due"
    DELETION_FOUND = "a deletion was begun before"
    DONE = "it is done"
    WRONG = "what was read back is not what was written, or the object is not there as it must be"
    FAILED = "it was not done; it may be tried again"
    REFUSED = "it was not done, and trying again now does not help"
    MOVED = "what it depends on has changed meanwhile; nothing was done"
    UNKNOWN = "it may be done or not"
    FOUND_UNIT = "the unit is there, made by this attempt"
    FOUND_ATTEMPT = "the attempt is there, with this id"
    FOUND_OTHER = "neither, and it is still the same log: another worker has taken over"


Effects: TypeAlias = tuple[Effect, ...]


@dataclass(frozen=True, slots=True)
class UnitMachine:
    """A unit's phase, and how often it was tried. Frozen: `step` returns the next one."""

    phase: Phase
    tries: int = 1
    looks: int = 0

    @property
    def ended(self) -> bool:
        """Whether nothing follows."""
        return self.phase in ENDS

    def step(self, event: Event) -> tuple[UnitMachine, Effects]:
        """Return the machine after an event, and what to do now: in order, each only if the one before ended well,
        except DISCARD, whose end does not matter. Raises InvariantViolation for an event that cannot be.
        """
        handler = TABLE.get((self.phase, event))
        if handler is None:
            raise InvariantViolation(f"a unit that is {self.phase.value} cannot learn that {event.value}")
        return handler(self)


Handler: TypeAlias = Callable[[UnitMachine], tuple[UnitMachine, Effects]]


def _to(phase: Phase, *effects: Effect) -> Handler:
    return lambda machine: (UnitMachine(phase, machine.tries, machine.looks), effects)


def _try_again(machine: UnitMachine) -> tuple[UnitMachine, Effects]:
    """Copy again under another id, or give up after MAX_TRIES."""
    if machine.tries >= MAX_TRIES:
        return _withdraw(machine)
    # RETRY first: once the attempt has another id, nothing can finish the old object any more.
    return UnitMachine(Phase.STARTED, machine.tries + 1), (Effect.RETRY, Effect.DISCARD, Effect.COPY)


def _withdraw(machine: UnitMachine) -> tuple[UnitMachine, Effects]:
    return UnitMachine(Phase.WITHDRAWING, machine.tries, machine.looks), (Effect.WITHDRAW,)


def _look(machine: UnitMachine) -> tuple[UnitMachine, Effects]:
    if machine.looks >= MAX_LOOKS:
        # It stays as it is stored: whoever looks next finds an attempt, or a unit, and goes on from there.
        return UnitMachine(Phase.LEFT, machine.tries, machine.looks), ()
    return UnitMachine(Phase.LOOKING, machine.tries, machine.looks + 1), (Effect.LOOK,)


TABLE: Final[Mapping[tuple[Phase, Event], Handler]] = {
    # ---- into the file
    (Phase.PLANNED, Event.PLAN): _to(Phase.STARTED, Effect.BEGIN, Effect.COPY),
    (Phase.STARTED, Event.DONE): _to(Phase.COPIED, Effect.READ_BACK),
    (Phase.STARTED, Event.FAILED): _try_again,
    (Phase.STARTED, Event.WRONG): _try_again,
    (Phase.STARTED, Event.REFUSED): _withdraw,
    # BEGIN or RETRY did not happen because the log is not as it was planned: nothing of ours is stored under this id.
    (Phase.STARTED, Event.MOVED): _to(Phase.LOST),
    # BEGIN or RETRY may have happened: the next pass finds the attempt, if it did. No byte was written under its id.
    (Phase.STARTED, Event.UNKNOWN): _to(Phase.LEFT),
    (Phase.COPIED, Event.DONE): _to(Phase.VERIFIED, Effect.FINISH),
    (Phase.COPIED, Event.FAILED): _try_again,
    (Phase.COPIED, Event.WRONG): _try_again,
    (Phase.COPIED, Event.REFUSED): _withdraw,
    (Phase.VERIFIED, Event.DONE): _to(Phase.RESTING),
    (Phase.VERIFIED, Event.FAILED): _look,
    (Phase.VERIFIED, Event.REFUSED): _withdraw,
    (Phase.VERIFIED, Event.MOVED): _look,
    (Phase.VERIFIED, Event.UNKNOWN): _look,
    (Phase.LOOKING, Event.FOUND_UNIT): _to(Phase.RESTING),
    (Phase.LOOKING, Event.FOUND_ATTEMPT): _to(Phase.VERIFIED, Effect.FINISH),
    (Phase.LOOKING, Event.FOUND_OTHER): _to(Phase.LOST, Effect.DISCARD),
    (Phase.LOOKING, Event.FAILED): _look,
    (Phase.LOOKING, Event.REFUSED): _to(Phase.LEFT),
    (Phase.WITHDRAWING, Event.DONE): _to(Phase.LEFT, Effect.DISCARD),
    # Moved: the attempt is another worker's, or a unit. So our object is dead, unless it is the unit's: look.
    (Phase.WITHDRAWING, Event.MOVED): _to(Phase.SEARCHING, Effect.LOOK),
    (Phase.WITHDRAWING, Event.FAILED): _to(Phase.LEFT),
    (Phase.WITHDRAWING, Event.REFUSED): _to(Phase.LEFT),
    (Phase.WITHDRAWING, Event.UNKNOWN): _to(Phase.LEFT),
    (Phase.SEARCHING, Event.FOUND_UNIT): _to(Phase.RESTING),
    # What is given up may not have been read back, so it is not finished after all: the next pass gives it up.
    (Phase.SEARCHING, Event.FOUND_ATTEMPT): _to(Phase.LEFT),
    (Phase.SEARCHING, Event.FOUND_OTHER): _to(Phase.LOST, Effect.DISCARD),
    (Phase.SEARCHING, Event.FAILED): _to(Phase.LEFT),
    (Phase.SEARCHING, Event.REFUSED): _to(Phase.LEFT),
    # ---- the hot copies
    (Phase.FINISHED, Event.HOT_DUE): _to(Phase.HEADED, Effect.HEAD),
    (Phase.HEADED, Event.DONE): _to(Phase.HOT_DELETED, Effect.DELETE_HOT, Effect.SWEEP_LEDGERS),
    (Phase.HEADED, Event.WRONG): _to(Phase.LEFT),
    (Phase.HEADED, Event.FAILED): _to(Phase.LEFT),
    (Phase.HEADED, Event.REFUSED): _to(Phase.LEFT),
    (Phase.HOT_DELETED, Event.DONE): _to(Phase.RESTING),
    (Phase.HOT_DELETED, Event.FAILED): _to(Phase.LEFT),
    (Phase.HOT_DELETED, Event.REFUSED): _to(Phase.LEFT),
    (Phase.HOT_DELETED, Event.MOVED): _to(Phase.LOST),
    (Phase.HOT_DELETED, Event.UNKNOWN): _to(Phase.LEFT),
    # ---- the file
    (Phase.DOOMED, Event.COLD_DUE): _to(Phase.COLD_DELETE_STARTED, Effect.BEGIN_COLD_DELETE, Effect.DELETE_OBJECT),
    (Phase.DOOMED, Event.DELETION_FOUND): _to(Phase.COLD_DELETE_STARTED, Effect.DELETE_OBJECT),
    (Phase.COLD_DELETE_STARTED, Event.DONE): _to(Phase.OBJECT_GONE, Effect.END_COLD_DELETE),
    (Phase.COLD_DELETE_STARTED, Event.FAILED): _to(Phase.LEFT),
    (Phase.COLD_DELETE_STARTED, Event.REFUSED): _to(Phase.LEFT),
    (Phase.COLD_DELETE_STARTED, Event.MOVED): _to(Phase.LOST),
    (Phase.COLD_DELETE_STARTED, Event.UNKNOWN): _to(Phase.LEFT),
    (Phase.OBJECT_GONE, Event.DONE): _to(Phase.GONE),
    (Phase.OBJECT_GONE, Event.FAILED): _to(Phase.LEFT),
    (Phase.OBJECT_GONE, Event.REFUSED): _to(Phase.LEFT),
    (Phase.OBJECT_GONE, Event.MOVED): _to(Phase.LOST),
    (Phase.OBJECT_GONE, Event.UNKNOWN): _to(Phase.LEFT),
}
