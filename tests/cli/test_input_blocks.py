"""Input is read in blocks until it ends, idles, or a signal ends it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlspark.cli.input_blocks import BLOCK_BYTES, InputBlocks
from metadata.foundation.errors import CallerError


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            pass


def test_input_comes_in_blocks_then_idles_then_ends(pipe: tuple[int, int]) -> None:
    with InputBlocks(pipe[0]) as source:
        os.write(pipe[1], b"one")
        assert source.read(None) == b"one"
        assert source.read(0.001) is None
        os.write(pipe[1], b"two")
        os.close(pipe[1])
        assert [source.read(None) for _ in range(3)] == [b"two", b"", b""]


def test_a_file_is_always_ready(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (BLOCK_BYTES + 1))
    with path.open("rb") as file, InputBlocks(file.fileno()) as source:
        assert [len(source.read(0) or b"") for _ in range(3)] == [BLOCK_BYTES, 1, 0]


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=int)
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """Yield a signal that is not ignored here, as SIGHUP is where the tests are run by nohup."""
    number = signal.Signals(request.param)
    before = signal.signal(number, signal.default_int_handler)
    yield number
    signal.signal(number, before)


def test_a_signal_wakes_the_read_and_ends_the_input_behind_what_had_come(
    number: signal.Signals, pipe: tuple[int, int]
) -> None:
    before = signal.getsignal(number)
    with InputBlocks(pipe[0]) as source:
        assert source.read(0) is None  # reading has begun
        timer = threading.Timer(0.05, os.kill, (os.getpid(), number))
        timer.start()
        assert source.read(None) == b""
        timer.join()
        assert source.signal == number
    assert signal.getsignal(number) == before
    with InputBlocks(pipe[0]) as source:
        assert source.read(0) is None
        os.write(pipe[1], b"typed before")
        os.kill(os.getpid(), number)
        assert [source.read(None), source.read(None)] == [b"typed before", b""]


def test_a_signal_before_reading_interrupts(pipe: tuple[int, int]) -> None:
    with InputBlocks(pipe[0]) as source:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        assert source.signal == signal.SIGTERM


def test_a_second_signal_ends_the_process_whatever_it_is_about() -> None:
    program = """
import os, signal
from dlspark.cli.input_blocks import InputBlocks
with InputBlocks(0) as source:
    source.at_once = lambda: os.write(1, b"what is in the log")
    source.read(0)
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        os.write(1, b"; closed for ever")
"""
    done = subprocess.run([sys.executable, "-c", program], input=b"", stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, b"what is in the log")


def test_a_signal_that_is_ignored_stays_so(pipe: tuple[int, int]) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with InputBlocks(pipe[0]) as source:
            os.kill(os.getpid(), signal.SIGINT)
            os.write(pipe[1], b"goes on")
            assert (source.read(None), source.signal) == (b"goes on", None)
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with InputBlocks(folder) as source, pytest.raises(CallerError, match="Is a directory"):
            source.read(0)
    finally:
        os.close(folder)


def test_input_that_another_process_made_non_blocking_is_waited_for(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[0], False)
    with InputBlocks(pipe[0]) as source:
        timer = threading.Timer(0.05, os.write, (pipe[1], b"late"))
        timer.start()
        assert source.read(None) == b"late"
        timer.join()


TYPED = """
import time
from dlspark.cli.input_blocks import InputBlocks
with InputBlocks(0) as source:
    source.read(0)
    print("ready", flush=True)
    while not source.signalled:
        time.sleep(0.01)
    print("read", source.read(None), source.read(None), flush=True)
"""


def test_lines_that_were_typed_and_not_read_yet_survive_ctrl_c() -> None:
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [sys.executable, "-c", TYPED])
    said = b""
    try:
        while b"ready" not in said:
            said += os.read(terminal, 4096)
        os.write(terminal, b"one\ntwo\nhalf\x03")
        while b"read b" not in said or not said.endswith(b"\n"):
            said += os.read(terminal, 4096)
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    assert b"read b'one\\ntwo\\n' b''" in said
