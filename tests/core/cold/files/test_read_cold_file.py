"""The program of the examples reads a cold file with pyarrow alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from helpers.cold_segments import SegmentMaker, footer_of, random_segment, written
from helpers.paths import ROOT

from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.types import LONG, Field, Schema

PROGRAM = ROOT / "examples" / "read_cold_file.py"
WITHOUT_US = """
import runpy, sys
for name in ("dlspark", "storage_node", "metadata", "numpy"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a program in which nothing of ours can be imported."""


def run(path: Path, shown: int = 5) -> subprocess.CompletedProcess[str]:
    """Run the program on a file."""
    command = [sys.executable, "-c", WITHOUT_US, str(PROGRAM), str(path), str(shown)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_program_is_short() -> None:
    assert len(PROGRAM.read_text().splitlines()) < 60


def test_a_file_without_a_schema_is_read_and_its_digest_is_found(tmp_path: Path) -> None:
    data, done = written([random_segment(n, n + 1, records=200) for n in range(2)], row_group_bytes=5_000)
    path = tmp_path / "cold.parquet"
    path.write_bytes(data)
    ran = run(path)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0].startswith(f"flights/arrivals: {done.records} records of 2 segments")
    assert lines[-1] == f"digest {done.digest}"
    assert len(lines) == 7


def test_typed_columns_are_read_as_they_are(tmp_path: Path) -> None:
    maker = SegmentMaker(1)
    for number in range(10):
        maker.record(b'{"n":%d}' % number, 5)
    data, _ = written([maker.finish()], Declaration.of(RecordFormat.JSON, Schema(0, (Field(1, "n", LONG),))))
    path = tmp_path / "cold.parquet"
    path.write_bytes(data)
    ran = run(path, 1)
    assert ran.returncode == 0, ran.stderr
    assert "1:0:0 5 {'n': 0, 'value': None, '_error': None}" in ran.stdout
    assert "their digest needs the encoder" in ran.stdout


def test_damage_is_found_by_the_program(tmp_path: Path) -> None:
    data, _ = written([random_segment(1, 1, records=50)])
    path = tmp_path / "cold.parquet"
    group = footer_of(data).row_groups[0]
    at = group.columns["value"].offset + 30
    path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
    ran = run(path)
    assert ran.returncode != 0
    assert "value of row group 0 is damaged" in ran.stderr
