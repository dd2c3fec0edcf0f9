"""`AuditorElection`: makes sure that one process of the cluster audits, and that another follows when it ends.

Every candidate casts one vote, an ephemeral sequential znode. The lowest is the auditor; each other one watches the
vote before it. A vote ends with its session, and so does the term: an auditor that was cut off stops, stands again, and
finds itself behind whoever came first. Should two audit for a moment, nothing is lost: marks merge.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from metadata.auditors import AuditorStore
from metadata.foundation.errors import DistributedLogError, InvariantViolation
from metadata.foundation.tasks import end_tasks
from metadata.store import SessionState

logger = logging.getLogger(__name__)

RETRY_S: Final = 0.5


class AuditorElection:
    """Stands for election as `bookie_id`, and runs `audit()` for as long as it is the auditor."""

    def __init__(self, auditors: AuditorStore, bookie_id: str, audit: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._auditors = auditors
        self._bookie_id = bookie_id
        self._audit = audit
        self._vote: str | None = None
        self.elected = False
        """Whether this process audits at present."""

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
        """Let somebody else follow at once, after `run` has been cancelled."""
        vote, self._vote = self._vote, None
        if vote is not None:
            await self._auditors.withdraw(vote)

    async def _term(self) -> None:
        """One vote, from casting it to its end."""
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
        """Whether it became our turn; False where our vote is gone."""
        while True:
            votes = await self._auditors.votes()
            if vote not in votes:
                return False
            place = votes.index(vote)
            if place == 0:
                return True
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
