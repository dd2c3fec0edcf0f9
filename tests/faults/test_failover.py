"""A writer that stands still for longer than its session, while another takes its log over (SIGSTOP, SIGCONT).

Each round has two writer processes on one log, and a seed that decides when the first is stopped, whether the second
waits for the log already, and when the first goes on: while the second is taking over, or after its first
acknowledgement. From that acknowledgement on the first must get none, whatever still waited in its sockets. Then the
log is held against what both were told (`verdict.check_round`).

Replay one round with `--seed N`. The time to take over is printed beside the session timeout.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.faults.verdict import Outcomes, check_round
from helpers.fork_server import Child, ForkServer
from helpers.waiting import wait_until
from helpers.worlds.warm_sandbox import WarmSandbox

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from dlspark.core.sync.namespace import Namespace

pytestmark = [pytest.mark.processes, pytest.mark.torture]

DEFAULT_ROUNDS = 2
SESSION_S = 4
ZOOKEEPER_TICK_MS = 250
SETTINGS = {
    "zkSessionTimeoutSeconds": SESSION_S,
    "lockTimeoutSeconds": 120,
    "periodicFlushFrequencyMilliSeconds": 5,
    "writerOutputBufferSize": 2048,
}
NUMBERS_PER_WRITER = 1_000_000


class Writer:
    """A writer process and what it has said."""

    def __init__(self, process: Child) -> None:
        self.process = process
        self.acknowledged_at: dict[int, float] = {}
        self.outcomes = Outcomes()

    def listen(self) -> None:
        while not self.process.lines.empty():
            line = self.process.lines.get()
            if line is None:
                self.outcomes.notes.append("ended")
            elif line.startswith("ok "):
                _, number, dlsn, at_s = line.split()
                self.outcomes.acknowledged[int(number)] = DLSN.parse(dlsn)
                self.acknowledged_at[int(number)] = float(at_s)
            else:
                self.outcomes.take(line)

    def said(self, word: str) -> bool:
        return any(note.partition(" ")[0] == word for note in self.outcomes.notes)

    def until(self, condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            self.listen()
            return condition()

        wait_until(holds, lambda: f"{self.process.name}: {self.outcomes.notes[-5:]}", every_s=0.005)

    def until_acknowledged(self, count: int) -> None:
        self.until(lambda: len(self.outcomes.acknowledged) >= count)


class Arena:
    """The sandbox of all rounds."""

    def __init__(self, directory: Path) -> None:
        self.sandbox = WarmSandbox(directory / "sandbox", nodes=3, zookeeper_tick_ms=ZOOKEEPER_TICK_MS)
        self.sandbox.start()
        self.namespace = Namespace.open(self.sandbox.uri, SETTINGS)
        self.forks = ForkServer(("helpers.faults.failover_writer",), log=directory / "writers.log")
        self.took_over_s: list[float] = []
        self.held_back = 0

    def start(self, name: str, log: str, first: int) -> Writer:
        arguments = {"name": name, "uri": self.sandbox.uri, "log": log, "first": first, "settings": SETTINGS}
        return Writer(self.forks.spawn("helpers.faults.failover_writer:run", arguments))

    def close(self) -> None:
        self.forks.close()
        try:
            self.namespace.close()
        finally:
            self.sandbox.stop()


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    opened = Arena(tmp_path_factory.mktemp("failover"))
    try:
        yield opened
    finally:
        opened.close()


def play(arena: Arena, seed: int) -> str:
    """One round; what it was like, in words."""
    rng = random.Random(seed)
    name = f"failover-{seed}-{time.monotonic_ns()}"
    arena.namespace.create_log(name)
    waits_already, resumed_early = rng.random() < 0.5, rng.random() < 0.3
    first = arena.start("first", name, 0)
    first.until_acknowledged(rng.randint(20, 300))
    second: Writer | None = None
    if waits_already:
        second = arena.start("second", name, NUMBERS_PER_WRITER)
        time.sleep(rng.uniform(0.0, 0.3))  # the round's own time, not a synchronisation
    time.sleep(rng.uniform(0.0, 0.02))
    stopped_at = time.monotonic()
    first.process.signal(signal.SIGSTOP)
    if second is None:
        second = arena.start("second", name, NUMBERS_PER_WRITER)
    if resumed_early:
        # The session is over by now: no server hears of it after this time, rounded up to its unit.
        time.sleep(max(stopped_at + SESSION_S + 2 * ZOOKEEPER_TICK_MS / 1000 - time.monotonic(), 0))
    else:
        second.until_acknowledged(1)
        time.sleep(rng.uniform(0.0, 0.5))
    first.process.signal(signal.SIGCONT)
    first.until(lambda: first.said("lost"))
    second.until_acknowledged(20)
    second.process.close_input()
    for writer in (first, second):
        writer.until(lambda writer=writer: writer.said("ended"))  # type: ignore[misc]
        writer.process.wait()
        assert writer.said("done"), writer.outcomes.notes[-5:]
    taken_over_at = min(second.acknowledged_at.values())
    late = {number: at_s - taken_over_at for number, at_s in first.acknowledged_at.items() if at_s >= taken_over_at}
    assert not late, f"{len(late)} acknowledgements after the second's first, by {max(late.values()):.3f} s"
    _check_log(arena, name, [first, second])
    arena.took_over_s.append(taken_over_at - stopped_at)
    arena.held_back += len(first.outcomes.unknown)
    return (
        f"second {'waiting' if waits_already else 'started later'}, first resumed "
        f"{'while it took over' if resumed_early else 'after its first acknowledgement'}; taken over after "
        f"{taken_over_at - stopped_at:.2f} s; first: {len(first.outcomes.acknowledged)} acknowledged, "
        f"{len(first.outcomes.unknown)} unknown, {first.outcomes.notes}"
    )


def _check_log(arena: Arena, name: str, writers: list[Writer]) -> None:
    outcomes = Outcomes()
    for writer in writers:
        outcomes.acknowledged |= writer.outcomes.acknowledged
        outcomes.failed |= writer.outcomes.failed
        outcomes.unknown |= writer.outcomes.unknown
    records: list[LogRecord] = []
    with arena.namespace.open_log(name) as log, log.open_reader() as reader:
        while more := reader.read_bulk(5000):
            records += more
    check_round(outcomes, records, [])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "round_seed" not in metafunc.fixturenames:
        return
    one: int | None = metafunc.config.getoption("--seed")
    rounds: int | None = metafunc.config.getoption("--rounds")
    seeds = [one] if one is not None else list(range(DEFAULT_ROUNDS if rounds is None else rounds))
    metafunc.parametrize("round_seed", seeds)


def test_a_writer_that_stood_still_gets_no_acknowledgement_after_its_successors_first(
    arena: Arena, round_seed: int
) -> None:
    print(f"seed {round_seed}: {play(arena, round_seed)}")


def test_taking_over_takes_the_session_timeout_and_little_more(arena: Arena) -> None:
    times = sorted(arena.took_over_s)
    if not times:
        pytest.skip("no round was played")
    print(
        f"{len(times)} rounds, session timeout {SESSION_S} s: taken over {times[len(times) // 2]:.2f} s (median) and "
        f"{times[-1]:.2f} s (most) after the first stopped; {arena.held_back} records left as unknown"
    )
    # A session ends between two thirds of its timeout and all of it after its client stopped; a second earlier where a
    # busy machine had its last sign of life come late. A lock that was not kept is taken over at once.
    assert times[0] > SESSION_S / 4
