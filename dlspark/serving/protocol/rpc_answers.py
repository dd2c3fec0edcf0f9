"""Answers as messages of distributedlog.proto, and back. No I/O, no grpc.

A location names a proxy by its port for frames, which a gRPC client cannot dial: messages have its port for gRPC beside
it. A refusal is the status of whatever message the call gives; every other answer has the status SUCCESS. Records that
are read are messages of their own here: a program that reads by gRPC needs none of this project's formats.

Clients of gRPC take messages of up to 4 MiB unless they are set otherwise, so that no answer is longer: a delivery
comes in several responses, ownerships that do not fit are left out, and refusals of many records have short texts.

Fault model: as for requests, an unknown enum value is a ProtocolError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from struct import error as StructError
from typing import Final, Protocol, TypeAlias

from google.protobuf.message import Message

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from dlspark.serving.protocol import distributedlog_pb2 as pb
from dlspark.serving.protocol.answer_frames import MAX_OWNERSHIPS, MAX_TEXTS_BYTES, shortened
from dlspark.serving.protocol.deliveries import decode_records, encode_records, records_of
from dlspark.serving.protocol.operations import (
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
from dlspark.serving.protocol.rpc_requests import METHODS, dlsn_from_pb, dlsn_to_pb
from metadata.foundation.errors import check
from storage_node.errors import ProtocolError
from storage_node.protocol.wire import varint

RESPONSE_RECORDS: Final = 4_096
RESPONSE_BYTES: Final = 2 * 1024 * 1024
"""How many records one response of a Read has at most, and bytes of their payloads, but for a record that is alone.
Besides its payload a record takes up to 73 bytes. Making the messages of so many takes 10 ms."""
OWNERSHIPS_BYTES: Final = 3 * 1024 * 1024
"""A handshake's ownerships are hints: as many are listed as fit in this."""
_ENTRY_BYTES: Final = 12
"""What an entry of a map takes besides its texts, at most."""

_SEGMENT, _ENTRY, _SLOT = [bytes((field.number << 3,)) for field in pb.Dlsn.DESCRIPTOR.fields]
_RESULT_DLSN: Final = bytes((pb.RecordResult.DLSN_FIELD_NUMBER << 3 | 2,))
_RESULT: Final = bytes((pb.WriteResponse.RESULTS_FIELD_NUMBER << 3 | 2,))
"""What stands before these fields in a message's bytes."""

_CODES_IN_PB: Final = {code: pb.Status.Code.Value(code.name) for code in StatusCode}
_CODES: Final = {number: code for code, number in _CODES_IN_PB.items()}
_APPLIED: Final = {
    pb.Status.NOT_APPLIED: Applied.NO,
    pb.Status.REQUEST_WRONG: Applied.WRONG,
    pb.Status.OUTCOME_UNKNOWN: Applied.UNKNOWN,
}
_APPLIED_IN_PB: Final = {applied: number for number, applied in _APPLIED.items()}
_PROXY_STATUSES_IN_PB: Final = {status: pb.HandshakeResponse.ProxyStatus.Value(status.name) for status in ProxyStatus}
_PROXY_STATUSES: Final = {number: status for status, number in _PROXY_STATUSES_IN_PB.items()}
_REASONS_IN_PB: Final = {reason: pb.Status.Reason.Value(f"REASON_{reason.name}") for reason in Reason}
_REASONS: Final = {number: reason for reason, number in _REASONS_IN_PB.items()}
_KINDS_IN_PB: Final = {kind: pb.Proxy.Kind.Value(kind.name) for kind in ProxyKind}
_KINDS: Final = {number: kind for kind, number in _KINDS_IN_PB.items()}


class GrpcNames(Protocol):
    """Knows how proxies are named in gRPC."""

    def grpc_address(self, location: str) -> str:
        """Return where the proxy at a location speaks gRPC: host:port; empty where it does not, or that is not
        known."""
        ...

    def location(self, name: str) -> str:
        """Return the location of the proxy that speaks gRPC at an address; another name as it is."""
        ...


class NoNames:
    """Names for a binding that knows no proxies."""

    def grpc_address(self, location: str) -> str:
        """Return an empty text: it is not known."""
        return ""

    def location(self, name: str) -> str:
        """Return the name as it is."""
        return name


