"""What a proxy shows over HTTP: for probes of container platforms, Prometheus, and other proxies.

| path | answer |
|---|---|
| `/heartbeat` | 200 as long as the process runs |
| `/ready` | 200 once the proxy serves, 503 before, and while it ends |
| `/metrics` | Prometheus' text format |
| `/api/v1/proxy/state` | JSON: what it is |
| `/api/v1/proxy/streams` | JSON: the streams that it serves |

It is served as a storage node's endpoints are. What is shown is for every client that can connect; nothing can be
changed by it.

The metrics of a thousand streams are megabytes, and take a second to make. So they are made in a thread, one text at a
time: who asks meanwhile is given the same one, and so is who asks soon after.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

from metadata.foundation.addresses import host_text
from metadata.foundation.errors import CallerError
from metadata.foundation.tasks import end_tasks
from storage_node.transport.http_server import JSON, HttpServer, Reply

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

STATE_PATH: Final = "/api/v1/proxy/state"
STREAMS_PATH: Final = "/api/v1/proxy/streams"
KEPT_FOR: Final = 4
"""For so many times as long as it took to make them the metrics are given to those who ask again, if that was long: a
client that asks on and on takes no more than a fifth of the time of one processor."""
LONG_S: Final = 0.1


class ShownProxy(Protocol):
    """What the page asks of its proxy, at any time from its making on."""

    @property
    def ready(self) -> bool:
        """Whether it answers clients."""
        ...

    def state(self) -> Mapping[str, object]:
        """Return what it is, as JSON has it."""
        ...

    def streams_shown(self) -> Mapping[str, Mapping[str, object]]:
        """Return what is known of each stream that it serves, by name."""
        ...


class ProxyPage:
    """The page of one proxy."""

    def __init__(self, proxy: ShownProxy, registry: CollectorRegistry) -> None:
        self._proxy = proxy
        self._registry = registry
        self._server = HttpServer(self.answer)
        self._metrics: asyncio.Task[Reply] | None = None
        """They are being made, or were just now."""

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.port

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one. Raises CallerError where that is not possible."""
        try:
            await self._server.start(host, port)
        except OSError as error:
            where = host_text(host) or "all interfaces"
            raise CallerError(
                f"the page with health and metrics cannot listen on {where}:{port}: {error}",
                advice="Give its port another number: server_stats_port (--stats-port) of a write proxy, "
                "statsPort of a read proxy",
            ) from error

    async def close(self) -> None:
        """Listen no more. Idempotent."""
        await self._server.stop()
        if self._metrics is not None:
            await end_tasks([self._metrics], drop_errors=True)

    def answer(self, path: str) -> Reply | Awaitable[Reply] | None:
        """Return what is at a path, or will be once it is made."""
        match path.rstrip("/"):
            case "/heartbeat":
                return Reply(b"OK\n")
            case "/ready":
                return self._ready()
            case "/metrics":
                return self._shared_metrics()
            case found if found == STATE_PATH:
                return _json(self._proxy.state())
            case found if found == STREAMS_PATH:
                return _json(self._proxy.streams_shown())
        return None

    def _ready(self) -> Reply:
        if self._proxy.ready:
            return Reply(b"OK\n")
        return Reply(b"the proxy does not serve\n", status=HTTPStatus.SERVICE_UNAVAILABLE)

    def _shared_metrics(self) -> Awaitable[Reply]:
        if self._metrics is None:
            self._metrics = asyncio.get_running_loop().create_task(self._make_metrics())
        return asyncio.shield(self._metrics)  # others may wait for them, too

    async def _make_metrics(self) -> Reply:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        loop, kept_s = asyncio.get_running_loop(), 0.0
        began_s = loop.time()
        try:
            text = await loop.run_in_executor(None, generate_latest, self._registry)
            took_s = loop.time() - began_s
            kept_s = KEPT_FOR * took_s if took_s > LONG_S else 0.0
            return Reply(text, CONTENT_TYPE_LATEST)
        finally:
            if kept_s:
                loop.call_later(kept_s, self._forget_metrics)
            else:
                self._forget_metrics()

    def _forget_metrics(self) -> None:
        self._metrics = None


def _json(value: object) -> Reply:
    return Reply(json.dumps(value).encode() + b"\n", JSON)
