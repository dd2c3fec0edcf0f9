"""`Contents`: the ledgers that a bookie holds, where their entries lie, and what no checkpoint has covered yet.

Ledger      what is known of one ledger besides its entries: key, fence, LAC, the long polls parked on it
LiveBytes   how much of each entry log is live: what garbage collection and compaction decide by
GcStats     what garbage collection and compaction have done since the node started; read by tools and metrics
Contents    all of them with the entry logs, kept in step

Everything here is changed on the loop only. What is put here is in memory and on its way to the entry logs; making it
durable at once is left to the journal, and to the caller.

A log's `stored` counts every entry that was ever put into it, `live` those whose place in the index is there now. Both
count records without the gaps between them, so that a log is as full as its entries are alive, whatever their sizes.
They are kept up to date with every add, overwritten copy and deletion; they are counted anew from the sidecars when a
node starts, and never stored, so that they cannot be out of date (D9).
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from dataclasses import dataclass
from struct import Struct

from metadata.foundation.errors import InvariantViolation
from storage_node.bookie.disk.records import ALIGN, ENTRY, HEADER_BYTES, Slab
from storage_node.bookie.store.entry_logs import EntryLogs
from storage_node.bookie.store.index import LedgerIndex, NewPlaces
from storage_node.bookie.store.runs import StoredRun
from storage_node.bookie.store.waiters import LacWaiters
from storage_node.protocol.frames import Buffer

MAX_BARE_BY_LAC = 10_000
MAX_BARE_BY_FENCE = 100_000
"""How many ledgers may come into existence without an entry, by an explicit LAC or by a fence. Both are sent to nodes
that were given entries, so there are few; garbage collection removes those that are not in the metadata."""
CROWD = 100_000
"""Ledgers that came since the last round of garbage collection: the next one does not wait for its time."""
MAX_FENCES_KEPT = 200_000
"""Deleted ledgers whose fence is remembered."""
_LOOKED_AT = 8
_STATE = Struct(">qqQIBBH")
_FENCED, _HAS_KEY, _LIMBO = 1, 2, 4


class Ledger:
    """One ledger's state. Everything here is changed on the loop only, so check and change are one step."""

    __slots__ = (
        "born",
        "explicit_lac",
        "fence_pending",
        "fence_recalled",
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
        """Done when the fence is durable; None before there is a fence, and until one is asked for again."""
        self.fence_recalled = False
        """Fenced by the memory of a deletion: that fence may be on its way to the disk still (D19)."""
        self.lac = -1
        """The highest LAC that any entry or explicit LAC has named."""
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
        """Give every long poll its answer, after a fence or an explicit LAC."""
        if self.waiters is not None:
            self.waiters.wake_all()

    def encode(self) -> bytes:
        """Return the state for a checkpoint."""
        key, lac = self.master_key, self.explicit_lac or b""
        flags = (_FENCED if self.fenced else 0) | (_HAS_KEY if key is not None else 0)
        flags |= _LIMBO if self.limbo else 0
        key = key or b""
        return _STATE.pack(self.ledger_id, self.lac, *self.born, flags, len(key), len(lac)) + key + lac

    @classmethod
    def decode(cls, data: memoryview, at: int) -> tuple[Ledger, int]:
        """Return a state, and the offset behind it. The bytes had their checksum."""
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


class LogUsage:
    """Bytes of entries in one log."""

    __slots__ = ("live", "stored")

    def __init__(self) -> None:
        self.live = 0
        self.stored = 0

    @property
    def ratio(self) -> float:
        """The live part, from 0 to 1; an empty log is dead."""
        return self.live / self.stored if self.stored else 0.0


class LiveBytes:
    """The usage of every log that holds entries."""

    def __init__(self) -> None:
        self.logs: dict[int, LogUsage] = {}

    def of(self, log_id: int) -> LogUsage:
        """Return a log's usage, to be changed with each entry put into it."""
        usage = self.logs.get(log_id)
        if usage is None:
            usage = self.logs[log_id] = LogUsage()
        return usage

    def live(self, log_id: int) -> int:
        """Return the live bytes of a log."""
        usage = self.logs.get(log_id)
        return 0 if usage is None else usage.live

    def found(self, log_id: int, sizes: array[int], live: bool) -> None:
        """Note that a log holds entries of these sizes (at start)."""
        usage, total = self.of(log_id), sum(sizes)
        usage.stored += total
        if live:
            usage.live += total

    def gone(self, log_id: int, size: int) -> None:
        """Count a record as dead: a later copy has taken its place."""
        self.logs[log_id].live -= size

    def collected(self, index: LedgerIndex) -> None:
        """Count all entries of a ledger as dead."""
        for log_id, size in index.bytes_by_log():
            self.logs[log_id].live -= size

    def forget(self, log_id: int) -> None:
        """Forget a log that is deleted."""
        self.logs.pop(log_id, None)


@dataclass(slots=True)
class GcStats:
    """Counters that only grow."""

    rounds: int = 0
    """Rounds of garbage collection that were finished."""
    rounds_aborted: int = 0
    """Rounds that deleted nothing, because metadata could not be read."""
    ledgers_collected: int = 0
    """Ledgers deleted here because they are no longer in the metadata."""
    ledgers_moved_away: int = 0
    """Closed ledgers deleted here because other nodes store them by now."""
    logs_deleted: int = 0
    bytes_freed: int = 0
    """Length of the logs deleted."""
    logs_compacted: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0
    compactions_stopped: int = 0
    """Logs that could not be rewritten, because a record in them cannot be read; they are kept."""


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
        """Take over the ledgers of the checkpoint. No other ledger had been here then: what is not among them, and in
        no journal, was never stored, whatever else may be lost.
        """
        self.ledgers.update(ledgers)
        self.limbo.update(ledger_id for ledger_id, ledger in ledgers.items() if ledger.limbo)

    def lose(self, logs: set[int]) -> None:
        """Put into limbo every ledger that may miss entries of these lost logs: any that was here when one of them was
        written.
        """
        newest = max(logs - self.lost_logs, default=None)  # losses known before were dealt with then
        self.lost_logs.update(logs)
        for ledger_id, ledger in self.ledgers.items():
            # A ledger that came into existence in a later log has never had an entry in a lost one.
            if newest is not None and ledger.born[0] <= newest:
                ledger.limbo = True
                self.limbo.add(ledger_id)
                self.changed.add(ledger_id)

    def unknown(self, ledger_id: int) -> bool:
        """Return whether entries that are not found of this ledger are unknown, not absent (I11)."""
        return self.lossy or ledger_id in self.limbo

    def create(self, ledger_id: int) -> Ledger:
        """Make a ledger that was not here; fenced, if it was so when it was deleted."""
        ledger = self.ledgers[ledger_id] = Ledger(ledger_id, born=self.logs.position())
        # Its former writer may still send adds: the fence outlives the deletion (I5).
        ledger.fenced = ledger.fence_recalled = self.fenced_gone.pop(ledger_id, None) is not None
        self._created += 1
        if self._created >= CROWD:
            self.crowded.set()
        return ledger

    def counted(self) -> None:
        """Begin to count anew: metadata is asked now which ledgers there are."""
        self._created = 0
        self.crowded.clear()

    def create_bare(self, ledger_id: int, limit: int) -> Ledger | None:
        """Make a ledger without an entry; None: there are `limit` such ledgers already."""
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
            # Its writer may not know yet; without this its next add would bring the ledger back, unfenced (I5).
            self.fenced_gone[ledger_id] = now_ms
        self.live.collected(ledger.index)
        ledger.index = LedgerIndex()  # a read or a compaction that still holds the ledger finds nothing in it
        ledger.wake_all()
        return True

    def forget_fences(self, before_ms: int) -> None:
        """Forget fenced ledgers that were deleted before that time: their writers have long given up. Forget the oldest
        of too many as well.
        """
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
        # Index, live bytes and new places change in the same step as the log: no checkpoint may come between.
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

    def extend(self, ledger: Ledger, run: StoredRun) -> None:
        """Put a run of entries, which was written behind the last record, into log and index."""
        log_id, size = run.slab.log_id, sum(run.sizes)
        # All in one step, as in `append_entry`.
        self.logs.extend(run.slab, run.end)
        replaced = ledger.index.put_run(run.first, log_id, run.places, run.sizes)
        usage = self.live.logs.get(log_id) or self.live.of(log_id)
        usage.live += size
        usage.stored += size
        for previous in replaced:
            self.live.gone(previous[0], previous[2])
        new = self.new.get(log_id)
        if new is None:
            new = self.new[log_id] = NewPlaces()
        new.put_run(ledger.ledger_id, run.first, run.places, run.sizes)

    def append_fact(self, kind: int, ledger: Ledger, body: Buffer) -> tuple[Slab, int, int, int]:
        """Put a record about a ledger into memory and log, whatever the memory's limit."""
        placed = self.logs.append(kind, ledger.ledger_id, 0, body, True)
        if placed is None:
            raise InvariantViolation("there was no memory for a record that must be stored")
        self.changed.add(ledger.ledger_id)
        return placed
