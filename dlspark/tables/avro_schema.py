"""Schemas as Avro has them, and Avro's as ours: Iceberg's mapping.

| column | in Avro |
|---|---|
| boolean, int, long, float, double, string | the same |
| binary | `bytes` |
| date | `int`, logical type `date` |
| timestamptz, timestamp | `long`, `timestamp-micros`, with `adjust-to-utc` true or false |
| decimal | `fixed` of as few bytes as all its values need, named `decimal_P_S` |
| struct | a record named `r` and the field's id; its fields have `field-id` |
| list | an array with `element-id` |
| map by strings | a map with `key-id` and `value-id` |
| map by others | an array, logical type `map`, of records `kI_vJ` of `key` and `value` |
| what may be null | a union of `null` and the type, in this order |

Names that Avro does not take are changed as Iceberg changes them: `a b` is `a_x20b`, `1st` is `_1st`; the name itself
stands in `iceberg-field-name`. Iceberg lets letters of any script stand; here all but ASCII's are changed, as
Avro's own specification asks. Where two siblings come out as one, the later one has its id behind the name.

The record of a whole row is named `version_N`. Where a column is dropped and another one of the same name and type is
added in its place, the fingerprint would be the older schema's again: it sees names and types only. So it sees this.

Sources: Apache Avro 1.11, Specification; Apache Iceberg, Table Spec, Appendix A (Avro).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from dlspark.tables.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    MAX_DEPTH,
    MAX_FIELDS,
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
    check_schema,
)
from metadata.foundation.settings import shown

_PRIMITIVES: Final[Mapping[Primitive, object]] = {
    BOOLEAN: "boolean",
    INT: "int",
    LONG: "long",
    FLOAT: "float",
    DOUBLE: "double",
    STRING: "string",
    BINARY: "bytes",
    DATE: {"type": "int", "logicalType": "date"},
    TIMESTAMP: {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
    TIMESTAMP_NTZ: {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
}
_FROM_NAME: Final = {one: type_ for type_, one in _PRIMITIVES.items() if isinstance(one, str)}
_FROM_LOGICAL: Final = {
    ("int", "date"): DATE,
    ("long", "timestamp-micros"): TIMESTAMP,
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "local-timestamp-micros"): TIMESTAMP_NTZ,
    ("long", "local-timestamp-millis"): TIMESTAMP_NTZ,
}
_OTHER: Final = re.compile("[^A-Za-z0-9_]")
_NAME: Final = "iceberg-field-name"


def avro_schema(schema: Schema) -> dict[str, object]:
    """Return a schema as Avro has it, a record in JSON."""
    return _record(f"version_{schema.id}", schema.fields, set())


def avro_names(fields: Sequence[Field]) -> list[str]:
    """Return the names that siblings have in Avro."""
    names: list[str] = []
    for one in fields:
        name = sanitized(one.name)
        while name in names:
            name += f"_{one.id}"
        names.append(name)
    return names


def sanitized(name: str) -> str:
    """Return a name that Avro takes."""
    units = name.encode("utf-16-be")  # Iceberg's Java counts in these: what is beyond the first plane becomes two
    text = "".join(chr(int.from_bytes(units[at : at + 2], "big")) for at in range(0, len(units), 2))
    made = _OTHER.sub(lambda found: f"_x{ord(found[0]):X}", text)
    return f"_{made}" if made[0].isdigit() else made


def bytes_of_decimal(precision: int) -> int:
    """Return how many bytes numbers of so many digits need, in two's complement."""
    return int(10**precision - 1).bit_length() // 8 + 1


def _record(name: str, fields: Sequence[Field], defined: set[str]) -> dict[str, object]:
    """Return a record. `defined` are the names of fixed types so far: the second time the name alone is said."""
    made = [_field(one, name_, defined) for one, name_ in zip(fields, avro_names(fields), strict=True)]
    return {"type": "record", "name": name, "fields": made}


def _field(one: Field, name: str, defined: set[str]) -> dict[str, object]:
    made: dict[str, object] = {"name": name, "type": _optional(one, defined), "field-id": one.id}
    if not one.required and one.default is None:
        made["default"] = None
    if name != one.name:
        made[_NAME] = one.name
    if one.doc is not None:
        made["doc"] = one.doc
    return made


