"""What a proxy shows over HTTP: for probes of container platforms, Prometheus, and other proxies.

| path | answer |
|---|---|
| `/heartbeat` | 200 as long as the process runs |
| `/ready` | 200 once the proxy serves, 503 before, and while it ends |
| `/metrics` | Prometheus' text format |
| `/api/v1/proxy/state` | JSON: what it is |
| `/api/v1/proxy/streams` | JSON: the streams that it serves |

It is the storage node's HTTP server. What is shown is for every client that can connect; nothing can be changed by it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

from metadata.foundation.addresses import host_text
from metadata.foundation.errors import CallerError
from storage_node.bookie.node.http_server import JSON, HttpServer, Reply
from storage_node.errors import BookieConfigurationError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

STATE_PATH: Final = "/api/v1/proxy/state"
STREAMS_PATH: Final = "/api/v1/proxy/streams"


class ShownProxy(Protocol):
    """What the page asks of its proxy, at any time from its making on."""

    @property
    def ready(self) -> bool:
        """Whether it answers clients."""
        ...

    def state(self) -> Mapping[str, object]:
        """What it is, as JSON has it."""
        ...

    def streams_shown(self) -> Mapping[str, Mapping[str, object]]:
        """What is known of each stream that it serves, by name."""
        ...


class ProxyPage:
    """The page of one proxy."""

    def __init__(self, proxy: ShownProxy, registry: CollectorRegistry) -> None:
        self._proxy = proxy
        self._registry = registry
        self._server = HttpServer(self.answer)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.port

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one. Raises CallerError where that is not possible."""
        try:
            await self._server.start(host, port)
        except BookieConfigurationError as error:
            cause, where = error.__cause__ or error, host_text(host) or "all interfaces"
            raise CallerError(
                f"the page with health and metrics cannot listen on {where}:{port}: {cause}",
                advice="Give its port another number: --stats-port of a write proxy, statsPort of a read proxy",
            ) from error

    async def close(self) -> None:
        """Listen no more. Idempotent."""
        await self._server.stop()

    def answer(self, path: str) -> Reply | None:
        """What is at a path."""
        match path.rstrip("/"):
            case "/heartbeat":
                return Reply(b"OK\n")
            case "/ready":
                return self._ready()
            case "/metrics":
                return self._metrics()
            case found if found == STATE_PATH:
                return _json(self._proxy.state())
            case found if found == STREAMS_PATH:
                return _json(self._proxy.streams_shown())
        return None

    def _ready(self) -> Reply:
        if self._proxy.ready:
            return Reply(b"OK\n")
        return Reply(b"the proxy does not serve\n", status=HTTPStatus.SERVICE_UNAVAILABLE)

    def _metrics(self) -> Reply:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return Reply(generate_latest(self._registry), CONTENT_TYPE_LATEST)


def _json(value: object) -> Reply:
    return Reply(json.dumps(value).encode() + b"\n", JSON)
