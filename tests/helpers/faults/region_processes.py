"""`RegionClient`: what a test hears of a client process that is in a region, a writer or a reader."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from dlspark.core.codec.dlsn import DLSN
from helpers.faults.verdict import Outcomes
from helpers.fork_server import Child
from helpers.waiting import wait_until


class RegionClient:
    """A process in a region, and what it has said."""

    def __init__(self, child: Child, region: str) -> None:
        self.child = child
        self.region = region
        self.outcomes = Outcomes()
        self.times: list[float] = []
        """Of acknowledgements, or of records seen."""
        self.seen: list[int] = []

    def listen(self) -> None:
        while not self.child.lines.empty():
            line = self.child.lines.get()
            word, *rest = (line or "ended").split(" ")
            if word == "ok":
                self.outcomes.acknowledged[int(rest[0])] = DLSN.parse(rest[1])
                self.times.append(float(rest[2]))
            elif word == "saw":
                self.seen.append(int(rest[0]))
                self.times.append(float(rest[1]))
            else:
                self.outcomes.take(line or "ended")

    def said(self, word: str) -> bool:
        self.listen()
        return any(note.partition(" ")[0] == word for note in self.outcomes.notes)

    def until_said(self, word: str) -> None:
        wait_until(lambda: self.said(word), lambda: f"{self.child.name}: {self.outcomes.notes[-5:]}")

    def has_after(self, moment: float) -> bool:
        self.listen()
        return bool(self.times) and self.times[-1] > moment


def longest_gap_s(times: Sequence[float], begin: float) -> float:
    """Return the longest time without any of them, from `begin` on."""
    late = [begin, *sorted(moment for moment in times if moment > begin)]
    return max((after - before for before, after in itertools.pairwise(late)), default=0.0)
