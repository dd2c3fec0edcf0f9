"""Cold storage from the command line, against a sandbox of processes with a mover."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dlspark.cli.main import app
from dlspark.core.sync.namespace import Namespace
from dlspark.core.sync.readers import LogReader
from dlspark.sandbox.sandbox import Sandbox
from metadata.foundation.errors import CallerError

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cold_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    home = tmp_path_factory.mktemp("cold")
    with Sandbox(home / "sandbox", nodes=1, cold=home / "files") as running:
        running.mover.kill()  # so that what is tested is done by the commands
        yield running


def _run(sandbox: Sandbox, *arguments: str, status: int = 0) -> Any:
    given = ("cold", *arguments, "--conf", str(sandbox.mover.conf), "--output", "json")
    done = CliRunner().invoke(app, given, env={"DLSPARK_URI": sandbox.uri})
    assert done.exit_code == status, (arguments, done.output, done.exception)
    return json.loads(done.stdout)


def _write(sandbox: Sandbox, name: str, segments: int, first: int = 0) -> None:
    with Namespace.open(sandbox.uri, sandbox.settings) as namespace, namespace.open_log(name) as log:
        for segment in range(first, first + segments):
            with log.open_writer() as writer:
                for number in range(10):
                    writer.write(segment * 10 + number, f"{segment}/{number}".encode())


def _read(sandbox: Sandbox, name: str, count: int) -> list[bytes]:
    with Namespace.open(sandbox.uri) as namespace, namespace.open_log(name) as log, log.open_reader() as reader:
        return [bytes(reader.read_next().payload) for _ in range(count)]


def test_a_log_is_moved_shown_verified_audited_and_read_on(cold_sandbox):
    _write(cold_sandbox, "flights", 3)
    before = _read(cold_sandbox, "flights", 30)
    done = _run(cold_sandbox, "move", "flights", "--all")
    assert [(one["first"], one["last"], one["rows"]) for one in done["moved"]] == [(1, 3, 30)]
    _write(cold_sandbox, "flights", 1, first=3)
    done = _run(cold_sandbox, "move", "flights", "--all", "--set", "coldHotRetentionSeconds=0")
    assert [(one["first"], one["last"]) for one in done["hot_deleted"]] == [(1, 3)]
    (shown,) = _run(cold_sandbox, "status", "flights")["logs"]
    assert (shown["cold_segments"], shown["both_segments"], shown["hot_segments"], shown["files"]) == (3, 1, 0, 2)
    given = ("cold", "status", "flights", "--conf", str(cold_sandbox.mover.conf))
    text = CliRunner().invoke(app, given, env={"DLSPARK_URI": cold_sandbox.uri, "COLUMNS": "80"}).stdout
    header, row, why = text.splitlines()
    assert header.split() == ["log", "hot", "both", "cold", "files", "waits"]
    assert [cell.strip() for cell in row.split("  ") if cell][:2] == ["flights", "-"]
    assert why.startswith("flights: hot copies of the oldest unit stay: it holds the newest completed segment")
    assert _read(cold_sandbox, "flights", 30) == before
    files = _run(cold_sandbox, "verify", "flights")["files"]
    assert [(one["records"], one["wrong"]) for one in files] == [(30, None), (10, None)]
    assert _run(cold_sandbox, "audit")["findings"] == []


def test_a_file_that_is_damaged_or_gone_is_attention(cold_sandbox):
    _write(cold_sandbox, "damaged", 2)
    (moved,) = _run(cold_sandbox, "move", "damaged", "--all")["moved"]
    path = Path(moved["url"].removeprefix("file://"))
    data = path.read_bytes()
    (alone,) = _run(cold_sandbox, "verify", str(path))["files"]
    assert (alone["log"], alone["records"], alone["wrong"]) == ("damaged", 20, None)
    path.chmod(0o600)
    path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    (found,) = _run(cold_sandbox, "verify", "damaged", status=3)["files"]
    assert "damaged" in found["wrong"]
    path.unlink()
    (finding,) = _run(cold_sandbox, "audit", "damaged", status=3)["findings"]
    assert (finding["kind"], finding["only_copy"]) == ("missing", False)
    path.write_bytes(data)
    assert _run(cold_sandbox, "audit", "damaged")["findings"] == []


def test_what_nothing_names_is_swept_only_when_it_is_old_and_asked_for(cold_sandbox):
    _write(cold_sandbox, "swept", 1)
    (moved,) = _run(cold_sandbox, "move", "swept", "--all")["moved"]
    stray = Path(moved["url"].removeprefix("file://")).with_name("000-001-stray.parquet")
    stray.write_bytes(b"x")
    assert _run(cold_sandbox, "sweep", "swept", "--yes")["objects"] == []
    assert stray.exists(), "it may be in the making"
    done = CliRunner().invoke(app, ("cold", "sweep", "swept"), env={"DLSPARK_URI": cold_sandbox.uri})
    assert done.exit_code == 1
    assert "--yes" in done.stderr


def test_a_log_without_cold_storage_is_told_how_to_get_it(cold_sandbox):
    done = CliRunner().invoke(app, ("cold", "move", "flights"), env={"DLSPARK_URI": cold_sandbox.uri})
    assert done.exit_code == 1
    assert "coldStoragePath" in done.stderr


def test_whose_the_place_for_files_is_is_shown_and_taken_over(cold_sandbox):
    _write(cold_sandbox, "owned", 1)
    _run(cold_sandbox, "move", "owned", "--all")
    shown = _run(cold_sandbox, "owner")
    assert shown["ours"]
    assert shown["owner"] == shown["this"]
    # As if a copy of the znodes in another ZooKeeper had taken it over.
    marks = Path(shown["folder"].removeprefix("file://")) / "owner"
    assert [one.name for one in marks.iterdir()] == [f"000001-{shown['this']}"]
    (marks / "000002-abc").write_text("{}")
    other = _run(cold_sandbox, "owner", status=3)
    assert (other["owner"], other["ours"]) == ("abc", False)
    _write(cold_sandbox, "owned", 1, first=1)
    refused = _run(cold_sandbox, "move", "owned", "--all", status=1)
    assert refused["moved"] == []
    assert "belong to another ZooKeeper's copy" in refused["problems"][0]
    arguments = ("cold", "owner", "--take-over", "--conf", str(cold_sandbox.mover.conf))
    asked = CliRunner().invoke(app, arguments, env={"DLSPARK_URI": cold_sandbox.uri})
    assert asked.exit_code == 1
    assert "no terminal to ask on" in asked.stderr
    assert _run(cold_sandbox, "owner", "--take-over", "--yes")["ours"]
    assert len(_run(cold_sandbox, "move", "owned", "--all")["moved"]) == 1


def test_without_a_place_there_is_no_owner_to_show(cold_sandbox):
    done = CliRunner().invoke(app, ("cold", "owner"), env={"DLSPARK_URI": cold_sandbox.uri})
    assert done.exit_code == 1
    assert "there is no place for files" in done.stderr


def _in_child(
    sandbox: Sandbox, inherited: Namespace, reader: LogReader, said: multiprocessing.SimpleQueue[str]
) -> None:
    for call in (lambda: inherited.open_log("forked"), reader.read_next):
        try:
            call()
        except CallerError as error:
            said.put(type(error).__name__)
        else:
            said.put("done")
    said.put(b" ".join(_read(sandbox, "forked", 40)).decode())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_refused_what_its_parent_has_open_and_reads_files_by_itself(cold_sandbox):
    _write(cold_sandbox, "forked", 3)
    _run(cold_sandbox, "move", "forked", "--all")
    _write(cold_sandbox, "forked", 1, first=3)
    moved = _run(cold_sandbox, "move", "forked", "--all", "--set", "coldHotRetentionSeconds=0")
    assert [(one["first"], one["last"]) for one in moved["hot_deleted"]] == [(1, 3)]
    written = [f"{segment}/{number}" for segment in range(4) for number in range(10)]
    with (
        Namespace.open(cold_sandbox.uri) as namespace,
        namespace.open_log("forked") as log,
        log.open_reader() as reader,
    ):
        before = [bytes(reader.read_next().payload).decode() for _ in range(5)]  # in the middle of a file
        context = multiprocessing.get_context("fork")
        said = context.SimpleQueue()
        child = context.Process(target=_in_child, args=(cold_sandbox, namespace, reader, said))
        child.start()
        try:
            child.join(60)
            assert child.exitcode == 0, "it failed, or hangs"
        finally:
            child.kill()
            child.join()
        assert [said.get(), said.get(), said.get().split()] == ["OpenedElsewhereError"] * 2 + [written]
        assert before + [bytes(reader.read_next().payload).decode() for _ in range(35)] == written
        assert _read(cold_sandbox, "forked", 40) == [one.encode() for one in written]


def test_a_detached_sandbox_says_where_the_settings_of_writers_are(tmp_path, monkeypatch):
    monkeypatch.setattr("dlspark.cli.sandbox._start_detached", lambda *given: "distributedlog://here/ns")
    given = ("sandbox", "start", "--detach", "--dir", str(tmp_path), "--cold", str(tmp_path / "files"))
    done = CliRunner().invoke(app, given)
    assert done.stdout == "distributedlog://here/ns\n"
    assert f"DLSPARK_CONF={tmp_path / 'cold.conf'}" in done.stderr
