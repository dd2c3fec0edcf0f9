"""A stream on a write proxy as a state machine: what follows from what happens to it. No I/O.

    UNINITIALIZED   known, and nothing begun
    INITIALIZING    its log is being opened; requests wait in line
    INITIALIZED     this proxy owns the log; requests are begun as they come
    CLOSING         it is given up in order: the writer finishes what it has. Requests wait: they are for another proxy
    ERROR           it has failed: the writer is being given up as it is. Requests are refused
    CLOSED          it has no writer. Requests are refused, until the stream is forgotten and begun anew

`TRANSITIONS` has each pair of a state and an event: the next state and what to do, in this order; or None where the
event cannot happen in that state. `ON_REQUEST` says what becomes of a request. `failure_scope_of` says which failures
of a request end its stream: docs/serving/write-proxy.md#failures has them as a table.

A closed stream may be kept for a while, so that retries are answered from memory: two thirds of the session timeout
where another proxy has the log, for the lock is not worth asking before, and a second where any other process has it;
the probation time after a service time-out, so that this proxy does not take the log again at once. Else it is
forgotten at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from dlspark.errors import AlreadyClosedError, ConditionError, ProducerError, status_code
from dlspark.serving.protocol.operations import StatusCode
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.foundation.errors import CallerError, InvariantViolation

FOUND_KEPT_SHARE: Final = 2 / 3
"""The share of the session timeout for which it is remembered that another proxy has a log."""
OTHERS_KEPT_S: Final = 1.0
"""The time for which it is remembered, at most, that a log's owner is not an announced proxy: only the lock can say
that it has closed the log, or that its session has ended."""
DENIED_KEPT_S: Final = 1.0
"""The time for which it is remembered that access control refused to open a log."""


class StreamState(IntEnum):
    """The states of a stream; the numbers are upstream's."""

    UNINITIALIZED = -1
    INITIALIZING = 0
    INITIALIZED = 1
    CLOSING = -4
    CLOSED = -5
    ERROR = -6


class StreamEvent(Enum):
    """The events of a stream."""

    START = "its first request came"
    OPENED = "the writer is open"
    OPEN_FAILED = "the log could not be opened"
    FAILED = "a request failed in a way that ends the stream"
    TIMED_OUT = "a request took longer than the service time-out"
    GIVE_UP = "it is released, deleted, moved, or the proxy shuts down"
    WRITER_ENDED = "the writer is closed, and the lock released"
    FORGET = "it was kept for as long as it should be"


class StreamEffect(Enum):
    """The effects of an event, which the stream carries out."""

    OPEN = "open the log's writer"
    RUN_WAITING = "begin what waits, in order"
    REFUSE_WAITING = "refuse what waits"
    CLOSE_WRITER = "close the writer: it finishes what it has"
    ABORT_WRITER = "abort the writer: what it has may be lost"
    KEEP = "keep the stream as long as its failure asks for, then forget it"
    REMOVE = "it is not this proxy's any more"


class OnRequest(Enum):
    """The ways of a request, by the state in which it finds its stream."""

    WAIT = "it waits in line"
    RUN = "it is begun"
    REFUSE = "it is refused, for the reason for which the stream has ended"


class Transition(NamedTuple):
    """The next state, and the effects in their order."""

    state: StreamState
    effects: tuple[StreamEffect, ...] = ()


_S, _E, _DO = StreamState, StreamEvent, StreamEffect

