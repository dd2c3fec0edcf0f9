"""`LogFeed`: one read-ahead of a log, and the ring that it fills.

Two kinds differ in one thing. The feed at the log's end reads on whatever its readers do: a slow one must not hold up
the others. A feed that catches up reads only so far ahead of the reader that is furthest: without that bound it would
run to the end of a long log and throw away what its readers have not seen.

The read-ahead is the log core's (`LogReadAhead`): the digest is checked there, ends of segments, truncation and failing
storage nodes are waited out or raised there. Nothing is decoded here. A final error ends the feed: its readers get what
the ring still has, and then the error. `close` leaves no task behind (I16).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.reading.segment_follower import FetchedEntry
from dlspark.errors import ReadCancelledError, ReadError
from dlspark.serving.read_proxy.ring import EntryRing
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.tasks import end_tasks

_log = logging.getLogger(__name__)


class EntrySource(Protocol):
    """What a feed needs of a read-ahead."""

    passed: DLSN
    """All entries before this can be taken, or were."""

    def take(self) -> FetchedEntry | None:
        """Take the next entry; None if none is there yet. Raises the final error."""

    async def activity(self) -> None:
        """Wait until something happens; may also return early."""

    async def close(self, error: DistributedLogError) -> None:
        """End it."""


class LogFeed:
    """Reads from its ring's `begin` on."""

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
        """`changed` is called when entries have come, when a segment has ended, and when the feed has failed; it must
        not raise.

        `lead_bytes`: how far it reads ahead of the reader that is furthest; None: any distance. `until`: from where on
        others read, so that it is complete there; None: it never is.
        """
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
