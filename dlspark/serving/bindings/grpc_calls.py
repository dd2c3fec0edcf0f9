"""The calls of the gRPC service: messages in, the service's answers out (distributedlog.proto).

What a proxy refuses travels in the message's status. A call ends with an error of gRPC for what no message can say:

    INVALID_ARGUMENT     the bytes are not a message, or one that makes no sense; or the client's region is none
    RESOURCE_EXHAUSTED   the message is too long, or too many calls are under way: of its host (`CallsOfHosts`), of all
    UNAVAILABLE          the proxy stops: what is under way was answered, a stream of requests or of records ends
    DEADLINE_EXCEEDED    the client's deadline was over before the request was begun

A client may say in which region it is, in each call's metadata (`dlspark-region`), as others do in their handshake.

A client's deadline becomes the request's `timeout_ms`, where that is shorter. A cancelled call is dropped: the service
hears that its caller is gone, and what it has begun may still be done.

Each call is a caller of its own. What all of them hold is counted (`held_bytes`); beyond the limit new requests are
refused with OVER_CAPACITY. Append reads on only while its window has room, Read asks for more only when gRPC has taken
the last response, so a client that takes nothing stops itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import count
from typing import Any, Final, NoReturn, Protocol, TypeAlias, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError, Message

from dlspark.serving.bindings.grpc_tls import PROOF
from dlspark.serving.bindings.service import REQUEST_BYTES, Caller, GrpcLimits, ProxyService, write_bytes
from dlspark.serving.protocol import distributedlog_pb2 as pb
from dlspark.serving.protocol import rpc_answers, rpc_requests
from dlspark.serving.protocol.operations import (
    AcceptStreams,
    Answer,
    Applied,
    Delivery,
    Handshake,
    ListProxies,
    MoveStream,
    ReadBatch,
    ReadFrom,
    Refusal,
    Request,
    RequestContext,
    StatusCode,
    WriteRecords,
)
from dlspark.serving.protocol.rpc_answers import NO_NAMES, GrpcNames
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.foundation.pacing import MessageLimit
from metadata.foundation.regions import region_named
from metadata.foundation.tasks import end_tasks
from storage_node.errors import ProtocolError

logger = logging.getLogger(__name__)

REGION_KEY: Final = "dlspark-region"
"""The key of the metadata in which a client says in which region it is."""
HEARTBEAT_MS: Final = 10_000
"""The interval at which a Read says that there is nothing, where its client leaves that to the proxy."""
LEAST_HEARTBEAT_MS: Final = 500
MOST_HEARTBEAT_MS: Final = 60_000
"""No longer than a read proxy keeps a read that waits."""
LARGE_BYTES: Final = 256 * 1024
"""A request that counts more is begun in a turn of the loop of its own: many of them arrive together, and each may be
sixteen thousand records. Requests of other clients come between them."""
COPIES: Final = 2
"""Copies of a response in memory until it is taken: gRPC keeps one of its own."""
LOOK_MS: Final = 1_000
"""The interval at which a Read that waits for its log looks whether it exists."""
LONGEST_TIMEOUT_MS: Final = 2**32 - 1
_NUMBERS: Final = count(1)
"""Of calls, for the audit trail."""
T = TypeVar("T")
_NOT_YET: Final = pb.ReadResponse(status=pb.Status(code=pb.Status.SUCCESS)).SerializeToString()
"""The heartbeat of a Read whose log does not exist."""


class Call(Protocol):
    """A call of gRPC as its handler needs it: gRPC's context."""

    def peer(self) -> str:
        """Return `ipv4:host:port`, URL-encoded."""
        ...

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """Return keys and values that the client sends with the call."""
        ...

    def time_remaining(self) -> float | None:
        """Return seconds until the client's deadline, None without one."""
        ...

    async def read(self) -> object:
        """Return the next message, `grpc.aio.EOF` behind the last one."""
        ...

    async def write(self, message: bytes) -> None:
        """Send a message; returns when gRPC takes another one."""
        ...

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """End the call with an error; raises what ends the handler."""
        ...


Handler: TypeAlias = Callable[[bytes, Call], Awaitable[bytes]]


def peer_address(call: Call) -> str:
    """Return `host:port` of the client that makes a call."""
    return _address_of(call.peer())


@lru_cache(maxsize=1024)
def _address_of(peer: str) -> str:
    return unquote(peer).partition(":")[2]


