"""Exactly once over a long-lived Spark: rounds of every fault of the Spark line, on `local[2]` and on a cluster.

A round is two to four batches of a streaming query into one to three logs, or of a `foreachBatch` that writes two to
five logs under one number (`txnAppId`, `txnVersion`) in several writes; one fault, and at its end the same questions:
each row once and in order, every batch whole, nothing left after a sweep. Session and query live on from round to
round, and the faults meet each other's traces; only the fault that is the driver's own death starts another session.
Without --rounds there are two: batches that are staged into several logs on a cluster, and such as are appended to one
log on `local[2]`, each with a task that fails when it has written and runs again. With --rounds all of this runs
with typed frames as well, in sessions of their own, whose streams differ in the format of the records. Rounds without
Spark: `test_exactly_once_rounds`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.spark.rounds_world import Round, SparkProcess, StandaloneCluster, Stream
from helpers.spark.typed_frames import RAW, Frames

from dlspark.core.administration.audit import audit_ledgers
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.runtime import Runtime
from dlspark.core.sync.namespace import Namespace
from dlspark.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.torture, pytest.mark.timeout(900)]


ROUNDS_OF_A_STREAM = 9
"""Seeds that share a query: no divisor of the number of faults, so that each of them meets queries of every kind."""


class Place:
    """Where rounds run: a session, the cluster that it runs on, if any, and the query of the rounds at hand."""

    def __init__(
        self,
        name: str,
        directory: Path,
        spark: SparkProcess,
        cluster: StandaloneCluster | None,
        *,
        typed: bool,
        tables: bool = False,
        one_log: bool = False,
    ) -> None:
        self.name, self.spark, self.cluster = f"{name}-typed" if typed else name, spark, cluster
        self._tables = tables
        self._one_log = one_log
        self._typed = typed
        self._directory = directory
        self._stream: Stream | None = None
        self._number = -1
        self._failures = 0

    def stream(self, sandbox: Sandbox, number: int) -> Stream:
        """The query of this number; the one before it is stopped."""
        if self._stream is None or number != self._number:
            if self._stream is not None and self._stream.running:
                self.spark.ask("stop")
            name = f"{self.name}-{number}" + (f"-{self._failures}" if self._failures else "")
            self._stream = Stream(
                sandbox,
                self.spark,
                self._directory / name,
                name,
                tables=self._tables,
                one_log=self._one_log,
                several_logs=number == 0 and not self._one_log,
                typed=self._typed,
            )
            self._number = number
        return self._stream

    def give_up(self) -> None:
        """After a failure the next round has a query and a session of its own."""
        self._failures += 1
        self._stream = None
        self.spark.kill()


@pytest.fixture(scope="module", params=[RAW, "json"])
def frames(request: pytest.FixtureRequest) -> Frames:
    """Give the frames of the rounds; each place has one session for frames of bytes, then one for typed ones."""
    return Frames(request.param)


@pytest.fixture(scope="module")
def local(frames: Frames, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """`local[2]`, and a task may fail twice."""
    place = tmp_path_factory.mktemp("local")
    spark = SparkProcess("local[2,3]", place)
    yield Place("local", place, spark, None, typed=frames.typed)
    spark.kill()


@pytest.fixture(scope="module")
def appended(frames: Frames, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """As `local`, and the query has one log, to which its batches are appended."""
    place = tmp_path_factory.mktemp("appended")
    spark = SparkProcess("local[2,3]", place)
    yield Place("appended", place, spark, None, typed=frames.typed, one_log=True)
    spark.kill()


@pytest.fixture(scope="module")
def tables(frames: Frames, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """As `local`, and each batch is written to its logs by a `foreachBatch`."""
    place = tmp_path_factory.mktemp("tables")
    spark = SparkProcess("local[2,3]", place)
    yield Place("tables", place, spark, None, typed=frames.typed, tables=True)
    spark.kill()


@pytest.fixture(scope="module")
def standalone(frames: Frames, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A master and two workers."""
    place = tmp_path_factory.mktemp("standalone")
    cluster = StandaloneCluster(place)
    spark = SparkProcess(cluster.master, place)
    yield Place("standalone", place, spark, cluster, typed=frames.typed)
    spark.kill()
    cluster.stop()


