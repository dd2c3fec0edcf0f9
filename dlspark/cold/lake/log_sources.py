"""What the logs of a table say: their units, their columns, and the footers of their files. Read alone, never
changed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final, Protocol

import pyarrow as pa

from dlspark.cold.lake.columns import table_columns
from dlspark.cold.lake.planning import LogUnits, TableChanges
from dlspark.cold.lake.targets import FileFigures
from dlspark.core.cold.reading.cold_files import shared_cold_files
from dlspark.tables.declaration import Declaration
from metadata.distributedlog.cold_deletions import DeletedLogs
from metadata.distributedlog.cold_kept import UnitKeeper
from metadata.distributedlog.cold_places import ColdFile
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_tables import ColdTable, TableLog
from metadata.distributedlog.log_admin import LogAdmin
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.record_schemas import SchemaStore

_AT_ONCE: Final = 16


class LogSource(Protocol):
    """Where does a sync read what logs have?"""

    async def prepare(self) -> None:
        """Make what declarations lie below, before the first one."""

    async def log_id(self, name: str) -> str | None:
        """Return a log's id in cold storage; None where it has none. Raises LogNotFoundError."""

    async def members(self, table: ColdTable) -> tuple[TableLog, ...]:
        """Return what the table's logs are called by now, and which of them were deleted."""

    async def logs(self, table: ColdTable) -> list[LogUnits]:
        """Return what the table's logs have; those that are not there, or never had a unit, are left out. Asked after
        the table was loaded, and after the table's declaration had all ids that there are."""

    async def columns(self, table: ColdTable) -> pa.Schema:
        """Return the columns that the table is to have. Raises CallerError."""

    async def figures(self, changes: TableChanges) -> dict[str, FileFigures]:
        """Return what the footers of files that changes may add say."""


class ColdLogSource:
    """Reads a namespace: a `LogSource`."""

    def __init__(self, logs: LogStore) -> None:
        self._store = logs
        self._cold = ColdStore(logs)
        self._keeper = UnitKeeper(logs.store)
        self._deletions = DeletedLogs(logs.store, logs.namespace_path)
        self._schemas = SchemaStore(logs)
        self._figures: dict[str, FileFigures] = {}

    async def prepare(self) -> None:
        """Make the znode of the namespace's cold storage, which declarations lie below."""
        await self._cold.namespace_id()

    async def log_id(self, name: str) -> str | None:
        """Return a log's id in cold storage; None where it has none, or is being deleted."""
        cold = await self._cold.cold_log(name)
        return None if cold is None or cold.value.deleted else cold.value.log_id

    async def _id_at(self, name: str) -> str | None:
        try:
            return await self.log_id(name)
        except LogNotFoundError:
            return None

    async def members(self, table: ColdTable) -> tuple[TableLog, ...]:
        """Return what the logs are called by now: all logs are looked through for those that are not where they were,
        and that no deletion has noted."""
        limit = asyncio.Semaphore(_AT_ONCE)

        async def look(one: TableLog) -> TableLog | None:
            async with limit:
                if one.deleted:
                    return one
                there = await self._id_at(one.name)
                if there is not None and one.id in ("", there):
                    return replace(one, id=there)
                if not one.id:
                    return one
                return None if await self._deletions.log(one.id) is None else replace(one, deleted=True)

        found = await asyncio.gather(*map(look, table.members))
        if None not in found:
            return tuple(one for one in found if one is not None)
        names: dict[str, str] = {}

        async def name(log: str) -> None:
            async with limit:
                there = await self._id_at(log)
            if there is not None:
                names[there] = log

        await asyncio.gather(*map(name, await LogAdmin(self._store).names()))
        return tuple(
            replace(before, name=names.get(before.id, before.name)) if after is None else after
            for before, after in zip(table.members, found, strict=True)
        )

    async def logs(self, table: ColdTable) -> list[LogUnits]:
        """Return what the table's logs have."""
        limit = asyncio.Semaphore(_AT_ONCE)

        async def look(one: TableLog) -> LogUnits | None:
            async with limit:
                return await (self._deleted(one) if one.deleted else self._units(one))

        found = await asyncio.gather(*(look(one) for one in table.members if one.id))
        return [each for each in found if each is not None]

    async def _deleted(self, one: TableLog) -> LogUnits | None:
        """Return the folders of a log that was deleted; None once they are known to be empty for good."""
        noted = await self._deletions.log(one.id)
        if noted is None:
            return None
        folders = tuple(f"{url.rstrip('/')}/" for url, _ in noted.folders)
        return LogUnits(one.name, one.id, (), frozenset(), folders)

    async def _units(self, one: TableLog) -> LogUnits | None:
        try:
            # The list before the units: a segment is always in one of the two.
            hot = await self._store.hot_segments(one.name)
            paths = await self._store.located(one.name)
            seen = await self._keeper.log(paths)
            if seen is None:
                return None
            # All that were marked COLD_DELETE_STARTED by now are read so. Whether the hot copies of one are gone does
            # not matter to a table.
            units = tuple(unit.value for unit in await self._keeper.units(paths, seen))
            # Last: what was read before may be of another log, which has come to have this name.
            if seen.log.value.log_id != one.id or await self.log_id(one.name) != one.id:
                return None
        except LogNotFoundError:
            return None
        # Hidden ones too: a mover may still take them into a unit, together with what users see.
        return LogUnits(one.name, one.id, units, frozenset(segment.lssn for segment in hot))

    async def columns(self, table: ColdTable) -> pa.Schema:
        """Return the columns that the logs declare by now."""
        declared: dict[str, Declaration | None] = {}
        for one in table.members:
            if one.deleted or (one.id and await self._id_at(one.name) != one.id):
                continue
            try:
                stored = await self._schemas.get(one.name)
            except LogNotFoundError:
                continue
            declared[one.name] = None if stored is None else Declaration.decode(stored.data, one.name)
        return table_columns(declared)

    async def figures(self, changes: TableChanges) -> dict[str, FileFigures]:
        """Return what the footers of new files say: one request each, and none in a second round."""
        files = {one.url: one for one in changes.coming}
        hold = shared_cold_files().hold()
        limit = asyncio.Semaphore(_AT_ONCE)

        async def look(file: ColdFile) -> None:
            async with limit:
                footer = await hold.files.reader(file).footer()
            self._figures[file.url] = FileFigures(footer.identity.log, footer.parquet, footer.schema)

        try:
            await asyncio.gather(*(look(one) for url, one in files.items() if url not in self._figures))
        finally:
            await hold.close()
        # Kept for another round of the same changes, and no longer.
        self._figures = {url: self._figures[url] for url in files}
        return self._figures