NO_NAMES: Final = NoNames()


def _success() -> pb.Status:
    return pb.Status(code=pb.Status.SUCCESS)


def status_to_pb(refusal: Refusal, names: GrpcNames = NO_NAMES) -> pb.Status:
    """Return the status that says what a refusal says, and where its location speaks gRPC."""
    status = pb.Status(
        code=_CODES_IN_PB[refusal.code],
        message=refusal.message,
        location=refusal.location or "",
        applied=_APPLIED_IN_PB[refusal.applied],
        error=refusal.error,
        advice=refusal.advice or "",
        grpc_address=names.grpc_address(refusal.location) if refusal.location is not None else "",
        reason=_REASONS_IN_PB[refusal.reason],
    )
    if isinstance(refusal.actual, int):
        status.actual_number = refusal.actual
    elif refusal.actual is not None:
        status.actual_text = refusal.actual
    return status


def status_from_pb(message: pb.Status) -> Refusal | None:
    """Return the refusal that a status says, None where it is SUCCESS. A reason that is unknown here is none: the code
    stands.

    Raises ProtocolError.
    """
    if message.code == pb.Status.SUCCESS:
        return None
    code, applied = _CODES.get(message.code), _APPLIED.get(message.applied)
    if code is None:
        raise ProtocolError(f"a status has the code {message.code}, which is unknown")
    if applied is None:
        raise ProtocolError(f"a status says by {message.applied} whether it was applied, which is unknown")
    actual: str | int | None = None
    if message.HasField("actual_number"):
        actual = message.actual_number
    elif message.HasField("actual_text"):
        actual = message.actual_text
    location, advice = message.location or None, message.advice or None
    reason = _REASONS.get(message.reason, Reason.NONE)
    return Refusal(code, message.message, location, applied, message.error, actual, advice, reason)


# ---------------------------------------------------------------------- to messages


def _write_in_pb(answer: WriteReceipt | BulkReceipt, names: GrpcNames) -> pb.WriteResponse:
    if isinstance(answer, BulkReceipt):
        return _bulk_in_pb(answer, names)
    dlsn = dlsn_to_pb(answer.dlsn) if answer.dlsn is not None else None
    return pb.WriteResponse(status=_success(), dlsn=dlsn, records=answer.records, repetition=answer.repeated)


def _bulk_in_pb(answer: BulkReceipt, names: GrpcNames) -> pb.WriteResponse:
    message = pb.WriteResponse(status=_success())
    if not list(map(type, answer.results)).count(Refusal):
        message.MergeFromString(_stored_results(answer.results))  # type: ignore[arg-type]
        return message
    refusals = [result for result in answer.results if isinstance(result, Refusal)]
    cut = sum(len(one.message) + len(one.advice or "") for one in refusals) > MAX_TEXTS_BYTES
    for result in answer.results:
        added = message.results.add()
        if isinstance(result, Refusal):
            added.refusal.CopyFrom(status_to_pb(shortened(result) if cut else result, names))
        else:  # field by field: a message of its own for each record takes four times as long
            dlsn = added.dlsn
            dlsn.segment, dlsn.entry, dlsn.slot = result
    return message


def _stored_results(positions: Iterable[DLSN]) -> bytes:
    """Return the field `results` of a WriteResponse whose records are all stored, in bytes: a call of the message for
    each field of each record takes twice as long."""
    found: list[bytes] = []
    of: tuple[int, int] | None = None
    place = b""
    for lssn, entry_id, slot in positions:
        if of != (lssn, entry_id):
            of = lssn, entry_id
            place = b"".join((_SEGMENT, varint(lssn), _ENTRY, varint(entry_id), _SLOT))
        dlsn = place + varint(slot)
        # At most 3 numbers of 10 bytes with their tags: each length takes one byte.
        found += (_RESULT, bytes((len(dlsn) + 2,)), _RESULT_DLSN, bytes((len(dlsn),)), dlsn)
    return b"".join(found)


def _epoch_in_pb(answer: EpochBegun, _: GrpcNames) -> pb.BeginEpochResponse:
    return pb.BeginEpochResponse(status=_success(), epoch=answer.epoch, next_sequence=answer.next_sequence)


