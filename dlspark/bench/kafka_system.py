"""Apache Kafka under the load, by confluent-kafka (librdkafka): a topic with a partition for each log.

Settings of the clients are those of the OpenMessaging benchmark where they differ from the library's: acknowledged by
all replicas in sync, gathered for a millisecond. The library makes a request for each partition, where Java's client
makes one for all partitions of a broker.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import TimeoutError  # before Python 3.11 it is not the built-in one
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from dlspark.bench.systems import Burst, BurstPublisher, Consumer, Deliver
from metadata.foundation.errors import NotAppliedError

REPLICAS: Final = 3
TIMEOUT_S: Final = 30.0
ANSWER_S: Final = 10.0
"""For brokers to say that they are there."""
LOG_LEVEL: Final = 2
"""Of syslog: the library has a line for each connection that fails; what it gives up is said as an error anyway."""
_POLL_S: Final = 0.1
_TAKEN: Final = 10_000
"""Messages that are taken at a time."""


def _words(error: Exception) -> str:
    return f"no answer within {TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else str(error)


class KafkaPublisher:
    """Writes bursts by one producer, a call for each record; a thread takes the answers."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._ended = False
        self._thread = threading.Thread(target=self._poll, name="dlspark-bench-kafka", daemon=True)
        self._thread.start()

    def has_room(self, log: int) -> bool:
        """Return True: what the load has under way is less than the producer takes."""
        return True

    def publish(self, burst: Burst) -> None:
        """Give each record of a burst to the producer."""

        def answered(error: object, message: object) -> None:
            if error is None:
                burst.acknowledge_one()
            else:
                burst.fail(str(error))

        produce, topic, partition = self._producer.produce, self._topic, burst.log
        try:
            for payload in burst.payloads():
                produce(topic, payload, partition=partition, on_delivery=answered)
        except (KafkaException, BufferError) as error:
            burst.fail(str(error))

    def _poll(self) -> None:
        while not self._ended:
            self._producer.poll(_POLL_S)

    def close(self) -> None:
        """End the thread; what has no answer is dropped."""
        self._ended = True
        self._thread.join()
        self._producer.purge()
        self._producer.poll(0)


class KafkaReader:
    """Reads all partitions in a thread."""

    def __init__(self, consumer: KafkaConsumer, deliver: Deliver) -> None:
        self._consumer = consumer
        self._deliver = deliver
        self._ended = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="dlspark-bench-kafka", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what has made the thread end."""
        if self._failure is not None:
            raise NotAppliedError(f"Kafka's consumer has failed: {self._failure}") from self._failure

    def _read(self) -> None:
        try:
            while not self._ended:
                first = self._consumer.poll(_POLL_S)
                if first is not None:
                    # Without waiting: `consume` waits for as many as it is asked for.
                    self._hand_on([first, *self._consumer.consume(_TAKEN, 0)])
        except Exception as error:
            self._failure = error

    def _hand_on(self, messages: Sequence[Any]) -> None:
        at_ns = time.monotonic_ns()
        parts: dict[int, list[bytes]] = {}
        for message in messages:
            if message.error() is not None:
                raise KafkaException(message.error())
            parts.setdefault(message.partition(), []).append(message.value())
        for partition, values in parts.items():
            self._deliver(partition, b"".join(values), at_ns)

    def close(self) -> None:
        """End the thread and the consumer."""
        self._ended = True
        self._thread.join()
        self._consumer.close()


@dataclass
class KafkaTopic:
    """Is there a Kafka broker? The topic is made there and deleted; its first log's name is its own."""

    address: str
    name: str = "kafka"
    synced: bool = False
    """Whether the broker syncs each record to disk before it answers (`flush.messages` 1)."""
    server_pids: tuple[int, ...] = ()
    about: str = ""

    @asynccontextmanager
    async def logs(self, names: Sequence[str]) -> AsyncIterator[None]:
        """Make the topic, with three replicas where there are as many brokers."""
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": LOG_LEVEL})
        replicas = min(REPLICAS, await asyncio.to_thread(self._brokers, admin))
        creating = asyncio.ensure_future(asyncio.to_thread(self._create, admin, names, replicas))
        try:
            # A thread cannot be cancelled: it may make the topic yet.
            await asyncio.shield(creating)
            yield
        except BaseException:
            await asyncio.wait([creating])
            creating.exception()  # taken: what has ended the run comes before it, and before a topic that stays
            with suppress(NotAppliedError):
                await asyncio.to_thread(self._delete, admin, names[0])
            raise
        await asyncio.to_thread(self._delete, admin, names[0])

    def _brokers(self, admin: AdminClient) -> int:
        try:
            return len(admin.list_topics(timeout=ANSWER_S).brokers)
        except KafkaException as error:
            raise NotAppliedError(
                f"Kafka has not answered within {ANSWER_S:g} s; nothing was measured: {error}", node=self.address
            ) from error

    def _create(self, admin: AdminClient, names: Sequence[str], replicas: int) -> None:
        config = {"min.insync.replicas": str(max(1, replicas - 1))} | ({"flush.messages": "1"} if self.synced else {})
        try:
            topic = NewTopic(names[0], num_partitions=len(names), replication_factor=replicas, config=config)
            for future in admin.create_topics([topic]).values():
                future.result(TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            message = f"Kafka has not made a topic; nothing was measured: {_words(error)}"
            raise NotAppliedError(message, node=self.address) from error
        copies = f"{replicas} {'copy' if replicas == 1 else 'copies'}"
        synced = "each record synced to disk first (flush.messages=1)" if self.synced else "not synced to disk first"
        self.about = f"{copies}, acknowledged by all in sync, {synced}"

    def _delete(self, admin: AdminClient, topic: str) -> None:
        """Delete the topic, if it is there."""
        try:
            for future in admin.delete_topics([topic]).values():
                future.result(TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return
            message = f"Kafka has not deleted the topic {topic}, which may remain: {_words(error)}"
            raise NotAppliedError(message, node=self.address) from error

    @asynccontextmanager
    async def publisher(self, names: Sequence[str]) -> AsyncIterator[BurstPublisher]:
        """Open the producer."""
        producer = Producer(
            {
                "bootstrap.servers": self.address,
                "log_level": LOG_LEVEL,
                "acks": "all",
                # As Java's producer is by default: with at most five requests under way the library gathers more in
                # each where the broker is slow.
                "enable.idempotence": True,
                "socket.nagle.disable": True,
                "linger.ms": 1,
                "batch.size": 131_072,
                # Above what the load has under way.
                "queue.buffering.max.messages": 10_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
            }
        )
        made = KafkaPublisher(producer, names[0])
        try:
            yield made
        finally:
            await asyncio.to_thread(made.close)

    @asynccontextmanager
    async def consumer(self, names: Sequence[str], deliver: Deliver) -> AsyncIterator[Consumer]:
        """Open a consumer of all partitions, outside of any group's balance."""
        consumer = KafkaConsumer(
            {
                "bootstrap.servers": self.address,
                "log_level": LOG_LEVEL,
                "group.id": names[0],
                "enable.auto.commit": False,
                "socket.nagle.disable": True,
                "auto.offset.reset": "earliest",
                "max.partition.fetch.bytes": 10_485_760,
            }
        )
        consumer.assign([TopicPartition(names[0], number, 0) for number in range(len(names))])
        made = KafkaReader(consumer, deliver)
        try:
            yield made
        finally:
            await asyncio.to_thread(made.close)
