"""Exactly once with Spark itself: drivers as processes, killed, doubled, retried and left without an answer.

One round of those killed, with --rounds a few of each kind, and then with typed frames as well; more
of each without a JVM are in `test_exactly_once_rounds`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from helpers.paths import ROOT, SPARK_PROGRAMS
from helpers.spark.programs.spark_driver import ROWS_PER_BATCH
from helpers.spark.sink_driver import declare_logs, read_values
from helpers.spark.typed_frames import Using

from dlspark.sandbox.sandbox import Sandbox
from dlspark.tables.arrow_types import schema_from_arrow
from dlspark.tables.codecs import RecordDecoder
from dlspark.tables.declaration import Declaration, RecordFormat
from metadata.foundation import fault_points

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.torture, pytest.mark.timeout(1000)]
BOTH = pytest.mark.usefixtures("frames")

MOST_ROUNDS = 5
"""Queries of one driver where --rounds asks for more; without it there is one."""
UNTIL = 2
DRIVER_TIMEOUT_S = 400
SCRIPT = SPARK_PROGRAMS / "spark_driver.py"
SCHEMA = schema_from_arrow(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("item", pa.string()),
            pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        ]
    )
)
"""Of typed frames."""


class Driver:
    """One driver process with everything that it starts."""

    def __init__(self, sandbox: Sandbox, place: Path, targets: list[tuple[str, Path]], **options: object) -> None:
        self._output = place / "driver.log"
        environment = {
            **os.environ,
            "DLSPARK_URI": sandbox.uri,
            "DLSPARK_SET_zkSessionTimeoutSeconds": "4",
            "COMMIT_MODE": str(options.get("mode", "auto")),
            "FRAMES": str(options.get("frames", Using.frames.kind)),
            "PROXY": str(options.get("proxy", "")),
            "JAR": str(options.get("jar", "")),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            fault_points.VARIABLE: json.dumps(options.get("faults", {})),
        }
        arguments = [f"{log}:{checkpoint}" for log, checkpoint in targets]
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(options.get("master", "local[2]")), str(UNTIL), *arguments],
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait for a clean end."""
        status = self.process.wait(DRIVER_TIMEOUT_S)
        assert status == 0, self._output.read_text()[-4000:]

    def await_file(self, path: Path) -> None:
        """Wait until `path` exists, while the driver runs."""
        deadline = time.monotonic() + DRIVER_TIMEOUT_S
        while not path.exists():
            assert self.process.poll() is None, self._output.read_text()[-4000:]
            assert time.monotonic() < deadline, self._output.read_text()[-4000:]
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL the driver, its JVM and every Python worker, as the loss of the machine would."""
        if self.process.poll() is None:
            family = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
            for member in family:
                try:
                    member.send_signal(signal.SIGKILL)
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(family, 20)
        self.process.wait(60)


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    started: list[Driver] = []
    yield started
    for driver in started:
        driver.kill()


def targets_of(sandbox: Sandbox, name: str, place: Path, rounds: int | None) -> list[tuple[str, Path]]:
    """The log and the checkpoint of each query of a driver."""
    numbers = range(min(rounds or 1, MOST_ROUNDS))
    return [(named(sandbox, f"{name}-{number}"), place / f"checkpoint-{number}") for number in numbers]


def named(sandbox: Sandbox, log: str) -> str:
    """A log's name for the frames of the test; if they are typed it declares their columns."""
    if not Using.frames.typed:
        return log
    name = f"{log}-typed"
    declare_logs(sandbox.uri, declaration_for(name), name)
    return name


def declaration_for(log: str) -> Declaration:
    """What a log of typed frames declares: each format is some test's."""
    formats = list(RecordFormat)
    return Declaration.of(formats[zlib.crc32(log.encode()) % len(formats)], SCHEMA, timestamp="at")


def count(sandbox: Sandbox, log: str) -> int:
    txids, values = read_values(sandbox.uri, log)
    return len(typed_ids(declaration_for(log), txids, values) if Using.frames.typed else values)


