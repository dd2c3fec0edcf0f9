"""The proxies that there are: their members in ZooKeeper, announced, read and watched.

    <namespace>/.write_proxy/member_<sequence>    ephemeral, one for each write proxy
    <namespace>/.read_proxy/member_<sequence>     ephemeral, one for each read proxy

A member is upstream's JSON of a server set: the address that clients dial, named addresses beside it, a status and the
shard; and `region`, where the proxy knows its own, which others read over.

Fault model: the folder may be missing, may hold znodes of other programs and members that cannot be read; each
of those is left out with a warning, and the others count. A member ends with the session that made it, and is announced
again in the next session of its proxy. A list may be as old as ZooKeeper's watches are: it says where to ask, never
which proxy owns a stream. It must never keep a proxy announced that withdrew.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from dlspark.serving.routing.hosts import NO_SHARD, split_address
from metadata.foundation.addresses import address_text
from metadata.foundation.errors import (
    CallerError,
    CorruptDataError,
    DistributedLogError,
    MetadataUnavailableError,
    NoNodeError,
    OutcomeUnknownError,
)
from metadata.foundation.regions import region_named
from metadata.foundation.tasks import end_tasks
from metadata.retry import REPEAT_TIMEOUT_MS, reconnected, repeat
from metadata.store import MetadataStore, SessionState, WatchEvent, join
from metadata.zookeeper.session import call_safely

_LOG: Final = logging.getLogger(__name__)

WRITE_PROXIES: Final = ".write_proxy"
"""The folder of write proxies, below the namespace's znode."""
READ_PROXIES: Final = ".read_proxy"
"""The folder of read proxies."""
MEMBER_PREFIX: Final = "member_"
ALIVE: Final = "ALIVE"
FRAMES: Final = "frames"
"""The named address at which a proxy of this project speaks frames; `GRPC`, where it speaks gRPC."""
GRPC: Final = "grpc"
FRAMES_TLS: Final = "frames-tls"
GRPC_TLS: Final = "grpc-tls"
LOGS_READ: Final = "logs-read"
"""The named address at which a read proxy says how many logs it reads: where it speaks frames."""
STATS: Final = "stats"
"""The named address of the page with health and metrics; `STATS_TLS`, where it is served under TLS."""
STATS_TLS: Final = "stats-tls"
MAX_MEMBERS: Final = 10_000
"""Members of a folder that are read; what lies beyond, in order of their names, is left out with a warning."""
MAX_MEMBER_BYTES: Final = 64 * 1024
"""A larger znode is not a member."""
_RETRY_S: Final = 0.2
_CREATE_TRIES: Final = 5
_AT_ONCE: Final = 64  # members read at the same time


