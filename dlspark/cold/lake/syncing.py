"""Keeps lake tables level with what is in cold storage: `sync_table`, `sync_tables`, `release_unit`, `check_table`.

The order of reading decides: the table's head first, then each log's own list, then its units. A commit that was planned
so depends on that head, and the head moves whenever a unit that leaves is taken out, or kept out, of the table. So a unit
that is marked COLD_DELETE_STARTED before `release_unit` loads the table is in it in no later snapshot, whatever other
syncs do at the same time and however late their commits arrive; after `release_unit` its object may be deleted.

Fault model: any request may fail, and commits may be applied though they seem to have failed. Each round begins with a
new look at the table; rounds are bounded, and a table that stays in doubt is left to the next sync. A failure of one table
does not stop the others. What was changed from outside is a finding: reported, never undone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa

from dlspark.cold.lake.columns import check_names, table_columns
from dlspark.cold.lake.opening import open_table
from dlspark.cold.lake.planning import LogUnits, TableChanges, TableState, holes, plan_changes, urls_of
from dlspark.cold.lake.targets import (
    FileFigures,
    LakeTable,
    TableMovedError,
    TableUnclearError,
    TableUnreachableError,
    added_files,
)
from dlspark.core.cold.reading.cold_files import shared_cold_files
from dlspark.core.namespace import AsyncNamespace
from dlspark.tables.declaration import Declaration
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_tables import ColdTable, ColdTableStore
from metadata.distributedlog.cold_units import ColdFile, ColdUnit, UnitState
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.record_schemas import SchemaStore
from metadata.distributedlog.segments import TruncationStatus
from metadata.foundation.errors import DistributedLogError, NotAppliedError

ROUNDS: Final = 12
"""Looks at one table in one sync, beyond those that bring it forward."""
_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 5.0
_AT_ONCE: Final = 16

OpenTable = Callable[[ColdTable], LakeTable]


@dataclass(slots=True)
class TableReport:
    """What has a sync, or a check, of one table come to?

    Args:
        table: its name.
        added, removed: files that this sync knows to have come and gone.
        commits: requests that changed the table, as far as answers came.
        rows, files: what the table has.
        findings: what needs a person.
        error: why it is not level; None: it is.
    """

    table: str
    added: int = 0
    removed: int = 0
    commits: int = 0
    rows: int = 0
    files: int = 0
    findings: list[str] = field(default_factory=list)
    error: DistributedLogError | None = None


class TableSync:
    """How do I bring a namespace's lake tables forward?

    Args:
        namespace: it is read, and never changed.
        opener: opens a table.
        pause_s: seconds before the second look at a table after a commit in doubt; doubled each time.
        rng: spreads the pauses.
    """

    def __init__(
        self,
        namespace: AsyncNamespace,
        *,
        opener: OpenTable = open_table,
        pause_s: float = _PAUSE_S,
        rng: random.Random | None = None,
    ) -> None:
        self._namespace = namespace
        self._opener = opener
        self._pause_s = pause_s
        self._rng = rng or random.Random()
        self._cold = ColdStore(namespace.logs_store)
        self._schemas = SchemaStore(namespace.logs_store)
        self._figures: dict[str, FileFigures] = {}
        self.tables = ColdTableStore(namespace.store, namespace.uri.path)
        """The namespace's declarations."""

    async def create(self, table: ColdTable) -> ColdTable:
        """Declare a table, and make it. After any error it may be called again, and finishes what was begun."""
        columns = await self._columns(table)
        check_names(columns, table.kind)
        await asyncio.to_thread(self._opener, table)  # before it is declared: a missing extra, or a bad address
        await self._cold.namespace_id()
        declared = await self.tables.create(table)
        target = await asyncio.to_thread(self._opener, declared)
        await asyncio.to_thread(target.ensure, columns)
        return declared

    async def sync(self, table: ColdTable) -> TableReport:
        """Bring one table forward until it lacks nothing. Raises what keeps it from that, after ROUNDS looks."""
        target = await asyncio.to_thread(self._opener, table)
        report = TableReport(table.name)
        failures = 0
        while True:
            try:
                if await self._one_round(table, target, report):
                    return report
            except (TableMovedError, TableUnclearError, TableUnreachableError):
                failures += 1
                if failures >= ROUNDS:
                    raise
                longest = min(self._pause_s * 2**failures, _LONGEST_PAUSE_S)
                await asyncio.sleep(self._rng.uniform(longest / 2, longest))

    async def _one_round(self, table: ColdTable, target: LakeTable, report: TableReport) -> bool:
        """Look at the table, and make one commit of what it lacks; True where it lacks nothing."""
        state = await asyncio.to_thread(target.load)
        logs = await self._logs(table)
        changes = plan_changes(state, logs)
        report.rows, report.files = state.rows, state.files
        report.findings = [*state.findings, *holes(state, logs), *self._not_there(table, logs)]
        if changes.added or changes.replaced:
            columns = await self._columns(table)
            check_names(columns, table.kind)
            if await asyncio.to_thread(target.evolve, state, columns):
                report.commits += 1
                return False
        if not changes:
            self._figures.clear()
            return True
        figures = await self._figures_of(changes)
        if not await asyncio.to_thread(target.commit, state, changes, figures):
            return True
        report.commits += 1
        report.added += len(changes.added)
        report.removed += sum(one.file is None for one in changes.replaced)
        return False

    def _not_there(self, table: ColdTable, logs: Iterable[LogUnits]) -> list[str]:
        there = {one.log for one in logs}
        return [
            f"log {log} is not there, or has nothing in cold storage: was it renamed or deleted? What the table has of "
            "it stays"
            for log in table.logs
            if log not in there
        ]

    # ---------------------------------------------------------------- what logs say

    async def _logs(self, table: ColdTable) -> list[LogUnits]:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(log: str) -> LogUnits | None:
            async with limit:
                try:
                    cold = await self._cold.cold_log(log)
                    if cold is None:
                        return None
                    # The list before the units: a segment is always in one of the two.
                    hot = await self._namespace.logs_store.hot_segments(log)
                    units = tuple(unit.value for unit in await self._cold.units(log))
                except LogNotFoundError:
                    return None
            waiting = frozenset(segment.lssn for segment in hot if segment.truncation is not TruncationStatus.TRUNCATED)
            return LogUnits(log, cold.value.log_id, units, waiting)

        found = await asyncio.gather(*map(one, table.logs))
        return [each for each in found if each is not None]

    async def _columns(self, table: ColdTable) -> pa.Schema:
        declared: dict[str, Declaration | None] = {}
        for log in table.logs:
            try:
                stored = await self._schemas.get(log)
            except LogNotFoundError:
                continue
            declared[log] = None if stored is None else Declaration.decode(stored.data, log)
        return table_columns(declared)

    async def _figures_of(self, changes: TableChanges) -> dict[str, FileFigures]:
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
        return {url: self._figures[url] for url in wanted}

    # ---------------------------------------------------------------- what leaves, and what is wrong

    async def release(self, log: str, unit: ColdUnit) -> None:
        """Return once no table names a file of a unit that is being deleted, nor ever will: then it may be deleted.

        The unit must be COLD_DELETE_STARTED, or have the files in `replaced`, before this is called. Raises what keeps a
        table from giving them up; the files must stay then.
        """
        leaving = {one.url for one in unit.replaced}
        if unit.state is UnitState.COLD_DELETE_STARTED:
            leaving = set(urls_of(unit))
        if not leaving:
            return
        for table in await self.tables.tables():
            if log not in table.logs:
                continue
            await self.sync(table)
            target = await asyncio.to_thread(self._opener, table)
            state = await asyncio.to_thread(target.load)
            named = await asyncio.to_thread(target.named, leaving)
            cold = await self._cold.cold_log(log)
            at = -1 if cold is None else state.watermarks.get(cold.value.log_id, -1)
            if named or at < unit.last:
                raise NotAppliedError(
                    f"Table {table.name} still names files of unit {unit.name}, or may take them yet; they were kept",
                    log=log,
                    advice=f"See dlspark cold table check {table.name}; what it waits for must be copied first",
                )

    async def check(self, table: ColdTable) -> TableReport:
        """Compare a table with what is cold, file by file; nothing is changed."""
        target = await asyncio.to_thread(self._opener, table)
        state = await asyncio.to_thread(target.load)
        logs = await self._logs(table)
        named = await asyncio.to_thread(target.named, None)
        report = TableReport(table.name, rows=state.rows, files=state.files)
        report.findings = [*state.findings, *holes(state, logs), *self._not_there(table, logs)]
        expected: dict[str, int] = {}
        for one in logs:
            at = state.watermarks.get(one.log_id, -1)
            for unit in one.units:
                if unit.file is not None and unit.last <= at and unit.state is not UnitState.COLD_DELETE_STARTED:
                    expected[unit.file.url] = unit.file.rows
        missing, foreign = expected.keys() - named, named - expected.keys()
        for url in sorted(missing)[:20]:
            report.findings.append(f"the table does not name {url} any more, which has {expected[url]} rows of the log")
        for url in sorted(foreign)[:20]:
            report.findings.append(f"the table names {url}, which is no file of its logs")
        changes = plan_changes(state, logs)
        if changes:
            report.findings.append(
                f"{len(changes.added)} files are to be added, {len(changes.replaced)} to be given up"
            )
        if not missing and not foreign and state.rows != (rows := sum(expected.values())):
            report.findings.append(f"the table has {state.rows} rows, and its files' units {rows}")
        return report


async def sync_tables(namespace: AsyncNamespace, *, opener: OpenTable = open_table) -> list[TableReport]:
    """Bring all tables of a namespace forward: what a mover does at the end of a pass. Raises nothing of a table's: each
    report has its error."""
    syncing = TableSync(namespace, opener=opener)
    reports: list[TableReport] = []
    for table in await syncing.tables.tables():
        try:
            reports.append(await syncing.sync(table))
        except DistributedLogError as error:
            reports.append(TableReport(table.name, error=error))
    return reports


async def release_unit(namespace: AsyncNamespace, log: str, unit: ColdUnit, *, opener: OpenTable = open_table) -> None:
    """Return once no lake table names the files that a unit gives up: called by the mover behind
    `begin_cold_delete` or `replace_file`, and before it deletes an object. Raises what keeps them; see
    `TableSync.release`."""
    await partial(TableSync(namespace, opener=opener).release, log)(unit)
