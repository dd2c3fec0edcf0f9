"""Queries outlive what a cluster outlives: storage nodes that go and come back, and the death of their own driver.

They run with --rounds. Without it `source/test_many_batches` has a query over nodes that die, `sink/test_sink_outages`
batches whose nodes go and come or stay away, and `sink/test_exactly_once_spark` a driver that is killed.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from helpers.paths import ROOT, SPARK_PROGRAMS
from helpers.spark.sink_driver import declare_logs, read_values
from helpers.spark.typed_frames import RAW, Frames

from dlspark.core.sync.namespace import Namespace
from dlspark.sandbox.sandbox import Sandbox

pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.torture,
    pytest.mark.long,
    pytest.mark.timeout(3000),
]

MODES = ("segments", "append")
MIXED = "mixed"
BOTH = "both"
"""A driver whose queries take one mode each; see three_queries.py."""
SCRIPT = SPARK_PROGRAMS / "three_queries.py"
PATIENCE_S = 400
WAITED_FOR = "is waited for, up to"
LOST = 2
ALL_BUT_ONE = 3
"""A segment that is open goes on with two of its three nodes, so batches that are appended need not wait for two."""
OUTAGE_S = 30
"""Long enough for nodes to be started on a busy machine."""
LOST_NODES = {"segments": LOST, "append": ALL_BUT_ONE, BOTH: ALL_BUT_ONE}
"""As many as every batch waits for."""
ROUNDS = 1
"""Kills of a driver, where --rounds does not say how many."""
ENDLESS = 10**9
"""Rows of a driver that cannot be done before the test has done to it what it is about."""


FRAMES = pytest.mark.parametrize(
    "frames", [pytest.param(Frames(), id=RAW), pytest.param(Frames("json"), id="json", marks=pytest.mark.long)]
)
"""What the queries read and write: bytes, or columns that the logs declare."""


class Driver:
    """The driver of three queries, with everything that it starts."""

    def __init__(
        self,
        sandbox: Sandbox,
        place: Path,
        name: str,
        mode: str,
        frames: Frames,
        rows: int = ENDLESS,
        outage_timeout: str = "2m",
    ) -> None:
        self.output = place / "driver.log"
        self._written = self.output.stat().st_size if self.output.exists() else 0
        environment = {
            **os.environ,
            "DLSPARK_URI": sandbox.uri,
            "FRAMES": frames.kind,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), "local[2]", str(place), name, str(rows), outage_timeout, mode],
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )

    @property
    def told(self) -> str:
        """What this driver, and not those before it, has printed."""
        with self.output.open("rb") as output:
            output.seek(self._written)
            return output.read().decode("utf-8", "replace")

    def wait(self) -> None:
        """Wait for a clean end."""
        status = self.process.wait(PATIENCE_S)
        assert status == 0, self.told[-6000:]

    def wait_for_failure(self) -> str:
        """Wait for it to end with an error, and return that."""
        assert self.process.wait(PATIENCE_S) != 0
        return self.told

    def await_told(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.told:
            assert self.process.poll() is None, self.told[-6000:]
            assert time.monotonic() < deadline, self.told[-6000:]
            time.sleep(0.05)

    def kill(self, *, workers: bool = True) -> None:
        """SIGKILL the driver and its JVM; its Python workers as well, or they find out by themselves."""
        if self.process.poll() is None:
            own = psutil.Process(self.process.pid)
            family = [*own.children(recursive=True), own]
            doomed = [one for one in family if workers or one.name().startswith("java") or one.pid == own.pid]
            for member in doomed:
                try:
                    member.send_signal(signal.SIGKILL)
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(doomed, 20)
        self.process.wait(60)


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    started: list[Driver] = []
    yield started
    for driver in started:
        driver.kill()


@pytest.fixture
def own_sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """Nodes that no other test needs."""
    with Sandbox(tmp_path / "sandbox", nodes=4) as sandbox:
        yield sandbox


def make_logs(uri: str, name: str, frames: Frames) -> None:
    with Namespace.open(uri) as namespace:
        for part in "abc":
            namespace.create_log(f"{name}-{part}")
    if frames.typed:
        declare_logs(uri, frames.declaration, *(f"{name}-{part}" for part in "abc"))


def count(uri: str, log: str) -> int:
    """Records that can be read."""
    with Namespace.open(uri) as namespace, namespace.open_log(log) as opened:
        return opened.record_count()


def await_count(driver: Driver, uri: str, log: str, rows: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while count(uri, log) < rows:
        assert driver.process.poll() is None, driver.told[-6000:]
        assert time.monotonic() < deadline, driver.told[-6000:]
        time.sleep(0.1)


def in_turn(mode: str, number: int) -> str:
    """The mode of the driver of this number."""
    return ("append", "segments", "auto")[number % 3] if mode == MIXED else mode


def finish(sandbox: Sandbox, place: Path, name: str, mode: str, frames: Frames, drivers: list[Driver]) -> None:
    """Let a last driver do what the one before it has planned and some more: then each log has each row once, and the
    copies are in the order of what they were read from; typed rows have times of their own, and the order of these."""
    rows = count(sandbox.uri, f"{name}-a") + 200
    last = Driver(sandbox, place, name, mode, frames, rows)
    drivers.append(last)
    last.wait()
    first, *copies = (read(sandbox.uri, f"{name}-{part}", frames) for part in "abc")
    assert sorted(map(int, first)) == list(range(rows))
    for part, copy in zip("bc", copies, strict=True):
        assert (sorted(copy) == sorted(first)) if frames.typed else (copy == first), part


def read(uri: str, log: str, frames: Frames) -> list[bytes]:
    """The values of a log's rows, in order."""
    txids, payloads = read_values(uri, log)
    return frames.read(payloads, txids)


