"""Which replica is asked first where a cluster spans regions: its order, and what is known of distances. No I/O.

The order (`order_over_regions`) is that of BookKeeper's region-aware policy, from first to last:

    healthy ones of the own region, of which those that lag and those that failed lately are the last ones;
        behind the first LOCAL_FIRST of them one of another region: so a second region is asked before all of the own
        region were, if that is cut off
    healthy ones of other regions, the nearest first by measured time, those that failed lately last
    read-only ones
    slow ones: another replica had to be asked as well; the one with the fewest requests under way first
    gone ones: not registered, or failed again and again without an answer in between

Distances are times that this client has measured (`AnswerTimes`): of questions that a storage node answers from memory,
of reads, and of batches. A node that was never asked is taken to be as far as the others of its region; a region that
was not asked for long comes before other far ones once, and its distance is known again.

Where the own region is not known (`Nearness.own` is None) nothing of this is used: the order is `BookieHealth`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

LOCAL_FIRST: Final = 2
"""Replicas of the own region that are asked before one of another region is."""

ALIKE_FACTOR: Final = 1.5
ALIKE_S: Final = 0.002
"""Two nodes are equally far where their times differ by less than either: their reads stay spread by the striping."""

MEMORY_S: Final = 60.0
"""How long the distance of a region counts that is not asked any more."""

_NEWEST: Final = 1 / 8
_SPREAD_NEWEST: Final = 1 / 4
_SPREADS: Final = 4
"""The weights, and the multiple of the spread, of RFC 6298, section 2: what a TCP waits before it sends again."""


class ReplicaKind(IntEnum):
    """How a replica stands, in reading order."""

    HEALTHY = 0
    READ_ONLY = 1
    SLOW = 2
    GONE = 3


@dataclass(frozen=True, slots=True)
class ReplicaStanding:
    """What is known of a replica when it is put in order?"""

    kind: ReplicaKind
    local: bool
    lags: bool = False
    """It answers clearly more slowly than the fastest one. Counts in the own region; elsewhere the time does."""
    failed: float = 0.0
    """0 where it did not fail lately; otherwise a number that is greater, the later it failed."""
    time_s: float | None = None
    """How far it is; None where that is not known."""
    pending: int = 0
    """Requests under way to it."""


def order_over_regions(indices: Sequence[int], standing: Callable[[int], ReplicaStanding]) -> list[int]:
    """Return the replicas `indices`, which are in write-set order, as a reader in a known region asks them."""
    found = {index: standing(index) for index in indices}
    healthy = [index for index in indices if found[index].kind is ReplicaKind.HEALTHY]
    local = [index for index in healthy if found[index].local]
    remote = [index for index in healthy if not found[index].local]
    # Python's sorts are stable: within a class the write-set order is kept, and with it the spread over nodes.
    local.sort(key=lambda index: (found[index].failed, found[index].lags))
    distance = _distances([found[index].time_s for index in remote])
    remote.sort(key=lambda index: (found[index].failed, distance(found[index].time_s)))
    slow = [index for index in indices if found[index].kind is ReplicaKind.SLOW]
    slow.sort(key=lambda index: found[index].pending)
    return [
        *local[:LOCAL_FIRST],
        *remote[:1],
        *local[LOCAL_FIRST:],
        *remote[1:],
        *(index for index in indices if found[index].kind is ReplicaKind.READ_ONLY),
        *slow,
        *(index for index in indices if found[index].kind is ReplicaKind.GONE),
    ]


def _distances(times: Sequence[float | None]) -> Callable[[float | None], int]:
    """Return what gives the class of a time: 0 for an unknown one, which so becomes known, then nearest first."""
    steps: list[float] = []
    for time_s in sorted(time for time in times if time is not None):
        if not steps or (time_s > steps[-1] * ALIKE_FACTOR and time_s - steps[-1] > ALIKE_S):
            steps.append(time_s)

    def distance(time_s: float | None) -> int:
        return 0 if time_s is None else sum(step <= time_s for step in steps)

    return distance


def least_pending_first(indices: Sequence[int], pending: Callable[[int], int], threshold: int) -> Sequence[int]:
    """Return `indices` with the one that has the fewest requests under way moved to the front, where the first one has
    `threshold` more of them, or yet more (`readReorderThresholdPendingRequests`; 0: never)."""
    if threshold <= 0 or len(indices) < 2:
        return indices
    best = min(range(len(indices)), key=lambda place: pending(indices[place]))
    if best == 0 or pending(indices[0]) < pending(indices[best]) + threshold:
        return indices
    # Only the best one moves, as upstream has it: by the time another one is asked all may have changed.
    return [indices[best], *indices[:best], *indices[best + 1 :]]


# ------------------------------------------------------------------------------------ measured times


@dataclass(slots=True)
class _Smoothed:
    mean_s: float
    spread_s: float
    when: float

    def take(self, seconds: float, now: float) -> None:
        self.spread_s += (abs(self.mean_s - seconds) - self.spread_s) * _SPREAD_NEWEST
        self.mean_s += (seconds - self.mean_s) * _NEWEST
        self.when = now


class AnswerTimes:
    """How long do storage nodes take for one kind of request? Of a node that was not asked yet: as its region does."""

    def __init__(self, region_of: Callable[[str], str | None]) -> None:
        self._region_of = region_of
        self._nodes: dict[str, _Smoothed] = {}
        self._regions: dict[str, _Smoothed] = {}

    def note(self, bookie: str, seconds: float, now: float) -> None:
        """Take the time of one answer; `now` is the loop's time."""
        _take(self._nodes, bookie, seconds, now)
        region = self._region_of(bookie)
        if region is not None:
            _take(self._regions, region, seconds, now)

    def usual_s(self, bookie: str, now: float) -> float | None:
        """Return what an answer of this node takes; None where neither it nor its region was asked lately."""
        found = self._of(bookie, now)
        return None if found is None else found.mean_s

    def patience_s(self, bookie: str, now: float) -> float | None:
        """Return after what time an answer of this node is late; None where that is not known."""
        found = self._of(bookie, now)
        return None if found is None else found.mean_s + _SPREADS * found.spread_s

    def heard_at(self, bookie: str) -> float:
        """Return when the last answer of this node was noted; 0 where none was."""
        found = self._nodes.get(bookie)
        return 0.0 if found is None else found.when

    def _of(self, bookie: str, now: float) -> _Smoothed | None:
        for table, key in ((self._nodes, bookie), (self._regions, self._region_of(bookie))):
            found = table.get(key) if key is not None else None
            if found is not None:
                if now - found.when <= MEMORY_S:
                    return found
                del table[str(key)]
        return None


