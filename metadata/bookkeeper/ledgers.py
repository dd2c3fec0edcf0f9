"""`LedgerStore`: BookKeeper's ledger tree: the layout, ledger ids, and each ledger's metadata under compare-and-set.

    <root>/LAYOUT                              which path formula and id generator this cluster uses
    <root>/INSTANCEID                          a random UUID, part of every bookie's cookie
    <root>/idgen/ID-, <root>/idgen-long/HOB-   transient sequential znodes that ids are made from
    <root>/00/0001/L2345                       metadata of ledger 12345 (layout `hierarchical`)
    <root>/000/0000/0021/4748/L3647            ... of an id from 2147483647 on

The formats, and what others rely on: docs/reference/znodes.md#bookkeepers-tree.

Lost answers. `create` is decided by the creator token: a random number in the new metadata distinguishes our own znode
from another client's. `write` is decided by reading back: our bytes one version on are our write, other bytes there
are another client's; the expected version means that it was not applied, and it is sent again. Only a znode that has
moved further leaves the outcome unknown. `delete` and `format` may simply be run again, as may `generate_id` (an id is
lost, its znode goes with the session).
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Generic, TypeVar

from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.foundation.errors import (
    BadVersionError,
    CallerError,
    CorruptDataError,
    InvariantViolation,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OutcomeUnknownError,
    check,
)
from metadata.retry import MAX_REPEATS, REPEAT_TIMEOUT_MS, create_with_parents, reconnected, repeat
from metadata.store import Create, Delete, MetadataStore, Op, Watcher, check_path, join, parent_of

T = TypeVar("T")

logger = logging.getLogger(__name__)

DEFAULT_ROOT: Final = "/ledgers"
FIRST_LONG_ID: Final = 2_147_483_647
MAX_LEDGER_ID: Final = 2**63 - 1
_KEPT_HOBS: Final = 3
_SUFFIX: Final = re.compile(r"\d{10}|-\d{9,10}")
_HOB: Final = re.compile(r"HOB-(\d{10})")
_LEAF: Final = re.compile(r"L(\d{4})")
_FLAT_LEAF: Final = re.compile(r"L(\d{10,19})")
_SHORT_TOP: Final = re.compile(r"\d{2}")
_LONG_TOP: Final = re.compile(r"\d{3}")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """Has a value changed since it was read? It, and its znode's data version when it was read or written."""

    value: T
    version: int


class LedgerLayout(Enum):
    """Where below the root do the znodes of ledgers lie? By the simple name of the Java factory class in LAYOUT."""

    HIERARCHICAL = "HierarchicalLedgerManagerFactory"
    LONG_HIERARCHICAL = "LongHierarchicalLedgerManagerFactory"
    LEGACY_HIERARCHICAL = "LegacyHierarchicalLedgerManagerFactory"
    FLAT = "FlatLedgerManagerFactory"

    def encode(self) -> bytes:
        """Return the text of the layout's znode."""
        return f"2\norg.apache.bookkeeper.meta.{self.value}:1".encode("ascii")

    @classmethod
    def decode(cls, data: bytes, path: str) -> LedgerLayout:
        """Read LAYOUT: format 2 names a class, format 1 the manager's type. Raises CorruptDataError."""
        lines = data.decode("utf-8", "replace").rstrip("\n").split("\n")
        manager, _, version = lines[1].rpartition(":") if len(lines) == 2 else ("", "", "")
        layout = _LAYOUTS.get(lines[0], {}).get(manager.rpartition(".")[2])
        if layout is None or version != "1":
            raise CorruptDataError(
                f"unknown ledger layout {lines!r}",
                path=path,
                advice="It must be one of the layouts that BookKeeper writes, e.g. HierarchicalLedgerManagerFactory:1",
            )
        return layout

    def path(self, root: str, ledger_id: int) -> str:
        """Return the znode of a ledger."""
        if not 0 <= ledger_id <= MAX_LEDGER_ID:
            raise CallerError(f"ledger id {ledger_id} is not in 0..{MAX_LEDGER_ID}", ledger_id=ledger_id)
        if self is LedgerLayout.FLAT:
            return join(root, f"L{ledger_id:010d}")
        if ledger_id >= FIRST_LONG_ID and self is LedgerLayout.LEGACY_HIERARCHICAL:
            raise CallerError("the legacy layout ends at ledger id 2147483646", ledger_id=ledger_id)
        if ledger_id >= FIRST_LONG_ID or self is LedgerLayout.LONG_HIERARCHICAL:
            digits = f"{ledger_id:019d}"
            return join(root, digits[:3], digits[3:7], digits[7:11], digits[11:15], f"L{digits[15:]}")
        digits = f"{ledger_id:010d}"
        return join(root, digits[:2], digits[2:6], f"L{digits[6:]}")


