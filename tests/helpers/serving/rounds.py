"""The serving tier of the fault tests: ZooKeeper, four storage nodes, two write proxies, clients in two processes.

Between the proxies and ZooKeeper, the storage nodes and the clients there are forwarders that can be cut
(`forwarding`). What clients were told is held against what the logs themselves hold, read without any proxy
(`Tier.check`):

* acknowledged: in its log exactly once, at the DLSN that was told;
* failed: not in the log;
* unknown: at most once;
* what one producer wrote to a log is there in the order of writing.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.namespace import AsyncNamespace
from dlspark.sandbox.state import NAMESPACE_PATH
from dlspark.serving.process.peers import ProxyPeers
from dlspark.serving.protocol.operations import Handshake, ProxyInfo
from helpers.faults.forwarding import ForwardedNetwork
from helpers.fork_server import Child, ForkServer
from helpers.security.secured_runs import credentials_for, role_settings
from helpers.serving.load import EXPIRE, GO, SETTLE, parts_of
from helpers.waiting import until, wait_until
from helpers.worlds.warm_sandbox import WarmSandbox
from metadata.foundation.settings import Value
from storage_node.transport.tcp import TcpNetwork

SESSION_S: Final = 4
ZOOKEEPER: Final = "zookeeper"
NODES: Final = tuple(f"node-{index}" for index in range(4))
PROXIES: Final = ("proxy-0", "proxy-1")
CLIENTS: Final = ("clients-0", "clients-1")
PROXY_PORT: Final = 8000
TICK_MS: Final = 250
START_S: Final = 60.0
STOP_S: Final = 120.0
"""A proxy hands its logs over one after the other: on a machine with much else to do that takes its time."""
LOGS_PER_CLIENT: Final = 8
PLAIN_EVERY: Final = 5
"""One client in so many writes without a producer."""
CLIENT_SETTINGS: Final[Mapping[str, Value]] = {"attemptTimeoutMs": 1_000, "requestTimeoutMs": 30_000}
_READS_AT_ONCE: Final = 16


class Written(NamedTuple):
    """One record and the answer that its client had."""

    log: str
    writer: str
    number: int
    sent_s: float
    done_s: float
    outcome: str
    text: str


class TierNetwork(ForwardedNetwork):
    """ZooKeeper and storage nodes are the sandbox's; the others have addresses of their own."""

    def address(self, host: str) -> str:
        return "127.0.0.1" if host == ZOOKEEPER or host in NODES else super().address(host)