def region_of_call(call: Call) -> str | None:
    """Return the region that the client says it is in; None where it says none. Raises CallerError for the name of
    none."""
    for key, value in call.invocation_metadata() or ():
        if key == REGION_KEY:
            return region_named(value if isinstance(value, str) else value.decode("utf-8", "replace"), key) or None
    return None


class GrpcCalls:
    """How does a call of gRPC become a request, and an answer its message? All calls of one server.

    Args:
        names: where proxies speak gRPC, for answers and requests that name one.
    """

    def __init__(self, service: ProxyService, limits: GrpcLimits, names: GrpcNames = NO_NAMES) -> None:
        self.limits = limits
        self.stopping = asyncio.Event()
        """Set once nothing new is begun any more."""
        self.held_bytes = 0
        self.under_way = 0
        """Calls that are being handled."""
        self.waiting_reads = 0
        """Reads among them whose log does not exist."""
        self.idle = asyncio.Event()
        """Set while there are none."""
        self.idle.set()
        self._large = asyncio.Lock()
        """Held by the one large message that is worked on."""
        self._service = service
        self._names = names
        self._lines = MessageLimit(logger)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return what gRPC calls, for each method of the compiled file."""
        found: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}
        for method in rpc_requests.METHODS.values():
            if method.requests_stream:
                found[method.name] = grpc.stream_stream_rpc_method_handler(self._append)
            elif method.responses_stream:
                found[method.name] = grpc.unary_stream_rpc_method_handler(self._read)
            else:
                found[method.name] = grpc.unary_unary_rpc_method_handler(self._unary(method))
        return grpc.method_handlers_generic_handler(rpc_requests.SERVICE, found)

    # ------------------------------------------------------------------------------------ single requests

    def _unary(self, method: rpc_requests.RpcMethod) -> Handler:
        async def handle(data: bytes, call: Call) -> bytes:
            message, request = await self._understood(method, data, call)
            caller = await self._begin(call)
            try:
                answer = await self.ask(request, caller, len(data), call)
            finally:
                self._end(caller)
            return self.encoded(method.name, answer, getattr(message, "correlation", 0))

        return handle

    async def _understood(self, method: rpc_requests.RpcMethod, data: bytes, call: Call) -> tuple[Message, Request]:
        """Return the message and the request that `data` is; ends the call where it is none."""
        try:
            return self.parsed(method, data)
        except ProtocolError as error:
            await call.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)

    async def ask(self, request: Request, caller: Caller, size: int, call: Call) -> Answer:
        """Return the service's answer to one request; cancelled, it is dropped."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def take(answer: Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        cost = self.cost(request, size)
        refusal = self.objection(cost)
        if refusal is not None:
            return refusal
        request = await self._timed(request, call)
        self.held_bytes += cost
        try:
            if cost > LARGE_BYTES:
                # One at a time, each in a turn of the loop of its own: calls of other clients come between them.
                async with self._large:
                    await asyncio.sleep(0)
            self.submit(request, caller, take)
            return await answered
        finally:
            self.held_bytes -= cost

    async def _timed(self, request: Request, call: Call) -> Request:
        """Return the request with the client's deadline; ends the call where that is over."""
        left_s = call.time_remaining()
        if left_s is None:
            return request
        if left_s <= 0:
            await call.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline was over before the request was begun")
        return with_timeout(request, left_s)

    # ------------------------------------------------------------------------------------ streams

    async def _append(self, _requests: object, call: Call) -> None:
        caller = await self._begin(call)
        append = _Append(self, call, caller)
        try:
            await append.run()
        except grpc.aio.InternalError:
            return  # the client went while an answer was sent: gRPC has no error of its own for that
        finally:
            await append.close()
            self._end(caller)
        await append.finish()  # not in `finally`: it ends the call with an error of gRPC by raising one

    async def _read(self, data: bytes, call: Call) -> None:
        method = rpc_requests.METHODS["Read"]
        message, request = await self._understood(method, data, call)
        if not isinstance(request, ReadBatch) or not isinstance(message, pb.ReadRequest):
            raise TypeError(f"a Read is a {type(request).__name__}")
        wait_ms = min(max(message.heartbeat_ms or HEARTBEAT_MS, LEAST_HEARTBEAT_MS), MOST_HEARTBEAT_MS)
        request = replace(request, wait_ms=wait_ms, max_bytes=min(request.max_bytes, self.limits.read_bytes))
        caller = await self._begin(call)
        try:
            await _Read(self, call, caller, request, wait_for_log=message.wait_for_log).run()
        except grpc.aio.InternalError:
            return  # the client went while a response was sent
        finally:
            self._end(caller)

    # ------------------------------------------------------------------------------------ what calls share

    async def _begin(self, call: Call) -> Caller:
        """Return the caller that a call is; ends the call where its region is none."""
        try:
            region = region_of_call(call)
        except CallerError as error:
            await call.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        self.under_way += 1
        self.idle.clear()
        proof = PROOF.get()
        return Caller(
            peer_address(call),
            proof.principal if proof is not None else None,
            proof.restrictions if proof is not None else None,
            grpc=True,
            region=region,
            session=f"grpc-{next(_NUMBERS)}",
        )

    def _end(self, caller: Caller) -> None:
        self.under_way -= 1
        if not self.under_way:
            self.idle.set()
        self._service.caller_gone(caller)

    def encoded(self, name: str, answer: Answer, correlation: int = 0) -> bytes:
        """Return the message with which a call of this name is answered."""
        try:
            message = rpc_answers.answer_to_pb(name, answer, correlation=correlation, names=self._names)
        except DistributedLogError as error:
            message = rpc_answers.answer_to_pb(name, cannot_be_sent(name, error), correlation=correlation)
        return message.SerializeToString()

    async def read_responses(self, answer: Delivery) -> list[bytes]:
        """Return the messages with which a Read is answered. Other clients come between them; and one large delivery is
        taken apart at a time, for its records take many times the memory of its bytes. Raises DistributedLogError."""
        messages = rpc_answers.read_responses(answer)
        if sum(map(len, answer.parts)) <= LARGE_BYTES:
            return [message.SerializeToString() for message in messages]
        made = []
        async with self._large:
            for message in messages:
                made.append(message.SerializeToString())
                await asyncio.sleep(0)
        return made

    def parsed(self, method: rpc_requests.RpcMethod, data: bytes) -> tuple[Message, Request]:
        """Return the message and the request that `data` is; proxies that it names have their locations. Raises
        ProtocolError."""
        try:
            message = method.request.FromString(data)
        except DecodeError as error:
            raise ProtocolError(f"the bytes are no {method.request.DESCRIPTOR.name}: {error}") from None
        request = rpc_requests.request_from_pb(method.name, message)
        if isinstance(request, MoveStream):
            request = replace(request, target=self._names.location(request.target))
        if isinstance(request, Handshake | AcceptStreams | ListProxies) or not request.context.tried_hosts:
            return message, request
        tried = tuple(map(self._names.location, request.context.tried_hosts))
        return message, _within(request, request.context._replace(tried_hosts=tried))

    def cost(self, request: Request, size: int) -> int:
        """Return what a request of `size` bytes counts while it is under way."""
        if isinstance(request, WriteRecords):
            return size + REQUEST_BYTES + write_bytes(request)
        return size + REQUEST_BYTES

    def objection(self, cost: int) -> Refusal | None:
        """Return the refusal of a request that is not begun, whatever the service would say; None where it is."""
        if self.stopping.is_set():
            return stopping()
        if self.held_bytes + cost > self.limits.memory_bytes:
            return over_capacity()
        return None

    def submit(self, request: Request, caller: Caller, reply: Callable[[Answer], None]) -> None:
        """Give a request to the service; where that raises, the caller has an answer all the same."""
        try:
            self._service.submit(request, caller, reply)
        except Exception as error:  # the boundary: see above
            self._lines.log(logging.ERROR, "a request of %s failed: %r", caller.address, error, error=error)
            message = f"the proxy failed: {type(error).__name__}"
            reply(Refusal(StatusCode.UNEXPECTED, message, applied=Applied.UNKNOWN))


