"""What an AUTH exchange is to the node and the client that carry its messages: plug-ins by name, steps, a principal.

A node has some `Authenticator`s, each under the name of its plug-in (`authPluginName` of the messages); a client has
one `ClientAuthenticator`. Each connection has an exchange of its own, which is thrown away with it. Nothing here knows
how messages are framed; nothing that carries them knows what they mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from metadata.security.principals import Principal

DISABLED_PLUGIN: Final = "AuthDisabledPlugin"
"""What upstream's bookie names in its answer when it asks for no proof, or for no further one."""
SASL_PLUGIN: Final = "sasl"
"""Upstream's plug-in for DIGEST-MD5 and GSSAPI."""
SCRAM_PLUGIN: Final = "dlspark-scram-sha-256"
"""Ours: no plug-in of upstream's speaks SCRAM."""


def _no_binding() -> bytes | None:
    return None


@dataclass(frozen=True, slots=True)
class ChannelFacts:
    """What is known of a connection before anything is said on it?"""

    peer: str
    """The other end: `host:port`; to a client the host alone that it dialled, which Kerberos needs."""
    secured: bool = False
    """True inside TLS."""
    certificate: Principal | None = None
    """Whom the other end's certificate names."""
    binding: Callable[[], bytes | None] = _no_binding
    """The channel binding of the connection's TLS (`tls-server-end-point`); None without TLS."""


@dataclass(frozen=True, slots=True)
class Step:
    """What follows from a client's message?"""

    payload: bytes | None
    """To be sent, also where it is empty; None: nothing is."""
    principal: Principal | None
    """Who the client has proved to be; None: the exchange goes on."""


class Exchange(Protocol):
    """What does a node do with the AUTH messages of one connection?"""

    def step(self, payload: bytes) -> Step:
        """Take the client's message. Raises SaslError, whose text is for the audit trail and not for the peer."""
        ...


class Authenticator(Protocol):
    """Which proof does a node take, and of whom?"""

    @property
    def plugin(self) -> str:
        """The name that AUTH messages carry."""
        ...

    def begin(self, facts: ChannelFacts) -> Exchange:
        """Return the exchange of a new connection. Raises SaslError where the connection may not have one."""
        ...

    def still(self, principal: Principal) -> str | None:
        """Return why somebody who was let in may not stay; None: may."""
        ...


class ClientExchange(Protocol):
    """What does a client say on one connection?"""

    @property
    def done(self) -> bool:
        """True once both sides have proved what they had to."""
        ...

    def first(self) -> bytes:
        """Return the first message, perhaps an empty one. Raises SaslError."""
        ...

    def step(self, payload: bytes) -> bytes | None:
        """Take the node's message and return the next one, or None where nothing is to be sent. Raises SaslError."""
        ...


class ClientAuthenticator(Protocol):
    """As whom does a client ask for entry?"""

    @property
    def plugin(self) -> str:
        """The name that AUTH messages carry."""
        ...

    @property
    def blocks(self) -> bool:
        """True where a step may ask others over the network, for seconds: it is run on a thread then."""
        ...

    def begin(self, facts: ChannelFacts) -> ClientExchange:
        """Return the exchange of a new connection. Raises SaslError where nothing may be said on it."""
        ...