LAYOUT_NAMES: Final = {
    "hierarchical": LedgerLayout.HIERARCHICAL,
    "longhierarchical": LedgerLayout.LONG_HIERARCHICAL,
    "legacyhierarchical": LedgerLayout.LEGACY_HIERARCHICAL,
    "flat": LedgerLayout.FLAT,
}
"""The names of layouts in BookKeeper's metadata URIs (zk+hierarchical://), by which people call them."""

_SHORT_ONLY: Final = (LedgerLayout.FLAT, LedgerLayout.LEGACY_HIERARCHICAL)
_LAYOUTS: Final[dict[str, dict[str, LedgerLayout]]] = {
    "2": {layout.value: layout for layout in LedgerLayout},
    "1": {"flat": LedgerLayout.FLAT, "hierarchical": LedgerLayout.LEGACY_HIERARCHICAL},
}


class LedgerStore:
    """Which ledgers does the cluster have, and what do their metadata say? Every change is conditional (I2).

    Args:
        root: the znode of the cluster's ledgers.
        rng: makes creator tokens and the instance id.
    """

    def __init__(self, store: MetadataStore, root: str = DEFAULT_ROOT, *, rng: random.Random | None = None) -> None:
        check_path(root)
        self._store = store
        self._root = root
        self._rng = rng if rng is not None else random.SystemRandom()
        self._layout: LedgerLayout | None = None
        self._long_ids: bool | None = None  # not looked yet
        self._reserved: int | None = None
        self._reserving = asyncio.Lock()
        self._joined: dict[int, tuple[Op, ...]] = {}

    @property
    def store(self) -> MetadataStore:
        """The metadata store below."""
        return self._store

    @property
    def root(self) -> str:
        """The znode below which everything of this cluster is."""
        return self._root

    def path(self, ledger_id: int) -> str:
        """Return a ledger's znode, by the cluster's layout; the default one before LAYOUT was read."""
        return (self._layout or LedgerLayout.HIERARCHICAL).path(self._root, ledger_id)

    # ---- cluster ----------------------------------------------------------------------------------------------------

    async def format(self, layout: LedgerLayout | None = None) -> list[str]:
        """Initialise the cluster's tree; an existing tree is verified and completed, never replaced.

        Returns the znodes that were missing. Without a `layout` a new tree gets the hierarchical one. Raises
        CorruptDataError for a LAYOUT that cannot be read, CallerError for a tree of another layout than `layout`, or
        whose ledgers do not show of which it is. Safe to repeat, also after an unknown outcome.
        """
        return await repeat(self._store, lambda: self._format(layout))

    async def _format(self, wanted: LedgerLayout | None) -> list[str]:
        found = await self.stored_layout()
        tops = await self._tops()
        if found is None:
            found = _layout_of(tops, self._root, wanted)
        if wanted not in (None, found):
            raise CallerError(
                f"the ledgers here are laid out by {found.value}; nothing was changed",
                path=join(self._root, "LAYOUT"),
                advice="Name that layout, or none; another layout needs another root",
            )
        available = join(self._root, "available")
        nodes = [Create(self._root), Create(available), Create(join(available, "readonly"))]
        if "LAYOUT" not in tops and not await self._children(join(self._root, "cookies")):
            # An initialised cluster without INSTANCEID keeps none: its bookies' cookies do not have it either.
            instance = uuid.UUID(int=self._rng.getrandbits(128), version=4)
            nodes.append(Create(join(self._root, "INSTANCEID"), str(instance).encode("ascii")))
        nodes.append(Create(join(self._root, "LAYOUT"), found.encode()))
        made: list[str] = []
        for _ in range(MAX_REPEATS):
            missing = [node for node in nodes if await self._store.exists(node.path) is None]
            if missing and missing[0].path == self._root:
                await self._make_ancestors()
            try:
                await self._store.multi(missing)
                made = [node.path for node in missing]
                break
            except NodeExistsError:
                continue  # another process formats it too: see what is left
        await self.layout()
        return made

    async def _make_ancestors(self) -> None:
        parent = parent_of(self._root)
        if parent != "/" and await self._store.exists(parent) is None:
            try:
                await self._store.create(parent, make_parents=True)
            except NodeExistsError:
                pass

    async def layout(self) -> LedgerLayout:
        """Return the cluster's layout, read once, and written where there is none yet.

        Bookies, auto-recovery and clients of Apache BookKeeper do the same: the first that finds no LAYOUT writes the
        one of its configuration, by default the hierarchical one. Apache Pulsar's set-up leaves it to them. Raises
        CallerError where the cluster was never initialised, and where its ledgers are laid out otherwise, which only a
        person can settle.
        """
        if self._layout is None:
            self._layout = await self.stored_layout() or await self._choose_layout()
        return self._layout

    async def stored_layout(self) -> LedgerLayout | None:
        """Return what LAYOUT says; None where there is none. Raises CorruptDataError."""
        path = join(self._root, "LAYOUT")
        try:
            data, _ = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return None
        return LedgerLayout.decode(data, path)

    async def check_initialised(self) -> None:
        """Raise CallerError where no cluster is initialised; nothing is written, also where there is no LAYOUT."""
        self._check_initialised(await self._tops())

    def _check_initialised(self, tops: Sequence[str]) -> None:
        if "available" not in tops and "LAYOUT" not in tops:
            raise CallerError(
                "no BookKeeper cluster is initialised here",
                path=self._root,
                advice="Check servers and path of the ledgers, or initialise the cluster: dlspark cluster init",
            )

    async def _choose_layout(self) -> LedgerLayout:
        tops = await self._tops()
        self._check_initialised(tops)
        layout = _layout_of(tops, self._root, None)
        try:
            await repeat(self._store, lambda: self._store.create(join(self._root, "LAYOUT"), layout.encode()))
        except NodeExistsError:
            found = await self.stored_layout()
            check(found is not None, "LAYOUT is there, and is not", path=self._root)
            return found or layout
        logger.warning("%s had no LAYOUT: %s was written, as Apache BookKeeper's bookies do", self._root, layout.value)
        return layout

    async def _tops(self) -> list[str]:
        return await self._children(self._root)

    # ---- ids --------------------------------------------------------------------------------------------------------

    async def reserve_id(self) -> None:
        """Draw the id of the next `generate_id` ahead of time, so that it need not wait. Raises as `generate_id`."""
        async with self._reserving:
            if self._reserved is None:
                self._reserved = await self._draw_id()

    async def generate_id(self) -> int:
        """Return a ledger id that was never given out before. After a lost answer another one is drawn; the lost id is
        unused.

        Raises CallerError once the ids of a layout with short ids are used up.
        """
        async with self._reserving:  # a reservation that is under way was asked for first: wait for it
            reserved, self._reserved = self._reserved, None
        return await self._draw_id() if reserved is None else reserved

    async def skip_ids(self, count: int) -> None:
        """Pass over the next `count` ids, in one transaction, and a reserved one: they are never given out. In a
        sequence from which no id was drawn yet nothing is passed over."""
        if count < 1:
            return
        async with self._reserving:
            self._reserved = None
        layout = await self.layout()
        prefix = self._short_ids(layout)
        if self._long_ids and layout not in _SHORT_ONLY:
            hobs = await self._hobs()
            prefix = join(self._idgen_long, f"HOB-{hobs[-1] if hobs else 1:010d}", "ID-")
        draws = [Create(prefix, ephemeral=True, sequential=True)] * count
        try:
            created = await repeat(self._store, lambda: self._store.multi(draws))
            await repeat(self._store, lambda: self._store.multi([Delete(str(path)) for path in created]))
        except NoNodeError:
            pass

    def _short_ids(self, layout: LedgerLayout) -> str:
        """Return the beginning of the znodes whose numbers are ids of 31 bits."""
        return join(self._root, "ID-" if layout is LedgerLayout.FLAT else "idgen/ID-")

    async def _draw_id(self) -> int:
        layout = await self.layout()
        if layout in _SHORT_ONLY:
            number = await self._next_suffix(self._short_ids(layout))
            if number is None:
                raise CallerError(f"the ids of layout {layout.value} are used up", path=self._root)
            return number
        # Looked for once: where others begin to use long ids later, the short ones are used up, and it shows.
        if self._long_ids is None:
            self._long_ids = await repeat(self._store, lambda: self._store.exists(self._idgen_long)) is not None
        if not self._long_ids:
            number = await self._next_suffix(self._short_ids(layout))
            if number is not None:
                return number
            await repeat(self._store, lambda: self._make(self._idgen_long))
            self._long_ids = True
        return await self._generate_long_id()

    @property
    def _idgen_long(self) -> str:
        return join(self._root, "idgen-long")

    async def _generate_long_id(self) -> int:
        """Return a new id: high order bits from the newest HOB znode, the low 31 from the sequence below it."""
        for _ in range(MAX_REPEATS):
            hobs = await self._hobs()
            high = hobs[-1] if hobs else 1
            low = await self._next_suffix(join(self._idgen_long, f"HOB-{high:010d}", "ID-"))
            await self._drop_old_hobs(hobs)
            if low is not None:
                return high << 32 | low
            following = join(self._idgen_long, f"HOB-{high + 1:010d}")
            await repeat(self._store, lambda path=following: self._make(path))  # type: ignore[misc]
        raise InvariantViolation("every new HOB znode overflowed at once", path=self._idgen_long)

    async def _hobs(self) -> list[int]:
        """Return the high order bits that are in use, ascending."""
        names, _ = await repeat(self._store, lambda: self._store.children(self._idgen_long))
        return sorted(int(match[1]) for match in map(_HOB.fullmatch, names) if match)

    async def _next_suffix(self, prefix: str) -> int | None:
        """Return the number that a new ephemeral sequential znode gets; None when the 31 bits are used up."""
        created = await repeat(
            self._store, lambda: self._store.create(prefix, ephemeral=True, sequential=True, make_parents=True)
        )
        # The prefix ends with a hyphen of its own: only what follows it is the number, negative after an overflow.
        suffix = _SUFFIX.fullmatch(created.removeprefix(prefix))
        if suffix is None:
            raise InvariantViolation("a sequential znode has no number", path=created)
        try:
            await self._store.delete(created)
        except (NoNodeError, MetadataUnavailableError, OutcomeUnknownError):
            pass  # it is ephemeral: it goes with the session at the latest
        number = int(suffix[0])
        return number if 0 <= number < FIRST_LONG_ID else None

    async def _drop_old_hobs(self, hobs: list[int]) -> None:
        for high in hobs[:-_KEPT_HOBS]:
            try:
                await self._store.delete(join(self._idgen_long, f"HOB-{high:010d}"), 0)
            except (NoNodeError, NotEmptyError, BadVersionError, MetadataUnavailableError, OutcomeUnknownError):
                pass  # best effort: another process does it, or the next id

    async def _make(self, path: str) -> None:
        try:
            await self._store.create(path, make_parents=True)
        except NodeExistsError:
            pass

    # ---- metadata ---------------------------------------------------------------------------------------------------

    async def create(self, ledger_id: int, metadata: LedgerMetadata) -> Versioned[LedgerMetadata]:
        """Store the metadata of a new ledger. Its creator token, drawn here unless given, resolves a lost answer.
        Raises NodeExistsError when the id is taken."""
        check(metadata.format_version == 3, "new ledgers are written in format 3: it carries the creator token")
        await self.layout()
        if metadata.creator_token is None:
            metadata = replace(metadata, creator_token=self._rng.getrandbits(63))
        path, data = self.path(ledger_id), metadata.encode()
        joined = self._joined.pop(ledger_id, ())
        return await repeat(self._store, lambda: self._create(ledger_id, path, metadata, data, joined))

    def join_creation(self, ledger_id: int, ops: Sequence[Op]) -> None:
        """Have the next `create` of this id apply `ops` in the transaction that makes the ledger's znode: both or none.

        An operation of `ops` that is refused raises its own error from `create`, with nothing created; only a
        NodeExistsError reads as an id that is taken.
        """
        self._joined[ledger_id] = tuple(ops)

    async def _create(
        self, ledger_id: int, path: str, metadata: LedgerMetadata, data: bytes, joined: Sequence[Op]
    ) -> Versioned[LedgerMetadata]:
        try:
            if joined:
                await self._create_joined(Create(path, data), joined)
            else:
                await self._store.create(path, data, make_parents=True)
        except NodeExistsError as error:
            # Our own token: an earlier try was applied, and its answer was lost.
            found = await self._found(ledger_id, path)
            if found is None or found.value.creator_token != metadata.creator_token:
                raise NodeExistsError("the ledger id is taken", ledger_id=ledger_id, path=path) from error
            return found
        return Versioned(metadata, 0)

    async def _create_joined(self, op: Create, joined: Sequence[Op]) -> None:
        """Create the ledger in one multi; missing parents of its znode are made as `create` would."""

        async def multi(first: Create) -> str:
            if first is not op:
                return await self._store.create(first.path)
            try:
                await self._store.multi([op, *joined])
            except NoNodeError as error:
                if error.op_index:
                    raise _Refused(error) from error  # nothing to do with the ledger's parents
                raise
            return op.path

        try:
            await create_with_parents(multi, op)
        except _Refused as refused:
            raise refused.error from refused

    async def _found(self, ledger_id: int, path: str) -> Versioned[LedgerMetadata] | None:
        try:
            return await self._read(ledger_id, path, None)
        except NoNodeError:
            return None

    async def read(self, ledger_id: int, watch: Watcher | None = None) -> Versioned[LedgerMetadata]:
        """Return a ledger's metadata and version. Raises NoNodeError when there is no such ledger, CorruptDataError."""
        await self.layout()
        path = self.path(ledger_id)
        return await repeat(self._store, lambda: self._read(ledger_id, path, watch))

    async def _read(self, ledger_id: int, path: str, watch: Watcher | None) -> Versioned[LedgerMetadata]:
        try:
            data, stat = await self._store.get(path, watch)
        except NoNodeError as error:
            raise NoNodeError("no such ledger", ledger_id=ledger_id, path=path) from error
        return Versioned(LedgerMetadata.decode(data, path), stat.version)

    async def write(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        *,
        guard: Callable[[], None] | None = None,
    ) -> Versioned[LedgerMetadata]:
        """Replace a ledger's metadata if it still has `version`: the compare-and-set of all ledger state changes.

        `guard` is called right before each request is sent, and raises where the write must not be made any more.

        Raises BadVersionError when another client was first (read again and decide anew), NoNodeError, or
        OutcomeUnknownError when the answer was lost and the znode has moved on further than one version.
        """
        # Never -1, which matches any version: docs/reference/znodes.md#conditional-sets.
        check(version >= 0, f"ledger metadata is only ever set with the version read, not {version}")
        await self.layout()
        path, data = self.path(ledger_id), metadata.encode()
        lost: OutcomeUnknownError | None = None
        for _ in range(MAX_REPEATS):
            if guard is not None:
                guard()
            try:
                return Versioned(metadata, (await self._store.put(path, data, version)).version)
            except MetadataUnavailableError:
                if not await reconnected(self._store, REPEAT_TIMEOUT_MS):
                    raise
                continue
            except OutcomeUnknownError as error:
                lost = error
            except (BadVersionError, NoNodeError) as error:
                # After a lost answer it may be our own write that has moved the version: look before saying so (I2).
                if lost is None:
                    raise _version_error_at(error, ledger_id) from error
            found, found_version = await self._reread(path, lost)
            if found_version == version + 1 and found == data:
                return Versioned(metadata, found_version)
            if found_version == version + 1:
                raise BadVersionError("another client's update was first", ledger_id=ledger_id, path=path) from lost
            if found_version != version:
                raise lost  # our write may be one of the steps in between: only the caller can judge
            # Unchanged: send it again. Both requests depend on one version, so at most one of them is applied.
        raise lost or MetadataUnavailableError("the session kept being lost", ledger_id=ledger_id, path=path)

    async def _reread(self, path: str, lost: OutcomeUnknownError) -> tuple[bytes, int]:
        """Return data and version after a lost answer, as committed now."""

        async def look() -> tuple[bytes, int]:
            await self._store.sync(path)  # the server that answers may lag behind the one that applied the write
            data, stat = await self._store.get(path)
            return data, stat.version

        try:
            return await repeat(self._store, look)
        except NoNodeError as error:
            raise lost from error

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger's metadata; a missing ledger is a success. Parents left empty go too."""
        await self.layout()
        path = self.path(ledger_id)
        await repeat(self._store, lambda: self._delete(path))

    async def _delete(self, path: str) -> None:
        try:
            await self._store.delete(path)
        except NoNodeError:
            pass
        parent = parent_of(path)
        while parent != self._root:
            try:
                await self._store.delete(parent)
            except NoNodeError:
                pass
            except NotEmptyError:
                return
            parent = parent_of(parent)

    # ---- scan -------------------------------------------------------------------------------------------------------

    async def ids(self) -> AsyncIterator[int]:
        """Yield every ledger id, ascending. What is created or deleted meanwhile may or may not show; any failure to
        list is raised, a missing root too, so an id that does not come was not there (I13). A caller that must not miss
        what other clients have created syncs the store first."""
        layout = await self.layout()
        tops = (await repeat(self._store, lambda: self._store.children(self._root)))[0]
        if layout is LedgerLayout.FLAT:
            for number in sorted(int(match[1]) for match in map(_FLAT_LEAF.fullmatch, tops) if match):
                yield number
            return
        for width, levels in ((2, 1), (3, 3)):  # short ids before long ones: ascending
            for top in tops:
                if re.fullmatch(rf"\d{{{width}}}", top):
                    async for number in self._ids_below(join(self._root, top), top, levels):
                        yield number

    async def _ids_below(self, path: str, digits: str, levels: int) -> AsyncIterator[int]:
        """Yield ids whose decimal form begins with `digits`; `levels` of inner znodes are still below `path`."""
        for name in await self._children(path):
            if levels:
                if re.fullmatch(r"\d{4}", name):
                    async for number in self._ids_below(join(path, name), digits + name, levels - 1):
                        yield number
                continue
            match = _LEAF.fullmatch(name)
            if match:
                yield int(digits + match[1])

    async def _children(self, path: str) -> list[str]:
        try:
            return (await repeat(self._store, lambda: self._store.children(path)))[0]
        except NoNodeError:
            return []  # not there, or pruned since its parent was listed (docs/reference/znodes.md#parents)


