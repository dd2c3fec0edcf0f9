"""The machine of a stream: every pair of a state and an event, and every failure of a request."""

from __future__ import annotations

import itertools

import pytest

from dlspark import errors
from dlspark.core.codec.dlsn import DLSN
from dlspark.serving.protocol.operations import StatusCode
from dlspark.serving.write_proxy.streams.model import (
    ON_REQUEST,
    ONLY_THE_REQUEST,
    TRANSITIONS,
    OnRequest,
    StreamEffect,
    StreamEvent,
    StreamState,
    Verdict,
    step,
    verdict_of,
)
from metadata.foundation.errors import DistributedLogError, InvariantViolation

WITH_WRITER = {StreamState.INITIALIZED}
"""States in which there is a writer for sure."""
PAIRS = list(itertools.product(StreamState, StreamEvent))


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=lambda one: one.name)
def test_every_pair_of_a_state_and_an_event_has_its_line(state: StreamState, event: StreamEvent) -> None:
    transition = TRANSITIONS[state, event]
    if transition is None:
        with pytest.raises(InvariantViolation, match=state.name):
            step(state, event)
        return
    assert step(state, event) == transition
    after, effects = transition
    assert len(set(effects)) == len(effects)
    if state in WITH_WRITER and after is not state:
        assert effects[0] in (StreamEffect.CLOSE_WRITER, StreamEffect.ABORT_WRITER), "its lock would stay"
    if after is StreamState.CLOSED and state is not after:
        assert effects[-1] is StreamEffect.KEEP, "it would never be forgotten"
    waits_before, waits_after = (ON_REQUEST[one] is OnRequest.WAIT for one in (state, after))
    if waits_before and not waits_after:
        assert {StreamEffect.RUN_WAITING, StreamEffect.REFUSE_WAITING} & set(effects), "requests would wait for ever"


def test_no_pair_is_missing_and_none_too_many() -> None:
    assert set(TRANSITIONS) == set(PAIRS)
    assert set(ON_REQUEST) == set(StreamState)


def test_the_states_have_upstreams_numbers() -> None:
    assert {state.name: int(state) for state in StreamState} == {
        "UNINITIALIZED": -1,
        "INITIALIZING": 0,
        "INITIALIZED": 1,
        "CLOSING": -4,
        "CLOSED": -5,
        "ERROR": -6,
    }


def test_from_every_state_that_is_reached_a_stream_can_come_to_its_end() -> None:
    """And the way from the start leads to every state."""
    leads = {
        state: {found.state for event in StreamEvent if (found := TRANSITIONS[state, event]) is not None}
        for state in StreamState
    }

    def reached(start: StreamState) -> set[StreamState]:
        seen = {start}
        while more := set().union(*(leads[one] for one in seen)) - seen:
            seen |= more
        return seen

    assert reached(StreamState.UNINITIALIZED) == set(StreamState)
    for state in StreamState:
        assert StreamState.CLOSED in reached(state)


def test_an_owner_whose_writer_opens_too_late_gives_it_up() -> None:
    timed_out = step(StreamState.INITIALIZING, StreamEvent.TIMED_OUT)
    assert step(timed_out.state, StreamEvent.OPENED).effects == (StreamEffect.ABORT_WRITER,)
    given_up = step(StreamState.INITIALIZING, StreamEvent.GIVE_UP)
    assert step(given_up.state, StreamEvent.OPENED).effects == (StreamEffect.CLOSE_WRITER,)


# ---- failures ------------------------------------------------------------------------------------------------------

VERDICTS: list[tuple[DistributedLogError, Verdict]] = [
    (errors.OwnershipAcquireFailedError("1;0;other:1", path="/lock"), Verdict.ELSEWHERE),
    (errors.AlreadyClosedError("closed"), Verdict.PROCESS),
    (errors.RecordTooLongError("long"), Verdict.REQUEST),
    (errors.InvalidRecordError("no bytes"), Verdict.REQUEST),
    (errors.LogNotFoundError("none"), Verdict.REQUEST),
    (errors.LogEmptyError("empty"), Verdict.REQUEST),
    (errors.AlreadyTruncatedError("gone"), Verdict.REQUEST),
    (errors.EndOfStreamError("sealed"), Verdict.REQUEST),
    (errors.TransactionIdOutOfOrderError("back"), Verdict.REQUEST),
    (errors.OverCapacityError("much"), Verdict.REQUEST),
    (errors.StreamNotReadyError("soon"), Verdict.REQUEST),
    (errors.InvalidLogNameError("bad"), Verdict.REQUEST),
    (errors.RequestDeniedError("no"), Verdict.REQUEST),
    (errors.ProducerFencedError("fenced"), Verdict.REQUEST),
    (errors.SequenceGapError("gap", expected=3), Verdict.REQUEST),
    (errors.SequencePassedError("passed"), Verdict.REQUEST),
    (errors.ConditionError("elsewhere", actual=DLSN(1, 0, 0)), Verdict.REQUEST),
    (errors.TransmitError("sent"), Verdict.STREAM),
    (errors.WriteError("failed"), Verdict.STREAM),
    (errors.WriteCancelledError("behind"), Verdict.STREAM),
    (errors.WriterDeposedError("other owner"), Verdict.STREAM),
    (errors.LockingError("lost"), Verdict.STREAM),
    (errors.MetadataUnavailableError("away"), Verdict.STREAM),
    (errors.ConnectionLossError("lost"), Verdict.STREAM),
    (errors.NotEnoughBookiesError("two"), Verdict.STREAM),
    (errors.InvariantViolation("bug"), Verdict.STREAM),
]


@pytest.mark.parametrize(("error", "verdict"), VERDICTS, ids=lambda one: type(one).__name__)
def test_a_failure_ends_what_it_says_something_of(error: DistributedLogError, verdict: Verdict) -> None:
    assert verdict_of(error) is verdict


def test_an_exception_that_is_not_of_the_tree_ends_the_stream() -> None:
    assert verdict_of(ValueError("bug")) is Verdict.STREAM


def test_upstreams_codes_that_fail_one_request_are_among_them() -> None:
    upstream = {501, 506, 509, 510, 511, 512, 513, 602, 413, 518, 517}
    assert upstream <= {int(code) for code in ONLY_THE_REQUEST}
    assert StatusCode.FOUND not in ONLY_THE_REQUEST
