"""Administration from the command line, as `dlog tool` and `dlog admin` are used, against a sandbox of processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from helpers.paths import DOCS
from typer.testing import CliRunner, Result

from dlspark.cli.common import settings_of
from dlspark.cli.logs import suffixes
from dlspark.cli.main import app
from dlspark.cli.reference import UPSTREAM, page
from dlspark.cli.regions import _spread
from dlspark.core.administration.cluster import NodeState
from dlspark.core.administration.regions import ClusterRegions, PlacedNode
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.sync.log import Log
from dlspark.core.sync.namespace import Namespace
from dlspark.errors import SettingsError
from dlspark.sandbox.beginning import LEDGERS_PATH
from dlspark.sandbox.sandbox import Sandbox
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledger_metadata import Ensemble
from metadata.bookkeeper.topology import TopologyStore
from metadata.distributedlog.sink_marks import LogMark
from metadata.distributedlog.sinks import SinkStore, StagedLedger, log_tag
from metadata.foundation.errors import CallerError
from metadata.security.settings import SecuritySettings
from metadata.store import ANY_VERSION
from metadata.zookeeper.securing import open_session

pytestmark = pytest.mark.processes
PAGE = DOCS / "cli.md"
HASTY = ("--set", "lockTimeoutSeconds=0")


def test_the_price_of_surviving_is_said_and_what_is_impossible_is_refused():
    shell = Shell("distributedlog://nowhere:1/ns")
    goals = shell.json("regions", "goals")["goals"]
    assert [(one["set"], one["ensemble_size"], one["ack_quorum"]) for one in goals] == [
        ("survive=node", 3, 2),
        ("survive=rack", 3, 2),
        ("survive=region", 6, 4),
        ("survive=region surviveBy=acknowledgements", 3, 2),
    ]
    assert all("a write waits for" in one["price"] for one in goals)
    assert "2 (a, b)" in shell.run("regions", "goals", "--regions", "a;b", status=1).stderr


class Shell:
    """Runs commands in this process, over one namespace."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def run(self, *arguments: str, status: int = 0, stdin: str | None = None) -> Result:
        done = CliRunner().invoke(app, arguments, input=stdin, env={"DLSPARK_URI": self.uri})
        assert done.exit_code == status, (arguments, done.output, done.stderr, done.exception)
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: str, status: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--output", "json", status=status).stdout)

    def lines(self, *arguments: str, status: int = 0) -> list[Any]:
        output = self.run(*arguments, "--output", "json", status=status).stdout
        return [json.loads(line) for line in output.splitlines()]

    def write(self, name: str, *segments: list[str]) -> None:
        with Namespace.open(self.uri) as namespace, namespace.open_log(name) as log:
            written(log, *segments)

    def ledgers(self, name: str) -> list[int]:
        return [one["ledger"] for one in self.json("log", "show", name)["segments"]]


def written(log: Log, *segments: list[str]) -> None:
    txid = 0
    for records in segments:
        with log.open_writer() as writer:
            writer.write_bulk([(txid + number, text.encode()) for number, text in enumerate(records)])
        txid += len(records)


@pytest.fixture(scope="module")
def shell(cli_sandbox: Sandbox) -> Shell:
    """A namespace of its own beside the sandbox's."""
    shell = Shell(f"distributedlog://{cli_sandbox.zookeeper_address}/administered")
    shell.run("namespace", "bind", "--acl-root", ".acl")
    return shell


def test_ledgers_are_judged_by_the_placement_policy(shell: Shell) -> None:
    shell.write("judged", ["a"], ["b"])
    # All nodes of the sandbox are on one machine, whose rack is not known: each write set is in one rack.
    found = shell.json("regions", "check", status=3)
    assert found["policy"] == "rackaware"
    assert found["fail"] == found["closed"] >= 2
    assert found["strict"] == found["soft"] == 0
    assert len(found["failing"]) == min(found["fail"], 10)
    assert "from entry 0 on" in shell.run("regions", "check", status=3).stdout
    alone = shell.json("regions", "check", "--set", "bkc.minNumRacksPerWriteQuorum=1")
    assert (alone["fail"], alone["soft"]) == (0, found["closed"])
    refused = shell.run("regions", "check", "--set", "bkc.ensemblePlacementPolicy=uniform", status=1)
    assert "no rule that a ledger could break" in refused.stderr


