"""The blob that lists a ledger's entries (wire specification 7.9)."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

_HEAD = Struct(">ii56x")
_GROUP = Struct(">qqii")


def availability(ranges: Iterable[tuple[int, int]]) -> bytes:
    """The blob for contiguous runs (first, last) of entry ids, ascending: one group a run."""
    groups = [_GROUP.pack(first, first, last - first + 1, 0) for first, last in ranges]
    return _HEAD.pack(0, len(groups)) + b"".join(groups)
