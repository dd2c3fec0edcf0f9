"""What makes processes start quickly in the tests: half of the tests' time was the start of some hundred JVMs and
Python workers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from helpers.jvm_flags import FRUGAL, spark_flags

__all__ = ["plain_environment", "use"]

_VARIABLES = {"SPARK_SUBMIT_OPTS": spark_flags(), "SPARK_LAUNCHER_OPTS": FRUGAL}


def use() -> None:
    """Have every Spark that this process or its children start from now on start quickly; and Python too.

    Where `PYTHONDONTWRITEBYTECODE` is set, as in images of containers, each of some thousand processes compiles the
    project's modules anew (0.13 s for a storage node, 0.26 s for a command), and pytest rewrites every test file in
    every one of its processes (12 s).
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    paths = [str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))


def plain_environment() -> dict[str, str]:
    """Return the environment of a user who has set nothing for Spark."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return kept | _VARIABLES | {"SPARK_LOCAL_IP": "127.0.0.1"}
