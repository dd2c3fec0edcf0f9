"""What a peer has shown beside its certificate is known on the connection, and an authority in between that is revoked
later ends it."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import ssl
from pathlib import Path

import pytest
from helpers.security.handshakes import Connected, shake_hands
from helpers.security.minting import MintedAuthority, MintedPair, replace_file, write_folder

from metadata.security.identity import CERTIFICATE_FILE, REVOKED_FILE, TlsFiles, TlsIdentity
from metadata.security.shown_certificates import _warn_once, shown_beside
from metadata.zookeeper.edge import LoopHandler
from metadata.zookeeper.tls_socket import ServerRefusedError, SessionTlsSocket


class Below:
    """Two ends whose certificates are of an authority below the root that both believe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = MintedAuthority("Root", says_key=True)
        self.between = MintedAuthority("Between", self.root, says_key=True)
        self.pair = self.between.issue("one", hosts=["localhost"])
        self.place = write_folder(folder / "one", self.pair, self.root.pem, self.lists())
        replace_file(self.place / CERTIFICATE_FILE, self.pair.certificate_pem + self.between.pem)
        self.identity = TlsIdentity(TlsFiles.of_folder(self.place))

    def lists(self, *revoked: MintedPair) -> bytes:
        return self.root.revoke(*revoked) + self.between.revoke()

    def connect(self, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> Connected:
        client = self.identity.client_context()
        client.maximum_version = version
        return shake_hands(self.identity.server_context(), client)

    def der(self) -> bytes:
        return MintedPair(self.between.certificate, self.between.key).der


@pytest.fixture(name="below")
def _below(tmp_path: Path) -> Below:
    return Below(tmp_path)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("end", ["client", "server"])
def test_an_authority_in_between_that_is_revoked_later_ends_what_is_open(
    below: Below, version: ssl.TLSVersion, end: str
) -> None:
    shown = shown_beside(getattr(below.connect(version), end))
    assert shown == (below.der(),)
    assert below.identity.judge(below.pair.der, shown=shown) is None
    replace_file(below.place / REVOKED_FILE, below.lists(MintedPair(below.between.certificate, below.between.key)))
    assert below.identity.refresh()
    assert below.identity.judge(below.pair.der) is None
    why = below.identity.judge(below.pair.der, shown=shown)
    assert why == "its authority, CN=Between, is not good: its authority, CN=Root, has revoked it"


def test_a_peer_without_a_certificate_shows_nothing(below: Below) -> None:
    files = TlsFiles(**{**_named(below), "peers_prove": False})
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=below.root.pem.decode())
    assert shown_beside(shake_hands(TlsIdentity(files).server_context(), client).server) is None


def _named(below: Below) -> dict[str, str]:
    of_folder = TlsFiles.of_folder(below.place)
    return {name: getattr(of_folder, name) for name in ("certificate", "key", "authorities")}


class Changed:
    """A connection of a Python that says something else than those of today."""

    def __init__(self, own: bytes, chain: object) -> None:
        self._own, self._chain = own, chain

    def getpeercert(self, _: bool) -> bytes:
        return self._own

    def get_unverified_chain(self) -> object:
        if isinstance(self._chain, Exception):
            raise self._chain
        return self._chain


@pytest.mark.parametrize("chain", [None, 7, [b"another"], ["text"], AttributeError("gone"), []])
def test_what_is_not_known_is_not_guessed(chain: object, caplog: pytest.LogCaptureFixture) -> None:
    _warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert shown_beside(Changed(b"own", chain)) is None  # type: ignore[arg-type]
        assert shown_beside(Changed(b"own", chain)) is None  # type: ignore[arg-type]
    assert caplog.text.count("is not known here") == (0 if chain == [] else 1)
    assert shown_beside(Changed(b"own", [b"own", b"above"])) == (b"above",)  # type: ignore[arg-type]


def test_a_python_without_it_judges_the_peers_own_alone() -> None:
    class Without:
        def getpeercert(self, _: bool) -> bytes:
            return b"own"

    assert shown_beside(Without()) is None  # type: ignore[arg-type]


async def test_a_session_with_zookeeper_ends_as_well(below: Below) -> None:
    ours, theirs = socket.socketpair()
    context = below.identity.server_context()
    shaking = asyncio.ensure_future(asyncio.to_thread(context.wrap_socket, theirs, server_side=True))
    ours.setblocking(False)
    session = SessionTlsSocket(ours, below.identity.client_context(), "localhost", lambda _: None)
    await asyncio.to_thread(session.shake_hands, lambda connection: select.select([connection], [], []))
    handler = LoopHandler(asyncio.get_running_loop(), tls=below.identity)
    handler._socket = session
    handler._judge_server()
    replace_file(below.place / REVOKED_FILE, below.lists(MintedPair(below.between.certificate, below.between.key)))
    handler._judge_at = 0.0
    with pytest.raises(ServerRefusedError, match="CN=Between, is not good"):
        handler._judge_server()
    session.close()
    (await shaking).close()
