"""Write proxies for the cluster of `appends_world`: real services and real thin clients, over links in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dlspark.core.namespace import AsyncNamespace
from dlspark.errors import ProxyUnreachableError
from dlspark.serving.bindings.service import Caller, Reply
from dlspark.serving.client.client import AsyncClient
from dlspark.serving.client.fleet import StaticFleet
from dlspark.serving.client.settings import ThinClientSettings
from dlspark.serving.process.membership import WRITE_PROXIES, ProxyEndpoint, proxy_member
from dlspark.serving.protocol.operations import Answer, Heartbeat, Request, WriteRecords
from dlspark.serving.write_proxy.service import WriteProxyService
from dlspark.serving.write_proxy.settings import WriteProxySettings
from helpers.serving.memory_proxies import MemoryLink


class ClusterClock:
    """Goes with the loop; the time of day may be ahead."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000) + self.ahead_ms

    def elapsed_s(self) -> float:
        return asyncio.get_running_loop().time()


class LinkedProxy:
    """One proxy: a process of its own as far as the cluster can tell. `MemoryLink` takes it for a service."""

    def __init__(self, number: int, namespace: AsyncNamespace, settings: WriteProxySettings) -> None:
        self.address = f"proxy{number}:8000"
        self.location = f"1;{number};{self.address}"
        self.namespace = namespace
        self.service = WriteProxyService(namespace, settings, location=self.location)
        self.links: list[MemoryLink] = []
        self.batches: list[WriteRecords] = []
        """The batches that came."""
        self.lose_requests = 0
        """So many batches are lost, with their connection, before they are done."""
        self.lose_answers = 0
        """So many batches are done, and the connection is lost instead of the answer."""

    async def announce(self) -> None:
        """Be a member of the namespace as long as the session lives."""
        member = proxy_member(ProxyEndpoint.parse(self.address), int(self.location.split(";")[1]))
        await self.namespace.store.create(
            f"/dl/{WRITE_PROXIES}/member_", member.encode(), ephemeral=True, sequential=True, make_parents=True
        )

    def submit(self, request: Request, caller: Caller, reply: Reply) -> None:
        if isinstance(request, WriteRecords):
            self.batches.append(request)
            if self.lose_requests:
                self.lose_requests -= 1
                self.lose()
                return
        self.service.submit(request, caller, lambda answer: self._answered(request, answer, reply))

    def _answered(self, request: Request, answer: Answer, reply: Reply) -> None:
        if self.lose_answers and isinstance(request, WriteRecords):
            self.lose_answers -= 1
            self.lose()
        else:
            reply(answer)

    async def deliver(self, request: WriteRecords) -> Answer:
        """Deliver a request late, from a connection that is gone."""
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.service.submit(request, Caller("late"), done.set_result)
        return await done

    def caller_gone(self, caller: Caller) -> None:
        self.service.caller_gone(caller)

    def lose(self) -> None:
        """Lose all connections."""
        for link in list(self.links):
            link.lose()


class LinkedProxies:
    """All proxies of a cluster, by address."""

    def __init__(self) -> None:
        self.up: dict[str, LinkedProxy] = {}
        self.connections = 0
        self._dead: list[LinkedProxy] = []

    async def start(self, number: int, namespace: AsyncNamespace, **settings: object) -> LinkedProxy:
        proxy = LinkedProxy(number, namespace, WriteProxySettings(**settings))  # type: ignore[arg-type]
        await proxy.announce()
        self.up[proxy.address] = proxy
        return proxy

    async def client(self) -> AsyncClient:
        """Open a client of those that run now, and of those that will come with the first three numbers."""
        settings = ThinClientSettings.from_mapping({"requestTimeoutMs": 20_000, "attemptTimeoutMs": 2_000})
        fleet = StaticFleet([f"proxy{number}:8000" for number in range(3)])
        client = AsyncClient([fleet], settings, self._connect, clock=ClusterClock())
        await client.open()
        return client

    async def can_be_dialled(self, endpoint: ProxyEndpoint) -> bool:
        return f"{endpoint.host}:{endpoint.port}" in self.up

    async def _connect(self, address: str, on_closed: Callable[[], None]) -> MemoryLink:
        self.connections += 1
        await asyncio.sleep(0)
        proxy = self.up.get(address)
        if proxy is None:
            raise ProxyUnreachableError("it is down", node=address)
        return MemoryLink(proxy, on_closed)  # type: ignore[arg-type]

    async def make_visible(self, log: str) -> None:
        """Have what was answered found by readers: these storage nodes take no explicit LAC."""
        for proxy in self.up.values():
            if log in proxy.service.streams_owned:
                done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
                proxy.service.submit(Heartbeat(log, to_readers=True), Caller("reader"), done.set_result)
                await done

    async def stop(self) -> None:
        for proxy in [*self.up.values(), *self._dead]:
            await proxy.service.shut_down()
            await proxy.service.close()
        for proxy in self.up.values():
            await proxy.namespace.close()

    async def crash(self, proxy: LinkedProxy, expire: Callable[[int], None]) -> None:
        """End the process as its death does; `expire` ends its session."""
        del self.up[proxy.address]
        self._dead.append(proxy)
        proxy.lose()
        await proxy.namespace.ledgers.close()
        expire(proxy.namespace.store.session_id)
        await proxy.namespace.store.close()
