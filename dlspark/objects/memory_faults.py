"""What goes wrong with an object store in memory: drawn by a seed, or ordered by a test for its next call.

Only what happens to real ones is here. A fault of a change says what became of the change (the column `told` is what
the caller gets):

    REFUSED       nothing was done              told: not applied (a 503, a refused connection)
    CUT           nothing was done              told: outcome unknown (the connection went before the request came)
    ANSWER_LOST   it was done                   told: outcome unknown
    LATE          it is done some requests on   told: outcome unknown (it lies in a queue somewhere)
    TORN          a part of the bytes is there  told: outcome unknown (no store should; readers-back must notice)

and of a read: REFUSED and CUT (told: unavailable), SHORT (the object seems to end early), FLIPPED (one bit is wrong).
No clock and no randomness but the seed's: the same calls in the same order meet the same faults.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Mapping
from enum import Enum
from typing import Final


class StoreCall(str, Enum):
    """Which request is a fault of?"""

    PUT = "put"
    BEGIN = "begin"
    PART = "part"
    COMMIT = "commit"
    DELETE = "delete"
    ABORT = "abort"
    HEAD = "head"
    READ = "read"
    LIST = "list"
    UPLOADS = "uploads"


class ObjectFault(str, Enum):
    """What goes wrong? See the module."""

    REFUSED = "refused"
    CUT = "cut"
    ANSWER_LOST = "answer lost"
    LATE = "late"
    TORN = "torn"
    SHORT = "short"
    FLIPPED = "flipped"


_CHANGE: Final = (ObjectFault.REFUSED, ObjectFault.CUT, ObjectFault.ANSWER_LOST, ObjectFault.LATE)
_READ: Final = (ObjectFault.REFUSED, ObjectFault.CUT)
POSSIBLE: Final[Mapping[StoreCall, tuple[ObjectFault, ...]]] = {
    StoreCall.PUT: (*_CHANGE, ObjectFault.TORN),
    StoreCall.BEGIN: _CHANGE[:3],
    StoreCall.PART: _CHANGE[:3],
    StoreCall.COMMIT: (*_CHANGE, ObjectFault.TORN),
    StoreCall.DELETE: _CHANGE,
    StoreCall.ABORT: _CHANGE,
    StoreCall.HEAD: _READ,
    StoreCall.READ: (*_READ, ObjectFault.SHORT, ObjectFault.FLIPPED),
    StoreCall.LIST: _READ,
    StoreCall.UPLOADS: _READ,
}
"""Which faults a call can meet. A part or an upload that comes late is found by nobody: that is ANSWER_LOST."""
MOST_REQUESTS_LATE: Final = 30


class ObjectFaults:
    """Which fault does the next request meet?

    Args:
        rng: draws; a seeded one replays a run.
        rates: how often each fault comes, of 1, where a call can meet it; none that is not named.
    """

    def __init__(self, rng: random.Random, rates: Mapping[ObjectFault, float] | None = None) -> None:
        self.rng = rng
        self._rates = dict(rates or {})
        self._ordered: dict[StoreCall, deque[ObjectFault]] = defaultdict(deque)
        self.met = 0
        """How many faults there were."""

    def order(self, call: StoreCall, *faults: ObjectFault) -> None:
        """Have the next calls of a kind meet these faults, one each."""
        wrong = [one.value for one in faults if one not in POSSIBLE[call]]
        if wrong:
            raise ValueError(f"{call.value} cannot meet: {', '.join(wrong)}")
        self._ordered[call].extend(faults)

    def stop(self) -> None:
        """Let everything go well from now on, what was ordered as well."""
        self._rates.clear()
        self._ordered.clear()

    def draw(self, call: StoreCall) -> ObjectFault | None:
        """Return what this call meets."""
        fault = self._ordered[call].popleft() if self._ordered[call] else self._drawn(call)
        self.met += fault is not None
        return fault

    def _drawn(self, call: StoreCall) -> ObjectFault | None:
        for fault in POSSIBLE[call]:
            # Nothing is drawn for a rate of 0, so that a fault that is added changes no run without it.
            rate = self._rates.get(fault, 0.0)
            if rate and self.rng.random() < rate:
                return fault
        return None
