"""Arrow records as rows of the log's current schema: each holds an IPC stream of one batch.

The fields of a stream are found by the ids in their metadata (`PARQUET:field_id`), where all have one, else by names;
`resolution` says how. A record that does not fit gives one row of nulls and an error, and no record raises.

Fault model. The bytes of a record may be anything, and Arrow reads them where they lie: buffers that say another length
than they have, offsets that point outside, or a number of rows that no memory holds would take the process down once
something computes with them. So, before a kernel sees a record,

1. its messages are counted: a schema and a batch. Dictionaries and compressed bodies, of which few bytes can make any
   number, are refused;
2. it says no more rows than it has bits, nor than MAX_ROWS, and its types are those whose every value has a bit at
   least: null, fixed-size lists, run ends and views are refused;
3. its buffers are where Arrow's numbers may lie;
4. Arrow validates it in full: lengths, offsets, counts of nulls, UTF-8, digits of decimals;
5. arrays without values, whose offsets that validation passes over, begin within what they refer to: a list without
   lists, whose first offset was elsewhere, ended the process in a kernel that flattens it (seen with 26.0.1).

Arrow fuzzes reading followed by that validation itself. Source: Apache Arrow, "Security Considerations", and
format/Message.fbs for the fields of a message.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dlspark.tables.arrow_encoding import DECLARATION, MAX_ROWS
from dlspark.tables.arrow_types import FIELD_ID, arrow_schema, arrow_type, schema_from_arrow
from dlspark.tables.declaration import Declaration
from dlspark.tables.evolution import widened
from dlspark.tables.json_decoding import value_of_default
from dlspark.tables.resolution import (
    DecodedRows,
    MisfitError,
    Names,
    has_key_twice,
    missing_error,
    name_of,
    other_names,
    outside_years,
    years_error,
)
from dlspark.tables.types import (
    DATE,
    MAX_DEPTH,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Field,
    InvalidSchemaError,
    ListOf,
    MapOf,
    Schema,
    Struct,
    Type,
)

_U16, _U32, _I32, _I64 = (struct.Struct(one) for one in ("<H", "<I", "<i", "<q"))
_HEADER: Final = 2
"""Field of a message that its kind of header stands in."""
_LENGTH, _COMPRESSION = 0, 3
"""Fields of the header of a batch."""
_ALIGNMENT: Final = 8


class ArrowReader:
    """How do I read the Arrow records of a log?

    Args:
        declaration: What the log says of its records.
        target: The version that they become rows of; None: the current one.
    """

    def __init__(self, declaration: Declaration, target: Schema | None = None) -> None:
        target = target or declaration.current
        self._fields = target.fields
        self._declaration = declaration.id.encode()
        self._names = other_names(declaration.schemas, target)
        self._loose = pa.schema([one.with_nullable(True) for one in arrow_schema(target)])

    def decode(self, payloads: pa.Array) -> DecodedRows:
        """Return the rows of records, `payloads` of type binary or large_binary without nulls. No record raises."""
        batches: list[pa.RecordBatch] = []
        errors: list[pa.Array] = []
        for payload in payloads.to_pylist():
            try:
                batches.append(self._rows(payload))
                errors.append(pa.nulls(batches[-1].num_rows, pa.string()))
            except MisfitError as misfit:
                nulls = [pa.nulls(1, one.type) for one in self._loose]
                batches.append(pa.RecordBatch.from_arrays(nulls, schema=self._loose))
                errors.append(pa.array([str(misfit)], pa.string()))
        whole = pa.Table.from_batches(batches, self._loose).combine_chunks()
        (rows,) = whole.to_batches() or [pa.RecordBatch.from_pylist([], schema=self._loose)]
        counts = pa.array([one.num_rows for one in batches], pa.int64())
        return DecodedRows(rows, pa.concat_arrays(errors or [pa.array([], pa.string())]), counts)

    def _rows(self, payload: bytes) -> pa.RecordBatch:
        """Return the rows of one record. Raises MisfitError."""
        try:
            found = read_batch(payload)
            fields = list(found.schema)
            # Ids are of one declaration: another one of the log, or another log's, gave them to other fields.
            said = (found.schema.metadata or {}).get(DECLARATION, b"")
            ours = said == self._declaration and all(map(_has_ids, fields))
            resolver = _ArrowResolver(self._names, by_ids=ours)
            columns = resolver.fields(self._fields, fields, found.columns, None, found.num_rows, "")
            return pa.RecordBatch.from_arrays(columns, schema=self._loose)
        except MisfitError:
            raise
        except Exception as error:  # which ones bytes can bring about, Arrow does not say
            raise MisfitError(f"the record cannot be read: {_short(error)}") from error


def columns_by_ids(
    fields: Sequence[Field], stored: Sequence[pa.Field], columns: Sequence[pa.Array], rows: int
) -> list[pa.Array]:
    """Return columns that another version of the same declaration has as those of `fields`, in their order and types.

    `stored` are the fields of `columns`, each of `rows` values, with their ids. A field that they do not have has its
    default, or is null. Raises MisfitError where a required one is missing.
    """
    return _ArrowResolver({}, by_ids=True).fields(fields, stored, columns, None, rows, "")


# ---------------------------------------------------------------------- bytes that may be anything


def read_batch(payload: bytes) -> pa.RecordBatch:
    """Return the batch of a record, of which every value may be used. Raises MisfitError."""
    source = pa.BufferReader(payload)
    try:
        messages = _messages(source)
        if [one.type for one in messages] != ["schema", "record batch"]:
            kinds = ", ".join(one.type for one in messages) or "nothing"
            raise MisfitError(f"the record is not an Arrow stream of one batch: it has {kinds}")
        if (left := len(payload) - source.tell()) > 0:
            raise MisfitError(f"{left} bytes stand behind the stream")
        schema = pa.ipc.read_schema(messages[0])
        for one in schema:
            _check_type(one.type, one.name, 0)
        _check_header(messages[1], len(payload))
        batch = pa.ipc.read_record_batch(messages[1], schema)
        if any(buffer is not None and buffer.address % _ALIGNMENT for one in batch.columns for buffer in one.buffers()):
            raise MisfitError("the record's buffers are not aligned")
        batch.validate(full=True)
        for one in batch.columns:
            _check_empty(one)
    except UnicodeDecodeError as error:
        raise MisfitError("a column's name is not UTF-8") from error
    except (pa.ArrowException, OSError, struct.error, MemoryError, OverflowError, ValueError) as error:
        raise MisfitError(f"the record is not a valid Arrow stream: {_short(error)}") from error
    return batch


def _messages(source: pa.BufferReader) -> list[pa.ipc.Message]:
    """Return the messages of a stream, of too many the first ones."""
    reader = pa.ipc.MessageReader.open_stream(source)
    found: list[pa.ipc.Message] = []
    while len(found) < 3:
        try:
            found.append(reader.read_next_message())
        except StopIteration:
            break
    return found


def _check_header(message: pa.ipc.Message, size: int) -> None:
    """Raise MisfitError for a batch that is compressed, or that says more rows than so many bytes hold."""
    held = message.metadata.to_pybytes()
    root = _U32.unpack_from(held, 0)[0]
    at = _place(held, root, _HEADER)
    if at is None:
        raise MisfitError("the record's batch has no header")
    header = at + _U32.unpack_from(held, at)[0]
    if _place(held, header, _COMPRESSION) is not None:
        raise MisfitError("the record's batch is compressed")
    length = _place(held, header, _LENGTH)
    rows = 0 if length is None else _I64.unpack_from(held, length)[0]
    if not 0 <= rows <= min(MAX_ROWS, 8 * size):
        raise MisfitError(f"the record says that it has {rows} rows, in {size} bytes")


def _place(held: bytes, table: int, number: int) -> int | None:
    """Return where a field of a flatbuffer's table stands; None for one that is not there."""
    offsets = table - _I32.unpack_from(held, table)[0]
    size = _U16.unpack_from(held, offsets)[0]
    entry = 4 + 2 * number
    if entry + 2 > size or (found := _U16.unpack_from(held, offsets + entry)[0]) == 0:
        return None
    return int(table + found)


