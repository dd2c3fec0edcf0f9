"""`AnnouncedRacks`: where bookies are, as they announce it themselves (docs/reference/znodes.md#topology).

The znode is kept and watched: each look is at what it says now, so that a bookie that came back elsewhere counts where
it is, and one that is away where it was. It is known by its id, whatever its host is called.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from metadata.bookkeeper.bookies import BookieAddress
from metadata.bookkeeper.topology import Topology, TopologyStore
from metadata.foundation.errors import DistributedLogError
from storage_node.client.health import Timer
from storage_node.client.placement.racks import DEFAULT_RACK, RackMap, UnknownRacks, is_default

_LOG: Final = logging.getLogger(__name__)


class AnnouncedRacks(RackMap):
    """The locations that bookies announce; lives on one loop. `region` is this process's own, which no bookie says."""

    def __init__(self, topology: TopologyStore, timer: Timer, region: str = "") -> None:
        super().__init__(UnknownRacks(), timer, region)
        topology.keep()
        self._store = topology
        self._topology = Topology()

    def rack_of(self, bookie: str) -> str:
        """Return the location that it announced, or the default rack."""
        return self._topology.location_of(bookie) or DEFAULT_RACK

    def is_known(self, bookie: str) -> bool:
        """Return whether it has announced where it is."""
        return not is_default(self.rack_of(bookie))

    async def see(self, writable: Sequence[BookieAddress], also: Iterable[BookieAddress] = ()) -> None:
        """Learn where all bookies are. Never fails: without an answer they are where they were said to be before."""
        try:
            self._topology = await self._store.read()
        except DistributedLogError as error:
            if self.error is None:
                _LOG.warning("where the storage nodes are cannot be read: %s", error)
            self.error = error
        else:
            self.error = None

    def forget(self) -> None:
        """Do nothing: each look is at what is announced now."""
