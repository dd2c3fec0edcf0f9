"""`SecurityGate`: what a connection has to prove before any of its requests is heard.

    before            heard                          all else is refused, and noted
    TLS               START_TLS                      where the node takes secured connections only, or asks for a role
    the certificate   nothing: the handshake ends    where it is not good, or has none of the roles that are let in
    AUTH              AUTH                           where the node asks for a proof by SASL

A refused request of version 3 is answered EUA without a message of its own, an add or read of version 2 by 102, as
Apache BookKeeper's bookies do; any other request of version 2 ends the connection. The reason is noted in the audit
trail and never told to the peer (docs/reference/wire.md#authentication-and-tls).

START_TLS is the last that is heard in plain, with one exception for Java's sake: its clients with SASL send their first
AUTH message, which is empty, right behind START_TLS without waiting. That one is kept and answered under TLS. Whoever
puts it there from outside gains a challenge that the client is sent; anything that says more is cut.

A gate takes the place of its connection at the link until all is proved. Then it hands the link over, so that it costs
nothing from there on; what is left of it answers whether the proof still holds. While it is shut its connection counts
as one that has asked nothing yet, and goes first where there are too many (`transport.admission`). Where something must
be proved, those that have not done so are bounded in number and in time as well (`unproved`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from metadata.foundation.errors import InvariantViolation
from metadata.foundation.pacing import MessageLimit
from metadata.security.audit import NOWHERE, Noted
from metadata.security.certificates import pem_blocks
from metadata.security.errors import PeerRefusedError
from metadata.security.exchange import Authenticator, ChannelFacts
from metadata.security.identity import TlsIdentity
from metadata.security.principals import Principal
from metadata.security.sasl.binding import server_end_point
from metadata.security.settings import SecurityMode
from storage_node.bookie.requests.connections import ServedConnection
from storage_node.bookie.requests.dialects import VERSION_THREE, VERSION_TWO, Heard, Misversioned
from storage_node.bookie.requests.unproved import Unproved
from storage_node.edge import TlsTerms
from storage_node.errors import ProtocolError, TlsError, TooManyFieldsError
from storage_node.protocol import v2
from storage_node.protocol.authentication import ServerAuthentication
from storage_node.protocol.encoding import (
    encode_auth_response,
    encode_error_response,
    encode_start_tls_response,
)
from storage_node.protocol.schema import Operation, Status
from storage_node.protocol.values import (
    AddRequest,
    AuthRequest,
    BatchReadRequest,
    ReadRequest,
    StartTlsRequest,
)
from storage_node.transport.tls import securable

CONNECTION: Final = "connection"
"""The event of the audit trail under which connections are noted."""

MAX_UNPROVEN: Final = 100
"""Messages that are answered on one connection before it is heard: a peer that reads nothing leaves each answer here,
and each refusal takes a note."""


@dataclass(frozen=True)
class NodeSecurity:
    """What does a storage node ask of its clients?"""

    mode: SecurityMode
    identity: TlsIdentity | None
    """None: no TLS."""
    roles: frozenset[str] = frozenset()
    """A client's certificate has to name one of them; empty: any, or none at all."""
    authenticators: Mapping[str, Authenticator] = field(default_factory=dict)
    """Proofs by AUTH, by the names of their plug-ins; empty: none is asked for."""
    audit: Noted = NOWHERE
    handshake_s: float = 10.0

    @property
    def asks(self) -> bool:
        """Connections have to prove something, or may be secured."""
        return self.mode is not SecurityMode.OFF or self.demands

    @property
    def demands(self) -> bool:
        """Connections have to prove something."""
        return self.mode is SecurityMode.ON or bool(self.roles or self.authenticators)


