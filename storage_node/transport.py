"""`TcpNetwork`: framed TCP connections on sockets of our own, driven by the running loop's readiness callbacks.

Own sockets because bodies must not be joined or copied on the way: a read goes straight into a shared chunk
(`protocol.frames`), a write is one `sendmsg` over the pieces as they are. Works on asyncio's and on uvloop's loop.

Fault model: a peer may stall, vanish, or send anything. A length that cannot be, or a handler's exception, closes that
link alone, with the error in `link_closed` and a line in the log; everybody else is served on.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import socket
import termios
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from metadata.errors import DistributedLogError
from metadata.log_limit import LogLimit
from storage_node.edge import Buffer, FrameHandler, Link, Listener
from storage_node.errors import BookieUnreachableError, ConnectionClosedError, ProtocolError
from storage_node.protocol.frames import ALL, MAX_FRAME_BYTES, ChunkPool, FrameBuffer
from storage_node.receive_memory import ReceiveMemory
from storage_node.turns import Turns

logger = logging.getLogger(__name__)

LOW_WATER_BYTES = 64 * 1024
"""`drain` returns once no more than this is queued."""

STUCK_S = 0.25
"""A socket that takes nothing for so long is stuck: what is queued no longer borrows memory that others need."""

KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""Seconds, seconds, times: a peer that vanished without a word is noticed after two minutes."""

SEND_BYTES = 4 * 1024 * 1024
"""About what a link sends in a turn of the loop, and offers to one `sendmsg`."""
SHARED_SEND_BYTES = 256 * 1024
"""The same while there are many connections: the kernel takes megabytes of each one's answer, and copies them."""

SEND_BUFFERS = 1000
"""Below the kernel's limit of 1024 pieces a call."""

JOIN_BELOW_BYTES = 2048
"""Pieces smaller than this on average are joined: one copy is cheaper than many pieces."""

FRAMES_AT_ONCE = 64
"""Frames cut out of what was received before they are handed out: a chunk may hold ten thousands of small ones."""

BACKLOG = 1024
ACCEPTED_AT_ONCE = 64
"""Connections accepted in one turn of the loop: who makes thousands must not keep those waiting who have one."""
ACCEPT_PAUSE_S = 0.1
_OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


_NO_FRAMES: Iterator[memoryview] = iter(())


