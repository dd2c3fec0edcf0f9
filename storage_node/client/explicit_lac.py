"""`ExplicitLac`: writes the LAC to bookies where no later add carries it, for readers at the end of a quiet ledger.

With an interval, the LAC is written once no add has carried a later one for that long; what fails is logged and tried
again, later each time. `flush` writes it at once and says whether it worked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from metadata.foundation.errors import DistributedLogError
from metadata.ledger_metadata import LedgerMetadata
from storage_node.client.connections import ConnectionPool
from storage_node.client.requests import ask_bookies
from storage_node.protocol.digests import EntryDigest, master_key
from storage_node.protocol.messages import Operation, encode_write_lac_request
from storage_node.protocol.striping import write_set
from storage_node.protocol.writing import WriterMachine

logger = logging.getLogger(__name__)

LONGEST_PAUSE_S = 5.0
"""Between tries, while bookies do not take the LAC."""


class ExplicitLac:
    """The explicit LAC of one writer. `carried` gives the LAC that its last add carried; `start` runs a background task
    of it."""

    def __init__(
        self,
        pool: ConnectionPool,
        machine: WriterMachine,
        digest: EntryDigest,
        *,
        carried: Callable[[], int],
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._pool = pool
        self._machine = machine
        self._digest = digest
        self._key = master_key(machine.metadata.password or b"")
        self._carried = carried
        self._start = start
        self._interval_s = pool.settings.explicit_lac_interval_ms / 1000
        self._pause_s = self._interval_s
        self._told = -1
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def moved(self) -> None:
        """The LAC has moved: write it after the interval, unless an add carries it before."""
        if self._interval_s > 0 and self._timer is None and not self._stopped:
            self._timer = self._pool.loop.call_later(self._pause_s, self._due)

    def _due(self) -> None:
        self._start(self._tell())

    async def _tell(self) -> None:
        carried = self._carried()
        failed_for_s, self._pause_s = self._pause_s, self._interval_s
        if carried > self._told:
            self._told = carried  # adds are coming, and the next one will carry what the last one could not
        elif self._machine.last_add_confirmed > self._told:
            try:
                await self.flush()
            except DistributedLogError as error:
                self._pause_s = min(2 * failed_for_s, max(LONGEST_PAUSE_S, self._interval_s))
                logger.warning("the LAC of ledger %d could not be made known: %s", self._machine.ledger_id, error)
        self._timer = None
        if self._machine.last_add_confirmed > self._told:
            self.moved()

    async def flush(self) -> int:
        """Write the LAC to the bookies that hold its entry; returns it when an ack quorum has it.

        Raises what kept too many of them from it; readers may have seen that LAC even so, which does no harm.
        """
        machine = self._machine
        lac = machine.last_add_confirmed  # once, before the sends: all bookies get the same, and never a later one (I6)
        if lac <= self._told or lac < 0:
            return lac
        metadata: LedgerMetadata = machine.metadata
        body = self._digest.package_lac(machine.ledger_id, lac)
        seats = machine.seats
        await ask_bookies(
            self._pool,
            machine.ledger_id,
            [seats[index].bookie for index in write_set(lac, metadata.ensemble_size, metadata.write_quorum)],
            Operation.WRITE_LAC,
            lambda txn_id: encode_write_lac_request(txn_id, machine.ledger_id, lac, self._key, body),
            needed=metadata.ack_quorum,
        )
        self._told = max(self._told, lac)
        return lac

    def stop(self) -> None:
        """Write no more. Idempotent."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
