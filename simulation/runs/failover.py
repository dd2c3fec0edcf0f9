"""Failovers: a log's writer is paused, another one takes the log over, then the first one goes on.

A round is a function of its seed. The first writer is stopped (SIGSTOP) right before a drawn callback, so at any await
point of opening, writing, rolling or closing; its metadata session ends after its timeout. The second one waits for the
lock all that time, recovers, writes. Then, or already on the way there, the first one goes on. What must hold:

* from the second one's first acknowledgement on the first one's writer acknowledges nothing (I5): neither what is
  written then, nor what storage nodes had answered before and its host had received
* everything that was acknowledged to either is there, in order, once (I1, I4); what is unknown once or not at all
* the first one's handle ends with an error of the product, and it can open the log again once the second one has left
* the second one opens the log at its first try: a last transaction of the first one, in the middle of its recovery,
  makes it begin that again, under its own lock

`LogCheckers` watches all of it, besides the checks of every frame and every transaction of the metadata.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from statistics import median
from typing import TypeAlias

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.writing.acknowledgements import WrittenEntry
from dlspark.core.writing.writer import AsyncLogWriter
from metadata.foundation.errors import DistributedLogError
from simulation.checkers.history import OperationOutcome
from simulation.checkers.logs import WriterSession, WrittenRecord
from simulation.cluster import ClientMachine, World
from simulation.environment.loop import unheard
from simulation.runs.many import trouble, undisturbed
from simulation.runs.seeds import all_serve
from simulation.workloads.logs import LogWorkload, SimulatedLog
from simulation.workloads.programs import HEALTHY_S

Answer: TypeAlias = "asyncio.Future[DLSN] | asyncio.Future[tuple[WrittenEntry, ...]]"
SESSION_TIMEOUTS_S = (1, 2, 4)
LAST_STEP = 1_500
"""Callbacks of the first writer's process within which it is stopped: opening takes some 200."""
LOCK_TIMEOUT_S = 8
"""How long the second writer waits for the lock: longer than any session lives."""
ON_THE_WAY_SHARE = 0.25
"""Of the rounds, in which the first writer goes on before the second one has its first acknowledgement."""


@dataclass(slots=True)
class Failover:
    """How did one round end? Times are virtual."""

    seed: int
    session_timeout_s: float = 0.0
    taken_over_s: float = -1.0
    """From the moment the first writer was paused to the second one's first acknowledgement."""
    acknowledged_before: int = 0
    """Records that the first writer knew to be stored when it was stopped."""
    refused_after: int = 0
    """Records that were refused once the second writer had its first acknowledgement."""
    ended_with: str = ""
    """The error with which the first writer's handle ended; empty where it was not open yet when it was stopped."""
    begun_again: int = 0
    """How often the second writer began its recovery anew, because the first one had moved the log meanwhile."""
    tries: int = 0
    """How often the second writer had to be opened."""
    failure: str | None = None
    points: Counter[str] = field(default_factory=Counter)


