"""`MovingNamesWorkload`: logs that are renamed, deleted and made again under their writers and readers.

A few names, and fewer logs. A writer of a name without a log makes one; renamers move logs between names, deleters
delete them. Readers keep their handles and open one reader after the other. Writers lose their sessions in the middle
of something, so that what they send last meets another log of the same name. Feeds send producers' requests to the
names, and find out by the answers what became of their logs (`workloads.feeds`). At the end every name's log is written
and read, renamed and read again, deleted and made anew.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from random import Random

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.lifecycle.deletion import delete_log
from dlspark.core.log import AsyncLog
from dlspark.core.writing.writer import AsyncLogWriter
from dlspark.errors import AlreadyTruncatedError
from metadata.distributedlog.log_names import LogNotFoundError
from simulation.checkers.logs import ReadSpan, WriterSession
from simulation.checkers.moving_names import MovingNamesCheckers
from simulation.cluster import ClientMachine, World
from simulation.workloads.feeds import Feeds, NamedFeeds
from simulation.workloads.logs import NEVER, LogWorkload, SimulatedLog, draw_log, with_snapshots
from simulation.workloads.producers import ProducerSender
from simulation.workloads.programs import Deposer

DEPOSED_SHARE = 0.15
"""Of the writers: one loses its session soon."""
LAST_NAME = "last"
"""A name that logs have at the end only."""
FED_SHARE = 0.75
"""Of the runs: their logs have feeds."""
CUT_OFF_SHARE = 0.4
"""Deletions, in those, whose client is killed once it has cleared the log."""
CUT_OFF_WITHIN = 60
"""Callbacks within which it is."""
AT_ONCE_SHARE = 0.7
"""Renamings and deletions, in those, of a log whose writer was deposed just before, where there is one."""


class MovingNamesWorkload(LogWorkload):
    """Logs whose names move."""

    never = tuple(error for error in NEVER if error is not AlreadyTruncatedError)
    most_bursts = 8
    produced_share = 0.0
    """No producer stays with a log; feeds stay with names."""

    def __init__(self, world: World, rng: Random) -> None:
        super().__init__(world, rng)
        draw = world.rng("names")
        self.logs = [_untimed(draw_log(name, draw)) for name in ("log0", "log1", "log2")[: draw.choice((2, 3))]]
        self.names = MovingNamesCheckers(world, world.ledger_checkers)
        self._deposer = Deposer(self, "names.writer")
        world.log_checkers = self.names
        self._feeds = Feeds(world, self.names, (), draw)  # none
        self._deleters: dict[str, ClientMachine] = {}
        """The client that began to delete the log last, by its name."""
        self._deposed: list[str] = []
        """Names of logs whose writers are deposed, in runs with feeds."""
        feeding = world.rng("feeds")
        if feeding.random() < FED_SHARE:
            self._add_feeds(feeding)

    def _add_feeds(self, rng: Random) -> None:
        self.logs = [with_snapshots(log, rng) for log in self.logs]
        self._feeds = Feeds(self.world, self.names, [log.name for log in self.logs], rng)
        for log in self.logs:
            for name in (log.name, _last_name(log)):
                self.produced[name] = NamedFeeds(self._feeds, name)
        self.names.on_cleared = partial(self._cut_off, self.world.rng("cut-off"))

    def start_programs(self, rng: Random) -> None:
        """Add writers and readers of the names, and programs that rename and delete the logs under them."""
        for index, log in enumerate(self.logs):
            for number in range(rng.choice((1, 2)) if index == 0 else rng.choice((0, 1))):
                self.add_program(f"w{number}-{log.name}", partial(self.write, log))
            for number in range(rng.choice((1, 2))):
                self.add_program(f"r{number}-{log.name}", partial(self.read, log))
        for number in range(rng.choice((1, 2))):
            self.add_program(f"renamer{number}", self.rename)
        for number in range(rng.choice((1, 1, 2))):
            self.add_program(f"deleter{number}", self.delete)

    # ------------------------------------------------------------------------------------ writing

    async def _push(self, rng: Random, writer: AsyncLogWriter, session: WriterSession) -> None:
        if rng.random() < DEPOSED_SHARE:
            self._deposer.soon(self.world.clients[session.client], rng)
            if self.produced:
                self._deposed.append(session.log)
        await super()._push(rng, writer, session)

    def _sender(self, writer: AsyncLogWriter, session: WriterSession, rng: Random) -> ProducerSender | None:
        self.names.opened(session)
        return super()._sender(writer, session, rng)

    # ------------------------------------------------------------------------------------ renaming, deleting

    async def rename(self, client: ClientMachine) -> None:
        """Give logs names that are free."""
        while not self.over:
            rng = self.world.rng(f"rename/{client.name}/{client.runs}/{self.opened}")
            namespace = await self.open_namespace(rng.choice(self.logs), client)
            try:
                for _ in range(rng.randint(1, 8)):
                    await asyncio.sleep(rng.uniform(0.01, 0.15))
                    taken = self._worth_moving(rng)
                    free = sorted({log.name for log in self.logs} - self.names.present.keys())
                    if not taken or not (free or rng.random() < 0.1) or self.over:
                        continue
                    old, new = rng.choice(taken), rng.choice(free or taken)
                    if old == new:
                        continue
                    with self.world.history.operation(client.name, "rename", old):
                        await namespace.rename_log(old, new, client.name)
                    self._feeds.renamed(old, new)
            finally:
                await self.close_namespace(namespace)

    async def delete(self, client: ClientMachine) -> None:
        """Delete logs, which writers make again."""
        while not self.over:
            rng = self.world.rng(f"delete/{client.name}/{client.runs}/{self.opened}")
            await asyncio.sleep(rng.uniform(0.1, 0.8))
            name = rng.choice(self._worth_moving(rng) or [self.logs[0].name])
            log = next(log for log in self.logs if log.name == name)
            namespace = await self.open_namespace(log, client)
            try:
                self.names.deleting(name)
                self._deleters[name] = client
                with self.world.history.operation(client.name, "delete", name):
                    await delete_log(namespace.services, name, log.settings, client.name)
            finally:
                await self.close_namespace(namespace)

    def _worth_moving(self, rng: Random) -> list[str]:
        """Return the names of all logs, or of one whose writer was deposed lately and still takes requests perhaps."""
        while self._deposed:
            name = self._deposed.pop(0)
            if name in self.names.present and rng.random() < AT_ONCE_SHARE:
                return [name]
        return sorted(self.names.present)

    def _cut_off(self, rng: Random, name: str) -> None:
        """Kill who deletes a log once that has no segments: its znodes are left, for the next writer."""
        client = self._deleters.pop(name, None)
        if client is not None and client.process is not None and rng.random() < CUT_OFF_SHARE:
            self.world.reached("names.deletion-cut-off")
            client.process.at_step(rng.randint(1, CUT_OFF_WITHIN), client.kill)

    # ------------------------------------------------------------------------------------ reading

    async def read(self, log: SimulatedLog, client: ClientMachine) -> None:
        """Follow what the name leads to, with one handle for several readers."""
        while not self.over:
            rng = self.world.rng(f"read/{client.name}/{client.runs}/{self.opened}")
            namespace = await self.open_namespace(log, client)
            try:
                await self._read_on(log, await namespace.open_log(log.name), client, rng)
            except self.never as error:
                self.world.ledger_checkers.fail(f"{client.name}: {error!r}")
            finally:
                await self.close_namespace(namespace)
            await asyncio.sleep(rng.uniform(0, 0.1))

    async def _read_on(self, log: SimulatedLog, handle: AsyncLog, client: ClientMachine, rng: Random) -> None:
        span: ReadSpan | None = None
        position = DLSN.INITIAL
        for _ in range(rng.randint(1, 8)):
            if self.over:
                return
            try:
                if span is None or rng.random() < 0.4:
                    self.names.opening(client.name)
                    reader, span = await self._anywhere(log, handle, client, rng)
                else:
                    reader = await handle.open_reader(position)
                    span = self.names.span(client.name, log.name, position, before=span)
                try:
                    await self.tail(reader, span, rng, rng.choice((3, 20, 1_000)))
                    position = reader.position
                finally:
                    await reader.close()
            except LogNotFoundError:
                self.world.reached("names.reader-told")
                span = None
            except AlreadyTruncatedError:
                self.world.reached("names.reader-cleared")
                if log.name not in self.names.deletable:
                    raise
                span = None
            await asyncio.sleep(rng.uniform(0, 0.05))

    # ------------------------------------------------------------------------------------ the end

    async def verify(self, client: ClientMachine) -> None:
        """Verify the logs; besides, each log is renamed and read, one made anew under its old name, the renamed one
        deleted and made anew.
        """
        await super().verify(client)
        for log in self.logs:
            renamed = SimulatedLog(_last_name(log), log.settings)
            await self.patiently(f"renaming {log.name}", partial(self._rename_last, log, renamed, client))
            await self._read_and_write(renamed, client)
            await self._read_and_write(log, client)
            self.names.deleting(renamed.name)
            await self.patiently(f"deleting {renamed.name}", partial(self._delete_last, renamed, client))
            await self._read_and_write(renamed, client)

    async def _read_and_write(self, log: SimulatedLog, client: ClientMachine) -> None:
        written: list[DLSN] = []
        await self.patiently(f"writing {log.name}", partial(self._write_last, log, client, written))
        await self.patiently(f"reading {log.name}", partial(self._read_whole, log, client, written))

    async def _rename_last(self, log: SimulatedLog, renamed: SimulatedLog, client: ClientMachine) -> None:
        namespace = await self.open_namespace(log, client)
        try:
            if renamed.name not in self.names.present:
                await namespace.rename_log(log.name, renamed.name, client.name)
            self._feeds.renamed(log.name, renamed.name)
        finally:
            await self.close_namespace(namespace)

    async def _delete_last(self, log: SimulatedLog, client: ClientMachine) -> None:
        namespace = await self.open_namespace(log, client)
        try:
            await delete_log(namespace.services, log.name, log.settings, client.name)
        except LogNotFoundError:
            self.world.reached("names.deleted-before")
        finally:
            await self.close_namespace(namespace)


def _last_name(log: SimulatedLog) -> str:
    return f"{LAST_NAME}-{log.name}"


def _untimed(log: SimulatedLog) -> SimulatedLog:
    """Return the log without rolling by time, which takes minutes: the end has many writers."""
    return replace(log, settings=replace(log.settings, rolling_minutes=0))
