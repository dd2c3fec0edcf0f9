"""The mutation check: each safety rule taken out in memory, one at a time; the simulator must notice.

A mutation replaces a method or function of the product for the length of a run and puts it back. It says nothing about
the product, only about the simulator: a rule whose absence no run notices is a rule that no run tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from itertools import takewhile
from typing import Any
from unittest import mock

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from dlspark.core.lifecycle import retention, truncation
from dlspark.core.lifecycle.owned_segments import OwnedSegments
from dlspark.core.reading import read_ahead
from dlspark.core.reading.locked_reader import AsyncLockedReader
from dlspark.core.reading.read_ahead import ReadAhead
from dlspark.core.reading.reader import AsyncLogReader
from dlspark.core.writing import succession
from dlspark.core.writing.segment_writer import SegmentWriter
from dlspark.errors import WriteError
from dlspark.testing.simulation.scenarios import Report, run_seed
from metadata.bookies import BookieRegistry, Cookie
from metadata.ledger_metadata import LedgerMetadata
from metadata.logs import SegmentMetadata, TruncationStatus
from metadata.segment_changes import Change, SegmentChanges
from metadata.store import ANY_VERSION, Check, Delete, Op
from metadata.subscribers import SubscriberStore
from storage_node.bookie import bookie, cookies, gc, journal, reads
from storage_node.bookie import storage as storage_module
from storage_node.bookie.checkpointing import Checkpointer
from storage_node.bookie.connections import Connection
from storage_node.bookie.entry_logs import LogFile
from storage_node.bookie.journal import Batch
from storage_node.bookie.journal_files import JournalFile
from storage_node.bookie.replay import JournalReader, Mark
from storage_node.bookie.storage import Storage
from storage_node.client import recovering
from storage_node.edge import Disk
from storage_node.errors import NoSuchEntryError
from storage_node.protocol import recovery, writing
from storage_node.protocol.digests import ENTRY_HEADER, Entry, EntryDigest
from storage_node.protocol.messages import ReadRequest
from storage_node.protocol.recovery import RecoveryMachine
from storage_node.protocol.striping import QuorumCoverage
from storage_node.protocol.writing import WriterMachine

Method = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Mutation:
    """`rule` names what is missing; `replace` makes the mutated function of the original one."""

    rule: str
    owner: object
    attribute: str
    replace: Callable[[Method], object]
    also: tuple[str, ...] = ()
    """Rules that must go with it: alone they make up for it."""


@contextmanager
def applied(name: str) -> Iterator[None]:
    """The product without one of its rules."""
    mutation = MUTATIONS[name]
    original = getattr(mutation.owner, mutation.attribute)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(mutation.owner, mutation.attribute, mutation.replace(original)))
        for other in mutation.also:
            stack.enter_context(applied(other))
        yield


def run_mutated(name: str, seed: int, *, logs: bool = False) -> Report:
    """One run without the rule."""
    with applied(name):
        return run_seed(seed, logs=logs)


def seeds_needed(name: str, limit: int, first: int = 0, *, logs: bool = False) -> tuple[int, str] | None:
    """How many seeds passed before one failed, and how it failed; None if none of `limit` did."""
    for count in range(limit):
        failure = run_mutated(name, first + count, logs=logs).failure
        if failure is not None:
            return count, failure
    return None


# ---------------------------------------------------------------------------------------- the writer


def _acknowledge_while_frozen(drain: Method) -> Method:
    @wraps(drain)
    def mutated(self: WriterMachine) -> object:
        state = self.state
        if state not in writing._FROZEN:
            return drain(self)
        self.state = writing.State.WRITING
        effects = drain(self)
        if self.state is writing.State.WRITING:
            self.state = state
        return effects

    return mutated


def _keep_acks_of_the_replaced(adopt: Method) -> Method:
    @wraps(adopt)
    def mutated(self: WriterMachine, metadata: LedgerMetadata, version: int) -> object:
        before = dict(self._acks)
        effects = adopt(self, metadata, version)
        for entry_id in self._acks:
            self._acks[entry_id] |= before.get(entry_id, 0)
        return (*effects, *self._drain())

    return mutated


def _acknowledge_out_of_order(added: Method) -> Method:
    @wraps(added)
    def mutated(self: WriterMachine, seat: writing.Seat, *entry_ids: int) -> object:
        effects = added(self, seat, *entry_ids)
        complete = [e for e in entry_ids if self._acks.get(e, 0).bit_count() >= self._ack_quorum]
        if self.state is not writing.State.WRITING or not complete:
            return effects
        before, self.last_acknowledged = self.last_acknowledged, max(complete)
        for earlier in range(before + 1, self.last_acknowledged + 1):
            del self._acks[earlier]
            self.acknowledged_length = self._lengths.pop(earlier)
        return (*effects, writing.Acknowledged(before + 1, self.last_acknowledged))

    return mutated


def _carry_an_early_lac(add: Method) -> Method:
    @wraps(add)
    def mutated(self: WriterMachine, size: int, length: int | None = None, entry_id: int | None = None) -> object:
        send, *others = add(self, size, length, entry_id)
        return (writing.Send(send.entry_id, send.entry_id - 1, send.length, send.seats), *others)

    return mutated


# ---------------------------------------------------------------------------------------- recovery


def _read_without_fencing(encode: Method) -> Method:
    @wraps(encode)
    def mutated(txn_id: int, ledger_id: int, entry_id: int, **options: object) -> object:
        if entry_id >= 0:
            options.update(fence=False, master_key=None)
        return encode(txn_id, ledger_id, entry_id, **options)

    return mutated


def _trust_any_answer(_covered: Method) -> object:
    return property(lambda self: self._known.bit_count() >= 1)


def _start_at_the_lac_found(begin: Method) -> Method:
    @wraps(begin)
    def mutated(self: RecoveryMachine) -> object:
        start = self._last_add_confirmed
        self._added = start
        self._next_verdict = self._next_read = start + 1
        self.state = recovery.State.READING
        return (recovery.BeginAdds(self.metadata, start), *self._read_on())

    return mutated


def _one_negative_is_enough(_needed: Method) -> Method:
    return lambda write_quorum, ack_quorum: 1


def _any_error_is_a_negative(failed: Method) -> Method:
    @wraps(failed)
    def mutated(self: RecoveryMachine, index: int, entry_id: int, error: Exception) -> object:
        return failed(self, index, entry_id, NoSuchEntryError(str(error)))

    return mutated


def _believe_in_own_close(found: Method) -> Method:
    @wraps(found)
    def mutated(self: RecoveryMachine, metadata: LedgerMetadata, version: int) -> object:
        if self.state is recovery.State.CLOSE_CHECKING and metadata.is_closed and self._closing is not None:
            return self._done(self._closing, version)
        return found(self, metadata, version)

    return mutated


def _publish_ensembles_when_marking(mark: Method) -> Method:
    @wraps(mark)
    def mutated(self: RecoveryMachine, metadata: LedgerMetadata, version: int) -> object:
        effects = mark(self, metadata, version)
        if self.state is not recovery.State.MARKING:
            return effects
        bookies = metadata.last_ensemble.bookies
        moved = effects[0].metadata.with_ensemble(metadata.last_ensemble.first_entry, bookies[::-1])
        return (writing.WriteMetadata(moved, version),)

    return mutated


# ---------------------------------------------------------------------------------------- reading


def _do_not_check_digests(_verify: Method) -> Method:
    def mutated(self: EntryDigest, ledger_id: int, entry_id: int | None, data: memoryview) -> Entry:
        found_ledger, found_entry, lac, length = ENTRY_HEADER.unpack_from(data)
        return Entry(found_ledger, found_entry, lac, length, data[self.header_size :])

    return mutated


# ---------------------------------------------------------------------------------------- the node


def _do_not_sync(write: Method) -> Method:
    return lambda file, batch, slot, sync: write(file, batch, slot, False)


def _sync_again_after_a_failure(write: Method) -> Method:
    @wraps(write)
    def mutated(file: JournalFile, batch: Batch, slot: memoryview, sync: bool) -> None:
        try:
            write(file, batch, slot, sync)
        except OSError:
            file.file.sync_data()

    return mutated


def _answer_fences_at_once(_finish: Method) -> Method:
    async def mutated(connection: Connection, request: ReadRequest, pending: asyncio.Future[None]) -> None:
        found = connection.storage.find(request.ledger_id, request.entry_id)
        if not isinstance(found, tuple):
            reads.refuse(connection, request, found)
            return
        body = await reads.fetch(connection, *found, urgent=True)
        if body is None:
            reads.refuse(connection, request, reads.why_not(connection, request))
        else:
            reads.send_entry(connection, request, request.entry_id, body, None)

    return mutated


def _take_adds_after_a_fence(add: Method) -> Method:
    @wraps(add)
    def mutated(self: Storage, body: memoryview, key: bytes, recovery_add: bool, *others: object) -> object:
        return add(self, body, key, True, *others)

    return mutated


def _do_not_replay(_replay: Method) -> Method:
    async def mutated(self: Storage, reader: JournalReader, mark: Mark) -> None:
        reader.last_sequence = max(mark.sequence, 1_000_000)

    return mutated


def _sync_one_directory(sync: Method) -> Method:
    @wraps(sync)
    def mutated(self: Checkpointer, logs: list[LogFile], *others: object) -> None:
        sync(self, [log for log in logs if log.directory == self._directories[0]], *others)

    return mutated


def _list_before_the_snapshot(_collect: Method) -> Method:
    async def mutated(self: gc.GarbageCollector) -> int:
        listed = [ledger_id async for ledger_id in self._ledgers.ids()]
        gone = sorted(set(self._contents.ledgers).difference(listed))
        for ledger_id in gone:
            self._contents.delete(ledger_id, self._clock.now_ms())
        return len(gone)

    return mutated


def _admit_anybody(_check: Method) -> Method:
    async def mutated(
        registry: BookieRegistry, disk: Disk, cookie: Cookie, directories: Sequence[str], *, expansion: bool = False
    ) -> None:
        for directory in directories:
            disk.write_file(f"{directory}/{cookies.FILE_NAME}", cookie.encode())
        if await registry.read_cookie(cookie.bookie_id) is None:
            await registry.write_cookie(cookie)

    return mutated


def _forget_what_is_lost(index: Method) -> Method:
    @wraps(index)
    def mutated(*arguments: object, **options: object) -> object:
        opened = index(*arguments, **options)
        opened.lost = False
        return opened

    return mutated


# ---------------------------------------------------------------------------------------- logs


def _leave_segments_in_progress(_recover: Method) -> Method:
    async def mutated(*arguments: object) -> None:
        """What the last owner left stays as it is."""

    return mutated


def _believe_the_ledger(_completed: Method) -> Method:
    async def mutated(self: ReadAhead, segment: SegmentMetadata) -> bool:
        return True

    return mutated


def _call_the_unknown_failed(_error: Method) -> Method:
    def mutated(self: SegmentWriter, what: str, entry_id: int | None = None) -> WriteError:
        return WriteError(what, ledger_id=self.ledger.ledger_id, entry_id=entry_id)

    return mutated


def _go_on_behind_the_entry(deliver: Method) -> Method:
    @wraps(deliver)
    def mutated(self: AsyncLogReader) -> LogRecord:
        record: LogRecord = deliver(self)
        self._go_on_at(record.dlsn.next_entry)
        return record

    return mutated


def _commit_what_is_read_ahead(commit: Method) -> Method:
    @wraps(commit)
    async def mutated(self: AsyncLockedReader, dlsn: DLSN | None = None) -> DLSN:
        self._records.keep(lambda _: True)
        ahead = self._records.made[-1].dlsn.next if self._records else None
        told: DLSN = await commit(self, dlsn or ahead)
        return told if ahead is None else self.position

    return mutated


def _commit_without_the_lock(put: Method) -> Method:
    @wraps(put)
    async def mutated(
        self: SubscriberStore, log: str, subscriber: str, position: bytes, version: int, member: str | None = None
    ) -> object:
        return await put(self, log, subscriber, position, version)

    return mutated


def _deliver_what_is_hidden(_first: Method) -> Method:
    return lambda segment: DLSN(segment.lssn, 0, 0)


def _hide_the_whole_segment(_partial: Method) -> Method:
    def mutated(segment: SegmentMetadata, dlsn: DLSN) -> list[Change]:
        return [(segment, replace(segment, truncation=TruncationStatus.TRUNCATED))]

    return mutated


def _hide_again_from_lower_down(_partial: Method) -> Method:
    def mutated(segment: SegmentMetadata, dlsn: DLSN) -> list[Change]:
        lower = {"min_entry": dlsn.entry_id, "min_slot": dlsn.slot_id}
        return [(segment, replace(segment, truncation=TruncationStatus.PARTIALLY_TRUNCATED, **lower))]  # type: ignore[arg-type]

    return mutated


def _check_nothing(_guard: Method) -> Method:
    def mutated(self: OwnedSegments) -> Check:
        return Check(self._services.logs.paths(self.name).lock, ANY_VERSION)

    return mutated


def _delete_the_ledgers_first(purge: Method) -> Method:
    @wraps(purge)
    async def mutated(self: OwnedSegments, rule: Method) -> object:
        for segment in rule(await self._segments()):
            await self._services.ledgers.delete(segment.ledger_id)
        return await purge(self, rule)

    return mutated


def _note_no_ledgers(_removal: Method) -> Method:
    def mutated(self: SegmentChanges, segment: SegmentMetadata) -> list[Op]:
        return [Delete(self._paths.segment(segment))]

    return mutated


def _keep_no_completed_segment(_head: Method) -> Method:
    def mutated(segments: Sequence[SegmentMetadata], may_go: Method) -> list[SegmentMetadata]:
        return list(takewhile(may_go, truncation.completed_head(segments)))

    return mutated


MUTATIONS: dict[str, Mutation] = {
    "freeze": Mutation("freeze on ensemble change (D4, D5)", WriterMachine, "_drain", _acknowledge_while_frozen),
    "replaced-acks": Mutation("acks of a replaced node are void", WriterMachine, "_adopt", _keep_acks_of_the_replaced),
    "ack-order": Mutation("acks in entry order (I4)", WriterMachine, "added", _acknowledge_out_of_order),
    "early-lac": Mutation("LAC not beyond the acknowledged (I6)", WriterMachine, "add", _carry_an_early_lac),
    "reads-fence": Mutation("recovery reads fence (D1)", recovering, "encode_read_request", _read_without_fencing),
    "coverage": Mutation(
        "quorum coverage, of fences alone", QuorumCoverage, "covered", _trust_any_answer, also=("reads-fence",)
    ),
    "fragment-start": Mutation("LAC0 >= last key - 1 (D2)", RecoveryMachine, "_begin_reading", _start_at_the_lac_found),
    "negatives": Mutation("(Qw - Qa) + 1 negatives (D3)", recovery, "missing_needed", _one_negative_is_enough),
    "mixed-verdict": Mutation("mixed verdicts abort (D3)", RecoveryMachine, "entry_failed", _any_error_is_a_negative),
    "stored-end": Mutation("the stored end is adopted (I2)", RecoveryMachine, "metadata_found", _believe_in_own_close),
    "one-publish": Mutation("one closing write (I18)", RecoveryMachine, "_mark", _publish_ensembles_when_marking),
    "digest": Mutation("digest check on read (I12)", EntryDigest, "verify", _do_not_check_digests),
    "journal-first": Mutation("journal before ack", journal, "_write_batch", _do_not_sync),
    "sync-retry": Mutation("a failed sync is final", journal, "_write_batch", _sync_again_after_a_failure),
    "fence-durable": Mutation("fence durable, then answer (D19)", reads, "_finish_fence", _answer_fences_at_once),
    "fenced-adds": Mutation("a fenced ledger takes no adds (I5)", Storage, "add", _take_adds_after_a_fence),
    "replay": Mutation("journal replay", Storage, "_replay", _do_not_replay),
    "all-directories": Mutation("mark after all directories (D7)", Checkpointer, "_sync_logs", _sync_one_directory),
    "gc-snapshot": Mutation(
        "snapshot before listing (I13)", gc.GarbageCollector, "_collect", _list_before_the_snapshot
    ),
    "cookies": Mutation("cookie check (I11)", bookie, "check_cookies", _admit_anybody),
    "segment-recovery": Mutation(
        "a new owner recovers first (I7)", succession, "recover_segments", _leave_segments_in_progress
    ),
    "reused-number": Mutation("empty segments may go (I4)", ReadAhead, "completed", _believe_the_ledger),
    "unknown-records": Mutation("what was sent is unknown", SegmentWriter, "_transmit_error", _call_the_unknown_failed),
    "position-exact": Mutation(
        "a reader goes on behind its last record", AsyncLogReader, "_deliver", _go_on_behind_the_entry
    ),
    "commit-delivered": Mutation(
        "committed is what was delivered", AsyncLockedReader, "commit_position", _commit_what_is_read_ahead
    ),
    "commit-guard": Mutation("positions are stored under the lock", SubscriberStore, "put", _commit_without_the_lock),
    "hidden-records": Mutation("what is hidden is not read (I8)", read_ahead, "first_active", _deliver_what_is_hidden),
    "truncation-point": Mutation(
        "at and above the point nothing is hidden (I8)", truncation, "_partial", _hide_the_whole_segment
    ),
    "truncation-back": Mutation(
        "a truncation never goes back (I8)", truncation, "_partial", _hide_again_from_lower_down
    ),
    "segment-guard": Mutation("lists change under the lock alone (I8)", OwnedSegments, "guard", _check_nothing),
    "list-first": Mutation("the list, then the ledger (I7)", OwnedSegments, "purge", _delete_the_ledgers_first),
    "ledger-notes": Mutation("removed ledgers are noted", SegmentChanges, "_removal", _note_no_ledgers),
    "newest-stays": Mutation("the newest completed segment stays", retention, "_oldest", _keep_no_completed_segment),
    "lossy": Mutation("what is lost is unknown (I11)", storage_module, "index_logs", _forget_what_is_lost),
}
"""By name, in the order of docs/simulation.md."""
