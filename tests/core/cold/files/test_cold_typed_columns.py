"""Records of a declared schema as typed columns, whose bytes come back exactly; and all that does not fit."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.cold_segments import (
    IDENTITY,
    SegmentMaker,
    columns,
    footer_of,
    parts_of,
    rebuilt,
    records_of,
    written,
)
from random_evolution import random_life
from random_rows import random_row

from dlspark.core.cold.files.columns import FLAG_ERASED
from dlspark.core.cold.files.digests import RecordColumns
from dlspark.core.cold.files.row_groups import decode_row_group
from dlspark.core.cold.files.writing import ColdFileWriter
from dlspark.tables.arrow_types import arrow_schema
from dlspark.tables.codecs import RecordDecoder, RecordEncoder
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.evolution import AddColumn, DropColumn, RenameColumn, WidenColumn
from dlspark.tables.types import DOUBLE, INT, LONG, STRING, Field, Schema
from metadata.foundation.errors import CorruptDataError

FORMATS = list(RecordFormat)
JUNK = (b"", b"{}", b'{"id": 1', b"null", b"\xff\xfe", b'{"id" : 1}', b"[1]", b"\xc3\x01" + bytes(12))


def as_of(declaration: Declaration, version: int) -> Declaration:
    """Return a declaration as it was when a version was current."""
    return replace(declaration, schemas=declaration.schemas[: version + 1])


def drawn_records(dice: random.Random, declaration: Declaration) -> tuple[list[bytes], set[bytes]]:
    """Return records of all versions, and others among them that do not fit, or are of another form; and those of the
    current version."""
    payloads: list[bytes] = []
    newest: list[bytes] = []
    for schema in declaration.schemas:
        rows = [
            random_row(dice, schema)
            for _ in range(dice.choice((3, 30 if declaration.format is RecordFormat.ARROW else 150)))
        ]
        batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(schema))
        encoder = RecordEncoder(as_of(declaration, schema.id), max_bytes=dice.choice((None, 2_000)))
        newest = encoder.encode(batch).payloads.to_pylist()
        payloads += newest
        if declaration.format is RecordFormat.ARROW:
            payloads += RecordEncoder(as_of(declaration, schema.id)).encode(batch.slice(0, 1)).payloads.to_pylist()
    for _ in range(dice.randrange(6)):
        payloads.insert(dice.randrange(len(payloads)), dice.choice(JUNK))
    return payloads, set(newest) - set(JUNK)


def typed_file(
    payloads: list[bytes], declaration: Declaration, dice: random.Random, group_bytes: int = 20_000
) -> bytes:
    """Return a cold file of one segment with these records."""
    maker = SegmentMaker(1)
    for payload in payloads:
        if dice.random() < 0.1:
            maker.end_entry()
        if dice.random() < 0.05:
            maker.control()
        maker.record(payload)
    data, _ = written([maker.finish()], declaration, row_group_bytes=group_bytes)
    return data


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("number", range(6))
def test_records_of_any_schema_come_back_and_their_columns_are_what_readers_see(
    format_: RecordFormat, number: int
) -> None:
    check_any_schema(format_, number)


@pytest.mark.long
@pytest.mark.torture
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("format_", FORMATS)
def test_records_of_more_schemas_come_back(format_: RecordFormat, rounds: int | None, seed: int | None) -> None:
    for number in range(rounds or 1):
        check_any_schema(format_, number if seed is None else seed)


def check_any_schema(format_: RecordFormat, number: int) -> None:
    """Write records of a drawn schema's versions, and compare all that comes back."""
    dice = random.Random(f"{format_} {number}")
    declaration = random_life(dice, format_, steps=dice.randrange(6))
    payloads, newest = drawn_records(dice, declaration)
    data = typed_file(payloads, declaration, dice)
    footer = footer_of(data)
    found = [value for index in range(len(footer.row_groups)) for value in records_of(data, footer, index).value]
    assert [one.as_py() for one in found] == payloads

    seen = RecordDecoder(declaration).decode(pa.array(payloads, pa.binary()))
    groups = range(len(footer.row_groups))
    table = pa.Table.from_batches([decode_row_group(footer, n, parts_of(data, footer.ranges(n))) for n in groups])
    shown = table.filter(pa.compute.greater_equal(pa.compute.struct_field(table["_log"], "row"), 0))
    assert shown["_error"].to_pylist() == seen.errors.to_pylist()
    typed = shown.select([one.name for one in declaration.current.fields])
    assert repr(typed.to_pylist()) == repr(seen.rows.to_pylist())
    # What is of the current version is there once; what does not fit has its bytes.
    values = _values(table)
    again = [value for value, payload in zip(values, payloads, strict=True) if payload in newest]
    assert again.count(None) >= 0.9 * len(again)
    for value, error in zip(values, _errors(table), strict=True):
        assert error is None or value is not None


