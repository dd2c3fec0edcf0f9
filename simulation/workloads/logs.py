"""Log workloads: `dlspark.core`'s namespaces, logs, writers and readers over the simulated network, disks and metadata.

Writers take a log over from each other: by its lock, by recovery of what is in progress, by segments of their own that
are small and roll soon. Readers follow from a position or a transaction id, by records or by batches, and start again
elsewhere. All are killed, paused and started again. What they hear goes to `checkers.logs` and `checkers.ledgers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import ParamSpec

import numpy as np
import pyarrow as pa

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from dlspark.core.log import AsyncLog
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.reading.locked_reader import AsyncLockedReader
from dlspark.core.reading.positions import EARLIEST
from dlspark.core.reading.reader import AsyncLogReader
from dlspark.core.settings.settings import Settings
from dlspark.core.writing.acknowledgements import WrittenEntry
from dlspark.core.writing.writer import AsyncLogWriter
from dlspark.errors import AlreadyTruncatedError, PositionGapError, ProducerForgottenError, SegmentStateError
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.locks import LockingError
from metadata.distributedlog.namespaces import NamespaceStore
from metadata.distributedlog.segments import SegmentListError
from metadata.foundation.errors import DistributedLogError, InvariantViolation
from simulation.checkers.history import RecordedOperation
from simulation.checkers.logs import NAMESPACE_PATH, ReadSpan, SeenRecord, WriterSession, WrittenRecord
from simulation.cluster import ClientMachine, World
from simulation.environment.network import SimulatedNetwork
from simulation.workloads.ledgers import PAYLOADS, SIZES
from simulation.workloads.producers import ProducedLog, ProducerSender, RequestSource
from simulation.workloads.programs import HEALTHY_S, Workload
from storage_node.client.writer import LedgerWriter
from storage_node.protocol.frames import Buffer

P = ParamSpec("P")

Act = Callable[[], Awaitable[object]]
SERVERS = "metadata:2181"
URI = f"distributedlog://{SERVERS}{NAMESPACE_PATH}"
ROLL_BYTES = (600, 3_000, 20_000)
TIMED_SHARE = 0.04
"""Logs whose segments roll by time: after a minute, which only the end of a run has."""
MINUTE_S = 61.0
LOCKLESS_SHARE = 0.25
"""Logs whose owners have nothing to keep them apart but the versions that they have read."""
SUBSCRIBED_SHARE = 0.4
"""Logs with subscribers."""
SESSION_TIMEOUTS_S = (0.4, 1.0, 4.0)
NEVER = (AlreadyTruncatedError, PositionGapError, SegmentListError, SegmentStateError, InvariantViolation)
"""Errors that say that a log is not what it must be, as long as it is not truncated."""
COUNTED = (
    "lost-answer-applied",
    "lost-answer-not-applied",
    "read-retried",
    "roll-postponed",
    "segment-without-ledger",
)
"""Counters of a namespace that are points of a run."""


@dataclass(frozen=True, slots=True)
class SimulatedLog:
    """A log, with the settings that all its writers and readers have."""

    name: str
    settings: Settings

    @property
    def timed(self) -> bool:
        """True where its segments roll by time."""
        return self.settings.rolling_minutes > 0


def draw_log(name: str, rng: Random) -> SimulatedLog:
    """Return a log with settings that are drawn: quorums, buffers, flushes, small segments, short waits."""
    ensemble_size, write_quorum, ack_quorum = rng.choice(SIZES)
    settings = Settings(
        zk_session_timeout_s=4,
        zk_retry_max_backoff_ms=500,
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        compression=rng.choice(("none", "none", "lz4")),
        output_buffer_bytes=rng.choice((0, 200, 1_024, 8_000)),
        periodic_flush_ms=rng.choice((0, 20, 100)),
        immediate_flush=rng.random() < 0.4,
        immediate_flush_delay_ms=rng.choice((0, 0, 5)),
        keep_alive_ms=rng.choice((0, 0, 150)),
        disable_rolling_on_error=rng.random() < 0.7,
        rolling_minutes=1 if rng.random() < TIMED_SHARE else 0,
        max_segment_bytes=rng.choice(ROLL_BYTES),
        retention_hours=0,
        rolling_concurrency=0,
        lock_timeout_s=rng.choice((0, 1, 8)),
        long_poll_ms=rng.choice((50, 300)),
        read_ahead_entries=rng.choice((1, 3, 10)),
        prefetch_entries=rng.choice((1, 4, 32)),
        read_ahead_wait_ms=50,
    )
    return SimulatedLog(name, settings)


class LogWorkload(Workload):
    """One or two logs, their writers and their readers."""

    never: tuple[type[BaseException], ...] = NEVER
    most_bursts = 40
    """Of one writer, before it leaves the log to the next one."""
    produced_share = 0.7
    """Logs with idempotent producers; most of their writers take requests."""
    take_share = 0.8
    """Writers of such a log that take producers' requests."""
    produced_whole = True
    """True where all of these are there at the end."""

    def __init__(self, world: World, rng: Random) -> None:
        super().__init__(world)
        self.logs = [draw_log(f"log{index}", rng) for index in range(rng.choice((1, 1, 2)))]
        lockless = world.rng("lockless")
        self.logs = [_without_lock(log) if lockless.random() < LOCKLESS_SHARE else log for log in self.logs]
        producing = world.rng("producing")
        self.produced: dict[str, RequestSource] = {
            log.name: ProducedLog(world, log.name, producing)
            for log in self.logs
            if producing.random() < self.produced_share
        }
        self.logs = [with_snapshots(log, producing) if log.name in self.produced else log for log in self.logs]
        self.records_left = 0
        self.opened = 0
        """Namespaces so far: a name for the randomness of what is done with each."""

    @property
    def sizes(self) -> list[tuple[int, int, int]]:
        """(E, W, A) of each log."""
        return [log.settings.quorums for log in self.logs]

    def draw_amount(self, rng: Random) -> None:
        """Draw how many records the run writes."""
        self.records_left = rng.randint(60, 200)

    async def prepare(self) -> None:
        """Bind the namespace. A log's first writer makes the log. Sessions may end soon, and locks with them."""
        self.world.service.session_timeout_s = self.world.rng("sessions").choice(SESSION_TIMEOUTS_S)
        client = self.world.add_client("binder")
        _, store = client.begin()
        await client.spawn(NamespaceStore(store, NAMESPACE_PATH).bind(Binding.for_cluster(SERVERS)))
        await client.spawn(store.close())
        client.kill()

    def start_programs(self, rng: Random) -> None:
        """Add writers, readers and subscribed readers of each log, and auto-recovery."""
        for log in self.logs:
            for index in range(3 if self.contested else rng.choice((1, 2, 3))):
                self.add_program(f"w{index}-{log.name}", partial(self.write, log))
            for index in range(rng.choice((1, 1, 2))):
                self.add_program(f"r{index}-{log.name}", partial(self.read, log))
            SubscribedReaders(self, log, self.world.rng(f"subscribers/{log.name}")).start_programs()
        for index in range(rng.choice((0, 0, 0, 2))):
            self.add_program(f"auto{index}", self.replicate)

    async def open_namespace(
        self, log: SimulatedLog, client: ClientMachine, session: WriterSession | None = None
    ) -> AsyncNamespace:
        """Return a namespace on the client's metadata session; the segments of `session` are watched."""
        self.opened += 1
        namespace = await AsyncNamespace.over(
            client.session,
            URI,
            log.settings,
            client_settings=client.settings,
            network=SimulatedNetwork(self.world.fabric),
            rng=self.world.rng(f"namespace/{self.opened}"),
            clock=client.clock,
        )
        if session is not None:
            ledgers = namespace.ledgers
            watched = _watched(ledgers.create, partial(self._ledger_created, session))
            ledgers.create = watched  # type: ignore[method-assign]
        return namespace

    async def close_namespace(self, namespace: AsyncNamespace) -> None:
        """Close a namespace, and count what its counters saw as points of the run."""
        for counter in COUNTED:
            if namespace.counters[counter]:
                self.world.reached(f"log.{counter}")
        await namespace.close()

    # ------------------------------------------------------------------------------------ what goes into ledgers

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
            self.world.ledger_checkers.acknowledged(ledger_id, entry_id)
        else:
            self.world.ledger_checkers.refused(ledger_id, entry_id, error)

    # ------------------------------------------------------------------------------------ writing

    async def write(self, log: SimulatedLog, client: ClientMachine) -> None:
        """Take the log over, write for a while, again and again."""
        while not self.over and self.records_left > 0:
            rng = self.world.rng(f"write/{client.name}/{client.runs}/{self.opened}")
            await asyncio.sleep(rng.uniform(0, 0.4))
            await self._write_session(log, client, partial(self._push, rng))

    async def _write_session(
        self,
        log: SimulatedLog,
        client: ClientMachine,
        work: Callable[[AsyncLogWriter, WriterSession], Awaitable[None]],
        *,
        takes: bool = True,
    ) -> None:
        """Open a writer, do something with it. Afterwards every record has an outcome, in all cases. Where it `takes`
        producers' requests, a share of all writers does."""
        session = self.world.log_checkers.session(log.name, client)
        takes = takes and (self.over or self.world.rng(f"takes/{self.opened}").random() < self.take_share)
        session.takes_requests = log.name in self.produced and takes
        if session.takes_requests:
            session.answered_before = self.produced[log.name].answered()
        namespace = await self.open_namespace(log, client, session)
        try:
            handle = await namespace.open_log(log.name)
            with self.world.history.operation(client.name, "open-writer", log.name):
                writer = await handle.open_writer(client.name, producers=session.takes_requests)
            session.txid = max(writer.last_txid, 0)
            await work(writer, session)
        except self.never as error:
            self.world.ledger_checkers.fail(f"{client.name}: {error!r}")
        except DistributedLogError:
            self.world.log_checkers.session_failed(session)
            raise
        finally:
            try:
                await self.close_namespace(namespace)
            finally:
                await asyncio.sleep(0)  # callbacks of what was just decided
                self._all_decided(session)

    def _all_decided(self, session: WriterSession) -> None:
        left = [record for record in session.records if record.ended < 0]
        if session.requests_under_way:
            self.world.ledger_checkers.fail(
                f"{session.client} has closed its writer of {session.log}, and {session.requests_under_way} requests "
                "have no outcome"
            )
        if left:
            self.world.ledger_checkers.fail(
                f"{session.client} has closed its writer of {session.log}, and {len(left)} records have no outcome"
            )

    async def _push(self, rng: Random, writer: AsyncLogWriter, session: WriterSession) -> None:
        """Write small bursts of records, one after the other, and an end of one kind or another."""
        pace = rng.choice((0.005, 0.02, 0.06))
        sender = self._sender(writer, session, rng)
        for _ in range(rng.randint(1, self.most_bursts)):
            if self.over or self.records_left <= 0 or (session.failed and rng.random() < 0.7):
                break
            if sender is not None and rng.random() < 0.8:
                self.records_left -= sender.send_some(rng, rng.choice((1, 1, 3)))
            else:
                self._burst(writer, session, rng)
            await asyncio.sleep(rng.uniform(0, 2 * pace))
            act = rng.choice((None,) * 12 + self._acts(writer, session, rng))
            if act is not None:
                await act()
        end = rng.random()
        if end < 0.5:
            with self.world.history.operation(session.client, "close-writer", session.log):
                await writer.close()
        elif end < 0.7:
            await writer.abort()

    def _sender(self, writer: AsyncLogWriter, session: WriterSession, rng: Random) -> ProducerSender | None:
        """Return what sends producers' requests through a writer that takes them."""
        produced = self.produced.get(session.log)
        if produced is None or not session.takes_requests:
            return None
        return produced.sender(writer, session, partial(self._record, session, rng))

    def _acts(self, writer: AsyncLogWriter, session: WriterSession, rng: Random) -> tuple[Act, ...]:
        """Return what a writer does now and then between two bursts."""
        return (writer.flush, writer.commit, writer.wait_for_room)

    def _burst(self, writer: AsyncLogWriter, session: WriterSession, rng: Random) -> None:
        count = rng.choice((1, 1, 1, 2, 6))
        self.records_left -= count
        records = [self._record(session, rng) for _ in range(count)]
        kind = rng.random()
        if kind < 0.6:
            for record in records:
                self._follow(record, writer.write(record.txid, record.payload))
        elif kind < 0.8:
            futures = writer.write_bulk([(record.txid, record.payload) for record in records])
            for record, future in zip(records, futures, strict=True):
                self._follow(record, future)
        else:
            txids = np.array([record.txid for record in records], np.int64)
            payloads = pa.array([record.payload for record in records], pa.binary())
            self._follow_batch(records, writer.write_batch(txids, payloads))

    def _record(self, session: WriterSession, rng: Random) -> WrittenRecord:
        session.txid += rng.choice((0, 1, 1, 7))
        name = b"%s:%d:%d:" % (session.log.encode(), session.number, len(session.records))
        payload = name + rng.randbytes(rng.choice(PAYLOADS))
        return self.world.log_checkers.written(session, session.txid, payload)

    def _begin(self, session: WriterSession, kind: str) -> RecordedOperation:
        return self.world.history.begin(session.client, kind, session.log)

    def _follow(self, record: WrittenRecord, future: asyncio.Future[DLSN]) -> None:
        future.add_done_callback(partial(self._answered, record, self._begin(record.session, "record")))

    def _follow_batch(self, records: Sequence[WrittenRecord], batch: asyncio.Future[tuple[WrittenEntry, ...]]) -> None:
        operation = self._begin(records[0].session, "batch")
        batch.add_done_callback(partial(self._batch_answered, records, operation))

    def _answered(self, record: WrittenRecord, operation: RecordedOperation, future: asyncio.Future[DLSN]) -> None:
        error = future.exception()
        self.world.history.end(operation, error)
        if error is None:
            self.world.log_checkers.acknowledged(record, future.result())
        else:
            self._refused(record, error)

    def _batch_answered(
        self,
        records: Sequence[WrittenRecord],
        operation: RecordedOperation,
        future: asyncio.Future[tuple[WrittenEntry, ...]],
    ) -> None:
        error = future.exception()
        self.world.history.end(operation, error)
        if error is not None:
            for record in records:
                self._refused(record, error)
            return
        places = [
            DLSN(entry.dlsn.lssn, entry.dlsn.entry_id, entry.dlsn.slot_id + slot)
            for entry in future.result()
            for slot in range(entry.record_count)
        ]
        for record, dlsn in zip(records, places, strict=True):
            self.world.log_checkers.acknowledged(record, dlsn)

    def _refused(self, record: WrittenRecord, error: BaseException) -> None:
        if isinstance(error, self.never):
            self.world.ledger_checkers.fail(f"{record.session.client}: {error!r}")
        self.world.log_checkers.refused(record, error)

    # ------------------------------------------------------------------------------------ reading

    async def read(self, log: SimulatedLog, client: ClientMachine) -> None:
        """Follow the log, and start again: where the last reader stopped, or anywhere before."""
        span: ReadSpan | None = None
        position = DLSN.INITIAL
        while not self.over:
            rng = self.world.rng(f"read/{client.name}/{client.runs}/{self.opened}")
            namespace = await self.open_namespace(log, client)
            try:
                handle = await namespace.open_log(log.name)
                if span is None or rng.random() < 0.4:
                    reader, span = await self._anywhere(log, handle, client, rng)
                else:
                    self.world.reached("log.reader-resumed")
                    reader = await handle.open_reader(position)
                    span = self.world.log_checkers.span(client.name, log.name, position, before=span)
                await self.tail(reader, span, rng, rng.choice((3, 20, 1_000)))
                position = reader.position
            except self.never as error:
                self.world.ledger_checkers.fail(f"{client.name}: {error!r}")
            finally:
                await self.close_namespace(namespace)
            await asyncio.sleep(rng.uniform(0, 0.1))

    async def _anywhere(
        self, log: SimulatedLog, handle: AsyncLog, client: ClientMachine, rng: Random
    ) -> tuple[AsyncLogReader, ReadSpan]:
        """Return a reader from the beginning, from a record that is known, or from a transaction id."""
        known = list(self.world.log_checkers.truth(log.name).at.items())
        kind = rng.random() if known else 0.0
        if kind < 0.4:
            return await handle.open_reader(EARLIEST), self.world.log_checkers.span(client.name, log.name, DLSN.INITIAL)
        dlsn, record = rng.choice(known)
        if kind < 0.7:
            return await handle.open_reader(dlsn), self.world.log_checkers.span(client.name, log.name, dlsn)
        reader = await handle.open_reader(record.txid)
        self.world.reached("log.txid-found")
        return reader, self.world.log_checkers.span(client.name, log.name, reader.position, txid=record.txid)

    async def tail(self, reader: AsyncLogReader, span: ReadSpan, rng: Random, count: int) -> None:
        """Read about `count` records, or until the programs end; waiting is cut off now and then, and loses nothing."""
        ways = (
            partial(_one, reader),
            partial(reader.read_bulk, rng.choice((1, 5)), rng.choice((None, 20))),
            partial(reader.read_available, rng.choice((1, 50)), wait=True),
        )
        by_columns = rng.random() < 0.4
        while not self.over and len(span.read) < count:
            reading = _columns(reader) if by_columns and rng.random() < 0.7 else _records(rng.choice(ways))
            try:
                delivered = await asyncio.wait_for(reading, rng.choice((0.03, 0.5)))
            except asyncio.TimeoutError:
                continue
            for seen in delivered:
                self.world.log_checkers.read(span, seen)

    # ------------------------------------------------------------------------------------ the end

    async def verify(self, client: ClientMachine) -> None:
        """Verify that a new writer writes to each log, and a new reader reads all of it (`LogCheckers.final`)."""
        for log in self.logs:
            written: list[DLSN] = []
            await self.patiently(f"writing {log.name}", partial(self._write_last, log, client, written))
            await self.patiently(f"reading {log.name}", partial(self._read_whole, log, client, written))

    async def _write_last(self, log: SimulatedLog, client: ClientMachine, written: list[DLSN]) -> None:
        rng = self.world.rng(f"verify/{log.name}/{self.opened}")
        await self._write_session(log, client, partial(self._write_some, log, rng, written))

    async def _write_some(
        self, log: SimulatedLog, rng: Random, written: list[DLSN], writer: AsyncLogWriter, session: WriterSession
    ) -> None:
        sender = self._sender(writer, session, rng)
        if sender is not None:
            rest = sender.send_rest()
            await writer.flush()
            for answer in rest:
                if not isinstance(answer.exception(), ProducerForgottenError):
                    answer.result()
        for _ in range(2):
            records = [self._record(session, rng) for _ in range(3)]
            futures = [writer.write(record.txid, record.payload) for record in records]
            for record, future in zip(records, futures, strict=True):
                self._follow(record, future)
            await writer.flush()
            written[:] = [future.result() for future in futures]
            if log.timed and len(session.records) == 3:
                await asyncio.sleep(MINUTE_S)
                self.world.reached("log.timed")
        await writer.close()

    async def _read_whole(self, log: SimulatedLog, client: ClientMachine, written: list[DLSN]) -> None:
        namespace = await self.open_namespace(log, client)
        try:
            handle = await namespace.open_log(log.name)
            reader = await handle.open_reader(EARLIEST)
            span = self.world.log_checkers.span(client.name, log.name, DLSN.INITIAL)
            deadline = self.world.loop.time() + HEALTHY_S
            while not span.read or span.read[-1].dlsn < written[-1]:
                if self.world.loop.time() > deadline:
                    self.world.ledger_checkers.fail(
                        f"{log.name} ends at {written[-1]}, but the reader is at {span.read[-1:]}"
                    )
                for seen in _seen(await reader.read_available(100, wait=True)):
                    self.world.log_checkers.read(span, seen)
        except self.never as error:
            self.world.ledger_checkers.fail(f"{client.name}: {error!r}")
        finally:
            await self.close_namespace(namespace)
        self.world.log_checkers.final(log.name, span.read)
        if log.name in self.produced:
            self.produced[log.name].check(span.read, whole=self.produced_whole)


