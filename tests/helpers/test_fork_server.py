"""Children of a fork server are real processes that die when asked to, and never outlive the server's owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.fork_server import ChildError, ForkServer
from helpers.paths import TESTS
from helpers.waiting import wait_until

pytestmark = pytest.mark.processes

PROGRAM = """
import sys, time

def echo(name):
    print("hello", name, flush=True)
    for line in sys.stdin:
        print("heard", line.strip(), flush=True)
    return 0

def fail(name):
    raise RuntimeError("as told")
"""
OWNER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from helpers.fork_server import ForkServer
server = ForkServer((), log=Path(sys.argv[1]) / "log", paths=[sys.argv[1]])
child = server.spawn("program:echo", {"name": "left"})
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    (tmp_path / "program.py").write_text(PROGRAM)
    with ForkServer((), log=tmp_path / "log", paths=[str(tmp_path)]) as running:
        yield running


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_child_hears_speaks_and_ends_with_its_input(server: ForkServer) -> None:
    child = server.spawn("program:echo", {"name": "one"})
    assert child.lines.get(timeout=60) == "hello one"
    child.send("news")
    assert child.lines.get(timeout=60) == "heard news"
    child.close_input()
    assert child.lines.get(timeout=60) is None
    child.wait()
    assert not is_alive(child.pid)


def test_a_stopped_child_is_silent_and_goes_on(server: ForkServer) -> None:
    child = server.spawn("program:echo", {"name": "one"})
    assert child.lines.get(timeout=60) == "hello one"
    child.signal(signal.SIGSTOP)
    child.send("news")
    assert child.lines.empty()
    child.signal(signal.SIGCONT)
    assert child.lines.get(timeout=60) == "heard news"


def test_a_killed_child_is_gone_and_others_are_not(server: ForkServer) -> None:
    one, two = (server.spawn("program:echo", {"name": name}) for name in ("one", "two"))
    one.kill()
    assert not is_alive(one.pid)
    assert two.running
    one.send("nobody hears")


def test_a_program_that_cannot_run_says_why_in_the_log(server: ForkServer, tmp_path: Path) -> None:
    child = server.spawn("program:fail", {"name": "one"})
    child.wait()
    assert "as told" in (tmp_path / "log").read_text()
    server.close()
    with pytest.raises(ChildError, match="cannot be started"):
        server.spawn("program:echo", {"name": "late"})


def test_a_child_even_a_stopped_one_dies_with_the_owner_of_its_server(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path), str(TESTS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    assert owner.stdin is not None
    pid = int(owner.stdout.readline())
    os.kill(pid, signal.SIGSTOP)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    owner.stdin.close()
    wait_until(lambda: not is_alive(pid), "the child lives on")
