"""The Spark connector: format `distributedlog` for reading and writing, batch and streaming, and its SQL catalog.

`builder` makes a session with everything set. In any other session Spark finds the format by itself (module
`pyspark_distributedlog`); `register` is needed only to hand on a conf that was set in a running session, `enable`
switches the catalog on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dlspark.spark.catalog.enabling import catalog_jar, enable
    from dlspark.spark.datasource import register
    from dlspark.spark.listener import LagListener
    from dlspark.spark.session import builder, start
    from dlspark.spark.sink.foreach import ForeachLogWriter

__all__ = ["ForeachLogWriter", "LagListener", "builder", "catalog_jar", "enable", "register", "start"]


_MODULES: Final = {
    "ForeachLogWriter": "dlspark.spark.sink.foreach",
    "LagListener": "dlspark.spark.listener",
    "builder": "dlspark.spark.session",
    "catalog_jar": "dlspark.spark.catalog.enabling",
    "enable": "dlspark.spark.catalog.enabling",
    "register": "dlspark.spark.datasource",
    "start": "dlspark.spark.session",
}


def __getattr__(name: str) -> object:
    """Import what needs PySpark only when it is asked for: the connector's errors and options do not."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
