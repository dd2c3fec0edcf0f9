"""The version 2 codec: the vectors of docs/reference/wire.md#version-2-vectors, and what is not a packet."""

from __future__ import annotations

import pytest
from helpers.reference_vectors import vectors
from hypothesis import given
from hypothesis import strategies as st

from metadata.bookkeeper.ledger_metadata import DigestType
from storage_node.errors import ProtocolError
from storage_node.protocol import v2
from storage_node.protocol.decoding import decode_request
from storage_node.protocol.digests import EntryDigest, master_key
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
)

EMPTY, SECRET = master_key(b""), master_key(b"secret")
DIGEST = EntryDigest(DigestType.CRC32C, b"")
PAYLOAD = b"hello-bookkeeper"
SEVEN = DIGEST.package(12345, 7, 6, 128, PAYLOAD) + PAYLOAD
EIGHT = DIGEST.package(12345, 8, 7, 144, PAYLOAD) + PAYLOAD

FRAMES = {name.removeprefix("v2 "): frame for name, frame in vectors("wire.md").items() if name.startswith("v2 ")}
ENCODED: dict[str, bytes] = {
    "ADD pw empty flags0 CRC32C": v2.encode_add_request(EMPTY, len(SEVEN)) + SEVEN,
    "ADD pw secret recovery flags6 CRC32C": v2.encode_add_request(SECRET, len(SEVEN), recovery=True, high_priority=True)
    + SEVEN,
    "ADD resp EOK": v2.encode_add_response(Status.EOK, 12345, 7),
    "ADD resp EFENCED": v2.encode_add_response(Status.EFENCED, 12345, 7),
    "READ entry7": v2.encode_read_request(12345, 7),
    "READ LAC fence secret": v2.encode_read_request(12345, -1, master_key=SECRET, fence=True),
    "READ recovery entry8 flags5 secret": v2.encode_read_request(
        12345, 8, master_key=SECRET, fence=True, high_priority=True
    ),
    "READ resp EOK": v2.encode_read_response(Status.EOK, 12345, 7, len(SEVEN)) + SEVEN,
    "READ resp ENOENTRY": v2.encode_read_response(Status.ENOENTRY, 12345, 8),
    "BATCH req rid=42 start=7 max=10 size=5242880": v2.encode_batch_read_request(
        12345, 7, 42, max_count=10, max_bytes=5242880
    ),
    "BATCH resp two entries": b"".join(v2.encode_batch_read_response(Status.EOK, 12345, 7, 42, (SEVEN, EIGHT))),
    "AUTH (req or resp) AuthDisabledPlugin": v2.encode_auth("AuthDisabledPlugin"),
}
DECODED: dict[str, object] = {
    "ADD pw empty flags0 CRC32C": AddRequest(0, 12345, 7, EMPTY, memoryview(SEVEN), version=2),
    "ADD pw secret recovery flags6 CRC32C": AddRequest(
        0, 12345, 7, SECRET, memoryview(SEVEN), recovery=True, priority=100, version=2
    ),
    "ADD resp EOK": AddResponse(0, Status.EOK, 12345, 7),
    "ADD resp EFENCED": AddResponse(0, Status.EFENCED, 12345, 7),
    "READ entry7": ReadRequest(0, 12345, 7, version=2),
    "READ LAC fence secret": ReadRequest(0, 12345, -1, SECRET, True, version=2),
    "READ recovery entry8 flags5 secret": ReadRequest(0, 12345, 8, SECRET, True, priority=100, version=2),
    "READ resp EOK": ReadResponse(0, Status.EOK, 12345, 7, memoryview(SEVEN)),
    "READ resp ENOENTRY": ReadResponse(0, Status.ENOENTRY, 12345, 8),
    "BATCH req rid=42 start=7 max=10 size=5242880": BatchReadRequest(12345, 7, 42, 10, 5242880),
    "BATCH resp two entries": BatchReadResponse(42, Status.EOK, 12345, 7, (memoryview(SEVEN), memoryview(EIGHT))),
    "AUTH (req or resp) AuthDisabledPlugin": AuthRequest(0, "AuthDisabledPlugin", b"", version=2),
}


def decode(name: str, body: memoryview) -> object:
    return v2.decode_response(body) if " resp " in name.split("(")[0] + " " else v2.decode_request(body)


def test_every_vector_of_the_page_is_tested() -> None:
    assert FRAMES.keys() == ENCODED.keys() == DECODED.keys()


