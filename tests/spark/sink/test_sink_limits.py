"""The bound of one publishing multi, held against a real ZooKeeper."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from helpers.spark.sink_world import NS, SINK, job, staged_segment

from dlspark.spark.errors import BatchRefusedError
from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.messages import Publication, StagedSegment
from dlspark.spark.sink.segments.commit import MAX_MULTI_BYTES, Publisher, check_size
from dlspark.spark.sink.segments.log_access import LogRules, NamespaceLogs
from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.log_names import LogState
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.segments import SegmentMetadata
from metadata.distributedlog.sink_marks import MAX_HISTORY, LogMark, SinkState
from metadata.distributedlog.sinks import SinkStore
from metadata.security.settings import SecuritySettings
from metadata.store import Create, Delete, Op
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.embedded import EmbeddedZooKeeper
from metadata.zookeeper.securing import open_session

pytestmark = pytest.mark.processes

BIG = 2**62
LONG_NAME = "a-log-with-a-rather-long-name/and-a-folder"


@pytest.fixture
async def store(zookeeper: EmbeddedZooKeeper) -> AsyncIterator[ZooKeeperStore]:
    store = await open_session(zookeeper.address, SecuritySettings())
    yield store
    await store.close()


async def unused(*_args: object) -> StagedSegment:
    raise AssertionError("not part of this test")


def operations(sinks: SinkStore, logs: LogStore, batch: Publication) -> list[Op]:
    """The publishing multi of `batch` into an empty log, with the longest numbers that there are."""
    segments = [
        SegmentMetadata(
            ledger_id=segment.ledger_id,
            lssn=lssn,
            first_txid=segment.first_txid,
            last_txid=segment.last_txid,
            completion_time_ms=BIG,
            record_count=segment.record_count,
            last_entry=segment.last_entry,
            last_slot=segment.last_slot,
            start_sequence_id=BIG,
            in_progress=False,
        )
        for lssn, segment in enumerate(batch.segments, 1)
    ]
    winners = [batch.job.staged(segment.ledger_id, segment.log) for segment in batch.segments]
    state = LogState(Versioned(0, 0), Versioned(0, 0), Versioned(b"", 0))
    mark = LogMark()
    for number in range(MAX_HISTORY):
        mark = mark.moved(BIG + number, batch.job.attempt, BIG, MAX_HISTORY)
    sink = Versioned(SinkState(), 0)
    return [
        *sinks.publish_ops(SINK, sink, sink.value.moved(BIG, batch.job.attempt, BIG), winners),
        sinks.mark_op(logs.paths(LONG_NAME), SINK, None, mark),
        *logs.publish_ops(LONG_NAME, state, segments),
    ]


def largest(sinks: SinkStore, logs: LogStore) -> Publication:
    """The largest batch that passes the check."""
    low, high = 1, MAX_MULTI_BYTES // 100
    while high - low > 1:
        middle = (low + high) // 2
        batch = publication(middle)
        try:
            check_size(batch, operations(sinks, logs, batch))
            low = middle
        except BatchRefusedError:
            high = middle
    return publication(low)


def publication(count: int) -> Publication:
    segments = [staged_segment(LONG_NAME, BIG + n, n, BIG + n, BIG + n, count=2**31 - 1) for n in range(count)]
    return Publication(job(0, "f" * 32), tuple(segments))


async def test_zookeeper_takes_the_largest_batch_that_is_let_through(store: ZooKeeperStore) -> None:
    await store.create(NS, make_parents=True)
    sinks, logs = SinkStore(store, NS), LogStore(store, NS)
    access = NamespaceLogs(store, logs, LogRules("test", 5_000), recover=unused, rewrite=unused)  # type: ignore[arg-type]
    batch = largest(sinks, logs)
    assert len(batch.segments) > 1500
    await sinks.ensure(SINK)
    listings = [Create(op.path) for op in operations(sinks, logs, batch) if isinstance(op, Delete)]
    for first in range(0, len(listings), 500):
        await store.multi(listings[first : first + 500])
    assert (await Publisher(store, sinks, access).publish(batch)).outcome is CommitOutcome.PUBLISHED
    names, _ = await store.children(logs.paths(LONG_NAME).ledgers)
    assert len(names) == len(batch.segments)
    assert await sinks.staged(SINK) == []
