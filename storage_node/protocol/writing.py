"""The writer of one ledger as a state machine: which entries are acknowledged, and what happens when bookies fail.

Theory of operation
-------------------
The machine knows no bytes, sockets or clocks. Each event is a method call; it returns a tuple of effects, which the
edge carries out in order. Entries get consecutive ids and go to their write set in the last ensemble. A bookie's place
in an ensemble is a `Seat`; every answer names the seat it was sent to, and counts only while that seat is current
(D12). An entry is *complete* when A seats of its write set said EOK. Entries are acknowledged strictly in order: LAC is
the last entry acknowledged so, and each add carries the LAC known when it was packaged
(docs/reference/wire.md#lac-in-an-entry).

**Ensemble change.** When a bookie fails an add, acknowledgement freezes at once, at LAC + 1, and stays frozen until the
change is over (D4). The new fragment starts at LAC + 1 computed under the freeze, so that no entry below it can be
acknowledged by nodes of the old fragment after it was computed (D5). The metadata is changed by one conditional write.
Only then are the pending entries sent to the new bookies, in entry order, and acknowledgement resumes. What a replaced
bookie had acknowledged of pending entries no longer counts. Answers to a conditional write are: written; version
conflict; outcome unknown. The last two are resolved alike: read the metadata again and judge by what is found there.
An ensemble without any failing bookie is adopted, also where another client wrote it (it can be our own earlier
attempt); otherwise the change is tried again on top of it; IN_RECOVERY or CLOSED ends this writer.

**Vacancies.** Where there is no replacement, the change still succeeds as long as every write set keeps A bookies that
answer: the metadata keep the bookie, its seat is *vacant*, and nothing more is sent to it. `retry_vacancies` looks for
a replacement again; the same bookie may take its own seat once it is back. With fewer than A bookies the writer fails.

**Strangers.** A bookie keeps one master key for a ledger, the one of the first request that brought a key, and answers
any other with EUA. So a bookie that says EUA to the ledger's owner holds what another client wrote under this id before
the owner did (that needs no credentials); it never held an entry of the owner's, and never will. It cannot stay in the
ensemble, since readers would be given what the other client wrote. So it is replaced at once, for good, in the whole
fragment. The replacement may lack entries that are acknowledged already: A other bookies have them. (A refusal that
comes after the close is too late for this.) The ledger itself is given up if nothing is acknowledged in it, and either
more than W - A bookies say EUA or one of them cannot be replaced: a single such bookie that stayed in the ensemble
could give readers entries that the owner never wrote. Giving up is one conditional write, which closes the ledger
empty. Once it is applied, no recovery can ever find an entry in the ledger (I2), so what is pending may be sent again
elsewhere and is in two places at no time (I3). Then the edge makes another ledger, as often as `replacements_left`
allows, and the machine goes on in that ledger with every pending entry.

A refusal that comes after the acknowledgement would come too late for readers. So a *cautious* writer acknowledges an
entry only once each of its bookies has answered something in this ledger, however much more than an ack quorum that is,
or `heard_enough` says that it has waited long enough: that concerns the first entries, and those after a change.

**Failure** is final: fenced, metadata taken over, no quorum. Every pending add fails, in entry order,
with the same error. A writer that failed for lack of bookies may still close the ledger at its LAC. A fenced writer may
not: the client that recovers the ledger decides where it ends (I5).

**Recovering.** With `recovering` the same machine re-adds entries for a recovery: lengths are given, and ensemble
changes stay in `metadata`, local, until the recovery's one closing write publishes them (I18). For the same reason its
adds carry the LAC that it found, and not its own progress.

**Delayed changes.** With `delay_ensemble_change` a failed add is only noted, entry by entry, until so many seats of its
write set have failed or are vacant that it could not reach its ack quorum; then all of these are changed at once.
A read-only bookie is changed at once even so. A failure of what was acknowledged without it counts for nothing.

**Deferred sync.** Bookies acknowledge before they sync; an acknowledgement moves no LAC, `forced` does. What an old
ensemble holds unsynced could be lost with it, so such a ledger never changes its ensemble: any failure is final.
A close forces what is acknowledged before it ends the ledger there.

**Fault domains.** With `spans_domains` an entry is complete only when the bookies that have it also satisfy that
function (they are in enough racks). A write set that could not do so without its failing seats has lost its quorum.

**Advanced.** The caller gives entry ids, in any order. A gap holds back what lies behind it; a close makes the gap
final, and what lies behind it fails. The length is then the sum over acknowledged entries.

States, events, their table and the effects are in `writing_model`; what the machine knows, and the questions about it
that decide nothing, in `writing_progress`.
"""

