"""`GrpcServer`: the gRPC binding of a `ProxyService`, for any language, with gRPC's standard health and reflection.

For administration, batches and tailing from programs in any language: every call costs far more than a frame does, so
records that are written one by one belong on frames (`frames_client`), or many of them into one Write or Append.

Who asks `grpc.health.v1.Health` about "" or the service learns whether the proxy takes calls. `close` is graceful: NOT
SERVING first, then every new request is refused with SERVICE_UNAVAILABLE, and calls under way end within the grace.

A process that has imported this must not fork afterwards: gRPC's threads are gone in the child, its locks are not.
"""

from __future__ import annotations

import asyncio
import logging

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from dlspark.serving.bindings.bounds import GrpcLimits
from dlspark.serving.bindings.grpc_calls import GrpcCalls
from dlspark.serving.bindings.grpc_hosts import CallsOfHosts
from dlspark.serving.bindings.grpc_options import server_options
from dlspark.serving.bindings.service import ProxyService
from dlspark.serving.protocol.rpc_answers import NO_NAMES, GrpcNames
from dlspark.serving.protocol.rpc_requests import SERVICE
from metadata.foundation.addresses import address_text
from metadata.foundation.errors import check
from metadata.foundation.tasks import end_tasks

logger = logging.getLogger(__name__)

CLOSE_GRACE_S = 5.0
"""How long `close` waits for calls by default."""
LAST_WORDS_S = 0.2
"""What calls that have their answers get at least to deliver them."""


class GrpcServer:
    """Serves `service` on one port; for the loop on which it is started."""

    def __init__(self, service: ProxyService, *, limits: GrpcLimits | None = None, names: GrpcNames = NO_NAMES) -> None:
        """`names`: where proxies speak gRPC, for answers and requests that name one."""
        self.limits = limits or GrpcLimits()
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
        """What requests without an answer take now."""
        return 0 if self._calls is None else self._calls.held_bytes

    async def start(self, host: str, port: int) -> None:
        """Listen on `host` ("" for all interfaces); port 0 takes a free one. Raises OSError where it is taken."""
        check(self._server is None and not self._closed, "a gRPC server is started once")
        self._calls = GrpcCalls(self._service, self.limits, self._names)
        server = grpc.aio.server(
            interceptors=(CallsOfHosts(self.limits),),
            options=server_options(self.limits),
            maximum_concurrent_rpcs=self.limits.calls,
        )
        server.add_generic_rpc_handlers((self._calls.handlers(),))
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        where = address_text(host or "::", port)
        try:
            self._port = server.add_insecure_port(where)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {where}: {error}") from error
        await server.start()
        self._server = server
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        logger.info("serving gRPC on port %d", self._port)

    async def close(self, *, grace_s: float = CLOSE_GRACE_S) -> None:
        """Stop: NOT_SERVING, refuse what is new, answer what is under way within `grace_s` seconds, end. Idempotent."""
        if self._closed:
            return
        self._closed = True
        server, calls, health_of_it = self._server, self._calls, self._health
        if server is None or calls is None or health_of_it is None:
            return
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
