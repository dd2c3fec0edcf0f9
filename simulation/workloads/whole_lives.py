"""`WholeLifeWorkload`: logs that are truncated, purged, sealed and deleted while everything else goes on.

Half of the writers take producers' requests; segments of the others hide how long ago that was, and those before them
are deleted: the log forgets its producers, and says so.

Writers truncate between two bursts; keepers do it without a writer, under the log's lock, and purge by transaction id;
hours pass on single clocks, so that segments expire. Readers meet what is hidden or gone under them. At the end each
log is sealed, perhaps, and deleted by a client that is killed at a drawn step, and then by another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from random import Random

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.lifecycle.deletion import delete_log
from dlspark.core.log import AsyncLog
from dlspark.core.reading.positions import EARLIEST
from dlspark.core.reading.reader import AsyncLogReader
from dlspark.core.writing.writer import AsyncLogWriter
from dlspark.errors import AlreadyTruncatedError, EndOfStreamError
from metadata.distributedlog.log_names import LogNotFoundError
from simulation.checkers.logs import ReadSpan, WriterSession
from simulation.checkers.whole_lives import WholeLifeCheckers
from simulation.cluster import ClientMachine, World
from simulation.workloads.logs import NEVER, Act, LogWorkload, SimulatedLog
from simulation.workloads.programs import HEALTHY_S, Deposer

HOUR_MS = 3_600_000
RIVALS_SHARE = 0.4
"""Runs in which rivals truncate the logs, and writers leave them soon."""
KILL_WITHIN = 600
"""Callbacks of a deleter's process within which it is killed."""
DEPOSED_SHARE = 0.4
"""Of the truncations: their owner loses its session."""
AHEAD = 8
"""Records behind the log's begin, within which a rival truncates."""


