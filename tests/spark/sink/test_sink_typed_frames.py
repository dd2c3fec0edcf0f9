"""Typed frames: which are, what is refused before a task runs, and how rows become records of each log."""

from __future__ import annotations

import datetime
import pickle
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from helpers.spark.typed_frames import bodies, declaration_of, own_columns_of
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dlspark.spark.errors import BatchRefusedError, OptionError, SchemaError, TransactionOrderError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.columns import SinkColumns, TypedFrame
from dlspark.spark.sink.log_rows import LogRows
from dlspark.spark.sink.row_cutting import FramePlan, cutter
from dlspark.tables.arrow_types import schema_from_arrow
from dlspark.tables.codecs import RecordDecoder
from dlspark.tables.declaration import Declaration, RecordFormat

FORMATS = ["json", "avro", "arrow"]
ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("item", pa.string()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)


def orders(*, timestamp: str | None = "at", kind: str = "json") -> Declaration:
    return Declaration.of(RecordFormat(kind), schema_from_arrow(ORDERS), timestamp=timestamp)


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


ORDER_COLUMNS = {"id": LongType(), "item": StringType(), "price": DecimalType(9, 2), "at": TimestampType()}
BYTES = {"value": BinaryType()}


def plan(frame: dict[str, DataType], /, **given: str) -> FramePlan:
    return FramePlan(Options({"uri": "distributedlog://z:1/dl", **given}, Scope.SINK_STREAM), schema(**frame))


# ---------------------------------------------------------------------- which frames are typed


@pytest.mark.parametrize(
    ("columns", "declares", "option", "typed"),
    [
        (ORDER_COLUMNS, "orders", None, True),
        (BYTES, "orders", None, False),
        (BYTES, "nothing", None, False),
        (BYTES, "value", None, True),
        (BYTES, "value", "raw", False),
        (BYTES, "value", "typed", True),
        ({"id": LongType(), "at": TimestampType()}, "orders", "typed", True),
    ],
)
def test_a_frame_is_typed_where_its_log_declares_columns_and_it_has_no_column_of_bytes(
    columns: dict[str, DataType], declares: str, option: str | None, typed: bool
) -> None:
    value = Declaration.of(RecordFormat.JSON, schema_from_arrow(pa.schema([pa.field("value", pa.binary())])))
    declared = {"orders": {"orders": orders(), "value": value, "nothing": None}[declares]}
    made = plan(columns, log="orders", **({} if option is None else {"columns": option}))
    assert made.looks is (option != "raw")
    found = made.decide(declared if made.looks else {})
    assert (found.typed is not None) is typed
    assert found.known_logs == ("orders",)


def test_rows_that_name_their_logs_have_bytes_where_they_have_a_value_and_columns_else() -> None:
    assert plan({**BYTES, "log": StringType()}).decide({}).typed is None
    typed = plan({"id": LongType(), "log": StringType()}).decide({})
    assert typed.typed == TypedFrame(("id", "log"), (), {})
    assert (typed.log, typed.one_log, typed.known_logs) == (1, None, ())
    with pytest.raises(OptionError, match="ZooKeeper"):
        plan({"id": LongType(), "log": StringType()}, proxy="discover").decide({})
    with pytest.raises(SchemaError, match="called 'id'"):
        plan({"id": LongType()}).decide({})


