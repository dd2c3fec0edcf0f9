"""Addresses as text: `host:port`. An IPv6 address has colons itself, so it stands in square brackets: `[::1]:3181`."""

from __future__ import annotations

import re
from typing import Final

_ADDRESS: Final = re.compile(r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<name>[^\[\]:]+)):(?P<port>[0-9]{1,5})")


def host_text(host: str) -> str:
    """Return a host as it stands before a port: one with colons in brackets."""
    return f"[{host}]" if ":" in host else host


def address_text(host: str, port: int) -> str:
    """Return `host:port`."""
    return f"{host_text(host)}:{port}"


def parse_address(text: str) -> tuple[str, int] | None:
    """Return the host, without brackets, and a port from 1 to 65535; None for a text that has another form."""
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found["port"]) < 65536:
        return None
    return found["ipv6"] or found["name"], int(found["port"])
