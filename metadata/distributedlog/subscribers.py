"""`SubscriberStore`: how far the subscribers of a log have come, and the locks of readers that read alone.

    P/readLock                        parent of lock members of readers without a subscriber
    P/subscribers/<id>                a position, as text that this floor does not look into; empty: none yet
    P/subscribers/<id>/readLock       parent of lock members of the subscriber's readers

Everything below `P/subscribers` is made on demand, the log itself never (docs/reference/znodes.md#subscribers).
Upstream sets positions unconditionally; here a set names the version it builds on, and the lock member that it needs.
"""

from __future__ import annotations

from typing import Final

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.log_names import log_not_found_error
from metadata.distributedlog.logs import LogStore
from metadata.foundation.errors import CallerError, NodeExistsError, NoNodeError
from metadata.retry import repeat
from metadata.store import ANY_VERSION, Check, Create, MetadataStore, Op, SetData, check_path

READ_LOCK: Final = "readLock"


class SubscriberStore:
    """How far has a subscriber read a log? Positions that are kept by name.

    Args:
        logs: the logs of one namespace.
    """

    def __init__(self, logs: LogStore) -> None:
        self._logs = logs

    @property
    def store(self) -> MetadataStore:
        """The metadata store below."""
        return self._logs.store

    async def path(self, log: str, subscriber: str) -> str:
        """Return the subscriber's znode. Raises CallerError for what cannot be a subscriber's id."""
        if not isinstance(subscriber, str) or not subscriber or "/" in subscriber:
            raise CallerError(f"{subscriber!r} is not a subscriber's id", log=log, advice="Give a name without '/'")
        path = f"{(await self._logs.located(log)).subscribers}/{subscriber}"
        check_path(path)
        return path

    async def names(self, log: str) -> list[str]:
        """Return the ids of all subscribers; empty where there never was one. Raises LogNotFoundError."""
        paths = await self._logs.located(log)
        try:
            found, _ = await repeat(self.store, lambda: self.store.children(paths.subscribers))
        except NoNodeError:
            await self._logs.open(log)
            return []
        return found

    async def position(self, log: str, subscriber: str) -> Versioned[bytes] | None:
        """Return what is stored of a subscriber; None where there is no such subscriber."""
        path = await self.path(log, subscriber)
        try:
            data, stat = await repeat(self.store, lambda: self.store.get(path))
        except NoNodeError:
            return None
        return Versioned(data, stat.version)

    async def put(self, log: str, subscriber: str, position: bytes, version: int, member: str | None = None) -> None:
        """Store a position over the one of this version.

        `member` is the lock member that must be there still. Raises BadVersionError; NoNodeError for a subscriber, or a
        member, that is gone; OutcomeUnknownError.
        """
        ops: list[Op] = [SetData(await self.path(log, subscriber), position, version)]
        if member is not None:
            # A reader that has lost its lock, late as it may be, must not move the position under its successor.
            ops.append(Check(member, ANY_VERSION))
        await self.store.multi(ops)

    async def make(self, log: str, subscriber: str) -> None:
        """Make the subscriber, unless it is there. Raises LogNotFoundError."""
        path = await self.path(log, subscriber)
        for znode in (path.rpartition("/")[0], path):
            await self._make(log, znode)

    async def read_lock(self, log: str, subscriber: str | None) -> str:
        """Return the path of the lock of the log's readers, or of one subscriber's; made on demand. Raises
        LogNotFoundError.
        """
        if subscriber is None:
            path = (await self._logs.located(log)).read_lock
        else:
            await self.make(log, subscriber)
            path = f"{await self.path(log, subscriber)}/{READ_LOCK}"
        await self._make(log, path)
        return path

    async def _make(self, log: str, path: str) -> None:
        async def make() -> None:
            try:
                await self.store.multi([Create(path)])
            except NodeExistsError:
                pass

        try:
            if await repeat(self.store, lambda: self.store.exists(path)) is None:
                await repeat(self.store, make)
        except NoNodeError as error:
            raise log_not_found_error(log, error.path) from error
