"""A producer and its requests among proxies that crash, lose answers, refuse, and lose the log without noticing.

Every acknowledged record is in the log once and in order, what was refused is not in it, and nothing gets stuck.
"""

from __future__ import annotations

import random

import pytest
from helpers.serving.model_fleet import ADDRESSES, ModelClient
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dlspark.serving.protocol.operations import Applied, Refusal, StatusCode, WriteReceipt

INDEX = st.integers(0, 30)
RARELY = st.integers(0, 7)
"""0: it happens."""
ALL_REFUSALS = (
    Refusal(StatusCode.OVER_CAPACITY, "too much", error="OverCapacityError"),
    Refusal(StatusCode.SERVICE_UNAVAILABLE, "stopping"),
    Refusal(StatusCode.STREAM_UNAVAILABLE, "failed lately"),
    Refusal(StatusCode.STREAM_NOT_READY, "starting a segment"),
    Refusal(StatusCode.ILLEGAL_STATE, "moved on", error="ConditionError"),
    Refusal(StatusCode.REQUEST_DENIED, "denied", applied=Applied.WRONG, error="RequestDeniedError"),
    Refusal(StatusCode.BK_TRANSMIT_ERROR, "not acknowledged", applied=Applied.UNKNOWN, error="TransmitError"),
)
REFUSALS = st.sampled_from(ALL_REFUSALS)


class ProducerFleet(RuleBasedStateMachine):
    """Any order of events."""

    @initialize(gaps_allowed=st.booleans())
    def begin(self, gaps_allowed: bool) -> None:
        self.client = ModelClient(gaps_allowed=gaps_allowed)

    @rule(count=st.integers(1, 4))
    def submit(self, count: int) -> None:
        for _ in range(count):
            self.client.submit()

    @precondition(lambda self: self.client.submitted)
    @rule(index=INDEX)
    def give_up(self, index: int) -> None:
        self.client.give_up(self.client.submitted - 1 - index % self.client.submitted)

    @precondition(lambda self: self.client.asked)
    @rule(index=INDEX)
    def deliver(self, index: int) -> None:
        self.client.deliver(index)

    @precondition(lambda self: self.client.asked)
    @rule(count=st.integers(1, 5))
    def deliver_in_order(self, count: int) -> None:
        for _ in range(min(count, len(self.client.asked))):
            self.client.deliver(0)

    @precondition(lambda self: self.client.asked)
    @rule(index=INDEX, refusal=REFUSALS)
    def refuse(self, index: int, refusal: Refusal) -> None:
        self.client.deliver(index, refusal=refusal)

    @precondition(lambda self: self.client.told)
    @rule(index=INDEX)
    def answer(self, index: int) -> None:
        self.client.answer(index)

    @precondition(lambda self: self.client.told)
    @rule()
    def answer_all(self) -> None:
        for _ in range(len(self.client.told)):
            if self.client.told:
                self.client.answer(0)

    @precondition(lambda self: self.client.waiting)
    @rule(index=INDEX)
    def lose(self, index: int) -> None:
        waiting = list(self.client.waiting)
        self.client.lose(*waiting[index % len(waiting)])

    @precondition(lambda self: self.client.waiting)
    @rule(address=st.sampled_from(ADDRESSES))
    def lose_connection(self, address: str) -> None:
        for key, asked in list(self.client.waiting.items()):
            if asked == address:
                self.client.lose(*key)

    @precondition(lambda self: self.client.waiting)
    @rule(index=INDEX)
    def be_silent(self, index: int) -> None:
        waiting = list(self.client.waiting)
        self.client.be_silent(*waiting[index % len(waiting)])

    @precondition(lambda self: self.client.timers)
    @rule(index=INDEX)
    def fire(self, index: int) -> None:
        self.client.now += 0.1
        self.client.fire(index)

    @rule(aware=st.booleans(), chance=RARELY)
    def depose(self, aware: bool, chance: int) -> None:
        if not chance:
            self.client.log.depose(aware=aware)

    @rule(address=st.sampled_from(ADDRESSES), chance=RARELY)
    def crash(self, address: str, chance: int) -> None:
        if not chance:
            self.client.log.stop(address)

    @rule(address=st.sampled_from(ADDRESSES))
    def restart(self, address: str) -> None:
        self.client.log.up.add(address)

    @rule(chance=RARELY)
    def pass_deadlines(self, chance: int) -> None:
        if not chance:
            self.client.pass_deadlines()

    @rule(chance=RARELY)
    def be_forgotten(self, chance: int) -> None:
        if not chance:
            self.client.sleep_until_forgotten()

    @rule(chance=RARELY)
    def lose_knowledge(self, chance: int) -> None:
        if not chance:
            self.client.log.forget()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "client"):
            self.client.check()

    def teardown(self) -> None:
        if hasattr(self, "client"):
            self.client.settle_down()
            self.client.check()


