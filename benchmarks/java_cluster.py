"""Real Java bookies and the real Java client beside our cluster: the same ZooKeeper, the same file system.

The JVMs run as upstream's own scripts start them (1 GB heap, 2 GB direct memory, G1), the bookies with upstream's
defaults save for what `BOOKIE` says. `OutOfReachError` where the Java software cannot be had.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.cluster import REPLICAS
from dlspark.testing.java_process import JavaProgram, JavaSoftware, JavaTool, free_port

VERSION: Final = "4.18.0"
ROOT: Final = "/java"
HEAP: Final = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=2g", "-XX:+UseG1GC")
BOOKIE: Final[dict[str, object]] = {
    "journalSyncData": True,
    # Without these an append that is alone waits for others to share its sync, 2 ms as configured: ours does not wait.
    "journalFlushWhenQueueEmpty": True,
    # A full journal file is deleted, and takes no room while the benchmark runs.
    "journalMaxSizeMB": 256,
    "journalMaxBackups": 0,
    "diskUsageThreshold": 0.99,
    "diskUsageWarnThreshold": 0.985,
}
_PROGRAM: Final = JavaProgram(Path(__file__).resolve().parent / "java" / "src", "bench.Main", HEAP)


class JavaCluster:
    """As many bookies as replicas, each in a JVM of its own, and one JVM that is the client. A context manager."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        software = JavaSoftware.prepare(VERSION, _PROGRAM)
        self._directory = directory
        self._zookeeper = zookeeper
        directory.mkdir()
        self.client = JavaTool(software, directory / "client.log")
        self.bookies = [JavaTool(software, directory / f"bookie-{index}.log") for index in range(REPLICAS)]

    def __enter__(self) -> JavaCluster:
        try:
            self.client.call("cluster.init", zk=self._zookeeper, root=ROOT)
            for index, bookie in enumerate(self.bookies):
                home = str(self._directory / f"bookie-{index}")
                place = {"port": free_port(), "directory": home, "settings": BOOKIE}
                bookie.call("bookie.start", zk=self._zookeeper, root=ROOT, **place)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.client.stop()
        with ThreadPoolExecutor(REPLICAS) as pool:
            list(pool.map(JavaTool.stop, self.bookies))

    def rss_bytes(self) -> float:
        """Return the memory of a bookie's process, the mean of all."""
        return sum(rss_bytes(bookie.pid) for bookie in self.bookies) / len(self.bookies)

    def on(self, root: str) -> partial[object]:
        """Return what sends commands to the Java client, on the cluster below this root."""
        return partial(self.client.call, zk=self._zookeeper, root=root)


def rss_bytes(pid: int | None) -> int:
    """Return the resident memory of a process (Linux)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))
