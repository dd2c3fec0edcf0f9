"""Which rows are wanted: conditions in SQL, as expressions of Arrow's. No code, no functions, nothing is called.

    condition:   condition OR condition, condition AND condition, NOT condition, ( condition )
                 value = value (also <> != < <= > >=), value [NOT] IN (literal, ...), value IS [NOT] NULL
                 value [NOT] BETWEEN literal AND literal, a column of booleans, TRUE, FALSE
    value:       a column (id, `a name`, place.city), or a literal: 10, -1.5, 'text', true, null

SQL's logic has three values: a comparison with null is neither true nor false, nor is what NOT makes of it. Rows for
which a condition is not true are not wanted. Literals are compared as the column's type: numbers exactly, times in ISO
8601 (one without a zone is UTC where the column has one), strings as what is written, binary columns with its UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal as Number
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from dlspark.tables.sql_words import Word, WordKind, Words

MAX_NESTED: Final = 50
"""Conditions within conditions."""
_ADVICE: Final = "For example: price > 10 and item in ('nut', 'bolt') and note is not null"
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_SIGNS: Final = ("=", "==", "<>", "!=", "<", "<=", ">", ">=")
_MAX_DIGITS: Final = 38
_INT64: Final = range(-(2**63), 2**63)
Literal: TypeAlias = "Number | str | bool | None"


def condition(text: str, columns: pa.Schema) -> pc.Expression:
    """Return the expression of a condition on rows of these columns: `table.filter(expression)` has what is wanted.

    Raises SqlTextError, which says where.
    """
    parser = _Conditions(Words(text, _ADVICE), columns)
    found = parser.either(0)
    parser.words.end()
    return found


@dataclass(frozen=True, slots=True)
class _Value:
    """One side of a comparison: a column, or a literal."""

    word: Word
    name: str = ""
    field: pc.Expression | None = None
    type: pa.DataType | None = None
    literal: Literal = None


class _Conditions:
    """Reads conditions of a text."""

    def __init__(self, words: Words, columns: pa.Schema) -> None:
        self.words = words
        self._columns = columns

    def either(self, depth: int) -> pc.Expression:
        """Take conditions that OR joins."""
        if depth > MAX_NESTED:
            raise self.words.error(f"more than {MAX_NESTED} conditions are within each other")
        return _joined(self._list("OR", lambda: self._both(depth)), lambda one, other: one | other)

    def _both(self, depth: int) -> pc.Expression:
        return _joined(self._list("AND", lambda: self._not(depth)), lambda one, other: one & other)

    def _list(self, keyword: str, take: Callable[[], pc.Expression]) -> list[pc.Expression]:
        found = [take()]
        while self.words.took(keyword):
            found.append(take())
        return found

    def _not(self, depth: int) -> pc.Expression:
        if self.words.took("NOT"):
            if depth > MAX_NESTED:
                raise self.words.error(f"more than {MAX_NESTED} conditions are within each other")
            return ~self._not(depth + 1)
        if self.words.took("("):
            found = self.either(depth + 1)
            self.words.need(")")
            return found
        return self._about(self._value())

    def _about(self, value: _Value) -> pc.Expression:
        """Take what is said of a value."""
        words = self.words
        if words.took("IS", "NOT", "NULL"):
            return self._column(value).is_valid()
        if words.took("IS", "NULL"):
            return self._column(value).is_null()
        negated = words.took("NOT")
        if words.took("IN"):
            found = self._among(value)
        elif words.took("BETWEEN"):
            low = self._literal(value, ">=")
            words.need("AND")
            found = low & self._literal(value, "<=")
        elif negated:
            raise words.error("IN or BETWEEN is missing")
        elif words.peek().says(*_SIGNS):
            sign = words.take().text
            return self._compared(value, sign, self._value())
        else:
            return self._truth(value)
        return ~found if negated else found

    def _among(self, value: _Value) -> pc.Expression:
        # One comparison for each, and not Arrow's `is_in`, for which null is never among others: not even unknown.
        self.words.need("(")
        found = [self._literal(value, "=")]
        while self.words.took(","):
            found.append(self._literal(value, "="))
        self.words.need(")")
        return _joined(found, lambda one, other: one | other)

    def _literal(self, value: _Value, sign: str) -> pc.Expression:
        other = self._value()
        if other.field is not None:
            raise self.words.error(f"a literal is missing, there is column {other.name}", other.word)
        return self._compared(value, sign, other)

    # ------------------------------------------------------------------ values

    def _value(self) -> _Value:
        words = self.words
        sign = words.peek() if words.peek().says("-", "+") else None
        if sign is not None:
            words.take()
        word = words.peek()
        if word.kind is WordKind.NUMBER:
            words.take()
            return _Value(word, literal=-Number(word.text) if sign and sign.text == "-" else Number(word.text))
        if sign is not None:
            raise words.error("a number is missing")
        if word.kind is WordKind.TEXT:
            return _Value(words.take(), literal=word.text)
        if word.says("TRUE", "FALSE", "NULL"):
            words.take()
            return _Value(word, literal=None if word.says("NULL") else word.says("TRUE"))
        return self._named(words.name("a column or a literal"), word)

    def _named(self, name: str, word: Word) -> _Value:
        field = self._field(list(self._columns), name, word, "")
        path, type_ = [field.name], field.type
        while self.words.took("."):
            at = self.words.peek()
            part = self.words.name("the name of a field")
            if not pa.types.is_struct(type_):
                raise self.words.error(f"column {'.'.join(path)} is {type_}, which has no fields", at)
            inner = self._field([type_.field(i) for i in range(type_.num_fields)], part, at, f"{'.'.join(path)}.")
            path.append(inner.name)
            type_ = inner.type
        return _Value(word, ".".join(path), pc.field(*path) if len(path) == 1 else pc.field(tuple(path)), type_)

    def _field(self, fields: list[pa.Field], name: str, word: Word, where: str) -> pa.Field:
        found = next((one for one in fields if one.name.casefold() == name.casefold()), None)
        if found is None:
            has = ", ".join(one.name for one in fields[:20])
            raise self.words.error(f"there is no column {where}{name}; there are {has}", word)
        return found

    def _column(self, value: _Value) -> pc.Expression:
        if value.field is None:
            raise self.words.error("a column is missing, there is a literal", value.word)
        return value.field

    def _truth(self, value: _Value) -> pc.Expression:
        if value.field is None and (value.literal is None or isinstance(value.literal, bool)):
            return pc.scalar(pa.scalar(value.literal, pa.bool_()))
        if value.field is None or not pa.types.is_boolean(value.type):
            what = "a literal" if value.field is None else f"column {value.name}, which is {value.type}"
            raise self.words.error(f"{what} is no condition: compare it with something", value.word)
        return value.field

    # ------------------------------------------------------------------ comparisons

    def _compared(self, one: _Value, sign: str, other: _Value) -> pc.Expression:
        if one.field is None:
            if other.field is None:
                raise self.words.error("a comparison needs a column", one.word)
            return self._compared(other, _MIRRORED.get(sign, sign), one)
        if other.field is None and other.literal is None:
            return pc.scalar(pa.scalar(None, pa.bool_()))
        try:
            left, right = _pair(one, other)
        except (ValueError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            what = f"column {other.name}, which is {other.type}" if other.field is not None else repr(_shown(other))
            why = f" ({error})" if isinstance(error, pa.ArrowInvalid) else ""
            raise self.words.error(
                f"column {one.name} is {one.type}, and cannot be compared with {what}{why}", other.word
            ) from error
        return _COMPARISONS[sign](left, right)


def _shown(value: _Value) -> object:
    return str(value.literal) if isinstance(value.literal, Number) else value.literal


def _joined(parts: list[pc.Expression], join: Callable[[pc.Expression, pc.Expression], pc.Expression]) -> pc.Expression:
    """Join conditions in halves: a chain of a thousand would be nested a thousand deep."""
    while len(parts) > 1:
        pairs = [join(parts[at], parts[at + 1]) for at in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[len(parts) - len(parts) % 2 :]
    return parts[0]


_COMPARISONS: Final[dict[str, Callable[[pc.Expression, pc.Expression], pc.Expression]]] = {
    "=": lambda one, other: one == other,
    "==": lambda one, other: one == other,
    "<>": lambda one, other: one != other,
    "!=": lambda one, other: one != other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


def _pair(one: _Value, other: _Value) -> tuple[pc.Expression, pc.Expression]:
    """Return both sides in one type. Raises ValueError, or what Arrow raises, where there is none."""
    assert one.field is not None
    assert one.type is not None
    if other.field is not None:
        assert other.type is not None
        type_ = _common(one.type, other.type)
        return one.field.cast(type_), other.field.cast(type_)
    if isinstance(other.literal, Number):
        type_ = _common(one.type, _number_type(one.type, other.literal))
        value = float(other.literal) if pa.types.is_floating(type_) else other.literal
        made = pa.scalar(int(value) if pa.types.is_integer(type_) else value, type_)
        return one.field.cast(type_), pc.scalar(made)
    if isinstance(other.literal, bool):
        if not pa.types.is_boolean(one.type):
            raise ValueError
        return one.field, pc.scalar(other.literal)
    return one.field, pc.scalar(_text_as(str(other.literal), one.type))


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other and not pa.types.is_nested(one):
        return one
    if any(
        not (pa.types.is_integer(each) or pa.types.is_floating(each) or pa.types.is_decimal(each))
        for each in (one, other)
    ):
        raise ValueError
    if pa.types.is_floating(one) or pa.types.is_floating(other):
        return pa.float64()
    if pa.types.is_integer(one) and pa.types.is_integer(other):
        return pa.int64()
    (whole, scale), (other_whole, other_scale) = _digits(one), _digits(other)
    digits = max(whole, other_whole) + max(scale, other_scale)
    if digits > _MAX_DIGITS:
        raise ValueError
    return pa.decimal128(_MAX_DIGITS, max(scale, other_scale))


def _digits(type_: pa.DataType) -> tuple[int, int]:
    """Return how many digits a number of the type has before its point, and behind it."""
    return (type_.precision - type_.scale, type_.scale) if pa.types.is_decimal(type_) else (19, 0)


def _number_type(column: pa.DataType, number: Number) -> pa.DataType:
    """Return the type in which a number is exact."""
    if pa.types.is_floating(column):
        return pa.float64()
    _, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int) or abs(exponent) > _MAX_DIGITS:
        raise ValueError
    if exponent >= 0 and int(number) in _INT64:
        return pa.int64()
    scale = max(-exponent, 0)
    return pa.decimal128(max(len(digits) + max(exponent, 0), scale, 1), scale)


def _text_as(text: str, type_: pa.DataType) -> pa.Scalar:
    if pa.types.is_string(type_):
        return pa.scalar(text, type_)
    if pa.types.is_binary(type_):
        return pa.scalar(text.encode(), type_)
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        try:
            return pa.scalar(text).cast(type_)
        except pa.ArrowInvalid:
            return pa.scalar(f"{text}Z" if len(text) > len("2026-01-01") else f"{text} 00:00Z").cast(type_)
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        return pa.scalar(text).cast(type_)
    raise ValueError
