"""`ServedLog`: one log that is read for readers: the feed at its end, those that catch up, and which reader reads from
which. `LogFeed`: one read-ahead of a log, and the ring that it fills.

    position                                     reads from
    at or behind the ring's begin                the feed at the end
    within the ring of a feed that catches up    that one, with its other readers
    elsewhere                                    a feed of its own, when its turn comes (`CatchUpTurns`)

A reader reads from one feed at a time. It moves to the end as soon as that ring covers its position, and loses its feed
when it falls behind, and nothing else. The log is opened for its first reader. What ends the feed at the end ends the
served log: its readers get what they can still get, then the error; for a reader that comes next the log is opened
anew.

The two kinds of feeds differ in one thing. The feed at the log's end reads on whatever its readers do: a slow one must
not hold up the others. A feed that catches up reads only so far ahead of the reader that is furthest: without that
bound it would run to the end of a long log and throw away what its readers have not seen.

The read-ahead is the log core's (`LogReadAhead`): the digest is checked there, ends of segments, truncation and failing
storage nodes are waited out or raised there. Nothing is decoded here. A final error ends the feed: its readers get what
the ring still has, and then the error. `close` leaves no task behind (I16).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.log import AsyncLog
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.reading.beginnings import beginning
from dlspark.core.reading.read_ahead import LogReadAhead
from dlspark.core.reading.segment_follower import FetchedEntry
from dlspark.core.reading.segment_list import SegmentList
from dlspark.core.services import Services
from dlspark.errors import ReadCancelledError, ReadError
from dlspark.serving.process.fair_turns import FairTurns
from dlspark.serving.protocol.operations import ReadFrom
from dlspark.serving.read_proxy.chunks import ChunkMaker, Chunks, ReadCursor
from dlspark.serving.read_proxy.ring import EntryRing, RingBudget
from dlspark.serving.read_proxy.settings import ReadProxySettings
from metadata.foundation.errors import DistributedLogError, present
from metadata.foundation.tasks import each, end_tasks

# ---------------------------------------------------------------------- feeds


_log = logging.getLogger(__name__)


class EntrySource(Protocol):
    """A read-ahead, as a feed needs it."""

    passed: DLSN
    """All entries before this can be taken, or were."""

    def take(self) -> FetchedEntry | None:
        """Take the next entry; None if none is there yet. Raises the final error."""

    async def activity(self) -> None:
        """Wait until something happens; may also return early."""

    async def close(self, error: DistributedLogError) -> None:
        """End it."""


class LogFeed:
    """Fills its ring from a read-ahead, from the ring's `begin` on.

    Args:
        log: the log's name.
        source: the read-ahead, which the feed closes.
        ring: what it fills.
        changed: called when entries have come, when a segment has ended, and when the feed has failed; it must not
            raise.
        lead_bytes: how far it reads ahead of the reader that is furthest; None: any distance.
        until: from where on others read, so that it is complete there; None: it never is.
    """

    def __init__(
        self,
        log: str,
        source: EntrySource,
        ring: EntryRing,
        changed: Callable[[LogFeed], None],
        *,
        lead_bytes: int | None = None,
        until: Callable[[], DLSN] | None = None,
    ) -> None:
        self.ring = ring
        self.failure: DistributedLogError | None = None
        """What ended the feed; it comes behind the last entry of the ring."""
        self.complete = False
        """Whether it has read up to where others read, and reads no more. The ring stays."""
        self._log = log
        self._source = source
        self._changed = changed
        self._lead_bytes = lead_bytes
        self._until = until
        self._furthest = ring.first
        self._room = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def advanced(self, ordinal: int) -> None:
        """Note that a reader has come as far as `ordinal`, and goes on."""
        self._furthest = max(self._furthest, ordinal)
        self._room.set()

    @property
    def _has_room(self) -> bool:
        return self._lead_bytes is None or self.ring.bytes_from(self._furthest) < self._lead_bytes

    async def _run(self) -> None:
        try:
            while True:
                if self._until is not None and self.ring.end >= self._until():
                    self.complete = True
                    await self._source.close(self._ended_error())
                    self._changed(self)
                    return
                # Readers are called before the wait, with what has come: none of them waits for a full ring.
                if self._fill():
                    self._changed(self)
                elif self._has_room and self.ring.advance(self._source.passed):
                    self._changed(self)  # All was taken: its readers have passed a segment's end with it.
                elif self._has_room:
                    await self._source.activity()
                else:
                    self._room.clear()
                    await self._room.wait()
        except DistributedLogError as error:
            self._end(error)
        except Exception as error:
            failure = ReadError(f"the feed failed: {error!r}", log=self._log)
            failure.__cause__ = error
            _log.exception("log %s: the feed failed", self._log)
            self._end(failure)

    def _fill(self) -> bool:
        """Move what was read to the ring; whether there was anything."""
        before = self.ring.after
        try:
            while self._has_room and (fetched := self._source.take()) is not None:
                self.ring.append(fetched)
        except DistributedLogError:
            if self.ring.after == before:
                raise  # else it comes again, behind what was moved
        return self.ring.after > before

    def _end(self, error: DistributedLogError) -> None:
        error.log = error.log or self._log
        self.failure = error
        self._changed(self)

    async def close(self) -> None:
        """End the read-ahead and give up the ring. Idempotent."""
        await end_tasks([self._task])
        await self._source.close(self._ended_error())
        self.ring.clear()

    def _ended_error(self) -> ReadCancelledError:
        return ReadCancelledError("the log is not served any more", log=self._log)


# ---------------------------------------------------------------------- the log


@dataclass(eq=False, slots=True)
class FeedReader(ABC):
    """A reader as its log sees it."""

    cursor: ReadCursor | None = None
    """None until its position is known."""
    shared: SharedFeed | None = None
    """The feed that it reads from, with others."""

    @abstractmethod
    def advance(self) -> None:
        """Answer the reader's pending read, if it can be answered: something has changed for it."""


