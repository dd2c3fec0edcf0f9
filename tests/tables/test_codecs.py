"""Rows to records and back by what a log declares, whichever format that is."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal as Number

import pyarrow as pa
import pytest

from dlspark.tables.arrow_types import schema_from_arrow
from dlspark.tables.codecs import RecordDecoder, RecordEncoder
from dlspark.tables.declaration import Declaration, RecordFormat, SchemaChangedError
from dlspark.tables.errors import RowRefusedError
from dlspark.tables.evolution import AddColumn, AllowNull, DropColumn, RenameColumn, WidenColumn
from dlspark.tables.types import LONG, STRING, InvalidSchemaError

AT = dt.datetime(2026, 11, 26, 8, 0, 0, 1500, tzinfo=dt.timezone.utc)
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("tags", pa.list_(pa.string())),
    ]
)
ROWS = [
    {"id": 1, "at": AT, "price": Number("1.50"), "tags": ["a"]},
    {"id": 2, "at": AT + dt.timedelta(seconds=1), "price": None, "tags": None},
    {"id": 3, "at": AT - dt.timedelta(seconds=1), "price": Number("0.01"), "tags": []},
]
ALL = pytest.mark.parametrize("format_", list(RecordFormat))


def declared(format_: RecordFormat, timestamp: str | None = "at") -> Declaration:
    return Declaration.of(format_, schema_from_arrow(COLUMNS), timestamp=timestamp)


def rows(*given: dict[str, object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(given or ROWS), schema=COLUMNS)


@ALL
def test_rows_come_back_and_say_their_times(format_: RecordFormat) -> None:
    encoded = RecordEncoder(declared(format_)).encode(rows())
    found = RecordDecoder(declared(format_)).decode(encoded.payloads)
    assert found.rows.to_pylist() == ROWS
    assert found.errors.null_count == 3
    ms = int(AT.timestamp() * 1000)
    expected = [ms + 1000] if format_ is RecordFormat.ARROW else [ms, ms + 1000, ms - 1000]
    assert encoded.times is not None
    assert encoded.times.to_pylist() == expected
    assert RecordEncoder(declared(format_, None)).encode(rows()).times is None


@ALL
def test_a_record_whose_column_is_later_than_its_transaction_id_does_not_fit(format_: RecordFormat) -> None:
    encoded = RecordEncoder(declared(format_)).encode(rows())
    assert encoded.times is not None
    decoder = RecordDecoder(declared(format_))
    fits = decoder.decode(encoded.payloads, encoded.times)
    assert fits.rows.to_pylist() == ROWS
    early = pa.array([one - (at == len(encoded.times) - 1) for at, one in enumerate(encoded.times.to_pylist())])
    found = decoder.decode(encoded.payloads, early)
    last = found.rows.to_pylist()[-1]
    assert set(last.values()) == {None}
    assert found.errors.to_pylist()[-1] == f"column at is later than the record's transaction id, {early[-1]}"
    if format_ is not RecordFormat.ARROW:
        assert found.rows.to_pylist()[:-1] == ROWS[:-1]


def test_columns_are_found_in_any_case_and_order_and_cast_where_their_values_fit() -> None:
    given = pa.record_batch(
        {
            "PRICE": pa.array([Number("1.500")], pa.decimal128(20, 3)),
            "Id": pa.array([7], pa.uint64()),
            "at": pa.array([AT.replace(microsecond=0)], pa.timestamp("s", "Europe/Berlin")),
            "tags": pa.array([["a"]], pa.large_list(pa.large_string())),
        }
    )
    encoded = RecordEncoder(declared(RecordFormat.JSON)).encode(given)
    assert encoded.payloads.to_pylist() == [b'{"id":7,"at":"2026-11-26T08:00:00.000000Z","price":1.50,"tags":["a"]}']


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"id": [1], "at": [AT], "more": [1]}, "no column more"),
        ({"id": [1], "ID": [1], "at": [AT]}, "id is there twice"),
        ({"at": [AT]}, "id is NOT NULL, and the rows do not have it"),
        ({"id": ["1"], "at": [AT]}, "id is long in the log's schema, and string in the rows"),
        ({"id": [1], "at": [AT], "price": pa.array([Number("12345678.00")], pa.decimal128(12, 2))}, "price"),
        ({"id": [1], "at": [AT], "price": pa.array([Number("0.001")], pa.decimal128(4, 3))}, "price"),
        ({"id": pa.array([2**63], pa.uint64()), "at": [AT]}, "id is long, and a value of the rows does not fit"),
        ({"id": [1], "at": [AT.replace(tzinfo=None)]}, "at is timestamptz"),
        ({"id": [None], "at": [AT]}, "id is NOT NULL"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_columns_name(given: dict[str, object], said: str) -> None:
    for format_ in RecordFormat:
        with pytest.raises(RowRefusedError, match=said) as refused:
            RecordEncoder(declared(format_)).encode(pa.record_batch(given))
        assert "nothing was written" in str(refused.value)


@ALL
def test_a_query_keeps_its_version_while_columns_are_added_and_renamed(format_: RecordFormat) -> None:
    old = declared(format_)
    new = old.evolved([RenameColumn(("price",), "cost"), AddColumn(("note",), STRING, default="none")])
    later = RecordEncoder(new).encode(pa.record_batch({"id": [9], "at": [AT], "cost": [Number("2.00")]}))
    kept = RecordDecoder(new, old.current).decode(later.payloads)
    assert kept.errors.to_pylist() == [None]
    assert kept.rows.to_pylist() == [{"id": 9, "at": AT, "price": Number("2.00"), "tags": None}]
    before = RecordDecoder(new).decode(RecordEncoder(old).encode(rows()).payloads)
    assert before.rows.to_pylist()[0] == {
        "id": 1, "at": AT, "cost": Number("1.50"), "tags": ["a"], "note": "none"
    }  # fmt: skip


def test_a_query_ends_where_newer_records_do_not_fit_its_version() -> None:
    columns = schema_from_arrow(pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())]))
    old = Declaration.of(RecordFormat.JSON, columns)
    for change, said in (
        (WidenColumn(("a",), LONG), "Column a was widened to long"),
        (DropColumn(("b",)), "Column b was dropped"),
        (AllowNull(("a",)), "Column a may be null"),
    ):
        with pytest.raises(SchemaChangedError, match=said):
            RecordDecoder(old.evolved([change]), old.current)


def test_names_that_readers_use_cannot_be_columns() -> None:
    for name in ("_log", "_ERROR"):
        with pytest.raises(InvalidSchemaError, match="cannot be named"):
            Declaration.of(RecordFormat.JSON, schema_from_arrow(pa.schema([(name, pa.int32())])))
        with pytest.raises(InvalidSchemaError, match="cannot be named"):
            declared(RecordFormat.AVRO).evolved([RenameColumn(("tags",), name)])


def test_a_declaration_keeps_schemas_of_a_registry() -> None:
    given = replace(declared(RecordFormat.AVRO), confluent={7: {"type": "record", "name": "r", "fields": []}})
    assert Declaration.decode(given.encode(), "/p") == given


def test_fields_of_structs_have_the_names_of_the_schema() -> None:
    """Arrow's own cast raises another error for them."""
    columns = schema_from_arrow(pa.schema([("c", pa.struct([pa.field("x", pa.int64(), nullable=False)]))]))
    for format_ in RecordFormat:
        encoder = RecordEncoder(Declaration.of(format_, columns))
        for given in ({"X": 1}, {"x": None}, {"y": 1}, {"x": 1, "y": 2}):
            with pytest.raises(RowRefusedError, match=r"Column c.*nothing was written"):
                encoder.encode(pa.record_batch({"c": pa.array([given])}))
        assert len(encoder.encode(pa.record_batch({"c": pa.array([{"x": 1}, None])})).payloads)


