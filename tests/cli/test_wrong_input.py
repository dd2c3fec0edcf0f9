"""What a new user gets wrong: each command says what, in one line, and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlspark.cli.common import MAX_COMPARED, name_near_ones
from dlspark.core.sync.namespace import Namespace
from dlspark.sandbox.sandbox import Sandbox
from metadata.distributedlog.log_names import LogNotFoundError

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def uri(cli_sandbox: Sandbox) -> str:
    """A namespace of its own with two logs."""
    uri = f"distributedlog://{cli_sandbox.zookeeper_address}/mistaken"
    Namespace.bind(uri)
    with Namespace.open(uri) as namespace:
        for name in ("orders", "orders-eu", "team/invoices"):
            namespace.create_log(name)
    return uri


def run(uri: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dlspark.cli", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "DLSPARK_URI": uri},
    )


def test_a_log_that_exists_is_not_called_created(uri: str) -> None:
    again = run(uri, "log", "create", "orders")
    assert (again.returncode, again.stdout) == (0, "orders exists already; it was left as it is\n")
    some = json.loads(run(uri, "log", "create", "range-", "--expression", "0-1", "--output", "json").stdout)
    assert some == {"created": ["range-0", "range-1"], "existed": [], "failed": []}
    more = json.loads(run(uri, "log", "create", "range-", "--expression", "1-2", "--output", "json").stdout)
    assert more == {"created": ["range-2"], "existed": ["range-1"], "failed": []}
    refused = run(uri, "log", "create", "orders", "--metadata", "mine")
    assert refused.returncode == 1
    assert "it exists already; its metadata were left as they are [log orders]" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("log", "show", "ordres"), "Did you mean orders"),
        (("read", "ordres"), "Did you mean orders"),
        (("log", "seal", "order", "--yes"), "Did you mean orders"),
        (("log", "count", "team/invoice"), "Did you mean team/invoices?"),
        (("log", "show", "quite-another"), "no such log in this namespace [log quite-another]."),
        (("namespace", "repair-lssn", "ordres"), "no such log in this namespace [log ordres]"),
        (("namespace", "allocator-pool", "delete", "none", "--yes"), "there is no pool 'none'"),
        (("namespace", "acl", "show"), "dlspark namespace bind --acl-root"),
        (("log", "list", "--uri", ""), "an empty URI was given"),
        (("log", "list", "--conf", "/nowhere"), "Correct the path (--conf, or environment variable DLSPARK_CONF)"),
        (("demo", "--output", "/dev/null/plot"), "nothing can be written there: Not a directory"),
        (
            ("bookie", "status", "--conf", "/nowhere"),
            "the settings file /nowhere does not exist. Correct the path (--conf)",
        ),
    ],
)
def test_a_mistake_is_one_line_that_helps(uri: str, arguments: tuple[str, ...], said: str) -> None:
    done = run(uri, *arguments)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.count("dlspark: ") == 1


def test_of_several_logs_each_failure_is_a_line_without_a_second_prefix(uri: str) -> None:
    done = run(uri, "log", "delete", "none-1", "none-2", "--yes")
    assert done.returncode == 1
    lines = sorted(done.stderr.splitlines())
    assert [line.startswith("dlspark: no such log in this namespace [log none-") for line in lines] == [True, True]


def test_a_folder_without_logs_says_so_beside_its_empty_list(uri: str) -> None:
    done = run(uri, "log", "list", "nowhere")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "there are no logs below nowhere\n")
    assert run(uri, "log", "list", "nowhere", "--output", "json").stderr == ""


def test_a_node_is_not_formatted_without_a_terminal_to_ask_on(uri: str, tmp_path: Path) -> None:
    conf = tmp_path / "bookie.conf"
    conf.write_text(f"bookiePort=1\njournalDirectories={tmp_path}/j\nledgerDirectories={tmp_path}/l\n")
    (tmp_path / "j").mkdir()
    done = run(uri, "bookie", "format", "--conf", str(conf))
    assert done.returncode == 1
    assert "nothing was done: there is no terminal to ask on" in done.stderr
    assert "Then give --force" in done.stderr


def test_tables_fit_a_terminal_of_80_columns(uri: str, cli_sandbox: Sandbox) -> None:
    with Namespace.open(uri) as namespace, namespace.open_log("wide") as log:
        for first in (1, 1_372_651_200_000):
            with log.open_writer() as writer:
                writer.write(first, b"x").result(60)
    shown = run(uri, "log", "show", "wide", "--placement").stdout
    assert "wide: 2 segments, 2 records in completed ones" in shown
    assert "1372651200000" in shown
    for text in (shown, run(uri, "ledger", "space").stdout, run(uri, "sink", "list").stdout):
        assert max(map(len, text.splitlines())) <= 80


def test_one_thing_is_not_several(uri: str) -> None:
    with Namespace.open(uri) as namespace, namespace.open_log("single") as log, log.open_writer() as writer:
        writer.write(1, b"x").result(60)
    assert run(uri, "log", "show", "single").stdout.startswith("single: 1 segment, 1 record in completed ones")
    assert run(uri, "log", "purge", "single", "--dry-run").stdout == "single: 0 segments would be deleted\n"
    assert run(uri, "log", "inspect", "single").stdout == "1 log was inspected, 0 have faults\n"


def test_names_are_compared_up_to_a_bound() -> None:
    near = LogNotFoundError("no such log", log="orderz", path="/x", advice="Check the name")
    name_near_ones(near, ["orders", "invoices"])
    assert str(near) == "no such log [log orderz]. Did you mean orders?"
    many = LogNotFoundError("no such log", log="orderz", path="/x", advice="Check the name")
    name_near_ones(many, ["orders", *map(str, range(MAX_COMPARED))])
    assert str(many) == "no such log [log orderz]. Check the name"
