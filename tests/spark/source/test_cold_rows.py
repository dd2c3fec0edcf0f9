"""Cold files read as columns, without Spark: the rows of a plan by row groups are those that the same records give."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import math
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from helpers.cold.moved import HandMover, file_of
from helpers.spark.memory_world import URI, DriverWorld
from helpers.spark.typed_logs import TypedLog
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from dlspark.core.cold.files.footer import Footer
from dlspark.core.cold.files.row_groups import decode_records
from dlspark.core.cold.files.writing import ColdFileWriter
from dlspark.core.cold.reading.file_reader import ColdFileReader
from dlspark.core.namespace import AsyncNamespace
from dlspark.errors import DamagedColdFileError
from dlspark.spark.errors import TruncatedDataLossError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.schema_version import SchemaVersion
from dlspark.spark.source.cold_plan import RowGroupPlanner, WantedColumns, row_group_spans
from dlspark.spark.source.driver import SourceDriver
from dlspark.spark.source.loading import look_up
from dlspark.spark.source.partition_reader import LogPartition
from dlspark.spark.source.readers import BatchReader, batch_reader
from dlspark.spark.source.schema import SCHEMA
from dlspark.spark.source.selection import SourceQuery
from dlspark.tables.arrow_types import arrow_schema
from dlspark.tables.codecs import RecordDecoder, RecordEncoder
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.errors import RecordMisfitError
from dlspark.tables.evolution import AddColumn, RenameColumn, WidenColumn
from dlspark.tables.typed_rows import TypedRows
from dlspark.tables.types import LONG, STRING
from metadata.distributedlog.cold_places import ColdFile
from metadata.distributedlog.cold_units import ColdUnit
from metadata.foundation.errors import present

LOG = "orders"
TAG = pa.struct([pa.field("key", pa.string(), nullable=False), ("weight", pa.int32())])
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("item", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("weight", pa.int32()),
        pa.field("where", pa.struct([pa.field("town", pa.string(), nullable=False), ("zip", pa.int32())])),
        pa.field("tags", pa.list_(pa.field("element", TAG, nullable=False))),
        pa.field("day", pa.date32()),
    ]
)
NOON = dt.datetime(2026, 11, 1, 12, tzinfo=dt.timezone.utc)


@pytest.fixture(autouse=True)
def in_memory(driver_world: DriverWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have readers plan in the world of the test."""

    async def open_(uri: str, settings: object = None) -> AsyncNamespace:
        found: AsyncNamespace = await driver_world.connect(uri)
        return found

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
    schema: StructType,
    version: SchemaVersion | None = None,
    hints: Sequence[Filter] = (),
    given: Mapping[str, object] | None = None,
) -> BatchReader:
    """Return a reader as the jar has it made."""
    made = batch_reader(options(log=LOG, **(given or {})), schema, seen={}, version=version, hints=hints)
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


async def plan_of_entries(read: BatchReader) -> list[LogPartition]:
    """Return a plan that reads entries, wherever they are."""

    async def as_they_are(self: SourceDriver, spans: object, reads: object) -> object:
        return spans

    with mock.patch.object(SourceDriver, "_columns_of_files", as_they_are):
        plan = await read._plan()
    assert all(span.cold_rows is None for one in plan for span in one.spans)
    return plan


async def by_entries(read: BatchReader) -> list[dict[str, object]]:
    """Return the rows of such a plan."""
    return await rows(read, await plan_of_entries(read))


async def by_columns(read: BatchReader) -> list[dict[str, object]]:
    """Return the rows of a plan that reads columns of what is cold."""
    plan = await read._plan()
    cold = [span for one in plan for span in one.spans if span.is_cold]
    assert all(span.cold_rows is not None for span in cold)
    assert cold
    return await rows(read, plan)


def of_groups(plan: Sequence[LogPartition]) -> int:
    return sum(span.cold_rows is not None for one in plan for span in one.spans)


async def groups_planned(read: BatchReader) -> int:
    return of_groups(await read._plan())


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
        expected = await by_entries(reader(some, version, given=part))
        assert expected
        assert await by_columns(reader(some, version, given=part)) == expected
        limited = {**part, "maxRecordsPerPartition": 7}  # cuts row groups, too
        assert await by_columns(reader(some, version, given=limited)) == expected


