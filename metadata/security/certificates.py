"""What a certificate and a revocation list say: names, numbers and times, read without a library.

OpenSSL has verified a peer's certificate before it is read here; these facts say who it is, when it ends, and whether a
list names it. Files are PEM. Formats: RFC 5280 (certificates and lists), RFC 7468 (PEM), RFC 4514 (names as texts).
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Final, TypeAlias

from metadata.security.der import BIT_STRING, INTEGER, OCTET_STRING, SEQUENCE, SET, DerError, Element, only_element

CERTIFICATE: Final = "CERTIFICATE"
REVOCATIONS: Final = "X509 CRL"
MAX_CERTIFICATE_BYTES: Final = 64 * 1024
KEY_LABELS: Final = ("PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY")

_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----[ \t]*\r?\n(.*?)-----END \1-----", re.DOTALL)
_BEGIN: Final = re.compile(rb"^-----BEGIN ", re.MULTILINE)
_NOT_BASE64: Final = re.compile(rb"[^A-Za-z0-9+/=]")

_SHORT_NAMES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_SUBJECT_ALTERNATIVES: Final = "2.5.29.17"
_BASIC_CONSTRAINTS: Final = "2.5.29.19"
_SUBJECT_KEY: Final = "2.5.29.14"
_AUTHORITY_KEY: Final = "2.5.29.35"
_KEY_ID: Final = 0x80
_EMAIL, _DNS, _URI, _ADDRESS = 0x81, 0x82, 0x86, 0x87
_EXTENSIONS: Final = 0xA3
_LIST_EXTENSIONS: Final = 0xA0
_VERSION: Final = 0xA0

Name: TypeAlias = tuple[frozenset[tuple[str, str]], ...]
"""A distinguished name to compare by: sets of (attribute, value), as RFC 5280 section 7.1 has two names be one."""


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """Whose certificate is it, who has signed it, and when does it hold?"""

    serial: int
    issuer: Name
    issuer_text: str
    subject: Name
    subject_text: str
    """As RFC 4514 writes it, the most special part first: `CN=node-1,OU=node,O=Example`."""
    attributes: tuple[tuple[str, str], ...]
    """The parts of the subject in the certificate's order: `("OU", "node")`; others than the usual ones by number."""
    not_before_s: float
    not_after_s: float
    dns_names: tuple[str, ...]
    addresses: tuple[str, ...]
    uris: tuple[str, ...]
    emails: tuple[str, ...]
    is_authority: bool
    fingerprint: str
    """SHA-256 of the whole certificate, in hexadecimal digits."""
    key: bytes
    """The public key with its algorithm, DER (`SubjectPublicKeyInfo`)."""
    key_id: bytes | None = None
    """By which others name this key (`subjectKeyIdentifier`); None: it does not say."""
    authority_key_id: bytes | None = None
    """Which key of its authority has signed it (`authorityKeyIdentifier`); None: it does not say."""

    def may_be_signed_by(self, issuer: Name, key_id: bytes | None) -> bool:
        """Return whether one of this name and key may have signed it. Authorities may share a name, and the numbers of
        their keys tell them apart, where both sides say them: so OpenSSL has it, which verifies the signature."""
        return self.issuer == issuer and (None in (key_id, self.authority_key_id) or key_id == self.authority_key_id)

    def ends_soon(self, now_s: float) -> bool:
        """Return whether less than a third of its time is left."""
        return self.not_after_s - now_s < (self.not_after_s - self.not_before_s) / 3

    def parts(self, attribute: str) -> tuple[str, ...]:
        """Return the values of one attribute of the subject: "CN", "OU"."""
        return tuple(value for name, value in self.attributes if name == attribute)


@dataclass(frozen=True, slots=True)
class RevocationList:
    """Which certificates of one authority are not good any more?"""

    issuer: Name
    issuer_text: str
    this_update_s: float
    next_update_s: float | None
    """None: the list does not say when the next one comes."""
    serials: frozenset[int]
    part: bytes = b""
    """Which of the authority's certificates it is about, as it says it (`issuingDistributionPoint`); empty: all."""
    authority_key_id: bytes | None = None
    """Which key of the authority has signed it, as in certificates; None: it does not say."""

    def ends_soon(self, now_s: float) -> bool:
        """Return whether less than a third of its time is left."""
        end = self.next_update_s
        return end is not None and end - now_s < (end - self.this_update_s) / 3


