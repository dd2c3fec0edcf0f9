"""Answers as frames, and back (docs/reference/serving.md#answer-frames). No I/O; what was read travels uncopied.

A BulkReceipt names each refusal once, however many records have it: most often one reason holds for all of them. Where
the reasons are many and long, their texts are cut rather than the receipt lost: it says of other records that they are
stored. Whatever bytes a decoder is given, only ProtocolError goes out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import IntEnum
from itertools import groupby, islice
from struct import Struct
from typing import Final

from dlspark.core.codec.dlsn import DLSN
from dlspark.serving.protocol.frame_parts import (
    FRAME_HEADER,
    FRAME_VERSION,
    HEADER,
    MAX_PARTS,
    MAX_PAYLOADS,
    Head,
    Reader,
    broken,
    check_length,
    decode_frame,
    sizes_of,
)
from dlspark.serving.protocol.operations import (
    NAME_OF_REASON,
    REASON_OF_NAME,
    Answer,
    Applied,
    BulkReceipt,
    Delivery,
    Done,
    EpochBegun,
    ListedProxy,
    OwnerFound,
    ProxyInfo,
    ProxyKind,
    ProxyList,
    ProxyStatus,
    ReadForm,
    Reason,
    Refusal,
    StatusCode,
    WriteReceipt,
)
from metadata.foundation.errors import CallerError
from storage_node.protocol.frames import Buffer


class AnswerKind(IntEnum):
    """The second byte of an answer's frame."""

    REFUSAL = 128
    WRITE_RECEIPT = 129
    BULK_RECEIPT = 130
    EPOCH_BEGUN = 131
    DONE = 132
    OWNER_FOUND = 133
    PROXY_INFO = 134
    DELIVERY = 135
    PROXY_LIST = 136


DLSN_KNOWN, REPEATED = 1, 2
"""Flags of WriteReceipt; Done has the first."""
REGION, LOGS_READ, END_OF_STREAM = 1, 2, 1
"""The flags of ProxyInfo, and the one of Delivery."""
LOCATION, ERROR, ACTUAL_NUMBER, ACTUAL_TEXT, ADVICE = 1, 2, 4, 8, 16
"""What a refusal says besides its code and message."""
STORED, REFUSED = 0, 1
"""The fate of a record in a BulkReceipt."""

MAX_TEXTS_BYTES: Final = 1024 * 1024
"""Refusals of a BulkReceipt that take more are cut to SHORT_MESSAGE characters each, without advice."""
SHORT_MESSAGE: Final = 64
MAX_PROXIES: Final = 20_000
"""In a ProxyList."""
MAX_OWNERSHIPS: Final = 100_000
MAX_OWNERSHIPS_BYTES: Final = 4 * 1024 * 1024
"""A ProxyInfo lists as many ownerships as fit in these: they are hints, and a client learns the others as it asks."""

_RECEIPT: Final = Struct(">qqqI")
_FRAMED_RECEIPT: Final = Struct(FRAME_HEADER.format + "qqqI")
_RECEIPT_BYTES: Final = HEADER.size + _RECEIPT.size
_WRITE_RECEIPT: Final = int(AnswerKind.WRITE_RECEIPT)
_NO_DLSN: Final = (0, 0, 0)
_STORED: Final = Struct(">Bqqq")
_REFUSED: Final = Struct(">BI")

_CODES: Final = {int(code): code for code in StatusCode}
_OUTCOMES: Final = {int(applied): applied for applied in Applied}
_STATUSES: Final = {int(status): status for status in ProxyStatus}
_FORMS: Final = {int(form): form for form in ReadForm}
_KINDS: Final = {int(kind): kind for kind in ProxyKind}


# ---------------------------------------------------------------------- refusals


def _name_in_frames(refusal: Refusal) -> str:
    """Return the name of a refusal's error; that of its reason, where the other side would not know the reason by it.
    Frames say reasons by names, which sides of any age understand."""
    error = refusal.error
    return error if REASON_OF_NAME.get(error, Reason.NONE) is refusal.reason else NAME_OF_REASON[refusal.reason]


