"""Errors as refusals, and back: what a proxy raises is what its client raises. No I/O.

A refusal carries the name of the error's class, and the same class is raised on the other side. Names are the wire's:
here, and nowhere else, they are turned into classes (`error_named`) and made of them (`refusal_of`). For an unknown
name, or none, it is the class of the reason (`NAME_OF_REASON`) or of the status code (`ERROR_OF_CODE`). What a client
does about a refusal hangs on its reason and its code alone (`client.answer_rules`).

Whether the thing was done outweighs everything else: an error whose outcome is not the refusal's is never raised. What
may have happened stays OutcomeUnknownError, whatever name and code came with it; and an exception that is not of the
error tree, a bug, may have come after the thing was done.
"""

from __future__ import annotations

import re
from typing import Final

from dlspark import errors
from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import (
    AlreadyClosedError,
    AlreadyTruncatedError,
    ChecksumFailedError,
    ConditionError,
    EndOfStreamError,
    InvalidEntryError,
    LogEmptyError,
    OperationNotServedError,
    OverCapacityError,
    ProducerFencedError,
    ProducerForgottenError,
    ReadCancelledError,
    ReadError,
    RecordTooLongError,
    RegionUnavailableError,
    SegmentNotFoundError,
    SegmentStateError,
    SequenceGapError,
    ServiceUnavailableError,
    StreamNotReadyError,
    StreamUnavailableError,
    TooManyStreamsError,
    TransactionIdOutOfOrderError,
    TransmitError,
    WriteCancelledError,
    WriteError,
    status_code,
)
from dlspark.objects.errors import ObjectStoreError
from dlspark.serving.protocol.operations import NAME_OF_REASON, REASON_OF_NAME, Applied, Reason, Refusal, StatusCode
from metadata.distributedlog.locks import (
    LockClosedError,
    LockingError,
    LockReplacedError,
    LockSessionExpiredError,
    OwnershipAcquireFailedError,
)
from metadata.distributedlog.log_folders import DuplicateLogError
from metadata.distributedlog.log_names import InvalidLogNameError, LogExistsError, LogNotFoundError
from metadata.distributedlog.permissions import RequestDeniedError
from metadata.distributedlog.segments import SegmentListError, UnsupportedMetadataVersionError
from metadata.foundation.errors import (
    CallerError,
    DistributedLogError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotAppliedError,
    NotEmptyError,
    OutcomeUnknownError,
)
from storage_node import errors as storage_errors
from storage_node.errors import BookieError

MAX_MESSAGE_CHARS: Final = 4096
"""Longer messages and advice are cut: a refusal has to fit in a frame."""

_ROOTS: Final = (DistributedLogError, BookieError, ObjectStoreError)
"""They do not say whether it was done, and are not raised as they are."""
_WHERE: Final = ("dlsn", "ledger_id", "entry_id", "node", "path")
_TEXT_OF_DLSN: Final = re.compile(r"-?[0-9]+:-?[0-9]+:-?[0-9]+")


def _kinds_of(names: dict[str, object]) -> list[type[DistributedLogError]]:
    return [kind for kind in names.values() if isinstance(kind, type) and issubclass(kind, DistributedLogError)]


ERROR_OF_NAME: Final[dict[str, type[DistributedLogError]]] = {
    kind.__name__: kind
    for kind in (
        *_kinds_of(vars(errors)),
        *_kinds_of(vars(storage_errors)),
        LockClosedError,
        LockReplacedError,
        LockSessionExpiredError,
        NoNodeError,
        NodeExistsError,
        NotEmptyError,
    )
    if kind not in _ROOTS
}
"""The errors that travel under their own names; one that only the core knows travels as the nearest of these, or by its
code. A thin client imports this module, so it leads to no writer, reader or storage client."""

