"""The Spark connector: format `distributedlog` for reading and writing, batch and streaming, and its SQL catalog.

Spark finds the format by itself (module `pyspark_distributedlog`); `register` is needed only to hand on a conf that
was set in a running session, `enable` switches the catalog on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlspark.spark.catalog import catalog_jar, enable
    from dlspark.spark.datasource import register
    from dlspark.spark.listener import LagListener
    from dlspark.spark.sink_foreach import ForeachLogWriter

__all__ = ["ForeachLogWriter", "LagListener", "catalog_jar", "enable", "register"]


def __getattr__(name: str) -> object:
    """Import the data source only when it is asked for: it needs PySpark, its errors and options do not."""
    if name == "register":
        from dlspark.spark.datasource import register

        return register
    if name in ("catalog_jar", "enable"):
        from dlspark.spark import catalog

        return getattr(catalog, name)
    if name == "ForeachLogWriter":
        from dlspark.spark.sink_foreach import ForeachLogWriter

        return ForeachLogWriter
    if name == "LagListener":
        from dlspark.spark.listener import LagListener

        return LagListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
