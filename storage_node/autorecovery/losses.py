"""`LossTracker`: when the lists of bookies call for an audit. Pure: told what is registered, it answers what to do.

A bookie that is missing for the first time is *lost*. Without a delay, or with more than one lost, its ledgers are to
be looked for at once. A single one is given time to come back: a restart should not set the cluster copying.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum


class Verdict(Enum):
    """What to do about the bookies that are lost at present."""

    NOTHING = "nothing"
    """Nobody is lost: an audit that was to come is not needed."""
    WAIT = "wait"
    """Audit after the delay, counted from when this was first said."""
    AUDIT = "audit"


class LossTracker:
    """Who was there, and who of them is lost and not yet audited."""

    def __init__(self, known: Collection[str]) -> None:
        self._known = set(known)
        self.lost: set[str] = set()

    def saw(self, available: Collection[str], delay_s: int) -> Verdict:
        """The lists changed: these bookies are registered now."""
        self.lost.difference_update(available)
        self._known.update(available)
        fresh = self._known.difference(available)
        self._known -= fresh  # counted once, until it has been seen again
        self.lost |= fresh
        if not self.lost:
            return Verdict.NOTHING
        return Verdict.AUDIT if delay_s == 0 or len(self.lost) > 1 else Verdict.WAIT

    def audited(self, lost: Collection[str]) -> None:
        """An audit that began when these were lost has published their ledgers."""
        self.lost.difference_update(lost)
