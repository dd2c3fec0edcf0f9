"""`ListChange`: puts access control lists on znodes that are there already, or takes them away.

Each znode is looked at and changed by itself, at the version of its list that was read. So the change can be ended at
any moment and made again: it goes on where something is left to do. It is made with a list that this session itself can
change again, and never with another one: who sets a list that leaves it out cannot take it back.

Whose list is it? A znode that is open to all gets the new list. One whose list names an identity of this session is
the cluster's own, and gets it as well. Any other list is somebody else's (another `zkAclId`, say), and stays, unless
`all_lists` says otherwise. What ZooKeeper refuses is named at the end, and so is what somebody else's list guards.

Fault model: znodes come and go meanwhile, others change lists, the connection is lost. A znode that is created during
the change by a process without the list is open: the change is made again until it finds nothing to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from metadata.foundation.errors import (
    BadVersionError,
    CallerError,
    NoAuthError,
    NoNodeError,
)
from metadata.retry import repeat
from metadata.store import MetadataStore, join
from metadata.zookeeper.access import ALL, OPEN, WORLD_READS, Access, AclEntry

AT_A_TIME: Final = 32
TOP: Final = ("/", "/zookeeper", "/zookeeper/quota")
"""What every ZooKeeper has from its first start on, open to all whom it lets in. One of these without any right could
fill the server's memory with znodes of its own there, and so stop the cluster."""
NAMED: Final = 20
"""How many znodes a report names of a kind."""
_RACES: Final = 10


class ListedStore(MetadataStore, Protocol):
    """A store whose znodes have access control lists: `metadata.zookeeper.client.ZooKeeperStore`."""

    async def get_list(self, path: str) -> tuple[tuple[AclEntry, ...], int]:
        """Return a znode's list, sorted, and its version."""
        ...

    async def put_list(self, path: str, entries: Sequence[AclEntry], version: int) -> None:
        """Set a znode's list at its version."""
        ...

    async def who_am_i(self) -> tuple[tuple[str, str], ...]:
        """Return the identities that the server knows this session by."""
        ...


@dataclass(slots=True)
class ListReport:
    """What was found, and what has been done?"""

    changed: int = 0
    """Got the list; or would get it, where nothing is to be changed."""
    kept: int = 0
    """Had it already."""
    others: list[str] = field(default_factory=list)
    """Have a list of somebody else, and keep it."""
    refused: list[str] = field(default_factory=list)
    """ZooKeeper refuses this session to change, or to look at."""
    examples: list[str] = field(default_factory=list)
    """The first ones of those that were changed, with the list that they had."""

    @property
    def done(self) -> bool:
        """True where nothing is left but what is somebody else's."""
        return not self.refused


class ListChange:
    """Which znodes are to have which list?

    Args:
        store: the session that makes the change.
        access: who it is.
        wanted: the list; `OPEN` to take lists away.
        all_lists: lists of others are replaced as well, where ZooKeeper allows it.
        dry_run: nothing is changed.
        progress: told the number of znodes that were looked at, now and then.
    """

    def __init__(
        self,
        store: ListedStore,
        access: Access,
        wanted: Sequence[AclEntry],
        *,
        all_lists: bool = False,
        dry_run: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._store = store
        self._access = access
        self._wanted = tuple(sorted(wanted))
        self._all_lists = all_lists
        self._dry_run = dry_run
        self._progress = progress
        self._own: frozenset[tuple[str, str]] = frozenset()
        self._superuser = False
        self.report = ListReport()

    async def run(self, roots: Iterable[str]) -> ListReport:
        """Change the znodes at and below `roots`. Raises CallerError, before anything is changed, where this session
        could not change the list again; MetadataUnavailableError where the connection stays lost."""
        await self._know_ourselves()
        waiting, looked_at = list(dict.fromkeys(roots)), 0
        while waiting:
            now, waiting = waiting[-AT_A_TIME:], waiting[:-AT_A_TIME]
            for below in await asyncio.gather(*(self._visit(path) for path in now)):
                waiting += below
            looked_at += len(now)
            if self._progress is not None:
                self._progress(looked_at)
        return self.report

    async def run_at(self, paths: Iterable[str]) -> ListReport:
        """Change these znodes alone, and none below them. Raises as `run`."""
        await self._know_ourselves()
        for path in paths:
            try:
                await self._change(path)
            except NoNodeError:
                pass
            except NoAuthError:
                self.report.refused.append(path)
        return self.report

    async def _know_ourselves(self) -> None:
        known = await repeat(self._store, self._store.who_am_i)
        own = {(scheme, name) for scheme, name in known if scheme == "x509"}
        digests = (credential.entry() for credential in self._access.credentials)
        self._own = frozenset(own | {(entry.scheme, entry.identity) for entry in digests})
        self._superuser = any(scheme == "super" for scheme, _ in known)
        if self._wanted == OPEN or self._superuser:
            return
        if not any(self._is_own(entry) and entry.rights == ALL for entry in self._wanted):
            raise CallerError(
                "the access control list gives this session less than all rights: it could not take it back",
                advice="Nothing was changed. This session is "
                + (", ".join(":".join(one) for one in sorted(self._own)) or "nobody to ZooKeeper")
                + "; give it the cluster's zookeeper.secret, or name it in zkAclIdentities",
            )

    def _is_own(self, entry: AclEntry) -> bool:
        return (entry.scheme, entry.identity) in self._own

    async def _visit(self, path: str) -> list[str]:
        """Change one znode, and return those below it. They are asked for first: the list may take that right."""
        names: Sequence[str] | None
        try:
            names, _ = await repeat(self._store, lambda: self._store.children(path))
        except NoNodeError:
            return []
        except NoAuthError:
            names = None
        try:
            await self._change(path)
            if names is None:
                # Its list let this session change it, but not look below: the new one may. Else nothing below it was
                # looked at, and the report says that something is left.
                names, _ = await repeat(self._store, lambda: self._store.children(path))
        except NoNodeError:
            return []
        except NoAuthError:
            self.report.refused.append(path)
        return [join(path, name) for name in names or ()]

    async def _change(self, path: str) -> None:
        for _ in range(_RACES):
            found, version = await repeat(self._store, lambda: self._store.get_list(path))
            if found == self._wanted:
                self.report.kept += 1
                return
            if not (self._all_lists or found == OPEN or any(map(self._is_own, found))):
                self.report.others.append(path)
                return
            if self._dry_run or await self._put(path, version):
                self.report.changed += 1
                if len(self.report.examples) < NAMED:
                    self.report.examples.append(f"{path} ({', '.join(map(str, found))})")
                return
        # Something else sets this list all the time: left as it is, and named.
        self.report.refused.append(path)

    async def _put(self, path: str, version: int) -> bool:
        """Set the list; False where it is to be looked at again. After a lost connection the version tells: a
        repetition of what was done meets another one."""
        try:
            await repeat(self._store, lambda: self._store.put_list(path, self._wanted, version))
            return True
        except BadVersionError:
            return (await repeat(self._store, lambda: self._store.get_list(path)))[0] == self._wanted


def top_list(entries: Sequence[AclEntry]) -> tuple[AclEntry, ...]:
    """Return the list for `TOP`, given that of a cluster's znodes: all whom ZooKeeper lets in may read there."""
    return tuple(entries) if WORLD_READS in entries or tuple(entries) == OPEN else (*entries, WORLD_READS)
