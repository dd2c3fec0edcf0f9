"""Stores of Java's two kinds give their key and certificates, or say why not; nothing of a key leaves memory.

That real stores are as these ones: test_real_key_stores.py.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, NoEncryption, pkcs12
from helpers.security.handshakes import shake_hands
from helpers.security.java_stores import entry_head, java_key_store, java_trust_store, signed, sized, text
from helpers.security.minting import MintedAuthority, MintedPair

from metadata.security.certificates import pem_blocks
from metadata.security.errors import IdentityError, NoExtraError
from metadata.security.identity import TlsFiles, TlsIdentity
from metadata.security.settings import SecuritySettings, client_identity, server_identity
from metadata.security.stores import StoreError, authorities_of_store, key_of_store, read_store

PASSWORD = "geh€im"
WORDS = PASSWORD.encode()


@pytest.fixture(scope="module")
def authority() -> MintedAuthority:
    return MintedAuthority()


@pytest.fixture(scope="module")
def pair(authority: MintedAuthority) -> MintedPair:
    return authority.issue("node-1", roles=["node"], hosts=["localhost"])


def above(authority: MintedAuthority) -> bytes:
    return pem_blocks(authority.pem)[0].body


def pkcs12_store(pair: MintedPair, authority: MintedAuthority, password: bytes | None = WORDS) -> bytes:
    how = BestAvailableEncryption(password) if password else NoEncryption()
    return pkcs12.serialize_key_and_certificates(b"mykey", pair.key, pair.certificate, [authority.certificate], how)


def pkcs12_trust(authority: MintedAuthority) -> bytes:
    return pkcs12.serialize_java_truststore(
        [pkcs12.PKCS12Certificate(authority.certificate, b"ca")], BestAvailableEncryption(WORDS)
    )


@pytest.mark.parametrize("kind", ["jks", "pkcs12"])
def test_stores_are_as_good_as_files(tmp_path: Path, authority: MintedAuthority, pair: MintedPair, kind: str) -> None:
    """With upstream's own keys, from the settings to a handshake."""
    keys, trust = tmp_path / "keys", tmp_path / "trust"
    jks = kind == "jks"
    keys.write_bytes(java_key_store(pair, PASSWORD, above=[above(authority)]) if jks else pkcs12_store(pair, authority))
    trust.write_bytes(java_trust_store([above(authority)], PASSWORD) if jks else pkcs12_trust(authority))
    (tmp_path / "password").write_text(PASSWORD + "\n")
    settings = SecuritySettings(
        tls_provider_factory_class="org.apache.bookkeeper.tls.TLSContextFactory",
        tls_client_authentication=True,
        tls_key_store_type=kind,
        tls_key_store=str(keys),
        tls_key_store_password_path=str(tmp_path / "password"),
        tls_trust_store_type=kind,
        tls_trust_store=str(trust),
        tls_trust_store_password_path=str(tmp_path / "password"),
    )
    server, client = server_identity(settings), client_identity(settings)
    assert server is not None
    assert client is not None
    ends = shake_hands(server.server_context(), client.client_context())
    assert server.principal(ends.server).name == "node-1"
    second = authority.issue("node-2", hosts=["localhost"])
    keys.write_bytes(java_key_store(second, PASSWORD) if jks else pkcs12_store(second, authority))
    assert server.refresh()
    shake_hands(server.server_context(), client.client_context())
    assert "PRIVATE" not in repr(server.material)
    assert "PRIVATE" not in repr(read_store(keys.read_bytes(), WORDS))


def test_what_a_file_is_shows_in_it_and_not_in_its_type(
    tmp_path: Path, authority: MintedAuthority, pair: MintedPair
) -> None:
    """keytool writes PKCS #12 for years, and people name it .jks; Java reads both as either."""
    (tmp_path / "keys.jks").write_bytes(pkcs12_store(pair, authority))
    (tmp_path / "trust.p12").write_bytes(java_trust_store([above(authority)], PASSWORD))
    (tmp_path / "password").write_text(PASSWORD)
    files = TlsFiles(
        key=str(tmp_path / "keys.jks"),
        key_type="jks",
        key_password=str(tmp_path / "password"),
        authorities=str(tmp_path / "trust.p12"),
        authorities_type="pkcs12",
        authorities_password=str(tmp_path / "password"),
    )
    identity = TlsIdentity(files)
    shake_hands(identity.server_context(), identity.client_context())


def test_a_store_without_a_password_needs_none(authority: MintedAuthority, pair: MintedPair) -> None:
    key, chain = key_of_store(pkcs12_store(pair, authority, None), None)
    assert key == pair.key_pem
    assert chain == pair.certificate_pem + authority.pem


@pytest.mark.parametrize("password", [None, b"", b"wrong", b"\xff"])
@pytest.mark.parametrize("kind", ["jks", "pkcs12"])
def test_another_password_opens_nothing(
    authority: MintedAuthority, pair: MintedPair, kind: str, password: bytes | None
) -> None:
    content = java_key_store(pair, PASSWORD) if kind == "jks" else pkcs12_store(pair, authority)
    with pytest.raises(StoreError, match="password") as refused:
        key_of_store(content, password)
    assert refused.value.__cause__ is None
    assert "wrong" not in str(refused.value)


