"""The AUTH exchange of a connection, both sides, without any I/O (docs/reference/wire.md#authentication-and-tls).

What a node does with an AUTH message, by what it asks for and what the connection has proved:

    asks for   message                    proved   answer
    nothing    any                        -        AuthDisabledPlugin, empty
    proof      of a plug-in it has        no       the plug-in's next message, or refused for good
    proof      of another plug-in         no       refused; version 2 closes, version 3 may try again, a few times
    proof      any                        yes      AuthDisabledPlugin, empty: there is nothing more to prove

Every other request of a connection that has not proved itself is refused by the node's gate. Once an exchange has
failed, the connection is over: no second guess on it. What was said before TLS counts for nothing after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from metadata.foundation.errors import InvariantViolation
from metadata.security.exchange import (
    DISABLED_PLUGIN,
    Authenticator,
    ChannelFacts,
    ClientAuthenticator,
    ClientExchange,
    Exchange,
)
from metadata.security.principals import Principal
from metadata.security.sasl.machine import MAX_MESSAGE_BYTES, SaslError
from storage_node.protocol.schema import Status

MAX_STRANGE_PLUGINS: Final = 3
"""How many messages of plug-ins that a node does not have it answers on a connection before it closes it."""


@dataclass(frozen=True, slots=True)
class AuthAnswer:
    """What does a node answer to an AUTH message?"""

    plugin: str
    payload: bytes | None
    """To be sent with EOK; None: nothing is sent, unless it was refused."""
    refused: str | None = None
    """Why, for the audit trail and never for the peer, which gets EUA in version 3 and nothing in version 2."""
    closes: bool = False
    """The connection is closed, behind the answer. Version 2 closes whatever is refused."""


_NOTHING_MORE: Final = AuthAnswer(DISABLED_PLUGIN, b"")


class ServerAuthentication:
    """What has a client proved, and what does a node answer to its AUTH messages? One for each connection.

    Args:
        authenticators: the node's plug-ins by name; none: nothing is asked for by AUTH.
        facts: what is known of the connection.
    """

    def __init__(self, authenticators: Mapping[str, Authenticator], facts: ChannelFacts) -> None:
        self._authenticators = authenticators
        self._facts = facts
        self._exchange: Exchange | None = None
        self._plugin = ""
        self._strange = 0
        self._failed = False
        self._principal: Principal | None = None

    @property
    def proven(self) -> bool:
        """True once the client has proved itself, and from the start where no proof is asked for."""
        return not self._authenticators or self._principal is not None

    @property
    def principal(self) -> Principal | None:
        """Who the client has proved to be by AUTH."""
        return self._principal

    def secured(self, facts: ChannelFacts) -> None:
        """Note that the connection is inside TLS now. Whatever was begun outside of it is void."""
        if self._principal is not None:
            raise InvariantViolation("TLS was begun on a connection that had proved itself")
        self._facts = facts
        self._exchange = None

    def auth(self, plugin: str, payload: bytes) -> AuthAnswer:
        """Take an AUTH message. Never raises for what a client sends."""
        if self._failed:
            return AuthAnswer(plugin, None, "a message after the exchange had failed", True)
        if self.proven:
            return _NOTHING_MORE
        if plugin not in self._authenticators:
            return self._strange_plugin(plugin)
        try:
            return self._step(plugin, payload)
        except SaslError as error:
            self._failed = True
            return AuthAnswer(plugin, None, str(error), True)

    def _step(self, plugin: str, payload: bytes) -> AuthAnswer:
        if len(payload) > MAX_MESSAGE_BYTES:
            raise SaslError(f"an AUTH message of {len(payload)} bytes, where at most {MAX_MESSAGE_BYTES} are taken")
        if self._exchange is None:
            self._exchange = self._authenticators[plugin].begin(self._facts)
            self._plugin = plugin
        elif plugin != self._plugin:
            raise SaslError(f"the plug-in changed from {self._plugin} to {plugin} within an exchange")
        step = self._exchange.step(payload)
        if step.principal is not None:
            self._principal = step.principal
            self._exchange = None
        return AuthAnswer(plugin, step.payload)

    def _strange_plugin(self, plugin: str) -> AuthAnswer:
        self._strange += 1
        over = self._exchange is not None or self._strange >= MAX_STRANGE_PLUGINS
        self._failed = over
        known = ", ".join(sorted(self._authenticators))
        return AuthAnswer(plugin, None, f"the client's plug-in {plugin[:80]!r} is not one of {known}", over)

    def still(self) -> str | None:
        """Return why the client may not stay, though it was let in; None: it may, or nothing was proved by AUTH."""
        if self._principal is None:
            return None
        return self._authenticators[self._plugin].still(self._principal)


class ClientAuthentication:
    """What does a client say, and when may its requests leave? One for each connection.

    Args:
        authenticator: as whom it enters.
        facts: what is known of the connection.
        demands: whether a node that asks for no proof is refused: it would not have proved itself either. Without it,
            as upstream's clients do, the client goes on.
    """

    def __init__(self, authenticator: ClientAuthenticator, facts: ChannelFacts, *, demands: bool) -> None:
        self._authenticator = authenticator
        self._facts = facts
        self._demands = demands
        self._exchange: ClientExchange | None = None
        self._disabled = False

    @property
    def done(self) -> bool:
        """True once requests may leave."""
        return self._disabled or (self._exchange is not None and self._exchange.done)

    @property
    def blocks(self) -> bool:
        """True where a step may take seconds, as it asks others over the network: it is to be run on a thread."""
        return self._authenticator.blocks

    def first(self) -> tuple[str, bytes]:
        """Return the plug-in and the payload of the first message. Raises SaslError."""
        self._exchange = self._authenticator.begin(self._facts)
        return self._authenticator.plugin, self._exchange.first()

    def answered(self, status: int, plugin: str, payload: bytes) -> bytes | None:
        """Take the node's answer; return the next payload, or None where nothing is to be sent.

        Raises SaslError: the node refused, or has not proved itself; nothing but AUTH messages was sent.
        """
        exchange = self._exchange
        if exchange is None or self.done:
            return None  # the answer to a last message that was sent when all was proved
        if status != Status.EOK:
            raise SaslError(
                f"the storage node refused the client (plug-in {self._authenticator.plugin}); nothing else was sent",
                advice="Its audit trail says why: an unknown name, another password, or a name that is not allowed",
            )
        if plugin == DISABLED_PLUGIN:
            if self._demands:
                raise SaslError(
                    "the storage node asks for no proof, and so gives none either; nothing was sent to it",
                    advice="It is set up without bookieAuthProviderFactoryClass, or it is not the node that was meant",
                )
            self._disabled = True
            return None
        if plugin != self._authenticator.plugin:
            raise SaslError(f"the storage node answers by another plug-in, {plugin[:80]!r}")
        if len(payload) > MAX_MESSAGE_BYTES:
            raise SaslError(f"the storage node's AUTH message has {len(payload)} bytes")
        return exchange.step(payload)
