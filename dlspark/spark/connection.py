"""Which namespace a query speaks to: option `uri`, else conf `spark.distributedlog.uri`, else variable `DLSPARK_URI`.

Spark runs a Python data source in worker processes of its own, and hands them the query's options but neither a
session nor its configuration. What can be seen from there is the Spark driver (an ancestor process): the `--conf`
items and the properties file it was started with, and `spark-defaults.conf` in `SPARK_CONF_DIR`. So the conf works
when it was set before the session started, by `SparkSession.builder.config`, `spark-submit --conf` or
`spark-defaults.conf`. One set later in a running session (`spark.conf.set`), or a Spark Connect client's, cannot be
seen: `dlspark.spark.register(spark)` hands the session's value on.

Only the driver side asks: a task gets all it needs with its partition.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dlspark.spark.errors import OptionError
from dlspark.spark.options import Options

CONF_KEY = "spark.distributedlog.uri"
ENVIRONMENT_KEY = "DLSPARK_URI"
_MAX_ANCESTORS = 16


def resolve_uri(options: Options, session_uri: str | None = None) -> str:
    """The namespace's URI for this query. `session_uri` is what `register` kept of the session's conf.

    Raises OptionError, naming all three places, if none of them has it.
    """
    found = options.text("uri") or session_uri or conf_uri(os.environ) or os.environ.get(ENVIRONMENT_KEY)
    if not found:
        raise OptionError(
            "No namespace to connect to",
            advice=(
                'Give option("uri", "distributedlog://host:port/path"), or start the session with the conf '
                f"{CONF_KEY}, or set the environment variable {ENVIRONMENT_KEY}. "
                f"A conf set in a running session needs dlspark.spark.register(spark)"
            ),
        )
    return found.strip()


def conf_uri(environ: Mapping[str, str]) -> str | None:
    """The conf as the Spark driver was started with it, or None: its command line first, then spark-defaults.conf."""
    for arguments in _spark_command_lines():
        found = uri_in_arguments(arguments)
        if found:
            return found
    home = environ.get("SPARK_HOME")
    directory = environ.get("SPARK_CONF_DIR") or (os.path.join(home, "conf") if home else None)
    return _uri_in_file(Path(directory) / "spark-defaults.conf") if directory else None


def uri_in_arguments(arguments: Sequence[str]) -> str | None:
    """The conf in a Spark driver's command line: `--conf k=v`, `-Dk=v`, or in its `--properties-file`."""
    properties_file: str | None = None
    found: str | None = None
    for position, argument in enumerate(arguments):
        following = arguments[position + 1] if position + 1 < len(arguments) else ""
        if argument == "--conf" and following.startswith(f"{CONF_KEY}="):
            found = following.partition("=")[2]
        elif argument.startswith(f"-D{CONF_KEY}="):
            found = argument.partition("=")[2]
        elif argument == "--properties-file":
            properties_file = following
    if found is None and properties_file:
        return _uri_in_file(Path(properties_file))
    return found


def _spark_command_lines() -> Iterator[list[str]]:
    """Command lines of the Java processes among our ancestors, nearest first (Linux; elsewhere none can be seen)."""
    pid = os.getppid()
    for _ in range(_MAX_ANCESTORS):
        if pid <= 1:
            return
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return
        if any(argument.startswith("org.apache.spark.") for argument in arguments):
            yield arguments
        pid = int(stat.rpartition(")")[2].split()[1])


def _uri_in_file(path: Path) -> str | None:
    """The conf in a Spark properties file (`key value` or `key=value` lines); None if there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    import javaproperties  # imported late: it is slow to load, and most queries name their uri elsewhere

    value = javaproperties.loads(text).get(CONF_KEY)
    return str(value).strip() or None if value is not None else None