TestProducerFleet = ProducerFleet.TestCase
TestProducerFleet.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize("gaps_allowed", [False, True])
def test_without_faults_each_record_is_written_once_in_order(gaps_allowed: bool) -> None:
    client = ModelClient(gaps_allowed=gaps_allowed)
    for _ in range(40):
        client.submit()
    client.settle_down()
    client.check()
    assert client.log.payloads == [b"%d" % number for number in range(40)]
    assert all(isinstance(answer, WriteReceipt) for answer in client.settled.values())


WEIGHTS = {
    "submit": 12.0,
    "give_up": 1.0,
    "deliver": 30.0,
    "refuse": 8.0,
    "answer": 40.0,
    "lose": 6.0,
    "be_silent": 2.0,
    "fire": 20.0,
    "depose": 0.4,
    "crash": 0.3,
    "restart": 3.0,
    "pass_deadlines": 0.3,
    "sleep": 0.1,
    "forget": 0.3,
}
"""How often each happens on a walk: often enough for late copies to meet what came after them."""
WALKS, STEPS = 150, 400


def step(client: ModelClient, chance: random.Random, refusals: list[Refusal]) -> None:
    """Let one thing happen, if it can."""
    (what,) = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
    if what == "submit" and len(client.session) < 12:
        client.submit()
    elif what == "give_up" and client.submitted:
        client.give_up(client.submitted - 1 - chance.randrange(min(client.submitted, 8)))
    elif what == "deliver" and client.asked:
        client.deliver(chance.choice((0, chance.randrange(len(client.asked)))))
    elif what == "refuse" and client.asked:
        client.deliver(chance.randrange(len(client.asked)), refusal=chance.choice(refusals))
    elif what == "answer" and client.told:
        client.answer(chance.choice((0, chance.randrange(len(client.told)))))
    elif what in ("lose", "be_silent") and client.waiting:
        key = chance.choice(list(client.waiting))
        (client.lose if what == "lose" else client.be_silent)(*key)
    elif what == "fire" and client.timers:
        client.now += 0.1
        client.fire(chance.randrange(len(client.timers)))
    elif what == "depose":
        client.log.depose(aware=chance.random() < 0.5)
    elif what == "crash":
        client.log.stop(chance.choice(ADDRESSES))
    elif what == "restart":
        client.log.up.add(chance.choice(ADDRESSES))
    elif what == "pass_deadlines":
        client.pass_deadlines()
    elif what == "sleep":
        client.sleep_until_forgotten()
    elif what == "forget":
        client.log.forget()


@pytest.mark.parametrize("gaps_allowed", [False, True])
def test_long_walks_of_seeded_chance(request: pytest.FixtureRequest, gaps_allowed: bool) -> None:
    first = request.config.getoption("--seed")
    rounds = 1 if first is not None else request.config.getoption("--rounds") or WALKS
    for seed in range(first or 0, (first or 0) + rounds):
        walk(seed, gaps_allowed)


def walk(seed: int, gaps_allowed: bool) -> None:
    """One walk; each has refusals of its own, so that on some a request is never refused for good."""
    chance = random.Random(seed)
    refusals = chance.sample(ALL_REFUSALS, chance.randrange(1, len(ALL_REFUSALS)))
    client = ModelClient(gaps_allowed=gaps_allowed, only_user=chance.random() < 0.8)
    try:
        for _ in range(STEPS):
            step(client, chance, refusals)
        client.settle_down()
        client.check()
    except AssertionError as error:
        raise AssertionError(f"walk {seed}: {error}") from error
