"""`ForwardedNetwork`: hosts on loopback addresses of their own, and between every two a forwarder that can fail.

Works anywhere on Linux, without root. To reach another host a process dials a forwarder, one for each (dialling host,
host, port); it passes bytes on in both directions, each behind a gate. A closed gate is what a lost direction is to
TCP: nothing passes, nothing is said, and what was sent arrives once the gate opens, because TCP sends again. So a
connection is half-open while its peer's end, even its peer's death, waits behind the gate.

Not like a real network: dialling a cut-off host succeeds, and only then is nothing heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Coroutine, Sequence
from typing import Final, Protocol

from helpers.security.secured_runs import FIRST_HOST, NETWORKS, is_secured
from metadata.foundation.errors import CallerError
from metadata.foundation.tasks import end_tasks

CHUNK_BYTES: Final = 64 * 1024
_CALL_TIMEOUT_S: Final = 60.0


class FaultNetwork(Protocol):
    """A network of named hosts in which every direction between two of them can be blocked."""

    kind: str
    """What it is made of, for people."""
    can_delay: bool

    def address(self, host: str) -> str:
        """Return the address on which a host's servers listen."""
        ...

    def dial(self, source: str, target: str, port: int) -> tuple[str, int]:
        """Return what `source` must dial to reach a port of `target`."""
        ...

    def join(self, host: str) -> int | None:
        """Return what to give `ForkServer.spawn` so that a process runs on this host."""
        ...

    def block(self, source: str, target: str) -> None:
        """Let nothing from `source` reach `target` from now on; the other direction is not touched."""
        ...

    def unblock(self, source: str, target: str) -> None:
        """Let a direction pass again: what was sent meanwhile arrives, where the network kept it."""
        ...

    def delay(self, source: str, target: str, seconds: float) -> None:
        """Let everything from `source` reach `target` so much later from now on (0: at once). See `can_delay`."""
        ...

    def close(self) -> None:
        """Take the network down, with every fault in it. Idempotent."""
        ...


class ForwardedNetwork:
    """The forwarders run in one thread of this process, and end with it."""

    kind = "loopback addresses and forwarders"
    can_delay = True

    def __init__(self, hosts: Sequence[str]) -> None:
        # Drawn, so that two networks on one machine do not meet: servers of both use the same ports.
        drawn = random.SystemRandom()
        prefix = drawn.choice(NETWORKS) if is_secured() else f"127.{drawn.randint(1, 254)}.{drawn.randint(1, 254)}"
        self._addresses = {host: f"{prefix}.{FIRST_HOST + index}" for index, host in enumerate(hosts)}
        self._ways: dict[tuple[str, str], _Way] = {}
        self._forwarders: dict[tuple[str, str, int], _Forwarder] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="forwarders", daemon=True)
        self._thread.start()

    def address(self, host: str) -> str:
        try:
            return self._addresses[host]
        except KeyError:
            raise CallerError(f"there is no host {host}") from None

    def dial(self, source: str, target: str, port: int) -> tuple[str, int]:
        key = (source, target, port)
        if key not in self._forwarders:
            there, back = self._way(source, target), self._way(target, source)
            forwarder = _Forwarder((self.address(target), port), there, back)
            self._call(forwarder.start(self.address(source)))
            self._forwarders[key] = forwarder
        return self.address(source), self._forwarders[key].port

    def join(self, host: str) -> int | None:
        return None

    def block(self, source: str, target: str) -> None:
        self._loop.call_soon_threadsafe(self._way(source, target).open.clear)

    def unblock(self, source: str, target: str) -> None:
        self._loop.call_soon_threadsafe(self._way(source, target).open.set)

    def delay(self, source: str, target: str, seconds: float) -> None:
        self._way(source, target).delay_s = seconds

    def close(self) -> None:
        """End every connection and the thread. Idempotent."""
        if self._loop.is_closed():
            return
        for forwarder in self._forwarders.values():
            self._call(forwarder.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _way(self, source: str, target: str) -> _Way:
        if (source, target) not in self._ways:
            self._ways[source, target] = _Way()
        return self._ways[source, target]

    def _call(self, work: Coroutine[object, object, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_TIMEOUT_S)


class _Way:
    """One direction between two hosts."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.delay_s = 0.0


class _Forwarder:
    """Listens for one host's connections to a port of another, and passes them on."""

    def __init__(self, target: tuple[str, int], there: _Way, back: _Way) -> None:
        self._target = target
        self._there = there
        self._back = back
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self, address: str) -> None:
        self._server = await asyncio.start_server(self._accept, address, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for _ in range(4):  # what was accepted just before begins some turns of the loop later
            await asyncio.sleep(0)
        await end_tasks(self._tasks)
        await asyncio.sleep(0)  # aborted connections are closed with the next turn of the loop

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._pass_on(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        pumps: list[asyncio.Task[None]] = []
        try:
            await self._there.open.wait()
            try:
                far_reader, far_writer = await asyncio.open_connection(*self._target)
            except OSError:
                await self._back.open.wait()  # the refusal is an answer, too
                return
            ends.append(far_writer)
            loop = asyncio.get_running_loop()
            pumps += [
                loop.create_task(_pump(reader, far_writer, self._there)),
                loop.create_task(_pump(far_reader, writer, self._back)),
            ]
            # An end in one direction ends both: neither ZooKeeper nor a storage node uses half a connection.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(pumps)
            for end in ends:
                end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: _Way) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(CHUNK_BYTES):
            if way.delay_s:
                await asyncio.sleep(way.delay_s)
            await way.open.wait()
            writer.write(data)
            await writer.drain()
    await way.open.wait()
