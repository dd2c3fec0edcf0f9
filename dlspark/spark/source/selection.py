"""The logs that a source query reads, and from where to where, as its options say it: checked, and free of any I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from dlspark.core.codec.dlsn import DLSN
from dlspark.spark.errors import OffsetError, OptionError
from dlspark.spark.options.column_choice import ColumnChoice
from dlspark.spark.options.proxies import ProxyChoice
from dlspark.spark.options.query_options import Options, read_as
from dlspark.spark.options.registry import Scope
from dlspark.spark.source.offsets import (
    GivenOffset,
    LogIdentity,
    NamedOffset,
    check_one,
    parse_by_log,
    parse_json,
    parse_offsets,
)
from metadata.distributedlog.log_names import InvalidLogNameError
from metadata.distributedlog.logs import LogStore
from metadata.foundation.settings import did_you_mean, near_word, shown

_STRATEGY = "startingOffsetsByTimestampStrategy"
_STRATEGIES = ("error", "latest")
_LITERAL = re.compile(r"\A(?:[^\\.^$*+?{}\[\]|()]|\\[^\w\s])*")
"""The beginning of a regular expression that stands for itself; it may be empty."""
_OUTAGE = "bkc.outagewaitmillis"
_REGION = "bkc.region"
"""The ledger client's setting that option `outageTimeout` is, as Spark hands keys over."""


@dataclass(frozen=True, slots=True)
class _Side:
    """The options that say where to begin, or where to stop; at most one of them is given."""

    offsets: str
    timestamp: str
    timestamps: str
    txid: str
    txids: str

    @property
    def names(self) -> tuple[str, ...]:
        return self.offsets, self.timestamp, self.timestamps, self.txid, self.txids


_START = _Side(
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingTransactionId",
    "startingOffsetsByTransactionId",
)
_END = _Side(
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingTransactionId",
    "endingOffsetsByTransactionId",
)


@dataclass(frozen=True, slots=True)
class AtTxid:
    """The first record whose transaction id is this one or higher. `option` is the one that asked for it."""

    txid: int
    option: str


@dataclass(frozen=True, slots=True)
class Everywhere:
    """The same offset for every log."""

    offset: NamedOffset


@dataclass(frozen=True)
class PerLog:
    """An offset for each log by name. `option` is the one that asked for it; `identities` came with positions copied
    out of a checkpoint."""

    offsets: Mapping[str, GivenOffset | AtTxid]
    option: str
    identities: Mapping[str, LogIdentity] = field(default_factory=dict)


Where: TypeAlias = "AtTxid | Everywhere | PerLog"


@dataclass(frozen=True)
class Selection:
    """The logs of a query: by their names, or by a pattern that whole names must match."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    @property
    def one(self) -> str | None:
        """The log, where exactly one is named."""
        return self.names[0] if self.pattern is None and len(self.names) == 1 else None

    @property
    def folder(self) -> str:
        """Where all names that match the pattern lie, by its literal beginning: "a/b" of `a/b/c-.*`; "" for the root.

        Logs are looked for there alone: a look into all folders would take a request for every log.
        """
        return _literal_folder(self.pattern or "")

    @property
    def beginning(self) -> str:
        """How all names begin that match the pattern, as far as it says so."""
        return _literal_beginning(self.pattern or "")

    def selects(self, name: str) -> bool:
        """Return whether a log of this name is read."""
        return name in self.names if self.pattern is None else re.fullmatch(self.pattern, name) is not None

    def of(self, existing: Iterable[str]) -> list[str]:
        """Return the selected ones among the names of existing logs; sorted."""
        return sorted(name for name in existing if self.selects(name))


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits that a streaming query sets to its batches; None: no limit. `max_delay_ms` is the minimum's."""

    max_records: int | None = None
    max_bytes: int | None = None
    min_records: int | None = None
    max_delay_ms: int = 0


