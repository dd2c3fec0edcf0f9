"""The program around the commands: what `--help` costs, the version, Ctrl-C at its start."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "dlspark.cli"]
HEAVY = ("asyncio", "google", "grpc", "kazoo", "lz4", "numpy", "prometheus_client", "pyarrow", "pyspark", "rich")
"""None of these is imported to print help: they are most of a second of processor time."""
EVERY_HELP = f"""
import json, sys
import typer.testing
from dlspark.cli.main import app

def helps(command, path):
    yield path
    for name, below in getattr(command, "commands", {{}}).items():
        yield from helps(below, [*path, name])

found = {{}}
command = typer.main.get_command(app)
typer.testing._get_command = lambda _: command  # it takes longer than a help, and is the same each time
paths = list(helps(command, []))
for path in paths:
    done = typer.testing.CliRunner().invoke(app, [*path, "--help"])
    assert done.exit_code == 0, (path, done.output)
    heavy = sorted(name for name in {HEAVY!r} if name in sys.modules)
    if heavy:
        found[" ".join(path)] = heavy
        break
print(json.dumps({{"commands": len(paths), "heavy": found}}))
"""


def test_no_help_imports_what_only_the_work_needs() -> None:
    done = subprocess.run([sys.executable, "-c", EVERY_HELP], capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(done.stdout)
    assert found["heavy"] == {}
    assert found["commands"] > 60


def test_the_program_itself_imports_no_more() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "dlspark.cli", "--help"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert imported.isdisjoint(HEAVY)


def test_the_version_is_an_option_and_a_command() -> None:
    from dlspark import __version__

    for asked in ("--version", "version"):
        done = subprocess.run([*COMMAND, asked], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (0, f"{__version__}\n")


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("typer", ["--help"]),
        ("kazoo", ["log", "list", "--uri", "distributedlog://127.0.0.1:1/none"]),
        ("javaproperties", ["bookie", "status", "--conf", __file__]),
    ],
)
def test_ctrl_c_while_modules_are_imported_is_status_130_and_silence(
    tmp_path: Path, module: str, arguments: list[str]
) -> None:
    """The import that the signal comes into is one that waits for it."""
    (tmp_path / f"{module}.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from dlspark.cli.__main__ import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == b"importing\n"
        running.send_signal(signal.SIGINT)
        said = running.stderr.read()
        assert (running.wait(60), said) == (130, b"")


def test_verbose_says_which_namespace_it_is_and_nothing_of_what_kazoo_does() -> None:
    done = subprocess.run(
        [*COMMAND, "--verbose", "log", "list"],
        capture_output=True,
        text=True,
        timeout=120,
        env={"DLSPARK_URI": "distributedlog://127.0.0.1:1/none", "DLSPARK_SET_zkSessionTimeoutSeconds": "2"},
    )
    assert done.returncode == 1
    assert "INFO dlspark.default_namespace: the namespace is distributedlog://127.0.0.1:1/none" in done.stderr
    assert "INFO metadata.zookeeper.kazoo" not in done.stderr


def test_defaults_that_the_options_repeat_are_those_of_the_work() -> None:
    """The options' modules import none of it, so that they have the numbers a second time."""
    from dlspark.cli import ledgers, positions, sinks
    from dlspark.core.administration.audit import MIN_AGE_MS as LEDGERS_MS
    from dlspark.core.reading.positions import EARLIEST, LATEST
    from dlspark.spark.sink.segments.leftovers import ABANDONED_AFTER_MS as SINKS_MS

    assert ledgers._MIN_AGE_HOURS * 3_600_000 == LEDGERS_MS
    assert sinks._MIN_AGE_HOURS * 3_600_000 == SINKS_MS
    assert positions._WORDS == (EARLIEST, LATEST)
