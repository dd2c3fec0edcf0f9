"""`GrpcServer`: the gRPC binding of a `ProxyService`, for any language, with gRPC's standard health and reflection.

For administration, batches and tailing from programs in any language: every call costs far more than a frame does, so
records that are written one by one belong on frames (`frames_client`), or many of them into one Write or Append.

A client that asks `grpc.health.v1.Health` about "" or the service learns whether the proxy takes calls. `close` is
graceful: NOT SERVING first, then every new request is refused with SERVICE_UNAVAILABLE, and calls under way end within
the grace. A process that has imported this must not fork afterwards: gRPC's threads are gone in the child, its locks
are not.

How many calls one client's host has at a time, of whatever service, from their first bytes on (`CallsOfHosts`). gRPC
counts a call as soon as its headers are there, bounds the calls of all clients together, and refuses everyone beyond
that. The bound of one host leaves room to the others. So it has to count what gRPC counts: calls whose message has not
come, and those of health and reflection. The host is known from the call's context, which a handler gets only behind
the message. So each handler is given to gRPC as one that takes a stream of requests, and the message of a call that has
but one is read here, within a time.

Options of channels are made together for both sides: what one side does the other must bear. A server of gRPC ends a
connection (GOAWAY, too_many_pings) that is pinged more often than every five minutes while it sends nothing, and more
often than every two hours while there are no calls on it, unless its options say otherwise. Here `least_ping_ms` says
how often, and it holds without calls, too. Pings that come sooner are counted (strikes) until the server sends
something; MAX_STRIKES of them may come late or together, as they do when a process was held up. Lengths of messages
come from the request's limit, not from gRPC's default of 4 MB.

Fault model: a client may begin calls and send nothing, watch the health of a proxy on a thousand streams, or vanish;
its calls end with its connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from inspect import isasyncgen
from typing import Any, Final, TypeAlias

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from dlspark.serving.bindings.grpc_calls import GrpcCalls, peer_address
from dlspark.serving.bindings.grpc_tls import HEALTH, NO_PORT, PROOF, GrpcTls, proof_of_call, proof_over
from dlspark.serving.bindings.service import STEP_BYTES, GrpcLimits, ProxyService
from dlspark.serving.protocol.rpc_answers import NO_NAMES, GrpcNames
from dlspark.serving.protocol.rpc_requests import SERVICE
from dlspark.serving.security.authentication import Authentication, PeerProof
from metadata.foundation.addresses import address_text
from metadata.foundation.errors import CallerError, check, present
from metadata.foundation.tasks import end_tasks
from metadata.security.proofs import NotAuthenticatedError

logger = logging.getLogger(__name__)

Options: TypeAlias = tuple[tuple[str, int], ...]
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

CLOSE_GRACE_S = 5.0
"""The time for which `close` waits for calls by default."""
LAST_WORDS_S = 0.2
"""The time that calls with their answers have, at least, to deliver them."""
CLIENT_KEEPALIVE_MS: Final = 30_000
CLIENT_KEEPALIVE_TIMEOUT_MS: Final = 20_000
MAX_STRIKES: Final = 2
"""gRPC's own number; 0 would mean that pings are never too many."""


