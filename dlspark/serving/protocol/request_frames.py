"""Requests as frames, and back (docs/reference/serving.md#request-frames). No I/O; payloads travel uncopied.

Whatever bytes a decoder is given, only ProtocolError goes out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from dlspark.core.codec.dlsn import DLSN
from dlspark.serving.protocol.frame_parts import HEADER, Head, Reader, broken, decode_frame
from dlspark.serving.protocol.operations import (
    AcceptStreams,
    BeginEpoch,
    CreateStream,
    DeleteStream,
    FindOwner,
    Handshake,
    Heartbeat,
    ListProxies,
    MoveStream,
    ReadBatch,
    ReadForm,
    ReadFrom,
    ReleaseStream,
    Request,
    SetFencingToken,
    TakeStream,
    TruncateStream,
    WriteRecords,
)
from dlspark.serving.protocol.write_frames import (
    ON_STREAM,
    WRITE_FLAGS,
    RequestKind,
    begun,
    decode_quick_write,
    decode_write,
    encode_write,
    taken_apart,
)
from storage_node.protocol.frames import Buffer

EPOCH, EXPECTED, TO_READERS = 8, 8, 8
"""The flag of BeginEpoch, of SetFencingToken, of Heartbeat."""
REGEX, OWNERSHIPS, COUNT_LOGS, CLIENT_REGION, BEARER_TOKEN, ENABLED = 1, 2, 4, 8, 16, 1
"""Flags of Handshake, and the one of AcceptStreams."""
START_DLSN, START_TXID, START_NAMED = 1, 2, 3
"""How a ReadBatch says where it begins."""

_READ_FORMS: Final = {int(form): form for form in ReadForm}
_READ_FROMS: Final = {int(start): start for start in ReadFrom}

_Alone: TypeAlias = type[CreateStream] | type[DeleteStream] | type[ReleaseStream] | type[FindOwner]


def _encode_begin_epoch(correlation: int, request: BeginEpoch) -> list[Buffer]:
    head, flags = begun(request.stream, request.context)
    head.text(request.producer, "the producer")
    if request.epoch is not None:
        flags |= EPOCH
        head.i64(request.epoch, "the epoch")
    return head.framed(RequestKind.BEGIN_EPOCH, flags, correlation)


def _decode_begin_epoch(frame: memoryview, flags: int) -> BeginEpoch:
    reader, stream, context = taken_apart(frame, flags)
    producer = reader.text("the producer")
    epoch = reader.i64("the epoch") if flags & EPOCH else None
    reader.finish()
    return BeginEpoch(stream, producer, epoch, context)


def _encode_set_token(correlation: int, request: SetFencingToken) -> list[Buffer]:
    head, flags = begun(request.stream, request.context)
    head.token(request.token, "the fencing token")
    if request.expected is not None:
        flags |= EXPECTED
        head.token(request.expected, "the expected fencing token")
    return head.framed(RequestKind.SET_FENCING_TOKEN, flags, correlation)


def _decode_set_token(frame: memoryview, flags: int) -> SetFencingToken:
    reader, stream, context = taken_apart(frame, flags)
    token = reader.token("the fencing token")
    expected = reader.token("the expected fencing token") if flags & EXPECTED else None
    reader.finish()
    return SetFencingToken(stream, token, expected, context)


def _encode_heartbeat(correlation: int, request: Heartbeat) -> list[Buffer]:
    head, flags = begun(request.stream, request.context)
    return head.framed(RequestKind.HEARTBEAT, flags | TO_READERS if request.to_readers else flags, correlation)


def _decode_heartbeat(frame: memoryview, flags: int) -> Heartbeat:
    reader, stream, context = taken_apart(frame, flags)
    reader.finish()
    return Heartbeat(stream, bool(flags & TO_READERS), context)


def _encode_truncate(correlation: int, request: TruncateStream) -> list[Buffer]:
    head, flags = begun(request.stream, request.context)
    head.dlsn(request.dlsn, "the DLSN")
    return head.framed(RequestKind.TRUNCATE_STREAM, flags, correlation)


def _decode_truncate(frame: memoryview, flags: int) -> TruncateStream:
    reader, stream, context = taken_apart(frame, flags)
    dlsn = reader.dlsn("the DLSN")
    reader.finish()
    return TruncateStream(stream, dlsn, context)


def _encode_move(correlation: int, request: MoveStream) -> list[Buffer]:
    head, flags = begun(request.stream, request.context)
    head.text(request.target, "the target")
    return head.framed(RequestKind.MOVE_STREAM, flags, correlation)


def _decode_move(frame: memoryview, flags: int) -> MoveStream:
    reader, stream, context = taken_apart(frame, flags)
    target = reader.text("the target")
    reader.finish()
    return MoveStream(stream, target, context)


def _encode_take(correlation: int, request: TakeStream) -> list[Buffer]:
    head, flags = begun(request.stream, request.context)
    head.text(request.source, "the source")
    return head.framed(RequestKind.TAKE_STREAM, flags, correlation)


def _decode_take(frame: memoryview, flags: int) -> TakeStream:
    reader, stream, context = taken_apart(frame, flags)
    source = reader.text("the source")
    reader.finish()
    return TakeStream(stream, source, context)


_ALONE: Final[dict[_Alone, RequestKind]] = {
    CreateStream: RequestKind.CREATE_STREAM,
    DeleteStream: RequestKind.DELETE_STREAM,
    ReleaseStream: RequestKind.RELEASE_STREAM,
    FindOwner: RequestKind.FIND_OWNER,
}
"""Requests of a stream and a context, and nothing else."""


def _encode_alone(correlation: int, request: CreateStream | DeleteStream | ReleaseStream | FindOwner) -> list[Buffer]:
    head, flags = begun(request.stream, request.context)
    return head.framed(_ALONE[type(request)], flags, correlation)


def _decode_alone(kind: _Alone) -> Callable[[memoryview, int], Request]:
    def decode(frame: memoryview, flags: int) -> Request:
        reader, stream, context = taken_apart(frame, flags)
        reader.finish()
        return kind(stream, context)

    return decode


def _encode_handshake(correlation: int, request: Handshake) -> list[Buffer]:
    head, flags = Head(), OWNERSHIPS if request.ownerships else 0
    if request.stream_regex is not None:
        flags |= REGEX
        head.text(request.stream_regex, "the regular expression")
    if request.count_logs:
        flags |= COUNT_LOGS
    if request.region is not None:
        flags |= CLIENT_REGION
        head.text(request.region, "the region")
    if request.token is not None:
        flags |= BEARER_TOKEN
        head.token(request.token, "the bearer token")
    return head.framed(RequestKind.HANDSHAKE, flags, correlation)


def _decode_handshake(frame: memoryview, flags: int) -> Handshake:
    reader = Reader(frame, HEADER.size)
    regex = reader.text("the regular expression") if flags & REGEX else None
    region = reader.text("the region") if flags & CLIENT_REGION else None
    token = reader.token("the bearer token") if flags & BEARER_TOKEN else None
    reader.finish()
    return Handshake(regex, bool(flags & OWNERSHIPS), bool(flags & COUNT_LOGS), region, token)


def _encode_accept(correlation: int, request: AcceptStreams) -> list[Buffer]:
    return Head().framed(RequestKind.ACCEPT_STREAMS, ENABLED if request.enabled else 0, correlation)


def _decode_accept(frame: memoryview, flags: int) -> AcceptStreams:
    Reader(frame, HEADER.size).finish()
    return AcceptStreams(bool(flags & ENABLED))


def _encode_list(correlation: int, _: ListProxies) -> list[Buffer]:
    return Head().framed(RequestKind.LIST_PROXIES, 0, correlation)


def _decode_list(frame: memoryview, _flags: int) -> ListProxies:
    Reader(frame, HEADER.size).finish()
    return ListProxies()


def _encode_read(correlation: int, request: ReadBatch) -> list[Buffer]:
    head, flags = begun(request.stream, request.context)
    head.u32(request.reader, "the reader's number")
    head.u8(request.form, "the form")
    head.u32(request.max_bytes, "max_bytes")
    head.u32(request.wait_ms, "wait_ms")
    start = request.start
    if isinstance(start, DLSN):
        head.u8(START_DLSN, "the kind of start")
        head.dlsn(start, "the start")
    elif isinstance(start, ReadFrom):  # before the transaction id: it is an int as well
        head.u8(START_NAMED, "the kind of start")
        head.u8(start, "the start")
    else:
        head.u8(START_TXID, "the kind of start")
        head.i64(start, "the start")
    return head.framed(RequestKind.READ_BATCH, flags, correlation)


def _decode_read(frame: memoryview, flags: int) -> ReadBatch:
    reader, stream, context = taken_apart(frame, flags)
    number, form_read = reader.u32("the reader's number"), reader.u8("the form")
    form = _READ_FORMS.get(form_read)
    if form is None:
        broken(f"it asks for the form {form_read}, which is unknown")
    max_bytes, wait_ms = reader.u32("max_bytes"), reader.u32("wait_ms")
    kind = reader.u8("the kind of start")
    start: DLSN | int | ReadFrom | None
    if kind == START_DLSN:
        start = reader.dlsn("the start")
    elif kind == START_TXID:
        start = reader.i64("the start")
    elif kind == START_NAMED:
        named = reader.u8("the start")
        start = _READ_FROMS.get(named)
        if start is None:
            broken(f"it begins at {named}, which is neither OLDEST nor LATEST")
    else:
        broken(f"it says by {kind} where it begins, which is unknown")
    reader.finish()
    return ReadBatch(stream, start, number, form, max_bytes, wait_ms, context)


ENCODERS: Final[dict[type, Callable[..., list[Buffer]]]] = {
    Handshake: _encode_handshake,
    WriteRecords: encode_write,
    BeginEpoch: _encode_begin_epoch,
    SetFencingToken: _encode_set_token,
    Heartbeat: _encode_heartbeat,
    TruncateStream: _encode_truncate,
    MoveStream: _encode_move,
    TakeStream: _encode_take,
    AcceptStreams: _encode_accept,
    ListProxies: _encode_list,
    ReadBatch: _encode_read,
    **dict.fromkeys(_ALONE, _encode_alone),
}
"""Correlation number and request to a frame, for each class of requests."""

DECODERS: Final[dict[int, tuple[int, Callable[[memoryview, int], Request]]]] = {
    RequestKind.HANDSHAKE: (REGEX | OWNERSHIPS | COUNT_LOGS | CLIENT_REGION | BEARER_TOKEN, _decode_handshake),
    RequestKind.WRITE_RECORDS: (WRITE_FLAGS, decode_write),
    RequestKind.BEGIN_EPOCH: (ON_STREAM | EPOCH, _decode_begin_epoch),
    RequestKind.SET_FENCING_TOKEN: (ON_STREAM | EXPECTED, _decode_set_token),
    RequestKind.HEARTBEAT: (ON_STREAM | TO_READERS, _decode_heartbeat),
    RequestKind.TRUNCATE_STREAM: (ON_STREAM, _decode_truncate),
    RequestKind.MOVE_STREAM: (ON_STREAM, _decode_move),
    RequestKind.TAKE_STREAM: (ON_STREAM, _decode_take),
    RequestKind.ACCEPT_STREAMS: (ENABLED, _decode_accept),
    RequestKind.LIST_PROXIES: (0, _decode_list),
    RequestKind.READ_BATCH: (ON_STREAM, _decode_read),
    **{kind: (ON_STREAM, _decode_alone(of)) for of, kind in _ALONE.items()},
}
"""The flags that a kind of request may have, and what reads its frame and flags."""


# ---------------------------------------------------------------------- any of them


def encode_request(correlation: int, request: Request) -> list[Buffer]:
    """Return the frame of a request, its length first. `correlation` is from 0 to 2^64 - 1.

    Raises CallerError for a field that does not fit, RecordTooLongError for a frame that would be too long.
    """
    return ENCODERS[type(request)](correlation, request)


def decode_request(frame: memoryview, *, copied: bool = False) -> tuple[int, Request]:
    """Return the correlation number and the request of a frame, without its length. `copied`: no payload is a view of
    `frame`. Raises ProtocolError and nothing else."""
    quick = decode_quick_write(frame, copied=copied)
    if quick is not None:
        return quick
    return decode_frame(memoryview(bytes(frame)) if copied else frame, DECODERS, "a request")
