"""The machine of a unit: every pair of phase and event, and what must hold on every way through it."""

from __future__ import annotations

import random

import pytest

from dlspark.cold.moving.machine import ENDS, MAX_LOOKS, MAX_TRIES, TABLE, Effect, Event, Phase, UnitMachine
from metadata.foundation.errors import InvariantViolation

BEGINNINGS = {
    Phase.PLANNED: (Event.PLAN,),
    Phase.FINISHED: (Event.HOT_DUE,),
    Phase.DOOMED: (Event.COLD_DUE, Event.DELETION_FOUND),
}


@pytest.mark.parametrize("phase", list(Phase), ids=lambda phase: phase.name)
@pytest.mark.parametrize("event", list(Event), ids=lambda event: event.name)
def test_every_pair_is_in_the_table_or_breaks_an_invariant(phase, event):
    machine = UnitMachine(phase)
    if (phase, event) in TABLE:
        after, effects = machine.step(event)
        assert after.ended or effects, "a machine that goes on has something to do, whose result it waits for"
    else:
        with pytest.raises(InvariantViolation):
            machine.step(event)


def test_nothing_follows_an_end():
    assert not [pair for pair in TABLE if pair[0] in ENDS]


def _answers(phase: Phase) -> list[Event]:
    return [event for one, event in TABLE if one is phase]


def _walk(phase: Phase, event: Event, rng: random.Random) -> tuple[Phase, list[tuple[Phase, Effect]]]:
    """Return the end of one way through the machine, and its effects with the phase that asked for them."""
    machine = UnitMachine(phase)
    done: list[tuple[Phase, Effect]] = []
    for _ in range(200):
        machine, effects = machine.step(event)
        done += [(machine.phase, one) for one in effects]
        if machine.ended:
            return machine.phase, done
        event = rng.choice(_answers(machine.phase))
    raise AssertionError("it does not end")


@pytest.mark.parametrize("seed", range(40))
def test_every_way_ends_and_keeps_the_rules(seed):
    rng = random.Random(seed)
    for _ in range(50):
        phase = rng.choice(list(BEGINNINGS))
        end, done = _walk(phase, rng.choice(BEGINNINGS[phase]), rng)
        effects = [one for _, one in done]
        assert end in ENDS
        assert effects.count(Effect.COPY) <= MAX_TRIES
        assert effects.count(Effect.LOOK) <= MAX_LOOKS
        for at, one in enumerate(effects):
            before = effects[:at]
            if one is Effect.FINISH:
                assert Effect.READ_BACK in before, "only what was read back is finished"
                assert before[::-1].index(Effect.READ_BACK) < (
                    before[::-1].index(Effect.COPY) if Effect.COPY in before else at
                ), "and it was this very copy"
            if one is Effect.DELETE_HOT:
                assert Effect.HEAD in before
            if one is Effect.DISCARD:
                assert before[-1] in (Effect.RETRY, Effect.WITHDRAW, Effect.LOOK), "its attempt is dead by then"
            if one is Effect.END_COLD_DELETE:
                assert Effect.DELETE_OBJECT in before


def test_the_straight_ways():
    def straight(phase, event):
        machine, done = UnitMachine(phase), []
        while True:
            machine, effects = machine.step(event)
            done += effects
            if machine.ended:
                return machine.phase, done
            event = Event.DONE

    assert straight(Phase.PLANNED, Event.PLAN) == (
        Phase.RESTING,
        [Effect.BEGIN, Effect.COPY, Effect.READ_BACK, Effect.FINISH],
    )
    assert straight(Phase.FINISHED, Event.HOT_DUE) == (
        Phase.RESTING,
        [Effect.HEAD, Effect.DELETE_HOT, Effect.SWEEP_LEDGERS],
    )
    assert straight(Phase.DOOMED, Event.COLD_DUE) == (
        Phase.GONE,
        [Effect.BEGIN_COLD_DELETE, Effect.DELETE_OBJECT, Effect.END_COLD_DELETE],
    )


def test_a_copy_that_keeps_failing_is_given_up_with_its_attempt():
    machine, effects = UnitMachine(Phase.PLANNED).step(Event.PLAN)
    done = list(effects)
    while not machine.ended:
        machine, effects = machine.step(Event.FAILED if machine.phase is Phase.STARTED else Event.DONE)
        done += effects
    assert machine.phase is Phase.LEFT
    assert done.count(Effect.COPY) == MAX_TRIES
    assert done[-2:] == [Effect.WITHDRAW, Effect.DISCARD]
