"""What a bookie knows of one ledger besides its entries, and who waits for its LAC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from struct import Struct

from storage_node.bookie.index import LedgerIndex

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
        self.waiters: list[LacWaiter] = []

    def raise_lac(self, lac: int) -> None:
        """Take a LAC into account; it never goes back (I6). Wakes the long polls that it satisfies."""
        if lac > self.lac:
            self.lac = lac
            if self.waiters:
                for waiter in [w for w in self.waiters if w.previous_lac < lac]:
                    waiter.wake(advanced=True)

    def wake_all(self) -> None:
        """A fence or an explicit LAC: every long poll has its answer."""
        for waiter in list(self.waiters):
            waiter.wake(advanced=self.lac > waiter.previous_lac)

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


class LacWaiter:
    """A parked long poll: `finished(advanced)` is called once, by whichever comes first."""

    __slots__ = ("_finished", "_ledger", "_timer", "previous_lac")

    def __init__(self, ledger: Ledger, previous_lac: int, timeout_s: float, finished: Callable[[bool], None]) -> None:
        self.previous_lac = previous_lac
        self._ledger = ledger
        self._finished: Callable[[bool], None] | None = finished
        self._timer = asyncio.get_running_loop().call_later(timeout_s, partial(self.wake, advanced=False))
        ledger.waiters.append(self)

    def wake(self, *, advanced: bool) -> None:
        """End the wait. `advanced`: because the LAC moved on."""
        finished = self._finished
        if finished is not None:
            self.cancel()
            finished(advanced)

    def cancel(self) -> None:
        """End the wait without telling anybody."""
        if self._finished is not None:
            self._finished = None
            self._timer.cancel()
            self._ledger.waiters.remove(self)
