"""Row P24: small batches at a trigger of one second, appended (`commitMode=append`) beside segments of their own.

The same query twice: Spark's rate source, 100 rows a batch, into a log of its own. One appends each batch to the log's
open segment, the other makes a segment of each, before and after it. Times are of whole micro-batches, as Spark
reports them. A query runs as many batches as a window has seconds (`--seconds`), eight at least. Counted are the
segments that the batches of a query made besides its first one: what a day has beyond that comes of rolling by age
(`logSegmentRollingMinutes`, twelve a day by default), and not of batches.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.cluster import Cluster
from benchmarks.costs import costs_of
from benchmarks.results import Row, Target, percentile
from benchmarks.session import batch_times_ms
from benchmarks.spark_jobs import watch_of_spark
from dlspark.core.sync.namespace import Namespace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: Final = 100
WARM_UP: Final = 3
BATCHES: Final = 8
TRIGGER_S: Final = 1
SHARES: Final = (0.5, 0.99)
SEGMENTS_A_DAY: Final = 24
SECONDS_A_DAY: Final = 86_400


class CommitBenchmark:
    """Row P24 on one cluster and one session."""

    def __init__(self, cluster: Cluster, spark: SparkSession, directory: Path) -> None:
        self._cluster = cluster
        self._uri = cluster.uri
        self._spark = spark
        self._directory = directory
        self._count = 0
        goal = Target(SEGMENTS_A_DAY / SECONDS_A_DAY, at_most=True)
        short = Target(1.0, at_most=True)
        self._times = [
            Row("P24", f"micro-batch at a 1 s trigger, appended, p{share:.0%}"[:-1], "ms", "ms: a segment each", short)
            for share in SHARES
        ]
        self._segments = Row("P24", "segments made besides the first, appended", "segments", "batches", goal)
        self.rows = [*self._times, self._segments]

    def round(self, seconds: float) -> None:
        """Measure both ways; the way beside, before and after, half as long each."""
        batches = max(BATCHES, int(seconds / TRIGGER_S))
        beside = max(BATCHES, batches // 2)
        before, _ = self._query("segments", beside)
        watch = watch_of_spark(self._cluster, self._spark)
        with watch:
            appended, segments = self._query("append", batches)
        watch.units = WARM_UP + batches
        after, _ = self._query("segments", beside)
        for row, share in zip(self._times, SHARES, strict=True):
            costs = costs_of("micro-batch", watch) if row is self._times[0] else None
            row.add(percentile(appended, share), percentile(before, share), percentile(after, share), costs=costs)
        self._segments.add(segments - 1, WARM_UP + batches)

    def _query(self, mode: str, batches: int) -> tuple[list[float], int]:
        """Return milliseconds of each micro-batch, and the segments that the query's log has then."""
        self._count += 1
        name = f"commits-{self._count}"
        rate = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
        rows = rate.selectExpr("cast(lpad(cast(value as string), 100, 'x') as binary) as value")
        sink = rows.writeStream.format("distributedlog").option("uri", self._uri).option("commitMode", mode)
        checkpoint = self._directory / f"checkpoint-{name}"
        took = batch_times_ms(sink.option("path", name), checkpoint, WARM_UP, batches, trigger_s=TRIGGER_S)
        with Namespace.open(self._uri) as namespace, namespace.open_log(name) as log:
            return took, len(log.segments())