def _check_type(type_: pa.DataType, path: str, depth: int) -> None:
    """Raise MisfitError for a type whose values may take no bit, or more memory than the record."""
    if depth > MAX_DEPTH:
        raise MisfitError(f"column {path} is nested more than {MAX_DEPTH} deep")
    if pa.types.is_struct(type_) and type_.num_fields:
        parts = [type_.field(at) for at in range(type_.num_fields)]
    elif pa.types.is_map(type_):
        parts = [type_.key_field, type_.item_field]
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
        parts = [type_.value_field]
    elif type_.num_fields or pa.types.is_null(type_) or not _plain(type_):
        raise MisfitError(f"column {path} is {_short(type_)} in the record, which is not read")
    else:
        return
    for one in parts:
        _check_type(one.type, f"{path}.{one.name}", depth + 1)


def _plain(type_: pa.DataType) -> bool:
    """Return whether a type is not nested, and each value of it has its own bytes or bits."""
    kinds = pa.types
    texts = (kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_large_binary)
    return any(is_one(type_) for is_one in (kinds.is_primitive, kinds.is_decimal, *texts))


def _check_empty(array: pa.Array) -> None:
    """Raise MisfitError for an array without values that begins elsewhere than in what it refers to."""
    type_ = array.type
    nested = pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_map(type_)
    parts = [array.values] if nested else []
    if pa.types.is_struct(type_):
        parts = [array.field(at) for at in range(type_.num_fields)]
    elif not len(array) and (nested or not (pa.types.is_primitive(type_) or pa.types.is_decimal(type_))):
        buffers = array.buffers()
        size = len(array.values) if nested else buffers[2].size if buffers[2] is not None else 0
        large = type_ in (pa.large_string(), pa.large_binary()) or pa.types.is_large_list(type_)
        offset = _I64 if large else _I32
        if buffers[1] is not None and buffers[1].size >= offset.size:
            first = offset.unpack_from(buffers[1], 0)[0]
            if not 0 <= first <= size:
                raise MisfitError(f"an array without values begins at {first}, of {size}")
    for one in parts:
        _check_empty(one)


