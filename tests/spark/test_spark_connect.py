"""Everything that works through Spark Connect, by a client in a process of its own (`connect_client.py`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from source_world import Logs

    from dlspark.sandbox import Sandbox

pytestmark = [pytest.mark.spark, pytest.mark.processes]

CLIENT = Path(__file__).with_name("connect_client.py")
MS = 1_000_000


ORDINARY = ("batch", "view", "stream", "segments", "error", "registered")


def client(sandbox: Sandbox, logs: Logs, place: Path, *steps: str) -> dict[str, Any]:
    """What a client found in a log of 60 records, in a completed segment of 40 and one in progress."""
    source, target = logs.create(logs.name("connect")), logs.name("connect-copy")
    logs.write(source, range(MS, MS + 40))
    logs.write(source, range(MS + 40, MS + 60), keep_open=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    done = subprocess.run(
        [sys.executable, str(CLIENT), sandbox.uri, source, target, str(place), *steps],
        capture_output=True,
        text=True,
        env=environment | {"SPARK_LOCAL_IP": "127.0.0.1"},
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["client"].startswith("pyspark.sql.connect")
    return found


def test_a_client_of_spark_connect_reads_writes_streams_listens_and_asks(
    sandbox: Sandbox, logs: Logs, tmp_path: Path
) -> None:
    found = client(sandbox, logs, tmp_path, *ORDINARY)
    assert found["batch"] == [60, MS, MS + 59]
    assert found["view"] == 30
    assert found["stream"] == {"rows": 60, "missing": 0, "lags": [35, 10, 0]}
    assert found["segments"] == [[1, "completed", 40], [2, "in progress", 20]]
    assert "Did you mean subscribe" in found["error"]
    before, during, after = found["registered"]
    assert (before, after) == ("60", "60")
    assert "cannot be reached" in during


@pytest.mark.long
def test_for_each_batch_works_through_spark_connect(sandbox: Sandbox, logs: Logs, tmp_path: Path) -> None:
    """Apart: Spark gives its worker 10 s to import pandas and to call back, which a busy machine may not manage."""
    assert client(sandbox, logs, tmp_path, "for each batch")["for each batch"] == 60
