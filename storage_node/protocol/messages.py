"""Requests and responses of protocol version 3: frames to values and back.

Every `encode_*` returns complete frames, length prefix included. Where an entry's body travels, `(head, tail)` is
returned and the frame is `head`, the body's buffers, `tail`: a body is never copied here. A decoded body is a view of
the frame it came in.

Adds and reads, and their answers, are decoded first by their canonical layout (ascending fields, what all known peers
send); any other layout goes through the tables of `storage_node.protocol.schema`, with the same result. Whatever bytes
come in, the only exception that goes out is ProtocolError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, TypeAlias

from storage_node.errors import ProtocolError
from storage_node.protocol.schema import (
    DEFERRED_SYNC,
    RECOVERY_ADD,
    REQUEST,
    RESPONSE,
    Operation,
    ReadFlag,
    Status,
    Version,
)
from storage_node.protocol.wire import Value, decode, varint

__all__ = [
    "AddRequest",
    "AddResponse",
    "AuthRequest",
    "AuthResponse",
    "BookieInfoRequest",
    "BookieInfoResponse",
    "ErrorResponse",
    "ForceLedgerRequest",
    "ForceLedgerResponse",
    "ListEntriesRequest",
    "ListEntriesResponse",
    "Operation",
    "ReadLacRequest",
    "ReadLacResponse",
    "ReadRequest",
    "ReadResponse",
    "Request",
    "Response",
    "StartTlsRequest",
    "StartTlsResponse",
    "Status",
    "UnsupportedRequest",
    "WriteLacRequest",
    "WriteLacResponse",
]

RECOVERY_PRIORITY = 100
"""Priority of recovery adds and recovery reads; anything above 0 counts as high."""

_PREFIX = Struct(">i")
_OPERATIONS = {int(op): op for op in Operation}
_STATUSES = {int(status): status for status in Status}
_STATUS_BYTES = {int(status): varint(status) for status in Status}
_HEADER_START = {int(op): b"\x08\x03\x10" + varint(op) + b"\x18" for op in Operation}
_FIELD_OF = {
    Operation.READ: 100,
    Operation.ADD: 101,
    Operation.AUTH: 102,
    Operation.WRITE_LAC: 103,
    Operation.READ_LAC: 104,
    Operation.BOOKIE_INFO: 105,
    Operation.START_TLS: 106,
    Operation.FORCE_LEDGER: 107,
    Operation.LIST_ENTRIES: 108,
}
_TAG_OF = {int(op): varint(number << 3 | 2) for op, number in _FIELD_OF.items()}


# ---------------------------------------------------------------------------------------- requests


@dataclass(frozen=True, slots=True)
class AddRequest:
    """Store an entry. The bookie takes ledger id, entry id and LAC from `body`; the ids here are only echoed."""

    operation: ClassVar[Operation] = Operation.ADD
    txn_id: int
    ledger_id: int
    entry_id: int
    master_key: bytes
    body: memoryview
    recovery: bool = False
    deferred_sync: bool = False
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Read an entry (-1: the last stored one), fence first, or wait for the LAC to pass `previous_lac`."""

    operation: ClassVar[Operation] = Operation.READ
    txn_id: int
    ledger_id: int
    entry_id: int
    master_key: bytes | None = None
    fence: bool = False
    previous_lac: int | None = None
    timeout_ms: int | None = None
    piggyback: bool = False
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ReadLacRequest:
    operation: ClassVar[Operation] = Operation.READ_LAC
    txn_id: int
    ledger_id: int


@dataclass(frozen=True, slots=True)
class WriteLacRequest:
    """Store an explicit-LAC packet (`body`)."""

    operation: ClassVar[Operation] = Operation.WRITE_LAC
    txn_id: int
    ledger_id: int
    lac: int
    master_key: bytes
    body: memoryview


@dataclass(frozen=True, slots=True)
class ForceLedgerRequest:
    operation: ClassVar[Operation] = Operation.FORCE_LEDGER
    txn_id: int
    ledger_id: int


@dataclass(frozen=True, slots=True)
class BookieInfoRequest:
    """`requested` is a bit mask: 1 total capacity, 2 free space."""

    operation: ClassVar[Operation] = Operation.BOOKIE_INFO
    txn_id: int
    requested: int


@dataclass(frozen=True, slots=True)
class ListEntriesRequest:
    operation: ClassVar[Operation] = Operation.LIST_ENTRIES
    txn_id: int
    ledger_id: int


