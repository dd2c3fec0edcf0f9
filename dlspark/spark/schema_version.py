"""Which version of what a log declares the columns of a frame are: it travels in the metadata of each column.

    {"dlspark": {"declaration": "<id of the declaration>", "version": 3}}

A frame keeps the version that it was loaded with, and Spark keeps a column's metadata wherever it cuts columns away. So
whoever reads a frame finds out there which version its rows have, and whether the log's declaration is still that one.

Light: the data source imports it in each of Spark's workers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from pyspark.sql.types import StructType

METADATA: Final = "dlspark"
"""Key of a column's metadata."""


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """Which version of which declaration is it?

    Args:
        declaration: Id of the declaration, which no other one of any log has.
        version: Number of the schema in it.
    """

    declaration: str
    version: int

    @classmethod
    def of(cls, columns: StructType) -> SchemaVersion | None:
        """Return the version that columns are of; None where they do not say it."""
        return next((cls.of_json(one.metadata[METADATA]) for one in columns if METADATA in one.metadata), None)

    @classmethod
    def of_json(cls, found: object) -> SchemaVersion | None:
        """Return what `to_json` gave; None for anything else."""
        if not isinstance(found, dict):
            return None
        id_, version = found.get("declaration"), found.get("version")
        return cls(id_, version) if isinstance(id_, str) and type(version) is int else None

    def to_json(self) -> dict[str, object]:
        """Return the value of the key in a column's metadata."""
        return asdict(self)
