"""Bookies that fail, or are slow: what this client has seen of each, and how long an operation waits for those away.

`BookieHealth` orders the replicas to ask and the bookies to place on. It is kept in memory and is advice only: no
bookie is excluded for good, and a success clears what was held against it.

*Answer times.* Each read's time goes into a moving average of its bookie. A bookie that is clearly slower than the
fastest one, for more than a moment, lags, and is asked after those that do not; it stops lagging only when it is nearly
as fast again, so that the order does not flap. Bookies that are about equally fast are never sorted: their reads stay
spread by the striping. Nor does one lag because it is asked in place of others that do: a read waits for those before
it, and to leave a bookie out makes the others' lines longer, so that in the end one alone would be asked. A lagging
bookie is asked less, so what is known of it grows old: after a while it is forgotten, and tried anew.

*Regions.* Where the client's own region is known, `nearness` decides the order, by the `standing` of each bookie.

*Quarantine.* It is for bookies that failed many requests of this client lately. Failures are counted in intervals. A
bookie that reached the threshold in one is avoided for the quarantine's length, with the configured probability. A
refusal that says nothing about its health (fenced, no such entry, read-only) does not count. Where the cluster's switch
`disableHealthCheck` is set, no bookie is avoided and all are released.

*Outages.* An operation that too few bookies answer is tried again for a while (`Outage`, `outlast`). Off by default: a
program that writes or reads a ledger gets the error at once, and decides. Spark's queries cannot: they set
`outageWaitMillis`. It is looked at in few places, each of which repeats what has had no effect yet:

| operation | what is repeated |
|---|---|
| making a ledger | the choice of its nodes |
| adding, where no ack quorum is left | the choice of replacements; nothing is acknowledged meanwhile (D4) |
| reading entries, the LAC | the question |
| recovery | all of it (I10) |
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

from metadata.bookkeeper.bookies import BookieRegistry, UnknownBookieError
from metadata.foundation.errors import DistributedLogError
from storage_node.client.nearness import ReplicaKind, ReplicaStanding
from storage_node.errors import (
    BookieFailedError,
    BookieUnreachableError,
    ConnectionClosedError,
    LedgerFencedError,
    LedgerRecoveryError,
    LedgerStateUnknownError,
    LedgerTakenError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    QuorumWriteError,
    ReadOnlyError,
    RequestTimeoutError,
    TooManyRequestsError,
    UnauthorizedAccessError,
)
from storage_node.settings.placement import PlacementSettings

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

AVERAGE_WEIGHT = 0.2
"""The weight of the newest answer time in a bookie's average."""
JUDGE_EVERY = 8
"""Answers of a bookie from one comparison with the others to the next."""
LAG_FACTOR, LAG_S = 3.0, 0.005
"""A bookie lags when its average is above the fastest one's by both this factor and this difference."""
LATE_IN_A_ROW = 3
"""So often in a row: a moment in which a bookie stands still delays all that was asked of it, and is over then."""
MORE_FACTOR = 1.8
"""While others lag, one that answers so many times the mean of all is asked in their place."""
LEVEL_FACTOR, LEVEL_S = 1.5, 0.002
"""It stops lagging when its average is within either of these."""
LAG_MEMORY_S = 10.0

GONE_AFTER = 2
"""Over regions a bookie counts as gone that has failed so often without an answer in between."""

FAILED, SLOW, READ_ONLY, LAGGING, GOOD = 4, 3, 2, 1, 0
"""Ranks in reading order, last to first."""


class Timer(Protocol):
    """How late is it? The running loop's clock."""

    def time(self) -> float:
        """Return the running loop's time: seconds, monotonic."""
        ...


class _Pace:
    """How fast one bookie answers reads."""

    __slots__ = ("average_s", "heard", "late", "samples", "seen")

    def __init__(self, average_s: float, now: float) -> None:
        self.average_s = average_s
        self.heard = now
        self.samples = 1
        self.late = 0
        """So often in a row it was clearly slower than the fastest one."""
        self.seen = 0
        """Answers of all bookies when it was compared last."""


