"""Columns that records seem to have: proposed, and then the records fit."""

from __future__ import annotations

import json
from random import Random

import pyarrow as pa
import pytest

from dlspark.tables.codecs import RecordDecoder
from dlspark.tables.ddl import ddl_of
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.inference import infer


def proposed(*rows: object) -> tuple[str, tuple[str, ...]]:
    """Return the proposal for rows, which fit it unless a note says otherwise."""
    payloads = [json.dumps(row).encode() for row in rows]
    found = infer(payloads)
    assert found.schema is not None
    decoded = RecordDecoder(Declaration.of(RecordFormat.JSON, found.schema)).decode(pa.array(payloads, pa.binary()))
    if not any("not fit" in note for note in found.notes):
        assert decoded.errors.null_count == len(payloads), decoded.errors.to_pylist()
    return ddl_of(found.schema).replace("\n", " "), found.notes


@pytest.mark.parametrize(
    ("rows", "ddl"),
    [
        ([{"a": 1}, {"a": -5}], "a BIGINT NOT NULL"),
        ([{"a": 1}, {"a": 1.5}], "a DOUBLE NOT NULL"),
        ([{"a": 1}, {"a": 2**70}], "a DOUBLE NOT NULL"),
        ([{"a": 1}, {}], "a BIGINT"),
        ([{"a": 1}, {"a": None}], "a BIGINT"),
        ([{"a": True}], "a BOOLEAN NOT NULL"),
        ([{"a": "x"}, {"a": "2026-11-01"}], "a STRING NOT NULL"),
        ([{"a": "2026-11-01"}], "a DATE NOT NULL"),
        ([{"a": "2026-11-01T12:00:00Z"}, {"a": "2026-11-01 12:00"}], "a TIMESTAMP NOT NULL"),
        ([{"a": "2026-11-01T12:00:00.123456+02:00"}], "a TIMESTAMP NOT NULL"),
        ([{"a": "2026-11-01T12:00:00"}], "a TIMESTAMP_NTZ NOT NULL"),
        ([{"a": "2026-11-01"}, {"a": "2026-11-01T12:00:00"}], "a STRING NOT NULL"),
        ([{"a": {"b": 1, "c": "x"}}, {"a": {"b": 2}}, {}], "a STRUCT<b: BIGINT NOT NULL, c: STRING>"),
        ([{"a": [1, 2.5]}, {"a": []}], "a ARRAY<DOUBLE> NOT NULL"),
        ([{"a": [{"b": [True]}]}], "a ARRAY<STRUCT<b: ARRAY<BOOLEAN> NOT NULL>> NOT NULL"),
    ],
)
def test_the_types_of_values_are_those_of_columns(rows: list[object], ddl: str) -> None:
    assert proposed(*rows) == (ddl, ())


@pytest.mark.parametrize(
    ("rows", "ddl", "note"),
    [
        ([{"a": None}], "a STRING", "a has no value but null"),
        ([{"a": []}], "a ARRAY<STRING> NOT NULL", "a is always empty"),
        ([{"a": 1}, {"a": 2}, {"a": "x"}], "a BIGINT NOT NULL", "a is a number in 2 records and something else in 1"),
        ([{"a": 1, "A": 2}], "a BIGINT NOT NULL", "A is left out: a has the same name"),
        ([{"a": 1, "": 2}], "a BIGINT NOT NULL", "'' is left out"),
        ([{"a": 1, "b": {}}], "a BIGINT NOT NULL", "b is left out: it is an object without fields"),
    ],
)
def test_what_a_person_should_know_is_said(rows: list[object], ddl: str, note: str) -> None:
    found, notes = proposed(*rows)
    assert found == ddl
    assert any(one.startswith(note) for one in notes), notes


def test_records_of_other_forms_are_told_apart() -> None:
    found = infer(
        [b"\xc3\x01" + bytes(8), b"\0\0\0\0\x07x", b"\0\0\0\0\x07y", b"\xff\xff\xff\xff..", b"plain", b"[1]", b""]
    )
    assert found.kinds == {"avro": 1, "confluent": 2, "arrow": 1, "other": 3}
    assert found.registered == {7: 2}
    assert (found.records, found.schema) == (7, None)
    assert infer([b"{}"]).schema is None
    assert infer([]).records == 0


def test_random_records_fit_what_is_proposed_for_them() -> None:
    rng = Random(30)

    def value(depth: int) -> object:
        kind = rng.randrange(9 if depth else 6)
        if kind < 6:
            return [rng.randrange(-9, 9), rng.random(), True, None, "text", "2026-11-01T12:00:00Z"][kind]
        if kind == 6:
            return [value(0)] * rng.randrange(3)
        return {name: value(depth - 1) for name in rng.sample("xyz", rng.randrange(1, 4))}

    for _ in range(100):
        row = {name: value(2) for name in "abc"}
        proposed(row, {name: one for name, one in row.items() if rng.random() < 0.7}, row)
