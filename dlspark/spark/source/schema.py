"""The rows of the source. Light: the data source imports it in each of Spark's workers."""

from __future__ import annotations

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


def column_names(schema: StructType, full: StructType = SCHEMA) -> tuple[str, ...]:
    """The columns that Spark asks for: those of `full`, or some of them, with our types."""
    ours = {field.name: field.dataType for field in full.fields}
    for field in schema.fields:
        if ours.get(field.name) != field.dataType:
            raise SchemaError(
                f"Column {field.name} {field.dataType.simpleString()} is not one of this source's: "
                f"{', '.join(f'{name} {kind.simpleString()}' for name, kind in ours.items())}",
                advice="Leave out schema(...) and select or cast columns afterwards",
            )
    return tuple(schema.names)
