"""JSON records as rows: what was written comes back, and both ways of reading say the same of every record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from random_rows import random_row, random_schema

from dlspark.tables.arrow_types import arrow_schema
from dlspark.tables.json_decoding import JsonReader, decode_rows
from dlspark.tables.json_encoding import encode_rows
from dlspark.tables.resolution import DecodedRows
from dlspark.tables.types import (
    BINARY,
    BOOLEAN,
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
    ListOf,
    MapOf,
    Schema,
    Struct,
    Type,
)

POINT = Struct((Field(2, "x", INT, required=True), Field(3, "y", STRING)))


def same(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """Whether two batches have the same values; NaN is NaN, and 0.0 is not -0.0."""
    return repr(one.to_pylist()) == repr(other.to_pylist())


def decoded(type_: Type, *texts: str | bytes, required: bool = False, default: object = None) -> list[object]:
    """The value of a column in each record, or the error."""
    schema = Schema(0, (Field(1, "c", type_, required=required, default=default),))
    payloads = [one.encode() if isinstance(one, str) else one for one in texts]
    found = decode_rows(pa.array(payloads, pa.binary()), schema)
    assert found.rows.num_rows == len(found.errors) == len(texts)
    values = zip(found.rows.column("c").to_pylist(), found.errors.to_pylist(), strict=True)
    assert all(error is None or value is None for value, error in found_pairs(found))
    return [value if error is None else f"! {error}" for value, error in values]


def found_pairs(found: DecodedRows) -> list[tuple[object, str | None]]:
    return list(zip(found.rows.column("c").to_pylist(), found.errors.to_pylist(), strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_rows_come_back_as_they_were_written(seed: int) -> None:
    rng = Random(seed)
    for _ in range(5):
        schema = random_schema(rng, maps=seed % 2 == 0)
        rows = pa.RecordBatch.from_pylist([random_row(rng, schema) for _ in range(20)], schema=arrow_schema(schema))
        payloads = encode_rows(rows, schema)
        found = decode_rows(payloads, schema)
        assert found.errors.null_count == 20, (schema, found.errors.drop_null()[:1])
        assert same(found.rows, rows), str(schema)
        assert encode_rows(found.rows, schema).equals(payloads), "the same bytes again"


def mutated(rng: Random, payload: bytes) -> bytes:
    """A record that was changed a little."""
    what = rng.randrange(6)
    at = rng.randrange(len(payload) + 1)
    if what == 0:
        return payload[:at] + payload[at + rng.randint(1, 4) :]
    if what == 1:
        said = rng.choice(
            (
                b'"',
                b"{",
                b"}",
                b",",
                b"1",
                b"null",
                b"\n",
                b" ",
                b"\xff",
                b"\\u0061",
                b"1.0",
                b"NaN",
                b"Inf",
                b"\x00",
                b"e5",
            )
        )
        return payload[:at] + said + payload[at:]
    if what == 2:
        return payload + payload
    if what == 3:
        return payload[:-1] + b',"more":[1,{"x":null}]}'
    if what == 4:
        return b" " + payload + b"\t"
    return payload.replace(b":", b": ", 1)


@pytest.mark.parametrize("seed", range(8))
def test_the_fast_way_gives_what_the_slow_way_gives_or_nothing(seed: int) -> None:
    rng = Random(seed)
    taken = 0
    for _ in range(6):
        schema = random_schema(rng, maps=False)
        reader = JsonReader(schema, {})
        rows = pa.RecordBatch.from_pylist([random_row(rng, schema) for _ in range(25)], schema=arrow_schema(schema))
        for payload in encode_rows(rows, schema).to_pylist():
            record = payload if rng.random() < 0.1 else mutated(rng, payload)
            array = pa.array([record], pa.binary())
            fast = reader._by_block(array)
            if fast is not None:
                slow = reader._by_rows([record])
                assert slow.errors[0].as_py() is None, (record, slow.errors[0])
                assert same(fast, slow.rows), record
                taken += 1
    assert taken > 10, "it is taken at all"


def test_a_record_that_does_not_fit_leaves_the_others_alone() -> None:
    found = decoded(INT, '{"c":1}', "broken", '{"c":3}', "", '{"c":4}{"c":5}', '{"c":\n6}')
    assert found[0] == 1
    assert found[2] == 3
    assert found[5] == 6
    assert all(str(found[at]).startswith("! the record is not JSON") for at in (1, 3, 4))
    assert decoded(INT) == []


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        (INT, '{"c":1.0}', 1),
        (LONG, '{"c":1e3}', 1000),
        (LONG, '{"c":-0}', 0),
        (INT, '{"c":null}', None),
        (INT, '{"C":1}', None),
        (INT, '{"d":1,"d":2}', None),
        (DOUBLE, '{"c":1}', 1.0),
        (DOUBLE, '{"c":"-Infinity"}', float("-inf")),
        (Decimal(9, 2), '{"c":"12.5"}', 12.5),
        (Decimal(9, 2), '{"c":1e2}', 100),
        (Decimal(9, 2), '{"c":12.500}', 12.5),
        (STRING, '{"c":"\\u0061\\ud83d\\ude00"}', "a😀"),
        (ListOf(Field(2, "element", INT)), '{"c":[1,null]}', [1, None]),
        (POINT, '{"c":{"x":1,"z":2}}', {"x": 1, "y": None}),
    ],
)
def test_what_others_write_is_read(type_: Type, text: str, expected: object) -> None:
    assert decoded(type_, text) == [expected]
    assert decoded(type_, text, "broken")[0] == expected, "whatever else is in the block"


@pytest.mark.parametrize(
    ("texts", "micros"),
    [
        (
            [
                '"2026-11-01T12:00:00Z"',
                '"2026-11-01 12:00"',
                '"2026-11-01T14:00:00+02:00"',
                '"2026-11-01T12:00:00.000"',
            ],
            0,
        ),
        (['"2026-11-01T12:00:00.000007Z"'], 7),
    ],
)
def test_times_are_read_as_iso_8601(texts: list[str], micros: int) -> None:
    records = [f'{{"c":{text}}}' for text in texts]
    expected = f"2026-11-01 12:00:00.{micros:06d}+00:00" if micros else "2026-11-01 12:00:00+00:00"
    for found in (decoded(TIMESTAMP, *records), decoded(TIMESTAMP, *records, "broken")[:-1]):
        assert [str(one) for one in found] == [expected] * len(texts)
    assert "is timestamp, and" in str(decoded(TIMESTAMP_NTZ, '{"c":"2026-11-01T12:00:00Z"}')[0]), "a clock has no zone"


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (INT, '{"c":1.5}'),
        (INT, '{"c":2147483648}'),
        (LONG, '{"c":9223372036854775808}'),
        (LONG, '{"c":1e1000000000}'),
        (INT, '{"c":"5"}'),
        (INT, '{"c":true}'),
        (INT, '{"c":1,"c":2}'),
        (BOOLEAN, '{"c":1}'),
        (DOUBLE, '{"c":1e400}'),
        (DOUBLE, '{"c":"nan"}'),
        (FLOAT, '{"c":1e39}'),
        (Decimal(3, 2), '{"c":10.00}'),
        (Decimal(3, 2), '{"c":1.005}'),
        (STRING, '{"c":5}'),
        (STRING, '{"c":"\\ud800"}'),
        (BINARY, '{"c":"no base64!"}'),
        (DATE, '{"c":5}'),
        (DATE, '{"c":"2026-13-01"}'),
        (TIMESTAMP, '{"c":"yesterday"}'),
        (ListOf(Field(2, "element", INT, required=True)), '{"c":[1,null]}'),
        (POINT, '{"c":{"y":"a"}}'),
        (POINT, '{"c":[1]}'),
        (MapOf(Field(2, "key", INT, required=True), Field(3, "value", INT)), '{"c":{"a":1}}'),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_the_column(type_: Type, text: str) -> None:
    (found,) = decoded(type_, text)
    assert str(found).startswith("! column c"), found


@pytest.mark.parametrize("text", ["[]", "5", "null", '"x"', '{"c":1', b"\xff{}", "\ufeff{}", "[" * 100_000])
def test_what_is_not_an_object_is_an_error(text: str | bytes) -> None:
    (found,) = decoded(INT, text)
    assert str(found).startswith("! the record is")


def test_a_missing_column_has_its_default_and_null_is_null() -> None:
    assert decoded(INT, '{"c":null}', "{}", '{"c":3}', default=7) == [None, 7, 3]
    assert decoded(INT, "{}", '{"c":3}', default=7) == [7, 3]
    assert decoded(INT, '{"\\u0063":null}', "{}", default=7) == [None, 7]
    assert decoded(Decimal(9, 2), "{}", default="1.50")[0] == decoded(Decimal(9, 2), '{"c":1.50}')[0]
    required = decoded(INT, "{}", '{"c":null}', '{"c":1}', required=True)
    assert [str(one)[:34] for one in required] == ["! column c is NOT NULL, and there "] * 2 + ["1"]


def test_a_name_is_found_however_it_is_escaped() -> None:
    schema = Schema(0, (Field(1, "a/b", INT, default=7),))
    for text in ('{"a\\/b":null}', '{"a\\u002fb":null}', '{"a/b":null}'):
        assert decode_rows(pa.array([text.encode()]), schema).rows.to_pylist() == [{"a/b": None}], text


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (DATE, '"0000-01-01"'),
        (TIMESTAMP, '"0001-01-01T00:00:00+05:00"'),
        (TIMESTAMP, '"9999-12-31T23:59:59-05:00"'),
        (TIMESTAMP_NTZ, '"0000-12-31T23:59:59"'),
    ],
)
def test_a_time_that_neither_python_nor_sql_has_does_not_fit(type_: Type, text: str) -> None:
    (found,) = decoded(type_, f'{{"c":{text}}}')
    assert str(found).startswith("! column c is"), found
    in_a_list = decoded(ListOf(Field(2, "element", type_)), f'{{"c":[null,{text}]}}', '{"c":[]}')
    assert str(in_a_list[0]).startswith("! column c.element is")
    assert in_a_list[1] == []


def test_it_does_not_depend_on_the_caller_how_deep_a_record_may_be() -> None:
    """In a member that no column has: Python's parser would refuse some depths that Arrow's reader takes."""
    for nested, fits in ((199, True), (200, False), (5_000, False)):
        text = f'{{"c":1,"d":{"[" * nested}{"]" * nested}}}'
        assert decoded(INT, text) == decoded(INT, text, "broken")[:1]
        assert (decoded(INT, text) == [1]) is fits
    wide = f'{{"c":1,"d":[{"[]," * 5_000}{{}}],"e":"{"[" * 5_000}"}}'
    assert decoded(INT, wide) == [1], "many, and not deep"


@pytest.mark.parametrize("text", ["1_0", " 10", "10 ", "１０", "", "0x1", "1e", "."])
def test_a_decimal_has_digits_and_a_point(text: str) -> None:
    assert str(decoded(Decimal(9, 2), json.dumps({"c": text}))[0]).startswith("! column c is decimal")


def test_a_decimal_may_have_zeros_before_it() -> None:
    text = json.dumps({"c": "0" * 500 + "1.50"})
    endless = json.dumps({"c": "0" * 1_000_000 + "x"})
    assert str(decoded(Decimal(9, 2), endless)[0]).startswith("! column c"), "and it does not take minutes"
    assert [str(one) for one in decoded(Decimal(9, 2), text, text.replace("1.", "2."), "broken")[:2]] == [
        "1.50",
        "2.50",
    ]


def test_a_decimals_digits_do_not_overflow() -> None:
    """Arrow's reader of 128 bits moves them without looking, and by more than it has a table for."""
    for type_, number in (
        (Decimal(38, 36), "-999999999999999999999999999999999999"),
        (Decimal(38, 38), "1" + "0" * 37),
        (Decimal(9, 2), "1e-41"),
        (Decimal(9, 2), "1.5e-38"),
        (Decimal(38, 30), "1e-1000000000"),
        (Decimal(9, 2), "0.5e-0039"),
    ):
        for text in (number, f'"{number}"', f" {number} "):
            for nested, made in ((type_, "{}"), (ListOf(Field(2, "element", type_)), "[1e0,{},0]")):
                (found,) = decoded(nested, f'{{"c":{made.replace("{}", text)}}}')
                assert str(found).startswith("! column c"), (type_, text, found)
    assert decoded(Decimal(38, 38), '{"c":1E-38}', '{"c":0e-38}', '{"c":"1.00e-36"}') == decoded(
        Decimal(38, 38), *(f'{{"c":0.{digits}}}' for digits in ("0" * 37 + "1", "0", "0" * 35 + "1"))
    )


