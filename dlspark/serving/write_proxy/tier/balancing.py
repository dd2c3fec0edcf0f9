"""The balancer: which streams should move from proxy to proxy. No I/O: it names one move at a time, and hears its end.

Upstream's rules, with a hand-over instead of its release and heartbeat: nothing a client sees fails.

    ClusterBalance     between the proxies of one cluster
    RegionBalance      between two clusters: that with more streams gives to the other
    CountChooser       takes a stream of the proxy that has most of them
    LoadChooser        takes the stream with the highest load from the proxy with the highest load
    LimitedChooser     ends after a number of choices

A proxy is named by its location. The distribution is what proxies answered a moment ago: a stream may have moved since,
and a move that fails, for this or another reason, changes nothing here. It is tried again only where a proxy is
emptied, and then once.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from metadata.foundation.errors import CallerError

Distribution: TypeAlias = Mapping[str, Iterable[str]]
"""Streams by the location of their owner; a proxy without streams is in it, too."""


@dataclass(frozen=True, slots=True)
class StreamMove:
    """Hand `stream` over from `source` to `target`."""

    stream: str
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class BalanceRules:
    """When does a proxy have too much? In streams or, with loads, in their unit. Raises CallerError below 0."""

    water_mark: float = 0
    """A proxy with no more than this gives nothing away."""
    tolerance_percent: float = 0.0
    """A proxy may be filled so far above the average, in percent of it."""

    def __post_init__(self) -> None:
        if not self.water_mark >= 0 or math.isinf(self.water_mark):
            raise CallerError(f"the water mark is {self.water_mark}", advice="Give 0 or more")
        if not self.tolerance_percent >= 0 or math.isinf(self.tolerance_percent):
            raise CallerError(f"the tolerance is {self.tolerance_percent} %", advice="Give 0 or more")


NO_RULES: Final = BalanceRules()


def streams_to_give(node: str, counts: Mapping[str, int], rules: BalanceRules = NO_RULES) -> int:
    """Return how many streams `node` should give away so that it has the average of all nodes; 0 where it has no more
    than the water mark, or than the average and the tolerance."""
    own = counts.get(node, 0)
    if not counts or own <= rules.water_mark:
        return 0
    average = sum(counts.values()) / len(counts)
    if own <= max(1, math.ceil(average + average * rules.tolerance_percent / 100)):
        return 0
    return max(0, own - math.ceil(average))


# ---------------------------------------------------------------------- choosers


class StreamChooser(Protocol):
    """Which stream goes next?"""

    def choose(self) -> tuple[str, str] | None:
        """Return a location and one of its streams; None where none is left. No stream comes twice."""
        ...


class CountChooser:
    """Which stream goes next, where each counts the same? One of the proxy that has most left, so that all come down to
    equally many and then to none. Which of a proxy's streams is chance."""

    def __init__(self, distribution: Distribution, rng: random.Random) -> None:
        self._left = {location: _shuffled(streams, rng) for location, streams in distribution.items()}
        self._order = [(-len(streams), location) for location, streams in self._left.items()]
        heapq.heapify(self._order)

    def choose(self) -> tuple[str, str] | None:
        """See `StreamChooser`."""
        if not self._order or self._order[0][0] == 0:
            return None
        count, location = self._order[0]
        heapq.heapreplace(self._order, (count + 1, location))
        return location, self._left[location].popleft()


class LoadChooser:
    """Which stream goes next, by load? The heaviest of the proxy whose streams have the highest load together."""

    def __init__(self, distribution: Distribution, loads: Mapping[str, int]) -> None:
        self._loads = loads
        self._left = {
            location: deque(sorted(streams, key=lambda one: (-loads.get(one, 0), one)))
            for location, streams in distribution.items()
        }
        self._sums = {location: _sum(streams, loads) for location, streams in self._left.items()}

    def choose(self) -> tuple[str, str] | None:
        """See `StreamChooser`."""
        having = [location for location, streams in self._left.items() if streams]
        if not having:
            return None
        location = max(having, key=lambda one: (self._sums[one], len(self._left[one]), one))
        stream = self._left[location].popleft()
        self._sums[location] -= self._loads.get(stream, 0)
        return location, stream


class LimitedChooser:
    """Which stream goes next, of so many at most? Another chooser's first `limit` choices."""

    def __init__(self, chooser: StreamChooser, limit: int) -> None:
        self._chooser = chooser
        self._left = limit

    def choose(self) -> tuple[str, str] | None:
        """See `StreamChooser`."""
        if self._left <= 0:
            return None
        self._left -= 1
        return self._chooser.choose()


def _shuffled(streams: Iterable[str], rng: random.Random) -> deque[str]:
    found = sorted(streams)
    rng.shuffle(found)
    return deque(found)


def _sum(streams: Iterable[str], loads: Mapping[str, int]) -> int:
    return sum(loads.get(one, 0) for one in streams)


# ---------------------------------------------------------------------- balancers


class Balance(Protocol):
    """Which move is next, now that the one before has ended? `next_move` and `ended` are called alternately."""

    def next_move(self) -> StreamMove | None:
        """Return the next move; None once it is done."""
        ...

    def ended(self, moved: bool) -> None:
        """Note that the move that was named last has ended; a stream that was not moved counts where it was."""
        ...


class _Steps:
    """A generator of moves that is given the result of each: a balance is written as one loop that stops at a move."""

    def __init__(self, steps: Generator[StreamMove, bool, None]) -> None:
        self._steps = steps
        self._moved: bool | None = None
        self._open = False

    def next_move(self) -> StreamMove | None:
        """See `Balance`."""
        if self._open:
            raise CallerError("the move before has not ended")
        try:
            move = next(self._steps) if self._moved is None else self._steps.send(self._moved)
        except StopIteration:
            self._moved = None
            return None
        self._open = True
        return move

    def ended(self, moved: bool) -> None:
        """See `Balance`."""
        if not self._open:
            raise CallerError("no move is under way")
        self._moved, self._open = moved, False


