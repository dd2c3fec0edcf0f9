"""The lines that a table of figures needs: machine, versions, how the load was made."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

from benchmarks.cluster import ACK_QUORUM, REPLICAS
from benchmarks.kafka_broker import BROKER_POM, CONNECTOR_POM, version_of
from benchmarks.limits import direct_io
from dlspark.core.runtime import new_event_loop
from metadata.foundation import compiled

_PACKAGES = ("pyspark", "pyarrow", "numpy", "lz4", "isal", "uvloop")


def header(directory: Path, rounds: int, seconds: float) -> str:
    """Return the lines above the table."""
    loop = new_event_loop()
    loop.close()
    mode = "O_DIRECT" if direct_io(directory) else "buffered: O_DIRECT is refused here"
    broker, connector = version_of(BROKER_POM, "kafka_2.13"), version_of(CONNECTOR_POM, "spark-sql-kafka-0-10_2.13")
    versions = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    return "\n".join(
        (
            f"machine: {os.cpu_count()} x {_processor()}, {_memory_gb():.0f} GB, {platform.platform(terse=True)}",
            f"python {platform.python_version()}, {versions}; loop {type(loop).__module__}; {_core()}",
            f"disk: {directory} ({_file_system(directory)}), {mode}; fdatasync before every acknowledgement",
            f"load average before the start: {os.getloadavg()[0]:.1f} (other work on the machine spoils the figures)",
            f"replicas {REPLICAS}, acknowledged by {ACK_QUORUM}; {REPLICAS} nodes and the client share the machine",
            f"load: closed loop; rows P1-P5: windows of {seconds:g} s, the first fifth warm-up; rows P6-P8: warmed "
            "up until no job gets faster",
            "rows P11, P12: Java bookies and the Java client 4.18.0, JVMs as upstream starts them (1 GB heap, 2 GB "
            "direct memory, G1), upstream's defaults with journalFlushWhenQueueEmpty; warmed up uncounted; disks "
            "synced before each window",
            f"rows P13-P17: Kafka {broker}, one broker (1 GB heap, G1, as upstream starts it); spark-sql-kafka "
            f"{connector}, acks=all, batches of 256 KB; one Spark session for all; warmed up uncounted; disks synced "
            "before each window",
            "rows P18-P23: proxies with default settings, on this machine as well; P19: 100 clients in two processes; "
            "P21, P22: in the first round only",
            f"rounds: {rounds}, interleaved; limits measured before and after each; median (smallest-largest)",
            "reads (P3, P4): ledgers of 96 MB written just before, so from the nodes' tail caches or the page cache, "
            "not from a cold disk",
        )
    )


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _core() -> str:
    """Return in words whether this process, and what it starts, uses the compiled core."""
    return (
        f"compiled core {_version('dlspark-speed')}"
        if compiled.core is not None
        else f"no compiled core ({compiled.said})"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _file_system(directory: Path) -> str:
    """Return the type of the file system that holds `directory` (Linux)."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    holding = [(len(point), kind) for point, kind in mounts if directory.resolve().is_relative_to(point)]
    return max(holding)[1] if holding else "unknown file system"
