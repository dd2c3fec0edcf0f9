"""`BookieRegistry`: which storage nodes there are, where they listen, and the cookies that prove they are themselves.

    <root>/available/<bookie id>             ephemeral, one for each writable bookie; BookieServiceInfoFormat or empty
    <root>/available/readonly/<bookie id>    the same for bookies that only read
    <root>/cookies/<bookie id>               persistent text; the children are all bookies ever registered
    <root>/INSTANCEID                        the cluster's UUID
    <root>/disableHealthCheck                an empty switch: while it is there, no client quarantines a bookie

The formats: docs/reference/znodes.md#registrations, docs/reference/znodes.md#cookies.

A bookie id is opaque: only where a registration is empty (bookies before 4.13), or gone, is it read as `host:port`.
A registration that cannot be decoded makes that bookie unresolvable, not the whole list.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from metadata.bookkeeper.ledgers import DEFAULT_ROOT, Versioned
from metadata.bookkeeper.protos import BOOKIE_SERVICE_INFO, COOKIE, format_text, parse_binary, parse_text
from metadata.foundation.addresses import parse_address
from metadata.foundation.errors import (
    CallerError,
    CorruptDataError,
    DistributedLogError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotAppliedError,
    OutcomeUnknownError,
)
from metadata.foundation.tasks import end_tasks
from metadata.retry import reconnected, repeat
from metadata.store import MetadataStore, SessionState, Stat, Watcher, WatchEvent, check_path, join
from metadata.zookeeper.session import call_safely

_LOG: Final = logging.getLogger(__name__)
_ENDPOINT_ID: Final = "bookie"
_PROTOCOL: Final = "bookie-rpc"
_VERSION_PROPERTY: Final = "dlspark.version"
_READONLY: Final = "readonly"
_RETRY_S: Final = 0.2
_BOOKIE_ID: Final = re.compile(r"[A-Za-z0-9:-_.\-]+")  # ':-_' is a range here, as in BookKeeper
_COOKIE_LAYOUT: Final = 5
_PLAIN_COOKIE_LAYOUT: Final = 3


class UnknownBookieError(NotAppliedError):
    """The bookie is not registered, and its id is not an address either: nothing was sent to it."""


@dataclass(frozen=True, slots=True)
class BookieAddress:
    """Where does a storage node listen? Its id, host and port."""

    bookie_id: str
    host: str
    port: int

    def encode(self, version: str | None = None) -> bytes:
        """Return what a registration holds (BookieServiceInfoFormat); `version`: of the node's software."""
        message: Any = BOOKIE_SERVICE_INFO()
        message.endpoints.add(id=_ENDPOINT_ID, port=self.port, host=self.host, protocol=_PROTOCOL)
        if version is not None:
            message.properties.add(key=_VERSION_PROPERTY, value=version)
        data: bytes = message.SerializeToString()
        return data

    @classmethod
    def decode(cls, bookie_id: str, data: bytes, path: str) -> BookieAddress:
        """Read a registration. Raises CorruptDataError, or UnknownBookieError where it holds no address."""
        if not data:
            return cls.from_id(bookie_id)
        message: Any = parse_binary(BOOKIE_SERVICE_INFO, data, path)
        for endpoint in message.endpoints:
            if endpoint.protocol == _PROTOCOL:
                if not endpoint.host or not 0 < endpoint.port < 65536:
                    raise CorruptDataError(f"endpoint {endpoint.host!r}:{endpoint.port} is not an address", path=path)
                return cls(bookie_id, endpoint.host, endpoint.port)
        raise UnknownBookieError(f"no endpoint speaks {_PROTOCOL}", node=bookie_id, path=path)

    @classmethod
    def from_id(cls, bookie_id: str) -> BookieAddress:
        """Read the id itself as `host:port`. Raises UnknownBookieError."""
        # Nodes on an IPv6 address had no brackets in their names once, and BookKeeper's have none.
        host, _, port = bookie_id.rpartition(":")
        found = parse_address(bookie_id) or parse_address(f"[{host}]:{port}")
        if found is None:
            raise UnknownBookieError(
                "the bookie is not registered and its id is not host:port",
                node=bookie_id,
                advice="It counts as failed until it registers again",
            )
        return cls(bookie_id, *found)


