"""A real Apache Pulsar broker stores its topics on our storage nodes: nodes and broker are killed, nothing is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import count

import pytest
from helpers.interop.pulsar_broker import MAX_LEDGER_ENTRIES, PulsarBroker
from helpers.waiting import wait_until

from dlspark.testing.java_process import OutOfReachError
from metadata.foundation.errors import NoNodeError
from metadata.zookeeper.embedded import EmbeddedZooKeeper
from storage_node.client.client import LedgerClient

pulsar = pytest.importorskip("pulsar", reason="Apache Pulsar's Python client is not installed")

pytestmark = pytest.mark.timeout(600)
MESSAGES = 20_000
RECEIVE_MS = 20_000
PATIENCE_S = 120
_topics = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarBroker]:
    directory = tmp_path_factory.mktemp("pulsar")
    with EmbeddedZooKeeper(directory / "zookeeper") as zookeeper:
        try:
            started = PulsarBroker(zookeeper.address, directory)
        except OutOfReachError as reason:
            pytest.skip(str(reason))
        try:
            started.set_up()
            yield started
        finally:
            started.stop()


@pytest.fixture
def client(broker: PulsarBroker) -> Iterator[pulsar.Client]:
    opened = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def topic(client: pulsar.Client) -> str:
    """A topic with a subscriber: of one without any the broker deletes what is written, ledger by ledger."""
    name = f"topic-{next(_topics)}"
    client.subscribe(f"persistent://public/default/{name}", "keeper").close()
    return name


class Sender:
    """Numbered messages into a topic. `acknowledged` has those that the broker has confirmed, in that order."""

    def __init__(self, client: pulsar.Client, topic: str, *, batching: bool = True) -> None:
        self._producer = client.create_producer(
            f"persistent://public/default/{topic}",
            send_timeout_millis=0,
            block_if_queue_full=True,
            max_pending_messages=500,
            batching_enabled=batching,
            batching_max_messages=20,
        )
        self.acknowledged: list[int] = []

    def send(self, numbers: range) -> None:
        for number in numbers:

            def confirmed(result: pulsar.Result, _id: object, number: int = number) -> None:
                assert result == pulsar.Result.Ok
                self.acknowledged.append(number)

            self._producer.send_async(_body(number), confirmed)

    def flush(self) -> None:
        self._producer.flush()


def _body(number: int) -> bytes:
    return b"message %d " % number + bytes(number % 400)


def _receive(client: pulsar.Client, topic: str, last: int) -> list[int]:
    """The numbers of all messages from the topic's start up to `last`, each compared whole."""
    reader = client.create_reader(f"persistent://public/default/{topic}", pulsar.MessageId.earliest)
    numbers: list[int] = []
    while not numbers or numbers[-1] != last:
        data = reader.read_next(RECEIVE_MS).data()
        numbers.append(int(data.split(b" ")[1]))
        assert data == _body(numbers[-1])
    reader.close()
    return numbers


def test_a_topic_outlives_killed_nodes_and_a_killed_broker(
    broker: PulsarBroker, client: pulsar.Client, topic: str
) -> None:
    sender = Sender(client, topic)
    part = MESSAGES // 4
    sender.send(range(part))
    broker.nodes[0].kill()
    sender.send(range(part, 2 * part))
    broker.restore()
    sender.send(range(2 * part, 3 * part))
    broker.kill()
    broker.start()
    sender.send(range(3 * part, MESSAGES))
    broker.nodes[1].kill()
    sender.flush()
    assert sender.acknowledged == list(range(MESSAGES))

    received = _receive(client, topic, MESSAGES - 1)  # the killed node is still away
    # What was under way when the broker died may stand twice: the topic does not deduplicate.
    first_seen = list(dict.fromkeys(received))
    assert first_seen == list(range(MESSAGES))
    broker.restore()
    assert _receive(client, topic, MESSAGES - 1) == received