def a_task_fails_after_writing_and_runs_again(this: Round, place: Place) -> None:
    this.strike("sink.staged", "raise")
    this.finish()


def a_tasks_process_dies_in_the_middle_of_writing(this: Round, place: Place) -> None:
    this.strike("sink.writing", "die")
    this.finish()


def an_executor_is_lost_in_the_middle_of_writing(this: Round, place: Place) -> None:
    """On `local[2]` there is no executor but the driver: the task's process is lost instead."""
    if place.cluster is None:
        return a_tasks_process_dies_in_the_middle_of_writing(this, place)
    this.strike("sink.writing", "hang")
    this.begin()
    this.struck()
    for executor in place.cluster.executors()[this.rng.randrange(2) :]:
        executor.kill()
    return this.finish()


def two_attempts_at_a_task_write_at_the_same_time(this: Round, place: Place) -> None:
    """The first waits with its rows written. On two hosts Spark starts a second; else the query is started again."""
    this.strike("sink.staged", "wait")
    this.begin()
    this.struck()
    if place.cluster is None:
        this.stop()
        this.go_on.touch()
    this.finish()
    this.go_on.touch()


def the_answer_to_the_publication_is_lost(this: Round, place: Place) -> None:
    this.strike(this.rng.choice(["sink.applied", "sink.before-publish"]), "lose")
    this.finish()


def the_committing_process_dies(this: Round, place: Place) -> None:
    """Spark does not learn how the commit ended, aborts the batch and ends the query.

    Where the batch is for one log it is appended by a process beside the driver: another one takes that one's place.
    """
    this.strike(this.rng.choice(["sink.applied", "sink.published", "sink.before-publish"]), "die")
    assert this.run() is not None or len(this.stream.plan.logs) == 1
    this.finish()


def the_newest_commit_entry_is_lost(this: Round, place: Place) -> None:
    """Death between the sink's commit and Spark's, as a user can play it; the batch is cut into other tasks (D14)."""
    assert this.run(this.first) is None
    this.stop()
    commits = this.stream.checkpoint / "commits"
    (commits / str(this.first)).unlink()
    (commits / f".{this.first}.crc").unlink(missing_ok=True)
    this.flag.touch()
    this.finish()


def the_checkpoint_is_rolled_back_by_two_batches(this: Round, place: Place) -> None:
    """Batches that are cut as before are skipped."""
    roll_back(this)
    this.finish()


def the_checkpoint_is_rolled_back_and_batches_are_cut_anew(this: Round, place: Place) -> None:
    """A number that was published with other rows is refused: to skip it would lose rows, to write it double some."""
    newest = roll_back(this)
    rows = [len(this.stream.plan.batch_rows(this.first + number)) for number in range(1, 4)]
    # Under numbers without rows nothing was published: new rows would be, and once more from the newest checkpoint.
    this.begin(this.last if any(rows[:2]) else this.first + 2, stride=3)
    if any(rows[:2]) and rows[0] < sum(rows):
        assert "ReplayDiffersError" in this.error()
    else:  # the others are empty: it is the same batch after all
        assert this.spark.ask("until", batch=this.first + 1) is None
        this.stop()
    shutil.rmtree(this.stream.checkpoint)
    newest.rename(this.stream.checkpoint)
    this.finish()


def roll_back(this: Round) -> Path:
    """Restore the checkpoint from a copy taken two batches earlier. Returns where the newest is kept."""
    checkpoint = this.stream.checkpoint
    copy, newest = checkpoint.with_name(f"copy-{this.first}"), checkpoint.with_name(f"newest-{this.first}")
    assert this.run(this.first) is None
    # The query goes on: files that it is about to rename are gone before they are copied.
    shutil.copytree(checkpoint, copy, ignore=shutil.ignore_patterns(".*.tmp", ".*.tmp.crc"))
    assert this.run(this.first + 2) is None
    this.stop()
    checkpoint.rename(newest)
    copy.rename(checkpoint)
    this.flag.touch()
    return newest


