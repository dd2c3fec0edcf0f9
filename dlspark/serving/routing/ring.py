"""`HostRing`: the route that most clients take, upstream's consistent hashing. `BoundedRing`: the one for readers.

    points    each host has 997, at the hashes of `shard-<shard>-<i>-<address>`, i from 0, the address as Java has it
    lookup    the first point at or behind the stream's hash, around the end to the lowest; points of hosts that are
              passed over are skipped, so a host that leaves moves its own streams and no others
    blackout  a host whose connection failed is passed over for 300 s; its points stay
    members   a host with a shard number stays when it is missing from the list: its process restarts, mostly. It goes
              when the shard comes up at another address. A host without a number goes at once

Upstream's client fails a request when every host is blacked out; here they are asked all the same.

One sorted list has the points of all hosts, each as one number, `angle * 2^20 + index of the host`, the angle from 0 to
2^64 - 1. A host that joins has its 997 hashed and merged in; one that leaves is filtered out: nothing else is hashed
again. A lookup is a bisection and, mostly, one step.

A log that is read through a proxy has no owner there: any proxy can serve it. It is best read at one, where all its
readers share what is in memory, and a proxy must not get too many logs by chance. So a `BoundedRing` places a log at
the first host behind its hash that has room (consistent hashing with bounded loads, Mirrokni, Thorup and Zadimoghaddam,
2016), and no host has much more than its share of one client's logs:

    room    less than `ceil(balance * (logs placed + 1) / hosts that can be asked)` logs
    stays   a log stays where it is placed while that host can be asked, also when hosts join or other logs go

What is placed, and what the bound counts here, is what this client reads: it says which proxy is asked first. The logs
of many clients that read a few each lie as the ring's hash has it. The bound over all clients is kept by the proxies
(`read_proxy.balance`): one that has its share sends the client on, which the cache of owners remembers, and this route
does not. Clients that read the same logs mostly agree, because few logs overflow, and what a proxy has read is shared;
where they do not, a log is read at two proxies. The number of logs is bounded, those that were asked for longest ago
are dropped first.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Final

from dlspark.serving.routing.hosts import BLACKOUT_S, Blackouts, ProxyHost, hash_long
from metadata.foundation.errors import check

POINTS_PER_HOST: Final = 997
HOSTS_KEPT: Final = 64
"""Hosts whose points are not hashed again by the next ring of the process: each of its clients has one."""
_INDEX_BITS: Final = 20
_INDEX_MASK: Final = (1 << _INDEX_BITS) - 1
MAX_HOSTS: Final = 1 << _INDEX_BITS
_LOWEST: Final = 1 << 63
"""Turns a signed hash into an angle that counts from 0."""


def host_points(host: ProxyHost, points: int = POINTS_PER_HOST) -> list[int]:
    """Return the hashes of a host's points, in the order of their numbers."""
    text = host.java_text
    return [hash_long(f"shard-{host.shard}-{number}-{text}") for number in range(points)]


@lru_cache(maxsize=HOSTS_KEPT)
def _points_of(host: ProxyHost, points: int) -> tuple[int, ...]:
    return tuple(host_points(host, points))


