"""The SQL catalog: switching it on in a running session, and the jar that has its Java part.

    dlspark.spark.enable(spark)
    spark.sql("SELECT * FROM dlog.flights WHERE timestamp >= '2013-07-01'")

The same without a call, by configuration before the session starts: `spark.jars` with the path that `catalog_jar()`
gives, and `spark.sql.catalog.dlog org.dlspark.sql.DistributedLogCatalog` (spark-defaults.conf).
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dlspark.spark.connection import CONF_KEY
from dlspark.spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG_CLASS: Final = "org.dlspark.sql.DistributedLogCatalog"
DEFAULT_NAME: Final = "dlog"
_JAR: Final = Path(__file__).with_name("dlspark-sql.jar")
_TESTED: Final = "org/dlspark/sql/tested-spark-versions.txt"


def catalog_jar() -> Path:
    """Return the jar with the catalog, part of the installed package. Raises OptionError if the installation lost
    it."""
    if not _JAR.is_file():
        raise OptionError(f"{_JAR} is missing", advice="Install dlspark again; in a checkout: make shim")
    return _JAR


def supported_spark_versions() -> tuple[str, ...]:
    """Return the minor versions of Spark that the catalog was tested with; it refuses others."""
    with zipfile.ZipFile(catalog_jar()) as jar:
        return tuple(jar.read(_TESTED).decode().split())


def enable(spark: SparkSession, name: str = DEFAULT_NAME, *, uri: str | None = None) -> None:
    """Make the logs of a namespace tables of catalog `name` in a running session, classic or Spark Connect.

    `uri` names the namespace; without it the session's conf `spark.distributedlog.uri` does, else the environment of
    the Spark driver. Calling it again changes nothing. Nothing is connected to before the first statement.

    Raises OptionError for a Spark version that the catalog was not tested with, a name that cannot be a catalog's, and
    a name that another catalog or another namespace has in this session.
    """
    check_version(spark.version)
    check_name(name)
    key = f"spark.sql.catalog.{name}"
    uri = uri or spark.conf.get(CONF_KEY, None)
    present, present_uri = spark.conf.get(key, None), spark.conf.get(f"{key}.uri", None)
    if present not in (None, CATALOG_CLASS) or (present and present_uri and uri and present_uri != uri):
        raise OptionError(
            f"Catalog {name} is {present}{f' at {present_uri}' if present_uri else ''} in this session already",
            advice='Choose another name: enable(spark, "other", uri=...)',
        )
    add_jar(spark)
    if uri is not None and present_uri is None:
        spark.conf.set(f"{key}.uri", uri)
    spark.conf.set(key, CATALOG_CLASS)


def check_name(name: str) -> None:
    """Raise OptionError for what cannot name a catalog."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name == "spark_catalog":
        raise OptionError(f"{name!r} cannot name a catalog", advice="Use letters, digits and _, for example dlog")


def check_version(version: str) -> None:
    """Raise OptionError for a Spark that the catalog was not tested with."""
    tested = supported_spark_versions()
    if ".".join(version.split(".")[:2]) not in tested:
        raise OptionError(
            f"The SQL catalog was tested with Spark {' and '.join(tested)}, and this is Spark {version}; it is not on",
            advice='Install a tested PySpark, or use format("distributedlog"), which needs no Java code',
        )


def add_jar(spark: SparkSession) -> None:
    """Bring the jar to the driver and the executors of a session, once."""
    jar = catalog_jar()
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        spark.addArtifacts(str(jar))  # the server keeps one of each name, so this may be repeated
    elif not _is_loaded(spark):
        spark.sql(f"ADD JAR '{jar.as_uri()}'")


def _is_loaded(spark: SparkSession) -> bool:
    """Return whether the driver finds the jar's classes. That Spark lists the jar does not say so: the `spark.jars` of
    a session in a JVM that had one before reach the executors alone."""
    loader = spark._jsparkSession.sharedState().jarClassLoader()
    return loader.getResource(f"{CATALOG_CLASS.replace('.', '/')}.class") is not None