@dataclass(frozen=True, slots=True, order=True)
class ProxyEndpoint:
    """A host and port at which a proxy listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return address_text(self.host, self.port)

    @classmethod
    def parse(cls, text: str) -> ProxyEndpoint:
        """Read `host:port`. Raises CallerError."""
        return cls(*split_address(text))


@dataclass(frozen=True, slots=True)
class ProxyMember:
    """Where does a proxy listen for what, and what is its number? One proxy as its member describes it."""

    endpoint: ProxyEndpoint
    """The address that clients dial, and that a location names."""
    endpoints: Mapping[str, ProxyEndpoint] = field(default_factory=lambda: MappingProxyType({}))
    """Addresses by name: upstream's `service`, `thrift`, `aurora` and `stats`; and `frames`, `grpc`, `logs-read`,
    `frames-tls`, `grpc-tls`, `stats-tls`."""
    shard: int = NO_SHARD
    status: str = ALIVE
    region: str | None = None
    """The name of the region that it is in; None where it does not say."""
    name: str = field(default="", compare=False)
    """The member's znode name; empty where it is not announced."""

    @property
    def location(self) -> str:
        """The proxy as answers name it, and as the lock of a log does: `1;<shard>;<host>:<port>`."""
        return f"1;{self.shard};{self.endpoint}"

    @property
    def frames(self) -> ProxyEndpoint | None:
        """The address at which it speaks frames; None for a proxy of another project."""
        return self.endpoints.get(FRAMES)

    @property
    def secured(self) -> bool:
        """True where it speaks frames under TLS, at the same address."""
        return FRAMES_TLS in self.endpoints

    @property
    def grpc(self) -> ProxyEndpoint | None:
        """The address at which it speaks gRPC; None where it does not."""
        return self.endpoints.get(GRPC)

    @property
    def logs_read(self) -> ProxyEndpoint | None:
        """The address at which it says how many logs it reads; None for a write proxy, and one of an older release."""
        return self.endpoints.get(LOGS_READ)

    @property
    def stats(self) -> ProxyEndpoint | None:
        """The address of its page with health and metrics; None without one, or where it is under TLS."""
        return self.endpoints.get(STATS)

    @property
    def stats_tls(self) -> ProxyEndpoint | None:
        """The address of its page under TLS; None where there is none."""
        return self.endpoints.get(STATS_TLS)

    def encode(self) -> bytes:
        """Return the member's JSON, as upstream's server sets have it, and the region where it is known."""
        value: dict[str, object] = {
            "serviceEndpoint": _json_of(self.endpoint),
            "additionalEndpoints": {name: _json_of(one) for name, one in self.endpoints.items()},
            "status": self.status,
            "shard": self.shard,
        }
        if self.region is not None:
            value["region"] = self.region
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8")

    @classmethod
    def decode(cls, data: bytes, name: str = "") -> ProxyMember:
        """Read a member. Named addresses that are none are left out, and so is a region that cannot be one. Raises
        CorruptDataError."""
        if len(data) > MAX_MEMBER_BYTES:
            raise CorruptDataError(f"a member of {len(data)} bytes", path=name)
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise CorruptDataError(f"a member that is not JSON: {error}", path=name) from error
        if not isinstance(value, dict):
            raise CorruptDataError("a member that is not a JSON object", path=name)
        endpoint = _endpoint_in(value.get("serviceEndpoint"))
        if endpoint is None:
            raise CorruptDataError("a member without a service endpoint", path=name)
        others = value.get("additionalEndpoints")
        named = {key: _endpoint_in(one) for key, one in others.items()} if isinstance(others, dict) else {}
        shard, status = value.get("shard"), value.get("status")
        return cls(
            endpoint,
            MappingProxyType({key: one for key, one in named.items() if one is not None}),
            shard if isinstance(shard, int) and not isinstance(shard, bool) and shard >= 0 else NO_SHARD,
            status if isinstance(status, str) else ALIVE,
            _region_in(value.get("region")),
            name,
        )


def proxy_member(
    endpoint: ProxyEndpoint,
    shard: int,
    *,
    grpc: ProxyEndpoint | None = None,
    stats: ProxyEndpoint | None = None,
    region: str | None = None,
) -> ProxyMember:
    """Return what a proxy announces: upstream's names for its addresses, and this project's."""
    named = {"aurora": stats, STATS: stats, "service": endpoint, "thrift": endpoint, FRAMES: endpoint, GRPC: grpc}
    endpoints = MappingProxyType({name: one for name, one in named.items() if one})
    return ProxyMember(endpoint, endpoints, shard, region=region)


def paged_member(member: ProxyMember, stats_tls: ProxyEndpoint) -> ProxyMember:
    """Return the same of a proxy whose page is under TLS: nobody is led to ask for it in plain."""
    return replace(member, endpoints=MappingProxyType({**member.endpoints, STATS_TLS: stats_tls}))


def secured_member(member: ProxyMember, grpc_tls: ProxyEndpoint | None) -> ProxyMember:
    """Return the same of a proxy that speaks TLS, over gRPC at this address."""
    named = {**member.endpoints, FRAMES_TLS: member.endpoint, GRPC_TLS: grpc_tls}
    return replace(member, endpoints=MappingProxyType({name: one for name, one in named.items() if one}))


def read_proxy_member(
    endpoint: ProxyEndpoint,
    shard: int,
    *,
    grpc: ProxyEndpoint | None = None,
    stats: ProxyEndpoint | None = None,
    region: str | None = None,
) -> ProxyMember:
    """Return the same of a read proxy, which says how many logs it reads."""
    member = proxy_member(endpoint, shard, grpc=grpc, stats=stats, region=region)
    return replace(member, endpoints=MappingProxyType({**member.endpoints, LOGS_READ: endpoint}))


def _json_of(endpoint: ProxyEndpoint) -> dict[str, object]:
    return {"host": endpoint.host, "port": endpoint.port}


def _region_in(value: object) -> str | None:
    try:
        return region_named(value, "region") or None if isinstance(value, str) else None
    except CallerError:
        return None  # its addresses count all the same


