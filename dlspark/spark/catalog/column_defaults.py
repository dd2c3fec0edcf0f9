"""Defaults of columns: from the constant that `CREATE TABLE` or `ADD COLUMN` says to the one that a log's schema keeps,
and back to SQL. Pure: no I/O.

A constant travels between Java and Python as JSON (`Literals.java`): booleans, whole numbers and texts as they are;
floats and decimals as text; bytes in base64; dates as days, times as microseconds since the epoch. A schema keeps its
defaults as JSON records have values (`dlspark.tables.json_encoding`), decimals as text.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal as Number
from typing import Final

from dlspark.spark.errors import SchemaError
from dlspark.tables.json_decoding import value_of_default
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
    Decimal,
    Field,
    Type,
)
from metadata.foundation.errors import InvariantViolation

_EPOCH: Final = datetime(1970, 1, 1)
_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}


def with_default(one: Field, said: Mapping[str, object] | None) -> Field:
    """Return a column with the default that a statement says: `type` and `value` of a constant, None for no default.

    Raises SchemaError for what is not a constant, and InvalidSchemaError for one that the column cannot have.
    """
    if said is None:
        return one
    if "value" not in said:
        raise SchemaError(
            f"Column {one.name} cannot have {said.get('sql')} as its default; nothing was changed",
            advice="A default is one constant: a number, a text, TRUE, FALSE, or like DATE '2026-11-01'",
        )
    if said["value"] is None:
        return one
    given = replace(one, default=_json_of_constant(one, str(said["type"]), said["value"]))
    return replace(one, default=_json_of(one.type, value_of_default(given)))


def sql_default(one: Field) -> dict[str, object] | None:
    """Return a column's default for Java: `sql`, and `value` as it travels; None where it has none that SQL can say."""
    if one.default is None:
        return None
    value = value_of_default(one)
    sql = _sql_of(one.type, value)
    return None if sql is None else {"sql": sql, "value": _travelling(one.type, value)}


def _json_of_constant(one: Field, kind: str, value: object) -> object:
    """Return a constant as JSON records have it, by the type that the statement gave it."""
    try:
        if kind == "date" and isinstance(value, int):
            return (_EPOCH + timedelta(days=value)).date().isoformat()
        if kind in ("timestamp", "timestamp_ntz") and isinstance(value, int):
            return _time_text(value, zoned=kind == "timestamp")
        if kind in ("float", "double"):
            number = float(str(value))
            return number if math.isfinite(number) else _not_finite(number)
    except OverflowError as error:
        raise SchemaError(
            f"The default of column {one.name} is outside of the years 1 to 9999; nothing was changed",
            advice="Give a time within them",
        ) from error
    return value


def _json_of(type_: Type, value: object) -> object:
    """Return a value as a schema keeps it: the same for equal values, however they were said."""
    if type_ in (FLOAT, DOUBLE) and isinstance(value, float):
        return value if math.isfinite(value) else _not_finite(value)
    if isinstance(type_, Decimal):
        return str(value)
    if type_ == BINARY and isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if type_ == DATE and isinstance(value, date):
        return value.isoformat()
    if _is_time(type_) and isinstance(value, int):
        return _time_text(value, zoned=type_ == TIMESTAMP)
    return value


def _travelling(type_: Type, value: object) -> object:
    """Return a value as Java takes it."""
    if type_ == DATE and isinstance(value, date):
        return (value - _EPOCH.date()).days
    if _is_time(type_):
        return value
    found = _json_of(type_, value)
    return str(found) if type_ in (FLOAT, DOUBLE) else found


def _sql_of(type_: Type, value: object) -> str | None:
    """Return SQL for a value; None for one that no constant says."""
    if type_ == BOOLEAN:
        return str(value).upper()
    if type_ in (INT, LONG):
        return str(value)
    if type_ in (FLOAT, DOUBLE):
        return f"CAST('{_json_of(type_, value)}' AS {str(type_).upper()})"
    if isinstance(type_, Decimal) and isinstance(value, Number):
        return f"{value:f}BD"
    if type_ == STRING:
        return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
    if type_ == BINARY and isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    if type_ == DATE and isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if _is_time(type_) and isinstance(value, int):
        word = "TIMESTAMP_LTZ" if type_ == TIMESTAMP else "TIMESTAMP_NTZ"
        return f"{word} '{_time_text(value, zoned=type_ == TIMESTAMP)}'"
    return None


def _is_time(type_: Type) -> bool:
    return str(type_) in ("timestamp", "timestamptz")


def _time_text(micros: int, *, zoned: bool) -> str:
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds") + ("Z" if zoned else "")


def _not_finite(number: float) -> str:
    if math.isfinite(number):
        raise InvariantViolation(f"{number} is finite")
    return _NOT_FINITE.get(number, "NaN")
