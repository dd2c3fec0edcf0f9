"""`Unawaited`: records that are answered before they are stored (`isDurableWriteEnabled` off), and what became of them.

Their failure has nobody who waits for it, so it is kept and raised by the next call: never dropped in silence (D17).
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from dlspark.errors import DistributedLogError, WriteError
from metadata.foundation.plurals import counted

_T = TypeVar("_T")


class Unawaited:
    """The unawaited records of one writer."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._failures = 0
        self._first: BaseException | None = None

    def instead_of(self, future: asyncio.Future[_T], answer: _T) -> asyncio.Future[_T]:
        """A future that has `answer` already, in place of `future`; that itself where it was refused at once."""
        if future.done():
            return future
        future.add_done_callback(self._settled)
        at_once: asyncio.Future[_T] = future.get_loop().create_future()
        at_once.set_result(answer)
        return at_once

    def _settled(self, future: asyncio.Future[_T]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._failures += 1
            self._first = self._first or error

    def forget(self) -> None:
        """What has failed up to now is being told by another error."""
        self._first, self._failures = None, 0

    def raise_failure(self, and_now: str = "") -> None:
        """Raise once what befell records that nobody waited for; `and_now` tells of the call that finds it."""
        first, failures = self._first, self._failures
        if first is None:
            return
        self.forget()
        why = first.message if isinstance(first, DistributedLogError) else repr(first)
        raise WriteError(
            f"{counted(failures, 'record that was', 'records that were')} not waited for may be lost: {why}{and_now}",
            log=self._log,
            advice="Read the log's end to see what it keeps; isDurableWriteEnabled=true waits for each record",
        ) from first