def _endpoint_in(value: object) -> ProxyEndpoint | None:
    if not isinstance(value, dict):
        return None
    host, port = value.get("host"), value.get("port")
    if not isinstance(host, str) or not host or not isinstance(port, int) or isinstance(port, bool):
        return None
    return ProxyEndpoint(host, port) if 0 < port < 65536 else None


# ---------------------------------------------------------------------- reading and watching


async def read_members(store: MetadataStore, folder: str) -> tuple[ProxyMember, ...]:
    """Return the members of `folder` that are alive, in the order in which they were announced; a missing folder has
    none.

    Raises MetadataUnavailableError or an OutcomeUnknownError where ZooKeeper cannot be reached.
    """
    return await repeat(store, lambda: _read(store, folder, None))


async def _read(
    store: MetadataStore, folder: str, heard: Callable[[WatchEvent], None] | None
) -> tuple[ProxyMember, ...]:
    """Read all members; `heard` is called at the next change of the list or of a member."""
    while True:
        try:
            names, _ = await store.children(folder, heard)
            break
        except NoNodeError:
            # A watch of children needs the folder; one of its making does not. Made between the two, it is read again.
            if await store.exists(folder, heard) is None:
                return ()
    names = [name for name in names if name.startswith(MEMBER_PREFIX)]
    if len(names) > MAX_MEMBERS:
        _LOG.warning("%s has %d members: those after the first %d are left out", folder, len(names), MAX_MEMBERS)
    found: list[ProxyMember] = []
    for start in range(0, min(len(names), MAX_MEMBERS), _AT_ONCE):
        some = names[start : min(start + _AT_ONCE, MAX_MEMBERS)]
        read = await asyncio.gather(*(_read_one(store, folder, name, heard) for name in some))
        found += [one for one in read if one is not None]
    return tuple(found)


async def _read_one(
    store: MetadataStore, folder: str, name: str, heard: Callable[[WatchEvent], None] | None
) -> ProxyMember | None:
    try:
        data, _ = await store.get(join(folder, name), heard)
        member = ProxyMember.decode(data, name)
    except NoNodeError:
        return None
    except (CorruptDataError, CallerError) as error:
        _LOG.warning("a member of %s is left out: %s", folder, error)
        return None
    return member if member.status == ALIVE else None


