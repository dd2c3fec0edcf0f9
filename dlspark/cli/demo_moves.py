"""The demo's cold storage: one `dlspark cold move` in a process of its own while the query writes, and what of the log
is where afterwards.

The pass takes every segment that is completed while it works, so how many are cold in the end depends on the machine.
Not so that there are some at each place: the file of the newest completed segment keeps its hot copies whatever is
asked, and the demo holds its last part back until the pass has ended.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyarrow import parquet

from dlspark.sandbox.processes import child_environment
from dlspark.sandbox.sandbox import COPIES
from metadata.foundation.errors import NotAppliedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGINS_AT: Final = 5 / 8
"""The part of the flights that is written when the pass begins."""
TARGET_BYTES: Final = 16 << 20
"""coldTargetBytes: few of the demo's segments, so that there are several files."""


class DemoMove:
    """How does the past of the demo's log become files while the rest is written? Usable as a context manager, which
    ends a pass that is under way.

    Args:
        uri: the namespace's.
        log: the log.
        folder: where files go; it is made.
    """

    def __init__(self, uri: str, log: str, folder: Path) -> None:
        folder.mkdir()
        # Hot copies go at once, but for those of the newest completed segment, which always stay.
        settings = {"coldStoragePath": folder, "coldTargetBytes": TARGET_BYTES, "coldHotRetentionSeconds": 0}
        self._command = [sys.executable, "-m", "dlspark.cli", "cold", "move", log, "--all", f"--uri={uri}"]
        self._command += [f"--set={key}={value}" for key, value in settings.items()]
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> DemoMove:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def begin(self, written: float) -> bool:
        """Begin the pass and return True, if it has not begun and so much is written that it is time. Never waits."""
        if self._process is not None or written < BEGINS_AT:
            return False
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._folder,  # and not the user's, which Python would put before all else
            env=child_environment(secured_as_here=True),
        )
        return True

    @property
    def ended(self) -> bool:
        """Whether the pass has begun and ended."""
        return self._process is not None and self._process.poll() is not None

    def result(self) -> str:
        """Return in words what the pass has done, after its end. Raises NotAppliedError where it has failed."""
        assert self._process is not None
        output, errors = self._process.communicate()
        if self._process.returncode:
            raise NotAppliedError(
                f"dlspark cold move ended with status {self._process.returncode}: {(output + errors).strip()}",
                advice="What it has moved stays moved; the demo makes a new log when it is run again",
            )
        lines = output.splitlines()
        made, gone = (sum(words in line for line in lines) for words in (" are in file:", " are no longer hot"))
        return f"{made} files made; of {gone} of them the copies on storage nodes are gone"


@dataclass(frozen=True, slots=True)
class DemoPlace:
    """How much of the log is at one place?

    Args:
        segments: how many are there.
        flights: their records.
        node_bytes: what all their copies on storage nodes have now.
        former_bytes: the same, with copies that are gone.
        file_bytes: what files have.
    """

    segments: int
    flights: int
    node_bytes: int
    former_bytes: int
    file_bytes: int


def places(spark: SparkSession, log: str) -> dict[str, DemoPlace]:
    """Return what is at each place, `cold`, `both` and `hot`, as the connector's table `segments` has it."""
    rows = spark.read.format("distributedlog").option("metadata", "segments").load(log)
    rows.createOrReplaceTempView("segments_of_the_demo")
    found = spark.sql("""
        SELECT place, count(*) AS segments, sum(records) AS flights,
            sum(if(ledger_state IS NULL, 0, bytes)) AS node_bytes, sum(bytes) AS former_bytes,
            sum(coalesce(cold_bytes, 0)) AS file_bytes
        FROM segments_of_the_demo GROUP BY place
    """).collect()
    return {
        row["place"]: DemoPlace(
            row["segments"], row["flights"], row["node_bytes"] * COPIES, row["former_bytes"] * COPIES, row["file_bytes"]
        )
        for row in found
    }


def ids_of_files(folder: Path) -> list[int]:
    """Return the column `id` of all files, by Arrow alone, in the order of the segments that their names begin with."""
    files = sorted(folder.rglob("*.parquet"), key=lambda path: int(path.name.partition("-")[0]))
    return [number for file in files for number in parquet.read_table(file, columns=["id"])["id"].to_pylist()]
