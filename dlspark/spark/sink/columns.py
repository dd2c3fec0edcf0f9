"""The columns a sink takes, and rows cut from Arrow batches by log.

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

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
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

from dlspark.core.codec.records import MAX_PAYLOAD_BYTES, MAX_TXID
from dlspark.spark.errors import BatchRefusedError, OptionError, SchemaError, TransactionOrderError
from dlspark.spark.options.query_options import Options
from metadata.distributedlog.log_names import InvalidLogNameError
from metadata.distributedlog.logs import LogStore
from metadata.foundation.errors import check
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
class LogRows:
    """Records of one log in their order. `txids` is None where the batch carries its own timestamp; `timed`: they are
    times of rows, in any order, which are to be raised. `rows`: how many rows of the frame they hold; None: one each.
    """

    log: str
    txids: npt.NDArray[np.int64] | None
    values: pa.Array
    timed: bool = False
    rows: int | None = None

    @property
    def row_count(self) -> int:
        """How many rows of the frame the records hold."""
        return len(self.values) if self.rows is None else self.rows


def rows_by_log(batch: pa.RecordBatch, columns: SinkColumns, task: str) -> list[LogRows]:
    """Cut `batch` by log, keeping the order of rows within each; `task` is for messages.

    Raises BatchRefusedError for nulls and bad names: the whole batch fails with nothing visible.
    """
    if batch.num_rows == 0:
        return []
    values = _payloads(batch.column(columns.value), task)
    txids = transaction_ids(batch.column(columns.transaction_id), task) if columns.transaction_id is not None else None
    logs, codes = logs_of(batch, columns, task)
    if codes is None:
        check_order(txids, logs[0], task)
        return [LogRows(logs[0], txids, values)]
    order, ends = in_order_of_logs(codes, len(logs))
    values = values.take(pa.array(order))
    sorted_txids = None if txids is None else txids[order]
    rows: list[LogRows] = []
    begin = 0
    for log, end in zip(logs, ends, strict=True):
        if begin == end:
            continue
        part = None if sorted_txids is None else sorted_txids[begin:end]
        check_order(part, log, task)
        rows.append(LogRows(log, part, values.slice(begin, end - begin)))
        begin = end
    return rows


def logs_of(batch: pa.RecordBatch, columns: SinkColumns, task: str) -> tuple[list[str], npt.NDArray[np.int64] | None]:
    """Return the logs that rows go to, and the number of each row's among them; None: all go to the first.

    Raises BatchRefusedError for nulls and bad names.
    """
    if columns.route is not None:
        return list(columns.route.logs), columns.route.numbers(batch)
    if columns.log is None:
        return [str(columns.one_log)], None
    names = batch.column(columns.log)
    _refuse_nulls(names, "log", task, "fill it: coalesce(log, 'name')")
    coded = names.dictionary_encode()
    logs: list[str] = coded.dictionary.to_pylist()
    for log in logs:
        _check_name(log, task)
    return logs, None if len(logs) == 1 else coded.indices.to_numpy(zero_copy_only=False)


def in_order_of_logs(codes: npt.NDArray[np.int64], count: int) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Return the order in which rows lie log by log, those of one log as they came (I4), and where each log's end."""
    return np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes, minlength=count)).tolist()


def check_order(txids: npt.NDArray[np.int64] | None, log: str, task: str, last: int = -1) -> None:
    """Raise TransactionOrderError if ids decrease, also from `last`, the highest that the task wrote before."""
    if txids is None or len(txids) == 0:
        return
    steps = np.flatnonzero(txids[1:] < txids[:-1])
    if len(steps):
        raise _decreasing_error(log, task, int(txids[steps[0]]), int(txids[steps[0] + 1]))
    if txids[0] < last:
        raise _decreasing_error(log, task, last, int(txids[0]))


def _decreasing_error(log: str, task: str, before: int, after: int) -> TransactionOrderError:
    return TransactionOrderError(
        f"Transaction ids decrease in {task}: {after} follows {before}; nothing of the batch is visible",
        log=log,
        advice='Write df.repartitionByRange("transaction_id").sortWithinPartitions("transaction_id")',
    )


