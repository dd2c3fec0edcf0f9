"""The synchronous client: the same from any thread; forks; and what importing it does not bring along."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from itertools import count
from typing import TypeVar

import pytest
from helpers.serving.memory_proxies import MemoryProxies

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.runtime import Runtime
from dlspark.errors import AlreadyClosedError, EndOfStreamError, InvalidRecordError
from dlspark.serving.client.client import AsyncClient
from dlspark.serving.client.fleet import StaticFleet
from dlspark.serving.client.settings import ThinClientSettings
from dlspark.serving.client.sync import Client
from metadata.foundation.errors import CallerError

T = TypeVar("T")
_SEEDS = count(1)
FORBIDDEN = (
    "kazoo",
    "grpc",
    "metadata.zookeeper.client",
    "dlspark.core.namespace",
    "storage_node.client",
    "pyspark",
)


class BackgroundProxies:
    """Proxies in memory that live in the background loop, and a client of them."""

    def __init__(self, **values: object) -> None:
        self.runtime = Runtime("test")
        self.fleet = MemoryProxies("a:1", "b:1")
        self.client = Client(self.runtime, self.run(self._open(values)))

    async def _open(self, values: dict[str, object]) -> AsyncClient:
        client = AsyncClient(
            [StaticFleet(tuple(self.fleet.proxies))],
            ThinClientSettings.from_mapping(values),
            self.fleet.connect,
            random_bits=lambda bits: next(_SEEDS) % (1 << bits),
        )
        await client.open()
        return client

    def run(self, work: Coroutine[object, object, T]) -> T:
        return self.runtime.run(work)

    def seal(self, stream: str) -> None:
        """Nothing is read or written meanwhile."""
        self.fleet.log(stream).sealed = True


@pytest.fixture
def proxies() -> Iterator[BackgroundProxies]:
    made = BackgroundProxies()
    yield made
    made.client.close()
    made.runtime.close()


def test_what_is_written_is_read(proxies: BackgroundProxies) -> None:
    client = proxies.client
    first = client.write("x", b"one")
    assert isinstance(first, DLSN)
    places = client.write_bulk("x", [b"two", b"three"])
    assert first < places[0] < places[1]
    assert client.append("x", [b"four"], expected_position=3) > places[1]
    proxies.seal("x")
    with client.reader("x") as reader:
        assert [record.payload for record in reader] == [b"one", b"two", b"three", b"four"]
        with pytest.raises(EndOfStreamError):
            reader.read_next()
    assert client.owner("x") in client.proxies
    assert client.counters.records == 4


def test_records_of_many_threads_are_written_once_and_each_thread_s_in_order(proxies: BackgroundProxies) -> None:
    def send(number: int) -> None:
        producer = proxies.client.producer("x")
        futures = [producer.send(b"%d:%04d" % (number, one)) for one in range(500)]
        places = [future.result(60) for future in futures]
        assert places == sorted(set(places))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = proxies.fleet.log("x").payloads
    assert len(set(found)) == len(found) == 4000
    for number in range(8):
        mine = [payload for payload in found if payload.startswith(b"%d:" % number)]
        assert mine == sorted(mine)


def test_more_than_may_wait_makes_the_thread_wait_and_loses_nothing() -> None:
    made = BackgroundProxies(maxPendingBytes=10_000)
    with made.client as client:
        producer = client.producer("x")
        futures = [producer.send(bytes(5000)) for _ in range(1000)]
        producer.flush()
        assert all(future.done() for future in futures)
    assert len(made.fleet.log("x").records) == 1000
    made.runtime.close()


def test_a_write_comes_behind_what_was_sent_before_it(proxies: BackgroundProxies) -> None:
    producer = proxies.client.producer("x")
    for number in range(100):
        producer.send(b"%03d" % number)
    producer.write(b"100")
    producer.append([b"101", b"102"])
    producer.send(b"103")
    producer.close()
    assert proxies.fleet.log("x").payloads == [b"%03d" % number for number in range(104)]
    with pytest.raises(AlreadyClosedError):
        producer.send(b"late")
    with pytest.raises(InvalidRecordError):
        proxies.client.producer("x").send("text")  # type: ignore[arg-type]


def test_a_reader_that_waits_in_vain_says_so_and_one_that_is_left_goes_on_where_it_was(
    proxies: BackgroundProxies,
) -> None:
    proxies.client.write_bulk("x", [b"%d" % number for number in range(10)])
    with proxies.client.reader("x") as reader:
        for record in reader:
            if record.payload == b"3":
                break
        assert reader.position == proxies.fleet.log("x").records[3].dlsn.next
        assert reader.read_next().payload == b"4"
        assert [record.payload for record in reader.read_bulk(100)] == [b"%d" % number for number in range(5, 10)]
        assert reader.read_bulk(1, timeout_s=0.05) == []
        assert reader.read_bulk(3, timeout_s=0.05) == []
        reader.skip_to(reader.position)
        proxies.client.write("x", b"10")
        assert reader.read_next().payload == b"10"


def test_many_streams_and_the_monitor(proxies: BackgroundProxies) -> None:
    with proxies.client.multi_stream_writer(["s1", "s2", "s3"]) as writer:
        positions = [writer.write(b"one").result(60) for _ in range(3)]
    assert {position.stream for position in positions} == {"s1", "s2", "s3"}
    with proxies.client.monitor(["s1", "s2"], interval_ms=5) as monitor:
        while not all(health.answered > 2 for health in monitor.health.values()):
            proxies.run(asyncio.sleep(0))
        monitor.watch(["s1"])
        assert set(monitor.health) == {"s1"}


def test_closing_the_runtime_closes_the_client_and_a_closed_one_says_so() -> None:
    made = BackgroundProxies()
    future = made.client.producer("x").send(b"one")
    made.client.producer("x").flush()
    made.runtime.close()
    assert future.result(60) == made.fleet.log("x").records[0].dlsn
    for call in (lambda: made.client.write("x", b"two"), lambda: made.client.producer("x")):
        with pytest.raises(AlreadyClosedError):
            call()
    made.client.close()


def _in_child(client: Client, said: multiprocessing.SimpleQueue[str]) -> None:
    for call in (lambda: client.write("x", b"child"), lambda: client.owner("x"), lambda: client.producer("x")):
        try:
            call()
        except CallerError as error:
            said.put(type(error).__name__)
        else:
            said.put("done")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_refused_the_parent_s_client_and_the_parent_goes_on(proxies: BackgroundProxies) -> None:
    proxies.client.write("x", b"before")
    context = multiprocessing.get_context("fork")
    said = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(proxies.client, said))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert [said.get() for _ in range(3)] == ["OpenedElsewhereError"] * 3
    proxies.client.write("x", b"behind")
    assert proxies.fleet.log("x").payloads == [b"before", b"behind"]


@pytest.mark.parametrize(
    "program",
    [
        "import dlspark; dlspark.Client; dlspark.AsyncClient",
        "import asyncio, dlspark\n"
        "async def main():\n"
        "    client = await dlspark.AsyncClient.connect('127.0.0.1:1', {'requestTimeoutMs': 50})\n"
        "    client.producer('x'), client.reader('x')\n"
        "    await client.close()\n"
        "asyncio.run(main())",
    ],
)
def test_a_client_of_listed_proxies_needs_neither_zookeeper_nor_storage_nodes_nor_grpc(program: str) -> None:
    check = (
        f"{program}\nimport sys\nfound = [one for one in {FORBIDDEN!r} if one in sys.modules]\nassert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_dlspark_imports_no_client() -> None:
    check = "import dlspark, sys; assert not [one for one in sys.modules if one.startswith('dlspark.serving')]"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
