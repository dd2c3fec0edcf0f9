"""Cold files read as columns, without Spark: the rows of a plan by row groups are those that the same records give."""

from __future__ import annotations

import asyncio
import datetime as dt
import pickle
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from helpers.cold.moved import HandMover
from helpers.spark.memory_world import URI, DriverWorld
from helpers.spark.typed_logs import TypedLog
from pyspark.sql.types import StructType

from dlspark.core.namespace import AsyncNamespace
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.source import driver as driver_module
from dlspark.spark.source.loading import look_up
from dlspark.spark.source.partition_reader import LogPartition
from dlspark.spark.source.readers import BatchReader, batch_reader
from dlspark.spark.source.schema import SCHEMA
from dlspark.spark.source.selection import SourceQuery
from dlspark.tables.declaration import RecordFormat


@pytest.fixture(autouse=True)
def in_memory(driver_world: DriverWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have readers plan in the world of the test."""

    async def open_(uri: str, settings: object = None) -> AsyncNamespace:
        return await driver_world.connect(uri)

    monkeypatch.setattr(AsyncNamespace, "open", open_)


def options(**raw: object) -> Options:
    return Options({"uri": URI, **{name: str(value) for name, value in raw.items()}}, Scope.SOURCE_BATCH)


async def planned(reader: BatchReader) -> list[LogPartition]:
    return await reader._plan()


async def rows(reader: BatchReader, partitions: Sequence[LogPartition]) -> list[dict[str, object]]:
    copy: BatchReader = pickle.loads(pickle.dumps(reader))

    def tasks() -> list[dict[str, object]]:
        return [
            row
            for one in partitions
            for batch in copy.read(pickle.loads(pickle.dumps(one)))
            for row in batch.to_pylist()
        ]

    return await asyncio.get_running_loop().run_in_executor(None, tasks)


def reader(schema: StructType, **raw: object) -> BatchReader:
    made = batch_reader(options(**raw), schema)
    assert isinstance(made, BatchReader)
    return made


async def test_raw_frames_read_columns(driver_world: DriverWorld, tmp_path: Path) -> None:
    name = await driver_world.create("flights")
    await driver_world.write(name, range(1, 100))
    await driver_world.write(name, range(100, 200))
    await driver_world.write(name, range(200, 300))
    frame = reader(SCHEMA, log=name)
    hot = await rows(frame, await planned(frame))
    assert len(hot) == 299
    root = tmp_path / "cold"
    root.mkdir()
    mover = HandMover(driver_world.namespace, f"file://{root}", row_group_bytes=1000)
    await mover.move(name, 1, 2)
    plan = await planned(frame)
    spans = [span for one in plan for span in one.spans]
    assert [span.cold_rows is not None for span in spans] == [True, True, False]
    assert await rows(frame, plan) == hot
