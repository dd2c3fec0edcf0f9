"""Two queries and eight thin clients write to twenty logs through two proxies that are killed and paused in turn.

As many faults as `--rounds` says, one after the other (100 take 20 minutes). Then the logs, read without any proxy, are
held against what the clients were told and what the queries have written: each row and each acknowledged record is
there once, in its writer's order, and nothing that was refused. How long writes took outside of fail-overs is printed.
With typed frames the queries' logs declare columns, which clients' records do not fit: one takes ids from times that
are long past, whose rows get the ids of clients' records before them, the other has none.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from helpers.faults.fault_client import outcome
from helpers.serving.rounds import row
from helpers.spark.sink_driver import declare_logs
from helpers.spark.typed_frames import EARLY, Frames, Using
from helpers.waiting import wait_until

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.namespace import AsyncNamespace
from dlspark.sandbox.proxies import SESSION_S
from dlspark.sandbox.sandbox import Sandbox
from dlspark.serving.client.client import AsyncClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [
    pytest.mark.processes,
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(7200),
    pytest.mark.usefixtures("frames"),
]

LOGS = [f"beside-{number:02}" for number in range(20)]
QUERIES = LOGS[:2]
"""Each of them has a query's rows and clients' records."""
CLIENTS = 8
EVERY_S = 0.1
ROWS_PER_BATCH = 20
SETTINGS = {"requestTimeoutMs": 60_000, "attemptTimeoutMs": 1_000}
PAUSED_S = SESSION_S + 1.5
BETWEEN_S = 3.0


class Told(NamedTuple):
    """A record, and what its client was told."""

    log: str
    writer: str
    number: int
    sent_s: float
    took_s: float
    outcome: str
    text: str


class Clients(threading.Thread):
    """Thin clients with producers, each of which writes to all logs in turn, until they are stopped."""

    def __init__(self, uri: str) -> None:
        super().__init__(name="thin clients")
        self._uri = uri
        self._stopping = threading.Event()
        self.told: list[Told] = []
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            asyncio.run(self._write_all())
        except BaseException as error:
            self.failure = error

    async def _write_all(self) -> None:
        await asyncio.gather(*(self._write(f"client-{number}", random.Random(number)) for number in range(CLIENTS)))

    async def _write(self, name: str, rng: random.Random) -> None:
        numbers, writing = Counter[str](), set[asyncio.Task[None]]()
        async with await AsyncClient.connect(self._uri, {**SETTINGS, "clientId": name}) as client:
            while not self._stopping.is_set():
                log = LOGS[numbers.total() % len(LOGS)]
                numbers[log] += 1
                future = client.producer(log).send(f"{name} {numbers[log]}".encode())
                task = asyncio.ensure_future(self._note(log, name, numbers[log], future))
                writing.add(task)
                task.add_done_callback(writing.discard)
                await asyncio.sleep(EVERY_S * rng.uniform(0.5, 1.5))
            await asyncio.gather(*writing)

    async def _note(self, log: str, writer: str, number: int, future: asyncio.Future[DLSN]) -> None:
        sent_s = time.monotonic()
        try:
            said, text = "ok", str(await future)
        except Exception as error:
            said, text = outcome(error), repr(error)  # type: ignore[arg-type]
        self.told.append(Told(log, writer, number, sent_s, time.monotonic() - sent_s, said, text))

    def stop(self) -> list[Told]:
        """Let them stop, and return what they were told of every record."""
        self._stopping.set()
        self.join()
        if self.failure is not None:
            raise self.failure
        return self.told


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path / "tier", nodes=3, proxies=2) as running:
        yield running


def frames_of(log: str) -> Frames:
    """What is written to `log`: bytes, unless a query writes typed frames to it."""
    return Frames(Using.frames.kind, timed=log == QUERIES[0]) if log in QUERIES else Frames()


def columns_for(log: str) -> list[str]:
    """The columns of the query's frames, from numbers in `value`."""
    text, frames = "concat('query ', value)", frames_of(log)
    if not frames.typed:
        return [f"{text} as value"]
    own = [f"cast({text} as binary) as body", f"length({text}) as length"]
    return [*own, f"{EARLY}L as at"] if frames.timed else own


def started(spark: SparkSession, tier: Sandbox, log: str, place: Path) -> StreamingQuery:
    """A query that writes the numbers from 0 on to `log`, through the proxies, a batch a second."""
    rows = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=ROWS_PER_BATCH, numPartitions=1).load()
    writer = rows.selectExpr(*columns_for(log)).writeStream.format("distributedlog")
    writer = writer.options(uri=tier.uri, proxy="discover", checkpointLocation=str(place / log))
    return writer.trigger(processingTime="1 second").start(log)


