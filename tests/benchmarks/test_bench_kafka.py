"""Our connector beside Kafka's: a ratio is of the systems that it names, and what processes cost is counted whole."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.costs import Costs
from benchmarks.kafka_broker import BROKER_POM, CONNECTOR_POM, broker_settings, properties, version_of
from benchmarks.kafka_jobs import ONE_RUN, Arrivals, Load
from benchmarks.kafka_pairs import FLUSHED, STEADY, WARM_UPS, KafkaPairs
from benchmarks.machine import header
from benchmarks.processes import Spent, TreeCpu, end_workers, loopback_bytes, spent_between
from benchmarks.results import Measured
from dlspark.testing.java_process import OutOfReachError, class_path_of
from metadata.foundation import compiled

FIGURE = {"ours": 10.0, "Kafka": 20.0, "Kafka flushed": 40.0}
COUNTS = {Load.REWIND: 2, Load.IDLE: 2, Load.OFTEN: 2, Load.TAIL: 3}
"""Figures that a load gives, where it is not one."""
OF_FLUSHED = sum(COUNTS.get(load, 1) for load in FLUSHED)


class SystemOf:
    def __init__(self, name: str, asked: list[tuple[Load, str] | str]) -> None:
        self.name = name
        self._asked = asked
        self.uncounted: list[Load] = []

    def measure(self, load: Load, seconds: float) -> Measured:
        if seconds > ONE_RUN:
            self._asked.append((load, self.name))
        else:
            self.uncounted.append(load)
        figures = tuple(FIGURE[self.name] * (1 + number) for number in range(COUNTS.get(load, 1)))
        return Measured(figures, Costs("row", {"servers": {"processor us": FIGURE[self.name]}}))


def pairs_that_note(asked: list[tuple[Load, str] | str]) -> KafkaPairs:
    systems = [SystemOf(name, asked) for name in FIGURE]
    return KafkaPairs(*systems, lambda: 5.0, lambda: 4.0, lambda: asked.append("settled"))


def test_the_sink_is_compared_with_a_flushed_broker_too_and_everything_else_with_one_that_is_not() -> None:
    pairs = pairs_that_note([])
    pairs.round(1.0)
    by_limit: dict[str, list[float]] = {}
    for row in pairs.rows:
        (ratio,) = row.ratios
        by_limit.setdefault("flushed" if "flushed" in row.limit else "not", []).append(ratio)
    assert by_limit["flushed"] == [10 / 40] * OF_FLUSHED
    idle_session, python_sink = 5 / 20, 10 / 4
    of_loads = [10 / 20] * (len(Load) - len(COUNTS) + sum(COUNTS.values()))
    assert by_limit["not"] == [*of_loads, idle_session, python_sink]


def test_what_a_row_costs_stands_once_a_load_beside_what_it_costs_kafka() -> None:
    pairs = pairs_that_note([])
    pairs.round(1.0)
    known = [row for row in pairs.rows if row.costs]
    assert len(known) == len(Load) + len(FLUSHED)
    for row in known:
        other = "Kafka flushed" if "flushed" in row.limit else "Kafka"
        theirs = {f"{other}: servers": {"processor us": FIGURE[other]}}
        assert row.costs[0].figures == {"servers": {"processor us": 10.0}} | theirs


def test_a_row_of_the_table_says_what_each_system_guarantees() -> None:
    sinks = [row for row in pairs_that_note([]).rows if "sink" in row.what]
    assert len(sinks) == 2 * OF_FLUSHED
    assert all("exactly once, 3 copies, synced" in row.what for row in sinks)
    assert sorted({row.limit.partition(": ")[2] for row in sinks}) == [
        "Kafka flushed: at least once, 1 copy, synced",
        "Kafka: at least once, 1 copy, not synced",
    ]


def test_speed_is_to_be_twice_that_of_kafka_with_durable_acknowledgements() -> None:
    targets = {(row.what, row.limit.partition(": ")[2]): row.target for row in pairs_that_note([]).rows}
    found = {str(target) for (what, limit), target in targets.items() if "sink, batch" in what and "flushed" in limit}
    assert found == {">= 2"}


def test_systems_take_turns_with_each_load_on_settled_disks_and_another_one_begins_in_the_next_round() -> None:
    asked: list[tuple[Load, str] | str] = []
    pairs = pairs_that_note(asked)
    pairs.round(1.0)
    pairs.round(1.0)
    assert asked[::2] == ["settled"] * (len(asked) // 2)
    counted = [window for window in asked if not isinstance(window, str)]
    assert len(asked) == 2 * len(counted), "disks settle before each window"
    first, second = counted[: len(counted) // 2], counted[len(counted) // 2 :]
    assert [load for load, _ in first] == [load for load, _ in second]
    assert list(dict.fromkeys(load for load, _ in first)) == list(Load), "one load by all, then the next"
    for load in Load:
        begins = [next(name for each, name in half if each is load) for half in (first, second)]
        assert begins[0] != begins[1]


def test_rates_are_of_jobs_that_have_run_until_they_were_steady_in_each_round_and_new_workers_are_not() -> None:
    ours, kafka, flushed = systems = [SystemOf(name, []) for name in FIGURE]
    pairs = KafkaPairs(*systems, lambda: 5.0, lambda: 4.0, lambda: None)
    for rounds in (1, 2):
        pairs.round(1.0)
        for system, loads in ((ours, STEADY), (kafka, STEADY), (flushed, STEADY & FLUSHED)):
            assert set(system.uncounted) == loads
            assert all(system.uncounted.count(load) >= 2 * rounds for load in loads)
    assert Load.SINK_COLD not in STEADY


def test_every_job_is_warmed_up_on_both_connectors() -> None:
    asked: list[tuple[Load, str] | str] = []
    pairs_that_note(asked).warm_up()
    for name in ("ours", "Kafka"):
        assert {window[0] for window in asked if window[1] == name} == set(WARM_UPS)
    assert set(Load) - set(WARM_UPS) == {Load.SINK_BATCH, Load.SINK_COLD, Load.IDLE, Load.OFTEN, Load.TAIL}


def test_an_arrival_counts_once_from_its_append_and_warm_ups_do_not_count() -> None:
    arrivals = Arrivals()
    arrivals.sent.update({-1: 0.0, 0: 10.0, 1: 20.0, 2: 30.0})
    arrivals.note([-1, 0], 10.1, 10.2)
    arrivals.note([1], 20.3, 20.5)
    assert not arrivals.complete
    arrivals.note([1, 2], 30.2, 30.6)
    assert arrivals.complete
    assert arrivals.figures() == pytest.approx((200.0, 300.0, 500.0))


def test_a_broker_is_told_only_what_a_single_one_needs() -> None:
    text = properties(broker_settings(9092, 9093, Path("/somewhere/data")))
    assert "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\n" in text
    assert "controller.quorum.voters=1@127.0.0.1:9093\n" in text
    assert "log.dirs=/somewhere/data\n" in text
    assert "flush" not in text, "topics say whether they are flushed"


def test_the_table_names_the_versions_that_maven_is_asked_for() -> None:
    assert f"<version>{version_of(BROKER_POM, 'kafka_2.13')}</version>" in BROKER_POM.read_text()
    assert version_of(CONNECTOR_POM, "spark-sql-kafka-0-10_2.13") in header(Path("/tmp"), 3, 3.0)
    with pytest.raises(LookupError, match="absent"):
        version_of(BROKER_POM, "absent")


def test_the_table_says_whether_the_compiled_core_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def second_line() -> str:
        return header(Path("/tmp"), 3, 3.0).splitlines()[1]

    monkeypatch.setattr(compiled, "core", None)
    monkeypatch.setattr(compiled, "said", "pure Python: for some reason")
    assert second_line().endswith("; no compiled core (pure Python: for some reason)")
    monkeypatch.setattr(compiled, "core", object())
    assert "; compiled core " in second_line()


def test_jars_that_were_fetched_are_not_asked_for_again_until_one_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pom, jar, tools = tmp_path / "some.xml", tmp_path / "some.jar", tmp_path / "tools"
    pom.write_text("<project/>")
    jar.touch()
    tools.mkdir()
    for name, script in (
        ("mvn", f'#!/bin/sh\nfor last; do :; done\nprintf %s "{jar}" > "${{last#*=}}"\n'),
        ("java", ""),
    ):
        (tools / name).write_text(script)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    assert class_path_of(pom, tmp_path / "cache") == str(jar)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert class_path_of(pom, tmp_path / "cache") == str(jar)
    jar.unlink()
    with pytest.raises(OutOfReachError, match="mvn is not installed"):
        class_path_of(pom, tmp_path / "cache")


def test_the_loopback_counts_what_is_sent_over_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            before = loopback_bytes()
            sender.sendall(bytes(30_000))
            assert len(receiver.recv(30_000, socket.MSG_WAITALL)) == 30_000
    assert loopback_bytes() - before >= 30_000


CHILD = "import time\nwhile time.process_time() < 0.2: pass\nprint(time.process_time(), flush=True)\ninput()"
FORKING = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(2):
    if not os.fork():
        time.sleep(1000)
started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print("forked", flush=True)
sys.stdin.read()
"""
PARENT = f"""
import os, signal, subprocess, sys
if {{ignoring}}:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}])
child.wait()
print("ended", flush=True)
sys.stdin.read()
"""