class BookieHealth:
    """When each bookie failed or was slow last, forgotten after `memory_ms`, and how fast it answers."""

    def __init__(self, loop: Timer, memory_ms: int) -> None:
        self.on_trouble: Callable[[], None] | None = None
        """Called when a bookie failed or was slow."""
        self._loop = loop
        self._memory_s = memory_ms / 1000
        self._failed: dict[str, float] = {}
        self._failures: dict[str, int] = {}  # since its last answer
        self._slow: dict[str, float] = {}
        self._paces: dict[str, _Pace] = {}
        self._answers = 0
        """Of all bookies, those whose time was taken."""
        self._lagging: dict[str, float] = {}
        self._read_only: dict[str, float] = {}
        self._absent: dict[str, float] = {}

    # ------------------------------------------------------------------------------------ what was seen

    def failed(self, bookie: str) -> None:
        """Note that the bookie refused, lost the connection, or did not answer."""
        self._failed[bookie] = self._loop.time()
        self._failures[bookie] = self._failures.get(bookie, 0) + 1
        if self.on_trouble is not None:
            self.on_trouble()

    def slow(self, bookie: str) -> None:
        """Note that another replica had to be asked as well."""
        self._slow[bookie] = self._loop.time()
        if self.on_trouble is not None:
            self.on_trouble()

    def answered(self, bookie: str, asked: float | None = None) -> None:
        """Note that the bookie did what it was asked to; `asked` is the time at which it was asked for one entry."""
        if self._failed:
            self._failed.pop(bookie, None)
            self._failures.pop(bookie, None)
        if asked is None:
            return
        now = self._loop.time()
        self._answers += 1
        pace = self._paces.get(bookie)
        if pace is None:
            self._paces[bookie] = _Pace(now - asked, now)
            return
        pace.average_s += (now - asked - pace.average_s) * AVERAGE_WEIGHT
        pace.samples += 1
        pace.heard = now
        if pace.samples % JUDGE_EVERY == 0:
            self._judge(bookie, pace)

    def heard_since(self, bookie: str, when: float) -> bool:
        """Return whether it has answered a read since then."""
        pace = self._paces.get(bookie)
        return pace is not None and pace.heard > when

    def registered(self, writable: Iterable[str], read_only: Iterable[str], known: Iterable[str]) -> None:
        """Take the cluster's lists over, as they are now, for the bookies that are `known`."""
        now = self._loop.time()
        writable, read_only = set(writable), set(read_only)
        self._read_only = dict.fromkeys(read_only - writable, now)
        self._absent = {bookie: now for bookie in known if bookie not in writable and bookie not in read_only}

    def _judge(self, bookie: str, pace: _Pace) -> None:
        now = pace.heard
        recent = [p.average_s for p in self._paces.values() if now - p.heard < LAG_MEMORY_S]
        fastest = min(recent)
        all_answers, pace.seen = self._answers - pace.seen, self._answers
        if bookie not in self._lagging:
            late = pace.average_s > fastest * LAG_FACTOR and pace.average_s - fastest > LAG_S
            if late and JUDGE_EVERY * len(recent) > MORE_FACTOR * all_answers:
                late = not any(now - when < LAG_MEMORY_S for when in self._lagging.values())
            pace.late = pace.late + 1 if late else 0
            if pace.late >= LATE_IN_A_ROW:
                self._lagging[bookie] = now
        elif pace.average_s < fastest * LEVEL_FACTOR or pace.average_s - fastest < LEVEL_S:
            del self._lagging[bookie]
        else:
            self._lagging[bookie] = now

    # ------------------------------------------------------------------------------------ what follows

    def failed_within(self, bookie: str, window_ms: int) -> bool:
        """Return whether a request to the bookie failed in the last `window_ms`."""
        when = self._failed.get(bookie)
        return when is not None and self._loop.time() - when < window_ms / 1000

    def reading_order(self, indices: Sequence[int], bookies: Sequence[str]) -> Sequence[int]:
        """Return `indices` of `bookies` in write-set order, but those behind that lag, only read, were slow, or
        failed.
        """
        if not (self._failed or self._slow or self._lagging or self._read_only or self._absent):
            return indices
        return sorted(indices, key=lambda index: self.rank(bookies[index]))  # stable: order is kept within a rank

    def standing(self, bookie: str, *, local: bool, time_s: float | None, pending: int) -> ReplicaStanding:
        """Return how the bookie stands among replicas in several regions (`nearness`).

        Upstream takes what is not registered for gone. A bookie that is registered and out of this client's reach is so
        as well: or every read would first ask it again, because it is near.
        """
        now = self._loop.time()
        failed = self._failed[bookie] if self._since(self._failed, bookie, now, self._memory_s) else 0.0
        if self._since(self._absent, bookie, now, self._memory_s) or (
            failed and self._failures.get(bookie, 0) >= GONE_AFTER
        ):
            kind = ReplicaKind.GONE
        elif not failed and self._since(self._slow, bookie, now, self._memory_s):
            kind = ReplicaKind.SLOW
        elif self._since(self._read_only, bookie, now, self._memory_s):
            kind = ReplicaKind.READ_ONLY
        else:
            kind = ReplicaKind.HEALTHY
        lags = self._since(self._lagging, bookie, now, LAG_MEMORY_S) > 0
        if kind is ReplicaKind.HEALTHY and not lags:
            self._paces_forgotten(bookie, now)
        return ReplicaStanding(kind, local, lags, failed, time_s, pending)

    def placing_order(self, bookies: Iterable[str]) -> list[str]:
        """Return those that did not fail lately, then the others, longest ago first. Stable."""
        now = self._loop.time()
        return sorted(bookies, key=lambda bookie: self._since(self._failed, bookie, now, self._memory_s))

    def rank(self, bookie: str) -> int:
        """Return the bookie's rank in reading order: GOOD to FAILED."""
        now = self._loop.time()
        if self._since(self._failed, bookie, now, self._memory_s) or self._since(
            self._absent, bookie, now, self._memory_s
        ):
            return FAILED
        if self._since(self._slow, bookie, now, self._memory_s):
            return SLOW
        if self._since(self._read_only, bookie, now, self._memory_s):
            return READ_ONLY
        if self._since(self._lagging, bookie, now, LAG_MEMORY_S):
            return LAGGING
        self._paces_forgotten(bookie, now)
        return GOOD

    def _paces_forgotten(self, bookie: str, now: float) -> None:
        """Forget the answer times of a bookie that has not been asked for long: they say nothing any more."""
        pace = self._paces.get(bookie)
        if pace is not None and now - pace.heard > LAG_MEMORY_S:
            del self._paces[bookie]

    def _since(self, table: dict[str, float], bookie: str, now: float, memory_s: float) -> float:
        """Return 0 where nothing is remembered; otherwise a number that is greater, the more recent it is."""
        when = table.get(bookie)
        if when is None:
            return 0.0
        left = memory_s - (now - when)
        if left <= 0:
            del table[bookie]
            return 0.0
        return left


