"""DuckDB with its Iceberg extension, from the wheels: nothing is fetched when a test runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import duckdb


@contextmanager
def connected() -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection that can read Iceberg tables."""
    database = duckdb.connect(config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"})
    try:
        for name in ("avro", "iceberg"):
            database.execute(f"LOAD '{_extension(name)}'")
        yield database
    finally:
        database.close()


def _extension(name: str) -> Path:
    spec = find_spec(f"duckdb_extension_{name}")
    if spec is None or spec.origin is None:
        raise AssertionError(f"the wheel duckdb-extension-{name} is not installed")
    (found,) = (Path(spec.origin).parent / "extensions").rglob(f"{name}.duckdb_extension")
    return found