class TcpLink:
    """One connection. Created by `TcpNetwork` only."""

    __slots__ = (
        "_backlog",
        "_closed",
        "_drainers",
        "_flush_scheduled",
        "_frames",
        "_handler",
        "_in_batch",
        "_left",
        "_loop",
        "_network",
        "_out",
        "_paused",
        "_queued",
        "_reading",
        "_sock",
        "_starved",
        "_stuck_timer",
        "_writing",
        "peer",
    )

    def __init__(self, network: TcpNetwork, loop: asyncio.AbstractEventLoop, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self._network = network
        self._loop = loop
        self._sock = sock
        self._frames = FrameBuffer(network.pool, max_frame=network.max_frame)
        self._handler: FrameHandler | None = None
        self._out: deque[Buffer] = deque()
        self._queued = 0
        self._drainers: list[asyncio.Future[None]] = []
        self._in_batch = False
        self._flush_scheduled = False
        self._writing = False
        self._stuck_timer: asyncio.TimerHandle | None = None
        self._backlog: Iterator[memoryview] = _NO_FRAMES
        """Frames that were cut out and not handed out yet; there are `_left` of them."""
        self._left = 0
        self._reading = False
        self._paused = False
        self._starved = False
        self._closed = False

    @property
    def queued_bytes(self) -> int:
        return self._queued

    def start(self, handler: FrameHandler) -> None:
        """Begin to deliver to `handler`."""
        self._handler = handler
        self._watch_reads()

    # ------------------------------------------------------------------------------------ sending

    def send(self, *buffers: Buffer) -> None:
        """Queue whole frames in pieces; they leave together at the end of this turn of the loop."""
        if self._closed:
            return
        queued = self._queued
        for buffer in buffers:
            size = len(buffer)
            if size:
                self._out.append(buffer)
                queued += size
        self._queued = queued
        if not (self._in_batch or self._writing or self._flush_scheduled):
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_soon)

    async def drain(self) -> None:
        """Wait until at most LOW_WATER_BYTES are queued. Raises ConnectionClosedError if the link is or gets closed."""
        if self._closed:
            raise ConnectionClosedError("the connection is closed", node=self.peer)
        if self._queued <= LOW_WATER_BYTES:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._drainers.append(waiter)
        await waiter

    def _flush_soon(self) -> None:
        self._flush_scheduled = False
        if not self._writing:
            self._flush()

    def _flush(self, *, all_at_once: bool = False) -> None:
        """Send until nothing is left or the socket takes no more, a part of much in one of the next turns."""
        most = SHARED_SEND_BYTES if self._network.pool.shared else SEND_BYTES
        left = ALL if all_at_once else most
        while self._out and not self._closed:
            if left <= 0:
                self._network.turns.join(self._flush)
                return
            try:
                sent = self._sock.sendmsg(self._pieces(most))
            except (BlockingIOError, InterruptedError):
                self._wait_writable()
                return
            except OSError as error:
                self._shut(error)
                return
            self._consume(sent)
            left -= sent
        if self._writing and not self._closed:
            self._writing = False
            self._loop.remove_writer(self._sock.fileno())
            self._watch_stuck(False)

    def _wait_writable(self) -> None:
        if not self._writing:
            self._writing = True
            self._loop.add_writer(self._sock.fileno(), self._writable)
        self._watch_stuck(True)

    def _writable(self) -> None:
        self._network.turns.join(self._flush)  # many may be writable at a time

    def _watch_stuck(self, on: bool) -> None:
        """The socket took something just now: whether it is stuck will be seen."""
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
        self._network.note_stuck(self, 0)
        self._stuck_timer = self._loop.call_later(STUCK_S, self._found_stuck) if on else None

    def _found_stuck(self) -> None:
        self._stuck_timer = None
        self._network.note_stuck(self, self._queued)

    def own_all(self) -> None:
        """Copy what is queued: views would keep large memory from its owners for as long as the peer likes."""
        if self._out:
            joined = b"".join(self._out)
            self._out.clear()
            self._out.append(joined)

    def _pieces(self, most: int) -> list[Buffer]:
        """The front of the queue, about `most` bytes, joined where pieces are small."""
        out = self._out
        if len(out) > 1 and self._queued <= min(most, len(out) * JOIN_BELOW_BYTES):
            joined = b"".join(out)  # small pieces throughout, the usual case of many small entries
            out.clear()
            out.append(joined)
            return [joined]
        pieces: list[Buffer] = []
        total = 0
        for piece in out:
            if len(piece) > most:
                return pieces or [memoryview(piece)[:most]]  # by itself: what is joined is taken out whole
            pieces.append(piece)
            total += len(piece)
            if total >= most or len(pieces) == SEND_BUFFERS:
                break
        if len(pieces) > 1 and total < len(pieces) * JOIN_BELOW_BYTES:
            joined = b"".join(pieces)
            for _ in pieces:
                out.popleft()
            out.appendleft(joined)
            return [joined]
        return pieces

    def _consume(self, sent: int) -> None:
        self._queued -= sent
        out = self._out
        while sent:
            size = len(out[0])
            if sent < size:
                out[0] = memoryview(out[0])[sent:]
                break
            out.popleft()
            sent -= size
        if self._drainers and self._queued <= LOW_WATER_BYTES:
            waiters, self._drainers = self._drainers, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    # ------------------------------------------------------------------------------------ receiving

    def pause_reading(self) -> None:
        """Leave further bytes to the kernel; frames already read are still delivered."""
        self._paused = True
        self._watch_reads()

    def resume_reading(self) -> None:
        self._paused = False
        self._watch_reads()

    def starve(self) -> None:
        """Leave further bytes to the kernel: begun frames take too much memory."""
        self._starved = True
        self._watch_reads()

    def feed(self) -> None:
        self._starved = False
        self._watch_reads()

    def has_more(self) -> bool:
        """Bytes that arrived wait in the kernel."""
        count = bytearray(4)
        try:
            fcntl.ioctl(self._sock.fileno(), termios.FIONREAD, count)
        except (OSError, ValueError):  # the socket is about to be closed
            return False
        return any(count)

    def cut(self, reason: str) -> None:
        """Close because of what the peer does."""
        error = ProtocolError(reason, node=self.peer)
        self._network.tell_closing(self.peer, error)
        self._shut(error)

    def _watch_reads(self) -> None:
        """Wait for bytes if they are wanted now."""
        wanted = not (self._paused or self._starved or self._closed or self._handler is None or self._has_frames)
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self._loop.add_reader(self._sock.fileno(), self._readable)
            else:
                self._loop.remove_reader(self._sock.fileno())

    def _readable(self) -> None:
        try:
            received = self._sock.recv_into(self._frames.writable())
        except (BlockingIOError, InterruptedError):
            self._frames.rewind()
            return
        except OSError as error:
            self._shut(error)
            return
        if received == 0:
            self._shut(None)
            return
        try:
            self._take(self._frames.advance(received, FRAMES_AT_ONCE))
        except ProtocolError as error:
            self._network.tell_closing(self.peer, error)
            self._shut(error)
            return
        self._deliver()

    def _take(self, frames: list[memoryview]) -> None:
        """These are to be handed out next. Nobody else keeps them: views would keep the chunk from being rewound."""
        self._left = len(frames)
        self._backlog = iter(frames)

    @property
    def _has_frames(self) -> bool:
        """Whole frames were received that were not handed out yet."""
        return bool(self._left) or self._frames.has_more

    def _deliver(self) -> None:
        """Hand out frames as long as this link's share of a turn of the loop lasts."""
        try:
            self._hand_out()
        except Exception as error:  # the boundary: one peer's bytes must not stop the loop
            self._network.tell_closing(self.peer, error)
            self._shut(error)
            return
        if self._closed:
            return
        if not self._has_frames:
            self._backlog = _NO_FRAMES
            self._frames.rewind()
            self._network.note_begun(self, self._frames)
        if self._out and not self._writing:
            self._flush()
        self._read_on()

    def _read_on(self) -> None:
        """Hand out the rest in one of the next turns, or wait for more."""
        if self._closed:
            return
        if self._has_frames:
            self._network.turns.join(self._deliver)
        self._watch_reads()

    def _hand_out(self) -> None:
        handler = self._handler
        if handler is None:
            return
        self._in_batch = True
        now = time.monotonic
        deadline = now() + self._network.turns.share_s
        in_time = True
        try:
            while in_time:
                for frame in self._backlog:
                    self._left -= 1
                    handler.frame_received(frame)
                    if self._closed:
                        return
                    in_time = now() <= deadline
                    if not in_time:
                        break
                frame = None  # type: ignore[assignment]  # the last view would keep the chunk from being rewound
                if not (in_time and self._frames.has_more):
                    break
                self._take(self._frames.cut(FRAMES_AT_ONCE))
            handler.batch_done()
        finally:
            self._in_batch = False

    # ------------------------------------------------------------------------------------ the end

    def close(self) -> None:
        """Close now; what the socket takes at once of the queue still leaves."""
        if not self._closed and self._out and not self._writing:
            self._flush(all_at_once=True)
        self._shut(None)

    def _shut(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closed = True
        self._watch_stuck(False)
        self._left, self._backlog = 0, _NO_FRAMES
        descriptor = self._sock.fileno()
        self._loop.remove_reader(descriptor)
        self._loop.remove_writer(descriptor)
        self._sock.close()
        self._frames.rewind()  # many links may end in one turn of the loop: few keep their memory until the next
        self._out.clear()
        self._queued = 0
        waiters, self._drainers = self._drainers, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(ConnectionClosedError("the connection was closed", node=self.peer))
        self._network.forget(self)
        self._loop.call_soon(self._finish, error)

    def _finish(self, error: Exception | None) -> None:
        self._frames.close()
        if self._handler is not None:
            self._handler.link_closed(error)


class TcpListener:
    """A listening socket. Created by `TcpNetwork.listen` only."""

    def __init__(
        self,
        network: TcpNetwork,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        accept: Callable[[Link], FrameHandler],
    ) -> None:
        self._network = network
        self._loop = loop
        self._sock = sock
        self._accept = accept
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
            link = self._network.adopt(self._loop, sock, f"{address[0]}:{address[1]}")
            try:
                handler = self._accept(link)
            except Exception as error:  # the boundary: a refused connection must not stop the listener
                self._network.tell_closing(link.peer, error)
                link.close()
                continue
            link.start(handler)

    def _refused(self, error: OSError) -> None:
        """Out of descriptors or memory: leave the rest in the backlog for a while."""
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


class TcpNetwork:
    """The real network. One object may serve any number of connections and listeners of one loop."""

    def __init__(
        self,
        *,
        max_frame: int = MAX_FRAME_BYTES,
        pool: ChunkPool | None = None,
        begun_bytes: int = 0,
        stuck_bytes: int = 0,
    ) -> None:
        """What may be held in memory, all links together, of incomplete frames (`begun_bytes`) and for peers that take
        nothing (`stuck_bytes`); 0: any number."""
        self.max_frame = max_frame
        self.receiving = ReceiveMemory(begun_bytes)
        self._stuck: OrderedDict[TcpLink, int] = OrderedDict()
        self._stuck_used = 0
        self._views: OrderedDict[TcpLink, None] = OrderedDict()
        """Those of them that have not copied their answers yet."""
        self._stuck_limit = stuck_bytes
        self.turns = Turns(time.monotonic)
        """Links that have more to hand out."""
        self.pool = pool or ChunkPool()
        self._links: set[TcpLink] = set()
        self.lines = LogLimit(logger)
        """What peers can have logged."""

    async def connect(self, host: str, port: int, handler: FrameHandler, *, timeout_ms: int) -> Link:
        """Connect within `timeout_ms`. Raises BookieUnreachableError; nothing was sent then."""
        try:
            return await asyncio.wait_for(self._connect(host, port, handler), timeout_ms / 1000)
        except (OSError, asyncio.TimeoutError) as error:
            reason = str(error) or f"no answer within {timeout_ms} ms"
            raise BookieUnreachableError(
                f"cannot connect to {host}:{port}: {reason}",
                advice="Check that the storage node runs and that its advertised address is reachable from here",
                node=f"{host}:{port}",
            ) from error

    async def listen(self, host: str, port: int, accept: Callable[[Link], FrameHandler]) -> Listener:
        """Listen on `host` ("" for all interfaces). Raises OSError, for example where the port is taken."""
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
            where = f"{host or 'all interfaces'}:{port}"
            raise OSError(error.errno, f"cannot listen on {where}: {error.strerror}") from error
        return TcpListener(self, loop, sock, accept)

    def tell_closing(self, peer: str, error: Exception) -> None:
        """Log why a connection is closed; with a traceback where that is a fault of this side."""
        known = isinstance(error, DistributedLogError)
        level = logging.WARNING if known else logging.ERROR
        self.lines.log(level, "closing the connection to %s: %s", peer, error, error=None if known else error)

    def links(self) -> list[TcpLink]:
        """The open connections."""
        return list(self._links)

    def adopt(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, peer: str) -> TcpLink:
        """Make a link of a connected socket."""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        link = TcpLink(self, loop, sock, peer)
        self._links.add(link)
        return link

    def forget(self, link: TcpLink) -> None:
        self._links.discard(link)
        self.turns.leave(link._deliver)
        self.turns.leave(link._flush)
        self.note_stuck(link, 0)
        self.receiving.ended(link)
        self.pool.short = self.receiving.short

    def note_stuck(self, link: TcpLink, queued: int) -> None:
        """This link's socket takes nothing of so many bytes; 0: it does again. Beyond the limit the oldest are cut."""
        self._stuck_used += queued - self._stuck.pop(link, 0)
        self._views.pop(link, None)
        if queued:
            self._stuck[link] = queued
            self._views[link] = None
            self.turns.join(self._relieve)  # hundreds may be found at a time, and each takes a millisecond

    def _relieve(self) -> None:
        """Cut those who are stuck for longest while they hold too much, and copy what the others are to be sent."""
        deadline = self.turns.now() + self.turns.share_s
        while self._views:
            if 0 < self._stuck_limit < self._stuck_used and len(self._stuck) > 1:
                oldest = next(iter(self._stuck))
                oldest.cut("it takes none of its answers, and others need the memory")
            else:
                self._views.popitem(last=False)[0].own_all()
            if self.turns.now() > deadline:
                self.turns.join(self._relieve)
                return

    def note_begun(self, link: TcpLink, frames: FrameBuffer) -> None:
        """What an incomplete frame of this link takes."""
        if self.receiving.limit:
            self.receiving.begun(link, *frames.begun)
            self.pool.short = self.receiving.short

    async def _connect(self, host: str, port: int, handler: FrameHandler) -> TcpLink:
        loop = asyncio.get_running_loop()
        last: OSError | None = None
        for family, address in await _resolve(loop, host, port):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                await loop.sock_connect(sock, address)
                link = self.adopt(loop, sock, f"{host}:{port}")
            except OSError as error:
                sock.close()
                last = error
                continue
            except BaseException:
                sock.close()
                raise
            link.start(handler)
            return link
        raise last or OSError(f"{host} has no address")


async def _resolve(
    loop: asyncio.AbstractEventLoop, host: str, port: int
) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    """The addresses of a host; a literal address takes no thread."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return [(family, (host, port))]
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, (str(address[0]), int(address[1]))) for family, _, _, _, address in found]
