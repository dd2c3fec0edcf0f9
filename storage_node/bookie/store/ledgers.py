"""What a bookie knows of one ledger besides its entries."""

from __future__ import annotations

import asyncio
from struct import Struct

from storage_node.bookie.store.index import LedgerIndex
from storage_node.bookie.store.waiters import LacWaiters

_STATE = Struct(">qqQIBBH")
_FENCED, _HAS_KEY, _LIMBO = 1, 2, 4


class Ledger:
    """One ledger's state. Everything here is changed on the loop only, so check and change are one step."""

    __slots__ = (
        "born",
        "explicit_lac",
        "fence_pending",
        "fenced",
        "index",
        "lac",
        "ledger_id",
        "limbo",
        "master_key",
        "waiters",
    )

    def __init__(self, ledger_id: int, master_key: bytes | None = None, born: tuple[int, int] = (0, 0)) -> None:
        self.ledger_id = ledger_id
        self.born = born
        """(log id, offset / 32): records before it are of a ledger of this id that was deleted, and are not read."""
        self.master_key = master_key
        self.fenced = False
        self.limbo = False
        """Entries of it that were stored here may be gone: what is not found is unknown, not absent (I11)."""
        self.fence_pending: asyncio.Future[None] | None = None
        """Done when the fence is durable; None before there is a fence, and where it was durable at start."""
        self.lac = -1
        """The highest LAC that any entry or explicit LAC told of."""
        self.explicit_lac: bytes | None = None
        self.index = LedgerIndex()
        self.waiters: LacWaiters | None = None
        """The long polls parked here; None as long as there was none."""

    def raise_lac(self, lac: int) -> None:
        """Take a LAC into account; it never goes back (I6). Wakes the long polls that it satisfies."""
        if lac > self.lac:
            self.lac = lac
            if self.waiters is not None:
                self.waiters.advance()

    def wake_all(self) -> None:
        """A fence or an explicit LAC: every long poll has its answer."""
        if self.waiters is not None:
            self.waiters.wake_all()

    def encode(self) -> bytes:
        """The state for a checkpoint."""
        key, lac = self.master_key, self.explicit_lac or b""
        flags = (_FENCED if self.fenced else 0) | (_HAS_KEY if key is not None else 0)
        flags |= _LIMBO if self.limbo else 0
        key = key or b""
        return _STATE.pack(self.ledger_id, self.lac, *self.born, flags, len(key), len(lac)) + key + lac

    @classmethod
    def decode(cls, data: memoryview, at: int) -> tuple[Ledger, int]:
        """A state, and the offset behind it. The bytes had their checksum."""
        ledger_id, lac, born_log, born_place, flags, key_length, lac_length = _STATE.unpack_from(data, at)
        at += _STATE.size
        key = bytes(data[at : at + key_length]) if flags & _HAS_KEY else None
        ledger = cls(ledger_id, key, (born_log, born_place))
        at += key_length
        ledger.lac = lac
        ledger.fenced = bool(flags & _FENCED)
        ledger.limbo = bool(flags & _LIMBO)
        ledger.explicit_lac = bytes(data[at : at + lac_length]) if lac_length else None
        return ledger, at + lac_length
