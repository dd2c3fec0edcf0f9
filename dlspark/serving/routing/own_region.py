"""`OwnRegionFirst`: the route of a client that knows its region; `OwnRegionReads`: the same for readers. No I/O.

Hosts are grouped by the region that they announce, each group with a route of its own. So all clients of a region ask
the same of its hosts about a stream, and a log that nobody owns is opened where its first writer is:

    1   the own region, its hosts whose connection did not fail lately
    2   the other regions, likewise: first those that were listed, in their order, then each in turn, and which comes
        first follows from the stream's hash: all clients agree there, too, wherever they are
    3   hosts that announce no region
    4   hosts whose connection failed lately, in the same order

The owner of a log is not chosen here: a client that was sent to one remembers it, in whichever region that is. A log
that is read has no owner, and is read in the own region again once that can be (`OwnRegionReads.outranked`).

A host that comes up in another region, or says its region for the first time, leaves the group that it was in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

from dlspark.serving.routing.hosts import ProxyHost, Route, hash_long

UNSAID: Final = ""
"""The group of hosts that announce no region. No region has this name."""


class ReadRoute(Route, Protocol):
    """Chooses a host for a log that is read: it has no owner, and stays where it is placed."""

    def release(self, stream: str) -> None:
        """Note that the log is not read any more: it counts at no host."""
        ...

    def outranked(self, address: str, now: float) -> bool:
        """Return whether a log that is read at this host would better be asked for anew."""
        ...


Within = TypeVar("Within", bound=Route)


class OwnRegionFirst(Generic[Within]):
    """Chooses in the own region first, then in the others; a `Route`.

    Args:
        own: the client's region.
        make: makes an empty route within one region.
        hosts: all hosts, each with its region.
        order: other regions that come before those not named here.
    """

    def __init__(
        self, own: str, make: Callable[[], Within], hosts: Iterable[ProxyHost] = (), *, order: Sequence[str] = ()
    ) -> None:
        self.own = own
        self._make = make
        self._ranks = {region: rank for rank, region in enumerate(order)}
        self._routes: dict[str, Within] = {}
        self._hosts: dict[str, dict[str, ProxyHost]] = {}
        """By region: the hosts of its route, those included that it keeps though they are missing from the list."""
        self._failed: set[str] = set()
        """Addresses that failed, and did not answer since: perhaps not lately."""
        self.update(hosts, 0.0)

    # ------------------------------------------------------------------ members

    def update(self, hosts: Iterable[ProxyHost], now: float) -> None:
        """Note that these are all hosts. Raises CallerError for an address that is none, and changes nothing."""
        wanted: dict[str, list[ProxyHost]] = {}
        for host in hosts:
            host.java_text  # noqa: B018  it raises before anything is changed
            wanted.setdefault(host.region or UNSAID, []).append(host)
        for region in list(self._routes):
            if self._any_moved(region, wanted):
                # A ring keeps a numbered host that is missing until its number comes again, which it cannot see.
                del self._routes[region], self._hosts[region]
        for region in {*wanted, *self._routes}:
            self._update_region(region, wanted.get(region, []), now)
        self._failed.intersection_update(self.addresses())

    def _any_moved(self, region: str, wanted: dict[str, list[ProxyHost]]) -> bool:
        elsewhere = [host for other, hosts in wanted.items() if other != region for host in hosts]
        addresses = {host.address for host in elsewhere}
        shards = {host.shard for host in elsewhere if host.shard >= 0}
        here = {host.shard for host in wanted.get(region, ())}
        return any(
            host.address in addresses or (host.shard in shards and host.shard not in here)
            for host in self._hosts[region].values()
        )

    def _update_region(self, region: str, hosts: list[ProxyHost], now: float) -> None:
        route = self._routes.get(region)
        if route is None:
            route = self._make()
        route.update(hosts, now)
        left = set(route.addresses())
        known = self._hosts.get(region, {}) | {host.address: host for host in hosts}
        if left:
            self._routes[region] = route
            self._hosts[region] = {address: host for address, host in known.items() if address in left}
        else:
            self._routes.pop(region, None)
            self._hosts.pop(region, None)

    def addresses(self) -> tuple[str, ...]:
        """Return all hosts, those of the own region first."""
        regions = sorted(self._routes, key=lambda region: (region != self.own, region == UNSAID, region))
        return tuple(address for region in regions for address in self._routes[region].addresses())

    def region_of(self, address: str) -> str | None:
        """Return the region that a host announces; None for one that announces none, or is not known."""
        return next((region for region, hosts in self._hosts.items() if region and address in hosts), None)

    # ------------------------------------------------------------------ failures

    def failed(self, address: str, now: float) -> None:
        """Pass over a host for the length of a blackout."""
        self._failed.add(address)
        for route in self._routes.values():
            route.failed(address, now)

    def answered(self, address: str) -> None:
        """End a host's blackout."""
        self._failed.discard(address)
        for route in self._routes.values():
            route.answered(address)

    def failed_lately(self, address: str, now: float) -> bool:
        """Return whether a host is in a blackout."""
        return any(route.failed_lately(address, now) for route in self._routes.values())

    def _out(self, now: float) -> set[str]:
        if self._failed:
            self._failed = {address for address in self._failed if self.failed_lately(address, now)}
        return self._failed

    # ------------------------------------------------------------------ choosing

    def pick(self, stream: str, now: float, tried: Collection[str] = (), regions: Collection[str] = ()) -> str | None:
        """Return the host of the first region that has one left, passing over regions in `regions`."""
        out = self._out(now)
        found = self._first(stream, now, {*tried, *out}, regions) if out else None
        return found if found is not None else self._first(stream, now, tried, regions)

    def _first(self, stream: str, now: float, tried: Collection[str], regions: Collection[str]) -> str | None:
        for region in self._order(stream):
            if region not in regions:
                found = self._routes[region].pick(stream, now, tried)
                if found is not None:
                    self._chosen(stream, region)
                    return found
        return None

    def _order(self, stream: str) -> Iterator[str]:
        if self.own in self._routes:
            yield self.own
        last = len(self._ranks)
        # A hash of both: what the next region is differs from stream to stream, so no single one gets all of them.
        yield from sorted(
            (region for region in self._routes if region != self.own),
            key=lambda region: (
                region == UNSAID,
                self._ranks.get(region, last),
                hash_long(f"{region} {stream}"),
            ),
        )

    def _chosen(self, stream: str, region: str) -> None:
        """Note that a host of this region is asked about the stream."""


class Releasing(Route, Protocol):
    """A route that remembers where it placed a log (`BoundedRing`)."""

    def release(self, stream: str) -> None:
        """Forget where the log is placed."""
        ...


class OwnRegionReads(OwnRegionFirst[Releasing]):
    """Chooses where a log is read, in the own region first; a `ReadRoute`."""

    def release(self, stream: str) -> None:
        """Note that the log is not read any more."""
        for route in self._routes.values():
            route.release(stream)

    def outranked(self, address: str, now: float) -> bool:
        """Return whether a host is in another region though one of the own region can be asked."""
        own = self._hosts.get(self.own)
        if not own or address in own:
            return False
        return not self._out(now).issuperset(own)

    def _chosen(self, stream: str, region: str) -> None:
        # It counts in one region: where it was placed before, another log has its room.
        for other, route in self._routes.items():
            if other != region:
                route.release(stream)
