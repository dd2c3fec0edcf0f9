"""The columns of a frame when it is loaded: `spark.read...load("flights")` asks for them before anything is read.

Where exactly one log is named, what it declares is looked up, with a session of its own that is ended at once: Spark's
workers live and die as Spark pleases (I16). With `columns=raw`, for several logs or a pattern nothing is looked up.

Fault model: where ZooKeeper cannot be reached the frame is not loaded, and the error names the namespace. A log that
does not exist has the columns of records: the read says what is missing.
"""

from __future__ import annotations

from functools import partial

from pyspark.sql.types import StructType

from dlspark.core.namespace import AsyncNamespace
from dlspark.core.runtime import Runtime
from dlspark.core.typed.declarations import Declarations
from dlspark.spark.connection import Connect, namespace_settings, open_namespace, resolve_uri
from dlspark.spark.options.column_choice import ColumnChoice
from dlspark.spark.options.query_options import Options
from dlspark.spark.source.frame_columns import undeclared_error
from dlspark.spark.source.schema import SCHEMA
from dlspark.spark.source.selection import SourceQuery
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.foundation.errors import DistributedLogError


def loaded_columns(options: Options) -> StructType:
    """Return the columns of a frame that is loaded with these options. Raises as `columns_of`, and where the namespace
    cannot be opened."""
    try:
        query = SourceQuery.of(options.with_uri(resolve_uri(options)))
    except DistributedLogError:
        if options.columns is None:
            return SCHEMA  # the reader is refused, which says of what kind the query is
        raise
    if query.selection.one is None or query.columns is ColumnChoice.RAW:
        return SCHEMA
    runtime = Runtime("dlspark-columns")
    try:
        return runtime.run(look_up(query))
    finally:
        runtime.close()


async def look_up(query: SourceQuery, given: StructType | None = None, connect: Connect | None = None) -> StructType:
    """Return the columns of a query that names one log, or those that the user has given, checked. Raises as
    `columns_of`, `given_columns`, and where the namespace cannot be opened."""
    settings = namespace_settings(dict(query.client_settings)) or None
    namespace = await open_namespace(query.uri, connect or partial(AsyncNamespace.open, settings=settings))
    try:
        if given is None:
            return await columns_of(namespace, query)
        from dlspark.spark.source.declared_columns import given_columns  # frames of other logs need none of it

        return await given_columns(namespace, query, given)
    finally:
        await namespace.close()


async def columns_of(namespace: AsyncNamespace, query: SourceQuery) -> StructType:
    """Return the columns of a frame of a query: those that its log declares now, or those of records.

    Raises OptionError where the user asks for the log's and it declares none, InvalidSchemaError where `columns=both`
    cannot be, CorruptDataError.
    """
    log = query.selection.one
    if log is None:
        return SCHEMA
    try:
        found = await Declarations(namespace.logs_store, log).find()
    except LogNotFoundError:
        found = None
    if found is not None:
        from dlspark.spark.typed_columns import frame_columns

        return frame_columns(found.declaration.current, found.stored.id, both=query.columns is ColumnChoice.BOTH)
    if query.columns is not None:
        raise undeclared_error(log, query.columns)
    return SCHEMA
