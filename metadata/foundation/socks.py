"""SOCKS version 4, as a client: TCP connections by way of a proxy, where `DLSPARK_SOCKS` names one.

A process that cannot reach the servers by their own addresses (a laptop beside a cluster, with `ssh -D 1080 bastion`)
or that must not (a region of the sandbox, whose connections to others are delayed and cut) sets two variables:

    DLSPARK_SOCKS         host:port of the proxy, with or without `socks4://` before it
    DLSPARK_SOCKS_DIRECT  hosts, separated by commas, that are dialled without it; empty: none

They hold for the connections of this process to ZooKeeper, storage nodes and proxies, but for gRPC to these; its own
servers listen as ever. Version 4 has one question and one answer. Names are given to the proxy to resolve (version 4a),
but for those of hosts that are dialled without it; IPv6 it cannot carry.
The protocol is D. Koblas' "SOCKS: A protocol for TCP proxy across firewalls", and Y. Lee's extension 4A.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from metadata.foundation.addresses import address_text, parse_address
from metadata.foundation.errors import CallerError
from metadata.foundation.regions import REGION_VARIABLE

VARIABLE: Final = "DLSPARK_SOCKS"
DIRECT_VARIABLE: Final = "DLSPARK_SOCKS_DIRECT"
VERSION: Final = 4
CONNECT: Final = 1
GRANTED: Final = 0x5A
REFUSED: Final = 0x5B
REQUEST_HEAD: Final = struct.Struct(">BBH4s")
"""Version, command, port, IPv4 address; a user's name and a zero follow, and for 0.0.0.x the host's name and a zero."""
ANSWER: Final = struct.Struct(">BBH4s")
"""Zero, result, and six bytes that mean nothing for CONNECT."""
_NAME_FOLLOWS: Final = b"\0\0\0\1"
_SCHEMES: Final = ("socks4://", "socks4a://")


@dataclass(frozen=True, slots=True)
class SocksProxy:
    """By way of which proxy are other hosts reached, and which are not?"""

    host: str
    port: int
    direct: frozenset[str] = frozenset()

    def leads_to(self, host: str) -> bool:
        """Return whether a connection to `host` goes by way of the proxy."""
        return host not in self.direct

    def failure_error(self, answer: bytes, host: str, port: int) -> OSError | None:
        """Return why the proxy did not connect us, by its whole answer; None where it did."""
        if len(answer) == ANSWER.size and answer[0] == 0 and answer[1] == GRANTED:
            return None
        said = "ended the connection" if len(answer) < ANSWER.size else f"answered {answer[1]:#x}"
        where = address_text(self.host, self.port)
        return OSError(errno.ECONNREFUSED, f"the SOCKS proxy {where} {said} for {address_text(host, port)}")


def socks_proxy(environment: Mapping[str, str] = os.environ) -> SocksProxy | None:
    """Return the proxy that the environment names, if it names one. Raises CallerError for a text that is no address:
    going without the proxy would reach other servers than were meant, or none."""
    text = environment.get(VARIABLE, "").strip()
    if not text:
        return None
    address = text
    for scheme in _SCHEMES:
        address = address.removeprefix(scheme)
    parsed = parse_address(address.rstrip("/"))
    if parsed is None:
        # The text is not repeated: where it is wrong, it may hold a password (of version 5), and errors are passed on.
        raise CallerError(
            f"what {VARIABLE} says is not the address of a SOCKS proxy of version 4; nothing was connected",
            advice="Write host:port, without a user or password, or unset it",
        )
    direct = environment.get(DIRECT_VARIABLE, "").split(",")
    return SocksProxy(*parsed, frozenset(filter(None, (host.strip() for host in direct))))


def what_to_check(environment: Mapping[str, str] = os.environ) -> str:
    """Return the advice, behind other advice, for a process that reaches no server: what may be wrong with its way to
    them. Empty where it goes by no proxy."""
    proxy, region = environment.get(VARIABLE, "").strip(), environment.get(REGION_VARIABLE, "").strip()
    if not proxy:
        return ""
    if not region:
        return (
            f". Connections go by way of the SOCKS proxy {proxy} ({VARIABLE}): see that it runs and reaches these "
            "servers, or unset it"
        )
    return (
        f". This process is in region {region} ({REGION_VARIABLE}) and reaches others by way of the gateway {proxy} "
        f"({VARIABLE}). In a sandbox the region may be cut off or killed (dlspark sandbox status): dlspark sandbox "
        f"region heal {region}. Elsewhere see that the gateway runs and reaches these servers"
    )


def connect_request(host: str, port: int) -> bytes:
    """Return the question for a connection to `host`. Raises OSError for an IPv6 address: version 4 has none."""
    try:
        return REQUEST_HEAD.pack(VERSION, CONNECT, port, socket.inet_pton(socket.AF_INET, host)) + b"\0"
    except OSError:
        pass  # a name, or an address of the other kind
    if ":" in host:
        raise OSError(errno.EAFNOSUPPORT, f"a SOCKS proxy of version 4 does not reach the IPv6 address {host}")
    try:
        name = host.encode("idna") if not host.isascii() else host.encode()
    except UnicodeError as error:
        raise OSError(errno.EINVAL, f"{host!r} is not the name of a host: {error}") from error
    return REQUEST_HEAD.pack(VERSION, CONNECT, port, _NAME_FOLLOWS) + b"\0" + name + b"\0"
