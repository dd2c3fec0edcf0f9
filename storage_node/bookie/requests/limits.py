"""Bounds of the work of a node's connections: each one's share, and the budgets that all of them share.

How many connections there may be is decided by `transport.admission`.

Flow        how much one connection may have under way, and when its socket is not read
NodeLimits  what all connections share:
    Gate        at most a number of requests; a connection that comes to a closed gate stops reading its socket
    Budget      bytes of answers that wait for their clients (`transport.budgets`); connections that hold many stop
                reading while few are left
    Traffic     what was answered, counted
    Turnstile   entries read from disk at a time; recovery's reads go first (docs/reference/wire.md#priorities)
    Endings     cancels the tasks of closed connections, a few at a time
    polls       long polls that are parked (`store.waiters`)
    turns       connections that have many requests to go on with (`transport.turns`)

Flow. Two things are counted: `in_flight`, what a connection's requests under way take, and what the node owes it:
entries being read and answers that its socket has not taken. A connection stops reading beyond IN_FLIGHT_BYTES of both,
and also while the node's budget for answers is exceeded, if it holds more than ALLOWANCE_BYTES of it. So a client that
never reads its answers stops itself, and a client that does read is served whatever others do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from metadata.foundation.errors import check
from metadata.foundation.pacing import MessageLimit
from storage_node.bookie.store.waiters import MAX_POLLS, PollLine
from storage_node.edge import Link
from storage_node.errors import ConnectionClosedError
from storage_node.transport.budgets import Budget
from storage_node.transport.turns import Turns

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
        """True while the limit is reached; a limit of 0 never is."""
        # Urgent requests pass a closed gate, so more may be taken than the limit.
        return 0 < self.limit <= self.taken

    @property
    def room(self) -> int:
        """How many may begin before the limit is reached, where there is one; 0 or less: none."""
        return self.limit - self.taken

    def take(self, count: int = 1) -> None:
        """Count requests that begin; an urgent one may begin although the gate is closed."""
        self.taken += count

    def give(self, count: int = 1) -> None:
        """Note that requests have ended: let others in, in the order in which they came."""
        self.taken -= count
        check(self.taken >= 0, "more requests ended than began")
        while self._waiting and not self.closed:
            self._waiting.popleft()()

    def wait(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the gate is open."""
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

    So a connection that asks for little waits for one request of each of the others, however many those ask for.
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


class NodeLimits:
    """One node's limits, shared by all of its connections."""

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
        self.lines = MessageLimit(logger)
        """Bounds what peers can cause to be logged."""


IN_FLIGHT_BYTES = 32 * 1024 * 1024
RESUME_BYTES = IN_FLIGHT_BYTES // 2
ALLOWANCE_BYTES = 64 * 1024
"""Bytes of the budget for answers that a connection may hold without being counted."""
REQUEST_BYTES = 512
"""Bytes that a request without a body counts."""
TASK_BYTES = 4096
"""Bytes that a request counts that waits for the disk or a sync: a task, its frames and its future."""


class Flow:
    """One connection's share. `go_on` is called when what stopped it may be over."""

    __slots__ = (
        "_budget",
        "_counted",
        "_go_on",
        "_link",
        "_waiting",
        "_watching",
        "closed",
        "in_flight",
        "owed",
        "stopped",
    )

    def __init__(self, link: Link, budget: Budget, go_on: Callable[[], None]) -> None:
        self._link = link
        self._budget = budget
        self._go_on = go_on
        self._counted = 0
        self._waiting = False
        self._watching: asyncio.Task[None] | None = None
        self.in_flight = 0
        self.owed = 0
        """Bytes of entries being read; part of `in_flight`."""
        self.stopped = False
        """The socket is not read, and frames that were read already wait."""
        self.closed = False

    @property
    def overfull(self) -> bool:
        """Nothing large may be begun here, whatever was admitted before: the peer does not take its answers."""
        return self.in_flight + self._link.queued_bytes > IN_FLIGHT_BYTES or bool(
            self._counted and self._budget.exceeded
        )

    def check(self) -> None:
        """Stop reading, or count what is owed, where it has become too much; called after every step that may have
        queued or begun something.
        """
        queued = self._link.queued_bytes
        if self.in_flight + queued > IN_FLIGHT_BYTES:
            self.stop()
        if self.owed + queued > ALLOWANCE_BYTES:
            self.settle()

    def owe(self, size: int) -> None:
        """Count an answer of about `size` bytes that is being prepared."""
        self.in_flight += size
        self.owed += size
        if size > ALLOWANCE_BYTES or self._counted or self._budget.exceeded:
            self.settle()

    def paid(self, size: int) -> None:
        """Count that answer no more: it was sent, or will not be."""
        self.owed -= size
        if self._counted:
            self.settle()
        self.done(size)

    def done(self, size: int) -> None:
        """Count a request of that size no more: it has ended."""
        self.in_flight -= size
        # At half of the limit, not right below it: a connection would stop and go on with every request.
        if self.stopped and self.in_flight <= RESUME_BYTES:
            self._go_on()

    def stop(self) -> None:
        """Read no further until `may_go_on` says so."""
        if not self.stopped and not self.closed:
            self.stopped = True
            # TCP then holds the client back: what it sends stays in the kernels' buffers, and not in our memory.
            self._link.pause_reading()
            self._watch()

    def may_go_on(self) -> bool:
        """Return whether the connection may be read on. If not, `go_on` will be called when it may."""
        if self.in_flight > RESUME_BYTES:
            return False
        if self._link.queued_bytes > RESUME_BYTES:
            self._watch()
            return False
        self._count()
        # Only connections that hold a part of the budget wait for it: one that owes nothing may go on.
        if self._counted and self._budget.exceeded:
            if not self._waiting:
                self._waiting = True
                self._budget.wait(self._freed)
            self._watch()
            return False
        return True

    def resume(self) -> None:
        """Read on."""
        self.stopped = False
        self._link.resume_reading()

    def settle(self) -> None:
        """Bring the node's budget up to date; stop if too much of it is used by this connection."""
        if self.closed:
            return
        self._count()
        if self._counted:
            self._watch()
            if self._budget.exceeded:
                self.stop()

    def close(self) -> None:
        """Give up what the link had queued: it is gone."""
        self.closed = True
        if self._counted:
            self._budget.change(-self._counted)
            self._counted = 0
        if self._watching is not None:
            self._watching.cancel()

    def _count(self) -> None:
        held = self.owed + self._link.queued_bytes
        # A small share does not count: thousands of idle connections must not use the budget up.
        held = held if held > ALLOWANCE_BYTES else 0
        if held != self._counted and not self.closed:
            by, self._counted = held - self._counted, held
            self._budget.change(by)

    def _watch(self) -> None:
        """Have a look again once the socket has taken what is queued."""
        if self._watching is None and self._link.queued_bytes > ALLOWANCE_BYTES and not self.closed:
            self._watching = asyncio.get_running_loop().create_task(self._drained())
            self._watching.add_done_callback(self._looked)

    def _freed(self) -> None:
        """Go on if reading is stopped: the budget has room again."""
        self._waiting = False
        if self.stopped and not self.closed:
            self._go_on()

    async def _drained(self) -> None:
        try:
            await self._link.drain()
        except ConnectionClosedError:
            return

    def _looked(self, _task: asyncio.Task[None]) -> None:
        self._watching = None
        if not self.closed:
            self._count()
            if self.stopped:
                self._go_on()
