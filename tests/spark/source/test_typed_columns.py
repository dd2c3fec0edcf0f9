"""Typed frames without Spark: which columns a frame has, what a plan asks of the log, and what tasks yield."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import json
import logging
import pickle
from collections.abc import Sequence
from functools import partial

import pyarrow as pa
import pytest
from helpers.spark.memory_world import URI, DriverWorld, answer_request
from helpers.spark.typed_logs import TypedLog
from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType

from dlspark.core.namespace import AsyncNamespace
from dlspark.spark import connection
from dlspark.spark.catalog.tables import SCAN
from dlspark.spark.datasource import DistributedLogDataSource
from dlspark.spark.errors import OptionError, SchemaError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.schema_version import METADATA, SchemaVersion
from dlspark.spark.source.filters import Bounds
from dlspark.spark.source.frame_columns import FrameColumns
from dlspark.spark.source.kept_plan import KeptPartition, look
from dlspark.spark.source.loading import look_up
from dlspark.spark.source.log_spans import Take
from dlspark.spark.source.partition_reader import LogPartition
from dlspark.spark.source.planning import SegmentSpan
from dlspark.spark.source.readers import BatchReader, batch_reader
from dlspark.spark.source.schema import SCHEMA
from dlspark.spark.source.selection import SourceQuery
from dlspark.spark.source.typed_records import cut_out
from dlspark.spark.typed_columns import LOG_TYPE
from dlspark.tables.codecs import RecordEncoder
from dlspark.tables.declaration import RecordFormat, SchemaChangedError
from dlspark.tables.errors import RecordMisfitError
from dlspark.tables.evolution import AddColumn, DropColumn
from dlspark.tables.types import STRING, InvalidSchemaError
from metadata.foundation.errors import MetadataUnavailableError

ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("item", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("tags", pa.list_(pa.struct([("key", pa.string()), ("weight", pa.int32())]))),
    ]
)
NOON = dt.datetime(2026, 11, 1, 12, tzinfo=dt.timezone.utc)
NAMES_OF_RECORDS = pa.schema(
    [
        ("log", pa.string()),
        ("segment", pa.int64()),
        ("entry", pa.int64()),
        ("slot", pa.int64()),
        ("sequence_id", pa.int64()),
        ("transaction_id", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("value", pa.binary()),
    ]
)
"""A log's own columns that are called as those of records are, and are of their types."""


