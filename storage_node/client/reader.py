"""`LedgerReader`: one ledger as its readers see it: committed entries, the LAC as it moves, and the end.

Never beyond the LAC of an open ledger, nor beyond the last entry of a closed one (I6, I17). The metadata is watched:
ensemble changes reach the reader by themselves, and so does the close.

`ReplicaReader` reads ledgers at given locations: the executors' side, which has no metadata store.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from metadata.bookkeeper.bookies import UnknownBookieError
from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.bookkeeper.ledgers import Versioned
from metadata.foundation.errors import CallerError, DistributedLogError, NoNodeError
from metadata.foundation.regions import region_of_task
from metadata.store import SessionState, WatchEvent
from storage_node.client.connections import ConnectionPool
from storage_node.client.entering import client_security
from storage_node.client.health import outlast
from storage_node.client.last_confirmed import LacQuestion, TailRound
from storage_node.client.pipeline import ClientContext, Tasks, digest_of
from storage_node.client.read_ahead import WINDOW_BYTES, WINDOW_ENTRIES, ReadAhead, Window, check_range
from storage_node.client.reading import EntryFetcher, advice_on
from storage_node.client.tail_over_regions import TailListening
from storage_node.edge import Network
from storage_node.errors import LedgerClosedError, LedgerRecoveryError, ProtocolError, certificate_refused
from storage_node.protocol.digests import Entry
from storage_node.protocol.reading import LacRead
from storage_node.settings.client import ClientSettings
from storage_node.transport.tcp import TcpNetwork

logger = logging.getLogger(__name__)

RETRY_S = 0.2
"""Pause before the metadata, or an ensemble that had nothing to say, is asked again; the latter begins shorter."""

FIRST_PAUSE_S = 0.005

UNCONFIRMED_MS = 1_000
"""How long `read_last_acknowledged` waits for entries that are stored to be confirmed."""


class LedgerReader:
    """Which entries does a ledger have, and how far are they committed? Made by `LedgerClient.open`. All calls come
    from the event loop's thread.
    """

    def __init__(
        self,
        context: ClientContext,
        ledger_id: int,
        current: Versioned[LedgerMetadata],
        *,
        locate: Callable[[int, LedgerMetadata], Awaitable[LedgerLocation]],
        on_end: Callable[[LedgerReader], None],
    ) -> None:
        self.ledger_id = ledger_id
        self.on_closed = asyncio.Event()
        """Set once the ledger is known to be closed."""
        self._context = context
        self._pool = context.pool
        self._loop = context.pool.loop
        self._on_end = on_end
        self._locate = locate
        self._current = current
        self._digest = digest_of(current.value)
        self._fetcher = EntryFetcher(context.pool, ledger_id, on_lac=self._raise_lac)
        self._last_add_confirmed = -1
        self._waited_for = -1
        self._listening: TailListening | None = None
        self._tasks = Tasks(self._lose)
        self._changed: asyncio.Future[None] = self._loop.create_future()
        self._gone: DistributedLogError | None = None
        self._ended = False
        self._take(current)

    # ------------------------------------------------------------------------------------ what is known

    @property
    def metadata(self) -> LedgerMetadata:
        """The newest metadata that this reader has seen; the watch keeps it up to date."""
        return self._current.value

    @property
    def closed(self) -> bool:
        """The ledger is closed: its end will never change."""
        return self._current.value.is_closed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry known to be committed (-1: none); of a closed ledger the last entry."""
        return self._last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of a closed ledger; 0 while it is open."""
        return self._current.value.length if self.closed else 0

    @property
    def lag_s(self) -> float | None:
        """Seconds by which the LAC may be behind that of a writer in the farthest region of the last ensemble.

        It is the time that news take from there, half a measured round trip; 0 of a closed ledger; None where the own
        region, or a distance, is not known. A last entry that no later one follows is confirmed `explicitLacInterval`
        after that.
        """
        if self.closed:
            return 0.0
        return self._pool.nearness.one_way_s(self.metadata.last_ensemble.bookies, self._loop.time())

    async def location(self) -> LedgerLocation:
        """Return where the ledger is, for readers that have no metadata store."""
        return await self._locate(self.ledger_id, self.metadata)

    # ------------------------------------------------------------------------------------ committed entries

    async def read(self, first: int, last: int) -> list[Entry]:
        """Return entries first..last, verified. Raises CallerError beyond `last_add_confirmed`."""
        return [entry async for entry in self.entries(first, last)]

    async def entries(
        self,
        first: int,
        last: int,
        *,
        window_bytes: int = WINDOW_BYTES,
        window_entries: int = WINDOW_ENTRIES,
    ) -> AsyncGenerator[Entry, None]:
        """Yield entries first..last in order, with up to the window of them fetched ahead."""
        self._ensure_usable()
        check_range(first, last, self._last_add_confirmed, self.ledger_id)
        window = Window(window_bytes, window_entries, self._context.settings.batch_read_max_entry_bytes)
        run = ReadAhead(
            self._fetcher, lambda: self.metadata, self._fetch_again, window, self._context.settings.outage_wait_ms
        )
        entries = run.entries(first, last)
        try:
            async for entry in entries:
                yield entry
        finally:
            await entries.aclose()

    async def read_unconfirmed(self, first: int, last: int) -> list[Entry]:
        """Return entries first..last of an open ledger, confirmed or not: what is beyond the LAC may never be
        committed.

        For looking into a ledger; nothing may be built on it. Raises CallerError beyond a closed ledger's end (I17),
        NoSuchEntryError where none of its replicas has an entry, and what `read` raises.
        """
        self._ensure_usable()
        check_range(first, last, self._last_add_confirmed if self.closed else last, self.ledger_id)
        window = Window(largest_in_batch=self._context.settings.batch_read_max_entry_bytes)
        run = ReadAhead(self._fetcher, lambda: self.metadata, self._fetch_again, window)
        return [entry async for entry in run.entries(first, last)]

    async def _fetch_again(self, entry_id: int, known: LedgerMetadata, error: DistributedLogError) -> Entry:
        """Read the entry by newer metadata. No replica that was `known` had it: perhaps it lies elsewhere by now, and
        the watch has not fired yet.
        """
        try:
            self._take(await self._context.ledgers.read(self.ledger_id))
        except DistributedLogError as second:
            logger.info("the metadata of ledger %d could not be read again: %s", self.ledger_id, second)
            raise error from second
        if self.metadata.ensemble_for(entry_id) == known.ensemble_for(entry_id):
            raise error
        return await self._fetcher.fetch(self.metadata, entry_id)

    # ------------------------------------------------------------------------------------ the LAC

    async def read_last_confirmed(self) -> int:
        """Ask the last ensemble for the LAC; never less than what this reader knew (I6).

        Raises the error that says most where too few bookies answered to be sure.
        """
        await outlast(self._context.settings.outage_wait_ms, self._read_last_confirmed)
        return self._last_add_confirmed

    async def read_last_acknowledged(self, timeout_ms: int = UNCONFIRMED_MS) -> int:
        """Return the LAC, as soon as it has reached every entry that was acknowledged before this was asked.

        What was acknowledged last may be stored and not confirmed yet: its writer confirms it with the next entry, or
        after `explicitLacInterval`. So where bookies have entries behind the LAC, this waits until they are confirmed,
        at most `timeout_ms`. It waits that long in vain where the writer died, or writes no explicit LAC: before the
        ledger is recovered nothing more than the LAC is certain (I6). Raises what `read_last_confirmed` raises.
        """
        stored = await outlast(self._context.settings.outage_wait_ms, self._read_last_confirmed)
        if stored > self._last_add_confirmed and not self.closed:
            # Once for each entry: waiting in vain for the same one again would bring nothing new.
            if stored > self._waited_for:
                try:
                    await self.poll(stored, timeout_ms)
                except DistributedLogError as error:
                    logger.info("ledger %d: waiting for entry %d to be confirmed: %s", self.ledger_id, stored, error)
            self._waited_for = max(self._waited_for, stored)
        return self._last_add_confirmed

    async def _read_last_confirmed(self) -> int:
        """Bring the LAC up to date; returns the last entry that was found stored, confirmed or not."""
        while True:
            self._ensure_usable()
            metadata = self.metadata
            if metadata.is_closed:
                return self._last_add_confirmed
            machine = (await self._ask_all_for_lac(metadata)).quorum
            if machine.settled:
                # A fragment begins behind what was committed before it, also where nothing is in it yet.
                self._raise_lac(max(machine.last_add_confirmed, metadata.last_ensemble.first_entry - 1))
                return machine.last_stored
            if self.metadata is metadata and not self._ended and self._gone is None:
                raise self._unsettled_error(machine)

    async def _ask_all_for_lac(self, metadata: LedgerMetadata, known: int | None = None) -> LacQuestion:
        """Ask the last ensemble until it is decided, or the metadata changes."""
        question = LacQuestion(self._pool, self.ledger_id, metadata, self._digest, known)
        try:
            await asyncio.wait({question.done, self._changed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            question.forget()
        return question

    async def try_read_last_confirmed(self) -> int:
        """Return the LAC, as well as it can be known quickly: the first news of any bookie, or the best that all of
        them know.

        Never less than what this reader knew, but perhaps less than `read_last_confirmed`. Raises LedgerRecoveryError
        where no bookie of the last ensemble answers.
        """
        while True:
            self._ensure_usable()
            metadata = self.metadata
            if metadata.is_closed:
                return self._last_add_confirmed
            attempt = (await self._ask_all_for_lac(metadata, self._last_add_confirmed)).attempt
            self._raise_lac(max(attempt.last_add_confirmed, metadata.last_ensemble.first_entry - 1))
            if self.metadata is not metadata or self._ended or self._gone is not None:
                continue
            if attempt.valid:
                return self._last_add_confirmed
            error = LedgerRecoveryError(
                "no storage node of the last ensemble gave its LAC",
                advice=advice_on(attempt.error),
                ledger_id=self.ledger_id,
            )
            error.__cause__ = attempt.error
            raise error

    def _unsettled_error(self, machine: LacRead) -> DistributedLogError:
        cause = machine.error or ProtocolError("no reason")
        error = type(cause)(
            f"too few storage nodes of the last ensemble gave their LAC: {cause.message}",
            advice=advice_on(cause),
            ledger_id=self.ledger_id,
            node=cause.node,
        )
        if certificate_refused(cause) and not machine.refused_by_all:
            # Another node takes this client, so these may yet: by its cause the error would say that none ever will.
            error.__context__ = cause
        else:
            error.__cause__ = cause
        return error

    def _raise_lac(self, last_add_confirmed: int) -> None:
        """Raise the LAC: it never goes back (I6), and of a closed ledger it is the end, whatever bookies hold (I17)."""
        if not self.closed and last_add_confirmed > self._last_add_confirmed:
            self._last_add_confirmed = last_add_confirmed

    # ------------------------------------------------------------------------------------ the tail

    async def poll(self, next_entry: int, timeout_ms: int) -> Entry | None:
        """Return entry `next_entry` as soon as it is committed; None after `timeout_ms`, or once the ledger ended
        before it.

        Raises what kept all bookies from answering for the whole time, or the end of the ledger's existence.
        """
        if next_entry < 0:
            raise CallerError(f"entry {next_entry} does not exist", ledger_id=self.ledger_id)
        deadline = self._loop.time() + timeout_ms / 1000
        failure: DistributedLogError | None = None
        pause_s = FIRST_PAUSE_S
        while True:
            self._ensure_usable()
            if next_entry <= self._last_add_confirmed:
                known = self.metadata
                try:
                    return await self._fetcher.fetch(known, next_entry)
                except DistributedLogError as error:
                    return await self._fetch_again(next_entry, known, error)
            left_s = deadline - self._loop.time()
            if self.closed:
                return None
            if left_s <= 0:
                if failure is not None:
                    raise failure
                return None
            began = self._loop.time()
            listening = self._listen()
            poll = TailRound(self._pool, self.ledger_id, self.metadata, self._digest, next_entry, deadline, listening)
            machine = poll.machine
            entry = await poll.run(self._changed)
            self._raise_lac(machine.last_add_confirmed)
            # The ledger may have been closed while the answer was on its way: its end decides, not the bookie (I17).
            if entry is not None and self._within(next_entry):
                return entry
            failure = None if machine.known else machine.error
            waited = machine.empties > 0 and self._loop.time() - began >= pause_s
            if not waited and next_entry > self._last_add_confirmed:
                # Answered at once, with nothing: no bookie knows the ledger yet, or none is there.
                await self._pause(min(pause_s, max(deadline - self._loop.time(), 0)))
                pause_s = min(pause_s * 2, RETRY_S)

    def _listen(self) -> TailListening | None:
        """Return what this ledger's polls know of bookies in several regions; None where the own one is not known."""
        nearness, loop = self._pool.nearness, self._loop
        if not nearness.known or not self._context.settings.reorder_reads:
            return None
        if self._listening is None:
            longest_s = self._context.settings.long_poll_ms / 1000
            self._listening = TailListening(
                nearness.is_local, lambda bookie: nearness.round_trip_s(bookie, loop.time()), longest_s
            )
        return self._listening

    def _within(self, entry_id: int) -> bool:
        """Return whether an entry is not behind the end that the ledger may have got meanwhile (I17)."""
        return not self.closed or entry_id <= self._last_add_confirmed

    async def _pause(self, seconds: float) -> None:
        """Wait, but not beyond a change of the metadata."""
        await asyncio.wait({self._changed}, timeout=seconds)

    # ------------------------------------------------------------------------------------ the metadata

    def watch(self) -> None:
        """Follow the metadata until the ledger is closed; `LedgerClient.open` has called this."""
        if not self.closed:
            self._tasks.start(self._follow())

    async def _follow(self) -> None:
        """Read the metadata, wait for its watch, and again."""
        while not self.closed:
            fired: asyncio.Future[None] = self._loop.create_future()

            def fire(_event: WatchEvent, fired: asyncio.Future[None] = fired) -> None:
                if not fired.done():
                    fired.set_result(None)

            try:
                self._take(await self._context.ledgers.read(self.ledger_id, fire))
            except NoNodeError as error:
                self._lose(error)
                return
            except DistributedLogError as error:
                if self._context.ledgers.store.state is SessionState.CLOSED:
                    self._lose(error)
                    return
                logger.warning("the metadata of ledger %d is not to be read at present: %s", self.ledger_id, error)
                await asyncio.sleep(RETRY_S)
                continue
            if not self.closed:
                await fired

    def _take(self, current: Versioned[LedgerMetadata]) -> None:
        """Adopt metadata that is newer than what is known."""
        if current.version < self._current.version:
            return  # an answer that was overtaken: ensembles, and a close, must not be undone (I2)
        changed = current.version > self._current.version
        self._current = current
        if current.value.is_closed:
            self._last_add_confirmed = current.value.last_entry  # one end for ever, the same for all (I2)
            self.on_closed.set()
        if changed:
            self._wake()
            if not self.closed and not self._ended:
                self._tasks.start(self._context.learn_places(current.value))  # of bookies that came in

    def _lose(self, error: DistributedLogError) -> None:
        """Give the ledger up, or the way to follow it: every later call raises this."""
        self._gone = error
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, self._loop.create_future()
        changed.set_result(None)

    def _ensure_usable(self) -> None:
        if self._ended:
            raise LedgerClosedError("this reader was closed", ledger_id=self.ledger_id)
        if self._gone is not None:
            raise self._gone

    async def close(self) -> None:
        """End the watch, and every call that waits here. Idempotent."""
        if not self._ended:
            self._ended = True
            self._wake()
            await self._tasks.stop()
            self._on_end(self)


