"""Filters that Spark offers to push down, as bounds on logs, segments, entries and transaction ids.

Only what the bounds express exactly is kept from Spark; every other filter goes back and Spark evaluates it. The bounds
choose segments and entries by position, which is exact because transaction ids never decrease in a log (writers check
it). `timestamp` is the transaction id in milliseconds, so a bound on it is one on the id, within the years that have a
timestamp at all: rows without one satisfy no comparison.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from dlspark.core.codec.vector_decoding import MAX_TIMESTAMP_MS
from dlspark.spark.source.schema import NEVER_NULL

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NUMBERS = ("segment", "entry", "transaction_id")
_RANGES = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The rows that filters leave: `logs` by name (None: any); segments, txids and entries of each segment from `min_`
    to below `end_` (None: open)."""

    logs: frozenset[str] | None = None
    min_segment: int = 0
    end_segment: int | None = None
    min_txid: int = 0
    end_txid: int | None = None
    min_entry: int = 0
    end_entry: int | None = None

    @property
    def empty(self) -> bool:
        """No row at all can satisfy these."""
        return (
            (self.logs is not None and not self.logs)
            or (self.end_segment is not None and self.end_segment <= self.min_segment)
            or (self.end_txid is not None and self.end_txid <= self.min_txid)
            or (self.end_entry is not None and self.end_entry <= self.min_entry)
        )

    @property
    def scattered(self) -> bool:
        """Whether the rows of a log may lie in several ranges: some entries of each of several segments."""
        some = self.min_entry > 0 or self.end_entry is not None
        return some and self.end_segment != self.min_segment + 1

    def admits(self, log: str) -> bool:
        """Return whether rows of this log may satisfy the filters."""
        return self.logs is None or log in self.logs

    def _logs(self, names: frozenset[str]) -> Bounds:
        return replace(self, logs=names if self.logs is None else self.logs & names)

    def _segments(self, low: int | None, end: int | None) -> Bounds:
        return replace(self, min_segment=_higher(self.min_segment, low), end_segment=_lower(self.end_segment, end))

    def _txids(self, low: int | None, end: int | None) -> Bounds:
        return replace(self, min_txid=_higher(self.min_txid, low), end_txid=_lower(self.end_txid, end))

    def _entries(self, low: int | None, end: int | None) -> Bounds:
        return replace(self, min_entry=_higher(self.min_entry, low), end_entry=_lower(self.end_entry, end))

    def _numbers(self, column: str, low: int | None, end: int | None) -> Bounds:
        if column == "segment":
            return self._segments(low, end)
        return self._entries(low, end) if column == "entry" else self._txids(low, end)


def push(filters: Iterable[Filter]) -> tuple[Bounds, list[Filter]]:
    """Return the bounds that `filters` (all must hold) put on rows, and the filters that Spark still has to evaluate.

    A list of numbers (`IN`) does both: its lowest and highest are bounds, and Spark looks for the ones between.
    """
    bounds, left = Bounds(), []
    for candidate in filters:
        narrowed = _narrow(bounds, candidate)
        if narrowed is None:
            bounds = _around(bounds, candidate)
            left.append(candidate)
        else:
            bounds = narrowed
    return bounds, left


def _around(bounds: Bounds, candidate: Filter) -> Bounds:
    """Narrow `bounds` to the rows among which all are that a filter wants, if that can be said."""
    if not isinstance(candidate, In) or len(candidate.attribute) != 1 or candidate.attribute[0] not in _NUMBERS:
        return bounds
    # A value of another type (or a null) might be wanted in a way that no bound expresses: then all rows are.
    wanted = [value for value in candidate.value if isinstance(value, int) and not isinstance(value, bool)]
    if not wanted or len(wanted) != len(candidate.value):
        return bounds
    return bounds._numbers(candidate.attribute[0], min(wanted), max(wanted) + 1)


def _narrow(bounds: Bounds, candidate: Filter) -> Bounds | None:
    """Return `bounds` with the filter in it, or None if it cannot be expressed exactly."""
    if isinstance(candidate, IsNotNull):
        if candidate.attribute == ("timestamp",):
            return bounds._txids(0, MAX_TIMESTAMP_MS + 1)
        # Of a column that is never null it holds for each row, so nothing is left to evaluate.
        return bounds if len(candidate.attribute) == 1 and candidate.attribute[0] in NEVER_NULL else None
    if isinstance(candidate, In):
        names = candidate.value
        if candidate.attribute == ("log",) and all(isinstance(name, str) for name in names):
            return bounds._logs(frozenset(names))
        return None
    if not isinstance(candidate, _RANGES) or len(candidate.attribute) != 1:
        return None
    column, value = candidate.attribute[0], candidate.value
    if column == "log" and isinstance(value, str) and isinstance(candidate, (EqualTo, EqualNullSafe)):
        return bounds._logs(frozenset({value}))
    if column in _NUMBERS and isinstance(value, int) and not isinstance(value, bool):
        return bounds._numbers(column, *_range(candidate, value, value))
    if column == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        # Timestamps have whole milliseconds. A bound between two of them is rounded to the side that keeps it exact.
        since = value - _EPOCH
        micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        low, end = _range(candidate, micros // 1000, -(-micros // 1000))
        return bounds._txids(low, end)._txids(0, MAX_TIMESTAMP_MS + 1)
    return None


def _range(candidate: Filter, floor: int, ceiling: int) -> tuple[int | None, int | None]:
    """Return the first number that passes and the first that does not any more, in whole numbers, for a value between
    `floor` and `ceiling`."""
    if isinstance(candidate, GreaterThan):
        return floor + 1, None
    if isinstance(candidate, GreaterThanOrEqual):
        return ceiling, None
    if isinstance(candidate, LessThan):
        return None, ceiling
    if isinstance(candidate, LessThanOrEqual):
        return None, floor + 1
    return ceiling, floor + 1


def _higher(one: int, other: int | None) -> int:
    return one if other is None else max(one, other)


def _lower(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
