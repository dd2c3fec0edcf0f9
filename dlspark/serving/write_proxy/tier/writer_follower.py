"""`WriterFollower`: counts where a proxy's requests come from, and hands logs over to the regions that write them.

It is the edge of `following`, which decides: it counts requests by log and region, looks at them once in each window,
and moves one log after the other, to the proxy that clients of its new region ask first. A log is moved as by an
operator (`hand_over`): the target agrees first, and until it has nothing changes.

Fault model: what clients say of their region is believed, and costs at worst a hand-over in `stay_s`: regions without a
proxy are not counted by name, so that names from clients take no memory. A move that fails leaves the log here; it is
tried again when so many windows have passed as at the first time. A proxy that ends first ends this, then gives its
logs away. Counts and times begin anew with each owner, and with each process: after a crash a log stays for `stay_s`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from dlspark.core.metrics.structured_logging import about
from dlspark.serving.process.membership import ProxyMember
from dlspark.serving.write_proxy.tier.following import FollowRules, RequestCounts, follow
from dlspark.serving.write_proxy.tier.homes import home_proxy
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.tasks import end_tasks

_LOG: Final = logging.getLogger(__name__)

MAX_COUNTED: Final = 100_000
"""Logs that are counted in one window; others, which came and went since it began, stay where they are."""


class OwnedStream(Protocol):
    """A stream from the moment at which this proxy owns it until it does not any more; another object the next time."""

    name: str


@dataclass(slots=True)
class _FollowedLog:
    since_s: float
    """When it was first seen here: a little later than it came."""
    history: deque[RequestCounts] = field(default_factory=deque)


class WriterFollower:
    """Which logs of this proxy are written from elsewhere, and where do they go? For one running loop.

    Args:
        own: this proxy's region.
        window_s: how long requests are counted together.
        members: returns all write proxies that are announced.
        owned: returns the streams that are served here.
        hand_over: has this proxy hand a stream over to the proxy at a location; raises where it stays.
    """

    def __init__(
        self,
        own: str,
        rules: FollowRules,
        window_s: float,
        *,
        members: Callable[[], Sequence[ProxyMember]],
        owned: Callable[[], Sequence[OwnedStream]],
        hand_over: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self.moved = 0
        """Logs that were handed over so far."""
        self._own = own
        self._rules = rules
        self._window_s = window_s
        self._members = members
        self._owned = owned
        self._hand_over = hand_over
        self._loop = asyncio.get_running_loop()
        self._regions: frozenset[str] = frozenset()
        self._counts: dict[str, dict[str | None, int]] = {}
        """Of the window that is under way."""
        self._followed: dict[OwnedStream, _FollowedLog] = {}
        self._task: asyncio.Task[None] | None = None

    def count(self, stream: str, region: str | None) -> None:
        """Note a request on a stream that is served here, by the region of its client."""
        counts = self._counts.get(stream)
        if counts is None:
            if len(self._counts) >= MAX_COUNTED:
                return
            counts = self._counts[stream] = {}
        known = region if region in self._regions else None
        counts[known] = counts.get(known, 0) + 1

    def start(self) -> None:
        """Begin, on the running loop."""
        self._see_regions()
        self._task = self._loop.create_task(self._run())

    async def close(self) -> None:
        """Move nothing any more. Idempotent."""
        if self._task is not None:
            await end_tasks([self._task], drop_errors=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._window_s)
            try:
                await self.look()
            except Exception:
                _LOG.exception("where logs are written from could not be looked at, trying again")

    def _see_regions(self) -> list[ProxyMember]:
        members = [one for one in self._members() if one.frames is not None and one.region is not None]
        self._regions = frozenset(one.region for one in members if one.region is not None)
        return members

    async def look(self) -> None:
        """End a window: move what is written from elsewhere."""
        members = self._see_regions()
        counts, self._counts = self._counts, {}
        before, now = self._followed, self._loop.time()
        # By the stream's object: one that went and came back meanwhile begins anew, as with any other owner.
        self._followed = {one: before.get(one) or _FollowedLog(now) for one in self._owned()}
        for stream, followed in list(self._followed.items()):
            followed.history.append(counts.get(stream.name, {}))
            while len(followed.history) > self._rules.windows:
                followed.history.popleft()
            decided = follow(self._own, tuple(followed.history), now - followed.since_s, self._regions, self._rules)
            if decided.region is not None:
                target = home_proxy(stream.name, members, decided.region)
                if target is not None:
                    await self._move(stream, followed, target.location, decided.reason)

    async def _move(self, stream: OwnedStream, followed: _FollowedLog, target: str, reason: str) -> None:
        more = about(log=stream.name)
        followed.history.clear()  # whatever comes of it, the next try is as many windows away
        try:
            await self._hand_over(stream.name, target)
        except DistributedLogError as error:
            _LOG.warning("stream %s stays here, though %s: %s", stream.name, reason, error, extra=more)
        else:
            self.moved += 1
            _LOG.info("stream %s was handed over to %s: %s", stream.name, target, reason, extra=more)
