"""The hash by which clients spread streams over proxies: upstream's, so that its clients and ours ask the same proxy.

    digest    MD5 of the text's UTF-16 code units, low byte first, without a mark of the byte order
    long      its first 8 bytes as a signed number, low byte first
    int       its first 4 bytes likewise

Java hashes the chars of its strings, so a character above U+FFFF counts as its two surrogates, and half a pair counts
as it stands. MD5 spreads here, it protects nothing: who may choose a stream's name may choose its proxy.
"""

from __future__ import annotations

import hashlib
import ipaddress
from struct import Struct

_LONG = Struct("<q")
_INT = Struct("<i")
_GROUPS = Struct(">8H")


def _digest(text: str) -> bytes:
    return hashlib.md5(text.encode("utf-16-le", "surrogatepass"), usedforsecurity=False).digest()


def hash_long(text: str) -> int:
    """Return the signed 64-bit hash: places on the ring (`ring`)."""
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
