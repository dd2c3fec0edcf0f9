"""`TcpLink`: one framed TCP connection on a socket of our own, driven by the running loop's readiness callbacks.

Own sockets because bodies must not be joined or copied on the way: a read goes straight into a shared chunk
(`protocol.frames`), a write is one `sendmsg` over the pieces as they are. What is received is handed out, and what is
queued is sent, in shares of a turn of the loop (`turns`), so that no connection keeps the others waiting.

TLS may be begun on a link at any time when nothing is under way (`start_tls`): from then on another pair of methods
reads and writes (`tls`), and all that is bounded here is bounded as before.

Fault model: a peer may stall, vanish, or send anything. A length that cannot be, or a handler's exception, closes that
link alone, with the error in `link_closed` and a line in the log; all others are served on.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from storage_node.edge import FrameHandler, RecognisingHandler, TlsTerms
from storage_node.errors import ConnectionClosedError, ProtocolError, TlsError, TlsOfferedError
from storage_node.protocol.frames import ALL, NO_TLS_ANSWER, Buffer, ChunkPool, FrameBuffer
from storage_node.transport.tls import TlsHandshake, TlsSocket, tls_error, waiting_bytes
from storage_node.transport.turns import Turns

LOW_WATER_BYTES = 64 * 1024
"""`drain` returns once no more than this is queued."""
STUCK_S = 0.25
"""A socket that takes nothing for so long is stuck: what is queued no longer borrows memory that others need."""
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
TLS_HELLO_BYTES = 16 * 1024
"""More than a client's first words of TLS have."""
_NO_FRAMES: Iterator[memoryview] = iter(())


class LinkNetwork(Protocol):
    """Which services does a link need of the network that it belongs to?"""

    @property
    def pool(self) -> ChunkPool:
        """The chunks that its links receive into."""
        ...

    @property
    def turns(self) -> Turns:
        """The line of links that have more to deliver or to send than their share."""
        ...

    @property
    def reads(self) -> Turns:
        """The line of links with something to read: one that asks for little does not wait for those in `turns`."""
        ...

    @property
    def max_frame(self) -> int:
        """Bytes of the largest frame that a link takes, its length prefix included."""
        ...

    def tell_closing(self, peer: str, error: Exception) -> None:
        """Log why a connection is closed."""
        ...

    def forget(self, link: TcpLink) -> None:
        """Forget a link that is closed."""
        ...

    def note_stuck(self, link: TcpLink, queued: int) -> None:
        """Note that this link's socket takes nothing of so many bytes; 0: it does again."""
        ...

    def note_begun(self, link: TcpLink, frames: FrameBuffer) -> None:
        """Count what an incomplete frame of this link takes."""
        ...


