"""The hot messages, decoded by their canonical layout: ascending fields, which is what all known peers send.

Each function returns None where the bytes have any other layout, valid or not; the caller then decodes by the tables
(`storage_node.protocol.decoding`), with the same result. An IndexError means the same as None.
"""

from __future__ import annotations

import re

from storage_node.protocol.schema import Status
from storage_node.protocol.values import AddRequest, AddResponse, ReadRequest, ReadResponse
from storage_node.protocol.wire import varint

HEAD_BYTES = 96
_VARINT = rb"([\x80-\xff]{0,8}[\x00-\x7f])"  # below 2**63
_ADD = re.compile(
    rb"\x0a(.)\x08\x03\x10\x02\x18%b\xaa\x06%b\x08%b\x10%b\x1a\x14(.{20})\x22%b" % ((_VARINT,) * 5), re.DOTALL
)
"""An add up to its body: header length, txn id, message length, ledger id, entry id, key, body length."""


def _around_txn(txn_bytes: int, id_bytes: int) -> tuple[bytes, bytes]:
    """Return what an EOK answer to an add has before its txn id, and between that and its ledger id; `id_bytes` are
    those of ledger and entry id together."""
    message = 4 + id_bytes
    start = bytes([0, 0, 0, 12 + txn_bytes + message, 0x0A, 5 + txn_bytes]) + b"\x08\x03\x10\x02\x18"
    return start, b"\x10\x00\xaa\x06" + bytes([message]) + b"\x08\x00\x10"


# Three ids of 9 bytes at most: each length is a varint of one byte.
_ANSWERS = [[_around_txn(txn_bytes, id_bytes) for id_bytes in range(19)] for txn_bytes in range(10)]
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


def _value(data: bytes) -> int:
    """Return the value of a whole varint."""
    value = 0
    for byte in reversed(data):
        value = value << 7 | byte & 127
    return value


_TOO_LARGE = 1 << 63
"""A varint this large is negative, or overlong: left to the tables."""


def _txn(head: bytes) -> tuple[int, int]:
    """Return the txn id of a canonical header without priority, and the offset behind it; (0, 0) for any other
    header."""
    txn_id = head[7]
    at = 8
    if txn_id >= 128:
        txn_id, at = _more(head, at, txn_id)
    return (txn_id, at) if at == 2 + head[1] and txn_id < _TOO_LARGE else (0, 0)


def _plain_add(frame: memoryview) -> tuple[bytes, bytes, bytes, bytes, memoryview] | None:
    """Return (txn id, ledger id, entry id as they stand there, key, body) of a canonical add without options, else
    None.
    """
    found = _ADD.match(frame)
    if found is None:
        return None
    head, txn, length, ledger, entry, key, size = found.groups()
    at = found.end()
    rest = len(frame) - at
    # Behind the message's length stand four tags, the key and its length, three varints and the body.
    message = 25 + len(ledger) + len(entry) + len(size) + rest
    if head[0] != 5 + len(txn) or length != varint(message) or size != varint(rest):
        return None
    return txn, ledger, entry, key, frame[at:]


def add(frame: memoryview) -> AddRequest | None:
    """Return an add without priority, flags and options whose fields are in canonical order, else None."""
    found = _plain_add(frame)
    if found is None:
        return None
    txn, ledger, entry, key, body = found
    return AddRequest(_value(txn), _value(ledger), _value(entry), key, body)


def decode_add_and_answer(frame: memoryview) -> tuple[bytes, bytes, memoryview] | None:
    """Return (EOK answer, key, body) of what `add` decodes, else None: all that a bookie needs of an add that it
    stores.

    The answer only repeats the ids, so their bytes are put together as they came, and none is decoded.
    """
    found = _plain_add(frame)
    if found is None:
        return None
    txn, ledger, entry, key, body = found
    start, middle = _ANSWERS[len(txn)][len(ledger) + len(entry)]
    return b"".join((start, txn, middle, ledger, b"\x18", entry)), key, body


def read(frame: memoryview, head: bytes) -> ReadRequest | None:
    """Return a plain read in canonical order, else None. IndexError counts as None."""
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
    """Return an EOK answer to an add in canonical order, else None. IndexError counts as None."""
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
    """Return an EOK answer with a body in canonical order, with or without maxLAC, else None. IndexError counts as
    None."""
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
