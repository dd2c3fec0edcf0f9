"""Peers that mean harm, as a process of its own: `python hostile.py ATTACK PORT [HTTP PORT]`.

It says "done" when it has done its worst, holds what it holds until its standard input ends, and then goes.
"""

from __future__ import annotations

import resource
import socket
import sys
import threading
import time
from collections.abc import Callable

from metadata.bookkeeper.ledger_metadata import DigestType
from storage_node.protocol import v2
from storage_node.protocol.digests import EntryDigest, master_key
from storage_node.protocol.encoding import (
    encode_add_request,
    encode_list_entries_request,
    encode_read_request,
    encode_write_lac_request,
)

KEY = master_key(b"attacker")
LARGEST = 5 * 1024 * 1024 - 8
HOUR_MS = 3_600_000
LEDGER = 5
"""One that is there."""


class Peers:
    """Connections that are held."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.sockets: list[socket.socket] = []

    def connect(self) -> socket.socket:
        peer = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        peer.settimeout(1)
        self.sockets.append(peer)
        return peer

    def send(self, data: bytes) -> socket.socket:
        """Send as much as is taken on a new connection."""
        peer = self.connect()
        send(peer, data)
        return peer


def send(peer: socket.socket, data: bytes) -> None:
    try:
        peer.sendall(data)
    except OSError:
        pass  # the node reads no more of it, or has closed the connection: what it is there for


def flood(senders: list[socket.socket], frames: bytes, seconds: float) -> None:
    """Send as much as is taken, again and again, and read a part of the answers."""
    for peer in senders:
        peer.setblocking(False)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for peer in senders:
            send(peer, frames)
            try:
                peer.recv(1 << 20)
            except OSError:
                pass


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def idle(peers: Peers) -> None:
    """Open more connections than the node may have descriptors."""
    for _ in range(1500):
        peers.connect()


def fields(peers: Peers) -> None:
    """Send frames of two million fields."""
    read = encode_read_request(7, LEDGER, 0)[4:]
    for filling in (b"\x78\x01", b"\x7b\x7c", b"\xa2\x06\x00"):
        body = read + filling * ((LARGEST - len(read)) // len(filling))
        for _ in range(3):
            peers.send(framed(body))


def polls(peers: Peers) -> None:
    """Send 40,000 long polls on one ledger, which all end at once."""
    for first in range(0, 40_000, 4_000):
        frames = [
            encode_read_request(txn, LEDGER, -1, previous_lac=1 << 40, timeout_ms=HOUR_MS, piggyback=True)
            for txn in range(first, first + 4_000)
        ]
        peers.send(b"".join(frames))
    for peer in peers.sockets:
        peer.close()


def lacs(peers: Peers) -> None:
    """Send explicit LACs of as many ledgers as there is time for, small and large."""
    digest = EntryDigest(DigestType.CRC32, b"attacker")
    for large in (0, 60_000):
        for first in range(1, 4):
            ledgers = range(first * 1_000_000, first * 1_000_000 + (1_500 if large else 20_000))
            bodies = [(ledger, digest.package_lac(ledger, 7).ljust(large, b"x")) for ledger in ledgers]
            frames = [encode_write_lac_request(n, ledger, 7, KEY, body) for n, (ledger, body) in enumerate(bodies)]
            peers.send(b"".join(frames))


def halves(peers: Peers) -> None:
    """Send half of a large frame, from 300 peers."""
    half = framed(bytes(LARGEST))[: 3 * 1024 * 1024]
    for _ in range(300):
        peer = peers.connect()
        peer.settimeout(0.02)
        send(peer, half)


def reads(peers: Peers) -> None:
    """Send small requests by the hundred thousand."""
    frames = b"".join(encode_read_request(txn, LEDGER, txn % 3) for txn in range(20_000))
    senders = [peers.connect() for _ in range(20)]
    flood(senders, frames, 3)


def garbage(peers: Peers) -> None:
    """Send bytes that are not a message, again and again."""
    for _ in range(3000):
        peers.send(framed(b"\x0a\x06\x08\x03\x10\x02\x18")).close()


def half_requests(peers: Peers) -> None:
    """Send HTTP requests that do not end."""
    for _ in range(200):
        peers.send(b"GET /heartbeat HTTP/1.1\r\nHost: x\r\n")


def add(ledger: int, number: int, payload: bytes = b"x", lac: int = -1) -> bytes:
    """Return a framed add."""
    digest = EntryDigest(DigestType.CRC32, b"attacker")
    body = digest.package(ledger, number, lac, len(payload), payload) + payload
    head, tail = encode_add_request(number, ledger, number, KEY, len(body))
    return head + body + tail


def ask(peer: socket.socket, data: bytes, answers: int) -> None:
    """Send, and read so many answers."""
    sender = threading.Thread(target=peer.sendall, args=(data,))
    peer.settimeout(20)
    sender.start()
    stream = peer.makefile("rb")
    for _ in range(answers):
        stream.read(int.from_bytes(stream.read(4), "big"))
    sender.join()


def lists(peers: Peers) -> None:
    """Ask for long lists of a ledger's entries, by the hundred, and do not read them."""
    ledger = 7_000_001
    ask(peers.connect(), b"".join(add(ledger, 2 * number) for number in range(60_000)), 60_000)
    peers.send(b"".join(encode_list_entries_request(txn, ledger) for txn in range(400)))
    time.sleep(10)


