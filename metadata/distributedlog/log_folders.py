"""Where a namespace's logs are: the znodes below which they have their own (`LogFolders`).

A plain namespace keeps all of them below its own znode (`PlainFolders`). A federated one spreads them over
sub-namespaces, so that none grows beyond a limit (`FederatedFolders`). Logs with the same first component of their
names are in the same folder.

    NS                                 a sub-namespace itself, the oldest
    NS/.subnamespaces                  data: path of the sub-namespace in which a log was created last
    NS/.subnamespaces/NS_<10 digits>   a sub-namespace; sequential

A client that creates a log reads the version of `.subnamespaces`, then looks for the log everywhere, then creates it
in one transaction that also sets `.subnamespaces` with that version. So of two clients that create logs at the same
time one has to look again, and a log is never in two folders, whether Java or we create it. Upstream knows logs by the
names of the children of a sub-namespace; so here a log with slashes in its name is where its first component is.

What is known of a log's folder is relied on until a watch says that the log's znode went. ZooKeeper keeps a watch until
it is heard, so one session leaves MAX_WATCHED of them at most: the folders of logs that are looked up beyond those are
asked for each time. A lookup of what is not known asks every sub-namespace; with `ask_on_miss` off it trusts the lists
of names that are kept, which the next watch refreshes: a log that another process has just created may then be missed
for a moment.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

from metadata.distributedlog.bindings import SUB_NAMESPACES
from metadata.distributedlog.namespaces import NotBoundError
from metadata.foundation.errors import (
    BadVersionError,
    CorruptDataError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
)
from metadata.retry import MAX_REPEATS, repeat
from metadata.store import MetadataStore, Op, SetData, Watcher, WatchEvent, join


class DuplicateLogError(CorruptDataError):
    """A log is in two sub-namespaces of a federated namespace: nothing shows which is the right one."""

    code: ClassVar[int] = 600


@dataclass(frozen=True, slots=True)
class LogFolder:
    """Where to create a log. `guard` joins the transaction that creates the first component of its name, and fails it
    where another client may have created that elsewhere meanwhile: then choose again."""

    folder: str
    guard: tuple[Op, ...] = ()


class LogFolders(Protocol):
    """Finds the znode below which a log is. Names are normalised ones."""

    @property
    def root(self) -> str:
        """The namespace's own znode."""
        ...

    def known(self, name: str) -> str | None:
        """Return where the log is, if that is known without asking; None otherwise."""
        ...

    async def find(self, name: str) -> str | None:
        """Return where the log is; None where it is not. Raises DuplicateLogError."""
        ...

    async def choose(self, name: str) -> LogFolder:
        """Return where to create the log: the folder of what exists of it, else one with room. Raises NotBoundError."""
        ...

    async def folders(self, watch: Watcher | None = None) -> list[str]:
        """Return all folders, the namespace's own first. The watch is heard once when there may be others."""
        ...


class PlainFolders(LogFolders):
    """All logs are below the namespace's own znode."""

    def __init__(self, root: str) -> None:
        self._root = root

    @property
    def root(self) -> str:
        """The namespace's own znode."""
        return self._root

    def known(self, name: str) -> str | None:
        """Return the one folder that there is."""
        return self._root

    async def find(self, name: str) -> str | None:
        """Return the namespace itself, whether the log exists or not."""
        return self._root

    async def choose(self, name: str) -> LogFolder:
        """Return the namespace itself, for any log."""
        return LogFolder(self._root)

    async def folders(self, watch: Watcher | None = None) -> list[str]:
        """Return the namespace itself; it does not change, so nothing is watched."""
        return [self._root]


MAX_WATCHED: Final = 262_144
"""Logs whose folders are relied on, each with a watch in the session."""
MAX_PASSING: Final = 262_144
"""Logs without one whose last known folders are kept; beyond it those that were asked for longest ago are forgotten."""
_PREFIX: Final = "NS_"
_RESERVED: Final = (".", "<")


@dataclass(frozen=True, slots=True)
class _Forget:
    """A watch on a log's znode. Equal for the same log, so that one is left however often it is looked up."""

    folders: FederatedFolders
    first: str

    def __call__(self, event: WatchEvent) -> None:
        self.folders._forget(self.first)


