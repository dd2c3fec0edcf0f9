"""Routes beside the ring: by a host's index in the sorted list, to one host always, and through regions in their order.

ServerOrder    hosts sorted by their Java address text; the stream's 32-bit hash modulo their number. A host that
               joins or leaves moves most streams: for clients that must agree with upstream's of this kind
SingleHost     one address, whatever the stream: a proxy behind an address that spreads by itself, or a test
RegionChain    a route for each region, the local one first; a region is asked when those before it have no host
               left, or said that they are not available
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from dlspark.serving.routing.hosts import BLACKOUT_S, Blackouts, ProxyHost, Route, hash_int
from metadata.foundation.errors import CallerError


class ServerOrder:
    """Chooses by a stream's hash in the sorted list of hosts; a `Route`."""

    def __init__(self, hosts: Iterable[ProxyHost] = (), *, blackout_s: float = BLACKOUT_S) -> None:
        self._addresses: tuple[str, ...] = ()
        self._blackouts = Blackouts(blackout_s)
        self.update(hosts, 0.0)

    def __len__(self) -> int:
        return len(self._addresses)

    def addresses(self) -> tuple[str, ...]:
        """Return all hosts, in the order that counts."""
        return self._addresses

    def region_of(self, address: str) -> str | None:
        """Return None: the list is one region."""
        return None

    def update(self, hosts: Iterable[ProxyHost], now: float) -> None:
        """Note that these are all hosts. Raises CallerError for an address that is none, and changes nothing."""
        texts = {host.address: host.java_text for host in hosts}
        ordered = tuple(sorted(texts, key=lambda address: (texts[address], address)))
        for address in set(ordered).difference(self._addresses):
            self._blackouts.end(address)
        self._addresses = ordered
        self._blackouts.keep(ordered)

    def failed(self, address: str, now: float) -> None:
        """Leave a host out of the list for the length of a blackout, as upstream does."""
        if address in self._addresses:
            self._blackouts.begin(address, now)

    def answered(self, address: str) -> None:
        """End a host's blackout."""
        self._blackouts.end(address)

    def failed_lately(self, address: str, now: float) -> bool:
        """Return whether a host is in a blackout."""
        return address in self._blackouts.at(now)

    def pick(self, stream: str, now: float, tried: Collection[str] = (), regions: Collection[str] = ()) -> str | None:
        """Return the host at the stream's index; where it was tried, the one at its index among the others, or behind
        that."""
        out = self._blackouts.at(now)
        usable = [address for address in self._addresses if address not in out]
        found = _by_hash(usable, stream, tried)
        return found if found is not None or not out else _by_hash(list(self._addresses), stream, tried)


def _by_hash(addresses: list[str], stream: str, tried: Collection[str]) -> str | None:
    if not addresses:
        return None
    code = hash_int(stream)
    at = code % len(addresses)  # Python's remainder is not negative, as upstream's signSafeMod
    if addresses[at] not in tried:
        return addresses[at]
    others = addresses[:at] + addresses[at + 1 :]
    if not others:
        return None
    # Upstream's second choice: the hash again, among the others. Clients that agree on the first agree on this one too.
    begin = code % len(others)
    behind = others[begin:] + others[:begin]
    return next((address for address in behind if address not in tried), None)


class SingleHost:
    """Chooses the same host for every stream; a `Route`."""

    def __init__(self, address: str) -> None:
        self._address = ProxyHost(address).address

    def addresses(self) -> tuple[str, ...]:
        """Return the host."""
        return (self._address,)

    def region_of(self, address: str) -> str | None:
        """Return None: there are no regions."""
        return None

    def update(self, hosts: Iterable[ProxyHost], now: float) -> None:
        """Take the host that is listed. Raises CallerError unless it is one."""
        listed = [host.address for host in hosts]
        if len(listed) != 1:
            raise CallerError(f"{len(listed)} hosts where a client has one", advice="Route by the ring")
        self._address = listed[0]

    def failed(self, address: str, now: float) -> None:
        """Go on asking the host: it is the only one."""

    def answered(self, address: str) -> None:
        """Note that nothing was held against it."""

    def failed_lately(self, address: str, now: float) -> bool:
        """Return False: it is asked whatever happened."""
        return False

    def pick(self, stream: str, now: float, tried: Collection[str] = (), regions: Collection[str] = ()) -> str | None:
        """Return the host, unless it was tried."""
        return None if self._address in tried else self._address


class RegionChain:
    """Chooses by the first region's route that has a host left; a `Route`."""

    def __init__(self, regions: Sequence[tuple[str, Route]]) -> None:
        """`regions`: name and route of each, the local one first. Raises CallerError unless the names differ."""
        if not regions or len({name for name, _ in regions}) != len(regions):
            raise CallerError("a chain of regions needs one at least, each with a name of its own")
        self._regions = tuple(regions)

    def route_of(self, region: str) -> Route:
        """Return the route within a region, by which its members are updated. Raises CallerError for an unknown one."""
        for name, route in self._regions:
            if name == region:
                return route
        raise CallerError(f"there is no region {region!r}", advice=f"Known are {[name for name, _ in self._regions]}")

    def addresses(self) -> tuple[str, ...]:
        """Return the hosts of all regions, the local ones first."""
        return tuple(address for _, route in self._regions for address in route.addresses())

    def region_of(self, address: str) -> str | None:
        """Return the first region that has the host; None for a host that none has, as one that another proxy named."""
        return next((name for name, route in self._regions if address in route.addresses()), None)

    def update(self, hosts: Iterable[ProxyHost], now: float) -> None:
        """Note that these are the local region's hosts; those of others go to `route_of(region).update`."""
        self._regions[0][1].update(hosts, now)

    def failed(self, address: str, now: float) -> None:
        """Pass over the host where it is listed."""
        for _, route in self._regions:
            route.failed(address, now)

    def answered(self, address: str) -> None:
        """End the host's blackout where it is listed."""
        for _, route in self._regions:
            route.answered(address)

    def failed_lately(self, address: str, now: float) -> bool:
        """Return whether the host is in a blackout where it is listed."""
        return any(route.failed_lately(address, now) for _, route in self._regions)

    def pick(self, stream: str, now: float, tried: Collection[str] = (), regions: Collection[str] = ()) -> str | None:
        """Return the host of the first region that is available and has one left."""
        for name, route in self._regions:
            if name not in regions:
                found = route.pick(stream, now, tried)
                if found is not None:
                    return found
        return None
