"""Stores of the kind JKS, written here: what Java's keytool would take a second for."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from hashlib import sha1

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from helpers.security.minting import MintedPair

PROTECTOR = bytes.fromhex("300e060a2b060104012a02110101 0500".replace(" ", ""))
"""The algorithm with which Sun's store hides keys, as it stands before the hidden key."""


def java_key_store(pair: MintedPair, password: str, *, above: Sequence[bytes] = (), key_password: str = "") -> bytes:
    """Return a store with a key and its chain: DER certificates."""
    wide = (key_password or password).encode("utf-16-be")
    plain = pair.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    salt = block = os.urandom(20)
    stream = b""
    while len(stream) < len(plain):
        block = sha1(wide + block).digest()
        stream += block
    mixed = bytes(left ^ right for left, right in zip(plain, stream, strict=False))
    value = der(0x04, salt + mixed + sha1(wide + plain).digest())
    hidden = der(0x30, PROTECTOR + value)
    chain = [pair.der, *above]
    entry = entry_head(1, "mykey") + sized(hidden) + struct.pack(">I", len(chain))
    return signed(1, entry + b"".join(text("X.509") + sized(one) for one in chain), password)


def java_trust_store(certificates: Sequence[bytes], password: str) -> bytes:
    """Return a store of certificates, DER, that are believed."""
    entries = [entry_head(2, f"ca{at}") + text("X.509") + sized(one) for at, one in enumerate(certificates)]
    return signed(len(entries), b"".join(entries), password)


def signed(count: int, entries: bytes, password: str) -> bytes:
    """Return a store of these entries with its digest."""
    body = struct.pack(">III", 0xFEEDFEED, 2, count) + entries
    return body + sha1(password.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


def entry_head(kind: int, alias: str) -> bytes:
    return struct.pack(">I", kind) + text(alias) + struct.pack(">Q", 1_700_000_000_000)


def text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def sized(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def der(tag: int, content: bytes) -> bytes:
    length = len(content)
    head = bytes([length]) if length < 0x80 else b"\x82" + struct.pack(">H", length)
    return bytes([tag]) + head + content
