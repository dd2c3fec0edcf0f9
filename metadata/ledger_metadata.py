"""Ledger metadata as values: what BookKeeper keeps in a ledger's znode, and its byte format.

Pure: no store, no I/O. The znode's version travels beside the value (`metadata.ledgers.Versioned`), not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum


class LedgerState(IntEnum):
    """OPEN -> IN_RECOVERY -> CLOSED, or OPEN -> CLOSED; CLOSED is final."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class DigestType(IntEnum):
    """Numbers of the metadata's enum (not those of the Java client API)."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


@dataclass(frozen=True, slots=True)
class Ensemble:
    """A fragment's bookies: they hold entries from `first_entry` to the next fragment's first entry minus one."""

    first_entry: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """A ledger's metadata. `last_entry` and `length` (payload bytes) mean something only when CLOSED."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    ensembles: tuple[Ensemble, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: int = -1
    length: int = 0
    digest_type: DigestType | None = DigestType.CRC32
    password: bytes | None = b""
    custom: Mapping[str, bytes] = field(default_factory=dict)
    ctime_ms: int | None = None
    creator_token: int | None = None
    format_version: int = 3
