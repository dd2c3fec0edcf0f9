"""Frames of the serving tier: what goes in comes out, and anything else is refused by name and by one error."""

from __future__ import annotations

import struct
from typing import get_args

import pytest
from helpers.reference_vectors import vectors
from helpers.serving.values import ANSWERS, REQUESTS
from hypothesis import given, settings
from hypothesis import strategies as st

from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import RecordTooLongError
from dlspark.serving.protocol.answer_frames import (
    MAX_OWNERSHIPS,
    SHORT_MESSAGE,
    AnswerKind,
    decode_answer,
    encode_answer,
)
from dlspark.serving.protocol.frame_parts import FRAME_HEADER, HEADER, MAX_PARTS, MAX_PAYLOADS
from dlspark.serving.protocol.operations import (
    Answer,
    Applied,
    BulkReceipt,
    CreateStream,
    Delivery,
    Done,
    FindOwner,
    Handshake,
    OwnerFound,
    ProducerStamp,
    ProxyInfo,
    ProxyStatus,
    ReadBatch,
    ReadForm,
    ReadFrom,
    Refusal,
    Request,
    RequestContext,
    StatusCode,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.protocol.request_frames import decode_request, encode_request
from dlspark.serving.protocol.write_frames import RequestKind, decode_quick_write, decode_write
from metadata.foundation.errors import CallerError
from storage_node.errors import ProtocolError
from storage_node.protocol.frames import LENGTH, MAX_FRAME_BYTES, Buffer, ChunkPool, FrameBuffer

NUMBERS = st.integers(0, 2**64 - 1)
VECTORS = vectors("serving.md")


def body(frame: list[Buffer]) -> memoryview:
    """What the other side's frame buffer hands out; its length is right."""
    whole = b"".join(frame)
    assert LENGTH.unpack_from(whole) == (len(whole) - 4,)
    return memoryview(whole)[4:]


def request_body(request: Request) -> memoryview:
    return body(encode_request(7, request))


def test_every_request_and_every_answer_has_a_strategy_here_and_a_kind() -> None:
    assert set(REQUESTS) == set(get_args(Request))
    assert set(ANSWERS) == set(get_args(Answer))
    assert len(RequestKind) == len(REQUESTS)
    assert len(AnswerKind) == len(ANSWERS)


@given(st.data(), NUMBERS, st.booleans())
def test_writes_that_are_read_by_few_structures_are_those_that_are_read_field_by_field(
    data: st.DataObject, number: int, copied: bool
) -> None:
    frame = bytearray(body(encode_request(number, data.draw(REQUESTS[WriteRecords]))))
    for at in data.draw(st.lists(st.integers(0, len(frame) - 1), max_size=2)):
        frame[at] = data.draw(st.integers(0, 255))
    damaged = memoryview(bytes(frame[: data.draw(st.sampled_from([len(frame), len(frame) - 1]))]))
    quick = decode_quick_write(damaged, copied=copied)
    if quick is None:
        return
    flags = HEADER.unpack_from(damaged)[2]
    assert quick == (HEADER.unpack_from(damaged)[3], decode_write(damaged, flags))
    assert all(type(payload) is (bytes if copied else memoryview) for payload in quick[1].payloads)


@given(st.data(), NUMBERS)
@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_a_request_comes_out_as_it_went_in(kind: type, data: st.DataObject, number: int) -> None:
    request = data.draw(REQUESTS[kind])
    assert decode_request(body(encode_request(number, request))) == (number, request)


@given(st.data(), NUMBERS)
@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.__name__)
def test_an_answer_comes_out_as_it_went_in(kind: type, data: st.DataObject, number: int) -> None:
    answer = data.draw(ANSWERS[kind])
    assert decode_answer(body(encode_answer(number, answer))) == (number, answer)


@settings(max_examples=25)
@given(st.data())
@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_a_request_cut_off_at_any_byte_or_with_one_too_many_is_refused(kind: type, data: st.DataObject) -> None:
    frame = request_body(data.draw(REQUESTS[kind]))
    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode_request(frame[:end])
    with pytest.raises(ProtocolError):
        decode_request(memoryview(bytes(frame) + b"\0"))


@settings(max_examples=25)
@given(st.data())
@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.__name__)
def test_an_answer_cut_off_at_any_byte_or_with_one_too_many_is_refused(kind: type, data: st.DataObject) -> None:
    frame = body(encode_answer(7, data.draw(ANSWERS[kind])))
    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode_answer(frame[:end])
    with pytest.raises(ProtocolError):
        decode_answer(memoryview(bytes(frame) + b"\0"))


def judged(frame: bytes) -> None:
    """Both decoders say what it is, or that it is none."""
    for decode in (decode_request, decode_answer):
        try:
            decode(memoryview(frame))
        except ProtocolError:
            continue


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_the_protocol_error(data: bytes) -> None:
    judged(data)


