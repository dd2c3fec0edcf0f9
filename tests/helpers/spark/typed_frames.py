"""Rows of bytes as rows of a log that declares columns, and back: exactly-once tests run with either kind of frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import pyarrow as pa

from dlspark.spark.sink.columns import SinkColumns, TypedFrame
from dlspark.tables.arrow_types import schema_from_arrow
from dlspark.tables.codecs import RecordDecoder
from dlspark.tables.declaration import Declaration, RecordFormat
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.record_schemas import SchemaStore

RAW: Final = "raw"
BODY: Final = pa.field("body", pa.binary(), nullable=False)
LENGTH: Final = pa.field("length", pa.int32())
AT: Final = pa.field("at", pa.int64(), nullable=False)
EARLY: Final = 1
"""A time that nearly every log is past: ids are raised from it."""


@lru_cache
def declaration_of(kind: str, *, timed: bool = False) -> Declaration:
    """Return what a log declares whose records hold `body`, its length, and, where `timed`, the time that gives ids."""
    columns = [BODY, LENGTH, *([AT] if timed else [])]
    schema = schema_from_arrow(pa.schema(columns))
    return Declaration.of(RecordFormat(kind), schema, timestamp="at" if timed else None)


async def declare(logs: LogStore, log: str, declaration: Declaration) -> None:
    """Create a log, where it is missing, that declares this, unless it declares something."""
    await logs.ensure(log)
    if await SchemaStore(logs).get(log) is None:
        await SchemaStore(logs).declare(log, declaration.encode())


def own_columns_of(values: Sequence[bytes], times: Sequence[int] | None = None) -> dict[str, pa.Array]:
    """Return rows as the log's own columns."""
    columns = {
        "body": pa.array(values, pa.binary()),
        "length": pa.array([len(value) for value in values], pa.int32()),
    }
    return columns if times is None else {**columns, "at": pa.array(times, pa.int64())}


def bodies(payloads: Sequence[bytes], declaration: Declaration, txids: Sequence[int] | None = None) -> list[bytes]:
    """Return what was `body` of each row, and of a record that does not fit, its bytes; with `txids`, one whose time is
    above its id does not fit."""
    ids = None if txids is None else pa.array(txids, pa.int64())
    found = _decoder(declaration.format.value, declaration.timestamp_id is not None).decode(
        pa.array(payloads, pa.binary()), ids
    )
    each = range(len(payloads)) if found.counts is None else _records(found.counts.to_pylist())
    rows = zip(each, found.rows.column("body").to_pylist(), found.errors.to_pylist(), strict=True)
    return [body if error is None else payloads[record] for record, body, error in rows]


@lru_cache
def _decoder(kind: str, timed: bool) -> RecordDecoder:
    return RecordDecoder(declaration_of(kind, timed=timed))


def _records(counts: Sequence[int]) -> list[int]:
    return [record for record, count in enumerate(counts) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Frames:
    """Which frames does a test write: `kind` is RAW, or the format of the records of typed ones, which have times."""

    kind: str = RAW
    timed: bool = True

    @property
    def typed(self) -> bool:
        return self.kind != RAW

    @property
    def declaration(self) -> Declaration:
        return declaration_of(self.kind, timed=self.timed)

    def columns(self, log: str, *, ids: bool) -> SinkColumns:
        """Return the sink's columns for one log; `ids`: the rows have ids of their own."""
        if not self.typed:
            return SinkColumns(value=0, transaction_id=1 if ids else None, log=None, one_log=log)
        names = ["body", "length", *(["at"] if self.timed else []), *(["transaction_id"] if ids else [])]
        return SinkColumns(-1, None, None, log, typed=TypedFrame(tuple(names), (), {log: self.declaration}))

    def batch(
        self, values: Sequence[bytes], ids: Sequence[int] | None = None, times: Sequence[int] | None = None
    ) -> pa.RecordBatch:
        """Return rows as an Arrow batch of these frames. `times`: None, all have one that is long ago."""
        if self.typed:
            early = [EARLY] * len(values) if ids is None else ids
            columns = own_columns_of(values, (times or early) if self.timed else None)
        else:
            columns = {"value": pa.array(values, pa.binary())}
        return pa.record_batch(columns if ids is None else {**columns, "transaction_id": pa.array(ids, pa.int64())})

    def read(self, payloads: Sequence[bytes], txids: Sequence[int] | None = None) -> list[bytes]:
        """Return the values that records hold."""
        return bodies(payloads, self.declaration, txids) if self.typed else list(payloads)


class Using:
    """The frames of the test that runs."""

    frames = Frames()