class WholeLifeWorkload(LogWorkload):
    """Logs with all of their lives."""

    never = tuple(error for error in NEVER if error is not AlreadyTruncatedError)
    take_share = 0.5
    produced_whole = False

    def __init__(self, world: World, rng: Random) -> None:
        super().__init__(world, rng)
        draw = world.rng("life")
        self.logs = [_with_a_life(log, draw) for log in self.logs]
        self._contended = draw.random() < RIVALS_SHARE
        if self._contended:
            self.most_bursts = 6
        self.life_checkers = WholeLifeCheckers(
            world, world.ledger_checkers, {log.name: log.settings for log in self.logs}
        )
        world.log_checkers = self.life_checkers

    def start_programs(self, rng: Random) -> None:
        """Add the programs of a log workload, a keeper for each log that truncates and purges it, and at times rivals
        that truncate without its lock."""
        super().start_programs(rng)
        for log in self.logs:
            self.add_program(f"keeper-{log.name}", partial(self.keep, log))
            if log.name in self.produced:
                self.add_program(f"burier-{log.name}", partial(self.bury, log))
            if self._contended:
                RivalTruncators(self, log).start_programs()

    # ------------------------------------------------------------------------------------ truncating, purging

    def _acts(self, writer: AsyncLogWriter, session: WriterSession, rng: Random) -> tuple[Act, ...]:
        return (
            *super()._acts(writer, session, rng),
            *3 * (partial(self._truncate, writer.truncate, session.log, rng),),
        )

    async def keep(self, log: SimulatedLog, client: ClientMachine) -> None:
        """Truncate and purge the log from outside; let time pass."""
        while not self.over:
            rng = self.world.rng(f"keep/{client.name}/{client.runs}/{self.opened}")
            await asyncio.sleep(rng.uniform(0.02, 0.4))
            if rng.random() < 0.4:
                self._hours_pass(rng)
            namespace = await self.open_namespace(log, client)
            try:
                handle = await namespace.open_log(log.name)
                act = rng.choice((self.truncate_from_outside, self.truncate_from_outside, self._purge, self._look))
                await act(handle, client.name, rng)
            finally:
                await self.close_namespace(namespace)

    def _hours_pass(self, rng: Random) -> None:
        client = rng.choice([one for one in self.world.clients.values() if one.name.startswith("w")])
        client.clock.offset_ms += 2 * HOUR_MS
        self.world.reached("life.hours")

    async def truncate_from_outside(self, log: AsyncLog, name: str, rng: Random) -> None:
        """Truncate somewhere, under the log's lock."""
        await self._truncate(partial(log.truncate, client_id=name), log.name, rng)

    async def _truncate(self, truncate: Callable[[DLSN], Awaitable[DLSN]], log: str, rng: Random) -> None:
        await self.truncate_at(truncate, log, self._somewhere(log, rng))

    async def truncate_at(self, truncate: Callable[[DLSN], Awaitable[DLSN]], log: str, dlsn: DLSN) -> None:
        """Truncate, and check the answer against the segment list."""
        before = self.life_checkers.truncating(log, dlsn)
        with self.world.history.operation("keeper", "truncate", log):
            returned = await truncate(dlsn)
        self.life_checkers.truncated(log, before, returned)

    async def _purge(self, log: AsyncLog, name: str, rng: Random) -> None:
        known = [record.txid for record in self.life_checkers.truth(log.name).at.values()]
        txid = rng.choice(known) if known else 0
        self.life_checkers.purging(log.name, txid)
        with self.world.history.operation(name, "purge", log.name):
            await log.purge_older_than(txid, client_id=name)

    async def bury(self, log: SimulatedLog, client: ClientMachine) -> None:
        """Write two segments without producers, and purge what is before them."""
        while not self.over:
            rng = self.world.rng(f"bury/{client.name}/{client.runs}/{self.opened}")
            await asyncio.sleep(rng.uniform(0.1, 1.5))
            written: list[int] = []
            for _ in range(2):
                await self._write_session(log, client, partial(self._write_above, rng, written), takes=False)
            namespace = await self.open_namespace(log, client)
            try:
                self.life_checkers.purging(log.name, written[-1])
                with self.world.history.operation(client.name, "purge", log.name):
                    await (await namespace.open_log(log.name)).purge_older_than(written[-1], client_id=client.name)
            finally:
                await self.close_namespace(namespace)

    async def _write_above(
        self, rng: Random, written: list[int], writer: AsyncLogWriter, session: WriterSession
    ) -> None:
        session.txid += 1
        record = self._record(session, rng)
        self._follow(record, writer.write(record.txid, record.payload))
        await writer.close()
        written.append(record.txid)

    async def _look(self, log: AsyncLog, name: str, rng: Random) -> None:
        """Look at the log as people do; it fails where the log does not make sense."""
        str(await log.status())

    def _somewhere(self, log: str, rng: Random) -> DLSN:
        """Return a record that is known, the place behind it, or a position that does not exist yet."""
        known = list(self.life_checkers.truth(log).at)
        if not known or rng.random() < 0.1:
            return rng.choice((DLSN.INVALID, DLSN.INITIAL))
        # Not too near to the end, or little would be left to be looked at.
        dlsn = known[min(rng.randrange(len(known)), rng.randrange(len(known)))]
        return rng.choice((dlsn, dlsn.next, dlsn.next_entry, dlsn.next_segment))

    # ------------------------------------------------------------------------------------ reading

    async def tail(self, reader: AsyncLogReader, span: ReadSpan, rng: Random, count: int) -> None:
        """Read the tail. Where a truncation has passed the reader, check that this is so, and raise its
        AlreadyTruncatedError.
        """
        try:
            await super().tail(reader, span, rng, count)
        except AlreadyTruncatedError:
            self.life_checkers.lost_position(span, reader.position)
            raise

    # ------------------------------------------------------------------------------------ the end

    async def verify(self, client: ClientMachine) -> None:
        """Verify the logs; besides, some are sealed and read to their end; all are deleted, with a first try that is
        cut off.
        """
        await super().verify(client)
        rng = self.world.rng("life/end")
        for log in self.logs:
            if rng.random() < 0.5:
                await self.patiently(f"sealing {log.name}", partial(self._seal, log, client))
                await self.patiently(f"reading sealed {log.name}", partial(self._read_sealed, log, client))
            await self._delete(log, client, rng)

    async def _seal(self, log: SimulatedLog, client: ClientMachine) -> None:
        namespace = await self.open_namespace(log, client, self.life_checkers.session(log.name, client))
        try:
            handle = await namespace.open_log(log.name)
            if not await handle.is_sealed():
                async with await handle.open_writer(client.name) as writer:
                    await writer.mark_end_of_stream()
        finally:
            await self.close_namespace(namespace)

    async def _read_sealed(self, log: SimulatedLog, client: ClientMachine) -> None:
        """Read a sealed log: readers come to the end of the stream, and a write behind it is refused."""
        namespace = await self.open_namespace(log, client, self.life_checkers.session(log.name, client))
        try:
            handle = await namespace.open_log(log.name)
            reader = await handle.open_reader(EARLIEST)
            span = self.life_checkers.span(client.name, log.name, DLSN.INITIAL)
            try:
                await self._tail_to_the_end(reader, span)
            except EndOfStreamError:
                self.world.reached("life.sealed")
            writer = await handle.open_writer(client.name)
            refused = writer.write(writer.last_txid, b"late")
            await asyncio.wait([refused], timeout=HEALTHY_S)
            if not refused.done() or not isinstance(refused.exception(), EndOfStreamError):
                self.world.ledger_checkers.fail(f"{log.name} is sealed, and a write to it ended as {refused}")
        finally:
            await self.close_namespace(namespace)

    async def _tail_to_the_end(self, reader: AsyncLogReader, span: ReadSpan) -> None:
        deadline = self.world.loop.time() + HEALTHY_S
        while self.world.loop.time() < deadline:
            await super().tail(reader, span, self.world.rng(f"end/{span.name}/{span.log}"), len(span.read) + 1)
            await asyncio.wait_for(reader.read_next(), HEALTHY_S)
        self.world.ledger_checkers.fail(f"{span.log} is sealed, and its reader does not come to the end")

    async def _delete(self, log: SimulatedLog, client: ClientMachine, rng: Random) -> None:
        """Delete the log by a client that is killed on the way, unless it is quick; then by this one."""
        self.life_checkers.deleting(log.name)
        first = self.world.add_client(f"deleter-{log.name}")
        first.start()
        if first.process is not None:
            first.process.at_step(rng.randint(1, KILL_WITHIN), first.kill)
        deleting = first.spawn(self._delete_once(log, first))
        await asyncio.wait({deleting, first.ended}, timeout=HEALTHY_S, return_when=asyncio.FIRST_COMPLETED)
        if deleting.done() and not deleting.cancelled():
            deleting.exception()
        else:
            self.world.reached("life.deletion-cut-off")
        first.kill()
        await self.patiently(f"deleting {log.name}", partial(self._delete_once, log, client))
        self.life_checkers.all_deleted(log.name)

    async def _delete_once(self, log: SimulatedLog, client: ClientMachine) -> None:
        namespace = await self.open_namespace(log, client)
        try:
            await delete_log(namespace.services, log.name, log.settings, client.name)
        except LogNotFoundError:
            self.world.reached("life.deleted-before")
        finally:
            await self.close_namespace(namespace)


