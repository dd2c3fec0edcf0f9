"""The vectors of docs/reference/tables.md and of declarations: what is written, what is read, and that it stays so."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from helpers.record_vectors import VALUES, all_types, declaration, declared, record
from helpers.reference_vectors import vectors
from random_rows import random_row, random_schema

from dlspark.tables.arrow_types import arrow_schema, schema_from_arrow
from dlspark.tables.codecs import RecordDecoder, RecordEncoder
from dlspark.tables.declaration import Declaration, RecordFormat

RECORDS = vectors("tables.md")
PROGRAM = Path(__file__)


@pytest.mark.parametrize("name", list(VALUES))
@pytest.mark.parametrize("format_", [RecordFormat.JSON, RecordFormat.AVRO])
def test_a_value_has_the_bytes_of_its_vector(format_: RecordFormat, name: str) -> None:
    type_, value = VALUES[name]
    payload = RECORDS[f"{format_.value} {name}"]
    assert record(format_, type_, value) == payload
    found = RecordDecoder(declared(format_, type_)).decode(pa.array([payload], pa.binary()))
    assert found.errors.to_pylist() == [None]
    assert repr(found.rows.to_pylist()[0]["c"]) == repr(
        pa.array([value], found.rows.schema.field("c").type).to_pylist()[0]
    )


def test_a_batch_of_all_types_has_the_bytes_of_its_vector() -> None:
    made, rows = all_types()
    payload = RECORDS["arrow all types"]
    assert RecordEncoder(made).encode(rows).payloads.to_pylist() == [payload]
    found = RecordDecoder(made).decode(pa.array([payload], pa.binary()))
    assert found.errors.to_pylist() == [None, None]
    assert repr(found.rows.to_pylist()) == repr(rows.to_pylist())


def test_every_vector_is_of_a_value() -> None:
    named = {f"{one} {name}" for one in ("json", "avro") for name in VALUES}
    assert set(RECORDS) == named | {"arrow all types"}


def test_a_declaration_has_the_bytes_of_its_vector() -> None:
    data = vectors("znodes.md")["declaration"]
    assert declaration().encode() == data
    assert Declaration.decode(data, "/p") == declaration()


def digest(seed: int) -> str:
    """Return a digest of records of random rows, in every format."""
    found = hashlib.sha256()
    for format_ in RecordFormat:
        rng = Random(seed)
        for _ in range(4):
            schema = random_schema(rng)
            rows = pa.RecordBatch.from_pylist([random_row(rng, schema) for _ in range(5)], schema=arrow_schema(schema))
            made = Declaration.of(format_, schema)
            found.update(made.encode())
            for payload in RecordEncoder(made).encode(rows).payloads.to_pylist():
                found.update(payload)
    return found.hexdigest()


def test_equal_rows_give_equal_bytes_in_every_process_and_thread() -> None:
    here = digest(1)
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(digest, [1] * 4)) == {here}
    paths = os.pathsep.join([str(PROGRAM.parent), str(PROGRAM.parent.parent)])
    made = subprocess.run(
        [sys.executable, "-c", "from test_table_vectors import digest; print(digest(1))"],
        env=os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert made.stdout.strip() == here, made.stderr[-2_000:]


@pytest.mark.parametrize("format_", list(RecordFormat))
def test_equal_rows_give_equal_bytes_however_they_lie_in_memory(format_: RecordFormat) -> None:
    """Slices of others, parts of a table, dictionaries of other keys, large types, views, bytes under nulls."""
    texts = ["a", None, "", "ä", "a"]
    lists: list[list[int | None] | None] = [[1], None, [], [None, 2], [3]]
    given: dict[str, tuple[pa.DataType, list[pa.Array]]] = {
        "text": (
            pa.string(),
            [
                pa.array(texts, pa.large_string()),
                pa.array(texts, pa.string_view()),
                pa.array(texts).dictionary_encode(),
                pa.DictionaryArray.from_arrays(pa.array([2, None, 0, 3, 2], pa.int8()), ["", "unused", "a", "ä"]),
                pa.array(["x", *texts])[1:],
            ],
        ),
        "numbers": (
            pa.list_(pa.int64()),
            [
                pa.array(lists, pa.large_list(pa.int64())),
                pa.array([[7, 7], *lists, [8]], pa.list_(pa.int64()))[1:-1],
                pa.array(lists, pa.list_(pa.int32())),
            ],
        ),
        "flag": (
            pa.int32(),
            [
                pa.Array.from_buffers(
                    pa.int32(), 5, [pa.py_buffer(b"\x0d"), pa.array([1, 99, 3, 4, 99], pa.int32()).buffers()[1]]
                ),
                pa.array([1, None, 3, 4, None], pa.int8()),
                pa.array([0, 1, None, 3, 4, None], pa.int64())[1:],
            ],
        ),
    }
    plain = {"text": texts, "numbers": lists, "flag": [1, None, 3, 4, None]}
    for name, (type_, ways) in given.items():
        schema = pa.schema([(name, type_)])
        encoder = RecordEncoder(Declaration.of(format_, schema_from_arrow(schema)))
        expected = encoder.encode(pa.record_batch([pa.array(plain[name], type_)], schema=schema)).payloads
        for way in ways:
            assert way.to_pylist() == plain[name]
            assert encoder.encode(pa.record_batch([way], [name])).payloads.equals(expected), way.type
