"""`ClientSecurity`: a connection to a storage node is secured, and proves who is there, before any request leaves.

    connect ── START_TLS ──> EOK, handshake ── AUTH ──> done: the link goes to its channel

What a node does instead decides, in all three of the client's modes:

    node                       off                on                            optional
    refuses START_TLS          -                  SecureConnectionError         goes on in plain, and says so in the log
    certificate is not good    -                  SecureConnectionError         SecureConnectionError
    asks for no proof          by the settings of the proof (`protocol.authentication`)

So with security on nothing is ever sent in plain but the words START_TLS, whoever stands in between. With `optional` an
attacker in between can keep the connection plain: that mode is for the middle of a change, and for nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias, TypeVar

from metadata.foundation.errors import DistributedLogError
from metadata.foundation.tasks import end_tasks
from metadata.security.certificates import CertificateFacts, read_certificate
from metadata.security.exchange import ChannelFacts
from metadata.security.identity import TlsIdentity, TlsMaterial
from metadata.security.sasl.binding import server_end_point
from metadata.security.settings import SecurityMode, SecuritySettings, client_identity
from storage_node.edge import FrameHandler, Link, Network, TlsTerms
from storage_node.errors import ProtocolError, SecureConnectionError, TlsError
from storage_node.protocol.authentication import ClientAuthentication
from storage_node.protocol.decoding import decode_response
from storage_node.protocol.encoding import encode_auth_request, encode_start_tls_request
from storage_node.protocol.schema import Operation, Status
from storage_node.protocol.values import AuthResponse, Response
from storage_node.settings.client import ClientSettings
from storage_node.transport.tls import insecure_error, securable

T = TypeVar("T")
logger = logging.getLogger(__name__)

Authenticating: TypeAlias = Callable[[ChannelFacts], ClientAuthentication]
"""Begins the proof of a new connection."""

RENEW_BEFORE_S: Final = 30.0
"""So long before a certificate ends the links that rest on it are made anew."""
_TXN_IDS: Final = itertools.count(1)
"""Of the few messages before a connection's first request."""


@dataclass(frozen=True, slots=True)
class LinkProof:
    """By what was a link secured?"""

    generation: int | None = None
    """Of the client's certificates, by which the link was last found good; None: there is nothing to end."""
    material: TlsMaterial | None = None
    """The client's certificates themselves."""
    certificate: bytes | None = None
    """The node's."""
    shown: tuple[bytes, ...] | None = None
    """What the node showed beside it; None: that is not known."""
    ends_s: float | None = None
    """Seconds since the epoch at which the first of both sides' certificates ends."""


