"""What a client does about each answer, as tables: by status code, by reason, and by what was asked; and the refusals
that a client gives its callers itself. No I/O.

    FINISH        the answer is the caller's
    FOLLOW        ask the proxy that the answer names, and remember it as the owner
    FAIL          the refusal is the caller's, at once: another proxy would say the same, or must not be asked
    NEXT_HOST     the stream is not to be had there: forget it as the owner, ask another proxy
    LEAVE_HOST    the proxy takes no requests: forget all its streams, ask another
    NEXT_REGION   the proxy's region is not available: ask one of the next region

The codes are upstream's (docs/reference/serving.md#status-codes), and so is what follows from them. What upstream does
not have stands over them: a reason that says that the request itself is refused (`FINAL_REASONS`) ends it, whatever its
code does for other failures; and whether a request may be sent again after an answer was lost is decided by
what it asks for (`is_repeatable`), never by the code.

Nothing here, or in what a client does with an answer, looks at the name of an error: names are the wire's. What arrives
has a `Reason` by the time that anything is decided (`operations.Refusal`), and a refusal of the client's own is made of
an error (`failures.refusal_of`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeAlias

from dlspark.errors import ProxyLostError, ProxyUnreachableError
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import (
    Applied,
    BeginEpoch,
    CreateStream,
    DeleteStream,
    FindOwner,
    Heartbeat,
    MoveStream,
    ReadBatch,
    Reason,
    Refusal,
    ReleaseStream,
    SetFencingToken,
    StatusCode,
    TakeStream,
    TruncateStream,
    WriteRecords,
)

StreamRequest: TypeAlias = (
    WriteRecords
    | BeginEpoch
    | SetFencingToken
    | Heartbeat
    | TruncateStream
    | CreateStream
    | DeleteStream
    | ReleaseStream
    | MoveStream
    | TakeStream
    | FindOwner
    | ReadBatch
)
"""A request on one stream, which goes to whichever proxy serves that."""


class AnswerRule(Enum):
    """The ways to go on behind an answer."""

    FINISH = "finish"
    FOLLOW = "follow"
    FAIL = "fail"
    NEXT_HOST = "next host"
    LEAVE_HOST = "leave host"
    NEXT_REGION = "next region"


RULE_OF_CODE: Final[Mapping[StatusCode, AnswerRule]] = MappingProxyType(
    dict.fromkeys(StatusCode, AnswerRule.NEXT_HOST)
    | {
        StatusCode.SUCCESS: AnswerRule.FINISH,
        StatusCode.FOUND: AnswerRule.FOLLOW,
        StatusCode.SERVICE_UNAVAILABLE: AnswerRule.LEAVE_HOST,
        StatusCode.REGION_UNAVAILABLE: AnswerRule.NEXT_REGION,
        StatusCode.REQUEST_DENIED: AnswerRule.FAIL,
        StatusCode.TOO_LARGE_RECORD: AnswerRule.FAIL,
        StatusCode.NOT_IMPLEMENTED: AnswerRule.FAIL,
        StatusCode.METADATA_EXCEPTION: AnswerRule.FAIL,
        StatusCode.LOG_EMPTY: AnswerRule.FAIL,
        StatusCode.LOG_NOT_FOUND: AnswerRule.FAIL,
        StatusCode.TRUNCATED_TRANSACTION: AnswerRule.FAIL,
        StatusCode.END_OF_STREAM: AnswerRule.FAIL,
        StatusCode.TRANSACTION_OUT_OF_ORDER: AnswerRule.FAIL,
        StatusCode.OVER_CAPACITY: AnswerRule.FAIL,
        StatusCode.STREAM_NOT_READY: AnswerRule.FAIL,
        StatusCode.CHECKSUM_FAILED: AnswerRule.FAIL,
        StatusCode.INVALID_STREAM_NAME: AnswerRule.FAIL,
        # Upstream's client goes on to the next host after these, whose answer cannot be another.
        StatusCode.LOG_EXISTS: AnswerRule.FAIL,
        StatusCode.CLIENT_CLOSED: AnswerRule.FAIL,
    }
)
"""By the refusal's code. Those not named are upstream's "others": they go to the next host."""

FINAL_REASONS: Final = frozenset(Reason) - {Reason.NONE, Reason.PROXY_UNREACHABLE, Reason.PROXY_LOST}
"""Reasons that say something of the request and the log, and not of the proxy that was asked."""

OF_THE_PROXY: Final = frozenset((StatusCode.FOUND, StatusCode.ALREADY_CLOSED, StatusCode.SERVICE_UNAVAILABLE))
"""Codes that never say that the request was wrong, though the error's class may: it is the proxy that was."""


def rule_of(refusal: Refusal, *, fail_fast: bool) -> AnswerRule:
    """Return what to do about a refusal. `fail_fast`: of a stream that is not to be had at the first proxy, say so at
    once."""
    rule = RULE_OF_CODE[refusal.code]
    # The reason goes over the code, which stands for several failures: LOCKING_EXCEPTION is a lost lock, for which
    # another proxy is asked, and a producer that is fenced, for which none may be.
    if refusal.reason in FINAL_REASONS:
        return AnswerRule.FAIL
    if refusal.applied is Applied.WRONG and refusal.code not in OF_THE_PROXY:
        return AnswerRule.FAIL
    return AnswerRule.FAIL if fail_fast and rule is AnswerRule.NEXT_HOST else rule


PASSING: Final = frozenset((StatusCode.OVER_CAPACITY, StatusCode.STREAM_NOT_READY, StatusCode.CHECKSUM_FAILED))
"""Codes that fail a request at once, and may not stand in its way a moment later."""


def may_pass(refusal: Refusal) -> bool:
    """Return whether the same request, sent again later, may be answered otherwise."""
    return refusal.code in PASSING or rule_of(refusal, fail_fast=False) is not AnswerRule.FAIL


CHANGES_NOTHING: Final = (FindOwner, ReadBatch)
"""Requests of which it does not matter whether they were done."""
REPEATABLE: Final = (*CHANGES_NOTHING, BeginEpoch, Heartbeat, TruncateStream, ReleaseStream, MoveStream)
"""Requests that may be done twice: the second time changes nothing, or nothing that anyone relies on."""


def is_repeatable(request: StreamRequest, *, resend_writes: bool = False) -> bool:
    """Return whether a request may be sent again when nobody knows whether it was done.

    A producer's request may: the log knows it again. So may one that requires a position, for once it is written the
    position is another. Any other write would perhaps be written twice, and is not sent again unless `resend_writes`
    says that duplicates do no harm. The creation and deletion of a log, and its fencing token, may be another client's
    by the time of the second try.
    """
    if isinstance(request, WriteRecords):
        return request.stamp is not None or request.expected_position is not None or resend_writes
    return isinstance(request, REPEATABLE)


# ---------------------------------------------------------------------- refusals of the client's own


def unreachable_refusal(message: str) -> Refusal:
    """Return the answer to a request that no proxy has: it was not done."""
    return refusal_of(ProxyUnreachableError(message))


def lost_refusal(message: str) -> Refusal:
    """Return the answer to a request of which nobody knows whether it was done: the connection to its proxy ended."""
    return refusal_of(ProxyLostError(message))


def doubtful_refusal(refusal: Refusal, message: str) -> Refusal:
    """Return `refusal` as the answer to a request of which another attempt may have been done."""
    lost = lost_refusal(message)
    return replace(refusal, message=lost.message, applied=lost.applied, error=lost.error, reason=lost.reason)
