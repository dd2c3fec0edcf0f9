"""Rows P13 to P17 and P24: our connector to Spark beside Apache Kafka with spark-sql-kafka, in one session.

Ours: three storage nodes and ZooKeeper, every record on three nodes, synced (fdatasync) on two before it counts,
a batch published exactly once. Kafka: one broker, one copy, `acks=all`; a record counts when it is in the broker's
page cache ("Kafka") or when it has been synced too ("Kafka flushed": `log.flush.interval.messages=1`, set for the
topic); a batch that is repeated is there twice. So ours writes three times as much, and waits as "flushed" does.

Systems take turns with each load before the next load begins, on disks that have taken what was left of the one
before; which begins changes from round to round. Before anything counts every job has run, for JVMs to compile it.

Rates, and micro-batches one behind the other, are of jobs that are steady: in every round each of them runs uncounted
until it gets no faster (`run_until_steady`), for Spark ends Python workers that are idle for a minute, as those of the
sink are while the source is measured, and the JVM compiles for long. What new workers cost has a row of its own, one
batch behind the end of all workers there were.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from benchmarks.cluster import Cluster
from benchmarks.kafka_broker import KafkaBroker
from benchmarks.kafka_jobs import ONE_RUN, Jobs, Load, rate_to_sink_ms, resting_cpu, write_frames
from benchmarks.kafka_systems import KafkaLogs, OurLogs
from benchmarks.results import Measured, Row, Target, add_all
from benchmarks.spark_jobs import run_until_steady
from benchmarks.spark_sources import NOTHING, Nothing
from metadata.foundation.errors import check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WARM_UPS = {
    Load.SOURCE_SMALL: 2,
    Load.SOURCE_LARGE: 1,
    Load.SINK_STREAM: 1,
    Load.TO_SINK: 1,
    Load.FROM_SOURCE: 1,
    Load.REWIND: 2,
}
"""Runs before anything counts; what is not named runs the same code as another load, or as the filling of the logs."""
WARM_UP_S = 3.0
STEADY = {
    Load.SOURCE_SMALL,
    Load.SOURCE_LARGE,
    Load.SINK_BATCH,
    Load.SINK_STREAM,
    Load.TO_SINK,
    Load.FROM_SOURCE,
}
"""Loads that run until they are steady in every round. A micro-batch into no sink at all takes 85 ms the first time and
42 the fifth: whoever began would have looked slower."""
FLUSHED = {Load.SINK_BATCH, Load.SINK_COLD, Load.SINK_STREAM, Load.TO_SINK, Load.OFTEN}
"""Loads that differ where the broker syncs."""
REST_S = 5.0


class LoadedSystem(Protocol):
    """A system that can be made to work."""

    name: str

    def measure(self, load: Load, seconds: float) -> Measured:
        """Do `load` for about `seconds`; the figures of the load's rows."""
        ...


class KafkaPairs:
    """Rows P13 to P17 on three systems."""

    def __init__(
        self,
        ours: LoadedSystem,
        kafka: LoadedSystem,
        flushed: LoadedSystem,
        resting: Callable[[], float],
        python_sink: Callable[[], float],
        settle: Callable[[], None] = os.sync,
    ) -> None:
        """Compare with Kafka. `resting` gives processor seconds a minute of a session without a query, `python_sink`
        milliseconds of a micro-batch into a sink in Python that does nothing; `settle` has disks take the rest.
        """
        self._ours = ours
        self._others = {kafka.name: kafka, flushed.name: flushed}
        self._resting = resting
        self._python_sink = python_sink
        self._settle = settle
        self._count = 0
        self._table = {
            (load, name): _rows(load, name)
            for load in Load
            for name in (kafka.name, *([flushed.name] if load in FLUSHED else []))
        }
        self._no_query = Row(
            "P16", "no query at all: Spark and Python", "CPU s/min", "CPU s/min: Kafka's idle query", None
        )
        self._own_share = Row("P14", "micro-batch of 1 row from rate", "ms", "ms: into Python, doing nothing", None)
        self._kafka = kafka.name
        self.rows = [*(row for rows in self._table.values() for row in rows), self._no_query, self._own_share]

    def warm_up(self) -> None:
        """Run every load uncounted. A flushed broker runs the same code as one that is not."""
        for load, times in WARM_UPS.items():
            for _ in range(times):
                for system in (self._ours, self._others[self._kafka]):
                    system.measure(load, WARM_UP_S)

    def round(self, seconds: float) -> None:
        """Measure every load by every system once."""
        turn, self._count = self._count, self._count + 1
        idle = 0.0
        for load in Load:
            systems = self._systems(load)
            first = turn % len(systems)
            if load in STEADY:
                run_until_steady([partial(system.measure, load, ONE_RUN) for system in systems])
            found: dict[str, Measured] = {}
            for system in systems[first:] + systems[:first]:
                self._settle()
                found[system.name] = system.measure(load, seconds)
            for name in found.keys() & self._others.keys():
                add_all(self._table[load, name], found[self._ours.name], found[name], name)
            if load is Load.TO_SINK:
                self._own_share.add(found[self._ours.name].figures[0], self._python_sink())
            if load is Load.IDLE:
                idle = found[self._kafka].figures[0]
        self._no_query.add(self._resting(), idle)

    def _systems(self, load: Load) -> list[LoadedSystem]:
        return [self._ours, *(system for name, system in self._others.items() if (load, name) in self._table)]


