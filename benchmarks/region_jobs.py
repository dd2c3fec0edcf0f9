"""What processes in a region do for the section `regions`: write, follow, read, append through a proxy, query.

`regional` is a child: it takes its region from its environment, and then does one job after the other. Every job opens
what it needs, is told when the others are ready (`Job.ready`), and returns plain numbers. Times are those of the
machine's one monotonic clock, so that moments of two processes can be compared. Some jobs have `Looks`,
so that windows are around the work alone; they return what a unit of it cost as well.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeVar

from benchmarks.cluster import run
from benchmarks.costs import CallCount, Costs, Watch, Window, costs_of
from benchmarks.limits import child_process
from benchmarks.logs import LOW_LATENCY, fill_log
from benchmarks.payloads import BATCH_BYTES, equal_lengths
from benchmarks.storage import SMALL_BYTES
from dlspark.core.namespace import AsyncNamespace
from dlspark.serving.client.client import AsyncClient
from metadata.foundation.errors import check

RECORD_BYTES: Final = 1024
_RECORDS: Final = equal_lengths(RECORD_BYTES)
BATCH_RECORDS: Final = len(_RECORDS.txids)
_TURNS: Final = 6
_T = TypeVar("_T")
_SILENCE_S: Final = 120.0
"""A job that takes longer has failed."""


class RegionProcess:
    """A process in a region, which does one job at a time."""

    def __init__(self, end: Connection) -> None:
        self._end = end

    def begin(self, job: Callable[..., Any], *arguments: object) -> None:
        """Start a job, a function of this module; returns when it is ready to begin, where it says so."""
        self._end.send((job, arguments))

    def until_ready(self) -> None:
        """Wait until the job has said that it is ready."""
        check(self._take("ready") is None, "a job answered before it was ready")

    def result(self) -> Any:
        """Wait for what the job returns. Raises what it failed with, as text."""
        return self._take("done")

    def do(self, job: Callable[..., Any], *arguments: object) -> Any:
        """Do a job and return its result."""
        self.begin(job, *arguments)
        return self.result()

    def _take(self, wanted: str) -> Any:
        check(self._end.poll(_SILENCE_S), f"a process of a region said nothing for {_SILENCE_S:g} s")
        kind, value = self._end.recv()
        check(kind == wanted, f"a job in a region: {kind}: {value}")
        return value


@contextmanager
def region_process(environment: Mapping[str, str]) -> Iterator[RegionProcess]:
    """Start a process in a region, which has ended when the block is left."""
    with child_process(regional, dict(environment)) as end:
        yield RegionProcess(end)
        end.send(None)


def regional(end: Connection, environment: dict[str, str]) -> None:
    """Do jobs, in a child, until there are no more."""
    os.environ.update(environment)
    while (asked := end.recv()) is not None:
        job, arguments = asked
        try:
            end.send(("done", job(partial(end.send, ("ready", None)), *arguments)))
        except Exception as error:  # whatever it is, the one that waits must hear of it
            end.send(("failed", f"{type(error).__name__}: {error}"))


Ready = Callable[[], None]


def process_id(_: Ready) -> int:
    """Return the process that does the jobs."""
    return os.getpid()


@dataclass(frozen=True, slots=True)
class Looks:
    """What looks at a job: a watch, and what counts system calls, where they are counted."""

    watch: Watch
    calls: CallCount | None = None

    async def paced(self, work: Callable[[], Awaitable[_T]], count: int, pause_s: float) -> list[_T]:
        """Do a unit of work so often, with a pause behind each, within the watch, and once more within the count;
        return what came of the former."""
        found: list[list[_T]] = []
        windows: tuple[Window, ...] = (self.watch,) if self.calls is None else (self.watch, self.calls)
        for window in windows:
            done: list[_T] = []
            with window:
                for _ in range(count):
                    done.append(await work())
                    await asyncio.sleep(pause_s)
            window.units = count
            found.append(done)
        return found[0]

    def costs(self, per: str) -> Costs:
        """Return what one unit cost."""
        return costs_of(per, self.watch, self.calls)


# ------------------------------------------------------------------------------------ logs


def write_paced(
    _: Ready, looks: Looks, uri: str, settings: dict[str, Any], name: str, count: int, pause_s: float
) -> tuple[list[tuple[float, float]], Costs]:
    """Append to a log, one record at a time with a pause behind each; return when each was written, and
    acknowledged. Where calls are counted, as many more are appended for that."""

    async def main() -> list[tuple[float, float]]:
        async with (
            await AsyncNamespace.open(uri, {**LOW_LATENCY, **settings}) as namespace,
            await namespace.open_log(name) as log,
        ):
            writer = await log.open_writer()
            payload = bytes(SMALL_BYTES)

            async def append() -> tuple[float, float]:
                begin = time.monotonic()
                await writer.write(writer.last_txid + 1, payload)
                return begin, time.monotonic()

            moments = await looks.paced(append, count, pause_s)
            await writer.close()
        return moments

    return run(main()), looks.costs("append")


def follow(ready: Ready, uri: str, name: str, count: int) -> list[float]:
    """Read a log's next `count` records as they come; return when each was delivered."""

    async def main() -> list[float]:
        async with (
            await AsyncNamespace.open(uri) as namespace,
            await namespace.open_log(name) as log,
            await log.open_reader() as reader,
        ):
            # The first record was there before: from now on the reader waits at the end.
            await reader.read_next()
            ready()
            moments = []
            for _ in range(count):
                await reader.read_next()
                moments.append(time.monotonic())
            return moments

    return run(main())


