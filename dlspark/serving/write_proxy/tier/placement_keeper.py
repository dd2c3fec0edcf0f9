"""`PlacementKeeper`: keeps a proxy's placement up to date: the leader computes loads, the others read what it wrote.

It is the edge of `placement`: it asks the clock, the members and ZooKeeper, and informs the policy. Nothing here fails
a proxy: what cannot be read or written now stays as it was, and is tried again later.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from dlspark.core.metrics.cells import Timing
from dlspark.serving.process.membership import ProxyEndpoint, ProxyMember
from dlspark.serving.process.page import STREAMS_PATH
from dlspark.serving.write_proxy.tier.placement import (
    MAX_STREAM_LOAD,
    REFRESH_S,
    LeastLoadPlacement,
    LoadAppraiser,
    LoadTable,
    StreamLoad,
    given_out,
)
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.pacing import for_each
from metadata.foundation.tasks import end_tasks
from metadata.store import WatchEvent
from storage_node.edge import Clock

_LOG: Final = logging.getLogger(__name__)

SETTLE_S: Final = 2.0
"""After a proxy came or went the leader waits so long for others, and computes the loads then."""
FETCH_TIMEOUT_S: Final = 5.0
MAX_PAGE_BYTES: Final = 16 * 1024 * 1024
"""A longer answer of another proxy is not read."""
_FETCHES_AT_ONCE: Final = 16

StreamNames: TypeAlias = Callable[[], Awaitable[Iterable[str]]]
"""Asks for the names of all streams there are."""
FetchLoads: TypeAlias = Callable[[ProxyEndpoint, "ssl.SSLContext | None"], Awaitable[Mapping[str, int]]]
"""Asks the page at an endpoint what its proxy's streams take, under TLS by a context. Raises OSError or ValueError."""


async def fetch_stream_loads(endpoint: ProxyEndpoint, tls: ssl.SSLContext | None = None) -> Mapping[str, int]:
    """Return bytes a second by stream, as the proxy's page has them. Raises OSError or ValueError."""
    return await asyncio.to_thread(_fetch, endpoint, tls)


def _fetch(endpoint: ProxyEndpoint, tls: ssl.SSLContext | None) -> Mapping[str, int]:
    request = urllib.request.Request(f"http://{endpoint}{STREAMS_PATH}")
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if tls is not None:
        request = urllib.request.Request(f"https://{endpoint}{STREAMS_PATH}")
        handlers.append(urllib.request.HTTPSHandler(context=tls))
    opener = urllib.request.build_opener(*handlers)
    with opener.open(request, timeout=FETCH_TIMEOUT_S) as answer:
        body = answer.read(MAX_PAGE_BYTES + 1)
    if len(body) > MAX_PAGE_BYTES:
        raise ValueError(f"a page of more than {MAX_PAGE_BYTES} bytes")
    return stream_loads_in(body)


def stream_loads_in(body: bytes) -> Mapping[str, int]:
    """Return the loads in the text of a page of streams. Raises ValueError."""
    value = json.loads(body)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return {
        name: min(one["bytesPerSecond"], MAX_STREAM_LOAD)
        for name, one in value.items()
        if isinstance(one, dict) and type(one.get("bytesPerSecond")) is int and one["bytesPerSecond"] >= 0
    }