def _rows(load: Load, other: str) -> Sequence[Row]:
    """Return a row for each figure of a load."""
    fast = Target(1.0) if load in FLUSHED and "flushed" not in other else Target(2.0)
    short = Target(1.0, at_most=True)
    once = "exactly once, 3 copies, synced"
    other_once = f"{other}: at least once, 1 copy, {'synced' if 'flushed' in other else 'not synced'}"
    rate = f"k rows/s: {other}"
    if load is Load.SOURCE_SMALL:
        return [Row("P13", "source, 100 B, all 8 columns", "k rows/s", f"{rate}, all 7", fast)]
    if load is Load.SOURCE_LARGE:
        return [Row("P13", "source, 1 KB, all 8 columns", "k rows/s", f"{rate}, all 7", fast)]
    if load is Load.SINK_BATCH:
        return [Row("P13", f"sink, batch of 100 B, {once}", "k rows/s", f"k rows/s: {other_once}", fast)]
    if load is Load.SINK_COLD:
        what = f"sink, the same by new workers, {once}"
        return [Row("P13", what, "k rows/s", f"k rows/s: {other_once}", None)]
    if load is Load.SINK_STREAM:
        return [Row("P13", f"sink, availableNow of 100 B, {once}", "k rows/s", f"k rows/s: {other_once}", fast)]
    if load is Load.TO_SINK:
        return [Row("P14", f"micro-batch of 1 row, rate to sink, {once}", "ms", f"ms: {other_once}", short)]
    if load is Load.FROM_SOURCE:
        return [Row("P14", "micro-batch of 1 row, log to noop", "ms", f"ms: {other}", short)]
    if load is Load.REWIND:
        return [
            Row("P15", "read a log's end by time: time", "ms", f"ms: {other}", short),
            Row("P15", "read a log's end by time: loopback", "KB", f"KB: {other}", short),
        ]
    if load is Load.OFTEN:
        return [
            Row("P24", f"micro-batch to the sink at a 1 s trigger, {share}, {once}", "ms", f"ms: {other_once}", short)
            for share in ("p50", "p99")
        ]
    if load is Load.IDLE:
        return [
            Row("P16", "idle query: Spark and Python", "CPU s/min", f"CPU s/min: {other}", short),
            Row("P16", "idle query: servers", "CPU s/min", f"CPU s/min: {other}", None),
        ]
    return [
        Row("P17", "append to batch function, p50", "ms", f"ms: {other}", short),
        Row("P17", "append to batch function, p99", "ms", f"ms: {other}", short),
        Row("P17", "append to its row collected, p50", "ms", f"ms: {other}", short),
    ]


def kafka_pairs(cluster: Cluster, spark: SparkSession, home: Path, broker: KafkaBroker) -> KafkaPairs:
    """Set the benchmark up in a new directory, with a broker beside the cluster."""
    write_frames(home / "frames")
    own = OurLogs(cluster)
    ours = Jobs(spark, own, home / "ours", home / "frames")
    kafka, flushed = (
        Jobs(spark, KafkaLogs(broker, spark, flushed=each), home / f"kafka-{each}", home / "frames")
        for each in (False, True)
    )
    ours.fill()
    kafka.fill()
    check(ours.rows == kafka.rows, f"the logs to be read differ: {ours.rows} and {kafka.rows} rows")
    spark.dataSource.register(Nothing)
    checkpoints = (home / f"python-{number}" for number in itertools.count())
    pairs = KafkaPairs(
        ours,
        kafka,
        flushed,
        lambda: resting_cpu(spark, own, REST_S)[0],
        lambda: rate_to_sink_ms(spark, NOTHING, {}, next(checkpoints)),
    )
    pairs.warm_up()
    return pairs
