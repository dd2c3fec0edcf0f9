"""How much at once, and how fast: bounds that a client or a background task puts on itself, so that others can work.

for_each     a limited number at a time
TokenBucket  a limited number of requests a second, in the order in which they were made
ByteRate     a limited number of bytes a second
MessageLimit a limited number of log lines that others can cause, and how many were left out
Slices       a limited time at a time, of work that never waits (`run_in_slices`: of a generator)
Pauses       longer and longer ones between attempts at the same thing
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterable
from typing import Final, TypeVar

from metadata.foundation.tasks import end_tasks


class TokenBucket:
    """When may the next request go, with at most `per_second` of them? Holds a second's worth of tokens, at least one,
    and is full at first.

    The first request in line takes its token at once, also one that is not there yet, and waits until it would be. The
    others wait behind it, so no request overtakes.

    Args:
        per_second: tokens that come in a second.
        now: a clock, in seconds.
    """

    def __init__(self, per_second: float, now: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_second
        self._capacity = max(per_second, 1.0)
        self._tokens = self._capacity
        self._now = now
        self._filled_at = now()
        self._turn = asyncio.Lock()

    def reserve_s(self) -> float:
        """Take a token; seconds until it is due."""
        now = self._now()
        self._tokens = min(self._capacity, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        # Below 0: a token that is still to come is promised to this caller, and its time is the wait.
        self._tokens -= 1
        return max(-self._tokens / self._rate, 0.0)

    async def take(self) -> None:
        """Wait for one's turn and a token. A caller that is cancelled while it waits for the token has used it up."""
        async with self._turn:
            delay_s = self.reserve_s()
            if delay_s:
                await asyncio.sleep(delay_s)


T = TypeVar("T")


async def for_each(items: Iterable[T] | AsyncIterable[T], limit: int, action: Callable[[T], Awaitable[None]]) -> None:
    """Run `action` on every item, at most `limit` at a time; items are drawn as there is room for them.

    The first error ends the others and is raised.
    """
    drawn = aiter(items if isinstance(items, AsyncIterable) else _one_by_one(items))
    drawing = asyncio.Lock()

    async def run() -> None:
        while True:
            # An async iterator may be asked by one task at a time.
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
    """When may the next bytes go?

    Args:
        bytes_per_second: at most so many, evenly; 0 or less: no limit.
    """

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


BURST = 20
WINDOW_S = 10.0


class MessageLimit:
    """How is a log kept readable while the same thing goes wrong very often? For one running loop.

    Args:
        logger: gets the lines.
        burst: lines that pass in a window; the others are counted, and the count is logged when the time is over.
        window_s: seconds.
    """

    def __init__(self, logger: logging.Logger, *, burst: int = BURST, window_s: float = WINDOW_S) -> None:
        self._logger = logger
        self._burst = burst
        self._window_s = window_s
        self._began: float | None = None
        self._passed = 0
        self._left_out = 0

    def log(self, level: int, message: str, *args: object, error: BaseException | None = None) -> None:
        """Log a line, with the traceback of `error` if there is one; or count it."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._began is None or now >= self._began + self._window_s:
            self._tell()
            self._began, self._passed = now, 0
        if self._passed < self._burst:
            self._passed += 1
            self._logger.log(level, message, *args, exc_info=error)
            return
        if not self._left_out:
            # By a timer: where no further line comes, none would bring the count.
            loop.call_later(self._began + self._window_s - now, self._tell)
        self._left_out += 1

    def _tell(self) -> None:
        count, self._left_out = self._left_out, 0
        if count:
            self._logger.warning("%d more lines like these were left out within %g s", count, self._window_s)


SLICE_S: Final = 0.005


class Slices:
    """How does work that is long and never waits leave the event loop's thread to others?

    Call `pause` wherever the work may be interrupted; it waits where a slice is over.

    Args:
        slice_s: seconds from one pause to the next.
    """

    def __init__(self, slice_s: float = SLICE_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._slice_s = slice_s
        self._ends_s = self._loop.time() + slice_s

    async def pause(self) -> None:
        """Let others have their turn, where it is time for that."""
        if self._loop.time() >= self._ends_s:
            await asyncio.sleep(0)
            self.begin()

    def begin(self) -> None:
        """Begin a slice now: the time before it was a wait."""
        self._ends_s = self._loop.time() + self._slice_s


async def run_in_slices(steps: Generator[None, None, T]) -> T:
    """Run a generator to its end and return its value; others have their turn between its steps."""
    slices = Slices(SLICE_S)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            value: T = ended.value
            return value
        await slices.pause()


class Pauses:
    """How long is waited before the same thing is tried again? Each time twice as long, up to a limit, and up to a half
    shorter at random: clients that failed together do not come back together.

    Args:
        first_s: the first pause, seconds at most.
        longest_s: seconds.
        rng: draws what is taken off.
    """

    def __init__(self, first_s: float, longest_s: float, rng: random.Random) -> None:
        self._next_s = first_s
        self._longest_s = longest_s
        self._rng = rng

    def take_s(self) -> float:
        """Return how long the next pause is, seconds."""
        pause_s = min(self._next_s, self._longest_s)
        self._next_s = pause_s * 2
        return pause_s * self._rng.uniform(0.5, 1.0)

    async def wait(self) -> None:
        """Pause."""
        await asyncio.sleep(self.take_s())
