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
from dlspark.serving.protocol.operations import Answer, Request
from dlspark.serving.service import Caller, Reply
from dlspark.serving.write_proxy.configuration import ProxyConfiguration
from dlspark.serving.write_proxy.proxy import WriteProxy
from dlspark.serving.write_proxy.settings import WriteProxySettings
from dlspark.serving.write_proxy.tier import ServiceDoor
from metadata.foundation.errors import DistributedLogError
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
        """The same at each start."""
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


class WatchedDoor(ServiceDoor):
    """A proxy's door, at which each answer is seen as it is given."""

    def __init__(self, checkers: ProxyCheckers, process: Process) -> None:
        super().__init__()
        self._checkers = checkers
        self._process = process

    def submit(self, request: Request, caller: Caller, reply: Reply) -> None:
        """See `ProxyService`."""

        def answered(answer: Answer) -> None:
            self._checkers.answered(self._process, request, answer)
            reply(answer)

        super().submit(request, caller, answered)


class ProxyMachine(Machine):
    """A host that runs a write proxy."""

    def __init__(self, tier: ProxyTier, name: str, shard: int) -> None:
        super().__init__(tier.world, name)
        self.proxy: WriteProxy | None = None
        self.away = False
        """It is not to run now."""
        self._tier = tier
        self._shard = shard
        self._leaving = asyncio.Event()

    @property
    def address(self) -> str:
        """What clients dial."""
        return f"{self.name}:{PROXY_PORT}"

    @property
    def serving(self) -> bool:
        """Whether it has started, and does not end."""
        return self.running and self.proxy is not None and self.proxy.serving

    def start(self) -> None:
        """Run the proxy in a process of its own; nothing happens if it runs already."""
        if self.running:
            return
        process, store = self.begin()
        self.world.trace.note(f"start {process.name}")
        self.proxy, self._leaving = None, asyncio.Event()
        self.world.loop.start(process, self._run(process, store))

    def leave(self) -> None:
        """Have it end in order: it hands its streams over to the others."""
        if self.running:
            self.world.trace.note(f"leave {self.name}")
            self._leaving.set()

    async def _run(self, process: Process, store: SimulatedStore) -> None:
        failed = False
        try:
            proxy = self.proxy = await self._tier.make_proxy(self, process, store, self._shard)
            await proxy.start()
            waits = [asyncio.ensure_future(event.wait()) for event in (proxy.failed, self._leaving)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            failed = proxy.failure is not None
            if not failed:
                await proxy.stop()
                await store.close()
        except DistributedLogError as error:
            failed = True
            self.world.trace.note(f"{process.name} ends: {type(error).__name__}")
        self.world.loop.call_soon(self._exit, process, failed, context=self.world.context)

    def _exit(self, process: Process, failed: bool) -> None:
        """The process ends by itself."""
        if process is self.process and not process.dead:
            self.world.reached("proxy.stopped-itself" if failed else "proxy.left")
            self.kill()


class ProxyTier:
    """All proxies of a world."""

    def __init__(self, world: World, logs: Settings, *, take_timeout_ms: int = 2_000) -> None:
        self.world = world
        self.logs = logs
        self.checkers = ProxyCheckers(world, world.ledger_checkers)
        self.proxies: list[ProxyMachine] = []
        self.over = False
        """Proxies that end are not started again."""
        self._take_timeout_ms = take_timeout_ms
        world.fabric.on_frame = self._frame_sent

    def add(self, count: int) -> None:
        """Hosts for so many proxies, and a supervisor for each."""
        for _ in range(count):
            machine = ProxyMachine(self, f"p{len(self.proxies)}", len(self.proxies))
            self.proxies.append(machine)
            self.world.start(self._keep(machine))

    async def _keep(self, machine: ProxyMachine) -> None:
        rng = self.world.rng(f"supervisor/{machine.name}")
        while not self.over:
            if not machine.away:
                machine.start()
                await machine.ended
            await asyncio.sleep(rng.uniform(*START_AGAIN_S))

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
        self.over = True
        for machine in self.proxies:
            if machine.running:
                machine.leave()
                await asyncio.wait([machine.ended], timeout=ALL_SERVE_S)
            if machine.running:
                self.world.ledger_checkers.fail(f"{machine.name} does not end within {ALL_SERVE_S} s")

    # ------------------------------------------------------------------------------------ one proxy

    async def make_proxy(
        self, machine: ProxyMachine, process: Process, store: SimulatedStore, shard: int
    ) -> WriteProxy:
        """A proxy in this process, which is not started."""
        world, network = self.world, SimulatedNetwork(self.world.fabric)
        namespace = await AsyncNamespace.over(
            store,
            URI,
            self.logs,
            client_settings=CLIENT_SETTINGS,
            network=network,
            rng=world.rng(f"namespace/{process.name}"),
            clock=machine.clock,
            statistics=NO_STATISTICS,
        )
        session = WriterSession("", machine.name, process, machine.runs)
        create = _watched(namespace.ledgers.create, partial(self._ledger_created, session))
        namespace.ledgers.create = create  # type: ignore[method-assign]
        settings = WriteProxySettings(
            advertised_host=machine.name,
            port=PROXY_PORT,
            grpc_port=-1,
            shard=shard,
            take_timeout_ms=self._take_timeout_ms,
        )
        proxy = WriteProxy(
            None,
            ProxyConfiguration(settings, self.logs),
            network=network,
            clock=machine.clock,
            statistics=NO_STATISTICS,
            namespace=namespace,
        )
        proxy._door = WatchedDoor(self.checkers, process)
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
        """Frames of storage nodes are for the ledgers' checkers; those of proxies go into the trace alone."""
        ends = (link.process.host, link.other.process.host)
        if any(node.name in ends for node in self.world.nodes):
            self.world.ledger_checkers.frame_sent(link, frame)
        else:
            self.world.trace.note(f"{link.process.name}>{link.other.process.name} {len(frame)} {crc32(frame)}")


def _watched(
    create: Callable[P, Coroutine[object, None, LedgerWriter]], created: Callable[[LedgerWriter], None]
) -> Callable[P, Coroutine[object, None, LedgerWriter]]:
    """`create`, with `created` called with each ledger's writer."""

    async def watched(*arguments: P.args, **options: P.kwargs) -> LedgerWriter:
        writer = await create(*arguments, **options)
        created(writer)
        return writer

    return watched
