"""`python -m storage_node.bookie` as a process, with a real ZooKeeper."""

from __future__ import annotations

import asyncio
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.bookie.harness import WireClient, entry
from helpers.bookie.node_process import first_line, initialise, spawn

from dlspark.testing.java_process import free_port
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.embedded import EmbeddedZooKeeper
from storage_node.protocol.schema import Status
from storage_node.transport.tcp import TcpNetwork

pytestmark = pytest.mark.processes


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(tmp_path / "zk") as server:
        yield server


async def talk(port: int, adds: range, reads: range) -> None:
    client = WireClient()
    client.link = await TcpNetwork().connect("127.0.0.1", port, client, timeout_ms=60_000)
    for number in adds:
        assert await client.add(entry(5, number)) == Status.EOK
    for number in reads:
        assert bytes((await client.read(5, number)).body or b"") == entry(5, number)
    client.link.close()
    await client.closed.wait()


async def writable(servers: str) -> list[str]:
    store = await ZooKeeperStore.connect(servers)
    found = [address.bookie_id for address in await BookieRegistry(store).writable()]
    await store.close()
    return found


def test_a_node_serves_dies_comes_back_and_stops_in_good_order(
    own_zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    asyncio.run(initialise(own_zookeeper.address))
    conf = tmp_path / "bookie.conf"
    conf.write_text(
        f"bookiePort=0\nbookieId=n1\nlisteningAddress=127.0.0.1\njournalDirectories={tmp_path}/j\n"
        f"ledgerDirectories={tmp_path}/l\nzkServers={own_zookeeper.address}\nzkTimeout=2000\n"
        f"httpServerEnabled=true\nhttpServerHost=127.0.0.1\nhttpServerPort={(port := free_port())}\n"
    )
    done = 0
    for ending in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        process = spawn(conf)
        line = first_line(process)
        assert line.startswith("bookie n1 serves on port ")
        asyncio.run(talk(int(line.rsplit(" ", 1)[1]), range(done, done + 10), range(done + 10)))
        done += 10
        assert asyncio.run(writable(own_zookeeper.address)) == ["n1"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/bookie/is_ready", timeout=60) as ready:
            assert ready.status == 200
        process.send_signal(ending)
        out, log = process.communicate(timeout=60)
        assert out == "", "one line on standard output, no more"
        assert process.returncode == (-9 if ending is signal.SIGKILL else 0), log
    assert asyncio.run(writable(own_zookeeper.address)) == []


def test_a_node_whose_http_port_is_taken_does_not_start(own_zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    asyncio.run(initialise(own_zookeeper.address))
    conf = tmp_path / "bookie.conf"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        conf.write_text(
            f"bookiePort=0\nlisteningAddress=127.0.0.1\njournalDirectories={tmp_path}/j\nledgerDirectories={tmp_path}/l\n"
            f"zkServers={own_zookeeper.address}\nhttpServerEnabled=true\nhttpServerHost=127.0.0.1\n"
            f"httpServerPort={taken.getsockname()[1]}\n"
        )
        process = spawn(conf)
        out, log = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert "set another httpServerPort" in log
    assert "Traceback" not in log
    assert not (tmp_path / "j").exists()


def test_a_node_that_cannot_start_says_why_and_ends_with_status_one(tmp_path: Path) -> None:
    conf = tmp_path / "bookie.conf"
    for text, reason in (("bookiePrt=1\n", "bookiePort"), ("bookiePort=0\n", "journalDirectories is not set")):
        conf.write_text(text)
        process = spawn(conf)
        out, log = process.communicate(timeout=60)
        assert (process.returncode, out) == (1, "")
        assert reason in log
        assert "Traceback" not in log
