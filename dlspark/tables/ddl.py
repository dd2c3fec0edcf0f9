"""Columns as SQL declares them, and back: what a person types and reads.

    id BIGINT NOT NULL, item STRING COMMENT 'what', price DECIMAL(9, 2) DEFAULT 0.00, tags ARRAY<STRING>,
    at TIMESTAMP NOT NULL, place STRUCT<city: STRING NOT NULL, zip: STRING>, seen MAP<STRING, TIMESTAMP_NTZ>

Types are Spark's. TIMESTAMP is a moment, TIMESTAMP_NTZ a time on a clock. Elements of lists and values of maps may be
null, unless NOT NULL stands behind their type (ARRAY<STRING NOT NULL>), which is not Spark's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import count
from typing import Final

from dlspark.tables.sql_words import WordKind, Words
from dlspark.tables.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Decimal,
    Field,
    ListOf,
    MapOf,
    Primitive,
    Schema,
    Struct,
    Type,
    check_schema,
)

_NAMES: Final = {
    BOOLEAN: "BOOLEAN",
    INT: "INT",
    LONG: "BIGINT",
    FLOAT: "FLOAT",
    DOUBLE: "DOUBLE",
    STRING: "STRING",
    BINARY: "BINARY",
    DATE: "DATE",
    TIMESTAMP: "TIMESTAMP",
    TIMESTAMP_NTZ: "TIMESTAMP_NTZ",
}
_TYPES: Final = {
    **{name: one for one, name in _NAMES.items()},
    "BYTE": INT,
    "TINYINT": INT,
    "SHORT": INT,
    "SMALLINT": INT,
    "INTEGER": INT,
    "LONG": LONG,
    "REAL": FLOAT,
    "TIMESTAMP_LTZ": TIMESTAMP,
    "VARCHAR": STRING,
    "CHAR": STRING,
}
_PLAIN: Final = re.compile(r"[^\W\d]\w*")
_ADVICE: Final = "Columns are written as in SQL: id BIGINT NOT NULL, item STRING, price DECIMAL(9, 2)"
_DEFAULT_DECIMAL: Final = (10, 0)


def schema_from_ddl(text: str) -> Schema:
    """Return the schema that a text declares. Raises SqlTextError, InvalidSchemaError."""
    words = Words(text, _ADVICE)
    made = Schema(0, _columns(words, count(1).__next__))
    words.end()
    check_schema(made)
    return made


def ddl_of(schema: Schema) -> str:
    """Return a schema's columns, one a line, as `schema_from_ddl` takes them."""
    return ",\n".join(_column_text(one, " ") for one in schema.fields)


def type_text(type_: Type) -> str:
    """Return a type as SQL writes it."""
    if isinstance(type_, Primitive):
        return _NAMES[type_]
    if isinstance(type_, Decimal):
        return f"DECIMAL({type_.precision}, {type_.scale})"
    if isinstance(type_, Struct):
        return f"STRUCT<{', '.join(_column_text(one, ': ') for one in type_.fields)}>"
    if isinstance(type_, ListOf):
        return f"ARRAY<{_part_text(type_.element)}>"
    return f"MAP<{type_text(type_.key.type)}, {_part_text(type_.value)}>"


def default_text(default: object) -> str:
    """Return a column's default as SQL writes it."""
    return quoted(default) if isinstance(default, str) else json.dumps(default)


def name_text(name: str) -> str:
    """Return a name as SQL writes it, in quotes where it needs them."""
    return name if _PLAIN.fullmatch(name) else f"`{name.replace('`', '``')}`"


def quoted(text: str) -> str:
    """Return a string as SQL writes it."""
    return f"'{text.replace(chr(39), chr(39) * 2)}'"


def _column_text(one: Field, between: str) -> str:
    text = f"{name_text(one.name)}{between}{type_text(one.type)}{' NOT NULL' if one.required else ''}"
    if one.default is not None:
        text += f" DEFAULT {default_text(one.default)}"
    return text if one.doc is None else f"{text} COMMENT {quoted(one.doc)}"


def _part_text(one: Field) -> str:
    """Return the type of elements or values."""
    return f"{type_text(one.type)}{' NOT NULL' if one.required else ''}"


def _columns(words: Words, number: Callable[[], int]) -> tuple[Field, ...]:
    fields = [_column(words, number)]
    while words.took(","):
        fields.append(_column(words, number))
    return tuple(fields)


def _column(words: Words, number: Callable[[], int]) -> Field:
    id_, name = number(), words.name("a column's name")
    words.took(":")
    type_ = _type(words, number)
    required, doc, default = False, None, None
    while True:
        if words.took("NOT", "NULL"):
            required = True
        elif words.took("COMMENT"):
            if words.peek().kind is not WordKind.TEXT:
                raise words.error("a comment in quotes is missing")
            doc = words.take().text
        elif words.took("DEFAULT"):
            default = _default(words, type_)
        else:
            return Field(id_, name, type_, required, doc, default)


def _default(words: Words, type_: Type) -> object:
    """Take a default, as JSON has it in records."""
    sign = "-" if words.took("-") else ""
    word = words.take()
    if word.kind is WordKind.NUMBER:
        # A decimal's digits are kept in a string, as Iceberg has them: a number of JSON may be read as a double.
        text = f"{sign}{word.text}"
        return text if isinstance(type_, Decimal) else int(text) if word.text.isdecimal() else float(text)
    if not sign and word.kind is WordKind.TEXT:
        return word.text
    if not sign and word.says("TRUE", "FALSE"):
        return word.says("TRUE")
    raise words.error("a default is missing: a number, a string in quotes, true or false", word)


def _type(words: Words, number: Callable[[], int]) -> Type:
    word = words.peek()
    name = words.name("a type").upper()
    if name in ("DECIMAL", "NUMERIC", "DEC"):
        return Decimal(*_decimal(words))
    if name == "ARRAY":
        id_ = number()
        words.need("<")
        made: Type = ListOf(_part(words, number, id_, "element"))
        words.need(">")
        return made
    if name == "MAP":
        key, value = number(), number()
        words.need("<")
        key_type = _type(words, number)
        words.need(",")
        made = MapOf(Field(key, "key", key_type, required=True), _part(words, number, value, "value"))
        words.need(">")
        return made
    if name == "STRUCT":
        words.need("<")
        made = Struct(_columns(words, number))
        words.need(">")
        return made
    if name not in _TYPES:
        raise words.error(
            f"{word.text} is not a type; there are {', '.join(_NAMES.values())}, DECIMAL, ARRAY, MAP, STRUCT", word
        )
    if name in ("VARCHAR", "CHAR") and words.took("("):
        _whole(words)
        words.need(")")
    return _TYPES[name]


def _part(words: Words, number: Callable[[], int], id_: int, name: str) -> Field:
    type_ = _type(words, number)
    return Field(id_, name, type_, words.took("NOT", "NULL"))


def _decimal(words: Words) -> tuple[int, int]:
    if not words.took("("):
        return _DEFAULT_DECIMAL
    precision = _whole(words)
    scale = _whole(words) if words.took(",") else 0
    words.need(")")
    return precision, scale


def _whole(words: Words) -> int:
    if words.peek().kind is not WordKind.NUMBER or not words.peek().text.isdecimal():
        raise words.error("a whole number is missing")
    return int(words.take().text[:9])
