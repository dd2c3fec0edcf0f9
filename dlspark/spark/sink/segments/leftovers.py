"""The ledgers of failed attempts: which there are, and how they are swept.

A ledger is garbage once it is listed under a batch that its log's mark has reached: the publication removed the
listings of its own ledgers in the same multi. A listing's name says which log it is for, so a commit sweeps what is for
its own logs, and nothing that a fork of the query may still publish into others. The order is: condemn (from here on no
publication can take the ledger, however late), delete the ledger, remove the listing. A crash in between leaves a
listing for the next sweep. A task that is still writing to such a ledger fails at its next metadata update, and nothing
it wrote was ever visible.

Sweeping never fails a batch, which has been published by then. What could not be swept stays listed.

A query's next commit sweeps by itself what it has settled (`LedgerSweeper`). For queries that will not commit again
there is `dlspark sink list|sweep` (`find_leftovers`, `sweep_leftovers`), which says of each staged ledger:

| state | when |
|---|---|
| `settled` | its log has its batch, from another attempt: it can never be published |
| `condemned` | a sweep began with it and did not finish: it can never be published either |
| `abandoned` | its log does not have its batch, and its attempt has listed nothing new for so long |
| `live` | else: its query may still publish it |

All but `live` may be swept. Should an abandoned attempt live after all, it fails cleanly (BatchSweptError), with
nothing visible, and its batch is written again. The sink of a query or application, and its marks in the logs, stay
whatever happens: without them a checkpoint's replay would be written twice (I9).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.sink_marks import NO_BATCH, SinkState
from metadata.distributedlog.sinks import (
    APPLICATION_PREFIX,
    JOB_PREFIX,
    LISTED_VERSION,
    SinkStore,
    StagedLedger,
    log_tag,
)
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.foundation.pacing import for_each

if TYPE_CHECKING:
    from dlspark.spark.sink.messages import JobId  # imports PySpark, which the command line does without

MAX_SWEPT_PER_COMMIT = 20_000
"""Bound of the work that one commit does for failed attempts; the rest waits for the next commit."""
ABANDONED_AFTER_MS = 24 * 60 * 60 * 1000
"""An attempt whose newest ledger is older than this is taken for dead. If it lives it fails cleanly."""
_AT_ONCE = 16

_log = logging.getLogger(__name__)


def settled_by(job: JobId, logs: Iterable[str], listed: Iterable[StagedLedger]) -> list[StagedLedger]:
    """Return what a commit of `job` has settled, of what is listed: its `logs` have the batch now.

    That is what any attempt has staged for these logs up to the batch, and whatever else the job itself has staged.
    What an older dlspark has listed is for logs unknown, but it cannot publish any more beside what has just been.
    """
    tags = {log_tag(log) for log in logs}
    return [
        one
        for one in listed
        if (one.batch, one.attempt) == (job.batch, job.attempt)
        or (one.batch <= job.batch and (one.tag in tags or not one.tag))
    ]


class LedgerSweeper:
    """Sweeps the sinks of one namespace. `delete_ledger(id)` succeeds for a ledger that does not exist."""

    def __init__(self, sinks: SinkStore, delete_ledger: Callable[[int], Awaitable[None]]) -> None:
        self._sinks = sinks
        self._delete_ledger = delete_ledger

    async def after_commit(self, job: JobId, logs: Sequence[str], left: Sequence[StagedLedger] | None = None) -> int:
        """Sweep what a commit has settled, and a finished one-shot sink itself. Returns the ledgers deleted.

        `logs` are those of the batch; each has it now. `left` is what there is to sweep, if the caller has listed it:
        what came since, from a task that did not know of the publication, is left to the next commit. Without `left`
        the listings are read.
        """
        sink_id = job.sink_id
        try:
            if left is None:
                left = settled_by(job, logs, await self._sinks.staged(sink_id))
            swept = await self._sweep(sink_id, left[:MAX_SWEPT_PER_COMMIT])
            if sink_id.startswith(JOB_PREFIX) and not await self._sinks.remove(sink_id):
                # No other commit will come by.
                swept += await self._sweep(sink_id, await self._sinks.staged(sink_id))
                await self._sinks.remove(sink_id)
            return swept
        except DistributedLogError as error:
            _log.warning("left-over ledgers of sink %s were not swept, the next commit tries again: %s", sink_id, error)
            return 0

    async def own(self, job: JobId) -> int:
        """Sweep the ledgers of a job that its own driver has given up.

        Needs no look at the mark: ledgers that were published after all (the answer was lost) have no listing, so they
        cannot be condemned; and if a publication is still under way, condemning decides against it.
        """
        try:
            staged = await self._sinks.staged(job.sink_id)
            mine = [ledger for ledger in staged if (ledger.batch, ledger.attempt) == (job.batch, job.attempt)]
            swept = await self._sweep(job.sink_id, mine[:MAX_SWEPT_PER_COMMIT])
            if job.sink_id.startswith(JOB_PREFIX):
                await self._sinks.remove(job.sink_id)
            return swept
        except DistributedLogError as error:
            _log.warning("ledgers of aborted %s were not swept, a later commit does so: %s", job, error)
            return 0

    async def abandoned_jobs(self, sink_id: str) -> int:
        """Sweep one-shot sinks whose job died a day ago. Returns the ledgers deleted.

        `sink_id` was just written to: its znode shows the metadata server's time, so clocks here do not matter.
        """
        try:
            current = await self._sinks.stat(sink_id)
            if current is None:
                return 0
            swept = 0
            for other in await self._sinks.sinks():
                if other.startswith(JOB_PREFIX) and other != sink_id:
                    swept += await self._abandoned_job(other, current.mtime_ms - ABANDONED_AFTER_MS)
                if swept >= MAX_SWEPT_PER_COMMIT:
                    break
            return swept
        except DistributedLogError as error:
            _log.warning("abandoned batch writes were not swept, a later commit tries again: %s", error)
            return 0

    async def ledgers(self, sink_id: str, ledgers: Iterable[StagedLedger]) -> int:
        """Sweep these ledgers; one that was published meanwhile is left alone. Returns how many.

        Raises what the metadata store or the deletion raised; what was not swept stays listed.
        """
        return await self._sweep(sink_id, ledgers)

    async def _abandoned_job(self, sink_id: str, before_ms: int) -> int:
        stat = await self._sinks.stat(sink_id)
        if stat is None or stat.mtime_ms >= before_ms:
            return 0
        staged = await self._sinks.staged(sink_id)
        # One young listing keeps the whole job: a task that still lists ledgers is alive.
        for ledger in staged:
            listing = await self._sinks.stat(sink_id, ledger)
            if listing is not None and listing.ctime_ms >= before_ms:
                return 0
        swept = await self._sweep(sink_id, staged)
        await self._sinks.remove(sink_id)
        return swept

    async def _sweep(self, sink_id: str, ledgers: Iterable[StagedLedger]) -> int:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(ledger: StagedLedger) -> bool:
            async with gate:
                # In this order. A ledger deleted before it is condemned could still be published, without its data;
                # a listing removed before its ledger would leave a ledger that no sweep finds.
                if not await self._sinks.condemn(sink_id, ledger):
                    return False
                await self._delete_ledger(ledger.ledger_id)
                await self._sinks.forget(sink_id, ledger)
                return True

        results = await asyncio.gather(*map(one, ledgers), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return sum(result is True for result in results)


class StagedLedgerState(str, Enum):
    """The state of a staged ledger: all but LIVE may be swept."""

    SETTLED = "settled"
    CONDEMNED = "condemned"
    ABANDONED = "abandoned"
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class JudgedLedger:
    """One staged ledger, and what may be done with it."""

    ledger: StagedLedger
    log: str
    """Empty where it is not known: condemned ones, and what an older dlspark has listed."""
    listed_ms: int
    state: StagedLedgerState


@dataclass(frozen=True, slots=True)
class SinkLeftovers:
    """One sink. `moved_ms` is when it published last, by the metadata server's clock."""

    sink_id: str
    state: SinkState
    moved_ms: int
    ledgers: tuple[JudgedLedger, ...]
    stale: bool
    """A batch write's sink that has nothing listed, and has not been touched for so long: its job died at its start."""

    @property
    def kind(self) -> str:
        """The kind of its writer: a streaming query, an application with txnAppId, or a batch write."""
        if self.sink_id.startswith(APPLICATION_PREFIX):
            return "application"
        return "job" if self.sink_id.startswith(JOB_PREFIX) else "query"

    def of(self, *states: StagedLedgerState) -> list[StagedLedger]:
        """Return the ledgers in one of these states."""
        return [one.ledger for one in self.ledgers if one.state in states]

    @property
    def sweepable(self) -> list[StagedLedger]:
        """The ledgers that `sweep_leftovers` takes."""
        return self.of(StagedLedgerState.SETTLED, StagedLedgerState.CONDEMNED, StagedLedgerState.ABANDONED)

    @property
    def removable(self) -> bool:
        """Whether `sweep_leftovers` takes the sink itself: a batch write that is repeated has a sink of its own."""
        return self.kind == "job" and (self.stale or (bool(self.ledgers) and not self.of(StagedLedgerState.LIVE)))


