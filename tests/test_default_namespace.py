"""Which process a sandbox's state file means, and which namespace is meant where none is named."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dlspark.cli.main import app
from dlspark.core.sync.namespace import Namespace
from dlspark.default_namespace import default_uri, uri_or_default
from dlspark.sandbox.sandbox import Sandbox
from dlspark.sandbox.state import SandboxState, default_directory
from metadata.foundation import processes
from metadata.foundation.errors import CallerError

STATE = SandboxState(23456, (23457,))
FOREIGN = "00000000-0000-0000-0000-000000000000:1"


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A program that has nothing to do with a sandbox."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def home(no_namespace: Path) -> Path:
    """The default sandbox's directory, in a home of the test's own."""
    directory = default_directory()
    assert directory.is_relative_to(no_namespace)
    directory.mkdir(parents=True)
    return directory


def owned(process: subprocess.Popen[bytes]) -> SandboxState:
    return replace(STATE, pid=process.pid, started=processes.started(process.pid))


class TestProcesses:
    def test_a_process_is_told_by_its_number_and_its_start(self, other: subprocess.Popen[bytes]) -> None:
        first = processes.started(other.pid)
        assert first is not None
        assert processes.started(other.pid) == first
        assert processes.started(os.getpid()) != first

    def test_one_that_ended_has_no_start_also_before_it_is_reaped(self, other: subprocess.Popen[bytes]) -> None:
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on
        assert processes.started(other.pid) is None
        other.wait()
        assert processes.started(other.pid) is None

    def test_a_signal_reaches_that_process_alone(self, other: subprocess.Popen[bytes]) -> None:
        start = processes.started(other.pid)
        assert start is not None
        assert not processes.send(other.pid, FOREIGN, signal.SIGKILL)
        assert other.poll() is None
        assert processes.send(other.pid, start, signal.SIGTERM)
        assert other.wait(60) == -signal.SIGTERM
        assert not processes.send(other.pid, start, signal.SIGTERM)


class TestStop:
    def stop(self, directory: Path) -> str:
        done = CliRunner().invoke(app, ["sandbox", "stop", "--dir", str(directory)])
        assert done.exit_code == 0, done.output
        return done.stdout

    def test_a_recycled_number_is_not_signalled(self, tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
        replace(STATE, pid=other.pid, started=FOREIGN).save(tmp_path)
        assert "is not running" in self.stop(tmp_path)
        assert other.poll() is None

    def test_a_number_alone_is_not_believed(self, tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
        raw = {"zookeeper_port": 23456, "node_ports": [23457], "pid": other.pid}
        (tmp_path / "sandbox.json").write_text(json.dumps(raw))
        state = SandboxState.load(tmp_path)
        assert state is not None
        assert not state.running()
        assert "is not running" in self.stop(tmp_path)
        assert other.poll() is None

    def test_the_recorded_process_is_stopped(self, tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
        owned(other).save(tmp_path)
        state = SandboxState.load(tmp_path)
        assert state is not None
        assert state.running()
        assert self.stop(tmp_path) == "stopped\n"
        assert other.wait(60) == -signal.SIGTERM


class TestWhichNamespace:
    def test_what_is_given_comes_first_then_the_variable_then_the_sandbox_that_runs(
        self, home: Path, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        owned(other).save(home)
        assert uri_or_default(None) == STATE.uri
        monkeypatch.setenv("DLSPARK_URI", "distributedlog://variable:2181/a")
        assert uri_or_default(None) == "distributedlog://variable:2181/a"
        assert uri_or_default("distributedlog://given:2181/a") == "distributedlog://given:2181/a"
        monkeypatch.setenv("DLSPARK_URI", " ")
        assert default_uri() == STATE.uri

    @pytest.mark.parametrize("started", [FOREIGN, None])
    def test_a_sandbox_that_does_not_run_is_not_taken(
        self, home: Path, other: subprocess.Popen[bytes], started: str | None
    ) -> None:
        replace(STATE, pid=other.pid, started=started).save(home)
        assert default_uri() is None
        owned(other).save(home)
        other.kill()
        other.wait()
        assert default_uri() is None
        STATE.save(home)
        assert default_uri() is None

    def test_without_any_the_error_says_the_ways_there_are(self, no_namespace: Path) -> None:
        with pytest.raises(CallerError, match=r"is not set.*no sandbox runs.*dlspark sandbox start.*--dir DIR"):
            Namespace.open()

    def test_a_damaged_state_file_is_said(self, home: Path) -> None:
        (home / "sandbox.json").write_text("[]")
        with pytest.raises(CallerError, match="not a sandbox's state file"):
            Namespace.open()


class TestDirectories:
    @pytest.mark.parametrize("detach", [(), ("--detach",)])
    @pytest.mark.parametrize("place", ["/dev/null/sandbox", "/proc/sandbox", "{tmp}/file", "{tmp}/file/below"])
    def test_an_impossible_directory_is_one_message(self, tmp_path: Path, place: str, detach: tuple[str, ...]) -> None:
        (tmp_path / "file").write_text("not a directory")
        directory = place.format(tmp=tmp_path)
        done = subprocess.run(
            [sys.executable, "-m", "dlspark.cli", "sandbox", "start", "--dir", directory, *detach],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 1
        assert done.stderr.startswith("dlspark: the sandbox cannot use its directory: ")
        assert directory in done.stderr or str(Path(directory).parent) in done.stderr
        assert done.stderr.count("\n") == 1

    def test_a_comma_is_refused_where_it_would_name_two_directories(self, tmp_path: Path) -> None:
        with pytest.raises(CallerError, match="comma"):
            Sandbox(tmp_path / "a,b").start()
        assert not (tmp_path / "a,b").exists()

    def test_the_second_of_two_that_start_at_a_time_leaves_the_first_ones_state_alone(
        self, tmp_path: Path, other: subprocess.Popen[bytes]
    ) -> None:
        """The first one holds the lock, and is about to write its state."""
        with (tmp_path / "sandbox.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(CallerError, match="already running"):
                Sandbox(tmp_path).start()
            assert not (tmp_path / "sandbox.json").exists()
            owned(other).save(tmp_path)
            with pytest.raises(CallerError, match=f"already running.*process {other.pid}"):
                Sandbox(tmp_path).start()
            assert SandboxState.load(tmp_path) == owned(other)