@dataclass(frozen=True, slots=True)
class Registration:
    """Does a bookie say that it runs, and where? No `address`: the registration holds none; `error` says why."""

    bookie_id: str
    readonly: bool
    since_ms: int
    """When it registered, by the store's clock."""
    address: BookieAddress | None
    error: str | None = None
    version: str | None = None
    """Its software's version, where the registration has it: those of this project's nodes do."""


def _version_in(data: bytes, path: str) -> str | None:
    message: Any = parse_binary(BOOKIE_SERVICE_INFO, data, path)
    return next((str(one.value) for one in message.properties if one.key == _VERSION_PROPERTY), None)


@dataclass(frozen=True, slots=True)
class Cookie:
    """Is a bookie the one that it says it is? Where znode and directories disagree it does not start (I11)."""

    bookie_id: str
    journal_dirs: tuple[str, ...]
    ledger_dirs: tuple[str, ...]
    instance_id: str | None
    index_dirs: tuple[str, ...] | None = None
    layout_version: int = _COOKIE_LAYOUT

    def encode(self) -> bytes:
        """Return the text of the znode and of the VERSION files."""
        head = f"{self.layout_version}\n".encode("ascii")
        if self.layout_version == _PLAIN_COOKIE_LAYOUT:
            lines = (self.bookie_id, ",".join(self.journal_dirs), _pack_dirs(self.ledger_dirs))
            return head + "".join(f"{line}\n" for line in lines).encode("utf-8")
        message: Any = COOKIE()
        message.bookieHost = self.bookie_id
        message.journalDir = ",".join(self.journal_dirs)
        message.ledgerDirs = _pack_dirs(self.ledger_dirs)
        if self.instance_id is not None:
            message.instanceId = self.instance_id
        if self.index_dirs is not None:
            message.indexDirs = _pack_dirs(self.index_dirs)
        return head + format_text(message)

    @classmethod
    def decode(cls, data: bytes, path: str = "VERSION") -> Cookie:
        """Read a cookie of layout 3 or later; `path` (znode or file) is for the error. Raises CorruptDataError."""
        head, _, body = data.partition(b"\n")
        if not head.strip().isdigit():
            raise CorruptDataError("a cookie begins with its layout version", path=path)
        layout = int(head)
        if layout < _PLAIN_COOKIE_LAYOUT:
            raise CorruptDataError(f"cookies of layout {layout} are too old to be compared", path=path)
        if layout == _PLAIN_COOKIE_LAYOUT:
            return cls._decode_plain(body, path)
        message: Any = parse_text(COOKIE, body, path)
        return cls(
            bookie_id=message.bookieHost,
            journal_dirs=tuple(message.journalDir.split(",")),
            ledger_dirs=_unpack_dirs(message.ledgerDirs, path),
            instance_id=message.instanceId if message.HasField("instanceId") else None,
            index_dirs=_unpack_dirs(message.indexDirs, path) if message.HasField("indexDirs") else None,
            layout_version=layout,
        )

    @classmethod
    def _decode_plain(cls, body: bytes, path: str) -> Cookie:
        lines = body.decode("utf-8", "replace").split("\n")
        if len(lines) < 3:
            raise CorruptDataError("a cookie of layout 3 has four lines", path=path)
        host, journal, ledgers = lines[:3]
        return cls(host, tuple(journal.split(",")), _unpack_dirs(ledgers, path), None, None, _PLAIN_COOKIE_LAYOUT)

    def matches(self, other: Cookie) -> bool:
        """Return True where both stand for one bookie; without index directories these are the ledger directories."""
        return (
            self.bookie_id == other.bookie_id
            and self.journal_dirs == other.journal_dirs
            and self.ledger_dirs == other.ledger_dirs
            and self.instance_id == other.instance_id
            and (self.index_dirs or self.ledger_dirs) == (other.index_dirs or other.ledger_dirs)
        )


