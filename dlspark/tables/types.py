"""The types of a table's columns, and the fields that have them: Iceberg's, in Iceberg's own JSON.

    {"type": "struct", "schema-id": 2, "fields": [
        {"id": 1, "name": "id", "required": true, "type": "long"},
        {"id": 4, "name": "tags", "required": false, "type":
            {"type": "list", "element-id": 5, "element": "string", "element-required": true}}]}

A field is known by its id, which is never given twice in the life of a log: a column that is renamed keeps its id, and
one that is dropped and added again has another. The elements of lists, and the keys and values of maps, are fields too.
So lake tables, cold files and readers of any language take a schema over as it is.

Source: Apache Iceberg, Table Spec, "Schemas and Data Types" and Appendix C (JSON serialization). `int` to `timestamp`
are its primitive types but for `time`, `uuid`, `fixed` and those of version 3, which Spark, JSON or Avro have no equal
of. `timestamptz` is a moment (Spark's TIMESTAMP), `timestamp` a time on a clock (Spark's TIMESTAMP_NTZ); both count
microseconds.

Nothing here does I/O, and nothing here imports Arrow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from metadata.foundation.errors import CallerError
from metadata.foundation.settings import shown

MAX_PRECISION: Final = 38
"""Digits that a decimal may have, as in Spark, Arrow and Iceberg."""
MAX_DEPTH: Final = 32
"""How far types may be nested."""
MAX_FIELDS: Final = 4_096
"""Fields of one schema, nested ones too."""
MAX_NAME_BYTES: Final = 255
_DECIMAL: Final = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")

Json: TypeAlias = "Mapping[str, object]"


class InvalidSchemaError(CallerError):
    """A schema that a log cannot have; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type without parameters, by its name in Iceberg."""

    name: str

    def __str__(self) -> str:
        return self.name


BOOLEAN, INT, LONG, FLOAT, DOUBLE = map(Primitive, ("boolean", "int", "long", "float", "double"))
STRING, BINARY = map(Primitive, ("string", "binary"))
DATE, TIMESTAMP_NTZ, TIMESTAMP = map(Primitive, ("date", "timestamp", "timestamptz"))
PRIMITIVES: Final[Mapping[str, Primitive]] = {
    one.name: one for one in (BOOLEAN, INT, LONG, FLOAT, DOUBLE, STRING, BINARY, DATE, TIMESTAMP_NTZ, TIMESTAMP)
}


@dataclass(frozen=True, slots=True)
class Decimal:
    """A number of at most `precision` digits, `scale` of them behind the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision}, {self.scale})"


@dataclass(frozen=True, slots=True)
class Struct:
    """Fields with names, in order."""

    fields: tuple[Field, ...]

    def __str__(self) -> str:
        return f"struct<{', '.join(f'{one.name}: {one.type}' for one in self.fields)}>"


@dataclass(frozen=True, slots=True)
class ListOf:
    """Any number of elements, in order. The element is a field named `element`."""

    element: Field

    def __str__(self) -> str:
        return f"list<{self.element.type}>"


@dataclass(frozen=True, slots=True)
class MapOf:
    """Values by keys. Both are fields, named `key`, which is required, and `value`."""

    key: Field
    value: Field

    def __str__(self) -> str:
        return f"map<{self.key.type}, {self.value.type}>"


Type: TypeAlias = "Primitive | Decimal | Struct | ListOf | MapOf"


@dataclass(frozen=True, slots=True)
class Field:
    """What is a column called, and what does it hold?

    Args:
        id: Number of the field in its log, from 1; never given twice.
        name: Name among its siblings.
        type: What it holds.
        required: Whether each row has a value of it.
        doc: Comment for people.
        default: Value, in Iceberg's JSON form, of rows that were written before the field was there, and of rows that
            are written without it; None for null.
    """

    id: int
    name: str
    type: Type
    required: bool = False
    doc: str | None = None
    default: object = None


@dataclass(frozen=True, slots=True)
class Schema:
    """Which columns has a version of a table?

    Args:
        id: Number of the version, from 0.
        fields: Columns, in order.
    """

    id: int
    fields: tuple[Field, ...] = field(default=())

    def __str__(self) -> str:
        return ", ".join(f"{one.name} {one.type}{' not null' if one.required else ''}" for one in self.fields)

    def column(self, name: str) -> Field | None:
        """Return the column of a name, in whichever case that is written; None for none."""
        return next((one for one in self.fields if one.name.casefold() == name.casefold()), None)

    def by_id(self) -> dict[int, Field]:
        """Return all fields by their ids, nested ones too."""
        return {one.id: one for one in walk(self.fields)}

    @property
    def highest_id(self) -> int:
        """The highest id of a field; 0 without fields."""
        return max(self.by_id(), default=0)


