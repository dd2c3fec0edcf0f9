"""`Pipes`: a network between clients and servers of one process; it connects and listens, and no socket is used.

Each end takes `WINDOW_BYTES` for its handler while it is paused, as a kernel does; what is sent beyond stays queued at
the sender. Frames arrive a turn of the loop after they were sent, those of one turn as one batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from storage_node.edge import FrameHandler, Link, Listener, Network
from storage_node.errors import BookieUnreachableError, ConnectionClosedError, ProtocolError
from storage_node.protocol.frames import LENGTH, LENGTH_BYTES, MAX_FRAME_BYTES, Buffer
from storage_node.transport.links import LOW_WATER_BYTES

WINDOW_BYTES = 128 * 1024


class PipeEnd(Link):
    """One end of a connection."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self.other: PipeEnd
        self.handler: FrameHandler | None = None
        self.paused = False
        self.closed = False
        self._out = bytearray()
        self._in = bytearray()
        self._scheduled = False
        self._drainers: list[asyncio.Future[None]] = []
        self.most_queued = 0

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def queued_bytes(self) -> int:
        return len(self._out)

    def send(self, *buffers: Buffer) -> None:
        if not self.closed:
            for buffer in buffers:
                self._out += buffer
            self.most_queued = max(self.most_queued, len(self._out))
            self.other.wake()

    def send_at_once(self, *buffers: Buffer) -> None:
        self.send(*buffers)

    def send_raw(self, data: bytes) -> None:
        """Send bytes that need not be whole frames."""
        self.send(data)

    def wake(self) -> None:
        """Take what the other end has sent, in the next turn."""
        if not self._scheduled and not self.closed:
            self._scheduled = True
            self._loop.call_soon(self._arrive)

    def _arrive(self) -> None:
        self._scheduled = False
        if self.closed or self.handler is None:
            return
        room = WINDOW_BYTES - len(self._in) if self.paused else len(self.other._out)
        taken = self.other._take(max(room, 0))
        self._in += taken
        if self.paused:
            return
        try:
            self._deliver(self.handler)
        except Exception as error:  # as a link does: one peer's bytes must not stop the loop
            self.shut(error)

    def _take(self, most: int) -> bytes:
        taken = bytes(self._out[:most])
        del self._out[:most]
        if len(self._out) <= LOW_WATER_BYTES:
            waiters, self._drainers = self._drainers, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        return taken

    def _deliver(self, handler: FrameHandler) -> None:
        while len(self._in) >= LENGTH_BYTES and not self.closed:
            (length,) = LENGTH.unpack_from(self._in)
            if not 0 < length <= MAX_FRAME_BYTES - LENGTH_BYTES:
                raise ProtocolError(f"a frame announces {length} bytes")
            if len(self._in) < LENGTH_BYTES + length:
                break
            frame = bytes(self._in[LENGTH_BYTES : LENGTH_BYTES + length])
            del self._in[: LENGTH_BYTES + length]
            handler.frame_received(memoryview(frame))
        if not self.closed:
            handler.batch_done()

    async def drain(self) -> None:
        if self.closed:
            raise ConnectionClosedError("closed")
        if len(self._out) > LOW_WATER_BYTES:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drainers.append(waiter)
            await waiter

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
        self.wake()

    def close(self) -> None:
        """Close the link; what was sent before still arrives."""
        self.shut(None)

    def shut(self, error: Exception | None) -> None:
        """End both ends, this one with `error`."""
        if self.closed:
            return
        self.closed = True
        for waiter in self._drainers:
            if not waiter.done():
                waiter.set_exception(ConnectionClosedError("closed"))
        if self.handler is not None:
            self._loop.call_soon(self.handler.link_closed, error)
        self._loop.call_soon(self._end_other)

    def _end_other(self) -> None:
        other = self.other
        if not other.closed:
            other._arrive()
            other.shut(None)


class PipeListener(Listener):
    """One port."""

    def __init__(self, pipes: Pipes, port: int, accept: Callable[[Link], FrameHandler]) -> None:
        self._pipes = pipes
        self._port = port
        self.accept = accept

    @property
    def port(self) -> int:
        return self._port

    async def close(self) -> None:
        self._pipes.listeners.pop(self._port, None)


class Pipes(Network):
    """All hosts are one."""

    def __init__(self) -> None:
        self.listeners: dict[int, PipeListener] = {}
        self.ends: list[PipeEnd] = []
        """The connecting end of each connection that was made."""
        self._next = 1

    async def connect(self, host: str, port: int, handler: FrameHandler, *, timeout_ms: int) -> PipeEnd:
        await asyncio.sleep(0)
        listener = self.listeners.get(port)
        if listener is None:
            raise BookieUnreachableError(f"cannot connect to {host}:{port}: refused", node=f"{host}:{port}")
        near, far = PipeEnd(f"{host}:{port}"), PipeEnd(f"{host}:{50_000 + len(self.ends)}")
        near.other, far.other = far, near
        near.handler = handler
        self.ends.append(near)
        try:
            far.handler = listener.accept(far)
        except Exception:  # a refused connection, as a listener does
            far.close()
        far.wake()
        return near

    async def listen(self, host: str, port: int, accept: Callable[[Link], FrameHandler]) -> PipeListener:
        if not port:
            port, self._next = self._next, self._next + 1
        if port in self.listeners:
            raise OSError(98, f"cannot listen on {host}:{port}")
        listener = self.listeners[port] = PipeListener(self, port, accept)
        return listener
