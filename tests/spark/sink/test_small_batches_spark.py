"""Small batches of a streaming query by way of the connector's jar: no Python worker has a part in them."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from helpers.spark.sink_driver import read_values

from dlspark.core.sync.namespace import Namespace
from dlspark.spark.sink.append.folders import AppenderFolder, own_folders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from dlspark.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.spark, pytest.mark.processes]

LARGE: Final = 700_000
"""Bytes of a row that makes a batch too large to be appended."""


class Files:
    """A source whose batches are the files of a directory, each a row a line."""

    def __init__(self, directory: Path) -> None:
        self.place = directory / "input"
        self.place.mkdir()
        self._beside = directory / "beside"
        self.rows: list[bytes] = []

    def add(self, *rows: str) -> None:
        self._beside.write_text("\n".join(rows) + "\n")
        self.rows += [row.encode() for row in rows]
        self._beside.rename(self.place / f"{len(self.rows)}-{uuid.uuid4().hex}.txt")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def written(sandbox: Sandbox, spark: SparkSession, files: Files, checkpoint: Path) -> Callable[[str], StreamingQuery]:
    """Starts a query that writes each file as a batch into a log of this name, by a process of its own."""
    patience = f"{uuid.uuid4().int % 10_000 + 60_000}ms"  # each setting has a process

    def start(log: str) -> StreamingQuery:
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(files.place))
        sink = lines.writeStream.format("distributedlog").option("log", log).option("outageTimeout", patience)
        return sink.option("checkpointLocation", str(checkpoint)).start()

    return start


def check(sandbox: Sandbox, log: str, query: StreamingQuery, files: Files) -> None:
    """Wait for the query, and check that each row is there once, in order."""
    query.processAllAvailable()
    assert query.exception() is None
    assert read_values(sandbox.uri, log)[1] == files.rows


def segments(sandbox: Sandbox, log: str) -> list[int]:
    """The records of each of a log's segments that is complete."""
    with Namespace.open(sandbox.uri) as namespace, namespace.open_log(log) as opened:
        return [segment.record_count for segment in opened.segments() if not segment.in_progress]


def appenders() -> set[int]:
    """The processes that append for drivers of this user."""
    folders = [AppenderFolder(path) for home in own_folders() for path in home.iterdir() if path.is_dir()]
    return {pid for folder in folders if folder.in_use() and (pid := folder.named()) is not None}


def test_small_and_large_batches_of_one_query_follow_each_other(
    sandbox: Sandbox, files: Files, written: Callable[[str], StreamingQuery]
) -> None:
    log = f"sizes-{uuid.uuid4().hex[:8]}"
    query = written(log)
    try:
        for number in range(4):
            files.add(*(f"{number}.{row}" for row in range(3)))
            query.processAllAvailable()
        check(sandbox, log, query, files)
        assert segments(sandbox, log) == [], "all of them are in the open segment"
        files.add("x" * LARGE)
        check(sandbox, log, query, files)
        assert segments(sandbox, log)[-1:] == [1], "a batch that is too large for an entry is a segment"
        files.add("after it", "and after")
        check(sandbox, log, query, files)
    finally:
        query.stop()


def test_the_process_that_appends_may_die_between_batches_and_a_query_go_on_from_its_checkpoint(
    sandbox: Sandbox, files: Files, written: Callable[[str], StreamingQuery], checkpoint: Path
) -> None:
    log = f"deaths-{uuid.uuid4().hex[:8]}"
    before = appenders()
    query = written(log)
    try:
        for number in range(3):
            files.add(f"before {number}")
            query.processAllAvailable()
        check(sandbox, log, query, files)
        (process,) = appenders() - before
        os.kill(process, signal.SIGKILL)
        for number in range(3):
            files.add(f"after {number}")
            query.processAllAvailable()
        check(sandbox, log, query, files)
    finally:
        query.stop()
    # The newest batch is run again, as after a death before its commit was noted.
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    query = written(log)
    try:
        files.add("the last")
        check(sandbox, log, query, files)
    finally:
        query.stop()