def test_nothing_that_reads_files_is_loaded_where_nothing_is_cold() -> None:
    code = (
        "import sys, dlspark.spark.source.readers, dlspark.spark.source.driver, dlspark.spark.source.typed_records;"
        "heavy = ('pyarrow.parquet', 'obstore', 'dlspark.core.cold.files');"
        "print([one for one in sys.modules if one.startswith(heavy)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# ---------------------------------------------------------------------- filters

ROWS_OF_FILTERS = 200
Row = dict[str, Any]


def nested(row: Row, *path: str) -> Any:
    found: Any = row
    for name in path:
        found = None if found is None else found[name]
    return found


FILTERS: list[tuple[Filter, Callable[[Row], bool], bool]] = [
    (EqualTo(("id",), 77), lambda row: row["id"] == 77, True),
    (EqualNullSafe(("id",), 77), lambda row: row["id"] == 77, True),
    (EqualNullSafe(("id",), None), lambda row: row["id"] is None, True),
    (LessThan(("id",), 10), lambda row: row["id"] is not None and row["id"] < 10, True),
    (GreaterThanOrEqual(("at",), NOON + dt.timedelta(seconds=100)), lambda row: row["id"] >= 100, True),
    (In(("day",), (dt.date(2026, 1, 3), None)), lambda row: row["day"] == dt.date(2026, 1, 3), True),
    (EqualTo(("item",), "nothing like it"), lambda row: False, True),
    (EqualTo(("where", "zip"), 50), lambda row: nested(row, "where", "zip") == 50, True),
    (GreaterThan(("id",), 10_000), lambda row: False, True),
    (EqualTo(("later",), "other"), lambda row: row["later"] == "other", True),  # all have the default
    (EqualTo(("later",), "never"), lambda row: row["later"] == "never", False),
    (IsNull(("more",)), lambda row: row["more"] is None, False),
    (IsNotNull(("more",)), lambda row: row["more"] is not None, True),
    (IsNull(("item",)), lambda row: row["item"] is None, False),
    (IsNotNull(("_error",)), lambda row: row["_error"] is not None, True),
    (GreaterThan(("_log", "transaction_id"), txid(110)), lambda row: row["_log"]["transaction_id"] > txid(110), True),
    (
        LessThan(("_log", "timestamp"), NOON + dt.timedelta(seconds=9)),
        lambda row: row["_log"]["timestamp"] < NOON + dt.timedelta(seconds=9),
        True,
    ),
    (EqualTo(("_log", "segment"), 2), lambda row: row["_log"]["segment"] == 2, True),
    # What is in doubt leaves out nothing.
    (EqualTo(("id",), "77"), lambda row: False, False),
    (IsNotNull(("tags",)), lambda row: row["tags"] is not None, False),
    (GreaterThan(("price",), 1.0), lambda row: row["price"] is not None and not row["price"] <= 1.0, False),
    (EqualTo(("price",), 1.0), lambda row: row["price"] == 1.0, True),
    (StringStartsWith(("item",), "x"), lambda row: False, False),
    (Not(EqualTo(("id",), 3)), lambda row: row["id"] != 3, False),
]


async def test_filters_leave_out_row_groups_without_rows_that_they_want(
    driver_world: DriverWorld, mover: HandMover
) -> None:
    log = TypedLog(driver_world.namespace, LOG)
    await log.declare(COLUMNS.append(pa.field("price", pa.float64())), timestamp="at")
    given = [order(number, price=math.nan if number % 3 else 0.5) for number in range(ROWS_OF_FILTERS)]
    before = log.declaration
    await log.write(given[:70])
    await log.write(given[70:])
    await log.write_bytes([b"bad"], [txid(ROWS_OF_FILTERS)])
    await log.change(AddColumn(("later",), STRING, default="never"), AddColumn(("more",), STRING))
    await log.write([order(ROWS_OF_FILTERS + 14, later="other", more="more")])
    await mover.move(LOG, 1, 3, before)
    schema, version = await frame()
    whole = reader(schema, version)
    everything = await by_columns(whole)
    spans = [span for one in await plan_of_entries(whole) for span in one.spans if span.is_cold]
    file = present(present(spans[0].cold, "it is cold").file, "it has a file")
    (data,) = await mover.files.read(file.url, [(0, file.bytes)])
    footer = Footer.parse(data, file.bytes, file.url)
    groups = len(footer.row_groups)
    assert groups > 8
    typed = TypedRows(RecordDecoder(log.declaration))
    for wanted, holds, prunes in FILTERS:
        asked = WantedColumns((), typed, [wanted])
        kept = {
            present(one.cold_rows, "columns").group for span in spans for one in row_group_spans(footer, span, asked)
        }
        needed = {
            at
            for row in everything
            if safe(holds, row)
            for at, group in enumerate(footer.row_groups)
            if group.first[:2] <= (row["_log"]["segment"], row["_log"]["entry"]) <= group.last[:2]  # type: ignore[index]
        }
        assert needed <= kept, wanted
        assert (len(kept) < groups) == prunes, wanted


def safe(holds: Callable[[Row], bool], row: Row) -> bool:
    """Return whether a condition is true of a row: not where it compares with null."""
    try:
        return bool(holds(row))
    except TypeError:
        return False


async def test_a_row_group_is_kept_whose_statistics_leave_a_bound_out(
    driver_world: DriverWorld, mover: HandMover
) -> None:
    """Parquet writes no bound of more than 4,096 bytes: of a column that has such a value neither end is known."""
    assert MAX_BOUND_BYTES == 4_096
    log = TypedLog(driver_world.namespace, LOG)
    await log.declare(pa.schema([pa.field("item", pa.string())]), RecordFormat.JSON)
    longest, longer = "z" * MAX_BOUND_BYTES, "z" * (MAX_BOUND_BYTES + 1)
    groups = [["b", "c"], ["b", longest], ["b", longer], ["a" * 5_000, "c"], ["a" * 5_000, longer], [longer, None]]
    for number, items in enumerate([*groups, ["hot"]]):
        await log.write([{"item": item} for item in items], first_id=10 * number)
    for lssn in range(1, len(groups) + 1):
        await mover.move(LOG, lssn, lssn, log.declaration)
    schema, version = await frame()
    everything = await by_entries(reader(schema, version))
    typed = TypedRows(RecordDecoder(log.declaration))
    spans = [span for one in await plan_of_entries(reader(schema, version)) for span in one.spans if span.is_cold]
    bounds: list[bool] = []
    kept: dict[int, list[int]] = {}
    for span in spans:
        file = present(present(span.cold, "it is cold").file, "it has a file")
        (data,) = await mover.files.read(file.url, [(0, file.bytes)])
        footer = Footer.parse(data, file.bytes, file.url)
        (leaf,) = footer.leaves(["item"])
        bounds += [
            footer.parquet.row_group(at).column(leaf).statistics.has_min_max for at in range(len(footer.row_groups))
        ]
        for at, (wanted, _) in enumerate(FILTERS_OF_ITEMS):
            if row_group_spans(footer, span, WantedColumns((), typed, [wanted])):
                kept.setdefault(at, []).append(span.lssn)
    assert bounds == [True, True, False, False, False, False]
    for at, (wanted, holds) in enumerate(FILTERS_OF_ITEMS):
        needed = {row["_log"]["segment"] for row in everything if safe(holds, row)} - {len(groups) + 1}  # type: ignore[index]
        assert needed <= set(kept.get(at, [])), wanted
        # Where bounds are missing nothing is left out; where they are there, what they exclude is.
        assert {3, 4, 5, 6} <= set(kept[at]) or isinstance(wanted, IsNull), wanted
        found = await by_columns(reader(schema, version, [wanted]))
        assert [row for row in found if safe(holds, row)] == [row for row in everything if safe(holds, row)], wanted
    assert kept == {0: [2, 3, 4, 5, 6], 1: [3, 4, 5, 6], 2: [3, 4, 5, 6], 3: [1, 2, 3, 4, 5, 6], 4: [6]}


MAX_BOUND_BYTES = 4_096
FILTERS_OF_ITEMS: list[tuple[Filter, Callable[[Row], bool]]] = [
    (EqualTo(("item",), "z" * 4_096), lambda row: row["item"] == "z" * 4_096),
    (GreaterThan(("item",), "z" * 4_096), lambda row: row["item"] > "z" * 4_096),
    (LessThan(("item",), "b"), lambda row: row["item"] < "b"),
    (LessThanOrEqual(("item",), "c"), lambda row: row["item"] <= "c"),
    (IsNull(("item",)), lambda row: row["item"] is None),
]


async def test_a_filter_on_rows_of_records_finds_those_of_records_that_are_decoded_anew(
    driver_world: DriverWorld, mover: HandMover
) -> None:
    """When the file was written they were one row, an error; by the columns of today they are four."""
    log = TypedLog(driver_world.namespace, LOG)
    await log.declare(pa.schema([pa.field("id", pa.int64()), pa.field("weight", pa.int32())]), RecordFormat.ARROW)
    before = log.declaration
    await log.change(WidenColumn(("weight",), LONG))
    heavy = pa.RecordBatch.from_pylist(
        [{"id": number, "weight": 2**40 + number} for number in range(4)], schema=arrow_schema(log.declaration.current)
    )
    (payload,) = RecordEncoder(log.declaration).encode(heavy).payloads.to_pylist()
    await log.write_bytes([bytes(payload)], [5])
    await log.write([{"id": 9, "weight": 9}], first_id=20)
    await mover.move(LOG, 1, 1, before)
    schema, version = await frame()
    everything = await by_entries(reader(schema, version))
    assert [row["_log"]["row"] for row in everything] == [0, 1, 2, 3, 0]  # type: ignore[index]
    for wanted, holds in (
        (EqualTo(("_log", "row"), 3), lambda row: row["_log"]["row"] == 3),
        (GreaterThan(("_log", "row"), 0), lambda row: row["_log"]["row"] > 0),
    ):
        read = reader(schema, version, [wanted])
        found = await rows(read, await read._plan())
        assert [row for row in found if holds(row)] == [row for row in everything if holds(row)] != []


async def test_a_misfit_of_a_strict_log_is_found_whatever_is_asked(driver_world: DriverWorld, mover: HandMover) -> None:
    log = TypedLog(driver_world.namespace, LOG)
    await log.declare(COLUMNS, timestamp="at", strict=True)
    await log.write([order(number) for number in range(60)])
    await log.write_bytes([b"bad"], [txid(60)])
    await log.write([order(number) for number in range(61, 120)])
    await mover.move(LOG, 1, 2, log.declaration)
    schema, version = await frame()
    for wanted in (schema, StructType([schema["item"]]), StructType()):
        with pytest.raises(RecordMisfitError) as by_record:
            await by_entries(reader(wanted, version))
        with pytest.raises(RecordMisfitError) as by_column:
            await by_columns(reader(wanted, version, [EqualTo(("id",), 3)]))
        assert str(by_column.value) == str(by_record.value)


# ---------------------------------------------------------------------- files whose columns do not give everything


@pytest.mark.parametrize("format_", list(RecordFormat))
async def test_records_that_were_erased_are_those_that_entries_give(
    driver_world: DriverWorld, mover: HandMover, format_: RecordFormat
) -> None:
    made = RandomLog(driver_world, format_, 3)
    await made.log.declare(COLUMNS, format_, timestamp="at")
    await made.segment(30)
    await made.segment(9)
    await made.segment(2)
    unit = await mover.move(LOG, 1, 2, made.log.declaration)
    await mover.cold.replace_file(LOG, unit, await erased(mover, unit.value, made.log.declaration), attempt="e" * 32)
    await made.log.change(AddColumn(("note",), STRING, default="none"))
    schema, version = await frame()
    found = await by_columns(reader(schema, version))
    assert found == await by_entries(reader(schema, version))
    assert len(found) > 30
    assert await groups_planned(reader(SCHEMA)) == 0
    positions = StructType([SCHEMA["segment"], SCHEMA["slot"]])
    assert await by_columns(reader(positions)) == await by_entries(reader(positions))


async def erased(mover: HandMover, unit: ColdUnit, declaration: Declaration) -> ColdFile:
    """Write a unit's file anew, without each third record's bytes."""
    file = unit.file
    assert file is not None
    (data,) = await mover.files.read(file.url, [(0, file.bytes)])
    footer = Footer.parse(data, file.bytes, file.url)
    parts: list[bytes] = []
    writer = ColdFileWriter(parts.append, footer.identity, declaration, row_group_bytes=1_500)
    for one in footer.segments:
        records = [decode_records(footer, at, {(0, file.bytes): data}) for at in range(len(footer.row_groups))]
        # A unit keeps its number of rows: records that hold several stay.
        single = np.flatnonzero(one.entries.rows == one.entries.records)
        chosen = [np.isin(some.entry, single) & (some.entry % 3 != 1) for some in records]
        writer.copy_segment(footer, one.lssn, [some.erased(mask) for some, mask in zip(records, chosen, strict=True)])
    written = writer.finish()
    url = file.url.replace(unit.attempt, "e" * 32)
    await mover.put(url, b"".join(parts))
    return file_of(written, url)


async def test_records_are_read_where_columns_stand_for_their_bytes(
    driver_world: DriverWorld, mover: HandMover
) -> None:
    log = TypedLog(driver_world.namespace, LOG)
    await log.declare(COLUMNS, timestamp="at")
    await log.write([order(number) for number in range(30)])
    await log.write([order(number) for number in range(30, 40)])
    raw = reader(SCHEMA, given={"columns": "raw"})
    hot = await by_entries(raw)
    await mover.move(LOG, 1, 1, log.declaration)
    assert await groups_planned(raw) == 0
    assert await rows(raw, await raw._plan()) == hot
    both = await look_up(SourceQuery.of(options(log=LOG, columns="both")))
    read_both = reader(both, SchemaVersion.of(both), given={"columns": "both"})
    assert await groups_planned(read_both) == 0
    assert [row["value"] for row in await rows(read_both, await read_both._plan())] == [row["value"] for row in hot]
    # Another declaration has other fields of these ids.
    await log.withdraw()
    await log.declare(COLUMNS, timestamp="at")
    schema, version = await frame()
    assert await groups_planned(reader(schema, version)) == 0
    assert [row["id"] for row in await by_entries(reader(schema, version))] == list(range(40))


async def test_a_file_that_went_after_the_plan_was_made_is_told_as_data_loss(
    driver_world: DriverWorld, mover: HandMover
) -> None:
    log = TypedLog(driver_world.namespace, LOG)
    await log.declare(COLUMNS, timestamp="at")
    await log.write([order(number) for number in range(30)])
    await log.write([order(number) for number in range(30, 34)])
    await log.write([order(34)])
    unit = await mover.move(LOG, 1, 1, log.declaration)
    await mover.move(LOG, 2, 2, log.declaration)
    schema, version = await frame()
    whole = reader(schema, version)
    plan = await whole._plan()
    await mover.delete_cold(LOG, unit)
    with pytest.raises(TruncatedDataLossError, match="The cold file of segment 1 is not there any more"):
        await rows(whole, plan)


async def test_partitions_are_cut_by_the_bytes_of_the_columns_that_are_read(
    driver_world: DriverWorld, mover: HandMover
) -> None:
    log = TypedLog(driver_world.namespace, LOG)
    await log.declare(pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.string())]))
    noise = random.Random(1)
    await log.write([{"id": number, "text": noise.randbytes(500).hex()} for number in range(64)])
    await log.write([{"id": 64, "text": ""}])
    await mover.move(LOG, 1, 1, log.declaration)
    schema, version = await frame()
    limit = {"maxBytesPerPartition": 8_000}
    narrow = await reader(StructType([schema["id"]]), version, given=limit)._plan()
    wide = await reader(StructType([schema["text"]]), version, given=limit)._plan()
    spans = [span for one in narrow for span in one.spans if span.cold_rows is not None]
    assert len(spans) > 8
    assert [span.bytes for span in spans] == [
        max(8 * span.cold_rows.count, span.bytes) for span in spans if span.cold_rows
    ]
    assert len(narrow) == 1
    assert len(wide) > 8


