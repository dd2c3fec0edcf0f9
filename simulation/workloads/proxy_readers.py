"""Readers of logs through read proxies, while these and the logs' owners fail: each record once, in order, to the end.

A reader's program keeps what it was given and the position behind it, in one step; its next process goes on there. What
it is given is judged as that of direct readers is (`checkers.logs`). Some readers are slow, so that they fall behind
what a read proxy keeps in memory and have to catch up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from dlspark.serving.client.reading import ProxyStart
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.foundation.errors import DistributedLogError, InvariantViolation
from simulation.checkers.logs import ReadSpan, SeenRecord
from simulation.cluster import ClientMachine
from simulation.reading_tier import ReadTier
from simulation.workloads.programs import HEALTHY_S, Workload
from simulation.workloads.thin_clients import ATTEMPT_TIMEOUTS_MS, ProxyWorkload, Values, open_thin_client

PATIENCE_S = 0.3
"""How long a reader waits for records before it looks whether it is to end."""
BULKS = (1, 10, 1_000)
SLOW_S = (0.3, 1.5)
AGAIN_S = (0.02, 0.2)


@dataclass(slots=True)
class ProxiedReader:
    """One reader, over all its processes."""

    log: str
    values: Values
    announced: bool
    slow_share: float
    """Of its reads, those after which it does nothing for a while."""
    max_bytes: int
    poll_ms: int
    position: ProxyStart = "earliest"
    span: ReadSpan | None = None
    """The records that its last opened reader has delivered."""


class ProxyReaders(Workload):
    """The readers of a run, and their read proxies."""

    def __init__(self, writing: ProxyWorkload, tier: ReadTier) -> None:
        super().__init__(writing.world)
        self.tier = tier
        self._writing = writing
        self._readers: list[ProxiedReader] = []
        self._ending = False
        """Nothing is written any more: readers end when they are at the end."""

    @property
    def sizes(self) -> list[tuple[int, int, int]]:
        """The quorums of the logs that are read."""
        return self._writing.sizes

    async def prepare(self) -> None:
        """Start the read proxies."""
        self.tier.add(self.world.rng("read proxies").choice((1, 2, 2)))
        await self.tier.all_serve()

    def start_programs(self, rng: Random) -> None:
        """Start the readers, most of them of the same log."""
        favourite = rng.choice(self._writing.logs)
        for number in range(rng.randint(1, 4)):
            log = favourite if rng.random() < 0.7 else rng.choice(self._writing.logs)
            reader = ProxiedReader(
                log,
                {"requestTimeoutMs": 5_000, "attemptTimeoutMs": rng.choice(ATTEMPT_TIMEOUTS_MS[self._writing.kind])},
                announced=rng.random() < 0.5,
                slow_share=rng.choice((0.0, 0.0, 0.3)),
                max_bytes=rng.choice((500, 8_000, 512 * 1024)),
                poll_ms=rng.choice((50, 400, 2_000)),
            )
            self._readers.append(reader)
            self.add_program(f"reader{number}", partial(self._read, reader))

    async def _read(self, reader: ProxiedReader, client: ClientMachine) -> None:
        rng = self.world.rng(f"reads/{client.name}/{client.runs}")
        thin = await open_thin_client(
            self._writing.tier, client, reader.values, announced=reader.announced, read_from=self.tier.addresses
        )
        start = reader.position if isinstance(reader.position, DLSN) else DLSN.INITIAL
        span = reader.span = self.world.log_checkers.span(client.name, reader.log, start, before=reader.span)
        async with thin:
            source = thin.reader(reader.log, reader.position, max_bytes=reader.max_bytes, poll_ms=reader.poll_ms)
            while not (self._ending and self._at_end(span)):
                try:
                    records = await asyncio.wait_for(source.read_bulk(rng.choice(BULKS)), PATIENCE_S)
                except asyncio.TimeoutError:
                    continue
                except DistributedLogError as error:
                    self._refused(client, error)
                    await asyncio.sleep(rng.uniform(*AGAIN_S))
                    continue
                self._given(span, records)
                reader.position = source.position
                if not self._ending and rng.random() < reader.slow_share:
                    await asyncio.sleep(rng.uniform(*SLOW_S))

    def _given(self, span: ReadSpan, records: Sequence[LogRecord]) -> None:
        if not span.read and span.before is not None and span.before.read:
            self.world.reached("read.resumed")
        for one in records:
            seen = SeenRecord(one.dlsn, one.txid, bytes(one.payload), one.sequence_id)
            self._writing.tier.checkers.read(span, seen)

    def _refused(self, client: ClientMachine, error: DistributedLogError) -> None:
        if isinstance(error, InvariantViolation):
            raise error
        self.world.reached(f"read.{type(error).__name__}")
        if self._writing.tier.checkers.calm and not isinstance(error, LogNotFoundError):  # nothing was written yet
            self.world.ledger_checkers.fail(f"{client.name} saw an error, though nothing was wrong: {error!r}")

    def _at_end(self, span: ReadSpan) -> bool:
        return span.next > max(self.world.log_checkers.truth(span.log).at, default=DLSN.NON_INCLUSIVE_LOWER_BOUND)

    async def to_the_end(self) -> None:
        """Wait until every reader gets to its log's end, and ends there: all logs are written, and their writers
        closed.
        """
        self._ending = True
        await self.finished(HEALTHY_S)
        self.over = True
