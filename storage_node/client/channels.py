"""`Channel`: one connection that is opened by the first thing sent, and again by the first after a loss.

Nothing leaves before the connection is secured and has proved who is there, where that is asked for (`entering`).

What is sent never waits: while the connection is being opened it queues up. The user of a channel is notified once of
each loss; nothing that was sent before it will be answered. Time limits are swept by one `Sweeper` for each client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from metadata.foundation.errors import DistributedLogError
from metadata.foundation.tasks import end_tasks
from storage_node.client.entering import ClientSecurity
from storage_node.client.health import BookieHealth
from storage_node.edge import Link, Network
from storage_node.errors import BookieUnreachableError, ConnectionClosedError
from storage_node.protocol.frames import Buffer
from storage_node.settings.client import ClientSettings

logger = logging.getLogger(__name__)

Resolver: TypeAlias = Callable[[str], Awaitable[tuple[str, int]]]


class Sweeper:
    """Calls its members every interval; rests while it has none."""

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_s: float) -> None:
        self._loop = loop
        self._interval_s = interval_s
        self._members: dict[Callable[[float], bool], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def join(self, member: Callable[[float], bool]) -> None:
        """Call `member(now)` from now on until it returns False. Joining twice is joining once."""
        if self._stopped:
            return  # the client is closed: connections end their requests without being swept
        self._members[member] = None
        if self._timer is None:
            self._timer = self._loop.call_later(self._interval_s, self._sweep)

    def leave(self, member: Callable[[float], bool]) -> None:
        """Call `member` no more; does nothing where it has not joined, or has left by itself."""
        self._members.pop(member, None)

    def stop(self) -> None:
        """Stop for good: what joins later is not called."""
        self._stopped = True
        self._members.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        now = self._loop.time()
        self._timer = None
        for member in list(self._members):
            if member in self._members and not member(now):
                self._members.pop(member, None)
        if self._members and self._timer is None:
            self._timer = self._loop.call_later(self._interval_s, self._sweep)


class Surroundings(Protocol):
    """Which services does a channel need of the pool that it belongs to?"""

    resolve: Resolver
    settings: ClientSettings
    network: Network
    loop: asyncio.AbstractEventLoop
    health: BookieHealth
    security: ClientSecurity
    sweeper: Sweeper
    closed: bool


class Channel:
    """The link to one bookie: how it is made, lost and made again. Subclasses give it a protocol."""

    def __init__(self, surroundings: Surroundings, bookie: str) -> None:
        self.bookie = bookie
        self.losses = 0
        """How often what was under way was lost with the link, or no link could be made."""
        self.opened_at = 0.0
        """When the link was made, by the loop's clock: what was asked before travelled then."""
        self._around = surroundings
        self._link: Link | None = None
        self._opening: asyncio.Task[None] | None = None
        self._lost_early = False
        self._backlog: list[Buffer] = []
        self._address: tuple[str, int] | None = None

    @property
    def queued_bytes(self) -> int:
        """Bytes that the network has not taken yet."""
        if self._link is not None:
            return self._link.queued_bytes
        return sum(map(len, self._backlog))

    def _send_later(self, frame: tuple[Buffer, ...]) -> None:
        self._backlog.extend(frame)
        if self._opening is None:
            self._lost_early = False
            self._opening = self._around.loop.create_task(self._open())

    async def _open(self) -> None:
        try:
            link = await self._connect()
        except DistributedLogError as error:
            self._opening = None
            self._lose(error)
            return
        except Exception as error:
            # The boundary: whatever a network raises, the requests must end and the next one retry.
            logger.exception("cannot connect to %s", self.bookie)
            self._opening = None
            self._lose(BookieUnreachableError(f"the connection could not be made: {error!r}", node=self.bookie))
            return
        self._opening = None
        if self._lost_early:
            self._lose(ConnectionClosedError("the connection was lost as soon as it was made", node=self.bookie))
            return
        self._link = link
        self.opened_at = self._around.loop.time()
        self._opened()
        backlog, self._backlog = self._backlog, []
        link.send(*backlog)

    def _opened(self) -> None:
        """Note that there is a link again."""

    async def _connect(self) -> Link:
        around = self._around
        if around.closed:
            raise BookieUnreachableError("the client is closed", node=self.bookie)
        timeout_ms = around.settings.connect_timeout_ms
        try:
            self._address = await asyncio.wait_for(around.resolve(self.bookie), timeout_ms / 1000)
        except (DistributedLogError, asyncio.TimeoutError) as error:
            if self._address is None:
                raise BookieUnreachableError(
                    f"the storage node's address is not known: {error or 'metadata did not answer'}", node=self.bookie
                ) from error
            logger.info("using the last known address of %s: %s", self.bookie, error)  # metadata may just be away
        return await around.security.connect(
            around.network, *self._address, self, timeout_ms=timeout_ms, node=self.bookie
        )

    # ------------------------------------------------------------------------------------ FrameHandler

    def frame_received(self, frame: memoryview) -> None:
        """Take one response."""
        raise NotImplementedError

    def batch_done(self) -> None:
        """Note that all frames of one read of the socket were delivered."""

    def link_closed(self, error: Exception | None) -> None:
        """End all requests under way as unknown: the link is closed."""
        if self._link is None:
            self._lost_early = True
            return
        self._link = None
        reason = f": {error}" if error is not None else ""
        self._lose(ConnectionClosedError(f"the connection was lost{reason}", node=self.bookie))

    # ------------------------------------------------------------------------------------ ends

    def _lose(self, error: DistributedLogError) -> None:
        self.losses += 1
        if not self._around.closed:
            self._around.health.failed(self.bookie)
        self._backlog.clear()
        self._end_all(error)

    def _end_all(self, error: DistributedLogError) -> None:
        """End every request under way with this error."""
        raise NotImplementedError

    async def close(self) -> None:
        """End the link; requests that still wait end with an error."""
        if self._opening is not None:
            await end_tasks([self._opening], drop_errors=True)
            self._opening = None
        if self._link is not None:
            self._link.close()
            self._link = None
        self._lose(ConnectionClosedError("the client was closed", node=self.bookie))
