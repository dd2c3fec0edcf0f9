"""Parked long polls: requests that wait for a ledger's LAC to move on, and how many of them a node keeps.

Whatever peers do, one turn of the loop wakes WAKE_AT_ONCE of a ledger's polls and ends as many that have timed out; a
poll is parked, woken and taken back in the time that a heap of them takes, whatever their number.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Protocol

WAKE_AT_ONCE = 256
"""Polls answered in one turn of the loop; the others follow in the next turns."""
MAX_POLLS = 20_000
"""Long polls parked on a node. One more, and the oldest is answered as if its time were over."""
MAX_CONNECTION_POLLS = 5_000
"""The same for one connection."""
_DEAD_POLLS = 64
"""More ended polls than this, and than those that wait, are not kept in a heap."""


class HasLac(Protocol):
    """How far is the ledger that a long poll waits for?"""

    lac: int


class LacWaiter:
    """A parked long poll: `finished(advanced)` is called once, unless it is cancelled before."""

    __slots__ = ("_finished", "_line", "_timer", "previous_lac")

    def __init__(self, line: LacWaiters, previous_lac: int, finished: Callable[[bool], None]) -> None:
        self.previous_lac = previous_lac
        self._line = line
        self._finished: Callable[[bool], None] | None = finished
        self._timer: asyncio.TimerHandle | None = None
        line.park(self)

    def limit(self, timeout_s: float, timed_out: Callable[[LacWaiter], None]) -> None:
        """Have `timed_out` called with this poll after a while."""
        self._timer = asyncio.get_running_loop().call_later(timeout_s, timed_out, self)

    @property
    def waiting(self) -> bool:
        """True until it is woken or cancelled."""
        return self._finished is not None

    def wake(self, *, advanced: bool) -> None:
        """End the wait. `advanced`: because the LAC moved on."""
        finished = self._finished
        if finished is not None:
            # Before the call, which may park the next poll of this client, or wake others.
            self.cancel()
            finished(advanced)

    def cancel(self) -> None:
        """End the wait without an answer."""
        if self._finished is not None:
            self._finished = None
            if self._timer is not None:
                self._timer.cancel()
            self._line.ended()


class LacWaiters:
    """The polls of one ledger, by the LAC that has to be passed."""

    __slots__ = ("_due", "_heap", "_ledger", "_number", "_scheduled", "_waiting")

    def __init__(self, ledger: HasLac) -> None:
        self._ledger = ledger
        self._heap: list[tuple[int, int, LacWaiter]] = []
        """(previous LAC, order of arrival, poll); polls that ended by themselves stay for a while."""
        self._due: deque[LacWaiter] = deque()
        """To be woken whatever the LAC is."""
        self._number = 0
        self._waiting = 0
        self._scheduled = False

    def __len__(self) -> int:
        return self._waiting

    def park(self, waiter: LacWaiter) -> None:
        """Take a poll in. The LAC must not have passed it already: only a later move of the LAC wakes it."""
        self._number += 1
        self._waiting += 1
        heappush(self._heap, (waiter.previous_lac, self._number, waiter))

    def ended(self) -> None:
        """Count a poll no more: it has been woken or cancelled."""
        self._waiting -= 1
        # A heap has no cheap removal. Swept when more than half is dead, the cost of a poll stays constant.
        if len(self._heap) > 2 * self._waiting + _DEAD_POLLS:
            self._heap = [item for item in self._heap if item[2].waiting]
            heapify(self._heap)

    def advance(self) -> None:
        """Wake the polls that this LAC satisfies, the first of them at once."""
        if not self._scheduled:
            self._wake_some()

    def wake_all(self) -> None:
        """Wake every poll: each has its answer."""
        self._due.extend(waiter for _, _, waiter in sorted(self._heap, key=_arrival))
        self._heap = []
        self.advance()

    def _wake_some(self) -> None:
        self._scheduled = False
        for _ in range(WAKE_AT_ONCE):
            waiter = self._next()
            if waiter is None:
                return
            waiter.wake(advanced=self._ledger.lac > waiter.previous_lac)
        self._scheduled = True
        # The rest in later turns: adds and their syncs must not wait for hundreds of readers' answers.
        asyncio.get_running_loop().call_soon(self._wake_some)

    def _next(self) -> LacWaiter | None:
        """Return the next poll to be woken; None if there is none at present."""
        while self._due:
            waiter = self._due.popleft()
            if waiter.waiting:
                return waiter
        heap = self._heap
        while heap and (heap[0][0] < self._ledger.lac or not heap[0][2].waiting):
            waiter = heappop(heap)[2]
            if waiter.waiting:
                return waiter
        return None


def _arrival(item: tuple[int, int, LacWaiter]) -> int:
    return item[1]


class PollLine:
    """Parked polls in the order in which they came, at most `limit`: one more ends the oldest.

    So no poll is refused: a client whose poll ends early asks again, and a client that parks its polls for hours does
    not keep others out.
    """

    __slots__ = ("_limit", "_over", "_polls", "_scheduled")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._polls: OrderedDict[LacWaiter, None] = OrderedDict()
        self._over: deque[LacWaiter] = deque()
        """Their time is over, and they are answered in one of the next turns."""
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._polls)

    def add(self, poll: LacWaiter) -> None:
        """Put a poll at the end; beyond the limit the oldest one is answered as if its time were over."""
        self._polls[poll] = None
        if len(self._polls) > self._limit:
            self._polls.popitem(last=False)[0].wake(advanced=False)

    def discard(self, poll: LacWaiter) -> None:
        """Forget a poll that has ended; does nothing where it is not in the line."""
        self._polls.pop(poll, None)

    def take_all(self) -> list[LacWaiter]:
        """Empty the line, and return the polls that were in it."""
        polls, self._polls = self._polls, OrderedDict()
        return list(polls)

    def timed_out(self, poll: LacWaiter) -> None:
        """Answer a poll whose time is over, in one of the next turns."""
        self._over.append(poll)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._end_some)

    def _end_some(self) -> None:
        self._scheduled = False
        for _ in range(min(WAKE_AT_ONCE, len(self._over))):
            self._over.popleft().wake(advanced=False)
        if self._over:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._end_some)
