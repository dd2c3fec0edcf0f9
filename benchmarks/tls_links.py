"""TLS by itself, without a storage node: what our links carry, what event loops' own TLS carries, what OpenSSL costs.

An echo is two processes: this one sends blocks of 256 KB, so many under way, the other one sends each of them back.
Both have the same certificates of either side, and the same versions and ciphers, whoever makes TLS of them.

    ours        `TcpLink`, frames of one block, under TLS or plain, over the product's loop
    asyncio's   `asyncio.SelectorEventLoop` with its own TLS and a protocol, which knows no frames
    uvloop's    the same over uvloop, where the product's loop is that one

A handshake without sockets: both halves in this process's memory, TLS 1.3, both certificates shown and verified.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, cast

from benchmarks.limits import child_process
from dlspark.core.runtime import new_event_loop
from metadata.foundation.errors import check
from metadata.security.identity import TlsFiles, TlsIdentity
from storage_node.edge import Link
from storage_node.transport.tcp import TcpNetwork
from storage_node.transport.tls import TlsEntrance, connect_secured

HOST: Final = "127.0.0.1"
BLOCK_BYTES: Final = 256 << 10
BLOCKS_UNDER_WAY: Final = 8
WARM_UP: Final = 0.2
"""Share of a window that is not counted."""
CONNECT_MS: Final = 10_000
LEAST_HANDSHAKES: Final = 20
OURS_TLS: Final = "ours, TLS"
OURS_PLAIN: Final = "ours, plain"
ASYNCIO_TLS: Final = "asyncio's TLS"
UVLOOP_TLS: Final = "uvloop's TLS"


@dataclass(frozen=True, slots=True)
class EchoFigures:
    """What did an echo carry? Each byte counts once, though it goes there and back."""

    bytes_per_s: float
    cpu_s_per_gb: float
    """Processor time of both processes."""


def kinds() -> tuple[str, ...]:
    """Return the echoes that can be measured here: uvloop's where it is installed."""
    loop = new_event_loop()
    loop.close()
    ours = (OURS_PLAIN, OURS_TLS, ASYNCIO_TLS)
    return ours if isinstance(loop, asyncio.SelectorEventLoop) else (*ours, UVLOOP_TLS)


def echoes(kinds: Sequence[str], folder: Path, seconds: float) -> list[EchoFigures]:
    """Measure echoes between this process and a child, in turn, with the certificates of an identity folder."""
    found = []
    with child_process(_answer_in_turn, str(folder)) as end:
        for kind in kinds:
            end.send(kind)
            port = end.recv()
            pump = _Pump(seconds)
            begin = time.process_time()
            _run(kind, partial(_send_blocks, kind, str(folder), port, pump))
            own = time.process_time() - begin
            end.send("stop")
            cpu = own + float(end.recv())
            found.append(EchoFigures(pump.counted / pump.took_s, cpu / (pump.total / 1e9)))
        end.send(None)
    return found


def handshake_times_s(folder: Path, seconds: float) -> tuple[float, float]:
    """Return the mean seconds of a handshake in memory: the processor's for the server's half; the clock's for both."""
    identity = TlsIdentity(TlsFiles.of_folder(folder))
    server_s = both_s = 0.0
    count = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or count < LEAST_HANDSHAKES:
        server, both = _handshake(identity)
        server_s += server
        both_s += both
        count += 1
    return server_s / count, both_s / count


def _handshake(identity: TlsIdentity) -> tuple[float, float]:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = identity.server_context().wrap_bio(to_server, to_client, server_side=True)
    client = identity.client_context().wrap_bio(to_client, to_server, server_hostname=HOST)
    server_s, begin = 0.0, time.perf_counter()
    done = False
    while not done:
        client_done = _step(client)
        at = time.thread_time()
        done = _step(server) and client_done
        server_s += time.thread_time() - at
    return server_s, time.perf_counter() - begin


