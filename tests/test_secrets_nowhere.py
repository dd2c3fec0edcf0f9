"""Secrets of a run are found nowhere: not in checkpoints, event logs, command lines, logs, errors, or what is shown.

Two places hold some by their formats, and are left out: the file of settings itself, and ZooKeeper's data, where
BookKeeper's metadata of a ledger has its password, and access control lists have `zkAclId`, which DistributedLog makes
name and password in one (docs/security/threat-model.md).
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from helpers.paths import ROOT
from helpers.security.searching import empty_places, forms, found_in
from helpers.security.secret_run import CommandLines
from helpers.waiting import wait_until

from metadata.security.sasl.credentials import write_scram_user
from metadata.security.sasl.scram import stored_keys
from metadata.security.secrets import Secret

SECRETS = {
    "zkAclId": "acl-id-of-zookeeper-5d1f",
    "digestPw": "password-of-ledgers-8e22",
    "AWS_SECRET_ACCESS_KEY": "s3-secret-key-41ac77b0e9",
    "AWS_SESSION_TOKEN": "s3-session-token-90ffde",
    "OTHER_PASSWORD": "another-password-c3c3",
    "scram": "password-of-scram-77d0",
    "wrong scram": "wrong-password-of-scram-1b1b",
    "digest": "password-of-digest-md5-e4e4",
    "wrong digest": "wrong-password-of-digest-md5-0a0a",
}
KNOWN_PLACES = ("sandbox/zookeeper/",)
PLACES = (
    "argv",
    "environ",
    "output",
    "said",
    "explained",
    "debug.log",
    "audit.log",
    "events/*/events_1_*.zstd",
    "checkpoint/offsets/0",
    "checkpoint/commits/0",
    "checkpoint/metadata",
    "pages/rest-environment",
    "pages/rest-sql",
    "pages/SQL-execution-*",
    "sandbox/node-*/*.log",
    "sandbox/node-*/bookie.conf",
    "sandbox/zookeeper/**/*",
)
"""Where the run leaves something; each is looked at whether anything is there, for else a search proves nothing."""


def test_the_search_finds_a_secret_in_each_form(tmp_path: Path) -> None:
    for number, form in enumerate(forms(SECRETS["digestPw"])):
        (tmp_path / f"file{number}").write_bytes(b"before" + form + b"behind")
    (tmp_path / "base64").write_bytes(base64.b64encode(b"ab" + SECRETS["zkAclId"].encode() + b"c"))
    (tmp_path / "bytes").write_bytes(base64.b64encode(b"ab" + bytes(range(32)) + b"c"))
    found = found_in(tmp_path, {**SECRETS, "bytes": bytes(range(32))})
    assert {one.split(" in ")[1] for one in found} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("place", PLACES)
def test_the_search_finds_a_secret_in_each_place(place: str, tmp_path: Path) -> None:
    if place.startswith(KNOWN_PLACES):
        pytest.skip("a known place is left out of the search")
    path = tmp_path / place.replace("**/", "").replace("*", "x")
    path.parent.mkdir(parents=True, exist_ok=True)
    assert empty_places(tmp_path, [place]) == [place]
    planted = json.dumps({"options": {"password": SECRETS["scram"]}}).encode()
    path.write_bytes(pa.compress(planted, "zstd", asbytes=True) if path.suffix == ".zstd" else planted)
    assert empty_places(tmp_path, [place]) == []
    assert found_in(tmp_path, SECRETS, KNOWN_PLACES) == [f"scram in {path.relative_to(tmp_path)}"]


def test_the_search_sees_through_compression_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    long = os.urandom(3 << 20) + SECRETS["digest"].encode()
    (tmp_path / "rolled.gz").write_bytes(gzip.compress(long))
    (tmp_path / "growing.zstd").write_bytes(pa.compress(long + os.urandom(1 << 20), "zstd", asbytes=True)[:-9])
    assert found_in(tmp_path, SECRETS) == ["digest in growing.zstd", "digest in rolled.gz"]
    (tmp_path / "events.lz4").write_bytes(b"whatever")
    with pytest.raises(ValueError, match="does not know"):
        found_in(tmp_path, SECRETS)


def test_command_lines_and_variables_of_java_are_seen_but_not_what_the_user_has_set(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.symlink_to(shutil.which("sleep") or "/bin/sleep")
    given = {"GIVEN": SECRETS["digestPw"]}
    with CommandLines(tmp_path / "argv", given) as lines:
        process = subprocess.Popen([java, "60", "60"], env={**given, "PASSED_ON": SECRETS["scram"]})
        try:
            wait_until(lambda: lines.have(b"\x0060\x0060\0"), "the command line is seen")
        finally:
            process.kill()
            process.wait()
    assert b"60\x0060" in (tmp_path / "argv").read_bytes()
    assert found_in(tmp_path, SECRETS) == ["scram in environ"]


def make_sasl_files(folder: Path) -> None:
    """Write users, passwords and login configurations: for their owner alone."""
    folder.mkdir()
    right, wrong = SECRETS["digest"], SECRETS["wrong digest"]
    module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
    sections = {
        "Bookie": f'user_etl="{right}"',
        "BookKeeper": f'username="etl" password="{right}"',
        "Liar": f'username="etl" password="{wrong}"',
    }
    texts = {
        "jaas.conf": "".join(f"{name} {{ {module} {what}; }};\n" for name, what in sections.items()),
        "password": SECRETS["scram"],
        "wrong": SECRETS["wrong scram"],
    }
    for name, text in texts.items():
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(text)
    write_scram_user(folder / "scram.json", "flights", stored_keys(Secret(SECRETS["scram"])))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.spark
def test_secrets_of_a_run_are_found_nowhere(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    conf = tmp_path / "settings.conf"
    conf.touch(mode=0o600)
    sasl = tmp_path / "sasl"
    make_sasl_files(sasl)
    settings = {key: SECRETS[key] for key in ("zkAclId", "digestPw")}
    settings |= {"bkc.clientAuthProviderFactoryClass": "scram", "bkc.scramUser": "flights"}
    settings |= {"bkc.scramPasswordFile": str(sasl / "password")}
    conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    environment = {**os.environ, "DLSPARK_CONF": str(conf), "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "PYTHONPATH": "tests"}
    environment |= {"SASL_FOLDER": str(sasl)}
    environment |= {name: value for name, value in SECRETS.items() if name.isupper()}
    with (run / "output").open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-m", "helpers.security.secret_run", str(run)],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=500,
            check=False,
        )
    assert done.returncode == 0, (run / "output").read_text()[-4000:]
    assert empty_places(run, PLACES) == []
    said = (run / "said").read_text(errors="replace")
    assert said.count("Traceback") >= 10, said[-3000:]
    trail = [json.loads(line) for line in (run / "audit.log").read_text().splitlines()]
    assert {"allowed", "refused"} >= {line["result"] for line in trail} >= {"refused"}, trail[-3:]
    assert found_in(run, SECRETS, KNOWN_PLACES) == []
