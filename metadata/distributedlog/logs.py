"""`LogStore`: the znodes of the logs of one namespace, and the transactions on them.

With `L = NS/<log>` and `P = L/<default>`:

    P/maxtxid              highest transaction id of any completed segment, decimal
    P/version              FF FF FF FF
    P/lock, P/readLock     parents of lock members
    P/ledgers              highest LSSN assigned, decimal; parent of the segments
    P/ledgers/<segment>    see `metadata.distributedlog.segments`
    P/allocation           id of a ledger that was created and not yet handed to a segment, or empty
    P/sink-<sink id>       how far a Spark sink has published into this log (`metadata.distributedlog.sink_marks`)
    P/producers            which segments say something of producers (`metadata.distributedlog.producer_segments`)
    P/schema               what the log declares of its records (`metadata.distributedlog.record_schemas`)
    P/cold                 which segments lie in files (`metadata.distributedlog.cold_units`)

`maxtxid`, `ledgers` and `allocation` are only ever set with the version last seen: that is what stops a deposed owner
(I7, docs/reference/znodes.md#highest-numbers). So each transaction takes the `LogState` it builds on and returns
the next one. BadVersionError from one means that another process owns the log now. An unknown outcome is left to the
caller, which knows what to look for: its ledger's id among the segments. `create` and `delete_tree` may simply be run
again.

What only reads is in `metadata.distributedlog.log_queries`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.log_folders import LogFolder
from metadata.distributedlog.log_names import (
    LogEnd,
    LogExistsError,
    LogNotFoundError,
    LogPaths,
    LogState,
    validate_new_name,
)
from metadata.distributedlog.log_queries import LogQueries, Names
from metadata.distributedlog.namespaces import NotBoundError
from metadata.distributedlog.segments import (
    SegmentMetadata,
    gap_in,
)
from metadata.foundation.errors import (
    BadVersionError,
    InvariantViolation,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    check,
)
from metadata.retry import MAX_REPEATS, repeat
from metadata.store import ANY_VERSION, Check, Create, Delete, Op, OpResult, SetData, Stat, ancestors

# The class has a method `list`, which would hide the built-in type inside of it.
Ops: TypeAlias = list[Op]

MAX_DELETES: Final = 1_000
"""Deletions in one multi; a larger tree goes in several, its root last."""


class LogStore(LogQueries):
    """Which logs has a namespace, and which segments has each? Reads (`LogQueries`), and the changes below, all
    conditional (I7). The namespace must exist to create logs in it.
    """

    # ---- logs -------------------------------------------------------------------------------------------------------

    async def create(self, name: str, metadata: bytes = b"", declared: tuple[str, bytes] | None = None) -> None:
        """Create the log, or complete a half-made one, by one multi. A complete log is left alone.

        `metadata` are the application's own bytes (the data of `L`), given to a new log alone. `declared`: the id and
        the bytes of what it declares of its records, in the same multi; any part of a log that is there is then left
        alone, and raises LogExistsError. That comes, too, when a concurrent creator was first, NotBoundError where the
        namespace does not exist, CorruptDataError for a log with foreign content. After an unknown outcome it may be
        called again.
        """
        plain = validate_new_name(name, self._partition)
        for _ in range(MAX_REPEATS):
            chosen = await self._log_folders.choose(plain)
            try:
                whole = await self._create_at(chosen, plain, metadata, declared)
            except BadVersionError:
                continue  # another client has created a log meanwhile, perhaps this one
            except NodeExistsError as error:
                if error.path in ancestors(self.paths_in(chosen.folder, plain).root):
                    continue  # a folder that another new log shares with this one is there by now
                raise LogExistsError("another client has just created the log", log=name, path=error.path) from error
            except NoNodeError as error:
                raise NotBoundError(
                    "the namespace does not exist", path=self._namespace, advice="Bind the namespace first"
                ) from error
            await (self.located(name) if whole else self.open(name))
            return
        raise BadVersionError("other logs keep being created; nothing was", log=name, path=self._namespace)

    async def _create_at(
        self, chosen: LogFolder, name: str, metadata: bytes, declared: tuple[str, bytes] | None = None
    ) -> bool:
        """Create what is missing; whether that was all of the log."""
        paths = self.paths_in(chosen.folder, name)
        parents: Ops = [Create(parent) for parent in ancestors(paths.root) if len(parent) > len(chosen.folder)]
        wanted: Ops = [*parents, *paths.initial(metadata)]
        stats = await asyncio.gather(*(self._look(node.path) for node in wanted))
        missing = [node for node, stat in zip(wanted, stats, strict=True) if stat is None]
        root = stats[len(parents)]
        if metadata and root is not None and stats[len(parents) + 1] is None:
            missing.append(SetData(paths.root, metadata, root.version))  # so far only a folder of nested logs
        if declared is not None:
            if stats[len(parents) + 1] is not None:
                # Half-made or whole: it is another client's, whose records are not what ours declares.
                raise LogExistsError("there is such a log; nothing was changed", log=name, path=paths.partition)
            missing += paths.declared(*declared)
        if missing:
            # The guard is for a new first component alone: an existing one fixes the folder (`log_folders`).
            await self._store.multi([*(chosen.guard if stats[0] is None else ()), *missing])
        return not any(stats[len(parents) :])

    async def ensure(self, name: str, metadata: bytes = b"") -> None:
        """Create the log unless it exists: losing the race to a concurrent creator, or one's own lost answer, is a
        success.
        """

        async def create() -> None:
            try:
                await self.create(name, metadata)
            except LogExistsError:
                await self.open(name)

        await repeat(self._store, create)

    async def delete_tree(
        self, name: str, guard: Callable[[], Check] | None = None, version: int = ANY_VERSION
    ) -> None:
        """Remove the log's znodes; a missing log is a success. Its ledgers must be gone, and its lock be held, before.

        `guard` is checked by every transaction: the lock's own member, which goes with the rest. Raises NoNodeError of
        its path where it fails. With `version`, that of `ledgers`, raises BadVersionError where another client has
        owned the log since: no segment that it began was removed (I7). Logs nested below its name stay, and the znode
        `L` with them. Up to MAX_DELETES znodes go in one transaction.
        """
        try:
            paths = await self.located(name)
        except LogNotFoundError:
            return

        async def delete() -> None:
            for _ in range(MAX_REPEATS):
                if await self._delete_once(paths, guard, version):
                    return
            raise NotEmptyError("znodes keep appearing in a log that is being deleted", log=name, path=paths.partition)

        await repeat(self._store, delete)

    async def _delete_once(self, paths: LogPaths, guard: Callable[[], Check] | None, version: int) -> bool:
        doomed = await self._subtree(paths.partition)
        try:
            siblings, _ = await self._store.children(paths.root)
        except NoNodeError:
            return True
        if set(siblings) <= {self._partition}:
            doomed.append(paths.root)
        # Stable: the oldest segments first, the log's own znodes last. The guard's goes after all others at its depth,
        # and so with the last transaction: those behind its own would fail.
        held = guard().path if guard is not None else None
        doomed.sort(key=lambda path: (-path.count("/"), path == held))
        first = len(doomed) % MAX_DELETES
        try:
            for start in range(first - MAX_DELETES if first else 0, len(doomed), MAX_DELETES):
                checks = [guard()] if guard is not None else []
                if version != ANY_VERSION and paths.ledgers in doomed:
                    checks.append(Check(paths.ledgers, version))
                deletes = [Delete(path) for path in doomed[max(start, 0) : start + MAX_DELETES]]
                await self._store.multi([*checks, *deletes])
        except (NoNodeError, NotEmptyError) as error:
            if guard is not None and error.op_index == 0:
                raise
            return False  # something came or went since it was listed
        return True

    async def _subtree(self, path: str) -> Names:
        """Return `path` and everything below it, children before parents; nothing where it does not exist."""
        try:
            names, _ = await self._store.children(path)
        except NoNodeError:
            return []
        below = [await self._subtree(f"{path}/{name}") for name in names]
        return [*(found for part in below for found in part), path]

    # ---- segments ---------------------------------------------------------------------------------------------------

    async def claim(
        self, name: str, state: LogState, extra: Sequence[Op] = (), *, ledgers: bool = True, allocation: bool = True
    ) -> LogState:
        """Set `ledgers` and `allocation`, or one of them, as they are: a process that builds on their versions from
        before cannot begin or end a segment any more, nor name a ledger for one. `extra` is in the same transaction.

        Raises BadVersionError when another process owns the log, or an OutcomeUnknownError.
        """
        paths = await self.located(name)
        lssn, allocated = state.max_lssn, state.allocation
        # The values stay, the versions move: a deposed owner's transaction fails from here on, however late (I7).
        ops: Ops = []
        if ledgers:
            ops.append(self.claim_op(name, state))
            lssn = Versioned(lssn.value, lssn.version + 1)
        if allocation:
            ops.append(SetData(paths.allocation, allocated.value, allocated.version))
            allocated = Versioned(allocated.value, allocated.version + 1)
        await self._store.multi([*ops, *extra])
        return replace(state, max_lssn=lssn, allocation=allocated)

    def claim_op(self, name: str, state: LogState) -> SetData:
        """Return the part of `claim` that moves the version of `ledgers`, for a transaction that does more."""
        return SetData(self.paths(name).ledgers, _decimal(state.max_lssn.value), state.max_lssn.version)

    async def start_segment(
        self,
        name: str,
        state: LogState,
        segment: SegmentMetadata,
        extra: Sequence[Op] = (),
        *,
        hand_over: SetData | None = None,
    ) -> LogState:
        """Make an in-progress segment of an allocated ledger, with `extra` in the same transaction.

        `hand_over` clears the allocator that names the ledger; without it that is the log's own, as `state` has it.
        Raises BadVersionError or NodeExistsError when another process owns the log or the allocator, or an
        OutcomeUnknownError.
        """
        check(segment.in_progress, "a segment starts in progress", log=name)
        paths = await self.located(name)
        if hand_over is None:
            hand_over = SetData(paths.allocation, b"", state.allocation.version)
        # The allocator gives the ledger up in the step that lists it: what an allocator names may be deleted.
        # `ledgers` depends on the version that this owner knows: a deposed one begins no segment (I7).
        ops: Ops = [
            hand_over,
            Create(paths.segment(segment), segment.encode()),
            SetData(paths.ledgers, _decimal(segment.lssn), state.max_lssn.version),
        ]
        results = await self._store.multi([*ops, *extra])
        after = replace(state, max_lssn=Versioned(segment.lssn, _version(results[2])))
        if hand_over.path == paths.allocation:
            after = replace(after, allocation=Versioned(b"", _version(results[0])))
        return after

    async def complete_segment(
        self,
        name: str,
        state: LogState,
        completed: SegmentMetadata,
        in_progress: SegmentMetadata,
        extra: Sequence[Op] = (),
    ) -> LogState:
        """Replace an in-progress segment by its completed form. Raises as `start_segment` does, and NoNodeError when
        the in-progress znode is gone."""
        check(in_progress.in_progress and not completed.in_progress, "completion goes one way", log=name)
        check(completed.ledger_id == in_progress.ledger_id, "a completed segment keeps its ledger", log=name)  # I2
        paths = await self.located(name)
        lssn = max(completed.lssn, state.max_lssn.value)
        txid = max(completed.last_txid, state.max_txid.value)
        # Both sets depend on versions that this owner knows: a deposed one gives a segment no other end (I2, I7).
        ops: Ops = [
            Create(paths.segment(completed), completed.encode()),
            Delete(paths.segment(in_progress)),
            SetData(paths.ledgers, _decimal(lssn), state.max_lssn.version),
            SetData(paths.max_txid, _decimal(txid), state.max_txid.version),
        ]
        results = await self._store.multi([*ops, *extra])
        return replace(
            state,
            max_lssn=Versioned(lssn, _version(results[2])),
            max_txid=Versioned(txid, _version(results[3])),
        )

    async def remove_segment(
        self, name: str, state: LogState, segment: SegmentMetadata, extra: Sequence[Op] = ()
    ) -> None:
        """Remove the znode of an in-progress segment whose ledger is gone; a missing one is a success.

        Raises BadVersionError when another process owns the log (its own segment may have this name by now, I7), or
        an OutcomeUnknownError.
        """
        check(segment.in_progress, "a completed segment is not removed by recovery", log=name)
        paths = self.paths(name)
        path = paths.segment(segment)
        try:
            await self._store.multi([Check(paths.ledgers, state.max_lssn.version), Delete(path), *extra])
        except NoNodeError as error:
            if error.path != path:
                raise

    async def delete_segment(self, name: str, segment: SegmentMetadata) -> None:
        """Remove a segment's znode without a check that we own the log; a missing one is a success. Its ledger must be
        gone."""
        path = (await self.located(name)).segment(segment)

        async def delete() -> None:
            try:
                await self._store.delete(path)
            except NoNodeError:
                pass

        await repeat(self._store, delete)

    def publish_ops(self, name: str, state: LogEnd, segments: Sequence[SegmentMetadata]) -> Ops:
        """Return the operations that append completed segments and move `ledgers` and `maxtxid`, to be joined into one
        multi.

        They depend on the versions in `state`, so they fail where the log was changed since it was read (I7).
        """
        check(bool(segments), "nothing to publish", log=name)
        check(not any(segment.in_progress for segment in segments), "only completed segments are published", log=name)
        check(gap_in(segments) is None, "published segments must follow each other", log=name)  # I7
        paths = self.paths(name)
        lssn = max(state.max_lssn.value, segments[-1].lssn)
        txid = max(state.max_txid.value, *(segment.last_txid for segment in segments))
        return [
            *(Create(paths.segment(segment), segment.encode()) for segment in segments),
            SetData(paths.ledgers, _decimal(lssn), state.max_lssn.version),
            SetData(paths.max_txid, _decimal(txid), state.max_txid.version),
        ]


def _decimal(number: int) -> bytes:
    return str(number).encode("ascii")


def _version(result: OpResult) -> int:
    if not isinstance(result, Stat):
        raise InvariantViolation(f"a set answered {result!r}")
    return result.version
