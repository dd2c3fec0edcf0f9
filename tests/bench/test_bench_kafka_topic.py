"""The topic of `dlspark bench` on Kafka, without a broker: taken away however a run ends."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from metadata.foundation.errors import NotAppliedError

pytest.importorskip("confluent_kafka", reason="Kafka's Python client is not installed")

from confluent_kafka import KafkaError, KafkaException

from dlspark.bench import kafka_system
from dlspark.bench.kafka_system import KafkaTopic


class KnownBroker:
    """Kafka's administration, as far as it is used: answers come at once, and a creation takes until it is let go."""

    def __init__(self, refusal: int | None = None) -> None:
        self.topics: list[str] = []
        self.creating, self.let_go, self.created = threading.Event(), threading.Event(), threading.Event()
        self._refusal = refusal

    def __call__(self, settings: object) -> KnownBroker:
        return self

    def list_topics(self, timeout: float) -> KnownBroker:
        self.brokers = [1]
        return self

    def create_topics(self, topics: list[Any]) -> dict[str, Future[None]]:
        self.creating.set()
        self.let_go.wait(10)
        self.topics += [topic.topic for topic in topics]
        self.created.set()
        return self._answered()

    def delete_topics(self, names: list[str]) -> dict[str, Future[None]]:
        if self._refusal is not None:
            return self._answered(KafkaException(KafkaError(self._refusal)))
        for name in names:
            self.topics.remove(name)
        return self._answered()

    def _answered(self, error: Exception | None = None) -> dict[str, Future[None]]:
        answer: Future[None] = Future()
        answer.set_exception(error) if error is not None else answer.set_result(None)
        return {"topic": answer}


async def _topic_of(broker: KnownBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_system, "AdminClient", broker)
    async with KafkaTopic("localhost:9092").logs(["a", "b"]):
        assert broker.topics == ["a"]


async def test_a_topic_whose_creation_is_cancelled_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = KnownBroker()
    run = asyncio.ensure_future(_topic_of(broker, monkeypatch))
    await asyncio.to_thread(broker.creating.wait, 10)
    run.cancel()
    await asyncio.sleep(0)
    broker.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert await asyncio.to_thread(broker.created.wait, 10)
    assert broker.topics == []


async def test_a_topic_that_is_not_deleted_is_said_and_one_that_is_gone_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing, gone = KnownBroker(KafkaError.TOPIC_AUTHORIZATION_FAILED), KnownBroker(KafkaError.UNKNOWN_TOPIC_OR_PART)
    refusing.let_go.set()
    gone.let_go.set()
    with pytest.raises(NotAppliedError, match="Kafka has not deleted the topic a, which may remain"):
        await _topic_of(refusing, monkeypatch)
    await _topic_of(gone, monkeypatch)


async def test_a_broker_that_does_not_answer_is_said_and_nothing_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = KnownBroker()

    def silent(timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    monkeypatch.setattr(broker, "list_topics", silent)
    with pytest.raises(NotAppliedError, match="Kafka has not answered within 10 s; nothing was measured"):
        await _topic_of(broker, monkeypatch)
    assert not broker.created.is_set()
