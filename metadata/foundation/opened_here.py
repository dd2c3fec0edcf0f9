"""`OpenedHere` and `OnOneLoop`: bases of what is open in this process, and of what one event loop of it serves.

What is open holds sockets, tasks and locks. A copy of it would share none of them: it would hang, or write beside the
one that it was copied from. So it is refused where the copy is made, which is early, and not where it is first used.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn

from metadata.foundation.errors import OpenedElsewhereError


class OpenedHere:
    """May an object be sent to another process? Not one of these: Spark would pickle or copy what a task's function
    refers to.
    """

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be pickled or copied: pickle, cloudpickle and copy call this. Raises OpenedElsewhereError."""
        raise OpenedElsewhereError(
            f"{_named(self)} is open in this process, and can be neither pickled nor copied",
            advice="Open it where it is used: in a Spark task, open it in the task's function, once for each partition",
        )


class OnOneLoop(OpenedHere):
    """Which event loop serves an asynchronous object? The one on which it was opened, and no other."""

    __slots__ = ()

    _loop: asyncio.AbstractEventLoop

    def _check_loop(self) -> None:
        """Raise OpenedElsewhereError unless the caller runs on that loop; nothing was done."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            ended = ", which has ended" if self._loop.is_closed() else ""
            raise OpenedElsewhereError(
                f"{_named(self)} was opened on another event loop{ended}; nothing was done",
                advice="Open, use and close it in one asyncio.run(), or use the synchronous class of that name, which "
                "serves all threads",
            )


def _named(opened: OpenedHere) -> str:
    """Return what it is, with its address or its log's name where it has one."""
    told = repr(opened)
    return f"the {type(opened).__name__}" if told.startswith("<") else told