@dataclass(frozen=True, slots=True)
class AuthRequest:
    operation: ClassVar[Operation] = Operation.AUTH
    txn_id: int
    plugin: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class StartTlsRequest:
    operation: ClassVar[Operation] = Operation.START_TLS
    txn_id: int


@dataclass(frozen=True, slots=True)
class UnsupportedRequest:
    """A well-formed request that has to be refused with `status`: EBADVERSION, or EBADREQ."""

    operation: Operation
    txn_id: int
    status: Status


Request: TypeAlias = (
    AddRequest
    | ReadRequest
    | ReadLacRequest
    | WriteLacRequest
    | ForceLedgerRequest
    | BookieInfoRequest
    | ListEntriesRequest
    | AuthRequest
    | StartTlsRequest
    | UnsupportedRequest
)


# ---------------------------------------------------------------------------------------- responses
# `status` is resolved as wire specification 1.3 says: the sub-message's unless the outer one is an error.


@dataclass(frozen=True, slots=True)
class AddResponse:
    operation: ClassVar[Operation] = Operation.ADD
    txn_id: int
    status: Status
    ledger_id: int
    entry_id: int


@dataclass(frozen=True, slots=True)
class ReadResponse:
    """`entry_id` is as requested (-1 stays -1), except that a long poll that found an entry names it."""

    operation: ClassVar[Operation] = Operation.READ
    txn_id: int
    status: Status
    ledger_id: int
    entry_id: int
    body: memoryview | None = None
    max_lac: int | None = None
    lac_update_timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReadLacResponse:
    operation: ClassVar[Operation] = Operation.READ_LAC
    txn_id: int
    status: Status
    ledger_id: int
    lac_body: memoryview | None = None
    last_entry_body: memoryview | None = None


@dataclass(frozen=True, slots=True)
class WriteLacResponse:
    operation: ClassVar[Operation] = Operation.WRITE_LAC
    txn_id: int
    status: Status
    ledger_id: int


@dataclass(frozen=True, slots=True)
class ForceLedgerResponse:
    operation: ClassVar[Operation] = Operation.FORCE_LEDGER
    txn_id: int
    status: Status
    ledger_id: int


@dataclass(frozen=True, slots=True)
class BookieInfoResponse:
    operation: ClassVar[Operation] = Operation.BOOKIE_INFO
    txn_id: int
    status: Status
    total_disk_capacity: int | None = None
    free_disk_space: int | None = None


@dataclass(frozen=True, slots=True)
class ListEntriesResponse:
    """`availability` is the blob of wire specification 7.9."""

    operation: ClassVar[Operation] = Operation.LIST_ENTRIES
    txn_id: int
    status: Status
    ledger_id: int
    availability: memoryview | None = None


@dataclass(frozen=True, slots=True)
class AuthResponse:
    operation: ClassVar[Operation] = Operation.AUTH
    txn_id: int
    status: Status
    plugin: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class StartTlsResponse:
    operation: ClassVar[Operation] = Operation.START_TLS
    txn_id: int
    status: Status


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """An answer without the operation's own message: refused before the operation began."""

    operation: Operation
    txn_id: int
    status: Status


Response: TypeAlias = (
    AddResponse
    | ReadResponse
    | ReadLacResponse
    | WriteLacResponse
    | ForceLedgerResponse
    | BookieInfoResponse
    | ListEntriesResponse
    | AuthResponse
    | StartTlsResponse
    | ErrorResponse
)


# ---------------------------------------------------------------------------------------- encoding


def _header(operation: int, txn_id: int, priority: int = 0) -> bytes:
    inner = _HEADER_START[operation] + varint(txn_id)
    if priority:
        inner += b"\x20" + varint(priority)
    return b"\x0a" + varint(len(inner)) + inner


def _frame(start: bytes, operation: int, message: bytes, extra: int = 0) -> bytes:
    """A frame of `start`, then the operation's own message, of which `extra` bytes more travel behind."""
    start += _TAG_OF[operation] + varint(len(message) + extra) + message
    return _PREFIX.pack(len(start) + extra) + start


def _long_bytes(tag: bytes, data: bytes | memoryview) -> bytes:
    return tag + varint(len(data)) + data


