"""Of which kind a server's port is: asked without holding up the session, and never said where it is not known."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from helpers.keeper_identities import KeeperAuthority, client_context
from helpers.waiting import PATIENCE_S, until

from dlspark.testing.java_process import free_port
from metadata.foundation.errors import MetadataUnavailableError
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.port_kinds import (
    ENDED_AT_SECURED,
    PLAIN_AT_SECURED,
    SECURED_AT_PLAIN,
    Answer,
    KindProbe,
    PortKind,
    speaks_plain,
    speaks_tls,
)
from metadata.zookeeper.tls_socket import FixedTls

ALERT = b"\x15\x03\x03\x00\x02\x02\x28"
HELLO = b"\x16\x03"
LONG_MS = 3_600_000
Server = Callable[[bytes], bytes | None]
"""Gets the first bytes of a connection and returns the answer, behind which it ends; None: none ever comes."""


def secured(first: bytes) -> bytes | None:
    return ALERT if first.startswith(HELLO) else b""


def plain_that_is_full(first: bytes) -> bytes | None:
    """Take words in plain, and no session."""
    return b"Mode: standalone\n" if first.startswith(b"srvr") else b""


def both_while_stopping(first: bytes) -> bytes | None:
    """Take both kinds, and let no session in: what sessions by TLS send first names the host that they want."""
    if first.startswith(HELLO):
        return b"" if b"localhost" in first else ALERT
    return plain_that_is_full(first)


def hung(first: bytes) -> bytes | None:
    """End sessions, and leave questions without an answer."""
    return None if first.startswith((HELLO, b"srvr")) and b"localhost" not in first else b""


@pytest.fixture(name="tls", scope="module")
def _tls(tmp_path_factory: pytest.TempPathFactory) -> FixedTls:
    folder = KeeperAuthority().issue(tmp_path_factory.mktemp("client") / "id", "reader", "client")
    return FixedTls(client_context(folder))


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata.zookeeper.edge.ASK_EVERY_S", 0.05)


class Listening:
    """A port that does as it is told. What came first on each connection is in `heard`."""

    def __init__(self, does: Server) -> None:
        self.does = does
        self.heard: list[bytes] = []
        self._held: list[asyncio.StreamWriter] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def at(cls, does: Server) -> AsyncIterator[Listening]:
        made = cls(does)
        server = await asyncio.start_server(made._serve, "127.0.0.1", 0)
        made.port = server.sockets[0].getsockname()[1]
        try:
            yield made
        finally:
            server.close()
            for writer in made._held:
                writer.close()

    port = 0

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    @property
    def questions(self) -> int:
        """How many connections were no session's."""
        return sum(one.startswith(b"srvr") or (one.startswith(HELLO) and b"localhost" not in one) for one in self.heard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(65_536)
        self.heard.append(first)
        answer = self.does(first)
        if answer is None:
            self._held.append(writer)
            return
        with contextlib.suppress(OSError):
            writer.write(answer)
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def session_at(servers: str, tls: FixedTls | None) -> AsyncIterator[asyncio.Task[ZooKeeperStore]]:
    """Begin a session, which is given up at the end if it is not there by then."""
    connecting = asyncio.ensure_future(ZooKeeperStore.connect(servers, connect_timeout_ms=LONG_MS, tls=tls))
    try:
        yield connecting
    finally:
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)


@pytest.fixture(name="said")
def _said(caplog: pytest.LogCaptureFixture) -> Callable[[str], bool]:
    """Whether the log has a text; a session logs its trouble each time that it changes."""
    caplog.set_level(logging.WARNING, "metadata.zookeeper.client")

    def has(text: str) -> bool:
        return any(text in one.getMessage() for one in caplog.records if one.name == "metadata.zookeeper.client")

    return has


# -------------------------------------------------------------------- ensembles whose servers differ


