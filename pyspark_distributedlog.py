"""Found by Spark's lookup of `pyspark_*` modules: makes `format("distributedlog")` work without registration.

Spark imports it in each of its worker processes, so it stays light: the connector's rooms are imported when used.

DATA_SOURCE_NOT_FOUND though it is installed means that Spark did not look, or looked elsewhere:

* The Python of Spark's workers has no dlspark. It is PYSPARK_PYTHON, else python3 of the PATH; `dlspark doctor` tells.
* `df.write` or `df.writeStream` runs in another thread than the one that made the session. Spark looks for sources of
  Python in the active session of the thread, and that one has none. Make the session by `dlspark.spark.builder`, or
  call `dlspark.spark.register(spark)` at the beginning of the thread. Reading and SQL need neither.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

try:
    from dlspark.spark.datasource import DistributedLogDataSource
except ImportError as _error:
    # Raised here it would end Spark's lookup with a line in its log, and a user be told that there is no such source.
    _reason = str(_error)

    class DefaultSource(DataSource):
        """Stands in where dlspark cannot be imported, to say why to whom uses it."""

        def __init__(self, options: dict[str, str]) -> None:
            raise ImportError(_reason)

        @classmethod
        def name(cls) -> str:
            return "distributedlog"

else:

    class DefaultSource(DistributedLogDataSource):  # type: ignore[no-redef]
        """The class that Spark's lookup looks for."""


__all__ = ["DefaultSource"]