@given(st.sampled_from([*RequestKind, *AnswerKind]), st.integers(0, 511), st.binary(max_size=120))
def test_random_bytes_behind_a_good_header_raise_nothing_but_the_protocol_error(
    kind: int, flags: int, data: bytes
) -> None:
    judged(HEADER.pack(1, kind, flags, 5) + data)


@given(st.data(), st.sampled_from([*REQUESTS, *ANSWERS]))
def test_a_frame_with_a_byte_changed_raises_nothing_but_the_protocol_error(data: st.DataObject, kind: type) -> None:
    if kind in REQUESTS:
        frame = bytearray(request_body(data.draw(REQUESTS[kind])))
    else:
        frame = bytearray(body(encode_answer(7, data.draw(ANSWERS[kind]))))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    judged(bytes(frame))


# ------------------------------------------------------------------ what is unknown is refused by name

_WRITE = bytes(request_body(WriteRecords("s", (b"payload",))))
_READ = bytes(request_body(ReadBatch("s", ReadFrom.LATEST)))
_READ_FIELDS = HEADER.size + 10 + 1
_REFUSAL = bytes(body(encode_answer(7, Refusal(StatusCode.FOUND, "there"))))
_INFO = bytes(body(encode_answer(7, ProxyInfo("x", ProxyStatus.DOWN))))
_DELIVERY = bytes(body(encode_answer(7, Delivery(ReadForm.RECORDS, DLSN(1, 2, 3)))))
_BULK = bytes(body(encode_answer(7, BulkReceipt((DLSN(1, 2, 3),)))))
_BULK_REFUSED = bytes(body(encode_answer(7, BulkReceipt((Refusal(StatusCode.FOUND, ""),)))))


def changed(frame: bytes, at: int, *new: int) -> bytes:
    return frame[:at] + bytes(new) + frame[at + len(new) :]


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (b"", "0 bytes, its header alone takes 12"),
        (changed(_WRITE, 0, 2), "version 2, this side speaks 1"),
        (changed(_WRITE, 1, 99), "kind is 99, which is not a request's"),
        (changed(_WRITE, 1, AnswerKind.DONE), "kind is 132, which is not a request's"),
        (changed(_WRITE, 2, 0x80, 0), "flags 0x8000, of which 0x8000 are unknown"),
        (changed(_WRITE, 2, 0, 0x30), "a sequence id and a DLSN"),
        (changed(_WRITE, 22, 0xFF), "the stream is not UTF-8"),
        (changed(_WRITE, 20, 0xFF, 0xFF), "the stream takes 65535 bytes"),
        (changed(_WRITE, 23, 0, 0, 0x40, 1), f"16385 payloads, at most {MAX_PAYLOADS}"),
        (changed(_WRITE, 23, 0, 0, 0x40, 0), "16384 payloads do not fit in the 11 bytes"),
        (changed(_WRITE, 30, 9), "the payloads take 9 bytes, 7 are left"),
        (changed(_WRITE, 30, 6), "the payloads take 6 bytes, 7 are left"),
        (changed(_READ, _READ_FIELDS + 4, 9), "the form 9, which is unknown"),
        (changed(_READ, _READ_FIELDS + 13, 9), "by 9 where it begins, which is unknown"),
        (changed(_READ, _READ_FIELDS + 14, 9), "begins at 9, which is neither OLDEST nor LATEST"),
    ],
)
def test_what_a_request_cannot_say_is_named(frame: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        decode_request(memoryview(frame))


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (b"\1" * 11, "11 bytes, its header alone takes 12"),
        (changed(_REFUSAL, 0, 0), "version 0, this side speaks 1"),
        (changed(_REFUSAL, 1, 2), "kind is 2, which is not an answer's"),
        (changed(_REFUSAL, 3, 1), "flags 0x1, of which 0x1 are unknown"),
        (changed(_REFUSAL, 12, 0, 99), "the status code 99 is unknown"),
        (changed(_REFUSAL, 14, 3), "the outcome 3 is unknown"),
        (changed(_REFUSAL, 15, 32), "flags 0x20, which cannot be"),
        (changed(_REFUSAL, 15, 12), "flags 0xc, which cannot be"),
        (changed(_INFO, 15, 0, 99), "the status 99 is unknown"),
        (changed(_DELIVERY, 12, 9), "the form 9, which is unknown"),
        (changed(_DELIVERY, 37, 0, 1, 0, 1), f"65537 parts, at most {MAX_PARTS}"),
        (changed(_BULK, 20, 9), "fate is 9, which is unknown"),
        (changed(_BULK_REFUSED, len(_BULK_REFUSED) - 1, 1), "refusal 1 of 1"),
    ],
)
def test_what_an_answer_cannot_say_is_named(frame: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        decode_answer(memoryview(frame))


# ------------------------------------------------------------------ what cannot be sent


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (WriteRecords("s" * 70_000, (b"",)), "the length of the stream is 70000"),
        (CreateStream("\ud800"), "cannot be written in UTF-8"),
        (WriteRecords("\ud800", (b"",)), "cannot be written in UTF-8"),
        (WriteRecords("s", (b"",), RequestContext(checksum=-1)), "the checksum is -1"),
        (WriteRecords("s", (b"",), RequestContext(timeout_ms=2**32)), "the timeout in ms is 4294967296"),
        (WriteRecords("s", (b"",), stamp=ProducerStamp("p", 2**63, 0)), "the epoch is"),
        (WriteRecords("s", (b"",), expected_position=DLSN(2**63, 0, 0)), "does not fit in 64 bits"),
        (WriteRecords("s", (b"",), transaction_ids=(2**63,)), "one of the transaction ids"),
        (WriteRecords("s", (b"",), transaction_ids=(1, 2)), "1 payloads came with 2 transaction ids"),
        (FindOwner("s", RequestContext(tried_hosts=("a",) * 256)), "256 hosts tried do not fit"),
        (Handshake("r" * 65_536), "the length of the regular expression"),
        (ReadBatch("s", 2**63), "the start is"),
    ],
)
def test_a_field_that_does_not_fit_is_named_and_nothing_is_sent(request_: Request, complaint: str) -> None:
    with pytest.raises(CallerError, match=complaint):
        encode_request(1, request_)