# ------------------------------------------------------------------------------------ quarantine


HARMLESS: Final = (NoSuchEntryError, NoSuchLedgerError, LedgerFencedError, ReadOnlyError, UnauthorizedAccessError)
"""Answers of a bookie that works as it should."""
_CONNECTION: Final = (BookieUnreachableError, ConnectionClosedError)

IsDisabled = Callable[[], Awaitable[bool]]
"""True where the cluster's operators have switched the health check off."""


class Quarantine:
    """Counts failures and knows which bookies to avoid. It has no timer: intervals end with the next call."""

    def __init__(self, settings: PlacementSettings, timer: Timer, rng: random.Random) -> None:
        self._settings = settings
        self._timer = timer
        self._rng = rng
        self._interval_start = timer.time()
        self._counts: dict[str, int] = {}
        self._until: dict[str, float] = {}
        self._suspects: dict[str, float] = {}  # not yet asked for the cluster's switch; and when their interval ended

    def failed(self, bookie: str, error: DistributedLogError) -> None:
        """Note that a request to it failed so. Loss of a connection is one failure, whatever was under way on it."""
        if not self._settings.bookie_health_check_enabled or isinstance(error, HARMLESS):
            return
        if isinstance(error, _CONNECTION) and not self._settings.bookie_connection_error_quarantine_enabled:
            return
        self._end_interval()
        self._counts[bookie] = self._counts.get(bookie, 0) + 1

    async def avoided(self, is_disabled: IsDisabled) -> frozenset[str]:
        """Return the bookies to place nothing on as long as there are others."""
        if not self._settings.bookie_health_check_enabled:
            return frozenset()
        self._end_interval()
        if self._suspects:
            await self._judge(is_disabled)
        now = self._timer.time()
        self._until = {bookie: until for bookie, until in self._until.items() if until > now}
        return frozenset(self._until)

    async def _judge(self, is_disabled: IsDisabled) -> None:
        try:
            disabled = await is_disabled()
        except DistributedLogError as error:
            logger.warning(
                "whether disableHealthCheck is set is not known, looked up again at the next ensemble: %s", error
            )
            return
        suspects, self._suspects = self._suspects, {}
        if disabled:
            self._until.clear()
            logger.info("disableHealthCheck is set: %s would be avoided, and is not", ", ".join(sorted(suspects)))
            return
        for bookie, since in sorted(suspects.items()):
            if self._rng.random() < self._settings.bookie_quarantine_ratio:
                self._until[bookie] = since + self._settings.bookie_quarantine_time_s
                logger.warning("%s failed too many requests and is avoided for a while", bookie)

    def _end_interval(self) -> None:
        length = self._settings.bookie_health_check_interval_s
        passed = self._timer.time() - self._interval_start
        if passed < length:
            return
        counts, self._counts = self._counts, {}
        ended = self._interval_start + length
        self._interval_start += passed // length * length
        for bookie, count in counts.items():
            if count >= self._settings.bookie_error_threshold_per_interval:
                self._suspects[bookie] = ended


