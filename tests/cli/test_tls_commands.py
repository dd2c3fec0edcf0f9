"""`dlspark tls`: from an empty folder to identities, and what it says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.security.minting import DAY, MintedAuthority, now
from typer.testing import CliRunner

from dlspark.cli.main import app
from metadata.security.identity import TlsFiles, TlsIdentity


def run(*words: object, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["tls", *map(str, words)])
    assert done.exit_code == status, done.output
    return done.output


def test_an_authority_is_made_used_and_shown(tmp_path: Path) -> None:
    place = tmp_path / "cluster"
    made = json.loads(run("init", place, "--host", "a.example.org", "--output", "json"))
    assert [(one["name"], one["hosts"]) for one in made["names"]] == [
        ("node", ["a.example.org"]),
        ("client", []),
        ("proxy", ["a.example.org"]),
        ("zookeeper", ["a.example.org"]),
        ("operator", []),
    ]
    assert "not empty" in run("init", place, status=1)
    assert f"copy {place / 'writer'}" in run("issue", place, "writer", "--role", "client", "--days", "30")
    assert "6 certificates were renewed" in run("renew", place)
    assert "good" in run("show", place)
    assert "no terminal" in run("revoke", place, "writer", status=1)
    assert "is revoked" in run("revoke", place, "writer", "--yes")
    shown = json.loads(run("show", place, "--output", "json", status=3))
    assert {one["name"]: one["state"] for one in shown["names"]}["writer"] == "revoked"
    assert "state: revoked" in run("show", place / "writer", status=3)
    assert "5 certificates were renewed" in run("renew", place), "not what is revoked"
    assert "1 certificate was renewed" in run("renew", place, "writer")
    found = json.loads(run("show", place / "writer", "--output", "json"))["certificates"][0]
    assert (found["subject"], found["roles"], found["state"]) == ("CN=writer,OU=client", ["client"], "good")
    identity = TlsIdentity(TlsFiles.of_folder(place / "writer")).own_certificate
    assert identity is not None
    assert found["fingerprint"] == identity.fingerprint


def test_an_unknown_name_renews_none_of_the_others(tmp_path: Path) -> None:
    run("init", tmp_path / "c", "--host", "a")
    before = (tmp_path / "c" / "node").resolve()
    assert "issued nothing to 'nobody'" in run("renew", tmp_path / "c", "node", "nobody", status=1)
    assert (tmp_path / "c" / "node").resolve() == before


@pytest.mark.parametrize(
    ("begins", "ends", "state"),
    [(-10, 90, "good"), (-80, 20, "ends soon"), (-9, -1, "ended"), (1, 9, "has not begun")],
)
def test_a_certificate_that_is_not_good_is_shown_as_such(tmp_path: Path, begins: int, ends: int, state: str) -> None:
    pair = MintedAuthority().issue(
        "x", hosts=["h", "::1"], uris=["urn:x"], begins=now() + begins * DAY, ends=now() + ends * DAY
    )
    (tmp_path / "x.pem").write_bytes(pair.certificate_pem)
    shown = run("show", tmp_path / "x.pem", status=0 if state == "good" else 3)
    assert f"state: {state}" in shown
    assert "hosts: h, ::1" in shown
    assert "roles: none" in shown


def test_what_is_no_certificate_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("hello")
    assert "there is no certificate" in run("show", tmp_path / "x.pem", status=1)
    assert "cannot be read" in run("show", tmp_path / "missing", status=1)
