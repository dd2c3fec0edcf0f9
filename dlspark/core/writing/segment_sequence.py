"""`SegmentSequence`: a writer's segments, one after the other: started, rolled, given up and recovered, completed.

What a new owner finds in progress is given its end before a segment of its own begins: the order that keeps a log whole
(I7). Each step costs round trips to storage nodes or metadata, so what can go side by side does: while the old
segment's ledger is fenced and its end looked for, the next ledger is made. The next *segment* begins only afterwards.
Before the old one's end is known, these are unknown:

    its last transaction id      below which no record may be taken, and from which the next segment is found
    whether it ends the stream   then nothing may follow
    whether it has records       an empty one is removed, and its number is given again: a segment behind it would
                                 leave a gap that stops every reader (I7)

A crash between any two steps leaves what the next owner's recovery begins with: a segment in progress, or none, and at
most one ledger that the allocator's znode names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial

from dlspark.core.codec.records import MAX_POSITION, MAX_TXID
from dlspark.core.dynamic.features import DISABLE_LOGSEGMENT_ROLLING, DL_SCOPE
from dlspark.core.metrics.structured_logging import about
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.core.write_lock import WriteLock
from dlspark.core.writing.acknowledgements import LateAcknowledgements
from dlspark.core.writing.recovery import recover_segments
from dlspark.core.writing.segment_writer import SegmentWriter
from dlspark.core.writing.slot_rolls import SlotRolls
from dlspark.core.writing.transitions import SegmentTransitions
from dlspark.errors import TransmitError, WriterDeposedError
from metadata.distributedlog.locks import LockingError, OwnershipAcquireFailedError
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import DistributedLogError, NotAppliedError
from metadata.foundation.tasks import end_tasks
from metadata.store import SessionState
from storage_node.client.writer import LedgerWriter

_log = logging.getLogger(__name__)

MAX_TAKE_OVERS = 5
"""How often a new owner begins its recovery, where the last owner's transactions keep disturbing it."""
IN_USE_S = 60
"""A log whose last segment ended longer ago has no ledger made before one is wanted: of thousands of logs that move
from one owner to another, few may be written."""


