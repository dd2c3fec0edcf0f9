"""`ReplicationWorker` takes marked ledgers, one after the other; `FragmentReplicator` restores their copies.

    task (lock) -> check -> repair each settled fragment -> check again -> remove the mark -> give the lock back

The order of znodes is that of docs/reference/wire.md#replication-worker: mark, lock, copies, ledger metadata, mark
removed, lock removed; so a crash at any point leaves a mark for the next worker, and the lock goes with the session. A
mark is removed only with the version that was read under the lock, and only after a check that found nothing missing.

A fragment is repaired in this order and no other: choose replacements, copy every entry that they must have, wait until
all are on their disks, and only then swap the names in that one ensemble by compare-and-set. A crash before leaves
copies that are not referred to (their bookies collect them); after it the fragment is whole. State, end and keys of a
ledger are never touched, so that this may run beside a writer, a recovery, or another replicator of the same fragment.

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
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from metadata.bookkeeper.ledgers import LedgerStore
from metadata.bookkeeper.replication import RepairQueue, RepairTask, ReplicationStore
from metadata.foundation.errors import (
    BadVersionError,
    DistributedLogError,
    InvariantViolation,
    NoNodeError,
    NotAppliedError,
    check,
)
from metadata.foundation.pacing import ByteRate, for_each
from metadata.foundation.tasks import end_tasks, undisturbed
from metadata.store import SessionState, WatchEvent
from storage_node.autorecovery.checker import METADATA_AWAY, BadFragment, Fragment, Inspection, LedgerChecker
from storage_node.client.client import LedgerClient
from storage_node.client.ledger_copies import LedgerCopies
from storage_node.errors import NotEnoughBookiesError, UnauthorizedAccessError
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
        """Restore the copies of the settled fragments; what fails is left for another time, fragment by fragment.

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
        return found if found.waits_for_writer else await self._checker.inspect(task.ledger_id)

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


# ------------------------------------------------------------------------------------ copies

MAX_ATTEMPTS: Final = 20
"""How often the swap is tried while the metadata keeps changing."""


class Swap(NamedTuple):
    """One bookie is replaced by another in an ensemble."""

    old: str
    new: str


class FragmentReplicator:
    """Repairs settled fragments, for one process: the limit of bytes a second is for all of them together."""

    def __init__(self, client: LedgerClient, ledgers: LedgerStore, settings: AutoRecoverySettings) -> None:
        self._client = client
        self._ledgers = ledgers
        self._batch = settings.entry_batch_size
        self._rate = ByteRate(settings.rate_by_bytes)

    async def repair(self, ledger: Inspection, part: BadFragment, still_locked: Callable[[], bool]) -> int:
        """Replace as many of the bad bookies as there are others for; the number of copies stored.

        The names are swapped only while `still_locked`: without the lock a replacement may collect its new copies, as
        those of a ledger that does not name it, right before the metadata would name it (I1).

        Raises NotEnoughBookiesError where there is none at all, else what kept an entry from being read or stored:
        then the metadata is as it was.
        """
        fragment = part.fragment
        check(fragment.settled, "a fragment that may still change was to be repaired", ledger_id=ledger.ledger_id)
        picked, stored = await self._copy(ledger, part)
        swaps = {index: Swap(fragment.bookies[index], new) for index, new in picked.items()}

        def guard() -> None:
            if not still_locked():
                raise NotAppliedError(
                    "the session that held the ledger's lock has ended; its restored copies were not entered",
                    advice="The mark is still there: the ledger is taken up again",
                    ledger_id=ledger.ledger_id,
                )

        # Every copy is on disk by now: from the swap on readers and recoveries count on them (I1).
        await self._publish(ledger.ledger_id, fragment, swaps, guard)
        return stored

    async def _copy(self, ledger: Inspection, part: BadFragment) -> tuple[Mapping[int, str], int]:
        """Choose replacements and store their copies. Returns the chosen bookies by index, and the number of copies.

        A bookie that answers EUA keeps, under this ledger's id, what others wrote: another one is chosen.
        """
        copies = self._client.copies(ledger.ledger_id, ledger.metadata)
        strangers: set[str] = set()
        while True:
            picked = await copies.replacements(part.fragment.bookies, part.bad, strangers)
            if not picked:
                raise NotEnoughBookiesError(
                    f"no storage node is left to take the place of {', '.join(sorted(part.bookies))}",
                    advice="Start another storage node, or bring the lost one back",
                    ledger_id=ledger.ledger_id,
                )
            try:
                return picked, await self._copy_to(picked, copies, ledger, part.fragment)
            except UnauthorizedAccessError as error:
                if error.node is None or error.node in strangers:
                    raise  # no other choice would help
                strangers.add(error.node)
                logger.warning("%s cannot take copies of ledger %d: %s", error.node, ledger.ledger_id, error.message)

    async def _copy_to(
        self, picked: Mapping[int, str], copies: LedgerCopies, ledger: Inspection, fragment: Fragment
    ) -> int:
        stored = 0

        async def copy(entry_id: int) -> None:
            nonlocal stored
            entry = await copies.fetch(ledger.metadata, entry_id)
            # Only where the entry belongs: with more bookies than copies a replacement need not have all of them.
            targets = [picked[index] for index in fragment.holders(entry_id, picked)]
            await self._rate.take(len(entry.payload) * len(targets))
            # With the LAC of the inspection: an entry that is packaged anew must not claim more than is committed (I6).
            await copies.add(entry, ledger.last_add_confirmed, targets)
            stored += len(targets)

        await for_each(fragment.stored_on_any(picked), self._batch, copy)
        return stored

    async def _publish(
        self, ledger_id: int, fragment: Fragment, swaps: Mapping[int, Swap], guard: Callable[[], None]
    ) -> None:
        """Swap the names of those that are still in their places; what another has swapped meanwhile stays."""
        for _ in range(MAX_ATTEMPTS):
            current = await self._ledgers.read(ledger_id)
            # Computed anew at each attempt: a writer, a recovery or another worker may have changed the ensembles.
            changed = current.value.with_copies_on(fragment.first, swaps)
            if changed is None:
                logger.info("ledger %d: the fragment at %d was repaired elsewhere", ledger_id, fragment.first)
                return
            try:
                await self._ledgers.write(ledger_id, changed, current.version, guard=guard)
                return
            except BadVersionError:
                continue
        raise BadVersionError(
            f"the metadata changed {MAX_ATTEMPTS} times while restored copies were to be entered",
            advice="The copies are stored; the ledger will be looked at again",
            ledger_id=ledger_id,
        )
