"""Failures of a writer: its own, those of records that the caller does not wait for, and the loss of its lock.

`explain_failure`, `writer_failed_error` and `step_failed_error` make the errors: what happened to the log or the lock,
and what that means for a record.

`UnawaitedFailures` keeps the failures of records that are answered before they are stored (`isDurableWriteEnabled`
off). No future reports such a failure, so it is kept and raised by the next call: never dropped in silence (D17).

`OwnershipWatch` takes a lost lock again. A lock that is lost with its session is taken again in the background, while
writing goes on: fencing (I5) and versions (I7) keep a deposed owner from doing harm. Only a lock that another owner has
now ends the writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from dlspark.core.services import Services
from dlspark.core.write_lock import WriteLock
from dlspark.errors import WriteError, WriterDeposedError
from metadata.distributedlog.locks import LockClosedError, LockingError, OwnershipAcquireFailedError
from metadata.foundation.errors import BadVersionError, DistributedLogError
from metadata.foundation.plurals import counted
from metadata.foundation.tasks import end_tasks
from metadata.store import SessionState

ADVICE_REOPEN = "Open the writer again, and write again from the first record that was not acknowledged"


def explain_failure(log: str, cause: BaseException) -> BaseException:
    """Return `cause` as the failure of the writer: where its log or lock is gone, an error that says so."""
    error: WriteError
    if isinstance(cause, LockClosedError):
        error = WriteError(
            f"its lock was given up when the metadata session was closed: {cause.message}",
            log=log,
            advice="Open the namespace and the writer again; close writers before the session",
        )
    elif isinstance(cause, LockingError):
        # After LockClosedError, which is one, too: a lock that was given up here says nothing of another owner.
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


def writer_failed_error(log: str, failure: BaseException | None) -> WriteError:
    """Return the error of a record that is written to, or still queued in, a writer that has failed: it was not
    written."""
    return _failed_error("The record was not written, the writer has failed", log, failure)


def step_failed_error(log: str, failure: BaseException | None) -> WriteError:
    """Return the error of what else was asked of a writer that has failed, as to flush: it was not done. It says
    nothing of records, each of which has an outcome of its own."""
    return _failed_error("The writer has failed", log, failure)


def _failed_error(what: str, log: str, failure: BaseException | None) -> WriteError:
    kind = WriterDeposedError if isinstance(failure, WriterDeposedError) else WriteError
    cause = failure.message if isinstance(failure, DistributedLogError) else repr(failure)
    error = kind(f"{what}: {cause}", log=log, advice=ADVICE_REOPEN)
    error.__cause__ = failure
    return error


# ------------------------------------------------------------------ records that are not waited for

_T = TypeVar("_T")


class UnawaitedFailures:
    """The unawaited records of one writer."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._failures = 0
        self._first: BaseException | None = None

    def instead_of(self, future: asyncio.Future[_T], answer: _T) -> asyncio.Future[_T]:
        """Return a future that has `answer` already, in place of `future`; `future` itself if it was refused at
        once."""
        if future.done():
            return future
        # The record is on its way: what becomes of it is seen here alone, and raised by the next call (D17).
        future.add_done_callback(self._settled)
        at_once: asyncio.Future[_T] = future.get_loop().create_future()
        at_once.set_result(answer)
        return at_once

    def _settled(self, future: asyncio.Future[_T]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._failures += 1
            self._first = self._first or error

    def forget(self) -> None:
        """Drop what has failed up to now: another error, which is being raised, reports it."""
        self._first, self._failures = None, 0

    def raise_failure(self, and_now: str = "") -> None:
        """Raise, once, a WriteError for the records that failed and were not waited for.

        `and_now` ends its message: what that means for the call that raises it.
        """
        first, failures = self._first, self._failures
        if first is None:
            return
        self.forget()  # before it is raised: each loss is reported once
        why = first.message if isinstance(first, DistributedLogError) else repr(first)
        raise WriteError(
            f"{counted(failures, 'record that was', 'records that were')} not waited for may be lost: {why}{and_now}",
            log=self._log,
            advice="Read the log's end to see what it keeps; isDurableWriteEnabled=true waits for each record",
        ) from first


# ------------------------------------------------------------------ a lock that is lost

LOCK_CHECK_S = 0.2
"""How often a lost lock is checked while it is being taken again, in seconds."""


class OwnershipWatch:
    """Has a lost lock taken again; calls `on_lost` with the error once that is not possible any more."""

    def __init__(self, services: Services, lock: WriteLock, on_lost: Callable[[DistributedLogError], None]) -> None:
        self._lock = lock
        self._on_lost = on_lost
        self._watching: asyncio.Task[None] | None = None
        self._ended = False
        self._forget_session = services.store.on_session(self._session_changed)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self.look()

    def look(self) -> None:
        """Watch the lock until it is held again, or another owner has it. Called where it is not held."""
        if self._watching is None and not self._ended:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        try:
            while not self._ended and not self._lock.held:
                await self._lock.ensure_held()
                await asyncio.sleep(LOCK_CHECK_S)  # `ensure_held` returns while the lock is still being taken again
        except DistributedLogError as error:
            self._on_lost(error)
        finally:
            self._watching = None

    def end(self) -> None:
        """Watch no longer: the writer has failed. `close` waits for the task."""
        self._ended = True

    async def close(self) -> None:
        """End for good. Idempotent."""
        self.end()
        self._forget_session()
        if self._watching is not None:
            await end_tasks([self._watching])
