"""The highest rate that a system sustains: doubled until it does not, then bisected. `Bound` says what sustained is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

MAX_STEPS: Final = 20
PRECISION: Final = 0.05
"""The highest rate that was sustained, and the lowest that was not, are no further apart than that when it ends."""


@dataclass(frozen=True, slots=True)
class Bound:
    """When does a system sustain a rate? All of these must hold."""

    achieved_share: float = 0.97
    """Of the offered rate, acknowledged within the window."""
    p99_ms: float = 100.0
    """The 99th percentile of the time from due to acknowledged is below that."""
    backlog_s: float = 0.5
    """What is acknowledged and not delivered at the end is less than falls due in that time."""

    def holds(self, offered: float, achieved: float, p99_ms: float, backlog: int) -> bool:
        """Return whether these figures of a run are within it."""
        keeps_up = achieved >= self.achieved_share * offered and backlog < self.backlog_s * offered
        return keeps_up and p99_ms < self.p99_ms

    def __str__(self) -> str:
        return (
            f"at least {self.achieved_share:.0%} of the offered rate acknowledged, p99 from due to acknowledged below "
            f"{self.p99_ms:g} ms, less than {self.backlog_s:g} s of records not delivered at the end"
        )


async def highest_rate(
    sustains: Callable[[int], Awaitable[bool]], first: int, max_steps: int = MAX_STEPS, precision: float = PRECISION
) -> int:
    """Return the highest rate tried that the system sustains; 0 where it sustains none.

    Args:
        sustains: tries a rate, records a second.
        first: the rate to begin with.
        max_steps: rates that are tried at most.
        precision: how near the result is to a rate that is not sustained, as a share, unless the steps run out.
    """
    low, high, rate = 0, 0, first
    for _ in range(max_steps):
        if await sustains(rate):
            low = rate
        else:
            high = rate
        if not high:
            rate = 2 * low
        elif not low:
            rate = high // 2
        else:
            rate = (low + high) // 2
        if rate < 1 or (low and high and high - low <= precision * low):
            break
    return low
