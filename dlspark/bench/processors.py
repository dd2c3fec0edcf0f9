"""Processor time of this process, and of servers on this machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable


def processor_s(pids: Iterable[int]) -> float | None:
    """Return the processor seconds that these processes have spent together; None where one cannot be looked at."""
    if sys.platform != "linux":
        return None
    try:
        # What clock_getcpuclockid(3) makes of a process id: exact, where others count in hundredths of a second.
        return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)
    except OSError:
        return None


class Spending:
    """How much processor time was spent in a window? It is looked at in turns of a loop: `look`.

    Args:
        pids: processes; none: this one.
        from_ns: where the window begins, by the monotonic clock.
        to_ns: where it ends.
    """

    def __init__(self, pids: tuple[int, ...] | None, from_ns: int, to_ns: int) -> None:
        self._pids = pids
        self._from_ns, self._to_ns = from_ns, to_ns
        self._first: float | None = None
        self._last: float | None = None

    def look(self, now_ns: int) -> None:
        """Note what is spent, if the window begins or ends at this time."""
        if now_ns >= self._from_ns and self._first is None:
            self._first = self._spent()
        if now_ns >= self._to_ns and self._last is None:
            self._last = self._spent()

    def _spent(self) -> float | None:
        return time.process_time() if self._pids is None else processor_s(self._pids)

    @property
    def seconds(self) -> float | None:
        """What was spent in the window; None where that is not known."""
        if self._pids == () or self._first is None or self._last is None:
            return None
        return self._last - self._first
