"""Where a server may listen without security: on loopback, and elsewhere only if it was told so by name.

Without security whoever reaches a port may read, write and delete everything behind it. So no server of this house
listens on more than this machine's loopback addresses unless its traffic is secured, or one named key,
`insecureListen=allow`, says that the network around it is the protection.

A host name counts as loopback only if it is `localhost`: what another name means is decided elsewhere, and may change.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from metadata.foundation.errors import CallerError
from metadata.foundation.settings import TEXT, setting

INSECURE_LISTEN: Final = "insecureListen"
REFUSE: Final = "refuse"
ALLOW: Final = "allow"
INSECURE_LISTEN_HELP: Final = "Listen on more than loopback though there is no security: insecureListen=allow."
LOOPBACK: Final = "127.0.0.1"


def insecure_listen_setting() -> str:
    """Return the field of the setting, for each server's own settings: one key for all of them."""
    return setting(
        TEXT,
        REFUSE,
        INSECURE_LISTEN,
        "What happens where it would listen on more than loopback without security, so that whoever reaches the port "
        "may read, write and delete: `refuse` ends the start with an error, `allow` says that the network around it is "
        "protection enough",
        choices=(REFUSE, ALLOW),
        own=True,
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on `host`, an address or a name."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


@dataclass(frozen=True, slots=True)
class ListeningRule:
    """Which server is it, how is it set up, and which error says that it may not listen?

    Args:
        what: the server, with its article: "the storage node".
        key: of the setting that says where it listens.
        harm: what those who reach it may do without security.
        secure: how security is switched on for it, as advice has it.
        allowed: the value of `insecureListen`.
    """

    what: str
    key: str
    allowed: str = REFUSE
    harm: str = "read, write and delete everything"
    secure: str = "switch security on (security=on)"
    error: Callable[..., CallerError] = CallerError

    def host(self, host: str, *, secured: bool, advertised: str = "") -> str:
        """Return where to listen. Raises the rule's error where that may not be.

        Args:
            host: as the settings have it; empty: every address, or, where nothing makes that safe, the loopback address
                that is `advertised` to clients.
            secured: peers have to prove who they are before anything is heard.
        """
        if secured or self.allowed == ALLOW or is_loopback(host):
            return host
        if not host and is_loopback(advertised):
            return LOOPBACK if advertised.lower() == "localhost" else advertised.strip("[]")
        where = "every address of this machine" if host in ("", "0.0.0.0", "::") else host  # noqa: S104  # a comparison
        raise self.error(
            f"{self.what} would listen on {where} without security: whoever reaches the port could {self.harm}. "
            "It did not start",
            advice=f"For this machine alone set {self.key}={LOOPBACK}; for others {self.secure}; or, in a network that "
            f"only trusted users reach, set {INSECURE_LISTEN}={ALLOW} (--insecure-listen)",
        )
