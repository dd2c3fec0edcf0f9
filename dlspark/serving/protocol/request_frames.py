"""Requests as frames, and back (docs/reference/serving.md#request-frames). No I/O; payloads travel uncopied.

Every request but Handshake and AcceptStreams is one on a stream and begins alike, behind the frame's header:

    u32 checksum, u32 timeout in ms, u16 length and the stream's name, and the hosts tried, where a flag says so

A write of one payload without conditions, which is most of what a proxy gets, is read and written by one structure.
Whatever bytes a decoder is given, only ProtocolError goes out.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Final

from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import CallerError
from dlspark.serving.protocol.frame_parts import (
    FRAME_HEADER,
    FRAME_VERSION,
    HEADER,
    MAX_HOSTS,
    MAX_PAYLOADS,
    Head,
    Reader,
    broken,
    check_length,
    size_of,
    utf8,
)
from dlspark.serving.protocol.operations import (
    NO_CONTEXT,
    AcceptStreams,
    BeginEpoch,
    CreateStream,
    DeleteStream,
    FindOwner,
    Handshake,
    Heartbeat,
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
from storage_node.protocol.frames import LENGTH_BYTES, Buffer


class RequestKind(IntEnum):
    """The second byte of a request's frame."""

    HANDSHAKE = 1
    WRITE_RECORDS = 2
    BEGIN_EPOCH = 3
    SET_FENCING_TOKEN = 4
    HEARTBEAT = 5
    TRUNCATE_STREAM = 6
    CREATE_STREAM = 7
    DELETE_STREAM = 8
    RELEASE_STREAM = 9
    MOVE_STREAM = 10
    TAKE_STREAM = 11
    FIND_OWNER = 12
    ACCEPT_STREAMS = 13
    READ_BATCH = 14


CHECKSUM, RECORD_SET, HOSTS = 1, 2, 4
"""Flags of every request on a stream."""
ON_STREAM: Final = CHECKSUM | RECORD_SET | HOSTS
STAMP, SEQUENCE_ID, LAST_DLSN, TOKEN, ATOMIC, TRANSACTION_IDS = 8, 16, 32, 64, 128, 256
"""Flags of WriteRecords."""
EPOCH, EXPECTED, TO_READERS = 8, 8, 8
"""The flag of BeginEpoch, of SetFencingToken, of Heartbeat."""
REGEX, OWNERSHIPS, ENABLED = 1, 2, 1
"""Flags of Handshake, and the one of AcceptStreams."""
START_DLSN, START_TXID, START_NAMED = 1, 2, 3
"""How a ReadBatch says where it begins."""

_QUICK: Final = CHECKSUM | RECORD_SET
_ON_STREAM: Final = Struct(">IIH")
_STREAM_AT: Final = HEADER.size + _ON_STREAM.size
_ONE: Final = Struct(">II")
_QUICK_HEAD: Final = Struct(FRAME_HEADER.format + "IIH")
_LENGTHS: Final = _QUICK_HEAD.size - LENGTH_BYTES + _ONE.size
_WRITE: Final = int(RequestKind.WRITE_RECORDS)

_READ_FORMS: Final = {int(form): form for form in ReadForm}
_READ_FROMS: Final = {int(start): start for start in ReadFrom}


# ---------------------------------------------------------------------- what requests on a stream have alike


def _open(stream: str, context: RequestContext) -> tuple[Head, int]:
    """The beginning of a request on a stream, and its flags."""
    head = Head()
    head.u32(context.checksum or 0, "the checksum")
    head.u32(context.timeout_ms, "the timeout in ms")
    head.text(stream, "the stream")
    flags = RECORD_SET if context.is_record_set else 0
    if context.checksum is not None:
        flags |= CHECKSUM
    if context.tried_hosts:
        flags |= HOSTS
        if len(context.tried_hosts) > MAX_HOSTS:
            raise CallerError(f"{len(context.tried_hosts)} hosts tried do not fit in a request, {MAX_HOSTS} do")
        head.u8(len(context.tried_hosts), "the number of hosts tried")
        for host in context.tried_hosts:
            head.text(host, "a host tried")
    return head, flags