async def find_leftovers(
    sinks: SinkStore,
    logs: LogStore,
    now_ms: int,
    *,
    names: Iterable[str] | None = None,
    min_age_ms: int = ABANDONED_AFTER_MS,
) -> list[SinkLeftovers]:
    """Look at the sinks that are named, or at all. Raises CallerError for a name that no sink has."""
    existing = sorted(await sinks.sinks())
    wanted = existing if names is None else list(dict.fromkeys(names))
    missing = [name for name in wanted if name not in set(existing)]
    if missing:
        raise CallerError(f"there is no sink {missing[0]!r}; nothing was done", advice="See `dlspark sink list`")
    found = [await _look(sinks, logs, name, now_ms - min_age_ms) for name in wanted]
    return [one for one in found if one is not None]


async def sweep_leftovers(sweeper: LedgerSweeper, sinks: SinkStore, found: SinkLeftovers) -> tuple[int, bool]:
    """Delete what was found to be sweepable. Returns how many ledgers, and whether the sink is gone as well."""
    swept = await sweeper.ledgers(found.sink_id, found.sweepable)
    return swept, found.removable and await sinks.remove(found.sink_id)


@dataclass(frozen=True, slots=True)
class _Listing:
    ledger: StagedLedger
    log: str
    listed_ms: int
    condemned: bool