async def test_our_ledger_client_reads_what_the_broker_wrote(
    broker: PulsarBroker, client: pulsar.Client, topic: str
) -> None:
    sender = Sender(client, topic, batching=False)
    sender.send(range(3 * MAX_LEDGER_ENTRIES + 10))
    sender.flush()
    ledgers = {ledger: entries for ledger, entries in broker.ledgers_of(topic).items() if entries}
    assert list(ledgers.values()) == [MAX_LEDGER_ENTRIES] * 3  # the fourth is open
    bodies: list[bytes] = []
    async with broker.cluster.client() as ours:
        for ledger_id, entries in ledgers.items():
            reader = await ours.open(ledger_id, recover=False)
            read = await reader.read(0, entries - 1)
            bodies += [entry.payload for entry in read]
            await reader.close()
    assert len(bodies) == 3 * MAX_LEDGER_ENTRIES
    # In front of a message stands what Pulsar knows of it.
    assert all(bytes(body).endswith(_body(number)) for number, body in enumerate(bodies))


def test_compaction_keeps_the_last_message_of_each_key(broker: PulsarBroker, client: pulsar.Client, topic: str) -> None:
    path = f"persistent://public/default/{topic}"
    producer = client.create_producer(path)
    for turn in range(5):  # 1,000 messages: no more than the producer's queue holds
        for key in range(200):
            producer.send_async(b"%d of %d" % (turn, key), None, partition_key=str(key))
    producer.flush()
    broker.admin("PUT", f"persistent/public/default/{topic}/compaction")
    wait_until(
        lambda: broker.admin("GET", f"persistent/public/default/{topic}/compaction")["status"] == "SUCCESS",
        "the broker compacts the topic",
    )
    producer.send(b"after", partition_key="7")
    broker.nodes[2].kill()
    try:
        reader = client.create_reader(path, pulsar.MessageId.earliest, is_read_compacted=True)
        seen: list[tuple[str, bytes]] = []
        while reader.has_message_available():
            message = reader.read_next(RECEIVE_MS)
            seen.append((message.partition_key(), message.data()))
    finally:
        broker.restore()
    assert seen == [*((str(key), b"4 of %d" % key) for key in range(200)), ("7", b"after")]


async def test_what_a_topic_no_longer_needs_is_deleted_and_collected_on_the_nodes(
    broker: PulsarBroker, client: pulsar.Client, topic: str
) -> None:
    path = f"persistent://public/default/{topic}"
    consumer = client.subscribe(path, "keeper")
    sender = Sender(client, topic, batching=False)
    sender.send(range(6 * MAX_LEDGER_ENTRIES))
    sender.flush()
    before = broker.ledgers_of(topic)
    assert len(before) >= 6
    stored = broker.stored_ledgers()
    for number in range(6 * MAX_LEDGER_ENTRIES):
        message = consumer.receive(RECEIVE_MS)
        assert message.data() == _body(number)
        consumer.acknowledge(message)

    def trimmed() -> bool:
        with contextlib.suppress(OSError):  # a broker that has lost ZooKeeper for a moment refuses
            broker.admin("POST", f"persistent/public/default/{topic}/trim")
        return len(broker.ledgers_of(topic)) <= 1

    wait_until(trimmed, "the broker trims the topic", patience_s=PATIENCE_S)
    gone = set(before) - set(broker.ledgers_of(topic))
    assert len(gone) >= 5
    async with broker.cluster.client() as ours:
        for ledger_id in gone:
            await _check_deleted(ours, ledger_id)
    # Two copies of each; a ledger that the trimming started may have come.
    wait_until(
        lambda: broker.stored_ledgers() <= stored - 2 * len(gone) + 2,
        "the nodes collect deleted ledgers",
        patience_s=PATIENCE_S,
    )


async def _check_deleted(client: LedgerClient, ledger_id: int) -> None:
    with pytest.raises(NoNodeError):
        await client.open(ledger_id, recover=False)
