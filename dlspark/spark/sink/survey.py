"""What the sinks of a namespace have published and staged, and which of it may be swept: `dlspark sink list|sweep`.

A staged ledger is

| verdict | when |
|---|---|
| `settled` | its batch is published, by another attempt: it can never be published |
| `condemned` | a sweep began with it and did not get to its end: likewise |
| `abandoned` | its batch is not published, and its attempt has listed nothing new for so long |
| `live` | else: its query may still publish it |

All but `live` may be swept. Should an abandoned attempt live after all, it fails cleanly (BatchSweptError), with
nothing visible, and its batch is written again.

A query's next commit sweeps by itself what it has settled; a survey is for queries that will not commit again. The mark
of a query or application stays whatever happens: with it gone, a checkpoint's replay would be written twice (I9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from dlspark.spark.sink.sweep import ABANDONED_AFTER_MS, Sweeper
from metadata.errors import CallerError
from metadata.sinks import APPLICATION_PREFIX, JOB_PREFIX, LISTED_VERSION, Mark, SinkStore, StagedLedger

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
    listed_ms: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Survey:
    """One sink. `moved_ms` is when its mark last moved, by the metadata server's clock."""

    sink_id: str
    mark: Mark
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
    sinks: SinkStore, now_ms: int, *, names: Iterable[str] | None = None, min_age_ms: int = MIN_AGE_MS
) -> list[Survey]:
    """Look at the sinks that are named, or at all. Raises CallerError for a name that no sink has."""
    existing = sorted(await sinks.sinks())
    wanted = existing if names is None else list(dict.fromkeys(names))
    missing = [name for name in wanted if name not in set(existing)]
    if missing:
        raise CallerError(f"there is no sink {missing[0]!r}; nothing was done", advice="See `dlspark sink list`")
    found = [await _look(sinks, name, now_ms - min_age_ms) for name in wanted]
    return [one for one in found if one is not None]


async def sweep(sweeper: Sweeper, sinks: SinkStore, found: Survey) -> tuple[int, bool]:
    """Delete what the survey calls sweepable. Returns how many ledgers, and whether the sink is gone as well."""
    swept = await sweeper.ledgers(found.sink_id, found.sweepable)
    return swept, found.removable and await sinks.remove(found.sink_id)


async def _look(sinks: SinkStore, sink_id: str, before_ms: int) -> Survey | None:
    # The listing before the mark: what is published in between has left the listing, and is not called settled.
    staged = await sinks.staged(sink_id)
    mark, stat = await sinks.read(sink_id), await sinks.stat(sink_id)
    if mark is None or stat is None:
        return None  # a batch write that ended meanwhile
    gate = asyncio.Semaphore(_AT_ONCE)

    async def listing(ledger: StagedLedger) -> tuple[StagedLedger, int, int] | None:
        async with gate:
            found = await sinks.stat(sink_id, ledger)
        return None if found is None else (ledger, found.ctime_ms, found.version)

    listings = [one for one in await asyncio.gather(*map(listing, staged)) if one is not None]
    stale = not listings and max(stat.mtime_ms, stat.ctime_ms) < before_ms
    return Survey(sink_id, mark.value, stat.mtime_ms, _judged(listings, mark.value, before_ms), stale)


def _judged(listings: Sequence[tuple[StagedLedger, int, int]], mark: Mark, before_ms: int) -> tuple[Listed, ...]:
    newest: dict[tuple[int, str], int] = {}
    for ledger, listed_ms, _ in listings:
        attempt = (ledger.batch, ledger.attempt)
        newest[attempt] = max(listed_ms, newest.get(attempt, 0))
    return tuple(
        Listed(ledger, listed_ms, _verdict(ledger, version, mark, newest[ledger.batch, ledger.attempt] < before_ms))
        for ledger, listed_ms, version in listings
    )


def _verdict(ledger: StagedLedger, version: int, mark: Mark, old: bool) -> Verdict:
    if version != LISTED_VERSION:
        return Verdict.CONDEMNED
    if mark.covers(ledger.batch):
        return Verdict.SETTLED
    return Verdict.ABANDONED if old else Verdict.LIVE