def test_regions_are_listed_closed_and_opened(shell: Shell, cli_sandbox: Sandbox) -> None:
    async def announce(*locations: str | None) -> None:
        store = await open_session(cli_sandbox.zookeeper_address, SecuritySettings())
        try:
            topology = TopologyStore(store, LEDGERS_PATH)
            for node, location in zip(await BookieRegistry(store, LEDGERS_PATH).cookies(), locations, strict=True):
                await topology.announce(node, location)
        finally:
            await store.close()

    assert "3 storage nodes have no region and get no copies" in shell.run("regions", "list").stdout
    over_regions = [
        *("--set", "bkEnsemblePlacementDnsResolverClass=announced", "--set", "bkc.ensemblePlacementPolicy=regionaware"),
        *("--set", "bkc.enforceMinNumFaultDomainsForWrite=true"),
    ]
    shell.write("unplaced", ["a"])
    asyncio.run(announce("/eu/r1", "/us/r1", None))
    try:
        found_none = "These settings find no location of 2 storage nodes, for they go by the names of hosts: they are"
        assert found_none in shell.run("regions", "list").stdout
        checked = shell.run("regions", "check", status=3).stdout
        assert "Judged without regard to regions" in checked
        assert "storage nodes are in eu, us" in checked
        shell.write("uneven", ["a"])
        checked = shell.run("regions", "check", *over_regions[:-2]).stdout
        assert "not strictly: from entry 0 on eu (127.0.0.1:" in checked
        assert "no known place (127.0.0.1:" in checked
        listed = shell.json("regions", "list", *over_regions)
        assert [(one["region"], one["new_copies"], one["writable"]) for one in listed["regions"]] == [
            ("eu", True, 1),
            ("us", True, 1),
        ]
        assert [one["region"] for one in listed["nodes"]] == ["eu", "us", None]
        assert listed["notes"] == [NO_REGION]
        goal = ("--set", "survive=rack", *over_regions[:2])
        lacking = "survive=rack needs storage nodes in 3 racks, and there are 1 in /eu/r1, 1 in /us/r1"
        assert lacking in shell.run("regions", "list", *goal).stdout
        assert "there are eu, us" in shell.run("regions", "disallow", "mars", status=1).stderr
        done = shell.json("regions", "disallow", "eu", *over_regions, status=3)
        assert done == {"region": "eu", "disallowed": True, "changed": True, "left": ["us"]}
        said = shell.run("regions", "disallow", "eu", *over_regions, status=3).stdout
        assert "disallowed already; nothing was changed" in said
        assert "ask for copies in 2 regions, and 1 region is left" in said
        assert "no other region than us" in shell.run("regions", "disallow", "us", status=1).stderr
        text = shell.run("regions", "list").stdout
        assert "no: disallowed" in text
        assert "without regard to regions (ensemblePlacementPolicy=rackaware)" in text
        assert shell.json("regions", "allow", "eu")["changed"] is True
        assert "was not disallowed; nothing was changed" in shell.run("regions", "allow", "eu").stdout
    finally:
        asyncio.run(announce(None, None, None))


