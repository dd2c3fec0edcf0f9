"""The version 3 codec: the vectors of docs/reference/wire.md#version-3-vectors, and equality with the protobuf
runtime."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from helpers.bookie import wire_bytes
from helpers.reference_vectors import vectors
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.bookkeeper.ledger_metadata import DigestType
from storage_node.errors import ProtocolError
from storage_node.protocol import schema, wire
from storage_node.protocol.decoding import decode_request, decode_response
from storage_node.protocol.digests import EntryDigest, master_key
from storage_node.protocol.encoding import (
    encode_add_request,
    encode_add_response,
    encode_auth_request,
    encode_auth_response,
    encode_bookie_info_request,
    encode_bookie_info_response,
    encode_error_response,
    encode_force_ledger_request,
    encode_force_ledger_response,
    encode_list_entries_request,
    encode_list_entries_response,
    encode_read_lac_request,
    encode_read_lac_response,
    encode_read_request,
    encode_read_response,
    encode_start_tls_request,
    encode_write_lac_request,
    encode_write_lac_response,
)
from storage_node.protocol.layouts import decode_add_and_answer
from storage_node.protocol.schema import Operation, Status
from storage_node.protocol.values import (
    AddRequest,
    AddResponse,
    AuthRequest,
    AuthResponse,
    BookieInfoRequest,
    BookieInfoResponse,
    ErrorResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    StartTlsRequest,
    UnsupportedRequest,
    WriteLacRequest,
    WriteLacResponse,
)

KEY = master_key(b"secret")
CRC32_ENTRY = EntryDigest(DigestType.CRC32, b"").package(12345, 7, 6, 128, b"hello-bookkeeper") + b"hello-bookkeeper"
CRC32C_ENTRY = EntryDigest(DigestType.CRC32C, b"").package(12345, 7, 6, 128, b"hello-bookkeeper") + b"hello-bookkeeper"


def joined(parts: tuple[bytes, bytes], body: bytes) -> bytes:
    return parts[0] + body + parts[1]


FRAMES = {name.removeprefix("v3 "): frame for name, frame in vectors("wire.md").items() if name.startswith("v3 ")}
ENCODED: dict[str, bytes] = {
    "ADD pw secret CRC32": joined(encode_add_request(1, 12345, 7, KEY, 56), CRC32_ENTRY),
    "ADD recovery prio100": joined(encode_add_request(2, 12345, 7, KEY, 56, recovery=True, priority=100), CRC32_ENTRY),
    "ADD deferred sync CRC32C pw empty": joined(
        encode_add_request(3, 12345, 7, master_key(b""), 52, deferred_sync=True), CRC32C_ENTRY
    ),
    "READ entry7": encode_read_request(4, 12345, 7),
    "READ LAC fence": encode_read_request(5, 12345, -1, master_key=KEY, fence=True),
    "long poll prevLAC=6 timeout=1000": encode_read_request(
        6, 12345, -1, previous_lac=6, timeout_ms=1000, piggyback=True
    ),
    "READ_LAC": encode_read_lac_request(7, 12345),
    "WRITE_LAC CRC32": encode_write_lac_request(
        8, 12345, 6, KEY, EntryDigest(DigestType.CRC32, b"").package_lac(12345, 6)
    ),
    "FORCE": encode_force_ledger_request(9, 12345),
    "GET_BOOKIE_INFO": encode_bookie_info_request(10),
    "GET_LIST": encode_list_entries_request(11, 12345),
    "START_TLS": encode_start_tls_request(12),
    "AUTH": encode_auth_request(13, "AuthDisabledPlugin"),
    "ADD resp EOK": encode_add_response(1, Status.EOK, 12345, 7),
    "ADD resp EFENCED": encode_add_response(1, Status.EFENCED, 12345, 7),
    "READ resp EOK maxLAC 6": joined(encode_read_response(4, Status.EOK, 12345, 7, 52, max_lac=6), CRC32C_ENTRY),
    "READ resp ENOENTRY": encode_read_response(4, Status.ENOENTRY, 12345, 8)[0],
    "long-poll timeout resp": encode_read_response(6, Status.EOK, 12345, -1, max_lac=6)[0],
}
DECODED: dict[str, object] = {
    "ADD pw secret CRC32": AddRequest(1, 12345, 7, KEY, memoryview(CRC32_ENTRY)),
    "ADD recovery prio100": AddRequest(2, 12345, 7, KEY, memoryview(CRC32_ENTRY), recovery=True, priority=100),
    "ADD deferred sync CRC32C pw empty": AddRequest(
        3, 12345, 7, master_key(b""), memoryview(CRC32C_ENTRY), deferred_sync=True
    ),
    "READ entry7": ReadRequest(4, 12345, 7),
    "READ LAC fence": ReadRequest(5, 12345, -1, master_key=KEY, fence=True),
    "long poll prevLAC=6 timeout=1000": ReadRequest(6, 12345, -1, previous_lac=6, timeout_ms=1000, piggyback=True),
    "READ_LAC": ReadLacRequest(7, 12345),
    "WRITE_LAC CRC32": WriteLacRequest(
        8, 12345, 6, KEY, memoryview(EntryDigest(DigestType.CRC32, b"").package_lac(12345, 6))
    ),
    "FORCE": ForceLedgerRequest(9, 12345),
    "GET_BOOKIE_INFO": BookieInfoRequest(10, 3),
    "GET_LIST": ListEntriesRequest(11, 12345),
    "START_TLS": StartTlsRequest(12),
    "AUTH": AuthRequest(13, "AuthDisabledPlugin", b""),
    "ADD resp EOK": AddResponse(1, Status.EOK, 12345, 7),
    "ADD resp EFENCED": AddResponse(1, Status.EFENCED, 12345, 7),
    "READ resp EOK maxLAC 6": ReadResponse(4, Status.EOK, 12345, 7, memoryview(CRC32C_ENTRY), 6),
    "READ resp ENOENTRY": ReadResponse(4, Status.ENOENTRY, 12345, 8),
    "long-poll timeout resp": ReadResponse(6, Status.EOK, 12345, -1, None, 6),
}


def body_of(frame: bytes) -> memoryview:
    return memoryview(frame)[4:]


def decode(name: str, frame: memoryview) -> object:
    return decode_response(frame) if "resp" in name else decode_request(frame)


def test_every_vector_of_the_page_is_tested() -> None:
    assert FRAMES.keys() == ENCODED.keys() == DECODED.keys()


@pytest.mark.parametrize("name", ENCODED)
def test_version_3_messages_encode_to_the_vectors(name: str) -> None:
    assert ENCODED[name].hex() == FRAMES[name].hex()


@pytest.mark.parametrize("name", ENCODED)
def test_the_vectors_of_version_3_decode(name: str) -> None:
    frame = FRAMES[name]
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode(name, body_of(frame)) == DECODED[name]


# ------------------------------------------------------------------------------- equality with the protobuf runtime

KINDS = {
    wire.FieldKind.INT64: descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    wire.FieldKind.UINT64: descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
    wire.FieldKind.INT32: descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    wire.FieldKind.UINT32: descriptor_pb2.FieldDescriptorProto.TYPE_UINT32,
    wire.FieldKind.ENUM: descriptor_pb2.FieldDescriptorProto.TYPE_ENUM,
    wire.FieldKind.BYTES: descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    wire.FieldKind.STRING: descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    wire.FieldKind.MESSAGE: descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
}


def _describe(message: wire.Message, file: Any, names: set[str]) -> None:
    if message.name in names:
        return
    names.add(message.name)
    out = file.message_type.add(name=f"M_{message.name}")
    for number, known in message.fields.items():
        label = 2 if known.required else 3 if known.repeated else 1
        field = out.field.add(name=known.name, number=number, label=label, type=KINDS[known.kind])
        if known.message is not None:
            field.type_name = f"M_{known.message.name}"
            _describe(known.message, file, names)
        if known.kind is wire.FieldKind.ENUM:
            enum = f"E_{message.name}_{known.name}"
            field.type_name = enum
            values = file.enum_type.add(name=enum)
            for value in sorted(known.values):
                values.value.add(name=f"{enum}_{value}", number=value)


def _runtime() -> tuple[Any, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="bookkeeper_v3.proto", syntax="proto2")
    names: set[str] = set()
    _describe(schema.REQUEST, file, names)
    _describe(schema.RESPONSE, file, names)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return (
        message_factory.GetMessageClass(pool.FindMessageTypeByName("M_Request")),
        message_factory.GetMessageClass(pool.FindMessageTypeByName("M_Response")),
    )


PbRequest, PbResponse = _runtime()
int64s = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 300)
txn_ids = st.integers(0, 2**64 - 1) | st.integers(0, 300)
blobs = st.binary(max_size=300)
maybe = lambda s: st.none() | s  # noqa: E731


def filled(message: wire.Message) -> st.SearchStrategy[dict[str, Any]]:
    """Values for every required and some optional fields of a message."""

    def value(known: wire.Field) -> st.SearchStrategy[Any]:
        if known.message is not None:
            inner = filled(known.message)
            return st.lists(inner, max_size=2) if known.repeated else inner
        if known.kind is wire.FieldKind.ENUM:
            return st.sampled_from(sorted(known.values))
        return {
            wire.FieldKind.INT64: int64s,
            wire.FieldKind.UINT64: txn_ids,
            wire.FieldKind.INT32: st.integers(-(2**31), 2**31 - 1),
            wire.FieldKind.UINT32: st.integers(0, 2**32 - 1),
            wire.FieldKind.BYTES: blobs,
            wire.FieldKind.STRING: st.text(max_size=10),
        }[known.kind]

    return st.fixed_dictionaries(
        {f.name: value(f) for f in message.fields.values() if f.required},
        optional={f.name: value(f) for f in message.fields.values() if not f.required},
    )


def as_dict(message: Any) -> dict[str, Any]:
    """What a runtime's message holds, in the shape of `wire.decode`."""
    out: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.name == "requestContext":
            continue
        if field.type == field.TYPE_MESSAGE:
            out[field.name] = as_dict(value)
        else:
            out[field.name] = value.encode() if isinstance(value, str) else value
    return out