@pytest.mark.parametrize("by_tls", [False, True])
async def test_where_every_server_is_of_the_other_kind_the_error_comes_at_once_and_names_each(
    tls: FixedTls, by_tls: bool
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        does = plain_that_is_full if by_tls else secured
        servers = [await stack.enter_async_context(Listening.at(does)) for _ in range(3)]
        connecting = ZooKeeperStore.connect(
            ",".join(one.address for one in servers), connect_timeout_ms=LONG_MS, tls=tls if by_tls else None
        )
        with pytest.raises(MetadataUnavailableError) as caught:
            await asyncio.wait_for(connecting, PATIENCE_S)
        why = SECURED_AT_PLAIN if by_tls else PLAIN_AT_SECURED
        for one in servers:
            assert f"{one.address}: {why.reason}" in str(caught.value)


@pytest.mark.parametrize("by_tls", [False, True])
async def test_while_one_is_not_there_the_session_is_tried_on_and_it_is_said_which_is_of_which_kind(
    tls: FixedTls, by_tls: bool, said: Callable[[str], bool]
) -> None:
    away = f"localhost:{free_port()}"
    async with (
        Listening.at(plain_that_is_full if by_tls else secured) as other,
        session_at(f"{other.address},{away}", tls if by_tls else None) as connecting,
    ):
        why = (SECURED_AT_PLAIN if by_tls else PLAIN_AT_SECURED).reason
        await until(lambda: said(f"{other.address}: {why}; {away}: no connection with it came about"))
        before = len(other.heard)
        await until(lambda: len(other.heard) > before + 3, "it tries on")
        assert not connecting.done()


# -------------------------------------------------------------------- ports that take both kinds


@pytest.mark.parametrize("by_tls", [False, True])
async def test_a_port_that_takes_both_is_never_said_to_be_the_wrong_one(
    tls: FixedTls, by_tls: bool, said: Callable[[str], bool]
) -> None:
    async with (
        Listening.at(both_while_stopping) as server,
        session_at(server.address, tls if by_tls else None) as connecting,
    ):
        await until(lambda: server.questions > 6, "it was asked more than once")
        if by_tls:
            await until(lambda: said(ENDED_AT_SECURED.reason), "it is said what is known")
        assert not connecting.done()
    assert not said(PLAIN_AT_SECURED.reason)
    assert not said(SECURED_AT_PLAIN.reason)


@pytest.mark.parametrize("by_tls", [False, True])
async def test_a_server_that_ends_connections_without_a_word_is_not_said_to_be_of_the_other_kind(
    tls: FixedTls, by_tls: bool, said: Callable[[str], bool]
) -> None:
    """It may be stopping, or full: what is not known is not said, and the session is tried for as long as it may be."""
    async with (
        Listening.at(lambda first: b"") as server,
        session_at(server.address, tls if by_tls else None) as connecting,
    ):
        await until(lambda: server.questions > 6, "it was asked more than once")
        assert not connecting.done()
    assert not said(PLAIN_AT_SECURED.reason)
    assert not said(SECURED_AT_PLAIN.reason)


async def test_what_was_known_of_a_server_counts_no_more_once_it_was_away(
    tls: FixedTls, said: Callable[[str], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was plain, goes away and comes back with both kinds, which lets nobody in at first."""
    monkeypatch.setattr("metadata.zookeeper.edge.ASK_EVERY_S", 3600.0)
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(Listening.at(plain_that_is_full))
        other = f"127.0.0.1:{free_port()}"  # without it, the session would be given up
        await stack.enter_async_context(session_at(f"127.0.0.1:{server.port},{other}", tls))
        await until(lambda: said(SECURED_AT_PLAIN.reason))
        server.does = secured  # another end than one without a word
        await until(lambda: said("the server refuses this process's certificate"))
        before = len(server.heard)
        server.does = lambda first: b""
        await until(lambda: len(server.heard) > before + 3)
        await until(lambda: said("it may be starting or stopping"))


# -------------------------------------------------------------------- one port


class Script:
    """A port that answers its connections one after the other, and is not there any more behind the last."""

    def __init__(self, *answers: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._answers = answers
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        for number, answer in enumerate(self._answers, 1):
            accepted, _ = self._listener.accept()
            with accepted:
                accepted.recv(65_536)
                if number == len(self._answers):
                    self._listener.close()
                accepted.sendall(answer)

    def end(self) -> None:
        self._thread.join()


@pytest.fixture(name="found")
def _found() -> Iterator[Callable[..., PortKind | None]]:
    scripts: list[Script] = []

    def found(*answers: bytes, by_tls: bool) -> PortKind | None:
        scripts.append(Script(*answers))
        probe = KindProbe("127.0.0.1", scripts[-1].port, by_tls=by_tls)
        probe._thread.join()
        return probe.found

    yield found
    for one in scripts:
        one.end()


OTHER_KIND = {
    "the other kind, all the time": (("other", "", "other", "", "other"), "other"),
    "it goes away behind the first question": (("other",), None),
    "it goes away behind the second one": (("other", ""), None),
    "it goes away in the middle": (("other", "", "other", ""), None),
    "it takes both": (("other", "own"), "both"),
    "it takes both, and was full for a moment": (("other", "", "other", "own"), "both"),
    "its own kind": (("", "own"), "own"),
    "neither": (("", ""), None),
}


@pytest.mark.parametrize("by_tls", [False, True])
@pytest.mark.parametrize("case", OTHER_KIND)
def test_only_one_that_was_there_all_the_time_is_of_the_other_kind(
    found: Callable[..., PortKind | None], case: str, by_tls: bool
) -> None:
    plain, tls = b"Mode: standalone\n", ALERT
    own, other = (tls, plain) if by_tls else (plain, tls)
    answers, expected = OTHER_KIND[case]
    kinds = {
        "own": PortKind.TLS if by_tls else PortKind.PLAIN,
        "other": PortKind.PLAIN if by_tls else PortKind.TLS,
        "both": PortKind.BOTH,
        None: None,
    }
    said = [{"own": own, "other": other, "": b""}[one] for one in answers]
    assert found(*said, by_tls=by_tls) is kinds[expected]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"\x15\x03\x01\x00\x02", Answer.UNDERSTOOD),
        (b"\x16\x03\x03", Answer.UNDERSTOOD),
        (b"\x15", Answer.ENDED),
        (b"no", Answer.ENDED),
        (b"", Answer.ENDED),
    ],
)
def test_what_answers_with_the_first_bytes_of_tls_is_known_for_it(answer: bytes, expected: Answer) -> None:
    script = Script(answer)
    assert speaks_tls("127.0.0.1", script.port) is expected
    script.end()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"srvr is not executed because it is not in the whitelist.\n", Answer.UNDERSTOOD),
        (b"This ZooKeeper instance is not currently serving requests\n", Answer.UNDERSTOOD),
        (ALERT, Answer.ENDED),
        (b"", Answer.ENDED),
    ],
)
def test_what_answers_with_words_takes_plain_connections(answer: bytes, expected: Answer) -> None:
    script = Script(answer)
    assert speaks_plain("127.0.0.1", script.port) is expected
    script.end()


def test_one_that_is_not_there_or_says_nothing_in_time_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert speaks_tls("127.0.0.1", free_port()) is Answer.NONE
    monkeypatch.setattr("metadata.zookeeper.port_kinds.ANSWER_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert speaks_plain("127.0.0.1", silent.getsockname()[1]) is Answer.NONE


# -------------------------------------------------------------------- nothing waits for an answer


@pytest.mark.parametrize("by_tls", [False, True])
async def test_a_session_that_is_given_up_while_a_server_hangs_waits_for_no_answer(
    tls: FixedTls, by_tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metadata.zookeeper.port_kinds.ANSWER_S", 3600.0)
    monkeypatch.setattr("metadata.zookeeper.port_kinds._END_S", 3600.0)
    async with Listening.at(hung) as server:
        async with session_at(server.address, tls if by_tls else None):
            await until(lambda: server.questions > 0, "it is asked")
        assert [one.name for one in threading.enumerate() if one.name == "dlspark-zookeeper-kind"] == []


@pytest.mark.parametrize("by_tls", [False, True])
async def test_a_session_goes_on_to_other_servers_while_one_hangs(
    tls: FixedTls, by_tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metadata.zookeeper.port_kinds.ANSWER_S", 3600.0)
    async with (
        Listening.at(hung) as server,
        Listening.at(lambda first: b"") as other,
        session_at(f"{server.address},{other.address}", tls if by_tls else None),
    ):
        await until(lambda: len(server.heard) > 6 and len(other.heard) > 6)
        assert server.questions == 1, "and it is asked one question at a time"


def test_an_attempt_at_a_connection_for_a_question_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers at all: where a machine is down, nothing comes back for minutes."""
    monkeypatch.setattr("metadata.zookeeper.port_kinds.ANSWER_S", 3600.0)
    monkeypatch.setattr("metadata.zookeeper.port_kinds._END_S", 3600.0)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        probe = KindProbe(*full.getsockname(), by_tls=False)
        while probe._asking is None:
            pass
        probe.end()
        assert probe.ended
        assert probe.found is None
        for one in waiting:
            one.close()
