"""Queries on a secured cluster: the folder is named by options or by a variable, and nothing secret is left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.paths import ROOT, SPARK_PROGRAMS
from helpers.quick_start import plain_environment

from dlspark.core.sync.namespace import Namespace
from dlspark.sandbox.sandbox import Sandbox
from metadata.security.settings import VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.processes]

PROGRAM = SPARK_PROGRAMS / "secured_app.py"
ROWS = 200


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("secured") / "sandbox", nodes=3, secure=True) as running:
        yield running


@pytest.mark.parametrize("by", ["options", pytest.param("variable", marks=pytest.mark.long)])
def test_a_batch_and_a_stream_leave_no_secret_behind(secured: Sandbox, tmp_path: Path, by: str) -> None:
    folder = secured.security.client_folder
    with Namespace.open(secured.uri, secured.settings) as namespace:
        for name in ("rows", "copy"):
            namespace.create_log(f"{name}-{by}")
    environment = plain_environment() | {"PYSPARK_PYTHON": sys.executable}
    if by == "variable":
        environment[VARIABLE] = str(folder)
    done = subprocess.run(
        [sys.executable, str(PROGRAM), secured.uri, str(folder) if by == "options" else "", by, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=environment,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [ROWS, ROWS]
    secret = (folder / "zookeeper.secret").read_text().strip().partition(":")[2]
    key = (folder / "key.pem").read_text().splitlines()[1]
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("events" in str(path) for path in left)
    for path in left:
        content = path.read_bytes()
        assert secret.encode() not in content, path
        assert key.encode() not in content, path
    assert secret not in done.stdout + done.stderr
    assert key not in done.stdout + done.stderr
