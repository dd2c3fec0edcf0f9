"""Avro records: rows come back through every version, fastavro alone reads them, and bytes that do not fit say why."""

from __future__ import annotations

import datetime as dt
import io
import math
import sys
from dataclasses import replace
from decimal import Decimal as Number
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from random_evolution import expected_row, random_life
from random_rows import random_row, random_schema

from dlspark.tables.arrow_types import arrow_schema
from dlspark.tables.avro_decoding import CONFLUENT, AvroReader
from dlspark.tables.avro_encoding import encode_rows, fingerprint
from dlspark.tables.avro_schema import avro_schema, sanitized, schema_from_avro
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.errors import MissingExtraError, RowRefusedError
from dlspark.tables.evolution import AddColumn, DropColumn, RenameColumn, WidenColumn
from dlspark.tables.resolution import DecodedRows
from dlspark.tables.types import (
    BINARY,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Decimal,
    Field,
    InvalidSchemaError,
    ListOf,
    MapOf,
    Schema,
    Struct,
    Type,
)

ORDERS = Schema(
    0,
    (
        Field(1, "id", INT, required=True),
        Field(2, "price", Decimal(9, 2)),
        Field(3, "at", TIMESTAMP),
        Field(4, "a b", Struct((Field(5, "day", DATE), Field(6, "more", Decimal(9, 2)))), doc="both"),
        Field(7, "tags", ListOf(Field(8, "element", STRING, required=True)), required=True),
        Field(9, "m", MapOf(Field(10, "key", STRING, required=True), Field(11, "value", TIMESTAMP_NTZ)), required=True),
        Field(12, "n", MapOf(Field(13, "key", INT, required=True), Field(14, "value", INT)), required=True),
    ),
)


def declared(schema: Schema) -> Declaration:
    return Declaration.of(RecordFormat.AVRO, schema)


def column(type_: Type, *, required: bool = False) -> Schema:
    return Schema(0, (Field(1, "c", type_, required=required),))


def batch(schema: Schema, *rows: dict[str, object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=arrow_schema(schema))


def one_record(schema: Schema, row: dict[str, object]) -> bytes:
    (payload,) = encode_rows(batch(schema, row), schema).to_pylist()
    assert isinstance(payload, bytes)
    return payload


def decode_rows(payloads: pa.Array, declaration: Declaration, registry: dict[int, object] | None = None) -> DecodedRows:
    return AvroReader(replace(declaration, confluent=registry or {})).decode(payloads)


def error_of(payload: bytes, declaration: Declaration, registry: dict[int, object] | None = None) -> str:
    found = decode_rows(pa.array([payload], pa.binary()), declaration, registry)
    assert all(value is None for value in found.rows.to_pylist()[0].values())
    error = found.errors[0].as_py()
    assert isinstance(error, str)
    return error


# ---------------------------------------------------------------------- schemas and fingerprints


@pytest.mark.parametrize(
    ("schema", "canonical", "number"),
    [
        ("null", '"null"', 7195948357588979594),
        ({"type": "boolean"}, '"boolean"', -6970731678124411036),
        ("int", '"int"', 8247732601305521295),
        ("long", '"long"', -3434872931120570953),
        ("string", '"string"', -8142146995180207161),
        ({"values": "string", "type": "map"}, '{"type":"map","values":"string"}', -8732877298790414990),
        (
            {"fields": [], "type": "record", "name": "foo", "namespace": "x.y", "doc": "none"},
            '{"name":"x.y.foo","type":"record","fields":[]}',
            5916914534497305771,
        ),
        (
            {
                "type": "record",
                "name": "foo",
                "fields": [
                    {"type": "boolean", "aliases": [], "name": "f1"},
                    {"order": "descending", "name": "f2", "doc": "Hello", "type": "int"},
                ],
            },
            '{"name":"foo","type":"record","fields":[{"name":"f1","type":"boolean"},{"name":"f2","type":"int"}]}',
            -4860222112080293046,
        ),
        (
            {"namespace": "x.y.z", "type": "fixed", "name": "foo", "doc": "foo bar", "size": 32},
            '{"name":"x.y.z.foo","type":"fixed","size":32}',
            -3064184465700546786,
        ),
    ],
)
def test_canonical_forms_and_fingerprints_are_those_of_avros_own_tests(
    schema: str | dict[str, object], canonical: str, number: int
) -> None:
    assert fastavro.schema.to_parsing_canonical_form(schema) == canonical
    assert fingerprint(schema) == number.to_bytes(8, "little", signed=True)


def test_the_schema_is_icebergs_mapping() -> None:
    decimal = {
        "type": "fixed",
        "name": "decimal_9_2",
        "size": 4,
        "logicalType": "decimal",
        "precision": 9,
        "scale": 2,
    }
    moment = {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True}
    clock = {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False}
    nested = [
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "field-id": 5, "default": None},
        {"name": "more", "type": ["null", "decimal_9_2"], "field-id": 6, "default": None},
    ]
    entry = [
        {"name": "key", "type": "int", "field-id": 13},
        {"name": "value", "type": ["null", "int"], "field-id": 14, "default": None},
    ]
    assert avro_schema(ORDERS) == {
        "type": "record",
        "name": "version_0",
        "fields": [
            {"name": "id", "type": "int", "field-id": 1},
            {"name": "price", "type": ["null", decimal], "field-id": 2, "default": None},
            {"name": "at", "type": ["null", moment], "field-id": 3, "default": None},
            {
                "name": "a_x20b",
                "type": ["null", {"type": "record", "name": "r4", "fields": nested}],
                "field-id": 4,
                "default": None,
                "iceberg-field-name": "a b",
                "doc": "both",
            },
            {"name": "tags", "type": {"type": "array", "items": "string", "element-id": 8}, "field-id": 7},
            {
                "name": "m",
                "type": {"type": "map", "values": ["null", clock], "key-id": 10, "value-id": 11},
                "field-id": 9,
            },
            {
                "name": "n",
                "type": {
                    "type": "array",
                    "items": {"type": "record", "name": "k13_v14", "fields": entry},
                    "logicalType": "map",
                },
                "field-id": 12,
            },
        ],
    }
    back = schema_from_avro(avro_schema(ORDERS))
    assert back.schema == ORDERS
    assert back.by_ids


