"""An archive of Spark's classes, as the JVM has them in memory once they are loaded, so that it starts quickly.

    python -m helpers.quick_start.archive

runs a small Spark program and has its JVM write the archive (`make unit` does, once an environment). Two thirds of what
a short session takes is loading, checking and compiling classes, and the tests start some hundred sessions. A JVM that
cannot use the archive, since Java or Spark are others than those that wrote it, goes on without; so do the tests where
it cannot be written. See "Application class-data sharing" in Java's documentation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from helpers.jvm_flags import ARCHIVE, FRUGAL


def write() -> None:
    """Write the archive, whole or not at all. Raises CalledProcessError or TimeoutExpired, or FileNotFoundError where
    the JVM wrote none."""
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as place:
        made = Path(place) / ARCHIVE.name
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        environment["SPARK_SUBMIT_OPTS"] = f"{FRUGAL} -Xlog:disable -XX:ArchiveClassesAtExit={made}"
        program = [sys.executable, str(Path(__file__).with_name("archived_program.py")), place]
        subprocess.run(program, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=300)
        made.replace(ARCHIVE)


if __name__ == "__main__":
    try:
        write()
    except (subprocess.SubprocessError, OSError) as error:
        print(f"no archive of Spark's classes ({error}): the tests go on without it, and take longer", file=sys.stderr)
