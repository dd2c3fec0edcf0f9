"""`Channels`: the connections of one client, made when something is first sent, and again after a loss.

A proxy has a connection for requests, number 0, and further ones for its client's readers: what a long poll promises to
bring counts against a connection at the proxy, and writes must not wait for it.

    not connected       what is sent waits in line, bounded, until the connection is made or has failed
    connected           it is sent at once
    lost, or not made   everything under way fails, each saying whether it may have been done; what is sent in the next
                        moments fails at once (back-off: 50 ms, doubled up to 5 s), then it is tried again. A connection
                        that lived for 5 s begins anew
    not taken           one side refuses the other's certificate, or its kind of connection: all fails with
                        NotAuthenticatedError, in the moments that follow as well
    stale               it shows a certificate that was renewed meanwhile: another connection is made beside it, what is
                        sent then goes there, and it ends once what is under way on it is answered
    silent              a connection that owes answers and has said nothing for `SILENCE_MS` is asked a handshake; if
                        that is not answered in the same time its host has stopped, and the connection is lost

Fault model: proxies vanish, stop, come back, or were never there. Each request is answered exactly once, unless it was
given up. Nothing here decides where a request goes next.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from dlspark.errors import AlreadyClosedError, OverCapacityError, ProxyUnreachableError
from dlspark.serving.bindings.service import Reply
from dlspark.serving.protocol.failures import error_of
from dlspark.serving.protocol.operations import Answer, Applied, Handshake, Reason, Refusal, Request
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.tasks import end_tasks
from metadata.security.proofs import NotAuthenticatedError

logger = logging.getLogger(__name__)

BACKOFF_START_S: Final = 0.05
BACKOFF_MAX_S: Final = 5.0
REFUSED_BACKOFF_MAX_S: Final = 1.0
"""The same behind a refusal of what the client shows: whoever replaces a certificate or token waits for its effect."""
SILENCE_MS: Final = 5_000
"""Connections that owe an answer are asked whether they live after so long; see above."""
MAX_WAITING: Final = 65_536
"""Requests that wait for one connection to be made; one more is refused."""
MAX_CHANNELS: Final = 4_096
"""Connections of one client. One more closes an idle one, or is refused where none is idle."""
_LOST: Final = frozenset({Reason.PROXY_LOST, Reason.PROXY_UNREACHABLE})


class ProxyChannel(Protocol):
    """One connection to a proxy, as `bindings.frames_client` makes them."""

    closed: bool

    @property
    def stale(self) -> bool:
        """True where it shows what is not to be shown any more: another one is to take its place."""
        ...

    def finish(self) -> None:
        """Close it once nothing is under way; nothing more is sent on it."""
        ...

    def submit(self, request: Request, reply: Reply) -> int:
        """Send; `reply` is called exactly once, with a refusal where the connection is lost. Returns a number."""
        ...

    def forget(self, number: int) -> None:
        """Note that the answer to this request is not wanted any more."""
        ...

    async def close(self) -> None:
        """End it; what is under way ends. Idempotent."""
        ...


Connect: TypeAlias = Callable[[str, Callable[[], None]], Awaitable[ProxyChannel]]
"""Makes a connection to an address; the second argument is called once the connection has ended."""


@dataclass(frozen=True, slots=True)
class ChannelFailure:
    """The connection failed, and with it the request; `error` says whether it may have been done."""

    error: DistributedLogError


AnswerHandler: TypeAlias = "Callable[[Answer | ChannelFailure], None]"


class ChannelRequest:
    """A request that was given to a channel."""

    __slots__ = ("_channel", "_number", "_on_answer", "_owner", "_request")

    def __init__(self, owner: _Channel, request: Request, on_answer: AnswerHandler) -> None:
        self._owner = owner
        self._request: Request | None = request
        self._on_answer: AnswerHandler | None = on_answer
        self._channel: ProxyChannel | None = None
        self._number = 0

    def cancel(self) -> None:
        """Report nothing any more; what was sent may still be done."""
        if self._on_answer is None:
            return
        self._on_answer = self._request = None
        if self._channel is not None:
            self._channel.forget(self._number)
            self._owner.settled()

    @property
    def sent(self) -> bool:
        """True once it was given to a connection: the proxy may have it."""
        return self._channel is not None

    def send(self, channel: ProxyChannel) -> None:
        """Give it to a connection, unless it was given up."""
        request = self._request
        if request is None:
            return
        self._channel = channel
        self._owner.under_way += 1
        self._number = channel.submit(request, self._answered)

    def fail_soon(self, error: DistributedLogError) -> None:
        """Do as `fail`, from the loop: a caller that sends to the next proxy in answer must not get deeper each
        time."""
        asyncio.get_running_loop().call_soon(self.fail, error)

    def fail(self, error: DistributedLogError) -> None:
        """Note that it was not sent, and will not be."""
        on_answer, self._on_answer, self._request = self._on_answer, None, None
        if on_answer is not None:
            on_answer(ChannelFailure(error))

    def _answered(self, answer: Answer) -> None:
        on_answer, self._on_answer, self._request = self._on_answer, None, None
        if on_answer is None:
            return
        owner, channel = self._owner, self._channel
        owner.settled()
        # A refusal that says "lost" may also come from the proxy, and be of another proxy: it is this connection's end
        # only where the connection has ended.
        if (
            isinstance(answer, Refusal)
            and channel is not None
            and channel.closed
            and (answer.reason in _LOST or answer.applied is Applied.UNKNOWN)
        ):
            on_answer(ChannelFailure(error_of(answer, stream=None)))
            return
        if isinstance(answer, Refusal) and channel is not None and channel.closed:
            error = error_of(answer, stream=None)
            if isinstance(error, NotAuthenticatedError):  # what the connection ended with, not what a proxy answered
                on_answer(ChannelFailure(error))
                return
        owner.heard_at = owner.now()
        on_answer(answer)


class _Channel:
    """One connection to one address, and what waits for it."""

    __slots__ = (
        "_backoff_s",
        "_failure",
        "_host",
        "_opened_at",
        "_opening",
        "_pinged",
        "_replacing",
        "_timer",
        "_try_again_at",
        "_waiting",
        "address",
        "channel",
        "heard_at",
        "now",
        "number",
        "under_way",
        "used_at",
    )

    def __init__(self, host: Channels, address: str, number: int) -> None:
        self._host = host
        self.address = address
        self.number = number
        self.now = host.loop.time
        self.channel: ProxyChannel | None = None
        self.under_way = 0
        """Requests on the connection whose answers are wanted."""
        self.heard_at = self.used_at = 0.0
        self._waiting: deque[ChannelRequest] = deque()
        self._opening: asyncio.Task[None] | None = None
        self._replacing: asyncio.Task[None] | None = None
        self._failure: DistributedLogError | None = None
        """Why no connection could be made, at the last attempt."""
        self._opened_at = 0.0
        self._backoff_s = 0.0
        self._try_again_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._pinged = False

    @property
    def idle(self) -> bool:
        """Whether nothing is under way or waits."""
        return not self.under_way and self._opening is None

    def submit(self, sending: ChannelRequest) -> None:
        channel = self.channel
        if channel is not None and not channel.closed:
            if channel.stale and self._replacing is None and self.now() >= self._try_again_at:
                self._replacing = self._host.loop.create_task(self._replace(channel))
            sending.send(channel)
            if self._timer is None and self._host.silence_s:
                self.heard_at = self.now()
                self._timer = self._host.loop.call_later(self._host.silence_s, self._look)
            return
        if self._opening is None and self.now() < self._try_again_at:
            sending.fail_soon(self._failed_just_now())
        elif len(self._waiting) >= MAX_WAITING:
            sending.fail_soon(OverCapacityError(f"{MAX_WAITING} requests wait for a connection", node=self.address))
        else:
            self._waiting.append(sending)
            if self._opening is None:
                self._opening = self._host.loop.create_task(self._open())

    def _failed_just_now(self) -> DistributedLogError:
        if isinstance(self._failure, NotAuthenticatedError):
            return self._failure  # asking again would not help, and whoever asks should hear that at once
        why = f": {self._failure.message}" if self._failure is not None else ""
        return ProxyUnreachableError(f"the connection failed just now{why}", node=self.address)

    def settled(self) -> None:
        """Note that a request on the connection is answered, or given up."""
        self.under_way -= 1

    async def _open(self) -> None:
        try:
            channel = await self._connected()
        except DistributedLogError as error:
            self._failed(error)
            return
        except Exception as error:  # the boundary: whatever a network raises, the requests must end
            logger.exception("cannot connect to the proxy %s", self.address)
            self._failed(ProxyUnreachableError(f"the connection could not be made: {error!r}", node=self.address))
            return
        self._opening = self._failure = None
        self.channel = channel
        self.heard_at = self._opened_at = self.now()
        self._host.connected(self)
        # The connection may have ended already: `submit` looks, and has what is left wait for the next one.
        waiting, self._waiting = self._waiting, deque()
        for sending in waiting:
            self.submit(sending)

    async def _connected(self) -> ProxyChannel:
        """Return a new connection, whose end counts as long as no other one has taken its place."""
        made: list[ProxyChannel] = []

        def closed() -> None:
            if self.channel is None or (made and self.channel is made[0]):
                self._closed()

        made.append(await self._host.connect(self.address, closed))
        return made[0]

    async def _replace(self, old: ProxyChannel) -> None:
        """Have another connection take the place of a stale one, which serves until then, and where that fails."""
        try:
            new = await self._connected()
        except Exception as error:  # the boundary: whatever a network raises, the old one serves on
            logger.warning("no connection to %s with the renewed certificate: %s", self.address, error)
            self._back_off()
            return
        finally:
            self._replacing = None
        if self.channel is old and not old.closed:
            self.channel, self._opened_at = new, self.now()
            old.finish()
        else:
            new.finish()  # the old one was lost meanwhile, and its place is taken or will be

    def _failed(self, error: DistributedLogError) -> None:
        self._opening = None
        self._failure = error
        self._back_off()
        self._drop(error)

    def _back_off(self) -> None:
        most_s = REFUSED_BACKOFF_MAX_S if isinstance(self._failure, NotAuthenticatedError) else BACKOFF_MAX_S
        self._backoff_s = min(max(2 * self._backoff_s, BACKOFF_START_S), most_s)
        self._try_again_at = self.now() + self._backoff_s

    def _drop(self, error: DistributedLogError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for sending in waiting:
            sending.fail(error)

    def _closed(self) -> None:
        """Note that the connection has ended; all its requests were answered before."""
        self.channel = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.now() - self._opened_at < BACKOFF_MAX_S:
            self._back_off()  # a proxy that takes connections and drops them must not be asked in a circle
        else:
            self._backoff_s = 0.0
        self._host.disconnected(self)

    # ------------------------------------------------------------------ silence

    def _look(self) -> None:
        self._timer = None
        channel, host = self.channel, self._host
        if channel is None or channel.closed or self.under_way <= 0:
            self._pinged = False
            return
        left_s = self.heard_at + host.silence_s - self.now()
        if left_s <= 0:
            if self._pinged:  # and that was not answered either: the host has stopped, or the way to it is cut
                self._pinged = False
                logger.warning("the proxy %s says nothing: its connection is closed", self.address)
                host.end_channel(channel)
                return
            self._pinged = True
            channel.submit(Handshake(ownerships=False), self._pong)
            left_s = host.silence_s
        self._timer = host.loop.call_later(left_s, self._look)

    def _pong(self, answer: Answer) -> None:
        self._pinged = False
        if not (isinstance(answer, Refusal) and answer.reason in _LOST):
            self.heard_at = self.now()

    async def close(self, error: DistributedLogError) -> None:
        if self._opening is not None:
            await end_tasks([self._opening], drop_errors=True)
            self._opening = None
        if self._replacing is not None:
            await end_tasks([self._replacing], drop_errors=True)
        channel, self.channel = self.channel, None
        if channel is not None:
            await channel.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._drop(error)


class Channels:
    """The connections of one client: made when something is sent, and again after a loss. For one running loop."""

    def __init__(
        self,
        connect: Connect,
        *,
        on_connected: Callable[[str], None] | None = None,
        on_closed: Callable[[str], None] | None = None,
        silence_ms: int = SILENCE_MS,
        max_channels: int = MAX_CHANNELS,
    ) -> None:
        """`on_connected` and `on_closed` are called for the connection for requests of an address, not for readers'."""
        self.connect = connect
        self.loop = asyncio.get_running_loop()
        self.silence_s = silence_ms / 1000
        """0: connections are never asked whether they live."""
        self._on_connected = on_connected
        self._on_closed = on_closed
        self._max_channels = max_channels
        self._channels: dict[tuple[str, int], _Channel] = {}
        """By address and number; 0 is the one for requests."""
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._channels)

    def addresses(self) -> Iterable[str]:
        """Return the proxies that requests have a connection to."""
        requests = ((address, one) for (address, number), one in self._channels.items() if not number)
        return [address for address, one in requests if one.channel is not None]

    def submit(self, address: str, request: Request, on_answer: AnswerHandler, connection: int = 0) -> ChannelRequest:
        """Send `request` to the proxy at `address`, on this connection. `on_answer` is called once, mostly from the
        loop."""
        key = (address, connection)
        found = self._channels.get(key)
        if found is None:
            found = _Channel(self, address, connection)
            if self._closed:
                sending = ChannelRequest(found, request, on_answer)
                sending.fail_soon(AlreadyClosedError("the client is closed"))
                return sending
            if len(self._channels) >= self._max_channels and not self._make_room():
                sending = ChannelRequest(found, request, on_answer)
                sending.fail_soon(OverCapacityError(f"{len(self._channels)} connections are in use", node=address))
                return sending
            self._channels[key] = found
        sending = ChannelRequest(found, request, on_answer)
        found.used_at = self.loop.time()
        found.submit(sending)
        return sending

    def forget(self, address: str) -> None:
        """Note that the proxy is not one of the fleet any more: its connections are closed once nothing is under
        way."""
        for key in [key for key, one in self._channels.items() if key[0] == address and one.idle]:
            self._end(self._channels.pop(key))

    def end_connection(self, address: str, number: int) -> None:
        """Close the connection of this number: nothing is sent on it any more."""
        found = self._channels.pop((address, number), None)
        if found is not None:
            self._end(found)

    def addresses_of(self, number: int) -> list[str]:
        """Return the addresses to which there is a connection of this number."""
        return [address for address, one in self._channels if one == number]

    async def close(self) -> None:
        """Close all connections. What is under way ends first, with errors. Idempotent."""
        self._closed = True
        channels, self._channels = list(self._channels.values()), {}
        error = AlreadyClosedError("the client was closed")
        await asyncio.gather(*(one.close(error) for one in channels))
        await end_tasks(self._ending, drop_errors=True)

    # ------------------------------------------------------------------ for channels

    def connected(self, channel: _Channel) -> None:
        """Note that a connection was made."""
        if self._on_connected is not None and not channel.number:
            self._on_connected(channel.address)

    def disconnected(self, channel: _Channel) -> None:
        """Note that a connection has ended."""
        if self._on_closed is not None and not channel.number and not self._closed:
            self._on_closed(channel.address)

    def end_channel(self, channel: ProxyChannel) -> None:
        """Close a connection that says nothing."""
        self._later(channel.close())

    def _make_room(self) -> bool:
        idle = [(one.used_at, key) for key, one in self._channels.items() if one.idle]
        if not idle:
            return False
        self._end(self._channels.pop(min(idle)[1]))
        return True

    def _end(self, channel: _Channel) -> None:
        self._later(channel.close(ProxyUnreachableError("the connection was closed as idle", node=channel.address)))

    def _later(self, ending: Awaitable[None]) -> None:
        async def end() -> None:
            await ending

        task = self.loop.create_task(end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
