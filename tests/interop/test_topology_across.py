"""The znode in which our nodes announce where they are, beside Java's shell, in every layout of ledgers."""

from __future__ import annotations

import pytest
from helpers.interop.clusters import newest_version

from dlspark.testing.java_process import JavaTool
from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from metadata.bookkeeper.ledgers import LAYOUT_NAMES, LedgerStore
from metadata.bookkeeper.topology import Topology, TopologyStore
from metadata.zookeeper.client import ZooKeeperStore

LEDGER = 12345


@newest_version
@pytest.mark.parametrize("layout", sorted(LAYOUT_NAMES))
async def test_java_lists_ledgers_beside_the_topology_and_takes_a_cluster_down(
    java: JavaTool, zk: str, version: str, layout: str
) -> None:
    root = f"/topology-{version}-{layout}"
    store = await ZooKeeperStore.connect(zk, session_timeout_ms=10_000)
    try:
        ledgers, topology = LedgerStore(store, root), TopologyStore(store, root)
        await ledgers.format(LAYOUT_NAMES[layout])
        await topology.announce("10.0.0.1:3181", "/eu/r1")
        await topology.disallow("us")
        metadata = LedgerMetadata(1, 1, 1, ensembles=(Ensemble(0, ("10.0.0.1:3181",)),))
        await ledgers.create(LEDGER, metadata)

        async def shell(*arguments: str) -> str:
            # "null": Java takes the layout that the cluster names. The legacy one has no name of its own here.
            settings = {"metadataServiceUri": f"zk+null://{zk}{root}"}
            answer = await java.ask("shell", zk=zk, root=root, settings=settings, arguments=list(arguments))
            told = "\n".join(answer["told"])
            assert answer["status"] == 0, told
            return told

        assert str(LEDGER) in await shell("listledgers")
        assert "topology" not in await shell("listbookies", "-a")
        instance = (await store.get(f"{root}/INSTANCEID"))[0].decode()
        # Java's own auto-recovery makes its tree around the znode.
        await shell("autorecovery", "-disable")
        await shell("autorecovery", "-enable")
        assert (await topology.read()).disallowed == {"us"}

        take_down = ("nukeexistingcluster", "-zkledgersrootpath", root, "-instanceid", instance)
        await store.create(f"{root}/topology")
        with pytest.raises(AssertionError):
            await shell(*take_down)
        assert await topology.read() != Topology(), "Java refuses where a child of the root is not its own"
        await store.delete(f"{root}/topology")
        await shell(*take_down)
        assert await store.exists(root) is None
    finally:
        await store.close()
