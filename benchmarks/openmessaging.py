"""`python -m benchmarks.openmessaging`: `dlspark bench` with all its peers, started here one after the other.

On three storage nodes of ours: our logs, the same through a write and a read proxy, and Pulsar. On three bookies of
Java's: Pulsar. And Kafka, a single broker, as it is by default and with each record synced. Nothing but the system that
is measured runs, save for idle nodes of ours, and one ZooKeeper. A peer whose jars cannot be had is left out, and said
to be.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.cluster import Cluster
from benchmarks.java_cluster import ROOT, JavaCluster
from benchmarks.kafka_broker import KafkaBroker
from benchmarks.machine import header
from benchmarks.proxies import read_proxy, write_proxy
from benchmarks.pulsar_broker import PulsarProcess
from dlspark.bench.comparing import Plan, check_plot, compare, is_wrong, plot, run_interruptibly
from dlspark.bench.consuming import words_of
from dlspark.bench.ending import left_whole, sigterm_as_ctrl_c
from dlspark.bench.measuring import RunResult
from dlspark.bench.our_systems import OurLogs, ThroughProxies
from dlspark.bench.peers import SYNCED, peer_of
from dlspark.bench.pulsar_system import PulsarTopics
from dlspark.bench.rate_search import Bound
from dlspark.bench.systems import System
from dlspark.bench.workloads import WORKLOADS, workload_named
from dlspark.cli.bench import printed
from dlspark.cli.common import Output
from dlspark.core.settings.settings import Settings
from dlspark.sandbox.beginning import LEDGERS_PATH
from dlspark.testing.java_process import OutOfReachError
from metadata.foundation.errors import CallerError

OURS: Final = "dlspark"
PROXIES: Final = "proxies"
ON_NODES: Final = "pulsar-on-nodes"
ON_BOOKIES: Final = "pulsar-on-bookies"
PULSAR: Final = "3 copies, acknowledged when 2 are synced to disk"
MACHINE_LINES: Final = 4
INTERRUPTED: Final = 130
"""128 and the number of SIGINT, as shells say it."""
SYSTEMS: Final = (OURS, PROXIES, ON_NODES, ON_BOOKIES, "kafka", SYNCED)


@contextmanager
def started(name: str, cluster: Cluster, directory: Path) -> Iterator[System]:
    """Start what a system needs beside the cluster; it has ended when the block is left. Raises OutOfReachError."""
    sandbox = cluster.sandbox
    nodes = tuple(pid for index in range(sandbox.node_count) if (pid := sandbox.node_pid(index)) is not None)
    with ExitStack() as stack:
        if name == OURS:
            yield OurLogs(cluster.uri, Settings.from_environment(), nodes)
        elif name == PROXIES:
            directory.mkdir()
            writing = stack.enter_context(write_proxy(cluster.uri, directory))
            reading = stack.enter_context(read_proxy(cluster.uri, directory))
            yield ThroughProxies(cluster.uri, (*nodes, writing.pid, reading.pid))
        elif name == ON_NODES:
            broker = PulsarProcess(directory, sandbox.zookeeper_address, "/pulsar-nodes", LEDGERS_PATH)
            stack.enter_context(broker)
            yield replace(PulsarTopics(broker.address, name, (*nodes, broker.pid)), about=PULSAR)
        elif name == ON_BOOKIES:
            java = stack.enter_context(JavaCluster(directory, sandbox.zookeeper_address))
            broker = PulsarProcess(directory / "broker", sandbox.zookeeper_address, "/pulsar-bookies", ROOT)
            stack.enter_context(broker)
            pids = (*(bookie.pid for bookie in java.bookies), broker.pid)
            yield replace(PulsarTopics(broker.address, name, pids), about=PULSAR)
        else:
            kafka = stack.enter_context(KafkaBroker(directory))
            yield peer_of(f"{name}={kafka.address}", (kafka.pid,))


@contextmanager
def _cluster(options: argparse.Namespace) -> Iterator[tuple[Cluster, Path]]:
    """Start nodes in a directory of their own, and print what there is to say of the machine."""
    with tempfile.TemporaryDirectory(prefix="dlspark-load-", dir=options.dir) as made:
        directory = Path(made)
        # Of the benchmarks' header what is said of the machine; the rest is of their own rows.
        for line in header(directory, 1, options.seconds).splitlines()[:MACHINE_LINES]:
            print(line, file=sys.stderr)
        with Cluster(directory / "cluster") as cluster:
            yield cluster, directory


def main() -> int:
    """Return 1 if records were lost or came twice or a system failed, 130 behind Ctrl-C or SIGTERM, else 0."""
    options = _options()
    rate = None if options.max else options.rate
    plan = Plan(options.workloads, rate, options.seconds, options.warm_up, Bound())
    results: list[RunResult] = []
    failures: list[str] = []
    at_the_end = printed(
        results, failures, plan.bound if rate is None else None, Output.JSON if options.json else Output.TEXT
    )
    try:
        with at_the_end, sigterm_as_ctrl_c(), left_whole(_cluster(options)) as (cluster, directory):
            for name in options.system or SYSTEMS:
                try:
                    with left_whole(started(name, cluster, directory / name)) as system:
                        run_interruptibly(compare([system], plan, results, _tell, failures.append))
                except OutOfReachError as reason:
                    print(f"no {name}: {reason}", file=sys.stderr)
                except Exception as error:
                    failures.append(f"{name}: {words_of(error)}")
    except KeyboardInterrupt:
        return INTERRUPTED
    if options.plot is not None and results:
        plot(results, options.plot)
    return 1 if failures or any(map(is_wrong, results)) else 0


def _tell(result: RunResult) -> None:
    achieved = f"{result.offered:.0f}/s offered, {result.achieved:.0f}/s achieved"
    print(f"{result.system}, {result.workload}: {achieved}, p99 {result.publish_ms['p99']:.1f} ms", file=sys.stderr)


def _options(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.openmessaging", description=__doc__)
    parser.add_argument("--system", action="append", choices=SYSTEMS, help="only this one (may be repeated)")
    parser.add_argument("--workload", action="append", help="only this one (may be repeated)")
    parser.add_argument("--rate", type=float, default=10_000, help="records a second (default %(default)s)")
    parser.add_argument("--max", action="store_true", help="look for the highest rate that is sustained")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured of each run (default %(default)s)")
    parser.add_argument("--warm-up", type=float, default=10.0, help="before them (default %(default)s)")
    parser.add_argument("--dir", help="where to put the nodes' files; choose the disk you mean to measure")
    parser.add_argument("--plot", type=Path, help="draw the result as this SVG file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(given)
    try:
        options.workloads = [workload_named(name) for name in options.workload or ()] or list(WORKLOADS)
        if options.plot is not None:
            check_plot(options.plot)
    except CallerError as error:
        parser.error(str(error))
    return options


if __name__ == "__main__":
    sys.exit(main())
