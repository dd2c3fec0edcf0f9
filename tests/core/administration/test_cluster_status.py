"""What `dlspark cluster status` finds: over real storage nodes in this process, and metadata in memory."""

from __future__ import annotations

import json

import pytest

from dlspark.cli.cluster import WIDTH, _as_json, _echo_status
from dlspark.core.administration.cluster import NodeState, cluster_status
from dlspark.version import __version__
from metadata.bookkeeper.bookies import BookieAddress, BookieRegistry
from metadata.bookkeeper.replication import ReplicationStore
from metadata.zookeeper.memory import MemoryStore
from storage_node.edge import SystemClock

LONG_NAME = "storage-node-0123456789.rack-7.row-3.data-center-frankfurt.example.org:3181"


@pytest.fixture
def cluster_options():
    return {"nodes": 3}


async def _look(in_process_cluster, capsys, limit=10):
    """The status, and the lines that people see of it."""
    status = await cluster_status(in_process_cluster.operator, "/ledgers", SystemClock(), limit=limit)
    _echo_status(("zk:2181", "/ledgers"), status)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= WIDTH
    json.dumps(_as_json(("zk:2181", "/ledgers"), status))
    return status, " ".join(" ".join(lines).split())


async def test_a_whole_cluster_needs_nobody(in_process_cluster, capsys):
    status, text = await _look(in_process_cluster, capsys)
    assert status.faults == []
    assert [node.state for node in status.nodes] == [NodeState.WRITABLE] * 3
    assert {node.registration.version for node in status.nodes} == {__version__}
    assert all(0 < node.space.free < node.space.total for node in status.nodes)
    assert "3 writable, 0 read-only, 0 not registered" in text
    assert "!" not in text


async def test_nodes_that_are_away_full_or_silent_are_named_with_what_helps(in_process_cluster, capsys):
    await in_process_cluster.stop_node(1)
    store = MemoryStore(in_process_cluster.tree)
    registry = BookieRegistry(store)
    await registry.register(BookieAddress(LONG_NAME, "127.0.0.1", 1))
    await registry.register(BookieAddress("full:1", "127.0.0.1", 1), readonly=True)
    status, text = await _look(in_process_cluster, capsys)
    assert "2 read-only" not in text
    assert "3 writable, 1 read-only, 1 not registered" in text
    assert "! storage node node-1 is not registered: start it (dlspark bookie --conf FILE)" in text
    assert "dlspark bookie decommission --bookie-id node-1 --conf FILE" in text
    assert "! storage node full:1 is read-only" in text
    assert f"! storage node {LONG_NAME} is registered, and does not answer: BookieUnreachableError" in text
    (mute,) = [node for node in status.nodes if node.bookie_id == LONG_NAME]
    assert (mute.space, mute.registration.version) == (None, None)
    await store.close()


async def test_ledgers_that_lack_copies_are_counted_and_some_are_named(in_process_cluster, capsys):
    marks = ReplicationStore(in_process_cluster.operator)
    await marks.prepare()
    for ledger_id in range(7, 19):
        await marks.mark(ledger_id, [LONG_NAME, "node-9"], 1)
    status, text = await _look(in_process_cluster, capsys, limit=2)
    assert status.faults == [
        "12 ledgers lack copies, and auto-recovery is not running: dlspark autorecovery --conf FILE"
    ]
    assert f"ledger 7: lacks {LONG_NAME}, node-9" in text or f"ledger 7: lacks node-9, {LONG_NAME}" in text
    assert "and 10 more (--limit)" in text
    await marks.disable()
    status, _ = await _look(in_process_cluster, capsys, limit=0)
    assert status.faults == [
        "12 ledgers lack copies, and auto-recovery is switched off: dlspark autorecovery enable --conf FILE"
    ]


async def test_a_tree_without_layout_is_told_and_left_as_it_is(in_process_cluster, capsys):
    await in_process_cluster.operator.delete("/ledgers/LAYOUT")
    for index in range(3):
        await in_process_cluster.stop_node(index)
    status, text = await _look(in_process_cluster, capsys)
    assert status.layout is None
    assert "no storage node takes writes" in status.faults
    assert "dlspark cluster init" in text
    assert await in_process_cluster.operator.exists("/ledgers/LAYOUT") is None
