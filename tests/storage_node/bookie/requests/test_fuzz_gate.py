"""Damaged frames at a shut gate, and damaged handshakes on real links: nothing is ever heard, and the node serves on.

2,000 frames and 60 handshakes a round: one in the ordinary run; a million frames with `-m torture --rounds 500`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import ssl
from pathlib import Path

import pytest
from helpers.security.fuzzing import ShutLink, damaged, gate_frame, shut_node
from helpers.security.secured_network import client_context, server_context
from helpers.waiting import until

from storage_node.bookie.requests.gate import SecurityGate
from storage_node.edge import FrameHandler, Link
from storage_node.errors import ProtocolError
from storage_node.transport.tcp import TcpNetwork
from storage_node.transport.tls import TlsEntrance

FRAMES = 2_000
HANDSHAKES = 60


async def at_the_gate(tmp_path: Path, seed: int, frames: int) -> None:
    r = random.Random(seed)
    async with shut_node(tmp_path) as bookie:
        link = ShutLink()
        gate = bookie._accept(link)
        closed = 0
        for number in range(frames):
            assert isinstance(gate, SecurityGate)
            try:
                for _ in range(r.choice((1, 1, 1, 2, 3))):  # some in one read
                    gate.frame_received(memoryview(gate_frame(r)))
                    if link.closed:
                        break
                else:
                    gate.batch_done()
            except ProtocolError:
                link.closed = True
            assert not link.opened, f"frame {number} of seed {seed} opened the gate"
            assert gate._connection.principal is None
            if link.closed:
                closed += 1
                gate.link_closed(None)
                link = ShutLink()
                gate = bookie._accept(link)
        assert closed > frames / 20
        assert not bookie.storage.ledgers
        gate.link_closed(None)


def a_hello() -> bytes:
    """Return how a client of ours begins a handshake."""
    out = ssl.MemoryBIO()
    client = client_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


async def on_links(seed: int, handshakes: int) -> None:
    """Send damaged beginnings of handshakes, in pieces; some break off, and each link is served for itself."""
    r = random.Random(seed)
    network, heard = TcpNetwork(), []

    def accept(link: Link) -> FrameHandler:
        heard.append(link)
        raise ProtocolError("a handshake ended that was damaged")

    listener = await network.listen("127.0.0.1", 0, accept, tls=TlsEntrance(server_context, limit_s=60))
    loop = asyncio.get_running_loop()
    hello = a_hello()
    for _ in range(handshakes):
        with socket.socket() as peer:
            peer.setblocking(False)
            await loop.sock_connect(peer, ("127.0.0.1", listener.port))
            data = damaged(r, hello)
            cut = r.randrange(len(data))
            try:
                for piece in (data[:cut], data[cut:]):
                    await loop.sock_sendall(peer, piece)
                    await asyncio.sleep(0)
                await loop.sock_sendall(peer, r.randbytes(r.randrange(200)))
            except OSError:
                pass  # it was cut already
    await until(lambda: not network.links())
    await listener.close()
    assert not heard


async def test_nothing_opens_the_gate_but_a_proof(
    tmp_path: Path, seed: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    await at_the_gate(tmp_path, seed or 1, FRAMES)
    assert caplog.records == [], "an error of the node's own, hidden behind a closed connection"


async def test_damaged_handshakes_end_their_own_connection(seed: int | None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    await on_links(seed or 1, HANDSHAKES)
    assert caplog.records == []


@pytest.mark.torture
@pytest.mark.long
@pytest.mark.timeout(7200)
async def test_damaged_frames_and_handshakes_by_the_million(
    tmp_path: Path, rounds: int | None, seed: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    chosen = seed or int.from_bytes(os.urandom(4), "big")
    print(f"seed {chosen}")
    await at_the_gate(tmp_path, chosen, FRAMES * (rounds or 1))
    await on_links(chosen, HANDSHAKES * (rounds or 1))
    assert caplog.records == []
