"""Batch reads: `spark.read.format("distributedlog")`. Planned completely before a task runs, read by tasks alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from dlspark.core.runtime import Runtime
from dlspark.spark.options.registry import Options
from dlspark.spark.plain_errors import plainly_told
from dlspark.spark.source.filters import Bounds, push
from dlspark.spark.source.partition_reader import LogPartition, read_partition
from dlspark.spark.source.schema import column_names
from dlspark.spark.source.selection import SourceQuery
from dlspark.spark.worker_memory import begin_use

if TYPE_CHECKING:
    from dlspark.spark.source.driver import Take


def batch_reader(
    options: Options, schema: StructType, *, filters: bool, bounds: Bounds | None = None, take: Take | None = None
) -> DataSourceReader:
    """The reader of one batch query; with `filters`, one that takes filters (Spark refuses it where they are off).

    `bounds` and `take` are what a planner that knows more of Spark has pushed down (the SQL catalog's).
    """
    query, names = SourceQuery.of(options), column_names(schema)
    if filters:
        return FilteringBatchReader(query, names)
    return BatchReader(query, names, bounds, take)


@plainly_told
class BatchReader(DataSourceReader):
    """Plans on the driver, reads in tasks; pickled in between."""

    def __init__(
        self, query: SourceQuery, names: Sequence[str], bounds: Bounds | None = None, take: Take | None = None
    ) -> None:
        self._query = query
        self._names = tuple(names)
        self._bounds = bounds or Bounds()
        self._take = take

    def partitions(self) -> Sequence[InputPartition]:
        runtime = Runtime("dlspark-plan")
        try:
            return runtime.run(self._plan())
        finally:
            runtime.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        begin_use()
        return read_partition(partition, self._names)

    async def _plan(self) -> list[InputPartition]:
        from dlspark.spark.source.driver import SourceDriver  # not needed, and not loaded, where tasks run

        driver = SourceDriver(self._query)
        try:
            await driver.open()
            found = await driver.required_views()
            if not found:
                raise await driver.nothing_matches()
            start = await driver.resolve(self._query.start)
            end = await driver.resolve(self._query.end, ending=True)
            planned = await driver.plan(start, end, self._bounds, self._take)
            return [LogPartition(spans, driver.client_settings) for spans in planned]
        finally:
            await driver.close()


@plainly_told
class FilteringBatchReader(BatchReader):
    """A reader that also takes filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._bounds, left = push(filters)
        return left