from __future__ import annotations

from collections.abc import Mapping

from metadata.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from metadata.foundation.errors import DistributedLogError, NoNodeError, OutcomeUnknownError, check
from storage_node.errors import (
    DuplicateEntryError,
    LedgerClosedError,
    LedgerFencedError,
    ReadOnlyError,
    UnauthorizedAccessError,
)
from storage_node.protocol import writing_errors as errors
from storage_node.protocol.striping import next_fragment_key
from storage_node.protocol.tables import Reaction
from storage_node.protocol.writing_model import (
    REACTIONS,
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
    WriterEvent,
    WriterState,
)
from storage_node.protocol.writing_progress import WriterProgress

_LOOKING = {
    WriterState.CLOSING: WriterState.CLOSE_CHECKING,
    WriterState.GIVING_UP: WriterState.GIVE_UP_CHECKING,
    WriterState.CHANGING: WriterState.CHECKING,
}
_FATAL = (LedgerFencedError, LedgerClosedError)


class WriterMachine(WriterProgress):
    """When is an entry acknowledged, and which bookies get it? See the module's docstring. Attributes other than
    methods are for reading.
    """

    def heard_enough(self) -> Effects:
        """Wait no longer for bookies that do not answer."""
        if REACTIONS[self.state][WriterEvent.HEARD_ENOUGH] is Reaction.IGNORE:
            return ()
        self._unheard = 0
        return self._drain()

    # ------------------------------------------------------------------------------------ adds and their answers

    def add(self, size: int, length: int | None = None, entry_id: int | None = None) -> Effects:
        """Add an entry of `size` payload bytes. A recovery gives the cumulative `length` it has read.

        An advanced writer gives the entry's id. Raises LedgerClosedError after a close, what made the writer fail, or
        DuplicateEntryError.
        """
        if self.close_requested or (
            self.state is not WriterState.WRITING
            and REACTIONS[self.state][WriterEvent.ADD] is Reaction.REFUSE  # the usual first
        ):
            raise errors.refusal_error(self)
        if entry_id is None:
            entry_id = self.last_add_pushed + 1
            self.last_add_pushed = entry_id
        else:
            self._claim(entry_id)
        self.length = total = self.length + size if length is None else length
        self._acks[entry_id] = 0
        self._lengths[entry_id] = size if self.advanced else total
        change: Effects = ()
        if self._failing and self.state is WriterState.WRITING:
            # A bookie failed an entry that was acknowledged already: its seat is changed now that it is needed again.
            change = self._begin_change()
        # The LAC as it is known now, never a later one (I6). A recovery's adds carry the LAC that it found: their own
        # progress may lie in ensembles that only its closing write publishes (I18), and a recovery after it would
        # believe in entries that the published ones do not hold.
        lac = self._synced[0] if self.deferred_sync or self._recovering else self.last_acknowledged
        send = Send(entry_id, lac, total, self._targets[entry_id % self._size])
        return (send, *change) if change else (send,)

    def _claim(self, entry_id: int) -> None:
        """Take an id that the caller has chosen."""
        check(self.advanced, "an entry id was given to a writer that assigns them", ledger_id=self.ledger_id)
        if entry_id <= self.last_acknowledged or entry_id in self._acks:
            raise DuplicateEntryError(
                f"entry {entry_id} is in the ledger or under way; nothing was sent",
                ledger_id=self.ledger_id,
                entry_id=entry_id,
            )
        self.last_add_pushed = max(self.last_add_pushed, entry_id)

    def added(self, seat: Seat, *entry_ids: int) -> Effects:
        """Note that the bookie in `seat` stored the entries durably."""
        if not seat.current:  # only the bookie that still is at that index counts (D12)
            return ()
        # One bit for each seat: a bookie that answers twice for an entry still counts once.
        pending, bit = self._acks, seat.bit
        if self._unheard:
            self._unheard &= ~bit
        for entry_id in entry_ids:
            acks = pending.get(entry_id)
            if acks is not None:
                pending[entry_id] = acks | bit
        # Order (I4): unless the entry after the LAC is complete, nothing behind it can be acknowledged.
        first = pending.get(self.last_acknowledged + 1)
        if first is None or first.bit_count() < self._ack_quorum:
            return ()
        return self._drain()

    def refused(self, seat: Seat, entry_id: int, error: DistributedLogError) -> Effects:
        """Note that the bookie in `seat` did not store the entry, or may not have: any answer but EOK, and none in
        time.
        """
        if not seat.current or REACTIONS[self.state][WriterEvent.REFUSED] is Reaction.IGNORE:
            return ()
        self._unheard &= ~seat.bit
        self._last_refusal = error
        if isinstance(error, _FATAL):
            return self._fail(error)  # EFENCED: fatal for the handle, no later acknowledgement (I5)
        if isinstance(error, UnauthorizedAccessError):
            self._strangers[seat.bookie] = error
        if self.deferred_sync:
            # No change: the old ensemble's bookies may hold acknowledged entries that they have not synced (I1).
            if self._strangers and self._is_untouched():
                return self._give_up()
            return self._fail(
                errors.stuck_error(self, "a ledger whose syncs are deferred cannot change its ensemble", error)
            )
        if seat.index in self.vacant or seat.index in self._round:
            return ()  # known, and being dealt with (D12)
        failed = {seat.index}
        if self._delay:
            if entry_id in self._acks:
                self._failures[entry_id] = self._failures.get(entry_id, 0) | seat.bit
            if not isinstance(error, ReadOnlyError | UnauthorizedAccessError):
                failed = self._due(entry_id)
                if not failed:
                    return self._drain()  # acknowledged without it, or the others are still enough for an ack quorum
            else:
                failed |= self._noted(entry_id)
        self._failing |= failed
        suspects = {self._seats[index].bookie for index in failed} - self._strangers.keys()
        self._suspects |= suspects
        self._forgivable = self._forgivable - suspects if self._acks else self._forgivable | suspects
        if self.state is not WriterState.WRITING or not (self._acks or seat.bookie in self._strangers):
            return ()  # merged into the running change's sequel, or due at the next add
        return self._begin_change()

    def forced(self, entry_id: int, length: int) -> Effects:
        """Note that every bookie has synced all it had when `entry_id` was the last acknowledged, `length` bytes into
        it.
        """
        if not self._asked(WriterEvent.FORCED):
            return ()
        check(self.deferred_sync, "a sync was forced where none is deferred", ledger_id=self.ledger_id)
        self._synced = max(self._synced, (entry_id, length))
        return self._close_if_drained()

    def _drain(self) -> Effects:
        """Acknowledge what is complete (I1), in order (I4), unless frozen (D4); then a requested close may go on."""
        if self.state is not WriterState.WRITING:
            return ()  # frozen: an acknowledgement now could be by a bookie that the metadata do not name (D4)
        pending, lengths, quorum, unheard = self._acks, self._lengths, self._ack_quorum, self._unheard
        before = head = self.last_acknowledged
        while (acks := pending.get(head + 1)) is not None and acks.bit_count() >= quorum:
            if self._spans_domains is not None and not self._is_spread(acks):
                break
            if unheard & self._window_masks[(head + 1) % self._size]:
                break  # cautious: a refusal that came after the acknowledgement would be too late for readers
            head += 1
            del pending[head]
            length = lengths.pop(head)
            self.acknowledged_length = self.acknowledged_length + length if self.advanced else length
            if self._failures:
                self._failures.pop(head, None)
        if head == before:
            return self._close_if_drained()
        self.last_acknowledged = head
        if self._suspects:
            # The LAC has moved, so the ensemble works: bookies that failed before may be picked again.
            self._suspects = {self._seats[index].bookie for index in self._failing}
            self._forgivable &= self._suspects
        if self.close_requested:
            return (Acknowledged(before + 1, head), *self._close_if_drained())
        return (Acknowledged(before + 1, head),)

    # ------------------------------------------------------------------------------------ ensemble change

    def _begin_change(self) -> Effects:
        """Freeze acknowledgement first (D4, D5), then ask for replacements."""
        if len(self._strangers) > self._spare and self._is_untouched():
            return self._give_up()
        # Answers that arrive from here on are noted but not acknowledged, until `_adopt`: LAC + 1 cannot move any more.
        self.state = WriterState.PICKING
        self._round = tuple(sorted(self._failing | self.vacant))
        self._failing.clear()
        self._replacements = {}
        self._retarget()
        bookies = tuple(seat.bookie for seat in self._seats)
        staying = {seat.bookie for seat in self._seats if seat.index not in self._round}
        return (
            PickReplacements(
                bookies,
                self._round,
                frozenset(staying | self._suspects | self._strangers.keys()),
                not self._quorum_without(self._round),
                self._write_quorum,
                frozenset(self._strangers),
                self._ack_quorum,
            ),
        )

    def picked(self, replacements: Mapping[int, str], error: DistributedLogError | None = None) -> Effects:
        """Take replacements for some, all or none of the indices asked for; `error` says why there are fewer."""
        if not self._asked(WriterEvent.PICKED):
            return ()
        check(
            set(replacements) <= set(self._round), "replacements for seats that did not fail", ledger_id=self.ledger_id
        )
        left = tuple(index for index in self._round if index not in replacements)
        if self._is_untouched() and any(self._seats[index].bookie in self._strangers for index in left):
            return self._give_up()
        if not self._quorum_without(left):
            if self._forgivable:
                # Rather than fail: pick once more, and allow bookies that failed while nothing was pending.
                self._suspects -= self._forgivable
                self._forgivable.clear()
                self._failing.update(self._round)
                return self._begin_change()
            return self._fail(
                errors.stuck_error(self, self._too_few(left), self._last_refusal)
                if error is None
                else errors.stuck_error(self, "no replacement was found", error)
            )
        self._replacements = dict(replacements)
        bookies = tuple(replacements.get(seat.index, seat.bookie) for seat in self._seats)
        if bookies == self.metadata.last_ensemble.bookies:
            return self._adopt(self.metadata, self._version)  # nothing to write: vacancies, or bookies come back
        if not self._changes_left and not self._recovering:
            return self._fail(
                errors.stuck_error(self, "this writer may change its ensemble no more (maxNumEnsembleChanges)", error)
            )
        self._changes_left -= 1  # here and not in `_propose`: a write that has to be repeated counts once
        return self._propose(self.metadata, bookies)

    def _propose(self, base: LedgerMetadata, bookies: tuple[str, ...]) -> Effects:
        check(len(set(bookies)) == len(bookies), "an ensemble would hold a bookie twice", ledger_id=self.ledger_id)
        last = base.last_ensemble
        # A stranger goes out of the whole last fragment, not only from LAC + 1 on: it has none of the entries before.
        rid = tuple(new if old in self._strangers else old for old, new in zip(last.bookies, bookies, strict=True))
        changed = base.with_ensemble(last.first_entry, rid)
        if rid != bookies:
            # The start is LAC + 1 computed under the freeze (D5); same first entry: replace, else append.
            start, _ = next_fragment_key(self.last_acknowledged, last.first_entry)
            changed = changed.with_ensemble(start, bookies)
        if self._recovering:
            return self._adopt(changed, self._version)  # local until the recovery's closing write (I18)
        self.state = WriterState.CHANGING
        return (WriteMetadata(changed, self._version),)

    def _adopt(self, metadata: LedgerMetadata, version: int) -> Effects:
        """Take the last ensemble of `metadata` for the truth: fill the seats, resend in entry order, resume."""
        self.metadata, self._version = metadata, version
        bookies = metadata.last_ensemble.bookies
        changed = 0
        for seat in list(self._seats):
            # A new seat also where the same bookie came back to it: answers to what was sent before do not count (D12).
            if bookies[seat.index] != seat.bookie or self._replacements.get(seat.index) == seat.bookie:
                seat.current = False
                self._seats[seat.index] = Seat(seat.index, bookies[seat.index])
                self._failing.discard(seat.index)
                changed |= seat.bit
        self.vacant = frozenset(i for i in self._round if not changed >> i & 1 and i not in self._failing)
        self._round, self._replacements = (), {}
        if self._cautious:
            self._unheard |= changed
        self._unheard &= ~sum(1 << index for index in self.vacant)
        self.state = WriterState.WRITING
        self._retarget()
        effects: list[Effect] = []
        self._failures = {entry_id: mask & ~changed for entry_id, mask in self._failures.items()}
        for entry_id in self._failures:
            self._failing |= self._due(entry_id)  # a delayed failure counts now if a seat stayed vacant beside it
        for entry_id in sorted(self._acks) if self.advanced else self._acks:
            self._acks[entry_id] &= ~changed  # a replaced bookie's acknowledgements of pending entries are void
            window = self._windows[entry_id % self._size]
            seats = tuple(self._seats[index] for index in window if changed >> index & 1)
            if seats:
                effects.append(Resend(entry_id, seats))
        if self._failing and self._acks:
            return (*effects, *self._begin_change())
        return (*effects, *self._drain())

    def retry_vacancies(self) -> Effects:
        """Look again for bookies to fill vacant seats; does nothing where there are none, or nothing is pending."""
        if self.state is not WriterState.WRITING or not self.vacant or not self._acks:
            return ()
        return self._begin_change()

    # ------------------------------------------------------------------------------------ another ledger

    def _give_up(self) -> Effects:
        """Close the ledger empty, whose id is taken, and go on in another; fail where no other may be made.

        Only called where the edge owes no answer: none may come for a ledger that is not ours any more.
        """
        if not self.replacements_left:
            return self._fail(errors.taken_error(self, self._changed_error()))
        self._retire()  # before the closing write: nothing of this ledger may be acknowledged from here on (I3)
        self._round = ()
        self._targets = ((),) * self._size  # what is added now waits for the next ledger
        self.state = WriterState.GIVING_UP
        return (WriteMetadata(self.metadata.closed(-1, 0), self._version),)

    def _given_up(self, metadata: LedgerMetadata, version: int) -> Effects:
        self.metadata, self._version = metadata, version
        self.replacements_left -= 1
        self._replacements_made += 1
        self.state = WriterState.REPLACING
        return (ReplaceLedger(self._replacements_made, errors.taken_error(self, self._changed_error())),)

    def _judge_given_up(self, metadata: LedgerMetadata, version: int) -> Effects:
        if metadata.state is LedgerState.OPEN:
            self.metadata, self._version = metadata, version
            return self._give_up()  # our write was not applied: again, upon what is there now
        if metadata.state is LedgerState.CLOSED and metadata.last_entry == -1:
            return self._given_up(metadata, version)  # ours, or a recoverer's that found nothing either
        return self._fail(errors.taken_over_error(self, metadata))

    def replaced(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> Effects:
        """Send all that is pending to another ledger, which was made, empty and open."""
        if not self._asked(WriterEvent.REPLACED):
            return ()
        self.ledger_id = ledger_id
        self.state = WriterState.WRITING
        self._begin(metadata, version)
        sends: list[Send] = []
        total = 0
        for entry_id, length in self._lengths.items():
            self._acks[entry_id] = 0  # what the former ledger's bookies stored is not in this one
            total = total + length if self.advanced else length
            sends.append(Send(entry_id, -1, total, self._targets[entry_id % self._size]))
        return (Moved(), *sends, *self._close_if_drained())

    def replace_failed(self, error: DistributedLogError) -> Effects:
        """Fail: no other ledger could be made, or it is not known whether one was."""
        if not self._asked(WriterEvent.REPLACE_FAILED):
            return ()
        return self._fail(
            errors.stuck_error(self, "the ledger's id was taken by others, and no other ledger was made", error)
        )

    # ------------------------------------------------------------------------------------ metadata

    def metadata_written(self, metadata: LedgerMetadata, version: int) -> Effects:
        """Go on after the conditional write was applied."""
        if not self._asked(WriterEvent.METADATA_WRITTEN):
            return ()
        if self.state is WriterState.CLOSING:
            return self._closed(metadata, version)
        if self.state is WriterState.GIVING_UP:
            return self._given_up(metadata, version)
        return self._adopt(metadata, version)

    def metadata_doubtful(self) -> Effects:
        """Look again, after a version conflict or an unknown outcome: never assume either way."""
        if not self._asked(WriterEvent.METADATA_DOUBTFUL):
            return ()
        self.state = _LOOKING[self.state]
        return (ReadMetadata(),)

    def metadata_found(self, metadata: LedgerMetadata, version: int) -> Effects:
        """Go on by the metadata as they are now."""
        if not self._asked(WriterEvent.METADATA_FOUND):
            return ()
        if self.state is WriterState.CLOSE_CHECKING:
            return self._judge_close(metadata, version)
        if self.state is WriterState.GIVE_UP_CHECKING:
            return self._judge_given_up(metadata, version)
        if metadata.state is not LedgerState.OPEN:
            return self._fail(errors.taken_over_error(self, metadata))
        if metadata.last_ensemble.first_entry > self.last_acknowledged + 1:
            # Our own changes begin at LAC + 1 and the LAC is frozen: only another writer can have begun one beyond it.
            return self._fail(errors.foreign_fragment_error(self, metadata))
        self.metadata, self._version = metadata, version
        found = metadata.last_ensemble.bookies
        still = {i: b for i, b in self._replacements.items() if found[i] == self._seats[i].bookie != b}
        if not still:
            return self._adopt(metadata, version)  # nothing failing is left in it: compare, do not assume
        if set(still.values()) & set(found):
            self._failing |= still.keys()  # what was picked has come in elsewhere: adopt, then pick again
            self._replacements = {}
            return self._adopt(metadata, version)
        return self._propose(metadata, tuple(still.get(i, bookie) for i, bookie in enumerate(found)))

    def metadata_failed(self, error: DistributedLogError) -> Effects:
        """Fail: the metadata can neither be written nor read (the edge has retried what can be retried)."""
        if not self._asked(WriterEvent.METADATA_FAILED):
            return ()
        if self.state is WriterState.CLOSING or isinstance(error, NoNodeError | OutcomeUnknownError):
            return self._fail(error)  # as it is: it says itself whether the write may have been applied
        if self.state is WriterState.CLOSE_CHECKING:
            return self._fail(errors.unknown_close_error(self, error))
        if self.state in (WriterState.GIVING_UP, WriterState.GIVE_UP_CHECKING):
            return self._fail(errors.stuck_error(self, "its id was taken by others, and it could not be closed", error))
        return self._fail(errors.stuck_error(self, "the ensemble change could not be written to the metadata", error))

    # ------------------------------------------------------------------------------------ close

    def close(self) -> Effects:
        """Take no more adds; when all are acknowledged, close the ledger at the LAC.

        After a failure: closes at the LAC, or raises the failure if the end is not this writer's to decide.
        """
        check(not self._recovering, "a recovery closes the ledger itself", ledger_id=self.ledger_id)
        self.close_requested = True
        if self.state is WriterState.FAILED:
            if isinstance(self.error, _FATAL):
                raise self.error  # the recoverer decides the end (I5)
            return self._write_close(self.metadata)
        return self._close_if_drained() if self.state is WriterState.WRITING else ()

    def abort(self, error: DistributedLogError) -> Effects:
        """Give up: pending adds fail with `error`, and the ledger stays open for a recovery."""
        if REACTIONS[self.state][WriterEvent.ABORT] is Reaction.IGNORE:
            return ()
        return self._fail(error)

    def _close_if_drained(self) -> Effects:
        if not self.close_requested or self.last_acknowledged + 1 in self._acks:
            return ()
        effects: Effects = ()
        if self._acks:
            gap = LedgerClosedError(
                f"the ledger ends at entry {self.last_acknowledged}: behind a gap, this entry is not in it",
                ledger_id=self.ledger_id,
            )
            self._drop_pending()
            effects = (Cut(gap),)
        if self.deferred_sync and self._synced[0] < self.last_acknowledged:
            return (*effects, ForceSync(self.last_acknowledged, self.acknowledged_length))  # all of it, before the end
        return (*effects, *self._write_close(self.metadata))

    def _end(self) -> tuple[int, int]:
        """Return where a close by this writer ends the ledger: its LAC, and the length up to there."""
        return self._synced if self.deferred_sync else (self.last_acknowledged, self.acknowledged_length)

    def _write_close(self, base: LedgerMetadata) -> Effects:
        self.state = WriterState.CLOSING
        return (WriteMetadata(base.closed(*self._end()), self._version),)

    def _judge_close(self, metadata: LedgerMetadata, version: int) -> Effects:
        if metadata.state is LedgerState.OPEN:
            self._version = version
            return self._write_close(metadata)  # upon what is there now: auto-recovery may have changed an ensemble
        if metadata.state is LedgerState.CLOSED and (metadata.last_entry, metadata.length) == self._end():
            return self._closed(metadata, version)  # ours, or a recoverer's that agrees: equal is equal
        return self._fail(errors.taken_over_error(self, metadata))

    def _closed(self, metadata: LedgerMetadata, version: int) -> Effects:
        self.metadata, self._version = metadata, version
        self.state = WriterState.CLOSED
        self._retire()
        return (Closed(metadata),)

    # ------------------------------------------------------------------------------------ common

    def _fail(self, error: DistributedLogError) -> Effects:
        # A fence is never forgotten for a later error: `close` must go on refusing (I5).
        if not isinstance(self.error, _FATAL):
            self.error = error
        self.state = WriterState.FAILED
        self._drop_pending()
        self._retire()
        return (Failed(error),)
