"""`AddPipeline`: runs a `WriterMachine`: packages entries, sends them, carries out what the machine decides.

An entry is packaged and digested once, for all its replicas, under one transaction id. The small ones that are added in
one turn of the loop and go to the same bookies are a run: packaged and joined at the end of that turn, and handed to
each connection as one buffer. Where they come one at a time there is nothing to join, and `add` sends. Large ones are
sent at once, and their payloads travel as they are. Futures resolve in entry order, acknowledged or failed.

`AddPipeline` lives on one event loop and is called from its thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from metadata.bookkeeper.ledger_metadata import DigestType, LedgerMetadata
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.foundation.errors import (
    CallerError,
    DistributedLogError,
    InvariantViolation,
    check,
)
from metadata.foundation.tasks import end_tasks
from storage_node.client.add_runs import SentRun
from storage_node.client.connections import Connection, ConnectionPool
from storage_node.client.health import Outage
from storage_node.client.metadata_updates import MetadataUpdates
from storage_node.client.placement.by_settings import Placements
from storage_node.errors import (
    EntryTooLargeError,
    LedgerClosedError,
    LedgerFencedError,
    NotEnoughBookiesError,
    QuorumWriteError,
    UnauthorizedAccessError,
)
from storage_node.protocol.adds import Add, AddTemplate, check_size
from storage_node.protocol.digests import EntryDigest, master_key
from storage_node.protocol.frames import Buffer
from storage_node.protocol.writing import WriterMachine
from storage_node.protocol.writing_model import (
    Acknowledged,
    Closed,
    Cut,
    Effect,
    Effects,
    Failed,
    ForceSync,
    Moved,
    PickReplacements,
    ReadMetadata,
    ReplaceLedger,
    Resend,
    Seat,
    Send,
    WriteMetadata,
)
from storage_node.settings.client import ClientSettings

logger = logging.getLogger(__name__)

JOIN_BELOW_BYTES = 16 * 1024
"""Entries below this are joined once, in runs, instead of travelling in pieces to every replica."""
RUN_BYTES = 256 * 1024
"""A run with so much payload is sent at once: a turn of the loop may add any number of entries."""
RUN_ENTRIES = 1024
"""The same of so many entries, however small."""
LONE_ADDS = 8
"""Behind so many that came one at a time, the next one is not kept to the end of its turn, for others to join it."""
MAX_ROUTES = 64
FIRST_ANSWER_S = 0.25
"""How long a cautious writer waits for a bookie's first answer. A refusal needs no disk: it is soon there."""

FRAME_OVERHEAD_BYTES = 128
"""Room for everything in an add's frame but the entry: length prefix, header, ids, master key, flags."""


class EntryRun:
    """Entries that are sent together: to be packaged at the end of the turn, or packaged."""

    __slots__ = ("adds", "entry_ids", "header_bytes", "headers", "payload_bytes")

    def __init__(self) -> None:
        self.entry_ids: list[int] = []
        self.adds: list[Add] = []
        """What is to be packaged, in the order of `entry_ids`; nothing once it is."""
        self.payload_bytes = 0
        self.headers: bytes | None = None
        """Once packaged: the entries' headers one behind the other, all of one length."""
        self.header_bytes = 0

    def header(self, entry_id: int) -> bytes:
        """Return the header under which the entry was sent: it is sent again with the same bytes (I3)."""
        check(self.headers is not None, "an entry is sent again before it was sent")
        headers = cast(bytes, self.headers)
        at = self.entry_ids.index(entry_id) * self.header_bytes
        return headers[at : at + self.header_bytes]


class AddRoute:
    """Where do entries for one set of seats go?"""

    __slots__ = ("run", "targets")

    def __init__(self, targets: list[tuple[Seat, Connection]]) -> None:
        self.targets = targets
        self.run: EntryRun | None = None
        """The one that this turn of the loop adds to."""


@dataclass(frozen=True, slots=True)
class ClientContext:
    """Which parts do the writers and readers of one client share?"""

    settings: ClientSettings
    pool: ConnectionPool
    ledgers: LedgerStore
    placements: Placements
    ensemble_change_disabled: Callable[[], bool]
    """Asked when a bookie has failed: whether writers keep it even so, and send it again what it failed."""
    learn_places: Callable[[LedgerMetadata], Coroutine[Any, Any, None]]
    """Learns where a ledger's bookies are, for the order of reads."""


