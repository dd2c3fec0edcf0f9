"""Recovery of a ledger as a state machine: fence it, find its true end, replicate the tail again, close it.

Theory of operation
-------------------
1. MARKING. One conditional write sets IN_RECOVERY, after which the writer cannot change the ensemble or close. A
   ledger found CLOSED is done; one found IN_RECOVERY is recovered beside the clients that recover it already (I10).
2. FENCING. Every bookie of the *last* ensemble is asked for its last entry, which fences it. It is decided as soon as
   the definite answers cover every write set (D6): from then on no write set can gather an ack quorum of unfenced
   bookies for a new entry (I5). An answer with a bad digest leaves its bookie unknown.
3. The start is LAC0 = max(greatest LAC found, last fragment's first entry - 1) (D2).
4. READING forward from LAC0 + 1, a window of entries at a time, each from all of its write set at once, with reads that
   fence too: a bookie that the first fence did not reach is fenced before it can say what it lacks (D1). Most ledgers
   end right there: the window begins with FIRST_READS entries, and doubles as entries are added again. Verdicts are
   taken strictly in entry order, each as soon as the quorum rules decide (D6):
     * a verified copy on any bookie: the entry is added again, with its length as first written, to an ack quorum;
     * (W - A) + 1 bookies said explicitly that they lack it: it was never acknowledged, and the ledger ends before it;
     * neither, though all answered: *ambiguous*. Recovery aborts; nothing is ever cut off on a guess (D3).
5. SETTLING until every entry found is acknowledged again. Ensemble changes of these adds stay local (I18).
6. MEASURING, only where no entry was found: the length at LAC0 is read from entry LAC0 itself, which may lie in an
   earlier fragment.
7. CLOSING. One conditional write publishes the local ensembles, CLOSED, the last entry and the length. If another
   client closed the ledger meanwhile, its end is adopted: there is one end for ever (I2). If the ensembles changed
   meanwhile, the acknowledgements gathered may be void: recovery starts over from what is found.

**Another key.** A bookie that answers EUA to the ledger's own key counts as an explicit negative, like "no such
ledger", in steps 2 and 4. A bookie keeps one key for a ledger: that of the first add, fence or explicit LAC, journaled
before anything that it came with is acknowledged (D19), and it takes nothing under any other key for as long as it
keeps the ledger, which is as long as the metadata names the bookie. So (a) it holds no entry that the ledger's writer
had acknowledged there, and (b) it will acknowledge none to the old writer: for that writer it is as good as fenced.
Both hold for what a bookie remembers, just as "no such ledger" does: a bookie that may have forgotten says "unknown"
before it compares keys (I11), and our storage node says EUA only once the other key is on its disk (a crash could make
it forget the key, but not that it answered). So where (W - A) + 1 bookies of an entry's write set say EUA, the ledger
ends before that entry, even if a copy is found elsewhere: it cannot have been acknowledged, and there may be too few
bookies to store it again. Our own key has to be certain for this. It is the password in the metadata; where metadata of
the oldest format name none, EUA decides nothing, and recovery fails. Without this rule a client that writes under the
ids of future ledgers, which needs no credentials, could make logs unrecoverable.

Every step may be repeated by any number of recoverers at once: fences and recovery adds are idempotent, entries have
one value, and only a conditional write decides. A failure leaves the ledger IN_RECOVERY, for the next attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata, LedgerState
from metadata.foundation.errors import DistributedLogError, check
from storage_node.errors import (
    LedgerRecoveryError,
    UnauthorizedAccessError,
)
from storage_node.protocol.digests import Entry
from storage_node.protocol.reading import MISSING, more_telling
from storage_node.protocol.striping import QuorumCoverage, missing_needed, write_set
from storage_node.protocol.tables import Reaction, parse_table
from storage_node.protocol.writing_model import ReadMetadata, WriteMetadata


class RecoveryState(Enum):
    """What is the recovery of a ledger about?"""

    NEW = auto()
    MARKING = auto()
    MARK_CHECKING = auto()
    """The metadata is being read after the marking write's conflict or unknown outcome."""
    FENCING = auto()
    READING = auto()
    SETTLING = auto()
    MEASURING = auto()
    CLOSING = auto()
    CLOSE_CHECKING = auto()
    """The metadata is being read after the closing write's conflict or unknown outcome."""
    DONE = auto()
    FAILED = auto()


