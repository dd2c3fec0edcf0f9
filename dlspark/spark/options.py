"""The one registry of the connector's options, for source and sink, batch and streaming.

Each option says its name, type, default, scope and meaning; parsing, error messages and the documentation's table
(`options_table`) all come from here. Names are case-insensitive, as Spark's own are. An unknown name, a malformed
value, or an option that belongs to another kind of query is an error before anything is read or written: an option
never silently does nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum, Flag

from dlspark.spark.errors import OptionError
from metadata.errors import check

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
_MAX_LONG = (1 << 63) - 1


class Scope(Flag):
    """The kinds of query that an option has a meaning for."""

    SOURCE_BATCH = 1
    SOURCE_STREAM = 2
    SINK_BATCH = 4
    SINK_STREAM = 8
    SOURCE = SOURCE_BATCH | SOURCE_STREAM
    SINK = SINK_BATCH | SINK_STREAM
    ANY = SOURCE | SINK


_SCOPE_WORDS = {
    Scope.ANY: "source and sink",
    Scope.SOURCE: "source",
    Scope.SOURCE_BATCH: "source, batch",
    Scope.SOURCE_STREAM: "source, streaming",
    Scope.SINK: "sink",
    Scope.SINK_BATCH: "sink, batch",
    Scope.SINK_STREAM: "sink, streaming",
}


class Kind(Enum):
    """The type of an option's value; the value is what the documentation's table calls it."""

    TEXT = "text"
    FLAG = "true / false"
    COUNT = "integer >= 1"
    LONG = "integer >= 0"
    INSTANT = "epoch milliseconds or ISO-8601"


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `default` is the text that stands in when the option is not given; None: there is none."""

    name: str
    kind: Kind
    scope: Scope
    meaning: str
    default: str | None = None
    default_words: str | None = None


OPTIONS: tuple[Option, ...] = (
    Option(
        "uri",
        Kind.TEXT,
        Scope.ANY,
        "Namespace to connect to: `distributedlog://host:port[,host:port]/path`. Without it the conf "
        "`spark.distributedlog.uri` is used, else the environment variable `DLSPARK_URI`.",
        default_words="conf, environment",
    ),
    Option(
        "log",
        Kind.TEXT,
        Scope.ANY,
        'The one log to read or write; the same as `load("name")` and `save("name")`. A sink without it needs a column '
        "`log`. With `numLogs` a template of names: `flights-{}`.",
    ),
    Option("subscribe", Kind.TEXT, Scope.SOURCE, "Logs to read, separated by commas."),
    Option(
        "subscribePattern",
        Kind.TEXT,
        Scope.SOURCE,
        "Python regular expression that whole log names must match. A stream also takes up logs that appear later, "
        "from their beginning.",
    ),
    Option(
        "startingOffsets",
        Kind.TEXT,
        Scope.SOURCE,
        "Where to begin: `earliest`, `latest`, or JSON with one position a log: "
        '`{"flights": "3:1200:0", "other": "earliest"}`. A stream uses it only when it has no checkpoint yet.',
        default="earliest",
    ),
    Option(
        "endingOffsets",
        Kind.TEXT,
        Scope.SOURCE_BATCH,
        "Where to stop, as `startingOffsets`; the position itself is not read.",
        default="latest",
    ),
    Option(
        "startingTimestamp",
        Kind.INSTANT,
        Scope.SOURCE,
        "Begin at the first record whose transaction id, read as milliseconds since the epoch, is at or after this "
        "time (without a zone: UTC). If there is none yet: at the end of the log.",
    ),
    Option(
        "endingTimestamp",
        Kind.INSTANT,
        Scope.SOURCE_BATCH,
        "Stop before the first record at or after this time (exclusive).",
    ),
    Option(
        "startingTransactionId",
        Kind.LONG,
        Scope.SOURCE,
        "Begin at the first record with this transaction id or a higher one. If there is none yet: at the end of the "
        "log.",
    ),
    Option(
        "endingTransactionId",
        Kind.LONG,
        Scope.SOURCE_BATCH,
        "Stop before the first record with this transaction id or a higher one (exclusive).",
    ),
    Option(
        "maxOffsetsPerTrigger",
        Kind.COUNT,
        Scope.SOURCE_STREAM,
        "Most records in one micro-batch, over all logs together; each log with news gets a share.",
        default_words="no limit",
    ),
    Option(
        "minPartitions",
        Kind.COUNT,
        Scope.SOURCE,
        "Split into at least this many Spark partitions, as far as there are entries to split.",
        default="1",
    ),
    Option(
        "maxBytesPerPartition",
        Kind.COUNT,
        Scope.SOURCE,
        "Split a segment into ranges of about this many stored bytes; smaller neighbours share a partition.",
        default=str(32 << 20),
    ),
    Option(
        "failOnDataLoss",
        Kind.FLAG,
        Scope.ANY,
        "Source: what to do when records the query still needs are gone (truncated, or the log deleted): true fails "
        "with an error; false goes on at the first record still there and logs a warning. Sink: what to do when a "
        "batch that was published before comes again with another number of rows (a checkpoint rolled back or "
        "copied): true fails, false skips it whole and logs a warning; it is never written twice.",
        default="true",
    ),
    Option(
        "metadata",
        Kind.TEXT,
        Scope.SOURCE_BATCH,
        "Read what the namespace says of itself: `logs`, `segments`, `cursors`, `bookies`, `ledgers`, `sinks` "
        "(docs/spark-metadata.md). Takes `uri` and which logs, no other options.",
        default_words="read the logs",
    ),
    Option(
        "createStreamIfNotExists",
        Kind.FLAG,
        Scope.SINK,
        "Create a log that does not exist yet; false: the batch fails.",
        default="true",
    ),
    Option(
        "numLogs",
        Kind.COUNT,
        Scope.SINK,
        "Spread rows by hash over so many logs (at most 1000), whose names are option `log` with the numbers from 0 on "
        "for `{}`. A row's number is `crc32(concat_ws('\\u001f', key columns)) % numLogs`, as Spark SQL would say it.",
        default_words="one log, or column `log`",
    ),
    Option(
        "partitionBy",
        Kind.TEXT,
        Scope.SINK,
        "With `numLogs`: the key columns, separated by commas; string, binary, boolean or integer. They are hashed, "
        "not stored. All rows of a key are in one log.",
        default_words="`value`",
    ),
    Option(
        "txnAppId",
        Kind.TEXT,
        Scope.SINK_BATCH,
        "With `txnVersion`: makes a batch write (or foreachBatch) idempotent. Names the writing application.",
    ),
    Option(
        "txnVersion",
        Kind.LONG,
        Scope.SINK_BATCH,
        "Number of this write for `txnAppId`; a write whose number is not above the last one published is skipped, or "
        "refused if that number was published with other rows (`failOnDataLoss`).",
    ),
    Option(
        "compressionType",
        Kind.TEXT,
        Scope.SINK,
        "`none` or `lz4`: how entries are stored.",
        default_words="the namespace's setting, else `none`",
    ),
    Option("ensembleSize", Kind.COUNT, Scope.SINK, "Storage nodes that a segment is spread over.", default="3"),
    Option("writeQuorumSize", Kind.COUNT, Scope.SINK, "Copies of each entry.", default="3"),
    Option("ackQuorumSize", Kind.COUNT, Scope.SINK, "Copies that must be on disk before an entry counts.", default="2"),
)

