"""A node's files are its user's alone: entries, the journal, and the file that can end its ZooKeeper session."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.bookie.harness import BookieCluster, entry

pytestmark = pytest.mark.usefixtures("no_umask")


def open_paths(root: Path) -> dict[str, str]:
    """What others may do with anything below."""
    modes = {str(path.relative_to(root)): path.lstat().st_mode & 0o777 for path in root.rglob("*")}
    return {name: oct(mode) for name, mode in modes.items() if mode & 0o077}


async def live(cluster: BookieCluster) -> Path:
    """A node with everything that it ever writes."""
    root = cluster.tmp_path / "a"
    bookie = await cluster.start(persist_bookie_status_enabled=True)
    client = await cluster.connect(bookie)
    await client.add(entry(5, 0))
    await bookie.storage.checkpoint()
    return root


async def test_whatever_a_node_writes_is_for_its_user_alone(cluster: BookieCluster) -> None:
    root = await live(cluster)
    files = {path.name for path in root.rglob("*")}
    assert {"lock", "SESSION", "VERSION", "BOOKIE_STATUS", "0000000000000001.log", "0000000000000001.idx"} <= files
    assert open_paths(root) == {}


async def test_what_an_older_version_left_open_is_closed_at_start(
    cluster: BookieCluster, caplog: pytest.LogCaptureFixture
) -> None:
    root = await live(cluster)
    await cluster.stop(cluster.running[0][0])
    currents = [root / "journal" / "current", root / "ledgers" / "current"]
    for current in currents:
        current.chmod(0o755)
        for path in current.iterdir():
            path.chmod(0o644)
    bookie = await cluster.start()
    assert [name for name in open_paths(root) if "current" in name] == []
    assert caplog.text.count("is closed now") == 2
    client = await cluster.connect(bookie)
    assert bytes((await client.read(5, 0)).body or b"") == entry(5, 0)
