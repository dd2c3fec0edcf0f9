"""`ProxyDirectory`: the proxies of a namespace as one of them knows them, and how they are named in gRPC. No I/O.

A proxy is known by its location, which has its port for frames. A client of gRPC dials another port: answers say it
beside a location, and where such a client names a proxy itself, it may do so by the address that it dials.

Fault model: the members are as old as ZooKeeper's watches are. A name that is not known stays as it was given.
"""

from __future__ import annotations

from collections.abc import Iterable

from dlspark.serving.process.membership import ProxyMember
from dlspark.serving.protocol.operations import ListedProxy, ProxyKind, ProxyList
from dlspark.serving.routing.hosts import address_of


class ProxyDirectory:
    """Write proxies and read proxies; also a `GrpcNames`."""

    def __init__(self) -> None:
        self._members: dict[ProxyKind, tuple[ProxyMember, ...]] = {}
        self._own: ProxyMember | None = None
        self._grpc_of: dict[str, str] = {}
        """Location to where that proxy speaks gRPC, those that do not left out."""
        self._locations: dict[str, str] = {}
        self._addresses: frozenset[str] = frozenset()
        """Of write proxies."""

    def use_own(self, member: ProxyMember) -> None:
        """Note that this is who knows; it may be no member."""
        self._own = member
        self._index()

    def use(self, kind: ProxyKind, members: Iterable[ProxyMember]) -> frozenset[str]:
        """Return these are all of a kind; returns the addresses of members that are gone, or were replaced by others.

        Who is gone by its znode's name is gone, though another one may have come at its address.
        """
        before = self._members.get(kind, ())
        members = self._members[kind] = tuple(members)
        here = {(one.name, one.endpoint) for one in members}
        self._index()
        return frozenset(str(one.endpoint) for one in before if (one.name, one.endpoint) not in here)

    def _index(self) -> None:
        own = (self._own,) if self._own is not None else ()
        known = [*(one for members in self._members.values() for one in members), *own]
        self._grpc_of = {one.location: str(one.grpc) for one in known if one.grpc is not None}
        self._locations = {address: location for location, address in self._grpc_of.items()}
        self._addresses = frozenset(str(one.endpoint) for one in self._members.get(ProxyKind.WRITE, ()))

    def announced(self, location: str) -> bool:
        """Return whether a write proxy with the address of this location is announced: its session has not ended."""
        return address_of(location) in self._addresses

    def grpc_address(self, location: str) -> str:
        """Return where the proxy at a location speaks gRPC; empty where it does not, or that is not known."""
        return self._grpc_of.get(location, "")

    def location(self, name: str) -> str:
        """Return the location of the proxy that speaks gRPC at an address; a name that is no such address as it is."""
        return self._locations.get(name, name)

    def listed(self) -> ProxyList:
        """Return all that are announced, as answers list them."""
        return ProxyList(
            tuple(
                ListedProxy(kind, one.location, str(one.grpc) if one.grpc is not None else "")
                for kind, members in self._members.items()
                for one in members
            )
        )
