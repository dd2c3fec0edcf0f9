"""Key stores as Java has them, PKCS #12 and JKS: their key, certificates and believed authorities.

As in Java, which of both a file is shows in its first bytes, whatever its type is said to be: a file that `keytool`
has made in the last years is PKCS #12, though its name ends with .jks.

JKS, the format that Sun's keytool wrote (big-endian; a text has its length, two bytes, before it):

    magic 0xFEEDFEED, version 2, number of entries, entries, SHA-1 digest
    entry 1   alias, time (8), length (4), key as EncryptedPrivateKeyInfo, number (4), certificates: who this is
    entry 2   alias, time (8), one certificate: who is believed
    a certificate is its kind (text; not in version 1), length (4), DER

The digest is over the password (UTF-16), "Mighty Aphrodite" and all bytes before it: a wrong password and a damaged
file look alike. A key is hidden by a stream of SHA-1 over password and salt; that protects little, and this format is
read for the sake of clusters that have it. Nothing decrypted is ever written to a disk.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from hashlib import sha1
from struct import Struct
from typing import Final

from metadata.security.certificates import CERTIFICATE, pem_blocks, pem_text, read_certificate
from metadata.security.der import OCTET_STRING, SEQUENCE, only_element
from metadata.security.errors import IdentityError, no_extra_error

PRIVATE_KEY: Final = "PRIVATE KEY"
_JKS: Final = 0xFEEDFEED
_JCEKS: Final = 0xCECECECE
_KEY, _TRUSTED = 1, 2
_SHORT, _INT = Struct(">H"), Struct(">I")
_TIME_BYTES: Final = 8
_DIGEST_BYTES: Final = 20
_PROTECTOR: Final = "1.3.6.1.4.1.42.2.17.1.1"
"""Sun's own way to hide a key."""
_WHITENER: Final = b"Mighty Aphrodite"
_MAX_ENTRIES: Final = 100_000


class StoreError(ValueError):
    """Why can a store not be read? The message says so, and nothing of what is in it."""


@dataclass(frozen=True, slots=True)
class StoreContents:
    """What is in a store? All PEM; its representation has no key."""

    key: bytes = field(repr=False)
    """PKCS #8, decrypted; empty: there is none."""
    chain: bytes
    """The key's certificate, and behind it those that lead to an authority."""
    believed: tuple[bytes, ...]
    """Certificates that stand there by themselves."""


def read_store(content: bytes, password: bytes | None) -> StoreContents:
    """Return what is in a store.

    Raises StoreError: it is damaged, of another kind, or its password is another one; NoExtraError where PKCS #12 is
    read and the extra [security] is missing.
    """
    magic = _INT.unpack_from(content)[0] if len(content) >= _INT.size else 0
    if magic == _JCEKS:
        raise StoreError("it is of the kind JCEKS, which is not read; have keytool write PKCS12 (-importkeystore)")
    if magic == _JKS:
        return _read_jks(content, password or b"")
    if content[:1] != b"\x30":
        raise StoreError("it is neither JKS nor PKCS12")
    return _read_pkcs12(content, password)


def key_of_store(content: bytes, password: bytes | None) -> tuple[bytes, bytes]:
    """Return key and chain, PEM. Raises StoreError, also where the store has no key."""
    found = read_store(content, password)
    if not found.key:
        raise StoreError("it has no private key")
    return found.key, found.chain


def authorities_of_store(content: bytes, password: bytes | None) -> bytes:
    """Return the certificates that are believed, PEM. Raises StoreError, also where the store has none.

    As to Java, the certificate of a private key is believed too: a peer's own store, copied, is what BookKeeper's tests
    and pages trust. That is so here if it signed itself. The store of a pair that an authority has issued is refused:
    whoever named it there meant the authority, which is not believed by that, in Java neither.
    """
    found = read_store(content, password)
    own = (found.chain,) if found.key else ()
    if own and not _signed_itself(found.chain):
        raise StoreError(
            "it has a private key whose certificate an authority has issued; name a store that has nothing but the "
            "certificates to be believed"
        )
    if not (own or found.believed):
        raise StoreError("it has no certificate that is to be believed")
    return b"".join((*own, *found.believed))


def _signed_itself(chain: bytes) -> bool:
    """Return whether this is one certificate, and it names nobody else as the one who issued it."""
    try:
        (only,) = pem_blocks(chain)
        facts = read_certificate(only.body)
    except ValueError:
        return False
    return facts.issuer == facts.subject


# -------------------------------------------------------------------- PKCS #12