def _opened(frame: memoryview, flags: int) -> tuple[Reader, str, RequestContext]:
    reader = Reader(frame, HEADER.size)
    checksum, timeout_ms = reader.u32("the checksum"), reader.u32("the timeout")
    stream = reader.text("the stream")
    hosts: tuple[str, ...] = ()
    if flags & HOSTS:
        hosts = tuple([reader.text("a host tried") for _ in range(reader.u8("the number of hosts tried"))])
    elif not timeout_ms and not flags & _QUICK:
        return reader, stream, NO_CONTEXT
    said = checksum if flags & CHECKSUM else None
    return reader, stream, RequestContext(hosts, said, bool(flags & RECORD_SET), timeout_ms)


# ---------------------------------------------------------------------- writes


def _encode_write(correlation: int, request: WriteRecords) -> list[Buffer]:
    context = request.context
    if len(request.payloads) != 1 or request.is_whole or request.transaction_ids is not None or context.tried_hosts:
        return _encode_any_write(correlation, request)
    stream, payload, checksum = utf8(request.stream, "the stream"), request.payloads[0], context.checksum
    flags = RECORD_SET if context.is_record_set else 0
    if checksum is None:
        checksum = 0
    else:
        flags |= CHECKSUM
    size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    length = _LENGTHS + len(stream) + size
    check_length(length)
    if len(stream) > 0xFFFF or not 0 <= checksum <= 0xFFFFFFFF or not 0 <= context.timeout_ms <= 0xFFFFFFFF:
        return _encode_any_write(correlation, request)  # says which of them does not fit
    opened = _QUICK_HEAD.pack(
        length, FRAME_VERSION, _WRITE, flags, correlation, checksum, context.timeout_ms, len(stream)
    )
    return [opened + stream + _ONE.pack(1, size), payload]


def _encode_any_write(correlation: int, request: WriteRecords) -> list[Buffer]:
    head, flags = _open(request.stream, request.context)
    stamp, position = request.stamp, request.expected_position
    if stamp is not None:
        flags |= STAMP
        head.text(stamp.name, "the producer")
        head.i64(stamp.epoch, "the epoch")
        head.i64(stamp.sequence, "the sequence number")
    if isinstance(position, DLSN):
        flags |= LAST_DLSN
        head.dlsn(position, "the expected position")
    elif position is not None:
        flags |= SEQUENCE_ID
        head.i64(position, "the expected position")
    if request.fencing_token is not None:
        flags |= TOKEN
        head.token(request.fencing_token, "the fencing token")
    if request.atomic:
        flags |= ATOMIC
    sizes = [size_of(payload) for payload in request.payloads]
    check_length(sum(sizes))
    head.lengths(sizes, MAX_PAYLOADS, "payloads")
    if request.transaction_ids is not None:
        flags |= TRANSACTION_IDS
        if len(request.transaction_ids) != len(sizes):
            raise CallerError(f"{len(sizes)} payloads came with {len(request.transaction_ids)} transaction ids")
        head.numbers(request.transaction_ids, "the transaction ids")
    return head.framed(_WRITE, flags, correlation, request.payloads)


def _decode_write(frame: memoryview, flags: int) -> WriteRecords:
    end = len(frame)
    if not flags & ~_QUICK and end >= _STREAM_AT:
        checksum, timeout_ms, length = _ON_STREAM.unpack_from(frame, HEADER.size)
        lengths_at = _STREAM_AT + length
        payload_at = lengths_at + 8
        if payload_at <= end and _ONE.unpack_from(frame, lengths_at) == (1, end - payload_at):
            try:
                stream = str(frame[_STREAM_AT:lengths_at], "utf-8")
            except UnicodeDecodeError:
                return _decode_any_write(frame, flags)  # says so
            if flags or timeout_ms:
                said = checksum if flags & CHECKSUM else None
                context = RequestContext((), said, bool(flags & RECORD_SET), timeout_ms)
            else:
                context = NO_CONTEXT
            return WriteRecords(stream, (frame[payload_at:],), context)
    return _decode_any_write(frame, flags)