def with_snapshots(log: SimulatedLog, rng: Random) -> SimulatedLog:
    """Return the log with snapshots of producers more or less often."""
    return SimulatedLog(log.name, replace(log.settings, producer_snapshot_entries=rng.choice((3, 10, 1_000))))


def _without_lock(log: SimulatedLog) -> SimulatedLog:
    return SimulatedLog(log.name, replace(log.settings, write_lock=False))


def _watched(
    create: Callable[P, Coroutine[object, None, LedgerWriter]], created: Callable[[LedgerWriter], None]
) -> Callable[P, Coroutine[object, None, LedgerWriter]]:
    """Return `create`, with `created` called with each ledger's writer."""

    async def watched(*arguments: P.args, **options: P.kwargs) -> LedgerWriter:
        writer = await create(*arguments, **options)
        created(writer)
        return writer

    return watched


async def _one(reader: AsyncLogReader) -> list[LogRecord]:
    return [await reader.read_next()]


async def _records(way: Callable[[], Awaitable[list[LogRecord]]]) -> list[SeenRecord]:
    return _seen(await way())


def _seen(records: Sequence[LogRecord]) -> list[SeenRecord]:
    return [SeenRecord(record.dlsn, record.txid, bytes(record.payload), record.sequence_id) for record in records]


