"""Waiting for a condition, by the clock: however busy the machine is, a test waits as long as it must, and no longer.

A test that fails waits out its patience; a test that passes goes on as soon as the condition holds. So the patience is
long, and no number of turns or sleeps stands for it.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

PATIENCE_S = 60.0
"""How long a condition may take."""

Condition = Callable[[], object]


async def until(
    condition: Condition | Callable[[], Awaitable[object]],
    what: str | Callable[[], object] = "",
    *,
    patience_s: float = PATIENCE_S,
    every_s: float = 0.005,
) -> None:
    """Wait on the loop until `condition` is true, or what it returns is true when awaited.

    It is asked every `every_s` seconds of the loop's time; 0 is each turn of the loop. Raises AssertionError after
    `patience_s` seconds on the clock, which the loop's time may not follow; `what` is its text, or returns it by then.
    """
    deadline = time.monotonic() + patience_s
    while True:
        holds = condition()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return
        assert time.monotonic() < deadline, _message(condition, what, patience_s)
        await asyncio.sleep(every_s)


def wait_until(
    condition: Condition,
    what: str | Callable[[], object] = "",
    *,
    patience_s: float = PATIENCE_S,
    every_s: float = 0.01,
) -> None:
    """Wait in a thread as `until` does: it sleeps `every_s` seconds between two questions."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, _message(condition, what, patience_s)
        time.sleep(every_s)


def _message(condition: Condition, what: str | Callable[[], object], patience_s: float) -> str:
    what = what if isinstance(what, str) else repr(what())
    return f"not within {patience_s:g} s: {what or getattr(condition, '__qualname__', condition)}"
