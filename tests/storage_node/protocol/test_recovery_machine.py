"""The recovery machine: its table, its rules by name, and whole recoveries against model bookies."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata, LedgerState
from metadata.foundation.errors import DistributedLogError, InvariantViolation, MetadataUnavailableError
from storage_node.errors import (
    BookieUnreachableError,
    DigestError,
    LedgerFencedError,
    LedgerRecoveryError,
    LedgerStateUnknownError,
    NoSuchEntryError,
    NoSuchLedgerError,
    RequestTimeoutError,
    UnauthorizedAccessError,
)
from storage_node.protocol import writing_model
from storage_node.protocol.digests import Entry
from storage_node.protocol.recovery import (
    REACTIONS,
    AddAgain,
    BeginAdds,
    Effect,
    Effects,
    Fence,
    Measure,
    ReadFencing,
    Recovered,
    RecoveryEvent,
    RecoveryFailed,
    RecoveryMachine,
    RecoveryState,
    StartOver,
)
from storage_node.protocol.striping import write_set
from storage_node.protocol.tables import Reaction
from storage_node.protocol.writing import WriterMachine
from storage_node.protocol.writing_model import ReadMetadata, WriteMetadata

MISSING = NoSuchEntryError("not here")
TIMEOUT = RequestTimeoutError("silence")
STRANGER = UnauthorizedAccessError("another key")
DOWN = BookieUnreachableError("down")


def entry(entry_id: int, lac: int = -1, length: int | None = None) -> Entry:
    return Entry(7, entry_id, lac, 10 * (entry_id + 1) if length is None else length, memoryview(b"0123456789"))


def opened(e: int = 3, w: int = 3, a: int = 2) -> LedgerMetadata:
    return LedgerMetadata(e, w, a, (Ensemble(0, tuple("abcdefghij"[:e])),))


def marked(e: int = 3, w: int = 3, a: int = 2) -> LedgerMetadata:
    return opened(e, w, a).with_state(LedgerState.IN_RECOVERY)


def fencing(metadata: LedgerMetadata | None = None, window: int = 2) -> RecoveryMachine:
    m = RecoveryMachine(7, metadata or marked(), 1, window=window)
    m.start()
    assert m.state is RecoveryState.FENCING
    return m


def reading(lac: int = -1, metadata: LedgerMetadata | None = None, window: int = 2) -> RecoveryMachine:
    m = fencing(metadata, window)
    m.fence_found(0, lac)
    m.fence_found(1, lac)
    assert m.state is RecoveryState.READING
    return m


def ended(m: RecoveryMachine, at: int) -> Effects:
    m.entry_failed(0, at, MISSING)
    return m.entry_failed(1, at, MISSING)


# ---------------------------------------------------------------------------------------- the table


def in_state(state: RecoveryState) -> RecoveryMachine:
    if state is RecoveryState.NEW:
        return RecoveryMachine(7, opened(), 0, window=2)
    if state in (RecoveryState.MARKING, RecoveryState.MARK_CHECKING):
        m = RecoveryMachine(7, opened(), 0, window=2)
        m.start()
        if state is RecoveryState.MARK_CHECKING:
            m.metadata_doubtful()
    elif state is RecoveryState.FENCING:
        m = fencing()
        m.fence_failed(2, MISSING)
    elif state is RecoveryState.READING:
        m = reading()
        m.entry_found(0, entry(0))
        m.entry_failed(2, 1, MISSING)
    elif state is RecoveryState.SETTLING:
        m = reading()
        m.entry_found(0, entry(0))
        ended(m, 1)
    elif state is RecoveryState.MEASURING:
        m = reading(4)
        ended(m, 5)
    else:
        m = reading()
        ended(m, 0)
        if state is RecoveryState.CLOSE_CHECKING:
            m.metadata_doubtful()
        if state is RecoveryState.DONE:
            m.metadata_written(marked().closed(-1, 0), 2)
        if state is RecoveryState.FAILED:
            m.metadata_failed(MetadataUnavailableError("away"))
    assert m.state is state
    return m


EVENTS: dict[RecoveryEvent, Callable[[RecoveryMachine], Effects]] = {
    RecoveryEvent.START: lambda m: m.start(),
    RecoveryEvent.METADATA_WRITTEN: lambda m: m.metadata_written(
        marked().closed(-1, 0) if m.state is RecoveryState.CLOSING else marked(), 2
    ),
    RecoveryEvent.METADATA_DOUBTFUL: lambda m: m.metadata_doubtful(),
    RecoveryEvent.METADATA_FOUND: lambda m: m.metadata_found(marked().closed(-1, 0), 3),
    RecoveryEvent.METADATA_FAILED: lambda m: m.metadata_failed(MetadataUnavailableError("away")),
    RecoveryEvent.FENCE_FOUND: lambda m: m.fence_found(1, -1),
    RecoveryEvent.FENCE_FAILED: lambda m: m.fence_failed(1, MISSING),
    RecoveryEvent.ENTRY_FOUND: lambda m: m.entry_found(1, entry(1)),
    RecoveryEvent.ENTRY_FAILED: lambda m: m.entry_failed(1, 1, MISSING),
    RecoveryEvent.ADDED_AGAIN: lambda m: m.added_again(0, marked().ensembles),
    RecoveryEvent.ADD_FAILED: lambda m: m.add_failed(TIMEOUT),
    RecoveryEvent.MEASURED: lambda m: m.measured(50),
    RecoveryEvent.MEASURE_FAILED: lambda m: m.measure_failed(TIMEOUT),
}


@pytest.mark.parametrize("event", RecoveryEvent)
@pytest.mark.parametrize("state", RecoveryState)
def test_every_event_in_every_state_does_what_the_table_says(state: RecoveryState, event: RecoveryEvent) -> None:
    m = in_state(state)
    reaction = REACTIONS[state][event]
    if reaction is Reaction.BUG:
        with pytest.raises(InvariantViolation, match=f"{event.name} in state {state.name}"):
            EVENTS[event](m)
        return
    effects = EVENTS[event](m)
    if reaction is Reaction.IGNORE:
        assert effects == ()
        assert m.state is state
    else:
        assert effects or m.state is not state


# ---------------------------------------------------------------------------------------- rules


def test_a_closed_ledger_is_done_and_no_bookie_is_asked() -> None:
    closed = opened().closed(3, 40)
    assert RecoveryMachine(7, closed, 5).start() == (Recovered(closed, 5),)


def test_an_open_ledger_is_marked_first_and_then_fenced() -> None:
    m = RecoveryMachine(7, opened(), 0)
    assert m.start() == (WriteMetadata(marked(), 0),)
    assert m.metadata_written(marked(), 1) == (Fence(0, "a"), Fence(1, "b"), Fence(2, "c"))


def test_a_ledger_found_closed_instead_of_marked_is_done_and_no_bookie_is_asked() -> None:
    m = RecoveryMachine(7, opened(), 0)
    m.start()
    m.metadata_doubtful()
    closed = opened().closed(3, 30)
    assert m.metadata_found(closed, 1) == (Recovered(closed, 1),)


def test_only_the_last_ensemble_is_fenced() -> None:
    metadata = LedgerMetadata(2, 2, 1, (Ensemble(0, ("a", "b")), Ensemble(9, ("c", "d"))), LedgerState.IN_RECOVERY)
    assert RecoveryMachine(7, metadata, 1).start() == (Fence(0, "c"), Fence(1, "d"))


def test_a_hanging_bookie_does_not_hold_up_the_decision_d6() -> None:
    m = fencing()
    assert m.fence_found(2, 4) == ()
    effects = m.fence_failed(0, NoSuchLedgerError("never heard"))
    assert effects[0] == BeginAdds(marked(), 4)
    assert {e.entry_id for e in effects if isinstance(e, ReadFencing)} == {5, 6}
    assert len(effects) == 7  # each of the window's two entries of all three bookies
    assert m.fence_found(1, 9) == ()  # late: ignored


def test_the_start_is_not_before_the_last_fragment_d2() -> None:
    metadata = LedgerMetadata(3, 3, 2, (Ensemble(0, tuple("abc")), Ensemble(9, tuple("abd"))), LedgerState.IN_RECOVERY)
    m = fencing(metadata)
    m.fence_failed(0, MISSING)
    m.fence_failed(1, MISSING)
    assert m.last_add_confirmed == 8


@pytest.mark.parametrize(
    "error", [TIMEOUT, DigestError("bad"), LedgerStateUnknownError("unclean"), BookieUnreachableError("down")]
)
def test_a_fence_without_definite_answer_leaves_the_bookie_unknown_d3(error: DistributedLogError) -> None:
    m = fencing()
    m.fence_found(0, 3)
    assert m.fence_failed(1, error) == ()
    effects = m.fence_failed(2, error)
    assert len(effects) == 1
    assert isinstance(effects[0], RecoveryFailed)
    assert isinstance(effects[0].error, LedgerRecoveryError)


def test_without_a_password_in_the_metadata_another_key_proves_nothing() -> None:
    m = RecoveryMachine(7, replace(marked(), digest_type=None, password=None, format_version=1), 4)
    m.start()
    effects = m.fence_failed(1, STRANGER)
    assert isinstance(effects[0], RecoveryFailed)
    assert isinstance(effects[0].error, UnauthorizedAccessError)


def test_a_bookie_with_another_key_is_known_to_hold_nothing() -> None:
    m = fencing()
    assert m.fence_failed(0, STRANGER) == ()
    assert isinstance(m.fence_failed(1, STRANGER)[0], BeginAdds)  # decided: one bookie is no ack quorum (D6)
    effects = m.entry_failed(2, 0, TIMEOUT) + m.entry_failed(0, 0, STRANGER)
    assert isinstance(effects[0], WriteMetadata)
    assert (effects[0].metadata.last_entry, effects[0].metadata.length) == (-1, 0)


def test_one_bookie_with_another_key_and_one_that_is_away_decide_nothing() -> None:
    m = fencing()
    m.fence_found(2, -1)
    m.fence_failed(0, STRANGER)
    m.entry_failed(0, 0, STRANGER)
    m.entry_failed(2, 0, MISSING)
    assert m.state is RecoveryState.CLOSING  # two explicit negatives are enough
    m = fencing()
    m.fence_found(2, 0)  # entry 0 is acknowledged
    m.fence_failed(0, STRANGER)
    m.entry_failed(0, 1, STRANGER)
    m.entry_failed(1, 1, TIMEOUT)
    effects = m.entry_failed(2, 1, LedgerStateUnknownError("unclean"))
    assert isinstance(effects[0], RecoveryFailed)  # mixed verdicts abort (D3)


def test_a_copy_of_what_cannot_have_been_acknowledged_does_not_keep_the_ledger_open() -> None:
    m = fencing()
    m.fence_found(2, -1)
    m.fence_failed(0, STRANGER)
    m.entry_found(2, entry(0))  # believed: one other bookie may have it
    m.entry_failed(1, 1, STRANGER)
    assert m.state is RecoveryState.SETTLING  # two of three never took anything of ours: the ledger ends before entry 1
    effects = m.add_failed(DOWN)
    assert isinstance(effects[0], WriteMetadata)
    assert effects[0].metadata.last_entry == -1  # and before entry 0, for the same reason
    assert effects[0].metadata.length == 0


def test_a_single_surviving_copy_is_recovered() -> None:
    m = reading()
    m.entry_failed(0, 0, TIMEOUT)
    m.entry_failed(1, 0, MISSING)
    assert m.entry_found(2, entry(0)) == (AddAgain(entry(0)),)


def test_verdicts_are_taken_in_entry_order() -> None:
    m = reading()
    assert m.entry_found(0, entry(1)) == ()
    assert m.entry_found(0, entry(0)) == (AddAgain(entry(0)), AddAgain(entry(1)))


def test_the_window_bounds_what_is_read_ahead() -> None:
    m = reading()
    m.entry_found(0, entry(0))
    effects = m.added_again(0, marked().ensembles)
    assert {e.entry_id for e in effects if isinstance(e, ReadFencing)} == {2}


def test_the_window_begins_narrow_and_widens_as_entries_are_added_again() -> None:
    m = reading(window=16)
    read: list[int] = []
    for number in range(4):
        m.entry_found(0, entry(number))
        effects = m.added_again(number, marked().ensembles)
        read.append(max(e.entry_id for e in effects if isinstance(e, ReadFencing)))
    assert read == [4, 9, 18, 19]


def test_an_ambiguous_entry_aborts_and_is_never_the_end() -> None:
    m = reading()
    m.entry_failed(0, 0, MISSING)
    m.entry_failed(1, 0, TIMEOUT)
    effects = m.entry_failed(2, 0, BookieUnreachableError("down"))
    assert len(effects) == 1
    assert isinstance(effects[0], RecoveryFailed)
    assert effects[0].error.entry_id == 0
    assert "1 bookies lack it, 2 would have to" in str(effects[0].error)


def test_an_ambiguous_entry_behind_the_end_does_not_matter() -> None:
    m = reading()
    for index in range(3):
        assert m.entry_failed(index, 1, TIMEOUT) == ()
    assert isinstance(ended(m, 0)[0], WriteMetadata)


def test_copies_behind_a_gap_are_not_in_the_ledger_i17() -> None:
    m = reading()
    m.entry_found(0, entry(1))
    write = ended(m, 0)[0]
    assert isinstance(write, WriteMetadata)
    assert write.metadata.last_entry == -1


def test_the_close_waits_for_every_entry_added_again_and_carries_its_length() -> None:
    m = reading()
    m.entry_found(0, entry(0))
    assert ended(m, 1) == ()
    local = (Ensemble(0, ("a", "x", "c")),)
    write = m.added_again(0, local)[0]
    assert isinstance(write, WriteMetadata)
    assert write.metadata.ensembles == local  # published by this one write (I18)
    assert (write.metadata.last_entry, write.metadata.length) == (0, 10)


def test_with_nothing_found_the_length_is_read_from_the_entry_at_the_lac() -> None:
    metadata = LedgerMetadata(3, 3, 2, (Ensemble(0, tuple("abc")), Ensemble(9, tuple("abd"))), LedgerState.IN_RECOVERY)
    m = fencing(metadata)
    m.fence_failed(0, MISSING)
    m.fence_failed(1, MISSING)
    assert ended(m, 9) == (Measure(8),)
    write = m.measured(90)[0]
    assert isinstance(write, WriteMetadata)
    assert (write.metadata.last_entry, write.metadata.length) == (8, 90)


def test_a_length_that_cannot_be_read_aborts() -> None:
    m = in_state(RecoveryState.MEASURING)
    assert isinstance(m.measure_failed(TIMEOUT)[0], RecoveryFailed)


def test_whoever_closed_first_decides_the_end_i2() -> None:
    m = in_state(RecoveryState.CLOSE_CHECKING)
    theirs = marked().closed(5, 60)
    assert m.metadata_found(theirs, 9) == (Recovered(theirs, 9),)


def test_a_close_that_was_not_applied_is_written_again_upon_the_new_version() -> None:
    m = in_state(RecoveryState.CLOSE_CHECKING)
    write = m.metadata_found(marked(), 9)[0]
    assert isinstance(write, WriteMetadata)
    assert write.version == 9


def test_ensembles_changed_underneath_start_recovery_over() -> None:
    m = in_state(RecoveryState.CLOSE_CHECKING)
    moved = LedgerMetadata(3, 3, 2, (Ensemble(0, tuple("abz")),), LedgerState.IN_RECOVERY)
    assert m.metadata_found(moved, 9) == (StartOver(moved, 9),)


# ---------------------------------------------------------------------------------------- whole recoveries


class Bookies:
    """Model bookies, the metadata, and the mail between everybody, delivered in an order that hypothesis draws."""

    def __init__(self, sizes: tuple[int, int, int], choose: Callable[[int], int]) -> None:
        self.sizes = sizes
        self.choose = choose
        self.metadata = opened(*sizes)
        self.version = 0
        self.names = "abcdefghij"[: sizes[0] + 1]
        self.entries: dict[str, dict[int, Entry]] = {name: {} for name in self.names}
        self.broken: set[tuple[str, int]] = set()
        self.fenced: set[str] = set()
        self.down: set[str] = set()
        self.strangers: set[str] = set()
        """Bookies that hold what others wrote under the ledger's id."""
        self.met: set[str] = set()
        """Bookies that have the ledger's own key."""
        self.mail: list[Callable[[], None]] = []
        self.acknowledged = -1
        self.writer: WriterMachine | None = None
        self.ends: set[tuple[int, int]] = set()

    def step(self) -> None:
        self.mail.pop(self.choose(len(self.mail)))()

    def cas(self, effect: WriteMetadata, written: Callable[[int], None], doubtful: Callable[[], None]) -> None:
        outcome = self.choose(4)  # 0: not applied; 1: applied, the answer lost
        if effect.version == self.version and outcome:
            assert self.metadata.state is not LedgerState.CLOSED
            self.metadata, self.version = effect.metadata, self.version + 1
            if effect.metadata.is_closed:
                self.ends.add((effect.metadata.last_entry, effect.metadata.length))
            if outcome > 1:
                self.mail.append(lambda v=self.version: written(v))  # type: ignore[misc]
                return
        self.mail.append(doubtful)

    # ---- the writer that is being fenced

    def intrude(self, bookie: str) -> None:
        if bookie not in self.met:
            self.strangers.add(bookie)

    def begin_writing(self, entries: int, replacements: int = 0) -> None:
        self.writer = WriterMachine(7, self.metadata, 0)
        self.writer.replacements_left = replacements
        for _ in range(entries):
            self.run_writer(self.writer.add(10))

    def run_writer(self, effects: writing_model.Effects) -> None:
        for effect in effects:
            self.obey_writer(effect)

    def obey_writer(self, effect: writing_model.Effect) -> None:
        m = self.writer
        assert m is not None
        if isinstance(effect, writing_model.Send):
            copy = entry(effect.entry_id, effect.last_add_confirmed, effect.length)
            for seat in effect.seats:
                self.mail.append(lambda seat=seat: self.store(m, seat, copy))  # type: ignore[misc]
        elif isinstance(effect, writing_model.Resend):
            copy = entry(effect.entry_id, m.last_add_confirmed)
            for seat in effect.seats:
                self.mail.append(lambda seat=seat: self.store(m, seat, copy))  # type: ignore[misc]
        elif isinstance(effect, writing_model.Acknowledged):
            self.acknowledged = effect.last
            assert not self.ends or self.acknowledged <= next(iter(self.ends))[0]  # I5
        elif isinstance(effect, writing_model.PickReplacements):
            self.mail.append(lambda: self.run_writer(m.picked(self.pick(effect))))
        elif isinstance(effect, WriteMetadata):
            self.mail.append(
                lambda: self.cas(
                    effect,
                    lambda v: self.run_writer(m.metadata_written(effect.metadata, v)),
                    lambda: self.run_writer(m.metadata_doubtful()),
                )
            )
        elif isinstance(effect, ReadMetadata):
            self.mail.append(lambda: self.run_writer(m.metadata_found(self.metadata, self.version)))
        elif isinstance(effect, writing_model.ReplaceLedger):
            assert self.ends == {(-1, 0)}  # what is pending goes elsewhere: it must be nowhere twice
            assert self.acknowledged == -1

    def store(self, m: WriterMachine, seat: writing_model.Seat, copy: Entry) -> None:
        answer: Callable[[], writing_model.Effects]
        if seat.bookie in self.down:
            answer = lambda: m.refused(seat, copy.entry_id, BookieUnreachableError("down"))  # noqa: E731
        elif seat.bookie in self.strangers:
            answer = lambda: m.refused(seat, copy.entry_id, STRANGER)  # noqa: E731
        elif seat.bookie in self.fenced:
            answer = lambda: m.refused(seat, copy.entry_id, LedgerFencedError("fenced"))  # noqa: E731
        else:
            self.met.add(seat.bookie)
            self.entries[seat.bookie][copy.entry_id] = copy
            answer = lambda: m.added(seat, copy.entry_id)  # noqa: E731
        self.mail.append(lambda: self.run_writer(answer()))

    def pick(self, wanted: writing_model.PickReplacements) -> dict[int, str]:
        free = sorted(set(self.names) - set(wanted.bookies) - wanted.excluded)
        return dict(zip(wanted.indices, free, strict=False))


