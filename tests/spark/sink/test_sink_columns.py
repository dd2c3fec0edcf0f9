"""The sink's columns: what is taken, what is refused before any task, and what fails a batch in a task."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dlspark.core.codec.records import MAX_PAYLOAD_BYTES
from dlspark.spark.errors import BatchRefusedError, SchemaError, TransactionOrderError
from dlspark.spark.sink.columns import SinkColumns, columns_of
from dlspark.spark.sink.log_rows import check_order, rows_by_log
from metadata.distributedlog.log_names import InvalidLogNameError


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_columns_are_found_in_any_order_and_case() -> None:
    found = columns_of(schema(Transaction_ID=LongType(), LOG=StringType(), value=BinaryType()), None)
    assert found == SinkColumns(value=2, transaction_id=0, log=1, one_log=None)
    assert columns_of(schema(value=StringType()), "flights") == SinkColumns(0, None, None, "flights")


def test_a_log_named_by_option_counts_for_every_row() -> None:
    columns = columns_of(schema(value=StringType(), log=StringType()), "flights")
    batch = pa.record_batch({"value": ["a", "b"], "log": ["x", None]})
    assert [rows.log for rows in rows_by_log(batch, columns, "task 0")] == ["flights"]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({}, "needs a column value"),
        ({"transaction_id": LongType()}, "needs a column value"),
        ({"value": IntegerType()}, "value must be string or binary, not int"),
        ({"value": ArrayType(StringType())}, "value must be string or binary"),
        ({"value": StringType(), "transaction_id": StringType()}, "transaction_id must be bigint, not string"),
        ({"value": StringType(), "transaction_id": TimestampType()}, "transaction_id must be bigint, not timestamp"),
        ({"value": StringType(), "log": BinaryType()}, "log must be string, not binary"),
        ({"value": StringType(), "segment": LongType()}, "'segment'"),
        ({"value": StringType(), "VALUE": StringType()}, "twice"),
    ],
)
def test_other_columns_are_refused_with_a_mend(columns: dict[str, DataType], says: str) -> None:
    with pytest.raises(SchemaError, match=says) as caught:
        columns_of(schema(**columns), "flights")
    assert caught.value.advice


def test_the_named_log_must_have_a_good_name() -> None:
    assert columns_of(schema(value=StringType()), "a/b").one_log == "a/b"
    for bad in ("a b", "/a/b"):
        with pytest.raises(InvalidLogNameError):
            columns_of(schema(value=StringType()), bad)


def test_a_sink_without_a_log_is_refused() -> None:
    with pytest.raises(SchemaError, match="No log to write to"):
        columns_of(schema(value=StringType()), None)


BOTH = SinkColumns(value=0, transaction_id=1, log=2, one_log=None)


def batch(values: list[object], txids: list[object], logs: list[object]) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(values, pa.binary()), pa.array(txids, pa.int64()), pa.array(logs, pa.string())],
        names=["value", "transaction_id", "log"],
    )


def test_rows_of_interleaved_logs_keep_their_order_and_ids() -> None:
    rows = rows_by_log(batch([b"1", b"2", b"3", b"4", b"5"], [9, 1, 9, 12, 10], list("abaab")), BOTH, "task 0")
    found = {part.log: (part.txids.tolist(), part.values.to_pylist()) for part in rows if part.txids is not None}
    assert found == {"a": ([9, 9, 12], [b"1", b"3", b"4"]), "b": ([1, 10], [b"2", b"5"])}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_every_type_that_spark_sends_as_value_is_taken(kind: pa.DataType) -> None:
    rows = rows_by_log(
        pa.record_batch([pa.array(["a", "ü"]).cast(kind)], names=["value"]), SinkColumns(0, None, None, "x"), "task 0"
    )
    assert rows[0].values.cast(pa.binary()).to_pylist() == [b"a", "ü".encode()]
    assert rows[0].txids is None


def test_an_empty_arrow_batch_has_no_rows() -> None:
    assert rows_by_log(batch([], [], []), BOTH, "task 0") == []


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (([b"a", None], [1, 2], ["x", "x"]), "value is null in 1 of 2 rows in task 3, first in row 1"),
        (([b"a", b"b"], [None, 2], ["x", "x"]), "transaction_id is null in 1 of 2"),
        (([b"a", b"b"], [1, 2], ["x", None]), "log is null in 1 of 2"),
        (([b"a", b"b"], [1, 2], ["x", ""]), "cannot name a log"),
        (([b"a", b"b"], [1, 2], ["x", ".hidden"]), "cannot name a log"),
        (([b"a", b"b"], [1, 2], ["x", "a b"]), "cannot name a log"),
        (([b"a", b"b"], [1, 2], ["x", "a//b"]), "cannot name a log"),
        (([b"a", b"b"], [1, 2], ["x", "/x"]), "begins with a slash"),
        (([b"a", b"b"], [-1, 2], ["x", "x"]), "Transaction id -1 in task 3"),
        (([b"a", b"b"], [1, 2**63 - 1], ["x", "x"]), f"Transaction id {2**63 - 1}"),
        (([b"a", b"b"], [2, 1], ["x", "x"]), "decrease in task 3: 1 follows 2"),
    ],
)
def test_bad_rows_fail_the_batch_with_their_place_and_a_mend(
    rows: tuple[list[object], list[object], list[object]], says: str
) -> None:
    with pytest.raises(BatchRefusedError, match=says) as caught:
        rows_by_log(batch(*rows), BOTH, "task 3")
    assert "nothing of the batch is visible" in str(caught.value)
    assert caught.value.advice


def test_ids_may_not_fall_below_those_of_the_arrow_batch_before() -> None:
    ids = np.array([5, 5, 6], dtype=np.int64)
    check_order(ids, "x", "task 0", 5)
    check_order(None, "x", "task 0", 5)
    with pytest.raises(TransactionOrderError, match="5 follows 6"):
        check_order(ids, "x", "task 0", 6)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_binary()])
def test_a_value_that_fits_in_no_record_is_refused_with_its_row_before_anything_is_sent(kind: pa.DataType) -> None:
    columns = columns_of(schema(value=StringType()), "flights")
    fits, too_long = "x" * MAX_PAYLOAD_BYTES, "x" * (MAX_PAYLOAD_BYTES + 1)
    (rows,) = rows_by_log(pa.record_batch({"value": pa.array(["a", fits], kind)}), columns, "task 3")
    assert len(rows.values) == 2
    with pytest.raises(BatchRefusedError, match=f"{MAX_PAYLOAD_BYTES + 1} bytes in row 1 in task 3"):
        rows_by_log(pa.record_batch({"value": pa.array(["a", too_long], kind)}), columns, "task 3")