def break_one(tier: Sandbox, number: int, rng: random.Random) -> tuple[float, float]:
    """Kill or pause a proxy, and mend it; from when to when writes may have waited for that."""
    proxies, index = tier.proxies, rng.randrange(2)
    begun_s = time.monotonic()
    if number % 2:
        proxies.pause(index)
        time.sleep(PAUSED_S)  # longer than its session: the fault itself, not a synchronisation
        proxies.resume(index)
    else:
        proxies.kill(index)
        time.sleep(rng.uniform(0.5, PAUSED_S))
        proxies.start_one(index)
    time.sleep(BETWEEN_S)
    return begun_s, time.monotonic()


async def held(uri: str) -> dict[str, list[tuple[DLSN, str]]]:
    """All records of all logs, read from storage nodes; of a typed row, what its body is."""
    found: dict[str, list[tuple[DLSN, str]]] = {log: [] for log in LOGS}
    async with await AsyncNamespace.open(uri) as namespace:
        for log in LOGS:
            async with await namespace.open_log(log) as opened, await opened.open_reader("earliest") as reader:
                while more := await reader.read_available(1000, wait=True):
                    values = frames_of(log).read([one.payload for one in more], [one.txid for one in more])
                    found[log] += [(one.dlsn, value.decode()) for one, value in zip(more, values, strict=True)]
    return found


def check(log: str, records: list[tuple[DLSN, str]], told: list[Told]) -> None:
    """Raise AssertionError unless the log holds what its clients were told and its query wrote."""
    places: dict[str, DLSN] = {}
    order: dict[str, list[int]] = defaultdict(list)
    for dlsn, text in records:
        assert text not in places, f"{log}: {text!r} is there twice, at {places[text]} and {dlsn}"
        places[text] = dlsn
        writer, _, number = text.rpartition(" ")
        order[writer].append(int(number))
    rows = order.pop("query", [])
    assert rows == list(range(len(rows))), f"{log}: rows of the query are missing or out of order"
    assert len(rows) % ROWS_PER_BATCH == 0, "batches are whole"
    assert bool(rows) == (log in QUERIES)
    for writer, numbers in order.items():
        assert numbers == sorted(numbers), f"{log}: what {writer} wrote is not in its order"
    for one in told:
        place = places.get(f"{one.writer} {one.number}")
        if one.outcome == "ok":
            assert place == DLSN.parse(one.text), f"acknowledged, found at {place}: {one}"
        assert one.outcome != "failed" or place is None, f"said not to be written, and is: {one}"


def test_nothing_is_lost_or_twice_while_proxies_die_and_stand_still(
    tier: Sandbox, spark: SparkSession, tmp_path: Path, rounds: int | None
) -> None:
    rng, faults = random.Random(rounds), []
    for log in QUERIES if Using.frames.typed else ():
        declare_logs(tier.uri, frames_of(log).declaration, log)
    queries = [started(spark, tier, log, tmp_path) for log in QUERIES]
    clients = Clients(tier.uri)
    try:
        wait_until(
            lambda: all(query.lastProgress is not None for query in queries), "the queries write", patience_s=120
        )
        for number in range(rounds or 1):
            time.sleep(rng.uniform(1.0, 3.0))
            faults.append(break_one(tier, number, rng))
            assert clients.failure is None
            assert all(query.isActive for query in queries), [str(query.exception()) for query in queries]
    finally:
        told = clients.stop()
        for query in queries:
            query.stop()
    found = asyncio.run(held(tier.uri))
    for log in LOGS:
        check(log, found[log], [one for one in told if one.log == log])
    outside = [
        one.took_s
        for one in told
        if one.outcome == "ok" and not any(a - 1 <= one.sent_s + one.took_s and one.sent_s <= b for a, b in faults)
    ]
    rows = [sum(text.startswith("query ") for _, text in found[log]) for log in QUERIES]
    print(f"\n{len(faults)} faults; rows of the queries {rows}; {dict(Counter(one.outcome for one in told))}")
    print(f"{'milliseconds of writes':<28} {'writes':>6} {'p50':>9} {'p99':>9} {'most':>9}")
    print(row("outside of fail-overs", outside, 1000))
    print(row("all", [one.took_s for one in told if one.outcome == "ok"], 1000))
