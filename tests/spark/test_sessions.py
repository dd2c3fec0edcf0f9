"""Sessions one after the other in one process, as a notebook makes them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.paths import SPARK_PROGRAMS
from helpers.quick_start import plain_environment

if TYPE_CHECKING:
    from helpers.spark.logs import Logs

    from dlspark.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.spark, pytest.mark.processes]


def test_a_session_after_another_one_has_its_own_namespace_and_the_jar(
    sandbox: Sandbox, logs: Logs, tmp_path: Path
) -> None:
    program, log = str(SPARK_PROGRAMS / "sessions_app.py"), logs.name("again")
    logs.create(f"{log}-kept")
    done = subprocess.run(
        [sys.executable, program, sandbox.uri, log, f"{sandbox.uri}-that-is-not-there"],
        cwd=tmp_path,
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"kept": [0, 1], "frame": 1, "with the jar": True, "sql": 1, "elsewhere": []}
