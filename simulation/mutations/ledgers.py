"""Rules of the ledger client: its writer, its recovery, its readers, its metadata."""

from __future__ import annotations

from functools import wraps

from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.bookkeeper.ledgers import LedgerStore
from simulation.mutations.mutation import Method, Mutation, edited
from storage_node.client import recovering
from storage_node.client.reader import LedgerReader
from storage_node.errors import NoSuchEntryError
from storage_node.protocol import recovery, writing_model
from storage_node.protocol.digests import ENTRY_HEADER, Entry, EntryDigest
from storage_node.protocol.recovery import RecoveryMachine
from storage_node.protocol.striping import QuorumCoverage
from storage_node.protocol.writing import WriterMachine


def _acknowledge_while_frozen(drain: Method) -> Method:
    @wraps(drain)
    def mutated(self: WriterMachine) -> object:
        state = self.state
        if not self.frozen:
            return drain(self)
        self.state = writing_model.WriterState.WRITING
        effects = drain(self)
        if self.state is writing_model.WriterState.WRITING:
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
    def mutated(self: WriterMachine, seat: writing_model.Seat, *entry_ids: int) -> object:
        effects = added(self, seat, *entry_ids)
        complete = [e for e in entry_ids if self._acks.get(e, 0).bit_count() >= self._ack_quorum]
        if self.state is not writing_model.WriterState.WRITING or not complete:
            return effects
        before, self.last_acknowledged = self.last_acknowledged, max(complete)
        for earlier in range(before + 1, self.last_acknowledged + 1):
            del self._acks[earlier]
            self.acknowledged_length = self._lengths.pop(earlier)
        return (*effects, writing_model.Acknowledged(before + 1, self.last_acknowledged))

    return mutated


def _carry_an_early_lac(add: Method) -> Method:
    @wraps(add)
    def mutated(self: WriterMachine, size: int, length: int | None = None, entry_id: int | None = None) -> object:
        send, *others = add(self, size, length, entry_id)
        return (writing_model.Send(send.entry_id, send.entry_id - 1, send.length, send.seats), *others)

    return mutated


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
        self.state = recovery.RecoveryState.READING
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
        if self.state is recovery.RecoveryState.CLOSE_CHECKING and metadata.is_closed and self._closing is not None:
            return self._done(self._closing, version)
        return found(self, metadata, version)

    return mutated


def _publish_ensembles_when_marking(mark: Method) -> Method:
    @wraps(mark)
    def mutated(self: RecoveryMachine, metadata: LedgerMetadata, version: int) -> object:
        effects = mark(self, metadata, version)
        if self.state is not recovery.RecoveryState.MARKING:
            return effects
        bookies = metadata.last_ensemble.bookies
        moved = effects[0].metadata.with_ensemble(metadata.last_ensemble.first_entry, bookies[::-1])
        return (writing_model.WriteMetadata(moved, version),)

    return mutated


def _do_not_check_digests(_verify: Method) -> Method:
    def mutated(self: EntryDigest, ledger_id: int, entry_id: int | None, data: memoryview) -> Entry:
        found_ledger, found_entry, lac, length = ENTRY_HEADER.unpack_from(data)
        return Entry(found_ledger, found_entry, lac, length, data[self.header_size :])

    return mutated


WRITER = {
    "freeze": Mutation("freeze on ensemble change (D4, D5)", WriterMachine, "_drain", _acknowledge_while_frozen),
    "replaced-acks": Mutation("acks of a replaced node are void", WriterMachine, "_adopt", _keep_acks_of_the_replaced),
    "late-acks": Mutation(
        "late acks of a replaced node are void (D12)",
        WriterMachine,
        "added",
        edited(("if not seat.current:", "if self.ended:")),
    ),
    "ack-order": Mutation("acks in entry order (I4)", WriterMachine, "added", _acknowledge_out_of_order),
    "early-lac": Mutation("LAC not beyond the acknowledged (I6)", WriterMachine, "add", _carry_an_early_lac),
    "acknowledged-end": Mutation(
        "a failed writer ends its ledger at the LAC",
        WriterMachine,
        "_end",
        edited(("(self.last_acknowledged, self.acknowledged_length)", "(self.last_add_pushed, self.length)")),
    ),
}

RECOVERY = {
    "reads-fence": Mutation("recovery reads fence (D1)", recovering, "encode_read_request", _read_without_fencing),
    "coverage": Mutation(
        "quorum coverage, of fences alone", QuorumCoverage, "covered", _trust_any_answer, also=("reads-fence",)
    ),
    "fragment-start": Mutation("LAC0 >= last key - 1 (D2)", RecoveryMachine, "_begin_reading", _start_at_the_lac_found),
    "negatives": Mutation("(Qw - Qa) + 1 negatives (D3)", recovery, "missing_needed", _one_negative_is_enough),
    "mixed-verdict": Mutation("mixed verdicts abort (D3)", RecoveryMachine, "entry_failed", _any_error_is_a_negative),
    "stored-end": Mutation("the stored end is adopted (I2)", RecoveryMachine, "metadata_found", _believe_in_own_close),
    "one-publish": Mutation("one closing write (I18)", RecoveryMachine, "_mark", _publish_ensembles_when_marking),
    "recovery-lac": Mutation(
        "a recovery's adds carry the LAC found (I18)",
        WriterMachine,
        "add",
        edited(("if self.deferred_sync or self._recovering else", "if self.deferred_sync else")),
    ),
}

METADATA = {
    "lost-answer": Mutation(
        "after a lost answer the bytes show whose write it was",
        LedgerStore,
        "write",
        edited(("if found_version == version + 1 and found == data:", "if found_version == version + 1:")),
    ),
}

READERS = {
    "digest": Mutation("digest check on read (I12)", EntryDigest, "verify", _do_not_check_digests),
    "lac-back": Mutation(
        "a reader's LAC never goes back (I6)",
        LedgerReader,
        "_raise_lac",
        edited((" and last_add_confirmed > self._last_add_confirmed", "")),
    ),
}