# ------------------------------------------------------------------------------------ without a metadata store


@dataclass(frozen=True, slots=True)
class LedgerLocation:
    """Can a ledger be read without a metadata store? With this, which travels to Spark's executors by pickle.

    `addresses` gives (host, port) by bookie id; a bookie that is missing there counts as unreachable. `regions` gives
    the region by bookie id, where it is known: a task that knows its own one reads there first.
    """

    ledger_id: int
    metadata: LedgerMetadata
    addresses: Mapping[str, tuple[str, int]]
    regions: Mapping[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """True where every bookie of the ledger has an address."""
        return all(bookie in self.addresses for ensemble in self.metadata.ensembles for bookie in ensemble.bookies)


def _restore(location: LedgerLocation, state: Sequence[object]) -> None:
    """Fill in an unpickled location; one from a driver that knows no regions has none."""
    for name, value in zip(LedgerLocation.__slots__, [*state, {}], strict=False):
        object.__setattr__(location, name, value)


# Behind the class: the one that a frozen class with slots gets by itself leaves a field that is missing without value.
LedgerLocation.__setstate__ = _restore  # type: ignore[attr-defined]


class ReplicaReader:
    """How does a Spark task read entries, knowing only where they are? One event loop; it outlives restarts of the
    bookies; `close` ends every connection.

    The environment variable DLSPARK_REGION comes before the setting `region` here: tasks of one query run in several
    regions, and have its settings in common. Where neither names the own region, replicas are asked in the usual order.

    Args:
        settings: timeouts and bounds.
        network: the edge; the real one if left out.
        environment: of the process; its own one if left out.
    """

    def __init__(
        self,
        *,
        settings: ClientSettings | None = None,
        network: Network | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings or ClientSettings()
        self._network = network or TcpNetwork()
        self._environment = os.environ if environment is None else environment
        self._addresses: dict[str, tuple[str, int]] = {}
        self._regions: dict[str, str] = {}
        self._pool: ConnectionPool | None = None

    @property
    def settings(self) -> ClientSettings:
        """The settings that this reader was made with; they never change."""
        return self._settings

    async def entries(
        self,
        location: LedgerLocation,
        first: int,
        last: int,
        *,
        window_bytes: int = WINDOW_BYTES,
        window_entries: int = WINDOW_ENTRIES,
    ) -> AsyncGenerator[Entry, None]:
        """Yield verified entries first..last, in order. `last` must be committed: the planner knows, this side cannot.

        Raises CallerError for a range beyond a closed ledger's end; else what kept all replicas from answering.
        """
        metadata = location.metadata
        check_range(first, last, metadata.last_entry if metadata.is_closed else last, location.ledger_id)
        self._addresses.update(location.addresses)
        self._regions.update(location.regions)
        if self._pool is None:
            security = client_security(self._settings, self._environment)
            loop = asyncio.get_running_loop()
            self._pool = ConnectionPool(self._resolve, self._settings, self._network, loop, security=security)
            self._pool.nearness.own = region_of_task(self._settings.placement.region, self._environment)
            self._pool.nearness.find_region = self._regions.get
        fetcher = EntryFetcher(self._pool, location.ledger_id)

        async def no_more(_entry_id: int, _known: LedgerMetadata, error: DistributedLogError) -> Entry:
            raise error

        window = Window(window_bytes, window_entries, self._settings.batch_read_max_entry_bytes)
        run = ReadAhead(fetcher, lambda: metadata, no_more, window, self._settings.outage_wait_ms)
        entries = run.entries(first, last)
        try:
            async for entry in entries:
                yield entry
        finally:
            await entries.aclose()

    @property
    def region(self) -> str | None:
        """The region that entries are read in first; None: not known."""
        return region_of_task(self._settings.placement.region, self._environment)

    async def _resolve(self, bookie: str) -> tuple[str, int]:
        try:
            return self._addresses[bookie]
        except KeyError:
            raise UnknownBookieError("the ledger's location gives no address for the node", node=bookie) from None

    async def close(self) -> None:
        """End all connections. Idempotent."""
        if self._pool is not None:
            await self._pool.close()
            self._pool = None