ERROR_OF_CODE: Final[dict[StatusCode, type[DistributedLogError]]] = {
    StatusCode.CLIENT_CLOSED: AlreadyClosedError,
    StatusCode.FOUND: OwnershipAcquireFailedError,
    StatusCode.REQUEST_DENIED: RequestDeniedError,
    StatusCode.TOO_LARGE_RECORD: RecordTooLongError,
    StatusCode.NOT_IMPLEMENTED: OperationNotServedError,
    StatusCode.ALREADY_CLOSED: AlreadyClosedError,
    StatusCode.SERVICE_UNAVAILABLE: ServiceUnavailableError,
    StatusCode.LOCKING_EXCEPTION: LockingError,
    StatusCode.ZOOKEEPER_ERROR: MetadataUnavailableError,
    StatusCode.METADATA_EXCEPTION: SegmentStateError,
    StatusCode.BK_TRANSMIT_ERROR: TransmitError,
    StatusCode.FLUSH_TIMEOUT: TransmitError,
    StatusCode.LOG_EMPTY: LogEmptyError,
    StatusCode.LOG_NOT_FOUND: LogNotFoundError,
    StatusCode.TRUNCATED_TRANSACTION: AlreadyTruncatedError,
    StatusCode.END_OF_STREAM: EndOfStreamError,
    StatusCode.TRANSACTION_OUT_OF_ORDER: TransactionIdOutOfOrderError,
    StatusCode.WRITE_EXCEPTION: WriteError,
    StatusCode.STREAM_UNAVAILABLE: StreamUnavailableError,
    StatusCode.WRITE_CANCELLED: WriteCancelledError,
    StatusCode.OVER_CAPACITY: OverCapacityError,
    StatusCode.STREAM_NOT_READY: StreamNotReadyError,
    StatusCode.REGION_UNAVAILABLE: RegionUnavailableError,
    StatusCode.INVALID_ENVELOPED_ENTRY: InvalidEntryError,
    StatusCode.UNSUPPORTED_METADATA_VERSION: UnsupportedMetadataVersionError,
    StatusCode.LOG_EXISTS: LogExistsError,
    StatusCode.CHECKSUM_FAILED: ChecksumFailedError,
    StatusCode.TOO_MANY_STREAMS: TooManyStreamsError,
    StatusCode.LOG_SEGMENT_NOT_FOUND: SegmentNotFoundError,
    StatusCode.INVALID_STREAM_NAME: InvalidLogNameError,
    StatusCode.LOG_READ_ERROR: ReadError,
    StatusCode.RETRYABLE_READ: ReadError,
    StatusCode.READ_CANCELLED: ReadCancelledError,
}
"""What a refusal without a name is raised as, where its outcome is that class's; another is raised by its outcome."""

REASON_OF_ERROR: Final[dict[type[DistributedLogError], Reason]] = {
    ERROR_OF_NAME[name]: reason for name, reason in REASON_OF_NAME.items()
}
"""What a proxy says beside the code of an error of this class, or of one below it."""

_WITHOUT_REASON: Final = frozenset(
    {
        DuplicateLogError,
        SegmentListError,
        UnsupportedMetadataVersionError,
        storage_errors.JournalCorruptError,
    }
)
"""Damage of metadata, or of one node: another proxy may see something else."""

_BARE: Final[dict[Applied, type[DistributedLogError]]] = {
    Applied.NO: NotAppliedError,
    Applied.WRONG: CallerError,
    Applied.UNKNOWN: OutcomeUnknownError,
}


def applied_of(kind: type[BaseException]) -> Applied:
    """Return whether what failed with such an error was done; UNKNOWN for what does not say."""
    if issubclass(kind, CallerError):
        return Applied.WRONG
    return Applied.NO if issubclass(kind, NotAppliedError) else Applied.UNKNOWN


def error_named(name: str) -> type[DistributedLogError] | None:
    """Return the class of an error that travels under this name; None for a name that this side does not know."""
    return ERROR_OF_NAME.get(name)