@pytest.mark.parametrize(
    ("columns", "given", "declared", "says"),
    [
        (ORDER_COLUMNS, {}, None, r"called 'id'.*or declare the log's columns"),
        (ORDER_COLUMNS, {"columns": "raw"}, orders(), "called 'id'"),
        (ORDER_COLUMNS, {"columns": "typed"}, None, "declares no schema; no task was started"),
        ({**ORDER_COLUMNS, "more": LongType()}, {}, orders(), "no column more in the log's schema; no task was"),
        ({"id": LongType()}, {}, orders(), "no column at, which the log declares NOT NULL; no task was"),
        ({**ORDER_COLUMNS, "item": LongType()}, {}, orders(), "Column item is string.*int64 in the frame; no task"),
        ({**ORDER_COLUMNS, "ID": LongType()}, {}, orders(), "Column id is there twice"),
        ({**ORDER_COLUMNS, "_log": StringType()}, {}, orders(), r"column _log.*df\.drop"),
        ({**ORDER_COLUMNS, "transaction_id": StringType()}, {}, orders(), "transaction_id must be bigint"),
        ({**ORDER_COLUMNS, "value": StringType()}, {}, orders(), "called 'id'"),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_any_task_runs(
    columns: dict[str, DataType], given: dict[str, str], declared: Declaration | None, says: str
) -> None:
    with pytest.raises(SchemaError, match=says) as caught:
        plan(columns, log="orders", **given).decide({"orders": declared})
    assert caught.value.advice


def test_the_option_takes_raw_and_typed_and_a_sessions_default_for_reading_does_not_count() -> None:
    for wrong, says in (("both", "is for reading"), ("rwa", "raw, typed or both")):
        with pytest.raises(OptionError, match=says):
            plan(BYTES, log="orders", columns=wrong)
    options = Options({"uri": "distributedlog://z:1/dl", "log": "orders"}, Scope.SINK_STREAM, {"columns": "both"})
    assert FramePlan(options, schema(**BYTES)).decide({"orders": None}).typed is None


def test_rows_spread_over_logs_need_key_columns_and_logs_that_agree() -> None:
    spread = {"log": "orders-{}", "numLogs": "2"}
    declared: dict[str, Declaration | None] = {"orders-0": orders(), "orders-1": orders()}
    with pytest.raises(SchemaError, match="partitionBy"):
        plan(ORDER_COLUMNS, **spread).decide(declared)
    by_region = plan({**ORDER_COLUMNS, "region": StringType()}, **spread, partitionBy="region").decide(declared)
    assert by_region.typed is not None
    assert (by_region.typed.keys, set(by_region.typed.declared)) == (("region",), {"orders-0", "orders-1"})
    with pytest.raises(SchemaError, match="declares no schema") as caught:
        plan(ORDER_COLUMNS, **spread, partitionBy="id").decide({**declared, "orders-1": None})
    assert caught.value.log == "orders-1"
    value = Declaration.of(RecordFormat.JSON, schema_from_arrow(pa.schema([pa.field("value", pa.binary())])))
    with pytest.raises(SchemaError, match="orders-0 declares a column value, and log orders-1 does not"):
        plan(BYTES, **spread).decide({"orders-0": value, "orders-1": None})


# ---------------------------------------------------------------------- rows to records


def typed(names: list[str], declared: dict[str, Declaration], **more: object) -> SinkColumns:
    columns = SinkColumns(-1, None, None, next(iter(declared), None), typed=TypedFrame(tuple(names), (), declared))
    for name, value in more.items():
        object.__setattr__(columns, name, value)
    return columns


def cut(columns: SinkColumns, batch: pa.RecordBatch, *, one_row: bool = False) -> list[LogRows]:
    columns = pickle.loads(pickle.dumps(columns))  # as Spark hands them to a task
    return cutter(columns, "task 3", one_row=one_row)(batch)


def at(second: int) -> datetime.datetime:
    return datetime.datetime(2026, 11, 26, 10, 0, second, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_come_back_as_they_were_and_their_ids_are_their_times(kind: str) -> None:
    declaration = orders(kind=kind)
    rows = pa.RecordBatch.from_pylist(
        [{"at": at(n), "ID": n, "price": Decimal("1.50") if n else None} for n in (0, 5, 3)],
        schema=pa.schema([ORDERS.field("at"), pa.field("ID", pa.int32()), ORDERS.field("price")]),
    )
    (made,) = cut(typed(rows.schema.names, {"orders": declaration}), rows)
    assert (made.log, made.timed, made.row_count) == ("orders", True, 3)
    found = RecordDecoder(declaration).decode(made.values)
    assert found.errors.null_count == 3
    assert [(row["id"], row["item"], row["price"], row["at"]) for row in found.rows.to_pylist()] == [
        (n, None, Decimal("1.50") if n else None, at(n)) for n in (0, 5, 3)
    ]
    times = [int(at(n).timestamp() * 1000) for n in (0, 5, 3)]
    assert made.txids is not None
    assert made.txids.tolist() == ([max(times)] if kind == "arrow" else times)


def test_rows_of_several_logs_are_encoded_by_what_each_declares_and_those_are_asked_for_once() -> None:
    asked: list[list[str]] = []
    kinds = {"a": declaration_of("json"), "b": declaration_of("avro", timed=True)}

    def find(logs: object) -> dict[str, Declaration]:
        asked.append(list(logs))  # type: ignore[call-overload]
        return {log: kinds[log] for log in asked[-1]}

    names = ["body", "at", "log"]
    columns = typed(names, {}, log=2)
    batch = pa.record_batch(
        {"body": pa.array([b"1", b"2", b"3"]), "at": pa.array([7, 9, 8]), "log": pa.array(["b", "a", "b"])}
    )
    with pytest.raises(BatchRefusedError, match="no column at") as caught:
        cutter(columns, "task 3", find)(batch)  # log a has no such column
    assert caught.value.log == "a"
    kinds["a"] = declaration_of("json", timed=True)
    rows = cutter(columns, "task 3", find)
    for _ in range(2):
        found = {part.log: part for part in rows(batch)}
        assert {log: bodies(part.values.to_pylist(), kinds[log]) for log, part in found.items()} == {
            "a": [b"2"],
            "b": [b"1", b"3"],
        }
    assert [sorted(logs) for logs in asked] == [["a", "b"]] * 2  # once by each task


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("timed", [False, True])
def test_ids_that_the_frame_gives_win_and_none_may_be_below_its_rows_time(kind: str, timed: bool) -> None:
    declaration = declaration_of(kind, timed=timed)
    own = own_columns_of([b"a", b"b", b"c"], [5, 6, 7] if timed else None)
    columns = typed([*own, "transaction_id"], {"log": declaration})
    (made,) = cut(columns, pa.record_batch({**own, "transaction_id": pa.array([7, 7, 8])}))
    assert made.txids is not None
    assert made.txids.tolist() == ([7, 8] if kind == "arrow" else [7, 7, 8])
    assert not made.timed
    assert bodies(made.values.to_pylist(), declaration) == [b"a", b"b", b"c"]
    with pytest.raises(TransactionOrderError, match="decrease"):
        cut(columns, pa.record_batch({**own, "transaction_id": pa.array([8, 7, 9])}))
    if timed:
        with pytest.raises(TransactionOrderError, match=r"is 6, and its time.*7: readers.*nothing of the batch is"):
            cut(columns, pa.record_batch({**own, "transaction_id": pa.array([6, 6, 6])}))


def test_a_log_may_declare_the_names_of_the_sinks_own_columns() -> None:
    fields = [pa.field("transaction_id", pa.string()), pa.field("log", pa.string())]
    declaration = Declaration.of(RecordFormat.JSON, schema_from_arrow(pa.schema(fields)))
    (made,) = cut(
        typed(["transaction_id", "log"], {"orders": declaration}),
        pa.record_batch({"transaction_id": pa.array(["x"]), "log": pa.array(["y"])}),
    )
    assert made.txids is None
    assert made.values.to_pylist() == [b'{"transaction_id":"x","log":"y"}']


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ({"body": pa.array([b"x", None])}, "Column body is NOT NULL.*"),
        ({"body": pa.array([b"x"]), "length": pa.array([2**40])}, "Column length is int, and a value.*"),
        ({"body": pa.array([b"x" * 2**21])}, r"A row's record has .* and a record holds.*"),
    ],
)
def test_a_row_that_does_not_fit_refuses_the_batch_whole(rows: dict[str, pa.Array], says: str) -> None:
    with pytest.raises(BatchRefusedError, match=rf"{says}nothing of the batch is visible") as caught:
        cut(typed(list(rows), {"flights": declaration_of("json")}), pa.record_batch(rows))
    assert "nothing was written" not in str(caught.value)
    assert caught.value.advice


def test_a_time_that_no_record_can_have_is_refused() -> None:
    own = own_columns_of([b"x"], [2**63 - 1])
    with pytest.raises(BatchRefusedError, match="nothing of the batch is visible"):
        cut(typed(list(own), {"flights": declaration_of("json", timed=True)}), pa.record_batch(own))


def test_an_arrow_record_holds_rows_up_to_an_entrys_size_and_one_where_it_travels_inline() -> None:
    values = [bytes([n % 256]) * 1000 for n in range(1000)]
    own = own_columns_of(values)
    declaration = declaration_of("arrow")
    (made,) = cut(typed(list(own), {"flights": declaration}), pa.record_batch(own))
    assert 4 < len(made.values) < 10
    assert made.row_count == 1000
    assert bodies(made.values.to_pylist(), declaration) == values
    (single,) = cut(typed(list(own), {"flights": declaration}), pa.record_batch(own).slice(0, 9), one_row=True)
    assert (len(single.values), single.row_count) == (9, 9)


def test_no_rows_are_no_records() -> None:
    own = own_columns_of([])
    assert cut(typed(list(own), {"flights": declaration_of("json")}), pa.record_batch(own)) == []


def test_keys_that_are_only_hashed_are_not_encoded() -> None:
    declared: dict[str, Declaration | None] = {"f-0": declaration_of("json"), "f-1": declaration_of("json")}
    frame = {"body": BinaryType(), "region": IntegerType()}
    columns = plan(frame, log="f-{}", numLogs="2", partitionBy="region").decide(declared)
    batch = pa.record_batch({"body": pa.array([b"%d" % n for n in range(50)]), "region": pa.array(np.arange(50) % 7)})
    found = cut(columns, batch)
    assert {part.log for part in found} == {"f-0", "f-1"}
    values = [body for part in found for body in bodies(part.values.to_pylist(), declaration_of("json"))]
    assert sorted(values) == sorted(b"%d" % n for n in range(50))


def test_frames_of_bytes_load_nothing_that_encodes() -> None:
    code = """
import sys
import dlspark.spark.sink.driver, dlspark.spark.sink.writer, dlspark.spark.sink.segments.task
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.row_cutting import FramePlan, cutter
from pyspark.sql.types import BinaryType, StructField, StructType
options = Options({"uri": "distributedlog://z:1/dl", "log": "flights"}, Scope.SINK_STREAM)
columns = FramePlan(options, StructType([StructField("value", BinaryType())])).decide({"flights": None})
cutter(columns, "task 0")
print([name for name in sys.modules if name.startswith("dlspark.spark.sink.row_encoding")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
