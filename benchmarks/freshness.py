"""Rows P32 and P33: how soon is a record in the lake table, and how many files does that cost, at each `commitMode`?

`python -m benchmarks.freshness --seconds 3600` is the long form: storage nodes, a mover process as users start it,
Iceberg tables in a catalogue of one machine, and for each commit mode and each freshness a log of its own. Spark's rate
source writes batches of typed rows into each at a steady rate; a writer of the log core writes into further ones.

A batch is acknowledged when its micro-batch has committed, by Spark's own report; for the writer, when `write_table`
returns. It is visible when a look at the table through its catalogue, twice a second, finds a file with its rows: so
up to half a second of each figure is the look's. Looks read the `batch` column of each file that is new in the table:
whatever is lost or there twice is a remark of the log's rows, which then have reached nothing.

Files a day: files of the log, less the first, over the slots between the first and the last, times the slots of a day
at the default freshness. So a short run at a short freshness says the same as a day at the default, as far as a slot
has one file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.cluster import Cluster, run
from benchmarks.cold_mover import ColdPlace, mover
from benchmarks.costs import Costs, costs_of
from benchmarks.machine import header
from benchmarks.results import Row, Target, cost_table, percentile, table
from dlspark.cold.lake.syncing import TableSync
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.settings.cold import slot_length_s, slot_of
from dlspark.core.sync.namespace import Namespace
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_tables import ICEBERG, ColdTable, table_logs

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WRITER: Final = "writer"
MODES: Final = ("segments", "append", "auto", WRITER)
DEFAULT_S: Final = 300
ASKED_S: Final = 30
ROWS: Final = 50
"""Rows of a batch."""
LOOK_S: Final = 0.5
REPORT_S: Final = 60.0
START_S: Final = 300.0
"""Until each query has run its first batch, at most."""
SECONDS_A_DAY: Final = 86_400
FILES_A_DAY: Final = 300
SHORT_S: Final = 4 * ASKED_S
"""How long the section's run writes, and how often each log gets a batch in it."""
SHORT_EVERY_S: Final = 2.0
MACHINE_LINES: Final = 5
"""Of the header: what it says of other sections' loads is left out."""
_SCHEMA: Final = pa.schema([("batch", pa.int64()), ("id", pa.int64()), ("text", pa.string())])


@dataclass(slots=True)
class FreshLog:
    """One log that is written, and its table: which batches were acknowledged when, and when were they seen?"""

    mode: str
    freshness_s: int
    acknowledged: dict[int, float] = field(default_factory=dict)
    """By number of the batch, seconds since the epoch."""
    seen: dict[int, float] = field(default_factory=dict)
    rows: Counter[int] = field(default_factory=Counter)
    """Rows that were found in the table, by batch."""
    files: set[str] = field(default_factory=set)
    """Files that the table was seen to name."""
    finished: list[int] = field(default_factory=list)
    """When each file of the log was finished, by its unit, milliseconds since the epoch."""
    failure: str = ""
    """What ended its writing before its time."""

    @property
    def name(self) -> str:
        """The log's, and the table's."""
        return f"{self.mode}-{self.freshness_s}"

    @property
    def delays(self) -> list[float]:
        """Seconds from the acknowledgement until the batch was seen, of all that were."""
        return [self.seen[one] - at for one, at in self.acknowledged.items() if one in self.seen]

    @property
    def missing(self) -> list[int]:
        """Batches that were acknowledged and not seen yet."""
        return sorted(self.acknowledged.keys() - self.seen.keys())

    @property
    def wrong(self) -> list[int]:
        """Batches of which the table has rows twice, or not all: those that were seen."""
        return sorted(one for one, count in self.rows.items() if count != ROWS)

    @property
    def faults(self) -> list[str]:
        """What is wrong with the log, after its run."""
        found = [f"it was not written to the end: {self.failure}"] if self.failure else []
        if not self.acknowledged:
            found.append("nothing was written")
        if self.wrong:
            found.append(f"the table has not {ROWS} rows of batches {self.wrong[:20]}")
        if self.missing:
            found.append(f"batches {self.missing[:20]} never came into the table")
        return found

    @property
    def files_a_day(self) -> float:
        """Files that a day would have at the default freshness; not a number before there are two."""
        slot_s = slot_length_s(self.freshness_s)
        slots = [slot_of(self.name, slot_s, at) for at in self.finished]
        if len(slots) < 2 or slots[-1] == slots[0]:
            return math.nan
        return (len(slots) - 1) / (slots[-1] - slots[0]) * SECONDS_A_DAY / slot_length_s(DEFAULT_S)


