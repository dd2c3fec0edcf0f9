"""`LogReaders`: opens a log's readers: for records, with or without a lock, for bytes, and for changes of its segments.

Only a reader that is opened for a subscriber, or as the exclusive one, takes a lock (D18).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal, overload

from dlspark.core.append_stream import AsyncAppendReader
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.reading.locked_reader import AsyncLockedReader
from dlspark.core.reading.positions import LogPositions
from dlspark.core.reading.reader import AsyncLogReader, Start
from dlspark.core.reading.segment_list import SegmentWatch
from dlspark.core.reading.subscriptions import Subscriptions
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import CallerError


class LogReaders(LogPositions):
    """Base of `AsyncLog`."""

    def __repr__(self) -> str:
        return f"AsyncLog({self.name!r})"

    def _remember(self, opened: SegmentWatch) -> None:
        raise NotImplementedError

    async def _adopt(self, opened: AsyncLogReader) -> None:
        raise NotImplementedError

    @overload
    async def open_reader(self, start: Start | None = None) -> AsyncLogReader: ...

    @overload
    async def open_reader(
        self, start: Start | None = None, *, subscriber: str, client_id: str | None = None
    ) -> AsyncLockedReader: ...

    @overload
    async def open_reader(
        self, start: Start | None = None, *, exclusive: Literal[True], client_id: str | None = None
    ) -> AsyncLockedReader: ...

    @overload
    async def open_reader(
        self, start: Start | None = None, *, subscriber: str | None, exclusive: bool, client_id: str | None = None
    ) -> AsyncLogReader: ...

    async def open_reader(
        self,
        start: Start | None = None,
        *,
        subscriber: str | None = None,
        exclusive: bool = False,
        client_id: str | None = None,
    ) -> AsyncLogReader:
        """Return a reader from `start`: a DLSN (or its text), a transaction id, "earliest" (the default), "last" (the
        last record there is), or "latest" (what comes next).

        With `subscriber` it is the only reader of that name: it goes on at the position that was committed last, if no
        start is given. With `exclusive` it is the only exclusive reader of the log. `client_id` is the name that other
        clients see when they want the lock. Raises LogNotFoundError, and for a lock OwnershipAcquireFailedError with
        the other reader's name after `lockTimeoutSeconds`. A position that was truncated raises at the first read.
        """
        self._check_open()
        reader: AsyncLogReader
        if subscriber is None and not exclusive:
            if client_id is not None:
                raise CallerError("a reader without a lock has no name", advice="Give a subscriber, or exclusive=True")
            position = await self.position("earliest" if start is None else start)
            reader = AsyncLogReader(self._services.reading, self.name, self._settings, position, self.position)
        else:
            reader = await AsyncLockedReader.open(
                self._services.reading,
                self.name,
                self._settings,
                self.position,
                start=start,
                subscriber=subscriber,
                client_id=client_id,
            )
        await self._adopt(reader)
        return reader

    async def open_append_reader(self, position: int = 0) -> AsyncAppendReader:
        """Return the log as a stream of bytes (`open_append_stream`), from a byte on. Raises LogNotFoundError."""
        reader = await self.open_reader(position)
        return AsyncAppendReader(reader, position)

    # ------------------------------------------------------------------ subscribers

    @property
    def _subscriptions(self) -> Subscriptions:
        self._check_open()
        return Subscriptions(self._services.reading.logs, self.name)

    async def subscribers(self) -> dict[str, DLSN]:
        """Return all subscribers with their positions; DLSN.NON_INCLUSIVE_LOWER_BOUND for those that committed none
        yet.

        What lies below the lowest of them has been read by all. Raises LogNotFoundError.
        """
        return await self._subscriptions.positions()

    async def commit_position(self, subscriber: str, dlsn: DLSN, *, back: bool = False) -> DLSN:
        """Store where a subscriber goes on, for readers without a lock; returns what is stored now.

        A position behind the stored one is not taken unless `back` is given. Raises LogNotFoundError, and an
        OutcomeUnknownError, after which it may be called again.
        """
        return await self._subscriptions.commit(subscriber, dlsn, back=back)

    async def delete_subscriber(self, subscriber: str) -> None:
        """Forget a subscriber and its position; a missing one is a success.

        Raises OwnershipAcquireFailedError, with the reader's name, while a reader is open for it.
        """
        await self._subscriptions.delete(subscriber)

    # ------------------------------------------------------------------ changes

    async def watch_segments(self) -> AsyncGenerator[list[SegmentMetadata], None]:
        """Yield the log's segments, now and after each change: a segment begins, is completed, truncated or deleted.

        Changes that come close together are seen as one. While nothing changes it makes no request; it waits while the
        metadata store cannot be reached. It ends when this handle is closed. Raises LogNotFoundError, also when the
        log is deleted.
        """
        self._check_open()
        watch = SegmentWatch(self._services.reading, self.name, self._settings)
        self._remember(watch)
        async with aclosing(watch.changes()) as changes:
            async for segments in changes:
                yield segments
