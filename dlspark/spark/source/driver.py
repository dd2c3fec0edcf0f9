"""The driver's side of a source: which logs there are, from where to where to read, and the finished plan for tasks.

One `SourceDriver` holds one ZooKeeper session and a view of each log. It answers from what the logs are now; what Spark
has to remember between batches is only the offsets, so a plan can be made again from them alone, after any restart.

Positions of the query that are not there any more are data loss (I8): with `failOnDataLoss` the query stops before a
task runs; without it, it goes on at the first record still there, and says so in a warning.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import Filter

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.cold.reading.places import ReadsFrom
from dlspark.core.namespace import AsyncNamespace
from dlspark.serving.process.membership import READ_PROXIES
from dlspark.spark.connection import Connect, announced_proxies, missing_log_error, namespace_settings, open_namespace
from dlspark.spark.errors import OffsetError, OptionError
from dlspark.spark.source.batch_ends import BatchEnds, gathered
from dlspark.spark.source.data_loss import DataLossPolicy
from dlspark.spark.source.driver_log_view import DriverLogView
from dlspark.spark.source.filters import Bounds
from dlspark.spark.source.frame_columns import FrameColumns
from dlspark.spark.source.lag import Lag, find_lags
from dlspark.spark.source.log_spans import LogSpans, Take, check_live_replicas
from dlspark.spark.source.offsets import GivenOffset, LogIdentity, NamedOffset, Offsets
from dlspark.spark.source.planning import Partition, SegmentSpan, partitions
from dlspark.spark.source.query_cursor import QueryCursor
from dlspark.spark.source.query_snapshot import QuerySnapshot, SeenLog
from dlspark.spark.source.selection import AtTxid, BatchLimits, Everywhere, PerLog, SourceQuery, Where
from dlspark.spark.source.task_tokens import TaskToken, TokenMint
from metadata.distributedlog.execution_notes import ExecutionStore, Note
from metadata.distributedlog.log_admin import LogAdmin
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.regions import said_region
from metadata.foundation.settings import shown
from metadata.foundation.tasks import end_tasks
from storage_node.client.health import outlast
from storage_node.settings.client import ClientSettings

if TYPE_CHECKING:
    from dlspark.spark.source.declared_columns import DeclaredColumns

MAX_NAMED = 10
"""Names that an error lists at most."""
BUSY_PAUSE_S = 0.05
"""While a batch is too small, how long at least until it is counted again."""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class FolderWatch:
    """A watch on the logs of one folder. It only wakes the caller, which then lists the logs.

    If the watch fails, the caller is not woken any more, and finds new logs when it next lists them.
    """

    def __init__(self, namespace: AsyncNamespace, folder: str = "") -> None:
        self._changed = asyncio.Event()
        self._watch = asyncio.ensure_future(self._follow(namespace, folder))

    async def _follow(self, namespace: AsyncNamespace, folder: str) -> None:
        try:
            async for _ in namespace.watch_logs(folder, existing=True):  # those there are, too: none is missed
                self._changed.set()
        except DistributedLogError as error:
            _log.warning("new logs are taken up a little later, their watch failed: %s", error)

    async def wait(self) -> None:
        """Return when a log has come or gone since this last returned; to be cancelled."""
        await self._changed.wait()
        self._changed.clear()

    async def close(self) -> None:
        """End the watch."""
        await end_tasks([self._watch])


@dataclass(frozen=True, slots=True)
class PlannedReads:
    """Which columns does a plan read?

    Args:
        frame: the frame's.
        declared: what its log declares, where they are the log's own.
        hints: filters on these, which Spark sees to itself.
    """

    frame: FrameColumns
    declared: DeclaredColumns | None = None
    hints: Sequence[Filter] = ()


class SourceDriver:
    """Answers what Spark asks of one query's logs. Opened once for a query (or a plan), asked many times, closed; one
    call at a time.

    Args:
        query: what the query's options say.
        connect: opens the namespace; None: with the settings that the query's options hand on.
        now_s: a monotonic clock.
        snapshot: what the query sees of its logs, to be kept to and filled; None for a stream, which looks anew for
            each batch.
    """

    def __init__(
        self,
        query: SourceQuery,
        connect: Connect | None = None,
        now_s: Callable[[], float] = time.monotonic,
        snapshot: QuerySnapshot | None = None,
    ) -> None:
        self.query = query
        self._snapshot = snapshot
        self._connect = connect or partial(
            AsyncNamespace.open, settings=namespace_settings(dict(query.client_settings)) or None
        )
        self._namespace: AsyncNamespace | None = None
        self._views: dict[str, DriverLogView] = {}
        self._data_loss = DataLossPolicy(query.fail_on_data_loss)
        self._ends = BatchEnds(self._data_loss, now_s)
        self._log_spans = LogSpans(self._data_loss, query.max_records_per_partition)
        self._query_cursor: QueryCursor | None = None
        self._folder_watch: FolderWatch | None = None
        self._newer_said = False
        self._mint: TokenMint | None = None
        self.newest: Offsets | None = None
        """The ends that `latest` last found."""

    async def open(self) -> None:
        """Open the namespace. Raises MetadataUnavailableError, CallerError for a namespace that does not exist, or
        NoProxiesError where the query is to go through proxies and none is announced."""
        self._namespace = await open_namespace(self.query.uri, self._connect)
        self._namespace.ledgers.bookies.keep_lists()  # each plan asks for them
        if self.query.proxies is not None and self.query.proxies.discover:
            try:
                await announced_proxies(self._namespace, READ_PROXIES)
            except BaseException:
                await self.close()
                raise

    def task_token(self) -> TaskToken | None:
        """Return what tasks that are planned now show read proxies; None: what their executors have. Raises
        OptionError where a key is named by which no token can be made."""
        if self.query.proxies is None:
            return None
        if self._mint is None:
            self._mint = TokenMint.of(self.query, self.client_settings.security)
        return None if self._mint is None else self._mint.token()

    async def close(self) -> None:
        """End the watches and the ZooKeeper session; it can be called again."""
        views, self._views = self._views, {}
        for view in views.values():
            await view.close()
        folder_watch, self._folder_watch = self._folder_watch, None
        if folder_watch is not None:
            await folder_watch.close()
        if self._namespace is not None:
            await self._namespace.close()
            self._namespace = None

    @property
    def client_settings(self) -> ClientSettings:
        """The ledger client's settings (`bkc.`), for the tasks."""
        return self._opened().ledgers.settings

    async def read_proxies(self) -> tuple[str, ...]:
        """Return where tasks find read proxies, as they are announced now; none: they read storage nodes.

        Where they are looked up and there is none, waits `outageTimeout` for one. Raises as `announced_proxies`.
        """
        choice = self.query.proxies
        if choice is None or not choice.discover:
            return choice.addresses if choice is not None else ()
        return await announced_proxies(self._opened(), READ_PROXIES, self.client_settings.outage_wait_ms)

    # ------------------------------------------------------------------ logs

    async def views(self) -> dict[str, DriverLogView]:
        """Return the selected logs that exist now."""
        namespace = self._opened()
        selection = self.query.selection
        if selection.pattern is None:
            names = list(selection.names)
        else:
            names = await self._matching(selection.pattern)
        for gone in [name for name in self._views if name not in names]:
            await self._views.pop(gone).close()
        new = [name for name in names if name not in self._views]
        for name, view in zip(
            new, await asyncio.gather(*(_existing(DriverLogView.open(namespace, n)) for n in new)), strict=True
        ):
            if view is not None:
                self._views[name] = view
        return dict(sorted(self._views.items()))

    async def _matching(self, pattern: str) -> list[str]:
        """Return the logs that match: those that there are now, or that there were for the query's snapshot."""
        matched = None if self._snapshot is None else self._snapshot.matched.get(pattern)
        if matched is not None:
            return list(matched)
        selection = self.query.selection
        names = selection.of(await _logs_in(self._opened(), selection.folder))
        if self._snapshot is not None:
            self._snapshot.matched[pattern] = tuple(names)
        return names

    async def required_views(self) -> dict[str, DriverLogView]:
        """Return the selected logs; an error if one that is named is missing."""
        found = await self.views()
        missing = [name for name in self.query.selection.names if name not in found]
        if missing:
            raise await missing_log_error(self._opened(), missing)
        if self._snapshot is not None:
            for name in self._snapshot.matched.get(self.query.selection.pattern or "", ()):
                if name in self._snapshot.logs and name not in found:
                    self._data_loss.deleted(name, self._snapshot.logs[name].begin, "it is left out")
        return found

    async def nothing_matches_error(self) -> OptionError:
        """Return the error for a pattern that no log matches: it says where was looked, and what else is there."""
        selection = self.query.selection
        below = await LogAdmin(self._opened().logs_store).below(selection.folder)
        folders = [one.name for one in below if one.is_folder]
        where = f"in folder {selection.folder!r}" if selection.folder else "outside of all folders"
        there = f"; folders there: {', '.join(folders[:MAX_NAMED])}{', ...' * (len(folders) > MAX_NAMED)}"
        return OptionError(
            f"No log {where} matches subscribePattern {shown(selection.pattern)}{there if folders else ''}; "
            "nothing was read",
            advice="The pattern must match whole names, and logs are looked for in the one folder that it begins with "
            "(folder a/b for a/b/c-.*), not in those below; `dlspark log list -r` shows all names",
        )

    def _opened(self) -> AsyncNamespace:
        if self._namespace is None:
            raise OptionError("The source is closed", advice="Start the query again")
        return self._namespace

    # ------------------------------------------------------------------ options to offsets

    async def ends(self) -> tuple[Offsets, Offsets]:
        """Return from where to where a batch query reads. Raises where a log is missing, or a pattern has none."""
        if not await self.required_views():
            raise await self.nothing_matches_error()
        return await self.resolve(self.query.start), await self.resolve(self.query.end, ending=True)

    async def agree(self, driver: str, execution: int) -> None:
        """Fill the snapshot with what the tasks of an execution of Spark's have agreed to see, of each log as the first
        of them found it. Raises as `ExecutionStore.agree`, and as `required_views`."""
        namespace, uri = self._opened(), self.query.uri

        async def extend(noted: Note) -> Note:
            self._snapshot = snapshot = QuerySnapshot.of(noted, uri)
            for view in (await self.required_views()).values():
                await self._seen(view, snapshot)
            return snapshot.within(noted, uri)

        await ExecutionStore(namespace.store, namespace.uri.path).agree(driver, execution, extend)

    def begins(self) -> dict[str, DLSN]:
        """Return where the logs begin, each as the query sees it."""
        return {} if self._snapshot is None else {log: seen.begin for log, seen in self._snapshot.logs.items()}

    async def other_logs(self, offsets: Offsets) -> list[str]:
        """Return the logs that are certainly not those which `offsets` are of, but have their names."""
        views = await self.views()
        return [log for log, identity in offsets.identities.items() if log in views and views[log].differs(identity)]

    async def resolve(self, where: Where, *, ending: bool = False) -> Offsets:
        """Return the position in each log that options ask for."""
        found = await self.required_views()
        if isinstance(where, PerLog):
            foreign = [name for name in where.offsets if name not in found]
            if foreign:
                raise OffsetError(
                    f"Option {where.option} has a position for {', '.join(foreign)}, which the query does not read",
                    advice="Remove it, or widen the pattern",
                )
        offsets = await gathered({name: self._resolve_one(view, where, ending) for name, view in found.items()})
        identities = {name: found[name].identity(position) for name, position in offsets.items()}
        return Offsets(offsets, _known(identities))

    async def _resolve_one(self, view: DriverLogView, where: Where, ending: bool) -> DLSN:
        offset: GivenOffset | AtTxid
        if isinstance(where, PerLog):
            offset = where.offsets.get(view.name, NamedOffset.EARLIEST)
        else:
            offset = where.offset if isinstance(where, Everywhere) else where
        if isinstance(offset, AtTxid):
            return await self._at_txid(view, offset, ending)
        if isinstance(offset, NamedOffset):
            return await (self._begin_of(view) if offset is NamedOffset.EARLIEST else self._end_of(view))
        option = where.option if isinstance(where, PerLog) else ""
        if isinstance(where, PerLog) and view.differs(where.identities.get(view.name)):
            raise OffsetError(
                f"Option {option} names a position of a log that was deleted, or of another cluster's; this one was "
                "created later",
                advice="Give a position in the log as it is now, earliest or latest",
                log=view.name,
                dlsn=offset,
            )
        if await view.beyond_end(offset):
            raise OffsetError(
                f"Option {option} names a position behind the log's end ({await view.latest()})",
                advice="Correct it, or use latest",
                log=view.name,
                dlsn=offset,
            )
        return offset

    async def _at_txid(self, view: DriverLogView, offset: AtTxid, ending: bool) -> DLSN:
        # Before the search: what is acknowledged now has to be found by it.
        end = await self._end_of(view)
        found = await view.at_txid(offset.txid)
        if found is not None and self._snapshot is not None:
            # What was appended since is not seen; where the log began later by now, what was searched for may be gone.
            found = await self._begin_of(view) if found == view.earliest() else found
            found = None if found >= end else found
        if found is None and self.query.late_start_fails and not ending:
            raise OffsetError(
                f"Option {offset.option}: the log has no record at or after {offset.txid} yet; nothing was read",
                advice="Give an earlier one, or wait for new records with startingOffsetsByTimestampStrategy=latest",
                log=view.name,
            )
        if found is not None:
            return found
        return await view.latest() if self._snapshot is None else end

    async def _begin_of(self, view: DriverLogView) -> DLSN:
        return view.earliest() if self._snapshot is None else (await self._seen(view, self._snapshot)).begin

    async def _end_of(self, view: DriverLogView) -> DLSN:
        """Return the end of a log, not before what is acknowledged now."""
        if self._snapshot is None:
            return await view.latest(acknowledged=True)
        return (await self._seen(view, self._snapshot)).end

    async def _seen(self, view: DriverLogView, snapshot: QuerySnapshot) -> SeenLog:
        """Return what the query sees of a log: looked up once, and then checked to be of this log."""
        seen = snapshot.logs.get(view.name)
        if seen is None:
            end = await view.latest(acknowledged=True)
            seen = snapshot.logs[view.name] = SeenLog(view.earliest(), end, view.identity(end))
        elif seen.identity is not None and view.differs(seen.identity):
            self._data_loss.recreated(view, seen.end, seen.identity, "nothing of it is read")
            return SeenLog(view.earliest(), view.earliest(), None)
        return seen

    async def latest(self, *, acknowledged: bool = False) -> Offsets:
        """Return the end of each selected log that has any record, now; `acknowledged` as in `DriverLogView.latest`."""
        views = await self.views()
        found = await self._ask_views({n: partial(view.latest, acknowledged=acknowledged) for n, view in views.items()})
        identities = {name: self._views[name].identity(position) for name, position in found.items()}
        self.newest = Offsets(found, _known(identities))
        return self.newest

    async def lags(self, reached: Offsets) -> dict[str, Lag | None]:
        """Return how far `reached` is behind what `latest` last found, as of `find_lags`."""
        return await find_lags(self._views, reached, self.newest or Offsets({}))

    # ------------------------------------------------------------------ how far a batch goes

    async def end_of_batch(self, start: Offsets, limits: BatchLimits, target: Offsets | None) -> Offsets:
        """Return how far a batch from `start` goes, within `limits` and up to `target` if there is one; `start` itself
        if there is nothing to read yet.

        A log that is gone or not selected any more keeps its position, so that nothing is lost if it comes back.
        """
        latest = await self.latest()
        # A log that only left the selection is not lost: its records are there, and nothing asks for them.
        for log in start:
            if log not in latest and self.query.selection.selects(log):
                self._data_loss.deleted(log, start[log], "it is left out until it exists again")
        ends = latest if target is None else await self._ends.frozen(self._views, target)
        return await self._ends.end(self._views, start, ends, limits, wait=target is None)

    async def wait_for_batch(self, start: Offsets, limits: BatchLimits, timeout_s: float) -> Offsets:
        """Return the end of the next batch as soon as there is one; `start` if there is none within about
        `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while (left := deadline - loop.time()) > 0:
            due = self._ends.due_in_s
            await self.wait_for_news(left if due is None else min(left, due))
            end = await self.end_of_batch(start, limits, None)
            if start.moved(end):
                return end
            if self._ends.due_in_s is not None:
                await asyncio.sleep(min(BUSY_PAUSE_S, self._ends.due_in_s))
        return start

    async def begin_cursor(self, position: Offsets) -> None:
        """Publish where the query begins, unless its cursor is there already."""
        if self.query.cursor is not None:
            await self._cursor(self.query.cursor).begin(position)

    async def move_cursor(self, position: Offsets) -> None:
        """Publish how far the query has come, if it has a cursor."""
        if self.query.cursor is not None:
            await self._cursor(self.query.cursor).move(position)

    def _cursor(self, name: str) -> QueryCursor:
        if self._query_cursor is None:
            self._query_cursor = QueryCursor(self._opened().logs_store, name)
        return self._query_cursor

    # ------------------------------------------------------------------ the plan

    async def declared(self, frame: FrameColumns) -> DeclaredColumns | None:
        """Return what the log of a frame declares now; None where the frame has columns of records. To be asked once
        the end of what is read is fixed. Raises as `declared_columns`."""
        if frame.log is None:
            return None
        from dlspark.spark.source.declared_columns import declared_columns  # frames of records need none of it

        found = await declared_columns(self._opened(), frame)
        if found is not None and found.newer and not self._newer_said:
            self._newer_said = True
            _log.warning(
                "log %s declares version %d of its schema now, and the frame has the columns of version %d, with which "
                "it was loaded: load it again, and start the query again, for those of now",
                frame.log,
                found.declaration.current.id,
                found.target.id,
            )
        return found

    async def plan(
        self,
        start: Offsets,
        end: Offsets,
        bounds: Bounds | None = None,
        take: Take | None = None,
        reads: PlannedReads | None = None,
    ) -> list[Partition]:
        """Return the partitions from `start` to before `end`, from these alone: nothing that was asked before
        matters. Of cold files columns are read as `reads` says; None: entries, as of ledgers.

        Raises what planning the spans raises, and what reading footers of cold files does.
        """
        wanted = start.moved(end)
        found = await self.views() if wanted else {}
        for log in wanted:
            # `wanted` has moved, so records of it lie between the two offsets: they are lost with the log (I8).
            if log not in found:
                self._data_loss.deleted(log, start.get(log, DLSN.INITIAL), "it is left out")

        async def served() -> list[SegmentSpan]:
            # Planned anew for each try of `outlast`: the nodes that came back may have other addresses.
            planned = await gathered(
                {log: self._log_spans.spans(found[log], start, end, bounds, take) for log in wanted if log in found}
            )
            spans = [span for part in planned.values() for span in part]
            await check_live_replicas(self._opened(), spans)
            return spans

        spans = await outlast(self.client_settings.outage_wait_ms, served)
        # Tasks that ask read proxies reach nothing else.
        if reads is not None and self.query.proxies is None and any(span.is_cold for span in spans):
            spans = await self._columns_of_files(spans, reads)
        return partitions(
            spans,
            min_partitions=self.query.min_partitions,
            max_bytes=self.query.max_bytes_per_partition,
            max_records=self.query.max_records_per_partition,
        )

    async def _columns_of_files(self, spans: list[SegmentSpan], reads: PlannedReads) -> list[SegmentSpan]:
        """Return spans, those of cold files as their columns where these give what is read."""
        from dlspark.spark.source.cold_plan import (  # pyarrow.parquet takes a while to load
            RowGroupPlanner,
            wanted_columns,
        )

        wanted = wanted_columns(reads.frame, reads.declared, reads.hints)
        reads_from = ReadsFrom(said_region(self.client_settings.placement.region))
        plan = RowGroupPlanner(wanted, self.client_settings.outage_wait_ms / 1000, reads_from)
        try:
            return await plan.spans(spans)
        finally:
            await plan.close()

    async def range(
        self, view: DriverLogView, start: Offsets, end: Offsets, bounds: Bounds | None
    ) -> tuple[DLSN, DLSN]:
        """Return from where to where reading one log really goes, as `LogSpans.range`."""
        return await self._log_spans.range(view, start, end, bounds)

    async def wait_for_news(self, timeout_s: float) -> None:
        """Return when a log may end elsewhere than `latest` last found, or a log has come under a pattern, or after
        `timeout_s`."""
        known = self.newest or Offsets({})
        waits = [asyncio.ensure_future(view.wait_for_news(known.get(name))) for name, view in self._views.items()]
        if self.query.selection.pattern is not None:
            self._folder_watch = self._folder_watch or FolderWatch(self._opened(), self.query.selection.folder)
            waits.append(asyncio.ensure_future(self._folder_watch.wait()))
        try:
            if waits:
                await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(timeout_s)
        finally:
            await end_tasks(waits, drop_errors=True)

    async def _ask_views(self, questions: Mapping[str, Callable[[], Awaitable[DLSN]]]) -> dict[str, DLSN]:
        """Ask the views; one whose log is gone by now is dropped and left out."""
        names = list(questions)
        found = await asyncio.gather(*(_existing(questions[name]()) for name in names))
        for name, position in zip(names, found, strict=True):
            if position is None:
                await self._views.pop(name).close()
        return {name: position for name, position in zip(names, found, strict=True) if position is not None}


async def _logs_in(namespace: AsyncNamespace, folder: str) -> list[str]:
    """Return the full names of what is directly in `folder` ("" for the root): logs, and folders with logs."""
    names = await namespace.logs(folder)
    return [f"{folder}/{name}" for name in names] if folder else names


def _known(identities: Mapping[str, LogIdentity | None]) -> dict[str, LogIdentity]:
    return {log: identity for log, identity in identities.items() if identity is not None}


async def _existing(question: Awaitable[_T]) -> _T | None:
    """Return the answer, or None if the log does not exist."""
    try:
        return await question
    except LogNotFoundError:
        return None
