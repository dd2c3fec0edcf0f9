"""What a node shows over HTTP (`httpServerEnabled`): paths and bodies of Apache BookKeeper's endpoints that only read.

| path | answer |
|---|---|
| `/heartbeat` | 200 as long as the process runs |
| `/metrics` | Prometheus' text format (`node_metrics`) |
| `/api/v1/bookie/is_ready` | 200 once the node serves, 503 before, while it stops, and after it has failed |
| `/api/v1/bookie/state` | JSON: `running`, `readOnly`, `shuttingDown`, `availableForHighPriorityWrites` |
| `/api/v1/bookie/info` | JSON: `freeSpace`, `totalSpace` of the ledger directories' disks, bytes; 503 before that |
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Final

from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.node.http_server import JSON, HttpServer, Reply
from storage_node.bookie.node.metrics import exposition
from storage_node.settings.bookie import BookieSettings

logger = logging.getLogger(__name__)

_NOT_READY: Final = Reply(b"the node does not serve\n", status=HTTPStatus.SERVICE_UNAVAILABLE)


@asynccontextmanager
async def shown(settings: BookieSettings, bookie: Bookie) -> AsyncIterator[HttpServer | None]:
    """The endpoints for the length of a block, where they are wanted; begun before the node starts, so that they tell
    that it is not ready yet. Raises BookieConfigurationError where the port cannot be listened on."""
    if not settings.http_server_enabled:
        yield None
        return
    server = HttpServer(partial(answer, bookie))
    await server.start(settings.http_server_host, settings.http_server_port)
    logger.info("HTTP is served on port %d", server.port)
    try:
        yield server
    finally:
        await server.stop()


def answer(bookie: Bookie, path: str) -> Reply | None:
    """What is at a path."""
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