def test_a_number_of_records_that_does_not_fit_is_named() -> None:
    with pytest.raises(CallerError, match="the number of records is 4294967296"):
        encode_answer(1, WriteReceipt(None, 2**32))


def test_a_frame_is_as_long_as_the_transport_takes_it_and_no_longer() -> None:
    room = MAX_FRAME_BYTES - sum(map(len, encode_request(1, WriteRecords("s", (b"",)))))
    payload = bytes(room)
    (frame,) = cut(encode_request(1, WriteRecords("s", (payload,))))
    assert decode_request(frame) == (1, WriteRecords("s", (payload,)))
    for payloads in ((payload + b"x",), (payload, b""), (payload, payload)):
        with pytest.raises(RecordTooLongError, match=f"do not fit in a frame of {MAX_FRAME_BYTES}"):
            encode_request(1, WriteRecords("s", payloads))
    with pytest.raises(RecordTooLongError, match="do not fit in a frame"):
        encode_answer(1, Delivery(ReadForm.ENTRIES, DLSN(1, 2, 3), (payload, payload)))


def cut(frame: list[Buffer]) -> list[memoryview]:
    """What a connection's receiving half makes of a frame's bytes."""
    received = FrameBuffer(ChunkPool(chunk_bytes=1 << 23))
    whole = b"".join(frame)
    received.writable()[: len(whole)] = whole
    return received.advance(len(whole))


def test_so_many_payloads_and_parts_go_in_one_frame_and_no_more() -> None:
    most = WriteRecords("s", (b"x",) * MAX_PAYLOADS)
    assert decode_request(request_body(most)) == (7, most)
    with pytest.raises(RecordTooLongError, match="16385 payloads, at most 16384"):
        encode_request(1, WriteRecords("s", (b"x",) * (MAX_PAYLOADS + 1)))
    with pytest.raises(RecordTooLongError, match="65537 parts, at most 65536"):
        encode_answer(1, Delivery(ReadForm.RECORDS, DLSN(1, 2, 3), (b"",) * (MAX_PARTS + 1)))


# ------------------------------------------------------------------ nothing is copied


@pytest.mark.parametrize("payloads", [(b"one",), (b"one", b"two")], ids=["one", "two"])
def test_payloads_are_neither_joined_when_encoded_nor_copied_when_decoded(payloads: tuple[bytes, ...]) -> None:
    frame = encode_request(1, WriteRecords("s", payloads))
    assert [part is payload for part, payload in zip(frame[1:], payloads, strict=True)] == [True] * len(payloads)
    received = bytearray(b"".join(frame))
    _, request = decode_request(memoryview(received)[4:])
    assert isinstance(request, WriteRecords)
    received[-3:] = b"new"
    assert bytes(request.payloads[-1]) == b"new", "a view of what was received"


def test_parts_that_were_read_are_neither_joined_nor_copied() -> None:
    part = b"an entry"
    frame = encode_answer(1, Delivery(ReadForm.ENTRIES, DLSN(1, 2, 3), (part,)))
    assert frame[1] is part
    received = bytearray(b"".join(frame))
    _, answer = decode_answer(memoryview(received)[4:])
    assert isinstance(answer, Delivery)
    received[-5:] = b"ENTRY"
    assert bytes(answer.parts[0]) == b"an ENTRY"


