"""Movers as processes, killed at fault points drawn by a seed, while a reader reads: nothing is lost, nothing left."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlspark.core.sync.namespace import Namespace
from dlspark.sandbox.processes import child_environment
from dlspark.sandbox.sandbox import Sandbox
from metadata.foundation import fault_points

pytestmark = [pytest.mark.processes, pytest.mark.torture]

POINTS = [
    f"cold.{when}-{what}"
    for when in ("before", "after")
    for what in ("begin", "copy", "read-back", "finish", "head", "delete-hot", "sweep-ledgers")
] + ["cold.segment-copied", "cold.written"]
SETTINGS = {"coldHotRetentionSeconds": "0"}


@pytest.fixture(scope="module")
def kill_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    home = tmp_path_factory.mktemp("killed-movers")
    with Sandbox(home / "sandbox", nodes=1, cold=home / "files", zookeeper_tick_ms=200) as running:
        running.mover.kill()
        yield running


def _move(sandbox: Sandbox, log: str, faults: str | None) -> subprocess.CompletedProcess[str]:
    environment = child_environment() | ({fault_points.VARIABLE: faults} if faults is not None else {})
    sets = [f"--set={key}={value}" for key, value in SETTINGS.items()]
    command = [sys.executable, "-m", "dlspark.cli", "cold", "move", log, "--all", "--output", "json"]
    where = [f"--uri={sandbox.uri}", f"--conf={sandbox.mover.conf}", "--set=zkSessionTimeoutSeconds=2"]
    return subprocess.run([*command, *where, *sets], env=environment, capture_output=True, text=True, check=False)


def _moved_at_last(sandbox: Sandbox, log: str) -> dict[str, object]:
    """Move in a process that nothing kills, once the dead one's lock has gone with its session."""
    for _ in range(40):
        done = _move(sandbox, log, None)
        found = json.loads(done.stdout)
        if found["busy"] is None:
            assert done.returncode == 0, (done.stdout, done.stderr)
            return found  # type: ignore[no-any-return]
    raise AssertionError("the lock of a dead mover does not go")


def test_movers_that_are_killed_anywhere_lose_nothing_and_leave_nothing(kill_sandbox, rounds, tmp_path):
    home = Path(kill_sandbox.mover.files)
    rng = random.Random(31)
    with Namespace.open(kill_sandbox.uri, kill_sandbox.settings) as namespace:
        for number in range(rounds or 3):
            name = f"log{number}"
            written = []
            with namespace.open_log(name) as log:
                for segment in range(4):
                    with log.open_writer() as writer:
                        for record in range(20):
                            payload = f"{segment}/{record}".encode() * rng.randint(1, 50)
                            writer.write(segment * 100 + record, payload)
                            written.append(payload)
                point = rng.choice(POINTS)
                flag = tmp_path / f"struck-{number}"
                if "head" in point or "hot" in point or "sweep" in point:
                    # The newest completed segment stays: another one behind the file's lets its hot copies go.
                    _moved_at_last(kill_sandbox, name)
                    with log.open_writer() as writer:
                        writer.write(1000, b"last")
                        written.append(b"last")
                killed = _move(kill_sandbox, name, json.dumps({point: {"do": "die", "flag": str(flag)}}))
                assert flag.exists(), (point, killed.stdout, killed.stderr)
                with log.open_reader() as reader:
                    assert [bytes(reader.read_next().payload) for _ in written] == written, point
                _moved_at_last(kill_sandbox, name)
                with log.open_reader() as reader:
                    assert [bytes(reader.read_next().payload) for _ in written] == written, point
    # What is left over is old enough for the sweep only tomorrow: what is named is whole, and no attempt is left.
    audit = [sys.executable, "-m", "dlspark.cli", "cold", "verify", *(f"log{one}" for one in range(rounds or 3))]
    done = subprocess.run(
        [*audit, f"--uri={kill_sandbox.uri}"], env=child_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(home.rglob("*.parquet"))