def _step(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


# ------------------------------------------------------------------------------------ both sides


def _run(kind: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = asyncio.SelectorEventLoop() if kind == ASYNCIO_TLS else new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(main())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class _Pump:
    """How much has come back, until the time is up? The first part of it does not count."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._counts_from = self._until = self._began = 0.0
        self.total = self.counted = 0
        self.took_s = 0.0

    def begin(self) -> None:
        """Start the clock."""
        self._began = time.perf_counter()
        self._counts_from = self._began + WARM_UP * self._seconds
        self._until = self._counts_from + self._seconds

    def came(self, size: int) -> bool:
        """Count bytes that came back; whether more are to be sent."""
        now = time.perf_counter()
        self.total += size
        if now >= self._counts_from:
            self.counted += size
            self.took_s = now - self._counts_from
        return now < self._until


# ------------------------------------------------------------------------------------ the client


async def _send_blocks(kind: str, folder: str, port: int, pump: _Pump) -> None:
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    context = TlsIdentity(TlsFiles.of_folder(folder)).client_context()
    if kind in (OURS_PLAIN, OURS_TLS):
        await _send_frames(context if kind == OURS_TLS else None, port, pump, ended)
        return
    transport, sender = await asyncio.get_running_loop().create_connection(
        lambda: _StreamSender(pump, ended), HOST, port, ssl=context, server_hostname=HOST
    )
    pump.begin()
    sender.begin()
    await ended
    transport.abort()


async def _send_frames(context: ssl.SSLContext | None, port: int, pump: _Pump, ended: asyncio.Future[None]) -> None:
    sender = _FrameSender(pump, ended)
    network = TcpNetwork()
    link: Link
    if context is None:
        link = await network.connect(HOST, port, sender, timeout_ms=CONNECT_MS)
    else:
        link = await connect_secured(network, HOST, port, sender, timeout_ms=CONNECT_MS, context=context)
    pump.begin()
    sender.begin(link)
    await ended
    link.close()


class _FrameSender:
    """Sends a frame for each one that comes back."""

    def __init__(self, pump: _Pump, ended: asyncio.Future[None]) -> None:
        self._pump = pump
        self._ended = ended
        self._head = BLOCK_BYTES.to_bytes(4, "big")
        self._block = os.urandom(BLOCK_BYTES)
        self._link: Link | None = None

    def begin(self, link: Link) -> None:
        """Send the first ones."""
        self._link = link
        for _ in range(BLOCKS_UNDER_WAY):
            link.send(self._head, self._block)

    def frame_received(self, frame: memoryview) -> None:
        """Send the next one."""
        if self._pump.came(len(frame)):
            if self._link is not None:
                self._link.send(self._head, self._block)
        elif not self._ended.done():
            self._ended.set_result(None)

    def batch_done(self) -> None:
        """Do nothing."""

    def link_closed(self, error: Exception | None) -> None:
        """Fail, unless the time is up."""
        if not self._ended.done():
            self._ended.set_exception(error or ConnectionError("the echo went away"))


class _StreamSender(asyncio.Protocol):
    """The same without frames: sends a block for so many bytes that came back."""

    def __init__(self, pump: _Pump, ended: asyncio.Future[None]) -> None:
        self._pump = pump
        self._ended = ended
        self._block = os.urandom(BLOCK_BYTES)
        self._transport: asyncio.Transport | None = None
        self._waiting = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def begin(self) -> None:
        """Send the first ones."""
        assert self._transport is not None
        for _ in range(BLOCKS_UNDER_WAY):
            self._transport.write(self._block)

    def data_received(self, data: bytes) -> None:
        """Send the next ones."""
        assert self._transport is not None
        going = self._pump.came(len(data))
        self._waiting += len(data)
        while going and self._waiting >= BLOCK_BYTES:
            self._waiting -= BLOCK_BYTES
            self._transport.write(self._block)
        if not going and not self._ended.done():
            self._ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail, unless the time is up."""
        if not self._ended.done():
            self._ended.set_exception(exc or ConnectionError("the echo went away"))


# ------------------------------------------------------------------------------------ the child


def _answer_in_turn(end: Connection, folder: str) -> None:
    """Serve, in a child, one echo after the other: send back whatever comes until the parent says stop, then tell the
    processor time of it.
    """
    while (kind := end.recv()) is not None:
        _run(kind, partial(_serve, end, kind, folder))
        os.set_blocking(end.fileno(), True)  # a loop that has watched it leaves it otherwise


async def _serve(end: Connection, kind: str, folder: str) -> None:
    loop = asyncio.get_running_loop()
    identity = TlsIdentity(TlsFiles.of_folder(folder))
    stopped = asyncio.Event()
    loop.add_reader(end.fileno(), stopped.set)
    if kind in (OURS_PLAIN, OURS_TLS):
        tls = TlsEntrance(identity.server_context) if kind == OURS_TLS else None
        listener = await TcpNetwork().listen(HOST, 0, _FrameEcho, tls=tls)
        end.send(listener.port)
        close = listener.close
    else:
        server = await loop.create_server(_StreamEcho, HOST, 0, ssl=identity.server_context())
        end.send(server.sockets[0].getsockname()[1])

        async def close() -> None:
            server.close()

    began = time.process_time()
    await stopped.wait()
    loop.remove_reader(end.fileno())
    check(end.recv() == "stop", "the run has ended")
    end.send(time.process_time() - began)
    await close()


class _FrameEcho:
    """Sends each frame back as it lies in memory."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def frame_received(self, frame: memoryview) -> None:
        """Send it back."""
        self._link.send(len(frame).to_bytes(4, "big"), frame)

    def batch_done(self) -> None:
        """Do nothing."""

    def link_closed(self, error: Exception | None) -> None:
        """Do nothing: there are others."""


class _StreamEcho(asyncio.Protocol):
    """Sends each piece back as it comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        """Send it back."""
        self._transport.write(data)
