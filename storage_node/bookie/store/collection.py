"""Garbage collection: ledgers that are no longer in the metadata are deleted here, and their space is freed.

A round, every gcWaitTime, or sooner where a hundred thousand ledgers have come since the last one (any client can make
them up):

    1. the ids of all local ledgers are noted, **before** metadata is asked (I13): they are the candidates. A ledger
       that comes later is not among them, and metadata exists before the first entry of its ledger does
    2. metadata is synced and its ledgers are listed, in one session; a ledger that is listed is a candidate no longer
    3. the candidates that remain are deleted (verifyMetadataOnGC: each is asked for once more)
    4. now and then, closed ledgers that no ensemble names this node for (they were replicated elsewhere) are deleted,
       each under its replication lock, so that no worker is about to write this node's name into its metadata
    5. a checkpoint makes that durable and removes logs in which nothing is live

Compaction begins after a round when it is due, whether or not metadata could be read; rounds go on beside it.

Any error of the metadata ends the round without a single deletion. So does a change of the session, since the new
session's server might be behind, and metadata of a cluster that this node does not belong to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.bookkeeper.replication import ReplicationStore
from metadata.foundation.errors import (
    CorruptDataError,
    DistributedLogError,
    MetadataUnavailableError,
    NoNodeError,
    is_a_bug,
)
from metadata.foundation.tasks import end_tasks
from storage_node.bookie.store.compaction import Throttle
from storage_node.bookie.store.storage import Storage
from storage_node.edge import Clock
from storage_node.errors import BookieFailedError, CookieMismatchError
from storage_node.settings.bookie import BookieSettings

logger = logging.getLogger(__name__)

FENCE_MEMORY_MS = 7 * 24 * 3600 * 1000
"""How long the writers of a fenced ledger are refused after it was deleted here (docs/reference/wire.md#adds)."""
CROWDED_WAIT_S = 60.0
"""A round does not follow another sooner, however many ledgers come."""
DELETED_TOGETHER = 16
"""Ledgers deleted in one turn of the loop."""


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The metadata that one node's garbage collection asks, and the node that it asks for."""

    bookie_id: str
    instance_id: str | None
    """The instance id of the cluster that this node belongs to."""
    ledgers: LedgerStore
    registry: BookieRegistry
    replication: ReplicationStore


class GarbageCollector:
    """Collects on one node. `start` begins the rounds, `stop` ends them; `collect` and `compact` may be called too."""

    def __init__(
        self,
        storage: Storage,
        settings: BookieSettings,
        cluster: ClusterMetadata,
        clock: Clock,
    ) -> None:
        self._storage = storage
        self._contents = storage.contents
        self._settings = settings
        self._bookie_id = cluster.bookie_id
        self._instance_id = cluster.instance_id
        self._ledgers = cluster.ledgers
        self._registry = cluster.registry
        self._replication = cluster.replication
        self._clock = clock
        self._throttle = Throttle(settings.gc_metadata_op_rate_limit)
        self._collecting = asyncio.Lock()
        self._compacting = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._compaction: asyncio.Task[bool] | None = None

    # ------------------------------------------------------------------------------------ rounds

    def start(self) -> None:
        """Begin the rounds."""
        self._task = asyncio.get_running_loop().create_task(self._rounds())

    async def stop(self) -> None:
        """End them, wherever they are: every step is safe to leave."""
        await end_tasks(task for task in (self._task, self._compaction) if task is not None)
        self._task = self._compaction = None

    async def _rounds(self) -> None:
        settings, loop = self._settings, asyncio.get_running_loop()
        moved = minor = major = loop.time()
        while True:
            await self._pause(settings.gc_wait_time_ms / 1000)
            now = loop.time()
            look = _due(now - moved, settings.gc_overreplicated_ledger_wait_time_ms / 1000)
            if await self._quietly(partial(self.collect, moved_away=look)) and look:
                moved = now
            if self._compaction is not None and not self._compaction.done():
                continue  # it is slow on purpose; collection does not wait for it
            if _due(now - major, settings.major_compaction_interval_s):
                major = minor = now
                self._compaction = loop.create_task(self._quietly(partial(self.compact, major=True)))
            elif _due(now - minor, settings.minor_compaction_interval_s):
                minor = now
                self._compaction = loop.create_task(self._quietly(partial(self.compact, major=False)))

    async def _pause(self, wait_s: float) -> None:
        """Wait for the next round, which comes early after very many new ledgers: clients may have made some up."""
        soonest_s = min(CROWDED_WAIT_S, wait_s)
        await asyncio.sleep(soonest_s)
        if wait_s > soonest_s:
            try:
                await asyncio.wait_for(self._contents.crowded.wait(), wait_s - soonest_s)
            except asyncio.TimeoutError:
                pass

    async def _quietly(self, work: Callable[[], Awaitable[int]]) -> bool:
        """Do a part of a round; what it fails with is logged. False: it failed."""
        try:
            await work()
        except Exception as error:
            if is_a_bug(error):  # it must not end garbage collection for good without a word
                logger.exception("a round of garbage collection failed")
            else:
                logger.warning("a round of garbage collection was given up: %s", error)
        else:
            return True
        return False

    async def collect(self, *, moved_away: bool = False) -> int:
        """Return one round; how many ledgers were deleted. `moved_away`: look for those that other nodes store by now,
        too.

        Raises the metadata store's errors (nothing was deleted then, unless among those that moved away), and
        BookieFailedError where no checkpoint can be taken.
        """
        async with self._collecting:
            self._check_writable()
            stats = self._contents.stats
            try:
                deleted = await self._collect()
                if moved_away:
                    deleted += await self._collect_moved()
            except DistributedLogError:
                stats.rounds_aborted += 1
                raise
            self._contents.forget_fences(self._clock.now_ms() - FENCE_MEMORY_MS)
            if self._contents.deleted or self._storage.checkpoints.can_free:
                await self._make_durable()
            stats.rounds += 1
            return deleted

    async def compact(self, *, major: bool) -> int:
        """Rewrite what is below the threshold; how many logs were. 0 where the threshold says never."""
        settings = self._settings
        threshold = settings.major_compaction_threshold if major else settings.minor_compaction_threshold
        async with self._compacting:
            self._check_writable()
            return await self._storage.compactor.compact(threshold) if threshold > 0 else 0

    async def _make_durable(self) -> None:
        if not await self._storage.checkpoints.take():
            raise BookieFailedError(
                f"no checkpoint could be taken: {self._storage.checkpoints.error}",
                advice="What was deleted may be here again after the next start, and is collected then",
            ) from self._storage.checkpoints.error

    def _check_writable(self) -> None:
        if self._storage.writing_failed:
            raise BookieFailedError(
                "nothing can be collected: the ledger directories cannot be written",
                advice="Mend the disk and start the node again",
            )

    # ------------------------------------------------------------------------------------ deleted ledgers

    async def _collect(self) -> int:
        candidates = set(self._contents.ledgers)  # before metadata is asked (I13)
        self._contents.counted()
        store = self._ledgers.store
        session = store.session_id
        await self._check_cluster()
        await store.sync(self._ledgers.root)  # the server may be behind: it must know every ledger that is noted (I13)
        async for ledger_id in self._ledgers.ids():
            candidates.discard(ledger_id)
        if self._settings.verify_metadata_on_gc:
            candidates = {ledger_id for ledger_id in sorted(candidates) if await self._read(ledger_id) is None}
        # After the listing and before the first deletion: a part of the list may be of another, older server (I13).
        if store.session_id != session:
            raise MetadataUnavailableError("the session ended while ledgers were listed; none was deleted")
        for count, ledger_id in enumerate(sorted(candidates), 1):
            if self._contents.delete(ledger_id, self._clock.now_ms()):
                self._contents.stats.ledgers_collected += 1
            if count % DELETED_TOGETHER == 0:
                await asyncio.sleep(0)
        if candidates:
            logger.info("%d deleted ledgers were collected", len(candidates))
        return len(candidates)

    async def _check_cluster(self) -> None:
        found = await self._registry.instance_id()
        if found != self._instance_id:
            raise CookieMismatchError(
                f"metadata is of another cluster now: its instance id is {found!r}, this node's {self._instance_id!r}",
                advice="Nothing was deleted. Point the node to the metadata of its own cluster",
            )

    async def _read(self, ledger_id: int) -> LedgerMetadata | None:
        """Return a ledger's metadata, None if there is none. Raises everything else."""
        await self._throttle.spend(1)
        try:
            return (await self._ledgers.read(ledger_id)).value
        except NoNodeError:
            return None

    # ------------------------------------------------------------------------------------ ledgers that moved away

    async def _collect_moved(self) -> int:
        """Delete closed ledgers that other nodes store by now."""
        deleted = 0
        for ledger_id in sorted(self._contents.ledgers):
            if ledger_id in self._contents.ledgers and await self._is_elsewhere(ledger_id):
                deleted += await self._collect_locked(ledger_id)
        return deleted

    async def _collect_locked(self, ledger_id: int) -> bool:
        """Delete it if that is still true while no worker can be about to store it here again."""
        lock = await self._replication.lock(ledger_id, self._bookie_id)
        if lock is None:
            return False
        try:
            # Read again under the lock: before that a worker may have put this node into an ensemble (I1).
            if not await self._is_elsewhere(ledger_id) or not self._replication.holds(lock):
                return False
            if not self._contents.delete(ledger_id, self._clock.now_ms()):
                return False
            self._contents.stats.ledgers_moved_away += 1
            return True
        finally:
            await self._replication.unlock(lock)

    async def _is_elsewhere(self, ledger_id: int) -> bool:
        """Return True if the ledger is closed, and no ensemble of it names this node."""
        try:
            metadata = await self._read(ledger_id)
        except CorruptDataError as error:
            logger.error("ledger %d is left alone: %s", ledger_id, error)
            return False
        if metadata is None or not metadata.is_closed:
            return False
        return all(self._bookie_id not in ensemble.bookies for ensemble in metadata.ensembles)


def _due(elapsed_s: float, interval_s: float) -> bool:
    return 0 < interval_s <= elapsed_s
