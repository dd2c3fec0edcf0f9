"""Services that a namespace's logs, writers and readers share: stores, ledger client, settings, clock, rolling
permits."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from dlspark.core.dynamic.features import NO_FEATURES, FeatureProvider
from dlspark.core.metrics.meter import Meter
from dlspark.core.settings.settings import Settings
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.permissions import Action, PermissionStore
from metadata.foundation.errors import CallerError
from metadata.store import MetadataStore
from storage_node.client.client import LedgerClient
from storage_node.edge import Clock

if TYPE_CHECKING:
    from dlspark.core.cold.reading.cold_files import ColdFilesHold

LOCAL_REGION_ID = 0
MAX_REGION_ID = 15
"""Segment metadata has four bits for it."""
PERMIT_SECONDS = 60.0
"""A rolling permit can be used again this long after it was taken."""


def check_region_id(region_id: int) -> None:
    """Raise CallerError unless segment metadata can name this region."""
    if isinstance(region_id, bool) or not isinstance(region_id, int) or not 0 <= region_id <= MAX_REGION_ID:
        raise CallerError(
            f"{region_id!r} is not a region id", advice=f"A region id is a whole number from 0 to {MAX_REGION_ID}"
        )


class RollingPermits:
    """Bounds how many segments are rolled in a minute, so that many writers do not roll at the same moment.

    Without a permit a writer goes on with its old segment.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: list[float] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def take(self) -> bool:
        """Take a permit if there is one; returns whether there was. A limit of 0 or less gives any number."""
        if self._limit <= 0:
            return True
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._taken = [moment for moment in self._taken if now - moment < PERMIT_SECONDS]
        if len(self._taken) >= self._limit:
            return False
        self._taken.append(now)
        return True

    def outstanding(self) -> int:
        """Return how many permits were taken within the last minute. May be called from any thread."""
        if self._loop is None:
            return 0
        now = self._loop.time()
        # A copy: the loop's thread may take one meanwhile.
        return sum(now - moment < PERMIT_SECONDS for moment in list(self._taken))


class LedgerPool(Protocol):
    """A namespace's pool of ledgers, which the namespace only closes. Writers know the rest (`shared_pool`)."""

    async def close(self) -> None:
        """End what runs in the background."""


@dataclass(slots=True)
class Shared:
    """The state that everything opened in a namespace shares, its sub-namespaces included."""

    namespace_path: str | None = None
    """The namespace's own znode, the parent of its allocator pools; None: the znode with its logs."""
    outstanding: int = 0
    """Records that writers have accepted and that are not acknowledged yet."""
    pool: LedgerPool | None = None
    """Ledgers made in advance; see `ledger_allocators.shared_pool`."""
    cold: ColdFilesHold | None = None
    """The stores of cold files, from the first cold segment on that is read; see `SegmentLedger`."""

    async def close(self) -> None:
        """End what runs in the background, and let go of stores. Writers and readers are closed before."""
        if self.pool is not None:
            await self.pool.close()
        cold, self.cold = self.cold, None
        if cold is not None:
            await cold.close()


@dataclass(frozen=True, slots=True)
class Services:
    """The parts that a namespace holds and hands to everything that is opened in it."""

    store: MetadataStore
    logs: LogStore
    ledgers: LedgerClient
    binding: Binding
    settings: Settings
    clock: Clock
    permits: RollingPermits
    ledger_store: LedgerStore
    """The metadata of the ledgers that `ledgers` works on."""
    shared: Shared = field(default_factory=Shared)
    region_id: int = LOCAL_REGION_ID
    """The region of this process; written into segments where the namespace's binding or a setting says so."""
    features: FeatureProvider = NO_FEATURES
    """The features that operators have switched on; asked at each decision."""
    meter: Meter = field(default_factory=Meter)
    """Counts, warns and traces."""
    permissions: PermissionStore | None = None
    """The namespace's access control, where its binding has a root for it."""
    for_readers: Services | None = None
    """The same over the binding's servers for readers; None where these are the writers'."""

    @property
    def counters(self) -> Counter[str]:
        """How often rare paths were taken, by name: the metric `rare_paths`. For tests, and to look for trouble."""
        return self.meter.root.rare_paths.values

    @property
    def reading(self) -> Services:
        """The services that readers use."""
        return self.for_readers or self

    @property
    def create_missing(self) -> bool:
        """True if writers may create missing logs: a namespace bound as federated forbids it, as upstream does."""
        return not self.binding.federated

    async def permit(self, log: str, *actions: Action) -> None:
        """Raise RequestDeniedError where the namespace's access control denies one of `actions` on the log."""
        if self.permissions is not None:
            await self.permissions.check(log, *actions)