class ClientSecurity:
    """How do a ledger client's connections prove who is there, on both ends?

    Args:
        settings: what is proved, and whom the client believes.
        environment: this process's, unless given.
        authenticating: begins a proof by AUTH; None: there is none to give.

    Raises:
        IdentityError: certificates cannot be read.
    """

    def __init__(
        self,
        settings: SecuritySettings,
        *,
        environment: Mapping[str, str] | None = None,
        authenticating: Authenticating | None = None,
    ) -> None:
        self.mode = settings.client_mode(environment)
        self.identity = client_identity(settings, environment)
        self.authenticating = authenticating
        self.limit_s = float(settings.start_tls_timeout_s)
        self._refresh_s = settings.tls_cert_files_refresh_duration_s
        self._refreshed_s: float | None = None
        self._looking: asyncio.Task[None] | None = None

    @property
    def asks(self) -> bool:
        """Something has to be done on a connection before its first request."""
        return self.identity is not None or self.authenticating is not None

    def outdated(self, proof: LinkProof) -> bool:
        """Return whether a link should be made anew: what it rests on has changed since, or ends soon."""
        if self.identity is None or proof.generation is None:
            return False
        ends_soon = proof.ends_s is not None and time.time() >= proof.ends_s - RENEW_BEFORE_S
        return ends_soon or proof.generation != self.identity.generation

    def still_good(self, proof: LinkProof) -> LinkProof | None:
        """Return the proof as one of the certificates of now; None: the link has to be made anew for them.

        A new revocation list alone asks for no handshake, of which a cluster would have one on each connection at once.
        """
        if self.identity is None or proof.material is None:
            return None
        generation, now = self.identity.generation, self.identity.material  # in this order, as in `_Entering.begin`
        before = proof.material
        if (now.chain, now.authorities) != (before.chain, before.authorities) or self.why_over(proof) is not None:
            return None
        renewed = replace(proof, generation=generation)
        return None if self.outdated(renewed) else renewed

    def why_over(self, proof: LinkProof) -> str | None:
        """Return why a link must not be used any more: the node's certificate has expired, or was revoked."""
        if self.identity is None or proof.certificate is None:
            return None
        return self.identity.judge(proof.certificate, shown=proof.shown)

    def look(self) -> None:
        """Look in the background whether the files have changed."""
        if self._due() and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self.refresh())

    async def close(self) -> None:
        """End what runs in the background. Idempotent."""
        if self._looking is not None:
            await end_tasks([self._looking], drop_errors=True)
            self._looking = None

    def _due(self) -> bool:
        if self.identity is None or not self._refresh_s:
            return False
        return self._refreshed_s is None or self._now_s() - self._refreshed_s >= self._refresh_s

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

    async def refresh(self) -> None:
        """Look whether the files of certificates have changed, where that is due."""
        if self.identity is not None and self._due():
            self._refreshed_s = self._now_s()
            try:
                await asyncio.to_thread(self.identity.refresh)
            except (
                Exception
            ):  # the boundary: what was read before stays in use, and is looked at again when that is due
                logger.exception("the files of certificates could not be looked at")

    async def connect(
        self, network: Network, host: str, port: int, handler: FrameHandler, *, timeout_ms: int, node: str
    ) -> tuple[Link, LinkProof]:
        """Connect, and hand the link over once all is proved. Returns by what it was secured, too.

        Raises BookieUnreachableError; SecureConnectionError, one of these: both name `node`, and no request was sent.
        """
        if not self.asks:
            return await network.connect(host, port, handler, timeout_ms=timeout_ms), LinkProof()
        await self.refresh()
        entering = _Entering(self, host)
        link = await network.connect(host, port, entering, timeout_ms=timeout_ms)
        try:
            entering.begin(link)
            await asyncio.wait_for(entering.done, self.limit_s)
            if entering.lost is not None:
                raise entering.lost  # in the turn of the loop between the last step and this one
            proof = entering.proof(link)
            securable(link).deliver_to(handler)
        except asyncio.TimeoutError:
            link.close()
            raise _error(link, node, f"{entering.waits_for} did not come within {self.limit_s:g} s") from None
        except SecureConnectionError:
            link.close()
            raise
        except DistributedLogError as error:
            link.close()
            raise _error(link, node, error) from error
        except BaseException:
            link.close()
            raise
        return link, proof


def client_security(settings: ClientSettings, environment: Mapping[str, str] | None = None) -> ClientSecurity:
    """Return what a ledger client's settings prove.

    Raises IdentityError, or the error of a file with names and passwords: it cannot be used.
    """
    authenticating: Authenticating | None = None
    authenticator = settings.proofs.authenticator()
    if authenticator is not None:
        authenticating = partial(ClientAuthentication, authenticator, demands=settings.proofs.demands_proof)
    return ClientSecurity(settings.security, environment=environment, authenticating=authenticating)


def _error(link: Link, node: str, reason: object) -> SecureConnectionError:
    return insecure_error(f"the storage node {node} ({link.peer})", reason, node=node)