NO_BATCH_LIMITS = BatchLimits()


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
    max_records_per_partition: int | None
    limits: BatchLimits
    late_start_fails: bool
    cursor: str | None
    client_settings: tuple[tuple[str, str], ...]
    """The settings that go on to the namespace's clients, by keys in lower case."""
    proxies: ProxyChoice | None
    """Through which proxies tasks read; None: from storage nodes."""
    token_key_file: str | None = None
    """The file with the key by which the driver makes tokens for its tasks, as the options name it."""
    token_lifetime_ms: int = 43_200_000
    """How long such a token is good for."""
    columns: ColumnChoice | None = None
    """Which columns the frame has; None: what the log declares decides."""

    @classmethod
    def of(cls, options: Options) -> SourceQuery:
        """Read the options; OptionError where they contradict each other."""
        query = cls(
            uri=options.uri,
            selection=selection_of(options),
            start=_where(options, _START),
            end=_where(options, _END),
            fail_on_data_loss=options.flag("failOnDataLoss"),
            min_partitions=options.integer("minPartitions") or 1,
            max_bytes_per_partition=options.integer("maxBytesPerPartition") or 1,
            max_records_per_partition=options.integer("maxRecordsPerPartition"),
            limits=_limits(options),
            late_start_fails=_late_start_fails(options),
            cursor=_cursor(options),
            client_settings=_client_settings(options),
            proxies=options.proxies,
            token_key_file=_token_key_file(options),
            token_lifetime_ms=options.duration_ms("tokenLifetime") or 0,
            columns=_columns(options),
        )
        _check_names(query.selection, query.start)
        if options.scope is Scope.SOURCE_BATCH:
            _check_names(query.selection, query.end)
            _check_range(query.start, query.end)
            _check_order(query.start, query.end)
        return query


def _client_settings(options: Options) -> tuple[tuple[str, str], ...]:
    found, passed_on = {_OUTAGE: str(options.outage_ms)}, options.passed_on()
    region = options.text("region")
    if region is not None:
        also = {_REGION, "region"} & passed_on.keys()
        if also:
            raise OptionError(
                "Option region is given, and a setting of clients says the own region as well",
                advice="Give option region alone, in place of bkc.region or distributedlog.region",
            )
        found[_REGION] = region
    return tuple(sorted({**found, **passed_on}.items()))


def _token_key_file(options: Options) -> str | None:
    for name in ("tokenKeyFile", "tokenLifetime"):
        if options.asked(name) and options.proxies is None:
            raise OptionError(
                f"Option {name} does nothing without proxies: storage nodes take no tokens",
                advice="Give option proxy as well, or leave it out",
            )
    return options.text("tokenKeyFile")


def _limits(options: Options) -> BatchLimits:
    fewest, most = options.integer("minOffsetsPerTrigger"), options.integer("maxOffsetsPerTrigger")
    if fewest is None and options.asked("maxTriggerDelay"):
        raise OptionError(
            "Option maxTriggerDelay does nothing without minOffsetsPerTrigger",
            advice="Give both, or neither; how often batches start is set by the query's trigger",
        )
    if fewest is not None and most is not None and fewest > most:
        raise OptionError(
            f"minOffsetsPerTrigger ({fewest}) is above maxOffsetsPerTrigger ({most})",
            advice="No batch can have both: lower the first or raise the second",
        )
    return BatchLimits(most, options.integer("maxBytesPerTrigger"), fewest, options.duration_ms("maxTriggerDelay") or 0)


def _late_start_fails(options: Options) -> bool:
    strategy = (options.text(_STRATEGY) or "").strip().lower()
    if strategy not in _STRATEGIES:
        raise OptionError(
            f"Option {_STRATEGY} must be one of {', '.join(_STRATEGIES)}, not {shown(strategy)}",
            advice=f"{did_you_mean(strategy, _STRATEGIES)}Correct the value",
        )
    if options.given(_STRATEGY) and not any(options.given(name) for name in _START.names[1:]):
        raise OptionError(
            f"Option {_STRATEGY} does nothing without a time or transaction id to begin at",
            advice=f"Give one of {', '.join(_START.names[1:])}, or leave it out",
        )
    return strategy == "error"


def _columns(options: Options) -> ColumnChoice | None:
    choice = options.columns
    if choice in (None, ColumnChoice.RAW) or selection_of(options).one is not None:
        return choice
    raise OptionError(
        f"Option columns={choice.value} asks for the columns that a log declares, and the query may read several logs; "
        "nothing was read",
        advice="Name one log by log, subscribe or assign, read frame by frame and unite them, or read bytes with "
        "columns=raw",
    )


def _cursor(options: Options) -> str | None:
    name = options.text("cursorName")
    if name is not None and ("/" in name or name in (".", "..")):
        raise OptionError(
            f"Option cursorName cannot be {name!r}: it becomes a znode's name", advice="Give a name without '/'"
        )
    return name


