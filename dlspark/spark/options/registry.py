"""The one registry of the connector's options, for source and sink, batch and streaming.

Each option is a setting of the one mechanism that has a scope besides; error messages and the documentation's table
(`options_table`) all come from here. Names are case-insensitive, as Spark's own are. An unknown name, a malformed
value, or an option that belongs to another kind of query is an error before anything is read or written: an option
never silently does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag
from typing import Final, TypeVar, cast

from dlspark.spark.errors import OptionError
from dlspark.spark.options.foreign import elsewhere
from dlspark.spark.options.kinds import DURATION, INSTANT
from metadata.foundation.errors import check
from metadata.foundation.settings import (
    EXACT,
    FLAG,
    MAX_INT,
    MAX_LONG,
    WHOLE,
    Kind,
    Setting,
    markdown_table,
    nearest,
    read_value,
    shown,
)

T = TypeVar("T")


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


_TYPES: Final[Mapping[object, str]] = {
    EXACT: "text",
    FLAG: "true / false",
    WHOLE: "integer >= {minimum}",
    INSTANT: "epoch milliseconds or ISO-8601",
    DURATION: "duration",
}
"""What the documentation's table calls the kinds."""


@dataclass(frozen=True, slots=True)
class Option(Setting):
    """One option. `default` is the text that stands in when the option is not given; None: there is none."""

    scope: Scope = Scope.ANY
    default: str | None = None
    default_words: str | None = None

    @property
    def type_words(self) -> str:
        """What the documentation's table says of its values."""
        return _TYPES[self.kind].format(minimum=self.minimum)


def _option(
    name: str,
    kind: Kind[T],
    scope: Scope,
    meaning: str,
    *,
    minimum: int = 0,
    default: str | None = None,
    default_words: str | None = None,
) -> Option:
    """An option; where it is a number, it is one of Java's longs that are not negative."""
    return Option(
        kind,  # type: ignore[arg-type]
        name,
        meaning,
        minimum,
        MAX_LONG,
        scope=scope,
        default=default,
        default_words=default_words,
    )


