"""Reads as state machines: one entry from its replicas, the LAC from an ensemble, the next entry by long poll.

Theory of operation
-------------------
The machines decide which replica to ask and when an answer is final; bytes, digests, clocks and the choice of the
replicas' order are the edge's. An answer whose digest fails is reported as a failure of its replica like any other
(I12).

*An entry* (`EntryRead`) is asked of one replica after the other. A failure moves on to the next replica unless another
question is still open; after a silence the edge calls `ask_next`, which asks the next one as well. The first good
answer wins. When all replicas have failed, the error that says most is raised: "no such entry" gives way to any later
error, "unreachable" gives way to any later error but "no such entry", others stay; but one that is away does not give
way to one that refuses this client's certificate: that error says that all do. No number of "no such entry" short of
all ends an ordinary read: only recovery may conclude from a quorum (docs/reference/wire.md#reading-an-entry).

*The LAC* (`LacRead`) is the greatest that any bookie of the last ensemble knows, once the known answers cover every
write set (`striping.QuorumCoverage`). Where they never will, the error that says most is reported, as of an entry.

Where being right is not worth waiting for, `LacTry` takes the first answer with news, or the best of all.

*The next entry* (`TailRead`) is asked of the last ensemble's bookies in turn, beginning with the first replica of the
entry after it: from the add of that entry a bookie learns that ours is committed. "Nothing yet" from E - A + 1 bookies,
or an LAC that moved without the entry, ends the poll without one. After a silence the next one is asked as well
(docs/reference/wire.md#polling-for-the-next-entry).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.foundation.errors import DistributedLogError, check
from storage_node.errors import (
    BookieUnreachableError,
    ConnectionClosedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnauthorizedAccessError,
    certificate_refused,
)
from storage_node.protocol.striping import QuorumCoverage

MISSING = (NoSuchEntryError, NoSuchLedgerError)
"""Explicit negatives: the only errors that say that a bookie does not have something."""

_UNREACHABLE = (BookieUnreachableError, ConnectionClosedError)


def more_telling(first: DistributedLogError | None, later: DistributedLogError) -> DistributedLogError:
    """Return which of two replicas' errors to report: the precedence of docs/reference/wire.md#reading-an-entry."""
    if first is None or isinstance(first, MISSING):
        return later
    if isinstance(first, _UNREACHABLE) and not isinstance(later, MISSING):
        # That all refuse this client is final; where one is merely away, that is what may pass.
        return first if certificate_refused(later) and not certificate_refused(first) else later
    return first


def fragment_end(metadata: LedgerMetadata, first: int, last: int) -> int:
    """Return the last entry up to `last` that lies in the same fragment as `first`."""
    for ensemble in metadata.ensembles:
        if ensemble.first_entry > first:
            return min(last, ensemble.first_entry - 1)
    return last


class EntryRead:
    """One entry asked of its replicas. `order` are the ensemble's indices to ask, best first."""

    __slots__ = ("_asked", "_open", "_order", "done", "error")

    def __init__(self, order: Sequence[int]) -> None:
        check(bool(order), "an entry without replicas")
        self._order = order
        self._asked = 0
        self._open = 0
        self.done = False
        self.error: DistributedLogError | None = None
        """The error to report once `exhausted`."""

    @property
    def exhausted(self) -> bool:
        """Every replica was asked and none had the entry."""
        return not self.done and self._asked == len(self._order) and self._open == 0

    def ask_next(self) -> int | None:
        """Return the index to ask now: at the start, and to speculate. None if every one was asked."""
        if self.done or self._asked == len(self._order):
            return None
        index = self._order[self._asked]
        self._asked += 1
        self._open += 1
        return index

    def failed(self, error: DistributedLogError) -> int | None:
        """Note that a replica failed. Returns the index to ask now, or None (then look at `exhausted`)."""
        self._open -= 1
        self.error = more_telling(self.error, error)
        return self.ask_next() if self._open == 0 else None

    def succeeded(self) -> bool:
        """Note that a verified copy came. Returns False if one came before."""
        self._open -= 1
        first, self.done = not self.done, True
        return first


