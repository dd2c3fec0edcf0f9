"""`SegmentLedger`: a segment's entries, wherever they are: in its ledger, and once that is gone in its cold file.

Every reader of segments opens them here, and is not told which of the two it reads: entry ids, slots and positions are
the same. The ledger is read as long as the log lists the segment among its own. A reader that is inside when the ledger
goes, or when no storage node can give an entry, looks at the list again; where that names a file, it goes on there at
the very next entry. So nothing is delivered twice, and nothing is missing.

    in the ledger --(gone, or cannot be read, and the list names a file)--> in that file
    in a file     --(gone, and the list names another one: records were erased)--> in the other file
    in a file     --(gone, and the segment is off the list, or truncated)--> AlreadyTruncatedError
    in a file     --(gone, and the list still names it)--> SegmentNotFoundError: somebody else has deleted it

The list is read behind a `sync`: a file's deletion is not ordered with what a server of ZooKeeper knows.

Fault model: what a ledger or a file cannot give is that one's error, and its caller waits or fails as ever; where the
list cannot be read, the first error is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Final

from dlspark.cold.objects.errors import ObjectNotFoundError
from dlspark.cold.reading.locations import ColdLocation
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.errors import AlreadyTruncatedError, SegmentNotFoundError
from metadata.distributedlog.segment_listing import SegmentListing
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.errors import CallerError, DistributedLogError, InvariantViolation, present
from metadata.retry import repeat
from storage_node.client.read_ahead import WINDOW_ENTRIES
from storage_node.client.reader import LedgerLocation, LedgerReader
from storage_node.errors import LedgerClosedError, UnauthorizedAccessError
from storage_node.protocol.digests import Entry

if TYPE_CHECKING:
    from dlspark.cold.reading.cold_files import ColdFiles
    from dlspark.cold.reading.cold_ledger import ColdLedger

_NEVER_COLD: Final = (CallerError, InvariantViolation, LedgerClosedError, UnauthorizedAccessError)
"""What a file would not change: the caller's mistakes, and this reader's end."""


class SegmentLedger:
    """Which entries does a segment have, and how far are they committed? Made by `open`."""

    def __init__(self, services: Services, settings: Settings, log: str, segment: SegmentMetadata) -> None:
        """Hold nothing yet: use `open`."""
        self.segment = segment
        """The segment, as it was listed when what is read now was opened."""
        self._services = services
        self._settings = settings
        self._log = log
        self._hot: LedgerReader | None = None
        self._cold: ColdLedger | None = None
        self._moving = asyncio.Lock()

    @classmethod
    async def open(cls, services: Services, settings: Settings, log: str, segment: SegmentMetadata) -> SegmentLedger:
        """Open a segment of the log, without recovery: reading must not fence the log's writer (I5).

        Raises NoNodeError where its ledger is gone and no file is named instead, and what opening either raises.
        """
        opened = cls(services, settings, log, segment)
        if segment.cold is not None and not segment.cold.hot:
            try:
                opened._cold = await opened._open_cold(segment)
            except DistributedLogError as error:
                await opened._go_on_elsewhere(0, None, error)
            return opened
        try:
            opened._hot = await services.ledgers.open(segment.ledger_id, password=settings.password, recover=False)
        except DistributedLogError as error:
            await opened._go_on_elsewhere(0, None, error)
        return opened

    # ------------------------------------------------------------------ what is known

    @property
    def hot(self) -> LedgerReader | None:
        """The reader of its ledger, while that is what is read."""
        return self._hot if self._cold is None else None

    @property
    def cold(self) -> ColdLedger | None:
        """The reader of its cold file, once that is what is read."""
        return self._cold

    @property
    def _now(self) -> LedgerReader | ColdLedger:
        return self._cold if self._cold is not None else present(self._hot, "a segment was read before it was opened")

    @property
    def ledger_id(self) -> int:
        """Its ledger."""
        return self.segment.ledger_id

    @property
    def closed(self) -> bool:
        """True if its end is fixed (I2)."""
        return self._now.closed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that may be read, -1 for none."""
        return self._now.last_add_confirmed

    async def location(self) -> LedgerLocation | ColdLocation:
        """Return where its entries are now, for readers that have no metadata store."""
        return await self._now.location()

    # ------------------------------------------------------------------ entries

    async def read(self, first: int, last: int) -> list[Entry]:
        """Return entries first..last. Raises CallerError beyond `last_add_confirmed`, and as `entries`."""
        return [entry async for entry in self.entries(first, last)]

    async def entries(
        self, first: int, last: int, *, window_entries: int = WINDOW_ENTRIES
    ) -> AsyncGenerator[Entry, None]:
        """Yield entries first..last in order, read ahead: up to `window_entries` of a ledger, row groups of a file.

        Raises AlreadyTruncatedError or SegmentNotFoundError where its file is gone, and what reading either raises.
        """
        while True:
            cold, reading = self._cold, self._now
            entries = (
                cold.entries(first, last)
                if cold is not None
                else present(self._hot, "it was opened").entries(first, last, window_entries=window_entries)
            )
            try:
                async for entry in entries:
                    yield entry
                    first = entry.entry_id + 1
                return
            except DistributedLogError as error:
                await self._go_on_elsewhere(first, reading, error)
            finally:
                await entries.aclose()

    async def poll(self, next_entry: int, timeout_ms: int) -> Entry | None:
        """Return an entry as soon as it is committed, as `LedgerReader.poll`."""
        while True:
            reading = self._now
            try:
                return await reading.poll(next_entry, timeout_ms)
            except DistributedLogError as error:
                await self._go_on_elsewhere(next_entry, reading, error)

    async def read_last_confirmed(self) -> int:
        """Ask how far it is confirmed, as `LedgerReader.read_last_confirmed`."""
        return await self._now.read_last_confirmed()

    async def read_last_acknowledged(self) -> int:
        """Ask how far it is acknowledged, as `LedgerReader.read_last_acknowledged`."""
        return await self._now.read_last_acknowledged()

    # ------------------------------------------------------------------ what only a file's index answers

    async def locate_txid(self, cold: ColdLedger, txid: int) -> tuple[int, int] | None:
        """Return (entry, slot) of the first record with a transaction id of `txid` or above, by the index of `cold`,
        which is what is read now."""
        while True:
            try:
                return await cold.locate_txid(txid)
            except DistributedLogError as error:
                cold = await self._go_on_elsewhere(0, cold, error)

    async def locate_position(self, cold: ColdLedger, position: int) -> tuple[int, int] | None:
        """Return (entry, slot) of the `position`-th user record, counted from 1, by the index of `cold`."""
        while True:
            try:
                return await cold.locate_position(position)
            except DistributedLogError as error:
                cold = await self._go_on_elsewhere(0, cold, error)

    # ------------------------------------------------------------------ going on elsewhere

    async def _go_on_elsewhere(
        self, next_entry: int, failed: LedgerReader | ColdLedger | None, error: DistributedLogError
    ) -> ColdLedger:
        """Open the file that the list names now, after `failed` could not give an entry; None: it could not be opened.

        Raises `error` where the list names no other place, and what says that the entry is gone.
        """
        if isinstance(error, _NEVER_COLD):
            raise error
        async with self._moving:
            if self._cold is not None and self._cold is not failed:
                return self._cold  # Another reader of this segment has moved it on already.
            if isinstance(failed, LedgerReader) and not failed.closed:
                raise error  # It is still being written, or its end is not known: no file can have it.
            known = self.segment
            in_file = self._cold is not None or (failed is None and known.cold is not None and not known.cold.hot)
            while True:
                if in_file and not isinstance(error, ObjectNotFoundError):
                    raise error  # The store is out of reach, or the file damaged: the list names none for that.
                listed = await self._listed(error)
                if in_file:
                    self._check_left(known, listed, next_entry, error)
                if listed is None or listed.cold is None or _is_truncated(listed):
                    raise error
                try:
                    opened = await self._open_cold(listed)
                except ObjectNotFoundError as gone:
                    # Deleted between the two looks; each round sees another file, or ends.
                    known, in_file, error = listed, True, gone
                    continue
                self._services.counters["segment-continued-cold"] += 1
                self.segment, self._cold = listed, opened
                return opened

    async def _listed(self, error: DistributedLogError) -> SegmentMetadata | None:
        """Return the segment as it is listed by now, behind all that was committed; None where it is off the list."""
        logs, store = self._services.logs, self._services.store

        async def question(listing: SegmentListing) -> SegmentMetadata | None:
            listed = listing.find(self.segment.lssn)
            found = await listing.read(listed) if listed is not None else None
            # A number may be given again, to another ledger: that is another segment.
            return found if found is not None and found.ledger_id == self.segment.ledger_id else None

        try:
            path = (await logs.located(self._log)).ledgers
            await repeat(store, lambda: store.sync(path))
            return await logs.ask(self._log, question)
        except DistributedLogError as second:
            raise error from second

    def _check_left(
        self, known: SegmentMetadata, listed: SegmentMetadata | None, next_entry: int, error: DistributedLogError
    ) -> None:
        """Raise what it means that the file of `known` is missing, unless the list names another one."""
        lssn = known.lssn
        dlsn = DLSN(lssn, next_entry, 0)
        if listed is None or _is_truncated(listed):
            raise AlreadyTruncatedError(
                f"segment {lssn} was truncated before it was read",
                log=self._log,
                dlsn=dlsn,
                advice="Start again at the log's first record; what was between is not kept",
            ) from error
        before = known.cold.file if known.cold is not None else None
        now = listed.cold.file if listed.cold is not None else None
        if before is not None and (now is None or now.url == before.url):
            raise SegmentNotFoundError(
                f"the cold file of segment {lssn} is not there, though the log names it: {before.url}",
                log=self._log,
                dlsn=dlsn,
                path=before.url,
                advice="It was deleted outside of the log, or its store is not the one that is reached: look at "
                "`dlspark cold verify`, and bring the object back from the store's own versions or backup",
            ) from error

    async def _open_cold(self, segment: SegmentMetadata) -> ColdLedger:
        hold = self._services.shared.cold
        if hold is None:
            # In a thread: Parquet's modules take a while to load, and other logs are read on this loop.
            shared = await asyncio.get_running_loop().run_in_executor(None, _cold_files)
            hold = self._services.shared.cold
            if hold is None:
                hold = self._services.shared.cold = shared().hold()
        patience_s = self._services.ledgers.settings.outage_wait_ms / 1000
        return await hold.files.open(ColdLocation.of(segment), patience_s)

    async def close(self) -> None:
        """Close what was opened. Idempotent."""
        for one in (self._hot, self._cold):
            if one is not None:
                await one.close()


def _cold_files() -> Callable[[], ColdFiles]:
    """Load what reads cold files: pyarrow.parquet, which no reader of hot segments needs."""
    from dlspark.cold.reading.cold_files import shared_cold_files

    return shared_cold_files


def _is_truncated(segment: SegmentMetadata) -> bool:
    return segment.truncation is TruncationStatus.TRUNCATED