OPTIONS: tuple[Option, ...] = (
    _option(
        "uri",
        EXACT,
        Scope.ANY,
        "Namespace to connect to: `distributedlog://host:port[,host:port]/path`. Without it the conf "
        "`spark.distributedlog.uri` is used, else the environment variable `DLSPARK_URI`, else a sandbox that "
        "runs on the driver's machine",
        default_words="conf, environment",
    ),
    _option(
        "log",
        EXACT,
        Scope.ANY,
        'The one log to read or write; the same as `load("name")` and `save("name")`. A sink without it needs a column '
        "`log`. With `numLogs`, a template of names: `flights-{}`",
    ),
    _option("subscribe", EXACT, Scope.SOURCE, "Logs to read, separated by commas"),
    _option(
        "assign",
        EXACT,
        Scope.SOURCE,
        'Logs to read, as a JSON list of names: `["flights", "a,b"]`. Like `subscribe`, but works for every name',
    ),
    _option(
        "subscribePattern",
        EXACT,
        Scope.SOURCE,
        "Python regular expression that whole log names must match. A stream also reads logs that appear later, "
        "from their beginning. Logs are searched for in the folder that the pattern begins with (`a/b` of `a/b/c-.*`), "
        "and not in those below it",
    ),
    _option(
        "startingOffsets",
        EXACT,
        Scope.SOURCE,
        "Where to begin: `earliest`, `latest` (streams only), or JSON with one place a log, a position or one of these "
        'words (or -2, -1): `{"flights": "3:1200:0", "other": "earliest"}`. A stream uses it only when it has no '
        "checkpoint yet",
        default="earliest",
    ),
    _option(
        "endingOffsets",
        EXACT,
        Scope.SOURCE_BATCH,
        "Where to stop: `latest`, or JSON with one place a log, as for `startingOffsets`; the position itself is not "
        "read",
        default="latest",
    ),
    _option(
        "startingTimestamp",
        INSTANT,
        Scope.SOURCE,
        "Begin at the first record whose transaction id, read as milliseconds since the epoch, is at or after this "
        "time (without a zone: UTC). If there is none yet: see `startingOffsetsByTimestampStrategy`",
    ),
    _option(
        "startingOffsetsByTimestamp",
        EXACT,
        Scope.SOURCE,
        "As `startingTimestamp`, with one time a log, in JSON: "
        '`{"flights": 1372636800000, "other": "2013-07-01T00:00:00Z"}`',
    ),
    _option(
        "startingOffsetsByTimestampStrategy",
        EXACT,
        Scope.SOURCE,
        "What a log without a record at or after the given time (or transaction id) does: `latest` begins at its end, "
        "so that only later records are read; `error` fails the query",
        default="latest",
    ),
    _option(
        "endingTimestamp",
        INSTANT,
        Scope.SOURCE_BATCH,
        "Stop before the first record at or after this time (exclusive); at the end of the log if there is none",
    ),
    _option(
        "endingOffsetsByTimestamp",
        EXACT,
        Scope.SOURCE_BATCH,
        "As `endingTimestamp`, with one time a log, in JSON as for `startingOffsetsByTimestamp`",
    ),
    _option(
        "startingTransactionId",
        WHOLE,
        Scope.SOURCE,
        "Begin at the first record with this transaction id or a higher one. If there is none yet: see "
        "`startingOffsetsByTimestampStrategy`",
    ),
    _option(
        "startingOffsetsByTransactionId",
        EXACT,
        Scope.SOURCE,
        'As `startingTransactionId`, with one id a log, in JSON: `{"flights": 1200, "other": 7}`',
    ),
    _option(
        "endingTransactionId",
        WHOLE,
        Scope.SOURCE_BATCH,
        "Stop before the first record with this transaction id or a higher one (exclusive); at the end of the log if "
        "there is none",
    ),
    _option(
        "endingOffsetsByTransactionId",
        EXACT,
        Scope.SOURCE_BATCH,
        "As `endingTransactionId`, with one id a log, in JSON as for `startingOffsetsByTransactionId`",
    ),
    _option(
        "maxOffsetsPerTrigger",
        WHOLE,
        Scope.SOURCE_STREAM,
        "Most records in one micro-batch, over all logs together; each log with new records gets a share",
        default_words="no limit",
        minimum=1,
    ),
    _option(
        "maxBytesPerTrigger",
        WHOLE,
        Scope.SOURCE_STREAM,
        "Most stored bytes in one micro-batch, in whole entries, over all logs together; each log with new records "
        "gets a share. A single entry that is larger is a batch by itself",
        default_words="no limit",
        minimum=1,
    ),
    _option(
        "minOffsetsPerTrigger",
        WHOLE,
        Scope.SOURCE_STREAM,
        "Fewest records, over all logs together, that make a micro-batch; fewer wait until `maxTriggerDelay` is over. "
        "Not with `Trigger.AvailableNow`, which reads all records that are there",
        default_words="no minimum",
        minimum=1,
    ),
    _option(
        "maxTriggerDelay",
        DURATION,
        Scope.SOURCE_STREAM,
        "With `minOffsetsPerTrigger`: the time after the last micro-batch at which fewer records are enough for one: "
        "`15m`, `90s`, `500ms`. The first batch of a query that starts does not wait",
        default="15m",
    ),
    _option(
        "minPartitions",
        WHOLE,
        Scope.SOURCE,
        "Number of Spark partitions, of nearly equal bytes, if there are enough entries; more only if other limits ask",
        default="1",
        minimum=1,
    ),
    _option(
        "maxBytesPerPartition",
        WHOLE,
        Scope.SOURCE,
        "Most stored bytes of one Spark partition, estimated by the mean entry of each segment; small segments share "
        "partitions",
        default=str(32 << 20),
        minimum=1,
    ),
    _option(
        "maxRecordsPerPartition",
        WHOLE,
        Scope.SOURCE,
        "Most records in one Spark partition; a partition may end within an entry, which both tasks then fetch",
        default_words="no limit",
        minimum=1,
    ),
    _option(
        "failOnDataLoss",
        FLAG,
        Scope.ANY,
        "Source: what to do when records the query still needs are gone (truncated, or the log deleted): true fails "
        "with an error; false goes on at the first record still there and logs a warning. Sink: what to do when a "
        "batch that was published before is repeated with another number of rows (a checkpoint rolled back or "
        "copied): true fails, false skips it whole and logs a warning; it is never written twice",
        default="true",
    ),
    _option(
        "outageTimeout",
        DURATION,
        Scope.ANY,
        "How long a query waits, before it fails, for what is unavailable and may come back: storage nodes, if too few "
        "are left to write to, to read from or to recover a log; the log's lock, which a driver that died keeps until "
        "its ZooKeeper session ends. `0s`: not at all",
        default="2m",
    ),
    _option(
        "metadata",
        EXACT,
        Scope.SOURCE_BATCH,
        "Read a table about the namespace itself: `logs`, `segments`, `cursors`, `bookies`, `ledgers`, `sinks` "
        "(docs/spark-metadata.md). Goes with `uri`, the options that choose logs, and settings of clients",
        default_words="read the logs",
    ),
    _option(
        "cursorName",
        EXACT,
        Scope.SOURCE_STREAM,
        "Publish the query's position in each log under this name among the log's subscribers, after each micro-batch: "
        "`dlspark log subscribers list` shows it, and `dlspark log truncate --respect-subscribers` does not pass it. "
        "Each query needs a name of its own",
    ),
    _option(
        "createStreamIfNotExists",
        FLAG,
        Scope.SINK,
        "Create a log that does not exist yet; false: the batch fails",
        default="true",
    ),
    _option(
        "numLogs",
        WHOLE,
        Scope.SINK,
        "Spread rows by hash over this many logs (at most 1000). Their names are option `log` with the numbers from 0 "
        "on in place of `{}`. A row's number is `crc32(concat_ws('\\u001f', key columns)) % numLogs` in Spark SQL",
        default_words="one log, or column `log`",
        minimum=1,
    ),
    _option(
        "partitionBy",
        EXACT,
        Scope.SINK,
        "With `numLogs`: the key columns, separated by commas; string, binary, boolean or integer. They are hashed, "
        "not stored. All rows of a key are in one log",
        default_words="`value`",
    ),
    _option(
        "txnAppId",
        EXACT,
        Scope.SINK_BATCH,
        "With `txnVersion`: makes a batch write (or foreachBatch) idempotent. Names the application that writes",
    ),
    _option(
        "txnVersion",
        WHOLE,
        Scope.SINK_BATCH,
        "Number of this write for `txnAppId`. A log that has reached the number is skipped; if it got another "
        "number of rows under it, the write is refused (`failOnDataLoss`)",
    ),
    _option(
        "compressionType",
        EXACT,
        Scope.SINK,
        "`none` or `lz4`: how entries are stored",
        default_words="the namespace's setting, else `none`",
    ),
    _option("ensembleSize", WHOLE, Scope.SINK, "Storage nodes that a segment is spread over", default="3", minimum=1),
    _option("writeQuorumSize", WHOLE, Scope.SINK, "Copies of each entry", default="3", minimum=1),
    _option(
        "ackQuorumSize", WHOLE, Scope.SINK, "Copies that must be on disk before an entry counts", default="2", minimum=1
    ),
)