@pytest.mark.parametrize("format_", FORMATS)
def test_ten_versions_in_one_log_come_back_and_old_rows_have_nulls_and_defaults(format_: RecordFormat) -> None:
    fields = (Field(1, "id", LONG, required=True), Field(2, "name", STRING), Field(3, "small", INT))
    declaration = Declaration.of(format_, Schema(0, fields))
    changes = (
        AddColumn(("a",), INT),
        RenameColumn(("name",), "title"),
        WidenColumn(("small",), LONG),
        AddColumn(("b",), INT, default=7),
        AddColumn(("c",), DOUBLE),
        RenameColumn(("a",), "first"),
        AddColumn(("d",), STRING, default="none"),
        DropColumn(("c",)),
        AddColumn(("e",), LONG),
    )
    payloads: list[bytes] = []
    versions: list[int] = []
    for version in range(10):
        if version:
            declaration = declaration.evolved([changes[version - 1]])
        schema = declaration.current
        rows = [
            {one.name: (f"{one.name}{n}" if one.type == STRING else n) for one in schema.fields} | {"id": n}
            for n in range(20)
        ]
        made = RecordEncoder(declaration).encode(pa.RecordBatch.from_pylist(rows, schema=arrow_schema(schema)))
        payloads += made.payloads.to_pylist()
        versions += [version] * len(made.payloads)
    assert len(declaration.schemas) == 10
    data = typed_file(payloads, declaration, random.Random(1))
    footer = footer_of(data)
    found = [value.as_py() for n in range(len(footer.row_groups)) for value in records_of(data, footer, n).value]
    assert found == payloads
    # Read by pyarrow alone, as any engine does.
    table = pq.read_table(pa.BufferReader(data))
    ids = {one.name: int(one.metadata[b"PARQUET:field_id"]) for one in table.schema}
    assert {one.name: one.id for one in declaration.current.fields}.items() <= ids.items()
    first = table.slice(0, 20)
    assert first["title"].to_pylist() == [f"name{n}" for n in range(20)]
    assert first["b"].to_pylist() == [7] * 20
    assert first["d"].to_pylist() == ["none"] * 20
    assert first["e"].null_count == 20
    assert table.slice(180)["e"].to_pylist() == list(range(20))
    # Only records with the dropped column keep their bytes: versions 5 to 7.
    kept = [version for version, value in zip(versions, _values(table), strict=True) if value is not None]
    assert set(kept) == {5, 6, 7}


def _values(table: pa.Table) -> list[bytes | None]:
    """Return the stored bytes of each record."""
    first = pa.compute.less_equal(pa.compute.struct_field(table["_log"], "row"), 0)
    values: list[bytes | None] = table.filter(first)["value"].to_pylist()
    return values


def _errors(table: pa.Table) -> list[str | None]:
    """Return why each record does not fit."""
    first = pa.compute.less_equal(pa.compute.struct_field(table["_log"], "row"), 0)
    errors: list[str | None] = table.filter(first)["_error"].to_pylist()
    return errors


def test_an_arrow_record_has_a_row_for_each_of_its_rows_and_one_where_it_has_none() -> None:
    declaration = Declaration.of(RecordFormat.ARROW, Schema(0, (Field(1, "n", LONG),)))
    encoder = RecordEncoder(declaration)
    schema = arrow_schema(declaration.current)
    sizes = (3, 1, 5)
    payloads = [
        encoder.encode(pa.RecordBatch.from_pydict({"n": list(range(size))}, schema=schema)).payloads[0].as_py()
        for size in sizes
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_pydict({"n": []}, schema=schema))
    payloads.insert(1, sink.getvalue().to_pybytes())
    data = typed_file(payloads, declaration, random.Random(1))
    footer = footer_of(data)
    table = pq.read_table(pa.BufferReader(data))
    log = table["_log"].combine_chunks()
    assert log.field("row").to_pylist() == [0, 1, 2, -1, 0, 0, 1, 2, 3, 4]
    assert table["n"].to_pylist() == [0, 1, 2, None, 0, 0, 1, 2, 3, 4]
    assert (footer.records, footer.rows) == (4, 10)
    assert [value.as_py() for value in records_of(data, footer, 0).value] == payloads
    assert table["value"].null_count == 9


