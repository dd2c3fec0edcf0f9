"""`LogAdmin`: what is done with whole logs besides writing them: renaming, the application's own bytes, all names.

Renaming is one multi: the new znodes are created, the old ones deleted with the versions that were read, so that a
crash leaves the log under one of its names and a change meanwhile fails it. Everything below `P` goes along; what a
segment's znode says does not depend on the log's name. A lock on the log keeps it from being renamed.

It is read and renamed under the log's lock, whose member goes by that very multi. Versions alone do not tell a log from
one that was deleted and made again meanwhile: they begin again with it, and the new log's segments would be replaced by
the old one's. The member is in no other log (I7).

What the log declares of its records gets another id with the name, made of both: versions begin again here too, and a
log that is given its former name back would take a change for one of the version that was read before.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.lock_members import sequence_of
from metadata.distributedlog.locks import (
    DistributedLock,
    LockingError,
    LockSessionExpiredError,
    OwnershipAcquireFailedError,
)
from metadata.distributedlog.log_folders import LogFolder
from metadata.distributedlog.log_names import (
    LogExistsError,
    LogNotFoundError,
    LogPaths,
    log_not_found_error,
    validate_folder,
    validate_new_name,
)
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.segments import COMPLETED_PREFIX, IN_PROGRESS_PREFIX, SegmentMetadata
from metadata.foundation.errors import (
    BadVersionError,
    CallerError,
    InvariantViolation,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OutcomeUnknownError,
)
from metadata.retry import MAX_REPEATS, repeat
from metadata.store import ANY_VERSION, Check, Create, Delete, Op, SetData, Stat, ancestors, check_request, name_of

RENAMER: Final = "dlspark-rename"
"""The name of the log's owner while it is renamed, where none is given."""
MAX_LISTINGS: Final = 64
"""Znodes of one recursive listing that are asked for at a time."""


@dataclass(frozen=True, slots=True)
class Below:
    """Is a name directly below another a log, a folder that further logs' names begin with, or both?"""

    name: str
    is_log: bool
    is_folder: bool


@dataclass(frozen=True, slots=True)
class _ZnodeRead:
    path: str
    data: bytes
    stat: Stat


async def _no_ops() -> list[Op]:
    return []