def test_where_a_fragment_lies_and_where_it_does_not_is_said_by_what_its_policy_goes_by() -> None:
    def node(name: str, location: str | None) -> PlacedNode:
        return PlacedNode(name, NodeState.WRITABLE, location, None)

    nodes = (node("a", "/r1/x"), node("b", "/r1/y"), node("c", "/r3/x"), node("d", "/r2/x"), node("e", None))
    found = ClusterRegions(nodes, frozenset(), frozenset(), None)
    for bookies, policy, text in (
        (("a", "c", "b"), "regionaware", "r1 (a, b), r3 (c), none in r2"),
        (("a", "e", "d"), "regionaware", "r1 (a), r2 (d), no known place (e), none in r3"),
        (("a", "b", "gone"), "rackaware", "/r1/x (a), /r1/y (b), no known place (gone)"),
    ):
        assert _spread(Ensemble(7, bookies), found, policy) == f"from entry 7 on {text}"


NO_REGION = (
    "1 storage node has no region and gets no copies by a placement over regions: set networkLocation=/region/rack in "
    "the node's file and restart it, or have a script or the hosts' names say it"
)


class TestOptions:
    def test_settings_come_from_a_file_and_over_it_from_single_values(self, tmp_path: Path) -> None:
        conf = tmp_path / "conf"
        conf.write_text("lockTimeoutSeconds=7\nlogSegmentRetentionHours=3\n")
        settings = settings_of(conf, ["lockTimeoutSeconds=9"])
        assert (settings.lock_timeout_s, settings.retention_hours) == (9, 3)
        with pytest.raises(CallerError, match="sets nothing"):
            settings_of(None, ["lockTimeoutSeconds"])
        with pytest.raises(SettingsError):
            settings_of(None, ["colour=blue"])

    @pytest.mark.parametrize(
        ("expression", "names"),
        [("3-5", ["3", "4", "5"]), ("08-11", ["08", "09", "10", "11"]), ("a,b", ["a", "b"]), ("name", ["name"])],
    )
    def test_an_expression_stands_for_suffixes(self, expression: str, names: list[str]) -> None:
        assert suffixes(expression) == names

    @pytest.mark.parametrize("expression", ["5-3", "0-999999999", "a,,b", ""])
    def test_an_expression_for_nothing_or_too_much_is_refused(self, expression: str) -> None:
        with pytest.raises(CallerError):
            suffixes(expression)

    def test_the_page_is_what_the_commands_say(self) -> None:
        assert PAGE.read_text() == page(), "run: python -m dlspark.cli.reference > docs/cli.md"

    @pytest.mark.parametrize("ours", sorted({row[1] for row in UPSTREAM if row[1]}))
    def test_every_command_that_stands_for_one_of_upstreams_exists(self, ours: str) -> None:
        command = typer.main.get_command(app)
        for name in ours.split():
            command = command.commands[name]  # type: ignore[attr-defined]
        assert command.help

    def test_wrong_usage_ends_with_status_2(self, shell: Shell) -> None:
        shell.run("ledger", "find", "not-a-number", status=2)
        shell.run("log", "show", "a", "--output", "xml", status=2)
        assert "no namespace" in CliRunner().invoke(app, ["log", "list"], env={"DLSPARK_URI": ""}).stderr


