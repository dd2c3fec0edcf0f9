"""Logs with a connector to Spark, seen alike: ours, and Kafka with spark-sql-kafka.

Both connectors call the same things the same (`startingOffsets`, `startingTimestamp`, `maxOffsetsPerTrigger`,
`minPartitions`), so that a job is written once, and a system says only how its logs are named and made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from benchmarks.cluster import Cluster
from benchmarks.kafka_broker import KafkaBroker
from benchmarks.logs import LOW_LATENCY
from benchmarks.payloads import ENTRY_BYTES
from benchmarks.session import java_of
from metadata.foundation.errors import check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Append = Callable[[bytes], None]
"""Append one record, and return when it is acknowledged."""
ONE_RANGE_BYTES = 1 << 40
"""More than any log here: `minPartitions` alone says how many partitions a source has."""


PRODUCER: dict[str, str | int] = {"kafka.acks": "all", "kafka.batch.size": ENTRY_BYTES}
"""Batches as large as our entries, in Kafka's favour: with its 16 KB a flushed broker syncs sixteen times as often."""


class System(Protocol):
    """A kind of log."""

    name: str
    format: str
    """Of the Spark connector."""

    def create(self, log: str, partitions: int) -> None:
        """Make a log that is read in so many partitions."""

    def source(self, log: str) -> dict[str, str | int]:
        """Return the options that name a log to be read."""

    def sink(self, log: str) -> dict[str, str | int]:
        """Return the options that name a log to be written."""

    def appending(self, log: str) -> AbstractContextManager[Append]:
        """Open a writer without Spark, set for low latency."""

    def server_pids(self) -> Sequence[int]:
        """Return the processes that serve the logs."""


class OurLogs:
    """Three copies, two of them synced before an answer; the sink is exactly once."""

    name = "ours"
    format = "distributedlog"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def create(self, log: str, partitions: int) -> None:
        """Create the log; `partitions` is not needed, since a source cuts segments by itself."""
        from dlspark import Namespace

        with Namespace.open(self._cluster.uri) as namespace:
            namespace.create_log(log)

    def source(self, log: str) -> dict[str, str | int]:
        """Return the namespace and the log, with no limit of bytes, so that `minPartitions` alone counts."""
        return {"uri": self._cluster.uri, "log": log, "maxBytesPerPartition": ONE_RANGE_BYTES}

    def sink(self, log: str) -> dict[str, str | int]:
        """Return the namespace and the log."""
        return {"uri": self._cluster.uri, "log": log}

    @contextmanager
    def appending(self, log: str) -> Iterator[Append]:
        """Open a writer of which each record is an entry, sent at once."""
        from dlspark import Namespace

        with (
            Namespace.open(self._cluster.uri, LOW_LATENCY) as namespace,
            namespace.open_log(log) as opened,
            opened.open_writer() as writer,
        ):

            def append(payload: bytes) -> None:
                writer.write(time.time_ns() // 1_000_000, payload).result()

            yield append

    def server_pids(self) -> Sequence[int]:
        """Return ZooKeeper and the storage nodes. Raises InvariantViolation if one of them does not run."""
        sandbox = self._cluster.sandbox
        pids = [sandbox.zookeeper_pid, *(sandbox.node_pid(index) for index in range(sandbox.node_count))]
        found = [pid for pid in pids if pid is not None]
        check(len(found) == len(pids), "a server of the cluster is not running")
        return found


class KafkaLogs:
    """One copy on one broker; the sink is at least once. `flushed`: synced before an answer (`flush.messages=1`)."""

    format = "kafka"

    def __init__(self, broker: KafkaBroker, spark: SparkSession, *, flushed: bool) -> None:
        self.name = "Kafka flushed" if flushed else "Kafka"
        self._broker = broker
        self._spark = spark
        self._flushed = flushed

    def create(self, log: str, partitions: int) -> None:
        """Create the topic, with one copy; a flushed one syncs before the broker answers."""
        java = java_of(self._spark)
        topic = java.org.apache.kafka.clients.admin.NewTopic(self._topic(log), partitions, 1)
        if self._flushed:
            topic.configs(java.java.util.Map.of("flush.messages", "1"))
        admin = java.org.apache.kafka.clients.admin.Admin.create(self._client())
        try:
            admin.createTopics(java.java.util.List.of(topic)).all().get()
        finally:
            admin.close()

    def source(self, log: str) -> dict[str, str | int]:
        """Return the broker and the topic."""
        return {"kafka.bootstrap.servers": self._broker.address, "subscribe": self._topic(log)}

    def sink(self, log: str) -> dict[str, str | int]:
        """Return the broker and the topic, with batches as large as our entries."""
        return {"kafka.bootstrap.servers": self._broker.address, "topic": self._topic(log)} | PRODUCER

    @contextmanager
    def appending(self, log: str) -> Iterator[Append]:
        """Open a producer that does not linger, acknowledged by all copies (there is one)."""
        java = java_of(self._spark)
        serializer = java.org.apache.kafka.common.serialization.ByteArraySerializer
        settings = self._client(acks="all", **{"linger.ms": "0"})
        producer = java.org.apache.kafka.clients.producer.KafkaProducer(settings, serializer(), serializer())
        topic = self._topic(log)

        def append(payload: bytes) -> None:
            producer.send(java.org.apache.kafka.clients.producer.ProducerRecord(topic, payload)).get()

        try:
            yield append
        finally:
            producer.close()

    def server_pids(self) -> Sequence[int]:
        """Return the broker, which is its own controller."""
        return [self._broker.pid]

    def _topic(self, log: str) -> str:
        return f"{log}-flushed" if self._flushed else log

    def _client(self, **settings: str) -> object:
        java = java_of(self._spark)
        client = java.java.util.Properties()
        for key, value in {"bootstrap.servers": self._broker.address, **settings}.items():
            client.setProperty(key, value)
        return client
