"""The sink in namespaces that are not the plainest: with access control, and federated."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.spark.sink_world import NS, SINK, job, staged_segment
from helpers.spark.typed_frames import Using

from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.messages import IdOrigin, Publication, StagedSegment
from dlspark.spark.sink.segments.commit import Publisher
from dlspark.spark.sink.segments.log_access import LogRules, NamespaceLogs
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.log_folders import FederatedFolders
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.namespaces import NamespaceStore
from metadata.distributedlog.permissions import Action, Permissions, PermissionStore, RequestDeniedError
from metadata.distributedlog.segments import SegmentMetadata
from metadata.distributedlog.sinks import SinkStore
from metadata.zookeeper.memory import MemoryStore, MemoryTree

pytestmark = pytest.mark.usefixtures("frames")


async def unused(*_: object) -> None:
    raise AssertionError("nothing was left in progress")


class Sink:
    """What publishes batches into a namespace at NS."""

    def __init__(self, store: MemoryStore, logs: LogStore, permissions: PermissionStore | None = None) -> None:
        async def permit(log: str) -> None:
            if permissions is not None:
                await permissions.check(log, Action.ACQUIRE, Action.WRITE)

        self.sinks = SinkStore(store, NS)
        access = NamespaceLogs(
            store,
            logs,
            LogRules("test", 5_000),
            recover=unused,  # type: ignore[arg-type]
            rewrite=unused,  # type: ignore[arg-type]
            permit=permit,
        )
        self.publisher = Publisher(store, self.sinks, access)


async def test_a_log_that_may_not_be_written_gets_nothing_of_a_batch() -> None:
    store = MemoryStore(MemoryTree())
    await NamespaceStore(store, NS).bind(replace(Binding.for_cluster("h:1"), acl_root_path=".acl"))
    permissions, logs = PermissionStore(store, f"{NS}/.acl"), LogStore(store, NS)
    await permissions.set(Permissions(deny_write=True), "denied")
    sink = Sink(store, logs, permissions)
    segments = await staged(sink, "open", "denied")
    with pytest.raises(RequestDeniedError, match="write"):
        await sink.publisher.publish(Publication(job(), segments))
    assert not await logs.exists("denied")
    assert not await logs.exists("open") or await logs.segments("open") == []
    assert await permissions.delete("denied")
    assert (await sink.publisher.publish(Publication(job(), segments))).outcome is CommitOutcome.PUBLISHED
    assert await ledgers(logs, "open", "denied") == [1, 2]


async def test_a_batch_for_logs_of_several_sub_namespaces_is_published_whole() -> None:
    store = MemoryStore(MemoryTree())
    await NamespaceStore(store, NS).bind(replace(Binding.for_cluster("h:1"), federated=True))
    logs = LogStore(store, NS, log_folders=FederatedFolders(store, NS, max_logs=1))
    sink = Sink(store, logs)
    segments = await staged(sink, "a", "b", "c")
    assert (await sink.publisher.publish(Publication(job(), segments))).outcome is CommitOutcome.PUBLISHED
    assert await ledgers(logs, "a", "b", "c") == [1, 2, 3]
    assert len(await logs.log_folders.folders()) == 3


async def staged(sink: Sink, *names: str) -> tuple[StagedSegment, ...]:
    """One segment for each log, listed as the task that wrote it lists it."""
    await sink.sinks.ensure(SINK)
    for number, name in enumerate(names, start=1):
        await sink.sinks.list_ledger(SINK, job().staged(number, name), name)
    origin = IdOrigin.TIMED if Using.frames.typed else IdOrigin.GIVEN
    return tuple(staged_segment(name, number, 0, 1, 2, origin=origin) for number, name in enumerate(names, start=1))


async def ledgers(logs: LogStore, *names: str) -> list[int]:
    found: list[SegmentMetadata] = [segment for name in names for segment in await logs.segments(name)]
    return [segment.ledger_id for segment in found]
