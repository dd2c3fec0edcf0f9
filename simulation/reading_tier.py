"""`ReadTier`: read proxies on hosts of a `World`, whole as `dlspark proxy read` starts them, but for gRPC.

    tier = ReadTier(world, logs, rng)
    tier.add(2)                 hosts r0 and r1, which run from now on
    await tier.all_serve()

They are machines as write proxies are (`tier`): killed, stopped, cut off, started again. What they deliver is judged
where it arrives, at the readers. In half of the runs their rings are so small that readers fall out of them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from random import Random

from dlspark.core.metrics.registries import NO_STATISTICS
from dlspark.core.settings.settings import Settings
from dlspark.serving.read_proxy.proxy import ReadProxy
from dlspark.serving.read_proxy.settings import ReadProxySettings
from metadata.security.listening import ALLOW
from simulation.cluster import KIB, World
from simulation.environment.loop import Process
from simulation.environment.metadata import SimulatedStore
from simulation.environment.network import SimulatedNetwork
from simulation.tier import ALL_SERVE_S, LOOK_S, ServingMachine, Supervisor, open_namespace

READ_PORT = 8100
SMALL_RING_BYTES = 24 * KIB
"""Any entry of a simulated run fits, and a log's records do not."""


@dataclass(frozen=True, slots=True)
class SmallRings(ReadProxySettings):
    """Settings with rings below the least that a real proxy may have, for entries that are as small."""

    def __post_init__(self) -> None:
        """Accept bounds below those of entries of a megabyte, which are not checked here."""


def draw_settings(rng: Random) -> ReadProxySettings:
    """Return the settings of all read proxies of a run, but for the host's name."""
    values = {
        "max_catch_ups": rng.choice((1, 2, 32)),
        "linger_ms": rng.choice((0, 300, 30_000)),
        "catch_up_idle_ms": rng.choice((200, 5_000)),
        "shutdown_grace_ms": 500,
        "read_balance": rng.choice((0.0, 1.0, 1.0, 1.25)),
    }
    if rng.random() < 0.5:
        return ReadProxySettings(**values, insecure_listen=ALLOW)  # type: ignore[arg-type]
    rings = {"ring_bytes": SMALL_RING_BYTES, "rings_bytes": 2 * SMALL_RING_BYTES, "decoded_bytes": SMALL_RING_BYTES}
    turns = {"catch_up_bytes": 2 * SMALL_RING_BYTES, "catch_up_turn_bytes": SMALL_RING_BYTES}
    return SmallRings(**values, **rings, **turns, chunk_bytes=KIB, insecure_listen=ALLOW)  # type: ignore[arg-type]


class ReadProxyMachine(ServingMachine):
    """A host that runs a read proxy."""

    port = READ_PORT

    def __init__(self, tier: ReadTier, name: str) -> None:
        super().__init__(tier.world, name)
        self._tier = tier
        self._served: Process | None = None

    @property
    def serving(self) -> bool:
        """See `ServingMachine`."""
        return self.running and self._served is self.process

    async def serve(self, process: Process, store: SimulatedStore, leaving: asyncio.Event) -> bool:
        """See `ServingMachine`."""
        proxy = await self._tier.make_proxy(self, process, store)
        await proxy.start()
        self._served = process
        await leaving.wait()
        self._served = None
        await proxy.stop()
        self._tier.note(proxy)
        await store.close()
        return False


class ReadTier:
    """All read proxies of a world."""

    def __init__(self, world: World, logs: Settings, rng: Random) -> None:
        self.world = world
        self.proxies: list[ReadProxyMachine] = []
        self._logs = logs
        self._settings = draw_settings(rng)
        self._supervisor = Supervisor(world)

    def add(self, count: int) -> None:
        """Add hosts for so many proxies, and a supervisor for each."""
        for _ in range(count):
            machine = ReadProxyMachine(self, f"r{len(self.proxies)}")
            self.proxies.append(machine)
            self._supervisor.keep(machine)

    @property
    def addresses(self) -> list[str]:
        """Where readers find the proxies."""
        return [machine.address for machine in self.proxies]

    async def all_serve(self) -> None:
        """Wait until every proxy serves."""
        deadline = self.world.loop.time() + ALL_SERVE_S
        while not all(machine.serving for machine in self.proxies):
            if self.world.loop.time() > deadline:
                idle = [machine.name for machine in self.proxies if not machine.serving]
                self.world.ledger_checkers.fail(f"{ALL_SERVE_S} s of a healthy cluster, and {idle} do not serve")
            await asyncio.sleep(LOOK_S)

    async def end(self) -> None:
        """End all proxies in order. They are not started again."""
        self._supervisor.over = True
        for machine in self.proxies:
            await self._supervisor.end(machine)

    # ------------------------------------------------------------------------------------ one proxy

    async def make_proxy(self, machine: ReadProxyMachine, process: Process, store: SimulatedStore) -> ReadProxy:
        """Return a proxy in this process, which is not started."""
        namespace = await open_namespace(machine, process, store, self._logs)
        settings = replace(self._settings, advertised_host=machine.name, port=machine.port)
        return ReadProxy(
            None, settings, network=SimulatedNetwork(self.world.fabric), statistics=NO_STATISTICS, namespace=namespace
        )

    def note(self, proxy: ReadProxy) -> None:
        """Count what one has done that has ended in order."""
        figures = proxy.service.figures()
        if figures.catch_ups_begun:
            self.world.reached("read.caught-up")
        if figures.chunks_shared:
            self.world.reached("read.chunk-shared")
        if figures.redirects:
            self.world.reached("read.sent-on")
