"""`FramesServer`: the frames binding of a `ProxyService`, for thin clients in Python and Java that move many records.

It accepts connections (`frames_connection`), bounds their number and what they hold together, and closes those that say
nothing: a new one that asks nothing in time, one that asks nothing for long, one that takes none of its answers. Which
one is closed for a newcomer: see `Admission`. A client whose host vanished is noticed by TCP's keep-alive.

`close` is graceful: no new connection, every new request is refused with SERVICE_UNAVAILABLE (not done: clients go
elsewhere), what is under way is answered for as long as the caller allows, and then the connections end. A client whose
last request crosses that end hears that it was not begun, and closes the connection; one that does not is not waited
for longer than `LEAVE_S`.
"""

from __future__ import annotations

import asyncio
import logging

from dlspark.serving.bindings.frames_connection import FramesConnection
from dlspark.serving.bindings.service import FramesLimits, ProxyService, RunTaker
from dlspark.serving.protocol.answer_frames import encode_answer
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.security.authentication import Authentication, PeerProof
from metadata.foundation.errors import CallerError, NotAppliedError, check, present
from metadata.foundation.pacing import MessageLimit
from metadata.security.proofs import NotAuthenticatedError
from storage_node.edge import FrameHandler, Link, Listener, Network
from storage_node.errors import TooManyConnectionsError
from storage_node.transport.admission import Admission
from storage_node.transport.budgets import Budget
from storage_node.transport.tcp import TcpNetwork
from storage_node.transport.tls import TlsEntrance, securable
from storage_node.transport.turns import Turns

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""The interval at which connections are looked at; a quarter of the shortest time that they may take, if less."""
FLUSH_LOOK_S = 0.01
"""The interval at which it is seen, at the end, whether the last answers have left."""
LEAVE_S = 2.0
"""The time that clients have, at the end, to hear that nothing more is begun, and to close their connections."""
CLOSE_GRACE_S = 5.0
"""The time for which `close` waits for answers by default."""


def frames_network(limits: FramesLimits) -> TcpNetwork:
    """Return a network for a server of these limits alone: what stalling peers take of its memory is bounded by
    them."""
    return TcpNetwork(begun_bytes=limits.begun_bytes, stuck_bytes=limits.stuck_bytes)


class FramesServer:
    """How do clients reach a service by frames? Serves it on one port, for the loop on which it is started.

    Args:
        network: TCP, or a simulated one; `frames_network` makes one whose memory these limits bound.
        service: takes all requests; nothing else answers them, but refusals of what is not begun.
        authentication: what clients must prove, under TLS; None: nothing, and there is no TLS.
    """

    def __init__(
        self,
        network: Network,
        service: ProxyService,
        *,
        limits: FramesLimits | None = None,
        authentication: Authentication | None = None,
    ) -> None:
        self.service = service
        self.runs: RunTaker | None = None
        """Takes writes that came together; set by a write proxy."""
        self.authentication = authentication
        self.limits = limits or FramesLimits()
        self.memory = Budget(self.limits.memory_bytes)
        self.turns = Turns(self._seconds)
        self.lines = MessageLimit(logger)
        self.stopping = False
        self._network = network
        self._admission = Admission(self._seconds, self.limits.connections)
        self._connections: dict[FramesConnection, None] = {}
        limits_ms = min(self.limits.first_request_ms, self.limits.idle_ms, self.limits.stuck_ms)
        self._look_s = min(LOOK_S, limits_ms / 4000)
        self._listener: Listener | None = None
        self._look_at = 0.0
        """When connections are to be looked at next."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._changed: asyncio.Future[None] | None = None

    @staticmethod
    def _seconds() -> float:
        return asyncio.get_running_loop().time()

    @property
    def port(self) -> int:
        """The port that is listened on. Raises InvariantViolation before `start`."""
        return present(self._listener, "the frames server is not started").port

    @property
    def connection_count(self) -> int:
        """Connections that are open."""
        return len(self._connections)

    @property
    def requests_under_way(self) -> int:
        """Requests of all connections that the service has not answered."""
        return sum(connection.requests_under_way for connection in self._connections)

    @property
    def held_bytes(self) -> int:
        """Bytes of the requests and answers of all connections."""
        return sum(connection.held_bytes for connection in self._connections)

    async def start(self, host: str, port: int) -> None:
        """Listen on `host` ("" for all interfaces); port 0 takes a free one. Raises OSError where it is taken."""
        check(self._listener is None and not self._closed, "a frames server is started once")
        self._listener = await self._listen(host, port)
        self._look_later()
        logger.info("serving frames on port %d", self._listener.port)

    async def _listen(self, host: str, port: int) -> Listener:
        authentication = self.authentication
        if authentication is None:
            return await self._network.listen(host, port, self._accept)
        if not isinstance(self._network, TcpNetwork):
            raise CallerError("this network knows no TLS, and clients are to prove who they are")
        entrance = TlsEntrance(
            authentication.identity.server_context,
            plain_too=authentication.plain_too,
            failed=authentication.handshake_failed,
        )
        return await self._network.listen(host, port, self._accept, tls=entrance)

    async def close(self, *, grace_s: float = CLOSE_GRACE_S) -> None:
        """Stop: refuse what is new, answer what is under way within `grace_s` seconds, end. Idempotent."""
        if self._closed:
            return
        self._closed = self.stopping = True
        if self._listener is not None:
            await self._listener.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        try:
            while loop.time() < deadline and any(connection.busy for connection in self._connections):
                await self._next_change(min(FLUSH_LOOK_S, deadline - loop.time()))
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for connection in list(self._connections):
                connection.leave()
        # The client closes first, and we only when it does not: a reset could overtake what `leave` has said.
        deadline = loop.time() + LEAVE_S
        while loop.time() < deadline and self._connections:
            await self._next_change(min(FLUSH_LOOK_S, deadline - loop.time()))
        for connection in list(self._connections):
            connection.close()
        while self._connections:  # each link says once that it is closed, from the loop
            await self._next_change(FLUSH_LOOK_S)

    async def _next_change(self, within_s: float) -> None:
        # A connection says when it is done (`settled`); what little its socket has not taken by then leaves unsaid.
        self._changed = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._changed], timeout=within_s)
        self._changed = None

    # ------------------------------------------------------------------------------------ connections

    def _accept(self, link: Link) -> FrameHandler:
        if self.stopping:
            raise NotAppliedError("the proxy is being stopped", node=link.peer)
        proof = self._proof_of(link)
        # Beyond the limit one connection leaves: the newcomer, where all others are in use.
        connection = FramesConnection(self, link, proof)
        leaving = self._admission.arrived(connection)
        if leaving is connection:
            raise TooManyConnectionsError(
                f"the proxy has {self.limits.connections} connections, and all of them are in use",
                advice="Raise the limit of connections and of file descriptors, or start more proxies",
            )
        self._connections[connection] = None
        if isinstance(leaving, FramesConnection):
            self._close(leaving, f"there are {self.limits.connections} connections, and it was the most idle")
        return connection

    def _proof_of(self, link: Link) -> PeerProof | None:
        """Return what a new connection proves by itself. Raises NotAuthenticatedError, and has told the client so."""
        if self.authentication is None:
            return None
        secured = securable(link)
        try:
            return self.authentication.arrived(
                link.peer, secured.certificate, secured=secured.secured, shown=secured.shown
            )
        except NotAuthenticatedError as error:
            if secured.secured:
                # The handshake went well, so TLS has no word for it; a client that hears nothing would try again.
                link.send(*encode_answer(0, refusal_of(error)))
            raise

    def heard(self, connection: FramesConnection) -> None:
        """Note that requests came from this connection: it is the one now that was idle for the shortest time."""
        self._admission.heard(connection)

    def ended(self, connection: FramesConnection) -> None:
        """Note that a connection is closed, and makes room for another."""
        self._connections.pop(connection, None)
        self._admission.left(connection)
        self.settled()

    def settled(self) -> None:
        """Have `close` look again."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        # Time in which this process did not run is none of its clients': what they sent meanwhile may still be unread.
        late_s = max(0.0, now - self._look_at)
        for connection in list(self._connections):
            connection.excuse(late_s)
            reason = connection.look(now)
            if reason is not None:
                self._close(connection, reason)
        self._look_later()

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._look_at = loop.time() + self._look_s
        self._timer = loop.call_at(self._look_at, self._look)

    def _close(self, connection: FramesConnection, reason: str) -> None:
        self.lines.log(logging.WARNING, "closing the connection to %s: %s", connection.peer, reason)
        connection.close()