def plain(values: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in values.items():
        out[name] = (
            plain(value) if isinstance(value, dict) else bytes(value) if isinstance(value, memoryview) else value
        )
    return out


@given(filled(schema.REQUEST))
def test_requests_decode_as_the_protobuf_runtime_decodes_them(values: dict[str, Any]) -> None:
    data = PbRequest(**values).SerializeToString()
    assert plain(wire.decode(schema.REQUEST, memoryview(data))) == as_dict(PbRequest.FromString(data))


@given(filled(schema.RESPONSE))
def test_responses_decode_as_the_protobuf_runtime_decodes_them(values: dict[str, Any]) -> None:
    data = PbResponse(**values).SerializeToString()
    assert plain(wire.decode(schema.RESPONSE, memoryview(data))) == as_dict(PbResponse.FromString(data))


@pytest.mark.parametrize("bits", [7, 14, 21, 28, 35, 63])
def test_varints_have_the_right_bytes_on_both_sides_of_every_change_of_length(bits: int) -> None:
    for value in (0, (1 << bits) - 1, 1 << bits, (1 << bits) + 1, -1, -(1 << bits)):
        assert wire.varint(value) == wire_bytes.varint(value)


@st.composite
def frames_of_fields(draw: st.DrawFn) -> bytes:
    """Bytes that look like messages: known and unknown fields in any order, cut or spoiled now and then."""
    header = draw(st.sampled_from([b"\x0a\x06\x08\x03\x10\x02\x18\x01", b"\x0a\x06\x08\x03\x10\x01\x18\x01", b""]))
    numbers = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 100, 101, 104, 107, 200, 536870911])

    def field() -> bytes:
        number, kind = draw(numbers), draw(st.sampled_from([0, 0, 2, 2, 2, 1, 5, 3]))
        tag = wire.varint(number << 3 | kind)
        if kind == 0:
            return tag + wire.varint(draw(int64s))
        if kind == 2:
            inner = draw(st.binary(max_size=12)) if draw(st.booleans()) else b"\x08\x05\x10\x07\x1a\x00\x22\x00"
            return tag + wire.varint(len(inner)) + inner
        if kind == 3:
            return tag + b"\x08\x01" + wire.varint(number << 3 | 4)
        return tag + bytes(8 if kind == 1 else 4)

    data = header + b"".join(field() for _ in range(draw(st.integers(0, 5))))
    if draw(st.integers(0, 4)) == 0 and data:
        at = draw(st.integers(0, len(data) - 1))
        data = data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 4)) == 0 else data