class SecurityGate:
    """May this connection's requests be heard? The `FrameHandler` of its link until they may."""

    def __init__(
        self, security: NodeSecurity, connection: ServedConnection, lines: MessageLimit, unproved: Unproved
    ) -> None:
        self._security = security
        self._connection = connection
        self._link = connection.link
        self._lines = lines
        self._unproved = unproved
        if security.demands:
            unproved.came(self)
        self._facts = ChannelFacts(self._link.peer)
        self._authentication = ServerAuthentication(security.authenticators, self._facts)
        self._under_tls = False
        self._certificate: bytes | None = None
        """The client's, if it has shown one."""
        self._shown: tuple[bytes, ...] | None = None
        """The certificates that it has shown beside that (DER); None: they are not known."""
        self._refused: str | None = None
        """Why nothing is heard from this client any more."""
        self._messages = 0
        self._warned = False
        self._open = False
        self._dialect = VERSION_THREE
        self._starting: StartTlsRequest | None = None
        """START_TLS that is answered when all that came with it has been heard."""
        self._early: AuthRequest | None = None
        """The empty AUTH that came in plain behind it, or before it."""

    # ------------------------------------------------------------------------------------ FrameHandler

    def frame_received(self, frame: memoryview) -> None:
        """Hear what proves something; refuse everything else."""
        if self._open:  # behind the last proof, in the same read
            self._connection.frame_received(frame)
            return
        if self._starting is not None:
            if not self._hear_early(frame):
                reason = "bytes came in plain behind the last frame before TLS"
                self._note(False, reason, None)
                raise ProtocolError(reason, node=self._link.peer)
            return
        request = self._decode(frame)
        self._messages += 1
        if self._messages > MAX_UNPROVEN:
            reason = self._refused or f"the client has sent {MAX_UNPROVEN} messages, and proved nothing by them"
            self._tell(reason)
            self._link.close()
        elif self._refused is not None:
            self._refuse(request, self._refused)
        elif isinstance(request, StartTlsRequest):
            self._start_tls(request)
        elif self._comes_before_tls(request):
            # Java sends both from two threads: mostly behind START_TLS, on a busy machine before it.
            self._dialect = VERSION_THREE  # START_TLS is of version 3, whatever this was
        elif self._security.mode is SecurityMode.ON and not self._under_tls:
            self._refuse(request, "the connection is not secured")
        elif isinstance(request, AuthRequest):
            self._auth(request)
        elif self._security.roles and not self._under_tls:
            self._refuse(request, "the connection is not secured, and so shows no role")
        elif not self._authentication.proven:
            self._refuse(request, "the client has not proved who it is")
        elif self._enter("a plain connection"):
            self._connection.frame_received(frame)

    def batch_done(self) -> None:
        """Pass it on, once the connection is heard; begin TLS where that was asked for."""
        # A turn of the loop, or the read, may end between START_TLS and what Java sends right behind it: that is heard.
        early = bool(self._security.authenticators) and self._early is None
        if self._starting is not None and (not early or securable(self._link).between_frames):
            starting, self._starting = self._starting, None
            self._begin_tls(starting)
        if self._open:
            self._connection.batch_done()

    def link_closed(self, error: Exception | None) -> None:
        """End the connection."""
        self._unproved.left(self)
        self._connection.link_closed(error)

    def _decode(self, frame: memoryview) -> Heard:
        try:
            return self._dialect.decode(frame)
        except TooManyFieldsError:
            raise
        except ProtocolError:
            if self._dialect is VERSION_TWO:
                raise
        request = VERSION_TWO.decode(frame)
        self._dialect = VERSION_TWO
        return request

    # ------------------------------------------------------------------------------------ proofs

    def _start_tls(self, request: StartTlsRequest) -> None:
        identity = self._security.identity
        if identity is None or self._under_tls:
            self._link.send(encode_error_response(request.txn_id, Operation.START_TLS, Status.EBADREQ))
            if self._under_tls:
                self._turn_away("TLS was asked for twice")
                self._link.close()
            return
        self._starting = request
        self._unproved.began(self)

    def _hear_early(self, frame: memoryview | bytes) -> bool:
        """Keep the one message that may come in plain behind START_TLS. Returns whether it is that."""
        try:
            request = self._decode(memoryview(frame))
        except ProtocolError:
            return False
        return self._keep_early(request)

    def _comes_before_tls(self, request: Heard) -> bool:
        """Keep the same message where TLS is demanded and START_TLS has not come yet. Returns whether it is that.

        Who never sends START_TLS gets no answer to it, and is cut when the time for a proof is over.
        """
        return self._security.mode is SecurityMode.ON and not self._under_tls and self._keep_early(request)

    def _keep_early(self, request: Heard) -> bool:
        if self._early is not None or not isinstance(request, AuthRequest) or request.payload:
            return False
        if request.plugin not in self._security.authenticators:
            return False
        self._early = request
        self._unproved.began(self)
        return True

    def _begin_tls(self, request: StartTlsRequest) -> None:
        identity = self._security.identity
        if identity is None:
            raise InvariantViolation("TLS is begun without certificates")
        material, context = identity.material, identity.server_context()
        while identity.material is not material:  # a thread has exchanged them between the two
            material, context = identity.material, identity.server_context()
        self._facts = ChannelFacts(
            self._link.peer, secured=True, binding=lambda: server_end_point(pem_blocks(material.chain)[0].body)
        )
        self._link.send(encode_start_tls_response(request.txn_id))
        early = self._hear_early if self._security.authenticators else None
        terms = TlsTerms(context, server_side=True, limit_s=self._security.handshake_s, plain_behind=early)
        securable(self._link).start_tls(terms, self._secured)
        self._under_tls = True  # what follows is heard under TLS, or not at all

    def _secured(self, error: TlsError | None) -> None:
        if error is not None:
            self._note(False, str(error), None)
            return
        try:
            principal = self._judge()
        except PeerRefusedError as refusal:
            self._turn_away(str(refusal))
            return
        self._dialect = VERSION_THREE  # what was said before TLS counts for nothing
        self._facts = ChannelFacts(self._facts.peer, secured=True, certificate=principal, binding=self._facts.binding)
        self._authentication.secured(self._facts)
        if self._authentication.proven:
            self._enter("TLS")
        elif self._early is not None:
            self._auth(self._early)

    def _judge(self) -> Principal | None:
        """Return whom the client's certificate names, None where it has shown none. Raises PeerRefusedError."""
        security, identity = self._security, self._security.identity
        certificate = securable(self._link).certificate
        if certificate is None or identity is None:
            if security.roles:
                raise PeerRefusedError("the client has shown no certificate, and so no role")
            return None
        self._shown = securable(self._link).shown
        reason = identity.judge(certificate, shown=self._shown)
        if reason is not None:
            raise PeerRefusedError(f"the client's certificate is not good: {reason}")
        principal = identity.principal_of(certificate)
        self._connection.principal = principal
        if security.roles and not principal.roles & security.roles:
            raise PeerRefusedError(
                f"the client's roles ({', '.join(sorted(principal.roles)) or 'none'}) are none of those that are let "
                f"in ({', '.join(sorted(security.roles))})"
            )
        self._certificate = certificate
        return principal

    def _auth(self, request: AuthRequest) -> None:
        self._unproved.began(self)
        answer = self._authentication.auth(request.plugin, request.payload)
        version_3 = request.version == 3
        if answer.refused is not None:
            self._tell(answer.refused)
            if version_3:
                self._link.send(encode_error_response(request.txn_id, Operation.AUTH, Status.EUA))
            if answer.closes or not version_3:
                self._link.close()
            return
        if answer.payload is not None:
            self._link.send(
                encode_auth_response(request.txn_id, Status.EOK, answer.plugin, answer.payload)
                if version_3
                else v2.encode_auth(answer.plugin, answer.payload, version=request.version)
            )
        if self._authentication.principal is not None:
            self._connection.principal = self._authentication.principal
            self._enter("AUTH")

    # ------------------------------------------------------------------------------------ outcomes

    def _enter(self, by: str) -> bool:
        """Let the connection be heard from now on, unless that could not be noted."""
        unnoted = self._security.audit.refuses
        if unnoted is not None:
            self._turn_away(f"the audit trail cannot be written: {unnoted}")
            self._link.close()
            return False
        self._open = True
        self._unproved.left(self)
        principal = self._connection.principal
        self._note(True, by, principal)
        securable(self._link).deliver_to(self._connection)
        return True

    def _turn_away(self, reason: str) -> None:
        """Hear nothing from this client any more."""
        self._refused = reason
        self._tell(reason)

    def _tell(self, reason: str) -> None:
        self._lines.log(logging.WARNING, "refusing %s: %s", self._link.peer, reason)
        self._note(False, reason, self._connection.principal)

    def _note(self, allowed: bool, reason: str, principal: Principal | None, request: str | None = None) -> None:
        self._security.audit.note(
            CONNECTION,
            allowed=allowed,
            reason=reason,
            principal=None if principal is None else principal.name,
            scheme=None if principal is None else principal.scheme.value,
            peer=self._link.peer,
            request=request,
        )

    def _refuse(self, request: Heard, reason: str) -> None:
        """Refuse a request as upstream's bookies do."""
        if isinstance(request, Misversioned):
            raise ProtocolError(f"{reason}, and version 2 has no answer to that", node=self._link.peer)
        if isinstance(request, BatchReadRequest) or (
            isinstance(request, AuthRequest | AddRequest | ReadRequest) and request.version != 3
        ):
            self._refuse_version_2(request, reason)
        else:
            self._link.send(encode_error_response(request.txn_id, request.operation, Status.EUA))
        if not self._warned:  # the trail has the others
            self._warned = True
            self._lines.log(logging.WARNING, "refusing %s: %s", self._link.peer, reason)
        self._note(False, reason, self._connection.principal, request.operation.name)

    def _refuse_version_2(
        self, request: AddRequest | ReadRequest | BatchReadRequest | AuthRequest, reason: str
    ) -> None:
        if isinstance(request, AddRequest):
            self._link.send(VERSION_TWO.added(request, Status.EUA))
        elif isinstance(request, ReadRequest):
            self._link.send(VERSION_TWO.no_entry(request, Status.EUA))
        else:
            self._note(False, reason, self._connection.principal, request.operation.name)
            raise ProtocolError(f"{reason}, and version 2 has no answer to that", node=self._link.peer)

    def why_no_more(self, now_s: float) -> str | None:
        """Return why a client that was let in may not stay; None: it may."""
        identity, principal = self._security.identity, self._connection.principal
        if self._certificate is not None and identity is not None:
            reason = identity.judge(self._certificate, now_s, self._shown)
            if reason is not None:
                return f"the client's certificate is not good any more: {reason}"
        if principal is not None and principal.expired(now_s):
            return "the client's proof has expired"
        return self._authentication.still()

    def has_more(self) -> bool:
        """Return whether bytes of the client have come that were not read yet."""
        return securable(self._link).has_more()

    def turn_out(self, reason: str) -> None:
        """Close the connection of a client that has proved nothing."""
        self._tell(reason)
        self._link.close()

    def end(self, reason: str) -> None:
        """Close the connection of a client that may not stay."""
        self._tell(reason)
        self._connection.close()
