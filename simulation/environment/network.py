"""`Fabric`: the network between simulated hosts; each process has a `SimulatedNetwork` into it.

Fault model of TCP: bytes of one connection arrive in order or not at all; different connections know nothing of each
other. A blocked direction holds bytes back (they are sent again when it opens). A broken connection delivers any prefix
of what was under way in each direction, and each side hears of it in its own time, so that neither knows what arrived.
A host that lost its power says nothing at all: its peers' links are half-open until they send something and the host
is back, or until they give up. Connecting takes both directions.

Frames may be watched on their way (`on_frame`), and bodies of entries may be damaged on the way out of a host whose
memory is bad (`corrupting`): digests are made against that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random

from metadata.foundation.errors import DistributedLogError
from simulation.environment.loop import PROCESS, Process, SimulatedLoop
from storage_node.edge import FrameHandler, Link, Listener, Network, RecognisingHandler
from storage_node.errors import BookieUnreachableError, ConnectionClosedError, ProtocolError
from storage_node.protocol.frames import LENGTH, LENGTH_BYTES, Buffer

SOCKET_BYTES = 256 * 1024
"""Bytes that the kernels' buffers take of one direction before `queued_bytes` grows."""
LOW_WATER_BYTES = 64 * 1024
RETRANSMIT_S = 0.5
GIVE_UP_S = 8.0
"""After so long without an answer from a silent host its peers' links end."""
TICK_S = 1e-7

_NO_PROCESS: Context = copy_context()
"""For what kernels do: the context of no process."""

FrameWatcher = Callable[["SimulatedLink", bytes], None]