def _payloads(column: pa.Array, task: str) -> pa.Array:
    _refuse_nulls(column, "value", task, "drop such rows: df.where('value is not null')")
    if not (
        pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type) or pa.types.is_string(column.type)
    ):
        column = column.cast(pa.large_binary())  # large strings, views: the bytes are not touched
    refuse_long(column, task)
    return column


def refuse_long(values: pa.Array, task: str, what: str = "Column value has") -> None:
    """Raise BatchRefusedError for a value that fits in no record, before anything of these rows is sent."""
    if values.nbytes <= MAX_PAYLOAD_BYTES:
        return
    lengths = pc.binary_length(values)
    longest = pc.max(lengths).as_py()
    if longest > MAX_PAYLOAD_BYTES:
        raise BatchRefusedError(
            f"{what} {longest} bytes in row {pc.index(lengths, longest).as_py()} in {task}, and a record "
            f"holds {MAX_PAYLOAD_BYTES} at most; nothing of the batch is visible",
            advice="Cut or compress such values, or keep them in files and write their names",
        )


def transaction_ids(column: pa.Array, task: str) -> npt.NDArray[np.int64]:
    _refuse_nulls(column, "transaction_id", task, "fill it, or leave the column out: the batch then carries one time")
    txids: npt.NDArray[np.int64] = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    refuse_outside(txids, task)
    return txids


def refuse_outside(txids: npt.NDArray[np.int64], task: str) -> None:
    """Raise TransactionOrderError for ids that no record may carry."""
    outside = np.flatnonzero((txids < 0) | (txids == MAX_TXID))
    if len(outside):
        raise TransactionOrderError(
            f"Transaction id {int(txids[outside[0]])} in {task}: ids lie from 0 to 2^63 - 2; "
            "nothing of the batch is visible",
            advice="Write ids in that range, for example milliseconds since the epoch",
        )


def _refuse_nulls(column: pa.Array, name: str, task: str, mend: str) -> None:
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise BatchRefusedError(
            f"Column {name} is null in {column.null_count} of {len(column)} rows in {task}, first in row {row}; "
            "nothing of the batch is visible",
            advice=f"Correct the column: {mend}",
        )


def _check_name(log: str, task: str) -> None:
    try:
        LogStore.validate_name(log)
    except InvalidLogNameError as error:
        raise BatchRefusedError(
            f"Column log in {task} holds {log!r}, which cannot name a log: {error.message}; nothing of the batch is "
            "visible",
            advice=error.advice,
        ) from None


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

    def numbers(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return the number of the log of each row."""
        return crc32s([batch.column(index) for index in self.indices]) % len(self.logs)


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


def crc32s(columns: list[pa.Array]) -> npt.NDArray[np.int64]:
    """Return the CRC-32 of each row's columns, as text joined by SEPARATOR with nulls left out."""
    texts = [_bytes(column) for column in columns]
    if len(texts) > 1:
        # Arrow leaves out a row of which every part is null (26.0), and takes each row after it for another one.
        # So each begins with a part that is there; it and the separator after it are not hashed.
        first = pa.array([b""] * len(texts[0]), pa.large_binary())
        # Not a constant of the module: Arrow imports pandas for a scalar, which takes a process a quarter of a second.
        separator = pa.scalar(SEPARATOR, first.type)
        joined = pc.binary_join_element_wise(first, *texts, separator, null_handling="skip")
        check(len(joined) == len(first), f"{len(joined)} keys were made of {len(first)} rows")
    else:
        joined = texts[0].fill_null(b"")
    begin = 1 if len(texts) > 1 else 0
    # Keys repeat: each is hashed once a batch.
    coded = joined.dictionary_encode()
    keys = coded.dictionary.to_numpy(zero_copy_only=False)
    hashes = np.fromiter((zlib.crc32(key[begin:]) for key in keys), np.int64)
    numbers: npt.NDArray[np.int64] = hashes[coded.indices.to_numpy(zero_copy_only=False)]
    return numbers


def _bytes(column: pa.Array) -> pa.Array:
    binary = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    return column.cast(pa.large_binary()) if binary else column.cast(pa.large_string()).cast(pa.large_binary())
