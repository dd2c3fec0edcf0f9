"""`BoundedRing`: the ring for readers, on which no host has much more than its share of one client's logs.

A log that is read through a proxy has no owner there: any proxy can serve it. It is best read at one, where all its
readers share what is in memory, and a proxy must not get too many logs by chance. So a log goes to the first host
behind its hash that has room (consistent hashing with bounded loads, Mirrokni, Thorup and Zadimoghaddam, 2016):

    room    less than `ceil(balance * (logs placed + 1) / hosts that can be asked)` logs
    stays   a log keeps its place while its host can be asked, also when hosts join or other logs go

What is placed, and what the bound counts here, is what this client reads: it says which proxy is asked first. The logs
of many clients that read a few each lie as the ring's hash has it. The bound over all clients is kept by the proxies
(`read_proxy.balance`): one that has its share sends the client on, which the cache of owners remembers, and this route
does not. Clients that read the same logs mostly agree, because few logs overflow, and what a proxy has read is shared;
where they do not, a log is read at two proxies. The number of logs is bounded, those that were asked for longest ago
are dropped first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from dlspark.serving.routing.hosts import BLACKOUT_S, Blackouts, ProxyHost
from dlspark.serving.routing.ring import POINTS_PER_HOST, HostRing

BALANCE: Final = 1.25
"""How far a host may be above its share."""
MAX_PLACED: Final = 100_000


class BoundedRing:
    """Hosts on their ring with the logs that are placed there; a `Route`."""

    def __init__(
        self,
        hosts: Iterable[ProxyHost] = (),
        *,
        balance: float = BALANCE,
        points: int = POINTS_PER_HOST,
        blackout_s: float = BLACKOUT_S,
        max_placed: int = MAX_PLACED,
    ) -> None:
        """`balance` is 1 or more; 1 gives each host its share exactly, and moves most logs off their own host."""
        self._ring = HostRing(hosts, points=points, blackout_s=blackout_s)
        self._strangers = Blackouts(blackout_s)
        """Hosts that a proxy named, and this client's list does not."""
        self._balance = balance
        self._max_placed = max_placed
        self._placed: dict[str, str] = {}
        """Log to address; the one that was not asked for longest comes first."""
        self._loads: Counter[str] = Counter()

    def __len__(self) -> int:
        """Logs that are placed."""
        return len(self._placed)

    def load(self, address: str) -> int:
        """Logs that are placed at a host."""
        return self._loads[address]

    def addresses(self) -> tuple[str, ...]:
        """Return all hosts, in the order in which they joined."""
        return self._ring.addresses()

    def region_of(self, address: str) -> str | None:
        """Return None: the ring is one region."""
        return None

    def update(self, hosts: Iterable[ProxyHost], now: float) -> None:
        """Note that these are all hosts that are announced; logs of hosts that left have no place until they are asked
        for."""
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
        """Return the place of a log, none of those in `tried`; it is given one where it has none. None: no host is
        left."""
        out = self._ring.blacked_out(now)
        place = self._placed.pop(stream, None)
        if place is not None:
            if place not in tried and place not in out:
                self._placed[stream] = place
                return place
            self._take_from(place)
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

    def release(self, stream: str) -> None:
        """Note that the log is not read any more: its place is free."""
        place = self._placed.pop(stream, None)
        if place is not None:
            self._take_from(place)

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
