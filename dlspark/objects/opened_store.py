"""`OpenedStore`: what all stores have in common: one root, one process, one event loop; and reads that are tried again.

A store is never used over a fork: threads do not come along, and a client without its threads waits for ever. So each
call looks at the process's id first. One policy repeats reads, for all stores; nothing here repeats a write.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from dlspark.objects.addresses import StoreRoot
from dlspark.objects.errors import StoreUnavailableError
from metadata.foundation.errors import OpenedElsewhereError, check
from metadata.foundation.opened_here import OnOneLoop
from metadata.foundation.pacing import Pauses

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReadPolicy:
    """How often is a read tried that the store could not do, and after which pauses?

    Args:
        attempts: the first one included.
        first_pause_s: before the second attempt, at most; doubled before each further one.
        longest_pause_s: the pauses grow up to it.
    """

    attempts: int = 6
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0


READ_POLICY: Final = ReadPolicy()


class OpenedStore(OnOneLoop):
    """A base of stores.

    Args:
        root: below which all objects are.
        policy: of reads.
        rng: shortens pauses at random, so that many readers do not come back at once.
    """

    def __init__(self, root: StoreRoot, policy: ReadPolicy = READ_POLICY, rng: random.Random | None = None) -> None:
        self._place = root
        self._policy = policy
        self._rng = rng or random.Random()
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._closed = False

    @property
    def root(self) -> str:
        """The address that all others begin with, without a slash at the end."""
        return self._place.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._place.url})"

    def _check_usable(self) -> None:
        """Raise OpenedElsewhereError in another process or on another loop, InvariantViolation after `close`."""
        check_process(self._pid, f"the store of {self._place.url}")
        self._check_loop()
        check(not self._closed, "An object store was used after it was closed", path=self._place.url)

    async def _persist(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Run a read until the store can do it, at most as often as the policy says; raise its last error."""
        pauses = Pauses(self._policy.first_pause_s, self._policy.longest_pause_s, self._rng)
        for _ in range(self._policy.attempts - 1):
            try:
                return await operation()
            except StoreUnavailableError:
                await pauses.wait()
        return await operation()


def check_process(pid: int, what: str) -> None:
    """Raise OpenedElsewhereError unless this is process `pid`, which opened `what`."""
    if os.getpid() != pid:
        raise OpenedElsewhereError(
            f"{what} was opened by process {pid}, and this is its fork, process {os.getpid()}, which has none of its "
            "threads; nothing was done",
            advice="Open a store in the process that uses it, after the fork: in a Spark task, inside its function",
        )


def check_ranges(ranges: Sequence[tuple[int, int]], url: str) -> None:
    """Raise InvariantViolation where a range has a negative offset or length."""
    for offset, length in ranges:
        check(offset >= 0 and length >= 0, f"({offset}, {length}) is no range of bytes", path=url)