def _put_refusal(head: Head, refusal: Refusal) -> None:
    actual, error = refusal.actual, _name_in_frames(refusal)
    said = (
        (LOCATION if refusal.location is not None else 0)
        | (ERROR if error else 0)
        | (ACTUAL_NUMBER if isinstance(actual, int) else ACTUAL_TEXT if actual is not None else 0)
        | (ADVICE if refusal.advice is not None else 0)
    )
    head.u16(refusal.code, "the status code")
    head.u8(refusal.applied, "the outcome")
    head.u8(said, "what the refusal says")
    head.text(refusal.message, "the message")
    if refusal.location is not None:
        head.text(refusal.location, "the location")
    if error:
        head.text(error, "the name of the error")
    if isinstance(actual, int):
        head.i64(actual, "the actual value")
    elif actual is not None:
        head.text(actual, "the actual value")
    if refusal.advice is not None:
        head.text(refusal.advice, "the advice")


def _refusal(reader: Reader) -> Refusal:
    code_read, applied_read = reader.u16("the status code"), reader.u8("the outcome")
    code, applied = _CODES.get(code_read), _OUTCOMES.get(applied_read)
    if code is None:
        broken(f"the status code {code_read} is unknown")
    if applied is None:
        broken(f"the outcome {applied_read} is unknown")
    said = reader.u8("what the refusal says")
    if said > 0x1F or (said & ACTUAL_NUMBER and said & ACTUAL_TEXT):
        broken(f"a refusal has the flags {said:#x}, which cannot be")
    message = reader.text("the message")
    location = reader.text("the location") if said & LOCATION else None
    error = reader.text("the name of the error") if said & ERROR else ""
    actual: str | int | None = None
    if said & ACTUAL_NUMBER:
        actual = reader.i64("the actual value")
    elif said & ACTUAL_TEXT:
        actual = reader.text("the actual value")
    advice = reader.text("the advice") if said & ADVICE else None
    return Refusal(code, message, location, applied, error, actual, advice)


def _encode_refusal(correlation: int, answer: Refusal) -> list[Buffer]:
    head = Head()
    _put_refusal(head, answer)
    return head.framed(AnswerKind.REFUSAL, 0, correlation)


def _decode_refusal(frame: memoryview, _flags: int) -> Refusal:
    reader = Reader(frame, HEADER.size)
    refusal = _refusal(reader)
    reader.finish()
    return refusal


# ---------------------------------------------------------------------- receipts


def _encode_receipt(correlation: int, answer: WriteReceipt) -> list[Buffer]:
    flags = REPEATED if answer.repeated else 0
    dlsn: tuple[int, int, int] = _NO_DLSN
    if answer.dlsn is not None:
        flags |= DLSN_KNOWN
        dlsn = answer.dlsn
    records = answer.records
    if not 0 <= records <= 0xFFFFFFFF:
        raise CallerError(f"the number of records is {records}, which does not fit in 4 bytes")
    return [
        _FRAMED_RECEIPT.pack(_RECEIPT_BYTES, FRAME_VERSION, _WRITE_RECEIPT, flags, correlation, *dlsn, records),
    ]


def encode_receipts(correlations: Sequence[int], positions: Sequence[DLSN]) -> bytes:
    """Return the frames of receipts of one record each, one behind the other."""
    pack = _FRAMED_RECEIPT.pack
    return b"".join(
        [
            pack(_RECEIPT_BYTES, FRAME_VERSION, _WRITE_RECEIPT, DLSN_KNOWN, correlation, *dlsn, 1)
            for correlation, dlsn in zip(correlations, positions, strict=True)
        ]
    )


def _decode_receipt(frame: memoryview, flags: int) -> WriteReceipt:
    if len(frame) != _RECEIPT_BYTES:
        broken(f"a receipt has {len(frame)} bytes, {_RECEIPT_BYTES} are due")
    lssn, entry_id, slot_id, records = _RECEIPT.unpack_from(frame, HEADER.size)
    dlsn = DLSN(lssn, entry_id, slot_id) if flags & DLSN_KNOWN else None
    return WriteReceipt(dlsn, records, bool(flags & REPEATED))


def _encode_bulk(correlation: int, answer: BulkReceipt) -> list[Buffer]:
    # Each refusal once, in the order in which records have them; records name it by its index.
    refusals = list(dict.fromkeys(result for result in answer.results if isinstance(result, Refusal)))
    texts = sum(len(one.message) + len(one.advice or "") for one in refusals)
    cut = {one: shortened(one) if texts > MAX_TEXTS_BYTES else one for one in refusals}
    indices = {one: index for index, one in enumerate(dict.fromkeys(cut.values()))}
    head = Head()
    head.u32(len(indices), "the number of refusals")
    for refusal in indices:
        _put_refusal(head, refusal)
    head.u32(len(answer.results), "the number of results")
    # Records of one fate in a row are packed by one call; mostly they are all of them.
    for _, group in groupby(answer.results, type):
        results = list(group)
        refused = [(REFUSED, indices[cut[one]]) for one in results if isinstance(one, Refusal)]
        head.rows(_REFUSED, refused, "which refusal it is")
        head.rows(_STORED, [(STORED, *one) for one in results if isinstance(one, DLSN)], "a DLSN")
    return head.framed(AnswerKind.BULK_RECEIPT, 0, correlation)


