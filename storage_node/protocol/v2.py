"""Packets of protocol version 2, both directions (docs/reference/wire.md#version-2-packets); bodies travel uncopied.

Every packet begins with one word: version (8 bits), opcode (8), flags (16). Nothing else correlates an answer with its
request but the ids that it repeats, so they are repeated exactly.

    request  ADD     word, master key (20), entry: its first 16 bytes are ledger id and entry id
             READ    word, ledger id, entry id [, master key (20) with the flag FENCE and version 2]
             BATCH   word, ledger id, first entry id, request id, max count (4), max bytes (8) [, key, as for READ]
    response ADD     word, code (4), ledger id, entry id
             READ    the same, then the entry where the code is 0
             BATCH   word, code (4), ledger id, first entry id, request id, then for each entry: size (4), entry
    both     AUTH    word, protobuf AuthMessage

Where an entry's body travels, an encoder returns what goes before it. Whatever bytes a decoder is given, only
ProtocolError goes out; a bookie closes the connection then.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from storage_node.errors import ProtocolError
from storage_node.protocol.frames import LENGTH_BYTES
from storage_node.protocol.schema import Status
from storage_node.protocol.values import (
    AddRequest,
    AddResponse,
    AuthRequest,
    AuthResponse,
    BatchReadRequest,
    BatchReadResponse,
    ReadRequest,
    ReadResponse,
    RequestV2,
    ResponseV2,
)
from storage_node.protocol.wire import FieldKind, Message, WireField, decode, varint

VERSION = 2
ADD, READ, AUTH, READ_LAC, WRITE_LAC, BOOKIE_INFO, BATCH_READ = range(1, 8)
"""Opcodes. READ_LAC, WRITE_LAC and BOOKIE_INFO have no packet that another implementation could read."""
FENCE, RECOVERY_ADD, HIGH_PRIORITY = 1, 2, 4
KEY_BYTES = 20
PRIORITY = 100
"""The priority of version 3 that the flag HIGH_PRIORITY stands for."""

_WORD = Struct(">I")
_PREFIXED_WORD = Struct(">iI")
_IDS = Struct(">qq")
_ANSWER = Struct(">Iiqq")
_FRAMED_ANSWER = Struct(">iIiqq")
_BATCH = Struct(">qqqiq")
_BATCH_ANSWER = Struct(">Iiqqq")
_FRAMED_BATCH_ANSWER = Struct(">iIiqqq")
_SIZE = Struct(">i")

ANSWER_BYTES = _ANSWER.size
BATCH_ANSWER_BYTES = LENGTH_BYTES + _BATCH_ANSWER.size
"""A batch's answer without entries, its length included: where the sum that is held against the limit begins."""
BATCH_ENTRY_BYTES = _SIZE.size
"""Bytes that each entry of a batch takes besides itself."""
MAX_BATCH_ENTRIES = 65_536
"""Entries in one answer: a frame can hold a million empty ones, and cutting it up would take a second."""

_CODES = {
    Status.EOK: 0,
    Status.ENOLEDGER: 1,
    Status.ENOENTRY: 2,
    Status.EBADREQ: 100,
    Status.EIO: 101,
    Status.EUA: 102,
    Status.EBADVERSION: 103,
    Status.EFENCED: 104,
    Status.EREADONLY: 105,
    Status.ETOOMANYREQUESTS: 106,
    Status.EUNKNOWNLEDGERSTATE: 101,
}
"""Codes that are sent. 107, the code of EUNKNOWNLEDGERSTATE, makes Java clients close the connection
(docs/reference/wire.md#version-2-codes)."""
_STATUSES = {code: status for status, code in _CODES.items() if status is not Status.EUNKNOWNLEDGERSTATE} | {
    107: Status.EUNKNOWNLEDGERSTATE
}
_AUTH = Message(
    "AuthMessage", {1: WireField("plugin", FieldKind.STRING, True), 2: WireField("payload", FieldKind.BYTES, True)}
)

_QUICK_ADD = (b"\x02\x01\0\0", b"\x02\x01\0\x04")
_QUICK_ADD_BYTES = 4 + KEY_BYTES + 24
_QUICK_ANSWER = b"\0\0\0\x18\x02\x01\0\0\0\0\0\0"


def _word(version: int, opcode: int, flags: int = 0) -> int:
    """Return the first word. Version 0 had an opcode and nothing else."""
    return version << 24 | opcode << 16 | flags if version else opcode


def _read_word(frame: memoryview) -> tuple[int, int, int]:
    """Return (version, opcode, flags) of a packet."""
    (word,) = _WORD.unpack_from(frame)
    version = word >> 24
    return (version, word >> 16 & 0xFF, word & 0xFFFF) if version else (0, word, 0)


