"""What Spark's workers keep is out of the collector's sight, in Spark's workers and nowhere else."""

from __future__ import annotations

import gc
import subprocess
import sys

from dlspark.spark.worker_memory import DAEMON, FREEZE_AT, begin_use, due, main_module


def test_only_a_worker_of_sparks_daemon_freezes_and_only_some_times() -> None:
    assert [uses for uses in range(100) if due(uses, DAEMON)] == list(FREEZE_AT)
    assert not any(due(uses, other) for uses in range(100) for other in (None, "pytest", "pyspark.worker"))


def test_other_processes_freeze_nothing() -> None:
    assert main_module() != DAEMON
    before = gc.get_freeze_count()
    for _ in range(max(FREEZE_AT) + 1):
        begin_use()
    assert gc.get_freeze_count() == before


def test_a_worker_that_is_used_again_shows_the_collector_next_to_nothing() -> None:
    """Run as the daemon runs: a module of its name, started with `-m`."""
    lines = (
        "import gc, sys, types",
        "sys.modules['__main__'].__spec__ = types.SimpleNamespace(name='pyspark.daemon')",
        "from dlspark.spark.worker_memory import begin_use",
        "import numpy, pyarrow",
        "begin_use(); gc.collect(); first = len(gc.get_objects())",
        "begin_use(); gc.collect(); second = len(gc.get_objects())",
        "print(first, second)",
    )
    told = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True).stdout
    first, second = map(int, told.split())
    assert second < first / 100
