"""The part of protobuf's wire format that the protocol needs: varints, and decoding by field tables.

`decode` reads a message into a dict by a table of its fields, in any field order: unknown fields are skipped, a field
with an unexpected wire type or an unknown enum number counts as unknown, the last of several scalars wins, several
sub-messages are merged, a missing required field makes the message unparsable. That is what the protobuf runtime does,
and a property in the tests holds this module to it. Bytes fields are views of the input, never copies.

Beyond that a message may hold MAX_FIELDS fields, those of its sub-messages and unknown ones included: a frame may have
millions, and reading them would keep all other connections waiting for seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias

from storage_node.errors import ProtocolError, TooManyFieldsError

MASK_64 = (1 << 64) - 1
SIGN_64 = 1 << 63
MAX_NESTING = 100
MAX_VARINT_BYTES = 10
MAX_FIELDS = 1024
"""The protocol's own largest message has some 15; the rest is for context that clients may send, and later versions."""

_LOW = 1 << 14
_LAST = [bytes([v]) if v < 128 else bytes([v & 127 | 128, v >> 7]) for v in range(_LOW)]
_MORE = [bytes([v & 127 | 128, v >> 7 | 128]) for v in range(_LOW)]


def varint(value: int) -> bytes:
    """Return the varint of `value`; negative numbers as their 64-bit two's complement (never zigzag)."""
    if 0 <= value < _LOW:
        return _LAST[value]
    if 0 < value < _LOW * _LOW:
        return _MORE[value & (_LOW - 1)] + _LAST[value >> 14]
    value &= MASK_64
    out = b""
    while value >= _LOW:
        out += _MORE[value & (_LOW - 1)]
        value >>= 14
    return out + _LAST[value]


def read_varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return (unsigned 64-bit value, next offset). Raises ProtocolError beyond `end` or after ten bytes."""
    value = shift = 0
    limit = min(end, at + MAX_VARINT_BYTES)
    while at < limit:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & MASK_64, at
        shift += 7
    raise ProtocolError("a varint does not end")


def signed(value: int) -> int:
    """Return an unsigned 64-bit number read as int64."""
    return value - (1 << 64) if value & SIGN_64 else value


class FieldKind(Enum):
    """Types of field that occur in the protocol."""

    INT64 = auto()
    UINT64 = auto()
    INT32 = auto()
    UINT32 = auto()
    ENUM = auto()
    BYTES = auto()
    STRING = auto()
    MESSAGE = auto()


@dataclass(frozen=True, slots=True)
class WireField:
    """One field of a message: `values` are an enum's known numbers, `message` a sub-message's table.

    The sub-messages of a `repeated` field are checked one by one and dropped: the protocol's only one is diagnostic.
    """

    name: str
    kind: FieldKind
    required: bool = False
    values: frozenset[int] = frozenset()
    message: Message | None = None
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """A message's table: fields by number."""

    name: str
    fields: Mapping[int, WireField]
    required: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "required", frozenset(f.name for f in self.fields.values() if f.required))


Value: TypeAlias = "int | memoryview | dict[str, Value]"

_VARINT, _FIXED64, _LENGTH, _START_GROUP, _END_GROUP, _FIXED32 = range(6)
_VARINT_KINDS = frozenset({FieldKind.INT64, FieldKind.UINT64, FieldKind.INT32, FieldKind.UINT32, FieldKind.ENUM})


class _Reading:
    """How many more fields one message may have, its sub-messages included."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_FIELDS

    def tag(self, data: memoryview, at: int, end: int) -> tuple[int, int]:
        """Return a field's tag, and the offset behind it."""
        self.left -= 1
        if self.left < 0:
            raise TooManyFieldsError(
                f"a message has more than {MAX_FIELDS} fields",
                advice="The peer is not a BookKeeper client, or means harm; no message of the protocol has so many",
            )
        tag, after = read_varint(data, at, end)
        if tag > 0xFFFFFFFF or tag < 8 or after - at > 5:
            raise ProtocolError("a field's tag is out of bounds")
        return tag, after


