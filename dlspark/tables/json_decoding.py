"""JSON records as rows: a block of them by Arrow's reader, and one by one where a record of it does not fit.

A record is one JSON object in UTF-8, which names columns; what it names beside them is passed over. A column that it
does not name has its default, or is null. `json_encoding` says how values look; these are read as well:

| column | read as well |
|---|---|
| int, long | a number without a fraction, `1.0` and `1e3` |
| float, double | `NaN`, `Infinity`, `-Infinity` without quotes |
| decimal | a number or a string with no more digits behind the point, but for zeros |
| date, timestamp, timestamptz | ISO 8601 as Arrow reads it: a space for the `T`, no seconds, up to six digits of them |
| timestamptz | a time without a zone is UTC |

Everything else does not fit: another type, a name twice, a missing value of a required column, a number that is too
large. Such a row has all its columns null, and an error that names the column.

Theory of operation. `_by_rows` decides what a record means, by Python's parser and a step for each value. `_by_block`
is the fast way, and may only give what `_by_rows` would give: it gives nothing, and the block goes the slow way, where
anything is in doubt. It sees the block as lines, one for each record. That none has a line break, that each begins with
an opening and ends with a closing brace, and that there come as many rows as records, says that each line is one
object: between a closing and an opening brace there is a comma, or the end of an object that is in no other.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Sequence
from decimal import Context, InvalidOperation
from decimal import Decimal as Number
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from dlspark.tables.arrow_types import arrow_schema, arrow_type
from dlspark.tables.resolution import DecodedRows, MisfitError, Names, outside_years
from dlspark.tables.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    MAX_PRECISION,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Decimal,
    Field,
    InvalidSchemaError,
    ListOf,
    MapOf,
    Primitive,
    Schema,
    Struct,
    Type,
    walk,
)

BLOCK_ROWS: Final = 8_192
"""Records that are read together; where one of them does not fit, all are read one by one."""
BLOCK_BYTES: Final = 64 << 20
MAX_NUMBER: Final = 400
"""Characters of a number that may be a whole one or a decimal: 1e1000000000 would have that many digits."""
_WIDE: Final = Context(prec=500)
_ZONE: Final = r"(Z|[+-]\d{2}(:?\d{2})?)$"
_NOT_A_LINE: Final = r"[\r\n]|\}[ \t]*null"
_WIDE_SCALE: Final = r"|[:\[,\" \t][+-]?[0-9.]*[0-9.][eE](?:-(?:39|[4-9][0-9])|[+-]?[0-9]{3,})[\]},\" \t]"
"""Decimals that may have more than 76 digits behind the point, by their exponents: to multiply them, Arrow's reader
looks behind the end of a table, and 1e-1000000000 takes the process down (seen with 26.0.1)."""
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
MAX_NESTED: Final = 200
"""How far objects and arrays of a record may be nested, in members that no column has too. Python's parser and Arrow's
have limits of their own, and Python's depends on who calls it."""
_NESTING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_TEXTS: Final = frozenset({DATE, TIMESTAMP, TIMESTAMP_NTZ, BINARY})
"""Types that Arrow's reader takes from other forms, or more of them, than are meant here: it reads texts."""


def decode_rows(payloads: pa.Array, schema: Schema, other_names: Names | None = None) -> DecodedRows:
    """Return the rows of records, `payloads` of type binary or large_binary without nulls.

    `other_names` of fields are read where a record does not name them as the schema does. No record raises.
    """
    return JsonReader(schema, other_names or {}).decode(payloads)