@dataclass(eq=False, slots=True)
class _Host:
    location: str
    streams: set[str]
    weight: int


class ClusterBalance(_Steps):
    """Which streams of a cluster should move, so that its proxies have equally much, or one of them nothing?

    Args:
        source: the proxy that is emptied; none, unless given.
        loads: each stream's load; each counts 1, unless given.

    Proxies are filled up to the average and the tolerance; those above the average, and above the water mark, give.
    With a source, its streams go to the others, all but as many as the water mark says at first, and then the rest one
    after the other, as upstream empties a proxy. Raises CallerError for a source that is not in the distribution.
    """

    def __init__(
        self,
        distribution: Distribution,
        rules: BalanceRules = NO_RULES,
        *,
        source: str | None = None,
        loads: Mapping[str, int] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if source is not None and source not in distribution:
            raise CallerError(f"{source} is not a proxy of this cluster", advice="dlspark proxy list shows them")
        self._loads = loads
        self._rules = rules
        self._rng = rng or random.Random()
        hosts = [_Host(one, set(streams), 0) for one, streams in distribution.items()]
        for host in hosts:
            host.weight = sum(map(self._weight, host.streams))
        hosts.sort(key=lambda one: (-one.weight, one.location))
        given = next((one for one in hosts if one.location == source), None)
        super().__init__(self._empty(given, hosts) if given is not None else self._even_out(hosts))

    def _weight(self, stream: str) -> int:
        return 1 if self._loads is None else self._loads.get(stream, 0)

    def _high_mark(self, average: float) -> int:
        # Rounded up, where upstream rounds down: of 3, 1 and 1 streams one is moved, too.
        return max(1, math.ceil(average + average * self._rules.tolerance_percent / 100))

    def _even_out(self, hosts: list[_Host]) -> Generator[StreamMove, bool, None]:
        if len(hosts) < 2:
            return
        average = sum(one.weight for one in hosts) / len(hosts)
        low = max(math.ceil(average), self._rules.water_mark)
        high = self._high_mark(average)
        for index, host in enumerate(hosts):
            yield from self._give(host, hosts[index + 1 :], low, high)

    def _empty(self, given: _Host, hosts: list[_Host]) -> Generator[StreamMove, bool, None]:
        others = [one for one in hosts if one is not given]
        if not others:
            return
        high = self._high_mark(sum(one.weight for one in hosts) / len(others))
        yield from self._give(given, others, self._rules.water_mark, high, empties=True)
        for stream in self._in_order(given):  # wherever there is least, whatever the marks say
            yield from self._one(stream, given, min(others, key=lambda one: (one.weight, one.location)))

    def _in_order(self, host: _Host) -> list[str]:
        if self._loads is None:
            return list(_shuffled(host.streams, self._rng))
        return sorted(host.streams, key=lambda one: (-self._weight(one), one))

    def _give(
        self, host: _Host, others: list[_Host], low: float, high: int, *, empties: bool = False
    ) -> Generator[StreamMove, bool, None]:
        """Move streams away while `host` has more than `low`, to the one that has least and stays within `high`."""
        for stream in self._in_order(host):
            if host.weight <= low or not others:
                return
            target = min(others, key=lambda one: (one.weight, one.location))
            weight = self._weight(stream)
            # A target that had more afterwards than the source before would only give the stream back next time.
            gains = empties or target.weight + weight < host.weight
            if weight and target.weight + weight <= high and gains:
                yield from self._one(stream, host, target)

    def _one(self, stream: str, source: _Host, target: _Host) -> Generator[StreamMove, bool, None]:
        moved = yield StreamMove(stream, source.location, target.location)
        if moved:
            source.streams.discard(stream)
            target.streams.add(stream)
            source.weight -= self._weight(stream)
            target.weight += self._weight(stream)


class RegionBalance(_Steps):
    """Which streams should move between two clusters, so that they have equally many, or one of them none?

    Args:
        source: the cluster that is emptied, 1 or 2; none, unless given.
        loads: streams with the highest load go first; all are alike, unless given.

    Each stream counts 1, as upstream has it. It goes to the proxy of the other cluster that has fewest. Raises
    CallerError for another source.
    """

    def __init__(
        self,
        first: Distribution,
        second: Distribution,
        rules: BalanceRules = NO_RULES,
        *,
        source: int | None = None,
        loads: Mapping[str, int] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if source not in (None, 1, 2):
            raise CallerError(f"{source} is not one of two clusters", advice="Give 1 or 2")
        sides = [{one: set(streams) for one, streams in side.items()} for side in (first, second)]
        counts = {str(number): sum(map(len, side.values())) for number, side in enumerate(sides)}
        giving = source - 1 if source is not None else (0 if counts["0"] > counts["1"] else 1)
        limit = counts[str(giving)] if source is not None else streams_to_give(str(giving), counts, rules)
        given, taking = sides[giving], sides[1 - giving]
        chooser: StreamChooser = CountChooser(given, rng or random.Random())
        if loads is not None:
            chooser = LoadChooser(given, loads)
        super().__init__(_across(LimitedChooser(chooser, limit), taking))


def _across(chooser: StreamChooser, taking: dict[str, set[str]]) -> Generator[StreamMove, bool, None]:
    while taking and (chosen := chooser.choose()) is not None:
        source, stream = chosen
        target = min(taking, key=lambda one: (len(taking[one]), one))
        if (yield StreamMove(stream, source, target)):
            taking[target].add(stream)