class Recoverer:
    """One client's recovery: the machine, and the writer machine of its recovery adds."""

    def __init__(self, world: Bookies) -> None:
        self.world = world
        self.outcome: Effect | None = None
        self.adds: WriterMachine | None = None
        self.restart(world.metadata, world.version)

    def restart(self, metadata: LedgerMetadata, version: int) -> None:
        self.machine = RecoveryMachine(7, metadata, version, window=2)
        self.run(self.machine.start())

    def run(self, effects: Effects) -> None:
        for effect in effects:
            self.obey(effect)

    def obey(self, effect: Effect) -> None:
        world, m = self.world, self.machine
        if isinstance(effect, Fence):
            world.mail.append(lambda: self.ask(effect.bookie, None, lambda a: self.fenced(m, effect, a)))
        elif isinstance(effect, ReadFencing):
            world.mail.append(lambda: self.ask(effect.bookie, effect.entry_id, lambda a: self.read(m, effect, a)))
        elif isinstance(effect, BeginAdds):
            self.adds = WriterMachine(
                7, effect.metadata, -1, last_add_confirmed=effect.last_add_confirmed, recovering=True
            )
        elif isinstance(effect, AddAgain):
            assert self.adds is not None
            if self.adds.error is None:
                self.run_adds(self.adds.add(10, effect.entry.length))
        elif isinstance(effect, WriteMetadata):
            world.mail.append(
                lambda: world.cas(
                    effect,
                    lambda v: self.run(m.metadata_written(effect.metadata, v)),
                    lambda: self.run(m.metadata_doubtful()),
                )
            )
        elif isinstance(effect, ReadMetadata):
            world.mail.append(lambda: self.run(m.metadata_found(world.metadata, world.version)))
        elif isinstance(effect, Measure):
            copies = [world.entries[b].get(effect.entry_id) for b in world.names if b not in world.down]
            intact = [c for c in copies if c is not None]
            world.mail.append(lambda: self.run(m.measured(intact[0].length) if intact else m.measure_failed(TIMEOUT)))
        elif isinstance(effect, StartOver):
            self.restart(effect.metadata, effect.version)
        else:
            self.outcome = effect

    def ask(self, bookie: str, entry_id: int | None, answer: Callable[[Entry | DistributedLogError], None]) -> None:
        """A fencing read reaches a bookie."""
        world = self.world
        result: Entry | DistributedLogError
        if bookie in world.down:
            result = BookieUnreachableError("down")
        elif bookie in world.strangers:
            result = STRANGER
        else:
            world.met.add(bookie)
            world.fenced.add(bookie)
            held = world.entries[bookie]
            wanted = max(held, default=-1) if entry_id is None else entry_id
            result = held.get(wanted, MISSING)
            if (bookie, wanted) in world.broken:
                result = DigestError("broken")
        world.mail.append(lambda: answer(result))

    def fenced(self, m: RecoveryMachine, fence: Fence, answer: Entry | DistributedLogError) -> None:
        if isinstance(answer, Entry):
            self.run(m.fence_found(fence.index, answer.last_add_confirmed))
        else:
            self.run(m.fence_failed(fence.index, answer))

    def read(self, m: RecoveryMachine, read: ReadFencing, answer: Entry | DistributedLogError) -> None:
        if isinstance(answer, Entry):
            self.run(m.entry_found(read.index, answer))
        else:
            self.run(m.entry_failed(read.index, read.entry_id, answer))

    def run_adds(self, effects: writing_model.Effects) -> None:
        for effect in effects:
            self.obey_adds(effect)

    def obey_adds(self, effect: writing_model.Effect) -> None:
        adds, world = self.adds, self.world
        assert adds is not None
        if isinstance(effect, writing_model.Send | writing_model.Resend):
            copy = entry(effect.entry_id, adds.last_add_confirmed)
            for seat in effect.seats:
                world.mail.append(lambda seat=seat: self.store(adds, seat, copy))  # type: ignore[misc]
        elif isinstance(effect, writing_model.Acknowledged):
            self.run(self.machine.added_again(effect.last, adds.metadata.ensembles))
        elif isinstance(effect, writing_model.PickReplacements):
            world.mail.append(lambda: self.run_adds(adds.picked(world.pick(effect))))
        elif isinstance(effect, writing_model.Failed):
            self.run(self.machine.add_failed(effect.error))

    def store(self, adds: WriterMachine, seat: writing_model.Seat, copy: Entry) -> None:
        """A recovery add: it passes the fence."""
        if seat.bookie in self.world.down:
            self.world.mail.append(
                lambda: self.run_adds(adds.refused(seat, copy.entry_id, BookieUnreachableError("down")))
            )
            return
        if seat.bookie in self.world.strangers:
            self.world.mail.append(lambda: self.run_adds(adds.refused(seat, copy.entry_id, STRANGER)))
            return
        self.world.met.add(seat.bookie)
        self.world.entries[seat.bookie][copy.entry_id] = copy
        self.world.broken.discard((seat.bookie, copy.entry_id))
        self.world.mail.append(lambda: self.run_adds(adds.added(seat, copy.entry_id)))


