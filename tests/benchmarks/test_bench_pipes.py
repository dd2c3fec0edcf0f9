"""The benchmark of pipes writes and reads what it says it does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.worlds.warm_sandbox import WarmSandbox

from benchmarks.cluster import run
from benchmarks.pipes import read_by_command, write_by_command, write_by_core, write_lines

pytestmark = pytest.mark.processes


def test_lines_come_out_of_a_log_as_they_went_in_by_the_command_and_by_the_core(
    warm_sandbox: WarmSandbox, tmp_path: Path
) -> None:
    lines, out = tmp_path / "lines", tmp_path / "out"
    write_lines(lines, 60_000)
    assert write_by_command(warm_sandbox.uri, "piped", lines).processor_s > 0
    run(write_by_core(warm_sandbox.uri, "piped", 60_000))
    read_by_command(warm_sandbox.uri, "piped", "raw", out)
    # The core's writer has begun before its time does, with the first record.
    assert out.read_bytes() == lines.read_bytes() + b"1\n" + lines.read_bytes()


def test_a_benchmark_that_is_stopped_leaves_no_command_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def interrupted(pid: int, options: int) -> None:
        started.append(pid)
        raise KeyboardInterrupt

    monkeypatch.setattr("os.wait4", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read_by_command("distributedlog://localhost:1/none", "none", "raw", tmp_path / "out")
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
