"""Rows to records and back, in whichever format a log declares: the one place that the rest of the house asks.

    encoded = RecordEncoder(declaration).encode(rows)     rows of any caller, by the current version
    decoded = RecordDecoder(declaration).decode(payloads)

**Encoding.** A caller's columns are found by their names, in any case and order, and cast where each value has room; a
column that is missing has its default, or is null. Everything else is a RowRefusedError that names the column, and
nothing is written.

**Times.** Where the log takes transaction ids from a column, no record may have an id below that column's time: a
reader that looks for rows from a time on begins at the first id that is not below it, and must miss none. So `encode`
gives the time of each record, which its writer raises to the highest id so far if need be (a row may come late), and
`decode` takes the ids, and a record whose column is later than its id does not fit: it was written past the schema.

Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dlspark.tables import arrow_encoding, avro_encoding, json_encoding
from dlspark.tables.arrow_decoding import ArrowReader
from dlspark.tables.arrow_types import all_nullable, arrow_type, schema_from_arrow
from dlspark.tables.avro_decoding import AvroReader
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.errors import RowRefusedError
from dlspark.tables.evolution import widened
from dlspark.tables.json_decoding import JsonReader, value_of_default
from dlspark.tables.resolution import DecodedRows, lists_of, other_names
from dlspark.tables.types import (
    DATE,
    DOUBLE,
    FLOAT,
    LONG,
    MAX_PRECISION,
    Decimal,
    Field,
    InvalidSchemaError,
    Schema,
    Type,
    children,
)

DAY_MS: Final = 86_400_000
MAX_TXID: Final = 2**63 - 2
"""The highest transaction id of a record that is not the last one of its log."""

ENCODERS: Final = {
    RecordFormat.JSON: json_encoding.ENCODER,
    RecordFormat.AVRO: avro_encoding.ENCODER,
    RecordFormat.ARROW: arrow_encoding.ENCODER,
}
"""The version of what makes bytes of rows, for each format."""


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Which records hold rows?

    Args:
        payloads: The records, a large_binary array without nulls.
        times: For each record the transaction id that it must not be below, an int64 array of milliseconds since the
            epoch, 0 at least; None where the log takes ids from no column.
        counts: How many of the rows, one after another, each record holds, an int64 array; None: one each.
    """

    payloads: pa.Array
    times: pa.Array | None
    counts: pa.Array | None = None


class RecordEncoder:
    """How do I make records of rows? By the current version of what a log declares; keep one for all rows.

    Args:
        declaration: What the log says of its records.
        max_bytes: Bytes of a record at most, where a record holds many rows; a single row may have more.
        max_rows: Rows of a record at most, where it holds many.

    Raises:
        RowRefusedError: the log's records are made by another version of the encoder.
    """

    def __init__(self, declaration: Declaration, max_bytes: int | None = None, max_rows: int | None = None) -> None:
        if declaration.encoder != ENCODERS[declaration.format]:
            raise RowRefusedError(
                f"The log's records are made by version {declaration.encoder} of the encoder of "
                f"{declaration.format.value}, and this dlspark has {ENCODERS[declaration.format]}: equal rows would "
                "not give equal bytes; nothing was written",
                advice="Write with the dlspark that declared the schema, or a newer one",
            )
        self.declaration = declaration
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._time = declaration.timestamp_field(declaration.current)

    def encode(self, rows: pa.RecordBatch) -> EncodedRows:
        """Return the records of rows, in their order.

        Raises RowRefusedError for a column that the log does not have, a value that its column has no room for or that
        is missing, and a time that no record can say: nothing is made of the rows then.
        """
        schema, format_ = self.declaration.current, self.declaration.format
        fitting = conform(rows, schema)
        times = None if self._time is None else times_of(fitting.column(self._time.name), self._time)
        if self._time is not None and pc.any(pc.greater(times, MAX_TXID)).as_py():
            raise RowRefusedError(
                f"Column {self._time.name} has a time above {MAX_TXID}, which no transaction id can be; nothing was "
                "written",
                advice="It has milliseconds since the epoch",
            )
        if format_ is RecordFormat.JSON:
            return EncodedRows(json_encoding.encode_rows(fitting, schema), times)
        if format_ is RecordFormat.AVRO:
            return EncodedRows(avro_encoding.encode_rows(fitting, schema), times)
        payloads, sizes = arrow_encoding.encode_sized(
            fitting, schema, self.declaration.id, max_bytes=self._max_bytes, max_rows=self._max_rows
        )
        counts = pa.array(sizes, pa.int64())
        return EncodedRows(payloads, None if times is None else _latest(times, counts), counts)