def _decode_any_write(frame: memoryview, flags: int) -> WriteRecords:
    reader, stream, context = _opened(frame, flags)
    stamp: ProducerStamp | None = None
    position: int | DLSN | None = None
    if flags & STAMP:
        stamp = ProducerStamp(reader.text("the producer"), reader.i64("the epoch"), reader.i64("the sequence number"))
    if flags & LAST_DLSN:
        if flags & SEQUENCE_ID:
            broken("it expects a sequence id and a DLSN at the same time")
        position = reader.dlsn("the expected position")
    elif flags & SEQUENCE_ID:
        position = reader.i64("the expected position")
    token = reader.token("the fencing token") if flags & TOKEN else None
    lengths = reader.lengths(reader.count(MAX_PAYLOADS, 4, "payloads"), "the payloads' lengths")
    txids = reader.numbers(len(lengths), "the transaction ids") if flags & TRANSACTION_IDS else None
    payloads = reader.blobs(lengths, "the payloads")
    return WriteRecords(stream, payloads, context, stamp, position, token, bool(flags & ATOMIC), txids)


# ---------------------------------------------------------------------- the others


def _encode_begin_epoch(correlation: int, request: BeginEpoch) -> list[Buffer]:
    head, flags = _open(request.stream, request.context)
    head.text(request.producer, "the producer")
    if request.epoch is not None:
        flags |= EPOCH
        head.i64(request.epoch, "the epoch")
    return head.framed(RequestKind.BEGIN_EPOCH, flags, correlation)


def _decode_begin_epoch(frame: memoryview, flags: int) -> BeginEpoch:
    reader, stream, context = _opened(frame, flags)
    producer = reader.text("the producer")
    epoch = reader.i64("the epoch") if flags & EPOCH else None
    reader.finish()
    return BeginEpoch(stream, producer, epoch, context)


def _encode_set_token(correlation: int, request: SetFencingToken) -> list[Buffer]:
    head, flags = _open(request.stream, request.context)
    head.token(request.token, "the fencing token")
    if request.expected is not None:
        flags |= EXPECTED
        head.token(request.expected, "the expected fencing token")
    return head.framed(RequestKind.SET_FENCING_TOKEN, flags, correlation)


def _decode_set_token(frame: memoryview, flags: int) -> SetFencingToken:
    reader, stream, context = _opened(frame, flags)
    token = reader.token("the fencing token")
    expected = reader.token("the expected fencing token") if flags & EXPECTED else None
    reader.finish()
    return SetFencingToken(stream, token, expected, context)


def _encode_heartbeat(correlation: int, request: Heartbeat) -> list[Buffer]:
    head, flags = _open(request.stream, request.context)
    return head.framed(RequestKind.HEARTBEAT, flags | TO_READERS if request.to_readers else flags, correlation)


def _decode_heartbeat(frame: memoryview, flags: int) -> Heartbeat:
    reader, stream, context = _opened(frame, flags)
    reader.finish()
    return Heartbeat(stream, bool(flags & TO_READERS), context)


def _encode_truncate(correlation: int, request: TruncateStream) -> list[Buffer]:
    head, flags = _open(request.stream, request.context)
    head.dlsn(request.dlsn, "the DLSN")
    return head.framed(RequestKind.TRUNCATE_STREAM, flags, correlation)


def _decode_truncate(frame: memoryview, flags: int) -> TruncateStream:
    reader, stream, context = _opened(frame, flags)
    dlsn = reader.dlsn("the DLSN")
    reader.finish()
    return TruncateStream(stream, dlsn, context)


def _encode_move(correlation: int, request: MoveStream) -> list[Buffer]:
    head, flags = _open(request.stream, request.context)
    head.text(request.target, "the target")
    return head.framed(RequestKind.MOVE_STREAM, flags, correlation)


def _decode_move(frame: memoryview, flags: int) -> MoveStream:
    reader, stream, context = _opened(frame, flags)
    target = reader.text("the target")
    reader.finish()
    return MoveStream(stream, target, context)


def _encode_take(correlation: int, request: TakeStream) -> list[Buffer]:
    head, flags = _open(request.stream, request.context)
    head.text(request.source, "the source")
    return head.framed(RequestKind.TAKE_STREAM, flags, correlation)


def _decode_take(frame: memoryview, flags: int) -> TakeStream:
    reader, stream, context = _opened(frame, flags)
    source = reader.text("the source")
    reader.finish()
    return TakeStream(stream, source, context)


_ALONE: Final = {
    CreateStream: RequestKind.CREATE_STREAM,
    DeleteStream: RequestKind.DELETE_STREAM,
    ReleaseStream: RequestKind.RELEASE_STREAM,
    FindOwner: RequestKind.FIND_OWNER,
}
"""Requests of a stream and a context, and nothing else."""


