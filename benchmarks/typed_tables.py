"""Rows P26: logs that own a schema, beside the same work by Spark's own functions over bytes.

Typed reads are compared with our raw read followed by `from_json`, and with Kafka's connector followed by `from_json`;
typed writes with `to_json` followed by a write of bytes. All read and write the same orders: six columns, 120 bytes
as JSON or so. Every job has run until it gets no faster before it counts, as for rows P6 to P8.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.cluster import Cluster
from benchmarks.costs import costs_of
from benchmarks.kafka_systems import KafkaLogs
from benchmarks.results import Row, Target
from benchmarks.session import CORES
from benchmarks.spark_jobs import run_until_steady, seconds_of, watch_of_spark
from metadata.foundation.errors import check

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = 1_000_000
COLUMNS = "id BIGINT, item STRING, price DECIMAL(9,2), at TIMESTAMP, quantity INT, weight DOUBLE"
FORMATS = ("json", "avro", "arrow")
KAFKA_LOG = "typed-orders"


class TypedBenchmark:
    """How fast are typed reads and writes? Rows P26 on one cluster and one session.

    Args:
        cluster: our storage nodes.
        spark: the session.
        kafka: Kafka to compare reads with; None: there is none.
    """

    def __init__(self, cluster: Cluster, spark: SparkSession, kafka: KafkaLogs | None = None) -> None:
        self._cluster = cluster
        self._uri = cluster.uri
        self._spark = spark
        self._kafka = kafka
        rate = "k rows/s"
        self._over_bytes = Row("P26", "typed read, JSON", rate, f"{rate}: raw read, from_json", Target(1.2))
        self._over_kafka = Row("P26", "typed read, JSON", rate, f"{rate}: Kafka, from_json", Target(2.0))
        self._written = Row("P26", "typed write, JSON", rate, f"{rate}: to_json, write of bytes", Target(1.2))
        self._others = {
            name: Row("P26", f"typed read, {name.title()}", rate, f"{rate}: typed read, JSON", None)
            for name in FORMATS[1:]
        }
        self.rows = [self._over_bytes, self._written, *self._others.values()]
        self.rows += [self._over_kafka] if kafka is not None else []
        self._prepare()

    def round(self, seconds: float) -> None:
        """Measure every row once; jobs run to their end, whatever `seconds` says."""
        raw, typed = self._read_raw, partial(self._read_typed, "json")
        self._paired(self._over_bytes, typed, raw)
        self._paired(self._written, self._write_typed, self._write_bytes)
        for name, row in self._others.items():
            self._paired(row, partial(self._read_typed, name), typed)
        if self._kafka is not None:
            self._paired(self._over_kafka, typed, self._read_kafka)

    def _paired(self, row: Row, ours: Callable[[], None], other: Callable[[], None]) -> None:
        run_until_steady([other, ours])
        watch = watch_of_spark(self._cluster, self._spark)
        times = seconds_of(other), seconds_of(ours, watch, ORDERS), seconds_of(other)
        before, own, after = (ORDERS / each / 1e3 for each in times)
        row.add(own, before, after, costs=costs_of("row", watch))

    def _prepare(self) -> None:
        """Make the logs, and fill those that are read."""
        from dlspark import Namespace

        self._orders().write.mode("overwrite").saveAsTable("typed_orders")
        for name in FORMATS:
            log = self._declared(f"typed-{name}", name)
            self._write(self._rows(), log)
            found = self._typed(log).count()
            check(found == ORDERS, f"{log} holds {found} rows instead of {ORDERS}")
        self._declared("typed-written", "json")
        with Namespace.open(self._uri) as namespace:
            namespace.create_log("typed-bytes")
        if self._kafka is not None:
            self._kafka.create(KAFKA_LOG, CORES)
            rows = self._rows().selectExpr("to_json(struct(*)) AS value")
            rows.write.format("kafka").options(**self._kafka.sink(KAFKA_LOG)).mode("append").save()

    def _declared(self, log: str, format_: str) -> str:
        from dlspark import Namespace

        with Namespace.open(self._uri) as namespace:
            namespace.create_log(log)
            with namespace.open_log(log) as opened:
                opened.declare_schema(self._rows().limit(0).toArrow().schema, format=format_)
        return log

    def _orders(self) -> DataFrame:
        return self._spark.range(ORDERS, numPartitions=CORES).selectExpr(
            "id",
            "concat('item-', id % 1000) AS item",
            "cast(id % 100000 / 100 AS DECIMAL(9,2)) AS price",
            "timestamp_millis(1767225600000 + id) AS at",
            "cast(id % 100 AS INT) AS quantity",
            "rand(7) AS weight",
        )

    def _rows(self) -> DataFrame:
        return self._spark.table("typed_orders")

    def _typed(self, log: str) -> DataFrame:
        frame = self._spark.read.format("distributedlog").option("uri", self._uri).option("minPartitions", CORES)
        return frame.load(log).drop("_log", "_error")

    def _read_typed(self, format_: str) -> None:
        _to_noop(self._typed(f"typed-{format_}"))

    def _read_raw(self) -> None:
        frame = self._spark.read.format("distributedlog").option("uri", self._uri).option("columns", "raw")
        _to_noop(_parsed(frame.option("minPartitions", CORES).load("typed-json")))

    def _read_kafka(self) -> None:
        check(self._kafka is not None, "there is no Kafka to read from")
        if self._kafka is not None:
            options = self._kafka.source(KAFKA_LOG) | {"startingOffsets": "earliest", "minPartitions": CORES}
            _to_noop(_parsed(self._spark.read.format("kafka").options(**options).load()))

    def _write_typed(self) -> None:
        self._write(self._rows(), "typed-written")

    def _write_bytes(self) -> None:
        self._write(self._rows().selectExpr("to_json(struct(*)) AS value"), "typed-bytes")

    def _write(self, rows: DataFrame, log: str) -> None:
        rows.write.format("distributedlog").option("uri", self._uri).option("log", log).mode("append").save()


def _parsed(rows: DataFrame) -> DataFrame:
    return rows.selectExpr(f"from_json(cast(value AS STRING), '{COLUMNS}') AS row").select("row.*")


def _to_noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()