_BY_NAME: dict[str, Option] = {option.name.lower(): option for option in OPTIONS}

# What Spark itself hands over beside the user's options: the path of load/save, the sink's checkpoint and query name,
# and what a session-catalog table carries.
_PATH = "path"
_PATHS = "paths"
_SPARKS_OWN = frozenset(
    {
        _PATH,
        _PATHS,
        "checkpointlocation",
        "queryname",
        "provider",
        "owner",
        "location",
        "comment",
        "external",
        "table_type",
    }
)


class Options:
    """The options of one query: known, well-formed, of the right scope. Immutable and picklable."""

    __slots__ = ("_given", "_path", "scope")

    def __init__(self, raw: Mapping[str, str], scope: Scope) -> None:
        """Check `raw` (names in any case) for a query of kind `scope`; OptionError says what to change."""
        self.scope = scope
        self._given: dict[str, str] = {}
        lowered = {name.lower(): value for name, value in raw.items()}
        self._path = lowered.get(_PATH) or None
        if _PATHS in lowered and lowered[_PATHS] not in ("", "[]"):
            raise OptionError(
                f"load() was given several paths: {lowered[_PATHS]}",
                advice='Name several logs with option("subscribe", "first,second") and call load() without a path',
            )
        for name, value in lowered.items():
            if name in _SPARKS_OWN or name.startswith("option."):
                continue
            option = _known(name)
            if not option.scope & scope:
                raise OptionError(
                    f"Option {option.name} has no meaning here: it belongs to: {_SCOPE_WORDS[option.scope]}",
                    advice=f"This is: {_scope_words(scope)}. Remove the option",
                )
            _PARSERS[option.kind](option.name, value)
            self._given[option.name] = value

    def __reduce__(self) -> tuple[object, ...]:
        raw = dict(self._given) if self._path is None else {**self._given, _PATH: self._path}
        return (Options, (raw, self.scope))

    def with_uri(self, uri: str) -> Options:
        """The same options with the namespace's URI settled, wherever it came from."""
        raw = {**self._given, "uri": uri}
        return Options(raw if self._path is None else {**raw, _PATH: self._path}, self.scope)

    @property
    def uri(self) -> str:
        """The namespace's URI; the data source settles it before it makes a reader or writer."""
        found = self.text("uri")
        check(found is not None, "the namespace's URI was not settled")
        return str(found)

    @property
    def path(self) -> str | None:
        """What load() or save() was given, if anything."""
        return self._path

    def given(self, name: str) -> bool:
        """Whether the user set the option (a default does not count)."""
        return _registered(name).name in self._given

    def given_names(self) -> frozenset[str]:
        """The names of all options that the user set."""
        return frozenset(self._given)

    def text(self, name: str) -> str | None:
        """The option's text, or its default, or None."""
        option = _registered(name)
        return self._given.get(option.name, option.default)

    def flag(self, name: str) -> bool:
        """The value of a true/false option (all of them have a default)."""
        return _parse_flag(name, self.text(name) or "")

    def integer(self, name: str) -> int | None:
        """The value of an integer option, or None if it is not given and has no default."""
        value = self.text(name)
        return None if value is None else _parse_integer(name, value)

    def instant_ms(self, name: str) -> int | None:
        """The value of a point in time as milliseconds since the epoch, or None."""
        value = self.text(name)
        return None if value is None else _parse_instant(name, value)

    def one_log(self) -> str | None:
        """The log named by the option `log` or by load/save; OptionError if they name different ones."""
        named = self.text("log")
        if named is not None and self._path is not None and named != self._path:
            raise OptionError(
                f"Two logs are named: option log says {named!r}, the path says {self._path!r}",
                advice="Give the name once",
            )
        return named if named is not None else self._path


