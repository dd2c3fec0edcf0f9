"""`SegmentChanges`: what a log's owner does to segments that have their end: hides them, and takes them off the list.

Every transaction here begins with a guard, a check that the caller's lock member still exists: a deposed owner changes
nothing, however late its request arrives (I7). The rules are those of
docs/reference/znodes.md#hiding-and-deleting-segments. Marking a segment deletes its znode and creates it again with
new data, as upstream does; both happen in one multi, so a segment is never seen twice or missing. A znode that was made
anew has version 0 again, which does not show that it was: so each marking sets the log's own znode `P` as it is, and
depends on its version from before the list was read. Where owners have no lock to keep them apart (`writeLockEnabled`
off), an owner that read an older list changes nothing, and a truncation never moves back (I8).

Taking a segment off the list and deleting its ledger cannot be one step: they are in different parts of the metadata,
often in different ensembles. The list comes first, so no listed segment is ever without its ledger; and the same
transaction notes the ledger, so that none is forgotten:

| znode | data |
|---|---|
| `P/deletedLedgers` | empty; made on demand, goes with its last child |
| `P/deletedLedgers/<ledger id>` | empty: no segment has this ledger any more, it is to be deleted |

Where a log has segments in files alone, whatever hides or removes segments of the list hides the older ones in files as
well, by the same transactions: `P/cold` says from where on the log is not hidden (`cold_units`). It is read behind the
list, and each transaction depends on it, so that a segment whose hot copy goes meanwhile is not missed (I21).

A note is final and ledger ids are not given twice, so any process may delete a noted ledger at any time. These znodes
are not upstream's; it leaves them alone, and removes them with the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_units import ColdLog, Position, end_of, hidden_to
from metadata.distributedlog.locks import LockingError
from metadata.distributedlog.log_names import LogPaths, LogState, log_not_found_error
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import (
    BadVersionError,
    DistributedLogError,
    NodeExistsError,
    NoNodeError,
    NotAppliedError,
    NotEmptyError,
    check,
)
from metadata.retry import repeat
from metadata.store import Create, Delete, Op, SetData, request_bytes

NOTES: Final = "deletedLedgers"
MAX_CHANGE_BYTES: Final = 500_000
"""Bytes of one transaction. ZooKeeper takes 1 MB, but keeps others waiting for its disk and its followers."""
Ops: TypeAlias = list[Op]

Change: TypeAlias = tuple[SegmentMetadata, SegmentMetadata]
"""A segment as it is in the list, and as it is to be."""
Guard: TypeAlias = Callable[[], Op]
"""Makes the operation that fails unless the caller owns the log; it raises where that is known already."""
Cold: TypeAlias = Versioned[ColdLog]
"""What is said of a log's cold storage, as it was read behind the list."""
Turn: TypeAlias = SetData
"""The operation that fails where segments were marked since it was made."""


class SegmentsMovedError(NotAppliedError):
    """A segment is not as it was read; this transaction changed nothing. Read the list again."""


