"""The data source that Spark sees as format `distributedlog`: it hands each kind of query to the module that does it.

Spark imports this class in several short-lived worker processes, so everything heavier than the registry of options is
imported only when it is needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from dlspark.spark.catalog.tables import REQUEST, SCAN, pushed, unpacked
from dlspark.spark.connection import defaults_among, resolve_uri, session_defaults
from dlspark.spark.metadata_tables.registry import METADATA_OPTION, refuse_stream, requested, table_named
from dlspark.spark.options.column_choice import ColumnChoice
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.schema_version import SchemaVersion
from dlspark.spark.source.schema import SCHEMA
from dlspark.spark.worker_daemon import begin_use, in_worker, take_far_times, without_traceback
from metadata.foundation.errors import DistributedLogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@without_traceback
class DistributedLogDataSource(DataSource):
    """Format `distributedlog`: batch and streaming, reading and writing."""

    session_conf: ClassVar[Mapping[str, str] | None] = None

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Keep the options, as every data source does, and count a use of this process.

        Spark makes one in each use of a worker that plans a write or answers for columns, and of one that only makes it
        for the commit of a micro-batch: nothing else of ours is called there.
        """
        begin_use()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "distributedlog"

    def schema(self) -> StructType:
        """Return the columns; for a request of the catalog's Java side, the answer, packed into a schema."""
        if REQUEST in self.options:
            from dlspark.spark.catalog.requests import answer_in_schema

            plain = {name: value for name, value in self.options.items() if name != REQUEST}
            return answer_in_schema(self.options[REQUEST], plain, session_defaults(os.environ, self.session_conf))
        options = Options(dict(self.options), Scope.ANY)
        if options.given(METADATA_OPTION):
            return table_named(options.text(METADATA_OPTION) or "").schema
        if options.columns is ColumnChoice.RAW:
            return SCHEMA  # without loading what looks a log up
        from dlspark.spark.source.loading import loaded_columns

        return loaded_columns(Options(dict(self.options), Scope.ANY, session_defaults(os.environ, self.session_conf)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query, or of a metadata table."""
        options, words = self._settled(Scope.SOURCE_BATCH), pushed(self.options)
        table = requested(options)
        if table is not None:
            from dlspark.spark.catalog.scan import hints_of
            from dlspark.spark.metadata_tables.reader import table_reader

            return table_reader(table, options, schema, hints_of(words))
        from dlspark.spark.source.readers import batch_reader

        if SCAN not in self.options:
            return batch_reader(options, schema)
        from dlspark.spark.catalog.scan import Pushed

        down = Pushed.of(words)
        return batch_reader(
            options,
            schema,
            bounds=down.bounds,
            take=down.take,
            seen=down.seen,
            planned_in=down.planned_in,
            version=down.version,
            hints=down.hints,
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query."""
        from dlspark.spark.source.readers import RefusedStream, stream_reader

        try:
            refuse_stream(Options(unpacked(self.options, Scope.SOURCE_STREAM), Scope.ANY))
            version = SchemaVersion.of_json(pushed(self.options).get("declared"))
            settled = SCAN in self.options
            return stream_reader(self._settled(Scope.SOURCE_STREAM), schema, version=version, settled=settled)
        except DistributedLogError as error:
            if in_worker():
                return RefusedStream(error)
            raise

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of `df.write`."""
        from dlspark.spark.sink.writer import batch_writer

        return batch_writer(self._settled(Scope.SINK_BATCH), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of one micro-batch of `df.writeStream`."""
        from dlspark.spark.sink.writer import stream_writer

        return stream_writer(self._settled(Scope.SINK_STREAM), schema, overwrite)

    def _settled(self, scope: Scope) -> Options:
        """Return the checked options, with the namespace's URI settled: the one place where conf and environment are
        asked."""
        options = Options(unpacked(self.options, scope), scope, session_defaults(os.environ, self.session_conf))
        return options.with_uri(resolve_uri(options))


if in_worker():
    take_far_times()


def register(spark: SparkSession) -> None:
    """Hand the session's confs `spark.distributedlog.*` on to the data source, and the session to the calling thread.

    Spark's workers cannot see a conf that a running session (or a Spark Connect client) sets; a data source that
    is registered by hand can carry it. Call it again after changing the conf. Without the conf it registers the plain
    source, which does no harm.

    And Spark looks for data sources of Python in the active session of the thread, which only the thread has that made
    the session: in another one `df.write` and `df.writeStream` end in DATA_SOURCE_NOT_FOUND, unless `builder` made the
    session, whose jar has a class that needs none. Call it once in each such thread.
    """
    confs = defaults_among(spark.conf.getAll)
    spark.dataSource.register(type("DefaultSource", (DistributedLogDataSource,), {"session_conf": confs}))
    spark.createDataFrame([], SCHEMA)  # of what PySpark has for everybody, this makes it the thread's active session
