"""Data sources that rows P6 to P8, and P14, compare with: ours with the work left out.

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
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from benchmarks.payloads import any_lengths
from dlspark.core.codec.vector_decoding import decode_entries
from dlspark.spark.datasource import DistributedLogDataSource
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.writer import BatchWriter
from dlspark.spark.source.partition_reader import record_batches
from dlspark.spark.source.schema import SCHEMA
from metadata.distributedlog.sinks import job_sink

PAYLOAD_BYTES = 100
IDENTICAL = "identical_batches"
UNPUBLISHED = "distributedlog_unpublished"
NOTHING = "nothing"


class IdenticalBatches(DataSource):
    """Rows as our source makes them, from nowhere: options `partitions` and `repeat` (of some 4 MB of records)."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name in Spark."""
        return IDENTICAL

    def schema(self) -> StructType:
        """Return the columns of our source."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of `repeat` repetitions, spread over `partitions` tasks."""
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
    """Make the batches once in a worker process; Spark uses its workers again."""
    if names not in _made:
        entries = [(i, memoryview(entry)) for i, entry in enumerate(any_lengths(PAYLOAD_BYTES).entries())]
        rows = decode_entries(entries, lssn=1, start_sequence_id=0)
        _made[names] = list(record_batches(rows, "benchmark", names))
    return _made[names]


def rows_per_repeat() -> int:
    """Return the rows that one repetition yields."""
    return len(any_lengths(PAYLOAD_BYTES).txids)


class Unpublished(DistributedLogDataSource):
    """Our sink without its commit: tasks write the same entries into ledgers of the same kind, and nothing is shown."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name in Spark."""
        return UNPUBLISHED

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of one batch write; its commit publishes nothing."""
        attempt = uuid.uuid4().hex
        return _UnpublishedWriter(self._settled(Scope.SINK_BATCH), schema, job_sink(attempt), 0, attempt)


class _UnpublishedWriter(BatchWriter):
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish nothing."""


class Nothing(DataSource):
    """A stream in Python that does nothing at either end: a batch has one partition of `rows` rows, and is dropped."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name in Spark."""
        return NOTHING

    def schema(self) -> StructType:
        """Return the columns of our source."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader whose every batch has `rows` rows."""
        return _NothingReader(schema.names, int(self.options["rows"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return a writer that drops its rows."""
        return _NothingWriter()


class _NothingReader(DataSourceStreamReader):
    """Each batch has the same rows; offsets count the batches."""

    def __init__(self, names: Sequence[str], rows: int) -> None:
        self._names = tuple(names)
        self._rows = rows

    def initialOffset(self) -> dict[str, int]:
        return {"batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"batch": start["batch"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [_Share(self._rows)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, _Share):
            yield _batches(self._names)[0].slice(0, partition.repeat)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: nothing is held."""


class _NothingWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: nothing was kept."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: nothing was kept."""
