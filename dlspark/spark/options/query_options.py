"""The options of one query: checked against the registry, over the session's defaults.

Names are case-insensitive, as Spark's own are. An unknown name, a malformed value, or an option that belongs to another
kind of query is an error before anything is read or written: an option never silently does nothing.

Options of other connectors that a user may try here (`ELSEWHERE`) are refused with a word on where to turn instead.
None of them is taken: the nearest option of ours often means something else, and one that has no meaning for a log must
not look as if it did anything. The names are those of Spark's Kafka connector and of the Pulsar, Pravega, Kinesis,
Event Hubs and Delta sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from dlspark.spark.errors import OptionError
from dlspark.spark.options.column_choice import CHOICES, COLUMNS, ColumnChoice
from dlspark.spark.options.proxies import PROXY, ProxyChoice
from dlspark.spark.options.registry import (
    BY_NAME,
    CONF_PREFIX,
    DURATION,
    INSTANT,
    OPTIONS,
    PASSED_ON,
    SETTINGS_PREFIX,
    Option,
    Scope,
    scope_words,
)
from dlspark.spark.options.tls import SETTINGS as TLS_SETTINGS
from dlspark.spark.options.tls import tls_settings
from metadata.foundation.errors import check
from metadata.foundation.settings import FLAG, MAX_INT, WHOLE, nearest, read_value, shown

_OF_ONE_QUERY = frozenset(
    option.key for option in OPTIONS if option.key.startswith(("starting", "ending", "subscribe", "txn"))
) | {"log", "assign", "cursorName", "metadata"}
"""Options that say what one query does, and so cannot be a session's defaults."""

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

_URI = 'The cluster is named by option uri: "distributedlog://zookeeper:2181/path"'
_SELECT = "Logs are named by log, subscribe (separated by commas), subscribePattern or assign (a JSON list)"
_SINK_LOG = 'The log to write is named by option log, by save("name"), or row by row by a column log'
_CURSOR = (
    "Readers need no group: each query keeps its position in its own checkpoint. To publish the position, so that "
    "truncation can respect it, give the query a cursorName"
)
_HEADERS = "Records have no key and no headers, only a transaction id and a value: put them into the value"
_KEY = "Records have no key: put it into the value, or route by a column log"
_CLIENT = (
    "Settings of the ledger client go by bkc.<key> (docs/settings/ledger-client.md), others by distributedlog.<key>"
)
_TIMEOUT = "How long a storage node may take to answer a read is set by bkc.readEntryTimeoutSec"
_RETRIES = "Positions come from metadata and are asked for again by themselves; there is nothing to set"
_BY_TIME = "Times are given by startingTimestamp and endingTimestamp, or log by log by startingOffsetsByTimestamp"
_POSITIONS = (
    "Positions are given by startingOffsets, startingTimestamp or startingTransactionId, and the ending... ones"
)
_LIMIT = "Batches are limited by maxOffsetsPerTrigger (records) or maxBytesPerTrigger"
_CREATE = "A missing log is created by the sink where createStreamIfNotExists is true"
_TASK_READS = "Tasks read storage nodes ahead by themselves; there is nothing to set"
_RECEIVERS = "Readers never lock or evict each other"
_SCHEMA = (
    "A record's value is bytes: decode it with from_json, from_avro or cast, or let the log declare its columns "
    "(`dlspark log schema set`)"
)
_RETENTION = "How long records are kept is a setting of the namespace or the log: logSegmentRetentionHours"
_AS_OF = (
    "An older version of a log is read as a table: SELECT * FROM dlog.flights VERSION AS OF '3:1200:7' or TIMESTAMP AS "
    'OF, or spark.read.option(...).table("dlog.flights") (docs/sql.md). Elsewhere endingOffsets, endingTimestamp or '
    "endingTransactionId end a batch"
)
_EXACT = "The sink is always exactly-once"