def _pack_dirs(directories: tuple[str, ...]) -> str:
    return "\t".join((str(len(directories)), *directories))


def _unpack_dirs(text: str, path: str) -> tuple[str, ...]:
    count, *directories = text.split("\t")
    if not count.isdecimal() or int(count) != len(directories):
        raise CorruptDataError(f"directory list {text!r} does not begin with its count", path=path)
    return tuple(directories)


def check_bookie_id(bookie_id: str) -> None:
    """Raise CallerError unless BookKeeper accepts the id."""
    if not _BOOKIE_ID.fullmatch(bookie_id) or bookie_id.lower() == _READONLY:
        raise CallerError(f"invalid bookie id {bookie_id!r}: letters, digits and : ; < = > ? @ [ \\ ] ^ _ . - only")


class BookieRegistry:
    """Which storage nodes does the cluster have, and where do they listen? Their registrations and cookies.

    Args:
        store: the session, with which `register` and `watch` end.
        predecessor_timeout_ms: how long `register` waits for the registration of a predecessor to go.
        version: the node's software version, for its registrations.
    """

    def __init__(
        self,
        store: MetadataStore,
        root: str = DEFAULT_ROOT,
        *,
        predecessor_timeout_ms: int = 60_000,
        version: str | None = None,
    ) -> None:
        check_path(root)
        self._store = store
        self._version = version
        self._available = join(root, "available")
        self._readonly = join(root, "available", _READONLY)
        self._cookies = join(root, "cookies")
        self._instance_path = join(root, "INSTANCEID")
        self._no_health_check = join(root, "disableHealthCheck")
        self._predecessor_timeout_ms = predecessor_timeout_ms
        self._registered: dict[str, tuple[BookieAddress, bool]] = {}
        self._renewals: dict[str, asyncio.Task[None]] = {}
        self._announcing: dict[str, asyncio.Lock] = {}
        self._unsubscribe: Callable[[], None] | None = None
        self._watch = _ListWatch(self)
        self._keeping = False
        self._kept: dict[str, list[BookieAddress]] = {}

    # ---- registration -----------------------------------------------------------------------------------------------

    async def register(self, address: BookieAddress, *, readonly: bool = False) -> None:
        """Announce a bookie as writable or read-only, and again by itself after each expired session.

        Where a predecessor's session still holds the znode, waits for it to go, `predecessor_timeout_ms` at most;
        then NodeExistsError. A change of mode creates the new registration before it deletes the old one.
        """
        check_bookie_id(address.bookie_id)
        self._registered[address.bookie_id] = (address, readonly)
        if self._unsubscribe is None:
            self._unsubscribe = self._store.on_session(self._session_changed)
        try:
            await self._announce(address.bookie_id)
        except BaseException:
            if self._registered.get(address.bookie_id) == (address, readonly):
                del self._registered[address.bookie_id]
            raise

    async def unregister(self, bookie_id: str) -> None:
        """Delete this session's registrations of the bookie. Where it raises, the rest ends with the session."""
        await self.let_go(bookie_id)  # first: a renewal under way would register it again
        for folder in (self._available, self._readonly):
            await repeat(self._store, partial(self._withdraw, join(folder, bookie_id)))

    async def let_go(self, bookie_id: str) -> None:
        """Announce the bookie no more; what is announced ends with the session."""
        self._registered.pop(bookie_id, None)
        renewal = self._renewals.pop(bookie_id, None)
        if renewal is not None:
            await end_tasks([renewal], drop_errors=True)

    async def _announce(self, bookie_id: str) -> None:
        """Make the registration what was asked for last, unless it was taken back.

        One at a time: the renewal after an expired session and a change of mode, each deleting what the other had just
        created, would leave a living bookie unregistered.
        """
        async with self._announcing.setdefault(bookie_id, asyncio.Lock()):
            wanted = self._registered.get(bookie_id)
            if wanted is None:
                return
            address, readonly = wanted
            folder, other = (self._readonly, self._available) if readonly else (self._available, self._readonly)
            deadline = asyncio.get_running_loop().time() + self._predecessor_timeout_ms / 1000
            path = join(folder, bookie_id)
            # In this order: a bookie in both lists is found, one in neither would look lost to the auditor.
            await repeat(self._store, lambda: self._claim(path, address.encode(self._version), deadline))
            await repeat(self._store, lambda: self._withdraw(join(other, bookie_id)))

    async def _claim(self, path: str, data: bytes, deadline: float) -> None:
        """Create our ephemeral at `path`; a predecessor's is waited out."""
        while True:
            try:
                await self._store.create(path, data, ephemeral=True, make_parents=path.startswith(self._readonly + "/"))
                return
            except NoNodeError as error:
                raise CallerError(
                    "the cluster is not initialised",
                    path=self._available,
                    advice="Initialise it: dlspark cluster init",
                ) from error
            except NodeExistsError:
                pass
            if (own := await self._outlast_other(path, deadline)) is not None:
                await self._store.put(path, data, own.version)  # ours, perhaps with an older address
                return

    async def _outlast_other(self, path: str, deadline: float) -> Stat | None:
        """Wait until no other session's registration is at `path`; return our own where that is there."""
        while True:
            gone = asyncio.Event()
            stat = await self._store.exists(path, lambda _event, gone=gone: gone.set())  # type: ignore[misc]
            if stat is None or stat.ephemeral_owner == self._store.session_id:
                return stat
            left = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(gone.wait(), max(left, 0))
            except asyncio.TimeoutError:
                raise NodeExistsError(
                    f"another session (0x{stat.ephemeral_owner:x}) holds this bookie's registration",
                    path=path,
                    advice="Is a second bookie running under the same id? Nothing was registered",
                ) from None

    async def outlast_predecessor(self, bookie_id: str) -> None:
        """Wait until no other session has a registration of the bookie, as `register` does. Raises NodeExistsError."""
        deadline = asyncio.get_running_loop().time() + self._predecessor_timeout_ms / 1000
        for folder in (self._available, self._readonly):
            await repeat(self._store, partial(self._outlast_other, join(folder, bookie_id), deadline))

    async def _withdraw(self, path: str) -> None:
        """Delete our own registration; another session's is left to expire."""
        stat = await self._store.exists(path)
        if stat is not None and stat.ephemeral_owner == self._store.session_id:
            try:
                await self._store.delete(path)
            except NoNodeError:
                pass

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CLOSED:
            for task in self._renewals.values():
                task.cancel()
            self._renewals.clear()
        if state is SessionState.EXPIRED:
            for bookie_id in self._registered:
                running = self._renewals.get(bookie_id)
                if running is None or running.done():
                    self._renewals[bookie_id] = asyncio.get_running_loop().create_task(self._renew(bookie_id))

    async def _renew(self, bookie_id: str) -> None:
        """Register again in the new session, until it worked or the bookie was let go."""
        while bookie_id in self._registered and self._store.state is not SessionState.CLOSED:
            if not await reconnected(self._store, self._predecessor_timeout_ms):
                continue
            session_id = self._store.session_id
            try:
                await self._announce(bookie_id)
            except DistributedLogError as error:
                _LOG.warning("bookie %s is not registered at present, trying again: %s", bookie_id, error)
                await asyncio.sleep(_RETRY_S)
                continue
            if session_id == self._store.session_id:
                return

    # ---- discovery --------------------------------------------------------------------------------------------------

    async def writable(self) -> list[BookieAddress]:
        """Return the writable bookies by id. One that cannot be resolved is left out, with a warning in the log."""
        return await self._addresses(self._available)

    async def readonly(self) -> list[BookieAddress]:
        """Return the read-only bookies by id. One that cannot be resolved is left out, with a warning in the log."""
        return await self._addresses(self._readonly)

    def keep_lists(self) -> None:
        """Read a list again only after its watch fired: for callers that ask often. A bookie that moves without its
        registration going away keeps its old address there; `resolve` always asks."""
        self._keeping = True

    async def _addresses(self, folder: str) -> list[BookieAddress]:
        kept = self._kept.get(folder)
        if kept is not None and self._store.state is SessionState.CONNECTED:
            return list(kept)
        fired = False

        def changed(_event: WatchEvent) -> None:
            nonlocal fired
            fired = True
            self._kept.pop(folder, None)

        watch = changed if self._keeping else None
        names, _ = await repeat(self._store, lambda: self._ids(folder, watch))
        read = await asyncio.gather(*(self._address(folder, name) for name in names))
        found = [address for address in read if address is not None]
        if self._keeping and not fired:  # a watch that fired meanwhile would not fire again for what was read
            self._kept[folder] = found
        return list(found)

    async def _ids(self, folder: str, watch: Watcher | None) -> tuple[list[str], int]:
        """Return the bookie ids in `folder`, which is made where missing so that it can be watched, and its version."""
        try:
            names, stat = await self._store.children(folder, watch)
        except NoNodeError:
            if folder == self._available:
                raise CallerError(
                    "no BookKeeper cluster is initialised here", path=folder, advice="Check the ledgers path"
                ) from None
            try:
                await self._store.create(folder)
            except NodeExistsError:
                pass
            names, stat = await self._store.children(folder, watch)
        return [name for name in names if name.lower() != _READONLY], stat.cversion

    async def _address(self, folder: str, bookie_id: str) -> BookieAddress | None:
        try:
            return await self._registration(folder, bookie_id)
        except (CorruptDataError, UnknownBookieError) as error:
            _LOG.warning("bookie %s is left out: %s", bookie_id, error)
            return None

    async def _registration(self, folder: str, bookie_id: str) -> BookieAddress | None:
        """Return the address that a registration gives; None where there is none."""
        path = join(folder, bookie_id)
        try:
            data, _ = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return None
        return BookieAddress.decode(bookie_id, data, path)

    async def registrations(self) -> list[Registration]:
        """Return every bookie that is registered, by id; those that cannot be resolved too."""
        found: dict[str, Registration] = {}
        for folder, readonly in ((self._readonly, True), (self._available, False)):
            names, _ = await repeat(self._store, lambda folder=folder: self._ids(folder, None))  # type: ignore[misc]
            for one in await asyncio.gather(*(self._described(folder, name, readonly) for name in names)):
                if one is not None:
                    # While it changes its mode a bookie may be in both lists: the one read last counts.
                    found[one.bookie_id] = one
        return [found[name] for name in sorted(found)]

    async def _described(self, folder: str, bookie_id: str, readonly: bool) -> Registration | None:
        path = join(folder, bookie_id)
        try:
            data, stat = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return None
        try:
            address = BookieAddress.decode(bookie_id, data, path)
        except (CorruptDataError, UnknownBookieError) as error:
            return Registration(bookie_id, readonly, stat.ctime_ms, None, error.message)
        return Registration(bookie_id, readonly, stat.ctime_ms, address, version=_version_in(data, path))

    async def resolve(self, bookie_id: str) -> BookieAddress:
        """Return where a bookie listens: by its registration, else by its id as host:port.

        Raises UnknownBookieError, or CorruptDataError for a registration that cannot be decoded.
        """
        check_bookie_id(bookie_id)
        for folder in (self._available, self._readonly):
            address = await self._registration(folder, bookie_id)
            if address is not None:
                return address
        return BookieAddress.from_id(bookie_id)

    def watch(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each change of either list, and once when the watch has begun: what changed before was
        not seen. Returns a function that ends it. Needs a running loop."""
        return self._watch.add(listener)

    async def health_check_disabled(self) -> bool:
        """Return whether the operators have switched quarantine off for all clients (`disableHealthCheck`)."""
        return await repeat(self._store, lambda: self._store.exists(self._no_health_check)) is not None

    # ---- identity ---------------------------------------------------------------------------------------------------

    async def instance_id(self) -> str | None:
        """Return the cluster's UUID, None where it has none."""
        try:
            data, _ = await repeat(self._store, lambda: self._store.get(self._instance_path))
        except NoNodeError:
            return None
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorruptDataError(f"the instance id is not text: {error}", path=self._instance_path) from error

    async def cookies(self) -> list[str]:
        """Return ids of the bookies that have a cookie: all that ever joined the cluster and were not removed."""
        try:
            names, _ = await repeat(self._store, lambda: self._store.children(self._cookies))
        except NoNodeError:
            return []
        return sorted(names)

    async def read_cookie(self, bookie_id: str) -> Versioned[Cookie] | None:
        """Return the bookie's cookie, None where it has none. Raises CorruptDataError."""
        path = join(self._cookies, bookie_id)
        try:
            data, stat = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return None
        return Versioned(Cookie.decode(data, path), stat.version)

    async def write_cookie(self, cookie: Cookie, version: int | None = None) -> int:
        """Create the cookie (`version` None: NodeExistsError where there is a different one) or replace that version.

        Returns the new version. A lost answer to a creation is resolved by comparing; one to a replacement is raised.
        """
        check_bookie_id(cookie.bookie_id)
        path, data = join(self._cookies, cookie.bookie_id), cookie.encode()
        if version is not None:
            return (await self._store.put(path, data, version)).version
        return await repeat(self._store, lambda: self._create_cookie(path, data))

    async def _create_cookie(self, path: str, data: bytes) -> int:
        try:
            await self._store.create(path, data, make_parents=True)
        except NodeExistsError:
            found, stat = await self._store.get(path)
            if found != data:
                raise
            return stat.version
        return 0

    async def delete_cookie(self, bookie_id: str, version: int = -1) -> None:
        """Forget a bookie; a missing cookie is a success. Raises BadVersionError."""

        async def delete() -> None:
            try:
                await self._store.delete(join(self._cookies, bookie_id), version)
            except NoNodeError:
                pass

        await repeat(self._store, delete)


class _ListWatch:
    """Watches both lists as long as it has listeners: list, wait for a watch, list again."""

    def __init__(self, registry: BookieRegistry) -> None:
        self._registry = registry
        self._listeners: dict[object, Callable[[], None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._changed = asyncio.Event()

    def add(self, listener: Callable[[], None]) -> Callable[[], None]:
        key = object()
        self._listeners[key] = listener
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._unsubscribe = self._registry._store.on_session(self._session_changed)

        def remove() -> None:
            self._listeners.pop(key, None)
            if not self._listeners:
                self._stop()

        return remove

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CLOSED:
            self._stop()

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _on_event(self, event: WatchEvent) -> None:
        self._changed.set()

    async def _run(self) -> None:
        registry = self._registry
        last: tuple[tuple[list[str], int], tuple[list[str], int]] | None = None
        me = asyncio.current_task()
        while self._task is me:  # a cancellation may be lost (`end_tasks`), and no caller waits for this task's end
            self._changed.clear()  # before the lists are read: a change from here on is seen in them, or sets it again
            try:
                if not await reconnected(registry._store, registry._predecessor_timeout_ms):
                    continue
                now = (
                    await registry._ids(registry._available, self._on_event),
                    await registry._ids(registry._readonly, self._on_event),
                )
            except (NotAppliedError, OutcomeUnknownError, CallerError) as error:
                if not isinstance(error, MetadataUnavailableError):
                    _LOG.info("the list of bookies cannot be read at present, trying again: %s", error)
                await asyncio.sleep(_RETRY_S)
                continue
            if now != last and self._task is me:
                for listener in list(self._listeners.values()):
                    call_safely(listener)
            last = now
            await self._changed.wait()
