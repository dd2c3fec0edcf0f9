"""Files of data and secrets are their owner's alone, whatever the umask; older ones are closed."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from metadata.foundation.private_files import close_to_others, make_private_directory

pytestmark = pytest.mark.usefixtures("no_umask")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    directory = tmp_path / "above" / "data"
    make_private_directory(directory)
    assert mode(directory) == 0o700
    assert mode(tmp_path / "above") == 0o777, "what is above is not ours"
    (directory / "file").touch()
    with pytest.raises(FileExistsError):
        make_private_directory(directory / "file")


def test_what_was_open_is_closed_with_a_word_and_links_are_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("of another program")
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    (data / "log").write_text("x")
    (data / "tool").touch(mode=0o751)
    (data / "link").symlink_to(elsewhere)
    make_private_directory(data)
    assert [mode(data), mode(data / "log"), mode(data / "tool"), mode(elsewhere)] == [0o700, 0o600, 0o700, 0o666]
    assert caplog.messages == [f"{data} was open to other users of this machine, and is closed now (3 paths)"]
    make_private_directory(data)
    assert len(caplog.messages) == 1, "once"


def test_what_cannot_be_closed_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: str, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr("metadata.foundation.private_files.os.chmod", refuse)
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    close_to_others(data)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "chmod -R go-rwx" in caplog.text
