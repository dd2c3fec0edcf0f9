"""A node as a process, peers that mean harm as another one, and an honest client between them.

The longest wait of the honest client is taken twice. In processor time of the node's own loop, which says how much the
node did for others before it answered, whatever else runs on the machine: that is always asserted. And by the clock,
which is asserted where the machine was quiet before and after the attack, and has no more to do than it has processors.
Processor time grows too on a machine that others use: so a wait that was too long is looked at again. What the node
does wrong it does in every attack.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.bookie.harness import MIB, WireClient, entry
from helpers.bookie.hostile import ATTACKS, LEDGER
from helpers.bookie.node_process import first_line, initialise
from helpers.paths import ROOT, TESTS
from helpers.waiting import wait_until

from dlspark.testing.java_process import free_port
from metadata.zookeeper.embedded import EmbeddedZooKeeper
from storage_node.protocol.schema import Status
from storage_node.transport.tcp import TcpNetwork

pytestmark = pytest.mark.processes

DESCRIPTORS = 1024
WAIT_S = 0.25
"""The longest that an honest client may wait for others."""
CROWD_WAIT_S = 0.6
"""The same beside 400 peers that each have something to read and something to hand out. An add of 100 KB waits for two
rounds of all of them, half a millisecond each: 0.17 to 0.46 s in 20 attacks on an idle machine."""
QUIET_S = 0.05
"""A machine on which no request took longer without an attack is a quiet one."""
ROUNDS = 20
LOOKS = 3
GROWTH = {"halves": 192 * MIB, "reads": 160 * MIB}
"""Memory that an attack may take: requestMemoryLimit and 8 frames, or what connections and answers may take.

