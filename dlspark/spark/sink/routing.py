"""Routing by hash: one of `numLogs` logs for each row, chosen by the columns of `partitionBy`.

The number of a row's log is, in Spark SQL and here,

    crc32(concat_ws('\\u001f', key columns)) % numLogs

CRC-32 (IEEE 802.3, that of zlib) of the key columns as text, joined by one byte 0x1f, nulls left out; binary counts as
it is, so that of a single binary key is `crc32(key)` (Spark's cast to text changes bytes that are no UTF-8). It stays
so over releases (a golden test keeps it): a key's rows are in one log, in order, as long as `numLogs` stays. Without
key columns the value takes their place, which spreads rows evenly and sends an equal row to the same log.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

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
)

from dlspark.spark.errors import OptionError, SchemaError
from dlspark.spark.options.registry import Options
from metadata.foundation.errors import check
from metadata.logs import LogStore

PLACEHOLDER = "{}"
MAX_NUM_LOGS = 1000
"""Most logs of one query: a task may have a ledger open in each."""
SEPARATOR = pa.scalar(b"\x1f", pa.large_binary())
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


@dataclass(frozen=True, slots=True)
class Routing:
    """What the options say: the logs by number, and the names of the key columns in lower case."""

    logs: tuple[str, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HashRoute:
    """`Routing` over a data frame: where the columns are that are hashed."""

    logs: tuple[str, ...]
    places: tuple[int, ...]

    def numbers(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The number of the log of each row."""
        return crc32s([batch.column(place) for place in self.places]) % len(self.logs)


def routing_of(options: Options) -> Routing | None:
    """The routing that the options ask for, None if rows go by option, path or column `log`. Raises OptionError."""
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


def route_of(routing: Routing, fields: list[StructField], value: int) -> HashRoute:
    """Where the key columns are among `fields`; `value` stands in for none. Raises SchemaError."""
    places: dict[str, int] = {field.name.lower(): place for place, field in enumerate(fields)}
    for name in routing.keys:
        if name not in places:
            raise SchemaError(
                f"partitionBy names column {name!r}, and there are {', '.join(field.name for field in fields)}",
                advice="Select the key columns beside value; they are hashed, not stored",
            )
        kind = fields[places[name]].dataType
        if not isinstance(kind, KEY_TYPES):
            raise SchemaError(
                f"partitionBy column {name} is {kind.simpleString()}: keys are string, binary, boolean or integer",
                advice=f"Convert it: cast({name} as string) as {name}",
            )
    return HashRoute(routing.logs, tuple(places[name] for name in routing.keys) or (value,))


def crc32s(columns: list[pa.Array]) -> npt.NDArray[np.int64]:
    """CRC-32 of each row's columns, as text joined by SEPARATOR with nulls left out."""
    texts = [_bytes(column) for column in columns]
    if len(texts) > 1:
        # Arrow leaves out a row of which every part is null (26.0), and takes each row after it for another one.
        # So each begins with a part that is there; it and the separator after it are not hashed.
        first = pa.array([b""] * len(texts[0]), pa.large_binary())
        joined = pc.binary_join_element_wise(first, *texts, SEPARATOR, null_handling="skip")
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
