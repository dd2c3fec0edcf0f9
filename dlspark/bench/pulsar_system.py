"""Apache Pulsar under the load, by pulsar-client: a topic for each log, one producer and one exclusive subscription.

Settings of the producer are those of the OpenMessaging benchmark: batches that are gathered for a millisecond.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import pulsar

from dlspark.bench.systems import Burst, BurstPublisher, Consumer, Deliver
from metadata.foundation.errors import NotAppliedError

PENDING: Final = 1_000_000
"""Messages that a producer may hold: more than the load has under way, which is what bounds it."""
BATCH: Final = 1_000
BATCH_BYTES: Final = 128 << 10
SUBSCRIPTION: Final = "bench"
ACKNOWLEDGED_EVERY: Final = 1_000
"""Messages that a consumer acknowledges together."""


def _topic(name: str) -> str:
    return f"persistent://public/default/{name}"


class PulsarPublisher:
    """Writes bursts, a call for each record."""

    def __init__(self, producers: Sequence[Any]) -> None:
        self._producers = producers

    def has_room(self, log: int) -> bool:
        """Return True: what the load has under way is less than the producer takes."""
        return True

    def publish(self, burst: Burst) -> None:
        """Give each record of a burst to its producer."""

        def answered(result: object, _: object) -> None:
            if result == pulsar.Result.Ok:
                burst.acknowledge_one()
            else:
                burst.fail(str(result))

        send = self._producers[burst.log].send_async
        for payload in burst.payloads():
            send(payload, answered)


class PulsarListener:
    """Takes the messages of one topic, in a thread of the client."""

    def __init__(self, log: int, deliver: Deliver) -> None:
        self._log = log
        self._deliver = deliver
        self._taken = 0

    def __call__(self, consumer: Any, message: Any) -> None:
        self._deliver(self._log, message.data(), time.monotonic_ns())
        self._taken += 1
        if self._taken % ACKNOWLEDGED_EVERY == 0:
            consumer.acknowledge_cumulative(message)


class PulsarSubscriptions:
    """The subscriptions of all topics."""

    def check(self) -> None:
        """Do nothing: the client connects again by itself, and what does not come is lost."""


@dataclass
class PulsarTopics:
    """Is there a Pulsar broker? Topics are made there; it deletes those that nobody uses by itself."""

    address: str
    name: str = "pulsar"
    server_pids: tuple[int, ...] = ()
    about: str = "copies and acknowledgements as its broker is set up, synced as its bookies are (by default: synced)"

    def _client(self) -> Any:
        return pulsar.Client(self.address, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

    @asynccontextmanager
    async def logs(self, names: Sequence[str]) -> AsyncIterator[None]:
        """Subscribe to each topic, which makes it: of one without a subscription nothing is kept."""
        client = self._client()
        try:
            await self._done(lambda: [client.subscribe(_topic(name), SUBSCRIPTION).close() for name in names])
            yield
        finally:
            await asyncio.to_thread(self._end, client, names)

    def _end(self, client: Any, names: Sequence[str]) -> None:
        """Take the subscriptions away: the broker then deletes the topics."""
        for name in names:
            client.subscribe(_topic(name), SUBSCRIPTION).unsubscribe()
        client.close()

    async def _done(self, work: Callable[[], object]) -> Any:
        """Call what waits for the broker. Raises NotAppliedError."""
        try:
            return await asyncio.to_thread(work)
        except pulsar.PulsarException as error:
            raise NotAppliedError(f"Pulsar refuses: {error}; nothing more was measured", node=self.address) from error

    @asynccontextmanager
    async def publisher(self, names: Sequence[str]) -> AsyncIterator[BurstPublisher]:
        """Open a producer for each topic."""
        client = self._client()

        def opened(name: str) -> Any:
            return client.create_producer(
                _topic(name),
                send_timeout_millis=0,
                block_if_queue_full=True,
                max_pending_messages=PENDING,
                max_pending_messages_across_partitions=PENDING,
                batching_enabled=True,
                batching_max_messages=BATCH,
                batching_max_allowed_size_in_bytes=BATCH_BYTES,
                batching_max_publish_delay_ms=1,
            )

        try:
            yield PulsarPublisher(await self._done(lambda: [opened(name) for name in names]))
        finally:
            await asyncio.to_thread(client.close)

    @asynccontextmanager
    async def consumer(self, names: Sequence[str], deliver: Deliver) -> AsyncIterator[Consumer]:
        """Open the subscription of each topic."""
        client = self._client()

        def opened() -> None:
            for number, name in enumerate(names):
                client.subscribe(
                    _topic(name),
                    SUBSCRIPTION,
                    receiver_queue_size=BATCH,
                    message_listener=PulsarListener(number, deliver),
                    initial_position=pulsar.InitialPosition.Earliest,
                )

        try:
            await self._done(opened)
            yield PulsarSubscriptions()
        finally:
            await asyncio.to_thread(client.close)
