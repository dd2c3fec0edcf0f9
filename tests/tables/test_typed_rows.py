"""Records as typed rows: where they are, why one does not fit, and only what is wanted."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from dlspark.tables.arrow_types import schema_from_arrow
from dlspark.tables.codecs import RecordDecoder, RecordEncoder
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.errors import RecordMisfitError
from dlspark.tables.typed_rows import TypedRows

COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("value", pa.string())])
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def declared(format_: RecordFormat, *, strict: bool = False) -> Declaration:
    return Declaration.of(format_, schema_from_arrow(COLUMNS), strict=strict)


def records(declaration: Declaration, *extra: bytes) -> pa.RecordBatch:
    rows = pa.record_batch([pa.array([1, 2]), pa.array(["a", None])], schema=COLUMNS)
    payloads = [*RecordEncoder(declaration).encode(rows).payloads.to_pylist(), *extra]
    count = len(payloads)
    return pa.record_batch(
        {
            "log": pa.array(["flights"] * count),
            "segment": pa.array([3] * count),
            "entry": pa.array(range(count)),
            "slot": pa.array([0] * count),
            "sequence_id": pa.array(range(count)),
            "transaction_id": pa.array([1000] * count),
            "timestamp": pa.array([EPOCH] * count, pa.timestamp("us", "UTC")),
            "value": pa.array(payloads, pa.binary()),
        }
    )


@pytest.mark.parametrize("format_", list(RecordFormat))
def test_rows_say_where_they_are_and_why_they_do_not_fit(format_: RecordFormat) -> None:
    declaration = declared(format_)
    found = TypedRows(RecordDecoder(declaration)).of(records(declaration, b"bad"))
    assert found.schema.names == ["id", "value", "_log", "_error"]
    assert [row["id"] for row in found.to_pylist()] == [1, 2, None]
    at = [(row["_log"]["entry"], row["_log"]["row"], row["_log"]["value"]) for row in found.to_pylist()]
    one = format_ is RecordFormat.ARROW
    assert at == [(0, 0, None), (0, 1, None) if one else (1, 0, None), (1 if one else 2, 0, b"bad")]
    errors = found.column("_error").to_pylist()
    assert errors[:2] == [None, None]
    assert errors[2]


@pytest.mark.parametrize("format_", list(RecordFormat))
def test_only_what_is_wanted_comes_out_in_its_order(format_: RecordFormat) -> None:
    declaration = declared(format_)
    given = records(declaration)
    found = TypedRows(RecordDecoder(declaration), ["_log", "id"], ["slot", "row"]).of(given)
    rows = found.to_pylist()
    assert rows == [
        {"_log": {"slot": 0, "row": 0}, "id": 1},
        {"_log": {"slot": 0, "row": int(format_ is RecordFormat.ARROW)}, "id": 2},
    ]
    assert TypedRows(RecordDecoder(declaration), []).of(given).num_rows == 2
    assert TypedRows(RecordDecoder(declaration), ["_log"], ["entry"]).of(given).num_rows == 2


def test_a_column_of_the_logs_own_comes_before_the_records_bytes() -> None:
    declaration = declared(RecordFormat.JSON)
    assert TypedRows(RecordDecoder(declaration), ["value"]).of(records(declaration)).to_pylist() == [
        {"value": "a"},
        {"value": None},
    ]


def test_a_strict_log_ends_reading_at_the_first_record_that_does_not_fit() -> None:
    declaration = declared(RecordFormat.JSON, strict=True)
    rows = TypedRows(RecordDecoder(declaration), ["_log"], ["segment"])
    assert rows.of(records(declaration)).num_rows == 2
    with pytest.raises(RecordMisfitError, match="does not fit") as refused:
        rows.of(records(declaration, b"bad"))
    assert refused.value.dlsn == "3:2:0"
