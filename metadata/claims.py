"""`Claims`: hands one process the marked ledgers that nobody repairs yet, each under its lock.

A descent through the folders of marks, in random order so that many workers do not meet. What it has listed is used up
before anything is listed again: with a hundred thousand marks a folder's names are a megabyte.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from metadata.foundation.errors import CorruptDataError
from metadata.ledgers import Versioned
from metadata.replication import LedgerLock, ReplicationStore, UnderReplicatedLedger
from metadata.store import Watcher


@dataclass(frozen=True, slots=True)
class Claim:
    """A marked ledger that is ours to repair: its lock, and the mark as read once the lock was held."""

    lock: LedgerLock
    mark: Versioned[UnderReplicatedLedger]

    @property
    def ledger_id(self) -> int:
        return self.lock.ledger_id


class Claims:
    """What `owner` may repair. Not for use by several tasks at a time."""

    def __init__(self, marks: ReplicationStore, owner: str, rng: random.Random, watch: Watcher | None = None) -> None:
        self._marks = marks
        self._owner = owner
        self._rng = rng
        self._watch = watch
        self._folders: list[str] = []
        self._ledgers: list[int] = []
        self._locked: set[int] = set()

    async def next(self) -> Claim | None:
        """A ledger under our lock. None where a whole descent found none: then `watch` hears of a new mark, and of a
        lock that was given back.

        A mark that cannot be read is passed over: its error is raised only where nothing else is left to repair.
        """
        begun = False
        unreadable: CorruptDataError | None = None
        while True:
            while self._ledgers:
                try:
                    claim = await self._try(self._ledgers.pop())
                except CorruptDataError as error:
                    unreadable = error
                    continue
                if claim is not None:
                    return claim
            if self._folders:
                await self._descend(self._folders.pop())
            elif begun:
                if unreadable is not None:
                    raise unreadable
                return None
            else:
                begun = True
                self._locked = await self._marks.locked(self._watch)
                await self._descend("")

    async def _descend(self, folder: str) -> None:
        folders, ledgers = await self._marks.folder(folder, self._watch)
        self._rng.shuffle(folders)
        self._rng.shuffle(ledgers)
        self._folders.extend(folders)
        self._ledgers.extend(ledgers)

    async def _try(self, ledger_id: int) -> Claim | None:
        if ledger_id in self._locked:
            return None
        if await self._marks.read(ledger_id) is None:
            return None  # repaired since it was listed
        lock = await self._marks.lock(ledger_id, self._owner)
        if lock is None:
            return None
        try:
            mark = await self._marks.read(ledger_id)  # the version that counts: nobody else removes it from here on
        except BaseException:
            await self._marks.unlock(lock)
            raise
        if mark is None:
            await self._marks.unlock(lock)
            return None
        return Claim(lock, mark)

    async def settle(self, claim: Claim) -> bool:
        """The ledger is whole: remove its mark unless it was set again, then give the lock back.

        False where it was marked again, or the lock's session has ended: then it is not ours to say.
        """
        try:
            return self._marks.holds(claim.lock) and await self._marks.remove_mark(claim.ledger_id, claim.mark.version)
        finally:
            await self._marks.unlock(claim.lock)

    async def give_back(self, claim: Claim) -> None:
        """Leave the mark as it is; others may try."""
        await self._marks.unlock(claim.lock)
