"""A real Apache Pulsar broker, from Maven Central, that keeps its topics on storage nodes of ours.

The metadata is made by Pulsar's own set-up, and nothing is added to it: a tree as Pulsar's users have it, without the
`LAYOUT` that BookKeeper's tools write.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlspark.testing.java_process import class_path_of, free_port
from helpers.interop.clusters import InteropCluster, OurBookie
from helpers.jvm_flags import java_flags
from helpers.paths import TESTS

POM = TESTS / "interop" / "java" / "pulsar.xml"
CHROOT = "/pulsar"
LEDGERS = f"{CHROOT}/ledgers"
START_S = 120
STOP_S = 30
CALL_S = 30
MAX_LEDGER_ENTRIES = 500
_OPENED = (
    "java.lang",
    "java.util",
    "java.nio",
    "java.io",
    "java.net",
    "sun.net",
    "sun.nio.ch",
    "jdk.internal.platform",
)
_FLAGS = (
    *java_flags(400, direct_mb=400),
    *("-Dio.netty.tryReflectionSetAccessible=true", "-Djava.net.preferIPv4Stack=true"),
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
)
_NODE_SETTINGS = {"gcWaitTime": 500, "flushInterval": 200, "zkTimeout": 3000, "httpServerEnabled": "true"}


@dataclass(frozen=True)
class BrokerSecurity:
    """How do a broker and its nodes prove themselves, to ZooKeeper as well? If nothing is given, not at all."""

    node: Mapping[str, object] = field(default_factory=dict)
    """More settings of each node."""
    broker: Mapping[str, object] = field(default_factory=dict)
    """More lines of `broker.conf`."""
    flags: tuple[str, ...] = ()
    """Properties of the broker's JVM, and of the set-up's."""


class PulsarBroker:
    """One broker, its cluster's metadata and three storage nodes of ours under one chroot of a ZooKeeper."""

    def __init__(self, zk: str, directory: Path, security: BrokerSecurity | None = None) -> None:
        self._security = security or BrokerSecurity()
        self._class_path = class_path_of(POM)
        self._metadata = f"zk:{zk}{CHROOT}"
        self._directory = directory
        self._log = directory / "broker.log"
        self._conf = directory / "broker.conf"
        self._port, self._web_port = free_port(), free_port()
        self.url = f"pulsar://127.0.0.1:{self._port}"
        self._web = f"http://127.0.0.1:{self._web_port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._http_ports = [free_port() for _ in range(3)]
        self.nodes = [
            OurBookie(
                zk,
                LEDGERS,
                directory / f"node-{index}",
                settings={
                    **_NODE_SETTINGS,
                    "httpServerHost": "127.0.0.1",
                    "httpServerPort": port,
                    **self._security.node,
                },
            )
            for index, port in enumerate(self._http_ports)
        ]
        self.cluster = InteropCluster(zk, LEDGERS, tuple(node.id for node in self.nodes), self._lose, self.restore)

    def set_up(self) -> None:
        """Run Pulsar's own initialisation of its metadata, then start the nodes and the broker."""
        arguments = ["--cluster", "ours", "--metadata-store", self._metadata]
        arguments += ["--configuration-metadata-store", self._metadata]
        arguments += ["--web-service-url", self._web, "--broker-service-url", self.url]
        done = subprocess.run(
            self._command("PulsarClusterMetadataSetup", *arguments), capture_output=True, text=True, timeout=START_S
        )
        if done.returncode != 0:
            raise RuntimeError(f"Pulsar's set-up failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        for node in self.nodes:
            node.start()
        self._conf.write_text(self._configuration())
        self.start()

    def _configuration(self) -> str:
        settings = {
            "metadataStoreUrl": self._metadata,
            "configurationMetadataStoreUrl": self._metadata,
            "metadataStoreSessionTimeoutMillis": 8000,
            "clusterName": "ours",
            "brokerServicePort": self._port,
            "webServicePort": self._web_port,
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "managedLedgerDefaultEnsembleSize": 2,
            "managedLedgerDefaultWriteQuorum": 2,
            "managedLedgerDefaultAckQuorum": 2,
            # Small ledgers, so that a topic of a test has several.
            "managedLedgerMaxEntriesPerLedger": MAX_LEDGER_ENTRIES,
            "managedLedgerMinLedgerRolloverTimeMinutes": 0,
            # What was acknowledged last is stored, and trimmed, within a second instead of a minute.
            "managedLedgerCursorPositionFlushSeconds": 1,
            "defaultNumberOfNamespaceBundles": 1,
            "functionsWorkerEnabled": "false",
            **self._security.broker,
        }
        return "".join(f"{key}={value}\n" for key, value in settings.items())

    def _command(self, main: str, *arguments: str) -> list[str]:
        return [
            "java",
            *_FLAGS,
            *self._security.flags,
            "-cp",
            self._class_path,
            f"org.apache.pulsar.{main}",
            *arguments,
        ]

    def start(self) -> None:
        """Start the broker and wait until it calls itself healthy: it has then written a message and read it."""
        with self._log.open("ab") as log:
            command = self._command("PulsarBrokerStarter", "-c", str(self._conf))
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the broker did not start: {self._log.read_text()[-3000:]}")
            time.sleep(0.2)

    def _healthy(self) -> bool:
        try:
            return bool(self.admin("GET", "brokers/health") == "ok")
        except (OSError, TimeoutError):
            return False

    def kill(self) -> None:
        """Send SIGKILL to the broker: its ledgers stay open, its session lasts until it expires."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """Stop the broker in order, then the nodes."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for node in self.nodes:
            node.stop()

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to the broker's administration; its answer, parsed where it is JSON."""
        request = urllib.request.Request(
            f"{self._web}/admin/v2/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=CALL_S) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                raise OSError(f"{method} {path}: {error.code} {error.read().decode()[:500]}") from None
        try:
            return json.loads(text)
        except ValueError:
            return text

    def ledgers_of(self, topic: str) -> dict[int, int]:
        """Return the topic's ledgers as the broker lists them, with their numbers of entries (of the open one: 0)."""
        listed = self.admin("GET", f"persistent/public/default/{topic}/internalStats")["ledgers"]
        return {ledger["ledgerId"]: ledger["entries"] for ledger in listed}

    def stored_ledgers(self) -> int:
        """Return how many copies of ledgers are on all nodes, as their metrics say."""
        return sum(map(self._stored_on, self._http_ports))

    def _stored_on(self, port: int) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=CALL_S) as answer:
            lines = answer.read().decode().splitlines()
        return int(float(next(line.split()[-1] for line in lines if line.startswith("bookie_ledgers_count "))))

    def _lose(self, bookie: str) -> None:
        next(node for node in self.nodes if node.id == bookie).kill()

    def restore(self) -> bool:
        """Start again the nodes that were killed; return whether there was one."""
        lost = [node for node in self.nodes if not node.alive]
        for node in lost:
            node.start()
        return bool(lost)
