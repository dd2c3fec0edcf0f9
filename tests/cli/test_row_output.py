"""`dlspark read --columns --where`: rows of the columns that a log declares."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from dlspark.cli.main import app
from dlspark.core.sync.namespace import Namespace
from dlspark.sandbox.sandbox import Sandbox
from dlspark.tables.ddl import schema_from_ddl

pytestmark = pytest.mark.processes
COLUMNS = "id BIGINT NOT NULL, item STRING, price DECIMAL(9, 2), at TIMESTAMP, tags ARRAY<STRING>"
PAYLOADS = [
    b'{"id": 1, "item": "nut", "price": 9.5, "at": "2026-11-26T10:00:00Z", "tags": ["a"]}',
    b'{"id": 2, "item": "b\\u00f6lt\\n", "price": 10.01}',
    b'{"id": "three"}',
    b'{"id": 4, "price": 12}',
]


def made(uri: str, name: str, payloads: Sequence[bytes] = PAYLOADS, *, format_: str = "json") -> str:
    with Namespace.open(uri) as namespace:
        namespace.create_log(name)
        with namespace.open_log(name) as log:
            log.declare_schema(schema_from_ddl(COLUMNS), format=format_)
            with log.open_writer() as writer:
                writer.write_batch(np.arange(len(payloads)), pa.array(payloads, pa.binary())).result()
    return name


def read(sandbox: Sandbox, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["read", *arguments], env={"DLSPARK_URI": sandbox.uri})


def rows(sandbox: Sandbox, *arguments: str) -> list[object]:
    done = read(sandbox, *arguments, "--output", "json")
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_columns_are_printed_for_people_and_as_lines_of_json(cli_sandbox: Sandbox) -> None:
    log = made(cli_sandbox.uri, "rows/printed")
    done = read(cli_sandbox, log, "--columns", "ID, item,price")
    assert done.stdout.splitlines() == [
        "id  item    price",
        "1   nut     9.50",
        "2   bölt\\n  10.01",
        "",
        "4           12.00",
    ]
    assert done.stderr == f"dlspark: 1 row does not fit the log's columns; `dlspark log errors {log}` lists them\n"
    assert rows(cli_sandbox, log, "--columns", "id,at,tags")[:2] == [
        {"id": 1, "at": "2026-11-26T10:00:00.000000Z", "tags": ["a"]},
        {"id": 2},
    ]
    assert rows(cli_sandbox, log, "--columns", "_error,id", "--where", "_error is not null") == [
        {"_error": "column id is long, and the record has the string 'three'"}
    ]


def test_rows_are_chosen_by_a_condition_a_position_and_a_number(cli_sandbox: Sandbox) -> None:
    log = made(cli_sandbox.uri, "rows/chosen")

    def ids(*arguments: str) -> list[object]:
        return [row["id"] for row in rows(cli_sandbox, log, "--columns", "id", *arguments)]  # type: ignore[index]

    assert ids("--where", "price > 10") == [2, 4]
    assert ids("--where", "price > 10 and item is null or at >= '2026-11-01'") == [1, 4]
    assert ids("--where", "_log.transaction_id >= 1 and id > 0", "--limit", "1") == [2]
    assert ids("--from", "3") == [4]
    assert ids("--where", "id > 0", "--follow", "--limit", "3") == [1, 2, 4]
    assert [row.keys() for row in rows(cli_sandbox, log, "--where", "id = 4")] == [{"id", "price"}]  # type: ignore[attr-defined]


def test_what_cannot_be_read_so_is_refused(cli_sandbox: Sandbox) -> None:
    log = made(cli_sandbox.uri, "rows/refused", [])
    with Namespace.open(cli_sandbox.uri) as namespace:
        namespace.create_log("rows/plain")
    for arguments, said in (
        ([log, "--columns", "id,nothing"], "there is no column 'nothing'"),
        ([log, "--columns", "id,ID"], "column id is named twice"),
        ([log, "--where", "nothing = 1"], "Character 1: there is no column nothing"),
        ([log, "--where", "id = 'x'"], "Character 6: column id is int64"),
        ([log, "--columns", "id", "--output", "raw"], "--columns and --where print rows"),
        ([log, "--columns", "id", "--hex"], "--columns and --where print rows"),
        (["rows/plain", "--columns", "id"], "the log declares no schema"),
        (["rows/none", "--columns", "id"], "no such log"),
    ):
        done = read(cli_sandbox, *arguments)
        assert (done.exit_code, done.stdout) == (1, "")
        assert said in done.stderr
    assert rows(cli_sandbox, log, "--columns", "id") == []


def test_a_follower_ends_when_nobody_reads_its_output(cli_sandbox: Sandbox) -> None:
    log = made(cli_sandbox.uri, "rows/followed")
    command = [sys.executable, "-m", "dlspark.cli", "read", log, "--columns", "id", "--output", "json", "--follow"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "DLSPARK_URI": cli_sandbox.uri}
    ) as running:
        assert running.stdout is not None
        assert [json.loads(running.stdout.readline()) for _ in range(4)] == [{"id": 1}, {"id": 2}, {}, {"id": 4}]
        running.stdout.close()
        assert running.wait(60) == 0


def test_a_terminal_without_a_character_gets_json_all_the_same(cli_sandbox: Sandbox) -> None:
    log = made(cli_sandbox.uri, "rows/ascii")
    arguments = ["read", log, "--columns", "item", "--output", "json"]
    done = CliRunner(charset="ascii").invoke(app, arguments, env={"DLSPARK_URI": cli_sandbox.uri})
    assert json.loads(done.stdout_bytes.splitlines()[1].decode("ascii")) == {"item": "bölt\n"}
