"""`Gateways`: one for each region of a sandbox, through which its processes reach the other regions (a process).

A gateway is a SOCKS proxy of version 4 on its region's own address. Whatever asks it for a host of another region gets
a connection whose two directions each pass a `Way` with its delay, jitter and cut. So nothing about the servers is
changed, no address is mapped, and no right is needed: our own programs take the gateway from `DLSPARK_SOCKS`, and a
Java server (ZooKeeper's, among themselves) from `socksProxyHost`, which its JDK obeys for every socket that it opens.
Network namespaces would need root, and a relay in front of each port could not know from which region a connection
comes: ZooKeeper's servers tell one another the address that they listen at.

The answer to a connection attempt takes a round trip, and does not come while a direction is cut: as with a real
network that drops packets. A connection's end and its reset take the way of its bytes, and wait behind a cut as well.

    python -m dlspark.sandbox.gateways    the first line of standard input says the regions; prints "ready"; each
                                          further line replaces ways, and "ok" answers it once that holds, or asks
                                          what was carried (`CARRIED_LINE`), and is answered; ends with its standard
                                          input
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import select
import selectors
import signal
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

from dlspark.sandbox.delay_line import CAPACITY_BYTES, DelayLine, Way
from metadata.foundation.socks import ANSWER, CONNECT, GRANTED, REFUSED, REQUEST_HEAD, VERSION
from metadata.foundation.tasks import end_tasks

CHUNK_BYTES: Final = 128 << 10
GIVEN_UP_CHECK_S: Final = 1.0
"""How often it is looked whether the client of an unanswered attempt is still there: until a cut is healed the attempts
of an hour would otherwise hold two sockets each."""
CARRIED_LINE: Final = json.dumps("carried")
_LONGEST_NAME: Final = 512
_NOTHING: Final = b"\0\0\0\0"


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """Where does a region's gateway listen? On the address that all of the region's servers have, too."""

    region: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Carried:
    """How many bytes did one region send another one over connections to a server, in whichever of the two it is?"""

    source: str
    target: str
    server: str
    """Its `host:port`."""
    count: int


class Gateways:
    """The gateways of all regions, on one loop.

    Args:
        addresses: one for each region.
        ways: of every ordered pair; within a region, and where a pair is left out, nothing is delayed or cut.
        capacity_bytes: of each direction of each connection.
        seed: of the jitter.
    """

    def __init__(
        self,
        addresses: Sequence[GatewayAddress],
        ways: Iterable[Way] = (),
        *,
        capacity_bytes: int = CAPACITY_BYTES,
        seed: int | None = None,
    ) -> None:
        self._addresses = addresses
        self._region_of = {address.host: address.region for address in addresses}
        self._ways: dict[tuple[str, str], Way] = {}
        self._capacity = capacity_bytes
        self._rng = random.Random(seed)
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._carried: Counter[tuple[str, str, str]] = Counter()
        self.replace_ways(ways)

    @property
    def connections(self) -> int:
        """How many are open, or being made."""
        return len(self._connections)

    async def start(self) -> None:
        """Listen. Raises OSError; then nothing listens."""
        try:
            for address in self._addresses:
                server = await asyncio.start_server(
                    partial(self._accept, address.region),
                    address.host,
                    address.port,
                    limit=CHUNK_BYTES,
                )
                self._servers.append(server)
        except OSError:
            await self.close()
            raise

    def ports(self) -> list[int]:
        """Return the ports on which the gateways listen, in the order of their addresses."""
        return [server.sockets[0].getsockname()[1] for server in self._servers]

    async def close(self) -> None:
        """Listen no more, and end all connections. Idempotent."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        await end_tasks(self._connections)

    def replace_ways(self, ways: Iterable[Way]) -> None:
        """Set the ways of some pairs. What is under way already keeps its delay, and waits where a way is closed
        now."""
        for way in ways:
            self._ways[way.source, way.target] = way
        self._changed.set()
        self._changed = asyncio.Event()

    def way(self, source: str, target: str) -> Way:
        """Return how the one region reaches the other now."""
        return self._ways.get((source, target)) or Way(source, target)

    async def until_open(self, source: str, target: str) -> None:
        """Wait until that way is open."""
        while not self.way(source, target).opened:
            await self._changed.wait()

    def passage_s(self, source: str, target: str) -> float:
        """Return how long what goes now takes."""
        return self.way(source, target).passage_s(self._rng)

    def count(self, source: str, target: str, server: str, size: int) -> None:
        """Note that bytes were sent from one region to another; within a region nothing is noted."""
        if source != target:
            self._carried[source, target, server] += size

    def carried(self) -> list[Carried]:
        """Return what was sent between regions since the start, for each direction and server. What the gateways say to
        their clients is not counted, nor what the network below adds (heads of packets)."""
        return [Carried(*key, count) for key, count in sorted(self._carried.items())]

    # ------------------------------------------------------------------------------------ one connection

    def _accept(self, region: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(region, reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, region: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far: asyncio.StreamWriter | None = None
        try:
            asked = await _read_request(reader)
            if asked is None:
                return
            host, port = asked
            there = self._region_of.get(host, region)
            await asyncio.sleep(self.passage_s(region, there))
            while not self.way(region, there).opened:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.until_open(region, there), GIVEN_UP_CHECK_S)
                if _given_up(reader):
                    return
            try:
                far_reader, far = await asyncio.open_connection(host, port, limit=CHUNK_BYTES)
            except OSError:
                back = _Direction(self, there, region, writer, self._capacity)
                back.put(ANSWER.pack(0, REFUSED, 0, _NOTHING))
                back.put(b"")
                await back.give()
                return
            server = f"{host}:{port}"
            out = _Direction(self, region, there, far, self._capacity, server)
            back = _Direction(self, there, region, writer, self._capacity, server)
            back.put(ANSWER.pack(0, GRANTED, 0, _NOTHING))
            await _all(out.take(reader), out.give(), back.take(far_reader), back.give(), back.until_answered(reader))
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # gone before there was anything to carry, or it speaks something else
        finally:
            for end in (writer, far):
                if end is not None:
                    end.transport.abort()  # all has been given by then, or there is no one to take it


class _Direction:
    """One direction of one connection."""

    def __init__(
        self,
        gateways: Gateways,
        source: str,
        target: str,
        writer: asyncio.StreamWriter,
        capacity_bytes: int,
        server: str = "",
    ) -> None:
        self._gateways = gateways
        self._server = server
        self._ends = source, target
        self._writer = writer
        writer.transport.set_write_buffer_limits(high=0)  # `drain` returns when the socket has it all
        self._line = DelayLine(capacity_bytes)
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        """Set when a chunk went in or out."""
        self._given = asyncio.Event()
        """Set when the first one went out."""

    def put(self, chunk: bytes | None) -> None:
        """Let a chunk go in now."""
        self._line.put(chunk, self._loop.time(), self._gateways.passage_s(*self._ends))
        self._moved.set()

    async def take(self, reader: asyncio.StreamReader) -> None:
        """Let in what comes, up to its end."""
        while True:
            while not self._line.has_room:
                await self._wait()
            try:
                chunk: bytes | None = await reader.read(CHUNK_BYTES)
            except OSError:
                chunk = None
            if chunk:
                self._gateways.count(*self._ends, self._server, len(chunk))
            self.put(chunk)
            if not chunk:
                return

    async def give(self) -> None:
        """Let out what is due, up to the end of the connection.

        Where the receiver has gone, the sender hears of it by the other direction, after its delay; until then what
        it sends is dropped here.
        """
        gone = False
        while True:
            chunk = await self._next()
            if gone and chunk:
                continue
            if chunk is None:
                _reset(self._writer)
                return
            try:
                if chunk:
                    self._writer.write(chunk)
                elif not gone and self._writer.can_write_eof():
                    self._writer.write_eof()  # half a close: the other direction may go on
                await self._writer.drain()
            except OSError:
                gone = True
            if not chunk:
                return

    async def _next(self) -> bytes | None:
        """Return the next chunk once it is due and its way is open."""
        while (due := self._line.next_due()) is None:
            await self._wait()
        left = due - self._loop.time()
        if left > 0:
            await asyncio.sleep(left)
        await self._gateways.until_open(*self._ends)
        chunk = self._line.take()
        self._moved.set()
        self._given.set()
        return chunk

    async def until_answered(self, reader: asyncio.StreamReader) -> None:
        """Wait until the answer has gone out. Raises ConnectionAbortedError where the client, from whom `reader` reads,
        has given up before: it has no connection yet of which this could be a half."""
        while not self._given.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._given.wait(), GIVEN_UP_CHECK_S)
                return
            if _given_up(reader):
                raise ConnectionAbortedError

    async def _wait(self) -> None:
        self._moved.clear()
        await self._moved.wait()