class TestLogs:
    def test_logs_are_created_by_expression_listed_with_metadata_and_deleted_by_filter(self, shell: Shell) -> None:
        made = shell.json("log", "create", "many/log-", "-e", "08-10", "--metadata", "mine")
        assert made["created"] == ["many/log-08", "many/log-09", "many/log-10"]
        assert shell.json("log", "list", "many")["logs"] == ["log-08", "log-09", "log-10"]
        listed = shell.json("log", "list", "many", "--metadata", "--hex")["logs"]
        assert listed[0] == {"log": "many/log-08", "metadata": b"mine".hex()}
        assert shell.json("log", "delete", "--filter", "many/log-0", "--dry-run")["dry_run"]
        refused = shell.run("log", "delete", "--filter", "many/log-0", status=1)
        assert "--yes" in refused.stderr
        assert "no log was named" in shell.run("log", "delete", "--yes", status=1).stderr
        assert len(shell.json("log", "list", "many")["logs"]) == 3
        shell.run("log", "delete", "--filter", "many/log-0", "--yes")
        assert shell.json("log", "list", "many")["logs"] == ["log-10"]

    def test_of_several_logs_those_that_fail_are_told_and_the_others_are_done(self, shell: Shell) -> None:
        shell.run("log", "create", "there")
        done = shell.run("log", "delete", "there", "absent", "--yes", "--output", "json", status=1)
        assert json.loads(done.stdout)["deleted"] == ["there"]
        assert json.loads(done.stdout)["failed"] == ["absent"]
        assert "dlspark: no such log in this namespace [log absent]" in done.stderr

    def test_a_log_is_shown_with_its_segments_and_where_they_are(self, shell: Shell) -> None:
        shell.write("shown", ["a", "b"], ["c"])
        found = shell.json("log", "show", "shown", "--placement", "--first", "2")
        assert (found["records"], found["owner"], found["sealed"]) == (3, None, False)
        (segment,) = found["segments"]
        assert (segment["segment"], segment["state"], segment["records"]) == (2, "completed", 1)
        entries = shell.json("ledger", "lac", str(segment["ledger"]))["last_add_confirmed"] + 1
        assert list(segment["placement"].values()) == [entries] * 3
        text = shell.run("log", "show", "shown").stdout
        assert "completed" in text
        assert f"next position to read: {found['end']}" in text

    def test_records_between_positions_are_counted(self, shell: Shell) -> None:
        shell.write("counted", ["a", "b"], ["c", "d"])
        assert shell.json("log", "count", "counted")["records"] == 4
        assert shell.run("log", "count", "counted", "2:0:0").stdout == "2\n"
        assert "not a DLSN" in shell.run("log", "count", "counted", "2", status=1).stderr

    def test_a_log_is_renamed(self, shell: Shell) -> None:
        shell.write("old-name", ["a"])
        shell.run("log", "rename", "old-name", "new-name")
        assert shell.json("log", "show", "new-name")["records"] == 1
        shell.run("log", "show", "old-name", status=1)

    def test_a_log_is_truncated_purged_and_sealed(self, shell: Shell) -> None:
        shell.write("life", ["a", "b"], ["c"], ["d"])
        for further in (["--dry-run"], ["--yes"]):
            refused = shell.run("log", "truncate", "life", "9:0:0", *further, status=1).stderr
            assert "9:0:0 is behind the end of the log, 4:0:0; nothing was hidden" in refused
        would = shell.json("log", "truncate", "life", "2:0:0", "--dry-run")
        assert [one["segment"] for one in would["changes"]] == [1]
        assert shell.json("log", "show", "life")["start"] == "1:0:0"
        assert shell.json("log", "truncate", "life", "2:0:0", "--yes")["start"] == "2:0:0"
        assert shell.json("log", "purge", "life", "--dry-run")["purged"] == [{"log": "life", "segments": 2}]
        # Transaction ids are times: 0.001 s after 1970 is the id 1, which is kept, and 0.0010001 s lies behind it.
        for before, segments in (("1970-01-01T00:00:00.001Z", 0), ("1970-01-01 00:00:00.0010001z", 1)):
            purged = shell.json("log", "purge", "life", "--before", before, "--dry-run")["purged"]
            assert purged == [{"log": "life", "segments": segments}]
        assert shell.json("log", "purge", "life", "--before", "2", "--yes")["purged"][0]["segments"] == 1
        assert shell.json("log", "purge", "--filter", "life$", "--yes")["purged"][0]["segments"] == 1
        shell.run("log", "seal", "life", "--yes")
        assert shell.json("log", "show", "life")["sealed"]
        shell.run("log", "seal", "never-made", "--yes", status=1)
        assert not shell.json("log", "list", "never-made")["logs"]

    def test_a_log_that_is_written_is_left_alone(self, shell: Shell) -> None:
        shell.write("busy", ["a"], ["b"])
        with (
            Namespace.open(shell.uri) as namespace,
            namespace.open_log("busy") as log,
            log.open_writer("its-writer") as writer,
        ):
            writer.write(100, b"c").result()
            ledger = shell.ledgers("busy")[-1]
            for command in (
                ("log", "truncate", "busy", "2:0:0"),
                ("log", "purge", "busy"),
                ("log", "seal", "busy"),
                ("log", "delete", "busy"),
                ("ledger", "recover", str(ledger), "--force"),
            ):
                assert "its-writer" in shell.run(*command, "--yes", *HASTY, status=1).stderr
            assert shell.json("log", "show", "busy")["owner"] == "its-writer"
            writer.write(101, b"d").result()
        assert shell.json("log", "show", "busy")["records"] == 4


