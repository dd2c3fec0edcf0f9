"""What a user sees of an error: the connector's one message, and no traceback of Spark's workers before it."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from helpers.paths import SPARK_PROGRAMS
from helpers.spark.logs import Logs
from pyspark.sql import SparkSession

from dlspark.spark import worker_daemon
from dlspark.spark.errors import OptionError
from dlspark.spark.worker_daemon import without_traceback
from metadata.foundation.errors import InvariantViolation

HIDE = "SPARK_HIDE_TRACEBACK"


@without_traceback
class Example:
    def raises(self, error: Exception) -> None:
        raise error

    def rows(self, error: Exception) -> Iterator[int]:
        yield 1
        raise error


@pytest.mark.parametrize("call", [Example().raises, lambda error: list(Example().rows(error))])
def test_only_errors_that_say_what_to_do_lose_their_traceback(
    call: Callable[[Exception], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(HIDE, raising=False)
    with pytest.raises(OptionError):
        call(OptionError("wrong, but outside of Spark's workers"))
    assert HIDE not in os.environ
    monkeypatch.setitem(sys.modules, "pyspark.worker_util", worker_daemon)
    for bug in (InvariantViolation("a rule broken"), KeyError("x")):
        with pytest.raises(type(bug)):
            call(bug)
        assert HIDE not in os.environ
    with pytest.raises(OptionError):
        call(OptionError("wrong"))
    assert os.environ[HIDE] == "1"


FILTERS = """
import base64, json
from pyspark.sql.worker import data_source_pushdown_filters as worker
from dlspark.spark.worker_daemon import take_far_times

take_far_times()
take_far_times()
for year in (2013, 9999, 10_000, 290_000):
    micros = (year - 1970) * 31_556_952_000_000 + 86_400_000_000
    parts = {"value": b"\\x30" + micros.to_bytes(8, "little"), "metadata": b"\\x01\\x00\\x00"}
    value = {name: base64.b64encode(part).decode() for name, part in parts.items()}
    words = {"name": "LessThan", "columnPath": ["timestamp"], "isNegated": False, "value": value}
    found = worker.deserializeFilter(words)
    print(type(found).__name__, found.attribute[0], year)
"""


def test_a_filter_is_read_whatever_the_year() -> None:
    """As Spark hands one over: a time as microseconds in a variant. Beyond the year 9999 Python has none."""
    done = subprocess.run([sys.executable, "-c", FILTERS], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == [
        "LessThan timestamp 2013",
        "LessThan timestamp 9999",
        "IsNull timestamp 10000",
        "IsNull timestamp 290000",
    ], done.stderr


def said(action: Callable[[], object]) -> list[str]:
    """The lines of an error as a user sees them."""
    with pytest.raises(Exception) as caught:
        action()
    text = str(caught.value)
    assert "Traceback" not in text, text
    assert 'File "' not in text, text
    return text.splitlines()


def test_mistakes_of_queries_are_told_in_one_line(spark: SparkSession, logs: Logs, checkpoint: Path) -> None:
    log = logs.name("plain")
    logs.write(logs.create(log), [1, 2])
    read, values = spark.read.format("distributedlog"), spark.range(2).selectExpr("'a' AS value", "id")
    stream = spark.readStream.format("distributedlog")
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: read.option("startingOffset", "earliest").load(log), "OptionError: Unknown option 'startingoffset'"),
        (lambda: spark.read.format("distributedlog").load(f"{log}-no").collect(), "LogNotFoundError: No such log"),
        (lambda: spark.read.format("distributedlog").load(f"/{log}").collect(), "it begins with a slash"),
        (lambda: save(values, log), "SchemaError: The sink was given a column that is called 'id'"),
        (lambda: save(spark.range(2).selectExpr("CAST(NULL AS STRING) AS value"), log), "BatchRefusedError: Column"),
        (lambda: run(stream.load(f"{log}-no"), checkpoint / "1"), "LogNotFoundError: No such log"),
        (
            lambda: run(
                spark.readStream.format("distributedlog")
                .option("startingOffsets", json.dumps({log: "earliest", "other": "earliest"}))
                .load(log),
                checkpoint / "2",
            ),
            "OffsetError: Option startingOffsets has a position for other, which the query does not read",
        ),
        (
            lambda: run(
                spark.readStream.format("distributedlog").load(log).selectExpr("log AS value", "segment AS log"),
                checkpoint / "3",
                "distributedlog",
            ),
            "SchemaError",
        ),
    ]
    for action, message in cases:
        lines = said(action)
        assert message in "\n".join(lines[:2]), lines


def save(frame: object, log: str) -> None:
    frame.write.format("distributedlog").mode("append").save(log)  # type: ignore[attr-defined]


def run(frame: object, checkpoint: Path, sink: str = "noop") -> None:
    writer = frame.writeStream.format(sink).option("checkpointLocation", str(checkpoint))  # type: ignore[attr-defined]
    writer.trigger(availableNow=True).start().awaitTermination()


# ---------------------------------------------------------------------- the daemon of workers

WORKER = """
import socket, sys
from dlspark.spark.worker_daemon import quiet

