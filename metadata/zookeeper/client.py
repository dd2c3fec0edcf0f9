"""`ZooKeeperStore`: the metadata store on a real ZooKeeper, through kazoo. No kazoo type leaves this module and
`metadata.zookeeper.edge`, which has what it does to kazoo itself: threads, sockets, limits of time.

kazoo runs one thread, its connection. That thread never runs our code beyond `loop.call_soon_threadsafe`: answers,
watch events and changes of state reach the event loop as one queue, in the order in which the server sent them. The
loop never waits for the thread; what might wait (starting and stopping kazoo) runs in a short-lived thread.

What a lost connection means to a request: made while the session is not CONNECTED it is refused unsent
(MetadataUnavailableError). Otherwise kazoo may have written it to the socket, and it is not known whether the server
applied it: ConnectionLossError or SessionExpiredError, both outcome unknown. Requests are never sent a second time.
kazoo does not set watches again after a reconnection, so every watch is void then (`metadata.zookeeper.session`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.security import ACL, Id

from metadata.foundation.addresses import parse_address
from metadata.foundation.errors import (
    NO_AUTH_ADVICE,
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
    OutcomeUnknownError,
    SessionExpiredError,
)
from metadata.foundation.opened_here import OnOneLoop
from metadata.foundation.pacing import TokenBucket
from metadata.foundation.socks import socks_proxy, what_to_check
from metadata.retry import create_with_parents, reconnected
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
)
from metadata.zookeeper.access import NO_IDENTITY, Access, AclEntry
from metadata.zookeeper.edge import BoundedConnection, LoopHandler, WhoAmI, tells_no_secret
from metadata.zookeeper.outages import OutageNotice
from metadata.zookeeper.session import RequestObservers, SessionHub, call_safely
from metadata.zookeeper.tls_socket import ClientTls

_LOG: Final = logging.getLogger(__name__)
_KAZOO_LOG: Final = logging.getLogger(f"{__name__}.kazoo")
# Below warnings it logs a dozen lines for each session, which call for no action.
_KAZOO_LOG.setLevel(logging.WARNING)
_KAZOO_LOG.addFilter(tells_no_secret)
_KAZOO_LOG.addHandler(logging.NullHandler())  # errors and states report lost connections, not the terminal
MAX_IN_FLIGHT: Final = 128
"""Requests handed to kazoo at a time. It wakes its thread by one byte on a socket pair for each, and a full one would
block the loop; further requests wait their turn."""
CLOSE_GRACE_MS: Final = 3_000
_RECONNECT: Final = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_jitter": 0.4, "max_delay": 1.0}
_MAYBE_SECURED: Final = "; at a secured port only sessions by TLS are answered (security=on, or DLSPARK_SECURITY)"
_SESSION_ID_BYTES: Final = 8
_PASSWORD_BYTES: Final = 16

_EVENTS: Final = {
    "CREATED": EventKind.CREATED,
    "DELETED": EventKind.DELETED,
    "CHANGED": EventKind.CHANGED,
    "CHILD": EventKind.CHILDREN,
}

# The first class that fits decides: ConnectionClosedError is a SessionExpiredError to kazoo.
_ERRORS: Final[tuple[tuple[type[Exception], type[DistributedLogError], str], ...]] = (
    (kz.NoNodeError, NoNodeError, "no such znode"),
    (kz.NodeExistsError, NodeExistsError, "the znode exists already"),
    (kz.BadVersionError, BadVersionError, "the znode has another version"),
    (kz.NotEmptyError, NotEmptyError, "the znode has children"),
    (kz.NoChildrenForEphemeralsError, CallerError, "an ephemeral znode cannot have children"),
    (kz.BadArgumentsError, CallerError, "ZooKeeper refuses the arguments"),
    (kz.NoAuthError, NoAuthError, "the znode's access control list refuses this session"),
    (kz.AuthFailedError, CallerError, "ZooKeeper refuses the credentials"),
    (kz.InvalidACLError, CallerError, "ZooKeeper refuses the access control list"),
    (kz.QuotaExceededError, CallerError, "a ZooKeeper quota is exceeded"),
    (kz.ConnectionClosedError, MetadataUnavailableError, "the metadata session is closed"),
    (kz.SessionMovedError, MetadataUnavailableError, "the session moved to another server"),
    (kz.NotReadOnlyCallError, MetadataUnavailableError, "this ZooKeeper server is read-only at present"),
    (kz.ThrottledOpError, MetadataUnavailableError, "ZooKeeper is overloaded"),
    (kz.SessionExpiredError, SessionExpiredError, "the session expired"),
    (kz.ConnectionLoss, ConnectionLossError, "the connection was lost"),
    (kz.OperationTimeoutError, ConnectionLossError, "ZooKeeper did not answer in time"),
    (kz.RequestTimeoutError, ConnectionLossError, "ZooKeeper did not answer in time"),
)


class ZooKeeperStore(OnOneLoop, MetadataStore):
    """How do we talk to a ZooKeeper? One session. Make it with `connect`, whose arguments say more, on the loop that
    uses it.
    """

    def __init__(
        self,
        servers: str,
        session_timeout_ms: int,
        connect_timeout_ms: int,
        resumed: tuple[int, bytes] | None = None,
        *,
        tls: ClientTls | None = None,
        access: Access = NO_IDENTITY,
        requests_per_second: float = 0.0,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        self.retry_policy = retry_policy
        self._servers = _check_servers(servers)
        self._timeouts_ms = session_timeout_ms, connect_timeout_ms
        self._loop = asyncio.get_running_loop()
        if access.needs_tls and tls is None:
            raise CallerError(
                "the session's secret would be sent to ZooKeeper in clear text",
                node=servers,
                advice="Nothing was sent. Switch security on, so that the session is by TLS",
            )
        self._tls = tls
        self._tls_trouble: str | None = None
        self._refused: asyncio.Future[None] = self._loop.create_future()
        self._handler = LoopHandler(self._loop, socks_proxy(), tls)
        self._hub = SessionHub(SessionState.SUSPENDED)
        self._observers = RequestObservers()
        self._room = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._pending: set[asyncio.Future[Any]] = set()
        self._rate = TokenBucket(requests_per_second) if requests_per_second > 0 else None
        self._closing: asyncio.Task[None] | None = None
        self._client = KazooClient(
            hosts=self._servers,
            timeout=session_timeout_ms / 1000,
            handler=self._handler,
            logger=_KAZOO_LOG,
            connection_retry=_RECONNECT,
            client_id=resumed,
            auth_data=[("digest", one.secret.reveal()) for one in access.credentials] or None,
            # Never "the creator": that would be the certificate's subject as well, and it alone where it is alone.
            default_acl=_kazoo_list(access.entries) or None,
        )

        def heard(trouble: str | None, refused: bool) -> None:
            self._handler.post(self._hear_of_tls, trouble, refused)

        BoundedConnection.install(self._client, self._handler, connect_timeout_ms / 1000, heard)
        asked = [one for one in self._client.hosts if not self._handler.goes_by_proxy(one[0])]
        self._hub.on_session(OutageNotice(self._servers, asked, tls, lambda: self._client.last_zxid).hear)
        self._client.add_listener(self._on_kazoo_state)

    @classmethod
    async def connect(
        cls,
        servers: str,
        *,
        session_timeout_ms: int = 30_000,
        connect_timeout_ms: int = 10_000,
        tls: ClientTls | None = None,
        access: Access = NO_IDENTITY,
        requests_per_second: float = 0.0,
        retry_policy: RetryPolicy | None = None,
    ) -> ZooKeeperStore:
        """Open a session with any of `servers` ("host:port,host:port"); of `requests_per_second`, 0 or less is any
        number. With `tls`, nothing is sent in clear text; `access` is who the session is, and whose its znodes are.

        Raises MetadataUnavailableError when none answered within `connect_timeout_ms`, or sooner where TLS, or its
        lack, shows that none will; CallerError for a bad list, or a secret without TLS.
        """
        store = cls(
            servers,
            session_timeout_ms,
            connect_timeout_ms,
            tls=tls,
            access=access,
            requests_per_second=requests_per_second,
            retry_policy=retry_policy,
        )
        store._client.start_async()
        try:
            if await store._begun(connect_timeout_ms):
                return store
        except BaseException:
            await store.close()
            raise
        await store.close()
        raise store._unreached_error(connect_timeout_ms)

    async def _begun(self, timeout_ms: int) -> bool:
        """Wait for the first session; return early where every server has refused to speak TLS with us."""
        begun = asyncio.ensure_future(reconnected(self, timeout_ms))
        try:
            either: set[asyncio.Future[Any]] = {begun, self._refused}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return await begun if begun.done() else False
        finally:
            begun.cancel()

    def _unreached_error(self, timeout_ms: int) -> MetadataUnavailableError:
        if self._tls_trouble is not None and self._tls is None:
            return MetadataUnavailableError(
                f"no session with ZooKeeper: {self._tls_trouble}",
                node=self._servers,
                advice="Nothing was asked for but a session. Set security=on and securityDirectory, or"
                " DLSPARK_SECURITY=DIR; or name the server's plain port",
            )
        if self._tls_trouble is not None:
            return MetadataUnavailableError(
                f"no session with ZooKeeper by TLS: {self._tls_trouble}",
                node=self._servers,
                advice="Check the certificates of both sides, the authorities that each trusts, and the port; for a"
                " plain one, security=off and no DLSPARK_SECURITY",
            )
        secured = _MAYBE_SECURED if self._tls is None else ""
        return MetadataUnavailableError(
            f"no ZooKeeper server answered within {timeout_ms} ms",
            node=self._servers,
            advice=f"Check the address and that ZooKeeper runs there{secured}{what_to_check()}",
        )

    @property
    def session_id(self) -> int:
        """The current session's id; it changes after an expiry."""
        return self._hub.session_id

    @property
    def state(self) -> SessionState:
        """The session's state as it was heard last."""
        return self._hub.state

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        """Call `listener` at each change of state, on the store's loop; returns a function that unsubscribes it."""
        return self._hub.on_session(listener)

    def observe(self, observer: RequestObserver) -> Callable[[], None]:
        """Call `observer` after each request; returns a function that unsubscribes it."""
        return self._observers.add(observer)

    @property
    def session_token(self) -> bytes:
        """The session's id (8 bytes, signed) and its password (16), a secret; empty before the first connection."""
        session_id, password = self._client.client_id or (0, b"")
        return session_id.to_bytes(_SESSION_ID_BYTES, "big", signed=True) + password if session_id else b""

    async def end_session(self, token: bytes) -> None:
        """Resume the session and close it. The server orders that close before anything that the session's old
        connection may still hold: a resumed session refuses what comes through another connection, and a closed one
        refuses everything."""
        session_id, password = int.from_bytes(token[:_SESSION_ID_BYTES], "big", signed=True), token[_SESSION_ID_BYTES:]
        if not session_id or len(password) != _PASSWORD_BYTES:
            raise CallerError("this is not a session's token")
        former = ZooKeeperStore(self._servers, *self._timeouts_ms, (session_id, password), tls=self._tls)
        former._client.start_async()
        try:
            # A session that has ended gets a new one here, which ends as well.
            if not await reconnected(former, self._timeouts_ms[1]):
                raise MetadataUnavailableError("no ZooKeeper server answered; the session was not ended")
        finally:
            await former.close()

    # ---- requests ---------------------------------------------------------------------------------------------------

    async def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, Stat]:
        """Return data and stat; data that another client stored as null is b''. Raises NoNodeError, and then leaves no
        watch.
        """
        check_path(path)
        data, stat = await self._call("get", path, lambda: self._client.get_async(path, self._watch(path, watch)))
        return data or b"", _stat(stat)  # other clients may store null, which kazoo reads as None

    async def exists(self, path: str, watch: Watcher | None = None) -> Stat | None:
        """Return the stat, None where there is none. The watch fires once: on creation, change or deletion."""
        check_path(path)
        stat = await self._call("exists", path, lambda: self._client.exists_async(path, self._watch(path, watch)))
        return None if stat is None else _stat(stat)

    async def children(self, path: str, watch: Watcher | None = None) -> tuple[list[str], Stat]:
        """Return the child names, sorted here (ZooKeeper has no order), and the parent's stat. Raises NoNodeError."""
        check_path(path)
        names, stat = await self._call(
            "children", path, lambda: self._client.get_children_async(path, self._watch(path, watch), include_data=True)
        )
        return sorted(names), _stat(stat)

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
        return await (create_with_parents(self._create, op) if make_parents else self._create(op))

    async def _create(self, op: Create) -> str:
        def submit() -> Any:
            return self._client.create_async(
                op.path, bytes(op.data), ephemeral=op.ephemeral, sequence=op.sequential, makepath=False
            )

        return str(await self._call("create", op.path, submit))

    async def put(self, path: str, data: bytes, version: int) -> Stat:
        """Set data at `version` (-1: any). Raises BadVersionError, NoNodeError, or an OutcomeUnknownError."""
        check_request([SetData(path, data, version)])
        return _stat(await self._call("put", path, lambda: self._client.set_async(path, bytes(data), version)))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete at `version` (-1: any). Raises BadVersionError, NoNodeError, NotEmptyError or OutcomeUnknownError."""
        check_request([Delete(path, version)])
        await self._call("delete", path, lambda: self._client.delete_async(path, version))

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        """Apply all or none in one transaction. Raises the error of the operation that failed, not of those rolled back
        with it, with its `op_index`; or an OutcomeUnknownError."""
        check_request(ops)
        if not ops:
            return []
        with self._observers.request("multi", ops[0].path):
            return await self._multi(ops)

    async def _multi(self, ops: Sequence[Op]) -> list[OpResult]:
        results = await self._send("multi", ops[0].path, lambda: self._transaction(ops).commit_async())
        for index, result in enumerate(results):
            # Operations before the failing one say "rolled back", those after it "runtime inconsistency".
            if isinstance(result, Exception) and not isinstance(result, kz.RolledBackError | kz.RuntimeInconsistency):
                error = _translated_error(result, "multi", ops[index].path)
                error.op_index = index
                raise error
        if len(results) != len(ops) or any(isinstance(result, Exception) for result in results):
            raise InvariantViolation(f"a multi of {len(ops)} operations answered {results!r}", path=ops[0].path)
        return [_op_result(op, result) for op, result in zip(ops, results, strict=True)]

    def _transaction(self, ops: Sequence[Op]) -> Any:
        transaction = self._client.transaction()
        for op in ops:
            if isinstance(op, Create):
                transaction.create(op.path, bytes(op.data), ephemeral=op.ephemeral, sequence=op.sequential)
            elif isinstance(op, SetData):
                transaction.set_data(op.path, bytes(op.data), op.version)
            elif isinstance(op, Delete):
                transaction.delete(op.path, op.version)
            else:
                transaction.check(op.path, op.version)
        return transaction

    async def sync(self, path: str) -> None:
        """Wait until this session's server has caught up with the leader, so that later reads see what was committed
        before."""
        check_path(path)
        await self._call("sync", path, lambda: self._client.sync_async(path))

    # ---- access control lists ---------------------------------------------------------------------------------------

    async def get_list(self, path: str) -> tuple[tuple[AclEntry, ...], int]:
        """Return a znode's access control list, sorted, and its version. Raises NoNodeError, NoAuthError."""
        check_path(path)
        found, stat = await self._call("get_list", path, lambda: self._client.get_acls_async(path))
        return tuple(sorted(AclEntry(one.id.scheme, one.id.id, one.perms) for one in found)), stat.aversion

    async def put_list(self, path: str, entries: Sequence[AclEntry], version: int) -> None:
        """Set a znode's list at its version. Raises BadVersionError, NoNodeError, NoAuthError or OutcomeUnknownError;
        CallerError for an empty list, with which nobody could do anything any more."""
        check_path(path)
        if not entries:
            raise CallerError("an empty access control list shuts everybody out", path=path)
        acls = _kazoo_list(entries)
        await self._call("put_list", path, lambda: self._client.set_acls_async(path, acls, version))

    async def who_am_i(self) -> tuple[tuple[str, str], ...]:
        """Return the identities that the server knows this session by: scheme and name."""
        asked = self._client.handler.async_result

        def submit() -> Any:
            result = asked()
            self._client._call(WhoAmI(), result)
            return result

        return tuple(await self._call("who_am_i", "/", submit))

    async def _call(self, name: str, path: str, submit: Callable[[], Any]) -> Any:
        with self._observers.request(name, path):
            return await self._send(name, path, submit)

    async def _send(self, name: str, path: str, submit: Callable[[], Any]) -> Any:
        """Hand one request to kazoo and wait for its answer on the loop."""
        self._check_loop()
        if self._rate is not None:
            await self._rate.take()
        async with self._room:
            if self.state is not SessionState.CONNECTED or self._closing is not None:
                state = "closed" if self._closing is not None else self.state.value
                why = "" if self._tls_trouble is None else f" ({self._tls_trouble})"
                raise MetadataUnavailableError(
                    f"the metadata session is {state}{why}; {name} was not sent", path=path, node=self._servers
                )
            future: asyncio.Future[Any] = self._loop.create_future()
            self._pending.add(future)
            try:
                submit().rawlink(partial(_settle, future))
                return await future
            except kz.KazooException as error:
                raise _translated_error(error, name, path) from error
            finally:
                self._pending.discard(future)

    def _watch(self, path: str, watcher: Watcher | None) -> _Watch | None:
        return None if watcher is None else _Watch(self._hub, path, watcher)

    # ---- session ----------------------------------------------------------------------------------------------------

    def _on_kazoo_state(self, state: str) -> None:
        """Pass the change on to the loop; called on kazoo's thread."""
        if state == KazooState.CONNECTED:
            session_id, _ = self._client.client_id or (0, b"")
            self._handler.post(self._hear, SessionState.CONNECTED, session_id)
        elif state == KazooState.SUSPENDED:
            self._handler.post(self._hear, SessionState.SUSPENDED, None)
        elif self._client.client_state == KeeperState.EXPIRED_SESSION:
            self._handler.post(self._hear, SessionState.EXPIRED, None)
        else:
            self._handler.post(self._hear, SessionState.CLOSED, None)

    def _hear_of_tls(self, trouble: str | None, refused: bool) -> None:
        """Keep what TLS fails by for errors, and log it once each time it changes: kazoo tries on without a word."""
        if trouble is not None and trouble != self._tls_trouble:
            _LOG.warning("no connection with ZooKeeper%s: %s", "" if self._tls is None else " by TLS", trouble)
        self._tls_trouble = trouble
        if refused and not self._refused.done():
            self._refused.set_result(None)

    def _hear(self, state: SessionState, session_id: int | None) -> None:
        if state is not SessionState.CONNECTED:
            self._fail_pending(state)
        if state is SessionState.SUSPENDED and self._closing is not None:
            return  # Closing breaks the connection itself where the server does not answer: CLOSED is what follows.
        self._hub.hear(state, self._hub.session_id if session_id is None else session_id)

    def _fail_pending(self, state: SessionState) -> None:
        """Settle what was handed to kazoo before the loss was heard: it may have slipped past kazoo's own clean-up."""
        for future in self._pending:
            if not future.done():
                future.set_exception(kz.SessionExpiredError() if state is SessionState.EXPIRED else kz.ConnectionLoss())

    async def close(self) -> None:
        """End the session and kazoo's thread. Where the server does not answer, its ephemerals go with the timeout."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._shut())
        await asyncio.shield(self._closing)

    async def _shut(self) -> None:
        stopped: asyncio.Future[None] = self._loop.create_future()

        def stop() -> None:
            try:
                self._client.stop()
                self._client.close()
            except Exception:
                _LOG.exception("kazoo did not stop cleanly")
            finally:
                self._handler.post(stopped.set_result, None)

        thread = threading.Thread(target=stop, name="dlspark-zookeeper-close", daemon=True)
        thread.start()
        if not (await asyncio.wait({stopped}, timeout=CLOSE_GRACE_MS / 1000))[0]:
            self._handler.abort()
            await stopped
        thread.join()
        self._hear(SessionState.CLOSED, None)


def _check_servers(servers: str) -> str:
    hosts = [part.strip() for part in servers.replace(";", ",").split(",")]
    for host in hosts:
        if parse_address(host) is None or "/" in host or "@" in host:
            raise CallerError(
                f"invalid ZooKeeper servers {servers!r}",
                advice='Give them as "host:port" or "host:port,host:port", an IPv6 address in brackets: "[::1]:2181"',
            )
    return ",".join(hosts)


def _kazoo_list(entries: Sequence[AclEntry]) -> list[ACL]:
    return [ACL(entry.rights, Id(entry.scheme, entry.identity)) for entry in entries]


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    """Pass kazoo's answer to the waiter, unless it was settled or cancelled before (on the loop)."""
    if future.done():
        return
    if result.exception is not None:
        future.set_exception(result.exception)
    else:
        future.set_result(result.value)


