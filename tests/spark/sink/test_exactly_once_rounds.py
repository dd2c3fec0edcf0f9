"""Exactly once, round after round, on a real ZooKeeper and real storage nodes, with drivers that need no JVM.

Each kind of fault gets some seeded rounds here and a few with Spark itself (`test_exactly_once_spark`). Every round
ends with the same questions: does each log hold each row once and in order, is every batch whole, are there no ledgers
left that nobody refers to. A round proves by a file that its fault point was reached.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.spark.driver_processes import PATIENCE_S, SESSION_VARIABLE, Spawner, fault, finish
from helpers.spark.sink_driver import Plan, run_driver
from helpers.spark.typed_frames import RAW, Using

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.runtime import Runtime
from dlspark.core.sync.namespace import Namespace
from dlspark.errors import LogEmptyError
from dlspark.sandbox.sandbox import Sandbox
from dlspark.spark.errors import BatchRefusedError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.driver import open_publishing
from dlspark.spark.sink.segments.leftovers import find_leftovers, sweep_leftovers

pytestmark = [pytest.mark.processes, pytest.mark.torture, pytest.mark.usefixtures("frames")]

ROUNDS = 3
CHANGES = 2
"""Rounds in which the log changes before a replay: many more run in memory (`test_sink_forgetting`)."""
FORMATS = ("json", "arrow", "avro", "json")
"""Of records of typed frames: four, beside three modes of committing."""
MOST_ROWS_ONE_BY_ONE = 400
"""Rows of a batch that is appended in the format whose records hold many rows elsewhere: each is a record then."""
COMMIT_MODES = ("append", "segments", "mixed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, few in (("round_seed", ROUNDS), ("change_seed", CHANGES)):
        if name in metafunc.fixturenames:
            seed = metafunc.config.getoption("--seed")
            rounds = metafunc.config.getoption("--rounds") or few
            metafunc.parametrize(name, [seed] if seed is not None else range(rounds))


class Round:
    """One query with a seed, and what must hold at its end."""

    def __init__(self, sandbox: Sandbox, directory: Path, kind: str, seed: int) -> None:
        self.rng = random.Random(f"{kind}/{seed}")
        self.sandbox = sandbox
        self.directory = directory
        self.flag = directory / "flag"
        typed = Using.frames.typed
        name = f"{kind}-{seed}{'-typed' if typed else ''}"
        # Several logs always make segments: where batches are to be appended, there is one.
        mode = COMMIT_MODES[seed % len(COMMIT_MODES)]
        letters = "abc"[: self.rng.randint(1, 3)] if mode == "segments" else "a"
        logs = tuple(f"{name}-{letter}" for letter in letters)
        rows = self.rng.choice([50, 400, 2000])
        kind_of_records = FORMATS[seed % len(FORMATS)] if typed else RAW
        self.plan = Plan(
            uri=sandbox.uri,
            query_id=name,
            logs=logs,
            batches=3,
            rows=min(rows, MOST_ROWS_ONE_BY_ONE) if kind_of_records == "arrow" and mode != "segments" else rows,
            checkpoint=str(directory / "checkpoint"),
            stamped=self.rng.random() < 0.4,
            mode=mode,
            kind=kind_of_records,
        )
        self.plan.declare()

    def fault(self, point: str, do: str, after: int) -> dict[str, str]:
        """The environment in which `point` strikes once, on its `after`-th passage but one."""
        return fault(point, do, self.flag, after)

    def check(self) -> None:
        for log in self.plan.logs:
            txids, values = self.plan.read(log)
            assert values == self.plan.expected(log)
            assert txids == sorted(txids)
        # Who waits for a log that a driver's process holds, gets it, with the sink's marks moved.
        with Namespace.open(self.plan.uri) as namespace:
            for log in self.plan.logs:
                if namespace.log_exists(log):
                    with namespace.open_log(log) as opened, opened.open_writer():
                        pass
        Runtime.shared().run(self._check_nothing_left())

    async def _check_nothing_left(self) -> None:
        publishing = await open_publishing(Options({"uri": self.plan.uri}, Scope.SINK_STREAM))
        session = publishing.session
        mark = await session.sinks.read(self.plan.query_id)
        assert mark is not None
        assert mark.value.batch >= self.plan.last_with_rows
        (found,) = await find_leftovers(session.sinks, session.namespace.services.logs, 0, names=[self.plan.query_id])
        await sweep_leftovers(publishing.sweeper, session.sinks, found)
        assert await session.sinks.staged(self.plan.query_id) == []


# The points at which a driver dies: most often where the issue asks, between the publication and Spark's commit log.
DEATHS = ["sink.published", "sink.published", "sink.applied", "sink.before-publish", "sink.staged"]
DEATHS_BESIDE_AN_APPENDER = ["sink.published", "sink.staged"]
APPENDER_DEATHS = ["sink.before-publish", "sink.applied", "sink.before-mark", "sink.marked"]


def test_a_driver_killed_around_its_publication_leaves_one_copy(
    sandbox: Sandbox, tmp_path: Path, spawn: Spawner, round_seed: int
) -> None:
    this = Round(sandbox, tmp_path, "killed", round_seed)
    deaths = DEATHS if this.plan.mode == "segments" else DEATHS_BESIDE_AN_APPENDER
    point = deaths[round_seed % len(deaths)]
    doomed = spawn(this.plan, 1, this.fault(point, "die", this.rng.randrange(this.plan.batches)))
    assert finish(doomed) == -signal.SIGKILL
    assert this.flag.exists()
    assert finish(spawn(this.plan, 2)) == 0
    this.check()


@pytest.mark.parametrize("point", APPENDER_DEATHS)
def test_an_appending_process_killed_anywhere_leaves_one_copy(
    sandbox: Sandbox, tmp_path: Path, spawn: Spawner, point: str
) -> None:
    """The driver goes on: it starts another one, which waits for the lock of the first."""
    this = Round(sandbox, tmp_path, f"appender-{point}", 0)
    plan = Plan(**{**vars(this.plan), "logs": this.plan.logs[:1], "mode": "append", "empty": 0.0, "rows": 50})
    this.plan = plan
    assert finish(spawn(plan, 1, this.fault(point, "die", 0 if "mark" in point else 1))) == 0
    assert this.flag.exists()
    this.check()


def test_the_next_appending_process_does_not_wait_for_the_session_of_one_that_was_killed(
    sandbox: Sandbox, tmp_path: Path, spawn: Spawner
) -> None:
    """The log's lock is waited for 5 seconds here, and a session lasts 30."""
    this = Round(sandbox, tmp_path, "session", 0)
    plan = replace(this.plan, logs=this.plan.logs[:1], mode="append", empty=0.0, rows=50, outage="2s")
    environment = this.fault("sink.applied", "die", 1)
    assert finish(spawn(plan, 1, {**environment, SESSION_VARIABLE: "30"})) == 0
    assert this.flag.exists()
    assert plan.read(plan.logs[0])[1] == plan.expected(plan.logs[0])