class TcpLink:
    """One connection. Created by `TcpNetwork` only (`transport.tcp`)."""

    __slots__ = (
        "_backlog",
        "_closed",
        "_descriptor",
        "_drainers",
        "_flush_scheduled",
        "_frames",
        "_handler",
        "_handshake",
        "_in_batch",
        "_left",
        "_loop",
        "_network",
        "_out",
        "_paused",
        "_queued",
        "_reading",
        "_receive",
        "_recognise",
        "_secured",
        "_sock",
        "_starved",
        "_stuck_timer",
        "_tls",
        "_tls_ended",
        "_transmit",
        "_writing",
        "peer",
    )

    def __init__(self, network: LinkNetwork, loop: asyncio.AbstractEventLoop, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self._network = network
        self._loop = loop
        self._sock = sock
        self._descriptor = sock.fileno()
        self._receive: Callable[[memoryview], int] = sock.recv_into
        self._transmit: Callable[[list[Buffer]], int] = sock.sendmsg
        self._tls: TlsSocket | None = None
        self._handshake: TlsHandshake | None = None
        """While it is under way nothing is read, and what is sent waits."""
        self._tls_ended: Callable[[TlsError | None], None] | None = None
        self._secured = False
        self._frames = FrameBuffer(network.pool, max_frame=network.max_frame)
        self._handler: FrameHandler | None = None
        self._recognise: Callable[[memoryview], int] | None = None
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
        """Bytes given to `send` that the socket has not taken yet."""
        return self._queued

    def start(self, handler: FrameHandler) -> None:
        """Begin to deliver to `handler`."""
        self.deliver_to(handler)
        self._watch_reads()

    def deliver_to(self, handler: FrameHandler) -> None:
        """Deliver what comes from now on to another handler; what is being delivered goes to the old one to its end."""
        self._handler = handler
        self._recognise = handler.recognise if isinstance(handler, RecognisingHandler) else None

    # ------------------------------------------------------------------------------------ TLS

    @property
    def secured(self) -> bool:
        """TLS stands."""
        return self._secured

    @property
    def certificate(self) -> bytes | None:
        """The peer's certificate (DER), where TLS stands and the peer showed one that was verified."""
        return self._tls.certificate if self._secured and self._tls is not None and not self._closed else None

    @property
    def shown(self) -> tuple[bytes, ...] | None:
        """The certificates that the peer showed beside its own (DER); None: they are not known."""
        return self._tls.shown if self._secured and self._tls is not None and not self._closed else None

    @property
    def between_frames(self) -> bool:
        """All that was read was handed out: no frame waits, and none has begun."""
        return not (self._has_frames or self._frames.begun[1])

    def start_tls(self, terms: TlsTerms, ended: Callable[[TlsError | None], None]) -> None:
        """Begin TLS behind what was sent so far; `ended` is called once, from the loop (see `edge.SecurableLink`)."""
        if self._out and not self._writing:
            self.flush(all_at_once=True)
        reason = self._why_not_secured()
        if reason is not None:
            self._loop.call_soon(ended, TlsError(reason, node=self.peer))
            if not self._closed:
                self.cut(reason)
            return
        self._tls_ended = ended
        self._reading = False
        self._loop.remove_reader(self._descriptor)
        try:
            self._tls = TlsSocket(self._sock, terms)
        except (OSError, ValueError) as error:
            self._refuse(tls_error(error))
            return
        self._sock, self._receive, self._transmit = self._tls.socket, self._tls.recv_into, self._tls.sendmsg
        self._handshake = TlsHandshake(self._loop, self._tls, self._network.turns, terms.limit_s, self._shaken)

    def _why_not_secured(self) -> str | None:
        """Return why TLS must not be begun now."""
        if self._closed:
            return "the connection is closed"
        if self._tls is not None:
            return "TLS was begun before"
        if self._out:
            return "TLS was begun while answers waited for the peer"
        if not self.between_frames:
            # Sent in plain, by whomsoever, to be taken for what came under TLS (CVE-2011-0411).
            return "bytes came in plain behind the last frame before TLS"
        return None

    def _shaken(self, error: TlsError | None) -> None:
        """Go on, under TLS."""
        self._handshake = None
        if error is not None:
            self._refuse(error)
            return
        self._secured = True
        ended, self._tls_ended = self._tls_ended, None
        try:
            if ended is not None:
                ended(None)
        except Exception as failure:  # the boundary: what is made of one peer must not stop the loop
            self._network.tell_closing(self.peer, failure)
            self._shut(failure)
        if not self._closed:
            self.flush()
            self._watch_reads()

    def _refuse(self, error: TlsError) -> None:
        self._network.tell_closing(self.peer, error)
        self._shut(error)

    # ------------------------------------------------------------------------------------ sending

    def send(self, *buffers: Buffer) -> None:
        """Queue whole frames in pieces; they leave together behind what this turn of the loop has still to call."""
        if self._closed:
            return
        for buffer in buffers:
            if buffer:
                self._out.append(buffer)
                self._queued += len(buffer)
        if not (self._in_batch or self._writing or self._flush_scheduled):
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_soon)

    def send_at_once(self, *buffers: Buffer) -> None:
        """Send frames within this call, unless others are about to leave. Another call of the loop's would cost it one
        more look at its sockets, which the frames would wait for."""
        scheduled, self._flush_scheduled = self._flush_scheduled, True  # `send` need not ask for it
        try:
            self.send(*buffers)
        finally:
            self._flush_scheduled = scheduled
        if not (scheduled or self._in_batch or self._writing):
            self.flush()

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
            self.flush()

    def flush(self, *, all_at_once: bool = False) -> None:
        """Send until nothing is left or the socket takes no more, a part of much in one of the next turns."""
        if self._handshake is not None:
            return  # what is queued waits for its end
        most = SHARED_SEND_BYTES if self._network.pool.shared else SEND_BYTES
        left = ALL if all_at_once else most
        while self._out and not self._closed:
            if left <= 0:
                self._network.turns.join(self.flush)
                return
            try:
                sent = self._transmit(self._pieces(most))
            except (BlockingIOError, InterruptedError):
                self._wait_writable()
                return
            except (OSError, TlsError) as error:
                self._shut(error)
                return
            self._consume(sent)
            left -= sent
        if self._writing and not self._closed:
            self._writing = False
            self._loop.remove_writer(self._descriptor)
            self._watch_stuck(False)
            if self._tls is not None and self._tls.stalled:
                self._tls.stalled = False
                self._watch_reads()

    def _wait_writable(self) -> None:
        if not self._writing:
            self._writing = True
            self._loop.add_writer(self._descriptor, self._writable)
        self._watch_stuck(True)

    def _writable(self) -> None:
        self._network.turns.join(self.flush)  # many may be writable at a time

    def _watch_stuck(self, on: bool) -> None:
        """Watch a socket that took something just now, to see whether it is stuck."""
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
        """Return the front of the queue, about `most` bytes, joined where pieces are small."""
        out = self._out
        if len(out) == 1 and self._queued <= most:
            return [out[0]]
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
        out = self._out
        if sent == self._queued:
            out.clear()  # the usual case
            self._queued = sent = 0
        self._queued -= sent
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
        """Read on, unless `starve` keeps it from that."""
        self._paused = False
        self._watch_reads()

    def starve(self) -> None:
        """Leave further bytes to the kernel: begun frames take too much memory."""
        self._starved = True
        self._watch_reads()

    def feed(self) -> None:
        """Go on with the begun frame, for which there is memory again: read, unless reading is paused."""
        self._starved = False
        self._watch_reads()

    def has_more(self) -> bool:
        """Return whether bytes that arrived wait to be read."""
        return waiting_bytes(self._sock) > 0 or (self._tls is not None and self._tls.has_more)

    def cut(self, reason: str) -> None:
        """Close because of what the peer does."""
        error = ProtocolError(reason, node=self.peer)
        self._network.tell_closing(self.peer, error)
        self._shut(error)

    def _watch_reads(self) -> None:
        """Wait for bytes if they are wanted now."""
        tls = self._tls
        wanted = not (self._paused or self._starved or self._closed or self._handler is None or self._has_frames)
        if tls is not None and wanted:
            wanted = self._secured and not tls.stalled
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                # Hundreds may be readable at a time.
                self._loop.add_reader(self._descriptor, self._network.reads.serve, self.read)
            else:
                self._loop.remove_reader(self._descriptor)
        if tls is not None and wanted and tls.has_more:
            self._network.reads.join(self.read)  # decrypted already: the socket may never become readable for it

    def read(self) -> None:
        """Take what has arrived, and hand out the frames that it completes."""
        if not self._reading:
            return  # paused, starved or closed while it stood in line
        failure: Exception | None = None
        try:
            received = self._receive(self._frames.writable())
        except (BlockingIOError, InterruptedError):
            received = -1  # handled behind this block: the error would hold a view of the chunk, which is given back
        except (OSError, TlsError) as error:
            failure = _without_frames(error)
        if failure is not None:
            self._shut(failure)
            return
        if received <= 0:
            self._read_nothing(ended=received == 0)
            return
        try:
            self._take(self._frames.advance(received, FRAMES_AT_ONCE, self._recognise))
        except Exception as error:  # the boundary, as in `deliver`: a handler recognises frames here
            self._network.tell_closing(self.peer, error)
            if isinstance(error, TlsOfferedError):
                self._answer_tls()
            self._shut(error)
            return
        self.deliver()

    def _answer_tls(self) -> None:
        """Tell a peer that begins TLS that there is none: else it would take this end for one that is only away, and
        come again and again."""
        if self._tls is None and not self._out:
            try:
                self._sock.recv(TLS_HELLO_BYTES)  # else the end would be a reset, which may overtake the answer
            except OSError:
                pass  # nothing more has come, or it has gone: it hears what it still can
            try:
                self._sock.send(NO_TLS_ANSWER)
            except OSError:
                pass  # it has gone, or does not read

    def _read_nothing(self, *, ended: bool) -> None:
        if ended:
            self._shut(None)
            return
        self._frames.rewind()
        if self._tls is not None and self._tls.stalled:
            self._watch_reads()
            self._wait_writable()

    def _take(self, frames: list[memoryview]) -> None:
        """Hand these out next. Nothing else may keep them: a view that is held keeps the chunk from being rewound."""
        self._left = len(frames)
        self._backlog = iter(frames)

    @property
    def _has_frames(self) -> bool:
        """Whole frames were received that were not handed out yet."""
        return bool(self._left) or self._frames.has_more

    def deliver(self) -> None:
        """Hand out frames as long as this link's share of a turn of the loop lasts."""
        handler = self._handler
        self._in_batch = True
        try:
            if handler is not None:
                if self._has_frames:
                    self._hand_out(handler)
                if not self._closed:
                    handler.batch_done()
        except Exception as error:  # the boundary: one peer's bytes must not stop the loop
            self._network.tell_closing(self.peer, error)
            self._shut(error)
            return
        finally:
            self._in_batch = False
        if self._closed:
            return
        left = self._has_frames
        if not left:
            self._backlog = _NO_FRAMES
            self._frames.rewind()
            self._network.note_begun(self, self._frames)
        if self._out and not self._writing:
            self.flush()
        if left or not self._reading or self._tls is not None:
            self._read_on()

    def _read_on(self) -> None:
        """Hand out the rest in one of the next turns, or wait for more."""
        if self._closed:
            return
        if self._has_frames:
            self._network.turns.join(self.deliver)
        self._watch_reads()

    def _hand_out(self, handler: FrameHandler) -> None:
        now = time.monotonic
        deadline = now() + self._network.turns.share_s
        in_time = True
        while in_time:
            for frame in self._backlog:
                self._left -= 1
                handler.frame_received(frame)
                if self._closed:
                    return
                if self._left or self._frames.has_more:  # mostly it was the only one
                    in_time = now() <= deadline
                    if not in_time:
                        break
            frame = None  # type: ignore[assignment]  # the last view would keep the chunk from being rewound
            if not (in_time and self._frames.has_more):
                break
            self._take(self._frames.cut(FRAMES_AT_ONCE))

    # ------------------------------------------------------------------------------------ the end

    def close(self) -> None:
        """Close now; what the socket takes at once of the queue still leaves."""
        if not self._closed and self._out and not self._writing:
            self.flush(all_at_once=True)
        if self._secured and self._tls is not None and not self._closed:
            self._tls.say_end()
        self._shut(None)

    def _shut(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closed = True
        self._watch_stuck(False)
        self._left, self._backlog = 0, _NO_FRAMES
        if self._handshake is not None:
            self._handshake.stop()
            self._handshake = None
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
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
        ended, self._tls_ended = self._tls_ended, None
        if ended is not None:
            reason = error if isinstance(error, TlsError) else TlsError(f"the connection was lost: {error or 'ended'}")
            ended(reason)
        if self._handler is not None:
            self._handler.link_closed(error)


def _without_frames(error: Exception) -> Exception:
    """Return the error without the frames of the read that failed, and of what it came from. They hold a view of the
    chunk, which then could not be lent again: many links that are cut off at a time would take one each, and as the
    link's TLS keeps the error, for as long as the garbage collector likes."""
    seen: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in seen:  # an error may be its own cause
        seen.append(one)
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return error
