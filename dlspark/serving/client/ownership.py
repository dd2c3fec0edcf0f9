"""`OwnershipCache`: the proxy that is believed to own a stream; `ReadPlaces`: the one at which a log was read last;
`Handshakes`: when proxies are asked what they own. No I/O.

    learnt    from an answer to a request on the stream, from a redirect, from a handshake
    dropped   when the proxy refuses the stream, or when its connection fails: then with all streams that it had

It is a guess that saves redirects, nothing more: a stream that is missing, or wrong, costs one request to a proxy that
knows better. So it may forget at any time, and does: it holds a bounded number of streams, and those that were not
asked for longest go first. What proxies say in handshakes is not trusted to be small or of interest: only streams that
match the client's pattern as a whole are taken in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from dlspark.errors import SettingsError
from dlspark.serving.protocol.operations import Handshake
from dlspark.serving.routing.hosts import address_of
from dlspark.serving.routing.own_region import ReadRoute

MAX_OWNERSHIPS: Final = 100_000
"""Streams that the cache holds: some 30 MB."""
ANY_STREAM: Final = ".*"
RETURN_S: Final = 10.0
"""How long a log that is read in another region stays there, though a proxy of the own region can be asked."""


class OwnershipCache:
    """Remembers which proxy is believed to own a stream. It may forget at any time: that costs a redirect.

    Args:
        pattern: the streams of a handshake that are taken in. A stream that the client itself asked about is kept
            whatever the pattern says.
        max_streams: how many are held.

    Raises SettingsError for a pattern that cannot be read.
    """

    def __init__(self, pattern: str = ANY_STREAM, max_streams: int = MAX_OWNERSHIPS) -> None:
        try:
            self._wanted = None if pattern == ANY_STREAM else re.compile(pattern)
        except re.error as error:
            raise SettingsError(
                f"streamNameRegex={pattern!r} is not a regular expression: {error}",
                advice="It is matched with whole names of streams",
            ) from error
        self._max_streams = max_streams
        self._owners: dict[str, str] = {}
        """The one that was not asked for longest comes first."""
        self._streams: dict[str, set[str]] = {}
        """By address."""

    def __len__(self) -> int:
        return len(self._owners)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield streams and owners."""
        return iter(tuple(self._owners.items()))

    def owner(self, stream: str) -> str | None:
        """Return the address of the proxy that is believed to own the stream."""
        address = self._owners.pop(stream, None)
        if address is not None:
            self._owners[stream] = address  # it was asked for last
        return address

    def streams_of(self, address: str) -> Collection[str]:
        """Return the streams that a proxy is believed to own."""
        return frozenset(self._streams.get(address, ()))

    def learn(self, stream: str, location: str) -> bool:
        """Note that a proxy answered for the stream, or was named as its owner; return whether that is new."""
        address = address_of(location)
        known = self._owners.pop(stream, None)
        if known is not None and known != address:
            self._unlink(stream, known)
        self._owners[stream] = address
        if known == address:
            return False
        self._streams.setdefault(address, set()).add(stream)
        if len(self._owners) > self._max_streams:
            oldest = next(iter(self._owners))
            self._unlink(oldest, self._owners.pop(oldest))
        return True

    def learn_all(self, ownerships: Mapping[str, str]) -> int:
        """Take in what a handshake said, streams to locations. Returns how many were new.

        No more than the cache holds is looked at. A handshake pushes nothing out that requests have put in: where the
        cache is full, the rest is left.
        """
        new = 0
        for looked_at, (stream, location) in enumerate(ownerships.items()):
            if looked_at >= self._max_streams:
                break
            if self._wanted is not None and not self._wanted.fullmatch(stream):
                continue
            if stream in self._owners or len(self._owners) < self._max_streams:
                new += self.learn(stream, location)
        return new

    def forget(self, stream: str, address: str | None = None) -> None:
        """Note that the stream is not, or no longer, at `address`; None: wherever. Another owner stays
        known."""
        known = self._owners.get(stream)
        if known is not None and address in (None, known):
            del self._owners[stream]
            self._unlink(stream, known)

    def forget_host(self, address: str) -> int:
        """Drop all streams of a proxy that is gone, or takes no requests; return their number."""
        streams = self._streams.pop(address, set())
        for stream in streams:
            del self._owners[stream]
        return len(streams)

    def _unlink(self, stream: str, address: str) -> None:
        streams = self._streams[address]
        streams.discard(stream)
        if not streams:
            del self._streams[address]