class FailoverWorkload(LogWorkload):
    """One log with two writers."""

    produced_share = 0.0

    def __init__(self, world: World, rng: Random, outcome: Failover) -> None:
        super().__init__(world, rng)
        self._session_timeout_s = rng.choice(SESSION_TIMEOUTS_S)
        settings = replace(
            self.logs[0].settings,
            write_lock=True,
            lock_timeout_s=LOCK_TIMEOUT_S,
            zk_session_timeout_s=self._session_timeout_s,
            rolling_minutes=0,
        )
        self.logs = [SimulatedLog("log0", settings)]
        self.records_left = 1_000_000
        self.outcome = outcome
        self._rng = rng
        self._stopped_at = -1.0
        self._first_sessions: list[WriterSession] = []
        self._tick_of_second = 0
        self._answers: list[tuple[Sequence[WrittenRecord], Answer]] = []
        self._known_outcomes: set[int] = set()
        """Records, by identity, whose outcome the first writer had reported when it was stopped."""
        self._second_acknowledged = asyncio.Event()
        self._second_left = asyncio.Event()

    async def prepare(self) -> None:
        """Bind the namespace as other log workloads do, with the session timeout that this run measures."""
        await super().prepare()
        self.world.service.session_timeout_s = self.outcome.session_timeout_s = self._session_timeout_s

    def _follow(self, record: WrittenRecord, future: asyncio.Future[DLSN]) -> None:
        self._answers.append(([record], future))
        super()._follow(record, future)

    def _follow_batch(self, records: Sequence[WrittenRecord], batch: asyncio.Future[tuple[WrittenEntry, ...]]) -> None:
        self._answers.append((records, batch))
        super()._follow_batch(records, batch)

    async def play(self) -> None:
        """Play the round, to the moment in which both have written and left."""
        log = self.logs[0]
        first, second = self.world.add_client("first"), self.world.add_client("second")
        first.start()
        second.start()
        stopped = asyncio.Event()
        if first.process is None:
            raise RuntimeError("the first writer was not started")
        first.process.at_step(self._rng.randint(1, LAST_STEP), partial(self._stop, first, stopped))
        one = first.spawn(self._first(log, first))
        await asyncio.wait_for(stopped.wait(), HEALTHY_S)
        await asyncio.sleep(self._rng.uniform(0, 0.5 * self.world.service.session_timeout_s))
        two = second.spawn(self._second(log, second))
        await self._time_to_go_on()
        first.resume()
        await asyncio.wait_for(asyncio.gather(one, two), 2 * HEALTHY_S)

    def _stop(self, first: ClientMachine, stopped: asyncio.Event) -> None:
        self._stopped_at = self.world.loop.time()
        self._known_outcomes = {id(record) for records, future in self._answers if future.done() for record in records}
        self.outcome.acknowledged_before = sum(self._acknowledged(one) for one in self._first_sessions)
        first.pause()
        stopped.set()

    @staticmethod
    def _acknowledged(session: WriterSession) -> int:
        return sum(record.outcome is OperationOutcome.OK for record in session.records)

    async def _time_to_go_on(self) -> None:
        """Wait until after the session's end: until the second writer is on its way, or has an acknowledgement."""
        ends = self._stopped_at + self.world.service.session_timeout_s
        if self._rng.random() < ON_THE_WAY_SHARE:
            await asyncio.sleep(ends - self.world.loop.time() + self._rng.uniform(0, 0.05))
            return
        await asyncio.wait_for(self._second_acknowledged.wait(), HEALTHY_S)
        await asyncio.sleep(self._rng.choice((0.0, self._rng.uniform(0, 0.3))))

    # ------------------------------------------------------------------------------------ the two writers

    async def _first(self, log: SimulatedLog, client: ClientMachine) -> None:
        """Write until the handle fails; then, when the second writer has left, open the log again and write."""
        while not self._second_acknowledged.is_set():
            # The log may come back, where the second one was not waiting for the lock yet.
            back = self._stopped_at >= 0
            try:
                await self._write_session(log, client, self._a_few if back else self._until_it_fails)
                self.world.reached("failover.back")
            except DistributedLogError as error:
                if self._second_acknowledged.is_set():
                    self.outcome.ended_with = self.outcome.ended_with or type(error).__name__
                await asyncio.sleep(0.05)
        await asyncio.wait_for(self._second_left.wait(), HEALTHY_S)
        await self.patiently("opening the log again", partial(self._write_session, log, client, self._a_few))

    async def _until_it_fails(self, writer: AsyncLogWriter, session: WriterSession) -> None:
        if self._second_acknowledged.is_set():
            return  # It was not opened yet when it was stopped.
        self._first_sessions.append(session)
        rng = self.world.rng(f"first/{session.number}")
        deadline = 0.0
        while not session.failed:
            self._burst(writer, session, rng)
            await asyncio.sleep(rng.uniform(0, 0.01))
            if self._second_acknowledged.is_set():
                deadline = deadline or self.world.loop.time() + HEALTHY_S
                if self.world.loop.time() > deadline:
                    self.world.ledger_checkers.fail("the first writer goes on, and gets no error")
                if rng.random() < 0.2:
                    await writer.flush()
        await writer.flush()  # It says what the handle ended with.
        self.world.ledger_checkers.fail("records were refused, and the writer's handle does not report it")

    async def _second(self, log: SimulatedLog, client: ClientMachine) -> None:
        """Take over, write for a while beside the first one, leave."""

        async def attempt() -> None:
            self.outcome.tries += 1
            await self._write_session(log, client, self._take_over)

        await self.patiently("taking over", attempt)
        self._second_left.set()

    async def close_namespace(self, namespace: AsyncNamespace) -> None:
        """Count the recoveries that were begun again, then close."""
        self.outcome.begun_again += namespace.counters["recovery-begun-again"]
        await super().close_namespace(namespace)

    async def _take_over(self, writer: AsyncLogWriter, session: WriterSession) -> None:
        self._write_few(writer, session)
        await writer.flush()
        if self.outcome.taken_over_s < 0:
            self.outcome.taken_over_s = self.world.loop.time() - self._stopped_at
            self._tick_of_second = self.world.log_checkers.events
        self._second_acknowledged.set()
        for _ in range(self._rng.randint(3, 20)):
            self._write_few(writer, session)
            await asyncio.sleep(self._rng.uniform(0, 0.1))
        await writer.close()

    async def _a_few(self, writer: AsyncLogWriter, session: WriterSession) -> None:
        self._write_few(writer, session)
        await writer.close()

    def _write_few(self, writer: AsyncLogWriter, session: WriterSession) -> None:
        self._burst(writer, session, self._rng)

    # ------------------------------------------------------------------------------------ what the first one hears

    def check_first(self) -> None:
        """Judge the answers that the first writer got after the second one's first acknowledgement."""
        for session in self._first_sessions:
            for record in session.records:
                if record.ended <= self._tick_of_second:
                    continue
                if record.outcome is not OperationOutcome.OK:
                    self.outcome.refused_after += 1
                elif id(record) not in self._known_outcomes:
                    self.world.ledger_checkers.fail(
                        f"{record.dlsn} was acknowledged after the second writer's first acknowledgement (I5)"
                    )


