"""Routing by hash: which log a row goes to, that it stays so, and what is refused before any task."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from dlspark.spark.errors import OptionError, SchemaError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.columns import HashRoute, Routing, columns_of, routing_of
from dlspark.spark.sink.log_rows import crc32s, log_numbers, rows_by_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def options(**given: str) -> Options:
    return Options({"uri": "distributedlog://127.0.0.1:1/x", **given}, Scope.SINK_STREAM)


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_logs_are_named_by_template_option_or_path() -> None:
    assert routing_of(options(log="flights-{}", numLogs="3")) == Routing(("flights-0", "flights-1", "flights-2"), ())
    assert routing_of(options(path="a/{}/b", numLogs="1", partitionBy="K, l")) == Routing(("a/0/b",), ("k", "l"))
    assert routing_of(options(log="flights")) is None
    assert routing_of(options()) is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"numLogs": "3"}, "needs a template"),
        ({"numLogs": "3", "log": "flights"}, "needs a template"),
        ({"numLogs": "3", "log": "{}-{}"}, "needs a template"),
        ({"numLogs": "1001", "log": "x{}"}, "1000 logs at most"),
        ({"numLogs": "0", "log": "x{}"}, "outside 1"),
        ({"partitionBy": "k", "log": "x"}, "numLogs, over how many logs, is missing"),
        ({"log": "x-{}"}, "numLogs, how many, is missing"),
        ({"numLogs": "2", "log": "x{}", "partitionBy": "a,,b"}, "twice or not at all"),
        ({"numLogs": "2", "log": "x{}", "partitionBy": "a,A"}, "twice or not at all"),
    ],
)
def test_half_a_routing_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        routing_of(options(**given))


def test_key_columns_may_be_there_beside_ours_and_nothing_else() -> None:
    routing = Routing(("x0", "x1"), ("carrier",))
    found = columns_of(schema(Carrier=StringType(), value=BinaryType(), transaction_id=LongType()), None, routing)
    assert found.route == HashRoute(("x0", "x1"), (0,))
    assert found.known_logs == ("x0", "x1")
    assert columns_of(schema(value=BinaryType()), "x{}", Routing(("x0",), ())).route == HashRoute(("x0",), (0,))
    for bad, says in (
        (schema(value=BinaryType()), "names column 'carrier'"),
        (schema(carrier=DoubleType(), value=BinaryType()), "is double"),
        (schema(carrier=StringType(), value=BinaryType(), other=StringType()), "'other'"),
    ):
        with pytest.raises(SchemaError, match=says):
            columns_of(bad, None, routing)


def test_rows_of_a_key_stay_together_and_in_order() -> None:
    names = tuple(f"x{n}" for n in range(4))
    columns = columns_of(schema(k=IntegerType(), value=StringType()), None, Routing(names, ("k",)))
    batch = pa.record_batch(
        {"k": pa.array([n % 7 for n in range(100)], pa.int32()), "value": [f"{n}" for n in range(100)]}
    )
    parts = rows_by_log(batch, columns, "task 0")
    assert len(parts) > 1
    found = {part.log: part.values.to_pylist() for part in parts}
    for number in range(7):
        log = names[zlib.crc32(str(number).encode()) % 4]
        assert [value for value in found[log] if int(value) % 7 == number] == [f"{n}" for n in range(number, 100, 7)]
    assert sum(map(len, found.values())) == 100


def test_a_keys_log_never_changes() -> None:
    """Golden numbers: a release that moves keys to other logs breaks its users' order."""
    keys = [pa.array(["UA", "AA", "", None, None, "Zürich"]), pa.array([1, -2, 3, 4, None, None], pa.int64())]
    assert crc32s(keys).tolist() == [
        zlib.crc32(text.encode()) for text in ("UA\x1f1", "AA\x1f-2", "\x1f3", "4", "", "Zürich")
    ]
    nothing = [pa.array([None, None], pa.string()), pa.array([None, None], pa.binary())]
    assert crc32s(nothing).tolist() == [0, 0]
    assert crc32s([pa.array([b"123456789"])]).tolist() == [0xCBF43926]
    assert crc32s([pa.array([True, False, None])]).tolist() == [zlib.crc32(b"true"), zlib.crc32(b"false"), 0]


@pytest.mark.spark
@pytest.mark.processes
def test_sparks_own_functions_name_the_same_log(spark: SparkSession) -> None:
    frame = spark.sql(
        "select * from values ('UA', 1, true, X'00ff'), ('', -5, false, X''), (null, null, null, null), "
        "('Zürich', 2147483647, true, X'41') as t(a, b, c, d)"
    )
    texts = [row[0] for row in frame.selectExpr("crc32(concat_ws('\\u001f', a, b, c)) % 16").collect()]
    binary = [row[0] for row in frame.selectExpr("crc32(coalesce(d, X'')) % 16").collect()]
    rows = frame.toArrow().combine_chunks().to_batches()[0]
    names = tuple("x" * 16)
    assert log_numbers(HashRoute(names, (0, 1, 2)), rows).tolist() == texts
    assert log_numbers(HashRoute(names, (3,)), rows).tolist() == binary
