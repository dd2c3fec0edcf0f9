"""`ProxyTier`: write proxies on hosts of a `World`, whole as `dlspark proxy write` starts them, but for gRPC and pages.

    tier = ProxyTier(world, logs)
    tier.add(3)                         hosts p0 to p2; nothing runs yet
    await tier.all_serve()              every one started, and known to the others
    tier.proxies[0].leave()             ends in order; `kill` and `pause` are a machine's

Each process has a metadata session, a namespace, a `WriteProxy`, its port for frames, its member. It ends where the
proxy says that it cannot go on, and where it cannot start; a supervisor starts it again until `over`. What its service
answers is seen as it is given (`WatchedDoor`), and what it writes into ledgers goes to the ledgers' checkers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import ParamSpec
from zlib import crc32

from dlspark.core.metrics.registries import NO_STATISTICS
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.settings.settings import Settings
from dlspark.serving.bindings.service import Caller, Reply
from dlspark.serving.process.host import ServiceDoor
from dlspark.serving.protocol.operations import Answer, Request
from dlspark.serving.write_proxy.proxy import WriteProxy
from dlspark.serving.write_proxy.settings import ProxyConfiguration, WriteProxySettings
from metadata.foundation.errors import DistributedLogError
from metadata.security.listening import ALLOW
from simulation.checkers.logs import NAMESPACE_PATH, WriterSession
from simulation.checkers.proxies import ProxyCheckers
from simulation.cluster import CLIENT_SETTINGS, Machine, NodeMachine, World
from simulation.environment.loop import Process
from simulation.environment.metadata import SimulatedStore
from simulation.environment.network import SimulatedLink, SimulatedNetwork
from storage_node.client.writer import LedgerWriter
from storage_node.protocol.frames import Buffer
from storage_node.settings.bookie import BookieSettings

P = ParamSpec("P")

PROXY_PORT = 8000
SERVERS = "metadata:2181"
URI = f"distributedlog://{SERVERS}{NAMESPACE_PATH}"
START_AGAIN_S = (0.05, 0.8)
ALL_SERVE_S = 60.0
LOOK_S = 0.05


class QuietNode(NodeMachine):
    """A storage node that keeps house rarely: that is what other runs test, and it takes most of the processor."""

    def settings(self) -> BookieSettings:
        """Return the same at each start."""
        return replace(
            super().settings(),
            ledger_directories=("/ledgers1",),
            flush_interval_ms=2_000,
            disk_check_interval_ms=60_000,
            gc_wait_time_ms=60_000,
            gc_overreplicated_ledger_wait_time_ms=86_400_000,
            minor_compaction_interval_s=3_600,
            major_compaction_interval_s=86_400,
        )


class ServingMachine(Machine):
    """A host that runs a proxy. It ends by itself where the proxy does, and a supervisor starts it again."""

    port = PROXY_PORT

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._leaving = asyncio.Event()

    @property
    def address(self) -> str:
        """The address that clients dial."""
        return f"{self.name}:{self.port}"

    @property
    def serving(self) -> bool:
        """True once it has started, until it begins to end."""
        raise NotImplementedError

    def start(self) -> None:
        """Run the proxy in a process of its own; nothing happens if it runs already."""
        if self.running:
            return
        process, store = self.begin()
        self.world.trace.note(f"start {process.name}")
        self._leaving = asyncio.Event()
        self.world.loop.start(process, self._run(process, store))

    def leave(self) -> None:
        """Have it end in order: it hands what it does over to the others."""
        if self.running:
            self.world.trace.note(f"leave {self.name}")
            self._leaving.set()

    async def serve(self, process: Process, store: SimulatedStore, leaving: asyncio.Event) -> bool:
        """Run the proxy until it is to leave, and end it then; True where it ends because it cannot go on."""
        raise NotImplementedError

    async def _run(self, process: Process, store: SimulatedStore) -> None:
        try:
            failed = await self.serve(process, store, self._leaving)
        except DistributedLogError as error:
            failed = True
            self.world.trace.note(f"{process.name} ends: {type(error).__name__}")
        # From outside of the process: what ends it must not be one of its own callbacks, which end with it.
        self.world.loop.call_soon(self._exit, process, failed, context=self.world.context)

    def _exit(self, process: Process, failed: bool) -> None:
        """Let the process end that ends by itself."""
        # It may have been killed before this call, and another one started in its place.
        if process is self.process and not process.dead:
            self.world.reached("proxy.stopped-itself" if failed else "proxy.left")
            self.kill()


class Supervisor:
    """Starts proxies again that have ended, until `over`."""

    def __init__(self, world: World) -> None:
        self.over = False
        self._world = world

    def keep(self, machine: ServingMachine) -> None:
        """Begin with this one."""
        self._world.start(self._keep(machine))

    async def _keep(self, machine: ServingMachine) -> None:
        rng = self._world.rng(f"supervisor/{machine.name}")
        while not self.over:
            machine.start()
            await machine.ended
            await asyncio.sleep(rng.uniform(*START_AGAIN_S))

    async def end(self, machine: ServingMachine) -> None:
        """End one in order, once it is `over`."""
        if machine.running:
            machine.leave()
            await asyncio.wait([machine.ended], timeout=ALL_SERVE_S)
        if machine.running:
            self._world.ledger_checkers.fail(f"{machine.name} does not end within {ALL_SERVE_S} s")


async def open_namespace(machine: Machine, process: Process, store: SimulatedStore, logs: Settings) -> AsyncNamespace:
    """Return the namespace, in this process of the machine."""
    return await AsyncNamespace.over(
        store,
        URI,
        logs,
        client_settings=CLIENT_SETTINGS,
        network=SimulatedNetwork(machine.world.fabric),
        rng=machine.world.rng(f"namespace/{process.name}"),
        clock=machine.clock,
        statistics=NO_STATISTICS,
    )


class WatchedDoor(ServiceDoor):
    """A proxy's door, at which each request is seen as it comes, and each answer as it is given."""

    def __init__(self, checkers: ProxyCheckers, process: Process) -> None:
        super().__init__()
        self._checkers = checkers
        self._process = process

    def submit(self, request: Request, caller: Caller, reply: Reply) -> None:
        """See `ProxyService`."""

        def answered(answer: Answer) -> None:
            self._checkers.answered(self._process, caller, request, number, answer)
            reply(answer)

        number = self._checkers.asked(self._process, caller, request)
        super().submit(request, caller, answered)


