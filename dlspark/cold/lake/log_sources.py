"""What the logs of a table say: their units, their columns, and the footers of their files. Read alone, never
changed."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

import pyarrow as pa

from dlspark.cold.lake.columns import table_columns
from dlspark.cold.lake.planning import LogUnits, TableChanges
from dlspark.cold.lake.targets import FileFigures, added_files
from dlspark.core.cold.reading.cold_files import shared_cold_files
from dlspark.tables.declaration import Declaration
from metadata.distributedlog.cold_places import ColdFile
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_tables import ColdTable
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.record_schemas import SchemaStore

_AT_ONCE: Final = 16


class LogSource(Protocol):
    """Where does a sync read what logs have?"""

    async def prepare(self) -> None:
        """Make what declarations lie below, before the first one."""

    async def logs(self, table: ColdTable) -> list[LogUnits]:
        """Return what the table's logs have; those that are not there, or never had a unit, are left out. Asked after
        the table was loaded."""

    async def columns(self, table: ColdTable) -> pa.Schema:
        """Return the columns that the table is to have. Raises CallerError."""

    async def figures(self, changes: TableChanges) -> dict[str, FileFigures]:
        """Return what the footers of files that changes may add say."""


class ColdLogSource:
    """Reads a namespace: a `LogSource`."""

    def __init__(self, logs: LogStore) -> None:
        self._store = logs
        self._cold = ColdStore(logs)
        self._schemas = SchemaStore(logs)
        self._figures: dict[str, FileFigures] = {}

    async def prepare(self) -> None:
        """Make the znode of the namespace's cold storage, which declarations lie below."""
        await self._cold.namespace_id()

    async def logs(self, table: ColdTable) -> list[LogUnits]:
        """Return what the table's logs have."""
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(log: str) -> LogUnits | None:
            async with limit:
                try:
                    cold = await self._cold.cold_log(log)
                    if cold is None:
                        return None
                    # The list before the units: a segment is always in one of the two.
                    hot = await self._store.hot_segments(log)
                    units = tuple(unit.value for unit in await self._cold.units(log))
                except LogNotFoundError:
                    return None
            # Hidden ones too: a mover may still take them into a unit, together with what users see.
            waiting = frozenset(segment.lssn for segment in hot)
            return LogUnits(log, cold.value.log_id, units, waiting)

        found = await asyncio.gather(*map(one, table.logs))
        return [each for each in found if each is not None]

    async def columns(self, table: ColdTable) -> pa.Schema:
        """Return the columns that the logs declare by now."""
        declared: dict[str, Declaration | None] = {}
        for log in table.logs:
            try:
                stored = await self._schemas.get(log)
            except LogNotFoundError:
                continue
            declared[log] = None if stored is None else Declaration.decode(stored.data, log)
        return table_columns(declared)

    async def figures(self, changes: TableChanges) -> dict[str, FileFigures]:
        """Return what the footers of new files say: one request each, and none in a second round."""
        every = [(replacement.log, replacement.file.url) for replacement in changes.replaced if replacement.file]
        wanted = {url for _, url, _, _ in added_files(changes, every)}
        files: dict[str, ColdFile] = {one.file.url: one.file for one in changes.added}
        files |= {one.file.url: one.file for one in changes.replaced if one.file is not None}
        hold = shared_cold_files().hold()
        limit = asyncio.Semaphore(_AT_ONCE)

        async def look(file: ColdFile) -> None:
            async with limit:
                footer = await hold.files.reader(file).footer()
            self._figures[file.url] = FileFigures(footer.parquet, footer.schema)

        try:
            await asyncio.gather(*(look(files[url]) for url in wanted if url not in self._figures))
        finally:
            await hold.close()
        # Kept for another round of the same changes, and no longer.
        self._figures = {url: self._figures[url] for url in wanted}
        return self._figures
