"""`dlspark bench` for real: a short run on a sandbox of its own, a run in a namespace, and one that Ctrl-C ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import pytest
from helpers.waiting import wait_until
from typer.testing import CliRunner

from dlspark.bench.rate_search import highest_rate
from dlspark.cli import bench
from dlspark.cli.main import app
from dlspark.core.sync.namespace import Namespace
from dlspark.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
PERCENTILES = ["p50", "p95", "p99", "p99_9", "max"]


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("bench"), nodes=3, proxies=1) as started:
        yield started


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dlspark.cli", "bench", *arguments]


def test_a_short_run_on_a_sandbox_of_its_own(tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    options = ["--workload", "1-log-100B", "--rate", "2000", "--seconds", "2", "--output", "json", "--plot", str(plot)]
    done = subprocess.run(
        command(*options), capture_output=True, text=True, timeout=150, env={**os.environ, "TMPDIR": str(scratch)}
    )
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert (result["lost"], result["twice"], result["refused"]) == (0, 0, 0)
    assert result["offered"] == pytest.approx(2000, rel=0.01)
    assert result["achieved"] > 0
    for times in (result["publish_ms"], result["end_to_end_ms"]):
        assert list(times) == PERCENTILES
        assert list(times.values()) == sorted(times.values())
        assert times["p50"] > 0
    assert result["about"] == "3 copies, acknowledged when 2 are synced to disk"
    if sys.platform == "linux":
        assert all(result[name] > 0 for name in ("writing_us", "reading_us", "servers_us"))
    assert "<svg" in plot.read_text()
    assert not list(scratch.glob("dlspark-load-*"))


def test_ours_and_the_proxies_of_a_namespace_beside_each_other(sandbox: Sandbox) -> None:
    with Namespace.open(sandbox.uri) as namespace:
        namespace.create_log("mine")
        options = ["--workload", "16-logs-100B", "--rate", "2000", "--seconds", "1", "--against", "proxies"]
        done = CliRunner().invoke(app, ["bench", *options, "--uri", sandbox.uri])
        assert done.exit_code == 0, done.output
        assert done.stderr.startswith(f"measuring {sandbox.uri}\n")
        assert namespace.logs(recursive=True) == ["mine"]  # those of the load are deleted
    lines = done.stdout.splitlines()
    assert lines[0].startswith("system")
    assert any(line.startswith("dlspark ") for line in lines)
    assert any(line.startswith("proxies ") for line in lines)
    assert "the systems are not alike in durability: see above" in lines


def test_the_highest_rate_is_looked_for(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    async def few_steps(sustains: Callable[[int], Awaitable[bool]], first: int) -> int:
        return await highest_rate(sustains, 500, max_steps=2)

    monkeypatch.setattr("dlspark.bench.measuring.highest_rate", few_steps)
    options = ["--max", "--p99", "10000", "--seconds", "1", "-w", "1-log-1kb", "--output", "json"]
    done = CliRunner().invoke(app, ["bench", *options, "--uri", sandbox.uri])
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["results"]
    assert len(result["steps"]) == 2
    assert result["lost"] == result["twice"] == 0


def words_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""  # it has ended meanwhile


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    program = subprocess.Popen(
        command("-w", "1-log-100B", "--rate", "1000", "--seconds", "600"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    try:

        def reads() -> bool:
            return any("spawn_main" in words for words in map(words_of, psutil.Process(program.pid).children()))

        wait_until(reads, 120)
        started = psutil.Process(program.pid).children(recursive=True)
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does: to all of them
        _, errors = program.communicate(timeout=60)
    finally:
        program.kill()
        program.wait()
    assert program.returncode == 130
    assert errors == (
        "measuring a temporary sandbox of 3 nodes (--uri measures a namespace)\n"
        "dlspark: interrupted with 0 results; what was under way has none\n"
    )
    assert psutil.wait_procs(started, timeout=10)[1] == []
    assert not list(tmp_path.glob("dlspark-load-*"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max", "--rate", "5"], "Give --rate or --max"),
        (["-w", "2-logs"], "There are 1-log-100B, 1-log-1KB, 16-logs-100B, 16-logs-1KB"),
        (["--against", "rabbit=localhost"], "names no peer; nothing was started"),
        (["--against", "kafka"], "Give kafka=HOST:PORT"),
        (["--plot", "x.png"], "plots are SVG"),
        (["--plot", "/nowhere/x.svg"], "there is no such folder"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_started(
    options: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "_ours", None)
    done = CliRunner().invoke(app, ["bench", *options])
    assert done.exit_code == 1
    assert words in done.output


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("confluent_kafka", ["--against", "kafka=localhost:9092"]),
        ("pulsar", ["--against", "pulsar=pulsar://localhost:6650"]),
        ("matplotlib", ["--plot", "x.svg"]),
    ],
)
def test_what_is_not_installed_is_said_before_anything_is_started(
    module: str, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "_ours", None)
    monkeypatch.setattr("dlspark.bench.peers.find_spec", lambda name: None)
    monkeypatch.setattr("dlspark.bench.comparing.find_spec", lambda name: None)
    done = CliRunner().invoke(app, ["bench", *options])
    assert done.exit_code == 1
    assert "pip install 'dlspark[bench]'" in done.output
