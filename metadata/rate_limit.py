"""`TokenBucket`: at most so many requests a second, in the order in which they were made."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class TokenBucket:
    """Holds a second's worth of tokens, at least one, and is full at first.

    The first request in line takes its token at once, also one that is not there yet, and waits until it would be. The
    others wait behind it, so nobody overtakes. `now` tells seconds.
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
        self._tokens -= 1
        return max(-self._tokens / self._rate, 0.0)

    async def take(self) -> None:
        """Wait for one's turn and a token. Who is cancelled while waiting for the token has used it up."""
        async with self._turn:
            delay_s = self.reserve_s()
            if delay_s:
                await asyncio.sleep(delay_s)
