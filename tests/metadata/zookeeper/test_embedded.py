"""The embedded ZooKeeper: start, stop, kill, restart, and that nothing outlives whoever started it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.waiting import wait_until

from metadata.foundation.errors import CallerError, MetadataUnavailableError
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.embedded import EmbeddedZooKeeper, EnsembleMember, find_java
from metadata.zookeeper.homing import four_letters

pytestmark = pytest.mark.processes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    server = EmbeddedZooKeeper(tmp_path / "a directory with spaces=é")
    yield server
    server.kill()


def gone(pid: int) -> bool:
    """Whether the process has ended (a zombie of somebody else's counts as ended)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until_gone(pid: int) -> None:
    wait_until(lambda: gone(pid), f"process {pid} is still there")


async def put(server: EmbeddedZooKeeper, path: str, data: bytes) -> None:
    store = await ZooKeeperStore.connect(server.address)
    await store.create(path, data)
    await store.close()


async def get(server: EmbeddedZooKeeper, path: str) -> bytes:
    store = await ZooKeeperStore.connect(server.address)
    data, _ = await store.get(path)
    await store.close()
    return data


async def test_it_serves_stops_and_keeps_its_data_and_port(server: EmbeddedZooKeeper) -> None:
    assert (server.port, server.pid, server.running) == (0, None, False)
    server.start()
    port, pid = server.port, server.pid
    assert port > 0
    assert pid is not None
    assert server.address == f"127.0.0.1:{port}"
    assert "Mode: standalone" in four_letters("127.0.0.1", port, "srvr")
    await put(server, "/kept", b"data")
    server.start()
    assert server.pid == pid
    server.stop()
    server.stop()
    assert gone(pid)
    assert (server.pid, server.running) == (None, False)
    assert four_letters("127.0.0.1", port, "srvr") == ""
    server.start()
    assert (server.port, server.pid != pid) == (port, True)
    assert await get(server, "/kept") == b"data"


async def test_what_was_acknowledged_survives_a_kill(server: EmbeddedZooKeeper) -> None:
    for number in range(3):
        server.start()
        pid = server.pid
        assert pid is not None
        for earlier in range(number):
            assert await get(server, f"/n{earlier}") == b"%d" % earlier
        await put(server, f"/n{number}", b"%d" % number)
        server.kill()
        assert gone(pid)


async def test_a_session_lives_through_a_restart_of_the_server(server: EmbeddedZooKeeper) -> None:
    server.start()
    store = await ZooKeeperStore.connect(server.address)
    session_id = store.session_id
    await store.create("/e", b"mine", ephemeral=True)
    server.kill()
    server.start()
    from metadata.retry import repeat

    assert (await repeat(store, lambda: store.get("/e")))[0] == b"mine"
    assert store.session_id == session_id
    await store.close()


def test_the_context_manager_starts_and_stops(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path) as server:
        pid = server.pid
        assert pid is not None
    assert gone(pid)


def test_no_thread_or_descriptor_is_left(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path):
        pass
    threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    with EmbeddedZooKeeper(tmp_path):
        pass
    assert not set(threading.enumerate()) - threads
    assert len(os.listdir("/proc/self/fd")) <= files, "what tests before this one had left may be closed meanwhile"


def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CallerError, match=f"port {port} of 127.0.0.1 is in use"):
            EmbeddedZooKeeper(tmp_path, port=port).start()


def test_one_server_to_a_directory(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path), pytest.raises(CallerError, match="another process"):
        EmbeddedZooKeeper(tmp_path).start()
    with EmbeddedZooKeeper(tmp_path):
        pass


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "version-2").write_text("a file where ZooKeeper wants its directory")
    server = EmbeddedZooKeeper(tmp_path)
    with pytest.raises(MetadataUnavailableError) as caught:
        server.start()
    assert "ended with status" in str(caught.value)
    assert "version-2" in str(caught.value)
    assert not server.running
    (tmp_path / "data" / "version-2").unlink()
    with server:
        assert server.running


# ---- Java ------------------------------------------------------------------------------------------------------------


def fake_java(directory: Path, says: str) -> Path:
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return java


@pytest.mark.parametrize(
    ("says", "found"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "Java 11"),
        ('java version "1.8.0_402"', "Java 8"),
        ("command not found", "does not say its version"),
    ],
)
def test_an_old_java_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, found: str) -> None:
    java = fake_java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CallerError) as caught:
        EmbeddedZooKeeper(tmp_path / "zk").start()
    message = str(caught.value)
    assert "Java 17 or later is needed" in message
    assert str(java) in message
    assert found in message
    assert "Install OpenJDK" in message


def test_a_missing_java_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CallerError, match="none is installed"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(CallerError, match="is not there"):
        find_java()


def test_java_home_comes_before_the_path_unless_it_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_java(tmp_path / "old", 'openjdk version "11.0.2"')
    new = fake_java(tmp_path / "new", 'openjdk version "21" 2023-09-19')
    other = fake_java(tmp_path / "other", 'openjdk version "17.0.15" 2025-04-15')
    monkeypatch.setenv("PATH", os.pathsep.join([str(new.parent), os.environ["PATH"]]))
    monkeypatch.setenv("JAVA_HOME", str(other.parent.parent))
    assert find_java() == str(other)
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    assert find_java() == str(new)


# ---- parents ---------------------------------------------------------------------------------------------------------

_PARENT = """\
import sys, threading, time
from pathlib import Path
from metadata.zookeeper.embedded import EmbeddedZooKeeper
server = EmbeddedZooKeeper(Path(sys.argv[1]))
starter = threading.Thread(target=server.start)
starter.start()
starter.join()
print(server.pid, flush=True)
{then}
"""


@contextlib.contextmanager
def parent(directory: Path, then: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that starts a server from a thread that ends at once, and the server's process id."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PARENT.format(then=then), str(directory)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_server_dies_with_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    with parent(tmp_path, "time.sleep(600)") as (process, pid):
        assert not gone(pid)
        process.send_signal(number)
        process.wait(60)
        wait_until_gone(pid)


@pytest.mark.parametrize("then", ["", "raise SystemExit(3)", "import os; os._exit(0)", "raise KeyboardInterrupt"])
def test_the_server_does_not_outlive_a_parent_that_ends_without_stopping_it(tmp_path: Path, then: str) -> None:
    with parent(tmp_path, then) as (process, pid):
        process.wait(60)
        wait_until_gone(pid)


def test_the_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    with parent(tmp_path, "print(server.running, flush=True); time.sleep(600)") as (process, pid):
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        assert not gone(pid)


def test_ctrl_c_at_the_terminal_reaches_only_the_parent(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path) as server:
        assert server.pid is not None
        assert os.getpgid(server.pid) != os.getpgid(0)


def test_members_wait_longer_for_what_a_leader_sends_than_for_a_connection_to_it() -> None:
    lines = EnsembleMember(1, {1: "a:1:2", 2: "b:1:2", 3: "c:1:2"}).config().splitlines()
    said = dict(line.split("=") for line in lines)
    # Or a leader that is heard and hears nothing holds up its own replacement: tests/faults/test_regions_lost.py
    assert 0 < int(said["connectToLearnerMasterLimit"]) <= int(said["syncLimit"]) < int(said["initLimit"])
