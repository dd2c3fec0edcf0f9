"""`SegmentLedger`: a segment's entries, wherever they are: in its ledger, and once that is gone in its cold file.

Every reader of segments opens them here, and is not told which of the two it reads: entry ids, slots and positions are
the same. The ledger is read as long as the log lists the segment among its own. A reader that is inside when the ledger
goes, or when no storage node can give an entry, looks at the list again; where that names a file, it goes on there at
the very next entry. So nothing is delivered twice, and nothing is missing.

    in the ledger --(gone, or cannot be read, and the list names a file)--> in that file
    in a file     --(gone, and the list names another one: records were erased)--> in the other file
    in a file     --(gone, and the segment is among the log's own again: it was restored)--> in its new ledger
    in a file     --(gone, and the segment is off the list, or truncated)--> AlreadyTruncatedError
    in a file     --(gone, and the list still names it)--> SegmentNotFoundError: somebody else has deleted it

The list is read behind a `sync`: a file's deletion is not ordered with what a server of ZooKeeper knows.

Fault model: what a ledger or a file cannot give is that one's error, and its caller waits or fails as ever; where the
list cannot be read, the first error is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entry_columns import EntryColumns
from dlspark.core.cold.reading.locations import ColdLocation
from dlspark.core.cold.reading.places import ReadsFrom
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.errors import AlreadyTruncatedError, DamagedColdFileError, SegmentNotFoundError
from dlspark.objects.errors import ObjectNotFoundError, StoreRefusedError
from metadata.distributedlog.segment_listing import SegmentListing
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.errors import CallerError, DistributedLogError, InvariantViolation, NoNodeError, present
from metadata.foundation.regions import said_region
from metadata.retry import repeat
from storage_node.client.read_ahead import WINDOW_ENTRIES
from storage_node.client.reader import LedgerLocation, LedgerReader
from storage_node.errors import LedgerClosedError, NoSuchLedgerError, UnauthorizedAccessError
from storage_node.protocol.digests import Entry

if TYPE_CHECKING:
    from dlspark.core.cold.reading.cold_files import ColdFiles
    from dlspark.core.cold.reading.cold_ledger import ColdLedger

_GONE: Final = (NoNodeError, NoSuchLedgerError)
"""What a reader hears of a ledger that was deleted; also of one whose end it has not seen, because it was cut off."""
_NEVER_COLD: Final = (CallerError, InvariantViolation, LedgerClosedError, UnauthorizedAccessError)
"""What a file would not change: the caller's mistakes, and this reader's end."""
T = TypeVar("T", Entry, EntryColumns)


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
        """Open a segment of the log.

        Raises NoNodeError where its ledger is gone and no file is named instead, and what opening either raises.
        """
        opened = cls(services, settings, log, segment)
        try:
            await (opened._open_hot if is_hot(segment) else opened._open_cold)(segment)
        except DistributedLogError as error:
            await opened.go_on_elsewhere(0, None, error)
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
        found = self._everywhere(first, last, window_entries, lambda cold, first: cold.entries(first, last))
        try:
            async for entry in found:
                yield entry
        finally:
            await found.aclose()

    def entries_or_columns(
        self, first: int, last: int, *, start_sequence_id: int, window_entries: int = WINDOW_ENTRIES
    ) -> AsyncGenerator[Entry | EntryColumns, None]:
        """Yield entries first..last in order as `entries` does, those of a file as columns of their records.

        `start_sequence_id` is the segment's, as the log counts. Raises as `entries`.
        """
        return self._everywhere(
            first,
            last,
            window_entries,
            lambda cold, first: cold.columns(first, last, start_sequence_id=start_sequence_id),
        )

    async def _everywhere(
        self,
        first: int,
        last: int,
        window_entries: int,
        of_file: Callable[[ColdLedger, int], AsyncGenerator[T, None]],
    ) -> AsyncGenerator[Entry | T, None]:
        """Yield entries first..last from where they are; `of_file` reads them in a file, from an entry on."""
        while True:
            cold, reading = self._cold, self._now
            found: AsyncGenerator[Entry | T, None] = (
                of_file(cold, first)
                if cold is not None
                else present(self._hot, "it was opened").entries(first, last, window_entries=window_entries)
            )
            try:
                async for one in found:
                    yield one
                    first = (one.last_entry if isinstance(one, EntryColumns) else one.entry_id) + 1
                return
            except DistributedLogError as error:
                await self.go_on_elsewhere(first, reading, error)
            finally:
                await found.aclose()

    async def poll(self, next_entry: int, timeout_ms: int) -> Entry | None:
        """Return an entry as soon as it is committed, as `LedgerReader.poll`."""
        while True:
            reading = self._now
            try:
                return await reading.poll(next_entry, timeout_ms)
            except DistributedLogError as error:
                await self.go_on_elsewhere(next_entry, reading, error)

    async def read_last_confirmed(self) -> int:
        """Ask how far it is confirmed, as `LedgerReader.read_last_confirmed`."""
        return await self._now.read_last_confirmed()

    async def read_last_acknowledged(self) -> int:
        """Ask how far it is acknowledged, as `LedgerReader.read_last_acknowledged`."""
        return await self._now.read_last_acknowledged()

    # ------------------------------------------------------------------ going on elsewhere

    async def go_on_elsewhere(
        self, next_entry: int, failed: LedgerReader | ColdLedger | None, error: DistributedLogError
    ) -> None:
        """Open what the list names now, after `failed` could not give an entry; None: it could not be opened.

        Raises `error` where the list names no other place, and what says that the entry is gone.
        """
        if isinstance(error, _NEVER_COLD):
            raise error
        async with self._moving:
            if failed is not None and failed is not self._now:
                return  # Another reader of this segment has moved it on already.
            if isinstance(failed, LedgerReader) and not failed.closed and not isinstance(error, _GONE):
                raise error  # It is still being written, as far as is known: no file can have it.
            known = self.segment
            in_file = self._cold is not None or (failed is None and not is_hot(known))
            while True:
                if in_file and not isinstance(error, ObjectNotFoundError | StoreRefusedError):
                    raise error  # The store is out of reach, or the file damaged: the list names none for that.
                try:
                    listed = await self._listed()
                except DistributedLogError as second:
                    raise error from second
                if in_file:
                    self._check_left(known, listed, next_entry, error)
                if listed is None or listed.in_progress or _is_truncated(listed):
                    raise error
                try:
                    if in_file and is_hot(listed):
                        await self._open_hot(listed)  # Its file was put back into a ledger.
                    elif listed.cold is not None:
                        await self._open_cold(listed)
                    else:
                        raise error
                except (ObjectNotFoundError, StoreRefusedError) as gone:
                    if gone is error:
                        raise
                    # Deleted between the two looks; each round sees another file, or ends.
                    known, in_file, error = listed, True, gone
                    continue
                self._services.counters["segment-continued-elsewhere"] += 1
                return

    async def is_only_in(self, damaged: DamagedColdFileError) -> bool:
        """Return whether the list says by now that the segment's only copy is the damaged file. Raises what keeps the
        list from being read: that says nothing of the file, and may be tried again."""
        listed = await self._listed()
        file = listed.cold.file if listed is not None and listed.cold is not None and not is_hot(listed) else None
        return file is not None and file.url == damaged.url

    async def _listed(self) -> SegmentMetadata | None:
        """Return the segment as it is listed by now, behind all that was committed; None where it is off the list."""
        logs, store = self._services.logs, self._services.store

        async def question(listing: SegmentListing) -> SegmentMetadata | None:
            listed = listing.find(self.segment.lssn)
            found = await listing.read(listed) if listed is not None else None
            return found if found is not None and is_same(found, self.segment) else None

        path = (await logs.located(self._log)).ledgers
        await repeat(store, lambda: store.sync(path))
        return await logs.ask(self._log, question)

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
        if isinstance(error, StoreRefusedError) and now == before:
            raise error  # The rights to the file, or its folder or bucket, are gone: that is what its reader must know.
        if before is not None and not is_hot(listed) and (now is None or now.url == before.url):
            raise SegmentNotFoundError(
                f"the cold file of segment {lssn} is not there, though the log names it: {before.url}",
                log=self._log,
                dlsn=dlsn,
                path=before.url,
                advice="It was deleted outside of the log, or its store is not the one that is reached: look at "
                "`dlspark cold verify`, and bring the object back from the store's own versions or backup",
            ) from error

    async def _open_hot(self, segment: SegmentMetadata) -> None:
        # Without recovery: reading must not fence the log's writer (I5).
        password = self._settings.password
        hot = await self._services.ledgers.open(segment.ledger_id, password=password, recover=False)
        former, self.segment, self._hot, self._cold = self._hot, segment, hot, None
        if former is not None:
            await former.close()

    async def _open_cold(self, segment: SegmentMetadata) -> None:
        hold = self._services.shared.cold
        if hold is None:
            # In a thread: Parquet's modules take a while to load, and other logs are read on this loop.
            shared = await asyncio.get_running_loop().run_in_executor(None, _cold_files)
            hold = self._services.shared.cold
            if hold is None:
                hold = self._services.shared.cold = shared().hold()
        patience_s = self._services.ledgers.settings.outage_wait_ms / 1000
        cold = await hold.files.open(ColdLocation.of(segment), patience_s, _reads_from(self._services, self._settings))
        self.segment, self._cold = segment, cold

    async def close(self) -> None:
        """Close what was opened. Idempotent."""
        if self._cold is not None:
            await self._cold.close()
        if self._hot is not None:
            await self._hot.close()


def _cold_files() -> Callable[[], ColdFiles]:
    """Load what reads cold files: pyarrow.parquet, which no reader of hot segments needs."""
    from dlspark.core.cold.reading.cold_files import shared_cold_files

    return shared_cold_files


def _reads_from(services: Services, settings: Settings) -> ReadsFrom:
    """Return from where files are read, and count it."""
    measures = services.meter.root
    return ReadsFrom(said_region(settings.region), measures.cold_mirror_reads.inc, measures.cold_fall_overs.inc)


def _is_truncated(segment: SegmentMetadata) -> bool:
    return segment.truncation is TruncationStatus.TRUNCATED


def is_hot(segment: SegmentMetadata) -> bool:
    """Return whether the log lists the segment among its own, so that it has a ledger."""
    return segment.cold is None or segment.cold.listed


def is_same(one: SegmentMetadata, other: SegmentMetadata) -> bool:
    """Return whether two segments of one number are the same one: a number may be given again where recovery removed an
    empty segment, and a segment that was restored from its file has another ledger, and names its former ones."""
    if one.was_ledger(other.ledger_id) or other.was_ledger(one.ledger_id):
        return True
    # Also where a unit's znode does not say which ledgers they were: it cannot be read, or is of an older release.
    ended = not one.in_progress and not other.in_progress
    return ended and _told(one) == _told(other)


def _told(segment: SegmentMetadata) -> tuple[int, ...]:
    return (
        segment.lssn,
        segment.first_txid,
        segment.last_txid,
        segment.completion_time_ms,
        segment.record_count,
        segment.last_entry,
        segment.last_slot,
    )
