"""Rows P45 and P46: lines through `dlspark write` and `dlspark read`, as a shell runs them.

A million short lines, the numbers from 1 on, come into the command through a pipe from `cat`, and leave it into a file,
which must hold the same bytes. The rate is of the whole command: the start of Python, the namespace, the log's lock and
the end of its segment are in it, some seconds of a busy machine. So the processor time of a line stands beside it, and
the same records by a writer of the log core in this process, which has no start.
"""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from benchmarks.cluster import Cluster, run
from benchmarks.results import Row, Target
from dlspark.core.namespace import AsyncNamespace

LINES: Final = 1_000_000
WANTED_K_PER_S: Final = 300
FORMS: Final = ("raw", "table", "json")
_BATCH_RECORDS: Final = 50_000


@dataclass(frozen=True, slots=True)
class Ran:
    """How long did a command take, and how much of a processor did it have?"""

    seconds: float
    processor_s: float


class PipeBenchmark:
    """Rows P45 and P46 on one cluster."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        """Measure on this cluster; lines go into files of the directory."""
        self._cluster = cluster
        self._directory = directory
        self._count = 0
        wanted = "k/s: wanted"
        self._write = Row("P45", "lines into a log by dlspark write, its start included", "k/s", wanted, Target(1.0))
        self._beside = Row("P45", "the same", "k/s", "k/s: the log core's writer, from memory", None)
        self._write_cpu = Row("P45", "the same: processor of the command, a line", "us", "us: the core's writer", None)
        self._read = [
            Row("P46", f"a log out of dlspark read --output {form}, its start included", "k/s", wanted, Target(1.0))
            for form in FORMS
        ]
        self.rows = [self._write, self._beside, self._write_cpu, *self._read]

    def round(self, seconds: float) -> None:
        """Measure every row once; how many lines there are does not hang on the time."""
        lines, out = self._directory / "lines", self._directory / "lines-out"
        write_lines(lines, LINES)
        self._count += 1
        name = f"bench-pipe-{self._count}"
        before = run(write_by_core(self._cluster.uri, f"{name}-core", LINES))
        written = write_by_command(self._cluster.uri, name, lines)
        after = run(write_by_core(self._cluster.uri, f"{name}-core", LINES))
        rate = LINES / written.seconds / 1e3
        self._write.add(rate, WANTED_K_PER_S)
        self._beside.add(rate, *(LINES / one.seconds / 1e3 for one in (before, after)))
        of_line = [one.processor_s / LINES * 1e6 for one in (written, before, after)]
        self._write_cpu.add(*of_line)
        for form, row in zip(FORMS, self._read, strict=True):
            found = read_by_command(self._cluster.uri, name, form, out)
            row.add(LINES / found.seconds / 1e3, WANTED_K_PER_S)
            if form == "raw" and not filecmp.cmp(lines, out, shallow=False):
                raise RuntimeError("what was read is not what was written")


def write_lines(path: Path, count: int) -> None:
    """Write the numbers from 1 to `count`, a line each."""
    path.write_bytes(b"".join(b"%d\n" % number for number in range(1, count + 1)))


def write_by_command(uri: str, name: str, lines: Path) -> Ran:
    """Write a file's lines into a log by the command, through a pipe."""
    with subprocess.Popen(["cat", lines], stdout=subprocess.PIPE) as source:
        return _command(uri, ["write", name], source.stdout.fileno() if source.stdout else None, subprocess.DEVNULL)


def read_by_command(uri: str, name: str, form: str, out: Path) -> Ran:
    """Read a log by the command, into a file."""
    with out.open("wb") as file:
        return _command(uri, ["read", name, "--output", form], subprocess.DEVNULL, file.fileno())


def _command(uri: str, arguments: list[str], stdin: int | None, stdout: int) -> Ran:
    environment = {**os.environ, "DLSPARK_URI": uri}
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "dlspark.cli", *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        _, status, used = os.wait4(process.pid, 0)
    except BaseException:
        process.kill()
        process.wait()
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"dlspark {' '.join(arguments)} ended with {process.returncode}")
    return Ran(time.perf_counter() - begin, used.ru_utime + used.ru_stime)


async def write_by_core(uri: str, name: str, count: int) -> Ran:
    """Write the same records from memory by a writer that is open already."""
    payloads = pa.array(np.arange(1, count + 1)).cast(pa.string()).cast(pa.binary())
    opening = AsyncNamespace.open(uri)
    async with await opening as namespace, await namespace.open_log(name) as log, await log.open_writer() as writer:
        await writer.write_batch(np.full(1, max(writer.last_txid, 1), np.int64), payloads[:1])
        begin, processor = time.perf_counter(), time.process_time()
        for first in range(0, count, _BATCH_RECORDS):
            await writer.wait_for_room()
            part = payloads.slice(first, _BATCH_RECORDS)
            writer.write_batch(np.full(len(part), writer.last_txid, np.int64), part)
        await writer.flush()
        return Ran(time.perf_counter() - begin, time.process_time() - processor)
