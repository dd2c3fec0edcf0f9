"""What `CREATE TABLE` may say of a log, and what Spark adds to that. Pure: no I/O.

A log has no layout to choose. `dlspark.spark.catalog.declared_columns` says what its columns can be, and properties are
checked by `dlspark.spark.catalog.tables`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dlspark.core.settings.settings import Settings
from dlspark.spark.catalog.tables import of_scope
from dlspark.spark.connection import namespace_settings
from dlspark.spark.errors import OptionError, SchemaError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.session import settings_of
from dlspark.spark.source.selection import SourceQuery

FORMAT: Final = "distributedlog"
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
