"""Limits of a write proxy: requests and bytes a second, for each stream and for all; when no other stream is taken.
No I/O: the caller gives the time.

A `Permits` gives out a number of permits a second, as Guava's rate limiter does: what is not used in a second is there
in the next one, and a request is never cut: it is let in as soon as the ones before it are paid for, and those behind
it wait for what it costs. So one request larger than a second's permits passes, at a price.

Each limit is *soft* or *hard*. Over a soft one a request is only counted; over a hard one it is refused with
OverCapacityError, unless dark mode has it counted only, too. 0 and less switch a limit off.

`ClientProducers` bounds the producers that one client may begin on a stream: a log remembers each of them for a week.

`PartitionCounts` counts how many partitions of one group a proxy has, against its partition limits. A converter makes a
group and a number of a stream's name (`core.settings.operations`). A proxy *caches* a partition as long as it has its
stream in any state, and has it *acquired* as long as it owns its log.

`RecentRate` is the mean of the last minute; above `rpsStreamAcquireServiceLimit` or `bpsStreamAcquireServiceLimit` a
proxy goes on with the streams that it has, and takes no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dlspark.core.settings.operations import StreamConverter, StreamPartition
from dlspark.errors import OverCapacityError, StreamUnavailableError, TooManyProducersError
from dlspark.serving.write_proxy.settings import WriteProxySettings

BURST_S: Final = 1.0
"""Permits of so many seconds are kept for later."""
RECENT_S: Final = 60
"""The time over which acquire limits look back, in seconds."""
FORGOTTEN_S: Final = 60.0
"""The interval at which it is looked which of a client's producers the log has forgotten, once it has its most."""
_COUNTED_S: Final = 0.25
"""Writes of so many seconds are added up before they are noted."""


class Permits:
    """May one more be done in this second?

    Args:
        per_second: permits a second, above 0.
    """

    __slots__ = ("_free_at_s", "_stored", "per_second")

    def __init__(self, per_second: float, now_s: float) -> None:
        self.per_second = per_second
        self._stored = 0.0
        self._free_at_s = now_s

    def take(self, permits: int, now_s: float) -> bool:
        """Take that many if none are owed; return whether they were taken."""
        if now_s > self._free_at_s:
            gained = (now_s - self._free_at_s) * self.per_second
            self._stored = min(self.per_second * BURST_S, self._stored + gained)
            self._free_at_s = now_s
        elif now_s < self._free_at_s:
            return False
        # What is not in store is owed: those that come before it is paid for are refused, and not this one.
        stored = min(permits, self._stored)
        self._stored -= stored
        self._free_at_s += (permits - stored) / self.per_second
        return True


def permits_of(limit: int, now_s: float) -> Permits | None:
    """Return the permits that a setting stands for; None for one that is off."""
    return Permits(limit, now_s) if limit > 0 else None


@dataclass(frozen=True, slots=True)
class LimitValues:
    """The four limits of a stream or of a proxy; 0 or less: off."""

    rps_soft: int = 0
    rps_hard: int = 0
    bps_soft: int = 0
    bps_hard: int = 0

    @classmethod
    def of_service(cls, settings: WriteProxySettings) -> LimitValues:
        """Return the limits of the whole proxy."""
        return cls(
            settings.rps_soft_service, settings.rps_hard_service, settings.bps_soft_service, settings.bps_hard_service
        )

    @classmethod
    def of_stream(cls, settings: WriteProxySettings) -> LimitValues:
        """Return the limits of one stream."""
        return cls(settings.rps_soft_write, settings.rps_hard_write, settings.bps_soft_write, settings.bps_hard_write)