@FRAMES
@pytest.mark.parametrize("mode", [*MODES, BOTH])
def test_queries_wait_for_nodes_and_end_when_they_stay_away_and_go_on_exactly_from_their_checkpoints(
    own_sandbox: Sandbox, tmp_path: Path, drivers: list[Driver], mode: str, frames: Frames
) -> None:
    uri = own_sandbox.uri
    lost = range(LOST_NODES[mode])
    make_logs(uri, "gone", frames)
    driver = Driver(own_sandbox, tmp_path, "gone", mode, frames, outage_timeout=f"{OUTAGE_S}s")
    drivers.append(driver)
    await_count(driver, uri, "gone-c", 100)
    for index in lost:
        own_sandbox.kill_node(index)
    driver.await_told(WAITED_FOR)
    for index in lost:
        own_sandbox.start_node(index)
    before = {part: count(uri, f"gone-{part}") for part in "abc"}
    for part in "abc":
        await_count(driver, uri, f"gone-{part}", before[part] + 200)
    for index in lost:
        own_sandbox.kill_node(index)
    told = driver.wait_for_failure()
    assert f"waited {OUTAGE_S} s for what is away to come back" in told
    assert re.search(r"(away: |cannot connect to |no replacement for )127\.0\.0\.1:", told), "it names them"
    for index in lost:
        own_sandbox.start_node(index)
    finish(own_sandbox, tmp_path, "gone", mode, frames, drivers)


@FRAMES
@pytest.mark.parametrize("mode", [*MODES, MIXED])
def test_a_driver_that_is_killed_again_and_again_starts_without_an_error_and_loses_nothing(
    own_sandbox: Sandbox,
    tmp_path: Path,
    drivers: list[Driver],
    rounds: int | None,
    seed: int | None,
    mode: str,
    frames: Frames,
) -> None:
    """`mixed`: each driver takes another mode than the one before it. Kills that aim: `sink/test_exactly_once_*`."""
    kills = rounds or ROUNDS
    rng = random.Random(seed or 0)
    uri = own_sandbox.uri
    make_logs(uri, "killed", frames)
    for kill in range(kills):
        driver = Driver(own_sandbox, tmp_path, "killed", in_turn(mode, kill), frames)
        drivers.append(driver)
        if rng.random() < 0.7:
            slowest = min(count(uri, f"killed-{part}") for part in "bc")
            await_count(driver, uri, f"killed-{rng.choice('abc')}", slowest + rng.randrange(50, 400))
            time.sleep(rng.random())  # anywhere in a batch
        else:
            time.sleep(rng.uniform(3, 25))  # anywhere in its start, too
        assert driver.process.poll() is None, driver.told[-6000:]
        driver.kill(workers=rng.random() < 0.5)
        print(f"kill {kill}: {[count(uri, f'killed-{part}') for part in 'abc']} rows", flush=True)
    finish(own_sandbox, tmp_path, "killed", in_turn(mode, kills), frames, drivers)
