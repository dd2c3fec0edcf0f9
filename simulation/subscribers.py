"""`SubscribedReaders`: readers of a log that share a subscriber's name and go on after each other.

One reads at a time, under the subscriber's lock; it commits what it was given now and then. When it is killed, or its
session ends while it stands still, another one goes on at the last commit.
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from dlspark.core.log import EARLIEST, AsyncLog
from dlspark.core.reading.locked_reader import AsyncLockedReader
from dlspark.errors import AlreadyTruncatedError, LockingError
from simulation.log_checkers import Span

if TYPE_CHECKING:
    from simulation.cluster import Client
    from simulation.log_workload import LogWorkload, SimulatedLog

SUBSCRIBED_SHARE = 0.4
"""Logs with subscribers."""


class SubscribedReaders:
    """The subscribers of one log and their readers."""

    def __init__(self, workload: LogWorkload, log: SimulatedLog, rng: Random) -> None:
        self._workload = workload
        self._log = log
        self._clients: dict[str, int] = {}
        if rng.random() < SUBSCRIBED_SHARE:
            for index in range(rng.choice((1, 1, 2))):
                self._clients[f"sub{index}"] = rng.choice((1, 2))

    def start_programs(self) -> None:
        for subscriber, count in self._clients.items():
            for index in range(count):
                self._workload.add_role(f"{subscriber}.{index}-{self._log.name}", partial(self._read, subscriber))

    async def _read(self, subscriber: str, client: Client) -> None:
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
                world.checkers.fail(f"{client.name}: {error!r}")
            except AlreadyTruncatedError:
                over_again = True
            except LockingError:
                world.reached("log.read-lock-lost")
                raise
            finally:
                await workload.close_namespace(namespace)
            await asyncio.sleep(rng.uniform(0, 0.1))

    async def _open(
        self, handle: AsyncLog, subscriber: str, client: Client, over_again: bool
    ) -> tuple[AsyncLockedReader, Span]:
        logs = self._workload.world.logs
        stored = logs.deliveries.subscriber(self._log.name, subscriber).stored
        start = EARLIEST if over_again else None
        reader = await handle.open_reader(start, subscriber=subscriber, client_id=client.name)
        span = logs.span(client.name, self._log.name, reader.position)
        if over_again:
            logs.deliveries.started_over(span, subscriber)
        else:
            logs.deliveries.subscribed(span, subscriber, stored)
        return reader, span

    async def _read_on(self, reader: AsyncLockedReader, span: Span, subscriber: str, rng: Random) -> None:
        """Read, and commit now and then; the end comes with or without a last commit."""
        for _ in range(rng.randint(1, 6)):
            await self._workload.tail(reader, span, rng, len(span.read) + rng.choice((1, 5, 30)))
            if span.read and rng.random() < 0.7:
                told = await reader.commit_position()
                self._workload.world.logs.deliveries.committed(span, subscriber, told)
