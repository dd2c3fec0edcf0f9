"""A real Apache Kafka broker as a process: broker and controller in one (KRaft), from the jars that Maven fetches.

The JVM runs as upstream's own script starts it (1 GB heap, G1 with its options), the broker with upstream's defaults
save for what a single one needs. `OutOfReachError` where the Java software cannot be had.
"""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from dlspark.testing.java_process import class_path_of, free_port
from metadata.foundation.errors import check
from metadata.foundation.processes import ending_with_parent
from metadata.zookeeper.embedded import find_java

KAFKA: Final = Path(__file__).resolve().parent / "kafka"
CONNECTOR_POM: Final = KAFKA / "connector.xml"
BROKER_POM: Final = KAFKA / "broker.xml"
JVM: Final = (
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 20.0


class KafkaBroker:
    """One broker in a directory of its own. A context manager."""

    def __init__(self, directory: Path) -> None:
        self._class_path = class_path_of(BROKER_POM)
        self._directory = directory
        self._log = directory / "broker.log"
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """host:port that clients connect to."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The broker's process. Raises InvariantViolation before it is started."""
        check(self._process is not None, "the broker was asked for its process before it was started")
        return self._process.pid  # type: ignore[union-attr]

    def __enter__(self) -> KafkaBroker:
        self._directory.mkdir(parents=True)
        settings = self._directory / "server.properties"
        settings.write_text(properties(broker_settings(self._port, free_port(), self._directory / "data")))
        # Kafka's id of a cluster: 16 bytes in base64, which must not begin with a dash.
        cluster = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "A")
        with self._log.open("ab") as log:
            formatting = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
            self._run(formatting, log.fileno()).wait(START_TIMEOUT_S)
            self._process = self._run(["kafka.Kafka", str(settings)], log.fileno())
        try:
            self._await_port()
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

    def _run(self, program: list[str], log: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ending_with_parent([find_java(), *JVM, "-cp", self._class_path, *program]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C at the terminal is for the benchmark alone, which then ends the broker.
            start_new_session=True,
        )

    def _await_port(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            running = self._process is not None and self._process.poll() is None
            if not running or time.monotonic() > deadline:
                raise RuntimeError(f"the Kafka broker does not serve: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)


def broker_settings(port: int, controller_port: int, data: Path) -> dict[str, object]:
    """Return the settings that a single broker needs; all else is upstream's default."""
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": data,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "auto.create.topics.enable": "false",
    }


def version_of(pom: Path, artifact: str) -> str:
    """Return the version of a dependency as a POM asks for it."""
    space = {"m": "http://maven.apache.org/POM/4.0.0"}
    for dependency in ElementTree.parse(pom).iterfind("m:dependencies/m:dependency", space):
        if dependency.findtext("m:artifactId", namespaces=space) == artifact:
            return dependency.findtext("m:version", "", space)
    raise LookupError(f"{pom} asks for no {artifact}")


def properties(settings: Mapping[str, object]) -> str:
    """Return settings as a properties file."""
    return "".join(f"{key}={value}\n" for key, value in settings.items())
