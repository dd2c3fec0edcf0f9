"""Frames of protocol version 3 from their contents, length prefix included.

Where an entry's body travels, `(head, tail)` is returned and the frame is `head`, the body's buffers, `tail`: a body is
never copied here.
"""

from __future__ import annotations

from struct import Struct

from storage_node.protocol.schema import Operation, Status
from storage_node.protocol.wire import varint

RECOVERY_PRIORITY = 100
"""Priority of recovery adds and recovery reads; anything above 0 counts as high."""

_PREFIX = Struct(">i")
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


def _header(operation: int, txn_id: int, priority: int = 0) -> bytes:
    inner = _HEADER_START[operation] + varint(txn_id)
    if priority:
        inner += b"\x20" + varint(priority)
    return b"\x0a" + varint(len(inner)) + inner


def _frame(start: bytes, operation: int, message: bytes, extra: int = 0) -> bytes:
    """Return a frame of `start`, then the operation's own message, of which `extra` bytes more travel behind."""
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
    """Return an add whose body, of `body_length` bytes, goes between the two parts returned."""
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
    """Return a read; with `fence` the master key is needed; fence and piggyback exclude each other."""
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
    """Return a READ_LAC: answered with the explicit LAC and the last entry, without fencing."""
    return _frame(_header(7, txn_id), 7, b"\x08" + varint(ledger_id))


def encode_write_lac_request(txn_id: int, ledger_id: int, lac: int, master_key: bytes, body: bytes) -> bytes:
    """Return the request; `body` is the explicit-LAC packet (`EntryDigest.package_lac`)."""
    message = b"\x08" + varint(ledger_id) + b"\x10" + varint(lac)
    message += _long_bytes(b"\x1a", master_key) + _long_bytes(b"\x22", body)
    return _frame(_header(6, txn_id), 6, message)


def encode_force_ledger_request(txn_id: int, ledger_id: int) -> bytes:
    """Ask the bookie to sync what it has acknowledged of the ledger."""
    return _frame(_header(10, txn_id), 10, b"\x08" + varint(ledger_id))


def encode_bookie_info_request(txn_id: int, requested: int = 3) -> bytes:
    """Ask for disk space. `requested` are the flags of `schema`: total capacity, free space, or both (3)."""
    return _frame(_header(8, txn_id), 8, b"\x08" + varint(requested))


def encode_list_entries_request(txn_id: int, ledger_id: int) -> bytes:
    """Ask which entries of a ledger the bookie has."""
    return _frame(_header(11, txn_id), 11, b"\x08" + varint(ledger_id))


def encode_auth_request(txn_id: int, plugin: str, payload: bytes = b"") -> bytes:
    """Begin or continue authentication with the named plug-in; `payload` is the plug-in's own."""
    message = _long_bytes(b"\x0a", plugin.encode()) + _long_bytes(b"\x12", payload)
    return _frame(_header(5, txn_id), 5, message)


def encode_start_tls_request(txn_id: int) -> bytes:
    """Ask to go on in TLS: behind the answer nothing is sent in plain."""
    return _frame(_header(9, txn_id), 9, b"")


def encode_add_response(txn_id: int, status: int, ledger_id: int, entry_id: int) -> bytes:
    """Return the whole frame; the status stands in it twice, in the message and in its sub-message."""
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
    """Return a read's answer; a body, of `body_length` bytes, goes between the two parts (None: there is no body)."""
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
    """Return the explicit LAC's packet and the last entry, each as it was written; None: there is none."""
    message = b"\x10" + varint(ledger_id)
    if lac_body is not None:
        message += _long_bytes(b"\x1a", lac_body)
    if last_entry_body is not None:
        message += _long_bytes(b"\x22", last_entry_body)
    return _response(7, txn_id, status, message)


def encode_write_lac_response(txn_id: int, status: int, ledger_id: int) -> bytes:
    """Return the answer; EOK: the explicit LAC is on disk."""
    return _response(6, txn_id, status, b"\x10" + varint(ledger_id))


def encode_force_ledger_response(txn_id: int, status: int, ledger_id: int) -> bytes:
    """Return the answer; EOK: everything of the ledger that was acknowledged before the request came is synced."""
    return _response(10, txn_id, status, b"\x10" + varint(ledger_id))


def encode_bookie_info_response(
    txn_id: int, status: int, total_disk_capacity: int | None = None, free_disk_space: int | None = None
) -> bytes:
    """Return the answer with the bytes of all ledger disks together; None for what was not asked for."""
    message = b""
    if total_disk_capacity is not None:
        message += b"\x10" + varint(total_disk_capacity)
    if free_disk_space is not None:
        message += b"\x18" + varint(free_disk_space)
    return _response(8, txn_id, status, message)


def encode_list_entries_response(
    txn_id: int, status: int, ledger_id: int, availability: bytes | memoryview | None = None
) -> bytes:
    """Return the answer; `availability` is the list in the form of docs/reference/wire.md#list-of-entries; None with an
    error.
    """
    message = b"\x10" + varint(ledger_id)
    if availability is not None:
        message += _long_bytes(b"\x1a", availability)
    return _response(11, txn_id, status, message)


def encode_auth_response(txn_id: int, status: int, plugin: str, payload: bytes = b"") -> bytes:
    """Return the plug-in's answer; a node without authentication names one that lets every client go on."""
    start = _header(5, txn_id) + b"\x10" + _STATUS_BYTES[status]
    return _frame(start, 5, _long_bytes(b"\x0a", plugin.encode()) + _long_bytes(b"\x12", payload))


def encode_start_tls_response(txn_id: int) -> bytes:
    """Return EOK: what follows, both ways, is TLS. A refusal is an error without a message of its own."""
    return _frame(_header(9, txn_id) + b"\x10" + _STATUS_BYTES[0], 9, b"")


def encode_error_response(txn_id: int, operation: int, status: int) -> bytes:
    """Return an answer with no message of the operation's own."""
    body = _header(operation, txn_id) + b"\x10" + _STATUS_BYTES[status]
    return _PREFIX.pack(len(body)) + body
