"""The flags of every JVM that the tests start: they are small, quick to start, and not worth compiling well."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

QUICK_START: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For programs that end after some seconds: no time is spent on compiling well what runs a few times."""
FRUGAL: Final = " ".join(QUICK_START)
"""The same as one string, as Spark takes it."""
ARCHIVE: Final = Path(sys.prefix) / "spark-classes.jsa"
"""Spark's classes as `helpers.quick_start` keeps them."""
_QUIET: Final = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"


def java_flags(heap_mb: int, *, direct_mb: int | None = None) -> tuple[str, ...]:
    """Return flags of a program with a heap of `heap_mb`; `direct_mb`, if given, limits memory outside the heap."""
    direct = () if direct_mb is None else (f"-XX:MaxDirectMemorySize={direct_mb}m",)
    return (f"-Xmx{heap_mb}m", *direct, *QUICK_START)


def spark_flags() -> str:
    """Return flags of a JVM that runs Spark: with the archive of its classes, if there is one."""
    return f"{FRUGAL} {_QUIET} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else FRUGAL