def refusal_of(error: BaseException) -> Refusal:
    """Return the refusal that says what `error` says."""
    if not isinstance(error, DistributedLogError):
        code = StatusCode.INTERNAL_SERVER_ERROR if isinstance(error, OSError) else StatusCode.UNEXPECTED
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return Refusal(code, _cut(said), applied=Applied.UNKNOWN)
    return Refusal(
        StatusCode(status_code(error)),
        _cut(_message(error)),
        location=error.owner if isinstance(error, OwnershipAcquireFailedError) else None,
        applied=applied_of(type(error)),
        error=_name(type(error)),
        actual=_actual(error),
        advice=_cut(error.advice) if error.advice is not None else None,
        reason=_reason(type(error)),
    )


def error_of(refusal: Refusal, *, stream: str | None) -> DistributedLogError:
    """Return the error that a client raises for a refusal of a request on `stream`."""
    kind = _kind(refusal)
    # Past the class's own __init__, which may want arguments that a refusal does not carry.
    error = kind.__new__(kind)
    DistributedLogError.__init__(error, refusal.message, advice=refusal.advice, log=stream)
    if isinstance(error, OwnershipAcquireFailedError):
        error.owner = refusal.location or "another proxy"
    elif isinstance(error, ConditionError):
        error.actual = _found(refusal.actual)
    elif isinstance(error, ProducerFencedError | ProducerForgottenError):
        error.epoch = refusal.actual if isinstance(refusal.actual, int) else None
    elif isinstance(error, SequenceGapError):
        error.expected = refusal.actual if isinstance(refusal.actual, int) else 0
    return error


def _name(kind: type[DistributedLogError]) -> str:
    """Return the nearest class that the other side knows; empty where that says no more than the outcome."""
    known = next((one for one in kind.__mro__ if error_named(one.__name__) is one), None)
    # Of a class that clients do not know, a bare outcome says nothing; the code does, and is asked where no name is.
    if known is None or (known is not kind and known in _BARE.values()):
        return ""
    return known.__name__


def _reason(kind: type[DistributedLogError]) -> Reason:
    """Return the reason of the nearest class which has one: a new kind of an error is decided about as the old one."""
    for one in kind.__mro__:
        if one in _WITHOUT_REASON:
            break
        if one in REASON_OF_ERROR:
            return REASON_OF_ERROR[one]
    return Reason.NONE


def _kind(refusal: Refusal) -> type[DistributedLogError]:
    for kind in (
        error_named(refusal.error),
        error_named(NAME_OF_REASON.get(refusal.reason, "")),
        ERROR_OF_CODE.get(refusal.code),
    ):
        # A name never makes a doubtful outcome a certain one, or the reverse: retries hang on it.
        if kind is not None and applied_of(kind) is refusal.applied:
            return kind
    return _BARE[refusal.applied]


def _message(error: DistributedLogError) -> str:
    """Return the message with what the refusal has no field for: the entry, node or path. The log is the request's
    stream."""
    known = {name.removesuffix("_id"): getattr(error, name) for name in _WHERE}
    where = ", ".join(f"{name} {value}" for name, value in known.items() if value is not None)
    return f"{error.message} [{where}]" if where else error.message


def _cut(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[: MAX_MESSAGE_CHARS - 3]}..."


def _actual(error: DistributedLogError) -> str | int | None:
    """Return what was found: a number as it is, a position as segment:entry:slot, a fencing token in hexadecimal
    digits."""
    if isinstance(error, SequenceGapError):
        return error.expected
    if isinstance(error, ProducerFencedError | ProducerForgottenError):
        return error.epoch
    if not isinstance(error, ConditionError):
        return None
    found = error.actual
    if found is None or isinstance(found, int):
        return found
    return found.hex() if isinstance(found, bytes) else str(found)


def _found(actual: str | int | None) -> DLSN | bytes | str | int | None:
    if not isinstance(actual, str):
        return actual
    try:
        return DLSN.parse(actual) if _TEXT_OF_DLSN.fullmatch(actual) else bytes.fromhex(actual)
    except (CallerError, ValueError):
        return actual
