"""`AutoRecovery`: everything of auto-recovery that one process runs: a worker, and a candidate for the auditor.

It works with a metadata session of its own, which must not be a bookie's: locks and the vote are to end with the one
that works under them, not with the node beside it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

from metadata.auditors import AuditorStore
from metadata.bookies import BookieRegistry, check_bookie_id
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.tasks import end_tasks
from metadata.ledgers import DEFAULT_ROOT, LedgerStore
from metadata.replication import ReplicationStore
from metadata.store import MetadataStore
from storage_node.autorecovery.auditor import Auditor
from storage_node.autorecovery.checker import LedgerChecker
from storage_node.autorecovery.election import AuditorElection
from storage_node.autorecovery.replicator import FragmentReplicator
from storage_node.autorecovery.worker import ReplicationWorker
from storage_node.client import LedgerClient
from storage_node.edge import Clock, Network, SystemClock
from storage_node.settings.autorecovery import AutoRecoverySettings

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 5.0


class AutoRecovery:
    """Auto-recovery on the cluster at `root`, under the name `bookie_id`. Whoever made `store` closes it, after `stop`.

    `failed` is set where it had to give up because of a bug; `failure` then says why.
    """

    def __init__(
        self,
        settings: AutoRecoverySettings,
        store: MetadataStore,
        root: str = DEFAULT_ROOT,
        *,
        bookie_id: str,
        network: Network | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        check_bookie_id(bookie_id)
        rng = rng or random.Random()
        self.failed = asyncio.Event()
        self.failure: BaseException | None = None
        self.auditor: Auditor | None = None
        """The latest term of this process as auditor."""
        self.marks = ReplicationStore(store, root)
        self._ledgers = LedgerStore(store, root)
        registry = BookieRegistry(store, root)
        auditors = AuditorStore(store, root)
        self._client = LedgerClient(self._ledgers, registry, settings=settings.client, network=network, rng=rng)
        checker = LedgerChecker(self._client, self._ledgers, auditors, settings, rng)
        replicator = FragmentReplicator(self._client, self._ledgers, settings)
        self.worker = ReplicationWorker(self.marks, checker, replicator, self._client, settings, bookie_id, rng)
        clock = clock or SystemClock()

        async def audit() -> None:
            judge = self._client.judge_placement
            self.auditor = Auditor(self.marks, auditors, self._ledgers, registry, checker, settings, clock, judge)
            await self.auditor.run()

        self.election = AuditorElection(auditors, bookie_id, audit)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin. Raises CallerError where no cluster is initialised, CorruptDataError where another kind of
        auto-recovery has been at work on it."""
        await self._ledgers.layout()
        await self.marks.prepare()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self.worker.run()), loop.create_task(self.election.run())]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self.failure is None:
            logger.critical("auto-recovery has to give up", exc_info=error)
            self.failure = error
            self.failed.set()

    async def stop(self) -> None:
        """End everything; the auditor's place and the locks are given up, if the metadata store answers. Idempotent."""
        tasks, self._tasks = self._tasks, []
        await end_tasks(tasks)
        await self._client.close()
        try:
            await asyncio.wait_for(self.election.withdraw(), STOP_TIMEOUT_S)
        except (DistributedLogError, asyncio.TimeoutError) as error:
            logger.info("the vote is left to end with its session: %r", error)