def test_a_replay_of_committed_batches_leaves_one_copy(
    sandbox: Sandbox, tmp_path: Path, spawn: Spawner, round_seed: int
) -> None:
    this = Round(sandbox, tmp_path, "replayed", round_seed)
    run_driver(this.plan, 1)
    for batch in range(this.rng.randrange(this.plan.batches), this.plan.batches):
        (Path(this.plan.checkpoint) / "commits" / str(batch)).unlink()
    run_driver(this.plan, 2)
    this.check()


def test_a_task_that_fails_after_writing_and_runs_again_leaves_one_copy(
    sandbox: Sandbox, tmp_path: Path, spawn: Spawner, round_seed: int
) -> None:
    this = Round(sandbox, tmp_path, "retried", round_seed)
    environment = this.fault("sink.staged", "raise", this.rng.randrange(3))
    assert finish(spawn(this.plan, round_seed, environment)) == 0
    assert this.flag.exists()
    this.check()


def test_two_drivers_with_one_checkpoint_leave_one_copy(
    sandbox: Sandbox, tmp_path: Path, spawn: Spawner, round_seed: int
) -> None:
    this = Round(sandbox, tmp_path, "twice", round_seed)
    other = Plan(**{**vars(this.plan), "checkpoint": str(tmp_path / "copy")})
    before = this.rng.randrange(2)
    run_driver(Plan(**{**vars(this.plan), "batches": before}), 1)
    shutil.copytree(this.plan.checkpoint, other.checkpoint, dirs_exist_ok=True)
    drivers = [spawn(this.plan, 2), spawn(other, 3)]
    assert [finish(driver) for driver in drivers] == [0, 0]
    this.check()


