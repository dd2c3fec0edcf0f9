"""What stands between a write proxy's service and the outside: the door that clients come to, and the way to others."""

from __future__ import annotations

from collections.abc import Callable

from dlspark.errors import ServiceUnavailableError
from dlspark.serving.bindings.service import Caller, ProxyService, Reply
from dlspark.serving.process.membership import ProxyMember
from dlspark.serving.process.peers import CALL_TIMEOUT_MS, ProxyPeers
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import Answer, Request
from dlspark.serving.routing.hosts import address_of
from metadata.foundation.errors import CallerError


class ServiceDoor:
    """Stands at the port as soon as it is open; the service comes behind it when the location is known."""

    def __init__(self) -> None:
        self._service: ProxyService | None = None

    def open(self, service: ProxyService) -> None:
        """Hand everything on from here on."""
        self._service = service

    def submit(self, request: Request, caller: Caller, reply: Reply) -> None:
        """See `ProxyService`."""
        if self._service is None:
            reply(refusal_of(ServiceUnavailableError("the proxy is starting", advice="Ask another one, or again")))
            return
        self._service.submit(request, caller, reply)

    def caller_gone(self, caller: Caller) -> None:
        """See `ProxyService`."""
        if self._service is not None:
            self._service.caller_gone(caller)


class TierForwarder:
    """Asks other proxies on behalf of the service: members only, for targets are named by clients."""

    def __init__(self, peers: ProxyPeers, members: Callable[[], tuple[ProxyMember, ...]]) -> None:
        self._peers = peers
        self._members = members

    async def call(self, location: str, request: Request, timeout_ms: int = CALL_TIMEOUT_MS) -> Answer:
        """See `Forwarder`. What is not a write proxy of this namespace is not asked, and the answer is a Refusal."""
        address = address_of(location)
        if all(str(one.endpoint) != address or one.frames is None for one in self._members()):
            error = CallerError(f"{location} is not a write proxy here", advice="dlspark proxy list shows them all")
            return refusal_of(error)
        return await self._peers.call(address, request, timeout_ms)
