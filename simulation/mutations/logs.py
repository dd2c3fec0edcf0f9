"""Rules of logs: their writers, their owners, their readers, their segment lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from itertools import takewhile
from weakref import WeakKeyDictionary

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from dlspark.core.lifecycle import deletion, owned_segments
from dlspark.core.lifecycle.owned_segments import OwnedSegments
from dlspark.core.reading import read_ahead
from dlspark.core.reading.locked_reader import AsyncLockedReader
from dlspark.core.reading.read_ahead import LogReadAhead
from dlspark.core.reading.reader import AsyncLogReader
from dlspark.core.writing import segment_sequence
from dlspark.core.writing.issuing import WriteIssuer
from dlspark.core.writing.producers import Producers
from dlspark.core.writing.segment_ends import SegmentEnd
from dlspark.core.writing.segment_writer import SegmentWriter
from dlspark.core.writing.transactions import OwnersTransactions
from dlspark.core.writing.transitions import SegmentTransitions
from dlspark.errors import WriteError
from metadata.distributedlog.log_admin import LogAdmin
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.segment_changes import Change, SegmentChanges
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.distributedlog.subscribers import SubscriberStore
from metadata.store import ANY_VERSION, Check, Delete, MetadataStore, Op
from simulation.mutations.mutation import Method, Mutation, edited


def _leave_segments_in_progress(_recover: Method) -> Method:
    async def mutated(*arguments: object) -> None:
        """Leave what the last owner left as it is."""

    return mutated


def _believe_the_ledger(_completed: Method) -> Method:
    async def mutated(self: LogReadAhead, segment: SegmentMetadata) -> bool:
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
        stored: DLSN = await commit(self, dlsn or ahead)
        return stored if ahead is None else self.position

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


def _take_for_new(_check: Method) -> Method:
    def mutated(self: Producers, request: object) -> None:
        """Take every producer that is not known for one that has never written."""

    return mutated


def _remember_by_name(learn: Method) -> Method:
    known: WeakKeyDictionary[MetadataStore, dict[str, dict[str, bytes]]] = WeakKeyDictionary()

    @wraps(learn)
    async def mutated(self: WriteIssuer, highest: int) -> None:
        """Remember what a process knows of a log's producers by the log's name."""
        await learn(self, highest)
        producers = self.request_log().producers
        of_store = known.setdefault(self._services.store, {})
        producers._states = of_store[self._name] = {**of_store.get(self._name, {}), **producers._states}

    return mutated


def _note_no_ledgers(_removal: Method) -> Method:
    def mutated(self: SegmentChanges, segment: SegmentMetadata) -> list[Op]:
        return [Delete(self._paths.segment(segment))]

    return mutated


def _keep_no_completed_segment(_head: Method) -> Method:
    def mutated(segments: Sequence[SegmentMetadata], may_go: Method) -> list[SegmentMetadata]:
        return list(takewhile(may_go, owned_segments.completed_head(segments)))

    return mutated


OWNERS = {
    "segment-recovery": Mutation(
        "a new owner recovers first (I7)", segment_sequence, "recover_segments", _leave_segments_in_progress
    ),
    "start-version": Mutation(
        "a segment is started with the version read (I7)",
        LogStore,
        "start_segment",
        edited(("state.max_lssn.version)", "-1)")),
    ),
    "end-version": Mutation(
        "a segment is completed with the versions read (I7)",
        LogStore,
        "complete_segment",
        edited(("state.max_lssn.version)", "-1)"), ("state.max_txid.version)", "-1)")),
    ),
    "removal-version": Mutation(
        "an empty segment is removed with the version read (I7)",
        LogStore,
        "remove_segment",
        edited(("state.max_lssn.version)", "-1)")),
    ),
    "start-lock": Mutation(
        "a segment is started under the lock (I7)",
        LogStore,
        "start_segment",
        edited(("[*ops, *extra]", "[*ops]")),
    ),
    "moved-versions": Mutation(
        "after a lost answer the list shows whose transaction it was (I7)",
        OwnersTransactions,
        "run",
        edited(("if applied(found):", "if versions(found.state) != versions(before):")),
    ),
    "unknown-records": Mutation("what was sent is unknown", SegmentWriter, "_transmit_error", _call_the_unknown_failed),
}

PRODUCERS = {
    "requests-replayed": Mutation(
        "a new owner takes in the requests behind the snapshot (I19)",
        SegmentEnd,
        "read",
        edited(("taken.following[::-1]", "[]")),
    ),
    "copies-wait": Mutation(
        "a copy of a request that is under way waits for its outcome (I3)",
        Producers,
        "_repetition",
        edited(("UnderWay(request) if request in self._under_way else Written(first, count)", "Written(first, count)")),
    ),
    "table-after-failure": Mutation(
        "after a failure the log says what was written (I19)",
        WriteIssuer,
        "_start",
        edited(("if self.requests is not None:", "if False:")),
    ),
    "snapshot-first": Mutation(
        "a segment begins with a snapshot of the producers (I19)",
        WriteIssuer,
        "_segment_begun",
        edited(("segment.write_snapshot(self.requests.snapshot(self._settings.producer_expiry_s))", "pass")),
    ),
    "forgotten-refused": Mutation(
        "what was forgotten does not count as not written (I19)", Producers, "_check_unknown", _take_for_new
    ),
    "start-noted": Mutation(
        "the start of a segment with producers is noted (I19)",
        SegmentTransitions,
        "_start_with",
        edited(("[*owned, *besides]", "owned")),
    ),
}

READERS = {
    "reused-number": Mutation("empty segments may go (I4)", LogReadAhead, "completed", _believe_the_ledger),
    "position-exact": Mutation(
        "a reader goes on behind its last record", AsyncLogReader, "_deliver", _go_on_behind_the_entry
    ),
    "commit-delivered": Mutation(
        "committed is what was delivered", AsyncLockedReader, "commit_position", _commit_what_is_read_ahead
    ),
    "commit-guard": Mutation("positions are stored under the lock", SubscriberStore, "put", _commit_without_the_lock),
    "hidden-records": Mutation("what is hidden is not read (I8)", read_ahead, "first_active", _deliver_what_is_hidden),
}

LIVES = {
    "truncation-point": Mutation(
        "at and above the point nothing is hidden (I8)", owned_segments, "_partial", _hide_the_whole_segment
    ),
    "truncation-back": Mutation(
        "a truncation never goes back (I8)", owned_segments, "_partial", _hide_again_from_lower_down
    ),
    "segment-guard": Mutation("lists change under the lock alone (I8)", OwnedSegments, "guard", _check_nothing),
    "list-first": Mutation("the list, then the ledger (I7)", OwnedSegments, "purge", _delete_the_ledgers_first),
    "ledger-notes": Mutation("removed ledgers are noted", SegmentChanges, "_removal", _note_no_ledgers),
    "newest-stays": Mutation("the newest completed segment stays", deletion, "_oldest", _keep_no_completed_segment),
}

NAMES = {
    "rename-whole": Mutation(
        "a renamed log keeps what it knows of producers (I19)",
        LogAdmin,
        "_rename_ops",
        edited(("*_copies(moved, ", '*_copies([node for node in moved if name_of(node.path) != "producers"], ')),
    ),
    "table-by-log": Mutation(
        "what an owner knows of producers is one log's (I19)", WriteIssuer, "_learn_requests", _remember_by_name
    ),
}
