"""Taking over a dead proxy's logs: row P25, for what lies at the end of a log when its owner is killed.

A sandbox of its own has two write proxies, as a user's has, with sessions of four seconds. A client writes to a log and
its owner is killed at once; the time runs until the next write of that client is acknowledged, by the other proxy. It
is measured in sessions, for the dead owner keeps its log for one: the target is half a second more.

Meanwhile the other proxy is asked every few milliseconds who it is. The longest that an answer takes is how long its
loop was held, and that of the machine's scheduler with it. What it has at most of memory, above what it had before, is
what the take-over cost. Asking is also part of what a take-over costs the client and the successor: all that they did
until that write was acknowledged.

By itself, with a table of its own: `python -m benchmarks.takeovers`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.cluster import PAGES, run, watch_of
from benchmarks.costs import CLIENT, Costs, costs_of
from benchmarks.results import Row, Target, cost_table, table
from dlspark.core.codec.entries import Compression, encode_record_set
from dlspark.sandbox.proxies import SESSION_S
from dlspark.sandbox.sandbox import Sandbox
from dlspark.serving.bindings.frames_client import FramesClient
from dlspark.serving.client.client import AsyncClient
from dlspark.serving.protocol.operations import Handshake, ProducerStamp, RequestContext, WriteRecords
from metadata.foundation.errors import present
from storage_node.transport.tcp import TcpNetwork

PROXIES: Final = 2
MARGIN_S: Final = 0.5
MEMORY_GOAL_MB: Final = 64.0
HELD_GOAL_MS: Final = 20.0
ASKED_EVERY_S: Final = 0.003
_DEPTH: Final = 64
_CLIENT: Final = {"requestTimeoutMs": 120_000}


@dataclass(frozen=True, slots=True)
class TakeOver:
    """What did one take-over cost?"""

    seconds: float
    memory_mb: float
    held_ms: float
    costs: Costs


Fill = Callable[[AsyncClient, str], Awaitable[None]]


async def one_record(client: AsyncClient, log: str) -> None:
    """Write the least that there can be."""
    await client.write(log, b"record")


def record_sets(count: int) -> Fill:
    """Write so many sets of LZ4, each of 16,000 payloads of 4 KB in 250 KB."""

    async def fill(client: AsyncClient, log: str) -> None:
        encoded = encode_record_set([bytes(4_000)] * 16_000, Compression.LZ4)
        for _ in range(count):
            await client.ask(WriteRecords(log, (encoded,), context=RequestContext(is_record_set=True)))

    return fill


def requests(count: int, size: int, *, producers: int = 1, alone: bool = False) -> Fill:
    """Write so many producers' requests of one record; each `alone` in its entry, or in as few entries as they come."""

    async def fill(client: AsyncClient, log: str) -> None:
        payload, room = os.urandom(size), asyncio.Semaphore(1 if alone else _DEPTH)

        async def write(producer: int) -> None:
            for sequence in range(producer_count(producer)):
                async with room:
                    stamp = ProducerStamp(f"producer-{producer}", 0, sequence)
                    await client.ask(WriteRecords(log, (payload,), stamp=stamp))

        def producer_count(producer: int) -> int:
            return len(range(producer, count, producers))

        await asyncio.gather(*map(write, range(producers)))

    return fill


KINDS: Final[dict[str, Fill]] = {
    "one small entry": one_record,
    "a record set of LZ4, 64 MB in 250 KB": record_sets(1),
    "25 such sets": record_sets(25),
    "400 such sets": record_sets(400),
    "400 entries of 900 KB": requests(400, 900_000, alone=True),
    "9,000 small entries": requests(9_000, 20, alone=True),
    "10,000 producers": requests(10_000, 20, producers=10_000),
}


