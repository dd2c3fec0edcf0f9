"""`ReadRoutes`: which proxies a client's readers ask, and over which connections.

Any proxy that reads can answer any poll, so there are no owners here: a log is read at the proxy that its hash gives
it, so that the readers of all clients share what that proxy has read, and goes on at the next one where that fails. A
proxy that reads its share of all logs already names another one, which is asked then. Where a stream was last read is
remembered apart from who owns it.

What a poll may bring counts against its connection at the proxy, for as long as the poll waits. So readers have
connections of their own, `READERS_PER_LANE` each: what they ask for together is half of what a proxy lets one
connection have under way. A connection whose readers are gone is closed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from dlspark.serving.client.dispatch import Dispatcher, InFlightRequest
from dlspark.serving.client.reading import POLL_MS, READ_BYTES, AsyncProxyReader, ProxyStart
from dlspark.serving.client.requests import Finished
from dlspark.serving.client.settings import ThinClientSettings
from dlspark.serving.protocol.operations import Answer, ReadBatch, ReadForm
from dlspark.serving.routing.bounded_load import BoundedRing
from dlspark.serving.routing.hosts import ProxyHost
from metadata.foundation.errors import CallerError

READERS_PER_LANE: Final = 16
MAX_READ_BYTES: Final = 8 * 1024 * 1024
"""What one poll may ask for: a frame has to hold it."""
MAX_POLL_MS: Final = 60_000


class ReadRoutes:
    """The readers of one client."""

    def __init__(self, dispatcher: Dispatcher, route: BoundedRing, settings: ThinClientSettings) -> None:
        self._dispatcher = dispatcher
        self._settings = settings
        self._route = route
        self._hosts: tuple[ProxyHost, ...] | None = None
        """Proxies that the route does not know yet: a client without readers makes no ring of them."""
        self._places = settings.ownerships()
        """Where each stream was last read."""
        self._readers: dict[AsyncProxyReader, int] = {}
        """With the place that each takes in a lane."""
        self._free: list[int] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._readers)

    def update(self, hosts: Iterable[ProxyHost], now: float) -> None:
        """Note that these are the proxies to read through. Raises CallerError."""
        self._hosts = tuple(hosts)
        if self._readers:
            self._take_hosts(now)

    def _take_hosts(self, now: float) -> None:
        hosts, self._hosts = self._hosts, None
        if hosts is not None:
            self._route.update(hosts, now)

    def reader(
        self,
        stream: str,
        start: ProxyStart,
        *,
        form: str | ReadForm,
        max_bytes: int | None,
        poll_ms: int | None,
    ) -> AsyncProxyReader:
        """Return a reader. Raises CallerError for a start, a form, a size or a time that cannot be."""
        size = READ_BYTES if max_bytes is None else max_bytes
        wait_ms = POLL_MS if poll_ms is None else poll_ms
        if not 0 < size <= MAX_READ_BYTES or not 0 < wait_ms <= MAX_POLL_MS:
            raise CallerError(
                f"max_bytes={size}, poll_ms={wait_ms} cannot be",
                advice=f"Up to {MAX_READ_BYTES} bytes and {MAX_POLL_MS} ms are taken",
            )
        self._take_hosts(self._dispatcher.now())
        place = heapq.heappop(self._free) if self._free else len(self._readers)
        self._number += 1
        reader = AsyncProxyReader(
            self._asker(wait_ms),
            stream,
            start,
            form=form,
            number=self._number,
            lane=1 + place // READERS_PER_LANE,
            max_bytes=size,
            poll_ms=wait_ms,
            ended=self._ended,
        )
        self._readers[reader] = place
        return reader

    async def close(self) -> None:
        """End all readers."""
        for reader in list(self._readers):
            await reader.close()

    def _asker(self, wait_ms: int) -> Callable[[ReadBatch, Callable[[Answer], None], int], InFlightRequest]:
        settings = self._settings
        # A poll is not late while the proxy may keep it.
        attempt_ms = wait_ms + settings.attempt_timeout_ms if settings.attempt_timeout_ms > 0 else 0
        timeout_ms = settings.request_timeout_ms + wait_ms if settings.request_timeout_ms >= 0 else -1
        limits = replace(settings.limits(), attempt_timeout_ms=attempt_ms, request_timeout_ms=timeout_ms)

        def ask(request: ReadBatch, settle: Callable[[Answer], None], lane: int) -> InFlightRequest:
            def settled(finished: Finished) -> None:
                settle(finished.for_caller)

            return self._dispatcher.begin(
                request, settled, lane=lane, route=self._route, ownerships=self._places, limits=limits
            )

        return ask

    def _ended(self, reader: AsyncProxyReader) -> None:
        place = self._readers.pop(reader)
        heapq.heappush(self._free, place)
        lane = 1 + place // READERS_PER_LANE
        if not any(1 + other // READERS_PER_LANE == lane for other in self._readers.values()):
            for address in self._dispatcher.channels.lanes_of(lane):
                self._dispatcher.channels.end_lane(address, lane)
        if not any(other.name == reader.name for other in self._readers):
            self._places.forget(reader.name)
            self._route.release(reader.name)
        if not self._readers:
            self._free.clear()
