"""The one registry of the connector's options, for source and sink, batch and streaming.

Each option is a setting of the one mechanism that has a scope besides; error messages and the table of
docs/settings/spark.md come from here. The kinds of their values are those of the foundation, and two that only options
have: durations and points in time. What one query was given is read in `query_options`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag
from typing import Final, TypeVar

from dlspark.spark.options.column_choice import CHOICES, COLUMNS
from dlspark.spark.options.proxies import PROXIES, PROXY
from dlspark.spark.options.tls import SECRET_PLACE
from metadata.foundation.settings import EXACT, FLAG, MAX_LONG, TEXT, WHOLE, Kind, Setting
from metadata.foundation.times import read_first_ms

CLIENT_PREFIX = "bkc."
SETTINGS_PREFIX = "distributedlog."
PASSED_ON = (CLIENT_PREFIX, SETTINGS_PREFIX)
"""How the names of options begin that are settings of the ledger client, or of the log core."""
CONF_PREFIX = "spark.distributedlog."
"""How the names of confs begin that are the session's defaults of options."""

_T = TypeVar("_T")

_DURATION: Final = re.compile(r"([0-9]{1,19})\s*([a-z]*)")
# The suffixes of Spark's own durations (spark.network.timeout and its like).
_UNIT_MICROS: Final = {
    "us": 1,
    "": 1_000,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}


def _read_duration(text: str) -> int:
    """Return milliseconds, rounded up; a number without a unit counts them, as in Spark's own durations."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNIT_MICROS:
        raise ValueError(text)
    return -(-int(found[1]) * _UNIT_MICROS[found[2]] // 1_000)


DURATION: Final[Kind[int]] = Kind(
    "a duration as 15m, 90s or 500ms (units: us, ms, s, m, min, h, d; without one: milliseconds)",
    _read_duration,
    WHOLE.take,
)
INSTANT: Final[Kind[int]] = Kind(
    "a time: milliseconds since 1970, as 1372636800000, or ISO-8601, as 2013-07-01T00:00:00Z",
    read_first_ms,
    WHOLE.take,
)


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


def scope_words(scope: Scope) -> str:
    """Return what errors and the documentation call a kind of query."""
    return _SCOPE_WORDS.get(scope, str(scope))


_TYPES: Final[Mapping[object, str]] = {
    EXACT: "text",
    TEXT: "text",
    FLAG: "true / false",
    WHOLE: "integer >= {minimum}",
    INSTANT: "epoch milliseconds or ISO-8601",
    DURATION: "duration",
    PROXIES: "`discover` or addresses",
    CHOICES: "raw / typed / both",
    SECRET_PLACE: "`file:PATH` or `env:NAME`",
}
"""The names of the kinds in the documentation's table."""


@dataclass(frozen=True, slots=True)
class Option(Setting):
    """One option. `default` is the text that stands in when the option is not given; None: there is none."""

    scope: Scope = Scope.ANY
    default: str | None = None
    default_words: str | None = None

    @property
    def type_words(self) -> str:
        """Its values, as the documentation's table has them."""
        return _TYPES[self.kind].format(minimum=self.minimum)


