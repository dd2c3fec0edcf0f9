"""Entry digests and keys: what proves that an entry read back is the entry that was written.

An entry, as stored and as carried in ADD and READ bodies (docs/reference/wire.md#entry-format):

    offset  length  field
    0       8       ledger id
    8       8       entry id
    16      8       LAC known to the writer when the entry was packaged (-1 for the first)
    24      8       length: payload bytes of the ledger up to and including this entry
    32      D       digest over bytes [0, 32) and the payload
    32+D    n       payload

An explicit-LAC packet is `ledger id, LAC, digest` (docs/reference/wire.md#explicit-lac-packet). All integers are
big-endian.
"""

from __future__ import annotations

import hashlib
import hmac
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import cast

from metadata.bookkeeper.ledger_metadata import DigestType
from metadata.foundation import compiled
from storage_node.errors import DigestError
from storage_node.protocol.frames import Buffer

Checksum = Callable[[Buffer, int], int]
Combine = Callable[[int, int, int], int]


def _pick_crc32() -> Checksum:
    try:
        from isal.isal_zlib import crc32
    except ImportError:  # no wheel for this platform: the same sum, about a twentieth of the speed
        return zlib.crc32
    return cast(Checksum, crc32)


def _pick_crc32_combine() -> Combine | None:
    try:
        from isal.isal_zlib import crc32_combine
    except ImportError:
        return None
    combine: Combine = crc32_combine
    return combine


def _pick_crc32c() -> Checksum:
    from fastcrc.crc32 import iscsi

    return cast(Checksum, iscsi)


crc32: Checksum = _pick_crc32()
"""`crc32(data, start)`: CRC-32 (IEEE) of data, continuing from the sum `start` (0 at first)."""

crc32_combine: Combine | None = _pick_crc32_combine()
"""`crc32_combine(a, b, n)`: the CRC-32 of what has sum `a` followed by `n` bytes of sum `b`; None: not available."""

crc32c: Checksum = _pick_crc32c()
"""`crc32c(data, start)`: CRC-32C (Castagnoli), continuing from the sum `start` (0 at first)."""

ENTRY_HEADER = Struct(">qqqq")
ENTRY_IDS = Struct(">qqq")
"""The part of an entry's header that a bookie reads: ledger id, entry id, LAC."""

ENTRY_HEADER_BYTES = 32
LAC_HEADER = Struct(">qq")
LAC_HEADER_BYTES = 16
INVALID_ENTRY_ID = -1
MASTER_KEY_BYTES = 20

_CHECKSUMS = {DigestType.CRC32: crc32, DigestType.CRC32C: crc32c}
DIGEST_BYTES = {DigestType.CRC32: 8, DigestType.HMAC: 20, DigestType.CRC32C: 4, DigestType.DUMMY: 0}


@dataclass(frozen=True, slots=True)
class Entry:
    """Which bytes does an entry have? Verified ones; `payload` is a view of the bytes it was read from."""

    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    length: int
    payload: memoryview


def master_key(password: bytes) -> bytes:
    """Return the key that authorises adds, LAC writes and fencing reads, whatever the digest type."""
    # BookKeeper's, and so SHA-1: who has heard a key may use it, whatever it is made by. TLS keeps it from being heard.
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


def mac_key(password: bytes) -> bytes:
    """Return the key of digest type HMAC."""
    return hashlib.sha1(b"mac" + password, usedforsecurity=False).digest()


