"""Every error a user of dlspark can meet, with the status code that Apache DistributedLog gives it.

The first level says whether the thing happened; the leaves say what it was:

    DistributedLogError                        (500)
    ├── CallerError                            the request itself is wrong; nothing was done
    │   ├── SettingsError                      a setting is unknown, ill-typed or contradicts another
    │   ├── InvalidRecordError                 a record that cannot be written (null payload, wrong type)
    │   │   └── RecordTooLongError             413: over MAX_LOGRECORD_SIZE
    │   ├── TransactionIdOutOfOrderError       513: below the log's highest, negative, or the reserved maximum
    │   ├── EndOfStreamError                   512: the log is sealed: nothing follows, nothing can be written
    │   ├── AlreadyClosedError                 502: the writer, reader, log or namespace was closed by its user
    │   ├── OpenedElsewhereError           *   what is open in one process, on one event loop, was used elsewhere
    │   ├── NotBoundError                  *   no namespace is bound at the path
    │   ├── NamespaceInUseError            *   a namespace with logs is unbound only by force
    │   ├── RequestDeniedError             *   403: the namespace's access control denies it
    │   ├── IdentityError                  *   one's own certificates, keys or stores cannot be used
    │   │   └── NoExtraError               *   a library that they need is not installed
    │   ├── NotAuthenticatedError          *   403: who asks has not proved who they are, or the proof has ended
    │   ├── NoAuthError                    *   505: ZooKeeper's access control refuses this session (`zkAclId`)
    │   ├── InvalidLogNameError            *   602: the name cannot be a log's
    │   ├── InvalidSchemaError             *   a schema that a log cannot have
    │   │   └── EvolutionError             *   a change of a schema that records would contradict
    │   ├── SqlTextError                   *   columns or a condition that are not written as SQL writes them
    │   ├── SchemaExistsError                  the log declares a schema already
    │   ├── NoSchemaError                      the log declares no schema
    │   ├── SchemaChangedError             *   new records do not fit the schema that was begun with
    │   ├── RowRefusedError                *   a row that the log's schema has no record for; nothing was written
    │   ├── RecordMisfitError              *   a record does not fit the log's schema, which is strict
    │   ├── MissingExtraError              *   a library that a format of records needs is not installed
    │   ├── ObjectAddressError             *   an address that cannot be a place for cold files
    │   ├── OperationNotServedError            501: the proxy does not serve this kind of request
    │   └── LogNotFoundError               *   510: the log does not exist
    ├── NotAppliedError                        definitely not applied; state is as before
    │   ├── PeerRefusedError               *   the other end has not proved that it may be there
    │   ├── LogExistsError                 *   522: another client has just created the log
    │   ├── OwnershipAcquireFailedError    *   302: another client (`owner`) writes the log
    │   ├── LockingError                   *   504: the lock is not held
    │   ├── LogEmptyError                      509: a first or last record was asked of a log without records
    │   ├── WriteError                         514: the writer failed earlier; this record was not sent
    │   │   ├── WriteCancelledError            516: buffered behind a failed write; this record was not sent
    │   │   └── WriterDeposedError             504: another owner took the log; this record was not sent
    │   ├── OverCapacityError                  517: too many unacknowledged records or bytes
    │   │   └── TooManyProducersError          517: the log, or the client, has all the producers that it may have
    │   ├── StreamNotReadyError                518: a segment is being started and `failFastOnStreamNotReady` is on
    │   ├── SegmentFullError                   514: the segment has no position left; a new segment takes the record
    │   ├── ConditionError                     603: the log is not where the write requires it to be
    │   ├── ProducerError                      603: the producer's request does not follow its last one
    │   │   ├── ProducerFencedError            504: a newer epoch of the producer has begun
    │   │   └── SequenceGapError               513: requests of the producer before this one are missing
    │   ├── SegmentStateError                  603: segment metadata contradicts itself or what this writer knows
    │   ├── ReadError                          1001: a read failed; the reader must be opened again
    │   │   ├── AlreadyTruncatedError          511: the position lies in what was truncated or deleted
    │   │   ├── SegmentNotFoundError           525: a segment's data is gone though the log still lists it
    │   │   ├── PositionGapError               603: a record is missing between two delivered ones
    │   │   ├── ReadCancelledError             1002: the reader was closed under this read
    │   │   └── IdleReaderError                500: nothing arrived for `readerIdleErrorThresholdMillis`
    │   ├── ServiceUnavailableError            503: the proxy takes no requests at present: it starts, drains or stops
    │   │   └── ProxyUnreachableError          503: no proxy could be reached; nothing was sent
    │   ├── StreamUnavailableError             515: the proxy does not take the log at present; another may
    │   │   └── TooManyStreamsError            524: the proxy has all the logs that it may have
    │   ├── RegionUnavailableError             519: the proxy's region takes no logs at present; another may
    │   ├── ChecksumFailedError                523: the request that arrived at the proxy is not the one that was sent
    │   ├── NotEnoughBookiesError          *   fewer usable storage nodes than a segment needs
    │   ├── MetadataUnavailableError       *   505: ZooKeeper could not be reached; nothing was sent
    │   ├── BadVersionError                *   505: a conditional update lost the race
    │   ├── ObjectNotFoundError            *   a cold file is not where it was written
    │   ├── ObjectExistsError              *   an object of a new cold file's name is there already
    │   ├── StoreUnavailableError          *   an object store cannot at present, or was not reached
    │   │   └── StoreUnreachedError        *   an object store did not answer: no connection, or none in time
    │   ├── StoreRefusedError              *   an object store refuses: rights, credentials, no space
    │   └── CorruptDataError                   bytes read back are not what was written
    │       ├── InvalidEntryError              520: an entry's envelope or records cannot be decoded
    │       ├── DamagedColdFileError           a cold file is not what was written
    │       ├── DigestError                *   an entry fails its digest
    │       ├── RangeShortError            *   a cold file is shorter than what was written
    │       ├── SegmentListError           *   600: a segment in the middle of the log is missing
    │       ├── DuplicateLogError          *   600: a log is in two sub-namespaces of a federated namespace
    │       └── UnsupportedMetadataVersionError  *  521: segment metadata of another library version
    ├── OutcomeUnknownError                    may or may not have been applied: look before retrying
    │   ├── TransmitError                      507: the entry was sent; the next owner may find it or not
    │   ├── ProxyLostError                     500: the proxy, or the time, was gone before it had answered
    │   ├── SequencePassedError                513: later requests of the producer were written; this one, perhaps
    │   ├── ProducerForgottenError             513: the log knows nothing of the producer any more; perhaps written
    │   ├── ObjectOutcomeUnknownError      *   an object store's answer to a write was lost
    │   ├── ConnectionLossError            *   505: ZooKeeper's answer was lost
    │   └── SessionExpiredError            *   505: the ZooKeeper session ended with a request under way
    └── InvariantViolation                     600: a bug in dlspark

Those marked * belong to what lies below (`metadata`, `storage_node`, `dlspark.tables`, `dlspark.objects`) and are
named here because users meet them.
Users import all of them from here; our own code takes each from the module that defines it.
`status_code(error)` gives the code of any error, those of the lower floors included.
"""

