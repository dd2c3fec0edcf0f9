"""Requests that a proxy has taken and not answered.

    TakenRequest        the request, its caller, its answer
    RequestsUnderWay    counts what all of them hold
    RequestHandlers     which handler begins requests of which class

What requests hold is bounded, for their payloads come from clients. No I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar

from dlspark.core.writing.write_kinds import CheckedSet
from dlspark.errors import OverCapacityError, WriteCancelledError
from dlspark.serving.bindings.service import Caller, Reply
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import (
    AcceptStreams,
    Answer,
    Applied,
    Handshake,
    ListProxies,
    Refusal,
    Request,
    WriteRecords,
)
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.foundation.errors import CallerError

_LOG: Final = logging.getLogger(__name__)

T = TypeVar("T")
AnyRequest = TypeVar("AnyRequest", bound=Request)


class RequestsUnderWay:
    """How much do the requests of one proxy hold that are not answered yet?"""

    __slots__ = ("bytes", "requests")

    def __init__(self) -> None:
        self.bytes = 0
        self.requests = 0

    def take(self, size: int, limit: int, requests: int = 1) -> None:
        """Count a request in, or several. One is taken always, however large. Raises OverCapacityError."""
        if self.requests and self.bytes + size > limit:
            raise OverCapacityError(
                f"{self.bytes} bytes are under way in this proxy, the most is {limit}; the request was not taken",
                advice="Send less at a time, or ask again later",
            )
        self.bytes += size
        self.requests += requests

    def give_back(self, size: int, requests: int) -> None:
        """Note that they are answered."""
        self.bytes -= size
        self.requests -= requests


OnEnd: TypeAlias = Callable[["TakenRequest"], None]


class TakenRequest:
    """What was asked, by which caller, and is it answered? One request on its way. Compared by identity.

    Args:
        size: bytes of its payloads.
        began_s: when it came, by the event loop's clock.
    """

    __slots__ = ("_reply", "answered", "began_s", "caller", "on_end", "request", "sets", "size")

    records: ClassVar = 1
    """How many requests it stands for."""

    def __init__(self, request: Request, caller: Caller, reply: Reply, size: int, began_s: float) -> None:
        self.request = request
        self.caller = caller
        self.size = size
        self.began_s = began_s
        self.answered = False
        self.sets: list[CheckedSet | CallerError] | None = None
        """Its record sets, or why one cannot be written; None as long as they were not opened."""
        self.on_end: OnEnd | None = None
        """Called when it is answered, before the answer goes out."""
        self._reply = reply

    def is_too_late(self, now_s: float) -> bool:
        """Return whether its client has given up waiting for the answer."""
        if isinstance(self.request, AcceptStreams | Handshake | ListProxies):
            return False
        timeout_ms = self.request.context.timeout_ms
        return timeout_ms > 0 and now_s > self.began_s + timeout_ms / 1000

    def answer(self, answer: Answer) -> None:
        """Answer it, unless it is answered. Never raises."""
        if self.answered:
            return
        self.answered = True
        if self.on_end is not None:
            self.on_end(self)
        try:
            self._reply(answer)
        except Exception:
            # A binding's fault must not take a stream, or the answers of others, with it.
            _LOG.exception("the answer to %s for %s was not taken", type(self.request).__name__, self.caller.address)

    def fail(self, error: BaseException) -> None:
        """Answer it with a refusal that says what `error` says."""
        self.answer(refusal_of(error))


def payload_bytes(request: WriteRecords) -> int:
    """Return how many bytes of payload it carries."""
    payloads = request.payloads
    return len(payloads[0]) if len(payloads) == 1 else sum(map(len, payloads))


def not_begun(refusal: Refusal) -> Refusal:
    """Return the same for a request that was not begun, whatever happened to what it would have needed."""
    return refusal if refusal.applied is not Applied.UNKNOWN else replace(refusal, applied=Applied.NO)


def found_at(location: str, stream: str) -> Refusal:
    """Return the refusal that says where a stream is served."""
    return not_begun(refusal_of(OwnershipAcquireFailedError(location, path="", log=stream)))


def too_late_error(stream: str) -> WriteCancelledError:
    """Return the error of a request that waited for longer than its client does."""
    return WriteCancelledError(
        "it waited for longer than its client does; it was not begun", log=stream, advice="Ask again, and wait longer"
    )


class RequestHandlers(Generic[T]):
    """Which handler takes a request of this class? Handlers of one kind, each registered with the class that it takes.

    A handler is given a request as what it is, so that none has to ask for its class again.
    """

    __slots__ = ("_handlers",)

    def __init__(self) -> None:
        self._handlers: dict[type, Callable[[TakenRequest, Any], T]] = {}

    def add(self, kind: type[AnyRequest], handler: Callable[[TakenRequest, AnyRequest], T]) -> None:
        """Have `handler` called for requests of exactly this class."""
        self._handlers[kind] = handler

    def handles(self, kind: type) -> bool:
        """Return whether there is a handler for requests of this class."""
        return kind in self._handlers

    def call(self, taken: TakenRequest) -> T:
        """Call the handler of a request. Raises KeyError where it has none."""
        request = taken.request
        return self._handlers[type(request)](taken, request)
