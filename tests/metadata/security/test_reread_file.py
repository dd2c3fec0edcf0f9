"""A file that is replaced in use: the newest good content holds, and a bad one is said once."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from metadata.foundation.errors import CallerError
from metadata.security.file_signatures import file_signature
from metadata.security.reread_file import AGAIN_S, RereadFile


def number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError) as cause:
        raise CallerError("no number", path=str(path)) from cause


def replace(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    os.replace(path.with_suffix(".new"), path)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings of files: another test's thread in this process may have its own."""
    return [one.getMessage() for one in caplog.records if one.name == "metadata.security.reread_file"]


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
        assert len(said(caplog)) == 1
        path.unlink()
        assert [watched.current(), watched.current()] == [2, 2]
        assert len(said(caplog)) == 2
    replace(path, "3")
    assert watched.current() == 3


def test_a_file_whose_rights_are_mended_is_taken_over(tmp_path: Path) -> None:
    """As its error advises: neither time of writing, nor size, nor inode changes by that."""

    def private(path: Path) -> int:
        if path.stat().st_mode & 0o007:
            raise CallerError("others may read it: chmod o=", path=str(path))
        return number(path)

    path = tmp_path / "number"
    path.write_text("1")
    path.chmod(0o600)
    watched = RereadFile(path, private)
    replace(path, "2")
    path.chmod(0o644)
    assert watched.current() == 1
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # until the file system's clock ticks
        path.chmod(0o600)
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert watched.current() == 2


@pytest.mark.parametrize("error", [CallerError("Too many open files"), OSError("EIO"), ValueError("b'secret'")])
def test_a_reading_that_fails_once_is_made_again(
    error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, moment = tmp_path / "number", [0.0]
    failing: list[Exception] = []

    def read(path: Path) -> int:
        for one in failing:
            raise one
        return number(path)

    path.write_text("1")
    watched = RereadFile(path, read, elapsed=lambda: moment[0])
    replace(path, "2")
    failing.append(error)
    assert [watched.current(), watched.current()] == [1, 1]
    moment[0] += AGAIN_S
    assert watched.current() == 1
    assert len(said(caplog)) == 1
    assert "secret" not in caplog.text
    failing.clear()
    assert watched.current() == 1, "not before its time: this may be asked a thousand times a second"
    moment[0] += AGAIN_S
    assert watched.current() == 2


def test_a_change_within_one_tick_of_the_file_systems_clock_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, moment = tmp_path / "number", [0.0]
    path.write_text("1")
    before = file_signature(path)
    monkeypatch.setattr("metadata.security.reread_file.file_signature", lambda _: before)
    watched = RereadFile(path, number, elapsed=lambda: moment[0])
    path.write_text("2")
    moment[0] += AGAIN_S
    assert watched.current() == 2


def test_a_file_that_was_written_long_ago_is_read_once(tmp_path: Path) -> None:
    path, moment = tmp_path / "number", [0.0]
    readings: list[Path] = []

    def read(path: Path) -> int:
        readings.append(path)
        return number(path)

    path.write_text("1")
    watched = RereadFile(path, read, clock=lambda: time.time() + 60, elapsed=lambda: moment[0])
    for _ in range(5):
        moment[0] += AGAIN_S
        assert watched.current() == 1
    assert len(readings) == 1