def _encode_alone(correlation: int, request: CreateStream | DeleteStream | ReleaseStream | FindOwner) -> list[Buffer]:
    head, flags = _open(request.stream, request.context)
    return head.framed(_ALONE[type(request)], flags, correlation)


def _decode_alone(
    kind: type[CreateStream] | type[DeleteStream] | type[ReleaseStream] | type[FindOwner],
) -> Callable[[memoryview, int], Request]:
    def decode(frame: memoryview, flags: int) -> Request:
        reader, stream, context = _opened(frame, flags)
        reader.finish()
        return kind(stream, context)

    return decode


def _encode_handshake(correlation: int, request: Handshake) -> list[Buffer]:
    head, flags = Head(), OWNERSHIPS if request.ownerships else 0
    if request.stream_regex is not None:
        flags |= REGEX
        head.text(request.stream_regex, "the regular expression")
    return head.framed(RequestKind.HANDSHAKE, flags, correlation)


def _decode_handshake(frame: memoryview, flags: int) -> Handshake:
    reader = Reader(frame, HEADER.size)
    regex = reader.text("the regular expression") if flags & REGEX else None
    reader.finish()
    return Handshake(regex, bool(flags & OWNERSHIPS))


def _encode_accept(correlation: int, request: AcceptStreams) -> list[Buffer]:
    return Head().framed(RequestKind.ACCEPT_STREAMS, ENABLED if request.enabled else 0, correlation)


def _decode_accept(frame: memoryview, flags: int) -> AcceptStreams:
    Reader(frame, HEADER.size).finish()
    return AcceptStreams(bool(flags & ENABLED))


def _encode_read(correlation: int, request: ReadBatch) -> list[Buffer]:
    head, flags = _open(request.stream, request.context)
    head.u32(request.reader, "the reader's number")
    head.u8(request.form, "the form")
    head.u32(request.max_bytes, "max_bytes")
    head.u32(request.wait_ms, "wait_ms")
    start = request.start
    if isinstance(start, DLSN):
        head.u8(START_DLSN, "the kind of start")
        head.dlsn(start, "the start")
    elif isinstance(start, ReadFrom):
        head.u8(START_NAMED, "the kind of start")
        head.u8(start, "the start")
    else:
        head.u8(START_TXID, "the kind of start")
        head.i64(start, "the start")
    return head.framed(RequestKind.READ_BATCH, flags, correlation)


def _decode_read(frame: memoryview, flags: int) -> ReadBatch:
    reader, stream, context = _opened(frame, flags)
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
    WriteRecords: _encode_write,
    BeginEpoch: _encode_begin_epoch,
    SetFencingToken: _encode_set_token,
    Heartbeat: _encode_heartbeat,
    TruncateStream: _encode_truncate,
    MoveStream: _encode_move,
    TakeStream: _encode_take,
    AcceptStreams: _encode_accept,
    ReadBatch: _encode_read,
    **dict.fromkeys(_ALONE, _encode_alone),
}
"""Correlation number and request to a frame, for each class of requests."""

DECODERS: Final[dict[int, tuple[int, Callable[[memoryview, int], Request]]]] = {
    RequestKind.HANDSHAKE: (REGEX | OWNERSHIPS, _decode_handshake),
    RequestKind.WRITE_RECORDS: (
        ON_STREAM | STAMP | SEQUENCE_ID | LAST_DLSN | TOKEN | ATOMIC | TRANSACTION_IDS,
        _decode_write,
    ),
    RequestKind.BEGIN_EPOCH: (ON_STREAM | EPOCH, _decode_begin_epoch),
    RequestKind.SET_FENCING_TOKEN: (ON_STREAM | EXPECTED, _decode_set_token),
    RequestKind.HEARTBEAT: (ON_STREAM | TO_READERS, _decode_heartbeat),
    RequestKind.TRUNCATE_STREAM: (ON_STREAM, _decode_truncate),
    RequestKind.MOVE_STREAM: (ON_STREAM, _decode_move),
    RequestKind.TAKE_STREAM: (ON_STREAM, _decode_take),
    RequestKind.ACCEPT_STREAMS: (ENABLED, _decode_accept),
    RequestKind.READ_BATCH: (ON_STREAM, _decode_read),
    **{kind: (ON_STREAM, _decode_alone(of)) for of, kind in _ALONE.items()},
}
"""The flags that a kind of request may have, and what reads its frame and flags."""