def _with_a_life(log: SimulatedLog, rng: Random) -> SimulatedLog:
    settings = replace(
        log.settings,
        retention_hours=rng.choice((0, 1, 1)),
        explicit_truncation=rng.random() < 0.3,
        ignore_truncation=rng.random() < 0.15,
        fail_on_truncated=rng.random() < 0.7,
        producer_expiry_s=rng.choice((1, 604_800)),
    )
    return SimulatedLog(log.name, settings)


class RivalTruncators:
    """Two keepers of one log that truncate it little by little, and lose its lock in the middle of that.

    What the lock's check in a transaction is for takes a coincidence: an owner has lost its session, and with it the
    lock; on a new session it reads the list once more, as after any lost answer, and its change takes long to arrive.
    By then another client has truncated the same segment further. So rivals lose their sessions on the way, and are far
    from the metadata store, or stand still, for a while from then on.
    """

    def __init__(self, workload: WholeLifeWorkload, log: SimulatedLog) -> None:
        self._workload = workload
        self._log = log
        self._deposer = Deposer(workload, "life.rival")

    def start_programs(self) -> None:
        """Start both rivals, each on a client of its own."""
        for index in range(2):
            self._workload.add_program(f"rival{index}-{self._log.name}", self._truncate)

    async def _truncate(self, client: ClientMachine) -> None:
        workload = self._workload
        rng = workload.world.rng(f"rival/{client.name}/{client.runs}/{workload.opened}")
        namespace = await workload.open_namespace(self._log, client)
        try:
            handle = await namespace.open_log(self._log.name)
            while not workload.over:
                await asyncio.sleep(rng.uniform(0, 0.05))
                if rng.random() < DEPOSED_SHARE:
                    self._deposer.soon(client, rng)
                await workload.truncate_at(
                    partial(handle.truncate, client_id=client.name), handle.name, self._ahead(rng)
                )
        finally:
            await workload.close_namespace(namespace)

    def _ahead(self, rng: Random) -> DLSN:
        """Return a record that is not hidden yet, near to the begin: most of its segment stays."""
        checkers = self._workload.life_checkers
        point = checkers.begin_of(checkers.truth(self._log.name))
        left = sorted(dlsn for dlsn in checkers.truth(self._log.name).at if dlsn >= point)
        return rng.choice(left[:AHEAD]) if left else DLSN.INITIAL