def digest_of(metadata: LedgerMetadata) -> EntryDigest:
    """Return the ledger's digest; metadata of the oldest format names neither type nor password."""
    return EntryDigest(metadata.digest_type or DigestType.CRC32, metadata.password or b"")


def check_payload(piece: object) -> None:
    """Raise CallerError unless `piece` is what can be sent as it is. After this nothing about an add can go wrong."""
    if not isinstance(piece, bytes | bytearray | memoryview):
        raise CallerError(f"a payload must be bytes, not {type(piece).__name__}", advice="Encode it first")
    if isinstance(piece, memoryview) and (piece.nbytes != len(piece) or not piece.c_contiguous):
        raise CallerError("a payload must be bytes or a contiguous view of bytes", advice='Use memoryview.cast("B")')


def _no_other_error(wanted: PickReplacements) -> NotEnoughBookiesError:
    """Return what is waited for where other bookies could be asked for, and there are too few."""
    failed = ", ".join(wanted.bookies[index] for index in wanted.indices)
    return NotEnoughBookiesError(f"no storage node is left that could take the place of {failed}")


class Tasks:
    """Background tasks of one object, all of which end with it (I16). One that fails is a bug: `broken` is called."""

    def __init__(self, broken: Callable[[InvariantViolation], None]) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}  # in order: a set's would be another in each run
        self._broken = broken

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it in the background; `stop` cancels what has not ended by then."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("a background task failed", exc_info=error)
            violation = InvariantViolation(f"a background task failed: {error!r}")
            violation.__cause__ = error
            self._broken(violation)

    async def stop(self) -> None:
        """Cancel them all and wait until they have ended."""
        await end_tasks([task for task in self._tasks if task is not asyncio.current_task()], drop_errors=True)


