"""Gateways between regions, on real loopback sockets: what passes, what waits, what ends, and that nothing is lost."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from helpers.waiting import until

from dlspark.sandbox.delay_line import Way
from dlspark.sandbox.gateways import Carried, GatewayAddress, Gateways, new_gateway_loop
from metadata.foundation.socks import SocksProxy
from metadata.zookeeper.edge import LoopHandler
from storage_node.edge import Link
from storage_node.errors import BookieUnreachableError
from storage_node.transport.tcp import TcpNetwork

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")

HERE, THERE = "127.0.1.1", "127.0.2.1"
ADDRESSES = [GatewayAddress("r1", HERE, 0), GatewayAddress("r2", THERE, 0)]


class Frames:
    """A handler that keeps bodies, and sends them back where it serves."""

    def __init__(self, link: Link | None = None) -> None:
        self.bodies: list[bytes] = []
        self.ended: list[Exception | None] = []
        self.link = link

    def frame_received(self, frame: memoryview) -> None:
        self.bodies.append(bytes(frame))
        if self.link is not None:
            self.link.send(struct.pack(">i", len(frame)), bytes(frame))

    def batch_done(self) -> None:
        pass

    def link_closed(self, error: Exception | None) -> None:
        self.ended.append(error)


@asynccontextmanager
async def gateways(*ways: Way, capacity_bytes: int = 16 << 20) -> AsyncIterator[tuple[Gateways, TcpNetwork]]:
    """Gateways, and the network of a client in the first region."""
    opened = Gateways(ADDRESSES, ways, capacity_bytes=capacity_bytes, seed=1)
    await opened.start()
    try:
        yield opened, TcpNetwork(proxy=SocksProxy(HERE, opened.ports()[0], frozenset({HERE})))
    finally:
        await opened.close()


def send(link: Link, body: bytes) -> None:
    link.send(struct.pack(">i", len(body)), body)


async def test_a_client_reaches_a_server_of_another_region_and_its_end_passes() -> None:
    async with gateways(Way("r1", "r2", 1), Way("r2", "r1", 1, jitter_ms=1)) as (opened, network):
        served: list[Frames] = []

        def accept(link: Link) -> Frames:
            served.append(Frames(link))
            return served[-1]

        listener = await TcpNetwork().listen(THERE, 0, accept)
        client = Frames()
        link = await network.connect(THERE, listener.port, client, timeout_ms=60_000)
        assert link.peer == f"{THERE}:{listener.port}"
        bodies = [b"x", b"y" * 100_000, b"z" * 3_000_000] * 5
        for body in bodies:
            send(link, body)
        await until(lambda: len(client.bodies) == len(bodies))
        assert client.bodies == bodies
        link.close()
        await until(lambda: bool(served[0].ended))
        await until(lambda: opened.connections == 0)
        await listener.close()


async def test_a_closed_direction_keeps_what_is_sent_and_the_other_one_passes() -> None:
    async with gateways() as (opened, network):
        served: list[Link] = []
        received = Frames()

        def accept(link: Link) -> Frames:
            served.append(link)
            return received

        listener = await TcpNetwork().listen(THERE, 0, accept)
        client = Frames()
        link = await network.connect(THERE, listener.port, client, timeout_ms=60_000)
        opened.replace_ways([Way("r1", "r2", opened=False)])
        send(link, b"kept")
        send(served[0], b"from there")
        await until(lambda: client.bodies == [b"from there"])
        send(served[0], b"and again")
        await until(lambda: len(client.bodies) == 2)
        assert received.bodies == []
        opened.replace_ways([Way("r1", "r2")])
        await until(lambda: received.bodies == [b"kept"])
        link.close()
        await listener.close()


async def test_an_attempt_at_a_connection_over_a_cut_is_not_answered() -> None:
    async with gateways(Way("r2", "r1", opened=False)) as (_, network):
        listener = await TcpNetwork().listen(THERE, 0, Frames)
        with pytest.raises(BookieUnreachableError, match="no answer within 200 ms"):
            await network.connect(THERE, listener.port, Frames(), timeout_ms=200)
        await listener.close()


@pytest.mark.parametrize("cut", [("r1", "r2"), ("r2", "r1")], ids=["to the server", "from the server"])
async def test_attempts_that_were_given_up_hold_no_sockets_until_a_cut_is_healed(
    cut: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlspark.sandbox.gateways.GIVEN_UP_CHECK_S", 0.02)
    async with gateways(Way(*cut, opened=False)) as (opened, network):
        listener = await TcpNetwork().listen(THERE, 0, Frames)
        for _ in range(3):
            with pytest.raises(BookieUnreachableError):
                await network.connect(THERE, listener.port, Frames(), timeout_ms=100)
        await until(lambda: opened.connections == 0)
        opened.replace_ways([Way(*cut)])
        link = await network.connect(THERE, listener.port, Frames(), timeout_ms=60_000)
        link.close()
        await listener.close()


async def test_a_server_that_is_not_there_is_refused_with_its_own_name() -> None:
    async with gateways() as (opened, network):
        with socket.socket() as held:
            held.bind((THERE, 0))  # and does not listen
            port = held.getsockname()[1]
            with pytest.raises(BookieUnreachableError, match=rf"answered 0x5b for {THERE}:{port}"):
                await network.connect(THERE, port, Frames(), timeout_ms=60_000)
        await until(lambda: opened.connections == 0)


async def test_a_receiver_that_takes_nothing_stops_the_sender_at_the_capacity() -> None:
    async with gateways(capacity_bytes=1 << 20) as (opened, _):
        far: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        server = await asyncio.start_server(lambda *streams: far.append(streams), THERE, 0, limit=1 << 16)
        client = Asked(opened.ports()[0], server.sockets[0].getsockname()[1])
        await client.connect()
        cycle = bytes(range(251)) * 1000  # what was sent is this over and over, however it was cut
        sent = 0
        while (taken_at_once := await client.send_some(cycle[sent % 251 :])) is not None:
            sent += taken_at_once
            assert sent < 64 << 20, "more than the line and all sockets' buffers hold"
        read, write = far[0]
        taken = 0
        while taken < sent:
            part = await read.read(100_000)
            assert part == cycle[taken % 251 :][: len(part)]
            taken += len(part)
        client.sock.close()
        write.close()
        server.close()


class Asked:
    """A plain socket by way of a gateway."""

    def __init__(self, gateway: int, port: int) -> None:
        self.sock = socket.socket()
        self.sock.setblocking(False)
        self._ports = gateway, port

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.sock, (HERE, self._ports[0]))
        await loop.sock_sendall(self.sock, struct.pack(">BBH4s", 4, 1, self._ports[1], socket.inet_aton(THERE)) + b"\0")
        assert (await loop.sock_recv(self.sock, 8))[:2] == b"\0\x5a"

    async def send_some(self, data: bytes) -> int | None:
        """Send what the socket takes; None once it has taken nothing for as long as it takes others to take all."""
        for _ in range(100):
            try:
                return self.sock.send(data)
            except BlockingIOError:
                await asyncio.sleep(0.01)
        return None


async def test_a_reset_arrives_as_a_reset() -> None:
    async with gateways() as (opened, _):
        far: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(lambda _, writer: far.append(writer), THERE, 0)
        client = Asked(opened.ports()[0], server.sockets[0].getsockname()[1])
        await client.connect()
        await until(lambda: bool(far))
        far[0].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        far[0].transport.abort()
        await asyncio.sleep(0)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client.sock, 1), 60)
        client.sock.close()
        server.close()


async def test_the_store_of_metadata_dials_by_way_of_a_gateway_within_its_time() -> None:
    async with gateways() as (opened, _):
        loop = asyncio.get_running_loop()
        far: list[asyncio.StreamWriter] = []

        def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far.append(writer)
            writer.write(b"hello")

        server = await asyncio.start_server(greet, THERE, 0)
        address = server.sockets[0].getsockname()[:2]
        handler = LoopHandler(loop, SocksProxy(HERE, opened.ports()[0]))
        connection = await asyncio.to_thread(handler.create_connection, address, 60.0)
        assert connection.getpeername() == (HERE, opened.ports()[0])
        assert await loop.sock_recv(connection, 10) == b"hello"
        connection.close()
        opened.replace_ways([Way("r1", "r2", opened=False)])
        with pytest.raises(TimeoutError, match="no answer to the connection attempt"):
            await asyncio.to_thread(handler.create_connection, address, 0.2)
        for writer in far:
            writer.close()
        server.close()


async def test_what_is_no_socks_request_is_closed() -> None:
    async with gateways() as (opened, _):
        reader, writer = await asyncio.open_connection(HERE, opened.ports()[0])
        writer.write(b"GET / HTTP/1.1\r\n\r\n\0")
        assert await reader.read() == b""
        writer.close()


async def test_what_regions_send_each_other_is_counted_by_direction_and_server() -> None:
    async with gateways() as (opened, network):
        listener = await TcpNetwork().listen(THERE, 0, Frames)  # sends back what it receives
        silent = await TcpNetwork().listen(THERE, 0, lambda _: Frames())
        first = await network.connect(THERE, listener.port, Frames(), timeout_ms=60_000)
        second = await network.connect(THERE, silent.port, Frames(), timeout_ms=60_000)
        assert opened.carried() == []
        send(first, b"x" * 96)
        send(second, b"y" * 6)
        echoed, heard = f"{THERE}:{listener.port}", f"{THERE}:{silent.port}"
        wanted = {Carried("r1", "r2", echoed, 100), Carried("r2", "r1", echoed, 100), Carried("r1", "r2", heard, 10)}
        await until(lambda: set(opened.carried()) == wanted, lambda: str(opened.carried()))
        for link in (first, second):
            link.close()
        await listener.close()
        await silent.close()


def test_timers_of_gateways_are_finer_than_the_milliseconds_of_epoll(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    wait, now = select.select, 100.0

    def noted(read: list[int], write: list[int], failed: list[int], timeout: float) -> object:
        nonlocal now
        waits.append(timeout)
        now += timeout
        return wait(read, write, failed, 0)

    monkeypatch.setattr(select, "select", noted)
    loop = new_gateway_loop()
    monkeypatch.setattr(loop, "time", lambda: now)  # It stands still but for what is waited for.
    try:
        loop.run_until_complete(asyncio.sleep(0.0004))
    finally:
        loop.close()
    assert any(timeout == pytest.approx(0.0004) for timeout in waits), waits
