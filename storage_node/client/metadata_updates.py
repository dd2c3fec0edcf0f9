"""`MetadataUpdates`: one ledger's metadata, written and read for a machine that decides what happens to it.

Fault model: the metadata store may answer, refuse, or go away with a write under way. A write whose outcome is not
known is never assumed to have been applied, nor not to have been: the machine reads what is there, and compares.
"""

from __future__ import annotations

from collections.abc import Callable

from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.foundation.errors import BadVersionError, DistributedLogError, OutcomeUnknownError
from storage_node.protocol.writing_model import WriteMetadata


class MetadataUpdates:
    """Carries out `WriteMetadata` and `ReadMetadata` for a machine, and feeds it the outcome."""

    def __init__(
        self,
        ledgers: LedgerStore,
        ledger_id: int,
        *,
        written: Callable[[LedgerMetadata, int], None],
        doubtful: Callable[[], None],
        found: Callable[[LedgerMetadata, int], None],
        failed: Callable[[DistributedLogError], None],
    ) -> None:
        self._ledgers = ledgers
        self._ledger_id = ledger_id
        self._written = written
        self._doubtful = doubtful
        self._found = found
        self._failed = failed

    async def write(self, effect: WriteMetadata) -> None:
        """Write the metadata conditionally; exactly one of `written`, `doubtful` and `failed` follows, and nothing is
        raised.
        """
        try:
            result = await self._ledgers.write(self._ledger_id, effect.metadata, effect.version)
        except (BadVersionError, OutcomeUnknownError):
            self._doubtful()  # never assumed either way: the machine reads the metadata and compares
        except DistributedLogError as error:
            self._failed(error)
        else:
            self._written(result.value, result.version)

    async def read(self) -> None:
        """Read the metadata; `found` or `failed` follows, and nothing is raised."""
        try:
            result = await self._ledgers.read(self._ledger_id)
        except DistributedLogError as error:
            self._failed(error)
        else:
            self._found(result.value, result.version)
