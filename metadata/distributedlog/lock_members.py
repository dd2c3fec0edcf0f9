"""The names of a lock's members in its queue, which are upstream's (docs/reference/znodes.md#lock-protocol)."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import quote_plus, unquote_plus

_LAST: Final = 2**63  # where a member without a number sorts


class LockId(NamedTuple):
    """Which client and session does a member of a lock's queue belong to?"""

    client_id: str
    session_id: int


def encode_client_id(client_id: str) -> str:
    """Form encoding as Java does it: `*` stays, `~` does not, a space becomes `+`."""
    return quote_plus(client_id, safe="*").replace("~", "%7E")


def member_prefix(client_id: str, session_id: int) -> str:
    """Return a member's name without its sequence number."""
    return f"member_{encode_client_id(client_id)}_s{session_id:10d}_"


def sequence_of(name: str) -> int:
    """Return a member's place in the queue: the number after the last `_`; one without a number comes last."""
    try:
        return int(name.rpartition("_")[2])
    except ValueError:
        return _LAST


def parse_member(name: str) -> LockId | None:
    """Return the owner that the name gives; None where it gives none (a `_` in the client id, an old prefix)."""
    parts = name.split("_")
    if len(parts) != 4 or not parts[2].startswith("s"):
        return None
    try:
        return LockId(unquote_plus(parts[1], errors="strict"), int(parts[2][1:].strip()))
    except ValueError:
        return None
