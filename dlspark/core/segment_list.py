"""`SegmentList`: a log's segments as a reader follows them: read again when a watch says that they changed."""

from __future__ import annotations

import asyncio
import logging

from dlspark.core.services import Services
from dlspark.core.settings import Settings
from metadata.errors import MetadataUnavailableError, OutcomeUnknownError
from metadata.logs import SegmentMetadata
from metadata.store import WatchEvent

_log = logging.getLogger(__name__)


class SegmentList:
    """The list and one watch on it. `stale` says that it changed, or that changes may have been missed."""

    def __init__(self, services: Services, name: str, settings: Settings) -> None:
        self.segments: list[SegmentMetadata] = []
        self.stale = True
        self._services = services
        self._name = name
        self._settings = settings
        self._changed = asyncio.Event()

    def use_settings(self, settings: Settings) -> None:
        self._settings = settings

    async def load(self) -> list[SegmentMetadata]:
        """Read the list if it is stale; trouble with the connection is waited out.

        Raises LogNotFoundError, or what a contradictory list raises.
        """
        pause_s = self._settings.read_ahead_wait_ms / 1000
        while self.stale:
            # Before the read: an event that arrives during it speaks of what may not be in the answer.
            self.stale = False
            self._changed.clear()
            try:
                self.segments = list(await self._services.logs.segments(self._name, watch=self._on_event))
            except (OutcomeUnknownError, MetadataUnavailableError) as error:
                self.stale = True
                _log.warning("log %s: its segments cannot be read, trying again: %s", self._name, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, self._settings.zk_retry_max_backoff_ms / 1000)
            except BaseException:
                self.stale = True
                raise
        return self.segments

    async def changed(self, timeout_s: float | None = None) -> bool:
        """Wait for the list to become stale; False if it did not within `timeout_s`."""
        if not self.stale:
            try:
                await asyncio.wait_for(self._changed.wait(), timeout_s)
            except asyncio.TimeoutError:
                return False
        return True

    def find(self, segment: SegmentMetadata) -> SegmentMetadata | None:
        """The present form of `segment`. A number may be used again by another ledger: both have to match."""
        for listed in self.segments:
            if listed.lssn == segment.lssn and listed.ledger_id == segment.ledger_id:
                return listed
        return None

    def _on_event(self, event: WatchEvent) -> None:
        self.stale = True
        self._changed.set()
