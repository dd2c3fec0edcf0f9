"""The hot messages, decoded by their canonical layout: ascending fields, which is what all known peers send.

Each function returns None where the bytes have any other layout, valid or not; the caller then decodes by the tables
(`storage_node.protocol.decoding`), with the same result. An IndexError means the same as None.
"""

from __future__ import annotations

from storage_node.protocol.schema import Status
from storage_node.protocol.values import AddRequest, AddResponse, ReadRequest, ReadResponse

HEAD_BYTES = 96
ADD_START = b"\x08\x03\x10\x02\x18"
READ_START = b"\x08\x03\x10\x01\x18"


def _more(head: bytes, at: int, value: int) -> tuple[int, int]:
    """Go on with a varint whose first byte was `value` (at least 128). IndexError if it does not end in time."""
    value &= 127
    shift = 7
    while True:
        byte = head[at] if shift < 70 else head[HEAD_BYTES]
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


def add(frame: memoryview, head: bytes) -> AddRequest | None:
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


def read(frame: memoryview, head: bytes) -> ReadRequest | None:
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


def add_response(frame: memoryview, head: bytes) -> AddResponse | None:
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


def read_response(frame: memoryview, head: bytes) -> ReadResponse | None:
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
