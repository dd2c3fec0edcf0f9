"""`LogQueries`: where the logs of one namespace are, what they are, and their segments; nothing here changes a znode.

What each znode holds is said in `metadata.distributedlog.logs`, whose `LogStore` builds its transactions on what is
read here: `open`, `end` and `snapshot` return conditional values with the versions they were read at.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple, TypeAlias, TypeVar

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_listing import ColdLister, merged
from metadata.distributedlog.log_folders import DuplicateLogError, LogFolders, PlainFolders
from metadata.distributedlog.log_names import (
    DEFAULT_PARTITION,
    LAYOUT_VERSION,
    RESERVED,
    LogEnd,
    LogNotFoundError,
    LogPaths,
    LogState,
    log_not_found_error,
    validate_folder,
    validate_name,
)
from metadata.distributedlog.producer_segments import ProducerSegments
from metadata.distributedlog.segment_listing import (
    RELISTS,
    SegmentCache,
    SegmentLister,
    SegmentListing,
    SegmentVanishedError,
)
from metadata.distributedlog.segments import INVALID_TXID, SegmentMetadata, with_head_hidden
from metadata.foundation.errors import BadVersionError, CorruptDataError, NoNodeError
from metadata.retry import repeat
from metadata.store import MetadataStore, Stat, Watcher, check_path, join
from metadata.zookeeper.session import SharedWatches

T = TypeVar("T")
# The class has a method `list`, which would hide the built-in type inside of it.
Names: TypeAlias = list[str]
Segments: TypeAlias = list[SegmentMetadata]

_LOG: Final = logging.getLogger(__name__)
_NUMBER: Final = re.compile(rb"-?\d{1,19}")


class LogSnapshot(NamedTuple):
    """A log at one moment: what its transactions are conditional on, and its segments in order."""

    state: LogState
    segments: Segments
    producers: ProducerSegments | None = None
    """Which segments say something of producers; None also where that was not asked for."""


class LogQueries:
    """Which logs has the namespace at `namespace_path`, and what do their znodes say? Made as a `LogStore`.

    Args:
        store: the session.
        namespace_path: the namespace's znode.
        partition: the name of the znode below each log that holds its segments.
        skip_minimum_version: read segments of a version that is too old to be read safely.
        validate_sequence: refuse lists whose numbers have gaps.
        cache: segments that were read, for several namespaces together.
        log_folders: finds each log; a plain namespace has all of them below its own znode.
    """

    def __init__(
        self,
        store: MetadataStore,
        namespace_path: str,
        partition: str = DEFAULT_PARTITION,
        *,
        skip_minimum_version: bool = False,
        validate_sequence: bool = True,
        cache: SegmentCache | None = None,
        log_folders: LogFolders | None = None,
    ) -> None:
        check_path(namespace_path)
        self._log_folders = log_folders if log_folders is not None else PlainFolders(namespace_path)
        self._store = store
        self._namespace = namespace_path
        self._partition = partition
        self._watches = SharedWatches()
        self.list_watches = SharedWatches()
        """Watches of those that list names, by the path of what is listed."""
        self._validate_sequence = validate_sequence
        self._cold_lister = ColdLister(store)
        self._lister = SegmentLister(
            store,
            cache if cache is not None else SegmentCache(),
            skip_minimum_version=skip_minimum_version,
            validate_sequence=validate_sequence,
        )

    @property
    def store(self) -> MetadataStore:
        """The metadata store below."""
        return self._store

    @property
    def namespace_path(self) -> str:
        """The namespace's znode."""
        return self._namespace

    @property
    def log_folders(self) -> LogFolders:
        """Where the namespace's logs are."""
        return self._log_folders

    @property
    def partition(self) -> str:
        """Name of the znode under a log that holds it."""
        return self._partition

    # ---- names ------------------------------------------------------------------------------------------------------

    @staticmethod
    def validate_name(name: str) -> str:
        """Return the name, if it can be a log's. Raises InvalidLogNameError."""
        return validate_name(name)

    def paths(self, name: str) -> LogPaths:
        """Return the znodes of a log that has been looked up before (`located`, or any other call about it).

        Raises InvalidLogNameError; in a federated namespace LogNotFoundError for a log that was never looked up.
        """
        plain = self.validate_name(name)
        folder = self._log_folders.known(plain)
        if folder is None:
            raise log_not_found_error(name, self._log_folders.root)
        return self.paths_in(folder, plain)

    def paths_in(self, folder: str, name: str) -> LogPaths:
        """Return the znodes of a log in one of the log_folders (`LogFolders`)."""
        root = join(folder, name)
        return LogPaths(root, join(root, self._partition))

    async def located(self, name: str) -> LogPaths:
        """Return the znodes of a log. Raises InvalidLogNameError; LogNotFoundError, in a plain namespace never."""
        plain = self.validate_name(name)
        folder = await self._log_folders.find(plain)
        if folder is None:
            raise log_not_found_error(name, self._log_folders.root)
        return self.paths_in(folder, plain)

    # ---- logs -------------------------------------------------------------------------------------------------------

    async def exists(self, name: str) -> bool:
        """Return whether the log exists, as of what was committed before this call."""
        try:
            path = (await self.located(name)).ledgers
        except LogNotFoundError:
            return False

        async def look() -> bool:
            await self._store.sync(path)
            return await self._store.exists(path) is not None

        return await repeat(self._store, look)

    async def list(self, prefix: str = "") -> Names:
        """Return names directly below the namespace, or below `prefix` in it; none where that does not exist.

        A name with an inner slash shows as its first component. Raises DuplicateLogError.
        """
        if folder := validate_folder(prefix):
            try:
                folders = [(await self.located(folder)).root]
            except LogNotFoundError:
                return []
        else:
            folders = await self._log_folders.folders()

        async def look() -> Names:
            await self._store.sync(self._namespace)
            return await self._names_in(folders)

        return await repeat(self._store, look)

    async def _names_in(self, folders: Names) -> Names:
        found: dict[str, str] = {}
        for folder in folders:
            try:
                names, _ = await self._store.children(folder)
            except NoNodeError:
                continue
            for name in self.logs_among(names):
                if name in found:
                    raise DuplicateLogError(f"it is in {found[name]} and in {folder}", log=name, path=folder)
                found[name] = folder
        return sorted(found)

    def logs_among(self, names: Iterable[str]) -> Names:
        """Return those children of a znode that are logs or lead to some."""
        return [name for name in names if not name.startswith(RESERVED) and name != self._partition]

    async def _look(self, path: str) -> Stat | None:
        return await repeat(self._store, lambda: self._store.exists(path))

    async def check(self, name: str) -> None:
        """Raise LogNotFoundError unless there is such a log, CorruptDataError for one of an unknown layout."""
        paths = await self.located(name)
        stat, _ = await asyncio.gather(self._look(paths.ledgers), self.check_layout(name))
        if stat is None:
            raise log_not_found_error(name, paths.ledgers)

    async def check_layout(self, name: str) -> None:
        """Do what `check` does with one request, for whoever lists the log's segments next: of a half-made log it may
        be the list that is missing, and its reader is told so then."""
        paths = await self.located(name)
        try:
            version = await self._get(paths.version)
        except NoNodeError as error:
            raise log_not_found_error(name, error.path) from error
        _check_layout(name, paths, version.value)

    async def open(self, name: str) -> LogState:
        """Return the log's conditional values and their versions.

        Raises LogNotFoundError, also for a half-made log, and CorruptDataError. A `maxtxid` that is not a number
        counts as -999, as upstream has it: it is overwritten by the next completion.
        """
        paths = await self.located(name)
        try:
            # The locks' znodes are read only to see that they exist: a log without one of them is half-made.
            end, allocation, _, _ = await asyncio.gather(
                self.end(name), self._get(paths.allocation), self._get(paths.lock), self._get(paths.read_lock)
            )
        except NoNodeError as error:
            raise log_not_found_error(name, error.path) from error
        return LogState(end.max_lssn, end.max_txid, allocation)

    async def end(self, name: str) -> LogEnd:
        """Return what `open` returns, without the allocation, of a log that is known to be whole. Raises as `open`
        does, but does not notice that a lock or `allocation` is missing."""
        paths = await self.located(name)
        try:
            ledgers, max_txid, version = await asyncio.gather(
                *(self._get(path) for path in (paths.ledgers, paths.max_txid, paths.version))
            )
        except NoNodeError as error:
            raise log_not_found_error(name, error.path) from error
        _check_layout(name, paths, version.value)
        if not _NUMBER.fullmatch(ledgers.value):
            raise CorruptDataError(
                f"the highest segment number is {ledgers.value[:40]!r}", log=name, path=paths.ledgers
            )
        highest = INVALID_TXID
        if _NUMBER.fullmatch(max_txid.value):
            highest = int(max_txid.value)
        else:
            _LOG.warning("log %s: %s holds %r; taken as -999", name, paths.max_txid, max_txid.value[:40])
        return LogEnd(Versioned(int(ledgers.value), ledgers.version), Versioned(highest, max_txid.version))

    async def snapshot(self, name: str, *, producers: bool = False) -> LogSnapshot:
        """Read state and segments on the log's own list of one moment, for a caller that is going to change them.

        Raises as `open` and `segments` do, and BadVersionError where the log was changed meanwhile: every transaction
        that begins or ends a segment sets `ledgers`, and the listing has that znode's version beside the names.
        `maxtxid` may be younger, where another owner is at work: the caller's transactions fail then, for they depend
        on `ledgers` too (I7). With `producers`, what is known of producers is read behind the state.
        """
        state, listing = await asyncio.gather(self.open(name), self.hot_listing(name))
        for _ in range(RELISTS):
            if listing.version != state.max_lssn.version:
                break
            try:
                if not producers:
                    return LogSnapshot(state, await listing.read_all())
                return LogSnapshot(state, *await asyncio.gather(listing.read_all(), self.producer_segments(name)))
            except SegmentVanishedError:
                listing = await self.hot_listing(name)
        raise BadVersionError("the log was changed while it was read", log=name, path=self.paths(name).ledgers)

    async def producer_segments(self, name: str) -> ProducerSegments | None:
        """Return which segments say something of the log's producers; None where it never had one.

        Raises LogNotFoundError in a federation, and CorruptDataError.
        """
        path = (await self.located(name)).producers
        try:
            return ProducerSegments.decode((await self._get(path)).value, path)
        except NoNodeError:
            return None

    async def highest_txid(self, name: str) -> int | None:
        """Return the transaction id of `open`, by one read; None if there is no such log."""
        try:
            value = (await self._get((await self.located(name)).max_txid)).value
        except (LogNotFoundError, NoNodeError):
            return None
        return int(value) if _NUMBER.fullmatch(value) else INVALID_TXID

    async def _get(self, path: str) -> Versioned[bytes]:
        data, stat = await repeat(self._store, lambda: self._store.get(path))
        return Versioned(data, stat.version)

    # ---- segments ---------------------------------------------------------------------------------------------------

    async def segments(self, name: str, watch: Watcher | None = None) -> Segments:
        """Return all segments that readers see, in order (`cold_listing`, `with_head_hidden`). `watch` fires once when
        one comes or goes.

        Raises LogNotFoundError, CorruptDataError, and SegmentListError where one in the middle is missing. A child that
        vanishes while it is read has just been completed or deleted: the list is read again, and where that keeps
        happening goes without it.
        """
        for _ in range(RELISTS):
            try:
                return with_head_hidden(await (await self._merged(name, watch)).read_all())
            except SegmentVanishedError:
                continue
        return with_head_hidden(await (await self._merged(name, watch, by_data=True)).read_all())

    async def listing(self, name: str, watch: Watcher | None = None) -> SegmentListing:
        """Return the segments that readers see by their names, to read single ones: those on the log's list, and before
        them those that lie in files alone. `watch` is heard once when one comes or goes, or anything of the log's cold
        storage changes, unless `unwatch` takes it back.

        Raises LogNotFoundError, SegmentListError.
        """
        return await self._merged(name, self._watches.watch(name, watch) if watch is not None else None)

    async def _merged(self, name: str, watch: Watcher | None, *, by_data: bool = False) -> SegmentListing:
        paths = await self.located(name)
        look = self._lister.listing_by_data if by_data else self._lister.listing
        try:
            hot = await look(name, paths.ledgers, watch, lambda: self._cold_lister.names(paths, watch))
        except NoNodeError as error:
            raise log_not_found_error(name, error.path) from error
        except CorruptDataError as error:
            error.log = name
            raise
        return merged(hot, self._cold_lister, paths, validate_sequence=self._validate_sequence)

    async def hot_segments(self, name: str) -> Segments:
        """Return the segments on the log's own list, which its owner changes, as `segments` does: those that lie in
        files alone are not among them."""
        try:
            return await self._lister.segments(name, (await self.located(name)).ledgers)
        except NoNodeError as error:
            raise log_not_found_error(name, error.path) from error

    async def hot_listing(self, name: str) -> SegmentListing:
        """Return the log's own list, which its owner changes, by names. Raises as `listing` does."""
        try:
            return await self._lister.listing(name, (await self.located(name)).ledgers)
        except NoNodeError as error:
            raise log_not_found_error(name, error.path) from error

    def unwatch(self, name: str, watch: Watcher) -> None:
        """Take a watch of `listing` back: it does not hear of the log's segments any more."""
        self._watches.leave(name, watch)

    async def ask(self, name: str, question: Callable[[SegmentListing], Awaitable[T]]) -> T:
        """Return the answer that `question` finds in a listing, asked again where the list changed under it.

        Raises as `listing` does, and what the question raises.
        """
        for _ in range(RELISTS):
            try:
                return await question(await self.listing(name))
            except SegmentVanishedError:
                continue
        return await question(await self.listing(name))


def _check_layout(name: str, paths: LogPaths, version: bytes) -> None:
    if version != LAYOUT_VERSION:
        raise CorruptDataError(f"unknown log layout {version!r}", log=name, path=paths.version)