# ---------------------------------------------------------------------- as the current columns


class _ArrowResolver:
    """Makes columns of one schema of columns of another one."""

    def __init__(self, names: Names, *, by_ids: bool) -> None:
        self._names = names
        self._by_ids = by_ids

    def fields(
        self,
        fields: Sequence[Field],
        old: Sequence[pa.Field],
        columns: Sequence[pa.Array],
        there: pa.Array | None,
        rows: int,
        path: str,
    ) -> list[pa.Array]:
        """Return columns by their fields, in order. `there` says where what they are part of is not null."""
        made = []
        for one in fields:
            at = self._source(one, fields, old)
            where = f"{path}{one.name}"
            if at is not None:
                made.append(self._field(one, columns[at], there, where))
            elif one.default is not None:
                made.append(pa.repeat(pa.scalar(value_of_default(one), arrow_type(one.type)), rows))
            elif one.required and rows and (there is None or pc.any(there).as_py()):
                raise missing_error(where)
            else:
                made.append(pa.nulls(rows, arrow_type(one.type)))
        return made

    def _source(self, one: Field, siblings: Sequence[Field], old: Sequence[pa.Field]) -> int | None:
        """Return at which place among the record's columns a field's values are."""
        if self._by_ids:
            said = str(one.id).encode()
            places = [at for at, other in enumerate(old) if other.metadata[FIELD_ID] == said]
        else:
            by_name = {other.name: other.name for other in old}
            name = name_of(one, siblings, by_name, self._names)
            places = [at for at, other in enumerate(old) if other.name == name]
        if len(places) > 1:
            raise MisfitError(f"column {one.name} is there {len(places)} times")
        return places[0] if places else None

    def _field(self, one: Field, found: pa.Array, there: pa.Array | None, path: str) -> pa.Array:
        """Return a field's values. Raises MisfitError where a required one is missing."""
        if one.required and found.null_count:
            missing = found.is_null() if there is None else pc.and_(found.is_null(), there)
            if pc.any(missing).as_py():
                raise missing_error(path)
        return self._column(one.type, found, path)

    def _column(self, type_: Type, found: pa.Array, path: str) -> pa.Array:
        kind, made = found.type, arrow_type(type_)
        if isinstance(type_, Struct) and pa.types.is_struct(kind):
            old = [kind.field(at) for at in range(kind.num_fields)]
            parts = [pc.struct_field(found, [at]) for at in range(len(old))]
            columns = self.fields(type_.fields, old, parts, found.is_valid(), len(found), f"{path}.")
            return pa.StructArray.from_arrays(columns, fields=list(made), mask=found.is_null())
        if isinstance(type_, ListOf) and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            elements = self._field(type_.element, pc.list_flatten(found), None, f"{path}.element")
            offsets = _offsets(pc.list_value_length(found).fill_null(0))
            return pa.ListArray.from_arrays(offsets, elements, type=made, mask=found.is_null())
        if isinstance(type_, MapOf) and pa.types.is_map(kind):
            return self._map(type_, found, path)
        if not _has_room(type_, kind):
            raise MisfitError(f"column {path} is {type_}, and the record has {_short(kind)}")
        values = found.cast(made)
        if type_ in (DATE, TIMESTAMP, TIMESTAMP_NTZ) and outside_years(type_, values):
            raise years_error(path)
        return values

    def _map(self, type_: MapOf, found: pa.Array, path: str) -> pa.Array:
        entries = found.drop_null()
        first = entries.offsets[0].as_py() if len(entries) else 0
        size = entries.offsets[-1].as_py() - first if len(entries) else 0
        key = self._field(type_.key, entries.keys.slice(first, size), None, f"{path}.key")
        value = self._field(type_.value, entries.items.slice(first, size), None, f"{path}.value")
        lengths = pc.subtract(found.offsets[1:], found.offsets[:-1]) if len(found) else pa.array([], pa.int32())
        lengths = pc.if_else(found.is_valid(), lengths, 0)
        if has_key_twice(lengths, key):
            raise MisfitError(f"column {path} has a key twice")
        offsets = _offsets(lengths)
        return pa.MapArray.from_arrays(offsets, key, value, type=arrow_type(type_), mask=found.is_null())


def _has_room(type_: Type, kind: pa.DataType) -> bool:
    """Return whether a column that is not nested takes each value of an Arrow type."""
    try:
        return widened(schema_from_arrow(pa.schema([pa.field("c", kind)])).fields[0].type, type_)
    except InvalidSchemaError:
        return False


def _offsets(lengths: pa.Array) -> pa.Array:
    ends = pc.cumulative_sum(lengths.cast(pa.int64()))
    return pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())


def _has_ids(one: pa.Field) -> bool:
    """Return whether a field of a record and all those of structs below it have ids."""
    if FIELD_ID not in (one.metadata or {}):
        return False
    return _parts_have_ids(one.type)


def _parts_have_ids(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return all(_has_ids(type_.field(at)) for at in range(type_.num_fields))
    if pa.types.is_map(type_):
        return _parts_have_ids(type_.key_type) and _parts_have_ids(type_.item_type)
    return not (pa.types.is_list(type_) or pa.types.is_large_list(type_)) or _parts_have_ids(type_.value_type)


def _short(what: object) -> str:
    """Return what something says of itself, on one line that people can read."""
    text = " ".join(str(what).split()) or type(what).__name__
    return text if len(text) <= 200 else f"{text[:200]}..."
