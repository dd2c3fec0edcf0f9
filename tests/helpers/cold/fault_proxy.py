"""A proxy between a client of an object store and its server, which disturbs requests: ordered by a test, or by a seed.

It speaks HTTP/1.1, one request a connection, and forwards what it gets as it is (signatures cover the host's name, so
that is not changed). What a fault does is in `HttpFault`. It runs on a loop of its own, in a thread: tests may block.
"""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

MAX_HEAD_BYTES: Final = 64 << 10
DELAY_S: Final = 0.05
LATE_REQUESTS: Final = 3
"""A late request reaches the server with the third one that follows it, or when the proxy is told to `settle`."""


class HttpFault(str, Enum):
    """What becomes of a request?"""

    DELAY = "delayed, then answered"
    CUT_BEFORE = "the connection ends; the server never gets it"
    CUT_AFTER = "the server does it; the connection ends without an answer"
    CUT_IN_ANSWER = "the server does it; the connection ends in the middle of the answer"
    LATE = "the connection ends; the server gets it some requests later"
    REFUSED_500 = "answered 500; the server never gets it"
    REFUSED_502 = "answered 502; the server never gets it"
    REFUSED_503 = "answered 503; the server never gets it"
    REFUSED_504 = "answered 504; the server never gets it"
    DONE_500 = "the server does it; answered 500"
    DONE_502 = "the server does it; answered 502"
    DONE_503 = "the server does it; answered 503"
    DONE_504 = "the server does it; answered 504"

    @property
    def status(self) -> int | None:
        """The status that is answered in place of the server's."""
        number = self.name.rpartition("_")[2]
        return int(number) if number.isdigit() else None

    @property
    def is_done(self) -> bool:
        """Whether the server has done it when the client hears of it."""
        return self in (HttpFault.DELAY, HttpFault.CUT_AFTER, HttpFault.CUT_IN_ANSWER) or self.name.startswith("DONE")


