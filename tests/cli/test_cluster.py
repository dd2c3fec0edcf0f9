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
from dlspark.sandbox import Sandbox
from dlspark.version import __version__
from metadata.bookies import BookieAddress, BookieRegistry, Cookie
from metadata.replication import ReplicationStore
from metadata.store import MetadataStore
from metadata.zookeeper import ZooKeeperStore

pytestmark = pytest.mark.processes
T = TypeVar("T")


def run(*arguments: str, status: int = 0, env: dict[str, str] | None = None) -> Result:
    done = CliRunner().invoke(app, ["cluster", *arguments], env=env)
    assert done.exit_code == status, (arguments, done.output, done.stderr, done.exception)
    assert max(map(len, done.stdout.splitlines()), default=0) <= WIDTH or "--json" in arguments, done.stdout
    return done


def found(*arguments: str, status: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", status=status).stdout)


def in_zookeeper(sandbox: Sandbox, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
    async def connected() -> T:
        store = await ZooKeeperStore.connect(sandbox.zookeeper_address)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(connected())


class TestInit:
    def place(self, sandbox: Sandbox, root: str) -> tuple[str, ...]:
        return ("--zookeeper", sandbox.zookeeper_address, "--ledgers-path", root)

    def test_a_new_tree_is_made_once_and_then_left_alone(self, sandbox: Sandbox) -> None:
        place = self.place(sandbox, "/new/ledgers")
        done = found("init", *place)
        assert done["made"] == [
            f"/new/ledgers{part}" for part in ("", "/available", "/available/readonly", "/INSTANCEID", "/LAYOUT")
        ]
        assert (done["layout"], done["nodes"]) == ("HierarchicalLedgerManagerFactory", 0)
        again = found("init", *place)
        assert again == {**done, "made": []}
        assert "is initialised already; nothing was changed" in run("init", *place).stdout

    def test_a_tree_that_lacks_a_part_is_completed(self, sandbox: Sandbox) -> None:
        async def leave_out(store: MetadataStore) -> None:
            await store.create("/pulsar/ledgers/available/readonly", make_parents=True)
            await store.create("/pulsar/ledgers/INSTANCEID", b"theirs")

        in_zookeeper(sandbox, leave_out)
        text = run("init", *self.place(sandbox, "/pulsar/ledgers")).stdout
        assert "/pulsar/ledgers was there, and is complete now" in text
        assert "/pulsar/ledgers/LAYOUT" in text
        assert "theirs" in text

    def test_the_layout_of_ledgers_that_are_there_is_asked_for_by_name(self, sandbox: Sandbox) -> None:
        async def flat(store: MetadataStore) -> None:
            await store.create("/flat/available/readonly", make_parents=True)
            await store.create("/flat/L0000000003")

        in_zookeeper(sandbox, flat)
        place = self.place(sandbox, "/flat")
        assert "dlspark cluster init --layout flat" in run("init", *place, status=1).stderr
        assert found("init", *place, "--layout", "flat")["layout"] == "FlatLedgerManagerFactory"
        assert "laid out by Flat" in run("init", *place, "--layout", "hierarchical", status=1).stderr
        assert "There are: hierarchical" in run("init", *place, "--layout", "round", status=1).stderr

    def test_a_cluster_is_named_once(self, sandbox: Sandbox, tmp_path: Path) -> None:
        assert "no cluster was named" in run("init", status=1).stderr
        conf = tmp_path / "bookie.conf"
        conf.write_text(f"zkServers={sandbox.zookeeper_address}\nzkLedgersRootPath=/by-file\n")
        assert found("init", "--conf", str(conf))["root"] == "/by-file"
        assert "named twice" in run("init", "--conf", str(conf), "--zookeeper", "h:1", status=1).stderr


class TestStatus:
    def place(self, sandbox: Sandbox) -> tuple[str, ...]:
        return ("--zookeeper", sandbox.zookeeper_address)

    def test_a_whole_cluster_is_healthy(self, sandbox: Sandbox) -> None:
        status = found("status", *self.place(sandbox))
        assert (status["healthy"], status["faults"]) == (True, [])
        assert status["layout"] == "HierarchicalLedgerManagerFactory"
        assert len(status["nodes"]) == 3
        for node in status["nodes"]:
            assert (node["state"], node["answers"], node["version"]) == ("writable", True, __version__)
            assert 0 < node["free_bytes"] < node["total_bytes"]
        text = run("status", *self.place(sandbox)).stdout
        assert "3 writable, 0 read-only, 0 not registered" in text
        assert "GiB" in text
        by_namespace = found("status", "--uri", sandbox.uri)
        assert (by_namespace["root"], len(by_namespace["nodes"])) == ("/ledgers", 3)

    def test_what_needs_a_person_is_told_with_the_command_that_helps(self, sandbox: Sandbox) -> None:
        long_name = "storage-node-0123456789.rack-7.row-3.data-center-frankfurt.example.org:3181"

        async def harm(store: MetadataStore) -> None:
            registry = BookieRegistry(store)
            await registry.write_cookie(Cookie(long_name, ("/j",), ("/l",), await registry.instance_id()))
            marks = ReplicationStore(store)
            await marks.prepare()
            for ledger_id in range(5000, 5012):
                await marks.mark(ledger_id, [long_name], 1)
            await marks.disable()

        in_zookeeper(sandbox, harm)
        try:
            status = found("status", *self.place(sandbox), "--limit", "2", status=3)
            assert status["autorecovery"]["marked"] == 12
            assert len(status["autorecovery"]["ledgers"]) == 2
            assert [fault.split(" ")[0] for fault in status["faults"]] == ["storage", "12"]
            text = " ".join(run("status", *self.place(sandbox), status=3).stdout.split())
            assert f"storage node {long_name} is not registered: start it" in text
            assert f"dlspark bookie decommission --bookie-id {long_name}" in text
            assert "12 ledgers lack copies, and auto-recovery is switched off: dlspark autorecovery enable" in text
            assert "and 2 more (--limit)" in text
        finally:
            in_zookeeper(sandbox, lambda store: self.mend(store, long_name))
        assert found("status", *self.place(sandbox))["healthy"]

    async def mend(self, store: MetadataStore, name: str) -> None:
        registry, marks = BookieRegistry(store), ReplicationStore(store)
        cookie = await registry.read_cookie(name)
        assert cookie is not None
        await registry.delete_cookie(name, cookie.version)
        await marks.enable()
        for ledger_id in range(5000, 5012):
            mark = await marks.read(ledger_id)
            assert mark is not None
            await marks.remove_mark(ledger_id, mark.version)

    def test_nodes_that_are_read_only_or_do_not_answer_are_told(self, sandbox: Sandbox) -> None:
        async def strangers(store: MetadataStore) -> Any:
            registry = BookieRegistry(store)
            await registry.register(BookieAddress("mute:1", "127.0.0.1", 1))
            await registry.register(BookieAddress("full:1", "127.0.0.1", 1), readonly=True)
            return await asyncio.to_thread(found, "status", *self.place(sandbox), status=3)

        status = in_zookeeper(sandbox, strangers)
        told = "\n".join(status["faults"])
        assert "storage node mute:1 is registered, and does not answer: BookieUnreachableError" in told
        assert "storage node full:1 is read-only" in told
        (mute,) = [node for node in status["nodes"] if node["node"] == "mute:1"]
        assert (mute["answers"], mute["version"], mute["free_bytes"]) == (False, None, None)

    def test_a_tree_that_is_none_is_an_error_and_one_without_layout_is_left_so(self, sandbox: Sandbox) -> None:
        where = (*self.place(sandbox), "--ledgers-path")
        assert "dlspark cluster init" in run("status", *where, "/nowhere", status=1).stderr

        async def leave_out(store: MetadataStore) -> None:
            await store.create("/bare/ledgers/available/readonly", make_parents=True)

        in_zookeeper(sandbox, leave_out)
        status = found("status", *where, "/bare/ledgers", status=3)
        assert status["layout"] is None
        assert "no storage node takes writes" in status["faults"]
        assert in_zookeeper(sandbox, lambda store: store.exists("/bare/ledgers/LAYOUT")) is None
