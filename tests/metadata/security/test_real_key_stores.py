"""Stores that Java's own keytool and openssl have made are read as they were meant."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.security.handshakes import shake_hands
from helpers.security.minting import MintedAuthority

from metadata.security.identity import TlsFiles, TlsIdentity
from metadata.security.stores import read_store

PASSWORD = "changeit-1"
KEYTOOL, OPENSSL = shutil.which("keytool"), shutil.which("openssl")


def run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=120)


@pytest.mark.skipif(KEYTOOL is None, reason="there is no keytool")
@pytest.mark.parametrize(("kind", "algorithm"), [("jks", "RSA"), ("pkcs12", "EC")])
def test_keytool_s_stores_are_read(tmp_path: Path, kind: str, algorithm: str) -> None:
    """As the pages of Apache BookKeeper have it: a pair that signs itself, exported and believed."""
    store = ("-storetype", kind, "-storepass", PASSWORD, "-noprompt", "-alias", "node-1")
    keys, trust, exported = tmp_path / "keys", tmp_path / "trust", tmp_path / "node.crt"
    run(
        *(KEYTOOL, "-genkeypair", "-keystore", keys, *store, "-keyalg", algorithm, "-validity", 90),
        *("-dname", "CN=node-1, OU=node, O=Example", "-ext", "san=dns:localhost"),
    )
    run(KEYTOOL, "-exportcert", "-keystore", keys, *store, "-file", exported)
    run(KEYTOOL, "-importcert", "-keystore", trust, *store, "-file", exported)
    (tmp_path / "password").write_text(PASSWORD)
    identity = TlsIdentity(
        TlsFiles(
            key=str(keys),
            key_type=kind,
            key_password=str(tmp_path / "password"),
            authorities=str(trust),
            authorities_type=kind,
            authorities_password=str(tmp_path / "password"),
        )
    )
    ends = shake_hands(identity.server_context(), identity.client_context())
    found = identity.principal(ends.server)
    assert (found.name, found.roles) == ("node-1", {"node"})


@pytest.mark.skipif(OPENSSL is None, reason="there is no openssl")
@pytest.mark.parametrize("more", [(), ("-legacy",), ("-nodes",)])
def test_openssl_s_stores_are_read(tmp_path: Path, more: tuple[str, ...]) -> None:
    authority = MintedAuthority()
    pair = authority.issue("node-1", hosts=["localhost"])
    for name, content in (("c.pem", pair.certificate_pem), ("k.pem", pair.key_pem), ("ca.pem", authority.pem)):
        (tmp_path / name).write_bytes(content)
    run(
        *(OPENSSL, "pkcs12", "-export", "-in", tmp_path / "c.pem", "-inkey", tmp_path / "k.pem"),
        *("-certfile", tmp_path / "ca.pem", "-out", tmp_path / "s.p12", "-passout", f"pass:{PASSWORD}", *more),
    )
    found = read_store((tmp_path / "s.p12").read_bytes(), PASSWORD.encode())
    assert found.key == pair.key_pem
    assert found.chain == pair.certificate_pem + authority.pem