@pytest.mark.parametrize("name", ENCODED)
def test_version_2_packets_encode_to_the_vectors(name: str) -> None:
    assert ENCODED[name].hex() == FRAMES[name].hex()


@pytest.mark.parametrize("name", ENCODED)
def test_the_vectors_of_version_2_decode(name: str) -> None:
    frame = FRAMES[name]
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode(name, memoryview(frame)[4:]) == DECODED[name]


def test_an_auth_packet_has_neither_code_nor_ids_in_either_direction() -> None:
    body = memoryview(FRAMES["AUTH (req or resp) AuthDisabledPlugin"])[4:]
    assert v2.decode_response(body) == AuthResponse(0, Status.EOK, "AuthDisabledPlugin", b"")
    long = v2.encode_auth("x" * 300, bytes(1000))
    assert v2.decode_request(memoryview(long)[4:]) == AuthRequest(0, "x" * 300, bytes(1000), version=2)


@pytest.mark.parametrize("name", [name for name in ENCODED if "BATCH resp" not in name])
def test_no_vector_parses_as_version_3(name: str) -> None:
    with pytest.raises(ProtocolError):
        decode_request(memoryview(FRAMES[name])[4:])


@pytest.mark.parametrize("name", [name for name in ENCODED if "BATCH resp" not in name])
def test_every_cut_of_a_packet_is_refused_or_another_packet_never_a_crash(name: str) -> None:
    body = FRAMES[name][4:]
    for length in range(len(body)):
        try:
            decode(name, memoryview(body[:length]))
        except ProtocolError:
            continue
        assert length >= 24 or "READ entry" in name, "only packets with a body can lose bytes and stay packets"


# ------------------------------------------------------------------------------------------- versions and flags


def test_version_0_has_the_opcode_in_the_low_byte_and_no_flags() -> None:
    body = bytes.fromhex("00000002") + (12345).to_bytes(8, "big") + (7).to_bytes(8, "big")
    assert v2.decode_request(memoryview(body)) == ReadRequest(0, 12345, 7, version=0)
    assert v2.encode_read_request(12345, 7, version=0)[4:] == body
    assert v2.encode_add_response(Status.EOK, 1, 2, version=0)[4:8] == bytes.fromhex("00000001")
    with pytest.raises(ProtocolError):
        v2.decode_request(memoryview(bytes.fromhex("00020002") + body[4:]))


def test_version_1_reads_no_key_even_with_the_fence_flag() -> None:
    body = bytes.fromhex("01020001") + (12345).to_bytes(8, "big") + (7).to_bytes(8, "big") + SECRET
    assert v2.decode_request(memoryview(body)) == ReadRequest(0, 12345, 7, None, True, version=1)


def test_a_later_version_is_decoded_so_that_it_can_be_refused_with_its_ids() -> None:
    body = bytes.fromhex("09020000") + (12345).to_bytes(8, "big") + (7).to_bytes(8, "big")
    assert v2.decode_request(memoryview(body)) == ReadRequest(0, 12345, 7, version=9)
    answer = v2.encode_read_response(Status.EBADVERSION, 12345, 7, version=9)
    assert answer.hex() == "0000001809020000000000670000000000003039" + "0000000000000007"


def test_extra_bytes_behind_a_read_are_ignored_and_the_key_travels_only_with_a_fence() -> None:
    plain = v2.encode_read_request(1, 2, master_key=SECRET)
    assert len(plain) == 24
    padded = plain[4:] + b"anything"
    assert v2.decode_request(memoryview(padded)) == ReadRequest(0, 1, 2, version=2)
    with pytest.raises(ProtocolError, match="master key"):
        v2.encode_read_request(1, 2, fence=True)
    with pytest.raises(ProtocolError, match="key"):
        v2.decode_request(memoryview(v2.encode_read_request(1, 2, fence=True, master_key=SECRET)[4:-1]))


@pytest.mark.parametrize("opcode", [0, 4, 5, 6, 8, 255])
def test_opcodes_without_a_packet_are_refused(opcode: int) -> None:
    body = bytes([2, opcode, 0, 0]) + bytes(64)
    with pytest.raises(ProtocolError, match="opcode"):
        v2.decode_request(memoryview(body))
    with pytest.raises(ProtocolError, match="opcode"):
        v2.decode_response(memoryview(body))


# ------------------------------------------------------------------------------------------- codes


CODES = {
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
}


