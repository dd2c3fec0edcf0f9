"""`SchemaStore`: what a log declares of its records, as bytes that this floor does not look into.

    P/schema            a random id, of the declaration below
    P/schema/<id>       the declaration (`dlspark.tables.declaration`)

Both are made in one transaction, and a declaration is replaced at the version that was read. A data version speaks of
one znode's life only, and begins again where a log is deleted and made again: the id, which no other declaration has,
tells that log's from this one's, so that nothing is put in the place of another log's
(docs/reference/znodes.md#schema).

Upstream knows neither znode, and passes over them. They go with the log: where it is renamed, with another id, and
where it is deleted.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from metadata.distributedlog.log_names import LogExistsError, log_not_found_error
from metadata.distributedlog.logs import LogStore
from metadata.foundation.errors import (
    BadVersionError,
    CorruptDataError,
    DistributedLogError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
)
from metadata.retry import MAX_REPEATS, repeat
from metadata.store import ANY_VERSION, Check, Delete, MetadataStore, Op, SetData, Watcher

_MAX_ID: Final = 64


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """What does a log declare of its records, and has that changed since?

    Args:
        data: The declaration's bytes.
        id: What tells the declaration from one of another log of the name.
        version: Data version of its znode.
    """

    data: bytes
    id: str
    version: int


class SchemaStore:
    """Where is what logs declare of their records? Of the logs of one namespace."""

    def __init__(self, logs: LogStore, new_id: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        self._logs = logs
        self._new_id = new_id

    @property
    def store(self) -> MetadataStore:
        """The metadata store below."""
        return self._logs.store

    async def get(self, log: str) -> StoredSchema | None:
        """Return what a log declares; None where it declares nothing. Raises LogNotFoundError, CorruptDataError."""
        paths = await self._logs.located(log)
        parent = paths.schema

        async def look() -> StoredSchema | None:
            await self.store.sync(parent)
            return await self._read(parent, None)

        found = await repeat(self.store, look)
        if found is None and not await self._logs.exists(log):
            raise log_not_found_error(log, paths.ledgers)
        return found

    async def watch(self, log: str, changed: Watcher) -> StoredSchema | None:
        """Return what a log declares; None where it declares nothing, or there is no such log yet. `changed` is called
        once that may be otherwise.

        Raises LogNotFoundError where nobody knows where the log will be (never in a plain namespace), CorruptDataError.
        """
        parent = (await self._logs.located(log)).schema

        async def look() -> StoredSchema | None:
            # Asked together: a session's requests are answered in their order.
            _, there = await asyncio.gather(self.store.sync(parent), self.store.exists(parent, changed))
            return None if there is None else await self._read(parent, changed)

        return await repeat(self.store, look)

    async def _read(self, parent: str, changed: Watcher | None) -> StoredSchema | None:
        for _ in range(MAX_REPEATS):
            try:
                named, _version = await self.store.get(parent)
            except NoNodeError:
                return None
            id_ = _id(named, parent)
            try:
                data, stat = await self.store.get(f"{parent}/{id_}", changed)
            except NoNodeError:
                continue  # it was withdrawn between the two, or replaced: the parent says which
            return StoredSchema(data, id_, stat.version)
        raise CorruptDataError(
            "it names a declaration that is not there", path=parent, advice="Read the log with columns=raw"
        )

    async def declare(self, log: str, data: bytes, instead_of: StoredSchema | None = None) -> StoredSchema:
        """Store the first declaration of a log, or one that takes the place of another one, in one step.

        Raises LogNotFoundError; NodeExistsError where there is one; BadVersionError where the one that was to go was
        changed or has gone; OutcomeUnknownError where the answer was lost and the store stays away.
        """
        paths = await self._logs.located(log)

        async def create(id_: str) -> None:
            first, declared = paths.declared(id_, data)
            if instead_of is None:
                ops: list[Op] = [Check(paths.ledgers, ANY_VERSION), first, declared]
            else:
                gone = Delete(f"{paths.schema}/{instead_of.id}", instead_of.version)
                ops = [gone, SetData(paths.schema, first.data, ANY_VERSION), declared]
            try:
                await self.store.multi(ops)
            except NoNodeError as error:
                if instead_of is not None:
                    raise BadVersionError(
                        f"What log {log} declares was withdrawn meanwhile", path=error.path
                    ) from error
                raise log_not_found_error(log, error.path) from error

        return await self._created(log, create, data)

    async def create_log(self, log: str, data: bytes, metadata: bytes = b"") -> StoredSchema:
        """Create a log together with what it declares, in one transaction.

        Raises as `LogStore.create`; LogExistsError also for a log that is there, which is left as it is.
        """
        return await self._created(log, lambda id_: self._logs.create(log, metadata, (id_, data)), data)

    async def _created(self, log: str, create: Callable[[str], Awaitable[None]], data: bytes) -> StoredSchema:
        """Return the declaration that `create` makes of an id, which is another one each time: after an answer that was
        lost, the log may be deleted and made again, and two logs would declare under one id."""
        ids: list[str] = []

        async def attempt() -> str:
            ids.append(self._new_id())
            try:
                await create(ids[-1])
                return ids[-1]
            except (LogExistsError, NodeExistsError, BadVersionError):
                # An answer that was lost, perhaps: nobody else has these ids.
                paths = await self._logs.located(log)
                for id_ in ids:
                    if await self.store.exists(f"{paths.schema}/{id_}") is not None:
                        return id_
                raise

        return StoredSchema(data, await repeat(self.store, attempt), 0)

    async def replace(self, log: str, before: StoredSchema, data: bytes) -> StoredSchema:
        """Store a declaration in the place of the one that was read.

        Raises BadVersionError where it was replaced, withdrawn, or is another log's by now: nothing was changed; and
        OutcomeUnknownError where it cannot be found out whether it was.
        """
        path = f"{(await self._logs.located(log)).schema}/{before.id}"
        try:
            await self.store.multi([SetData(path, data, before.version)])
        except NoNodeError as error:
            raise BadVersionError(f"What log {log} declares was withdrawn meanwhile", path=path) from error
        except OutcomeUnknownError as error:
            # Only this set, or one of the same bytes, makes this of what was read.
            done = StoredSchema(data, before.id, before.version + 1)
            try:
                found = await self.get(log)
            except DistributedLogError:
                raise error from None  # the log is gone, perhaps: whether it was replaced before, nothing says
            if found == before:
                raise BadVersionError(f"What log {log} declares was not replaced", path=path) from error
            if found != done:
                raise
        return StoredSchema(data, before.id, before.version + 1)

    async def withdraw(self, log: str, before: StoredSchema) -> None:
        """Take away what a log declares. Raises BadVersionError where it was changed since it was read."""
        parent = (await self._logs.located(log)).schema
        attempts = 0

        async def delete() -> None:
            nonlocal attempts
            attempts += 1
            try:
                await self.store.multi([Delete(f"{parent}/{before.id}", before.version), Delete(parent, ANY_VERSION)])
            except NoNodeError as error:
                # An answer that was lost, or another client was faster: it is gone. Only where it cannot have been
                # this one, what is there now is another declaration than the one that was to go.
                if attempts == 1 and await self.store.exists(parent) is not None:
                    raise BadVersionError(f"Log {log} declares something else by now", path=parent) from error

        await repeat(self.store, delete)


def _id(named: bytes, path: str) -> str:
    text = named.decode("ascii", "replace")
    if not text.isalnum() or len(text) > _MAX_ID:
        raise CorruptDataError(
            f"{named[:80]!r} is not the id of a declaration",
            path=path,
            advice="Read the log with columns=raw, and declare its records anew",
        )
    return text
