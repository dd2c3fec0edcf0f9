"""`SlotRolls`: when a segment ends because of cold storage, where a log has that.

A record can leave for a file only once its segment is completed. So with `coldStoragePath` set, a segment that has
records ends with the log's slot (`dlspark.core.settings.cold`), also where nobody writes to it any more. A segment
without records goes on: a quiet log makes no segments.

The moment is taken from the wall clock when a segment begins, and then kept by the event loop's: a clock that is set
meanwhile moves one slot's end, and no other. It must never end a segment by itself: it asks the writer, which rolls, or
is asked again a little later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from dlspark.core.settings.cold import slot_of, slot_start_ms
from dlspark.core.settings.settings import Settings
from storage_node.edge import Clock

AGAIN_S: Final = 1.0
"""After which a roll that was due and did not begin (another step is under way, no metadata store) is tried again."""


class SlotRolls:
    """The slots of one writer's log. `begin` with each segment, `stop` at the end.

    Args:
        name: the log's, which decides when its slots begin.
        clock: the wall clock.
        settings: with the length of slots.
        on_end: called when a slot ends; returns whether that is settled, so that the next slot's end is waited for.
    """

    def __init__(self, name: str, clock: Clock, settings: Settings, on_end: Callable[[], bool]) -> None:
        self._name = name
        self._clock = clock
        self._slot_s = settings.cold_slot_s
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._ends: float | None = None

    @property
    def ended(self) -> bool:
        """Whether the slot is over in which the segment began. Cheap: it is asked with every record."""
        return self._ends is not None and self._loop.time() >= self._ends

    def begin(self) -> None:
        """Wait for the end of the slot that is now."""
        self._ends = None
        if self._slot_s and not self._stopped:
            now_ms = self._clock.now_ms()
            end_ms = slot_start_ms(self._name, self._slot_s, slot_of(self._name, self._slot_s, now_ms) + 1)
            self._ends = self._loop.time() + (end_ms - now_ms) / 1000
            self._wait(self._ends)
        elif self._timer is not None:
            self._timer.cancel()

    def put_off(self) -> None:
        """Have a slot that is over end a little later: the segment could not be ended now."""
        if self.ended:
            self._wait(self._loop.time() + AGAIN_S)
            self._ends = self._loop.time() + AGAIN_S

    def use_settings(self, settings: Settings) -> None:
        """Use `settings`: where the length of slots has changed, from now on."""
        if settings.cold_slot_s != self._slot_s:
            self._slot_s = settings.cold_slot_s
            self.begin()

    def stop(self) -> None:
        """Ask for nothing any more. Idempotent."""
        self._stopped = True
        self._ends = None
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(moment, self._look)

    def _look(self) -> None:
        if not self.ended:
            return  # another segment has begun, and waits for its own end
        if self._on_end():
            self.begin()
        else:
            self._wait(self._loop.time() + AGAIN_S)