class HostRing:
    """Chooses the host behind a stream's hash on the ring; a `Route`."""

    def __init__(
        self,
        hosts: Iterable[ProxyHost] = (),
        *,
        points: int = POINTS_PER_HOST,
        blackout_s: float = BLACKOUT_S,
    ) -> None:
        """`points`: how many each host has. All clients that are to agree have the same number."""
        self._points_per_host = points
        self._points: list[int] = []
        self._hosts: dict[str, ProxyHost] = {}
        self._shards: dict[int, str] = {}
        self._indices: dict[str, int] = {}
        self._addresses: list[str] = []
        """By index; an index whose host left is taken by the next that joins."""
        self._free: list[int] = []
        self._blackouts = Blackouts(blackout_s)
        self._listed: frozenset[str] = frozenset()
        self.update(hosts, 0.0)

    def __len__(self) -> int:
        return len(self._hosts)

    def addresses(self) -> tuple[str, ...]:
        """Return all hosts, in the order in which they joined."""
        return tuple(self._hosts)

    def region_of(self, address: str) -> str | None:
        """Return None: a ring is one region."""
        return None

    # ------------------------------------------------------------------ members

    def update(self, hosts: Iterable[ProxyHost], now: float) -> None:
        """Note that these are all hosts that are announced. Raises CallerError for an address that is none, and changes
        nothing.

        Of two hosts with one shard number the later one counts.
        """
        wanted: dict[str, ProxyHost] = {}
        by_shard: dict[int, str] = {}
        for host in hosts:
            host.java_text  # noqa: B018  it raises before anything is changed
            if host.shard >= 0:
                wanted.pop(by_shard.get(host.shard, ""), None)
                by_shard[host.shard] = host.address
            wanted[host.address] = host
        check(len(wanted) <= MAX_HOSTS, "more hosts than a ring has room for")
        leaving = [one for one in self._hosts.values() if self._leaves(one, wanted, by_shard)]
        if leaving:
            self._remove(leaving)
        self._join([host for host in wanted.values() if host.address not in self._hosts])
        for address in wanted.keys() - self._listed:
            self._blackouts.end(address)  # it was announced anew
        self._listed = frozenset(wanted)
        self._blackouts.keep(self._hosts.keys())

    def _leaves(self, host: ProxyHost, wanted: dict[str, ProxyHost], by_shard: dict[int, str]) -> bool:
        if host.address in wanted:
            return wanted[host.address] != host
        return host.shard < 0 or host.shard in by_shard

    def _join(self, hosts: list[ProxyHost]) -> None:
        for host in hosts:
            if self._free:
                index = self._free.pop()
                self._addresses[index] = host.address
            else:
                index = len(self._addresses)
                self._addresses.append(host.address)
            self._indices[host.address] = index
            self._hosts[host.address] = host
            points = _points_of(host, self._points_per_host)
            self._points += [((point + _LOWEST) << _INDEX_BITS) | index for point in points]
        if hosts:
            self._points.sort()  # merges runs that are sorted already

    def _remove(self, hosts: list[ProxyHost]) -> None:
        gone = set()
        for host in hosts:
            del self._hosts[host.address]
            gone.add(self._indices.pop(host.address))
        self._free += gone
        self._points = [point for point in self._points if point & _INDEX_MASK not in gone]

    # ------------------------------------------------------------------ choosing

    def failed(self, address: str, now: float) -> None:
        """Pass over a host for the length of a blackout."""
        if address in self._hosts:
            self._blackouts.begin(address, now)

    def answered(self, address: str) -> None:
        """End a host's blackout."""
        self._blackouts.end(address)

    def failed_lately(self, address: str, now: float) -> bool:
        """Return whether a host is in a blackout."""
        return address in self._blackouts.at(now)

    def pick(self, stream: str, now: float, tried: Collection[str] = (), regions: Collection[str] = ()) -> str | None:
        """Return the host of `stream`, none of those in `tried`; None where no other is left."""
        out = self.blacked_out(now)
        if not out:
            return self.lookup(stream, tried)
        found = self.lookup(stream, {*tried, *out})
        return found if found is not None else self.lookup(stream, tried)

    def lookup(self, stream: str, passed_over: Collection[str] = ()) -> str | None:
        """Return the host of the first point at or behind the stream's that is not passed over; blackouts do not
        count."""
        return next((address for address in self.following(stream) if address not in passed_over), None)

    def following(self, stream: str) -> Iterator[str]:
        """Yield all hosts, each once, in the order in which their points follow the stream's hash."""
        points = self._points
        start = bisect_left(points, (hash_long(stream) + _LOWEST) << _INDEX_BITS)
        seen: set[str] = set()
        for at in range(start, start + len(points)):
            address = self._addresses[points[at % len(points)] & _INDEX_MASK]
            if address not in seen:
                yield address
                seen.add(address)
                if len(seen) == len(self._hosts):
                    return

    def blacked_out(self, now: float) -> Collection[str]:
        """Return the hosts that failed not long ago."""
        return self._blackouts.at(now)


# ---------------------------------------------------------------------- with bounded loads


