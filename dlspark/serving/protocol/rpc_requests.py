"""The gRPC service's calls; requests as messages of distributedlog.proto, and back (docs/reference/serving.md#grpc). No
I/O, no grpc.

`METHODS` says for each call which messages it takes and gives, as the compiled distributedlog.proto has it: a binding
registers its handlers by it, so that no second list of them is kept.

Fault model: a message comes from a peer. Protocol Buffers has read it, so its fields have their types; what they say is
checked here. An enum value that is unknown and numbers that do not fit each other are ProtocolError, which a binding
answers with INVALID_ARGUMENT; nothing was done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from dlspark.core.codec.dlsn import DLSN
from dlspark.serving.protocol import distributedlog_pb2 as pb
from dlspark.serving.protocol.frame_parts import MAX_PAYLOADS
from dlspark.serving.protocol.operations import (
    NO_CONTEXT,
    AcceptStreams,
    BeginEpoch,
    CreateStream,
    DeleteStream,
    FindOwner,
    Handshake,
    Heartbeat,
    ListProxies,
    MoveStream,
    ProducerStamp,
    ReadBatch,
    ReadForm,
    ReadFrom,
    ReleaseStream,
    Request,
    RequestContext,
    SetFencingToken,
    TakeStream,
    TruncateStream,
    WriteRecords,
)
from storage_node.errors import ProtocolError

_DESCRIPTOR: Final = pb.DESCRIPTOR.services_by_name["DistributedLog"]

SERVICE: Final[str] = _DESCRIPTOR.full_name
"""What a client calls: /dlspark.serving.v1.DistributedLog/Write."""


@dataclass(frozen=True, slots=True)
class RpcMethod:
    """One call of the service."""

    name: str
    request: type[Message]
    response: type[Message]
    requests_stream: bool
    responses_stream: bool


METHODS: Final = {
    method.name: RpcMethod(
        method.name,
        GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
        method.client_streaming,
        method.server_streaming,
    )
    for method in _DESCRIPTOR.methods
}
"""By the name of the call."""

DEFAULT_READ_BYTES: Final = 1024 * 1024
"""`max_bytes` of a Read whose client leaves it to the proxy."""
MAX_HOSTS_TRIED: Final = 255
"""As many as a frame can carry."""

_FORMS: Final = {
    pb.ReadRequest.RECORDS: ReadForm.RECORDS,
    pb.ReadRequest.ENTRIES: ReadForm.ENTRIES,
    pb.ReadRequest.ARROW: ReadForm.ARROW,
}
_FORMS_IN_PB: Final = {form: number for number, form in _FORMS.items()}
_STARTS: Final = {
    pb.ReadRequest.NOT_GIVEN: ReadFrom.OLDEST,
    pb.ReadRequest.OLDEST: ReadFrom.OLDEST,
    pb.ReadRequest.LATEST: ReadFrom.LATEST,
}
_STARTS_IN_PB: Final = {ReadFrom.OLDEST: pb.ReadRequest.OLDEST, ReadFrom.LATEST: pb.ReadRequest.LATEST}

_Alone: TypeAlias = type[CreateStream] | type[DeleteStream] | type[ReleaseStream] | type[FindOwner]


def dlsn_from_pb(message: pb.Dlsn) -> DLSN:
    """Return the position that a message says."""
    return DLSN(message.segment, message.entry, message.slot)


def dlsn_to_pb(dlsn: DLSN) -> pb.Dlsn:
    """Return the message that says a position."""
    return pb.Dlsn(segment=dlsn.lssn, entry=dlsn.entry_id, slot=dlsn.slot_id)


def _context(message: pb.RequestContext) -> RequestContext:
    if len(message.tried_hosts) > MAX_HOSTS_TRIED:
        raise ProtocolError(f"{len(message.tried_hosts)} hosts were tried, at most {MAX_HOSTS_TRIED} are accepted")
    checksum = message.checksum if message.HasField("checksum") else None
    return RequestContext(tuple(message.tried_hosts), checksum, message.is_record_set, message.timeout_ms)


def _context_in_pb(context: RequestContext) -> pb.RequestContext | None:
    if context == NO_CONTEXT:
        return None
    return pb.RequestContext(
        tried_hosts=context.tried_hosts,
        checksum=context.checksum,
        is_record_set=context.is_record_set,
        timeout_ms=context.timeout_ms,
    )


# ---------------------------------------------------------------------- from messages


def _write(message: pb.WriteRequest) -> WriteRecords:
    payloads = tuple(message.payloads)
    if len(payloads) > MAX_PAYLOADS:
        raise ProtocolError(f"{len(payloads)} payloads came in one request, at most {MAX_PAYLOADS} are accepted")
    txids = tuple(message.transaction_ids)
    if txids and len(txids) != len(payloads):
        raise ProtocolError(f"{len(payloads)} payloads came with {len(txids)} transaction ids")
    stamp: ProducerStamp | None = None
    if message.HasField("stamp"):
        stamp = ProducerStamp(message.stamp.name, message.stamp.epoch, message.stamp.sequence)
    position: int | DLSN | None = None
    if message.HasField("expected_last"):
        position = dlsn_from_pb(message.expected_last)
    elif message.HasField("expected_sequence_id"):
        position = message.expected_sequence_id
    return WriteRecords(
        message.stream,
        payloads,
        _context(message.context) if message.HasField("context") else NO_CONTEXT,
        stamp,
        position,
        message.fencing_token if message.HasField("fencing_token") else None,
        message.atomic,
        txids or None,  # a message does not tell an empty list from none
    )


def _begin_epoch(message: pb.BeginEpochRequest) -> BeginEpoch:
    epoch = message.epoch if message.HasField("epoch") else None
    return BeginEpoch(message.stream, message.producer, epoch, _context(message.context))


def _set_token(message: pb.SetFencingTokenRequest) -> SetFencingToken:
    expected = message.expected if message.HasField("expected") else None
    return SetFencingToken(message.stream, message.token, expected, _context(message.context))


def _heartbeat(message: pb.HeartbeatRequest) -> Heartbeat:
    return Heartbeat(message.stream, message.to_readers, _context(message.context))


def _truncate(message: pb.TruncateRequest) -> TruncateStream:
    if not message.HasField("dlsn"):
        raise ProtocolError("a truncation came without the DLSN to truncate to")
    return TruncateStream(message.stream, dlsn_from_pb(message.dlsn), _context(message.context))


def _alone(kind: _Alone) -> Callable[[pb.StreamRequest], Request]:
    return lambda message: kind(message.stream, _context(message.context))


def _move(message: pb.MoveRequest) -> MoveStream:
    return MoveStream(message.stream, message.target, _context(message.context))


def _take(message: pb.TakeRequest) -> TakeStream:
    return TakeStream(message.stream, message.source, _context(message.context))


def _accept(message: pb.SetAcceptNewStreamRequest) -> AcceptStreams:
    return AcceptStreams(message.enabled)


def _handshake(message: pb.HandshakeRequest) -> Handshake:
    regex = message.stream_regex if message.HasField("stream_regex") else None
    # A field that is not set is false, and most clients want ownerships: so the message says it the other way round.
    return Handshake(regex, not message.without_ownerships)


def _list(_: pb.ListProxiesRequest) -> ListProxies:
    return ListProxies()


def _read(message: pb.ReadRequest) -> ReadBatch:
    form = _FORMS.get(message.form)
    if form is None:
        raise ProtocolError(f"a read asks for the form {message.form}, which is unknown")
    start: DLSN | int | ReadFrom | None
    if message.HasField("dlsn"):
        start = dlsn_from_pb(message.dlsn)
    elif message.HasField("transaction_id"):
        start = message.transaction_id
    else:
        start = _STARTS.get(message.at)
        if start is None:
            raise ProtocolError(f"a read begins at {message.at}, which is neither OLDEST nor LATEST")
    return ReadBatch(
        message.stream,
        start,
        form=form,
        max_bytes=message.max_bytes or DEFAULT_READ_BYTES,
        context=_context(message.context),
    )


_FROM_PB: Final[dict[str, Callable[..., Request]]] = {
    "Handshake": _handshake,
    "Write": _write,
    "Append": _write,
    "BeginEpoch": _begin_epoch,
    "SetFencingToken": _set_token,
    "Heartbeat": _heartbeat,
    "Truncate": _truncate,
    "Create": _alone(CreateStream),
    "Delete": _alone(DeleteStream),
    "Release": _alone(ReleaseStream),
    "Move": _move,
    "Take": _take,
    "GetOwner": _alone(FindOwner),
    "SetAcceptNewStream": _accept,
    "ListProxies": _list,
    "Read": _read,
}
"""Message to request, by the name of the call."""


def request_from_pb(method: str, message: Message) -> Request:
    """Return the request of a call. A Write's `correlation` is the binding's: it is not part of it. Raises
    ProtocolError."""
    return _FROM_PB[method](message)


# ---------------------------------------------------------------------- to messages


def _write_in_pb(request: WriteRecords) -> pb.WriteRequest:
    message = pb.WriteRequest(
        stream=request.stream,
        payloads=[bytes(payload) for payload in request.payloads],
        context=_context_in_pb(request.context),
        fencing_token=request.fencing_token,
        atomic=request.atomic,
        transaction_ids=request.transaction_ids,
    )
    if request.stamp is not None:
        stamp = request.stamp
        message.stamp.CopyFrom(pb.ProducerStamp(name=stamp.name, epoch=stamp.epoch, sequence=stamp.sequence))
    if isinstance(request.expected_position, DLSN):
        message.expected_last.CopyFrom(dlsn_to_pb(request.expected_position))
    elif request.expected_position is not None:
        message.expected_sequence_id = request.expected_position
    return message


def _read_in_pb(request: ReadBatch) -> pb.ReadRequest:
    message = pb.ReadRequest(
        stream=request.stream,
        form=_FORMS_IN_PB[request.form],
        max_bytes=request.max_bytes,
        context=_context_in_pb(request.context),
    )
    if isinstance(request.start, DLSN):
        message.dlsn.CopyFrom(dlsn_to_pb(request.start))
    elif isinstance(request.start, ReadFrom):
        message.at = _STARTS_IN_PB[request.start]
    else:
        message.transaction_id = request.start
    return message


def _on_stream_in_pb(request: BeginEpoch | SetFencingToken | Heartbeat | TruncateStream) -> tuple[str, Message]:
    stream, context = request.stream, _context_in_pb(request.context)
    if isinstance(request, BeginEpoch):
        begin = pb.BeginEpochRequest(stream=stream, producer=request.producer, epoch=request.epoch, context=context)
        return "BeginEpoch", begin
    if isinstance(request, SetFencingToken):
        token, expected = request.token, request.expected
        return "SetFencingToken", pb.SetFencingTokenRequest(
            stream=stream, token=token, expected=expected, context=context
        )
    if isinstance(request, Heartbeat):
        return "Heartbeat", pb.HeartbeatRequest(stream=stream, to_readers=request.to_readers, context=context)
    return "Truncate", pb.TruncateRequest(stream=stream, dlsn=dlsn_to_pb(request.dlsn), context=context)


_NAMES_ALONE: Final[dict[type, str]] = {
    CreateStream: "Create",
    DeleteStream: "Delete",
    ReleaseStream: "Release",
    FindOwner: "GetOwner",
}


def request_to_pb(request: Request) -> tuple[str, Message]:
    """Return the name of the call, and its message; writes are Write, and Append takes the same message. A `reader` and
    `wait_ms` are not said: a call is one reader."""
    match request:
        case WriteRecords():
            return "Write", _write_in_pb(request)
        case ReadBatch():
            return "Read", _read_in_pb(request)
        case BeginEpoch() | SetFencingToken() | Heartbeat() | TruncateStream():
            return _on_stream_in_pb(request)
        case MoveStream():
            context = _context_in_pb(request.context)
            return "Move", pb.MoveRequest(stream=request.stream, target=request.target, context=context)
        case TakeStream():
            context = _context_in_pb(request.context)
            return "Take", pb.TakeRequest(stream=request.stream, source=request.source, context=context)
        case Handshake():
            return "Handshake", pb.HandshakeRequest(
                stream_regex=request.stream_regex, without_ownerships=not request.ownerships
            )
        case AcceptStreams():
            return "SetAcceptNewStream", pb.SetAcceptNewStreamRequest(enabled=request.enabled)
        case ListProxies():
            return "ListProxies", pb.ListProxiesRequest()
    name = _NAMES_ALONE[type(request)]
    return name, pb.StreamRequest(stream=request.stream, context=_context_in_pb(request.context))