Half frames (900 MiB are offered) took 129 to 167 MiB in 17 runs, more than 160 in three of them. It is probably the C
library's heap, which keeps what lies between large pieces: with each large piece mapped by itself it was 123 to 136 in
16 runs, but the loop then took 0.4 s in the place of 0.1 on a busy machine. So the bound has room for the heap."""
OTHER_GROWTH = 96 * MIB


@dataclass
class Node:
    process: subprocess.Popen[str]
    port: int
    http_port: int
    log: Path

    def loop_s(self) -> float:
        """Processor time of the node's loop so far."""
        pid = self.process.pid
        times = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def http(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=60) as answer:
            return str(answer.read(), "utf-8")

    def metric(self, name: str) -> float:
        found = re.search(rf"^{name} (\S+)$", self.http("/metrics"), re.MULTILINE)
        assert found is not None, name
        return float(found.group(1))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that may have 1024 descriptors, hard, with small limits and a journal that rolls soon."""
    tmp_path = tmp_path_factory.mktemp("hostile")
    with EmbeddedZooKeeper(tmp_path / "zk") as zookeeper:
        asyncio.run(initialise(zookeeper.address))
        conf, log, http_port = tmp_path / "bookie.conf", tmp_path / "log", free_port()
        conf.write_text(
            f"bookiePort=0\nbookieId=n1\nlisteningAddress=127.0.0.1\njournalDirectories={tmp_path}/j\n"
            f"ledgerDirectories={tmp_path}/l\nzkServers={zookeeper.address}\nskipListSizeLimit={64 * MIB}\n"
            f"responseMemoryLimit={32 * MIB}\nrequestMemoryLimit={16 * MIB}\njournalMaxSizeMB=16\nflushInterval=2000\n"
            f"httpServerEnabled=true\nhttpServerHost=127.0.0.1\nhttpServerPort={http_port}\ndiskUsageThreshold=0.99\n"
        )
        command = [sys.executable, "-m", "storage_node.bookie", "--conf", str(conf)]
        with log.open("w") as errors:
            process = subprocess.Popen(
                ["sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "sh", *command],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
            )
        try:
            yield Node(process, int(first_line(process).rsplit(" ", 1)[1]), http_port, log)
            process.terminate()
            assert process.wait(60) == 0, log.read_text()[-2000:]
        finally:
            process.kill()
            process.communicate()


class Honest:
    """A client that writes, reads, comes anew, and a probe; and how long each had to wait."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.network = TcpNetwork()
        self.client = WireClient()
        self.added = 0
        self.clock_s: list[float] = []
        self.loop_s: list[float] = []
        self.most_memory = 0

    async def begin(self, ledger: int) -> None:
        self.ledger = ledger
        self.client = await self._connect()

    async def _connect(self) -> WireClient:
        client = WireClient()
        client.link = await self.network.connect("127.0.0.1", self.node.port, client, timeout_ms=60_000)
        return client

    async def round(self) -> None:
        """One of each."""
        for request in (self._add, self._read, self._come_anew, self._probe):
            loop_s, clock_s = self.node.loop_s(), time.monotonic()
            await request()
            self.clock_s.append(time.monotonic() - clock_s)
            self.loop_s.append(self.node.loop_s() - loop_s)
        self.most_memory = max(self.most_memory, self.node.resident())

    async def _add(self) -> None:
        status = await self.client.add(entry(self.ledger, self.added, bytes(100_000 if self.added % 4 == 0 else 100)))
        assert status is Status.EOK
        self.added += 1

    async def _read(self) -> None:
        assert (await self.client.read(self.ledger, self.added - 1)).status is Status.EOK

    async def _come_anew(self) -> None:
        client = await self._connect()
        assert (await client.read(self.ledger, 0)).status is Status.EOK
        assert client.link is not None
        client.link.close()
        await client.closed.wait()

    async def _probe(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.node.http_port)
        writer.write(b"GET /heartbeat HTTP/1.1\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 60)).endswith(b"OK\n")
        writer.close()
        await writer.wait_closed()

    def worst(self) -> tuple[float, float]:
        """The longest wait so far, in the loop's time and by the clock; and begin anew."""
        worst = max(self.loop_s), max(self.clock_s)
        self.loop_s.clear()
        self.clock_s.clear()
        return worst

    async def end(self) -> None:
        assert self.client.link is not None
        self.client.link.close()
        await self.client.closed.wait()


async def under_attack(node: Node, name: str, ledger: int) -> dict[str, float]:
    """Honest rounds before, during and after; what was seen."""
    honest = Honest(node)
    await honest.begin(ledger)
    for _ in range(ROUNDS):
        await honest.round()
    _, quiet_s = honest.worst()
    before = node.resident()
    honest.most_memory = before
    attacker = await asyncio.create_subprocess_exec(
        sys.executable,
        str(TESTS / "helpers" / "bookie" / "hostile.py"),
        name,
        str(node.port),
        str(node.http_port),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert attacker.stdin is not None
    assert attacker.stdout is not None
    done = asyncio.ensure_future(attacker.stdout.readline())
    while not done.done():
        await honest.round()
    assert await done == b"done\n"
    for _ in range(ROUNDS):
        await honest.round()
    grown = honest.most_memory - before
    attacker.stdin.close()
    await attacker.wait()
    for _ in range(ROUNDS // 4):
        await honest.round()
    loop_s, clock_s = honest.worst()
    for _ in range(ROUNDS):
        await honest.round()
    _, after_s = honest.worst()
    await honest.end()
    return {"quiet_s": max(quiet_s, after_s), "loop_s": loop_s, "clock_s": clock_s, "grown": grown}


@pytest.fixture(scope="module", autouse=True)
def a_ledger(node: Node) -> None:
    """The one that attackers know."""

    async def make() -> None:
        client = WireClient()
        client.link = await TcpNetwork().connect("127.0.0.1", node.port, client, timeout_ms=60_000)
        for number in range(3):
            assert await client.add(entry(LEDGER, number)) is Status.EOK
        client.link.close()
        await client.closed.wait()

    asyncio.run(make())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ATTACKS)
def test_an_honest_client_is_served_while_others_attack_and_nothing_of_it_stays(node: Node, name: str) -> None:
    began = node.log.stat().st_size
    number = list(ATTACKS).index(name)
    longest = CROWD_WAIT_S if name == "crowd" else WAIT_S
    for look in range(LOOKS):
        seen = asyncio.run(under_attack(node, name, 100 + LOOKS * number + look))
        print(f"{name}: {seen}")
        assert node.process.poll() is None, "the node runs on"
        assert seen["grown"] < GROWTH.get(name, OTHER_GROWTH), f"{seen['grown'] / MIB:.0f} MiB"
        quiet = seen["quiet_s"] < QUIET_S and os.getloadavg()[0] < (os.cpu_count() or 1)
        served = seen["loop_s"] < longest and (not quiet or seen["clock_s"] < longest)
        if served:
            break
    assert served, f"the node did other things, or nothing, for too long in each of {LOOKS} attacks: {seen}"
    assert node.metric("bookie_SERVER_STATUS") == 1, "it takes adds"
    wait_until(lambda: node.metric("bookie_connections") == 0, "connections are left")
    assert node.log.stat().st_size - began < 100_000, "the log did not grow with what peers sent"
    assert "Traceback" not in node.log.read_text(), "no request met a mistake of the node's"
