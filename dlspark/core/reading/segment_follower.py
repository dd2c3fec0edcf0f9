"""`SegmentFollower`: fetches one segment's entries from an entry on, until its ledger is closed and all were fetched.

Where the entries are, in a ledger or in a cold file, and that they go from one to the other meanwhile, is known to
`SegmentLedger` alone. Of a ledger, it streams what is confirmed and long-polls for what is not: while nothing happens,
the one long poll is the only request. The window of entries requested in advance begins small
(`numPrefetchEntriesPerLogSegment`), so that a short look costs little, and doubles as long as all of it is used (up to
`maxPrefetchEntriesPerLogSegment`).

Fault model: storage nodes, and the store of a file, may fail, and are then tried again for a while (GIVE_UP_S). An
entry whose checksum is wrong is damaged for good only if every storage node was asked and none has a good copy; as long
as one of them cannot be asked, the entry is waited for like any other. A row group of a file is damaged for good if it
is so twice, and the file is the only copy. Bytes that fail their digest are never delivered (I12).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Protocol

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entry_columns import EntryColumns
from dlspark.core.metrics.catalog import Measures
from dlspark.core.metrics.meter import FetchMeasures
from dlspark.core.metrics.structured_logging import about
from dlspark.core.reading.segment_ledger import SegmentLedger
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.errors import DamagedColdFileError, ReadError
from dlspark.objects.errors import StoreRefusedError
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import (
    CallerError,
    CorruptDataError,
    DistributedLogError,
    InvariantViolation,
    MetadataUnavailableError,
    NoNodeError,
    present,
)
from metadata.store import SessionState
from storage_node.errors import (
    REFUSED_ADVICE,
    DigestError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnauthorizedAccessError,
    certificate_refused,
)
from storage_node.protocol.digests import Entry
from storage_node.protocol.striping import write_set

_log = logging.getLogger(__name__)

GIVE_UP_S = 120.0
"""How long storage nodes, or the store of a cold file, may fail a read before the reader fails."""
REFUSED_IN_A_ROW = 3
"""How often in a row, at least, all that have an entry must refuse this client before the reader fails."""
REFUSED_S = 20.0
"""How long they must have refused it: each process looks by itself every 5 s for changed certificates and lists, and
all have read a change after 15 s. As long as one is behind the others (a name was revoked and renewed, an authority is
new, a list has ended and is being copied), the refusal passes."""

_FINAL = (CallerError, CorruptDataError, InvariantViolation, UnauthorizedAccessError, StoreRefusedError)
_LACKING = (NoSuchEntryError, NoSuchLedgerError)


@dataclass(frozen=True, slots=True)
class FetchedEntry:
    """An entry, with what is needed to decode it; or entries of a file that follow each other, as columns."""

    segment: SegmentMetadata
    start_sequence_id: int
    entry_id: int
    """The entry; the first of several."""
    payload: memoryview
    broken: bool = False
    """True if it was passed over, because all its copies are damaged; the payload is then empty."""
    fetched_at: float | None = None
    """When it came, by the event loop's clock; None where that is not measured."""
    columns: EntryColumns | None = None
    """The records of all the entries, for followers that take them so; the payload is then empty."""

    @property
    def last_entry(self) -> int:
        """The entry; the last of several."""
        return self.entry_id if self.columns is None else self.columns.last_entry

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        return len(self.payload) if self.columns is None else self.columns.size

    def may_follow(self, other: FetchedEntry) -> bool:
        """Return whether both are entries of one segment, to be decoded together."""
        return self.columns is None and self.segment.ledger_id == other.segment.ledger_id

    def split(self, max_bytes: int) -> tuple[FetchedEntry, FetchedEntry | None]:
        """Return the first of several entries, of about `max_bytes`, and those behind them; None where that are all."""
        if self.columns is None:
            return self, None
        first, rest = self.columns.split(max_bytes)
        if rest is None:
            return self, None
        return replace(self, columns=first), replace(self, entry_id=rest.first_entry, columns=rest)


