"""What Spark's planner pushed down to one read of a catalog's table, and what can be said of its rows without reading.

The Java side sends filters as JSON, `["=", "segment", 3]`; here they become Spark's own classes again and go the way
of all filters (`dlspark.spark.source.filters`). What is answered is exact, or it is not answered, and Spark reads the
rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.vector_decoding import MAX_TIMESTAMP_MS
from dlspark.spark.catalog.tables import Json
from dlspark.spark.errors import OptionError
from dlspark.spark.schema_version import SchemaVersion
from dlspark.spark.source.driver import SourceDriver
from dlspark.spark.source.driver_log_view import DriverLogView
from dlspark.spark.source.extents import extent
from dlspark.spark.source.filters import Bounds, push
from dlspark.spark.source.log_spans import Take
from dlspark.spark.source.schema import NEVER_NULL
from metadata.foundation.errors import InvariantViolation, of_class

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST, _LAST = (
    (end.replace(tzinfo=timezone.utc) - _EPOCH) // timedelta(microseconds=1) for end in (datetime.min, datetime.max)
)
"""The times that Python has, in microseconds since the epoch."""
_COMPARISONS: Final[dict[str, Callable[[tuple[str, ...], object], Filter]]] = {
    "=": EqualTo,
    "<=>": EqualNullSafe,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
    "<": LessThan,
    "<=": LessThanOrEqual,
}
_PART: Final = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")
_LOG_ORDERS: Final = (
    (),
    ("transaction_id",),
    ("timestamp",),
    ("segment",),
    ("segment", "entry"),
    ("segment", "entry", "slot"),
)
"""By what rows may be sorted so that the first ones are the log's first: none of these decreases along a log."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """What was pushed down: bounds that rows must satisfy, and how many of them will do."""

    bounds: Bounds
    take: Take | None
    seen: Mapping[str, object]
    """What the query has seen of logs before this scan (`dlspark.spark.source.query_snapshot`)."""
    planned_in: int | None = None
    """The execution that asks, where its plan may be run by others later (`dlspark.spark.source.kept_plan`)."""
    version: SchemaVersion | None = None
    """The version of what the log declares, of whose columns a typed frame has some."""
    hints: Sequence[Filter] = ()
    """Filters on a typed frame, of which Spark keeps all."""

    @classmethod
    def of(cls, words: Json) -> Pushed:
        """Read what the Java side sent: filters that `exact` accepted, and as hints those that Spark sees to itself."""
        kept, hints = filters_of(_list(words, "filters")), hints_of(words)
        version = SchemaVersion.of_json(words.get("declared"))
        # A column of a log's own may be called as one of records is: it is another one.
        left = push(kept)[1] if version is None else kept
        if left:
            raise InvariantViolation(f"Spark relies on these filters being kept exactly, and they are not: {left}")
        bounds = Bounds() if version is not None else push([*kept, *hints])[0]
        limit, order = words.get("limit"), words.get("order", [])
        columns, seen = (
            tuple(order) if isinstance(order, list) else (),
            of_class(words.get("seen", {}), dict, "what was seen is an object"),
        )
        found = words.get("planned_in")
        planned_in = None if found is None else of_class(found, int, "an execution is a number")
        if version is not None:
            take = None if columns or not isinstance(limit, int) else Take(limit)
            return cls(bounds, take, seen, planned_in, version, hints)
        if not isinstance(limit, int) or columns not in _LOG_ORDERS:
            return cls(bounds, None, seen, planned_in)  # in any other order the first rows may lie anywhere in the log
        return cls(bounds, Take(limit, last=words.get("descending") is True, timed="timestamp" in columns), seen)


def filters_of(said: Sequence[Sequence[object]]) -> list[Filter]:
    """Make filters from their words."""
    return [_filter(*words) for words in said]


def hints_of(words: Json) -> list[Filter]:
    """Return the filters that Spark sees to itself, of what the Java side sent."""
    return filters_of(_list(words, "hints"))


def exact(said: Sequence[Sequence[object]]) -> list[bool]:
    """Return which of the filters the source keeps exactly, so that Spark need not look at the rows again."""
    filters = filters_of(said)
    _, left = push(filters)
    return [not any(one is other for other in left) for one in filters]


def _filter(comparison: object, column: object, value: object = None) -> Filter:
    attribute = _path(str(column))
    if comparison == "not null":
        return IsNotNull(attribute)
    if comparison == "null":
        return IsNull(attribute)
    if comparison == "in" and isinstance(value, list):
        return In(attribute, tuple(_value(one) for one in value))
    return _COMPARISONS[str(comparison)](attribute, _value(value))


