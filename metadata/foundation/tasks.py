"""`end_tasks` for every path that cancels tasks and waits for their end, `undisturbed` for what must not be cut off,
`together` for what runs at the same time, `Once` and `each` for what is closed.

Before Python 3.12 a cancellation that meets the result of an `asyncio.wait_for` is lost: `wait_for` returns the result,
the task goes on as if it had not been cancelled, and a caller that waits for its end may wait for ever. So there a
cancellation is repeated until it has had its effect. A task may then be cancelled while it tidies up; what must not be
cut off there belongs into `undisturbed`, with a time limit of its own.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

T = TypeVar("T")

AGAIN_S: Final = 1.0 if sys.version_info < (3, 12) else None
"""Seconds until a cancellation without effect is repeated: longer than tidying up takes as a rule. None: never."""


async def end_tasks(tasks: Iterable[asyncio.Future[Any]], *, drop_errors: bool = False) -> None:
    """Cancel tasks and wait until they have ended, also where the caller is cancelled meanwhile.

    Their errors are for the caller to look at, and the event loop reports those that no code looked at; with
    `drop_errors` they are dropped.
    """
    ending = list(tasks)
    try:
        if any(not task.done() for task in ending):
            await undisturbed(_cancel_until_done(ending))
    finally:
        for task in ending:
            # Not done: this coroutine is being closed after its event loop has ended.
            if drop_errors and task.done() and not task.cancelled():
                task.exception()


async def _cancel_until_done(tasks: Sequence[asyncio.Future[Any]]) -> None:
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=AGAIN_S)


async def undisturbed(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end, and return or raise what it does. A cancellation of the caller is raised only once `work`
    has ended by itself.
    """
    return await _ended(asyncio.get_running_loop().create_task(work))


async def _ended(task: asyncio.Task[T]) -> T:
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


class Once:
    """How is something closed once, and to its end, though several callers ask for it and may be cancelled?

    Args:
        work: called once, by the first that asks.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        """True once it was asked for at all."""
        return self._task is not None

    async def run(self) -> None:
        """Begin the work, or wait until it has ended. Its failure is raised to the caller that began it."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())
            await _ended(self._task)
        elif not self._task.done():
            await asyncio.wait([self._task])


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at the same time, and return what they return, in order. Raises the first failure, or the caller's
    cancellation, once all have ended: the others are cancelled, and none runs on behind its caller's back (I16)."""
    tasks = [asyncio.get_running_loop().create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end_tasks(tasks, drop_errors=True)


async def each(steps: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run all steps in order, also after one that failed. Raises the first failure once all have run."""
    failures: list[Exception] = []
    for step in steps:
        try:
            await step()
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]
