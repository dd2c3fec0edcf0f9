"""Keeps lake tables level with what is in cold storage: `sync_table`, `sync_tables`, `release_unit`, `check_table`.

The order of reading decides: the table's head first, then each log's own list, then its units. A commit that was
planned so depends on that head, and the head moves whenever a unit that leaves is taken out, or kept out, of the
table. So a unit that is marked COLD_DELETE_STARTED before `release_unit` loads the table is in it in no later
snapshot, whatever other syncs do at the same time and however late their commits arrive; after `release_unit` its
object may be deleted. Likewise with all files of a log that was deleted (`release_deleted_log`).

A table's logs are known by their ids. They are noted in its declaration between the reading of the head and that of the
units: so a release that does not see its log in a declaration, after its mark was made, has nothing to fear of that
table.

Fault model: any request may fail, and commits may be applied though they seem to have failed. Each round begins with a
new look at the table; rounds are bounded, and a table that stays in doubt is left to the next sync. A failure of
one table does not stop the others. What was changed from outside is a finding: reported, never undone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from dlspark.cold.lake.columns import check_names
from dlspark.cold.lake.log_sources import ColdLogSource, LogSource
from dlspark.cold.lake.opening import open_table
from dlspark.cold.lake.planning import ENDED, NOTHING_YET, LogUnits, holes, plan_changes, urls_of
from dlspark.cold.lake.targets import (
    LakeTable,
    TableMovedError,
    TableUnclearError,
    TableUnreachableError,
    settle_changes,
)
from metadata.distributedlog.cold_places import UnitState
from metadata.distributedlog.cold_tables import ColdTable, ColdTableStore, check_table
from metadata.distributedlog.cold_units import ColdUnit, DeletedLog
from metadata.distributedlog.logs import LogStore
from metadata.foundation.errors import CallerError, DistributedLogError, NotAppliedError

ROUNDS: Final = 12
"""Looks at one table in one sync, beyond those that bring it forward."""
_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 5.0

OpenTable = Callable[[ColdTable], LakeTable]


@dataclass(slots=True)
class TableReport:
    """What has a sync, or a check, of one table come to?

    Args:
        table: its name.
        added, removed: files that this sync knows to have come and gone.
        exchanged: files in whose place it has put others, from which records were erased.
        commits: requests that changed the table, as far as answers came.
        rows, files: what the table has.
        findings: what needs a person.
        error: why it is not level; None: it is.
    """

    table: str
    added: int = 0
    removed: int = 0
    exchanged: int = 0
    commits: int = 0
    rows: int = 0
    files: int = 0
    findings: list[str] = field(default_factory=list)
    error: DistributedLogError | None = None


class TableSync:
    """How do I bring a namespace's lake tables forward?

    Args:
        logs: what the namespace's logs say.
        tables: its declarations.
        opener: opens a table.
        pause_s: seconds before the second look at a table after a commit in doubt; doubled each time.
        rng: spreads the pauses.
    """

    def __init__(
        self,
        logs: LogSource,
        tables: ColdTableStore,
        *,
        opener: OpenTable = open_table,
        pause_s: float = _PAUSE_S,
        rng: random.Random | None = None,
    ) -> None:
        self._logs = logs
        self._opener = opener
        self._pause_s = pause_s
        self._rng = rng or random.Random()
        self.tables = tables
        """The namespace's declarations."""

    @classmethod
    def over(cls, logs: LogStore, *, opener: OpenTable = open_table, pause_s: float = _PAUSE_S) -> TableSync:
        """Return the sync of the tables of the namespace whose logs these are."""
        tables = ColdTableStore(logs.store, logs.namespace_path)
        return cls(ColdLogSource(logs), tables, opener=opener, pause_s=pause_s)

    async def create(self, table: ColdTable) -> ColdTable:
        """Declare a table, and make it. After any error it may be called again, and finishes what was begun.

        Raises CallerError also where it is declared already, of logs that had these names and were deleted or renamed.
        """
        check_table(table)
        columns = await self._logs.columns(table)
        check_names(columns, table.kind)
        async with self._opened(table):
            pass  # before it is declared: a missing extra, or a bad address
        await self._logs.prepare()
        declared = await self._followed(await self.tables.create(table), search=True)
        _refuse_former(table, declared)
        async with self._opened(declared) as target:
            await asyncio.to_thread(target.ensure, columns)
        return declared

    @asynccontextmanager
    async def _opened(self, table: ColdTable) -> AsyncIterator[LakeTable]:
        target = await asyncio.to_thread(self._opener, table)
        try:
            yield target
        finally:
            await asyncio.to_thread(target.close)

    async def sync(self, table: ColdTable, *, search: bool = False) -> TableReport:
        """Bring one table forward until it lacks nothing. Raises what keeps it from that, after ROUNDS looks.

        `search`: logs that are not where they were are looked for everywhere, as `LogSource.members` has it.
        """
        report = TableReport(table.name)
        table = await self.tables.current(table)  # what it says of its logs may be newer than what the caller has
        async with self._opened(table) as target:
            await self._bring_forward(table, target, report, search)
        return report

    async def _bring_forward(self, table: ColdTable, target: LakeTable, report: TableReport, search: bool) -> None:
        failures = 0
        while True:
            try:
                if await self._one_round(table, target, report, search):
                    return
            except (TableMovedError, TableUnclearError, TableUnreachableError):
                failures += 1
                if failures >= ROUNDS:
                    raise
                longest = min(self._pause_s * 2**failures, _LONGEST_PAUSE_S)
                await asyncio.sleep(self._rng.uniform(longest / 2, longest))

    async def _one_round(self, table: ColdTable, target: LakeTable, report: TableReport, search: bool) -> bool:
        """Look at the table, and make one commit of what it lacks; True where it lacks nothing."""
        state = await asyncio.to_thread(target.load)
        table = await self._followed(table, search)
        logs = await self._logs.logs(table)
        changes = plan_changes(state, logs)
        report.rows, report.files = state.rows, state.files
        report.findings = [*state.findings, *holes(state, logs), *self._not_there(table, logs)]
        if changes.coming:
            columns = await self._logs.columns(table)
            check_names(columns, table.kind)
            if await asyncio.to_thread(target.evolve, state, columns):
                report.commits += 1
                return False
        if not changes:
            return True
        figures = await self._logs.figures(changes)
        applied = await asyncio.to_thread(target.commit, state, changes, figures)
        if applied is None:
            return True
        report.commits += 1
        report.added += applied.added
        report.removed += applied.removed
        report.exchanged += applied.exchanged
        return False

    async def _followed(self, table: ColdTable, search: bool = False) -> ColdTable:
        """Return the declaration with what its logs are called by now, once it says so."""
        for _ in range(ROUNDS):
            members = await self._logs.members(table, search=search)
            if members == table.members:
                return table
            table = await self.tables.follow(table, members)
            if table.members == members:
                return table
        raise TableMovedError(f"What table {table.name} says of its logs is changed by others all the time")

    def _not_there(self, table: ColdTable, logs: Iterable[LogUnits]) -> list[str]:
        there = {one.log_id for one in logs}
        return [
            f"log {one.name} is not there, or has nothing in cold storage. What the table has of it stays"
            + (": if it was deleted and made anew, the new one is another log" if one.id else "")
            for one in table.members
            if one.id not in there and not one.deleted
        ]

    # ---------------------------------------------------------------- what leaves, and what is wrong

    async def release(self, log: str, unit: ColdUnit) -> None:
        """Return once no table names a file of a unit that is being deleted, nor ever will: then it may be deleted.

        The unit must be COLD_DELETE_STARTED, or have the files in `replaced`, before this is called. Raises what
        keeps a table from giving them up; the files must stay then.
        """
        leaving = {one.url for one in unit.replaced}
        if unit.state is UnitState.COLD_DELETE_STARTED:
            leaving = set(urls_of(unit))
        if not leaving:
            return
        log_id = await self._logs.log_id(log)
        if log_id is None:
            raise NotAppliedError(f"Log {log} is being deleted: its files go with its note", log=log)
        for table in await self.tables.tables():
            if not any(one.id == log_id or (one.name == log and not one.id) for one in table.members):
                continue
            await self.sync(table, search=True)
            async with self._opened(table) as target:
                state = await asyncio.to_thread(target.load)
                named = await asyncio.to_thread(target.named, leaving)
            if named or state.watermarks.get(log_id, NOTHING_YET) < unit.last:
                raise NotAppliedError(
                    f"Table {table.name} still names files of unit {unit.name}, or may take them yet; they were kept",
                    log=log,
                    advice=f"See dlspark cold table check {table.name}; what it waits for must be copied first",
                )

    async def release_deleted(self, log: DeletedLog) -> None:
        """Return once no table names a file of a log that was deleted, nor ever will: then they may be deleted. Raises
        what keeps a table from giving them up; all of them must stay then."""
        for table in await self.tables.tables():
            if not any(one.id == log.log_id for one in table.members):
                continue
            await self.sync(table, search=True)
            async with self._opened(table) as target:
                state = await asyncio.to_thread(target.load)
            if state.watermarks.get(log.log_id, NOTHING_YET) < ENDED:
                raise NotAppliedError(
                    f"Table {table.name} still names files of log {log.log}, which was deleted; they were kept",
                    log=log.log,
                    advice=f"See dlspark cold table check {table.name}; the next sweep tries again",
                )

    async def check(self, table: ColdTable) -> TableReport:
        """Compare a table with what is cold, file by file; nothing is changed."""
        async with self._opened(table) as target:
            state = await asyncio.to_thread(target.load)
            table = replace(table, members=await self._logs.members(table, search=True))
            logs = await self._logs.logs(table)
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
        # Of what is to go only what the table names: a Delta table does not keep what was looked for.
        gone, come = settle_changes(plan_changes(state, logs), named)
        if gone or come:
            report.findings.append(f"{len(come)} files are to be added, {len(gone)} to be given up")
        if not missing and not foreign and state.rows != (rows := sum(expected.values())):
            report.findings.append(f"the table has {state.rows} rows, and its files' units {rows}")
        return report