def _done_in_pb(answer: Done, _: GrpcNames) -> pb.DoneResponse:
    return pb.DoneResponse(status=_success(), dlsn=dlsn_to_pb(answer.dlsn) if answer.dlsn is not None else None)


def _owner_in_pb(answer: OwnerFound, names: GrpcNames) -> pb.GetOwnerResponse:
    address = names.grpc_address(answer.location)
    return pb.GetOwnerResponse(status=_success(), location=answer.location, grpc_address=address)


def _list_in_pb(answer: ProxyList, _: GrpcNames) -> pb.ListProxiesResponse:
    message = pb.ListProxiesResponse(status=_success())
    for one in answer.proxies:
        message.proxies.add(kind=_KINDS_IN_PB[one.kind], location=one.location, grpc_address=one.grpc_address)
    return message


def _info_in_pb(answer: ProxyInfo, names: GrpcNames) -> pb.HandshakeResponse:
    ownerships, left = {}, OWNERSHIPS_BYTES
    for stream, location in islice(answer.ownerships.items(), MAX_OWNERSHIPS):
        left -= len(stream.encode()) + len(location.encode()) + _ENTRY_BYTES
        if left < 0:
            break
        ownerships[stream] = location
    addresses = {one: names.grpc_address(one) for one in {answer.location, *ownerships.values()}}
    return pb.HandshakeResponse(
        status=_success(),
        location=answer.location,
        proxy_status=_PROXY_STATUSES_IN_PB[answer.status],
        ownerships=ownerships,
        max_request_bytes=answer.max_request_bytes,
        region=answer.region or "",
        grpc_addresses={location: address for location, address in addresses.items() if address},
    )


def _delivery_in_pb(answer: Delivery, _: GrpcNames) -> pb.ReadResponse:
    message = pb.ReadResponse(status=_success(), next=dlsn_to_pb(answer.next), end_of_stream=answer.end_of_stream)
    if answer.form is ReadForm.RECORDS:
        for record in records_of(answer):
            _add_record(message, record)
    else:
        message.parts.extend(map(bytes, answer.parts))
    return message


def _add_record(message: pb.ReadResponse, record: LogRecord) -> None:
    added = message.records.add()  # field by field: messages of its own for each record take twice as long
    dlsn = added.dlsn
    dlsn.segment, dlsn.entry, dlsn.slot = record.dlsn
    added.transaction_id = record.txid
    added.sequence_id = record.sequence_id
    added.payload = record.payload
    added.position = record.position
    added.flags = record.flags


def read_responses(answer: Delivery) -> Iterator[pb.ReadResponse]:
    """Yield the responses, one behind the other, that say a delivery: each is short enough for every client, and says
    where to read on behind its own records. They are made as they are asked for. Raises as `records_of`."""
    if answer.form is not ReadForm.RECORDS:
        yield _delivery_in_pb(answer, NO_NAMES)
        return
    message, size = pb.ReadResponse(status=_success()), 0
    for part in answer.parts:
        for record in decode_records(part):
            size += len(record.payload)
            if message.records and (len(message.records) == RESPONSE_RECORDS or size > RESPONSE_BYTES):
                # A client that loses the connection behind this response reads on at the next one's first record.
                message.next.CopyFrom(dlsn_to_pb(record.dlsn))
                yield message
                message, size = pb.ReadResponse(status=_success()), len(record.payload)
            _add_record(message, record)
    message.next.CopyFrom(dlsn_to_pb(answer.next))
    message.end_of_stream = answer.end_of_stream
    yield message


_TO_PB: Final[dict[type, Callable[..., Message]]] = {
    WriteReceipt: _write_in_pb,
    BulkReceipt: _write_in_pb,
    EpochBegun: _epoch_in_pb,
    Done: _done_in_pb,
    OwnerFound: _owner_in_pb,
    ProxyList: _list_in_pb,
    ProxyInfo: _info_in_pb,
    Delivery: _delivery_in_pb,
}
"""Answer, and how proxies are named, to message; for each class but Refusal."""


