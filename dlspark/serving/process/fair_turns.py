"""`FairTurns`: work of which only so much may be done at a time, shared out between clients and not first come, first
served.

A client that asks for a thousand things at once waits behind itself: turns go round by the hosts that ask, and by the
connections of each host. A client of many connections takes no more than others do that ask from elsewhere, and one
that shares its host waits for one turn of each connection there.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairTurns:
    """When may work begin that takes much, so that no client keeps the others from theirs? On one event loop.

    Args:
        most: turns at a time.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._hosts: OrderedDict[str, OrderedDict[str, deque[asyncio.Future[None]]]] = OrderedDict()
        """The futures of those that wait, by host and connection; the next one comes first."""

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Yield in a turn of the client at `address` (`host:port`); the turn ends with the block."""
        await self._wait(address)
        try:
            yield
        finally:
            self._next()

    async def _wait(self, address: str) -> None:
        if self._free:  # then no other waits: `_next` frees a turn only where none does
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        connections = self._hosts.setdefault(address.rpartition(":")[0], OrderedDict())
        connections.setdefault(address, deque()).append(turn)
        try:
            await turn
        except BaseException:
            # The turn may have come in the same step in which its task was cancelled: it goes on to the next one, or it
            # would be lost for good.
            if turn.done() and not turn.cancelled():
                self._next()
            raise

    def _next(self) -> None:
        """Give a turn that is over to the next one; those that were cancelled meanwhile are passed over."""
        while self._hosts:
            host, connections = self._hosts.popitem(last=False)
            address, waiting = connections.popitem(last=False)
            turn = waiting.popleft()
            # Behind all others on both levels: that is what makes turns go round.
            if waiting:
                connections[address] = waiting
            if connections:
                self._hosts[host] = connections
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