def shortened(refusal: Refusal) -> Refusal:
    """Return a refusal of one of many records, where all of their texts together are too long."""
    return replace(refusal, message=refusal.message[:SHORT_MESSAGE], advice=None)


def _decode_bulk(frame: memoryview, _flags: int) -> BulkReceipt:
    reader = Reader(frame, HEADER.size)
    # 6 and 5: the least bytes that a refusal takes, and a record's fate.
    refusals = [_refusal(reader) for _ in range(reader.count(MAX_PAYLOADS, 6, "refusals"))]
    results: list[DLSN | Refusal] = []
    for _ in range(reader.count(MAX_PAYLOADS, 5, "results")):
        fate = reader.u8("the fate of a record")
        if fate == STORED:
            results.append(reader.dlsn("the DLSN"))
        elif fate == REFUSED:
            index = reader.u32("which refusal it is")
            if index >= len(refusals):
                broken(f"a record has refusal {index} of {len(refusals)}")
            results.append(refusals[index])
        else:
            broken(f"a record's fate is {fate}, which is unknown")
    reader.finish()
    return BulkReceipt(tuple(results))


def _encode_epoch(correlation: int, answer: EpochBegun) -> list[Buffer]:
    head = Head()
    head.i64(answer.epoch, "the epoch")
    head.i64(answer.next_sequence, "the next sequence number")
    return head.framed(AnswerKind.EPOCH_BEGUN, 0, correlation)


def _decode_epoch(frame: memoryview, _flags: int) -> EpochBegun:
    reader = Reader(frame, HEADER.size)
    begun = EpochBegun(reader.i64("the epoch"), reader.i64("the next sequence number"))
    reader.finish()
    return begun


def _encode_done(correlation: int, answer: Done) -> list[Buffer]:
    head = Head()
    if answer.dlsn is not None:
        head.dlsn(answer.dlsn, "the DLSN")
    return head.framed(AnswerKind.DONE, DLSN_KNOWN if answer.dlsn is not None else 0, correlation)


def _decode_done(frame: memoryview, flags: int) -> Done:
    reader = Reader(frame, HEADER.size)
    dlsn = reader.dlsn("the DLSN") if flags & DLSN_KNOWN else None
    reader.finish()
    return Done(dlsn)


# ---------------------------------------------------------------------- what proxies say of themselves


def _encode_owner(correlation: int, answer: OwnerFound) -> list[Buffer]:
    head = Head()
    head.text(answer.location, "the location")
    return head.framed(AnswerKind.OWNER_FOUND, 0, correlation)


def _decode_owner(frame: memoryview, _flags: int) -> OwnerFound:
    reader = Reader(frame, HEADER.size)
    location = reader.text("the location")
    reader.finish()
    return OwnerFound(location)


def _encode_list(correlation: int, answer: ProxyList) -> list[Buffer]:
    head = Head()
    listed = answer.proxies[:MAX_PROXIES]
    head.u32(len(listed), "the number of proxies")
    for one in listed:
        head.u8(one.kind, "the kind")
        head.text(one.location, "the location")
        head.text(one.grpc_address, "the address for gRPC")
    return head.framed(AnswerKind.PROXY_LIST, 0, correlation)


def _decode_list(frame: memoryview, _flags: int) -> ProxyList:
    reader = Reader(frame, HEADER.size)
    listed = []
    for _ in range(reader.count(MAX_PROXIES, 5, "proxies")):
        kind_read = reader.u8("the kind")
        kind = _KINDS.get(kind_read)
        if kind is None:
            broken(f"a proxy is of the kind {kind_read}, which is unknown")
        listed.append(ListedProxy(kind, reader.text("the location"), reader.text("the address for gRPC")))
    reader.finish()
    return ProxyList(tuple(listed))