# ---------------------------------------------------------------------------------------------- requests


def encode_add_request(
    master_key: bytes, body_length: int, *, recovery: bool = False, high_priority: bool = False, version: int = VERSION
) -> bytes:
    """Return what goes before an entry of `body_length` bytes to be stored."""
    flags = (RECOVERY_ADD if recovery else 0) | (HIGH_PRIORITY if high_priority else 0)
    length = 4 + len(master_key) + body_length
    return _PREFIXED_WORD.pack(length, _word(version, ADD, flags)) + master_key


def encode_read_request(
    ledger_id: int,
    entry_id: int,
    *,
    master_key: bytes | None = None,
    fence: bool = False,
    high_priority: bool = False,
    version: int = VERSION,
) -> bytes:
    """Return a read; the master key travels only with `fence`."""
    return _reading(READ, _IDS.pack(ledger_id, entry_id), master_key, fence, high_priority, version)


def encode_batch_read_request(
    ledger_id: int,
    entry_id: int,
    request_id: int,
    *,
    max_count: int,
    max_bytes: int,
    master_key: bytes | None = None,
    fence: bool = False,
    high_priority: bool = False,
    version: int = VERSION,
) -> bytes:
    """Return a read of entries from `entry_id` on; `request_id` is what the answer is matched by."""
    ids = _BATCH.pack(ledger_id, entry_id, request_id, max_count, max_bytes)
    return _reading(BATCH_READ, ids, master_key, fence, high_priority, version)


def _reading(
    opcode: int, ids: bytes, master_key: bytes | None, fence: bool, high_priority: bool, version: int
) -> bytes:
    key = b""
    if fence:
        if master_key is None:
            raise ProtocolError("a fence needs the master key")
        key = master_key
    flags = (FENCE if fence else 0) | (HIGH_PRIORITY if high_priority else 0)
    return _PREFIXED_WORD.pack(4 + len(ids) + len(key), _word(version, opcode, flags)) + ids + key


def encode_auth(plugin: str, payload: bytes = b"", *, version: int = VERSION) -> bytes:
    """Return an AUTH packet, which looks the same in both directions. The payload is there even where it is empty."""
    name = plugin.encode()
    message = b"\x0a" + varint(len(name)) + name + b"\x12" + varint(len(payload)) + payload
    return _PREFIXED_WORD.pack(4 + len(message), _word(version, AUTH)) + message


def add_and_answer(frame: memoryview) -> tuple[bytes, bytes, memoryview] | None:
    """Return (EOK answer, key, entry) of an ordinary add of version 2, else None: all that a bookie needs of one it
    stores.
    """
    if len(frame) < _QUICK_ADD_BYTES or bytes(frame[:4]) not in _QUICK_ADD:
        return None
    return _QUICK_ANSWER + frame[24:40], bytes(frame[4:24]), frame[24:]


def decode_request(frame: memoryview) -> RequestV2:
    """Return the request in a frame's body, of whatever version it says. Raises ProtocolError."""
    try:
        version, opcode, flags = _read_word(frame)
        priority = PRIORITY if flags & HIGH_PRIORITY else 0
        if opcode == ADD:
            return _add_request(frame, version, flags, priority)
        if opcode == READ:
            ledger_id, entry_id = _IDS.unpack_from(frame, 4)
            key = _fence_key(frame, 4 + _IDS.size, version, flags)
            fence = bool(flags & FENCE)
            return ReadRequest(0, ledger_id, entry_id, key, fence, priority=priority, version=version)
        if opcode == BATCH_READ:
            ledger_id, entry_id, request_id, count, size = _BATCH.unpack_from(frame, 4)
            key = _fence_key(frame, 4 + _BATCH.size, version, flags)
            fence = bool(flags & FENCE)
            return BatchReadRequest(ledger_id, entry_id, request_id, count, size, key, fence, priority, version)
    except StructError:
        raise ProtocolError(f"a packet of {len(frame)} bytes is too short for what it should be") from None
    if opcode == AUTH:
        return AuthRequest(0, *_auth_message(frame), version)
    raise ProtocolError(f"opcode {opcode} is not spoken in protocol version 2")


def _add_request(frame: memoryview, version: int, flags: int, priority: int) -> AddRequest:
    at = 4 + KEY_BYTES
    ledger_id, entry_id = _IDS.unpack_from(frame, at)
    key = bytes(frame[4:at])
    recovery = bool(flags & RECOVERY_ADD)
    return AddRequest(0, ledger_id, entry_id, key, frame[at:], recovery, priority=priority, version=version)