def test_names_are_changed_as_iceberg_changes_them() -> None:
    names = {"a": "a", "_1": "_1", "1st": "_1st", "a b": "a_x20b", ".x": "_x2Ex", "a1": "a1"}
    assert {name: sanitized(name) for name in names} == names
    assert sanitized("😀") == "_xD83D_xDE00"
    schema = Schema(0, (Field(1, "a b", INT, required=True), Field(2, "a_x20b", INT)))
    names_of = [one["name"] for one in avro_schema(schema)["fields"]]  # type: ignore[attr-defined]
    assert names_of == ["a_x20b", "a_x20b_2"]
    assert schema_from_avro(avro_schema(schema)).schema == schema


@pytest.mark.parametrize(
    "avro",
    [
        "int",
        5,
        "unknown",
        {"type": "record", "name": "r", "fields": []},
        {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["int", "string"]}]},
        {"type": "record", "name": "r", "fields": [{"name": "a", "type": "null"}]},
        {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "r"]}]},
        {"type": "record", "name": "r", "fields": [{"type": "int"}]},
        {"type": "record", "name": "r", "fields": [{"name": "a", "type": {"type": "fixed", "name": "f", "size": 0}}]},
        {"type": "record", "name": "r", "fields": [{"name": "a", "type": {"type": "bytes", "logicalType": "decimal"}}]},
    ],
)
def test_what_no_table_can_have_is_refused(avro: object) -> None:
    with pytest.raises(InvalidSchemaError):
        schema_from_avro(avro)


def test_named_types_are_not_unfolded_without_end() -> None:
    """Of fourteen, each with two fields of the one before, there are 24,574 fields; of thirty, a thousand million."""
    avro: dict[str, object] = {"type": "record", "name": "r0", "fields": [{"name": "a", "type": "int"}]}
    for number in range(1, 14):
        fields = [{"name": "a", "type": avro}, {"name": "b", "type": f"r{number - 1}"}]
        avro = {"type": "record", "name": f"r{number}", "fields": fields}
    with pytest.raises(InvalidSchemaError, match="more than 4096 fields"):
        schema_from_avro(avro)


