"""References to ledgers: a walk over znodes that finds every segment, allocator, staged ledger and note of deletion.

It goes by the shape of the tree, not by a list of logs, so it finds the ledgers of all namespaces below the path where
it begins, federated and nested ones, and whatever their partitions are called:

    <partition>/ledgers/<segment>           a segment; a partition is a znode with the children `ledgers` and `maxtxid`
    <partition>/allocation, .../A%010d      made in advance, of one log or of a pool
    <partition>/deletedLedgers/<id>         off the list, to be deleted
    .sinks/<sink>/attempts/b<..>-<..>-<id>  staged by a sink, published or swept later

BookKeeper's own trees (a child `LAYOUT`) are left out. A znode that cannot be read or decoded may name any ledger. It
is reported (`unreadable`), and as long as there is one, callers take no ledger for unused.

A ledger that moves on while the walk is under way may be missed: once from being made or staged to being a segment, and
once from there to being noted. So what three walks have not found (`WALKS`) is named nowhere.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from metadata.distributedlog.allocators import Allocation
from metadata.distributedlog.segment_changes import NOTES
from metadata.distributedlog.segments import COMPLETED_PREFIX, IN_PROGRESS_PREFIX, SegmentMetadata
from metadata.distributedlog.sinks import StagedLedger
from metadata.foundation.errors import CorruptDataError, DistributedLogError, NoAuthError, NoNodeError
from metadata.retry import repeat
from metadata.store import MetadataStore, join, name_of

WALKS: Final = 3
"""Walks after which a ledger that none of them found is named nowhere: it moves on at most twice."""
MAX_REQUESTS: Final = 64
"""Requests of one walk that are under way at a time."""
_CHILDREN_AT_ONCE: Final = 256
"""Children of one znode that are gone into at a time: it bounds memory, MAX_REQUESTS the load."""
_POOL_MEMBER: Final = re.compile(r"A\d{10}")
_NOT_OURS: Final = ("/zookeeper",)


class Use(str, Enum):
    """The purposes for which ledgers are named."""

    SEGMENT = "segment"
    ALLOCATED = "made in advance"
    STAGED = "staged by a sink"
    NOTED = "to be deleted"


@dataclass(frozen=True, slots=True)
class Reference:
    """One znode that names a ledger. `segment` is the segment that it holds, None where it is something else."""

    ledger_id: int
    use: Use
    path: str
    segment: SegmentMetadata | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A znode that could not be read, and may name any ledger."""

    path: str
    why: str


@dataclass(slots=True)
class References:
    """The result of a walk."""

    by_ledger: dict[int, list[Reference]] = field(default_factory=dict)
    unreadable: list[Unreadable] = field(default_factory=list)

    def add(self, found: Reference) -> None:
        """Note a znode; one ledger may be named by several."""
        self.by_ledger.setdefault(found.ledger_id, []).append(found)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self.by_ledger


async def find_references(store: MetadataStore, root: str = "/") -> References:
    """Walk over everything at and below `root`. A missing root names nothing. Raises the store's errors."""
    await repeat(store, lambda: store.sync(root))
    walk = _Walk(store)
    await walk.visit(root)
    return walk.found


async def unnamed(stores: Iterable[MetadataStore], ledgers: Iterable[int]) -> tuple[set[int], list[Unreadable]]:
    """Return those of `ledgers` that no znode names in any of `stores`, and the znodes that could not be read."""
    left = set(ledgers)
    unreadable: dict[str, Unreadable] = {}
    stores = list(stores)
    for _ in range(WALKS):
        if not left:
            break
        for store in stores:
            found = await find_references(store)
            left -= found.by_ledger.keys()
            unreadable |= {one.path: one for one in found.unreadable}
    return left, list(unreadable.values())


class _Walk:
    def __init__(self, store: MetadataStore) -> None:
        self.found = References()
        self._store = store
        self._room = asyncio.Semaphore(MAX_REQUESTS)

    async def visit(self, path: str) -> None:
        children = await self._children(path)
        if "LAYOUT" in children or path in _NOT_OURS:
            return
        if "ledgers" in children and "maxtxid" in children:
            await self._partition(path, children)
            return
        for start in range(0, len(children), _CHILDREN_AT_ONCE):
            await asyncio.gather(*(self._child(path, name) for name in children[start : start + _CHILDREN_AT_ONCE]))

    async def _child(self, parent: str, name: str) -> None:
        path = join(parent, name)
        if _POOL_MEMBER.fullmatch(name):
            await self._allocator(path)
        elif name_of(parent) == "attempts" and "/.sinks/" in parent:
            await self._staged(path, name)
        else:
            await self.visit(path)

    async def _partition(self, path: str, children: list[str]) -> None:
        """Visit a log, in the order in which a ledger moves (allocator, segment, note): if it moves on meanwhile, it is
        found at its next station."""
        if "allocation" in children:
            await self._allocator(join(path, "allocation"))
        segments = join(path, "ledgers")
        names = await self._children(segments)
        listed = [name for name in names if name.startswith((IN_PROGRESS_PREFIX, COMPLETED_PREFIX))]
        for start in range(0, len(listed), _CHILDREN_AT_ONCE):
            chunk = listed[start : start + _CHILDREN_AT_ONCE]
            await asyncio.gather(*(self._segment(join(segments, name)) for name in chunk))
        notes = join(path, NOTES)
        for name in await self._children(notes):
            if name.isdecimal():
                self.found.add(Reference(int(name), Use.NOTED, join(notes, name)))

    async def _segment(self, path: str) -> None:
        data = await self._get(path)
        if data is None:
            return
        try:
            segment = SegmentMetadata.decode(data, path, skip_minimum_version=True)
        except CorruptDataError as error:
            self.found.unreadable.append(Unreadable(path, error.message))
            return
        self.found.add(Reference(segment.ledger_id, Use.SEGMENT, path, segment))

    async def _allocator(self, path: str) -> None:
        data = await self._get(path)
        if not data:
            return
        ledger_id = Allocation(path, data, 0).ledger_id
        if ledger_id is None:
            self.found.unreadable.append(Unreadable(path, f"it holds {data[:40]!r}, which is not a ledger id"))
        else:
            self.found.add(Reference(ledger_id, Use.ALLOCATED, path))

    async def _staged(self, path: str, name: str) -> None:
        staged = StagedLedger.parse(name)
        if staged is None:
            self.found.unreadable.append(Unreadable(path, "its name is not that of a staged ledger"))
        else:
            self.found.add(Reference(staged.ledger_id, Use.STAGED, path))

    async def _children(self, path: str) -> list[str]:
        """Return names of the children; none of a znode that is gone or closed to this session."""
        try:
            async with self._room:
                return (await repeat(self._store, lambda: self._store.children(path)))[0]
        except NoNodeError:
            return []
        except NoAuthError as error:
            self._closed(path, error)
            return []

    async def _get(self, path: str) -> bytes | None:
        try:
            async with self._room:
                return bytes((await repeat(self._store, lambda: self._store.get(path)))[0])
        except NoNodeError:
            return None  # it has just gone
        except NoAuthError as error:
            self._closed(path, error)
            return None

    def _closed(self, path: str, error: DistributedLogError) -> None:
        self.found.unreadable.append(Unreadable(path, error.message))