class FreshnessBenchmark:
    """Rows P32 and P33 of the section `cold`: a short run with a freshness of 30 s, in the first round only.

    The default freshness takes an hour: `python -m benchmarks.freshness`.
    """

    def __init__(self, cluster: Cluster, spark: SparkSession, directory: Path) -> None:
        self.rows: list[Row] = []
        self._cluster = cluster
        self._spark = spark
        self._directory = directory / "freshness"

    def round(self, seconds: float) -> None:
        """Write for some slots, whatever `seconds` says."""
        if not self.rows:
            self._directory.mkdir()
            logs = [FreshLog(mode, ASKED_S) for mode in MODES]
            fresh = FreshnessRun(self._cluster, self._spark, self._directory, logs, SHORT_EVERY_S)
            fresh.run(SHORT_S)
            self.rows = figures(logs, fresh.costs)


class FreshnessRun:
    """How fresh are the lake tables of logs that are written at a steady rate?

    Args:
        cluster: the storage nodes.
        spark: the session of the writing queries.
        directory: for files, tables and checkpoints; made by this.
        logs: what is written, and how.
        every_s: between two batches of a log.
        late_s: how long is waited for what has been written; twice the longest freshness unless given.
        files: how many files each table has before writing ends, however long that takes; `late_s` more at most.
    """

    def __init__(
        self,
        cluster: Cluster,
        spark: SparkSession,
        directory: Path,
        logs: Sequence[FreshLog],
        every_s: float,
        *,
        late_s: float | None = None,
        files: int = 0,
    ) -> None:
        self.logs = logs
        self.costs: Costs | None = None
        """Of a batch, whichever log it is written to: they are all written at once."""
        self._cluster = cluster
        self._uri = cluster.uri
        self._spark = spark
        self._directory = directory
        self._place = ColdPlace(directory / "cold")
        self._every_s = every_s
        self._late_s = 2 * max(one.freshness_s for one in logs) if late_s is None else late_s
        self._files = files
        self._queries: dict[str, StreamingQuery] = {}
        self._looks: dict[str, int | None] = {}

    def run(self, seconds: float, report: Path | None = None) -> None:
        """Write for so many seconds, then wait until all of it is visible, or long overdue. The figures are in `logs`;
        `report`: a file that has them from time to time."""
        self._place.make()
        for one in self.logs:
            self._place.set(one.name, {"coldFreshnessSeconds": one.freshness_s})
        with ExitStack() as stack:
            catalog = self._make_tables()
            mover_pid = stack.enter_context(mover(self._uri, self._place))
            processes = {"driver, writer and looks": [os.getpid()], "mover": [mover_pid]}
            watch = self._cluster.watch(processes, jvm=self._jvm_pid())
            with watch:
                with self._writing():
                    self._look_on(catalog, seconds, report)
                deadline = time.monotonic() + self._late_s
                while any(one.missing for one in self.logs) and time.monotonic() < deadline:
                    self._look(catalog)
                    time.sleep(LOOK_S)
        watch.units = sum(len(one.acknowledged) for one in self.logs)
        if watch.units:
            self.costs = costs_of(f"batch of {ROWS} rows, of all logs", watch)
        for one in self.logs:
            one.finished = run(_finished(self._uri, one.name))

    def _jvm_pid(self) -> int | None:
        """Return Spark's process; None where it writes none of the logs."""
        if all(one.mode == WRITER for one in self.logs):
            return None
        from benchmarks.session import jvm_pid

        return jvm_pid(self._spark)

    # ------------------------------------------------------------------ logs and their tables

    def _make_tables(self) -> Catalog:
        from pyiceberg.catalog import load_catalog

        lake = self._directory / "lake"
        lake.mkdir()
        place, options = f"sqlite:///{lake}/catalog.db", {"warehouse": f"file://{lake}"}
        with Namespace.open(self._uri, self._place.settings) as namespace:
            for one in self.logs:
                namespace.create_log(one.name)
                with namespace.open_log(one.name) as log:
                    log.declare_schema(_SCHEMA)
        for one in self.logs:
            identifier = f"fresh.{one.name.replace('-', '_')}"
            declared = ColdTable(
                one.name, uuid.uuid4().hex, ICEBERG, place, identifier, table_logs([one.name]), options
            )
            run(_declare(self._uri, declared))
        # By the name that our own syncs open it with: a catalogue in SQL has the tables of each name apart.
        return load_catalog("dlspark", **{"type": "sql", "uri": place, **options})

    # ------------------------------------------------------------------ writing

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Write into all logs until the block ends."""
        stop = threading.Event()
        writers = [threading.Thread(target=self._write, args=(one, stop)) for one in self.logs if one.mode == WRITER]
        try:
            for one in self.logs:
                if one.mode != WRITER:
                    self._queries[one.name] = self._start(one)
            for thread in writers:
                thread.start()
            yield
        finally:
            stop.set()
            for query in self._queries.values():
                query.stop()
            self._take_acknowledgements()
            for thread in writers:
                thread.join()

    def _start(self, log: FreshLog) -> StreamingQuery:
        rate = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
        rows = rate.selectExpr(f"value div {ROWS} AS batch", "value AS id", "concat('row ', value) AS text")
        sink = rows.writeStream.format("distributedlog").option("uri", self._uri).option("path", log.name)
        for key, value in self._place.settings.items():
            sink = sink.option(f"distributedlog.{key}", value)
        sink = sink.option("commitMode", log.mode)
        sink = sink.option("checkpointLocation", str(self._directory / "checkpoints" / log.name))
        return sink.trigger(processingTime=f"{self._every_s} seconds").queryName(log.name).start()

    def _write(self, one: FreshLog, stop: threading.Event) -> None:
        with (
            Namespace.open(self._uri, self._place.settings) as namespace,
            namespace.open_log(one.name) as log,
            log.open_writer() as writer,
        ):
            number = 0
            while not stop.wait(self._every_s):
                ids = range(number * ROWS, (number + 1) * ROWS)
                columns = [[number] * ROWS, list(ids), [f"row {id_}" for id_ in ids]]
                writer.write_table(pa.table(columns, schema=_SCHEMA))
                one.acknowledged[number] = time.time()
                number += 1

    def _take_acknowledgements(self) -> None:
        for one in self.logs:
            if one.mode == WRITER:
                continue
            query = self._queries[one.name]
            if (failure := query.exception()) is not None and not one.failure:
                one.failure = str(failure)  # the others go on: an hour is dear
                print(f"{one.name} is written no more: {one.failure}", flush=True)
            for progress in query.recentProgress:
                if progress.numInputRows:
                    begun = datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00")).timestamp()
                    ended = begun + progress.durationMs["triggerExecution"] / 1000
                    one.acknowledged.setdefault(progress.batchId, ended)

    # ------------------------------------------------------------------ looking

    def _look_on(self, catalog: Catalog, seconds: float, report: Path | None) -> None:
        """Look for so many seconds from when each log has a batch, or cannot have any."""
        reported = time.monotonic()
        end, latest = float("inf"), reported + START_S
        while (now := time.monotonic()) < end or (now < end + self._late_s and self._wants_files()):
            if end == float("inf"):
                self._take_acknowledgements()
                if all(one.acknowledged or one.failure for one in self.logs) or now > latest:
                    end = now + seconds
            self._look(catalog)
            if now - reported >= REPORT_S:
                reported = now
                self._take_acknowledgements()
                left = seconds if end == float("inf") else end - now
                print("\n".join([f"{left:.0f} s left", *map(summary, self.logs)]), flush=True)
                if report is not None:
                    write_report(report, self.logs)
            time.sleep(max(0.0, LOOK_S - (time.monotonic() - now)))

    def _wants_files(self) -> bool:
        return any(len(one.files) < self._files and not one.failure for one in self.logs)

    def _look(self, catalog: Catalog) -> None:
        from sqlalchemy.exc import OperationalError

        for one in self.logs:
            try:
                found = catalog.load_table(f"fresh.{one.name.replace('-', '_')}")
            except OperationalError:
                continue  # SQLite is busy with a commit: the next look sees it
            snapshot = found.current_snapshot()
            if snapshot is None or self._looks.get(one.name) == snapshot.snapshot_id:
                continue
            self._looks[one.name] = snapshot.snapshot_id
            paths = {task.file.file_path for task in found.scan().plan_files()}
            now = time.time()
            for path in paths - one.files:
                batches = pq.read_table(unquote(urlsplit(path).path), columns=["batch"]).column("batch").to_pylist()
                one.rows.update(batches)
                for batch in set(batches):
                    one.seen.setdefault(batch, now)
            one.files |= paths


async def _declare(uri: str, declared: ColdTable) -> None:
    async with await AsyncNamespace.open(uri) as namespace:
        await TableSync.over(namespace.logs_store).create(declared)


async def _finished(uri: str, name: str) -> list[int]:
    """Return when each file of a log was finished, oldest first."""
    async with await AsyncNamespace.open(uri) as namespace:
        units = await ColdStore(namespace.logs_store).units(name)
        return sorted(one.value.finished_ms for one in units if one.value.file is not None)


# ---------------------------------------------------------------------- figures


def summary(one: FreshLog) -> str:
    """Return a log's figures so far, in a few words."""
    delays = one.delays
    if not delays:
        return f"{one.name}: {len(one.acknowledged)} batches, none visible"
    figures = f"{statistics.median(delays):.1f}, {percentile(delays, 0.99):.1f}, {max(delays):.1f} s"
    return f"{one.name}: {len(one.acknowledged)} batches, p50, p99, most {figures}, {len(one.files)} files"


