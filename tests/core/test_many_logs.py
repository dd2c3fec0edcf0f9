"""Many logs, each written and tailed, in one process: what that takes of descriptors, tasks, memory and requests.

100 logs in the ordinary run; `python -m pytest -s tests/core/test_many_logs.py --rounds 1` has 1,000, and prints the
figures of docs/performance.md. ZooKeeper and three storage nodes are processes of their own.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from helpers.waiting import until
from helpers.worlds.warm_sandbox import WarmSandbox

from dlspark.core.log import AsyncLog
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.runtime import new_event_loop

pytestmark = pytest.mark.processes

NODES = 3
SETTINGS = {"writerOutputBufferSize": 0, "enableImmediateFlush": True, "periodicFlushFrequencyMilliSeconds": 0}
RECORDS = 20
AT_ONCE = 32
"""Logs opened or closed at a time."""
MIB = 1 << 20


@dataclass
class Usage:
    """What this process and the storage nodes hold, and how often ZooKeeper was asked since the one before."""

    descriptors: int
    tasks: int
    resident_bytes: int
    processor_s: float
    node_descriptors: int
    node_resident_bytes: int
    requests: int = 0
    at_s: float = field(default_factory=time.monotonic)


def _descriptors(pid: int | str) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _resident_bytes(pid: int | str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


class ManyLogs:
    """A life of `count` logs in one namespace, and what was used at each step."""

    def __init__(self, warm_sandbox: WarmSandbox, count: int) -> None:
        self.count = count
        self.usage: dict[str, Usage] = {}
        self.delivered: list[list[int]] = [[] for _ in range(count)]
        self._sandbox = warm_sandbox
        self._requests: Counter[str] = Counter()
        self._some = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        async with await AsyncNamespace.open(self._sandbox.uri, SETTINGS) as namespace:
            namespace.store.observe(lambda operation, path, seconds, error: self._requests.update([operation]))
            logs = [await namespace.open_log(f"log-{self.count}-{number:04d}") for number in range(self.count)]
            await self._note("before")
            writers = await self._each(logs, AsyncLog.open_writer)
            await self._each(writers, lambda writer: writer.write(0, b"first"))
            readers = await self._each(logs, AsyncLog.open_reader)
            tails = [asyncio.create_task(self._tail(*one)) for one in zip(readers, self.delivered, strict=True)]
            await self._until_delivered(1)
            await self._note("open", ours=len(tails))
            for number in range(1, RECORDS + 1):
                await asyncio.gather(*(writer.write(number, bytes(100)) for writer in writers))
            await self._until_delivered(RECORDS + 1)
            await self._note("written", ours=len(tails))
            for tail in tails:
                tail.cancel()
            await asyncio.wait(tails)
            await self._each(logs, AsyncLog.close)
            await self._note("closed")

    async def _each(self, things: list[Any], act: Callable[[Any], Awaitable[Any]]) -> list[Any]:
        async def one(thing: Any) -> Any:
            async with self._some:
                return await act(thing)

        return await asyncio.gather(*(one(thing) for thing in things))

    @staticmethod
    async def _tail(reader: Any, delivered: list[int]) -> None:
        async for record in reader:
            delivered.append(record.txid)

    async def _until_delivered(self, records: int) -> None:
        await until(lambda: min(map(len, self.delivered)) >= records, lambda: Counter(map(len, self.delivered)))

    async def _note(self, step: str, ours: int = 0) -> None:
        tasks = await self._lasting_tasks()
        gc.collect()
        pids = [self._sandbox.node_pid(index) for index in range(NODES)]
        self.usage[step] = Usage(
            _descriptors("self"),
            tasks - ours,
            _resident_bytes("self"),
            time.process_time(),
            max(_descriptors(pid) for pid in pids if pid is not None),
            max(_resident_bytes(pid) for pid in pids if pid is not None),
            self._requests.total(),
        )
        self._requests.clear()

    @staticmethod
    async def _lasting_tasks() -> int:
        """Without those that end by themselves: each writer's last LAC is being told to the storage nodes."""
        until = time.monotonic() + 1
        fewest = len(asyncio.all_tasks())
        while time.monotonic() < until:
            await asyncio.sleep(0.02)
            fewest = min(fewest, len(asyncio.all_tasks()))
        return fewest

    def table(self) -> str:
        lines = [f"{self.count} logs, each with a writer and a reader at its tail"]
        before = self.usage["before"]
        for step, used in self.usage.items():
            lines.append(
                f"{step:8} after {used.at_s - before.at_s:6.1f} s, {used.processor_s - before.processor_s:5.1f} s of "
                f"processor: {used.descriptors} descriptors, {used.tasks} tasks, {used.resident_bytes / 1e6:.0f} MB, "
                f"{used.requests} requests to ZooKeeper; a node: {used.node_descriptors} descriptors, "
                f"{used.node_resident_bytes / 1e6:.0f} MB"
            )
        return "\n".join(lines)


def _run(warm_sandbox: WarmSandbox, count: int) -> ManyLogs:
    loop = new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        many = ManyLogs(warm_sandbox, count)
        loop.run_until_complete(many.run())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    print(many.table())
    return many


def _check(many: ManyLogs) -> None:
    before, opened, written, closed = (many.usage[step] for step in ("before", "open", "written", "closed"))
    assert all(txids == list(range(RECORDS + 1)) for txids in many.delivered), "each reader delivers its log, in order"
    for used in (opened, written):
        # Connections are a storage node's, not a log's: two (version 3, and batch reads), and a few threads' pipes.
        assert used.descriptors - before.descriptors <= 4 * NODES
        assert used.node_descriptors - before.node_descriptors <= 8
        # A reader has its read-ahead, and follows its ledger; a writer has none; some are the process's.
        assert used.tasks - before.tasks <= 2 * many.count + 16
        assert used.resident_bytes - before.resident_bytes <= 24 * MIB + many.count * 100 * 1024
        assert used.node_resident_bytes - before.node_resident_bytes <= 24 * MIB + many.count * 50 * 1024
    assert opened.requests <= 45 * many.count + 200, "to create, own and begin a log, and to follow it"
    assert written.requests <= many.count / 10 + 20, "records cost ZooKeeper nothing"
    assert closed.tasks <= before.tasks + 1


def test_a_hundred_logs_written_and_tailed_at_once_share_connections_and_need_little_each(
    warm_sandbox: WarmSandbox,
) -> None:
    _check(_run(warm_sandbox, 100))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_thousand_logs_written_and_tailed_at_once_do_as_well(warm_sandbox: WarmSandbox) -> None:
    _check(_run(warm_sandbox, 1000))
