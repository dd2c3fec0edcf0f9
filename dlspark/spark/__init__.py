"""The Spark connector: format `distributedlog` for reading and writing, batch and streaming.

Spark finds it by itself (module `pyspark_distributedlog`); `register` is needed only to hand on a conf that was set
in a running session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlspark.spark.datasource import register
    from dlspark.spark.listener import LagListener
    from dlspark.spark.sink_foreach import ForeachLogWriter

__all__ = ["ForeachLogWriter", "LagListener", "register"]


def __getattr__(name: str) -> object:
    """Import the data source only when it is asked for: it needs PySpark, its errors and options do not."""
    if name == "register":
        from dlspark.spark.datasource import register

        return register
    if name == "ForeachLogWriter":
        from dlspark.spark.sink_foreach import ForeachLogWriter

        return ForeachLogWriter
    if name == "LagListener":
        from dlspark.spark.listener import LagListener

        return LagListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
