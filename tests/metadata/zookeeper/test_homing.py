"""A session returns to a ZooKeeper server of its own region: when, and that it is the same session then."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.waiting import until

from dlspark.testing.java_process import free_port
from metadata.retry import repeat
from metadata.store import EventKind, WatchEvent
from metadata.zookeeper import homing
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.edge import FIRST_VARIABLE
from metadata.zookeeper.embedded import EmbeddedZooKeeper, EnsembleMember
from metadata.zookeeper.homing import PROBE_EVERY_S, RETURN_EVERY_S, HomeProbe, HomeRule, serves

WELL_FOR_S = 40.0


def test_a_session_at_home_asks_nothing() -> None:
    rule = HomeRule(WELL_FOR_S)
    assert not rule.asks(1_000.0)
    rule.connected(near=True)
    assert not rule.asks(1_000.0)
    rule.answered(1_000.0, serves=True)
    assert not rule.returns(9_000.0)


def test_a_session_elsewhere_asks_now_and_then_and_returns_when_home_has_served_for_long_enough() -> None:
    rule = HomeRule(WELL_FOR_S)
    rule.connected(near=False)
    assert [now for now in range(1_000, 1_025) if rule.asks(now)] == [1_000, 1_010, 1_020]
    assert PROBE_EVERY_S == 10
    rule.answered(1_020, serves=True)
    rule.answered(1_030, serves=True)
    assert not rule.returns(1_059)
    assert rule.returns(1_060)
    assert not rule.returns(1_061), "once"


def test_one_answer_that_it_does_not_serve_begins_the_wait_anew() -> None:
    rule = HomeRule(WELL_FOR_S)
    rule.connected(near=False)
    rule.answered(1_000, serves=True)
    rule.answered(1_030, serves=False)
    rule.answered(1_040, serves=True)
    assert not rule.returns(1_079)
    assert rule.returns(1_080)


def test_answers_that_lie_far_apart_show_nothing_of_the_time_between() -> None:
    rule = HomeRule(WELL_FOR_S)
    rule.connected(near=False)
    rule.answered(1_000, serves=True)
    rule.answered(9_000, serves=True)
    assert not rule.returns(9_001), "it may have begun to serve a moment ago"
    rule.answered(9_040, serves=True)
    assert rule.returns(9_040)


def test_a_server_that_comes_and_goes_draws_a_session_home_once_in_minutes() -> None:
    rule = HomeRule(WELL_FOR_S)
    returned = []
    rule.connected(near=False)
    for now in range(1_000, 2_000):
        rule.answered(now, serves=True)
        if rule.returns(now):
            returned.append(now)
            rule.connected(near=True)
            rule.connected(near=False)  # and it is lost again
    assert returned == [1_040, 1_040 + RETURN_EVERY_S, 1_040 + 2 * RETURN_EVERY_S, 1_040 + 3 * RETURN_EVERY_S]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Zookeeper version: 3.9.3\nLatency min/avg/max: 0/0.0/0\nZxid: 0x100000005\nMode: follower\n", True),
        ("Zxid: 0x100000006\nMode: observer\n", True),
        ("Zxid: 0x100000004\nMode: follower\n", False),
        ("Zxid: 0x100000006\nMode: read-only\n", False),
        ("This ZooKeeper instance is not currently serving requests\n", False),
        ("srvr is not executed because it is not in the whitelist.\n", False),
        ("Zxid: ?\nMode: follower\n", False),
        ("", False),
    ],
)
def test_a_server_is_taken_that_serves_and_has_what_the_session_has_seen(answer: str, expected: bool) -> None:
    assert serves(answer, 0x1_0000_0005) is expected


def test_names_are_looked_up_each_time_and_one_that_nobody_knows_is_passed_over() -> None:
    def addresses(name: str, port: int) -> list[tuple[str, int]]:
        if name == "gone":
            raise OSError(name)
        return [("127.0.0.1", listener.getsockname()[1])]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        probe = HomeProbe([("gone", 1), ("home", 2)], addresses, 5)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(4) == b"srvr"
            connection.sendall(b"Zxid: 0x5\nMode: follower\n")
        probe._thread.join(10)
        assert probe.ended
        assert probe.found == ("home", *listener.getsockname())


def test_a_server_that_says_nothing_holds_up_no_close() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        probe = HomeProbe([("home", 2)], lambda *_: [listener.getsockname()] * 50, 5)
        connection, _ = listener.accept()
        with connection:
            probe.end()
        assert probe.ended
        assert probe.found is None


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[EmbeddedZooKeeper]]:
    members = {n: f"127.0.0.1:{free_port()}:{free_port()}" for n in (1, 2, 3)}
    made = [EmbeddedZooKeeper(tmp_path / str(n), port=free_port(), member=EnsembleMember(n, members)) for n in members]
    for server in made:
        server.launch()
    for server in made:
        server.await_serving()
    yield made
    for server in made:
        server.kill()


@pytest.mark.processes
@pytest.mark.long
async def test_it_is_the_same_session_at_home_with_its_ephemerals_and_watches_are_void(
    servers: list[EmbeddedZooKeeper], monkeypatch: pytest.MonkeyPatch, rounds: int | None
) -> None:
    monkeypatch.setattr(homing, "PROBE_EVERY_S", 0.2)
    monkeypatch.setattr(homing, "WELL_FOR_S", 1.0)
    monkeypatch.setattr(homing, "RETURN_EVERY_S", 0.0)
    home, *others = servers
    monkeypatch.setenv(FIRST_VARIABLE, home.address)
    store = await ZooKeeperStore.connect(",".join(server.address for server in servers), session_timeout_ms=4_000)
    connection: Any = store._client._connection
    try:
        session = store.session_id
        await store.create("/ours", b"kept", ephemeral=True)
        assert connection._dialled[1] == home.port
        for _ in range(rounds or 1):
            events: list[WatchEvent] = []
            home.kill()
            await until(lambda: connection._dialled[1] != home.port, "it goes on elsewhere")
            await repeat(store, lambda: store.exists("/ours"))
            await store.get("/ours", events.append)
            home.start()
            await until(lambda: connection._dialled[1] == home.port, "it returns")
            data, stat = await repeat(store, lambda: store.get("/ours"))
            assert connection._dialled[1] == home.port
            assert store.session_id == session
            assert (data, stat.ephemeral_owner) == (b"kept", session)
            assert events == [WatchEvent(EventKind.SESSION, "/ours")], "who watched looks again"
        other = await ZooKeeperStore.connect(others[0].address)
        assert await other.exists("/ours") is not None
        await other.close()
    finally:
        await store.close()