def _option(
    name: str,
    kind: Kind[_T],
    scope: Scope,
    meaning: str,
    *,
    minimum: int = 0,
    default: str | None = None,
    default_words: str | None = None,
    secret: bool = False,
    choices: tuple[str, ...] = (),
) -> Option:
    """Return an option; where it is a number, it is one of Java's longs that are not negative."""
    return Option(
        kind,  # type: ignore[arg-type]
        name,
        meaning,
        minimum,
        MAX_LONG,
        scope=scope,
        secret=secret,
        choices=choices,
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
        "time: milliseconds, or `2013-07-01T02:00:00.000000001+02:00` and what is shorter (without a zone: UTC). If "
        "there is none yet: see `startingOffsetsByTimestampStrategy`",
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
        "Stop before the first record at or after this time (exclusive; written as for `startingTimestamp`); at the "
        "end of the log if there is none",
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
        "its ZooKeeper session ends. `0s`: not at all, but for the lock 5 seconds",
        default="2m",
    ),
    _option(
        "region",
        EXACT,
        Scope.SOURCE,
        "Region to read in first, of a log whose copies lie in several (the first part of the nodes' locations). A "
        "task goes by the environment variable `DLSPARK_REGION` of its executor first: set that where executors run in "
        "several regions (`spark.executorEnv.DLSPARK_REGION`, or their machines' environment)",
        default_words="environment, else copies in turn",
    ),
    _option(
        PROXY,
        PROXIES,
        Scope.ANY,
        "Go through proxies of the serving tier: `discover`, those that are announced in the namespace, or a list of "
        "their addresses for frames, `host:port,host:port`: of read proxies for a source, of write proxies for a sink. "
        "The tasks of a source then talk to read proxies alone; its driver plans as ever. Each batch of a sink is one "
        "request to a write proxy: for one log, of at most 1 MB, with a number",
        default_words="no proxies",
    ),
    _option(
        "tls.directory",
        EXACT,
        Scope.ANY,
        "On a secured cluster: the identity folder by which driver and tasks prove who they are, and which says whom "
        "to believe (`dlspark tls issue`), at the same path on the driver and every executor. As each of the options "
        "`tls....` it switches security on, for ZooKeeper, storage nodes and proxies alike. All of them name files, or "
        "variables: no option's value is a secret",
        default_words="environment variable `DLSPARK_SECURITY`",
    ),
    _option(
        "tls.keyStore",
        EXACT,
        Scope.ANY,
        "The private key (PEM), or the store (JKS, PKCS12) that has it and its certificate, over those of "
        "`tls.directory`",
    ),
    _option(
        "tls.keyStoreType",
        TEXT,
        Scope.ANY,
        "What `tls.keyStore` is",
        choices=("pem", "jks", "pkcs12"),
        default_words="`jks`",
    ),
    _option(
        "tls.keyStorePassword",
        SECRET_PLACE,
        Scope.ANY,
        "Where the password of `tls.keyStore` is: `file:` and a path, or `env:` and the name of an environment "
        "variable of driver and executors",
        secret=True,
    ),
    _option(
        "tls.certificate",
        EXACT,
        Scope.ANY,
        "The certificate, PEM, and behind it those that lead to an authority, if `tls.keyStore` is a private key",
    ),
    _option(
        "tls.trustStore",
        EXACT,
        Scope.ANY,
        "The certificates of the authorities that are believed (PEM), or a store (JKS, PKCS12) that has them",
    ),
    _option(
        "tls.trustStoreType",
        TEXT,
        Scope.ANY,
        "What `tls.trustStore` is",
        choices=("pem", "jks", "pkcs12"),
        default_words="`jks`",
    ),
    _option(
        "tls.trustStorePassword",
        SECRET_PLACE,
        Scope.ANY,
        "Where the password of `tls.trustStore` is, as for `tls.keyStorePassword`",
        secret=True,
    ),
    _option(
        "tls.revocationLists",
        EXACT,
        Scope.ANY,
        "Revocation lists, PEM, one of each authority",
        default_words="`revoked.pem` in `tls.directory`, if it is there",
    ),
    _option(
        "tokenKeyFile",
        EXACT,
        Scope.SOURCE,
        "With `proxy`, on a secured cluster: the file with the private key (`dlspark token key`) by which the driver "
        "makes short-lived tokens for its tasks: the driver's own name and roles, restricted to reading the query's "
        "logs. It is read on the driver alone. The key is never an option's value: the environment variable "
        "`DLSPARK_TOKEN_KEY_FILE` of the driver names the file as well, or `DLSPARK_TOKEN_KEY` has the key itself; "
        "both count where the cluster is secured, and not for a query with `tokenKeyFile=none`",
        default_words="environment, else tasks show what their executors have",
    ),
    _option(
        "tokenLifetime",
        DURATION,
        Scope.SOURCE,
        "How long the token of a task is good for. Each plan, so each micro-batch, has one that is good for half of it "
        "at least; a task that goes on, or is run again, after the end of its token fails, and says so. Longer than a "
        "whole job, then, and than a frame is used. Proxies bound it (`tokenMaxLifetimeSeconds`, a day)",
        default="12h",
        minimum=60_000,
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
        COLUMNS,
        CHOICES,
        Scope.ANY,
        "Of a log that declares a schema: `typed`, the columns that it declares, in a source with `_log` and `_error` "
        "behind them (docs/tables.md), or `raw`, the columns that the records of every log have. Source: `both` has "
        "the bytes of each record as `value` besides. Sink: `raw` writes the bytes of a column `value` as they are",
        default_words="Source: `typed` where one log is named, by its name, and declares a schema, else `raw`. Sink: "
        "`raw` where there is a column `value` that the log does not declare",
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
    _option(
        "commitMode",
        EXACT,
        Scope.SINK,
        "How a batch with a number (of a stream, or of a write with `txnVersion`) gets into its log: `segments` of its "
        "own, which takes any size and any number of logs; `append` to a segment that stays open, for small batches at "
        "short intervals: a batch for one log that fits into one entry (1 MB). `auto` appends a batch for one log of "
        "at most `appendMaxBytes`, and makes segments of any other. A batch for several logs always makes segments, so "
        "that it appears in all of them at once. A replay is recognised whichever way it was written",
        default_words="`auto` of a stream, `segments` of a batch",
    ),
    _option(
        "appendMaxBytes",
        WHOLE,
        Scope.SINK,
        "With `commitMode=auto`: most bytes of a batch that is appended, 20 a record included",
        default=str(512 << 10),
        minimum=1,
    ),
    _option(
        "appendIdleRelease",
        DURATION,
        Scope.SINK,
        "How long after the last batch the log stays held for the next one: then its segment is completed and its lock "
        "given up. A writer that waits for the lock gets it at once. `0s`: after each batch",
        default="1m",
    ),
    _option("ensembleSize", WHOLE, Scope.SINK, "Storage nodes that a segment is spread over", default="3", minimum=1),
    _option("writeQuorumSize", WHOLE, Scope.SINK, "Copies of each entry", default="3", minimum=1),
    _option(
        "ackQuorumSize", WHOLE, Scope.SINK, "Copies that must be on disk before an entry counts", default="2", minimum=1
    ),
)

BY_NAME: Final[Mapping[str, Option]] = {option.key.lower(): option for option in OPTIONS}
"""By the name in lower case, as Spark may leave it."""
