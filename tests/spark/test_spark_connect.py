"""Everything that works through Spark Connect, by a client in a process of its own (`connect_client.py`)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers.paths import SPARK_PROGRAMS
from helpers.quick_start import plain_environment

if TYPE_CHECKING:
    from helpers.spark.logs import Logs

    from dlspark.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(900)]

CLIENT = SPARK_PROGRAMS / "connect_client.py"
MS = 1_000_000
STEPS = ("batch", "stream", "segments", "error", "registered", "catalog", "for each batch")
"""Those of the ordinary run. With --rounds all of them."""
COLUMNS = ["log", "segment", "entry", "slot", "sequence_id", "transaction_id", "timestamp", "value"]


def client(sandbox: Sandbox, logs: Logs, place: Path, steps: Sequence[str]) -> dict[str, Any]:
    """What a client found in a log of 60 records, in a completed segment of 40 and one in progress."""
    source, target = logs.create(logs.name("connect")), logs.name("connect-copy")
    logs.write(source, range(MS, MS + 40))
    logs.write(source, range(MS + 40, MS + 60), keep_open=True)
    environment = plain_environment()
    done = subprocess.run(
        [sys.executable, str(CLIENT), sandbox.uri, source, target, str(place), *steps],
        capture_output=True,
        text=True,
        env=environment,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["client"].startswith("pyspark.sql.connect")
    return found


def test_a_client_of_spark_connect_reads_writes_streams_listens_and_asks(
    sandbox: Sandbox, logs: Logs, tmp_path: Path, rounds: int | None
) -> None:
    found = client(sandbox, logs, tmp_path, STEPS if rounds is None else ())
    assert found["batch"] == [60, MS, MS + 59]
    assert found["stream"] == {"rows": 60, "missing": 0, "lags": [35, 10, 0]}
    assert found["segments"] == [[1, "completed", 40], [2, "in progress", 20]]
    assert "Did you mean subscribe" in found["error"]
    before, during, after = found["registered"]
    assert (before, after) == ("60", "60")
    assert "cannot be reached" in during
    assert found["for each batch"] == 60
    the_catalog_works(found["catalog"])
    if rounds is not None:
        assert found["view"] == 30
        tables_work(found["tables"])


def tables_work(found: dict[str, Any]) -> None:
    assert found["rows"] == [[1, "none", None, 1], [2, "none", "x", 2]]
    assert "id BIGINT NOT NULL" in found["made again by"]
    assert "Column id is NOT NULL" in found["null"]
    assert "note" in found["narrowed"]


def the_catalog_works(found: dict[str, Any]) -> None:
    assert found["select"] == [[30, MS + 59]]
    assert found["time travel"] == [[5], [20]]
    assert sorted(name.rpartition("_")[2] for name in found["tables"]) == ["inserted", "selected", "streamed"]
    assert found["columns"] == COLUMNS
    assert found["statistics"][0].endswith(" bytes, 60 rows")
    assert found["properties"] == [["compressionType", "lz4"]]
    assert found["inserted"] == [[22, 5]]
    assert found["selected"] == [[60, 2]]
    assert found["streamed"] == [60, 0]
    assert found["segments"] == [[1, 40], [2, 20]]
    assert "TABLE_OR_VIEW_NOT_FOUND" in found["no table"]
    assert "a log only grows" in found["overwritten"]
