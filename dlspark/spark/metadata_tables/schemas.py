"""The rows of `schema_versions`: every version of what a log declares of its records, column by column."""

from __future__ import annotations

import json

from dlspark.core.namespace import AsyncNamespace
from dlspark.core.typed.declarations import Declarations
from dlspark.spark.metadata_tables.logs import Row
from dlspark.tables.declaration import Declaration
from dlspark.tables.types import Field, Schema, children
from metadata.foundation.errors import CorruptDataError


async def schema_rows(namespace: AsyncNamespace, name: str) -> list[Row]:
    """Return a row a field of each version, oldest first; none for a log of bytes. Raises LogNotFoundError."""
    try:
        found = await Declarations(namespace.logs_store, name).find()
    except CorruptDataError as error:
        return [{"log": name, "error": str(error)}]
    if found is None:
        return []
    rows: list[Row] = []
    for schema in found.declaration.schemas:
        about: Row = {
            "log": name,
            "version": schema.id,
            "current": schema is found.declaration.current,
            "format": found.declaration.format.value,
        }
        rows += [{**about, **row} for row in _fields(found.declaration, schema)]
    return rows


def _fields(declaration: Declaration, schema: Schema) -> list[Row]:
    """Return what is said of each field of a version, each before those that it is made of."""
    rows: list[Row] = []

    def add(one: Field, path: str) -> None:
        rows.append(
            {
                "field": one.id,
                "column": path,
                "type": str(one.type),
                "required": one.required,
                "default": None if one.default is None else json.dumps(one.default, ensure_ascii=False),
                "comment": one.doc,
                "gives_ids": one.id == declaration.timestamp_id,
            }
        )
        for child in children(one.type):
            add(child, f"{path}.{child.name}")

    for one in schema.fields:
        add(one, one.name)
    return rows
