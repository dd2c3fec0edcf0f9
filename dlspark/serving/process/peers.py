"""The other proxies of a namespace, for one of them: which there are, and how they are asked.

    ProxyDirectory   the proxies as one of them knows them, and how they are named in gRPC
    ProxyPeers       requests to proxies that the caller names, over frames
    TierForwarder    the same on behalf of clients, who may name anything: only members are asked

A proxy is known by its location, which has its port for frames. A client of gRPC dials another port: answers say it
beside a location, and where such a client names a proxy itself, it may do so by the address that it dials.

There is one connection to a proxy, made when it is first asked, made anew where it was lost. A request is sent once:
nothing is repeated and nothing sent on to an owner, for the caller has chosen the proxy. Whatever goes wrong is an
answer: a Refusal that says whether it may have been done.

Fault model: the members are as old as ZooKeeper's watches are. A name that is not known stays as it was given. A proxy
that is asked may be gone, hang, or answer late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from dlspark.serving.bindings.frames_client import FramesClient
from dlspark.serving.process.membership import ProxyMember
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import Answer, ListedProxy, ProxyKind, ProxyList, Request
from dlspark.serving.routing.hosts import address_of
from dlspark.serving.security.credentials import ClientCredentials
from metadata.foundation.errors import CallerError, DistributedLogError, OutcomeUnknownError
from metadata.foundation.tasks import each
from storage_node.edge import Network

CONNECT_TIMEOUT_MS: Final = 2_000
CALL_TIMEOUT_MS: Final = 10_000
MAX_PEERS: Final = 1_024
"""Connections at a time; one more closes the idle one that was used the longest time ago."""


def no_credentials(_address: str) -> ClientCredentials | None:
    """Return what is shown where security is off."""
    return None


class ProxyDirectory:
    """Which proxies are there, and what is each called? Write proxies and read proxies; also a `GrpcNames`. No I/O."""

    def __init__(self) -> None:
        self._members: dict[ProxyKind, tuple[ProxyMember, ...]] = {}
        self._own: ProxyMember | None = None
        self._grpc_of: dict[str, str] = {}
        """Where a proxy speaks gRPC, by its location; those that do not speak it are left out."""
        self._locations: dict[str, str] = {}
        self._secured: frozenset[str] = frozenset()
        """Addresses at which TLS is spoken."""
        self._addresses: frozenset[str] = frozenset()
        """Of write proxies."""

    def use_own(self, member: ProxyMember) -> None:
        """Note that this is the proxy itself, which need not be a member."""
        self._own = member
        self._index()

    def use(self, kind: ProxyKind, members: Iterable[ProxyMember]) -> frozenset[str]:
        """Note that these are all of a kind; return the addresses of members that are gone, or were replaced."""
        before = self._members.get(kind, ())
        members = self._members[kind] = tuple(members)
        # By the znode's name as well: a process that came back at its address holds none of its former locks.
        here = {(one.name, one.endpoint) for one in members}
        self._index()
        return frozenset(str(one.endpoint) for one in before if (one.name, one.endpoint) not in here)

    def _index(self) -> None:
        own = (self._own,) if self._own is not None else ()
        known = [*(one for members in self._members.values() for one in members), *own]
        self._grpc_of = {one.location: str(one.grpc) for one in known if one.grpc is not None}
        self._locations = {address: location for location, address in self._grpc_of.items()}
        self._secured = frozenset(str(one.endpoint) for one in known if one.secured)
        self._addresses = frozenset(str(one.endpoint) for one in self._members.get(ProxyKind.WRITE, ()))

    def announced(self, location: str) -> bool:
        """Return whether a write proxy with the address of this location is announced: its session has not ended."""
        return address_of(location) in self._addresses

    def speaks_tls(self, address: str) -> bool:
        """Return whether a proxy of this address announces that it speaks frames under TLS."""
        return address in self._secured

    def grpc_address(self, location: str) -> str:
        """Return where the proxy at a location speaks gRPC; empty where it does not, or that is not known."""
        return self._grpc_of.get(location, "")

    def location(self, name: str) -> str:
        """Return the location of the proxy that speaks gRPC at an address; a name that is no such address as it is."""
        return self._locations.get(name, name)

    def listed(self) -> ProxyList:
        """Return all that are announced, as answers list them."""
        return ProxyList(
            tuple(
                ListedProxy(kind, one.location, str(one.grpc) if one.grpc is not None else "")
                for kind, members in self._members.items()
                for one in members
            )
        )


class ProxyPeers:
    """How does a proxy, or a tool, ask other proxies? Holds the connections; for one running loop.

    Args:
        connect_timeout_ms: how long making a connection may take.
        on_lost: called with the address of a proxy whose connection ended.
        credentials_for: what is shown to the proxy at an address, under TLS; None: nothing, without TLS.
    """

    def __init__(
        self,
        network: Network,
        *,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        on_lost: Callable[[str], None] | None = None,
        credentials_for: Callable[[str], ClientCredentials | None] = no_credentials,
    ) -> None:
        self._network = network
        self._credentials_for = credentials_for
        self._on_lost = on_lost
        self._connect_timeout_ms = connect_timeout_ms
        self._clients: dict[str, FramesClient] = {}
        """By address, the one that was used last at the end."""
        self._connecting: dict[str, tuple[asyncio.Lock, int]] = {}
        """The lock that is held to connect, and how many want the connection."""

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
        # A lock for each address, so that a proxy that hangs keeps only its own callers waiting. It is counted, and
        # goes with the last that waits for it: addresses come from clients.
        lock, waiting = self._connecting.get(address, (asyncio.Lock(), 0))
        self._connecting[address] = lock, waiting + 1
        try:
            async with lock:
                client = self._clients.pop(address, None)
                if client is not None and client.stale:
                    client.finish()  # what is under way ends there
                    client = None
                if client is None or client.closed:
                    client = await FramesClient.connect(
                        self._network,
                        address,
                        timeout_ms=self._connect_timeout_ms,
                        on_closed=partial(self._on_lost, address) if self._on_lost is not None else None,
                        credentials=self._credentials_for(address),
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


class TierForwarder:
    """May this proxy be asked, though a client named it? Asks other proxies on behalf of a service: members only."""

    def __init__(self, peers: ProxyPeers, members: Callable[[], tuple[ProxyMember, ...]]) -> None:
        self._peers = peers
        self._members = members

    async def call(self, location: str, request: Request, timeout_ms: int = CALL_TIMEOUT_MS) -> Answer:
        """Return what the proxy at `location` answers (`streams.hand_over.Forwarder`); a Refusal where it is not a
        member of this namespace, which is not asked at all."""
        address = address_of(location)
        if all(str(one.endpoint) != address or one.frames is None for one in self._members()):
            error = CallerError(f"{location} is not a write proxy here", advice="dlspark proxy list shows them all")
            return refusal_of(error)
        return await self._peers.call(address, request, timeout_ms)
