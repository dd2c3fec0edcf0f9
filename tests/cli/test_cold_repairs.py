"""`dlspark cold redact` and `dlspark cold restore`, over logs that the mover has moved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dlspark.cli.main import app
from dlspark.core.sync.namespace import Namespace
from dlspark.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.processes
PAYLOADS = [[b"a0", b"a1"], [b"b0", b"b1"], [b"c0"]]


class ColdProgram:
    """The command line against a sandbox, with cold storage in a folder."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.uri = uri
        self.folder = folder

    def run(self, *arguments: str) -> Result:
        settings = [f"--set=coldStoragePath={self.folder}", "--set=coldHotRetentionSeconds=0"]
        return CliRunner().invoke(app, ["cold", *arguments, *settings], env={"DLSPARK_URI": self.uri})

    def text(self, *arguments: str, status: int = 0) -> str:
        done = self.run(*arguments)
        assert done.exit_code == status, done.output
        return done.stdout

    def json(self, *arguments: str, status: int = 0) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.text(*arguments, "--output", "json", status=status))
        return found

    def refused(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.exit_code == 1, done.output
        return done.stderr

    def log(self, name: str, segments: Sequence[Sequence[bytes]] = PAYLOADS) -> str:
        """Write a log of these segments, of which all but the newest one are in a file alone then."""
        with Namespace.open(self.uri) as namespace:
            namespace.create_log(name)
            at = 0
            for number, part in enumerate(segments, 1):
                with namespace.open_log(name) as log, log.open_writer() as writer:
                    for payload in part:
                        writer.write(at, payload).result()
                        at += 10
                if number == len(segments) - 1:
                    self.text("move", name, "--all")
        self.text("move", name)  # they may leave the ledgers now, and the newest one is not due
        return name

    def reads(self, name: str, payloads: Sequence[bytes]) -> bool:
        """Whether a reader from the beginning gets these records, and no more at once."""
        with (
            Namespace.open(self.uri) as namespace,
            namespace.open_log(name) as log,
            log.open_reader("earliest") as reader,
        ):
            found = [reader.read_next().payload for _ in payloads]
            return found == list(payloads) and reader.read_next(non_blocking=True) is None

    def segments(self, name: str) -> list[int]:
        """Which segments are in ledgers?"""
        with Namespace.open(self.uri) as namespace, namespace.open_log(name) as log:
            return [one.lssn for one in log.segments() if one.cold is None or one.cold.listed]


@pytest.fixture
def program(cli_sandbox: Sandbox, tmp_path: Path) -> ColdProgram:
    (tmp_path / "cold").mkdir()
    return ColdProgram(cli_sandbox.uri, tmp_path / "cold")


def test_records_are_counted_first_and_then_erased(program):
    program.log("redacted")
    assert program.segments("redacted") == [3]
    where = ("redact", "redacted", "--where", "transaction_id >= 10", "--before", "25")
    counted = program.json(*where, "--dry-run", status=3)
    assert (counted["meant"], counted["erased"], counted["not_looked_at"]) == (2, 0, [3, 3])
    assert "there is no terminal to ask on" in program.refused(*where)
    assert program.reads("redacted", [b"a0", b"a1", b"b0", b"b1", b"c0"])

    said = program.text(*where, "--yes", status=3)
    assert "2 records of redacted erased, in 1 file" in said
    assert "segments 3 to 3 are in no file and were not looked at: dlspark cold move redacted --all" in said
    assert program.reads("redacted", [b"a0", b"", b"", b"b1", b"c0"])
    again = program.json("redact", "redacted", "--dlsn", "1:1:0", "--yes", status=3)
    assert (again["meant"], again["erased"]) == (0, 0)


def test_what_is_meant_has_to_be_said(program):
    assert "it is not said which records are to be erased" in program.refused("redact", "nothing")
    assert "neither a transaction id nor a time" in program.refused(
        "redact", "nothing", "--dlsn", "1:0:0", "--before", "latest"
    )
    assert "no such log" in program.refused("redact", "nothing", "--dlsn", "1:0:0")


def test_cold_segments_come_back_into_ledgers(program):
    program.log("returned")
    plan = program.json("restore", "returned", "--dry-run")
    assert [(one["first"], one["last"], one["records"]) for one in plan["units"]] == [(1, 2, 4)]
    assert program.segments("returned") == [3]
    assert "came back from segment 1 on" in program.text("restore", "returned", "--yes")
    assert program.segments("returned") == [1, 2, 3]
    program.text("move", "returned", "--all")
    assert program.segments("returned") == [1, 2, 3], "they are kept for seven days"
    assert program.reads("returned", [b"a0", b"a1", b"b0", b"b1", b"c0"])
    assert "nothing of returned is to come back" in program.text("restore", "returned", "--yes")


def test_a_log_is_made_from_its_files_alone(program, monkeypatch):
    program.log("lost")
    monkeypatch.chdir(program.folder.parent)
    plan = program.json("restore", "found", "--from", program.folder.name, "--dry-run")
    assert (plan["first"], plan["last"], plan["records"], len(plan["files"])) == (1, 2, 4, 1)
    said = program.text("restore", "found", "--from", f"file://{program.folder}", "--yes")
    assert "not in files, and not restored: producers' sequence numbers" in said
    assert "found has 4 records; writers go on with segment 4" in said
    assert program.reads("found", [b"a0", b"a1", b"b0", b"b1"])
    assert "there is such a log" in program.refused("restore", "found", "--from", str(program.folder), "--yes")
    assert "--log-id and --adopt go with --from" in program.refused("restore", "found", "--adopt")
    with Namespace.open(program.uri) as namespace:
        namespace.delete_log("found")
    assert program.reads("lost", [b"a0", b"a1", b"b0", b"b1", b"c0"]), "the files were borrowed"
