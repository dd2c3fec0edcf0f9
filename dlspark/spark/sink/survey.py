"""What the sinks of a namespace have published and staged, and which of it may be swept: `dlspark sink list|sweep`.

A staged ledger is

| verdict | when |
|---|---|
| `settled` | its log has its batch, from another attempt: it can never be published |
| `condemned` | a sweep began with it and did not get to its end: likewise |
| `abandoned` | its log does not have its batch, and its attempt has listed nothing new for so long |
| `live` | else: its query may still publish it |

All but `live` may be swept. Should an abandoned attempt live after all, it fails cleanly (BatchSweptError), with
nothing visible, and its batch is written again.

A query's next commit sweeps by itself what it has settled; a survey is for queries that will not commit again. The sink
of a query or application, and its marks in the logs, stay whatever happens: without them a checkpoint's replay would be
written twice (I9).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from dlspark.spark.sink.sweep import ABANDONED_AFTER_MS, Sweeper
from metadata.foundation.errors import CallerError
from metadata.foundation.pacing import for_each
from metadata.log_names import LogNotFoundError
from metadata.logs import LogStore
from metadata.sink_marks import NO_BATCH, SinkState
from metadata.sinks import APPLICATION_PREFIX, JOB_PREFIX, LISTED_VERSION, SinkStore, StagedLedger

MIN_AGE_MS = ABANDONED_AFTER_MS
_AT_ONCE = 16


class Verdict(str, Enum):
    """What may be done with a staged ledger."""

    SETTLED = "settled"
    CONDEMNED = "condemned"
    ABANDONED = "abandoned"
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class Listed:
    """One staged ledger."""

    ledger: StagedLedger
    log: str
    """Empty where it is not known: condemned ones, and what an older dlspark has listed."""
    listed_ms: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Survey:
    """One sink. `moved_ms` is when it published last, by the metadata server's clock."""

    sink_id: str
    state: SinkState
    moved_ms: int
    ledgers: tuple[Listed, ...]
    stale: bool
    """A batch write's sink that has nothing listed, and has not been touched for so long: its job died at its start."""

    @property
    def kind(self) -> str:
        """Who writes through it: a streaming query, an application with txnAppId, or a batch write."""
        if self.sink_id.startswith(APPLICATION_PREFIX):
            return "application"
        return "job" if self.sink_id.startswith(JOB_PREFIX) else "query"

    def of(self, *verdicts: Verdict) -> list[StagedLedger]:
        """The ledgers with one of these verdicts."""
        return [one.ledger for one in self.ledgers if one.verdict in verdicts]

    @property
    def sweepable(self) -> list[StagedLedger]:
        """What `sweep` takes."""
        return self.of(Verdict.SETTLED, Verdict.CONDEMNED, Verdict.ABANDONED)

    @property
    def removable(self) -> bool:
        """Whether `sweep` takes the sink itself: nobody repeats a batch write under its name."""
        return self.kind == "job" and (self.stale or (bool(self.ledgers) and not self.of(Verdict.LIVE)))


async def survey(
    sinks: SinkStore, logs: LogStore, now_ms: int, *, names: Iterable[str] | None = None, min_age_ms: int = MIN_AGE_MS
) -> list[Survey]:
    """Look at the sinks that are named, or at all. Raises CallerError for a name that no sink has."""
    existing = sorted(await sinks.sinks())
    wanted = existing if names is None else list(dict.fromkeys(names))
    missing = [name for name in wanted if name not in set(existing)]
    if missing:
        raise CallerError(f"there is no sink {missing[0]!r}; nothing was done", advice="See `dlspark sink list`")
    found = [await _look(sinks, logs, name, now_ms - min_age_ms) for name in wanted]
    return [one for one in found if one is not None]


async def sweep(sweeper: Sweeper, sinks: SinkStore, found: Survey) -> tuple[int, bool]:
    """Delete what the survey calls sweepable. Returns how many ledgers, and whether the sink is gone as well."""
    swept = await sweeper.ledgers(found.sink_id, found.sweepable)
    return swept, found.removable and await sinks.remove(found.sink_id)


@dataclass(frozen=True, slots=True)
class _Listing:
    ledger: StagedLedger
    log: str
    listed_ms: int
    condemned: bool


async def _look(sinks: SinkStore, logs: LogStore, sink_id: str, before_ms: int) -> Survey | None:
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
    return Survey(sink_id, state.value, stat.mtime_ms, _judged(judged, before_ms), stale)


def _judged(listings: Sequence[tuple[_Listing, int]], before_ms: int) -> tuple[Listed, ...]:
    """Each listing is given with the highest batch that its log has."""
    newest: dict[tuple[int, str], int] = {}
    for one, _ in listings:
        attempt = (one.ledger.batch, one.ledger.attempt)
        newest[attempt] = max(one.listed_ms, newest.get(attempt, 0))
    return tuple(
        Listed(
            one.ledger,
            one.log,
            one.listed_ms,
            _verdict(one, highest, newest[one.ledger.batch, one.ledger.attempt] < before_ms),
        )
        for one, highest in listings
    )


def _verdict(listing: _Listing, highest: int, old: bool) -> Verdict:
    if listing.condemned:
        return Verdict.CONDEMNED
    if listing.ledger.batch <= highest:
        return Verdict.SETTLED
    return Verdict.ABANDONED if old else Verdict.LIVE
