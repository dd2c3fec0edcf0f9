"""Cold files read as columns, without Spark: the rows of a plan by row groups are those that the same records give."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from helpers.cold.moved import HandMover
from helpers.spark.memory_world import URI, DriverWorld
from helpers.spark.typed_logs import TypedLog
from pyspark.sql.datasource import Filter
from pyspark.sql.types import StructType

from dlspark.core.namespace import AsyncNamespace
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.schema_version import SchemaVersion
from dlspark.spark.source.driver import SourceDriver
from dlspark.spark.source.loading import look_up
from dlspark.spark.source.partition_reader import LogPartition
from dlspark.spark.source.readers import BatchReader, batch_reader
from dlspark.spark.source.schema import SCHEMA
from dlspark.spark.source.selection import SourceQuery
from dlspark.tables.arrow_types import arrow_schema
from dlspark.tables.codecs import RecordEncoder
from dlspark.tables.declaration import RecordFormat
from dlspark.tables.evolution import AddColumn, RenameColumn, WidenColumn
from dlspark.tables.types import LONG, STRING

LOG = "orders"
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("item", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("weight", pa.int32()),
        pa.field("where", pa.struct([("town", pa.string()), ("zip", pa.int32())])),
        pa.field("tags", pa.list_(pa.struct([("key", pa.string()), ("weight", pa.int32())]))),
        pa.field("day", pa.date32()),
    ]
)
NOON = dt.datetime(2026, 11, 1, 12, tzinfo=dt.timezone.utc)


@pytest.fixture(autouse=True)
def in_memory(driver_world: DriverWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have readers plan in the world of the test."""

    async def open_(uri: str, settings: object = None) -> AsyncNamespace:
        return await driver_world.connect(uri)

    monkeypatch.setattr(AsyncNamespace, "open", open_)


@pytest.fixture
async def mover(driver_world: DriverWorld, tmp_path: Path) -> HandMover:
    """Return what makes cold files of many small row groups."""
    (tmp_path / "cold").mkdir()
    return HandMover(driver_world.namespace, f"file://{tmp_path / 'cold'}", row_group_bytes=1_500)


# ---------------------------------------------------------------------- rows, by each way


def options(**raw: object) -> Options:
    return Options({"uri": URI, **{name: str(value) for name, value in raw.items()}}, Scope.SOURCE_BATCH)


def reader(
    schema: StructType, version: SchemaVersion | None = None, hints: Sequence[Filter] = (), **raw: object
) -> BatchReader:
    """Return a reader as the jar has it made."""
    made = batch_reader(options(log=LOG, **raw), schema, seen={}, version=version, hints=hints)
    assert isinstance(made, BatchReader)
    return made


async def frame() -> tuple[StructType, SchemaVersion]:
    """Load the log's columns as they are declared now."""
    schema = await look_up(SourceQuery.of(options(log=LOG)))
    version = SchemaVersion.of(schema)
    assert version is not None
    return schema, version


async def rows(read: BatchReader, partitions: Sequence[LogPartition]) -> list[dict[str, object]]:
    """Return the rows of a plan, each partition read by a task of its own."""
    copy: BatchReader = pickle.loads(pickle.dumps(read))

    def tasks() -> list[dict[str, object]]:
        return [
            row
            for one in partitions
            for batch in copy.read(pickle.loads(pickle.dumps(one)))
            for row in (batch.to_pylist() if batch.num_columns else [{}] * len(batch))
        ]

    return await asyncio.get_running_loop().run_in_executor(None, tasks)


async def by_entries(read: BatchReader) -> list[dict[str, object]]:
    """Return the rows of a plan that reads entries, wherever they are."""

    async def as_they_are(self: SourceDriver, spans: object, reads: object) -> object:
        return spans

    with mock.patch.object(SourceDriver, "_columns_of_files", as_they_are):
        plan = await read._plan()
    assert all(span.cold_rows is None for one in plan for span in one.spans)
    return await rows(read, plan)


async def by_columns(read: BatchReader) -> list[dict[str, object]]:
    """Return the rows of a plan that reads columns of what is cold."""
    plan = await read._plan()
    cold = [span for one in plan for span in one.spans if span.is_cold]
    assert all(span.cold_rows is not None for span in cold)
    assert cold
    return await rows(read, plan)


async def groups_planned(read: BatchReader) -> int:
    return sum(span.cold_rows is not None for one in await read._plan() for span in one.spans)


# ---------------------------------------------------------------------- logs