def _layout_of(tops: Sequence[str], root: str, wanted: LedgerLayout | None) -> LedgerLayout:
    """Return the layout that a tree without LAYOUT is given: the hierarchical one, or `wanted`.

    Raises CallerError where ledgers are there that it would not find: they would look deleted, and be collected.
    """
    chosen = wanted or LedgerLayout.HIERARCHICAL
    flat = any(map(_FLAT_LEAF.fullmatch, tops))
    short = any(map(_SHORT_TOP.fullmatch, tops))
    long = any(map(_LONG_TOP.fullmatch, tops))
    suits = {
        LedgerLayout.FLAT: not (short or long),
        LedgerLayout.HIERARCHICAL: not flat and (short or not long),
        LedgerLayout.LEGACY_HIERARCHICAL: not (flat or long),
        LedgerLayout.LONG_HIERARCHICAL: not (flat or short),
    }
    if suits[chosen]:
        return chosen
    named = [name for name, kind in LAYOUT_NAMES.items() if suits[kind]]
    raise CallerError(
        f"there is no LAYOUT here, and ledgers that {chosen.value} would not find; nothing was changed",
        path=root,
        advice=(
            f"Say how they are laid out: dlspark cluster init --layout {' (or '.join(named)}{')' * (len(named) - 1)}"
            if named
            else "Ledgers of several layouts are mixed here: give each cluster a root of its own"
        ),
    )


class _Refused(Exception):
    """Carries the error of a joined operation past the making of parents."""

    def __init__(self, error: NoNodeError) -> None:
        super().__init__(str(error))
        self.error = error


def _version_error_at(error: BadVersionError | NoNodeError, ledger_id: int) -> BadVersionError | NoNodeError:
    """Return the same error, which names the ledger."""
    return type(error)(error.message, ledger_id=ledger_id, path=error.path)
