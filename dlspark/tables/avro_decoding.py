"""Avro records as rows of the log's current schema, by fastavro.

A record begins with the fingerprint of the version that it was written by (`avro_encoding`), or, where schemas of a
registry are given, with Confluent's five bytes: 00 and the schema's number there, big-endian. Its datum is read by that
schema, and its fields become the current ones as `resolution` says: by ids in records of the log's own versions.

What does not fit gives a row of nulls and an error: another beginning, a schema that is not known, a datum that is cut
short or goes on behind its end, a text that is not UTF-8, a number or time that the column has no room for, a missing
value of a required column. No record raises.

Theory of operation. fastavro reads data as plain numbers and bytes, without logical types: those have no form for all
values. For each schema of records one function is made of the two schemas, before the first record of it, by
`_AvroResolver`; it has a step for each field that is not taken as it is. Each value of a schema that is read takes a
byte at least, so a record gives no more values than it has bytes. fastavro is lenient in two places, and so is this: a
negative index of a union counts from its end, and of a number that is too long the last bits are taken.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence
from decimal import Context
from decimal import Decimal as Number
from typing import Final, TypeAlias

import pyarrow as pa

from dlspark.tables.arrow_types import arrow_schema
from dlspark.tables.avro_encoding import MARKER, fastavro, fingerprint
from dlspark.tables.avro_schema import (
    WrittenSchema,
    avro_schema,
    sanitized,
    schema_from_avro,
    without_logical_types,
)
from dlspark.tables.declaration import Declaration
from dlspark.tables.evolution import widened
from dlspark.tables.json_decoding import value_of_default
from dlspark.tables.resolution import (
    DAY_US,
    FIRST_US,
    LAST_US,
    DecodedRows,
    MisfitError,
    Names,
    missing_error,
    name_of,
    other_names,
    years_error,
)
from dlspark.tables.types import (
    DATE,
    INT,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Decimal,
    Field,
    InvalidSchemaError,
    ListOf,
    MapOf,
    Schema,
    Struct,
    Type,
)

CONFLUENT: Final = struct.Struct(">bI")
"""Zero, and the number of a schema in a registry."""
_PREFIX_BYTES: Final = len(MARKER) + 8
_WIDE: Final = Context(prec=100)

Step: TypeAlias = "Callable[[object], object]"
RowMaker: TypeAlias = "Callable[[bytes], dict[str, object]]"


class AvroReader:
    """How do I read the Avro records of a log? Keep one for all its records: it prepares each schema once.

    Args:
        declaration: What the log says of its records.
        target: The version that they become rows of; None: the current one.

    Raises:
        MissingExtraError: fastavro is not installed.
    """

    def __init__(self, declaration: Declaration, target: Schema | None = None) -> None:
        self._library = fastavro()
        self._target = target or declaration.current
        self._names = other_names(declaration.schemas, self._target)
        self._loose = pa.schema([one.with_nullable(True) for one in arrow_schema(self._target)])
        self._versions: dict[bytes, object] = {}
        self._pending = list(declaration.schemas)
        """Versions without a fingerprint so far, newest last: old records are rare, and each takes a while."""
        self._registry = declaration.confluent
        self._makers: dict[bytes, RowMaker | str] = {}
        """By the first bytes of records, those of one schema; or why none of them can be read."""

    def decode(self, payloads: pa.Array) -> DecodedRows:
        """Return the rows of records, `payloads` of type binary or large_binary without nulls. No record raises."""
        rows: list[dict[str, object] | None] = []
        errors: list[str | None] = []
        for payload in payloads.to_pylist():
            try:
                rows.append(self._row(payload))
                errors.append(None)
            except MisfitError as misfit:
                rows.append(None)
                errors.append(str(misfit))
        columns = [pa.array([None if row is None else row[one.name] for row in rows], one.type) for one in self._loose]
        return DecodedRows(pa.RecordBatch.from_arrays(columns, schema=self._loose), pa.array(errors, pa.string()))

    def _row(self, payload: bytes) -> dict[str, object]:
        size = _PREFIX_BYTES if payload.startswith(MARKER) else CONFLUENT.size
        prefix = payload[:size]
        maker = self._makers.get(prefix)
        if maker is None:
            avro = self._schema_of(prefix)  # what is not known is not kept: records could name any number of schemas
            try:
                maker = self._maker(avro, size)
            except InvalidSchemaError as error:
                maker = f"the record's schema cannot be read: {error}"
            except MisfitError as misfit:
                maker = str(misfit)
            self._makers[prefix] = maker
        if isinstance(maker, str):
            raise MisfitError(maker)
        return maker(payload)

    def _schema_of(self, prefix: bytes) -> object:
        """Return the Avro schema of records that begin like this."""
        if prefix.startswith(MARKER):
            if len(prefix) < _PREFIX_BYTES:
                raise MisfitError(f"the record ends within the fingerprint, after {len(prefix)} bytes")
            if (found := self._version(prefix[len(MARKER) :])) is None:
                raise MisfitError(f"no version of the schema has the fingerprint {prefix[len(MARKER) :].hex()}")
            return found
        if prefix[:1] != b"\x00" or not self._registry:
            raise MisfitError(f"the record does not begin as an Avro one, but with {prefix[:2].hex() or 'nothing'}")
        if len(prefix) < CONFLUENT.size:
            raise MisfitError(f"the record ends within the number of its schema, after {len(prefix)} bytes")
        number = CONFLUENT.unpack(prefix)[1]
        if number not in self._registry:
            raise MisfitError(f"the log declares no schema {number} of a registry")
        return self._registry[number]

    def _version(self, wanted: bytes) -> object:
        """Return the Avro schema of a fingerprint; None where no version has it."""
        while wanted not in self._versions and self._pending:
            avro = avro_schema(self._pending.pop())
            self._versions[fingerprint(without_logical_types(avro))] = avro
        return self._versions.get(wanted)

    def _maker(self, avro: object, start: int) -> RowMaker:
        """Return what makes rows of records whose datum begins at `start`."""
        written = schema_from_avro(avro, foreign=start == CONFLUENT.size)
        step = _AvroResolver(written, self._names).columns(self._target)
        try:
            parsed = self._library.parse_schema(without_logical_types(avro))
        except Exception as error:  # several classes of errors, which have no base of their own
            raise MisfitError(f"the record's schema cannot be read: {error}") from error
        read = self._library.schemaless_reader

        def row(payload: bytes) -> dict[str, object]:
            source = io.BytesIO(payload)
            source.seek(start)
            try:
                datum = read(source, parsed)
            except UnicodeDecodeError as error:
                raise MisfitError(f"a text of the record is not UTF-8: {error.reason}") from error
            except EOFError as error:
                raise MisfitError("the datum is cut short") from error
            except Exception as error:  # which ones bytes can bring about, fastavro does not say
                raise MisfitError(f"the datum is not one of its schema: {error or type(error).__name__}") from error
            if (left := len(payload) - source.tell()) > 0:
                raise MisfitError(f"{left} bytes stand behind the datum")
            made = step(datum)
            assert isinstance(made, dict)
            return made

        return row


class _AvroResolver:
    """Makes what turns data of one schema into values of another one, as Arrow takes them."""

    def __init__(self, written: WrittenSchema, names: Names) -> None:
        self._written = written
        self._names = names

    def columns(self, schema: Schema) -> Step:
        """Return what makes a row of a datum."""
        return self._struct(schema.fields, self._written.schema.fields, "")

    def _struct(self, fields: Sequence[Field], old: Sequence[Field], path: str) -> Step:
        steps: list[tuple[str, str | None, object]] = []
        for one in fields:
            where = f"{path}{one.name}"
            source = self._source(one, fields, old)
            if source is not None:
                steps.append((one.name, self._written.names[source.id], self._field(one, source, where)))
            elif one.required and one.default is None:
                return _missing(where)
            else:
                steps.append((one.name, None, None if one.default is None else value_of_default(one)))

        def struct(datum: object) -> object:
            assert isinstance(datum, dict)
            return {
                name: made if key is None else (datum[key] if made is None else made(datum[key]))  # type: ignore[operator]
                for name, key, made in steps
            }

        return struct

    def _source(self, one: Field, siblings: Sequence[Field], old: Sequence[Field]) -> Field | None:
        """Return the field of the record that has a field's values."""
        if self._written.by_ids:
            return next((other for other in old if other.id == one.id), None)
        by_name = {other.name: other for other in old}
        written = {sanitized(name): name for name in by_name} | {name: name for name in by_name}
        found = name_of(one, siblings, written, self._names)
        return by_name[found] if found is not None else by_name.get(sanitized(one.name))

    def _field(self, one: Field, old: Field, path: str) -> Step | None:
        """Return what makes a field's value; None where the datum is the value."""
        made = self._type(one.type, old, path)
        if old.required or (made is None and not one.required):
            return made

        def field(datum: object) -> object:
            if datum is None:
                if one.required:
                    raise missing_error(path)
                return None
            return datum if made is None else made(datum)

        return field

    def _type(self, type_: Type, old: Field, path: str) -> Step | None:
        """Return what makes a value that is there; None where the datum is the value."""
        if isinstance(type_, Struct) and isinstance(old.type, Struct):
            return self._struct(type_.fields, old.type.fields, f"{path}.")
        if isinstance(type_, ListOf) and isinstance(old.type, ListOf):
            return _each(self._field(type_.element, old.type.element, f"{path}.element"))
        if isinstance(type_, MapOf) and isinstance(old.type, MapOf):
            key = self._field(type_.key, old.type.key, f"{path}.key")
            names = self._written.names
            # Of an array of entries both fields have names of their own; of a map neither.
            in_array = old.type.key.id in names
            return _entries(key, self._field(type_.value, old.type.value, f"{path}.value"), in_array, path)
        if not widened(old.type, type_):
            raise MisfitError(f"column {path} is {type_}, and the record's schema has {old.type}")
        if isinstance(type_, Decimal):
            return _decimal(type_, path)
        if old.type in (TIMESTAMP, TIMESTAMP_NTZ):
            return _time(1_000 if old.id in self._written.milliseconds else 1, path)
        if old.type == DATE:
            return _time(DAY_US, path, whole=DAY_US)
        return _int(path) if old.type == INT else None


