"""`SegmentList`: a log's segments as a reader follows them: listed again when a watch says that they changed.

Listing brings the names; what a reader needs of single segments is read when it comes to them (`SegmentListing`). The
list follows one log, not a name: a log that was deleted has ended for its readers, though another log may have its name
now.

`SegmentWatch` gives a log's segments after each change, to callers that show or follow them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from dlspark.core.metrics.structured_logging import about
from dlspark.core.reading.segment_ledger import is_same
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.segment_listing import SegmentListing, SegmentVanishedError
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import MetadataUnavailableError, OutcomeUnknownError
from metadata.store import SessionState, WatchEvent

T = TypeVar("T")
_log = logging.getLogger(__name__)


class SegmentList:
    """The list and one watch on it. `stale` says that it changed, or that changes may have been missed."""

    def __init__(self, services: Services, name: str, settings: Settings, creation: int = -1) -> None:
        """Look for nothing yet. `creation`: the number of the log that has to have the name
        (`SegmentListing.creation`); -1 takes the log that has the name when the list is first read."""
        self.stale = True
        self.creation = creation
        self._listing = SegmentListing(name)
        self._services = services
        self._name = name
        self._settings = settings
        self._changed = asyncio.Event()

    def use_settings(self, settings: Settings) -> None:
        """Go on with the log's changed settings."""
        self._settings = settings

    async def load(self) -> SegmentListing:
        """Return the list as of the last change; waits while the store cannot be reached.

        Raises LogNotFoundError, also where another log has the name by now, or what a contradictory list raises.
        """

        async def itself(listing: SegmentListing) -> SegmentListing:
            return listing

        return await self.ask(itself)

    async def ask(self, question: Callable[[SegmentListing], Awaitable[T]]) -> T:
        """Return the answer that `question` finds in the list; it is called again where the list changes meanwhile.

        Raises as `load` does, and MetadataUnavailableError once the session was closed.
        """
        pause_s = self._settings.read_ahead_wait_ms / 1000
        while True:
            try:
                return await question(await self._fresh())
            except SegmentVanishedError:
                self.stale = True  # The watch will say so as well, but its event may still be on its way.
            except (OutcomeUnknownError, MetadataUnavailableError) as error:
                self.stale = True
                if self._services.logs.store.state is SessionState.CLOSED:
                    raise  # It does not come back.
                _log.warning(
                    "log %s: its segments cannot be read, trying again: %s",
                    self._name,
                    error,
                    extra=about(log=self._name),
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, self._settings.zk_retry_max_backoff_ms / 1000)

    async def _fresh(self) -> SegmentListing:
        while self.stale:
            # Before the read: an event that arrives during it may be about a change that the answer does not hold.
            self.stale = False
            self._changed.clear()
            try:
                before, listing = self._listing, await self._services.logs.listing(self._name, self._on_event)
                if self.creation not in (-1, listing.creation):
                    raise self._replaced_error()
                self._listing, self.creation = listing, listing.creation
                self._services.counters["segments-listed"] += 1
                if self._settings.trace_metadata_changes:
                    self._tell_changes(before)
            except BaseException:
                self.stale = True
                raise
        return self._listing

    def _replaced_error(self) -> LogNotFoundError:
        return LogNotFoundError(
            "the log was deleted or renamed; another one has its name now, of which nothing was read",
            log=self._name,
            advice="Open a reader of that one, or of the renamed log; positions in one say nothing of the other",
        )

    def _tell_changes(self, before: SegmentListing) -> None:
        old, new = _open_by_number(before), _open_by_number(self._listing)
        for lssn, is_open in new.items():
            if old.get(lssn) != is_open:
                state = "in progress" if is_open else "completed"
                _log.info(
                    "log %s: segment %d is %s", self._name, lssn, state, extra=about(log=self._name, segment=lssn)
                )
        for lssn in old.keys() - new.keys():
            _log.info("log %s: segment %d is off the list", self._name, lssn, extra=about(log=self._name, segment=lssn))

    async def changed(self, timeout_s: float | None = None) -> bool:
        """Wait for the list to become stale; False if it did not within `timeout_s`."""
        if not self.stale:
            try:
                await asyncio.wait_for(self._changed.wait(), timeout_s)
            except asyncio.TimeoutError:
                return False
        return True

    def close(self) -> None:
        """Take the watch away (I16). A question that is asked afterwards sets one again."""
        self._services.logs.unwatch(self._name, self._on_event)

    def wake(self) -> None:
        """End a wait in `changed`, though nothing changed."""
        self._changed.set()

    async def segment(self, lssn: int) -> SegmentMetadata | None:
        """Return the segment with this number, as it is now; None if there is none."""

        async def question(listing: SegmentListing) -> SegmentMetadata | None:
            listed = listing.find(lssn)
            return await listing.read(listed) if listed is not None else None

        return await self.ask(question)

    async def find(self, segment: SegmentMetadata) -> SegmentMetadata | None:
        """Return the present form of `segment`, None if it is gone. A number may be given again, to another segment."""
        listed = await self.segment(segment.lssn)
        return listed if listed is not None and is_same(listed, segment) else None

    def _on_event(self, event: WatchEvent) -> None:
        self.stale = True
        self._changed.set()


def _open_by_number(listing: SegmentListing) -> dict[int, bool]:
    """Return each segment's number, with whether it is in progress."""
    still_open = {listed.lssn for listed in listing.open}
    return {listed.lssn: listed.lssn in still_open for listed in listing}


# ------------------------------------------------------------------ changes


class SegmentWatch:
    """Follows one log until it is closed, or the log is deleted."""

    def __init__(self, services: Services, name: str, settings: Settings) -> None:
        self.closed = False
        self._list = SegmentList(services, name, settings)

    def use_settings(self, settings: Settings) -> None:
        """Go on with the log's changed settings."""
        self._list.use_settings(settings)

    async def changes(self) -> AsyncGenerator[list[SegmentMetadata], None]:
        """Yield the segments now, and whenever they are others. Raises LogNotFoundError; ends when this is closed."""
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
        """End `changes`, also where it waits. Idempotent."""
        self.closed = True
        self._list.wake()


async def _all_of(listing: SegmentListing) -> list[SegmentMetadata]:
    return await listing.read_all()
