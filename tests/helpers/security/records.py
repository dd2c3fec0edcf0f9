"""`RecordsPeer`: a client of TLS 1.3 that ends its handshake as any, and then makes each record by itself.

So it sends what no library lets it send: changes of keys by the thousand, records that are empty, too long, damaged, of
a kind that does not belong there, or cut in the middle.
"""

from __future__ import annotations

import socket
import ssl
import struct
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

ALERT, HANDSHAKE, DATA = 21, 22, 23
"""Kinds of records."""
_KEY_UPDATE = 24
_CIPHERS: dict[str, tuple[type[AESGCM] | type[ChaCha20Poly1305], int, hashes.HashAlgorithm]] = {
    "TLS_AES_128_GCM_SHA256": (AESGCM, 16, hashes.SHA256()),
    "TLS_AES_256_GCM_SHA384": (AESGCM, 32, hashes.SHA384()),
    "TLS_CHACHA20_POLY1305_SHA256": (ChaCha20Poly1305, 32, hashes.SHA256()),
}


class RecordsPeer:
    """What does a server make of any records? Blocks.

    Args:
        sock: a blocking socket on which TLS is next.
        context: of a client; no other connection may be made by it meanwhile.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, host: str = "127.0.0.1") -> None:
        self.sock = sock
        with tempfile.TemporaryDirectory() as folder:
            keys = Path(folder) / "keys"
            context.keylog_filename = str(keys)
            try:
                name = self._shake_hands(context, host)
            finally:
                context.keylog_filename = None  # type: ignore[assignment]
            said = {line.split()[0]: line.split()[2] for line in keys.read_text().splitlines() if line[0] != "#"}
        self._aead, self._size, self._hash = _CIPHERS[name]
        self._take(bytes.fromhex(said["CLIENT_TRAFFIC_SECRET_0"]))

    def _shake_hands(self, context: ssl.SSLContext, host: str) -> str:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname=host)
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                self.sock.sendall(outgoing.read())
                piece = self.sock.recv(65536)
                if not piece:
                    raise ConnectionError("the server ended the handshake") from None
                incoming.write(piece)
            else:
                break
        self.sock.sendall(outgoing.read())
        if tls.version() != "TLSv1.3":
            raise ValueError(f"this knows TLS 1.3 alone, not {tls.version()}")
        cipher = tls.cipher()
        return cipher[0] if cipher is not None else ""

    def _take(self, secret: bytes) -> None:
        self._secret = secret
        self._key = self._aead(self._derived(b"key", self._size))
        self._nonce = int.from_bytes(self._derived(b"iv", 12), "big")
        self._number = 0

    def _derived(self, label: bytes, size: int) -> bytes:
        full = b"tls13 " + label
        info = struct.pack(">HB", size, len(full)) + full + b"\0"
        return HKDFExpand(self._hash, size, info).derive(self._secret)

    def record(self, content: bytes, kind: int = DATA) -> bytes:
        """Return the next record."""
        inner = content + bytes((kind,))
        head = struct.pack(">BHH", DATA, 0x0303, len(inner) + 16)
        nonce = (self._nonce ^ self._number).to_bytes(12, "big")
        self._number += 1
        return head + self._key.encrypt(nonce, inner, head)

    def key_update(self, *, asks: bool) -> bytes:
        """Return the record that changes this side's keys (asks: and asks for a change of the other's)."""
        made = self.record(bytes((_KEY_UPDATE, 0, 0, 1, asks)), HANDSHAKE)
        self._take(self._derived(b"traffic upd", self._hash.digest_size))
        return made

    def key_updates(self, count: int, *, asks: bool) -> bytes:
        """Return so many of them."""
        return b"".join(self.key_update(asks=asks) for _ in range(count))

    def send(self, data: bytes) -> bool:
        """Send all. Returns whether the server still took it."""
        try:
            self.sock.sendall(data)
        except OSError:
            return False
        return True