def _missing(path: str) -> Step:
    def missing(datum: object) -> object:
        raise missing_error(path)

    return missing


def _each(made: Step | None) -> Step | None:
    if made is None:
        return None

    def each(datum: object) -> object:
        assert isinstance(datum, list)
        return [made(one) for one in datum]

    return each


def _entries(key: Step | None, value: Step | None, in_array: bool, path: str) -> Step:
    def entries(datum: object) -> object:
        if in_array:
            assert isinstance(datum, list)
            pairs = [(one["key"], one["value"]) for one in datum]
            if len({repr(one) for one, _ in pairs}) < len(pairs):
                raise MisfitError(f"column {path} has a key twice")
        else:
            assert isinstance(datum, dict)
            pairs = list(datum.items())
        return [(one if key is None else key(one), other if value is None else value(other)) for one, other in pairs]

    return entries


def _decimal(type_: Decimal, path: str) -> Step:
    limit = 10**type_.precision

    def decimal(datum: object) -> object:
        assert isinstance(datum, bytes)
        found = int.from_bytes(datum, "big", signed=True)
        if not -limit < found < limit:
            raise MisfitError(f"column {path} is {type_}, and the record has more digits")
        return Number(found).scaleb(-type_.scale, context=_WIDE)

    return decimal


def _time(unit: int, path: str, whole: int = 1) -> Step:
    """Return what makes a time: `unit` are the microseconds of what the record counts, `whole` of what the column
    does."""

    def time(datum: object) -> object:
        assert isinstance(datum, int)
        if not FIRST_US <= datum * unit <= LAST_US:
            raise years_error(path)
        return datum * unit // whole

    return time


def _int(path: str) -> Step:
    def whole(datum: object) -> object:
        assert isinstance(datum, int)
        if not -(1 << 31) <= datum < 1 << 31:  # fastavro reads ints as longs
            raise MisfitError(f"column {path} is int, and the record has the number {datum}")
        return datum

    return whole
