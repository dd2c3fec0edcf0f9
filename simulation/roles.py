"""`Roles`: programs on clients of their own that are killed, paused and started again; what all workloads share.

A program meets errors of the product and tries again; a broken invariant ends the run. `over` tells all programs to
come to their end, and `finished` waits until they have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from metadata.foundation.errors import DistributedLogError, InvariantViolation
from simulation.cluster import PORT, Client, World
from simulation.network import SimulatedNetwork
from storage_node.autorecovery.daemon import AutoRecovery
from storage_node.settings.autorecovery import AutoRecoverySettings

HEALTHY_S = 60.0
"""Virtual time in which a healthy cluster must have done what was asked of it."""

Program = Callable[[Client], Awaitable[None]]


class Roles:
    """The programs of one run. A workload derives from it and says what they do, and what must hold at the end."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.over = False
        """Programs come to their end."""
        self.contested = False
        """Everybody disturbs everybody, all the time."""
        self.replacing = False
        """Nodes are replaced all the time, and nothing else is wrong."""
        self._roles: list[asyncio.Task[None]] = []

    @property
    def sizes(self) -> list[tuple[int, int, int]]:
        """Ensemble size, write quorum and ack quorum of everything that is written."""
        raise NotImplementedError

    def draw_amount(self, rng: Random) -> None:
        """Draw how much is written."""
        raise NotImplementedError

    async def prepare(self) -> None:
        """Make what the programs expect to find, before any fault."""

    def start_programs(self, rng: Random) -> None:
        """Start all roles."""
        raise NotImplementedError

    async def verify(self, client: Client) -> None:
        """In `client`'s process, with everything healthy: what was written is there, and writing goes on."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------ roles

    def add_role(self, name: str, program: Program) -> None:
        """Run a program on a client of its own; when its process is killed, again."""
        client = self.world.add_client(name)
        self._roles.append(self.world.start(self._play(client, program)))

    async def _play(self, client: Client, program: Program) -> None:
        rng = self.world.rng(f"role/{client.name}")
        while not self.over:
            ledgers = client.start()
            task = client.spawn(self._guarded(client, program))
            await asyncio.wait({task, client.ended}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
                leaving = client.spawn(self._leave(client, ledgers.close()))
                await asyncio.wait({leaving, client.ended}, return_when=asyncio.FIRST_COMPLETED)
                client.kill()
                return
            self.world.reached("client.killed")
            await asyncio.sleep(rng.uniform(0.05, 0.6))

    async def _leave(self, client: Client, closing: Awaitable[None]) -> None:
        await closing
        if client.store is not None:
            await client.store.close()

    async def _guarded(self, client: Client, program: Program) -> None:
        """A program that meets an error of the product tries again; a broken invariant ends the run."""
        rng = self.world.rng(f"program/{client.name}/{client.runs}")
        while not self.over:
            try:
                await program(client)
                return
            except InvariantViolation as error:
                self.world.checkers.fail(f"{client.name}: {error!r}")
            except DistributedLogError:
                await asyncio.sleep(rng.uniform(0.02, 0.3))

    async def finished(self, limit_s: float) -> None:
        """Wait for all programs."""
        _, left = await asyncio.wait(self._roles, timeout=limit_s)
        if left:
            self.world.checkers.fail(
                f"{len(left)} programs did not come to their end within {limit_s} s of a healthy cluster"
            )
        for role in self._roles:
            role.result()

    async def patiently(self, what: str, attempt: Callable[[], Awaitable[None]]) -> None:
        """Progress must follow: repeat for HEALTHY_S at most."""
        world = self.world
        deadline = world.loop.time() + HEALTHY_S
        while True:
            try:
                await attempt()
                return
            except InvariantViolation as error:
                world.checkers.fail(f"{what}: {error!r}")
            except DistributedLogError as error:
                if world.loop.time() > deadline:
                    world.checkers.fail(f"no progress: {what} fails {HEALTHY_S} s after healing: {error!r}")
            await asyncio.sleep(0.3)

    # ------------------------------------------------------------------------------------ auto-recovery

    async def replicate(self, client: Client) -> None:
        """Run auto-recovery: an auditor candidate and a worker."""
        daemon = AutoRecovery(
            AutoRecoverySettings(
                open_ledger_grace_period_ms=1_500,
                failed_ledger_lock_period_ms=500,
                rereplicate_backoff_ms=200,
                client=client.settings,
            ),
            client.session,
            bookie_id=f"{client.name}:{PORT}",
            network=SimulatedNetwork(self.world.fabric),
            clock=client.clock,
            rng=self.world.rng(f"replicate/{client.name}/{client.runs}"),
        )
        await daemon.start()
        while not self.over and not daemon.failed.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        if daemon.failed.is_set():
            self.world.checkers.fail(f"auto-recovery gave up: {daemon.failure!r}")
        await daemon.stop()
