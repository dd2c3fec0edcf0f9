"""Each query of the oracle (`helpers.spark.oracle`) gives what the same query gives over Parquet files with its rows.

The ordinary command asks a few in the session that all tests share; `--rounds n` asks n in sessions of their own, with
and without the connector's jar, and `--seed n` plays one scene again there.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.paths import TESTS
from helpers.quick_start import plain_environment
from helpers.spark.oracle.logs import Record
from helpers.spark.oracle.queries import COLUMNS, FAR_TIMES, Drawing
from helpers.spark.oracle.scene import QUERIES, Scene

from dlspark.spark import enable
from dlspark.spark.catalog.enabling import DEFAULT_NAME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dlspark.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.spark, pytest.mark.processes]

SCENES = 2
SEEDS_AT_ONCE = 25
"""Scenes of one process, so that a round that hangs ends the test soon."""


def drawn(seed: int) -> list[str]:
    seen = [Record("a", 1, n // 3, n % 3, n, 1000 + n, 1_000_000 + n * 1000, b"%d" % n) for n in range(9)]
    drawing = Drawing(random.Random(seed), {"r0": COLUMNS, "r1": ("log", "value")}, seen)
    return [drawing.tree().sql({"r0": "t0", "r1": "t1"}) for _ in range(20)]


def test_a_seed_draws_its_queries_again_and_many_draw_all_kinds() -> None:
    assert drawn(7) == drawn(7) != drawn(8)
    text = "\n".join(query for seed in range(20) for query in drawn(seed))
    kinds = ("WHERE", "LEFT SEMI JOIN", "CROSS JOIN", "UNION ALL", "GROUP BY", "ORDER BY", "LIMIT 0", "IN (SELECT")
    assert [kind for kind in kinds if kind not in text] == []
    assert sum(time in text for time in FAR_TIMES) > len(FAR_TIMES) / 2


def test_queries_with_the_jar_give_what_they_give_over_parquet(
    spark: SparkSession, sandbox: Sandbox, tmp_path: Path
) -> None:
    enable(spark)
    for seed in range(SCENES):
        for difference in Scene(spark, sandbox.uri, seed, tmp_path, catalog=DEFAULT_NAME).play():
            raise difference


@pytest.mark.long
def test_queries_without_the_jar_give_what_they_give_over_parquet(
    spark: SparkSession, plain_format: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    for difference in Scene(spark, sandbox.uri, SCENES, tmp_path, catalog=None, name=plain_format).play():
        raise difference


@pytest.mark.torture
@pytest.mark.long
@pytest.mark.parametrize("mode", ["jar", "plain"])
@pytest.mark.timeout(4 * 3600)
def test_many_queries_with_and_without_the_jar(
    sandbox: Sandbox, mode: str, rounds: int | None, seed: int | None, tmp_path: Path
) -> None:
    """Half of the queries in each mode; each with pushdown of filters switched on or off."""
    scenes = -(-(rounds or 0) // (2 * QUERIES))
    first = 0 if seed is None else seed
    end = scenes if seed is None else seed + 1
    asked, differences = 0, []
    environment = plain_environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), environment.get("PYTHONPATH", "")])
    for begin in range(first, end, SEEDS_AT_ONCE):
        seeds = f"{begin}:{min(end, begin + SEEDS_AT_ONCE)}"
        done = subprocess.run(
            [sys.executable, "-m", "helpers.spark.oracle.program", sandbox.uri, "--mode", mode, "--seeds", seeds],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=3600,
            check=False,
        )
        assert done.stdout.strip(), done.stderr[-6000:]
        *found, last = done.stdout.splitlines()
        asked += json.loads(last)["queries"]
        differences += found
    assert not differences, "\n".join(differences)
    assert asked >= (end - first) * QUERIES
