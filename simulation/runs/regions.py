"""Rounds of losing a region: one of three goes away, in one of five ways, and comes back.

A round is a function of its seed. Three regions have storage nodes, a writer and a reader each; between regions a
message takes its share of a round trip of 20 or 60 ms. One writer has the log, the others wait for its lock. Then a
region is killed, cut off (in both directions or in one) or slow, and with its metadata server the ensemble of these
stands still for an election. What must hold, for both ways to survive a region (`survive`):

* all that was acknowledged is there, in order, once (I1, I4): `LogCheckers` and `LedgerCheckers` watch it throughout
* records that are written after the loss are acknowledged, the first one within LIMIT_S of it, each next one within
  LIMIT_S of the one before, wherever the log's writer was
* readers of the other regions get each acknowledged record within LIMIT_S, and one that begins meanwhile gets all
* back again, everything is well: a new writer writes, a new reader reads everything
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from random import Random
from statistics import median
from typing import Final

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.reading.positions import EARLIEST
from dlspark.core.settings.settings import Settings
from dlspark.core.settings.survival import ACKNOWLEDGEMENTS, COPIES
from dlspark.core.writing.writer import AsyncLogWriter
from metadata.foundation.errors import DistributedLogError
from simulation.checkers.logs import WriterSession, WrittenRecord
from simulation.cluster import CLIENT_SETTINGS, ClientMachine, Machine, World
from simulation.runs.many import RunReport, play
from simulation.runs.seeds import all_serve
from simulation.workloads.logs import LogWorkload, SimulatedLog, draw_log
from simulation.workloads.programs import HEALTHY_S

REGIONS: Final = ("eu", "us", "asia")
WAYS: Final = ("killed", "cut", "cut-in", "cut-out", "slow")
"""How a region goes. `cut-in`: nothing reaches it; `cut-out`: nothing it sends reaches others."""
ROUND_TRIPS_S: Final = (0.02, 0.06)
NEAR_S: Final = 0.0005
"""One way, within a region."""
SLOWER: Final = 8.0
"""Messages of a slow region take so many times longer."""
SESSION_TIMEOUTS_S: Final = (2, 4)
LOCK_TIMEOUT_S: Final = 8
ELECTION_S: Final = (0.2, 2.0)
AWAY_S: Final = (10.5, 14.0)
LIMIT_S: Final = 10.0
SEGMENT_BYTES: Final = (0, 8 << 10, 32 << 10)
"""Segments last for seconds. Where a region is slow each one that begins takes several of its round trips, so that much
shorter ones would write a backlog of records, and records written after the loss would wait behind it."""
PAUSE_S: Final = 0.05
"""Between two bursts of the writer."""
REGION_POINTS: Final = (
    *(f"region.{way}-{whose}" for way, whose in product(WAYS, ("home", "other"))),
    "region.new-segment",
    "region.taken-over",
)


@dataclass(slots=True)
class RegionLoss(RunReport):
    """How did one round end? Times are virtual, from the moment in which the region went."""

    by: str = ""
    """How the region's loss is survived."""
    way: str = ""
    home: bool = False
    """True where the log's writer was there."""
    round_trip_s: float = 0.0
    written_s: float = -1.0
    """The longest time without an acknowledgement, from the loss to its end; the first one is of a record that was
    written after the loss."""
    read_s: float = -1.0
    """The longest that a reader of another region waited for an acknowledged record, up to the end of the loss."""


