"""`Contents`: the ledgers that a bookie holds, where their entries lie, and what no checkpoint has covered yet.

Everything here is changed on the loop only. What is put here is in memory and on its way to the entry logs; making it
durable at once is the journal's business, and the caller's.
"""

from __future__ import annotations

import asyncio
from collections import deque

from metadata.foundation.errors import InvariantViolation
from storage_node.bookie.disk.records import ALIGN, ENTRY, HEADER_BYTES
from storage_node.bookie.disk.slabs import Slab
from storage_node.bookie.store.entry_logs import EntryLogs
from storage_node.bookie.store.gc_stats import GcStats
from storage_node.bookie.store.index import LedgerIndex, NewPlaces
from storage_node.bookie.store.ledgers import Ledger
from storage_node.bookie.store.live_bytes import LiveBytes
from storage_node.protocol.frames import Buffer

MAX_BARE_BY_LAC = 10_000
MAX_BARE_BY_FENCE = 100_000
"""Ledgers that came into existence without an entry, by an explicit LAC or by a fence: not more than so many. Both are
asked of nodes that were given entries, so there are few; garbage collection takes those away that are nobody's."""
CROWD = 100_000
"""Ledgers that came since the last round of garbage collection: the next one does not wait for its time."""
MAX_FENCES_KEPT = 200_000
"""Deleted ledgers whose fence is remembered."""
_LOOKED_AT = 8


class Contents:
    """Ledgers, index and entry logs, kept in step."""

    def __init__(self, logs: EntryLogs) -> None:
        self.logs = logs
        self.ledgers: dict[int, Ledger] = {}
        self.lossy = False
        """Entries of any ledger may be gone, even of ledgers that are not known here (I11)."""
        self.limbo: set[int] = set()
        """Ledgers of which entries may be gone."""
        self.lost_logs: set[int] = set()
        """Logs of which entries are lost, for which ledgers were put into limbo."""
        self.new: dict[int, NewPlaces] = {}
        """For each log: what was added since the last checkpoint."""
        self.changed: set[int] = set()
        """Ledgers whose state is not that of the last checkpoint, besides those in `new`."""
        self.deleted: set[int] = set()
        """Ledgers that were deleted since the last checkpoint."""
        self.fenced_gone: dict[int, int] = {}
        """Ledgers that were fenced when they were deleted, and when that was: their writers are still refused."""
        self.live = LiveBytes()
        self.stats = GcStats()
        self.damaged: set[int] = set()
        """Logs of which a part cannot be read: they stay until their ledgers are deleted."""
        self._bare: deque[int] = deque()
        """Ledgers that came without an entry; some may have one by now, or be gone."""
        self._created = 0
        self.crowded = asyncio.Event()
        """Set when so many ledgers have come that it is worth asking metadata which of them there are."""

    @property
    def uncovered(self) -> bool:
        """True if a checkpoint would have something to write."""
        return bool(self.new or self.changed or self.deleted)

    def adopt(self, ledgers: dict[int, Ledger]) -> None:
        """The ledgers of the checkpoint. No other ledger had been here then: what is not among them, and in no journal,
        was never stored, whatever else may be lost."""
        self.ledgers.update(ledgers)
        self.limbo.update(ledger_id for ledger_id, ledger in ledgers.items() if ledger.limbo)

    def lose(self, logs: set[int]) -> None:
        """Entries in these logs are lost: any ledger that was here when one of them was written may miss some."""
        newest = max(logs - self.lost_logs, default=None)
        self.lost_logs.update(logs)
        for ledger_id, ledger in self.ledgers.items():
            if newest is not None and ledger.born[0] <= newest:
                ledger.limbo = True
                self.limbo.add(ledger_id)
                self.changed.add(ledger_id)

    def unknown(self, ledger_id: int) -> bool:
        """What is not found of this ledger is unknown, not absent."""
        return self.lossy or ledger_id in self.limbo

    def create(self, ledger_id: int) -> Ledger:
        """A ledger that was not here comes into existence; fenced, if it was so when it was deleted."""
        ledger = self.ledgers[ledger_id] = Ledger(ledger_id, born=self.logs.position())
        ledger.fenced = self.fenced_gone.pop(ledger_id, None) is not None
        self._created += 1
        if self._created >= CROWD:
            self.crowded.set()
        return ledger

    def counted(self) -> None:
        """Metadata is asked now which ledgers there are."""
        self._created = 0
        self.crowded.clear()

    def create_bare(self, ledger_id: int, limit: int) -> Ledger | None:
        """A ledger comes into existence without an entry; None: there are `limit` such ledgers already."""
        for _ in range(min(_LOOKED_AT, len(self._bare))):
            known = self.ledgers.get(self._bare[0])
            if known is not None and known.index.last < 0:
                self._bare.rotate(-1)
            else:
                self._bare.popleft()
        if len(self._bare) >= limit:
            return None
        self._bare.append(ledger_id)
        return self.create(ledger_id)

    def delete(self, ledger_id: int, now_ms: int) -> bool:
        """Forget a ledger in one step; with the next checkpoint it is gone for good. False if it was not here.

        Until then a crash brings it back whole, with its key and its fence, to be deleted again.
        """
        ledger = self.ledgers.pop(ledger_id, None)
        if ledger is None:
            return False
        self.changed.discard(ledger_id)
        self.limbo.discard(ledger_id)
        self.deleted.add(ledger_id)
        if ledger.fenced:
            self.fenced_gone[ledger_id] = now_ms
        self.live.collected(ledger.index)
        ledger.index = LedgerIndex()
        ledger.wake_all()
        return True

    def forget_fences(self, before_ms: int) -> None:
        """Fenced ledgers deleted before that time: their writers have long given up. So are the oldest of too many."""
        for ledger_id in [ledger_id for ledger_id, gone_ms in self.fenced_gone.items() if gone_ms < before_ms]:
            del self.fenced_gone[ledger_id]
        for ledger_id in list(self.fenced_gone)[: max(len(self.fenced_gone) - MAX_FENCES_KEPT, 0)]:
            del self.fenced_gone[ledger_id]

    def append_entry(
        self, ledger: Ledger, entry_id: int, body: memoryview, beyond_limit: bool
    ) -> tuple[Slab, int, int, int] | None:
        """Put an entry into memory, log and index. None: no memory."""
        ledger_id = ledger.ledger_id
        placed = self.logs.append(ENTRY, ledger_id, entry_id, body, beyond_limit)
        if placed is None:
            return None
        slab = placed[0]
        log_id = slab.log_id
        place = (slab.base + placed[1]) // ALIGN
        size = HEADER_BYTES + len(body)
        previous = ledger.index.put(entry_id, log_id, place, size)
        usage = self.live.logs.get(log_id) or self.live.of(log_id)
        usage.live += size
        usage.stored += size
        if previous is not None:
            self.live.gone(previous[0], previous[2])
        new = self.new.get(log_id)
        if new is None:
            new = self.new[log_id] = NewPlaces()
        new.put(ledger_id, entry_id, place, size)
        return placed

    def append_fact(self, kind: int, ledger: Ledger, body: Buffer) -> tuple[Slab, int, int, int]:
        """Put a record about a ledger into memory and log, whatever the memory's limit."""
        placed = self.logs.append(kind, ledger.ledger_id, 0, body, True)
        if placed is None:
            raise InvariantViolation("there was no memory for a record that must be stored")
        self.changed.add(ledger.ledger_id)
        return placed
