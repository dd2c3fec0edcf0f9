"""Found by Spark's lookup of `pyspark_*` modules: makes `format("distributedlog")` work without registration.

Spark imports it in each of its worker processes, so it stays light: the connector's rooms are imported when used.
"""

from __future__ import annotations

from dlspark.spark.datasource import DistributedLogDataSource


class DefaultSource(DistributedLogDataSource):
    """The class that Spark's lookup looks for."""


__all__ = ["DefaultSource"]
