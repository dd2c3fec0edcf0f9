"""Option `proxy`: through which proxies of the serving tier a query reads or writes.

    discover                     those that are announced in the namespace
    host:port,host:port          these: read proxies for a source, write proxies for a sink

Addresses are those at which proxies speak frames (`dlspark proxy list`). What is neither of the two is an error that
says which part is wrong: an address that cannot be dialled would else be found out by tasks, minutes later.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

from dlspark.spark.errors import OptionError
from metadata.foundation.settings import Kind, nearest, shown

PROXY: Final = "proxy"
DISCOVER: Final = "discover"
KEY_VARIABLE: Final = "DLSPARK_TOKEN_KEY"
"""Has the key by which the driver makes tokens for its tasks: nobody else is to have it."""
MAX_ADDRESSES: Final = 1_000
"""Proxies that a list may name: it travels with every task."""
_ADDRESS: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]{2,45}(?:%\w{1,32})?\]|[^\s:/@;,\[\]]{1,255}):([0-9]{1,5})", re.ASCII)
_EXAMPLE: Final = "Write discover, or addresses as proxy-1:8100,proxy-2:8100 (`dlspark proxy list` shows them)"


@dataclass(frozen=True, slots=True)
class ProxyChoice:
    """The proxies that a query goes through, as the option names them."""

    addresses: tuple[str, ...] = ()
    """`host:port` of each proxy of a list; empty: those that the namespace announces."""

    @property
    def discover(self) -> bool:
        """Whether the proxies are to be looked up in the namespace."""
        return not self.addresses

    @classmethod
    def parse(cls, text: str) -> ProxyChoice:
        """Read the option's value. Raises OptionError."""
        if text.strip().lower() == DISCOVER:
            return cls()
        addresses = tuple(part.strip() for part in text.split(","))
        if len(addresses) > MAX_ADDRESSES:
            raise OptionError(
                f"{PROXY} names {len(addresses):,} proxies; {MAX_ADDRESSES:,} may be",
                advice="Name fewer: any of them leads to all logs",
            )
        for address in addresses:
            _check(address, text)
        # Names of hosts have no case. A proxy that is named twice would be asked twice.
        twice = [address for address, count in Counter(map(str.lower, addresses)).items() if count > 1]
        if twice:
            raise OptionError(f"{PROXY} names {twice[0]} twice: {shown(text)}", advice="Name each proxy once")
        return cls(addresses)


def _check(address: str, text: str) -> None:
    found = _ADDRESS.fullmatch(address)
    if found is not None and 0 < int(found[1]) < 65536:
        return
    if not address:
        raise OptionError(f"{PROXY}={shown(text)} names no proxy between two commas", advice=_EXAMPLE)
    if found is not None:
        raise OptionError(f"{PROXY}: {address} has a port outside 1..65535", advice=_EXAMPLE)
    if "://" in address:
        raise OptionError(
            f"{PROXY}: {shown(address)} is a URI, not the address of a proxy",
            advice=f"Write {DISCOVER} for the proxies that are announced in the namespace, or host:port without more",
        )
    if ":" not in address:
        advice = nearest(address, (DISCOVER,), "docs/settings/spark.md")
        meant = advice.startswith("Did you mean")
        said = "the address of a proxy: it has no port" if not meant else f"{DISCOVER} or the address of a proxy"
        raise OptionError(f"{PROXY}: {shown(address)} is not {said}", advice=advice if meant else _EXAMPLE)
    raise OptionError(f"{PROXY}: {shown(address)} is not host:port, nor [address]:port with IPv6", advice=_EXAMPLE)


def _take(value: object) -> ProxyChoice:
    if not isinstance(value, ProxyChoice):
        raise ValueError(value)
    return value


PROXIES: Final[Kind[ProxyChoice]] = Kind("discover, or addresses of proxies", ProxyChoice.parse, _take)
