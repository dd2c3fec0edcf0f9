"""Audits: BookKeeper's ledgers against everything that names ledgers, and the space that they take.

`audit_ledgers` reads only. It calls a ledger an orphan where, by everything that it can see, deleting it does no harm:

    named anywhere on the ensembles it looks at    in use, whatever namespace, allocator or sink names it
    younger than `min_age_ms`                      young: it may be about to be named; Java names ledgers late
    with custom metadata                           foreign: another application of the same BookKeeper marked it
    while something could not be read              undecided: that may name it
    else                                           orphan

It looks at the whole of the ZooKeeper ensembles of the given namespaces and of their ledgers. Namespaces whose metadata
are on yet another ensemble must be given as well, or their ledgers look like orphans; see docs/cli.md.

`delete_ledgers` deletes orphans, and never a ledger that is in use, also if it is asked to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dlspark.core.administration.references import Reference, Unreadable, Use, find_references, unnamed
from dlspark.core.services import Services
from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.foundation.errors import CallerError, CorruptDataError, DistributedLogError, NoNodeError
from metadata.foundation.pacing import for_each
from metadata.retry import repeat
from metadata.store import MetadataStore

MIN_AGE_MS: Final = 24 * 60 * 60 * 1000
"""How old a ledger must be before it can be an orphan: longer than any client takes between making and naming it."""
_AT_ONCE: Final = 32


class UnnamedLedgerState(str, Enum):
    """The verdict of an audit on a ledger; the table at the top says when. GONE: it was deleted meanwhile."""

    ORPHAN = "orphan"
    YOUNG = "young"
    FOREIGN = "foreign"
    UNDECIDED = "undecided"
    IN_USE = "in use"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class UnnamedLedger:
    """A ledger that nothing names."""

    ledger_id: int
    verdict: UnnamedLedgerState
    created_ms: int
    """By ZooKeeper's clock, milliseconds since the epoch."""
    length: int | None
    """Payload bytes; None while it is open, or where its metadata cannot be read."""


@dataclass(frozen=True, slots=True)
class MissingLedger:
    """A segment whose ledger is not there."""

    ledger_id: int
    path: str
    in_progress: bool


@dataclass(frozen=True, slots=True)
class LedgerAudit:
    """The result of an audit."""

    ledgers: int
    """Ledgers in the cluster when it began."""
    uses: dict[str, int]
    """How many of those are named for what (`Use`)."""
    unnamed: tuple[UnnamedLedger, ...]
    missing: tuple[MissingLedger, ...]
    shared: tuple[tuple[int, tuple[str, ...]], ...]
    """Ledgers that are two segments at once, and where."""
    unreadable: tuple[Unreadable, ...]

    @property
    def orphans(self) -> list[int]:
        """Ids of the ledgers that may be deleted."""
        return [one.ledger_id for one in self.unnamed if one.verdict is UnnamedLedgerState.ORPHAN]

    @property
    def clean(self) -> bool:
        """True if there is nothing to be done about it."""
        return not (self.orphans or self.missing or self.shared or self.unreadable)


async def audit_ledgers(namespaces: Sequence[Services], *, min_age_ms: int = MIN_AGE_MS) -> LedgerAudit:
    """Compare the ledgers of a cluster with what names them. All namespaces must have their ledgers in that cluster.

    Raises CallerError where they have not, and the metadata stores' errors: then nothing is known.
    """
    ledgers = _one_cluster(namespaces)
    stores = _stores(namespaces)
    await repeat(ledgers.store, lambda: ledgers.store.sync(ledgers.root))
    # The ids before the names: a ledger that is made and named meanwhile is then not in `ids`, and cannot be an orphan.
    ids = {ledger_id async for ledger_id in ledgers.ids()}
    named: dict[int, list[Reference]] = {}
    unreadable: dict[str, Unreadable] = {}
    for store in stores:
        found = await find_references(store)
        unreadable |= {one.path: one for one in found.unreadable}
        for ledger_id, references in found.by_ledger.items():
            named.setdefault(ledger_id, []).extend(references)
    left, more = await unnamed(stores, ids - named.keys())
    unreadable |= {one.path: one for one in more}
    judge = _Judge(namespaces[0], min_age_ms, complete=not unreadable)
    judged = [await judge.unnamed(ledger_id) for ledger_id in sorted(left)]
    return LedgerAudit(
        ledgers=len(ids),
        uses={use.value: sum(any(one.use is use for one in named[i]) for i in ids & named.keys()) for use in Use},
        unnamed=tuple(one for one in judged if one.verdict is not UnnamedLedgerState.GONE),
        missing=tuple(await _missing(namespaces, named, ids)),
        shared=tuple(_shared(named)),
        unreadable=tuple(unreadable.values()),
    )