# ---------------------------------------------------------------------- there and back


@pytest.mark.parametrize("seed", range(20))
def test_rows_come_back_as_they_were_written(seed: int) -> None:
    rng = Random(seed)
    for _ in range(3):
        schema = random_schema(rng)
        rows = batch(schema, *(random_row(rng, schema) for _ in range(20)))
        payloads = encode_rows(rows, schema)
        found = decode_rows(payloads, declared(schema))
        assert found.errors.null_count == 20, (str(schema), found.errors.drop_null()[:1])
        assert repr(found.rows.to_pylist()) == repr(rows.to_pylist()), str(schema)
        assert encode_rows(found.rows, schema).equals(payloads), "the same bytes again"
        assert encode_rows(rows.slice(7, 5), schema).equals(payloads.slice(7, 5)), "whatever is around them"


def like_fastavro(value: object, type_: Type) -> object:
    """A value as fastavro reads it with Avro's logical types."""
    if value is None:
        return None
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=dt.timezone.utc)
    if isinstance(type_, Struct) and isinstance(value, dict):
        names = [one["name"] for one in avro_schema(Schema(0, type_.fields))["fields"]]  # type: ignore[attr-defined]
        return {name: like_fastavro(value[one.name], one.type) for name, one in zip(names, type_.fields, strict=True)}
    if isinstance(type_, ListOf) and isinstance(value, list):
        return [like_fastavro(one, type_.element.type) for one in value]
    if isinstance(type_, MapOf) and isinstance(value, list):
        pairs = [(like_fastavro(key, type_.key.type), like_fastavro(one, type_.value.type)) for key, one in value]
        return dict(pairs) if type_.key.type == STRING else [{"key": key, "value": one} for key, one in pairs]
    return value


@pytest.mark.parametrize("seed", range(20))
def test_fastavro_reads_the_datum_with_the_schema_alone(seed: int) -> None:
    rng = Random(seed)
    schema = random_schema(rng)
    rows = batch(schema, *(random_row(rng, schema) for _ in range(20)))
    parsed = fastavro.parse_schema(avro_schema(schema))
    for payload, row in zip(encode_rows(rows, schema).to_pylist(), rows.to_pylist(), strict=True):
        assert payload[:10] == b"\xc3\x01" + fingerprint(avro_schema(schema))
        source = io.BytesIO(payload[10:])
        found = fastavro.schemaless_reader(source, parsed)
        assert repr(found) == repr(like_fastavro(row, Struct(schema.fields)))
        assert not source.read()


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_every_version_are_rows_of_the_current_one(seed: int) -> None:
    rng = Random(seed)
    for _ in range(3):
        declaration = random_life(rng, RecordFormat.AVRO)
        payloads: list[bytes] = []
        expected: list[dict[str, object]] = []
        for schema in declaration.schemas:
            rows = batch(schema, *(random_row(rng, schema) for _ in range(5)))
            payloads += encode_rows(rows, schema).to_pylist()
            current = declaration.current
            expected += [expected_row(row, schema.fields, current.fields) for row in rows.to_pylist()]
        found = decode_rows(pa.array(payloads, pa.binary()), declaration)
        assert found.errors.null_count == len(payloads), found.errors.drop_null()[:1]
        wanted = pa.RecordBatch.from_pylist(expected, schema=found.rows.schema)
        assert repr(found.rows.to_pylist()) == repr(wanted.to_pylist())


def test_a_column_added_in_the_place_of_a_dropped_one_does_not_show_its_values() -> None:
    first = declared(Schema(0, (Field(1, "id", INT), Field(2, "a", INT))))
    last = first.evolved([DropColumn(("a",))]).evolved([AddColumn(("a",), INT)])
    payload = one_record(first.current, {"id": 1, "a": 5})
    assert decode_rows(pa.array([payload]), last).rows.to_pylist() == [{"id": 1, "a": None}]


def test_a_record_has_these_bytes() -> None:
    schema = Schema(0, (Field(1, "n", LONG, required=True), Field(2, "s", STRING), Field(3, "p", Decimal(9, 2))))
    payload = one_record(schema, {"n": -2, "s": "äb", "p": Number("1.50")})
    assert payload[:2] == b"\xc3\x01"
    assert payload[10:] == b"\x03" + b"\x02\x06\xc3\xa4b" + b"\x02\x00\x00\x00\x96"