class SegmentChanges:
    """How is a log's list of segments changed, so that a deposed owner changes nothing (I7)? A lost answer is raised as
    the store has it: read the list again, and go on.

    Args:
        logs: the namespace's logs.
        name: the log.
    """

    def __init__(self, logs: LogStore, name: str) -> None:
        self._store = logs.store
        self._name = name
        self._paths = logs.paths(name)

    # ---- truncation -------------------------------------------------------------------------------------------------

    async def turn(self) -> Turn:
        """Return what `mark` depends on. Call it before you read the list that decides what to mark.

        Raises LogNotFoundError.
        """
        path = self._paths.partition
        try:
            data, stat = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError as error:
            raise log_not_found_error(self._name, path) from error
        return SetData(path, data, stat.version)

    async def cold(self) -> Cold | None:
        """Return what is said of the log's cold storage; None where it has none. Call it after you have read the list.

        Raises CorruptDataError.
        """
        # A request of its own: the log's znode, which `turn` reads, shows by its children that there may be one, but as
        # of before the list, and a segment that left for its first file in between would not be hidden.
        path = self._paths.cold
        try:
            data, stat = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return None
        return Versioned(ColdLog.decode(data, path), stat.version)

    async def mark(
        self,
        changes: Sequence[Change],
        guard: Guard,
        turn: Turn,
        cold: Cold | None = None,
        hidden: Position = (0, 0, 0),
    ) -> None:
        """Give segments another truncation status, oldest first: one transaction where they fit in one, else several.
        Where the log has cold storage (`cold`), what lies in files below `hidden` is hidden as well.

        Raises LockingError, SegmentsMovedError, or the store's error; what came before is applied then.
        """
        for before, after in changes:
            check(not before.in_progress and not after.in_progress, "only a completed segment is truncated")
            check(before.ledger_id == after.ledger_id, "a truncated segment keeps its ledger")  # I2
        done = 0
        for transaction in _transactions([self._marking(*change) for change in changes], guard):
            done += (len(transaction) - 1) // 2
            # Files first: a list whose head is hidden never follows segments in files that are not (I8).
            share, cold = self._hiding(cold, hidden if done == len(changes) else hidden_to(changes[done - 1][1]))
            await self._apply([*transaction, turn, *share])
            turn = replace(turn, version=turn.version + 1)  # the set of `P` in it was our own
        share, cold = self._hiding(cold, hidden)
        if share:
            await self._apply([guard(), turn, *share])  # It lies in files: no segment of the list was to be marked.

    def _hiding(self, cold: Cold | None, hidden: Position) -> tuple[Ops, Cold | None]:
        """Return what hides files below a position, and what is said of them afterwards; nothing where that is hidden
        already: it never moves back (I8)."""
        if cold is None or cold.value.deleted or hidden <= cold.value.truncated_to:
            return [], cold
        after = Versioned(replace(cold.value, truncated_to=hidden), cold.version + 1)
        return [SetData(self._paths.cold, after.value.encode(), cold.version)], after

    def _marking(self, before: SegmentMetadata, after: SegmentMetadata) -> Ops:
        path = self._paths.segment(before)
        return [Delete(path), Create(path, after.encode())]

    async def _apply(self, transaction: Ops) -> None:
        try:
            await self._store.multi(transaction)
        except (NoNodeError, NodeExistsError, BadVersionError) as error:
            check_guard(error, self._name)
            raise SegmentsMovedError("a segment has just been changed", log=self._name, path=error.path) from error

    # ---- taking off the list ----------------------------------------------------------------------------------------

    async def remove(
        self,
        segments: Sequence[SegmentMetadata],
        guard: Guard,
        cold: Cold | None = None,
        hidden: Position = (0, 0, 0),
    ) -> None:
        """Take segments off the list, oldest first, and note their ledgers. Where the log has cold storage (`cold`),
        what lies in files below `hidden`, and before the segments, is hidden for good. Raises as `mark` does."""
        units = [self._removal(segment) for segment in segments]
        # What goes first hides what lies in files before it; the rest hides itself by the order of the list.
        share, _ = self._hiding(cold, max([hidden, *map(end_of, segments)]))
        if share and not units:
            await self._apply([guard(), *share])
        elif units:
            units[0] = [*share, *units[0]]
            await self._remove(units, guard)

    async def clear(self, state: LogState, segments: Sequence[SegmentMetadata], guard: Guard) -> None:
        """Remove all segments, and what the log has allocated, so that no deposed writer's transaction can be applied
        any more.

        Their transactions depend on the versions in `state`, which move here (I7). Raises as `mark` does.
        """
        highest = max([state.max_lssn.value, *(segment.lssn + 1 for segment in segments)])
        # In the first transaction: a writer that could still begin a segment behind it would bring the log back (I7).
        depose: Ops = [
            SetData(self._paths.ledgers, str(highest).encode(), state.max_lssn.version),
            SetData(self._paths.allocation, b"", state.allocation.version),
        ]
        if state.allocation.value.isdigit():
            depose.append(self._note(int(state.allocation.value)))
        await self._remove([depose, *(self._removal(segment) for segment in segments)], guard)

    async def _remove(self, units: Sequence[Ops], guard: Guard) -> None:
        notes = notes_path(self._paths)
        for transaction in _transactions(units, guard):
            if await repeat(self._store, lambda: self._store.exists(notes)) is None:
                transaction.insert(1, Create(notes))  # behind the guard: `check_guard` knows that one by its index
            await self._apply(transaction)

    def _removal(self, segment: SegmentMetadata) -> Ops:
        return [Delete(self._paths.segment(segment)), self._note(segment.ledger_id)]

    def _note(self, ledger_id: int) -> Create:
        return Create(f"{notes_path(self._paths)}/{ledger_id}")

    async def noted(self) -> list[int]:
        """Return the ledgers that no segment has any more and that may still exist, ascending."""
        try:
            names, _ = await repeat(self._store, lambda: self._store.children(notes_path(self._paths)))
        except NoNodeError:
            return []
        return sorted(int(name) for name in names if name.isdecimal())

    async def forget(self, ledger_id: int) -> None:
        """Remove the note of a ledger that is gone."""
        await self._delete(f"{notes_path(self._paths)}/{ledger_id}")

    async def forget_all(self) -> None:
        """Remove the parent of the notes, unless there are some again."""
        try:
            await self._delete(notes_path(self._paths))
        except NotEmptyError:
            pass

    async def _delete(self, path: str) -> None:
        try:
            await repeat(self._store, lambda: self._store.delete(path))
        except NoNodeError:
            pass  # removed by our own earlier try, or by another process


def check_guard(error: DistributedLogError, log: str) -> None:
    """Raise LockingError if it was the guard, its first operation, that failed a transaction with `error`."""
    if error.op_index == 0:
        raise LockingError(
            "the lock was lost; nothing of this step was changed",
            log=log,
            advice="Another client may own the log now; take the lock again",
        ) from error


def notes_path(paths: LogPaths) -> str:
    """Return the parent of a log's notes of ledgers that are to be deleted."""
    return f"{paths.partition}/{NOTES}"


def _transactions(units: Iterable[Ops], guard: Guard) -> Iterator[Ops]:
    """Yield the units in order, in as few transactions as MAX_CHANGE_BYTES allows, each behind a guard of its
    moment."""
    pending: Ops = []
    size = 0
    for unit in units:
        added = request_bytes(unit)
        if pending and size + added > MAX_CHANGE_BYTES:
            yield [guard(), *pending]
            pending, size = [], 0
        pending += unit
        size += added
    if pending:
        yield [guard(), *pending]
