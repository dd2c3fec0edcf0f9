"""The page of a proxy, over HTTP: for probes of container platforms, Prometheus, and other proxies.

| path | answer |
|---|---|
| `/heartbeat` | 200 as long as the process runs |
| `/ready` | 200 once the proxy serves, 503 before, and while it ends |
| `/metrics` | Prometheus' text format |
| `/api/v1/proxy/state` | JSON: what it is |
| `/api/v1/proxy/streams` | JSON: the streams that it serves |

It is served as a storage node's endpoints are. Every client that can connect is shown all of it, and can change nothing
by it. With `httpServerTlsEnable` it is HTTPS, and only who has a certificate is shown anything.

The metrics of a thousand streams are megabytes, and take a second to make. So they are made in a thread, one text at a
time: clients that ask meanwhile, or soon after, are given the same text.
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
from metadata.security.audit import NOWHERE, Noted
from metadata.security.identity import TlsIdentity
from storage_node.transport.http_server import JSON, HttpServer, Reply

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

STATE_PATH: Final = "/api/v1/proxy/state"
STREAMS_PATH: Final = "/api/v1/proxy/streams"
KEPT_FOR: Final = 4
"""Metrics that took long to make are given out again for so many times as long: a client that asks on and on takes no
more than a fifth of the time of one processor."""
LONG_S: Final = 0.1
"""Metrics that took less are made anew each time."""


class ShownProxy(Protocol):
    """A proxy as its page needs it, at any time from its making on."""

    @property
    def ready(self) -> bool:
        """True while it answers clients."""
        ...

    def state(self) -> Mapping[str, object]:
        """Return its location, status and figures, as JSON has them."""
        ...

    def streams_shown(self) -> Mapping[str, Mapping[str, object]]:
        """Return what is known of each stream that it serves, by name."""
        ...


class ProxyPage:
    """How do a probe, Prometheus, or another proxy see how this one is? Serves the page of one proxy.

    Args:
        registry: the metrics that it shows.
        identity: by what it is served under TLS, to clients with a certificate; None: in plain.
        noted: the audit trail, for clients that are refused.
    """

    def __init__(
        self,
        proxy: ShownProxy,
        registry: CollectorRegistry,
        identity: TlsIdentity | None = None,
        noted: Noted = NOWHERE,
    ) -> None:
        self._proxy = proxy
        self._registry = registry
        self._noted = noted
        if identity is None:
            self._server = HttpServer(self.answer)
        else:
            self._server = HttpServer(
                self.answer, tls=identity.server_context, judge=identity.judge, refused=self._note_refused
            )
        self._metrics: asyncio.Task[Reply] | None = None
        """The text that is being made, or was made just now."""

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

    def _note_refused(self, peer: str, reason: str) -> None:
        note = self._noted.note
        note("connection", allowed=False, reason=reason, principal=None, peer=peer, scheme="tls", request="HTTP")

    async def close(self) -> None:
        """Listen no more. Idempotent."""
        await self._server.stop()
        if self._metrics is not None:
            await end_tasks([self._metrics], drop_errors=True)

    def answer(self, path: str) -> Reply | Awaitable[Reply] | None:
        """Return the reply at a path, or one that is still being made; None where there is nothing."""
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
        return asyncio.shield(self._metrics)  # others wait for it, too: one that goes must not cancel it

    async def _make_metrics(self) -> Reply:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        loop, kept_s = asyncio.get_running_loop(), 0.0
        began_s = loop.time()
        try:
            # Cells are plain numbers: read while the loop writes them, a sum may be off by what happened meanwhile.
            text = await loop.run_in_executor(None, generate_latest, self._registry)
            took_s = loop.time() - began_s
            kept_s = KEPT_FOR * took_s if took_s > LONG_S else 0.0
            return Reply(text, CONTENT_TYPE_LATEST)
        finally:
            # Also behind an error: the next client must not be given it again.
            if kept_s:
                loop.call_later(kept_s, self._forget_metrics)
            else:
                self._forget_metrics()

    def _forget_metrics(self) -> None:
        self._metrics = None


def _json(value: object) -> Reply:
    return Reply(json.dumps(value).encode() + b"\n", JSON)
