"""The cluster of the fault tests: ZooKeeper, four storage nodes and six clients, each a process on its own address."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from dlspark.sandbox.beginning import LEDGERS_PATH
from dlspark.sandbox.state import NAMESPACE_PATH
from helpers.faults.forwarding import FaultNetwork, ForwardedNetwork
from helpers.faults.namespaces import NamespacedNetwork, SmallDisk
from helpers.fork_server import Child, ForkServer

ZOOKEEPER = "zookeeper"
NODES = tuple(f"node-{index}" for index in range(4))
WRITERS = ("writer-0", "writer-1")
SCRIBES = ("scribe-0", "scribe-1")
CLIENTS = (*WRITERS, *SCRIBES, "tailer", "rival")
AUDITORS = ("auditor-0", "auditor-1")
HOSTS = (ZOOKEEPER, *NODES, *CLIENTS, *AUDITORS)
ZOOKEEPER_PORT = 2181
NODE_PORT = 3181
TICK_MS = 250
SMALL_DISK_NODE = "node-3"
SMALL_DISK_BYTES = 320 << 20
START_S = 60.0
READ_ONLY_FOR_GOOD = b"read-only until the node is restarted"
NODE_SETTINGS = {
    "zkTimeout": "1500",
    "journalMaxSizeMB": "16",
    "journalPreAllocSizeMB": "4",
    "flushInterval": "500",
    "diskCheckInterval": "100",
    "minUsableSizeForEntryLogCreation": str(8 << 20),
    "logSizeLimit": str(16 << 20),
    "skipListSizeLimit": str(32 << 20),
}


class Arena:
    """Everything that runs. `history` is what the clients said, in the order of arrival, also in `history.jsonl`."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.directory = directory
        self.reached: Counter[str] = Counter()
        """How often each kind of fault was done."""
        self.history: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.spoilt = False
        """A round has not ended as it should: what runs is in no defined state."""
        self._server = ForkServer(
            ("helpers.faults.fault_client", "helpers.faults.hosts", "storage_node.bookie.__main__"),
            log=directory / "processes.log",
        )
        self._file = (directory / "history.jsonl").open("a", encoding="utf-8")
        self._blocks: Counter[tuple[str, str]] = Counter()
        self._generation: Counter[str] = Counter()
        self.processes: dict[str, Child] = {}
        self._java = -1
        """The ZooKeeper server's process; what `processes` has for it is its keeper."""
        self._serving: set[int] = set()
        self._log_begins: dict[str, int] = {}
        self.small_disk: SmallDisk | None = None
        """The file system of one node, if the network can give it one of its own."""
        try:
            self.network: FaultNetwork = self._make_network(kind)
            self._start()
        except BaseException:
            self.close()
            raise

    def _make_network(self, kind: str) -> FaultNetwork:
        if kind == "forwarders":
            return ForwardedNetwork(HOSTS)
        network = NamespacedNetwork(HOSTS, self._server)
        self.small_disk = network.mount_small_disk(SMALL_DISK_NODE, self.directory / SMALL_DISK_NODE, SMALL_DISK_BYTES)
        return network

    def _start(self) -> None:
        self.start_zookeeper()
        done = self._spawn(AUDITORS[0], "helpers.faults.hosts:initialise", zookeeper=self._zookeeper_for(AUDITORS[0]))
        assert done.lines.get(timeout=START_S) == "done", "the metadata could not be initialised"
        done.wait()
        for node in NODES:
            self.start_node(node)
        self.await_nodes()
        for client in CLIENTS:
            self.start_client(client)

    # ------------------------------------------------------------------------------------ processes

    def _spawn(self, on: str, target: str, /, **arguments: object) -> Child:
        return self._server.spawn(target, {"name": on, **arguments}, join=self.network.join(on))

    def _zookeeper_for(self, host: str) -> str:
        address, port = self.network.dial(host, ZOOKEEPER, ZOOKEEPER_PORT)
        return f"{address}:{port}"

    def start_zookeeper(self) -> None:
        """Start it and wait until it serves."""
        self.processes[ZOOKEEPER] = self._spawn(
            ZOOKEEPER,
            "helpers.faults.hosts:zookeeper",
            directory=str(self.directory / ZOOKEEPER),
            host=self.network.address(ZOOKEEPER),
            port=ZOOKEEPER_PORT,
            tick_ms=TICK_MS,
        )
        line = self.processes[ZOOKEEPER].lines.get(timeout=START_S)
        assert line is not None, f"ZooKeeper did not start; see {self.directory / 'processes.log'}"
        self._java = os.pidfd_open(int(line))

    def start_node(self, node: str) -> None:
        """Start it; `await_nodes` waits until it serves."""
        address, home = self.network.address(node), self.directory / node
        home.mkdir(exist_ok=True)
        settings = {
            "bookiePort": str(NODE_PORT),
            "listeningAddress": address,
            "insecureListen": "allow",
            "advertisedAddress": address,
            "journalDirectories": str(home / "journal"),
            "ledgerDirectories": str(home / "ledgers"),
            "zkServers": self._zookeeper_for(node),
            "zkLedgersRootPath": LEDGERS_PATH,
            **NODE_SETTINGS,
        }
        log = self.directory / f"{node}.log"
        self._log_begins[node] = log.stat().st_size if log.exists() else 0
        self.processes[node] = self._spawn(
            node, "helpers.faults.hosts:storage_node", settings=settings, routes=self._routes(node), log=str(log)
        )

    def _routes(self, host: str) -> list[tuple[str, int, str, int]]:
        others = [node for node in NODES if node != host]
        return [(self.network.address(node), NODE_PORT, *self.network.dial(host, node, NODE_PORT)) for node in others]

    def start_client(self, host: str) -> Child:
        """Start a new process on this host; in the history it has a name of its own."""
        self._generation[host] += 1
        number = self._generation[host]
        self.processes[host] = self._server.spawn(
            "helpers.faults.fault_client:run",
            {
                "name": f"{host}-{number}",
                "seed": number,
                "zookeeper": self._zookeeper_for(host),
                "namespace": f"distributedlog://zookeeper{NAMESPACE_PATH}",
                "ledgers": LEDGERS_PATH,
                "routes": self._routes(host),
            },
            join=self.network.join(host),
        )
        return self.processes[host]

    def tell(self, host: str, **command: object) -> None:
        self.processes[host].send(json.dumps(command))

    def signal(self, host: str, number: signal.Signals) -> None:
        """Send a signal to a host's process; ZooKeeper's is the server itself."""
        if host != ZOOKEEPER:
            self.processes[host].signal(number)
        elif self._java >= 0:
            with contextlib.suppress(ProcessLookupError):  # another fault has killed it
                signal.pidfd_send_signal(self._java, number)

    def kill(self, host: str) -> None:
        """Send SIGKILL, and wait until it is dead."""
        if host == ZOOKEEPER:
            self.signal(host, signal.SIGKILL)
            self._forget_java()
        self.processes[host].kill()

    def _forget_java(self) -> None:
        """Wait until the server is dead, and let go of it."""
        if self._java >= 0:
            select.select([self._java], [], [], START_S)
            os.close(self._java)
            self._java = -1

    # ------------------------------------------------------------------------------------ the network

    def block(self, source: str, target: str) -> None:
        """Block one direction; it is blocked as often as it is unblocked."""
        self._blocks[source, target] += 1
        if self._blocks[source, target] == 1:
            self.network.block(source, target)

    def unblock(self, source: str, target: str) -> None:
        self._blocks[source, target] -= 1
        if self._blocks[source, target] == 0:
            self.network.unblock(source, target)

    # ------------------------------------------------------------------------------------ what they say

    def listen(self) -> list[dict[str, Any]]:
        """Return the events that have arrived since the last time."""
        news: list[dict[str, Any]] = []
        for host in (*CLIENTS, *AUDITORS):
            process = self.processes.get(host)
            while process is not None and not process.lines.empty():
                line = process.lines.get()
                if line is not None:
                    news.append(json.loads(line))
                    self._file.write(line + "\n")
        self.history += news
        for event in news:
            assert event["what"] != "broken", f"a client broke: {event}"
        return news

    def await_nodes(self) -> None:
        """Wait until every node serves, as an operator would.

        One that has ended, for want of ZooKeeper or room, is started again; one that says that it stays read-only until
        it is restarted (it could not write to its entry logs, for want of room) is restarted.
        """
        deadline = time.monotonic() + START_S
        for node in NODES:
            if self.processes[node].running and READ_ONLY_FOR_GOOD in self._log_since_start(node):
                self.notes.append(f"{node} was read-only for good")
                self.processes[node].close_input()
                self.processes[node].wait()
                self.start_node(node)
            while not self._serves(node):
                assert time.monotonic() < deadline, f"{node} does not serve; see {self.directory / node}.log"
                if not self.processes[node].running:
                    self.notes.append(f"{node} had ended")
                    self.start_node(node)
                time.sleep(0.01)

    def _log_since_start(self, node: str) -> bytes:
        with (self.directory / f"{node}.log").open("rb") as log:
            log.seek(self._log_begins[node])
            return log.read()

    def _serves(self, node: str) -> bool:
        process = self.processes[node]
        while not process.lines.empty():
            line = process.lines.get()
            if line is not None and "serves on port" in line:
                self._serving.add(process.pid)
        return process.running and process.pid in self._serving

    def close(self) -> None:
        self._server.close()
        self._forget_java()
        if hasattr(self, "network"):
            self.network.close()
        self._file.close()
