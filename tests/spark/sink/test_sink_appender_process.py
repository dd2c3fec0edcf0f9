"""The process that appends beside a driver: started once, found again, gone with its driver, killed at any time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import stat
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.spark.sink_driver import read_values
from helpers.spark.typed_frames import Using
from helpers.waiting import PATIENCE_S

from dlspark.core.sync.namespace import Namespace
from dlspark.spark.errors import AppenderStartError, BatchRefusedError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.append.appender import BatchToAppend
from dlspark.spark.sink.append.clients import encode_request, folder_of
from dlspark.spark.sink.append.folders import RUNTIME_VARIABLE, AppenderFolder, ProcessName
from dlspark.spark.sink.driver import commit_batch
from dlspark.spark.sink.inline_rows import no_rows
from dlspark.spark.sink.messages import JobId
from dlspark.spark.sink.segments.task import run_task

if TYPE_CHECKING:
    from dlspark.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.processes
BOTH = pytest.mark.usefixtures("frames")


class Query:
    """A query of this process, whose options make the appending process its own."""

    def __init__(self, uri: str, log: str | None = None, **more: str) -> None:
        self.log = log or f"appended-{uuid.uuid4().hex[:8]}"
        self.sink = f"q-{uuid.uuid4().hex[:8]}"
        # Sessions end soon, and the name makes the settings (and so the process) this test's.
        own = {"commitMode": "append", "appendIdleRelease": "1m", "distributedlog.zksessiontimeoutseconds": "4"}
        self.options = Options(
            {"uri": uri, **own, "outageTimeout": f"{uuid.uuid4().int % 10_000 + 60_000}ms", **more}, Scope.SINK_STREAM
        )
        self.frames = Using.frames
        self.columns = self.frames.columns(self.log, ids=False)

    def run(self, batch: int, tasks: int = 2) -> None:
        job = JobId(self.sink, batch, uuid.uuid4().hex)
        parts = [self.frames.batch([value]) for value in self.rows(batch, tasks)]
        messages = [
            run_task(self.options, self.columns, job, number, 1000, iter([part])) for number, part in enumerate(parts)
        ]
        assert not any(message.segments for message in messages)
        commit_batch(self.options, messages, batch, (self.log,))

    @staticmethod
    def rows(batch: int, tasks: int = 2) -> list[bytes]:
        return [f"{batch}:{task}".encode() for task in range(tasks)]

    @property
    def folder(self) -> AppenderFolder:
        return folder_of(self.options)

    @property
    def process(self) -> ProcessName:
        return ProcessName.decode(self.folder.process.read_text())

    def check(self, batches: int) -> None:
        txids, values = read_values(self.options.uri, self.log)
        assert self.frames.read(values, txids) == [row for batch in range(batches) for row in self.rows(batch)]


@pytest.fixture
def query(sandbox: Sandbox) -> Iterator[Query]:
    query = Query(sandbox.uri)
    yield query
    if query.folder.in_use():
        os.kill(query.process.pid, signal.SIGTERM)
        await_that(lambda: not query.folder.path.exists(), "the process ended and removed its folder")


def await_that(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def open_segments(query: Query) -> list[bool]:
    with Namespace.open(query.options.uri) as namespace, namespace.open_log(query.log) as log:
        return [segment.in_progress for segment in log.segments()]


@BOTH
def test_fifty_batches_make_one_segment_through_one_process(query: Query) -> None:
    for batch in range(50):
        query.run(batch)
        if batch == 0:
            first = query.process
    assert query.process == first
    query.check(50)
    assert len(open_segments(query)) == 1


def test_its_folder_is_for_its_user_alone_and_requests_show_its_secret(query: Query) -> None:
    query.run(0)
    assert stat.S_IMODE(query.folder.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(query.folder.secret.stat().st_mode) == 0o600
    secret = query.folder.secret.read_text()
    assert len(secret) == 64
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.fspath(query.folder.socket))
        connection.sendall(encode_request("wrong", BatchToAppend(JobId(query.log, 1, "x"), no_rows(query.log))))
        assert connection.recv(1) == b""  # closed without an answer
    query.run(1)
    query.check(2)


@BOTH
def test_sigterm_gives_the_log_up_and_the_next_batch_starts_another_process(query: Query) -> None:
    query.run(0)
    first = query.process
    os.kill(first.pid, signal.SIGTERM)
    await_that(lambda: not first.runs, "it ends")
    assert open_segments(query) == [False]
    assert not query.folder.path.exists()
    query.run(1)
    assert query.process != first
    query.check(2)


@BOTH
def test_a_killed_process_is_followed_by_another_that_goes_on(query: Query) -> None:
    for batch in range(3):
        query.run(batch)
    os.kill(query.process.pid, signal.SIGKILL)
    for batch in range(1, 4):
        query.run(batch)
    query.check(4)


@BOTH
def test_an_idle_process_gives_the_log_up_and_ends(sandbox: Sandbox) -> None:
    query = Query(sandbox.uri, appendIdleRelease="200ms")
    query.run(0)
    process = query.process
    await_that(lambda: not process.runs, "it ends")
    assert open_segments(query) == [False]
    query.check(1)


@BOTH
def test_another_writer_gets_the_log_while_the_process_lives(query: Query) -> None:
    query.run(0)
    with (
        Namespace.open(query.options.uri) as namespace,
        namespace.open_log(query.log) as log,
        log.open_writer() as writer,
    ):
        writer.write(max(writer.last_txid, 0), b"foreign").result(60)
    query.run(1)
    _, values = read_values(query.options.uri, query.log)
    assert query.frames.read(values) == [*query.rows(0), b"foreign", *query.rows(1)]


@BOTH
def test_two_queries_on_one_machine_share_an_owner_and_one_goes_on_when_the_other_is_killed(query: Query) -> None:
    other = Query(query.options.uri, query.log)
    try:
        query.run(0)
        for batch in range(3):
            other.run(batch)
            query.run(batch + 1)
        assert query.process != other.process
        assert len(open_segments(query)) == 1
        os.kill(query.process.pid, signal.SIGKILL)
        other.run(3)  # waits until the session of the killed one has ended
        query.run(4)
        _, values = read_values(query.options.uri, query.log)
        ours = [row for batch in range(5) for row in query.rows(batch)]
        assert sorted(query.frames.read(values)) == sorted(
            [*ours, *(row for batch in range(4) for row in other.rows(batch))]
        )
    finally:
        if other.folder.in_use():
            os.kill(other.process.pid, signal.SIGTERM)


def test_it_ends_with_its_driver(sandbox: Sandbox, tmp_path: Path) -> None:
    told = tmp_path / "told"
    driver = multiprocessing.get_context("forkserver").Process(target=run_one_batch, args=(sandbox.uri, str(told)))
    driver.start()
    await_that(told.exists, "a batch is committed")
    await_that(lambda: len(told.read_text().split("\n")) == 2, "it is told whole")
    log, process = told.read_text().split("\n")
    appender = ProcessName.decode(process)
    assert appender.runs
    assert isinstance(driver, ForkServerProcess)
    driver.kill()
    driver.join(60)
    await_that(lambda: not appender.runs, "it ends with its driver")
    with Namespace.open(sandbox.uri) as namespace, namespace.open_log(log) as opened:
        assert [segment.in_progress for segment in opened.segments()] == [False]


def run_one_batch(uri: str, told: str) -> None:
    query = Query(uri)
    query.run(0)
    Path(told).write_text(f"{query.log}\n{query.process.encode()}")
    signal.pause()


def test_errors_of_the_process_are_those_of_the_sink(sandbox: Sandbox) -> None:
    query = Query(sandbox.uri, createStreamIfNotExists="false", appendIdleRelease="100ms")
    with pytest.raises(BatchRefusedError, match="does not exist") as caught:
        query.run(0)
    assert caught.value.log == query.log


@BOTH
def test_a_long_path_and_a_name_that_another_user_took_keep_no_batch_from_being_appended(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    taken = long / f"dlspark-{os.getuid()}"
    taken.mkdir()
    taken.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(long))
    monkeypatch.delenv(RUNTIME_VARIABLE, raising=False)
    query = Query(sandbox.uri, appendIdleRelease="200ms")
    for batch in range(3):
        query.run(batch)
    process = query.process
    assert query.folder.path.parent.name.startswith(f"{taken.name}-")
    assert not any(taken.iterdir())
    query.check(3)
    await_that(lambda: not process.runs, "it ends")
    assert len(open_segments(query)) == 1


@pytest.mark.parametrize("mode", ["append", "auto"])
@BOTH
def test_where_there_is_no_folder_auto_makes_segments_and_append_says_why(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    query = Query(sandbox.uri, commitMode=mode)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    monkeypatch.delenv(RUNTIME_VARIABLE, raising=False)
    if mode == "append":
        with pytest.raises(AppenderStartError, match="gone"):
            query.run(0)
        return
    query.run(0)
    query.run(1)
    query.check(2)
    assert open_segments(query) == [False, False]


def test_the_process_does_not_inherit_the_key_that_makes_tokens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[dict[str, str]] = []

    def run(command: list[str], *, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[bytes]:
        started.append(env)
        return subprocess.CompletedProcess(command, 1, b"", b"enough")

    monkeypatch.setenv(RUNTIME_VARIABLE, str(tmp_path))
    monkeypatch.setenv("DLSPARK_TOKEN_KEY", "the key")
    monkeypatch.setenv("DLSPARK_TOKEN", "what it shows itself")
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(AppenderStartError, match="enough"):
        Query("distributedlog://nowhere:1/none").run(1)
    assert [("DLSPARK_TOKEN_KEY" in env, "DLSPARK_TOKEN" in env) for env in started] == [(False, True)]
