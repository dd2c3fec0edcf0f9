"""`StagedLedgers`: the ledgers that a restore writes, listed before or with their creation, so that none is orphaned.

They are listed as a one-shot sink's are (`metadata.distributedlog.sinks`): a listing is a token that the transaction
which puts the ledger into a log's list deletes, and that a sweep condemns first. So a ledger gets into a log or is
swept, and never both; the audit and `dlspark sink list` know them. The sink's id has the log's tag in it: a later
restore of the log, which holds the log's worker's lock, sweeps what a dead one left.

Fault model: the process may die anywhere; every ledger that exists is listed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final, Protocol

from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from metadata.distributedlog.sinks import LISTED_VERSION, SinkStore, StagedLedger, job_sink, log_tag
from metadata.foundation.errors import DistributedLogError, InvariantViolation, NotAppliedError, check
from metadata.store import Delete, Op
from storage_node.client.writer import LedgerWriter
from storage_node.protocol.digests import Entry

RESTORE: Final = "restore-"
_BATCH: Final = 0
_SWEPT_AT_ONCE: Final = 16

_log = logging.getLogger(__name__)


class RestoreSweptError(NotAppliedError):
    """A restore's ledgers were swept while it wrote them: nothing was changed."""


class SegmentSource(Protocol):
    """What has a segment's entries: its cold file, or the ledger that still has them."""

    @property
    def last_add_confirmed(self) -> int:
        """The last entry; -1 for none."""

    def entries(self, first: int, last: int) -> AsyncIterator[Entry]:
        """Yield the entries from `first` to `last`, in order, each of them."""


class NoEntries:
    """The source of an empty ledger."""

    last_add_confirmed: Final = -1

    def entries(self, first: int, last: int) -> AsyncIterator[Entry]:
        """Raise: there is none to be asked for."""
        raise InvariantViolation("an entry of an empty ledger was asked for")


class StagedLedgers:
    """How are ledgers written that no log refers to yet? Of one restore of one log.

    Args:
        services: the namespace's.
        settings: quorums and password of the log's ledgers.
        log: the log.
        attempt: a random word of letters and digits, of this restore alone.
    """

    def __init__(self, services: Services, settings: Settings, log: str, attempt: str) -> None:
        self._services = services
        self._settings = settings
        self._log_name = log
        self._attempt = attempt
        self._sinks = SinkStore(services.store, services.shared.namespace_path or services.logs.namespace_path)
        self._prefix = job_sink(f"{RESTORE}{log_tag(log)}-")
        self._sink = f"{self._prefix}{attempt}"

    async def begin(self) -> int:
        """Make the sink, and sweep what dead restores of the log have left; returns how many ledgers that were.

        The caller holds the lock that keeps other restores of the log away; one that has lost it fails cleanly.
        """
        swept = 0
        for sink in await self._sinks.sinks():
            if sink.startswith(self._prefix) and sink != self._sink:
                swept += await self._sweep(sink)
        await self._sinks.ensure(self._sink)
        return swept

    async def write(self, source: SegmentSource) -> int:
        """Write a ledger with the entries of `source`, under the same ids, and close it; returns its id.

        Raises what reading and writing raise: the ledger stays listed then, for `end`.
        """
        writer = await self._create()
        try:
            last = source.last_add_confirmed
            if last >= 0:
                await self._copy(source, writer, last)
            metadata = await writer.close()
        except BaseException:
            await writer.abandon()
            raise
        # Readers go by the end that is stored (I2): it has to be the one that the segment's metadata tells of.
        check(metadata.last_entry == last, f"a ledger closed at entry {metadata.last_entry} instead of {last}")
        return writer.ledger_id

    async def _copy(self, source: SegmentSource, writer: LedgerWriter, last: int) -> None:
        added: asyncio.Future[int] | None = None
        async for entry in source.entries(0, last):
            await writer.wait_for_room()
            added = writer.add(entry.payload)
            # The last one's future is waited for: once a write has failed for good, all that is pending fails with it.
            added.add_done_callback(_seen)
            check(writer.last_add_pushed == entry.entry_id, "an entry would get another id", dlsn=entry.entry_id)
        if added is not None:
            await added

    async def _create(self) -> LedgerWriter:
        services = self._services
        ensemble_size, write_quorum, ack_quorum = self._settings.quorums
        one_zookeeper = services.ledger_store.store is services.store

        async def list_first(ledger_id: int) -> None:
            listed = self._listing(ledger_id)
            if one_zookeeper:
                services.ledger_store.join_creation(
                    ledger_id, [self._sinks.listing_op(self._sink, listed, self._log_name)]
                )
            else:
                await self._sinks.list_ledger(self._sink, listed, self._log_name)

        writer = await services.ledgers.create(
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            password=self._settings.password,
            before_create=list_first,
        )
        # A listing that was made with the ledger cannot have been swept before the ledger existed.
        if not one_zookeeper and not await self._sinks.stands(self._sink, self._listing(writer.ledger_id)):
            await writer.abandon()
            await services.ledgers.delete(writer.ledger_id)  # unlisted, no sweep would find it
            raise RestoreSweptError(
                "another restore, or a sweep of sinks, has taken this one's ledgers away; nothing was changed",
                log=self._log_name,
                advice="See that no other restore of the log runs, then run it again",
            )
        writer.replace_with(self._create)
        return writer

    def _listing(self, ledger_id: int) -> StagedLedger:
        return StagedLedger(_BATCH, self._attempt, ledger_id, log_tag(self._log_name))

    def taking(self, ledger_id: int) -> Op:
        """Return the operation that takes a ledger's listing, for the transaction that puts it into the log."""
        # At the version of a listing that no sweep has condemned: else the whole transaction fails.
        return Delete(self._sinks.paths(self._sink).staged(self._listing(ledger_id)), LISTED_VERSION)

    async def end(self) -> None:
        """Sweep what did not get into the log. What cannot be swept now stays listed: the next restore of the log, or
        `dlspark sink sweep`, does it."""
        try:
            await self._sweep(self._sink)
        except DistributedLogError as error:
            _log.warning("log %s: ledgers of a restore stay listed under %s: %s", self._log_name, self._sink, error)

    async def _sweep(self, sink: str) -> int:
        gate = asyncio.Semaphore(_SWEPT_AT_ONCE)

        async def one(listed: StagedLedger) -> bool:
            async with gate:
                # In this order: a ledger deleted before it is condemned could still get into the log, without its data.
                if not await self._sinks.condemn(sink, listed):
                    return False
                await self._services.ledgers.delete(listed.ledger_id)
                await self._sinks.forget(sink, listed)
                return True

        swept = await asyncio.gather(*map(one, await self._sinks.staged(sink)))
        await self._sinks.remove(sink)
        return sum(swept)


def _seen(added: asyncio.Future[int]) -> None:
    with suppress(asyncio.CancelledError):
        added.exception()