@settings(max_examples=400)
@given(frames_of_fields() | st.binary(max_size=80))
def test_any_bytes_are_accepted_exactly_when_the_protobuf_runtime_accepts_them(data: bytes) -> None:
    expected: dict[str, Any] | None
    found: dict[str, Any] | None
    for kind, table in ((PbRequest, schema.REQUEST), (PbResponse, schema.RESPONSE)):
        try:
            message = kind.FromString(data)
            expected = as_dict(message) if message.IsInitialized() else None
        except (DecodeError, UnicodeDecodeError):
            expected = None
        try:
            found = plain(wire.decode(table, memoryview(data)))
        except ProtocolError:
            found = None
        if expected is not None or found is not None:
            assert found == expected


@settings(max_examples=400)
@given(frames_of_fields() | st.binary(max_size=120))
def test_arbitrary_bytes_raise_nothing_but_protocol_errors(data: bytes) -> None:
    for decode_any in (decode_request, decode_response):
        try:
            decode_any(memoryview(data))
        except ProtocolError:
            pass


@given(st.sampled_from(sorted(FRAMES)), st.data())
def test_spoiled_and_cut_vectors_raise_nothing_but_protocol_errors(name: str, data: st.DataObject) -> None:
    frame = bytearray(FRAMES[name][4:])
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(frame)))
    for piece in (frame, frame[:cut]):
        try:
            decode(name, memoryview(bytes(piece)))
        except ProtocolError:
            pass


