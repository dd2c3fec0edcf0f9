"""Lag: how far a query is behind in its logs, how it is found, and its form in the progress of a batch.

A lag is what lies between the end that a batch has reached and the end that the log has (`extents`). Its time is the
distance between transaction ids, which the source takes to be times. It needs no clock, so a log of past years has no
lag of years.

The source puts the lags into each batch's progress (`latestOffset`, `behind`); `LagListener` reads them from there.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.metrics.structured_logging import about
from dlspark.spark.errors import OffsetError
from dlspark.spark.source.driver_log_view import DriverLogView
from dlspark.spark.source.extents import Extent, extent
from dlspark.spark.source.offsets import BEHIND, Offsets
from metadata.foundation.errors import DistributedLogError

LAG_S: Final = 2.0
"""How long it may take to find how far a query is behind in one log; the batch waits for it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lag:
    """The records of one log that a reader has not read yet. `records` is None for a log whose writer did not count
    them, `milliseconds` where the records have no transaction id that could be found at a bounded cost."""

    records: int | None
    bytes: int
    milliseconds: int | None

    def reported(self) -> dict[str, int | None]:
        """Return the form in a query's progress."""
        return {"records": self.records, "bytes": self.bytes, "ms": self.milliseconds}

    @classmethod
    def of_report(cls, report: object) -> Lag | None:
        """Read back what `reported` gave; None for anything else."""
        if not isinstance(report, Mapping):
            return None
        records, stored, milliseconds = (_number(report.get(name)) for name in ("records", "bytes", "ms"))
        return None if stored is None else cls(records, stored, milliseconds)


NO_LAG: Final = Lag(0, 0, 0)


def lag_of(unread: Extent) -> Lag:
    """Return the lag of a reader that has read nothing of `unread`."""
    if unread.records == 0:
        return NO_LAG
    first, last = unread.first_txid, unread.last_txid
    return Lag(unread.records, unread.bytes, None if first is None or last is None else max(last - first, 0))


async def find_lags(views: Mapping[str, DriverLogView], reached: Offsets, newest: Offsets) -> dict[str, Lag | None]:
    """Return how far `reached` is behind `newest`, the ends that `views` gave.

    Logs that are not behind are left out; None is a log whose lag could not be found within `LAG_S`. Raises no
    DistributedLogError: a lag must not fail a query.
    """
    # Not before the log's first record: what was truncated is not behind, it is lost, and the next plan says so (I8).
    begins = {log: max(reached.get(log, DLSN.INITIAL), views[log].earliest()) for log in newest if log in views}
    asked = {log: begin for log, begin in begins.items() if begin < newest[log]}
    found = await asyncio.gather(*(_lag(views[log], log, begin, newest[log]) for log, begin in asked.items()))
    return {log: lag for log, lag in zip(asked, found, strict=True) if lag != NO_LAG}


async def _lag(view: DriverLogView, log: str, begin: DLSN, end: DLSN) -> Lag | None:
    try:
        return lag_of(await asyncio.wait_for(extent(view, begin, end), LAG_S))
    except (DistributedLogError, asyncio.TimeoutError) as error:
        _log.warning("log %s: how far the query is behind is not known: %s", log, error, extra=about(log=log))
        return None


def read_behind(latest: str | None) -> dict[str, Lag | None] | None:
    """Return the lags in one source's `latestOffset`; None where it is not of a log."""
    try:
        report = json.loads(latest or "null")
        reported = report.pop(BEHIND)
        logs = Offsets.from_stored(report)
    except (ValueError, AttributeError, KeyError, TypeError, OffsetError):
        return None  # Of another source, or of a batch before the first.
    if not isinstance(reported, Mapping):
        return None
    return {log: Lag.of_report(reported[log]) if log in reported else NO_LAG for log in logs}


def larger_lag(one: Lag | None, other: Lag | None) -> Lag | None:
    """Return the larger of two lags of one log; one that is not known counts as none."""
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda lag: (lag.records or 0, lag.bytes))


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
