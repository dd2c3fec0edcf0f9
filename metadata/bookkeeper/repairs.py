"""`RepairQueue`: which marked ledger a worker repairs next.

Marks that name lost replicas come first. A mark that names none asks for nothing but a look at where the copies lie
(`ReplicationStore.mark_placement`), and there may be one for every ledger of a cluster: it is set aside, and handed out
only when a search has read every mark and found no lost copy that this worker could restore.

*Round trips.* A search lists the three outer levels of folders; the innermost one says its ledger's id, so that it
takes one read for each mark, MARK_READS of them at once. A lost replica is handed out as soon as it is met. While marks
are aside the search is begun anew only after a pause of SEARCH_SHARE times what the last one took, and five minutes at
most. So what is lost meanwhile waits no longer than that pause and a search, and where a search takes less than half a
minute, a tenth of the time at most goes into it.

Java's workers draw from the same marks at random, and take no notice of what a mark names.
"""

from __future__ import annotations

import asyncio
import random
from array import array
from dataclasses import dataclass
from typing import Final

from metadata.bookkeeper.ledgers import Versioned
from metadata.bookkeeper.replication import LedgerLock, ReplicationStore, UnderReplicatedLedger, folder_of, ledger_of
from metadata.foundation.errors import CorruptDataError
from metadata.foundation.pacing import for_each
from metadata.store import Watcher

MARK_READS: Final = 32
"""Folders and marks that a search reads at once."""
SEARCH_PAUSE_S: Final = 10.0
"""The least pause between two searches while there are marks of placement to take."""
LONGEST_PAUSE_S: Final = 300.0
"""The longest one: lost copies matter more than what searching costs."""
SEARCH_SHARE: Final = 10
"""A pause is so many times as long as the search before it."""


@dataclass(frozen=True, slots=True)
class RepairTask:
    """Which marked ledger is ours to repair? Its lock, and the mark as read once the lock was held."""

    lock: LedgerLock
    mark: Versioned[UnderReplicatedLedger]

    @property
    def ledger_id(self) -> int:
        """The ledger to repair."""
        return self.lock.ledger_id


class RepairQueue:
    """Which ledger can be repaired next? Hands out the marked ones that no worker repairs yet, each under its lock:
    those that lack copies before those whose copies lie where they should not. Not for several tasks.

    A search goes through the folders of marks in random order, so that many workers do not meet. What it has listed is
    used up before anything is listed again: with a hundred thousand marks a folder's names are a megabyte.

    Args:
        marks: the cluster's marks and locks.
        owner: the name that the locks give.
        rng: draws the order.
        watch: hears of marks that come where there were none.
    """

    def __init__(self, marks: ReplicationStore, owner: str, rng: random.Random, watch: Watcher | None = None) -> None:
        self._marks = marks
        self._owner = owner
        self._rng = rng
        self._watch = watch
        self._folders: list[str] = []
        self._lost: list[int] = []
        self._aside = array("q")  # eight bytes each: there may be one for every ledger
        self._locked: set[int] = set()
        self._unreadable: CorruptDataError | None = None
        self._search_s = 0.0
        self._next_search_s = 0.0

    async def next(self) -> RepairTask | None:
        """Return a ledger under our lock. None where a whole search found none: then `watch` hears of a new mark, and
        of a lock that was given back.

        A mark that cannot be read is passed over: its error is raised only where nothing else is left to repair.
        """
        begun = False
        while True:
            task = None
            if self._lost:
                task = await self._try(self._lost.pop())
            elif self._folders:
                await self._search()
            elif not begun and (not self._aside or _now_s() >= self._next_search_s):
                begun = True
                await self._begin_search()
            elif self._aside:
                task = await self._try(self._aside.pop())
            elif self._unreadable is not None:
                raise self._unreadable
            else:
                return None
            if task is not None:
                return task

    async def _begin_search(self) -> None:
        self._locked = await self._marks.locked(self._watch)
        self._unreadable = None
        del self._aside[:]  # each is read once more: it may lack copies by now
        self._search_s = 0.0
        self._folders.append("")

    async def _search(self) -> None:
        """Look into the next folders, and read the marks of the innermost ones. An error leaves all as it was."""
        begin_s = _now_s()
        folders = self._folders[-MARK_READS:]
        inner: list[str] = []
        lost: list[int] = []
        aside: list[int] = []

        async def look(folder: str) -> None:
            ledger_id = ledger_of(folder)
            if ledger_id is None:
                inner.extend((await self._marks.folder(folder, self._watch))[0])
            elif ledger_id not in self._locked:
                names_lost = await self._names_lost(ledger_id)
                if names_lost is not None:
                    (lost if names_lost else aside).append(ledger_id)

        await for_each(folders, len(folders), look)
        del self._folders[-len(folders) :]
        self._rng.shuffle(inner)
        self._folders.extend(inner)
        self._lost.extend(lost)
        self._aside.extend(aside)
        now_s = _now_s()
        self._search_s += now_s - begin_s
        if not self._folders:
            pause_s = min(max(SEARCH_SHARE * self._search_s, SEARCH_PAUSE_S), LONGEST_PAUSE_S)
            self._next_search_s = now_s + pause_s

    async def _names_lost(self, ledger_id: int) -> bool | None:
        """Return whether a ledger's mark names lost replicas; None where it has none, or one that cannot be read."""
        try:
            mark = await self._marks.read(ledger_id)
            if mark is None:
                # Repaired since it was listed, or a folder that was left behind: then a mark that comes into it changes
                # nothing in the folder above. (One that is there now goes with a lock, and `watch` hears of that.)
                _, ledgers = await self._marks.folder(folder_of(ledger_id), self._watch)
                mark = await self._marks.read(ledger_id) if ledger_id in ledgers else None
        except CorruptDataError as error:
            self._unreadable = error
            return None
        return None if mark is None else bool(mark.value.missing)

    async def _try(self, ledger_id: int) -> RepairTask | None:
        try:
            if await self._marks.read(ledger_id) is None:
                return None  # repaired since it was found
            lock = await self._marks.lock(ledger_id, self._owner)
            if lock is None:
                return None
            try:
                mark = await self._marks.read(ledger_id)  # the version that counts: only we may remove it from here on
            except BaseException:
                await self._marks.unlock(lock)
                raise
        except CorruptDataError as error:
            self._unreadable = error
            return None
        if mark is None:
            await self._marks.unlock(lock)
            return None
        return RepairTask(lock, mark)

    async def settle(self, task: RepairTask) -> bool:
        """Remove the mark of a ledger that is whole, unless it was set again; then give the lock back.

        False where it was marked again, or the lock's session has ended: then it is not ours to say.
        """
        try:
            return self._marks.holds(task.lock) and await self._marks.remove_mark(task.ledger_id, task.mark.version)
        finally:
            await self._marks.unlock(task.lock)

    async def give_back(self, task: RepairTask) -> None:
        """Leave the mark as it is; others may try."""
        await self._marks.unlock(task.lock)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
