"""`LogStore`: the znodes of the logs of one namespace, and the transactions on them.

With `L = NS/<log>` and `P = L/<default>`:

    P/maxtxid              highest transaction id of any completed segment, decimal
    P/version              FF FF FF FF
    P/lock, P/readLock     parents of lock members
    P/ledgers              highest LSSN assigned, decimal; parent of the segments
    P/ledgers/<segment>    see `metadata.segments`
    P/allocation           id of a ledger that was created and not yet handed to a segment, or empty

`maxtxid`, `ledgers` and `allocation` are only ever set with the version last seen: that is what stops a deposed owner
(I7, spec trap 7). So each transaction takes the `LogState` it builds on and returns the next one. BadVersionError from
one means that somebody else owns the log now. An unknown outcome is left to the caller, who knows what to look for:
his ledger's id among the segments. `create` and `delete_tree` may simply be run again.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, TypeAlias, TypeVar

from metadata.errors import (
    CallerError,
    CorruptDataError,
    InvariantViolation,
    NodeExistsError,
    NoNodeError,
    NotAppliedError,
    NotEmptyError,
    check,
)
from metadata.ledgers import Versioned
from metadata.namespaces import NotBoundError
from metadata.paths import ancestors, check_path, join
from metadata.retry import MAX_REPEATS, repeat
from metadata.segment_listing import RELISTS, SegmentCache, SegmentLister, SegmentListing, SegmentVanishedError
from metadata.segments import (
    INVALID_TXID,
    SegmentListError,
    SegmentMetadata,
    TruncationStatus,
    UnsupportedMetadataVersionError,
    gap_in,
)
from metadata.store import Check, Create, Delete, MetadataStore, Op, OpResult, SetData, Stat, Watcher

__all__ = [
    "DEFAULT_PARTITION",
    "InvalidLogNameError",
    "LogExistsError",
    "LogNotFoundError",
    "LogPaths",
    "LogState",
    "LogStore",
    "SegmentListError",
    "SegmentMetadata",
    "TruncationStatus",
    "UnsupportedMetadataVersionError",
]

T = TypeVar("T")
# The store has a method `list`, which would hide the built-in type inside its class.
Names: TypeAlias = list[str]
Segments: TypeAlias = list[SegmentMetadata]
Ops: TypeAlias = list[Op]

_LOG: Final = logging.getLogger(__name__)
DEFAULT_PARTITION: Final = "<default>"
LAYOUT_VERSION: Final = b"\xff\xff\xff\xff"
MAX_DELETES: Final = 1_000
"""Deletions in one multi; a larger tree goes in several, its root last."""
_RESERVED: Final = (".", "<")
_NUMBER: Final = re.compile(rb"-?\d{1,19}")


class InvalidLogNameError(CallerError):
    """The name cannot be a log's."""

    code: ClassVar[int] = 602


class LogNotFoundError(CallerError):
    """There is no such log in the namespace."""

    code: ClassVar[int] = 510


class LogExistsError(NotAppliedError):
    """Somebody else is creating the log, or has just created it."""

    code: ClassVar[int] = 522


@dataclass(frozen=True, slots=True)
class LogPaths:
    """The znodes of one log: `root` is L, `partition` is P."""

    root: str
    partition: str

    @property
    def max_txid(self) -> str:
        return f"{self.partition}/maxtxid"

    @property
    def version(self) -> str:
        return f"{self.partition}/version"

    @property
    def lock(self) -> str:
        return f"{self.partition}/lock"

    @property
    def read_lock(self) -> str:
        return f"{self.partition}/readLock"

    @property
    def ledgers(self) -> str:
        return f"{self.partition}/ledgers"

    @property
    def allocation(self) -> str:
        return f"{self.partition}/allocation"

    @property
    def subscribers(self) -> str:
        return f"{self.partition}/subscribers"

    def segment(self, segment: SegmentMetadata) -> str:
        return f"{self.ledgers}/{segment.znode_name}"

    def initial(self) -> list[Create]:
        """The znodes of a new log, in the order in which they are made."""
        return [
            Create(self.root),
            Create(self.partition),
            Create(self.max_txid, b"0"),
            Create(self.version, LAYOUT_VERSION),
            Create(self.lock),
            Create(self.read_lock),
            Create(self.ledgers, b"0"),
            Create(self.allocation),
        ]