@pytest.fixture(autouse=True)
def in_memory(driver_world: DriverWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have readers plan in the world of the test."""

    async def open_(uri: str, settings: object = None) -> AsyncNamespace:
        return await driver_world.connect(uri)

    monkeypatch.setattr(AsyncNamespace, "open", open_)


def options(**raw: object) -> Options:
    return Options({"uri": URI, **{name: str(value) for name, value in raw.items()}}, Scope.SOURCE_BATCH)


def query(**raw: object) -> SourceQuery:
    return SourceQuery.of(options(**raw))


def order(number: int, **more: object) -> dict[str, object]:
    at = NOON + dt.timedelta(seconds=number)
    tags = [{"key": f"k{number}", "weight": number}, {"key": None, "weight": None}]
    return {"id": number, "item": f"item {number}", "at": at, "tags": tags, **more}


async def orders(world: DriverWorld, count: int = 4, format_: RecordFormat = RecordFormat.JSON) -> TypedLog:
    log = TypedLog(world.namespace, "orders")
    await log.declare(ORDERS, format_, timestamp="at")
    await log.write([order(number) for number in range(count)])
    return log


async def run(reader: object, partitions: Sequence[object]) -> list[dict[str, object]]:
    """Return the rows of a plan, each partition read by a task of its own."""
    copy: BatchReader = pickle.loads(pickle.dumps(reader))

    def tasks() -> list[dict[str, object]]:
        return [
            row
            for one in partitions
            for batch in copy.read(pickle.loads(pickle.dumps(one)))
            for row in batch.to_pylist()
        ]

    return await asyncio.get_running_loop().run_in_executor(None, tasks)


async def rows(
    schema: StructType, *, hints: Sequence[Filter] = (), jar: bool = False, **raw: object
) -> list[dict[str, object]]:
    """Return what a batch over a schema reads."""
    version = SchemaVersion.of(schema) if jar else None
    reader = batch_reader(options(**raw), schema, seen={} if jar else None, version=version, hints=hints)
    assert isinstance(reader, BatchReader)
    return await run(reader, await reader._plan())


async def test_a_frame_has_the_columns_that_its_log_declares(driver_world: DriverWorld) -> None:
    log = await orders(driver_world)
    columns = await look_up(query(log="orders"))
    assert columns.names == ["id", "item", "at", "tags", "_log", "_error"]
    version = SchemaVersion.of(columns)
    assert version is not None
    assert [one.metadata[METADATA] for one in columns] == [version.to_json()] * 6
    assert all(one.nullable for one in columns), "a record may not fit"
    await log.write_bytes([b"not json"], [2_000_000_000_000])
    found = await rows(columns, log="orders")
    assert [row["id"] for row in found] == [0, 1, 2, 3, None]
    assert found[1]["tags"] == order(1)["tags"]
    assert found[1]["at"] == order(1)["at"]
    place = found[1]["_log"]
    assert isinstance(place, dict)
    assert (place["log"], place["segment"], place["entry"], place["slot"], place["row"]) == ("orders", 1, 0, 1, 0)
    assert (place["sequence_id"], place["timestamp"], place["value"]) == (1, order(1)["at"], None)
    assert found[4]["_error"]
    assert found[4]["_log"]["value"] == b"not json"  # type: ignore[index]


@pytest.mark.parametrize("format_", list(RecordFormat))
@pytest.mark.parametrize("wanted", [["item"], ["_log"], ["_error", "id"], [], ["tags", "_log", "at"]])
async def test_batches_have_exactly_the_columns_that_spark_asks_for(
    driver_world: DriverWorld, format_: RecordFormat, wanted: list[str]
) -> None:
    await orders(driver_world, 5, format_)
    columns = await look_up(query(log="orders"))
    schema = StructType([columns[name] for name in wanted])
    version = SchemaVersion.of(columns)
    reader = batch_reader(options(log="orders"), schema, seen={}, version=version)
    assert isinstance(reader, BatchReader)
    (partition,) = await reader._plan()
    batches = await asyncio.get_running_loop().run_in_executor(None, lambda: list(reader.read(partition)))
    assert all(batch.schema.equals(to_arrow_schema(schema, timezone="UTC")) for batch in batches)
    assert sum(batch.num_rows for batch in batches) == 5


async def test_every_type_of_a_column_is_as_spark_takes_it(driver_world: DriverWorld) -> None:
    inner = pa.struct([pa.field("must", pa.int64(), nullable=False), pa.field("may", pa.decimal128(20, 3))])
    log = TypedLog(driver_world.namespace, "types")
    kinds = [pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32()]
    kinds += [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(9, 2), inner]
    kinds += [pa.list_(pa.field("element", inner, nullable=False)), pa.map_(pa.string(), pa.list_(pa.int32()))]
    kinds += [pa.map_(pa.int64(), pa.field("value", inner, nullable=False))]
    fields = [pa.field(f"c{at}", kind, nullable=at % 2 == 0) for at, kind in enumerate(kinds)]
    await log.declare(pa.schema(fields))
    row = {"must": 1, "may": decimal.Decimal("1.500")}
    values: list[object] = [True, 1, 2, 0.5, 0.25, "s", b"b", dt.date(2026, 1, 2), NOON.replace(tzinfo=None), NOON]
    values += [decimal.Decimal("3.25"), row, [row], [("k", [1, None])], [(7, row)]]
    made = {one.name: value for one, value in zip(fields, values, strict=True)}
    encoded = RecordEncoder(log.declaration).encode(pa.RecordBatch.from_pylist([made], schema=pa.schema(fields)))
    await log.write_bytes(encoded.payloads.to_pylist(), [1])
    columns = await look_up(query(log="types"))
    reader = batch_reader(options(log="types"), columns)
    assert isinstance(reader, BatchReader)
    (partition,) = await reader._plan()
    (batch,) = await asyncio.get_running_loop().run_in_executor(None, lambda: list(reader.read(partition)))
    assert batch.schema.equals(to_arrow_schema(columns, timezone="UTC"))
    assert batch.drop_columns(["_log", "_error"]).to_pylist() == [made]


async def test_parts_of_structs_are_cut_out(driver_world: DriverWorld) -> None:
    await orders(driver_world, 3)
    columns = await look_up(query(log="orders"))
    version = columns["id"].metadata
    weight = ArrayType(StructType([StructField("weight", columns["tags"].dataType.elementType["weight"].dataType)]))
    place = StructType([LOG_TYPE["row"], LOG_TYPE["entry"]])
    schema = StructType([StructField("tags", weight, metadata=version), StructField("_log", place, metadata=version)])
    found = await rows(schema, jar=True, log="orders")
    assert found[2] == {"tags": [{"weight": 2}, {"weight": None}], "_log": {"row": 0, "entry": 1}}


def test_what_is_cut_out_of_slices_and_nulls_is_where_it_was() -> None:
    one = pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.string())])
    kind = pa.struct([("s", one), ("l", pa.list_(one)), ("m", pa.map_(pa.string(), one))])
    row = {"s": {"a": 1, "b": "x"}, "l": [{"a": 2, "b": "y"}, None], "m": [("k", {"a": 3, "b": "z"}), ("n", None)]}
    held = [row, None, {"s": None, "l": None, "m": None}, {"s": {"a": 4, "b": None}, "l": [], "m": []}, row]
    part = pa.struct([("b", pa.string())])
    wanted = pa.struct([("m", pa.map_(pa.string(), part)), ("l", pa.list_(part)), ("s", part)])
    for array in (pa.array(held, kind), pa.array([row, *held, row], kind).slice(1, 5)):
        found = cut_out(array, wanted)
        found.validate(full=True)
        cut = {"m": [("k", {"b": "z"}), ("n", None)], "l": [{"b": "y"}, None], "s": {"b": "x"}}
        null, empty = {"m": None, "l": None, "s": None}, {"m": [], "l": [], "s": {"b": None}}
        assert found.to_pylist() == [cut, None, null, empty, cut]


# ---------------------------------------------------------------------- which columns


async def test_only_one_log_by_its_name_is_asked(driver_world: DriverWorld) -> None:
    await orders(driver_world)
    await driver_world.create("plain")
    assert (await look_up(query(assign='["orders"]'))).names[0] == "id"
    for raw in ({"subscribe": "orders,plain"}, {"subscribePattern": "order.*"}, {"log": "plain"}, {"log": "missing"}):
        assert await look_up(query(**raw)) == SCHEMA
    assert await look_up(query(log="orders", columns="BOTH")) != SCHEMA
    for choice in ("typed", "both"):
        with pytest.raises(OptionError, match=f"columns={choice} asks for the columns that the log declares"):
            await look_up(query(log="plain", columns=choice))
        for raw in ({"subscribe": "orders,plain"}, {"subscribePattern": "orders"}):
            with pytest.raises(OptionError, match="may read several logs"):
                query(columns=choice, **raw)
    with pytest.raises(OptionError, match="columns='all' is not raw, typed or both"):
        options(columns="all")


async def test_records_are_read_as_bytes_if_they_are_asked_for(driver_world: DriverWorld) -> None:
    log = await orders(driver_world, 2)
    found = await rows(SCHEMA, log="orders", columns="raw")
    assert [row["value"] for row in found] == [row["value"] for row in await rows(SCHEMA, log="orders")]
    both = await look_up(query(log="orders", columns="both"))
    typed = await rows(both, log="orders", columns="both")
    assert [row["value"] for row in typed] == [row["value"] for row in found]
    assert [row["id"] for row in typed] == [0, 1]
    await log.change(AddColumn(("value",), STRING))
    with pytest.raises(InvalidSchemaError, match="declares a column value itself"):
        await look_up(query(log="orders", columns="both"))
    assert len(await rows(both, log="orders", columns="both")) == 2, "the frame keeps its version"


async def test_columns_that_a_user_gives_are_the_logs_if_records_have_none_of_them(driver_world: DriverWorld) -> None:
    await orders(driver_world, 2)
    given = StructType([StructField("item", StringType()), StructField("id", LongType())])
    assert await rows(given, log="orders") == [{"item": "item 0", "id": 0}, {"item": "item 1", "id": 1}]
    pinned = await look_up(query(log="orders"), given)
    assert SchemaVersion.of(pinned) is not None
    assert pinned.names == ["item", "id"]
    of_records = StructType([StructField("value", SCHEMA["value"].dataType)])
    assert len((await rows(of_records, log="orders"))[0]) == 1, "they are columns of records, and of no other"
    with pytest.raises(SchemaError, match="Column value is not one of those that the log declares"):
        await rows(of_records, log="orders", columns="typed")
    for wrong, why in (
        (StructField("item", LongType()), "Column item is string, and not bigint"),
        (StructField("price", LongType()), "Column price is not one of those that the log declares"),
        (StructField("id", LongType(), nullable=False), "Column id was declared NOT NULL, and is null where"),
        (StructField("tags", MapType(StringType(), StringType())), "Column tags is array<struct<.*>>, and not map"),
    ):
        with pytest.raises(SchemaError, match=why):
            await rows(StructType([wrong]), log="orders")
    await driver_world.create("plain")
    with pytest.raises(SchemaError, match="Column item string is not one of this source's"):
        await rows(given, log="plain")
    with pytest.raises(OptionError, match="declares none"):
        await rows(StructType([StructField("value", SCHEMA["value"].dataType)]), log="plain", columns="typed")


async def test_names_that_columns_of_records_have_too_are_not_guessed(driver_world: DriverWorld) -> None:
    log = TypedLog(driver_world.namespace, "named")
    await log.declare(NAMES_OF_RECORDS)
    row = {"log": "mine", "segment": 77, "entry": 78, "slot": 79, "sequence_id": 80, "transaction_id": 81}
    await log.write([{**row, "timestamp": NOON, "value": b"own"}], first_id=5)
    columns = await look_up(query(log="named"))
    for jar in (False, True):
        (found,) = await rows(columns, log="named", jar=jar)
        assert {name: found[name] for name in NAMES_OF_RECORDS.names} == {**row, "timestamp": NOON, "value": b"own"}
        assert found["_log"]["transaction_id"] == 5  # type: ignore[index]
    some = StructType([StructField("log", StringType()), StructField("segment", LongType())])
    with pytest.raises(SchemaError, match="Say which are meant: columns=raw, or columns=typed"):
        await rows(some, log="named")
    assert await rows(some, log="named", columns="typed") == [{"log": "mine", "segment": 77}]
    assert await rows(some, log="named", columns="raw") == [{"log": "named", "segment": 1}]


# ---------------------------------------------------------------------- versions


async def test_a_frame_keeps_its_version_and_says_that_there_is_a_newer_one(
    driver_world: DriverWorld, caplog: pytest.LogCaptureFixture
) -> None:
    log = await orders(driver_world, 2)
    columns = await look_up(query(log="orders"))
    await log.change(AddColumn(("note",), STRING))
    await log.write([order(5, note="new")])
    assert [row["id"] for row in await rows(columns, log="orders")] == [0, 1, 5]
    assert "declares version 1 of its schema now, and the frame has the columns of version 0" in caplog.text
    assert [row["note"] for row in await rows(await look_up(query(log="orders")), log="orders")] == [None, None, "new"]
    driver = await driver_world.driver(log="orders")
    frame = FrameColumns.of(driver.query, columns)
    caplog.clear()
    for _ in range(3):
        assert (await driver.declared(frame)).newer  # type: ignore[union-attr]
    assert len(caplog.records) == 1


async def test_a_change_that_newer_records_do_not_fit_ends_the_plan(driver_world: DriverWorld) -> None:
    log = await orders(driver_world, 2)
    columns = await look_up(query(log="orders"))
    await log.change(DropColumn(("item",)))
    with pytest.raises(SchemaChangedError, match="Column item was dropped in version 1"):
        await rows(columns, log="orders")
    assert len(await rows(await look_up(query(log="orders")), log="orders")) == 2
    await log.withdraw()
    with pytest.raises(SchemaChangedError, match="the log declares nothing of its records now"):
        await rows(columns, log="orders")
    await log.declare(ORDERS, timestamp="at")
    with pytest.raises(SchemaChangedError, match="the log has another declaration now"):
        await rows(columns, log="orders")


async def test_a_frame_of_records_stays_one_when_its_log_declares_columns(driver_world: DriverWorld) -> None:
    await driver_world.create("orders")
    before = await look_up(query(log="orders"))
    await orders(driver_world, 2)
    assert [row["log"] for row in await rows(before, log="orders")] == ["orders", "orders"]


async def test_a_strict_log_ends_the_read_at_the_record_that_does_not_fit(driver_world: DriverWorld) -> None:
    log = TypedLog(driver_world.namespace, "strict")
    await log.declare(ORDERS, timestamp="at", strict=True)
    await log.write([order(1)])
    await log.write_bytes([b"{}"], [2_000_000_000_000])
    columns = await look_up(query(log="strict"))
    for wanted in (columns, StructType()):
        reader = batch_reader(options(log="strict"), wanted, seen={}, version=SchemaVersion.of(columns))
        assert isinstance(reader, BatchReader)
        plan = await reader._plan()
        with pytest.raises(RecordMisfitError, match="A record does not fit"):
            await run(reader, plan)


# ---------------------------------------------------------------------- what is pushed down


async def planned(columns: StructType, hints: Sequence[Filter], take: Take | None = None, **raw: object) -> list[int]:
    """Return the ids of the records that the plan of a jar's read has."""
    version = SchemaVersion.of(columns)
    reader = batch_reader(options(**raw), columns, seen={}, version=version, hints=hints, take=take, bounds=Bounds())
    assert isinstance(reader, BatchReader)
    plan = await reader._plan()
    ids = [row["_log"]["transaction_id"] for row in await run(reader, plan)]  # type: ignore[index]
    return [(one - int(NOON.timestamp()) * 1000) // 1000 for one in ids]


async def test_a_lower_bound_of_the_timestamp_column_rewinds(driver_world: DriverWorld) -> None:
    log = await orders(driver_world, 6)
    columns = await look_up(query(log="orders"))
    ask = partial(planned, columns, log="orders")
    at = NOON + dt.timedelta(seconds=3)
    between = at + dt.timedelta(microseconds=1)
    for wanted in (EqualTo(("at",), at), GreaterThan(("at",), at), GreaterThanOrEqual(("at",), between)):
        assert await ask([wanted]) == [3, 4, 5], "Spark looks at the rows again"
    assert await ask([In(("at",), (NOON + dt.timedelta(seconds=5), at))]) == [3, 4, 5]
    assert await ask([EqualNullSafe(("at",), at)]) == [3, 4, 5]
    assert await ask([GreaterThan(("at",), at), GreaterThan(("at",), NOON + dt.timedelta(seconds=5))]) == [5]
    everything = [0, 1, 2, 3, 4, 5]
    for wanted in (
        LessThan(("at",), at),
        EqualNullSafe(("at",), None),
        In(("at",), (at, None)),
        GreaterThan(("_log", "at"), at),
        GreaterThan(("at",), 7),
        GreaterThan(("id",), 3),
        GreaterThan(("transaction_id",), 10**15),
        EqualTo(("segment",), 9),
        GreaterThanOrEqual(("at",), NOON - dt.timedelta(days=40_000)),
    ):
        assert await ask([wanted]) == everything
    await log.write([order(2)])  # a row that comes late: its record has the highest id so far
    assert await ask([EqualTo(("at",), NOON + dt.timedelta(seconds=2))]) == [2, 3, 4, 5, 5]


@pytest.mark.parametrize("format_", list(RecordFormat))
async def test_a_limit_takes_records_unless_they_may_hold_none(
    driver_world: DriverWorld, format_: RecordFormat
) -> None:
    await orders(driver_world, 6, format_)
    columns = await look_up(query(log="orders"))
    found = await planned(columns, [], Take(2), log="orders")
    assert len(found) == (6 if format_ is RecordFormat.ARROW else 2)


# ---------------------------------------------------------------------- tasks


async def test_batches_have_about_the_size_that_spark_takes(
    driver_world: DriverWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dlspark.spark.source import typed_records

    await orders(driver_world, 200, RecordFormat.ARROW)
    monkeypatch.setattr(typed_records, "TARGET_BATCH_BYTES", 2_000)
    columns = await look_up(query(log="orders"))
    reader = batch_reader(options(log="orders"), columns)
    assert isinstance(reader, BatchReader)
    plan = await reader._plan()
    batches = await asyncio.get_running_loop().run_in_executor(None, lambda: [b for p in plan for b in reader.read(p)])
    assert sum(len(one) for one in batches) == 200
    assert max(one.nbytes for one in batches) < 3_000


async def test_a_task_says_how_many_records_do_not_fit(
    driver_world: DriverWorld, caplog: pytest.LogCaptureFixture
) -> None:
    log = await orders(driver_world, 2)
    await log.write_bytes([b"[]", b"{}"], [2_000_000_000_000] * 2)
    columns = await look_up(query(log="orders"))
    with caplog.at_level(logging.WARNING):
        await rows(StructType([columns["item"]]), jar=True, log="orders")
    (said,) = [one.getMessage() for one in caplog.records if "do not fit" in one.getMessage()]
    assert said.startswith("2 records of a task do not fit the log's schema, the first is of orders, segment 2: ")


async def test_a_plan_carries_what_a_task_needs_and_records_none_of_it(driver_world: DriverWorld) -> None:
    await orders(driver_world, 2)
    typed = batch_reader(options(log="orders"), await look_up(query(log="orders")))
    plain = batch_reader(options(log="orders"), SCHEMA)
    assert isinstance(typed, BatchReader)
    assert isinstance(plain, BatchReader)
    (one,), (other,) = await typed._plan(), await plain._plan()
    assert isinstance(one, LogPartition)
    assert other.declared is None
    assert one.declared is not None
    assert len(one.declared.data) < 600


def test_nothing_is_looked_up_where_nothing_can_be_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(uri: str, settings: object = None) -> AsyncNamespace:
        raise AssertionError("it was looked up")

    monkeypatch.setattr(AsyncNamespace, "open", never)
    for raw in (
        {"columns": "raw", "log": "orders"},
        {"subscribe": "a,b"},
        {"subscribePattern": "a"},
        {},
        {"log": "/a"},
    ):
        assert DistributedLogDataSource({"uri": URI, **raw}).schema() == SCHEMA
    by_default = type("WithDefault", (DistributedLogDataSource,), {"session_conf": {"columns": "raw"}})
    assert by_default({"uri": URI, "log": "orders"}).schema() == SCHEMA
    with pytest.raises(OptionError, match="may read several logs"):
        DistributedLogDataSource({"uri": URI, "subscribe": "a,b", "columns": "typed"}).schema()
    monkeypatch.setattr(connection, "default_uri", lambda: None)
    assert DistributedLogDataSource({"log": "orders"}).schema() == SCHEMA, "the reader says what is missing"


async def test_a_frame_whose_namespace_cannot_be_reached_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreachable(uri: str, settings: object = None) -> AsyncNamespace:
        raise MetadataUnavailableError("no server answers")

    monkeypatch.setattr(AsyncNamespace, "open", unreachable)
    with pytest.raises(MetadataUnavailableError, match=f"ZooKeeper of {URI} cannot be reached"):
        await look_up(query(log="orders"))


# ---------------------------------------------------------------------- plans that Spark keeps, and what metadata tells


async def test_a_plan_that_spark_keeps_is_brought_up_to_date_by_what_is_declared_then(
    driver_world: DriverWorld,
) -> None:
    log = await orders(driver_world, 2)
    columns = await look_up(query(log="orders"))
    reader = batch_reader(options(log="orders"), columns)
    assert isinstance(reader, BatchReader)
    (kept,) = await reader._plan()
    assert isinstance(kept, KeptPartition)
    await log.change(AddColumn(("note",), STRING))
    await log.write([order(7, note="n")])
    later = await look(kept, "", 1, driver_world.connect)
    assert later is not None
    assert [row["id"] for row in await run(reader, [later])] == [7]
    await log.change(DropColumn(("item",)))
    with pytest.raises(SchemaChangedError, match="Column item was dropped in version 2"):
        await look(kept, "", 2, driver_world.connect)


async def test_reading_begins_and_ends_where_options_say(driver_world: DriverWorld) -> None:
    await orders(driver_world, 6)
    columns = await look_up(query(log="orders"))
    at = (NOON + dt.timedelta(seconds=2)).isoformat()
    found = await rows(columns, log="orders", startingTimestamp=at, endingOffsets='{"orders": "1:2:1"}')
    assert [row["id"] for row in found] == [2, 3, 4]
    assert [span.log for one in await _stream_plan(driver_world, at) for span in one] == ["orders"]


async def _stream_plan(driver_world: DriverWorld, at: str) -> Sequence[Sequence[SegmentSpan]]:
    driver = await driver_world.driver(log="orders", startingTimestamp=at)
    return await driver.plan(await driver.resolve(driver.query.start), await driver.latest())


@pytest.mark.parametrize(("format_", "strict"), [*((one, False) for one in RecordFormat), (RecordFormat.JSON, True)])
async def test_metadata_tells_the_number_of_rows_where_each_record_is_one(
    driver_world: DriverWorld, format_: RecordFormat, strict: bool
) -> None:
    log = TypedLog(driver_world.namespace, "counted")
    await log.declare(NAMES_OF_RECORDS, format_, strict=strict)
    await log.write([{"segment": number} for number in range(5)], first_id=1)
    version = SchemaVersion.of(await look_up(query(log="counted")))
    assert version is not None

    async def summed(*functions: dict[str, str]) -> object:
        given = {"uri": URI, "log": "counted", SCAN: json.dumps({"declared": version.to_json()})}
        found = await answer_request(driver_world, "summarise", options=given, functions=list(functions))
        result = found["result"]
        assert isinstance(result, dict)
        return result["values"]

    count = {"function": "count"}
    exact = format_ is not RecordFormat.ARROW and not strict
    assert await summed(count) == ([5] if exact else None)
    for other in ("count", "min", "max"):
        for column in ("segment", "transaction_id", "timestamp", "log"):
            assert await summed(count, {"function": other, "column": column}) is None
    given = {"uri": URI, "log": "counted", SCAN: json.dumps({"declared": version.to_json()})}
    about = await answer_request(driver_world, "statistics", options=given)
    assert about["result"]["rows"] == (5 if exact else None)  # type: ignore[index]


async def test_the_columns_of_a_user_are_answered_with_their_version(driver_world: DriverWorld) -> None:
    await orders(driver_world, 1)
    given = StructType([StructField("item", StringType())])

    async def asked(schema: StructType, **raw: str) -> object:
        words = {"schema": schema.json(), "metadata": "", "options": {"uri": URI, **raw}}
        found = await answer_request(driver_world, "columns", **words)
        return found.get("result") or found["error"]["text"]  # type: ignore[index]

    typed = StructType.fromJson(json.loads(str(await asked(given, log="orders"))))
    assert SchemaVersion.of(typed) is not None
    raw = StructType([SCHEMA["value"]])
    assert StructType.fromJson(json.loads(str(await asked(raw, log="orders")))) == raw
    assert "item string is not one of this source's" in str(await asked(given, log="orders", columns="raw"))
    assert "item string is not one of this source's" in str(await asked(given, subscribePattern="orders"))
