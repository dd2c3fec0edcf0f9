"""A producer's session: which number a request gets, and what becomes of those behind one that fell out."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.producer_records import KEPT
from dlspark.serving.client.producers import SESSION_TABLE, ProducerSession, SessionEvent, SessionPhase
from dlspark.serving.client.requests import BackOff, Finished
from dlspark.serving.client.write_sessions import MAX_QUEUED, SessionEffect, SessionLimits, Settled, Transmit
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
from metadata.foundation.errors import InvariantViolation
from storage_node.protocol.tables import Reaction

RECEIPT = WriteReceipt(DLSN(1, 0, 1), 1)
LOST = Refusal(StatusCode.INTERNAL_SERVER_ERROR, "lost", applied=Applied.UNKNOWN, error="ProxyLostError")
TOO_MUCH = Refusal(StatusCode.OVER_CAPACITY, "too much", error="OverCapacityError")
DENIED = Refusal(StatusCode.REQUEST_DENIED, "denied", applied=Applied.WRONG, error="RequestDeniedError")
FENCED = Refusal(StatusCode.LOCKING_EXCEPTION, "fenced", error="ProducerFencedError")
FORGOTTEN = Refusal(
    StatusCode.TRANSACTION_OUT_OF_ORDER, "forgotten", applied=Applied.UNKNOWN, error="ProducerForgottenError"
)
PASSED = Refusal(StatusCode.TRANSACTION_OUT_OF_ORDER, "passed", applied=Applied.UNKNOWN, error="SequencePassedError")


def gap(expected: int) -> Refusal:
    return Refusal(StatusCode.TRANSACTION_OUT_OF_ORDER, "too early", error="SequenceGapError", actual=expected)


class Session:
    """A session whose requests are answered by hand. Keys are numbers, in the order of submission."""

    def __init__(self, *, begun: bool = True, only_user: bool = True, **limits: float) -> None:
        self.session = ProducerSession(
            "s", "p", random_bits=lambda bits: 100, only_user=only_user, limits=SessionLimits(**limits)
        )
        self.now = 0.0
        self.sent: dict[int, Transmit] = {}
        """What is under way, by ticket."""
        self.settled: dict[object, Answer] = {}
        self.pauses = 0
        self.submitted = 0
        if begun:
            self.submit()
            self.answer_epoch(EpochBegun(0))

    def take(self, effects: list[SessionEffect]) -> list[SessionEffect]:
        for effect in effects:
            if isinstance(effect, Transmit):
                self.sent[effect.ticket] = effect
            elif isinstance(effect, Settled):
                assert effect.key not in self.settled
                self.settled[effect.key] = effect.answer
            else:
                assert isinstance(effect, BackOff)
                self.pauses += 1
        return effects

    def submit(self, count: int = 1) -> None:
        for _ in range(count):
            request = WriteRecords("s", (b"%d" % self.submitted,), atomic=True)
            self.take(self.session.submit(self.submitted, request, self.now))
            self.submitted += 1

    @property
    def numbers(self) -> list[tuple[int, int, int]]:
        """Epoch, number and record of each write under way, in the order in which they were sent."""
        found = []
        for _, transmit in sorted(self.sent.items()):
            assert isinstance(transmit.request, WriteRecords)
            stamp = transmit.request.stamp
            assert stamp is not None
            found.append((stamp.epoch, stamp.sequence, int(bytes(transmit.request.payloads[0]))))
        return found

    def answer(self, record: int, answer: Answer, *, in_doubt: bool = False) -> None:
        ticket = next(
            ticket
            for ticket, one in self.sent.items()
            if isinstance(one.request, WriteRecords) and one.request.payloads == (b"%d" % record,)
        )
        del self.sent[ticket]
        self.take(self.session.returned(ticket, Finished(answer, in_doubt), self.now))

    def epoch_asked(self) -> int | None:
        (transmit,) = self.sent.values()
        assert isinstance(transmit.request, BeginEpoch)
        return transmit.request.epoch

    def answer_epoch(self, answer: Answer, *, in_doubt: bool = False) -> None:
        (ticket,) = self.sent
        assert isinstance(self.sent.pop(ticket).request, BeginEpoch)
        self.take(self.session.returned(ticket, Finished(answer, in_doubt), self.now))

    def resume(self) -> None:
        assert self.session.phase is SessionPhase.PAUSED
        self.now += 1.0
        self.take(self.session.resumed(self.now))

    def outcome(self, key: int) -> Applied:
        answer = self.settled[key]
        assert isinstance(answer, Refusal)
        return answer.applied


# ---------------------------------------------------------------------- the table


def reach(phase: SessionPhase) -> Session:
    if phase in (SessionPhase.UNBORN, SessionPhase.BEGINNING):
        session = Session(begun=False)
        if phase is SessionPhase.BEGINNING:
            session.submit()
        return session
    session = Session()
    session.submit()
    if phase is SessionPhase.DRAINING:
        session.answer(0, LOST)
    elif phase is SessionPhase.PAUSED:
        for _ in range(2):
            session.answer(0, LOST)
            session.answer(1, gap(0))
    elif phase is SessionPhase.ENDED:
        session.take(session.session.end(DENIED))
    return session


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(SessionPhase, SessionEvent)))
def test_every_event_in_every_phase(phase: SessionPhase, event: SessionEvent) -> None:
    world = reach(phase)
    session = world.session
    assert session.phase is phase
    tickets = {isinstance(one.request, BeginEpoch): ticket for ticket, one in world.sent.items()}
    acts = {
        SessionEvent.SUBMIT: lambda: session.submit("new", WriteRecords("s", (b"x",)), 0.0),
        SessionEvent.GIVEN_UP: lambda: session.give_up(1 if session.phase is not SessionPhase.BEGINNING else 0, 0.0),
        SessionEvent.WRITTEN: lambda: session.returned(tickets.get(False, 99), Finished(RECEIPT), 0.0),
        SessionEvent.BEGUN: lambda: session.returned(tickets.get(True, 99), Finished(EpochBegun(0)), 0.0),
        SessionEvent.RESUMED: lambda: session.resumed(0.0),
    }
    reaction = SESSION_TABLE[phase][event]
    if reaction is Reaction.BUG:
        with pytest.raises(InvariantViolation):
            acts[event]()
    elif reaction is Reaction.IGNORE:
        assert acts[event]() == []
    elif reaction is Reaction.REFUSE:
        assert acts[event]() == [Settled("new", DENIED)]
    else:
        before = (session.phase, len(session))
        assert acts[event]() or (session.phase, len(session)) != before


# ---------------------------------------------------------------------- numbers


def test_numbers_are_given_in_order_when_requests_are_sent() -> None:
    world = Session(begun=False)
    world.submit(8)
    assert world.epoch_asked() == 0, "the name is nobody else's"
    world.answer_epoch(EpochBegun(0))
    assert world.numbers == [(0, number, number) for number in range(KEPT)]
    assert not world.session.has_room
    world.answer(1, RECEIPT)
    assert len(world.numbers) == KEPT - 1, "the log would not know request 0 again behind a sixth"
    world.answer(0, RECEIPT)
    assert world.numbers == [(0, number, number) for number in range(2, 7)]
    assert world.settled == {0: RECEIPT, 1: RECEIPT}


def test_a_name_that_others_may_have_begins_an_epoch_by_its_number_and_above_what_there_is() -> None:
    """ "The next one", sent twice, would be two: the second would shut out who has the first."""
    world = Session(begun=False, only_user=False)
    world.submit()
    assert world.epoch_asked() == 100
    world.answer_epoch(replace(FENCED, actual=7_000))
    assert world.epoch_asked() == 7_101
    world.answer_epoch(replace(FENCED, actual=8_000))
    assert world.pauses == 1
    world.resume()
    assert world.epoch_asked() == 8_101
    world.answer_epoch(EpochBegun(8_101))
    assert world.numbers == [(8_101, 0, 0)]
    world.answer(0, replace(FENCED, actual=9_000))
    assert world.session.phase is SessionPhase.ENDED, "another one has begun since"
    assert world.session.has_room, "what comes is refused at once, and does not wait"
    world.submit()
    assert world.settled[1] == replace(FENCED, actual=9_000)


def test_one_that_came_too_early_is_sent_again_in_order_when_all_have_come_back() -> None:
    world = Session()
    world.submit(3)
    world.answer(2, gap(0))
    world.answer(3, gap(0))
    world.answer(1, gap(0))
    assert world.numbers == [(0, 0, 0)], "nothing is sent while one is under way"
    world.answer(0, RECEIPT)
    assert world.numbers == [(0, 1, 1), (0, 2, 2), (0, 3, 3)]


def test_one_in_doubt_is_sent_again_under_its_number_until_it_is_known() -> None:
    world = Session()
    world.submit()
    world.answer(0, LOST)
    world.answer(1, LOST)
    assert world.numbers == [(0, 0, 0), (0, 1, 1)]
    world.answer(0, TOO_MUCH)
    assert 0 not in world.settled, "an earlier copy may be written"
    world.answer(1, LOST)
    assert world.pauses == 1
    world.resume()
    assert world.numbers == [(0, 0, 0), (0, 1, 1)]
    world.answer(0, WriteReceipt(None, 1, repeated=True))
    world.answer(1, RECEIPT)
    assert world.session.is_idle


def test_the_number_of_one_that_was_refused_goes_to_the_next() -> None:
    world = Session()
    world.answer(0, TOO_MUCH)
    world.submit()
    assert world.numbers == [(0, 0, 1)]
    assert world.outcome(0) is Applied.NO


def test_those_behind_one_that_was_refused_move_up() -> None:
    world = Session()
    world.submit(2)
    world.answer(0, TOO_MUCH)
    world.answer(1, gap(0))
    world.answer(2, gap(0))
    assert world.numbers == [(0, 0, 1), (0, 1, 2)]


def test_those_behind_it_move_up_in_a_new_epoch_where_late_copies_may_come() -> None:
    world = Session()
    world.submit(2)
    world.answer(0, TOO_MUCH)
    world.answer(1, LOST)
    world.answer(2, gap(0))
    assert world.epoch_asked() == 101, "above the old one, by a number that nobody else draws"
    world.answer_epoch(EpochBegun(101))
    assert world.numbers == [(101, 0, 1), (101, 1, 2)]


def test_what_is_in_doubt_before_a_number_that_fell_out_is_found_out_first() -> None:
    world = Session()
    world.submit(2)
    world.answer(1, TOO_MUCH)
    world.answer(2, gap(1))
    world.answer(0, TOO_MUCH, in_doubt=True)
    assert world.numbers == [(0, 0, 0)], "it may be written"
    world.answer(0, WriteReceipt(DLSN(1, 0, 1), 1, repeated=True))
    assert world.numbers == [(0, 1, 2)]


def test_behind_one_that_was_refused_they_keep_their_numbers_until_a_gap_was_refused() -> None:
    world = Session()
    world.submit(2)
    world.answer(0, TOO_MUCH)
    world.answer(1, LOST)
    world.answer(2, RECEIPT)
    assert world.numbers == [(0, 1, 1)], "the log allows gaps"
    world.answer(1, PASSED)
    assert world.outcome(1) is Applied.UNKNOWN
    world.submit()
    assert world.numbers == [(0, 3, 3)]


# ---------------------------------------------------------------------- callers that give up


def test_one_that_was_never_sent_is_taken_out_of_the_line() -> None:
    world = Session()
    world.submit(6)
    world.take(world.session.give_up(5, 0.0))
    assert world.outcome(5) is Applied.NO
    for record in range(5):
        world.answer(record, RECEIPT)
    assert world.numbers == [(0, 5, 6)]


def test_one_that_was_sent_goes_on_without_its_caller_and_leaves_no_gap() -> None:
    world = Session()
    world.submit()
    world.take(world.session.give_up(0, 0.0))
    assert world.outcome(0) is Applied.UNKNOWN
    world.answer(0, LOST)
    world.answer(1, gap(0))
    assert world.numbers == [(0, 0, 0), (0, 1, 1)]
    world.answer(0, RECEIPT)
    assert isinstance(world.settled[0], Refusal), "its caller has its answer"
    assert world.take(world.session.give_up(0, 0.0)) == []


# ---------------------------------------------------------------------- epochs


def test_a_producer_that_was_forgotten_goes_on_in_a_new_epoch() -> None:
    world = Session()
    world.answer(0, RECEIPT)
    world.submit(2)
    world.answer(1, gap(0))
    world.answer(2, gap(0))
    assert world.epoch_asked() == 101
    world.answer_epoch(EpochBegun(101))
    assert world.numbers == [(101, 0, 1), (101, 1, 2)]


def test_what_is_in_doubt_when_the_producer_was_forgotten_is_not_written_again() -> None:
    world = Session()
    world.answer(0, RECEIPT)
    world.submit(2)
    world.answer(1, LOST)
    world.answer(2, gap(0))
    assert world.outcome(1) is Applied.UNKNOWN
    world.answer_epoch(EpochBegun(101))
    assert world.numbers == [(101, 0, 2)]


def test_what_the_log_has_forgotten_is_written_above_it_where_it_was_never_sent_before() -> None:
    world = Session()
    world.answer(0, RECEIPT)
    world.submit(4)
    world.answer(1, FORGOTTEN)
    world.answer(2, LOST)
    world.answer(3, FORGOTTEN, in_doubt=True)
    world.answer(4, replace(FORGOTTEN, actual=10**6))
    assert [world.outcome(record) for record in (2, 3)] == [Applied.UNKNOWN] * 2
    assert world.outcome(1) is Applied.NO, "it would come behind those"
    assert world.epoch_asked() > 10**6
    world.answer_epoch(replace(FORGOTTEN, actual=10**7))
    world.resume()
    epoch = world.epoch_asked()
    assert epoch is not None
    assert epoch > 10**7
    world.answer_epoch(EpochBegun(epoch))
    assert world.numbers == [(epoch, 0, 4)]


def test_a_new_producer_begins_above_what_the_log_has_forgotten() -> None:
    world = Session(begun=False)
    world.submit()
    assert world.epoch_asked() == 0
    world.answer_epoch(replace(FORGOTTEN, actual=7_000))
    assert not world.pauses, "nobody waits for a name that was never used"
    epoch = world.epoch_asked()
    assert epoch is not None
    assert epoch > 7_000
    world.answer_epoch(EpochBegun(epoch))
    assert world.numbers == [(epoch, 0, 0)]


def test_what_was_sent_too_long_ago_is_not_sent_again() -> None:
    world = Session(memory_s=50.0)
    world.submit()
    world.answer(0, LOST)
    world.now = 51.0
    world.answer(1, gap(0))
    assert world.outcome(0) is Applied.UNKNOWN
    assert world.epoch_asked() == 101


def test_how_long_a_request_is_tried_ends_where_the_log_may_forget_it() -> None:
    world = Session(memory_s=50.0, request_timeout_ms=60_000)
    assert [one.timeout_ms for one in world.sent.values()] == [50_000]
    world.now = 20.0
    world.answer(0, LOST)
    assert [one.timeout_ms for one in world.sent.values()] == [30_000]
    assert [one.timeout_ms for one in Session(memory_s=50.0, request_timeout_ms=-1).sent.values()] == [50_000]


def test_one_in_doubt_that_is_refused_for_good_ends_and_shuts_its_late_copies_out() -> None:
    world = Session()
    world.answer(0, DENIED, in_doubt=True)
    assert world.outcome(0) is Applied.UNKNOWN
    assert world.epoch_asked() == 101


def test_a_newer_epoch_of_another_process_ends_the_producer() -> None:
    world = Session()
    world.submit(6)
    world.answer(0, RECEIPT)
    world.answer(1, LOST)
    for record in (2, 3, 4, 5):
        world.answer(record, FENCED)
    assert world.session.phase is SessionPhase.ENDED
    assert world.outcome(1) is Applied.UNKNOWN
    assert [world.outcome(record) for record in (2, 3, 4, 5, 6)] == [Applied.NO] * 5
    world.submit()
    assert world.settled[7] == FENCED


@pytest.mark.parametrize("begun", [EpochBegun(101, next_sequence=3), EpochBegun(0)])
def test_an_epoch_that_another_process_writes_in_is_not_used(begun: EpochBegun) -> None:
    world = Session()
    world.answer(0, DENIED, in_doubt=True)
    world.submit()
    world.answer_epoch(begun)
    world.resume()
    assert world.epoch_asked() == 202
    world.answer_epoch(EpochBegun(202))
    assert world.numbers == [(202, 0, 1)]


def test_the_begin_of_an_epoch_is_asked_again_where_its_answer_was_lost() -> None:
    world = Session(begun=False)
    world.submit()
    world.answer_epoch(LOST)
    world.resume()
    assert world.epoch_asked() == 0
    world.answer_epoch(EpochBegun(0))
    assert world.numbers == [(0, 0, 0)]


def test_where_no_epoch_can_begin_the_requests_fail_and_the_next_one_tries_again() -> None:
    world = Session(begun=False)
    world.submit(2)
    world.answer_epoch(DENIED)
    assert world.settled == {0: DENIED, 1: DENIED}
    assert world.session.phase is SessionPhase.UNBORN
    world.submit()
    world.answer_epoch(EpochBegun(0))
    assert world.numbers == [(0, 0, 2)]


# ---------------------------------------------------------------------- bounds


def test_the_line_is_bounded() -> None:
    world = Session()
    world.submit(MAX_QUEUED + KEPT)
    assert world.outcome(MAX_QUEUED + KEPT) is Applied.NO
    assert len(world.session) == MAX_QUEUED + KEPT


def test_back_offs_grow_up_to_their_bound_and_begin_anew_after_a_success() -> None:
    world = Session(backoff_start_ms=10, backoff_max_ms=35)
    waits: list[float] = []
    for _ in range(5):
        ticket = next(iter(world.sent))
        del world.sent[ticket]
        for effect in world.take(world.session.returned(ticket, Finished(LOST), 0.0)):
            if isinstance(effect, BackOff):
                waits.append(effect.seconds)
                world.resume()
    assert waits == [0.02, 0.03, 0.035, 0.035]


def test_a_window_is_not_wider_than_what_the_log_remembers() -> None:
    with pytest.raises(InvariantViolation):
        Session(max_in_flight=KEPT + 1)
    world = Session(max_in_flight=1)
    world.submit()
    assert len(world.sent) == 1


def test_what_ends_says_of_each_request_whether_it_may_be_written() -> None:
    world = Session()
    world.submit(6)
    closed = Refusal(StatusCode.CLIENT_CLOSED, "closed", error="AlreadyClosedError", applied=Applied.WRONG)
    world.take(world.session.end(closed))
    assert [world.outcome(key) for key in range(7)] == [Applied.UNKNOWN] * 5 + [Applied.WRONG] * 2
    assert world.session.returned(next(iter(world.sent)), Finished(RECEIPT), 0.0) == []
    assert world.session.is_idle