@pytest.mark.processes
@pytest.mark.parametrize("ignoring", [False, True])
def test_what_a_child_that_has_ended_had_spent_counts_whether_or_not_its_parent_waited(
    ignoring: bool,
) -> None:
    """Spark's Python daemons ignore the ends of their workers: what those had spent is nobody's then."""
    program = [sys.executable, "-c", PARENT.format(ignoring=ignoring)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        tree = TreeCpu([parent.pid])
        spent = float(parent.stdout.readline())
        seen = tree.seconds()
        tick = 1 / os.sysconf("SC_CLK_TCK")
        assert seen >= spent - 3 * tick
        parent.stdin.write(b"\n")  # it is the child that reads it
        parent.stdin.flush()
        assert parent.stdout.readline() == b"ended\n"
        assert not psutil.Process(parent.pid).children()
        assert seen <= tree.seconds() < 2 * seen
        parent.stdin.close()


@pytest.mark.processes
def test_workers_that_end_are_those_that_a_daemon_has_forked_and_not_what_it_has_started() -> None:
    with subprocess.Popen([sys.executable, "-c", FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"forked\n"
        assert len(psutil.Process(daemon.pid).children()) == 3
        # This process is what the JVM is to the daemon; others may run below it.
        assert end_workers(os.getpid()) == 2
        (left,) = psutil.Process(daemon.pid).children()
        assert left.cmdline()[1:] == ["-c", "input()"]
        assert daemon.poll() is None
        daemon.stdin.close()


def test_what_processes_have_spent_is_never_below_nothing() -> None:
    daemon, worker, later = (1, 0.0), (2, 0.0), (3, 0.0)
    first = {daemon: Spent(0, 1.0, 0.0), worker: Spent(1, 30.0, 0.0)}
    nobody_waited = {daemon: Spent(0, 1.5, 0.0)}
    assert spent_between(first, {**first, **nobody_waited}, nobody_waited) == 0.5
    waited = {daemon: Spent(0, 1.5, 30.25)}
    assert spent_between(first, {**first, **waited}, waited) == 0.5 + 0.25
    both = {**nobody_waited, worker: Spent(1, 31.0, 0.0), later: Spent(1, 2.0, 0.0)}
    assert spent_between(first, both, both) == 0.5 + 1.0 + 2.0
    unseen = {daemon: Spent(0, 1.0, 0.75), worker: Spent(1, 30.0, 0.0)}
    assert spent_between(first, unseen, unseen) == 0.75
