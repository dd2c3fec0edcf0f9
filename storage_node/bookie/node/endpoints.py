"""A node's pages over HTTP (`httpServerEnabled`): paths and bodies of Apache BookKeeper's endpoints that only read.

| path | answer |
|---|---|
| `/heartbeat` | 200 as long as the process runs |
| `/metrics` | Prometheus' text format |
| `/api/v1/bookie/is_ready` | 200 once the node serves, 503 before, while it stops, and after it has failed |
| `/api/v1/bookie/state` | JSON: `running`, `readOnly`, `shuttingDown`, `availableForHighPriorityWrites` |
| `/api/v1/bookie/info` | JSON: `freeSpace`, `totalSpace` of the ledger directories' disks, bytes; 503 before that |

Metrics are read from the node when they are asked for. `bookie_SERVER_STATUS`, `bookie_ledgers_count`,
`bookie_ledger_writable_dirs` and the two gauges of requests in progress have BookKeeper's names and meanings; the
others are this node's own. Counters count from the start of the process.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import fields
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from metadata.foundation.tasks import end_tasks
from metadata.security.audit import NOWHERE, Noted
from metadata.security.identity import TlsIdentity
from metadata.security.listening import ListeningRule
from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.node.identity import listening_host
from storage_node.bookie.store.contents import GcStats
from storage_node.errors import BookieConfigurationError
from storage_node.settings.bookie import BookieSettings
from storage_node.transport.http_server import JSON, HttpServer, Reply

if TYPE_CHECKING:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

    from storage_node.bookie.node.bookie import Bookie

logger = logging.getLogger(__name__)

_NOT_READY: Final = Reply(b"the node does not serve\n", status=HTTPStatus.SERVICE_UNAVAILABLE)


@asynccontextmanager
async def shown(settings: BookieSettings, bookie: Bookie, noted: Noted = NOWHERE) -> AsyncIterator[HttpServer | None]:
    """Yield the endpoints for the length of a block, where they are wanted; begun before the node starts, so that they
    answer that it is not ready yet. `noted`: the audit trail, for clients that are refused.

    Raises BookieConfigurationError where the port cannot be listened on, IdentityError where TLS has no usable files.
    """
    if not settings.http_server_enabled:
        yield None
        return
    identity = settings.http_tls.identity(settings.security)
    tls = identity.server_context if identity is not None else None
    server = HttpServer(partial(answer, bookie), tls=tls, refused=partial(_note_refused, noted))
    host, port = _http_host(settings), settings.http_server_port
    try:
        await server.start(host, port)
    except OSError as error:
        where = f"port {port} of {host or 'all interfaces'}"
        raise BookieConfigurationError(
            f"the HTTP server cannot listen on {where}: {error.strerror or error}",
            advice="Stop what listens there, or set another httpServerPort, or httpServerEnabled=false",
        ) from error
    logger.info("%s is served on port %d", "HTTP" if identity is None else "HTTPS", server.port)
    refreshing: list[asyncio.Task[None]] = []
    every_s = settings.security.tls_cert_files_refresh_duration_s
    if identity is not None and every_s:
        refreshing.append(asyncio.get_running_loop().create_task(_refresh(identity, every_s)))
    try:
        yield server
    finally:
        await end_tasks(refreshing, drop_errors=True)
        await server.stop()


async def _refresh(identity: TlsIdentity, every_s: float) -> None:
    """Take over certificates and lists that have changed, from the next connection on."""
    while True:
        await asyncio.sleep(every_s)
        try:
            await asyncio.to_thread(identity.refresh)
        except Exception:  # the boundary: no thread is left for once, and the next look may do it
            logger.exception("the HTTP server's certificates could not be looked at")


def _note_refused(noted: Noted, peer: str, reason: str) -> None:
    noted.note("connection", allowed=False, reason=reason, principal=None, peer=peer, scheme="tls", request="HTTP")


def check_listening(settings: BookieSettings) -> None:
    """Raise BookieConfigurationError where the node, or its HTTP server, would listen where it must not."""
    listening_host(settings)
    if settings.http_server_enabled:
        _http_host(settings)


def _http_host(settings: BookieSettings) -> str:
    rule = ListeningRule(
        "the node's HTTP server",
        "httpServerHost",
        settings.insecure_listen,
        harm="read the node's state and metrics",
        secure="switch TLS on (httpServerTlsEnable=true)",
        error=BookieConfigurationError,
    )
    return rule.host(settings.http_server_host, secured=settings.http_tls.enabled)


def answer(bookie: Bookie, path: str) -> Reply | None:
    """Return what is at a path."""
    found = _ENDPOINTS.get(path.rstrip("/") or "/")
    return found(bookie) if found is not None else None


def _heartbeat(bookie: Bookie) -> Reply:
    return Reply(b"OK\n")


def _metrics(bookie: Bookie) -> Reply:
    content_type, body = exposition(bookie)
    return Reply(body, content_type)


def _is_ready(bookie: Bookie) -> Reply:
    return Reply() if bookie.serving else _NOT_READY


def _state(bookie: Bookie) -> Reply:
    return _json(
        {
            "running": bookie.serving,
            "readOnly": bookie.read_only,
            "shuttingDown": bookie.stopping,
            "availableForHighPriorityWrites": bookie.serving and bookie.takes_high_priority,
        }
    )


def _info(bookie: Bookie) -> Reply:
    if not bookie.serving:
        return _NOT_READY
    total, free = bookie.disk_space()
    return _json({"freeSpace": free, "totalSpace": total})


def _json(value: object) -> Reply:
    return Reply(json.dumps(value).encode() + b"\n", JSON)


_ENDPOINTS: Final[dict[str, Callable[[Bookie], Reply]]] = {
    "/heartbeat": _heartbeat,
    "/metrics": _metrics,
    "/api/v1/bookie/is_ready": _is_ready,
    "/api/v1/bookie/state": _state,
    "/api/v1/bookie/info": _info,
}


WRITABLE, READ_ONLY, NOT_SERVING = 1, 0, -1

GC_MEANINGS: Final = {
    "rounds": "Rounds of garbage collection that were finished",
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
    """Return the content type and the text."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

    # One of its own: the library's global one would show the figures of every node of a process.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(bookie))
    return CONTENT_TYPE_LATEST, generate_latest(registry)


class _Collector:
    """How does prometheus_client ask for a node's figures?"""

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
