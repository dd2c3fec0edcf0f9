"""Rows P28: the sum of one typed column of a cold log by Spark SQL, beside a hot log and beside the files alone.

The flights of several years, under new ids each, in two logs that declare their columns: of one all ledgers but the
newest segment's, which has one row, are gone and their records lie in files; of the other nothing was moved. The same
statement runs on both, and on the files by Spark's own Parquet reader, which knows nothing of logs. All three have to
come to the same sum. Rates are rows over the time of the whole query, its planning included; our source is asked for as
many partitions as there are cores, which Spark's own reader makes unasked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.cluster import Cluster, run
from benchmarks.cold_logs import SUMMED, cold_settings, flights, move, write_flights, write_last
from benchmarks.costs import Watch, Window, beside, costs_of, within
from benchmarks.results import Row, Target
from benchmarks.session import CORES
from benchmarks.spark_jobs import run_until_steady, watch_of_spark
from dlspark.core.namespace import AsyncNamespace
from dlspark.spark.catalog.enabling import enable
from metadata.foundation.errors import check, present

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

YEARS: Final = 6
HOT_YEARS: Final = 1
"""A hot log is read so much slower that one of them takes as long."""
REPEATS: Final = 5
"""Times that a fast query runs in a round."""


class ColdSparkBenchmark:
    """Rows P28 on one cluster and one session."""

    def __init__(
        self,
        cluster: Cluster,
        spark: SparkSession,
        directory: Path,
        rows: pa.Table | None = None,
        years: tuple[int, int] = (YEARS, HOT_YEARS),
    ) -> None:
        self._cluster = cluster
        self._uri = cluster.uri
        self._spark = spark
        self._flights = rows if rows is not None else flights()
        self._folder = directory / "cold-columns"
        self._folder.mkdir()
        rate = "k rows/s"
        self._over_hot = Row("P28", f"sum({SUMMED}), cold", rate, f"{rate}: hot", Target(3.0))
        self._over_parquet = Row("P28", f"sum({SUMMED}), cold", rate, f"{rate}: spark.read.parquet", Target(0.8))
        self.rows = [self._over_hot, self._over_parquet]
        enable(spark, uri=cluster.uri)
        self._files = run(self._prepare(*years))
        self._check()

    def round(self, seconds: float) -> None:
        """Measure both rows once; queries run to their end, whatever `seconds` says."""
        cold, hot, parquet = self._jobs()
        rows = self._cold_rows
        run_until_steady([cold, parquet], partial(_seconds, repeats=1))
        own, peer = self._watch(), self._watch()
        before = _seconds(parquet, REPEATS)
        ours = _seconds(cold, REPEATS, own, rows)
        after = _seconds(parquet, REPEATS, peer, rows)
        costs = beside(costs_of("row", own), "spark.read.parquet", costs_of("row", peer))
        self._over_parquet.add(*(rows / each / 1e3 for each in (ours, before, after)), costs=costs)
        run_until_steady([cold, hot], partial(_seconds, repeats=1))
        own, peer = self._watch(), self._watch()
        before = _seconds(hot, 1)
        ours = _seconds(cold, REPEATS, own, rows)
        after = _seconds(hot, 1, peer, self._hot_rows)
        costs = beside(costs_of("row", own), "hot", costs_of("row", peer))
        hot_rates = (self._hot_rows / each / 1e3 for each in (before, after))
        self._over_hot.add(rows / ours / 1e3, *hot_rates, costs=costs)

    def _watch(self) -> Watch:
        return watch_of_spark(self._cluster, self._spark)

    def _jobs(self) -> tuple[Callable[[], int], Callable[[], int], Callable[[], int]]:
        return partial(self._sum, COLD), partial(self._sum, HOT), self._sum_parquet

    async def _prepare(self, years: int, hot_years: int) -> list[str]:
        """Make both logs; return the files of the cold one."""
        async with await AsyncNamespace.open(self._uri) as namespace:
            await write_flights(namespace, HOT, self._flights, hot_years)
        self._hot_rows = hot_years * len(self._flights)
        async with await AsyncNamespace.open(self._uri, cold_settings(str(self._folder), {})) as namespace:
            await write_flights(namespace, COLD, self._flights, years)
            await move(namespace, COLD)
            await write_last(namespace, COLD, self._flights.slice(len(self._flights) - 1))
            units = await move(namespace, COLD)
            async with await namespace.open_log(COLD) as log:
                still = [one.lssn for one in await log.segments() if one.cold is None or one.cold.listed]
            check(len(still) == 1, f"segments {still} are still with the storage nodes")
        self._cold_rows = years * len(self._flights) + 1
        return [present(one.file, "a unit has no file").url.removeprefix("file://") for one in units]

    def _check(self) -> None:
        """Compare the three sums with what was written."""
        cold, hot, parquet = (job() for job in self._jobs())
        check(cold == parquet, f"the log's sum is {cold}, and that of its files {parquet}")
        years, last = self._cold_rows // len(self._flights), self._flights.column(SUMMED)[-1].as_py() or 0
        check(
            (cold - last) * self._hot_rows == hot * years * len(self._flights),
            f"the cold log's sum is {cold}, the hot one's {hot}",
        )

    def _sum(self, log: str) -> int:
        query = f"SELECT sum({SUMMED}) FROM dlog.`{log}` WITH (minPartitions = {CORES})"
        (row,) = self._spark.sql(query).collect()
        return int(row[0])

    def _sum_parquet(self) -> int:
        (row,) = self._spark.read.parquet(*self._files).selectExpr(f"sum({SUMMED})").collect()
        return int(row[0])


COLD: Final = "flights-cold"
HOT: Final = "flights-hot"


def _seconds(job: Callable[[], object], repeats: int, window: Window | None = None, units: int = 0) -> float:
    """Return the mean time of a job, which is as many units each time."""
    with within(window):
        begin = time.perf_counter()
        for _ in range(repeats):
            job()
        took = (time.perf_counter() - begin) / repeats
    if window is not None:
        window.units = units * repeats
    return took
