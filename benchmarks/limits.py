"""The speed of the machine without us: the figures that ours are divided by.

* disk: three processes at once, each writing blocks over a file whose blocks were all written before, O_DIRECT where
  the file system takes it, fdatasync after every block. 4 KB blocks give the commit latency, 1 MB blocks the bandwidth.
* loopback bandwidth: one process sending blocks, one receiving into a buffer it uses again.
* no-disk round trip: a message to three processes that answer at once and keep nothing, until two answers are here,
  over the same transport as the storage nodes; what is left is sockets, event loops and the scheduler.
* memory: one warm copy.

Every process started here is a daemon of this one and ends before its function returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

from benchmarks.results import percentile
from dlspark.core.runtime import new_event_loop
from metadata.foundation.errors import check
from storage_node.edge import Link
from storage_node.protocol.frames import Buffer
from storage_node.transport.tcp import TcpNetwork

WRITERS = 3
FILE_BYTES = 128 << 20
COMMIT_BYTES = 4 << 10
STREAM_BYTES = 1 << 20
_processes = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class DiskFigures:
    """How fast was the disk for three writers at once?"""

    latencies_s: list[float]
    bytes_per_s: float

    @property
    def p50_us(self) -> float:
        """The median latency of a write and its sync, in microseconds."""
        return percentile(self.latencies_s, 0.5) * 1e6


class RawFiles:
    """The three files of the disk limits: written once in full, then over and over."""

    def __init__(self, directory: Path) -> None:
        self._paths = [directory / f"raw-{i}" for i in range(WRITERS)]
        for path in self._paths:
            _fill(path)

    def commits(self, seconds: float) -> DiskFigures:
        """Write 4 KB blocks, each made durable."""
        return self._run(COMMIT_BYTES, seconds)

    def stream(self, seconds: float) -> DiskFigures:
        """Write 1 MB blocks, each made durable."""
        return self._run(STREAM_BYTES, seconds)

    def _run(self, block: int, seconds: float) -> DiskFigures:
        barrier = _processes.Barrier(WRITERS)
        with contextlib.ExitStack() as stack:
            ends = [
                stack.enter_context(child_process(_write_blocks, str(path), block, seconds, barrier))
                for path in self._paths
            ]
            latencies = [end.recv() for end in ends]
        rate = sum(len(each) * block / sum(each) for each in latencies)
        return DiskFigures([latency for each in latencies for latency in each], rate)


def direct_io(directory: Path) -> bool:
    """Return whether the file system takes O_DIRECT."""
    path = directory / "probe"
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | _DIRECT))
    except OSError:
        return False
    finally:
        path.unlink(missing_ok=True)
    return bool(_DIRECT)


_DIRECT = getattr(os, "O_DIRECT", 0)


def _fill(path: Path) -> None:
    piece = os.urandom(STREAM_BYTES)
    with path.open("wb") as file:
        for _ in range(FILE_BYTES // STREAM_BYTES):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _write_blocks(end: Connection, path: str, block: int, seconds: float, barrier: Barrier) -> None:
    """Time, in a child, each write with its fdatasync, after a tenth of the time as warm-up."""
    try:
        fd = os.open(path, os.O_WRONLY | _DIRECT)
    except OSError:
        fd = os.open(path, os.O_WRONLY)
    buffer = mmap.mmap(-1, block)  # page-aligned, as O_DIRECT wants it
    buffer.write(os.urandom(block))
    latencies: list[float] = []
    offset = 0
    # All writers at once: the first would have the disk to itself for a while.
    barrier.wait()
    begin = time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds or not latencies:
        os.pwrite(fd, buffer, offset)
        os.fdatasync(fd)
        if now - begin > seconds / 10:
            latencies.append(time.perf_counter() - now)
        # Over blocks that were written before, as a journal's are: a file that grows has its length synced as well.
        offset = (offset + block) % FILE_BYTES
    os.close(fd)
    end.send(latencies)


def loopback_bytes_per_s(block: int, seconds: float) -> float:
    """Return the bytes per second from one process to another over TCP on 127.0.0.1, in blocks."""
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, child_process(_send_blocks, listener.getsockname()[1], block, seconds):
        peer, _ = listener.accept()
        with peer:
            buffer = memoryview(bytearray(block))
            begin = time.perf_counter()
            total = 0
            while received := peer.recv_into(buffer):
                total += received
            return total / (time.perf_counter() - begin)


def _send_blocks(_end: Connection, port: int, block: int, seconds: float) -> None:
    piece = bytes(block)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begin = time.perf_counter()
        sock.sendall(piece)
        while time.perf_counter() - begin < seconds:
            sock.sendall(piece)


def round_trips_us(payload_bytes: int, seconds: float) -> list[float]:
    """Return latencies, microseconds, of a message to three silent stores until two of them have answered."""
    with contextlib.ExitStack() as stack:
        ends = [stack.enter_context(child_process(_answer)) for _ in range(WRITERS)]
        ports = [end.recv() for end in ends]
        loop = new_event_loop()
        try:
            return loop.run_until_complete(_replicate(ports, payload_bytes, seconds))
        finally:
            loop.close()
            for end in ends:
                end.send(None)


class _Answers:
    """Client side: counts answers to the message under way."""

    def __init__(self) -> None:
        self.waiting: asyncio.Future[None] | None = None
        self.number = 0
        self.answered = 0

    def frame_received(self, frame: memoryview) -> None:
        if int.from_bytes(frame[:8], "big") != self.number:
            return  # the third answer to an earlier message
        self.answered += 1
        if self.answered == 2 and self.waiting is not None:
            self.waiting.set_result(None)

    def batch_done(self) -> None:
        return

    def link_closed(self, error: Exception | None) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(error or ConnectionError("a silent store went away"))


async def _replicate(ports: list[int], payload_bytes: int, seconds: float) -> list[float]:
    loop = asyncio.get_running_loop()
    network = TcpNetwork()
    answers = _Answers()
    links = [await network.connect("127.0.0.1", port, answers, timeout_ms=10_000) for port in ports]
    payload = os.urandom(payload_bytes)
    head = (8 + payload_bytes).to_bytes(4, "big")
    latencies: list[float] = []
    begin = time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds or not latencies:
        answers.number += 1
        answers.answered = 0
        answers.waiting = loop.create_future()
        for link in links:
            link.send(head, answers.number.to_bytes(8, "big"), payload)
        await answers.waiting
        if now - begin > seconds / 10:
            latencies.append((time.perf_counter() - now) * 1e6)
    answers.waiting = None
    for link in links:
        link.close()
    return latencies


class _Echo:
    """Server side: answers each message with its number."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def frame_received(self, frame: memoryview) -> None:
        number: Buffer = bytes(frame[:8])
        self._link.send(b"\0\0\0\x08", number)

    def batch_done(self) -> None:
        return

    def link_closed(self, error: Exception | None) -> None:
        return


