"""How a writer that has failed says why: what became of its log or lock, and what that means for a record."""

from __future__ import annotations

from dlspark.errors import DistributedLogError, WriteError, WriterDeposedError
from metadata.foundation.errors import BadVersionError
from metadata.locks import LockClosedError, LockingError, OwnershipAcquireFailedError

ADVICE_REOPEN = "Open the writer again, and write again from the first record that was not acknowledged"


def told(log: str, cause: BaseException) -> BaseException:
    """The failure of a writer whose log or lock is gone: what has happened to it."""
    error: WriteError
    if isinstance(cause, LockClosedError):
        error = WriteError(
            f"its lock was given up when the metadata session was closed: {cause.message}",
            log=log,
            advice="Open the namespace and the writer again; close writers before the session",
        )
    elif isinstance(cause, LockingError):
        error = WriterDeposedError(f"its lock was lost: {cause.message}", log=log, advice=ADVICE_REOPEN)
    elif isinstance(cause, BadVersionError | OwnershipAcquireFailedError):
        error = WriterDeposedError(
            f"another owner has the log: {cause.message}",
            log=log,
            advice="Open the writer again; it waits for the other owner or reports it",
        )
    else:
        return cause
    error.__cause__ = cause
    return error


def refused(log: str, failure: BaseException | None) -> WriteError:
    """What a record is given that comes, or waits, when the writer has failed."""
    kind = WriterDeposedError if isinstance(failure, WriterDeposedError) else WriteError
    cause = failure.message if isinstance(failure, DistributedLogError) else repr(failure)
    error = kind(f"The record was not written, the writer has failed: {cause}", log=log, advice=ADVICE_REOPEN)
    error.__cause__ = failure
    return error
