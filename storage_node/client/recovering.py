"""Runs a `RecoveryMachine`: fences, reads forward, adds again, closes; starts over where the ensembles were changed.

Any number of clients may recover one ledger at once; they agree on the end through the one closing write (I2, I10).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Final, TypeAlias

from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.bookkeeper.ledgers import Versioned
from metadata.foundation.errors import DistributedLogError, InvariantViolation
from storage_node.client.connections import Answer, answer_error
from storage_node.client.metadata_updates import MetadataUpdates
from storage_node.client.pipeline import AddPipeline, ClientContext, Tasks, digest_of
from storage_node.client.placement.arranging import windows
from storage_node.client.placement.ledger_rules import rule_of
from storage_node.client.reading import EntryFetcher
from storage_node.errors import LedgerRecoveryError, ProtocolError
from storage_node.protocol.digests import Entry, master_key
from storage_node.protocol.encoding import RECOVERY_PRIORITY, encode_read_request
from storage_node.protocol.recovery import (
    AddAgain,
    BeginAdds,
    Effect,
    Effects,
    Fence,
    Measure,
    ReadFencing,
    Recovered,
    RecoveryFailed,
    RecoveryMachine,
    StartOver,
)
from storage_node.protocol.schema import Operation, Status
from storage_node.protocol.values import ReadResponse
from storage_node.protocol.writing import WriterMachine
from storage_node.protocol.writing_model import ReadMetadata, WriteMetadata
from storage_node.settings.placement import PlacementSettings

logger = logging.getLogger(__name__)

SpansDomains: TypeAlias = Callable[[Collection[str]], bool]

MAX_ROUNDS = 5
"""How often a recovery starts over because the ensembles changed under it."""

LOCATION_PAUSES_S: Final = (0.5, 1.0, 2.0)
"""Pauses between looks for the bookies' locations, before a recovery that needs them is refused."""

_LAST_ENTRY = -1


async def recover(context: ClientContext, ledger_id: int, current: Versioned[LedgerMetadata]) -> LedgerMetadata:
    """Fence the ledger, find its end and close it; returns its closed metadata, also where another client closed it.

    Raises LedgerRecoveryError where the bookies' answers do not decide: then it is not closed, and can be tried again.
    """
    for _ in range(MAX_ROUNDS):
        outcome = await _Round(context, ledger_id, current, await _spread(context, ledger_id, current.value)).run()
        if isinstance(outcome, Recovered):
            return outcome.metadata
        # The answers of the former bookies prove nothing about those that have replaced them.
        current = Versioned(outcome.metadata, outcome.version)
    raise LedgerRecoveryError(
        f"the ledger's ensembles changed under recovery {MAX_ROUNDS} times in a row; it was not closed",
        advice="Something else keeps replacing its bookies; try again",
        ledger_id=ledger_id,
    )


async def _spread(context: ClientContext, ledger_id: int, metadata: LedgerMetadata) -> SpansDomains | None:
    """Return what `enforceMinNumFaultDomainsForWrite` asks of the entries that are added again: the same as of the
    writer's, by the ledger's own rule where it has one (`ledger_rules`), else by these settings.

    A bookie whose location is not known proves nothing: where the others do not suffice it is asked for again, and then
    the recovery is refused, for entries that are acknowledged in one region would be lost with it. Where all are known
    and the last ensemble cannot keep the rule (a client that asks less placed it, or its bookies have moved) as many
    domains are asked as each of its write sets spans; with one of them nothing: no number of acknowledgements would be
    enough, and the ledger could never be closed.
    """
    rule, settings = rule_of(metadata), context.settings.placement
    counts = settings.enforce_min_num_fault_domains_for_write if rule is None else rule.by_acknowledgements
    if metadata.is_closed or not counts:
        return None
    placement = context.placements.of(metadata)
    bookies, write_quorum = metadata.last_ensemble.bookies, metadata.write_quorum
    spans = partial(placement.spans_fault_domains, write_quorum=write_quorum)
    write_sets = [[bookies[index] for index in window] for window in windows(len(bookies), write_quorum)]
    for pause_s in (*LOCATION_PAUSES_S, None):
        unlocated = await placement.unlocated(bookies)
        if all(map(spans, write_sets)):
            return spans
        if not unlocated:
            break
        if pause_s is None:
            raise _unlocated_error(ledger_id, unlocated, settings)
        logger.warning(
            "ledger %d waits to be recovered: it is not known where %s lie", ledger_id, ", ".join(sorted(unlocated))
        )
        await asyncio.sleep(pause_s)
    # Less than these settings ask, yet no less than the ledger's own rule where its ensemble keeps that: entries that
    # were acknowledged in two regions must not be closed on copies in one. What is asked of a write set is never more
    # than its size, so that a smaller size is a weaker demand.
    for most in range(write_quorum - 1, 1, -1):
        weaker = partial(placement.spans_fault_domains, write_quorum=most)
        if all(map(weaker, write_sets)):
            logger.warning(
                "ledger %d is recovered with entries counted in %d racks or regions: its ensemble %s is in too few for "
                "what is asked here",
                ledger_id,
                most,
                ", ".join(bookies),
            )
            return weaker
    logger.warning(
        "ledger %d is recovered without enforceMinNumFaultDomainsForWrite: its ensemble %s is in too few racks or "
        "regions",
        ledger_id,
        ", ".join(bookies),
    )
    return None