def _blocks(payloads: pa.Array) -> list[pa.Array]:
    """Return the records in blocks of so many rows and bytes, a record at least."""
    if len(payloads) <= BLOCK_ROWS and payloads.nbytes <= BLOCK_BYTES:
        return [payloads] if len(payloads) else []
    rows = max(1, min(BLOCK_ROWS, len(payloads) * BLOCK_BYTES // max(1, payloads.nbytes)))
    return [payloads.slice(at, rows) for at in range(0, len(payloads), rows)]


class JsonReader:
    """How do I read the JSON records of a log? Keep one for all its records.

    Args:
        schema: The columns that they become rows of.
        other_names: Names of fields in other versions (`resolution.other_names`).
    """

    def __init__(self, schema: Schema, other_names: Names) -> None:
        self._fields = schema.fields
        self._names = other_names
        self._loose = pa.schema([one.with_nullable(True) for one in arrow_schema(schema)])
        """The columns of what comes out: a record that does not fit has none of them."""
        fields = list(walk(schema.fields))
        columns = [(name, one) for one in schema.fields for name in (one.name, *other_names.get(one.id, ()))]
        # Arrow's reader knows no maps. A field of a struct that was renamed or has a default is rare, and so is a name
        # that two columns had.
        self._by_block_at_all = len(dict(columns)) == len(columns) and not any(
            isinstance(one.type, MapOf)
            or (one not in schema.fields and (one.id in other_names or one.default is not None))
            for one in fields
        )
        decimals = any(isinstance(one.type, Decimal) for one in fields)
        self._in_doubt = f"{_NOT_A_LINE}{_WIDE_SCALE}" if decimals else _NOT_A_LINE
        self._options = arrow_json.ParseOptions(
            explicit_schema=pa.schema([pa.field(name, _carrier(one.type)) for name, one in columns]),
            unexpected_field_behavior="ignore",
            newlines_in_values=False,
        )

    def decode(self, payloads: pa.Array) -> DecodedRows:
        """Return the rows of records, `payloads` of type binary or large_binary without nulls. No record raises."""
        blocks = [self._block(one) for one in _blocks(payloads)]
        if len(blocks) == 1:
            return blocks[0]
        whole = pa.Table.from_batches([one.rows for one in blocks], self._loose).combine_chunks()
        (rows,) = whole.to_batches() or [pa.RecordBatch.from_pylist([], schema=self._loose)]
        return DecodedRows(rows, pa.concat_arrays([one.errors for one in blocks] or [pa.array([], pa.string())]))

    def _block(self, payloads: pa.Array) -> DecodedRows:
        """Return the rows of some records."""
        rows = self._by_block(payloads) if self._by_block_at_all else None
        if rows is not None:
            return DecodedRows(rows, pa.nulls(len(payloads), pa.string()))
        return self._by_rows(payloads.to_pylist())

    # ------------------------------------------------------------------ by block

    def _by_block(self, payloads: pa.Array) -> pa.RecordBatch | None:
        """Return the rows of records that all fit; None where that is not certain."""
        try:
            texts = payloads.cast(pa.large_string())  # it checks UTF-8, which the reader does not
        except pa.ArrowInvalid:
            return None
        if not _are_braced(texts):
            texts = pc.ascii_trim(texts, " \t")
            if not _are_braced(texts):
                return None
        # A line break would make two lines of a record. Where null stands in an object's place, Arrow's reader takes
        # the process down (seen with 26.0.1).
        if pc.any(pc.match_substring_regex(texts, self._in_doubt)).as_py() or _any_too_deep(texts):
            return None
        lines = pc.binary_join(
            pa.LargeListArray.from_arrays([0, len(texts)], texts), pa.scalar("\n", pa.large_string())
        )
        options = arrow_json.ReadOptions(
            use_threads=False, block_size=max(1 << 20, pc.binary_length(lines)[0].as_py() + 1)
        )
        try:
            read = arrow_json.read_json(
                pa.BufferReader(lines.buffers()[2]), read_options=options, parse_options=self._options
            ).combine_chunks()
            if read.num_rows != len(payloads):
                return None
            columns = [self._column(one, read, texts) for one in self._fields]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
            return None
        if any(column is None for column in columns):
            return None
        return pa.RecordBatch.from_arrays(columns, schema=self._loose)

    def _column(self, one: Field, read: pa.Table, texts: pa.Array) -> pa.Array | None:
        """Return a column of what was read; None where records must be looked at one by one."""
        names = (one.name, *self._names.get(one.id, ()))
        made: pa.Array | None = None
        for name in names:
            column = _converted(one.type, _only(read.column(name)))
            if column is None:
                return None
            if made is not None:
                if _says(texts.filter(made.is_null()), names[names.index(name) - 1]):
                    return None  # null is said by a name, and another name of the column may say more
                column = pc.if_else(made.is_valid(), made, column)
            made = column
        if made is None or not made.null_count or not (one.required or one.default is not None):
            return made
        missing = texts.filter(made.is_null())
        if one.default is None or any(_says(missing, name) for name in names):
            return None  # a required value is missing; or null is said, which is not the default
        return made.fill_null(pa.scalar(value_of_default(one), made.type))

    # ------------------------------------------------------------------ by rows

    def _by_rows(self, payloads: Sequence[bytes]) -> DecodedRows:
        """Return the rows of records, one by one."""
        rows: list[dict[str, object] | None] = []
        errors: list[str | None] = []
        for payload in payloads:
            try:
                rows.append(self._row(payload))
                errors.append(None)
            except MisfitError as misfit:
                rows.append(None)
                errors.append(str(misfit))
        columns = [pa.array([None if row is None else row[one.name] for row in rows], one.type) for one in self._loose]
        return DecodedRows(pa.RecordBatch.from_arrays(columns, schema=self._loose), pa.array(errors, pa.string()))

    def _row(self, payload: bytes) -> dict[str, object]:
        if _is_too_deep(payload):
            raise MisfitError(f"the record is nested more than {MAX_NESTED} deep")
        try:
            found = _PARSER.decode(payload.decode())
        except UnicodeDecodeError as error:
            raise MisfitError(f"the record is not UTF-8, from byte {error.start} on") from error
        except (ValueError, RecursionError) as error:
            raise MisfitError(f"the record is not JSON: {error}") from error
        if not isinstance(found, _Members):
            raise MisfitError(f"the record is {_kind(found)}, not an object")
        return self._object(self._fields, found, "")

    def _object(self, fields: Sequence[Field], found: _Members, path: str) -> dict[str, object]:
        """Return the fields of an object by name."""
        made = {}
        for one in fields:
            where = f"{path}{one.name}"
            for name in (one.name, *self._names.get(one.id, ())):
                if values := found.named(name):
                    break
            if len(values) > 1:
                raise MisfitError(f"column {where} is there {len(values)} times")
            if not values and one.default is not None:
                made[one.name] = value_of_default(one)
            else:
                made[one.name] = self._present(one, values[0] if values else None, where)
        return made

    def _present(self, one: Field, found: object, path: str) -> object:
        """Return a field's value. Raises where it is required and missing."""
        if found is not None:
            return self._value(one.type, found, path)
        if one.required:
            raise MisfitError(f"column {path} is NOT NULL, and there is no value of it")
        return None

    def _value(self, type_: Type, found: object, path: str) -> object:
        if isinstance(type_, Struct) and isinstance(found, _Members):
            return self._object(type_.fields, found, f"{path}.")
        if isinstance(type_, ListOf) and isinstance(found, list):
            return [self._present(type_.element, one, f"{path}.element") for one in found]
        if isinstance(type_, MapOf) and isinstance(found, _Members):
            entries = [self._entry(type_, key, one, path) for key, one in found.pairs]
            if len({repr(key) for key, _ in entries}) < len(entries):  # 1 and 1.0 are one key of numbers
                raise MisfitError(f"column {path} has a key twice")
            return entries
        if isinstance(type_, Primitive | Decimal):
            return _single(type_, found, path)
        raise _type_error(type_, found, path)

    def _entry(self, type_: MapOf, key: str, found: object, path: str) -> tuple[object, object]:
        """Return an entry of a map; keys that are not texts are the text of their JSON."""
        said: object = key
        if type_.key.type != STRING and type_.key.type not in _TEXTS:
            try:
                said = _PARSER.decode(key)
            except (ValueError, RecursionError) as error:
                raise _type_error(type_.key.type, key, f"{path}.key") from error
        return self._value(type_.key.type, said, f"{path}.key"), self._present(type_.value, found, f"{path}.value")


# ---------------------------------------------------------------------- what Arrow's reader has read


def _carrier(type_: Type) -> pa.DataType:
    """Return the type that Arrow's reader is to read."""
    if type_ in _TEXTS:
        return pa.string()
    if isinstance(type_, Decimal):
        # Where there are 128 bits, Arrow's reader lets digits overflow that it moves by the scale (seen with 26.0.1).
        return pa.decimal256(MAX_PRECISION, type_.scale)
    if isinstance(type_, Struct):
        return pa.struct([pa.field(one.name, _carrier(one.type)) for one in type_.fields])
    return pa.list_(_carrier(type_.element.type)) if isinstance(type_, ListOf) else arrow_type(type_)


def _converted(type_: Type, read: pa.Array) -> pa.Array | None:
    """Return what was read as the column's type; None where a value is missing that is required."""
    if isinstance(type_, Struct):
        there = read.is_valid()
        parts = []
        for at, one in enumerate(type_.fields):
            part = read.field(at)
            if one.required and pc.any(pc.and_(there, part.is_null())).as_py():
                return None
            parts.append(_converted(one.type, part))
        if any(part is None for part in parts):
            return None
        fields = list(arrow_type(type_))
        return pa.StructArray.from_arrays(parts, fields=fields, mask=read.is_null())
    if isinstance(type_, ListOf):
        elements = pc.list_flatten(read)
        made = _converted(type_.element.type, elements)
        if made is None or (type_.element.required and elements.null_count):
            return None
        offsets = pa.concat_arrays(
            [pa.array([0], pa.int64()), pc.cumulative_sum(pc.list_value_length(read).fill_null(0).cast(pa.int64()))]
        ).cast(pa.int32())
        return pa.ListArray.from_arrays(offsets, made, type=arrow_type(type_), mask=read.is_null())
    return _TEXT_COLUMNS[type_](read) if type_ in _TEXTS else _number(type_, read)


def _number(type_: Type, read: pa.Array) -> pa.Array | None:
    """Return numbers; None where one is not finite: Arrow's reader takes more words for that than are meant here."""
    if isinstance(type_, Decimal):
        read.validate(full=True)  # Arrow's reader looks at the digits behind the point alone
        return read.cast(arrow_type(type_))
    floats = type_ in (FLOAT, DOUBLE)
    return None if floats and pc.any(pc.invert(pc.is_finite(read))).as_py() else read


def _says(texts: pa.Array, name: str) -> bool:
    """Return whether a record may name a column: as it is written, or with escapes."""
    parts = (json.dumps(name, ensure_ascii=False), "\\u", *(["\\/"] if "/" in name else []))
    return any(pc.any(pc.match_substring(texts, part)).as_py() for part in parts)


def _are_braced(texts: pa.Array) -> bool:
    """Return whether each text begins with an opening and ends with a closing brace."""
    whole = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    return bool(pc.all(whole).as_py())


def _any_too_deep(texts: pa.Array) -> bool:
    """Return whether one of the texts is nested too far; few are long enough to be looked at."""
    long = texts.filter(pc.greater(pc.binary_length(texts), 2 * MAX_NESTED))
    if not len(long):
        return False
    openings = pc.add(pc.count_substring(long, "{"), pc.count_substring(long, "["))
    return any(_is_too_deep(text.encode()) for text in long.filter(pc.greater(openings, MAX_NESTED)).to_pylist())


def _is_too_deep(payload: bytes) -> bool:
    """Return whether objects and arrays are nested too far in what may be JSON."""
    if len(payload) <= MAX_NESTED or payload.count(b"{") + payload.count(b"[") <= MAX_NESTED:
        return False
    depth = 0
    for found in _NESTING.finditer(payload):
        depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(found[0], 0)
        if depth > MAX_NESTED:
            return True
    return False


def _only(column: pa.ChunkedArray) -> pa.Array:
    (whole,) = column.chunks or [pa.array([], column.type)]
    return whole


# ---------------------------------------------------------------------- texts, whole columns of them


def _within_years(type_: Type, values: pa.Array) -> pa.Array:
    """Return values again. Raises ValueError for one outside of the years that Python has, which Arrow reads."""
    if outside_years(type_, values):
        raise ValueError("outside of the years 1 to 9999")
    return values


def _dates(texts: pa.Array) -> pa.Array:
    return _within_years(DATE, texts.cast(pa.date32()))


def _times(texts: pa.Array) -> pa.Array:
    return _within_years(TIMESTAMP_NTZ, texts.cast(pa.timestamp("us")))  # it refuses a zone


def _moments(texts: pa.Array) -> pa.Array:
    zoned = pc.match_substring_regex(texts, _ZONE)
    texts = pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, "Z", ""))
    return _within_years(TIMESTAMP, texts.cast(pa.timestamp("us", tz="UTC")))


