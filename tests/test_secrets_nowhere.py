"""Secrets of a run are found nowhere: not in checkpoints, event logs, command lines, logs, errors, or what is shown.

Two places hold some by their formats, and are left out: the file of settings itself, and ZooKeeper's data, where
BookKeeper's metadata of a ledger has its password, and access control lists have `zkAclId`, which DistributedLog makes
name and password in one (docs/security/threat-model.md).
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT
from helpers.security.searching import forms, found_in

SECRETS = {
    "zkAclId": "acl-id-of-zookeeper-5d1f",
    "digestPw": "password-of-ledgers-8e22",
    "AWS_SECRET_ACCESS_KEY": "s3-secret-key-41ac77b0e9",
    "AWS_SESSION_TOKEN": "s3-session-token-90ffde",
    "OTHER_PASSWORD": "another-password-c3c3",
}
KNOWN_PLACES = ("sandbox/zookeeper/",)


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    for number, form in enumerate(forms(SECRETS["digestPw"])):
        (tmp_path / f"file{number}").write_bytes(b"before" + form + b"behind")
    (tmp_path / "base64").write_bytes(base64.b64encode(b"ab" + SECRETS["zkAclId"].encode() + b"c"))
    found = found_in(tmp_path, SECRETS)
    assert {one.split(" in ")[1] for one in found} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.long
@pytest.mark.spark
def test_secrets_of_a_run_are_found_nowhere(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    conf = tmp_path / "settings.conf"
    conf.touch(mode=0o600)
    conf.write_text("".join(f"{key}={SECRETS[key]}\n" for key in ("zkAclId", "digestPw")))
    environment = {**os.environ, "DLSPARK_CONF": str(conf), "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "PYTHONPATH": "tests"}
    environment |= {name: value for name, value in SECRETS.items() if name.isupper()}
    with (run / "output").open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-m", "helpers.security.secret_run", str(run)],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=280,
            check=False,
        )
    assert done.returncode == 0, (run / "output").read_text()[-4000:]
    for place in ("events", "checkpoint/offsets", "sandbox/zookeeper"):
        assert any((run / place).iterdir()), f"nothing in {place}: the search would prove nothing"
    said = (run / "said").read_text(errors="replace")
    assert said.count("Traceback") >= 6, said[-3000:]
    assert len((run / "argv").read_bytes()) > 1000
    assert len((run / "debug.log").read_bytes()) > 1000
    assert found_in(run, SECRETS, KNOWN_PLACES) == []
