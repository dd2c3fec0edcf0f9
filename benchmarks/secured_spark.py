"""Row P44: Spark's batch read of a log on a secured cluster, beside the same on an open one (`security`).

The same rows are in a log of either cluster, written by Spark; each query reads all of them into a sink that does
nothing, planning included. Its workers connect anew as they do for any query. Queries of both follow each other until
none gets faster, before anything counts; then the open one's run before and after the secured one's.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.processes import TreeCpu
from benchmarks.results import Row
from benchmarks.session import CORES
from benchmarks.spark_jobs import run_until_steady
from benchmarks.thin_clients import security_values
from metadata.foundation.errors import check

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.security import Ground, Grounds

LOG: Final = "read-by-spark"
ROWS: Final = 2_000_000


class SecuredSparkBenchmark:
    """Row P44: rows a second, and processor time of everything that takes part."""

    def __init__(self, grounds: Grounds, spark: SparkSession, *, rows: int = ROWS) -> None:
        """Write both logs."""
        self._grounds = grounds
        self._spark = spark
        self._count = rows
        what = f"Spark's batch read on a secured cluster, {rows:,} rows of 100 B"
        self._rate = Row("P44", what, "k rows/s", "k rows/s: without security", None)
        self._cpu = Row("P44", "the same: processor of Spark and nodes, a million rows", "s", "s: without", None)
        self.rows = [self._rate, self._cpu]
        for ground in (grounds.open, grounds.secured):
            numbers = spark.range(0, rows, 1, CORES)
            made = numbers.selectExpr("cast(lpad(cast(id as string), 100, 'x') as binary) as value")
            made.write.format("distributedlog").options(**_options(ground)).mode("append").save(LOG)
            found = self._log(ground).count()
            check(found == rows, f"the log to be read holds {found} rows instead of {rows}")

    def round(self, seconds: float) -> None:
        """Measure both rows once; queries run to their end, whatever `seconds` says."""
        run_until_steady([partial(self._read, ground) for ground in (self._grounds.open, self._grounds.secured)])
        (took, cpu), around = self._grounds.around(self._timed)
        self._rate.add(self._count / took / 1e3, *(self._count / before / 1e3 for before, _ in around))
        self._cpu.add(cpu / self._count * 1e6, *(spent / self._count * 1e6 for _, spent in around))

    def _timed(self, ground: Ground) -> tuple[float, float]:
        """Return a query's seconds, and the processor's."""
        spent = TreeCpu([os.getpid()])  # Spark, its workers and both clusters are children
        begin = time.perf_counter()
        self._read(ground)
        return time.perf_counter() - begin, spent.seconds()

    def _read(self, ground: Ground) -> None:
        self._log(ground).write.format("noop").mode("overwrite").save()

    def _log(self, ground: Ground) -> DataFrame:
        return self._spark.read.format("distributedlog").options(**_options(ground)).load(LOG)


def _options(ground: Ground) -> dict[str, str]:
    """Return how a query enters a cluster."""
    values = security_values(ground.folder)
    return {"uri": ground.sandbox.uri} | {f"distributedlog.{key}": value for key, value in values.items()}