def _encode_info(correlation: int, answer: ProxyInfo) -> list[Buffer]:
    listed = Head()
    count = 0
    for stream, location in islice(answer.ownerships.items(), MAX_OWNERSHIPS):
        # No character takes more than 4 bytes: a bound that needs no text to be encoded before it is known to fit.
        if len(listed) + 4 * (len(stream) + len(location)) + 4 > MAX_OWNERSHIPS_BYTES:
            break
        listed.text(stream, "a stream")
        listed.text(location, "a location")
        count += 1
    head = Head()
    head.text(answer.location, "the location")
    head.u16(answer.status, "the status")
    head.u32(answer.max_request_bytes, "max_request_bytes")
    if answer.region is not None:
        head.text(answer.region, "the region")
    head.u32(count, "the number of ownerships")
    head.append(listed)
    flags = REGION if answer.region is not None else 0
    # Only for a proxy that asked for it: an older side would refuse the flag.
    if answer.logs_read is not None:
        head.u32(answer.logs_read, "the number of logs")
        flags |= LOGS_READ
    return head.framed(AnswerKind.PROXY_INFO, flags, correlation)


def _decode_info(frame: memoryview, flags: int) -> ProxyInfo:
    reader = Reader(frame, HEADER.size)
    location, status_read = reader.text("the location"), reader.u16("the status")
    status = _STATUSES.get(status_read)
    if status is None:
        broken(f"the status {status_read} is unknown")
    max_request_bytes = reader.u32("max_request_bytes")
    region = reader.text("the region") if flags & REGION else None
    ownerships = {}
    for _ in range(reader.count(MAX_OWNERSHIPS, 4, "ownerships")):
        stream = reader.text("a stream")
        ownerships[stream] = reader.text("a location")
    logs_read = reader.u32("the number of logs") if flags & LOGS_READ else None
    reader.finish()
    return ProxyInfo(location, status, ownerships, max_request_bytes, region, logs_read)


# ---------------------------------------------------------------------- what was read


def _encode_delivery(correlation: int, answer: Delivery) -> list[Buffer]:
    head = Head()
    head.u8(answer.form, "the form")
    head.dlsn(answer.next, "where to go on")
    sizes = sizes_of(answer.parts)
    total = sum(sizes)
    check_length(total)
    head.lengths(sizes, MAX_PARTS, "parts")
    flags = END_OF_STREAM if answer.end_of_stream else 0
    return head.framed(AnswerKind.DELIVERY, flags, correlation, answer.parts, total)


def _decode_delivery(frame: memoryview, flags: int) -> Delivery:
    reader = Reader(frame, HEADER.size)
    form_read = reader.u8("the form")
    form = _FORMS.get(form_read)
    if form is None:
        broken(f"it has the form {form_read}, which is unknown")
    following = reader.dlsn("where to go on")
    lengths = reader.lengths(reader.count(MAX_PARTS, 4, "parts"), "the parts' lengths")
    return Delivery(form, following, reader.blobs(lengths, "the parts"), bool(flags & END_OF_STREAM))


ENCODERS: Final[dict[type, Callable[..., list[Buffer]]]] = {
    Refusal: _encode_refusal,
    WriteReceipt: _encode_receipt,
    BulkReceipt: _encode_bulk,
    EpochBegun: _encode_epoch,
    Done: _encode_done,
    OwnerFound: _encode_owner,
    ProxyList: _encode_list,
    ProxyInfo: _encode_info,
    Delivery: _encode_delivery,
}
"""Correlation number and answer to a frame, for each class of answers."""

DECODERS: Final[dict[int, tuple[int, Callable[[memoryview, int], Answer]]]] = {
    AnswerKind.REFUSAL: (0, _decode_refusal),
    AnswerKind.WRITE_RECEIPT: (DLSN_KNOWN | REPEATED, _decode_receipt),
    AnswerKind.BULK_RECEIPT: (0, _decode_bulk),
    AnswerKind.EPOCH_BEGUN: (0, _decode_epoch),
    AnswerKind.DONE: (DLSN_KNOWN, _decode_done),
    AnswerKind.OWNER_FOUND: (0, _decode_owner),
    AnswerKind.PROXY_LIST: (0, _decode_list),
    AnswerKind.PROXY_INFO: (REGION | LOGS_READ, _decode_info),
    AnswerKind.DELIVERY: (END_OF_STREAM, _decode_delivery),
}
"""The flags that a kind of answer may have, and what reads its frame and flags."""


# ---------------------------------------------------------------------- any of them


def encode_answer(correlation: int, answer: Answer) -> list[Buffer]:
    """Return the frame of an answer to the request with that number. Raises as
    `request_frames.encode_request` does."""
    return ENCODERS[type(answer)](correlation, answer)


def decode_answer(frame: memoryview) -> tuple[int, Answer]:
    """Return the request's number and the answer of a frame, without its length. Raises ProtocolError and nothing
    else."""
    return decode_frame(frame, DECODERS, "an answer")