TRANSITIONS: Final[Mapping[tuple[StreamState, StreamEvent], Transition | None]] = {
    (_S.UNINITIALIZED, _E.START): Transition(_S.INITIALIZING, (_DO.OPEN,)),
    (_S.UNINITIALIZED, _E.OPENED): None,
    (_S.UNINITIALIZED, _E.OPEN_FAILED): None,
    (_S.UNINITIALIZED, _E.FAILED): None,
    (_S.UNINITIALIZED, _E.TIMED_OUT): None,
    (_S.UNINITIALIZED, _E.GIVE_UP): Transition(_S.CLOSED, (_DO.REFUSE_WAITING, _DO.KEEP)),
    (_S.UNINITIALIZED, _E.WRITER_ENDED): None,
    (_S.UNINITIALIZED, _E.FORGET): None,
    #
    (_S.INITIALIZING, _E.START): Transition(_S.INITIALIZING),
    (_S.INITIALIZING, _E.OPENED): Transition(_S.INITIALIZED, (_DO.RUN_WAITING,)),
    (_S.INITIALIZING, _E.OPEN_FAILED): Transition(_S.CLOSED, (_DO.REFUSE_WAITING, _DO.KEEP)),
    (_S.INITIALIZING, _E.FAILED): None,
    (_S.INITIALIZING, _E.TIMED_OUT): Transition(_S.ERROR, (_DO.REFUSE_WAITING,)),
    # Opening is not broken off: it may hold the lock by now. What is open then is closed at once (CLOSING, OPENED).
    (_S.INITIALIZING, _E.GIVE_UP): Transition(_S.CLOSING),
    (_S.INITIALIZING, _E.WRITER_ENDED): None,
    (_S.INITIALIZING, _E.FORGET): None,
    #
    (_S.INITIALIZED, _E.START): Transition(_S.INITIALIZED),
    (_S.INITIALIZED, _E.OPENED): None,
    (_S.INITIALIZED, _E.OPEN_FAILED): None,
    (_S.INITIALIZED, _E.FAILED): Transition(_S.ERROR, (_DO.ABORT_WRITER,)),
    (_S.INITIALIZED, _E.TIMED_OUT): Transition(_S.ERROR, (_DO.ABORT_WRITER,)),
    (_S.INITIALIZED, _E.GIVE_UP): Transition(_S.CLOSING, (_DO.CLOSE_WRITER,)),
    (_S.INITIALIZED, _E.WRITER_ENDED): None,
    (_S.INITIALIZED, _E.FORGET): None,
    #
    (_S.CLOSING, _E.START): Transition(_S.CLOSING),
    (_S.CLOSING, _E.OPENED): Transition(_S.CLOSING, (_DO.CLOSE_WRITER,)),
    (_S.CLOSING, _E.OPEN_FAILED): Transition(_S.CLOSED, (_DO.REFUSE_WAITING, _DO.KEEP)),
    # Nothing is aborted any more: what was begun has its outcome from the writer, which ends in any case.
    (_S.CLOSING, _E.FAILED): Transition(_S.CLOSING),
    (_S.CLOSING, _E.TIMED_OUT): Transition(_S.CLOSING),
    (_S.CLOSING, _E.GIVE_UP): Transition(_S.CLOSING),
    (_S.CLOSING, _E.WRITER_ENDED): Transition(_S.CLOSED, (_DO.REFUSE_WAITING, _DO.KEEP)),
    (_S.CLOSING, _E.FORGET): None,
    #
    (_S.ERROR, _E.START): Transition(_S.ERROR),
    # It was given up while its log was being opened.
    (_S.ERROR, _E.OPENED): Transition(_S.ERROR, (_DO.ABORT_WRITER,)),
    (_S.ERROR, _E.OPEN_FAILED): Transition(_S.CLOSED, (_DO.KEEP,)),
    (_S.ERROR, _E.FAILED): Transition(_S.ERROR),
    (_S.ERROR, _E.TIMED_OUT): Transition(_S.ERROR),
    (_S.ERROR, _E.GIVE_UP): Transition(_S.ERROR),
    (_S.ERROR, _E.WRITER_ENDED): Transition(_S.CLOSED, (_DO.KEEP,)),
    (_S.ERROR, _E.FORGET): None,
    #
    (_S.CLOSED, _E.START): Transition(_S.CLOSED),
    (_S.CLOSED, _E.OPENED): None,
    (_S.CLOSED, _E.OPEN_FAILED): None,
    # The last answers of a writer may come behind its end.
    (_S.CLOSED, _E.FAILED): Transition(_S.CLOSED),
    (_S.CLOSED, _E.TIMED_OUT): Transition(_S.CLOSED),
    (_S.CLOSED, _E.GIVE_UP): Transition(_S.CLOSED),
    (_S.CLOSED, _E.WRITER_ENDED): None,
    (_S.CLOSED, _E.FORGET): Transition(_S.CLOSED, (_DO.REMOVE,)),
}

ON_REQUEST: Final[Mapping[StreamState, OnRequest]] = {
    _S.UNINITIALIZED: OnRequest.WAIT,
    _S.INITIALIZING: OnRequest.WAIT,
    _S.INITIALIZED: OnRequest.RUN,
    _S.CLOSING: OnRequest.WAIT,
    _S.ERROR: OnRequest.REFUSE,
    _S.CLOSED: OnRequest.REFUSE,
}


def step(state: StreamState, event: StreamEvent) -> Transition:
    """Return the transition on `event` in `state`. Raises InvariantViolation where it cannot happen there."""
    transition = TRANSITIONS[state, event]
    if transition is None:
        raise InvariantViolation(f"a stream that is {state.name} cannot have: {event.value}")
    return transition


# ---------------------------------------------------------------------- failures of requests


class FailureScope(Enum):
    """How far does the failure of one request reach?"""

    REQUEST = "this request alone has failed"
    STREAM = "the stream has failed"
    ELSEWHERE = "another process owns the log"
    PROCESS = "the process is not what it takes itself for, and ends"


ONLY_THE_REQUEST: Final = frozenset(
    {
        StatusCode.REQUEST_DENIED,
        StatusCode.TOO_LARGE_RECORD,
        StatusCode.NOT_IMPLEMENTED,
        StatusCode.METADATA_EXCEPTION,
        StatusCode.LOG_EMPTY,
        StatusCode.LOG_NOT_FOUND,
        StatusCode.TRUNCATED_TRANSACTION,
        StatusCode.END_OF_STREAM,
        StatusCode.TRANSACTION_OUT_OF_ORDER,
        StatusCode.OVER_CAPACITY,
        StatusCode.STREAM_NOT_READY,
        StatusCode.CHECKSUM_FAILED,
        StatusCode.INVALID_STREAM_NAME,
    }
)
"""Codes of failures that say nothing of the stream."""


def failure_scope_of(error: BaseException) -> FailureScope:
    """Return how far `error` reaches, with which a request on an open log ended."""
    if isinstance(error, OwnershipAcquireFailedError):
        return FailureScope.ELSEWHERE
    if isinstance(error, AlreadyClosedError):
        return FailureScope.PROCESS
    # A wrong request, a producer or a condition that is out of step, say nothing of the stream either.
    if isinstance(error, CallerError | ProducerError | ConditionError):
        return FailureScope.REQUEST
    return FailureScope.REQUEST if status_code(error) in ONLY_THE_REQUEST else FailureScope.STREAM
