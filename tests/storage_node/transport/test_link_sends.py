"""What a link under TLS costs when it sends, in system calls, and what it keeps when it is idle, in bytes."""

from __future__ import annotations

import gc
import socket
from contextlib import suppress

from helpers.security.secured_network import client_context, server_context

from storage_node.edge import TlsTerms
from storage_node.transport.tls import RECORD_BYTES, TlsSocket


class Counted:
    """A socket that counts the calls by which it is given something."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.calls = 0

    def sendmsg(self, pieces: list[bytes]) -> int:
        self.calls += 1
        return self._sock.sendmsg(pieces)

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)


def shaken_ends() -> tuple[TlsSocket, TlsSocket]:
    """Return a client and a server, on a pair of sockets that take little at a time."""
    socks = socket.socketpair()
    for sock in socks:
        sock.setblocking(False)
    client = TlsSocket(socks[0], TlsTerms(client_context(), "127.0.0.1"))
    server = TlsSocket(socks[1], TlsTerms(server_context(), server_side=True))
    done = {client: False, server: False}
    while not all(done.values()):
        for end in done:
            done[end] = done[end] or end.shake() is True
    return client, server


def all_across(sender: TlsSocket, receiver: TlsSocket, data: bytes) -> bytes:
    """Send all of it, and return what came."""
    room, rest, found = memoryview(bytearray(1 << 20)), data, b""
    while len(found) < len(data):
        with suppress(BlockingIOError):
            rest = rest[sender.sendmsg([rest]) :] if rest else rest
        with suppress(BlockingIOError):
            found += room[: receiver.recv_into(room)]
    sender._flush()
    return found


def test_records_leave_four_by_a_call_and_small_frames_all_together() -> None:
    client, server = shaken_ends()
    counted = client._sock = Counted(client.socket)  # type: ignore[assignment]
    try:
        assert client.sendmsg([b"frame"] * 1000) == 5000
        assert counted.calls == 1, "a record of all of them"
        counted.calls = 0
        assert client.sendmsg([bytes(RECORD_BYTES)] * 7 + [b"x"]) == 7 * RECORD_BYTES + 1
        assert counted.calls == 2, "eight records"
        room = memoryview(bytearray(1 << 20))
        assert server.recv_into(room) == 5000 + 7 * RECORD_BYTES + 1
        assert bytes(room[:5000]) == b"frame" * 1000
    finally:
        client.socket.close()
        server.socket.close()


def test_an_idle_end_keeps_nothing_of_what_was_sent_and_read() -> None:
    client, server = shaken_ends()
    try:
        data = bytes(range(256)) * 8192
        assert all_across(client, server, data) == data
        assert all_across(server, client, data) == data
        for end in (client, server):
            assert end._incoming.pending == end._outgoing.pending == 0
            held = [value for name in TlsSocket.__slots__ for value in [getattr(end, name)]]
            reached = [*held, *gc.get_referents(*held)]
            kept = [one.obj if isinstance(one, memoryview) else one for one in reached]
            assert sum(len(one) for one in kept if isinstance(one, bytes | bytearray)) == 0
    finally:
        client.socket.close()
        server.socket.close()


def test_more_pieces_than_the_kernel_takes_by_a_call_leave_by_several() -> None:
    client, server = shaken_ends()
    try:
        for number in range(2000):
            client._leaving.append(bytes((number % 256,)))
        client._waiting = 2000
        found = b""
        while not client._flush():
            found += server.socket.recv(4096)
        while len(found) < 2000:
            found += server.socket.recv(4096)
        assert found == bytes(number % 256 for number in range(2000))
        assert client._waiting == 0
    finally:
        client.socket.close()
        server.socket.close()
