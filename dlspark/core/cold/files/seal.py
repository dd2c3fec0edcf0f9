"""The seal of a cold file: one value in its footer by which damage anywhere in the file is found.

    seal1: | 8 hexadecimal digits for each column's chunk | 64 digits | 64 digits

Chunks are those of the first row group in the order of the file, then those of the second: the CRC-32 of the chunk's
bytes, which page checksums alone do not give, since they leave out the pages' own headers. Then the SHA-256 of what
lies between the last row group and the footer (the page indexes), and that of the footer, in which these last 64 digits
are 0. The value has its length from the beginning, so it is filled in where the footer has room for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from dlspark.errors import DamagedColdFileError

SEAL_KEY: Final = b"dlspark.cold.seal"
SEAL_VERSION: Final = b"seal1:"
CRC_DIGITS: Final = 8
SHA_DIGITS: Final = 64
_NO_SHA: Final = b"0" * SHA_DIGITS


def sealed(footer: bytes, crcs: Sequence[int], page_index_digest: bytes) -> bytes:
    """Return a footer with its seal filled in: it was written with room for it (`room_for_seal`)."""
    start, after = seal_place(footer)
    filled = SEAL_VERSION + b"".join(b"%08x" % crc for crc in crcs) + page_index_digest.hex().encode() + _NO_SHA
    if after - start != len(filled):
        raise ValueError(f"a seal of {len(filled)} bytes does not fit into {after - start}")
    without = footer[:start] + filled + footer[after:]
    digest = hashlib.sha256(without).hexdigest().encode()
    return without[: after - SHA_DIGITS] + digest + without[after:]


def room_for_seal(chunks: int) -> bytes:
    """Return what stands in place of the seal while the footer is made."""
    return SEAL_VERSION + b"0" * (chunks * CRC_DIGITS + 2 * SHA_DIGITS)


def seal_place(footer: bytes) -> tuple[int, int]:
    """Return where in a footer the seal's value begins and ends. Raises ValueError where there is none.

    Parquet's footer is Thrift's compact protocol: behind a key stands one byte of a field's kind, then the length of
    the value, seven bits a byte from the lowest on. The seal's key is the last one.
    """
    at = footer.rfind(SEAL_KEY)
    if at < 0:
        raise ValueError("it has no seal")
    at += len(SEAL_KEY) + 1
    length = shift = 0
    while True:
        byte = footer[at] if at < len(footer) and shift < 35 else -1
        if byte < 0:
            raise ValueError("its seal has no length")
        length |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    if (
        length < len(SEAL_VERSION) + 2 * SHA_DIGITS
        or at + length > len(footer)
        or not footer.startswith(SEAL_VERSION, at)
    ):
        raise ValueError("its seal is none")
    return at, at + length


def checked_seal(footer: bytes, url: str) -> bytes:
    """Return the value of the seal of an undamaged footer. Raises DamagedColdFileError."""
    try:
        start, after = seal_place(footer)
    except ValueError as error:
        raise DamagedColdFileError(f"its footer is not that of a cold file, or damaged: {error}", url=url) from error
    without = footer[: after - SHA_DIGITS] + _NO_SHA + footer[after:]
    if hashlib.sha256(without).hexdigest().encode() != footer[after - SHA_DIGITS : after]:
        raise DamagedColdFileError("its footer fails its digest", url=url)
    return footer[start:after]
