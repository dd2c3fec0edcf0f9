"""The driver's side of a source: which logs there are, from where to where to read, and the finished plan for tasks.

One `SourceDriver` holds one ZooKeeper session and a view of each log. It answers from what the logs are now; what Spark
has to remember between batches is only the offsets, so a plan can be made again from them alone, after any restart.

Positions of the query that are not there any more are data loss (I8): with `failOnDataLoss` the query stops before a
task runs; without it, it goes on at the first record still there, and says so in a warning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.metrics.logs import about
from dlspark.core.namespace import AsyncNamespace
from dlspark.spark.errors import DataLossError, OffsetError, OptionError
from dlspark.spark.filters import Bounds
from dlspark.spark.lag import NO_LAG, Lag, extent
from dlspark.spark.log_view import LogView
from dlspark.spark.offsets import Bound, Offsets
from dlspark.spark.opening import Connect, open_namespace
from dlspark.spark.planning import Partition, Span, partitions, shares
from dlspark.spark.selection import AtTxid, Everywhere, SourceQuery, Where
from dlspark.spark.serving import check_served
from metadata.errors import DistributedLogError, NoNodeError
from metadata.logs import LogNotFoundError
from metadata.tasks import end_tasks
from storage_node.client import ClientSettings

LAG_S = 2.0
"""How long it may take to find how far a query is behind in one log; the batch waits for it."""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Resolved:
    """Offsets that options were resolved to. `settled`: resolving them later gives the same, while the data lives."""

    offsets: Offsets
    settled: bool


class SourceDriver:
    """Opened once for a query (or a plan), asked many times, closed; one call at a time."""

    def __init__(self, query: SourceQuery, connect: Connect = AsyncNamespace.open) -> None:
        self.query = query
        self._connect = connect
        self._namespace: AsyncNamespace | None = None
        self._views: dict[str, LogView] = {}
        self._warned: set[str] = set()
        self._turn = 0
        self.newest: Offsets | None = None
        """What `latest` last found."""

    async def open(self) -> None:
        """Connect. Raises MetadataUnavailableError, or CallerError for a namespace that does not exist."""
        self._namespace = await open_namespace(self.query.uri, self._connect)
        self._namespace.ledgers.bookies.keep_lists()  # each plan asks for them

    async def close(self) -> None:
        views, self._views = self._views, {}
        for view in views.values():
            await view.close()
        if self._namespace is not None:
            await self._namespace.close()
            self._namespace = None

    @property
    def client_settings(self) -> ClientSettings:
        """The ledger client's settings (`bkc.`), for the tasks."""
        return self._opened().ledgers.settings

    # ------------------------------------------------------------------ logs

    async def views(self) -> dict[str, LogView]:
        """The selected logs that exist now."""
        namespace = self._opened()
        selection = self.query.selection
        if selection.pattern is None:
            names = list(selection.names)
        else:
            names = selection.of(await namespace.logs())
        for gone in [name for name in self._views if name not in names]:
            await self._views.pop(gone).close()
        new = [name for name in names if name not in self._views]
        for name, view in zip(
            new, await asyncio.gather(*(_existing(LogView.open(namespace, n)) for n in new)), strict=True
        ):
            if view is not None:
                self._views[name] = view
        return dict(sorted(self._views.items()))

    async def required_views(self) -> dict[str, LogView]:
        """The selected logs; an error if one that is named is missing."""
        found = await self.views()
        missing = [name for name in self.query.selection.names if name not in found]
        if missing:
            raise LogNotFoundError(
                f"No such log: {', '.join(missing)}; nothing was read",
                advice=f"Create it (`dlspark log create {missing[0]}`), correct the name, or read by subscribePattern",
                log=missing[0],
            )
        return found

    def _opened(self) -> AsyncNamespace:
        if self._namespace is None:
            raise OptionError("The source is closed", advice="Start the query again")
        return self._namespace

    # ------------------------------------------------------------------ options to offsets

    async def resolve(self, where: Where, *, ending: bool = False) -> Resolved:
        """The position in each log that options ask for."""
        found = await self.required_views()
        if not isinstance(where, (AtTxid, Everywhere)):
            foreign = [name for name in where.places if name not in found]
            if foreign:
                raise OffsetError(
                    f"Option {where.option} has a position for {', '.join(foreign)}, which the query does not read",
                    advice="Remove it, or widen the pattern",
                )
        places = await _gathered({name: self._resolve_one(view, where, ending) for name, view in found.items()})
        offsets = Offsets({name: position for name, (position, _) in places.items()})
        return Resolved(offsets, all(settled for _, settled in places.values()))

    async def _resolve_one(self, view: LogView, where: Where, ending: bool) -> tuple[DLSN, bool]:
        if isinstance(where, AtTxid):
            found = await view.at_txid(where.txid)
            return (found, True) if found is not None else (await view.latest(), False)
        place = where.bound if isinstance(where, Everywhere) else where.places.get(view.name, Bound.EARLIEST)
        if place is Bound.EARLIEST:
            return view.earliest(), True
        if place is Bound.LATEST:
            return await view.latest(), False
        if await view.beyond_end(place):
            raise OffsetError(
                f"Option {'endingOffsets' if ending else 'startingOffsets'} names a position behind the log's end "
                f"({await view.latest()})",
                advice="Correct it, or use latest",
                log=view.name,
                dlsn=place,
            )
        return place, True

    async def latest(self) -> Offsets:
        """The end of each selected log that has any record, now."""
        found = await self._answers({name: view.latest for name, view in (await self.views()).items()})
        self.newest = Offsets(found)
        return self.newest

    async def lags(self, reached: Offsets) -> dict[str, Lag | None]:
        """How far `reached` is behind what `latest` last found: logs that are not behind are left out, None is a log
        whose lag could not be found within `LAG_S`. Raises nothing that a query could fail of."""
        newest = self.newest or Offsets({})
        begins = {
            log: max(reached.get(log, DLSN.INITIAL), self._views[log].earliest())
            for log in newest
            if log in self._views
        }
        asked = {log: begin for log, begin in begins.items() if begin < newest[log]}
        found = await asyncio.gather(*(self._lag(log, begin, newest[log]) for log, begin in asked.items()))
        return {log: lag for log, lag in zip(asked, found, strict=True) if lag != NO_LAG}

    async def _lag(self, log: str, begin: DLSN, end: DLSN) -> Lag | None:
        try:
            return (await asyncio.wait_for(extent(self._views[log], begin, end), LAG_S)).lag
        except (DistributedLogError, asyncio.TimeoutError) as error:
            _log.warning("log %s: how far the query is behind cannot be told: %s", log, error, extra=about(log=log))
            return None

    # ------------------------------------------------------------------ how far a batch goes

    async def end_of_batch(self, start: Offsets, limit: int | None, target: Offsets | None) -> Offsets:
        """How far a batch from `start` goes: at most `limit` records, and not beyond `target` if there is one.

        A log that is gone or not selected any more keeps its position, so that nothing is lost if it comes back.
        """
        ends = await self.latest()
        self._check_deleted(start, ends)
        if target is not None:
            ends = Offsets({log: min(ends[log], target[log]) for log in ends if log in target})
        begins = await _gathered({log: self._begin(self._views[log], start.get(log)) for log in ends})
        news = {log: ends[log] for log, begin in begins.items() if ends[log] > begin}
        if limit is not None and news:
            news = await self._limited(begins, news, limit)
        return Offsets({**start, **news})

    async def _limited(self, begins: Mapping[str, DLSN], ends: Mapping[str, DLSN], limit: int) -> dict[str, DLSN]:
        counts = await _gathered({log: self._views[log].count(begins[log], end) for log, end in ends.items()})
        given = shares(limit, counts, self._turn)
        self._turn += 1
        found: dict[str, DLSN] = {}
        for log, end in ends.items():
            taken = given.get(log, 0)
            if taken == counts[log]:
                found[log] = end
            elif taken:
                found[log] = await self._views[log].advance(begins[log], end, taken)
        return found

    def _check_deleted(self, start: Offsets, existing: Offsets) -> None:
        """A log that the query reads and has a position for, but that is gone: so are the records behind it."""
        for log in start:
            if log not in existing and self.query.selection.selects(log):
                self._lost(log, start[log], "the log does not exist any more", "it is left out until it exists again")

    async def _begin(self, view: LogView, position: DLSN | None) -> DLSN:
        """Where reading a log really begins: at the position, or, where that is lost, at the first record still there.

        A log without a position is new to the query and begins at its first record.
        """
        earliest = view.earliest()
        if position is None:
            return earliest
        if position < earliest and view.lost_before(position):
            self._lost(view.name, position, f"the log now begins at {earliest}", f"the query goes on at {earliest}")
            return earliest
        if await view.beyond_end(position):
            self._lost(
                view.name,
                position,
                f"the log ends at {await view.latest()}: was it deleted and created again?",
                f"the query goes on at {earliest}",
            )
            return earliest
        return max(position, earliest)

    def _lost(self, log: str, position: DLSN, what: str, mend: str) -> None:
        """Raise DataLossError, or warn, as `failOnDataLoss` says."""
        if self.query.fail_on_data_loss:
            raise DataLossError(
                f"Records from this position on are gone: {what}; nothing was read",
                advice="Set failOnDataLoss to false to go on with what is there, or start a query at another position",
                log=log,
                dlsn=position,
            )
        text = f"log {log}: records from {position} on are gone: {what}; failOnDataLoss is false, so {mend}"
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", text)

    # ------------------------------------------------------------------ the plan

    async def plan(self, start: Offsets, end: Offsets, bounds: Bounds | None = None) -> list[Partition]:
        """The partitions from `start` to before `end`, from these alone: nothing that was asked before matters."""
        wanted = [log for log in end if start.get(log) != end[log]]
        found = await self.views() if wanted else {}
        for log in wanted:
            if log not in found:
                self._lost(log, start.get(log, DLSN.INITIAL), "the log does not exist any more", "it is left out")
        planned = await _gathered(
            {log: self._spans(found[log], start.get(log), end[log], bounds) for log in wanted if log in found}
        )
        spans = [span for part in planned.values() for span in part]
        await check_served(self._opened(), spans)
        return partitions(spans, min_partitions=self.query.min_partitions, max_bytes=self.query.max_bytes_per_partition)

    async def _spans(self, view: LogView, start: DLSN | None, end: DLSN, bounds: Bounds | None) -> list[Span]:
        try:
            return await self._spans_now(view, start, end, bounds)
        except NoNodeError:
            # A segment was deleted after it was listed: what is lost by that shows in the list as it is now.
            view.look_again()
            await view.latest()
            return await self._spans_now(view, start, end, bounds)

    async def _spans_now(self, view: LogView, start: DLSN | None, end: DLSN, bounds: Bounds | None) -> list[Span]:
        begin = await self._begin(view, start)
        if await view.beyond_end(end):
            self._lost(view.name, end, f"the log ends at {await view.latest()}", "only what is there is read")
            end = await view.latest()
        if bounds is not None:
            begin, end = await _narrowed(view, begin, end, bounds)
        return await view.spans(begin, end) if begin < end else []

    async def wait_for_news(self, timeout_s: float) -> None:
        """Return when a log may have something new, or after `timeout_s`."""
        waits = [asyncio.ensure_future(view.wait_for_news()) for view in self._views.values()]
        if not waits:
            await asyncio.sleep(timeout_s)
            return
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(waits, drop_errors=True)

    async def _answers(self, questions: Mapping[str, Callable[[], Awaitable[DLSN]]]) -> dict[str, DLSN]:
        """Ask the views; one whose log is gone by now is dropped and left out."""
        names = list(questions)
        answers = await asyncio.gather(*(_existing(questions[name]()) for name in names))
        for name, answer in zip(names, answers, strict=True):
            if answer is None:
                await self._views.pop(name).close()
        return {name: answer for name, answer in zip(names, answers, strict=True) if answer is not None}


async def _narrowed(view: LogView, begin: DLSN, end: DLSN, bounds: Bounds) -> tuple[DLSN, DLSN]:
    """The part of a range that pushed-down filters leave."""
    if bounds.empty or not bounds.admits(view.name):
        return begin, begin
    begin = max(begin, DLSN(bounds.min_segment, 0, 0))
    if bounds.end_segment is not None:
        end = min(end, DLSN(bounds.end_segment, 0, 0))
    if bounds.min_txid > 0:
        first = await view.at_txid(bounds.min_txid)
        begin = max(begin, first) if first is not None else end
    if bounds.end_txid is not None:
        last = await view.at_txid(bounds.end_txid)
        end = min(end, last) if last is not None else end
    return begin, end


async def _existing(question: Awaitable[_T]) -> _T | None:
    """The answer, or None if the log does not exist."""
    try:
        return await question
    except LogNotFoundError:
        return None


async def _gathered(questions: Mapping[str, Awaitable[_T]]) -> dict[str, _T]:
    answers = await asyncio.gather(*questions.values())
    return dict(zip(questions, answers, strict=True))
