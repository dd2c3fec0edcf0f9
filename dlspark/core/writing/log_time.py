"""`LogTime`: the time by which a log forgets silent producers.

A host's clock may be a week ahead, for an hour or for ever, and a producer that is forgotten too early is refused
(I19). So the time of a log goes on where its last owner left it, and then as its present owner measures it, without
looking at the clock again. While nobody wrote it may have stood still: how long that was only the clock can tell, and
it is believed up to a limit.
"""

from __future__ import annotations

from storage_node.edge import Clock


class LogTime:
    """One owner's view of it."""

    def __init__(self, clock: Clock, newest_ms: int | None, most_ms: int) -> None:
        """`newest_ms`: when a producer of the log was heard of last; None where none is known, and no time is needed.
        `most_ms`: how much later than that it may be now."""
        now_ms = clock.now_ms()
        self._began_ms = now_ms if newest_ms is None else max(newest_ms, min(now_ms, newest_ms + most_ms))
        self._clock = clock
        self._began_s = clock.elapsed_s()

    def now_ms(self) -> int:
        """Milliseconds since the epoch, or fewer."""
        return self._began_ms + int((self._clock.elapsed_s() - self._began_s) * 1000)
