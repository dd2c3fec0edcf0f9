"""What a unit of work costs: differences of what the kernel counts, by process, and what `perf stat` writes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from benchmarks.cluster import numbers_in
from benchmarks.costs import (
    CLIENT,
    MEMORY,
    PROCESSOR,
    SYSTEM_CALLS,
    WAKE_UPS,
    CallCount,
    Costs,
    Figures,
    Look,
    Watch,
    beside,
    calls_in,
    costs_of,
    difference,
    numbers_of,
    refusal_of,
    summed,
)
from benchmarks.results import Row, Target, as_json, cost_table
from metadata.foundation.errors import InvariantViolation


def test_what_a_process_did_is_the_difference_of_two_looks_thread_by_thread() -> None:
    before = Look(2.0, {1: 100, 2: 40}, {"syscr": 5, "syscw": 7, "write_bytes": 4096})
    after = Look(2.5, {1: 110, 3: 4}, {"syscr": 6, "syscw": 9, "write_bytes": 12288})
    assert difference(before, after) == {
        PROCESSOR: 500_000.0,
        WAKE_UPS: 14,  # thread 2 has ended and took its number along: that is not -40
        "read calls": 1,
        "write calls": 2,
        "bytes to disk": 8192,
    }


def test_processes_of_one_name_are_added_up() -> None:
    assert summed([{"a": 1.0, "b": 2.0}, {"a": 3.0}]) == {"a": 4.0, "b": 2.0}
    assert summed([]) == {}


def test_a_watch_divides_by_the_units_that_the_load_did() -> None:
    counted = iter([{"nodes": {"adds": 30.0}}, {"nodes": {"adds": 90.0}}])

    def counters() -> Figures:
        return next(counted)

    watch = Watch({CLIENT: [os.getpid()]}, counters=counters)
    with watch:
        spun = time.process_time() + 0.02
        while time.process_time() < spun:
            pass
    watch.units = 20
    assert watch.figures["nodes"] == {"adds": 3.0}
    assert watch.figures[CLIENT][PROCESSOR] >= 1000, "20 ms at least, for 20 units"
    watch.units = 0
    with pytest.raises(InvariantViolation, match="did nothing"):
        _ = watch.figures


def test_what_several_blocks_took_is_added_up_and_a_watch_can_be_sent_before_and_between() -> None:
    watch = Watch({CLIENT: [os.getpid()]}, counters=partial(counted_once_more, [0.0]))
    for _ in range(2):
        watch = pickle.loads(pickle.dumps(watch))
        with watch:
            pass
    watch.units = 2
    assert watch.figures["nodes"] == {"adds": 1.0}, "two blocks, in each one add"
    assert watch.figures[CLIENT][PROCESSOR] > 0


def test_memory_is_the_most_that_was_held_within_the_blocks_and_is_not_divided() -> None:
    program = "held = bytearray(200_000_000)\nfor _ in range(4):\n held = bytearray(int(input()))\n print(flush=True)"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:

        def hold(size: int) -> None:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(b"%d\n" % size)
            child.stdin.flush()
            child.stdout.readline()

        hold(0)
        watch = Watch({"held": [child.pid], CLIENT: [os.getpid()]})
        for size in (100_000_000, 0):
            with watch:
                hold(size)
        hold(0)
    watch.units = 1000
    assert 100 <= watch.figures["held"][MEMORY] < 180, "neither what it held before, nor what it holds last"
    assert watch.figures[CLIENT][MEMORY] > 10


def counted_once_more(counted: list[float]) -> Figures:
    counted[0] += 1
    return {"nodes": {"adds": counted[0]}}


def test_a_load_that_fails_is_not_hidden_by_processes_that_are_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def fail() -> None:
        with Watch({"nodes": [child.pid]}):
            child.communicate()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


STAT = """\
Events disabled
Events enabled
Events disabled
1204,,raw_syscalls:sys_enter,28,100.00,,
30,,syscalls:sys_enter_fdatasync,28,100.00,,
1,,syscalls:sys_enter_fsync,28,100.00,,
<not counted>,,syscalls:sys_enter_sendmsg,0,100.00,,
31,,syscalls:sys_enter_sendto,28,100.00,,
0,,syscalls:sys_enter_recvmsg,28,100.00,,
62,,syscalls:sys_enter_recvfrom,28,100.00,,
200,,syscalls:sys_enter_epoll_wait,28,100.00,,
4,,syscalls:sys_enter_epoll_pwait,28,100.00,,
"""


def test_calls_are_read_from_what_perf_writes() -> None:
    assert calls_in(STAT) == {SYSTEM_CALLS: 1204, "fsyncs": 31, "sends": 31, "receives": 62, "polls": 204}


def test_why_perf_does_not_count_is_said_in_its_own_words() -> None:
    refused = "Events disabled\n..\nError:\nNo permission to enable raw_syscalls:sys_enter event.\n"
    assert refusal_of(refused).endswith("here: No permission to enable raw_syscalls:sys_enter event.")
    assert refusal_of("") == "perf does not count here"


def test_where_there_is_no_perf_nothing_is_counted_and_the_reason_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    calls = CallCount({CLIENT: [os.getpid()]})
    with calls:
        pass
    calls.units = 1
    assert (calls.figures, calls.missing) == ({}, "perf is not installed")


def test_a_perf_that_refuses_is_waited_for_and_its_words_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "perf"
    program.write_text("#!/bin/sh\necho 'Error: you may not' >&2\nexit 255\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    calls = CallCount({CLIENT: [os.getpid()]})
    with calls:
        pass
    calls.units = 1
    assert (calls.figures, calls.missing) == ({}, "perf does not count here: Error: you may not")


COUNTS_NOT_ALL = """\
#!%s
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
control, answers = map(int, sys.argv[sys.argv.index("--control") + 1][3:].split(","))
for _ in range(2):
    os.read(control, 100)
    os.write(answers, b"ack\\n\\0")
