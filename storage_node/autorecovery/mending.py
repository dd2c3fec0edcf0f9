"""`PlacementMender` moves copies of closed ledgers whose ensembles do not keep the placement policy.

Only under the ledger's lock, only of a ledger that is closed and lacks no copy, and only where the policy's verdict on
the ensemble gets better by it. In the order of a repair and no other: every copy is on the disk of its new bookie
before the metadata name that one, in one conditional write; the old copy stays until its bookie collects it. So at no
moment has an entry fewer copies than before, and a crash leaves either the old ensemble or the new one.

What cannot be mended now is reported with the reason, and its mark is removed: the auditor's next check of placement
marks it again. So it is tried once in an interval, and keeps no worker from ledgers that lack copies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from metadata.foundation.errors import DistributedLogError, InvariantViolation, NoNodeError
from storage_node.autorecovery.checker import METADATA_AWAY, Fragment, Inspection, fragments_of
from storage_node.autorecovery.replicating import FragmentReplicator
from storage_node.client.client import LedgerClient
from storage_node.client.placement.arranging import Adherence

logger = logging.getLogger(__name__)

MAX_REASONS: Final = 100
"""Ledgers whose reason is kept; beyond that the oldest are forgotten, and stay in the log."""


class PlacementMender:
    """Which copies lie where they should not, and can be moved? For one worker.

    Args:
        client: knows the placement policy.
        replicator: copies, within the process's limit of bytes a second.
        enabled: `repairedPlacementPolicyNotAdheringBookieEnable`; False: nothing is looked at.
    """

    def __init__(self, client: LedgerClient, replicator: FragmentReplicator, *, enabled: bool) -> None:
        self._client = client
        self._replicator = replicator
        self._enabled = enabled
        self.mended = 0
        """Fragments that keep the policy since this worker moved copies of them."""
        self.copies = 0
        """Copies of entries that were moved."""
        self.unmended: dict[int, str] = {}
        """Ledgers that could not be mended when they were last looked at, and why."""

    async def mend(self, ledger: Inspection, still_locked: Callable[[], bool]) -> bool:
        """Move what can be moved of a ledger that lacks no copy; returns whether its metadata changed.

        Raises NoNodeError where it was deleted, the metadata store's errors, and what came once the lock was lost; what
        else kept a fragment from being mended is reported.
        """
        if not self._enabled or not ledger.metadata.is_closed or ledger.bad:
            return False
        self.unmended.pop(ledger.ledger_id, None)
        changed = False
        for fragment in fragments_of(ledger.metadata, ledger.last_add_confirmed):
            try:
                changed |= await self._mend(ledger, fragment, still_locked)
            except (*METADATA_AWAY, NoNodeError, InvariantViolation):
                raise
            except DistributedLogError as error:
                if not still_locked():
                    raise  # the others could not be entered either, after all of their copies were made
                self._report(ledger.ledger_id, fragment, error)
        return changed

    async def _mend(self, ledger: Inspection, fragment: Fragment, still_locked: Callable[[], bool]) -> bool:
        metadata = ledger.metadata
        if await self._client.judge_placement(fragment.bookies, metadata) is not Adherence.FAIL:
            return False
        moves, stored = await self._replicator.move(ledger, fragment, still_locked)
        if not moves:
            return False
        self.mended += 1
        self.copies += stored
        logger.info(
            "ledger %d: the fragment at %d keeps the placement policy now: %d copies were moved, %s",
            ledger.ledger_id,
            fragment.first,
            stored,
            ", ".join(f"{fragment.bookies[index]} to {new}" for index, new in sorted(moves.items())),
        )
        return True

    def _report(self, ledger_id: int, fragment: Fragment, error: DistributedLogError) -> None:
        logger.warning(
            "ledger %d does not keep the placement policy, and its fragment at %d stays as it is until the next check "
            "of placement: %s",
            ledger_id,
            fragment.first,
            error,
        )
        self.unmended[ledger_id] = f"from entry {fragment.first} on: {error.message}"
        if len(self.unmended) > MAX_REASONS:
            del self.unmended[next(iter(self.unmended))]
