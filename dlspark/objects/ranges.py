"""Ranges of bytes that lie near each other are fetched as one, and cut apart again. Pure."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from dlspark.objects.errors import short_error

COALESCE_BYTES: Final = 64 << 10
"""Ranges nearer to each other are one request: the bytes between them cost less than another request."""


def joined_ranges(ranges: Sequence[tuple[int, int]], gap: int = COALESCE_BYTES) -> list[tuple[int, int]]:
    """Return (offset, length) ranges as the fewest (start, end) ranges that cover them, those joined between which lie
    at most `gap` bytes; in order."""
    joined: list[tuple[int, int]] = []
    for offset, length in sorted(ranges):
        end = offset + length
        if joined and offset - joined[-1][1] <= gap:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((offset, end))
    return joined


def cut_range(
    url: str, offset: int, length: int, joined: Sequence[tuple[int, int]], pieces: Sequence[memoryview]
) -> memoryview:
    """Return a range out of the joined ones, of which `pieces` are the bytes. Raises RangeShortError."""
    index = bisect_right(joined, (offset, sys.maxsize)) - 1
    begin = offset - joined[index][0]
    found = pieces[index][begin : begin + length]
    if len(found) != length:
        raise short_error(url, offset, length, len(found))
    return found
