"""The sandbox as processes: it starts, survives losses, keeps its logs and ports, and leaves nothing behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from helpers.waiting import wait_until

from dlspark.core.sync.namespace import Namespace
from dlspark.errors import WriteError
from dlspark.sandbox.processes import SandboxError, child_environment
from dlspark.sandbox.sandbox import Sandbox
from dlspark.sandbox.state import SandboxState, default_directory
from metadata.distributedlog.namespaces import NotBoundError
from metadata.foundation.errors import CallerError

pytestmark = pytest.mark.processes


@pytest.fixture
def fresh_sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path / "sandbox") as running:
        yield running


def processes_of(directory: Path) -> list[psutil.Process]:
    """Processes whose command line names the directory."""
    return [p for p in psutil.process_iter(["cmdline"]) if any(str(directory) in a for a in p.info["cmdline"] or [])]


def test_data_and_uri_survive_a_restart(tmp_path: Path) -> None:
    with Sandbox(tmp_path / "sandbox", nodes=3) as first:
        uri = first.uri
        with Namespace.open(uri) as namespace:
            namespace.create_log("kept")
            with namespace.open_log("kept") as log, log.open_writer() as writer:
                writer.write(7, b"still here").result(60)
    with Sandbox(tmp_path / "sandbox", nodes=3) as second:
        assert second.uri == uri
        with Namespace.open(uri) as namespace, namespace.open_log("kept") as log, log.open_reader() as reader:
            assert [record.payload for record in reader.read_bulk(1)] == [b"still here"]
    assert processes_of(tmp_path) == []


def test_a_killed_node_comes_back_on_its_own_directory(fresh_sandbox: Sandbox) -> None:
    before = fresh_sandbox.node_pid(1)
    fresh_sandbox.kill_node(1)
    assert fresh_sandbox.node_pid(1) is None
    fresh_sandbox.start_node(1)
    assert fresh_sandbox.node_pid(1) not in (None, before)


def test_a_second_sandbox_in_one_directory_is_refused(fresh_sandbox: Sandbox) -> None:
    with pytest.raises(CallerError, match="already running"):
        Sandbox(fresh_sandbox.directory).start()


@pytest.mark.parametrize("nodes", [1, 2])
def test_fewer_nodes_than_copies_are_enough_for_writers_that_ask_for_nothing_else(tmp_path: Path, nodes: int) -> None:
    with Sandbox(tmp_path / "sandbox", nodes=nodes) as fresh_sandbox:
        with Namespace.open(fresh_sandbox.uri) as namespace, namespace.open_log("small") as log:
            with log.open_writer() as writer:
                writer.write(1, b"kept").result(60)
            assert namespace.settings.quorums == (nodes, nodes, nodes)
            with log.open_reader() as reader:
                assert [record.payload for record in reader.read_bulk(1)] == [b"kept"]
        # What is asked for by name is not cut down, also where it is the default.
        with (
            Namespace.open(fresh_sandbox.uri, {"bkcEnsembleSize": 3}) as namespace,
            namespace.open_log("three") as log,
            pytest.raises(WriteError, match="needs 3 writable storage nodes"),
            log.open_writer() as writer,
        ):
            writer.write(1, b"lost").result(60)


def test_with_more_nodes_later_a_sandbox_asks_for_as_many_copies_as_any(tmp_path: Path) -> None:
    with Sandbox(tmp_path / "sandbox", nodes=1) as one:
        assert Namespace.find_binding(one.uri)[0].quorums == (1, 1, 1)
    with Sandbox(tmp_path / "sandbox", nodes=3) as three, Namespace.open(three.uri) as namespace:
        assert namespace.binding.quorums is None
        assert namespace.settings.quorums == (3, 3, 2)


def test_a_sandbox_that_runs_is_found_without_a_name(
    no_namespace: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Sandbox(default_directory(), nodes=1) as running:
        with caplog.at_level("INFO", "dlspark"), Namespace.open() as namespace:
            assert str(namespace.uri) == running.uri
        assert f"that of the sandbox which runs in {default_directory()}" in caplog.text
        monkeypatch.setenv("DLSPARK_URI", f"distributedlog://{running.zookeeper_address}/nowhere")
        with pytest.raises(NotBoundError):
            Namespace.open()
        monkeypatch.delenv("DLSPARK_URI")
    with pytest.raises(CallerError, match="no sandbox runs"):
        Namespace.open()


def test_a_child_of_a_tree_that_is_not_installed_finds_its_packages(tmp_path: Path) -> None:
    # -S: as where nothing is installed. `errors` of the package must not come to the top.
    names = ("dlspark", "storage_node", "core", "errors")
    program = f"from importlib.util import find_spec; print([find_spec(name) is not None for name in {names}])"
    found = subprocess.run(
        [sys.executable, "-S", "-c", program], env=child_environment(), cwd=tmp_path, capture_output=True, text=True
    )
    assert found.stdout == "[True, True, False, False]\n", found.stderr


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with Sandbox(tmp_path, nodes=1) as first:
        port = first.state.node_ports[0]
    with socket.create_server(("127.0.0.1", port)), pytest.raises(SandboxError) as refused:
        Sandbox(tmp_path, nodes=1).start()
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in str(refused.value)
    assert "serves" not in str(refused.value), "lines of an earlier start"


def test_a_damaged_state_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sandbox.json").write_text("{ not json")
    with pytest.raises(CallerError, match="not a sandbox's state file"):
        Sandbox(tmp_path).start()


def test_a_node_that_cannot_start_stops_the_whole_and_shows_its_log(tmp_path: Path) -> None:
    with Sandbox(tmp_path, nodes=1):
        pass
    (tmp_path / "node-0" / "ledgers" / "current" / "VERSION").write_text('5\nbookieHost: "elsewhere:1"\n')
    with pytest.raises(SandboxError, match="storage node 0 did not start"):
        Sandbox(tmp_path, nodes=1).start()
    assert processes_of(tmp_path) == []


def test_nothing_survives_the_death_of_the_owner(tmp_path: Path) -> None:
    program = f"""
from dlspark.sandbox.sandbox import Sandbox
Sandbox({str(tmp_path)!r}, nodes=1).start()
print("up", flush=True)
input()
"""
    owner = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ}
    )
    assert owner.stdout is not None
    assert owner.stdin is not None
    assert owner.stdout.readline() == b"up\n"
    owner.kill()
    owner.wait()
    owner.stdin.close()
    owner.stdout.close()
    wait_until(lambda: processes_of(tmp_path) == [], "processes are left")
    state = SandboxState.load(tmp_path)
    assert state is not None
    assert not state.running()


def test_starting_nodes_does_not_touch_what_other_threads_of_the_process_keep(tmp_path: Path) -> None:
    """As py4j keeps its connection to Spark's JVM: in a thread's own variables, shut down when it is finalised."""
    here, there = socket.socketpair()

    class Connection:
        def __del__(self) -> None:
            here.shutdown(socket.SHUT_RDWR)

    kept = threading.local()
    kept.connection = Connection()
    with Sandbox(tmp_path / "sandbox", nodes=1):
        here.send(b"still connected")
    assert there.recv(100) == b"still connected"
    del kept
    here.close()
    there.close()
