"""Read proxies over the storage nodes of a `DriverWorld`, in this process, and what a test does to their answers.

Each address is a whole `ReadProxyService`. `ProxyFleet.connect` connects to them as a task's `TaskProxies` does over
frames; between the two a test takes a proxy away, lets it stand still, or changes what it delivers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from dlspark.core.namespace import AsyncNamespace
from dlspark.errors import ProxyUnreachableError
from dlspark.serving.bindings.service import Caller, Reply
from dlspark.serving.protocol.deliveries import StoredEntry, decode_stored, encode_stored
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import Answer, Delivery, ReadBatch, Refusal, Request
from dlspark.serving.read_proxy.service import ReadProxyService
from dlspark.serving.read_proxy.settings import ReadProxySettings
from helpers.spark.memory_world import URI, DriverWorld

Tamper = Callable[[list[StoredEntry]], list[StoredEntry]]


class ServedProxy:
    """One read proxy, with its namespace."""

    def __init__(self, namespace: AsyncNamespace, address: str) -> None:
        self.namespace = namespace
        self.service = ReadProxyService(namespace, ReadProxySettings(), location=address)
        self.links: list[ServedLink] = []
        self.up = True
        self.silent = False
        """It takes requests and answers none."""
        self.deaths: list[int] = []
        """Deliveries after which it dies, for each life; the first counts from now."""
        self.tamper: Tamper | None = None
        self.refusal: Refusal | None = None
        """What every read is answered with."""
        self.asked: list[ReadBatch] = []
        self.deliveries = 0

    def die(self) -> None:
        """Lose all connections, and take none until `up` is set."""
        self.up = False
        for link in list(self.links):
            link.lose()

    async def close(self) -> None:
        await self.service.close()
        await self.namespace.close()


class ServedLink:
    """A connection to one proxy, as `FramesClient`."""

    def __init__(self, proxy: ServedProxy, on_closed: Callable[[], None]) -> None:
        self.closed = False
        self.stale = False
        self._proxy = proxy
        self._on_closed = on_closed
        self._caller = Caller(f"task-{id(self)}")
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._replies: dict[int, Reply] = {}
        proxy.links.append(self)

    def submit(self, request: Request, reply: Reply) -> int:
        """Ask."""
        self._number += 1
        number = self._number
        self._replies[number] = reply
        if isinstance(request, ReadBatch):
            self._proxy.asked.append(request)
        refusal = self._proxy.refusal
        if refusal is not None and isinstance(request, ReadBatch):
            self._loop.call_soon(self._deliver, number, refusal)
        elif not self._proxy.silent:
            self._proxy.service.submit(request, self._caller, lambda answer: self._answered(number, answer))
        return number

    def forget(self, number: int) -> None:
        """Drop the answer, which is not wanted any more."""
        self._replies.pop(number, None)

    def _answered(self, number: int, answer: Answer) -> None:
        proxy = self._proxy
        if isinstance(answer, Delivery) and answer.parts:
            proxy.deliveries += 1
            if proxy.deaths and proxy.deliveries >= proxy.deaths[0]:
                proxy.deaths.pop(0)
                proxy.deliveries = 0
                self._loop.call_soon(proxy.die)
                return
            if proxy.tamper is not None:
                parts = proxy.tamper([decode_stored(part) for part in answer.parts])
                answer = replace(answer, parts=tuple(map(encode_stored, parts)))
        self._loop.call_soon(self._deliver, number, answer)

    def _deliver(self, number: int, answer: Answer) -> None:
        reply = self._replies.pop(number, None)
        if reply is not None:
            reply(answer)

    def lose(self) -> None:
        """Break the connection."""
        if self.closed:
            return
        self.closed = True
        self._proxy.links.remove(self)
        self._proxy.service.caller_gone(self._caller)
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        replies, self._replies = self._replies, {}
        for reply in replies.values():
            reply(refusal_of(ProxyUnreachableError("the connection was lost before the proxy answered")))
        self._on_closed()

    async def close(self) -> None:
        """End it."""
        self.lose()


class ProxyFleet:
    """The read proxies of a world, by address."""

    def __init__(self, world: DriverWorld) -> None:
        self._world = world
        self.proxies: dict[str, ServedProxy] = {}

    def __getitem__(self, address: str) -> ServedProxy:
        return self.proxies[address]

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(self.proxies)

    async def add(self, address: str, uri: str = URI) -> ServedProxy:
        """Start one more proxy."""
        made = self.proxies[address] = ServedProxy(await self._world.connect(uri), address)
        return made

    async def connect(self, address: str, on_closed: Callable[[], None]) -> ServedLink:
        """Connect as tasks do. Raises ProxyUnreachableError."""
        proxy = self.proxies.get(address)
        if proxy is None or not proxy.up:
            raise ProxyUnreachableError("no such proxy, or it is down", node=address)
        return ServedLink(proxy, on_closed)

    async def stop(self) -> None:
        for proxy in self.proxies.values():
            await proxy.close()