def server_options(limits: GrpcLimits) -> Options:
    """Return the options of a server with these limits."""
    return (
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.max_send_message_length", max(limits.message_bytes, limits.read_bytes) + STEP_BYTES),
        ("grpc.max_concurrent_streams", limits.streams_per_connection),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.max_metadata_size", limits.metadata_bytes),
        ("grpc.absolute_max_metadata_size", limits.metadata_bytes),
        ("grpc.server_handshake_timeout_ms", limits.handshake_ms),
        ("grpc.max_connection_idle_ms", limits.idle_ms),
        ("grpc.keepalive_time_ms", limits.keepalive_ms),
        ("grpc.keepalive_timeout_ms", limits.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", limits.least_ping_ms),
        ("grpc.http2.max_ping_strikes", MAX_STRIKES),
        ("grpc.so_reuseport", 0),  # two proxies that share a port by mistake would share its clients by chance
    )


def client_options(
    *, message_bytes: int = GrpcLimits().message_bytes, keepalive_ms: int = CLIENT_KEEPALIVE_MS
) -> Options:
    """Return the options of a client's channel to such a server: it takes what the server sends, and lives while it is
    idle."""
    return (
        ("grpc.max_receive_message_length", message_bytes + STEP_BYTES),
        ("grpc.max_send_message_length", message_bytes),
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", CLIENT_KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )


class CallsOfHosts(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """How many calls has each client's host, is one more too many, and who makes it? Stands before all handlers of one
    server."""

    def __init__(self, limits: GrpcLimits, authentication: Authentication | None = None) -> None:
        self._limits = limits
        self._authentication = authentication
        self._taken: dict[str, int] = {}
        self._handlers: dict[str, tuple[object, grpc.RpcMethodHandler[Any, Any]]] = {}
        """By method, of those that there are: the handler, and the one with the count before it."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the handler of a call with the count before it; None where there is no such call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        known = self._handlers.get(method)
        if known is None or known[0] is not handler:
            known = self._handlers[method] = handler, self._counted(handler, method)
        return known[1]

    def _counted(self, handler: Any, method: str) -> grpc.RpcMethodHandler[Any, Any]:
        handle = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream

        async def run(requests: object, context: Context) -> object:
            host = await self._counted_in(context)
            try:
                proof = await self._proof(context, method)
                if proof is not None and handler.response_streaming:
                    return await self._while_proven(answer(requests, context), proof, context)
                return await answer(requests, context)
            finally:
                self._count_out(host)

        async def answer(requests: object, context: Context) -> object:
            asked = requests if handler.request_streaming else await self._message(context)
            answered = handle(asked, context)
            # Health and reflection answer with generators; our own handlers write by themselves, or return one.
            if not isasyncgen(answered):
                return await answered
            async for one in answered:
                await context.write(one)
            return None

        streams = handler.response_streaming
        make = grpc.stream_stream_rpc_method_handler if streams else grpc.stream_unary_rpc_method_handler
        made: grpc.RpcMethodHandler[Any, Any] = make(run, handler.request_deserializer, handler.response_serializer)
        return made

    async def _proof(self, context: Context, method: str) -> PeerProof | None:
        """Return what was proved of a call, None where nothing is to be; ends the call where that is not enough."""
        if self._authentication is None:
            return None
        try:
            proof = proof_of_call(self._authentication, context, peer_address(context), method)
        except NotAuthenticatedError as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.message)
            raise
        PROOF.set(proof)
        return None if method.startswith(HEALTH) else proof

    async def _while_proven(self, answering: Coroutine[Any, Any, object], proof: PeerProof, context: Context) -> object:
        """Return what a call that may last is answered; ends it with its proof."""
        authentication = present(self._authentication, "there is a proof without who took it")
        work = asyncio.ensure_future(answering)
        over = asyncio.ensure_future(proof_over(authentication, proof, peer_address(context)))
        try:
            await asyncio.wait([work, over], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            error = over.result()
        finally:
            await end_tasks([work, over], drop_errors=True)
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.message)
        raise error

    async def _counted_in(self, context: Context) -> str:
        """Count a call, and return its host; ends the call where its host has all the calls that it may have."""
        host = peer_address(context).rpartition(":")[0]
        taken = self._taken.get(host, 0)
        if taken >= self._limits.calls_per_host:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{taken} calls of {host} are under way")
        self._taken[host] = taken + 1
        return host

    def _count_out(self, host: str) -> None:
        self._taken[host] -= 1
        if not self._taken[host]:
            del self._taken[host]

    async def _message(self, context: Context) -> object:
        """Return the one message of a call; ends the call where it has none, or that takes too long."""
        # Read by the call's own task, which a timer cuts off. A task that is waited for with a time-out would cost as
        # much as all else that is done here for a call.
        reading, late = present(asyncio.current_task(), "a call is handled by no task"), False
        loop = asyncio.get_running_loop()
        limit: asyncio.Handle

        def time_is_up() -> None:
            nonlocal limit
            limit = loop.call_soon(cut_off)  # behind a message that came in this turn: the loop may have stood still

        def cut_off() -> None:
            nonlocal late
            late = True
            reading.cancel()

        limit = loop.call_later(self._limits.message_ms / 1000, time_is_up)
        try:
            message = await context.read()
        except asyncio.CancelledError:
            if not late:
                raise  # the call is cancelled
            said = f"its message has not come within {self._limits.message_ms} ms"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, said)
        finally:
            limit.cancel()
        if message is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")
        return message


class GrpcServer:
    """How do clients in any language reach a service? Serves it on one port, for the loop on which it is started.

    Args:
        service: takes all requests.
        names: where proxies speak gRPC, for answers and requests that name one.
        tls: TLS, and what clients must prove; None: neither.
    """

    def __init__(
        self,
        service: ProxyService,
        *,
        limits: GrpcLimits | None = None,
        names: GrpcNames = NO_NAMES,
        tls: GrpcTls | None = None,
    ) -> None:
        self.limits = limits or GrpcLimits()
        self._tls = tls
        self.tls_port: int | None = None
        """The port at which TLS is spoken; None where it is not."""
        self._service = service
        self._names = names
        self._calls: GrpcCalls | None = None
        self._server: grpc.aio.Server | None = None
        self._health: health.aio.HealthServicer | None = None
        self._port = 0
        self._closed = False

    @property
    def port(self) -> int:
        """The port that is listened on. Raises InvariantViolation before `start`."""
        check(self._port != 0, "the gRPC server is not started")
        return self._port

    @property
    def calls_under_way(self) -> int:
        """Calls that are being handled."""
        return 0 if self._calls is None else self._calls.under_way

    @property
    def held_bytes(self) -> int:
        """Bytes of the requests without an answer."""
        return 0 if self._calls is None else self._calls.held_bytes

    async def start(self, host: str, port: int) -> None:
        """Listen on `host` ("" for all interfaces); port 0 takes a free one. Raises OSError where it is taken."""
        check(self._server is None and not self._closed, "a gRPC server is started once")
        self._calls = GrpcCalls(self._service, self.limits, self._names)
        server = grpc.aio.server(
            interceptors=(CallsOfHosts(self.limits, self._tls.authentication if self._tls is not None else None),),
            options=server_options(self.limits),
            maximum_concurrent_rpcs=self.limits.calls,
        )
        server.add_generic_rpc_handlers((self._calls.handlers(),))
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        self._open_ports(server, host, port)
        await server.start()
        self._server = server
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        logger.info("serving gRPC on port %d", self._port)

    def _open_ports(self, server: grpc.aio.Server, host: str, port: int) -> None:
        """Listen. Raises OSError; CallerError where plain connections and TLS would have to share the port."""
        tls = self._tls
        if tls is None:
            self._port = _listening(server, host, port, None)
            return
        plain_too, credentials = tls.authentication.plain_too, tls.credentials()
        if plain_too and tls.port == NO_PORT:
            raise CallerError(
                "with security=optional gRPC needs a port for each kind of connection",
                advice="Set grpcTlsPort for those under TLS, or leave gRPC out",
            )
        self._port = _listening(server, host, port, None if plain_too else credentials)
        self.tls_port = self._port
        if tls.port != NO_PORT:
            self.tls_port = _listening(server, host, tls.port, credentials)

    async def close(self, *, grace_s: float = CLOSE_GRACE_S) -> None:
        """Stop: NOT_SERVING, refuse what is new, answer what is under way within `grace_s` seconds, end. Idempotent."""
        if self._closed:
            return
        self._closed = True
        server, calls, health_of_it = self._server, self._calls, self._health
        if server is None or calls is None or health_of_it is None:
            return
        # Health first: a balancer that goes by it sends nothing more here, while what is under way is still answered.
        await health_of_it.enter_graceful_shutdown()
        calls.stopping.set()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        idle = loop.create_task(calls.idle.wait())
        try:
            await asyncio.wait([idle], timeout=grace_s)
        finally:
            await end_tasks([idle])
        await server.stop(max(deadline - loop.time(), 0) if calls.under_way else min(grace_s, LAST_WORDS_S))


def _listening(server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None) -> int:
    """Return the port that is listened on, under TLS with credentials. Raises OSError where it is taken."""
    where = address_text(host or "::", port)
    try:
        if credentials is None:
            return int(server.add_insecure_port(where))
        return int(server.add_secure_port(where, credentials))
    except RuntimeError as error:
        raise OSError(f"cannot listen on {where}: {error}") from error
