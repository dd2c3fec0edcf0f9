"""What `CREATE TABLE` may say of a log, and what Spark adds to that. Pure: no I/O.

A log has no layout to choose. Its columns are those of bytes, or its own (`dlspark.spark.catalog.declared_columns`).
Three properties of a table are the schema's: `format`, `timestamp` and `strict`. They are kept with it, and not among
the options, which `dlspark.spark.catalog.tables` checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql.types import StringType, StructType

from dlspark.core.settings.settings import Settings
from dlspark.spark.catalog.tables import of_scope
from dlspark.spark.connection import namespace_settings
from dlspark.spark.errors import OptionError, SchemaError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.session import settings_of
from dlspark.spark.source.schema import SCHEMA
from dlspark.spark.source.selection import SourceQuery

FORMAT: Final = "distributedlog"
RECORD_FORMAT: Final = "format"
TIMESTAMP: Final = "timestamp"
STRICT: Final = "strict"
OF_THE_SCHEMA: Final = (RECORD_FORMAT, TIMESTAMP, STRICT)
"""Properties that are part of what a log declares."""
_ANYWHERE: Final = "distributedlog://127.0.0.1:1/unused"
"""A query has a namespace; what is checked here connects to none."""
_ADDED_BY_SPARK: Final = frozenset({"provider", "owner", "is_managed_location", "table_type"})


def check_layout(partitioning: Sequence[str], *, constrained: bool) -> None:
    """Raise SchemaError for partitions and constraints, which a log cannot have."""
    if partitioning:
        raise SchemaError(
            f"A log cannot be partitioned by {', '.join(partitioning)}; nothing was created",
            advice="A log is one sequence of records; make several logs, as option numLogs of the sink does",
        )
    if constrained:
        raise SchemaError(
            "A log has no constraints; nothing was created",
            advice="Leave them out; NOT NULL of a column is checked",
        )


def schema_properties(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the properties that are the schema's, by their own names, and the others."""
    own = {name.lower(): value for name, value in given.items() if name.lower() in OF_THE_SCHEMA}
    return own, {name: value for name, value in given.items() if name.lower() not in OF_THE_SCHEMA}


def is_of_bytes(columns: StructType, *, as_select: bool) -> bool:
    """Return whether columns are those of a log without a schema, of which all may be left out.

    Those of `CREATE TABLE ... AS SELECT` are to be written: there `value` may be a string, and has to be one of them.
    """
    ours = {one.name: one.dataType for one in SCHEMA.fields}
    names = [one.name.lower() for one in columns.fields]
    if as_select and "value" not in names:
        return False
    return all(
        ours.get(name) == one.dataType or (name == "value" and one.dataType == StringType())
        for name, one in zip(names, columns.fields, strict=True)
    )


def check_use(log: str, properties: Mapping[str, str]) -> None:
    """Raise what a query of a table with these properties would raise for them, of whatever kind the query is.

    The properties are known and well-formed each by itself; here it is whether they can be, and together.
    """
    for scope in (Scope.SOURCE_STREAM, Scope.SOURCE_BATCH):
        given = of_scope(properties, scope)
        if scope is Scope.SOURCE_BATCH:
            given.pop("startingOffsets", None)  # the stream's: `latest` has a meaning for it alone
        options = Options({**given, "uri": _ANYWHERE, "log": log}, scope)
        SourceQuery.of(options)
        Settings.from_mapping(namespace_settings(options.passed_on()))
    settings_of(Options({**of_scope(properties, Scope.SINK_STREAM), "uri": _ANYWHERE, "log": log}, Scope.SINK_STREAM))


def own_properties(given: Mapping[str, str], default_provider: str, location: str) -> dict[str, str]:
    """Return what the user set: without what Spark adds, which has each of OPTIONS (...) a second time as
    `option.<name>`.

    `default_provider` is a format that counts as none (`saveAsTable` and `toTable` name the session's default source
    where their caller named none), or empty. `location` is where the table is in any case, as SHOW CREATE TABLE says.

    Raises OptionError for another format than ours, and for another location.
    """
    provider = given.get("provider", FORMAT).lower()
    if provider not in (FORMAT, default_provider.lower()):
        raise OptionError(
            f"A table of this catalog is a log, and not of format {provider}; nothing was created",
            advice=f"Leave USING out, or write USING {FORMAT}",
        )
    if given.get("location", location) != location or "external" in given:
        raise OptionError(
            f"A log has no location of its own: it is at {location}; nothing was created", advice="Leave LOCATION out"
        )
    return {
        name: value
        for name, value in given.items()
        if name.lower() not in (*_ADDED_BY_SPARK, "location") and not name.lower().startswith("option.")
    }
