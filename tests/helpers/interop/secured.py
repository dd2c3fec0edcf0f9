"""Keys of upstream's that secure both libraries alike, and the files that they name."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from helpers.security.minting import MintedAuthority, MintedPair, write_folder

HOSTS = ["127.0.0.1", "localhost"]
BY_ROLE = "org.apache.bookkeeper.tls.BookieAuthZFactory"
SASL_OF_NODES = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
SASL_OF_CLIENTS = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
SWITCH = {
    "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
    "tlsClientAuthentication": "true",
}
Keys = Mapping[str, str]


def pem_keys(folder: Path, pair: MintedPair, authority: MintedAuthority) -> Keys:
    write_folder(folder, pair, authority.pem)
    return {
        **SWITCH,
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": str(folder / "key.pem"),
        "tlsCertificatePath": str(folder / "certificate.pem"),
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": str(folder / "authorities.pem"),
    }


def store_keys(kind: str, folder: Path, pair: MintedPair, authority: MintedAuthority) -> Keys:
    """Make stores of Java's with Java's own tool."""
    folder.mkdir(parents=True)
    (folder / "password").write_text("changeit")
    (folder / "authority.pem").write_bytes(authority.pem)
    how = serialization.BestAvailableEncryption(b"changeit")
    whole = pkcs12.serialize_key_and_certificates(b"me", pair.key, pair.certificate, [authority.certificate], how)
    (folder / "pair.p12").write_bytes(whole)
    passwords = ["-srcstorepass", "changeit", "-deststorepass", "changeit"]
    from_pair = ["-importkeystore", "-srckeystore", "pair.p12", "-srcstoretype", "pkcs12", *passwords]
    _keytool(folder, *from_pair, "-destkeystore", "keys", "-deststoretype", kind)
    trusted = ["-importcert", "-noprompt", "-alias", "authority", "-file", "authority.pem", "-storepass", "changeit"]
    _keytool(folder, *trusted, "-keystore", "trust", "-storetype", kind)
    return {
        **SWITCH,
        "tlsKeyStoreType": kind.upper(),
        "tlsKeyStore": str(folder / "keys"),
        "tlsKeyStorePasswordPath": str(folder / "password"),
        "tlsTrustStoreType": kind.upper(),
        "tlsTrustStore": str(folder / "trust"),
        "tlsTrustStorePasswordPath": str(folder / "password"),
    }


def _keytool(folder: Path, *arguments: str) -> None:
    subprocess.run(["keytool", *arguments], cwd=folder, check=True, capture_output=True)
