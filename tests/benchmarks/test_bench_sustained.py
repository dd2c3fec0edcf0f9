"""The curve of sustained writing: what it says of its end, and that it writes and collects for real."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cluster import NODES, Cluster, run
from benchmarks.sustained import Stretch, Sustained, conclusion, slowest_and_fastest

A_MINUTE = Stretch(1.0, 200.0, 150.0, 250.0, 3.5, 0.7, 6.0, 500.0, 9000.0)


def test_the_end_is_compared_with_the_beginning_without_the_warm_up() -> None:
    curve = [replace(A_MINUTE, mean=mean) for mean in (20.0, 200.0, 210.0, 190.0, 150.0, 120.0, 100.0, 100.0, 90.0)]
    assert conclusion(curve).startswith("first quarter -> last quarter: MB/s 205 -> 95 (0.46)")
    assert conclusion(curve[:4]) == "too short to compare its end with its beginning"


def test_an_instant_at_the_end_of_a_stretch_is_neither_its_slowest_second_nor_its_fastest() -> None:
    rates = [(1.0, 200.0), (1.01, 180.0), (0.002, 0.0), (0.5, 190.0), (0.4, 900.0)]
    assert slowest_and_fastest(rates) == (180.0, 200.0)
    assert slowest_and_fastest([(0.3, 150.0), (0.1, 160.0)]) == (150.0, 160.0)


@pytest.mark.processes
def test_a_curve_is_of_bytes_that_were_acknowledged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Cluster(tmp_path / "cluster", gcWaitTime=500) as cluster:
        sustained = Sustained(cluster, tmp_path)
        with cluster.watch() as watch:
            run(sustained.run(3.0, 1.0, tmp_path / "curve.json"))
        watch.units = 1
        added = watch.figures[NODES]["adds"]
    written = sum(one["mean"] for one in json.loads((tmp_path / "curve.json").read_text()))
    assert len(sustained.curve) == len(capsys.readouterr().out.splitlines()) - 2
    assert all(one.to_disk > 3 and one.nodes_ms > 0 and one.memory_mb > 0 for one in sustained.curve)
    assert 0 < written * 1e6 <= added * 256 * 1024 / 2, "two of three nodes have what was acknowledged, at least"