@given(txn_ids, int64s, int64s, st.binary(max_size=40), blobs, st.booleans(), st.booleans(), st.integers(0, 200))
def test_adds_equal_the_runtimes_bytes_and_survive_a_round_trip(
    txn: int, ledger: int, entry: int, key: bytes, body: bytes, recovery: bool, deferred: bool, priority: int
) -> None:
    parts = encode_add_request(
        txn, ledger, entry, key, len(body), recovery=recovery, deferred_sync=deferred, priority=priority
    )
    frame = joined(parts, body)
    header: dict[str, Any] = {"version": 3, "operation": 2, "txnId": txn}
    add: dict[str, Any] = {"ledgerId": ledger, "entryId": entry, "masterKey": key, "body": body}
    if priority:
        header["priority"] = priority
    if deferred:
        add["writeFlags"] = 1
    if recovery:
        add["flag"] = 1
    assert frame[4:] == PbRequest(header=header, addRequest=add).SerializeToString()
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    expected = AddRequest(txn, ledger, entry, key, memoryview(body), recovery, deferred, priority)
    assert decode_request(body_of(frame)) == expected


@given(txn_ids, int64s, int64s, blobs, st.booleans())
def test_a_plain_adds_answer_is_known_without_decoding_its_ids(
    txn: int, ledger: int, entry: int, body: bytes, deferred: bool
) -> None:
    frame = joined(encode_add_request(txn, ledger, entry, KEY, len(body), deferred_sync=deferred), body)
    found = decode_add_and_answer(body_of(frame))
    if deferred or not all(0 <= number < 1 << 63 for number in (txn, ledger, entry)):
        assert found is None
    else:
        assert found == (encode_add_response(txn, Status.EOK, ledger, entry), KEY, body)