def the_query_is_stopped_while_a_task_writes_on(this: Round, place: Place) -> None:
    """Spark aborts the batch without a message, so without the query's id; the task may write after that."""
    this.strike(this.rng.choice(["sink.writing", "sink.staged"]), "wait")
    this.begin()
    this.struck()
    this.stop()
    this.go_on.touch()
    this.finish()


def another_writer_rolls_the_log_during_the_batch(this: Round, place: Place) -> None:
    """Between the tasks and the publication another writer appends a segment."""
    foreign = f"foreign-{this.first}".encode()
    this.stream.foreign.add(foreign)

    def append(namespace: Namespace, log: str) -> None:
        if not namespace.log_exists(log):
            namespace.create_log(log)
        with namespace.open_log(log) as opened, opened.open_writer() as writer:
            writer.write(max(writer.last_txid, 0), foreign).result(60)

    while_a_task_waits(this, append)


def the_log_is_truncated_during_the_batch(this: Round, place: Place) -> None:
    def truncate(namespace: Namespace, log: str) -> None:
        if namespace.log_exists(log):
            with namespace.open_log(log) as opened:
                segments = opened.segments()
                if len(segments) > 1:
                    this.stream.shortened[log] = this.first
                    opened.truncate(f"{segments[1].lssn}:0:0")

    while_a_task_waits(this, truncate)


def the_log_is_deleted_and_made_again_during_the_batch(this: Round, place: Place) -> None:
    def recreate(namespace: Namespace, log: str) -> None:
        if namespace.log_exists(log):
            this.stream.shortened[log] = this.first
            with namespace.open_log(log) as opened, opened.open_writer():
                pass  # the query gives way to a writer, and not to its log's deletion
            namespace.delete_log(log)
            namespace.create_log(log)
            this.stream.plan.declare()

    while_a_task_waits(this, recreate)


def while_a_task_waits(this: Round, change: Callable[[Namespace, str], None]) -> None:
    # Everyone, or the second attempt that a cluster starts at the waiting task would publish the batch meanwhile.
    this.strike("sink.staged", "wait", everyone=True)
    this.begin()
    this.struck()
    with Namespace.open(this.stream.plan.uri) as namespace:
        change(namespace, this.rng.choice(this.stream.plan.logs))
    this.go_on.touch()
    this.finish()


def the_driver_is_killed(this: Round, place: Place) -> None:
    """The driver with its JVM and its Python processes, most often between the sink's commit and Spark's."""
    points = ["sink.published", "sink.published", "sink.applied", "sink.before-publish", "sink.staged"]
    this.strike(this.rng.choice(points), "hang")
    this.begin()
    this.struck()
    this.kill_driver()
    this.mend()
    this.finish()


def a_copied_checkpoint_runs_on_as_a_fork_with_other_logs(this: Round, place: Place) -> None:
    """Query and fork have one id and go on side by side; each log has the batches that its query had to write."""
    assert this.run(this.first) is None
    this.stop()
    copy = this.stream.checkpoint.with_name(f"fork-{this.first}")
    shutil.copytree(this.stream.checkpoint, copy)
    (copy / "commits" / str(this.first)).unlink()
    (copy / "commits" / f".{this.first}.crc").unlink(missing_ok=True)
    this.flag.touch()
    this.begin()
    this.run_fork(copy)
    this.finish()
    # What an earlier fork has written there comes before.
    for log in this.stream.plan.logs:
        _, values = this.stream.plan.read(f"{log}-fork")
        expected = this.stream.expected(log, this.first)
        assert values[len(values) - len(expected) :] == expected
        assert len(values) == len(set(values))


