"""Any one storage node, ZooKeeper, or the writer, killed at random: what was acknowledged is there, once, in order.

Each round has a log, a writer process and a reader that follows it, and a seed that decides which faults come when. At
its end everything runs again, the writer must make progress, and the log is held against what the writer was told
(`verdict.check_round`).

One fault is repaired before a fault of the same kind follows: three replicas with two acknowledgements promise no more.
Replay one round with `--seed N`.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.faults.record_writer import SETTINGS
from helpers.faults.verdict import Outcomes, check_round
from helpers.fork_server import Child, ChildError, ForkServer
from helpers.waiting import wait_until
from helpers.worlds.warm_sandbox import WarmSandbox

from dlspark.core.codec.records import LogRecord
from dlspark.core.sync.log import Log
from dlspark.core.sync.namespace import Namespace

pytestmark = [pytest.mark.processes, pytest.mark.torture]

DEFAULT_ROUNDS = 8
NUMBERS_PER_WRITER = 1_000_000
PROGRESS_S = 120
NODE_SETTINGS = {"zkTimeout": 1000}
"""A node that was killed cannot register again before its former session has expired, nor a writer have its log."""
ZOOKEEPER_TICK_MS = 250
LAST_FAULT_S = 0.8
FAULT_KINDS = ("node", "zookeeper", "writer")


class Writer:
    """A writer process, and what it has said so far."""

    def __init__(self, process: Child, outcomes: Outcomes) -> None:
        self._process = process
        self._outcomes = outcomes

    def listen(self) -> None:
        """Take what it has said since the last time."""
        while not self._process.lines.empty():
            line = self._process.lines.get()
            if line is not None:
                self._outcomes.take(line)

    def kill(self) -> None:
        self._process.kill()
        self.listen()

    def finish(self) -> None:
        """Let it close its log in order."""
        self._process.close_input()
        try:
            self._process.wait(PROGRESS_S)
        except ChildError:
            self.kill()
            raise
        self.listen()
        assert self._outcomes.notes[-1:] == ["done"], f"the writer ended early: {self._outcomes.notes[-5:]}"


class Arena:
    """The sandbox of all rounds, and where their writers come from without importing anything."""

    def __init__(self, directory: Path) -> None:
        self.sandbox = WarmSandbox(
            directory / "sandbox", nodes=4, node_settings=NODE_SETTINGS, zookeeper_tick_ms=ZOOKEEPER_TICK_MS
        )
        self.sandbox.start()
        self.namespace = Namespace.open(self.sandbox.uri, SETTINGS)
        self.writers = ForkServer(("helpers.faults.record_writer",), log=directory / "writers.log")
        self.kills: Counter[str] = Counter()

    def close(self) -> None:
        self.writers.close()
        try:
            self.namespace.close()
        finally:
            self.sandbox.stop()


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    opened = Arena(tmp_path_factory.mktemp("kill-rounds"))
    try:
        yield opened
    finally:
        opened.close()


class Follower:
    """Reads a log from its beginning on while others write and break it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.seen: list[LogRecord] = []
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._log.open_reader() as reader:
                while not self._stop.is_set():
                    self.seen += reader.read_bulk(500)
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PROGRESS_S)
        assert not self._thread.is_alive(), "the reader does not return"


