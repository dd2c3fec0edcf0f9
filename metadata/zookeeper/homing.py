"""When does a session return to a ZooKeeper server of the own region? `HomeRule` decides, `HomeProbe` asks.

A session whose server of the own region went away is at another one, where each request takes a round trip more. The
protocol allows it to go on at any server under its id, with its ephemeral znodes. It is a lost connection to those that
use it all the same: what they ask meanwhile is refused, and watches are void. So it is done rarely, and when nothing is
asked: after the answer to a sign of life, for which kazoo asks when it has sent nothing for a third of the session.

Fault model: a server that listens need not serve. It may be without a leader, or so far behind that it refuses a
session that has seen more. So it must say for a while that it serves, and what it has, before it is gone to; `srvr`
asks that, which every server answers unless that was switched off (`4lw.commands.whitelist`): then a session stays
where it is. Where the server fails after all, the others are tried as after any loss, and the next return waits for
minutes.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from metadata.zookeeper.tls_socket import ClientTls

Addresses = Callable[[str, int], Sequence[tuple[str, int]]]
"""Returns the addresses of a name and port; raises OSError for a name that nobody knows."""

ASK_S: Final = 1.0
"""How long a server may take for an answer."""
SERVING_MODES: Final = frozenset({"leader", "follower", "observer", "standalone"})

PROBE_EVERY_S: Final = 10.0
WELL_FOR_S: Final = 30.0
"""How long a server of the own region must have served at least; each session adds up to as much again, so that not all
come at a time."""
MOST_BETWEEN_S: Final = 6 * PROBE_EVERY_S
"""The longest time between two answers that show together that a server has served."""
RETURN_EVERY_S: Final = 300.0
"""The shortest time between two returns of a session."""


class HomeRule:
    """Says when to ask for a server of the own region, and when to go there. Times are those of one clock."""

    def __init__(self, well_for_s: float | None = None) -> None:
        """`well_for_s`: how long it must have served; None: a number of this session."""
        self._well_for_s = random.uniform(1, 2) * WELL_FOR_S if well_for_s is None else well_for_s
        self._away = False
        self._ask_at = 0.0
        self._well_since: float | None = None
        self._answered_at = 0.0
        self._return_at = 0.0

    def connected(self, *, near: bool) -> None:
        """Note that the session is at a server of the own region, or at another one."""
        self._away = not near
        self._well_since = None

    def asks(self, now: float) -> bool:
        """Return whether to ask now; the next time is a while later then."""
        if not self._away or now < self._ask_at:
            return False
        self._ask_at = now + PROBE_EVERY_S
        return True

    def answered(self, now: float, *, serves: bool) -> None:
        """Note what was found. Between two answers that lie far apart, nothing is known of the server."""
        known = now - self._answered_at <= MOST_BETWEEN_S
        self._answered_at = now
        if not serves:
            self._well_since = None
        elif self._well_since is None or not known:
            self._well_since = now

    def returns(self, now: float) -> bool:
        """Return whether the session goes there now; it does not go again for a while then."""
        if not self._away or self._well_since is None:
            return False
        if now < max(self._return_at, self._well_since + self._well_for_s):
            return False
        self._return_at = now + RETURN_EVERY_S
        self._well_since = None
        return True


class HomeProbe:
    """Asks servers whether they serve, in a thread of its own: one that hangs must not hold up the session."""

    def __init__(
        self,
        servers: Sequence[tuple[str, int]],
        addresses: Addresses,
        zxid: int,
        tls: ClientTls | None = None,
        limit_s: float | None = None,
    ) -> None:
        """Begin. `servers`: names and ports, whose addresses are looked up now; `zxid`: the last change that the
        session has seen; `tls`: by which it is asked as well; `limit_s`: as `four_letters` has it. Raises RuntimeError
        where no thread can be started."""
        self.found: tuple[str, str, int] | None = None
        """Name, address and port of the first that serves, once `ended`."""
        self._servers = servers
        self._addresses = addresses
        self._zxid = zxid
        self._tls = tls
        self._limit_s = limit_s
        self._asking: socket.socket | None = None
        self._given_up = False
        self._thread = threading.Thread(target=self._run, name="dlspark-zookeeper-home", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """True once all have answered, or one that serves."""
        return not self._thread.is_alive()

    def end(self) -> None:
        """Give up: the session is closed, and nothing of it stays behind (I16)."""
        self._given_up = True
        asking = self._asking
        if asking is not None:
            with contextlib.suppress(OSError):
                # Not by SSLSocket's method, which takes TLS off for whatever the thread would still send.
                socket.socket.shutdown(asking, socket.SHUT_RDWR)
        self._thread.join(ASK_S)

    def _run(self) -> None:
        for name, port in self._servers:
            try:
                found = self._addresses(name, port)
            except OSError:
                continue
            for address, port_there in found:
                if self._given_up:
                    return
                said = four_letters(
                    address, port_there, "srvr", self._keep, tls=self._tls, server_name=name, limit_s=self._limit_s
                )
                if serves(said, self._zxid):
                    self.found = (name, address, port_there)
                    return

    def _keep(self, connection: socket.socket) -> None:
        self._asking = connection
        if self._given_up:  # behind the line before; `end` does both the other way round, so that one of them sees it
            raise OSError("given up")


def serves(answer: str, zxid: int) -> bool:
    """Return whether a server that gives this answer to `srvr` would take a session that has seen `zxid`, and its
    writes: a server without a leader may serve reads ("read-only")."""
    said = said_zxid(answer)
    return said is not None and said >= zxid


def said_zxid(answer: str) -> int | None:
    """Return the last change that a server has, by its answer to `srvr`; None where it does not serve writes, too."""
    said = dict(line.partition(": ")[::2] for line in answer.splitlines())
    try:
        return int(said["Zxid"], 16) if said["Mode"] in SERVING_MODES else None
    except (KeyError, ValueError):
        return None


def four_letters(
    host: str,
    port: int,
    command: str,
    begun: Callable[[socket.socket], None] | None = None,
    *,
    tls: ClientTls | None = None,
    server_name: str | None = None,
    limit_s: float | None = None,
) -> str:
    """Return a ZooKeeper server's answer to a four-letter command, of which it has `limit_s` (None: `ASK_S`) for each
    part and as much for all; empty where nothing answers in time. `begun` is told the connection. By `tls`, which a
    secure port needs, the certificate must be that of `server_name` (None: of `host`)."""
    limit_s = ASK_S if limit_s is None else limit_s
    until = time.monotonic() + limit_s
    try:
        with contextlib.ExitStack() as open_now:
            connection = open_now.enter_context(socket.create_connection((host, port), limit_s))
            if tls is not None:
                connection = open_now.enter_context(
                    tls.client_context().wrap_socket(
                        connection, server_hostname=server_name or host, do_handshake_on_connect=False
                    )
                )
            if begun is not None:
                begun(connection)
            if isinstance(connection, ssl.SSLSocket):
                connection.do_handshake()
            connection.sendall(command.encode("ascii"))
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
                if time.monotonic() > until:
                    return ""
            return answer.decode("utf-8", "replace")
    except OSError:
        return ""
