"""What is open belongs to its process and loop: it is neither pickled nor copied, nor used from another loop."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from itertools import count

import pytest
import pytest_asyncio
from helpers.serving.memory_proxies import MemoryProxies
from helpers.worlds.memory_cluster import MemoryCluster
from pyspark import cloudpickle

import dlspark
from dlspark import DLSN, Namespace, Runtime
from dlspark.sandbox.sandbox import Sandbox
from dlspark.serving.client.client import AsyncClient
from dlspark.serving.client.fleet import StaticFleet
from dlspark.serving.client.settings import ThinClientSettings
from dlspark.serving.client.sync import Client
from metadata.foundation.errors import CallerError, OpenedElsewhereError

_SEEDS = count(1)
PROXY = "a:1"


async def thin_client() -> AsyncClient:
    fleet = MemoryProxies(PROXY)
    client = AsyncClient(
        [StaticFleet(tuple(fleet.proxies))],
        ThinClientSettings.from_mapping({}),
        fleet.connect,
        random_bits=lambda bits: next(_SEEDS) % (1 << bits),
    )
    await client.open()
    return client


@pytest.fixture
def opened(tmp_path) -> Iterator[dict[str, object]]:
    """One of each synchronous object that a user may have open, and what it is made of."""
    runtime = Runtime("opened-here")

    async def begin():
        memory_cluster = MemoryCluster()
        await memory_cluster.start()
        return memory_cluster, await memory_cluster.namespace()

    memory_cluster, inner = runtime.run(begin())
    namespace = Namespace(runtime, inner)
    client = Client(runtime, runtime.run(thin_client()))
    log = namespace.open_log("orders")
    writer = log.open_writer()
    stream = namespace.open_log("bytes")
    found = [runtime, namespace, log, writer, writer.write(1, b"one"), log.open_reader()]
    found += [log.open_reader(subscriber="me"), log.open_reader(exclusive=True), stream.open_append_stream()]
    found += [stream.open_append_reader(), client, client.producer("x"), client.reader("x")]
    found += [client.multi_stream_writer(["x", "y"]), client.monitor(["x"]), Sandbox(tmp_path)]
    inners = [one._inner for one in found if hasattr(one, "_inner")]
    yield {type(one).__name__: one for one in [*found, *inners]}
    client.close()
    namespace.close()
    runtime.run(memory_cluster.stop())
    runtime.close()


def test_what_is_open_is_neither_pickled_nor_copied_nor_taken_into_a_task(opened):
    def capturing(one: object) -> Callable[[], object]:
        return lambda: one

    ways = (pickle.dumps, copy.copy, copy.deepcopy, cloudpickle.dumps, lambda one: cloudpickle.dumps(capturing(one)))
    public = {name for name in dlspark.__all__ if hasattr(getattr(dlspark, name), "close")}
    assert public < set(opened)
    for name, one in opened.items():
        for way in ways:
            with pytest.raises(OpenedElsewhereError, match="Open it where it is used: in a Spark task") as refused:
                way(one)
            assert isinstance(refused.value, CallerError), name
    with pytest.raises(OpenedElsewhereError, match=r"^Log\('orders'\) is open in this process"):
        pickle.dumps(opened["Log"])


def test_what_was_not_copied_goes_on(opened):
    with pytest.raises(OpenedElsewhereError):
        copy.copy(opened["LogWriter"])
    assert opened["PendingWrite"].result(60) == DLSN(1, 0, 0)
    opened["LogWriter"].commit()
    # `read_bulk` gives up at the tail after `readAheadWaitTime`; whoever iterates waits for the record.
    assert next(iter(opened["LogReader"])).payload == b"one"


def elsewhere(call: Callable[[], Coroutine[object, object, object]]) -> Coroutine[object, object, object]:
    """Run what `call` makes on another loop, in a thread of its own."""
    return asyncio.to_thread(lambda: asyncio.run(call()))


async def called(function: Callable[..., object], *arguments: object) -> object:
    """For functions that are not coroutines: called, and what they return awaited."""
    result = function(*arguments)
    return await result if isinstance(result, asyncio.Future) else result


@pytest_asyncio.fixture
async def served(memory_cluster) -> AsyncIterator[dict[str, Callable[[], Coroutine[object, object, object]]]]:
    """Calls of all kinds on objects that this loop serves."""
    namespace = await memory_cluster.namespace()
    log = await namespace.open_log("orders")
    writer = await log.open_writer(producers=True)
    reader, locked = await log.open_reader(), await log.open_reader(subscriber="me")
    append = await (await namespace.open_log("bytes")).open_append_stream()
    stored = await (await namespace.open_log("bytes")).open_append_reader()
    client = await thin_client()
    producer, through = client.producer("x"), client.reader("x")
    multi, monitor = client.multi_stream_writer(["x", "y"]), client.monitor([])
    written = writer.write(1, b"one")
    await writer.commit()
    await written
    yield {
        "create a log": lambda: namespace.create_log("other"),
        "list": namespace.logs,
        "watch logs": lambda: anext(namespace.watch_logs()),
        "open a log": lambda: namespace.open_log("orders"),
        "close the namespace": namespace.close,
        "open a writer": log.open_writer,
        "open a reader": log.open_reader,
        "segments": log.segments,
        "watch segments": lambda: anext(log.watch_segments()),
        "subscribers": log.subscribers,
        "truncate": lambda: log.truncate(DLSN(1, 0, 0)),
        "purge": lambda: log.purge_older_than(1),
        "close the log": log.close,
        "write": lambda: called(writer.write, 2, b"two"),
        "append": lambda: called(writer.append, [(2, b"two")]),
        "flush": writer.flush,
        "send": writer.send,
        "push": lambda: called(writer.push),
        "wait for room": writer.wait_for_room,
        "begin an epoch": lambda: writer.begin_epoch("me"),
        "seal": writer.mark_end_of_stream,
        "truncate by the writer": lambda: writer.truncate(DLSN(1, 0, 0)),
        "close the writer": writer.close,
        "read": reader.read_next,
        "read many": lambda: reader.read_bulk(5, wait_ms=1),
        "read a batch": reader.next_batch,
        "skip": lambda: reader.skip_to(DLSN(1, 0, 0)),
        "iterate": lambda: anext(reader),
        "close the reader": reader.close,
        "commit a position": lambda: locked.commit_position(DLSN(1, 0, 1)),
        "close the locked reader": locked.close,
        "append bytes": lambda: append.append(b"bytes"),
        "force": append.force,
        "read bytes": stored.read,
        "write through a proxy": lambda: client.write("x", b"one"),
        "ask a proxy": lambda: client.create("y"),
        "a proxy's handshake": lambda: client.handshake(PROXY),
        "make a producer": lambda: called(client.producer, "y"),
        "make a reader": lambda: called(client.reader, "x"),
        "close the client": client.close,
        "send to a proxy": lambda: called(producer.send, b"one"),
        "append through a proxy": lambda: producer.append([b"one"]),
        "flush the producer": producer.flush,
        "close the producer": producer.close,
        "read through a proxy": through.read_next,
        "skip through a proxy": lambda: through.skip_to("earliest"),
        "close the proxy's reader": through.close,
        "write to many": lambda: called(multi.write, b"one"),
        "flush to many": multi.flush,
        "monitor": lambda: called(monitor.watch, ["x"]),
        "close the monitor": monitor.close,
    }
    await client.close()


async def test_every_call_from_another_loop_is_refused_and_does_nothing(served):
    for name, call in served.items():
        with pytest.raises(OpenedElsewhereError, match="was opened on another event loop; nothing was done"):
            await elsewhere(call)
        assert name
    # Here they go on.
    assert await served["list"]() == ["bytes", "orders"]
    assert (await served["read"]()).payload == b"one"
    assert (await served["write through a proxy"]()) is not None


def test_a_loop_that_has_ended_is_said_to_have():
    client = asyncio.run(thin_client())
    with pytest.raises(OpenedElsewhereError, match="another event loop, which has ended") as refused:
        asyncio.run(client.create("x"))
    assert "Open, use and close it in one asyncio.run()" in str(refused.value)
