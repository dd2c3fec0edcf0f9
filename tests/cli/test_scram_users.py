"""`dlspark scram`: users come, get other passwords and go; no password is shown or kept."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from dlspark.cli.main import app
from metadata.security.sasl.credentials import read_scram_users
from metadata.security.sasl.scram import ScramClient, ScramServer
from metadata.security.secrets import secret_from_file


def run(*words: object, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["scram", *map(str, words)])
    assert done.exit_code == status, done.output
    return done.output


def enters(file: Path, name: str, password: Path) -> bool:
    users = read_scram_users(file)
    server = ScramServer(users.users.get, lambda _: True, binding=None, decoy=users.decoy)
    client = ScramClient(name, secret_from_file(password), binding=None)
    server.step(client.step(server.step(client.step(b"") or b"")) or b"")
    return server.done


def test_users_come_change_and_go(tmp_path: Path) -> None:
    file, first, second = tmp_path / "scram.json", tmp_path / "first", tmp_path / "second"
    said = run("set", file, "flights", "--password-file", first)
    password = first.read_text().strip()
    assert "the user flights was added; its password was made and is in" in said
    assert password not in said
    assert password not in file.read_text()
    assert first.stat().st_mode & 0o777 == 0o600
    assert enters(file, "flights", first)
    second.write_text("another\n")
    second.chmod(0o600)
    assert "has another password" in run("set", file, "flights", "--password-file", second, "--iterations", 5000)
    assert enters(file, "flights", second)
    assert second.read_text() == "another\n"
    found = json.loads(run("list", file, "--output", "json"))
    assert found == {"users": [{"user": "flights", "iterations": 5000}]}
    assert "no terminal" in run("remove", file, "flights", status=1)
    assert "taken away" in run("remove", file, "flights", "--yes")
    assert "no SCRAM user 'flights'" in run("remove", file, "flights", "--yes", status=1)
    assert "0 users" in run("list", file)


def test_what_cannot_be_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    file, password = tmp_path / "scram.json", tmp_path / "password"
    run("set", file, "\u0007", "--password-file", password, status=1)
    assert not password.exists()
    password.write_text("x")
    password.chmod(0o644)
    assert "everybody may read" in run("set", file, "flights", "--password-file", password, status=1)
    assert not file.exists()