from __future__ import annotations

from typing import ClassVar

from dlspark.objects.errors import (
    ObjectAddressError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectOutcomeUnknownError,
    RangeShortError,
    StoreRefusedError,
    StoreUnavailableError,
    StoreUnreachedError,
)
from dlspark.tables.declaration import SchemaChangedError
from dlspark.tables.errors import MissingExtraError, RecordMisfitError, RowRefusedError, SqlTextError
from dlspark.tables.evolution import EvolutionError
from dlspark.tables.types import InvalidSchemaError
from metadata.distributedlog.locks import LockingError, OwnershipAcquireFailedError
from metadata.distributedlog.log_folders import DuplicateLogError
from metadata.distributedlog.log_names import InvalidLogNameError, LogExistsError, LogNotFoundError
from metadata.distributedlog.namespaces import NamespaceInUseError, NotBoundError
from metadata.distributedlog.permissions import RequestDeniedError
from metadata.distributedlog.segments import SegmentListError, UnsupportedMetadataVersionError
from metadata.foundation.errors import (
    BadVersionError,
    CallerError,
    ConnectionLossError,
    CorruptDataError,
    DistributedLogError,
    InvariantViolation,
    MetadataUnavailableError,
    NoAuthError,
    NotAppliedError,
    OpenedElsewhereError,
    OutcomeUnknownError,
    SessionExpiredError,
)
from metadata.security.errors import IdentityError, NoExtraError, PeerRefusedError
from metadata.security.proofs import NotAuthenticatedError
from storage_node.errors import DigestError, NotEnoughBookiesError