def write_report(path: Path, logs: Sequence[FreshLog]) -> None:
    """Write all figures so far to a file, for whoever wants more than medians."""
    found = [
        {
            "log": one.name,
            "acknowledged": len(one.acknowledged),
            "missing": one.missing,
            "wrong": one.wrong,
            "files": len(one.files),
            "finished_ms": one.finished,
            "failure": one.failure,
            "delays_s": [round(delay, 2) for delay in one.delays],
        }
        for one in logs
    ]
    path.write_text(json.dumps(found) + "\n")


def figures(logs: Sequence[FreshLog], costs: Costs | None = None) -> list[Row]:
    """Return rows P32 and P33 of logs that were written, the first with what a batch of any of them costs. Rows of a
    log that lost a batch, or has one twice, say so and cannot be believed."""
    rows: list[Row] = []
    for one in logs:
        delays = one.delays or [math.nan]
        fresh = Row("P33", f"acknowledged to visible, {one.mode}, p99", "s", "s asked", Target(1.0, at_most=True))
        fresh.add(percentile(delays, 0.99), one.freshness_s, costs=None if rows else costs)
        middle = Row("P33", f"acknowledged to visible, {one.mode}, p50", "s", "s asked", None)
        middle.add(statistics.median(delays), one.freshness_s)
        files = Row("P32", f"files a day, {one.mode}", "files", "files wanted", Target(1.0, at_most=True))
        files.add(one.files_a_day, FILES_A_DAY)
        for row in (fresh, middle, files):
            row.contradictions += one.faults
        rows += [fresh, middle, files]
    return rows


