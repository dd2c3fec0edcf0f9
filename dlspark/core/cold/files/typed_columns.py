"""Records as columns of their declared schema, and those columns back into the very bytes.

A record's bytes are left out of a file only where they are not needed: its row, encoded again by one of the schema's
versions and the encoder that the declaration names, gave exactly these bytes when the file was written. Which version
that was is beside the row (`_log.schema`). All other records keep their bytes: those that do not fit, those that
another program wrote in another form, those with columns that the schema has dropped since.

    of        records -> rows of the current version, and by which version each record's bytes come back
    restored  rows -> the bytes of the records that have none in the file

Nothing is done for a record alone, but where the format does so itself (an Avro datum, an Arrow stream).

What it must never do: give back bytes that were not compared. `restored` is checked once more by the row group's
digest, since another version of a library may frame or print a value in another way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dlspark.core.codec.record_chain import IntArray
from dlspark.core.cold.files.columns import NO_ROWS, STORED, typed_schema
from dlspark.tables import arrow_encoding, avro_encoding, json_encoding
from dlspark.tables.arrow_types import arrow_type
from dlspark.tables.codecs import ENCODERS, RecordDecoder
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.errors import RowRefusedError
from dlspark.tables.resolution import DecodedRows
from dlspark.tables.types import Field, Schema, Struct, Type
from metadata.foundation.errors import CorruptDataError, check

_SAMPLE: Final = 64
"""Records of a piece with which a version is tried before all are: most logs' records are of the current one."""
_MOST_VERSIONS: Final = 16
"""Versions that are tried with a piece at most, newest first, the one that fitted last before all."""


@dataclass(frozen=True, slots=True)
class TypedPart:
    """Which rows do records make?

    Args:
        rows: the columns of the current version.
        errors: for each row why its record does not fit; null where it does.
        record: for each row the index of its record.
        number: for each row its number in the record from 0; NO_ROWS for a record without rows.
        counts: rows of each record; None: one each.
        version: for each record the version that gives its bytes back; STORED where none does.
    """

    rows: pa.RecordBatch
    errors: pa.Array
    record: IntArray
    number: IntArray
    counts: IntArray | None
    version: IntArray


