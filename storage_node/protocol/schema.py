"""The message catalogue of protocol version 3 as tables (docs/reference/wire.md#version-3-messages)."""

from __future__ import annotations

from enum import IntEnum

from storage_node.protocol.wire import FieldKind, Message, WireField


class Version(IntEnum):
    """Which form has a ledger's metadata?"""

    ONE = 1
    TWO = 2
    THREE = 3


class Operation(IntEnum):
    """Which operation does a request ask for? RANGE_* and BATCH_READ have no message in this version."""

    READ = 1
    ADD = 2
    RANGE_READ = 3
    RANGE_ADD = 4
    AUTH = 5
    WRITE_LAC = 6
    READ_LAC = 7
    BOOKIE_INFO = 8
    START_TLS = 9
    FORCE_LEDGER = 10
    LIST_ENTRIES = 11
    BATCH_READ = 12


class Status(IntEnum):
    """How did a request end? BookKeeper's codes."""

    EOK = 0
    ENOLEDGER = 402
    ENOENTRY = 403
    EBADREQ = 404
    EIO = 501
    EUA = 502
    EBADVERSION = 503
    EFENCED = 504
    EREADONLY = 505
    ETOOMANYREQUESTS = 506
    EUNKNOWNLEDGERSTATE = 507


class ReadFlag(IntEnum):
    """An enum, not a bit set: fence and piggy-back exclude each other."""

    FENCE_LEDGER = 1
    ENTRY_PIGGYBACK = 2


RECOVERY_ADD = 1
DEFERRED_SYNC = 1
TOTAL_DISK_CAPACITY = 1
FREE_DISK_SPACE = 2

_VERSIONS = frozenset(int(v) for v in Version)
_OPERATIONS = frozenset(int(v) for v in Operation)
_STATUSES = frozenset(int(v) for v in Status)


def _int64(name: str, required: bool = False) -> WireField:
    return WireField(name, FieldKind.INT64, required)


def _bytes(name: str, required: bool = False) -> WireField:
    return WireField(name, FieldKind.BYTES, required)


def _message(message: Message) -> WireField:
    return WireField(message.name, FieldKind.MESSAGE, message=message)


_LEDGER = _int64("ledgerId", True)
_ENTRY = _int64("entryId", True)
_STATUS = WireField("status", FieldKind.ENUM, True, _STATUSES)

HEADER = Message(
    "header",
    {
        1: WireField("version", FieldKind.ENUM, True, _VERSIONS),
        2: WireField("operation", FieldKind.ENUM, True, _OPERATIONS),
        3: WireField("txnId", FieldKind.UINT64, True),
        4: WireField("priority", FieldKind.UINT32),
    },
)
_HEADER = WireField("header", FieldKind.MESSAGE, True, message=HEADER)

CONTEXT = Message(
    "requestContext", {1: WireField("key", FieldKind.STRING, True), 2: WireField("value", FieldKind.STRING, True)}
)

READ_REQUEST = Message(
    "readRequest",
    {
        1: _LEDGER,
        2: _ENTRY,
        3: _bytes("masterKey"),
        4: _int64("previousLAC"),
        5: _int64("timeOut"),
        100: WireField("flag", FieldKind.ENUM, values=frozenset(int(v) for v in ReadFlag)),
    },
)
ADD_REQUEST = Message(
    "addRequest",
    {
        1: _LEDGER,
        2: _ENTRY,
        3: _bytes("masterKey", True),
        4: _bytes("body", True),
        5: WireField("writeFlags", FieldKind.INT32),
        100: WireField("flag", FieldKind.ENUM, values=frozenset({RECOVERY_ADD})),
    },
)
WRITE_LAC_REQUEST = Message(
    "writeLacRequest", {1: _LEDGER, 2: _int64("lac", True), 3: _bytes("masterKey", True), 4: _bytes("body", True)}
)
_AUTH = {1: WireField("authPluginName", FieldKind.STRING, True), 2: _bytes("payload", True)}

REQUEST = Message(
    "Request",
    {
        1: _HEADER,
        100: _message(READ_REQUEST),
        101: _message(ADD_REQUEST),
        102: _message(Message("authRequest", _AUTH)),
        103: _message(WRITE_LAC_REQUEST),
        104: _message(Message("readLacRequest", {1: _LEDGER})),
        105: _message(Message("getBookieInfoRequest", {1: _int64("requested")})),
        106: _message(Message("startTLSRequest", {})),
        107: _message(Message("forceLedgerRequest", {1: _LEDGER})),
        108: _message(Message("getListOfEntriesOfLedgerRequest", {1: _LEDGER})),
        200: WireField(CONTEXT.name, FieldKind.MESSAGE, message=CONTEXT, repeated=True),
    },
)

READ_RESPONSE = Message(
    "readResponse",
    {
        1: _STATUS,
        2: _LEDGER,
        3: _ENTRY,
        4: _bytes("body"),
        5: _int64("maxLAC"),
        6: _int64("lacUpdateTimestamp"),
    },
)
RESPONSE = Message(
    "Response",
    {
        1: _HEADER,
        2: _STATUS,
        100: _message(READ_RESPONSE),
        101: _message(Message("addResponse", {1: _STATUS, 2: _LEDGER, 3: _ENTRY})),
        102: _message(Message("authResponse", _AUTH)),
        103: _message(Message("writeLacResponse", {1: _STATUS, 2: _LEDGER})),
        104: _message(
            Message("readLacResponse", {1: _STATUS, 2: _LEDGER, 3: _bytes("lacBody"), 4: _bytes("lastEntryBody")})
        ),
        105: _message(
            Message(
                "getBookieInfoResponse",
                {1: _STATUS, 2: _int64("totalDiskCapacity"), 3: _int64("freeDiskSpace")},
            )
        ),
        106: _message(Message("startTLSResponse", {})),
        107: _message(Message("forceLedgerResponse", {1: _STATUS, 2: _LEDGER})),
        108: _message(
            Message(
                "getListOfEntriesOfLedgerResponse",
                {1: _STATUS, 2: _LEDGER, 3: _bytes("availabilityOfEntriesOfLedger")},
            )
        ),
    },
)
