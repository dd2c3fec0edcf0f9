"""The columns that Spark asks a reader for: those of records, or of one version of what the one log declares.

The option `columns` decides, and where it does not, whether the log declares its columns. A frame that was loaded with
the log's columns says in their metadata which version they are of (`schema_version`). What a user has given by
`schema(...)` does not: then the log is asked when the read is planned.

Light: tasks import it, and nothing of `dlspark.tables` with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql.types import StructType

from dlspark.spark.errors import OptionError, SchemaError
from dlspark.spark.options.column_choice import ColumnChoice
from dlspark.spark.schema_version import SchemaVersion
from dlspark.spark.source.schema import SCHEMA, ColumnNames, column_names
from dlspark.spark.source.selection import SourceQuery


@dataclass(frozen=True, slots=True)
class PackedDeclaration:
    """What does a task need to know of what a log declares?

    Args:
        data: The declaration, compressed: each partition of a plan has it.
        version: Number of the schema whose columns rows have.
    """

    data: bytes
    version: int


@dataclass(frozen=True)
class FrameColumns:
    """Which columns does a frame have?

    Args:
        schema: Columns as Spark asks for them.
        names: Their names, if they are columns of records.
        log: The log whose declaration has to be looked at; None: no log's.
        version: The version that the columns are of; None where they do not say it.
        both: Whether `value` is the bytes of each record, beside the log's columns.
    """

    schema: StructType
    names: ColumnNames | None
    log: str | None = None
    version: SchemaVersion | None = None
    both: bool = False

    @classmethod
    def of(
        cls, query: SourceQuery, schema: StructType, version: SchemaVersion | None = None, *, settled: bool = False
    ) -> FrameColumns:
        """Return what is asked of a query by `schema`. `settled`: the connector's jar asks, which has found out before
        whether the columns are the log's, and says so by `version`.

        Raises SchemaError for columns that no log has.
        """
        version, log, choice = version or SchemaVersion.of(schema), query.selection.one, query.columns
        if log is None or choice is ColumnChoice.RAW or (version is None and settled):
            return cls(schema, column_names(schema))
        if version is None and choice is None and schema == SCHEMA:
            return cls(schema, column_names(schema))  # inferred from a log that declared nothing when it was loaded
        names = None if version is not None or choice is not None else _names(schema)
        return cls(schema, names, log, version, choice is ColumnChoice.BOTH)

    def of_version(self, version: SchemaVersion | None) -> FrameColumns:
        """Return the same with what was found out when the read was planned; None: they are columns of records."""
        return replace(self, log=None) if version is None else replace(self, names=None, version=version)


def _names(schema: StructType) -> ColumnNames | None:
    try:
        return column_names(schema)
    except SchemaError:
        return None


def undeclared_error(log: str, choice: ColumnChoice) -> OptionError:
    """Return the error for an option that asks for columns which a log does not declare."""
    return OptionError(
        f"Option columns={choice.value} asks for the columns that the log declares, and it declares none; nothing was "
        "read",
        advice=f"Declare them (`dlspark log schema set {log}`), or leave the option out",
        log=log,
    )
