"""`TcpNetwork`: framed TCP connections (`links`), made or accepted, and what all of them share.

What links hold in memory for peers that stall is bounded here, all links together: begun frames (`receive_memory`), and
answers that their sockets do not take. Works on asyncio's and on uvloop's loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections import OrderedDict
from collections.abc import Callable

from metadata.foundation.addresses import address_text, host_text
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.pacing import MessageLimit
from metadata.foundation.socks import ANSWER, SocksProxy, connect_request, socks_proxy
from storage_node.edge import FrameHandler, Link, Listener
from storage_node.errors import BookieUnreachableError
from storage_node.protocol.frames import MAX_FRAME_BYTES, ChunkPool, FrameBuffer
from storage_node.transport.links import TcpLink
from storage_node.transport.newcomers import Newcomers
from storage_node.transport.receive_memory import ReceiveMemory
from storage_node.transport.tls import TlsEntrance
from storage_node.transport.turns import Turns

logger = logging.getLogger(__name__)

KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""Seconds, seconds, times: a peer that vanished without a word is noticed after two minutes."""

BACKLOG = 1024
ACCEPTED_AT_ONCE = 64
"""Connections accepted in one turn of the loop: a client that makes thousands must not keep the others waiting."""
ACCEPT_PAUSE_S = 0.1
_OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class TcpListener:
    """A listening socket. Created by `TcpNetwork.listen` only."""

    def __init__(
        self,
        network: TcpNetwork,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        accept: Callable[[Link], FrameHandler],
        tls: TlsEntrance | None = None,
    ) -> None:
        self._network = network
        self._loop = loop
        self._sock = sock
        self._accept = accept
        self._newcomers = None if tls is None else Newcomers(loop, tls, self._adopt, self._greet)
        self._closed = False
        self._resume: asyncio.TimerHandle | None = None
        self.port: int = sock.getsockname()[1]
        loop.add_reader(sock.fileno(), self._acceptable)

    def _acceptable(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._refused(error)
                return
            peer = address_text(*address[:2])
            if self._newcomers is None:
                self._greet(self._adopt(sock, peer))
            else:
                self._newcomers.came(sock, peer)

    def _adopt(self, sock: socket.socket, peer: str) -> TcpLink:
        return self._network.adopt(self._loop, sock, peer)

    def _greet(self, link: TcpLink) -> None:
        """Begin to serve a link."""
        try:
            handler = self._accept(link)
        except Exception as error:  # the boundary: a refused connection must not stop the listener
            self._network.tell_closing(link.peer, error)
            link.close()
            return
        link.start(handler)

    def _refused(self, error: OSError) -> None:
        """Leave the rest in the backlog for a while: the process is out of descriptors or memory."""
        self._network.lines.log(logging.ERROR, "cannot accept connections on port %d: %s", self.port, error)
        if error.errno in _OUT_OF_DESCRIPTORS:
            self._loop.remove_reader(self._sock.fileno())
            self._resume = self._loop.call_later(ACCEPT_PAUSE_S, self._accept_again)

    def _accept_again(self) -> None:
        self._resume = None
        if not self._closed:
            self._loop.add_reader(self._sock.fileno(), self._acceptable)

    async def close(self) -> None:
        """Stop accepting; accepted links live on. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        if self._newcomers is not None:
            self._newcomers.close()


class TcpNetwork:
    """How do frames travel? By TCP: one object may serve any number of connections and listeners of one loop.

    Args:
        max_frame: the longest frame, in bytes.
        pool: memory for what is received.
        begun_bytes: memory, all links together, for incomplete frames; 0: any number.
        stuck_bytes: memory, all links together, for peers that take nothing; 0: any number.
        proxy: by way of which connections are made; None: the environment's (`DLSPARK_SOCKS`), if it names one.
    """

    def __init__(
        self,
        *,
        max_frame: int = MAX_FRAME_BYTES,
        pool: ChunkPool | None = None,
        begun_bytes: int = 0,
        stuck_bytes: int = 0,
        proxy: SocksProxy | None = None,
    ) -> None:
        """Open nothing yet. Raises CallerError where the environment names a proxy that is none."""
        self._proxy = proxy or socks_proxy()
        self.max_frame = max_frame
        self.receiving = ReceiveMemory(begun_bytes)
        self._stuck: OrderedDict[TcpLink, int] = OrderedDict()
        self._stuck_used = 0
        self._views: OrderedDict[TcpLink, None] = OrderedDict()
        """Stuck links whose queued answers are still views of shared memory, and not copies."""
        self._stuck_limit = stuck_bytes
        self.turns = Turns(time.monotonic)
        """Links that have more to hand out, or to send."""
        self.reads = Turns(time.monotonic)
        """Links that have something to read, while many have."""
        self.pool = pool or ChunkPool()
        self._links: set[TcpLink] = set()
        self.lines = MessageLimit(logger)
        """Bounds what peers can cause to be logged."""

    async def connect(self, host: str, port: int, handler: FrameHandler, *, timeout_ms: int) -> Link:
        """Connect within `timeout_ms`. Raises BookieUnreachableError; nothing was sent then."""
        try:
            return await asyncio.wait_for(self._connect(host, port, handler), timeout_ms / 1000)
        except (OSError, asyncio.TimeoutError) as error:
            reason = str(error) or f"no answer within {timeout_ms} ms"
            address = address_text(host, port)
            raise BookieUnreachableError(
                f"cannot connect to {address}: {reason}",
                advice="Check that the storage node runs and that its advertised address is reachable from here",
                node=address,
            ) from error

    async def listen(
        self, host: str, port: int, accept: Callable[[Link], FrameHandler], *, tls: TlsEntrance | None = None
    ) -> Listener:
        """Listen on `host` ("" for all interfaces). Raises OSError, for example where the port is taken.

        With `tls` connections are secured from their first byte on, and `accept` gets them once they are.
        """
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            where = f"{host_text(host) or 'all interfaces'}:{port}"
            raise OSError(error.errno, f"cannot listen on {where}: {error.strerror}") from error
        return TcpListener(self, loop, sock, accept, tls)

    def tell_closing(self, peer: str, error: Exception) -> None:
        """Log why a connection is closed; with a traceback where that is a fault of this side."""
        known = isinstance(error, DistributedLogError)
        level = logging.WARNING if known else logging.ERROR
        self.lines.log(level, "closing the connection to %s: %s", peer, error, error=None if known else error)

    def links(self) -> list[TcpLink]:
        """Return the open connections."""
        return list(self._links)

    def adopt(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, peer: str) -> TcpLink:
        """Make a link of a connected socket."""
        sock.setblocking(False)
        # A request is one small write whose answer the peer waits for: it must not wait for another one to go with it.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer that lost its power says nothing: without probes its connection would stay for ever.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        link = TcpLink(self, loop, sock, peer)
        self._links.add(link)
        return link

    def forget(self, link: TcpLink) -> None:
        """Forget a link that is closed: it is delivered to, flushed and counted no more."""
        self._links.discard(link)
        self.reads.leave(link.read)
        self.turns.leave(link.deliver)
        self.turns.leave(link.flush)
        self.note_stuck(link, 0)
        self.receiving.ended(link)
        self.pool.short = self.receiving.short

    def note_stuck(self, link: TcpLink, queued: int) -> None:
        """Note that this link's socket takes nothing of so many bytes; 0: it does again. Beyond the limit the oldest
        are cut.
        """
        self._stuck_used += queued - self._stuck.pop(link, 0)
        self._views.pop(link, None)
        if queued:
            self._stuck[link] = queued
            self._views[link] = None
            self.turns.join(self._relieve)  # hundreds may be found at a time, and each takes a millisecond

    def _relieve(self) -> None:
        """Cut the links that are stuck for longest while they hold too much; copy what the others are to be sent."""
        deadline = self.turns.now() + self.turns.share_s
        while self._views:
            # Never the only one: a single slow reader has all the memory that there is for them.
            if 0 < self._stuck_limit < self._stuck_used and len(self._stuck) > 1:
                oldest = next(iter(self._stuck))
                oldest.cut("it takes none of its answers, and others need the memory")
            else:
                self._views.popitem(last=False)[0].own_all()
            if self.turns.now() > deadline:
                self.turns.join(self._relieve)
                return

    def note_begun(self, link: TcpLink, frames: FrameBuffer) -> None:
        """Count what an incomplete frame of this link takes."""
        if self.receiving.limit:
            self.receiving.begun(link, *frames.begun)
            self.pool.short = self.receiving.short

    async def _connect(self, host: str, port: int, handler: FrameHandler) -> TcpLink:
        sock = await dial(host, port, self._proxy)
        try:
            link = self.adopt(asyncio.get_running_loop(), sock, address_text(host, port))
        except OSError:
            sock.close()
            raise
        link.start(handler)
        return link


async def dial(host: str, port: int, proxy: SocksProxy | None) -> socket.socket:
    """Return a connected socket, by way of the proxy where that leads to the host. Raises OSError; it has no limit of
    time."""
    loop = asyncio.get_running_loop()
    last: OSError | None = None
    by = proxy if proxy is not None and proxy.leads_to(host) else None
    for family, address in await _resolve(loop, *((host, port) if by is None else (by.host, by.port))):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
            if by is not None:
                await _ask_proxy(loop, sock, by, host, port)
        except OSError as error:
            sock.close()
            last = error
            continue
        except BaseException:
            sock.close()
            raise
        return sock
    raise last or OSError(f"{host if by is None else by.host} has no address")


async def _ask_proxy(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, proxy: SocksProxy, host: str, port: int
) -> None:
    """Have the proxy connect this socket to the host. Raises OSError."""
    await loop.sock_sendall(sock, connect_request(host, port))
    answer = b""
    # No byte more than the answer: what follows it is the peer's.
    while len(answer) < ANSWER.size and (chunk := await loop.sock_recv(sock, ANSWER.size - len(answer))):
        answer += chunk
    failure = proxy.failure_error(answer, host, port)
    if failure is not None:
        raise failure


async def _resolve(
    loop: asyncio.AbstractEventLoop, host: str, port: int
) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    """Return the addresses of a host; a literal address takes no thread."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return [(family, (host, port))]
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, (str(address[0]), int(address[1]))) for family, _, _, _, address in found]