class FederatedFolders(LogFolders):
    """In which sub-namespace of a federated namespace is a log?

    Args:
        store: the session.
        root: the namespace's znode.
        max_logs: logs that a sub-namespace gets at most.
        ask_on_miss: look for a name that the kept lists do not have.
    """

    def __init__(self, store: MetadataStore, root: str, *, max_logs: int, ask_on_miss: bool = True) -> None:
        self._store = store
        self._root = root
        self._index = join(root, SUB_NAMESPACES)
        self._max_logs = max_logs
        self._ask_on_miss = ask_on_miss
        self._watched: set[str] = set()  # those on whose znodes we left a watch that was not heard yet
        self._fresh: dict[str, str] = {}  # of those, the ones that have their folders: nothing was heard since
        self._passing: OrderedDict[str, str] = OrderedDict()  # the last known folders of all others
        self._changes = 0  # watches heard: what was read before one is not kept after it
        self._folders: list[str] | None = None
        self._names: dict[str, frozenset[str]] = {}

    @property
    def root(self) -> str:
        """The namespace's own znode, which is its oldest folder."""
        return self._root

    # ---- looking up -------------------------------------------------------------------------------------------------

    def known(self, name: str) -> str | None:
        """Return the folder while its watch stands, else the last one known, which may be out of date; None for a log
        that was not looked up."""
        first = _first(name)
        return self._fresh.get(first) or self._passing.get(first)

    async def find(self, name: str) -> str | None:
        """Return the log's folder, None where there is no such log. Raises DuplicateLogError.

        A folder that a watch guards is returned without asking. Else the answer is as of what was committed before this
        call; with `ask_on_miss` off, as of the lists that are kept.
        """
        first = _first(name)
        kept = self._fresh.get(first)
        if kept is not None:
            return kept
        if not self._ask_on_miss:
            return await repeat(self._store, lambda: self._find_listed(first))
        return await repeat(self._store, lambda: self._ask(first))

    async def _ask(self, first: str) -> str | None:
        """Return where the component is, as of what was committed before this call."""
        await self._store.sync(self._root)
        for _ in range(MAX_REPEATS):
            folders = await self._list_folders()
            stats = await asyncio.gather(*(self._store.exists(join(folder, first)) for folder in folders))
            folder = self._only(first, [folder for folder, stat in zip(folders, stats, strict=True) if stat])
            if folder is None or await self._keep(first, folder):
                return folder
        raise BadVersionError("the log keeps coming and going; nothing was changed", log=first, path=self._root)

    async def _find_listed(self, first: str) -> str | None:
        folders = await self._list_folders()
        names = await asyncio.gather(*(self._list_names(folder) for folder in folders))
        folder = self._only(first, [folder for folder, listed in zip(folders, names, strict=True) if first in listed])
        return folder if folder is not None and await self._keep(first, folder) else None

    def _only(self, first: str, folders: list[str]) -> str | None:
        if len(folders) > 1:
            raise DuplicateLogError(
                f"it is in {len(folders)} sub-namespaces: {', '.join(folders)}",
                log=first,
                path=self._root,
                advice="Find out which of them holds its records, and delete or rename the znode of the other by hand",
            )
        return folders[0] if folders else None

    async def _keep(self, first: str, folder: str) -> bool:
        """Remember the place, for as long as the znode exists if it can be watched; False when it has just gone."""
        # A watch that is heard while the answers are on their way makes what they say old: it is not relied on then.
        changes = self._changes
        watch = _Forget(self, first) if first in self._watched or len(self._watched) < MAX_WATCHED else None
        if watch is not None:
            self._watched.add(first)
        if await self._store.exists(join(folder, first), watch) is None:
            return False
        if watch is not None and self._changes == changes:
            self._fresh[first] = folder
            self._passing.pop(first, None)
        else:
            self._pass(first, folder)
        return True

    def _pass(self, first: str, folder: str) -> None:
        """Keep a place for callers that need the one that they have looked up before; `find` asks for it again."""
        self._passing[first] = folder
        self._passing.move_to_end(first)
        if len(self._passing) > MAX_PASSING:
            self._passing.popitem(last=False)

    def _forget(self, first: str) -> None:
        """Forget that the log's place is known, because it went, or the watch on it: the place is asked for again, and
        until then the last one known is passed.
        """
        self._changes += 1
        self._watched.discard(first)
        folder = self._fresh.pop(first, None)
        if folder is not None:
            self._pass(first, folder)

    async def folders(self, watch: Watcher | None = None) -> list[str]:
        """Return the namespace's own znode first, then the sub-namespaces, oldest first. The watch also hears the first
        sub-namespace that is created, whose parent may be missing until then."""

        async def look() -> list[str]:
            await self._store.sync(self._root)
            if watch is not None:
                try:
                    await self._store.children(self._index, watch)
                except NoNodeError:
                    # Children that are not there cannot be watched; that they come can.
                    await self._store.exists(self._index, watch)
            return await self._list_folders()

        return await repeat(self._store, look)

    async def _list_folders(self) -> list[str]:
        """Return the namespace's own znode, then the others, oldest first; kept until a watch reports another."""
        if self._folders is not None:
            return self._folders
        changes = self._changes
        try:
            names, _ = await self._store.children(self._index, self._folders_changed)
        except NoNodeError:
            return [self._root]  # bound as plain, or by hand: not kept, as no watch would report the first one
        folders = [self._root, *(join(self._index, name) for name in names if name.startswith(_PREFIX))]
        if self._changes == changes:
            self._folders = folders
        return folders

    def _folders_changed(self, event: WatchEvent) -> None:
        self._changes += 1
        self._folders = None

    async def _list_names(self, folder: str) -> frozenset[str]:
        names = self._names.get(folder)
        if names is not None:
            return names
        changes = self._changes
        try:
            listed, _ = await self._store.children(folder, self._names_changed)
        except NoNodeError:
            return frozenset()
        names = frozenset(listed)
        if self._changes == changes:
            self._names[folder] = names
        return names

    def _names_changed(self, event: WatchEvent) -> None:
        self._changes += 1
        self._names.pop(event.path, None)

    # ---- creating ---------------------------------------------------------------------------------------------------

    async def choose(self, name: str) -> LogFolder:
        """Return where to create the log, with the guard that keeps another client from creating it elsewhere.

        Makes a sub-namespace where none has room. Raises NotBoundError, DuplicateLogError.
        """
        return await repeat(self._store, lambda: self._choose(_first(name)))

    async def _choose(self, first: str) -> LogFolder:
        version = await self._index_version()  # first of all: what is created from here on changes it
        folder = await self._ask(first)
        if folder is None:
            folder = await self._with_room()
        # Also where it is there: it may go before the transaction, and be created elsewhere.
        return LogFolder(folder, (SetData(self._index, folder.encode(), version),))

    async def _index_version(self) -> int:
        await self._store.sync(self._index)
        for _ in range(MAX_REPEATS):
            stat = await self._store.exists(self._index)
            if stat is not None:
                return stat.version
            try:
                await self._store.create(self._index)
            except NodeExistsError:
                continue
            except NoNodeError as error:
                raise NotBoundError(
                    "the namespace does not exist", path=self._root, advice="Bind the namespace first"
                ) from error
        raise BadVersionError("the index of sub-namespaces keeps coming and going", path=self._index)

    async def _with_room(self) -> str:
        """Return the newest sub-namespace with room for a log; a new one where there is none."""
        for folder in reversed(await self._list_folders()):
            if await self._count(folder) < self._max_logs:
                return folder
        try:
            return await self._store.create(join(self._index, _PREFIX), sequential=True)
        except OutcomeUnknownError:
            # If it was made, it is found and used the next time.
            self._folders = None
            raise
        finally:
            self._changes += 1
            self._folders = None

    async def _count(self, folder: str) -> int:
        if folder != self._root:
            stat = await self._store.exists(folder)
            return self._max_logs if stat is None else stat.num_children
        return sum(not name.startswith(_RESERVED) for name in (await self._store.children(folder))[0])


def _first(name: str) -> str:
    return name.partition("/")[0]