def _one_cluster(namespaces: Sequence[Services]) -> LedgerStore:
    clusters = {(frozenset(one.binding.bk_servers.split(",")), one.ledger_store.root) for one in namespaces}
    if len(clusters) != 1:
        raise CallerError(
            f"the namespaces have their ledgers in {len(clusters)} clusters; nothing was audited",
            advice="Audit the namespaces of one BookKeeper cluster at a time",
        )
    return namespaces[0].ledger_store


def _stores(namespaces: Sequence[Services]) -> list[MetadataStore]:
    """Return a session with each ensemble; two bindings that spell one ensemble differently count as two."""
    found: dict[object, MetadataStore] = {}
    for one in namespaces:
        found.setdefault(frozenset(one.binding.dl_servers.split(",")), one.store)
        found.setdefault(frozenset(one.binding.bk_servers.split(",")), one.ledger_store.store)
    return list(found.values())


async def _missing(
    namespaces: Sequence[Services], named: dict[int, list[Reference]], ids: set[int]
) -> list[MissingLedger]:
    """Return segments of the given namespaces that have no ledger; looked for again, as some ledgers are newer than
    `ids`."""
    roots = tuple(f"{one.logs.namespace_path}/" for one in namespaces)
    found = []
    for ledger_id in sorted(named.keys() - ids):
        for one in named[ledger_id]:
            if one.use is not Use.SEGMENT or not one.path.startswith(roots) or one.segment is None:
                continue
            if await _exists(namespaces[0], ledger_id) or not await _still_named(namespaces, one):
                continue
            found.append(MissingLedger(ledger_id, one.path, one.segment.in_progress))
    return found


async def _exists(services: Services, ledger_id: int) -> bool:
    store = services.ledger_store
    await store.layout()
    return await repeat(store.store, lambda: store.store.exists(store.path(ledger_id))) is not None


async def _still_named(namespaces: Sequence[Services], one: Reference) -> bool:
    """Return whether the segment is still listed: where it was purged meanwhile its ledger may well be gone."""
    for services in namespaces:
        if one.path.startswith(f"{services.logs.namespace_path}/"):
            await repeat(services.store, lambda: services.store.sync(one.path))  # noqa: B023
            return await repeat(services.store, lambda: services.store.exists(one.path)) is not None  # noqa: B023
    return False


def _shared(named: dict[int, list[Reference]]) -> list[tuple[int, tuple[str, ...]]]:
    """Return ledgers that more than one segment has, with the segments' znodes.

    A segment that was completed between two looks shows by both of its names, and counts once.
    """
    found = []
    for ledger_id, references in sorted(named.items()):
        segments = {(r.path.rpartition("/")[0], r.segment.lssn): r.path for r in references if r.segment is not None}
        if len(segments) > 1:
            found.append((ledger_id, tuple(sorted(segments.values()))))
    return found


class _Judge:
    """Says what a ledger is that nothing names."""

    def __init__(self, services: Services, min_age_ms: int, *, complete: bool) -> None:
        self._services = services
        self._min_age_ms = min_age_ms
        self._complete = complete

    async def unnamed(self, ledger_id: int) -> UnnamedLedger:
        ledgers = self._services.ledger_store
        await ledgers.layout()
        stat = await repeat(ledgers.store, lambda: ledgers.store.exists(ledgers.path(ledger_id)))
        metadata: LedgerMetadata | None = None
        if stat is not None:
            try:
                metadata = (await ledgers.read(ledger_id)).value
            except NoNodeError:
                stat = None
            except CorruptDataError:
                pass  # Undecided: its metadata do not show what it belongs to.
        if stat is None:
            return UnnamedLedger(ledger_id, UnnamedLedgerState.GONE, 0, None)
        length = metadata.length if metadata is not None and metadata.is_closed else None
        return UnnamedLedger(ledger_id, self._verdict(metadata, stat.ctime_ms), stat.ctime_ms, length)

    def _verdict(self, metadata: LedgerMetadata | None, created_ms: int) -> UnnamedLedgerState:
        if metadata is None or not self._complete:
            return UnnamedLedgerState.UNDECIDED
        if metadata.custom:
            return UnnamedLedgerState.FOREIGN
        if self._services.clock.now_ms() - created_ms < self._min_age_ms:
            return UnnamedLedgerState.YOUNG
        return UnnamedLedgerState.ORPHAN