class TakeOverBenchmark:
    """Row P25 for each kind; the first round only: nearly all of the time is the dead owner's session."""

    def __init__(self, directory: Path, stack: ExitStack, kinds: dict[str, Fill] | None = None) -> None:
        self._kinds = KINDS if kinds is None else kinds
        self._sandbox = stack.enter_context(
            Sandbox(directory / "take-overs", nodes=3, node_settings=PAGES, proxies=PROXIES)
        )
        self._rounds = 0
        session, goal = f"s: session of {SESSION_S} s", Target((SESSION_S + MARGIN_S) / SESSION_S, at_most=True)
        self._rows = {
            kind: (
                Row("P25", f"{kind}: first answer behind a kill", "s", session, goal),
                Row("P25", f"{kind}: memory of the successor", "MB", "MB wanted", Target(1.0, at_most=True)),
                Row("P25", f"{kind}: its longest answer meanwhile", "ms", "ms wanted", Target(1.0, at_most=True)),
            )
            for kind in self._kinds
        }
        self.rows = [row for rows in self._rows.values() for row in rows]

    def round(self, seconds: float) -> None:
        """Measure every kind once, in the first round."""
        self._rounds += 1
        if self._rounds > 1:
            return
        for number, (kind, fill) in enumerate(self._kinds.items()):
            cost = self.measure(f"taken-over-{number}", fill)
            answer, memory, held = self._rows[kind]
            answer.add(cost.seconds, SESSION_S, costs=cost.costs)
            memory.add(cost.memory_mb, MEMORY_GOAL_MB)
            held.add(cost.held_ms, HELD_GOAL_MS)

    def measure(self, log: str, fill: Fill) -> TakeOver:
        """Fill a log, kill its owner, and start that again afterwards."""
        owners: list[int] = []
        try:
            return run(self._measure(log, fill, owners))
        finally:
            for index in owners:
                self._sandbox.proxies.start_one(index)

    async def _measure(self, log: str, fill: Fill, owners: list[int]) -> TakeOver:
        proxies = self._sandbox.proxies
        async with await AsyncClient.connect(self._sandbox.uri, _CLIENT) as client:
            await fill(client, log)
            address = (await client.owner(log)).split(";")[-1]
            owner = proxies.write_addresses.index(address)
            other = 1 - owner
            pid = present(proxies.pid(other), "the successor does not run")
            asked = await FramesClient.connect(TcpNetwork(), proxies.write_addresses[other])
            held: list[float] = []
            watch = watch_of(self._sandbox, {CLIENT: [os.getpid()], "successor": [pid]})
            # Looking holds this process: nothing is asked meanwhile.
            with watch:
                asking = asyncio.ensure_future(_ask_again_and_again(asked, held))
                before = _start_counting(pid)
                owners.append(owner)
                proxies.kill(owner)
                begin = time.perf_counter()
                await client.write(log, b"behind the kill")
                seconds = time.perf_counter() - begin
                asking.cancel()
            watch.units = 1
            memory_mb = _memory_mb(pid, "VmHWM") - before
            await asked.close()
            return TakeOver(seconds, max(memory_mb, 0.0), max(held) * 1e3, costs_of("take-over", watch))


async def _ask_again_and_again(client: FramesClient, held: list[float]) -> None:
    while True:
        begin = time.perf_counter()
        await client.call(Handshake(ownerships=False))
        held.append(time.perf_counter() - begin)
        await asyncio.sleep(ASKED_EVERY_S)


def _start_counting(pid: int) -> float:
    """Forget the most memory that a process had, and say how much it has (Linux)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _memory_mb(pid, "VmRSS")


def _memory_mb(pid: int, what: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) / 1e3


def main() -> None:
    """Print the table for the kinds that are named, or for all."""
    wanted = {kind: fill for kind, fill in KINDS.items() if not sys.argv[1:] or kind in sys.argv[1:]}
    with tempfile.TemporaryDirectory(prefix="dlspark-bench-") as name, ExitStack() as stack:
        benchmark = TakeOverBenchmark(Path(name), stack, wanted)
        benchmark.round(0.0)
        print(f"{table(benchmark.rows)}\n\n{cost_table(benchmark.rows)}")


if __name__ == "__main__":
    main()