def encode_add_request(
    txn_id: int,
    ledger_id: int,
    entry_id: int,
    master_key: bytes,
    body_length: int,
    *,
    recovery: bool = False,
    deferred_sync: bool = False,
    priority: int = 0,
) -> tuple[bytes, bytes]:
    """An add whose body, of `body_length` bytes, goes between the two parts returned."""
    tail = b""
    if deferred_sync:
        tail = b"\x28\x01"
    if recovery:
        tail += b"\xa0\x06\x01"
    message = b"".join(
        (
            b"\x08",
            varint(ledger_id),
            b"\x10",
            varint(entry_id),
            b"\x1a",
            varint(len(master_key)),
            master_key,
            b"\x22",
            varint(body_length),
        )
    )
    return _frame(_header(2, txn_id, priority), 2, message, body_length + len(tail)), tail


def encode_read_request(
    txn_id: int,
    ledger_id: int,
    entry_id: int,
    *,
    master_key: bytes | None = None,
    fence: bool = False,
    previous_lac: int | None = None,
    timeout_ms: int | None = None,
    piggyback: bool = False,
    priority: int = 0,
) -> bytes:
    """A read; with `fence` the master key is needed; fence and piggyback exclude each other."""
    message = b"\x08" + varint(ledger_id) + b"\x10" + varint(entry_id)
    if master_key is not None:
        message += _long_bytes(b"\x1a", master_key)
    if previous_lac is not None:
        message += b"\x20" + varint(previous_lac)
    if timeout_ms is not None:
        message += b"\x28" + varint(timeout_ms)
    if fence:
        message += b"\xa0\x06\x01"
    elif piggyback:
        message += b"\xa0\x06\x02"
    return _frame(_header(1, txn_id, priority), 1, message)


def encode_read_lac_request(txn_id: int, ledger_id: int) -> bytes:
    return _frame(_header(7, txn_id), 7, b"\x08" + varint(ledger_id))


def encode_write_lac_request(txn_id: int, ledger_id: int, lac: int, master_key: bytes, body: bytes) -> bytes:
    """`body` is the explicit-LAC packet (`EntryDigest.package_lac`)."""
    message = b"\x08" + varint(ledger_id) + b"\x10" + varint(lac)
    message += _long_bytes(b"\x1a", master_key) + _long_bytes(b"\x22", body)
    return _frame(_header(6, txn_id), 6, message)


def encode_force_ledger_request(txn_id: int, ledger_id: int) -> bytes:
    return _frame(_header(10, txn_id), 10, b"\x08" + varint(ledger_id))


def encode_bookie_info_request(txn_id: int, requested: int = 3) -> bytes:
    return _frame(_header(8, txn_id), 8, b"\x08" + varint(requested))


def encode_list_entries_request(txn_id: int, ledger_id: int) -> bytes:
    return _frame(_header(11, txn_id), 11, b"\x08" + varint(ledger_id))


def encode_auth_request(txn_id: int, plugin: str, payload: bytes = b"") -> bytes:
    message = _long_bytes(b"\x0a", plugin.encode()) + _long_bytes(b"\x12", payload)
    return _frame(_header(5, txn_id), 5, message)


def encode_start_tls_request(txn_id: int) -> bytes:
    return _frame(_header(9, txn_id), 9, b"")


def encode_add_response(txn_id: int, status: int, ledger_id: int, entry_id: int) -> bytes:
    number = _STATUS_BYTES[status]
    inner = b"\x08" + number + b"\x10" + varint(ledger_id) + b"\x18" + varint(entry_id)
    txn = varint(txn_id)
    body = b"".join(
        (
            b"\x0a",
            _LENGTHS[5 + len(txn)],
            b"\x08\x03\x10\x02\x18",
            txn,
            b"\x10",
            number,
            b"\xaa\x06",
            _LENGTHS[len(inner)],
            inner,
        )
    )
    return _PREFIX.pack(len(body)) + body


_LENGTHS = [bytes([length]) for length in range(128)]


def encode_read_response(
    txn_id: int,
    status: int,
    ledger_id: int,
    entry_id: int,
    body_length: int | None = None,
    *,
    max_lac: int | None = None,
    lac_update_timestamp_ms: int | None = None,
) -> tuple[bytes, bytes]:
    """A read's answer; a body, of `body_length` bytes, goes between the two parts (None: there is no body)."""
    number = _STATUS_BYTES[status]
    message = b"\x08" + number + b"\x10" + varint(ledger_id) + b"\x18" + varint(entry_id)
    tail = b""
    if max_lac is not None:
        tail = b"\x28" + varint(max_lac)
    if lac_update_timestamp_ms is not None:
        tail += b"\x30" + varint(lac_update_timestamp_ms)
    start = _header(1, txn_id) + b"\x10" + number
    if body_length is None:
        return _frame(start, 1, message + tail), b""
    message += b"\x22" + varint(body_length)
    return _frame(start, 1, message, body_length + len(tail)), tail