class TestContents:
    def test_records_are_read_in_hexadecimal_or_without_payload(self, shell: Shell) -> None:
        shell.write("read", ["a", "b", "c"])
        values = [one["value_hex"] for one in shell.lines("read", "read", "--hex", "--limit", "2")]
        assert values == ["61", "62"]
        assert not {"value", "value_hex", "value_base64"} & set(shell.lines("read", "read", "--skip-payload")[0])
        assert " 1 byte\n" in shell.run("read", "read", "--skip-payload").stdout
        shell.run("read", "read", "--hex", "--output", "raw", status=1)

    def test_the_tail_is_the_last_records(self, shell: Shell) -> None:
        shell.write("tail", ["a", "b"], ["c", "d"])
        assert [one["value"] for one in shell.lines("log", "tail", "tail", "-n", "3", "--no-follow")] == ["b", "c", "d"]
        assert shell.lines("log", "tail", "tail", "-n", "0", "--no-follow") == []

    def test_bytes_of_the_application_are_kept(self, shell: Shell, tmp_path: Path) -> None:
        shell.run("log", "create", "described")
        assert shell.json("log", "metadata", "set", "described", "words")["version"] == 1
        assert shell.run("log", "metadata", "get", "described").stdout == "words\n"
        file = tmp_path / "bytes"
        file.write_bytes(b"\xff\x00")
        shell.run("log", "metadata", "set", "described", "--file", str(file), "--version", "1")
        assert shell.json("log", "metadata", "get", "described", "--hex") == {
            "log": "described",
            "metadata": "ff00",
            "version": 2,
        }
        shell.run("log", "metadata", "set", "described", "late", "--version", "1", status=1)
        shell.run("log", "metadata", "set", "described", status=1)

    def test_subscribers_are_listed_and_deleted(self, shell: Shell) -> None:
        shell.write("followed", ["a", "b"])
        with Namespace.open(shell.uri) as namespace, namespace.open_log("followed") as log:
            log.commit_position("them", log.last_dlsn())
        (one,) = shell.json("log", "subscribers", "list", "followed")["subscribers"]
        assert one["subscriber"] == "them"
        assert shell.json("log", "subscribers", "delete", "them", "--yes")["deleted"] == ["followed"]
        assert shell.json("log", "subscribers", "list", "followed")["subscribers"] == []

    def test_dlsns_go_into_their_binary_forms_and_back(self, shell: Shell) -> None:
        for form in ([], ["--hex"], ["--hex", "--version", "0"]):
            text = shell.run("log", "dlsn", "encode", "3:1200:7", *form).stdout.strip()
            decoded = shell.json("log", "dlsn", "decode", text, *form[:1])
            assert decoded == {"dlsn": "3:1200:7", "lssn": 3, "entry_id": 1200, "slot_id": 7}
        shell.run("log", "dlsn", "decode", "nonsense", status=1)

    def test_logs_that_come_and_go_are_told(self, shell: Shell) -> None:
        environment = {**os.environ, "DLSPARK_URI": shell.uri}
        command = [sys.executable, "-m", "dlspark.cli", "log", "watch", "watched", "--existing"]
        shell.run("log", "create", "watched/a")
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as watching:
            assert watching.stdout is not None
            assert watching.stdout.readline() == b"+ a\n"
            shell.run("log", "create", "watched/b")
            assert watching.stdout.readline() == b"+ b\n"
            shell.run("log", "delete", "watched/a", "--yes")
            assert watching.stdout.readline() == b"- a\n"
            watching.send_signal(signal.SIGINT)
            assert watching.wait(60) == 130


