"""Writes as frames, and the beginning that every request on a stream shares (docs/reference/serving.md#request-frames).

    header, u32 checksum, u32 timeout in ms, text stream, and the hosts tried where a flag says so

A write without conditions is most of what a proxy gets: it is written and read by few structures
(`decode_quick_write`). No I/O; payloads travel uncopied. Whatever bytes a decoder is given, only
ProtocolError goes out.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import accumulate, pairwise
from struct import Struct, pack, unpack_from
from struct import error as StructError
from typing import Final

from dlspark.core.codec.dlsn import DLSN
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
    sizes_of,
    utf8,
)
from dlspark.serving.protocol.operations import NO_CONTEXT, ProducerStamp, RequestContext, WriteRecords
from metadata.foundation.errors import CallerError
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
    LIST_PROXIES = 15


CHECKSUM, RECORD_SET, HOSTS = 1, 2, 4
"""Flags of every request on a stream."""
ON_STREAM: Final = CHECKSUM | RECORD_SET | HOSTS
STAMP, SEQUENCE_ID, LAST_DLSN, TOKEN, ATOMIC, TRANSACTION_IDS = 8, 16, 32, 64, 128, 256
"""The flags that WriteRecords has besides."""
WRITE_FLAGS: Final = ON_STREAM | STAMP | SEQUENCE_ID | LAST_DLSN | TOKEN | ATOMIC | TRANSACTION_IDS

_OF_CONTEXT: Final = CHECKSUM | RECORD_SET
_QUICK: Final = _OF_CONTEXT | STAMP | ATOMIC
"""What `decode_quick_write` reads."""
_CONTEXT: Final = Struct(">II")
_STAMP: Final = Struct(">qq")
PLAIN_HEAD: Final = Struct(HEADER.format + "IIH")
_STREAM_AT: Final = PLAIN_HEAD.size
ONE_PAYLOAD: Final = Struct(">II")
"""The number of payloads, and the length of the first."""
_U32_BYTES: Final = 4
_QUICK_HEAD: Final = Struct(FRAME_HEADER.format + "IIH")
_TEXT_LENGTH: Final = Struct(">H")
_WRITE: Final = int(RequestKind.WRITE_RECORDS)


# ---------------------------------------------------------------------- what requests on a stream have alike


def begun(stream: str, context: RequestContext) -> tuple[Head, int]:
    """Return the beginning of a request on a stream, and its flags. Raises CallerError for what does not fit."""
    head = Head()
    # Always there, so that what follows lies at the same bytes in every request: a flag says whether it counts.
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


def taken_apart(frame: memoryview, flags: int) -> tuple[Reader, str, RequestContext]:
    """Return what stands behind the beginning, the stream and the context of a request that arrived."""
    reader = Reader(frame, HEADER.size)
    checksum, timeout_ms = reader.fields(_CONTEXT, "the context")
    stream = reader.text("the stream")
    hosts: tuple[str, ...] = ()
    if flags & HOSTS:
        hosts = tuple([reader.text("a host tried") for _ in range(reader.u8("the number of hosts tried"))])
    elif not timeout_ms and not flags & _QUICK:
        return reader, stream, NO_CONTEXT
    said = checksum if flags & CHECKSUM else None
    return reader, stream, RequestContext(hosts, said, bool(flags & RECORD_SET), timeout_ms)


# ---------------------------------------------------------------------- writes


def encode_write(correlation: int, request: WriteRecords) -> list[Buffer]:
    """Return the frame of a write. Raises as `request_frames.encode_request` does."""
    context = request.context
    asks = request.expected_position is not None or request.fencing_token is not None
    if asks or request.transaction_ids is not None or context.tried_hosts or len(request.payloads) > MAX_PAYLOADS:
        return _encode_any_write(correlation, request)
    try:
        return _encode_plain_write(correlation, request, context)
    except StructError:
        return _encode_any_write(correlation, request)  # says what does not fit


def _encode_plain_write(correlation: int, request: WriteRecords, context: RequestContext) -> list[Buffer]:
    """Return the frame of a write without conditions, which is what a proxy gets most: few calls for all fields."""
    stream, payloads, stamp = utf8(request.stream, "the stream"), request.payloads, request.stamp
    flags = (RECORD_SET if context.is_record_set else 0) | (ATOMIC if request.atomic else 0)
    producer = b""
    if context.checksum is not None:
        flags |= CHECKSUM
    if stamp is not None:
        flags |= STAMP
        name = utf8(stamp.name, "the producer")
        producer = _TEXT_LENGTH.pack(len(name)) + name + _STAMP.pack(stamp.epoch, stamp.sequence)
    sizes = sizes_of(payloads)
    lengths = pack(f">{len(sizes) + 1}I", len(sizes), *sizes)
    length = _QUICK_HEAD.size - LENGTH_BYTES + len(stream) + len(producer) + len(lengths) + sum(sizes)
    check_length(length)
    opened = _QUICK_HEAD.pack(
        length, FRAME_VERSION, _WRITE, flags, correlation, context.checksum or 0, context.timeout_ms, len(stream)
    )
    return [b"".join((opened, stream, producer, lengths)), *payloads]


def _encode_any_write(correlation: int, request: WriteRecords) -> list[Buffer]:
    head, flags = begun(request.stream, request.context)
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
    sizes = sizes_of(request.payloads)
    total = sum(sizes)
    check_length(total)
    head.lengths(sizes, MAX_PAYLOADS, "payloads")
    if request.transaction_ids is not None:
        flags |= TRANSACTION_IDS
        if len(request.transaction_ids) != len(sizes):
            raise CallerError(f"{len(sizes)} payloads came with {len(request.transaction_ids)} transaction ids")
        head.numbers(request.transaction_ids, "the transaction ids")
    return head.framed(_WRITE, flags, correlation, request.payloads, total)


def decode_quick_write(frame: memoryview, *, copied: bool) -> tuple[int, WriteRecords] | None:
    """Return the number and the write of a frame that asks for nothing but to be stored, perhaps whole, perhaps as a
    producer's request: nearly every frame is one. None for any other frame, and for one that is ill-formed:
    `decode_request` takes it apart.

    `copied`: the payloads are bytes of their own, and no views of the frame.
    """
    end = len(frame)
    if end < _STREAM_AT:
        return None
    version, kind, flags, number, checksum, timeout_ms, length = PLAIN_HEAD.unpack_from(frame)
    at = _STREAM_AT + length
    if version != FRAME_VERSION or kind != _WRITE or flags & ~_QUICK:
        return None
    try:
        stream = str(frame[_STREAM_AT:at], "utf-8")
        stamp = None
        if flags & STAMP:
            name_at = at + _TEXT_LENGTH.size
            at = name_at + _TEXT_LENGTH.unpack_from(frame, at)[0]
            stamp = ProducerStamp(str(frame[name_at:at], "utf-8"), *_STAMP.unpack_from(frame, at))
            at += _STAMP.size
        count, size = ONE_PAYLOAD.unpack_from(frame, at)
        at += ONE_PAYLOAD.size
        if count == 1:
            if at + size != end:
                return None
            payload = frame[at:]
            payloads: tuple[Buffer, ...] = (bytes(payload) if copied else payload,)
        else:
            several = _several(frame, at - _U32_BYTES, count, copied=copied)
            if several is None:
                return None
            payloads = several
    except (StructError, UnicodeDecodeError):
        return None
    if flags & _OF_CONTEXT or timeout_ms:
        said = checksum if flags & CHECKSUM else None
        context = RequestContext((), said, bool(flags & RECORD_SET), timeout_ms)
    else:
        context = NO_CONTEXT
    if stamp is None and not flags & ATOMIC:
        return number, WriteRecords(stream, payloads, context)
    return number, WriteRecords(stream, payloads, context, stamp, atomic=bool(flags & ATOMIC))


def _several(frame: memoryview, at: int, count: int, *, copied: bool) -> tuple[Buffer, ...] | None:
    """Return `count` payloads, whose lengths are at `at` and which fill the rest of the frame behind them; None where
    they do not. Raises StructError."""
    begin = at + _U32_BYTES * count
    if not 0 < count <= MAX_PAYLOADS or begin > len(frame):
        return None
    ends = list(accumulate(unpack_from(f">{count}I", frame, at), initial=begin))
    if ends[-1] != len(frame):
        return None
    views = [frame[begin:end] for begin, end in pairwise(ends)]
    return tuple(map(bytes, views)) if copied else tuple(views)


def decode_write(frame: memoryview, flags: int) -> WriteRecords:
    """Return the write of a frame with these flags. Raises ProtocolError."""
    reader, stream, context = taken_apart(frame, flags)
    stamp: ProducerStamp | None = None
    position: int | DLSN | None = None
    if flags & STAMP:
        stamp = ProducerStamp(reader.text("the producer"), *reader.fields(_STAMP, "the stamp"))
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