class Round:
    """One round: the faults that its seed decides, and the check."""

    def __init__(self, arena: Arena, seed: int) -> None:
        self.arena = arena
        self.sandbox = arena.sandbox
        self.rng = random.Random(seed)
        self.name = f"round-{seed}-{time.monotonic_ns()}"
        self.outcomes = Outcomes()
        self.writers = 0
        self.writer: Writer | None = None
        self.repairs: dict[str, tuple[float, Callable[[], None]]] = {}
        self.history: list[str] = []

    def start_writer(self) -> None:
        arguments = {"uri": self.sandbox.uri, "log": self.name, "first": self.writers * NUMBERS_PER_WRITER}
        process = self.arena.writers.spawn(
            "helpers.faults.record_writer:run", {"name": f"writer-{self.writers}", **arguments}
        )
        self.writer = Writer(process, self.outcomes)
        self.writers += 1

    def faults(self) -> list[tuple[float, str]]:
        """Moments (seconds from the start) and kinds: one kind all round, or mixed."""
        number = self.rng.randint(1, 3)
        only = self.rng.choice((*FAULT_KINDS, None, None))
        kinds = [only or self.rng.choice(FAULT_KINDS) for _ in range(number)]
        return sorted((self.rng.uniform(0.05, LAST_FAULT_S), kind) for kind in kinds)

    def run(self) -> None:
        began = time.monotonic()
        for moment, kind in self.faults():
            self.wait_until(began + moment)
            if kind in self.repairs:
                self.repair(kind)
            self.history.append(f"{time.monotonic() - began:.2f}s {kind}")
            self.arena.kills[kind] += 1
            getattr(self, f"kill_{kind}")()
        self.wait_until(began + LAST_FAULT_S)
        self.repair_all()

    def repair_all(self) -> None:
        while self.repairs:
            self.repair(next(iter(self.repairs)))

    def wait_until(self, moment: float) -> None:
        """Pass the time, and repair what is due."""
        while True:
            now = time.monotonic()
            for kind in [kind for kind, (due, _) in self.repairs.items() if due <= now]:
                if kind in self.repairs:  # it was not repaired with another
                    self.repair(kind)
            if now >= moment:
                return
            time.sleep(min(0.02, moment - now))

    def repair(self, kind: str) -> None:
        if kind == "node" and "zookeeper" in self.repairs:
            self.repair("zookeeper")  # a node serves once it is registered: its start would wait for that
        _, mend = self.repairs.pop(kind)
        mend()

    def kill_node(self) -> None:
        index = self.rng.randrange(self.sandbox.node_count)
        self.sandbox.kill_node(index)
        due = time.monotonic() + self.rng.uniform(0.0, 1.0)
        self.repairs["node"] = (due, lambda: self.sandbox.start_node(index))

    def kill_zookeeper(self) -> None:
        self.sandbox.kill_zookeeper()
        self.repairs["zookeeper"] = (time.monotonic() + self.rng.uniform(0.0, 0.5), self.sandbox.start_zookeeper)

    def kill_writer(self) -> None:
        assert self.writer is not None
        self.writer.kill()
        self.start_writer()

    def await_progress(self) -> None:
        """All is repaired: the writer must get records acknowledged again (liveness after safety)."""
        assert self.writer is not None
        self.writer.listen()
        writer, before = self.writer, len(self.outcomes.acknowledged)

        def goes_on() -> bool:
            writer.listen()
            return len(self.outcomes.acknowledged) >= before + 20

        wait_until(goes_on, lambda: f"progress after {self.history}: {self.outcomes.notes[-5:]}", patience_s=PROGRESS_S)


def play(arena: Arena, seed: int) -> Round:
    arena.namespace.create_log(name := (this := Round(arena, seed)).name)
    with arena.namespace.open_log(name) as log:
        follower = Follower(log)
        this.start_writer()
        try:
            this.run()
            this.await_progress()
            writer, this.writer = this.writer, None
            assert writer is not None
            writer.finish()
        finally:
            this.repair_all()
            if this.writer is not None:
                this.writer.kill()
            follower.stop()
        assert follower.error is None, f"the reader failed after {this.history}: {follower.error!r}"
        with log.open_reader() as reader:
            records: list[LogRecord] = []
            while more := reader.read_bulk(5000):
                records += more
        check_round(this.outcomes, records, follower.seen)
        assert len(this.outcomes.acknowledged) >= 20
    arena.namespace.delete_log(name)
    return this


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "round_seed" not in metafunc.fixturenames:
        return
    one: int | None = metafunc.config.getoption("--seed")
    rounds: int | None = metafunc.config.getoption("--rounds")
    seeds = [one] if one is not None else list(range(DEFAULT_ROUNDS if rounds is None else rounds))
    metafunc.parametrize("round_seed", seeds)


def test_what_was_acknowledged_survives_any_one_kill(arena: Arena, round_seed: int) -> None:
    played = play(arena, round_seed)
    print(
        f"seed {round_seed}: {played.history}; {len(played.outcomes.acknowledged)} acknowledged, "
        f"{len(played.outcomes.failed)} failed, {len(played.outcomes.unknown)} unknown; {played.outcomes.notes}"
    )


def test_every_kind_of_kill_happened(arena: Arena, request: pytest.FixtureRequest) -> None:
    played = sum(item.name.startswith("test_what_was_acknowledged") for item in request.session.items)
    if played < DEFAULT_ROUNDS:
        pytest.skip(f"{played} rounds were asked for: they need not have met every kind")
    assert all(arena.kills[kind] >= 2 for kind in FAULT_KINDS), arena.kills
