"""What passes from one region to another, without I/O: `Way`, a direction with its faults, and `DelayLine`, the chunks
of one connection that are under way in one direction.

A delay line is to a connection what a long cable is: every chunk comes out so much later than it went in, in order, and
any number of them are in it at a time, up to its capacity. So a delay lowers no throughput but by that bound: with 16
MiB and 10 ms one direction of one connection carries 1.6 GB a second.

A closed way is what a lost direction is to TCP: nothing comes out, nothing is said, and what was sent arrives once the
way opens, because TCP sends again. What goes in is bounded by the capacity; then the sender's socket fills up.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import Final

from metadata.foundation.errors import CallerError

CAPACITY_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Way:
    """How does what `source` sends reach `target`?"""

    source: str
    target: str
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    """A chunk takes up to so much longer, and never overtakes another of its connection."""
    opened: bool = True

    def __post_init__(self) -> None:
        if self.delay_ms < 0 or self.jitter_ms < 0:
            raise CallerError(f"a delay of {self.delay_ms} ms, jitter {self.jitter_ms} ms, cannot be")

    def passage_s(self, rng: random.Random) -> float:
        """Return how long the next chunk takes."""
        return (self.delay_ms + (rng.uniform(0, self.jitter_ms) if self.jitter_ms else 0.0)) / 1000


class DelayLine:
    """The chunks of one direction of one connection. None is its end after an error; an empty chunk is its end."""

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._capacity = capacity_bytes
        self._held: deque[tuple[float, bytes | None]] = deque()
        self._last_due = 0.0
        self.held_bytes = 0

    @property
    def has_room(self) -> bool:
        """False from the chunk on that reached the capacity, until one has left."""
        return self.held_bytes < self._capacity

    def put(self, chunk: bytes | None, now: float, passage_s: float) -> None:
        """Take a chunk that goes in at `now` (seconds) and takes so long."""
        self._last_due = max(self._last_due, now + passage_s)
        self._held.append((self._last_due, chunk))
        self.held_bytes += len(chunk or b"")

    def next_due(self) -> float | None:
        """Return when the first chunk comes out; None where the line is empty."""
        return self._held[0][0] if self._held else None

    def take(self) -> bytes | None:
        """Take the first chunk out; it must be there."""
        _, chunk = self._held.popleft()
        self.held_bytes -= len(chunk or b"")
        return chunk
