"""`Channel`: one connection that is opened by the first thing sent, and again by the first after a loss.

Nothing leaves before the connection is secured and has proved who is there, where that is asked for (`entering`). A
link whose proof is about to end is renewed without a loss: another one is made, takes all that is sent from then on,
and the old one is closed once all that was sent on it has been answered.

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
from storage_node.client.entering import ClientSecurity, LinkProof
from storage_node.client.health import BookieHealth
from storage_node.edge import Link, Network
from storage_node.errors import BookieUnreachableError, ConnectionClosedError, TlsError
from storage_node.protocol.frames import Buffer
from storage_node.settings.client import ClientSettings
from storage_node.transport.tls import securable

logger = logging.getLogger(__name__)

RENEW_AGAIN_S = 10.0
"""A link that could not be renewed, or whose certificates still end soon, is tried again after this."""

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
        self._proof = LinkProof()
        self._renewing: asyncio.Task[None] | None = None
        self._renew_at = 0.0
        """Not before this time of the loop's."""
        self._broken: str | None = None
        """Why this side ends the link."""
        self._leaving: dict[Link, _Leaving] = {}
        """Links that were renewed, with answers still to come."""

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
            link, proof = await self._connect()
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
            link.close()  # whatever ended: nobody keeps it, so nothing else would close it
            self._lose(ConnectionClosedError("the connection was lost as soon as it was made", node=self.bookie))
            return
        self._use(link, proof)
        self.opened_at = self._around.loop.time()
        self._opened()
        backlog, self._backlog = self._backlog, []
        link.send(*backlog)

    def _use(self, link: Link, proof: LinkProof) -> None:
        """Send on this link from now on."""
        self._link = link
        self._proof = proof
        if self._around.security.asks:
            self._around.sweeper.join(self._look)

    # ------------------------------------------------------------------------------------ renewal

    def _look(self, now: float) -> bool:
        """Renew the link where its proof is about to end; True as long as there is one.

        And close those that were renewed, where nothing more is to come: what was waited for may have run out of time.
        """
        for leaving in list(self._leaving.values()):
            leaving.close_if_done()
        if self._link is None:
            return bool(self._leaving)
        security = self._around.security
        security.look()
        if self._renewing is None and now >= self._renew_at and security.outdated(self._proof):
            proof = security.still_good(self._proof)
            if proof is not None:
                self._proof = proof
                return True
            self._renew_at = now + RENEW_AGAIN_S
            self._renewing = self._around.loop.create_task(self._renew())
        return True

    async def _renew(self) -> None:
        try:
            link, proof = await self._connect()
        except DistributedLogError as error:
            logger.warning("the connection to %s cannot be renewed, trying again: %s", self.bookie, error)
            over = self._around.security.why_over(self._proof)
            if over is not None and self._link is not None:
                logger.warning(
                    "closing the connection to %s: the node's certificate is not good: %s", self.bookie, over
                )
                self._broken = f"the node's certificate is not good any more: {over}"
                self._link.close()
            return
        except Exception:  # the boundary: whatever a network raises, the link that there is serves on
            logger.exception("the connection to %s cannot be renewed", self.bookie)
            return
        finally:
            self._renewing = None
        old = self._link
        if old is None or self._around.closed:
            # Lost meanwhile: the next request makes its own, and must not take this one's end for its own link's.
            securable(link).deliver_to(_Nobody())
            link.close()
            return
        self._use(link, proof)
        self._opened()
        under_way = self._under_way()
        if not under_way:
            securable(old).deliver_to(_Nobody())
            old.close()
            return
        self._leaving[old] = leaving = _Leaving(self, old, under_way)
        securable(old).deliver_to(leaving)

    def _under_way(self) -> frozenset[object]:
        """Return the keys of all requests that wait for an answer."""
        raise NotImplementedError

    def _waits_for(self, keys: frozenset[object]) -> bool:
        """Return whether any of these requests still waits."""
        raise NotImplementedError

    def _end_these(self, keys: frozenset[object], error: DistributedLogError) -> None:
        """End those of these requests that still wait with this error."""
        raise NotImplementedError

    def _left(self, link: Link, keys: frozenset[object], error: Exception | None) -> None:
        """Note that a link that was renewed is closed."""
        self._leaving.pop(link, None)
        if self._waits_for(keys):
            self.losses += 1
            self._end_these(keys, self._lost_error(error))

    def _opened(self) -> None:
        """Note that there is a new link, on which the bookie was heard just now."""

    async def _connect(self) -> tuple[Link, LinkProof]:
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
        self._lose(self._lost_error(error))

    def _lost_error(self, cause: Exception | None) -> ConnectionClosedError:
        broken, self._broken = self._broken, None
        if cause is None and self._around.security.asks:
            # What ends a client's rights ends its connections: TLS has no words for why.
            cause = TlsError(broken or "the node ended it, and its audit trail says why unless it was stopped")
        reason = f": {cause}" if cause is not None else ""
        error = ConnectionClosedError(f"the connection was lost{reason}", node=self.bookie)
        error.__cause__ = cause
        return error

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
        if self._renewing is not None:
            await end_tasks([self._renewing], drop_errors=True)
            self._renewing = None
        for link in list(self._leaving):
            link.close()
        if self._link is not None:
            self._link.close()
            self._link = None
        self._lose(ConnectionClosedError("the client was closed", node=self.bookie))


class _Leaving:
    """Which answers still come on a link that was renewed? Closes it behind the last one."""

    def __init__(self, channel: Channel, link: Link, under_way: frozenset[object]) -> None:
        self._channel = channel
        self._link = link
        self._under_way = under_way

    def frame_received(self, frame: memoryview) -> None:
        """Pass it on: answers are matched by what they answer, not by how they come."""
        self._channel.frame_received(frame)

    def batch_done(self) -> None:
        """Close the link behind the last answer."""
        self._channel.batch_done()
        self.close_if_done()

    def close_if_done(self) -> None:
        """Close the link where nothing more is to come."""
        if not self._channel._waits_for(self._under_way):
            self._link.close()

    def link_closed(self, error: Exception | None) -> None:
        """End what has not been answered."""
        self._channel._left(self._link, self._under_way, error)


class _Nobody:
    """Waits for nothing on a link that is about to end."""

    def frame_received(self, frame: memoryview) -> None:
        """Drop it."""

    def batch_done(self) -> None:
        """Do nothing."""

    def link_closed(self, error: Exception | None) -> None:
        """Do nothing."""
