"""The reference's vectors of cold files: digests of records, and the index."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
from helpers.cold_segments import footer_of, random_segment, written
from helpers.reference_vectors import vectors

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.cold.files.columns import file_schema
from dlspark.core.cold.files.digests import RecordColumns, RecordDigest
from dlspark.core.cold.files.entry_table import EntryTable
from dlspark.core.cold.files.group_index import GroupNumbers, decode_index, encode_index

PAGE = vectors("cold-files.md")
NUMBERS = ("segment", "entry", "slot", "sequence_id", "transaction_id", "flags")


def records(values: list[bytes | None]) -> RecordColumns:
    """Return the vectors' records with these payloads."""
    return RecordColumns.of_numbers(
        [np.frombuffer(PAGE[name], "<i8") for name in NUMBERS], pa.array(values, pa.binary())
    )


def digest_of(records: RecordColumns | None) -> bytes:
    """Return the digest of records."""
    digest = RecordDigest()
    if records is not None:
        digest.update(records)
    return digest.digest()


def test_digests_are_those_of_the_reference() -> None:
    assert digest_of(records([b"first", b"", b"\x00\xff"])) == PAGE["digest"]
    assert digest_of(records([b"first", b"", None])) == PAGE["digest of these where the last one is erased"]
    assert digest_of(None) == PAGE["digest of no records"]
    columns = [PAGE[name] for name in (*NUMBERS, "length", "payloads")]
    assert hashlib.sha256(b"".join(hashlib.sha256(one).digest() for one in columns)).digest() == PAGE["digest"]


def test_bytes_under_a_null_are_not_digested() -> None:
    offsets, data = pa.py_buffer(np.array([0, 5, 5, 9], "<i4")), pa.py_buffer(b"firstgone")
    value = pa.BinaryArray.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\x03"), offsets, data])
    found = digest_of(RecordColumns.of_numbers(records([b"", b"", b""]).numbers, value))
    assert found == PAGE["digest of these where the last one is erased"]


def test_records_are_digested_whichever_way_they_are_cut() -> None:
    whole = records([b"first", b"", b"\x00\xff"])
    digest = RecordDigest()
    for at in range(3):
        digest.update(whole.sliced(at, at + 1))
    assert digest.digest() == PAGE["digest"]


def test_the_index_is_that_of_the_reference() -> None:
    table = EntryTable(*(np.array(one) for one in ([2, 1, 3], [2, 0, 1], [2, 0, 1])))
    low, high = 1_700_000_000_000, 1_700_000_000_005
    group = GroupNumbers(3, 3, 3, DLSN(7, 0, 0), DLSN(7, 2, 1), low, high, low, high, PAGE["digest"])
    assert encode_index([group], [table]) == PAGE["index"]
    numbers, digests, columns = decode_index(PAGE["index"], 1)
    assert numbers.tolist() == [list(group.numbers)]
    assert digests == [PAGE["digest"]]
    assert [one.tolist() for one in columns] == [[2, 1, 3], [0, 1, 2], [0, 0, 0]]


def test_columns_have_the_field_ids_of_the_reference() -> None:
    schema = file_schema(None)
    ids = {one.name: int(one.metadata[b"PARQUET:field_id"]) for one in (*schema, *schema.field("_log").type)}
    names = ("log", "segment", "entry", "slot", "row", "sequence_id", "transaction_id", "flags", "schema")
    assert ids == {"_log": 1_000_000, "value": 1_000_010, "_error": 1_000_011} | {
        name: 1_000_001 + at for at, name in enumerate(names)
    }
    data, _ = written([random_segment(1, 1, records=3)])
    assert footer_of(data).schema.equals(schema, check_metadata=False)
