"""How many requests to the metadata store each step of using a log takes; docs/performance.md has the table of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from helpers.logs import payloads

from dlspark.errors import WriteError
from metadata.distributedlog.log_names import LogNotFoundError

BOUNDS = {
    "create the log": (9, 9),
    "open the log": (0, 0),
    "open a writer": (10, 10),
    "first write": (16, 6),
    "open a reader, and read": (6, 6),
    "open a writer again": (11, 11),
    "write again": (6, 6),
    "open a reader at a transaction id": (9, 9),
}
"""For a client's first log, and for a later one: by then it knows the cluster's layout and most nodes' addresses.

One of the first write asks whether storage nodes announce where they are: what ledgers demand of regions is kept by it.
One for each time that a reader lists segments asks whether the log has cold storage. It goes along with the list, so it
costs no time; `ColdLister.names` says why it cannot be spared."""
ONCE = ("create the log", "open a writer", "first write", "open a reader, and read", "open a writer again")
"""Steps that ask the same of a log no second time."""


class Requests:
    """Counts what one client asks of the metadata store, step by step."""

    def __init__(self, store) -> None:
        self.made: list[str] = []
        self.steps: dict[str, list[str]] = {}
        store.observe(lambda operation, path, seconds, error: self.made.append(f"{operation} {path}"))

    async def step(self, name: str, work: Callable[[], Awaitable[object]]) -> object:
        self.made.clear()
        outcome = await work()
        await self.quiet()
        self.steps[name] = list(self.made)
        return outcome

    async def quiet(self) -> None:
        """Until what a step has left to the background is done: no request in many turns of the loop."""
        turns = 0
        while turns < 200:
            before = len(self.made)
            await asyncio.sleep(0)
            turns = turns + 1 if len(self.made) == before else 0


async def _use(namespace, name: str) -> dict[str, list[str]]:
    requests = Requests(namespace.store)

    async def write(writer, txid: int) -> None:
        await writer.write(txid, b"payload")
        await writer.flush()

    await requests.step("create the log", lambda: namespace.create_log(name))
    log = await requests.step("open the log", lambda: namespace.open_log(name, {"writerOutputBufferSize": 0}))
    writer = await requests.step("open a writer", log.open_writer)
    await requests.step("first write", lambda: write(writer, 1))
    await requests.step("open a reader, and read", lambda: payloads(log))
    await writer.close()
    writer = await requests.step("open a writer again", log.open_writer)
    await requests.step("write again", lambda: write(writer, 2))
    reader = await requests.step("open a reader at a transaction id", lambda: log.open_reader(2))
    await reader.close()
    await writer.close()
    return requests.steps


async def test_no_step_asks_more_of_the_metadata_store_than_it_has_to(memory_cluster):
    someone = await memory_cluster.namespace()
    async with await (await someone.open_log("earlier")).open_writer() as writer:
        writer.write(1, b"payload")  # The cluster has had a ledger: parents of ledgers' znodes exist.
    namespace = await memory_cluster.namespace()
    first = await _use(namespace, "first")
    later = await _use(namespace, "later")
    counts = {name: (len(first[name]), len(later[name])) for name in first}
    print(counts)
    assert counts.keys() == BOUNDS.keys()
    for name, (most_at_first, most_later) in BOUNDS.items():
        assert len(first[name]) <= most_at_first, (name, first[name])
        assert len(later[name]) <= most_later, (name, later[name])


async def test_a_step_asks_for_no_znode_of_a_log_twice(memory_cluster):
    steps = await _use(await memory_cluster.namespace(), "once")
    for name in ONCE:
        of_the_log = [request for request in steps[name] if " /dl/" in request]
        assert sorted(of_the_log) == sorted(set(of_the_log)), name


async def test_writers_choose_nodes_from_a_list_that_is_read_again_when_it_has_changed(memory_cluster):
    namespace = await memory_cluster.namespace(ensemble_size=3)
    listed = Requests(namespace.store)

    async def write(name: str) -> None:
        async with await (await namespace.open_log(name)).open_writer() as writer:
            await asyncio.gather(writer.write(1, b"payload"), writer.flush())

    await listed.step("one", lambda: write("one"))
    await listed.step("two", lambda: write("two"))
    for bookie in memory_cluster.bookies[:3]:
        await memory_cluster.operator.delete(f"/ledgers/available/{bookie.id}")
    with pytest.raises(WriteError, match="3 writable storage nodes and 1 are registered"):
        await listed.step("three", lambda: write("three"))
    lists = [sum("children /ledgers/available" in request for request in listed.steps[step]) for step in ("one", "two")]
    assert lists == [1, 0]


async def test_a_reader_of_a_half_made_log_is_told_so_by_the_list(memory_cluster):
    """What it does not ask when it is opened shows with its first look."""
    namespace = await memory_cluster.namespace()
    await namespace.create_log("half")
    log = await namespace.open_log("half")
    await namespace.store.delete(namespace.logs_store.paths("half").ledgers)
    async with await log.open_reader() as reader:
        with pytest.raises(LogNotFoundError):
            await reader.read_next()
    await namespace.store.delete(f"{namespace.logs_store.paths('half').partition}/version")
    with pytest.raises(LogNotFoundError):
        await log.open_reader()