def answer_to_pb(
    method: str,
    answer: Answer,
    *,
    correlation: int = 0,
    names: GrpcNames = NO_NAMES,
) -> Message:
    """Return the message with which a call is answered; `correlation` is repeated by writes alone. `names` knows where
    proxies speak gRPC."""
    response = METHODS[method].response
    if isinstance(answer, Refusal):
        message = response(status=status_to_pb(answer, names))
    else:
        message = _TO_PB[type(answer)](answer, names)
        check(isinstance(message, response), f"{method} was answered with {type(answer).__name__}")
    if correlation and isinstance(message, pb.WriteResponse):
        message.correlation = correlation
    return message


# ---------------------------------------------------------------------- from messages


def _write(message: pb.WriteResponse) -> Answer:
    if message.results:
        return BulkReceipt(tuple([_result(result) for result in message.results]))
    dlsn = dlsn_from_pb(message.dlsn) if message.HasField("dlsn") else None
    return WriteReceipt(dlsn, message.records, message.repetition)


def _result(message: pb.RecordResult) -> DLSN | Refusal:
    if message.HasField("dlsn"):
        return dlsn_from_pb(message.dlsn)
    refusal = status_from_pb(message.refusal)
    if refusal is None:
        raise ProtocolError("a record's result is neither a position nor a refusal")
    return refusal


def _epoch(message: pb.BeginEpochResponse) -> Answer:
    return EpochBegun(message.epoch, message.next_sequence)


def _done(message: pb.DoneResponse) -> Answer:
    return Done(dlsn_from_pb(message.dlsn) if message.HasField("dlsn") else None)


def _owner(message: pb.GetOwnerResponse) -> Answer:
    return OwnerFound(message.location)


def _list(message: pb.ListProxiesResponse) -> Answer:
    # A proxy of a kind that is unknown here is none that could be asked.
    known = [(one, kind) for one in message.proxies if (kind := _KINDS.get(one.kind)) is not None]
    return ProxyList(tuple(ListedProxy(kind, one.location, one.grpc_address) for one, kind in known))


def _info(message: pb.HandshakeResponse) -> Answer:
    status = _PROXY_STATUSES.get(message.proxy_status)
    if status is None:
        raise ProtocolError(f"a proxy has the status {message.proxy_status}, which is unknown")
    ownerships, region = dict(message.ownerships), message.region or None
    return ProxyInfo(message.location, status, ownerships, message.max_request_bytes, region)


def _delivery(message: pb.ReadResponse, form: ReadForm) -> Answer:
    if not message.HasField("next"):
        raise ProtocolError("what was read does not say where to go on")
    parts: list[bytes] = list(message.parts)
    if form is ReadForm.RECORDS:
        # Back into parts, as frames carry them: a part has records of one segment.
        read = [_record(record) for record in message.records]
        try:
            parts = [encode_records(list(batch)) for _, batch in groupby(read, lambda record: record.dlsn.lssn)]
        except (StructError, OverflowError) as error:
            raise ProtocolError(f"records that were read cannot be so: {error}") from error
    return Delivery(form, dlsn_from_pb(message.next), tuple(parts), message.end_of_stream)


def _record(message: pb.Record) -> LogRecord:
    return LogRecord(
        message.transaction_id,
        message.payload,
        dlsn_from_pb(message.dlsn),
        message.position,
        message.flags,
        message.sequence_id,
    )


_FROM_PB: Final[dict[type[Message], Callable[..., Answer]]] = {
    pb.WriteResponse: _write,
    pb.BeginEpochResponse: _epoch,
    pb.DoneResponse: _done,
    pb.GetOwnerResponse: _owner,
    pb.ListProxiesResponse: _list,
    pb.HandshakeResponse: _info,
}
Response: TypeAlias = (
    pb.WriteResponse
    | pb.BeginEpochResponse
    | pb.DoneResponse
    | pb.GetOwnerResponse
    | pb.ListProxiesResponse
    | pb.HandshakeResponse
    | pb.ReadResponse
)
"""What the service's calls give."""


def answer_from_pb(message: Response, *, form: ReadForm = ReadForm.RECORDS) -> Answer:
    """Return the answer that a message carries; `form` is the one that a Read asked for. Raises ProtocolError."""
    refusal = status_from_pb(message.status)
    if refusal is not None:
        return refusal
    return _delivery(message, form) if isinstance(message, pb.ReadResponse) else _FROM_PB[type(message)](message)