class SimulatedLink(Link):
    """One end of a connection."""

    def __init__(self, fabric: Fabric, process: Process, peer: str, *, client: bool) -> None:
        self.process = process
        self.client = client
        """This end connected; the other one accepted."""
        self.other: SimulatedLink = self
        self.closed = False
        self.handler: FrameHandler | None = None
        self.last_arrival = 0.0
        self.held: deque[bytes] = deque()
        """On its way to the other end, which cannot be reached."""
        self.in_flight = 0
        self.waiting_for_ack: dict[int, bytes] = {}
        self._peer = peer
        self._fabric = fabric
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._flushing = False
        self._reading_paused = False
        self._inbox: deque[bytes] = deque()
        self._drainers: list[asyncio.Future[None]] = []
        self._reported_closed = False

    @property
    def peer(self) -> str:
        """The address of the other end."""
        return self._peer

    @property
    def queued_bytes(self) -> int:
        """Bytes given to `send` beyond what a socket's buffer would hold."""
        return max(self._out_bytes + self.in_flight - SOCKET_BYTES, 0)

    # ------------------------------------------------------------------------------------ Link

    def send(self, *buffers: Buffer) -> None:
        """Queue frames; they leave together in the loop's next turn. On a closed link they are dropped."""
        if self.closed:
            return
        for buffer in buffers:
            self._out.append(buffer)
            self._out_bytes += len(buffer)
        if not self._flushing:
            self._flushing = True
            self._fabric.loop.call_soon(self._flush)

    def send_at_once(self, *buffers: Buffer) -> None:
        """Queue frames: here all leaves in the loop's next turn."""
        self.send(*buffers)

    def _flush(self) -> None:
        self._flushing = False
        if self._out and not self.closed:
            data = b"".join(self._out)
            self._out.clear()
            self._out_bytes = 0
            self.in_flight += len(data)
            self._fabric.transmit(self, data)

    async def drain(self) -> None:
        """Wait until the queue is below LOW_WATER_BYTES. Raises ConnectionClosedError."""
        if self.closed:
            raise ConnectionClosedError("the connection is closed", node=self._peer)
        if self.queued_bytes > LOW_WATER_BYTES:
            waiter: asyncio.Future[None] = self._fabric.loop.create_future()
            self._drainers.append(waiter)
            await waiter

    def pause_reading(self) -> None:
        """Keep what arrives in the inbox; the handler gets nothing more."""
        self._reading_paused = True

    def resume_reading(self) -> None:
        """Deliver the inbox in the loop's next turn, and what arrives from then on."""
        if self._reading_paused:
            self._reading_paused = False
            if self._inbox:
                self._fabric.loop.call_soon(self._read_inbox)

    def close(self) -> None:
        """Send what is queued, then end the connection orderly. Idempotent."""
        if not self.closed:
            self._flush()
            self._fabric.end(self, orderly=True)
            self.shut(None)

    # ------------------------------------------------------------------------------------ what the fabric does

    def arrive(self, data: bytes) -> None:
        """Take bytes for this end, in its process."""
        if self.closed:
            return
        if self._reading_paused or self._inbox:
            self._inbox.append(data)
        else:
            self._deliver(data)

    def _read_inbox(self) -> None:
        while self._inbox and not self._reading_paused and not self.closed:
            self._deliver(self._inbox.popleft())

    def _deliver(self, data: bytes) -> None:
        sender, handler = self.other, self.handler
        sender.taken(len(data))
        if handler is None:
            return
        view = memoryview(data)
        try:
            at = handler.recognise(view) if isinstance(handler, RecognisingHandler) else 0  # as the real one does
            while at < len(view) and not self.closed:
                end = at + LENGTH_BYTES + LENGTH.unpack_from(view, at)[0]
                handler.frame_received(view[at + LENGTH_BYTES : end])
                at = end
            if not self.closed:
                handler.batch_done()
        except Exception as error:  # the boundary, as in the real transport
            if not isinstance(error, ProtocolError):
                self._fabric.failures.append(f"a handler of {self.process.name} raised {error!r}")
            self._fabric.end(self, orderly=False)
            self.shut(error)

    def taken(self, size: int) -> None:
        """Note that the other end has read so much."""
        self.in_flight -= size
        if self._drainers and self.queued_bytes <= LOW_WATER_BYTES:
            waiters, self._drainers = self._drainers, []
            for waiter in waiters:
                if not waiter.done():
                    self._fabric.loop.call_soon(_resolve, waiter, context=self.process.context)

    def shut(self, error: Exception | None) -> None:
        """End this end; its handler hears of it, in its process."""
        if self.closed:
            return
        self.closed = True
        self._out.clear()
        self.held.clear()
        self._inbox.clear()
        self._fabric.links.pop(self, None)
        for waiter in self._drainers:
            if not waiter.done():
                waiter.set_exception(ConnectionClosedError("the connection was closed", node=self._peer))
        self._fabric.loop.call_soon(self._report_closed, error, context=self.process.context)

    def _report_closed(self, error: Exception | None) -> None:
        if self.handler is not None and not self._reported_closed:
            self._reported_closed = True
            self.handler.link_closed(error)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class SimulatedListener(Listener):
    """A process that takes connections at a port, until it is closed or killed."""

    def __init__(self, fabric: Fabric, process: Process, port: int, accept: Callable[[Link], FrameHandler]) -> None:
        self._fabric = fabric
        self._port = port
        self.process = process
        self.accept = accept

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._port

    async def close(self) -> None:
        """Stop accepting; accepted links live on."""
        if self._fabric.listeners.get((self.process.host, self._port)) is self:
            del self._fabric.listeners[(self.process.host, self._port)]

    def take(self, link: SimulatedLink) -> None:
        """Give a new connection its handler, in the listener's process."""
        try:
            link.handler = self.accept(link)
        except DistributedLogError:
            link.close()