def _fence_key(frame: memoryview, at: int, version: int, flags: int) -> bytes | None:
    """Return the master key of a fencing read. Version 1 knew none."""
    if not flags & FENCE or version < VERSION:
        return None
    key = bytes(frame[at : at + KEY_BYTES])
    if len(key) < KEY_BYTES:
        raise ProtocolError("a fencing read without a whole master key")
    return key


def _auth_message(frame: memoryview) -> tuple[str, bytes]:
    values = decode(_AUTH, frame[4:])
    plugin, payload = values["plugin"], values["payload"]
    if not isinstance(plugin, memoryview) or not isinstance(payload, memoryview):
        raise ProtocolError("an AUTH packet whose fields are not bytes")
    return str(plugin, "utf-8", "replace"), bytes(payload)


# ---------------------------------------------------------------------------------------------- responses


def encode_add_response(status: Status, ledger_id: int, entry_id: int, *, version: int = VERSION) -> bytes:
    """Return the whole frame. Ledger and entry id are all that a client matches the answer by."""
    return _FRAMED_ANSWER.pack(ANSWER_BYTES, _word(version, ADD), _CODES[status], ledger_id, entry_id)


def encode_read_response(
    status: Status, ledger_id: int, entry_id: int, body_length: int = 0, *, version: int = VERSION
) -> bytes:
    """Return what goes before the entry of `body_length` bytes; the ids are those of the request (-1 stays -1)."""
    return _FRAMED_ANSWER.pack(ANSWER_BYTES + body_length, _word(version, READ), _CODES[status], ledger_id, entry_id)


def encode_batch_read_response(
    status: Status,
    ledger_id: int,
    entry_id: int,
    request_id: int,
    entries: tuple[bytes | memoryview, ...] = (),
    *,
    version: int = VERSION,
) -> list[bytes | memoryview]:
    """Return the pieces of the frame. `entry_id` is the first entry that was asked for."""
    length = _BATCH_ANSWER.size + sum(BATCH_ENTRY_BYTES + len(entry) for entry in entries)
    word = _word(version, BATCH_READ)
    pieces: list[bytes | memoryview] = [
        _FRAMED_BATCH_ANSWER.pack(length, word, _CODES[status], ledger_id, entry_id, request_id)
    ]
    for entry in entries:
        pieces += (_SIZE.pack(len(entry)), entry)
    return pieces


def decode_response(frame: memoryview) -> ResponseV2:
    """Return the response in a frame's body. Raises ProtocolError, for a code that is not known too."""
    try:
        version, opcode, _ = _read_word(frame)
        if version > VERSION:
            raise ProtocolError(f"a response of protocol version {version}")
        if opcode in (ADD, READ):
            _, code, ledger_id, entry_id = _ANSWER.unpack_from(frame)
            status = _status(code)
            if opcode == ADD:
                return AddResponse(0, status, ledger_id, entry_id)
            body = frame[ANSWER_BYTES:] if status is Status.EOK else None
            return ReadResponse(0, status, ledger_id, entry_id, body)
        if opcode == BATCH_READ:
            _, code, ledger_id, entry_id, request_id = _BATCH_ANSWER.unpack_from(frame)
            status = _status(code)
            entries = _entries(frame) if status is Status.EOK else ()
            return BatchReadResponse(request_id, status, ledger_id, entry_id, entries)
    except StructError:
        raise ProtocolError(f"a response of {len(frame)} bytes is too short for what it should be") from None
    if opcode == AUTH:
        return AuthResponse(0, Status.EOK, *_auth_message(frame))
    raise ProtocolError(f"a response with opcode {opcode}")


def _status(code: int) -> Status:
    status = _STATUSES.get(code)
    if status is None:
        raise ProtocolError(f"a response with the unknown code {code}")
    return status


def _entries(frame: memoryview) -> tuple[memoryview, ...]:
    """Return the entries that follow the ids of a batch's answer."""
    entries: list[memoryview] = []
    at, end = _BATCH_ANSWER.size, len(frame)
    while at < end:
        (size,) = _SIZE.unpack_from(frame, at)
        at += _SIZE.size
        if size < 0 or size > end - at:
            raise ProtocolError(f"an entry of {size} bytes in a response that has {end - at} left")
        if len(entries) == MAX_BATCH_ENTRIES:
            raise ProtocolError(f"a response with more than {MAX_BATCH_ENTRIES} entries")
        entries.append(frame[at : at + size])
        at += size
    return tuple(entries)