@dataclass(frozen=True, slots=True)
class PemBlock:
    """What stands between one BEGIN and its END?"""

    label: str
    body: bytes
    """Decoded."""
    text: bytes
    """With its lines of BEGIN and END, and a line's end."""


def pem_blocks(content: bytes) -> list[PemBlock]:
    """Return the blocks of a PEM file; what stands between them is skipped.

    Raises ValueError for a block that is not closed or not base64: a file that is being written ends in one.
    """
    found: list[PemBlock] = []
    for match in _BLOCK.finditer(content):
        text = match[0] + b"\n"
        # Old private keys have header lines, which say how they are encrypted; only OpenSSL reads these.
        body = b"" if b":" in match[2] else _decoded(match[2])
        found.append(PemBlock(match[1].decode("ascii"), body, text))
    if len(found) != len(_BEGIN.findall(content)):
        raise ValueError("a block of PEM has no end: the file is damaged, or being written")
    return found


def _decoded(body: bytes) -> bytes:
    compact = b"".join(body.split())
    if _NOT_BASE64.search(compact):
        raise ValueError("a block of PEM is not base64")
    try:
        return base64.b64decode(compact, validate=True)
    except binascii.Error as error:
        raise ValueError("a block of PEM is not base64") from error


def pem_text(label: str, body: bytes) -> bytes:
    """Return bytes as a block of PEM."""
    lines = base64.encodebytes(body).replace(b"\n", b"")
    wrapped = b"".join(lines[at : at + 64] + b"\n" for at in range(0, len(lines), 64))
    head = label.encode("ascii")
    return b"-----BEGIN " + head + b"-----\n" + wrapped + b"-----END " + head + b"-----\n"


@lru_cache(maxsize=1024)  # connections ask for theirs again every few seconds
def read_certificate(der: bytes) -> CertificateFacts:
    """Return what a certificate says. Raises ValueError for what is none."""
    if len(der) > MAX_CERTIFICATE_BYTES:
        raise DerError(f"a certificate of more than {MAX_CERTIFICATE_BYTES} bytes is not read")
    signed = _signed_part(der)
    if signed and signed[0].tag == _VERSION:
        del signed[0]
    if len(signed) < 6:
        raise DerError("a certificate lacks fields")
    serial, _, issuer, validity, subject, key = signed[:6]
    times = validity.expect(SEQUENCE).children()
    if len(times) != 2:
        raise DerError("a certificate's validity is not two times")
    found = _read_extensions(signed[6:])
    attributes = _attributes(subject)
    return CertificateFacts(
        serial=serial.integer(),
        issuer=_comparable(_parts(issuer)),
        issuer_text=name_text(_parts(issuer)),
        subject=_comparable(_parts(subject)),
        subject_text=name_text(_parts(subject)),
        attributes=attributes,
        not_before_s=times[0].time_s(),
        not_after_s=times[1].time_s(),
        dns_names=tuple(_ia5(one) for one in found.alternatives if one.tag == _DNS),
        addresses=tuple(_address(one) for one in found.alternatives if one.tag == _ADDRESS),
        uris=tuple(_ia5(one) for one in found.alternatives if one.tag == _URI),
        emails=tuple(_ia5(one) for one in found.alternatives if one.tag == _EMAIL),
        is_authority=found.is_authority,
        fingerprint=sha256(der).hexdigest(),
        key=key.whole,
        key_id=found.key_id,
        authority_key_id=found.authority_key_id,
    )


def read_revocations(der: bytes) -> RevocationList:
    """Return what a revocation list says; its signature is not verified (OpenSSL does, in each handshake).

    Raises ValueError for what is none, and for a list of changes only (RFC 5280, 5.2.4), which alone says too little.
    """
    signed = _signed_part(der)
    if signed and signed[0].tag == INTEGER:
        del signed[0]
    if len(signed) < 3:
        raise DerError("a revocation list lacks fields")
    _, issuer, this_update, *rest = signed
    next_update_s = None
    if rest and rest[0].tag not in (SEQUENCE, _LIST_EXTENSIONS):
        next_update_s = rest.pop(0).time_s()
    entries = rest.pop(0).children() if rest and rest[0].tag == SEQUENCE else []
    part, key_id = b"", None
    for number, value in _extensions(rest, _LIST_EXTENSIONS):
        if number == "2.5.29.27":
            raise DerError("a revocation list has changes only, not all that is revoked")
        if number == "2.5.29.28":
            part = value
        elif number == _AUTHORITY_KEY:
            key_id = _authority_key(value)
    serials: set[int] = set()
    for entry in entries:
        fields = entry.expect(SEQUENCE).children()
        if not fields:
            raise DerError("an entry of a revocation list is empty")
        serials.add(fields[0].integer())
    parts = _parts(issuer)
    issued_s = this_update.time_s()
    name = _comparable(parts)
    return RevocationList(name, name_text(parts), issued_s, next_update_s, frozenset(serials), part, key_id)


