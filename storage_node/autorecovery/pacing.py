"""How much at once, and how fast: what auto-recovery puts on itself so that others can work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

from metadata.tasks import end_tasks

T = TypeVar("T")


async def for_each(items: Iterable[T] | AsyncIterable[T], limit: int, action: Callable[[T], Awaitable[None]]) -> None:
    """Run `action` on every item, at most `limit` at a time; items are drawn as there is room for them.

    The first error ends the others and is raised.
    """
    drawn = aiter(items if isinstance(items, AsyncIterable) else _one_by_one(items))
    drawing = asyncio.Lock()

    async def run() -> None:
        while True:
            async with drawing:
                try:
                    item = await anext(drawn)
                except StopAsyncIteration:
                    return
            await action(item)

    runners = [asyncio.get_running_loop().create_task(run()) for _ in range(max(limit, 1))]
    try:
        await asyncio.gather(*runners)
    finally:
        await end_tasks(runners)


async def _one_by_one(items: Iterable[T]) -> AsyncIterator[T]:
    for item in items:
        yield item


class ByteRate:
    """At most so many bytes a second, evenly; 0 or less: no limit."""

    def __init__(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    async def take(self, count: int) -> None:
        """Wait until `count` more bytes may go."""
        if self._rate <= 0:
            return
        now = asyncio.get_running_loop().time()
        begin = max(self._free_at, now)
        self._free_at = begin + count / self._rate
        if begin > now:
            await asyncio.sleep(begin - now)
