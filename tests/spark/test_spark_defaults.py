"""The example spark-defaults.conf in the root: read by a program that sets nothing itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import javaproperties
import pytest
from helpers.paths import ROOT, SPARK_PROGRAMS
from helpers.quick_start import plain_environment

if TYPE_CHECKING:
    from helpers.spark.logs import Logs

    from dlspark.sandbox.sandbox import Sandbox

PROGRAM = SPARK_PROGRAMS / "defaults_app.py"


def settings() -> dict[str, str]:
    """What the file sets, but for the jars: Spark tells their paths in words of its own."""
    found = javaproperties.loads((ROOT / "spark-defaults.conf").read_text())
    return {key: value for key, value in found.items() if key != "spark.jars"}


def test_the_namespace_is_an_example_and_not_set() -> None:
    text = (ROOT / "spark-defaults.conf").read_text()
    assert "# spark.distributedlog.uri" in text
    assert "spark.distributedlog.uri" not in settings()


@pytest.mark.spark
@pytest.mark.processes
def test_a_program_without_settings_works_with_the_defaults_of_the_root(
    sandbox: Sandbox, logs: Logs, tmp_path: Path
) -> None:
    name = logs.name("defaults")
    environment = plain_environment()
    environment |= {"SPARK_CONF_DIR": ".", "DLSPARK_URI": sandbox.uri}
    environment |= {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), name, str(tmp_path), *settings()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"late": 7, "streamed": 100, "conf": settings()}
    assert len(settings()) >= 3