class TestLedgers:
    def test_a_ledger_is_found_described_read_and_recovered(self, shell: Shell) -> None:
        shell.write("deep/log", ["a", "b"])
        (ledger,) = map(str, shell.ledgers("deep/log"))
        (found,) = shell.json("ledger", "find", ledger)["found"]
        assert (found["log"], found["use"], found["segment"]) == ("deep/log", "segment", 1)
        assert shell.json("ledger", "find", "999999", status=3)["found"] == []
        lac = shell.json("ledger", "lac", ledger)
        assert lac["state"] == "CLOSED"
        entries = shell.lines("ledger", "read-entries", ledger, "--hex")
        assert [one["entry"] for one in entries] == list(range(lac["last_add_confirmed"] + 1))
        values = [r["value"] for one in entries for r in one["records"] if r["kind"] == "record"]
        assert values == ["61", "62"]
        copies = shell.lines("ledger", "read-entries", ledger, "--last", "0", "--copies", "--skip-payload")
        assert len({one["node"] for one in copies}) == 3
        assert shell.lines("ledger", "read-entries", ledger, "--corrupt") == []
        assert shell.json("ledger", "recover", ledger, "--yes")["last_entry"] == lac["last_add_confirmed"]
        assert "no such ledger" in shell.run("ledger", "lac", "999999", status=1).stderr

    def test_an_audit_finds_what_nothing_names_and_only_that_is_deleted(self, shell: Shell, tmp_path: Path) -> None:
        shell.write("audited", ["a"])
        with Namespace.open(shell.uri) as namespace:
            orphan = namespace._runtime.run(_orphan(namespace._inner))
        used = shell.ledgers("audited")[0]
        young = shell.json("ledger", "audit", status=0)
        assert {"ledger": orphan, "verdict": "young"}.items() <= young["unnamed"][0].items()
        file = tmp_path / "orphans"
        found = shell.json("ledger", "audit", "--min-age", "0", "--orphans", str(file), status=3)
        assert (found["orphans"], file.read_text()) == ([orphan], f"{orphan}\n")
        command = ("ledger", "delete", str(used), "--file", str(file), "--min-age", "0", "--force")
        shell.run(*command, status=1)
        done = shell.json(*command, "--yes", status=3)["ledgers"]
        assert {one["ledger"]: one["deleted"] for one in done} == {used: False, orphan: True}
        assert shell.json("ledger", "audit", "--min-age", "0")["unnamed"] == []

    def test_space_is_counted_by_group_and_for_the_cluster(self, shell: Shell) -> None:
        shell.write("big/a", ["x" * 1000])
        shell.write("big/b", ["x" * 1000])
        groups = {one["group"]: one for one in shell.json("ledger", "space", "--group-by", "^[^/]*")["groups"]}
        assert groups["big"]["ledgers"] == 2
        assert 2000 < groups["big"]["bytes"] < 3000
        whole = shell.json("ledger", "space", "--cluster")["total"]
        assert whole["bytes"] > groups["big"]["bytes"]
        assert "big/a" in shell.run("ledger", "space").stdout


async def _orphan(namespace: AsyncNamespace) -> int:
    """A closed ledger that nothing names."""
    writer = await namespace.ledgers.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await writer.close()
    return writer.ledger_id


