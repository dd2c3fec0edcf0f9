"""`FramesClient`: one connection to a proxy, over which any number of requests are under way.

Every request is answered exactly once: by the proxy, or by a refusal made here that says whether it may have been done:

    never given to the connection        ProxyUnreachableError, OverCapacityError, a CallerError: not done
    given to it, and the connection lost ProxyLostError: not known; of what only asks or reads, ProxyUnreachableError
    given to it, and the proxy stopped   ProxyUnreachableError: it says at the end that it has not begun the rest

Time limits of requests are the caller's; an answer that comes later is dropped (`forget`). A proxy's host that vanished
is noticed by a Handshake that is not answered (`FramesClientLimits.ping_ms`), whatever TCP thinks of it.

Under security (`credentials`) it speaks TLS from the first byte on, and shows a token, where there is one, before
anything else is asked, and each new one as it comes. A connection whose certificate was renewed meanwhile is `stale`:
it goes on, and shows the old one until it ends.

Fault model: the peer may be another program, or a proxy that errs. An answer that is ill-formed, or has a number of
which no request is under way, closes the connection: it is not known any more which answer belongs to which request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from dlspark.errors import OverCapacityError, ProxyLostError, ProxyUnreachableError
from dlspark.serving.bindings.service import FramesClientLimits, Reply
from dlspark.serving.protocol.answer_frames import decode_answer
from dlspark.serving.protocol.failures import error_of, refusal_of
from dlspark.serving.protocol.operations import (
    Answer,
    Applied,
    FindOwner,
    Handshake,
    ListProxies,
    ReadBatch,
    Refusal,
    Request,
    StatusCode,
)
from dlspark.serving.protocol.request_frames import encode_request
from dlspark.serving.security.credentials import LOOK_S, ClientCredentials
from metadata.foundation.addresses import parse_address
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.security.proofs import NotAuthenticatedError
from metadata.security.secrets import Secret
from storage_node.edge import Link, Network
from storage_node.errors import BookieUnreachableError, ProtocolError, SecureConnectionError, TlsRefusedError
from storage_node.transport.tls import connect_secured

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_MS: Final = 5_000
LAST_NUMBER: Final = 2**64 - 1
"""The numbers of requests begin at 1 again behind it; 0 is about the connection."""
ASKING: Final = (Handshake, FindOwner, ListProxies, ReadBatch)
"""Requests that change nothing: a lost answer leaves nothing in doubt."""


def host_and_port(address: str) -> tuple[str, int]:
    """Return the two parts of `host:port`, a host with colons in square brackets. Raises CallerError."""
    found = parse_address(address)
    if found is None:
        raise CallerError(f"{address!r} is not a proxy's address, which is host:port", node=address)
    return found


class FramesClient:
    """How does one process ask a proxy many things at a time? A connection, made by `connect` only.

    It is the `FrameHandler` of its link. All calls come from one event loop.
    """

    def __init__(
        self,
        address: str,
        limits: FramesClientLimits,
        on_closed: Callable[[], None] | None,
        credentials: ClientCredentials | None = None,
    ) -> None:
        self.address = address
        self._credentials = credentials
        self._generation = credentials.generation if credentials is not None else 0
        self._token: Secret | None = None
        """The token that the proxy was shown last."""
        self._renewing: asyncio.TimerHandle | None = None
        self.closed = False
        """True once no request is taken any more."""
        self._limits = limits
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._replies: dict[int, Reply] = {}
        self._asking: set[int] = set()
        """The numbers of requests under way that change nothing."""
        self._number = 0
        self._finishing = False
        self._said: str | None = None
        """The proxy's last words of the connection, or another reason for its end."""
        self._refused = False
        """True where the connection ended because one side does not take the other."""
        self._certificate_wanted = False
        """True where that is because this side has shown no certificate."""
        self._not_begun = False
        """True where the proxy said that it has begun nothing of what it has not answered."""
        self._heard_at = self._loop.time()
        self._asked = self._answered = False
        self._pinged = False
        self._timer: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def connect(
        cls,
        network: Network,
        address: str,
        *,
        timeout_ms: int = CONNECT_TIMEOUT_MS,
        limits: FramesClientLimits | None = None,
        on_closed: Callable[[], None] | None = None,
        credentials: ClientCredentials | None = None,
    ) -> FramesClient:
        """Connect to a proxy.

        Args:
            address: `host:port`.
            on_closed: called once, behind the last answer.
            credentials: what is shown to the proxy, under TLS; None: nothing, and there is no TLS.

        Raises ProxyUnreachableError (nothing was sent, but perhaps a proof), CallerError for an address that is not
        one, NotAuthenticatedError where the proxy refuses what it is shown, or its own certificate is not good: another
        attempt would end so, too.
        """
        host, port = host_and_port(address)
        client = cls(address, limits or FramesClientLimits(), on_closed, credentials)
        try:
            link: Link
            if credentials is None:
                link = await network.connect(host, port, client, timeout_ms=timeout_ms)
            else:
                context = credentials.context()
                link = await connect_secured(network, host, port, client, timeout_ms=timeout_ms, context=context)
        except SecureConnectionError as error:
            kind = NotAuthenticatedError if error.refused else ProxyUnreachableError
            raise kind(error.message, advice=error.advice, node=address) from error
        except BookieUnreachableError as error:  # a network raises it whatever listens at the other end
            raise ProxyUnreachableError(
                error.message,
                advice="Check that the proxy runs and that its announced address is reachable from here",
                node=address,
            ) from error
        client._opened(link)
        if client.closed:
            said = f": {client._said}" if client._said else ""
            kind = NotAuthenticatedError if client._refused else ProxyUnreachableError
            raise kind(
                f"the connection was closed as soon as it was made{said}",
                advice="The proxy may refuse what it was shown; its log says why" if credentials is not None else None,
                node=address,
            )
        if credentials is not None:
            await client._prove(credentials, timeout_ms)
        return client

    @property
    def stale(self) -> bool:
        """True where another certificate is to be shown by now than the one that this connection has shown."""
        return self._credentials is not None and self._credentials.generation != self._generation

    def finish(self) -> None:
        """Close once nothing is under way; nothing more is to be asked."""
        self._finishing = True
        if not self._replies and self._link is not None:
            self._link.close()

    async def _prove(self, credentials: ClientCredentials, timeout_ms: int) -> None:
        """Show the token, if there is one, ask whether what is shown is taken, and have it renewed. Raises as
        `connect`; the connection is closed then.

        Asked before anything else: under TLS 1.3 a client hears only behind its handshake that its certificate is
        refused, and a request that was sent meanwhile would be in doubt.
        """
        token = self._token = credentials.token
        asked = Handshake(ownerships=False) if token is None else _showing(token)
        try:
            answer = await asyncio.wait_for(self.call(asked), timeout_ms / 1000)
        except asyncio.TimeoutError:
            await self.close()
            raise ProxyUnreachableError(
                f"the proxy has not answered within {timeout_ms} ms whether it takes what it was shown",
                node=self.address,
            ) from None
        except BaseException:
            await self.close()
            raise
        if isinstance(answer, Refusal):
            if answer.code is StatusCode.REQUEST_DENIED:
                await self.close()
                error = error_of(answer, stream=None)
                error.node = self.address
                raise error
            if self.closed and self._certificate_wanted:
                raise self._certificate_wanted_error(token)
            if self.closed and self._refused:
                raise NotAuthenticatedError(
                    f"the connection was refused: {self._said}",
                    advice="Over this connection nothing was done. The proxy's log and audit trail say more. Refused "
                    "are certificates that have expired, were revoked, or are of an authority that it does not know: "
                    "look by dlspark tls show FOLDER, and ask an operator for another (dlspark tls renew, tls issue)",
                    node=self.address,
                )
            if self.closed:
                # The proxy's own word may be lost, as it closes while we send; or it has stopped just now.
                raise ProxyUnreachableError(
                    f"{answer.message}. The proxy may refuse what it was shown",
                    advice="Its log says why: a certificate that has expired, was revoked, or is of an authority that "
                    "it does not know",
                    node=self.address,
                )
        if not self.closed:
            self._renewing = self._loop.call_later(LOOK_S, self._renew, credentials)

    def _certificate_wanted_error(self, token: Secret | None) -> NotAuthenticatedError:
        has = "this client has a token alone" if token is not None else "this client has none, and no token"
        return NotAuthenticatedError(
            f"the proxy at {self.address} wants a certificate, and {has}; nothing was done",
            advice="Give this client a certificate (securityDirectory, or tlsKeyStore); or have that proxy take tokens "
            "alone (tlsClientAuthentication=false and tokenKeys there)",
            node=self.address,
        )

    def _renew(self, credentials: ClientCredentials) -> None:
        """Show a token that has come in the place of the last one."""
        if self.closed:
            return
        token = credentials.token
        if token is not None and token != self._token:
            self._token = token
            self.submit(_showing(token), self._renewed)
        self._renewing = self._loop.call_later(LOOK_S, self._renew, credentials)

    def _renewed(self, answer: Answer) -> None:
        if isinstance(answer, Refusal) and not self.closed:
            logger.warning("the proxy %s refuses the new token: %s", self.address, answer.message)

    def _opened(self, link: Link) -> None:
        self._link = link
        # A network may hear of the end while it still connects: a timer that was set then would never be cancelled.
        if not self.closed:
            self._timer = self._loop.call_later(self._limits.first_ping_ms / 1000, self._look)

    @property
    def queued_bytes(self) -> int:
        """Bytes of requests that the socket has not taken."""
        return 0 if self._link is None else self._link.queued_bytes

    @property
    def requests_under_way(self) -> int:
        """Requests without an answer, those that were forgotten included."""
        return len(self._replies)

    # ------------------------------------------------------------------------------------ requests

    def submit(self, request: Request, reply: Reply) -> int:
        """Send `request`; `reply` is called exactly once, before this returns where nothing is sent. Never raises.

        Returns the request's number, for `forget`.
        """
        link, replies = self._link, self._replies
        if self.closed or link is None:
            reply(refusal_of(ProxyUnreachableError("the connection to the proxy is closed", node=self.address)))
            return 0
        number = self._next_number()
        try:
            # Checked before it is encoded: what is refused here was certainly not sent.
            if len(replies) >= self._limits.requests_under_way or link.queued_bytes > self._limits.queued_bytes:
                raise OverCapacityError(
                    f"{len(replies)} requests are under way, {link.queued_bytes} bytes were not taken by the network",
                    node=self.address,
                )
            buffers = encode_request(number, request)
        except DistributedLogError as error:
            reply(refusal_of(error))
            return 0
        replies[number] = reply
        if isinstance(request, ASKING):
            self._asking.add(number)
        self._asked = True
        link.send(*buffers)
        return number

    async def call(self, request: Request) -> Answer:
        """Send `request` and wait for its answer, which may be a Refusal. Cancelled, the answer is dropped."""
        answered: asyncio.Future[Answer] = self._loop.create_future()

        def take(answer: Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        number = self.submit(request, take)
        try:
            return await answered
        finally:
            if not answered.done() or answered.cancelled():
                self.forget(number)

    def forget(self, number: int) -> None:
        """Note that the answer to this request is not wanted any more: if it comes it is dropped. Idempotent."""
        if number in self._replies:
            self._replies[number] = _dropped  # it stays under way: its number must not be given to another request yet

    def _next_number(self) -> int:
        """Return one that no request under way has, which after a round of all of them some may."""
        number = self._number
        while True:
            number = number + 1 if number < LAST_NUMBER else 1
            if number not in self._replies:
                self._number = number
                return number

    # ------------------------------------------------------------------------------------ FrameHandler

    def frame_received(self, frame: memoryview) -> None:
        """Take one answer. Raises ProtocolError, which closes the link, for bytes that are not one."""
        number, answer = decode_answer(frame)
        reply = self._replies.pop(number, None)
        if reply is not None:
            if self._asking:
                self._asking.discard(number)
            reply(answer)
            if self._finishing and not self._replies and self._link is not None:
                self._link.close()
        elif number == 0 and isinstance(answer, Refusal):
            # A proxy that stops says so when it has answered all that it began. So what crossed this on its way was not
            # begun, and may be asked elsewhere at once, also where it writes.
            self._said = answer.message
            self._refused = answer.code is StatusCode.REQUEST_DENIED
            self._not_begun = answer.code is StatusCode.SERVICE_UNAVAILABLE and answer.applied is Applied.NO
            logger.warning("the proxy %s ends the connection: %s", self.address, answer.message)
            if self._not_begun and self._link is not None:
                self.closed = True  # what ends now must not ask again
                self._link.close()
        else:
            raise ProtocolError(f"an answer to request {number}, of which none is under way", node=self.address)

    def batch_done(self) -> None:
        """Note that the proxy lives."""
        self._heard_at = self._loop.time()
        self._pinged = False
        self._answered = True

    def link_closed(self, error: Exception | None) -> None:
        """Note that every request under way ends now."""
        if self._said is None and error is not None:
            self._said = str(error)
        if isinstance(error, TlsRefusedError):
            self._refused, self._certificate_wanted = True, error.certificate_wanted
        self._end()

    # ------------------------------------------------------------------------------------ the end

    async def close(self) -> None:
        """End the connection; what is under way ends with ProxyLostError. Idempotent."""
        if self._link is not None and not self.closed:
            self._said = "it was closed here"
            self.closed = True  # what ends now must not ask again
            self._link.close()
        await asyncio.shield(self._ended)

    def _end(self) -> None:
        self.closed = True
        for timer in (self._timer, self._renewing):
            if timer is not None:
                timer.cancel()
        reason = f": {self._said}" if self._said else ""
        plain = self._credentials is None and not self._answered
        advice = "If the proxy takes no connection without TLS, set security=on here as well" if plain else None
        if plain and self._refused:
            # The first that came was TLS's word for "not in plain": nothing of what was sent can have been done.
            lost = unasked = refusal_of(NotAuthenticatedError(f"the connection was refused{reason}", node=self.address))
        else:
            lost, unasked = self._lost(reason, advice)
        replies, self._replies = self._replies, {}
        for number, reply in replies.items():
            try:
                reply(unasked if self._not_begun or number in self._asking else lost)
            except Exception:  # the boundary: one caller's mistake must not leave the others waiting
                logger.exception("a caller failed on hearing that the connection to %s is lost", self.address)
        self._asking.clear()
        if not self._ended.done():
            self._ended.set_result(None)
            if self._on_closed is not None:
                self._on_closed()

    def _lost(self, reason: str, advice: str | None) -> tuple[Refusal, Refusal]:
        """Return the answers to what may have been done, and to what was not or changes nothing."""
        # Which of the two decides whether a client may ask again: a write whose answer is lost may have been stored.
        said = f"the connection was lost before the proxy answered{reason}"
        return (
            refusal_of(ProxyLostError(said, advice=advice, node=self.address)),
            refusal_of(ProxyUnreachableError(said, advice=advice, node=self.address)),
        )

    def _look(self) -> None:
        """Ask where nothing has come for long; end where that is not answered."""
        limits, now = self._limits, self._loop.time()
        silent_s = now - self._heard_at
        if self._pinged:
            self._said = f"nothing has come from the proxy for {silent_s:.0f} s"
            if self._link is not None:
                self._link.close()
            return
        wait_s = limits.ping_ms / 1000 - silent_s
        if not self._asked or wait_s <= 0:
            self._pinged = True
            self.submit(Handshake(ownerships=False), _dropped)
            wait_s = limits.ping_timeout_ms / 1000
        self._timer = self._loop.call_later(wait_s, self._look)


def _showing(token: Secret) -> Handshake:
    return Handshake(ownerships=False, token=token.reveal().encode())


def _dropped(_answer: Answer) -> None:
    """Take the answer to a request that no caller waits for."""
