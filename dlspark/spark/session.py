"""Sessions with everything set (`builder`), and streaming queries that start on a busy machine (`start`).

    spark = dlspark.spark.builder("distributedlog://127.0.0.1:2181/distributedlog").master("local[2]").getOrCreate()
    query = dlspark.spark.start(frame.writeStream.format("distributedlog").option(...))

**A session.** `builder` sets what a user of the connector otherwise has to know. What the user has set stays: in the
builder, before or after; in the environment; on the command line of spark-submit; in spark-defaults.conf. So all is
decided in `getOrCreate`, when the user has said all.

**A query.** `start` is for a query whose driver has just died, on a machine that is busy. Spark gives the Python
process of a query's source, or of its `foreachBatch` through Spark Connect, ten seconds to start, and ends the query
after that; no conf changes it. And it refuses a checkpoint whose first entry a driver was writing when it died, for the
unfinished file. Nothing has run in either case, so that the query can be started again.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from dlspark.spark.catalog.enabling import (
    CATALOG_CLASS,
    DEFAULT_NAME,
    add_jar,
    catalog_jar,
    check_name,
    check_version,
    enable,
)
from dlspark.spark.connection import CONF_KEY, confs_in_file
from dlspark.spark.datasource import register

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PYTHON: Final = "PYSPARK_PYTHON"
"""The variable that names the Python of Spark's workers: the only one that reaches the lookup of data sources."""
_PYTHON_CONF: Final = "spark.pyspark.python"
_JARS: Final = "spark.jars"
_CONFS: Final = {
    # Workers over unix sockets, and the daemon that ends them without a trace on screen (dlspark.spark.worker_daemon).
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "dlspark.spark.worker_daemon",
    # Progress bars write over a program's own output.
    "spark.ui.showConsoleProgress": "false",
}
"""The confs that `builder` sets beside the namespace, the catalog and its jar."""
_JAVA_OPTIONS: Final = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
_LOGGING: Final = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
_JAVA_VARIABLES: Final = (
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "LOG4J_CONFIGURATION_FILE",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_SUBMIT_OPTS",
)
"""Variables by which a user may say how Spark logs."""

SLOW_START: Final = "Python worker failed to connect back"
"""The words of Spark's error for a query that it ended because a Python process was slow to start."""
TIMEOUT_S: Final = 120.0
_PAUSE_S: Final = 0.05
_NOT_BEGUN: Final = ("Initializing", "Terminated with")
"""The beginnings of what a query says until it begins; the last is said a moment before it is active no more."""
_NOT_EMPTY: Final = re.compile(r"The checkpoint location (.+) should be empty on batch 0")
_UNFINISHED: Final = re.compile(r"\.\d+\.[0-9a-f-]{36}\.tmp")
"""The name of an entry until it is whole."""


def builder(
    uri: str | None = None, existing: SparkSession.Builder | None = None, *, catalog: str | None = DEFAULT_NAME
) -> SparkSession.Builder:
    """Return a builder of sessions that read and write logs; to be gone on with, `.master("local[2]").getOrCreate()`.

    Args:
        uri: names the namespace; None: the conf `spark.distributedlog.uri` or the variable `DLSPARK_URI` does, or the
            sandbox that runs on this machine.
        existing: a builder whose settings are taken over.
        catalog: the name of the SQL catalog; None: no catalog.

    It sets the Python of the workers (the one that runs this), unix sockets for them and a daemon that ends them
    quietly, the catalog, and the jar, by which all threads find the format and each query of a frame is planned anew;
    and that Spark prints warnings and errors only, without progress bars, unless logging is set up. Nothing that is set
    already. Where a session runs already, `getOrCreate` gives that one, with the catalog switched on and the URI handed
    on; what belongs to the start of a session is as it was. After `spark.stop()` it makes another session, with this
    URI and these confs.

    Raises:
        OptionError: for a name that cannot be a catalog's, and for a Spark that the jar was not tested with (with
            `catalog=None` it is left out).
    """
    if catalog is not None:
        check_version(pyspark.__version__)
        check_name(catalog)
    made = _Builder(uri, catalog)
    if existing is not None:
        made._options = dict(existing._options)
    return made


