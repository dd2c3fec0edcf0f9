"""The load of `dlspark bench` on real peers, each for a second: all that is acknowledged is delivered, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.cluster import Cluster
from benchmarks.openmessaging import SYSTEMS, _options, started
from dlspark.bench.comparing import Plan, compare, run_interruptibly
from dlspark.bench.measuring import RunResult
from dlspark.bench.rate_search import Bound
from dlspark.bench.workloads import WORKLOADS
from dlspark.testing.java_process import OutOfReachError

pytestmark = [pytest.mark.processes, pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("load") / "cluster") as running:
        yield running


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] if name.startswith("pulsar") else []) for name in SYSTEMS],
)
def test_a_system_delivers_what_it_acknowledged_once(name: str, cluster: Cluster, tmp_path: Path) -> None:
    plan = Plan([WORKLOADS[2]], 200, 1, 1, Bound())
    try:
        with started(name, cluster, tmp_path / name) as system:
            results: list[RunResult] = []
            run_interruptibly(compare([system], plan, results, lambda one: None, pytest.fail))
            (result,) = results
    except OutOfReachError as reason:
        pytest.skip(str(reason))
    assert (result.system, result.workload) == (name, "16-logs-100B")
    assert (result.lost, result.twice, result.refused) == (0, 0, 0)
    assert result.offered == pytest.approx(200, rel=0.05)
    assert result.end_to_end_ms["max"] > 0
    assert result.about


def test_all_systems_and_workloads_are_measured_if_none_is_named() -> None:
    options = _options([])
    assert (options.system, options.workloads, options.max) == (None, list(WORKLOADS), False)


@pytest.mark.parametrize("given", [["--workload", "2-logs"], ["--plot", "x.png"]])
def test_what_cannot_be_is_wrong_usage(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        _options(given)
    assert ended.value.code == 2
    assert given[1] in capsys.readouterr().err
