"""Opens the table of a declaration; loads pyiceberg or deltalake only then, and says how to install what is missing.

A catalog is given as an address or as a name. An address is `sqlite:///file` (one machine; `warehouse` says where
metadata goes) or that of an Iceberg REST catalog. A name is one of pyiceberg's own settings (`.pyiceberg.yaml`,
`PYICEBERG_CATALOG__<NAME>__URI`), which is also where secrets come from: they are never in a declaration.
"""

from __future__ import annotations

from dlspark.cold.lake.targets import LakeTable, TableUnreachableError, need
from metadata.distributedlog.cold_tables import DELTA, ColdTable
from metadata.foundation.errors import CallerError


def open_table(table: ColdTable) -> LakeTable:
    """Return the table of a declaration, not yet loaded. Blocks.

    Raises MissingExtraError; CallerError for a catalog that cannot be; TableUnreachableError.
    """
    if table.kind == DELTA:
        need("deltalake", "delta", _load_deltalake)
        from dlspark.cold.lake.delta import DeltaLakeTable

        return DeltaLakeTable(table.place, table.id, table.grouped, table.options)
    need("pyiceberg", "iceberg", _load_pyiceberg)
    from pyiceberg.catalog import load_catalog

    from dlspark.cold.lake.iceberg import IcebergTable

    options = {key: value for key, value in table.options.items() if key != "location"}
    try:
        if "://" in table.place or table.place.startswith("sqlite:"):
            kind = "sql" if table.place.startswith("sqlite:") else "rest"
            catalog = load_catalog("dlspark", **{"type": kind, "uri": table.place, **options})
        else:
            catalog = load_catalog(table.place, **options)
    except ValueError as error:
        raise CallerError(
            f"Catalog {table.place!r} cannot be opened: {error}; nothing was done",
            advice="Give sqlite:///FILE, the http(s) address of a REST catalog, or a name of pyiceberg's own settings",
        ) from error
    except Exception as error:
        raise TableUnreachableError(
            f"Catalog {table.place!r} cannot be reached: {type(error).__name__}: {error}; nothing was done",
            advice="Look whether it runs, and whether the environment has what it asks for",
        ) from error
    return IcebergTable(catalog, table.identifier, table.id, table.grouped, table.options.get("location"))


def _load_deltalake() -> object:
    import deltalake

    return deltalake


def _load_pyiceberg() -> object:
    import pyiceberg.catalog.sql

    return pyiceberg.catalog.sql