class LogAdmin:
    """How are logs listed, renamed, deleted and counted? Administration of the logs of a `LogStore`.

    Args:
        logs: the logs of one namespace.
    """

    def __init__(self, logs: LogStore) -> None:
        self._logs = logs
        self._store = logs.store

    # ---- renaming ---------------------------------------------------------------------------------------------------

    async def rename(
        self, old: str, new: str, extra: Callable[[], Awaitable[list[Op]]] = _no_ops, *, client_id: str = RENAMER
    ) -> None:
        """Give a log another name, with the operations of `extra` in the same transaction. Its readers must be opened
        again. `client_id`: who has the log meanwhile, as others see it.

        Raises LogNotFoundError, LogExistsError for a name that is taken, OwnershipAcquireFailedError while the log has
        a writer, LockingError while a reader has a lock on it, CallerError for names that cannot be, or for a log of
        more segments than fit into one transaction. Lost answers are resolved; where the connection stays away, or
        another log has taken the new name since, an OutcomeUnknownError is raised: the log has one of its two names.
        """
        old, new = self._logs.validate_name(old), validate_new_name(new, self._logs.partition)
        if f"{new}/".startswith(f"{old}/"):
            raise CallerError(
                "a log cannot be renamed into itself; nothing was renamed", log=old, advice=f"{new!r} begins with it"
            )
        doubted: list[Op] = []

        async def attempt() -> None:
            nonlocal doubted
            for _ in range(MAX_REPEATS):
                if doubted and not await self._logs.exists(old) and await self._logs.exists(new):
                    await self._check_moved(old, new, doubted)
                    return  # the answer was lost, the change was not
                source = await self._logs.located(old)
                await self._check_target(old, new)
                async with self._taken(old, source, client_id) as lock:
                    if lock is None:
                        continue  # the session has ended meanwhile
                    try:
                        ops = await self._rename_ops(old, source, new, lock.member_path, extra)
                    except (BadVersionError, LockingError) as error:
                        if type(error) is LockingError and lock.held:
                            raise  # a reader has it locked
                        continue  # something in it went while it was read
                    try:
                        await self._store.multi(ops)
                        return
                    except OutcomeUnknownError:
                        doubted = ops
                        raise
                    except (BadVersionError, NoNodeError, NotEmptyError, NodeExistsError):
                        continue  # it changed since it was read: what that means shows when it is read again
            raise BadVersionError("the log keeps changing; nothing was renamed", log=old)

        await repeat(self._store, attempt)

    @asynccontextmanager
    async def _taken(self, log: str, paths: LogPaths, client_id: str) -> AsyncIterator[DistributedLock | None]:
        """Yield the log's lock, held; None where the session ended on the way. Raises LogNotFoundError, and
        OwnershipAcquireFailedError where another client has it."""
        lock = DistributedLock(self._store, paths.lock, client_id)
        try:
            await lock.acquire(0)
        except OwnershipAcquireFailedError as error:
            raise OwnershipAcquireFailedError(
                error.owner, path=paths.lock, log=log, kept="nothing was renamed"
            ) from error
        except NoNodeError as error:
            raise log_not_found_error(log, error.path) from error
        except LockSessionExpiredError:
            yield None
            return
        try:
            yield lock
        finally:
            # Its member is gone where the log was renamed; else it ends with the session at the latest.
            with suppress(MetadataUnavailableError, OutcomeUnknownError):
                await lock.release()

    async def _check_moved(self, old: str, new: str, ops: list[Op]) -> None:
        """Raise OutcomeUnknownError unless `new` has a ledger of those that `ops` took there: nothing else
        distinguishes it from a log that was made since."""
        moved = {
            SegmentMetadata.decode(op.data, op.path, skip_minimum_version=True).ledger_id
            for op in ops
            if isinstance(op, Create) and name_of(op.path).startswith((IN_PROGRESS_PREFIX, COMPLETED_PREFIX))
        }
        if moved.isdisjoint(segment.ledger_id for segment in await self._logs.hot_segments(new)):
            raise OutcomeUnknownError(
                f"the answer to its renaming was lost; the log is gone now, and {new!r} has no segment of it",
                log=old,
                advice=f"Either it was renamed, empty or with {new!r} made again since, or another client deleted it",
            )

    async def _check_target(self, old: str, new: str) -> tuple[LogFolder, LogPaths]:
        """Return where the new name leads to. Raises LogExistsError where that is a log."""
        chosen = await self._logs.log_folders.choose(new)
        target = self._logs.paths_in(chosen.folder, new)
        if await self._store.exists(target.partition) is not None:
            raise LogExistsError(f"there is a log {new!r} already; nothing was renamed", log=old, path=target.root)
        return chosen, target

    async def _rename_ops(
        self, old: str, source: LogPaths, new: str, member: str, extra: Callable[[], Awaitable[list[Op]]]
    ) -> list[Op]:
        """Return what renames the log that has this `member` of ours in its lock's queue, and no other."""
        chosen, target = await self._check_target(old, new)
        try:
            nodes = await self._subtree(source.partition)
            root = _ZnodeRead(source.root, *await self._store.get(source.root))
        except NoNodeError as error:
            if error.path not in (source.root, source.partition):
                raise BadVersionError("a znode of the log has just gone", log=old, path=error.path) from error
            raise log_not_found_error(old, error.path) from error
        paths = {node.path for node in nodes}
        if source.ledgers not in paths:
            raise log_not_found_error(old, source.ledgers)
        if member not in paths:
            raise BadVersionError("the log was deleted while it was being renamed", log=old, path=source.root)
        moved = [node for node in nodes if node.path != member]
        _refuse_locked(old, source, moved)
        ops = [
            *await self._target_ops(chosen, target, root.data),
            *_copies(moved, source, target),
            *(Delete(node.path, node.stat.version) for node in reversed(nodes)),
            _vacate(root),
            *await extra(),
        ]
        try:
            check_request(ops)
        except CallerError as error:
            raise _too_long_error(old, source, nodes) from error
        return ops

    async def _target_ops(self, chosen: LogFolder, target: LogPaths, data: bytes) -> list[Op]:
        """Return what makes the znode of the new name, which may be there as a folder of nested logs."""
        above = [path for path in ancestors(target.root) if len(path) > len(chosen.folder)]
        stats = await asyncio.gather(*(self._store.exists(path) for path in [*above, target.root]))
        ops: list[Op] = list(chosen.guard) if stats[0] is None else []
        ops += [Create(path) for path, stat in zip(above, stats[:-1], strict=True) if stat is None]
        present = stats[-1]
        if present is None:
            return [*ops, Create(target.root, data)]
        return [*ops, SetData(target.root, data, present.version)]

    async def _subtree(self, path: str) -> list[_ZnodeRead]:
        """Return the znode and all below it, parents first. Raises NoNodeError for the first."""
        node = _ZnodeRead(path, *await self._store.get(path))
        names = (await self._store.children(path))[0] if node.stat.num_children else []
        below = await asyncio.gather(*(self._subtree(f"{path}/{name}") for name in names))
        return [node, *(found for part in below for found in part)]

    # ---- the application's own bytes --------------------------------------------------------------------------------

    async def metadata(self, name: str) -> Versioned[bytes]:
        """Return the application's bytes, empty where there are none, with their version. Raises LogNotFoundError."""
        paths = await self._logs.located(name)

        async def read() -> Versioned[bytes]:
            try:
                data, stat = await self._store.get(paths.root)
            except NoNodeError as error:
                raise log_not_found_error(name, error.path) from error
            if await self._store.exists(paths.ledgers) is None:
                raise log_not_found_error(name, paths.ledgers)  # a folder of nested logs
            return Versioned(data, stat.version)

        return await repeat(self._store, read)

    async def set_metadata(self, name: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Set the application's bytes if they have that version; returns the new one. Empty bytes delete them.

        Raises LogNotFoundError, BadVersionError. With a version an OutcomeUnknownError is raised where the answer was
        lost; without one it is set again.
        """
        paths = await self._logs.located(name)

        async def write() -> int:
            try:
                results = await self._store.multi(
                    [Check(paths.ledgers, ANY_VERSION), SetData(paths.root, data, version)]
                )
            except NoNodeError as error:
                raise log_not_found_error(name, error.path) from error
            stat = results[1]
            if not isinstance(stat, Stat):
                raise InvariantViolation(f"a set answered {stat!r}")
            return stat.version

        return await (write() if version != ANY_VERSION else repeat(self._store, write))

    # ---- all names --------------------------------------------------------------------------------------------------

    async def names(self, prefix: str = "") -> list[str]:
        """Return the full names of all logs, nested ones included, or of those below `prefix`, sorted."""
        start = validate_folder(prefix)
        if start:
            try:
                folders = [(await self._logs.located(start)).root]
            except LogNotFoundError:
                return []
        else:
            folders = await self._logs.log_folders.folders()
        await repeat(self._store, lambda: self._store.sync(self._logs.namespace_path))
        room = asyncio.Semaphore(MAX_LISTINGS)
        found = await asyncio.gather(*(self._walk(folder, start, room) for folder in folders))
        return sorted({name for part in found for name in part})

    async def below(self, prefix: str = "") -> list[Below]:
        """Return what is directly below the namespace, or below `prefix` in it, sorted; nothing where that does not
        exist.

        Raises InvalidLogNameError, DuplicateLogError.
        """
        start = validate_folder(prefix)
        room = asyncio.Semaphore(MAX_LISTINGS)

        async def look(name: str) -> Below | None:
            paths = await self._logs.located(f"{start}/{name}" if start else name)
            async with room:
                root, log = await asyncio.gather(
                    *(repeat(self._store, partial(self._store.exists, path)) for path in (paths.root, paths.partition))
                )
            if root is None:
                return None
            return Below(name, is_log=log is not None, is_folder=root.num_children > (log is not None))

        found = await asyncio.gather(*(look(name) for name in await self._logs.list(start)))
        return [one for one in found if one is not None and (one.is_log or one.is_folder)]

    async def _walk(self, path: str, name: str, room: asyncio.Semaphore) -> list[str]:
        """Return names of the logs below the znode at `path`, which is called `name`."""

        async def list_children() -> list[str]:
            try:
                return (await self._store.children(path))[0]
            except NoNodeError:
                return []

        async with room:
            children = await repeat(self._store, list_children)
        below = [(f"{path}/{child}", f"{name}/{child}" if name else child) for child in self._logs.logs_among(children)]
        found = await asyncio.gather(*(self._walk_log(where, full, room) for where, full in below))
        return [log for part in found for log in part]

    async def _walk_log(self, path: str, name: str, room: asyncio.Semaphore) -> list[str]:
        async with room:
            stat = await repeat(self._store, lambda: self._store.exists(f"{path}/{self._logs.partition}"))
        return [*([name] if stat is not None else []), *await self._walk(path, name, room)]


def _copies(nodes: Sequence[_ZnodeRead], source: LogPaths, target: LogPaths) -> list[Op]:
    """Return what makes the znodes of a log under its new name."""
    declared = next((node.data for node in nodes if node.path == source.schema), b"")
    before = f"{source.schema}/{declared.decode('ascii', 'replace')}"
    id_ = hashlib.sha256(declared + target.schema.encode()).hexdigest()[: len(declared)]
    made: list[Op] = []
    for node in nodes:
        path, data = target.partition + node.path[len(source.partition) :], node.data
        if declared and node.path == source.schema:
            data = id_.encode()
        elif declared and node.path == before:
            path = f"{target.schema}/{id_}"
        made.append(Create(path, data))
    return made


def _too_long_error(log: str, source: LogPaths, nodes: Sequence[_ZnodeRead]) -> CallerError:
    """Return the error for a log that cannot be renamed in one step, with what takes the room."""
    units = sum(node.path.startswith(f"{source.cold_units}/") for node in nodes)
    if not units:
        return CallerError(
            f"{len(nodes)} znodes do not fit into one transaction; nothing was renamed",
            log=log,
            advice="Truncate the log and let what is truncated expire, then rename it",
        )
    # Not "rebuild it from its files": they are deleted with the old log, whoever else names them.
    return CallerError(
        f"{len(nodes)} znodes do not fit into one transaction, {units} of them units of cold storage; nothing was "
        "renamed",
        log=log,
        advice="Truncate the log, or lower its coldRetentionHours, and rename it once a mover has deleted the files of "
        "what is hidden; or keep the name. With a longer coldFreshnessSeconds there are fewer units from now on",
    )


def _refuse_locked(log: str, paths: LogPaths, nodes: list[_ZnodeRead]) -> None:
    """Raise where a lock of the log has members: ephemeral znodes cannot be moved."""
    members = [node for node in nodes if node.stat.ephemeral_owner]
    writers = [node for node in members if node.path.startswith(f"{paths.lock}/")]
    if writers:
        owner = min(writers, key=lambda node: sequence_of(name_of(node.path)))
        name = owner.data.decode("utf-8", "replace")
        raise OwnershipAcquireFailedError(name, path=paths.lock, log=log, kept="nothing was renamed")
    if members:
        holder = members[0].data.decode("utf-8", "replace")
        raise LockingError(
            f"a reader, or a cold storage worker, has it locked ({holder}); nothing was renamed",
            log=log,
            path=members[0].path,
            advice="Close its readers that have subscriptions or locks, or wait for the worker",
        )


def _vacate(root: _ZnodeRead) -> Op:
    """Return the operation that removes the old name's own znode, or leaves it for the logs nested below it, without
    the application's bytes.
    """
    if root.stat.num_children > 1:
        return SetData(root.path, b"", root.stat.version)
    return Delete(root.path, root.stat.version)
