"""`FairTurns`: work of which there may be only so much at a time, shared out between clients and not by who came first.

Who asks for a thousand things at once waits behind itself: turns go round by the hosts that ask, and by the connections
of each host. A client of many connections takes no more than others do that ask from elsewhere, and one that shares its
host waits for one turn of each connection there.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairTurns:
    """At most `most` turns at a time, on one loop."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._hosts: OrderedDict[str, OrderedDict[str, deque[asyncio.Future[None]]]] = OrderedDict()
        """Who waits, by host and connection; the one whose turn is next comes first."""

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Yield a block that is done in a turn of the client at `address` (`host:port`)."""
        await self._wait(address)
        try:
            yield
        finally:
            self._next()

    async def _wait(self, address: str) -> None:
        if self._free:  # then nobody waits
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        connections = self._hosts.setdefault(address.rpartition(":")[0], OrderedDict())
        connections.setdefault(address, deque()).append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._next()  # it came together with the end of who waited
            raise

    def _next(self) -> None:
        """Give a turn that is over to the next one; who waits no more is passed over."""
        while self._hosts:
            host, connections = self._hosts.popitem(last=False)
            address, waiting = connections.popitem(last=False)
            turn = waiting.popleft()
            if waiting:
                connections[address] = waiting
            if connections:
                self._hosts[host] = connections
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
