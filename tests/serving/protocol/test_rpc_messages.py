"""Messages of the gRPC service: what goes in comes out, also through their bytes; what they cannot say is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from google.protobuf.message import Message
from helpers.serving.values import ANSWERS, REQUESTS
from hypothesis import given
from hypothesis import strategies as st

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from dlspark.serving.protocol import distributedlog_pb2 as pb
from dlspark.serving.protocol.deliveries import encode_records, records_of
from dlspark.serving.protocol.frame_parts import MAX_PAYLOADS
from dlspark.serving.protocol.operations import (
    AcceptStreams,
    Answer,
    Applied,
    BeginEpoch,
    BulkReceipt,
    CreateStream,
    DeleteStream,
    Delivery,
    Done,
    EpochBegun,
    FindOwner,
    Handshake,
    Heartbeat,
    ListedProxy,
    ListProxies,
    MoveStream,
    OwnerFound,
    ProxyInfo,
    ProxyKind,
    ProxyList,
    ProxyStatus,
    ReadBatch,
    ReadForm,
    ReadFrom,
    Reason,
    Refusal,
    ReleaseStream,
    SetFencingToken,
    StatusCode,
    TakeStream,
    TruncateStream,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.protocol.rpc_answers import answer_from_pb, answer_to_pb, read_responses
from dlspark.serving.protocol.rpc_requests import (
    DEFAULT_READ_BYTES,
    MAX_HOSTS_TRIED,
    METHODS,
    SERVICE,
    request_from_pb,
    request_to_pb,
)
from metadata.foundation.errors import InvariantViolation
from storage_node.errors import ProtocolError

CALL_OF: dict[type, str] = {
    WriteReceipt: "Append",
    BulkReceipt: "Write",
    EpochBegun: "BeginEpoch",
    Done: "Truncate",
    OwnerFound: "GetOwner",
    ProxyList: "ListProxies",
    ProxyInfo: "Handshake",
    Delivery: "Read",
}


_ONE_OF_EACH = (
    Handshake(),
    WriteRecords("s", (b"x",)),
    BeginEpoch("s", "p"),
    SetFencingToken("s", b"t"),
    Heartbeat("s"),
    TruncateStream("s", DLSN(1, 0, 0)),
    CreateStream("s"),
    DeleteStream("s"),
    ReleaseStream("s"),
    MoveStream("s", "1;0;host:8000"),
    TakeStream("s", "1;0;host:8000"),
    FindOwner("s"),
    ListProxies(),
    AcceptStreams(enabled=True),
    ReadBatch("s", 5),
)


def travelled(message: Message) -> Message:
    """The same after its way over the wire."""
    return type(message).FromString(message.SerializeToString())


def said(request: object) -> object:
    """What of a request a message says: a call of Read is one reader, which waits as it likes."""
    if isinstance(request, ReadBatch):
        return replace(request, reader=0, wait_ms=10_000, max_bytes=request.max_bytes or DEFAULT_READ_BYTES)
    return request


@given(st.data())
@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_a_request_comes_out_as_it_went_in(kind: type, data: st.DataObject) -> None:
    request = data.draw(REQUESTS[kind])
    call, message = request_to_pb(request)
    assert type(message) is METHODS[call].request
    assert request_from_pb(call, travelled(message)) == said(request)
    if call == "Write":
        assert request_from_pb("Append", message) == request


def normal(answer: Answer) -> Answer:
    """What a status says: a text that is empty is one that is left out."""
    if isinstance(answer, Refusal):
        return replace(answer, location=answer.location or None, advice=answer.advice or None)
    if isinstance(answer, BulkReceipt):
        return BulkReceipt(tuple(normal(one) if isinstance(one, Refusal) else one for one in answer.results))
    return replace(answer, region=answer.region or None) if isinstance(answer, ProxyInfo) else answer


def sayable(answer: object) -> bool:
    """SUCCESS refuses nothing, and a receipt of no records is one receipt."""
    if isinstance(answer, BulkReceipt):
        return bool(answer.results) and all(map(sayable, answer.results))
    if isinstance(answer, Delivery):
        return answer.form is not ReadForm.RECORDS
    return not isinstance(answer, Refusal) or answer.code is not StatusCode.SUCCESS


@given(st.data())
@pytest.mark.parametrize("kind", CALL_OF, ids=lambda kind: kind.__name__)
def test_an_answer_comes_out_as_it_went_in(kind: type, data: st.DataObject) -> None:
    answer = data.draw(ANSWERS[kind].filter(sayable))
    message = answer_to_pb(CALL_OF[kind], answer, correlation=5)
    assert type(message) is METHODS[CALL_OF[kind]].response
    form = answer.form if isinstance(answer, Delivery) else ReadForm.RECORDS
    assert answer_from_pb(travelled(message), form=form) == normal(answer)
    assert message.status.code == pb.Status.SUCCESS
    if isinstance(message, pb.WriteResponse):
        assert message.correlation == 5


@given(st.data())
@pytest.mark.parametrize("call", METHODS)
def test_every_call_can_be_refused(call: str, data: st.DataObject) -> None:
    refusal = data.draw(ANSWERS[Refusal].filter(sayable))
    message = answer_to_pb(call, refusal, correlation=9)
    assert type(message) is METHODS[call].response
    assert answer_from_pb(travelled(message)) == normal(refusal)
    assert getattr(message, "correlation", 9) == 9


def test_records_that_were_read_are_messages_of_their_own() -> None:
    records = [
        LogRecord(100, b"one", DLSN(1, 5, 0), 7, 0, 6),
        LogRecord(101, b"two", DLSN(1, 6, 1), 8, 4, 7),
        LogRecord(102, b"three", DLSN(2, 0, 0), 1, 0, 8),
    ]
    parts = (encode_records(records[:2]), encode_records(records[2:]))
    delivery = Delivery(ReadForm.RECORDS, DLSN(2, 0, 1), parts, end_of_stream=True)
    message = answer_to_pb("Read", delivery)
    assert isinstance(message, pb.ReadResponse)
    assert [(one.payload, one.transaction_id, one.sequence_id) for one in message.records] == [
        (b"one", 100, 6),
        (b"two", 101, 7),
        (b"three", 102, 8),
    ]
    assert (message.records[1].position, message.records[1].flags, list(message.parts)) == (8, 4, [])
    back = answer_from_pb(travelled(message))
    assert isinstance(back, Delivery)
    assert (back, records_of(back)) == (delivery, records)


def test_every_call_has_its_messages() -> None:
    assert SERVICE == "dlspark.serving.v1.DistributedLog"
    assert {name for name, call in METHODS.items() if call.requests_stream} == {"Append"}
    assert {name for name, call in METHODS.items() if call.responses_stream} == {"Append", "Read"}
    assert METHODS["Create"].request is pb.StreamRequest
    for name, call in METHODS.items():
        assert call.response().DESCRIPTOR.fields_by_name["status"].message_type.name == "Status", name
    assert {request_to_pb(request)[0] for request in _ONE_OF_EACH} | {"Append"} == METHODS.keys()


def test_an_answer_of_another_call_is_a_bug() -> None:
    with pytest.raises(InvariantViolation, match="GetOwner was answered with Done"):
        answer_to_pb("GetOwner", Done())


@pytest.mark.parametrize(
    ("call", "message", "complaint"),
    [
        ("Write", pb.WriteRequest(payloads=[b""], transaction_ids=[1, 2]), "1 payloads came with 2 transaction ids"),
        ("Append", pb.WriteRequest(payloads=[b""] * (MAX_PAYLOADS + 1)), "16385 payloads came in one request"),
        ("Truncate", pb.TruncateRequest(stream="s"), "without the DLSN"),
        ("Read", pb.ReadRequest(form=7), "the form 7, which is unknown"),  # type: ignore[arg-type]
        ("Read", pb.ReadRequest(at=7), "begins at 7, which is neither"),  # type: ignore[arg-type]
        (
            "GetOwner",
            pb.StreamRequest(context=pb.RequestContext(tried_hosts=["x"] * (MAX_HOSTS_TRIED + 1))),
            "256 hosts were tried, at most 255",
        ),
    ],
)
def test_what_a_request_cannot_say_is_named(call: str, message: Message, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        request_from_pb(call, message)


_REFUSED = pb.Status(code=pb.Status.FOUND, applied=pb.Status.NOT_APPLIED)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (pb.DoneResponse(), "the code 0, which is unknown"),
        (pb.DoneResponse(status=pb.Status(code=499)), "the code 499, which is unknown"),  # type: ignore[arg-type]
        (pb.DoneResponse(status=pb.Status(code=pb.Status.FOUND)), "says by 0 whether it was applied"),
        (pb.HandshakeResponse(status=pb.Status(code=pb.Status.SUCCESS)), "the status 0, which is unknown"),
        (pb.ReadResponse(status=pb.Status(code=pb.Status.SUCCESS)), "does not say where to go on"),
        (
            pb.WriteResponse(
                status=pb.Status(code=pb.Status.SUCCESS),
                results=[pb.RecordResult(refusal=pb.Status(code=pb.Status.SUCCESS))],
            ),
            "neither a position nor a refusal",
        ),
        (
            pb.ReadResponse(
                status=pb.Status(code=pb.Status.SUCCESS),
                next=pb.Dlsn(),
                records=[pb.Record(dlsn=pb.Dlsn(entry=9)), pb.Record(dlsn=pb.Dlsn(entry=1))],
            ),
            "records that were read cannot be so",
        ),
    ],
)
def test_what_an_answer_cannot_say_is_named(message: Message, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        answer_from_pb(message)  # type: ignore[arg-type]


def test_what_is_left_out_has_its_documented_meaning() -> None:
    assert request_from_pb("Read", pb.ReadRequest(stream="s")) == ReadBatch("s", ReadFrom.OLDEST)
    assert request_from_pb("Write", pb.WriteRequest(stream="s", payloads=[b"x"])) == WriteRecords("s", (b"x",))
    assert request_from_pb("GetOwner", pb.StreamRequest(stream="s")) == FindOwner("s")
    zero = pb.WriteRequest(stream="s", payloads=[b"x"], fencing_token=b"", expected_sequence_id=0)
    assert request_from_pb("Write", zero) == WriteRecords("s", (b"x",), expected_position=0, fencing_token=b"")


def test_the_codes_and_outcomes_of_the_file_are_those_of_the_vocabulary() -> None:
    assert dict(pb.Status.Code.items()) == {"UNSPECIFIED": 0, **{code.name: int(code) for code in StatusCode}}
    assert len(pb.Status.Applied.items()) == len(Applied) + 1
    assert _REFUSED.applied != pb.Status.NOT_SAID
    assert set(ANSWERS) == set(get_args(Answer))


# ---------------------------------------------------------------------- where the owner speaks gRPC

ADDRESSES = {"1;0;host:8000": "host:9000"}


class Names:
    """Where one proxy speaks gRPC."""

    def grpc_address(self, location: str) -> str:
        return ADDRESSES.get(location, "")

    def location(self, name: str) -> str:
        return name


NAMES = Names()


def test_who_names_a_proxy_says_where_it_speaks_grpc() -> None:
    found = Refusal(StatusCode.FOUND, "owned elsewhere", "1;0;host:8000")
    refused = answer_to_pb("Write", found, names=NAMES)
    assert refused.status.grpc_address == "host:9000"  # type: ignore[attr-defined]
    one = answer_to_pb("Append", BulkReceipt((DLSN(1, 0, 0), found)), names=NAMES)
    assert one.results[1].refusal.grpc_address == "host:9000"  # type: ignore[attr-defined]
    owner = answer_to_pb("GetOwner", OwnerFound("1;0;host:8000"), names=NAMES)
    assert owner.grpc_address == "host:9000"  # type: ignore[attr-defined]
    shaken = answer_to_pb(
        "Handshake",
        ProxyInfo("1;0;host:8000", ProxyStatus.WRITE_AND_ACCEPT, {"a": "1;0;host:8000", "b": "1;1;other:8000"}),
        names=NAMES,
    )
    assert dict(shaken.grpc_addresses) == ADDRESSES  # type: ignore[attr-defined]
    assert answer_from_pb(refused) == found  # type: ignore[arg-type]


@pytest.mark.parametrize("location", [None, "1;0;host:8001", ""])
def test_a_proxy_that_is_not_known_to_speak_grpc_has_no_address(location: str | None) -> None:
    found = Refusal(StatusCode.FOUND, "owned elsewhere", location)
    assert answer_to_pb("Write", found, names=NAMES).status.grpc_address == ""  # type: ignore[attr-defined]
    assert answer_to_pb("Write", found).status.grpc_address == ""  # type: ignore[attr-defined]


# ---------------------------------------------------------------------- why


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_travels_whatever_the_error_is_called(reason: Reason) -> None:
    refusal = Refusal(StatusCode.UNEXPECTED, "it failed", error="AnErrorOfTomorrow", reason=reason)
    message = answer_to_pb("Write", refusal)
    assert answer_from_pb(travelled(message)) == refusal  # type: ignore[arg-type]


def test_what_an_older_proxy_says_by_a_name_is_a_reason_and_a_reason_of_a_newer_one_is_none() -> None:
    older = pb.Status(code=pb.Status.LOCKING_EXCEPTION, applied=pb.Status.NOT_APPLIED, error="ProducerFencedError")
    refusal = answer_from_pb(pb.WriteResponse(status=older))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.PRODUCER_FENCED
    newer = pb.Status(code=pb.Status.UNEXPECTED, applied=pb.Status.NOT_APPLIED, reason=99)  # type: ignore[arg-type]
    refusal = answer_from_pb(pb.WriteResponse(status=newer))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.NONE


def test_a_proxy_of_a_kind_that_is_not_known_is_left_out_of_the_list() -> None:
    message = pb.ListProxiesResponse(status=pb.Status(code=pb.Status.SUCCESS))
    message.proxies.add(kind=pb.Proxy.WRITE, location="1;0;a:1", grpc_address="a:2")
    message.proxies.add(kind=7, location="1;0;b:1")  # type: ignore[arg-type]
    assert answer_from_pb(message) == ProxyList((ListedProxy(ProxyKind.WRITE, "1;0;a:1", "a:2"),))


# ---------------------------------------------------------------------- how long answers get

CLIENTS_TAKE = 4 * 1024 * 1024
"""The longest message that a client of gRPC takes unless it is set otherwise."""


def test_the_fates_of_many_records_are_short_enough_for_any_client() -> None:
    refusals = tuple(Refusal(StatusCode.BK_TRANSMIT_ERROR, f"{n}{'w' * 600}", advice="a" * 600) for n in range(4_000))
    message = answer_to_pb("Write", BulkReceipt(refusals))
    assert isinstance(message, pb.WriteResponse)
    assert len(message.results) == len(refusals)
    assert message.results[5].refusal.message.startswith("5w")
    assert message.ByteSize() < CLIENTS_TAKE
    few = answer_to_pb("Write", BulkReceipt(refusals[:2]))
    assert answer_from_pb(few) == BulkReceipt(refusals[:2])  # type: ignore[arg-type]


def test_a_handshake_is_short_enough_for_any_client() -> None:
    owned = {f"{n:05}-" + "s" * 240: "1;0;host:8000" for n in range(20_000)}
    message = answer_to_pb("Handshake", ProxyInfo("1;0;host:8000", ProxyStatus.WRITE_AND_ACCEPT, owned), names=NAMES)
    assert isinstance(message, pb.HandshakeResponse)
    assert message.ByteSize() < CLIENTS_TAKE
    assert 0 < len(message.ownerships) < len(owned)
    assert dict(message.grpc_addresses) == ADDRESSES


@pytest.mark.parametrize(("count", "payload"), [(9_000, b""), (200, bytes(20_000)), (3, bytes(1_040_364))])
def test_what_is_read_comes_in_responses_that_are_short_enough_for_any_client(count: int, payload: bytes) -> None:
    most = 2**62
    records = [LogRecord(most, payload, DLSN(most, n, n), n + 1, 4, n - most) for n in range(count)]
    parts = (encode_records(records[:-1]), encode_records(records[-1:]))
    answers = list(read_responses(Delivery(ReadForm.RECORDS, DLSN(most + 1, 0, 0), parts, end_of_stream=True)))
    assert max(answer.ByteSize() for answer in answers) < CLIENTS_TAKE
    read = [answer_from_pb(travelled(answer)) for answer in answers]  # type: ignore[arg-type]
    found = [records_of(one) for one in read if isinstance(one, Delivery)]
    assert [record for some in found for record in some] == records
    starts = [some[0].dlsn for some in found[1:]] + [DLSN(most + 1, 0, 0)]
    assert [(one.next, one.end_of_stream) for one in read if isinstance(one, Delivery)] == [
        (start, number == len(starts)) for number, start in enumerate(starts, 1)
    ]


def test_what_has_no_records_is_one_response() -> None:
    for form in ReadForm:
        delivery = Delivery(form, DLSN(1, 2, 3))
        assert [answer_from_pb(one, form=form) for one in read_responses(delivery)] == [delivery]  # type: ignore[arg-type]
