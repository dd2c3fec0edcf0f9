"""kazoo's edge to threads, sockets and time, for `metadata.zookeeper.client` alone: no other module imports this one.

Fault model of the network here: a server may accept a connection and never answer on it (it is paused, a half-open
link leads to it, or it is ZooKeeper 3.9, which forgets a connection that reaches it while it still reads its database),
take no connection at all, or fall silent on a connection that worked. kazoo waits up to a whole session timeout in each
of these cases (for the answer to a handshake as long as the session lives, and while requests go out it never asks
whether anything comes back), so one such server costs the session although it, or another one, would answer if asked
again. Here an attempt at a connection has a part of that time, and so has silence: see `BoundedConnection`.

Where servers lie in several regions, those of the own one are tried first, for a request to another one takes a round
trip more. They are those that are dialled without the SOCKS proxy, where there is one, and those that
`DLSPARK_ZOOKEEPER_FIRST` names (`host` or `host:port`, separated by commas). The one that answered nothing in time is
tried last, so that a near server that hangs costs a session one attempt and no more. A session that is elsewhere
returns to a server of the own region when that has served again for a while (`metadata.zookeeper.homing`), if it is
dialled without the proxy.

Where a session speaks TLS, its handshake is part of an attempt, and the certificates' files are looked at before each
one: a session that was refused for an expired certificate goes on once there is another. What TLS failed by is passed
on (`BoundedConnection`), as kazoo has no word for it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import random
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, ParamSpec

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.handlers.utils import selector_select
from kazoo.protocol.connection import ConnectionDropped, ConnectionHandler
from kazoo.protocol.serialization import Auth, Connect, Exists, GetChildren, GetChildren2, int_struct, read_string

from metadata.foundation.socks import ANSWER, SocksProxy, connect_request
from metadata.zookeeper.homing import HomeProbe, HomeRule
from metadata.zookeeper.port_kinds import (
    ASK_EVERY_S,
    ENDED_AT_SECURED,
    PLAIN_AT_SECURED,
    SECURED_AT_PLAIN,
    KindProbe,
    PortKind,
)
from metadata.zookeeper.refusals import Refusals
from metadata.zookeeper.tls_socket import (
    ENDED_AFTER_HANDSHAKE,
    CertificatesUnreadError,
    ClientTls,
    ServerRefusedError,
    SessionTlsSocket,
    TlsFailure,
    tls_failure,
)

P = ParamSpec("P")

FIRST_VARIABLE: Final = "DLSPARK_ZOOKEEPER_FIRST"
"""Environment variable with the servers that are tried first."""
_DIAL_SLICE_S: Final = 0.1
_ATTEMPTS_A_SESSION: Final = 3
"""Attempts at a connection that a session outlives at least: silence is noticed after two thirds of its timeout, and
the last third is left for the first of them."""
_DOUBLINGS: Final = 2
"""Of an attempt's limit, one with each attempt that ran out of time: mostly it is that connection which was forgotten,
not the server that is slow."""
_SHORTEST_ATTEMPT_S: Final = 1.0
_SILENT_SHARE: Final = 0.6
JUDGE_EVERY_S: Final = 5.0
"""How often a server's certificate is looked at again."""
_WRITE_LIMIT_S: Final = 10.0
"""How long a server may take nothing of what is sent by TLS, before the session's own limit is known."""

TlsListener = Callable[[str | None, bool], None]
"""Hears, from any thread, why no connection by TLS comes about (None: one did), and whether every server refuses."""


class LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's edge to threads and sockets: callbacks go to the event loop instead of kazoo's two worker threads.

    It also makes kazoo's blocking calls end: at the limits of `attempt` and `silence_limit_s`, and at once by `abort`,
    which breaks the connection or the attempt at one.
    """

    silence_limit_s: float | None = None
    """How long kazoo's loop may go on without a byte from the server. While nothing is asked of it, kazoo asks for a
    sign of life after half of that."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, proxy: SocksProxy | None = None, tls: ClientTls | None = None
    ) -> None:
        super().__init__()
        self._loop = loop
        self._proxy = proxy
        self.tls = tls
        self._direct: set[str] = set()
        self._deadline: float | None = None
        self._heard_at = 0.0
        self._socket: socket.socket | SessionTlsSocket | None = None
        self._judge_at = 0.0
        self._aborted = False
        self._running = True
        self.completion_queue = _LoopQueue(self)

    @property
    def is_aborted(self) -> bool:
        """True once the session is given up."""
        return self._aborted

    @property
    def fell_silent(self) -> bool:
        """True where so little was heard of the server last that this has ended the connection: by our limit, or by
        kazoo's question for a sign of life, which goes out after half of that and has nearly as long for its answer."""
        silence_s = time.monotonic() - self._heard_at
        return self.silence_limit_s is not None and silence_s > _SILENT_SHARE * self.silence_limit_s

    def addresses(self, host: str, port: int) -> list[tuple[str, int]]:
        """Return the addresses of a server, as `create_connection` takes them. A name that the proxy leads to is left
        to it: what it means there need not be known here. Raises OSError for a name that nobody knows."""
        if self._proxy is not None and self._proxy.leads_to(host):
            return [(host, port)]
        found = [each[4] for each in socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP)]
        addresses = [(str(address[0]), int(address[1])) for address in found]
        self._direct.update(address for address, _ in addresses)
        return addresses

    def goes_by_proxy(self, host: str) -> bool:
        """Return whether a server is dialled by way of the proxy."""
        return self._proxy is not None and self._proxy.leads_to(host)

    def near(self, host: str) -> bool:
        """Return whether a server is dialled directly where others are reached by way of the proxy."""
        return self._proxy is not None and not self._proxy.leads_to(host)

    def start(self) -> None:
        """Do nothing: there are no worker threads to start."""

    def stop(self) -> None:
        """Do nothing: answers that are still to come go to the loop."""

    def post(self, callback: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run `callback` on the loop; may be called from any thread. On a closed loop nothing waits for it any more."""
        try:
            self._loop.call_soon_threadsafe(partial(callback, *args, **kwargs))
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def dispatch_callback(self, callback: Any) -> None:
        """Make a callback for kazoo, a watch's for one: on the loop, in the order of its calls."""
        self.post(callback.func, *callback.args)

    @contextmanager
    def attempt(self, limit_s: float) -> Iterator[None]:
        """Take what kazoo's thread does within the block as one attempt at a connection: TCP's handshake, the
        session's, the sending of credentials. All of it together ends after `limit_s`.
        """
        self._deadline = time.monotonic() + limit_s
        try:
            yield
        finally:
            self._deadline = None
            self._heard_at = time.monotonic()

    def select(
        self, readers: list[Any], writers: list[Any], failing: list[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait as kazoo does, which has this one way. Within an attempt nothing is ready any more when its time is up,
        which kazoo takes as its own timeout; outside of one kazoo's loop hears of a server that has been silent for too
        long.
        """
        if self._deadline is not None:
            left = max(0.0, self._deadline - time.monotonic())
            timeout = left if timeout is None else min(timeout, left)
        ready = self._select(readers, writers, failing, timeout)
        if self._socket in ready[0]:
            self._heard_at = time.monotonic()
        elif self._deadline is None and self.silence_limit_s is not None and self._socket in readers:
            silence_s = time.monotonic() - self._heard_at
            if silence_s > self.silence_limit_s:
                raise self.timeout_exception(f"nothing heard from the server for {silence_s:.1f} s")
        return ready

    def _select(
        self, readers: list[Any], writers: list[Any], failing: list[Any], timeout: float | None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait; a connection by TLS is ready to be read when there is something decrypted."""
        secured = [one for one in readers if isinstance(one, SessionTlsSocket)]
        decrypted = [one for one in secured if one.pending()]
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if ends is None else max(0.0, ends - time.monotonic())
            slice_s = left
            if secured and self._deadline is None:
                self._judge_server()
                slice_s = JUDGE_EVERY_S if left is None else min(left, JUDGE_EVERY_S)
            ready: tuple[list[Any], list[Any], list[Any]]
            ready = ready_of(readers, writers, 0 if decrypted else slice_s)
            if not secured:
                return ready
            if not any(ready) and not decrypted and slice_s != left:
                continue  # the server's certificate is looked at, and the wait goes on
            shown = [one for one in ready[0] if one not in secured or one.readable()]
            shown += [one for one in decrypted if one not in shown]
            if shown or ready[1] or ready[2] or not ready[0]:
                return shown, ready[1], ready[2]

    def _judge_server(self) -> None:
        """End a connection whose server has a certificate that is not good any more: expired or revoked since the
        handshake. Asked at each wait, and answered every few seconds, so that a long session is no way around it."""
        now, connection = time.monotonic(), self._socket
        if self.tls is None or now < self._judge_at or not isinstance(connection, SessionTlsSocket):
            return
        self._judge_at = now + JUDGE_EVERY_S
        try:
            self.tls.refresh()
            reason = self.tls.judge(connection.peer_certificate() or b"", shown=connection.shown())
        except Exception as error:  # see `_secured`
            raise CertificatesUnreadError(f"this process's certificates cannot be used: {error}") from error
        if reason is not None:
            # With a number, as kazoo logs an OSError's text, which there is only beside one.
            raise ServerRefusedError(errno.EACCES, f"the server's certificate is not good any more: {reason}")

    def create_connection(
        self, address: tuple[str, int], timeout: float | None = None, hostname: str | None = None, **_tls: object
    ) -> socket.socket | SessionTlsSocket:
        """Connect in slices, so that `abort` ends it; by way of the SOCKS proxy where there is one, and by TLS where
        the session has it, whose certificate must be that of `hostname`. kazoo's own TLS is not used."""
        deadline = math.inf if self._deadline is None else self._deadline
        if timeout is not None:
            deadline = min(deadline, time.monotonic() + timeout)
        proxy = self._proxy if self._proxy is not None and self._proxy.leads_to(address[0]) else None
        if address[0] in self._direct:
            proxy = None
        dialled = address if proxy is None else (proxy.host, proxy.port)
        family, kind, protocol, _, resolved = socket.getaddrinfo(*dialled, type=socket.SOCK_STREAM)[0]
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._await_connected(connection, connection.connect_ex(resolved), deadline)
            if proxy is not None:
                self._ask_proxy(connection, proxy, address, deadline)
            made = connection if self.tls is None else self._secured(connection, hostname or address[0], deadline)
        except BaseException:
            connection.close()
            raise
        self._socket = made
        return made

    def _secured(self, connection: socket.socket, server_name: str, deadline: float) -> SessionTlsSocket:
        assert self.tls is not None
        try:
            self.tls.refresh()
            context = self.tls.client_context()
        except Exception as error:  # anything but an OSError would end kazoo's thread, and the session with it
            raise CertificatesUnreadError(f"this process's certificates cannot be used: {error}") from error

        def await_writable(connection: socket.socket) -> None:
            ends = self._deadline
            if ends is None:
                ends = time.monotonic() + (self.silence_limit_s or _WRITE_LIMIT_S)
            while not self._ready_in_slice(connection, select.POLLOUT, ends):
                pass

        def await_readable(connection: socket.socket) -> None:
            while not self._ready_in_slice(connection, select.POLLIN, deadline):
                pass

        secured = SessionTlsSocket(connection, context, server_name, await_writable)
        secured.shake_hands(await_readable)
        self._judge_at = time.monotonic() + JUDGE_EVERY_S
        return secured

    def _await_connected(self, connection: socket.socket, code: int, deadline: float) -> None:
        while code in (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY):
            if self._ready_in_slice(connection, select.POLLOUT, deadline):
                code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, f"cannot connect: {errno.errorcode.get(code, code)}")

    def _ask_proxy(
        self, connection: socket.socket, proxy: SocksProxy, address: tuple[str, int], deadline: float
    ) -> None:
        """Have the proxy connect this socket; within the same time, for the server's silence is silence there, too."""
        connection.sendall(connect_request(*address))  # the first bytes on this connection: its buffer has room
        answer = b""
        while len(answer) < ANSWER.size:
            if not self._ready_in_slice(connection, select.POLLIN, deadline):
                continue
            chunk = connection.recv(ANSWER.size - len(answer))
            if not chunk:
                break
            answer += chunk
        failure = proxy.failure_error(answer, *address)
        if failure is not None:
            raise failure

    def _ready_in_slice(self, connection: socket.socket, event: int, deadline: float) -> bool:
        """Wait for the event for a short while; raise TimeoutError at the deadline and ConnectionAbortedError after
        `abort`."""
        if self._aborted:
            raise ConnectionAbortedError(errno.ECONNABORTED, "closing")
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(errno.ETIMEDOUT, "no answer to the connection attempt")
        poll = select.poll()
        poll.register(connection, event)
        return bool(poll.poll(min(left, _DIAL_SLICE_S) * 1000))

    def abort(self) -> None:
        """Break the connection: kazoo's thread wakes up and finds that it was asked to stop."""
        self._aborted = True
        connection = self._socket
        if connection is not None:
            try:
                if isinstance(connection, SessionTlsSocket):
                    connection.break_off()
                else:
                    connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # closed by the other side or by kazoo already


class WhoAmI:
    """ZooKeeper's request for the identities of a session (since 3.7), which kazoo does not have."""

    type: Final = 107

    def serialize(self) -> bytearray:
        """Return its body: nothing."""
        return bytearray()

    @classmethod
    def deserialize(cls, content: bytes, offset: int) -> list[tuple[str, str]]:
        """Return scheme and name of each identity."""
        (count,) = int_struct.unpack_from(content, offset)
        offset += int_struct.size
        found = []
        for _ in range(count):
            scheme, offset = read_string(content, offset)
            name, offset = read_string(content, offset)
            found.append((scheme or "", name or ""))
        return found


def tells_no_secret(record: logging.LogRecord) -> bool:
    """Return False for kazoo's words of a credential that it sends, or of a session's password: such lines are left
    out of every log, however much that shows."""
    if "passwd" in str(record.msg):
        return False
    return not (isinstance(record.args, tuple) and any(isinstance(one, Auth | Connect) for one in record.args))


def first_servers(environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Return the servers that are tried first, by what the environment says: hosts, and `host:port`."""
    return frozenset(filter(None, (one.strip() for one in environment.get(FIRST_VARIABLE, "").split(","))))


def ready_of(readers: list[Any], writers: list[Any], timeout: float | None) -> tuple[list[Any], list[Any], list[Any]]:
    """Wait for sockets as kazoo's own function does, which opens, fills and closes an epoll for each wait: with five
    waits that is a third of what a request costs this process. A socket that has failed is ready for either.
    """
    if not hasattr(select, "poll"):
        return selector_select(readers, writers, [], timeout)  # type: ignore[no-any-return]
    waiting = select.poll()
    for one in readers:
        waiting.register(one, select.POLLIN | select.POLLPRI)
    for one in writers:
        waiting.register(one, select.POLLOUT)
    # Rounded up, or a wait for less than a millisecond would not be one.
    found = dict(waiting.poll(None if timeout is None else math.ceil(timeout * 1e3)))
    return [one for one in readers if one.fileno() in found], [one for one in writers if one.fileno() in found], []


class _LoopQueue:
    """Takes the place of kazoo's queue of completion callbacks."""

    def __init__(self, handler: LoopHandler) -> None:
        self._handler = handler

    def put(self, callback: Callable[[], None]) -> None:
        self._handler.post(callback)


class BoundedConnection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection, with limits near those of ZooKeeper's own client in place of kazoo's.

    An attempt at a connection takes no more than the session's timeout divided by the number of servers, and no more
    than a third of it; the first ones less. Silence takes no more than two thirds of it, also while requests are sent.
    A session that is still to be made has `connect_timeout_s` for all servers.

    `heard` is told what attempts by TLS end in.
    """

    def __init__(
        self, client: KazooClient, handler: LoopHandler, connect_timeout_s: float, heard: TlsListener | None = None
    ) -> None:
        super().__init__(client, client._connection.retry_sleeper, logger=client.logger)
        self._edge = handler
        self._heard = heard
        self._refusals = Refusals()
        self._kinds: dict[tuple[str, int], KindProbe] = {}
        self._connect_timeout_s = connect_timeout_s
        self._session_s: float = client._session_timeout / 1000
        self._ran_out = 0
        self._first = first_servers()
        self._dialled: tuple[str, int] | None = None
        self._silent: tuple[str, int] | None = None
        self._home = HomeRule()
        self._probe: HomeProbe | None = None
        self._returns_to: tuple[str, str, int] | None = None

    @classmethod
    def install(
        cls,
        client: KazooClient,
        handler: LoopHandler,
        connect_timeout_s: float,
        heard: TlsListener | None = None,
    ) -> None:
        """Let `client`, which has not been started, connect by this class."""
        client._connection = cls(client, handler, connect_timeout_s, heard)

    def _attempt_limit_s(self) -> float:
        hosts: int = len(self.client.hosts)
        if self.client._session_id:  # `client_id` has it only while connected
            most_s = self._session_s / max(hosts, _ATTEMPTS_A_SESSION)
        else:
            most_s = min(self._connect_timeout_s, self._session_s) / hosts
        first_s = max(_SHORTEST_ATTEMPT_S, most_s / 2**_DOUBLINGS)
        return min(most_s, first_s * (1 << min(self._ran_out, _DOUBLINGS)))

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        """Return the addresses to try, in order; kazoo asks when it has lost a connection, and when it has tried all of
        them. Any order but for two rules: near servers come first, and the one that was silent last."""
        if self._edge.fell_silent:
            self._silent = self._dialled
        found: list[tuple[str, str, int]] = []
        for host, port in self.client.hosts:
            try:
                found += [(host, *address) for address in self._edge.addresses(host, port)]
            except OSError as error:
                self.logger.warning("Cannot resolve %s: %s", host, error)
        self._refusals.tried_next(self.client.hosts, found)
        there = {(address, port) for _, address, port in found}
        for where in [one for one, probe in self._kinds.items() if one not in there and probe.ended]:
            del self._kinds[where]  # a server that has another address now, or is none any more
        random.shuffle(found)
        return sorted(found, key=lambda one: (one[1:] == self._silent, not self._is_near(one[0], one[2])))

    def _is_near(self, host: str, port: int) -> bool:
        return self._edge.near(host) or host in self._first or f"{host}:{port}" in self._first

    def _connect_attempt(self, host: str, address: str, port: int, retry: Any) -> Any:
        """Make one attempt, and serve the connection until it ends; at the server to return to, where there is one."""
        if self._returns_to is not None:
            (host, address, port), self._returns_to = self._returns_to, None
        return super()._connect_attempt(host, address, port, retry)

    def _read_socket(self, read_timeout: float) -> Any:
        """Read what has come; after a sign of life, with nothing under way, see to the session's return."""
        asked_for_life = self.ping_outstanding.is_set()
        end = super()._read_socket(read_timeout)
        heard = asked_for_life and not self.ping_outstanding.is_set()
        # What is queued from here on fails as by any lost connection: its outcome is unknown to the caller.
        if heard and not self.client._pending and not self.client._queue and not self.client._stopped.is_set():
            self._see_to_return(time.monotonic())
        return end

    def _see_to_return(self, now: float) -> None:
        if self._probe is not None and self._probe.ended:
            found, self._probe = self._probe.found, None
            # It may have ended long ago: only what is asked now and then shows that a server serves by now.
            self._home.answered(now, serves=found is not None)
            if found is not None and self._home.returns(now):
                self._returns_to = found
                raise ConnectionDropped(f"the session returns to {found[1]}:{found[2]}, in its own region")
        if self._probe is None and self._home.asks(now):
            homes = [
                (host, port)
                for host, port in self.client.hosts
                if self._is_near(host, port) and not self._edge.goes_by_proxy(host)
            ]
            with suppress(RuntimeError):  # no thread can be started: the session stays where it is
                zxid = self.client.last_zxid
                self._probe = HomeProbe(homes, self._edge.addresses, zxid, self._edge.tls) if homes else None

    def stop(self, timeout: float | None = None) -> Any:
        """Wait for the end of the connection's thread, and end what it has begun."""
        ended = super().stop(timeout)
        if self._probe is not None:
            self._probe.end()
        for probe in list(self._kinds.values()):  # kazoo's thread may still run, and ask another server
            probe.end()
        return ended

    def _connect(self, *server: Any) -> tuple[float, float]:
        host, address, port = server
        self._dialled = address, port
        limit_s, began = self._attempt_limit_s(), time.monotonic()
        try:
            with self._edge.attempt(limit_s):
                silence_ms, connect_ms = super()._connect(*server)
        except BaseException as error:
            if time.monotonic() - began >= limit_s:
                self._ran_out += 1
                self._silent = self._dialled
            self._note_failure(error, host, address, port)
            raise
        self._ran_out = 0
        for probe in self._kinds.values():
            probe.forget()
        if self._refusals.connected() and self._heard is not None:
            self._heard(None, False)
        if self._silent == self._dialled:
            self._silent = None
        self._home.connected(near=self._is_near(host, port))
        # kazoo derives both from the timeout that the server granted: two thirds of it, and its part for each server.
        self._session_s = connect_ms * len(self.client.hosts) / 1000
        self._edge.silence_limit_s = silence_ms / 1000
        return silence_ms, connect_ms

    def _note_failure(self, error: BaseException, host: str, address: str, port: int) -> None:
        """Pass on what TLS has to do with the end of an attempt."""
        if not self._refusals.failed((host, address, port), self._failure_of(error, host)) or self._heard is None:
            return
        trouble = self._refusals.trouble()
        self._heard(trouble.said, trouble.for_good)

    def _failure_of(self, error: BaseException, host: str) -> TlsFailure | None:
        """Return what TLS has to do with the end of an attempt: kazoo makes one error of all, whose context it is."""
        lost = isinstance(error, ConnectionDropped)
        if self._edge.tls is None:
            ended = lost and self._socket is not None
            return PLAIN_AT_SECURED if self._kind_of(host, ended=ended) is PortKind.TLS else None
        cause = error.__context__ or error
        failure = tls_failure(cause, host)
        ended = isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionResetError)
        kind = self._kind_of(host, ended=ended and self._socket is None)
        if kind is not None:
            return SECURED_AT_PLAIN if kind is PortKind.PLAIN else ENDED_AT_SECURED
        if failure is None and lost and isinstance(self._socket, SessionTlsSocket):
            return TlsFailure(ENDED_AFTER_HANDSHAKE, lasting=False)
        return failure

    def _kind_of(self, host: str, *, ended: bool) -> PortKind | None:
        """Return which kinds of connection the dialled port takes, as far as it is known by now; it is asked now and
        then. One that is dialled by way of the proxy is not asked: that would need the proxy for it.

        Args:
            ended: the server has ended the connection without a word; otherwise what was known of it counts no more.
        """
        where = self._dialled
        if where is None or self._edge.goes_by_proxy(host) or self._edge.is_aborted:
            return None
        probe = self._kinds.get(where)
        if not ended:
            if probe is not None:
                probe.forget()
            return None
        known = probe.found if probe is not None else None
        if probe is None or (probe.ended and time.monotonic() >= probe.began + ASK_EVERY_S):
            with suppress(RuntimeError):  # no thread can be started: then it is not known
                self._kinds[where] = KindProbe(*where, by_tls=self._edge.tls is not None, before=known)
        return known

    def _read_response(self, header: Any, buffer: Any, offset: int) -> Any:
        """Keep the watch of an answer that is being read while the client is stopped: kazoo passes the answer on, and
        then leaves the watch out, so that it never heard of the session's end."""
        request = self.client._pending[0][0]
        end = super()._read_response(header, buffer, offset)
        watcher = getattr(request, "watcher", None)
        if watcher is not None and self.client._stopped.is_set():
            if isinstance(request, GetChildren | GetChildren2):
                set_by, watchers = header.err == 0, self.client._child_watchers
            else:
                unborn = isinstance(request, Exists) and header.err == NoNodeError.code
                set_by, watchers = header.err == 0 or unborn, self.client._data_watchers
            if set_by:
                watchers[request.path].add(watcher)
        return end
