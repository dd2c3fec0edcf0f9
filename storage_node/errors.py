"""Errors of the storage node, its protocol and its client; the root of the tree is `metadata.foundation.errors`.

    DistributedLogError
    ├── CallerError
    │   ├── EntryTooLargeError           the entry does not fit in a frame; nothing was sent
    │   ├── DuplicateEntryError          the entry id was given before; nothing was sent
    │   ├── BookieConfigurationError     a bookie's configuration is wrong; it did not start
    │   └── CookieMismatchError          a bookie's disks, id and metadata do not belong together; it did not start
    ├── NotAppliedError
    │   ├── BookieUnreachableError       no connection could be made; nothing was sent
    │   │   └── SecureConnectionError    the connection could not be secured; no request was sent, least of all in plain
    │   ├── NotEnoughBookiesError        fewer usable bookies than the ensemble needs
    │   ├── NoSpaceToStartError          a bookie's disk has no room for what a start must write; it did not start
    │   ├── RackResolutionError          the racks of bookies could not be found out
    │   ├── TooManyConnectionsError      a bookie has all the connections it may have, and they are in use
    │   ├── LedgerClosedError            the ledger (or this handle) is closed; the add was not sent
    │   ├── LedgerRecoveryError          recovery could not finish; the ledger is as it was
    │   ├── ProtocolError                the peer's bytes break the wire protocol; they were not acted upon
    │   │   ├── TooManyFieldsError       a message has more fields than any of the protocol's could
    │   │   └── TlsError                 TLS with the peer was refused, or broke
    │   │       └── TlsRefusedError      one side does not take the other's certificate, or its kind of connection
    │   ├── NoSuchLedgerError        *   this bookie has never heard of the ledger
    │   ├── NoSuchEntryError         *   this bookie does not have the entry
    │   ├── BadRequestError          *   the bookie could not make sense of the request
    │   ├── UnauthorizedAccessError  *   the ledger has another password
    │   ├── ProtocolVersionError     *   the bookie does not speak this protocol version
    │   ├── ReadOnlyError            *   the bookie takes no adds at present
    │   ├── TooManyRequestsError     *   the bookie sheds load
    │   ├── LedgerStateUnknownError  *   the bookie may have lost data of this ledger and will not say "not here"
    │   └── CorruptDataError
    │       ├── DigestError              an entry fails its digest, or is another entry than the one asked for
    │       └── JournalCorruptError      a bookie's journal is damaged where it had been acknowledged; it did not start
    └── OutcomeUnknownError
        ├── LedgerFencedError        *   another client fenced the ledger; entries under way: its recovery decides
        ├── BookieIOError            *   the bookie's disk failed
        ├── RequestTimeoutError          no answer in time
        ├── ConnectionClosedError        the connection was lost with requests under way
        ├── QuorumWriteError             an entry did not reach its ack quorum
        │   └── LedgerTakenError         others had written under the new ledger's id; nothing was acknowledged in it
        └── BookieFailedError            this bookie has stopped: its journal can no longer be trusted to write

Leaves marked * are answers of one bookie (`BookieError`) and carry the wire's `status`.
"""

from __future__ import annotations

from typing import ClassVar

from metadata.foundation.errors import (
    CallerError,
    CorruptDataError,
    DistributedLogError,
    NotAppliedError,
    OutcomeUnknownError,
)


class EntryTooLargeError(CallerError):
    """The entry does not fit in a frame; nothing was sent."""


class DuplicateEntryError(CallerError):
    """An entry of this id is in the ledger or under way; nothing was sent."""


class BookieConfigurationError(CallerError):
    """A bookie's configuration is wrong; it did not start."""


class CookieMismatchError(CallerError):
    """A bookie's directories, id and metadata do not belong together; it did not start and touched nothing."""


class BookieUnreachableError(NotAppliedError):
    """No connection to the bookie could be made; nothing was sent."""


class SecureConnectionError(BookieUnreachableError):
    """The connection could not be secured: no request was sent, least of all in plain."""

    refused: bool = False
    """True where one side refuses the other: another attempt would end so, too."""


class NotEnoughBookiesError(NotAppliedError):
    """Fewer usable bookies than the ensemble needs."""


class NoSpaceToStartError(NotAppliedError):
    """A bookie's disk has no room for what a start has to write; it did not start, and lost nothing."""


class RackResolutionError(NotAppliedError):
    """The locations of hosts could not be found out: the topology script failed."""


class TooManyConnectionsError(NotAppliedError):
    """A bookie has as many connections as it may have, and all of them are in use: this one was refused."""


class LedgerClosedError(NotAppliedError):
    """The ledger, or this handle of it, is closed; the add was not sent."""


