"""Fault points: what a script says is done, once a flag, and a script in a file may change."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from metadata.foundation import fault_points
from metadata.foundation.errors import CallerError, ConnectionLossError


def test_a_point_strikes_once_a_flag_after_so_many_passages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = tmp_path / "flag"
    monkeypatch.setenv(fault_points.VARIABLE, json.dumps({"here": {"do": "raise", "flag": str(flag), "after": 1}}))
    fault_points.reach("elsewhere")
    fault_points.reach("here")
    with pytest.raises(RuntimeError, match="here"):
        fault_points.reach("here")
    assert flag.exists()
    fault_points.reach("here")


def test_a_script_in_a_file_is_read_at_each_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script"
    monkeypatch.setenv(fault_points.VARIABLE, f"@{script}")
    fault_points.reach("here")
    for number, kind in enumerate((RuntimeError, ConnectionLossError, CallerError)):
        action = {"do": ("raise", "lose", "sing")[number], "flag": str(tmp_path / f"flag{number}")}
        script.write_text(json.dumps({"here": action}))
        with pytest.raises(kind):
            fault_points.reach("here")
        fault_points.reach("here")


def test_everyone_may_be_struck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    action = {"do": "raise", "flag": str(tmp_path / "flag"), "everyone": True}
    monkeypatch.setenv(fault_points.VARIABLE, json.dumps({"here": action}))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            fault_points.reach("here")


def test_who_waits_goes_on_when_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag, until = tmp_path / "flag", tmp_path / "until"
    action = {"do": "wait", "flag": str(flag), "until": str(until)}
    monkeypatch.setenv(fault_points.VARIABLE, json.dumps({"here": action}))
    waiting = threading.Thread(target=fault_points.reach, args=("here",))
    waiting.start()
    while not flag.exists():
        pass
    assert waiting.is_alive()
    until.touch()
    waiting.join(60)
    assert not waiting.is_alive()