def options_table() -> str:
    """The registry as a Markdown table, for the documentation."""
    lines = ["| option | type | default | scope | meaning |", "|---|---|---|---|---|"]
    for option in OPTIONS:
        default = option.default_words or (f"`{option.default}`" if option.default is not None else "none")
        meaning = option.meaning.replace("|", "\\|")
        lines.append(
            f"| `{option.name}` | {option.kind.value} | {default} | {_SCOPE_WORDS[option.scope]} | {meaning} |"
        )
    return "\n".join(lines) + "\n"


def _scope_words(scope: Scope) -> str:
    return _SCOPE_WORDS.get(scope, str(scope))


def _registered(name: str) -> Option:
    return _BY_NAME[name.lower()]


def _known(name: str) -> Option:
    option = _BY_NAME.get(name)
    if option is not None:
        return option
    near = difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.6)
    hint = f"Did you mean {_BY_NAME[near[0]].name}? " if near else ""
    raise OptionError(
        f"Unknown option {name!r}",
        advice=f"{hint}Known options: {', '.join(option.name for option in OPTIONS)}",
    )


def _parse_text(name: str, value: str) -> str:
    if not value.strip():
        raise OptionError(f"Option {name} is empty", advice="Give it a value or leave it out")
    return value


def _parse_flag(name: str, value: str) -> bool:
    word = value.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise OptionError(f"Option {name} must be true or false, not {value!r}", advice="Correct the value")


def _parse_integer(name: str, value: str) -> int:
    try:
        number = int(value.strip())
    except ValueError:
        raise OptionError(f"Option {name} must be an integer, not {value!r}", advice="Correct the value") from None
    lowest = 1 if _registered(name).kind is Kind.COUNT else 0
    if not lowest <= number <= _MAX_LONG:
        raise OptionError(
            f"Option {name} must be an integer from {lowest} to {_MAX_LONG}, not {value}", advice="Correct the value"
        )
    return number


def _parse_instant(name: str, value: str) -> int:
    """Milliseconds since the epoch; a fraction of a millisecond is rounded up, so that "at or after" stays true."""
    text = value.strip()
    if text.lstrip("-").isdigit():
        number = int(text)
    else:
        number = _iso_ms(name, text)
    if not 0 <= number <= _MAX_LONG:
        raise OptionError(
            f"Option {name} must not lie before 1970-01-01T00:00:00Z: {value!r}",
            advice="Transaction ids, of which times are read, are never negative; use earliest for the beginning",
        )
    return number


def _iso_ms(name: str, text: str) -> int:
    iso = text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text
    try:
        moment = datetime.fromisoformat(iso)
    except ValueError:
        raise OptionError(
            f"Option {name} is neither epoch milliseconds nor an ISO-8601 time: {text!r}",
            advice="Write for example 1372636800000 or 2013-07-01T00:00:00Z",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    since = moment - _EPOCH
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return -(-microseconds // 1000)


_PARSERS: dict[Kind, Callable[[str, str], object]] = {
    Kind.TEXT: _parse_text,
    Kind.FLAG: _parse_flag,
    Kind.COUNT: _parse_integer,
    Kind.LONG: _parse_integer,
    Kind.INSTANT: _parse_instant,
}
