"""A storage node's metrics in Prometheus' text format, read from the node when they are asked for.

`bookie_SERVER_STATUS`, `bookie_ledgers_count`, `bookie_ledger_writable_dirs` and the two gauges of requests in progress
have BookKeeper's names and meanings; the others are this node's own. Counters count from the start of the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from storage_node.bookie.store.gc_stats import GcStats

if TYPE_CHECKING:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

    from storage_node.bookie.node.bookie import Bookie

WRITABLE, READ_ONLY, NOT_SERVING = 1, 0, -1

GC_MEANINGS: Final = {
    "rounds": "Rounds of garbage collection that came to their end",
    "rounds_aborted": "Rounds that deleted nothing, because metadata could not be read",
    "ledgers_collected": "Ledgers deleted because metadata does not know them any more",
    "ledgers_moved_away": "Closed ledgers deleted because other nodes store them by now",
    "logs_deleted": "Entry logs deleted",
    "bytes_freed": "Bytes of the entry logs deleted",
    "logs_compacted": "Entry logs rewritten",
    "entries_copied": "Entries copied by compaction",
    "bytes_copied": "Bytes copied by compaction",
    "compactions_stopped": "Entry logs that could not be rewritten, for a record in them cannot be read",
}


def exposition(bookie: Bookie) -> tuple[str, bytes]:
    """Content type and text."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(bookie))
    return CONTENT_TYPE_LATEST, generate_latest(registry)


class _Collector:
    """What prometheus_client asks."""

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie

    def collect(self) -> Iterator[Metric]:
        bookie = self._bookie
        status = READ_ONLY if bookie.read_only else WRITABLE
        status = status if bookie.serving else NOT_SERVING
        yield _gauge("bookie_SERVER_STATUS", "1: writable, 0: read-only, -1: not serving", status)
        if bookie.serving:
            yield from self._traffic()
            yield from self._storage()
            yield from self._disks()
            yield from _gc(bookie.storage.contents.stats)

    def _traffic(self) -> Iterator[Metric]:
        bookie, limits = self._bookie, self._bookie.limits
        traffic = limits.traffic
        yield _gauge("bookie_connections", "Connections of clients", bookie.connection_count)
        yield _counter("bookie_adds", "Adds acknowledged", traffic.adds)
        yield _counter("bookie_add_bytes", "Bytes of the adds acknowledged", traffic.add_bytes)
        yield _counter("bookie_reads", "Entries read for clients", traffic.reads)
        yield _counter("bookie_read_bytes", "Bytes of the entries read", traffic.read_bytes)
        if limits.adds.limit:
            yield _gauge(
                "bookkeeper_server_ADD_ENTRY_IN_PROGRESS",
                "Adds under way; counted with maxAddsInProgressLimit only",
                limits.adds.taken,
            )
        yield _gauge(
            "bookkeeper_server_READ_ENTRY_IN_PROGRESS", "Requests that wait for a disk or a tail", limits.reads.taken
        )
        yield _gauge("bookie_answers_waiting_bytes", "Answers that wait for their clients", limits.answers.used)

    def _storage(self) -> Iterator[Metric]:
        storage = self._bookie.storage
        yield _gauge("bookie_ledgers_count", "Ledgers stored here", len(storage.ledgers))
        yield _counter(
            "bookie_journal_commits",
            "Batches made durable",
            sum(journal.commits for journal in storage.journal.journals),
        )
        failed = _counter("bookie_failed_disk_reads", "Entries that could not be read", labels=("cause",))
        failed.add_metric(["refused"], storage.unreadable)
        failed.add_metric(["damaged"], storage.damaged)
        yield failed

    def _disks(self) -> Iterator[Metric]:
        disks = self._bookie.disks
        disks.look()
        spaces = disks.spaces()
        writable = len(spaces.ledgers) - len(disks.full_ledger_directories)
        yield _gauge("bookie_ledger_writable_dirs", "Ledger directories with room", writable)
        free = _gauge("bookie_dir_free_bytes", "Free space of a directory's disk", labels=("directory",))
        total = _gauge("bookie_dir_total_bytes", "Size of a directory's disk", labels=("directory",))
        for path, (total_bytes, free_bytes) in {**spaces.journals, **spaces.ledgers}.items():
            free.add_metric([path], free_bytes)
            total.add_metric([path], total_bytes)
        yield free
        yield total


def _gc(stats: GcStats) -> Iterator[Metric]:
    for one in fields(stats):
        yield _counter(f"bookie_gc_{one.name}", GC_MEANINGS[one.name], getattr(stats, one.name))


def _gauge(name: str, meaning: str, value: float | None = None, labels: Iterable[str] = ()) -> GaugeMetricFamily:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(name, meaning, value=value, labels=tuple(labels) or None)


def _counter(name: str, meaning: str, value: float | None = None, labels: Iterable[str] = ()) -> CounterMetricFamily:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(name, meaning, value=value, labels=tuple(labels) or None)