class RecoveryEvent(Enum):
    """One for each event method of `RecoveryMachine`."""

    START = auto()
    METADATA_WRITTEN = auto()
    METADATA_DOUBTFUL = auto()
    METADATA_FOUND = auto()
    METADATA_FAILED = auto()
    FENCE_FOUND = auto()
    FENCE_FAILED = auto()
    ENTRY_FOUND = auto()
    ENTRY_FAILED = auto()
    ADDED_AGAIN = auto()
    ADD_FAILED = auto()
    MEASURED = auto()
    MEASURE_FAILED = auto()


FIRST_READS = 2
"""Entries that are read at first. A log's owner that dies leaves one or two behind its last-add-confirmed, and what is
read beyond the end is for nothing: of a hundred logs that are recovered at once it was most of the work."""

REACTIONS = parse_table(
    """
                    start metadata_written metadata_doubtful metadata_found metadata_failed fence_found fence_failed entry_found entry_failed added_again add_failed measured measure_failed
    NEW             A     !                !                 !              !               !           !            !           !            !           !          !        !
    MARKING         !     A                A                 !              A               !           !            !           !            !           !          !        !
    MARK_CHECKING   !     !                !                 A              A               !           !            !           !            !           !          !        !
    FENCING         !     !                !                 !              !               A           A            !           !            !           !          !        !
    READING         !     !                !                 !              !               -           -            A           A            A           A          !        !
    SETTLING        !     !                !                 !              !               -           -            -           -            A           A          !        !
    MEASURING       !     !                !                 !              !               -           -            -           -            !           -          A        A
    CLOSING         !     A                A                 !              A               -           -            -           -            !           -          !        !
    CLOSE_CHECKING  !     !                !                 A              A               -           -            -           -            !           -          !        !
    DONE            !     -                -                 -              -               -           -            -           -            -           -          -        -
    FAILED          !     -                -                 -              -               -           -            -           -            -           -          -        -
    """,  # noqa: E501
    RecoveryState,
    RecoveryEvent,
)
"""Answers of bookies that come after they were needed are ignored."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Ask the bookie for its last entry with a fencing read; answer with `fence_found` or `fence_failed`."""

    index: int
    bookie: str


@dataclass(frozen=True, slots=True)
class ReadFencing:
    """Read the entry from the bookie with a fencing read; answer with `entry_found` or `entry_failed`."""

    entry_id: int
    index: int
    bookie: str


@dataclass(frozen=True, slots=True)
class AddAgain:
    """Add the entry again, with its own length, by a `WriterMachine(recovering=True)`; these come in entry order.

    Answer with `added_again` or `add_failed`.
    """

    entry: Entry


@dataclass(frozen=True, slots=True)
class BeginAdds:
    """Entries after `last_add_confirmed` are going to be added again."""

    metadata: LedgerMetadata
    last_add_confirmed: int


@dataclass(frozen=True, slots=True)
class Measure:
    """Read this committed entry from any of its replicas for its length; answer `measured` or `measure_failed`."""

    entry_id: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """The ledger is CLOSED, as `metadata` says."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class StartOver:
    """The metadata changed underneath in a way that voids what was done: recover again from this."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class RecoveryFailed:
    """Recovery cannot finish; the ledger is IN_RECOVERY (or as it was) and nothing was cut off."""

    error: DistributedLogError


Effect: TypeAlias = (
    WriteMetadata
    | ReadMetadata
    | Fence
    | ReadFencing
    | BeginAdds
    | AddAgain
    | Measure
    | Recovered
    | StartOver
    | RecoveryFailed
)
Effects: TypeAlias = tuple[Effect, ...]


class _Verdict:
    """Is one entry committed, by what its write set has said so far?"""

    __slots__ = ("answered", "error", "found", "missing")

    def __init__(self) -> None:
        self.answered: set[int] = set()
        self.missing = 0
        self.found: Entry | None = None
        self.error: DistributedLogError | None = None


