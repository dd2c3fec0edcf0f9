"""Arrow records: batches come back through every version, the same bytes for the same rows, and no bytes do harm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from random_evolution import expected_row, random_life
from random_rows import random_row, random_schema

from dlspark.tables import arrow_decoding, arrow_encoding
from dlspark.tables.arrow_decoding import ArrowReader
from dlspark.tables.arrow_encoding import encode_rows
from dlspark.tables.arrow_types import arrow_schema
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.errors import RowRefusedError
from dlspark.tables.evolution import RenameColumn, WidenColumn
from dlspark.tables.resolution import DecodedRows
from dlspark.tables.types import (
    BOOLEAN,
    DOUBLE,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    Decimal,
    Field,
    ListOf,
    MapOf,
    Schema,
    Struct,
    Type,
)


def declared(schema: Schema) -> Declaration:
    return Declaration.of(RecordFormat.ARROW, schema)


def column(type_: Type, *, required: bool = False) -> Schema:
    return Schema(0, (Field(1, "c", type_, required=required),))


def batch(schema: Schema, *rows: dict[str, object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=arrow_schema(schema))


def stream(*batches: pa.RecordBatch, compression: str | None = None) -> bytes:
    """A stream as any writer of Arrow makes one."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for one in batches:
            writer.write_batch(one)
    payload = sink.getvalue().to_pybytes()
    assert isinstance(payload, bytes)
    return payload


def only(payloads: pa.Array) -> bytes:
    (payload,) = payloads.to_pylist()
    assert isinstance(payload, bytes)
    return payload


def values_of(payload: bytes, schema: Schema) -> list[object]:
    found = ArrowReader(declared(schema)).decode(pa.array([payload], pa.binary()))
    assert found.errors.null_count == len(found.errors), found.errors[0]
    values: list[object] = found.rows.column("c").to_pylist()
    return values


def error_of(payload: bytes, schema: Schema) -> str:
    found = ArrowReader(declared(schema)).decode(pa.array([payload], pa.binary()))
    assert counts_of(found) == [1]
    assert all(value is None for value in found.rows.to_pylist()[0].values())
    error = found.errors[0].as_py()
    assert isinstance(error, str)
    return error


# ---------------------------------------------------------------------- there and back


def counts_of(found: DecodedRows) -> list[int]:
    assert found.counts is not None
    counts: list[int] = found.counts.to_pylist()
    return counts


@pytest.mark.parametrize("seed", range(20))
def test_rows_come_back_as_they_were_written(seed: int) -> None:
    rng = Random(seed)
    for _ in range(5):
        schema = random_schema(rng)
        rows = batch(schema, *(random_row(rng, schema) for _ in range(20)))
        payloads = encode_rows(rows, schema)
        found = ArrowReader(declared(schema)).decode(payloads)
        assert found.errors.null_count == 20, (str(schema), found.errors.drop_null()[:1])
        assert counts_of(found) == [20]
        assert repr(found.rows.to_pylist()) == repr(rows.to_pylist()), str(schema)
        assert encode_rows(found.rows, schema).equals(payloads), "the same bytes again"
        part = batch(schema, *rows.slice(7, 6).to_pylist())
        assert encode_rows(rows.slice(7, 6), schema).equals(encode_rows(part, schema)), "whatever is around them"


@pytest.mark.parametrize("seed", range(20))
def test_any_reader_of_arrow_reads_a_record_alone(seed: int) -> None:
    rng = Random(seed)
    schema = random_schema(rng)
    rows = batch(schema, *(random_row(rng, schema) for _ in range(20)))
    with pa.ipc.open_stream(only(encode_rows(rows, schema))) as reader:
        table = reader.read_all()
    table.validate(full=True)
    assert table.schema.equals(arrow_schema(schema), check_metadata=True)
    assert repr(table.to_pylist()) == repr(rows.to_pylist())


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_every_version_are_rows_of_the_current_one(seed: int) -> None:
    rng = Random(seed)
    for _ in range(3):
        declaration = random_life(rng, RecordFormat.ARROW)
        current = declaration.current
        payloads: list[bytes] = []
        expected: list[dict[str, object]] = []
        for schema in declaration.schemas:
            rows = batch(schema, *(random_row(rng, schema) for _ in range(5)))
            payloads.append(only(encode_rows(rows, schema)))
            expected += [expected_row(row, schema.fields, current.fields) for row in rows.to_pylist()]
        found = ArrowReader(declaration).decode(pa.array(payloads, pa.binary()))
        assert found.errors.null_count == len(expected), found.errors.drop_null()[:1]
        assert counts_of(found) == [5] * len(payloads)
        wanted = pa.RecordBatch.from_pylist(expected, schema=found.rows.schema)
        assert repr(found.rows.to_pylist()) == repr(wanted.to_pylist())