def check(sandbox: Sandbox, log: str) -> None:
    """Every batch whole and once: the first task's rows (even numbers), then the second's."""
    if Using.frames.typed:
        check_typed(sandbox, log, declaration_for(log))
        return
    txids, values = read_values(sandbox.uri, log)
    assert values == [
        str(batch * ROWS_PER_BATCH + n).encode()
        for batch in range(UNTIL + 1)
        for n in (*range(0, ROWS_PER_BATCH, 2), *range(1, ROWS_PER_BATCH, 2))
    ]
    assert len(set(txids)) == UNTIL + 1
    assert txids == sorted(txids)


@BOTH
def test_a_driver_killed_between_publication_and_commit_log_leaves_one_copy(
    sandbox: Sandbox, tmp_path: Path, drivers: list[Driver]
) -> None:
    """Killed at either point, the second time by the driver that made up for the first, in the other mode."""
    log, checkpoint = named(sandbox, "spark-killed"), tmp_path / "checkpoint"
    # Where a batch is appended, the second point is in another process than the driver's.
    for batch, (point, mode) in enumerate([("sink.published", "auto"), ("sink.applied", "segments")]):
        flag = tmp_path / f"flag-{batch}"
        # The second driver publishes the first one's batch again, which changes nothing and applies nothing.
        script = {point: {"do": "hang", "flag": str(flag)}}
        doomed = Driver(sandbox, tmp_path, [(log, checkpoint)], faults=script, mode=mode)
        drivers.append(doomed)
        doomed.await_file(flag)
        doomed.kill()
        assert (checkpoint / "offsets" / str(batch)).exists()
        assert not (checkpoint / "commits" / str(batch)).exists()
        assert count(sandbox, log) == ROWS_PER_BATCH * (batch + 1)
    again = Driver(sandbox, tmp_path, [(log, checkpoint)])
    drivers.append(again)
    again.wait()
    check(sandbox, log)


@pytest.mark.long
def test_a_driver_killed_while_the_jar_waits_for_its_batch_leaves_one_copy(
    sandbox: Sandbox, tmp_path: Path, drivers: list[Driver]
) -> None:
    """Batches that pass Python by (docs/spark.md#small-batches): the process that appends has done it, and nobody hears
    so. The next driver goes on with the jar, the one behind it without."""
    log, checkpoint = "spark-killed-jar", tmp_path / "checkpoint"
    for batch in range(2):
        flag = tmp_path / f"flag-{batch}"
        doomed = Driver(
            sandbox,
            tmp_path,
            [(log, checkpoint)],
            faults={"sink.applied": {"do": "hang", "flag": str(flag)}},
            frames="raw",
            jar="yes",
        )
        drivers.append(doomed)
        doomed.await_file(flag)
        doomed.kill()
        assert not (checkpoint / "commits" / str(batch)).exists()
    again = Driver(sandbox, tmp_path, [(log, checkpoint)], frames="raw")
    drivers.append(again)
    again.wait()
    check(sandbox, log)


@pytest.mark.long
@BOTH
def test_a_task_that_fails_after_writing_and_runs_again_leaves_one_copy(
    sandbox: Sandbox, tmp_path: Path, drivers: list[Driver], rounds: int | None
) -> None:
    targets = targets_of(sandbox, "spark-retried", tmp_path, rounds)
    flag = tmp_path / "flag"
    # A worker that failed is not used again, so each of the struck tasks is the first of its process.
    script = {"sink.staged": {"do": "raise", "flag": str(flag)}}
    driver = Driver(sandbox, tmp_path, targets, master="local[2,3]", faults=script)
    drivers.append(driver)
    for _, checkpoint in targets:
        driver.await_file(flag)
        flag.rename(checkpoint.with_suffix(".struck"))  # the next query is struck as well
        driver.await_file(checkpoint / "commits" / str(UNTIL - 1))
    driver.wait()
    for log, _ in targets:
        check(sandbox, log)


