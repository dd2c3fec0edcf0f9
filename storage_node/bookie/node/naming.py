"""What a node is called and where clients find it: what the settings say, else what the machine says.

The id is `bookieId`, else `host:port`; the host is `advertisedAddress`, else the listening address, else this machine's
address (by `useHostNameAsBookieID`: its name). A machine that knows itself only by a loopback address is called by its
name, since nobody else could use that address.
"""

from __future__ import annotations

import socket
from importlib import metadata as installed

from metadata.bookies import BookieAddress
from storage_node.errors import BookieConfigurationError
from storage_node.settings.bookie import BookieSettings

_ANY = ("", "0.0.0.0", "::")


def software_version() -> str | None:
    """The installed version of this software, for operators; None where it runs without being installed."""
    try:
        return installed.version("dlspark")
    except installed.PackageNotFoundError:
        return None


def name_bookie(settings: BookieSettings, port: int) -> BookieAddress:
    """Id and address. Raises BookieConfigurationError for a loopback address that nobody asked for."""
    host = settings.advertised_address or _own_host(settings)
    if not settings.allow_loopback and not settings.advertised_address and _is_loopback(host):
        raise BookieConfigurationError(
            f"the node would advertise the loopback address {host}",
            advice="Set advertisedAddress, or allowLoopback=true for a cluster on one machine",
        )
    return BookieAddress(settings.bookie_id or f"{host}:{port}", host, port)


def _own_host(settings: BookieSettings) -> str:
    listening = settings.listening_address
    if settings.use_host_name_as_bookie_id:
        return socket.gethostname() if listening in _ANY else socket.getfqdn(listening)
    if listening not in _ANY:
        return listening
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return name
    return name if _is_loopback(address) else address


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or host.startswith("127.")