ELSEWHERE: dict[str, str] = {
    "kafka.bootstrap.servers": _URI,
    "kafka.group.id": _CURSOR,
    "kafka.partitioner.class": _KEY,
    "kafkaconsumer.polltimeoutms": _TIMEOUT,
    "polltimeoutms": _TIMEOUT,
    "fetchoffset.numretries": _RETRIES,
    "fetchoffset.retryintervalms": _RETRIES,
    "groupidprefix": _CURSOR,
    "includeheaders": _HEADERS,
    "topic": f"{_SELECT}. {_SINK_LOG}",
    "topics": _SELECT,
    "topicspattern": _SELECT,
    "topicpattern": _SELECT,
    "service.url": _URI,
    "admin.url": _URI,
    "startingtime": _BY_TIME,
    "endingtime": _BY_TIME,
    "predefinedsubscription": _CURSOR,
    "subscriptionprefix": _CURSOR,
    "maxentriespertrigger": _LIMIT,
    "waitingfornonexistedtopic": "A stream over subscribePattern takes up logs that appear later",
    "allowdifferenttopicschemas": _SCHEMA,
    "controller": _URI,
    "scope": _URI,
    "stream": f"{_SELECT}. {_SINK_LOG}",
    "allow_create_scope": _CREATE,
    "allow_create_stream": _CREATE,
    "start_stream_cut": _POSITIONS,
    "end_stream_cut": _POSITIONS,
    "exactly_once": _EXACT,
    "default_retention_duration_milliseconds": _RETENTION,
    "default_retention_size_bytes": _RETENTION,
    "streamname": _SELECT,
    "endpointurl": _URI,
    "startingposition": _POSITIONS,
    "startingpositions": _POSITIONS,
    "endingposition": _POSITIONS,
    "endingpositions": _POSITIONS,
    "maxfetchrecordspershard": _LIMIT,
    "consumergroup": _CURSOR,
    "maxeventspertrigger": _LIMIT,
    "prefetchcount": _TASK_READS,
    "receivertimeout": _TIMEOUT,
    "operationtimeout": _TIMEOUT,
    "useexclusivereceiver": _RECEIVERS,
    "startingversion": _POSITIONS,
    "endingversion": _POSITIONS,
    "maxfilespertrigger": _LIMIT,
    "versionasof": _AS_OF,
    "timestampasof": _AS_OF,
}
"""By the name in lower case."""

_TLS = (
    "On a secured cluster tls.directory names an identity folder, or tls.keyStore and tls.trustStore the stores; their "
    "passwords are in files or variables (tls.keyStorePassword=file:PATH or env:NAME)"
)
_PREFIXES = {
    "kafka.ssl.": _TLS,
    "kafka.sasl.": _TLS,
    "kafka.security.": _TLS,
    "pulsar.tls": _TLS,
    "ssl.": _TLS,
    "kafka.": f"This is not Kafka: no setting of its clients has a meaning here. {_CLIENT}",
    "pulsar.": f"This is not Pulsar: no setting of its clients has a meaning here. {_CLIENT}",
    "kinesis.": f"This is not Kinesis. {_URI}. {_SELECT}. {_POSITIONS}",
    "eventhubs.": f"This is not an event hub. {_URI}. {_SELECT}. {_POSITIONS}",
}


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
                    f"Option {option.key} has no meaning here: it belongs to: {scope_words(option.scope)}",
                    advice=f"This is: {scope_words(scope)}. Remove the option",
                )
            _read(option, value)
            self._given[option.key] = value
        self.passed_on()  # which is refused where settings contradict each other

    def __reduce__(self) -> tuple[object, ...]:
        return (Options, (self._raw(), self.scope, self._session))

    def _raw(self) -> dict[str, str]:
        return dict(self._given) if self._path is None else {**self._given, _PATH: self._path}

    def with_uri(self, uri: str) -> Options:
        """Return the same options with the namespace's URI settled, wherever it came from."""
        return Options({**self._raw(), "uri": uri}, self.scope, self._session)

    @property
    def uri(self) -> str:
        """The namespace's URI; the data source settles it before it makes a reader or writer."""
        found = self.text("uri")
        check(found is not None, "the namespace's URI was not settled")
        return str(found)

    @property
    def path(self) -> str | None:
        """The path that load() or save() was given, if any."""
        return self._path

    def given(self, name: str) -> bool:
        """Return whether the query or the session's conf sets the option (a default does not count)."""
        found = _registered(name).key
        return found in self._given or found in self._session

    def asked(self, name: str) -> bool:
        """Return whether the query itself sets the option."""
        return _registered(name).key in self._given

    def given_names(self) -> frozenset[str]:
        """Return the names of all options that the user set."""
        return frozenset(self._given)

    def text(self, name: str) -> str | None:
        """Return the option's text, or the session's default, or the registry's, or None."""
        option = _registered(name)
        return self._given.get(option.key, self._session.get(option.key, option.default))

    def passed_on(self) -> dict[str, str]:
        """Return the settings for the namespace's clients that options hand on, with keys in lower case as Spark leaves
        them: `bkc.<key>` as they are, `distributedlog.<key>` without that prefix, and those that `tls....` are. Raises
        OptionError where these contradict each other."""
        merged = {**self._session, **self._given}
        found = {
            name.removeprefix(SETTINGS_PREFIX): value for name, value in merged.items() if name.startswith(PASSED_ON)
        }
        return found | tls_settings({name: merged[name] for name in TLS_SETTINGS if name in merged}, found)

    @property
    def outage_ms(self) -> int:
        """How long a query waits for what is away, in milliseconds."""
        return min(self.duration_ms("outageTimeout") or 0, MAX_INT)

    @property
    def proxies(self) -> ProxyChoice | None:
        """The proxies to go through; None: through none."""
        value = self.text(PROXY)
        return None if value is None else ProxyChoice.parse(value)

    @property
    def columns(self) -> ColumnChoice | None:
        """Which columns a frame has; None: what the log declares decides."""
        value = self.text(COLUMNS)
        return None if value is None else CHOICES.read(value)

    def flag(self, name: str) -> bool:
        """Return the value of a true/false option (all of them have a default)."""
        return FLAG.read(self.text(name) or "")

    def integer(self, name: str) -> int | None:
        """Return the value of an integer option, or None if it is not given and has no default."""
        value = self.text(name)
        return None if value is None else WHOLE.read(value)

    def duration_ms(self, name: str) -> int | None:
        """Return the value of a duration in milliseconds, or None."""
        value = self.text(name)
        return None if value is None else DURATION.read(value)

    def instant_ms(self, name: str) -> int | None:
        """Return the value of a point in time as milliseconds since the epoch, or None."""
        value = self.text(name)
        return None if value is None else INSTANT.read(value)

    def one_log(self) -> str | None:
        """Return the log named by the option `log` or by load/save; OptionError if they name different ones."""
        named = self.text("log")
        if named is not None and self._path is not None and named != self._path:
            raise OptionError(
                f"Two logs are named: option log says {named!r}, the path says {self._path!r}",
                advice="Give the name once",
            )
        return named if named is not None else self._path