async def _columns(reader: AsyncLogReader) -> list[SeenRecord]:
    batch = await reader.next_batch(2_000)
    return [
        SeenRecord(
            DLSN(row["segment"], row["entry"], row["slot"]), row["transaction_id"], row["value"], row["sequence_id"]
        )
        for row in batch.to_pylist()
    ]


class SubscribedReaders:
    """Readers of one log that share a subscriber's name and go on after each other.

    One reads at a time, under the subscriber's lock, and commits what it was given now and then. When it is killed, or
    its session ends while it is paused, another one goes on at the last commit.
    """

    def __init__(self, workload: LogWorkload, log: SimulatedLog, rng: Random) -> None:
        self._workload = workload
        self._log = log
        self._clients: dict[str, int] = {}
        if rng.random() < SUBSCRIBED_SHARE:
            for index in range(rng.choice((1, 1, 2))):
                self._clients[f"sub{index}"] = rng.choice((1, 2))

    def start_programs(self) -> None:
        """Start the readers of all subscribers, each on a client of its own."""
        for subscriber, count in self._clients.items():
            for index in range(count):
                self._workload.add_program(f"{subscriber}.{index}-{self._log.name}", partial(self._read, subscriber))

    async def _read(self, subscriber: str, client: ClientMachine) -> None:
        """Read for the subscriber for a while, again and again."""
        workload, world = self._workload, self._workload.world
        over_again = False
        while not workload.over:
            rng = world.rng(f"subscriber/{client.name}/{client.runs}/{workload.opened}")
            namespace = await workload.open_namespace(self._log, client)
            try:
                handle = await namespace.open_log(self._log.name)
                reader, span = await self._open(handle, subscriber, client, over_again)
                over_again = False
                await self._read_on(reader, span, subscriber, rng)
            except workload.never as error:
                world.ledger_checkers.fail(f"{client.name}: {error!r}")
            except AlreadyTruncatedError:
                over_again = True
            except LockingError:
                world.reached("log.read-lock-lost")
                raise
            finally:
                await workload.close_namespace(namespace)
            await asyncio.sleep(rng.uniform(0, 0.1))

    async def _open(
        self, handle: AsyncLog, subscriber: str, client: ClientMachine, over_again: bool
    ) -> tuple[AsyncLockedReader, ReadSpan]:
        logs = self._workload.world.log_checkers
        stored = logs.deliveries.subscriber(self._log.name, subscriber).stored
        start = EARLIEST if over_again else None
        reader = await handle.open_reader(start, subscriber=subscriber, client_id=client.name)
        span = logs.span(client.name, self._log.name, reader.position)
        if over_again:
            logs.deliveries.started_over(span, subscriber)
        else:
            logs.deliveries.subscribed(span, subscriber, stored)
        return reader, span

    async def _read_on(self, reader: AsyncLockedReader, span: ReadSpan, subscriber: str, rng: Random) -> None:
        """Read, and commit now and then; the end comes with or without a last commit."""
        for _ in range(rng.randint(1, 6)):
            await self._workload.tail(reader, span, rng, len(span.read) + rng.choice((1, 5, 30)))
            if span.read and rng.random() < 0.7:
                stored = await reader.commit_position()
                self._workload.world.log_checkers.deliveries.committed(span, subscriber, stored)