def test_a_publication_whose_answer_is_lost_leaves_one_copy(
    sandbox: Sandbox, tmp_path: Path, spawn: Spawner, round_seed: int
) -> None:
    this = Round(sandbox, tmp_path, "unknown", round_seed)
    point = "sink.before-publish" if round_seed % 4 == 3 else "sink.applied"
    # Each process counts for itself, and in a mixed query some batches pass the point in another one.
    after = this.rng.randrange(this.plan.batches) if this.plan.mode == "segments" else 0
    environment = this.fault(point, "lose", after)
    assert finish(spawn(this.plan, round_seed, environment)) == 0
    assert this.flag.exists()
    this.check()


DELETIONS = ("purge", "truncate and purge", "rename", "delete")
BURIED_MODES = ("append", "auto", "mixed", "segments", "append")
"""Five, beside four deletions: twenty seeds have each with each."""
POINTS = {"append": APPENDER_DEATHS, "segments": DEATHS[1:]}


def test_a_batch_whose_log_changes_before_its_replay_is_there_once_or_refused(
    sandbox: Sandbox, tmp_path: Path, spawn: Spawner, change_seed: int
) -> None:
    """Driver and appending process die; the segments that knew the batch are deleted, or the log is renamed and back,
    or made anew; then the driver starts again, perhaps in another mode."""
    this = Round(sandbox, tmp_path, "buried", change_seed)
    mode = BURIED_MODES[change_seed % len(BURIED_MODES)]
    name = this.plan.logs[0]
    # Ids that a user gave would be below those of the other writer; times of typed rows are raised.
    stamped = this.plan.stamped or not Using.frames.typed
    plan = replace(this.plan, logs=(name,), mode=mode, empty=0.0, rows=50, stamped=stamped)
    points = POINTS.get(mode, ["sink.before-publish", "sink.published"])
    point = points[change_seed % len(points)]
    doomed = spawn(plan, 1, this.fault(point, "die", this.rng.randrange(2) if "mark" not in point else 0))
    await_flag(this.flag)
    doomed.kill()
    finish(doomed)
    how = DELETIONS[change_seed % len(DELETIONS)]
    seen = change_log(plan.uri, name, how, this.rng)
    plan.declare()
    refused = finish(spawn(plan, 2)) != 0
    if refused:
        with pytest.raises(BatchRefusedError, match=r"has forgotten.*is not known; nothing was published now"):
            run_driver(plan, 3)
    made_anew = how == "delete"
    found = read_places(plan.uri, name)
    values = list((found if made_anew else {**seen, **found}).values())
    ours = plan.frames.read([value for value in values if value != FOREIGN])
    assert len(ours) == len(set(ours)), "a row is there twice"
    expected = plan.expected(name)
    assert set(ours) <= set(expected)
    if how == "rename":
        assert not refused
    if not refused and not made_anew:
        assert ours == expected
    if made_anew:
        assert not refused
        assert ours == expected[len(expected) - len(ours) :]


FOREIGN = b"of another writer"
PATIENT = {"lockTimeoutSeconds": 60}


def await_flag(flag: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not flag.exists():
        assert time.monotonic() < deadline, "the fault point was not reached"
        time.sleep(0.02)


def change_log(uri: str, name: str, how: str, rng: random.Random) -> dict[DLSN, bytes]:
    """Delete segments or the log, as operators would; what it held before."""
    with Namespace.open(uri, PATIENT) as namespace:
        if not namespace.log_exists(name):
            return {}
        last = 0
        for _ in range(2 if "purge" in how else 1):
            with namespace.open_log(name) as log, log.open_writer() as writer:
                last = writer.last_txid + 1
                writer.write(last, FOREIGN)
                writer.flush()
        seen = read_places(uri, name)
        if how == "rename":
            namespace.rename_log(name, f"{name}-aside")
            namespace.rename_log(f"{name}-aside", name)
        elif how == "delete":
            namespace.delete_log(name)
        else:
            with namespace.open_log(name) as log:
                if how != "purge":
                    log.truncate(rng.choice(list(seen)))
                log.purge_older_than(last)
        return seen


def read_places(uri: str, name: str) -> dict[DLSN, bytes]:
    """All that a log has, by place."""
    with Namespace.open(uri, {"ignoreTruncationStatus": True}) as namespace:
        if not namespace.log_exists(name):
            return {}
        with namespace.open_log(name) as log:
            found: dict[DLSN, bytes] = {}
            try:
                end = log.last_dlsn()
            except LogEmptyError:
                return found
            with log.open_reader() as reader:
                for record in reader:
                    found[record.dlsn] = bytes(record.payload)
                    if record.dlsn >= end:
                        return found
            return found