CLIENT_PREFIX = "bkc."
SETTINGS_PREFIX = "distributedlog."
PASSED_ON = (CLIENT_PREFIX, SETTINGS_PREFIX)
"""How the names of options begin that are settings of the ledger client, or of the log core."""

CONF_PREFIX = "spark.distributedlog."
"""How the names of confs begin that are the session's defaults of options."""

_OF_ONE_QUERY = frozenset(
    option.key for option in OPTIONS if option.key.startswith(("starting", "ending", "subscribe", "txn"))
) | {"log", "assign", "cursorName", "metadata"}
"""Options that say what one query does, and so cannot be a session's defaults."""

_BY_NAME: dict[str, Option] = {option.key.lower(): option for option in OPTIONS}

# What Spark itself hands over besides the user's options: the path of load/save, the sink's checkpoint and query name,
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

    __slots__ = ("_given", "_path", "_session", "scope")

    def __init__(self, raw: Mapping[str, str], scope: Scope, session: Mapping[str, str] | None = None) -> None:
        """Check `raw` (names in any case) for a query of kind `scope`; OptionError says what to change.

        `session` are the session's defaults, by option name: they stand before the registry's, and those that have no
        meaning for this kind of query are left out.
        """
        self.scope = scope
        self._session = _session_defaults(session or {}, scope)
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
            if name.startswith(PASSED_ON):
                self._given[name] = _not_empty(name, value)
                continue
            option = _known(name)
            if not option.scope & scope:
                raise OptionError(
                    f"Option {option.key} has no meaning here: it belongs to: {_SCOPE_WORDS[option.scope]}",
                    advice=f"This is: {_scope_words(scope)}. Remove the option",
                )
            _read(option, value)
            self._given[option.key] = value

    def __reduce__(self) -> tuple[object, ...]:
        return (Options, (self._raw(), self.scope, self._session))

    def _raw(self) -> dict[str, str]:
        return dict(self._given) if self._path is None else {**self._given, _PATH: self._path}

    def with_uri(self, uri: str) -> Options:
        """The same options with the namespace's URI settled, wherever it came from."""
        return Options({**self._raw(), "uri": uri}, self.scope, self._session)

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
        """Whether the query or the session's conf sets the option (a default does not count)."""
        found = _registered(name).key
        return found in self._given or found in self._session

    def asked(self, name: str) -> bool:
        """Whether the query itself sets the option."""
        return _registered(name).key in self._given

    def given_names(self) -> frozenset[str]:
        """The names of all options that the user set."""
        return frozenset(self._given)

    def text(self, name: str) -> str | None:
        """The option's text, or the session's default, or the registry's, or None."""
        option = _registered(name)
        return self._given.get(option.key, self._session.get(option.key, option.default))

    def passed_on(self) -> dict[str, str]:
        """The settings for the namespace's clients that options hand on, with keys in lower case as Spark leaves them:
        `bkc.<key>` as they are, `distributedlog.<key>` without that prefix."""
        merged = {**self._session, **self._given}
        return {
            name.removeprefix(SETTINGS_PREFIX): value for name, value in merged.items() if name.startswith(PASSED_ON)
        }

    @property
    def outage_ms(self) -> int:
        """How long a query waits for what is away, in milliseconds."""
        return min(self.duration_ms("outageTimeout") or 0, MAX_INT)

    def flag(self, name: str) -> bool:
        """The value of a true/false option (all of them have a default)."""
        return FLAG.read(self.text(name) or "")

    def integer(self, name: str) -> int | None:
        """The value of an integer option, or None if it is not given and has no default."""
        value = self.text(name)
        return None if value is None else WHOLE.read(value)

    def duration_ms(self, name: str) -> int | None:
        """The value of a duration in milliseconds, or None."""
        value = self.text(name)
        return None if value is None else DURATION.read(value)

    def instant_ms(self, name: str) -> int | None:
        """The value of a point in time as milliseconds since the epoch, or None."""
        value = self.text(name)
        return None if value is None else INSTANT.read(value)

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
    rows = (
        (
            f"`{option.key}`",
            option.type_words,
            option.default_words or (f"`{option.default}`" if option.default is not None else "none"),
            _SCOPE_WORDS[option.scope],
            f"{option.meaning}.",
        )
        for option in OPTIONS
    )
    return "\n".join((*markdown_table(("option", "type", "default", "scope", "meaning"), rows), ""))