class RecoveryMachine:
    """Where does a ledger end that its writer left open? See the module's docstring.

    Args:
        ledger_id: the ledger.
        metadata, version: as read before the recovery.
        window: bounds the entries between the last one added again and the last read.
    """

    def __init__(self, ledger_id: int, metadata: LedgerMetadata, version: int, *, window: int = 16) -> None:
        check(window > 0, "a recovery window below one entry")
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.state = RecoveryState.NEW
        self._version = version
        self._window = min(FIRST_READS, window)
        self._widest = window
        self._coverage = QuorumCoverage(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        self._needed = missing_needed(metadata.write_quorum, metadata.ack_quorum)
        self._fence_answers: set[int] = set()
        self._fence_error: DistributedLogError | None = None
        self._strangers: set[int] = set()  # bookies with another key: nothing of this ledger is or was there
        self._last_add_confirmed = -1
        self._verdicts: dict[int, _Verdict] = {}
        self._next_verdict = 0  # the entry whose verdict is due
        self._next_read = 0
        self._added = -1  # last entry added again, or LAC0
        self._length: int | None = None
        self._closing: LedgerMetadata | None = None
        self._ensembles: tuple[Ensemble, ...] = metadata.ensembles  # with the local changes of the adds

    @property
    def last_add_confirmed(self) -> int:
        """LAC0: nothing at or below it is read again."""
        return self._last_add_confirmed

    # ------------------------------------------------------------------------------------ mark

    def start(self) -> Effects:
        """Begin."""
        self._acts(RecoveryEvent.START)
        return self._mark(self.metadata, self._version)

    def _mark(self, metadata: LedgerMetadata, version: int) -> Effects:
        self.metadata, self._version = metadata, version
        if metadata.state is LedgerState.CLOSED:
            return self._done(metadata, version)
        if metadata.state is LedgerState.IN_RECOVERY:
            return self._fence()  # marked already; the closing write's version decides between two recoveries (I10)
        # Before any fence: from this write on the old writer cannot move to an ensemble that is not fenced (I5).
        self.state = RecoveryState.MARKING
        return (WriteMetadata(metadata.with_state(LedgerState.IN_RECOVERY), version),)

    def metadata_written(self, metadata: LedgerMetadata, version: int) -> Effects:
        """Go on after the conditional write was applied."""
        if not self._acts(RecoveryEvent.METADATA_WRITTEN):
            return ()
        if self.state is RecoveryState.CLOSING:
            return self._done(metadata, version)
        return self._mark(metadata, version)

    def metadata_doubtful(self) -> Effects:
        """Look again, after a version conflict or an unknown outcome: never assume either way."""
        if not self._acts(RecoveryEvent.METADATA_DOUBTFUL):
            return ()
        closing = self.state is RecoveryState.CLOSING
        self.state = RecoveryState.CLOSE_CHECKING if closing else RecoveryState.MARK_CHECKING
        return (ReadMetadata(),)

    def metadata_found(self, metadata: LedgerMetadata, version: int) -> Effects:
        """Go on by the metadata as they are now."""
        if not self._acts(RecoveryEvent.METADATA_FOUND):
            return ()
        if self.state is RecoveryState.MARK_CHECKING:
            return self._mark(metadata, version)
        if metadata.state is LedgerState.CLOSED:
            return self._done(metadata, version)  # ours, or another recoverer's, or the writer's: it is the end (I2)
        if metadata.state is LedgerState.IN_RECOVERY and metadata.ensembles == self.metadata.ensembles:
            return self._write_close(metadata, version)
        self.state = RecoveryState.FAILED
        return (StartOver(metadata, version),)

    def metadata_failed(self, error: DistributedLogError) -> Effects:
        """Fail: the metadata can neither be written nor read (the edge has retried what can be retried)."""
        if not self._acts(RecoveryEvent.METADATA_FAILED):
            return ()
        return self._fail(error)

    # ------------------------------------------------------------------------------------ fence

    def _fence(self) -> Effects:
        self.state = RecoveryState.FENCING
        self._ensembles = self.metadata.ensembles
        return tuple(Fence(index, bookie) for index, bookie in enumerate(self.metadata.last_ensemble.bookies))

    def fence_found(self, index: int, last_add_confirmed: int) -> Effects:
        """Note that a fenced bookie's last entry, verified, carries this LAC."""
        if not self._acts(RecoveryEvent.FENCE_FOUND):
            return ()
        self._last_add_confirmed = max(self._last_add_confirmed, last_add_confirmed)
        return self._fence_known(index)

    def fence_failed(self, index: int, error: DistributedLogError) -> Effects:
        """Take any other answer, or none. Only "I have nothing of it" makes the bookie known."""
        if not self._acts(RecoveryEvent.FENCE_FAILED):
            return ()
        if isinstance(error, UnauthorizedAccessError) and not self._key_is_certain:
            return self._fail(error)  # it may be our key that is wrong: that proves nothing about the bookie (D3)
        if self._is_negative(index, error):
            return self._fence_known(index)
        self._fence_error = more_telling(self._fence_error, error)
        self._fence_answers.add(index)
        return self._fence_lost()

    @property
    def _key_is_certain(self) -> bool:
        """True where the key that was sent to bookies is the key that the ledger was written with."""
        return self.metadata.password is not None

    def _is_negative(self, index: int, error: DistributedLogError) -> bool:
        """Return whether the bookie says that it has nothing of what was asked, and never had (D3)."""
        if isinstance(error, UnauthorizedAccessError) and self._key_is_certain:
            self._strangers.add(index)
            return True
        return isinstance(error, MISSING)

    def _never_acknowledged(self, entry_id: int) -> bool:
        """Return whether so many of the entry's bookies have another key that no ack quorum can ever have had it."""
        indices = write_set(entry_id, self.metadata.ensemble_size, self.metadata.write_quorum)
        return len(self._strangers.intersection(indices)) >= self._needed

    def _fence_known(self, index: int) -> Effects:
        self._fence_answers.add(index)
        self._coverage.mark_known(index)
        if self._coverage.covered:  # decided: do not wait for the others (D6)
            return self._begin_reading()
        return self._fence_lost()

    def _fence_lost(self) -> Effects:
        if len(self._fence_answers) < self.metadata.ensemble_size:
            return ()
        return self._fail(
            self._aborted_error("too few bookies of the last ensemble could be fenced", self._fence_error)
        )

    # ------------------------------------------------------------------------------------ read forward

    def _begin_reading(self) -> Effects:
        # Not below the last fragment's first entry: earlier ones are known to be committed (D2).
        start = max(self._last_add_confirmed, self.metadata.last_ensemble.first_entry - 1)
        self._last_add_confirmed = self._added = start
        self._next_verdict = self._next_read = start + 1
        self.state = RecoveryState.READING
        return (BeginAdds(self.metadata, start), *self._read_on())

    def _read_on(self) -> Effects:
        """Return the reads that the window allows, each of the whole write set."""
        effects: list[Effect] = []
        bookies = self.metadata.last_ensemble.bookies
        while self._next_read <= self._added + self._window:
            entry_id = self._next_read
            self._next_read += 1
            self._verdicts[entry_id] = _Verdict()
            indices = write_set(entry_id, len(bookies), self.metadata.write_quorum)
            effects += [ReadFencing(entry_id, index, bookies[index]) for index in indices]
        return tuple(effects)

    def entry_found(self, index: int, entry: Entry) -> Effects:
        """Take a verified copy: one is enough."""
        if not self._acts(RecoveryEvent.ENTRY_FOUND):
            return ()
        verdict = self._verdicts.get(entry.entry_id)
        if verdict is None or verdict.found is not None:
            return ()
        verdict.answered.add(index)
        verdict.found = entry
        return self._judge()

    def entry_failed(self, index: int, entry_id: int, error: DistributedLogError) -> Effects:
        """Note that the bookie lacks the entry, or could not say."""
        if not self._acts(RecoveryEvent.ENTRY_FAILED):
            return ()
        verdict = self._verdicts.get(entry_id)
        if verdict is None or index in verdict.answered:
            return ()
        verdict.answered.add(index)
        if self._is_negative(index, error):
            verdict.missing += 1
        verdict.error = more_telling(verdict.error, error)
        return self._judge()

    def _judge(self) -> Effects:
        """Take verdicts in entry order, up to the first entry that is not decided yet."""
        effects: list[Effect] = []
        while (verdict := self._verdicts.get(self._next_verdict)) is not None:
            if self._never_acknowledged(self._next_verdict):  # before `found`: a copy elsewhere does not change that
                return (*effects, *self._end_found())
            if verdict.found is not None:
                effects.append(AddAgain(verdict.found))
                self._length = verdict.found.length
                del self._verdicts[self._next_verdict]
                self._next_verdict += 1
            elif verdict.missing >= self._needed:  # (W - A) + 1 explicit negatives: never acknowledged (D3)
                return (*effects, *self._end_found())
            elif len(verdict.answered) == self.metadata.write_quorum:  # all answered, and it is still open (D3)
                return (*effects, *self._fail(self._ambiguous_error(self._next_verdict, verdict)))
            else:
                break
        return tuple(effects)

    def added_again(self, entry_id: int, ensembles: tuple[Ensemble, ...]) -> Effects:
        """Go on after entries up to `entry_id` were acknowledged again; `ensembles` includes the adds' local changes
        (I18).
        """
        if not self._acts(RecoveryEvent.ADDED_AGAIN):
            return ()
        check(self._added < entry_id < self._next_verdict, "an entry added again that was not asked for")
        self._added = entry_id
        self._ensembles = ensembles
        if self.state is RecoveryState.SETTLING:
            return self._settle()
        self._window = min(2 * self._window, self._widest)
        return self._read_on()

    def add_failed(self, error: DistributedLogError) -> Effects:
        """Fail, because an entry that was found could not be replicated, unless it can never have been acknowledged."""
        if not self._acts(RecoveryEvent.ADD_FAILED):
            return ()
        if self._never_acknowledged(self._added + 1):  # too few bookies can store it, as too few ever could
            self._next_verdict, self._length = self._added + 1, None
            return self._end_found()
        return self._fail(self._aborted_error("an entry of the tail could not be replicated", error))

    # ------------------------------------------------------------------------------------ end

    def _end_found(self) -> Effects:
        self._verdicts.clear()  # copies beyond the end may exist; they were never acknowledged (I17)
        self.state = RecoveryState.SETTLING
        return self._settle()

    def _settle(self) -> Effects:
        last = self._next_verdict - 1
        if self._added < last:
            return ()  # closing now would name entries that an ack quorum may not have yet (I1)
        if last == -1:
            self._length = 0
        if self._length is None:
            self.state = RecoveryState.MEASURING
            return (Measure(last),)
        return self._write_close(self.metadata, self._version)

    def measured(self, length: int) -> Effects:
        """Take the cumulative length in the header of entry LAC0."""
        if not self._acts(RecoveryEvent.MEASURED):
            return ()
        self._length = length
        return self._write_close(self.metadata, self._version)

    def measure_failed(self, error: DistributedLogError) -> Effects:
        """Fail: entry LAC0 is committed but no replica can give it, and closing with a wrong length would be
        for ever.
        """
        if not self._acts(RecoveryEvent.MEASURE_FAILED):
            return ()
        return self._fail(self._aborted_error(f"entry {self._added}, which is committed, could not be read", error))

    def _write_close(self, base: LedgerMetadata, version: int) -> Effects:
        """Return the one write that publishes what recovery found and changed (I18)."""
        closing = base
        # From the last fragment on: the adds may have replaced its ensemble, and begun fragments behind it.
        for ensemble in self._ensembles[len(base.ensembles) - 1 :]:
            closing = closing.with_ensemble(ensemble.first_entry, ensemble.bookies)
        self.metadata, self._version = base, version
        self.state = RecoveryState.CLOSING
        self._closing = closing.closed(self._next_verdict - 1, self._length or 0)
        return (WriteMetadata(self._closing, version),)

    # ------------------------------------------------------------------------------------ common

    def _acts(self, event: RecoveryEvent) -> bool:
        reaction = REACTIONS[self.state][event]
        check(reaction is not Reaction.BUG, f"{event.name} in state {self.state.name}", ledger_id=self.ledger_id)
        return reaction is Reaction.ACT

    def _done(self, metadata: LedgerMetadata, version: int) -> Effects:
        self.metadata, self._version = metadata, version
        self.state = RecoveryState.DONE
        self._verdicts.clear()
        return (Recovered(metadata, version),)

    def _fail(self, error: DistributedLogError) -> Effects:
        self.state = RecoveryState.FAILED
        self._verdicts.clear()
        return (RecoveryFailed(error),)

    def _ambiguous_error(self, entry_id: int, verdict: _Verdict) -> DistributedLogError:
        error = self._aborted_error(
            f"entry {entry_id} cannot be judged: {verdict.missing} bookies lack it, {self._needed} would have to, "
            "and the others do not answer",
            verdict.error,
        )
        error.entry_id = entry_id
        return error

    def _aborted_error(self, what: str, cause: DistributedLogError | None) -> DistributedLogError:
        reason = "" if cause is None else f" ({cause.message})"
        error = LedgerRecoveryError(
            f"{what}{reason}; the ledger was not closed and nothing was cut off",
            advice="Bring the bookies of its last ensemble back and open it again",
            ledger_id=self.ledger_id,
            node=None if cause is None else cause.node,
        )
        error.__cause__ = cause
        return error
