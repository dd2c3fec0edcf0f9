"""Do the ensembles of closed ledgers keep the placement policy? They are counted and named in the log; none is moved.

Every fragment of a ledger is judged by the policy of auto-recovery's own ledger client (the placement keys in its
file). A ledger is as good as its worst fragment. An open ledger is passed over: its writer may still replace bookies.
Where no racks are configured all bookies are in one, and no ledger keeps the policy, as upstream has it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from metadata.foundation.errors import CorruptDataError, NoNodeError
from metadata.foundation.pacing import for_each
from metadata.ledger_metadata import LedgerMetadata
from metadata.ledgers import LedgerStore
from storage_node.client.placement.arranging import Adherence

logger = logging.getLogger(__name__)

METADATA_READS: Final = 32
"""Ledgers whose metadata is read at once."""
MAX_VERDICTS: Final = 10_000
"""Ensembles whose verdict is remembered for the rest of a pass: most ledgers share theirs with others."""
MAX_NAMED: Final = 100
"""Ledgers that a pass names in the log; all are counted."""

Judge: TypeAlias = Callable[[Sequence[str], int], Awaitable[Adherence]]


@dataclass(slots=True)
class PlacementReport:
    """What one pass found: numbers of ledgers."""

    closed: int = 0
    """Those that were judged."""
    not_adhering: int = 0
    softly_adhering: int = 0
    """They keep the policy in the racks that are known, but not all of their bookies' racks are."""
    unreadable: int = 0


class PlacementCheck:
    """One pass over all ledgers. `judge(bookies, write_quorum)` is the policy's."""

    def __init__(self, ledgers: LedgerStore, judge: Judge) -> None:
        self._ledgers = ledgers
        self._judge = judge
        self._verdicts: dict[tuple[tuple[str, ...], int], Adherence] = {}
        self.report = PlacementReport()

    async def run(self) -> PlacementReport:
        """Raises the metadata store's errors."""
        await for_each(self._ledgers.ids(), METADATA_READS, self._look)
        return self.report

    async def _look(self, ledger_id: int) -> None:
        try:
            metadata = (await self._ledgers.read(ledger_id)).value
        except NoNodeError:
            return  # deleted since it was listed
        except CorruptDataError as error:
            logger.error("the placement of a ledger cannot be checked: %s", error)
            self.report.unreadable += 1
            return
        if metadata.is_closed:
            await self._count(ledger_id, metadata)

    async def _count(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        report = self.report
        verdicts = [await self._verdict(part.bookies, metadata.write_quorum) for part in metadata.ensembles]
        report.closed += 1
        worst = min(verdicts)
        if worst is Adherence.MEETS_SOFT:
            report.softly_adhering += 1
        elif worst is Adherence.FAIL:
            report.not_adhering += 1
            if report.not_adhering <= MAX_NAMED:
                bad = [
                    f"from entry {part.first_entry} on {', '.join(part.bookies)}"
                    for part, verdict in zip(metadata.ensembles, verdicts, strict=True)
                    if verdict is Adherence.FAIL
                ]
                logger.warning("ledger %d does not keep the placement policy: %s", ledger_id, "; ".join(bad))

    async def _verdict(self, bookies: tuple[str, ...], write_quorum: int) -> Adherence:
        key = (bookies, write_quorum)
        found = self._verdicts.get(key)
        if found is None:
            found = await self._judge(bookies, write_quorum)
            if len(self._verdicts) >= MAX_VERDICTS:
                self._verdicts.clear()
            self._verdicts[key] = found
        return found
