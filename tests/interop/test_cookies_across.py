"""Who may start where: cookies and instance ids, of both kinds of node, in trees that Java initialised."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from helpers.interop.clusters import OurBookie, newest_version

from dlspark.testing.java_process import JavaError, JavaTool, free_port
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.zookeeper.client import ZooKeeperStore

_roots = count(1)


@pytest.fixture
def two_roots(java: JavaTool, zk: str) -> tuple[str, str]:
    """Two clusters with instance ids of their own."""
    roots = tuple(f"/cookies-{next(_roots)}" for _ in range(2))
    for root in roots:
        assert java.call("cluster.init", zk=zk, root=root) is True
    return roots[0], roots[1]


@newest_version
async def test_our_node_starts_again_where_it_belongs_and_nowhere_else(
    java: JavaTool, zk: str, two_roots: tuple[str, str], tmp_path: Path
) -> None:
    here, elsewhere = two_roots
    directory = tmp_path / "node"
    node = OurBookie(zk, here, directory)
    for _ in range(2):
        await asyncio.to_thread(node.start)
        await asyncio.to_thread(node.stop)
    told = await java.ask("shell", zk=zk, root=here, arguments=["cookie_get", node.id])
    assert told["status"] == 0, told
    assert any(node.id in line for line in told["told"]), told

    stranger = OurBookie(zk, elsewhere, directory, node.port)
    with pytest.raises(RuntimeError, match=r"no cookie in metadata|not the one that its data belongs to"):
        await asyncio.to_thread(stranger.start)
    store = await ZooKeeperStore.connect(zk)
    try:
        assert await BookieRegistry(store, elsewhere).read_cookie(node.id) is None, "nothing was left there"
    finally:
        await store.close()

    shutil.rmtree(directory)
    wiped = OurBookie(zk, here, directory, node.port)
    with pytest.raises(RuntimeError, match="is registered, but its directories have no"):
        await asyncio.to_thread(wiped.start)


@newest_version
async def test_a_real_bookie_and_our_node_do_not_take_each_other_s_place(
    java: JavaTool, zk: str, two_roots: tuple[str, str], tmp_path: Path
) -> None:
    """The id of the one, once it has stored anything, is refused to the other with its empty disks."""
    here, elsewhere = two_roots
    port, directory = free_port(), tmp_path / "java"
    start = partial(java.ask, "bookie.start", zk=zk, port=port, directory=str(directory))
    bookie = await start(root=here)
    await java.ask("bookie.stop", bookie=bookie)
    with pytest.raises(JavaError):
        await start(root=elsewhere)
    impostor = OurBookie(zk, here, tmp_path / "own", port)
    assert impostor.id == bookie
    with pytest.raises(RuntimeError, match="not the one that its data belongs to"):
        await asyncio.to_thread(impostor.start)

    node = OurBookie(zk, elsewhere, tmp_path / "second")
    await asyncio.to_thread(node.start)
    await asyncio.to_thread(node.stop)
    with pytest.raises(JavaError):
        await java.ask("bookie.start", zk=zk, root=elsewhere, port=node.port, directory=str(tmp_path / "third"))
    assert await start(root=here) == bookie, "it still belongs where it was"
    await java.ask("bookie.stop", bookie=bookie)
