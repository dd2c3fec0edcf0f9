"""Shared by all workloads: programs on clients of their own that are killed, paused and started again.

A program meets errors of the product and tries again; a broken invariant ends the run. `over` asks all programs to end,
and `finished` waits until they have. A `Deposer` takes the session, and with it the lock, from a log's owner in the
middle of something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

from metadata.foundation.errors import DistributedLogError, InvariantViolation
from simulation.cluster import PORT, ClientMachine, World
from simulation.environment.loop import PROCESS
from simulation.environment.network import SimulatedNetwork
from storage_node.autorecovery.daemon import AutoRecovery
from storage_node.settings.autorecovery import AutoRecoverySettings

HEALTHY_S = 60.0
"""Virtual time in which a healthy cluster must have done what was asked of it."""
WITHIN_STEPS = 70
"""Callbacks within which an owner is deposed, and within which it is then paused."""
STANDS_STILL_S = (0.02, 0.35)
FAR_SHARE = 0.7
"""Of the deposed clients, which are far from the metadata store; the others stand still."""

Program = Callable[[ClientMachine], Awaitable[None]]


class Workload:
    """The programs of one run. A workload derives from it and says what they do, and what must hold at the end."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.over = False
        """Programs are to end."""
        self.contested = False
        """All clients of a ledger disturb each other, all the time."""
        self.replacing = False
        """Nodes are replaced all the time, and nothing else is wrong."""
        self._programs: list[asyncio.Task[None]] = []

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
        """Start all programs."""
        raise NotImplementedError

    async def verify(self, client: ClientMachine) -> None:
        """Verify that what was written is there, and writing goes on (in `client`'s process, with everything
        healthy).
        """
        raise NotImplementedError

    # ------------------------------------------------------------------------------------ programs

    def add_program(self, name: str, program: Program) -> None:
        """Run a program on a client of its own; when its process is killed, again."""
        client = self.world.add_client(name)
        self._programs.append(self.world.start(self._play(client, program)))

    async def _play(self, client: ClientMachine, program: Program) -> None:
        rng = self.world.rng(f"role/{client.name}")
        while not self.over:
            ledgers = client.start()
            task = client.spawn(self._guarded(client, program))
            # Tasks of a killed process never end: its end is waited for beside them.
            await asyncio.wait({task, client.ended}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
                leaving = client.spawn(self._leave(client, ledgers.close()))
                await asyncio.wait({leaving, client.ended}, return_when=asyncio.FIRST_COMPLETED)
                client.kill()
                return
            self.world.reached("client.killed")
            await self.before_restart(client, rng)

    async def before_restart(self, client: ClientMachine, rng: Random) -> None:
        """Wait until a killed client is started again: a moment."""
        await asyncio.sleep(rng.uniform(0.05, 0.6))

    async def _leave(self, client: ClientMachine, closing: Awaitable[None]) -> None:
        await closing
        if client.store is not None:
            await client.store.close()

    async def _guarded(self, client: ClientMachine, program: Program) -> None:
        """Run a program, which tries again where it meets an error of the product; a broken invariant ends the run."""
        rng = self.world.rng(f"program/{client.name}/{client.runs}")
        while self.goes_on(client):
            try:
                await program(client)
                return
            except InvariantViolation as error:
                self.world.ledger_checkers.fail(f"{client.name}: {error!r}")
            except DistributedLogError:
                await asyncio.sleep(rng.uniform(0.02, 0.3))

    def goes_on(self, client: ClientMachine) -> bool:
        """Return whether the process that asks is to begin anything else: it is the client's, and programs are not
        over."""
        # A process that was taken for dead may still run, beside the one that has the client's name now.
        return not self.over and client.process is PROCESS.get()

    async def finished(self, limit_s: float) -> None:
        """Wait for all programs."""
        _, left = await asyncio.wait(self._programs, timeout=limit_s)
        if left:
            self.world.ledger_checkers.fail(f"{len(left)} programs did not end within {limit_s} s of a healthy cluster")
        for program in self._programs:
            program.result()

    async def patiently(self, what: str, attempt: Callable[[], Awaitable[None]]) -> None:
        """Repeat for HEALTHY_S at most: progress must follow."""
        world = self.world
        deadline = world.loop.time() + HEALTHY_S
        while True:
            try:
                await attempt()
                return
            except InvariantViolation as error:
                world.ledger_checkers.fail(f"{what}: {error!r}")
            except DistributedLogError as error:
                # Until then errors are in order: sessions still expire, nodes are still starting.
                if world.loop.time() > deadline:
                    world.ledger_checkers.fail(f"no progress: {what} fails {HEALTHY_S} s after healing: {error!r}")
            await asyncio.sleep(0.3)

    # ------------------------------------------------------------------------------------ auto-recovery

    async def replicate(self, client: ClientMachine) -> None:
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
            self.world.ledger_checkers.fail(f"auto-recovery gave up: {daemon.failure!r}")
        await daemon.stop()


class Deposer:
    """Takes an owner's session away, and with it its lock, in the middle of something, and makes it late from then on.

    What protects a log from a deposed owner matters where its last change arrives after others have been at the log. So
    it is far from the metadata store, or paused, for a while from the moment in which its session ended. The
    coverage points that say so begin with `point`.
    """

    def __init__(self, workload: Workload, point: str) -> None:
        self._workload = workload
        self._point = point

    def soon(self, client: ClientMachine, rng: Random) -> None:
        """Depose the client at one of its next callbacks."""
        self._trap(client, rng, partial(self._depose, client, rng))

    def _trap(self, client: ClientMachine, rng: Random, trap: partial[None]) -> None:
        if client.process is not None:
            client.process.at_step(rng.randint(1, WITHIN_STEPS), trap)

    def _depose(self, client: ClientMachine, rng: Random) -> None:
        """End its session, with nothing wrong otherwise; from then on it is late."""
        world = self._workload.world
        service = world.service
        if client.store is None or self._workload.over:
            return
        service.expire(client.store)
        if rng.random() < FAR_SHARE:
            world.reached(f"{self._point}-far")
            service.far(client.name)
        else:
            self._trap(client, rng, partial(self._stand_still, client, rng))

    def _stand_still(self, client: ClientMachine, rng: Random) -> None:
        if client.running and not self._workload.over:
            world = self._workload.world
            world.reached(f"{self._point}-stopped")
            client.pause()
            world.loop.call_later(rng.uniform(*STANDS_STILL_S), client.resume, context=world.context)
