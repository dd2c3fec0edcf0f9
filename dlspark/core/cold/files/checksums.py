"""CRC-32 of a part of a file, from the CRC-32 of two beginnings of it.

While a file is written, the checksum of all that was written so far is at hand at each step; which steps were the
bounds of a column's chunk is known only when the file ends. CRC-32 is linear, so a part's checksum follows from those
at its two bounds, and no byte is looked at again or kept.

Source: M. Adler, zlib, crc32_combine (the arithmetic of polynomials over GF(2) modulo CRC-32's).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_POLYNOMIAL: Final = 0xEDB88320
_ONE: Final = 1 << 31
"""The polynomial 1: the highest bit is the lowest power."""
_BITS_OF_A_BYTE: Final = 3
"""As a power of two."""


def crc_between(before: int, upto: int, length: int) -> int:
    """Return the CRC-32 of the last `length` bytes of a beginning whose CRC-32 is `upto`; `before` is that of the
    beginning without them."""
    return _multiplied(_power(length), before) ^ upto


def _multiplied(one: int, other: int) -> int:
    """Return the product of two polynomials modulo CRC-32's."""
    product = 0
    bit = _ONE
    while one:
        if one & bit:
            product ^= other
            one ^= bit
        bit >>= 1
        other = other >> 1 ^ _POLYNOMIAL if other & 1 else other >> 1
    return product


@lru_cache(maxsize=64)
def _doubled(times: int) -> int:
    """Return x to the power of 2 to the power of `times`."""
    if times == 0:
        return _ONE >> 1
    half = _doubled(times - 1)
    return _multiplied(half, half)


def _power(length: int) -> int:
    """Return x to the power of the bits of `length` bytes."""
    found, bit = _ONE, _BITS_OF_A_BYTE
    while length:
        if length & 1:
            found = _multiplied(_doubled(bit), found)
        length >>= 1
        bit += 1
    return found
