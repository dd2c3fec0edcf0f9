"""A real Apache Pulsar broker as a process, from the jars that Maven fetches, on bookies that run already.

The broker keeps its own metadata below a path of the same ZooKeeper, and its topics on the bookies whose ledgers are
named: ours or Java's. Three copies of each message, acknowledged when two bookies have synced it; all else is
upstream's default. `OutOfReachError` where the Java software cannot be had.
"""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

from benchmarks.kafka_broker import properties
from dlspark.testing.java_process import REPOSITORY, class_path_of, free_port
from metadata.foundation.errors import check
from metadata.foundation.processes import ending_with_parent
from metadata.zookeeper.embedded import find_java

POM: Final = REPOSITORY / "tests" / "interop" / "java" / "pulsar.xml"
START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 30.0
_OPENED: Final = ("java.lang", "java.util", "java.nio", "java.io", "java.net", "sun.net", "sun.nio.ch")
_JVM: Final = (
    *("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=2g", "-XX:+UseG1GC"),
    *("-Dio.netty.tryReflectionSetAccessible=true", "-Djava.net.preferIPv4Stack=true"),
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in (*_OPENED, "jdk.internal.platform")),
)


class PulsarProcess:
    """One broker in a directory of its own. A context manager.

    Args:
        directory: for its settings and its log, which is made.
        zookeeper: `host:port`.
        path: where its metadata are, which it makes.
        ledgers: where those of the bookies are.
    """

    def __init__(self, directory: Path, zookeeper: str, path: str, ledgers: str) -> None:
        self._class_path = class_path_of(POM)
        self._directory = directory
        self._metadata = f"zk:{zookeeper}{path}"
        self._bookies = f"zk+null://{zookeeper}{ledgers}"
        self._port, self._web_port = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The URL that clients connect to."""
        return f"pulsar://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The broker's process. Raises InvariantViolation before it is started."""
        check(self._process is not None, "the broker was asked for its process before it was started")
        return self._process.pid  # type: ignore[union-attr]

    def __enter__(self) -> PulsarProcess:
        self._directory.mkdir(parents=True)
        settings = self._directory / "broker.conf"
        settings.write_text(properties(self._settings()))
        with (self._directory / "broker.log").open("ab") as log:
            if self._run(["PulsarClusterMetadataSetup", *self._set_up()], log.fileno()).wait(START_TIMEOUT_S):
                raise RuntimeError(f"Pulsar's set-up failed: {self._said()}")
            self._process = self._run(["PulsarBrokerStarter", "-c", str(settings)], log.fileno())
        try:
            self._await_health()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _set_up(self) -> list[str]:
        options = {
            "--cluster": "bench",
            "--metadata-store": self._metadata,
            "--configuration-metadata-store": self._metadata,
            "--existing-bk-metadata-service-uri": self._bookies,
            "--web-service-url": f"http://127.0.0.1:{self._web_port}",
            "--broker-service-url": self.address,
        }
        return [word for pair in options.items() for word in pair]

    def _settings(self) -> dict[str, object]:
        return {
            "metadataStoreUrl": self._metadata,
            "configurationMetadataStoreUrl": self._metadata,
            "bookkeeperMetadataServiceUri": self._bookies,
            "clusterName": "bench",
            "brokerServicePort": self._port,
            "webServicePort": self._web_port,
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "managedLedgerDefaultEnsembleSize": 3,
            "managedLedgerDefaultWriteQuorum": 3,
            "managedLedgerDefaultAckQuorum": 2,
            "defaultNumberOfNamespaceBundles": 1,
            "functionsWorkerEnabled": "false",
        }

    def _run(self, program: list[str], log: int) -> subprocess.Popen[bytes]:
        main, *arguments = program
        return subprocess.Popen(
            ending_with_parent(
                [find_java(), *_JVM, "-cp", self._class_path, f"org.apache.pulsar.{main}", *arguments],
            ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C at the terminal is for the benchmark alone, which then ends the broker.
            start_new_session=True,
        )

    def _said(self) -> str:
        return (self._directory / "broker.log").read_text()[-2000:]

    def _await_health(self) -> None:
        """Wait until it calls itself healthy: it has then written a message and read it."""
        deadline = time.monotonic() + START_TIMEOUT_S
        url = f"http://127.0.0.1:{self._web_port}/admin/v2/brokers/health"
        while True:
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    if answer.read() == b"ok":
                        return
            except (OSError, urllib.error.URLError):
                pass  # it does not serve yet
            running = self._process is not None and self._process.poll() is None
            if not running or time.monotonic() > deadline:
                raise RuntimeError(f"the Pulsar broker does not serve: {self._said()}")
            time.sleep(0.2)