class TestNamespaces:
    def test_a_namespace_is_bound_shown_and_unbound(self, cli_sandbox: Sandbox) -> None:
        shell = Shell(f"distributedlog://{cli_sandbox.zookeeper_address}/another")
        shell.run("namespace", "show", status=1)
        shell.run("namespace", "bind", "--first-lssn", "5", "--encode-region-id")
        binding = shell.json("namespace", "show")["binding"]
        assert (binding["first_lssn"], binding["encode_region_id"], binding["federated"]) == (5, True, False)
        assert "--yes" in shell.run("namespace", "bind", status=1).stderr
        shell.run("namespace", "bind", "--federated", "--yes")
        assert shell.json("namespace", "show")["binding"]["federated"]
        shell.run("log", "create", "kept")
        assert "force" in shell.run("namespace", "unbind", "--yes", status=1).stderr
        shell.run("namespace", "unbind", "--force", "--yes")
        shell.run("log", "list", status=1)

    def test_access_is_denied_by_default_or_by_log(self, shell: Shell) -> None:
        shell.write("guarded", ["a"], ["b"])
        shell.run("namespace", "acl", "set", "guarded", "--deny-truncate")
        assert "denies truncate" in shell.run("log", "truncate", "guarded", "2:0:0", "--yes", status=1).stderr
        assert shell.json("namespace", "acl", "show", "guarded")["denied"] == ["truncate"]
        shell.run("namespace", "acl", "set-default", "--deny-delete")
        shell.run("log", "delete", "guarded", "--dry-run")
        found = shell.json("namespace", "acl", "show")
        assert (found["denied"], found["logs"]) == (["delete"], ["guarded"])
        assert shell.json("namespace", "acl", "delete", "guarded")["removed"]
        assert "denies delete" in shell.run("log", "delete", "guarded", "--yes", status=1).stderr
        shell.run("namespace", "acl", "set-default")
        shell.run("log", "delete", "guarded", "--yes")

    def test_pools_of_ledgers_are_listed_and_deleted(self, shell: Shell) -> None:
        pool = {"enableLedgerAllocatorPool": True, "ledgerAllocatorPoolName": "here", "ledgerAllocatorPoolCoreSize": 2}
        with Namespace.open(shell.uri, pool) as namespace, namespace.open_log("pooled") as log:
            written(log, ["a"])
        (found,) = shell.json("namespace", "allocator-pool", "list")["pools"]
        assert (found["pool"], found["allocators"]) == ("here", 2)
        shell.run("namespace", "allocator-pool", "delete", "here", "--yes")
        assert shell.json("namespace", "allocator-pool", "list")["pools"] == []

    def test_faults_are_found_and_repaired(self, shell: Shell, cli_sandbox: Sandbox) -> None:
        shell.write("faulty", ["a"], ["b", "c"])
        assert shell.json("log", "inspect", "faulty")["logs"] == []
        assert shell.json("namespace", "check", "faulty")["logs"] == []
        path = "/administered/faulty/<default>/ledgers/logrecs_000000000000000002"

        async def shorten() -> None:
            store = await open_session(cli_sandbox.zookeeper_address, SecuritySettings())
            data, _ = await store.get(path)
            fields = data.split(b";")
            fields[3] = fields[2]  # the last transaction id
            await store.put(path, b";".join(fields), ANY_VERSION)
            await store.close()

        asyncio.run(shorten())
        (found,) = shell.json("namespace", "check", "faulty", "--dry-run", status=3)["logs"]
        assert [one["kind"] for one in found["left"]] == ["short"]
        assert "--yes" in shell.run("namespace", "check", "faulty", status=1).stderr
        (done,) = shell.json("namespace", "check", "faulty", "--yes")["logs"]
        assert ([one["kind"] for one in done["repairs"]], done["left"]) == (["short"], [])
        assert shell.json("namespace", "check", "faulty")["logs"] == []
        assert shell.json("namespace", "repair-lssn", "faulty")["repaired"] == []

    def test_a_number_that_is_too_low_is_found_and_repaired(self, shell: Shell, cli_sandbox: Sandbox) -> None:
        shell.write("misnumbered", ["a"], ["b"])
        ledgers = "/administered/misnumbered/<default>/ledgers"
        shell.write("donor", ["c"])
        (donated,) = shell.ledgers("donor")

        async def misnumber() -> None:
            store = await open_session(cli_sandbox.zookeeper_address, SecuritySettings())
            await store.create(f"{ledgers}/inprogress_{1:018d}", b"5;%d;50;1;0;0;-1" % donated)
            await store.close()

        asyncio.run(misnumber())
        inspected = shell.json("log", "inspect", "misnumbered", "--only", "low-number", status=3)
        assert [one["kind"] for one in inspected["logs"][0]["findings"]] == ["low-number"]
        assert shell.run("log", "inspect", "--filter", "misn", "--names", status=3).stdout == "misnumbered\n"
        would = shell.json("namespace", "repair-lssn", "misnumbered", "--dry-run", status=3)
        assert would["repaired"] == [{"log": "misnumbered", "was": 1, "is": 3, "ledger": donated}]
        shell.run("namespace", "repair-lssn", "misnumbered", "--yes")
        shell.write("misnumbered", [])
        values = [one["value"] for one in shell.lines("read", "misnumbered")]
        assert values == ["a", "b", "c"]


