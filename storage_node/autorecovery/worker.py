"""`ReplicationWorker` takes marked ledgers, one after the other; `FragmentReplicator` restores their copies.

    task (lock) -> check -> repair each settled fragment -> check again -> remove the mark -> give the lock back

Where it is asked for, copies of a closed ledger that lie where the placement policy does not want them are moved before
the last check (`PlacementMender`).

The order of znodes is that of docs/reference/wire.md#replication-worker: mark, lock, copies, ledger metadata, mark
removed, lock removed; so a crash at any point leaves a mark for the next worker, and the lock goes with the session. A
mark is removed only with the version that was read under the lock, and only after a check that found nothing missing.

What cannot be finished keeps its lock for a while, so that no worker takes it up at once:

*The writer has to act*: a fragment that may still change lacks copies, or a bookie that the ledger is written to is not
writable. A living writer replaces the bookie by itself; if it has not done so after the grace period, the ledger is
recovered, which fences the writer and closes the ledger. Then it is taken up again.
*It could not be repaired*: too few bookies, or an entry that no replica gives. Each failure doubles the pause.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from metadata.bookkeeper.repairs import RepairQueue, RepairTask
from metadata.bookkeeper.replication import ReplicationStore
from metadata.foundation.errors import (
    DistributedLogError,
    InvariantViolation,
    NoNodeError,
)
from metadata.foundation.tasks import end_tasks, undisturbed
from metadata.store import SessionState, WatchEvent
from storage_node.autorecovery.checker import METADATA_AWAY, Inspection, LedgerChecker
from storage_node.autorecovery.mending import PlacementMender
from storage_node.autorecovery.replicating import FragmentReplicator
from storage_node.client.client import LedgerClient
from storage_node.settings.autorecovery import AutoRecoverySettings

logger = logging.getLogger(__name__)

MAX_DEFERRED: Final = 200
"""Ledgers whose locks are kept for later at once; beyond that the worker waits for one of them."""

MAX_FAILURES: Final = 10_000
"""Ledgers whose failures are counted; beyond that the oldest begin anew."""

STOP_TIMEOUT_S: Final = 5.0
_STEPS: Final = 5  # doublings from the first pause to the longest


class ReplicationWorker:
    """The one worker of a process. `owner` names it in the locks, for people."""

    def __init__(
        self,
        marks: ReplicationStore,
        checker: LedgerChecker,
        replicator: FragmentReplicator,
        client: LedgerClient,
        settings: AutoRecoverySettings,
        owner: str,
        rng: random.Random,
    ) -> None:
        self._marks = marks
        self._checker = checker
        self._replicator = replicator
        self.mender = PlacementMender(client, replicator, enabled=settings.repair_placement)
        self._client = client
        self._settings = settings
        self._news = asyncio.Event()
        self._queue = RepairQueue(marks, owner, rng, self._hear)
        self._failures: dict[int, int] = {}
        self._deferred: set[asyncio.Task[None]] = set()
        self._held: dict[int, RepairTask] = {}
        self._broken: asyncio.Future[None] | None = None
        self.repaired = 0
        """Ledgers that this worker found whole, or made whole, and whose marks it removed."""
        self.copies = 0
        """Copies of entries that it stored."""

    def _hear(self, _event: WatchEvent) -> None:
        self._news.set()

    async def run(self) -> None:
        """Repair what there is to repair. Until it is cancelled or the session closed; raises InvariantViolation."""
        self._broken = asyncio.get_running_loop().create_future()
        working = asyncio.get_running_loop().create_task(self._work())
        try:
            await asyncio.wait({working, self._broken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks([working, *self._deferred])
            # However the work ended: a lock that is kept lets no other worker repair its ledger until our session
            # ends.
            await undisturbed(self._give_all_back())
        for ended in (working, self._broken):
            if ended.done() and not ended.cancelled() and (error := ended.exception()) is not None:
                raise error

    async def _work(self) -> None:
        while True:
            try:
                await self._marks.wait_until_enabled()
                task = await self._next()
                self._held[task.ledger_id] = task
                advanced = await self._take_up(task)
            except InvariantViolation:
                raise
            except DistributedLogError as error:
                if self._marks.store.state is SessionState.CLOSED:
                    return
                logger.warning("the replication worker is interrupted, trying again: %s", error)
                advanced = False
            if not advanced or len(self._deferred) >= MAX_DEFERRED:
                await asyncio.sleep(self._settings.rereplicate_backoff_ms / 1000)

    async def _next(self) -> RepairTask:
        """Return a ledger to repair; waits for one, and while auto-recovery is switched off."""
        while True:
            # Before the look: a mark that comes during it sets this again, and is not missed.
            self._news.clear()
            task = await self._queue.next()
            if task is not None:
                return task
            await self._news.wait()
            await self._marks.wait_until_enabled()

    # ---- one ledger -------------------------------------------------------------------------------------------------

    async def _take_up(self, task: RepairTask) -> bool:
        """Repair a claimed ledger; False where that failed. Its lock is given back, now or later."""
        try:
            found = await self._repair(task)
        except NoNodeError:
            logger.info("ledger %d was deleted: there is nothing left to repair", task.ledger_id)
            await self._settle(task)
            return True
        except METADATA_AWAY:
            self._defer(task, _at_once)
            raise
        except InvariantViolation:
            raise
        except DistributedLogError as error:
            # Also an open ledger of which too few bookies are left to decide where it ends: no guess is made (D3).
            logger.warning("ledger %d cannot be repaired at present: %s", task.ledger_id, error)
        else:
            if found.waits_for_writer:
                self._defer(task, self._after_grace(task))
                return True
            if not found.bad:
                await self._settle(task)
                return True
            logger.warning("ledger %d still lacks copies of %s", task.ledger_id, ", ".join(sorted(found.missing)))
        self._defer(task, self._after_failure(task))
        return False

    async def _repair(self, task: RepairTask) -> Inspection:
        """Restore the copies of the settled fragments, then move those of a closed ledger that lie where they should
        not; what fails is left for another time, fragment by fragment.

        Returns how the ledger is now; where it waits for its writer, how it was.
        """
        found = await self._checker.inspect(task.ledger_id)
        for part in found.bad:
            if not part.fragment.settled:
                continue  # entries may still be added to it: copies made now would not be all of them
            try:
                stored = await self._replicator.repair(found, part, partial(self._marks.holds, task.lock))
            except (*METADATA_AWAY, NoNodeError, InvariantViolation):
                raise
            except DistributedLogError as error:
                logger.warning("the fragment at %d was not repaired: %s", part.fragment.first, error)
            else:
                self.copies += stored
                logger.info(
                    "ledger %d: %d copies restored of what %s held from entry %d on",
                    found.ledger_id,
                    stored,
                    ", ".join(sorted(part.bookies)),
                    part.fragment.first,
                )
        # The mark goes only after a check that finds nothing missing: another bookie may be lost meanwhile (I1).
        if found.waits_for_writer:
            return found
        found = await self._checker.inspect(task.ledger_id)
        if await self.mender.mend(found, partial(self._marks.holds, task.lock)):
            found = await self._checker.inspect(task.ledger_id)
        return found

    async def _settle(self, task: RepairTask) -> None:
        self._failures.pop(task.ledger_id, None)
        try:
            if await self._queue.settle(task):
                self.repaired += 1
        finally:
            self._held.pop(task.ledger_id, None)

    async def _give_back(self, task: RepairTask) -> None:
        if self._held.pop(task.ledger_id, None) is not None:
            lost = not self._marks.holds(task.lock)
            await self._queue.give_back(task)
            if lost:
                self._news.set()  # the lock went with its session: no event will report that the ledger is free now

    # ---- later ------------------------------------------------------------------------------------------------------

    def _defer(self, task: RepairTask, later: Callable[[], Awaitable[None]]) -> None:
        """Run `later` in the background, then give the lock back."""

        async def run() -> None:
            try:
                await later()
            except InvariantViolation as error:
                if self._broken is not None and not self._broken.done():
                    self._broken.set_exception(error)
            except DistributedLogError as error:
                logger.warning("ledger %d is left for another time: %s", task.ledger_id, error)
            await self._return_late(task)

        deferred = asyncio.get_running_loop().create_task(run())
        self._deferred.add(deferred)
        deferred.add_done_callback(self._deferred.discard)

    async def _return_late(self, task: RepairTask) -> None:
        try:
            await self._give_back(task)
        except DistributedLogError as error:
            logger.info("the lock of ledger %d ends with its session: %s", task.ledger_id, error)

    def _after_grace(self, task: RepairTask) -> Callable[[], Awaitable[None]]:
        async def later() -> None:
            await asyncio.sleep(self._settings.open_ledger_grace_period_ms / 1000)
            if not self._marks.holds(task.lock):
                return  # our session ended: another worker may have it now
            try:
                # Looked at again: in the meantime the writer may have replaced the lost bookie itself.
                found = await self._checker.inspect(task.ledger_id)
                if found.waits_for_writer:
                    await self._recover(found)
            except NoNodeError:
                return  # deleted: the next one to take it up removes the mark

        return later

    async def _recover(self, found: Inspection) -> None:
        logger.warning("ledger %d: its writer has not replaced a lost storage node; closing it", found.ledger_id)
        password = found.metadata.password or b""
        # This fences the writer and closes the ledger (I5, I2): from then on each of its fragments is settled.
        reader = await self._client.open(found.ledger_id, password=password, recover=True)
        await reader.close()

    def _after_failure(self, task: RepairTask) -> Callable[[], Awaitable[None]]:
        failures = self._failures.pop(task.ledger_id, 0)
        self._failures[task.ledger_id] = failures + 1
        if len(self._failures) > MAX_FAILURES:
            del self._failures[next(iter(self._failures))]
        # A first failure is often over soon; a ledger that keeps failing rests for the whole period, under our lock, so
        # that no other worker tries in vain meanwhile.
        pause_ms = self._settings.failed_ledger_lock_period_ms / 2 ** (_STEPS - min(failures, _STEPS))

        async def later() -> None:
            await asyncio.sleep(pause_ms / 1000)

        return later

    async def _give_all_back(self) -> None:
        """Give back what is still locked, within a bounded time: the rest goes with the session."""
        tasks, self._held = list(self._held.values()), {}

        async def give_back() -> None:
            for task in tasks:
                await self._queue.give_back(task)

        try:
            await asyncio.wait_for(give_back(), STOP_TIMEOUT_S)
        except (DistributedLogError, asyncio.TimeoutError) as error:
            logger.info("locks are left to end with their session: %r", error)


async def _at_once() -> None:
    """Return without a pause: the lock is given back as soon as that can be done."""
