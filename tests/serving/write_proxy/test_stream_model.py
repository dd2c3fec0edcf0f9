"""The machine of a stream: every pair of a state and an event, and every failure of a request."""

from __future__ import annotations

import itertools

import pytest

from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import (
    AlreadyClosedError,
    AlreadyTruncatedError,
    ConditionError,
    EndOfStreamError,
    InvalidRecordError,
    LogEmptyError,
    OverCapacityError,
    ProducerFencedError,
    RecordTooLongError,
    SequenceGapError,
    SequencePassedError,
    StreamNotReadyError,
    TransactionIdOutOfOrderError,
    TransmitError,
    WriteCancelledError,
    WriteError,
    WriterDeposedError,
)
from dlspark.serving.protocol.operations import StatusCode
from dlspark.serving.write_proxy.streams.model import (
    ON_REQUEST,
    ONLY_THE_REQUEST,
    TRANSITIONS,
    FailureScope,
    OnRequest,
    StreamEffect,
    StreamEvent,
    StreamState,
    failure_scope_of,
    step,
)
from metadata.distributedlog.locks import LockingError, OwnershipAcquireFailedError
from metadata.distributedlog.log_names import InvalidLogNameError, LogNotFoundError
from metadata.distributedlog.permissions import RequestDeniedError
from metadata.foundation.errors import (
    ConnectionLossError,
    DistributedLogError,
    InvariantViolation,
    MetadataUnavailableError,
)
from storage_node.errors import NotEnoughBookiesError

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

SCOPES: list[tuple[DistributedLogError, FailureScope]] = [
    (OwnershipAcquireFailedError("1;0;other:1", path="/lock"), FailureScope.ELSEWHERE),
    (AlreadyClosedError("closed"), FailureScope.PROCESS),
    (RecordTooLongError("long"), FailureScope.REQUEST),
    (InvalidRecordError("no bytes"), FailureScope.REQUEST),
    (LogNotFoundError("none"), FailureScope.REQUEST),
    (LogEmptyError("empty"), FailureScope.REQUEST),
    (AlreadyTruncatedError("gone"), FailureScope.REQUEST),
    (EndOfStreamError("sealed"), FailureScope.REQUEST),
    (TransactionIdOutOfOrderError("back"), FailureScope.REQUEST),
    (OverCapacityError("much"), FailureScope.REQUEST),
    (StreamNotReadyError("soon"), FailureScope.REQUEST),
    (InvalidLogNameError("bad"), FailureScope.REQUEST),
    (RequestDeniedError("no"), FailureScope.REQUEST),
    (ProducerFencedError("fenced"), FailureScope.REQUEST),
    (SequenceGapError("gap", expected=3), FailureScope.REQUEST),
    (SequencePassedError("passed"), FailureScope.REQUEST),
    (ConditionError("elsewhere", actual=DLSN(1, 0, 0)), FailureScope.REQUEST),
    (TransmitError("sent"), FailureScope.STREAM),
    (WriteError("failed"), FailureScope.STREAM),
    (WriteCancelledError("behind"), FailureScope.STREAM),
    (WriterDeposedError("other owner"), FailureScope.STREAM),
    (LockingError("lost"), FailureScope.STREAM),
    (MetadataUnavailableError("away"), FailureScope.STREAM),
    (ConnectionLossError("lost"), FailureScope.STREAM),
    (NotEnoughBookiesError("two"), FailureScope.STREAM),
    (InvariantViolation("bug"), FailureScope.STREAM),
]


@pytest.mark.parametrize(("error", "scope"), SCOPES, ids=lambda one: type(one).__name__)
def test_a_failure_ends_what_it_says_something_of(error: DistributedLogError, scope: FailureScope) -> None:
    assert failure_scope_of(error) is scope


def test_an_exception_that_is_not_of_the_tree_ends_the_stream() -> None:
    assert failure_scope_of(ValueError("bug")) is FailureScope.STREAM


def test_upstreams_codes_that_fail_one_request_are_among_them() -> None:
    upstream = {501, 506, 509, 510, 511, 512, 513, 602, 413, 518, 517}
    assert upstream <= {int(code) for code in ONLY_THE_REQUEST}
    assert StatusCode.FOUND not in ONLY_THE_REQUEST
