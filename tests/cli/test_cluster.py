"""`dlspark cluster`: a tree made and completed; a cluster of processes, whole and not whole, looked at."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner, Result

from dlspark.cli.cluster import WIDTH
from dlspark.cli.main import app
from dlspark.sandbox.sandbox import Sandbox
from dlspark.version import __version__
from metadata.security.settings import SecuritySettings
from metadata.store import MetadataStore
from metadata.zookeeper.securing import open_session

pytestmark = pytest.mark.processes
T = TypeVar("T")


def run(*arguments: str, status: int = 0, env: dict[str, str] | None = None) -> Result:
    done = CliRunner().invoke(app, ["cluster", *arguments], env=env)
    assert done.exit_code == status, (arguments, done.output, done.stderr, done.exception)
    assert max(map(len, done.stdout.splitlines()), default=0) <= WIDTH or "--json" in arguments, done.stdout
    return done


def found(*arguments: str, status: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", status=status).stdout)


def in_zookeeper(cli_sandbox: Sandbox, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
    async def connected() -> T:
        store = await open_session(cli_sandbox.zookeeper_address, SecuritySettings())
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(connected())


class TestInit:
    def place(self, cli_sandbox: Sandbox, root: str) -> tuple[str, ...]:
        return ("--zookeeper", cli_sandbox.zookeeper_address, "--ledgers-path", root)

    def test_a_new_tree_is_made_once_and_then_left_alone(self, cli_sandbox: Sandbox) -> None:
        place = self.place(cli_sandbox, "/new/ledgers")
        done = found("init", *place)
        assert done["made"] == [
            f"/new/ledgers{part}" for part in ("", "/available", "/available/readonly", "/INSTANCEID", "/LAYOUT")
        ]
        assert (done["layout"], done["nodes"]) == ("HierarchicalLedgerManagerFactory", 0)
        again = found("init", *place)
        assert again == {**done, "made": []}
        assert "is initialised already; nothing was changed" in run("init", *place).stdout

    def test_a_tree_that_lacks_a_part_is_completed(self, cli_sandbox: Sandbox) -> None:
        async def leave_out(store: MetadataStore) -> None:
            await store.create("/pulsar/ledgers/available/readonly", make_parents=True)
            await store.create("/pulsar/ledgers/INSTANCEID", b"theirs")

        in_zookeeper(cli_sandbox, leave_out)
        text = run("init", *self.place(cli_sandbox, "/pulsar/ledgers")).stdout
        assert "/pulsar/ledgers was there, and is complete now" in text
        assert "/pulsar/ledgers/LAYOUT" in text
        assert "theirs" in text

    def test_the_layout_of_ledgers_that_are_there_is_asked_for_by_name(self, cli_sandbox: Sandbox) -> None:
        async def flat(store: MetadataStore) -> None:
            await store.create("/flat/available/readonly", make_parents=True)
            await store.create("/flat/L0000000003")

        in_zookeeper(cli_sandbox, flat)
        place = self.place(cli_sandbox, "/flat")
        assert "dlspark cluster init --layout flat" in run("init", *place, status=1).stderr
        assert found("init", *place, "--layout", "flat")["layout"] == "FlatLedgerManagerFactory"
        assert "laid out by Flat" in run("init", *place, "--layout", "hierarchical", status=1).stderr
        assert "There are: hierarchical" in run("init", *place, "--layout", "round", status=1).stderr

    def test_a_cluster_is_named_once(self, cli_sandbox: Sandbox, tmp_path: Path) -> None:
        assert "no cluster was named" in run("init", status=1).stderr
        conf = tmp_path / "bookie.conf"
        conf.write_text(f"zkServers={cli_sandbox.zookeeper_address}\nzkLedgersRootPath=/by-file\n")
        assert found("init", "--conf", str(conf))["root"] == "/by-file"
        assert "named twice" in run("init", "--conf", str(conf), "--zookeeper", "h:1", status=1).stderr


class TestStatus:
    def place(self, cli_sandbox: Sandbox) -> tuple[str, ...]:
        return ("--zookeeper", cli_sandbox.zookeeper_address)

    def test_a_whole_cluster_is_healthy(self, cli_sandbox: Sandbox) -> None:
        status = found("status", *self.place(cli_sandbox))
        assert (status["healthy"], status["faults"]) == (True, [])
        assert status["layout"] == "HierarchicalLedgerManagerFactory"
        assert len(status["nodes"]) == 3
        for node in status["nodes"]:
            assert (node["state"], node["answers"], node["version"]) == ("writable", True, __version__)
            assert 0 < node["free_bytes"] < node["total_bytes"]
        text = run("status", *self.place(cli_sandbox)).stdout
        assert "3 writable, 0 read-only, 0 not registered" in text
        assert "GiB" in text
        by_namespace = found("status", "--uri", cli_sandbox.uri)
        assert (by_namespace["root"], len(by_namespace["nodes"])) == ("/ledgers", 3)

    def test_a_tree_that_is_none_is_an_error_and_one_without_layout_is_left_so(self, cli_sandbox: Sandbox) -> None:
        where = (*self.place(cli_sandbox), "--ledgers-path")
        assert "dlspark cluster init" in run("status", *where, "/nowhere", status=1).stderr

        async def leave_out(store: MetadataStore) -> None:
            await store.create("/bare/ledgers/available/readonly", make_parents=True)

        in_zookeeper(cli_sandbox, leave_out)
        status = found("status", *where, "/bare/ledgers", status=3)
        assert status["layout"] is None
        assert "no storage node takes writes" in status["faults"]
        assert in_zookeeper(cli_sandbox, lambda store: store.exists("/bare/ledgers/LAYOUT")) is None