class RecordDecoder:
    """How do I read the records of a log as rows? Keep one for all records: it prepares each version once.

    Args:
        declaration: What the log says of its records.
        target: The version whose columns the rows have; None: the current one.

    Raises:
        SchemaChangedError: records of the current version cannot be rows of `target`.
        MissingExtraError: the format's library is not installed.
    """

    def __init__(self, declaration: Declaration, target: Schema | None = None) -> None:
        self.declaration = declaration
        self.target = target or declaration.current
        declaration.check_readable_as(self.target)
        self._time = declaration.timestamp_field(self.target)
        self._decode: Callable[[pa.Array], DecodedRows]
        if declaration.format is RecordFormat.JSON:
            self._decode = JsonReader(self.target, other_names(declaration.schemas, self.target)).decode
        elif declaration.format is RecordFormat.AVRO:
            self._decode = AvroReader(declaration, self.target).decode
        else:
            self._decode = ArrowReader(declaration, self.target).decode

    def decode(self, payloads: pa.Array, txids: pa.Array | None = None) -> DecodedRows:
        """Return the rows of records, `payloads` of type binary or large_binary without nulls. No record raises.

        `txids` are the records' transaction ids, an int64 array: a record with a later time does not fit. None: they
        are not looked at.
        """
        found = self._decode(payloads)
        if self._time is None or txids is None:
            return found
        times = times_of(found.rows.column(self._time.name), self._time)
        ids = txids if found.counts is None else _spread(txids, found.counts)
        late = pc.greater(times, ids).fill_null(False)
        return _without(found, late, ids, self._time) if pc.any(late).as_py() else found


def record_of_row(counts: pa.Array) -> pa.Array:
    """Return for each row the index of its record, of `counts` of rows by record: an int64 array."""
    rows = pc.sum(counts).as_py() or 0
    return pc.list_parent_indices(lists_of(counts, pa.nulls(rows, pa.int8()))).cast(pa.int64())


def _spread(values: pa.Array, counts: pa.Array) -> pa.Array:
    """Return a value of each record for each of its rows."""
    return values.take(record_of_row(counts))


def _latest(times: pa.Array, counts: pa.Array) -> pa.Array:
    """Return the latest time of each record's rows."""
    table = pa.table({"record": record_of_row(counts), "time": times})
    return table.group_by("record").aggregate([("time", "max")]).sort_by("record").column("time_max").combine_chunks()


def _without(found: DecodedRows, late: pa.Array, ids: pa.Array, one: Field) -> DecodedRows:
    """Return decoded rows without what stands in records that have a row in `late`: each row of those is null."""
    if found.counts is not None:
        record = record_of_row(found.counts)
        late = pc.is_in(record, pc.unique(record.filter(late)))
    kept = pc.invert(late)
    columns = [pc.if_else(kept, column, pa.scalar(None, column.type)) for column in found.rows.columns]
    said = pc.binary_join_element_wise(
        f"column {one.name} is later than the record's transaction id, ", ids.cast(pa.string()), ""
    )
    errors = pc.if_else(late, said, found.errors)
    return replace(found, rows=pa.RecordBatch.from_arrays(columns, schema=found.rows.schema), errors=errors)


def times_of(column: pa.Array, one: Field) -> pa.Array:
    """Return the milliseconds since the epoch that a column of times says, from 0 on, rounded down; null for null."""
    if one.type == DATE:
        numbers = pc.multiply(column.cast(pa.int32()).cast(pa.int64()), DAY_MS)
    elif one.type == LONG:
        numbers = column
    else:
        micros = column.cast(pa.int64())
        numbers = pc.divide(pc.max_element_wise(micros, 0, skip_nulls=False), 1000)
    return pc.max_element_wise(numbers, 0, skip_nulls=False)


