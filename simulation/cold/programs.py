"""What runs in a run with cold storage: a writer and its successors, readers, movers. Each may die at any line.

Records are numbers, from one counter of all writers; each is sent once. A number whose outcome its writer does not know
may be in the log or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from dlspark.cold.moving.daemon import MoverDaemon
from dlspark.cold.moving.stores import MoverStores
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.log import AsyncLog
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.settings.settings import Settings
from dlspark.errors import AlreadyTruncatedError
from metadata.foundation.errors import DistributedLogError
from simulation.cluster import ClientMachine
from simulation.cold.world import ColdWorld

LOG = "log0"
AGAIN_S = 0.05


class ColdPrograms:
    """The programs of one run."""

    def __init__(self, world: ColdWorld, settings: Settings, rng: Random) -> None:
        self.over = asyncio.Event()
        self.reading_over = asyncio.Event()
        self._world = world
        self._settings = settings
        self._rng = rng
        self._number = 0
        self.machines: list[ClientMachine] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start them all; each is started again where it dies, until it is over."""
        for name, work, end in (
            ("writer", self._write, self.over),
            ("mover-a", self._move, self.reading_over),
            ("mover-b", self._move, self.reading_over),
            ("reader", self._read_on, self.reading_over),
            ("looker", self._look, self.reading_over),
        ):
            machine = self._world.add_client(name)
            self.machines.append(machine)
            self._tasks.append(self._world.start(self._keep(machine, work, end)))

    async def ended(self) -> None:
        """Wait until all have ended."""
        await asyncio.gather(*self._tasks)

    async def _keep(
        self,
        machine: ClientMachine,
        work: Callable[[ClientMachine, AsyncNamespace], Awaitable[None]],
        end: asyncio.Event,
    ) -> None:
        rng = self._world.rng(f"starts of {machine.name}")
        while not end.is_set():
            machine.start()
            task = machine.spawn(self._run(machine, work, end))
            ended, dead = asyncio.ensure_future(end.wait()), machine.ended
            await asyncio.wait([task, dead], return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if task.done():
                task.result()
            if machine.running:
                machine.kill()
            await asyncio.sleep(rng.uniform(0.05, 0.5))

    async def _run(
        self,
        machine: ClientMachine,
        work: Callable[[ClientMachine, AsyncNamespace], Awaitable[None]],
        end: asyncio.Event,
    ) -> None:
        try:
            namespace = await self._world.namespace(machine, self._settings)
            try:
                await work(machine, namespace)
            finally:
                await namespace.close()
        except DistributedLogError as error:
            self._world.trace.note(f"{machine.name} ends: {error}")

    # ------------------------------------------------------------------ writing

    async def _write(self, machine: ClientMachine, namespace: AsyncNamespace) -> None:
        rng = self._world.rng(f"writer {machine.runs}")
        checker = self._world.cold_checker
        async with await namespace.open_log(LOG) as log:
            writer = await log.open_writer()
            while not self.over.is_set():
                self._number += 1
                number = self._number
                checker.sent.add(number)
                payload = f"{number} ".encode() + b"x" * rng.choice((0, 20, 200))
                stored = writer.write(number, payload)
                await writer.send()
                dlsn = await stored
                checker.written(number, dlsn)
                if rng.random() < 0.02:
                    await self._truncate(log, dlsn, rng)
                if rng.random() < 0.02:
                    await writer.close()
                    writer = await log.open_writer()
                await asyncio.sleep(rng.uniform(0.0, 0.12))
            await writer.close()

    async def _truncate(self, log: AsyncLog, newest: DLSN, rng: Random) -> None:
        """Hide some of the oldest records."""
        checker = self._world.cold_checker
        there = sorted(dlsn for dlsn in checker.acknowledged.values() if dlsn >= checker.hidden_below)
        cut = there[rng.randrange(min(len(there), 40))]
        checker.asked_to_hide = max(checker.asked_to_hide, cut)
        await log.truncate(cut)
        self._world.reached("cold.truncated")

    # ------------------------------------------------------------------ moving

    async def _move(self, machine: ClientMachine, namespace: AsyncNamespace) -> None:
        daemon = MoverDaemon(
            namespace,
            stores=MoverStores(self._world.open_store),
            worker=f"{machine.name}#{machine.runs}",
            rng=self._world.rng(f"{machine.name} {machine.runs}"),
        )
        await daemon.run()

    # ------------------------------------------------------------------ reading

    async def _look(self, machine: ClientMachine, namespace: AsyncNamespace) -> None:
        """Read the whole log, again and again."""
        rng = self._world.rng(f"looks {machine.runs}")
        while not self.reading_over.is_set():
            try:
                await self.look(namespace)
            except DistributedLogError as error:
                self._world.trace.note(f"a look ends: {type(error).__name__}: {error}")
            await asyncio.sleep(rng.uniform(0.0, 0.5))

    async def look(self, namespace: AsyncNamespace) -> int:
        """Read everything that is there now; returns how many records."""
        checker = self._world.cold_checker
        wanted = checker.wanted()
        seen: list[tuple[int, DLSN]] = []
        if not wanted:
            return 0
        until = max(wanted.values())
        async with await namespace.open_log(LOG) as log:
            while until >= checker.hidden_below:
                try:
                    async with await log.open_reader() as reader:
                        while not seen or seen[-1][1] < until:
                            record = await asyncio.wait_for(reader.read_next(), 20)
                            seen.append((int(bytes(record.payload).split()[0]), record.dlsn))
                    break
                except AlreadyTruncatedError:
                    seen.clear()  # hidden while it was read: begin again at the first that is left
                except asyncio.TimeoutError:
                    if until >= checker.hidden_below:
                        self._world.trace.note(f"a look gets no further than {seen[-1:]}")
                        return 0
        checker.looked(seen, wanted)
        return len(seen)

    async def _read_on(self, machine: ClientMachine, namespace: AsyncNamespace) -> None:
        """Read on behind what was read, and never stop."""
        checker = self._world.cold_checker
        last: tuple[int, DLSN] | None = None
        async with await namespace.open_log(LOG) as log:
            while not self.reading_over.is_set():
                try:
                    start = None if last is None else DLSN(last[1].lssn, last[1].entry_id, last[1].slot_id + 1)
                    async with await log.open_reader(start) as reader:
                        while not self.reading_over.is_set():
                            record = await reader.read_next()
                            now = int(bytes(record.payload).split()[0]), record.dlsn
                            pair = [now] if last is None else [last, now]
                            numbers = range(1 if last is None else last[0] + 1, now[0] + 1)
                            known = checker.acknowledged
                            between = {number: known[number] for number in numbers if number in known}
                            checker.looked(pair, between, from_number=0 if last is None else last[0])
                            last = now
                except AlreadyTruncatedError:
                    self._world.reached("cold.reader-truncated")
                    last = None if last is None else last
                    await asyncio.sleep(AGAIN_S)
                    if last is not None and last[1] < checker.hidden_below:
                        last = None
                except DistributedLogError as error:
                    self._world.trace.note(f"the reader fails: {type(error).__name__}: {error}")
                    await asyncio.sleep(AGAIN_S)
