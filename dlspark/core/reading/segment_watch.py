"""`SegmentWatch`: a log's segments as they change, for who wants to know of each change."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from dlspark.core.reading.segment_list import SegmentList
from dlspark.core.services import Services
from dlspark.core.settings import Settings
from metadata.logs import SegmentMetadata
from metadata.segment_listing import SegmentListing


class SegmentWatch:
    """Follows one log until it is closed, or the log is deleted."""

    def __init__(self, services: Services, name: str, settings: Settings) -> None:
        self.closed = False
        self._list = SegmentList(services, name, settings)

    def use_settings(self, settings: Settings) -> None:
        """Called when the log's dynamic settings change."""
        self._list.use_settings(settings)

    async def changes(self) -> AsyncGenerator[list[SegmentMetadata], None]:
        """The segments now, and whenever they are others. Raises LogNotFoundError; ends when this is closed."""
        seen: list[SegmentMetadata] | None = None
        try:
            while not self.closed:
                segments = await self._list.ask(_all_of)
                if segments != seen:
                    seen = segments
                    yield list(segments)
                if not self.closed:
                    await self._list.changed()
        finally:
            self.closed = True
            self._list.close()

    async def close(self) -> None:
        """Let who waits for a change see that there will be none. Idempotent."""
        self.closed = True
        self._list.wake()


async def _all_of(listing: SegmentListing) -> list[SegmentMetadata]:
    return await listing.read_all()
