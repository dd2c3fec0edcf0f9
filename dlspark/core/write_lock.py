"""A log's write lock as its owner knows it, and what stands in its place where `writeLockEnabled` is off.

Safety does not rest on the lock: fencing (I5) and versions (I7) stop a deposed owner. The lock keeps two processes that
want the log from deposing each other all the time, and its member guards transactions against a log that was deleted
and made again. Without a lock the owner is the client that opened the log last.
"""

from __future__ import annotations

import logging
import os
import socket
from contextlib import nullcontext
from typing import Protocol

from dlspark.core.metrics.cells import Timing
from dlspark.core.metrics.structured_logging import about
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from metadata.distributedlog.locks import DistributedLock, OwnershipAcquireFailedError
from metadata.distributedlog.log_names import log_not_found_error
from metadata.foundation.errors import DistributedLogError, NoNodeError
from metadata.store import ANY_VERSION, Check, Op

_log = logging.getLogger(__name__)


def default_client_id() -> str:
    """Return how this process names itself in a lock: host and process id."""
    return f"{socket.gethostname()}/{os.getpid()}"


class WriteLock(Protocol):
    """A log's lock as its owner uses it."""

    @property
    def held(self) -> bool:
        """True if it is held as this process knows; the store may have given it to another client already."""
        ...

    @property
    def member_path(self) -> str:
        """A znode that exists as long as the lock is held: transactions check that."""
        ...

    def release_op(self) -> Op:
        """Return what gives it up within a transaction, which fails unless it is held. Raises LockingError."""
        ...

    def deleted(self, op: Op) -> None:
        """Note that a transaction with this `release_op` was applied. `release` is still to be called."""
        ...

    async def ensure_held(self) -> None:
        """Return if it is held, or being taken again; raise LockingError or OwnershipAcquireFailedError if not."""
        ...

    async def confirmed(self) -> bool:
        """Return whether the metadata store itself says, after this call, that it is held."""
        ...

    async def release(self) -> None:
        """Give it up. Idempotent. After an error it ends with the session."""
        ...


class NoLock:
    """In place of a lock where `writeLockEnabled` is off."""

    def __init__(self, path: str) -> None:
        """Hold nothing. `path`: the parent of the lock's members, which is there as long as the log is."""
        self._path = path

    @property
    def held(self) -> bool:
        """Always: nothing can be lost."""
        return True

    @property
    def member_path(self) -> str:
        """The parent of the lock's members, so that transactions fail once the log is deleted."""
        return self._path

    def release_op(self) -> Op:
        """Give nothing up: the transaction fails once the log is deleted."""
        return Check(self._path, ANY_VERSION)

    def deleted(self, op: Op) -> None:
        """Pass: there was nothing to give up."""

    async def ensure_held(self) -> None:
        """Pass: there is nothing to lose."""

    async def confirmed(self) -> bool:
        """Return False: nothing shows which of two owners came last."""
        return False

    async def release(self) -> None:
        """Pass: there is nothing to release."""


async def take_lock(services: Services, name: str, settings: Settings, client_id: str | None) -> WriteLock:
    """Return the log's write lock, held.

    Raises OwnershipAcquireFailedError naming the owner after `lockTimeoutSeconds`, and LogNotFoundError.
    """
    path = (await services.logs.located(name)).lock
    if not settings.write_lock:
        return NoLock(path)
    measures = services.meter.of(name)
    lock = DistributedLock(
        services.store, path, client_id or default_client_id(), on_reacquired=measures.lock_reacquire.record
    )
    try:
        with services.meter.step(measures.lock_acquire, "lock acquire", log=name):
            await lock.acquire(settings.lock_timeout_s * 1000)
    except BaseException as error:
        measures.lock_try_timeouts.inc(isinstance(error, OwnershipAcquireFailedError))
        # Also when cancelled: a member left in the queue would become owner with no writer behind it.
        await release(lock)
        if isinstance(error, NoNodeError):
            raise log_not_found_error(name, error.path) from error
        raise
    return lock


async def release(lock: WriteLock, unlock: Timing | None = None) -> None:
    """Give the lock up. Where the store cannot be reached the lock ends with the session, so this only logs a warning:
    a writer's close does not fail for it.

    `unlock` counts how long that took.
    """
    try:
        with unlock.measured() if unlock is not None else nullcontext():
            await lock.release()
    except DistributedLogError as error:
        _log.warning(
            "the lock could not be released, it ends with its session: %s",
            error,
            extra=about(log=error.log, path=error.path),
        )
