"""Auto-recovery of either kind on a cluster of both, and the ledgers of both that it repairs."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dlspark.testing.java_process import JavaError, JavaTool, free_port
from helpers.interop.clusters import InteropCluster, JavaBookies, OurBookie, our_bookie
from helpers.interop.ledgers import as_java_tells, java_creates, java_reads, payloads, we_add, we_read
from helpers.paths import ROOT
from metadata.zookeeper.client import ZooKeeperStore
from storage_node.autorecovery.daemon import AutoRecovery
from storage_node.settings.autorecovery import AutoRecoverySettings
from storage_node.settings.client import ClientSettings

SIZES = tuple(range(100, 130))
REPAIR_WITHIN_S = 60
SECURITY_FAILED = -24
"""Java's code for a connection that could not be secured."""
TLS_TRIES = 5
OURS = AutoRecoverySettings(rereplicate_backoff_ms=200, open_ledger_grace_period_ms=1000)
_roots = count(1)
Ask = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class Nodes:
    cluster: InteropCluster
    own: list[OurBookie]


@contextmanager
def nodes(tool: JavaTool, zk: str, directory: Path, java: int, own: int) -> Iterator[Nodes]:
    """Run real bookies and nodes of ours under one root of their own."""
    root = f"/repair-{next(_roots)}"
    with ExitStack() as stack:
        theirs = JavaBookies(tool, zk, root, directory / "java", java)
        stack.callback(theirs.stop_all)
        ours = [stack.enter_context(our_bookie(zk, root, directory / f"own-{index}")) for index in range(own)]
        ids = (*theirs.cluster.bookies, *(node.id for node in ours))
        yield Nodes(InteropCluster(zk, root, ids, theirs.stop, theirs.start_all), ours)


@asynccontextmanager
async def our_auto_recovery(cluster: InteropCluster) -> AsyncIterator[AutoRecovery]:
    store = await ZooKeeperStore.connect(cluster.zk)
    try:
        recovery = AutoRecovery(OURS, store, cluster.root, bookie_id="127.0.0.1:1")
        await recovery.start()
        try:
            yield recovery
        finally:
            await recovery.stop()
    finally:
        await store.close()


@asynccontextmanager
async def our_auto_recovery_process(
    cluster: InteropCluster, directory: Path, settings: Mapping[str, object]
) -> AsyncIterator[None]:
    """Run our auto-recovery as a process of its own, by a node's file with these settings."""
    conf, log = directory / "autorecovery.conf", directory / "autorecovery.log"
    _write_file(conf, cluster, settings)
    with log.open("ab") as told:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "storage_node.autorecovery", "--conf", str(conf)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=told,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), REPAIR_WITHIN_S)
        assert line.endswith(b"is at work\n"), log.read_text()[-2000:]
        yield
        assert process.returncode is None, log.read_text()[-2000:]
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _write_file(conf: Path, cluster: InteropCluster, settings: Mapping[str, object]) -> None:
    given = {
        "zkServers": cluster.zk,
        "zkLedgersRootPath": cluster.root,
        "bookieId": "127.0.0.1:1",
        "rwRereplicateBackoffMs": OURS.rereplicate_backoff_ms,
        "openLedgerRereplicationGracePeriod": OURS.open_ledger_grace_period_ms,
        **settings,
    }
    conf.parent.mkdir(parents=True, exist_ok=True)
    conf.write_text("".join(f"{key}={value}\n" for key, value in given.items()))


@asynccontextmanager
async def java_auto_recovery(
    cluster: InteropCluster, java: JavaTool, settings: Mapping[str, object] = MappingProxyType({})
) -> AsyncIterator[None]:
    handle = await cluster.on(java)("autorecovery.start", port=free_port(), settings=dict(settings))
    try:
        yield
    finally:
        await java.ask("autorecovery.stop", handle=handle)


async def ledgers_of_both(
    ask: Ask, cluster: InteropCluster, node: str, settings: ClientSettings | None = None
) -> list[int]:
    """Write and close ledgers that `node` holds a part of, one of ours and one of Java's.

    Every entry is on all three nodes: a client that is closed after two have acknowledged owes the third one nothing.
    """
    found: dict[str, int] = {}
    async with cluster.client(settings) as client:
        while "ours" not in found:
            writer = await client.create(ack_quorum=3)
            await we_add(writer, SIZES)
            if node in (await writer.close()).last_ensemble.bookies:
                found["ours"] = writer.ledger_id
    while "theirs" not in found:
        ledger = await java_creates(ask, ack_quorum=3)
        for index, size in enumerate(SIZES):
            added = await ask("ledger.write", handle=ledger["handle"], first=index, count=1, size=size)
            assert not added["failed"], added
        await ask("ledger.close", handle=ledger["handle"])
        if node in (await ask("ledger.metadata", ledger=ledger["ledger"]))["ensembles"]["0"]:
            found["theirs"] = ledger["ledger"]
    return list(found.values())


async def repaired(ask: Ask, ledger_ids: list[int], lost: str, theirs: Collection[str] = ()) -> None:
    """Return when no ledger names the lost node; each replacement then says that it has every entry. `theirs`: bookies
    of Java's."""
    for ledger_id in ledger_ids:
        while lost in (  # noqa: ASYNC110 (a question)
            ensemble := (await ask("ledger.metadata", ledger=ledger_id))["ensembles"]["0"]
        ):
            await asyncio.sleep(0.2)
        for bookie in ensemble:
            stored = await _stored(ask, ledger_id, bookie, tries=TLS_TRIES if bookie in theirs else 1)
            assert stored == list(range(len(SIZES)))


async def _stored(ask: Ask, ledger_id: int, bookie: str, tries: int) -> Any:
    """Return what a bookie says that it stores. On a busy machine the first plain AUTH of Java's client may come too
    late for a bookie of Java's, which awaits TLS by then and ends the connection ("not an SSL/TLS record"): the next
    connection is another try."""
    for _ in range(tries - 1):
        try:
            return await ask("ledger.stored", ledger=ledger_id, bookie=bookie, last=len(SIZES) - 1)
        except JavaError as error:
            if error.code != SECURITY_FAILED:
                raise
    return await ask("ledger.stored", ledger=ledger_id, bookie=bookie, last=len(SIZES) - 1)


async def read_by_both(
    ask: Ask, cluster: InteropCluster, ledger_ids: list[int], settings: ClientSettings | None = None
) -> None:
    async with cluster.client(settings) as client:
        for ledger_id in ledger_ids:
            assert await java_reads(ask, ledger_id) == as_java_tells(payloads(SIZES))
            assert await we_read(client, ledger_id) == payloads(SIZES)