if sys.platform == "linux":

    class _PreciseSelector(selectors.EpollSelector):
        """Wakes up when a timer is due, and not up to a millisecond later: epoll counts whole ones, and a round trip
        through a gateway waits for two timers."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0:
                # The epoll's own descriptor is readable when one of those in it is ready.
                select.select([self.fileno()], (), (), timeout)
                timeout = 0
            return super().select(timeout)

    def new_gateway_loop() -> asyncio.AbstractEventLoop:
        """Return a loop whose timers are as exact as the system's."""
        return asyncio.SelectorEventLoop(_PreciseSelector())

else:  # kqueue, elsewhere, counts nanoseconds

    def new_gateway_loop() -> asyncio.AbstractEventLoop:
        """Return a loop whose timers are as exact as the system's."""
        return asyncio.SelectorEventLoop()


async def _all(*parts: Coroutine[object, object, None]) -> None:
    """Run them all; where one fails the others are ended, and its error is raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        await end_tasks(tasks)


def _given_up(reader: asyncio.StreamReader) -> bool:
    """Return whether a client has ended its connection."""
    return reader.at_eof() or reader.exception() is not None


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as it ended on the other side: by a reset."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, int] | None:
    """Return the host and port that are asked for; None for what is no request of version 4 by address."""
    head = await reader.readexactly(REQUEST_HEAD.size)
    version, command, port, packed = REQUEST_HEAD.unpack(head)
    user = await reader.readuntil(b"\0")
    if version != VERSION or command != CONNECT or len(user) > _LONGEST_NAME or packed[:3] == b"\0\0\0":
        return None
    return ".".join(map(str, packed)), port


# ------------------------------------------------------------------------------------ the process


def encode_start(addresses: Sequence[GatewayAddress], ways: Iterable[Way]) -> str:
    """Return the first line of a gateways' process."""
    return json.dumps({"gateways": [asdict(a) for a in addresses], "ways": [asdict(way) for way in ways]})


def encode_ways(ways: Iterable[Way]) -> str:
    """Return a further line, which replaces ways."""
    return json.dumps([asdict(way) for way in ways])


def main() -> int:
    """Run until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the sandbox, which ends this after the others
    first = json.loads(sys.stdin.readline())
    addresses = [GatewayAddress(**address) for address in first["gateways"]]
    with contextlib.suppress(KeyboardInterrupt):
        loop = new_gateway_loop()
        try:
            loop.run_until_complete(_run(addresses, [Way(**way) for way in first["ways"]]))
        finally:
            loop.close()
    return 0


async def _run(addresses: Sequence[GatewayAddress], ways: Sequence[Way]) -> None:
    gateways = Gateways(addresses, ways)
    await gateways.start()
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, name="commands", daemon=True).start()
    while line := await lines.get():
        asked = json.loads(line)
        if asked == json.loads(CARRIED_LINE):
            print(json.dumps([asdict(one) for one in gateways.carried()]), flush=True)
            continue
        gateways.replace_ways(Way(**way) for way in asked)
        print("ok", flush=True)
    await gateways.close()


if __name__ == "__main__":
    sys.exit(main())
