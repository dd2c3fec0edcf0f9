"""Handing a stream over to another proxy, without an error that a client sees.

    source                                    target
    asks the target to take the stream    ->  checks that it may; reads what it can have before it has the lock; asks
                                              for the lock: it waits in its queue
    lets its writer finish, closes the
    segment, releases the lock            ->  has the lock, opens the writer: nothing is to be recovered
    answers what waited: found at target      holds what comes until the writer is open

A move that was asked for is answered when the target says that the writer is open (`confirmed`): whoever asks then who
owns the stream finds it there. A proxy that shuts down does not wait for that.

From the moment at which the source gives up it begins nothing, so what clients send again to the target comes behind
everything that the source has answered. Both remember the move: the source says where the stream is for two thirds of
the session timeout, the target forgets that the source had it.

Fault model: a target that refuses, or does not answer, leaves the stream where it is. One that dies afterwards leaves
it free: clients come back, or the next proxy takes it. A source that dies is a crash as any other; the target waits for
the lock no longer than `server_take_timeout_ms`.

Several streams go one after the other (`one_by_one`): hand-overs take each other's time, and a stream is served until
it is reached, so the fewer are on their way at once, the shorter is each one's pause.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol, TypeVar

from dlspark.errors import StreamUnavailableError
from dlspark.serving.protocol.failures import error_of
from dlspark.serving.protocol.operations import (
    Answer,
    Done,
    Heartbeat,
    Refusal,
    Request,
    StatusCode,
    TakeStream,
)
from dlspark.serving.write_proxy.streams.stream import ProxyStream
from dlspark.serving.write_proxy.streams.stream_host import StreamHost
from dlspark.serving.write_proxy.streams.taken_requests import found_at
from metadata.foundation.errors import OutcomeUnknownError
from metadata.foundation.tasks import end_tasks

Stream = TypeVar("Stream")

HAND_OVERS_AT_ONCE: Final = 32
"""Streams that are on their way at the same time, at most."""
LONGEST_WAIT_S: Final = 0.1
"""The others wait for one stream for so long, at most: several times what a hand-over takes as a rule. Where it takes
longer, the machine is busy or the target away, and to wait would keep the proxy from its end."""


class Forwarder(Protocol):
    """How does a stream's proxy ask another one? (`process.peers.TierForwarder`)"""

    async def call(self, location: str, request: Request, timeout_ms: int = 10_000) -> Answer:
        """Return the answer of the proxy at `location`; where it cannot be asked, or is late, a Refusal."""
        ...


def same_proxy(one: str, other: str) -> bool:
    """Return whether two locations name one address; either may be `host:port` alone."""
    return one.rpartition(";")[2] == other.rpartition(";")[2]


async def hand_over(stream: ProxyStream, host: StreamHost, forwarder: Forwarder, target: str) -> None:
    """Hand a stream over that this proxy owns; return once its lock is released.

    Raises the target's refusal, or StreamUnavailableError where it is not to be handed over: it stays here.
    OutcomeUnknownError where closing its writer takes longer than `server_take_timeout_ms`: it goes on.
    """
    name = stream.name
    if stream.moving or not stream.owned:
        raise StreamUnavailableError("the stream is not served here, or is on its way already", log=name)
    stream.moving = True
    try:
        take = TakeStream(name, host.location)
        answer = await forwarder.call(target, take, host.settings.take_timeout_ms)
        if isinstance(answer, Refusal):
            raise error_of(answer, stream=name)
        # It may have failed meanwhile: the target then has the log as soon as the lock is free.
        if not stream.owned:
            raise StreamUnavailableError("the stream has ended here before it was handed over", log=name)
        # Only now, when the target has agreed: until here a refusal, or silence, leaves the stream served as it was.
        stream.give_up(found_at(target, name), host.found_kept_s)
        await asyncio.wait([stream.ended], timeout=host.settings.take_timeout_ms / 1000)
    finally:
        stream.moving = False
    if not stream.ended.done():
        raise OutcomeUnknownError(
            "the stream's writer is still being closed: it goes on, and the target takes the stream then", log=name
        )


async def confirmed(stream: str, host: StreamHost, forwarder: Forwarder, target: str) -> Answer:
    """Wait until the target of a hand-over says that it serves the stream; return what is to be answered for the move.

    That is Done, or FOUND where the stream has come to another proxy since. Raises OutcomeUnknownError where the target
    does not say so.
    """
    answer = await forwarder.call(target, Heartbeat(stream), host.settings.take_timeout_ms)
    if not isinstance(answer, Refusal):
        return Done()
    if answer.code is StatusCode.FOUND and answer.location:
        return answer
    raise OutcomeUnknownError(
        f"the stream was given up here for {target}, which does not serve it yet: {answer.message}",
        log=stream,
        advice="dlspark proxy owners says who has it; where nobody has, the next write makes a proxy take it",
    )


async def one_by_one(streams: Iterable[Stream], end: Callable[[Stream], Awaitable[None]], time_s: float) -> int:
    """End streams one after the other; return how many have not ended when `time_s` is over: those are cut off.

    The next one is reached when the one before it has ended, or has had LONGEST_WAIT_S, or its share of half of the
    time: one that hangs holds up no other, and where the time is short for many, several go at once.
    """
    loop = asyncio.get_running_loop()
    begun_by_s, deadline_s = loop.time() + time_s / 2, loop.time() + time_s
    waiting = deque(streams)
    under_way: set[asyncio.Future[None]] = set()

    async def wait_for(some: Iterable[asyncio.Future[None]], until_s: float, *, every: bool = True) -> None:
        when = asyncio.ALL_COMPLETED if every else asyncio.FIRST_COMPLETED
        await asyncio.wait(some, timeout=max(0.0, until_s - loop.time()), return_when=when)

    try:
        while waiting and loop.time() < deadline_s:
            now_s = loop.time()
            # Half of the time to begin them all, the other half for those that take long.
            wait_s = min(LONGEST_WAIT_S, max(0.0, begun_by_s - now_s) / len(waiting))
            newest = asyncio.ensure_future(end(waiting.popleft()))
            under_way.add(newest)
            newest.add_done_callback(under_way.discard)
            await wait_for([newest], now_s + wait_s)
            if len(under_way) >= HAND_OVERS_AT_ONCE:
                await wait_for(under_way, deadline_s, every=False)
        if under_way:
            await wait_for(under_way, deadline_s)
        return len(waiting) + len(under_way)
    finally:
        await end_tasks(under_way, drop_errors=True)