class LogFollower(Protocol):
    """The follower of the log that the segment belongs to: it takes the entries, and knows the list of segments."""

    measures: Measures
    by_columns: bool
    """It takes the entries of files as columns; else they are made anew, one by one."""

    @property
    def name(self) -> str:
        """The log's name."""

    @property
    def settings(self) -> Settings:
        """The settings that hold now."""

    @property
    def services(self) -> Services:
        """The namespace's services."""

    async def put(self, fetched: FetchedEntry) -> None:
        """Take an entry; waits until there is room."""

    def reached_tail(self) -> None:
        """Wait for more, now that everything that is confirmed was fetched."""

    async def still_there(self, segment: SegmentMetadata, next_entry: int) -> bool:
        """Return False if `segment` was empty and is gone. Raises if it was truncated or removed."""

    async def completed(self, segment: SegmentMetadata) -> bool:
        """Wait until an ended segment is completed; False if recovery removed it, as it does with an empty one."""

    async def ledger_gone(self, segment: SegmentMetadata, next_entry: int, cause: DistributedLogError) -> None:
        """Wait until a segment whose ledger is missing leaves the list, too, or raise."""


class SegmentFollower:
    """Fetches one segment from entry `next_entry` on."""

    def __init__(self, owner: LogFollower, segment: SegmentMetadata, start_sequence_id: int, next_entry: int) -> None:
        self.next_entry = next_entry
        self._owner = owner
        self._segment = segment
        self._start_sequence_id = start_sequence_id
        self._ledger: SegmentLedger | None = None
        self._asked_for_lac = True  # Opening has asked.
        self._window = self._settings.prefetch_entries
        self._failures = 0
        self._refused = 0
        """Of the last failures, how many in a row were refusals of certificates."""
        self._refused_since = 0.0
        """When the first of these was."""
        self._failing_since = 0.0
        self._read_again: tuple[str, int] | None = None  # the damaged row group that was
        self._damage: DamagedColdFileError | None = None  # of the row group that is to be passed over now

    @property
    def lag_s(self) -> float | None:
        """How far the end of what is confirmed may be behind, where a ledger is read (`LedgerReader.lag_s`)."""
        hot = None if self._ledger is None else self._ledger.hot
        return None if hot is None else hot.lag_s

    @property
    def _settings(self) -> Settings:
        return self._owner.settings

    @property
    def _services(self) -> Services:
        return self._owner.services

    async def run(self) -> bool:
        """Fetch until the segment's end: True; False if it was empty and recovery removed it.

        Raises ReadError after GIVE_UP_S of failures, or REFUSED_S where the nodes and this client refuse each other;
        the owner's errors, DigestError for a damaged entry, and DamagedColdFileError.
        """
        while True:
            try:
                # The list first: a number that was given again names another ledger, and truncation hides entries (I8).
                if not await self._owner.still_there(self._segment, self.next_entry):
                    return False
                if self._damage is not None:
                    await self._pass_rows(self._damage)
                elif await self._step():
                    return self.next_entry > 0 or await self._owner.completed(self._segment)
            except NoNodeError as error:
                await self._owner.ledger_gone(self._segment, self.next_entry, error)
                return False
            except DigestError as error:
                await self._damaged(error)
            except DamagedColdFileError as error:
                self._damaged_rows(error)
            except _FINAL:
                raise
            except ReadError:
                raise
            except DistributedLogError as error:
                await self._wait_out(error)

    async def _step(self) -> bool:
        """Fetch what is confirmed, or wait for one more entry; True at the segment's end."""
        ledger = await self._open()
        # Never past the LAC: a recovery may still drop what lies above it (I6).
        if self.next_entry <= ledger.last_add_confirmed:
            await self._fetch(ledger)
            return False
        if ledger.closed:
            return True  # Its last entry is fixed (I2), and was fetched; entries behind it are not asked for (I17).
        if not self._asked_for_lac:
            # The tail has moved on while entries were streamed; only the storage nodes know how far.
            await ledger.read_last_confirmed()
            self._asked_for_lac = True
            return False
        self._owner.reached_tail()
        entry = await ledger.poll(self.next_entry, self._settings.long_poll_ms)
        self._failures = 0
        if entry is not None:
            await self._put(self._fetched(entry))
            # Let the reader that waits for it run first: the next request takes as long to send as this to deliver.
            await asyncio.sleep(0)
        return False

    async def _open(self) -> SegmentLedger:
        if self._ledger is None:
            self._ledger = await SegmentLedger.open(self._services, self._settings, self._owner.name, self._segment)
        return self._ledger

    async def _fetch(self, ledger: SegmentLedger) -> None:
        """Stream what is confirmed; of a ledger, with a window that doubles each time two windows' entries were
        fetched."""
        end = ledger.last_add_confirmed
        while self.next_entry <= end:
            most = max(self._settings.prefetch_entries, self._settings.max_prefetch_entries)
            window = min(self._window, most)
            # A file is read ahead by its row groups, and in one go: each new beginning would fetch one for itself.
            whole = window == most or ledger.cold is not None
            last = end if whole else min(end, self.next_entry + 2 * window - 1)
            if not await self._stream(ledger, last, window):
                return
            self._window = min(2 * window, most)
        self._asked_for_lac = False

    async def _stream(self, ledger: SegmentLedger, last: int, window: int) -> bool:
        """Fetch up to entry `last`; False if the segment is gone."""
        entries: AsyncGenerator[Entry | EntryColumns, None] = (
            ledger.entries_or_columns(
                self.next_entry, last, start_sequence_id=self._start_sequence_id, window_entries=window
            )
            if self._owner.by_columns
            else ledger.entries(self.next_entry, last, window_entries=window)
        )
        fetch = FetchMeasures(self._services.meter, self._owner.measures, self._owner.name, self._segment)
        try:
            fetch.asked()
            async for entry in entries:
                fetched = self._fetched(entry)
                count = fetched.last_entry - fetched.entry_id + 1
                fetch.arrived(fetched.entry_id, fetched.size, self._settings.data_latency_warn_ms, count)
                await self._put(fetched)
                self._failures = 0
                if not await self._owner.still_there(self._segment, self.next_entry):
                    return False
                fetch.asked()
        except DistributedLogError as error:
            fetch.failed(error)
            raise
        finally:
            await entries.aclose()
            fetch.ended()
        return True

    def _fetched(self, entry: Entry | EntryColumns) -> FetchedEntry:
        moment = asyncio.get_running_loop().time() if self._settings.trace_delivery_latency else None
        segment, start = self._segment, self._start_sequence_id
        if isinstance(entry, EntryColumns):
            return FetchedEntry(segment, start, entry.first_entry, memoryview(b""), fetched_at=moment, columns=entry)
        return FetchedEntry(segment, start, entry.entry_id, entry.payload, fetched_at=moment)

    async def _put(self, fetched: FetchedEntry) -> None:
        await self._owner.put(fetched)
        self.next_entry = fetched.last_entry + 1  # Only once it is queued: a cancelled `put` loses nothing.

    # ------------------------------------------------------------------ what goes wrong

    async def _damaged(self, error: DigestError) -> None:
        """Wait for a good copy where there may be one; else pass the entry over, if settings ask for it, or raise."""
        if not await self._is_broken_everywhere(self.next_entry):
            await self._wait_out(error)
            return
        if not self._settings.skip_broken_entries:
            raise error
        dlsn = DLSN(self._segment.lssn, self.next_entry, 0)
        _log.error(
            "log %s: entry %s is damaged on all its storage nodes and is skipped",
            self._owner.name,
            dlsn,
            extra=self._about(),
        )
        self._owner.measures.alerts.inc()
        await self._pass_over()

    async def _pass_over(self) -> None:
        self._owner.measures.skipped_broken_entries.inc()
        self._services.counters["broken-entry-skipped"] += 1
        await self._owner.put(
            FetchedEntry(self._segment, self._start_sequence_id, self.next_entry, memoryview(b""), broken=True)
        )
        self.next_entry += 1

    def _damaged_rows(self, error: DamagedColdFileError) -> None:
        """Note a damaged row group, to be read again or passed over; raise where settings do not ask for that.

        Nothing is requested here, where a request that fails would not be tried again.
        """
        index, ledger = error.row_group, self._ledger
        found = self._rows_of(ledger, index)
        # Only where it is known which entries are damaged: what a file's footer would say of a whole segment is not.
        known = ledger is not None and index is not None and found is not None and self.next_entry < found.stop
        if not known or not self._settings.skip_broken_entries or self._damage is not None:
            raise error
        if self._read_again != (error.url, index):
            self._read_again = (error.url, present(index, "it is known"))  # It may have been damaged on its way.
            return
        self._damage = error

    @staticmethod
    def _rows_of(ledger: SegmentLedger | None, index: int | None) -> range | None:
        """Return which entries have records in a row group of the file that is read; None where that is not known."""
        cold = ledger.cold if ledger is not None else None
        return cold.entries_of(index) if cold is not None and index is not None else None

    async def _pass_rows(self, damage: DamagedColdFileError) -> None:
        """Pass the entries of a row group over that was damaged twice, if nothing else has them; or raise `damage`.

        What it requests may fail, and is tried again like any other: then it begins here again, where it was.
        """
        ledger = present(self._ledger, "a row group was damaged in a segment that was not opened")
        found = self._rows_of(ledger, damage.row_group)
        if found is None or not await ledger.is_only_in(damage):
            raise damage
        # What lies before its first record are control records alone, which are in no row group.
        if self.next_entry < found.start and not await self._stream(ledger, found.start - 1, self._window):
            return
        _log.error(
            "log %s: row group %d of %s is damaged: entries %s to %s are skipped (%s)",
            self._owner.name,
            damage.row_group,
            damage.url,
            DLSN(self._segment.lssn, self.next_entry, 0),
            DLSN(self._segment.lssn, found.stop - 1, 0),
            damage.message,
            extra=self._about(),
        )
        self._owner.measures.alerts.inc()
        while self.next_entry < found.stop:
            await self._pass_over()
        self._failures = 0
        self._damage = None

    async def _is_broken_everywhere(self, entry_id: int) -> bool:
        """Return whether every storage node of the entry was asked, and each has it damaged or lacks it.

        A node that cannot be asked may have a good copy, so then the answer is False.
        """
        ledger = (await self._open()).hot
        if ledger is None:
            return False  # It is read from a file by now, which checks its bytes itself.
        metadata = ledger.metadata
        bookies = metadata.ensemble_for(entry_id).bookies
        copies = self._services.ledgers.copies(ledger.ledger_id, metadata)
        damaged = 0
        for index in write_set(entry_id, len(bookies), metadata.write_quorum):
            try:
                await copies.read(bookies[index], entry_id)
            except DigestError:
                damaged += 1
            except _LACKING:
                continue  # Nothing to be read there; it alone does not make the entry damaged.
            except DistributedLogError:
                return False
            else:
                return False
        return damaged > 0

    async def _wait_out(self, error: DistributedLogError) -> None:
        """Pause after a failure of storage nodes or a store; raise ReadError when it has lasted too long.

        A metadata session that was closed does not come back: its error is raised.
        """
        if isinstance(error, MetadataUnavailableError) and self._services.store.state is SessionState.CLOSED:
            raise error
        now = asyncio.get_running_loop().time()
        if not self._failures:
            self._failing_since, self._refused = now, 0
        self._failures += 1
        if not certificate_refused(error):
            self._refused = 0
        elif not self._refused:
            self._refused_since, self._refused = now, 1
        else:
            self._refused += 1
        if self._refused >= REFUSED_IN_A_ROW and now - self._refused_since >= REFUSED_S:
            raise ReadError(
                f"segment {self._segment.lssn} cannot be read: the storage nodes that have it and this client have not "
                f"taken each other's certificates for {REFUSED_S:.0f} s, which does not pass by itself: "
                f"{error.message}",
                dlsn=DLSN(self._segment.lssn, self.next_entry, 0),
                advice=error.advice or REFUSED_ADVICE,
            ) from error
        if now - self._failing_since > GIVE_UP_S:
            raise ReadError(
                f"segment {self._segment.lssn} could not be read for {GIVE_UP_S:.0f} s: {error}",
                dlsn=DLSN(self._segment.lssn, self.next_entry, 0),
                advice="Open another reader at this position when the storage nodes are back, or the store of the file",
            ) from error
        if self._failures.bit_count() == 1:  # the first, second, fourth: eight lines in two minutes, and not hundreds
            _log.warning(
                "segment %s, entry %s cannot be read yet: %s",
                self._segment.lssn,
                self.next_entry,
                error,
                extra=self._about(),
            )
        self._services.counters["read-retried"] += 1
        await asyncio.sleep(min(self._failures, 4) * self._settings.read_ahead_wait_ms / 1000)

    def _about(self) -> dict[str, object]:
        """Return the fields of its log messages."""
        return about(
            log=self._owner.name,
            segment=self._segment.lssn,
            ledger=self._segment.ledger_id,
            entry=self.next_entry,
        )

    async def close(self) -> None:
        """Close the segment, where it was opened."""
        if self._ledger is not None:
            await self._ledger.close()
