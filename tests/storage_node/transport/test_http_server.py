"""The small HTTP server by itself; what a node shows by it: tests/storage_node/bookie/node/test_bookie_http.py."""

from __future__ import annotations

import asyncio
import socket

import pytest

from storage_node.transport.http_server import HTTP_CONNECTIONS, HttpServer, Reply


@pytest.mark.parametrize("with_uvloop", [False, True])
def test_a_probe_is_answered_though_hundreds_come_at_once_behind_it(with_uvloop: bool) -> None:
    """All of them are there before the first is accepted: the probe's request must be read before it is the oldest."""

    async def probe() -> bytes:
        server = HttpServer(lambda _path: Reply(b"OK\n"))
        await server.start("127.0.0.1", 0)
        try:
            where = "127.0.0.1", server.port
            honest = socket.create_connection(where, timeout=60)
            honest.sendall(b"GET /heartbeat HTTP/1.1\r\n\r\n")
            others = [
                socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(4 * HTTP_CONNECTIONS)
            ]
            for other in others:
                other.sendall(b"GET /heartbeat HTTP/1.1\r\nHost: x\r\n")
            reader, writer = await asyncio.open_connection(sock=honest)
            answer = await asyncio.wait_for(reader.read(), 60)
            writer.close()
            for other in others:
                other.close()
            return answer
        finally:
            await server.stop()

    new_loop = pytest.importorskip("uvloop").new_event_loop if with_uvloop else asyncio.new_event_loop
    loop = new_loop()
    try:
        assert loop.run_until_complete(probe()).endswith(b"OK\n")
        loop.run_until_complete(asyncio.sleep(0.05))  # what was broken off is closed
    finally:
        loop.close()


@pytest.mark.parametrize(("host", "asked"), [("", "127.0.0.1"), ("localhost", "127.0.0.1"), ("::1", "::1")])
async def test_it_listens_on_names_and_on_addresses_of_both_kinds(host: str, asked: str) -> None:
    if ":" in asked:
        with socket.socket(socket.AF_INET6) as probe:
            try:
                probe.bind((asked, 0))
            except OSError as error:
                pytest.skip(f"no IPv6 here: {error}")
    server = HttpServer(lambda _path: Reply(b"OK\n"))
    await server.start(host, 0)
    try:
        reader, writer = await asyncio.open_connection(asked, server.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 60)).endswith(b"OK\n")
        writer.close()
    finally:
        await server.stop()


async def test_a_port_that_is_taken_is_refused() -> None:
    server = HttpServer(lambda _path: Reply(b"OK\n"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            await server.start("127.0.0.1", taken.getsockname()[1])
    assert server.port == 0
    await server.stop()
