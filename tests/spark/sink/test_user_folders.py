"""The folder of a user's own: found again, never one that another user may have made, whatever its path is."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dlspark.spark.sink.append.folders import RUNTIME_VARIABLE, ShortPath, is_private, own_folder, own_folders

NAME = f"dlspark-{os.getuid()}"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of temporary files that all users share."""
    place = tmp_path / "shared"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    monkeypatch.delenv(RUNTIME_VARIABLE, raising=False)
    return place


def open_to_others(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def link_to_elsewhere(path: Path) -> None:
    elsewhere = path.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    path.symlink_to(elsewhere)


def test_the_folder_is_private_and_found_again(temporary: Path) -> None:
    found = own_folder()
    assert found == temporary / NAME
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    assert own_folder() == found
    assert own_folders() == [found]


@pytest.mark.parametrize("take", [open_to_others, link_to_elsewhere, Path.touch])
def test_a_name_that_was_taken_is_left_alone_and_another_one_is_found_again(
    take: Callable[[Path], None], temporary: Path
) -> None:
    take(temporary / NAME)
    taken = os.lstat(temporary / NAME)
    found = own_folder()
    assert found.name.startswith(f"{NAME}-")
    assert is_private(found)
    assert own_folder() == found
    assert own_folders() == [found]
    assert os.lstat(temporary / NAME) == taken


def test_names_that_others_made_up_are_passed_over(temporary: Path) -> None:
    for name in (NAME, f"{NAME}-aaa"):
        open_to_others(temporary / name)
    link_to_elsewhere(temporary / f"{NAME}-bbb")
    found = own_folder()
    assert found.name not in (NAME, f"{NAME}-aaa", f"{NAME}-bbb")
    assert own_folder() == found


def test_another_users_folder_is_none(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = own_folder()
    monkeypatch.setattr("os.getuid", lambda: os.stat(found).st_uid + 1)
    assert not is_private(found)


def test_the_runtime_directory_goes_first_where_it_is_the_users_own(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv(RUNTIME_VARIABLE, str(runtime))
    assert own_folder() == runtime / "dlspark"
    runtime.chmod(0o755)
    assert own_folder() == temporary / NAME
    monkeypatch.setenv(RUNTIME_VARIABLE, str(tmp_path / "gone"))
    assert own_folder() == temporary / NAME


def test_where_nothing_can_be_made_the_system_says_why(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(temporary / "gone"))
    with pytest.raises(FileNotFoundError):
        own_folder()


@pytest.mark.parametrize("length", [10, 200])
def test_a_socket_is_reached_whatever_the_length_of_its_path(temporary: Path, length: int) -> None:
    place = temporary / ("x" * length)
    place.mkdir()
    path = place / "socket"
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as connection:
        with ShortPath(path) as address:
            assert len(address) <= ShortPath.LIMIT
            listening.bind(address)
        listening.listen()
        assert path.is_socket()
        with ShortPath(path) as address:
            connection.connect(address)