@pytest.mark.parametrize("status", Status)
def test_every_status_has_its_code_and_107_is_sent_as_101(status: Status) -> None:
    frame = v2.encode_add_response(status, 5, 6)
    code = int.from_bytes(frame[8:12], "big")
    assert code == CODES.get(status, 101)
    expected = Status.EIO if status is Status.EUNKNOWNLEDGERSTATE else status
    assert v2.decode_response(memoryview(frame)[4:]) == AddResponse(0, expected, 5, 6)


def test_code_107_is_understood_and_an_unknown_code_is_refused() -> None:
    frame = bytearray(v2.encode_read_response(Status.ENOENTRY, 5, 6))
    frame[11] = 107
    assert v2.decode_response(memoryview(frame)[4:]) == ReadResponse(0, Status.EUNKNOWNLEDGERSTATE, 5, 6)
    frame[11] = 108
    with pytest.raises(ProtocolError, match="108"):
        v2.decode_response(memoryview(frame)[4:])


# ------------------------------------------------------------------------------------------- batches, the quick add

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(INT64, INT64, INT64, st.integers(-(2**31), 2**31 - 1), INT64, st.booleans(), st.booleans())
def test_batch_requests_come_back_as_they_were(
    ledger_id: int, entry_id: int, request_id: int, max_count: int, max_bytes: int, fence: bool, high: bool
) -> None:
    key = SECRET if fence else None
    frame = v2.encode_batch_read_request(
        ledger_id,
        entry_id,
        request_id,
        max_count=max_count,
        max_bytes=max_bytes,
        master_key=key,
        fence=fence,
        high_priority=high,
    )
    assert len(frame) == (64 if fence else 44)
    expected = BatchReadRequest(ledger_id, entry_id, request_id, max_count, max_bytes, key, fence, 100 if high else 0)
    assert v2.decode_request(memoryview(frame)[4:]) == expected


@given(st.lists(st.binary(max_size=100), max_size=5), st.sampled_from([Status.EOK, Status.ENOENTRY]))
def test_batch_answers_come_back_as_they_were(entries: list[bytes], status: Status) -> None:
    sent = tuple(entries) if status is Status.EOK else ()
    pieces = v2.encode_batch_read_response(status, 5, -1, 2**62, sent)
    frame = b"".join(pieces)
    assert len(frame) == v2.BATCH_ANSWER_BYTES + sum(v2.BATCH_ENTRY_BYTES + len(one) for one in sent)
    answer = v2.decode_response(memoryview(frame)[4:])
    assert answer == BatchReadResponse(2**62, status, 5, -1, tuple(map(memoryview, sent)))


def test_a_batch_whose_sizes_do_not_fit_is_refused() -> None:
    frame = bytearray(b"".join(v2.encode_batch_read_response(Status.EOK, 5, 0, 1, (b"abc",))))
    for size in (4, -1, 2**31 - 1):
        frame[36:40] = size.to_bytes(4, "big", signed=True)
        with pytest.raises(ProtocolError, match="entry of"):
            v2.decode_response(memoryview(frame)[4:])
    with pytest.raises(ProtocolError, match="short"):
        v2.decode_response(memoryview(frame)[4:38])


@given(INT64, INT64, st.binary(max_size=40), st.integers(0, 7), st.integers(0, 3))
def test_the_quick_add_says_what_the_ordinary_way_says(
    ledger_id: int, entry_id: int, rest: bytes, flags: int, version: int
) -> None:
    body = ledger_id.to_bytes(8, "big", signed=True) + entry_id.to_bytes(8, "big", signed=True) + rest
    packet = bytes([version, 1, 0, flags]) + SECRET + body
    if version == 0:
        packet = b"\0\0\0\x01" + packet[4:]
    request = v2.decode_request(memoryview(packet))
    assert isinstance(request, AddRequest)
    quick = v2.add_and_answer(memoryview(packet))
    if quick is None:
        assert version != 2 or flags not in (0, 4) or len(rest) < 8
        return
    answer, key, view = quick
    assert answer == v2.encode_add_response(Status.EOK, request.ledger_id, request.entry_id)
    assert (key, view) == (request.master_key, request.body)
    assert not request.recovery


@given(st.binary(max_size=120))
def test_no_bytes_break_the_decoders(data: bytes) -> None:
    for decoder in (v2.decode_request, v2.decode_response):
        try:
            decoder(memoryview(data))
        except ProtocolError:
            pass
