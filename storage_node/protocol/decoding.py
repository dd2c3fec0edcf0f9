"""Frames' bodies of protocol version 3 to values; whatever bytes come in, only ProtocolError goes out.

A decoded body is a view of the frame it came in.
"""

from __future__ import annotations

from collections.abc import Callable

from storage_node.errors import ProtocolError
from storage_node.protocol import layouts
from storage_node.protocol.schema import (
    DEFERRED_SYNC,
    RECOVERY_ADD,
    REQUEST,
    RESPONSE,
    Operation,
    ReadFlag,
    Status,
    Version,
)
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
    Request,
    Response,
    StartTlsRequest,
    StartTlsResponse,
    UnsupportedRequest,
    WriteLacRequest,
    WriteLacResponse,
)
from storage_node.protocol.wire import Value, decode

_OPERATIONS = {int(op): op for op in Operation}
_STATUSES = {int(status): status for status in Status}


def _number(values: dict[str, Value], name: str) -> int:
    value = values[name]
    if not isinstance(value, int):
        raise ProtocolError(f"{name} is not a number")
    return value


def _maybe_number(values: dict[str, Value], name: str) -> int | None:
    return _number(values, name) if name in values else None


def _view(values: dict[str, Value], name: str) -> memoryview:
    value = values[name]
    if not isinstance(value, memoryview):
        raise ProtocolError(f"{name} is not a byte string")
    return value


def _maybe_view(values: dict[str, Value], name: str) -> memoryview | None:
    return _view(values, name) if name in values else None


def _message(values: dict[str, Value], name: str) -> dict[str, Value] | None:
    value = values.get(name)
    return value if isinstance(value, dict) else None


def _read_request(txn_id: int, m: dict[str, Value], priority: int) -> Request:
    flag = m.get("flag")
    key = _maybe_view(m, "masterKey")
    return ReadRequest(
        txn_id,
        _number(m, "ledgerId"),
        _number(m, "entryId"),
        None if key is None else bytes(key),
        flag == ReadFlag.FENCE_LEDGER,
        _maybe_number(m, "previousLAC"),
        _maybe_number(m, "timeOut"),
        flag == ReadFlag.ENTRY_PIGGYBACK,
        priority,
    )


def _add_request(txn_id: int, m: dict[str, Value], priority: int) -> Request:
    return AddRequest(
        txn_id,
        _number(m, "ledgerId"),
        _number(m, "entryId"),
        bytes(_view(m, "masterKey")),
        _view(m, "body"),
        m.get("flag") == RECOVERY_ADD,
        bool((_maybe_number(m, "writeFlags") or 0) & DEFERRED_SYNC),
        priority,
    )


def _write_lac_request(txn_id: int, m: dict[str, Value], _priority: int) -> Request:
    key = bytes(_view(m, "masterKey"))
    return WriteLacRequest(txn_id, _number(m, "ledgerId"), _number(m, "lac"), key, _view(m, "body"))


def _text(values: dict[str, Value], name: str) -> str:
    return str(_view(values, name), "utf-8", "replace")


_REQUESTS: dict[Operation, tuple[str, Callable[[int, dict[str, Value], int], Request]]] = {
    Operation.READ: ("readRequest", _read_request),
    Operation.ADD: ("addRequest", _add_request),
    Operation.AUTH: (
        "authRequest",
        lambda t, m, _: AuthRequest(t, _text(m, "authPluginName"), bytes(_view(m, "payload"))),
    ),
    Operation.WRITE_LAC: ("writeLacRequest", _write_lac_request),
    Operation.READ_LAC: ("readLacRequest", lambda t, m, _: ReadLacRequest(t, _number(m, "ledgerId"))),
    Operation.BOOKIE_INFO: (
        "getBookieInfoRequest",
        lambda t, m, _: BookieInfoRequest(t, _maybe_number(m, "requested") or 0),
    ),
    Operation.START_TLS: ("startTLSRequest", lambda t, m, _: StartTlsRequest(t)),
    Operation.FORCE_LEDGER: ("forceLedgerRequest", lambda t, m, _: ForceLedgerRequest(t, _number(m, "ledgerId"))),
    Operation.LIST_ENTRIES: (
        "getListOfEntriesOfLedgerRequest",
        lambda t, m, _: ListEntriesRequest(t, _number(m, "ledgerId")),
    ),
}