def test_a_time_that_no_transaction_id_can_be_is_refused() -> None:
    columns = schema_from_arrow(pa.schema([pa.field("c", pa.int64(), nullable=False)]))
    for format_ in RecordFormat:
        encoder = RecordEncoder(Declaration.of(format_, columns, timestamp="c"))
        with pytest.raises(RowRefusedError, match=r"Column c has a time above .*nothing was written"):
            encoder.encode(pa.record_batch({"c": [1, 2**63 - 1]}))
        assert len(encoder.encode(pa.record_batch({"c": [-1, 2**63 - 2]})).payloads)


def test_bytes_are_made_by_the_version_of_the_encoder_that_the_log_declares() -> None:
    for format_ in RecordFormat:
        newer = replace(declared(format_), encoder=2)
        with pytest.raises(RowRefusedError, match=r"version 2 of the encoder.*nothing was written"):
            RecordEncoder(newer)
        RecordDecoder(newer)


def test_runs_are_rows() -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", None]))
    columns = schema_from_arrow(pa.schema([("c", pa.string())]))
    for format_ in RecordFormat:
        declaration = Declaration.of(format_, columns)
        payloads = RecordEncoder(declaration).encode(pa.record_batch({"c": runs})).payloads
        assert RecordDecoder(declaration).decode(payloads).rows.column("c").to_pylist() == ["a", "a", None]