class EntryDigest:
    """Are an entry's bytes those that its writer sent (I12)? Packages and verifies the entries of one ledger.

    Args:
        digest_type: the ledger's.
        password: the ledger's; the key of a MAC is made of it.
    """

    __slots__ = ("_checksum", "_mac", "digest_size", "digest_type", "header_size")

    def __init__(self, digest_type: DigestType, password: bytes) -> None:
        self.digest_type = digest_type
        self.digest_size = DIGEST_BYTES[digest_type]
        self.header_size = ENTRY_HEADER_BYTES + self.digest_size
        self._checksum = _CHECKSUMS.get(digest_type)
        self._mac = hmac.new(mac_key(password), digestmod="sha1") if digest_type is DigestType.HMAC else None

    @property
    def is_checksum(self) -> bool:
        """It is a CRC, which the compiled core computes as well."""
        return self._checksum is not None

    def package(self, ledger_id: int, entry_id: int, lac: int, length: int, *payload: Buffer) -> bytes:
        """Return the header and digest that go before `payload`: 32 + D bytes."""
        core = compiled.core
        if core is not None and self._checksum is not None:
            packed = core.package_entry(self.digest_size, (ledger_id, entry_id, lac, length), payload)
            if packed is not None:
                return packed
        head = ENTRY_HEADER.pack(ledger_id, entry_id, lac, length)
        return head + self._digest(head, *payload)

    def verify(self, ledger_id: int, entry_id: int | None, data: memoryview) -> Entry:
        """Check `data` against its digest and the ids that were asked for (None: any entry id).

        Raises DigestError: the bytes are not that entry and must not be used (I12).
        """
        size = self.header_size
        core = compiled.core
        if core is not None and self._checksum is not None:
            found = core.verify_entry(self.digest_size, ledger_id, entry_id, data)
            if found is not None:
                return Entry(ledger_id, *found, data[size:])
        if len(data) < size:
            raise DigestError(
                f"an entry of {len(data)} bytes is shorter than its header of {size}",
                ledger_id=ledger_id,
                entry_id=entry_id,
            )
        # Nothing of the header is believed before the digest has been compared, the lengths and the LAC neither (I6).
        found_ledger, found_entry, lac, length = ENTRY_HEADER.unpack_from(data)
        payload = data[size:]
        if data[ENTRY_HEADER_BYTES:size] != self._digest(data[:ENTRY_HEADER_BYTES], payload):
            raise DigestError(
                f"an entry fails its {self.digest_type.name} digest",
                advice="Another replica may hold an intact copy",
                ledger_id=ledger_id,
                entry_id=entry_id,
            )
        # An intact entry of another place is as bad as a damaged one: one value for one position (I3).
        if found_ledger != ledger_id or (entry_id is not None and found_entry != entry_id):
            raise DigestError(
                f"entry {found_entry} of ledger {found_ledger} came in place of the one asked for",
                ledger_id=ledger_id,
                entry_id=entry_id,
            )
        return Entry(found_ledger, found_entry, lac, length, payload)

    def package_lac(self, ledger_id: int, lac: int) -> bytes:
        """Return an explicit-LAC packet."""
        head = LAC_HEADER.pack(ledger_id, lac)
        return head + self._digest(head)

    def verify_lac(self, ledger_id: int, data: Buffer) -> int:
        """Return the LAC of an explicit-LAC packet. Raises DigestError."""
        view = memoryview(data)
        end = LAC_HEADER_BYTES + self.digest_size
        if len(view) < end:
            raise DigestError(f"an explicit LAC of {len(view)} bytes is shorter than {end}", ledger_id=ledger_id)
        if view[LAC_HEADER_BYTES:end] != self._digest(view[:LAC_HEADER_BYTES]):
            raise DigestError(f"an explicit LAC fails its {self.digest_type.name} digest", ledger_id=ledger_id)
        found_ledger, lac = LAC_HEADER.unpack_from(view)
        if found_ledger != ledger_id:
            raise DigestError(f"an explicit LAC of ledger {found_ledger} came", ledger_id=ledger_id)
        return int(lac)

    def _digest(self, head: Buffer, *payload: Buffer) -> bytes:
        checksum = self._checksum
        if checksum is not None:
            value = checksum(head, 0)
            for piece in payload:
                value = checksum(piece, value)
            return value.to_bytes(self.digest_size, "big")
        if self._mac is None:
            return b""
        mac = self._mac.copy()
        mac.update(head)
        for piece in payload:
            mac.update(piece)
        return mac.digest()
