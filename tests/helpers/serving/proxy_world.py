"""Write proxies over metadata and storage nodes in memory, on virtual time: real writers, real locks, no sockets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import ClassVar

from dlspark.core.dynamic.features import FeatureProvider, SettableFeatures
from dlspark.core.metrics.registries import Statistics
from dlspark.core.namespace import AsyncNamespace
from dlspark.errors import ServiceUnavailableError
from dlspark.serving.bindings.service import Caller
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import Answer, Heartbeat, Refusal, Request, WriteReceipt, WriteRecords
from dlspark.serving.write_proxy.service import WriteProxyService
from dlspark.serving.write_proxy.settings import WriteProxySettings
from helpers.worlds.memory_bookies import MemoryBookie
from helpers.worlds.memory_cluster import MemoryCluster
from metadata.distributedlog.bindings import Binding
from metadata.zookeeper.memory import Fault

SESSION_S = 6


class LoopClock:
    """The wall clock goes with the event loop's."""

    def __init__(self) -> None:
        self.behind_ms = 0

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000) - self.behind_ms

    def elapsed_s(self) -> float:
        return asyncio.get_running_loop().time()


class MemoryPeers:
    """Asks other proxies of the world; they answer unless they are said to be away."""

    def __init__(self, world: ProxyWorld) -> None:
        self._world = world
        self.away: set[str] = set()
        self.asked: list[tuple[str, Request]] = []

    async def call(self, location: str, request: Request, timeout_ms: int = 10_000) -> Answer:
        self.asked.append((location, request))
        proxy = next((one for one in self._world.proxies if one.location == location), None)
        if proxy is None or location in self.away:
            return refusal_of(ServiceUnavailableError("it is away"))
        return await proxy.ask(request)


class NamedPlaces:
    """Says where streams without an owner belong, as a test sets it."""

    def __init__(self) -> None:
        self.places: dict[str, str] = {}

    def place(self, stream: str) -> str | None:
        return self.places.get(stream)


class Proxy:
    """One proxy of the world: a process of its own, as far as the cluster can tell."""

    def __init__(self, world: ProxyWorld, location: str, namespace: AsyncNamespace, service: WriteProxyService) -> None:
        self.world = world
        self.location = location
        self.namespace = namespace
        self.service = service
        self.caller = Caller("client:1")
        self.fatal: list[str] = []

    def asked(self, request: Request, caller: Caller | None = None) -> asyncio.Future[Answer]:
        """Submit a request; the future has its answer, which must come once."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.service.submit(request, caller or self.caller, future.set_result)
        return future

    async def ask(self, request: Request) -> Answer:
        return await asyncio.wait_for(self.asked(request), 600)

    async def write(self, stream: str, *payloads: bytes, **fields: object) -> Answer:
        return await self.ask(WriteRecords(stream, payloads, **fields))  # type: ignore[arg-type]

    async def written(self, stream: str, *payloads: bytes, **fields: object) -> WriteReceipt:
        answer = await self.write(stream, *payloads, **fields)
        assert isinstance(answer, WriteReceipt), answer
        return answer

    async def refused(self, stream: str, *payloads: bytes, **fields: object) -> Refusal:
        answer = await self.write(stream, *payloads, **fields)
        assert isinstance(answer, Refusal), answer
        return answer

    async def crash(self) -> None:
        """End the process as its death does: its connections break, and its session expires."""
        await self.namespace.ledgers.close()
        self.world.tree.expire(self.namespace.store.session_id)
        await self.namespace.store.close()
        self.world.proxies.remove(self)
        self.world.dead.append(self)


class ProxyWorld(MemoryCluster):
    """A cluster in memory, and write proxies of it."""

    defaults: ClassVar[Mapping[str, object]] = {
        "zk_session_timeout_s": SESSION_S,
        "long_poll_ms": 200,
        "read_ahead_wait_ms": 20,
        "rolling_concurrency": 0,
    }

    def __init__(self) -> None:
        self.clock = LoopClock()
        super().__init__([MemoryBookie(f"node{i}:3181") for i in range(3)], self.clock)
        self.features = SettableFeatures()
        self.proxies: list[Proxy] = []
        self.dead: list[Proxy] = []
        self.peers = MemoryPeers(self)
        self.places = NamedPlaces()
        self.requests: Counter[str] = Counter()
        """What the metadata store was asked, by operation and the last part of the path."""

    async def start(self, binding: Binding | None = None) -> None:
        await super().start(binding)
        self.tree.inject = self._counted

    def _counted(self, session: int, operation: str, path: str) -> Fault | None:
        self.requests[operation] += 1
        return None

    async def namespace(
        self, features: FeatureProvider | None = None, *, statistics: Statistics | None = None, **settings: object
    ) -> AsyncNamespace:
        """Return a new client, which its user closes."""
        return await self.connect(settings, features or self.features, statistics)

    async def proxy(
        self, number: int = 0, *, log_settings: dict[str, object] | None = None, **settings: object
    ) -> Proxy:
        location = f"1;{number};proxy{number}:8000"
        namespace = await self.connect(log_settings or {}, self.features)
        fatal: list[str] = []
        service = WriteProxyService(
            namespace,
            WriteProxySettings(**settings),  # type: ignore[arg-type]
            location=location,
            forwarder=self.peers,
            placement=self.places,
            on_fatal=fatal.append,
        )
        proxy = Proxy(self, location, namespace, service)
        proxy.fatal = fatal
        self.proxies.append(proxy)
        return proxy

    def hold(self) -> None:
        """Have storage nodes take entries, and not answer."""
        for bookie in self.bookies:
            bookie.hold_adds = True

    def release(self) -> None:
        """Have them answer again, also what they have held."""
        for bookie in self.bookies:
            bookie.release()

    async def payloads(self, stream: str) -> list[bytes]:
        """Return all that readers find in a log now."""
        return [payload for _, payload in await self.records(stream)]

    async def records(self, stream: str) -> list[tuple[int, bytes]]:
        """Return transaction ids and payloads of all that readers find in a log, after a heartbeat that makes visible
        what was answered."""
        for proxy in self.proxies:
            if stream in proxy.service.streams_owned:
                await proxy.ask(Heartbeat(stream, to_readers=True))
        namespace = await self.namespace()
        try:
            log = await namespace.open_log(stream)
            found: list[tuple[int, bytes]] = []
            async with await log.open_reader("earliest") as reader:
                while more := await reader.read_available(1000, wait=True):
                    found += [(record.txid, record.payload) for record in more]
            return found
        finally:
            await namespace.close()

    async def stop(self) -> None:
        for proxy in [*self.proxies, *self.dead]:
            await proxy.service.shut_down()
            await proxy.service.close()
            assert (proxy.service.requests_under_way, proxy.service.bytes_under_way) == (0, 0)
        for proxy in self.proxies:
            await proxy.namespace.close()
        await self.operator.close()


@asynccontextmanager
async def proxies(binding: Binding | None = None) -> AsyncIterator[ProxyWorld]:
    """Run a cluster with proxies for the length of a block; nothing is under way at its end."""
    world = ProxyWorld()
    await world.start(binding)
    yield world
    await world.stop()


async def answers(futures: Iterable[Awaitable[Answer]]) -> list[Answer]:
    """Return all answers, in order."""
    return list(await asyncio.wait_for(asyncio.gather(*futures), 600))