class _Append:
    """One Append: a task reads requests while there is room for them, the handler's writes their answers."""

    def __init__(self, calls: GrpcCalls, call: Call, caller: Caller) -> None:
        self._calls = calls
        self._call = call
        self._caller = caller
        self._answers: deque[tuple[int, int, Answer]] = deque()
        """Correlation number, cost and answer of each that is to be sent."""
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._under_way = 0
        self._held = 0
        self._broken: str | None = None
        self._reader = asyncio.get_running_loop().create_task(self._read_all())
        self._reader.add_done_callback(lambda _: self._changed.set())
        self._stop = asyncio.get_running_loop().create_task(calls.stopping.wait())
        self._stop.add_done_callback(lambda _: self._changed.set())

    async def run(self) -> None:
        """Write answers until there will be none any more: the client has ended, or the server stops."""
        while True:
            while self._answers:
                correlation, cost, answer = self._answers.popleft()
                await self._call.write(self._calls.encoded("Append", answer, correlation))
                # Only now: a client that takes no answers has no more of its requests read.
                self._settle(cost)
            if not self._under_way and (self._reader.done() or self._calls.stopping.is_set()):
                return
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """End what runs, and give back what is counted."""
        await end_tasks([self._reader, self._stop], drop_errors=True)
        self._calls.held_bytes -= self._held
        self._held = 0

    async def finish(self) -> None:
        """End the call: as the client ended it, or with an error of gRPC."""
        if self._broken is not None:
            await self._call.abort(grpc.StatusCode.INVALID_ARGUMENT, self._broken)
        if self._calls.stopping.is_set():
            await self._call.abort(grpc.StatusCode.UNAVAILABLE, "the proxy is being stopped")

    async def _read_all(self) -> None:
        method, eof = rpc_requests.METHODS["Append"], grpc.aio.EOF
        while True:
            await self._room.wait()
            data = await self._call.read()
            if data is eof or not isinstance(data, bytes):
                return
            try:
                message, request = self._calls.parsed(method, data)
            except ProtocolError as error:
                self._broken = error.message  # the call ends with it, behind the answers to what came before
                return
            self._begin(getattr(message, "correlation", 0), request, len(data))

    def _begin(self, correlation: int, request: Request, size: int) -> None:
        calls, limits = self._calls, self._calls.limits
        cost = calls.cost(request, size)
        refusal = calls.objection(cost)
        # A request that is refused counts as well, until its answer is taken: else a client that takes none could have
        # any number of refusals kept for it.
        self._under_way += 1
        self._held += cost
        calls.held_bytes += cost
        if self._under_way >= limits.append_requests or self._held >= limits.append_bytes:
            self._room.clear()
        if refusal is not None:
            self._answered(correlation, cost, refusal)
            return
        # A deadline that is over ends the call by itself. Until then it must not become 0, which is no limit at all.
        left_s = self._call.time_remaining()
        if left_s is not None:
            request = with_timeout(request, max(left_s, 0.001))
        calls.submit(request, self._caller, _Once(self, correlation, cost))

    def _answered(self, correlation: int, cost: int, answer: Answer) -> None:
        self._answers.append((correlation, cost, answer))
        self._changed.set()

    def _settle(self, cost: int) -> None:
        self._under_way -= 1
        self._held -= cost
        self._calls.held_bytes -= cost
        limits = self._calls.limits
        if self._under_way <= limits.append_requests // 2 and self._held <= limits.append_bytes // 2:
            self._room.set()


