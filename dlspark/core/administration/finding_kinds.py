"""The kinds of findings of an inspection; a module without imports, because the command line's options name them."""

from __future__ import annotations

from enum import Enum


class FindingKind(str, Enum):
    """Kinds of findings; `inspection` says what each means."""

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