def decode(message: Message, data: memoryview) -> dict[str, Value]:
    """Return the fields of `data` that the table knows and that are present. Raises ProtocolError
    (TooManyFieldsError)."""
    values: dict[str, Value] = {}
    _merge(message, data, values, 0, _Reading())
    _require(message, values)
    return values


def _merge(message: Message, data: memoryview, values: dict[str, Value], depth: int, reading: _Reading) -> None:
    at, end = 0, len(data)
    fields = message.fields
    while at < end:
        tag, at = reading.tag(data, at, end)
        known = fields.get(tag >> 3)
        wire = tag & 7
        if known is not None and wire == _VARINT and known.kind in _VARINT_KINDS:
            raw, at = read_varint(data, at, end)
            value = _scalar(known, raw)
            if value is not None:
                values[known.name] = value
        elif known is not None and wire == _LENGTH and known.kind not in _VARINT_KINDS:
            length, at = read_varint(data, at, end)
            if length > end - at:
                raise ProtocolError(f"field {known.name} of {message.name} is longer than its message")
            _store(known, data[at : at + length], values, depth, reading)
            at += length
        else:
            at = _skip(data, at, end, tag, depth, reading)


def _store(known: WireField, data: memoryview, values: dict[str, Value], depth: int, reading: _Reading) -> None:
    if known.message is None:
        values[known.name] = data
        return
    if known.repeated:
        one: dict[str, Value] = {}
        _merge(known.message, data, one, depth + 1, reading)
        _require(known.message, one)
        return
    inner = values.setdefault(known.name, {})
    if isinstance(inner, dict):
        _merge(known.message, data, inner, depth + 1, reading)


def _scalar(known: WireField, raw: int) -> int | None:
    """Return the number as its type reads it; None for an enum number that is not known."""
    kind = known.kind
    if kind is FieldKind.INT64:
        return signed(raw)
    if kind is FieldKind.UINT64:
        return raw
    low = raw & 0xFFFFFFFF
    if kind is FieldKind.UINT32:
        return low
    number = low - (1 << 32) if low & 0x80000000 else low
    if kind is FieldKind.ENUM and number not in known.values:
        return None
    return number


def _require(message: Message, values: dict[str, Value]) -> None:
    missing = message.required - values.keys()
    if missing:
        raise ProtocolError(f"{message.name} lacks {', '.join(sorted(missing))}")
    for known in message.fields.values():
        inner = values.get(known.name)
        if known.message is not None and isinstance(inner, dict):
            _require(known.message, inner)


def _skip(data: memoryview, at: int, end: int, tag: int, depth: int, reading: _Reading) -> int:
    """Return the offset after an unknown field's value."""
    wire = tag & 7
    if wire == _VARINT:
        return read_varint(data, at, end)[1]
    if wire == _LENGTH:
        length, at = read_varint(data, at, end)
    elif wire == _FIXED64:
        length = 8
    elif wire == _FIXED32:
        length = 4
    elif wire == _START_GROUP:
        return _skip_group(data, at, end, tag >> 3, depth + 1, reading)
    else:
        raise ProtocolError(f"wire type {wire} where a field should begin")
    if length > end - at:
        raise ProtocolError("an unknown field is longer than its message")
    return at + length


def _skip_group(data: memoryview, at: int, end: int, number: int, depth: int, reading: _Reading) -> int:
    if depth > MAX_NESTING:
        raise ProtocolError("groups are nested too deeply")
    while at < end:
        tag, at = reading.tag(data, at, end)
        if tag & 7 == _END_GROUP:
            if tag >> 3 != number:
                raise ProtocolError("a group ends that did not begin")
            return at
        at = _skip(data, at, end, tag, depth, reading)
    raise ProtocolError("a group does not end")