async def test_raw_frames_read_columns(driver_world: DriverWorld, mover: HandMover) -> None:
    await driver_world.create(LOG)
    for first in (1, 100, 200):
        await driver_world.write(LOG, range(first, first + 99))
    raw = reader(SCHEMA)
    hot = await by_entries(raw)
    await mover.move(LOG, 1, 2)
    assert await by_columns(raw) == hot


async def test_a_plan_that_fails_leaves_nothing_running(
    driver_world: DriverWorld, mover: HandMover, monkeypatch: pytest.MonkeyPatch
) -> None:
    await driver_world.create("flights")
    for part in range(3):
        await driver_world.write("flights", range(part * 10, part * 10 + 10))
    for lssn in (1, 2):
        await mover.move("flights", lssn, lssn)
    driver = await driver_world.driver(log="flights")
    view = (await driver.views())["flights"]
    spans = await view.spans(view.earliest(), await view.latest())
    waits = asyncio.Event()

    async def footer(reader: ColdFileReader) -> Footer:
        if "000000000000000001-" in reader.file.url:
            await waits.wait()
            raise DamagedColdFileError("it is damaged", url=reader.file.url)
        waits.set()
        await asyncio.Event().wait()  # the store is far away
        raise AssertionError("unreachable")

    monkeypatch.setattr(ColdFileReader, "footer", footer)
    planner = RowGroupPlanner(WantedColumns(("value",)), 60)
    before = asyncio.all_tasks()
    with pytest.raises(DamagedColdFileError):
        await planner.spans(spans)
    assert asyncio.all_tasks() == before
    await planner.close()
