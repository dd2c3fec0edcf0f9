"""The columns that a sink takes, and where they are in a frame; what becomes of rows is in `log_rows`.

`value` (string or binary) is required; `transaction_id` (bigint) is optional; `log` (string) is needed unless an option
or the path names one log, which then counts for every row, or rows are spread by hash, when columns may be there that
are only hashed. Anything else is refused rather than dropped.

Routing by hash sends each row to one of `numLogs` logs, chosen by the columns of `partitionBy`. The number of a row's
log is, in Spark SQL and here,

    crc32(concat_ws('\\u001f', key columns)) % numLogs

CRC-32 (IEEE 802.3, that of zlib) of the key columns as text, joined by one byte 0x1f, nulls left out; binary counts as
it is, so that of a single binary key is `crc32(key)` (Spark's cast to text changes bytes that are not UTF-8). It stays
so over releases (a golden test keeps it): a key's rows are in one log, in order, as long as `numLogs` stays. Without
key columns the value takes their place, which spreads rows evenly and sends an equal row to the same log.

All that is said here of `value` holds for frames of bytes. Which frames have a log's own columns instead, and what
becomes of those, is in `row_cutting` and `row_encoding`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from dlspark.spark.errors import OptionError, SchemaError
from dlspark.spark.options.query_options import Options
from metadata.distributedlog.logs import LogStore
from metadata.foundation.settings import did_you_mean

if TYPE_CHECKING:
    from dlspark.tables.declaration import Declaration

PLACEHOLDER = "{}"
MAX_NUM_LOGS = 1000
"""Most logs of one query: a task may have a ledger open in each."""
SEPARATOR = b"\x1f"
KEY_TYPES: tuple[type[DataType], ...] = (
    StringType,
    BinaryType,
    BooleanType,
    ByteType,
    ShortType,
    IntegerType,
    LongType,
)
"""Types whose text is the same in Arrow and in Spark."""

_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "value": (StringType, BinaryType),
    "transaction_id": (LongType, IntegerType, ShortType, ByteType),
    "log": (StringType,),
}
_TYPE_WORDS = {"value": "string or binary", "transaction_id": "bigint", "log": "string"}
_CASTS = {
    "value": "to_json(struct(*)) or cast(value as string)",
    "transaction_id": "cast(transaction_id as bigint), or unix_millis(time) of a timestamp",
    "log": "cast(log as string)",
}


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The sink's columns by their numbers in a data frame; `log` is None if every row goes to `one_log`, or by
    `route`."""

    value: int
    transaction_id: int | None
    log: int | None
    one_log: str | None
    route: HashRoute | None = None
    typed: TypedFrame | None = None
    """Not None: the rows are the log's own columns, and are encoded as it declares; `value` is -1 then."""

    @property
    def known_logs(self) -> tuple[str, ...]:
        """The logs that rows may go to, if they are known before any row was seen; else empty."""
        if self.route is not None:
            return self.route.logs
        return () if self.one_log is None else (self.one_log,)


@dataclass(frozen=True, slots=True)
class TypedFrame:
    """A data frame whose rows are encoded by what their logs declare (`row_encoding`).

    `names` are all its columns; `keys` are those that are only hashed, unless a log declares them. `declared` is what
    the logs declare that were known before any row was seen.
    """

    names: tuple[str, ...]
    keys: tuple[str, ...]
    declared: Mapping[str, Declaration]


def columns_of(schema: StructType, one_log: str | None, routing: Routing | None = None) -> SinkColumns:
    """Check a data frame's columns. `one_log` does not count where there is `routing`.

    Raises SchemaError or InvalidLogNameError; nothing has run then.
    """
    indices = _column_indices(schema, routing.keys if routing is not None else ())
    if routing is not None:
        route = route_of(routing, schema.fields, indices["value"])
        return SinkColumns(indices["value"], indices.get("transaction_id"), None, None, route)
    if one_log is not None:
        LogStore.validate_name(one_log)
    elif "log" not in indices:
        raise SchemaError(
            "No log to write to: there is neither an option or path that names one, nor a column log",
            advice='Give option("log", "name"), or save("name"), or add a string column log',
        )
    return SinkColumns(
        indices["value"], indices.get("transaction_id"), indices["log"] if one_log is None else None, one_log
    )


