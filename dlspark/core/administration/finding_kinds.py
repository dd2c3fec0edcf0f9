"""The kinds of findings of an inspection; a module without imports, because the command line's options name them."""

from __future__ import annotations

from enum import Enum


class FindingKind(str, Enum):
    """What was found; `inspection` says what it means."""

    IN_PROGRESS = "in-progress"
    UNREADABLE = "unreadable"
    DUPLICATE = "duplicate"
    LOW_NUMBER = "low-number"
    GAP = "gap"
    NUMBER = "number"
    TXID = "txid"
    TRUNCATION = "truncation"
    NO_LEDGER = "no-ledger"
    SHARED_LEDGER = "shared-ledger"
    OPEN_LEDGER = "open-ledger"
    SHORT = "short"
    LOST = "lost"