def test_equal_rows_give_equal_bytes() -> None:
    schema = column(DOUBLE)
    other = pa.array([0xFFF8000000000001], pa.uint64()).view(pa.float64())
    odd = pa.RecordBatch.from_arrays([other], schema=arrow_schema(schema))
    assert encode_rows(odd, schema).to_pylist() == [one_record(schema, {"c": math.nan})]
    maps = column(MapOf(Field(2, "key", STRING, required=True), Field(3, "value", INT)))
    there, back = ([("b", 1), ("a", 2)], [("a", 2), ("b", 1)])
    assert one_record(maps, {"c": there}) != one_record(maps, {"c": back}), "entries keep their order"


def test_rows_that_no_record_can_say_are_refused() -> None:
    maps = column(MapOf(Field(2, "key", INT, required=True), Field(3, "value", INT)))
    late = pa.RecordBatch.from_arrays([pa.array([1 << 62], pa.timestamp("us", "UTC"))], ["c"])
    for schema, rows, says in (
        (column(INT, required=True), pa.RecordBatch.from_pydict({"c": pa.array([1, None], pa.int32())}), "row 1"),
        (maps, batch(maps, {"c": [(1, 1), (1, 2)]}), "a key twice"),
        (column(TIMESTAMP), late, "years 1 to 9999"),
    ):
        with pytest.raises(RowRefusedError, match=f"Column c .*{says}"):
            encode_rows(rows, schema)


# ---------------------------------------------------------------------- what does not fit


def test_bytes_that_are_no_record_say_why() -> None:
    schema = column(STRING, required=True)
    good = one_record(schema, {"c": "abc"})
    ours = declared(schema)
    for payload, says in (
        (b"", "does not begin as an Avro one, but with nothing"),
        (b'{"c":1}', "does not begin as an Avro one, but with 7b22"),
        (good[:7], "ends within the fingerprint, after 7 bytes"),
        (good[:2] + b"\x01" * 8 + good[10:], "fingerprint 0101010101010101"),
        (good[:-1], "cut short"),
        (good[:10], "cut short"),
        (good + b"\x00\x00", "2 bytes stand behind the datum"),
        (good[:-1] + b"\xff", "not UTF-8"),
        (good[:10] + b"\xff" * 9 + b"\x01", "cut short"),
        (b"\x00\x00\x00\x00\x01" + good[10:], "does not begin as an Avro one"),
    ):
        assert says in error_of(payload, ours), payload
    optional = column(INT)
    broken = one_record(optional, {"c": 1})[:10] + b"\x08\x02"
    assert "not one of its schema" in error_of(broken, declared(optional))
    large = one_record(optional, {"c": 1})[:11] + b"\xfe\xff\xff\xff\xff\x01"
    assert "column c is int" in error_of(large, declared(optional))
    digits = one_record(column(Decimal(2, 1)), {"c": Number("9.9")})[:11] + b"\x64"
    assert "more digits" in error_of(digits, declared(column(Decimal(2, 1))))
    late = one_record(column(TIMESTAMP), {"c": 0})[:11] + b"\xfe" + b"\xff" * 8 + b"\x01"
    assert "years 1 to 9999" in error_of(late, declared(column(TIMESTAMP)))


def test_a_record_that_does_not_fit_leaves_the_others_alone() -> None:
    schema = column(INT)
    good = one_record(schema, {"c": 3})
    found = decode_rows(pa.array([good, b"bad", good], pa.large_binary()), declared(schema))
    assert found.rows.column("c").to_pylist() == [3, None, 3]
    assert [one is None for one in found.errors.to_pylist()] == [True, False, True]
    assert decode_rows(pa.array([], pa.binary()), declared(schema)).rows.num_rows == 0


@pytest.mark.parametrize("seed", range(10))
def test_no_bytes_raise(seed: int) -> None:
    rng = Random(seed)
    schema = random_schema(rng)
    reader = AvroReader(declared(schema))
    rows = batch(schema, *(random_row(rng, schema) for _ in range(10)))
    records = []
    for payload in encode_rows(rows, schema).to_pylist() * 30:
        changed = bytearray(payload)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(10, len(changed) + 1)
            changed[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 3))
        records.append(bytes(changed))
    found = reader.decode(pa.array(records, pa.binary()))
    assert found.rows.num_rows == len(found.errors) == len(records)
    found.rows.validate(full=True)
    found.rows.to_pylist()