def _response(operation: int, txn_id: int, status: int, message: bytes) -> bytes:
    number = _STATUS_BYTES[status]
    return _frame(_header(operation, txn_id) + b"\x10" + number, operation, b"\x08" + number + message)


def encode_read_lac_response(
    txn_id: int,
    status: int,
    ledger_id: int,
    lac_body: bytes | memoryview | None = None,
    last_entry_body: bytes | memoryview | None = None,
) -> bytes:
    message = b"\x10" + varint(ledger_id)
    if lac_body is not None:
        message += _long_bytes(b"\x1a", lac_body)
    if last_entry_body is not None:
        message += _long_bytes(b"\x22", last_entry_body)
    return _response(7, txn_id, status, message)


def encode_write_lac_response(txn_id: int, status: int, ledger_id: int) -> bytes:
    return _response(6, txn_id, status, b"\x10" + varint(ledger_id))


def encode_force_ledger_response(txn_id: int, status: int, ledger_id: int) -> bytes:
    return _response(10, txn_id, status, b"\x10" + varint(ledger_id))


def encode_bookie_info_response(
    txn_id: int, status: int, total_disk_capacity: int | None = None, free_disk_space: int | None = None
) -> bytes:
    message = b""
    if total_disk_capacity is not None:
        message += b"\x10" + varint(total_disk_capacity)
    if free_disk_space is not None:
        message += b"\x18" + varint(free_disk_space)
    return _response(8, txn_id, status, message)


def encode_list_entries_response(
    txn_id: int, status: int, ledger_id: int, availability: bytes | memoryview | None = None
) -> bytes:
    message = b"\x10" + varint(ledger_id)
    if availability is not None:
        message += _long_bytes(b"\x1a", availability)
    return _response(11, txn_id, status, message)


def encode_auth_response(txn_id: int, status: int, plugin: str, payload: bytes = b"") -> bytes:
    start = _header(5, txn_id) + b"\x10" + _STATUS_BYTES[status]
    return _frame(start, 5, _long_bytes(b"\x0a", plugin.encode()) + _long_bytes(b"\x12", payload))


def encode_error_response(txn_id: int, operation: int, status: int) -> bytes:
    """An answer with no message of the operation's own."""
    body = _header(operation, txn_id) + b"\x10" + _STATUS_BYTES[status]
    return _PREFIX.pack(len(body)) + body


# ---------------------------------------------------------------------------------------- decoding: fast layouts

_HEAD_BYTES = 96
_ADD_START = b"\x08\x03\x10\x02\x18"
_READ_START = b"\x08\x03\x10\x01\x18"


def _more(head: bytes, at: int, value: int) -> tuple[int, int]:
    """Go on with a varint whose first byte was `value` (at least 128). IndexError if it does not end in time."""
    value &= 127
    shift = 7
    while True:
        byte = head[at] if shift < 70 else head[_HEAD_BYTES]
        at += 1
        if byte < 128:
            return value | byte << shift, at
        value |= (byte & 127) << shift
        shift += 7


_TOO_LARGE = 1 << 63
"""A varint this large is negative, or overlong: left to the tables."""


def _txn(head: bytes) -> tuple[int, int]:
    """The txn id of a canonical header without priority, and the offset behind it; (0, 0) for any other header."""
    txn_id = head[7]
    at = 8
    if txn_id >= 128:
        txn_id, at = _more(head, at, txn_id)
    return (txn_id, at) if at == 2 + head[1] and txn_id < _TOO_LARGE else (0, 0)


