"""`ReplicaReader` reads ledgers at given locations: the executors' side, which has no metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from metadata.bookies import UnknownBookieError
from metadata.foundation.errors import DistributedLogError
from metadata.ledger_metadata import LedgerMetadata
from storage_node.client.connections import ConnectionPool
from storage_node.client.read_ahead import WINDOW_BYTES, WINDOW_ENTRIES, ReadAhead, Window, check_range
from storage_node.client.reading import EntryFetcher
from storage_node.edge import Network
from storage_node.protocol.digests import Entry
from storage_node.settings.client import ClientSettings
from storage_node.transport.tcp import TcpNetwork


@dataclass(frozen=True, slots=True)
class LedgerLocation:
    """All that is needed to read a ledger without metadata store: it travels to Spark's executors by pickle.

    `addresses` gives (host, port) by bookie id; a bookie that is missing there counts as unreachable.
    """

    ledger_id: int
    metadata: LedgerMetadata
    addresses: Mapping[str, tuple[str, int]]

    @property
    def complete(self) -> bool:
        """Whether every bookie of the ledger has an address."""
        return all(bookie in self.addresses for ensemble in self.metadata.ensembles for bookie in ensemble.bookies)


class ReplicaReader:
    """Reads entries of any ledgers at given locations. It outlives restarts of their bookies.

    One event loop; `close` ends every connection.
    """

    def __init__(self, *, settings: ClientSettings | None = None, network: Network | None = None) -> None:
        self._settings = settings or ClientSettings()
        self._network = network or TcpNetwork()
        self._addresses: dict[str, tuple[str, int]] = {}
        self._pool: ConnectionPool | None = None

    @property
    def settings(self) -> ClientSettings:
        """The settings that this reader was made with; they never change."""
        return self._settings

    async def entries(
        self,
        location: LedgerLocation,
        first: int,
        last: int,
        *,
        window_bytes: int = WINDOW_BYTES,
        window_entries: int = WINDOW_ENTRIES,
    ) -> AsyncIterator[Entry]:
        """Verified entries first..last, in order. `last` must be committed: the planner knows, this side cannot.

        Raises CallerError for a range beyond a closed ledger's end; else what kept all replicas from answering.
        """
        metadata = location.metadata
        check_range(first, last, metadata.last_entry if metadata.is_closed else last, location.ledger_id)
        self._addresses.update(location.addresses)
        if self._pool is None:
            self._pool = ConnectionPool(self._resolve, self._settings, self._network, asyncio.get_running_loop())
        fetcher = EntryFetcher(self._pool, location.ledger_id)

        async def no_more(_entry_id: int, _known: LedgerMetadata, error: DistributedLogError) -> Entry:
            raise error

        window = Window(window_bytes, window_entries, self._settings.batch_read_max_entry_bytes)
        run = ReadAhead(fetcher, lambda: metadata, no_more, window, self._settings.outage_wait_ms)
        entries = run.entries(first, last)
        try:
            async for entry in entries:
                yield entry
        finally:
            await entries.aclose()

    async def _resolve(self, bookie: str) -> tuple[str, int]:
        try:
            return self._addresses[bookie]
        except KeyError:
            raise UnknownBookieError("the ledger's location gives no address for the node", node=bookie) from None

    async def close(self) -> None:
        """End all connections. Idempotent."""
        if self._pool is not None:
            await self._pool.close()
            self._pool = None
