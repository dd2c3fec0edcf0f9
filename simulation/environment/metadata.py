"""The metadata store in simulation: `metadata.zookeeper.memory`'s tree behind a network that delays, loses and stalls.

`MetadataService` is the server and what is wrong with it; `SimulatedStore` is one process's session. Requests and
answers of a session travel in order, so that an event is heard before any answer that shows its cause; different
sessions hear of the same change at different times. A request that was sent is applied even if its sender dies.

Fault model: a lost request, an answer lost after the request was applied, a refusal, a broken connection with the
session living on, an expired session, a stall of the whole store, a host that cannot reach it. Changes may be lost more
often than other requests, and for longer (`lose_changes`): the client that asked for one is in doubt while others go
on. A session whose process is dead, paused or out of reach for longer than its timeout ends at the server; a living
process hears of it later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from random import Random
from typing import ParamSpec, TypeVar

from metadata.foundation.errors import (
    BadVersionError,
    ConnectionLossError,
    DistributedLogError,
    MetadataUnavailableError,
    SessionExpiredError,
)
from metadata.store import SessionState
from metadata.zookeeper.memory import Fault, MemorySession, MemoryStore, MemoryTree
from simulation.environment.loop import Process, SimulatedLoop

T = TypeVar("T")
P = ParamSpec("P")

TICK_S = 1e-7
RECONNECT_S = 0.2
CHANGES = frozenset({"put", "multi"})
DISTANCE_S = (0.03, 0.2)
FAR_FOR_S = 0.8
FAR_SHARE = 0.3
"""Of those in doubt: others act between their looking and their next try."""
_SERVER = copy_context()
"""Where the server's side runs: in no process."""