def stores(authority: MintedAuthority, pair: MintedPair) -> dict[str, tuple[bytes, str]]:
    keys = java_key_store(pair, PASSWORD)
    entry = keys[12:-20]
    trusted = java_trust_store([above(authority)], PASSWORD)[12:-20]
    return {
        "text": (b"hello, I am a store", "neither JKS nor PKCS12"),
        "nothing": (b"", "neither JKS nor PKCS12"),
        "JCEKS": (b"\xce\xce\xce\xce" + keys[4:], "JCEKS"),
        "two keys": (signed(2, entry + entry, PASSWORD), "2 private keys"),
        "a trust store": (java_trust_store([above(authority)], PASSWORD), "no private key"),
        "a trust store of PKCS12": (pkcs12_trust(authority), "no private key"),
        "a key of another password": (java_key_store(pair, PASSWORD, key_password="other"), "another password than"),
        "more than its entries": (signed(1, entry + b"x", PASSWORD), "more in it"),
        "fewer than its entries": (signed(3, entry + trusted, PASSWORD), "longer than the file"),
        "an unknown entry": (signed(1, entry_head(3, "x") + sized(b""), PASSWORD), "kind 3"),
        "a strange certificate": (signed(1, entry_head(2, "x") + text("PGP") + sized(b""), PASSWORD), "not X.509"),
        "a damaged key": (
            signed(1, entry_head(1, "x") + sized(b"\x30\x00") + b"\0\0\0\0", PASSWORD),
            "its key is damaged",
        ),
        "a million entries": (signed(1_000_000, b"", PASSWORD), "1000000 entries"),
    }


@pytest.mark.parametrize("kind", stores(MintedAuthority(), MintedAuthority().issue("x")))
def test_a_store_that_cannot_be_used_says_why(authority: MintedAuthority, pair: MintedPair, kind: str) -> None:
    content, reason = stores(authority, pair)[kind]
    with pytest.raises(StoreError, match=reason):
        key_of_store(content, WORDS)


def test_a_peer_s_own_store_believes_that_peer(authority: MintedAuthority, pair: MintedPair) -> None:
    """As in BookKeeper's own tests: pairs sign themselves, and each side trusts a copy of the other's store."""
    peer = MintedPair(authority.certificate, authority.key)
    alone = pkcs12.serialize_key_and_certificates(
        b"peer", peer.key, peer.certificate, None, BestAvailableEncryption(WORDS)
    )
    for content in (java_key_store(peer, PASSWORD), alone):
        assert authorities_of_store(content, WORDS) == authority.pem
    entries = java_key_store(peer, PASSWORD)[12:-20] + java_trust_store([pair.der], PASSWORD)[12:-20]
    assert authorities_of_store(signed(2, entries, PASSWORD), WORDS) == authority.pem + pair.certificate_pem


def test_a_store_with_an_issued_key_believes_nobody(authority: MintedAuthority, pair: MintedPair) -> None:
    """Who issued one's own certificate may have issued those of the whole world."""
    with pytest.raises(StoreError, match="it has a private key"):
        authorities_of_store(java_key_store(pair, PASSWORD), WORDS)
    for content in (java_key_store(pair, PASSWORD, above=[above(authority)]), pkcs12_store(pair, authority)):
        with pytest.raises(StoreError, match="it has a private key"):
            authorities_of_store(content, WORDS)
    with pytest.raises(StoreError, match="no certificate"):
        authorities_of_store(java_trust_store([], PASSWORD), WORDS)


def test_damaged_stores_are_errors_and_nothing_else(authority: MintedAuthority, pair: MintedPair) -> None:
    chance = random.Random(11)
    entries = java_key_store(pair, PASSWORD, above=[above(authority)])[12:-20]
    for _ in range(300):
        damaged = bytearray(entries)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            read_store(signed(1, bytes(damaged), PASSWORD), WORDS)
        except StoreError:
            pass


def test_the_error_names_the_file_and_not_the_password(
    tmp_path: Path, authority: MintedAuthority, pair: MintedPair
) -> None:
    (tmp_path / "keys").write_bytes(java_key_store(pair, "other"))
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    (tmp_path / "password").write_text(PASSWORD)
    files = TlsFiles(
        key=str(tmp_path / "keys"),
        key_type="jks",
        key_password=str(tmp_path / "password"),
        authorities=str(tmp_path / "ca.pem"),
    )
    with pytest.raises(IdentityError, match="the store cannot be used") as refused:
        TlsIdentity(files)
    assert refused.value.path == str(tmp_path / "keys")
    assert PASSWORD not in str(refused.value)


def test_without_the_library_the_error_names_the_extra(
    authority: MintedAuthority, pair: MintedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = pkcs12_store(pair, authority)
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.serialization", None)
    with pytest.raises(NoExtraError, match=r"dlspark\[security\]"):
        read_store(content, WORDS)
    assert read_store(java_trust_store([], PASSWORD), WORDS).believed == ()


def test_a_key_that_everybody_may_read_is_warned_of(
    tmp_path: Path, authority: MintedAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    folder = authority.folder(tmp_path / "id")
    TlsIdentity(TlsFiles.of_folder(folder))
    assert not caplog.messages
    os.chmod(folder / "key.pem", 0o644)
    TlsIdentity(TlsFiles.of_folder(folder))
    assert "everybody on this host may read" in caplog.text
