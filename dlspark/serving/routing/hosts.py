"""`ProxyHost` and `Route`: the proxies that a client may ask, the hash by which streams are spread over them, and what
every way of choosing one of them can do.

A host is known by its address, `host:port`, as connections, caches and redirects have it. A proxy calls itself by its
*location*, `1;<shard>;<host>:<port>`, which ends in that address (`address_of`).

The hash is upstream's, so that its clients and ours ask the same proxy:

    digest    MD5 of the text's UTF-16 code units, low byte first, without a mark of the byte order
    long      its first 8 bytes as a signed number, low byte first
    int       its first 4 bytes likewise

Java hashes the chars of its strings, so a character above U+FFFF counts as its two surrogates, and half a pair counts
as it stands. MD5 spreads here, it protects nothing: a client that may choose a stream's name may choose its proxy.

A route decides from what it is given and from the time, which is handed in: seconds that never go back. It never asks
the network, and it may be wrong: the proxy that is asked knows which one owns the stream.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Final, Protocol

from metadata.foundation.addresses import parse_address
from metadata.foundation.errors import CallerError

# ---------------------------------------------------------------------- the hash


_LONG = Struct("<q")
_INT = Struct("<i")
_GROUPS = Struct(">8H")


def _digest(text: str) -> bytes:
    # "surrogatepass": half a pair is hashed as Java does it. Builds of Python for FIPS refuse MD5 for security.
    return hashlib.md5(text.encode("utf-16-le", "surrogatepass"), usedforsecurity=False).digest()


def hash_long(text: str) -> int:
    """Return the signed 64-bit hash: angles on the ring (`ring`)."""
    value: int = _LONG.unpack_from(_digest(text))[0]
    return value


def hash_int(text: str) -> int:
    """Return the signed 32-bit hash: an index into a list of hosts (`other_routes`)."""
    value: int = _INT.unpack_from(_digest(text))[0]
    return value


def java_address_text(host: str, port: int, resolved: str | None = None) -> str:
    """Return a socket address as Java writes it, which is what its clients hash.

    `host` is a name or an IP address, `resolved` the address that the name has for the client, None where it was not
    looked up. A name without an address is written as Java 14 and later do; so is an IPv6 address, in brackets.
    """
    literal = _java_ip(host)
    if literal is not None:
        return f"/{literal}:{port}"
    if resolved is None:
        return f"{host}/<unresolved>:{port}"
    return f"{host}/{_java_ip(resolved) or resolved}:{port}"


def _java_ip(text: str) -> str | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return f"[{':'.join(f'{group:x}' for group in _GROUPS.unpack(address.packed))}]"


# ---------------------------------------------------------------------- hosts and routes


NO_SHARD: Final = -1
_LOCATION_VERSION: Final = "1"
BLACKOUT_S: Final = 300.0
"""Seconds for which a host whose connection failed is passed over, unless no other is left."""


def address_of(location: str) -> str:
    """Return the `host:port` of a location; an address stays as it is."""
    return location.rpartition(";")[2]


def split_address(address: str) -> tuple[str, int]:
    """Return host and port. Raises CallerError for what is not `host:port`, or `[address]:port` with IPv6."""
    found = parse_address(address)
    if found is None:
        advice = "Write host:port, or [address]:port with IPv6"
        raise CallerError(f"{address!r} is not the address of a proxy", advice=advice)
    return found


def is_address(location: str) -> bool:
    """Return whether it names a proxy that can be dialled: the owner of a log may be any writer, with a name of its
    own."""
    try:
        split_address(address_of(location))
    except CallerError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class ProxyHost:
    """One proxy, as a client knows it."""

    address: str
    """`host:port`."""
    shard: int = NO_SHARD
    """Which of the instances it is; -1 where they are not numbered."""
    resolved: str | None = None
    """The IP address of its name, where that was looked up. All clients that are to agree look up, or none does."""
    region: str | None = None
    """The region that it announces; None where it announces none, or was named by hand."""

    @property
    def java_text(self) -> str:
        """Its socket address in Java's words. Raises CallerError for what is not an address."""
        return java_address_text(*split_address(self.address), self.resolved)

    @property
    def location(self) -> str:
        """What the proxy calls itself, where its shard is known."""
        return f"{_LOCATION_VERSION};{self.shard};{self.address}"


class Route(Protocol):
    """Chooses a host for a stream."""

    def pick(self, stream: str, now: float, tried: Collection[str] = (), regions: Collection[str] = ()) -> str | None:
        """Return the address to ask about `stream`, none of those in `tried`; None where no other is left.

        Regions in `regions` said that they are not available. A host that failed not long ago is chosen only where no
        other is left.
        """
        ...

    def update(self, hosts: Iterable[ProxyHost], now: float) -> None:
        """Note that these are all hosts that there are now. A host that comes new, or again, is asked again."""
        ...

    def failed(self, address: str, now: float) -> None:
        """Note that the connection to a host failed, or could not be made."""
        ...

    def answered(self, address: str) -> None:
        """Note that a host answered: whatever was held against it is over."""
        ...

    def failed_lately(self, address: str, now: float) -> bool:
        """Return whether a host's connection failed not long ago, and it has not answered since."""
        ...

    def region_of(self, address: str) -> str | None:
        """Return the region that a host is in; None where there are no regions."""
        ...

    def addresses(self) -> tuple[str, ...]:
        """Return all hosts that may be chosen, in an order of the route's own."""
        ...


class Blackouts:
    """Remembers which hosts failed not long ago, and until when that is held against them."""

    def __init__(self, duration_s: float = BLACKOUT_S) -> None:
        self._duration_s = duration_s
        self._until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._until)

    def begin(self, address: str, now: float) -> None:
        """Hold it against a host from now on, anew where it is already."""
        self._until[address] = now + self._duration_s

    def end(self, address: str) -> None:
        """Hold nothing against a host."""
        self._until.pop(address, None)

    def keep(self, addresses: Collection[str]) -> None:
        """Forget all hosts but these."""
        self._until = {address: until for address, until in self._until.items() if address in addresses}

    def at(self, now: float) -> Collection[str]:
        """Return the hosts that are to be passed over at this time."""
        if self._until and min(self._until.values()) <= now:
            self._until = {address: until for address, until in self._until.items() if until > now}
        return self._until.keys()