class MetadataService:
    """The metadata server. `lose`, `refuse` and `lose_reply` are probabilities for each request."""

    def __init__(self, loop: SimulatedLoop, rng: Random, tree: MemoryTree) -> None:
        self.loop = loop
        self.rng = rng
        self.tree = tree
        self.latency_s = 0.001
        self.session_timeout_s = 4.0
        self.lose = 0.0
        self.lose_reply = 0.0
        self.refuse = 0.0
        self.lose_changes = 0.0
        """Of conditional changes of `doubtful` hosts, either the request or the answer is lost: a probability."""
        self.doubtful: Callable[[str], bool] = lambda host: True
        self.away_s = (0.01, 0.01)
        """For how long a connection is gone that broke under a request: seconds, at least and at most."""
        self.expiring = 0.0
        """The share of these connections whose session ends with it."""
        self.doubted: Callable[[str], None] = lambda path: None
        """Called with the path of each change that was lost, and again when its client looks what became of it."""
        self._doubts: dict[tuple[SimulatedStore, str], None] = {}
        self.stalled = False
        self.stores: dict[SimulatedStore, None] = {}
        self.slow: dict[str, float] = {}
        """Hosts whose requests, answers and watches take this many times longer."""
        self.unreachable: set[str] = set()
        """Hosts that cannot reach the store."""
        self.reached: Callable[[str], None] = lambda point: None
        self._waiting: list[Callable[[], None]] = []

    def delay(self, host: str) -> float:
        """Return the seconds that a message between the host and the server takes, drawn anew each time."""
        return self.rng.uniform(0.2, 1.8) * self.latency_s * self.slow.get(host, 1.0)

    def draw(self, store: SimulatedStore, name: str, path: str) -> Fault | None:
        """Return the fault of one request."""
        doubtful = name in CHANGES and self.lose_changes and self.doubtful(store.process.host)
        if doubtful and self.rng.random() < self.lose_changes:
            self.reached("metadata.doubt")
            self.doubted(path)
            self._doubts[store, path] = None
            if self.rng.random() < FAR_SHARE:
                self.far(store.process.host)
            # Both look alike to the client, and only one of them was applied: it has to look.
            return self.rng.choice((Fault.LOSE_REQUEST, Fault.LOSE_REQUEST, Fault.LOSE_REPLY))
        if not (self.lose or self.lose_reply or self.refuse):
            return None
        number = self.rng.random()
        for fault, share in (
            (Fault.LOSE_REQUEST, self.lose),
            (Fault.LOSE_REPLY, self.lose_reply),
            (Fault.REFUSE, self.refuse),
        ):
            if number < share:
                self.reached(f"metadata.{fault.value.replace('_', '-')}")
                return fault
            number -= share
        return None

    def looked(self, store: SimulatedStore, path: str) -> None:
        """Note that a process has read something."""
        if self._doubts and self._doubts.pop((store, path), True) is None:
            self.doubted(path)

    def arrive(self, serve: Callable[[], None]) -> None:
        """Take a request that has reached the server."""
        if self.stalled:
            self.reached("metadata.stall")
            self._waiting.append(serve)
        else:
            serve()

    def resume(self) -> None:
        """End a stall: the requests that were held are served in the order of their arrival."""
        self.stalled = False
        waiting, self._waiting = self._waiting, []
        for serve in waiting:
            serve()

    def disconnect(self, store: SimulatedStore, seconds: float) -> None:
        """Break a session's connection for a while."""
        if store.live and store.session.connected:
            self.reached("metadata.disconnect")
            self.tree.disconnect(store.session.id)
            self.loop.call_later(seconds, self._reconnect, store, store.session, context=_SERVER)

    def _reconnect(self, store: SimulatedStore, session: MemorySession) -> None:
        """Let the store hear of its session again, or that it has ended, as soon as its host reaches the server."""
        if not store.live or store.session is not session:
            return
        if store.process.host in self.unreachable:
            self.loop.call_later(RECONNECT_S, self._reconnect, store, session, context=_SERVER)
        elif session.alive:
            self.tree.reconnect(session.id)
        else:
            store._renew()

    def expire(self, store: SimulatedStore) -> None:
        """End a session; its store goes on with a new one, once it can reach the server."""
        if store.live and store.session.alive:
            self.reached("metadata.expire")
            self._expire(store, store.session)

    def _expire(self, store: SimulatedStore, session: MemorySession) -> None:
        if store.process.host not in self.unreachable:
            self.tree.expire(session.id)
            return
        # The server ends the session; a client that cannot reach it hears of that only when it comes back.
        self.tree.disconnect(session.id)
        self.tree._end(session)
        self._reconnect(store, session)

    def far(self, host: str) -> None:
        """Let what the host sends take long for a while: others act before it is heard of again."""
        self.slow[host] = self.rng.uniform(*DISTANCE_S) / self.latency_s
        self.loop.call_later(FAR_FOR_S, self.slow.pop, host, None, context=_SERVER)

    def lost(self, store: SimulatedStore) -> None:
        """Hear nothing of a session any more: it ends after the timeout, unless its process comes back."""
        self.loop.call_later(self.session_timeout_s, self._timed_out, store, store.session, context=_SERVER)

    def _timed_out(self, store: SimulatedStore, session: MemorySession) -> None:
        # A process that came back in time has sent heartbeats: its session lives.
        away = store.process.halted or store.process.host in self.unreachable
        if not away or not session.alive or store.session is not session:
            return
        self.reached("metadata.session-timeout")
        if store.process.dead:
            self.stores.pop(store, None)
            self.tree._end(session)
        else:
            self._expire(store, session)

    def cut_off(self, host: str) -> None:
        """Cut a host off from the store: connections break, sessions time out."""
        self.unreachable.add(host)
        for store in [store for store in self.stores if store.process.host == host]:
            if store.live and store.session.connected:
                self.disconnect(store, RECONNECT_S)
            self.lost(store)

    def join(self, host: str) -> None:
        """Let the host reach the store again; its sessions hear of it at their next try."""
        self.unreachable.discard(host)