def test_a_payload_may_be_a_view_of_wider_items() -> None:
    view = memoryview(struct.pack("4I", 1, 2, 3, 4)).cast("I")
    for payloads in ((view,), (view, b"")):
        _, request = decode_request(body(encode_request(1, WriteRecords("s", payloads))))
        assert isinstance(request, WriteRecords)
        assert bytes(request.payloads[0]) == view.tobytes()


# ------------------------------------------------------------------ answers that could grow past a frame


def test_a_reason_that_many_records_have_travels_once() -> None:
    reason = Refusal(StatusCode.WRITE_CANCELLED, "x" * 4000, applied=Applied.NO)
    receipt = BulkReceipt((DLSN(1, 2, 3), *(reason,) * 5000))
    frame = body(encode_answer(1, receipt))
    assert len(frame) < 40_000
    _, decoded = decode_answer(frame)
    assert decoded == receipt


def test_reasons_too_long_for_a_frame_are_cut_rather_than_the_receipt_lost() -> None:
    reasons = [
        Refusal(StatusCode.OVER_CAPACITY, f"{n} " + "x" * 4000, applied=Applied.NO, advice="y" * 4000)
        for n in range(MAX_PAYLOADS - 1)
    ]
    _, decoded = decode_answer(body(encode_answer(1, BulkReceipt((DLSN(1, 2, 3), *reasons)))))
    assert isinstance(decoded, BulkReceipt)
    assert decoded.results[0] == DLSN(1, 2, 3)
    for was, now in zip(reasons, decoded.results[1:], strict=True):
        assert isinstance(now, Refusal)
        assert (now.code, now.applied, now.message) == (was.code, was.applied, was.message[:SHORT_MESSAGE])


@pytest.mark.parametrize("name", ["{}", "a-stream-with-a-long-name-{:040}"])
def test_a_proxy_lists_as_many_ownerships_as_fit(name: str) -> None:
    owned = {name.format(n): "1;0;proxy.example:8000" for n in range(MAX_OWNERSHIPS + 1)}
    _, info = decode_answer(body(encode_answer(1, ProxyInfo("here", ProxyStatus.WRITE_AND_ACCEPT, owned))))
    assert isinstance(info, ProxyInfo)
    assert 9_000 < len(info.ownerships) < len(owned)
    assert info.ownerships.items() <= owned.items()


# ------------------------------------------------------------------ the reference's bytes

_STAMPED = WriteRecords(
    "flights",
    (b"one", b"two"),
    RequestContext(("1;0;host:8000",), 0x01020304, True, 500),
    ProducerStamp("sink", 3, 9),
    DLSN(1, 2, 3),
    b"token",
    True,
    (10, 11),
)
_BY_VECTOR: dict[str, Request | Answer] = {
    "write": WriteRecords("flights", (b"hello",)),
    "write with everything": _STAMPED,
    "find owner": FindOwner("flights"),
    "handshake": Handshake("flights.*"),
    "count of logs wanted": Handshake(ownerships=False, count_logs=True),
    "bearer": Handshake(ownerships=False, token=b"a.b.c"),
    "client of a region": Handshake(region="eu"),
    "count of logs": ProxyInfo("1;0;host:8000", ProxyStatus.WRITE_AND_ACCEPT, logs_read=5),
    "read": ReadBatch("flights", DLSN(1, 2, 3), 4, ReadForm.ENTRIES),
    "receipt": WriteReceipt(DLSN(1, 2, 3), 1),
    "refusal": Refusal(StatusCode.FOUND, "there", "1;0;host:8000", Applied.NO, "OwnershipAcquireFailedError", 5, "go"),
    "bulk receipt": BulkReceipt((DLSN(1, 2, 3), Refusal(StatusCode.OVER_CAPACITY, "full"))),
    "done": Done(),
    "owner found": OwnerFound("1;0;host:8000"),
    "delivery": Delivery(ReadForm.ENTRIES, DLSN(1, 3, 0), (b"part", b""), end_of_stream=True),
}


@pytest.mark.parametrize("name", _BY_VECTOR)
def test_frames_are_those_of_the_reference(name: str) -> None:
    value, expected = _BY_VECTOR[name], VECTORS[name]
    number, *_ = FRAME_HEADER.unpack_from(expected)[-1:]
    if isinstance(value, get_args(Request)):
        assert b"".join(encode_request(number, value)) == expected
        assert decode_request(memoryview(expected)[4:]) == (number, value)
    else:
        assert b"".join(encode_answer(number, value)) == expected
        assert decode_answer(memoryview(expected)[4:]) == (number, value)