@pytest.mark.long
@BOTH
def test_two_drivers_with_one_checkpoint_leave_one_copy(
    sandbox: Sandbox, tmp_path: Path, drivers: list[Driver], rounds: int | None
) -> None:
    targets = targets_of(sandbox, "spark-twice", tmp_path, rounds)
    copies = [(log, tmp_path / f"copy-{number}") for number, (log, _) in enumerate(targets)]
    for (_, checkpoint), (_, copy) in zip(targets, copies, strict=True):
        checkpoint.mkdir()
        (checkpoint / "metadata").write_text(
            json.dumps({"id": f"00000000-0000-0000-0000-{time.time_ns() % 10**12:012d}"})
        )
        shutil.copytree(checkpoint, copy)
    for place, chosen in ((tmp_path / "one", targets), (tmp_path / "two", copies)):
        place.mkdir()
        drivers.append(Driver(sandbox, place, chosen))
    for driver in drivers:
        driver.wait()
    for log, _ in targets:
        check(sandbox, log)


@pytest.mark.long
@BOTH
def test_a_publication_whose_answer_is_lost_leaves_one_copy(
    sandbox: Sandbox, tmp_path: Path, drivers: list[Driver], rounds: int | None
) -> None:
    targets = targets_of(sandbox, "spark-unknown", tmp_path, rounds)
    flag = tmp_path / "flag"
    driver = Driver(sandbox, tmp_path, targets, faults={"sink.applied": {"do": "lose", "flag": str(flag)}})
    drivers.append(driver)
    for _, checkpoint in targets:
        driver.await_file(flag)
        flag.rename(checkpoint.with_suffix(".struck"))
        driver.await_file(checkpoint / "commits" / str(UNTIL - 1))
    driver.wait()
    for log, _ in targets:
        check(sandbox, log)


WAYS = {"proxy": {"proxy": "discover"}, "append": {"mode": "append"}, "segments": {"mode": "segments"}}
"""How a driver that is killed commits typed frames."""


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox with write proxies, which no other test needs."""
    with Sandbox(tmp_path_factory.mktemp("tier"), nodes=3, proxies=1) as running:
        yield running


@pytest.mark.long
def test_typed_frames_of_a_driver_killed_behind_its_publication_are_there_once(
    tier: Sandbox, tmp_path: Path, drivers: list[Driver]
) -> None:
    """Each way's first batch is published, and Spark does not know it; another driver goes on with all of them."""
    targets = []
    for number, (way, options) in enumerate(WAYS.items()):
        log, checkpoint, flag = f"spark-typed-{way}", tmp_path / way, tmp_path / f"flag-{way}"
        declaration = Declaration.of(list(RecordFormat)[number % 2], SCHEMA, timestamp="at")
        declare_logs(tier.uri, declaration, log)
        faults = {"sink.published": {"do": "hang", "flag": str(flag)}}
        doomed = Driver(tier, tmp_path, [(log, checkpoint)], frames="typed", faults=faults, **options)
        drivers.append(doomed)
        doomed.await_file(flag)
        doomed.kill()
        assert not (checkpoint / "commits" / "0").exists()
        assert len(read_values(tier.uri, log)[0]) == ROWS_PER_BATCH
        targets.append((log, checkpoint, declaration))
    again = Driver(tier, tmp_path, [(log, checkpoint) for log, checkpoint, _ in targets], frames="typed")
    drivers.append(again)
    again.wait()
    for log, _, declaration in targets:
        check_typed(tier, log, declaration)


def check_typed(tier: Sandbox, log: str, declaration: Declaration) -> None:
    """Every batch whole and once, in its place, and no row later than its id."""
    txids, payloads = read_values(tier.uri, log)
    assert txids == sorted(txids)
    ids = typed_ids(declaration, txids, payloads)
    batches = [sorted(ids[begin : begin + ROWS_PER_BATCH]) for begin in range(0, len(ids), ROWS_PER_BATCH)]
    assert batches == [list(range(n * ROWS_PER_BATCH, (n + 1) * ROWS_PER_BATCH)) for n in range(UNTIL + 1)]


def typed_ids(declaration: Declaration, txids: list[int], payloads: list[bytes]) -> list[int]:
    """The numbers of the rows that records hold, all of which fit."""
    found = RecordDecoder(declaration).decode(pa.array(payloads, pa.binary()), pa.array(txids, pa.int64()))
    assert found.errors.null_count == len(found.errors)
    return [row["id"] for row in found.rows.to_pylist() if row["item"] == str(row["id"])]