print("<not supported>,,raw_syscalls:sys_enter,0,100.00,,", file=sys.stderr)
"""


def test_an_event_that_perf_cannot_count_does_not_end_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "perf"
    program.write_text(COUNTS_NOT_ALL % sys.executable)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    calls = CallCount({CLIENT: [os.getpid()]})
    with calls:
        pass
    calls.units = 1
    assert calls.figures == {}
    assert calls.missing.startswith("perf does not count here: raw_syscalls:sys_enter, ")


def test_a_counter_that_the_kernel_does_not_have_is_0() -> None:
    assert numbers_of("syscr: 5\nsyscw: 7\n", ["syscw", "write_bytes"]) == {"syscw": 7, "write_bytes": 0}


def test_syncs_of_another_process_are_counted_or_it_is_said_why_not(tmp_path: Path) -> None:
    """A child that syncs once for each line, between its first answer and its last."""
    program = "import os, sys\nfor line in sys.stdin:\n    os.fsync(1); print(end=line, file=sys.stderr, flush=True)\n"
    with (tmp_path / "synced").open("wb") as file:
        child = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=file, stderr=subprocess.PIPE
        )
    assert child.stdin is not None
    assert child.stderr is not None
    calls = CallCount({"child": [child.pid]})
    with child, calls:
        for _ in range(10):
            child.stdin.write(b"line\n")
            child.stdin.flush()
            assert child.stderr.readline() == b"line\n"
        calls.units = 5
        child.stdin.close()
    assert bool(calls.missing) != bool(calls.figures)
    assert calls.missing or calls.figures["child"]["fsyncs"] == 2.0


def test_starting_and_ending_the_counts_of_others_is_not_counted_of_this_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        calls = CallCount({CLIENT: [os.getpid()], "one": [child.pid], "other": [child.pid]})
        with calls:
            pass
        calls.units = 1
        child.communicate(b"\n")
    assert bool(calls.missing) != bool(calls.figures)
    assert calls.missing or calls.figures[CLIENT][SYSTEM_CALLS] < 50, "it has done next to nothing"


def test_what_nodes_have_counted_is_read_from_their_page() -> None:
    page = "# HELP bookie_adds_total Adds\n# TYPE bookie_adds_total counter\nbookie_adds_total 12.0\n\n"
    labelled = 'bookie_dir_free_bytes{directory="/some where"} 5.0\nbookie_SERVER_STATUS -1.0\n'
    assert numbers_in(page + labelled) == {"bookie_adds_total": 12.0, "bookie_SERVER_STATUS": -1.0}


def test_costs_are_a_table_of_their_own_and_in_the_json() -> None:
    watch = Watch({CLIENT: [os.getpid()]})
    with watch:
        pass
    watch.units = 4
    costs = costs_of("append", watch)
    assert costs.per == "append"
    row = Row("P1", "append", "us", "us: limit", Target(1.5, at_most=True))
    for nodes_us in (10.0, 30.0):
        own = Costs("append", {CLIENT: {PROCESSOR: 5.0}, "nodes": {PROCESSOR: nodes_us, WAKE_UPS: 3.0}})
        row.add(100.0, 90.0, costs=own)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in cost_table([row]).splitlines()]
    assert lines[0] == ["row", "what", "one", "process", PROCESSOR, WAKE_UPS]
    assert lines[2:] == [
        ["P1", "append", "append", CLIENT, "5 (5-5)", ""],
        ["P1", "append", "append", "nodes", "20 (10-30)", "3 (3-3)"],
    ]
    assert as_json([row])[0]["costs"] == {
        "one": "append",
        "processes": {CLIENT: {PROCESSOR: [5.0, 5.0]}, "nodes": {PROCESSOR: [10.0, 30.0], WAKE_UPS: [3.0, 3.0]}},
    }
    assert cost_table([Row("C1", "decode", "MB/s", "MB/s", None)]) == ""


def test_a_cost_below_nothing_cannot_be_believed() -> None:
    row = Row("P1", "append", "us", "us: limit", Target(1.5, at_most=True))
    row.add(100.0, 90.0, costs=Costs("append", {CLIENT: {PROCESSOR: -0.5}}))
    assert (row.faults, row.reached_half) == (["-0.5 cannot be"], False)


def test_costs_of_a_peer_stand_beside_ours_under_its_name_and_say_what_is_missing() -> None:
    ours, theirs = Costs("entry", {"nodes": {PROCESSOR: 9.0}}), Costs("entry", {"nodes": {PROCESSOR: 4.0}}, "no perf")
    both = beside(ours, "Java", theirs)
    assert both.figures == {"nodes": {PROCESSOR: 9.0}, "Java: nodes": {PROCESSOR: 4.0}}
    row = Row("P11", "entries", "k/s", "k/s: Java", None)
    row.add(2.0, 1.0, costs=both)
    assert cost_table([row]).endswith("\nNo system calls: no perf")
