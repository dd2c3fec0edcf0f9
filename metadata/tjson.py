"""Thrift structs as TJSON text: `{"<field id>":{"<type tag>":<value>},...}`, ascending, no spaces.

Booleans are 0 and 1 under the tag `tf`. Any JSON reader reads it; a compact dump writes the same bytes as Java.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

from metadata.foundation.errors import CorruptDataError

Struct: TypeAlias = Mapping[int, str | int | bool | None]
"""Values by field id; None where the field is absent. The type of a value is that of the field."""


def encode(struct: Struct) -> str:
    """The text of a struct."""
    fields = {str(number): _tagged(value) for number, value in sorted(struct.items()) if value is not None}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def _tagged(value: str | int | bool) -> dict[str, str | int]:
    if isinstance(value, bool):
        return {"tf": int(value)}
    return {"str" if isinstance(value, str) else "i64": value}


class Fields:
    """A struct's fields by id: each access checks the type tag and the value's type.

    Raises CorruptDataError, which says that the data at `path` is not `what`.
    """

    def __init__(self, text: str, what: str, path: str) -> None:
        self._what = what
        self._path = path
        try:
            parsed: object = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._corrupt(f"its body is no JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise self._corrupt("its body is no struct")
        self._fields: dict[str, object] = parsed

    def _corrupt(self, why: str) -> CorruptDataError:
        return CorruptDataError(f"not {self._what}: {why}", path=self._path)

    def _value(self, number: int, tag: str) -> object:
        field = self._fields.get(str(number))
        if field is None:
            return None
        if not isinstance(field, dict) or tag not in field:
            raise self._corrupt(f"field {number} is not of type {tag}: {field!r}")
        return field[tag]

    def text(self, number: int) -> str | None:
        value = self._value(number, "str")
        if value is not None and not isinstance(value, str):
            raise self._corrupt(f"field {number} is no string: {value!r}")
        return value

    def required(self, number: int, name: str) -> str:
        value = self.text(number)
        if not value:
            raise self._corrupt(f"{name} is missing")
        return value

    def flag(self, number: int) -> bool | None:
        value = self._value(number, "tf")
        if value is None:
            return None
        if isinstance(value, bool) or value not in (0, 1):
            raise self._corrupt(f"field {number} is neither 0 nor 1: {value!r}")
        return bool(value)

    def number(self, number: int) -> int | None:
        value = self._value(number, "i64")
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise self._corrupt(f"field {number} is no number: {value!r}")
        return value
