"""`SlowOperations`: operations that take longer than a threshold: counted, and told in the log, though not all of them.

When something is slow, much is: one line a kind in WARN_INTERVAL_S, with how many others there were since the last.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Literal, TypeAlias

from dlspark.core.metrics.cells import Counts
from dlspark.core.metrics.logs import about

_log = logging.getLogger(__name__)

WARN_INTERVAL_S = 10.0
Slow: TypeAlias = Literal["metadata", "write", "read"]


class SlowOperations:
    """Of one namespace."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._next: dict[str, float] = {}
        self._untold: dict[str, int] = {}

    def tell(
        self,
        kind: Slow,
        seconds: float,
        threshold_ms: int,
        what: str,
        *,
        log: str | None = None,
        segment: int | None = None,
        ledger: int | None = None,
        path: str | None = None,
    ) -> None:
        """`what` took so long, which is above the threshold."""
        self._counts.values[kind] += 1
        now = asyncio.get_running_loop().time()
        if now < self._next.get(kind, now):
            self._untold[kind] = self._untold.get(kind, 0) + 1
            return
        self._next[kind] = now + WARN_INTERVAL_S
        others = self._untold.pop(kind, 0)
        more = f"; {others} more were slow since this was last told" if others else ""
        milliseconds = round(seconds * 1000)
        extra = about(log=log, segment=segment, ledger=ledger, path=path)
        extra |= {"kind": kind, "duration_ms": milliseconds, "threshold_ms": threshold_ms}
        where = f"log {log}: " if log is not None else ""
        _log.warning("%s%s took %d ms, more than %d ms%s", where, what, milliseconds, threshold_ms, more, extra=extra)