# ---------------------------------------------------------------------- deleting


@dataclass(frozen=True, slots=True)
class LedgerDeletion:
    """The outcome for one ledger that was to be deleted."""

    ledger_id: int
    verdict: UnnamedLedgerState
    deleted: bool


async def delete_ledgers(
    namespaces: Sequence[Services],
    ledgers: Iterable[int],
    *,
    min_age_ms: int = MIN_AGE_MS,
    force: bool = False,
    dry_run: bool = False,
) -> list[LedgerDeletion]:
    """Delete those of `ledgers` that are orphans; with `force` young and foreign ones, too.

    A ledger that a znode names, or may name, is left alone also with `force`: its log, pool or sink deletes it. With
    `dry_run` nothing is deleted, and `deleted` says what would be. May be called again after any error.
    """
    cluster = _one_cluster(namespaces)
    wanted = sorted(set(ledgers))
    # Looked for anew, not taken from an audit: a ledger may have been named since.
    left, unreadable = await unnamed(_stores(namespaces), wanted)
    judge = _Judge(namespaces[0], min_age_ms, complete=not unreadable)
    done = []
    for ledger_id in wanted:
        verdict = (await judge.unnamed(ledger_id)).verdict if ledger_id in left else UnnamedLedgerState.IN_USE
        doomed = verdict is UnnamedLedgerState.ORPHAN or (
            force and verdict in (UnnamedLedgerState.YOUNG, UnnamedLedgerState.FOREIGN)
        )
        if doomed and not dry_run:
            await cluster.delete(ledger_id)
        done.append(LedgerDeletion(ledger_id, verdict, doomed))
    return done


# ---------------------------------------------------------------------- space


@dataclass(slots=True)
class Space:
    """Payload bytes of some ledgers, once each, and with all their copies."""

    ledgers: int = 0
    bytes: int = 0
    stored_bytes: int = 0
    unknown: int = 0
    """Ledgers whose length could not be learned; they are counted in `ledgers` alone."""

    def add(self, length: int | None, write_quorum: int) -> None:
        """Count a ledger of `length` payload bytes (None: not known), each of which is stored `write_quorum` times."""
        self.ledgers += 1
        if length is None:
            self.unknown += 1
        else:
            self.bytes += length
            self.stored_bytes += length * write_quorum


async def log_space(services: Services, names: Iterable[str], group: Callable[[str], str]) -> dict[str, Space]:
    """Sum up the space of the logs' segments, by what `group` makes of their names. Logs and ledgers that go meanwhile
    count as nothing."""
    found: dict[str, Space] = {}

    async def measure(name: str) -> None:
        try:
            segments = await services.logs.hot_segments(name)
        except CallerError:  # It has just been deleted.
            return
        space = found.setdefault(group(name), Space())
        for segment in segments:
            await _add_ledger(services, segment.ledger_id, space)

    await for_each(names, _AT_ONCE, measure)
    return dict(sorted(found.items()))


async def cluster_space(services: Services) -> Space:
    """Sum up the space of all the ledgers in the cluster, those of other applications too."""
    space = Space()
    await for_each(services.ledger_store.ids(), _AT_ONCE, lambda ledger_id: _add_ledger(services, ledger_id, space))
    return space


async def _add_ledger(services: Services, ledger_id: int, space: Space) -> None:
    try:
        metadata = (await services.ledger_store.read(ledger_id)).value
    except NoNodeError:
        return
    except CorruptDataError:
        space.add(None, 0)
        return
    length = metadata.length if metadata.is_closed else await _open_length(services, ledger_id, metadata)
    space.add(length, metadata.write_quorum)


async def _open_length(services: Services, ledger_id: int, metadata: LedgerMetadata) -> int | None:
    """Return what the last confirmed entry of an open ledger says; its writer is not disturbed."""
    try:
        reader = await services.ledgers.open(ledger_id, password=metadata.password or b"", recover=False)
        try:
            last = reader.last_add_confirmed
            return (await reader.read(last, last))[0].length if last >= 0 else 0
        finally:
            await reader.close()
    except DistributedLogError:
        return None
