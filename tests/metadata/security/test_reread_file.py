"""A file that is replaced in use: the newest good content holds, and a bad one is said once."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from metadata.foundation.errors import CallerError
from metadata.security.reread_file import RereadFile


def number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError) as cause:
        raise CallerError("no number", path=str(path)) from cause


def replace(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    os.replace(path.with_suffix(".new"), path)


def test_the_newest_good_content_holds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "number"
    with pytest.raises(CallerError):
        RereadFile(path, number)
    path.write_text("1")
    watched = RereadFile(path, number)
    assert watched.current() == 1
    replace(path, "2")
    assert watched.current() == 2
    with caplog.at_level(logging.WARNING):
        replace(path, "half")
        assert [watched.current(), watched.current()] == [2, 2]
        assert len(caplog.records) == 1
        path.unlink()
        assert [watched.current(), watched.current()] == [2, 2]
        assert len(caplog.records) == 2
    replace(path, "3")
    assert watched.current() == 3
