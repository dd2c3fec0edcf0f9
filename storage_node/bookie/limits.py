"""What all connections of a node share: how many requests and how many bytes of answers may be under way.

Gate       at most so many requests; a connection that comes to a closed gate stops reading its socket
Budget     bytes of answers that wait for their clients; who holds much of them stops reading while they run short
Traffic    what was answered, counted
polls      long polls that are parked (`waiters`)
turns      connections that have many requests to go on with (`storage_node.turns`)
Turnstile  entries read from disk at a time; recovery's reads go first (wire specification 7.12)
Endings    tasks whose connections were closed
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from metadata.errors import check
from metadata.log_limit import LogLimit
from storage_node.bookie.waiters import MAX_POLLS, PollLine
from storage_node.turns import Turns

logger = logging.getLogger(__name__)

DISK_READS = 8
"""Entries read from disk at a time: twice what has a thread, so that what is urgent waits for few others."""
ENDED_AT_ONCE = 100
"""Tasks of closed connections that are cancelled in one turn of the loop."""


class Gate:
    """At most `limit` requests under way; 0: any number."""

    __slots__ = ("_waiting", "limit", "taken")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def closed(self) -> bool:
        return 0 < self.limit <= self.taken

    def take(self) -> None:
        """A request begins; what is urgent may begin although the gate is closed."""
        self.taken += 1

    def give(self, count: int = 1) -> None:
        """Requests have ended: let others in, in the order in which they came."""
        self.taken -= count
        check(self.taken >= 0, "more requests ended than began")
        while self._waiting and not self.closed:
            self._waiting.popleft()()

    def wait(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the gate is open."""
        self._waiting.append(callback)


class Budget:
    """`limit` bytes, of which nothing is ever refused: who is asked to `wait` shall ask for no more meanwhile."""

    __slots__ = ("_waiting", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: list[Callable[[], None]] = []

    @property
    def exceeded(self) -> bool:
        return self.used > self.limit

    def change(self, by: int) -> None:
        """Somebody holds `by` bytes more (or less) than before."""
        self.used += by
        if by < 0 and self._waiting and self.used <= self.limit // 4 * 3:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()

    def wait(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when a quarter is free again."""
        self._waiting.append(callback)


@dataclass(slots=True)
class Traffic:
    """Counters since the start: adds that were acknowledged, entries that were read."""

    adds: int = 0
    add_bytes: int = 0
    reads: int = 0
    read_bytes: int = 0


class Turnstile:
    """Lets `limit` pass at a time: what is urgent first, and of each connection one after the other.

    So whoever asks for little passes after one of each of the others, however much those ask for.
    """

    __slots__ = ("_free", "_normal", "_urgent")

    def __init__(self, limit: int = DISK_READS) -> None:
        self._free = limit
        self._urgent: OrderedDict[object, deque[asyncio.Future[None]]] = OrderedDict()
        self._normal: OrderedDict[object, deque[asyncio.Future[None]]] = OrderedDict()

    async def enter(self, connection: object, *, urgent: bool) -> None:
        """Wait for one's turn among those of `connection`, and for its turn; `leave` must follow."""
        if self._free > 0:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._urgent if urgent else self._normal).setdefault(connection, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()  # the turn came together with the cancellation
            raise

    def leave(self) -> None:
        """Pass the turn on."""
        for lines in (self._urgent, self._normal):
            while lines:
                connection, line = lines.popitem(last=False)
                turn = line.popleft()
                if line:
                    lines[connection] = line  # behind the others
                if not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1


class Endings:
    """Cancels the tasks of closed connections, ENDED_AT_ONCE in a turn of the loop.

    A connection may leave thousands, and each takes as long to be cancelled as a request to be answered.
    """

    __slots__ = ("_tasks", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._tasks: deque[asyncio.Task[None]] = deque()

    def add(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Have these cancelled."""
        self._tasks.extend(tasks)
        if self._tasks:
            self._turns.join(self._go_on)

    def _go_on(self) -> None:
        for _ in range(min(ENDED_AT_ONCE, len(self._tasks))):
            self._tasks.popleft().cancel()
        if self._tasks:
            self._turns.join(self._go_on)


class Limits:
    """A node's, for all of its connections."""

    def __init__(
        self, now: Callable[[], float], *, adds: int = 0, reads: int = 0, answer_bytes: int, waiting_bytes: int
    ) -> None:
        self.adds = Gate(adds)
        self.reads = Gate(reads)
        self.answers = Budget(answer_bytes)
        self.waiting = Budget(waiting_bytes)
        """Requests that were received and wait in line."""
        self.polls = PollLine(MAX_POLLS)
        self.disk_reads = Turnstile()
        self.listings = Turnstile(1)
        """Lists of a ledger's entries, which take long where there are millions."""
        self.traffic = Traffic()
        self.turns = Turns(now)
        """Connections whose requests waited in line, and go on."""
        self.endings = Endings(self.turns)
        self.lines = LogLimit(logger)
        """What peers can have logged."""