def _translated_error(error: Exception, name: str, path: str) -> DistributedLogError:
    for theirs, ours, message in _ERRORS:
        if isinstance(error, theirs):
            return ours(f"{name}: {message}", path=path, advice=NO_AUTH_ADVICE if ours is NoAuthError else None)
    return OutcomeUnknownError(f"{name}: ZooKeeper answered {error!r}", path=path)


def _stat(stat: Any) -> Stat:
    return Stat(
        version=stat.version,
        cversion=stat.cversion,
        czxid=stat.czxid,
        mzxid=stat.mzxid,
        ctime_ms=stat.ctime,
        mtime_ms=stat.mtime,
        ephemeral_owner=stat.ephemeralOwner,
        data_length=stat.dataLength,
        num_children=stat.numChildren,
    )


def _op_result(op: Op, result: Any) -> OpResult:
    if isinstance(op, Create):
        return str(result)
    return _stat(result) if isinstance(op, SetData) else None


@dataclass(frozen=True, slots=True)
class _Watch:
    """Is a watch there already? Equal for the same watcher on the same path, so that kazoo's set keeps one."""

    hub: SessionHub
    path: str
    watcher: Watcher

    def __call__(self, event: Any) -> None:
        kind = _EVENTS.get(event.type)
        if kind is not None:
            call_safely(self.watcher, WatchEvent(kind, self.path))
            return
        self.hub.void(self.path, self.watcher)
        if self.hub.state is not SessionState.SUSPENDED:
            self.hub.tell_void()