def selection_of(options: Options) -> Selection:
    """Return which logs the options name. Raises OptionError unless they do, in exactly one way."""
    one = options.one_log()
    listed, assigned = options.text("subscribe"), options.text("assign")
    pattern = options.text("subscribePattern")
    ways = {"subscribe": listed, "assign": assigned, "subscribePattern": pattern, 'log / load("name")': one}
    given = [words for words, value in ways.items() if value is not None]
    if len(given) != 1:
        what = "No log to read is named" if not given else f"The logs to read are named {len(given)} ways: {given}"
        raise OptionError(what, advice='Give exactly one of subscribe, assign, subscribePattern, log or load("name")')
    if pattern is not None:
        return Selection(pattern=_checked_pattern(pattern))
    if one is not None:
        names = [one]
    else:
        names = _subscribed(listed or "") if assigned is None else _assigned(assigned)
    if len(set(names)) != len(names):
        raise OptionError(f"Option {given[0]} names a log twice: {ways[given[0]]!r}", advice="Name each log once")
    for name in names:
        LogStore.validate_name(name)
    return Selection(names=tuple(sorted(names)))


def _subscribed(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if text.strip().startswith("["):
        raise OptionError(
            f"Option subscribe is a list of names with commas between them, and not JSON: {shown(text)}",
            advice="Write for example flights,alerts, or give the JSON list as option assign",
        )
    if not all(names):
        kept = ",".join(name for name in names if name)
        raise OptionError(
            f"Option subscribe names no log before or behind one of its commas: {shown(text)}",
            advice=f"Leave that comma out: {shown(kept)}" if kept else "Write for example flights,alerts",
        )
    return names


def _assigned(text: str) -> list[str]:
    advice = 'Write for example ["flights", "alerts"]; a log has no partitions to choose from'
    try:
        names = parse_json(text)
    except ValueError as error:
        raise OptionError(f"Option assign is not JSON: {shown(text)} ({error})", advice=advice) from None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise OptionError(f"Option assign must be a JSON list of names, not {shown(text)}", advice=advice)
    if not all(names):
        raise OptionError(f"Option assign has a name that is empty: {shown(text)}", advice=advice)
    return names


def _literal_folder(pattern: str) -> str:
    return _literal_beginning(pattern).rpartition("/")[0]


def _literal_beginning(pattern: str) -> str:
    # Each alternative may begin otherwise, so all of them together have nothing in common.
    if _has_alternatives(pattern):
        return ""
    rest = _LITERAL.sub("", pattern, count=1)
    text = re.sub(r"\\(.)", r"\1", pattern[: len(pattern) - len(rest)])
    if rest[:1] and rest[0] in "*+?{":
        text = text[:-1]  # the quantifier belongs to the character before it
    return text


def _has_alternatives(pattern: str) -> bool:
    """Return whether a `|` stands outside of all groups and classes; also true where this simple search cannot decide
    it."""
    # Comments, escapes and classes first: a bracket or bar in them has no meaning.
    plain = re.sub(r"\(\?#[^)]*\)|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "", pattern)
    depth = 0
    for character in plain:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "|" and depth <= 0:
            return True
    return False


def _checked_pattern(pattern: str) -> str:
    if pattern.lstrip("^").startswith("/"):
        raise OptionError(
            f"Option subscribePattern begins with a slash, and no name does: {pattern!r}; nothing would ever match",
            advice=f"Names are not paths: write {pattern.lstrip('^/')!r}",
        )
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise OptionError(
            f"Option subscribePattern is not a regular expression: {shown(pattern)} ({error})",
            advice="Correct it; it must match whole names, for example flights-.*",
        ) from None
    return pattern


def _where(options: Options, side: _Side) -> Where:
    given = [name for name in side.names if options.given(name)]
    if len(given) > 1:
        raise OptionError(
            f"{' and '.join(given)} contradict each other: each names a place of its own", advice="Keep one of them"
        )
    option = given[0] if given else side.offsets
    if option == side.timestamp:
        return AtTxid(options.instant_ms(option) or 0, option)
    if option == side.txid:
        return AtTxid(options.integer(option) or 0, option)
    text = options.text(option) or NamedOffset.EARLIEST.value
    if option == side.timestamps:
        return _txids(option, text, side.timestamp, '{"flights": 1372636800000, "other": "2013-07-01T00:00:00Z"}')
    if option == side.txids:
        return _txids(option, text, side.txid, '{"flights": 1200, "other": 7}')
    offsets = parse_offsets(option, text)
    if isinstance(offsets, NamedOffset):
        return Everywhere(offsets)
    _check_spelling(option, offsets[0])
    return PerLog(offsets[0], option, offsets[1])


def _txids(option: str, text: str, like: str, example: str) -> PerLog:
    """Return one transaction id a log, each written as the value of the option `like` is."""
    offsets: dict[str, GivenOffset | AtTxid] = {}
    for log, item in parse_by_log(option, text, f"not JSON: {text!r}", example).items():
        check_one(option, log, item, example)
        if isinstance(item, bool) or not isinstance(item, (int, str)):
            raise OffsetError(
                f"Option {option}, log {log}: {shown(item)} is none", advice=f"Write for example {example}"
            )
        offsets[log] = AtTxid(read_as(like, f"{option} of {log}", str(item)), option)
    _check_spelling(option, offsets)
    return PerLog(offsets, option)


def _check_spelling(option: str, logs: Iterable[str]) -> None:
    """Raise OffsetError unless the keys of an option's JSON are names that logs can have."""
    for log in logs:
        try:
            LogStore.validate_name(log)
        except InvalidLogNameError as error:
            raise OffsetError(f"Option {option}: {error.message}", advice=error.advice) from None


def _check_names(selection: Selection, where: Where) -> None:
    """Raise OffsetError unless positions by log fit the logs by name: none left out, none too many (a pattern matches
    later)."""
    if not isinstance(where, PerLog) or selection.pattern is not None:
        return
    missing = [name for name in selection.names if name not in where.offsets]
    foreign = [name for name in where.offsets if name not in selection.names]
    if missing:
        near = near_word(missing[0], foreign)
        raise OffsetError(
            f"Option {where.option} has no position for {', '.join(missing)}"
            + (f", and one for {near}, which the query does not read" if near is not None else ""),
            advice="Add one for each log that is read"
            if near is None
            else f"Did you mean {missing[0]}? Names count with their capitals",
        )
    if foreign:
        raise OffsetError(
            f"Option {where.option} has a position for {', '.join(foreign)}, which the query does not read",
            advice=f"{did_you_mean(foreign[0], selection.names)}Remove it, or read that log too",
        )


def _check_range(start: Where, end: Where) -> None:
    """Raise OffsetError for a batch that begins at the end, or stops at the beginning: it reads nothing, which is a
    mistake, as with Kafka."""
    for where, offset, option in (
        (start, NamedOffset.LATEST, _START.offsets),
        (end, NamedOffset.EARLIEST, _END.offsets),
    ):
        if isinstance(where, Everywhere):
            nothing = where.offset is offset
        else:
            nothing = isinstance(where, PerLog) and offset in where.offsets.values()
        if nothing:
            raise OffsetError(
                f"Option {option} of a batch query cannot be {offset.value}: nothing would be read",
                advice="Give a position, a time or a transaction id, or leave the option out",
            )


def _check_order(start: Where, end: Where) -> None:
    """Raise OffsetError where both ends are known from the options alone, and the first lies behind the second."""
    if isinstance(start, PerLog) or isinstance(end, PerLog):
        logs = {log for where in (start, end) if isinstance(where, PerLog) for log in where.offsets}
    else:
        logs = {""}
    for log in sorted(logs):
        first, stop = _offset_of(start, log), _offset_of(end, log)
        if (isinstance(first, AtTxid) and isinstance(stop, AtTxid) and first.txid > stop.txid) or (
            isinstance(first, DLSN) and isinstance(stop, DLSN) and first > stop
        ):
            raise OffsetError(
                f"{_offset_text(start, first)} lies after {_offset_text(end, stop)}",
                advice="Exchange them; the end is exclusive",
                log=log or None,
            )


def _offset_of(where: Where, log: str) -> GivenOffset | AtTxid | None:
    if isinstance(where, PerLog):
        return where.offsets.get(log)
    return where.offset if isinstance(where, Everywhere) else where


def _offset_text(where: Where, offset: GivenOffset | AtTxid) -> str:
    if isinstance(offset, AtTxid):
        return f"{offset.option} ({offset.txid})"
    return f"{where.option} ({offset})" if isinstance(where, PerLog) else str(offset)