class ProxyMachine(ServingMachine):
    """A host that runs a write proxy."""

    def __init__(self, tier: ProxyTier, name: str, shard: int) -> None:
        super().__init__(tier.world, name)
        self.proxy: WriteProxy | None = None
        self._tier = tier
        self._shard = shard

    @property
    def serving(self) -> bool:
        """See `ServingMachine`."""
        return self.running and self.proxy is not None and self.proxy.serving

    def start(self) -> None:
        """See `ServingMachine`."""
        if not self.running:
            self.proxy = None
        super().start()

    async def serve(self, process: Process, store: SimulatedStore, leaving: asyncio.Event) -> bool:
        """See `ServingMachine`."""
        proxy = self.proxy = await self._tier.make_proxy(self, process, store, self._shard)
        await proxy.start()
        waits = [asyncio.ensure_future(event.wait()) for event in (proxy.failed, leaving)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if proxy.failure is not None:
            return True
        await proxy.stop()
        await store.close()
        return False

    def limit(self, requests_per_second: int) -> None:
        """Have the proxy take so many writes a second from now on; 0: any number. Nothing where it does not run."""
        proxy = self.proxy
        if self.running and proxy is not None and proxy._service is not None:
            proxy._service.use_settings(replace(proxy._settings, rps_hard_service=requests_per_second))


class ProxyTier:
    """All write proxies of a world."""

    def __init__(self, world: World, logs: Settings, *, take_timeout_ms: int = 2_000) -> None:
        self.world = world
        self.logs = logs
        self.checkers = ProxyCheckers(world, world.ledger_checkers)
        self.proxies: list[ProxyMachine] = []
        self._supervisor = Supervisor(world)
        self._take_timeout_ms = take_timeout_ms
        self._clients = 0
        self._node_names: frozenset[str] = frozenset()
        world.fabric.on_frame = self._frame_sent

    def add(self, count: int) -> None:
        """Add hosts for so many proxies, and a supervisor for each."""
        self._node_names = frozenset(node.name for node in self.world.nodes)
        for _ in range(count):
            machine = ProxyMachine(self, f"p{len(self.proxies)}", len(self.proxies))
            self.proxies.append(machine)
            self._supervisor.keep(machine)

    def next_client(self) -> int:
        """Return a number that no other client of the tier has."""
        self._clients += 1
        return self._clients

    @property
    def addresses(self) -> list[str]:
        """Where clients find the proxies."""
        return [machine.address for machine in self.proxies]

    async def all_serve(self) -> None:
        """Wait until every proxy serves and knows all the others."""
        deadline = self.world.loop.time() + ALL_SERVE_S
        while not all(machine.serving and self._knows_all(machine) for machine in self.proxies):
            if self.world.loop.time() > deadline:
                idle = [machine.name for machine in self.proxies if not machine.serving]
                self.world.ledger_checkers.fail(f"{ALL_SERVE_S} s of a healthy cluster, and {idle} do not serve")
            await asyncio.sleep(LOOK_S)

    def _knows_all(self, machine: ProxyMachine) -> bool:
        return machine.proxy is not None and len(machine.proxy.members) == len(self.proxies)

    async def end(self) -> None:
        """End all proxies in order, one after the other. They are not started again."""
        self._supervisor.over = True
        for machine in self.proxies:
            await self._supervisor.end(machine)

    # ------------------------------------------------------------------------------------ one proxy

    async def make_proxy(
        self, machine: ProxyMachine, process: Process, store: SimulatedStore, shard: int
    ) -> WriteProxy:
        """Return a proxy in this process, which is not started."""
        namespace = await open_namespace(machine, process, store, self.logs)
        session = WriterSession("", machine.name, process, machine.runs)
        create = _watched(namespace.ledgers.create, partial(self._ledger_created, session))
        namespace.ledgers.create = create  # type: ignore[method-assign]
        settings = WriteProxySettings(
            advertised_host=machine.name,
            port=machine.port,
            grpc_port=-1,
            shard=shard,
            insecure_listen=ALLOW,
            take_timeout_ms=self._take_timeout_ms,
        )
        proxy = WriteProxy(
            None,
            ProxyConfiguration(settings, self.logs),
            network=SimulatedNetwork(self.world.fabric),
            clock=machine.clock,
            statistics=NO_STATISTICS,
            namespace=namespace,
        )
        proxy.host.door = WatchedDoor(self.checkers, process)
        return proxy

    def _ledger_created(self, session: WriterSession, writer: LedgerWriter) -> None:
        self.world.log_checkers.ledger_created(session, writer.ledger_id)
        add = writer.add

        def watched_add(*payload: Buffer) -> asyncio.Future[int]:
            added = add(*payload)
            entry_id = writer.last_add_pushed
            self.world.ledger_checkers.pushed(writer.ledger_id, entry_id, b"".join(bytes(part) for part in payload))
            added.add_done_callback(partial(self._entry_answered, writer.ledger_id, entry_id))
            return added

        writer.add = watched_add  # type: ignore[method-assign]

    def _entry_answered(self, ledger_id: int, entry_id: int, added: asyncio.Future[int]) -> None:
        if added.cancelled():
            return
        error = added.exception()
        if error is None:
            self.checkers.stored(ledger_id, entry_id)
            self.world.ledger_checkers.acknowledged(ledger_id, entry_id)
        else:
            self.world.ledger_checkers.refused(ledger_id, entry_id, error)

    def _frame_sent(self, link: SimulatedLink, frame: bytes) -> None:
        """Pass frames of storage nodes to the ledgers' checkers; those of proxies go into the trace alone."""
        if link.process.host in self._node_names or link.other.process.host in self._node_names:
            self.world.ledger_checkers.frame_sent(link, frame)
        else:
            self.world.trace.note(f"{link.process.name}>{link.other.process.name} {len(frame)} {crc32(frame)}")


def _watched(
    create: Callable[P, Coroutine[object, None, LedgerWriter]], created: Callable[[LedgerWriter], None]
) -> Callable[P, Coroutine[object, None, LedgerWriter]]:
    """Return `create`, with `created` called with each ledger's writer."""

    async def watched(*arguments: P.args, **options: P.kwargs) -> LedgerWriter:
        writer = await create(*arguments, **options)
        created(writer)
        return writer

    return watched
