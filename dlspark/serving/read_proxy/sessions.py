"""`ReaderSessions`: the readers of a proxy, by connection and number. `CatchUpTurns`: which of them may read behind the
rings, and which is next. No I/O.

A session is a convenience, never a promise: a reader whose session is gone goes on by its position, at this proxy or at
another one. So sessions of readers that ask for nothing end after a while, the longest idle ones first, and a
connection's end with it.

A reader that begins behind the ring, or falls out of it, needs a read-ahead of its own until it has caught up. Each
costs the storage nodes reads that serve few, and the proxy memory, so there are only so many at a time. Readers that
wait are served connection by connection, and each connection's readers in the order in which they came: one that opens
a thousand readers waits behind itself, not others behind it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import OverCapacityError
from dlspark.serving.bindings.service import Caller, Reply
from dlspark.serving.protocol.operations import Answer, ReadBatch, ReadFrom
from dlspark.serving.read_proxy.served_log import FeedReader, ServedLog


@dataclass(slots=True)
class PendingRead:
    """A read that waits for its answer."""

    request: ReadBatch
    reply: Reply
    timer: asyncio.TimerHandle | None = None
    """Answers it when its time is over; None where it was answered at once."""

    def end(self, answer: Answer) -> None:
        """Answer it."""
        if self.timer is not None:
            self.timer.cancel()
        self.reply(answer)


@dataclass(eq=False, slots=True)
class ReaderSession(FeedReader):
    """One reader of one connection."""

    on_change: Callable[[ReaderSession], None] = field(kw_only=True)
    """Called when something has changed for it: there may be something to answer."""
    caller: Caller = field(kw_only=True)
    number: int = field(kw_only=True)
    """The reader's, in its connection."""
    log: ServedLog = field(kw_only=True)
    asked: DLSN | int | ReadFrom = field(kw_only=True)
    """The start with which it was opened."""
    pending: PendingRead | None = None
    opening: asyncio.Task[None] | None = None
    next: DLSN | None = None
    """Where its last answer said to go on; the cursor may be further, past what readers do not see."""
    closed: bool = False
    idle_since: float = 0.0
    """When its last read was answered, by the loop's clock."""

    def advance(self) -> None:
        """See `FeedReader`."""
        self.on_change(self)

    def continues(self, request: ReadBatch) -> bool:
        """Return whether `request` goes on where this session is; otherwise the reader went elsewhere."""
        if request.stream != self.log.name:
            return False
        expected = self.asked if self.next is None else self.next
        # By type as well: ReadFrom.OLDEST equals the transaction id 1.
        return request.start == expected and type(request.start) is type(expected)


class ReaderSessions:
    """Keeps the readers of a proxy: at most `most`, and at most `most_each` of one connection."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        self._by_caller: dict[Caller, dict[int, ReaderSession]] = {}
        self._idle: OrderedDict[ReaderSession, None] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ReaderSession]:
        return iter([one for sessions in self._by_caller.values() for one in sessions.values()])

    @property
    def busy_count(self) -> int:
        """Readers with a read under way."""
        return self._count - len(self._idle)

    def find(self, caller: Caller, number: int) -> ReaderSession | None:
        """Return the session of a reader, None if it has none."""
        return self._by_caller.get(caller, {}).get(number)

    def check_room(self, caller: Caller) -> None:
        """Raise OverCapacityError where one more session would be too many; nothing was opened."""
        if self._count >= self._most:
            raise OverCapacityError(
                f"the proxy has {self._most} readers, the most it takes", advice="Ask another read proxy"
            )
        if len(self._by_caller.get(caller, {})) >= self._most_each:
            raise OverCapacityError(
                f"the connection has {self._most_each} readers, the most that one may have",
                advice="Use several connections, or use readers' numbers again",
            )

    def add(self, session: ReaderSession) -> None:
        """Keep a new session, whose number is free."""
        self._by_caller.setdefault(session.caller, {})[session.number] = session
        self._count += 1

    def remove(self, session: ReaderSession) -> None:
        """Forget a session; does nothing for one that is not kept."""
        sessions = self._by_caller.get(session.caller, {})
        if sessions.get(session.number) is not session:
            return
        del sessions[session.number]
        self._count -= 1
        self._idle.pop(session, None)
        if not sessions:
            del self._by_caller[session.caller]

    def of_caller(self, caller: Caller) -> list[ReaderSession]:
        """Return all sessions of a connection."""
        return list(self._by_caller.get(caller, {}).values())

    def mark_busy(self, session: ReaderSession) -> None:
        """Note that a read of it is under way."""
        self._idle.pop(session, None)

    def mark_idle(self, session: ReaderSession, now: float) -> None:
        """Note that its read was answered."""
        session.idle_since = now
        self._idle[session] = None
        self._idle.move_to_end(session)

    def idle_for(self, seconds: float, now: float) -> list[ReaderSession]:
        """Return the sessions whose readers have asked for nothing for so long, the longest first."""
        found = []
        for session in self._idle:
            if now - session.idle_since < seconds:
                break
            found.append(session)
        return found


# ---------------------------------------------------------------------- turns to catch up


T = TypeVar("T", bound=Hashable)


class CatchUpTurns(Generic[T]):
    """Gives turns to catch up, at most `most` at a time, fairly between connections."""

    def __init__(self, most: int, grant: Callable[[T], bool]) -> None:
        """`grant` is called with the one whose turn it is; it returns whether the turn is used."""
        self.most = most
        self.taken = 0
        """Turns that are used now."""
        self._grant = grant
        self._queues: OrderedDict[Hashable, OrderedDict[T, None]] = OrderedDict()

    @property
    def contended(self) -> bool:
        """Whether another one waits."""
        return bool(self._queues)

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return sum(map(len, self._queues.values()))

    def ask(self, owner: Hashable, reader: T) -> None:
        """Ask for a turn for `reader`; it may be granted before this returns. Asking again changes nothing."""
        queue = self._queues.setdefault(owner, OrderedDict())
        queue.setdefault(reader)
        self._serve()

    def withdraw(self, owner: Hashable, reader: T) -> None:
        """Wait no longer; does nothing for one that does not wait."""
        queue = self._queues.get(owner)
        if queue is not None:
            queue.pop(reader, None)
            if not queue:
                del self._queues[owner]

    def give_back(self) -> None:
        """End a turn that was used; the next one may be granted before this returns."""
        self.taken -= 1
        self._serve()

    def _serve(self) -> None:
        while self.taken < self.most and self._queues:
            owner, queue = self._queues.popitem(last=False)
            reader, _ = queue.popitem(last=False)
            if queue:
                self._queues[owner] = queue  # behind all others
            # Before the call: it may ask for, or give back, turns itself.
            self.taken += 1
            if not self._grant(reader):
                self.taken -= 1
