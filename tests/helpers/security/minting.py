"""Certificates of every kind, good and bad: `MintedAuthority` makes what no proper authority would.

Tests that need good ones only get them with a line: `MintedAuthority().folder(path, "node-1", hosts=["localhost"])`.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from metadata.security.identity import AUTHORITIES_FILE, CERTIFICATE_FILE, KEY_FILE, REVOKED_FILE
from metadata.security.settings import SecuritySettings

DAY = timedelta(days=1)
CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER = ExtendedKeyUsageOID.SERVER_AUTH
PEM = serialization.Encoding.PEM


def now() -> datetime:
    """Return this moment, in whole seconds."""
    return datetime.now(timezone.utc).replace(microsecond=0)


@dataclass(frozen=True)
class MintedPair:
    """A certificate, with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(PEM)

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def key_pem(self) -> bytes:
        return self.key_with_password(None)

    def key_with_password(self, password: bytes | None) -> bytes:
        how = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        return self.key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, how)


class MintedAuthority:
    """An authority of a test, with its own key. `says_key`: what it signs says by which key, as RFC 5280 demands it."""

    def __init__(
        self, name: str = "Authority of tests", signed_by: MintedAuthority | None = None, *, says_key: bool = False
    ) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = _name([(NameOID.COMMON_NAME, name)])
        self.says_key = says_key
        self.certificate = (signed_by or self)._signed(self)

    def _signed(self, below: MintedAuthority, ends: datetime | None = None) -> x509.Certificate:
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = (
            _builder(below.name, self.name, below.key, now() - 20 * DAY, ends or now() + 3650 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
        )
        if below.says_key:
            own = x509.SubjectKeyIdentifier.from_public_key(below.key.public_key())
            builder = builder.add_extension(own, critical=False)
        if self.says_key and self is not below:
            builder = builder.add_extension(self._key_said(), critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def _key_said(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())

    def renewed(self, signed_by: MintedAuthority | None = None, ends: datetime | None = None) -> MintedAuthority:
        """Return the same authority, of the same key, with another certificate. `signed_by`: itself, unless given."""
        again = MintedAuthority.__new__(MintedAuthority)
        again.key, again.name, again.says_key = self.key, self.name, self.says_key
        again.certificate = (signed_by or again)._signed(again, ends)
        return again

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(PEM)

    def issue(
        self,
        name: str | None,
        *,
        roles: Sequence[str] = (),
        hosts: Sequence[str] = (),
        uris: Sequence[str] = (),
        begins: datetime | None = None,
        ends: datetime | None = None,
        usages: Sequence[x509.ObjectIdentifier] = (CLIENT, SERVER),
        names: Sequence[tuple[x509.ObjectIdentifier, str]] = (),
        key: ec.EllipticCurvePrivateKey | None = None,
        serial: int | None = None,
    ) -> MintedPair:
        """Make a certificate. `names`: more parts of the subject."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        parts = [(NameOID.ORGANIZATIONAL_UNIT_NAME, role) for role in roles]
        parts += [*names, *([(NameOID.COMMON_NAME, name)] if name is not None else [])]
        begins, ends = begins or now() - 10 * DAY, ends or now() + 90 * DAY
        builder = _builder(_name(parts), self.name, key, begins, ends, serial)
        alternatives = [_host(host) for host in hosts] + [x509.UniformResourceIdentifier(uri) for uri in uris]
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        if usages:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if self.says_key:
            builder = builder.add_extension(self._key_said(), critical=False)
        return MintedPair(builder.sign(self.key, hashes.SHA256()), key)

    def revoke(
        self,
        *pairs: MintedPair,
        begins: datetime | None = None,
        ends: datetime | None = None,
        signed_by: object = None,
        part: str = "",
    ) -> bytes:
        """Return a list, PEM, of what is revoked. `part`: the address of the part that it is about."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.name)
            .last_update(begins or now() - DAY)
            .next_update(ends or now() + 30 * DAY)
        )
        for pair in pairs:
            entry = x509.RevokedCertificateBuilder().serial_number(pair.certificate.serial_number)
            builder = builder.add_revoked_certificate(entry.revocation_date(now() - DAY).build())
        if part:
            name = [x509.UniformResourceIdentifier(part)]
            point = x509.IssuingDistributionPoint(name, None, False, False, None, False, False)
            builder = builder.add_extension(point, critical=True)
        if self.says_key:
            builder = builder.add_extension(self._key_said(), critical=False)
        other = signed_by.key if isinstance(signed_by, MintedAuthority) else self.key
        return builder.sign(other, hashes.SHA256()).public_bytes(PEM)

    def cross(self, other: MintedAuthority) -> MintedAuthority:
        """Return another authority with a certificate that this one has signed, beside its own."""
        return other.renewed(signed_by=self)

    def folder(self, path: Path, name: str | None = "node-1", *, revoked: bytes | None = None, **given: object) -> Path:
        """Make an identity folder with a new certificate."""
        return write_folder(path, self.issue(name, **given), self.pem, revoked)  # type: ignore[arg-type]


def write_folder(path: Path, pair: MintedPair, authorities: bytes, revoked: bytes | None = None) -> Path:
    """Write an identity folder."""
    path.mkdir(parents=True, exist_ok=True)
    replace_file(path / CERTIFICATE_FILE, pair.certificate_pem)
    replace_file(path / KEY_FILE, pair.key_pem)
    replace_file(path / AUTHORITIES_FILE, authorities)
    if revoked is not None:
        replace_file(path / REVOKED_FILE, revoked)
    return path


def secured_by(folder: Path) -> SecuritySettings:
    """Return the settings of a process that proves itself with an identity folder."""
    return SecuritySettings(security="on", security_directory=str(folder))


def replace_file(path: Path, content: bytes) -> None:
    """Put a file in another's place at once, as one should."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.chmod(0o600)
    os.replace(new, path)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begins: datetime,
    ends: datetime,
    serial: int | None = None,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(serial or x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _name(parts: Sequence[tuple[x509.ObjectIdentifier, str]]) -> x509.Name:
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in parts])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