class ReadPlaces(OwnershipCache):
    """Remembers at which proxy each log was last read, and gives one up in time where the route knows a better one.

    A log that is read in another region, for the own one had failed or refused it, goes back after `RETURN_S` if a
    proxy of the own region can be asked. Not at once: where those go on refusing it, each try is a request in vain.
    """

    def __init__(self, route: ReadRoute, now: Callable[[], float], max_streams: int = MAX_OWNERSHIPS) -> None:
        """`now`: seconds that never go back, as the route is given them."""
        super().__init__(ANY_STREAM, max_streams)
        self._route = route
        self._now = now
        self._outranked: dict[str, float] = {}
        """Streams that are read where there is a better proxy, and since when that was seen."""

    def owner(self, stream: str) -> str | None:
        """Return the proxy at which the log was last read; None where it is to be chosen anew."""
        address = super().owner(stream)
        now = self._now()
        if address is None or not self._route.outranked(address, now):
            self._outranked.pop(stream, None)
            return address
        if now - self._outranked.setdefault(stream, now) < RETURN_S:
            return address
        self.forget(stream)
        return None

    def _unlink(self, stream: str, address: str) -> None:
        self._outranked.pop(stream, None)
        super()._unlink(stream, address)

    def forget_host(self, address: str) -> int:
        """Drop all logs of a proxy that is gone; return their number."""
        for stream in self.streams_of(address):
            self._outranked.pop(stream, None)
        return super().forget_host(address)


class Handshakes:
    """Says when each proxy is asked for its name, and whether it is asked for what it owns.

    A proxy is asked when a connection to it is made, and then every `interval_ms`: one that does not answer has failed.
    Ownerships are asked for with the first handshake, and with each that comes `sync_interval_ms` or more after the
    last that asked for them.
    """

    def __init__(self, pattern: str, *, ownerships: bool, interval_ms: int, sync_interval_ms: int) -> None:
        """`interval_ms` of 0 or less: only when a connection is made."""
        self._pattern = pattern
        self._ownerships = ownerships
        self._interval_s = interval_ms / 1000
        self._sync_interval_s = sync_interval_ms / 1000
        self._asked: dict[str, float] = {}
        self._synced: dict[str, float] = {}

    def connected(self, address: str, now: float) -> Handshake:
        """Return what is asked on a connection that was made."""
        self._synced.pop(address, None)
        return self._ask(address, now)

    def closed(self, address: str) -> None:
        """Ask a proxy no more, to which there is no connection."""
        self._asked.pop(address, None)
        self._synced.pop(address, None)

    def due(self, now: float) -> list[tuple[str, Handshake]]:
        """Return the proxies that are to be asked now, and what."""
        if self._interval_s <= 0:
            return []
        late = [address for address, asked in self._asked.items() if asked + self._interval_s <= now]
        return [(address, self._ask(address, now)) for address in late]

    def next_due(self) -> float | None:
        """Return when `due` has something next; None: never, as things are."""
        if self._interval_s <= 0 or not self._asked:
            return None
        return min(self._asked.values()) + self._interval_s

    def _ask(self, address: str, now: float) -> Handshake:
        self._asked[address] = now
        synced = self._synced.get(address)
        wanted = self._ownerships and (synced is None or now - synced >= self._sync_interval_s)
        if wanted:
            self._synced[address] = now
        return Handshake(self._pattern if wanted else None, wanted)
