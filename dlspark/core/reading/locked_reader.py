"""`AsyncLockedReader`: a reader that reads alone, for a log or for one of its subscribers.

The lock is upstream's, so readers of both libraries exclude each other. It is lost with the metadata session. Then the
reader fails at once, and delivers nothing more of what it had read ahead, because another reader may have begun. Unlike
a writer it does not take the lock again: fencing stops a deposed writer, and nothing of the kind would stop a reader. A
subscriber's position is stored only while the lock is held: the store checks that in the same transaction. What was
delivered and not committed when the lock was lost is delivered again to the subscriber's next reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.reading.reader import AsyncLogReader, Start
from dlspark.core.reading.subscriptions import Subscriptions
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.core.write_lock import default_client_id
from metadata.distributedlog.locks import DistributedLock, LockingError, OwnershipAcquireFailedError
from metadata.distributedlog.subscribers import SubscriberStore
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.store import SessionState


class AsyncLockedReader(AsyncLogReader):
    """Reads the records of one log as its only reader, or as the only one of a subscriber whose position it stores.

    `AsyncLog.open_reader` returns it, given a subscriber or `exclusive`. A subscriber's next reader goes on where
    `commit_position` was called last. Without its lock it delivers nothing more, and raises LockingError.
    """

    def __init__(
        self,
        services: Services,
        name: str,
        settings: Settings,
        start: DLSN,
        locate: Callable[[Start], Awaitable[DLSN]],
        lock: DistributedLock,
        subscriber: str | None,
    ) -> None:
        """Use `open` instead."""
        super().__init__(services, name, settings, start, locate)
        self.subscriber = subscriber
        """The subscriber that it reads for; None for the log's exclusive reader, which has no stored position."""
        self._lock = lock
        self._releasing: asyncio.Task[None] | None = None
        self._subscriptions = Subscriptions(services.logs, name)
        self._unsubscribe = services.store.on_session(self._session_changed)
        if not lock.held:  # Lost while the start was looked for, before this reader watched the session.
            self._lose(self._lock_lost_error())

    @classmethod
    async def open(
        cls,
        services: Services,
        name: str,
        settings: Settings,
        locate: Callable[[Start], Awaitable[DLSN]],
        *,
        start: Start | None,
        subscriber: str | None,
        client_id: str | None,
    ) -> AsyncLockedReader:
        """Take the lock, then find the start: the stored position unless one is given.

        Raises OwnershipAcquireFailedError with the other reader's name after `lockTimeoutSeconds`, LogNotFoundError,
        and what finding the position raises; the lock is not held then.
        """
        await services.logs.check(name)  # A missing log is an error of its own, not of its lock.
        path = await SubscriberStore(services.logs).read_lock(name, subscriber)
        lock = DistributedLock(services.store, path, client_id or default_client_id())
        measures = services.meter.of(name)
        try:
            with services.meter.step(measures.read_lock_acquire, "read lock acquire", log=name):
                await lock.acquire(settings.lock_timeout_s * 1000)
            # Under the lock: the reader before this one may commit until it has given the lock up.
            if start is None and subscriber is not None:
                start = await Subscriptions(services.logs, name).position(subscriber)
            position = await locate(start) if start is not None else DLSN.INITIAL
            return cls(services, name, settings, position, locate, lock, subscriber)
        except BaseException as error:
            measures.read_lock_try_timeouts.inc(isinstance(error, OwnershipAcquireFailedError))
            await lock.release()
            raise

    async def commit_position(self, dlsn: DLSN | None = None) -> DLSN:
        """Store where the subscriber's next reader begins: `dlsn`, or behind the last record delivered.

        Returns what is stored now, which is further on where more was committed before. Raises LockingError where the
        lock was lost: nothing was stored. After an OutcomeUnknownError it may be called again. Raises CallerError
        without a subscriber.
        """
        self._check_loop()
        if self.subscriber is None:
            raise CallerError(
                "a reader without a subscriber has no stored position",
                log=self.name,
                advice="Open it with subscriber='name'",
            )
        return await self._subscriptions.commit(self.subscriber, dlsn or self.position, member=self._lock.member_path)

    async def waiting(self) -> list[str]:
        """Return the names of the clients that wait for this reader's lock, the next one first (`client_id`).

        Readers that share several logs see by it who is there, and give up what is another one's part by closing.
        Raises LockingError where the lock was lost.
        """
        self._check_loop()
        try:
            return await self._lock.waiting()
        except LockingError as error:
            if self.closed:
                raise
            raise self._lock_lost_error() from error

    def _lock_lost_error(self) -> LockingError:
        return LockingError(
            "the reader's lock was lost with its metadata session",
            log=self.name,
            dlsn=self.position,
            advice="Open the reader again; what was delivered since the last commit will be delivered again",
        )

    def _session_changed(self, state: SessionState) -> None:
        if state in (SessionState.EXPIRED, SessionState.CLOSED) and not self.closed and self._releasing is None:
            self._lose(self._lock_lost_error())
            self._releasing = asyncio.get_running_loop().create_task(self._release())

    async def _release(self) -> None:
        self._unsubscribe()
        try:
            with self._measures.read_lock_unlock.measured():
                await self._lock.release()
        except DistributedLogError:
            pass  # The lock ends with the session.

    async def close(self) -> None:
        """End the read-ahead and give the lock up. The position is stored by `commit_position` only. Idempotent."""
        if self.closed:
            return
        self._check_loop()
        try:
            await super().close()
        finally:
            if self._releasing is None:
                self._releasing = asyncio.get_running_loop().create_task(self._release())
            await asyncio.wait([self._releasing])
