"""Requests and responses of both protocol versions as values.

A response's `status` is resolved as docs/reference/wire.md#status-resolution says: the sub-message's unless the
outer one is an error.
Version 2 has no transaction ids: there `txn_id` is 0, and `version` is the packet's own version (0 to 2, or one that
will be refused), since the answer repeats it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from storage_node.protocol.schema import Operation, Status


@dataclass(frozen=True, slots=True)
class AddRequest:
    """Store an entry. The bookie takes ledger id, entry id and LAC from `body`; the ids here are only echoed."""

    operation: ClassVar[Operation] = Operation.ADD
    txn_id: int
    ledger_id: int
    entry_id: int
    master_key: bytes = field(repr=False)
    body: memoryview
    recovery: bool = False
    deferred_sync: bool = False
    priority: int = 0
    version: int = 3


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Which entry does a client ask for (-1: the last stored one), does it fence first, or wait for the LAC to pass
    `previous_lac`?
    """

    operation: ClassVar[Operation] = Operation.READ
    txn_id: int
    ledger_id: int
    entry_id: int
    master_key: bytes | None = field(default=None, repr=False)
    fence: bool = False
    previous_lac: int | None = None
    timeout_ms: int | None = None
    piggyback: bool = False
    priority: int = 0
    version: int = 3


@dataclass(frozen=True, slots=True)
class BatchReadRequest:
    """Read entries from `entry_id` on, at most `max_count` (0 or less: any number) and `max_bytes`; version 2 only."""

    operation: ClassVar[Operation] = Operation.BATCH_READ
    ledger_id: int
    entry_id: int
    request_id: int
    max_count: int
    max_bytes: int
    master_key: bytes | None = field(default=None, repr=False)
    fence: bool = False
    priority: int = 0
    version: int = 2


@dataclass(frozen=True, slots=True)
class ReadLacRequest:
    """Ask for the last entry known to be confirmed."""

    operation: ClassVar[Operation] = Operation.READ_LAC
    txn_id: int
    ledger_id: int


@dataclass(frozen=True, slots=True)
class WriteLacRequest:
    """Store an explicit-LAC packet (`body`)."""

    operation: ClassVar[Operation] = Operation.WRITE_LAC
    txn_id: int
    ledger_id: int
    lac: int
    master_key: bytes = field(repr=False)
    body: memoryview


@dataclass(frozen=True, slots=True)
class ForceLedgerRequest:
    """Have everything of a ledger that the bookie has acknowledged made durable."""

    operation: ClassVar[Operation] = Operation.FORCE_LEDGER
    txn_id: int
    ledger_id: int


@dataclass(frozen=True, slots=True)
class BookieInfoRequest:
    """`requested` is a bit mask: 1 total capacity, 2 free space."""

    operation: ClassVar[Operation] = Operation.BOOKIE_INFO
    txn_id: int
    requested: int


@dataclass(frozen=True, slots=True)
class ListEntriesRequest:
    """Ask which entries of a ledger a bookie has."""

    operation: ClassVar[Operation] = Operation.LIST_ENTRIES
    txn_id: int
    ledger_id: int


@dataclass(frozen=True, slots=True)
class AuthRequest:
    """Carry a step of authentication to the bookie; `plugin` names the method."""

    operation: ClassVar[Operation] = Operation.AUTH
    txn_id: int
    plugin: str
    payload: bytes
    version: int = 3


@dataclass(frozen=True, slots=True)
class StartTlsRequest:
    """Ask to go on encrypted on this connection."""

    operation: ClassVar[Operation] = Operation.START_TLS
    txn_id: int


@dataclass(frozen=True, slots=True)
class UnsupportedRequest:
    """A well-formed request that has to be refused with `status`: EBADVERSION, or EBADREQ."""

    operation: Operation
    txn_id: int
    status: Status


Request: TypeAlias = (
    AddRequest
    | ReadRequest
    | ReadLacRequest
    | WriteLacRequest
    | ForceLedgerRequest
    | BookieInfoRequest
    | ListEntriesRequest
    | AuthRequest
    | StartTlsRequest
    | UnsupportedRequest
)


@dataclass(frozen=True, slots=True)
class AddResponse:
    """Was an entry stored?"""

    operation: ClassVar[Operation] = Operation.ADD
    txn_id: int
    status: Status
    ledger_id: int
    entry_id: int


@dataclass(frozen=True, slots=True)
class ReadResponse:
    """Which entry was read? `entry_id` is as requested (-1 stays -1), except that a long poll that found an entry names
    it.
    """

    operation: ClassVar[Operation] = Operation.READ
    txn_id: int
    status: Status
    ledger_id: int
    entry_id: int
    body: memoryview | None = None
    max_lac: int | None = None
    lac_update_timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class BatchReadResponse:
    """Which consecutive entries are there from `entry_id` on? None where `status` is not EOK. Version 2 only.

    They are not checked: they may lie beyond the LAC or the end of a fragment
    (docs/reference/wire.md#version-2-batch-read).
    """

    operation: ClassVar[Operation] = Operation.BATCH_READ
    request_id: int
    status: Status
    ledger_id: int
    entry_id: int
    entries: tuple[memoryview, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadLacResponse:
    """Carry the explicit LAC's packet and the last entry, as far as there are any."""

    operation: ClassVar[Operation] = Operation.READ_LAC
    txn_id: int
    status: Status
    ledger_id: int
    lac_body: memoryview | None = None
    last_entry_body: memoryview | None = None


@dataclass(frozen=True, slots=True)
class WriteLacResponse:
    """Tell whether an explicit LAC was stored."""

    operation: ClassVar[Operation] = Operation.WRITE_LAC
    txn_id: int
    status: Status
    ledger_id: int


@dataclass(frozen=True, slots=True)
class ForceLedgerResponse:
    """Tell whether a ledger is durable."""

    operation: ClassVar[Operation] = Operation.FORCE_LEDGER
    txn_id: int
    status: Status
    ledger_id: int


@dataclass(frozen=True, slots=True)
class BookieInfoResponse:
    """Tell what was asked of the disks, in bytes."""

    operation: ClassVar[Operation] = Operation.BOOKIE_INFO
    txn_id: int
    status: Status
    total_disk_capacity: int | None = None
    free_disk_space: int | None = None


@dataclass(frozen=True, slots=True)
class ListEntriesResponse:
    """`availability` is the blob of docs/reference/wire.md#list-of-entries."""

    operation: ClassVar[Operation] = Operation.LIST_ENTRIES
    txn_id: int
    status: Status
    ledger_id: int
    availability: memoryview | None = None


@dataclass(frozen=True, slots=True)
class AuthResponse:
    """Carry a step of authentication to the client."""

    operation: ClassVar[Operation] = Operation.AUTH
    txn_id: int
    status: Status
    plugin: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class StartTlsResponse:
    """Tell whether the connection goes on encrypted."""

    operation: ClassVar[Operation] = Operation.START_TLS
    txn_id: int
    status: Status


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """An answer without the operation's own message: refused before the operation began."""

    operation: Operation
    txn_id: int
    status: Status


Response: TypeAlias = (
    AddResponse
    | ReadResponse
    | ReadLacResponse
    | WriteLacResponse
    | ForceLedgerResponse
    | BookieInfoResponse
    | ListEntriesResponse
    | AuthResponse
    | StartTlsResponse
    | ErrorResponse
)

RequestV2: TypeAlias = AddRequest | ReadRequest | BatchReadRequest | AuthRequest
ResponseV2: TypeAlias = AddResponse | ReadResponse | BatchReadResponse | AuthResponse