def read_as(name: str, where: str, text: str) -> int:
    """A number that stands in for the value of the option `name`, elsewhere; an OptionError names `where`."""
    value = _read(_registered(name), text, where)
    check(isinstance(value, int), "the option is not a number")
    return cast(int, value)


def _read(option: Option, text: str, where: str | None = None) -> object:
    try:
        return read_value(option, where or option.key, _not_empty(where or option.key, text), OptionError)
    except OptionError as error:
        raise OptionError(f"Option {error.message.removeprefix('Option ')}", advice=error.advice) from None


def _not_empty(name: str, text: str) -> str:
    if not text.strip():
        raise OptionError(f"Option {name} is empty", advice="Give it a value or leave it out")
    return text


def _scope_words(scope: Scope) -> str:
    return _SCOPE_WORDS.get(scope, str(scope))


def _registered(name: str) -> Option:
    return _BY_NAME[name.lower()]


def _session_defaults(session: Mapping[str, str], scope: Scope) -> dict[str, str]:
    """The checked session defaults that concern a query of kind `scope`."""
    found: dict[str, str] = {}
    for name, value in session.items():
        try:
            if name.lower().startswith(PASSED_ON):
                found[name.lower()] = _not_empty(name, value)
                continue
            option = _known(name.lower())
            if option.key in _OF_ONE_QUERY:
                raise OptionError("It says what one query does, not what all do", advice="Make it the query's option")
            _read(option, value)
        except OptionError as error:
            raise OptionError(f"Conf {CONF_PREFIX}{name}: {error.message}", advice=error.advice) from None
        if option.scope & scope:
            found[option.key] = value
    return found


def _known(name: str) -> Option:
    option = _BY_NAME.get(name)
    if option is not None:
        return option
    instead = elsewhere(name)
    if instead is not None:
        raise OptionError(f"Option {name!r} is another connector's", advice=instead)
    advice = nearest(name, (option.key for option in OPTIONS), "docs/spark-options.md")
    raise OptionError(f"Unknown option {shown(name)}", advice=advice)
