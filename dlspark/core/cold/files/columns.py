"""Which columns a cold file has, and their field ids (docs/reference/cold-files.md#columns).

    _log     a struct: where a row's record is, and what its header says
    ...      the columns of the declared schema, with its own field ids; they, and all fields in them, may be null
    value    the record's bytes; null where the columns give them back, or where they were erased
    _error   why the record does not fit the schema, or that it was erased; null otherwise

A file without a declared schema has no columns between. Where the schema has a column `value`, the record's bytes are
called `_value`, and so on: what they are is told by the field id.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from dlspark.tables.arrow_types import FIELD_ID, arrow_schema
from dlspark.tables.declaration import Declaration

LOG: Final = "_log"
ERROR: Final = "_error"
VALUE: Final = "value"
LOG_ID: Final = 1_000_000
VALUE_ID: Final = 1_000_010
ERROR_ID: Final = 1_000_011

FLAG_ERASED: Final = 1 << 16
"""In `_log.flags`, above the 16 bits of a record's header: the payload was erased, and cannot be restored."""
STORED: Final = -1
"""`_log.schema` of a row whose record has its bytes in `value`, or was erased."""
NO_ROWS: Final = -1
"""`_log.row` of an Arrow record that holds no rows."""

_LOG_FIELDS: Final = (
    ("log", pa.string()),
    ("segment", pa.int64()),
    ("entry", pa.int64()),
    ("slot", pa.int64()),
    ("row", pa.int32()),
    ("sequence_id", pa.int64()),
    ("transaction_id", pa.int64()),
    ("flags", pa.int32()),
    ("schema", pa.int32()),
)
LOG_TYPE: Final = pa.struct(
    [
        pa.field(name, type_, nullable=False, metadata={FIELD_ID: str(LOG_ID + number).encode()})
        for number, (name, type_) in enumerate(_LOG_FIELDS, start=1)
    ]
)
LOG_NAMES: Final = tuple(name for name, _ in _LOG_FIELDS)


def value_name(declaration: Declaration | None) -> str:
    """Return the name of the column with records' bytes."""
    taken = set() if declaration is None else {one.name.casefold() for one in declaration.current.fields}
    name = VALUE
    while name in taken:
        name = f"_{name}"
    return name


def _nullable(one: pa.Field) -> pa.Field:
    """Return a field that may be null, with its id: a record that does not fit has no value of a required one, and
    Parquet takes no null in what is required, not even below a null. Keys of maps alone are never null."""
    return pa.field(one.name, _all_nullable(one.type), metadata=one.metadata)


def _all_nullable(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type_):
        return pa.struct([_nullable(part) for part in type_])
    if pa.types.is_map(type_):
        key = pa.field("key", _all_nullable(type_.key_type), nullable=False, metadata=type_.key_field.metadata)
        return pa.map_(key, _nullable(type_.item_field))
    return pa.list_(_nullable(type_.value_field)) if pa.types.is_list(type_) else type_


def typed_schema(declaration: Declaration) -> pa.Schema:
    """Return the typed columns of a file whose records are declared so."""
    return pa.schema([_nullable(one) for one in arrow_schema(declaration.current)])


def file_schema(declaration: Declaration | None) -> pa.Schema:
    """Return the columns of a file whose records are declared so; None: bytes alone."""
    typed = [] if declaration is None else list(typed_schema(declaration))
    return pa.schema(
        [
            pa.field(LOG, LOG_TYPE, nullable=False, metadata={FIELD_ID: str(LOG_ID).encode()}),
            *typed,
            pa.field(value_name(declaration), pa.binary(), metadata={FIELD_ID: str(VALUE_ID).encode()}),
            pa.field(ERROR, pa.string(), metadata={FIELD_ID: str(ERROR_ID).encode()}),
        ]
    )
