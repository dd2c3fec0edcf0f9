"""How far the writer of one ledger has come: what its machine knows, and the questions about it that decide nothing.

What is known: the entries that are not acknowledged yet and which seats have each; the seats of the last ensemble,
which of them are vacant, failing or being changed, and so where an entry goes; which bookies may be picked; the
metadata. The questions: whether every write set keeps an ack quorum without some seats, whether bookies are in enough
fault domains, which seats a delayed change is about. What an event does to all of it is in `writing`, with the theory
of operation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.foundation.errors import DistributedLogError, check
from storage_node.errors import SecureConnectionError, TlsError
from storage_node.protocol.striping import write_sets
from storage_node.protocol.tables import Reaction
from storage_node.protocol.writing_model import REACTIONS, Seat, WriterEvent, WriterState

UNLIMITED_CHANGES = 2**31 - 1

_FROZEN = frozenset({WriterState.PICKING, WriterState.CHANGING, WriterState.CHECKING})


class WriterProgress:
    """Of one writer; `WriterMachine` changes it. Attributes other than methods are for reading."""

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        *,
        last_add_confirmed: int = -1,
        length: int = 0,
        recovering: bool = False,
        delay_ensemble_change: bool = False,
        deferred_sync: bool = False,
        advanced: bool = False,
        max_ensemble_changes: int = UNLIMITED_CHANGES,
        spans_domains: Callable[[Sequence[str]], bool] | None = None,
    ) -> None:
        check(not (recovering and (deferred_sync or advanced)), "a recovery adds in order and synced")
        check(not (delay_ensemble_change and spans_domains), "a delayed change counts bookies, not fault domains")
        self.ledger_id = ledger_id
        self.state = WriterState.WRITING
        self.error: DistributedLogError | None = None
        self.last_acknowledged = last_add_confirmed
        """The last entry acknowledged in order: the LAC, except where syncing is deferred."""
        self.last_add_pushed = last_add_confirmed
        """The highest entry id given out."""
        self.length = length
        """Payload bytes of all entries pushed."""
        self.acknowledged_length = length
        """Payload bytes of all entries acknowledged: what a close writes
        (docs/reference/wire.md#length-in-an-entry)."""
        self.deferred_sync = deferred_sync
        self.advanced = advanced
        self.close_requested = False
        self.vacant: frozenset[int] = frozenset()
        self.replacements_left = 0
        """How often the ledger may be replaced by another one, where its id is taken."""
        self._replacements_made = 0
        self._cautious = False
        self._recovering = recovering
        self._delay = delay_ensemble_change
        self._spans_domains = spans_domains
        self._changes_left = max_ensemble_changes
        self._synced = (last_add_confirmed, length)  # deferred sync: the last forced entry and the length up to it
        # Entries not acknowledged yet, in order: a bit mask of the seats that have each, and its cumulative length.
        self._acks: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._begin(metadata, version)

    def _begin(self, metadata: LedgerMetadata, version: int) -> None:
        """Write to this ledger from here on."""
        self.metadata, self._version = metadata, version
        self._ack_quorum = metadata.ack_quorum
        self._write_quorum = metadata.write_quorum
        self._spare = metadata.write_quorum - metadata.ack_quorum
        self._size = metadata.ensemble_size
        self._windows = write_sets(metadata.ensemble_size, metadata.write_quorum)
        self._window_masks = tuple(sum(1 << index for index in window) for window in self._windows)
        self._failures: dict[int, int] = {}  # masks of the seats that failed an entry, with delayed changes
        self._seats = [Seat(i, bookie) for i, bookie in enumerate(metadata.last_ensemble.bookies)]
        self._targets: tuple[tuple[Seat, ...], ...] = ()
        self._failing: set[int] = set()  # failed since the last change began: left to the next one
        self._round: tuple[int, ...] = ()  # the indices that the running change is about
        self._replacements: Mapping[int, str] = {}
        self._suspects: set[str] = set()  # failed since the LAC last moved: not to be picked
        self._forgivable: set[str] = set()
        """Suspects that failed while nothing was pending: by the next add they may be back, and are picked at need."""
        self._strangers: dict[str, DistributedLogError] = {}
        """Bookies that hold what others wrote under this ledger's id, and their answers: never to be picked."""
        self._last_refusal: DistributedLogError | None = None
        """What a bookie answered last but EOK: why a ledger that gets stuck does."""
        self._unheard = 0
        """A mask of the seats whose bookies have yet to answer anything in this ledger, for a cautious writer."""
        self.vacant = frozenset()
        self._retarget()
        if self._cautious:
            self.be_cautious()

    def be_cautious(self) -> None:
        """Hold back what a bookie might refuse that has not answered yet; before anything is added."""
        self._cautious = True
        self._unheard = sum(seat.bit for seat in self._seats)

    @property
    def unheard(self) -> bool:
        """Some bookie has yet to answer for the first time."""
        return self._unheard != 0

    @property
    def seats(self) -> tuple[Seat, ...]:
        """The seats of the last ensemble, in its order; vacant ones are among them."""
        return tuple(self._seats)

    @property
    def last_add_confirmed(self) -> int:
        """The LAC (-1: none)."""
        return self._synced[0] if self.deferred_sync else self.last_acknowledged

    @property
    def version(self) -> int:
        """The last version of the metadata that this writer has seen."""
        return self._version

    @property
    def pending_count(self) -> int:
        """How many entries were added and are not acknowledged yet."""
        return len(self._acks)

    @property
    def ended(self) -> bool:
        """Closed or failed."""
        return self.state in (WriterState.CLOSED, WriterState.FAILED)

    @property
    def frozen(self) -> bool:
        """An ensemble change is under way: nothing is acknowledged (D4)."""
        return self.state in _FROZEN

    def suffices(self, replacements: Collection[int]) -> bool:
        """Return whether bookies for these of the indices asked for are enough to go on with."""
        return self._quorum_without(tuple(index for index in self._round if index not in replacements))

    def _noted(self, entry_id: int) -> set[int]:
        """Return the seats that failed this pending entry, without those that are vacant or being changed."""
        mask = self._failures.get(entry_id, 0)
        return {s.index for s in self._seats if s.bit & mask and s.index not in self._round} - self.vacant

    def _due(self, entry_id: int) -> set[int]:
        """Return the seats to change, where changes are delayed, because this entry cannot reach its ack quorum
        without.
        """
        vacant = sum(1 << index for index in self.vacant)
        lost = (self._failures.get(entry_id, 0) | vacant) & self._window_masks[entry_id % self._size]
        return self._noted(entry_id) if lost.bit_count() > self._spare else set()

    def _is_untouched(self) -> bool:
        """Return whether nothing is acknowledged in the ledger, and it is this writer's to give up."""
        return self.last_acknowledged < 0 and not self._recovering

    def _changed_error(self) -> DistributedLogError:
        return next(iter(self._strangers.values()))

    def _asked(self, event: WriterEvent) -> bool:
        """Return whether the state's table lets an answer of the edge act; an answer to no question is a bug."""
        reaction = REACTIONS[self.state][event]
        check(reaction is not Reaction.BUG, f"{event.name} in state {self.state.name}", ledger_id=self.ledger_id)
        return reaction is Reaction.ACT

    def _retarget(self) -> None:
        """Recompute the seats that each write set is sent to, without vacant ones and those that are being changed."""
        skip = {*self.vacant, *self._round}
        self._targets = tuple(
            tuple(self._seats[index] for index in window if index not in skip) for window in self._windows
        )

    def _quorum_without(self, indices: tuple[int, ...]) -> bool:
        """Return whether every write set keeps an ack quorum, in enough fault domains, when these bookies do not
        answer."""
        gone = sum(1 << index for index in indices)
        return all((mask & gone).bit_count() <= self._spare for mask in self._window_masks) and (
            self._spans_domains is None or all(self._is_spread(mask & ~gone) for mask in self._window_masks)
        )

    def _is_spread(self, mask: int) -> bool:
        """Return whether the bookies in these seats are in enough fault domains."""
        return self._spans_domains is None or self._spans_domains([s.bookie for s in self._seats if s.bit & mask])

    def _drop_pending(self) -> None:
        self._acks.clear()
        self._lengths.clear()
        self._failures.clear()

    def _retire(self) -> None:
        for seat in self._seats:
            seat.current = False  # nothing that arrives later may count (I5)

    def _too_few(self, left: tuple[int, ...]) -> str:
        names = ", ".join(self._seats[index].bookie for index in left)
        why = f"no replacement for {names}, and without it fewer than {self._ack_quorum} bookies can acknowledge"
        refusal = self._last_refusal
        # In TLS 1.3 a client has done its part before its certificate is judged: then the refusal ends a connection.
        if isinstance(refusal, SecureConnectionError) or (
            refusal is not None and isinstance(refusal.__cause__, TlsError)
        ):
            return f"{why} ({refusal.message})"  # more nodes would not help
        return why
