"""Writing that goes on: does a cluster keep the rate of its first minute?

    python -m benchmarks.sustained --minutes 30 --json curve.json

writes 256 KB entries to three storage nodes, as fast as they take them, and deletes each ledger when the next one is
full, so that the nodes roll their journals, take checkpoints and collect entry logs all the time. It prints a line for
each window (`--every`, a minute): MB a second in the mean, the slowest and the fastest second, what a MB cost the nodes
and the client in processor time, bytes that went to disks for each byte written, the nodes' memory and files. The last
line compares the last quarter with the first one.

Times say something only of a machine that does nothing else; processor time and bytes to disk do in any case.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

from benchmarks.cluster import NODES, REPLICAS, Cluster, run, server_pids
from benchmarks.machine import header
from benchmarks.payloads import ENTRY_BYTES
from benchmarks.processes import exact_cpu_s
from benchmarks.storage import new_writer
from storage_node.client.client import LedgerClient
from storage_node.client.writer import LedgerWriter

LEDGER_BYTES = 512 << 20
"""A ledger is deleted once the next one is as long: that keeps the disk from filling up."""
COLLECTED_EVERY_MS = 10_000
HEADER_LINES = 4
SHORTEST_S = 0.5
"""A shorter interval is not among the slowest and the fastest ones."""
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Figures:
    """What have the processes done so far?"""

    nodes_cpu_s: float
    client_cpu_s: float
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """How was it written for a while?"""

    minute: float
    """When it ended."""
    mean: float
    slowest: float
    fastest: float
    """MB a second: of all of it, and of its seconds."""
    nodes_ms: float
    client_ms: float
    """Milliseconds of processor for a MB: of all nodes, of the client."""
    to_disk: float
    """Bytes handed to disks, of all nodes, for each byte written."""
    memory_mb: float
    """Resident, of all nodes."""
    files_mb: float
    """On disk, of all nodes."""

    def line(self) -> str:
        """Return it as a line of the table."""
        parts = (self.mean, self.slowest, self.fastest, self.nodes_ms, self.client_ms, self.to_disk)
        numbers = " | ".join(f"{number:,.3g}" if number < 100 else f"{number:,.0f}" for number in parts)
        return f"| {self.minute:.1f} | {numbers} | {self.memory_mb:,.0f} | {self.files_mb:,.0f} |"


HEADING = (
    "| minute | MB/s | slowest second | fastest second | nodes ms/MB | client ms/MB | to disk, bytes a byte | "
    "nodes' memory, MB | nodes' files, MB |\n|---|---|---|---|---|---|---|---|---|"
)


@dataclass(slots=True)
class Writing:
    """Writes ledger after ledger until it is stopped, and counts the bytes that are acknowledged."""

    client: LedgerClient
    written: int = 0
    stopped: bool = False
    error: BaseException | None = None
    _full: list[int] = field(default_factory=list)

    async def run(self) -> None:
        """Write. Raises what an add failed with."""
        payload = os.urandom(ENTRY_BYTES)
        while not self.stopped:
            writer = await new_writer(self.client)
            await self._fill(writer, payload)
            await writer.close()
            self._full.append(writer.ledger_id)
            if len(self._full) > 1:
                await self.client.delete(self._full.pop(0))

    async def _fill(self, writer: LedgerWriter, payload: bytes) -> None:
        for _ in range(LEDGER_BYTES // ENTRY_BYTES):
            await writer.wait_for_room()
            writer.add(payload).add_done_callback(self._acknowledged)
            if self.error is not None:
                raise self.error
            if self.stopped:
                return

    def _acknowledged(self, future: asyncio.Future[int]) -> None:
        if (error := future.exception()) is not None:
            self.error = error
        else:
            self.written += ENTRY_BYTES


class Sustained:
    """One run on one cluster."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self.curve: list[Stretch] = []

    async def run(self, seconds: float, every_s: float, report: Path | None) -> None:
        """Write for so long; print a line after each `every_s`."""
        print(HEADING, flush=True)
        async with self._cluster.client() as client:
            writing = Writing(client)
            task = asyncio.ensure_future(writing.run())
            try:
                begun = time.perf_counter()
                while (now := time.perf_counter()) - begun < seconds and not task.done():
                    stretch = await self._stretch(writing, task, begun, min(every_s, seconds - (now - begun)))
                    self.curve.append(stretch)
                    print(stretch.line(), flush=True)
                    if report is not None:
                        write_report(report, self.curve)
            finally:
                writing.stopped = True
                await task

    async def _stretch(self, writing: Writing, task: asyncio.Future[None], begun: float, seconds: float) -> Stretch:
        before, first = self._figures(), writing.written
        start = last_at = time.perf_counter()
        last, rates = first, list[tuple[float, float]]()
        while (left := start + seconds - time.perf_counter()) > 0 and not task.done():
            await asyncio.sleep(min(1.0, left))
            now = time.perf_counter()
            rates.append((now - last_at, (writing.written - last) / (now - last_at) / MB))
            last, last_at = writing.written, now
        after, written = self._figures(), max(writing.written - first, 1)
        files = await asyncio.to_thread(self._files_bytes)
        return Stretch(
            (time.perf_counter() - begun) / 60,
            written / (last_at - start) / MB,
            *slowest_and_fastest(rates),
            (after.nodes_cpu_s - before.nodes_cpu_s) * 1e3 / (written / MB),
            (after.client_cpu_s - before.client_cpu_s) * 1e3 / (written / MB),
            (after.disk_bytes - before.disk_bytes) / written,
            sum(map(resident_bytes, server_pids(self._cluster.sandbox)[NODES])) / MB,
            files / MB,
        )

    def _figures(self) -> Figures:
        nodes = sum(map(exact_cpu_s, server_pids(self._cluster.sandbox)[NODES]))
        return Figures(nodes, exact_cpu_s(os.getpid()), self._cluster.disk_bytes_written())

    def _files_bytes(self) -> int:
        found = 0
        for path in self._directory.rglob("*.log"):
            try:
                found += path.stat().st_size
            except FileNotFoundError:  # it was collected just now
                continue
        return found


