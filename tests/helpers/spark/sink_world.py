"""A namespace in memory for tests of the sink's commit: real metadata code, ledgers that are only sets of ids."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.messages import IdOrigin, JobId, Publication, StagedSegment
from dlspark.spark.sink.segments.commit import Publisher
from dlspark.spark.sink.segments.leftovers import LedgerSweeper, find_leftovers, sweep_leftovers
from dlspark.spark.sink.segments.log_access import LogRules, NamespaceLogs
from helpers.spark.typed_frames import Using
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.segments import SegmentMetadata
from metadata.distributedlog.sink_marks import LogMark
from metadata.distributedlog.sinks import SinkStore
from metadata.store import MetadataStore
from metadata.zookeeper.memory import MemoryStore, MemoryTree

T = TypeVar("T")
NS = "/dl/ns"
SINK = "q-1"


@dataclass
class SinkWorld:
    """What all processes share: the metadata tree, and the ids of ledgers that exist, with what they hold."""

    tree: MemoryTree = field(default_factory=MemoryTree)
    ledgers: dict[int, tuple[str, int, str]] = field(default_factory=dict)
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    rewritten: int = 0
    """Ledgers that the driver wrote again."""

    async def set_up(self) -> None:
        store = MemoryStore(self.tree)
        await store.create(NS, make_parents=True)
        await store.close()


class Process:
    """One process with a session of its own: it stages, publishes and sweeps."""

    def __init__(
        self,
        world: SinkWorld,
        *,
        seed: int = 0,
        owner: str = "sink",
        lock_timeout_ms: int = 60_000,
        create_missing: bool = True,
        deadline_s: float = 120.0,
    ) -> None:
        self.world = world
        self.store = MemoryStore(world.tree)
        self.sinks = SinkStore(self.store, NS)
        self.log_store = LogStore(self.store, NS)
        rules = LogRules(owner, lock_timeout_ms, create_missing)
        self.logs = NamespaceLogs(self.store, self.log_store, rules, recover=self.recover, rewrite=self.rewrite)
        rng = random.Random(seed)
        self.publisher = Publisher(self.store, self.sinks, self.logs, rng=rng, deadline_s=deadline_s)
        self.sweeper = LedgerSweeper(self.sinks, self.delete_ledger)
        self.recovered: list[str] = []

    async def delete_ledger(self, ledger_id: int) -> None:
        self.world.ledgers.pop(ledger_id, None)

    async def recover(self, log: str) -> None:
        """Complete a dead writer's segments, which hold one record each here."""
        self.recovered.append(log)
        for segment in await self.log_store.segments(log):
            if segment.in_progress:
                state = await self.log_store.open(log)
                done = segment.completed(
                    completion_time_ms=1,
                    start_sequence_id=0,
                    last_txid=segment.first_txid,
                    record_count=1,
                    last_entry=0,
                    last_slot=0,
                )
                await self.log_store.complete_segment(log, state, done, segment)

    async def rewrite(
        self, publication: Publication, segments: Sequence[StagedSegment], lowest_txid: int
    ) -> StagedSegment:
        first = segments[0]
        first_txid = max(first.first_txid, lowest_txid)
        again = await self.write(publication.job, first.log, first.partition, first_txid)
        self.world.rewritten += 1
        return replace(
            first,
            ledger_id=again,
            first_txid=first_txid,
            last_txid=max(lowest_txid, *(one.last_txid for one in segments)),
            record_count=sum(one.record_count for one in segments),
            row_count=sum(one.row_count for one in segments),
            user_bytes=sum(one.user_bytes for one in segments),
        )

    async def write(self, job: JobId, log: str, partition: int, txid: int) -> int:
        """Stage one ledger as a task does: listed before it exists."""
        ledger_id = next(self.world.ids)
        await self.sinks.list_ledger(job.sink_id, job.staged(ledger_id, log), log)
        self.world.ledgers[ledger_id] = (log, partition, job.attempt)
        return ledger_id

    async def stage(
        self,
        job: JobId,
        parts: Sequence[tuple[str, int, int]],
        *,
        count: int = 10,
        origin: IdOrigin | None = None,
    ) -> Publication:
        """Stage (log, first txid, last txid) for each task in turn. `origin`: None, as the test's frames have it."""
        origin = origin or (IdOrigin.TIMED if Using.frames.typed else IdOrigin.GIVEN)
        await self.sinks.ensure(job.sink_id)
        segments = []
        for partition, (log, first, last) in enumerate(parts):
            ledger_id = await self.write(job, log, partition, first)
            segments.append(staged_segment(log, ledger_id, partition, first, last, count=count, origin=origin))
        return Publication(job, tuple(segments))

    async def publish(self, batch: Publication) -> CommitOutcome:
        return (await self.publisher.publish(batch)).outcome

    async def commit(self, batch: Publication) -> CommitOutcome:
        """Publish, then sweep, as the driver does."""
        commit = await self.publisher.publish(batch)
        await self.sweeper.after_commit(batch.job, batch.logs, commit.left)
        return commit.outcome

    async def sweep(self, sink: str = SINK) -> int:
        """Sweep what the sink's marks have settled, as `dlspark sink sweep` does. Returns the ledgers deleted."""
        (found,) = await find_leftovers(self.sinks, self.log_store, 0, names=[sink])
        return (await sweep_leftovers(self.sweeper, self.sinks, found))[0]

    async def mark(self, log: str, sink: str = SINK) -> LogMark | None:
        """Return the sink's mark in a log."""
        found = await self.sinks.mark_in(self.log_store.paths(log), sink)
        return None if found is None else found.value

    async def segments(self, log: str) -> list[SegmentMetadata]:
        return list(await self.log_store.segments(log))


def staged_segment(
    log: str,
    ledger_id: int,
    partition: int,
    first: int,
    last: int,
    *,
    count: int = 10,
    origin: IdOrigin = IdOrigin.GIVEN,
) -> StagedSegment:
    return StagedSegment(
        log=log,
        ledger_id=ledger_id,
        partition=partition,
        ordinal=0,
        first_txid=first,
        last_txid=last,
        record_count=count,
        last_entry=0,
        last_slot=count - 1,
        user_bytes=100,
        origin=origin,
        row_count=count,
    )


def job(batch: int = 0, attempt: str = "a", sink: str = SINK) -> JobId:
    return JobId(sink, batch, attempt)


QUIET_TURNS = 50
"""Turns of the loop after which whatever can be asked without another answer has been asked."""


async def round_trips(tree: MemoryTree, store: MetadataStore, work: Awaitable[T]) -> tuple[T, list[list[str]]]:
    """Do `work` with a server that answers only when nothing more is asked of it.

    Its result, and what `store` has asked in each of the round trips that take place one after the other.
    """
    trips: list[list[str]] = [[]]
    forget = store.observe(lambda operation, path, _seconds, _error: trips[-1].append(f"{operation} {path}"))
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            tree.stall()
            for _ in range(QUIET_TURNS):
                await asyncio.sleep(0)
            if trips[-1]:
                trips.append([])
            tree.resume()
        return await task, [trip for trip in trips if trip]
    finally:
        tree.resume()
        forget()