def _bytes(texts: pa.Array) -> pa.Array:
    found = [None if one is None else base64.b64decode(one, validate=True) for one in texts.to_pylist()]
    return pa.array(found, pa.binary())


_TEXT_COLUMNS: Final[dict[Type, Callable[[pa.Array], pa.Array]]] = {
    DATE: _dates,
    TIMESTAMP_NTZ: _times,
    TIMESTAMP: _moments,
    BINARY: _bytes,
}


# ---------------------------------------------------------------------- single values


class _Members:
    """The members of one object, in order, with names that are there twice."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        self.pairs = pairs
        self._last = dict(pairs)

    def named(self, name: str) -> list[object]:
        """Return the values under a name."""
        if name not in self._last:
            return []
        if len(self._last) == len(self.pairs):
            return [self._last[name]]
        return [value for key, value in self.pairs if key == name]


class _NumberText(str):
    """A number as it is written."""

    __slots__ = ()


_PARSER: Final = json.JSONDecoder(
    object_pairs_hook=_Members, parse_float=_NumberText, parse_int=_NumberText, parse_constant=_NumberText
)
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _single(type_: Primitive | Decimal, found: object, path: str) -> object:
    """Return the value of a column that is not nested."""
    number = isinstance(found, _NumberText)
    text = isinstance(found, str) and not number
    if type_ == BOOLEAN and isinstance(found, bool):
        return found
    if type_ == STRING and text:
        return _checked_text(str(found), path)
    try:
        if type_ in _TEXTS and text:
            made = _TEXT_COLUMNS[type_](pa.array([found], pa.string()))[0]
            return made.value if type_ in (TIMESTAMP, TIMESTAMP_NTZ) else made.as_py()
        if type_ in (FLOAT, DOUBLE) and (number or text):
            return _float(type_, str(found), number)
        if type_ in (INT, LONG) and number:
            return _whole(type_, str(found))
        if isinstance(type_, Decimal) and (number or text):
            return _digits(type_, str(found))
    except (pa.ArrowInvalid, ValueError, InvalidOperation, binascii.Error) as error:
        raise _type_error(type_, found, path) from error
    raise _type_error(type_, found, path)


def _checked_text(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MisfitError(f"column {path}: half of a surrogate pair stands alone") from error
    return text


def _float(type_: Type, text: str, number: bool) -> float:
    if text in _NOT_FINITE:
        return _NOT_FINITE[text]
    if not number:
        raise ValueError(text)
    value = pa.scalar(text).cast(arrow_type(type_)).as_py()
    if not isinstance(value, float) or not math.isfinite(value):
        raise ValueError(text)
    return value


def _whole(type_: Type, text: str) -> int:
    if len(text) > MAX_NUMBER:
        raise ValueError(text)
    value = Number(text)
    if not value.is_finite() or value != value.to_integral_value():
        raise ValueError(text)
    bits = 31 if type_ == INT else 63
    if not -(1 << bits) <= value < 1 << bits:
        raise ValueError(text)
    return int(value)


def _digits(type_: Decimal, text: str) -> Number:
    sign = text[:1] if text.startswith(("+", "-")) else ""
    digits = text[len(sign) :].lstrip("0")
    plain = f"{sign}{'0' if len(sign) + len(digits) < len(text) else ''}{digits}"
    # Python's numbers may have underscores, spaces around them, and digits of any script; Arrow's may not.
    if len(plain) > MAX_NUMBER or _NUMBER.fullmatch(plain) is None:
        raise ValueError(text)
    value = Number(plain)
    made = value.quantize(Number(1).scaleb(-type_.scale), context=_WIDE)
    if made != value or len(made.as_tuple().digits) > type_.precision:
        raise ValueError(text)
    return made


def value_of_default(one: Field) -> object:
    """Return a field's default as a value. Raises InvalidSchemaError for one that its type does not have."""
    try:
        said = _PARSER.decode(json.dumps(one.default, allow_nan=False))
        return JsonReader(Schema(0, (one,)), {})._value(one.type, said, one.name)
    except (MisfitError, TypeError, ValueError, RecursionError) as misfit:
        raise InvalidSchemaError(
            f"The default of column {one.name} does not fit: {misfit}; nothing was changed",
            advice=f"Give a value of type {one.type}, in JSON",
        ) from misfit


def _type_error(type_: Type, found: object, path: str) -> MisfitError:
    return MisfitError(f"column {path} is {type_}, and the record has {_kind(found)}")


def _kind(found: object) -> str:
    if isinstance(found, _Members):
        return "an object"
    if isinstance(found, list):
        return "an array"
    if isinstance(found, _NumberText):
        return f"the number {found[:40]}"
    return f"the string {found[:40]!r}" if isinstance(found, str) else json.dumps(found)
