"""`ThreadedWriter`: an object that is written by calls that block, one after the other, in threads.

A thread cannot be cancelled. So each call is shielded, and `abort` waits for the one that is under way before it closes
what that one uses.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from metadata.foundation.errors import check

WRITE_BYTES: Final = 1 << 20
"""Smaller pieces are gathered, so that a thread is not asked for each."""

W = TypeVar("W", bound="ThreadedWriter")


class ThreadedWriter(ABC):
    """A base of writers. It is made in a thread, by `begun`."""

    def __init__(self, url: str, threads: ThreadPoolExecutor) -> None:
        self._url = url
        self._threads = threads
        self._waiting: list[bytes | memoryview] = []
        self._waiting_bytes = 0
        self._under_way: asyncio.Future[None] | None = None
        self._ended = False

    @abstractmethod
    def _put(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write bytes behind those before. Raises ObjectStoreError."""

    @abstractmethod
    def _publish(self) -> None:
        """Make the object of what was written, durable. Raises ObjectStoreError."""

    @abstractmethod
    def drop(self) -> None:
        """Close, and take away what is no object, as far as possible. It blocks, raises nothing, and is idempotent."""

    async def write(self, data: bytes | memoryview) -> None:
        """Add bytes."""
        check(not self._ended, "An object was written to after its end", path=self._url)
        self._waiting.append(data)
        self._waiting_bytes += memoryview(data).nbytes
        if self._waiting_bytes >= WRITE_BYTES:
            await self._run(self._put_waiting)

    async def commit(self) -> None:
        """Make the object, durable."""
        check(not self._ended, "An object was committed after its end", path=self._url)
        self._ended = True
        await self._run(self._finish)

    async def abort(self) -> None:
        """Leave nothing that is no object."""
        self._ended = True
        under_way = self._under_way
        if under_way is not None:
            if not under_way.done():
                await asyncio.wait([under_way])
            if not under_way.cancelled():
                under_way.exception()  # whoever was cancelled has not heard it, and need not
        self._waiting.clear()
        # In another pool: the store's may be closed by now.
        await asyncio.to_thread(self.drop)

    async def _run(self, work: Callable[[], None]) -> None:
        self._under_way = asyncio.get_running_loop().run_in_executor(self._threads, work)
        await asyncio.shield(self._under_way)

    def _put_waiting(self) -> None:
        pieces, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._put(pieces)

    def _finish(self) -> None:
        try:
            self._put_waiting()
            self._publish()
        finally:
            self.drop()


async def begun(threads: ThreadPoolExecutor, make: Callable[[], W]) -> W:
    """Return the writer that `make` makes in a thread; one that nobody waits for any more is dropped."""
    loop = asyncio.get_running_loop()
    made = loop.run_in_executor(threads, make)
    try:
        return await asyncio.shield(made)
    except asyncio.CancelledError:

        def drop(done: asyncio.Future[W]) -> None:
            if not done.cancelled() and done.exception() is None and not loop.is_closed():
                loop.run_in_executor(None, done.result().drop)

        made.add_done_callback(drop)
        raise
