"""Where bookies are: network locations, asked of a resolver once for each bookie, and kept.

A location is `/rack`, or `/region/rack`; here the whole of it counts as the rack. A bookie whose location is not known
is in the default rack, together with all others of that kind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from metadata.bookies import BookieAddress
from metadata.foundation.errors import DistributedLogError
from storage_node.client.health import Timer
from storage_node.client.placement.resolvers import RackResolver

_LOG: Final = logging.getLogger(__name__)

DEFAULT_RACK: Final = "/default-rack"
DEFAULT_RACKS: Final = frozenset({DEFAULT_RACK, "/default-region/default-rack", "/default-region/default-row"})
MAX_DEPTH: Final = 2
RETRY_S: Final = 60.0
"""A bookie whose location could not be had is asked for again after this."""
MAX_REMEMBERED: Final = 10_000
"""Bookies whose location is kept; beyond this those that were not seen for longest are forgotten."""


def normal_location(text: str) -> str | None:
    """`/rack` or `/region/rack` without a trailing slash; None where the text is neither."""
    parts = text.strip().rstrip("/").split("/")
    if parts[0] or not 1 <= len(parts) - 1 <= MAX_DEPTH or not all(parts[1:]):
        return None
    return "/".join(parts)


def is_default(location: str) -> bool:
    """Whether it stands for "not known"."""
    return location in DEFAULT_RACKS


@dataclass(slots=True)
class _Place:
    host: str
    location: str | None
    """None: the resolver could not say."""
    ask_again: float
    """Loop time; only where there is no location."""


class RackMap:
    """The locations of the bookies that were looked up; lives on one loop."""

    def __init__(self, resolver: RackResolver, timer: Timer) -> None:
        self._resolver = resolver
        self._timer = timer
        self._places: dict[str, _Place] = {}  # least recently seen first
        self._present: frozenset[str] = frozenset()
        self._own: str | None = None
        self._own_known = False
        self._lock = asyncio.Lock()
        self.error: DistributedLogError | None = None
        """Why the last look-up failed, if it did."""

    def rack_of(self, bookie: str) -> str:
        """Its location, or the default rack."""
        place = self._places.get(bookie)
        return DEFAULT_RACK if place is None or place.location is None else place.location

    def is_known(self, bookie: str) -> bool:
        """Whether a resolver placed it."""
        place = self._places.get(bookie)
        return place is not None and place.location is not None and not is_default(place.location)

    async def see(self, writable: Sequence[BookieAddress], also: Iterable[BookieAddress] = ()) -> None:
        """Learn where these bookies are. A bookie that was away, or has another host, is looked up anew.

        `also` are bookies by the addresses in their ids, which count only where they are not writable. Never fails: a
        bookie that cannot be placed is in the default rack.
        """
        async with self._lock:
            now = self._timer.time()
            present = frozenset(address.bookie_id for address in writable)
            joined = present - self._present
            wanted = [address for address in writable if self._is_due(address, now, address.bookie_id in joined)]
            # A registered bookie's id may name another host than its registration does; the registration counts.
            wanted += [a for a in also if a.bookie_id not in self._places and a.bookie_id not in present]
            if wanted:
                await self._look_up(wanted)
            self._present = present
            for address in writable:
                self._places[address.bookie_id] = self._places.pop(address.bookie_id)
            for bookie in list(self._places)[: max(0, len(self._places) - MAX_REMEMBERED)]:
                if bookie not in self._present:
                    del self._places[bookie]

    async def own_rack(self) -> str | None:
        """This client's own rack, None where it is not known. Asked for once."""
        async with self._lock:
            if not self._own_known:
                try:
                    location = await self._resolver.own_location()
                except DistributedLogError as error:
                    self.error = error
                    _LOG.warning("this host's own rack is not known: %s", error)
                    location = None
                found = normal_location(location) if location is not None else None
                self._own = None if found is None or is_default(found) else found
                self._own_known = True
            return self._own

    def forget(self) -> None:
        """Racks have changed: look everything up again when it is next needed."""
        self._present = frozenset()
        self._own_known = False

    def _is_due(self, address: BookieAddress, now: float, joined: bool) -> bool:
        place = self._places.get(address.bookie_id)
        if place is None or joined or place.host != address.host:
            return True
        return place.location is None and now >= place.ask_again

    async def _look_up(self, wanted: Sequence[BookieAddress]) -> None:
        hosts = sorted({address.host for address in wanted})
        found: dict[str, str] = {}
        try:
            answers = await self._resolver.locations(hosts)
        except DistributedLogError as error:
            self.error = error
            _LOG.warning("the racks of %d storage nodes are not known: %s", len(wanted), error)
        else:
            self.error = None
            for host, answer in zip(hosts, answers, strict=True):
                location = normal_location(answer) if answer is not None else None
                if location is not None:
                    found[host] = location
                elif answer is not None:
                    _LOG.warning("%r, given for %s, is not a network location: it counts as not known", answer, host)
        ask_again = self._timer.time() + RETRY_S
        for address in wanted:
            location = found.get(address.host)
            former = self._places.get(address.bookie_id)
            if location is None and former is not None and former.host == address.host:
                location = former.location  # a resolver that fails for a while moves no bookie
            self._places[address.bookie_id] = _Place(address.host, location, ask_again)
