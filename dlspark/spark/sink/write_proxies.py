"""`WriteProxies`: the write proxies of the serving tier, as the sink meets them.

It sends batches to the one that owns a log, or asks that one to give the log up.

Its client is made when it is first needed; a process that meets no proxy loads nothing of the serving tier.

Fault model: that of the thin client. The log's lock names its owner; a proxy is an owner whose location is among the
members of the namespace. Both may be old by the time at which they are used: the process that is asked knows better.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from dlspark.core.lock_owners import lock_owner
from dlspark.core.services import Services
from metadata.distributedlog.permissions import RequestDeniedError
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.tasks import end_tasks
from metadata.security.proofs import NotAuthenticatedError
from metadata.store import join

if TYPE_CHECKING:
    from dlspark.serving.client.answer_rules import StreamRequest
    from dlspark.serving.process.membership import ProxyEndpoint, ProxyMember
    from dlspark.serving.protocol.operations import Answer
    from metadata.security.settings import SecuritySettings

_log = logging.getLogger(__name__)

ASK_AGAIN_S: Final = 0.5
"""How long a lock is waited for before its owner is asked to give it up, and how often."""
DIAL_S: Final = 2.0
"""How long a proxy is dialled to find out whether it can be."""
DIALLED_AT_ONCE: Final = 8
_LOCATION: Final = "1;"


class ProxyClient(Protocol):
    """The part of a thin client that the sink uses."""

    async def ask(self, request: StreamRequest) -> Answer:
        """Take a request to the proxy that serves its stream, and return its answer. Raises what a refusal says, and an
        OutcomeUnknownError where the request may have been done all the same."""
        ...

    async def close(self) -> None:
        """End it."""
        ...


Connect = Callable[[], Awaitable[ProxyClient]]
Reach = Callable[["ProxyEndpoint"], Awaitable[bool]]


class WriteProxies:
    """The write proxies of one namespace. For one event loop; `close` ends it.

    Args:
        connect: makes the client, when it is first needed.
        namespace_path: where in ZooKeeper the namespace is, with the members of its tier.
        reach: says whether a proxy can be dialled; None: it is dialled.
    """

    def __init__(self, connect: Connect, namespace_path: str, reach: Reach | None = None) -> None:
        self._connect = connect
        self._reach = reach or can_be_dialled
        self._namespace_path = namespace_path
        self._connecting = asyncio.Lock()
        self._client: ProxyClient | None = None

    async def ask(self, request: StreamRequest) -> Answer:
        """Ask as `ProxyClient.ask` does; raises also what connecting raises."""
        async with self._connecting:
            if self._client is None:
                self._client = await self._connect()
            client = self._client
        return await client.ask(request)

    async def own(self, services: Services, log: str) -> bool:
        """Return whether one of them owns the log now."""
        owner = await lock_owner(services, services.logs.paths(log).lock)
        return owner is not None and await self.are(services, owner)

    async def are(self, services: Services, owner: str) -> bool:
        """Return whether this owner of a log is one of them."""
        return owner.startswith(_LOCATION) and owner in {member.location for member in await self._members(services)}

    async def within_reach(self, services: Services) -> bool:
        """Return whether one runs that can be dialled from here."""
        endpoints = [member.frames for member in await self._members(services) if member.frames is not None]
        return any(await asyncio.gather(*map(self._reach, endpoints[:DIALLED_AT_ONCE])))

    async def _members(self, services: Services) -> list[ProxyMember]:
        """Return the proxies that run and take frames."""
        from dlspark.serving.process.membership import WRITE_PROXIES, read_members

        members = await read_members(services.store, join(self._namespace_path, WRITE_PROXIES))
        return [member for member in members if member.frames is not None]

    @asynccontextmanager
    async def asked_to_yield(self, services: Services, log: str) -> AsyncIterator[None]:
        """Ask one of them that owns the log to give it up, while the log's lock is waited for in its queue.

        Others of its clients wait meanwhile, and go on. What fails is asked again: then it is waited for as for any
        other owner.
        """
        asking = asyncio.ensure_future(self._ask_to_yield(services, log))
        try:
            yield
        finally:
            await end_tasks([asking], drop_errors=True)

    async def _ask_to_yield(self, services: Services, log: str) -> None:
        from dlspark.serving.protocol.operations import Heartbeat, ReleaseStream

        said = ""
        while True:
            await asyncio.sleep(ASK_AGAIN_S)
            try:
                if await self.own(services, log):
                    # By a heartbeat the client learns which proxy owns the log: any other says that it has been given
                    # up.
                    await self.ask(Heartbeat(log))
                    await self.ask(ReleaseStream(log))
            except (NotAuthenticatedError, RequestDeniedError) as refusal:
                # It lasts until somebody gives the right, which is not to be guessed from a wait.
                if str(refusal) != said:
                    said = str(refusal)
                    _log.warning("log %s is waited for: the proxy that owns it does not give it up: %s", log, said)
            except DistributedLogError:
                pass

    async def close(self) -> None:
        """End the client. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()


async def can_be_dialled(endpoint: ProxyEndpoint) -> bool:
    """Return whether something listens there."""
    from metadata.foundation.socks import socks_proxy
    from storage_node.transport.tcp import dial

    try:
        connection = await asyncio.wait_for(dial(endpoint.host, endpoint.port, socks_proxy()), DIAL_S)
    except (OSError, asyncio.TimeoutError):
        return False
    connection.close()
    return True


def proxies_at(
    where: str, namespace_path: str, timeout_ms: int, security: SecuritySettings | None = None
) -> WriteProxies:
    """Return the proxies of a list `host:port,host:port`, or of a namespace with this URI, which announces them.

    Args:
        timeout_ms: how long a request is tried.
        security: by what this process proves itself, as it does to ZooKeeper; None: as its environment says. Only
            processes beside the driver talk to write proxies, never tasks: so they need no tokens.
    """

    async def connect() -> ProxyClient:
        from dlspark.serving.client.client import AsyncClient
        from dlspark.serving.client.settings import ThinClientSettings
        from metadata.security.settings import SecuritySettings

        # In the middle of a rolling change: proxies speak TLS by then, and their clients never less than they could.
        said = security or SecuritySettings()
        secured = replace(said, security="on") if said.security == "optional" else said
        return await AsyncClient.connect(where, ThinClientSettings(request_timeout_ms=max(timeout_ms, 1), tls=secured))

    return WriteProxies(connect, namespace_path)
