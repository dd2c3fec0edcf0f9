"""Thin clients in simulation: `dlspark.serving.client` over the simulated network, writing through a `ProxyTier`.

Each client writes to all logs or some, all the time: as an idempotent producer, of its own name or of one that its next
process takes up again, or plainly, as upstream's clients do. Some know a list of proxies, some look them up; some stay,
some are closed after a while and opened again. What they are answered goes to `checkers.proxies`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.reading.positions import EARLIEST
from dlspark.core.settings.settings import Settings
from dlspark.serving.bindings.frames_client import FramesClient
from dlspark.serving.client.channels import ProxyChannel
from dlspark.serving.client.client import AsyncClient
from dlspark.serving.client.fleet import AnnouncedFleet, Fleet, StaticFleet
from dlspark.serving.client.producing import AsyncProducer
from dlspark.serving.client.settings import ThinClientSettings
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.namespaces import NamespaceStore
from simulation.checkers.conditions import ConditionCheckers
from simulation.checkers.logs import NAMESPACE_PATH, SeenRecord, WriterSession, WrittenRecord
from simulation.checkers.proxies import ClientWrites
from simulation.cluster import ClientMachine, World
from simulation.environment.network import SimulatedNetwork
from simulation.tier import SERVERS, URI, ProxyTier
from simulation.workloads.programs import HEALTHY_S, Workload

SIZES = ((3, 3, 2), (3, 2, 2), (3, 2, 2))
PAYLOADS = (0, 10, 100, 1_000)
PACES_S = (0.01, 0.03, 0.06)
SLOW_PACE_S = 0.18
"""Once enough is written: so that changes of owners are met by some record."""
REQUEST_TIMEOUTS_MS = {"calm": (60_000,), "failover": (60_000,), "rough": (60_000, 60_000, 8_000, 2_000)}
ATTEMPT_TIMEOUTS_MS = {"calm": (10_000,), "failover": (300, 600), "rough": (10_000, 2_000, 500)}
"""By kind of run."""
STAYS_S = (0.3, 1.0)
"""How long a client is open that comes and goes."""
MOST_OPEN = 30
"""Records of a client on one log that have no outcome; it waits with more."""
SERVED_BOUND_S = 10.0
"""Once nothing is wrong any more, every log takes writes within the session's timeout and this."""

Values = Mapping[str, str | int | bool]
"""Settings of a thin client, by key."""


@dataclass(frozen=True, slots=True)
class ClientHabits:
    """How one client writes, in all its processes."""

    logs: tuple[str, ...]
    values: Values
    idempotent: bool
    named: bool
    """True where the producers have the client's name, which its next process takes up."""
    announced: bool
    """True where it looks the proxies up in the metadata store."""
    stays: bool
    """True where it is open as long as its process lives."""
    pace_s: float


def draw_habits(rng: Random, logs: list[str], kind: str) -> ClientHabits:
    """Return how a client writes. In a calm run it is patient: an outcome that it did not wait for would not be an
    error. In one of failovers it soon asks another proxy, so that there is a successor before a stopped one wakes."""
    idempotent = rng.random() < 0.7
    values: dict[str, str | int | bool] = {
        "requestTimeoutMs": rng.choice(REQUEST_TIMEOUTS_MS[kind]),
        "attemptTimeoutMs": rng.choice(ATTEMPT_TIMEOUTS_MS[kind]),
        "idempotentProducer": idempotent,
        "handshakeWithClientInfo": rng.random() < 0.6,
        "periodicHandshakeIntervalMs": rng.choice((0, 400)),
        "lingerMs": rng.choice((0, 0, 5)),
        "batchMaxRecords": rng.choice((1, 3, 100)),
        "maxInFlightRequests": rng.choice((1, 3, 5, 5)),
    }
    return ClientHabits(
        logs=tuple(rng.sample(logs, rng.randint(1, min(2, len(logs))))),
        values=values,
        idempotent=idempotent,
        named=idempotent and rng.random() < 0.4,
        announced=rng.random() < 0.3,
        stays=rng.random() < 0.75,
        pace_s=rng.choice(PACES_S),
    )


async def open_thin_client(
    tier: ProxyTier,
    client: ClientMachine,
    values: Values,
    *,
    announced: bool = False,
    read_from: Sequence[str] = (),
) -> AsyncClient:
    """Return a thin client in the process that runs on this machine now."""
    network = SimulatedNetwork(tier.world.fabric)

    async def connect(address: str, on_closed: object) -> ProxyChannel:
        return await FramesClient.connect(network, address, on_closed=on_closed)  # type: ignore[arg-type]

    fleet: Fleet = StaticFleet(tier.addresses, read_from)
    if announced:
        fleet = AnnouncedFleet(URI, lambda servers: client.open_session())
    rng = tier.world.rng(f"thin/{client.name}/{client.runs}/{tier.next_client()}")
    made = AsyncClient(
        [fleet], ThinClientSettings.from_mapping(values), connect, clock=client.clock, random_bits=rng.getrandbits
    )
    await made.open()
    return made