def _path(column: str) -> tuple[str, ...]:
    """Return the names that Spark's text of a column has: dots are between them, but for those within backticks."""
    return tuple(quoted.replace("``", "`") if quoted else plain for quoted, plain in _PART.findall(column))


def _value(value: object) -> object:
    if isinstance(value, dict):
        if "decimal" in value:
            return Decimal(value["decimal"])
        return _time(value["us"]) if "us" in value else _date(value["days"])
    return value


def _date(days: int) -> date:
    """Return a day; one beyond Python's years is the first or the last that there is."""
    return date.fromordinal(min(max(days + _EPOCH.toordinal(), 1), date.max.toordinal()))


def _time(microseconds: int) -> datetime:
    """Return a time; one beyond Python's years is the first or the last that there is, which compares with rows just as
    it does: none is before 1970, and the last microsecond of the year 9999 is behind the last row's whole millisecond.
    """
    if microseconds < _FIRST:
        return datetime.min.replace(tzinfo=timezone.utc)
    if microseconds > _LAST:
        return datetime.max.replace(tzinfo=timezone.utc)
    return _EPOCH + timedelta(microseconds=microseconds)


@dataclass(frozen=True, slots=True)
class RowsOfLog:
    """The rows of one read that are of one log: user records from `begin` to before `end`."""

    view: DriverLogView
    begin: DLSN
    end: DLSN

    async def records(self) -> int | None:
        """Return how many there are, by metadata and at most two entries; None where the writer did not count."""
        if self.begin >= self.end:
            return 0
        try:
            return await self.view.count(self.begin, self.end)
        except OptionError:
            return None

    async def ends(self, count: int) -> tuple[_EdgeRecord, _EdgeRecord]:
        """Return the first and the last of the rows, which are `count`, one at least."""
        # Segments, and transaction ids, never decrease along a log: these two have the extremes.
        first, last = [await self.view.record_at(self.begin, self.end, number) for number in (0, count - 1)]
        return _EdgeRecord(*first), _EdgeRecord(*last)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one read, by log."""

    logs: Sequence[RowsOfLog]

    @classmethod
    async def of(cls, driver: SourceDriver, bounds: Bounds) -> Rows:
        """Return where the query of an open driver begins and ends in its logs. Raises what planning it raises."""
        start, end = await driver.ends()
        views = (await driver.views()).values()
        return cls([RowsOfLog(view, *await driver.range(view, start, end, bounds)) for view in views])

    async def statistics(self) -> dict[str, int | None]:
        """Return what Spark weighs plans by: stored bytes of one replica, estimated, and records, None where not
        counted."""
        found = [await extent(log.view, log.begin, log.end) for log in self.logs]
        records = [one.records for one in found]
        return {
            "bytes": sum(one.bytes for one in found),
            "rows": None if None in records else sum(filter(None, records)),
        }

    async def summary(self, functions: Sequence[Json]) -> list[int | None] | None:
        """Return the values of aggregates over all rows, or None where they are not known exactly without reading.

        A time is given in microseconds since the epoch; the least and greatest of no rows are None.
        """
        if not all(_known(function) for function in functions):
            return None
        extremes = any(function["function"] != "count" for function in functions)
        total, ends = 0, list[_EdgeRecord]()
        for log in self.logs:
            count = await log.records()
            if count is None:
                return None
            total += count
            if count and extremes:
                ends += await log.ends(count)
        timed = any(one.get("column") == "timestamp" for one in functions)
        if timed and any(end.txid > MAX_TIMESTAMP_MS for end in ends):
            return None  # the last ones have no timestamp, and which is the greatest that there is must be read
        return [_aggregate(function, total, ends) for function in functions]


@dataclass(frozen=True, slots=True)
class _EdgeRecord:
    """What aggregates need of the first or the last of a log's rows."""

    segment: int
    txid: int

    def value(self, column: str) -> int:
        return {"segment": self.segment, "transaction_id": self.txid, "timestamp": self.txid * 1000}[column]


def _known(function: Json) -> bool:
    column = function.get("column")
    if function["function"] == "count":
        return column is None or column in NEVER_NULL
    return column in ("segment", "transaction_id", "timestamp")


def _aggregate(function: Json, count: int, ends: Sequence[_EdgeRecord]) -> int | None:
    if function["function"] == "count":
        return count
    values = [end.value(str(function["column"])) for end in ends]
    return (min if function["function"] == "min" else max)(values, default=None)


def _list(words: Json, name: str) -> list[list[object]]:
    found = words.get(name, [])
    return found if isinstance(found, list) else []