def children(type_: Type) -> tuple[Field, ...]:
    """Return the fields that a type is made of."""
    if isinstance(type_, Struct):
        return type_.fields
    if isinstance(type_, ListOf):
        return (type_.element,)
    return (type_.key, type_.value) if isinstance(type_, MapOf) else ()


def walk(fields: Sequence[Field]) -> Iterator[Field]:
    """Yield fields, each before those that it is made of."""
    for one in fields:
        yield one
        yield from walk(children(one.type))


def renumbered(type_: Type, number: Callable[[], int]) -> Type:
    """Return a type with new ids for all its fields, as `number` gives them: siblings first, as Iceberg numbers."""
    ids = [number() for _ in children(type_)]
    made = [
        Field(new, one.name, renumbered(one.type, number), one.required, one.doc, one.default)
        for new, one in zip(ids, children(type_), strict=True)
    ]
    if isinstance(type_, Struct):
        return Struct(tuple(made))
    if isinstance(type_, ListOf):
        return ListOf(made[0])
    return MapOf(made[0], made[1]) if isinstance(type_, MapOf) else type_


# ---------------------------------------------------------------------- what a schema may be


def check_schema(schema: Schema) -> None:
    """Raise InvalidSchemaError unless a log can have this schema."""
    if not schema.fields:
        raise InvalidSchemaError("A table has one column at least; nothing was changed", advice="Name its columns")
    all_fields = list(walk(schema.fields))
    if len(all_fields) > MAX_FIELDS:
        raise InvalidSchemaError(
            f"The schema has {len(all_fields)} fields; nothing was changed",
            advice=f"Up to {MAX_FIELDS} are taken, nested ones too; put what is seldom asked for into one string",
        )
    ids = [one.id for one in all_fields]
    if len(set(ids)) < len(ids) or min(ids) < 1:
        raise InvalidSchemaError("Ids of fields are numbers from 1, each given once", advice="See docs/tables.md")
    _check_siblings(schema.fields, "")
    for one in schema.fields:
        _check_field(one, one.name, 1)


def _check_siblings(fields: Sequence[Field], where: str) -> None:
    seen: dict[str, str] = {}
    for one in fields:
        other = seen.setdefault(one.name.casefold(), one.name)
        if other is not one.name:
            raise InvalidSchemaError(
                f"Columns {other!r} and {one.name!r}{where} have one name, as SQL compares names; nothing was changed",
                advice="Rename one of them",
            )


def _check_field(one: Field, path: str, depth: int) -> None:
    """Check a field and those below it. `path` names it for people."""
    if depth > MAX_DEPTH:
        raise InvalidSchemaError(
            f"Column {path} is nested more than {MAX_DEPTH} deep; nothing was changed", advice="Flatten it"
        )
    size = len(one.name.encode("utf-8", "surrogatepass"))
    if not one.name or size > MAX_NAME_BYTES or not one.name.isprintable():
        raise InvalidSchemaError(
            f"{one.name!r} cannot be the name of a column; nothing was changed",
            advice=f"Names have 1 to {MAX_NAME_BYTES} bytes in UTF-8, and only characters that can be printed",
        )
    type_ = one.type
    if not isinstance(type_, Primitive | Decimal | Struct | ListOf | MapOf) or not isinstance(one.doc, str | None):
        raise InvalidSchemaError(
            f"Column {path}: {type_!r} is not a type of a column, or its comment is not a text; nothing was changed",
            advice="Types are those of dlspark.tables.types: STRING, LONG, Decimal(9, 2), Struct((...)), ...",
        )
    try:
        (one.doc or "").encode()
    except UnicodeEncodeError as error:
        raise InvalidSchemaError(
            f"The comment of column {path} has half of a surrogate pair; nothing was changed", advice="Correct it"
        ) from error
    if isinstance(type_, Decimal) and not 0 <= type_.scale <= type_.precision <= MAX_PRECISION >= 1 <= type_.precision:
        raise InvalidSchemaError(
            f"Column {path}: {type_} cannot be; nothing was changed",
            advice=f"A decimal has 1 to {MAX_PRECISION} digits, and no more behind the point than in all",
        )
    if isinstance(type_, Struct):
        if not type_.fields:
            raise InvalidSchemaError(
                f"Column {path} is a struct without fields; nothing was changed", advice="Name its fields"
            )
        _check_siblings(type_.fields, f" of {path}")
    if isinstance(type_, MapOf) and not type_.key.required:
        raise InvalidSchemaError(f"Column {path}: keys of a map are never null", advice="Declare them required")
    for child in children(type_):
        _check_field(child, f"{path}.{child.name}", depth + 1)