class SettingsError(CallerError):
    """A setting is unknown, ill-typed or contradicts another; nothing was opened."""


class InvalidRecordError(CallerError):
    """A record that cannot be written; no record of its batch was written."""


class RecordTooLongError(InvalidRecordError):
    """A record over MAX_LOGRECORD_SIZE bytes; no record of its batch was written."""

    code: ClassVar[int] = 413


class TransactionIdOutOfOrderError(CallerError):
    """The transaction id is below the log's highest, negative, or the reserved maximum; nothing was written."""

    code: ClassVar[int] = 513


class EndOfStreamError(CallerError):
    """The log is sealed: a reader has delivered every record, and a writer writes nothing more."""

    code: ClassVar[int] = 512


class AlreadyClosedError(CallerError):
    """The writer, reader, log or namespace was closed before this call; nothing was done."""

    code: ClassVar[int] = 502


class OperationNotServedError(CallerError):
    """The proxy does not serve this kind of request: a read was asked of a write proxy, say. Nothing was done."""

    code: ClassVar[int] = 501


class LogEmptyError(NotAppliedError):
    """The log has no records, so it has neither a first nor a last one."""

    code: ClassVar[int] = 509


class WriteError(NotAppliedError):
    """The writer failed earlier (see `__cause__`); this record was not sent."""

    code: ClassVar[int] = 514


class WriteCancelledError(WriteError):
    """Buffered behind a write that failed; this record was not sent."""

    code: ClassVar[int] = 516


class WriterDeposedError(WriteError):
    """Another owner took the log; this record was not sent and this writer can write no more."""

    code: ClassVar[int] = 504


class OverCapacityError(NotAppliedError):
    """Too many records or bytes wait for acknowledgement; this one was not taken."""

    code: ClassVar[int] = 517


class TooManyProducersError(OverCapacityError):
    """The log, or the client, has as many producers as it may have; this one is new, and nothing of it was written."""


class StreamNotReadyError(NotAppliedError):
    """A segment is being started and `failFastOnStreamNotReady` is on; this record was not taken."""

    code: ClassVar[int] = 518


class SegmentFullError(NotAppliedError):
    """The segment has no position left (2^31 - 1 user records); nothing was encoded, a new segment takes the record."""

    code: ClassVar[int] = 514


class SegmentStateError(NotAppliedError):
    """Segment metadata contradicts itself or what this writer knows; nothing was changed."""

    code: ClassVar[int] = 603


class ConditionError(NotAppliedError):
    """The log is not where the write requires it to be: another position comes next, or another token fences it.
    Nothing was written; `actual` is what was found."""

    code: ClassVar[int] = 603

    def __init__(self, message: str, *, actual: object, log: str | None = None, advice: str | None = None) -> None:
        super().__init__(message, log=log, advice=advice)
        self.actual = actual


class ProducerError(NotAppliedError):
    """A producer's request that does not follow its last one; it was not written."""

    code: ClassVar[int] = 603