def run_failover(seed: int) -> Failover:
    """Return one round, to its end or to its first violation."""
    outcome = Failover(seed)
    with undisturbed() as swallowed:
        world = World(f"failover-{seed}")
        try:
            world.run(_round(world, outcome))
        except Exception as error:
            outcome.failure = str(world.ledger_checkers.violation or f"{type(error).__name__}: {error}")
        outcome.failure = outcome.failure or trouble(world, swallowed)
        outcome.points = world.points
    return outcome


async def _round(world: World, outcome: Failover) -> None:
    rng = world.rng("plan")
    workload = FailoverWorkload(world, rng, outcome)
    for _ in range(workload.sizes[0][0] + 1):
        world.add_node()
    world.fabric.latency_s = world.service.latency_s = rng.choice((0.0005, 0.002, 0.01))
    await world.format()
    for node in world.nodes:
        node.start()
    await all_serve(world, "at the start")
    await workload.prepare()
    await workload.play()
    workload.check_first()
    client = world.add_client("verifier")
    client.start()
    await asyncio.wait_for(client.spawn(workload.verify(client)), 3 * HEALTHY_S)
    world.ledger_checkers.final_state()


def run_failovers(seeds: Iterable[int]) -> list[Failover]:
    """Return all of these rounds."""
    rounds = [run_failover(seed) for seed in seeds]
    with unheard():
        gc.collect()
    return rounds


def table(rounds: Sequence[Failover]) -> str:
    """Return the time to take over compared with the session's timeout, one line for each timeout.

    Only of rounds in which the first writer had written when it was stopped: else it may not have had the lock. Then in
    which rounds the second one began its recovery again.
    """
    timed = [one for one in rounds if one.failure is None and one.acknowledged_before]
    lines = [f"{'session timeout':>16}{'rounds':>8}{'p50':>9}{'max':>9}{'p50 - timeout':>15}{'max - timeout':>15}"]
    for timeout_s in sorted({one.session_timeout_s for one in timed}):
        took = [one.taken_over_s for one in timed if one.session_timeout_s == timeout_s]
        lines.append(
            f"{timeout_s:>14.1f} s{len(took):>8}{median(took):>7.2f} s{max(took):>7.2f} s"
            f"{(median(took) - timeout_s) * 1000:>12.0f} ms{(max(took) - timeout_s) * 1000:>12.0f} ms"
        )
    again = [one.seed for one in rounds if one.begun_again]
    lines.append(f"recovery was begun again in {len(again)} of {len(rounds)} rounds: {again}")
    return "\n".join(lines)
