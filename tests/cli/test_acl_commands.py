"""Rights from the command line: rules are added, removed, listed and explained, over a sandbox of processes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dlspark.cli.main import app
from dlspark.sandbox.sandbox import Sandbox
from metadata.security.settings import SecuritySettings
from metadata.zookeeper.securing import open_session

pytestmark = pytest.mark.processes


class RightsShell:
    """Runs `dlspark acl` in this process, over one namespace."""

    def __init__(self, zookeeper: str) -> None:
        self.zookeeper = zookeeper
        self.uri = f"distributedlog://{zookeeper}/rights"

    def run(self, *arguments: str, status: int = 0, stdin: str | None = None) -> Result:
        done = CliRunner().invoke(app, arguments, input=stdin, env={"DLSPARK_URI": self.uri})
        assert done.exit_code == status, (arguments, done.output, done.stderr, done.exception)
        assert "Traceback" not in done.stderr
        return done

    def acl(self, *arguments: str, status: int = 0, stdin: str | None = None) -> Any:
        return json.loads(self.run("acl", *arguments, "--output", "json", status=status, stdin=stdin).stdout)

    def damage(self, data: bytes) -> None:
        async def put() -> None:
            store = await open_session(self.zookeeper, SecuritySettings())
            try:
                await store.put("/rights/.dlspark-rights", data, -1)
            finally:
                await store.close()

        asyncio.run(put())


@pytest.fixture(scope="module", name="shell")
def _shell(cli_sandbox: Sandbox) -> RightsShell:
    shell = RightsShell(cli_sandbox.zookeeper_address)
    shell.run("namespace", "bind", "--acl-root", ".acl")
    return shell


def test_rules_are_added_explained_listed_and_removed(shell: RightsShell) -> None:
    assert "No rules" in shell.run("acl", "list").stdout
    assert shell.acl("check", "alice", "write", "orders", status=3) == {
        "allowed": False,
        "reason": "no rule allows write to alice",
        "rule": None,
    }
    added = shell.acl("add", "allow", "role:writers", "write,create", "orders*")
    assert added["changed"] is True
    again = shell.run("acl", "add", "allow", "role:writers", "write", "orders*").stdout
    assert "it was said before" in again
    assert "rules: 1" in again
    shell.run("acl", "add", "deny", "user:mallory", "all", "orders-odd*", "--literal")
    allowed = shell.run("acl", "check", "alice", "write", "orders-7", "--role", "writers").stdout
    assert allowed == "allowed: a rule allows it: allow role:writers write,create orders*\n"
    refused = shell.acl("check", "user:mallory", "write", "orders-odd*", "--role", "writers", status=3)
    assert refused["rule"]["effect"] == "deny"
    assert shell.acl("check", "mallory", "write", "orders-odd2", "--role", "writers")["allowed"]
    listed = shell.acl("list")["rules"]
    assert [(one["effect"], one["who"], one["logs"]) for one in listed] == [
        ("deny", "user:mallory", "orders-odd\\*"),
        ("allow", "role:writers", "orders*"),
    ]
    assert shell.acl("list", "--log", "orders-odd2")["rules"] == listed[1:]
    assert shell.acl("list", "--who", "user:mallory")["rules"] == listed[:1]
    assert "deny    user:mallory" in shell.run("acl", "list").stdout
    assert "nothing was changed" in shell.run("acl", "remove", "allow", "role:writers", "read", "orders*").stdout
    assert shell.acl("remove", "allow", "role:writers", "all", "orders*")["rules"] == listed[:1]
    assert shell.acl("remove", "deny", "user:mallory", "all", "orders-odd*", "--literal")["rules"] == []


def test_what_concerns_a_whole_proxy_and_super_users_are_explained(shell: RightsShell) -> None:
    assert not shell.acl("check", "root", "administer", "--proxy", status=3)["allowed"]
    found = shell.acl("check", "root", "administer", "--proxy", "--role", "operator")
    assert found["reason"] == "role:operator is a super user"
    assert shell.acl("check", "root", "administer", "--proxy", "--super-user", "user:root")["allowed"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "permit", "*", "read", "a"), "neither allow nor deny"),
        (("add", "allow", "alice", "read", "a"), "does not say whom it means"),
        (("add", "allow", "*", "raed", "a"), "Did you mean read?"),
        (("add", "allow", "*", "read", "a*b"), "a * stands at the end alone"),
        (("add", "allow", "*", "read", "/a"), "begins with a slash"),
        (("check", "alice", "read"), "neither a log nor --proxy"),
        (("check", "alice", "read", "a", "--proxy"), "or both"),
        (("mend", "-", "--yes"), "not a list of rules"),
        (("load", "-"), "not a list of rules"),
    ],
)
def test_what_cannot_be_meant_is_refused(shell: RightsShell, arguments: tuple[str, ...], said: str) -> None:
    assert said in shell.run("acl", *arguments, status=1, stdin="{}").stderr


def test_upstreams_entries_are_part_of_the_answer(shell: RightsShell) -> None:
    shell.run("acl", "add", "allow", "user:alice", "all", "closed")
    shell.run("log", "create", "closed")

    async def deny() -> None:
        from dlspark.core.namespace import AsyncNamespace
        from metadata.distributedlog.permissions import Permissions

        namespace = await AsyncNamespace.open(shell.uri)
        try:
            await namespace.access_control.set(Permissions(deny_truncate=True), "closed")
        finally:
            await namespace.close()

    asyncio.run(deny())
    assert shell.acl("check", "alice", "write", "closed")["allowed"]
    assert "access control denies truncate" in shell.acl("check", "alice", "truncate", "closed", status=3)["reason"]
    shell.run("acl", "remove", "allow", "user:alice", "all", "closed")


def test_rules_of_a_file_are_added_all_of_them_or_none(shell: RightsShell, tmp_path: Path) -> None:
    shell.run("acl", "add", "allow", "user:alice", "read", "loaded")
    shell.run("acl", "add", "deny", "role:w", "write,delete", "loaded*")
    shell.run("acl", "add", "allow", "user:alice", "read", "odd*", "--literal")
    kept = shell.acl("list")
    for rule in kept["rules"]:
        shell.run("acl", "remove", "--", rule["effect"], rule["who"], "all", rule["logs"])
    assert shell.acl("list")["rules"] == []
    broken = {"rules": [*kept["rules"], {"effect": "allow", "who": "alice", "verbs": ["read"], "logs": "x"}]}
    shell.run("acl", "load", "-", status=1, stdin=json.dumps(broken))
    assert shell.acl("list")["rules"] == [], "none of it"
    shell.run("acl", "add", "allow", "user:bob", "read", "loaded")
    file = tmp_path / "rules.json"
    file.write_text(json.dumps(kept))
    done = shell.acl("load", str(file))
    assert done["changed"]
    assert all(rule in done["rules"] for rule in kept["rules"])
    assert len(done["rules"]) == len(kept["rules"]) + 1, "those that were there stay"
    assert not shell.acl("load", str(file))["changed"]
    for rule in done["rules"]:
        shell.run("acl", "remove", "--", rule["effect"], rule["who"], "all", rule["logs"])


def test_damaged_rules_are_mended_from_a_list(shell: RightsShell, tmp_path: Path) -> None:
    shell.run("acl", "add", "allow", "*", "read", "*")
    kept = shell.run("acl", "list", "--output", "json").stdout
    refused = shell.run("acl", "mend", "-", "--yes", status=1, stdin=kept.replace("read", "write"))
    assert "are not damaged" in refused.stderr
    shell.damage(b"{torn")
    assert "acl mend" in shell.run("acl", "list", status=1).stderr
    assert "acl mend" in shell.run("acl", "add", "allow", "*", "write", "*", status=1).stderr
    assert "cannot be read" in shell.acl("check", "alice", "read", "a", status=3)["reason"]
    assert shell.acl("check", "root", "read", "a", "--role", "operator")["allowed"]
    file = tmp_path / "rules.json"
    file.write_text(kept)
    assert shell.acl("mend", str(file), "--yes")["rules"] == json.loads(kept)["rules"]
    assert shell.acl("check", "alice", "read", "a")["allowed"]
    shell.run("acl", "remove", "allow", "*", "all", "*")
