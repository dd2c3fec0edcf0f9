"""Queries whose Python process is slow to start are started again; other errors are told as ever."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dlspark.spark import start
from dlspark.spark.session import SLOW_START


class Query:
    """Says one status after the other; then it has ended with `error`, if it has not begun."""

    def __init__(self, error: str | None = None) -> None:
        self._left = ["Initializing StreamExecution", "Initializing sources"]
        self._error = error
        self.lastProgress = None

    @property
    def isActive(self) -> bool:
        return bool(self._left) or self._error is None

    @property
    def status(self) -> dict[str, str]:
        return {"message": self._left.pop(0) if self._left else "Waiting for data to arrive"}

    def exception(self) -> Exception | None:
        return None if self._error is None else RuntimeError(self._error)


class Writer:
    """Its starts come out as told; the last one as often as it takes."""

    def __init__(self, *outcomes: Query | Exception) -> None:
        self.starts = 0
        self._outcomes = outcomes

    def start(self) -> Query:
        outcome = self._outcomes[min(self.starts, len(self._outcomes) - 1)]
        self.starts += 1
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def started(writer: Writer, timeout_s: float = 60) -> Any:
    return start(writer, timeout_s)  # type: ignore[arg-type]


def test_a_slow_start_is_made_again_whether_the_query_or_the_call_tells_of_it() -> None:
    good = Query()
    writer = Writer(Query(f"{SLOW_START}."), RuntimeError(f"{SLOW_START}."), Query(f"{SLOW_START}."), good)
    assert started(writer) is good
    assert writer.starts == 4


def test_a_query_that_is_about_to_end_is_waited_for() -> None:
    ending, good = Query(f"{SLOW_START}."), Query()
    ending._left.append("Terminated with exception: Job aborted")
    writer = Writer(ending, good)
    assert started(writer) is good
    assert writer.starts == 2


def test_a_query_that_ended_for_another_reason_is_handed_over_and_another_error_raised() -> None:
    failed = Query("no such log")
    writer = Writer(failed)
    assert started(writer) is failed
    assert writer.starts == 1
    with pytest.raises(ValueError, match="bad checkpoint"):
        started(Writer(ValueError("bad checkpoint")))


def test_slow_starts_end_when_the_time_is_over() -> None:
    writer = Writer(Query(SLOW_START))
    with pytest.raises(RuntimeError, match=SLOW_START):
        started(writer, timeout_s=0)
    assert writer.starts == 1


@pytest.mark.spark
@pytest.mark.parametrize("also", [None, ".1.txt"])
def test_a_first_entry_that_a_driver_left_unfinished_is_removed_and_nothing_else(
    spark: SparkSession, tmp_path: Path, also: str | None
) -> None:
    """Spark refuses a checkpoint with anything in it where it has no batch, for ever."""
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    unfinished = offsets / f".0.{uuid.uuid4()}.tmp"
    unfinished.touch()
    if also is not None:
        (offsets / also).touch()
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query = start(rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)))
    try:
        assert unfinished.exists() == (also is not None)
        if also is not None:
            assert "should be empty on batch 0" in str(query.exception())
        else:
            assert query.isActive
    finally:
        query.stop()
