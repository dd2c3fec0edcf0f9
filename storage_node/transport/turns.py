"""`Turns`: work of many that would keep the loop for long, shared out over its turns.

Work that is longer than its share joins the line. A turn of the loop serves those in front for TURN_S in all, each of
them for `share_s`, and leaves the rest to the next turns. So a connection that asks for little waits for one such turn,
however many there are that ask for much. Where hundreds ask for little at a time, those that find the turn's time spent
(`serve`) join a line, too: a turn stays short, and a new client is accepted between two of them. While there is a
line, all go by it: a loop finds those that are ready in the same order each time, and the first would never wait.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

TURN_S = 0.005
"""Seconds of one turn of the loop that all in line may take together."""
LEAST_SHARE_S = 0.0001
UNSURE_S = TURN_S / 2
"""While those served so close behind one another took less, it does not matter which of them were of the same turn."""
SAME_TURN_S = 0.00005
"""What is served within this time of what was served before may be of the same turn of the loop."""

Work: TypeAlias = Callable[[], None]
"""Goes on for about `share_s`; joins again if there is more to do. Must not raise."""


class Turns:
    """Which work that has more to do goes on next, on one loop? A line, of which each turn of the loop serves a part.

    Args:
        now: a clock, in seconds. A simulated one does not move during a turn, which then serves the whole line.
    """

    __slots__ = ("_began_at", "_line", "_scheduled", "_served_at", "_spent_at", "now", "share_s")

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._line: OrderedDict[Work, None] = OrderedDict()
        self._scheduled = False
        self._spent_at: float | None = None
        """When those that were served without standing in line have had TURN_S of this turn; None: they have had little
        so far."""
        self._began_at = self._served_at = -math.inf
        """When the first of those that followed one another closely began, and the last one ended."""
        self.share_s = TURN_S
        """Seconds that each work may take of one turn: less, the more work is in line."""

    def __len__(self) -> int:
        return len(self._line)

    def serve(self, work: Work) -> None:
        """Call `work` now, where this turn of the loop has time left and no line waits; else in one of the next."""
        if self._line or not self._has_time():
            self.join(work)
        else:
            work()
            if self._spent_at is None:
                self._served_at = self.now()

    def join(self, work: Work) -> None:
        """Have `work` called in one of the next turns, behind what joined before."""
        self._line[work] = None
        self._share()
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._serve_line)

    def _has_time(self) -> bool:
        """Return whether this turn of the loop has time left for one that does not stand in line."""
        now = self.now()
        if self._spent_at is None:
            # To hear of the turn's end costs one more turn, and the kernel one more question: not for each frame of a
            # connection that is alone, nor of some that are answered together.
            if now - self._served_at >= SAME_TURN_S:
                self._began_at = now
                return True
            if now - self._began_at < UNSURE_S:
                return True
            self._spent_at = self._began_at + TURN_S
            asyncio.get_running_loop().call_soon(self._begin_turn)
        return now < self._spent_at

    def _begin_turn(self) -> None:
        self._spent_at = None
        self._served_at = -math.inf

    def leave(self, work: Work) -> None:
        """Have it not called any more. Idempotent."""
        self._line.pop(work, None)
        self._share()

    def _serve_line(self) -> None:
        self._scheduled = False
        end = self.now() + TURN_S
        try:
            for _ in range(len(self._line)):
                if not self._line:
                    break
                work, _ = self._line.popitem(last=False)
                work()
                if self.now() >= end:
                    break
        finally:  # a mistake in one's work must not keep the others waiting for good
            self._share()
            if self._line and not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._serve_line)

    def _share(self) -> None:
        self.share_s = max(TURN_S / max(len(self._line), 1), LEAST_SHARE_S)
