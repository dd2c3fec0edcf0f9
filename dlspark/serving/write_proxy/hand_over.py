"""Handing a stream over to another proxy, without an error that a client sees.

    source                                    target
    asks the target to take the stream    ->  checks that it may, and asks for the log's lock: it waits in its queue
    lets its writer finish, closes the
    segment, releases the lock            ->  has the lock, opens the writer: nothing is to be recovered
    answers what waited: found at target      holds what comes until the writer is open

From the moment at which the source gives up it begins nothing, so what clients send again to the target comes behind
everything that the source has answered. Both remember the move: the source says where the stream is for two thirds of
the session timeout, the target forgets that the source had it.

Fault model: a target that refuses, or does not answer, leaves the stream where it is. One that dies afterwards leaves
it free: clients come back, or the next proxy takes it. A source that dies is a crash as any other; the target waits for
the lock no longer than `server_take_timeout_ms`.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from dlspark.errors import OutcomeUnknownError, StreamUnavailableError
from dlspark.serving.protocol.failures import error_of
from dlspark.serving.protocol.operations import Answer, Refusal, Request, TakeStream
from dlspark.serving.write_proxy.streams import ProxyStream, StreamHost, found_at


class Forwarder(Protocol):
    """Asks other proxies."""

    async def call(self, location: str, request: Request, timeout_ms: int = 10_000) -> Answer:
        """What the proxy at `location` answers; where it cannot be asked, or does not answer in time, a Refusal."""
        ...


def same_proxy(one: str, other: str) -> bool:
    """Whether two locations name one address; either may be `host:port` alone."""
    return one.rpartition(";")[2] == other.rpartition(";")[2]


async def hand_over(stream: ProxyStream, host: StreamHost, forwarder: Forwarder, target: str) -> None:
    """Hand a stream over that this proxy owns; returns once its lock is released.

    Raises what the target refuses it with, or StreamUnavailableError where it is not to be handed over: it stays here.
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
        if not stream.owned:
            raise StreamUnavailableError("the stream has ended here before it was handed over", log=name)
        stream.give_up(found_at(target, name), host.found_kept_s)
        await asyncio.wait([stream.ended], timeout=host.settings.take_timeout_ms / 1000)
    finally:
        stream.moving = False
    if not stream.ended.done():
        raise OutcomeUnknownError(
            "the stream's writer is still being closed: it goes on, and the target takes the stream then", log=name
        )