def slowest_and_fastest(rates: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the extremes of (seconds, rate). What is left of a stretch at its end may be an instant, of which a rate
    says nothing: intervals below half a second count only where there are no others."""
    told = [rate for seconds, rate in rates if seconds >= SHORTEST_S] or [rate for _, rate in rates]
    return min(told), max(told)


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process (Linux)."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def write_report(path: Path, curve: Sequence[Stretch]) -> None:
    """Write the curve as JSON."""
    path.write_text(json.dumps([asdict(one) for one in curve], indent=1) + "\n")


def conclusion(curve: Sequence[Stretch]) -> str:
    """Compare the last quarter of the curve with its first one; the very first stretch, which warms up, is left out."""
    known = curve[1:]
    quarter = len(known) // 4
    if not quarter:
        return "too short to compare its end with its beginning"
    first, last = known[:quarter], known[-quarter:]

    def told(name: str, of: str) -> str:
        before, after = (statistics.median(getattr(one, of) for one in part) for part in (first, last))
        return f"{name} {before:,.3g} -> {after:,.3g} ({after / before:.2f})"

    figures = (("MB/s", "mean"), ("nodes ms/MB", "nodes_ms"), ("to disk", "to_disk"), ("memory MB", "memory_mb"))
    return "first quarter -> last quarter: " + "; ".join(told(*figure) for figure in figures)


def main() -> int:
    """Return 0 when it was written to the end."""
    options = _options()
    signal.signal(signal.SIGTERM, _leave)
    if options.dir is not None:
        Path(options.dir).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dlspark-sustained-", dir=options.dir) as name:
        directory = Path(name)
        lines = header(directory, 1, options.every * 60).splitlines()[:HEADER_LINES]
        print("\n".join(lines), f"{REPLICAS} nodes, entries of {ENTRY_BYTES >> 10} KB\n", sep="\n", flush=True)
        with Cluster(directory / "cluster", gcWaitTime=COLLECTED_EVERY_MS) as cluster:
            sustained = Sustained(cluster, directory)
            run(sustained.run(options.minutes * 60, options.every * 60, options.json))
    print(f"\n{conclusion(sustained.curve)}")
    return 0


def _leave(number: int, frame: FrameType | None) -> None:
    """End in order when a signal asks for it, so that processes and files go too."""
    sys.exit(128 + number)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sustained", description="Does the rate of writing last?"
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="how long is written (default %(default)g)")
    parser.add_argument("--every", type=float, default=1.0, help="minutes of a line (default %(default)g)")
    parser.add_argument("--dir", help="where to put the nodes' files")
    parser.add_argument("--json", type=Path, help="a file for the curve, written with each line")
    options = parser.parse_args()
    if options.minutes <= 0 or options.every <= 0:
        parser.error("minutes and every must be above 0")
    return options


if __name__ == "__main__":
    sys.exit(main())
