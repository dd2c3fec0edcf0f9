"""What columns have these records? A schema is proposed from JSON objects, for a person to look at.

| values | column |
|---|---|
| whole numbers | BIGINT; DOUBLE where one has more than 64 bits |
| other numbers | DOUBLE: a decimal is not guessed, since nothing says how many digits it has |
| texts | TIMESTAMP where each is a time in ISO 8601 (TIMESTAMP_NTZ where none has a zone), DATE, else STRING |
| objects | STRUCT of their fields, arrays ARRAY |
| null only, or an array that is always empty | STRING: nothing says what it is |

A field is required where each record (each object, for a field of one) has a value of it. Where values are of several
kinds the most frequent one is taken, and a note says how many there are of others: they will not fit.

Nothing here does I/O.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from dlspark.tables.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    LONG,
    MAX_DEPTH,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Field,
    InvalidSchemaError,
    ListOf,
    Schema,
    Struct,
    Type,
    check_schema,
)

MAX_NAMES: Final = 1_000
"""Fields of one object that are looked at; more are keys of a map, or chance."""
_DAY: Final = r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
_DATE: Final = re.compile(_DAY)
_TIME: Final = re.compile(
    rf"{_DAY}[T ](?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d{{1,6}})?)?(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_AVRO: Final = b"\xc3\x01"
_CONFLUENT: Final = b"\x00"
_CONFLUENT_BYTES: Final = 5
_ARROW: Final = b"\xff\xff\xff\xff"


@dataclass(frozen=True, slots=True)
class Proposal:
    """What columns do records seem to have?

    Args:
        records: How many were looked at.
        kinds: How many of them are of which form: `json`, `avro`, `confluent`, `arrow`, `other`.
        registered: Numbers of Confluent's schemas, with how many records name each.
        schema: The columns of those in JSON; None where none is, or none has a field.
        notes: What a person should know of it.
    """

    records: int
    kinds: Mapping[str, int]
    registered: Mapping[int, int]
    schema: Schema | None
    notes: tuple[str, ...]


def infer(payloads: Iterable[bytes]) -> Proposal:
    """Return what columns records seem to have."""
    kinds: Counter[str] = Counter()
    registered: Counter[int] = Counter()
    rows = _Seen()
    for payload in payloads:
        found = _object(payload)
        if isinstance(found, dict):
            kinds["json"] += 1
            rows.add(found, 0)
            continue
        kind = _kind(payload)
        kinds[kind] += 1
        if kind == "confluent":
            registered[int.from_bytes(payload[1:_CONFLUENT_BYTES], "big")] += 1
    notes: list[str] = []
    schema = _schema(rows, notes) if rows.fields else None
    return Proposal(sum(kinds.values()), dict(kinds), dict(registered), schema, tuple(notes))


def _object(payload: bytes) -> object:
    try:
        return json.loads(payload.decode())
    except (ValueError, RecursionError):
        return None


def _kind(payload: bytes) -> str:
    if payload.startswith(_AVRO):
        return "avro"
    if payload.startswith(_CONFLUENT) and len(payload) >= _CONFLUENT_BYTES:
        return "confluent"
    return "arrow" if payload.startswith(_ARROW) else "other"


@dataclass(slots=True)
class _Seen:
    """All values that were seen of one field."""

    kinds: Counter[str] = field(default_factory=Counter)
    fields: dict[str, _Seen] = field(default_factory=dict)
    element: _Seen | None = None
    long: bool = True
    """Whether all whole numbers have 64 bits."""
    dropped: bool = False
    """Whether there were more names than are looked at, or deeper ones."""

    def add(self, value: object, depth: int) -> None:
        """Note a value."""
        kind = _kind_of(value)
        self.kinds[kind] += 1
        if depth >= MAX_DEPTH:
            self.dropped = True
        elif isinstance(value, dict):
            for name, one in value.items():
                if name in self.fields or len(self.fields) < MAX_NAMES:
                    self.fields.setdefault(name, _Seen()).add(one, depth + 1)
                else:
                    self.dropped = True
        elif isinstance(value, list):
            self.element = self.element or _Seen()
            for one in value:
                self.element.add(one, depth + 1)
        elif kind == "integer":
            self.long = self.long and -(2**63) <= value < 2**63  # type: ignore[operator]


def _kind_of(value: object) -> str:
    if isinstance(value, str):
        if (time := _TIME.fullmatch(value)) is not None:
            return "moment" if time["zone"] else "time"
        return "date" if _DATE.fullmatch(value) else "text"
    kinds = {dict: "object", list: "array", bool: "boolean", int: "integer", float: "number"}
    return kinds.get(type(value), "null")


def _schema(rows: _Seen, notes: list[str]) -> Schema | None:
    fields = _fields(rows, rows.kinds["object"], count(1).__next__, "", notes)
    if not fields:
        return None
    schema = Schema(0, fields)
    try:
        check_schema(schema)
    except InvalidSchemaError as error:
        notes.append(f"these columns cannot be declared as they are: {error}")
    return schema


def _fields(seen: _Seen, objects: int, number: Callable[[], int], where: str, notes: list[str]) -> tuple[Field, ...]:
    """Return the fields of objects, of which there were so many."""
    if seen.dropped:
        what = where.removesuffix(".") or "a record"
        notes.append(f"{what} has more fields than are looked at, {MAX_NAMES}, or deeper ones")
    kept: dict[str, tuple[str, _Seen]] = {}
    for name, one in seen.fields.items():
        folded = name.casefold()
        if folded in kept:
            notes.append(
                f"{where}{name} is left out: {where}{kept[folded][0]} has the same name, as SQL compares names"
            )
        elif not name or not name.isprintable():
            notes.append(f"{where}{name!r} is left out: it cannot be the name of a column")
        elif (
            one.kinds["object"]
            and not one.fields
            and one.kinds["object"] == sum(one.kinds.values()) - one.kinds["null"]
        ):
            notes.append(f"{where}{name} is left out: it is an object without fields, which no column can be")
        else:
            kept[folded] = name, one
    ids = [number() for _ in kept]
    return tuple(
        Field(
            id_,
            name,
            _type(one, number, f"{where}{name}", notes),
            sum(one.kinds.values()) - one.kinds["null"] == objects,
        )
        for id_, (name, one) in zip(ids, kept.values(), strict=True)
    )


def _type(seen: _Seen, number: Callable[[], int], path: str, notes: list[str]) -> Type:
    groups = {
        "a number": seen.kinds["integer"] + seen.kinds["number"],
        "a text": sum(seen.kinds[one] for one in ("text", "moment", "time", "date")),
        "true or false": seen.kinds["boolean"],
        "an object": seen.kinds["object"],
        "an array": seen.kinds["array"],
    }
    best = max(groups, key=lambda one: groups[one])
    others = sum(groups.values()) - groups[best]
    if not groups[best]:
        notes.append(f"{path} has no value but null: it is taken for a string")
        return STRING
    if others:
        notes.append(f"{path} is {best} in {groups[best]} records and something else in {others}, which will not fit")
    if best == "a number":
        return LONG if seen.long and not seen.kinds["number"] else DOUBLE
    if best == "a text":
        return _text_type(seen.kinds)
    if best == "an object":
        fields = _fields(seen, seen.kinds["object"], number, f"{path}.", notes)
        if fields:
            return Struct(fields)
        notes.append(f"{path} is an object without fields, which no column can be: it will not fit")
    if best == "an array":
        id_ = number()
        element = seen.element if seen.element is not None and seen.element.kinds else None
        if element is None:
            notes.append(f"{path} is always empty: its elements are taken for strings")
            return ListOf(Field(id_, "element", STRING))
        return ListOf(Field(id_, "element", _type(element, number, f"{path}.element", notes)))
    return BOOLEAN if best == "true or false" else STRING


def _text_type(kinds: Mapping[str, int]) -> Type:
    found = {kind for kind in ("text", "moment", "time", "date") if kinds.get(kind)}
    if found == {"date"}:
        return DATE
    if found == {"time"}:
        return TIMESTAMP_NTZ
    # One without a zone is read as UTC.
    return TIMESTAMP if found in ({"moment"}, {"moment", "time"}) else STRING
