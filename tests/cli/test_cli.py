"""The command line as a user runs it, against a sandbox of processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dlspark.cli.autorecovery import status_lines
from dlspark.cli.common import namespace_uri
from dlspark.cli.main import app
from dlspark.cli.positions import parse_start
from dlspark.core.codec.dlsn import DLSN
from dlspark.sandbox.sandbox import Sandbox
from metadata.bookkeeper.replication import ReplicationStore
from metadata.foundation.errors import CallerError
from metadata.security.settings import SecuritySettings
from metadata.zookeeper.securing import open_session
from storage_node.autorecovery.status import MarkedLedger, RecoveryStatus

COMMAND = [sys.executable, "-m", "dlspark.cli"]


def run(*arguments: str, uri: str | None = None, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if name != "DLSPARK_URI"}
    if uri is not None:
        environment["DLSPARK_URI"] = uri
    return subprocess.run([*COMMAND, *arguments], input=stdin, capture_output=True, env=environment, timeout=120)


class TestPositions:
    @pytest.mark.parametrize(
        ("text", "position"),
        [
            ("earliest", "earliest"),
            ("latest", "latest"),
            ("3:1200:0", DLSN(3, 1200, 0)),
            ("1372651200000", 1372651200000),
            ("2013-07-01T00:00:00-04:00", 1372651200000),
            ("2013-07-01T04:00:00Z", 1372651200000),
            ("2013-07-01", 1372636800000),
            ("2013-07-01 04:00:00z", 1372651200000),
            ("2013-07-01T00:00:00.000000001Z", 1372636800001),
            ("1970-01-01T00:00:00.0005Z", 1),
            ("1960-01-01", 0),
        ],
    )
    def test_a_position_is_read(self, text: str, position: object) -> None:
        assert parse_start(text) == position

    @pytest.mark.parametrize("text", ["", "yesterday", "3:1200", "1:2:x", "2013-13-01", "2013-7-1", "-5", "9" * 30])
    def test_anything_else_is_refused_with_the_forms_there_are(self, text: str) -> None:
        with pytest.raises(CallerError):
            parse_start(text)

    def test_what_was_meant_is_named(self) -> None:
        for text, near in (("earlist", "Did you mean earliest?"), ("2013-7-1", "perhaps 2013-07-01 is meant")):
            with pytest.raises(CallerError, match=re.escape(near)):
                parse_start(text)

    @pytest.mark.usefixtures("no_namespace")
    def test_without_a_uri_the_error_names_both_ways_to_give_one(self) -> None:
        with pytest.raises(CallerError, match=r"--uri.*DLSPARK_URI"):
            namespace_uri(None)


@pytest.mark.processes
class TestLogs:
    def test_lines_go_in_and_come_out_in_every_format(self, cli_sandbox: Sandbox) -> None:
        assert run("log", "create", "lines", uri=cli_sandbox.uri).returncode == 0
        written = run("write", "lines", uri=cli_sandbox.uri, stdin="first\nzwölf\n\nlast".encode())
        assert written.returncode == 0, written.stderr
        assert b"4 records are in the log, the last one at 1:0:3" in written.stderr
        assert run("read", "lines", "--output", "raw", uri=cli_sandbox.uri).stdout == "first\nzwölf\n\nlast\n".encode()
        as_json = run("read", "lines", "--output", "json", uri=cli_sandbox.uri).stdout.decode().splitlines()
        assert [json.loads(line)["value"] for line in as_json] == ["first", "zwölf", "", "last"]
        assert [json.loads(line)["sequence_id"] for line in as_json] == [0, 1, 2, 3]
        table = run("read", "lines", uri=cli_sandbox.uri).stdout.decode().splitlines()
        assert [line.split()[0] for line in table] == [json.loads(line)["dlsn"] for line in as_json]

    def test_reading_starts_where_it_is_told_and_stops_at_the_limit(self, cli_sandbox: Sandbox) -> None:
        run("log", "create", "positions", uri=cli_sandbox.uri)
        run("write", "positions", uri=cli_sandbox.uri, stdin=b"0\n1\n2\n3\n")
        all_of_it = run("read", "positions", "--output", "json", uri=cli_sandbox.uri).stdout.splitlines()
        third = json.loads(all_of_it[2])["dlsn"]
        assert run("read", "positions", "--from", third, "--output", "raw", uri=cli_sandbox.uri).stdout == b"2\n3\n"
        assert run("read", "positions", "--limit", "1", "--output", "raw", uri=cli_sandbox.uri).stdout == b"0\n"
        assert run("read", "positions", "--from", "latest", uri=cli_sandbox.uri).stdout == b""

    def test_writing_creates_a_missing_log_as_upstream_does(self, cli_sandbox: Sandbox) -> None:
        assert run("write", "new", uri=cli_sandbox.uri, stdin=b"a\n").returncode == 0
        assert run("read", "new", "--output", "raw", uri=cli_sandbox.uri).stdout == b"a\n"

    def test_a_deleted_log_is_gone(self, cli_sandbox: Sandbox) -> None:
        run("log", "create", "doomed", uri=cli_sandbox.uri)
        assert b"doomed" in run("log", "list", uri=cli_sandbox.uri).stdout.splitlines()
        assert run("log", "delete", "doomed", uri=cli_sandbox.uri, stdin=b"n\n").returncode == 1
        assert run("log", "delete", "doomed", "--yes", uri=cli_sandbox.uri).returncode == 0
        assert b"doomed" not in run("log", "list", uri=cli_sandbox.uri).stdout.splitlines()

    def test_following_shows_a_record_written_later(self, cli_sandbox: Sandbox) -> None:
        run("log", "create", "tailed", uri=cli_sandbox.uri)
        environment = {**os.environ, "DLSPARK_URI": cli_sandbox.uri}
        arguments = [*COMMAND, "read", "tailed", "--follow", "--output", "raw"]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment) as reader:
            assert reader.stdout is not None
            run("write", "tailed", uri=cli_sandbox.uri, stdin=b"later\n")
            assert reader.stdout.readline() == b"later\n"
            reader.send_signal(signal.SIGINT)
            assert reader.wait(60) == 130

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("read", "absent"), b"absent"),
            (("log", "show", "absent"), b"absent"),
            (("log", "create", "bad//name"), b"bad//name"),
            (("read", "absent", "--from", "yesterday"), b"is not a position"),
        ],
    )
    def test_an_error_is_one_message_and_status_1(
        self, cli_sandbox: Sandbox, arguments: tuple[str, ...], message: bytes
    ) -> None:
        done = run(*arguments, uri=cli_sandbox.uri)
        assert done.returncode == 1
        assert message in done.stderr
        assert b"Traceback" not in done.stderr

    def test_an_unreachable_namespace_is_one_message_and_status_1(self) -> None:
        done = run("log", "list", uri="distributedlog://127.0.0.1:1/none")
        assert done.returncode == 1
        assert b"127.0.0.1:1" in done.stderr
        assert b"Traceback" not in done.stderr


@pytest.mark.processes
class TestAutoRecovery:
    def conf(self, cli_sandbox: Sandbox) -> str:
        return str(next(cli_sandbox.directory.glob("*/bookie.conf")))

    def test_it_is_switched_for_the_whole_cluster(self, cli_sandbox: Sandbox) -> None:
        where = ("--conf", self.conf(cli_sandbox))
        by_address = ("--zookeeper", cli_sandbox.zookeeper_address)
        assert run("autorecovery", "enable", *by_address).stdout == b"auto-recovery was already switched on\n"
        assert b"auto-recovery is enabled" in run("autorecovery", "status", uri=cli_sandbox.uri).stdout
        assert b"a cluster was named twice" in run("autorecovery", "disable", *where, *by_address).stderr
        assert run("autorecovery", "disable", *where).stdout == b"auto-recovery is switched off\n"
        assert b"auto-recovery is disabled" in run("autorecovery", "status", *where).stdout
        as_json = run("autorecovery", "disable", *where, "--output", "json").stdout
        assert json.loads(as_json) == {"enabled": False, "changed": False}
        as_json = run("autorecovery", "enable", *where, "--output", "json").stdout
        assert json.loads(as_json) == {"enabled": True, "changed": True}

    def test_its_status_names_the_ledgers_that_lack_copies(
        self, cli_sandbox: Sandbox, request: pytest.FixtureRequest
    ) -> None:
        async def mark() -> None:
            store = await open_session(cli_sandbox.zookeeper_address, SecuritySettings())
            marks = ReplicationStore(store)
            await marks.mark(123456, ["lost:3181"], 1)
            await store.close()

        async def unmark() -> None:
            store = await open_session(cli_sandbox.zookeeper_address, SecuritySettings())
            marks = ReplicationStore(store)
            found = await marks.read(123456)
            assert found is not None
            await marks.remove_mark(123456, found.version)
            await store.close()

        asyncio.run(mark())
        request.addfinalizer(lambda: asyncio.run(unmark()))
        where = ("--conf", self.conf(cli_sandbox))
        found = json.loads(run("autorecovery", "status", *where, "--output", "json").stdout)
        assert (found["enabled"], found["auditor"], found["marked"], found["locked"]) == (True, None, 1, 0)
        assert [(one["ledger_id"], one["missing"]) for one in found["ledgers"]] == [(123456, ["lost:3181"])]
        assert found["ledgers"][0]["age_s"] > 1_000_000_000
        text = run("autorecovery", "status", *where).stdout.decode()
        assert "there is no auditor" in text
        assert "1 ledger lacks copies, 0 are locked" in text
        assert "ledger 123456: lacks lost:3181, marked " in text

    def test_without_a_file_or_a_cluster_it_says_so(self, cli_sandbox: Sandbox, tmp_path: Path) -> None:
        done = run("autorecovery")
        assert done.returncode == 1
        assert b"--conf" in done.stderr
        elsewhere = tmp_path / "bookie.conf"
        elsewhere.write_text(f"zkServers={cli_sandbox.zookeeper_address}\nzkLedgersRootPath=/nowhere\n")
        done = run("autorecovery", "disable", "--conf", str(elsewhere))
        assert done.returncode == 1
        assert b"initialised" in done.stderr
        assert b"Traceback" not in done.stderr


@pytest.mark.processes
def test_a_mark_that_names_no_node_is_said_to_be_about_placement() -> None:
    ledgers = [MarkedLedger(7, (), 3), MarkedLedger(8, ("lost:3181",), None), MarkedLedger(9, None, None)]
    lines = status_lines(RecoveryStatus(True, "here", None, 3, 0, ledgers))
    assert lines[3:] == [
        "ledger 7: lies where the placement policy does not want it, marked 3 s ago",
        "ledger 8: lacks lost:3181",
        "ledger 9: its mark cannot be read",
    ]


def test_a_detached_sandbox_starts_tells_its_uri_and_stops(tmp_path: Path) -> None:
    where = ("--dir", str(tmp_path / "sandbox"))
    started = run("sandbox", "start", *where, "--nodes", "1", "--detach")
    try:
        assert started.returncode == 0, started.stderr
        status = run("sandbox", "status", *where)
        assert status.stdout == started.stdout
        assert run("log", "list", uri=status.stdout.decode().strip()).returncode == 0
    finally:
        stopped = run("sandbox", "stop", *where)
    assert stopped.stdout == b"stopped\n"
    assert run("sandbox", "status", *where).returncode == 3
    assert run("sandbox", "stop", *where).returncode == 0


def test_status_of_no_sandbox_is_an_error(tmp_path: Path) -> None:
    done = run("sandbox", "status", "--dir", str(tmp_path))
    assert done.returncode == 1
    assert b"there is no sandbox" in done.stderr


@pytest.mark.processes
def test_status_names_what_of_a_sandbox_does_not_run(tmp_path: Path) -> None:
    with Sandbox(tmp_path / "sandbox", nodes=1) as cli_sandbox:
        where = ("sandbox", "status", "--dir", str(cli_sandbox.directory))
        assert CliRunner().invoke(app, where).exit_code == 0
        cli_sandbox.kill_node(0)
        status = CliRunner().invoke(app, where)
        assert (status.exit_code, status.stdout) == (3, f"{cli_sandbox.uri}\n")
        assert f"nothing listens on {cli_sandbox.node_ids[0]}: " in status.stderr


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("tail", "Did you mean 'log tail'?"),
        ("show", "Did you mean 'log show', 'namespace show', 'tls show'?"),
        ("raed", "Did you mean 'read'"),
        ("help", "No such command 'help'.\n"),
    ],
)
def test_a_subcommand_without_its_command_is_answered_with_both(word: str, said: str) -> None:
    refused = CliRunner().invoke(app, [word, "events"])
    assert refused.exit_code == 2
    assert said in refused.stderr


@pytest.mark.parametrize("command", [(), ("read",), ("log",), ("log", "subscribers", "list")])
def test_help_is_short_too(command: tuple[str, ...]) -> None:
    short, long = (CliRunner().invoke(app, [*command, option]) for option in ("-h", "--help"))
    assert (short.exit_code, short.stdout) == (0, long.stdout)


def test_every_command_has_help() -> None:
    from dlspark.cli.main import app

    group = typer.main.get_command(app)
    assert {
        "sandbox",
        "bookie",
        "autorecovery",
        "namespace",
        "log",
        "ledger",
        "write",
        "read",
        "demo",
        "version",
    } <= set(group.commands)  # type: ignore[attr-defined]
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        assert command.help or command.get_short_help_str(), name