def _fast_add(frame: memoryview, head: bytes) -> AddRequest | None:
    """An add without priority whose fields are in canonical order, else None. IndexError counts as None.

    The hottest function of a bookie: varints of one and two bytes are read in place.
    """
    txn_id = head[7]
    at = 8
    if txn_id >= 128:
        txn_id, at = _more(head, at, txn_id)
    if at != 2 + head[1] or txn_id >= _TOO_LARGE or head[at] != 0xAA or head[at + 1] != 0x06:
        return None
    length = head[at + 2]
    at += 3
    if length >= 128:
        byte = head[at]
        if byte < 128:
            length += (byte << 7) - 128
            at += 1
        else:
            length, at = _more(head, at, length)
    if at + length != len(frame) or head[at] != 0x08:
        return None
    ledger_id = head[at + 1]
    at += 2
    if ledger_id >= 128:
        ledger_id, at = _more(head, at, ledger_id)
    if head[at] != 0x10:
        return None
    entry_id = head[at + 1]
    at += 2
    if entry_id >= 128:
        entry_id, at = _more(head, at, entry_id)
    if head[at] != 0x1A or head[at + 1] != 20 or head[at + 22] != 0x22:
        return None
    key = head[at + 2 : at + 22]
    size = head[at + 23]
    at += 24
    if size >= 128:
        byte = head[at]
        if byte < 128:
            size += (byte << 7) - 128
            at += 1
        else:
            size, at = _more(head, at, size)
    end = at + size
    if ledger_id >= _TOO_LARGE or entry_id >= _TOO_LARGE:
        return None
    if end == len(frame):
        return AddRequest(txn_id, ledger_id, entry_id, key, frame[at:])
    if end < len(frame) and bytes(frame[end:]) == b"\x28\x01":
        return AddRequest(txn_id, ledger_id, entry_id, key, frame[at:end], False, True)
    return None


def _fast_read(frame: memoryview, head: bytes) -> ReadRequest | None:
    """A plain read in canonical order, else None. IndexError counts as None."""
    txn_id, at = _txn(head)
    if at == 0 or head[at : at + 2] != b"\xa2\x06" or at + 3 + head[at + 2] != len(frame) or head[at + 3] != 0x08:
        return None
    ledger_id = head[at + 4]
    at += 5
    if ledger_id >= 128:
        ledger_id, at = _more(head, at, ledger_id)
    if head[at] != 0x10:
        return None
    entry_id = head[at + 1]
    at += 2
    if entry_id >= 128:
        entry_id, at = _more(head, at, entry_id)
    if at != len(frame) or ledger_id >= _TOO_LARGE or entry_id >= _TOO_LARGE:
        return None
    return ReadRequest(txn_id, ledger_id, entry_id)


def _fast_add_response(frame: memoryview, head: bytes) -> AddResponse | None:
    """An EOK answer to an add in canonical order, else None. IndexError counts as None."""
    txn_id, at = _txn(head)
    if at == 0 or head[at : at + 4] != b"\x10\x00\xaa\x06" or at + 5 + head[at + 4] != len(frame):
        return None
    if head[at + 5 : at + 8] != b"\x08\x00\x10":
        return None
    ledger_id = head[at + 8]
    at += 9
    if ledger_id >= 128:
        ledger_id, at = _more(head, at, ledger_id)
    if head[at] != 0x18:
        return None
    entry_id = head[at + 1]
    at += 2
    if entry_id >= 128:
        entry_id, at = _more(head, at, entry_id)
    if at != len(frame) or ledger_id >= _TOO_LARGE or entry_id >= _TOO_LARGE:
        return None
    return AddResponse(txn_id, Status.EOK, ledger_id, entry_id)


def _fast_read_response(frame: memoryview, head: bytes) -> ReadResponse | None:
    """An EOK answer with a body in canonical order, with or without maxLAC, else None. IndexError counts as None."""
    txn_id, at = _txn(head)
    if at == 0 or head[at : at + 4] != b"\x10\x00\xa2\x06":
        return None
    length = head[at + 4]
    at += 5
    if length >= 128:
        length, at = _more(head, at, length)
    if at + length != len(frame) or head[at : at + 3] != b"\x08\x00\x10":
        return None
    ledger_id = head[at + 3]
    at += 4
    if ledger_id >= 128:
        ledger_id, at = _more(head, at, ledger_id)
    if head[at] != 0x18:
        return None
    entry_id = head[at + 1]
    at += 2
    if entry_id >= 128:
        entry_id, at = _more(head, at, entry_id)
    if head[at] != 0x22 or entry_id >= _TOO_LARGE or ledger_id >= _TOO_LARGE:
        return None
    size = head[at + 1]
    at += 2
    if size >= 128:
        size, at = _more(head, at, size)
    end = at + size
    if end > len(frame):
        return None
    max_lac = None
    tail = bytes(frame[end : end + 16])
    if tail:
        if tail[0] != 0x28:
            return None
        max_lac = tail[1]
        after = 2
        if max_lac >= 128:
            max_lac, after = _more(tail, after, max_lac)
        if end + after != len(frame) or max_lac >= _TOO_LARGE:
            return None
    return ReadResponse(txn_id, Status.EOK, ledger_id, entry_id, frame[at:end], max_lac)


