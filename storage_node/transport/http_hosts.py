"""`names_this_machine`: whether a plain page of this machine may be shown under the name that a request asks it by.

A page that listens on loopback is for programs of its machine, and a browser is one. A web site can let its own name
lead to 127.0.0.1 (DNS rebinding): the browser takes what the page says for the site's own, and its scripts read it. But
the browser says by which name it came, in `Host`, and no script can change that. So a connection over loopback is
answered for names of this machine alone:

    an address                      a site that is called by its address is at that address, and nowhere else
    localhost, and names below it   these lead to loopback, whatever DNS says
    a name without a dot, or that ends in `.internal`, `.local`, `.localdomain` or `.home.arpa`
                                    nobody can have these in the public DNS: a container's host, this machine
    this machine's host name, as the machine itself says it (without DNS, which would keep the loop)
    none                            no browser leaves it out; probes that speak HTTP/1.0 do

Connections by other addresses are not held to that: who can reach these needs no browser of somebody else's, and by
which names they are known here is not known. Nor are those under TLS: the certificate is not the site's.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Final

_PRIVATE: Final = (".localhost", ".internal", ".local", ".localdomain", ".home.arpa")
"""Ends of names that nobody can register: RFC 6761, RFC 6762, RFC 8375, ICANN's resolution 2024.07.29.06."""
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([A-Za-z0-9._-]*))(?::[0-9]{1,5})?", re.ASCII)


def names_this_machine(head: bytes, local: str) -> bool:
    """Return whether a request may be answered.

    Args:
        head: all of its head.
        local: this side's address of the connection.
    """
    if not _is_loopback(local):
        return True
    hosts = [value for name, value in _fields(head) if name == "host"]
    if not hosts:
        return True
    return len(hosts) == 1 and _is_own(hosts[0])


def _fields(head: bytes) -> list[tuple[str, str]]:
    lines = head.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
    split = [line.partition(":") for line in lines]
    return [(name.strip().lower(), value.strip()) for name, _, value in split]


def _is_own(host: str) -> bool:
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    if found[1] is not None or _is_address(found[2]):
        return True
    name = found[2].lower().removesuffix(".")
    if not name:
        return False
    return "." not in name or name.endswith(_PRIVATE) or name == socket.gethostname().lower()


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_loopback(local: str) -> bool:
    try:
        address = ipaddress.ip_address(local.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