# ---------------------------------------------------------------------- rows of a caller


def conform(rows: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """Return rows with the columns of a schema, in its order and types. Raises RowRefusedError."""
    places: dict[str, int] = {}
    for at, name in enumerate(rows.schema.names):
        one = schema.column(name)
        if one is None:
            raise RowRefusedError(
                f"There is no column {name} in the log's schema; nothing was written",
                advice=f"It has: {', '.join(one.name for one in schema.fields)}. Leave the column out, or add it to "
                "the schema first",
            )
        if one.name in places:
            raise RowRefusedError(
                f"Column {one.name} is there twice; nothing was written", advice="SQL compares names without case"
            )
        places[one.name] = at
    columns = [
        _missing(one, len(rows)) if one.name not in places else _fitting(one, rows.column(places[one.name]))
        for one in schema.fields
    ]
    return pa.RecordBatch.from_arrays(columns, names=[one.name for one in schema.fields])


def _missing(one: Field, count: int) -> pa.Array:
    if one.default is not None:
        return pa.repeat(pa.scalar(value_of_default(one), arrow_type(one.type)), count)
    if one.required and count:
        raise RowRefusedError(
            f"Column {one.name} is NOT NULL, and the rows do not have it; nothing was written",
            advice="Give it values, or a default in the schema",
        )
    return pa.nulls(count, arrow_type(one.type))


def _fitting(one: Field, column: pa.Array) -> pa.Array:
    """Return a caller's column in the type of its field, each value as it is."""
    made = arrow_type(one.type)
    try:
        column.validate(full=True)  # Spark's strings, and columns made of buffers, may hold bytes that are not UTF-8
    except pa.ArrowInvalid as error:
        raise RowRefusedError(
            f"Column {one.name} has a value that is not {one.type}: {error}; nothing was written",
            advice="Correct it; texts are UTF-8, and other bytes are of type binary",
        ) from error
    if column.type == made:
        return column
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), made)
    if not _castable(column.type, one.type):
        raise RowRefusedError(
            f"Column {one.name} is {one.type} in the log's schema, and {column.type} in the rows; nothing was written",
            advice="Convert it first",
        )
    try:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_run_end_encoded(column.type):
            column = pc.run_end_decode(column)
        if pa.types.is_decimal(made) and pa.types.is_integer(column.type):
            column = column.cast(pa.decimal128(MAX_PRECISION, min(made.scale, MAX_PRECISION - 19)))  # room for each
        return column.cast(all_nullable(made))  # what is required is looked at where it is encoded, by paths
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise RowRefusedError(
            f"Column {one.name} is {one.type}, and a value of the rows does not fit: {error}; nothing was written",
            advice="Correct the value, or widen the column (ALTER TABLE ... ALTER COLUMN ... TYPE)",
        ) from error


def _castable(given: pa.DataType, type_: Type) -> bool:
    """Return whether values of an Arrow type may be values of a column: those that fit are, the others are refused."""
    try:
        found = schema_from_arrow(pa.schema([pa.field("c", given)])).fields[0].type
    except InvalidSchemaError:
        # Times of other units, and numbers without a sign: each value of them that fits is taken.
        if pa.types.is_timestamp(given):
            return str(type_) == ("timestamp" if given.tz is None else "timestamptz")
        return pa.types.is_unsigned_integer(given) and (isinstance(type_, Decimal) or _whole(type_))
    return _alike(found, type_)


def _alike(found: Type, wanted: Type) -> bool:
    if widened(found, wanted) or (_whole(found) and _whole(wanted)):
        return True
    if _whole(found) and (
        isinstance(wanted, Decimal) or (wanted in (FLOAT, DOUBLE) and not isinstance(found, Decimal))
    ):
        return True
    if isinstance(found, Decimal) and isinstance(wanted, Decimal):
        return True
    parts, others = children(found), children(wanted)
    if type(found) is not type(wanted) or not parts or len(parts) != len(others):
        return False
    return all(
        one.name == other.name and _alike(one.type, other.type) for one, other in zip(parts, others, strict=True)
    )


def _whole(type_: Type) -> bool:
    return str(type_) in ("int", "long") or (isinstance(type_, Decimal) and type_.scale == 0)
