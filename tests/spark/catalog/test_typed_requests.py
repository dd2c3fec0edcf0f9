"""Tables with columns, without Spark: what CREATE TABLE, ALTER TABLE and load say of a log's schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.spark.memory_world import URI, DriverWorld, answer_request
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from dlspark.spark.catalog.column_defaults import sql_default, with_default
from dlspark.spark.catalog.creation import is_of_bytes
from dlspark.spark.catalog.tables import HANDLE, TableHandle, unpacked
from dlspark.spark.errors import OptionError, SchemaError
from dlspark.spark.options.registry import Scope
from dlspark.spark.typed_columns import type_of_spark
from dlspark.tables.declaration import Declaration
from dlspark.tables.types import Field, InvalidSchemaError

ORDERS = StructType(
    [
        StructField("id", LongType(), False, {"comment": "number of the order"}),
        StructField("item", StringType()),
        StructField("price", DecimalType(9, 2)),
        StructField("at", TimestampType(), False),
    ]
)
OURS = {"format": "json", "timestamp": "at", "strict": "true"}
NONE = {"type": "string", "value": "none", "sql": "'none'"}


async def ask(driver_world: DriverWorld, operation: str, **words: object) -> dict[str, Any]:
    said = await answer_request(driver_world, operation, **words)
    assert "result" in said, said
    found = said["result"]
    assert isinstance(found, dict)
    return found


async def text(driver_world: DriverWorld, operation: str, **words: object) -> str:
    error = (await answer_request(driver_world, operation, **words))["error"]
    assert isinstance(error, dict)
    return str(error.get("text", error["kind"]))


def creation(schema: StructType = ORDERS, *, as_select: bool = False, **properties: str) -> dict[str, object]:
    return {
        "table": ["orders"],
        "schema": schema.json(),
        "as_select": as_select,
        "default_provider": "parquet",
        "properties": properties,
    }


async def create(driver_world: DriverWorld, **properties: str) -> dict[str, Any]:
    return await ask(driver_world, "create", **creation(**properties or OURS), column_defaults={"item": NONE})


async def declared(driver_world: DriverWorld, log: str = "orders") -> Declaration:
    found = await (await driver_world.namespace.open_log(log)).schema()
    assert found is not None
    return found


# ---------------------------------------------------------------------- CREATE TABLE


async def test_a_table_with_columns_is_a_log_that_declares_them(driver_world: DriverWorld) -> None:
    made = await create(driver_world, **OURS, compressionType="lz4")
    found = await declared(driver_world)
    assert str(found.current) == "id long not null, item string, price decimal(9, 2), at timestamptz not null"
    assert [(one.id, one.doc, one.default) for one in found.current.fields] == [
        (1, "number of the order", None),
        (2, None, "none"),
        (3, None, None),
        (4, None, None),
    ]
    assert (found.format.value, found.timestamp_id, found.strict) == ("json", 4, True)
    assert made["properties"] == {
        **OURS, "compressionType": "lz4", "provider": "distributedlog", "location": f"{URI}/orders",
    }  # fmt: skip
    pin = {"dlspark": {"declaration": made["handle"]["declaration"], "version": 0}}
    assert made["typed"] is True
    assert made["columns"][:2] == [
        {
            "name": "id",
            "type": '"long"',
            "comment": "number of the order",
            "required": True,
            "default": None,
            "metadata": pin,
        },
        {
            "name": "item",
            "type": '"string"',
            "comment": None,
            "required": False,
            "default": {"sql": "'none'", "value": "none"},
            "metadata": pin,
        },
    ]
    assert [(one["name"], one["metadata"]) for one in made["metadata_columns"]] == [("_log", pin), ("_error", pin)]
    assert await ask(driver_world, "load", table=["orders"]) == made
    assert unpacked({HANDLE: json.dumps(made["handle"])}, Scope.SINK_BATCH)["columns"] == "typed"


@pytest.mark.parametrize(
    ("schema", "properties", "says"),
    [
        (ORDERS, {"format": "xml"}, "Formats are json, avro, arrow"),
        (ORDERS, {"timestamp": "when"}, "There is no column 'when'"),
        (ORDERS, {"timestamp": "price"}, "may be null"),
        (ORDERS, {"strict": "perhaps"}, "Give it true or false"),
        (ORDERS, {"minPartitions": "many"}, "is not a whole number"),
        (ORDERS, {"columns": "typed"}, "the columns that its log declares"),
        (StructType(), {"format": "json"}, "the statement names none"),
        (StructType([StructField("i", DayTimeIntervalType())]), {}, "Column i is interval"),
        (StructType([StructField("s", StringType("UTF8_LCASE"))]), {}, "Column s is string collate UTF8_LCASE"),
        (StructType([StructField("_log", StringType())]), {}, "cannot be named _log"),
        (StructType([StructField("a", LongType()), StructField("A", LongType())]), {}, "have one name"),
    ],
)
async def test_what_no_log_can_declare_is_refused_before_anything_is_done(
    driver_world: DriverWorld, schema: StructType, properties: dict[str, str], says: str
) -> None:
    assert says in await text(driver_world, "create", **creation(schema, **properties))
    assert await driver_world.namespace.logs() == []


async def test_a_default_that_is_no_constant_of_the_columns_type_is_refused(driver_world: DriverWorld) -> None:
    for said, says in (
        ({"sql": "current_timestamp()"}, "A default is one constant"),
        ({"sql": "'x'", "type": "string", "value": "x"}, "The default of column at does not fit"),
        ({"sql": "...", "type": "timestamp", "value": 2**60}, "outside of the years 1 to 9999"),
    ):
        assert says in await text(driver_world, "create", **creation(), column_defaults={"at": said})
    assert await driver_world.namespace.logs() == []


async def test_a_table_that_is_there_is_left_as_it_is(driver_world: DriverWorld) -> None:
    await driver_world.create("orders")
    assert await text(driver_world, "create", **creation()) == "table_exists"
    assert await (await driver_world.namespace.open_log("orders")).schema() is None


def test_columns_of_bytes_are_told_from_a_schema() -> None:
    value, number = StructField("VALUE", StringType()), StructField("segment", LongType())
    for columns in (StructType(), StructType([value, number]), StructType([number])):
        assert is_of_bytes(columns, as_select=False)
    assert is_of_bytes(StructType([value, number]), as_select=True)
    assert not is_of_bytes(StructType([number]), as_select=True)
    for other in (StructField("a", IntegerType()), StructField("segment", IntegerType())):
        assert not is_of_bytes(StructType([value, other]), as_select=False)


async def test_columns_of_bytes_are_a_schema_where_a_format_or_a_default_is_said(driver_world: DriverWorld) -> None:
    value = StructType([StructField("value", StringType())])
    assert (await ask(driver_world, "create", **creation(value)))["typed"] is False
    for name, properties, defaults in (("a", {"format": "avro"}, {}), ("b", {}, {"value": NONE})):
        made = await ask(
            driver_world, "create", **{**creation(value, **properties), "table": [name]}, column_defaults=defaults
        )
        assert made["typed"] is True


async def test_the_column_that_gives_ids_is_not_null_in_a_table_of_a_query(driver_world: DriverWorld) -> None:
    columns = StructType([StructField("n", ByteType()), StructField("At", TimestampType())])
    await ask(driver_world, "create", **creation(columns, as_select=True, timestamp="at"))
    assert str((await declared(driver_world)).current) == "n int, At timestamptz not null"


async def test_a_table_that_a_failed_query_created_goes_with_its_schema(driver_world: DriverWorld) -> None:
    made = await create(driver_world)
    said = await answer_request(driver_world, "abandon", table=["orders"], created=made["created"])
    assert said == {"result": True}
    assert await driver_world.namespace.logs() == []
    await driver_world.create("orders")
    assert await (await driver_world.namespace.open_log("orders")).schema() is None


# ---------------------------------------------------------------------- the table


async def test_a_renamed_table_keeps_its_schema_and_a_dropped_one_leaves_none(driver_world: DriverWorld) -> None:
    made = await create(driver_world)
    assert (await answer_request(driver_world, "rename", table=["orders"], new_table=["a", "b"]))["result"] is True
    moved = await ask(driver_world, "load", table=["a", "b"])
    assert [{**one, "metadata": None} for one in moved["columns"]] == [
        {**one, "metadata": None} for one in made["columns"]
    ]  # by another declaration's id: a query of the old name does not go on in the new one
    assert (await answer_request(driver_world, "drop", table=["a", "b"]))["result"] is True
    again = await ask(driver_world, "create", **{**creation(StructType()), "table": ["a", "b"]})
    assert again["typed"] is False


async def test_an_older_version_of_a_table_has_the_columns_of_now(driver_world: DriverWorld) -> None:
    await create(driver_world, format="json")
    add = {"kind": "add", "path": ["note"], "type": '"string"', "nullable": True}
    await ask(driver_world, "alter", table=["orders"], columns=[add])
    older = await ask(driver_world, "load", table=["orders"], timestamp_us=5_000)
    assert (older["handle"]["end_txid"], older["handle"]["version"], older["writable"]) == (6, 1, False)
    assert [one["name"] for one in older["columns"]] == ["id", "item", "price", "at", "note"]


async def test_a_table_may_show_the_bytes_of_a_log_that_declares_a_schema(driver_world: DriverWorld) -> None:
    await create(driver_world)
    raw = await ask(driver_world, "alter", table=["orders"], set={"columns": "raw"})
    assert (raw["typed"], raw["handle"]["version"], raw["metadata_columns"]) == (False, None, [])
    assert [one["name"] for one in raw["columns"]][-1] == "value"
    assert raw["properties"].keys() == {"columns", "provider", "location"}
    assert unpacked({HANDLE: json.dumps(raw["handle"])}, Scope.SOURCE_BATCH)["columns"] == "raw"
    assert (await ask(driver_world, "alter", table=["orders"], remove=["columns"]))["typed"] is True
    by_catalog = await ask(driver_world, "load", table=["orders"], defaults={"columns": "raw"})
    assert by_catalog["typed"] is False


def test_columns_are_not_chosen_by_a_query_of_a_table() -> None:
    for handle in (TableHandle(URI, "t"), TableHandle(URI, "t").of_version("d", 3)):
        with pytest.raises(OptionError, match="Option columns was not applied"):
            unpacked({HANDLE: json.dumps(handle.to_json()), "Columns": "raw"}, Scope.SOURCE_BATCH)


# ---------------------------------------------------------------------- ALTER TABLE


async def test_all_changes_of_a_statement_make_one_version(driver_world: DriverWorld) -> None:
    await create(driver_world)
    struct = StructType([StructField("street", StringType(), True, {"comment": "and number"})])
    changed = await ask(
        driver_world,
        "alter",
        table=["orders"],
        columns=[
            {"kind": "add", "path": ["note"], "type": '"string"', "nullable": False, "comment": "free text",
             "default": NONE, "position": {"after": "id"}},
            {"kind": "add", "path": ["to"], "type": struct.json(), "nullable": True, "position": {}},
            {"kind": "drop", "path": ["ITEM"], "if_exists": False},
            {"kind": "drop", "path": ["gone", "x"], "if_exists": True},
            {"kind": "rename", "path": ["price"], "name": "cost"},
            {"kind": "type", "path": ["cost"], "type": '"decimal(11,2)"'},
            {"kind": "nullable", "path": ["id"], "nullable": True},
            {"kind": "comment", "path": ["id"], "comment": ""},
            {"kind": "position", "path": ["at"], "position": {"after": "to"}},
            {"kind": "add", "path": ["to", "town"], "type": '"string"', "nullable": True, "position": {}},
        ],
    )  # fmt: skip
    assert [one["name"] for one in changed["columns"]] == ["to", "at", "id", "note", "cost"]
    assert changed["handle"]["version"] == 1
    found = await declared(driver_world)
    assert len(found.schemas) == 2
    assert str(found.current) == (
        "to struct<town: string, street: string>, at timestamptz not null, id long, note string not null, "
        "cost decimal(11, 2)"
    )
    note = found.current.column("note")
    assert note is not None
    assert (note.doc, note.default, note.required) == ("free text", "none", True)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "type", "path": ["id"], "type": '"integer"'}, "int becomes long"),
        ({"kind": "type", "path": ["item"], "type": '"long"'}, "else add another column"),
        ({"kind": "nullable", "path": ["item"], "nullable": False}, "rows without a value may be there"),
        ({"kind": "default", "path": ["item"]}, "A default is given with ADD COLUMN"),
        ({"kind": "drop", "path": ["at"], "if_exists": False}, "gives each record its transaction id"),
        ({"kind": "drop", "path": ["no"], "if_exists": False}, "There is no column no"),
        ({"kind": "rename", "path": ["id"], "name": "AT"}, "Take another name"),
        ({"kind": "add", "path": ["n"], "type": '"long"', "nullable": False}, "Give it a default"),
        ({"kind": "add", "path": ["n"], "type": '"interval year"', "nullable": True}, "no column of a log can be"),
        ({"kind": "add", "path": ["_error"], "type": '"long"', "nullable": True}, "cannot be named _error"),
    ],
)
async def test_a_change_that_cannot_be_says_the_rule_and_changes_nothing(
    driver_world: DriverWorld, change: dict[str, object], says: str
) -> None:
    await create(driver_world)
    before = await declared(driver_world)
    good = {"kind": "add", "path": ["note"], "type": '"string"', "nullable": True}
    said = await text(driver_world, "alter", table=["orders"], columns=[good, change])
    assert says in said
    assert "nothing was changed" in said
    assert await declared(driver_world) == before


async def test_a_log_of_bytes_has_no_columns_to_change(driver_world: DriverWorld) -> None:
    await driver_world.create("orders")
    add = {"kind": "add", "path": ["note"], "type": '"string"', "nullable": True}
    assert "dlspark log schema set" in await text(driver_world, "alter", table=["orders"], columns=[add])
    assert "declares no schema" in await text(driver_world, "alter", table=["orders"], set={"strict": "true"})
    assert await (await driver_world.namespace.open_log("orders")).schema() is None


async def test_strict_can_be_altered_and_what_records_were_written_by_cannot(driver_world: DriverWorld) -> None:
    await create(driver_world)
    changed = await ask(driver_world, "alter", table=["orders"], set={"STRICT": "false"})
    assert (changed["properties"]["strict"], changed["handle"]["version"]) == ("false", 0)
    await ask(driver_world, "alter", table=["orders"], set={"strict": "true", "format": "JSON"})
    assert (await declared(driver_world)).strict is True
    await ask(driver_world, "alter", table=["orders"], remove=["strict"])
    assert (await declared(driver_world)).strict is False
    for words in ({"set": {"format": "avro"}}, {"set": {"timestamp": "id"}}, {"remove": ["timestamp"]}):
        assert "for good" in await text(driver_world, "alter", table=["orders"], **words)
    both = {"strict": "true", "minPartitions": "3"}
    assert "in a statement of its own" in await text(driver_world, "alter", table=["orders"], set=both)
    assert (await declared(driver_world)).strict is False


# ---------------------------------------------------------------------- defaults


@pytest.mark.parametrize(
    ("spark", "constant", "sql", "value"),
    [
        (BooleanType(), {"type": "boolean", "value": True}, "TRUE", True),
        (LongType(), {"type": "integer", "value": -5}, "-5", -5),
        (LongType(), {"type": "long", "value": -(2**63)}, "-9223372036854775808", -(2**63)),
        (DoubleType(), {"type": "integer", "value": 1}, "CAST('1.0' AS DOUBLE)", "1.0"),
        (DoubleType(), {"type": "double", "value": "-Infinity"}, "CAST('-Infinity' AS DOUBLE)", "-Infinity"),
        (FloatType(), {"type": "float", "value": "NaN"}, "CAST('NaN' AS FLOAT)", "NaN"),
        (DecimalType(9, 2), {"type": "decimal(2,1)", "value": "1.5"}, "1.50BD", "1.50"),
        (DecimalType(38, 0), {"type": "decimal(38,0)", "value": "-" + "9" * 38}, f"-{'9' * 38}BD", "-" + "9" * 38),
        (StringType(), {"type": "string", "value": "a'b\\c"}, "'a\\'b\\\\c'", "a'b\\c"),
        (VarcharType(9), {"type": "string", "value": ""}, "''", ""),
        (BinaryType(), {"type": "binary", "value": "/wA="}, "X'FF00'", "/wA="),
        (DateType(), {"type": "date", "value": -1}, "DATE '1969-12-31'", -1),
        (
            TimestampType(),
            {"type": "timestamp", "value": 1_500_000},
            "TIMESTAMP_LTZ '1970-01-01T00:00:01.500000Z'",
            1_500_000,
        ),
        (
            TimestampNTZType(),
            {"type": "timestamp_ntz", "value": -1},
            "TIMESTAMP_NTZ '1969-12-31T23:59:59.999999'",
            -1,
        ),
    ],
)
def test_a_default_comes_back_as_the_constant_that_it_was(
    spark: DataType, constant: dict[str, object], sql: str, value: object
) -> None:
    one = with_default(Field(1, "c", type_of_spark(spark, "c")), constant)
    assert sql_default(one) == {"sql": sql, "value": value}


def test_null_is_no_default_and_nested_columns_have_none_in_sql() -> None:
    plain = Field(1, "c", type_of_spark(LongType(), "c"))
    assert with_default(plain, {"type": "void", "value": None}) == with_default(plain, None) == plain
    for nested in (ArrayType(LongType()), MapType(StringType(), LongType())):
        one = Field(1, "c", type_of_spark(nested, "c"))
        with pytest.raises(InvalidSchemaError, match="does not fit"):
            with_default(one, {"type": "integer", "value": 1})
        with pytest.raises(SchemaError, match="one constant"):
            with_default(one, {"sql": "array(1)"})
    assert sql_default(Field(1, "c", type_of_spark(ArrayType(LongType()), "c"), default=[1])) is None