class TestSinks:
    def test_what_failed_attempts_left_is_listed_and_swept_and_what_lives_is_not(
        self, shell: Shell, cli_sandbox: Sandbox
    ) -> None:
        assert shell.json("sink", "list")["sinks"] == []

        async def stage() -> None:
            namespace = await AsyncNamespace.open(shell.uri)
            sinks = SinkStore(namespace.store, namespace.uri.path)
            state = await sinks.ensure("query-1")
            await namespace.create_log("published-into")
            for batch, attempt in ((0, "lost"), (1, "alive")):
                ledger = await namespace.services.ledgers.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
                listing = StagedLedger(batch, attempt, ledger.ledger_id, log_tag("published-into"))
                await sinks.list_ledger("query-1", listing, "published-into")
                await ledger.close()
            mark = LogMark().moved(0, "won", 7, 1)
            paths = namespace.services.logs.paths("published-into")
            moved = sinks.publish_ops("query-1", state, state.value.moved(0, "won", 7), [])
            await namespace.store.multi([*moved, sinks.mark_op(paths, "query-1", None, mark)])
            await namespace.close()

        asyncio.run(stage())
        (found,) = shell.json("sink", "list", "--ledgers")["sinks"]
        assert (found["sink"], found["kind"], found["batch"], found["rows"]) == ("query-1", "query", 0, 7)
        assert found["staged"] == {"settled": 1, "condemned": 0, "abandoned": 0, "live": 1}
        assert [one["verdict"] for one in found["ledgers"]] == ["settled", "live"]
        assert {one["log"] for one in found["ledgers"]} == {"published-into"}
        assert "query-1" in shell.run("sink", "list", "--ledgers").stdout
        would = shell.json("sink", "sweep", "--dry-run")
        assert (would["sinks"], would["live"]) == ([{"sink": "query-1", "ledgers": 1, "removed": False}], 1)
        refused = shell.run("sink", "sweep", status=1)
        assert "1 settled" in refused.stdout
        assert "--yes" in refused.stderr
        assert shell.json("sink", "sweep", "query-1", "--yes")["sinks"] == would["sinks"]
        assert shell.json("sink", "sweep")["sinks"] == []
        assert "1 ledger is left" in shell.run("sink", "sweep").stdout
        assert "no sink 'query-2'" in shell.run("sink", "sweep", "query-2", status=1).stderr
        # The one who says so may call the rest abandoned, too.
        assert shell.json("sink", "sweep", "--min-age", "0", "--yes")["sinks"] == would["sinks"]
        (found,) = shell.json("sink", "list")["sinks"]
        assert (found["batch"], sum(found["staged"].values())) == (0, 0)
        audited = CliRunner().invoke(
            app, ["ledger", "audit", "--min-age", "0", "--output", "json"], env={"DLSPARK_URI": shell.uri}
        )
        assert json.loads(audited.stdout)["orphans"] == []  # whatever it says of other tests' logs