class SegmentSequence:
    """The segments of one owner. Its steps do not overlap; each leaves `current` as the segment to write to."""

    def __init__(
        self,
        services: Services,
        settings: Settings,
        lock: WriteLock,
        transitions: SegmentTransitions,
        on_failure: Callable[[BaseException], None],
        on_acknowledged: Callable[[int], None],
        on_slot_end: Callable[[], bool],
    ) -> None:
        """Have `on_failure` and `on_acknowledged` called for what happens in the current segment (see SegmentWriter),
        and `on_slot_end` when it may have to end (see SlotRolls)."""
        self.current: SegmentWriter | None = None
        self._loop = asyncio.get_running_loop()
        self.last_roll = self._loop.time()
        """When the current segment began, by the event loop's clock."""
        self._services = services
        self._settings = settings
        self._lock = lock
        self._transitions = transitions
        self._on_failure = on_failure
        self._on_acknowledged = on_acknowledged
        self._needs_recovery = False
        self.on_started: Callable[[SegmentWriter, int | None], None] | None = None
        """Called with each segment that begins and its first sequence id (None: it has none), before any record."""
        self._first_sequence_id: int | None = None
        self.slots = SlotRolls(transitions.name, services.clock, settings, on_slot_end)
        self._rolling_off = services.features.scope(DL_SCOPE).feature(DISABLE_LOGSEGMENT_ROLLING)

    def use_settings(self, settings: Settings) -> None:
        """Use `settings` from the next step on."""
        self._settings = settings
        self._transitions.use_settings(settings)
        self.slots.use_settings(settings)
        if self.current is not None:
            self.current.use_settings(settings)

    # ------------------------------------------------------------------ which step is due

    def takes(self, records: int) -> bool:
        """Return whether the current segment has positions left for this many records."""
        # Positions are 31 bits wide; upstream would wrap to negative ones.
        return self.current is not None and self.current.position + records <= MAX_POSITION

    @property
    def usable(self) -> bool:
        """True if there is a current segment, and it has not failed."""
        return self.current is not None and self.current.error is None

    def roll_is_due(self) -> bool:
        """Return whether the current segment has come of age and may be rolled now; takes a permit if so.

        Rolling is put off while the metadata store is out of reach, while too many segments roll at once, and while
        the feature `dl.disable_logsegment_rolling` is on. The end of a slot of cold storage takes no permit: the slots
        of different logs begin at different moments, and with permits a process of many logs could not keep their time.
        """
        segment, settings = self.current, self._settings
        if segment is None or segment.error is not None or segment.position == 0 or segment.last_txid == MAX_TXID:
            return False
        if settings.rolling_minutes > 0:
            due = self._loop.time() - self.last_roll > 60 * settings.rolling_minutes
        else:
            due = 0 < settings.max_segment_bytes < segment.ledger.length
        slot_ended = self.slots.ended
        return (
            (due or slot_ended)
            and not self._rolling_off.is_available()
            and self._services.store.state is SessionState.CONNECTED
            and (slot_ended or self._services.permits.take())
        )

    @property
    def waits_to_roll(self) -> bool:
        """True if the current segment has records that can leave for cold storage only once it has ended."""
        segment = self.current
        return segment is not None and segment.error is None and segment.position > 0 and segment.last_txid != MAX_TXID

    # ------------------------------------------------------------------ recovering

    async def take_over(self, learn: Callable[[int], Coroutine[object, object, None]] | None = None) -> int:
        """Recover as the log's new owner, which has just taken the lock; afterwards no earlier owner can change the
        log.

        `learn` reads what else the owner needs of segments that have their end, given the highest transaction id. It
        runs beside the last steps, and so does the making of the next segment's ledger for a log that is in use; where
        the log has to be read again, it is called again.

        The previous owner's last transaction may arrive meanwhile: it was on its way, or that process was paused. It
        moves the versions, and may begin or end a segment. As long as the lock is ours, the log is then read and
        recovered again from the beginning. So what the previous owner began is fenced too, before anything is
        acknowledged here (I5, I7). Raises WriterDeposedError where the lock is not ours any more, or where this happens
        MAX_TAKE_OVERS times.
        """
        for _ in range(MAX_TAKE_OVERS - 1):
            try:
                return await self._take_over(learn)
            except WriterDeposedError:
                if not await self._lock.confirmed():
                    raise
            self._services.counters["recovery-begun-again"] += 1
            self._transitions.forget()
        return await self._take_over(learn)

    async def _take_over(self, learn: Callable[[int], Coroutine[object, object, None]] | None) -> int:
        await self._lock.ensure_held()
        member = self._lock.member_path
        await self._transitions.load()
        await self._lock.ensure_held()
        if self._lock.member_path != member:
            # The lock was lost and taken again meanwhile, so the versions that were read may be another owner's. With
            # them our transactions would be accepted, and depose that owner (I7).
            raise LockingError(
                "the lock was lost while the log was read; nothing was changed",
                log=self._transitions.name,
                advice="Open the writer again",
            )
        highest = await self._give_ends()
        if learn is None:
            # Last: recovery that completed a segment has moved the versions already, and `claim` moves those it left.
            await self._transitions.claim()
            return highest
        # Segments that have their end do not change. So what is read of them before `claim` holds, if that finds the
        # versions that `load` has found: no segment has come since. If it does not, what was learned is not used (I7).
        learning = self._loop.create_task(learn(highest))
        try:
            if highest != MAX_TXID and self._in_use():
                await self._prepare(claims=True)
            await self._transitions.claim()
            await learning
        finally:
            await end_tasks([learning], drop_errors=True)
        return highest

    def _in_use(self) -> bool:
        """Return whether a segment is likely to be started soon: the log is new, or was written until just now."""
        if not self._transitions.segments:
            return True
        ended_ms = self._transitions.segments[-1].completion_time_ms
        return self._services.clock.now_ms() - ended_ms < IN_USE_S * 1000

    async def recover(self) -> int:
        """Learn the log's state and give segments in progress their end; returns the log's highest transaction id.

        That is MAX_TXID for a sealed log, -1 for an empty one.
        """
        await self._lock.ensure_held()
        await self._transitions.load()
        return await self._give_ends()

    async def _give_ends(self) -> int:
        if any(segment.in_progress for segment in self._transitions.segments):
            # Only the next ledger is made meanwhile: the next segment waits for the old one's end.
            preparing = self._loop.create_task(self._prepare())
            try:
                await recover_segments(self._services, self._transitions, self._settings)
                await asyncio.wait([preparing])
            finally:
                await end_tasks([preparing], drop_errors=True)
        self._needs_recovery = False
        known = [segment.last_txid for segment in self._transitions.segments]
        # What is stored of a new log is 0, as upstream has it: no record has that id where no segment says so. (Where
        # the segments of records with id 0 were deleted, another such record may follow them.)
        return max([self._transitions.state.max_txid.value or -1, *known])

    async def _prepare(self, *, claims: bool = False) -> None:
        """Make the next segment's ledger. A failure is only counted: the start, if one follows, tries again; and so
        does `claim`."""
        try:
            await self._transitions.prepare(claims=claims)
        except DistributedLogError as error:
            self._services.counters["ledger-not-made-in-advance"] += 1
            name = self._transitions.name
            _log.info("log %s: no ledger could be made beside recovery: %s", name, error, extra=about(log=name))

    async def give_up_failed(self) -> int | None:
        """Leave a failed segment and recover it; returns what `recover` does, None if there was nothing to do."""
        failed, self.current = self.current, None
        if failed is not None:
            self._needs_recovery = True
            await failed.abandon()
        return await self.recover() if self._needs_recovery else None

    # ------------------------------------------------------------------ starting, rolling

    async def start(self, first_txid: int) -> None:
        """Start a segment: the log's next."""
        await self._lock.ensure_held()
        if self.current is not None and self.current.has_snapshot:
            self._transitions.snapshot_stored(self.current.metadata.lssn)
        meter, name = self._services.meter, self._transitions.name
        with meter.step(meter.of(name).segments_open, "segment start", log=name):
            metadata, ledger = await self._transitions.start(first_txid)
        answers = LateAcknowledgements(
            self._services.ledger_store,
            ledger.ledger_id,
            self._settings.zk_session_timeout_s,
            self._services.clock,
            self._services.counters,
        )
        segment = SegmentWriter(
            ledger, answers, metadata, self._settings, self._on_failure, self._on_acknowledged, meter, name
        )
        ledger.replace_with(partial(self._replace, segment))
        self._first_sequence_id = self._sequence_id_after(metadata)
        self.current = segment
        if self.on_started is not None:
            self.on_started(segment, self._first_sequence_id)
        self.last_roll = self._loop.time()
        self.slots.begin()

    def _sequence_id_after(self, metadata: SegmentMetadata) -> int | None:
        """Return the first sequence id of a segment that begins: the one before it may be the current one, not
        completed."""
        old = self.current
        if old is not None and old.metadata.lssn == metadata.lssn - 1:
            return self._first_sequence_id + old.position if self._first_sequence_id is not None else None
        found = self._transitions.start_sequence_id(metadata)
        return found if found >= 0 else None

    async def _replace(self, segment: SegmentWriter) -> LedgerWriter:
        """Return another ledger for a segment whose own ledger another client wrote to first; that one was closed
        empty.

        So the segment is removed as recovery removes an empty one, and its number is given again (I3: none of its
        entries can ever be read). No step of ours runs beside this: each waits for the entries that wait for this, or
        does not have the segment yet.
        """
        self._services.counters["ledger-taken"] += 1
        await self._lock.ensure_held()
        # Delete before start: the number is given again, and a segment behind an empty one stops every reader (I7).
        await self._transitions.delete(segment.metadata)
        metadata, ledger = await self._transitions.start(segment.metadata.first_txid)
        segment.moved_to(metadata)
        return ledger

    async def roll(self, must: Callable[[], bool], idle: Callable[[], bool]) -> bool:
        """Start the next segment, then complete the current one: readers may see both for a moment
        (docs/reference/records.md#rolling).

        `must` returns whether the current segment cannot take what waits: if it can, a start that was definitely not
        applied is put off. `idle` returns whether nothing waits. Returns whether there is a new segment.
        """
        old = self.current
        if old is None:
            return False
        try:
            await old.flush()
        except TransmitError:
            if self._settings.disable_rolling_on_error:
                raise
            return False  # The next record starts over.
        try:
            await self.start(old.last_txid)
        except (WriterDeposedError, OwnershipAcquireFailedError, LockingError):
            raise
        except NotAppliedError as error:
            if must():
                raise
            # Nothing was started, and the old segment still works: go on with it and try again later.
            self._services.counters["roll-postponed"] += 1
            self.last_roll = self._loop.time()
            self.slots.put_off()
            name, lssn = self._transitions.name, old.metadata.lssn
            subject = about(log=name, segment=lssn)
            _log.warning("log %s: no segment after %s yet: %s", name, lssn, error, extra=subject)
            return False
        try:
            await self._complete(old)
        except BaseException:
            await old.abandon()
            raise
        if idle() and self.current is not None:
            # The ledger has to exist on storage nodes, or tailing readers would ask in vain.
            self.current.write_control()
        return True

    # ------------------------------------------------------------------ ending

    async def _complete(self, segment: SegmentWriter, *, releases: bool = False) -> None:
        """Close the segment's ledger and record its end; where it `releases`, give the lock up with that. After an
        error it stays in progress, for recovery."""
        meter, name = self._services.meter, self._transitions.name
        with meter.step(meter.of(name).segments_close, "segment complete", log=name, segment=segment.metadata.lssn):
            await self._finish(segment, releases)

    async def _finish(self, segment: SegmentWriter, releases: bool) -> None:
        # In this order: the ledger's end is fixed once nothing is under way any more, and the log's metadata only
        # repeat an end that is fixed (I2).
        await segment.finish()
        await self._transitions.retried(segment.close_ledger)
        await self._lock.ensure_held()
        await self._transitions.complete(
            segment.metadata,
            releases=releases,
            last_txid=segment.last_txid,
            record_count=segment.position,
            last_entry=segment.last_entry,
            last_slot=segment.last_slot,
        )

    async def complete_current(self) -> None:
        """Complete the current segment, if there is one. After an error it stays in progress, for recovery."""
        if self.current is not None:
            await self._complete(self.current)
            self.current = None

    async def complete_last(self) -> None:
        """Complete the segment of an owner that does nothing more with the log: the lock goes with the segment's
        end."""
        if self.current is not None:
            await self._transitions.close()
            await self._complete(self.current, releases=True)
            self.current = None

    async def close(self) -> None:
        """Let go of the current segment as it is, and of a ledger that was made and not used. Idempotent."""
        self.slots.stop()
        if self.current is not None:
            await self.current.abandon()
        await self._transitions.close()