@pytest.mark.parametrize("format_", [None, *FORMATS])
def test_erased_records_leave_their_places_and_nothing_else(format_: RecordFormat | None) -> None:
    schema = Schema(0, (Field(1, "n", LONG), Field(2, "s", STRING)))
    declaration = None if format_ is None else Declaration.of(format_, schema)
    rows = [{"n": n, "s": f"secret {n}"} for n in range(60)]
    if declaration is None:
        payloads = [str(row).encode() for row in rows]
    else:
        batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(schema))
        payloads = RecordEncoder(declaration, max_rows=3).encode(batch).payloads.to_pylist()
    maker = SegmentMaker(1)
    for number, payload in enumerate(payloads):
        maker.control() if number % 7 == 3 else None
        maker.record(payload)
        maker.end_entry() if number % 5 == 4 else None
    maker.end_of_stream()
    segment = maker.finish()
    data, before = written([segment], declaration, row_group_bytes=200)
    old = footer_of(data)
    assert len(old.row_groups) > 1

    def erased(batch: RecordColumns) -> RecordColumns:
        return batch.erased(np.array([b"secret 1" in (one.as_py() or b"") for one in batch.value], np.bool_))

    made = bytearray()
    writer = ColdFileWriter(made.extend, IDENTITY, old.declaration)
    writer.copy_segment(old, 1, (erased(records_of(data, old, n)) for n in range(len(old.row_groups))))
    after = writer.finish()
    footer = footer_of(bytes(made))
    assert (before.redacted, after.redacted, footer.redacted) == (False, True, True)
    assert (after.records, after.entries, after.segments[0].metadata) == (
        before.records,
        before.entries,
        segment.metadata,
    )
    assert after.digest != before.digest
    assert b"secret 1" not in b"".join(bytes(one) for _, one in rebuilt(bytes(made), footer, 1))
    old_records = [one for records in segment.records() for one in records]
    new_records = [
        one
        for entry, payload in rebuilt(bytes(made), footer, 1)
        for one in replace(segment, entries=[(entry, payload)]).records()[0]
    ]
    assert [one.dlsn for one in new_records] == [one.dlsn for one in old_records]
    for one, other in zip(new_records, old_records, strict=True):
        if other.is_user:
            gone = b"secret 1" in other.payload
            assert one.payload == (b"" if gone else other.payload)
            assert (one.txid, one.position, one.flags) == (other.txid, other.position, other.flags)
    in_columns = [one for run in columns(bytes(made), footer, segment) for one in run.records.records()]
    assert in_columns == [one for one in new_records if one.is_user]
    table = pq.read_table(pa.BufferReader(bytes(made)))
    flagged = pa.compute.bit_wise_and(pa.compute.struct_field(table["_log"], "flags"), FLAG_ERASED)
    for row, flag in zip(table.to_pylist(), flagged.to_pylist(), strict=True):
        assert (row["_error"] == "the record was erased") == bool(flag)
        assert not flag or (row["value"] is None and row.get("n") is None and row.get("s") is None)
        assert "secret 1" not in str(row)


def test_records_of_another_version_of_the_encoder_keep_their_bytes() -> None:
    declaration = replace(Declaration.of(RecordFormat.JSON, Schema(0, (Field(1, "n", LONG),))), encoder=99)
    payloads = [b'{"n":%d}' % n for n in range(9)]
    data = typed_file(payloads, declaration, random.Random(1))
    table = pq.read_table(pa.BufferReader(data))
    assert table["value"].to_pylist() == payloads
    assert table["n"].to_pylist() == list(range(9))


def test_a_reader_with_another_encoder_refuses_to_make_records() -> None:
    declaration = Declaration.of(RecordFormat.JSON, Schema(0, (Field(1, "n", LONG),)))
    data = typed_file([b'{"n":%d}' % n for n in range(9)], declaration, random.Random(1))
    footer = footer_of(data)
    other = replace(footer, declaration=replace(declaration, encoder=99))
    with pytest.raises(CorruptDataError, match="version 99 of the encoder"):
        records_of(data, other, 0)
    assert decode_row_group(other, 0, parts_of(data, other.ranges(0, ["n"])), ["n"])["n"].to_pylist() == list(range(9))


def test_a_column_named_value_leaves_the_records_bytes_another_name() -> None:
    declaration = Declaration.of(RecordFormat.JSON, Schema(0, (Field(1, "Value", LONG), Field(2, "_value", LONG))))
    data = typed_file([b'{"Value":1,"_value":2}', b"?"], declaration, random.Random(1))
    footer = footer_of(data)
    assert footer.schema.names == ["_log", "Value", "_value", "__value", "_error"]
    assert [one.as_py() for one in records_of(data, footer, 0).value] == [b'{"Value":1,"_value":2}', b"?"]