SIZES = st.sampled_from([(3, 3, 2), (3, 3, 3), (3, 2, 2), (5, 3, 2), (4, 4, 2), (1, 1, 1), (3, 2, 1)])


def finish(world: Bookies, recoverers: list[Recoverer]) -> None:
    for _ in range(4000):
        if not world.mail:
            break
        world.step()
    assert not world.mail
    assert all(r.outcome is not None for r in recoverers)


def check_agreement(world: Bookies, recoverers: list[Recoverer], acknowledged: int) -> None:
    done = [r.outcome for r in recoverers if isinstance(r.outcome, Recovered)]
    assert len(world.ends) <= 1  # closed by exactly one write (I2)
    for outcome in done:
        assert (outcome.metadata.last_entry, outcome.metadata.length) in world.ends  # all agree (I10)
        assert outcome.metadata.last_entry >= acknowledged  # never cut
        assert outcome.metadata.length == 10 * (outcome.metadata.last_entry + 1)
        size, w, _ = world.sizes
        for entry_id in range(outcome.metadata.last_entry + 1):
            bookies = outcome.metadata.ensemble_for(entry_id).bookies
            assert any(entry_id in world.entries[bookies[i]] for i in write_set(entry_id, size, w))
    for r in recoverers:
        if isinstance(r.outcome, RecoveryFailed):
            assert isinstance(r.outcome.error, LedgerRecoveryError)


