"""Decoded entries as record batches: exactly Spark's schema, timestamps without overflow, batches of a sane size."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from dlspark.core.codec.entries import Compression, EntryBuilder, encode_record_set
from dlspark.core.codec.records import FLAG_RECORD_SET
from dlspark.core.codec.vector_decoding import (
    EXPANDED_BYTES,
    MAX_TIMESTAMP_MS,
    DecodedBatch,
    decode_entries,
    timestamps,
)
from dlspark.core.codec.vector_encoding import encode_entries
from dlspark.spark.errors import SchemaError
from dlspark.spark.metadata_tables.registry import table_named
from dlspark.spark.source.partition_reader import TARGET_BATCH_BYTES, TYPES, _Chunk, _decode, record_batches, select
from dlspark.spark.source.planning import SegmentSpan
from dlspark.spark.source.schema import SCHEMA, column_names
from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from storage_node.client.reader import LedgerLocation

NAMES = list(TYPES)
FIELDS = {field.name: field for field in SCHEMA.fields}


def decoded(txids: list[int], payloads: list[bytes]) -> DecodedBatch:
    ids = np.array(txids, dtype=np.int64)
    values = pa.array(payloads, type=pa.binary())
    entries = encode_entries(ids, values, first_position=1, compression=Compression.NONE)
    bodies = [(n, memoryview(b"".join(bytes(part) for part in entry.buffers))) for n, entry in enumerate(entries)]
    return decode_entries(bodies, lssn=7, start_sequence_id=100)


def test_record_batches_have_exactly_the_schema_that_spark_expects() -> None:
    expected = to_arrow_schema(SCHEMA, timezone="UTC")
    (batch,) = record_batches(decoded([5, 6], [b"a", b"bc"]), "flights", NAMES)
    assert batch.schema.equals(expected)
    assert batch.to_pydict() == {
        "log": ["flights"] * 2,
        "segment": [7, 7],
        "entry": [0, 0],
        "slot": [0, 1],
        "sequence_id": [100, 101],
        "transaction_id": [5, 6],
        "timestamp": [pa.scalar(5000, TYPES["timestamp"]).as_py(), pa.scalar(6000, TYPES["timestamp"]).as_py()],
        "value": [b"a", b"bc"],
    }


def test_some_columns_in_another_order() -> None:
    (batch,) = record_batches(decoded([5], [b"a"]), "flights", ["value", "entry"])
    assert batch.to_pydict() == {"value": [b"a"], "entry": [0]}


def test_without_columns_there_are_as_many_rows() -> None:
    batches = list(record_batches(decoded(list(range(5)), [bytes(1_000_000)] * 5), "flights", []))
    assert len(batches) > 1
    assert [batch.num_columns for batch in batches] == [0] * len(batches)
    assert sum(batch.num_rows for batch in batches) == 5


def test_ids_beyond_the_years_of_timestamps_have_none() -> None:
    ids = np.array([0, MAX_TIMESTAMP_MS, MAX_TIMESTAMP_MS + 1, 2**63 - 2, 2**63 - 1, -1], dtype=np.int64)
    found = timestamps(ids)
    assert found.type == TYPES["timestamp"]
    assert found.is_null().to_pylist() == [False, False, True, True, True, True]
    assert str(found[1].as_py()) == "9999-12-31 23:59:59.999000+00:00"


@pytest.mark.parametrize("size", [1, 100, 1000, 100_000])
def test_record_batches_are_of_a_few_megabytes_and_lose_nothing(size: int) -> None:
    count = 12_000_000 // (size + 70)
    payloads = [n.to_bytes(4, "big").ljust(size, b".")[:size] for n in range(count)]
    rows = decoded(list(range(count)), payloads)
    batches = list(record_batches(rows, "a", NAMES))
    assert max(batch.nbytes for batch in batches) <= 2 * TARGET_BATCH_BYTES
    assert len(batches) >= 2
    assert min(batch.num_rows for batch in batches) > 0
    together = pa.Table.from_batches(batches)
    assert together["transaction_id"].to_pylist() == list(range(count))
    assert together["value"].to_pylist() == payloads


def test_no_rows_make_no_batch() -> None:
    rows = decoded([1], [b"a"])
    assert list(record_batches(select(rows, 0, 0), "a", NAMES)) == []


def test_select_cuts_all_columns_alike() -> None:
    rows = select(decoded(list(range(10)), [bytes([n]) for n in range(10)]), 3, 6)
    (batch,) = record_batches(rows, "a", NAMES)
    assert batch["transaction_id"].to_pylist() == [3, 4, 5]
    assert batch["value"].to_pylist() == [b"\x03", b"\x04", b"\x05"]


def test_a_schema_may_leave_columns_out_but_not_change_them() -> None:
    assert column_names(StructType([FIELDS["value"], FIELDS["log"]])) == ("value", "log")
    with pytest.raises(SchemaError, match="value string"):
        column_names(StructType([StructField("value", StringType())]))
    with pytest.raises(SchemaError, match="origin string"):
        column_names(StructType([StructField("origin", StringType())]))


def test_entries_that_expand_are_decoded_in_pieces_that_are_bounded() -> None:
    """8 record sets of 4 MB, compressed twice, come in one chunk of a few KB."""
    encoded, entries = encode_record_set([bytes(4_000)] * 1_000, Compression.LZ4), []
    for number in range(8):
        builder = EntryBuilder(Compression.LZ4)
        builder.add(number, encoded, 1_000 * number + 1, FLAG_RECORD_SET)
        entries.append((number, memoryview(b"".join(builder.finish().buffers))))
    ledger = LedgerLocation(7, LedgerMetadata(3, 3, 2, (Ensemble(0, ("a", "b", "c")),)), {})
    span = SegmentSpan("flights", 1, ledger, 0, 10, 7, 990, 0, True, 100)
    pieces = list(_decode(_Chunk(span, entries)))
    assert len(pieces) > 1
    assert max(piece.payload.nbytes for piece in pieces) < EXPANDED_BYTES + 6_000_000
    positions = np.concatenate([piece.position for piece in pieces])
    assert positions.tolist() == list(range(11, 7_991)), "without what lies before and behind the span"


def test_columns_that_are_declared_not_null_are_so_in_batches_if_they_can() -> None:
    schema = StructType([StructField(name, FIELDS[name].dataType, name == "timestamp") for name in NAMES])
    names = pickle.loads(pickle.dumps(column_names(schema)))
    (batch,) = record_batches(decoded([5], [b"a"]), "flights", names)
    assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"))
    with pytest.raises(SchemaError, match="timestamp was declared NOT NULL, and may be null"):
        column_names(StructType([StructField("timestamp", FIELDS["timestamp"].dataType, nullable=False)]))
    of_metadata = table_named("segments").schema
    with pytest.raises(SchemaError, match="log was declared NOT NULL"):
        column_names(StructType([StructField("log", StringType(), nullable=False)]), of_metadata)
    assert column_names(of_metadata, of_metadata).required == frozenset()