class TypedColumns:
    """How do records of a log become typed columns, and come back? Keep one for all records of a file.

    Raises MissingExtraError where the format's library is not installed.
    """

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self._decoder = RecordDecoder(declaration)
        self._schema = typed_schema(declaration)
        self._last = declaration.current

    def of(self, payloads: pa.BinaryArray, txids: IntArray) -> TypedPart:
        """Return the rows of records; a null payload is one that was erased, and gives one row of nulls."""
        filled = payloads.fill_null(b"") if payloads.null_count else payloads
        found = self._decoder.decode(filled, pa.array(txids))
        # What is tried below is what comes back from the file: in its types, where more may be null.
        found = replace(found, rows=found.rows.cast(self._schema))
        count = len(payloads)
        if found.counts is None:
            record = np.arange(count)
            version = self._versions(filled, found, record, np.arange(count + 1), payloads)
            return TypedPart(found.rows, found.errors, record, np.zeros(count, np.int64), None, version)
        counts = found.counts.to_numpy()
        starts = np.concatenate([[0], np.cumsum(counts)])
        version = self._versions(filled, found, np.arange(count), starts, payloads)
        # A record without rows has one row all the same, else its bytes would be nowhere.
        shown = np.maximum(counts, 1)
        record = np.repeat(np.arange(count), shown)
        number = np.arange(len(record)) - np.repeat(np.cumsum(shown) - shown, shown)
        number[counts[record] == 0] = NO_ROWS
        rows, errors = found.rows, found.errors
        if (counts == 0).any():
            places = pa.array(starts[:-1][record] + np.maximum(number, 0), mask=number == NO_ROWS)
            rows, errors = rows.take(places), errors.take(places)
        return TypedPart(rows, errors, record, number, shown, version)

    def restored(self, rows: pa.RecordBatch, starts: IntArray, version: IntArray) -> pa.BinaryArray:
        """Return the bytes of records, one after the other.

        Args:
            rows: the rows of these records, with the columns of the current version.
            starts: where each record's rows start, and the last one's end.
            version: by which version each is encoded.

        Raises CorruptDataError where the encoder is another one than that which the declaration names.
        """
        format_, encoder = self.declaration.format, self.declaration.encoder
        if encoder != ENCODERS[format_]:
            raise CorruptDataError(
                f"records of a cold file are made by version {encoder} of the encoder of {format_.value}, and this "
                f"dlspark has {ENCODERS[format_]}",
                advice="Read it with the dlspark that has this version; the typed columns can be read by any",
            )
        parts: list[pa.Array] = []
        order: list[IntArray] = []
        for id_ in np.unique(version).tolist():
            schema = self.declaration.version(id_)
            chosen = np.flatnonzero(version == id_)
            found = None if schema is None else self._encoded(rows, chosen, starts, schema)
            if found is None:
                raise CorruptDataError(f"version {id_} of the declared schema does not give back records made by it")
            parts.append(found)
            order.append(chosen)
        check(bool(parts), "no records were to be restored")
        back = np.argsort(np.concatenate(order), kind="stable")
        whole = pa.concat_arrays(parts)
        return whole if len(parts) == 1 else whole.take(pa.array(back))

    # -------------------------------------------------------------- which version made a record

    def _versions(
        self, payloads: pa.Array, found: DecodedRows, records: IntArray, starts: IntArray, given: pa.Array
    ) -> IntArray:
        """Return for each record the version that gives its bytes back, STORED where none does."""
        version = np.full(len(records), STORED, np.int64)
        if self.declaration.encoder != ENCODERS[self.declaration.format] or not len(records):
            return version
        fits = _mask(found.errors.is_null())
        left = np.flatnonzero(_all_of(fits, starts) & (np.diff(starts) > 0) & _mask(given.is_valid()))
        for schema in self._candidates():
            if not len(left):
                break
            tried = left[:: max(len(left) // _SAMPLE, 1)]
            if len(tried) < len(left) and not self._same(payloads, found.rows, tried, starts, schema).any():
                continue
            same = self._same(payloads, found.rows, left, starts, schema)
            if same.any():
                self._last = schema
            version[left[same]] = schema.id
            left = left[~same]
        return version

    def _candidates(self) -> Iterator[Schema]:
        yield self._last
        for schema in self.declaration.schemas[: -_MOST_VERSIONS - 1 : -1]:
            if schema is not self._last:
                yield schema

    def _same(
        self, payloads: pa.Array, rows: pa.RecordBatch, chosen: IntArray, starts: IntArray, schema: Schema
    ) -> npt.NDArray[np.bool_]:
        """Return for each chosen record whether a version gives the very bytes."""
        try:
            encoded = self._encoded(rows, chosen, starts, schema)
        except (RowRefusedError, pa.ArrowException):
            # A value that the version has no room for, or a required one that is null: it has not made all of these.
            return np.zeros(len(chosen), np.bool_)
        if encoded is None:
            return np.zeros(len(chosen), np.bool_)
        wanted = payloads if len(chosen) == len(payloads) else payloads.take(pa.array(chosen))
        return _mask(pc.equal(encoded, wanted))

    def _encoded(
        self, rows: pa.RecordBatch, chosen: IntArray, starts: IntArray, schema: Schema
    ) -> pa.BinaryArray | None:
        """Return the chosen records as a version encodes them; None where it has a column that the rows do not.

        Raises RowRefusedError or ArrowException where a row has a value that the version does not take."""
        check(len(starts) - 1 == len(rows) or self.declaration.format is RecordFormat.ARROW, "a record has many rows")
        if len(chosen) < len(starts) - 1:
            # Of these alone: a value of another record may have no room in the version's types.
            counts = np.diff(starts)
            wanted = np.zeros(len(counts), np.bool_)
            wanted[chosen] = True
            rows = rows.filter(pa.array(np.repeat(wanted, counts)))
            starts = np.concatenate([[0], np.cumsum(counts[chosen])])
        older = as_version(rows, self.declaration.current, schema)
        if older is None:
            return None
        if self.declaration.format is RecordFormat.JSON:
            return json_encoding.encode_rows(older, schema).cast(pa.binary())
        if self.declaration.format is RecordFormat.AVRO:
            return avro_encoding.encode_rows(older, schema).cast(pa.binary())
        return self._streams(older, starts, schema)

    def _streams(self, rows: pa.RecordBatch, starts: IntArray, schema: Schema) -> pa.BinaryArray:
        """Return Arrow records, each of its own rows: one by one, since each is a stream."""
        made: list[bytes] = []
        for first, after in pairwise(starts.tolist()):
            payloads = arrow_encoding.encode_rows(rows.slice(first, after - first), schema, self.declaration.id)
            made.append(payloads[0].as_py() if len(payloads) == 1 else b"")
        return pa.array(made, pa.binary())


def as_version(rows: pa.RecordBatch, current: Schema, version: Schema) -> pa.RecordBatch | None:
    """Return rows of the current schema with the columns of an earlier version; None where one is not there any more.

    Raises ArrowInvalid where a value has no room in the earlier type.
    """
    columns = _as_fields(rows.columns, current.fields, version.fields)
    return None if columns is None else pa.RecordBatch.from_arrays(columns, names=[one.name for one in version.fields])


def _as_fields(columns: Sequence[pa.Array], current: Sequence[Field], wanted: Sequence[Field]) -> list[pa.Array] | None:
    places = {one.id: at for at, one in enumerate(current)}
    made = []
    for one in wanted:
        at = places.get(one.id)
        column = None if at is None else _as_type(columns[at], current[at].type, one.type)
        if column is None:
            return None
        made.append(column)
    return made


def _as_type(column: pa.Array, current: Type, wanted: Type) -> pa.Array | None:
    if current == wanted:
        return column
    if isinstance(current, Struct) and isinstance(wanted, Struct):
        parts = [pc.struct_field(column, [at]) for at in range(len(current.fields))]
        made = _as_fields(parts, current.fields, wanted.fields)
        if made is None:
            return None
        # Of the types that the parts have: whether something in them may be null is said otherwise in a file.
        fields = [pa.field(one.name, part.type) for one, part in zip(wanted.fields, made, strict=True)]
        return pa.StructArray.from_arrays(made, fields=fields, mask=column.is_null())
    if pa.types.is_nested(column.type):
        return None  # what a list or map holds has changed: rare, and its records keep their bytes
    return column.cast(arrow_type(wanted))


def _mask(flags: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(flags.to_numpy(zero_copy_only=False), np.bool_)


def _all_of(rows: npt.NDArray[np.bool_], starts: IntArray) -> npt.NDArray[np.bool_]:
    """Return for each record whether something holds for all of its rows."""
    after = np.concatenate([[0], np.cumsum(rows)])
    return np.asarray(after[starts[1:]] - after[starts[:-1]] == np.diff(starts), np.bool_)
