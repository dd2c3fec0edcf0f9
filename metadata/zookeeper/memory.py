"""`MemoryStore`: ZooKeeper's semantics in memory, for tests and simulation.

A `MemoryTree` is the shared server: znodes, sessions, watches, one order of transactions. Each `MemoryStore` is one
client session on it. Faults are injected at the tree:
    tree.inject = lambda session_id, operation, path: Fault.LOSE_REPLY      applied, but the answer is lost
    tree.disconnect(session_id) / tree.reconnect(session_id)                connection lost, session alive
    tree.expire(session_id)                                                 ephemerals gone; a new session follows
    tree.stall() / tree.resume()                                            requests wait, nothing is answered

A request is applied one loop turn after it is made and answered one turn later, so that a real server's interleavings
occur, and a watch event is heard before any answer that shows its cause. Stores on one tree may live on loops of
different threads. Not modelled: quorum loss, stale reads of a lagging server.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final, ParamSpec, TypeAlias, TypeVar

from metadata.foundation.errors import (
    BadVersionError,
    CallerError,
    ConnectionLossError,
    DistributedLogError,
    InvariantViolation,
    MetadataUnavailableError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    check,
)
from metadata.retry import create_with_parents
from metadata.store import (
    ANY_VERSION,
    Create,
    Delete,
    EventKind,
    MetadataStore,
    Op,
    OpResult,
    RequestObserver,
    RetryPolicy,
    SessionListener,
    SessionState,
    SetData,
    Stat,
    Watcher,
    WatchEvent,
    check_path,
    check_request,
    name_of,
    parent_of,
)
from metadata.zookeeper.session import RequestObservers, SessionHub, call_safely

T = TypeVar("T")
P = ParamSpec("P")
_FIRST_SESSION: Final = 0x100000000000001
_TOKEN_BYTES: Final = 8


class Fault(Enum):
    """How does one request go wrong? The two LOSE faults also break the connection, which comes back at once."""

    LOSE_REQUEST = "lose_request"
    LOSE_REPLY = "lose_reply"
    REFUSE = "refuse"


Injector: TypeAlias = Callable[[int, str, str], Fault | None]


@dataclass(slots=True)
class _Znode:
    data: bytes
    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    owner: int = 0
    version: int = 0
    created: int = 0  # children ever created: the next sequential suffix
    children: set[str] = field(default_factory=set)
    guard: str | None = None  # the identity that alone may change it; None: any session

    def stat(self) -> Stat:
        return Stat(
            version=self.version,
            cversion=self.created * 2 - len(self.children),  # creations plus deletions, as ZooKeeper reports it
            czxid=self.czxid,
            mzxid=self.mzxid,
            ctime_ms=self.ctime_ms,
            mtime_ms=self.mtime_ms,
            ephemeral_owner=self.owner,
            data_length=len(self.data),
            num_children=len(self.children),
        )


@dataclass(slots=True, eq=False)
class MemorySession:
    """Is a client still connected? Its session in the tree, as the tree sees it."""

    id: int
    store: MemoryStore
    alive: bool = True
    connected: bool = True
    acl_id: str | None = None
    restrict: bool = True
    losses: int = 0  # connections lost so far: a request that sees this change lost its answer


_Watches: TypeAlias = dict[str, dict[tuple[int, Watcher], MemorySession]]


class MemoryTree:
    """How is code tested that needs a ZooKeeper? A server for several MemoryStores. Any thread may call its methods."""

    def __init__(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self.inject: Injector | None = None
        self.lock: Final = threading.RLock()
        self._now_ms = now_ms
        self._zxid = 0
        self._sessions: dict[int, MemorySession] = {}
        self._next_session = _FIRST_SESSION
        self._data_watches: _Watches = {}
        self._child_watches: _Watches = {}
        self._stalled: list[tuple[MemorySession, Callable[[], None]]] | None = None
        now = now_ms()
        self._nodes: dict[str, _Znode] = {"/": _Znode(b"", 0, 0, now, now)}

    # ---- faults -----------------------------------------------------------------------------------------------------

    def expire(self, session_id: int) -> None:
        """End a session as the server does when it hears nothing; its store goes on with a new one."""
        with self.lock:
            session = self._sessions[session_id]
            self._end(session)
            session.store._renew()

    def disconnect(self, session_id: int) -> None:
        """Break a session's connection; requests under way lose their answer, the session lives on."""
        with self.lock:
            session = self._sessions[session_id]
            if session.connected:
                session.connected = False
                session.losses += 1
                self._drop_watches(session)
                self._release(session)
                session.store._hear(SessionState.SUSPENDED)

    def reconnect(self, session_id: int) -> None:
        """Bring the connection of a disconnected session back. Nothing happens if the session has ended meanwhile."""
        with self.lock:
            session = self._sessions.get(session_id)
            if session is not None and not session.connected:
                session.connected = True
                session.store._hear(SessionState.CONNECTED)

    def stall(self) -> None:
        """Hold every request, unapplied and unanswered, until `resume`."""
        with self.lock:
            self._stalled = [] if self._stalled is None else self._stalled

    def resume(self) -> None:
        """End a stall: the requests that were held are applied, in the order in which they were made."""
        with self.lock:
            waiting, self._stalled = self._stalled or [], None
        for _, wake in waiting:
            wake()

    def set_sequence(self, path: str, number: int) -> None:
        """Let the next sequential child of `path` get `number`: for tests of overflow."""
        with self.lock:
            self._nodes[path].created = number

    # ---- sessions (called by MemoryStore, under the lock) -----------------------------------------------------------

    def _begin(self, store: MemoryStore) -> MemorySession:
        session = MemorySession(self._next_session, store, acl_id=store._acl_id, restrict=store._restrict)
        self._next_session += 1
        self._sessions[session.id] = session
        return session

    def _end(self, session: MemorySession) -> None:
        """Close a session: its watches are void, its ephemerals go."""
        session.alive = session.connected = False
        del self._sessions[session.id]
        self._drop_watches(session)
        self._release(session)
        for path in sorted(path for path, node in self._nodes.items() if node.owner == session.id):
            self._zxid += 1
            self._fire(self._delete(Delete(path))[1])

    def _drop_watches(self, session: MemorySession) -> None:
        for table in (self._data_watches, self._child_watches):
            for path in list(table):
                for key in [key for key, owner in table[path].items() if owner is session]:
                    del table[path][key]
                    session.store._hub.void(path, key[1])
                if not table[path]:
                    del table[path]

    def _stall_point(self, session: MemorySession, wake: Callable[[], None]) -> bool:
        """Return True while stalled: `wake` is then called by `resume`, or when the connection is lost."""
        with self.lock:
            if self._stalled is None or not session.connected:
                return False
            self._stalled.append((session, wake))
            return True

    def _release(self, session: MemorySession) -> None:
        """End the wait of a lost connection's stalled requests; they were not applied."""
        for owner, wake in self._stalled or []:
            if owner is session:
                wake()

    # ---- reads ------------------------------------------------------------------------------------------------------

    def _node(self, path: str) -> _Znode:
        node = self._nodes.get(path)
        if node is None:
            raise NoNodeError("no such znode", path=path)
        return node

    def get(self, session: MemorySession, path: str, watch: Watcher | None) -> tuple[bytes, Stat]:
        """Return data and stat of a znode, with a watch on either. Raises NoNodeError."""
        node = self._node(path)
        _leave(self._data_watches, path, session, watch)
        return node.data, node.stat()

    def exists(self, session: MemorySession, path: str, watch: Watcher | None) -> Stat | None:
        """Return the stat of a znode, or None; a watch is left in both cases."""
        _leave(self._data_watches, path, session, watch)
        node = self._nodes.get(path)
        return None if node is None else node.stat()

    def children(self, session: MemorySession, path: str, watch: Watcher | None) -> tuple[list[str], Stat]:
        """Return names of the children and the parent's stat. Raises NoNodeError."""
        node = self._node(path)
        _leave(self._child_watches, path, session, watch)
        return sorted(node.children), node.stat()

    # ---- one transaction --------------------------------------------------------------------------------------------

    def apply(self, session: MemorySession, ops: Sequence[Op]) -> list[OpResult]:
        """Apply all of `ops` or none, as one transaction. The failing operation's error carries `op_index`."""
        self._zxid += 1
        results: list[OpResult] = []
        events: list[WatchEvent] = []
        undo: list[Callable[[], None]] = []
        for index, op in enumerate(ops):
            try:
                result, caused, revert = self._apply_one(session, op)
            except DistributedLogError as error:
                for step in reversed(undo):
                    step()
                error.path = op.path
                error.op_index = index
                raise
            results.append(result)
            events += caused
            undo.append(revert)
        self._fire(events)
        return results

    def _apply_one(self, session: MemorySession, op: Op) -> tuple[OpResult, list[WatchEvent], Callable[[], None]]:
        if isinstance(op, Create):
            return self._create(session, op)
        if isinstance(op, SetData):
            return self._set(session, op)
        if isinstance(op, Delete):
            _admit(session, self._node(parent_of(op.path)))
            return self._delete(op)
        self._match(op.path, op.version)
        return None, [], lambda: None

    def _match(self, path: str, version: int) -> _Znode:
        node = self._node(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersionError(f"version is {node.version}, not {version}", path=path)
        return node

    def _create(self, session: MemorySession, op: Create) -> tuple[str, list[WatchEvent], Callable[[], None]]:
        parent_path = parent_of(op.path)
        parent = self._node(parent_path)
        _admit(session, parent)
        if parent.owner:
            raise CallerError("an ephemeral znode cannot have children", path=op.path)
        path = op.path + _sequence(parent.created) if op.sequential else op.path
        if path in self._nodes:
            raise NodeExistsError("the znode exists already", path=path)
        now = self._now_ms()
        owner = session.id if op.ephemeral else 0
        guard = session.acl_id if session.restrict else None
        self._nodes[path] = _Znode(bytes(op.data), self._zxid, self._zxid, now, now, owner, guard=guard)
        parent.children.add(name_of(path))
        parent.created += 1

        def revert() -> None:
            del self._nodes[path]
            parent.children.discard(name_of(path))
            parent.created -= 1

        return path, [WatchEvent(EventKind.CREATED, path), WatchEvent(EventKind.CHILDREN, parent_path)], revert

    def _set(self, session: MemorySession, op: SetData) -> tuple[Stat, list[WatchEvent], Callable[[], None]]:
        _admit(session, self._node(op.path))
        node = self._match(op.path, op.version)
        before = (node.data, node.version, node.mzxid, node.mtime_ms)
        node.data, node.version, node.mzxid, node.mtime_ms = (
            bytes(op.data),
            node.version + 1,
            self._zxid,
            self._now_ms(),
        )

        def revert() -> None:
            node.data, node.version, node.mzxid, node.mtime_ms = before

        return node.stat(), [WatchEvent(EventKind.CHANGED, op.path)], revert

    def _delete(self, op: Delete) -> tuple[None, list[WatchEvent], Callable[[], None]]:
        node = self._match(op.path, op.version)
        if node.children:
            raise NotEmptyError("the znode has children", path=op.path)
        parent_path = parent_of(op.path)
        parent = self._nodes[parent_path]
        del self._nodes[op.path]
        parent.children.discard(name_of(op.path))

        def revert() -> None:
            self._nodes[op.path] = node
            parent.children.add(name_of(op.path))

        return None, [WatchEvent(EventKind.DELETED, op.path), WatchEvent(EventKind.CHILDREN, parent_path)], revert

    def _fire(self, events: Sequence[WatchEvent]) -> None:
        """Deliver each event once to the watchers of its path; a deletion also ends a watch on the children."""
        for event in events:
            tables = [self._child_watches if event.kind is EventKind.CHILDREN else self._data_watches]
            if event.kind is EventKind.DELETED:
                tables.append(self._child_watches)
            for table in tables:
                for (_, watcher), session in table.pop(event.path, {}).items():
                    session.store._deliver(watcher, event)


def _leave(table: _Watches, path: str, session: MemorySession, watch: Watcher | None) -> None:
    """Leave a watch; the same watcher twice on one path is one watch."""
    if watch is not None:
        table.setdefault(path, {})[(session.id, watch)] = session


def _admit(session: MemorySession, node: _Znode) -> None:
    """Raise NoAuthError unless the session may change the node or its children."""
    if node.guard not in (None, session.acl_id):
        raise NoAuthError("the znode's access control list refuses this session (zkAclId)")


def _sequence(number: int) -> str:
    """Return ZooKeeper's ten digits of a signed 32-bit counter: it overflows into negative numbers."""
    return f"{(number + 2**31) % 2**32 - 2**31:010d}"


class MemoryStore(MetadataStore):
    """How do sessions of one process meet without a server? One, on a MemoryTree. Make it on the loop that uses it."""

    retry_policy: RetryPolicy | None = None

    def __init__(self, tree: MemoryTree, *, acl_id: str | None = None, restrict: bool = True) -> None:
        self._tree = tree
        self._acl_id = acl_id
        self._restrict = restrict
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bind_loop()
        with tree.lock:
            self._session = tree._begin(self)
        self._hub = SessionHub(SessionState.CONNECTED, self._session.id)
        self._observers = RequestObservers()

    @property
    def session_id(self) -> int:
        """The current session's id; it changes after an expiry."""
        return self._hub.session_id

    @property
    def state(self) -> SessionState:
        """The session's state as it was heard last."""
        return self._hub.state

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        """Call `listener` at each change of state, on this store's loop; returns a function that unsubscribes it."""
        return self._hub.on_session(listener)

    def observe(self, observer: RequestObserver) -> Callable[[], None]:
        """Call `observer` after each request; returns a function that unsubscribes it."""
        return self._observers.add(observer)

    @property
    def session_token(self) -> bytes:
        """The session's id in 8 bytes: a store in memory has no passwords."""
        return self.session_id.to_bytes(_TOKEN_BYTES, "big")

    async def end_session(self, token: bytes) -> None:
        """Expire the session with this token at once, if it has not ended. Raises CallerError for other bytes."""
        if len(token) != _TOKEN_BYTES:
            raise CallerError("this is not a session's token")
        session_id = int.from_bytes(token, "big")

        def end(session: MemorySession, answered: bool) -> None:
            if session_id in self._tree._sessions:
                self._tree.expire(session_id)

        await self._observed("end_session", "/", end)

    # ---- requests ---------------------------------------------------------------------------------------------------

    async def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, Stat]:
        """Return data and stat. Raises NoNodeError. A request whose answer a fault withholds leaves no watch."""
        check_path(path)
        return await self._observed(
            "get", path, lambda session, answered: self._tree.get(session, path, watch if answered else None)
        )

    async def exists(self, path: str, watch: Watcher | None = None) -> Stat | None:
        """Stat or None; a watch is left in both cases, unless a fault withholds the answer."""
        check_path(path)
        return await self._observed(
            "exists", path, lambda session, answered: self._tree.exists(session, path, watch if answered else None)
        )

    async def children(self, path: str, watch: Watcher | None = None) -> tuple[list[str], Stat]:
        """Return the child names, sorted, and the parent's stat. Raises NoNodeError."""
        check_path(path)
        return await self._observed(
            "children", path, lambda session, answered: self._tree.children(session, path, watch if answered else None)
        )

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> str:
        """Create a znode and return its path. Raises NodeExistsError, NoNodeError, or an OutcomeUnknownError."""
        op = Create(path, data, ephemeral, sequential)
        check_request([op])

        async def create_one(op: Create) -> str:
            created = (await self._apply("create", [op]))[0]
            check(isinstance(created, str), "a create did not answer with a path")
            return str(created)

        return await (create_with_parents(create_one, op) if make_parents else create_one(op))

    async def put(self, path: str, data: bytes, version: int) -> Stat:
        """Set data at `version` (-1: any). Raises BadVersionError, NoNodeError; under faults OutcomeUnknownError."""
        op = SetData(path, data, version)
        check_request([op])
        stat = (await self._apply("put", [op]))[0]
        if not isinstance(stat, Stat):
            raise InvariantViolation("a set did not answer with a stat", path=path)
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete at `version` (-1: any). Raises BadVersionError, NoNodeError and NotEmptyError; under faults an
        OutcomeUnknownError."""
        op = Delete(path, version)
        check_request([op])
        await self._apply("delete", [op])

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        """Apply all or none, in one step of the tree; an empty list does nothing. The failing operation's error has
        `op_index`."""
        check_request(ops)
        return await self._apply("multi", list(ops)) if ops else []

    async def sync(self, path: str) -> None:
        """Check the path only: there is one tree, and every read sees all of it."""
        check_path(path)
        await self._observed("sync", path, lambda session, answered: None)

    async def close(self) -> None:
        """End the session, and delete its ephemeral znodes. Idempotent."""
        if self.state is not SessionState.CLOSED:
            with self._tree.lock:
                if self._session.alive:
                    self._tree._end(self._session)
            self._hub.hear(SessionState.CLOSED, self.session_id)
        await asyncio.sleep(0)

    async def _apply(self, name: str, ops: Sequence[Op]) -> list[OpResult]:
        return await self._observed(name, ops[0].path, lambda session, answered: self._tree.apply(session, ops))

    async def _observed(self, name: str, path: str, action: Callable[[MemorySession, bool], T]) -> T:
        with self._observers.request(name, path):
            return await self._request(name, path, action)

    async def _request(self, name: str, path: str, action: Callable[[MemorySession, bool], T]) -> T:
        """Send, apply, answer: each in a loop turn of its own."""
        self._bind_loop()
        session = self._session
        if self.state is not SessionState.CONNECTED:
            raise MetadataUnavailableError(
                f"the metadata session is {self.state.value}; {name} was not sent", path=path
            )
        losses = session.losses
        fault = self._tree.inject(session.id, name, path) if self._tree.inject is not None else None
        if fault is Fault.REFUSE:
            raise MetadataUnavailableError(f"{name} was not sent", path=path)
        await self._travel(session)
        if fault is Fault.LOSE_REQUEST:
            self._flicker(session)
        outcome: T | DistributedLogError
        with self._tree.lock:
            self._ensure_connected(session, losses, name, path)
            try:
                outcome = action(session, fault is not Fault.LOSE_REPLY)
            except DistributedLogError as error:
                outcome = error
        if fault is Fault.LOSE_REPLY:
            self._flicker(session)
        await asyncio.sleep(0)
        self._ensure_connected(session, losses, name, path)
        if isinstance(outcome, DistributedLogError):
            raise outcome
        return outcome

    async def _travel(self, session: MemorySession) -> None:
        """Give the loop one turn, and wait while the server is stalled."""
        loop = asyncio.get_running_loop()
        released = loop.create_future()

        def release() -> None:
            if not released.done():
                released.set_result(None)

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(release)

        await asyncio.sleep(0)
        if self._tree._stall_point(session, wake):
            await released

    def _ensure_connected(self, session: MemorySession, losses: int, name: str, path: str) -> None:
        if not session.alive:
            raise SessionExpiredError(f"the session ended during {name}", path=path)
        if session.losses != losses or not session.connected:
            raise ConnectionLossError(f"the connection was lost during {name}", path=path)

    def _flicker(self, session: MemorySession) -> None:
        """Break the connection and let it come back in the loop's next turn."""
        if session.alive and session.connected:
            self._tree.disconnect(session.id)
            asyncio.get_running_loop().call_soon(self._tree.reconnect, session.id)

    # ---- called by the tree (under its lock, from any thread) -------------------------------------------------------

    def _bind_loop(self) -> None:
        if self._loop is None:
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:
                return  # made outside a loop: bound at the first request

    def _post(self, callback: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        if self._loop is None:
            callback(*args, **kwargs)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(partial(callback, *args, **kwargs))

    def _hear(self, state: SessionState) -> None:
        """Pass a change of the session's own state on: the tree calls this, the hub hears it on the loop."""
        self._post(self._hub.hear, state, self._session.id)

    def _renew(self) -> None:
        """Begin the session that follows an expired one by itself."""
        self._hear(SessionState.EXPIRED)
        self._session = self._tree._begin(self)
        self._hear(SessionState.CONNECTED)

    def _deliver(self, watcher: Watcher, event: WatchEvent) -> None:
        self._post(_call_watcher, watcher, event)


def _call_watcher(watcher: Watcher, event: WatchEvent) -> None:
    call_safely(watcher, event)