class SimulatedStore(MemoryStore):
    """One process's metadata session."""

    def __init__(self, service: MetadataService, process: Process) -> None:
        self.process = process
        self._service = service
        self._out_at = 0.0
        self._in_at = 0.0
        self._under_way: dict[object, tuple[str, Callable[[BaseException], None]]] = {}
        service.stores[self] = None
        super().__init__(service.tree)

    @property
    def session(self) -> MemorySession:
        """The session at the server; another one after an expiry."""
        return self._session

    @property
    def live(self) -> bool:
        """True while the process lives and has not closed the session."""
        return not self.process.dead and self.state is not SessionState.CLOSED

    async def close(self) -> None:
        """End the session at once, and take the store off the service's list."""
        self._service.stores.pop(self, None)
        await super().close()

    # ------------------------------------------------------------------------------------ to the server and back

    async def _request(self, name: str, path: str, action: Callable[[MemorySession, bool], T]) -> T:
        service = self._service
        if self.state is not SessionState.CONNECTED:
            raise MetadataUnavailableError(f"the session is {self.state.value}; {name} was not sent", path=path)
        fault = service.draw(self, name, path)
        if fault is Fault.REFUSE:
            raise MetadataUnavailableError(f"{name} was not sent", path=path)
        reply: asyncio.Future[T] = service.loop.create_future()
        self._under_way[reply] = (name, partial(_refuse, reply))
        # Never before the session's request before it: the server serves a session in order.
        when = self._out_at = max(service.loop.time() + service.delay(self.process.host), self._out_at + TICK_S)
        session = self._session
        serve = partial(self._serve, session, session.losses, name, path, action, fault, reply)
        service.loop.call_at(when, service.arrive, serve, context=_SERVER)
        return await reply

    def _serve(
        self,
        session: MemorySession,
        losses: int,
        name: str,
        path: str,
        action: Callable[[MemorySession, bool], T],
        fault: Fault | None,
        reply: asyncio.Future[T],
    ) -> None:
        """Serve a request, at the server."""
        if fault is Fault.LOSE_REQUEST:
            self._break()  # before the action, which is refused then: the request is not applied
        outcome: T | DistributedLogError
        if name == "get":
            self._service.looked(self, path)
        try:
            self._ensure_connected(session, losses, name, path)
            outcome = action(session, fault is not Fault.LOSE_REPLY)
        except DistributedLogError as error:
            outcome = error
            if isinstance(error, BadVersionError):
                self._service.reached("metadata.cas-conflict")
        if fault is Fault.LOSE_REPLY:
            self._break()  # after the action: it is applied, and its client does not know
            outcome = ConnectionLossError(f"the connection was lost during {name}", path=path)
        self._post(self._answer, reply, outcome)

    def _break(self) -> None:
        """Break the connection together with what was on it; it comes back soon, unless the session goes, too."""
        session, service = self._session, self._service
        if session.alive and session.connected:
            if service.expiring and service.rng.random() < service.expiring:
                service.expire(self)
                return
            service.tree.disconnect(session.id)
            away_s = service.rng.uniform(*service.away_s)
            service.loop.call_later(away_s, service._reconnect, self, session, context=_SERVER)

    def _answer(self, reply: asyncio.Future[T], outcome: T | DistributedLogError) -> None:
        """Hand the answer over, in the process."""
        self._under_way.pop(reply, None)
        if reply.done():
            return
        if isinstance(outcome, DistributedLogError):
            reply.set_exception(outcome)
        else:
            reply.set_result(outcome)

    def _hear(self, state: SessionState) -> None:
        super()._hear(state)
        if state in (SessionState.SUSPENDED, SessionState.EXPIRED):
            self._post(self._lose_under_way, state)

    def _lose_under_way(self, state: SessionState) -> None:
        """Give up what was sent: the connection is gone, and no answer comes any more."""
        waiting, self._under_way = self._under_way, {}
        kind = SessionExpiredError if state is SessionState.EXPIRED else ConnectionLossError
        for name, refuse in waiting.values():
            refuse(kind(f"the connection was lost during {name}"))

    def _post(self, callback: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Deliver in order, later, and never to the dead (from the server to the process)."""
        service = self._service
        if self.process.dead:
            return
        # Not before what the server sent earlier: a session's answers and watches come in order.
        when = self._in_at = max(service.loop.time() + service.delay(self.process.host), self._in_at + TICK_S)
        service.loop.call_at(when, partial(callback, *args, **kwargs), context=self.process.context)


def _refuse(reply: asyncio.Future[T], error: BaseException) -> None:
    if not reply.done():
        reply.set_exception(error)