BALANCE: Final = 1.25
"""How far a host may be above its share."""
MAX_PLACED: Final = 100_000


class BoundedRing:
    """Chooses the first host behind a log's hash that has room, and remembers it; a `Route`.

    Args:
        hosts: that are announced.
        balance: how far a host may be above its share, 1 or more; 1 gives each host its share exactly, and moves most
            logs off their own host.
        points: how many each host has.
        blackout_s: for how long a host that failed is passed over.
        max_placed: logs that are remembered.
    """

    def __init__(
        self,
        hosts: Iterable[ProxyHost] = (),
        *,
        balance: float = BALANCE,
        points: int = POINTS_PER_HOST,
        blackout_s: float = BLACKOUT_S,
        max_placed: int = MAX_PLACED,
    ) -> None:
        self._ring = HostRing(hosts, points=points, blackout_s=blackout_s)
        self._strangers = Blackouts(blackout_s)
        """Hosts that a proxy named, and this client's list does not."""
        self._balance = balance
        self._max_placed = max_placed
        self._placed: dict[str, str] = {}
        """Log to address; the one that was not asked for longest comes first."""
        self._loads: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return how many logs are placed."""
        return len(self._placed)

    def load(self, address: str) -> int:
        """Return how many logs are placed at a host."""
        return self._loads[address]

    def addresses(self) -> tuple[str, ...]:
        """Return all hosts, in the order in which they joined."""
        return self._ring.addresses()

    def region_of(self, address: str) -> str | None:
        """Return None: the ring is one region."""
        return None

    def update(self, hosts: Iterable[ProxyHost], now: float) -> None:
        """Note that these are all hosts that are announced; logs of hosts that left are placed again when they are
        asked for."""
        self._ring.update(hosts, now)
        left = set(self._ring.addresses())
        for stream in [stream for stream, address in self._placed.items() if address not in left]:
            self.release(stream)

    def failed(self, address: str, now: float) -> None:
        """Pass over a host for the length of a blackout. Its logs move as they are asked for."""
        self._ring.failed(address, now)
        if address not in self._ring.addresses():
            self._strangers.begin(address, now)

    def answered(self, address: str) -> None:
        """End a host's blackout."""
        self._ring.answered(address)
        self._strangers.end(address)

    def failed_lately(self, address: str, now: float) -> bool:
        """Return whether a host is in a blackout, listed or not."""
        return self._ring.failed_lately(address, now) or address in self._strangers.at(now)

    def pick(self, stream: str, now: float, tried: Collection[str] = (), regions: Collection[str] = ()) -> str | None:
        """Return the host at which a log is placed, none of those in `tried`; it is placed where it is not. None: no
        host is left."""
        out = self._ring.blacked_out(now)
        placed_at = self._placed.pop(stream, None)
        if placed_at is not None:
            if placed_at not in tried and placed_at not in out:
                self._placed[stream] = placed_at
                return placed_at
            self._take_from(placed_at)
        found = self._find(stream, {*tried, *out}) if out else None
        if found is None:
            found = self._find(stream, tried)
        if found is None:
            return None
        self._placed[stream] = found
        self._loads[found] += 1
        if len(self._placed) > self._max_placed:
            self.release(next(iter(self._placed)))
        return found

    def outranked(self, address: str, now: float) -> bool:
        """Return False: a log stays where it is read."""
        return False

    def release(self, stream: str) -> None:
        """Note that the log is not read any more: it counts at no host."""
        placed_at = self._placed.pop(stream, None)
        if placed_at is not None:
            self._take_from(placed_at)

    def _find(self, stream: str, passed_over: Collection[str]) -> str | None:
        """Return the first host with room, without placing the log."""
        usable = [address for address in self._ring.addresses() if address not in passed_over]
        if not usable:
            return None
        room = math.ceil(self._balance * (len(self._placed) + 1) / len(usable))
        hosts = (address for address in self._ring.following(stream) if address not in passed_over)
        return next(address for address in hosts if self._loads[address] < room)

    def _take_from(self, address: str) -> None:
        self._loads[address] -= 1
        if not self._loads[address]:
            del self._loads[address]