class RegionWorkload(LogWorkload):
    """One log; a writer and a reader in each region."""

    produced_share = 0.0

    def __init__(self, world: World, rng: Random, outcome: RegionLoss) -> None:
        super().__init__(world, rng)
        self._rng = rng
        self.outcome = outcome
        outcome.by = rng.choice((COPIES, ACKNOWLEDGEMENTS))
        outcome.way = rng.choice(WAYS)
        outcome.round_trip_s = rng.choice(ROUND_TRIPS_S)
        self._session_timeout_s = rng.choice(SESSION_TIMEOUTS_S)
        self._goal = {
            "survive": "region",
            "surviveBy": outcome.by,
            "bkc.reppRegionsToWrite": ";".join(REGIONS),
        }
        drawn = draw_log("log0", rng).settings
        settings = replace(
            Settings.from_mapping(self._goal),
            **{name: getattr(drawn, name) for name in ("compression", "output_buffer_bytes", "read_ahead_entries")},
            max_segment_bytes=rng.choice(SEGMENT_BYTES),
            periodic_flush_ms=20,
            immediate_flush=True,
            zk_session_timeout_s=self._session_timeout_s,
            zk_retry_max_backoff_ms=500,
            lock_timeout_s=LOCK_TIMEOUT_S,
            rolling_minutes=0,
            rolling_concurrency=0,
            retention_hours=0,
            long_poll_ms=300,
            read_ahead_wait_ms=50,
        )
        self.logs = [SimulatedLog("log0", settings)]
        self.records_left = 1_000_000
        self._lost_region: str | None = None
        self._lost_at = -1.0
        self._back = asyncio.Event()
        self._owner: str | None = None
        """The region whose writer was acknowledged last."""
        self._acknowledged: dict[DLSN, float] = {}
        self._pushed: dict[int, float] = {}
        """By identity of the record."""
        self._last_acknowledged = -1.0
        """When a record was acknowledged last that was written after the loss; the loss, before there is one."""
        self._seen: dict[str, DLSN] = {}
        """How far the reader of each region has come, over all its openings."""
        plan = settings.survival
        self.nodes_a_region = plan.nodes_a_place if plan is not None else 0

    async def prepare(self) -> None:
        """Bind the namespace as other log workloads do, with the session timeout that this round has."""
        await super().prepare()
        self.world.service.session_timeout_s = self._session_timeout_s

    # ------------------------------------------------------------------------------------ regions

    def region_of(self, machine: Machine) -> str:
        """Return the region that a machine's name begins with."""
        return machine.name.partition("-")[0]

    def build(self) -> None:
        """Add the storage nodes, and put distance between the regions."""
        for region in REGIONS:
            for _ in range(self.nodes_a_region):
                self.world.add_node(f"{region}-{self._rng.choice('xyz')}-n-")
        self.world.fabric.latency_s = self.world.service.latency_s = NEAR_S

    def distances(self) -> None:
        """Let messages between regions take half a round trip, and those to the metadata store as well."""
        far = self.outcome.round_trip_s / 2 / NEAR_S
        for one, other in product(self._machines(), repeat=2):
            if self.region_of(one) != self.region_of(other):
                self.world.fabric.slow[one.name, other.name] = far
        for machine in self._machines():
            # A read is served by the server nearby; a change takes its leader's and a follower's way.
            self.world.service.slow[machine.name] = far / 2

    def _machines(self) -> list[Machine]:
        clients = [one for one in self.world.clients.values() if self.region_of(one) in REGIONS]
        return [*self.world.nodes, *clients]

    def lose(self) -> None:
        """Take a region away."""
        outcome, world = self.outcome, self.world
        lost = self._lost_region = self._rng.choice(REGIONS)
        self._lost_at = self._last_acknowledged = world.loop.time()
        outcome.home = lost == self._owner
        world.reached(f"region.{outcome.way}-{'home' if outcome.home else 'other'}")
        inside = [one for one in self._machines() if self.region_of(one) == lost]
        outside = [one for one in self._machines() if self.region_of(one) != lost]
        if outcome.way == "killed":
            for machine in inside:
                machine.kill(power=True)
        for one, other in product(inside, outside):
            if outcome.way in ("killed", "cut", "cut-out"):
                world.fabric.block(one.name, other.name)
            if outcome.way in ("killed", "cut", "cut-in"):
                world.fabric.block(other.name, one.name)
            if outcome.way == "slow":
                for pair in ((one.name, other.name), (other.name, one.name)):
                    world.fabric.slow[pair] *= SLOWER
        if outcome.way == "slow":
            for machine in inside:
                world.service.slow[machine.name] *= SLOWER
            return
        for machine in inside:
            world.service.cut_off(machine.name)
        # The region's metadata server may have led the others.
        world.service.stalled = True
        world.loop.call_later(self._rng.uniform(*ELECTION_S), world.service.resume, context=world.context)

    def bring_back(self) -> None:
        """Let the region come back as it was."""
        world = self.world
        for source, target in sorted(world.fabric.blocked):
            world.fabric.unblock(source, target)
        self.distances()
        for machine in self._machines():
            if self.region_of(machine) == self._lost_region:
                world.service.join(machine.name)
        for node in world.nodes:
            node.start()
        self._back.set()

    async def before_restart(self, client: ClientMachine, rng: Random) -> None:
        """Wait until the client's region is back."""
        if self.region_of(client) == self._lost_region:
            await self._back.wait()
        await super().before_restart(client, rng)

    # ------------------------------------------------------------------------------------ programs

    def start_programs(self, rng: Random) -> None:
        """Start a writer and a reader in each region, and in some rounds auto-recovery in one of them."""
        placement = self.logs[0].settings.client_settings().placement
        for region in REGIONS:
            settings = replace(CLIENT_SETTINGS, placement=replace(placement, region=region))
            for name, program in (("w", self.write_on), ("r", self.follow)):
                self.add_program(f"{region}-{name}", partial(program, self.logs[0]))
                self.world.clients[f"{region}-{name}"].settings = settings

    async def write_on(self, log: SimulatedLog, client: ClientMachine) -> None:
        """Have the log, as soon as its lock is free, and write to it until something ends that."""
        while self.goes_on(client):
            await self._write_session(log, client, partial(self._until_over, client))

    async def _until_over(self, client: ClientMachine, writer: AsyncLogWriter, session: WriterSession) -> None:
        rng = self.world.rng(f"write/{client.name}/{session.number}")
        self.world.reached("region.taken-over" if session.number > 1 else "region.written")
        while self.goes_on(client) and not session.failed:
            self._burst(writer, session, rng)
            await asyncio.sleep(rng.uniform(0, 2 * PAUSE_S))
        if session.failed:
            await writer.flush()  # it says what the writer ended with
        await writer.close()

    def _record(self, session: WriterSession, rng: Random) -> WrittenRecord:
        record = super()._record(session, rng)
        self._pushed[id(record)] = self.world.loop.time()
        return record

    def _answered(self, record: WrittenRecord, *rest: object) -> None:
        super()._answered(record, *rest)  # type: ignore[arg-type]
        self._count([record])

    def _batch_answered(self, records: Sequence[WrittenRecord], *rest: object) -> None:
        super()._batch_answered(records, *rest)  # type: ignore[arg-type]
        self._count(records)

    def _count(self, records: Sequence[WrittenRecord]) -> None:
        now = self.world.loop.time()
        for record in records:
            if record.dlsn is None:
                continue
            self._acknowledged[record.dlsn] = now
            self._owner = record.session.client.partition("-")[0]
            if self._lost_at < 0 or self._back.is_set():
                continue
            if self._pushed[id(record)] >= self._lost_at:
                self.outcome.written_s = max(self.outcome.written_s, now - self._last_acknowledged)
                self._last_acknowledged = now
            if record.dlsn.lssn > self._last_segment:
                self.world.reached("region.new-segment")

    @property
    def _last_segment(self) -> int:
        """The segment that was written to when the region went."""
        return max((d.lssn for d, at in self._acknowledged.items() if at < self._lost_at), default=0)

    async def follow(self, log: SimulatedLog, client: ClientMachine) -> None:
        """Read from the first record on, until the programs end."""
        namespace = await self.open_namespace(log, client)
        try:
            handle = await namespace.open_log(log.name)
            reader = await handle.open_reader(EARLIEST)
            span = self.world.log_checkers.span(client.name, log.name, DLSN.INITIAL)
            while self.goes_on(client):
                had = len(span.read)
                await self.tail(reader, span, self._rng, had + 1)
                for seen in span.read[had:]:
                    self._seen_by(client, seen.dlsn)
        except self.never as error:
            self.world.ledger_checkers.fail(f"{client.name}: {error!r}")
        finally:
            await self.close_namespace(namespace)

    def _seen_by(self, client: ClientMachine, dlsn: DLSN) -> None:
        """Note that a region's reader has got a record: for the first time, unless it had begun again."""
        if dlsn <= self._seen.get(client.name, DLSN.INITIAL):
            return
        self._seen[client.name] = dlsn
        at = self._acknowledged.get(dlsn)
        if at is not None and self._lost_at >= 0 and not self._back.is_set():
            self._waited(client, at)

    def _waited(self, client: ClientMachine, acknowledged_at: float) -> None:
        if self.region_of(client) != self._lost_region:
            waited = self.world.loop.time() - max(acknowledged_at, self._lost_at)
            self.outcome.read_s = max(self.outcome.read_s, waited)

    # ------------------------------------------------------------------------------------ the round

    async def play(self) -> None:
        """Play the round: all well, a region away, all well again."""
        self.start_programs(self._rng)
        self.distances()
        deadline = self.world.loop.time() + HEALTHY_S
        while len(self._acknowledged) < 20:
            if self.world.loop.time() > deadline:
                self.world.ledger_checkers.fail("nothing was written before a region went")
            await asyncio.sleep(0.1)
        await asyncio.sleep(self._rng.uniform(0, 1.0))
        self.lose()
        await asyncio.sleep(self._rng.uniform(0, 4.0))
        await self._read_meanwhile()
        away = self._lost_at + self._rng.uniform(*AWAY_S) - self.world.loop.time()
        await asyncio.sleep(away)
        self._judge()
        self.bring_back()
        await asyncio.sleep(self._rng.uniform(0.5, 2.0))
        self.over = True
        await self.finished(HEALTHY_S)

    async def _read_meanwhile(self) -> None:
        """Read everything with a reader that begins while the region is away."""
        region = self._rng.choice([one for one in REGIONS if one != self._lost_region])
        known = max(self._acknowledged)
        client = self.world.add_client(f"{region}-late")
        client.settings = self.world.clients[f"{region}-r"].settings
        client.start()
        self.distances_of(client)
        began = self.world.loop.time()
        task = client.spawn(self._read_up_to(client, known))
        try:
            await asyncio.wait_for(task, LIMIT_S)
        except asyncio.TimeoutError:
            self.world.ledger_checkers.fail(f"a reader that began in {region} has not come to {known} in {LIMIT_S} s")
        self.outcome.read_s = max(self.outcome.read_s, self.world.loop.time() - began)
        client.kill()

    def distances_of(self, client: ClientMachine) -> None:
        """Put a client that came later where it belongs: behind the same distances and cuts as its region."""
        like = self.world.clients[f"{self.region_of(client)}-r"].name
        fabric = self.world.fabric
        for other in self._machines():
            for pair, mine in (
                ((like, other.name), (client.name, other.name)),
                ((other.name, like), (other.name, client.name)),
            ):
                if pair in fabric.slow:
                    fabric.slow[mine] = fabric.slow[pair]
                if pair in fabric.blocked:
                    fabric.block(*mine)
        self.world.service.slow[client.name] = self.world.service.slow[like]

    async def _read_up_to(self, client: ClientMachine, last: DLSN) -> None:
        log = self.logs[0]
        while True:
            try:
                namespace = await self.open_namespace(log, client)
                try:
                    reader = await (await namespace.open_log(log.name)).open_reader(EARLIEST)
                    span = self.world.log_checkers.span(client.name, log.name, DLSN.INITIAL)
                    while not span.read or span.read[-1].dlsn < last:
                        await self.tail(reader, span, self._rng, len(span.read) + 1)
                    return
                finally:
                    await self.close_namespace(namespace)
            except self.never as error:
                self.world.ledger_checkers.fail(f"{client.name}: {error!r}")
            except DistributedLogError:
                await asyncio.sleep(0.1)

    def _judge(self) -> None:
        """Judge the time of the loss, which ends now: also what has not come until then."""
        outcome, fail = self.outcome, self.world.ledger_checkers.fail
        outcome.written_s = max(outcome.written_s, self.world.loop.time() - self._last_acknowledged)
        for region in REGIONS:
            client = self.world.clients[f"{region}-r"]
            seen = self._seen.get(client.name, DLSN.INITIAL)
            for at in [at for dlsn, at in self._acknowledged.items() if dlsn > seen]:
                self._waited(client, at)
        if not 0 <= outcome.written_s <= LIMIT_S:
            fail(f"writes were not back within {LIMIT_S} s of the loss of {self._lost_region}: {outcome.written_s:.1f}")
        if outcome.read_s > LIMIT_S:
            fail(f"a reader waited {outcome.read_s:.1f} s for an acknowledged record")