def _refuse_former(wanted: ColdTable, declared: ColdTable) -> None:
    """Raise CallerError where a declaration is of other logs than those that have their names now."""
    there = {one.name for one in declared.members if not one.deleted}
    former = sorted(set(wanted.logs) - there)
    if former:
        raise CallerError(
            f"There is a table {wanted.name}, of logs that were called so and were deleted or renamed since: "
            f"{', '.join(former)}. What has the name now is another log, and not in it; nothing was changed",
            advice=f"Declare it under another name, at another place; or forget the former with dlspark cold table "
            f"drop {wanted.name}, and have the new one at another place: the former table stays where it is",
        )


async def sync_tables(logs: LogStore, *, opener: OpenTable = open_table) -> list[TableReport]:
    """Bring all tables of a namespace forward: what a mover does at the end of a pass. Raises nothing of a table's:
    each report has its error."""
    syncing = TableSync.over(logs, opener=opener)
    reports: list[TableReport] = []
    for table in await syncing.tables.tables():
        try:
            reports.append(await syncing.sync(table))
        except DistributedLogError as error:
            reports.append(TableReport(table.name, error=error))
    return reports


async def release_unit(logs: LogStore, log: str, unit: ColdUnit, *, opener: OpenTable = open_table) -> None:
    """Return once no lake table names the files that a unit gives up: called by the mover behind
    `begin_cold_delete` or `replace_file`, and before it deletes an object. Raises what keeps them; see
    `TableSync.release`."""
    await TableSync.over(logs, opener=opener).release(log, unit)


async def release_deleted_log(logs: LogStore, log: DeletedLog, *, opener: OpenTable = open_table) -> None:
    """Return once no lake table names files of a log that was deleted: called by the sweep before it deletes them.
    Raises what keeps them; see `TableSync.release_deleted`."""
    await TableSync.over(logs, opener=opener).release_deleted(log)
