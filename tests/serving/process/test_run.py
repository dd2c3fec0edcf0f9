"""How the process of a proxy runs: what it prints, what signals do, its exit status."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from dlspark.sandbox.processes import child_environment

PROGRAM = """
import asyncio, sys
from dlspark.serving.process.run import run_program
from metadata.foundation.errors import CallerError

class Proxy:
    location = "1;0;host:8000"

    def __init__(self, how):
        self.failed = asyncio.Event()
        self.how = how

    async def start(self):
        if self.how == "starts for ever":
            print("starting", flush=True)
            await asyncio.Event().wait()
        if self.how == "cannot start":
            raise CallerError("the port is wrong")
        if self.how == "has no port":
            raise OSError("the port is taken")
        if self.how == "fails":
            self.failed.set()

    async def stop(self):
        print("stopping", flush=True)
        if self.how == "stops for ever":
            await asyncio.Event().wait()

sys.exit(run_program(lambda: Proxy(sys.argv[1]), "some proxy"))
"""


def started(how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=child_environment(),
        text=True,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_proxy_in_order(number: signal.Signals) -> None:
    process = started("serves")
    assert line_of(process) == "some proxy 1;0;host:8000 serves\n"
    process.send_signal(number)
    assert process.communicate(timeout=60)[0] == "stopping\n"
    assert process.returncode == 0


def test_a_second_signal_does_not_wait() -> None:
    process = started("stops for ever")
    assert "serves" in line_of(process)
    process.send_signal(signal.SIGTERM)
    assert line_of(process) == "stopping\n"
    process.send_signal(signal.SIGINT)
    assert "ended at once by a second signal" in process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGINT


def test_a_signal_ends_a_start() -> None:
    process = started("starts for ever")
    assert line_of(process) == "starting\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == 1


def test_a_proxy_that_cannot_go_on_ends_in_order_and_without_success() -> None:
    process = started("fails")
    assert process.communicate(timeout=60)[0] == "some proxy 1;0;host:8000 serves\nstopping\n"
    assert process.returncode == 1


@pytest.mark.parametrize(("how", "why"), [("cannot start", "the port is wrong"), ("has no port", "the port is taken")])
def test_a_proxy_that_cannot_start_says_why(how: str, why: str) -> None:
    process = started(how)
    out, err = process.communicate(timeout=60)
    assert out == ""
    assert why in err
    assert process.returncode == 1