def run_region(seed: int, *, trace: bool = False) -> RegionLoss:
    """Return one round, to its end or to its first violation."""
    outcome = RegionLoss(seed)
    return play(outcome, lambda: World(f"region-{seed}", trace=trace), lambda world: _round(world, outcome))


def region_command(seed: int) -> str:
    """Return how to see one round again."""
    return f"python -m simulation --regions --seed {seed} --trace"


async def _round(world: World, outcome: RegionLoss) -> None:
    workload = RegionWorkload(world, world.rng("plan"), outcome)
    workload.build()
    await world.format()
    for node in world.nodes:
        node.start()
    await all_serve(world, "at the start")
    await workload.prepare()
    await workload.play()
    client = world.add_client("verifier")
    client.settings = world.clients[f"{REGIONS[0]}-r"].settings
    client.start()
    await asyncio.wait_for(client.spawn(workload.verify(client)), 3 * HEALTHY_S)
    world.ledger_checkers.final_state()


def losses_table(rounds: Iterable[RegionLoss]) -> str:
    """Return the times of rounds, one line for each way to survive and each way to go."""
    lines = [
        f"{'survive by':>17}{'region':>9}{'writer':>7}{'rounds':>8}{'writes back: p50':>18}{'max':>9}"
        f"{'longest wait of a reader: p50':>31}{'max':>9}"
    ]
    kinds: dict[tuple[str, str, bool], list[RegionLoss]] = {}
    for one in rounds:
        if one.failure is None:
            kinds.setdefault((one.by, one.way, one.home), []).append(one)
    for (by, way, home), some in sorted(kinds.items()):
        written, read = [one.written_s for one in some], [one.read_s for one in some]
        lines.append(
            f"{by:>17}{way:>9}{'there' if home else 'away':>7}{len(some):>8}{median(written):>16.2f} s"
            f"{max(written):>7.2f} s{median(read):>29.2f} s{max(read):>7.2f} s"
        )
    return "\n".join(lines)