class WriteLimiter:
    """Is this write within the limits of requests and bytes, of one stream or of the whole proxy?

    Args:
        level: "stream" or "service", for errors and `counts`.
        counts: where passed limits are counted.
    """

    __slots__ = ("_bps_hard", "_bps_soft", "_level", "_rps_hard", "_rps_soft", "_values", "active", "counts")

    def __init__(self, level: str, values: LimitValues, now_s: float, counts: Counter[str]) -> None:
        self._level = level
        self.counts = counts
        """The number of times that each limit was passed, by names such as `stream-rps-hard`."""
        self._set(values, now_s)

    def _set(self, values: LimitValues, now_s: float) -> None:
        self._values = values
        self._rps_soft = permits_of(values.rps_soft, now_s)
        self._rps_hard = permits_of(values.rps_hard, now_s)
        self._bps_soft = permits_of(values.bps_soft, now_s)
        self._bps_hard = permits_of(values.bps_hard, now_s)
        self.active = any((self._rps_soft, self._rps_hard, self._bps_soft, self._bps_hard))
        """True where any limit is on: where none is, `check` need not be called."""

    def use(self, values: LimitValues, now_s: float) -> None:
        """Let other limits hold. Limits that stay the same go on as they are."""
        if values != self._values:
            self._set(values, now_s)

    def check(self, size: int, now_s: float, *, dark: bool) -> None:
        """Charge one request of `size` bytes. Raises OverCapacityError where it is over a hard limit and not `dark`."""
        # A soft limit that is passed does not end the check, nor a hard one in dark mode: the counts then say what each
        # one would refuse.
        counts, level = self.counts, self._level
        if self._rps_soft is not None and not self._rps_soft.take(1, now_s):
            counts[f"{level}-rps-soft"] += 1
        if self._bps_soft is not None and not self._bps_soft.take(size, now_s):
            counts[f"{level}-bps-soft"] += 1
        if self._rps_hard is not None and not self._rps_hard.take(1, now_s):
            counts[f"{level}-rps-hard"] += 1
            if not dark:
                raise self._over_capacity_error(f"{self._values.rps_hard} requests")
        if self._bps_hard is not None and not self._bps_hard.take(size, now_s):
            counts[f"{level}-bps-hard"] += 1
            if not dark:
                raise self._over_capacity_error(f"{self._values.bps_hard} bytes")

    def _over_capacity_error(self, limit: str) -> OverCapacityError:
        return OverCapacityError(
            f"the limit of the {self._level} is {limit} a second; the request was not taken",
            advice="Send less, or later",
        )


class ClientProducers:
    """May this client begin one more producer on a stream? The producers of one stream, by the clients that began them
    while this proxy had it.

    Args:
        knows: returns whether the log knows a producer.

    A client is the identity that it has proved, or the host that it asks from.
    """

    __slots__ = ("_knows", "_looked_s", "_names")

    def __init__(self, knows: Callable[[str], bool]) -> None:
        self._knows = knows
        self._names: dict[str, set[str]] = {}
        self._looked_s: dict[str, float] = {}

    def check(self, client: str, name: str, most: int, now_s: float) -> None:
        """Note that the client writes as a producer. Raises TooManyProducersError where that is a new one, and the
        client has begun `most` that the log still knows; 0 or less: any number."""
        if most <= 0 or self._knows(name):
            return
        names = self._names.setdefault(client, set())
        if name in names:
            return
        # The log forgets producers without saying so. Looking through all names of a client takes its time: not at each
        # request that is refused.
        if len(names) >= most and now_s - self._looked_s.get(client, now_s - FORGOTTEN_S) >= FORGOTTEN_S:
            self._looked_s[client] = now_s
            names = self._names[client] = {one for one in names if self._knows(one)}
        if len(names) >= most:
            raise TooManyProducersError(
                f"{client} has begun {len(names)} producers on this stream, the most that one client may have "
                f"(server_producers_per_client); producer {name!r} is new, and nothing of it was written",
                advice="Write with one that exists: a producer is for a program, and not for a request",
            )
        names.add(name)