class MemberWatch:
    """Which proxies are announced now? The members of a folder as they come and go; made by `watch_members`."""

    def __init__(
        self, store: MetadataStore, folder: str, on_change: Callable[[tuple[ProxyMember, ...]], None] | None
    ) -> None:
        self.members: tuple[ProxyMember, ...] = ()
        """The members at the last look."""
        self._store = store
        self._folder = folder
        self._on_change = on_change
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None

    async def _begin(self) -> None:
        self._unsubscribe = self._store.on_session(self._session_changed)
        try:
            await self._look()
        except BaseException:
            self._unsubscribe()
            raise
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Watch no longer; `on_change` is not called any more. Idempotent."""
        self._on_change = None
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if self._task is not None:
            await end_tasks([self._task], drop_errors=True)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CLOSED:
            self._changed.set()  # it wakes the task, which ends: no watch of ZooKeeper fires any more

    def _heard(self, event: WatchEvent) -> None:
        self._changed.set()

    async def _look(self) -> None:
        self._changed.clear()  # first: a change from here on is seen in what is read, or sets it again
        members = await repeat(self._store, lambda: _read(self._store, self._folder, self._heard))
        self.members, before = members, self.members
        if members != before and self._on_change is not None:
            call_safely(self._on_change, members)

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            if self._store.state is SessionState.CLOSED:
                return
            try:
                await self._look()
            except DistributedLogError as error:
                _LOG.info("the members of %s cannot be read at present, trying again: %s", self._folder, error)
                self._changed.set()  # what was missed may have set no watch: look again once there is a connection
                if await reconnected(self._store, REPEAT_TIMEOUT_MS):
                    await asyncio.sleep(_RETRY_S)


async def watch_members(
    store: MetadataStore, folder: str, on_change: Callable[[tuple[ProxyMember, ...]], None] | None = None
) -> MemberWatch:
    """Watch the members of `folder` (`join(namespace, WRITE_PROXIES)`) until the watch or the session is closed.

    Args:
        on_change: called from the loop with all members that are alive: before this returns where there are any, and
            after each change.

    While ZooKeeper cannot be reached the last list stays. Raises as `read_members`.
    """
    watch = MemberWatch(store, folder, on_change)
    await watch._begin()
    return watch


# ---------------------------------------------------------------------- announcing


class Announcement:
    """How do others find this proxy? Keeps one member in a folder until it is withdrawn, also in sessions of ZooKeeper
    that follow this one."""

    def __init__(self, store: MetadataStore, folder: str, member: ProxyMember) -> None:
        self.member = member
        self._store = store
        self._folder = folder
        self._data = member.encode()
        self._wanted = False
        self._session_id = 0
        """The session in which it was announced last."""
        self._lock = asyncio.Lock()
        self._renewal: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None

    @property
    def announced(self) -> bool:
        """True while it is a member, as far as this process knows."""
        store = self._store
        return self._wanted and self._session_id == store.session_id and store.state is not SessionState.EXPIRED

    async def begin(self) -> None:
        """Announce. Raises MetadataUnavailableError or an OutcomeUnknownError, and then keeps nothing announced."""
        self._wanted = True
        self._unsubscribe = self._store.on_session(self._session_changed)
        try:
            await self._announce()
        except BaseException:
            self._stop()
            raise

    async def withdraw(self) -> None:
        """Take the member back, for good. Idempotent.

        Where it raises (MetadataUnavailableError, OutcomeUnknownError) the member ends with the session.
        """
        # In this order: once it is not wanted no renewal begins, and one that runs would announce again.
        self._stop()
        if self._renewal is not None:
            await end_tasks([self._renewal], drop_errors=True)
            self._renewal = None
        async with self._lock:
            await repeat(self._store, self._delete_ours)

    def _stop(self) -> None:
        self._wanted = False
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    async def _announce(self) -> None:
        """Be announced exactly once in the current session, whatever became of earlier tries."""
        async with self._lock:
            for tries in range(_CREATE_TRIES):
                # A znode of a try whose answer was lost must be in the list that `_ours` reads, whichever server of
                # ZooKeeper answers: else there would be two members of one proxy.
                await repeat(self._store, lambda: self._store.sync(self._folder))
                session_id = self._store.session_id
                if await repeat(self._store, self._ours):
                    self._session_id = session_id
                    return
                try:
                    prefix = join(self._folder, MEMBER_PREFIX)
                    await self._store.create(prefix, self._data, ephemeral=True, sequential=True, make_parents=True)
                    self._session_id = session_id
                    return
                except (OutcomeUnknownError, MetadataUnavailableError):
                    # Not `repeat`: a second create could make a second member. The next try looks for the first one.
                    await asyncio.sleep(0)  # let the session's own event be heard
                    if tries == _CREATE_TRIES - 1 or not await reconnected(self._store, REPEAT_TIMEOUT_MS):
                        raise

    async def _ours(self) -> list[str]:
        """Return the paths of this announcement's members in the current session, also of one whose answer was lost."""
        try:
            names, _ = await self._store.children(self._folder)
        except NoNodeError:
            return []
        found = []
        for name in names:
            path = join(self._folder, name)
            try:
                data, stat = await self._store.get(path)
            except NoNodeError:
                continue
            if stat.ephemeral_owner == self._store.session_id and data == self._data:
                found.append(path)
        return found

    async def _delete_ours(self) -> None:
        for path in await self._ours():
            try:
                await self._store.delete(path)
            except NoNodeError:
                pass

    def _session_changed(self, state: SessionState) -> None:
        # One renewal at a time: it sees by itself that yet another session has come.
        if state is SessionState.EXPIRED and self._wanted and (self._renewal is None or self._renewal.done()):
            self._renewal = asyncio.get_running_loop().create_task(self._renew())

    async def _renew(self) -> None:
        while self._wanted and self._store.state is not SessionState.CLOSED:
            if not await reconnected(self._store, REPEAT_TIMEOUT_MS):
                continue
            session_id = self._store.session_id
            try:
                await self._announce()
            except DistributedLogError as error:
                _LOG.warning("%s is not announced at present, trying again: %s", self.member.endpoint, error)
                await asyncio.sleep(_RETRY_S)
                continue
            if session_id == self._store.session_id:
                _LOG.info("%s is announced again, the session before had ended", self.member.endpoint)
                return
