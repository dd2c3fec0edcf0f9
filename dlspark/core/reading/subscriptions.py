"""`Subscriptions`: the positions that named subscribers of a log have reached, kept in the log's metadata.

A position is the next one to read. It is stored as upstream stores it, so that subscribers may move between the two
libraries: a DLSN, version 1, in base64 (docs/reference/znodes.md#subscribers). It only moves forwards, unless
asked to go back.
"""

from __future__ import annotations

import asyncio
import logging

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.metrics.structured_logging import about
from dlspark.core.write_lock import default_client_id
from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.locks import DistributedLock, LockingError
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.subscribers import READ_LOCK, SubscriberStore
from metadata.foundation.errors import (
    BadVersionError,
    CallerError,
    NoNodeError,
    NotAppliedError,
    NotEmptyError,
    OutcomeUnknownError,
)
from metadata.store import Delete

_log = logging.getLogger(__name__)

ATTEMPTS = 20
"""How often a position is compared and set, while other clients move it at the same time, before that fails."""


class Subscriptions:
    """The subscribers of one log."""

    def __init__(self, logs: LogStore, name: str) -> None:
        self.name = name
        self._subscribers = SubscriberStore(logs)

    async def positions(self) -> dict[str, DLSN]:
        """Return all subscribers with their positions; DLSN.NON_INCLUSIVE_LOWER_BOUND for those that stored none yet.

        Raises LogNotFoundError.
        """
        names = await self._subscribers.names(self.name)
        stored = await asyncio.gather(*(self._subscribers.position(self.name, name) for name in names))
        return {name: self._decoded(name, one) for name, one in zip(names, stored, strict=True) if one is not None}

    async def position(self, subscriber: str) -> DLSN | None:
        """Return where the subscriber goes on; None where it has not stored a position. Raises LogNotFoundError."""
        stored = await self._subscribers.position(self.name, subscriber)
        position = self._decoded(subscriber, stored)
        return None if position == DLSN.NON_INCLUSIVE_LOWER_BOUND else position

    def _decoded(self, subscriber: str, stored: Versioned[bytes] | None) -> DLSN:
        if stored is None or not stored.value:
            return DLSN.NON_INCLUSIVE_LOWER_BOUND
        try:
            return DLSN.from_base64(stored.value.decode("ascii"))
        except (CallerError, UnicodeDecodeError):
            # As upstream: what cannot be read counts as nothing, and the next commit replaces it.
            _log.warning(
                "log %s: subscriber %s has stored what is not a position: %r",
                self.name,
                subscriber,
                stored.value,
                extra=about(log=self.name),
            )
            return DLSN.NON_INCLUSIVE_LOWER_BOUND

    async def commit(self, subscriber: str, dlsn: DLSN, *, member: str | None = None, back: bool = False) -> DLSN:
        """Store `dlsn` as the subscriber's position unless it is behind the stored one; returns what is stored now.

        `member` is the lock member of the reader that commits: nothing is stored once it is gone. `back` stores any
        position. The subscriber is made on demand. Raises LockingError where `member` is gone, LogNotFoundError, and an
        OutcomeUnknownError, after which it may be called again.
        """
        data = dlsn.to_base64().encode("ascii")
        # A lost answer is settled by reading again: a stored position that is ours, or further on, means success.
        doubt: OutcomeUnknownError | None = None
        for _ in range(ATTEMPTS):
            stored = await self._subscribers.position(self.name, subscriber)
            if stored is None:
                await self._subscribers.make(self.name, subscriber)
                continue
            if stored.value == data or (not back and self._decoded(subscriber, stored) >= dlsn):
                return self._decoded(subscriber, stored)
            try:
                await self._subscribers.put(self.name, subscriber, data, stored.version, member)
            except BadVersionError:
                continue
            except OutcomeUnknownError as error:
                doubt = error
                continue
            except NoNodeError as error:
                if error.path == member:
                    raise self._not_held_error(member) from error
                continue
            return dlsn
        raise doubt or NotAppliedError("the position keeps being moved by others", log=self.name, dlsn=dlsn)

    def _not_held_error(self, member: str | None) -> LockingError:
        return LockingError(
            "the reader's lock is not held any more; the position was not stored",
            log=self.name,
            path=member,
            advice="Open the reader again: it goes on at the position stored last",
        )

    async def delete(self, subscriber: str) -> None:
        """Forget a subscriber and its position; a missing one is a success.

        Raises OwnershipAcquireFailedError, with the reader's name, while a reader is open for it.
        """
        path = await self._subscribers.path(self.name, subscriber)
        for _ in range(ATTEMPTS):
            try:
                if await self._delete(path):
                    return
            except (NoNodeError, NotEmptyError):
                continue  # Something came or went meanwhile.
        raise NotAppliedError("readers keep coming to the subscriber", log=self.name, path=path)

    async def _delete(self, path: str) -> bool:
        """Delete the znodes, under the subscriber's lock where it has one. True once it is gone."""
        store = self._subscribers.store
        if await store.exists(path) is None:
            return True
        lock_path = f"{path}/{READ_LOCK}"
        if await store.exists(lock_path) is None:
            await store.multi([Delete(path)])
            return True
        lock = DistributedLock(store, lock_path, default_client_id())
        await lock.acquire(0)
        try:
            release = lock.release_op()
            # With the lock's release in one transaction: no reader can take the lock in between, and lose its position.
            await store.multi([release, Delete(lock_path), Delete(path)])
            lock.deleted(release)
        finally:
            await lock.release()
        return True