# ---------------------------------------------------------------------------------------- decoding: by the tables


def _number(values: dict[str, Value], name: str) -> int:
    value = values[name]
    if not isinstance(value, int):
        raise ProtocolError(f"{name} is no number")
    return value


def _maybe_number(values: dict[str, Value], name: str) -> int | None:
    return _number(values, name) if name in values else None


def _view(values: dict[str, Value], name: str) -> memoryview:
    value = values[name]
    if not isinstance(value, memoryview):
        raise ProtocolError(f"{name} is no byte string")
    return value


def _maybe_view(values: dict[str, Value], name: str) -> memoryview | None:
    return _view(values, name) if name in values else None


def _message(values: dict[str, Value], name: str) -> dict[str, Value] | None:
    value = values.get(name)
    return value if isinstance(value, dict) else None


def _read_request(txn_id: int, m: dict[str, Value], priority: int) -> Request:
    flag = m.get("flag")
    key = _maybe_view(m, "masterKey")
    return ReadRequest(
        txn_id,
        _number(m, "ledgerId"),
        _number(m, "entryId"),
        None if key is None else bytes(key),
        flag == ReadFlag.FENCE_LEDGER,
        _maybe_number(m, "previousLAC"),
        _maybe_number(m, "timeOut"),
        flag == ReadFlag.ENTRY_PIGGYBACK,
        priority,
    )


def _add_request(txn_id: int, m: dict[str, Value], priority: int) -> Request:
    return AddRequest(
        txn_id,
        _number(m, "ledgerId"),
        _number(m, "entryId"),
        bytes(_view(m, "masterKey")),
        _view(m, "body"),
        m.get("flag") == RECOVERY_ADD,
        bool((_maybe_number(m, "writeFlags") or 0) & DEFERRED_SYNC),
        priority,
    )


def _write_lac_request(txn_id: int, m: dict[str, Value], _priority: int) -> Request:
    key = bytes(_view(m, "masterKey"))
    return WriteLacRequest(txn_id, _number(m, "ledgerId"), _number(m, "lac"), key, _view(m, "body"))


def _text(values: dict[str, Value], name: str) -> str:
    return str(_view(values, name), "utf-8", "replace")


_REQUESTS: dict[Operation, tuple[str, Callable[[int, dict[str, Value], int], Request]]] = {
    Operation.READ: ("readRequest", _read_request),
    Operation.ADD: ("addRequest", _add_request),
    Operation.AUTH: (
        "authRequest",
        lambda t, m, _: AuthRequest(t, _text(m, "authPluginName"), bytes(_view(m, "payload"))),
    ),
    Operation.WRITE_LAC: ("writeLacRequest", _write_lac_request),
    Operation.READ_LAC: ("readLacRequest", lambda t, m, _: ReadLacRequest(t, _number(m, "ledgerId"))),
    Operation.BOOKIE_INFO: (
        "getBookieInfoRequest",
        lambda t, m, _: BookieInfoRequest(t, _maybe_number(m, "requested") or 0),
    ),
    Operation.START_TLS: ("startTLSRequest", lambda t, m, _: StartTlsRequest(t)),
    Operation.FORCE_LEDGER: ("forceLedgerRequest", lambda t, m, _: ForceLedgerRequest(t, _number(m, "ledgerId"))),
    Operation.LIST_ENTRIES: (
        "getListOfEntriesOfLedgerRequest",
        lambda t, m, _: ListEntriesRequest(t, _number(m, "ledgerId")),
    ),
}