class _Read:
    """One Read: asks the service for what comes next, again and again, and sends what it is answered."""

    def __init__(self, calls: GrpcCalls, call: Call, caller: Caller, request: ReadBatch, *, wait_for_log: bool) -> None:
        self._calls = calls
        self._call = call
        self._caller = caller
        self._request = request
        self._wait_for_log = wait_for_log
        self._waits = False

    async def run(self) -> None:
        """Send what comes, and a heartbeat whenever nothing came in its time, to the end or a refusal."""
        try:
            await self._run()
        finally:
            self._count_waiting(waits=False)

    def _count_waiting(self, *, waits: bool) -> None:
        self._calls.waiting_reads += waits - self._waits
        self._waits = waits

    async def _run(self) -> None:
        while True:
            answer = await self._next()
            if answer is None:
                await self._call.write(_NOT_YET)
                continue
            self._wait_for_log = False
            self._count_waiting(waits=False)
            if isinstance(answer, Delivery):
                refusal = await self._deliver(answer)
                if refusal is None and answer.end_of_stream:
                    return
                if refusal is None:
                    self._request = replace(self._request, start=answer.next)
                    continue
                answer = refusal
            await self._call.write(self._calls.encoded("Read", answer))
            return

    async def _next(self) -> Answer | None:
        """Return the service's answer; None where the log is waited for, and did not exist for as long as a read
        waits."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._request.wait_ms / 1000
        while True:
            answer = await self._ask()
            if not (self._wait_for_log and isinstance(answer, Refusal) and answer.code is StatusCode.LOG_NOT_FOUND):
                return answer
            if not self._waits and self._calls.waiting_reads >= self._calls.limits.waiting_reads:
                return too_many_wait()
            self._count_waiting(waits=True)
            if self._request.start is ReadFrom.LATEST:
                # All that will be in the log is written after the call, which is what its client asked for: it gets all
                # of it, and hears at once that it is so.
                self._request = replace(self._request, start=ReadFrom.OLDEST)
                return None
            await self._unless_stopping(asyncio.sleep(LOOK_MS / 1000))
            if loop.time() >= until_s:
                return None

    async def _ask(self) -> Answer:
        calls, request = self._calls, self._request
        if request.start is ReadFrom.LATEST:
            # Answered at once: a client that loses its proxy before it knows where it began would begin at another one
            # behind what was written meanwhile.
            request = replace(request, wait_ms=0)
        return await self._unless_stopping(calls.ask(request, self._caller, 0, self._call)) or stopping()

    async def _unless_stopping(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of `work`, None where the server began to stop first: it may have waited for long."""
        asking = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._calls.stopping.wait())
        try:
            await asyncio.wait([asking, stop], return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            await end_tasks([asking, stop], drop_errors=True)

    async def _deliver(self, answer: Delivery) -> Refusal | None:
        """Send what was read, in as many responses as it takes; return why the Read ends, if it does. They count until
        the client has taken all of them."""
        calls = self._calls
        try:
            responses = await calls.read_responses(answer)
        except DistributedLogError as error:
            return cannot_be_sent("Read", error)
        cost = COPIES * sum(map(len, responses))
        if calls.held_bytes + cost > calls.limits.memory_bytes:
            return over_capacity()
        calls.held_bytes += cost
        try:
            for data in responses:
                await self._call.write(data)
        finally:
            calls.held_bytes -= cost
        return None


class _Once:
    """Takes the answer to one request of an Append; a second one is dropped."""

    __slots__ = ("_append", "_correlation", "_cost")

    def __init__(self, append: _Append, correlation: int, cost: int) -> None:
        self._append: _Append | None = append
        self._correlation = correlation
        self._cost = cost

    def __call__(self, answer: Answer) -> None:
        append, self._append = self._append, None
        if append is not None:
            append._answered(self._correlation, self._cost, answer)


def cannot_be_sent(name: str, error: DistributedLogError) -> Refusal:
    """Return the refusal that is sent where the service's answer cannot be: that it was done must not be lost."""
    logger.error("an answer to %s cannot be sent: %s", name, error)
    text = f"it was done, and its answer cannot be sent: {error.message}"
    return Refusal(StatusCode.UNEXPECTED, text, applied=Applied.UNKNOWN)


def stopping() -> Refusal:
    """Return the refusal of a request that comes while the server stops."""
    return Refusal(StatusCode.SERVICE_UNAVAILABLE, "the proxy is being stopped")


def too_many_wait() -> Refusal:
    """Return the refusal of a Read where as many wait for their logs as may."""
    message = "the log does not exist, and as many readers wait for theirs as may"
    return Refusal(StatusCode.OVER_CAPACITY, message, advice="Ask again later, or ask another proxy")


def over_capacity() -> Refusal:
    """Return the refusal of a request while all calls together take all the memory that they may."""
    message = "the requests and answers of all clients take all the memory that they may"
    return Refusal(StatusCode.OVER_CAPACITY, message, advice="Ask again later, or ask another proxy")


def with_timeout(request: Request, seconds: float) -> Request:
    """Return the request, with the client's deadline where it has no shorter time."""
    if isinstance(request, Handshake | AcceptStreams | ListProxies):
        return request
    context = request.context
    left_ms = min(max(int(seconds * 1000), 1), LONGEST_TIMEOUT_MS)
    if 0 < context.timeout_ms <= left_ms:
        return request
    return _within(request, context._replace(timeout_ms=left_ms))


def _within(request: Request, context: RequestContext) -> Request:
    if isinstance(request, Handshake | AcceptStreams | ListProxies):
        return request
    return request.within(context) if isinstance(request, WriteRecords) else replace(request, context=context)