@given(txn_ids, int64s, int64s, blobs, st.data())
def test_a_damaged_add_is_plain_only_if_the_tables_read_the_same_from_it(
    txn: int, ledger: int, entry: int, body: bytes, data: st.DataObject
) -> None:
    whole = bytearray(joined(encode_add_request(txn, ledger, entry, KEY, len(body)), body)[4:])
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = memoryview(bytes(whole))[: data.draw(st.integers(len(whole) - 1, len(whole)))]
    found = decode_add_and_answer(cut)
    if found is not None:
        values: Any = wire.decode(schema.REQUEST, cut)
        header, add = values["header"], values["addRequest"]
        assert set(values) == {"header", "addRequest"}
        assert set(header) == {"version", "operation", "txnId"}
        assert set(add) == {"ledgerId", "entryId", "masterKey", "body"}
        answer = decode_response(memoryview(found[0])[4:])
        assert answer == AddResponse(header["txnId"], Status.EOK, add["ledgerId"], add["entryId"])
        assert found[1:] == (add["masterKey"], add["body"])
        assert len(found[0]) == 4 + int.from_bytes(found[0][:4], "big")


@given(txn_ids, int64s, int64s, maybe(blobs), maybe(int64s), maybe(int64s), st.sampled_from(list(Status)))
def test_read_responses_equal_the_runtimes_bytes_and_survive_a_round_trip(
    txn: int, ledger: int, entry: int, body: bytes | None, lac: int | None, stamp: int | None, status: Status
) -> None:
    length = None if body is None else len(body)
    parts = encode_read_response(txn, status, ledger, entry, length, max_lac=lac, lac_update_timestamp_ms=stamp)
    frame = joined(parts, body or b"")
    read: dict[str, Any] = {"status": int(status), "ledgerId": ledger, "entryId": entry}
    for name, value in (("body", body), ("maxLAC", lac), ("lacUpdateTimestamp", stamp)):
        if value is not None:
            read[name] = value
    header = {"version": 3, "operation": 1, "txnId": txn}
    assert frame[4:] == PbResponse(header=header, status=int(status), readResponse=read).SerializeToString()
    view = None if body is None else memoryview(body)
    assert decode_response(body_of(frame)) == ReadResponse(txn, status, ledger, entry, view, lac, stamp)


@given(txn_ids, int64s, int64s, st.sampled_from(list(Status)))
def test_add_responses_equal_the_runtimes_bytes_and_survive_a_round_trip(
    txn: int, ledger: int, entry: int, status: Status
) -> None:
    frame = encode_add_response(txn, status, ledger, entry)
    header = {"version": 3, "operation": 2, "txnId": txn}
    add = {"status": int(status), "ledgerId": ledger, "entryId": entry}
    assert frame[4:] == PbResponse(header=header, status=int(status), addResponse=add).SerializeToString()
    assert decode_response(body_of(frame)) == AddResponse(txn, status, ledger, entry)


@given(txn_ids, int64s, maybe(blobs), maybe(blobs), maybe(int64s), maybe(int64s), st.sampled_from(list(Status)))
def test_the_other_responses_survive_a_round_trip(
    txn: int, ledger: int, one: bytes | None, two: bytes | None, n: int | None, k: int | None, status: Status
) -> None:
    view = lambda b: None if b is None else memoryview(b)  # noqa: E731
    pairs: list[tuple[bytes, object]] = [
        (
            encode_read_lac_response(txn, status, ledger, one, two),
            ReadLacResponse(txn, status, ledger, view(one), view(two)),
        ),
        (encode_write_lac_response(txn, status, ledger), WriteLacResponse(txn, status, ledger)),
        (encode_force_ledger_response(txn, status, ledger), ForceLedgerResponse(txn, status, ledger)),
        (encode_bookie_info_response(txn, status, n, k), BookieInfoResponse(txn, status, n, k)),
        (
            encode_list_entries_response(txn, status, ledger, one),
            ListEntriesResponse(txn, status, ledger, view(one)),
        ),
        (encode_auth_response(txn, status, "x", one or b""), AuthResponse(txn, status, "x", one or b"")),
        (encode_error_response(txn, Operation.ADD, status), ErrorResponse(Operation.ADD, txn, status)),
    ]
    for frame, expected in pairs:
        assert decode_response(body_of(frame)) == expected