def decode_request(frame: memoryview) -> Request:
    """The request in a frame's body. Raises ProtocolError where the bytes are no request of version 3."""
    head = bytes(frame[:_HEAD_BYTES])
    start = head[2:7]
    try:
        fast: AddRequest | ReadRequest | None = None
        if start == _ADD_START and head[0] == 0x0A:
            fast = _fast_add(frame, head)
        elif start == _READ_START and head[0] == 0x0A:
            fast = _fast_read(frame, head)
        if fast is not None:
            return fast
    except IndexError:  # shorter than the layout: the tables will say what it is
        pass
    values = decode(REQUEST, frame)
    header = _message(values, "header") or {}
    operation = _OPERATIONS[_number(header, "operation")]
    txn_id = _number(header, "txnId")
    if header["version"] != Version.THREE:
        return UnsupportedRequest(operation, txn_id, Status.EBADVERSION)
    if operation not in _REQUESTS:
        return UnsupportedRequest(operation, txn_id, Status.EBADREQ)
    name, build = _REQUESTS[operation]
    message = _message(values, name)
    if message is None:
        return UnsupportedRequest(operation, txn_id, Status.EBADREQ)
    return build(txn_id, message, _maybe_number(header, "priority") or 0)


def _read_response(txn_id: int, status: Status, m: dict[str, Value]) -> Response:
    return ReadResponse(
        txn_id,
        status,
        _number(m, "ledgerId"),
        _number(m, "entryId"),
        _maybe_view(m, "body"),
        _maybe_number(m, "maxLAC"),
        _maybe_number(m, "lacUpdateTimestamp"),
    )


def _read_lac_response(txn_id: int, status: Status, m: dict[str, Value]) -> Response:
    ledger_id = _number(m, "ledgerId")
    return ReadLacResponse(txn_id, status, ledger_id, _maybe_view(m, "lacBody"), _maybe_view(m, "lastEntryBody"))


def _bookie_info_response(txn_id: int, status: Status, m: dict[str, Value]) -> Response:
    total = _maybe_number(m, "totalDiskCapacity")
    return BookieInfoResponse(txn_id, status, total, _maybe_number(m, "freeDiskSpace"))


def _list_entries_response(txn_id: int, status: Status, m: dict[str, Value]) -> Response:
    blob = _maybe_view(m, "availabilityOfEntriesOfLedger")
    return ListEntriesResponse(txn_id, status, _number(m, "ledgerId"), blob)


_RESPONSES: dict[Operation, tuple[str, Callable[[int, Status, dict[str, Value]], Response]]] = {
    Operation.READ: ("readResponse", _read_response),
    Operation.ADD: ("addResponse", lambda t, s, m: AddResponse(t, s, _number(m, "ledgerId"), _number(m, "entryId"))),
    Operation.AUTH: (
        "authResponse",
        lambda t, s, m: AuthResponse(t, s, _text(m, "authPluginName"), bytes(_view(m, "payload"))),
    ),
    Operation.WRITE_LAC: ("writeLacResponse", lambda t, s, m: WriteLacResponse(t, s, _number(m, "ledgerId"))),
    Operation.READ_LAC: ("readLacResponse", _read_lac_response),
    Operation.BOOKIE_INFO: ("getBookieInfoResponse", _bookie_info_response),
    Operation.START_TLS: ("startTLSResponse", lambda t, s, m: StartTlsResponse(t, s)),
    Operation.FORCE_LEDGER: ("forceLedgerResponse", lambda t, s, m: ForceLedgerResponse(t, s, _number(m, "ledgerId"))),
    Operation.LIST_ENTRIES: ("getListOfEntriesOfLedgerResponse", _list_entries_response),
}


def decode_response(frame: memoryview) -> Response:
    """The response in a frame's body. Raises ProtocolError where the bytes are no response of version 3."""
    head = bytes(frame[:_HEAD_BYTES])
    start = head[2:7]
    try:
        fast: AddResponse | ReadResponse | None = None
        if start == _ADD_START and head[0] == 0x0A:
            fast = _fast_add_response(frame, head)
        elif start == _READ_START and head[0] == 0x0A:
            fast = _fast_read_response(frame, head)
        if fast is not None:
            return fast
    except IndexError:  # shorter than the layout: the tables will say what it is
        pass
    values = decode(RESPONSE, frame)
    header = _message(values, "header") or {}
    operation = _OPERATIONS[_number(header, "operation")]
    txn_id = _number(header, "txnId")
    if header["version"] != Version.THREE:
        raise ProtocolError(f"a response of protocol version {header['version']}")
    status = _number(values, "status")
    name, build = _RESPONSES.get(operation, ("", None))
    message = _message(values, name)
    if build is None or message is None:
        return ErrorResponse(operation, txn_id, _STATUSES[status])
    inner = _maybe_number(message, "status")
    if status == Status.EOK and inner is not None:
        status = inner
    return build(txn_id, _STATUSES[status], message)