# ---------------------------------------------------------------------- the long form


def main() -> int:
    """Return 1 if a table was not as fresh as was asked, or a log had too many files, else 0."""
    options = _options()
    signal.signal(signal.SIGTERM, _leave)
    from benchmarks.session import spark_session

    if options.dir is not None:
        Path(options.dir).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dlspark-fresh-", dir=options.dir) as name, ExitStack() as stack:
        directory = Path(name)
        print("\n".join(header(directory, 1, options.seconds).splitlines()[:MACHINE_LINES]), end="\n\n", flush=True)
        cluster = stack.enter_context(Cluster(directory / "cluster"))
        spark = stack.enter_context(spark_session(directory))
        logs = [FreshLog(mode, asked) for asked in options.freshness for mode in options.commit_mode]
        fresh = FreshnessRun(cluster, spark, directory, logs, options.every)
        fresh.run(options.seconds, options.json)
    if options.json is not None:
        write_report(options.json, logs)
    for one in logs:
        print(summary(one))
    rows = figures(logs, fresh.costs)
    print(f"{table(rows)}\n\n{cost_table(rows)}", flush=True)
    met = [not row.faults and (row.target is None or row.target.met(row.ratios[0])) for row in rows]
    return 0 if all(met) else 1


def _leave(number: int, frame: FrameType | None) -> None:
    """End in order when a signal asks for it, so that processes and files go too."""
    sys.exit(128 + number)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.freshness", description="How fresh are lake tables?")
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long is written (default %(default)g)")
    parser.add_argument("--commit-mode", nargs="+", choices=MODES, default=list(MODES), help="default: all")
    parser.add_argument(
        "--freshness", nargs="+", type=int, default=[DEFAULT_S, ASKED_S], help="seconds asked (default: 300 and 30)"
    )
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two batches (default %(default)g)")
    parser.add_argument("--dir", help="where to put the nodes' files, cold files and tables")
    parser.add_argument("--json", type=Path, help="a file for each batch's delay, written every minute and at the end")
    options = parser.parse_args()
    if options.seconds <= 0 or options.every <= 0 or min(options.freshness) < 1:
        parser.error("seconds, every and freshness must be above 0")
    return options


if __name__ == "__main__":
    sys.exit(main())