class AddPipeline:
    """The edge of one `WriterMachine`. Subclasses hear what was acknowledged, failed and closed."""

    def __init__(self, context: ClientContext, machine: WriterMachine, *, recovering: bool = False) -> None:
        self.machine = machine
        self.ledger_id = machine.ledger_id
        self.outstanding_bytes = 0
        """Payload bytes not yet acknowledged."""
        self._context = context
        self._pool = context.pool
        self._loop = context.pool.loop
        self._digest = digest_of(machine.metadata)
        self._timeout_s = context.settings.add_entry_timeout_ms / 1000
        self._max_payload = context.settings.max_frame_bytes - FRAME_OVERHEAD_BYTES - self._digest.header_size
        # entry id -> its future, payload size, the run that it was sent in, payload; in entry order
        self._entries: dict[int, tuple[asyncio.Future[int], int, EntryRun, tuple[Buffer, ...]]] = {}
        self._open: list[AddRoute] = []  # those with a run to be sent at the end of this turn of the loop
        self._tasks = Tasks(self._broken)
        self._outage = Outage(context.settings.outage_wait_ms)
        self._next_retry = 0.0
        self._recovering = recovering
        self._next_resend = 0.0
        self._lac_told = -1  # the LAC that the last add carried
        self._quorum_timeout_s = context.settings.quorum_timeout_ms / 1000
        # (time, last entry pushed by then) of the sweeper's looks at entries that are not acknowledged yet.
        self._overdue_marks: deque[tuple[float, int]] = deque()
        self._patience: asyncio.TimerHandle | None = None
        self._bind()

    def _bind(self) -> None:
        """Send to the machine's ledger from here on."""
        machine = self.machine
        self.ledger_id = machine.ledger_id
        key = master_key(machine.metadata.password or b"")
        self._template = AddTemplate(
            machine.ledger_id, key, recovery=self._recovering, deferred_sync=machine.deferred_sync
        )
        # Where the adds for each set of seats go; a seat is never reused, so a route is never wrong, only old.
        self._routes: dict[tuple[Seat, ...], AddRoute] = {}
        self._drop_open()  # of another ledger: all that waits is packaged anew, for this one
        self._kept: dict[tuple[int, Seat], None] = {}  # adds that failed while the ensemble may not change
        self._updates = MetadataUpdates(
            self._context.ledgers,
            self.ledger_id,
            written=lambda metadata, version: self._guard(partial(machine.metadata_written, metadata, version)),
            doubtful=lambda: self._guard(machine.metadata_doubtful),
            found=lambda metadata, version: self._guard(partial(machine.metadata_found, metadata, version)),
            failed=lambda error: self._guard(partial(machine.metadata_failed, error)),
        )

    # ------------------------------------------------------------------------------------ adds

    def add_entry(
        self, payload: tuple[Buffer, ...], length: int | None = None, entry_id: int | None = None
    ) -> asyncio.Future[int]:
        """Give the payload the next entry id, or the given one, and send it; the future resolves in entry order."""
        size = 0
        for piece in payload:
            if type(piece) is not bytes:
                check_payload(piece)
            size += len(piece)
        if size > self._max_payload:
            raise EntryTooLargeError(
                f"an entry of {size} bytes does not fit in a frame; nothing was sent",
                advice=f"Largest payload: {self._max_payload} bytes",
                ledger_id=self.ledger_id,
            )
        # From here to the packaging nothing can fail: an id that was given out without an entry would be a gap.
        effects = self.machine.add(size, length, entry_id)
        send = cast(Send, effects[0])  # an add's first effect, always
        self._lac_told = send.last_add_confirmed
        future: asyncio.Future[int] = self._loop.create_future()
        self.outstanding_bytes += size
        self._pool.adds_under_way += 1
        self._send(send, future, size, payload)
        if len(effects) > 1:
            self._run(effects[1:])
        return future

    def _be_patient(self) -> None:
        if self._patience is None:
            self._patience = self._loop.call_later(FIRST_ANSWER_S, self._hear_enough)

    def _lose_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _hear_enough(self) -> None:
        self._patience = None
        self._guard(self.machine.heard_enough)

    def _send(self, send: Send, future: asyncio.Future[int], size: int, payload: tuple[Buffer, ...]) -> None:
        """Send an entry to the ledger as it is now; a small one at the end of this turn of the loop, with others."""
        entry_id = send.entry_id
        if size >= JOIN_BELOW_BYTES:
            self._send_alone(send, future, size, payload)
            return
        route = self._routes.get(send.seats) or self._route(send.seats)
        alone = self._pool.lone_adds >= LONE_ADDS and self._pool.adds_under_way == 1
        run = EntryRun() if alone else route.run or self._begin_run(route)
        run.entry_ids.append(entry_id)
        run.adds.append((entry_id, send.last_add_confirmed, send.length, size, payload))
        self._entries[entry_id] = (future, size, run, payload)
        if alone:
            if self._send_run(run, route, at_once=True):
                self._watch()
            return
        run.payload_bytes += size
        if run.payload_bytes >= RUN_BYTES or len(run.adds) >= RUN_ENTRIES:
            self._send_open()

    def _begin_run(self, route: AddRoute) -> EntryRun:
        run = route.run = EntryRun()
        if not self._open:
            self._loop.call_soon(self._send_open)
        self._open.append(route)
        for _, connection in route.targets:
            connection.will_send()  # behind `_send_open`: the links' queues leave in the same turn as ever
        self._watch()
        return run

    def _watch(self) -> None:
        """Look from now on whether what is sent is answered in time; needed once a turn of the loop at most."""
        if self._quorum_timeout_s > 0:
            self._pool.sweeper.join(self._watch_quorums)
        if self.machine.unheard:
            self._be_patient()

    def _send_open(self) -> None:
        """Package and send the runs that were begun."""
        routes, self._open = self._open, []
        pool = self._pool
        pool.lone_adds = pool.lone_adds + 1 if pool.adds_under_way == 1 else 0
        for route in routes:
            run, route.run = route.run, None
            if run is not None and not self._send_run(run, route):
                return

    def _cannot_send(self, entry_ids: Sequence[int], message: str, error: Exception) -> None:
        """End this writer, and no other one: a payload is not what it was when it was added, which is not allowed."""
        logger.error("entries %s cannot be sent", entry_ids, exc_info=error)
        violation = InvariantViolation(message, ledger_id=self.ledger_id)
        violation.__cause__ = error
        self._broken(violation)

    def _drop_open(self) -> None:
        """Do not send the runs that were begun."""
        for route in self._open:
            route.run = None
        self._open.clear()

    def _send_run(self, run: EntryRun, route: AddRoute, *, at_once: bool = False) -> bool:
        """Send entries under transaction ids in a row; False: they cannot be, which has ended this writer."""
        adds, ids = run.adds, run.entry_ids
        try:
            txn_id = self._pool.next_txn_id(len(adds))
            frames, answers, headers, answer_bytes = self._template.run(self._digest, txn_id, adds)
            run.headers, run.header_bytes, run.adds = headers, self._digest.header_size, []
            deadline = self._loop.time() + self._timeout_s
            for seat, connection in route.targets:
                if len(ids) == 1:
                    connection.send_add(txn_id, answers, self, seat, ids[0], deadline, (frames,), at_once=at_once)
                else:
                    connection.send_run(SentRun(self, seat, ids, deadline, txn_id, answers, answer_bytes), frames)
        except Exception as error:  # the boundary: of payloads that were changed or released meanwhile
            self._cannot_send(ids, f"an entry cannot be packaged: {error!r}; it was not sent", error)
            return False
        return True

    def _send_alone(self, send: Send, future: asyncio.Future[int], size: int, payload: tuple[Buffer, ...]) -> None:
        """Send a large entry now, behind the small ones before it."""
        entry_id, run = send.entry_id, EntryRun()
        run.entry_ids.append(entry_id)
        self._entries[entry_id] = (future, size, run, payload)  # first: what ends the writer below ends this entry too
        self._send_open()
        if self.machine.ended:
            return
        try:
            header = self._digest.package(self.ledger_id, entry_id, send.last_add_confirmed, send.length, *payload)
            run.headers, run.header_bytes = header, len(header)
            self._transmit(entry_id, header, size, payload, send.seats)
        except Exception as error:  # the boundary, as in `_send_open`
            self._cannot_send([entry_id], f"an entry cannot be packaged: {error!r}; it was not sent", error)
            return
        self._watch()

    def _transmit(
        self, entry_id: int, header: bytes, size: int, payload: tuple[Buffer, ...], seats: tuple[Seat, ...]
    ) -> None:
        """Send one entry to some seats now, under one transaction id. Raises CallerError where its size has changed."""
        check_size(entry_id, size, payload)
        txn_id = self._pool.next_txn_id()
        template = self._template
        head, answer = template.frames(txn_id, entry_id, len(header) + size)
        frame: tuple[Buffer, ...] = (head, header, *payload, template.tail)
        if size < JOIN_BELOW_BYTES:
            frame = (b"".join(frame),)
        deadline = self._loop.time() + self._timeout_s
        for seat, connection in (self._routes.get(seats) or self._route(seats)).targets:
            connection.send_add(txn_id, answer, self, seat, entry_id, deadline, frame)

    def _transmit_again(self, entry_id: int, seats: tuple[Seat, ...]) -> None:
        """Send a pending entry again, as it was sent before."""
        if self._open:
            self._send_open()  # it may be among those
        pending = self._entries.get(entry_id)
        if pending is not None:  # else it could not be packaged just now, which has ended the writer
            _, size, run, payload = pending
            header = run.header(entry_id)
            try:
                self._transmit(entry_id, header, size, payload, seats)
            except Exception as error:  # the boundary, as in `_send_open`
                self._cannot_send([entry_id], f"an entry cannot be sent again: {error!r}", error)

    def _route(self, seats: tuple[Seat, ...]) -> AddRoute:
        if len(self._routes) >= MAX_ROUTES:
            self._routes.clear()
        # Where every bookie gets every entry, the write sets differ in their order only: one run for all of them.
        wanted = set(seats)
        for route in self._routes.values():
            if len(route.targets) == len(seats) and all(seat in wanted for seat, _ in route.targets):
                break
        else:
            route = AddRoute([(seat, self._pool.to(seat.bookie, self.ledger_id)) for seat in seats])
        self._routes[seats] = route
        return route

    def on_added(self, seat: Seat, entry_ids: Sequence[int]) -> None:
        """Handle a bookie's EOKs, as many as came together (hot: two of three such calls have no effect)."""
        try:
            effects = self.machine.added(seat, *entry_ids)
            if effects:
                self._run(effects)
        except InvariantViolation as error:
            self._broken(error)

    def on_refused(self, seat: Seat, entry_id: int, error: DistributedLogError) -> None:
        """Handle a bookie's error, or that it gave no answer in time."""
        if not isinstance(error, (LedgerFencedError, UnauthorizedAccessError)):
            self._pool.health.failed(seat.bookie)
            # A recovery changes its ensemble in memory only, and ends: it does not wait for a bookie to come back.
            if not self._recovering and not isinstance(error, LedgerClosedError) and self._changes_disabled():
                self._kept[entry_id, seat] = None
                self._pool.sweeper.join(self._send_kept)
                return
        self._guard(partial(self.machine.refused, seat, entry_id, error))

    # ------------------------------------------------------------------------------------ effects

    def _guard(self, event: Callable[[], Effects]) -> None:
        try:
            self._run(event())
        except InvariantViolation as error:
            self._broken(error)

    def _broken(self, error: InvariantViolation) -> None:
        """End this writer, and no other one, with a broken invariant's error."""
        self._run(self.machine.abort(error))

    def _run(self, effects: Effects) -> None:
        """Carry out the effects, in order. One may end the writer and all its entries, where a payload cannot be sent:
        then those behind it that are about entries mean nothing any more."""
        for effect in effects:
            if isinstance(effect, Acknowledged):
                self._acknowledge(effect)
            elif isinstance(effect, Resend):
                self._transmit_again(effect.entry_id, effect.seats)
                self._lose_patience()  # others are asked now: it begins anew
            else:
                self._carry_out(effect)
        if self.machine.vacant and not self.machine.ended:
            self._pool.sweeper.join(self._retry_vacancies)
        if self.machine.unheard and not self.machine.ended:
            self._be_patient()

    def _carry_out(self, effect: Effect) -> None:
        """Carry out the rarer effects."""
        if isinstance(effect, PickReplacements):
            self._tasks.start(self._pick(effect))
        elif isinstance(effect, WriteMetadata):
            self._tasks.start(self._updates.write(effect))
        elif isinstance(effect, ReadMetadata):
            self._tasks.start(self._updates.read())
        elif isinstance(effect, ForceSync):
            self._tasks.start(self._force(effect))
        elif isinstance(effect, ReplaceLedger):
            self._tasks.start(self._replace(effect))
        elif isinstance(effect, Moved):
            self._bind()
        elif isinstance(effect, Send):
            if not self._has_ended():
                future, size, _, payload = self._entries[effect.entry_id]
                self._send(effect, future, size, payload)
        elif isinstance(effect, Cut):
            self._end_entries(effect.error)
        elif isinstance(effect, Failed):
            self._outage.lasted(effect.error)
            self._end_entries(effect.error)
            self._failed(effect.error)
        elif isinstance(effect, Closed):
            self._closed(effect.metadata)

    def _has_ended(self) -> bool:
        """Return whether the writer has ended with all its entries; a machine alone may end with effects to come."""
        return not self._entries and self.machine.ended

    def _acknowledge(self, effect: Acknowledged) -> None:
        if self._has_ended():
            return
        self._pool.adds_under_way -= effect.last + 1 - effect.first
        take, total = self._entries.pop, 0
        for entry_id in range(effect.first, effect.last + 1):
            future, size, _, _ = take(entry_id)
            total += size
            if not future.done():  # its owner may have cancelled it; the entry is written even so
                future.set_result(entry_id)
        self.outstanding_bytes -= total
        self._outage.over()
        self._acknowledged(effect.last)

    def _end_entries(self, error: DistributedLogError) -> None:
        """Fail every pending add: none will be acknowledged."""
        self._drop_open()  # what has not left need not
        entries, self._entries = self._entries, {}
        self._pool.adds_under_way -= len(entries)
        self.outstanding_bytes = 0
        for entry_id in sorted(entries) if self.machine.advanced else entries:
            future = entries[entry_id][0]
            if not future.done():
                future.set_exception(error)
                future.exception()  # seen: the same error is raised by the next add and by close

    async def _pick(self, wanted: PickReplacements) -> None:
        picked, failure = await self._replacements(wanted)
        if not self._recovering:  # one is repeated as a whole
            while not self.machine.suffices(picked) and await self._outage.wait(failure or _no_other_error(wanted)):
                # No other bookie is left: also pick from those that have failed this change, which may be back by now.
                gone = {wanted.bookies[index] for index in wanted.indices}
                excluded = (frozenset(wanted.bookies) - gone) | wanted.strangers
                picked, failure = await self._replacements(replace(wanted, excluded=excluded))
        self._guard(lambda: self.machine.picked(picked, failure))

    async def _replacements(self, wanted: PickReplacements) -> tuple[Mapping[int, str], DistributedLogError | None]:
        try:
            placement = self._context.placements.of(self.machine.metadata)
            return await placement.replacements(wanted), None
        except DistributedLogError as error:
            return {}, error

    def _changes_disabled(self) -> bool:
        return self._context.ensemble_change_disabled()

    def _send_kept(self, now: float) -> bool:
        """Send pending entries again to the bookies that failed them; True while any wait for that.

        Such a bookie does not get what is acknowledged without it: that copy is missing until auto-recovery makes it.
        """
        if now >= self._next_resend:
            self._next_resend = now + self._context.settings.vacancy_retry_ms / 1000
            kept, self._kept = self._kept, {}
            for entry_id, seat in sorted(kept, key=lambda one: one[0]):
                if seat.current:
                    self._transmit_again(entry_id, (seat,))
        return bool(self._kept)

    def _retry_vacancies(self, now: float) -> bool:
        if now >= self._next_retry and not self._changes_disabled():
            self._next_retry = now + self._context.settings.vacancy_retry_ms / 1000
            self._guard(self.machine.retry_vacancies)
        return bool(self.machine.vacant) and not self.machine.ended

    def _watch_quorums(self, now: float) -> bool:
        """End the writer when an entry has waited too long for its ack quorum; True while any waits.

        Each sweep marks how far the adds have come: an add costs nothing, and is late by one sweep at most.
        """
        machine, marks = self.machine, self._overdue_marks
        while marks and marks[0][1] <= machine.last_acknowledged:
            marks.popleft()
        if machine.ended or not machine.pending_count:
            marks.clear()
            return False
        if not marks or marks[-1][1] < machine.last_add_pushed:
            marks.append((now, machine.last_add_pushed))
        if now - marks[0][0] < self._quorum_timeout_s:
            return True
        marks.clear()
        error = QuorumWriteError(
            f"entry {machine.last_acknowledged + 1} was not acknowledged within {self._quorum_timeout_s:g} s",
            advice="See that enough storage nodes answer; a recovery decides which pending entries are in the ledger",
            ledger_id=self.ledger_id,
        )
        self._guard(lambda: machine.abort(error))
        return False

    async def _force(self, effect: ForceSync) -> None:
        """Refuse: only a writer of a ledger with deferred syncs is asked to."""
        raise InvariantViolation(f"asked to force entry {effect.entry_id}", ledger_id=self.ledger_id)

    async def _replace(self, effect: ReplaceLedger) -> None:
        """Refuse: only a writer that `replace_with` was called on is asked to."""
        raise InvariantViolation("asked for another ledger", ledger_id=self.ledger_id) from effect.error

    async def stop(self) -> None:
        """End what runs in the background. The machine must have ended before."""
        for look in (self._retry_vacancies, self._send_kept, self._watch_quorums):
            self._pool.sweeper.leave(look)
        self._lose_patience()
        self._pool.adds_under_way -= len(self._entries)  # of a recovery that is cut short: nobody waits for them
        self._entries.clear()
        await self._tasks.stop()

    # ------------------------------------------------------------------------------------ for subclasses

    def _acknowledged(self, last: int) -> None:
        """Note that entries up to `last` are acknowledged."""

    def _failed(self, error: DistributedLogError) -> None:
        """Note that the machine has failed; every pending add's future has its error."""

    def _closed(self, metadata: LedgerMetadata) -> None:
        """Note that the ledger is closed."""
