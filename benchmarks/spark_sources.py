"""Data sources that rows P6 and P7 compare with: ours with the work left out.

Spark pickles these classes into its workers by name, so they live in a module of their own that starts nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from benchmarks.payloads import any_lengths
from dlspark.core.codec.entries import decode_entries
from dlspark.spark.columns import record_batches
from dlspark.spark.datasource import DistributedLogDataSource
from dlspark.spark.options import Scope
from dlspark.spark.schema import SCHEMA
from dlspark.spark.sink import BatchWriter
from metadata.sinks import job_sink

PAYLOAD_BYTES = 100
IDENTICAL = "identical_batches"
UNPUBLISHED = "distributedlog_unpublished"


class IdenticalBatches(DataSource):
    """Rows as our source makes them, from nowhere: options `partitions` and `repeat` (of some 4 MB of records)."""

    @classmethod
    def name(cls) -> str:
        return IDENTICAL

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        partitions, repeat = int(self.options["partitions"]), int(self.options["repeat"])
        return _IdenticalReader(schema.names, partitions, repeat)


@dataclass(frozen=True)
class _Share(InputPartition):
    """How often one task yields the batches."""

    repeat: int


class _IdenticalReader(DataSourceReader):
    def __init__(self, names: Sequence[str], partitions: int, repeat: int) -> None:
        self._names = list(names)
        self._shares = [_Share((repeat + i) // partitions) for i in range(partitions)]

    def partitions(self) -> Sequence[InputPartition]:
        return self._shares

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, _Share):
            batches = _batches(tuple(self._names))
            for _ in range(partition.repeat):
                yield from batches


_made: dict[tuple[str, ...], list[pa.RecordBatch]] = {}


def _batches(names: tuple[str, ...]) -> list[pa.RecordBatch]:
    """Made once in a worker process; Spark uses its workers again."""
    if names not in _made:
        entries = [(i, memoryview(entry)) for i, entry in enumerate(any_lengths(PAYLOAD_BYTES).entries())]
        rows = decode_entries(entries, lssn=1, start_sequence_id=0)
        _made[names] = list(record_batches(rows, "benchmark", names))
    return _made[names]


def rows_per_repeat() -> int:
    """Rows that one repetition yields."""
    return len(any_lengths(PAYLOAD_BYTES).txids)


class Unpublished(DistributedLogDataSource):
    """Our sink without its commit: tasks write the same entries into ledgers of the same kind, and nothing is shown."""

    @classmethod
    def name(cls) -> str:
        return UNPUBLISHED

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        attempt = uuid.uuid4().hex
        return _UnpublishedWriter(self._settled(Scope.SINK_BATCH), schema, job_sink(attempt), 0, attempt)


class _UnpublishedWriter(BatchWriter):
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish nothing."""
