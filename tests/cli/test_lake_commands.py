"""`dlspark cold table ...` against a sandbox whose logs move into a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dlspark.cli.main import app
from dlspark.core.sync.namespace import Namespace
from dlspark.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.processes


class LakeProgram:
    def __init__(self, uri: str, folder: Path) -> None:
        self.uri = uri
        self.folder = folder

    def run(self, *arguments: str, status: int = 0) -> Any:
        settings = [f"--set=coldStoragePath={self.folder}/cold"]
        done = CliRunner().invoke(
            app, ["cold", *arguments, "--output", "json", *settings], env={"DLSPARK_URI": self.uri}
        )
        assert done.exit_code == status, (arguments, done.output, done.stderr, done.exception)
        return done.stderr if status == 1 else json.loads(done.stdout)

    def log(self, name: str) -> str:
        with Namespace.open(self.uri) as namespace:
            namespace.create_log(name)
            for part in range(3):
                with namespace.open_log(name) as log, log.open_writer() as writer:
                    writer.write(part, b"record").result()
        self.run("move", name, "--all")
        return name


@pytest.fixture
def program(cli_sandbox: Sandbox, tmp_path: Path) -> LakeProgram:
    (tmp_path / "cold").mkdir()
    (tmp_path / "lake").mkdir()
    return LakeProgram(cli_sandbox.uri, tmp_path)


def test_a_table_is_declared_filled_checked_and_forgotten(program):
    log = program.log("lake/flights")
    places = {
        "berg": ("--iceberg", f"sqlite:///{program.folder}/lake/c.db", f"--option=warehouse={program.folder}/lake"),
        "delta": ("--delta", f"{program.folder}/lake/delta"),
    }
    for name, place in places.items():
        made = program.run("table", "create", name, "--log", log, *place)
        assert (made["table"], made["logs"]) == (name, [log])
        assert program.run("table", "create", name, "--log", log, *place) == made
    synced = program.run("table", "sync")["tables"]
    assert [(one["table"], one["rows"], one["findings"], one["error"]) for one in synced] == [
        ("berg", 3, [], None),
        ("delta", 3, [], None),
    ]
    assert [one["findings"] for one in program.run("table", "check")["tables"]] == [[], []]
    assert program.run("table", "show", "berg")["as"] == "dlspark.berg"
    assert len(program.run("table", "list")["tables"]) == 2
    for name in places:
        assert program.run("table", "drop", name)["dropped"]
    assert "There is no table berg" in program.run("table", "sync", "berg", status=1)
    assert (program.folder / "lake" / "delta" / "_delta_log").is_dir()


def test_paths_are_kept_as_what_they_are_from_where_they_were_given(program, monkeypatch):
    log = program.log("lake/relative")
    monkeypatch.chdir(program.folder)
    made = program.run(
        "table", "create", "rel", "--log", log, "--iceberg", "sqlite:///lake/c.db", "--option", "warehouse=lake"
    )
    assert made["place"] == f"sqlite:///{program.folder}/lake/c.db"
    assert made["options"] == {"warehouse": f"{program.folder}/lake"}
    monkeypatch.chdir("/")
    (synced,) = program.run("table", "sync", "rel")["tables"]
    assert (synced["rows"], synced["error"]) == (3, None)
    program.run("table", "drop", "rel")


def test_a_catalog_that_cannot_be_kept_is_not_declared(program):
    log = program.log("lake/nowhere")
    for place, said in (
        (f"sqlite:///{program.folder}/none/c.db", "There is no folder"),
        ("sqlite:///:memory:", "gone with this command"),
        ("sqlite:///", "gone with this command"),
    ):
        assert said in program.run("table", "create", "t", "--log", log, "--iceberg", place, status=1)
    assert program.run("table", "list")["tables"] == []


def test_what_is_not_declared(program):
    assert "no such log" in program.run("table", "create", "t", "--log", "none", "--delta", "/x", status=1)
    log = program.log("lake/other")
    assert "--iceberg CATALOG or --delta PATH" in program.run("table", "create", "t", "--log", log, status=1)
    secret = ("--iceberg", "https://catalog.invalid", "--option", "token=x")
    assert "holds a secret" in program.run("table", "create", "t", "--log", log, *secret, status=1)
    assert program.run("table", "list")["tables"] == []
