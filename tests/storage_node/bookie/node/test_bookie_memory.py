"""Memory of a node as a process: many ledgers, many connections, clients that never read (docs/operations.md)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.bookie.harness import WireClient, entry
from helpers.bookie.node_process import first_line, initialise, spawn

from metadata.zookeeper.embedded import EmbeddedZooKeeper
from storage_node.protocol.encoding import encode_read_request
from storage_node.protocol.schema import Status
from storage_node.transport.tcp import TcpNetwork

pytestmark = pytest.mark.processes
MIB = 1 << 20
WRITE_MEMORY = 64 * MIB
ANSWERS = 32 * MIB
ENTRY_BYTES = 700_000
STUCK = 3
"""Clients that ask for everything and read nothing."""


def bound_bytes(ledgers: int, connections: int, stuck: int) -> int:
    """The bound that docs/operations.md states."""
    shared = 192 * MIB + WRITE_MEMORY + ANSWERS
    return shared + ledgers * 4096 + connections * 128 * 1024 + stuck * ENTRY_BYTES


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A node with small limits: the process and its port."""
    tmp_path = tmp_path_factory.mktemp("node")
    with EmbeddedZooKeeper(tmp_path / "zk") as zookeeper:
        asyncio.run(initialise(zookeeper.address))
        conf = tmp_path / "bookie.conf"
        conf.write_text(
            f"bookiePort=0\nbookieId=n1\nlisteningAddress=127.0.0.1\njournalDirectories={tmp_path}/j\n"
            f"ledgerDirectories={tmp_path}/l\nzkServers={zookeeper.address}\nskipListSizeLimit={WRITE_MEMORY}\n"
            f"responseMemoryLimit={ANSWERS}\nflushInterval=2000\njournalMaxSizeMB=64\n"
        )
        process = spawn(conf)
        try:
            yield process, int(first_line(process).rsplit(" ", 1)[1])
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def peak_bytes(pid: int) -> int:
    """The most memory the process ever had resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


async def connect(network: TcpNetwork, port: int) -> WireClient:
    client = WireClient()
    client.link = await network.connect("127.0.0.1", port, client, timeout_ms=60_000)
    return client


async def fill(client: WireClient, ledgers: range) -> None:
    """Three small entries for each ledger, one of them large now and then."""
    for start in range(ledgers.start, ledgers.stop, 500):
        chunk = range(start, min(start + 500, ledgers.stop))
        answers = [client.send_add(entry(ledger, n, b"x" * 200)) for ledger in chunk for n in range(3)]
        assert {answer.status for answer in await asyncio.gather(*answers)} == {Status.EOK}


def ask_and_never_read(port: int, ledgers: range) -> socket.socket:
    """Requests for far more than any buffer holds, as long as the node takes them."""
    greedy = socket.create_connection(("127.0.0.1", port))
    greedy.setblocking(False)
    requests = [encode_read_request(n, ledgers[n % len(ledgers)], n % 8) for n in range(1, 20_001)]
    try:
        for start in range(0, len(requests), 500):
            greedy.send(b"".join(requests[start : start + 500]))
    except BlockingIOError:
        pass  # the node reads no more of it: that is what it shall do
    return greedy


async def torment(port: int, ledgers: int, connections: int, rounds: int) -> None:
    """The load of the whole test; every honest client is served in time."""
    network = TcpNetwork()
    clients = [await connect(network, port) for _ in range(connections)]
    share = ledgers // connections
    await asyncio.gather(*(fill(client, range(i * share, (i + 1) * share)) for i, client in enumerate(clients)))
    big = range(1_000_000, 1_000_008)
    for ledger in big:
        answers = [clients[0].send_add(entry(ledger, n, bytes(ENTRY_BYTES))) for n in range(8)]
        assert {answer.status for answer in await asyncio.gather(*answers)} == {Status.EOK}
    stuck: list[socket.socket] = []
    for number in range(rounds):
        stuck += [ask_and_never_read(port, big) for _ in range(STUCK)]
        writer = clients[number % len(clients)]
        answers = [writer.send_add(entry(2_000_000 + number, n, bytes(500_000))) for n in range(100)]
        assert {answer.status for answer in await asyncio.gather(*answers)} == {Status.EOK}
        reads = [client.send_read(i * share, 0) for i, client in enumerate(clients)]
        answered = await asyncio.wait_for(asyncio.gather(*reads), 60)
        assert {answer.status for answer in answered} == {Status.EOK}
        honest = await asyncio.wait_for(writer.send_read(big[0], 0), 60)
        assert honest.status is Status.EOK
    for greedy in stuck:
        greedy.close()
    for client in clients:
        assert client.link is not None
        client.link.close()
        await client.closed.wait()


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_an_idle_connection_costs_less_than_sixteen_kilobytes(node: tuple[subprocess.Popen[str], int]) -> None:
    process, port = node

    async def open_many() -> tuple[int, int]:
        network = TcpNetwork()
        first = await connect(network, port)
        await first.add(entry(5, 0))
        before = resident_bytes(process.pid)
        clients = [await connect(network, port) for _ in range(500)]
        for client in clients:
            assert (await client.read(5, 0)).status is Status.EOK
        after = resident_bytes(process.pid)
        for client in [first, *clients]:
            assert client.link is not None
            client.link.close()
            await client.closed.wait()
        return before, after

    before, after = asyncio.run(open_many())
    assert (after - before) / 500 < 16 * 1024, f"{(after - before) / 500:.0f} bytes"


def test_memory_stays_under_its_bound_with_two_thousand_ledgers_and_two_hundred_connections(
    node: tuple[subprocess.Popen[str], int],
) -> None:
    process, port = node
    asyncio.run(torment(port, 2000, 200, 3))
    peak = peak_bytes(process.pid)
    assert peak < bound_bytes(2000, 200, 3 * STUCK), f"{peak / MIB:.0f} MiB"


@pytest.mark.torture
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_memory_stays_under_its_bound_with_ten_thousand_ledgers_and_a_thousand_connections(
    node: tuple[subprocess.Popen[str], int], rounds: int | None
) -> None:
    process, port = node
    count = rounds or 20
    asyncio.run(torment(port, 10_000, 1000, count))
    peak, bound = peak_bytes(process.pid), bound_bytes(10_000, 1000, count * STUCK)
    print(f"peak {peak / MIB:.0f} MiB, bound {bound / MIB:.0f} MiB", file=sys.stderr)
    assert peak < bound, f"{peak / MIB:.0f} MiB"
