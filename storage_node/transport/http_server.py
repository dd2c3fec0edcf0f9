"""A small HTTP server to observe a process: for probes of container platforms, Prometheus, an operator's browser.

HTTP/1.1, GET and HEAD without bodies, one request a connection. Everything that a client may hold is bounded: the size
of its request, the time that it takes to send it, the number of connections. One connection too many breaks the oldest,
so that a client that holds half requests open keeps no probe out; and only one is accepted in a turn of the loop, so
that a probe is answered long before it is the oldest. What is shown is for every client that can connect, and under TLS
for those whose certificate is taken; nothing can be changed through it.

Under TLS the handshake is a part of the request's time, and its bytes are bounded. A client that speaks plain HTTP to
it, or is refused, is told of (`refused`), and gets no more than TLS's own alert.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Final, Protocol, TypeVar

from metadata.foundation.tasks import end_tasks
from storage_node.transport.http_hosts import names_this_machine
from storage_node.transport.tls import tls_error

logger = logging.getLogger(__name__)

T = TypeVar("T")

HTTP_CONNECTIONS: Final = 64
"""Connections to one server, at most."""
MAX_REQUEST_BYTES: Final = 16 * 1024
MOST_READS_OF_ANSWERED: Final = 64
"""Reads of what a client still sends behind its answer, or behind TLS's alert."""
LINGER_S: Final = 2.0
"""Seconds that such a client has to end the connection itself."""
BACKLOG: Final = 1024
"""Connections that wait in the kernel to be accepted."""
ACCEPT_PAUSE_S: Final = 1.0
"""While none can be accepted: descriptors or memory are lacking."""
SLICE_BYTES: Final = 64 * 1024
REQUEST_TIMEOUT_S: Final = 10.0
"""For a handshake and a request to arrive, and for its answer to leave."""
MAX_HANDSHAKE_BYTES: Final = 64 * 1024
"""Bytes that a client may send in a handshake: chains of certificates take some thousands."""
MAX_SECURED_BYTES: Final = 4 * MAX_REQUEST_BYTES
"""The same behind it, for a request: records that hold no data (changes of keys) keep the processor for longer."""
RECORD_BYTES: Final = 16 * 1024
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Reply:
    """How is an HTTP request answered?"""

    body: bytes = b""
    content_type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK


_NOT_THIS_HOST: Final = Reply(
    b"This page is not shown under the name in Host: ask by localhost, an address, or the machine's host name\n",
    TEXT,
    HTTPStatus.MISDIRECTED_REQUEST,
)
Answer = Callable[[str], "Reply | Awaitable[Reply] | None"]
"""The reply at a path, or the one that it will have once it is made; None: nothing is there."""


Refused = Callable[[str, str], None]
"""Takes the address of a client that was refused, and the reason."""