class _Builder(SparkSession.Builder):
    """Spark's builder; `getOrCreate` adds what is missing."""

    def __init__(self, uri: str | None, catalog: str | None) -> None:
        super().__init__()
        self._options: dict[str, object] = {}
        self._uri = uri
        self._catalog = catalog

    def getOrCreate(self) -> SparkSession:
        if SparkContext._active_spark_context is None and not self._connects():
            started = _has_jvm()
            elsewhere = _confs_of_jvm() if started else confs_to_come(os.environ)
            if self._uri is not None and SparkContext._gateway is not None:
                elsewhere.pop(
                    CONF_KEY, None
                )  # of the session for which this program started the JVM, and which is over
            python = self._options.get(_PYTHON_CONF, elsewhere.get(_PYTHON_CONF, sys.executable))
            os.environ.setdefault(PYTHON, str(python))
            for key, value in self._missing(elsewhere).items():
                self.config(key, value)
            if not started and not logging_is_set_up(os.environ, {**elsewhere, **self._options}):
                self.config(_JAVA_OPTIONS[0], _LOGGING)
            session = super().getOrCreate()
            if started:
                # What a JVM is started with reaches the data source and the driver's class path; this session's
                # confs and `spark.jars` come later.
                register(session)
                if self._catalog is not None:
                    add_jar(session)
            return session
        session = super().getOrCreate()
        if self._uri is not None:
            session.conf.set(CONF_KEY, self._uri)
            register(session)
        if self._catalog is not None:
            enable(session, self._catalog)
        return session

    def _connects(self) -> bool:
        """Return whether it is a Spark Connect server's session, which has its own Python and settings."""
        return "spark.remote" in self._options or "SPARK_REMOTE" in os.environ

    def _missing(self, elsewhere: Mapping[str, str]) -> dict[str, str]:
        """Return the confs that are not set yet; `elsewhere` is what is set outside of the builder."""
        wanted = dict(_CONFS)
        if self._uri is not None:
            wanted[CONF_KEY] = self._uri
        if self._catalog is not None:
            wanted[f"spark.sql.catalog.{self._catalog}"] = CATALOG_CLASS
        missing = {key: value for key, value in wanted.items() if key not in self._options and key not in elsewhere}
        if self._catalog is not None:
            jars = [jar for jar in str(self._options.get(_JARS, elsewhere.get(_JARS, ""))).split(",") if jar]
            ours = catalog_jar()
            if ours.name not in {Path(jar).name for jar in jars}:
                missing[_JARS] = ",".join([*jars, str(ours)])
        return missing


def _has_jvm() -> bool:
    """Return whether Spark's JVM runs already: that of a session before this one, or of spark-submit."""
    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def _confs_of_jvm() -> dict[str, str]:
    """Return the confs that the running JVM has."""
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def logging_is_set_up(environ: Mapping[str, str], confs: Mapping[str, object]) -> bool:
    """Return whether the user may have said how a JVM that is started from here logs: by a file, a variable, or options
    for Java, which are theirs as a whole."""
    files = _conf_folder(environ).glob("log4j2*.*")
    variables = (f"{name}={environ[name]}".lower() for name in _JAVA_VARIABLES if name in environ)
    return (
        any(key in confs for key in _JAVA_OPTIONS)
        or any("log4j" in variable for variable in variables)
        or any(not file.name.endswith(".template") for file in files)
    )


def _conf_folder(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("SPARK_CONF_DIR") or os.path.join(environ.get("SPARK_HOME", ""), "conf"))


def confs_to_come(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the confs that a JVM started from here would have though a builder names none: of files and arguments."""
    found = confs_in_file(_conf_folder(environ) / "spark-defaults.conf")
    said = shlex.split(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    for position, word in enumerate(said[:-1]):
        if word == "--properties-file":
            found = confs_in_file(Path(said[position + 1]))
    for position, word in enumerate(said[:-1]):
        key, _, value = said[position + 1].partition("=")
        if word in ("--conf", "-c"):
            found[key] = value
        elif word == "--jars":
            found[_JARS] = said[position + 1]
    return found


def start(writer: DataStreamWriter, timeout_s: float = TIMEOUT_S) -> StreamingQuery:
    """Start a query, again and again for `timeout_s` where Spark gave up on a Python process that was slow to start, or
    where all that is in the checkpoint is the unfinished first entry of a driver that died, which is removed.

    Args:
        writer: the query as it is written, `frame.writeStream` with all that is set.
        timeout_s: for how many seconds it is started again.

    Returns:
        The query once it has begun, or has ended for another reason, which `exception()` gives.

    Raises what `writer.start()` raises, and the last slow start itself once the time is over.
    """
    deadline = time.monotonic() + timeout_s
    error: Exception | None
    while True:
        try:
            query = writer.start()
            error = _early_end(query)
            if error is None or not _can_start_again(writer, error):
                return query
        except Exception as failed:
            if not _can_start_again(writer, failed):
                raise
            error = failed
        if time.monotonic() >= deadline:
            raise error


def _early_end(query: StreamingQuery) -> Exception | None:
    """Wait until the query has begun or ended; the error that has ended it."""
    while query.isActive:
        if query.lastProgress is not None or not str(query.status["message"]).startswith(_NOT_BEGUN):
            return None
        time.sleep(_PAUSE_S)
    return query.exception()


def _can_start_again(writer: DataStreamWriter, error: Exception) -> bool:
    """Return whether nothing has run; removes what keeps the query from starting again."""
    return SLOW_START in str(error) or _removed_unfinished(writer, error)


def _removed_unfinished(writer: DataStreamWriter, error: Exception) -> bool:
    """Remove the unfinished files for which Spark refuses a checkpoint. False where there is anything else, or (through
    Spark Connect) no way to look."""
    refused = _NOT_EMPTY.search(str(error))
    session = getattr(writer, "_spark", None)
    jvm = getattr(session, "_jvm", None)
    if refused is None or session is None or jvm is None:
        return False
    folder = jvm.org.apache.hadoop.fs.Path(refused[1])
    files = folder.getFileSystem(session._jsc.hadoopConfiguration())
    left = [status.getPath() for status in files.listStatus(folder)]
    if not left or not all(_UNFINISHED.fullmatch(path.getName()) for path in left):
        return False
    for path in left:
        files.delete(path, False)
    return True