class ProducerFencedError(ProducerError):
    """A newer epoch of the producer has begun; the request of the older one was not written. `epoch` is the newest one,
    None where that is not known."""

    code: ClassVar[int] = 504
    epoch: int | None = None

    def __init__(self, message: str, *, epoch: int | None = None, advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.epoch = epoch


class SequenceGapError(ProducerError):
    """Requests of the producer before this one are missing; it was not written. `expected` is the next one's number."""

    code: ClassVar[int] = 513

    def __init__(self, message: str, *, expected: int, advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.expected = expected


class SchemaExistsError(CallerError):
    """The log declares a schema already; nothing was changed."""


class NoSchemaError(CallerError):
    """The log declares no schema; nothing was done."""


class ServiceUnavailableError(NotAppliedError):
    """The proxy takes no requests at present: it starts, drains or stops, or it can read no rules of access, or write
    no audit trail, and does nothing without them. Nothing was done. Another proxy may take it, or the same one later.
    """

    code: ClassVar[int] = 503


class ProxyUnreachableError(ServiceUnavailableError):
    """No proxy could be reached in the time given; nothing was sent, or what was sent was refused undone."""


class StreamUnavailableError(NotAppliedError):
    """The proxy does not take the log at present: it failed there lately, or the proxy has as many partitions as it
    may have. Nothing was done; another proxy may take it."""

    code: ClassVar[int] = 515


class TooManyStreamsError(StreamUnavailableError):
    """The proxy has all the logs that it may have, or gets new ones too fast; nothing was done."""

    code: ClassVar[int] = 524


class RegionUnavailableError(NotAppliedError):
    """The proxy's region takes no logs at present; nothing was done. A proxy of another region may."""

    code: ClassVar[int] = 519


class ChecksumFailedError(NotAppliedError):
    """The request that arrived at the proxy is not the one that was sent, by its checksum; nothing was done."""

    code: ClassVar[int] = 523


class ReadError(NotAppliedError):
    """A read failed. The reader stays failed: open another at the position after the last record delivered."""

    code: ClassVar[int] = 1001


class AlreadyTruncatedError(ReadError):
    """The position is in a part of the log that was truncated or deleted."""

    code: ClassVar[int] = 511


class SegmentNotFoundError(ReadError):
    """The log lists a segment whose ledger, and with it the data, is gone."""

    code: ClassVar[int] = 525


class PositionGapError(ReadError):
    """A record is missing between two delivered ones (I4)."""

    code: ClassVar[int] = 603


class ReadCancelledError(ReadError):
    """The reader was closed while this read waited."""

    code: ClassVar[int] = 1002


class IdleReaderError(ReadError):
    """Nothing arrived for a waiting read in `readerIdleErrorThresholdMillis` milliseconds."""

    code: ClassVar[int] = 500


class InvalidEntryError(CorruptDataError):
    """An entry's envelope or records cannot be decoded."""

    code: ClassVar[int] = 520


class DamagedColdFileError(CorruptDataError):
    """A cold file is not what was written: nothing of the damaged part is returned (I12).

    `url` is the file, `row_group`, `column` and `page` (from 0) are where it is damaged, as far as that is known.
    """

    url: str = ""
    row_group: int | None = None
    column: str | None = None
    page: int | None = None

    def __init__(
        self,
        message: str,
        *,
        url: str,
        row_group: int | None = None,
        column: str | None = None,
        page: int | None = None,
        dlsn: object | None = None,
        advice: str | None = None,
    ) -> None:
        places = (("row group", row_group), ("column", column), ("page", page))
        where = "".join(f", {name} {value}" for name, value in places if value is not None)
        super().__init__(
            f"a cold file is damaged{where}: {message}; nothing of that part was read",
            path=url,
            dlsn=dlsn,
            advice=advice
            or "Read it again; if it stays so, restore the object from a copy or an older version of it, and see what "
            "else is damaged with dlspark cold verify",
        )
        self.url = url
        self.row_group = row_group
        self.column = column
        self.page = page


class TransmitError(OutcomeUnknownError):
    """The entry was sent and not acknowledged: recovery by the next owner may keep it or drop it."""

    code: ClassVar[int] = 507


class ProxyLostError(OutcomeUnknownError):
    """The connection to the proxy was lost, or the time was up, before the request was answered: it may have been
    done. What was written as a producer's request can be sent again as it is."""


class SequencePassedError(OutcomeUnknownError):
    """Later requests of the producer were written, and gaps are allowed; whether this one was is not known any more."""

    code: ClassVar[int] = 513


class ProducerForgottenError(OutcomeUnknownError):
    """The log knows nothing of the producer, and has forgotten some: it was silent for long, or the segments that knew
    it are gone. This request was not written now; whether it was before is not known. `epoch` is the highest one of
    which something may have been forgotten: what is written in a later one is new."""

    code: ClassVar[int] = 513
    epoch: int | None = None

    def __init__(self, message: str, *, epoch: int | None = None, advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.epoch = epoch


_DEFAULT_CODE = 500
_CODES_OF_LOWER_FLOORS: dict[type[BaseException], int] = {
    InvariantViolation: 600,
    BadVersionError: 505,
    ConnectionLossError: 505,
    SessionExpiredError: 505,
    MetadataUnavailableError: 505,
    NoAuthError: 505,
}


def status_code(error: BaseException) -> int:
    """Return the upstream status code of `error` (500 where upstream has none of its own)."""
    for kind in type(error).__mro__:
        code = vars(kind).get("code", _CODES_OF_LOWER_FLOORS.get(kind))
        if isinstance(code, int):
            return code
    return _DEFAULT_CODE


__all__ = [
    "AlreadyClosedError",
    "AlreadyTruncatedError",
    "BadVersionError",
    "CallerError",
    "ChecksumFailedError",
    "ConditionError",
    "ConnectionLossError",
    "CorruptDataError",
    "DamagedColdFileError",
    "DigestError",
    "DistributedLogError",
    "DuplicateLogError",
    "EndOfStreamError",
    "EvolutionError",
    "IdentityError",
    "IdleReaderError",
    "InvalidEntryError",
    "InvalidLogNameError",
    "InvalidRecordError",
    "InvalidSchemaError",
    "InvariantViolation",
    "LockingError",
    "LogEmptyError",
    "LogExistsError",
    "LogNotFoundError",
    "MetadataUnavailableError",
    "MissingExtraError",
    "NamespaceInUseError",
    "NoAuthError",
    "NoExtraError",
    "NoSchemaError",
    "NotAppliedError",
    "NotAuthenticatedError",
    "NotBoundError",
    "NotEnoughBookiesError",
    "ObjectAddressError",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "ObjectOutcomeUnknownError",
    "OpenedElsewhereError",
    "OperationNotServedError",
    "OutcomeUnknownError",
    "OverCapacityError",
    "OwnershipAcquireFailedError",
    "PeerRefusedError",
    "PositionGapError",
    "ProducerError",
    "ProducerFencedError",
    "ProducerForgottenError",
    "ProxyLostError",
    "ProxyUnreachableError",
    "RangeShortError",
    "ReadCancelledError",
    "ReadError",
    "RecordMisfitError",
    "RecordTooLongError",
    "RegionUnavailableError",
    "RequestDeniedError",
    "RowRefusedError",
    "SchemaChangedError",
    "SchemaExistsError",
    "SegmentFullError",
    "SegmentListError",
    "SegmentNotFoundError",
    "SegmentStateError",
    "SequenceGapError",
    "SequencePassedError",
    "ServiceUnavailableError",
    "SessionExpiredError",
    "SettingsError",
    "SqlTextError",
    "StoreRefusedError",
    "StoreUnavailableError",
    "StoreUnreachedError",
    "StreamNotReadyError",
    "StreamUnavailableError",
    "TooManyProducersError",
    "TooManyStreamsError",
    "TransactionIdOutOfOrderError",
    "TransmitError",
    "UnsupportedMetadataVersionError",
    "WriteCancelledError",
    "WriteError",
    "WriterDeposedError",
    "status_code",
]