def _answer(end: Connection) -> None:
    """Answer, in a child, until the parent says stop."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        listener = await TcpNetwork().listen("127.0.0.1", 0, _Echo)
        stopped = asyncio.Event()
        loop.add_reader(end.fileno(), stopped.set)
        end.send(listener.port)
        await stopped.wait()
        loop.remove_reader(end.fileno())
        await listener.close()

    loop = new_event_loop()
    loop.run_until_complete(serve())
    loop.close()


def memory_bytes_per_s(size: int, seconds: float) -> float:
    """Return the speed of one warm copy of `size` bytes, over and over."""
    source, target = memoryview(bytearray(os.urandom(size))), memoryview(bytearray(size))
    copies = 0
    begin = time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds or not copies:
        # Many copies a look at the clock, which costs as much as a small one.
        for _ in range(20):
            target[:] = source
        copies += 20
    return copies * size / elapsed


@contextlib.contextmanager
def child_process(target: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Start a process running `target(connection, *arguments)`; it has ended when the block is left."""
    ours, theirs = _processes.Pipe()
    process = _processes.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    # Ours of it: an end that this process held open would hide that the child has ended.
    theirs.close()
    try:
        yield ours
        process.join(30)
        check(process.exitcode == 0, f"{target.__name__} ended with status {process.exitcode}")
    finally:
        if process.is_alive():
            process.kill()
            process.join()
        ours.close()