def _optional(one: Field, defined: set[str]) -> object:
    made = _type(one, defined)
    return made if one.required else ["null", made]


def _type(one: Field, defined: set[str]) -> object:
    type_ = one.type
    if isinstance(type_, Struct):
        return _record(f"r{one.id}", type_.fields, defined)
    if isinstance(type_, ListOf):
        return {"type": "array", "items": _optional(type_.element, defined), "element-id": type_.element.id}
    if isinstance(type_, MapOf):
        key, value = type_.key, type_.value
        if key.type == STRING:
            return {"type": "map", "values": _optional(value, defined), "key-id": key.id, "value-id": value.id}
        entry = _record(f"k{key.id}_v{value.id}", (key, value), defined)
        return {"type": "array", "items": entry, "logicalType": "map"}
    if not isinstance(type_, Decimal):
        return _PRIMITIVES[type_]
    name = f"decimal_{type_.precision}_{type_.scale}"
    if name in defined:
        return name
    defined.add(name)
    return {
        "type": "fixed",
        "name": name,
        "size": bytes_of_decimal(type_.precision),
        "logicalType": "decimal",
        "precision": type_.precision,
        "scale": type_.scale,
    }


def without_logical_types(avro: object) -> object:
    """Return an Avro schema whose data are plain numbers and bytes: they have the same bytes, and the same canonical
    form."""
    if isinstance(avro, list):
        return [without_logical_types(one) for one in avro]
    if not isinstance(avro, dict):
        return avro
    return {
        key: without_logical_types(value) if key in ("type", "items", "values", "fields") else value
        for key, value in avro.items()
        if key not in ("logicalType", "default")
    }


# ---------------------------------------------------------------------- Avro's as ours


@dataclass(frozen=True, slots=True)
class WrittenSchema:
    """Which schema were records written by, and what of it only Avro knows?

    Args:
        schema: The columns.
        by_ids: Whether ids of fields are the log's; else fields are known by their names, and ids are made up.
        names: Names in the record, by ids.
        milliseconds: Ids of the fields that count milliseconds.
    """

    schema: Schema
    by_ids: bool
    names: Mapping[int, str]
    milliseconds: frozenset[int]


class _NoIdsError(Exception):
    """A field has no id."""


def schema_from_avro(avro: object, *, foreign: bool = False) -> WrittenSchema:
    """Read a record's schema, what `avro_schema` makes and what other writers make of the same types.

    `foreign`: ids in it are not the log's, so fields are known by their names. Enumerations are strings, and `fixed` is
    binary. Raises InvalidSchemaError for what no table can have.
    """
    try:
        if not foreign:
            return _AvroReader(None).whole(avro)
    except _NoIdsError:
        pass
    return _AvroReader(count(1).__next__).whole(avro)


