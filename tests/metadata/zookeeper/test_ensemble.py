"""An ensemble of embedded servers, one of which has no vote: what it serves, and what its loss does not take away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlspark.testing.java_process import free_port
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.embedded import OBSERVER, EmbeddedZooKeeper, EnsembleMember
from metadata.zookeeper.homing import four_letters

pytestmark = pytest.mark.processes


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[EmbeddedZooKeeper]]:
    """Three voters, and an observer behind them."""
    members = {n: f"127.0.0.1:{free_port()}:{free_port()}" for n in (1, 2, 3)}
    members[4] = f"127.0.0.1:{free_port()}:{free_port()}{OBSERVER}"
    made = [EmbeddedZooKeeper(tmp_path / str(n), port=free_port(), member=EnsembleMember(n, members)) for n in members]
    for server in made:
        server.launch()
    for server in made:
        server.await_serving()
    yield made
    for server in made:
        server.kill()


def _mode(server: EmbeddedZooKeeper) -> str:
    answer = four_letters("127.0.0.1", server.port, "srvr")
    return answer.partition("Mode: ")[2].splitlines()[0]


async def test_an_observer_serves_and_its_loss_takes_no_vote_away(servers: list[EmbeddedZooKeeper]) -> None:
    *voters, observer = servers
    assert _mode(observer) == "observer"
    assert sorted(map(_mode, voters)) == ["follower", "follower", "leader"]
    beside = await ZooKeeperStore.connect(observer.address)
    await beside.create("/by-the-observer", b"written")
    await beside.close()
    follower = next(voter for voter in voters if _mode(voter) == "follower")
    observer.kill()
    follower.kill()  # Two of four are left: no majority, if the observer had a vote.
    for voter in voters:
        if voter is not follower:
            store = await ZooKeeperStore.connect(voter.address)
            assert (await store.get("/by-the-observer"))[0] == b"written"
            await store.create(f"/by-{voter.port}", b"")
            await store.close()