class LacRead:
    """A question for the LAC, put to all of an ensemble."""

    __slots__ = ("_answered", "_coverage", "_refusing", "_size", "error", "last_add_confirmed", "last_stored")

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        self._coverage = QuorumCoverage(ensemble_size, write_quorum, ack_quorum)
        self._size = ensemble_size
        self._answered: set[int] = set()
        self._refusing: set[int] = set()
        self.last_add_confirmed = -1
        self.last_stored = -1
        """The highest entry that any bookie has, confirmed or not. Once `settled` it is not below any entry that was
        acknowledged before the question: such an entry lies on an ack quorum, and one of these bookies has answered."""
        self.error: DistributedLogError | None = None
        """The error to report once `failed_for_good`: that of a wrong password, else the one that says most."""

    @property
    def refused_by_all(self) -> bool:
        """Every bookie has refused this client's certificate; as long as one has not, others may yet take it, too."""
        return len(self._refusing) == self._size

    @property
    def settled(self) -> bool:
        """The answers cover every write set: `last_add_confirmed` is the result."""
        return self._coverage.covered

    @property
    def failed_for_good(self) -> bool:
        """No answer is left that could settle it."""
        return not self.settled and (
            len(self._answered) == self._size or isinstance(self.error, UnauthorizedAccessError)
        )

    def answered(self, index: int, last_add_confirmed: int, last_stored: int = -1) -> None:
        """Take a bookie's verified answer."""
        self._answered.add(index)
        self._coverage.mark_known(index)
        self.last_add_confirmed = max(self.last_add_confirmed, last_add_confirmed)
        self.last_stored = max(self.last_stored, last_stored)

    def failed(self, index: int, error: DistributedLogError) -> None:
        """Take any other answer, or none: only an explicit negative makes the bookie known (D3)."""
        self._answered.add(index)
        if isinstance(error, MISSING):
            self._coverage.mark_known(index)  # it has nothing, so it cannot hide a committed entry
            return
        if certificate_refused(error):
            self._refusing.add(index)
        final = isinstance(error, UnauthorizedAccessError)
        self.error = error if final else more_telling(self.error, error)


class LacTry:
    """A best-effort question for the LAC, put to all of an ensemble: news ends it, coverage is not asked for."""

    __slots__ = ("_answered", "_known", "_size", "error", "last_add_confirmed", "valid")

    def __init__(self, ensemble_size: int, known: int) -> None:
        self._size = ensemble_size
        self._known = known
        self._answered: set[int] = set()
        self.last_add_confirmed = known
        self.valid = False
        """At least one bookie gave a definite answer."""
        self.error: DistributedLogError | None = None

    @property
    def finished(self) -> bool:
        """There is news, or every bookie has answered."""
        return self.last_add_confirmed > self._known or len(self._answered) == self._size

    def answered(self, index: int, last_add_confirmed: int) -> None:
        """Take a bookie's verified answer."""
        self._answered.add(index)
        self.valid = True
        self.last_add_confirmed = max(self.last_add_confirmed, last_add_confirmed)

    def failed(self, index: int, error: DistributedLogError) -> None:
        """Take any other answer, or none."""
        self._answered.add(index)
        if isinstance(error, MISSING):
            self.valid = True
        self.error = more_telling(self.error, error)


class TailRead:
    """A long poll for one entry beyond the LAC, over the bookies of the last ensemble."""

    __slots__ = (
        "_empties_needed",
        "_open",
        "_order",
        "_position",
        "empties",
        "error",
        "finished",
        "known",
        "last_add_confirmed",
    )

    def __init__(self, entry_id: int, ensemble_size: int, ack_quorum: int, *, enough: int | None = None) -> None:
        """`enough` empty answers end the poll, where others see to it that none misses what it should hear."""
        self._order = tuple((entry_id + 1 + i) % ensemble_size for i in range(ensemble_size))
        self._position = 0
        self._open = 0
        # After so many empty answers fewer than A bookies are left, too few to have acknowledged the entry.
        self._empties_needed = ensemble_size - ack_quorum + 1 if enough is None else enough
        self.empties = 0
        """Bookies that had nothing to give."""
        self.last_add_confirmed = entry_id - 1
        """The greatest LAC that any answer named."""
        self.finished = False
        self.known = False
        """At least one bookie gave a definite answer."""
        self.error: DistributedLogError | None = None

    def reorder(self, arrange: Callable[[Sequence[int]], Sequence[int]]) -> None:
        """Ask in another order; called before the first bookie is asked."""
        self._order = tuple(arrange(self._order))

    def ask_next(self) -> int | None:
        """Return the index to ask now: at the start, and to speculate. None if every one was asked."""
        if self.finished or self._position == len(self._order):
            return None
        self._position += 1
        self._open += 1
        return self._order[self._position - 1]

    def _closed(self) -> int | None:
        """Count one question less as open. Returns the index to ask now, or None (then look at `finished`)."""
        self._open -= 1
        if self._open or self.finished:
            return None
        if self._position == len(self._order):
            self.finished = True
        return self.ask_next()

    def found(self, last_add_confirmed: int) -> None:
        """Take the entry itself, which came verified."""
        self.known = self.finished = True
        self.last_add_confirmed = max(self.last_add_confirmed, last_add_confirmed)

    def empty(self, max_lac: int | None) -> int | None:
        """Note that the bookie waited and has no entry to give. Returns the index to ask now, or None."""
        self.known = True
        self.empties += 1
        if max_lac is not None and max_lac > self.last_add_confirmed:
            # The entry is committed, but this bookie lacks it: an ordinary read of all its replicas finds it.
            self.last_add_confirmed = max_lac
            self.finished = True
        elif self.empties == self._empties_needed:
            self.finished = True
        return self._closed()

    def failed(self, error: DistributedLogError) -> int | None:
        """Note that the bookie could not be asked, or could not answer. Returns the index to ask now, or None."""
        if isinstance(error, MISSING):
            self.known = True
        self.error = more_telling(self.error, error)
        return self._closed()
