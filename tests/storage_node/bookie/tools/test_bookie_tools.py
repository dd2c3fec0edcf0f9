"""The tools: what they say of a stopped node is what it says when it runs; what they refuse, and what they find."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from helpers.bookie.harness import BookieCluster, entry
from helpers.waiting import until
from typer.testing import CliRunner

from dlspark.cli.main import app
from metadata.bookkeeper.bookies import BookieAddress, BookieRegistry, Cookie
from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.bookkeeper.replication import ReplicationStore
from metadata.foundation.errors import CallerError
from metadata.foundation.settings import settings_of
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.embedded import EmbeddedZooKeeper
from metadata.zookeeper.memory import MemoryStore
from storage_node.bookie.journal.files import parse_batch_header, parse_file_name
from storage_node.bookie.tools.__main__ import main
from storage_node.bookie.tools.cluster import Cluster as Metadata
from storage_node.bookie.tools.cluster import StillReferredToError
from storage_node.protocol.schema import Status
from storage_node.settings.bookie import BookieSettings


def write_conf(cluster: BookieCluster, **overrides: object) -> Path:
    """The properties file of node "a"."""
    settings = cluster.settings(**overrides)
    lines = []
    for name, info in settings_of(BookieSettings).items():
        value = getattr(settings, name)
        if value is not None:
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            lines.append(f"{info.key}={text}\n")
    path = cluster.tmp_path / "bookie.conf"
    path.write_text("".join(lines))
    return path


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 8
    path.write_bytes(bytes(data))


@pytest.fixture
async def conf(cluster: BookieCluster) -> Path:
    """A killed node with two ledgers in its log, more in its journal."""
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    for number in range(20):
        assert await client.add(entry(5, number, bytes([number]) * 3000)) == Status.EOK
    await client.fence(6)
    await bookie.storage.checkpoint()
    for number in (*range(20, 25), 30):
        assert await client.add(entry(5, number, bytes([number]) * 3000)) == Status.EOK
    assert await client.add(entry(7, 0)) == Status.EOK
    await cluster.kill(bookie)
    return write_conf(cluster)


def run(*arguments: object) -> tuple[int, dict[str, object]]:
    """A tool through the `dlspark` command: exit status, and its JSON."""
    result = CliRunner().invoke(app, ["bookie", *map(str, arguments), "--output", "json"])
    return result.exit_code, json.loads(result.stdout) if result.stdout.startswith("{") else {"message": result.output}


# ------------------------------------------------------------------------------------------- looking


async def test_ledgers_are_listed_with_what_the_journal_adds(conf: Path) -> None:
    status, found = run("list-ledgers", "--conf", conf)
    assert status == 0
    ledgers = {one["ledger_id"]: one for one in found["ledgers"]}  # type: ignore[attr-defined]
    assert set(ledgers) == {5, 6, 7}
    assert ledgers[5]["entries"] == 26
    assert ledgers[5]["ranges"] == [[0, 24], [30, 30]]
    assert ledgers[5]["bytes"] == sum(len(entry(5, number, bytes(3000))) for number in range(26))
    assert ledgers[5]["last_add_confirmed"] == 29
    assert (ledgers[6]["entries"], ledgers[6]["fenced"], ledgers[5]["fenced"]) == (0, True, False)


async def test_entries_are_read_from_log_and_journal(conf: Path) -> None:
    for number in (0, 19, 24, 30):
        status, found = run("read-entry", "--conf", conf, 5, number)
        assert status == 0
        assert bytes.fromhex(str(found["body"])) == entry(5, number, bytes([number]) * 3000)
    assert run("read-entry", "--conf", conf, 5, 27)[0] == 1
    status, found = run("read-entry", "--conf", conf, 8, 0)
    assert status == 1
    assert "does not hold this ledger" in str(found)


async def test_a_sound_node_verifies_and_nothing_was_changed_by_looking(conf: Path, cluster: BookieCluster) -> None:
    def state() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in cluster.tmp_path.rglob("*") if path.is_file()}

    before = state()
    for tool in ("verify", "list-ledgers", "status"):
        status, found = run(tool, "--conf", conf)
        assert status == 0, found
    status, found = run("verify", "--conf", conf)
    assert (found["damages"], found["ledgers"]) == ([], 3)
    assert state() == before
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    assert (await client.read(5, 30)).status == Status.EOK
    listed = run("list-ledgers", "--conf", conf)
    await cluster.stop(bookie)
    assert listed[0] == 1
    status, found = run("verify", "--conf", conf)
    assert (status, found["damages"], found["ledgers"], found["journal_records"]) == (0, [], 3, 0)
    assert [one["entries"] for one in run("list-ledgers", "--conf", conf)[1]["ledgers"]] == [26, 0, 1]  # type: ignore[attr-defined]


async def test_a_running_node_is_left_alone_and_its_status_says_so(cluster: BookieCluster) -> None:
    conf = write_conf(cluster)
    bookie = await cluster.start()
    for tool in (["list-ledgers"], ["verify"], ["rebuild-index"], ["format", "--force"], ["read-entry", "5", "0"]):
        status, found = run(*tool, "--conf", conf)
        assert status == 1
        assert "the node runs" in str(found)
    status, found = run("status", "--conf", conf)
    assert (status, found["running"], found["bookie_id"]) == (0, True, "a")
    await cluster.stop(bookie)
    found = run("status", "--conf", conf)[1]
    assert (found["running"], found["clean"], found["lossy"]) == (False, True, False)
    roles = {one["role"]: one for one in found["directories"]}  # type: ignore[attr-defined]
    assert roles["journal"]["journal_files"] == 1


async def test_status_of_a_node_that_never_was(cluster: BookieCluster) -> None:
    status, found = run("status", "--conf", write_conf(cluster))
    assert status == 0
    assert found["bookie_id"] is None
    assert not any(one["exists"] for one in found["directories"])  # type: ignore[attr-defined]
    assert run("list-ledgers", "--conf", cluster.tmp_path / "bookie.conf")[0] == 1


# ------------------------------------------------------------------------------------------- damage


def newest_batch(path: Path) -> int:
    data, file_id = path.read_bytes(), parse_file_name(path.name) or 0
    found = (parse_batch_header(data, at, at, file_id) for at in range(0, len(data), 4096))
    return [batch.offset for batch in found if batch is not None][1]


DAMAGES: dict[str, tuple[Callable[[BookieCluster], None], str, int]] = {
    "an entry": (
        lambda c: flip(c.ledger_files(".log")[0], c.ledger_files(".log")[0].read_bytes().index(bytes([7]) * 3000) + 9),
        "the entry fails its checksum",
        3,
    ),
    "a header": (
        lambda c: flip(c.ledger_files(".log")[0], c.ledger_files(".log")[0].read_bytes().index(entry(5, 3)[:16])),
        "no record can be made out",
        3,
    ),
    "a log's end": (
        lambda c: c.ledger_files(".log")[0].write_bytes(c.ledger_files(".log")[0].read_bytes()[:20_000]),
        "the log is cut",
        3,
    ),
    "a log": (lambda c: c.ledger_files(".log")[0].unlink(), "the entry log is missing", 3),
    "an index": (lambda c: flip(c.ledger_files(".idx")[0], 50), "the log's index is damaged", 0),
    "an index that is gone": (lambda c: c.ledger_files(".idx")[0].unlink(), "the log's index is missing", 0),
    "the checkpoint": (lambda c: flip(c.ledger_files("checkpoint")[0], 20), "the checkpoint is damaged", 3),
    "a cookie": (lambda c: c.ledger_files("VERSION")[0].unlink(), "the cookie is missing", 3),
    "another's cookie": (
        lambda c: c.ledger_files("VERSION")[0].write_bytes(Cookie("b", ("/j",), ("/l",), None).encode()),
        "the cookie is not that of",
        3,
    ),
}


@pytest.mark.parametrize("what", DAMAGES)
async def test_verify_finds_and_names(conf: Path, cluster: BookieCluster, what: str) -> None:
    damage, said, expected = DAMAGES[what]
    damage(cluster)
    status, found = run("verify", "--conf", conf)
    assert said in json.dumps(found), found
    assert status == expected


async def test_verify_finds_a_damaged_journal(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    for number in range(5):
        await client.add(entry(5, number))
    await cluster.kill(bookie)
    flip(cluster.journal()[-1], newest_batch(cluster.journal()[-1]) + 100)
    status, found = run("verify", "--conf", write_conf(cluster))
    assert status == 3
    assert "proves that it had been durable" in json.dumps(found)


async def test_the_index_is_rebuilt_byte_for_byte_the_same(conf: Path, cluster: BookieCluster) -> None:
    before = {path: path.read_bytes() for path in cluster.ledger_files(".idx")}
    for number, path in enumerate(before):
        flip(path, 50) if number % 2 else path.unlink()
    status, found = run("rebuild-index", "--conf", conf)
    assert status == 0
    assert sorted(found["written"]) == sorted(str(path) for path in before)  # type: ignore[call-overload]
    assert run("verify", "--conf", conf)[1]["damages"] == []
    client = await cluster.connect(await cluster.start())
    for number in (*range(25), 30):
        assert (await client.read(5, number)).status == Status.EOK
    assert (await client.read(5, 27)).status == Status.ENOENTRY


async def test_an_intact_index_of_a_damaged_log_is_kept(conf: Path, cluster: BookieCluster) -> None:
    DAMAGES["a header"][0](cluster)
    before = {path: path.read_bytes() for path in cluster.ledger_files(".idx")}
    status, found = run("rebuild-index", "--conf", conf)
    assert status == 3
    assert len(found["kept"]) == 1  # type: ignore[arg-type]
    assert set(found["kept"]) <= {str(path) for path in before}  # type: ignore[call-overload]
    for path, data in before.items():
        if str(path) in found["kept"]:  # type: ignore[operator]
            assert path.read_bytes() == data
            path.unlink()
    status, found = run("rebuild-index", "--conf", conf)
    assert (status, len(found["lost"])) == (3, 1)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------- formatting, cookies


async def test_format_asks_and_leaves_no_node_that_could_start_and_deny(
    conf: Path, cluster: BookieCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert main(["format", "--conf", str(conf)]) == 1
    assert "not confirmed" in capsys.readouterr().err
    assert cluster.ledger_files(".log")
    monkeypatch.setattr("builtins.input", lambda question: "yes")
    assert main(["format", "--conf", str(conf)]) == 0
    assert not list((cluster.tmp_path / "a" / "ledgers" / "current").iterdir())
    with pytest.raises(Exception, match="wiped"):
        await cluster.start()


async def test_the_other_command_line_prints_the_same(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list-ledgers", "--conf", str(conf), "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == run("list-ledgers", "--conf", conf)[1]
    assert main(["verify", "--conf", str(conf)]) == 0
    assert "0 damages" in capsys.readouterr().out
    assert main(["read-entry", "--conf", str(conf), "5", "99"]) == 1
    assert "does not hold this entry" in capsys.readouterr().err
    assert CliRunner().invoke(app, ["bookie"]).exit_code == 1


@pytest.fixture
async def metadata(cluster: BookieCluster) -> AsyncIterator[Metadata]:
    store = MemoryStore(cluster.tree)
    yield Metadata(store, "/ledgers")
    await store.close()


async def make_ledger(cluster: BookieCluster, ledger_id: int, *bookies: str) -> None:
    store = MemoryStore(cluster.tree)
    metadata = LedgerMetadata(
        ensemble_size=len(bookies), write_quorum=2, ack_quorum=2, ensembles=(Ensemble(0, bookies),)
    )
    await LedgerStore(store).create(ledger_id, metadata)
    await store.close()


async def test_a_cookie_goes_only_when_the_node_is_stopped_and_no_ledger_names_it(
    cluster: BookieCluster, metadata: Metadata
) -> None:
    bookie = await cluster.start()
    with pytest.raises(CallerError, match="it runs"):
        await metadata.delete_cookie("a", force=True)
    await cluster.stop(bookie)
    await make_ledger(cluster, 3, "a", "b")
    await make_ledger(cluster, 4, "b", "c")
    assert await metadata.ledgers_of("a") == [3]
    with pytest.raises(StillReferredToError, match="1 ledger still names"):
        await metadata.delete_cookie("a")
    assert await metadata.cookies() == ["a"]
    await metadata.delete_cookie("a", force=True)
    assert await metadata.cookies() == []
    for call in (metadata.read_cookie("a"), metadata.delete_cookie("a")):
        with pytest.raises(CallerError, match="no cookie"):
            await call


async def test_decommissioning_marks_the_ledgers_waits_for_their_repair_and_removes_the_cookie(
    cluster: BookieCluster, metadata: Metadata
) -> None:
    bookie = await cluster.start()
    for call in (metadata.decommission("a", now_ms=lambda: 9, timeout_s=1, progress=print),):
        with pytest.raises(CallerError, match="it runs"):
            await call
    await cluster.stop(bookie)
    for ledger_id in range(3):
        await make_ledger(cluster, ledger_id, "a", "b")
    store = MemoryStore(cluster.tree)
    ledgers, replication = LedgerStore(store), ReplicationStore(store)
    told: list[int] = []
    with pytest.raises(StillReferredToError, match=r"3 ledgers still name .* stay marked, .* Then decommission again"):
        await metadata.decommission("a", now_ms=lambda: 9, timeout_s=0, progress=told.append)
    assert told == [3]
    assert [ledger_id async for ledger_id in replication.marked()] == [0, 1, 2]
    assert await metadata.cookies() == ["a"]
    leaving = asyncio.ensure_future(metadata.decommission("a", now_ms=lambda: 9, timeout_s=30, progress=told.append))
    await until(lambda: told != [3], every_s=0)
    for ledger_id in range(3):
        mark = await replication.read(ledger_id)
        assert mark is not None
        assert mark.value.missing == ("a",)
        found = await ledgers.read(ledger_id)
        moved = LedgerMetadata(ensemble_size=2, write_quorum=2, ack_quorum=2, ensembles=(Ensemble(0, ("c", "b")),))
        await ledgers.write(ledger_id, moved, found.version)
    assert await asyncio.wait_for(leaving, 60) == 3
    assert await metadata.cookies() == []
    await store.close()


@pytest.mark.processes
async def test_the_tools_of_the_cluster_through_a_real_zookeeper(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path / "zk") as server:
        cluster = BookieCluster(tmp_path)
        conf = write_conf(cluster, zk_servers=server.address)
        store = await ZooKeeperStore.connect(server.address)
        ledgers, registry = LedgerStore(store), BookieRegistry(store)
        await ledgers.format()
        cookie = Cookie("a", ("/j",), ("/l",), await registry.instance_id())
        await registry.write_cookie(cookie)
        await registry.register(BookieAddress("a", "127.0.0.1", 3181))

        async def tool(*arguments: str) -> tuple[int, dict[str, object]]:
            return await asyncio.to_thread(run, *arguments, "--conf", str(conf))

        assert (await tool("cookie", "list"))[1] == {"bookies": ["a"]}
        assert (await tool("cookie", "show", "--bookie-id", "a"))[1]["bookie_id"] == "a"
        status, found = await tool("decommission", "--bookie-id", "a")
        assert (status, "it runs" in str(found)) == (1, True)
        await registry.unregister("a")
        metadata = LedgerMetadata(ensemble_size=1, write_quorum=1, ack_quorum=1, ensembles=(Ensemble(0, ("a",)),))
        await ledgers.create(1, metadata)
        status, found = await tool("cookie", "delete", "--bookie-id", "a")
        assert (status, "1 ledger still names the bookie" in str(found)) == (1, True)
        await ledgers.delete(1)
        status, found = await tool("decommission", "--bookie-id", "a")
        assert (status, found) == (0, {"bookie_id": "a", "ledgers": 0})
        assert (await tool("cookie", "show", "--bookie-id", "a"))[0] == 1
        await store.close()