@dataclass(eq=False, slots=True)
class SharedFeed:
    """A feed and its readers."""

    feed: LogFeed
    catches_up: bool
    readers: set[FeedReader] = field(default_factory=set)
    waiting: dict[FeedReader, None] = field(default_factory=dict)
    """Readers that have had everything and are called when more has come, in the order in which they began to wait."""
    begun_s: float = 0.0
    """When its turn began, by the loop's clock."""
    delivered_bytes: int = 0
    """What its readers were given in this turn."""
    ending: asyncio.TimerHandle | None = None
    """Ends a feed that catches up, whose last reader has gone."""


@dataclass(frozen=True, slots=True)
class ServingContext:
    """Holds what the logs of one proxy share: memory, turns, and the calls of their service."""

    namespace: AsyncNamespace
    settings: ReadProxySettings
    rings: RingBudget
    catch_up_rings: RingBudget
    chunks: Chunks
    searches: FairTurns
    turn_over: Callable[[], None]
    """Called when a feed that caught up has ended."""
    failed: Callable[[ServedLog], None]
    """Called when the feed at the end has failed."""
    catching_up: dict[SharedFeed, ServedLog] = field(default_factory=dict)
    """Feeds that catch up, in the order in which their turns began."""
    lingering: OrderedDict[SharedFeed, ServedLog] = field(default_factory=OrderedDict)
    """Feeds that caught up and whose last reader has gone: others may come that begin where it began."""