def wakes(peers: Peers) -> None:
    """Send long polls that a large entry's commit ends, and do not read the answers."""
    ledger = 7_000_002
    writer = peers.connect()
    ask(writer, add(ledger, 0, bytes(4_000_000)), 1)
    polls = [
        encode_read_request(txn, ledger, -1, previous_lac=-1, timeout_ms=HOUR_MS, piggyback=True) for txn in range(100)
    ]
    for _ in range(3):
        peers.send(b"".join(polls))
    time.sleep(1)
    ask(writer, add(ledger, 1, b"", lac=0), 1)
    time.sleep(2)


def urgent(peers: Peers) -> None:
    """Send reads of high priority, of a large entry, and do not read the answers."""
    ledger = 7_000_004
    ask(peers.connect(), add(ledger, 0, bytes(4_000_000)), 1)
    peers.send(b"".join(encode_read_request(txn, ledger, 0, priority=100) for txn in range(400)))
    time.sleep(3)


def large(peers: Peers) -> None:
    """Ask for one large entry from each of hundreds of connections, and do not read it."""
    ledger = 7_000_006
    ask(peers.connect(), add(ledger, 0, bytes(5_000_000)), 1)
    for _ in range(500):
        peers.send(encode_read_request(1, ledger, 0) * 2)
    time.sleep(2)


def lines(peers: Peers) -> None:
    """Send requests by the ten thousand that wait behind large answers, until those are read."""
    ledger = 7_000_005
    ask(peers.connect(), add(ledger, 0, bytes(4_000_000)), 1)
    large = b"".join(encode_read_request(txn, ledger, 0) for txn in range(9))
    small = b"".join(encode_read_request(txn, LEDGER, 0) for txn in range(60_000))
    peer = peers.send(large + small)
    time.sleep(1)
    stream = peer.makefile("rb")
    for _ in range(9):
        stream.read(int.from_bytes(stream.read(4), "big"))


def crowd(peers: Peers) -> None:
    """Send small requests from hundreds of connections."""
    senders = [peers.connect() for _ in range(400)]
    frames = b"".join(v2.encode_read_request(LEDGER, 99) for _ in range(10_000))
    flood(senders, frames, 8)


def drip(peers: Peers) -> None:
    """Send a byte a packet, from hundreds of connections."""
    senders = [peers.connect() for _ in range(300)]
    frame = encode_read_request(7, LEDGER, 0) * 20
    for byte in frame:
        for peer in senders:
            send(peer, bytes([byte]))


ATTACKS: dict[str, Callable[[Peers], None]] = {
    attack.__name__: attack
    for attack in (
        idle,
        fields,
        polls,
        lacs,
        halves,
        reads,
        garbage,
        half_requests,
        lists,
        wakes,
        urgent,
        large,
        lines,
        crowd,
        drip,
    )
}


def main(name: str, port: int, http_port: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    peers = Peers(http_port if name == "half_requests" else port)
    ATTACKS[name](peers)
    print("done", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
