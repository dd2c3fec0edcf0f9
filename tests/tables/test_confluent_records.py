"""A peer judges: records of Confluent's serialiser are rows, by the schemas of a registry that the log declares."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import fastavro
import pyarrow as pa
import pytest
from confluent_records import ROWS, SCHEMAS

from dlspark.tables.arrow_types import arrow_schema, schema_from_arrow
from dlspark.tables.avro_encoding import MARKER, fingerprint
from dlspark.tables.avro_schema import avro_schema, schema_from_avro
from dlspark.tables.codecs import RecordDecoder, RecordEncoder
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.evolution import AddColumn, DropColumn, RenameColumn, WidenColumn
from dlspark.tables.types import LONG, STRING, Decimal

CAPTURED = json.loads((Path(__file__).parent / "confluent_records.json").read_text())
RECORDS = {int(number): [bytes.fromhex(one) for one in found] for number, found in CAPTURED["records"].items()}


def declared() -> Declaration:
    """What a log declares that is given the first schema as it is, and both for the registry's numbers."""
    first = Declaration.of(RecordFormat.AVRO, schema_from_avro(SCHEMAS[7]).schema)
    return replace(first, confluent={int(number): schema for number, schema in CAPTURED["schemas"].items()})


def rows_of(declaration: Declaration, *payloads: bytes) -> list[dict[str, object]]:
    found = RecordDecoder(declaration).decode(pa.array(payloads, pa.binary()))
    assert found.errors.null_count == len(payloads), found.errors
    rows: list[dict[str, object]] = found.rows.to_pylist()
    return rows


def expected(*rows: dict[str, object], **more: object) -> list[dict[str, object]]:
    return [row | {"by": list(row["by"].items())} | more for row in rows]  # type: ignore[attr-defined]


def test_the_captured_schemas_are_those_of_the_program() -> None:
    assert {int(number): schema for number, schema in CAPTURED["schemas"].items()} == SCHEMAS


def test_records_of_confluents_serialiser_are_rows() -> None:
    assert rows_of(declared(), *RECORDS[7]) == expected(*ROWS)
    assert str(rows_of(declared(), RECORDS[7][1])[0]["x"]) == "-0.0"
    assert rows_of(declared(), *RECORDS[100_001]) == expected(*ROWS), "a column that the log has not"
    noted = declared().evolved([AddColumn(("note",), STRING, default="none")])
    assert rows_of(noted, RECORDS[7][0], RECORDS[100_001][1]) == [
        *expected(ROWS[0], note="none"),
        *expected(ROWS[1], note="new"),
    ]


def test_they_are_rows_of_a_schema_that_went_on() -> None:
    changes = [
        RenameColumn(("place", "town"), "city"),
        RenameColumn(("place",), "to"),
        RenameColumn(("item",), "what"),
        WidenColumn(("n",), LONG),
        WidenColumn(("price",), Decimal(20, 2)),
        DropColumn(("data",)),
    ]
    (row,) = rows_of(declared().evolved(changes), RECORDS[7][0])
    assert (row["to"], row["what"], row["n"]) == ({"city": "Bonn"}, ROWS[0]["item"], ROWS[0]["n"])
    assert "data" not in row


def test_they_are_read_beside_the_logs_own() -> None:
    declaration = declared()
    given = pa.RecordBatch.from_pylist(expected(ROWS[0]), schema=arrow_schema(declaration.current))
    own = RecordEncoder(declaration).encode(given).payloads.to_pylist()
    assert rows_of(declaration, RECORDS[7][0], *own, RECORDS[100_001][0]) == expected(ROWS[0]) * 3


@pytest.mark.parametrize("number", list(RECORDS))
def test_one_that_is_cut_anywhere_does_not_fit(number: int) -> None:
    payload = RECORDS[number][0]
    cut = [payload[:at] for at in range(len(payload))]
    found = RecordDecoder(declared()).decode(pa.array([*cut, payload], pa.binary()))
    assert found.errors.null_count == 1
    assert found.rows.to_pylist()[-1]["id"] == ROWS[0]["id"]


def test_ours_are_read_by_fastavro_alone() -> None:
    """Of Apache's library in Python the same was seen, with avro 1.12.2: it takes the schema and the datum."""
    columns = schema_from_arrow(pa.schema([("n", pa.int64()), ("price", pa.decimal128(9, 2)), ("a b", pa.string())]))
    declaration = Declaration.of(RecordFormat.AVRO, columns)
    row = {"n": -5, "price": ROWS[0]["price"], "a b": "ä"}
    (payload,) = (
        RecordEncoder(declaration).encode(pa.RecordBatch.from_pylist([row], schema=arrow_schema(columns))).payloads
    )
    said = json.loads(json.dumps(avro_schema(columns)))
    data = payload.as_py()
    assert data[:10] == MARKER + fingerprint(said)
    assert fastavro.schemaless_reader(io.BytesIO(data[10:]), fastavro.parse_schema(said)) == {
        "n": -5, "price": row["price"], "a_x20b": "ä"
    }  # fmt: skip
