"""`AuditorStore`: who audits the cluster, when its checks last ran, and which bookies it has.

    <root>/underreplication
        auditorelection                       text: the auditor, for people
        auditorelection/V_0000000007          ephemeral sequential: a candidate's vote; the lowest number is the auditor
        checkallledgersctime, ...             binary: when that check last ran, milliseconds since the epoch
    <root>/available, .../readonly            names only: a registration that cannot be decoded is still a bookie
    <root>/cookies                            every bookie ever registered

The auditor of record is the lowest vote's; the text in `auditorelection` may be older.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from metadata.bookkeeper.ledgers import DEFAULT_ROOT
from metadata.bookkeeper.protos import AUDITOR_VOTE, CHECK_TIME, format_text, parse_binary, parse_text
from metadata.bookkeeper.replication import FOLDER
from metadata.foundation.errors import BadVersionError, CallerError, CorruptDataError, NodeExistsError, NoNodeError
from metadata.retry import repeat
from metadata.store import ANY_VERSION, MetadataStore, Watcher, check_path, join

_VOTE: Final = re.compile(r"V_(\d{10})")
_READONLY: Final = "readonly"


class PeriodicCheck(Enum):
    """When did a check last run? These remember it, by their znode."""

    ALL_LEDGERS = "checkallledgersctime"
    PLACEMENT_POLICY = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


@dataclass(frozen=True, slots=True)
class RegisteredBookies:
    """Which bookies are registered? By id."""

    writable: frozenset[str]
    readonly: frozenset[str]

    @property
    def available(self) -> frozenset[str]:
        """A read-only bookie has its entries: it is there as well."""
        return self.writable | self.readonly


class AuditorStore:
    """Which node audits the cluster, when did each check last run, which bookies were there? The znodes of that.

    Args:
        store: the session in which a vote is cast, and with which it ends.
        root: the znode of the cluster's ledgers.
    """

    def __init__(self, store: MetadataStore, root: str = DEFAULT_ROOT) -> None:
        check_path(root)
        self._store = store
        self._base = join(root, FOLDER)
        self._election = join(self._base, "auditorelection")
        self._available = join(root, "available")
        self._cookies = join(root, "cookies")

    @property
    def store(self) -> MetadataStore:
        """The metadata store below."""
        return self._store

    # ---- votes ------------------------------------------------------------------------------------------------------

    async def vote(self, bookie_id: str) -> str:
        """Stand for election in this session, and return the name of the vote. Voting twice gives the first one again.

        A vote whose answer was lost would be a candidate that no process acts for: so our own are looked for first.
        """

        async def cast() -> str:
            for name in await self.votes():
                stat = await self._store.exists(join(self._election, name))
                if stat is not None and stat.ephemeral_owner == self._store.session_id:
                    return name
            data, path = _vote_of(bookie_id), join(self._election, "V_")
            created = await self._store.create(path, data, ephemeral=True, sequential=True, make_parents=True)
            return created.rpartition("/")[2]

        return await repeat(self._store, cast)

    async def votes(self) -> list[str]:
        """Return all votes, the auditor's first."""
        try:
            names, _ = await repeat(self._store, lambda: self._store.children(self._election))
        except NoNodeError:
            return []
        return sorted(filter(_VOTE.fullmatch, names), key=lambda name: int(name[2:]))

    async def withdraw(self, vote: str) -> None:
        """Take a vote back; a vote that is gone already is fine."""

        async def delete() -> None:
            try:
                await self._store.delete(join(self._election, vote))
            except NoNodeError:
                pass

        await repeat(self._store, delete)

    async def watch_vote(self, vote: str, watch: Watcher) -> bool:
        """Return whether a vote is there; `watch` hears of its end."""
        return await repeat(self._store, lambda: self._store.exists(join(self._election, vote), watch)) is not None

    async def announce(self, bookie_id: str) -> None:
        """Write who audits into the election's own znode, for people. The votes decide, so no version is checked."""
        await repeat(self._store, lambda: self._store.put(self._election, _vote_of(bookie_id), ANY_VERSION))

    async def auditor(self) -> str | None:
        """Return who audits: the owner of the lowest vote; None where there is no vote, or it does not name one."""
        for name in await self.votes():
            path = join(self._election, name)
            try:
                data, _ = await repeat(self._store, lambda path=path: self._store.get(path))  # type: ignore[misc]
            except NoNodeError:
                continue  # gone since it was listed
            message: Any = parse_text(AUDITOR_VOTE, data, path)
            return str(message.bookieId) if message.HasField("bookieId") else None
        return None

    # ---- checks -----------------------------------------------------------------------------------------------------

    async def last_run_ms(self, check: PeriodicCheck) -> int | None:
        """Return when a check last ran; None where it never did, or the time is not to be read: then it is due."""
        path = join(self._base, check.value)
        try:
            data, _ = await repeat(self._store, lambda: self._store.get(path))
            message: Any = parse_binary(CHECK_TIME, data, path)
        except (NoNodeError, CorruptDataError):
            return None
        return int(message.ctime) if message.HasField("ctime") else None

    async def set_last_run_ms(self, check: PeriodicCheck, now_ms: int) -> None:
        """Remember that a check ran. There is one auditor: the last time that was written is right."""
        path = join(self._base, check.value)
        message: Any = CHECK_TIME(ctime=now_ms)
        data: bytes = message.SerializeToString()

        async def write() -> None:
            try:
                await self._store.create(path, data, make_parents=True)
            except NodeExistsError:
                _, stat = await self._store.get(path)
                try:
                    await self._store.put(path, data, stat.version)
                except BadVersionError:
                    pass  # another auditor's run has just ended as well

        await repeat(self._store, write)

    # ---- bookies ----------------------------------------------------------------------------------------------------

    async def registered(self) -> RegisteredBookies:
        """Return the names in both lists. Raises CallerError where no cluster is initialised: never an empty answer."""
        # A bookie that changes its mode joins one list before it leaves the other; so whichever way it goes, one of
        # three looks finds it.
        writable = await self._writable()
        readonly = await self._names(join(self._available, _READONLY))
        again = await self._writable()
        return RegisteredBookies(frozenset(writable) | frozenset(again), frozenset(readonly))

    async def _writable(self) -> list[str]:
        try:
            names, _ = await repeat(self._store, lambda: self._store.children(self._available))
        except NoNodeError as error:
            raise CallerError(
                "no BookKeeper cluster is initialised here", path=self._available, advice="Check the ledgers path"
            ) from error
        return _bookies(names)

    async def known(self) -> set[str]:
        """Return every bookie that ever registered."""
        return await self._names(self._cookies)

    async def _names(self, path: str) -> set[str]:
        try:
            names, _ = await repeat(self._store, lambda: self._store.children(path))
        except NoNodeError:
            return set()
        return set(names)


def _bookies(names: list[str]) -> list[str]:
    return [name for name in names if name.lower() != _READONLY]


def _vote_of(bookie_id: str) -> bytes:
    message: Any = AUDITOR_VOTE(bookieId=bookie_id)
    return format_text(message)