class HttpServer:
    """How does a process show something over HTTP? It listens on one port.

    Args:
        answer: gives the reply at a path; it must not block: work that takes long is to be awaited.
        tls: returns the context for a new connection, for certificates may change meanwhile; None: plain HTTP.
        refused: is told of clients whose handshake failed, and of those that were judged.
        judge: returns why a client's certificate (DER) is not good, though its handshake did not fail.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        refused: Refused | None = None,
        judge: Callable[[bytes], str | None] | None = None,
    ) -> None:
        self._answer = answer
        self._tls = tls
        self._judge = judge
        self._refused = refused
        self._socket: socket.socket | None = None
        self._resume: asyncio.TimerHandle | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        """One a connection, in the order in which they came."""

    @property
    def port(self) -> int:
        """The port that it listens on; 0 while it does not."""
        return int(self._socket.getsockname()[1]) if self._socket is not None else 0

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one. Raises OSError where that is not possible."""
        self._socket = _listening(host, port)
        self._accept_on()

    async def stop(self) -> None:
        """Listen no more, and break what is under way. Idempotent."""
        if self._resume is not None:
            self._resume.cancel()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        await end_tasks(list(self._tasks), drop_errors=True)

    def _accept_on(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._acceptable, self._socket)

    def _acceptable(self, listening: socket.socket) -> None:
        """Accept one: the loop reads of those that are here before it comes back."""
        try:
            connection, address = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return  # It went away while it waited.
        except OSError as error:
            logger.error("the HTTP server cannot accept connections: %s", error.strerror or error)
            loop = asyncio.get_running_loop()
            loop.remove_reader(listening.fileno())
            self._resume = loop.call_later(ACCEPT_PAUSE_S, self._accept_on)
            return
        connection.setblocking(False)
        self._begin(connection, str(address[0]))

    def _begin(self, connection: socket.socket, peer: str) -> None:
        if len(self._tasks) >= HTTP_CONNECTIONS:
            oldest = next(iter(self._tasks))
            del self._tasks[oldest]
            oldest.cancel()
        task = asyncio.get_running_loop().create_task(self._serve(connection, peer))
        self._tasks[task] = None
        task.add_done_callback(partial(self._end, connection))

    def _end(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        connection.close()

    async def _serve(self, connection: socket.socket, peer: str) -> None:
        try:
            try:
                await asyncio.wait_for(self._secure_and_exchange(connection, peer), REQUEST_TIMEOUT_S)
            except ssl.SSLError:
                pass  # It was sent an alert, which it may still hear.
            await asyncio.wait_for(_linger(connection), LINGER_S)
        except (OSError, asyncio.TimeoutError):
            pass  # It went away, or took too long.

    async def _secure_and_exchange(self, connection: socket.socket, peer: str) -> None:
        if self._tls is None:
            await self._exchange(_PlainStream(connection), str(connection.getsockname()[0]))
            return
        stream = _TlsStream(connection, self._tls())
        try:
            await stream.shake_hands()
        except ssl.SSLError as error:
            # Without `reason`: an error that is not OpenSSL's.
            self._tell(peer, tls_error(error).message if getattr(error, "reason", None) else str(error))
            raise
        except asyncio.CancelledError:
            self._tell(peer, "the handshake took too long, or made room for others")
            raise
        except OSError as error:
            self._tell(peer, f"the connection broke in the handshake: {error.strerror or error}")
            raise
        # A session of TLS 1.2 may be taken up again by its number, without its certificate being verified anew.
        certificate = stream.certificate
        reason = self._judge(certificate) if self._judge is not None and certificate is not None else None
        if reason is not None:
            self._tell(peer, f"the client's certificate is not good: {reason}")
            return
        await self._exchange(stream)

    def _tell(self, peer: str, reason: str) -> None:
        if self._refused is not None and self._socket is not None:
            self._refused(peer, f"TLS: {reason}")

    async def _exchange(self, stream: _ByteStream, local: str | None = None) -> None:
        """`local`: this side's address, where it comes in plain."""
        head = b""
        while b"\r\n\r\n" not in head:
            received = await stream.receive()
            if not received:
                return
            head += received
            if len(head) > MAX_REQUEST_BYTES:
                answer = _encode(_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), with_body=True)
                break
        else:
            if local is not None and not names_this_machine(head, local):
                answer = _encode(_NOT_THIS_HOST, with_body=True)
            else:
                answer = await self._respond(head)
        await _send(stream, *answer)
        await stream.end()

    async def _respond(self, head: bytes) -> tuple[bytes, bytes]:
        method, _, rest = head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")
        target, _, version = rest.rpartition(" ")
        if not version.startswith("HTTP/1.") or not target.startswith("/"):
            return _encode(_error(HTTPStatus.BAD_REQUEST), with_body=True)
        if method not in ("GET", "HEAD"):
            return _encode(_error(HTTPStatus.METHOD_NOT_ALLOWED), with_body=True)
        try:
            reply = self._answer(target.partition("?")[0]) or _error(HTTPStatus.NOT_FOUND)
            if not isinstance(reply, Reply):
                reply = await reply
        except Exception:
            logger.exception("the answer to %s %s failed", method, target)
            reply = _error(HTTPStatus.INTERNAL_SERVER_ERROR)
        return _encode(reply, with_body=method == "GET")


def _listening(host: str, port: int) -> socket.socket:
    """Return a listening socket; without a host, on all interfaces. Raises OSError."""
    both = not host and socket.has_dualstack_ipv6()
    found = {info[0] for info in socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)}  # noqa: S104  # which addresses there are
    family = socket.AF_INET6 if both or socket.AF_INET not in found else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    listening.setblocking(False)
    return listening