class Fabric:
    """All hosts, connections and what is wrong between them."""

    def __init__(self, loop: SimulatedLoop, rng: Random) -> None:
        self.loop = loop
        self.rng = rng
        self.links: dict[SimulatedLink, None] = {}
        self.listeners: dict[tuple[str, int], SimulatedListener] = {}
        self.blocked: set[tuple[str, str]] = set()
        """(from, to): nothing passes."""
        self.slow: dict[tuple[str, str], float] = {}
        """(from, to): this many times slower."""
        self.latency_s = 0.001
        self.silent: set[str] = set()
        """Hosts without power."""
        self.corrupting: set[str] = set()
        self.corrupt: Callable[[bytes], bytes] = lambda data: data
        self.on_frame: FrameWatcher | None = None
        self.on_segment: Callable[[SimulatedLink, bytes], None] | None = None
        self.reached: Callable[[str], None] = lambda point: None
        self.failures: list[str] = []

    def _delay(self, source: str, target: str) -> float:
        return self.rng.uniform(0.2, 1.8) * self.latency_s * self.slow.get((source, target), 1.0)

    # ------------------------------------------------------------------------------------ bytes

    def transmit(self, link: SimulatedLink, data: bytes) -> None:
        """Send what an end flushed."""
        if self.on_segment is not None:
            self.on_segment(link, data)
        if self.on_frame is not None:
            at = 0
            while at < len(data):
                end = at + LENGTH_BYTES + LENGTH.unpack_from(data, at)[0]
                self.on_frame(link, data[at + LENGTH_BYTES : end])
                at = end
        if link.process.host in self.corrupting:
            data = self.corrupt(data)
        self._carry(link, data)

    def _carry(self, link: SimulatedLink, data: bytes) -> None:
        """Let bytes arrive later, in order; hold them where the way is blocked."""
        source, target = link.process.host, link.other.process.host
        # Behind what is held already, even where the way is open again: a connection delivers in order.
        if link.held or (source, target) in self.blocked:
            link.held.append(data)
            return
        when = max(self.loop.time() + self._delay(source, target), link.last_arrival + TICK_S)
        link.last_arrival = when
        self.loop.call_at(when, self._arrive, link, data, context=link.other.process.context)
        if link.other.process.dead:  # its context never runs: the hosts' kernels answer
            self.loop.call_at(when, self._arrive_at_dead, link, self.loop.time(), context=_NO_PROCESS)

    def _arrive(self, link: SimulatedLink, data: bytes) -> None:
        """Take bytes, in the receiving process."""
        # The way was blocked while this was under way: TCP sends it again later, so it is late and not lost.
        if (link.process.host, link.other.process.host) in self.blocked or link.held:
            link.held.append(data)
        else:
            link.other.arrive(data)

    def _arrive_at_dead(self, link: SimulatedLink, since: float) -> None:
        """Have the kernel of the other end's host reset the connection, once the host is up: the process there
        is dead.
        """
        if link.closed:
            return
        source, target = link.process.host, link.other.process.host
        reachable = (source, target) not in self.blocked and (target, source) not in self.blocked
        if reachable and target not in self.silent:
            behind = link.other.last_arrival + TICK_S  # what the dead process had sent comes before the reset
            if behind > self.loop.time():
                self.loop.call_at(behind, self._arrive_at_dead, link, since, context=_NO_PROCESS)
                return
            self.reached("net.half-open-reset")
            link.shut(ConnectionResetError("the peer knows nothing of this connection"))
        elif self.loop.time() - since > GIVE_UP_S:
            link.shut(TimeoutError("the peer is silent"))
        else:
            self.loop.call_later(RETRANSMIT_S, self._arrive_at_dead, link, since, context=_NO_PROCESS)

    def end(self, link: SimulatedLink, *, orderly: bool) -> None:
        """Close an end: the other one hears of it behind what was sent, or at once and instead of it."""
        other = link.other
        if other.closed:
            return
        source, target = link.process.host, other.process.host
        if link.held or (source, target) in self.blocked:
            # The end cannot be heard of: the other side sees silence, until its kernel gives up.
            self.loop.call_later(GIVE_UP_S, other.shut, TimeoutError("the peer is silent"), context=_NO_PROCESS)
            return
        if orderly:
            when = max(self.loop.time() + self._delay(source, target), link.last_arrival + TICK_S)
        else:
            # A reset overtakes what is under way: the kernel throws that away.
            when = self.loop.time() + self._delay(source, target)
        error = None if orderly else ConnectionResetError("reset by the peer")
        self.loop.call_at(when, other.shut, error, context=_NO_PROCESS)

    # ------------------------------------------------------------------------------------ connections

    async def connect(self, process: Process, host: str, port: int, handler: FrameHandler) -> SimulatedLink:
        """Return a connection, as soon as the way is open. The caller bounds the wait."""
        await asyncio.sleep(self._delay(process.host, host))
        while not self._open(process.host, host):  # noqa: ASYNC110  # as a kernel does, which sends again and again
            await asyncio.sleep(RETRANSMIT_S / 5)
        await asyncio.sleep(self._delay(host, process.host))
        listener = self.listeners.get((host, port))
        # After the waits: the process may have died while the handshake was on its way.
        if listener is None or listener.process.dead:
            raise ConnectionRefusedError(f"{host}:{port} refuses connections")
        near = SimulatedLink(self, process, f"{host}:{port}", client=True)
        far = SimulatedLink(self, listener.process, process.host, client=False)
        near.other, far.other = far, near
        near.handler = handler
        # Nothing of this connection may arrive before it is there.
        near.last_arrival = far.last_arrival = self.loop.time()
        self.links[near] = self.links[far] = None
        self.loop.call_soon(listener.take, far, context=listener.process.context)
        return near

    def _open(self, one: str, other: str) -> bool:
        """Return whether both directions pass, and the other host has power."""
        return (one, other) not in self.blocked and (other, one) not in self.blocked and other not in self.silent

    def listen(self, process: Process, port: int, accept: Callable[[Link], FrameHandler]) -> SimulatedListener:
        """Accept connections to a port of the process's host. Raises OSError where a living process has the port."""
        taken = self.listeners.get((process.host, port))
        if taken is not None and not taken.process.dead:
            raise OSError(98, "the address is in use", f"{process.host}:{port}")
        listener = self.listeners[(process.host, port)] = SimulatedListener(self, process, port, accept)
        return listener

    # ------------------------------------------------------------------------------------ faults

    def block(self, source: str, target: str) -> None:
        """Hold back what `source` sends to `target`, until `unblock`: nothing is lost, and no connection breaks."""
        self.blocked.add((source, target))

    def unblock(self, source: str, target: str) -> None:
        """Open a direction: what was held is sent again."""
        self.blocked.discard((source, target))
        for link in list(self.links):
            if link.process.host == source and link.other.process.host == target and link.held:
                held, link.held = link.held, deque()
                for data in held:
                    self._carry(link, data)

    def heal(self) -> None:
        """Let every host reach every other one, at full speed."""
        self.slow.clear()
        for source, target in sorted(self.blocked):
            self.unblock(source, target)
        self.corrupting.clear()

    def break_link(self, link: SimulatedLink, within: float = 3.0) -> None:
        """Break a connection: a prefix of what is under way still arrives, and each side hears in its own time.

        `within` is the longest such time, in latencies: with less than 0.2 nothing arrives that was sent just now.
        """
        for end in (link, link.other):
            if not end.closed:
                delay = self.rng.uniform(0, within) * self.latency_s
                error = ConnectionResetError("the connection broke")
                self.loop.call_later(delay, end.shut, error, context=_NO_PROCESS)

    def forget(self, process: Process, *, power: bool) -> None:
        """End the connections of a process that was killed, as its host's kernel does, unless the host lost its
        power.
        """
        for link in [link for link in self.links if link.process is process]:
            self.links.pop(link)
            link.closed = True
            self.loop.graveyard.append(link)
            if not power:
                self.end(link, orderly=self.rng.random() < 0.5)
            # Without power no kernel says goodbye: the peer's connection is half open until it sends something.
            elif not link.other.closed:
                self.reached("net.half-open")
                if link.other.in_flight or link.other.held:
                    self.loop.call_later(
                        RETRANSMIT_S, self._arrive_at_dead, link.other, self.loop.time(), context=_NO_PROCESS
                    )
        for key in [key for key, listener in self.listeners.items() if listener.process is process]:
            del self.listeners[key]


class SimulatedNetwork(Network):
    """The network as one process sees it."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric

    async def connect(self, host: str, port: int, handler: FrameHandler, *, timeout_ms: int) -> Link:
        """Connect within `timeout_ms` of virtual time. Raises BookieUnreachableError."""
        try:
            return await asyncio.wait_for(self._fabric.connect(_here(), host, port, handler), timeout_ms / 1000)
        except (OSError, asyncio.TimeoutError) as error:
            raise BookieUnreachableError(
                f"cannot connect to {host}:{port}: {error!r}", node=f"{host}:{port}"
            ) from error

    async def listen(self, host: str, port: int, accept: Callable[[Link], FrameHandler]) -> Listener:
        """Listen on the calling process's host; port 0 takes a free one."""
        return self._fabric.listen(_here(), port, accept)


def _here() -> Process:
    process = PROCESS.get()
    if process is None:
        raise RuntimeError("a network is used by processes only")
    return process
