"""Under-replication: which ledgers lack copies, which worker repairs which, and whether any may (`ReplicationStore`).
Which to repair next is `metadata.bookkeeper.repairs`'s.

What the znodes hold, and the rules of their use: docs/reference/znodes.md#under-replication.

    <root>/underreplication
        LAYOUT                                         `type: "BASIC"`, `version: 1`
        ledgers/0000/0000/0000/3039/urL0000012345      ledger 12345 lacks copies; the path is its id in hexadecimal
        locks/urL0000012345                            ephemeral: a worker repairs it, or a bookie collects it
        disable                                        while it is there, nothing is audited or repaired
        lostBookieRecoveryDelay                        seconds to wait for a single lost bookie, as text

*Marks and their versions.* A mark is deleted only with the version that the repairer read after it had the lock. Every
new loss sets the mark, which moves its version on, so that a repairer who looked before the loss cannot remove it. A
mark that says everything already is left alone, unless the ledger is locked: the lock's holder may have looked before.

*Locks* are ephemeral and belong to one session. A lock ends with its session; its former holder must not delete
anything: by then another worker may hold it.

The auditors' own znodes (votes, times of the last checks) are `metadata.bookkeeper.auditors`'.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from metadata.bookkeeper.ledgers import DEFAULT_ROOT, MAX_LEDGER_ID, Versioned
from metadata.bookkeeper.protos import (
    LOCK_DATA,
    REREPLICATION_LAYOUT,
    UNDERREPLICATED_LEDGER,
    format_text,
    parse_text,
)
from metadata.foundation.errors import (
    BadVersionError,
    CallerError,
    CorruptDataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OutcomeUnknownError,
)
from metadata.retry import MAX_REPEATS, repeat
from metadata.store import Create, MetadataStore, Watcher, check_path, join, parent_of

FOLDER: Final = "underreplication"
_LAYOUT_TYPE: Final = "BASIC"
_LAYOUT_VERSION: Final = 1
_LEVELS: Final = 4
_PART: Final = re.compile(r"[0-9a-f]{4}")
_LEAF: Final = re.compile(r"urL(\d{10,19})")
_DELAY: Final = re.compile(rb"\s*\d{1,10}\s*")


@dataclass(frozen=True, slots=True)
class UnderReplicatedLedger:
    """A mark: the bookies whose copies are missing, and when that was last found (None: not known)."""

    missing: tuple[str, ...]
    ctime_ms: int | None = None

    def encode(self) -> bytes:
        """Return the text of the ledger's mark."""
        message: Any = UNDERREPLICATED_LEDGER()
        message.replica.extend(self.missing)
        if self.ctime_ms is not None:
            message.ctime = self.ctime_ms
        return format_text(message)

    @classmethod
    def decode(cls, data: bytes, path: str) -> UnderReplicatedLedger:
        """Read a mark from its znode's data. Raises CorruptDataError."""
        message: Any = parse_text(UNDERREPLICATED_LEDGER, data, path)
        return cls(tuple(message.replica), message.ctime if message.HasField("ctime") else None)


@dataclass(frozen=True, slots=True)
class LedgerLock:
    """A lock that this process holds, for as long as the session it was taken in."""

    ledger_id: int
    path: str
    session_id: int


_HELD: Final[WeakKeyDictionary[MetadataStore, set[str]]] = WeakKeyDictionary()
"""Paths of the locks that objects of this process hold or are taking, by store: what else carries our session is the
remains of a lost answer."""


def mark_name(ledger_id: int) -> str:
    """Return the last component of a mark's path, and of a lock's."""
    if not 0 <= ledger_id <= MAX_LEDGER_ID:
        raise CallerError(f"ledger id {ledger_id} is not in 0..{MAX_LEDGER_ID}", ledger_id=ledger_id)
    return f"urL{ledger_id:010d}"


def folder_of(ledger_id: int) -> str:
    """Return the folder of a ledger's mark, below that of all marks: four parts, which no other ledger shares."""
    digits = f"{ledger_id:016x}"
    return "/".join((digits[:4], digits[4:8], digits[8:12], digits[12:]))


def ledger_of(folder: str) -> int | None:
    """Return the ledger that may have its mark in a folder, None for one of the outer folders."""
    parts = folder.split("/")
    return int("".join(parts), 16) if len(parts) == _LEVELS else None