@given(filled(schema.ADD_REQUEST), st.randoms(use_true_random=False), blobs)
def test_fields_in_any_order_with_unknown_ones_between_mean_the_same(
    values: dict[str, Any], rng: Any, junk: bytes
) -> None:
    def pieces(message: wire.Message, given_values: dict[str, Any]) -> list[bytes]:
        out = []
        for number, known in message.fields.items():
            if known.name not in given_values:
                continue
            value = given_values[known.name]
            if isinstance(value, bytes):
                out.append(wire.varint(number << 3 | 2) + wire.varint(len(value)) + value)
            else:
                out.append(wire.varint(number << 3) + wire.varint(value))
        out.append(wire.varint(77 << 3 | 2) + wire.varint(len(junk)) + junk)
        rng.shuffle(out)
        return out

    add = b"".join(pieces(schema.ADD_REQUEST, values))
    header = b"".join(pieces(schema.HEADER, {"version": 3, "operation": 2, "txnId": 9}))
    parts = [
        wire.varint(101 << 3 | 2) + wire.varint(len(add)) + add,
        b"\x0a" + wire.varint(len(header)) + header,
        wire.varint(99 << 3 | 2) + wire.varint(len(junk)) + junk,
    ]
    rng.shuffle(parts)
    found = decode_request(memoryview(b"".join(parts)))
    assert found == AddRequest(
        9,
        values["ledgerId"],
        values["entryId"],
        values["masterKey"],
        memoryview(values["body"]),
        "flag" in values,
        bool(values.get("writeFlags", 0) & 1),
    )


# ------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("operation", [3, 4, 12])
def test_operations_without_a_message_are_bad_requests(operation: int) -> None:
    frame = memoryview(b"\x0a\x06\x08\x03\x10" + bytes([operation]) + b"\x18\x05")
    assert decode_request(frame) == UnsupportedRequest(Operation(operation), 5, Status.EBADREQ)


def test_an_operation_whose_message_is_missing_is_a_bad_request() -> None:
    frame = memoryview(b"\x0a\x06\x08\x03\x10\x02\x18\x05")
    assert decode_request(frame) == UnsupportedRequest(Operation.ADD, 5, Status.EBADREQ)


def test_another_protocol_version_is_named_as_such() -> None:
    frame = bytearray(FRAMES["READ entry7"][4:])
    frame[3] = 2
    assert decode_request(memoryview(frame)) == UnsupportedRequest(Operation.READ, 4, Status.EBADVERSION)


def test_an_unknown_operation_number_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="operation"):
        decode_request(memoryview(b"\x0a\x06\x08\x03\x10\x63\x18\x05"))


def test_an_outer_error_wins_over_the_inner_status() -> None:
    ok = FRAMES["ADD resp EOK"][4:]
    outer = ok.replace(b"\x10\x00\xaa", b"\x10\xf5\x03\xaa")
    inner = ok.replace(b"\x07\x08\x00", b"\x08\x08\xf8\x03")
    outer_status = decode_response(memoryview(outer)).status
    inner_status = decode_response(memoryview(inner)).status
    assert (outer_status, inner_status) == (Status.EIO, Status.EFENCED)


def test_a_decoded_body_is_a_view_of_the_frame() -> None:
    frame = bytearray(FRAMES["ADD pw secret CRC32"])
    request = decode_request(memoryview(frame)[4:])
    assert isinstance(request, AddRequest)
    frame[-1] ^= 1
    assert request.body[-1] == frame[-1]


def test_varints_that_never_end_and_groups_that_nest_without_end_are_refused() -> None:
    for data in (b"\xff" * 40, b"\x0b" * 200, b"\x0a\x06\x08\x03\x10\x02\x18\x01\xaa\x06\xff\xff\xff\xff\x7f"):
        with pytest.raises(ProtocolError):
            decode_request(memoryview(data))