class Tier:
    """Everything that runs, and what is known of the logs."""

    def __init__(
        self, directory: Path, *, logs: int, clients: int, pause_s: float, seed: int = 0, cut_clients: bool = True
    ) -> None:
        """`pause_s`: the mean time between two records of one client. `cut_clients`: whether clients can be cut off
        from proxies. A forwarder takes a connection whether its target runs or not, which a stopped proxy does not."""
        self._cut_clients = cut_clients
        self.directory = directory
        self.logs = [f"log-{number:03d}" for number in range(logs)]
        self.notes: list[str] = []
        self.sandbox = WarmSandbox(
            directory / "sandbox", nodes=len(NODES), node_settings={"zkTimeout": 1000}, zookeeper_tick_ms=TICK_MS
        )
        self.network = TierNetwork((ZOOKEEPER, *NODES, *PROXIES, *CLIENTS))
        self._forks: ForkServer | None = None
        self.processes: dict[str, Child] = {}
        self._plain: set[str] = set()
        self._told: dict[tuple[str, str, int], Written] = {}
        self._held: dict[str, list[tuple[DLSN, bytes]]] = {log: [] for log in self.logs}
        try:
            self.sandbox.start()
            self._forks = ForkServer(("helpers.serving.load",), log=directory / "processes.log")
            for proxy in PROXIES:
                self.start_proxy(proxy)
            asyncio.run(self._create_logs())
            self._start_clients(clients, pause_s, seed)
        except BaseException:
            self.close()
            raise

    async def _create_logs(self) -> None:
        namespace = await AsyncNamespace.open(self.sandbox.uri)
        await asyncio.gather(*(namespace.create_log(log) for log in self.logs))
        await namespace.close()

    # ------------------------------------------------------------------ processes

    def spawn_proxy(self, proxy: str) -> None:
        """Start a proxy; `await_proxy` waits until it serves."""
        assert self._forks is not None
        address, number = self.network.address(proxy), PROXIES.index(proxy)
        host, port = self.network.dial(proxy, ZOOKEEPER, self.sandbox.state.zookeeper_port)
        settings = {
            "server_host": address,
            "server_advertised_host": address,
            "server_port": PROXY_PORT,
            "server_grpc_port": -1,
            "server_shard": number,
            "zkSessionTimeoutSeconds": SESSION_S,
            **role_settings("proxy"),
        }
        ports = self.sandbox.state.node_ports
        self.processes[proxy] = self._forks.spawn(
            "helpers.serving.load:write_proxy",
            {
                "name": proxy,
                "zookeeper": f"{host}:{port}",
                "namespace": f"distributedlog://zookeeper{NAMESPACE_PATH}",
                "settings": settings,
                "routes": [
                    ("127.0.0.1", port, *self.network.dial(proxy, node, port))
                    for node, port in zip(NODES, ports, strict=True)
                ],
                "log": str(self.directory / f"{proxy}.log"),
            },
        )

    def await_proxy(self, proxy: str) -> None:
        line = self.processes[proxy].lines.get(timeout=START_S)
        assert "serves" in (line or ""), f"{proxy} does not serve; see {self.directory / proxy}.log"

    def start_proxy(self, proxy: str) -> None:
        """Start a proxy and wait until it serves."""
        self.spawn_proxy(proxy)
        self.await_proxy(proxy)

    def stop_proxy(self, proxy: str) -> None:
        """End it in order, and wait for that."""
        self.processes[proxy].close_input()
        self.processes[proxy].wait(STOP_S)

    def expire(self, proxy: str) -> None:
        """End its session with ZooKeeper."""
        self.processes[proxy].send(EXPIRE)

    def mend(self) -> None:
        """Start proxies again that have ended: a proxy may give up, and whoever runs it starts it again."""
        for proxy in PROXIES:
            if not self.processes[proxy].running:
                self.notes.append(f"{proxy} had ended")
                self.start_proxy(proxy)

    def _start_clients(self, count: int, pause_s: float, seed: int) -> None:
        assert self._forks is not None
        step = max(1, len(self.logs) // count)
        wanted = min(LOGS_PER_CLIENT, len(self.logs))
        addresses = [f"{self.network.address(proxy)}:{PROXY_PORT}" for proxy in PROXIES]
        for index, host in enumerate(CLIENTS):
            writers = []
            for number in range(index, count, len(CLIENTS)):
                name, plain = f"client-{number}", number % PLAIN_EVERY == PLAIN_EVERY - 1
                mine = [self.logs[(number * step + more) % len(self.logs)] for more in range(wanted)]
                writers.append((name, not plain, mine))
                self._plain |= {name} if plain else set()
            routes = [
                (self.network.address(proxy), PROXY_PORT, *self.network.dial(host, proxy, PROXY_PORT))
                for proxy in (PROXIES if self._cut_clients else ())
            ]
            self.processes[host] = self._forks.spawn(
                "helpers.serving.load:clients",
                {
                    "name": host,
                    "seed": seed + index,
                    "proxies": addresses,
                    "routes": routes,
                    "writers": writers,
                    "settings": dict(CLIENT_SETTINGS),
                    "pause_s": pause_s,
                },
            )
        for host in CLIENTS:
            assert self.processes[host].lines.get(timeout=START_S) == "ready", f"{host} did not start"

    # ------------------------------------------------------------------ the network

    def cut(self, one: str, other: str) -> None:
        """Let nothing pass between two hosts."""
        for way in ((one, other), (other, one)):
            self.network.block(*way)

    def heal(self, one: str, other: str) -> None:
        for way in ((one, other), (other, one)):
            self.network.unblock(*way)

    # ------------------------------------------------------------------ load

    def go(self) -> None:
        """Let the clients write."""
        for host in CLIENTS:
            self.processes[host].send(GO)

    def warm_up(self) -> None:
        """Write until every log has an owner, and settle."""
        self.go()
        wait_until(lambda: sum(len(self.owned_by(proxy)) for proxy in PROXIES) >= len(self.logs), every_s=0.1)
        self.settle()

    def settle(self) -> list[Written]:
        """Let them stop; their answers since the last time, once every record has its outcome."""
        for host in CLIENTS:
            self.processes[host].send(SETTLE)
        told: list[Written] = []
        for host in CLIENTS:
            line = self.processes[host].lines.get(timeout=START_S)
            assert line is not None, f"{host} has ended; see {self.directory / 'processes.log'}"
            told += [Written(*one) for one in json.loads(line)]
        self._told |= {(one.log, one.writer, one.number): one for one in told}
        return told

    def owned_by(self, proxy: str) -> set[str]:
        """Return the logs that a proxy says it owns."""

        async def ask() -> set[str]:
            peers = ProxyPeers(TcpNetwork(), credentials_for=credentials_for)
            try:
                answer = await peers.call(f"{self.network.address(proxy)}:{PROXY_PORT}", Handshake(None), 5_000)
            finally:
                await peers.close()
            assert isinstance(answer, ProxyInfo), answer
            return {stream for stream, owner in answer.ownerships.items() if owner == answer.location}

        return asyncio.run(ask())

    # ------------------------------------------------------------------ the verdict

    def check(self) -> int:
        """Compare the logs with the answers so far; returns how many records there are. Raises AssertionError."""
        asyncio.run(self._read())
        told: dict[str, list[Written]] = defaultdict(list)
        for one in self._told.values():
            told[one.log].append(one)
        for log, records in self._held.items():
            check_log(log, records, told[log], self._plain)
        return sum(map(len, self._held.values()))

    async def _read(self) -> None:
        """Read what came to the logs since the last time: until all that was acknowledged is there."""
        wanted: dict[str, DLSN] = {}
        for one in self._told.values():
            if one.outcome == "ok":
                wanted[one.log] = max(wanted.get(one.log, DLSN.INVALID), DLSN.parse(one.text))
        namespace, turns = await AsyncNamespace.open(self.sandbox.uri), asyncio.Semaphore(_READS_AT_ONCE)

        async def read(log: str) -> None:
            held = self._held[log]
            start = held[-1][0] if held else "earliest"
            async with (
                turns,
                await namespace.open_log(log) as opened,
                await opened.open_reader(start) as reader,
            ):

                async def all_there() -> bool:
                    while records := await reader.read_available(1000, wait=True):
                        after = held[-1][0] if held else DLSN.INVALID
                        held.extend((one.dlsn, bytes(one.payload)) for one in records if one.dlsn > after)
                    return log not in wanted or bool(held and held[-1][0] >= wanted[log])

                await until(all_there, lambda: f"{log} ends at {held[-1:]}, acknowledged up to {wanted[log]}")

        try:
            await asyncio.gather(*map(read, self.logs))
        finally:
            await namespace.close()

    def close(self) -> None:
        """End everything."""
        if self._forks is not None:
            self._forks.close()
            self._forks = None
        self.network.close()
        self.sandbox.stop()


# ---------------------------------------------------------------------- the verdict, times


def check_log(log: str, records: Sequence[tuple[DLSN, bytes]], told: Iterable[Written], plain: Collection[str]) -> None:
    """Raise AssertionError unless a log holds what its writers were answered; `plain` are those without producers."""
    outcomes = {(one.writer, one.number): one for one in told}
    found: dict[tuple[str, int], DLSN] = {}
    numbers: dict[str, list[int]] = defaultdict(list)
    for dlsn, payload in records:
        writer, number = key = parts_of(payload)
        assert key not in found, f"{log}: {key} is there twice: {found[key]} and {dlsn}; told: {outcomes.get(key)}"
        assert key in outcomes, f"{log}: {key} at {dlsn} was never written"
        found[key] = dlsn
        numbers[writer].append(number)
    for writer, order in numbers.items():
        assert writer in plain or order == sorted(order), f"{log}: what {writer} wrote is not in its order"
    for key, one in outcomes.items():
        if one.outcome == "ok":
            assert found.get(key) == DLSN.parse(one.text), f"acknowledged, found at {found.get(key)}: {one}"
        assert one.outcome != "failed" or key not in found, f"said not to be written, and is: {one}"


def first_acknowledgements(told: Iterable[Written], logs: Iterable[str], fault_s: float) -> dict[str, float]:
    """Return, by log, the seconds from a fault to the first acknowledgement of what was sent behind it."""
    wanted = set(logs)
    first: dict[str, float] = {}
    for one in told:
        if one.outcome == "ok" and one.sent_s >= fault_s and one.log in wanted:
            first[one.log] = min(first.get(one.log, one.done_s), one.done_s)
    return {log: at_s - fault_s for log, at_s in first.items()}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of all are not above."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def row(name: str, values: Sequence[float], unit: float = 1.0) -> str:
    """Return a line of a table: how many, p50, p99, the most; `unit` is a thousand for milliseconds."""
    if not values:
        return f"{name:<28} {0:>6}"
    p50, p99 = percentile(values, 0.5) * unit, percentile(values, 0.99) * unit
    return f"{name:<28} {len(values):>6} {p50:>9.2f} {p99:>9.2f} {max(values) * unit:>9.2f}"


def now_s() -> float:
    """Return the time by the clock of `Written`."""
    return time.monotonic()