@dataclass
class FaultPlan:
    """Which requests meet which faults?

    Args:
        rng: draws; a seeded one replays, as far as requests come in the same order.
        rates: how often a fault comes, of 1.
        only: a request's line (`PUT /bucket/key?...`) has to contain this pattern to meet a drawn fault.
        unknown: a header that the server is to know nothing of, in lower case; for servers that check no signatures.
    """

    rng: random.Random = field(default_factory=lambda: random.Random(0))
    rates: Mapping[HttpFault, float] = field(default_factory=dict)
    only: str = ""
    unknown: bytes = b""
    ordered: list[tuple[str, HttpFault]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """The lines of all requests so far."""
    met: Counter[HttpFault] = field(default_factory=Counter)
    """How often each fault was met."""

    def order(self, pattern: str, *faults: HttpFault) -> None:
        """Have the next requests whose lines contain a pattern meet these faults, one each."""
        self.ordered += [(pattern, fault) for fault in faults]

    def stop(self) -> None:
        """Let everything through from now on."""
        self.rates = {}
        self.ordered.clear()

    def draw(self, line: str) -> HttpFault | None:
        """Return what a request meets."""
        self.requests.append(line)
        fault = self._drawn(line)
        if fault is not None:
            self.met[fault] += 1
        return fault

    def _drawn(self, line: str) -> HttpFault | None:
        for index, (pattern, fault) in enumerate(self.ordered):
            if re.search(pattern, line):
                del self.ordered[index]
                return fault
        if re.search(self.only, line):
            for fault, rate in self.rates.items():
                if self.rng.random() < rate:
                    return fault
        return None


@dataclass(frozen=True)
class _Request:
    line: str
    data: bytes


class FaultProxy:
    """How does a store look through a bad network?

    Args:
        upstream: the server's endpoint, `http://host:port`.
        plan: what goes wrong.
    """

    def __init__(self, upstream: str, plan: FaultPlan) -> None:
        parts = urlsplit(upstream)
        self.plan = plan
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._server: asyncio.Server | None = None
        self._late: list[tuple[int, _Request]] = []
        self._count = 0
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=MAX_HEAD_BYTES)

    @property
    def endpoint(self) -> str:
        """What a client takes for the server."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Listen no more, and break off what is under way; what is late is lost."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def settle(self) -> None:
        """Have everything that is late reach the server now."""
        late, self._late = self._late, []
        for _, request in late:
            await self._forward(request)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            request = await _read_request(reader, writer)
            if request is not None:
                await self._serve(request, writer)
        except (OSError, EOFError):
            pass  # the client has gone, or the server: the connection ends, which is what the client hears
        except asyncio.CancelledError:
            pass  # `stop`: nobody waits for this task but that, and asyncio would report a cancelled one as a failure
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, request: _Request, writer: asyncio.StreamWriter) -> None:
        fault = self.plan.draw(request.line)
        self._count += 1
        due = [late for when, late in self._late if when <= self._count]
        self._late = [one for one in self._late if one[0] > self._count]
        for late in due:
            await self._forward(late)
        if fault is HttpFault.LATE:
            self._late.append((self._count + LATE_REQUESTS, request))
            return
        if fault is HttpFault.DELAY:
            await asyncio.sleep(DELAY_S)
        answer = b""
        if fault is None or fault.is_done:
            answer = await self._forward(request)
        if fault in (HttpFault.CUT_BEFORE, HttpFault.CUT_AFTER):
            return
        if fault is not None and fault.status is not None:
            answer = b"HTTP/1.1 %d Disturbed\r\nContent-Length: 0\r\n\r\n" % fault.status
        answer = _with_close(answer)
        writer.write(answer[: len(answer) - len(answer) // 3] if fault is HttpFault.CUT_IN_ANSWER else answer)
        await writer.drain()

    async def _forward(self, request: _Request) -> bytes:
        """Have the server do a request; return its whole answer."""
        reader, writer = await asyncio.open_connection(*self._upstream)
        try:
            writer.write(_with_close(request.data, self.plan.unknown))
            await writer.drain()
            return await reader.read(-1)
        finally:
            writer.close()


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Request | None:
    """Return a request with its whole body; None where the client closes without one."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    lines = head[:-4].split(b"\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
    if headers.get(b"expect", b"").lower() == b"100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        lines = [line for line in lines if not line.lower().startswith(b"expect:")]
    body = b""
    if b"content-length" in headers:
        body = await reader.readexactly(int(headers[b"content-length"]))
    elif headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        body = await _read_chunks(reader)
    return _Request(lines[0].rpartition(b" ")[0].decode("ascii"), b"\r\n".join(lines) + b"\r\n\r\n" + body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    """Return a chunked body as it is."""
    parts = []
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.partition(b";")[0], 16)
        parts += [line, await reader.readexactly(size + 2)]
        if not size:
            return b"".join(parts)


def _with_close(message: bytes, unknown: bytes = b"") -> bytes:
    """Return a request or an answer that says that the connection ends behind it, and lacks a header."""
    head, separator, body = message.partition(b"\r\n\r\n")
    left_out = (b"connection:", b"keep-alive:", *([unknown + b":"] if unknown else []))
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(left_out)]
    return b"\r\n".join([*lines, b"Connection: close"]) + separator + body if separator else message


@dataclass(frozen=True)
class RunningProxy:
    """A proxy that runs in a thread."""

    proxy: FaultProxy
    loop: asyncio.AbstractEventLoop

    @property
    def plan(self) -> FaultPlan:
        """What goes wrong."""
        return self.proxy.plan

    @property
    def endpoint(self) -> str:
        """What a client takes for the server."""
        return self.proxy.endpoint

    def settle(self) -> None:
        """Have everything that is late reach the server now."""
        asyncio.run_coroutine_threadsafe(self.proxy.settle(), self.loop).result()


@contextmanager
def running_proxy(upstream: str, plan: FaultPlan | None = None) -> Iterator[RunningProxy]:
    """Run a proxy before a server for the length of a block."""
    proxy = FaultProxy(upstream, plan or FaultPlan())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fault-proxy", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(proxy.start(), loop).result()
        yield RunningProxy(proxy, loop)
        asyncio.run_coroutine_threadsafe(proxy.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
