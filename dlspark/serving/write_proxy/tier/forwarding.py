"""`TierForwarder`: how a write proxy's service asks other write proxies."""

from __future__ import annotations

from collections.abc import Callable

from dlspark.serving.process.membership import ProxyMember
from dlspark.serving.process.peers import CALL_TIMEOUT_MS, ProxyPeers
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import Answer, Request
from dlspark.serving.routing.hosts import address_of
from metadata.foundation.errors import CallerError


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