class ServedLog:
    """Serves one log to its readers. Open it before use; every reader that is attached has to leave again."""

    def __init__(self, name: str, context: ServingContext) -> None:
        self.name = name
        self.users = 0
        """Readers that are here, or on their way."""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.catching_up: list[SharedFeed] = []
        self._context = context
        self._handle: AsyncLog | None = None
        self._segments: SegmentList | None = None
        self._list_lock = asyncio.Lock()
        self._end_lock = asyncio.Lock()
        self._asking_end: asyncio.Task[DLSN] | None = None
        self._tail: SharedFeed | None = None
        self._maker: ChunkMaker | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def _services(self) -> Services:
        return self._context.namespace.services.reading

    @property
    def _counters(self) -> Counter[str]:
        return self._services.counters

    @property
    def tail(self) -> SharedFeed:
        """The feed at the log's end."""
        return present(self._tail, "a log is served before it is open", log=self.name)

    @property
    def _log(self) -> AsyncLog:
        return present(self._handle, "a log is served before it is open", log=self.name)

    @property
    def ring_bytes(self) -> int:
        """What the ring at the end has; 0 before the log is open."""
        return self._tail.feed.ring.kept_bytes if self._tail is not None else 0

    @property
    def failed(self) -> bool:
        """Whether nothing new comes: it has to be opened anew."""
        return self._tail is not None and self._tail.feed.failure is not None

    # ------------------------------------------------------------------ opening, closing

    async def open(self) -> None:
        """Find the log's end and begin to read there. Raises LogNotFoundError, InvalidLogNameError and others."""
        self._handle = await self._context.namespace.open_log(self.name)
        settings = self._handle.settings
        end = await self._handle.end()
        self._segments = SegmentList(self._services, self.name, settings)
        await self._segments.load()
        self._maker = ChunkMaker(
            self.name,
            self._counters,
            gap_detection=settings.gap_detection,
            max_bytes=self._context.settings.max_delivery_bytes,
            opened=self._context.chunks.opened,
        )
        self._tail = self._begin(end, catches_up=False)

    def _begin(self, start: DLSN, *, catches_up: bool) -> SharedFeed:
        """Begin to read at `start`."""
        context, segments = self._context, self._segments
        creation = -1 if segments is None else segments.creation
        own = context.settings.catch_up_bytes if catches_up else context.settings.ring_bytes
        ring = EntryRing(start, own, context.catch_up_rings if catches_up else context.rings)
        source = LogReadAhead(self._services, self.name, self._log.settings, start, creation)
        if not catches_up:
            return SharedFeed(LogFeed(self.name, source, ring, self._changed), catches_up)
        tail = self.tail.feed.ring
        feed = LogFeed(self.name, source, ring, self._changed, lead_bytes=own // 2, until=lambda: tail.begin)
        return SharedFeed(feed, catches_up)

    async def close(self) -> None:
        """End all reading. Idempotent."""
        tail, self._tail = self._tail, None
        for shared in list(self.catching_up):
            self.end_feed(shared)
        segments, self._segments = self._segments, None
        handle, self._handle = self._handle, None
        if self._asking_end is not None:
            await end_tasks([self._asking_end], drop_errors=True)
        if segments is not None:
            segments.close()
        if self._closing:
            await asyncio.wait(list(self._closing))
        await each([one.close for one in (tail.feed if tail is not None else None, handle) if one is not None])

    # ------------------------------------------------------------------ where a reader begins

    async def position_of(self, start: DLSN | int | ReadFrom, address: str) -> DLSN:
        """Return where a reader that asks for `start` begins; `address` is its client's.

        Raises AlreadyTruncatedError, LogNotFoundError and others.
        """
        if start is ReadFrom.LATEST:
            position = await self._end()
        elif start is ReadFrom.OLDEST:
            position = DLSN(0, 0, 0) if self._log.settings.skip_minimum_version else DLSN.INITIAL
        elif isinstance(start, DLSN):
            position = start
        else:
            async with self._context.searches.turn(address):
                position = await self._log.find_txid(start)
        async with self._list_lock:
            segments = present(self._segments, "a log is asked after it was closed", log=self.name)
            return await beginning(self.name, segments, position, self._log.settings, self._counters)

    async def _end(self) -> DLSN:
        """Return the log's end, with all that was acknowledged before this call.

        Readers that ask together share one question. A call that comes when it is already under way
        shares the next: it may have been answered before that call.
        """
        if self._asking_end is None:
            self._asking_end = asyncio.get_running_loop().create_task(self._ask_end())
        return await asyncio.shield(self._asking_end)

    async def _ask_end(self) -> DLSN:
        async with self._end_lock:
            self._asking_end = None
            return await self._log.end()

    def cursor(self, start: DLSN) -> ReadCursor:
        """Return a cursor at a position that `position_of` has returned."""
        maker = present(self._maker, "a log is read before it is open", log=self.name)
        chunk_bytes = self._context.settings.chunk_bytes
        return ReadCursor(start, maker, self._context.chunks, self._counters, chunk_bytes=chunk_bytes)

    # ------------------------------------------------------------------ which feed a reader reads from

    def attach(self, reader: FeedReader, cursor: ReadCursor) -> SharedFeed | None:
        """Return the feed that `reader` reads from now on, which has what it needs; None: it has to wait for a turn."""
        shared = reader.shared
        if shared is not None:
            if cursor.fallen_out or (cursor.at_end and shared.feed.complete):
                self.leave(reader)
            elif not shared.catches_up or not self.tail.feed.ring.covers(cursor.position):
                return shared
        if self.tail.feed.ring.covers(cursor.position):
            return self._enter(reader, cursor, self.tail)
        for one in self.catching_up:
            ring = one.feed.ring
            # At the end of a feed that is complete nothing comes any more: the feed at the log's end reads on there.
            within = cursor.position < ring.end or (cursor.position == ring.end and not one.feed.complete)
            if ring.covers(cursor.position) and within and one.feed.failure is None:
                return self._enter(reader, cursor, one)
        return None

    def catch_up(self, reader: FeedReader, cursor: ReadCursor) -> bool:
        """Begin to read for a reader whose turn it is; whether the turn is used: another feed may have what it needs by
        now."""
        if self.attach(reader, cursor) is not None:
            return False
        shared = self._begin(cursor.position, catches_up=True)
        shared.begun_s = asyncio.get_running_loop().time()
        self.catching_up.append(shared)
        self._context.catching_up[shared] = self
        self._enter(reader, cursor, shared)
        return True

    def _enter(self, reader: FeedReader, cursor: ReadCursor, shared: SharedFeed) -> SharedFeed:
        self.leave(reader)
        if shared.ending is not None:
            shared.ending.cancel()
            shared.ending = None
            self._context.lingering.pop(shared, None)
        reader.shared = shared
        shared.readers.add(reader)
        cursor.attach(shared.feed.ring)
        return shared

    def leave(self, reader: FeedReader) -> None:
        """Take `reader` from its feed, if it has one. A feed that caught up ends soon after its last reader."""
        shared, reader.shared = reader.shared, None
        if reader.cursor is not None:
            reader.cursor.detach()
        if shared is None:
            return
        shared.readers.discard(reader)
        shared.waiting.pop(reader, None)
        if shared.catches_up and not shared.readers and shared in self.catching_up:
            wait_s = self._context.settings.catch_up_idle_ms / 1000
            shared.ending = asyncio.get_running_loop().call_later(wait_s, self.end_feed, shared)
            self._context.lingering[shared] = self

    def end_turn(self, shared: SharedFeed) -> None:
        """Take the turn from all readers of a feed that catches up; they ask for another one."""
        waiting = list(shared.waiting)
        for reader in list(shared.readers):
            self.leave(reader)
        self.end_feed(shared)
        for reader in waiting:
            reader.advance()

    def end_feed(self, shared: SharedFeed) -> None:
        """End a feed that catches up and has no readers; its turn is over when it has ended."""
        if shared not in self.catching_up:
            return
        self.catching_up.remove(shared)
        self._context.catching_up.pop(shared, None)
        self._context.lingering.pop(shared, None)
        if shared.ending is not None:
            shared.ending.cancel()

        async def end() -> None:
            try:
                await shared.feed.close()
            finally:
                self._context.turn_over()  # not before: what it kept is freed now

        task = asyncio.get_running_loop().create_task(end())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # ------------------------------------------------------------------ what happens

    def _changed(self, feed: LogFeed) -> None:
        feeds = [self._tail, *self.catching_up]
        shared = next((one for one in feeds if one is not None and one.feed is feed), None)
        if shared is None:
            return  # It is being closed.
        if not shared.catches_up and feed.failure is not None:
            self._context.failed(self)
        # Taken out before they are called: a reader that finds nothing again puts itself back, at the end.
        waiting = list(shared.waiting)
        shared.waiting.clear()
        if shared.catches_up:
            self._join_tail(shared)
        for reader in waiting:
            reader.advance()

    def _join_tail(self, shared: SharedFeed) -> None:
        """Move readers that have caught up, also where they ask for nothing: the turn is for others then."""
        for reader in list(shared.readers):
            cursor = reader.cursor
            if cursor is not None:
                cursor.pass_end()
                self.attach(reader, cursor)