def _unlocated_error(ledger_id: int, unlocated: Collection[str], settings: PlacementSettings) -> LedgerRecoveryError:
    return LedgerRecoveryError(
        f"it is not known in which racks or regions {', '.join(sorted(unlocated))} lie, and what is known of the "
        "others does not suffice for enforceMinNumFaultDomainsForWrite; the ledger was not closed, and nothing is lost",
        advice=f"See why the look-up of locations fails ({settings.named('reppDnsResolverClass')}, "
        f"{settings.named('networkTopologyScriptFileName')}), then try again",
        ledger_id=ledger_id,
    )


class _AddsAgain(AddPipeline):
    """The recovery adds, with ensemble changes that stay local (I18)."""

    def __init__(
        self,
        context: ClientContext,
        machine: WriterMachine,
        acknowledged: Callable[[int], None],
        failed: Callable[[DistributedLogError], None],
    ) -> None:
        super().__init__(context, machine, recovering=True)
        self._tell_acknowledged = acknowledged
        self._tell_failed = failed

    def _acknowledged(self, last: int) -> None:
        self._tell_acknowledged(last)

    def _failed(self, error: DistributedLogError) -> None:
        self._tell_failed(error)


class _Round:
    """One run of the machine."""

    def __init__(
        self,
        context: ClientContext,
        ledger_id: int,
        current: Versioned[LedgerMetadata],
        spread: SpansDomains | None,
    ) -> None:
        self._spread = spread
        self._context = context
        self._pool = context.pool
        self._ledger_id = ledger_id
        self._digest = digest_of(current.value)
        self._key = master_key(current.value.password or b"")
        window = context.settings.recovery_window_entries
        machine = self._machine = RecoveryMachine(ledger_id, current.value, current.version, window=window)
        self._adds: _AddsAgain | None = None
        self._outcome: asyncio.Future[Recovered | StartOver] = context.pool.loop.create_future()
        self._tasks = Tasks(self._fail)
        self._open: dict[int, str] = {}  # transaction ids under way and their bookies
        self._updates = MetadataUpdates(
            context.ledgers,
            ledger_id,
            written=lambda metadata, version: self._feed(partial(machine.metadata_written, metadata, version)),
            doubtful=lambda: self._feed(machine.metadata_doubtful),
            found=lambda metadata, version: self._feed(partial(machine.metadata_found, metadata, version)),
            failed=lambda error: self._feed(partial(machine.metadata_failed, error)),
        )

    async def run(self) -> Recovered | StartOver:
        try:
            self._feed(self._machine.start)
            return await self._outcome
        finally:
            for txn_id, bookie in self._open.items():
                self._pool.to(bookie, self._ledger_id).forget(txn_id)
            await self._tasks.stop()
            if self._adds is not None:
                self._adds.machine.abort(LedgerRecoveryError("the recovery has ended", ledger_id=self._ledger_id))
                await self._adds.stop()

    def _feed(self, event: Callable[[], Effects]) -> None:
        try:
            for effect in event():
                self._carry_out(effect)
        except InvariantViolation as error:
            self._fail(error)

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Fence):
            self._read(effect.bookie, _LAST_ENTRY, partial(self._fence_answered, effect))
        elif isinstance(effect, ReadFencing):
            self._read(effect.bookie, effect.entry_id, partial(self._read_answered, effect))
        elif isinstance(effect, BeginAdds):
            self._begin_adds(effect)
        elif isinstance(effect, AddAgain):
            self._add_again(effect.entry)
        elif isinstance(effect, WriteMetadata):
            self._tasks.start(self._updates.write(effect))
        elif isinstance(effect, ReadMetadata):
            self._tasks.start(self._updates.read())
        elif isinstance(effect, Measure):
            self._tasks.start(self._measure(effect.entry_id))
        elif isinstance(effect, RecoveryFailed):
            self._fail(effect.error)
        elif not self._outcome.done():
            self._outcome.set_result(effect)

    def _fail(self, error: DistributedLogError) -> None:
        if not self._outcome.done():
            self._outcome.set_exception(error)

    # ------------------------------------------------------------------------------------ fencing reads

    def _read(self, bookie: str, entry_id: int, answer: Callable[[Answer], None]) -> None:
        """Send a read that fences first, at high priority (D1)."""
        txn_id = self._pool.next_txn_id()
        frame = encode_read_request(
            txn_id, self._ledger_id, entry_id, master_key=self._key, fence=True, priority=RECOVERY_PRIORITY
        )
        self._open[txn_id] = bookie

        def answered(response: Answer) -> None:
            self._open.pop(txn_id, None)
            answer(response)

        timeout_ms = self._context.settings.read_entry_timeout_ms
        self._pool.to(bookie, self._ledger_id).request(txn_id, Operation.READ, frame, timeout_ms, answered)

    def _verified(self, bookie: str, entry_id: int, response: Answer) -> Entry | DistributedLogError:
        """Return the entry in an answer, or why there is none; a failed digest is a failed replica (I12)."""
        if isinstance(response, DistributedLogError):
            return response
        if response.status is not Status.EOK:
            return answer_error(response.status, bookie, self._ledger_id, entry_id)
        if not isinstance(response, ReadResponse) or response.body is None:
            return ProtocolError("an EOK without an entry", node=bookie, ledger_id=self._ledger_id, entry_id=entry_id)
        try:
            return self._digest.verify(self._ledger_id, None if entry_id == _LAST_ENTRY else entry_id, response.body)
        except DistributedLogError as error:
            error.node = bookie
            return error

    def _fence_answered(self, fence: Fence, response: Answer) -> None:
        entry = self._verified(fence.bookie, _LAST_ENTRY, response)
        if isinstance(entry, Entry):
            self._feed(partial(self._machine.fence_found, fence.index, entry.last_add_confirmed))
        else:
            self._feed(partial(self._machine.fence_failed, fence.index, entry))

    def _read_answered(self, read: ReadFencing, response: Answer) -> None:
        entry = self._verified(read.bookie, read.entry_id, response)
        if isinstance(entry, Entry):
            self._feed(partial(self._machine.entry_found, read.index, entry))
        else:
            self._feed(partial(self._machine.entry_failed, read.index, read.entry_id, entry))

    async def _measure(self, entry_id: int) -> None:
        fetcher = EntryFetcher(self._pool, self._ledger_id)
        try:
            entry = await fetcher.fetch(self._machine.metadata, entry_id)
        except DistributedLogError as error:
            self._feed(partial(self._machine.measure_failed, error))
        else:
            self._feed(partial(self._machine.measured, entry.length))

    # ------------------------------------------------------------------------------------ recovery adds

    def _begin_adds(self, effect: BeginAdds) -> None:
        # `recovering`: its ensemble changes stay local until the close, and its adds carry the LAC that was found
        # (I18).
        machine = WriterMachine(
            self._ledger_id,
            effect.metadata,
            -1,
            last_add_confirmed=effect.last_add_confirmed,
            recovering=True,
            spans_domains=self._spread,
        )
        machine.be_cautious()  # a bookie with another key must be found before the entry counts as stored
        self._adds = _AddsAgain(self._context, machine, self._added_again, self._add_failed)

    def _add_again(self, entry: Entry) -> None:
        if self._adds is None or self._adds.machine.error is not None:
            return  # the recovery's machine knows of the failure already
        self._adds.add_entry((entry.payload,), entry.length)

    def _added_again(self, last: int) -> None:
        if self._adds is not None:
            ensembles = self._adds.machine.metadata.ensembles
            self._feed(lambda: self._machine.added_again(last, ensembles))

    def _add_failed(self, error: DistributedLogError) -> None:
        self._feed(partial(self._machine.add_failed, error))
