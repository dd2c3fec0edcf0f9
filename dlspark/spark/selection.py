"""What a source query reads and from where to where, as its options say it: checked, and free of any I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from dlspark.spark.errors import OffsetError, OptionError
from dlspark.spark.offsets import Bound, Place, parse_places
from dlspark.spark.options import Options, Scope
from metadata.logs import LogStore

_STARTS = ("startingOffsets", "startingTimestamp", "startingTransactionId")
_ENDS = ("endingOffsets", "endingTimestamp", "endingTransactionId")


@dataclass(frozen=True, slots=True)
class AtTxid:
    """The first record whose transaction id is this one or higher. `option` is the one that asked for it."""

    txid: int
    option: str


@dataclass(frozen=True, slots=True)
class Everywhere:
    """The same bound for every log."""

    bound: Bound


@dataclass(frozen=True)
class PerLog:
    """A place for each log by name. `option` is the one that asked for it."""

    places: Mapping[str, Place]
    option: str


Where: TypeAlias = "AtTxid | Everywhere | PerLog"


@dataclass(frozen=True)
class Selection:
    """Which logs: the names, or a pattern that whole names must match."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def selects(self, name: str) -> bool:
        """Whether a log of this name is read."""
        return name in self.names if self.pattern is None else re.fullmatch(self.pattern, name) is not None

    def of(self, existing: Iterable[str]) -> list[str]:
        """The selected ones among the names of existing logs; sorted."""
        return sorted(name for name in existing if self.selects(name))


@dataclass(frozen=True)
class SourceQuery:
    """All that the options of one source query say."""

    uri: str
    selection: Selection
    start: Where
    end: Where
    fail_on_data_loss: bool
    min_partitions: int
    max_bytes_per_partition: int
    max_records_per_trigger: int | None

    @classmethod
    def of(cls, options: Options) -> SourceQuery:
        """Read the options; OptionError where they contradict each other."""
        query = cls(
            uri=options.uri,
            selection=selection_of(options),
            start=_where(options, _STARTS),
            end=_where(options, _ENDS),
            fail_on_data_loss=options.flag("failOnDataLoss"),
            min_partitions=options.integer("minPartitions") or 1,
            max_bytes_per_partition=options.integer("maxBytesPerPartition") or 1,
            max_records_per_trigger=options.integer("maxOffsetsPerTrigger"),
        )
        _check_names(query.selection, query.start)
        if options.scope is Scope.SOURCE_BATCH:
            _check_names(query.selection, query.end)
            _check_order(query.start, query.end)
        return query


def selection_of(options: Options) -> Selection:
    """Which logs the options name. Raises OptionError unless they do, in exactly one way."""
    one = options.one_log()
    listed, pattern = options.text("subscribe"), options.text("subscribePattern")
    given = [
        words
        for words, value in (("subscribe", listed), ("subscribePattern", pattern), ('log / load("name")', one))
        if value is not None
    ]
    if len(given) != 1:
        what = "No log to read is named" if not given else f"The logs to read are named {len(given)} ways: {given}"
        raise OptionError(what, advice='Give exactly one of subscribe, subscribePattern, log or load("name")')
    if pattern is not None:
        return Selection(pattern=_checked_pattern(pattern))
    names = [one] if one is not None else [name.strip() for name in (listed or "").split(",")]
    if len(set(names)) != len(names):
        raise OptionError(f"Option subscribe names a log twice: {listed!r}", advice="Name each log once")
    for name in names:
        LogStore.validate_name(name)
    return Selection(names=tuple(sorted(names)))


def _checked_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError(
            f"Option subscribePattern is not a regular expression: {pattern!r} ({error})",
            advice="Correct it; it must match whole names, for example flights-.*",
        ) from None
    return pattern


def _where(options: Options, names: tuple[str, str, str]) -> Where:
    offsets, timestamp, txid = names
    given = [name for name in names if options.given(name)]
    if len(given) > 1:
        raise OptionError(
            f"{' and '.join(given)} contradict each other: each names a place of its own", advice="Keep one of them"
        )
    if options.given(timestamp):
        return AtTxid(options.instant_ms(timestamp) or 0, timestamp)
    if options.given(txid):
        return AtTxid(options.integer(txid) or 0, txid)
    places = parse_places(offsets, options.text(offsets) or Bound.EARLIEST.value)
    return Everywhere(places) if isinstance(places, Bound) else PerLog(places, offsets)


def _check_names(selection: Selection, where: Where) -> None:
    """Positions by log must fit the logs by name: none left out, none too many (a pattern matches later)."""
    if not isinstance(where, PerLog) or selection.pattern is not None:
        return
    missing = [name for name in selection.names if name not in where.places]
    foreign = [name for name in where.places if name not in selection.names]
    if missing:
        raise OffsetError(
            f"Option {where.option} has no position for {', '.join(missing)}",
            advice="Add one for each log that is read: a position, earliest or latest",
        )
    if foreign:
        raise OffsetError(
            f"Option {where.option} has a position for {', '.join(foreign)}, which the query does not read",
            advice="Remove it, or read that log too",
        )


def _check_order(start: Where, end: Where) -> None:
    if isinstance(start, AtTxid) and isinstance(end, AtTxid) and start.txid > end.txid:
        raise OptionError(
            f"{start.option} ({start.txid}) lies after {end.option} ({end.txid})",
            advice="Exchange them; the end is exclusive",
        )
    if isinstance(start, PerLog) and isinstance(end, PerLog):
        for log, place in start.places.items():
            stop = end.places.get(log)
            if isinstance(place, tuple) and isinstance(stop, tuple) and place > stop:
                raise OffsetError(
                    f"{start.option} lies after {end.option}: {place} > {stop}",
                    advice="Exchange them; the end is exclusive",
                    log=log,
                )