class LedgerRecoveryError(NotAppliedError):
    """Recovery could not finish; the ledger is as it was and recovery may be tried again."""


class ProtocolError(NotAppliedError):
    """The peer's bytes break the wire protocol; they were not acted upon."""


class TooManyFieldsError(ProtocolError):
    """A message has more fields than any of the protocol's could: it was not read to its end."""


class TlsOfferedError(ProtocolError):
    """The peer begins TLS where none is spoken."""


class TlsError(ProtocolError):
    """TLS with the peer was refused, or broke."""


class TlsRefusedError(TlsError):
    """One side does not take the other's certificate, or its kind of connection: that does not pass by itself."""

    certificate_wanted: bool = False
    """True where the peer asks for a certificate, and this side has none."""


class DigestError(CorruptDataError):
    """An entry fails its digest, or is another entry than the one asked for (I12)."""


class JournalCorruptError(CorruptDataError):
    """A bookie's journal is damaged where it had been acknowledged; the bookie did not start."""


class RequestTimeoutError(OutcomeUnknownError):
    """No answer came in time."""


class ConnectionClosedError(OutcomeUnknownError):
    """The connection was lost with requests under way."""


class QuorumWriteError(OutcomeUnknownError):
    """An entry did not reach its ack quorum; some bookies may hold it."""


class LedgerTakenError(QuorumWriteError):
    """Others had written under a new ledger's id, with another password, before its owner did: its first entries were
    refused by too many bookies, and nothing was acknowledged in it."""


class BookieFailedError(OutcomeUnknownError):
    """The bookie has stopped: a write or sync of its journal failed, and that is never retried."""


class BookieError(DistributedLogError):
    """One bookie's answer other than EOK; `status` is the number on the wire."""

    status: ClassVar[int]


class NoSuchLedgerError(BookieError, NotAppliedError):
    """This bookie has never heard of the ledger (ENOLEDGER)."""

    status = 402


class NoSuchEntryError(BookieError, NotAppliedError):
    """This bookie does not have the entry (ENOENTRY)."""

    status = 403


class BadRequestError(BookieError, NotAppliedError):
    """The bookie could not make sense of the request (EBADREQ)."""

    status = 404


class BookieIOError(BookieError, OutcomeUnknownError):
    """The bookie's disk failed (EIO); an add may or may not have been stored there."""

    status = 501


class UnauthorizedAccessError(BookieError, NotAppliedError):
    """The ledger has another password (EUA)."""

    status = 502


class ProtocolVersionError(BookieError, NotAppliedError):
    """The bookie does not speak this protocol version (EBADVERSION)."""

    status = 503


class LedgerFencedError(BookieError, OutcomeUnknownError):
    """Another client fenced the ledger (EFENCED); whether entries under way are in it, its recovery decides (I5)."""

    status = 504


class ReadOnlyError(BookieError, NotAppliedError):
    """The bookie takes no adds at present (EREADONLY)."""

    status = 505


class TooManyRequestsError(BookieError, NotAppliedError):
    """The bookie sheds load (ETOOMANYREQUESTS)."""

    status = 506


class LedgerStateUnknownError(BookieError, NotAppliedError):
    """The bookie may have lost data of this ledger and will not say "not here" (EUNKNOWNLEDGERSTATE, I11)."""

    status = 507


ERROR_OF_STATUS: dict[int, type[BookieError]] = {
    kind.status: kind
    for kind in (
        NoSuchLedgerError,
        NoSuchEntryError,
        BadRequestError,
        BookieIOError,
        UnauthorizedAccessError,
        ProtocolVersionError,
        LedgerFencedError,
        ReadOnlyError,
        TooManyRequestsError,
        LedgerStateUnknownError,
    )
}
"""The error that stands for each status other than EOK."""


def certificate_refused(error: BaseException | None) -> bool:
    """Return whether a request failed because one side of the connection does not take the other's certificate, or its
    kind of connection: the next attempt ends so, too, unless that is changed."""
    while error is not None:
        # Under TLS 1.3 a client hears only behind its handshake that it is refused: a request may be under way by then,
        # and ends with its connection.
        if isinstance(error, TlsRefusedError) or (isinstance(error, SecureConnectionError) and error.refused):
            return True
        # What a reader or a writer makes of its nodes' errors has the most telling one as its cause.
        error = error.__cause__ if isinstance(error, BookieUnreachableError | ConnectionClosedError) else None
    return False


REFUSED_ADVICE = (
    "Compare this client's certificate, authorities and revocation lists with the node's (`dlspark tls show`); the "
    "node's audit trail names the client"
)
"""What to do about `certificate_refused`."""
