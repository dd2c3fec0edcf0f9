"""`CallsOfHosts`: how many calls one client's host has at a time, of whatever service, from their first bytes on.

gRPC counts a call as soon as its headers are there, bounds the calls of all clients together, and refuses everyone
beyond that. The bound of one host leaves places to the others. So it has to count what gRPC counts: calls whose message
has not come, and those of health and reflection. Who is counted is known from the call's context, which a handler gets
only behind the message. So each handler is given to gRPC as one that takes a stream of requests, and the message of a
call that has but one is read here, within a time.

Fault model: a client may begin calls and send nothing, watch the health of a proxy on a thousand streams, or vanish;
its calls end with its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isasyncgen
from typing import Any, TypeAlias
from urllib.parse import unquote

import grpc

from dlspark.serving.bindings.bounds import GrpcLimits

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


def peer_address(context: Any) -> str:
    """`host:port` of who makes a call."""
    return unquote(context.peer()).partition(":")[2]


class CallsOfHosts(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Stands before all handlers of one server."""

    def __init__(self, limits: GrpcLimits) -> None:
        self._limits = limits
        self._taken: dict[str, int] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the handler of a call with the count before it; None as it is: there is no such call."""
        handler = await continuation(handler_call_details)
        return handler if handler is None else self._counted(handler)

    def _counted(self, handler: Any) -> grpc.RpcMethodHandler[Any, Any]:
        handle = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream

        async def run(requests: object, context: Context) -> object:
            async with self._place(context):
                asked = requests if handler.request_streaming else await self._message(context)
                answered = handle(asked, context)
                if not isasyncgen(answered):
                    return await answered
                async for answer in answered:
                    await context.write(answer)
                return None

        streams = handler.response_streaming
        make = grpc.stream_stream_rpc_method_handler if streams else grpc.stream_unary_rpc_method_handler
        made: grpc.RpcMethodHandler[Any, Any] = make(run, handler.request_deserializer, handler.response_serializer)
        return made

    @asynccontextmanager
    async def _place(self, context: Context) -> AsyncIterator[None]:
        """Count a call, or end it where its host has all the calls that it may have."""
        host = peer_address(context).rpartition(":")[0]
        taken = self._taken.get(host, 0)
        if taken >= self._limits.calls_per_host:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{taken} calls of {host} are under way")
        self._taken[host] = taken + 1
        try:
            yield
        finally:
            self._taken[host] -= 1
            if not self._taken[host]:
                del self._taken[host]

    async def _message(self, context: Context) -> object:
        """Return the one message of a call; ends the call where it has none, or that takes too long."""
        reading = asyncio.ensure_future(context.read())
        try:  # not `wait_for`, which may pass over that the call is cancelled when the message comes
            await asyncio.wait([reading], timeout=self._limits.message_ms / 1000)
        finally:
            reading.cancel()
        if not reading.done():
            said = f"its message has not come within {self._limits.message_ms} ms"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, said)
        message = reading.result()
        if message is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")
        return message
