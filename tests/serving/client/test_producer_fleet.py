"""A producer and its requests among proxies that crash, lose answers, refuse, and lose the log without noticing.

Every acknowledged record is in the log once and in order, what was refused is not in it, and nothing gets stuck.
"""

from __future__ import annotations

import pytest
from helpers.model_fleet import ADDRESSES, ModelClient
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dlspark.serving.protocol.operations import Applied, Refusal, StatusCode, WriteReceipt

INDEX = st.integers(0, 30)
RARELY = st.integers(0, 7)
"""0: it happens."""
REFUSALS = st.sampled_from(
    (
        Refusal(StatusCode.OVER_CAPACITY, "too much", error="OverCapacityError"),
        Refusal(StatusCode.SERVICE_UNAVAILABLE, "stopping"),
        Refusal(StatusCode.STREAM_UNAVAILABLE, "failed lately"),
        Refusal(StatusCode.STREAM_NOT_READY, "starting a segment"),
        Refusal(StatusCode.ILLEGAL_STATE, "moved on", error="ConditionError"),
        Refusal(StatusCode.REQUEST_DENIED, "denied", applied=Applied.WRONG, error="RequestDeniedError"),
        Refusal(StatusCode.BK_TRANSMIT_ERROR, "not acknowledged", applied=Applied.UNKNOWN, error="TransmitError"),
    )
)


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
