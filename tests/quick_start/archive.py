"""An archive of Spark's classes, as the JVM has them in memory once they are loaded, so that it starts quickly.

    python archive.py

runs a small Spark program and has its JVM write the archive (`make unit` does, once an environment). Two thirds of what
a short session takes is loading, checking and compiling classes, and the tests start some hundred sessions. A JVM that
cannot use the archive, since Java or Spark are others than those that wrote it, goes on without. See "Application
class-data sharing" in Java's documentation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ARCHIVE: Final = Path(sys.prefix) / "spark-classes.jsa"
FRUGAL: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For programs that end after some seconds: no time is spent on compiling well what runs a few times."""
QUIET: Final = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"


def flags() -> str:
    """The flags of a JVM that runs Spark: with the archive, if there is one."""
    return f"{FRUGAL} {QUIET} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else FRUGAL


def write() -> None:
    """Write the archive. Raises CalledProcessError, after Spark has said why on the standard error."""
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / ARCHIVE.name
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        environment["SPARK_SUBMIT_OPTS"] = f"{FRUGAL} -Xlog:disable -XX:ArchiveClassesAtExit={made}"
        program = [sys.executable, str(Path(__file__).with_name("archived_program.py")), place]
        subprocess.run(program, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=600)
        ARCHIVE.write_bytes(made.read_bytes())


if __name__ == "__main__":
    write()
