"""`dlspark cold mirror` as a process that is killed in the middle, and what else the command line has for mirrors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dlspark.cli.main import app
from dlspark.core.sync.namespace import Namespace
from dlspark.sandbox.processes import child_environment
from dlspark.sandbox.sandbox import Sandbox
from metadata.foundation import fault_points

pytestmark = pytest.mark.processes

SEGMENTS = 3


@pytest.fixture(scope="module")
def mirror_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    home = tmp_path_factory.mktemp("killed-mirrors")
    (home / "us").mkdir()
    with Sandbox(home / "sandbox", nodes=1, cold=home / "files", zookeeper_tick_ms=200) as running:
        running.mover.kill()
        yield running


class Commands:
    """Commands over a log whose mirror is a folder."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.own = Path(sandbox.mover.files)
        self.us = self.own.parent / "us"
        self.sets = {
            "coldStorageMirrors": f"us={self.us}",
            "coldHotRetentionSeconds": "0",
            "coldTargetBytes": "1",
            "zkSessionTimeoutSeconds": "2",
        }

    @property
    def _where(self) -> list[str]:
        sets = [f"--set={key}={value}" for key, value in self.sets.items()]
        return [f"--conf={self.sandbox.mover.conf}", "--output", "json", *sets]

    def kill(self, script: str, *words: str) -> None:
        """Run a command in a process that a fault point kills."""
        command = [sys.executable, "-m", "dlspark.cli", *words, f"--uri={self.sandbox.uri}", *self._where]
        environment = child_environment() | {fault_points.VARIABLE: script}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, (words, done.stdout, done.stderr)

    def run(self, *words: str, status: int = 0) -> Any:
        done = CliRunner().invoke(app, [*words, *self._where], env={"DLSPARK_URI": self.sandbox.uri})
        assert done.exit_code == status, (words, done.output, done.exception)
        return json.loads(done.stdout) if done.stdout else done.output

    def write(self, name: str) -> list[bytes]:
        written = []
        with Namespace.open(self.sandbox.uri, self.sandbox.settings) as namespace, namespace.open_log(name) as log:
            for segment in range(SEGMENTS):
                with log.open_writer() as writer:
                    for number in range(10):
                        written.append(f"{segment}/{number}".encode() * 30)
                        writer.write(segment * 100 + number, written[-1])
        return written

    def read(self, name: str, count: int, region: str) -> list[bytes]:
        settings = {"region": region}
        with (
            Namespace.open(self.sandbox.uri, settings) as namespace,
            namespace.open_log(name) as log,
            log.open_reader() as reader,
        ):
            return [bytes(reader.read_next().payload) for _ in range(count)]

    @staticmethod
    def files(folder: Path) -> dict[str, bytes]:
        """What is in a folder; not what was begun there and has a temporary name."""
        return {path.name: path.read_bytes() for path in folder.rglob("[!.]*.parquet")}


@pytest.fixture
def commands(mirror_sandbox: Sandbox) -> Commands:
    return Commands(mirror_sandbox)


def test_a_mirror_is_filled_whoever_is_killed_and_read_while_the_files_are_away(commands, tmp_path):
    written = commands.write("flights")
    commands.run("cold", "move", "flights", "--all")
    for point, after in (("cold.mirrors-noted", 0), ("cold.mirror-before-commit", 1), ("cold.mirror-copied", 0)):
        flag = tmp_path / point
        script = json.dumps({point: {"do": "die", "flag": str(flag), "after": after}})
        commands.kill(script, "cold", "mirror", "flights")
        assert flag.exists()
        assert commands.files(commands.us).items() < commands.files(commands.own).items()
        assert commands.read("flights", len(written), "us") == written
    commands.run("cold", "mirror", "nope", status=1)  # no such log
    done = commands.run("cold", "mirror", "flights")
    assert (done["logs"][0]["problems"], done["logs"][0]["busy"]) == ([], None)
    assert commands.files(commands.us) == commands.files(commands.own)
    assert len(commands.files(commands.us)) == SEGMENTS

    (shown,) = commands.run("cold", "status", "flights")["logs"]
    never_away = {"away_since_ms": None, "away_for": None}
    there = {"region": "us", "root": f"file://{commands.us}", "noted": True, "set": True}
    assert shown["mirrors"] == [there | never_away]
    assert len(commands.run("cold", "verify", "flights", "--mirrors")["files"]) == 2 * SEGMENTS
    # The files' own place is away: their folder is not mounted.
    away = commands.own.with_name("not-mounted")
    commands.own.rename(away)
    try:
        assert commands.read("flights", len(written), "us") == written
        assert commands.read("flights", len(written), "eu") == written
    finally:
        away.rename(commands.own)
    # A damaged copy is found by who looks, and is nobody's data.
    copy = sorted(commands.us.rglob("[!.]*.parquet"))[0]
    data = bytearray(copy.read_bytes())
    data[len(data) // 2] ^= 1
    copy.write_bytes(bytes(data))
    wrong = commands.run("cold", "verify", "flights", "--mirrors", status=3)["files"]
    assert [Path(one["url"].removeprefix("file://")) for one in wrong if one["wrong"]] == [copy]
    assert commands.read("flights", len(written), "us") == written
    assert [one for one in wrong if one["wrong"] and "delete it there" in one["wrong"]]
    copy.unlink()
    assert len(commands.run("cold", "mirror", "flights")["logs"][0]["copied"]) == 1
    assert commands.files(commands.us) == commands.files(commands.own)


def test_an_erasure_says_which_mirror_has_the_record_until_none_has(commands):
    written = commands.write("people")
    commands.run("cold", "move", "people", "--all")
    commands.run("cold", "mirror", "people")
    former = set(commands.us.rglob("[!.]*.parquet"))
    away = commands.us.with_name("us-not-mounted")
    commands.us.rename(away)
    done = commands.run("cold", "redact", "people", "--dlsn", "1:0:1", "--yes", status=3)
    assert done["erased"] == 1
    (left,) = done["copies_left"]
    assert "region us" in left
    assert commands.run("cold", "redact", "people", "--dlsn", "1:0:1", "--yes", status=3)["copies_left"] == [left]
    away.rename(commands.us)
    done = commands.run("cold", "redact", "people", "--dlsn", "1:0:1", "--yes")
    assert done["copies_left"] == []
    assert len([path for path in former if not path.exists()]) == 1
    commands.run("cold", "mirror", "people")
    found = commands.read("people", len(written), "us")
    assert found == [b"" if payload == written[1] else payload for payload in written]
    assert commands.run("cold", "verify", "people", "--mirrors")["failed"] == []


def test_a_former_mirror_is_forgotten_by_name_and_nothing_is_deleted(commands):
    commands.write("old")
    commands.run("cold", "move", "old", "--all")
    commands.run("cold", "mirror", "old")
    assert "take it out there first" in " ".join(
        commands.run("cold", "mirror", "old", "--drop", "us", status=1).split()
    )
    del commands.sets["coldStorageMirrors"]
    before = commands.files(commands.us)
    (folder,) = commands.run("cold", "mirror", "old", "--drop", "us")["dropped"]["old"]
    assert commands.files(commands.us) == before
    assert folder.startswith(commands.us.as_uri())
    assert len(before) >= SEGMENTS
    (shown,) = commands.run("cold", "status", "old")["logs"]
    assert shown["mirrors"] == []
