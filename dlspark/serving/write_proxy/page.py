"""What a proxy shows over HTTP: for probes of container platforms, Prometheus, and the placement of streams.

| path | answer |
|---|---|
| `/heartbeat` | 200 as long as the process runs |
| `/ready` | 200 once the proxy serves and takes streams, 503 before, and while it ends |
| `/metrics` | Prometheus' text format |
| `/api/v1/proxy/state` | JSON: `location`, `status`, `announced`, `streams` |
| `/api/v1/proxy/streams` | JSON: its streams, and the bytes a second that each takes |

It is the storage node's HTTP server. What is shown is for every client that can connect; nothing can be changed by it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from dlspark.serving.protocol.operations import ProxyStatus
from dlspark.serving.write_proxy.placing import STREAMS_PATH
from metadata.foundation.errors import CallerError
from storage_node.bookie.node.http_server import JSON, HttpServer, Reply
from storage_node.errors import BookieConfigurationError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class ShownProxy(Protocol):
    """What the page asks of its proxy, at any time from its making on."""

    @property
    def location(self) -> str:
        """How it names itself."""
        ...

    @property
    def serving(self) -> bool:
        """Whether it answers clients."""
        ...

    @property
    def announced(self) -> bool:
        """Whether it is a member of the serving tier."""
        ...

    @property
    def status(self) -> ProxyStatus:
        """What it takes."""
        ...

    def streams(self) -> Iterable[str]:
        """Those that it owns."""
        ...

    def traffic(self) -> Mapping[str, int]:
        """Bytes a second by stream."""
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
            cause = error.__cause__ or error
            raise CallerError(
                f"the page with health and metrics cannot listen on {host or 'all interfaces'}:{port}: {cause}",
                advice="Give another --stats-port",
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
            case "/api/v1/proxy/state":
                return _json(self._state())
            case found if found == STREAMS_PATH:
                traffic = self._proxy.traffic()
                return _json({one: {"bytesPerSecond": traffic.get(one, 0)} for one in sorted(self._proxy.streams())})
        return None

    def _ready(self) -> Reply:
        if self._proxy.serving and self._proxy.status is not ProxyStatus.DOWN:
            return Reply(b"OK\n")
        return Reply(b"the proxy does not serve\n", status=HTTPStatus.SERVICE_UNAVAILABLE)

    def _metrics(self) -> Reply:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return Reply(generate_latest(self._registry), CONTENT_TYPE_LATEST)

    def _state(self) -> dict[str, object]:
        return {
            "location": self._proxy.location,
            "status": self._proxy.status.name,
            "announced": self._proxy.announced,
            "streams": sum(1 for _ in self._proxy.streams()),
        }


def _json(value: object) -> Reply:
    return Reply(json.dumps(value).encode() + b"\n", JSON)