async def _look(sinks: SinkStore, logs: LogStore, sink_id: str, before_ms: int) -> SinkLeftovers | None:
    # The listing before the marks: what is published in between has left the listing, and is not called settled.
    staged = await sinks.staged(sink_id)
    state, stat = await sinks.read(sink_id), await sinks.stat(sink_id)
    if state is None or stat is None:
        return None  # a batch write that ended meanwhile
    listings: list[_Listing] = []
    highest: dict[str, int] = {}

    async def look(ledger: StagedLedger) -> None:
        found = await sinks.log_of(sink_id, ledger)
        if found is not None:
            log, listed = found
            listings.append(_Listing(ledger, log, listed.ctime_ms, listed.version != LISTED_VERSION))

    async def read(log: str) -> None:
        try:
            mark = await sinks.mark_in(await logs.located(log), sink_id)
        except LogNotFoundError:
            return
        highest[log] = NO_BATCH if mark is None else mark.value.batch

    await for_each(staged, _AT_ONCE, look)
    # Where no log is known, and for a batch write, the sink speaks for all.
    await for_each({one.log for one in listings if one.log}, _AT_ONCE, read)
    stale = not listings and max(stat.mtime_ms, stat.ctime_ms) < before_ms
    whole = sink_id.startswith(JOB_PREFIX)
    judged = [
        (one, state.value.batch if whole or not one.log else highest.get(one.log, NO_BATCH))
        for one in sorted(listings, key=lambda one: one.ledger)
    ]
    return SinkLeftovers(sink_id, state.value, stat.mtime_ms, _judged(judged, before_ms), stale)


def _judged(listings: Sequence[tuple[_Listing, int]], before_ms: int) -> tuple[JudgedLedger, ...]:
    """Return the state of each listing, which is given with the highest batch that its log has."""
    newest: dict[tuple[int, str], int] = {}
    for one, _ in listings:
        attempt = (one.ledger.batch, one.ledger.attempt)
        newest[attempt] = max(one.listed_ms, newest.get(attempt, 0))
    return tuple(
        JudgedLedger(
            one.ledger,
            one.log,
            one.listed_ms,
            _state_of(one, highest, newest[one.ledger.batch, one.ledger.attempt] < before_ms),
        )
        for one, highest in listings
    )


def _state_of(listing: _Listing, highest: int, old: bool) -> StagedLedgerState:
    if listing.condemned:
        return StagedLedgerState.CONDEMNED
    # By order: a log that has a later batch takes no rows of this one any more (D15).
    if listing.ledger.batch <= highest:
        return StagedLedgerState.SETTLED
    return StagedLedgerState.ABANDONED if old else StagedLedgerState.LIVE
