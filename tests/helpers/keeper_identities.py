"""Certificates for tests of ZooKeeper: an authority of a test's own, and folders with identities as of `dlspark tls`.

Keys are PKCS#8, and certificates have both uses, as servers of an ensemble are each other's clients.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HOUR = datetime.timedelta(hours=1)


class KeeperAuthority:
    """Who signs the certificates of a test?"""

    def __init__(self, name: str = "authority of the test") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = _now()
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - HOUR)
            .not_valid_after(now + 24 * HOUR)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_signs(), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        """The authority's certificate."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        folder: Path,
        name: str = "zookeeper-1",
        role: str = "zookeeper",
        *,
        hosts: tuple[str, ...] = ("127.0.0.1", "localhost"),
        starts: datetime.timedelta = -HOUR,
        ends: datetime.timedelta = 12 * HOUR,
        trusts: bytes = b"",
    ) -> Path:
        """Write an identity into a folder, which may have another one; its subject is `CN=name,OU=role`."""
        key = ec.generate_private_key(ec.SECP256R1())
        # The last part of a subject stands first in RFC 2253.
        unit, common = (
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        )
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([unit, common]))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_now() + starts)
            .not_valid_after(_now() + ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        for file, content in (
            ("key.pem", written),
            ("certificate.pem", certificate.public_bytes(serialization.Encoding.PEM)),
            ("authorities.pem", trusts or self.pem),
        ):
            (folder / file).write_bytes(content)
            (folder / file).chmod(0o600)
        return folder


def client_context(folder: Path, *, with_certificate: bool = True) -> ssl.SSLContext:
    """Return a client's context by an identity's folder, which checks names."""
    context = ssl.create_default_context(cafile=folder / "authorities.pem")
    if with_certificate:
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


class FolderTls:
    """What does a folder hold at this moment? Each connection of a session takes it anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked = 0

    def client_context(self) -> ssl.SSLContext:
        """Return a context by the files as they are."""
        return client_context(self.folder)

    def refresh(self) -> bool:
        """Count the question."""
        self.asked += 1
        return True

    def judge(self, der: bytes, *, shown: Sequence[bytes] | None = None) -> str | None:
        """Return None: the handshake's word holds."""
        return None


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _signs() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