def read_as(name: str, where: str, text: str) -> int:
    """Return a number that stands in for the value of the option `name`, elsewhere; an OptionError names `where`."""
    value = _read(_registered(name), text, where)
    check(isinstance(value, int), "the option is not a number")
    return cast(int, value)


def _read(option: Option, text: str, where: str | None = None) -> object:
    try:
        return read_value(option, where or option.key, _not_empty(where or option.key, text), OptionError)
    except OptionError as error:
        said = error.message.removeprefix("Option ")
        if option.secret:  # it begins with "the value of": what was given is not repeated
            raise OptionError(f"Option {option.key}: {said}", advice=error.advice) from None
        raise OptionError(f"Option {said}", advice=error.advice) from None


def _not_empty(name: str, text: str) -> str:
    if not text.strip():
        raise OptionError(f"Option {name} is empty", advice="Give it a value or leave it out")
    return text


def _registered(name: str) -> Option:
    return BY_NAME[name.lower()]


def _session_defaults(session: Mapping[str, str], scope: Scope) -> dict[str, str]:
    """Return the checked session defaults that concern a query of kind `scope`."""
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
        # A default of another kind of query is not an error: one session reads and writes.
        if option.scope & scope:
            found[option.key] = value
    return found


def _known(name: str) -> Option:
    option = BY_NAME.get(name)
    if option is not None:
        return option
    instead = elsewhere(name)
    if instead is not None:
        raise OptionError(f"Option {name!r} is another connector's", advice=instead)
    advice = nearest(name, (option.key for option in OPTIONS), "docs/settings/spark.md")
    raise OptionError(f"Unknown option {shown(name)}", advice=advice)


def elsewhere(name: str) -> str | None:
    """Return what to use instead of another connector's option (its name in lower case); None for an unknown name."""
    found = ELSEWHERE.get(name)
    if found is not None:
        return found
    bare = name.partition(".")[2]
    for prefix, words in _PREFIXES.items():
        if name.startswith(prefix):
            return ELSEWHERE.get(bare, words)
    return None
