"""One system of several fails: what was measured of the others is there, and what failed is said."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from dlspark.bench import comparing
from dlspark.bench.comparing import Plan, compare
from dlspark.bench.latencies import Latencies
from dlspark.bench.measuring import RunResult
from dlspark.bench.peers import check_answers
from dlspark.bench.rate_search import Bound
from dlspark.bench.workloads import WORKLOADS
from dlspark.cli import bench
from dlspark.cli.main import app
from metadata.foundation.errors import NotAppliedError

TIMES = Latencies().as_ms()
FAILED = "1-log-100B: it is not there"


class KnownRun:
    """A measurement that is done at once."""

    def __init__(self, system: str, workload: str) -> None:
        self._said = (system, workload, "none")

    async def at_rate(self, rate: float, seconds: float, warm_up_s: float) -> RunResult:
        return RunResult(*self._said, seconds, rate, rate, TIMES, TIMES, 0, 0, 0, 0, 0, None, None, None)


@asynccontextmanager
async def known_measurement(system: Any, workload: Any) -> AsyncIterator[KnownRun]:
    if system.name == "absent":
        raise NotAppliedError("it is not there")
    if system.name == "endless":
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)
    yield KnownRun(system.name, workload.name)
    if system.name == "stays":
        raise OSError("no room")


@pytest.fixture
def systems(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(comparing, "measurement", known_measurement)
    return [SimpleNamespace(name=name) for name in ("first", "absent", "stays", "last")]


async def test_a_system_that_fails_is_said_and_the_others_have_results(systems: list[Any]) -> None:
    failures: list[str] = []
    plan = Plan(WORKLOADS[:1], 5, 1, 0, Bound())
    results: list[RunResult] = []
    await compare(systems, plan, results, lambda one: None, failures.append)
    assert [one.system for one in results] == ["first", "stays", "last"]
    assert failures == [f"absent, {FAILED}", "stays, 1-log-100B: OSError: no room"]


def test_the_command_prints_what_there_is_before_it_draws_and_ends_with_1(
    systems: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def draw(results: list[RunResult], path: Path) -> None:
        raise NotAppliedError("it cannot be drawn")

    monkeypatch.setattr(bench, "_ours", lambda *given, proxies: nullcontext(systems[:2]))
    monkeypatch.setattr(comparing, "plot", draw)
    monkeypatch.setattr(comparing, "check_plot", lambda path: None)
    options = ["bench", "-w", "1-log-100B", "--output", "json"]
    for more in ([], ["--plot", str(tmp_path / "x.svg")]):
        done = CliRunner().invoke(app, [*options, *more])
        assert done.exit_code == 1
        assert [one["system"] for one in json.loads(done.stdout)["results"]] == ["first"]
        assert f"dlspark: absent, {FAILED}\n" in done.stderr
    assert "it cannot be drawn" in done.stderr


def test_what_was_measured_before_ctrl_c_is_printed(systems: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    endless = SimpleNamespace(name="endless")
    for measured in ([], systems[:2]):
        monkeypatch.setattr(
            bench, "_ours", lambda *given, proxies, measured=measured: nullcontext([*measured, endless])
        )
        done = CliRunner().invoke(app, ["bench", "-w", "1-log-100B", "--output", "json"])
        assert done.exit_code != 0
        if measured:
            assert [one["system"] for one in json.loads(done.stdout)["results"]] == ["first"]
            assert f"dlspark: absent, {FAILED}\n" in done.stderr
        else:
            assert done.stdout == ""


def test_what_was_measured_is_printed_though_the_sandbox_cannot_be_taken_down(
    systems: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def stays(*given: object, proxies: bool) -> Iterator[list[Any]]:
        yield systems[:2]
        raise NotAppliedError("it cannot be taken down")

    monkeypatch.setattr(bench, "_ours", stays)
    done = CliRunner().invoke(app, ["bench", "-w", "1-log-100B", "--output", "json"])
    assert done.exit_code == 1
    assert [one["system"] for one in json.loads(done.stdout)["results"]] == ["first"]
    assert f"dlspark: absent, {FAILED}\n" in done.stderr
    assert "it cannot be taken down" in done.stderr


def test_a_peer_that_takes_no_connection_is_refused_before_anything_is_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
        check_answers(f"kafka=127.0.0.1:1,127.0.0.1:{port}")
        check_answers(f"pulsar-x=pulsar://127.0.0.1:{port}")
        check_answers(f"pulsar=pulsar+ssl://127.0.0.1:1,127.0.0.1:{port}")
        for answering_first in (True, False):
            both = [f"PLAINTEXT://127.0.0.1:{one}" for one in sorted((port, 1), reverse=answering_first)]
            check_answers(f"kafka={','.join(both)}")
    for given in (f"kafka=127.0.0.1:{port}", f"pulsar-x=pulsar://127.0.0.1:{port}", "kafka=127.0.0.1:nine"):
        with pytest.raises(NotAppliedError, match=r"does not answer .*; nothing was started") as caught:
            check_answers(given)
        assert given.partition("=")[0] in str(caught.value)