class RecentRate:
    """How much is there a second, on the mean of the last minute?"""

    __slots__ = ("_amounts", "_began_s", "_second", "_total")

    def __init__(self, now_s: float) -> None:
        self._amounts = [0] * RECENT_S
        self._total = 0
        self._began_s = now_s
        self._second = int(now_s)

    def add(self, amount: int, now_s: float) -> None:
        """Note that there was something."""
        second = int(now_s)
        if second != self._second:
            self._move_to(second)
        self._amounts[second % RECENT_S] += amount
        self._total += amount

    def per_second(self, now_s: float, more: int = 0) -> float:
        """Return the mean, with `more` that is not noted yet; over the time since it was made, where that is shorter
        than a minute. It changes nothing: any thread may call it."""
        # Seconds that have passed without an `add` still have the amounts of a minute before.
        passed = range(self._second + 1, min(int(now_s), self._second + RECENT_S) + 1)
        left = self._total - sum([self._amounts[second % RECENT_S] for second in passed])
        return (left + more) / min(RECENT_S, max(1.0, now_s - self._began_s))

    def _move_to(self, second: int) -> None:
        for passed in range(self._second + 1, min(second, self._second + RECENT_S) + 1):
            self._total -= self._amounts[passed % RECENT_S]
            self._amounts[passed % RECENT_S] = 0
        self._second = max(second, self._second)


class AcquireLimit:
    """Is the proxy busy enough with the streams that it has?"""

    def __init__(self, now_s: float) -> None:
        self._requests = RecentRate(now_s)
        self._bytes = RecentRate(now_s)
        self._since_s = now_s
        self._count = self._size = 0

    def add(self, size: int, now_s: float, writes: int = 1) -> None:
        """Note a write of `size` bytes, or several of so many together."""
        if now_s - self._since_s >= _COUNTED_S:
            self._note(now_s)
        self._count += writes
        self._size += size

    def _note(self, now_s: float) -> None:
        # Added up first: that is cheaper than noting each, and as exact as a second needs.
        self._requests.add(self._count, self._since_s)
        self._bytes.add(self._size, self._since_s)
        self._since_s, self._count, self._size = now_s, 0, 0

    def requests_per_second(self, now_s: float) -> float:
        """Return the mean of writes. Any thread may call it."""
        return self._requests.per_second(now_s, self._count)

    def bytes_per_second(self, now_s: float) -> float:
        """Return the mean of bytes. Any thread may call it."""
        return self._bytes.per_second(now_s, self._size)

    def is_over(self, settings: WriteProxySettings, now_s: float) -> bool:
        """Return whether no other stream should be taken."""
        rps, bps = settings.rps_acquire, settings.bps_acquire
        return (rps > 0 and self.requests_per_second(now_s) > rps) or (bps > 0 and self.bytes_per_second(now_s) > bps)


class PartitionCounts:
    """How many partitions of a group has this proxy, and may it have one more? Counts those that are cached, or those
    that are acquired.

    Args:
        converter: gives a stream's group and partition.
    """

    def __init__(self, converter: StreamConverter) -> None:
        self._converter = converter
        self._groups: dict[str, set[StreamPartition]] = {}

    def add(self, stream: str) -> None:
        """Note that it has this stream now."""
        partition = self._converter(stream)
        self._groups.setdefault(partition.stream, set()).add(partition)

    def discard(self, stream: str) -> None:
        """Note that it has it no more."""
        partition = self._converter(stream)
        group = self._groups.get(partition.stream)
        if group is not None:
            group.discard(partition)
            if not group:
                del self._groups[partition.stream]

    def check(self, stream: str, limit: int, done: str) -> None:
        """Raise StreamUnavailableError where `stream` would be one partition too many.

        Args:
            limit: partitions of a group; 0 or less: any number.
            done: "cached" or "acquired", for the error.
        """
        if limit <= 0:
            return
        partition = self._converter(stream)
        group = self._groups.get(partition.stream, set())
        if partition not in group and len(group) >= limit:
            raise StreamUnavailableError(
                f"{len(group)} partitions of {partition.stream} are {done} here, the most that this proxy has",
                log=stream,
                advice="Ask another proxy",
            )

    def count(self, group: str) -> int:
        """Return how many partitions of a group there are."""
        return len(self._groups.get(group, ()))