# ------------------------------------------------------------------------------------ outages

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0

_AWAY = (
    BookieFailedError,
    BookieUnreachableError,
    ConnectionClosedError,
    LedgerRecoveryError,
    LedgerStateUnknownError,
    NotEnoughBookiesError,
    QuorumWriteError,
    ReadOnlyError,
    RequestTimeoutError,
    TooManyRequestsError,
    UnknownBookieError,
)


def is_outage(error: DistributedLogError) -> bool:
    """Return whether an operation failed because storage nodes are away, or not able to answer yet: they may come
    back."""
    # A ledger that others have written under stays taken, however long one waits.
    return isinstance(error, _AWAY) and not isinstance(error, LedgerTakenError)


class Outage:
    """How long does an outage last as one operation meets it, from its first failure to its next success (`over`)?

    Args:
        limit_ms: how long it is waited for.
    """

    def __init__(self, limit_ms: int) -> None:
        self._limit_s = limit_ms / 1000
        self._since: float | None = None
        self._spent = False
        self._pause_s = FIRST_PAUSE_S

    async def wait(self, error: DistributedLogError | None = None) -> bool:
        """Pause before the next try; False, at once, if the outage has lasted too long for another."""
        now = asyncio.get_running_loop().time()
        if self._since is None:
            self._since = now
            if error is not None and self._limit_s:
                logger.warning("what is away is waited for, up to %g s: %s", self._limit_s, error)
        left_s = self._since + self._limit_s - now
        self._spent = left_s <= 0
        if self._spent:
            return False
        await asyncio.sleep(min(self._pause_s, left_s))
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return True

    def over(self) -> None:
        """Note that the operation succeeded, or a part of it."""
        self._since = None
        self._spent = False
        self._pause_s = FIRST_PAUSE_S

    def lasted(self, error: DistributedLogError) -> DistributedLogError:
        """Return `error`; its message now also says how long this has waited, if it has waited in vain."""
        if self._limit_s and self._spent:
            error.message = f"{error.message} (waited {self._limit_s:g} s for what is away to come back)"
        return error


class Members:
    """Are enough nodes of a cluster there?

    Args:
        bookies: the cluster's registrations and cookies.
        needed: nodes that the operation needs.
    """

    def __init__(self, bookies: BookieRegistry, needed: int) -> None:
        self._bookies = bookies
        self._needed = needed

    async def too_few(self) -> bool:
        """Return whether fewer nodes than that belong to the cluster: then it is not an outage, and no wait helps."""
        return 0 < len(await self._bookies.cookies()) < self._needed

    async def away(self) -> list[str]:
        """Return ids of the nodes that belong to the cluster and are not registered."""
        members, writable, readonly = await asyncio.gather(
            self._bookies.cookies(), self._bookies.writable(), self._bookies.readonly()
        )
        return sorted(set(members) - {one.bookie_id for one in [*writable, *readonly]})


async def outlast(limit_ms: int, operation: Callable[[], Awaitable[_T]], members: Members | None = None) -> _T:
    """Run `operation`, which must be harmless to run again, until storage nodes that are away do not stop it.

    Raises what it failed with otherwise, or still fails with after `limit_ms`; with `members` at once where there have
    never been enough of them, and naming those that are away.
    """
    outage = Outage(limit_ms)
    while True:
        try:
            return await operation()
        except DistributedLogError as error:
            if not is_outage(error) or (limit_ms and members is not None and await members.too_few()):
                raise
            if not await outage.wait(error):
                outage.lasted(error)
                away = await members.away() if limit_ms and members is not None else []
                if away:
                    error.message += f"; away: {', '.join(away)}"
                raise