# ---------------------------------------------------------------------- Confluent's prefix


def confluent(number: int, avro: dict[str, Any], datum: dict[str, object]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(avro), datum)
    return CONFLUENT.pack(0, number) + out.getvalue()


THEIRS: dict[str, object] = {
    "type": "record",
    "name": "Order",
    "namespace": "com.example",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "cost", "type": ["double", "null"]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "DONE"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "before", "type": ["null", "State"]},
        {"name": "passed_over", "type": {"type": "array", "items": "long"}},
    ],
}
OURS = Schema(
    0,
    (
        Field(1, "id", LONG, required=True),
        Field(2, "cost", DOUBLE),
        Field(3, "state", STRING),
        Field(4, "at", TIMESTAMP),
        Field(5, "price", Decimal(12, 2)),
        Field(6, "before", STRING),
        Field(7, "note", STRING, default="none"),
        Field(8, "raw", BINARY),
    ),
)


def test_records_with_confluents_prefix_are_read_by_names() -> None:
    at = dt.datetime(2026, 11, 26, 8, tzinfo=dt.timezone.utc)
    row = {"id": 7, "cost": 1.5, "state": "DONE", "at": at, "price": Number("1.50"), "before": None}
    payload = confluent(12, THEIRS, {**row, "passed_over": [1]})
    found = decode_rows(pa.array([payload]), declared(OURS), {12: THEIRS})
    assert found.errors.to_pylist() == [None]
    assert found.rows.to_pylist() == [{**row, "note": "none", "raw": None}]
    renamed = declared(OURS).evolved([RenameColumn(("cost",), "total")])
    assert decode_rows(pa.array([payload]), renamed, {12: THEIRS}).rows.column("total").to_pylist() == [1.5]
    registry: dict[int, object] = {12: THEIRS}
    assert "the log declares no schema 13" in error_of(
        confluent(13, THEIRS, {**row, "passed_over": []}), renamed, registry
    )
    assert "after 3 bytes" in error_of(payload[:3], renamed, registry)
    assert "cut short" in error_of(payload[:-2], renamed, registry)


def test_a_schema_of_the_registry_that_cannot_be_read_is_an_error_of_its_records() -> None:
    other: dict[str, Any] = {"type": "record", "name": "r", "fields": [{"name": "c", "type": "string"}]}
    payload = confluent(1, other, {"c": "a"})
    assert "column c is int, and the record's schema has string" in error_of(payload, declared(column(INT)), {1: other})
    for broken in ({"type": "record"}, "int", {"type": "record", "name": "r", "fields": [{"name": "c", "type": "x"}]}):
        assert "schema cannot be read" in error_of(payload, declared(column(INT)), {1: broken})
    required = Schema(0, (Field(1, "d", INT, required=True),))
    assert "column d is NOT NULL" in error_of(payload, declared(required), {1: other})
    may_be_null: dict[str, Any] = {"type": "record", "name": "r", "fields": [{"name": "c", "type": ["null", "int"]}]}
    payload = confluent(1, may_be_null, {"c": None})
    assert "column c is NOT NULL" in error_of(payload, declared(column(INT, required=True)), {1: may_be_null})


def test_widened_columns_read_older_records() -> None:
    fields = (Field(1, "i", INT), Field(2, "f", FLOAT), Field(3, "d", Decimal(4, 2)))
    first = declared(Schema(0, fields))
    payload = one_record(first.current, {"i": -5, "f": 0.5, "d": Number("-12.34")})
    last = first.evolved([WidenColumn(("i",), LONG), WidenColumn(("f",), DOUBLE), WidenColumn(("d",), Decimal(38, 2))])
    assert decode_rows(pa.array([payload]), last).rows.to_pylist() == [{"i": -5, "f": 0.5, "d": Number("-12.34")}]


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(MissingExtraError, match="fastavro") as caught:
        AvroReader(declared(ORDERS))
    assert "dlspark[avro]" in (caught.value.advice or "")