class _Entering:
    """Which step comes next on one connection? The `FrameHandler` of its link until its channel has it."""

    def __init__(self, security: ClientSecurity, host: str) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost: TlsError | None = None
        """Why there is no connection any more."""
        self.waits_for = "the answer to START_TLS"
        self._security = security
        self._identity: TlsIdentity | None = security.identity
        self._generation = 0
        self._material: TlsMaterial | None = None
        self._own: CertificateFacts | None = None
        self._host = host
        self._link: Link | None = None
        self._txn_id = 0
        self._authentication: ClientAuthentication | None = None
        self._working: asyncio.Task[None] | None = None
        """A step of the proof that runs on a thread; the node says nothing meanwhile."""

    def begin(self, link: Link) -> None:
        """Send the first message."""
        self._link = link
        if self._identity is not None:
            # Before the context, which a thread may exchange at any time: at worst a link is renewed that need not be.
            # The other way round a link of old certificates would be taken for one of new ones, and never be renewed.
            self._generation, self._material = self._identity.generation, self._identity.material
            self._own = self._identity.own_certificate
            self._txn_id = next(_TXN_IDS)
            link.send(encode_start_tls_request(self._txn_id))
        else:
            self._prove(ChannelFacts(self._host))

    def proof(self, link: Link) -> LinkProof:
        """Return by what the link was secured."""
        if self._identity is None:
            return LinkProof()
        certificate, shown = securable(link).certificate, securable(link).shown
        ends = [] if self._own is None else [self._own.not_after_s]
        if certificate is not None:
            ends.append(read_certificate(certificate).not_after_s)
        return LinkProof(self._generation, self._material, certificate, shown, min(ends, default=None))

    # ------------------------------------------------------------------------------------ FrameHandler

    def frame_received(self, frame: memoryview) -> None:
        """Take the node's answer."""
        response = decode_response(frame)
        if self._authentication is not None and response.operation is Operation.START_TLS:
            # A Java bookie with SASL says EIO when the handshake ends: nobody was authenticated by it. It goes on.
            return
        if self._link is None or self.done.done() or response.txn_id != self._txn_id:
            raise ProtocolError("an answer to nothing that was asked")
        if self._authentication is not None:
            self._proved(self._authentication, response)
        elif response.operation is not Operation.START_TLS:
            raise ProtocolError(f"an answer to {response.operation.name} where START_TLS was asked")
        elif response.status is Status.EOK:
            self.waits_for = "the end of the node's handshake"
            assert self._identity is not None
            terms = TlsTerms(self._identity.client_context(), self._host, limit_s=self._security.limit_s)
            # In this very step: whatever came in plain behind the answer cuts the link.
            securable(self._link).start_tls(terms, self._secured)
        elif self._security.mode is SecurityMode.OPTIONAL and response.status is Status.EBADREQ:
            logger.warning("%s speaks no TLS: going on in plain, for security=optional", self._link.peer)
            self._prove(ChannelFacts(self._host))
        else:
            self._fail(
                TlsError(
                    f"it speaks no TLS ({response.status.name}), and security is on",
                    advice="Nothing is sent in plain instead. Switch security on there (optional takes both), or "
                    "off here (security=off, no DLSPARK_SECURITY)",
                )
            )

    def batch_done(self) -> None:
        """Do nothing: each answer is taken as it comes."""

    def link_closed(self, error: Exception | None) -> None:
        """Fail, unless the link is done with."""
        reason = f": {error}" if error is not None else ""
        if self._working is not None:
            self._working.cancel()  # its thread goes on to its end, and nobody waits for what it finds
        self.lost = error if isinstance(error, TlsError) else TlsError(f"the node closed the connection{reason}")
        self._fail(self.lost)

    # ------------------------------------------------------------------------------------ steps

    def _secured(self, error: TlsError | None) -> None:
        if error is not None:
            self._fail(error)
            return
        certificate = securable(self._link).certificate if self._link is not None else None
        self._prove(
            ChannelFacts(
                self._host,
                secured=True,
                binding=lambda: None if certificate is None else server_end_point(certificate),
            )
        )

    def _prove(self, facts: ChannelFacts) -> None:
        """Say who is there, where that is asked for."""
        if self._security.authenticating is None:
            self._end()
            return
        authentication = self._authentication = self._security.authenticating(facts)
        self._work(authentication, authentication.first, lambda first: self._say(*first))

    def _proved(self, authentication: ClientAuthentication, response: Response) -> None:
        plugin, payload = "", b""
        if isinstance(response, AuthResponse):
            plugin, payload = response.plugin, response.payload
        elif response.operation is not Operation.AUTH or response.status is Status.EOK:
            raise ProtocolError(f"an answer to {response.operation.name} where AUTH was asked")
        answered = partial(authentication.answered, int(response.status), plugin, payload)
        self._work(authentication, answered, partial(self._go_on, authentication, plugin))

    def _work(self, authentication: ClientAuthentication, step: Callable[[], T], then: Callable[[T], None]) -> None:
        """Make a step of the proof and go on with what it returns: on a thread where others are asked for it."""

        async def on_thread() -> None:
            try:
                then(await asyncio.to_thread(step))
            except DistributedLogError as error:
                self._fail(error)
            except (
                Exception
            ) as error:  # the boundary: nobody waits for this task, and the connection would be waited for
                logger.exception("a proof could not be made")
                self._fail(TlsError(f"the proof could not be made: {error!r}"))

        self.waits_for = "the answer to AUTH"
        if authentication.blocks:
            self._working = asyncio.get_running_loop().create_task(on_thread())
            return
        try:
            then(step())
        except DistributedLogError as error:
            self._fail(error)

    def _go_on(self, authentication: ClientAuthentication, plugin: str, following: bytes | None) -> None:
        if following is not None:
            self._say(plugin, following)
        if authentication.done:
            self._end()
        elif following is None:
            self._fail(ProtocolError("the exchange of AUTH messages came to no end"))

    def _say(self, plugin: str, payload: bytes) -> None:
        if self._link is not None:
            self._txn_id = next(_TXN_IDS)
            self._link.send(encode_auth_request(self._txn_id, plugin, payload))

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _fail(self, error: DistributedLogError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # nobody may wait any more: it is not to be complained about then