def test_bytes_that_are_no_text_and_keys_that_are_there_twice_are_refused_in_each_format() -> None:
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xffA")])
    maps = pa.map_(pa.string(), pa.int32())
    columns = pa.schema([("text", pa.string()), ("parts", pa.struct([("text", pa.string())])), ("by", maps)])
    for format_ in RecordFormat:
        encoder = RecordEncoder(Declaration.of(format_, schema_from_arrow(columns)))
        with pytest.raises(RowRefusedError, match="text has a value that is not string"):
            encoder.encode(pa.record_batch({"text": bad}))
        with pytest.raises(RowRefusedError, match="parts has a value that is not struct"):
            encoder.encode(pa.record_batch({"parts": pa.StructArray.from_arrays([bad], ["text"])}))
        twice = pa.array([[("a", 1)], [("a", 1), ("b", 2), ("a", 3)]], maps)
        with pytest.raises(RowRefusedError, match="by has a map with a key twice"):
            encoder.encode(pa.record_batch({"by": twice}))
        good = pa.record_batch({"by": pa.array([[("a", 1)], None, [("a", 1), ("b", 2)]], maps)})
        found = RecordDecoder(encoder.declaration).decode(encoder.encode(good).payloads)
        assert found.rows.column("by").to_pylist() == [[("a", 1)], None, [("a", 1), ("b", 2)]]


def test_ids_of_fields_are_of_one_declaration() -> None:
    sizes = pa.schema([("width", pa.int32()), ("height", pa.int32())])
    turned = pa.schema([sizes.field(1), sizes.field(0)])
    for format_ in (RecordFormat.JSON, RecordFormat.ARROW):
        first, second = (
            replace(Declaration.of(format_, schema_from_arrow(one)), id=id_)
            for one, id_ in ((sizes, "first"), (turned, "second"))
        )
        payloads = RecordEncoder(first).encode(pa.record_batch({"width": [1], "height": [2]})).payloads
        assert RecordDecoder(second).decode(payloads).rows.to_pylist() == [{"height": 2, "width": 1}]
        renamed = first.evolved([RenameColumn(("width",), "breadth")])
        assert RecordDecoder(renamed).decode(payloads).rows.to_pylist() == [{"breadth": 1, "height": 2}]


def test_ids_in_a_schema_of_a_registry_are_not_the_logs() -> None:
    fields = [{"name": "height", "type": "int", "field-id": 1}, {"name": "width", "type": "int", "field-id": 2}]
    avro = {"type": "record", "name": "r", "fields": fields}
    sizes = schema_from_arrow(pa.schema([("width", pa.int32()), ("height", pa.int32())]))
    declaration = replace(Declaration.of(RecordFormat.AVRO, sizes), confluent={7: avro})
    found = RecordDecoder(declaration).decode(pa.array([b"\x00\x00\x00\x00\x07\x04\x02"]))
    assert found.rows.to_pylist() == [{"width": 1, "height": 2}]


def test_of_a_struct_that_is_null_no_field_is_missing() -> None:
    point = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    loose = pa.struct([pa.field("x", pa.int64())])
    given = pa.array([{"x": 1}, {"x": None}], loose)
    masked = pa.StructArray.from_arrays([given.field(0)], fields=list(loose), mask=pa.array([False, True]))
    for format_ in RecordFormat:
        encoder = RecordEncoder(Declaration.of(format_, schema_from_arrow(pa.schema([("at", point)]))))
        payloads = encoder.encode(pa.record_batch({"at": masked})).payloads
        assert RecordDecoder(encoder.declaration).decode(payloads).rows.to_pylist() == [{"at": {"x": 1}}, {"at": None}]
        with pytest.raises(RowRefusedError, match=r"at\.x is NOT NULL"):
            encoder.encode(pa.record_batch({"at": given}))


def test_numbers_are_values_of_other_numbers_columns_where_they_fit() -> None:
    columns = pa.schema(
        [("price", pa.decimal128(9, 2)), ("weight", pa.float64()), ("at", pa.struct([("x", pa.int32())]))]
    )
    for format_ in RecordFormat:
        encoder = RecordEncoder(Declaration.of(format_, schema_from_arrow(columns)))
        given = {"price": [1, -5], "weight": [2, 1 << 53], "at": [{"x": 3}, None]}
        payloads = encoder.encode(pa.record_batch(given)).payloads
        found = RecordDecoder(encoder.declaration).decode(payloads).rows.to_pylist()
        assert [one["price"] for one in found] == [Number("1.00"), Number("-5.00")]
        assert [one["weight"] for one in found] == [2.0, 2.0**53]
        assert [one["at"] for one in found] == [{"x": 3}, None]
        for wrong in ({"price": [10**9]}, {"weight": [(1 << 53) + 1]}, {"at": [{"x": 1 << 40}]}):
            with pytest.raises(RowRefusedError, match="does not fit"):
                encoder.encode(pa.record_batch(wrong))