class MeasuredLoads:
    """How much work is a stream, by the bytes that it takes? Its owner says so, on its page; at least 1.

    Args:
        fetch: asks a page; over HTTP, unless given.
        context: returns by what a page under TLS is asked; None: there is nothing to show, and it is not asked.

    A proxy without a page, or one that does not answer, counts with its last answer.
    """

    def __init__(
        self,
        members: Callable[[], Sequence[ProxyMember]],
        fetch: FetchLoads = fetch_stream_loads,
        context: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        self._members = members
        self._fetch = fetch
        self._context = context
        self._by_proxy: dict[ProxyEndpoint, Mapping[str, int]] = {}
        self._loads: dict[str, int] = {}

    async def refresh(self) -> None:
        """See `LoadAppraiser`."""
        tls, members = self._context(), self._members()
        asked: dict[ProxyEndpoint, ssl.SSLContext | None] = {
            one.stats: None for one in members if one.stats is not None
        }
        if tls is not None:
            # Never in plain: a page under TLS is not announced as another one.
            asked |= {one.stats_tls: tls for one in members if one.stats_tls is not None}
        # A proxy that is gone takes its answer with it: its streams are elsewhere by now.
        self._by_proxy = {one: loads for one, loads in self._by_proxy.items() if one in asked}
        await for_each(list(asked.items()), _FETCHES_AT_ONCE, self._ask)
        self._loads = {}
        for loads in self._by_proxy.values():
            for stream, load in loads.items():
                self._loads[stream] = max(load, self._loads.get(stream, 0))

    async def _ask(self, page: tuple[ProxyEndpoint, ssl.SSLContext | None]) -> None:
        endpoint, tls = page
        try:
            self._by_proxy[endpoint] = await self._fetch(endpoint, tls)
        except (OSError, ValueError) as error:
            _LOG.info("the loads of %s are not known at present: %s", endpoint, error)

    def load_of(self, stream: str) -> int:
        """See `LoadAppraiser`."""
        return max(1, self._loads.get(stream, 0))


class PlacementKeeper:
    """How does a placement learn of members and loads? Leads, or follows the leader, from `start` to `close`.

    Args:
        policy: the placement.
        streams: asks for the names of all streams of the namespace.
        leads: compute and write loads, and not read them.
        timing: measures computing the loads.
    """

    def __init__(
        self,
        policy: LeastLoadPlacement,
        table: LoadTable,
        streams: StreamNames,
        appraiser: LoadAppraiser,
        *,
        leads: bool,
        clock: Clock,
        interval_s: float = REFRESH_S,
        timing: Timing | None = None,
    ) -> None:
        self._policy = policy
        self._table = table
        self._streams = streams
        self._appraiser = appraiser
        self._leads = leads
        self._clock = clock
        self._interval_s = interval_s
        self._timing = timing or Timing()
        self._members: tuple[ProxyMember, ...] = ()
        self._changed = asyncio.Event()
        self._members_changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def use_members(self, members: tuple[ProxyMember, ...]) -> None:
        """Note that these proxies run now; no stream is placed on those that speak no frames."""
        self._members = tuple(one for one in members if one.frames is not None)
        self._policy.use_members(self._members)
        self._members_changed.set()

    def start(self) -> None:
        """Begin, on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._lead() if self._leads else self._follow())

    async def close(self) -> None:
        """End. What was written down stays until the next leader. Idempotent."""
        if self._task is not None:
            await end_tasks([self._task], drop_errors=True)

    # ------------------------------------------------------------------ leading

    async def _lead(self) -> None:
        while True:
            self._members_changed.clear()  # first: a proxy that comes while loads are computed has them computed again
            try:
                with self._timing.measured():
                    await self._compute()
            except DistributedLogError as error:
                _LOG.warning("loads could not be written, trying again in %g s: %s", self._interval_s, error)
            except Exception:
                _LOG.exception("loads could not be computed, trying again in %g s", self._interval_s)
            try:
                await asyncio.wait_for(self._members_changed.wait(), self._interval_s)
                await asyncio.sleep(SETTLE_S)
            except asyncio.TimeoutError:
                pass

    async def _compute(self) -> None:
        await self._appraiser.refresh()
        streams = [StreamLoad(one, self._appraiser.load_of(one)) for one in await self._streams()]
        loads = given_out((str(one.endpoint) for one in self._members), streams)
        if not loads:
            return  # No proxy is announced yet: what was written before is better than nothing.
        await self._table.write(loads, self._clock.now_ms())
        self._policy.use_loads(loads)  # last: what could not be written down holds nowhere

    # ------------------------------------------------------------------ following

    def _heard(self, event: WatchEvent) -> None:
        self._changed.set()

    async def _follow(self) -> None:
        while True:
            self._changed.clear()  # first: a change from here on is read, or sets it again
            try:
                self._policy.use_loads(await self._table.read(self._heard))
            except DistributedLogError as error:
                _LOG.info("loads cannot be read, trying again in %g s: %s", self._interval_s, error)
                await asyncio.sleep(self._interval_s)
                continue
            await self._changed.wait()