class ReplicationStore:
    """Which ledgers lack copies, and which of them does a worker repair? The marks, locks and switches of one cluster.

    Args:
        store: the session, whose end gives its locks back.
        root: the znode of the cluster's ledgers; the cluster must be initialised.
    """

    def __init__(self, store: MetadataStore, root: str = DEFAULT_ROOT) -> None:
        check_path(root)
        self._store = store
        self._base = join(root, FOLDER)
        self._marks = join(self._base, "ledgers")
        self._locks = join(self._base, "locks")
        self._layout = join(self._base, "LAYOUT")
        self._disable = join(self._base, "disable")
        self._delay = join(self._base, "lostBookieRecoveryDelay")
        self._held = _HELD.setdefault(store, set())

    @property
    def store(self) -> MetadataStore:
        """The metadata store below."""
        return self._store

    def mark_path(self, ledger_id: int) -> str:
        """Return the znode of a ledger's mark."""
        name = mark_name(ledger_id)
        return join(self._marks, folder_of(ledger_id), name)

    def lock_path(self, ledger_id: int) -> str:
        """Return the ephemeral znode of the worker that repairs this ledger."""
        return join(self._locks, mark_name(ledger_id))

    async def prepare(self) -> None:
        """Make what is missing of the tree. Raises CorruptDataError where its LAYOUT is another than ours."""
        message: Any = REREPLICATION_LAYOUT(type=_LAYOUT_TYPE, version=_LAYOUT_VERSION)
        await self._ensure(self._layout, format_text(message))
        data, _ = await repeat(self._store, lambda: self._store.get(self._layout))
        found: Any = parse_text(REREPLICATION_LAYOUT, data, self._layout)
        if (found.type, found.version) != (_LAYOUT_TYPE, _LAYOUT_VERSION):
            raise CorruptDataError(
                f"auto-recovery's layout is {found.type!r}, version {found.version}",
                path=self._layout,
                advice="Another kind of auto-recovery works on this cluster; do not run both",
            )
        await self._ensure(self._marks)
        await self._ensure(self._locks)

    async def _ensure(self, path: str, data: bytes = b"") -> bool:
        """Create a znode with its parents; False where it was there."""

        async def create() -> bool:
            try:
                await self._store.create(path, data, make_parents=True)
            except NodeExistsError:
                return False
            return True

        return await repeat(self._store, create)

    # ---- marks ------------------------------------------------------------------------------------------------------

    async def mark(self, ledger_id: int, missing: Iterable[str], now_ms: int | None = None) -> bool:
        """Publish that these bookies' copies of a ledger are missing; False where the mark said so already.

        `now_ms` becomes the mark's time. A repairer that looked at the ledger before this call will not remove the
        mark. Safe to repeat.
        """
        wanted = tuple(dict.fromkeys(missing))
        if not wanted:
            raise CallerError("a ledger that lacks no copy is not marked", ledger_id=ledger_id)
        return await self._publish(ledger_id, wanted, now_ms)

    async def mark_placement(self, ledger_id: int, now_ms: int | None = None) -> bool:
        """Publish that a ledger is to be looked at though no copy is missing: its copies lie where they should not. As
        Java's auditor does, with a mark that names no bookie; a worker that moves nothing removes it. Else as `mark`.
        """
        return await self._publish(ledger_id, (), now_ms)

    async def _publish(self, ledger_id: int, wanted: tuple[str, ...], now_ms: int | None) -> bool:
        path = self.mark_path(ledger_id)
        for _ in range(MAX_REPEATS):
            try:
                return await repeat(self._store, partial(self._mark, ledger_id, path, wanted, now_ms))
            except (BadVersionError, NoNodeError, NodeExistsError):
                continue  # repaired, or marked by another process, in between: look again
        raise BadVersionError("the mark kept changing while it was being set", ledger_id=ledger_id, path=path)

    async def _mark(self, ledger_id: int, path: str, wanted: tuple[str, ...], now_ms: int | None) -> bool:
        found = await self.read(ledger_id)
        if found is None:
            await self._create_mark(path, UnderReplicatedLedger(wanted, now_ms).encode())
            return True
        merged = tuple(dict.fromkeys((*found.value.missing, *wanted)))
        news = merged != found.value.missing
        # While the ledger is locked, the mark is set even as it is: its holder may have looked at the copies before
        # this loss, and the new version keeps it from removing the mark.
        if not news and await self._store.exists(self.lock_path(ledger_id)) is None:
            return False
        # Since when it is not repaired: what is found again keeps its time.
        keeps = now_ms is None or (not news and found.value.ctime_ms is not None)
        ctime_ms = found.value.ctime_ms if keeps else now_ms
        await self._store.put(path, UnderReplicatedLedger(merged, ctime_ms).encode(), found.version)
        return news

    async def _create_mark(self, path: str, data: bytes) -> None:
        """Create a mark in one write instead of three in the usual case, which counts where a lost bookie has very many
        ledgers: of the folders only the innermost is missing, since hardly any two ledgers share it.
        """
        try:
            await self._store.multi([Create(parent_of(path)), Create(path, data)])
        except (NoNodeError, NodeExistsError):
            await self._store.create(path, data, make_parents=True)

    async def read(self, ledger_id: int) -> Versioned[UnderReplicatedLedger] | None:
        """Return a ledger's mark, None where it has none. Raises CorruptDataError."""
        path = self.mark_path(ledger_id)
        try:
            data, stat = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return None
        return Versioned(UnderReplicatedLedger.decode(data, path), stat.version)

    async def remove_mark(self, ledger_id: int, version: int) -> bool:
        """Delete a mark that still has `version`, and up to four parents that this leaves empty.

        False where it was marked again meanwhile, or where the answer was lost: that is not repeated, because a mark
        made anew has the same version as the one before. A mark that is gone is a success.
        """
        parent = path = self.mark_path(ledger_id)
        try:
            await self._store.delete(path, version)
        except NoNodeError:
            pass
        except (BadVersionError, MetadataUnavailableError, OutcomeUnknownError):
            return False
        for _ in range(_LEVELS):
            parent = parent_of(parent)
            try:
                await self._store.delete(parent)
            except NoNodeError:
                continue
            except (NotEmptyError, MetadataUnavailableError, OutcomeUnknownError):
                break  # in use; or left for the next removal: an empty folder does no harm
        return True

    async def marked(self) -> AsyncIterator[int]:
        """Yield ids of all marked ledgers, ascending. What changes meanwhile may or may not show."""
        folders = [""]
        while folders:
            folder = folders.pop()
            inner, ledgers = await self.folder(folder)
            folders.extend(reversed(inner))
            for ledger_id in ledgers:
                yield ledger_id

    async def folder(self, name: str, watch: Watcher | None = None) -> tuple[list[str], list[int]]:
        """Return a folder of marks (the outermost is ""): its folders and its ledgers, ascending. `watch` hears of a
        change.

        A folder that is gone counts as empty: it was pruned since its parent was listed
        (docs/reference/znodes.md#parents).
        """
        path = join(self._marks, *name.split("/")) if name else self._marks
        try:
            names, _ = await repeat(self._store, lambda: self._store.children(path, watch))
        except NoNodeError:
            return [], []
        if name.count("/") == _LEVELS - 1 and name:
            return [], sorted(int(match[1]) for match in map(_LEAF.fullmatch, names) if match)
        return [f"{name}/{part}" if name else part for part in names if _PART.fullmatch(part)], []

    # ---- locks ------------------------------------------------------------------------------------------------------

    async def lock(self, ledger_id: int, owner: str) -> LedgerLock | None:
        """Take a ledger's lock for this session; None where it is taken, also by this process. `owner` is for people.

        After an error a lock may be left by a lost answer: it is found as ours when it is taken again, and ends with
        the session.
        """
        path = self.lock_path(ledger_id)
        if path in self._held:
            return None
        self._held.add(path)
        message: Any = LOCK_DATA(bookieId=owner)
        try:
            session_id = await self._take_lock(path, format_text(message))
        except BaseException:
            self._held.discard(path)
            raise
        if session_id is None:
            self._held.discard(path)
            return None
        return LedgerLock(ledger_id, path, session_id)

    async def _take_lock(self, path: str, data: bytes) -> int | None:
        """Create the lock; the id of the session that holds it, None where it is another's."""

        async def take() -> int | None:
            session_id = self._store.session_id
            try:
                await self._store.create(path, data, ephemeral=True, make_parents=True)
            except NodeExistsError:
                stat = await self._store.exists(path)
                session_id = self._store.session_id
                # No other object of this process holds it (`_HELD`): an answer was lost, and the lock is ours.
                return session_id if stat is not None and stat.ephemeral_owner == session_id else None
            return session_id

        return await repeat(self._store, take)

    def holds(self, lock: LedgerLock) -> bool:
        """Return whether the lock's session is still the store's: once it has ended, another may have the lock."""
        return lock.path in self._held and self._store.session_id == lock.session_id

    async def unlock(self, lock: LedgerLock) -> None:
        """Give a lock back. Idempotent; a lock whose session has ended went with it."""

        async def delete() -> None:
            stat = await self._store.exists(lock.path)
            if stat is not None and stat.ephemeral_owner == lock.session_id and self.holds(lock):
                try:
                    await self._store.delete(lock.path)
                except NoNodeError:
                    pass

        try:
            await repeat(self._store, delete)
        finally:
            self._held.discard(lock.path)

    async def lock_owner(self, ledger_id: int) -> str | None:
        """Return who holds a ledger's lock; None where it is not locked, or the lock does not say."""
        path = self.lock_path(ledger_id)
        try:
            data, _ = await repeat(self._store, lambda: self._store.get(path))
            message: Any = parse_text(LOCK_DATA, data, path)
        except (NoNodeError, CorruptDataError):
            return None
        return str(message.bookieId) if message.HasField("bookieId") else None

    async def locked(self, watch: Watcher | None = None) -> set[int]:
        """Return ids of the ledgers that are locked, by any worker; `watch` hears of a lock that comes or goes."""

        async def children() -> list[str]:
            return (await self._store.children(self._locks, watch))[0]

        try:
            names = await repeat(self._store, children)
        except NoNodeError:
            return set()
        return {int(match[1]) for match in map(_LEAF.fullmatch, names) if match}

    # ---- switches ---------------------------------------------------------------------------------------------------

    async def enabled(self, watch: Watcher | None = None) -> bool:
        """Return whether auto-recovery is switched on; `watch` hears of the next switch."""
        return await repeat(self._store, lambda: self._store.exists(self._disable, watch)) is None

    async def disable(self) -> bool:
        """Switch auto-recovery off for the whole cluster; False where it was off."""
        return await self._ensure(self._disable)

    async def enable(self) -> bool:
        """Switch it on again; False where it was on."""

        async def delete() -> bool:
            try:
                await self._store.delete(self._disable)
            except NoNodeError:
                return False
            return True

        return await repeat(self._store, delete)

    async def wait_until_enabled(self) -> None:
        """Return once auto-recovery is switched on."""
        while not await self.enabled():  # without a watch: while it is on, a watch would only stay behind
            switched = asyncio.Event()
            if await self.enabled(lambda _event, switched=switched: switched.set()):  # type: ignore[misc]
                return
            await switched.wait()

    async def lost_bookie_recovery_delay(self, watch: Watcher | None = None) -> Versioned[int] | None:
        """Return seconds to wait for a single lost bookie before its ledgers are marked; None where it was never set:
        then `watch` hears of its creation. Raises CorruptDataError."""

        async def read() -> Versioned[int] | None:
            try:
                data, stat = await self._store.get(self._delay, watch)
            except NoNodeError:
                if watch is None or await self._store.exists(self._delay, watch) is None:
                    return None
                data, stat = await self._store.get(self._delay)
            if not _DELAY.fullmatch(data):
                raise CorruptDataError(f"{data[:20]!r} is not a number of seconds", path=self._delay)
            return Versioned(int(data), stat.version)

        return await repeat(self._store, read)

    async def initialize_lost_bookie_recovery_delay(self, seconds: int) -> bool:
        """Set the delay where it was never set; False where it was."""
        return await self._ensure(self._delay, _seconds(seconds))

    async def set_lost_bookie_recovery_delay(self, seconds: int) -> None:
        """Set the delay for the whole cluster. The auditor acts on it at once, also on the same value again."""
        data = _seconds(seconds)
        for _ in range(MAX_REPEATS):
            if await self._ensure(self._delay, data):
                return
            try:
                await repeat(self._store, lambda: self._replace_delay(data))
                return
            except (BadVersionError, NoNodeError):
                continue  # set by another process meanwhile, or by us: the last one wins
        raise BadVersionError("the delay kept changing while it was being set", path=self._delay)

    async def _replace_delay(self, data: bytes) -> None:
        _, stat = await self._store.get(self._delay)
        await self._store.put(self._delay, data, stat.version)  # never -1: docs/reference/znodes.md#conditional-sets


def _seconds(seconds: int) -> bytes:
    if seconds < 0:
        raise CallerError(f"a delay of {seconds} s", advice="It must be 0 or more")
    return str(seconds).encode("ascii")