@pytest.mark.timeout(7_200)
def test_both_ways_of_reading_say_the_same_of_changed_records(rounds: int | None, tmp_path: Path) -> None:
    """In a process of its own: what takes that down is in the file."""
    program, last = Path(__file__).parent / "mutate_json.py", tmp_path / "last"
    for seed in range(1 if rounds is None else rounds):
        many = "600" if rounds is None else "10000"
        made = subprocess.run(
            [sys.executable, str(program), str(seed), many, str(last)],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert made.returncode == 0, made.stderr[-4_000:] + last.read_text()[:4_000]
        seen, fast = map(int, made.stdout.split())
        assert seen >= int(many)
        assert fast > seen // 20


def test_a_renamed_column_is_read_by_its_former_names() -> None:
    schema = Schema(1, (Field(1, "total", INT), Field(2, "to", Struct((Field(3, "city", STRING),)))))
    records = ['{"price":1,"to":{"town":"a"}}', '{"total":2,"to":{"city":"b"}}', '{"cost":3,"total":4}', "{}"]
    found = decode_rows(pa.array([one.encode() for one in records]), schema, {1: ("price", "cost"), 3: ("town",)})
    assert found.rows.to_pylist() == [
        {"total": 1, "to": {"city": "a"}},
        {"total": 2, "to": {"city": "b"}},
        {"total": 4, "to": None},
        {"total": None, "to": None},
    ]


def test_many_records_go_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from dlspark.tables import json_decoding

    monkeypatch.setattr(json_decoding, "BLOCK_ROWS", 10)
    texts = [json.dumps({"c": number}) if number % 17 else "bad" for number in range(95)]
    found = decoded(INT, *texts)
    assert [one if isinstance(one, int) else "bad" for one in found] == [n if n % 17 else "bad" for n in range(95)]