@settings(max_examples=400, deadline=None)
@given(SIZES, st.integers(-1, 5), st.integers(0, 3), st.integers(0, 2**32), st.data())
def test_recovery_of_any_remains_never_cuts_what_was_acknowledged(
    sizes: tuple[int, int, int], acknowledged: int, unacknowledged: int, schedule: int, data: st.DataObject
) -> None:
    size, w, a = sizes
    world = Bookies(sizes, random.Random(schedule).randrange)
    names = list(world.names)
    for entry_id in range(acknowledged + 1 + unacknowledged):
        members = write_set(entry_id, size, w)
        least = a if entry_id <= acknowledged else 0
        holders = data.draw(st.sets(st.sampled_from(members), min_size=least))
        for index in holders:
            lac = data.draw(st.integers(-1, min(entry_id - 1, acknowledged)))
            world.entries[names[index]][entry_id] = entry(entry_id, lac)
    world.down = data.draw(st.sets(st.sampled_from(names), max_size=2))
    copies = sorted((name, e) for name in names for e in world.entries[name])
    if copies:
        world.broken = data.draw(st.sets(st.sampled_from(copies), max_size=2))
    recoverers = [Recoverer(world) for _ in range(data.draw(st.integers(1, 2)))]
    faulty = world.down | {name for name, _ in world.broken}
    empty = [name for name in names if not world.entries[name]]
    if empty:
        world.strangers = data.draw(st.sets(st.sampled_from(empty)))
    finish(world, recoverers)
    check_agreement(world, recoverers, acknowledged)
    spare = len(names) - size  # of more strangers than that, the last have nobody to take their places
    if len(faulty | world.strangers) <= min(a - 1, w - a) or (not faulty and len(world.strangers) <= spare):
        assert all(isinstance(r.outcome, Recovered) for r in recoverers)


@settings(max_examples=400, deadline=None)
@given(SIZES, st.integers(0, 6), st.integers(0, 40), st.integers(1, 3), st.integers(0, 2**32), st.data())
def test_a_writer_under_recovery_gets_no_acknowledgement_that_is_cut_off(
    sizes: tuple[int, int, int], adds: int, head_start: int, recoverers: int, schedule: int, data: st.DataObject
) -> None:
    world = Bookies(sizes, random.Random(schedule).randrange)
    for name in data.draw(st.sets(st.sampled_from(list(world.names)))):
        world.mail.append(lambda name=name: world.intrude(name))  # type: ignore[misc]
    world.begin_writing(adds, data.draw(st.integers(0, 1)))
    for _ in range(head_start):
        if world.mail:
            world.step()
    clients = [Recoverer(world) for _ in range(recoverers)]
    if data.draw(st.booleans()):
        world.down = {data.draw(st.sampled_from(list(world.names)))}
    finish(world, clients)
    check_agreement(world, clients, world.acknowledged)
