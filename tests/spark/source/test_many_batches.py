"""One long query over a world that changes under it: what comes out is what went in, once and in order.

Forty micro-batches in the ordinary run; `--rounds 1000` runs a thousand.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.spark.churn import Churn
from helpers.spark.sink_driver import read_values

from dlspark import DLSN
from dlspark.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.torture, pytest.mark.timeout(7200)]

BATCHES = 40
BATCHES_A_RUN = 250
STALLED_S = 120.0
OUTPUTS = ("out-0", "out-1")


class Query:
    """The query from all logs `in-...` to two logs, and its checkpoint."""

    def __init__(self, spark: SparkSession, uri: str, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self._spark = spark
        self._uri = uri
        self._running: StreamingQuery | None = None

    def start(self) -> None:
        source = (
            self._spark.readStream.format("distributedlog")
            .option("uri", self._uri)
            .option("subscribePattern", r"in-\d+")
            .load()
        )
        target = "concat('out-', cast(substring(log, 4) as int) % 2)"
        self._running = (
            source.selectExpr(f"{target} as log", "value")
            .writeStream.format("distributedlog")
            .option("uri", self._uri)
            .option("checkpointLocation", str(self.checkpoint))
            .start()
        )

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop()

    def drain(self) -> None:
        """Wait until everything written so far has come out."""
        assert self._running is not None
        self._running.processAllAvailable()

    def batches(self) -> int:
        """How many batches the checkpoint has as committed. Raises what ended the query, if it ended."""
        assert self._running is not None
        failed = self._running.exception()
        if failed is not None:
            raise failed
        return max(_numbers(self.checkpoint / "commits"), default=-1) + 1

    def consumed(self) -> dict[str, DLSN]:
        """Positions at the end of the last committed batch: a restart begins there, never before."""
        committed = max(_numbers(self.checkpoint / "commits"), default=None)
        if committed is None:
            return {}
        offsets = json.loads((self.checkpoint / "offsets" / str(committed)).read_text().splitlines()[2])
        return {name: DLSN.parse(str(position)) for name, position in offsets["logs"].items()}


def _numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []


@pytest.fixture
def restless(tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox of its own: its nodes are killed."""
    with Sandbox(tmp_path / "sandbox", nodes=4) as running:
        yield running


def test_a_query_over_logs_that_are_created_rolled_truncated_and_sealed_while_nodes_die_gives_out_what_went_in(
    spark: SparkSession, restless: Sandbox, checkpoint: Path, rounds: int | None, seed: int | None
) -> None:
    wanted = rounds or BATCHES
    query = Query(spark, restless.uri, checkpoint)
    churn = Churn(restless, seed or 1, query.consumed)
    try:
        query.start()
        _run(query, churn, wanted)
        churn.close()
        query.drain()
    finally:
        query.stop()
    records = sum(churn.written.values())
    print(f"\n{query.batches()} batches, {records} records of {len(churn.written)} logs, {dict(churn.done)}")
    assert _read(restless.uri) == {name: list(range(count)) for name, count in churn.written.items() if count}


def _run(query: Query, churn: Churn, wanted: int) -> None:
    """Step after step, each taken up by a batch of its own, as far as batches are that quick."""
    begun, restart_at = 0, BATCHES_A_RUN
    while begun < wanted:
        churn.step()
        deadline = time.monotonic() + STALLED_S
        while query.batches() == begun:
            assert time.monotonic() < deadline, f"no batch for {STALLED_S} s after batch {begun - 1}"
            time.sleep(0.005)
        begun = query.batches()
        if begun >= restart_at:
            restart_at += BATCHES_A_RUN
            query.stop()
            query.start()


def _read(uri: str) -> dict[str, list[int]]:
    """What came out: the numbers of the records by input log, in the order of the output logs."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for index, output in enumerate(OUTPUTS):
        for value in read_values(uri, output)[1]:
            name, number = value.decode().split("/")
            assert int(name.removeprefix("in-")) % len(OUTPUTS) == index
            numbers[name].append(int(number))
    return dict(numbers)
