"""A small HTTP server to observe a node: for probes of container platforms, Prometheus, an operator's browser.

HTTP/1.1, GET and HEAD without bodies, one request a connection. Everything that a client may hold is bounded: the size
of its request, the time that it takes to send it, the number of connections. One connection too many breaks the oldest,
so that a client that holds half requests open keeps no probe out. What is shown is for every client that can connect;
nothing can be changed through it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from metadata.foundation.tasks import end_tasks
from storage_node.bookie.disk.resources import HTTP_CONNECTIONS
from storage_node.errors import BookieConfigurationError

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES: Final = 16 * 1024
REQUEST_TIMEOUT_S: Final = 10.0
"""For a request to arrive, and for its answer to leave."""
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to a request."""

    body: bytes = b""
    content_type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK


Answer = Callable[[str], "Reply | None"]
"""What is at a path; None: nothing."""


class HttpServer:
    """Listens on one port, and answers by `answer`, which must not block."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """In the order in which they came."""

    @property
    def port(self) -> int:
        """The port that it listens on; 0 while it does not."""
        return int(self._server.sockets[0].getsockname()[1]) if self._server is not None else 0

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one. Raises BookieConfigurationError where that is not possible."""
        try:
            self._server = await asyncio.start_server(self._accept, host or None, port, limit=MAX_REQUEST_BYTES)
        except OSError as error:
            where = f"port {port} of {host or 'all interfaces'}"
            raise BookieConfigurationError(
                f"the HTTP server cannot listen on {where}: {error.strerror or error}",
                advice="Stop what listens there, or set another httpServerPort, or httpServerEnabled=false",
            ) from error

    async def stop(self) -> None:
        """Listen no more, and break what is under way. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await end_tasks(list(self._tasks), drop_errors=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= HTTP_CONNECTIONS:
            oldest = next(iter(self._tasks))
            self._tasks.pop(oldest).transport.abort()
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks[task] = writer
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(REQUEST_TIMEOUT_S, writer.transport.abort)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(self._respond(head))
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        except asyncio.LimitOverrunError:
            writer.write(_encode(_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), with_body=True))
        except (OSError, asyncio.IncompleteReadError):
            pass  # It went away, or took too long.
        finally:
            timer.cancel()
            writer.close()

    def _respond(self, head: bytes) -> bytes:
        method, _, rest = head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")
        target, _, version = rest.rpartition(" ")
        if not version.startswith("HTTP/1.") or not target.startswith("/"):
            return _encode(_error(HTTPStatus.BAD_REQUEST), with_body=True)
        if method not in ("GET", "HEAD"):
            return _encode(_error(HTTPStatus.METHOD_NOT_ALLOWED), with_body=True)
        try:
            reply = self._answer(target.partition("?")[0]) or _error(HTTPStatus.NOT_FOUND)
        except Exception:
            logger.exception("the answer to %s %s failed", method, target)
            reply = _error(HTTPStatus.INTERNAL_SERVER_ERROR)
        return _encode(reply, with_body=method == "GET")


def _error(status: HTTPStatus) -> Reply:
    return Reply(f"{status.phrase}\n".encode(), TEXT, status)


def _encode(reply: Reply, *, with_body: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {reply.status.value} {reply.status.phrase}",
        f"Content-Type: {reply.content_type}",
        f"Content-Length: {len(reply.body)}",
        "Connection: close",
    ]
    if reply.status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return head + reply.body if with_body else head
