"""`HostRing`: the route that most clients take, upstream's consistent hashing.

    points    each host has 997, at the hashes of `shard-<shard>-<i>-<address>`, i from 0, the address as Java has it
    lookup    the first point at or behind the stream's hash, around the end to the lowest; points of hosts that are
              passed over are skipped, so a host that leaves moves its own streams and no others
    blackout  a host whose connection failed is passed over for 300 s; its points stay
    members   a host with a shard number stays when it is missing from the list: its process restarts, mostly. It goes
              when the shard comes up at another address. A host without a number goes at once

Upstream's client fails a request when every host is blacked out; here they are asked all the same.

One sorted list has the points of all hosts, each as one number, `place * 2^20 + index of the host`, the place from 0 to
2^64 - 1. A host that joins has its 997 hashed and merged in; one that leaves is filtered out: nothing else is hashed
again. A lookup is a bisection and, mostly, one step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Final

from dlspark.serving.routing.hashing import hash_long
from dlspark.serving.routing.hosts import BLACKOUT_S, Blackouts, ProxyHost
from metadata.foundation.errors import check

POINTS_PER_HOST: Final = 997
HOSTS_KEPT: Final = 64
"""Hosts whose points are not hashed again by the next ring of the process: each of its clients has one."""
_INDEX_BITS: Final = 20
_INDEX_MASK: Final = (1 << _INDEX_BITS) - 1
MAX_HOSTS: Final = 1 << _INDEX_BITS
_LOWEST: Final = 1 << 63
"""Turns a signed hash into a place that counts from 0."""


def host_points(host: ProxyHost, points: int = POINTS_PER_HOST) -> list[int]:
    """Return the hashes of a host's points, in the order of their numbers."""
    text = host.java_text
    return [hash_long(f"shard-{host.shard}-{number}-{text}") for number in range(points)]


@lru_cache(maxsize=HOSTS_KEPT)
def _points_of(host: ProxyHost, points: int) -> tuple[int, ...]:
    return tuple(host_points(host, points))


class HostRing:
    """The hosts on their ring; a `Route`."""

    def __init__(
        self,
        hosts: Iterable[ProxyHost] = (),
        *,
        points: int = POINTS_PER_HOST,
        blackout_s: float = BLACKOUT_S,
    ) -> None:
        """`points`: of each host. All clients that are to agree have the same number."""
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