kind = sys.argv[1]
here, spark = socket.socketpair()

def at_work(sock, authenticated):
    if kind == "gone while writing":
        spark.close()
        sock.sendall(b"rows" * 1_000_000)
    if kind == "gone while reading":
        raise EOFError
    return len(sock.recv(7))

if kind == "idle":
    spark.close()
else:
    spark.sendall(b"command")
print(quiet(at_work)(here, True))
"""


@pytest.mark.parametrize(
    ("kind", "code"), [("idle", -1), ("gone while writing", -1), ("gone while reading", -1), ("at work", 7)]
)
def test_a_worker_that_spark_hung_up_on_ends_without_a_word(kind: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", WORKER, kind], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == (str(code), "")


LENIENT: dict[str, str] = {}
STRICT = {"PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"}
PLANNER = "dlspark.spark.datasource"
UNPICKLED = ("dlspark.spark.sink.writer", "dlspark.spark.source.readers", "dlspark.spark.metadata_tables.reader")
"""Modules of what workers are given where they are given no data source: a commit's has a writer only."""


@pytest.mark.parametrize(
    ("ours", "work", "strict"),
    [
        *((PLANNER, work, strict) for work in ("reading", "writing") for strict in (LENIENT, STRICT)),
        *((module, "writing", LENIENT) for module in UNPICKLED),
    ],
)
def test_a_worker_of_sparks_own_daemon_that_spark_hung_up_on_in_its_first_command_ends_without_a_word(
    ours: str, work: str, strict: dict[str, str]
) -> None:
    """Spark plans and commits in workers of its own daemon, which prints a trace where the last of a worker's answer is
    not taken: it does so itself, or has the error end the worker."""
    with (
        tempfile.TemporaryDirectory() as place,  # the path of a socket has 107 characters at most
        subprocess.Popen(
            [sys.executable, "-m", "pyspark.daemon", "pyspark_hang_up"],
            env={
                **os.environ,
                **strict,
                "AT_WORK": work,
                "OF_OURS": ours,
                "PYTHONPATH": os.pathsep.join([str(SPARK_PROGRAMS), os.environ.get("PYTHONPATH", "")]),
                "PYTHON_UNIX_DOMAIN_ENABLED": "true",
                "PYTHON_WORKER_FACTORY_SOCK_DIR": place,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as daemon,
    ):
        try:
            assert daemon.stdout is not None
            (length,) = struct.unpack("!i", daemon.stdout.read(4))
            with socket.socket(socket.AF_UNIX) as spark, spark.makefile("rb") as answers:
                spark.connect(daemon.stdout.read(length))
                (worker,) = struct.unpack("!i", answers.read(4))
                assert answers.read(7) == b"at work"
            with suppress(psutil.NoSuchProcess):  # it may have ended by now
                psutil.Process(worker).wait(60)
            _, told = daemon.communicate(timeout=60)
        finally:
            daemon.kill()
    assert told.decode() == ""