def _error(status: HTTPStatus) -> Reply:
    return Reply(f"{status.phrase}\n".encode(), TEXT, status)


class _ByteStream(Protocol):
    """A connection to one client: plain, or under TLS."""

    async def receive(self) -> bytes:
        """Return some bytes; none at the end. Raises OSError."""

    async def send(self, data: bytes | memoryview) -> None:
        """Send all of it. Raises OSError."""

    async def end(self) -> None:
        """Say that nothing more is sent, where that has words of its own. Raises OSError."""


class _PlainStream:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    async def receive(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._connection, MAX_REQUEST_BYTES)

    async def send(self, data: bytes | memoryview) -> None:
        await asyncio.get_running_loop().sock_sendall(self._connection, data)

    async def end(self) -> None:
        pass  # it is the connection's end


class _TlsStream:
    """The same under TLS, whose bytes pass through memory: what waits there is one record, or one answer's slice."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        self._plain = _PlainStream(connection)
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=True)
        self._shaking = True
        self._left = MAX_HANDSHAKE_BYTES
        """Bytes that the client may still send."""

    async def shake_hands(self) -> None:
        """Take the handshake. Raises ssl.SSLError where the client is refused, refuses, or speaks no TLS; OSError."""
        await self._step(self._tls.do_handshake)
        self._shaking, self._left = False, MAX_SECURED_BYTES

    @property
    def certificate(self) -> bytes | None:
        """The client's certificate (DER); None: it has shown none."""
        return self._tls.getpeercert(True)

    async def receive(self) -> bytes:
        try:
            return await self._step(partial(self._tls.read, RECORD_BYTES))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    async def send(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            written = await self._step(partial(self._tls.write, rest[:RECORD_BYTES]))
            rest = rest[written:]

    async def end(self) -> None:
        # The client's own last word is not waited for: it may never come, and there is nothing left to say.
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass
        await self._flush()

    async def _step(self, call: Callable[[], T]) -> T:
        """Take a step of TLS, with what has to be sent and received for it."""
        while True:
            try:
                result = call()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLError:
                with suppress(OSError):  # the client may be gone: that must not take the place of what is wrong with it
                    await self._flush()  # an alert says to the client what that is
                raise
            else:
                await self._flush()
                return result

    async def _fill(self) -> None:
        received = await self._plain.receive()
        await asyncio.sleep(0)  # what has come already is received at once: others have their turn in between
        self._left -= len(received)
        if self._left < 0:
            raise ssl.SSLError("the handshake is too large" if self._shaking else "the request is too large")
        if received:
            self._received.write(received)
        else:
            self._received.write_eof()

    async def _flush(self) -> None:
        if self._to_send.pending:
            await self._plain.send(self._to_send.read())


async def _linger(connection: socket.socket) -> None:
    """Say the end, and read what is still on its way: closing over it would be a reset, which may overtake the answer.

    Raises OSError.
    """
    connection.shutdown(socket.SHUT_WR)
    for _ in range(MOST_READS_OF_ANSWERED):
        if not await asyncio.get_running_loop().sock_recv(connection, MAX_REQUEST_BYTES):
            return


async def _send(stream: _ByteStream, head: bytes, body: bytes) -> None:
    """Send an answer. All clients may be given the same one, of megabytes: it is not copied for each of them, and what
    a socket takes at once is a slice of it."""
    rest = memoryview(body)
    await stream.send(head)
    while rest:
        await stream.send(rest[:SLICE_BYTES])
        await asyncio.sleep(0)
        rest = rest[SLICE_BYTES:]


def _encode(reply: Reply, *, with_body: bool) -> tuple[bytes, bytes]:
    """Return the head and the body of an answer."""
    lines = [
        f"HTTP/1.1 {reply.status.value} {reply.status.phrase}",
        f"Content-Type: {reply.content_type}",
        f"Content-Length: {len(reply.body)}",
        "Connection: close",
    ]
    if reply.status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return head, reply.body if with_body else b""