def order(number: int, **more: object) -> dict[str, object]:
    """Return a row of `COLUMNS`, with nulls here and there."""
    return {
        "id": number,
        "item": None if number % 7 == 3 else f"item {number % 5}",
        "at": NOON + dt.timedelta(seconds=number),
        "weight": None if number % 5 == 0 else number % 100,
        "where": None if number % 4 == 1 else {"town": f"t{number % 3}", "zip": None if number % 2 else number},
        "tags": None if number % 6 == 2 else [{"key": f"k{i}", "weight": i} for i in range(number % 3)],
        "day": dt.date(2026, 1, 1) + dt.timedelta(days=number // 10),
        **more,
    }


def txid(number: int) -> int:
    return int((NOON + dt.timedelta(seconds=number)).timestamp() * 1000)


class RandomLog:
    """Writes a log of orders in which everything happens: misfits, other spellings, records of many rows and of none,
    and members that become columns later."""

    def __init__(self, world: DriverWorld, format_: RecordFormat, seed: int) -> None:
        self.log = TypedLog(world.namespace, LOG)
        self.random = random.Random(seed)
        self._format = format_
        self._number = 0

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def segment(self, size: int = 20, *, odd: bool = True) -> None:
        """Write a segment of about so many records of the current version."""
        payloads: list[bytes] = []
        ids: list[int] = []
        for _ in range(size):
            payloads.append(self._odd() if odd and self.random.random() < 0.3 else self._record())
            ids.append(txid(self._number))
        await self.log.write_bytes(payloads, ids)

    def _record(self) -> bytes:
        count = self.random.randint(1, 4) if self._format is RecordFormat.ARROW else 1
        return self._encoded([self._row(self._next()) for _ in range(count)])

    def _row(self, number: int) -> dict[str, object]:
        """Return a row with the columns of the current version."""
        known = {
            **order(number),
            "title": f"title {number}",
            "note": None if number % 3 else f"note {number}",
            "later": f"later {number}",
        }
        where = known["where"]
        if isinstance(where, dict):
            where |= {"city": where["town"], "street": f"s{number}"}
        return {one.name: known[one.name] for one in self.log.declaration.current.fields}

    def _encoded(self, given: list[dict[str, object]]) -> bytes:
        batch = pa.RecordBatch.from_pylist(given, schema=arrow_schema(self.log.declaration.current))
        (payload,) = RecordEncoder(self.log.declaration).encode(batch).payloads.to_pylist()
        return bytes(payload)

    def _odd(self) -> bytes:
        """Return a record that is not what the encoder makes of its row."""
        number = self._next()
        kind = self.random.choice(["garbage", "empty", "late", "odd", "odd"])
        if kind == "garbage":
            return b"not a record"
        if kind == "empty":
            return b""
        if kind == "late":  # its time is behind its transaction id
            return self._encoded([self._row(number) | {"at": NOON + dt.timedelta(days=9)}])
        if self._format is RecordFormat.JSON:
            said = {"id": number, "at": "2026-11-01 12:00:00", "later": f"sooner {number}", "weight": 7.0, "x": [1]}
            return json.dumps(said, indent=None if number % 2 else 1).encode()
        if self._format is RecordFormat.ARROW:
            none = pa.RecordBatch.from_pylist([], schema=arrow_schema(self.log.declaration.current))
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, none.schema) as stream:
                stream.write_batch(none)
            return bytes(sink.getvalue())
        return self._encoded([self._row(number)])


@pytest.mark.parametrize("format_", list(RecordFormat))
@pytest.mark.parametrize("seed", [1])
async def test_columns_of_files_give_the_rows_that_records_give(
    driver_world: DriverWorld, mover: HandMover, format_: RecordFormat, seed: int
) -> None:
    made = RandomLog(driver_world, format_, seed)
    log = made.log
    await log.declare(COLUMNS, format_, timestamp="at")
    await made.segment()
    before, before_version = await frame()
    first = reader(before, before_version)
    hot = await by_entries(first)
    await log.change(AddColumn(("note",), STRING, default="none"), AddColumn(("where", "street"), STRING))
    await made.segment()
    await made.segment(8)
    middle, middle_version = await frame()
    hot_middle = await by_entries(reader(middle, middle_version))
    await mover.move(LOG, 1, 2, log.declaration)
    # The file's version is the current one.
    assert await by_columns(reader(middle, middle_version)) == hot_middle
    # The frame is older.
    assert (await by_columns(first))[: len(hot)] == hot
    assert await by_columns(first) == await by_entries(first)
    # The frame is newer: columns came, were renamed and widened.
    await log.change(AddColumn(("later",), STRING, default="never"), RenameColumn(("item",), "title"))
    await log.change(WidenColumn(("weight",), LONG), RenameColumn(("where", "town"), "city"))
    await made.segment(6)
    newest, version = await frame()
    expected = await by_entries(reader(newest, version))
    found = await by_columns(reader(newest, version))
    assert found == expected
    assert {None, "never"} <= {row["later"] for row in found}
    if format_ is RecordFormat.JSON:
        assert any(str(row["later"]).startswith("sooner") for row in found), "bytes may say more than columns did"
    # Columns are chosen, and positions cut entries in two.
    for wanted in (
        ["id"],
        ["title", "_error"],
        ["tags"],
        ["_log"],
        [],
        ["where", "later", "_log"],
    ):
        some = StructType([one for one in newest if one.name in wanted])
        part = {"startingOffsets": json.dumps({LOG: "1:2:1"}), "endingOffsets": json.dumps({LOG: "2:5:1"})}
        assert await by_columns(reader(some, version, **part)) == await by_entries(reader(some, version, **part))
        limited = {**part, "maxRecordsPerPartition": 7}
        if format_ is not RecordFormat.AVRO:
            assert await by_columns(reader(some, version, **limited)) == await by_entries(reader(some, version, **part))


async def test_raw_frames_read_columns(driver_world: DriverWorld, mover: HandMover) -> None:
    await driver_world.create(LOG)
    for first in (1, 100, 200):
        await driver_world.write(LOG, range(first, first + 99))
    raw = reader(SCHEMA)
    hot = await by_entries(raw)
    await mover.move(LOG, 1, 2)
    assert await by_columns(raw) == hot
