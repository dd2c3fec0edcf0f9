"""The rows of the source. Light: the data source imports it in each of Spark's workers."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from dlspark.spark.errors import SchemaError

SCHEMA = StructType(
    [
        StructField("log", StringType()),
        StructField("segment", LongType()),
        StructField("entry", LongType()),
        StructField("slot", LongType()),
        StructField("sequence_id", LongType()),
        StructField("transaction_id", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("value", BinaryType()),
    ]
)


NEVER_NULL: Final = frozenset(SCHEMA.names) - {"timestamp"}
"""Columns of which every record has a value. A transaction id that is not a time has no timestamp."""


class ColumnNames(tuple[str, ...]):
    """The columns that Spark asks for, in order. `required` are the columns that a user has declared NOT NULL."""

    required: frozenset[str] = frozenset()


def column_names(schema: StructType, full: StructType = SCHEMA) -> ColumnNames:
    """Return the columns that Spark asks for: those of `full`, or some of them, with our types.

    Raises SchemaError for another one, and for one that is declared NOT NULL and may be null.
    """
    ours = {field.name: field.dataType for field in full.fields}
    never_null = NEVER_NULL if full is SCHEMA else frozenset()
    for field in schema.fields:
        if ours.get(field.name) != field.dataType:
            raise SchemaError(
                f"Column {field.name} {field.dataType.simpleString()} is not one of this source's: "
                f"{', '.join(f'{name} {kind.simpleString()}' for name, kind in ours.items())}",
                advice="Leave out schema(...) and select or cast columns afterwards",
            )
        if not field.nullable and field.name not in never_null:
            raise SchemaError(
                f"Column {field.name} was declared NOT NULL, and may be null; nothing was read",
                advice=f'Leave NOT NULL out, and add where("{field.name} IS NOT NULL") if that is what is wanted',
            )
    found = ColumnNames(schema.names)
    found.required = frozenset(field.name for field in schema.fields if not field.nullable)
    return found
