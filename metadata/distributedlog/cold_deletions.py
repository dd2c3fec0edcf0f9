"""`DeletedLogs`: a namespace's identity in object names, and the deleted logs whose files are still to be deleted.

A log's znodes go with it, so what says where its files were lies beside the logs: `NS/.dlspark-cold/deleted/<log id>`.
Nothing else allows to delete files of a log that is not there: a namespace that cannot be read, or a log that was
renamed, looks just like one whose logs are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_units import DELETED, NAMESPACE, DeletedLog, namespace_data, parse_namespace_data
from metadata.foundation.errors import BadVersionError, CorruptDataError, NodeExistsError, NoNodeError
from metadata.retry import repeat
from metadata.store import Create, MetadataStore, Stat, join


class DeletedLogs:
    """Which namespace is this in object names, and whose files are left of what it had?

    Args:
        store: the session.
        namespace_path: the namespace's znode.
    """

    def __init__(self, store: MetadataStore, namespace_path: str) -> None:
        self._store = store
        self._path = join(namespace_path, NAMESPACE)
        self._id: str | None = None

    async def namespace_id(self, new_id: Callable[[], str]) -> str:
        """Return the namespace's id; the first call of all makes it. Raises CorruptDataError."""
        if self._id is None:

            async def step() -> str:
                try:
                    data, _ = await self._store.get(self._path)
                except NoNodeError:
                    try:
                        await self._store.create(self._path, namespace_data(new_id()))
                    except NodeExistsError:
                        pass  # Another client was first: its id is the namespace's.
                    await self._store.sync(self._path)
                    data, _ = await self._store.get(self._path)
                return parse_namespace_data(data, self._path)

            self._id = await repeat(self._store, step)
        return self._id

    async def owner(self, new_id: Callable[[], str]) -> tuple[str, str]:
        """Return the namespace's id, and the transaction that made its znode with its moment, both in hexadecimal
        digits: these are others in a copy of it, and the same in a store that was put back from its own snapshots.
        Raises CorruptDataError."""
        # Both: transactions are counted from the store's beginning, so two fresh stores that one script copied into
        # have the same number there. Their moments are in milliseconds, by the store's leader.
        found = await self.namespace_id(new_id)
        stat = await repeat(self._store, lambda: self._store.exists(self._path))
        if stat is None:
            raise CorruptDataError(
                "the znode with the namespace's id has gone", path=self._path, advice="Restore it from a backup"
            )
        return found, f"{stat.czxid:x}-{stat.ctime_ms:x}"

    async def note(self, log: DeletedLog) -> Create:
        """Return the operation that notes a deleted log, once the znode above it exists."""
        parent = join(self._path, DELETED)

        async def make() -> None:
            if await self._store.exists(parent) is None:
                try:
                    await self._store.create(parent)
                except NodeExistsError:
                    pass

        await repeat(self._store, make)
        return Create(join(parent, log.log_id), log.encode())

    async def logs(self) -> list[Versioned[DeletedLog]]:
        """Return all that are noted. Raises CorruptDataError."""
        parent = join(self._path, DELETED)
        try:
            names, _ = await repeat(self._store, lambda: self._store.children(parent))
        except NoNodeError:
            return []
        found = await asyncio.gather(*(self._read(join(parent, name)) for name in names))
        return [one for one in found if one is not None]

    async def log(self, log_id: str) -> DeletedLog | None:
        """Return what is noted of a log; None where it was not deleted, or is forgotten. Raises CorruptDataError."""
        found = await self._read(join(self._path, DELETED, log_id))
        return None if found is None else found.value

    async def _read(self, path: str) -> Versioned[DeletedLog] | None:
        try:
            data, stat = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return None
        return Versioned(DeletedLog.decode(data, path), stat.version)

    async def stamped(self, log: Versioned[DeletedLog]) -> tuple[Versioned[DeletedLog], int] | None:
        """Have the store stamp a note with its clock, and return it with its age by that clock alone, in milliseconds;
        None where it is gone. Nothing of the note changes but its version."""
        path = join(self._path, DELETED, log.value.log_id)

        async def write() -> Stat | None:
            try:
                return await self._store.put(path, log.value.encode(), log.version)
            except BadVersionError:
                return await self._store.exists(path)  # our own first try, or another sweep's a moment ago
            except NoNodeError:
                return None

        stat = await repeat(self._store, write)
        return None if stat is None else (Versioned(log.value, stat.version), max(0, stat.mtime_ms - stat.ctime_ms))

    async def forget(self, log: Versioned[DeletedLog]) -> None:
        """Remove a note. Raises BadVersionError where it is not as it was read."""
        path = join(self._path, DELETED, log.value.log_id)

        async def delete() -> None:
            try:
                await self._store.delete(path, log.version)
            except NoNodeError:
                pass  # by our own earlier try, or by another worker

        await repeat(self._store, delete)