def _read_pkcs12(content: bytes, password: bytes | None) -> StoreContents:
    try:
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
            pkcs12,
        )
    except ImportError as error:
        raise no_extra_error("a store of the kind PKCS12", "cryptography") from error
    try:
        found = pkcs12.load_pkcs12(content, password)
    except (ValueError, TypeError):
        # Without the cause, and one reason for both: the library does not tell them apart in a way to rely on.
        raise StoreError("it is damaged, or its password is another one") from None
    others = tuple(one.certificate.public_bytes(Encoding.PEM) for one in found.additional_certs)
    own = (found.cert.certificate.public_bytes(Encoding.PEM),) if found.cert is not None else ()
    if found.key is None:
        return StoreContents(b"", b"", (*own, *others))
    if not own:
        raise StoreError("it has a private key without its certificate")
    key = found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return StoreContents(key, b"".join((*own, *others)), ())


# -------------------------------------------------------------------- JKS


class _Bytes:
    """The bytes of a store, taken one field after the other."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._content):
            raise StoreError("it is damaged: a field is longer than the file")
        found = self._content[self._at : end]
        self._at = end
        return found

    def number(self) -> int:
        return int(_INT.unpack(self.take(_INT.size))[0])

    def text(self) -> bytes:
        return self.take(_SHORT.unpack(self.take(_SHORT.size))[0])

    def at_end(self) -> bool:
        return self._at == len(self._content)


def _read_jks(content: bytes, password: bytes) -> StoreContents:
    wide = _wide(password)
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    # Not of our choice: the format has SHA-1.
    expected = sha1(wide + _WHITENER + body, usedforsecurity=False).digest()
    if not hmac.compare_digest(digest, expected):
        raise StoreError("it is damaged, or its password is another one")
    reader = _Bytes(body)
    reader.number()  # magic
    version, count = reader.number(), reader.number()
    if version not in (1, 2) or count > _MAX_ENTRIES:
        raise StoreError(f"it is JKS of version {version} with {count} entries, which is not read")
    keys: list[tuple[bytes, bytes]] = []
    believed: list[bytes] = []
    for _ in range(count):
        kind = reader.number()
        reader.text()  # alias
        reader.take(_TIME_BYTES)
        if kind == _KEY:
            hidden = reader.take(reader.number())
            chain = b"".join(_certificate(reader, version) for _ in range(min(reader.number(), _MAX_ENTRIES)))
            keys.append((hidden, chain))
        elif kind == _TRUSTED:
            believed.append(_certificate(reader, version))
        else:
            raise StoreError(f"it has an entry of the kind {kind}, which JKS does not know")
    if not reader.at_end():
        raise StoreError("it is damaged: there is more in it than its entries")
    if len(keys) > 1:
        raise StoreError(f"it has {len(keys)} private keys, and which one is meant cannot be told")
    if not keys:
        return StoreContents(b"", b"", tuple(believed))
    key = pem_text(PRIVATE_KEY, _shown_key(keys[0][0], wide))
    return StoreContents(key, keys[0][1], tuple(believed))


def _certificate(reader: _Bytes, version: int) -> bytes:
    kind = b"X.509" if version == 1 else reader.text()
    if kind not in (b"X.509", b"X509"):
        raise StoreError("it has a certificate that is not X.509")
    return pem_text(CERTIFICATE, reader.take(reader.number()))


def _shown_key(hidden: bytes, wide: bytes) -> bytes:
    """Return a key, decrypted: salt, the key mixed with a stream, and a digest over password and key."""
    try:
        algorithm, value = only_element(hidden).expect(SEQUENCE).children()
        number = algorithm.expect(SEQUENCE).children()[0].object_id()
        mixed = value.expect(OCTET_STRING).content
    except (ValueError, IndexError) as error:
        raise StoreError("its key is damaged") from error
    if number != _PROTECTOR:
        raise StoreError(f"its key is hidden by an algorithm that is not JKS's own ({number})")
    if len(mixed) <= 2 * _DIGEST_BYTES:
        raise StoreError("its key is damaged")
    salt, mixed, digest = mixed[:_DIGEST_BYTES], mixed[_DIGEST_BYTES:-_DIGEST_BYTES], mixed[-_DIGEST_BYTES:]
    stream = bytearray()
    block = salt
    while len(stream) < len(mixed):
        block = sha1(wide + block, usedforsecurity=False).digest()
        stream += block
    key = bytes(left ^ right for left, right in zip(mixed, stream, strict=False))
    if not hmac.compare_digest(digest, sha1(wide + key, usedforsecurity=False).digest()):
        raise StoreError("its key has another password than the store; give both the same one (keytool -keypasswd)")
    return key


def _wide(password: bytes) -> bytes:
    try:
        return password.decode().encode("utf-16-be")
    except UnicodeDecodeError:
        raise StoreError("its password is not a text in UTF-8") from None


def store_error(path: str, error: StoreError) -> IdentityError:
    """Return the error for a store of one's own."""
    return IdentityError(f"the store cannot be used: {error}", path=path)