def _take(table: dict[str, _Smoothed], key: str, seconds: float, now: float) -> None:
    found = table.get(key)
    if found is None:
        table[key] = _Smoothed(seconds, seconds / 2, now)
    else:
        found.take(seconds, now)


class Nearness:
    """Where are this client and its storage nodes, and how far is each? One for each client; `own` and what
    `find_region` asks are filled in by its owner."""

    def __init__(self) -> None:
        self.own: str | None = None
        """This client's own region; None: not known."""
        self.find_region: Callable[[str], str | None] = lambda _bookie: None
        self.questions = AnswerTimes(self.region_of)
        """Of what a node answers from memory: the round trip to it."""
        self.reads = AnswerTimes(self.region_of)
        self.batches = AnswerTimes(self.region_of)

    @property
    def known(self) -> bool:
        """True where reads are ordered by regions."""
        return self.own is not None

    def region_of(self, bookie: str) -> str | None:
        """Return a node's region; None where it is not known."""
        return self.find_region(bookie)

    def is_local(self, bookie: str) -> bool:
        """Return whether a node is in this client's own region."""
        return self.own is not None and self.find_region(bookie) == self.own

    def round_trip_s(self, bookie: str, now: float) -> float | None:
        """Return how long a small question to a node takes, there and back; None where that is not known."""
        asked = self.questions.usual_s(bookie, now)
        return asked if asked is not None else self.reads.usual_s(bookie, now)

    def one_way_s(self, bookies: Sequence[str], now: float) -> float | None:
        """Return the time that news take from the farthest of these nodes: half a round trip. None where the own
        region, or one of the distances, is not known."""
        if self.own is None:
            return None
        trips = [self.round_trip_s(bookie, now) for bookie in bookies]
        known = [trip for trip in trips if trip is not None]
        return max(known) / 2 if known and len(known) == len(trips) else None


# ------------------------------------------------------------------------------------ a second question

HEDGE_LEAST_S: Final = 0.005
"""No second question is put sooner."""

HEDGE_BURST: Final = 10.0
LOST_HEDGES: Final = 3
"""A node counts as slow that has lost so many second questions in a row, and has answered nothing meanwhile."""


class Hedges:
    """When is a second replica asked for what the first one does not bring in its usual time, and how often may that
    be? Each read earns a part of a second question, so that nodes which all are slow get little more to do.

    Args:
        percent: second questions for 100 reads (`hedgedReadsPercent`); 0: none.
    """

    def __init__(self, percent: int) -> None:
        self._earned = percent / 100
        self._saved = HEDGE_BURST if percent else 0.0
        self._lost: dict[str, int] = {}
        self.enabled = percent > 0

    def read(self) -> None:
        """Note a read."""
        self._saved = min(self._saved + self._earned, HEDGE_BURST)

    def pause_s(self, patience_s: float | None, other_s: float | None, longest_s: float) -> float | None:
        """Return how long the first replica is left alone with a read; None: no second question by its time.

        Args:
            patience_s: after what time an answer of the first one is late, if that is known.
            other_s: what an answer of the second one takes, if that is known.
            longest_s: the configured pause, behind which another replica is asked in any case; 0: never.
        """
        # Twice the other's time: what the first one has not brought by then the other one brings as soon.
        times = [time for time in (patience_s, None if other_s is None else 2 * other_s) if time is not None]
        if not self.enabled or not times:
            return None
        pause_s = max(min(times), HEDGE_LEAST_S)
        return pause_s if pause_s < longest_s else None

    def may_ask(self, *, free: bool = False) -> bool:
        """Return whether a second question may be put now, and count it; `free` where the first node is known as slow,
        so that its reads move away rather than double."""
        if free:
            return True
        if self._saved < 1:
            return False
        self._saved -= 1
        return True

    def answered(self, bookie: str) -> None:
        """Note that a node has answered a read."""
        if self._lost:
            self._lost.pop(bookie, None)

    def lost(self, bookie: str) -> bool:
        """Note that another node answered first. Returns whether this one counts as slow from now on."""
        count = self._lost.get(bookie, 0) + 1
        if count < LOST_HEDGES:
            self._lost[bookie] = count
            return False
        self._lost.pop(bookie, None)
        return True
