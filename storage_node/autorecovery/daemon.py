"""`AutoRecovery`: everything of auto-recovery that one process runs: a worker, and a candidate for the auditor.

One process of the cluster audits (`AuditorElection`), and another one follows when it ends.

It works with a metadata session of its own, which must not be a bookie's: locks and the vote are to end with the one
that works under them, not with the node beside it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from metadata.bookkeeper.auditors import AuditorStore
from metadata.bookkeeper.bookies import BookieRegistry, check_bookie_id
from metadata.bookkeeper.ledgers import DEFAULT_ROOT, LedgerStore
from metadata.bookkeeper.replication import ReplicationStore
from metadata.bookkeeper.topology import TopologyStore
from metadata.foundation.errors import DistributedLogError, InvariantViolation
from metadata.foundation.tasks import end_tasks
from metadata.store import MetadataStore, SessionState
from storage_node.autorecovery.auditor import Auditor
from storage_node.autorecovery.checker import LedgerChecker
from storage_node.autorecovery.replicating import FragmentReplicator
from storage_node.autorecovery.worker import ReplicationWorker
from storage_node.client.client import LedgerClient
from storage_node.client.placement.region_policy import RegionSwitches
from storage_node.edge import Clock, Network, SystemClock
from storage_node.settings.autorecovery import AutoRecoverySettings

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 5.0


class AutoRecovery:
    """How does a cluster get lost copies back? Runs a worker, and an auditor where this process is elected.

    `failed` is set where it had to give up because of a bug; `failure` then says why.

    Args:
        settings: intervals, bounds, its ledger client.
        store: its metadata session; the caller closes it, after `stop`.
        root: the znode of the cluster's ledgers.
        bookie_id: the name under which it votes and locks.
        network, clock, rng: the edges; the real ones if left out.

    Raises:
        CallerError: the name cannot be a bookie's.
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
        topology = TopologyStore(store, root)
        topology.keep()
        self._client = LedgerClient(
            self._ledgers,
            registry,
            settings=settings.client,
            network=network,
            rng=rng,
            # Also for ledgers without a rule over regions: what an operator closes gets no copies that are restored.
            # Feature switches do not reach it (docs/regions.md): it works for a cluster, they hold for a namespace.
            regions=RegionSwitches(topology.disallowed_regions, by_racks_too=True),
            topology=topology,
        )
        checker = LedgerChecker(self._client, self._ledgers, auditors, settings, rng)
        replicator = FragmentReplicator(self._client, self._ledgers, settings)
        self.worker = ReplicationWorker(self.marks, checker, replicator, self._client, settings, bookie_id, rng)
        clock = clock or SystemClock()

        async def audit() -> None:
            self.auditor = Auditor(
                self.marks,
                auditors,
                self._ledgers,
                registry,
                checker,
                settings,
                clock,
                self._client.judge_placement,
                self._client.knows_places,
            )
            await self.auditor.run()

        self.election = AuditorElection(auditors, bookie_id, audit)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin. Raises CallerError where no cluster is initialised, CorruptDataError where its under-replication was
        laid out by another kind of auto-recovery."""
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
        # First: once the vote is gone another candidate audits.
        await end_tasks(tasks)
        await self._client.close()
        try:
            await asyncio.wait_for(self.election.withdraw(), STOP_TIMEOUT_S)
        except (DistributedLogError, asyncio.TimeoutError) as error:
            logger.info("the vote is left to end with its session: %r", error)


RETRY_S: Final = 0.5


class AuditorElection:
    """Stands for election as `bookie_id`, and runs `audit()` for as long as it is the auditor.

    Every candidate casts one vote, an ephemeral sequential znode. The lowest is the auditor; each other one watches the
    vote before it. A vote ends with its session, and so does the term: an auditor that was cut off stops, stands again,
    and finds itself behind those that came first. Should two audit for a moment, nothing is lost: marks merge.
    """

    def __init__(self, auditors: AuditorStore, bookie_id: str, audit: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._auditors = auditors
        self._bookie_id = bookie_id
        self._audit = audit
        self._vote: str | None = None
        self.elected = False
        """True while this process audits."""

    async def run(self) -> None:
        """Vote, wait, audit, and again after each end of the session. Until it is cancelled or the store closed."""
        while True:
            try:
                await self._term()
            except InvariantViolation:
                raise
            except DistributedLogError as error:
                if self._auditors.store.state is SessionState.CLOSED:
                    return
                logger.warning("the election of the auditor is interrupted, trying again: %s", error)
                await asyncio.sleep(RETRY_S)

    async def withdraw(self) -> None:
        """Let another candidate follow at once, after `run` has been cancelled."""
        vote, self._vote = self._vote, None
        if vote is not None:
            await self._auditors.withdraw(vote)

    async def _term(self) -> None:
        """Live through one vote, from casting it to its end."""
        vote = self._vote = await self._auditors.vote(self._bookie_id)
        if not await self._wait_for_turn(vote):
            return
        await self._auditors.announce(self._bookie_id)
        logger.info("%s is the auditor", self._bookie_id)
        auditing = asyncio.get_running_loop().create_task(self._audit())
        ending = asyncio.get_running_loop().create_task(self._wait_for_end(vote))
        self.elected = True
        try:
            await asyncio.wait({auditing, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.elected = False
            await end_tasks([auditing, ending])
            logger.info("%s is the auditor no more", self._bookie_id)
        for task in (auditing, ending):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _wait_for_turn(self, vote: str) -> bool:
        """Return whether it became our turn; False where our vote is gone."""
        while True:
            votes = await self._auditors.votes()
            if vote not in votes:
                return False
            place = votes.index(vote)
            if place == 0:
                return True
            # Only the vote right before: if all watched the lowest one, its end would wake every candidate.
            await self._wait_for_end(votes[place - 1], once=True)

    async def _wait_for_end(self, vote: str, *, once: bool = False) -> None:
        """Return when the vote is gone; with `once` also when the watch became void, so that all is looked at again."""
        while True:
            changed = asyncio.Event()
            if not await self._auditors.watch_vote(vote, lambda _event, changed=changed: changed.set()):  # type: ignore[misc]
                return
            await changed.wait()
            if once:
                return