def _column_indices(schema: StructType, keys: tuple[str, ...]) -> dict[str, int]:
    """Return the columns by name in lower case, with the right types; those in `keys` may be there beside ours."""
    indices: dict[str, int] = {}
    for index, field in enumerate(schema.fields):
        name = field.name.lower()
        if name in keys and name not in _TYPES and name not in indices:
            indices[name] = index
            continue
        if name not in _TYPES or name in indices:
            what = "twice" if name in indices else f"that is called {field.name!r}"
            raise SchemaError(
                f"The sink was given a column {what}: it takes value, transaction_id and log ({schema.simpleString()})",
                advice='Choose columns, for example df.select("transaction_id", "value"), '
                'or pack them: to_json(struct("*")) as value; partitionBy names columns that are only hashed',
            )
        if not isinstance(field.dataType, _TYPES[name]):
            raise SchemaError(
                f"Column {name} must be {_TYPE_WORDS[name]}, not {field.dataType.simpleString()}",
                advice=f"Convert it: {_CASTS[name]}",
            )
        indices[name] = index
    if "value" not in indices:
        raise SchemaError(
            f"The sink needs a column value, string or binary ({schema.simpleString()})",
            advice='Make one, for example to_json(struct("*")) as value',
        )
    return indices


@dataclass(frozen=True, slots=True)
class Routing:
    """The routing that options ask for: the logs by number, and the names of the key columns in lower case."""

    logs: tuple[str, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HashRoute:
    """`Routing` over a data frame: where the columns are that are hashed."""

    logs: tuple[str, ...]
    indices: tuple[int, ...]


def routing_of(options: Options) -> Routing | None:
    """Return the routing that the options ask for, None if rows go by option, path or column `log`. Raises
    OptionError."""
    count, keys, template = options.integer("numLogs"), options.text("partitionBy"), options.one_log()
    if count is None:
        _refuse_half(keys, template)
        return None
    if template is None or template.count(PLACEHOLDER) != 1:
        raise OptionError(
            f"numLogs needs a template for the names of the logs, with one {PLACEHOLDER} in it, not {template!r}",
            advice=f'Give option("log", "flights-{PLACEHOLDER}"), or save("flights-{PLACEHOLDER}")',
        )
    if count > MAX_NUM_LOGS:
        raise OptionError(
            f"numLogs is {count}, and a task may write {MAX_NUM_LOGS} logs at most", advice="Take fewer logs"
        )
    names = tuple(LogStore.validate_name(template.replace(PLACEHOLDER, str(number))) for number in range(count))
    return Routing(names, _key_names(keys) if keys is not None else ())


def _refuse_half(keys: str | None, template: str | None) -> None:
    if keys is not None:
        raise OptionError(
            f"partitionBy says {keys!r}, and numLogs, over how many logs, is missing",
            advice="Give numLogs, or name each row's log in a column log",
        )
    if template is not None and PLACEHOLDER in template:
        raise OptionError(
            f"{template!r} is a template for the names of several logs, and numLogs, how many, is missing",
            advice="Give numLogs, or a name without {}",
        )


def _key_names(keys: str) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in keys.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise OptionError(
            f"partitionBy names a column twice or not at all: {keys!r}", advice="Name columns, separated by commas"
        )
    return names


def route_of(routing: Routing, fields: list[StructField], value: int | None) -> HashRoute:
    """Return where the key columns are among `fields`; `value` stands in for none, where there is one. Raises
    SchemaError."""
    if value is None and not routing.keys:
        raise SchemaError(
            "numLogs spreads typed rows by columns, and partitionBy does not say by which",
            advice='Give option("partitionBy", "id"), the names of one or more columns',
        )
    indices: dict[str, int] = {field.name.lower(): index for index, field in enumerate(fields)}
    for name in routing.keys:
        if name not in indices:
            raise SchemaError(
                f"partitionBy names column {name!r}, and there are {', '.join(field.name for field in fields)}",
                advice=f"{did_you_mean(name, indices)}Select the key columns beside value; they are hashed, not stored",
            )
        kind = fields[indices[name]].dataType
        if not isinstance(kind, KEY_TYPES):
            raise SchemaError(
                f"partitionBy column {name} is {kind.simpleString()}: keys are string, binary, boolean or integer",
                advice=f"Convert it: cast({name} as string) as {name}",
            )
    places = tuple(indices[name] for name in routing.keys)
    return HashRoute(routing.logs, places if value is None else places or (value,))
