"""The blob that lists a ledger's entries: a head, and a group for each contiguous run of ids, ascending.

Its layout: docs/reference/wire.md#list-of-entries.
"""

from __future__ import annotations

from struct import Struct

_HEAD = Struct(">ii56x")
_GROUP = Struct(">qqii")


HEAD_BYTES = _HEAD.size
GROUP_BYTES = _GROUP.size


def head(groups: int) -> bytes:
    """What goes before so many groups."""
    return _HEAD.pack(0, groups)


def group(first: int, last: int) -> bytes:
    """One run."""
    return _GROUP.pack(first, first, last - first + 1, 0)
