"""Which proxies there are: a list that is given, or what is announced in a namespace.

    "host:port,host:port"           these, for as long as the client lives
    "distributedlog://zk:2181/ns"   the proxies that are announced in the namespace, as they come and go

A namespace's proxies announce their regions; a list is one region's. A client that is given several lists has several
fleets, the local region's first. A list needs nothing but the
proxies themselves: what talks to ZooKeeper is imported only where a namespace is given, and then only to learn
addresses.

Fault model: ZooKeeper may be away, when the last list stays; a list may be old, or name proxies that are not there:
a client that asks them finds out. A fleet must never make its client wait once it is open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from dlspark.serving.routing.hosts import ProxyHost, split_address
from metadata.foundation.errors import CallerError, NotAppliedError
from metadata.foundation.tasks import each
from metadata.security.settings import SecuritySettings

if TYPE_CHECKING:
    from dlspark.serving.process.membership import MemberWatch, ProxyMember
    from metadata.store import MetadataStore

logger = logging.getLogger(__name__)

FIRST_LIST_S: Final = 10.0
"""How long opening waits for the first proxy to be announced."""
MAX_LISTED: Final = 10_000
"""Proxies that a list may name."""
SESSION_TIMEOUT_MS: Final = 30_000
ChangeHandler: TypeAlias = Callable[[], None]


class NoProxiesError(NotAppliedError):
    """No proxy is known, so nothing was asked."""


class Fleet(Protocol):
    """Knows the proxies of a list, or of a namespace."""

    @property
    def says_regions(self) -> bool:
        """Whether its hosts say in which region they are, where they know it."""
        ...

    @property
    def write_hosts(self) -> tuple[ProxyHost, ...]:
        """The write proxies."""
        ...

    @property
    def read_hosts(self) -> tuple[ProxyHost, ...]:
        """The read proxies; without any, write proxies are asked."""
        ...

    async def open(self, on_change: ChangeHandler) -> None:
        """Learn the first list; `on_change` is called from the loop whenever another one has come."""
        ...

    async def close(self) -> None:
        """Learn no more. Idempotent."""
        ...


class StaticFleet:
    """Knows proxies from a list that does not change."""

    says_regions = False

    def __init__(self, addresses: Sequence[str], read_addresses: Sequence[str] = ()) -> None:
        """Take addresses, `host:port`. Raises CallerError."""
        self.write_hosts = tuple(ProxyHost(address) for address in addresses)
        self.read_hosts = tuple(ProxyHost(address) for address in read_addresses)

    async def open(self, on_change: ChangeHandler) -> None:
        """Note that it is known already."""

    async def close(self) -> None:
        """Do nothing: there is nothing to end."""


class AnnouncedFleet:
    """Knows the proxies that are announced in a namespace, by a ZooKeeper session of its own.

    Args:
        uri: the namespace's.
        open_store: gives a store for its servers, which the fleet closes; by default a ZooKeeper session is opened.
        security: how that session is secured; None: as this process's environment says.

    Raises CallerError for a text that is not a namespace's URI.
    """

    says_regions = True

    def __init__(
        self,
        uri: str,
        open_store: Callable[[str], MetadataStore] | None = None,
        security: SecuritySettings | None = None,
    ) -> None:
        from metadata.distributedlog.namespaces import NamespaceUri

        self._uri = NamespaceUri.parse(uri)
        self._open_store = open_store
        self._security = SecuritySettings() if security is None else security
        self._store: MetadataStore | None = None
        self._watches: list[MemberWatch] = []
        self._on_change: ChangeHandler | None = None
        self._first: asyncio.Event = asyncio.Event()
        self._names: dict[bool, dict[str, str]] = {}
        """Of write proxies (True) and read proxies: the address of each member, by its name."""
        self.write_hosts: tuple[ProxyHost, ...] = ()
        self.read_hosts: tuple[ProxyHost, ...] = ()

    async def open(self, on_change: ChangeHandler) -> None:
        """Connect, and wait for the first proxy. Raises MetadataUnavailableError, or NoProxiesError where none is
        announced within `FIRST_LIST_S`."""
        from dlspark.serving.process.membership import READ_PROXIES, WRITE_PROXIES, watch_members
        from metadata.store import join

        self._on_change = on_change
        try:
            self._store = store = await self._connect()
            for folder, changed in ((WRITE_PROXIES, self._write_changed), (READ_PROXIES, self._read_changed)):
                self._watches.append(await watch_members(store, join(self._uri.path, folder), changed))
            await asyncio.wait_for(self._first.wait(), FIRST_LIST_S)
        except asyncio.TimeoutError:
            await self.close()
            raise NoProxiesError(
                f"no proxy is announced in {self._uri}", advice="Start one: dlspark proxy write"
            ) from None
        except BaseException:
            await self.close()
            raise

    async def _connect(self) -> MetadataStore:
        if self._open_store is not None:
            return self._open_store(self._uri.servers)
        from metadata.zookeeper.securing import open_session

        return await open_session(self._uri.servers, self._security, session_timeout_ms=SESSION_TIMEOUT_MS)

    def _write_changed(self, members: tuple[ProxyMember, ...]) -> None:
        self._changed(members, writes=True)

    def _read_changed(self, members: tuple[ProxyMember, ...]) -> None:
        self._changed(members, writes=False)

    def _changed(self, members: tuple[ProxyMember, ...], *, writes: bool) -> None:
        usable = [one for one in members if one.frames is not None]
        hosts = [ProxyHost(str(one.endpoint), one.shard, region=one.region) for one in usable]
        before, names = self._names.get(writes, {}), {one.name: str(one.endpoint) for one in usable}
        self._names[writes] = names
        # A proxy that was started again before its former session has ended never left the list. Its new member says
        # that it has come: it is left out first, so that who passes it over for a lost connection asks it again.
        came = {names[name] for name in names.keys() - before.keys()}.intersection(before.values())
        if came:
            self._use([host for host in hosts if host.address not in came], writes=writes)
        self._use(hosts, writes=writes)

    def _use(self, hosts: Sequence[ProxyHost], *, writes: bool) -> None:
        if writes:
            self.write_hosts = tuple(hosts)
        else:
            self.read_hosts = tuple(hosts)
        logger.info("%s has %d proxies that %s", self._uri, len(hosts), "write" if writes else "read")
        # Either kind will do: a client of read proxies alone is opened too.
        if self.write_hosts or self.read_hosts:
            self._first.set()
        if self._on_change is not None:
            self._on_change()

    async def close(self) -> None:
        """End the session. Idempotent."""
        self._on_change = None
        watches, self._watches = self._watches, []
        store, self._store = self._store, None
        await each([watch.close for watch in watches])
        if store is not None:
            await store.close()


def fleet_of(where: str, security: SecuritySettings | None = None) -> Fleet:
    """Return the fleet that a text names: `host:port,host:port`, or a namespace's URI, whose session is secured as at
    `AnnouncedFleet`. Raises CallerError."""
    if "://" in where:
        return AnnouncedFleet(where, security=security)
    addresses = [one.strip() for one in where.split(",") if one.strip()]
    if not addresses:
        raise CallerError("no proxy is named", advice="Write host:port, or distributedlog://zookeeper:port/path")
    if len(addresses) > MAX_LISTED:
        raise CallerError(f"{len(addresses)} proxies are named; {MAX_LISTED} may be", advice="Name fewer")
    for address in addresses:
        split_address(address)
    return StaticFleet(addresses)


def fleets_of(where: str | Sequence[str | Fleet], security: SecuritySettings | None = None) -> list[Fleet]:
    """Return one fleet a region, the local one first. Raises CallerError."""
    if isinstance(where, str):
        return [fleet_of(where, security)]
    fleets = [fleet_of(one, security) if isinstance(one, str) else one for one in where]
    if not fleets:
        raise CallerError("no region is given", advice="Give one text for each region, the local one first")
    return fleets