def make_log(_: Ready, uri: str, settings: dict[str, Any], name: str, megabytes: int) -> int:
    """Make a log, with a completed segment of so many megabytes or of one record; return the bytes of its entries."""

    async def main() -> int:
        async with await AsyncNamespace.open(uri, settings) as namespace:
            await namespace.create_log(name)
            async with await namespace.open_log(name) as log:
                if megabytes:
                    _, size = await fill_log(log, _RECORDS, batches(megabytes))
                    return size
                async with await log.open_writer() as writer:
                    written = writer.write(0, bytes(SMALL_BYTES))
                await written
                return 0

    return run(main())


def records_of(megabytes: int) -> int:
    """Return the records of a log of so many megabytes."""
    return batches(megabytes) * BATCH_RECORDS


def make_log_without(ready: Ready, uri: str, settings: dict[str, Any], name: str, megabytes: int, host: str) -> None:
    """Make a log of which a host's storage nodes have no copies: regions take turns, so that one of a few has none."""

    async def has_copies() -> bool:
        async with await AsyncNamespace.open(uri, settings) as namespace:
            async with await namespace.open_log(name) as log:
                (segment,) = await log.segments()
            ledger = await namespace.ledgers.open(segment.ledger_id, recover=False)
            try:
                found = any(bookie.startswith(f"{host}:") for bookie in ledger.metadata.last_ensemble.bookies)
            finally:
                await ledger.close()
            if found:
                await namespace.delete_log(name)
            return found

    for _ in range(_TURNS):
        make_log(ready, uri, settings, name, megabytes)
        if not run(has_copies()):
            return
    raise RuntimeError(f"{_TURNS} logs in a row had copies at {host}")


def batches(megabytes: int) -> int:
    """Return the batches of a log of so many megabytes."""
    return max(1, (megabytes << 20) // BATCH_BYTES)


def catch_up(_: Ready, looks: Looks, uri: str, name: str, megabytes: int) -> tuple[float, Costs]:
    """Read a completed log from its begin to its end; return the seconds from opening a reader on."""

    async def main() -> float:
        async with await AsyncNamespace.open(uri) as namespace, await namespace.open_log(name) as log:
            with looks.watch:
                begin = time.monotonic()
                async with await log.open_reader() as reader:
                    seen = 0
                    while seen < records_of(megabytes):
                        seen += (await reader.next_batch()).num_rows
                took = time.monotonic() - begin
            looks.watch.units = seen
            return took

    return run(main()), looks.costs("record")


# ------------------------------------------------------------------------------------ proxies


def append_through(
    _: Ready, looks: Looks, address: str, name: str, count: int, skipped: int, pause_s: float
) -> tuple[list[float], Costs]:
    """Append through a proxy, one record at a time with a pause behind each; return the seconds of each, but for the
    first ones."""

    async def main() -> list[float]:
        async with await AsyncClient.connect(address) as client:
            producer = client.producer(name)
            payload = bytes(SMALL_BYTES)

            async def append() -> float:
                begin = time.monotonic()
                await producer.write(payload)
                return time.monotonic() - begin

            return (await looks.paced(append, count + skipped, pause_s))[skipped:]

    return run(main()), looks.costs("append")


# ------------------------------------------------------------------------------------ Spark

_SPARK: dict[str, Any] = {}
"""The session of this process, behind `start_spark`."""


def start_spark(_: Ready, uri: str, directory: Path) -> int:
    """Start a Spark session in this region; it ends with the process. Returns the process of its JVM."""
    from benchmarks.session import jvm_pid, spark_session
    from dlspark.spark.catalog.enabling import enable

    directory.mkdir()
    _SPARK["held"] = held = spark_session(directory)
    _SPARK["session"] = spark = held.__enter__()
    enable(spark, uri=uri)
    return jvm_pid(spark)


def sum_by_spark(_: Ready, name: str, partitions: int, megabytes: int) -> float:
    """Run a batch query that reads a whole log; return its seconds, planning included."""
    query = f"SELECT sum(length(value)) FROM dlog.`{name}` WITH (minPartitions = {partitions})"
    begin = time.monotonic()
    (row,) = _SPARK["session"].sql(query).collect()
    took = time.monotonic() - begin
    wanted = records_of(megabytes) * RECORD_BYTES
    check(row[0] == wanted, f"Spark read {row[0]} bytes of {wanted}")
    return took


def stop_spark(_: Ready) -> None:
    """End the session."""
    _SPARK.pop("held").__exit__(None, None, None)
