"""`dlspark log schema` and `log errors`: columns declared, changed, proposed, and records held against them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from dlspark.cli.main import app
from dlspark.core.sync.namespace import Namespace
from dlspark.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.processes
AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


class Program:
    """The command line against a sandbox, and logs to use it on."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.uri = uri
        self.folder = folder

    def __call__(self, *arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, arguments, input=stdin, env={"DLSPARK_URI": self.uri})

    def text(self, *arguments: str, stdin: str | None = None, status: int = 0) -> str:
        done = self(*arguments, stdin=stdin)
        assert done.exit_code == status, done.output
        return done.stdout

    def json(self, *arguments: str, stdin: str | None = None, status: int = 0) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.text(*arguments, "--output", "json", stdin=stdin, status=status))
        return found

    def refused(self, *arguments: str, stdin: str | None = None) -> str:
        done = self(*arguments, stdin=stdin)
        assert done.exit_code == 1, done.output
        return done.stderr

    def file(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def log(self, name: str, payloads: Sequence[bytes] = (), txid: Callable[[int], int] = lambda at: at) -> str:
        with Namespace.open(self.uri) as namespace:
            namespace.create_log(name)
            if payloads:
                with namespace.open_log(name) as log, log.open_writer() as writer:
                    ids = np.array([txid(at) for at in range(len(payloads))], np.int64)
                    writer.write_batch(ids, pa.array(payloads, pa.binary())).result()
        return name


@pytest.fixture
def program(cli_sandbox: Sandbox, tmp_path: Path) -> Program:
    return Program(cli_sandbox.uri, tmp_path)


def test_columns_are_declared_shown_and_changed(program: Program) -> None:
    log = program.log("schemas/orders")
    set_ = ("log", "schema", "set", log)
    assert "declares no schema" in program.refused("log", "schema", "show", log)
    said = program.text(*set_, "-", "--timestamp", "at", stdin="id BIGINT NOT NULL, item STRING, at TIMESTAMP NOT NULL")
    assert said == f"{log} declares 3 columns now, in json\n"
    assert program.text("log", "schema", "show", log) == (
        "-- version 0 of 1, json, transaction ids from at\nid BIGINT NOT NULL,\nitem STRING,\nat TIMESTAMP NOT NULL\n"
    )
    shown = program.text("log", "schema", "show", log)
    assert program.text(*set_, "-", stdin=shown) == "nothing is to be changed\n"
    wanted = "id BIGINT NOT NULL, note STRING COMMENT 'x', item STRING, at TIMESTAMP NOT NULL"
    assert program.json(*set_, "-", "--dry-run", stdin=wanted)["changes"] == [
        "ADD COLUMN note STRING COMMENT 'x' AFTER id"
    ]
    assert program.json("log", "schema", "show", log)["version"] == 0
    assert "there is no terminal to ask on" in program.refused(*set_, "-", stdin=wanted)
    assert "is at version 1" in program.text(*set_, "-", "--yes", "--strict", stdin=wanted)
    found = program.json("log", "schema", "show", log)
    assert (found["version"], found["strict"], found["timestamp"]) == (1, True, "at")
    # The JSON that `show` prints knows columns by ids, so another name is a renaming.
    text = json.dumps(found).replace('"item"', '"product"')
    assert program.json(*set_, "-", "--yes", "--no-strict", stdin=text)["changes"] == [
        "RENAME COLUMN item TO product",
        "not strict",
    ]
    assert program.text("log", "schema", "history", log) == (
        "version 0: 3 columns\nversion 1: 4 columns\n    ADD COLUMN note STRING COMMENT 'x' AFTER id\n"
        "version 2: 4 columns\n    RENAME COLUMN item TO product\n"
    )
    assert [one["version"] for one in program.json("log", "schema", "history", log)["versions"]] == [0, 1, 2]  # type: ignore[attr-defined]
    assert program.text("log", "schema", "show", log, "--version", "0") == shown.replace("of 1", "of 3")
    assert "there is no version 7" in program.refused("log", "schema", "show", log, "--version", "7")


def test_what_cannot_be_set_is_refused_and_changes_nothing(program: Program) -> None:
    log = program.log("schemas/refused")
    set_ = ("log", "schema", "set", log)
    assert "Character 4: BOGUS is not a type" in program.refused(*set_, "-", stdin="id BOGUS")
    assert "is not JSON" in program.refused(*set_, "-", stdin='{"type": ')
    assert "This is not a schema in Iceberg's JSON" in program.refused(*set_, "-", stdin='{"type": "struct"}')
    assert "cannot be read" in program.refused(*set_, str(program.folder / "missing"))
    assert "is not text in UTF-8" in program.refused(*set_, str(_bytes(program.folder / "bytes", b"\xff")))
    assert "no columns were given" in program.refused(*set_)
    assert "no columns were given" in program.refused(*set_, "--strict")
    assert "cannot give transaction ids" in program.refused(*set_, "-", "--timestamp", "id", stdin="id STRING")
    program.text(*set_, "-", stdin="id BIGINT")
    for arguments, said in (
        (("-", "--format", "avro"), "its format is json, and stays"),
        (("-", "--timestamp", "id"), "the column of its transaction ids is none, and stays"),
        (("-", "--yes", "--confluent", f"7={program.file('a.avsc', json.dumps(AVRO))}"), "only those of Avro"),
        (("-", "--confluent", "x"), "does not name a schema"),
    ):
        assert said in program.refused(*set_, *arguments, stdin="id BIGINT")
    assert "cannot become int" in program.refused(*set_, "-", "--yes", stdin="id INT")
    assert program.json("log", "schema", "show", log)["version"] == 0
    assert "no such log" in program.refused("log", "schema", "set", "schemas/none", "-", stdin="id BIGINT")


def _bytes(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_schema_is_withdrawn_and_declared_anew(program: Program) -> None:
    log = program.log("schemas/anew")
    set_ = ("log", "schema", "set", log)
    program.text(*set_, "-", stdin="id BIGINT")
    file = program.file("order.avsc", json.dumps(AVRO))
    assert "no terminal to ask on" in program.refused(*set_, file, "--replace")
    assert "would declare 1 column" in program.text(*set_, file, "--replace", "--dry-run")
    found = program.json(*set_, file, "--replace", "--yes", "--confluent", f"7={file}")
    assert (found["format"], found["confluent"]) == ("avro", [7])
    assert "schema 9 of a registry" in program.text(*set_, "--confluent", f"9={file}")
    assert program.text("log", "schema", "withdraw", log, "--yes") == f"{log} declares no schema now\n"
    assert "declares no schema" in program.refused("log", "schema", "withdraw", log, "--yes")


# ---------------------------------------------------------------------- records


def test_records_that_do_not_fit_are_counted_by_what_is_wrong_and_listed(program: Program) -> None:
    payloads = [b'{"id": %d}' % at for at in range(40)]
    payloads += [b'{"id": "%d"}' % at for at in range(3)] + [b"\xff\n", b'{"id": 99}']
    log = program.log("schemas/checked", payloads)
    said = program.text("log", "schema", "check", log, program.file("ids", "id STRING NOT NULL"), status=3)
    assert said.splitlines()[0] == f"{log}: 3 of 45 records fit"
    program.text("log", "schema", "set", log, "-", stdin="id BIGINT NOT NULL")
    said = program.text("log", "schema", "check", log, status=3).splitlines()
    assert said[0] == f"{log}: 41 of 45 records fit"
    assert said[2].split()[:2] == ["3", "1:0:40"]
    found = program.json("log", "schema", "check", log, "--sample", "4", status=3)
    assert (found["records"], found["fit"]) == (4, 1)
    assert [one["records"] for one in found["errors"]] == [2, 1]  # type: ignore[attr-defined]
    assert program.json("log", "schema", "check", log, "--sample", "1")["fit"] == 1
    lines = [json.loads(line) for line in program.text("log", "errors", log, "--output", "json").splitlines()]
    assert [line["dlsn"] for line in lines] == ["1:0:40", "1:0:41", "1:0:42", "1:0:43"]
    assert (lines[0]["begins"], lines[0]["transaction_id"], lines[0]["bytes"]) == ('{"id": "0"}', 40, 11)
    (last,) = program.text("log", "errors", log, "--last", "2", "--hex").splitlines()
    assert last.startswith("1:0:43")
    assert last.endswith("|  ff0a")
    assert len(program.text("log", "errors", log, "--since", "42").splitlines()) == 2
    assert program("log", "errors", log, "--last", "1").stderr == "all records that were looked at fit\n"


def test_a_time_behind_a_record_s_transaction_id_is_found(program: Program) -> None:
    payloads = [b'{"at": 5}', b'{"at": 900}']
    log = program.log("schemas/late", payloads, lambda at: 100 + at)
    program.text("log", "schema", "set", log, "-", "--timestamp", "at", stdin="at BIGINT NOT NULL")
    found = program.json("log", "schema", "check", log, status=3)
    assert found["errors"] == [
        {"records": 1, "dlsn": "1:0:1", "error": "column at is later than the record's transaction id, 101"}
    ]


def test_columns_are_proposed_that_the_records_fit(program: Program) -> None:
    rows = [{"id": at, "price": at / 2, "at": "2026-11-26T10:00:00Z", "tags": ["a"]} for at in range(5)]
    log = program.log("schemas/inferred", [json.dumps(row).encode() for row in rows] + [b"not json"])
    proposed = program.text("log", "schema", "infer", log)
    assert proposed.splitlines()[:2] == ["-- 5 of 6 records are objects in JSON", "-- 1 are of no form that is known"]
    found = program.json("log", "schema", "infer", log, "--sample", "2")
    assert (found["records"], found["forms"]) == (2, {"json": 1, "other": 1})
    program.text("log", "schema", "set", log, "-", stdin=proposed)
    assert program.json("log", "schema", "check", log, status=3)["fit"] == 5
    empty = program.log("schemas/empty")
    assert "has no records" in program.refused("log", "schema", "infer", empty)


def test_records_of_a_registry_are_told_from_others(program: Program) -> None:
    log = program.log("schemas/confluent", [b"\0\0\0\0\x07\x02", b"\0\0\0\0\x07\x04"])
    said = program.text("log", "schema", "infer", log, status=3)
    assert "2 are records of Avro as Confluent's serialisers write them" in said
    assert f"dlspark log schema set {log} 7.avsc --format avro --confluent 7=7.avsc" in said
    file = program.file("7.avsc", json.dumps(AVRO))
    program.text("log", "schema", "set", log, file, "--format", "avro", "--confluent", f"7={file}")
    assert program.json("log", "schema", "check", log)["fit"] == 2
