"""The two protocol versions as a connection speaks them: how its requests are read and its answers written.

A connection begins in version 3. The first body that is not a request of version 3 turns it to version 2 for good, and
a body that is not one of version 2 either ends it (docs/reference/wire.md#protocol-selection). What is answered does
not depend on the version; what the answer looks like does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from storage_node.errors import ProtocolError
from storage_node.protocol import v2
from storage_node.protocol.decoding import decode_request
from storage_node.protocol.encoding import encode_add_response, encode_auth_response, encode_read_response
from storage_node.protocol.layouts import decode_add_and_answer
from storage_node.protocol.schema import Operation, Status
from storage_node.protocol.values import AddRequest, AuthRequest, BatchReadRequest, ReadRequest, Request, RequestV2

NO_AUTH_PLUGIN = "AuthDisabledPlugin"


@dataclass(frozen=True, slots=True)
class Misversioned:
    """A well-formed packet of a version that is not spoken: refused with its own ids."""

    request: AddRequest | ReadRequest | BatchReadRequest
    priority: int = 0


Heard: TypeAlias = Request | RequestV2 | Misversioned
"""Any request that a connection may get."""


class Dialect(Protocol):
    """One protocol version."""

    add_mark: tuple[int, int]
    """Offset and value of the byte by which an ordinary add is known from other requests. Others may have it, too."""

    def quick_add(self, frame: memoryview) -> tuple[bytes, bytes, memoryview] | None:
        """Return (EOK answer, key, body) of an ordinary add, None for anything else."""
        ...

    def decode(self, frame: memoryview) -> Heard:
        """Decode a request. Raises ProtocolError."""
        ...

    def added(self, request: AddRequest, status: Status) -> bytes:
        """Return the answer to an add."""
        ...

    def entry(
        self, request: ReadRequest, entry_id: int, length: int, max_lac: int | None, stamp_ms: int | None
    ) -> tuple[bytes, bytes]:
        """Return what goes before and behind the entry that was read."""
        ...

    def no_entry(self, request: ReadRequest, status: Status, max_lac: int | None = None) -> bytes:
        """Return a read's answer without an entry."""
        ...

    def auth(self, request: AuthRequest) -> bytes:
        """Return what a node without authentication says to a client that begins one: go on."""
        ...


class VersionThree:
    """Protobuf messages, matched by transaction ids."""

    add_mark = (5, int(Operation.ADD))
    quick_add = staticmethod(decode_add_and_answer)
    decode = staticmethod(decode_request)

    @staticmethod
    def added(request: AddRequest, status: Status) -> bytes:
        """Return an ADD_ENTRY answer with the request's own ids, whatever the status."""
        return encode_add_response(request.txn_id, status, request.ledger_id, request.entry_id)

    @staticmethod
    def entry(
        request: ReadRequest, entry_id: int, length: int, max_lac: int | None, stamp_ms: int | None
    ) -> tuple[bytes, bytes]:
        """Return what goes before and behind the entry; `max_lac` and `stamp_ms` (since the epoch) are left out where
        they are None."""
        return encode_read_response(
            request.txn_id,
            0,
            request.ledger_id,
            entry_id,
            length,
            max_lac=max_lac,
            lac_update_timestamp_ms=stamp_ms,
        )

    @staticmethod
    def no_entry(request: ReadRequest, status: Status, max_lac: int | None = None) -> bytes:
        """Return a READ_ENTRY answer without a body; the ids are those of the request."""
        ids = (request.ledger_id, request.entry_id)
        return encode_read_response(request.txn_id, status, *ids, max_lac=max_lac)[0]

    @staticmethod
    def auth(request: AuthRequest) -> bytes:
        """Answer EOK with the plugin `AuthDisabledPlugin`: the client goes on without authentication."""
        return encode_auth_response(request.txn_id, Status.EOK, NO_AUTH_PLUGIN)


class VersionTwo:
    """Fixed layouts, matched by the ids that they repeat: no maxLAC, no timestamp, never another entry id."""

    add_mark = (1, v2.ADD)
    quick_add = staticmethod(v2.add_and_answer)

    @staticmethod
    def decode(frame: memoryview) -> Heard:
        """Return a packet; one of a version above 2 comes back as `Misversioned`. Raises ProtocolError, also for an
        AUTH of such a version, which cannot be refused with a code."""
        request = v2.decode_request(frame)
        if request.version <= v2.VERSION:
            return request
        if isinstance(request, AuthRequest):
            raise ProtocolError(f"AUTH in a packet of version {request.version}: its answer has no place for a code")
        return Misversioned(request)

    @staticmethod
    def added(request: AddRequest, status: Status) -> bytes:
        """Return header, code and the request's ids, in the request's own version."""
        return v2.encode_add_response(status, request.ledger_id, request.entry_id, version=request.version)

    @staticmethod
    def entry(
        request: ReadRequest, entry_id: int, length: int, max_lac: int | None, stamp_ms: int | None
    ) -> tuple[bytes, bytes]:
        """Return what goes before the entry; nothing goes behind it. Always with the ids of the request: that is how
        clients match it."""
        ids = (request.ledger_id, request.entry_id)
        return v2.encode_read_response(Status.EOK, *ids, length, version=request.version), b""

    @staticmethod
    def no_entry(request: ReadRequest, status: Status, max_lac: int | None = None) -> bytes:
        """Return header, code and the request's ids; version 2 has no place for `max_lac`."""
        return v2.encode_read_response(status, request.ledger_id, request.entry_id, version=request.version)

    @staticmethod
    def auth(request: AuthRequest) -> bytes:
        """Return an AUTH packet that names `AuthDisabledPlugin`: the client goes on without authentication."""
        return v2.encode_auth(NO_AUTH_PLUGIN, version=request.version)


def refuse_batch(request: BatchReadRequest, status: Status) -> bytes:
    """Return the answer to a batch read that gets no entries."""
    ids = (request.ledger_id, request.entry_id, request.request_id)
    return b"".join(v2.encode_batch_read_response(status, *ids, version=request.version))


VERSION_THREE: Dialect = VersionThree()
VERSION_TWO: Dialect = VersionTwo()


def dialect_of(request: AddRequest | ReadRequest | AuthRequest) -> Dialect:
    """Return the version in which a request was asked, and is answered, whatever came on its connection since."""
    return VERSION_THREE if request.version == 3 else VERSION_TWO
