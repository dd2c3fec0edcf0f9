"""A session that has had no connection for a while is told of, with what a server says that refuses it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from helpers.waiting import until

from metadata.store import SessionState
from metadata.zookeeper import outages
from metadata.zookeeper.outages import OutageNotice

CONNECTED, SUSPENDED, EXPIRED, CLOSED = (
    SessionState.CONNECTED,
    SessionState.SUSPENDED,
    SessionState.EXPIRED,
    SessionState.CLOSED,
)


@asynccontextmanager
async def answering(text: str) -> AsyncIterator[int]:
    """Run what answers `srvr`; yields its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(4) == b"srvr"
        writer.write(text.encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "OUTAGE_S", 0.01)


async def test_an_outage_is_said_and_that_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    notice = OutageNotice("zk:1,zk:2", [("127.0.0.1", 1)], None, lambda: 7)
    for state in (CONNECTED, SUSPENDED, EXPIRED):
        notice.hear(state)
    await until(lambda: notice._told)
    assert "no connection with ZooKeeper (zk:1,zk:2)" in caplog.text
    assert "seen more" not in caplog.text
    notice.hear(CONNECTED)
    assert caplog.messages[-1] == "connected with ZooKeeper again"
    assert len(caplog.messages) == 2


async def test_a_short_one_one_before_the_first_connection_and_one_that_is_closed_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for states in ((SUSPENDED,), (CONNECTED, SUSPENDED, CONNECTED), (CONNECTED, SUSPENDED, CLOSED)):
        notice = OutageNotice("zk:1,zk:2", [("127.0.0.1", 1)], None, lambda: 7)
        for state in states:
            notice.hear(state)
        assert notice._telling is None
    await asyncio.sleep(0.05)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("zxid", "mode", "refused"),
    [(0x1F, "standalone", True), (0x20, "standalone", False), (0x1F, "read-only", False)],
)
async def test_a_server_that_has_less_than_the_session_has_seen_is_named(
    zxid: int, mode: str, refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with answering(f"Zookeeper version: 3.9\nZxid: 0x{zxid:x}\nMode: {mode}\nNode count: 5\n") as port:
        notice = OutageNotice("zk:1", [("127.0.0.1", 1), ("127.0.0.1", port)], None, lambda: 0x20)
        notice.hear(CONNECTED)
        notice.hear(SUSPENDED)
        await until(lambda: notice._told)
        notice.hear(CLOSED)
    assert (f"127.0.0.1:{port} serves, and refuses this session" in caplog.text) is refused
    assert ("(0x20; 0x1f)" in caplog.text) is refused


@pytest.mark.parametrize("answer", ["", "This is not in the whitelist\n", "Zxid: nothing\nMode: leader\n"])
async def test_what_a_server_does_not_say_is_not_made_up(answer: str, caplog: pytest.LogCaptureFixture) -> None:
    async with answering(answer) as port:
        notice = OutageNotice("zk:1", [("127.0.0.1", port)], None, lambda: 0x20)
        notice.hear(CONNECTED)
        notice.hear(SUSPENDED)
        await until(lambda: notice._told)
        notice.hear(CLOSED)
    assert "it is tried again all the time" in caplog.messages[-1]
    assert caplog.messages[-1].endswith("all the time")