def test_equal_rows_give_equal_bytes() -> None:
    schema = column(DOUBLE)
    odd = pa.array([0xFFF8000000000001, 0], pa.uint64()).view(pa.float64())
    plain = only(encode_rows(batch(schema, {"c": float("nan")}, {"c": 0.0}), schema))
    assert only(encode_rows(pa.record_batch([odd], ["c"]), schema)) == plain

    schema = column(INT)
    plain = only(encode_rows(batch(schema, {"c": 1}, {"c": None}), schema))
    bitmap, under = pa.py_buffer(b"\xfd"), pa.array([1, 99], pa.int32()).buffers()[1]
    dirty = pa.Array.from_buffers(pa.int32(), 2, [bitmap, under])
    assert only(encode_rows(pa.record_batch([dirty], ["c"]), schema)) == plain

    schema = column(STRING)
    plain = only(encode_rows(batch(schema, {"c": "a"}, {"c": "b"}, {"c": "a"}), schema))
    dictionary = pa.array(["a", "b", "a"]).dictionary_encode()
    assert only(encode_rows(pa.record_batch([dictionary], ["c"]), schema)) == plain
    large = pa.array(["-", "a", "b", "a"], pa.large_string())[1:]
    assert only(encode_rows(pa.record_batch([large], ["c"]), schema)) == plain

    schema = column(BOOLEAN)
    plain = only(encode_rows(batch(schema, {"c": True}), schema))
    bits = pa.Array.from_buffers(pa.bool_(), 1, [pa.py_buffer(b"\xff"), pa.py_buffer(b"\xff")])
    assert only(encode_rows(pa.record_batch([bits], ["c"]), schema)) == plain


def test_rows_that_are_too_many_for_a_record_go_into_more() -> None:
    schema = column(STRING)
    text: dict[str, object] = {"c": "x" * 100}
    rows = batch(schema, *[text] * 1000)
    payloads = encode_rows(rows, schema, max_bytes=10_000)
    assert max(map(len, payloads.to_pylist())) <= 10_000
    found = ArrowReader(declared(schema)).decode(payloads)
    assert found.rows.to_pylist() == rows.to_pylist()
    assert sum(counts_of(found)) == 1000
    assert len(counts_of(found)) == len(payloads) > 1
    large = batch(schema, {"c": "x" * 20_000}, {"c": "y"})
    assert len(encode_rows(large, schema, max_bytes=10_000)) == 2
    assert len(encode_rows(rows.slice(0, 0), schema)) == 0


def test_a_record_has_only_so_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = column(INT)
    rows = pa.record_batch([pa.array(range(50), pa.int32())], ["c"])
    whole = only(encode_rows(rows, schema))
    monkeypatch.setattr(arrow_encoding, "MAX_ROWS", 20)
    monkeypatch.setattr(arrow_decoding, "MAX_ROWS", 20)
    found = ArrowReader(declared(schema)).decode(encode_rows(rows, schema))
    assert counts_of(found) == [12, 13, 12, 13]
    assert found.rows.column("c").to_pylist() == [*range(50)]
    assert "says that it has 50 rows" in error_of(whole, schema)


def test_rows_that_no_record_can_say_are_refused() -> None:
    late = pa.record_batch([pa.array([1 << 62], pa.timestamp("us", "UTC"))], ["c"])
    struct = column(Struct((Field(2, "x", INT, required=True),)))
    part = pa.array([{"x": 1}, None, {"x": None}], pa.struct([pa.field("x", pa.int32())]))
    for schema, rows, says in (
        (column(INT, required=True), pa.record_batch([pa.array([1, None], pa.int32())], ["c"]), "row 1 has no value"),
        (struct, pa.record_batch([part], ["c"]), r"row 2 has no value"),
        (column(TIMESTAMP), late, "years 1 to 9999"),
        (column(INT), pa.record_batch([pa.array(["a"])], ["c"]), "these rows have string"),
    ):
        with pytest.raises(RowRefusedError, match=rf"Column c.*{says}.*nothing was written"):
            encode_rows(rows, schema)
    whole = pa.record_batch([part.slice(0, 2)], ["c"])
    assert values_of(only(encode_rows(whole, struct)), struct) == [{"x": 1}, None], "what is null has no parts"


# ---------------------------------------------------------------------- what others write


def test_a_stream_without_ids_is_read_by_names() -> None:
    first = declared(Schema(0, (Field(1, "id", INT), Field(2, "to", Struct((Field(3, "zip", INT),))))))
    last = first.evolved([RenameColumn(("to", "zip"), "code"), RenameColumn(("id",), "number")])
    last = last.evolved([WidenColumn(("number",), LONG)])
    struct = pa.array([{"other": 1, "zip": 5}, None], pa.struct([("other", pa.int64()), ("zip", pa.int16())]))
    theirs = pa.record_batch([struct, pa.array([1, None], pa.int8()), pa.array(["-", "-"])], ["to", "id", "more"])
    found = ArrowReader(last).decode(pa.array([stream(theirs)]))
    assert found.errors.to_pylist() == [None, None]
    assert found.rows.to_pylist() == [{"number": 1, "to": {"code": 5}}, {"number": None, "to": None}]


