"""`AllocatorStore`: the znodes that name ledgers which were created and not yet handed to a segment.

The rules are those of docs/reference/znodes.md#ledger-allocators.

    P/allocation                        the allocator of one log
    NS/<pool path>/<pool name>/A%010d   those of a pool: persistent sequential children, any number

A znode's data is empty, or the decimal id of one ledger. Four conditional sets, each on the version seen last, are
all that ever happens to it:

    record      data = id          before that ledger exists, so that a crash leaves none that is not named
    claim       data as it is      the version moves: a process that read the old one cannot hand the ledger over
    hand over   data = empty       in the transaction that makes the ledger a segment
    clear       data = empty       once the ledger was deleted

So a ledger that is named here is in no segment, and after a `claim` only the process that made the claim may delete it
or hand it over. BadVersionError means that another process uses the allocator.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Final, TypeAlias

from metadata.foundation.errors import BadVersionError, CallerError, NodeExistsError, NoNodeError, OutcomeUnknownError
from metadata.retry import repeat
from metadata.store import MetadataStore, SetData, check_path, join

POOL_MEMBER_PREFIX: Final = "A"
_LEDGER_ID: Final = re.compile(rb"\d{1,19}")
_MEMBER: Final = re.compile(r"A\d{10}")
_MAX_LEDGER_ID: Final = 2**63 - 1

Paths: TypeAlias = list[str]


@dataclass(frozen=True, slots=True)
class Allocation:
    """Has an allocator a ledger that belongs to no segment yet? Its znode's content, as last read or written."""

    path: str
    data: bytes
    version: int

    @property
    def ledger_id(self) -> int | None:
        """The ledger it names; None where it names none, or holds something else."""
        if not _LEDGER_ID.fullmatch(self.data):
            return None
        ledger_id = int(self.data)
        return ledger_id if ledger_id <= _MAX_LEDGER_ID else None


class AllocatorStore:
    """Which ledgers are allocated ahead, and for what? The allocators in one metadata store.

    Args:
        counters: counts lost answers, by whether the change was applied.
    """

    def __init__(self, store: MetadataStore, counters: Counter[str] | None = None) -> None:
        self._store = store
        self._counters = counters if counters is not None else Counter()

    async def read(self, path: str) -> Allocation:
        """Return the znode as it is now. Raises NoNodeError."""
        # The server that answers may lag behind the one that applied another process's change.
        await repeat(self._store, lambda: self._store.sync(path))
        return await self._get(path)

    async def _get(self, path: str) -> Allocation:
        data, stat = await repeat(self._store, lambda: self._store.get(path))
        return Allocation(path, bytes(data), stat.version)

    async def record(self, allocation: Allocation, ledger_id: int) -> Allocation:
        """Name a ledger that is about to be created. Raises BadVersionError and NoNodeError."""
        return await self._put(allocation, str(ledger_id).encode("ascii"))

    async def claim(self, allocation: Allocation) -> Allocation:
        """Take the named ledger from all processes that may have read its id before. Raises as `record`."""
        # The same data once more: the version moves, and what others have built on the old one fails (I7).
        return await self._put(allocation, allocation.data)

    async def clear(self, allocation: Allocation) -> Allocation:
        """Name no ledger any more: call it once the named ledger is deleted. Raises as `record`."""
        return await self._put(allocation, b"")

    async def _put(self, allocation: Allocation, data: bytes) -> Allocation:
        """Set the data conditionally. A lost answer is settled by looking: exactly one version on, with our data, is
        ours.
        """
        doubt = False

        async def attempt() -> Allocation:
            nonlocal doubt
            try:
                stat = await self._store.put(allocation.path, data, allocation.version)
            except OutcomeUnknownError:
                doubt = True
                raise
            except BadVersionError:
                if not doubt:
                    raise
                found = await self.read(allocation.path)
                # Two claims of one ledger look alike: then both may delete it, and neither hands it over.
                if (found.data, found.version) != (data, allocation.version + 1):
                    raise
                self._counters["lost-answer-applied"] += 1
                return found
            self._counters["lost-answer-not-applied"] += doubt
            return Allocation(allocation.path, data, stat.version)

        return await repeat(self._store, attempt)

    @staticmethod
    def hand_over(allocation: Allocation) -> SetData:
        """Return the operation that clears the znode, for the transaction that makes its ledger a segment."""
        return SetData(allocation.path, b"", allocation.version)

    # ---- pools ------------------------------------------------------------------------------------------------------

    async def members(self, pool: str) -> Paths:
        """Return the allocators of a pool, oldest first. Raises NoNodeError."""
        names, _ = await repeat(self._store, lambda: self._store.children(pool))
        return [f"{pool}/{name}" for name in names if _MEMBER.fullmatch(name)]

    async def ensure_pool(self, pool: str, core_size: int) -> Paths:
        """Return the allocators of a pool, created where there are fewer than `core_size`. Repeating it is harmless."""

        async def make() -> None:
            try:
                await self._store.create(pool, make_parents=True)
            except NodeExistsError:
                pass

        await repeat(self._store, make)
        members = await self.members(pool)
        for _ in range(core_size - len(members)):
            await repeat(
                self._store, lambda: self._store.create(f"{pool}/{POOL_MEMBER_PREFIX}", sequential=True)
            )  # After a lost answer there may be one more than wanted, which serves as well as the others.
        return await self.members(pool) if len(members) < core_size else members

    async def remove(self, allocation: Allocation) -> None:
        """Delete a znode whose ledger is gone. A missing one is a success. Raises BadVersionError."""

        async def delete() -> None:
            try:
                await self._store.delete(allocation.path, allocation.version)
            except NoNodeError:
                pass

        await repeat(self._store, delete)

    async def remove_pool(self, pool: str) -> None:
        """Delete the parent of a pool's allocators; a missing one is a success. Raises NotEmptyError."""

        async def delete() -> None:
            try:
                await self._store.delete(pool)
            except NoNodeError:
                pass

        await repeat(self._store, delete)


def pool_path(namespace: str, folder: str, name: str) -> str:
    """Return where a pool is. Raises CallerError for a folder or name that upstream would refuse."""
    if not folder.startswith(".") or folder == "." or folder.endswith("/"):
        raise CallerError(
            f"the path of allocator pools is {folder!r}: it has to begin with '.' and must not end with '/'",
            advice="Set ledgerAllocatorPoolPath, for example to .allocation_pool",
        )
    if not name or "/" in name:
        raise CallerError(
            f"{name!r} is not the name of an allocator pool",
            advice="Set ledgerAllocatorPoolName; each process has a pool of its own",
        )
    path = join(join(namespace, folder), name)
    check_path(path)
    return path