class ProxyWorkload(Workload):
    """Logs, their proxies and their clients."""

    def __init__(self, world: World, rng: Random, kind: str, *, read: bool) -> None:
        """Set the workload up; with `read` readers follow the logs; else few writers spend an entry on telling them
        what is stored.
        """
        super().__init__(world)
        self.kind = kind
        self.session_timeout_s = rng.choice((1, 1, 2))
        ensemble_size, write_quorum, ack_quorum = rng.choice(SIZES)
        self.settings = Settings(
            zk_session_timeout_s=self.session_timeout_s,
            zk_retry_max_backoff_ms=500,
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            periodic_flush_ms=0,
            immediate_flush=read or rng.random() < 0.3,
            rolling_minutes=0,
            max_segment_bytes=rng.choice((1_500, 8_000, 200_000)),
            retention_hours=0,
            rolling_concurrency=0,
            lock_timeout_s=0,
            producer_snapshot_entries=rng.choice((3, 10, 1_000)),
            producer_snapshot_bytes=rng.choice((300, 8 << 20)),
            long_poll_ms=50,
            read_ahead_wait_ms=50,
        )
        self.logs = [f"log{number}" for number in range(rng.randint(2, 4))]
        """All that are written."""
        self.tier = ProxyTier(world, self.settings)
        self.tier.checkers.calm = kind == "calm"
        self.conditions = ConditionCheckers(world, world.ledger_checkers)
        self.records_left = rng.randint(100, 200)
        """That are written fast."""
        self.served_s: list[float] = []
        """From the end of the faults to each log's next acknowledged write."""
        self._rng = rng

    @property
    def sizes(self) -> list[tuple[int, int, int]]:
        """One for all logs."""
        return [self.settings.quorums]

    async def prepare(self) -> None:
        """Bind the namespace, start the proxies."""
        self.world.service.session_timeout_s = self.session_timeout_s
        client = self.world.add_client("binder")
        _, store = client.begin()
        await client.spawn(NamespaceStore(store, NAMESPACE_PATH).bind(Binding.for_cluster(SERVERS)))
        await client.spawn(store.close())
        client.kill()
        self.tier.add(self._rng.choice((2, 3)))
        await self.tier.all_serve()

    def start_programs(self, rng: Random) -> None:
        """Start the clients that write without conditions."""
        names = list(self.logs)
        for number in range(rng.randint(3, 6)):
            habits = draw_habits(rng, names, self.kind)
            self.add_program(f"c{number}", partial(self._write, habits))

    # ------------------------------------------------------------------------------------ clients

    async def _write(self, habits: ClientHabits, client: ClientMachine) -> None:
        rng = self.world.rng(f"writes/{client.name}/{client.runs}")
        while self.goes_on(client):
            thin = await open_thin_client(self.tier, client, habits.values, announced=habits.announced)
            until_s = self.world.loop.time() + (1e9 if habits.stays else rng.uniform(*STAYS_S))
            senders = self._senders(thin, habits, client)
            while not self.over and self.world.loop.time() < until_s:
                producer, sender = rng.choice(senders)
                fast = self.records_left > 0
                if producer.pending < MOST_OPEN:
                    for _ in range(rng.choice((1, 1, 2, 4)) if fast else 1):
                        self.send(producer, sender, rng)
                await asyncio.sleep(rng.uniform(0, 2 * habits.pace_s) if fast else rng.uniform(0, 2 * SLOW_PACE_S))
            await self.close(thin, [sender for _, sender in senders])
            if not habits.stays:
                self.world.reached("client.came-and-went")

    def _senders(
        self, thin: AsyncClient, habits: ClientHabits, client: ClientMachine
    ) -> list[tuple[AsyncProducer, ClientWrites]]:
        name = client.name if habits.named else None
        return [(thin.producer(log, name), self.sender(client, log, ordered=habits.idempotent)) for log in habits.logs]

    async def close(self, thin: AsyncClient, senders: Sequence[ClientWrites]) -> None:
        """Close a client: all its records have their outcome then."""
        await thin.close()
        await asyncio.sleep(0)  # callbacks of what was just decided
        for sender in senders:
            left = [record for record in sender.records if record.ended < 0]
            if left:
                self.world.ledger_checkers.fail(
                    f"{sender.session.client} is closed, and {len(left)} records have no outcome"
                )

    def sender(self, client: ClientMachine, log: str, *, ordered: bool) -> ClientWrites:
        """Begin what the process that runs on this machine now writes to a log."""
        session = self.world.log_checkers.session(log, client)
        return self.tier.checkers.sender(session, ordered=ordered)

    def payload(self, sender: ClientWrites, rng: Random) -> bytes:
        """Return a payload that no other record has."""
        session = sender.session
        name = b"%s:%d:%s:%d:" % (
            session.log.encode(),
            session.number,
            session.client.encode(),
            len(sender.records),
        )
        return name + rng.randbytes(rng.choice(PAYLOADS))

    def send(self, producer: AsyncProducer, sender: ClientWrites, rng: Random) -> asyncio.Future[DLSN]:
        """Give one more record to the producer."""
        self.records_left -= 1
        payload = self.payload(sender, rng)
        record = self.tier.checkers.sent(sender, payload)
        future = producer.send(payload)
        future.add_done_callback(partial(self._answered, record, sender.session))
        return future

    def _answered(self, record: WrittenRecord, session: WriterSession, done: asyncio.Future[DLSN]) -> None:
        operation = self.world.history.begin(session.client, "proxied-write", session.log)
        error = None if done.cancelled() else done.exception()
        self.world.history.end(operation, error)
        if error is not None:
            self.tier.checkers.refused(record, error)
        elif not done.cancelled():
            self.tier.checkers.acknowledged(record, done.result())

    # ------------------------------------------------------------------------------------ the end

    async def served_again(self, since_s: float) -> None:
        """Check that every log takes writes again, within the session's timeout and `SERVED_BOUND_S` of `since_s`."""
        client = self.world.add_client("prober")
        client.start()
        thin = await client.spawn(open_thin_client(self.tier, client, {"requestTimeoutMs": 60_000}))
        bound_s = self.session_timeout_s + SERVED_BOUND_S
        probes = [client.spawn(self._probe(thin, client, log, since_s)) for log in self.logs]
        _, late = await asyncio.wait(probes, timeout=bound_s)
        if late:
            waiting = [log for log, probe in zip(self.logs, probes, strict=True) if probe in late]
            self.world.ledger_checkers.fail(f"{waiting} take no writes {bound_s} s after the last fault")
        for probe in probes:
            probe.result()
        await client.spawn(thin.close())

    async def _probe(self, thin: AsyncClient, client: ClientMachine, log: str, since_s: float) -> None:
        sender = self.sender(client, log, ordered=True)
        await self.send(thin.producer(log), sender, self.world.rng(f"probe/{log}"))
        self.served_s.append(self.world.loop.time() - since_s)

    async def verify(self, client: ClientMachine) -> None:
        """Verify, after all proxies have ended in order, that every log can be read to its end, and holds what it must.

        A proxy that had lost a log's lock to another one aborted its writer, and left its segment in progress; where no
        client asked for the log since then, it has no next owner. Here it gets one.
        """
        for log in self.logs:
            if any(segment.in_progress for segment in self.world.log_checkers.truth(log).segments.values()):
                self.world.reached("proxy.left-in-progress")
                await self.patiently(f"recovering {log}", partial(self._recover, log, client))
            await self.patiently(f"reading {log}", partial(self._read_whole, log, client))

    async def _recover(self, log: str, client: ClientMachine) -> None:
        """Own the log for a moment, which completes what is in progress."""
        namespace = await self._open_namespace(log, client)
        try:
            await (await (await namespace.open_log(log)).open_writer(client.name)).close()
        finally:
            await namespace.close()

    async def _open_namespace(self, log: str, client: ClientMachine) -> AsyncNamespace:
        return await AsyncNamespace.over(
            client.session,
            URI,
            self.settings,
            client_settings=client.settings,
            network=SimulatedNetwork(self.world.fabric),
            rng=self.world.rng(f"reader/{log}"),
            clock=client.clock,
        )

    async def _read_whole(self, log: str, client: ClientMachine) -> None:
        logs = self.world.log_checkers
        last = max(logs.truth(log).at, default=DLSN.INITIAL)
        namespace = await self._open_namespace(log, client)
        span = logs.span(client.name, log, DLSN.INITIAL)
        try:
            handle = await namespace.open_log(log)
            reader = await handle.open_reader(EARLIEST)
            deadline = self.world.loop.time() + HEALTHY_S
            while not span.read or span.read[-1].dlsn < last:
                if self.world.loop.time() > deadline:
                    self.world.ledger_checkers.fail(f"{log} ends at {last}, but the reader is due at {span.next}")
                for one in await reader.read_available(200, wait=True):
                    seen = SeenRecord(one.dlsn, one.txid, bytes(one.payload), one.sequence_id)
                    self.tier.checkers.read(span, seen)
        finally:
            await namespace.close()
        logs.final(log, span.read)
        self.tier.checkers.final(log, span.read)
        self.conditions.final(log, span.read)