def name_text(parts: Iterable[Iterable[tuple[str, str]]]) -> str:
    """Return a distinguished name as RFC 4514 writes it: the last part first, what has a meaning there escaped."""
    texts = ["+".join(f"{name}={_escaped(value)}" for name, value in part) for part in parts]
    return ",".join(reversed(texts))


def _signed_part(der: bytes) -> list[Element]:
    """Return the fields of what is signed: certificates and lists alike are (signed part, algorithm, signature)."""
    outer = only_element(der).expect(SEQUENCE).children()
    if len(outer) != 3 or outer[2].tag != BIT_STRING:
        raise DerError("it is not a signed part, an algorithm and a signature")
    return outer[0].expect(SEQUENCE).children()


def _parts(name: Element) -> tuple[tuple[tuple[str, str], ...], ...]:
    parts: list[tuple[tuple[str, str], ...]] = []
    for part in name.expect(SEQUENCE).children():
        pairs: list[tuple[str, str]] = []
        for pair in part.expect(SET).children():
            fields = pair.expect(SEQUENCE).children()
            if len(fields) != 2:
                raise DerError("a part of a name is not an attribute and a value")
            number = fields[0].object_id()
            pairs.append((_SHORT_NAMES.get(number, number), fields[1].text()))
        parts.append(tuple(pairs))
    return tuple(parts)


def _attributes(name: Element) -> tuple[tuple[str, str], ...]:
    return tuple(pair for part in _parts(name) for pair in part)


def _comparable(parts: Iterable[Iterable[tuple[str, str]]]) -> Name:
    return tuple(frozenset((name, " ".join(value.split()).casefold()) for name, value in part) for part in parts)


def _escaped(value: str) -> str:
    text = re.sub(r'([,+"\\<>;=])', r"\\\1", value).replace("\0", "\\00")
    if text[:1] in ("#", " "):
        text = "\\" + text
    return text[:-1] + "\\ " if text.endswith(" ") and text != "\\ " else text


@dataclass(slots=True)
class _Extensions:
    alternatives: list[Element] = field(default_factory=list)
    is_authority: bool = False
    key_id: bytes | None = None
    authority_key_id: bytes | None = None


def _read_extensions(fields: list[Element]) -> _Extensions:
    """Return what a certificate's extensions say of its subject, and of who has signed it."""
    found = _Extensions()
    for number, value in _extensions(fields, _EXTENSIONS):
        if number == _SUBJECT_ALTERNATIVES:
            found.alternatives = only_element(value).expect(SEQUENCE).children()
        elif number == _BASIC_CONSTRAINTS:
            constraints = only_element(value).expect(SEQUENCE).children()
            found.is_authority = bool(constraints) and constraints[0].whole == b"\x01\x01\xff"
        elif number == _SUBJECT_KEY:
            found.key_id = only_element(value).expect(OCTET_STRING).content
        elif number == _AUTHORITY_KEY:
            found.authority_key_id = _authority_key(value)
    return found


def _authority_key(value: bytes) -> bytes | None:
    """Return the number of the key in an `authorityKeyIdentifier` (RFC 5280, 4.2.1.1), which may name it otherwise."""
    parts = only_element(value).expect(SEQUENCE).children()
    return next((one.content for one in parts if one.tag == _KEY_ID), None)


def _extensions(fields: list[Element], tag: int) -> Iterable[tuple[str, bytes]]:
    for each in fields:
        if each.tag != tag:
            continue
        for extension in only_element(each.content).expect(SEQUENCE).children():
            parts = extension.expect(SEQUENCE).children()
            if len(parts) not in (2, 3):
                raise DerError("an extension is not a number and a value")
            yield parts[0].object_id(), parts[-1].expect(OCTET_STRING).content


def _ia5(name: Element) -> str:
    try:
        return name.content.decode("ascii")
    except UnicodeDecodeError as error:
        raise DerError("an alternative name is not ASCII") from error


def _address(name: Element) -> str:
    try:
        return str(ipaddress.ip_address(name.content))
    except ValueError as error:
        raise DerError("an address among the alternative names has another length than IPv4 and IPv6") from error