class _AvroReader:
    """Reads one schema. `number` gives ids; None: they stand in it."""

    def __init__(self, number: Callable[[], int] | None) -> None:
        self._number = number
        self._named: dict[str, Mapping[str, object]] = {}
        self._names: dict[int, str] = {}
        self._milliseconds: set[int] = set()
        self._fields = 0

    def whole(self, avro: object) -> WrittenSchema:
        """Return the schema of a record."""
        type_ = self._type(avro, "", 0, 0)
        if not isinstance(type_, Struct):
            raise _unfit_error(avro)
        schema = Schema(0, type_.fields)
        check_schema(schema)
        return WrittenSchema(schema, self._number is None, self._names, frozenset(self._milliseconds))

    def _id(self, found: Mapping[str, object], key: str) -> int:
        if self._number is not None:
            return self._number()
        if type(said := found.get(key)) is not int:
            raise _NoIdsError
        return said

    def _field(self, found: object, space: str, depth: int) -> Field:
        self._fields += 1
        if self._fields > MAX_FIELDS:  # few named types, each with two fields of the one before, would be any number
            raise InvalidSchemaError(f"Avro's schema has more than {MAX_FIELDS} fields", advice="Read fewer of them")
        if not isinstance(found, Mapping) or not isinstance(found.get("name"), str):
            raise _unfit_error(found)
        name, shown_name, doc = found["name"], found.get(_NAME), found.get("doc")
        id_ = self._id(found, "field-id")
        self._names[id_] = name
        type_, required = self._part(found.get("type"), space, id_, depth)
        said = shown_name if isinstance(shown_name, str) else name
        return Field(id_, said, type_, required, doc if isinstance(doc, str) else None)

    def _part(self, avro: object, space: str, id_: int, depth: int) -> tuple[Type, bool]:
        """Return a type, and whether there is always a value of it."""
        if not isinstance(avro, list):
            return self._type(avro, space, id_, depth), True
        others = [one for one in avro if one not in ("null", {"type": "null"})]
        if len(others) != 1:
            raise _unfit_error(avro)
        return self._type(others[0], space, id_, depth), len(avro) == 1

    def _type(self, avro: object, space: str, id_: int, depth: int) -> Type:
        if depth > MAX_DEPTH:
            raise InvalidSchemaError(f"Avro's types are nested more than {MAX_DEPTH} deep", advice="Flatten them")
        if isinstance(avro, str):
            if avro in _FROM_NAME:
                return _FROM_NAME[avro]
            known = self._named.get(avro) or self._named.get(f"{space}.{avro}")
            if known is None:
                raise _unfit_error(avro)
            return self._type(known, space, id_, depth + 1)
        if not isinstance(avro, Mapping):
            raise _unfit_error(avro)
        kind, logical = avro.get("type"), avro.get("logicalType")
        if kind in ("record", "enum", "fixed"):
            space = self._remember(avro, space)
        if kind == "fixed" and (not isinstance(size := avro.get("size"), int) or size < 1):
            raise _unfit_error(avro)  # any number of them would fit into no bytes
        if kind in ("bytes", "fixed") and logical == "decimal":
            return _decimal(avro)
        if isinstance(kind, str) and isinstance(logical, str) and (kind, logical) in _FROM_LOGICAL:
            if logical.endswith("millis"):
                self._milliseconds.add(id_)
            return TIMESTAMP_NTZ if avro.get("adjust-to-utc") is False else _FROM_LOGICAL[kind, logical]
        if kind == "enum":
            return STRING
        if kind == "fixed":
            return BINARY
        if kind in ("record", "array", "map"):
            return self._nested(avro, space, depth + 1)
        return self._type(kind, space, id_, depth + 1)

    def _remember(self, avro: Mapping[str, object], space: str) -> str:
        """Keep a named type, and return the namespace within it."""
        name, said = avro.get("name"), avro.get("namespace", space)
        if not isinstance(name, str) or not isinstance(said, str):
            raise _unfit_error(avro)
        full = name if "." in name or not said else f"{said}.{name}"
        self._named[full] = avro
        return full.rpartition(".")[0]

    def _nested(self, avro: Mapping[str, object], space: str, depth: int) -> Type:
        fields, items = avro.get("fields"), avro.get("items")
        if avro["type"] == "record" and isinstance(fields, list):
            return Struct(tuple(self._field(one, space, depth) for one in fields))
        if avro["type"] == "map":
            key, id_ = self._id(avro, "key-id"), self._id(avro, "value-id")
            type_, required = self._part(avro.get("values"), space, id_, depth)
            return MapOf(Field(key, "key", STRING, required=True), Field(id_, "value", type_, required))
        if avro.get("logicalType") == "map":
            entry = self._type(items, space, 0, depth)
            if isinstance(entry, Struct) and [one.name for one in entry.fields] == ["key", "value"]:
                return MapOf(entry.fields[0], entry.fields[1])
            raise _unfit_error(avro)
        id_ = self._id(avro, "element-id")
        type_, required = self._part(items, space, id_, depth)
        return ListOf(Field(id_, "element", type_, required))


def _decimal(avro: Mapping[str, object]) -> Decimal:
    precision, scale = avro.get("precision"), avro.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        raise _unfit_error(avro)
    return Decimal(precision, scale)


def _unfit_error(avro: object) -> InvalidSchemaError:
    return InvalidSchemaError(
        f"No column of a table can be what this Avro schema says: {shown(avro)}",
        advice="A row is a record; of a union's types all but one are null",
    )