def decode_request(frame: memoryview) -> Request:
    """Return the request in a frame's body. Raises ProtocolError where the bytes are not a request of version 3."""
    head = bytes(frame[: layouts.HEAD_BYTES])
    start = head[2:7]
    try:
        fast: AddRequest | ReadRequest | None = None
        if start == layouts.ADD_START and head[0] == 0x0A:
            fast = layouts.add(frame)
        elif start == layouts.READ_START and head[0] == 0x0A:
            fast = layouts.read(frame, head)
        if fast is not None:
            return fast
    except IndexError:  # shorter than the layout: the tables will say what it is
        pass
    values = decode(REQUEST, frame)
    header = _message(values, "header") or {}
    operation = _OPERATIONS[_number(header, "operation")]
    txn_id = _number(header, "txnId")
    if header["version"] != Version.THREE:
        return UnsupportedRequest(operation, txn_id, Status.EBADVERSION)
    if operation not in _REQUESTS:
        return UnsupportedRequest(operation, txn_id, Status.EBADREQ)
    name, build = _REQUESTS[operation]
    message = _message(values, name)
    if message is None:
        return UnsupportedRequest(operation, txn_id, Status.EBADREQ)
    return build(txn_id, message, _maybe_number(header, "priority") or 0)


def _read_response(txn_id: int, status: Status, m: dict[str, Value]) -> Response:
    return ReadResponse(
        txn_id,
        status,
        _number(m, "ledgerId"),
        _number(m, "entryId"),
        _maybe_view(m, "body"),
        _maybe_number(m, "maxLAC"),
        _maybe_number(m, "lacUpdateTimestamp"),
    )


def _read_lac_response(txn_id: int, status: Status, m: dict[str, Value]) -> Response:
    ledger_id = _number(m, "ledgerId")
    return ReadLacResponse(txn_id, status, ledger_id, _maybe_view(m, "lacBody"), _maybe_view(m, "lastEntryBody"))


def _bookie_info_response(txn_id: int, status: Status, m: dict[str, Value]) -> Response:
    total = _maybe_number(m, "totalDiskCapacity")
    return BookieInfoResponse(txn_id, status, total, _maybe_number(m, "freeDiskSpace"))


def _list_entries_response(txn_id: int, status: Status, m: dict[str, Value]) -> Response:
    blob = _maybe_view(m, "availabilityOfEntriesOfLedger")
    return ListEntriesResponse(txn_id, status, _number(m, "ledgerId"), blob)


_RESPONSES: dict[Operation, tuple[str, Callable[[int, Status, dict[str, Value]], Response]]] = {
    Operation.READ: ("readResponse", _read_response),
    Operation.ADD: ("addResponse", lambda t, s, m: AddResponse(t, s, _number(m, "ledgerId"), _number(m, "entryId"))),
    Operation.AUTH: (
        "authResponse",
        lambda t, s, m: AuthResponse(t, s, _text(m, "authPluginName"), bytes(_view(m, "payload"))),
    ),
    Operation.WRITE_LAC: ("writeLacResponse", lambda t, s, m: WriteLacResponse(t, s, _number(m, "ledgerId"))),
    Operation.READ_LAC: ("readLacResponse", _read_lac_response),
    Operation.BOOKIE_INFO: ("getBookieInfoResponse", _bookie_info_response),
    Operation.START_TLS: ("startTLSResponse", lambda t, s, m: StartTlsResponse(t, s)),
    Operation.FORCE_LEDGER: ("forceLedgerResponse", lambda t, s, m: ForceLedgerResponse(t, s, _number(m, "ledgerId"))),
    Operation.LIST_ENTRIES: ("getListOfEntriesOfLedgerResponse", _list_entries_response),
}


def decode_response(frame: memoryview) -> Response:
    """Return the response in a frame's body. Raises ProtocolError where the bytes are not a response of version 3."""
    head = bytes(frame[: layouts.HEAD_BYTES])
    start = head[2:7]
    try:
        fast: AddResponse | ReadResponse | None = None
        if start == layouts.ADD_START and head[0] == 0x0A:
            fast = layouts.add_response(frame, head)
        elif start == layouts.READ_START and head[0] == 0x0A:
            fast = layouts.read_response(frame, head)
        if fast is not None:
            return fast
    except IndexError:  # shorter than the layout: the tables will say what it is
        pass
    values = decode(RESPONSE, frame)
    header = _message(values, "header") or {}
    operation = _OPERATIONS[_number(header, "operation")]
    txn_id = _number(header, "txnId")
    if header["version"] != Version.THREE:
        raise ProtocolError(f"a response of protocol version {header['version']}")
    status = _number(values, "status")
    name, build = _RESPONSES.get(operation, ("", None))
    message = _message(values, name)
    if build is None or message is None:
        return ErrorResponse(operation, txn_id, _STATUSES[status])
    inner = _maybe_number(message, "status")
    if status == Status.EOK and inner is not None:
        status = inner
    return build(txn_id, _STATUSES[status], message)
