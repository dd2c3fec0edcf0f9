"""Frames that are legal, and made to take long: millions of fields in 5 MiB."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage_node.errors import ProtocolError, TooManyFieldsError
from storage_node.protocol import v2
from storage_node.protocol.decoding import decode_request, decode_response
from storage_node.protocol.encoding import encode_add_response, encode_read_request
from storage_node.protocol.frames import LENGTH_BYTES, MAX_FRAME_BYTES
from storage_node.protocol.schema import Status
from storage_node.protocol.values import ReadRequest
from storage_node.protocol.wire import MAX_FIELDS, varint

LARGEST = MAX_FRAME_BYTES - LENGTH_BYTES - 100
READ = encode_read_request(7, 5, 3)[4:]
ANSWER = encode_add_response(7, Status.EOK, 5, 3)[4:]
HEADER = b"\x08\x03\x10\x01\x18\x07"


def unknown(size: int) -> bytes:
    return b"\x78\x01" * (size // 2)


def groups(size: int) -> bytes:
    return b"\x7b\x7c" * (size // 2)


def inside(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def contexts(size: int) -> bytes:
    return inside(200, b"\x0a\x00\x12\x00") * (size // 7)


HOSTILE: dict[str, tuple[Callable[[memoryview], object], bytes]] = {
    "unknown fields behind a request": (decode_request, READ + unknown(LARGEST)),
    "unknown fields before a request": (decode_request, unknown(LARGEST) + READ),
    "empty groups": (decode_request, READ + groups(LARGEST)),
    "fields in one unknown group": (decode_request, READ + b"\x7b" + unknown(LARGEST) + b"\x7c"),
    "groups within groups": (decode_request, READ + b"\x7b" * 90 + unknown(LARGEST)),
    "a field again and again": (decode_request, READ + b"\xa2\x06\x02\x08\x05" * (LARGEST // 5)),
    "a header again and again": (decode_request, inside(1, HEADER) * (LARGEST // 8) + READ[8:]),
    "fields in the header": (decode_request, inside(1, HEADER + unknown(LARGEST - 200)) + READ[8:]),
    "fields in the request": (decode_request, inside(1, HEADER) + inside(100, unknown(LARGEST - 200))),
    "contexts": (decode_request, READ + contexts(LARGEST)),
    "fields of an answer": (decode_response, ANSWER + unknown(LARGEST)),
    "an answer's status again and again": (decode_response, ANSWER + b"\x10\x00" * (LARGEST // 2)),
    "fields of an authentication, version 3": (
        decode_request,
        inside(1, b"\x08\x03\x10\x05\x18\x07") + inside(102, b"\x0a\x01x\x12\x00" + unknown(LARGEST - 200)),
    ),
    "fields of an authentication, version 2": (v2.decode_request, v2.encode_auth("x")[4:] + unknown(LARGEST)),
    "fields of an authentication's answer": (v2.decode_response, v2.encode_auth("x")[4:] + unknown(LARGEST)),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_message_of_a_million_fields_is_refused_after_the_first_thousand(what: str) -> None:
    decode, body = HOSTILE[what]
    with pytest.raises(TooManyFieldsError, match=f"more than {MAX_FIELDS} fields"):
        decode(memoryview(body))


def test_a_request_may_bring_as_much_context_as_clients_send() -> None:
    frame = READ + contexts(7 * ((MAX_FIELDS - 10) // 3))
    assert decode_request(memoryview(frame)) == ReadRequest(7, 5, 3)


def test_a_batch_of_a_million_empty_entries_is_refused() -> None:
    frame = b"".join(v2.encode_batch_read_response(Status.EOK, 5, 0, 1, (b"",) * v2.MAX_BATCH_ENTRIES))[4:]
    answer = v2.decode_response(memoryview(frame))
    assert len(getattr(answer, "entries", ())) == v2.MAX_BATCH_ENTRIES
    with pytest.raises(ProtocolError, match=f"more than {v2.MAX_BATCH_ENTRIES} entries"):
        v2.decode_response(memoryview(frame + bytes(4)))