Fault = Callable[[Round, Place], None]
FAULTS: tuple[Fault, ...] = (
    a_task_fails_after_writing_and_runs_again,
    an_executor_is_lost_in_the_middle_of_writing,
    the_newest_commit_entry_is_lost,
    the_checkpoint_is_rolled_back_by_two_batches,
    the_answer_to_the_publication_is_lost,
    the_query_is_stopped_while_a_task_writes_on,
    another_writer_rolls_the_log_during_the_batch,
    the_committing_process_dies,
    the_checkpoint_is_rolled_back_and_batches_are_cut_anew,
    two_attempts_at_a_task_write_at_the_same_time,
    the_log_is_truncated_during_the_batch,
    a_tasks_process_dies_in_the_middle_of_writing,
    the_log_is_deleted_and_made_again_during_the_batch,
    the_driver_is_killed,
)
FAULTS_OF_TABLES: tuple[Fault, ...] = (
    a_copied_checkpoint_runs_on_as_a_fork_with_other_logs,
    the_newest_commit_entry_is_lost,
    *(fault for fault in FAULTS if fault is not the_newest_commit_entry_is_lost),
)
ROLLED_BACK = {the_checkpoint_is_rolled_back_by_two_batches, the_checkpoint_is_rolled_back_and_batches_are_cut_anew}


def run_round(sandbox: Sandbox, place: Place, directory: Path, seed: int, faults: tuple[Fault, ...] = FAULTS) -> None:
    fault = faults[seed % len(faults)]
    stream = place.stream(sandbox, seed // ROUNDS_OF_A_STREAM)
    this = Round(stream, directory, f"{place.name}-{seed}", 4 if fault in ROLLED_BACK else 2)
    try:
        fault(this, place)
        this.check()
    except BaseException:
        place.give_up()
        raise


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "round_seed" in metafunc.fixturenames:
        seed = metafunc.config.getoption("--seed")
        faults = FAULTS_OF_TABLES if "tables" in metafunc.fixturenames else FAULTS
        rounds = range(metafunc.config.getoption("--rounds") or 1)
        seeds = [seed] if seed is not None else list(rounds)
        metafunc.parametrize("round_seed", seeds, ids=[f"{one}-{faults[one % len(faults)].__name__}" for one in seeds])


@pytest.mark.long
def test_a_round_on_local_leaves_one_copy(sandbox: Sandbox, local: Place, tmp_path: Path, round_seed: int) -> None:
    run_round(sandbox, local, tmp_path, round_seed)


def test_a_round_of_batches_that_are_appended_leaves_one_copy(
    sandbox: Sandbox, appended: Place, tmp_path: Path, round_seed: int
) -> None:
    run_round(sandbox, appended, tmp_path, round_seed)


@pytest.mark.long
def test_a_round_of_a_foreach_batch_over_several_logs_leaves_one_copy_in_each(
    sandbox: Sandbox, tables: Place, tmp_path: Path, round_seed: int
) -> None:
    run_round(sandbox, tables, tmp_path, round_seed, FAULTS_OF_TABLES)


def test_a_round_on_a_standalone_cluster_leaves_one_copy(
    sandbox: Sandbox, standalone: Place, tmp_path: Path, round_seed: int
) -> None:
    run_round(sandbox, standalone, tmp_path, round_seed)


def test_after_all_rounds_no_ledger_is_left_that_nobody_refers_to(sandbox: Sandbox, orphans_before: set[int]) -> None:
    assert orphans(sandbox) <= orphans_before


@pytest.fixture(scope="module", autouse=True)
def orphans_before(sandbox: Sandbox) -> set[int]:
    """What other tests have left in the same sandbox."""
    return orphans(sandbox)


def orphans(sandbox: Sandbox) -> set[int]:
    async def audited() -> set[int]:
        namespace = await AsyncNamespace.open(sandbox.uri)
        try:
            return set((await audit_ledgers([namespace.services], min_age_ms=0)).orphans)
        finally:
            await namespace.close()

    return Runtime.shared().run(audited())
