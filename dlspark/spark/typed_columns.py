"""The columns that a log declares, as Spark has them and back, and the two that come with them.

A typed frame has the columns of one version of the log's schema, in order, and behind them

| column | type | holds |
|---|---|---|
| `_log` | struct | where the row's record is: `log`, `segment`, `entry`, `slot`, `row` (its number in the record), |
| | | `sequence_id`, `transaction_id`, `timestamp`, and `value`, the bytes of a record that does not fit |
| `_error` | string | why the record does not fit, and all columns are null; null where it does |

All of Spark's types are columns but for intervals, variants, and what users define. `byte` and `short` become `int`,
`char` and `varchar` become `string`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from dlspark.spark.schema_version import METADATA, SchemaVersion
from dlspark.tables.typed_rows import ERROR, LOG, VALUE
from dlspark.tables.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Decimal,
    Field,
    InvalidSchemaError,
    ListOf,
    MapOf,
    Primitive,
    Schema,
    Struct,
    Type,
    check_schema,
)

LOG_TYPE: Final = StructType(
    [
        StructField("log", StringType()),
        StructField("segment", LongType()),
        StructField("entry", LongType()),
        StructField("slot", LongType()),
        StructField("row", IntegerType()),
        StructField("sequence_id", LongType()),
        StructField("transaction_id", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("value", BinaryType()),
    ]
)
SYSTEM: Final = StructType([StructField(LOG, LOG_TYPE), StructField(ERROR, StringType())])
"""What stands behind the log's own columns."""
_SPARK: Final[dict[Primitive, DataType]] = {
    BOOLEAN: BooleanType(),
    INT: IntegerType(),
    LONG: LongType(),
    FLOAT: FloatType(),
    DOUBLE: DoubleType(),
    STRING: StringType(),
    BINARY: BinaryType(),
    DATE: DateType(),
    TIMESTAMP: TimestampType(),
    TIMESTAMP_NTZ: TimestampNTZType(),
}
_OURS: Final[dict[type[DataType], Primitive]] = {
    **{type(spark): ours for ours, spark in _SPARK.items()},
    ByteType: INT,
    ShortType: INT,
    CharType: STRING,
    VarcharType: STRING,
}


def spark_columns(schema: Schema) -> StructType:
    """Return a schema's columns as Spark has them when they are read: each may be null, since a record may not fit."""
    return StructType([_column(one, nullable=True) for one in schema.fields])


def frame_columns(schema: Schema, declaration: str, *, both: bool = False) -> StructType:
    """Return the columns of a frame that reads rows of a version, each with what says which it is (`schema_version`).

    `declaration` is the id of the log's declaration, `both` adds `value`, the bytes of each record. Raises
    InvalidSchemaError where the log has a column of that name.
    """
    if both and schema.column(VALUE) is not None:
        raise InvalidSchemaError(
            f"The log declares a column {VALUE} itself, and columns=both names the bytes of records so; "
            "nothing was read",
            advice="Read with columns=typed, or columns=raw; of records that do not fit, _log.value has the bytes",
        )
    bytes_ = [StructField(VALUE, BinaryType())] if both else []
    version = {METADATA: SchemaVersion(declaration, schema.id).to_json()}
    return StructType(
        [
            StructField(one.name, one.dataType, one.nullable, {**one.metadata, **version})
            for one in (*spark_columns(schema), *SYSTEM, *bytes_)
        ]
    )


def spark_type(type_: Type) -> DataType:
    """Return a column's type as Spark has it."""
    if isinstance(type_, Primitive):
        return _SPARK[type_]
    if isinstance(type_, Decimal):
        return DecimalType(type_.precision, type_.scale)
    if isinstance(type_, Struct):
        return StructType([_column(one, nullable=not one.required) for one in type_.fields])
    if isinstance(type_, ListOf):
        return ArrayType(spark_type(type_.element.type), not type_.element.required)
    return MapType(spark_type(type_.key.type), spark_type(type_.value.type), not type_.value.required)


def _column(one: Field, *, nullable: bool) -> StructField:
    metadata = {} if one.doc is None else {"comment": one.doc}
    return StructField(one.name, spark_type(one.type), nullable, metadata)


def schema_of_spark(columns: StructType) -> Schema:
    """Return the schema of a log that has these columns, with ids from 1. Raises InvalidSchemaError."""
    number = count(1).__next__
    made = Schema(0, _fields(columns, number, ""))
    check_schema(made)
    return made


def type_of_spark(spark: DataType, path: str) -> Type:
    """Return the type of one column, whose own fields have ids from 1. Raises InvalidSchemaError."""
    return _type(spark, count(1).__next__, path)


def _fields(columns: StructType, number: Callable[[], int], where: str) -> tuple[Field, ...]:
    ids = [number() for _ in columns.fields]
    return tuple(
        Field(
            id_,
            one.name,
            _type(one.dataType, number, f"{where}{one.name}"),
            not one.nullable,
            one.metadata.get("comment"),
        )
        for id_, one in zip(ids, columns.fields, strict=True)
    )


def _type(spark: DataType, number: Callable[[], int], path: str) -> Type:
    if type(spark) in _OURS and not (isinstance(spark, StringType) and spark != StringType()):
        return _OURS[type(spark)]  # a collation decides which texts are equal, and no record says it
    if isinstance(spark, DecimalType):
        return Decimal(spark.precision, spark.scale)
    if isinstance(spark, StructType):
        return Struct(_fields(spark, number, f"{path}."))
    if isinstance(spark, ArrayType):
        id_ = number()
        return ListOf(
            Field(id_, "element", _type(spark.elementType, number, f"{path}.element"), not spark.containsNull)
        )
    if isinstance(spark, MapType):
        key, value = number(), number()
        return MapOf(
            Field(key, "key", _type(spark.keyType, number, f"{path}.key"), required=True),
            Field(value, "value", _type(spark.valueType, number, f"{path}.value"), not spark.valueContainsNull),
        )
    raise InvalidSchemaError(
        f"Column {path} is {spark.simpleString()}, which no column of a log can be; nothing was changed",
        advice="Cast it to a string, or to numbers",
    )
