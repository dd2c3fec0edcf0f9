"""`dlspark bookie init` and the file that it writes."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dlspark.cli.main import app
from storage_node.errors import BookieConfigurationError
from storage_node.settings import files
from storage_node.settings.bookie import BookieSettings
from storage_node.settings.files import bookie_conf

DIRECTORIES = {"journalDirectories": "/j", "ledgerDirectories": "/l"}


def init(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["bookie", "init", *map(str, arguments)])
    return done.exit_code, done.output


def test_a_file_is_written_with_the_nodes_own_places_and_every_other_default(tmp_path: Path) -> None:
    path = tmp_path / "etc" / "node-1.conf"
    places = ["--journal", tmp_path / "j", "--ledgers", tmp_path / "l1", "--ledgers", tmp_path / "l2"]
    status, said = init(path, *places, "--zookeeper", "zk1:2181,zk2:2181", "--port", 3182, "--set", "bookieId=node-1")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "a password of a key store may come to stand in it"
    assert (status, said.splitlines()[1]) == (0, f"Start the node with: dlspark bookie --conf {path}")
    assert files.NodeFile.read(path).bookie() == BookieSettings(
        (str(tmp_path / "j"),),
        (str(tmp_path / "l1"), str(tmp_path / "l2")),
        zk_servers="zk1:2181,zk2:2181",
        bookie_port=3182,
        bookie_id="node-1",
    )
    comments = [line for line in bookie_conf().splitlines() if line.startswith("# ")]
    assert [line for line in path.read_text().splitlines() if line.startswith("# ")] == comments


def test_a_file_that_is_there_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "bookie.conf"
    path.write_text("mine")
    status, said = init(path, "--journal", "j", "--ledgers", "l")
    assert (status, path.read_text()) == (1, "mine")
    assert f"there is a file already; it was not touched [path {path}]" in said


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--set", "bookiePrt=1"], "no key bookiePrt"),
        (["--set", "bookiePort"], "Give key=value"),
        (["--set", "diskUsageThreshold=often"], "diskUsageThreshold='often'"),
        (["--port", "70000"], "bookiePort=70000 is outside"),
        (["--set", "bookieId=né"], "printable ASCII"),
        (["--journal", "a,b"], "has a comma"),
    ],
)
def test_what_no_node_would_start_with_is_not_written(tmp_path: Path, more: list[str], words: str) -> None:
    status, said = init(tmp_path / "bookie.conf", "--journal", "j", "--ledgers", "l", *more)
    assert status == 1
    assert words in said
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_could_not_be_written_whole_is_not_left(tmp_path: Path) -> None:
    class Full:
        def write(self, text: str) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "bookie.conf"
    path.touch()
    with pytest.raises(OSError, match="No space"):
        files._write_whole(Full(), path, "text")  # type: ignore[arg-type]
    assert not path.exists()
    with pytest.raises(BookieConfigurationError, match="cannot be written"):
        files.write_node_file(Path("/proc/nothing/bookie.conf"), DIRECTORIES)


def test_backslashes_of_a_value_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "bookie.conf"
    files.write_node_file(path, DIRECTORIES | {"bookieId": r"a\b"})
    assert files.NodeFile.read(path).bookie().bookie_id == r"a\b"