# ---------------------------------------------------------------------- JSON


def schema_to_json(schema: Schema) -> dict[str, object]:
    """Return a schema in Iceberg's JSON."""
    return {"type": "struct", "schema-id": schema.id, "fields": [_field_to_json(one) for one in schema.fields]}


def schema_from_json(found: object) -> Schema:
    """Read what `schema_to_json` makes, and what Iceberg makes of the same types. Raises InvalidSchemaError."""
    struct = _type_from_json(found, 0)
    number = found.get("schema-id", 0) if isinstance(found, Mapping) else None
    if not isinstance(struct, Struct) or type(number) is not int or number < 0:
        raise _malformed_error(found)
    schema = Schema(number, struct.fields)
    check_schema(schema)
    return schema


def type_to_json(type_: Type) -> object:
    """Return a type in Iceberg's JSON."""
    if isinstance(type_, Struct):
        return {"type": "struct", "fields": [_field_to_json(one) for one in type_.fields]}
    if isinstance(type_, ListOf):
        element = type_.element
        return {
            "type": "list",
            "element-id": element.id,
            "element": type_to_json(element.type),
            "element-required": element.required,
        }
    if isinstance(type_, MapOf):
        return {
            "type": "map",
            "key-id": type_.key.id,
            "key": type_to_json(type_.key.type),
            "value-id": type_.value.id,
            "value": type_to_json(type_.value.type),
            "value-required": type_.value.required,
        }
    return str(type_)


def _field_to_json(one: Field) -> dict[str, object]:
    made = {"id": one.id, "name": one.name, "required": one.required, "type": type_to_json(one.type)}
    if one.doc is not None:
        made["doc"] = one.doc
    if one.default is not None:
        # Iceberg has two: for rows from before the field, and for rows that are written without it. They differ where
        # a default was changed since; here it cannot be.
        made |= {"initial-default": one.default, "write-default": one.default}
    return made


def _type_from_json(found: object, depth: int) -> Type:
    if depth > MAX_DEPTH:
        raise InvalidSchemaError(f"Types are nested more than {MAX_DEPTH} deep", advice="Flatten them")
    if isinstance(found, str):
        if found in PRIMITIVES:
            return PRIMITIVES[found]
        if (decimal := _DECIMAL.fullmatch(found)) is not None:
            return Decimal(int(decimal[1]), int(decimal[2]))
        raise InvalidSchemaError(
            f"{found!r} is not a type of a column; nothing was changed",
            advice=f"Types are {', '.join(PRIMITIVES)}, decimal(precision, scale), struct, list and map",
        )
    kind = found.get("type") if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        raise _malformed_error(found)
    fields = found.get("fields")
    if kind == "struct" and isinstance(fields, list):
        return Struct(tuple(_field_from_json(one, depth + 1) for one in fields))
    if kind == "list":
        return ListOf(_part_from_json(found, "element", depth + 1))
    if kind == "map":
        return MapOf(_part_from_json(found, "key", depth + 1), _part_from_json(found, "value", depth + 1))
    raise _malformed_error(found)


def _field_from_json(found: object, depth: int) -> Field:
    if not isinstance(found, Mapping):
        raise _malformed_error(found)
    number, name, required, doc = found.get("id"), found.get("name"), found.get("required"), found.get("doc")
    well_formed = type(number) is int and isinstance(name, str) and isinstance(required, bool)
    if not well_formed or not isinstance(doc, str | None):
        raise _malformed_error(found)
    default = found.get("initial-default")
    if default != found.get("write-default"):
        raise InvalidSchemaError(
            f"Column {name} has one default for older rows and another for new ones; nothing was changed",
            advice="Give both the same value",
        )
    return Field(number, name, _type_from_json(found.get("type"), depth), required, doc, default)  # type: ignore[arg-type]


def _part_from_json(found: Json, part: str, depth: int) -> Field:
    """Read the field of a list or map that is called `part`."""
    number, required = found.get(f"{part}-id"), found.get(f"{part}-required", part == "key")
    if type(number) is not int or not isinstance(required, bool):
        raise _malformed_error(found)
    return Field(number, part, _type_from_json(found.get(part), depth), required)


def _malformed_error(found: object) -> InvalidSchemaError:
    return InvalidSchemaError(
        f"This is not a schema in Iceberg's JSON: {shown(found)}",
        advice="docs/tables.md says what one looks like; `dlspark log schema show` prints one",
    )
