"""Limits of a write proxy: requests and bytes a second, for each stream and for all; when no other stream is taken.
No I/O: who asks says what time it is.

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
"""How often it is looked which producers of a client the log has forgotten, once that has all that it may have."""
_COUNTED_S: Final = 0.25


class Permits:
    """Permits by the second."""

    __slots__ = ("_free_at_s", "_stored", "per_second")

    def __init__(self, per_second: float, now_s: float) -> None:
        """`per_second` is above 0."""
        self.per_second = per_second
        self._stored = 0.0
        self._free_at_s = now_s

    def take(self, permits: int, now_s: float) -> bool:
        """Take that many if none are owed; returns whether they were taken."""
        if now_s > self._free_at_s:
            gained = (now_s - self._free_at_s) * self.per_second
            self._stored = min(self.per_second * BURST_S, self._stored + gained)
            self._free_at_s = now_s
        elif now_s < self._free_at_s:
            return False
        stored = min(permits, self._stored)
        self._stored -= stored
        self._free_at_s += (permits - stored) / self.per_second
        return True


def permits_of(limit: int, now_s: float) -> Permits | None:
    """Return what a setting stands for: None for one that is off."""
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
        """Return those of the whole proxy."""
        return cls(
            settings.rps_soft_service, settings.rps_hard_service, settings.bps_soft_service, settings.bps_hard_service
        )

    @classmethod
    def of_stream(cls, settings: WriteProxySettings) -> LimitValues:
        """Return those of one stream."""
        return cls(settings.rps_soft_write, settings.rps_hard_write, settings.bps_soft_write, settings.bps_hard_write)


class WriteLimiter:
    """Soft and hard limits of requests and bytes, of one stream or of the whole proxy."""

    __slots__ = ("_bps_hard", "_bps_soft", "_rps_hard", "_rps_soft", "_values", "_whose", "active", "counts")

    def __init__(self, whose: str, values: LimitValues, now_s: float, counts: Counter[str]) -> None:
        """`whose` names it in errors and in `counts`: "stream" or "service"."""
        self._whose = whose
        self.counts = counts
        """How often each limit was passed, by names such as `stream-rps-hard`."""
        self._set(values, now_s)

    def _set(self, values: LimitValues, now_s: float) -> None:
        self._values = values
        self._rps_soft = permits_of(values.rps_soft, now_s)
        self._rps_hard = permits_of(values.rps_hard, now_s)
        self._bps_soft = permits_of(values.bps_soft, now_s)
        self._bps_hard = permits_of(values.bps_hard, now_s)
        self.active = any((self._rps_soft, self._rps_hard, self._bps_soft, self._bps_hard))
        """Whether any limit is on: where none is, `check` need not be called."""

    def use(self, values: LimitValues, now_s: float) -> None:
        """Let other limits hold. Limits that stay the same go on as they are."""
        if values != self._values:
            self._set(values, now_s)

    def check(self, size: int, now_s: float, *, dark: bool) -> None:
        """Charge one request of `size` bytes. Raises OverCapacityError where it is over a hard limit and not `dark`."""
        counts, whose = self.counts, self._whose
        if self._rps_soft is not None and not self._rps_soft.take(1, now_s):
            counts[f"{whose}-rps-soft"] += 1
        if self._bps_soft is not None and not self._bps_soft.take(size, now_s):
            counts[f"{whose}-bps-soft"] += 1
        if self._rps_hard is not None and not self._rps_hard.take(1, now_s):
            counts[f"{whose}-rps-hard"] += 1
            if not dark:
                raise self._over_capacity_error(f"{self._values.rps_hard} requests")
        if self._bps_hard is not None and not self._bps_hard.take(size, now_s):
            counts[f"{whose}-bps-hard"] += 1
            if not dark:
                raise self._over_capacity_error(f"{self._values.bps_hard} bytes")

    def _over_capacity_error(self, limit: str) -> OverCapacityError:
        return OverCapacityError(
            f"the limit of the {self._whose} is {limit} a second; the request was not taken",
            advice="Send less, or later",
        )


class ClientProducers:
    """The producers of one stream, by the clients that began them while this proxy had it.

    A client is who it has proved to be, or the host that it asks from.
    """

    __slots__ = ("_knows", "_looked_s", "_names")

    def __init__(self, knows: Callable[[str], bool]) -> None:
        """`knows`: whether the log knows a producer."""
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
    """How much a second there was, on the mean of the last minute."""

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
        passed = range(self._second + 1, min(int(now_s), self._second + RECENT_S) + 1)
        left = self._total - sum([self._amounts[second % RECENT_S] for second in passed])
        return (left + more) / min(RECENT_S, max(1.0, now_s - self._began_s))

    def _move_to(self, second: int) -> None:
        for passed in range(self._second + 1, min(second, self._second + RECENT_S) + 1):
            self._total -= self._amounts[passed % RECENT_S]
            self._amounts[passed % RECENT_S] = 0
        self._second = max(second, self._second)


class AcquireLimit:
    """Whether the proxy is busy enough with the streams that it has."""

    def __init__(self, now_s: float) -> None:
        self._requests = RecentRate(now_s)
        self._bytes = RecentRate(now_s)
        self._since_s = now_s
        self._count = self._size = 0

    def add(self, size: int, now_s: float) -> None:
        """Note a write of `size` bytes."""
        if now_s - self._since_s >= _COUNTED_S:
            self._turn(now_s)
        self._count += 1
        self._size += size

    def _turn(self, now_s: float) -> None:
        """Writes are added up before they are noted: that is cheaper, and as exact as a second needs."""
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
    """The partitions that a proxy has in one of the two ways, by group."""

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
        """Raise StreamUnavailableError where `stream` would be one partition too many; 0 or less: never. `done` says
        what is done with partitions: "cached" or "acquired"."""
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