@dataclass(frozen=True, slots=True)
class LogState:
    """The three values of a log that are only set conditionally, with their versions."""

    max_lssn: Versioned[int]
    max_txid: Versioned[int]
    allocation: Versioned[bytes]


class LogStore:
    """The logs of the namespace at `namespace_path`, which must exist to create logs in it."""

    def __init__(
        self,
        store: MetadataStore,
        namespace_path: str,
        partition: str = DEFAULT_PARTITION,
        *,
        skip_minimum_version: bool = False,
        validate_sequence: bool = True,
        cache: SegmentCache | None = None,
    ) -> None:
        check_path(namespace_path)
        self._store = store
        self._namespace = namespace_path
        self._partition = partition
        self._lister = SegmentLister(
            store,
            cache if cache is not None else SegmentCache(),
            skip_minimum_version=skip_minimum_version,
            validate_sequence=validate_sequence,
        )

    @property
    def store(self) -> MetadataStore:
        return self._store

    @property
    def namespace_path(self) -> str:
        return self._namespace

    # ---- names ------------------------------------------------------------------------------------------------------

    @staticmethod
    def validate_name(name: str) -> str:
        """The name without a leading slash. Raises InvalidLogNameError."""
        plain = name.removeprefix("/")
        if name.startswith(_RESERVED) or plain.startswith(_RESERVED):
            raise _bad_name(name, "names beginning with '.' or '<' are reserved")
        if not plain:
            raise _bad_name(name, "it is empty")
        if any(character in plain for character in "<> "):
            raise _bad_name(name, "'<', '>' and spaces are not allowed")
        try:
            check_path(f"/{plain}")
        except CallerError as error:
            raise _bad_name(name, error.message.partition(": ")[2] or error.message) from error
        return plain

    def paths(self, name: str) -> LogPaths:
        """The znodes of a log. Raises InvalidLogNameError."""
        root = join(self._namespace, self.validate_name(name))
        return LogPaths(root, join(root, self._partition))

    # ---- logs -------------------------------------------------------------------------------------------------------

    async def exists(self, name: str) -> bool:
        """Whether the log exists, as of what was committed before this call."""
        path = self.paths(name).ledgers

        async def look() -> bool:
            await self._store.sync(path)
            return await self._store.exists(path) is not None

        return await repeat(self._store, look)

    async def list(self, prefix: str = "") -> Names:
        """Names directly below the namespace, or below `prefix` in it; none where that does not exist.

        A name with an inner slash shows as its first component.
        """
        folder = join(self._namespace, self.validate_name(prefix)) if prefix.strip("/") else self._namespace

        async def look() -> Names:
            await self._store.sync(self._namespace)
            try:
                names, _ = await self._store.children(folder)
            except NoNodeError:
                return []
            return [name for name in names if not name.startswith(_RESERVED)]

        return await repeat(self._store, look)

    async def create(self, name: str) -> None:
        """Create the log, or complete a half-made one, by one multi. A complete log is left alone.

        Raises LogExistsError when a concurrent creator was first, NotBoundError where the namespace does not exist,
        CorruptDataError for a log with foreign content. After an unknown outcome it may be called again.
        """
        paths = self.paths(name)
        wanted = [Create(parent) for parent in ancestors(paths.root) if len(parent) > len(self._namespace)]
        wanted += paths.initial()
        found = await asyncio.gather(*(self._there(node.path) for node in wanted))
        missing = [node for node, there in zip(wanted, found, strict=True) if not there]
        if missing:
            try:
                await self._store.multi(missing)
            except NodeExistsError as error:
                raise LogExistsError("somebody else has just created the log", log=name, path=error.path) from error
            except NoNodeError as error:
                raise NotBoundError(
                    "the namespace does not exist", path=self._namespace, advice="Bind the namespace first"
                ) from error
        await self.open(name)

    async def ensure(self, name: str) -> None:
        """`create`, where losing the race to a concurrent creator, or one's own lost answer, is a success."""

        async def create() -> None:
            try:
                await self.create(name)
            except LogExistsError:
                await self.open(name)

        await repeat(self._store, create)

    async def _there(self, path: str) -> bool:
        return await repeat(self._store, lambda: self._store.exists(path)) is not None

    async def open(self, name: str) -> LogState:
        """The log's conditional values and their versions.

        Raises LogNotFoundError, also for a half-made log, and CorruptDataError. A `maxtxid` that is no number counts
        as -999, as upstream has it: it is overwritten by the next completion.
        """
        paths = self.paths(name)
        try:
            ledgers, max_txid, allocation, version, _, _ = await asyncio.gather(
                *(
                    self._get(path)
                    for path in (
                        paths.ledgers,
                        paths.max_txid,
                        paths.allocation,
                        paths.version,
                        paths.lock,
                        paths.read_lock,
                    )
                )
            )
        except NoNodeError as error:
            raise _not_found(name, error) from error
        if version.value != LAYOUT_VERSION:
            raise CorruptDataError(f"unknown log layout {version.value!r}", log=name, path=paths.version)
        if not _NUMBER.fullmatch(ledgers.value):
            raise CorruptDataError(
                f"the highest segment number is {ledgers.value[:40]!r}", log=name, path=paths.ledgers
            )
        highest = INVALID_TXID
        if _NUMBER.fullmatch(max_txid.value):
            highest = int(max_txid.value)
        else:
            _LOG.warning("log %s: %s holds %r; taken as -999", name, paths.max_txid, max_txid.value[:40])
        return LogState(
            Versioned(int(ledgers.value), ledgers.version), Versioned(highest, max_txid.version), allocation
        )

    async def highest_txid(self, name: str) -> int | None:
        """The transaction id of `open`, by one read; None if there is no such log."""
        path = self.paths(name).max_txid
        try:
            value = (await self._get(path)).value
        except NoNodeError:
            return None
        return int(value) if _NUMBER.fullmatch(value) else INVALID_TXID

    async def _get(self, path: str) -> Versioned[bytes]:
        data, stat = await repeat(self._store, lambda: self._store.get(path))
        return Versioned(data, stat.version)

    async def delete_tree(self, name: str) -> None:
        """Remove the log's znodes; a missing log is a success. Its ledgers must be gone, and its lock be held, before.

        Logs nested below its name stay, and the znode `L` with them. Up to MAX_DELETES znodes go in one transaction.
        """
        paths = self.paths(name)

        async def delete() -> None:
            for _ in range(MAX_REPEATS):
                if await self._delete_once(paths):
                    return
            raise NotEmptyError("znodes keep appearing in a log that is being deleted", log=name, path=paths.partition)

        await repeat(self._store, delete)

    async def _delete_once(self, paths: LogPaths) -> bool:
        doomed = await self._subtree(paths.partition)
        try:
            siblings, _ = await self._store.children(paths.root)
        except NoNodeError:
            return True
        if set(siblings) <= {self._partition}:
            doomed.append(paths.root)
        doomed.sort(key=lambda path: -path.count("/"))  # stable: the oldest segments first, the log's own znodes last
        first = len(doomed) % MAX_DELETES
        try:
            for start in range(first - MAX_DELETES if first else 0, len(doomed), MAX_DELETES):
                await self._store.multi([Delete(path) for path in doomed[max(start, 0) : start + MAX_DELETES]])
        except (NoNodeError, NotEmptyError):
            return False  # something came or went since it was listed
        return True

    async def _subtree(self, path: str) -> Names:
        """`path` and everything below it, children before parents; empty where it does not exist."""
        try:
            names, _ = await self._store.children(path)
        except NoNodeError:
            return []
        below = [await self._subtree(f"{path}/{name}") for name in names]
        return [*(found for part in below for found in part), path]

    # ---- segments ---------------------------------------------------------------------------------------------------

    async def segments(self, name: str, watch: Watcher | None = None) -> Segments:
        """All segments in order. `watch` fires once when one comes or goes.

        Raises LogNotFoundError, CorruptDataError, and SegmentListError where one in the middle is missing. A child that
        vanishes while it is read has just been completed or deleted: the list is read again, and where that keeps
        happening goes without it.
        """
        try:
            return await self._lister.segments(name, self.paths(name).ledgers, watch)
        except NoNodeError as error:
            raise _not_found(name, error) from error

    async def listing(self, name: str, watch: Watcher | None = None) -> SegmentListing:
        """The segments by their names, to read single ones. Raises LogNotFoundError, SegmentListError."""
        try:
            return await self._lister.listing(name, self.paths(name).ledgers, watch)
        except NoNodeError as error:
            raise _not_found(name, error) from error

    async def ask(self, name: str, question: Callable[[SegmentListing], Awaitable[T]]) -> T:
        """The answer that `question` finds in a listing, asked again where the list changed under it.

        Raises as `listing` does, and what the question raises.
        """
        for _ in range(RELISTS):
            try:
                return await question(await self.listing(name))
            except SegmentVanishedError:
                continue
        return await question(await self.listing(name))

    async def start_segment(
        self, name: str, state: LogState, segment: SegmentMetadata, extra: Sequence[Op] = ()
    ) -> LogState:
        """Make an in-progress segment of the ledger recorded in `allocation`, with `extra` in the same transaction.

        Raises BadVersionError or NodeExistsError when somebody else owns the log, or an OutcomeUnknownError.
        """
        check(segment.in_progress, "a segment starts in progress", log=name)
        paths = self.paths(name)
        ops: Ops = [
            SetData(paths.allocation, b"", state.allocation.version),
            Create(paths.segment(segment), segment.encode()),
            SetData(paths.ledgers, _decimal(segment.lssn), state.max_lssn.version),
        ]
        results = await self._store.multi([*ops, *extra])
        return replace(
            state,
            allocation=Versioned(b"", _version(results[0])),
            max_lssn=Versioned(segment.lssn, _version(results[2])),
        )

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
        paths = self.paths(name)
        lssn = max(completed.lssn, state.max_lssn.value)
        txid = max(completed.last_txid, state.max_txid.value)
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

    async def remove_segment(self, name: str, state: LogState, segment: SegmentMetadata) -> None:
        """Remove the znode of an in-progress segment whose ledger is gone; a missing one is a success.

        Raises BadVersionError when somebody else owns the log (its segment may have the number now), or an
        OutcomeUnknownError.
        """
        check(segment.in_progress, "a completed segment is not removed by recovery", log=name)
        paths = self.paths(name)
        path = paths.segment(segment)
        try:
            await self._store.multi([Check(paths.ledgers, state.max_lssn.version), Delete(path)])
        except NoNodeError as error:
            if error.path != path:
                raise

    async def delete_segment(self, name: str, segment: SegmentMetadata) -> None:
        """Remove a segment's znode, whoever owns the log; a missing one is a success. Its ledger must be gone."""
        path = self.paths(name).segment(segment)

        async def delete() -> None:
            try:
                await self._store.delete(path)
            except NoNodeError:
                pass

        await repeat(self._store, delete)

    def publish_ops(self, name: str, state: LogState, segments: Sequence[SegmentMetadata]) -> Ops:
        """Operations that append completed segments and move `ledgers` and `maxtxid`, to be joined into one multi."""
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


def _bad_name(name: str, why: str) -> InvalidLogNameError:
    return InvalidLogNameError(f"invalid log name {name!r}: {why}", advice="Choose another name")


def _not_found(name: str, error: NoNodeError) -> LogNotFoundError:
    return LogNotFoundError(
        "no such log in this namespace", log=name, path=error.path, advice="Check the name, or create the log first"
    )
