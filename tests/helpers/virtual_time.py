"""`virtual_time`: an async test whose clock jumps to the next timer whenever nothing else is to do.

Time limits cost nothing, and no test sleeps. It is for code that reads its loop's clock and waits for no socket, file
or thread; a test that waits for what will never happen fails.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

RESOLUTION_S = 1e-9
"""The clock's finest step: what falls due within it from now is run now."""


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: where nothing is ready it moves the clock on instead."""

    jump: Callable[[float], None]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("the test waits for something that will never happen")
            self.jump(timeout)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """asyncio's loop, with a clock that stands still while anything is to do. There is nothing else to wait for."""

    def __init__(self) -> None:
        selector = _JumpingSelector()
        self._now = 1000.0
        selector.jump = self._jump
        super().__init__(selector)
        self._clock_resolution = RESOLUTION_S

    def _jump(self, seconds: float) -> None:
        # Onto the time of the timer that is waited for: the sum may be a rounding error before it.
        timers = self._scheduled  # type: ignore[attr-defined]
        when = timers[0].when() if timers else 0.0
        self._now = when if when - self._now == seconds else self._now + seconds

    def call_at(self, when: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:  # type: ignore[override]
        # A timer falls due later than it was set, as with any clock. Else one that looks how long it has waited, finds
        # a rounding error missing and waits for that would be set again and again while the clock stands.
        return super().call_at(max(when, self._now + RESOLUTION_S), *args, **kwargs)

    def stand_still(self, seconds: float) -> None:
        """Let time pass in which nothing runs, as where the process is stopped."""
        self._now += seconds

    def time(self) -> float:
        return self._now


def virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on virtual time, an hour of it at most; nothing may be left running at its end (I16)."""

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        loop = VirtualTimeLoop()
        try:
            task = loop.create_task(test(*args, **kwargs))
            loop.run_until_complete(asyncio.wait_for(task, 3600))
            left = [t for t in asyncio.all_tasks(loop) if not t.done()]
            assert not left, f"still running: {left}"
        finally:
            loop.close()

    del run.__wrapped__  # pytest must not see a coroutine function
    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return run
