"""Threads of a plain session: Spark looks for sources of Python in the active session of the thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dlspark.spark import register

if TYPE_CHECKING:
    from helpers.spark.logs import Logs
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.processes]


def said_by_thread(work: Callable[[], object]) -> str:
    """What a thread of its own ends with: the error's text, or nothing."""
    said: list[str] = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            said.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return "".join(said)


def test_a_thread_writes_once_the_session_is_handed_to_it(
    spark: SparkSession, plain_format: str, logs: Logs, checkpoint: Path
) -> None:
    log = logs.create(logs.name("threads"))
    rows = spark.range(3).selectExpr("CAST(id AS STRING) AS value")

    def write() -> None:
        rows.write.format(plain_format).mode("append").save(log)

    def registered() -> None:
        register(spark)
        write()
        source = spark.readStream.format(plain_format).load(log).select("value")
        writer = source.writeStream.format(plain_format).option("log", f"{log}-copy")
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    assert "DATA_SOURCE_NOT_FOUND" in said_by_thread(write)
    assert said_by_thread(registered) == ""
    read = [spark.read.format(plain_format).load(name).count() for name in (log, f"{log}-copy")]
    assert read == [3, 3]
