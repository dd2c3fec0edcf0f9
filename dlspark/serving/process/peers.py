"""`ProxyPeers`: requests from a proxy or a tool to proxies that it names, over frames.

One connection to a proxy, made when it is first asked, made anew where it was lost. A request is sent once: nothing is
repeated and nothing sent on to an owner, for who asks here knows whom it asks. Whatever goes wrong is an answer: a
Refusal that says whether it may have been done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from dlspark.serving.bindings.frames_client import FramesClient
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import Answer, Request
from dlspark.serving.routing.hosts import address_of
from metadata.foundation.errors import DistributedLogError, OutcomeUnknownError
from metadata.foundation.tasks import each
from storage_node.edge import Network

CONNECT_TIMEOUT_MS: Final = 2_000
CALL_TIMEOUT_MS: Final = 10_000
MAX_PEERS: Final = 1_024
"""Connections at a time; one more closes the idle one that was used the longest time ago."""


class ProxyPeers:
    """The connections; for one running loop."""

    def __init__(
        self,
        network: Network,
        *,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        """`on_lost` is called with the address of a proxy whose connection ended."""
        self._network = network
        self._on_lost = on_lost
        self._connect_timeout_ms = connect_timeout_ms
        self._clients: dict[str, FramesClient] = {}
        """By address, the one that was used last at the end."""
        self._connecting: dict[str, tuple[asyncio.Lock, int]] = {}
        """Who connects holds the lock; how many want the connection."""

    async def call(self, location: str, request: Request, timeout_ms: int = CALL_TIMEOUT_MS) -> Answer:
        """Return what the proxy at `location` (`1;<shard>;<host>:<port>`, or `host:port`) answers to `request`.

        Where it cannot be asked, or does not answer in time, a Refusal that says so.
        """
        address = address_of(location)
        try:
            client = await self._client(address)
        except DistributedLogError as error:
            return refusal_of(error)
        try:
            return await asyncio.wait_for(client.call(request), timeout_ms / 1000)
        except asyncio.TimeoutError:
            return refusal_of(OutcomeUnknownError(f"no answer within {timeout_ms} ms", node=address))

    async def _client(self, address: str) -> FramesClient:
        lock, waiting = self._connecting.get(address, (asyncio.Lock(), 0))
        self._connecting[address] = lock, waiting + 1
        try:
            async with lock:
                client = self._clients.pop(address, None)
                if client is None or client.closed:
                    client = await FramesClient.connect(
                        self._network,
                        address,
                        timeout_ms=self._connect_timeout_ms,
                        on_closed=partial(self._on_lost, address) if self._on_lost is not None else None,
                    )
                self._clients[address] = client
        finally:
            waiting = self._connecting.pop(address)[1] - 1
            if waiting:
                self._connecting[address] = lock, waiting
        await self._make_room(address)
        return client

    async def _make_room(self, wanted: str) -> None:
        idle = [one for one, client in self._clients.items() if one != wanted and not client.requests_under_way]
        for address in idle[: max(0, len(self._clients) - MAX_PEERS)]:
            await self._clients.pop(address).close()

    async def close(self) -> None:
        """End all connections; what is under way is answered that its outcome is not known. Idempotent."""
        clients, self._clients = list(self._clients.values()), {}
        await each([client.close for client in clients])