@pytest.mark.parametrize(
    ("type_", "array", "expected"),
    [
        (STRING, pa.array(["ä", None], pa.large_string()), ["ä", None]),
        (Decimal(20, 2), pa.array([1], pa.decimal128(9, 2)), [1]),
        (ListOf(Field(2, "element", LONG)), pa.array([[1, None], None], pa.large_list(pa.int32())), [[1, None], None]),
        (
            MapOf(Field(2, "key", STRING, required=True), Field(3, "value", LONG)),
            pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int32())),
            [[("a", 1)], None, []],
        ),
    ],
)
def test_types_with_room_are_read(type_: Type, array: pa.Array, expected: list[object]) -> None:
    payload = stream(pa.record_batch([array], ["c"]))
    assert values_of(payload, column(type_)) == expected
    long_before = pa.concat_arrays([array, array]).slice(len(array))
    assert values_of(stream(pa.record_batch([long_before], ["c"])), column(type_)) == expected


# ---------------------------------------------------------------------- what does not fit


def test_records_that_do_not_fit_say_why() -> None:
    schema = column(INT)
    good = batch(schema, {"c": 1}, {"c": None})
    dictionary = pa.record_batch([pa.array([1, 1], pa.int32()).dictionary_encode()], ["c"])
    others = pa.record_batch([pa.array(["a"])], ["c"])
    clock = pa.record_batch([pa.array([1 << 62], pa.timestamp("us", "UTC"))], ["c"])
    for payload, type_, says in (
        (b"", INT, "it has nothing"),
        (b'{"c":1}', INT, "not a valid Arrow stream"),
        (stream(good)[:-100], INT, "Arrow stream"),
        (stream(good) + b"more", INT, "4 bytes stand behind the stream"),
        (stream(good, good), INT, "it has schema, record batch, record batch"),
        (stream(dictionary), INT, "it has schema, dictionary, record batch"),
        (stream(good, compression="lz4"), INT, "compressed"),
        (stream(others), INT, "column c is int, and the record has string"),
        (stream(pa.record_batch([pa.nulls(5)], ["c"])), INT, "column c is null in the record"),
        (stream(pa.record_batch([pa.array([1], pa.int64())], ["c"])), INT, "column c is int, and the record has int64"),
        (stream(pa.record_batch([pa.array([1, 2]), pa.array([1, 2])], ["c", "c"])), LONG, "is there 2 times"),
        (stream(clock), TIMESTAMP, "years 1 to 9999"),
    ):
        assert says in error_of(payload, column(type_)), (payload[:20], error_of(payload, column(type_)))
    required = column(INT, required=True)
    assert error_of(only(encode_rows(good, schema)), required) == "column c is NOT NULL, and there is no value of it"


def test_text_that_is_not_utf8_does_not_fit() -> None:
    array = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")]
    )
    assert "UTF8" in error_of(stream(pa.record_batch([array], ["c"])), column(STRING))


def test_arrays_without_values_that_begin_elsewhere_do_not_fit() -> None:
    five, zeros = (pa.array(said, pa.int32()).buffers()[1] for said in ([5], [0, 0]))
    entries = pa.array([], pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.int32())]))
    nothing = [
        pa.Array.from_buffers(pa.list_(pa.int32()), 0, [None, five], children=[pa.array([], pa.int32())]),
        pa.Array.from_buffers(pa.map_(pa.string(), pa.int32()), 0, [None, five], children=[entries]),
        pa.Array.from_buffers(pa.string(), 0, [None, five, pa.py_buffer(b"")]),
    ]
    map_type = MapOf(Field(3, "key", STRING, required=True), Field(4, "value", INT))
    types: list[Type] = [ListOf(Field(3, "element", INT)), map_type, STRING]
    for type_, inner in zip(types, nothing, strict=True):
        array = pa.Array.from_buffers(pa.list_(inner.type), 1, [None, zeros], children=[inner])
        array.validate(full=True)  # so it says
        said = error_of(stream(pa.record_batch([array], ["c"])), column(ListOf(Field(2, "element", type_))))
        assert said == "an array without values begins at 5, of 0"


def test_a_record_that_does_not_fit_leaves_the_others_alone() -> None:
    schema = column(INT)
    good = only(encode_rows(batch(schema, {"c": 1}, {"c": 2}), schema))
    empty = stream(batch(schema))
    found = ArrowReader(declared(schema)).decode(pa.array([good, b"bad", empty, good], pa.large_binary()))
    assert found.rows.column("c").to_pylist() == [1, 2, None, 1, 2]
    assert [one is None for one in found.errors.to_pylist()] == [True, True, False, True, True]
    assert counts_of(found) == [2, 1, 0, 2]
    nothing = ArrowReader(declared(schema)).decode(pa.array([], pa.binary()))
    assert (nothing.rows.num_rows, len(nothing.errors), len(counts_of(nothing))) == (0, 0, 0)


def test_no_bytes_take_the_process_down() -> None:
    made = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "mutate_arrow.py"), "0", "600"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-2000:]
    refused, read = map(int, made.stdout.split())
    assert refused + read == 600
    assert refused > 100
    assert read > 10
